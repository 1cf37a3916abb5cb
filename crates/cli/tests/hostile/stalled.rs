//! Abuse 15: a client stops, or is killed, in the middle of everything: between blocks and inode,
//! in a rename over two regions, with a lock, and with a file open that has lost its name.
//!
//! What uses its mount are processes of their own: who has a file of it open could start no other
//! program while it is stopped, as each closes what it inherits.

use crate::harness::{PATIENCE, Room, Running, eventually, kill};
use crate::program::Program;
use meridian_host::replica::LEASE;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A file in blocks.
const LEN: usize = 3 << 20;
/// One that is much longer than all else together.
const HELD: usize = 16 << 20;

/// Holds a file that loses its name, and a lock under which it has written what is not stored yet.
const HOLDS: &str = "
held, locked = files
fcntl.lockf(locked, fcntl.LOCK_EX)
os.write(locked, b'theirs')
tell('has')
hear()
for file in files:
    tell(errno(os.pwrite, file, b'late', 0) or errno(os.fsync, file))
";

/// Moves a file from region to region, and writes another again and again, until an error.
const WORKS: &str = "
import threading
def again(once):
    count = 0
    while errno(once) == 0:
        count += 1
        if count == 2: tell('is under way')
def moves():
    os.rename('us/a/moved', 'eu/b/moved')
    os.rename('eu/b/moved', 'us/a/moved')
def writes():
    f = os.open('us/written', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(f, bytes([2]) * (3 << 20))
    os.fsync(f)
    os.close(f)
for once in [moves, writes]:
    threading.Thread(target=again, args=[once], daemon=True).start()
hear()
os._exit(0)
";

#[test]
fn who_stops_in_the_middle_holds_up_nobody_and_its_late_work_is_refused() {
    let room = Room::new();
    let (demo, second) = room.two_mounts("us,eu");
    let (here, there) = (demo.mount(), second.mount());
    for dir in ["us/a", "eu/b"] {
        fs::create_dir(here.join(dir)).unwrap();
    }
    fs::write(here.join("us/locked"), "before").unwrap();
    fs::write(here.join("us/held"), vec![1; HELD]).unwrap();
    fs::write(here.join("us/a/moved"), "moved").unwrap();
    let mut holds = Program::start(HOLDS, &[&there.join("us/held"), &there.join("us/locked")]);
    assert_eq!(holds.hear(), "has");
    let mut works = works(there);
    let killed = Killed(second.pid());
    kill(second.pid(), libc::SIGSTOP);
    others_go_on(here, Instant::now());
    fs::remove_file(here.join("us/held")).unwrap();
    assert!(block_bytes(&room) > HELD as u64, "it is open, so its bytes stay");
    let script = "
fcntl.lockf(files[0], fcntl.LOCK_EX)
tell(errno(os.write, files[0], b'mine'), errno(os.fsync, files[0]))
hear()
";
    let mut next = Program::start(script, &[&here.join("us/locked")]);
    assert_eq!(next.hear(), "0 0", "the lease of who says nothing runs out");
    eventually("its room comes back", || block_bytes(&room) < HELD as u64);
    kill(second.pid(), libc::SIGCONT);
    holds.tell();
    let refused = [libc::ESTALE, libc::EIO].map(|errno| errno.to_string());
    for what in ["what it holds", "what it had locked"] {
        let errno = holds.hear();
        assert!(refused.contains(&errno), "{what}: {errno}");
    }
    holds.end();
    works.tell();
    works.end();
    assert_eq!(fs::read(here.join("us/locked")).unwrap(), b"minere");
    next.tell();
    next.end();
    assert_eq!(fs::read(here.join("us/a/mine")).unwrap(), b"moved", "nobody took it back");
    fs::rename(here.join("us/a/mine"), here.join("us/a/moved")).unwrap();
    drop(killed);
    who_is_killed_holds_up_nobody(here, second);
    demo.stop();
    room.assert_clean();
}

/// The same without a lock, and without coming back.
fn who_is_killed_holds_up_nobody(here: &Path, second: Running) {
    let there = second.mount().to_path_buf();
    let mut works = works(&there);
    second.kill();
    others_go_on(here, Instant::now());
    works.tell();
    works.end();
    assert!(Command::new("umount").arg("-l").arg(&there).status().unwrap().success());
}

/// Programs of the mount that are in the middle of something.
fn works(there: &Path) -> Program {
    let mut works = Program::start_in(there, WORKS, &[]);
    assert_eq!([works.hear(), works.hear()], ["is under way"; 2]);
    works
}

/// Ends a mount when a check fails: who uses it could not end otherwise.
struct Killed(i32);

impl Drop for Killed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill(self.0, libc::SIGKILL);
        }
    }
}

/// What the blocks of all nodes take.
fn block_bytes(room: &Room) -> u64 {
    let status = room.status();
    let nodes = status["nodes"].as_array().unwrap().iter();
    nodes.map(|node| node["block_bytes"].as_u64().unwrap()).sum()
}

/// Whatever was under way is done or is not, and nobody waits for a lease who needs no lock.
fn others_go_on(here: &Path, begun: Instant) {
    let names = [here.join("us/a/moved"), here.join("eu/b/moved")];
    let there_is = || names.iter().filter(|name| name.exists()).collect::<Vec<_>>();
    eventually("it has one name", || there_is().len() == 1);
    fs::rename(there_is()[0], here.join("us/a/mine")).unwrap();
    assert_eq!(fs::read(here.join("us/a/mine")).unwrap(), b"moved");
    for dir in ["us/a", "eu/b"] {
        let path = here.join(dir).join("new");
        fs::write(&path, "new").unwrap();
        fs::remove_file(&path).unwrap();
    }
    let written = here.join("us/written");
    let shown = fs::read(&written).unwrap();
    assert!(shown.len() <= LEN && shown.iter().all(|byte| [0, 2].contains(byte)));
    let mut file = OpenOptions::new().write(true).truncate(true).open(&written).unwrap();
    file.write_all(&vec![3; LEN]).and(file.sync_all()).unwrap();
    drop(file);
    assert!(fs::read(&written).unwrap() == vec![3; LEN]);
    let took = begun.elapsed();
    assert!(took < LEASE.min(PATIENCE), "{took:?}");
}
