//! When what programs do is durable, over real mounts that are killed: decision 104.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/mounted.rs"]
mod mounted;

use harness::{Room, Running};
use meridian_client::Durability;
use meridian_fs::types::INLINE_MAX;
use meridian_mount::Mount;
use mounted::mount_here;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::runtime::Runtime;

/// So much a program does before its mount is killed.
const DEEDS: usize = 900;
/// In so many directories one mount changes names and the other looks.
const ROUNDS: usize = 10;
/// In one of so many files at least something is kept back.
const FILES_MAX: usize = 500;

fn other_mount(room: &Room, name: &str, durability: &str) -> Running {
    let cluster = room.path("data/cluster.json");
    let cluster = cluster.to_str().unwrap();
    let args = ["mount", "--cluster", cluster, "--region", "us", "--durability", durability, name];
    Running::start(room.meridian(&args), room.path(name))
}

fn kill(room: &Room, other: Running, name: &str) {
    other.kill();
    unmount(room.path(name), UnmountFlags::DETACH).unwrap();
}

fn names(dir: &Path) -> BTreeSet<String> {
    let name = |of: std::io::Result<fs::DirEntry>| of.unwrap().file_name().into_string().unwrap();
    fs::read_dir(dir).unwrap().map(name).collect()
}

/// Something that a program does in a directory.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Make(usize),
    Remove(usize),
    MakeDirectory(usize),
}

/// So many files later one is removed.
const LATER: usize = 40;

/// Files are made, removed a little later but for some, and made again under their names; now and
/// then a directory is made.
fn deeds() -> Vec<Deed> {
    let of = |number: usize| {
        let removed = number.checked_sub(LATER).filter(|number| !number.is_multiple_of(3));
        let directory = number.is_multiple_of(100).then_some(Deed::MakeDirectory(number));
        [Some(Deed::Make(number)), removed.map(Deed::Remove), directory].into_iter().flatten()
    };
    (0..).flat_map(of).take(DEEDS).collect()
}

impl Deed {
    fn name(self) -> String {
        match self {
            Deed::Make(number) | Deed::Remove(number) if number.is_multiple_of(3) => {
                format!("f{number}")
            }
            // One that was just removed.
            Deed::Make(number) | Deed::Remove(number) => format!("again{}", number % (LATER + 1)),
            Deed::MakeDirectory(number) => format!("d{number}"),
        }
    }

    fn is_done_in(self, dir: &Path) {
        let path = dir.join(self.name());
        match self {
            Deed::Make(number) => fs::write(path, number.to_string()).unwrap(),
            Deed::Remove(_) => fs::remove_file(path).unwrap(),
            Deed::MakeDirectory(_) => fs::create_dir(path).unwrap(),
        }
    }

    fn is_shown_in(self, all: &mut BTreeMap<String, String>) {
        let is_wrong = match self {
            Deed::Make(number) => all.insert(self.name(), number.to_string()).is_some(),
            Deed::MakeDirectory(_) => all.insert(self.name(), String::new()).is_some(),
            Deed::Remove(_) => all.remove(&self.name()).is_none(),
        };
        assert!(!is_wrong, "{self:?}");
    }
}

/// What a directory shows is the first part of these deeds, so many of them at least.
fn assert_first_part(dir: &Path, all: &[Deed], promised: usize) {
    let text =
        |path: &Path| if path.is_dir() { Ok(String::new()) } else { fs::read_to_string(path) };
    let found = names(dir).into_iter().map(|name| {
        let text = text(&dir.join(&name)).unwrap();
        (name, text)
    });
    let found: BTreeMap<_, _> = found.collect();
    let (mut shown, mut is_part) = (BTreeMap::new(), false);
    for (number, deed) in all.iter().enumerate() {
        deed.is_shown_in(&mut shown);
        is_part |= number + 1 >= promised && shown == found;
    }
    assert!(is_part, "no first part, {promised} or more: {found:?}");
}

/// What is left of a mount that is killed is what its programs did first, at least up to what was
/// promised: here when the directory was synced, or a directory was made there.
#[test]
fn of_what_a_killed_mount_did_in_order_the_first_part_is_left() {
    let room = Room::new();
    let demo = room.demo();
    for (round, syncs) in [true, false].into_iter().enumerate() {
        let name = format!("gone{round}");
        let other = other_mount(&room, &name, "fsync");
        let dir = other.mount().join(format!("us/{name}"));
        fs::create_dir(&dir).unwrap();
        let (all, mut promised) = (deeds(), 0);
        for (number, deed) in all.iter().enumerate() {
            deed.is_done_in(&dir);
            if matches!(deed, Deed::MakeDirectory(_)) {
                promised = number + 1;
            }
        }
        if syncs {
            File::open(&dir).unwrap().sync_all().unwrap();
            promised = all.len();
        }
        kill(&room, other, &name);
        assert_first_part(&demo.mount().join(format!("us/{name}")), &all, promised);
    }
    demo.stop();
    room.assert_clean();
}

#[test]
fn what_is_written_synchronously_outlives_its_mount() {
    let room = Room::new();
    let demo = room.demo();
    let other = other_mount(&room, "gone", "sync");
    let dir = other.mount().join("us/dir");
    fs::create_dir(&dir).unwrap();
    let files = (0..20).map(|number| {
        let mut file = File::create_new(dir.join(number.to_string())).unwrap();
        file.write_all(b"whole").unwrap();
        file
    });
    let files: Vec<_> = files.collect();
    kill(&room, other, "gone");
    drop(files);
    for number in 0..20 {
        let path = demo.mount().join(format!("us/dir/{number}"));
        assert_eq!(fs::read(path).unwrap(), b"whole");
    }
    let unknown = room.meridian(&["mount", "--region", "us", "--durability", "never", "x"]);
    let output = { unknown }.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("never is neither sync nor close nor fsync"), "{said}");
    demo.stop();
    room.assert_clean();
}

/// Makes files in a directory until one is kept back, then removes some until a removal is, too.
fn keep_back(mount: &Mount, dir: &Path, round: usize) {
    let kept = |deed: &dyn Fn(usize)| {
        (0..FILES_MAX).any(|number| {
            let before = mount.files().kept_back();
            deed(number);
            mount.files().kept_back() > before
        })
    };
    let made = kept(&|number| fs::write(dir.join(number.to_string()), "x").unwrap());
    assert!(made, "round {round}: none of {FILES_MAX} files was kept back");
    if round.is_multiple_of(2) {
        // What was made lands before it is removed.
        File::open(dir).unwrap().sync_all().unwrap();
        fs::remove_file(dir.join("0")).unwrap();
        for number in 0..FILES_MAX {
            fs::write(dir.join(format!("other {number}")), "x").unwrap();
        }
        File::open(dir).unwrap().sync_all().unwrap();
        let removed = kept(&|number| fs::remove_file(dir.join(format!("other {number}"))).unwrap());
        assert!(removed, "round {round}: none of {FILES_MAX} removals was kept back");
    }
}

#[test]
fn what_is_kept_back_in_order_is_seen_by_others() {
    let room = Room::new();
    let demo = room.demo();
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let mounts = [("one", Durability::Fsync), ("two", Durability::Close)];
    let mounts = mounts.map(|(name, when)| mount_here(&room, name, "us", when));
    for round in 0..ROUNDS {
        let dirs = mounts.each_ref().map(|mount| mount.path().join(format!("us/{round}")));
        fs::create_dir(&dirs[0]).unwrap();
        keep_back(&mounts[0], &dirs[0], round);
        assert_eq!(names(&dirs[1]), names(&dirs[0]), "round {round}");
        fs::write(dirs[1].join("theirs"), "x").unwrap();
        assert_eq!(fs::read(dirs[0].join("theirs")).unwrap(), b"x", "round {round}");
    }
    for mount in mounts {
        runtime.block_on(mount.unmount()).unwrap();
    }
    demo.stop();
    room.assert_clean();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A program appends to a file that it has made, again and again, and makes and removes others
/// meanwhile. Nobody is told until somebody looks, and then that one sees all.
#[test]
fn what_is_appended_to_a_file_of_ones_own_is_seen_by_others_and_temporary_files_never_are() {
    let room = Room::new();
    let demo = room.demo();
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let mounts = [("one", Durability::Fsync), ("two", Durability::Close)];
    let mounts = mounts.map(|(name, when)| mount_here(&room, name, "us", when));
    let files = mounts[0].files();
    let (mut kept, mut unsent) = (0, 0);
    for round in 0..ROUNDS {
        let dirs = mounts.each_ref().map(|mount| mount.path().join(format!("us/{round}")));
        fs::create_dir(&dirs[0]).unwrap();
        keep_back(&mounts[0], &dirs[0], round);
        let [log, temporary, anew] = ["log", "temporary", "anew"].map(|name| dirs[0].join(name));
        let mut expected = String::from("made\n");
        fs::write(&log, &expected).unwrap();
        fs::write(&anew, "before").unwrap();
        File::open(&dirs[0]).unwrap().sync_all().unwrap();
        for line in 0..30 {
            let before = files.kept_back();
            let mut open = File::options().append(true).open(&log).unwrap();
            writeln!(open, "line {line}").unwrap();
            drop(open);
            kept += files.kept_back() - before;
            expected += &format!("line {line}\n");
            assert_eq!(fs::read_to_string(&log).unwrap(), expected, "round {round}, as it grows");
            let before = files.unsent();
            fs::write(&temporary, "x").unwrap();
            assert_eq!(fs::read(&temporary).unwrap(), b"x");
            fs::remove_file(&temporary).unwrap();
            unsent += files.unsent() - before;
            fs::remove_file(&anew).unwrap();
            fs::write(&anew, line.to_string()).unwrap();
            set_mode(&anew, 0o750);
            assert_eq!(mode_of(&anew), 0o750, "round {round}, here");
        }
        assert_eq!(fs::read_to_string(&log).unwrap(), expected, "round {round}, here");
        assert_eq!(fs::read_to_string(dirs[1].join("log")).unwrap(), expected, "round {round}");
        assert_eq!(names(&dirs[1]), names(&dirs[0]), "round {round}");
        assert_eq!(fs::read(dirs[1].join("anew")).unwrap(), b"29", "round {round}");
        assert_eq!(mode_of(&dirs[1].join("anew")), 0o750, "round {round}");
        // What another has looked at is not its maker's own any more, and is seen all the same.
        fs::write(&log, "anew").unwrap();
        assert_eq!(fs::read(dirs[1].join("log")).unwrap(), b"anew", "round {round}");
        fs::write(dirs[1].join("log"), "theirs").unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"theirs", "round {round}");
    }
    assert!(kept > 0 && unsent > 0, "{kept} writes kept back, {unsent} files never sent");
    for mount in mounts {
        runtime.block_on(mount.unmount()).unwrap();
    }
    demo.stop();
    room.assert_clean();
}

/// Does that in a directory where a mount keeps back what is done, which so many changes of it are
/// at least.
fn keeps_back(least: u64, done_in: impl FnOnce(&Path, &Running)) {
    let room = Room::new();
    let demo = room.demo();
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let mount = mount_here(&room, "one", "us", Durability::Fsync);
    let dir = mount.path().join("us/dir");
    fs::create_dir(&dir).unwrap();
    keep_back(&mount, &dir, 1);
    let before = mount.files().kept_back();
    done_in(&dir, &demo);
    let kept = mount.files().kept_back() - before;
    assert!(kept >= least, "only {kept} changes were kept back");
    runtime.block_on(mount.unmount()).unwrap();
    demo.stop();
    room.assert_clean();
}

/// A program makes three files, and cuts the second while it has it open: the cut has that file
/// sent, and waits for it; the third, which is to come in the same message, must not wait for the
/// cut.
#[test]
fn who_waits_for_what_was_made_later_does_not_hold_that_up() {
    keeps_back(30, |dir, _| {
        for round in 0..20 {
            let [first, changed, last] =
                ["first", "changed", "last"].map(|name| dir.join(format!("{name} {round}")));
            fs::write(first, "x").unwrap();
            let mut file = File::create_new(&changed).unwrap();
            file.write_all(b"four").unwrap();
            fs::write(last, "x").unwrap();
            file.set_len(2).unwrap();
            drop(file);
            assert_eq!(fs::read(&changed).unwrap(), b"fo", "round {round}");
        }
    });
}

/// A file gets its name by a link, as git and mail programs give it, in a directory of which its
/// mount holds nothing. It is shown there without the name that went, and opened.
#[test]
fn a_file_that_lost_one_of_its_names_is_shown_and_opened_by_another() {
    keeps_back(20, |dir, demo| {
        for round in 0..20 {
            let other = format!("us/other {round}");
            fs::create_dir(demo.mount().join(&other)).unwrap();
            let first = dir.join(format!("first {round}"));
            let name = dir.with_file_name(format!("other {round}")).join("name");
            let text = format!("text {round}");
            fs::write(&first, &text).unwrap();
            fs::hard_link(&first, &name).unwrap();
            // What is not known of a directory is not kept back in it.
            assert!(fs::metadata(dir).unwrap().is_dir() && !names(dir).is_empty());
            fs::remove_file(&first).unwrap();
            // What the standard library asks for has the time in which the file was made, too, for
            // which the kernel asks once more.
            assert_eq!(rustix::fs::stat(&name).unwrap().st_nlink, 1, "round {round}");
            assert_eq!(fs::read_to_string(&name).unwrap(), text, "round {round}");
        }
    });
}

/// More than nodes take in one message is called for at once: so many new files wait at most, each
/// as long as fits beside its attributes.
#[test]
fn what_lands_together_goes_in_as_many_messages_as_it_takes() {
    keeps_back(400, |dir, demo| {
        let whole = vec![7; INLINE_MAX];
        let all: Vec<_> = (0..500).map(|number| format!("long {number}")).collect();
        for name in &all {
            fs::write(dir.join(name), &whole).unwrap();
        }
        File::open(dir).unwrap().sync_all().unwrap();
        for name in &all {
            let path = demo.mount().join("us/dir").join(name);
            assert_eq!(fs::read(path).unwrap(), whole, "{name}");
        }
    });
}

/// One mount removes a file and stands still until its lease has run out; another writes to the
/// file, which it finds there, or makes it anew. Whether the file was there still.
fn writes_to_what_was_removed(demo: &Running, other: &Running, round: usize) -> bool {
    let dirs = [demo, other].map(|mount| mount.mount().join(format!("us/{round}")));
    fs::create_dir(&dirs[1]).unwrap();
    for number in 0..30 {
        fs::write(dirs[1].join(number.to_string()), "old").unwrap();
    }
    File::open(&dirs[1]).unwrap().sync_all().unwrap();
    for number in 0..20 {
        fs::remove_file(dirs[1].join(number.to_string())).unwrap();
    }
    let pid = Pid::from_raw(other.pid()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let path = dirs[0].join("19");
    let was_there = fs::exists(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    // Nothing is kept back any more when that returns, whatever has become of it.
    File::open(&dirs[1]).unwrap().sync_all().unwrap();
    for dir in dirs {
        assert_eq!(fs::read(dir.join("19")).unwrap(), b"theirs", "round {round}");
    }
    was_there
}

#[test]
fn a_removal_that_comes_too_late_takes_nothing_of_others() {
    let room = Room::new();
    let demo = room.demo();
    let other = other_mount(&room, "still", "fsync");
    let late = (0..6).any(|round| writes_to_what_was_removed(&demo, &other, round));
    assert!(late, "no removal was kept back in any round");
    other.stop();
    demo.stop();
    room.assert_clean();
}

/// What `meridian fs durability` says of a path, perhaps after it has set a mode.
fn mode(room: &Room, path: &Path, set: Option<&str>) -> (String, bool) {
    let path = path.to_str().unwrap();
    let args = [&["fs", "durability", path][..], set.as_slice(), &["--json"]].concat();
    let ended = room.run(&args);
    assert!(ended.status.success(), "{ended:?}");
    let shown: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    (shown["mode"].as_str().unwrap().into(), shown["own"].as_bool().unwrap())
}

fn own(mode: &str) -> (String, bool) {
    (mode.into(), true)
}

/// Files that are written and stay open: some are made, one was there before.
fn written_in(dir: &Path, before: &Path) -> Vec<File> {
    let files = (0..20).map(|number| File::create_new(dir.join(number.to_string())).unwrap());
    let older = File::options().write(true).open(before).unwrap();
    let mut files: Vec<_> = files.chain([older]).collect();
    files.iter_mut().for_each(|file| file.write_all(b"whole").unwrap());
    files
}

/// On one mount some directories are synchronous and others are as a local disk.
#[test]
fn a_killed_mount_leaves_what_each_directory_has_promised() {
    let room = Room::new();
    let demo = room.demo();
    let other = other_mount(&room, "gone", "close");
    let [spool, build] = ["spool", "build"].map(|name| other.mount().join("us").join(name));
    fs::create_dir(&spool).unwrap();
    fs::create_dir(&build).unwrap();
    assert_eq!(mode(&room, &spool, None), ("close".into(), false));
    assert_eq!(mode(&room, &spool, Some("sync")), own("sync"));
    assert_eq!(mode(&room, &build, Some("fsync")), own("fsync"));
    let deep = spool.join("deep");
    fs::create_dir(&deep).unwrap();
    let box_file = deep.join("box");
    fs::write(&box_file, "xxxxx").unwrap();
    assert_eq!(mode(&room, &box_file, None), own("sync"), "it was handed down");
    let (all, mut promised) = (deeds(), 0);
    let half = all.len() / 2;
    all[..half].iter().for_each(|deed| deed.is_done_in(&build));
    let files = written_in(&spool, &box_file);
    for (number, deed) in all.iter().enumerate().skip(half) {
        deed.is_done_in(&build);
        if matches!(deed, Deed::MakeDirectory(_)) {
            promised = number + 1;
        }
    }
    kill(&room, other, "gone");
    drop(files);
    let us = demo.mount().join("us");
    for number in 0..20 {
        assert_eq!(fs::read(us.join(format!("spool/{number}"))).unwrap(), b"whole");
    }
    assert_eq!(fs::read(us.join("spool/deep/box")).unwrap(), b"whole");
    // Whatever was done later in that partition came after the first half.
    assert_first_part(&us.join("build"), &all, promised.max(half));
    assert_eq!(mode(&room, &us.join("build"), None), own("fsync"), "for all mounts");
    let found = room.run(&["fs", "where", us.join("build").to_str().unwrap()]);
    let said_by = us.join("build").canonicalize().unwrap();
    let line = format!("durable   fsync (set at {})", said_by.display());
    assert!(found.stdout.contains(&line), "{found:?}");
    assert_eq!(mode(&room, &us.join("build"), Some("inherit")), ("close".into(), false));
    let path = us.join("build");
    let unknown = room.run(&["fs", "durability", path.to_str().unwrap(), "never"]);
    assert!(unknown.stderr.contains("never is neither sync nor close nor fsync nor inherit"));
    demo.stop();
    room.assert_clean();
}

/// Whatever its mount says, a directory has changes kept back or not.
#[test]
fn directories_go_before_their_mount() {
    let room = Room::new();
    let demo = room.demo();
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let mount = mount_here(&room, "one", "us", Durability::Sync);
    let [build, plain] = ["build", "plain"].map(|name| mount.path().join("us").join(name));
    fs::create_dir(&build).unwrap();
    fs::create_dir(&plain).unwrap();
    assert_eq!(mode(&room, &build, Some("fsync")), own("fsync"));
    keep_back(&mount, &build, 0);
    File::open(&build).unwrap().sync_all().unwrap();
    let before = mount.files().kept_back();
    for number in 0..50 {
        fs::write(plain.join(number.to_string()), "x").unwrap();
    }
    assert_eq!(mount.files().kept_back(), before, "there the mount says when");
    assert_eq!(names(&demo.mount().join("us/build")), names(&build));
    runtime.block_on(mount.unmount()).unwrap();
    demo.stop();
    room.assert_clean();
}

/// Gives a mode to a directory and all below; answers how much that was.
fn set_below(room: &Room, dir: &Path, mode: &str) -> [u64; 4] {
    let dir = dir.to_str().unwrap();
    let ended = room.run(&["fs", "durability", dir, mode, "--recursive", "--json"]);
    assert!(ended.status.success(), "{ended:?}");
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    ["directories", "files", "had", "refused"].map(|of| told["below"][of].as_u64().unwrap())
}

/// What is there when a mode is set gets it if that is asked for, and what has it is left alone: so
/// a run that was interrupted goes on. Links lead nowhere.
#[test]
fn a_mode_that_is_set_late_reaches_what_is_there() {
    let room = Room::new();
    let demo = room.demo();
    let [top, outside] = ["top", "outside"].map(|name| demo.mount().join("us").join(name));
    fs::create_dir_all(top.join("a/b/c")).unwrap();
    fs::create_dir(&outside).unwrap();
    let dirs = [&*top, &top.join("a"), &top.join("a/b"), &top.join("a/b/c"), &*outside];
    for dir in dirs {
        fs::write(dir.join("file"), "x").unwrap();
    }
    std::os::unix::fs::symlink(&outside, top.join("link")).unwrap();
    assert_eq!(mode(&room, dirs[2], Some("sync")), own("sync"), "another mode of its own");
    assert_eq!(mode(&room, &top, Some("fsync")), own("fsync"));
    assert_eq!(mode(&room, dirs[1], None), ("close".into(), false), "it was there before");
    // As one that was interrupted has left it.
    assert_eq!(mode(&room, dirs[1], Some("fsync")), own("fsync"));
    assert_eq!(set_below(&room, &top, "fsync"), [2, 4, 1, 0]);
    for dir in &dirs[..4] {
        assert_eq!(mode(&room, dir, None), own("fsync"), "{}", dir.display());
        assert_eq!(mode(&room, &dir.join("file"), None), own("fsync"), "{}", dir.display());
    }
    assert_eq!(mode(&room, &outside, None), ("close".into(), false));
    assert_eq!(mode(&room, &outside.join("file"), None), ("close".into(), false));
    assert_eq!(set_below(&room, &top, "fsync"), [0, 0, 7, 0], "there is nothing to do");
    assert_eq!(set_below(&room, &top, "inherit"), [3, 4, 0, 0]);
    assert_eq!(mode(&room, &dirs[3].join("file"), None), ("close".into(), false));
    let file = top.join("file");
    let refused = room.run(&["fs", "durability", file.to_str().unwrap(), "sync", "--recursive"]);
    assert!(refused.stderr.contains("is not a directory"), "{refused:?}");
    demo.stop();
    room.assert_clean();
}
