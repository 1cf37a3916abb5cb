//! A real mount over a cluster in this process: programs as they are.
#![allow(clippy::unwrap_used)]

mod world;

use meridian_fs::{Durability, FsError, Update};
use meridian_mount::about::{self, About};
use meridian_mount::{Access, MountError, Transport, clear_stale, mount};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use world::fake::Cluster;
use world::{SOURCE, mount_over, mounted, run};

/// How requests come.
#[allow(dead_code)] // `rings.rs` has another.
pub const TRANSPORT: Transport = Transport::Device;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_works_in_it() {
    let world = mounted().await;
    assert_eq!(world.run("ls").await, "ap\neu\nus\n");
    let script = "cd us; mkdir -p a/b; echo one > a/f; echo two >> a/f; cat a/f; \
        ln -s f a/s; ln a/f a/h; stat -c %h a/f; readlink a/s; mv a/f a/b/g; cat a/b/g; \
        chmod 640 a/h; stat -c '%a %s' a/b/g; rm a/b/g; cat a/h; mkfifo p; test -p p; \
        touch -d '2001-02-03 04:05:06 UTC' a/h; stat -c %Y a/h";
    let printed = "one\ntwo\n2\nf\none\ntwo\n640 8\none\ntwo\n981173106\n";
    assert_eq!(world.run(script).await, printed);
    assert_eq!(world.run("rm -r us/a us/p; ls -A us | wc -l; ls -al").await.lines().count(), 7);
    world.mount.unmount().await.unwrap();
    assert_eq!(run(world.at.path(), "ls -A").await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_says_how_requests_come_and_of_which_cluster_it_is() {
    let world = mounted().await;
    let at = world.at.path().to_path_buf();
    let (said, stored) = tokio::task::spawn_blocking(move || {
        let how = rustix::fs::XattrFlags::empty();
        (About::of(&at), rustix::fs::setxattr(&at, about::NAME, b"x", how))
    })
    .await
    .unwrap();
    let cluster = world.cluster.client("us").topology().cluster;
    let transport = world.mount.transport().to_string();
    let (region, durability) = ("us".into(), Some(Durability::Close));
    assert_eq!(said.unwrap(), About { cluster, transport, region, durability });
    assert_eq!(stored, Err(rustix::io::Errno::OPNOTSUPP), "nobody can say something else");
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trees_are_copied_moved_and_removed() {
    let world = mounted().await;
    let script = "from=$(mktemp -d); trap 'rm -r $from' EXIT; mkdir $from/t; cd $from/t; \
        for d in a b/c d; do mkdir -p $d; for n in $(seq 30); do \
        head -c $((n * n * 60)) /dev/urandom > $d/$n; done; done; ln -s a/1 link; \
        touch -d '2002-02-02 02:02:02' a b/c/*; cd $OLDPWD; \
        list() { (cd $1/t; find . ! -type d -printf '%p %y %m %T@ %s %l\\n'; \
        find . -type d -printf '%p %m %T@\\n') | sort; }; \
        cp -a $from/t us/; diff -r $from/t us/t; \
        diff <(list $from) <(list us); \
        mv us/t eu/t; diff -r $from/t eu/t; tar cf all.tar -C eu t; tar xpf all.tar -C ap; \
        diff -r $from/t ap/t; rm -r eu/t ap/t all.tar; find . | wc -l";
    let printed = world.run(script).await;
    assert_eq!(printed, "4\n");
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_files_keep_their_bytes() {
    let world = mounted().await;
    let script = "head -c 30000000 /dev/urandom > us/r; cp us/r f; cmp us/r f; \
        dd if=us/r of=us/p bs=4096 skip=3 seek=3 count=2000 conv=notrunc status=none; \
        cmp -n 8192000 -i 12288 us/r us/p; truncate -s 1000 f; cmp -n 1000 f us/r; \
        truncate -s 5000000 f; stat -c %s f; tail -c 4999000 f | tr -d '\\0' | wc -c; \
        fallocate -p -o 0 -l 500 f; head -c 500 f | tr -d '\\0' | wc -c; stat -c %s f; \
        fallocate -z -o 500 -l 400 f; head -c 1000 f | tr -d '\\0' | wc -c; stat -c %s f; \
        cmp -i 900 -n 100 f us/r; \
        fallocate -z -n -o 4999000 -l 9000 f; stat -c %s f; \
        fallocate -z -o 4999000 -l 9000 f; stat -c %s f; tail -c 9000 f | tr -d '\\0' | wc -c";
    let printed = world.run(script).await;
    let zeroed: Vec<_> = printed.lines().collect();
    let left: u64 = zeroed[4].parse().unwrap();
    assert!((1..=100).contains(&left), "{left} bytes of 100 random ones are not zero");
    let sizes = ["5000000", "0", "0", "5000000", zeroed[4], "5000000", "5000000", "5008000", "0"];
    assert_eq!(zeroed, sizes);
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_mounts_see_each_others_files_after_close() {
    let world = mounted().await;
    let (at, second) = world.again("eu");
    world.run("echo first > us/f").await;
    assert_eq!(run(at.path(), "cat us/f; echo second > us/f; ls us").await, "first\nf\n");
    assert_eq!(world.run("cat us/f").await, "second\n");
    let line = "for n in $(seq 50); do echo line >> us/log; done";
    tokio::join!(world.run(line), run(at.path(), line));
    assert_eq!(world.run("sort us/log | uniq -c | tr -s ' '").await, " 100 line\n");
    second.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_hold_across_mounts() {
    let world = mounted().await;
    let (at, second) = world.again("eu");
    world.run("echo 0 > us/count").await;
    let line = "for n in $(seq 20); do flock us/lock -c \
        'n=$(cat us/count); echo $((n + 1)) > us/count'; done";
    tokio::join!(world.run(line), run(at.path(), line));
    assert_eq!(world.run("cat us/count").await, "40\n");
    second.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

/// As databases do it: the file stays open, a lock guards each look and change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_a_lock_sees_what_was_written_under_it() {
    let world = mounted().await;
    let (at, second) = world.again("eu");
    world.run("printf 00000 > us/count").await;
    let script = "python3 -c \"import fcntl, os
f = os.open('us/count', os.O_RDWR)
for n in range(100):
    os.pread(f, 5, 0)
    fcntl.lockf(f, fcntl.LOCK_EX)
    os.pwrite(f, b'%05d' % (int(os.pread(f, 5, 0)) + 1), 0)
    fcntl.lockf(f, fcntl.LOCK_UN)\"";
    tokio::join!(world.run(script), run(at.path(), script));
    assert_eq!(world.run("cat us/count").await, "00200");
    second.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

/// A program may take both, as some that guard their mailboxes do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_the_two_families_do_not_see_each_other() {
    let world = mounted().await;
    let (at, second) = world.again("eu");
    let ranges = "import fcntl; fcntl.lockf(open(\"us/f\", \"r+\"), fcntl.LOCK_EX | fcntl.LOCK_NB)";
    let script = format!("touch us/f; flock us/f python3 -c '{ranges}'");
    world.run(&script).await;
    let other = format!("cd {}; python3 -c '{ranges}'; ! flock -n us/f true", at.path().display());
    world.run(&format!("flock us/f bash -c {}", quoted(&other))).await;
    world.run("flock -n us/f true").await;
    second.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

/// The kernel has the directory still where it was, and holds the lock that it needs to move it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_another_mount_has_moved_can_be_renamed() {
    let world = mounted().await;
    let (at, second) = world.again("eu");
    world.run("mkdir -p us/x us/y us/z us/x/d us/x/e us/x/f/sub; touch us/x/d/file").await;
    world.run("stat us/x/d us/x/e us/x/f/sub us/y us/z").await;
    run(at.path(), "mv us/x/d us/x/e us/x/f us/y/").await;
    let rename = |from: &str, to: &str| {
        let (from, to) = (world.at.path().join(from), world.at.path().join(to));
        tokio::task::spawn_blocking(move || std::fs::rename(from, to))
    };
    rename("us/y/d", "us/z/d").await.unwrap().unwrap();
    assert_eq!(world.run("ls us/z/d; ls us/x us/y").await, "file\nus/x:\n\nus/y:\ne\nf\n");
    // Where it was is locked by the very rename.
    rename("us/y/e", "us/x/again").await.unwrap().unwrap();
    rename("us/y/f", "us/y/g").await.unwrap().unwrap();
    assert_eq!(
        world.run("ls us/x us/y us/y/g").await,
        "us/x:\nagain\n\nus/y:\ng\n\nus/y/g:\nsub\n"
    );
    second.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', r"'\''"))
}

/// As a server of NFS does it: it has only a number, and the kernel has forgotten the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_opened_by_its_handle_when_the_kernel_has_forgotten_it() {
    let world = mounted().await;
    world.run("mkdir -p us/d/e; echo found > us/d/e/f").await;
    let script = "python3 -c \"import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('type', ctypes.c_int), ('data', ctypes.c_ubyte * 128)]
here = os.open('.', os.O_RDONLY)
for name, what in (('us/d/e/f', 'file'), ('us/d/e', 'directory')):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    into = (ctypes.byref(handle), ctypes.byref(mount), 0)
    assert libc.name_to_handle_at(-100, name.encode(), *into) == 0
    open('/proc/sys/vm/drop_caches', 'w').write('2')
    fd = libc.open_by_handle_at(here, ctypes.byref(handle), os.O_RDONLY)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    print(os.read(fd, 99).decode().strip() if what == 'file' else os.listdir(fd))\"";
    assert_eq!(world.run(script).await, "found\n['f']\n");
    world.mount.unmount().await.unwrap();
}

/// The kernel tells of the last close later, and may give the next open the same owner of locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_close_gave_back_is_free() {
    let world = mounted().await;
    world.run("touch us/f").await;
    let script = "timeout 60 python3 -c \"import fcntl, os
for n in range(300):
    f = os.open('us/f', os.O_RDWR)
    fcntl.flock(f, fcntl.LOCK_EX)
    os.ftruncate(f, 0)
    os.close(f)\"";
    tokio::join!(world.run(script), world.run(script));
    world.run("timeout 60 flock us/f true").await;
    world.mount.unmount().await.unwrap();
}

/// How long a program may outlive a signal that ends it, on a busy machine. It is 40 ms on an idle
/// one; what it waits for lasts for ever.
const DEATH: Duration = Duration::from_secs(5);

/// A program that runs until it is told to end.
struct Program(Child);

impl Program {
    fn start(at: &Path, script: &str) -> Program {
        // The shell enters the mount, not the one that starts it: that one may serve the mount.
        let (enter, mut shell) = ("cd \"$0\" && exec python3 -c \"$1\"", Command::new("sh"));
        Program(shell.arg("-c").arg(enter).arg(at).arg(script).spawn().unwrap())
    }

    /// Ends it by `signal`; how long that takes.
    async fn end(mut self, signal: &str) -> Duration {
        let begun = Instant::now();
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        tokio::task::spawn_blocking(move || self.0.wait().unwrap()).await.unwrap();
        begun.elapsed()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill(); // Refused if it has ended.
        // A test that fails drops its mount later, and what waits for that ends only then.
        let _ = self.0.try_wait();
    }
}

/// Waits until so many locks were asked for.
async fn asked_for_locks(cluster: &Cluster, count: usize) {
    let is_lock = |update: &&Update| matches!(update, Update::Lock { .. });
    while cluster.applied().iter().filter(is_lock).count() < count {
        tokio::task::yield_now().await;
    }
}

/// Takes a lock and keeps it. Who starts the tests may have had SIGINT ignored.
const LOCK: &str = "import fcntl, signal; signal.signal(2, signal.default_int_handler); \
     f = open('us/f', 'w'); fcntl.flock(f, 2); signal.pause()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_lock_can_be_killed() {
    let world = mounted().await;
    let holder = Program::start(world.at.path(), LOCK);
    asked_for_locks(&world.cluster, 1).await;
    for (count, signal) in [(2, "-TERM"), (3, "-KILL"), (4, "-INT")] {
        let waiter = Program::start(world.at.path(), LOCK);
        asked_for_locks(&world.cluster, count).await;
        let took = waiter.end(signal).await;
        assert!(took < DEATH, "{signal}: {took:?}");
    }
    assert!(holder.end("-KILL").await < DEATH);
    world.run("flock us/f true").await;
    world.mount.unmount().await.unwrap();
}

/// The clock of the mount is moved on whenever it has nothing to do, so minutes pass at once.
#[tokio::test(start_paused = true)]
async fn a_lock_is_waited_for_as_long_as_it_takes() {
    let world = mounted().await;
    let holder = Program::start(world.at.path(), LOCK);
    asked_for_locks(&world.cluster, 1).await;
    let wait = "import fcntl; f = open('us/f', 'w'); fcntl.flock(f, 2)";
    let mut waiter = Program::start(world.at.path(), wait);
    asked_for_locks(&world.cluster, 2).await;
    let before = world.cluster.applied().len();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let waits = waiter.0.try_wait().unwrap().is_none();
    // What is open and read, and that the mount lives: nothing about the lock.
    let kept = |update: &&Update| {
        use Update::{Hold, NoteReads, Renew};
        matches!(update, Renew { .. } | Hold { .. } | NoteReads { .. })
    };
    assert_eq!(world.cluster.applied()[before..].iter().find(|update| !kept(update)), None);
    holder.end("-KILL").await;
    assert!(waits, "it waits no longer");
    while waiter.0.try_wait().unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(waiter.0.wait().unwrap().success());
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_interrupts_who_waits_for_a_lock() {
    let world = mounted().await;
    let both = LOCK.replace("signal.pause()", "fcntl.lockf(f, 2); signal.pause()");
    let holder = Program::start(world.at.path(), &both);
    asked_for_locks(&world.cluster, 2).await;
    let script = "timeout 60 python3 -c \"import fcntl, signal
f = open('us/f', 'w')
def alarm(number, frame): raise TimeoutError('alarm')
signal.signal(signal.SIGALRM, alarm)
for wait in [lambda: fcntl.flock(f, 2), lambda: fcntl.lockf(f, 2)]:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try: wait()
    except TimeoutError as error: print(error)\"";
    assert_eq!(world.run(script).await, "alarm\nalarm\n");
    holder.end("-KILL").await;
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_region_out_of_reach_can_be_killed() {
    let world = mounted().await;
    world.run("echo text > eu/f").await;
    let nodes = [2, 3];
    nodes.into_iter().for_each(|node| world.cluster.set_down(node, true));
    let begin = "import os; open('us/begun', 'w').close(); ";
    for call in ["open('eu/f').read()", "os.listdir('eu')", "os.mkdir('eu/d')"] {
        let waiter = Program::start(world.at.path(), &format!("{begin}{call}"));
        while !world.at.path().join("us/begun").exists() {
            tokio::task::yield_now().await;
        }
        let took = waiter.end("-KILL").await;
        assert!(took < DEATH, "{call}: {took:?}");
        world.run("rm us/begun").await;
    }
    nodes.into_iter().for_each(|node| world.cluster.set_down(node, false));
    world.mount.unmount().await.unwrap();
}

/// What was written is sent for one of them; the others hear of it later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_open_file_is_told_once_of_what_could_not_be_stored() {
    let world = mounted().await;
    let script = "import errno, os
def says(call, file):
    try: call(file); print('ok')
    except OSError as error: print(errno.errorcode[error.errno])
first, second, third = [os.open('us/f', os.O_RDWR | os.O_CREAT) for _ in range(3)]
os.write(first, b'text')
says(os.fsync, third)
input()
says(os.fsync, first); says(os.fsync, first)
says(os.close, second)
says(os.fsync, os.open('us/f', os.O_RDWR))";
    world.cluster.refuse_writes(Some(FsError::NoSpace));
    let mut program = Command::new("python3");
    program.args(["-uc", script]).current_dir(world.at.path());
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(program.stdout.take().unwrap()).lines();
    assert_eq!(printed.next().unwrap().unwrap(), "ENOSPC");
    world.cluster.refuse_writes(None);
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    let told: Vec<_> = printed.map(Result::unwrap).collect();
    assert!(program.wait().unwrap().success());
    assert_eq!(told, ["ENOSPC", "ok", "ENOSPC", "ok"]);
    assert_eq!(world.run("cat us/f").await, "text");
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_can_be_for_all_users() {
    let world = mounted().await;
    let at = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(at.path(), mode).unwrap();
    let access = Access { allow_other: true, suid: true, noexec: true, ..Access::default() };
    let second = mount_over(world.cluster.client("eu"), at.path(), access);
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let script = format!(
        "mkdir -m 777 us/all; mkdir -m 700 us/mine; {nobody} touch us/all/f; stat -c %u us/all/f; \
         ! {nobody} ls us/mine; cp /bin/true us/all/t; ! us/all/t; \
         grep -c \"$PWD fuse.meridian rw,nodev,noexec,\" /proc/mounts"
    );
    assert_eq!(run(at.path(), &script).await, "65534\n1\n");
    world.run(&format!("! {nobody} ls .; us/all/t")).await;
    let script = "python3 -c \"import errno, os
for name in ('user.u', 'trusted.t', 'bare'):
    try: os.setxattr('us/all', name, b'value')
    except OSError as error: print(name, errno.errorcode[error.errno])
print(sorted(os.listxattr('us/all')))
os.setuid(65534)
print(os.listxattr('us/all'))\"";
    let printed = "bare ENOTSUP\n['trusted.t', 'user.u']\n['user.u']\n";
    assert_eq!(run(at.path(), script).await, printed);
    second.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_file_works_while_it_is_open() {
    let world = mounted().await;
    let script = "exec 3<>us/f; rm us/f; echo text >&3; cat /proc/self/fd/3; \
        stat -Lc '%h %s' /proc/self/fd/3; exec 3>&-; ls us";
    assert_eq!(world.run(script).await, "text\n0 5\n");
    world.mount.unmount().await.unwrap();
}

/// Of a directory that is removed, here or through another mount, while a process is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_directory_is_empty_for_who_is_in_it() {
    let world = mounted().await;
    let (there, other) = world.again("eu");
    let there = there.path().display();
    // The kernel may show for two ticks what it knew.
    let look = "for n in $(seq 500); do test $(stat -c %h .) = 0 && break; done; \
        stat -c '%h %F' .; ls -A | wc -l; \
        (: > new) 2>&1 | grep -o 'No such file or directory'; mkfifo p 2>&1 | tail -c 26";
    for remove in ["rmdir ../d", &format!("rmdir {there}/us/d")] {
        let script = format!("mkdir us/d; cd us/d; {remove}; {look}; cd ..; ls");
        let printed = "0 directory\n0\nNo such file or directory\nNo such file or directory\n";
        assert_eq!(world.run(&script).await, printed);
    }
    let script = format!(
        "mkfifo us/p; exec 3<>us/p; rm {there}/us/p; echo text >&3; head -n1 <&3; \
        for n in $(seq 500); do test $(stat -Lc %h /proc/self/fd/3) = 0 && break; done; \
        stat -Lc '%h %F' /proc/self/fd/3"
    );
    assert_eq!(world.run(&script).await, "text\n0 fifo\n");
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

/// Pages that are written back have their place, and `fcntl` can change how a file is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_opened_for_appending_is_mapped_and_reopened() {
    let world = mounted().await;
    let script = "import fcntl, mmap, os; \
        f = os.open('us/f', os.O_RDWR | os.O_CREAT | os.O_APPEND); os.write(f, b'a' * 10); \
        m = mmap.mmap(f, 10); m[2:4] = b'MM'; m.flush(); m.close(); os.fsync(f); \
        print(open('us/f').read()); \
        fcntl.fcntl(f, fcntl.F_SETFL, 0); os.pwrite(f, b'p', 0); os.fsync(f); \
        print(open('us/f').read()); os.close(f); \
        f = os.open('us/f', os.O_RDWR); fcntl.fcntl(f, fcntl.F_SETFL, os.O_APPEND); \
        os.write(f, b'e'); os.close(f); print(open('us/f').read())";
    let printed = world.run(&format!("python3 -c \"{script}\"")).await;
    assert_eq!(printed, "aaMMaaaaaa\npaMMaaaaaa\npaMMaaaaaae\n");
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_placed_by_its_attribute() {
    let world = mounted().await;
    let set = "import os; os.mkdir('d'); a = 'user.meridian.placement'; \
        print(os.getxattr('d', a)); os.setxattr('d', a, b'eu'); print(os.getxattr('d', a)); \
        open('d/f', 'w').write('x'); print(os.getxattr('d/f', a)); \
        os.setxattr('d/f', 'user.other', b'1'); print(os.listxattr('d/f'))";
    let printed = world.run(&format!("python3 -c \"{set}\"")).await;
    assert_eq!(printed, "b'global'\nb'eu'\nb'eu'\n['user.other']\n");
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_mount_changes_nothing() {
    let cluster = Cluster::start(1, 0).await;
    let at = tempfile::tempdir().unwrap();
    let options = Access { read_only: true, ..Access::default() };
    let mount = mount_over(cluster.client("us"), at.path(), options);
    let printed = run(at.path(), "touch us/f 2>&1 || true").await;
    assert!(printed.contains("Read-only"), "{printed}");
    assert!(cluster.applied().is_empty());
    mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_directory_is_named() {
    let cluster = Cluster::start(1, 0).await;
    let missing = Path::new("/nowhere/at/all");
    let error = mount(cluster.client("us"), missing, Access::default(), SOURCE).unwrap_err();
    assert!(matches!(error, MountError::NoDirectory { .. }), "{error}");
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    assert!(!clear_stale(missing).unwrap());
}
