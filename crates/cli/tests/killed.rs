//! Mounts that are killed, and the guards beside them: decision 67.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/program.rs"]
mod program;

use harness::{Room, Running, eventually, kill};
use program::Program;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// So long a process may take to end that was killed, on a busy machine.
const END: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
/// What who waits is told when the mount was killed; the last of what was on its way into a ring.
const GONE: [i32; 3] = [libc::ECONNABORTED, libc::ENOTCONN, libc::ECANCELED];

/// Lists the directory that it is in: the kernel locks it until it is told what is there. It has
/// another one open, which the kernel then keeps.
const LISTS: &str = "
kept = os.open('moved', os.O_RDONLY)
listing = os.scandir('.')
tell('is there')
hear()
tell('lists')
tell(errno(next, listing))
";

/// Looks a name up in the directory that it is in.
const LOOKS: &str = "
tell('is there')
hear()
tell(errno(os.stat, 'moved'))
";

/// A node that stands still until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Stopped {
        kill(pid, libc::SIGSTOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, libc::SIGCONT);
    }
}

/// Unmounts by force when a check fails: who waits there, and is waited for, could not end.
struct Freed<'a>(&'a Path);

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("-f").arg(self.0).status();
        }
    }
}

/// One node in each of three regions.
fn demo(room: &Room) -> Running {
    let args = ["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "1"];
    Running::start(room.meridian(&args), room.mount())
}

/// Another mount of that demo, in which calls wait for long for a region that does not answer. It
/// holds nothing: else nodes tell it which names go, and it lists what it holds without them.
fn other(room: &Room) -> Running {
    let cluster = room.path("data/cluster.json");
    let of = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "us"];
    let args = [&of[..], &["--ask-always", "--on-cut", "wait:10m", "waiting"]].concat();
    Running::start(room.meridian(&args), room.path("waiting"))
}

/// The guard beside the mount of that process.
fn guard_of(mount: i32) -> i32 {
    let guard = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (pid, rest) = stat.split_once(" (mount-guard) ")?;
        let parent = rest.split(' ').nth(1)?;
        (parent == mount.to_string()).then(|| pid.parse().unwrap())
    };
    let all: Vec<_> = fs::read_dir("/proc").unwrap().flatten().filter_map(guard).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

/// Whether a thread of that name waits where no signal ends it.
fn waits(process: i32, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let stats = threads.map(|thread| fs::read_to_string(thread.path().join("stat")));
    let waits = format!(" ({name}) D ");
    stats.into_iter().any(|stat| stat.is_ok_and(|stat| stat.contains(&waits)))
}

/// Whether the process waits in that call.
fn is_in(process: u32, call: i64) -> bool {
    let said = fs::read_to_string(format!("/proc/{process}/syscall")).unwrap();
    said.split(' ').next().is_some_and(|number| number == call.to_string())
}

fn handle(process: i32) -> OwnedFd {
    pidfd_open(Pid::from_raw(process).unwrap(), PidfdFlags::empty()).unwrap()
}

/// Whether the last thread of the process ends within [`END`].
fn ends(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&END)).unwrap() == 1
}

/// A look at the new place of a directory that another mount has moved has the kernel drop its old
/// name. The directory that had it is being listed, which waits for a region that stands still.
#[test]
fn who_waits_for_a_mount_that_is_killed_gets_an_error() {
    let room = Room::new();
    let demo = demo(&room);
    let other = other(&room);
    let (here, there) = (demo.mount(), other.mount().to_path_buf());
    let [old, new] = ["eu/from/moved", "us/to/moved"].map(|path| here.join(path));
    fs::create_dir_all(&new).unwrap(); // So it lives in `us`, wherever it is moved.
    fs::create_dir(here.join("eu/from")).unwrap();
    fs::rename(&new, &old).unwrap();
    let stands = room.pid_of("eu-1");
    let mut lists = Program::start_in(&there.join("eu/from"), LISTS, &[]);
    let mut looks = Program::start_in(&there.join("us/to"), LOOKS, &[]);
    let _freed = Freed(&there);
    assert_eq!([lists.hear(), looks.hear()], ["is there"; 2]);
    fs::rename(&old, &new).unwrap();
    let stopped = Stopped::new(stands);
    lists.tell();
    assert_eq!(lists.hear(), "lists");
    eventually("its listing waits", || is_in(lists.pid(), libc::SYS_getdents64));
    looks.tell();
    looks.hear(); // The kernel may still have it elsewhere, and say so.
    looks.end();
    let mount = other.pid();
    eventually("a name is being dropped", || waits(mount, "meridian-moved"));

    let guard = guard_of(mount);
    // Those are for the mount, also if all processes of a service get them.
    let passed_over =
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
    passed_over.into_iter().for_each(|signal| kill(guard, signal));
    let [process, guard] = [mount, guard].map(handle);
    kill(mount, libc::SIGKILL);
    assert!(ends(&process), "a thread of the mount that was killed still waits");
    assert!(ends(&guard), "the guard has nothing to guard any more");
    let error: i32 = lists.hear().parse().unwrap();
    assert!(GONE.contains(&error), "{error}");
    lists.end();
    other.kill();
    drop(stopped);
    let left = fs::metadata(&there).unwrap_err().raw_os_error();
    assert_eq!(left, Some(libc::ENOTCONN), "nobody writes to what is beneath by mistake");
    mounted_again(&room, &there);
    demo.stop();
    room.assert_clean();
}

/// Whoever mounts at the same place unmounts what was left.
fn mounted_again(room: &Room, at: &Path) {
    let again = other(room);
    assert!(at.join("us/to/moved").is_dir());
    again.stop();
}

/// What a process has open.
fn open_files(process: i32) -> Vec<PathBuf> {
    let all = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    all.map(|file| fs::read_link(file.unwrap().path()).unwrap()).collect()
}

/// Who reads what a mount says would wait for its end, and who unmounts for a directory's.
#[test]
fn a_guard_ends_with_its_mount_and_has_nothing_of_it_open() {
    let room = Room::new();
    let demo = demo(&room);
    let other = other(&room);
    let guards = [demo.pid(), other.pid()].map(|mount| {
        let guard = guard_of(mount);
        let of = |process: i32, what: &str| fs::read_link(format!("/proc/{process}/{what}"));
        let said = of(mount, "fd/1").unwrap();
        let open = open_files(guard);
        let theirs = |file: &PathBuf| *file == said || file == Path::new("/dev/fuse");
        assert!(!open.iter().any(theirs), "{said:?}: {open:?}");
        assert!(of(guard, "fd/0").unwrap().ends_with("abort"), "{open:?}");
        assert_eq!(of(guard, "fd/2").unwrap(), Path::new("/dev/null"));
        assert_eq!(of(guard, "cwd").unwrap(), Path::new("/"));
        guard
    });
    other.stop();
    demo.stop();
    for guard in guards {
        assert!(!fs::exists(format!("/proc/{guard}")).unwrap(), "not even a zombie is left");
    }
    room.assert_clean();
}
