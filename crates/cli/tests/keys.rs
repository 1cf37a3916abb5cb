//! Keys of a demo: the command, nodes that are killed and stopped, and what clients see meanwhile.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/clients.rs"]
mod clients;
#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use clients::{Client, Connection, Habit, History, KEYS, key_of};
use harness::{Ended, Room, Running, eventually, kill};
use meridian_core::mix;
use meridian_keys::resp::answer::Answered;
use meridian_sim::checkers::recorded::{Operation, Recorded};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The first of so many ports in a row that nobody uses now.
fn ports_in_a_row(count: u16) -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut firsts = (20_000..30_000).step_by(usize::from(count));
    firsts.find(|first| (*first..*first + count).all(free)).unwrap()
}

#[test]
fn keys_are_written_and_read_at_any_node_and_outlive_one() {
    let room = Room::new();
    let first = ports_in_a_row(3);
    let port = first.to_string();
    let args =
        ["demo", "--mount", "mnt", "--data", "data", "--regions", "us", "--keys-port", &port];
    let demo = Running::start(room.meridian(&args), room.mount());
    let kv = |node: u16, words: &[&str]| -> Ended {
        let at = format!("127.0.0.1:{}", first + node);
        room.run(&[&["kv"], words, &["--at", &at]].concat())
    };
    // A node that starts may not be sure of its membership at once.
    harness::eventually("keys are served", || kv(0, &["set", "color", "blue"]).status.success());
    harness::eventually("another node serves", || kv(1, &["get", "color"]).status.success());
    assert_eq!(kv(1, &["get", "color"]).stdout, "blue\n");
    let status = room.run(&["status"]).stdout;
    assert_eq!(status.matches("us-1, us-2, us-3").count(), 6, "all are members: {status}");
    assert_eq!(kv(2, &["get", "nothing"]).status.code(), Some(1));
    assert!(kv(0, &["cas", "color", "blue", "green"]).status.success());
    assert_eq!(kv(0, &["cas", "color", "blue", "red"]).status.code(), Some(1));
    kill(room.pid_of("us-3"), libc::SIGKILL);
    let mut watch = room.meridian(&["kv", "watch", "sh*", "--at", &format!("127.0.0.1:{first}")]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    assert!(kv(0, &["set", "shape", "round"]).status.success());
    let mut line = String::new();
    BufReader::new(watch.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    watch.kill().and_then(|()| watch.wait()).unwrap();
    assert_eq!(line, "set shape round\n");
    assert_eq!(kv(1, &["scan"]).stdout, "color\nshape\n");
    assert_eq!(kv(1, &["del", "color", "nothing"]).stdout, "1\n");
    let either = format!("127.0.0.1:{},127.0.0.1:{first}", first + 2);
    assert_eq!(room.run(&["kv", "get", "shape", "--at", &either]).stdout, "round\n");
    let nobody = kv(2, &["get", "shape"]);
    assert!(nobody.stderr.contains("no node answers at"), "{nobody:?}");
    let again = room.run(&["demo", "--mount", "other", "--keys-port", &port]);
    assert!(again.stderr.contains("name other ports by --keys-port"), "{again:?}");
    let neither = room.run(&["demo", "--mount", "other", "--keys-port", "1", "--no-keys"]);
    assert_eq!(neither.status.code(), Some(2), "{neither:?}");
    demo.stop();
    room.assert_clean();
    // The keys have gone with the servers that had them in memory.
    let demo = Running::start(room.meridian(&args), room.mount());
    harness::eventually("keys are served again", || kv(2, &["get", "shape"]).stderr.is_empty());
    assert!(kv(0, &["set", "shape", "square"]).status.success());
    demo.stop();
    room.assert_clean();
}

/// Waits until a node that was killed has ended.
fn ended(pid: i32) {
    let cmdline = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    eventually("a node has ended", || cmdline().is_empty());
}

/// Three nodes that serve keys.
struct Nodes {
    room: Room,
    ports: Vec<u16>,
    /// Those that were started again here, by their numbers.
    started: BTreeMap<usize, Child>,
}

impl Nodes {
    fn name(node: usize) -> String {
        format!("us-{}", node + 1)
    }

    fn dir(&self, node: usize) -> PathBuf {
        self.room.path("data").join(Nodes::name(node))
    }

    fn start(&mut self, node: usize) {
        let dir = self.dir(node);
        let address = format!("127.0.0.1:{}", self.ports[node]);
        let args = ["server", "--dir", dir.to_str().unwrap(), "--keys", &address];
        let log = File::options().append(true).open(dir.join("server.log")).unwrap();
        let server = self.room.meridian(&args).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.started.insert(node, server);
    }

    /// `kill -9`; returns when it has ended.
    fn kill(&mut self, node: usize, pid: i32) {
        kill(pid, libc::SIGKILL);
        match self.started.remove(&node) {
            Some(mut server) => drop(server.wait().unwrap()),
            None => ended(pid),
        }
    }

    /// Clients ask for keys while `node` is killed and started again, or stopped for longer than
    /// its lease.
    fn round(&mut self, round: u64, node: usize, fault: Fault) -> History {
        let (history, stop, ports) = (History::new(), AtomicBool::new(false), self.ports.clone());
        let _load = Load::new(ports[(node + 1) % ports.len()]);
        std::thread::scope(|scope| {
            let _stop_at_a_panic = Stop(&stop);
            let habits = [Habit::Reads, Habit::Stays, Habit::Roves];
            let all = habits.iter().flat_map(|habit| (0..3).map(move |node| (*habit, node)));
            for (number, (habit, node)) in (round * 16 + 1..).zip(all) {
                let (history, ports, stop) = (&history, &ports[..], &stop);
                let client = Client { history, ports, stop, habit, node, number, round };
                scope.spawn(move || client.run());
            }
            for at in 0..3 {
                history.wait("each node answers", |told| told.node == at && told.is_update());
            }
            let pid = self.room.pid_of(&Nodes::name(node));
            let down = history.now();
            match fault {
                Fault::Kill => self.kill(node, pid),
                Fault::Stop => kill(pid, libc::SIGSTOP),
            }
            let gone_on = history.wait("the others go on", |told| {
                told.node != node && told.is_update() && told.call.called >= down
            });
            eprintln!(
                "{fault:?} {}: the others answer a write after {} ms",
                Nodes::name(node),
                (gone_on - down) / 1_000_000
            );
            let up = history.now();
            match fault {
                Fault::Kill => self.start(node),
                Fault::Stop => kill(pid, libc::SIGCONT),
            }
            history.wait("the node is there again", |told| {
                told.node == node && told.is_update() && told.call.called >= up
            });
        });
        history
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
}

/// Stops clients, also when what they wait for fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `redis-benchmark` at a node, where it is installed.
struct Load(Option<Child>);

impl Load {
    fn new(port: u16) -> Load {
        let port = port.to_string();
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-c", "2", "-n", "100000000", "-t", "set,get,incr", "-q"]);
        let load = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        if let Err(error) = &load {
            eprintln!("without the load of redis-benchmark (package redis-tools): {error}");
        }
        Load(load.ok())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(load) = &mut self.0 {
            let _ = load.kill();
            let _ = load.wait();
        }
    }
}

/// What is written to each key at the end. They are far apart: a count of one whose answer was lost
/// may come at any time, and does not lead from the one to the other.
const LAST: [i64; 2] = [-1_000_000, -2_000_000];

/// Writes twice to each key at one node, and reads it at all.
fn end(history: &History, ports: &[u16], round: u64) {
    let patience = Duration::from_secs(60);
    let mut all: Vec<_> =
        ports.iter().map(|port| Connection::new(*port, patience).unwrap()).collect();
    for key in (0..KEYS).map(|key| key_of(round, key)) {
        for value in LAST {
            assert!(history.ask(&mut all[0], 0, &key, Operation::Write(value.into())));
        }
        for (node, connection) in all.iter_mut().enumerate() {
            assert!(history.ask(connection, node, &key, Operation::Read));
        }
    }
}

/// Judges a history, and the same with one answer falsified: the last read is of the write before.
fn judge(recorded: &Recorded) {
    recorded.check_linearizable().unwrap();
    let mut wrong = recorded.clone();
    let last = wrong.calls.iter_mut().rev().find(|(_, _, call)| call.operation == Operation::Read);
    let (_, value) = last.unwrap().2.answered.as_mut().unwrap();
    *value = LAST[0].into();
    let objection = wrong.check_linearizable().unwrap_err();
    assert!(objection.contains(": no order explains"), "{objection}");
}

/// All lose power, as it were, right after the last answer.
#[test]
fn keys_on_disk_outlive_the_end_of_all_nodes() {
    let room = Room::new();
    let first = ports_in_a_row(3);
    let port = first.to_string();
    let args = ["--data", "data", "--regions", "us", "--keys-port", &port];
    let disk = [&["demo", "--mount", "mnt"], &args[..], &["--keys-durability", "disk"]].concat();
    let demo = Running::start(room.meridian(&disk), room.mount());
    let mut nodes = Nodes { room, ports: (first..first + 3).collect(), started: BTreeMap::new() };
    let ask = |node: u16, words: &[&str]| {
        let mut answer = None;
        eventually("a node serves", || {
            let connection = Connection::new(first + node, Duration::from_secs(60));
            answer = connection.and_then(|mut connection| connection.ask(words)).ok();
            !matches!(&answer, None | Some(Answered::Error(_)))
        });
        answer.unwrap()
    };
    for number in 0..20 {
        let answer = ask(number % 3, &["SET", &format!("k{number}"), &number.to_string()]);
        assert_eq!(answer, Answered::Line("OK".into()));
    }
    for count in 1..=9 {
        assert_eq!(ask(2, &["INCR", "n"]), Answered::Integer(count));
    }
    assert_eq!(ask(1, &["DEL", "k0"]), Answered::Integer(1));
    let Answered::Bulk(info) = ask(0, &["INFO", "persistence"]) else { panic!("no INFO") };
    assert!(info.ends_with(b"keys_durability:disk\r\n\r\n"), "{info:?}");
    let status = nodes.room.status();
    let shards = status["keys"].as_array().unwrap();
    assert!(
        shards.len() == 6 && shards.iter().all(|shard| shard["kept_in"] == "disk"),
        "{shards:?}"
    );
    let pids: Vec<_> = (0..3).map(|node| nodes.room.pid_of(&Nodes::name(node))).collect();
    pids.iter().for_each(|pid| kill(*pid, libc::SIGKILL));
    // What is kept on disk is so at the next start, too, though nothing says it.
    for (node, pid) in pids.into_iter().enumerate() {
        ended(pid);
        nodes.start(node);
    }
    for node in 0..3 {
        assert_eq!(ask(node, &["GET", "n"]), Answered::Bulk("9".into()));
        assert_eq!(ask(node, &["GET", "k19"]), Answered::Bulk("19".into()));
        assert_eq!(ask(node, &["DBSIZE"]), Answered::Integer(20));
    }
    demo.stop();
    for (_, mut server) in std::mem::take(&mut nodes.started) {
        kill(i32::try_from(server.id()).unwrap(), libc::SIGKILL);
        server.wait().unwrap();
    }
    // And so is a demo that begins with what they had.
    let args = [&["demo", "--mount", "mnt"], &args[..]].concat();
    let demo = Running::start(nodes.room.meridian(&args), nodes.room.mount());
    assert_eq!(ask(1, &["GET", "n"]), Answered::Bulk("9".into()));
    demo.stop();
    nodes.room.assert_clean();
    let other = [&args[..], &["--keys-shards", "2"]].concat();
    let refused = nodes.room.run(&other);
    assert!(refused.stderr.contains("start with --keys-shards 1, or give up"), "{refused:?}");
}

/// Reads, writes, RMWs and deletes of few keys at all nodes. `KEYS_SECONDS` makes it longer.
#[test]
fn histories_are_linearizable_while_nodes_are_killed_and_stopped() {
    let seconds = std::env::var("KEYS_SECONDS").map_or(0, |text| text.parse().unwrap());
    let room = Room::new();
    let first = ports_in_a_row(3);
    let port = first.to_string();
    let args =
        ["demo", "--mount", "mnt", "--data", "data", "--regions", "us", "--keys-port", &port];
    let demo = Running::start(room.meridian(&args), room.mount());
    let ports = (first..first + 3).collect();
    let mut nodes = Nodes { room, ports, started: BTreeMap::new() };
    let (begun, mut calls, mut unknown) = (Instant::now(), 0, 0);
    for round in 0.. {
        let fault = if round % 2 == 0 { Fault::Kill } else { Fault::Stop };
        let node = (mix(round) % 3) as usize;
        let history = nodes.round(round, node, fault);
        end(&history, &nodes.ports, round);
        let recorded = history.recorded();
        judge(&recorded);
        calls += recorded.calls.len();
        unknown += recorded.calls.iter().filter(|(_, _, call)| call.answered.is_none()).count();
        if round > 0 && begun.elapsed().as_secs() >= seconds {
            eprintln!("{} rounds, {calls} calls, {unknown} without an answer", round + 1);
            break;
        }
    }
    demo.stop();
    for (_, mut server) in std::mem::take(&mut nodes.started) {
        kill(i32::try_from(server.id()).unwrap(), libc::SIGTERM);
        server.wait().unwrap();
    }
    nodes.room.assert_clean();
}
