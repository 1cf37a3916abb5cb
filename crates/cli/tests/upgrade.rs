//! A cluster that was made by a version before goes by that one's feature level, until the programs
//! of all its nodes speak a higher one. Real servers, of one region.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Other tests use the rest of it.
mod harness;

use harness::{Room, Running, eventually, ports_in_a_row};
use meridian_cluster::Topology;
use meridian_cluster::configuration::Request;
use meridian_core::level::Level;
use meridian_node::Keepers;
use meridian_transport::Security;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const NODES: [&str; 3] = ["us-1", "us-2", "us-3"];

/// Nodes of a cluster as a version before has left it: it goes by the first level, and no node has
/// reported another.
struct Old {
    room: Room,
}

impl Old {
    fn of(nodes: &[&str]) -> Old {
        let room = Room::new();
        let ports = ports_in_a_row(nodes.len() as u16)..;
        let addresses: Vec<_> =
            nodes.iter().zip(ports).map(|(_, port)| format!("127.0.0.1:{port}")).collect();
        let region = format!("us={}", addresses.join(","));
        let args = ["init", "--insecure-plain-text", "--region", &region];
        assert!(room.run(&args).status.success());
        let path = room.path("cluster.json");
        let mut file = read(&path);
        assert!(file["configuration"]["levels"]["now"].as_u64().unwrap() > 1, "{file}");
        file["configuration"]["levels"] = json!({ "now": 1 });
        fs::write(&path, file.to_string()).unwrap();
        for node in nodes {
            let ended = room.run(&["prepare", "--cluster", "cluster.json", "--dir", &dir(node)]);
            assert!(ended.status.success(), "{ended:?}");
        }
        Old { room }
    }

    fn server(&self, node: &str) -> Server {
        let mut command = self.room.meridian(&["server", "--dir", &dir(node)]);
        Server(command.spawn().unwrap())
    }

    fn meridian(&self, words: &str) -> Command {
        let mut args: Vec<_> = words.split(' ').collect();
        args.extend(["--cluster", "data/cluster.json"]);
        self.room.meridian(&args)
    }

    fn levels(&self, words: &str) -> Value {
        let ended = harness::finish(self.meridian(&format!("cluster level --json{words}")));
        assert!(ended.status.success(), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// The kinds of updates that a copy of a file costs, with its owner, mode and times.
    fn updates_of_a_copy(&self, name: &str) -> Vec<String> {
        let us = self.room.mount().join("us");
        let (from, to) = (self.room.path("from"), us.join(name));
        let mut command = self.room.meridian(&["trace", "--json", "--mount"]);
        command.arg(us).args(["--", "cp", "-a"]).args([from, to]);
        let ended = harness::finish(command);
        assert!(ended.status.success(), "{ended:?}");
        let told: Value = serde_json::from_str(&ended.stderr).unwrap();
        let rows = told["rows"].as_array().unwrap().iter();
        rows.map(|row| row["what"].as_str().unwrap().to_string()).collect()
    }
}

struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            harness::kill(i32::try_from(self.0.id()).unwrap(), libc::SIGTERM);
            let _ = self.0.wait();
        }
    }
}

fn dir(node: &str) -> String {
    format!("data/{node}")
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_level_rises_when_the_last_node_was_upgraded() {
    let old = Old::of(&NODES);
    fs::write(old.room.path("from"), "bytes").unwrap();
    let first = [old.server("us-1"), old.server("us-2")];
    let mut mount = old.meridian("mount --region us --foreground");
    mount.arg(old.room.mount());
    let mount = Running::start(mount, old.room.mount());

    // Two of three speak more than the cluster goes by.
    let newest = old.levels("")["here"]["newest"].as_u64().unwrap();
    let mut told = Value::Null;
    eventually("two nodes have reported", || {
        told = old.levels("");
        let nodes = told["nodes"].as_array().unwrap();
        let all: Vec<_> = nodes.iter().map(|node| node["speaks_up_to"].as_u64().unwrap()).collect();
        all == [newest, newest, 1]
    });
    assert_eq!(told["level"], 1, "{told}");
    let before = old.updates_of_a_copy("before");
    assert!(!before.iter().any(|what| what == "write and set"), "{before:?}");

    // It is held back where it is, while the third comes, and then let go.
    assert_eq!(old.levels(" --at-most 1")["at_most"], 1);
    let third = old.server("us-3");
    eventually("all nodes have reported", || {
        told = old.levels("");
        let nodes = told["nodes"].as_array().unwrap();
        nodes.iter().all(|node| node["speaks_up_to"] == newest)
    });
    assert_eq!(told["level"], 1, "{told}");
    assert_eq!(old.levels(" --no-limit")["level"], newest);
    eventually("the mount goes by it", || {
        let after = old.updates_of_a_copy("after");
        fs::remove_file(old.room.mount().join("us/after")).unwrap();
        after.iter().any(|what| what == "write and set")
    });
    let down = harness::finish(old.meridian("cluster level --at-most 1"));
    assert!(!down.status.success() && down.stderr.contains("does not fall to 1"), "{down:?}");
    mount.stop();
    drop((first, third));
}

/// As one does that was started with an older program when the others had reported a newer one.
#[test]
fn a_server_ends_that_hears_of_a_level_which_it_does_not_speak() {
    let old = Old::of(&NODES[..1]);
    let mut server = old.server(NODES[0]);
    let newest = old.levels("")["here"]["newest"].clone();
    eventually("the cluster goes by what the server speaks", || old.levels("")["level"] == newest);
    let text = fs::read_to_string(old.room.path("data/cluster.json")).unwrap();
    let (_, file) = Topology::parse(&text).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reported = runtime.block_on(async {
        let patience = Duration::from_secs(60);
        let mut keepers = Keepers::new(&file, Security::InsecurePlainText, patience);
        let (name, newest) = (NODES[0].into(), Level(99));
        keepers.change(&Request::Speaks { name, newest }).await
    });
    assert!(reported.is_ok(), "{reported:?}");
    assert_eq!(server.0.wait().unwrap().code(), Some(2), "it cannot go on as it is");
    let again = old.room.run(&["server", "--dir", &dir(NODES[0])]);
    assert!(!again.status.success() && again.stderr.contains("feature level 99"), "{again:?}");
}

#[test]
fn a_program_that_is_older_than_its_cluster_says_so_and_does_nothing() {
    let old = Old::of(&NODES);
    let path = old.room.path("data/cluster.json");
    let mut file = read(&path);
    file["configuration"]["levels"]["now"] = 99.into();
    file["of a later version"] = true.into();
    fs::write(&path, file.to_string()).unwrap();
    let server = old.room.run(&["server", "--dir", &dir("us-1")]);
    assert_eq!(server.status.code(), Some(2), "{server:?}");
    for ended in [server, harness::finish(old.meridian("status"))] {
        assert!(!ended.status.success(), "{ended:?}");
        assert!(ended.stderr.contains("feature level 99") && ended.stderr.contains("older"));
    }
}
