//! Locks over two real mounts: deadlocks end, and a mount that was stopped for longer than its
//! lease writes nothing under the locks that it lost.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/program.rs"]
mod program;

use harness::{Room, Running, kill};
use program::Program;
use std::fs;

#[test]
fn a_cycle_over_two_mounts_is_a_deadlock_for_one_of_them() {
    let room = Room::new();
    let (demo, second) = room.two_mounts("us");
    wait_for_each_other(&demo, &second, ["us/f", "us/g"]);
    second.stop();
    demo.stop();
    room.assert_clean();
}

#[test]
fn a_cycle_over_two_regions_is_a_deadlock_for_one_of_two_mounts() {
    let room = Room::new();
    let (demo, second) = room.two_mounts("us,eu");
    wait_for_each_other(&demo, &second, ["us/f", "eu/g"]);
    wait_for_each_other(&demo, &second, ["root", "eu/h"]);
    second.stop();
    demo.stop();
    room.assert_clean();
}

/// A program at each mount locks one of two files, and then wants the other.
fn wait_for_each_other(demo: &Running, second: &Running, names: [&str; 2]) {
    for name in names {
        fs::write(demo.mount().join(name), "").unwrap();
    }
    let script = "
fcntl.lockf(files[0], fcntl.LOCK_EX)
tell('has')
hear()
tell(errno(fcntl.lockf, files[1], fcntl.LOCK_EX))
";
    let [f, g] = names.map(|name| demo.mount().join(name));
    let [there_f, there_g] = names.map(|name| second.mount().join(name));
    let mut here = Program::start(script, &[&f, &g]);
    let mut there = Program::start(script, &[&there_g, &there_f]);
    assert_eq!((here.hear(), there.hear()), ("has".into(), "has".into()));
    here.tell();
    there.tell();
    // Who is refused ends, and with it its locks; then the other has what it waited for.
    let (here_to, there_to) = std::thread::scope(|scope| {
        let one = scope.spawn(|| here.hear());
        let other = scope.spawn(|| there.hear());
        (one.join().unwrap(), other.join().unwrap())
    });
    let deadlock = libc::EDEADLK.to_string();
    let mut ends = [here_to, there_to];
    ends.sort();
    assert_eq!(ends, ["0".to_string(), deadlock]);
    here.end();
    there.end();
}

#[test]
fn a_mount_that_was_stopped_for_too_long_writes_nothing_under_its_lost_locks() {
    let room = Room::new();
    let (demo, second) = room.two_mounts("us");
    fs::write(demo.mount().join("us/f"), "before").unwrap();
    let script = "
f = files[0]
fcntl.lockf(f, fcntl.LOCK_EX)
os.write(f, b'first!')
tell('has')
hear()
ends = [errno(os.fsync, f), errno(os.pwrite, f, b'late', 0), errno(os.fsync, f)]
ends += [errno(fcntl.lockf, f, fcntl.LOCK_EX), errno(os.close, f)]
tell(ends)
f = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(f, fcntl.LOCK_EX)
tell(os.pread(f, 9, 0).decode(), errno(os.pwrite, f, b'again!', 0), errno(os.close, f))
";
    let mut holder = Program::start(script, &[&second.mount().join("us/f")]);
    assert_eq!(holder.hear(), "has");
    kill(second.pid(), libc::SIGSTOP);
    let script = "
f = files[0]
tell(errno(fcntl.lockf, f, fcntl.LOCK_EX), errno(os.write, f, b'second'), errno(os.fsync, f))
hear()
";
    let mut next = Program::start(script, &[&demo.mount().join("us/f")]);
    assert_eq!(next.hear(), "0 0 0", "the lease of a mount that says nothing runs out");
    kill(second.pid(), libc::SIGCONT);
    holder.tell();
    assert_eq!(holder.hear(), "[5, 5, 5, 5, 5]");
    assert_eq!(fs::read_to_string(demo.mount().join("us/f")).unwrap(), "second");
    next.tell();
    next.end();
    assert_eq!(holder.hear(), "second 0 0", "whoever opens it anew begins anew");
    holder.end();
    assert_eq!(fs::read_to_string(demo.mount().join("us/f")).unwrap(), "again!");
    second.stop();
    demo.stop();
    room.assert_clean();
}
