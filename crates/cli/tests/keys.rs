//! Keys of a demo: the command, nodes that are killed and stopped, and what clients see meanwhile.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/clients.rs"]
mod clients;
#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[allow(dead_code)]
#[path = "harness/nodes.rs"]
mod nodes;

use clients::{Client, Connection, Habit, History};
use harness::{Ended, Room, Running, eventually, kill, ports_in_a_row};
use meridian_core::mix;
use meridian_keys::resp::answer::Answered;
use nodes::{Nodes, Stop, end, ended, judge};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

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
    let all = status.matches("us-1, us-2, us-3").count();
    assert_eq!(all, 12, "all are members and vote: {status}");
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

impl Nodes {
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
                let pause = Duration::ZERO;
                let client = Client { history, ports, stop, habit, node, number, round, pause };
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

/// All lose power, as it were, right after the last answer.
#[test]
fn keys_on_disk_outlive_the_end_of_all_nodes() {
    let room = Room::new();
    let first = ports_in_a_row(3);
    let port = first.to_string();
    let args = ["--data", "data", "--regions", "us", "--keys-port", &port];
    let disk = [&["demo", "--mount", "mnt"], &args[..], &["--keys-durability", "disk"]].concat();
    let demo = Running::start(room.meridian(&disk), room.mount());
    let mut nodes = Nodes::new(room, first, 3);
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
    let mut nodes = Nodes::new(room, first, 3);
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
    nodes.end_started();
    nodes.room.assert_clean();
}
