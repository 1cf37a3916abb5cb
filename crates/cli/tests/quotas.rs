//! Quotas of directories that are not empty, with real nodes and a real mount.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Ended, Room, eventually, kill};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Each level is a step of counting, so that takes some seconds.
const LEVELS: usize = 40;
const OVER_QUOTA: i32 = 122;

fn quota(room: &Room, dir: &Path, args: &[&str]) -> Ended {
    room.run(&[&["fs", "quota", dir.to_str().unwrap()], args].concat())
}

/// How many inodes there are from there on, and how many bytes in files.
fn walked(at: &Path) -> (u64, u64) {
    let about = fs::symlink_metadata(at).unwrap();
    if !about.is_dir() {
        return (1, about.len());
    }
    let below = fs::read_dir(at).unwrap().map(|entry| walked(&entry.unwrap().path()));
    below.fold((1, 0), |sum, (inodes, bytes)| (sum.0 + inodes, sum.1 + bytes))
}

fn fill(dir: &Path) -> std::io::Result<()> {
    let mut file = File::create(dir.join("fill"))?;
    file.write_all(&vec![1; 1 << 20]).and(file.sync_all())
}

/// Twenty directories of ten files, and one far down.
fn make_tree(dir: &Path) {
    for number in 0..20 {
        let below = dir.join(number.to_string());
        fs::create_dir_all(&below).unwrap();
        (0..10).for_each(|file| fs::write(below.join(file.to_string()), [7; 10]).unwrap());
    }
    let deep = (0..LEVELS).fold(dir.join("deep"), |at, _| at.join("d"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f"), [7; 10]).unwrap();
}

/// Renames, writes and removes below the directory, until that is over; how often.
fn work(dir: &Path, is_over: impl Fn() -> bool) -> usize {
    let mut moved = 0;
    while !is_over() {
        let (from, to) = (dir.join((19 - moved % 20).to_string()), dir.join("0"));
        fs::rename(from.join("1"), to.join(format!("moved-{moved}"))).ok();
        fs::rename(&from, dir.join(format!("{moved}-renamed"))).ok();
        fs::write(to.join(format!("new-{moved}")), [7; 20]).ok();
        fs::remove_file(from.join("2")).ok();
        moved += 1;
    }
    moved
}

#[test]
fn a_directory_with_files_gets_a_quota_though_a_primary_is_killed_and_loses_it() {
    let room = Room::new();
    let demo = room.demo();
    let (dir, other) = (demo.mount().join("us/full"), demo.mount().join("us/other"));
    make_tree(&dir);
    fs::create_dir_all(other.join("below")).unwrap();
    let primary = room.pid_of(room.group("us")["primary"].as_str().unwrap());
    let set = std::thread::scope(|scope| {
        let set = scope.spawn(|| quota(&room, &dir, &["--bytes", "1M"]));
        eventually("it is being counted", || {
            quota(&room, &dir, &[]).stdout.contains("counting") || set.is_finished()
        });
        let second = quota(&room, &other, &["--inodes", "9"]);
        assert!(second.stderr.contains("must wait"), "{second:?}");
        kill(primary, libc::SIGKILL);
        assert!(work(&dir, || set.is_finished()) > 1, "nobody worked meanwhile");
        set.join().unwrap()
    });
    assert!(set.status.success(), "{set:?}");
    assert!(set.stderr.contains("are counted"), "it says how far nodes are: {set:?}");
    let (inodes, bytes) = walked(&dir);
    let shown = quota(&room, &dir, &[]).stdout;
    let wanted = format!("bytes={bytes}/1048576 inodes={inodes}/none\n");
    assert!(shown.ends_with(&wanted), "{shown}, not {wanted}");
    let room_there = rustix::fs::statvfs(&dir).unwrap();
    assert_eq!(room_there.f_blocks * room_there.f_frsize, 1 << 20, "as `df` shows");
    assert_eq!(fill(&dir).unwrap_err().raw_os_error(), Some(OVER_QUOTA));
    fs::remove_file(dir.join("fill")).unwrap();
    let gone = quota(&room, &dir, &["--remove"]);
    assert!(gone.status.success() && gone.stdout.contains("has no quota"), "{gone:?}");
    fill(&dir).unwrap();
    assert!(quota(&room, &dir, &["--remove"]).stderr.contains("has no quota"));
    demo.stop();
    room.assert_clean();
}

#[test]
fn what_cannot_have_a_quota_is_told_so() {
    let room = Room::new();
    let demo = room.demo();
    let dir = demo.mount().join("us/full");
    fs::create_dir_all(dir.join("away")).unwrap();
    let file = dir.join("file");
    fs::write(&file, [7; 100]).unwrap();
    let refused = |dir: &Path, args: &[&str], why: &str| {
        let ended = quota(&room, dir, args);
        assert!(!ended.status.success() && ended.stderr.contains(why), "{args:?}: {ended:?}");
    };
    refused(&file, &["--inodes", "9"], "is not a directory");
    refused(&dir.join("none"), &["--inodes", "9"], "No such file");
    refused(room.path("data").as_path(), &["--inodes", "9"], "not in a Meridian mount");
    refused(&dir, &["--bytes", "many"], "no number of bytes");
    refused(&dir, &["--remove"], "has no quota of its own");
    let away = dir.join("away");
    let placed = room.run(&["fs", "place", away.to_str().unwrap(), "--region", "eu"]);
    assert!(placed.status.success(), "{placed:?}");
    fs::write(away.join("there"), [7; 100]).unwrap();

    let set = quota(&room, &dir, &["--bytes", "50", "--json"]);
    let json: Value = serde_json::from_str(&set.stdout).unwrap();
    let wanted = serde_json::json!({
        "bytes": 100, "bytes_limit": 50, "inodes": 2, "inodes_limit": null, "stage": "complete"
    });
    assert_eq!(json["quota"], wanted, "what is placed elsewhere does not count");
    let again = quota(&room, &dir, &["--bytes", "60"]);
    assert!(again.stderr.contains("more is there than that"), "{again:?}");
    assert_eq!(fill(&dir).unwrap_err().raw_os_error(), Some(OVER_QUOTA));
    fs::remove_file(dir.join("fill")).unwrap();
    let below = dir.join("below");
    fs::create_dir_all(below.join("b")).unwrap();
    assert!(quota(&room, &below, &["--inodes", "7"]).status.success());
    let place = room.run(&["fs", "place", below.to_str().unwrap(), "--region", "eu"]);
    assert!(place.stderr.contains("is not empty"), "{place:?}");
    let gone = quota(&room, &below, &["--remove"]);
    assert!(gone.stdout.contains("counts above: bytes=100/60 inodes=4/none"), "{gone:?}");
    demo.stop();
    room.assert_clean();
}
