//! The built binary, a real mount, real programs.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

mod harness;
#[path = "../../fuse/tests/offer/mod.rs"]
mod offer;

use harness::{Room, Running, eventually, finish, kill};
use meridian_mount::about::About;
use offer::Offer;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Programs that people use, in the directory `$D` of the mount.
const PROGRAMS: &str = include_str!("programs.sh");

fn assert_programs_work(place: &str) {
    let room = Room::new();
    let ended = room.exec(&format!("D={place}\n{PROGRAMS}"));
    assert!(ended.status.success(), "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.ends_with("all programs work\n"), "{}", ended.stdout);
}

/// Over rings of `io_uring` where the kernel has them; the others come through the device file.
#[test]
fn real_programs_work_in_a_region() {
    let room = Room::new();
    let offer = Offer::made();
    let demo = room.demo();
    let transport = About::of(demo.mount()).unwrap().transport;
    assert_eq!(transport, if offer.is_some() { "io_uring" } else { "/dev/fuse" });
    drop(offer);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("D=us\n{PROGRAMS}")).current_dir(demo.mount());
    shell.env("GIT_CONFIG_GLOBAL", "/dev/null").stdin(Stdio::null());
    let ended = finish(shell);
    assert!(ended.status.success(), "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.ends_with("all programs work\n"), "{}", ended.stdout);
    demo.stop();
    room.assert_clean();
}

#[test]
fn real_programs_work_in_a_region_that_is_not_the_clients() {
    assert_programs_work("eu");
}

#[test]
fn real_programs_work_in_the_global_part() {
    assert_programs_work("world");
}

#[test]
fn the_status_of_the_command_is_the_demos() {
    let room = Room::new();
    let ended = room.exec("pwd; ls; cat; exit 37");
    assert_eq!(ended.status.code(), Some(37), "{ended:?}");
    let mount = room.mount().canonicalize().unwrap_or(room.mount());
    assert_eq!(ended.stdout, format!("{}\nap\neu\nus\n", mount.display()));
    let script = format!("XDG_RUNTIME_DIR=/nowhere HOME=/nowhere {} status", harness::MERIDIAN);
    let ended = room.exec(&script);
    assert!(ended.status.success(), "it knows its own demo: {ended:?}");
    let ended = room.exec("kill -TERM $$");
    assert_eq!(ended.status.code(), Some(128 + libc::SIGTERM), "{ended:?}");
    assert!(!room.mount().exists(), "the demo made the mount point, so it removes it");
}

#[test]
fn a_demo_shows_what_runs_where_and_stops_on_ctrl_c() {
    let room = Room::new();
    let demo = room.demo();
    let cluster = room.cluster();
    assert_eq!(cluster["nodes"].as_array().unwrap().len(), 9);
    let status = room.run(&["status"]);
    assert!(status.status.success(), "{status:?}");
    for word in ["us-1", "eu-2", "ap-3", "global", "primary", "lag"] {
        assert!(status.stdout.contains(word), "{word}: {}", status.stdout);
    }
    let said = room.status();
    // What other tests have mounted, and does not answer, may be the cluster's too.
    let dir = room.mount().canonicalize().unwrap();
    let is_own = |mount: &&serde_json::Value| Path::new(mount["dir"].as_str().unwrap()) == dir;
    let mount = said["mounts"].as_array().unwrap().iter().find(is_own).expect("its own mount");
    let transport = mount["transport"].as_str().unwrap();
    assert!(["io_uring", "/dev/fuse"].contains(&transport), "{mount}");
    assert!(status.stdout.contains(dir.to_str().unwrap()), "{mount}: {status:?}");
    let second = room.run(&["demo", "--mount", "mnt"]);
    assert!(!second.status.success());
    assert!(second.stderr.contains("already"), "{second:?}");
    demo.stop();
    room.assert_clean();
    let status = room.run(&["status"]);
    assert!(status.stderr.contains("no demo is running"), "{status:?}");
}

#[test]
fn a_demo_that_was_killed_leaves_nothing_that_hinders_the_next() {
    let room = Room::new();
    // With temporary data, so that the next one has to find it.
    let temporary = room.path("tmp");
    fs::create_dir(&temporary).unwrap();
    let start = || {
        let mut command = room.meridian(&["demo", "--mount", "mnt", "--nodes-per-region", "1"]);
        command.env("TMPDIR", &temporary);
        Running::start(command, room.mount())
    };
    let demo = start();
    fs::write(demo.mount().join("us/file"), "x").unwrap();
    demo.kill();
    let demo = start();
    assert!(!demo.mount().join("us/file").exists(), "another cluster");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 1, "the old data are gone");
    demo.stop();
    room.assert_clean();
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn a_node_whose_directory_is_lost_is_not_made_anew() {
    let room = Room::new();
    let first = room.exec("echo kept > us/file");
    assert!(first.status.success(), "{first:?}");
    fs::remove_dir_all(room.path("data/us-1")).unwrap();
    let again = room.exec("cat us/file");
    assert_eq!(again.stdout, "kept\n", "{again:?}");
    assert!(again.stderr.contains("cluster remove-node us-1"), "{again:?}");
    assert!(!room.path("data/us-1").exists());
}

/// Its directory is whole in itself: only the others know what it has forgotten.
#[test]
fn a_demo_goes_on_without_a_node_whose_directory_is_older() {
    let room = Room::new();
    let first = room.exec("echo first > us/file");
    assert!(first.status.success(), "{first:?}");
    let (dir, older) = (room.path("data/us-1"), room.path("older"));
    assert!(Command::new("cp").arg("-a").args([&dir, &older]).status().unwrap().success());
    let second = room.exec("echo second > us/file");
    assert!(second.status.success(), "{second:?}");
    fs::remove_dir_all(&dir).unwrap();
    fs::rename(&older, &dir).unwrap();
    let again = room.exec("cat us/file");
    assert_eq!(again.stdout, "second\n", "{again:?}");
    for words in ["goes on without us-1", "cluster remove-node us-1"] {
        assert!(again.stderr.contains(words), "{again:?}");
    }
}

/// All that is below `dir`, and itself.
fn assert_private(dir: &Path) {
    let mode = fs::symlink_metadata(dir).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", dir.display());
    if dir.is_dir() {
        fs::read_dir(dir).unwrap().for_each(|entry| assert_private(&entry.unwrap().path()));
    }
}

#[test]
fn what_a_node_keeps_is_for_its_owner_alone() {
    let room = Room::new();
    let ended = room.exec("head -c 100000 /dev/urandom > us/file");
    assert!(ended.status.success(), "{ended:?}");
    for node in ["us-1", "us-2", "eu-1"] {
        let dir = room.path("data").join(node);
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        for part in ["wal", "blocks", "identity", "incarnation", "node.json", "server.log"] {
            assert!(dir.join(part).exists(), "{part}");
        }
        assert_private(&dir);
    }
}

/// Writes numbered files, each synced, until `stop`; returns how many were acknowledged.
fn write_files(dir: &Path, stop: &AtomicBool, count: impl Fn(u64)) -> u64 {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut file = File::create_new(dir.join(done.to_string())).unwrap();
        file.write_all(content(done).as_bytes()).unwrap();
        file.sync_all().unwrap();
        done += 1;
        count(done);
    }
    done
}

/// Some are short enough to lie in the inode, some have blocks.
fn content(number: u64) -> String {
    format!("{number} ").repeat(if number.is_multiple_of(5) { 20_000 } else { 100 })
}

fn assert_written(dir: &Path, count: u64) {
    for number in 0..count {
        let found = fs::read_to_string(dir.join(number.to_string()))
            .unwrap_or_else(|error| panic!("file {number} of {count}: {error}"));
        assert!(found == content(number), "file {number} of {count} is changed");
    }
}

/// One node of a region dies while a program writes, comes back, and then must carry the group when
/// another dies.
#[test]
fn writing_goes_on_when_nodes_are_killed() {
    let room = Room::new();
    let demo = room.demo();
    let dir = demo.mount().join("us/files");
    fs::create_dir(&dir).unwrap();
    let stop = AtomicBool::new(false);
    let (counts, counted) = std::sync::mpsc::channel();
    let more = || {
        let seen = counted.try_iter().last().unwrap_or(0);
        while counted.recv_timeout(harness::PATIENCE).expect("writing goes on") < seen + 30 {}
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_files(&dir, &stop, |count| counts.send(count).unwrap()));
        // Let the writer go also when a check below fails.
        let stop = StopAtEnd(&stop);
        more();
        let first = room.group("us")["primary"].as_str().unwrap().to_string();
        kill(room.pid_of(&first), libc::SIGKILL);
        more();
        let second = room.group("us")["primary"].as_str().unwrap().to_string();
        assert_ne!(first, second);

        let node_dir = room.path("data").join(&first);
        let mut server = room.meridian(&["server", "--dir", node_dir.to_str().unwrap()]);
        let log = File::options().append(true).open(node_dir.join("server.log")).unwrap();
        let mut server = server.stderr(log).spawn().unwrap();
        eventually("the node that was killed has caught up", || {
            let group = room.group("us");
            let mut replicas = group["replicas"].as_array().unwrap().iter();
            let replica = replicas.find(|replica| replica["node"] == *first);
            replica.is_some_and(|r| r["role"] == "follower" && r["lag"].as_u64().unwrap() < 50)
        });
        kill(room.pid_of(&second), libc::SIGKILL);
        more();
        drop(stop);
        let count = writer.join().unwrap();
        assert_written(&dir, count);
        demo.stop();
        assert!(server.wait().unwrap().success(), "the demo stops also what was started by hand");
    });
    room.assert_clean();
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_was_acknowledged_is_there_after_all_were_killed() {
    let room = Room::new();
    let demo = room.demo();
    let (us, world) = (demo.mount().join("us/files"), demo.mount().join("files"));
    let mut counts = Vec::new();
    for dir in [&us, &world] {
        fs::create_dir(dir).unwrap();
        let stop = AtomicBool::new(false);
        counts.push(write_files(dir, &stop, |count| stop.store(count == 60, Ordering::Relaxed)));
    }
    fs::rename(us.join("7"), world.join("moved")).unwrap();
    let nodes = room.cluster()["nodes"].as_array().unwrap().clone();
    for node in &nodes {
        kill(i32::try_from(node["pid"].as_i64().unwrap()).unwrap(), libc::SIGKILL);
    }
    demo.kill();

    let demo = room.demo();
    let again = room.cluster();
    let names = |nodes: &[serde_json::Value]| -> Vec<String> {
        nodes.iter().map(|node| node["name"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(names(again["nodes"].as_array().unwrap()), names(&nodes));
    fs::rename(world.join("moved"), us.join("7")).unwrap();
    assert_written(&us, counts[0]);
    assert_written(&world, counts[1]);
    demo.stop();
    room.assert_clean();
    let other = room.run(&["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "2"]);
    assert!(other.stderr.contains("has 3 nodes in us"), "{other:?}");
}

#[test]
fn two_mounts_see_each_others_files() {
    let room = Room::new();
    let demo = room.demo();
    let cluster = room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "eu", "eu"];
    let other = Running::start(room.meridian(&args), room.path("eu"));
    let (here, there) = (demo.mount(), other.mount());
    for place in ["us", "eu", "."] {
        let (mine, theirs) = (here.join(place).join("note"), there.join(place).join("note"));
        fs::write(&mine, "from us").unwrap();
        eventually("the other mount sees a new file", || {
            fs::read_to_string(&theirs).is_ok_and(|text| text == "from us")
        });
        fs::write(&theirs, "from eu, and longer").unwrap();
        eventually("this mount sees the change", || {
            fs::read_to_string(&mine).unwrap() == "from eu, and longer"
        });
        fs::rename(&theirs, there.join(place).join("renamed")).unwrap();
        eventually("this mount sees the new name", || {
            !mine.exists() && here.join(place).join("renamed").exists()
        });
    }
    other.stop();
    demo.stop();
    room.assert_clean();
}

/// A program that runs, and files that are read and written, outlive their names until they are
/// closed, though another mount took these and whatever nobody has open is gone.
#[test]
fn open_files_outlive_their_names_on_another_mount() {
    let room = Room::new();
    let demo = room.demo();
    let cluster = room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "eu", "eu"];
    let other = Running::start(room.meridian(&args), room.path("eu"));
    let (here, there) = (demo.mount(), other.mount());
    for place in ["us", "eu", "."] {
        let at = |name: &str| here.join(place).join(name);
        fs::write(at("read"), "as it was").unwrap();
        fs::write(at("closed"), "").unwrap();
        fs::copy("/bin/sleep", at("program")).unwrap();
        let mut open = File::options().read(true).write(true).open(at("read")).unwrap();
        let unused = rustix::fs::open(at("closed"), OFlags::PATH, Mode::empty()).unwrap();
        let mut program = Command::new(at("program")).arg("1000").spawn().unwrap();
        for name in ["read", "closed", "program"] {
            let new = there.join(place).join(format!("{name}.new"));
            fs::write(&new, "replaced").unwrap();
            fs::rename(&new, there.join(place).join(name)).unwrap();
        }
        let gone = Err(rustix::io::Errno::STALE);
        eventually("what is not open goes", || rustix::fs::fstat(&unused).map(drop) == gone);
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        open.write_all(b", and more").unwrap();
        open.sync_all().unwrap();
        assert_eq!((text.as_str(), open.metadata().unwrap().nlink()), ("as it was", 0));
        assert_eq!(fs::read(format!("/proc/{}/exe", program.id())).unwrap(), sleep_itself());
        assert_eq!(program.try_wait().unwrap(), None, "it runs");
        program.kill().unwrap();
        program.wait().unwrap();
    }
    other.stop();
    demo.stop();
    room.assert_clean();
}

#[test]
fn a_quota_is_kept_and_shown() {
    let room = Room::new();
    let demo = room.demo();
    let dir = demo.mount().join("us/limited");
    let quota = |args: &[&str]| room.run(&[&["fs", "quota", dir.to_str().unwrap()], args].concat());
    fs::create_dir(&dir).unwrap();
    assert!(quota(&[]).stdout.contains("has no quota"));
    let set = quota(&["--bytes", "1M", "--inodes", "3"]);
    assert!(set.stdout.contains("bytes=0/1048576 inodes=1/3"), "{set:?}");
    fs::write(dir.join("a"), vec![1; 1 << 19]).unwrap();
    fs::write(dir.join("b"), "").unwrap();
    let over = |result: std::io::Result<()>| result.unwrap_err().raw_os_error() == Some(122);
    assert!(over(File::create(dir.join("c")).map(drop)));
    let mut file = File::create(dir.join("b")).unwrap();
    assert!(over(file.write_all(&vec![1; 1 << 20]).and(file.sync_all())));
    drop(file);
    let room_there = rustix::fs::statvfs(&dir).unwrap();
    assert_eq!((room_there.f_files, room_there.f_ffree), (3, 0));
    assert_eq!(room_there.f_blocks * room_there.f_frsize, 1 << 20);
    let moved = fs::rename(dir.join("a"), demo.mount().join("us/a")).unwrap_err();
    assert_eq!(moved.raw_os_error(), Some(18), "{moved}");
    fs::remove_file(dir.join("b")).unwrap();
    assert!(quota(&["--none"]).stdout.contains("bytes=524288/none inodes=2/none"));
    demo.stop();
    room.assert_clean();
}

fn sleep_itself() -> Vec<u8> {
    fs::read("/bin/sleep").unwrap()
}

#[test]
fn directories_are_placed_and_paths_found() {
    let room = Room::new();
    let demo = room.demo();
    let found = |path: &str| -> serde_json::Value {
        let ended = room.run(&["fs", "where", path, "--json"]);
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    };
    assert_eq!(found("mnt")["placement"], "global");
    assert_eq!(found("mnt/ap")["metadata_on"], serde_json::json!(["ap-1", "ap-2", "ap-3"]));
    let dir = demo.mount().join("shared");
    fs::create_dir(&dir).unwrap();
    let placed = room.run(&["fs", "place", "mnt/shared", "--region", "eu"]);
    assert!(placed.status.success(), "{placed:?}");
    fs::write(dir.join("file"), "x").unwrap();
    eventually("what is made in it is placed there", || {
        found("mnt/shared/file")["placement"] == "eu" && found("mnt/shared")["placement"] == "eu"
    });
    let refused = |args: &[&str], why: &str| {
        let ended = room.run(args);
        assert!(!ended.status.success() && ended.stderr.contains(why), "{why}: {ended:?}");
    };
    refused(&["fs", "place", "mnt/shared", "--global"], "not empty");
    fs::create_dir(demo.mount().join("empty")).unwrap();
    refused(&["fs", "place", "mnt/empty", "--region", "mars"], "no region mars");
    refused(&["fs", "place", "run", "--global"], "not in a Meridian mount");
    refused(&["fs", "where", "mnt/none"], "No such file");
    demo.stop();
    room.assert_clean();
}

/// A small disk in memory, and something on it that only takes room.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: std::path::PathBuf, len_mib: u64) -> SmallDisk {
        fs::create_dir(&at).unwrap();
        let size = std::ffi::CString::new(format!("size={len_mib}m")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &at, "tmpfs", flags, size.as_c_str()).unwrap();
        SmallDisk(at)
    }

    /// Leaves so many bytes free.
    fn leave(&self, bytes: u64) {
        let ballast = File::create(self.0.join("ballast")).unwrap();
        let of = rustix::fs::statvfs(&self.0).unwrap();
        let len = (of.f_bavail * of.f_frsize).saturating_sub(bytes);
        if len > 0 {
            rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Programs are told at once that there is no room, reading and removing go on, no node stops, and
/// when there is room again all goes on by itself.
#[test]
fn a_full_disk_is_told_and_stops_nothing() {
    const NO_SPACE: Option<i32> = Some(libc::ENOSPC);
    let room = Room::new();
    let disk = SmallDisk::mount(room.path("data"), 640);
    let args = ["demo", "--mount", "mnt", "--data", "data", "--regions", "us"];
    let demo = Running::start(room.meridian(&args), room.mount());
    let dir = demo.mount().join("us");
    let small = |name: &str| fs::write(dir.join(name), name);
    let large = |name: &str, len_mib: usize| {
        let written = File::create(dir.join(name))?.write_all(&vec![7; len_mib << 20]);
        written.and_then(|()| File::open(dir.join(name))?.sync_all())
    };
    let nodes_are = |what: &str, so: bool| {
        let status = room.status();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().all(|node| node["reachable"] == true && node[what] == so)
    };
    small("kept").unwrap();
    large("first", 8).unwrap();
    disk.leave(100 << 20); // Less than blocks leave, more than the logs need.
    eventually("nodes say that they are full", || nodes_are("full", true));
    let since = std::time::Instant::now();
    let full = large("second", 120).unwrap_err();
    assert_eq!(full.raw_os_error(), NO_SPACE, "{full}");
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert_eq!(rustix::fs::statvfs(&dir).unwrap().f_bavail, 0);
    small("beside it").unwrap();
    disk.leave(0);
    eventually("nodes take nothing", || nodes_are("takes_nothing", true));
    assert_eq!(small("third").unwrap_err().raw_os_error(), NO_SPACE);
    assert_eq!(fs::create_dir(dir.join("dir")).unwrap_err().raw_os_error(), NO_SPACE);
    assert_eq!(fs::read(dir.join("first")).unwrap(), vec![7; 8 << 20]);
    fs::rename(dir.join("kept"), dir.join("moved")).unwrap();
    File::options().write(true).open(dir.join("first")).unwrap().set_len(10).unwrap();
    fs::remove_file(dir.join("beside it")).unwrap();
    fs::remove_file(disk.0.join("ballast")).unwrap();
    eventually("nodes have room", || nodes_are("takes_nothing", false));
    small("third").unwrap();
    assert_eq!(fs::read_to_string(dir.join("moved")).unwrap(), "kept");
    assert_eq!(fs::read(dir.join("first")).unwrap(), [7; 10]);
    fs::remove_file(dir.join("second")).unwrap(); // It waits for more room than there is.
    demo.stop();
    drop(disk);
}

#[test]
fn the_benchmark_runs_on_a_mount() {
    let room = Room::new();
    let demo = room.demo();
    let args = ["bench", "fs", "mnt/us", "--seconds", "0.5", "--threads", "4", "--json"];
    let ended = room.run(&[&args[..], &["--history", "history"]].concat());
    assert!(ended.status.success(), "{ended:?}");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(report["machine"]["cores"].as_u64() > Some(0), "{report}");
    let figures = report["operations"].as_array().unwrap();
    assert_eq!(figures.len(), 4);
    for figure in figures {
        assert!(figure["count"].as_u64() > Some(0) && figure["errors"] == 0, "{figure}");
    }
    assert!(fs::read_to_string(room.path("history")).unwrap().lines().count() > 10);
    assert_eq!(fs::read_dir(demo.mount().join("us")).unwrap().count(), 0, "it cleans up");
    demo.stop();
    room.assert_clean();
}

/// A demo with nothing to do leaves the machine alone: all its processes together, without keys,
/// wake up some 470 times in a second, and 630 times when links ask for what is not due. (Wake-ups
/// are counted, as what one takes depends on what else runs; when others run beside it some wait
/// for each other, so it is enough once.)
#[test]
fn an_idle_demo_is_quiet() {
    let room = Room::new();
    let demo = room.demo();
    let nodes = room.cluster()["nodes"].as_array().unwrap().clone();
    let mut pids: Vec<i64> = nodes.iter().map(|node| node["pid"].as_i64().unwrap()).collect();
    pids.push(i64::from(demo.pid()));
    let wake_ups = || -> u64 { pids.iter().map(|pid| wake_ups(*pid)).sum() };
    let span = Duration::from_secs(5); // What is measured is a rate: there is no event to wait for.
    let rate = || {
        let before = wake_ups();
        std::thread::sleep(span);
        (wake_ups() - before) as f64 / span.as_secs_f64()
    };
    let mut rates = std::iter::repeat_with(rate).take(6).inspect(|rate| {
        println!("{rate:.0} wake-ups a second");
        assert!(*rate > 10.0, "nobody was counted");
    });
    assert!(rates.any(|rate| rate < 560.0), "560 wake-ups a second or more, for half a minute");
    demo.stop();
}

/// How often the threads of a process have waited for something, so far.
fn wake_ups(pid: i64) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let waits = |status: String| -> Option<u64> {
        status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
    };
    let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).ok();
    threads.filter_map(|thread| waits(status(thread.ok()?)?)).sum()
}

#[test]
fn wrong_usage_is_refused_in_one_line() {
    let room = Room::new();
    let refused = |args: &[&str], code: i32, why: &str| {
        let ended = room.run(args);
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert!(ended.stderr.contains(why), "{why}: {ended:?}");
        assert!(code == 2 || ended.stderr.trim().lines().count() == 1, "{ended:?}");
    };
    refused(&["demo", "--colour"], 2, "--colour");
    refused(&["demo", "--regions", "us,global"], 2, "global");
    refused(&["demo", "--nodes-per-region", "0"], 2, "0");
    refused(
        &["demo", "--region", "mars", "--mount", "mnt"],
        1,
        "no region mars: there are us, eu, ap",
    );
    refused(&["demo", "--rtt", "us-mars=3", "--mount", "mnt"], 1, "no region mars");
    refused(&["demo", "--mount", "/proc"], 1, "mounted at /proc already");
    refused(&["demo", "--mount", "no/such"], 1, "no directory no");
    refused(&["server", "--dir", "none"], 1, "no node's folder at none");
    refused(&["status"], 1, "no demo is running");
    refused(&["status", "--cluster", "none.json"], 1, "none.json");
    fs::write(room.path("taken"), "").unwrap();
    refused(&["demo", "--mount", "taken"], 1, "taken");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let number = port.local_addr().unwrap().port().to_string();
    refused(&["demo", "--mount", "mnt", "--port", &number], 1, "is in use");
    fs::create_dir(room.path("old")).unwrap();
    fs::write(room.path("old/cluster.json"), r#"{"format":9,"cluster":1,"nodes":[]}"#).unwrap();
    refused(&["demo", "--mount", "mnt", "--data", "old"], 1, "format 9");
    room.assert_clean();
    assert!(!room.mount().exists(), "no mount point is left by a demo that did not start");
}
