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
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// So much more may a server take at most while all this goes on, in MiB: one request of the
/// greatest length, and what its arguments are.
const LONG_MIB: u64 = 160;
/// The same where no request is long.
const SHORT_MIB: u64 = 48;
/// So many connections behave badly at once.
const MANY: usize = 32;

/// The server of a demo's only node.
struct Server {
    port: u16,
    pid: i32,
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
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

#[test]
fn bad_clients_take_a_bounded_amount_of_memory() {
    let room = Room::new();
    let port = free_port();
    let number = port.to_string();
    let args = ["demo", "--mount", "mnt", "--regions", "us", "--nodes-per-region", "1"];
    let args = [&args[..], &["--keys-port", &number]].concat();
    let demo = Running::start(room.meridian(&args), room.mount());
    let mut server = Server { port, pid: 0 };
    let value = "v".repeat(1 << 20);
    eventually("the node serves", || {
        let connection = Connection::new(port, PATIENCE);
        let set = connection.and_then(|mut connection| connection.ask(&["SET", "long", &value]));
        set.is_ok_and(|answer| answer == Answered::Line("OK".into()))
    });
    server.pid = room.pid_of("us-1");
    server.takes_at_most(SHORT_MIB, "announced", || announced(&server));
    server.takes_at_most(SHORT_MIB, "nested", || nested(&server));
    server.takes_at_most(SHORT_MIB, "a million requests", || a_million_requests(&server));
    server.takes_at_most(LONG_MIB, "slow readers", || slow_readers(&server));
    server.takes_at_most(LONG_MIB, "many arguments", || many_arguments(&server));
    demo.stop();
    room.assert_clean();
}
