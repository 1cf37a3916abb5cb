//! How much memory a server takes for clients of keys that send what they should not, or do not
//! read.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/clients.rs"]
#[allow(dead_code)] // Not every test needs all of it.
mod clients;
#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use clients::Connection;
use harness::{Room, Running, eventually};
use meridian_keys::resp::answer::Answered;
use meridian_keys::resp::{BULK_MAX, INLINE_MAX};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// So much more may a server take at most while all this goes on, in MiB: one request of the
/// greatest length, and what its arguments are.
const LONG_MIB: u64 = 160;
/// The same where no request is long.
const SHORT_MIB: u64 = 48;
/// The same where all that may be kept for clients is: 256 MiB for each of two threads, the longest
/// answer and request on their way in and out, and a value of the greatest length.
const TOGETHER_MIB: u64 = 1024;
/// So many clients want more than that together.
const HOGS: usize = 24;
/// So many connections behave badly at once.
const MANY: usize = 32;

/// The server of a demo's only node.
struct Server {
    port: u16,
    pid: i32,
    log: PathBuf,
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Checks that its log tells once of the address that all that is bad has come from: once for
    /// each thread that has taken some.
    fn blames_once(&self) {
        let log = fs::read_to_string(&self.log).unwrap();
        let told = log.matches("connection closed").count();
        let threads = std::thread::available_parallelism().unwrap().get();
        assert!((1..=threads.min(8)).contains(&told), "told {told} times");
    }

    /// Whether another client can change a key and read it.
    fn sets_and_gets(&self) {
        let mut connection = Connection::new(self.port, PATIENCE).unwrap();
        for number in ["1", "2", "3"] {
            let set = connection.ask(&["SET", "short", number]).unwrap();
            assert_eq!(set, Answered::Line("OK".into()));
            let got = connection.ask(&["GET", "short"]).unwrap();
            assert_eq!(got, Answered::Bulk(number.as_bytes().to_vec().into()));
        }
    }

    fn memory_mib(&self, of: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(of)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }

    /// Whether other clients are answered.
    fn answers(&self) {
        let mut connection = Connection::new(self.port, PATIENCE).unwrap();
        for _ in 0..20 {
            assert_eq!(connection.ask(&["STRLEN", "long"]).unwrap(), Answered::Integer(1 << 20));
        }
    }

    /// Checks how much more the server takes at its most while something is done.
    fn takes_at_most(&self, mib: u64, what: &str, done: impl FnOnce()) {
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5").unwrap(); // Resets the peak.
        let before = self.memory_mib("VmRSS");
        done();
        self.answers();
        let peak = self.memory_mib("VmHWM");
        eprintln!("{what}: {before} MiB before, {peak} MiB at most");
        assert!(peak < before + mib, "{what}: {before} MiB before, {peak} MiB at most");
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Writes until the server takes nothing more.
fn write_until_full(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    match stream.write_all(bytes) {
        Ok(()) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
    }
}

/// What the server says before it ends the connection.
fn rest(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    String::from_utf8(said).unwrap()
}

/// Nobody reads: 32 clients have asked for 64 GB together.
fn slow_readers(server: &Server) {
    let mut silent = Vec::new();
    for _ in 0..MANY {
        let mut stream = server.connect();
        write_until_full(&mut stream, &b"get long\n".repeat(2000));
        silent.push(stream);
    }
    server.answers();
}

fn a_million_requests(server: &Server) {
    const COUNT: usize = 1_000_000;
    let (mut ask, mut read) = {
        let stream = server.connect();
        (stream.try_clone().unwrap(), stream)
    };
    let request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n".repeat(1000);
    std::thread::scope(|scope| {
        scope.spawn(move || (0..COUNT / 1000).for_each(|_| ask.write_all(&request).unwrap()));
        let (mut left, mut buffer) = (5 * COUNT, vec![0; 1 << 16]);
        while left > 0 {
            let len = read.read(&mut buffer).unwrap();
            assert!(len > 0, "closed with {left} bytes to come");
            left -= len;
        }
        assert!(buffer.starts_with(b"+OK\r\n") || buffer.contains(&b'K'));
    });
}

fn announced(server: &Server) {
    let mut idle = Vec::new();
    for words in ["*1048576\r\n", "*2\r\n$3\r\nGET\r\n$67108864\r\n", "*1\r\n$67108864\r\nabc"] {
        for _ in 0..MANY {
            let mut stream = server.connect();
            stream.write_all(words.as_bytes()).unwrap();
            idle.push(stream);
        }
    }
    server.answers();
    for words in ["*1048577\r\n", "*99999999999999999999\r\n", "*1\r\n$67108865\r\n"] {
        let mut stream = server.connect();
        stream.write_all(words.as_bytes()).unwrap();
        assert!(rest(stream).starts_with("-ERR Protocol error"), "{words}");
    }
    // As for Redis, a request of fewer than no words is none.
    let mut stream = server.connect();
    stream.write_all(b"*-7\r\nPING\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

fn nested(server: &Server) {
    for _ in 0..MANY {
        let mut stream = server.connect();
        // The server may end the connection before it has read all.
        let _ = stream.write_all(&b"*1\r\n".repeat(100_000));
        let said = rest(stream);
        assert!(said.is_empty() || said.starts_with("-ERR Protocol error: expected '$'"), "{said}");
    }
}

/// A request of as many arguments as there may be.
fn many_arguments(server: &Server) {
    let mut stream = server.connect();
    stream.write_all(b"*1048576\r\n$6\r\nEXISTS\r\n").unwrap();
    let words = b"$1\r\na\r\n".repeat(1023);
    (0..1025).for_each(|_| stream.write_all(&words).unwrap());
    let mut answer = [0; 1];
    stream.read_exact(&mut answer).unwrap();
    assert!(matches!(&answer, b":" | b"-"), "{answer:?}");
}

/// A line of a GiB.
fn an_endless_line(server: &Server) {
    let mut stream = server.connect();
    let piece = vec![b'a'; 1 << 20];
    // Who is told why it is left may go on for a moment: that is read, and not kept.
    let _ = (0..1024).all(|_| stream.write_all(&piece).is_ok());
    let said = rest(stream);
    assert!(said.is_empty() || said.starts_with("-ERR Protocol error: too long a line"), "{said}");
    // What was said before the connection broke may be lost with it.
    let mut stream = server.connect();
    stream.write_all(&piece[..INLINE_MAX + 1]).unwrap();
    assert!(rest(stream).starts_with("-ERR Protocol error: too long a line"));
}

/// As many connections as may be, each with half a request.
fn halves(server: &Server) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap() / 2);
    let half = |number: usize| {
        let mut stream = server.connect();
        let words = ["*2\r\n$3\r\nGET\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9\r\nabc", "get "];
        stream.write_all(words[number % words.len()].as_bytes()).unwrap();
        stream
    };
    let halves: Vec<_> = (0..room.min(5000)).map(half).collect();
    server.answers();
    let rests = ["$1\r\nk\r\n", "def456\r\n", "k\n"];
    for (mut stream, rest) in halves.into_iter().zip(rests.iter().cycle()) {
        stream.write_all(rest.as_bytes()).unwrap();
        let mut answer = [0; 1];
        stream.read_exact(&mut answer).unwrap();
        assert!(matches!(&answer, b"$" | b"+"), "{answer:?}");
    }
}

/// Connections that begin long requests and stop: together they are longer than all that may be
/// kept for clients.
fn long_halves(server: &Server) {
    let piece = vec![b'v'; BULK_MAX - 1];
    let mut silent = Vec::new();
    for _ in 0..HOGS {
        let mut stream = server.connect();
        let _ = stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67108864\r\n");
        let _ = stream.write_all(&piece);
        silent.push(stream);
        server.answers();
    }
    server.sets_and_gets();
}

/// The same with answers that nobody takes.
fn long_answers(server: &Server) {
    let value = "v".repeat(BULK_MAX);
    let mut connection = Connection::new(server.port, PATIENCE).unwrap();
    assert_eq!(connection.ask(&["SET", "longest", &value]).unwrap(), Answered::Line("OK".into()));
    drop(value);
    let mut silent = Vec::new();
    for _ in 0..HOGS {
        let mut stream = server.connect();
        stream.write_all(b"*3\r\n$4\r\nMGET\r\n$7\r\nlongest\r\n$7\r\nlongest\r\n").unwrap();
        let _ = stream.read_exact(&mut [0; 1]);
        silent.push(stream);
        server.answers();
    }
    server.sets_and_gets();
    assert_eq!(connection.ask(&["DEL", "longest"]).unwrap(), Answered::Integer(1));
}

/// A demo of one node with keys, whose key `long` has a MiB.
fn demo(room: &Room) -> (Running, Server) {
    let port = free_port();
    let number = port.to_string();
    let args = ["demo", "--mount", "mnt", "--data", "data", "--regions", "us"];
    let args = [&args[..], &["--nodes-per-region", "1", "--keys-port", &number]].concat();
    let demo = Running::start(room.meridian(&args), room.mount());
    let value = "v".repeat(1 << 20);
    eventually("the node serves", || {
        let connection = Connection::new(port, PATIENCE);
        let set = connection.and_then(|mut connection| connection.ask(&["SET", "long", &value]));
        set.is_ok_and(|answer| answer == Answered::Line("OK".into()))
    });
    let log = room.path("data/us-1/server.log");
    (demo, Server { port, pid: room.pid_of("us-1"), log })
}

#[test]
fn bad_clients_take_a_bounded_amount_of_memory() {
    let room = Room::new();
    let (demo, server) = demo(&room);
    // One byte of its request comes after each of the others has done its worst.
    let mut slow = server.connect();
    let mut request = b"*1\r\n$4\r\nPING\r\n".iter();
    let mut trickle = |count| {
        request.by_ref().take(count).for_each(|byte| slow.write_all(&[*byte]).unwrap());
    };
    type Step = (u64, &'static str, fn(&Server));
    let steps: [Step; 7] = [
        (SHORT_MIB, "announced", announced),
        (SHORT_MIB, "nested", nested),
        (SHORT_MIB, "an endless line", an_endless_line),
        (SHORT_MIB, "halves", halves),
        (SHORT_MIB, "a million requests", a_million_requests),
        (LONG_MIB, "slow readers", slow_readers),
        (LONG_MIB, "many arguments", many_arguments),
    ];
    for (mib, what, step) in steps {
        trickle(1);
        server.takes_at_most(mib, what, || step(&server));
    }
    trickle(usize::MAX);
    let mut answer = [0; 7];
    slow.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    server.blames_once();
    demo.stop();
    room.assert_clean();
}

#[test]
fn clients_together_take_a_bounded_amount_of_memory() {
    let room = Room::new();
    let (demo, server) = demo(&room);
    server.takes_at_most(TOGETHER_MIB, "long halves", || long_halves(&server));
    server.takes_at_most(TOGETHER_MIB, "long answers", || long_answers(&server));
    server.blames_once();
    demo.stop();
    room.assert_clean();
}
