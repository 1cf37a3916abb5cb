//! A region that is cut off, as programs of other regions meet it, and which cluster commands mean.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Room, Running, eventually, finish, kill};
use serde_json::Value;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What is slow on a busy machine.
const BUSY: Duration = Duration::from_secs(3);

/// How a file can be made there, and how long that took.
fn make(at: &Path) -> (Option<i32>, Duration) {
    let begun = Instant::now();
    let made = File::create(at).map(drop);
    (made.err().and_then(|error| error.raw_os_error()), begun.elapsed())
}

/// A mount that waits for regions that are cut off as it is told, and the file for what it says.
fn mount(room: &Room, name: &str, on_cut: &str) -> Running {
    let cluster = room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "us"];
    let mut command = room.meridian(&[&args[..], &["--on-cut", on_cut, name]].concat());
    command.stderr(File::create(room.path(&format!("{name}.log"))).unwrap());
    Running::start_quietly(command, room.path(name))
}

fn lines_with(room: &Room, log: &str, words: &str) -> usize {
    let said = fs::read_to_string(room.path(log)).unwrap();
    said.lines().filter(|line| line.contains(words)).count()
}

#[test]
fn calls_that_need_a_region_that_is_cut_off_end_as_the_mount_was_told() {
    let room = Room::new();
    let small = ["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "1"];
    let demo = Running::start(room.meridian(&small), room.mount());
    let waiting = mount(&room, "eu", "wait:8s");
    let failing = mount(&room, "failing", "fail");
    assert_eq!(make(&waiting.mount().join("ap/before")).0, None);
    let cut = room.pid_of("ap-1");
    kill(cut, libc::SIGSTOP);
    let begun = Instant::now();
    let mut list = Command::new("ls");
    list.arg("-l").arg(waiting.mount());
    let listed = finish(list);
    assert!(listed.stdout.contains(" ap") && listed.status.success(), "{listed:?}");
    assert!(begun.elapsed() < Duration::from_secs(1) + BUSY, "{:?}", begun.elapsed());

    let (error, took) = std::thread::scope(|scope| {
        let path = failing.mount().join("ap/new");
        let other = scope.spawn(move || make(&path));
        let (error, took) = make(&waiting.mount().join("ap/new"));
        assert_eq!(error, Some(libc::ETIMEDOUT));
        assert!(took > Duration::from_secs(5) && took < Duration::from_secs(9) + BUSY, "{took:?}");
        other.join().unwrap()
    });
    assert_eq!(error, Some(libc::ETIMEDOUT));
    assert!(took < Duration::from_secs(5) + BUSY, "as soon as it is known: {took:?}");
    for mount in [&waiting, &failing] {
        let (error, took) = make(&mount.mount().join("ap/new"));
        assert_eq!(error, Some(libc::ETIMEDOUT));
        assert!(took < Duration::from_secs(1) + BUSY, "later ones end at once: {took:?}");
        assert_eq!(make(&mount.mount().join("us/other")).0, None);
    }
    kill(cut, libc::SIGCONT);
    eventually("the region is used again", || make(&failing.mount().join("ap/new")).0.is_none());
    eventually("the other mount sees it, too", || {
        lines_with(&room, "eu.log", "ap answers again") == 1
    });
    for log in ["eu.log", "failing.log"] {
        assert_eq!(lines_with(&room, log, "ap is cut off"), 1, "{log}");
        assert_eq!(lines_with(&room, log, "ap answers again"), 1, "{log}");
    }
    waiting.stop();
    failing.stop();
    demo.stop();
    room.assert_clean();
}

/// A mount that begins while a region is cut off has seen nothing that lives there. What such
/// directories are is kept where their names are, also if they were changed after they were placed.
#[test]
fn a_mount_that_begins_in_a_cut_shows_what_is_placed_in_the_region() {
    let room = Room::new();
    let small = ["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "1"];
    let demo = Running::start(room.meridian(&small), room.mount());
    let own = |name: &str, mode: u32| {
        let at = demo.mount().join(name);
        chown(&at, Some(7), Some(8)).unwrap();
        fs::set_permissions(&at, Permissions::from_mode(mode)).unwrap();
    };
    let place = |name: &str| {
        let placed = room.run(&["fs", "place", &format!("mnt/{name}"), "--region", "ap"]);
        assert!(placed.status.success(), "{placed:?}");
    };
    for name in ["before", "after"] {
        fs::create_dir(demo.mount().join(name)).unwrap();
    }
    own("before", 0o750);
    place("before");
    place("after");
    own("after", 0o2711);
    own("ap", 0o1770);
    let cut = room.pid_of("ap-1");
    kill(cut, libc::SIGSTOP);

    let fresh = mount(&room, "fresh", "wait:8s");
    let begun = Instant::now();
    let mut list = Command::new("ls");
    list.arg("-l").arg(fresh.mount());
    let listed = finish(list);
    eprintln!("ls -l took {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(1) + BUSY, "{:?}", begun.elapsed());
    assert!(listed.status.success(), "{listed:?}");
    for (name, mode) in [("before", 0o750), ("after", 0o2711), ("ap", 0o1770)] {
        let (begun, at) = (Instant::now(), fresh.mount().join(name));
        let shown = fs::metadata(&at).unwrap();
        assert_eq!((shown.mode() & 0o7777, shown.uid(), shown.gid()), (mode, 7, 8), "{name}");
        let mut list = [0; 256];
        let list = rustix::fs::getxattr(&at, "system.posix_acl_access", &mut list);
        assert_eq!(list, Err(rustix::io::Errno::NODATA), "{name}");
        assert!(begun.elapsed() < Duration::from_secs(1) + BUSY, "{:?}", begun.elapsed());
    }
    let (error, took) = make(&fresh.mount().join("before/new"));
    assert_eq!(error, Some(libc::ETIMEDOUT), "what is below waits, {took:?}");
    kill(cut, libc::SIGCONT);
    eventually("the region is used again", || make(&fresh.mount().join("before/new")).0.is_none());
    fresh.stop();
    demo.stop();
    room.assert_clean();
}

/// The JSON of a command that ends within its time with this exit status.
fn why(room: &Room, path: &Path, code: i32) -> Value {
    let begun = Instant::now();
    let told = room.run(&["status", "--json", "--why", path.to_str().unwrap()]);
    assert!(begun.elapsed() < Duration::from_secs(10) + BUSY, "{:?}", begun.elapsed());
    assert_eq!(told.status.code(), Some(code), "{told:?}");
    serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error}: {told:?}"))
}

/// A mount that begins in a cut holds nothing of the region: what it is asked for there hangs.
#[test]
fn why_a_path_hangs_is_told_in_time_and_names_the_group() {
    let room = Room::new();
    let small = ["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "1"];
    let demo = Running::start(room.meridian(&small), room.mount());
    assert_eq!(make(&demo.mount().join("ap/file")).0, None);
    let well = why(&room, &demo.mount().join("ap/file"), 0);
    let said = well["sentence"].as_str().unwrap();
    assert!(said.starts_with("All is well with /ap/file: it is placed in ap, whose"), "{said}");
    let steps = well["way"].as_array().unwrap().iter();
    let word = |step: &Value, of: &str| step[of].as_str().unwrap().to_string();
    let steps: Vec<_> = steps.map(|step| word(step, "path") + " " + &word(step, "group")).collect();
    assert_eq!(steps, ["/ global", "/ap ap", "/ap/file ap"]);
    assert_eq!((&well["lock_told"], &well["stuck"]), (&true.into(), &Value::Null), "{well}");
    let top = why(&room, &demo.mount().join("ap"), 0);
    assert_eq!(top["several"], Value::from(vec!["global", "ap"]), "{top}");
    for (path, part) in [
        (demo.mount().join("ap/none/x"), "/ap/none does not exist: nothing is called so in /ap"),
        (room.path("data"), "is in no Meridian mount of this machine: name a path below"),
    ] {
        let refused = room.run(&["status", "--why", path.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains(part), "{refused:?}");
    }

    let cut = room.pid_of("ap-1");
    kill(cut, libc::SIGSTOP);
    let fresh = mount(&room, "fresh", "wait:1m");
    let path = fresh.mount().join("ap/file");
    let told = why(&room, &path, 3);
    let said = told["sentence"].as_str().unwrap();
    let begin = "/ap/file cannot be changed: group ap has 0 of 1 members, and needs 1";
    assert!(said.starts_with(begin), "{said}");
    assert_eq!(told["placement"], "ap", "{told}");
    assert_eq!(told["placed_by"], "the directory /ap above it", "{told}");
    assert_eq!(told["stuck"]["path"], "/ap/file", "{told}");
    assert_eq!(told["mount"]["on_cut_ms"], 60_000, "{told}");
    eventually("what waits in the mount is told, and that it is cut off", || {
        let told = why(&room, &path, 3);
        let mount = &told["mount"];
        let all = |of: &str| mount[of].as_array().unwrap().iter();
        all("calls").any(|call| call["path"] == "/ap/file")
            && all("cut_off").any(|cut| cut["group"] == "ap")
    });
    let other = why(&room, &fresh.mount().join("us"), 1);
    let said = other["sentence"].as_str().unwrap();
    assert!(said.starts_with("/us can be changed, and something is wrong: group global"), "{said}");
    let plain = room.run(&["status", "--why", path.to_str().unwrap()]);
    assert!(plain.stdout.contains("CUT OFF from ap"), "{plain:?}");

    kill(cut, libc::SIGCONT);
    eventually("the path is well again", || {
        room.run(&["status", "--why", path.to_str().unwrap()]).status.success()
    });
    fresh.stop();
    demo.stop();
    room.assert_clean();
}

/// Mounts as `mount -t meridian` does.
fn mount_by_helper(room: &Room, name: &str, words: &str) -> PathBuf {
    let mut command = room.meridian(&[]);
    command.arg0("/sbin/mount.meridian");
    let at = room.path(name);
    command.arg(room.path("data/cluster.json")).arg(&at).args(["-o", words]);
    let mounted = finish(command);
    assert!(mounted.status.success(), "{mounted:?}");
    at
}

/// How a name in a directory can be changed, and how long that took.
fn rename(dir: &Path, from: &str, to: &str) -> (Option<i32>, Duration) {
    let begun = Instant::now();
    let renamed = fs::rename(dir.join(from), dir.join(to));
    (renamed.err().and_then(|error| error.raw_os_error()), begun.elapsed())
}

/// A name of `global` leads into the region, so both must decide. Once a first update has waited
/// the nodes of `global` know that the region is out of reach, and refuse the next ones.
#[test]
fn an_update_over_several_partitions_waits_for_one_that_is_cut_off() {
    let room = Room::new();
    let small = ["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "1"];
    let demo = Running::start(room.meridian(&small), room.mount());
    let failing = mount_by_helper(&room, "failing", "region=us,on_cut=fail");
    let waiting = mount_by_helper(&room, "waiting", "region=us,on_cut=wait:60s");
    for name in ["one", "two", "three"] {
        fs::create_dir(demo.mount().join(name)).unwrap();
        let placed = room.run(&["fs", "place", &format!("mnt/{name}"), "--region", "ap"]);
        assert!(placed.status.success(), "{placed:?}");
        // Seen once, it is shown in a cut.
        assert!(fs::metadata(failing.join(name)).is_ok());
        assert!(fs::metadata(waiting.join(name)).is_ok());
    }
    let cut = room.pid_of("ap-1");
    kill(cut, libc::SIGSTOP);
    let (error, took) = rename(&failing, "one", "uno");
    assert_eq!(error, Some(libc::ETIMEDOUT));
    assert!(took < Duration::from_secs(6) + BUSY, "as soon as it is known: {took:?}");
    let there = waiting.clone();
    let waits = std::thread::spawn(move || rename(&there, "two", "due"));
    let (error, took) = rename(&failing, "three", "tre");
    assert_eq!(error, Some(libc::ETIMEDOUT));
    assert!(took < Duration::from_secs(1) + BUSY, "it is told at once: {took:?}");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert!(!waits.is_finished(), "{:?}", waits.join());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(cut, libc::SIGCONT);
    let (error, took) = waits.join().unwrap();
    assert_eq!(error, None, "after {took:?}");
    assert!(fs::metadata(failing.join("due")).is_ok());
    for at in [failing, waiting] {
        assert!(Command::new("umount").arg(&at).status().unwrap().success());
        eventually("its process ends, and takes the directory along", || !at.exists());
    }
    demo.stop();
    room.assert_clean();
}

/// A file system that takes all requests and answers none but the first.
struct Mute(File);

impl Mute {
    /// Mounts it as one of ours.
    fn mount(at: &Path) -> Mute {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let words = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let text = |text: &str| CString::new(text).unwrap();
        let (at, words) = (text(at.to_str().unwrap()), text(&words));
        let (name, kind) = (c"mute".as_ptr(), c"fuse.meridian".as_ptr());
        // SAFETY: all are strings that end with 0 and live until the call returns.
        let done = unsafe { libc::mount(name, at.as_ptr(), kind, 0, words.as_ptr().cast()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        let mut mute = Mute(device);
        let first = mute.next();
        // The header: length, no error, the number of the request; then version 7.31, no more.
        let mut answer = [80_u32.to_le_bytes(), [0; 4]].concat();
        answer.extend(&first[8..16]);
        answer.extend([7_u32, 31].into_iter().flat_map(u32::to_le_bytes));
        answer.resize(80, 0);
        mute.0.write_all(&answer).unwrap();
        mute
    }

    fn next(&mut self) -> Vec<u8> {
        let mut request = vec![0; 1 << 16];
        let len = self.0.read(&mut request).unwrap();
        request.truncate(len);
        request
    }
}

/// Who has asked a mount that does not answer cannot end before it does.
#[test]
fn the_status_is_told_though_a_mount_does_not_answer() {
    let room = Room::new();
    let small = ["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "1"];
    let demo = Running::start(room.meridian(&small), room.mount());
    fs::create_dir(room.path("failing")).unwrap();
    let mut mute = Mute::mount(&room.path("failing"));
    let asked = std::thread::spawn(move || {
        mute.next();
        mute
    });
    let begun = Instant::now();
    let status = room.status();
    assert!(begun.elapsed() < Duration::from_secs(2) + BUSY, "{:?}", begun.elapsed());
    let of = |name: &str| {
        let mut mounts = status["mounts"].as_array().unwrap().iter();
        let dir = room.path(name);
        mounts.find(|mount| mount["dir"] == dir.to_str().unwrap()).unwrap().clone()
    };
    assert!(of("mnt")["transport"].is_string(), "{status}");
    assert_eq!(of("failing")["error"], "it does not answer");
    drop(asked.join().unwrap());
    assert!(Command::new("umount").arg(room.path("failing")).status().unwrap().success());
    demo.stop();
    room.assert_clean();
}

/// All nodes are replaced, one after the other, and whoever started from an old file goes on.
#[test]
fn the_cluster_file_of_a_mount_is_kept_and_commands_in_it_use_it() {
    let room = Room::new();
    let small = ["demo", "--mount", "mnt", "--data", "data", "--regions", "us"];
    let small = room.meridian(&[&small[..], &["--nodes-per-region", "2"]].concat());
    let demo = Running::start(small, room.mount());
    let copy = room.path("copy.json");
    fs::copy(room.path("data/cluster.json"), &copy).unwrap();
    let args = ["mount", "--cluster", copy.to_str().unwrap(), "--region", "us", "eu"];
    let second = Running::start(room.meridian(&args), room.path("eu"));
    let inside = |args: &[&str]| {
        let mut command = room.meridian(args);
        // Nothing but the directory tells which cluster is meant.
        let nowhere = room.path("nowhere");
        fs::create_dir_all(&nowhere).unwrap();
        finish(command_at(&mut command, second.mount(), &nowhere))
    };
    let shown = inside(&["cluster", "show", "--json"]);
    assert!(shown.status.success(), "{shown:?}");
    let of_path = room.run(&["fs", "where", second.mount().join("us").to_str().unwrap()]);
    assert!(of_path.status.success() && of_path.stdout.contains("us-1"), "{of_path:?}");

    for (come, go) in [("us-3", "us-1"), ("us-4", "us-2")] {
        let added = room.run(&["cluster", "add-node", "--region", "us"]);
        assert!(added.stdout.contains(come), "{added:?}");
        let removed = inside(&["cluster", "remove-node", go]);
        assert!(removed.status.success(), "{removed:?}");
    }
    let refused = inside(&["cluster", "remove-node", "us-3"]);
    assert!(refused.stderr.contains("region us has 1 of the 2 nodes"), "{refused:?}");
    let version = |path: &Path| -> Value {
        let file: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        file["configuration"]["version"].clone()
    };
    eventually("the mount brings its file up to date", || {
        version(&copy) == version(&room.path("data/cluster.json"))
    });
    second.stop();
    // Of the nodes that it named at first none is left.
    let again = Running::start(room.meridian(&args), room.path("eu"));
    assert_eq!(make(&again.mount().join("us/file")).0, None);
    again.stop();
    demo.stop();
    room.assert_clean();
}

fn command_at(command: &mut Command, at: &Path, runtime_dir: &Path) -> Command {
    let mut moved = Command::new(command.get_program());
    moved.args(command.get_args()).current_dir(at).env("XDG_RUNTIME_DIR", runtime_dir);
    moved.env("HOME", runtime_dir).env_remove("MERIDIAN_CLUSTER").env_remove("MERIDIAN_LOG");
    moved
}
