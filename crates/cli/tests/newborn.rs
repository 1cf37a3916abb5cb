//! New files that mounts keep back until they are closed, over real mounts: decision 102.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/mounted.rs"]
mod mounted;

use harness::{Room, Running};
use meridian_client::Durability;
use meridian_mount::Mount;
use mounted::mount_here;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// In so many directories one mount makes files and the other looks.
const ROUNDS: usize = 12;
/// In one of so many files at least something is kept back.
const FILES_MAX: usize = 500;
/// How long a holder that says nothing delays others: its lease, on a busy machine.
const DELAY_MAX: Duration = Duration::from_secs(20);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

fn names(dir: &Path) -> Vec<OsString> {
    let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|of| of.unwrap().file_name()).collect();
    all.sort();
    all
}

/// Makes files in a directory until the last is kept back, and leaves that open.
fn keep_back(mount: &Mount, dir: &Path) -> (PathBuf, File) {
    for number in 0..FILES_MAX {
        let before = mount.files().kept_back();
        let path = dir.join(number.to_string());
        let mut file = File::create_new(&path).unwrap();
        file.write_all(b"mine").unwrap();
        if mount.files().kept_back() > before {
            return (path, file);
        }
    }
    panic!("none of {FILES_MAX} files was kept back");
}

#[test]
fn what_one_mount_keeps_back_is_there_for_the_other() {
    let room = Room::new();
    let demo = room.demo();
    let runtime = runtime();
    let _entered = runtime.enter();
    let mounts = ["one", "two"].map(|name| mount_here(&room, name, "us", Durability::Close));
    for round in 0..ROUNDS {
        let dirs = mounts.each_ref().map(|mount| mount.path().join(format!("us/{round}")));
        fs::create_dir(&dirs[0]).unwrap();
        let (path, mut file) = keep_back(&mounts[0], &dirs[0]);
        let there = dirs[1].join(path.file_name().unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 4, "on its own mount it is whole at once");
        match round % 4 {
            0 => assert!(fs::exists(&there).unwrap(), "round {round}"),
            1 => assert_eq!(names(&dirs[1]), names(&dirs[0]), "round {round}"),
            2 => {
                let made = File::create_new(&there).map(drop).map_err(|error| error.kind());
                assert_eq!(made, Err(ErrorKind::AlreadyExists), "round {round}");
            }
            _ => fs::rename(&there, dirs[1].join("renamed")).unwrap(),
        }
        file.write_all(b", and more").unwrap();
        drop(file);
        assert_eq!(names(&dirs[1]), names(&dirs[0]), "round {round}");
        let found = if round % 4 == 3 { dirs[1].join("renamed") } else { there };
        assert_eq!(fs::read(&found).unwrap(), b"mine, and more", "round {round}");
    }
    for mount in mounts {
        runtime.block_on(mount.unmount()).unwrap();
    }
    demo.stop();
    room.assert_clean();
}

#[test]
fn what_was_closed_or_whose_directory_was_synced_outlives_its_mount() {
    let room = Room::new();
    let demo = room.demo();
    let other = other_mount(&room, "gone");
    let dir = other.mount().join("us/files");
    fs::create_dir(&dir).unwrap();
    for number in 0..40 {
        fs::write(dir.join(format!("closed {number}")), "whole").unwrap();
    }
    let open = File::create_new(dir.join("open")).unwrap();
    File::open(&dir).unwrap().sync_all().unwrap();
    other.kill();
    drop(open);
    unmount(room.path("gone"), UnmountFlags::DETACH).unwrap();
    let found = names(&demo.mount().join("us/files"));
    assert_eq!(found.len(), 41, "{found:?}");
    for number in 0..40 {
        let path = demo.mount().join(format!("us/files/closed {number}"));
        assert_eq!(fs::read(path).unwrap(), b"whole");
    }
    demo.stop();
    room.assert_clean();
}

fn other_mount(room: &Room, name: &str) -> Running {
    let cluster = room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "us", name];
    Running::start(room.meridian(&args), room.path(name))
}

/// One mount makes a file and stands still; whether another can make the same then, after a while.
fn is_overtaken(demo: &Running, other: &Running, round: usize) -> bool {
    let (here, there) = (demo.mount(), other.mount());
    let dirs = [here, there].map(|mount| mount.join(format!("us/{round}")));
    fs::create_dir(&dirs[1]).unwrap();
    for number in 0..20 {
        fs::write(dirs[1].join(number.to_string()), "").unwrap();
    }
    let mut file = File::create_new(dirs[1].join("lock")).unwrap();
    let pid = Pid::from_raw(other.pid()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let begun = Instant::now();
    let made = File::create_new(dirs[0].join("lock"));
    assert!(begun.elapsed() < DELAY_MAX, "it took {:?}", begun.elapsed());
    let made = made.map(|mut own| own.write_all(b"others'").unwrap());
    kill_process(pid, Signal::CONT).unwrap();
    let wrote = file.write_all(b"mine").and_then(|()| file.sync_all());
    match made {
        Ok(()) => {
            let error = wrote.expect_err("another has made the file meanwhile");
            assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
            assert_eq!(fs::read(dirs[0].join("lock")).unwrap(), b"others'");
            assert_eq!(fs::read(dirs[1].join("lock")).unwrap(), b"others'");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            wrote.unwrap();
            false // It had landed before.
        }
    }
}

#[test]
fn a_mount_that_stands_still_too_long_loses_what_another_has_made_since() {
    let room = Room::new();
    let demo = room.demo();
    let other = other_mount(&room, "still");
    let overtaken = (0..8).any(|round| is_overtaken(&demo, &other, round));
    assert!(overtaken, "nothing was kept back in any round");
    other.stop();
    demo.stop();
    room.assert_clean();
}
