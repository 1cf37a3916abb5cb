//! Whatever a client sends, each request of it is answered, and the others go on.

use super::*;
use crate::command::TABLE;
use proptest::prelude::*;

/// Words that some command wants.
const WORDS: &[&[u8]] = &[
    b"k",
    b"l",
    b"0",
    b"1",
    b"-1",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"3",
    b"EX",
    b"PX",
    b"NX",
    b"XX",
    b"GET",
    b"KEEPTTL",
    b"MATCH",
    b"COUNT",
    b"TYPE",
    b"string",
    b"[*",
    b"\\",
    b"?",
    b"KEY",
    b"PREFIX",
    b"",
    b"setname",
    b"maxmemory",
    b"count",
];

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(WORDS).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ]
}

fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let name = (0..TABLE.len()).prop_map(|at| TABLE[at].name.as_bytes().to_vec());
    let name = prop_oneof![9 => name, 1 => word()];
    (name, prop::collection::vec(word(), 0..7))
        .prop_map(|(name, words)| [vec![name], words].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_request_has_one_answer(requests in prop::collection::vec(request(), 1..12)) {
        let mut net = Net::of(2);
        let mut bytes = Vec::new();
        for words in &requests {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        net.feed(0, &bytes);
        net.run();
        // What comes after QUIT has no answer, and is not kept.
        prop_assert_eq!(net.desks[0].load(7), Load::default());
        prop_assert_eq!((net.desks[0].under_way(), &net.papers[0].blamed), (0, &Vec::new()));
        prop_assert_eq!(net.ask(1, "set other 1\nget other\n"), "+OK\r\n$1\r\n1\r\n");
    }
}

#[test]
fn what_is_kept_for_a_client_is_counted() {
    let mut net = Net::new();
    net.feed(0, b"*2\r\n$3\r\nGET\r\n$100\r\nabc");
    let kept = net.desks[0].load(7).kept;
    assert!((24..100).contains(&kept), "{kept}");
    net.feed(0, &[b"x".repeat(97), b"\r\n".to_vec()].concat());
    assert_eq!(net.desks[0].load(7), Load::default());
    // A request that is under way counts with its words, and is not the client's doing.
    net.feed(0, format!("set k {}\n", "v".repeat(1000)).as_bytes());
    let Load { unanswered, under_way, kept } = net.desks[0].load(7);
    assert_eq!((unanswered, kept, net.desks[0].under_way()), (1, 0, under_way));
    assert!(under_way > 1000);
    net.run();
    assert_eq!((net.desks[0].load(7), net.desks[0].under_way()), (Load::default(), 0));
    // Replies that it does not take.
    net.papers[0].stuffed = true;
    net.feed(0, &b"get k\n".repeat(3));
    let kept = net.desks[0].load(7).kept;
    assert!((3000..4000).contains(&kept), "{kept}");
    // Who has gone has nothing here.
    net.feed(0, b"set k other\n");
    assert!(net.desks[0].under_way() > 0);
    net.desks[0].disconnect(7, &mut net.papers[0]);
    assert_eq!(net.desks[0].under_way(), 0);
    net.run();
    assert_eq!(net.ask(1, "get k\n"), "$5\r\nother\r\n");
}

#[test]
fn who_sends_no_requests_is_blamed_once() {
    let mut net = Net::new();
    net.feed(0, b"set k v\r\n*1\r\n:1\r\nget k\r\n*1\r\n:1\r\n");
    net.run();
    assert_eq!(net.papers[0].blamed, [(7, ProtocolError::Marker(b':'))]);
    assert_eq!(net.papers[0].ended, [7]);
}
