//! What mounts keep of names and attributes is never older than what another mount was told to have
//! changed: decision 57, over real mounts.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/mounted.rs"]
mod mounted;
#[path = "../../fuse/tests/offer/mod.rs"]
mod offer;

use harness::{PATIENCE, Room, Running};
use meridian_client::Durability;
use meridian_mount::{Mount, Transport};
use offer::Offer;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How often one mount changes something and the other looks.
const ROUNDS: usize = 420;
/// How many directories one mount lists while the other changes what is in them.
const LISTED: usize = 6;
/// How many files each of them has.
const FILES: usize = 40;
/// How often one mount writes a file and the other reads it.
const READ_ROUNDS: usize = 31;
/// How long holders that say nothing delay others: the lease, and what is slow on a busy machine.
const DELAY_MAX: Duration = Duration::from_secs(20);

/// A mount of this process, whose requests come so, if the kernel can do both.
fn mount_here(room: &Room, name: &str, transport: Transport) -> Mount {
    let offer = match transport {
        Transport::Rings => Offer::made(),
        Transport::Device => Offer::withheld(),
    };
    let mount = mounted::mount_here(room, name, "us", Durability::Close);
    assert!(offer.is_none() || mount.transport() == transport);
    mount
}

/// Two of them, of which each way has one, and what runs them.
fn two_mounts(room: &Room) -> (Runtime, [Mount; 2]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let entered = runtime.enter();
    let ways = [("one", Transport::Rings), ("two", Transport::Device)];
    let mounts = ways.map(|(name, transport)| mount_here(room, name, transport));
    drop(entered);
    (runtime, mounts)
}

/// What a path shows: kind and mode, owner, length and names, or nothing.
type Shown = Option<(u32, u64, u64, i64)>;

fn look(path: &Path) -> Shown {
    match fs::symlink_metadata(path) {
        Ok(of) => Some((of.mode(), of.size(), of.nlink(), of.mtime_nsec())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Looks so often that the mount asks to hold what it sees, and at last keeps it.
fn look_often(paths: &[PathBuf]) {
    for _ in 0..5 {
        for path in paths {
            look(path);
        }
    }
}

/// One change in `dir`, the round's; what it concerns.
fn change(dir: &Path, round: usize) -> Vec<PathBuf> {
    let (a, b, sub) = (dir.join("a"), dir.join("b"), dir.join("sub"));
    match round % 7 {
        0 => fs::write(&a, "").unwrap(),
        1 => fs::set_permissions(&a, fs::Permissions::from_mode(0o600 + round as u32 % 8)).unwrap(),
        2 => fs::write(&a, vec![b'x'; round + 1]).unwrap(),
        3 => fs::rename(&a, &b).unwrap(),
        4 => fs::create_dir(&sub).unwrap(),
        5 => fs::remove_file(&b).unwrap(),
        _ => fs::remove_dir(&sub).unwrap(),
    }
    vec![a, b, sub, dir.to_path_buf()]
}

#[test]
fn nothing_that_a_mount_shows_is_older_than_what_another_has_changed() {
    let room = Room::new();
    let demo = room.demo();
    let (runtime, mounts) = two_mounts(&room);
    let dirs = mounts.each_ref().map(|mount| mount.path().join("us/turns"));
    fs::create_dir(&dirs[0]).unwrap();
    for round in 0..ROUNDS {
        let (by, at) = (round / 7 % 2, 1 - round / 7 % 2);
        let names = ["a", "b", "sub"].map(|name| dirs[at].join(name));
        look_often(&names);
        let changed = change(&dirs[by], round);
        for path in changed {
            let here = dirs[at].join(path.strip_prefix(&dirs[by]).unwrap());
            let (seen, own) = (look(&here), look(&path));
            assert_eq!(seen, own, "round {round}: {}", here.display());
        }
        let exists = |name: &str| fs::exists(dirs[at].join(name)).unwrap();
        let expected = match round % 7 {
            0..=2 => (true, false, false),
            3 => (false, true, false),
            4 => (false, true, true),
            5 => (false, false, true),
            _ => (false, false, false),
        };
        assert_eq!((exists("a"), exists("b"), exists("sub")), expected, "round {round}");
    }
    for mount in mounts {
        assert!(mount.files().client().hits() > 0, "nothing was ever kept");
        runtime.block_on(mount.unmount()).unwrap();
    }
    demo.stop();
    room.assert_clean();
}

/// What a kernel keeps of names that are there it keeps of those that are not, until somebody makes
/// something of one. An older kernel keeps neither, and the mount answers.
#[test]
fn a_kernel_keeps_names_that_lead_nowhere_as_it_keeps_others() {
    let room = Room::new();
    let demo = room.demo();
    let (runtime, mounts) = two_mounts(&room);
    let [here, there] = mounts.each_ref().map(|mount| mount.path().join("us/names"));
    fs::create_dir(&here).unwrap();
    fs::write(here.join("present"), "").unwrap();
    let hits = || mounts[0].files().client().hits();
    // How often the mount itself answers, once it does.
    let answers = |path: &Path| {
        let (begun, before) = (Instant::now(), hits());
        while hits() == before {
            look(path);
            assert!(begun.elapsed() < PATIENCE, "{} is not held", path.display());
        }
        let before = hits();
        for _ in 0..ROUNDS {
            look(path);
        }
        hits() - before
    };
    let absent = here.join("absent");
    let counts = [&absent, &here.join("present")].map(|path| answers(path));
    // Within the rounds a lifetime may end.
    assert!(counts[0] <= counts[1] + 2, "of the absent and of the present: {counts:?}");
    assert_eq!(look(&absent), None);
    fs::write(there.join("absent"), "").unwrap();
    assert_ne!(look(&absent), None, "another mount has made it");
    fs::remove_file(&absent).unwrap();
    assert_eq!(look(&absent), None);
    fs::write(&absent, "").unwrap();
    assert_ne!(look(&absent), None, "this one has");
    for mount in mounts {
        runtime.block_on(mount.unmount()).unwrap();
    }
    demo.stop();
    room.assert_clean();
}

/// What `ls -l` shows: each name, and what it leads to.
fn list(dir: &Path) -> BTreeMap<OsString, Shown> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| (name.clone(), look(&dir.join(name)))).collect()
}

/// A mount that lists a directory holds what is in it, which was asked for in steps for many. What
/// another changes is seen by the next listing all the same.
#[test]
fn no_listing_is_older_than_what_another_mount_has_changed() {
    let room = Room::new();
    let demo = room.demo();
    let (runtime, mounts) = two_mounts(&room);
    for round in 0..LISTED {
        let (by, at) = (round % 2, 1 - round % 2);
        let [by, here] = [by, at].map(|of| mounts[of].path().join(format!("us/listed-{round}")));
        fs::create_dir(&by).unwrap();
        for number in 0..FILES {
            fs::write(by.join(format!("f{number:02}")), "x").unwrap();
        }
        let client = mounts[at].files().client().clone();
        let (before, begun) = (client.swept(), Instant::now());
        while client.swept() < before + FILES as u64 / 2 {
            assert_eq!(list(&here), list(&by));
            assert!(begun.elapsed() < PATIENCE, "nothing is asked for in steps for many");
        }
        list(&here);
        let file = |number: usize| by.join(format!("f{number:02}"));
        fs::set_permissions(file(30), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(list(&here), list(&by), "round {round}: another mode");
        fs::write(file(31), "longer").unwrap();
        assert_eq!(list(&here), list(&by), "round {round}: another length");
        fs::hard_link(file(32), by.join("f32-too")).unwrap();
        assert_eq!(list(&here), list(&by), "round {round}: another name");
        fs::remove_file(file(33)).unwrap();
        assert_eq!(list(&here), list(&by), "round {round}: a name less");
        fs::rename(file(34), file(35)).unwrap();
        assert_eq!(list(&here), list(&by), "round {round}: replaced");
    }
    for mount in mounts {
        runtime.block_on(mount.unmount()).unwrap();
    }
    demo.stop();
    room.assert_clean();
}

/// What each file holds in a round: always as long, so that only its bytes tell.
fn bytes(file: usize, round: usize) -> Vec<u8> {
    let len = if file == 0 { 100 } else { 300_000 };
    format!("{round:04} ").into_bytes().into_iter().cycle().take(len).collect()
}

/// A mount's kernel keeps what was read of files from one open to the next. What another mount
/// has written is read by the next open all the same.
#[test]
fn no_file_reads_older_than_what_another_mount_has_written() {
    let room = Room::new();
    let demo = room.demo();
    let (runtime, mounts) = two_mounts(&room);
    let dirs = mounts.each_ref().map(|mount| mount.path().join("us/read"));
    fs::create_dir(&dirs[0]).unwrap();
    for file in 0..2 {
        fs::write(dirs[0].join(file.to_string()), bytes(file, 0)).unwrap();
    }
    let kept = || mounts.each_ref().map(|mount| mount.files().pages_kept());
    for round in 1..READ_ROUNDS {
        // Now and then it has the time to ask to hold the file once more after it was recalled.
        let (by, at, file) = (round / 5 % 2, 1 - round / 5 % 2, round % 2);
        let [by, here] = [by, at].map(|of| dirs[of].join(file.to_string()));
        let (before, begun) = (kept()[at], Instant::now());
        while round % 5 < 2 && kept()[at] < before + 3 {
            assert!(fs::read(&here).unwrap() == bytes(file, round.saturating_sub(2)));
            assert!(begun.elapsed() < PATIENCE, "no pages are ever kept: {:?}", kept());
        }
        assert!(fs::read(&here).unwrap() == bytes(file, round.saturating_sub(2)));
        let mut open = File::options().write(true).open(&by).unwrap();
        open.write_all(&bytes(file, round)).unwrap();
        drop(open);
        assert!(fs::read(&here).unwrap() == bytes(file, round), "round {round}");
        assert!(fs::read(&by).unwrap() == bytes(file, round), "round {round}: its own");
    }
    for mount in mounts {
        runtime.block_on(mount.unmount()).unwrap();
    }
    demo.stop();
    room.assert_clean();
}

/// A mount that stands still delays others by its lease, and shows what is right when it goes on.
#[test]
fn a_mount_that_stands_still_delays_others_by_its_lease_at_most() {
    let room = Room::new();
    let demo = room.demo();
    let cluster = room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "us", "still"];
    let other = Running::start(room.meridian(&args), room.path("still"));
    let (dir, there) = (demo.mount().join("us/held"), other.mount().join("us/held"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("old"), "").unwrap();
    let begun = Instant::now();
    // For so long that it has what it asks for.
    while begun.elapsed() < Duration::from_secs(1) {
        look_often(&[there.join("old"), there.join("new")]);
    }
    let pid = Pid::from_raw(other.pid()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let begun = Instant::now();
    fs::remove_file(dir.join("old")).unwrap();
    fs::write(dir.join("new"), "").unwrap();
    let took = begun.elapsed();
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!((look(&there.join("old")), look(&there.join("new")).is_some()), (None, true));
    assert!(took < DELAY_MAX, "the update took {took:?}");
    assert!(took > Duration::from_secs(1), "nobody held anything: it took {took:?}");
    other.stop();
    demo.stop();
    room.assert_clean();
}
