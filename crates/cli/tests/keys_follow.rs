//! Keys of a region whose nodes come and go: who has them, and what clients see meanwhile.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/clients.rs"]
mod clients;
#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[allow(dead_code)]
#[path = "harness/nodes.rs"]
mod nodes;

use clients::{Client, Connection, Habit, History};
use harness::{Room, Running, eventually, kill, ports_in_a_row};
use meridian_keys::resp::answer::Answered;
use nodes::{Nodes, Stop, end, ended, judge};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// So many nodes there are, one after the other; three at first.
const NODES: u16 = 7;
/// How long each client thinks: nodes take seconds to come and go.
const PAUSE: Duration = Duration::from_millis(3);
/// So many keys are written at first, and must be there in the end.
const KEPT: usize = 200;

impl Nodes {
    /// Clients ask for keys at the nodes `at` while `change` happens. What they saw is judged, with
    /// what the nodes `left` say in the end.
    fn during(
        &mut self,
        round: u64,
        at: &[usize],
        left: &[usize],
        change: impl FnOnce(&mut Nodes, &History),
    ) {
        let (history, stop, ports) = (History::new(), AtomicBool::new(false), self.ports.clone());
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            let habits = [Habit::Reads, Habit::Stays, Habit::Roves];
            let all = habits.iter().flat_map(|habit| at.iter().map(move |node| (*habit, *node)));
            for (number, (habit, node)) in (round * 16 + 1..).zip(all) {
                let (history, ports, stop) = (&history, &ports[..], &stop);
                let pause = PAUSE;
                let client = Client { history, ports, stop, habit, node, number, round, pause };
                scope.spawn(move || client.run());
            }
            for node in at {
                answers_since(&history, *node, 0);
            }
            change(self, &history);
            for node in left.iter().filter(|node| at.contains(node)) {
                answers_since(&history, *node, history.now());
            }
        });
        let ports: Vec<_> = left.iter().map(|node| self.ports[*node]).collect();
        end(&history, &ports, round);
        let recorded = history.recorded();
        let seconds = history.now() / 1_000_000_000;
        eprintln!("round {round}: {} calls in {seconds} s", recorded.calls.len());
        judge(&recorded);
    }

    fn cluster(&self, args: &[&str]) -> Child {
        let mut command = self.room.meridian(&[&["cluster"], args].concat());
        command.stdout(Stdio::null()).spawn().unwrap()
    }

    /// Writes what must be there in the end, at the first three nodes.
    fn write_kept(&self) {
        for number in 0..KEPT {
            let (key, value) = (format!("kept-{number}"), number.to_string());
            assert_eq!(self.ask(number % 3, &["SET", &key, &value]), Answered::Line("OK".into()));
        }
    }

    fn change_cluster(&self, args: &[&str]) {
        assert!(self.cluster(args).wait().unwrap().success(), "{args:?}");
    }

    fn pid(&self, node: usize) -> i32 {
        self.room.pid_of(&Nodes::name(node))
    }

    /// The process that the lock of a node's folder names; it may not answer yet.
    fn pid_in_lock(&self, node: usize) -> Option<i32> {
        fs::read_to_string(self.dir(node).join("server.pid")).ok()?.trim().parse().ok()
    }

    /// Waits until `status` shows that these nodes, and no others, have the keys and vote.
    fn wait_for_members(&self, nodes: &[usize]) {
        let names: Vec<_> = nodes.iter().map(|node| Nodes::name(*node)).collect();
        let names = json!(names);
        let is_so = |shard: &Value| {
            let settled = shard["live"] == names && shard["voters"] == names;
            settled && shard["shadows"] == json!([])
        };
        eventually("the members are those that should be", || {
            let status = self.room.status();
            let shards = status["keys"].as_array().unwrap();
            shards.len() == nodes.len() && shards.iter().all(is_so)
        });
    }

    /// Asks a node until it serves.
    fn ask(&self, node: usize, words: &[&str]) -> Answered {
        let mut answer = None;
        eventually("a node serves", || {
            let connection = Connection::new(self.ports[node], Duration::from_secs(60));
            answer = connection.and_then(|mut connection| connection.ask(words)).ok();
            !matches!(&answer, None | Some(Answered::Error(_)))
        });
        answer.unwrap()
    }

    fn assert_kept(&self, node: usize) {
        let mut connection = Connection::new(self.ports[node], Duration::from_secs(60)).unwrap();
        for number in 0..KEPT {
            let found = connection.ask(&["GET", &format!("kept-{number}")]).unwrap();
            assert_eq!(found, Answered::Bulk(number.to_string().into()), "at {node}");
        }
    }
}

/// Waits until an update is answered there that was asked since then.
fn answers_since(history: &History, node: usize, since: u64) {
    history.wait(&format!("node {node} answers"), |told| {
        told.node == node && told.is_update() && told.call.called >= since
    });
}

/// A demo of one region, whose first node's keys are called at port `first`.
fn start(room: &Room, first: u16, durability: &str) -> Running {
    let port = first.to_string();
    let args = ["demo", "--mount", "mnt", "--data", "data", "--regions", "us"];
    let keys = ["--keys-port", &port, "--keys-causal", "", "--keys-durability", durability];
    Running::start(room.meridian(&[&args[..], &keys].concat()), room.mount())
}

/// The region's nodes are 0, 1, 2; then 3 and 4 come, and 4 is killed while it does; 0 goes, and
/// the others are killed and start again.
fn nodes_come_and_go(durability: &str) {
    let (room, first) = (Room::new(), ports_in_a_row(NODES));
    let demo = start(&room, first, durability);
    let mut nodes = Nodes::new(room, first, NODES);
    nodes.write_kept();
    nodes.during(0, &[0, 1, 2], &[0, 1, 2, 3], |nodes, _| {
        nodes.change_cluster(&["add-node", "--region", "us"]);
        nodes.wait_for_members(&[0, 1, 2, 3]);
    });
    nodes.assert_kept(3);
    nodes.during(1, &[1, 2, 3], &[1, 2, 3, 4], |nodes, history| {
        let mut adds = nodes.cluster(&["add-node", "--region", "us"]);
        eventually("its server has begun", || nodes.pid_in_lock(4).is_some());
        let pid = nodes.pid_in_lock(4).unwrap();
        nodes.kill(4, pid);
        nodes.start_with(4, &["--keys-shards", "1", "--keys-durability", durability]);
        assert!(adds.wait().unwrap().success());
        nodes.wait_for_members(&[0, 1, 2, 3, 4]);
        answers_since(history, 1, history.now());
    });
    nodes.assert_kept(4);
    remove_and_kill(&mut nodes);
    for node in 1..5 {
        nodes.assert_kept(node);
    }
    if durability == "disk" {
        end_all_at_once(&mut nodes);
    }
    demo.stop();
    nodes.end_started();
    nodes.room.assert_clean();
}

/// A first member goes while writes go on, another is killed, and so is one that was added.
fn remove_and_kill(nodes: &mut Nodes) {
    nodes.during(2, &[1, 2, 3, 4], &[1, 2, 3, 4], |nodes, history| {
        let pid = nodes.pid(0);
        nodes.change_cluster(&["remove-node", "us-1"]);
        eventually("the server of a node that was removed ends", || {
            !Path::new(&format!("/proc/{pid}")).exists()
        });
        assert!(Connection::new(nodes.ports[0], Duration::from_secs(1)).is_err());
        nodes.wait_for_members(&[1, 2, 3, 4]);
        for node in [1, 3] {
            let pid = nodes.pid(node);
            nodes.kill(node, pid);
            answers_since(history, 2, history.now());
            answers_since(history, 4, history.now());
            nodes.start(node);
            answers_since(history, node, history.now());
        }
        nodes.wait_for_members(&[1, 2, 3, 4]);
    });
}

/// All lose power, as it were: who was added has as much on its disk as the first.
fn end_all_at_once(nodes: &mut Nodes) {
    let pids: Vec<_> = (1..5).map(|node| (node, nodes.pid(node))).collect();
    pids.iter().for_each(|(_, pid)| kill(*pid, libc::SIGKILL));
    for (node, pid) in &pids {
        match nodes.started.remove(node) {
            Some(mut server) => drop(server.wait().unwrap()),
            None => ended(*pid),
        }
    }
    pids.iter().for_each(|(node, _)| nodes.start(*node));
    for (node, _) in pids {
        nodes.ask(node, &["GET", "kept-0"]);
        nodes.assert_kept(node);
    }
}

#[test]
fn keys_in_memory_follow_the_nodes_of_their_region() {
    nodes_come_and_go("memory");
}

#[test]
fn keys_on_disk_follow_the_nodes_of_their_region() {
    nodes_come_and_go("disk");
}

/// A node that has given up its keys, and is kept then, has them again; or it is too late, which is
/// said, and it goes.
#[test]
fn a_node_that_is_kept_has_its_keys_again() {
    let (room, first) = (Room::new(), ports_in_a_row(NODES));
    let demo = start(&room, first, "memory");
    let nodes = Nodes::new(room, first, NODES);
    nodes.write_kept();
    nodes.change_cluster(&["add-node", "--region", "us"]);
    nodes.wait_for_members(&[0, 1, 2, 3]);
    let mut remove = nodes.room.meridian(&["cluster", "remove-node", "us-4"]);
    let mut remove = remove.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let staying = json!(["us-1", "us-2", "us-3"]);
    eventually("it has given up its keys", || {
        let status = nodes.room.status();
        let mut shards = status["keys"].as_array().unwrap().iter();
        shards.any(|shard| shard["live"] == staying && shard["voters"] == staying)
    });
    let kept = nodes.room.run(&["cluster", "keep-node", "us-4"]);
    if kept.status.success() {
        assert!(!remove.wait().unwrap().success(), "its removal was taken back");
        nodes.wait_for_members(&[0, 1, 2, 3]);
        nodes.assert_kept(3);
        nodes.change_cluster(&["remove-node", "us-4"]);
    } else {
        let why = &kept.stderr;
        assert!(why.contains("goes for good") || why.contains("has left"), "{why}");
        assert!(remove.wait().unwrap().success());
    }
    nodes.wait_for_members(&[0, 1, 2]);
    (0..3).for_each(|node| nodes.assert_kept(node));
    demo.stop();
    nodes.room.assert_clean();
}

/// A node dies for good while it comes, and is removed. Another comes, starts again without keys,
/// and is in the way of a removal until it has them. In the end none of the first nodes is left.
#[test]
fn all_first_nodes_are_replaced_and_keys_begin_anew_without_them() {
    let (room, first) = (Room::new(), ports_in_a_row(NODES));
    let demo = start(&room, first, "memory");
    let mut nodes = Nodes::new(room, first, NODES);
    nodes.write_kept();
    dies_while_it_comes(&mut nodes);
    nodes.change_cluster(&["add-node", "--region", "us"]);
    nodes.wait_for_members(&[0, 1, 2, 4]);
    is_in_the_way_without_keys(&mut nodes);
    nodes.wait_for_members(&[1, 2, 4]);
    for gone in ["us-2", "us-3"] {
        nodes.change_cluster(&["add-node", "--region", "us"]);
        nodes.change_cluster(&["remove-node", gone]);
    }
    nodes.wait_for_members(&[4, 5, 6]);
    [4, 5, 6].iter().for_each(|node| nodes.assert_kept(*node));
    demo.stop();
    nodes.end_started();
    // They were in memory. Who begins them anew is none of those with whom they began at first.
    let demo = start(&nodes.room, first, "memory");
    assert_eq!(nodes.ask(4, &["SET", "kept-0", "anew"]), Answered::Line("OK".into()));
    assert_eq!(nodes.ask(5, &["GET", "kept-0"]), Answered::Bulk("anew".into()));
    nodes.wait_for_members(&[4, 5, 6]);
    demo.stop();
    nodes.room.assert_clean();
}

fn dies_while_it_comes(nodes: &mut Nodes) {
    let mut adds = nodes.cluster(&["add-node", "--region", "us"]);
    eventually("its server has begun", || nodes.pid_in_lock(3).is_some());
    let pid = nodes.pid_in_lock(3).unwrap();
    nodes.kill(3, pid);
    // While it comes into the groups, no other change of them begins.
    eventually("it is removed", || {
        nodes.cluster(&["remove-node", "us-4"]).wait().unwrap().success()
    });
    adds.kill().and_then(|()| adds.wait()).unwrap();
    nodes.wait_for_members(&[0, 1, 2]);
    assert_eq!(nodes.ask(0, &["GET", "kept-0"]), Answered::Bulk("0".into()));
}

fn is_in_the_way_without_keys(nodes: &mut Nodes) {
    let pid = nodes.pid(4);
    nodes.kill(4, pid);
    let dir = nodes.dir(4);
    let server = ["server", "--dir", dir.to_str().unwrap()];
    let mut server = nodes.room.meridian(&server).stderr(Stdio::inherit()).spawn().unwrap();
    // It is to keep the configuration in the place of the one that goes.
    eventually("it is up", || {
        let status = nodes.room.status();
        let mut all = status["nodes"].as_array().unwrap().iter();
        all.any(|node| node["node"] == "us-5" && node["reachable"] == true)
    });
    let mut remove = nodes.room.meridian(&["cluster", "remove-node", "us-1"]);
    let mut remove = remove.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(remove.stderr.take().unwrap()).lines();
    let told = lines.find(|line| line.as_ref().unwrap().contains("has keys"));
    assert_eq!(told.unwrap().unwrap(), "us-1 has keys, which are to be at us-5, too");
    server.kill().and_then(|()| server.wait()).map(drop).unwrap();
    nodes.start(4);
    lines.for_each(drop);
    assert!(remove.wait().unwrap().success());
    nodes.assert_kept(4);
}
