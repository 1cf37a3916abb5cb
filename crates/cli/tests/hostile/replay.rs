//! Abuse 6: what was said before is said again, by whoever has heard it.

use crate::harness::eventually;
use crate::intruder::{self, Line};
use crate::secured::{NODES, Port, Secured};
use crate::tenancy::{Program, Tenancy, append, create};
use meridian_fs::{Answer, Place, Query, Vector};
use meridian_host::api::{Refusal, ReplyBody, RequestBody};
use meridian_keys::resp::answer::{Answered, read, write_request};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often each of it is said again at each node.
const AGAIN: usize = 5;
/// Names of connections for keys begin with the minutes since then.
const YEAR_2020: Duration = Duration::from_secs(1_577_836_800);

#[test]
fn what_is_said_again_is_done_once() {
    let tenancy = Tenancy::start(&["--none"]);
    let mut program = tenancy.call("us-1");
    let file = program.made(&tenancy.update(1, 1, create(tenancy.lab, "file")));
    let (seen, said) = requests_are_executed_once(&tenancy, &mut program, file);
    let seen = two_clients_of_one_name_are_one(&tenancy, file, &seen);
    what_has_ended_is_refused(&tenancy, &mut program, file, &said);
    let seen = a_recorded_connection_is_of_no_use(&tenancy, file, &seen);
    contents(&tenancy, file, &seen, 4);
    changes_of_keys_are_made_once(&tenancy.all);
    drop(program);
    tenancy.end();
}

/// What all nodes say of the file, which has so many bytes.
fn contents(tenancy: &Tenancy, file: Place, seen: &Vector, len: u64) {
    for node in NODES {
        let mut program = tenancy.call(node);
        let answer = program.read(seen, Query::Attributes { inode: file });
        let ReplyBody::Answer { result: Ok(Answer::Attributes(of)), .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(of.size, len, "at {node}");
    }
}

/// On the same connection, on others, at other nodes, and after something else was done. Gives
/// what was said.
fn requests_are_executed_once(
    tenancy: &Tenancy,
    program: &mut Program,
    file: Place,
) -> (Vector, RequestBody) {
    let said = tenancy.update(1, 2, append(file, b"a"));
    let (first, _) = program.done(&said);
    let (_, seen) = program.done(&tenancy.update(1, 3, append(file, b"b")));
    for node in NODES {
        let mut other = tenancy.call(node);
        for _ in 0..AGAIN {
            assert_eq!(other.done(&said).0, first, "the same answer at {node}");
        }
    }
    contents(tenancy, file, &seen, 2);
    (seen, said)
}

/// Each says something else under one name, at once at two nodes: one of both is done, and both
/// hear what came of that.
fn two_clients_of_one_name_are_one(tenancy: &Tenancy, file: Place, seen: &Vector) -> Vector {
    let texts: [&'static [u8]; 2] = [b"y", b"z"];
    let mut seen = seen.clone();
    for round in 0..AGAIN {
        let ends = thread::scope(|scope| {
            let asks = |(node, text)| {
                let said = tenancy.update(100 + round as u64, 1, append(file, text));
                scope.spawn(move || tenancy.call(node).done(&said))
            };
            let [one, other] = [(NODES[0], texts[0]), (NODES[1], texts[1])].map(asks);
            [one.join().unwrap(), other.join().unwrap()]
        });
        assert_eq!(ends[0].0, ends[1].0, "in round {round}");
        seen = ends[0].1.clone();
        contents(tenancy, file, &seen, 3 + round as u64);
    }
    // Somebody with another certificate has learnt the name, and says the same once more.
    let said = tenancy.update(100, 1, append(file, b"w"));
    let at = tenancy.all.port(Port::Node, "us-3");
    let mut stranger = Program::call(&tenancy.all, at, "client");
    let ((_, _, result), _) = stranger.done(&said);
    assert!(result.is_ok(), "what came of it: {result:?}");
    contents(tenancy, file, &seen, 2 + AGAIN as u64);
    let cut = meridian_fs::operation::Changes { size: Some(3), ..Default::default() };
    let cut = meridian_fs::Update::SetAttributes { inode: file, changes: cut };
    tenancy.call("us-1").done(&tenancy.update(1, 4, cut)).1
}

/// Its client waits for it no more, and its outcome is forgotten.
fn what_has_ended_is_refused(
    tenancy: &Tenancy,
    program: &mut Program,
    file: Place,
    said: &RequestBody,
) {
    let mut later = tenancy.update(1, 5, append(file, b""));
    let RequestBody::Update { start, .. } = &mut later else { panic!("an update") };
    start.low = 5;
    let (_, seen) = program.done(&later);
    for node in NODES {
        let mut other = tenancy.call(node);
        // From then on the node knows that it has ended.
        other.read(&seen, Query::Attributes { inode: file });
        for _ in 0..AGAIN {
            let answer = other.ask(said);
            let has_ended = |why: &str| why.contains("has ended");
            let refused =
                matches!(&answer, ReplyBody::Refused(Refusal::Bad(why)) if has_ended(why));
            assert!(refused, "{answer:?} at {node}");
        }
    }
    contents(tenancy, file, &seen, 3);
}

/// A wire that is tapped: what goes to the node is remembered.
fn tapped(node: SocketAddr) -> (SocketAddr, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let taps = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(node).unwrap();
        let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let back = thread::spawn(move || std::io::copy(&mut from, &mut to).unwrap());
        let (mut heard, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(len @ 1..) = client.read(&mut piece) {
            heard.extend_from_slice(&piece[..len]);
            server.write_all(&piece[..len]).unwrap();
        }
        server.shutdown(Shutdown::Both).unwrap();
        back.join().unwrap();
        heard
    });
    (address, taps)
}

/// All that a client has sent, byte for byte, from its handshake on.
fn a_recorded_connection_is_of_no_use(tenancy: &Tenancy, file: Place, seen: &Vector) -> Vector {
    contents(tenancy, file, seen, 3);
    let node = tenancy.all.port(Port::Node, "us-1");
    let (address, taps) = tapped(node);
    let mut program = Program::call(&tenancy.all, address, "lab");
    let (_, seen) = program.done(&tenancy.update(200, 1, append(file, b"c")));
    drop(program);
    let recorded = taps.join().unwrap();
    assert!(recorded.len() > 1000, "a handshake and a request: {}", recorded.len());
    let before = tenancy.all.refused("us-1");
    for _ in 0..AGAIN {
        let mut stream = TcpStream::connect(node).unwrap();
        let _ = stream.write_all(&recorded); // The node may have ended it by then.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest); // A reset is an end, too.
    }
    let counted = || tenancy.all.refused("us-1") >= before + AGAIN as f64;
    eventually("each is counted", counted);
    seen
}

/// Up to this number changes of keys are asked for on two connections at once.
const AT_ONCE: i64 = 300;

/// A connection for keys.
struct Keys(Line);

impl Keys {
    fn call(all: &Secured, node: &str) -> Keys {
        let shown = all.issued("client");
        Keys(intruder::connect(all.port(Port::Keys, node), Some(&shown)).unwrap())
    }

    fn ask(&mut self, words: &[&str]) -> Answered {
        self.say(words);
        self.hear()
    }

    fn say(&mut self, words: &[&str]) {
        let mut bytes = Vec::new();
        write_request(words.iter().map(|word| word.as_bytes()), &mut bytes);
        self.0.write_all(&bytes).unwrap();
    }

    fn hear(&mut self) -> Answered {
        let mut heard = Vec::new();
        loop {
            if let Some((answered, _)) = read(&heard).unwrap() {
                return answered;
            }
            let mut piece = [0; 4096];
            let len = self.0.read(&mut piece).unwrap();
            assert!(len > 0, "the node ends the connection");
            heard.extend_from_slice(&piece[..len]);
        }
    }
}

/// A change with a name: again on its connection, on another of the node, also at once, and at each
/// other node. Two nodes at once is what no client of ours asks (decision 35).
fn changes_of_keys_are_made_once(all: &Secured) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let minutes = (now - YEAR_2020).as_secs() / 60;
    let name = (minutes << 40 | 7).to_string();
    let named = |node: &str| {
        let mut keys = Keys::call(all, node);
        eventually("it serves keys", || {
            matches!(keys.ask(&["MERIDIAN.CLIENT", &name]), Answered::Array(_))
        });
        keys
    };
    let mut connections = [NODES[0], NODES[0], NODES[1], NODES[2]].map(named);
    for sequence in 1..=3 {
        let number = sequence.to_string();
        let once = ["MERIDIAN.ONCE", &number, "INCR", "counted"];
        for keys in &mut connections {
            for _ in 0..AGAIN {
                assert_eq!(keys.ask(&once), Answered::Integer(sequence));
            }
        }
    }
    for sequence in 4..=AT_ONCE {
        let number = sequence.to_string();
        let once = ["MERIDIAN.ONCE", &number, "INCR", "counted"];
        connections[..2].iter_mut().for_each(|keys| keys.say(&once));
        for keys in &mut connections[..2] {
            assert_eq!(keys.hear(), Answered::Integer(sequence), "both are answered");
        }
    }
    for keys in &mut connections {
        let counted = AT_ONCE.to_string();
        assert_eq!(keys.ask(&["GET", "counted"]), Answered::Bulk(counted.into()));
    }
}
