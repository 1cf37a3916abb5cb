//! Copies of blocks are kept: what a disk damages or loses, and what a new node should hold, nodes
//! get from each other.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Room, Running, eventually, kill};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Each has a block of its own.
fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at / 7) as u8).collect()
}

fn write_files(dir: &Path, count: usize, len: usize) {
    for number in 0..count {
        let mut file = File::create_new(dir.join(number.to_string())).unwrap();
        file.write_all(&content(number, len)).unwrap();
        file.sync_all().unwrap();
    }
}

fn assert_written(dir: &Path, count: usize, len: usize) {
    for number in 0..count {
        let path = dir.join(number.to_string());
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(found == content(number, len), "{} is changed", path.display());
    }
}

fn node(room: &Room, name: &str) -> Value {
    let status = room.status();
    let mut nodes = status["nodes"].as_array().unwrap().iter();
    nodes.find(|node| node["node"] == name).unwrap().clone()
}

fn nodes_of(room: &Room, region: &str) -> Vec<Value> {
    let status = room.status();
    let nodes = status["nodes"].as_array().unwrap().iter();
    nodes.filter(|node| node["region"] == region).cloned().collect()
}

/// Whether the nodes of a region hold what they should and nothing else: each block twice.
fn is_kept(room: &Room, region: &str, blocks: usize) -> bool {
    let nodes = nodes_of(room, region);
    let number = |node: &Value, name: &str| node["copies"][name].as_u64();
    let own: u64 = nodes.iter().filter_map(|node| number(node, "own")).sum();
    let well = |node: &Value| {
        number(node, "missing") == Some(0)
            && number(node, "damaged") == Some(0)
            && node["blocks"].as_u64() == number(node, "own")
    };
    own == 2 * blocks as u64 && nodes.iter().all(well)
}

/// Flips a bit in each page of a node's blocks, and so at least one in each of them.
fn damage(room: &Room, name: &str) {
    let dir = room.path("data").join(name).join("blocks");
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() == "FORMAT" {
            continue;
        }
        let mut file = File::options().read(true).write(true).open(path).unwrap();
        let mut page = vec![0; 4096];
        let mut at = 0;
        while file.read_exact(&mut page).is_ok() {
            if page.iter().any(|byte| *byte != 0) {
                file.seek(SeekFrom::Start(at + 1000)).unwrap();
                file.write_all(&[page[1000] ^ 4]).unwrap();
            }
            at += 4096;
            file.seek(SeekFrom::Start(at)).unwrap();
        }
    }
}

fn scrub(room: &Room) -> Vec<Value> {
    let ended = room.run(&["fs", "scrub", "--now", "--json"]);
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("copies; "), "it tells how far it is: {ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

/// First all is read because somebody asks for that, then as files are.
#[test]
fn what_a_disk_damages_is_repaired_when_it_is_read() {
    const LEN: usize = 100_000;
    let room = Room::new();
    let demo = room.demo();
    let (near, far) = (demo.mount().join("us/files"), demo.mount().join("files"));
    for dir in [&near, &far] {
        fs::create_dir(dir).unwrap();
        write_files(dir, 30, LEN);
    }
    eventually("all copies are where they should be", || is_kept(&room, "us", 60));
    let held = node(&room, "us-1")["blocks"].as_u64().unwrap();
    assert!(held > 0);
    damage(&room, "us-1");
    let reports = scrub(&room);
    let report = reports.iter().find(|report| report["node"] == "us-1").unwrap();
    assert_eq!(report["copies"]["scrub"]["last_damaged"], held, "all were damaged: {report}");
    assert_eq!(report["copies"]["repaired"], held, "{report}");
    assert!(is_kept(&room, "us", 60));

    // Of some blocks the only copies of the region that are whole now are those that were repaired.
    damage(&room, "us-2");
    let cluster = room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "us", "second"];
    let second = Running::start(room.meridian(&args), room.path("second"));
    assert_written(&second.mount().join("us/files"), 30, LEN);
    assert_written(&second.mount().join("files"), 30, LEN);
    for report in scrub(&room) {
        assert_eq!(report["copies"]["damaged"].as_u64(), Some(0), "{report}");
    }
    second.stop();
    demo.stop();
    room.assert_clean();
}

/// The server says so when it starts again.
#[test]
fn what_a_disk_has_lost_is_copied_again() {
    const LEN: usize = 1 << 20;
    let room = Room::new();
    let demo = room.demo();
    let dir = demo.mount().join("us/files");
    fs::create_dir(&dir).unwrap();
    write_files(&dir, 120, LEN);
    eventually("all copies are where they should be", || is_kept(&room, "us", 120));
    let data = room.path("data/us-2");
    kill(room.pid_of("us-2"), libc::SIGKILL);
    eventually("the server has ended", || node(&room, "us-2")["pid"].is_null());
    fs::remove_file(data.join("blocks/blocks-0000000000000001")).unwrap();
    let mut server = room.meridian(&["server", "--dir", data.to_str().unwrap()]);
    let log = File::create(room.path("log")).unwrap();
    let mut server = server.stderr(log).process_group(0).spawn().unwrap();
    let ended = std::thread::spawn(move || server.wait().unwrap());
    eventually("it copies what is missing", || {
        node(&room, "us-2")["copies"]["repaired"].as_u64().is_some_and(|count| count > 0)
    });
    eventually("all copies are there again", || is_kept(&room, "us", 120));
    let says = |what| fs::read_to_string(room.path("log")).unwrap().contains(what);
    assert!(says("blocks that should be here are not"));
    eventually("it says that all are there", || says("all blocks that should be here are"));
    // What this one has in common with us-1 it serves alone.
    let first = room.pid_of("us-1");
    kill(first, libc::SIGSTOP);
    let cluster = room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "us", "second"];
    let second = Running::start(room.meridian(&args), room.path("second"));
    assert_written(&second.mount().join("us/files"), 120, LEN);
    kill(first, libc::SIGCONT);
    second.stop();
    demo.stop();
    ended.join().unwrap();
    room.assert_clean();
}

/// What it takes, those that held it before give up.
#[test]
fn an_added_node_takes_its_share() {
    let room = Room::new();
    let demo = room.demo();
    let dir = demo.mount().join("us/files");
    fs::create_dir(&dir).unwrap();
    write_files(&dir, 60, 100_000);
    eventually("all copies are where they should be", || is_kept(&room, "us", 60));
    let added = room.run(&["cluster", "add-node", "--region", "us", "--json"]);
    assert!(added.status.success(), "{added:?}");
    eventually("each block is on two of the four nodes, and each has some", || {
        let nodes = nodes_of(&room, "us");
        let all_have = nodes.iter().all(|node| node["blocks"].as_u64() > Some(5));
        nodes.len() == 4 && all_have && is_kept(&room, "us", 60)
    });
    demo.stop();
    room.assert_clean();
}
