//! Drills: what is foretold of a region that is cut off, and whether it comes so.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Room, Running, kill};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

const SMALL: [&str; 9] =
    ["demo", "--mount", "mnt", "--data", "data", "--regions", "a,b,c", "--nodes-per-region", "1"];

/// What is told of each tree: what is foretold for those elsewhere, and in the region.
fn outlooks(told: &Value) -> Vec<[String; 3]> {
    let word = |row: &Value, of: &str| row[of].as_str().unwrap().to_string();
    let row = |row: &Value| [word(row, "tree"), word(row, "elsewhere"), word(row, "inside")];
    told["trees"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_region_that_is_cut_off_leaves_the_trees_writable_that_were_foretold() {
    let room = Room::new();
    let demo = Running::start(room.meridian(&SMALL), room.mount());
    let dry = room.run(&["drill", "cut", "b", "--dry-run", "--json"]);
    assert!(dry.status.success(), "{dry:?}");
    let told: Value = serde_json::from_str(&dry.stdout).unwrap();
    let (writable, waits) = ("writable".to_string(), "waits".to_string());
    let row = |tree: &str, elsewhere: &String, inside: &String| {
        [tree.to_string(), elsewhere.clone(), inside.clone()]
    };
    let foretold = [
        row("/", &writable, &waits),
        row("/a", &writable, &waits),
        row("/b", &waits, &writable),
        row("/c", &writable, &waits),
    ];
    assert_eq!(outlooks(&told), foretold);
    let root = &told["trees"][0];
    assert_eq!(
        (&root["reachable"], &root["members"], &root["quorum"]),
        (&json!(2), &json!(3), &json!(2)),
        "{told}"
    );
    let mounts = told["mounts"].as_array().unwrap();
    let here = mounts.iter().find(|of| of["dir"] == room.mount().to_str().unwrap()).unwrap();
    assert_eq!((&here["region"], &here["inside"]), (&json!("a"), &json!(false)));

    let tried = room.run(&["drill", "cut", "b", "--for", "20s", "--json"]);
    assert!(tried.status.success(), "{tried:?}");
    let told: Value = serde_json::from_str(&tried.stdout).unwrap();
    assert_eq!(outlooks(&told), foretold);
    for row in told["trees"].as_array().unwrap() {
        assert_eq!(row["seen"]["as_foretold"], true, "{told}");
        let (tree, done) = (&row["tree"], row["seen"]["done"].as_u64().unwrap());
        assert!(if tree == "/b" { done <= 1 } else { done > 5 }, "{told}");
    }
    for dir in [".", "a", "b", "c"] {
        let names = fs::read_dir(demo.mount().join(dir)).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        let left = |name: &&std::ffi::OsString| name.to_string_lossy().contains("drill");
        assert_eq!(names.iter().find(left), None, "nothing is left in {dir}: {names:?}");
    }
    for (args, code, why) in [
        (["drill", "cut", "x", "--dry-run"].as_slice(), 1, "no region x: there are a, b, c"),
        (&["drill", "cut", "b", "--for", "5s"], 2, "no duration from 20s to 1h"),
        (&["drill", "cut", "b"], 2, "--dry-run"),
    ] {
        let refused = room.run(args);
        assert_eq!(refused.status.code(), Some(code), "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
    demo.stop();
    room.assert_clean();
}

/// The planted fault: with another region gone, too, the global tree has no quorum left.
#[test]
fn what_comes_otherwise_than_foretold_is_told() {
    let room = Room::new();
    let demo = Running::start(room.meridian(&SMALL), room.mount());
    let other = room.pid_of("c-1");
    kill(other, libc::SIGSTOP);
    let mut drill = room.meridian(&["drill", "cut", "b", "--for", "20s"]);
    let mut drill = drill.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(drill.stderr.take().unwrap()).lines();
    let healed = lines.any(|line| line.unwrap().contains("waiting until all trees"));
    kill(other, libc::SIGCONT);
    assert!(healed, "it ended before: {:?}", drill.wait());
    let mut told = String::new();
    drill.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(drill.wait().unwrap().code(), Some(1), "{told}");
    let line = |tree: &str| {
        let of = |line: &&str| line.split_whitespace().next() == Some(tree);
        told.lines().find(of).unwrap_or_else(|| panic!("{tree}: {told}")).to_string()
    };
    assert!(line("/").contains("NOT as foretold"), "{told}");
    assert!(line("/c").contains("NOT as foretold"), "{told}");
    assert!(!line("/a").contains("NOT"), "{told}");
    demo.stop();
    room.assert_clean();
}
