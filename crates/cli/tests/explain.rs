//! What `meridian explain` tells of a command, and what the command then does.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Room, Running, eventually};
use meridian_mount::about::{holds, keeps};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How far the regions are from each other, there and back, in milliseconds.
const RTT_MS: f64 = 100.0;
/// So often each command is really done, and as often before it is explained: what the mount holds
/// is then as it is at each further time.
const TIMES: usize = 20;
const BEFORE: usize = 2;
/// What a busy machine adds, in milliseconds.
const BUSY_MS: f64 = 60.0;

/// A demo of two regions, `a` with the mount and `b`, in each of which, and globally, is a new
/// directory. The mount holds it: nobody is asked for what is not in it.
struct Lab {
    room: Room,
    demo: Running,
}

impl Lab {
    fn start() -> Lab {
        let room = Room::new();
        let rtt = RTT_MS.to_string();
        let args = ["demo", "--mount", "mnt", "--data", "data", "--regions", "a,b", "--rtt", &rtt];
        let demo = Running::start(room.meridian(&args), room.mount());
        let lab = Lab { room, demo };
        for dir in ["a/x", "a/y", "b/x", "x"] {
            fs::create_dir(lab.at(dir)).unwrap();
        }
        eventually("nodes have measured all ways", || {
            lab.room.run(&["explain", "mv", "mnt/a/x", "mnt/b/"]).status.success()
                && lab.room.run(&["explain", "create", "mnt/x/new"]).status.success()
        });
        lab
    }

    fn at(&self, path: &str) -> PathBuf {
        self.demo.mount().join(path)
    }

    fn explain(&self, args: &[&str]) -> Value {
        let ended = self.room.run(&[&["explain", "--json"], args].concat());
        assert!(ended.status.success(), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// Explains a command, and does the same many times: mode and groups are as they should be,
    /// and it takes about as long as was told.
    fn compare(&self, args: &[&str], mode: &str, groups: &[&str], each: impl Fn(usize)) {
        (0..BEFORE).for_each(&each);
        let told = self.explain(args);
        assert_eq!(told["mode"], mode, "{told}");
        let parts = told["parts"].as_array().unwrap();
        let by: Vec<_> = parts.iter().map(|part| part["group"].as_str().unwrap()).collect();
        assert_eq!(by, groups, "{told}");
        for part in parts {
            let (group, asked) = (part["group"].as_str().unwrap(), &part["asked"]);
            let near = if group == "global" { "a" } else { group };
            assert!(asked.as_str().unwrap().starts_with(near), "the nearest is asked: {told}");
            assert_eq!(part["primary"], self.room.group(group)["primary"], "{told}");
        }
        let mut took: Vec<_> = (BEFORE..BEFORE + TIMES)
            .map(|index| {
                let begun = Instant::now();
                each(index);
                begun.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        took.sort_by(f64::total_cmp);
        let (expected, median) = (told["expected_ms"].as_f64().unwrap(), took[TIMES / 2]);
        eprintln!(
            "{args:?}: {expected:.1} ms expected, {median:.1} in the median: {}",
            told["looks"]
        );
        // Right after a change over several groups a mount does not hold what it held.
        let looks = told["looks"].as_array().unwrap().iter().filter(|look| look["held"] == true);
        let held: f64 = looks.map(|look| look["takes_ms"].as_f64().unwrap()).sum();
        assert!(median < (expected + held) * 1.5 + BUSY_MS, "{median} {told}");
        assert!(expected < median * 1.5 + BUSY_MS, "{median} {told}");
        let last = told["steps"].as_array().unwrap().last().unwrap();
        assert_eq!(last["what"], "has answered the mount", "{told}");
    }
}

fn make(at: &Path) {
    File::create_new(at).unwrap();
}

#[test]
fn a_command_does_what_was_explained_and_takes_about_as_long() {
    let lab = Lab::start();
    let path = |dir: &str, index: usize| lab.at(&format!("{dir}/{index}"));
    let in_one = "single-partition";
    let create = |dir: &'static str| move |index| make(&path(dir, index));
    lab.compare(&["create", "mnt/a/x/new"], in_one, &["a"], create("a/x"));
    lab.compare(&["create", "mnt/b/x/new"], in_one, &["b"], create("b/x"));
    lab.compare(&["mkdir", "mnt/x/new"], in_one, &["global"], create("x"));
    let rename = |from: &'static str, to: &'static str| {
        move |index| fs::rename(path(from, index), path(to, index)).unwrap()
    };
    lab.compare(&["mv", "mnt/a/x/2", "mnt/a/y"], in_one, &["a"], rename("a/x", "a/y"));
    let (all, both) = ("coordinated", &["a", "b"]);
    lab.compare(&["mv", "mnt/a/y/2", "mnt/b/x/new"], all, both, |index| {
        fs::rename(path("a/y", index), lab.at(&format!("b/x/moved{index}"))).unwrap();
    });
    lab.compare(&["mv", "mnt/x/2", "mnt/a/x"], all, &["global", "a"], rename("x", "a/x"));
    lab.compare(&["ln", "mnt/b/x/2", "mnt/x/new"], all, &["global", "b"], |index| {
        fs::hard_link(path("b/x", index), path("x", index)).unwrap();
    });
    let mut told = lab.explain(&["rm", "mnt/x/0"]);
    assert_eq!(told["mode"], "coordinated", "the name is global, the file is of b: {told}");
    let measured = lab.explain(&["ln", "mnt/b/x/0", "mnt/x/new"])["measured"].take();
    assert_eq!(measured["count"], BEFORE + TIMES, "as the mount itself has counted: {measured}");
    assert!(measured["p50_ms"].as_f64().unwrap() > RTT_MS, "{measured}");
    assert_eq!(told["update"].take(), "unlink");
    lab.demo.stop();
    lab.room.assert_clean();
}

/// Does that with names of a directory, one after the other, until the mount has kept it back often
/// without asking anybody, and it is explained so; answers what was explained of the next name.
fn until_kept_back(lab: &Lab, command: &str, each: impl Fn(&Path)) -> Value {
    let dir = lab.at("b/x/deep");
    let (mut number, mut took, mut told) = (0, Vec::new(), Value::Null);
    eventually("it is kept back", || {
        let name = number.to_string();
        let kept = keeps(&dir, name.as_ref()) && holds(&dir, name.as_ref());
        let begun = Instant::now();
        each(&dir.join(&name));
        took.extend(kept.then(|| begun.elapsed().as_secs_f64() * 1e3));
        number += 1;
        if took.len() >= TIMES {
            told = lab.explain(&[command, &format!("mnt/b/x/deep/{number}")]);
        }
        told["durability"]["kept_back"] == true
    });
    took.sort_by(f64::total_cmp);
    let median = took[took.len() / 2];
    assert!(median < RTT_MS / 2.0, "{command} waits for nobody: {took:?}");
    let looks = told["looks"].as_array().unwrap().iter().filter(|look| look["held"] == false);
    let looked: f64 = looks.map(|look| look["takes_ms"].as_f64().unwrap()).sum();
    let waits = told["expected_ms"].as_f64().unwrap() - looked;
    assert!(waits.abs() < 0.001, "for nothing but looks: {told}");
    let last = told["steps"].as_array().unwrap().last().unwrap();
    assert!(last["after_ms"].as_f64().unwrap() > RTT_MS / 2.0, "it comes later: {told}");
    told
}

/// Below a directory that is as a local disk files are made and removed at once, and whoever asks
/// is told so, and which directory says it.
#[test]
fn what_is_kept_back_is_explained_as_such() {
    let lab = Lab::start();
    let told = lab.explain(&["create", "mnt/b/x/new"]);
    let mode = &told["durability"];
    assert_eq!((&mode["mode"], &mode["said_by"]), (&json!("close"), &json!("default")), "{told}");
    assert_eq!((&mode["own"], &mode["kept_back"]), (&json!(false), &json!(false)), "{told}");
    assert!(told["expected_ms"].as_f64().unwrap() > RTT_MS / 2.0, "its close waits: {told}");
    let set = lab.room.run(&["fs", "durability", "mnt/b/x", "fsync"]);
    assert!(set.status.success(), "{set:?}");
    let (said_by, deep) = (lab.at("b/x").canonicalize().unwrap(), lab.at("b/x/deep"));
    fs::create_dir(&deep).unwrap();
    let created = until_kept_back(&lab, "create", make);
    let mode = &created["durability"];
    assert_eq!((&mode["mode"], &mode["own"]), (&json!("fsync"), &json!(true)), "{created}");
    assert_eq!(mode["said_by"], said_by.to_str().unwrap(), "{created}");
    assert_eq!((&created["update"], &created["measured"]), (&json!("create"), &Value::Null));
    let there = fs::read_dir(&deep).unwrap().count();
    (there..300).for_each(|number| make(&deep.join(number.to_string())));
    File::open(&deep).unwrap().sync_all().unwrap();
    let removed = until_kept_back(&lab, "rm", |path| fs::remove_file(path).unwrap());
    assert_eq!(removed["update"], "unlink", "{removed}");
    let people = lab.room.run(&["explain", "mkdir", "mnt/b/x/deep/dir"]);
    let line = format!("durable by fsync (set at {}): when the call returns", said_by.display());
    assert!(people.stdout.contains(&line), "{people:?}");
    let mounted = lab.room.run(&["status"]);
    assert!(mounted.stdout.contains("close (the default of mounts)"), "{mounted:?}");
    lab.demo.stop();
    lab.room.assert_clean();
}

#[test]
fn nothing_is_changed_by_explaining_and_what_cannot_be_is_refused() {
    let lab = Lab::start();
    fs::write(lab.at("b/x/f"), "read me").unwrap();
    fs::create_dir(lab.at("empty")).unwrap();
    let told = lab.explain(&["cat", "mnt/b/x/f"]);
    assert_eq!((&told["mode"], &told["update"]), (&json!("read-only"), &Value::Null), "{told}");
    let answered = told["steps"][0]["after_ms"].as_f64().unwrap();
    assert!((RTT_MS..RTT_MS + BUSY_MS).contains(&answered), "one replica in b: {told}");
    let told = lab.explain(&["stat", "mnt/x"]);
    assert!(told["expected_ms"].as_f64().unwrap() < RTT_MS, "global is here: {told}");
    assert_eq!(told["steps"], json!([]), "the look at the name has told all: {told}");
    let ask = |name: &str| lab.explain(&["stat", &format!("mnt/b/x/{name}")])["looks"][0].take();
    let held = ask("f");
    assert_eq!(held["group"], "b", "{held}");
    let written = lab.explain(&["write", "mnt/b/x/f", "--bytes", "100K"]);
    let first = &written["steps"][0];
    assert_eq!((&first["what"], &written["update"]), (&json!("have the blocks"), &json!("write")));
    assert!(written["expected_ms"].as_f64().unwrap() > 2.0 * RTT_MS, "{written}");
    let placed = lab.explain(&["place", "mnt/empty", "b"]);
    assert_eq!(placed["parts"].as_array().unwrap().len(), 2, "{placed}");
    let changing = [
        &["mv", "mnt/b/x/f", "mnt/a/x/f"][..],
        &["rm", "mnt/b/x/f"],
        &["rmdir", "mnt/empty"],
        &["create", "mnt/x/new"],
        &["mkdir", "mnt/x/dir"],
        &["ln", "mnt/b/x/f", "mnt/x/link"],
    ];
    changing.iter().for_each(|args| drop(lab.explain(args)));
    assert_eq!(fs::read_to_string(lab.at("b/x/f")).unwrap(), "read me");
    assert_eq!(fs::read_dir(lab.at("x")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(lab.at("a/x")).unwrap().count(), 0);
    let at = lab.room.run(&["fs", "where", "mnt/empty"]);
    assert!(at.stdout.contains("global"), "{at:?}");

    let people = lab.room.run(&["explain", "mv", "mnt/b/x/f", "mnt/a/x"]);
    assert!(people.stdout.contains("coordinated, by a + b, about "), "{people:?}");
    assert!(people.stdout.contains("has the votes of all groups"), "{people:?}");
    let refused = [
        (&["rm", "mnt/x/none"][..], "rm mnt/x/none would fail"),
        (&["create", "mnt/b/x/f"], "would fail"),
        (&["rm", "data/cluster.json"], "is in no Meridian mount"),
    ];
    for (args, why) in refused {
        let ended = lab.room.run(&[&["explain"], args].concat());
        assert!(!ended.status.success() && ended.stderr.contains(why), "{args:?}: {ended:?}");
    }
    lab.demo.stop();
    lab.room.assert_clean();
}
