//! What POSIX and Linux have beyond the plain calls, over real mounts.
#![allow(clippy::unwrap_used)]

mod world;

use meridian_fs::Update;
use meridian_mount::{Access, Transport, remount};
use std::time::{Duration, Instant};
use world::{mounted, mounted_for, run};

/// How requests come.
#[allow(dead_code)] // `rings.rs` has another.
pub const TRANSPORT: Transport = Transport::Device;

/// A user who owns nothing.
const NOBODY: &str = "nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"; }; ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_access_rights_decide_and_follow_the_mode() {
    let world = mounted_for(Access { allow_other: true, ..Access::default() }).await;
    let (at, other) = world.again("eu");
    let script = "umask 022; cd us; echo secret > f; chmod 640 f; ! nobody cat f 2>/dev/null; \
        setfacl -m u:65534:rw f; stat -c %a f; nobody cat f; \
        chmod 600 f; ! nobody cat f 2>/dev/null; getfacl -cnE f; ls -l f | cut -c1-11; \
        chmod 660 f; nobody cat f; chmod u+s,g+s f; setfacl -m u:65534:r f; stat -c %a f; \
        nobody cat f";
    let printed = world.run(&format!("{NOBODY}{script}")).await;
    let list = "user::rw-\nuser:65534:rw-\ngroup::r--\nmask::---\nother::---\n\n";
    let expected = format!("660\nsecret\n{list}-rw-------+\nsecret\n6640\nsecret\n");
    assert_eq!(printed, expected);
    let there = run(at.path(), "getfacl -cnE us/f; setfacl -b us/f; stat -c %a us/f").await;
    assert_eq!(there, "user::rw-\nuser:65534:r--\ngroup::r--\nmask::r--\nother::---\n\n6640\n");
    let script = format!("{NOBODY}! nobody cat us/f 2>/dev/null; getfattr -m- us/f; ls -l us/f");
    let printed = world.run(&script).await;
    assert!(printed.starts_with("-rwSr-S--- 1"), "{printed}");
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_hands_its_list_down_in_place_of_the_umask() {
    let world = mounted().await;
    let script = "cd us; umask 027; touch plain; mkdir d; stat -c %a plain d; \
        setfacl -d -m u:65534:rwx,o::--- d; stat -c %a d; umask 077; touch d/f; mkdir d/s; \
        mkfifo -m 640 d/p; ln -s f d/l; stat -c '%n %a' d/*; \
        getfacl -cnE d/f; getfacl -cnE d/s; getfacl -cnE d/p; \
        setfacl -k d; touch d/g; stat -c %a d/g";
    let printed = world.run(script).await;
    let list = |user: &str, rest: &str| format!("user::{user}\nuser:65534:rwx\n{rest}");
    let file = list("rw-", "group::r-x\nmask::rw-\nother::---\n\n");
    let made = list("rwx", "group::r-x\nmask::rwx\nother::---\n");
    let handed = "default:user::rwx\ndefault:user:65534:rwx\ndefault:group::r-x\n\
        default:mask::rwx\ndefault:other::---\n\n";
    let pipe = list("rw-", "group::r-x\nmask::r--\nother::---\n\n");
    let modes = "640\n750\n750\nd/f 660\nd/l 777\nd/p 640\nd/s 770\n";
    assert_eq!(printed, format!("{modes}{file}{made}{handed}{pipe}600\n"));
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capability_is_kept_until_the_program_changes() {
    let world = mounted().await;
    let (at, other) = world.again("eu");
    world.run("cp /bin/true us/p; setcap cap_net_raw+ep us/p").await;
    let get = "getcap us/p";
    assert_eq!(world.run(get).await, "us/p cap_net_raw=ep\n");
    assert_eq!(run(at.path(), get).await, "us/p cap_net_raw=ep\n");
    let changes = ["echo x >> us/p", "truncate -s 10 us/p", "chown 1 us/p", "fallocate -l 99 us/p"];
    for change in changes {
        run(at.path(), change).await;
        assert_eq!(world.run(get).await, "", "{change}");
        world.run("setcap cap_net_raw+ep us/p; test -n \"$(getcap us/p)\"; touch us/p").await;
        assert_eq!(run(at.path(), get).await, "us/p cap_net_raw=ep\n", "after {change}");
    }
    let open = "exec 3<>us/p; test -n \"$(getcap us/p)\"; echo x >&3; getcap us/p; exec 3>&-; \
        setcap cap_net_raw+ep us/p; setcap -r us/p; getcap us/p; \
        python3 -c \"import os; os.setxattr('us/p', 'security.other', b'1')\" 2>&1 | tail -n1";
    assert!(world.run(open).await.contains("not supported"));
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_a_name_is_given_one_or_goes() {
    let world = mounted().await;
    let (at, other) = world.again("eu");
    let script = "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def link(to):
    at = f'/proc/self/fd/{fd}'.encode()
    if libc.linkat(-100, at, -100, to.encode(), 0x400) < 0:
        print(os.strerror(ctypes.get_errno()))
fd = os.open('us', os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(fd, b'some')
print(os.fstat(fd).st_nlink, oct(os.fstat(fd).st_mode), os.listdir('us'))
link('us/named')
print(os.fstat(fd).st_nlink, open('us/named').read())
link('eu/too')
os.write(fd, b' more')
os.close(fd)
fd = os.open('us', os.O_TMPFILE | os.O_EXCL | os.O_RDWR)
link('us/never')
lost = os.open('eu', os.O_TMPFILE | os.O_WRONLY)
os.write(lost, b'x' * 100000)
os.close(lost)
print(sorted(os.listdir('us') + os.listdir('eu')))";
    let printed = world.run(&format!("umask 022; python3 -c \"{script}\"")).await;
    let names = "['named', 'too']";
    let gone = "No such file or directory";
    assert_eq!(printed, format!("0 0o100640 []\n1 some\n{gone}\n{names}\n"));
    let there = "cat us/named; echo; stat -c '%h %a' eu/too; rm us/named; cat eu/too";
    assert_eq!(run(at.path(), there).await, "some more\n2 640\nsome more");
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_leaves_a_whiteout() {
    let world = mounted().await;
    let script = "import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def rename(old, new, flags):
    done = libc.renameat2(-100, old.encode(), -100, new.encode(), flags)
    print('ok' if done == 0 else errno.errorcode[ctypes.get_errno()])
open('us/f', 'w').write('text')
os.mkdir('us/d')
rename('us/f', 'us/g', 4)
rename('us/g', 'eu/h', 4)
rename('us/d', 'us/e', 5)
rename('us/f', 'us/g', 5)
rename('us/f', 'us/e', 6)
for name in ('us/f', 'us/g', 'us/d'):
    found = os.lstat(name)
    print(oct(found.st_mode), found.st_rdev, found.st_nlink)
print(os.stat('us').st_nlink, open('eu/h').read())";
    let printed = world.run(&format!("python3 -c \"{script}\"; rm us/f us/g us/d; ls us")).await;
    let left = "0o20000 0 1\n";
    let expected = format!("ok\nok\nok\nEEXIST\nEINVAL\n{left}{left}{left}3 text\ne\n");
    assert_eq!(printed, expected);
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_has_a_time_of_birth_and_the_root_has_times() {
    let world = mounted().await;
    let script = "stat -c '%W %X %Y %Z' . us eu; before=$(date +%s); echo 1 > us/f; mkdir us/d; \
        mv us/f us/d/g; touch -d '2001-01-01' us/d/g; echo 2 >> us/d/g; \
        born=$(stat -c %W us/d/g); test $born -ge $before -a $born -le $(date +%s); \
        touch here; test $(stat -c %Y .) -ge $before; test $(stat -c %Z .) -ge $before; \
        ls > /dev/null; test $(stat -c %X .) -ge $before; stat -c %W .";
    let printed = world.run(script).await;
    let made = "1700000000 1700000000 1700000000 1700000000\n".repeat(3);
    assert_eq!(printed, format!("{made}1700000000\n"));
    world.mount.unmount().await.unwrap();
}

/// Two seconds of the clock are told apart by setting times, not by waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_is_seen_here_at_once_and_elsewhere_later() {
    let world = mounted().await;
    let (at, other) = world.again("eu");
    let script = "cd us; mkdir d; for f in read day quiet d/f; do echo text > $f; done; \
        touch -d 2001-01-01 read quiet d/f d; \
        touch -m -d 2001-01-01 day; touch -a -d '2 days ago' day; \
        cat read day; ls d; head -c 1 quiet; \
        python3 -c \"import os; os.read(os.open('d/f', os.O_RDONLY | os.O_NOATIME), 9)\"; \
        now=$(date +%Y); for f in read day d quiet; do \
        test $(date -d @$(stat -c %X $f) +%Y) = $now; done; stat -c %x d/f | cut -c1-4; \
        touch -a -d 2002-02-02 quiet; stat -c %x quiet | cut -c1-4; \
        stat -c %X read > first; cat read > /dev/null; stat -c %X read | cmp - first";
    assert_eq!(world.run(script).await, "text\ntext\nf\nt2001\n2002\n");
    let read = world.run("stat -c %x us/read us/day us/d us/quiet").await;
    world.mount.unmount().await.unwrap();
    let late = run(at.path(), "stat -c %x us/read us/day us/d us/quiet").await;
    assert_eq!(late, read, "an unmount tells what was read");
    other.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_without_times_of_reading_notes_none() {
    let world = mounted_for(Access { noatime: true, ..Access::default() }).await;
    let script = "cd us; echo text > f; touch -d 2001-01-01 f; cat f; ls > /dev/null; \
        stat -c %x f | cut -c1-4";
    assert_eq!(world.run(script).await, "text\n2001\n");
    let cluster = world.cluster;
    world.mount.unmount().await.unwrap();
    let is_read = |update: &Update| matches!(update, Update::NoteReads { .. });
    assert!(!cluster.applied().iter().any(is_read));
}

/// FUSE does not tell the daemon, so it looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_of_reading_are_noted_as_it_is_mounted_anew() {
    let world = mounted().await;
    let (files, plain) = (world.mount.files(), Access::default());
    let ways = [
        (Access { noatime: true, ..plain }, false),
        (plain, true),
        (Access { read_only: true, ..plain }, false),
        (plain, true),
    ];
    for (access, notes) in ways {
        let at = world.at.path().to_path_buf();
        tokio::task::spawn_blocking(move || remount(&at, access)).await.unwrap().unwrap();
        let limit = Instant::now() + Duration::from_secs(10);
        while files.notes_reads() != notes {
            assert!(Instant::now() < limit, "{access} does not reach the mount");
            tokio::task::yield_now().await;
        }
    }
    world.mount.unmount().await.unwrap();
}

/// What one writes the other would never see: so the second is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_shared_on_one_mount_at_a_time() {
    let world = mounted().await;
    let (at, other) = world.again("eu");
    let both = "import mmap, sys
def share(at):
    f = open(at, 'r+b')
    try: mmap.mmap(f.fileno(), 4096)[0:4] = b'seen'; return 'mapped'
    except OSError as error: return error.strerror";
    for name in ["x-shm", "lock.mdb"] {
        let there = at.path().join("us").join(name);
        let script = format!(
            "truncate -s 4096 us/{name}; python3 -c \"{both}
first, second = open('us/{name}', 'r+b'), open('us/{name}', 'r+b')
one, two = (mmap.mmap(f.fileno(), 4096) for f in (first, second))
one[0:4] = b'told'
copy = open('{there}')
own = mmap.mmap(copy.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
print(two[0:4], share('{there}'), own[4000])
one.close(); two.close(); first.close(); second.close()
print(share('{there}'))\"; head -c 4 us/{name}; echo",
            there = there.display()
        );
        let expected = "b'told' No such device 0\nmapped\nseen\n";
        assert_eq!(world.run(&script).await, expected, "{name}");
    }
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_with_a_log_is_used_on_one_mount_at_a_time() {
    let world = mounted().await;
    let (at, other) = world.again("eu");
    world.run("sqlite3 us/db 'pragma journal_mode=wal; create table t(n);'").await;
    let script = format!(
        "exec 3> >(sqlite3 us/db > us/said); \
        echo 'insert into t values(1); select count(*) from t;' >&3; \
        until grep -q 1 us/said; do :; done; sqlite3 us/db 'insert into t values(2)'; \
        ! sqlite3 {there} 'insert into t values(3)' 2>&1; exec 3>&-; wait $!; \
        sqlite3 {there} 'insert into t values(4)'; sqlite3 us/db 'select n from t'",
        there = at.path().join("us/db").display()
    );
    let printed = world.run(&script).await;
    assert!(printed.contains("disk I/O error"), "{printed}");
    assert!(printed.ends_with("\n1\n2\n4\n"), "{printed}");
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

/// No request tells of it, so it cannot be refused: decision 61.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_granted_by_the_kernel_and_known_to_one_mount_only() {
    let world = mounted().await;
    let (at, other) = world.again("eu");
    let script = "import fcntl, os, signal
signal.signal(signal.SIGIO, lambda *_: print('broken'))
f = os.open('us/f', os.O_RDWR | os.O_CREAT)
fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(fcntl.fcntl(f, fcntl.F_GETLEASE) == fcntl.F_WRLCK)
os.close(os.open('THERE/us/f', os.O_RDWR))
print(fcntl.fcntl(f, fcntl.F_GETLEASE) == fcntl.F_WRLCK)";
    let script = script.replace("THERE", &at.path().display().to_string());
    assert_eq!(world.run(&format!("python3 -c \"{script}\"")).await, "True\nTrue\n");
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

/// As for its permissions: who may only write to a directory says nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_of_a_directory_says_when_what_is_done_there_is_durable() {
    let world = mounted_for(Access { allow_other: true, ..Access::default() }).await;
    let script = "cd us; N=user.meridian.durability; show() { getfattr --only-values -n $N $1; \
        echo; }; mkdir d; chmod 777 d; show d; ! nobody setfattr -n $N -v sync d 2>/dev/null; \
        ! nobody setfattr -x $N d 2>/dev/null; setfattr -n $N -v fsync d; show d; \
        ! nobody setfattr -x $N d 2>/dev/null; nobody mkdir d/own; show d/own; \
        nobody setfattr -n $N -v sync d/own; touch d/own/f; show d/own/f; stat -c %T d d/own/f; \
        setfattr -x $N d; show d; getfattr -m- d; ! setfattr -n $N -v never d 2>/dev/null; \
        mkfifo d/p; ! setfattr -n $N -v sync d/p 2>/dev/null";
    let printed = world.run(&format!("{NOBODY}{script}")).await;
    assert_eq!(printed, "inherit close\nfsync\nfsync\nsync\n0\n0\ninherit close\n");
    world.mount.unmount().await.unwrap();
}
