//! Requests come out as they went in, however they are cut up, and bad ones are refused early.

use super::*;
use proptest::prelude::*;

type Words = Vec<Vec<u8>>;

fn encode(words: &[Vec<u8>], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// All requests of `bytes`, fed in pieces of the given lengths, the last one again and again.
fn all(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Words>, ProtocolError> {
    match taken(bytes, pieces) {
        (taken, None) => Ok(taken),
        (_, Some(error)) => Err(error),
    }
}

/// The same up to the first that is none, and what is wrong with that.
fn taken(bytes: &[u8], pieces: &[usize]) -> (Vec<Words>, Option<ProtocolError>) {
    let (mut requests, mut taken) = (Requests::default(), Vec::new());
    let mut rest = bytes;
    let mut pieces = pieces.iter().copied().chain(std::iter::repeat(*pieces.last().unwrap_or(&1)));
    while !rest.is_empty() {
        let len = pieces.next().unwrap_or(1).clamp(1, rest.len());
        let (piece, after) = rest.split_at(len);
        rest = after;
        requests.feed(piece);
        loop {
            match requests.take() {
                Ok(Some(request)) => taken.push(request.from(0).map(<[u8]>::to_vec).collect()),
                Ok(None) => break,
                Err(error) => return (taken, Some(error)),
            }
        }
        // An argument of no bytes takes six.
        let arguments = bytes.len() / 6 + 1;
        assert!(requests.len_bytes() <= bytes.len() + arguments * size_of::<Argument>());
    }
    (taken, None)
}

/// What means something in requests.
const TOKENS: &[&[u8]] = &[
    b"*",
    b"$",
    b"\r\n",
    b"\n",
    b"-1",
    b"*-1\r\n",
    b"$0\r\n",
    b"\"",
    b"\\x",
    b"*1\r\n",
    b"99999999999",
];

/// What a program does to requests that writes them badly, or a network.
#[derive(Clone, Debug)]
enum Harm {
    Flip(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
}

impl Harm {
    fn any() -> impl Strategy<Value = Harm> {
        let token = prop::sample::select(TOKENS);
        prop_oneof![
            (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Harm::Flip(at, byte)),
            (any::<usize>(), token).prop_map(|(at, token)| Harm::Insert(at, token.to_vec())),
            (any::<usize>(), 0usize..9).prop_map(|(at, len)| Harm::Remove(at, len)),
            (any::<usize>(), 0usize..30).prop_map(|(at, len)| Harm::Repeat(at, len)),
        ]
    }

    fn does(self, bytes: &mut Vec<u8>) {
        let place = |at: usize| at % (bytes.len() + 1);
        let range = |at: usize, len: usize| place(at)..(place(at) + len).min(bytes.len());
        match self {
            Harm::Flip(at, with) => {
                let range = range(at, 1);
                bytes[range].iter_mut().for_each(|byte| *byte ^= with);
            }
            Harm::Insert(at, token) => {
                let at = place(at);
                drop(bytes.splice(at..at, token));
            }
            Harm::Remove(at, len) => drop(bytes.drain(range(at, len))),
            Harm::Repeat(at, len) => bytes.extend_from_within(range(at, len)),
        }
    }
}

fn one(bytes: &[u8]) -> Result<Vec<Words>, ProtocolError> {
    let whole = all(bytes, &[bytes.len()]);
    assert_eq!(all(bytes, &[1]), whole, "byte by byte");
    whole
}

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

proptest! {
    #[test]
    fn requests_come_out_as_they_went_in(
        sent in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 0..8),
        pieces in prop::collection::vec(1usize..50, 1..20),
    ) {
        let mut bytes = Vec::new();
        sent.iter().for_each(|words| encode(words, &mut bytes));
        prop_assert_eq!(all(&bytes, &pieces), Ok(sent));
    }

    #[test]
    fn no_bytes_panic_and_pieces_do_not_matter(
        bytes in prop::collection::vec(
            prop_oneof![
                Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'"'), Just(b'\''),
                Just(b'\\'), Just(b'1'), Just(b'2'), Just(b'-'), any::<u8>()], 0..200),
        pieces in prop::collection::vec(1usize..50, 1..20),
    ) {
        let whole = taken(&bytes, &[bytes.len().max(1)]);
        prop_assert_eq!(whole, taken(&bytes, &pieces));
    }

    #[test]
    fn no_harm_to_requests_panics_and_pieces_do_not_matter(
        sent in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 1..8),
        harm in prop::collection::vec(Harm::any(), 1..6),
        pieces in prop::collection::vec(1usize..50, 1..20),
    ) {
        let mut bytes = Vec::new();
        sent.iter().for_each(|words| encode(words, &mut bytes));
        harm.into_iter().for_each(|harm| harm.does(&mut bytes));
        let whole = taken(&bytes, &[bytes.len().max(1)]);
        prop_assert_eq!(whole, taken(&bytes, &pieces));
    }

    #[test]
    fn a_line_of_words_comes_out_as_it_was_quoted(
        sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..10), 1..5),
    ) {
        let mut line = Vec::new();
        for word in &sent {
            line.push(b'"');
            for byte in word {
                line.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
            }
            line.extend_from_slice(b"\" ");
        }
        line.extend_from_slice(b"\r\n");
        prop_assert_eq!(all(&line, &[line.len()]), Ok(vec![sent]));
    }
}

#[test]
fn lines_are_requests_too() {
    assert_eq!(one(b"PING\r\n"), Ok(vec![words("PING")]));
    assert_eq!(one(b"  set  k v \n\r\nget k\n"), Ok(vec![words("set k v"), words("get k")]));
    assert_eq!(one(br#"a"#), Ok(vec![]));
    let quoted = one(b"set \"a b\" 'c\\'d' e\"f\"\r\n").expect("a request");
    assert_eq!(quoted, [[&b"set"[..], b"a b", b"c'd", b"ef"]]);
}

#[test]
fn empty_requests_ask_for_nothing() {
    assert_eq!(one(b"\r\n*0\r\n*-1\r\n   \r\nPING\r\n"), Ok(vec![words("PING")]));
}

#[test]
fn bad_requests_are_refused() {
    let cases: [(&[u8], ProtocolError); 12] = [
        (b"*x\r\n", ProtocolError::Arguments),
        (b"*1048577\r\n", ProtocolError::Arguments),
        (b"*99999999999999999999\r\n", ProtocolError::Arguments),
        (b"*1\r\n:1\r\n", ProtocolError::Marker(b':')),
        (b"*1\r\n*1\r\n", ProtocolError::Marker(b'*')),
        (b"*1\r\n$-1\r\n", ProtocolError::Length),
        (b"*1\r\n$01\r\na\r\n", ProtocolError::Length),
        (b"*1\r\n$67108865\r\n", ProtocolError::Length),
        (b"*1\r\n$1\r\nab\r\n", ProtocolError::End),
        (b"set \"a\r\n", ProtocolError::Quotes),
        (b"set \"a\"b\r\n", ProtocolError::Quotes),
        (b"*1111111111111111111111111111111111111111", ProtocolError::Arguments),
    ];
    for (bytes, error) in cases {
        assert_eq!(one(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(all(&vec![b'a'; INLINE_MAX + 1], &[1 << 16]), Err(ProtocolError::Line));
}

#[test]
fn a_request_is_no_longer_than_the_limit_whatever_its_arguments_are() {
    let mut requests = Requests::default();
    requests.feed(b"*3\r\n$3\r\nset\r\n$67108864\r\n");
    let piece = vec![7; 1 << 20];
    for _ in 0..64 {
        assert_eq!(requests.take().map(|request| request.is_none()), Ok(true));
        requests.feed(&piece);
    }
    requests.feed(b"\r\n$2097152\r\n");
    assert_eq!(requests.take().map(|_| ()), Err(ProtocolError::Request));
}

#[test]
fn a_long_value_is_not_looked_at_again_with_each_piece() {
    let value = vec![b'\n'; 32 << 20];
    let mut bytes = Vec::new();
    encode(&[b"set".to_vec(), b"k".to_vec(), value.clone()], &mut bytes);
    // Four million pieces, each with nothing but line ends: looking at all again would take hours.
    let taken = all(&bytes, &[8]).expect("a request");
    assert_eq!(taken[0][2], value);
}

#[test]
fn what_was_announced_takes_no_memory() {
    let mut requests = Requests::default();
    requests.feed(b"*1048576\r\n$67108864\r\n");
    assert!(requests.take().is_ok_and(|request| request.is_none()));
    assert!(requests.buffer.capacity() < 1024 && requests.arguments.capacity() < 1024);
}

#[test]
fn memory_is_given_back_after_a_long_request() {
    let mut bytes = Vec::new();
    encode(&[vec![1; 8 << 20]], &mut bytes);
    let mut requests = Requests::default();
    requests.feed(&bytes);
    assert!(requests.take().is_ok_and(|request| request.is_some()));
    // The client sends nothing more, or only half a request.
    assert!(requests.take().is_ok_and(|request| request.is_none()));
    assert_eq!((requests.buffer.capacity(), requests.len_bytes()), (0, 0));
    bytes.extend_from_slice(b"*1\r\n$4\r\nPI");
    requests.feed(&bytes);
    assert!(requests.take().is_ok_and(|request| request.is_some()));
    assert!(requests.take().is_ok_and(|request| request.is_none()));
    assert!(requests.buffer.capacity() < 1024);
    let mut many = Vec::new();
    encode(&vec![vec![]; 100_000], &mut many);
    let mut requests = Requests::default();
    requests.feed(&many[..many.len() - 1]);
    assert!(requests.take().is_ok_and(|request| request.is_none()));
    assert!(requests.len_bytes() > 2_000_000);
    requests.feed(b"\n");
    assert!(requests.take().is_ok_and(|request| request.is_some()));
    assert!(requests.take().is_ok_and(|request| request.is_none()));
    assert_eq!((requests.arguments.capacity(), requests.len_bytes()), (0, 0));
}

#[test]
fn a_pipeline_of_many_requests_comes_out_whole() {
    let mut bytes = Vec::new();
    for number in 0..100_000 {
        encode(&words(&format!("incrby k {number}")), &mut bytes);
    }
    let taken = all(&bytes, &[65_536]).expect("requests");
    assert_eq!(taken.len(), 100_000);
    assert_eq!(taken[77_777], words("incrby k 77777"));
}
