//! Backups of a demo, restored and compared, while programs work and nodes are killed.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Ended, Room, Running, eventually, finish, kill};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

const REGIONS: [&str; 3] = ["us", "eu", "ap"];

fn run(room: &Room, args: &[&str]) -> Ended {
    let ended = room.run(args);
    assert!(ended.status.success(), "{args:?}: {ended:?}");
    ended
}

fn refused(room: &Room, args: &[&str], why: &str) {
    let ended = room.run(args);
    assert!(!ended.status.success() && ended.stderr.contains(why), "{args:?}: {ended:?}");
}

fn sh(script: &str, dir: &Path) -> String {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).current_dir(dir).stdin(Stdio::null());
    let ended = finish(command);
    assert!(ended.status.success(), "{script}: {ended:?}");
    ended.stdout
}

/// Something of all that a tree may hold, below a directory of each region.
fn make_tree(room: &Room, mount: &Path) {
    for region in REGIONS {
        let dir = mount.join(region).join("kept");
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::create_dir_all(dir.join("placed")).unwrap();
        let placed = dir.join("placed");
        run(room, &["fs", "place", placed.to_str().unwrap(), "--region", "eu"]);
        fs::write(placed.join("there"), region).unwrap();
        fs::write(dir.join("small"), "small").unwrap();
        fs::write(dir.join("a/large"), vec![7; 3 << 20]).unwrap();
        fs::write(dir.join("a/b/empty"), "").unwrap();
        let sparse = File::create(dir.join("sparse")).unwrap();
        sparse.write_all_at(b"far", 9 << 20).unwrap();
        sparse.set_len(20 << 20).unwrap();
        fs::hard_link(dir.join("small"), dir.join("a/b/linked")).unwrap();
        symlink("../nowhere", dir.join("a/link")).unwrap();
        let script = "
            mkfifo -m 640 a/fifo
            setfattr -n user.color -v blue small
            setfattr -n trusted.depth -v 3 a
            chown 12:34 a/large && chmod 4751 a/large && chmod 1770 a/b
            touch -d '2001-02-03 04:05:06.789' a/large a
            touch -h -d '2002-02-03 04:05:06' a/link";
        sh(script, &dir);
    }
}

/// What a tree is, but for times of directories: others may have looked at them.
fn described(dir: &Path) -> String {
    let script = "find . -printf '%P %y %m %U:%G %n %l' \\( -type d -printf ' %Ts\\n' -o -printf \
                  ' %s %T@\\n' \\) | sort; getfattr -R -h -d -m - --absolute-names . 2>/dev/null | \
                  grep -v meridian || true; find . -type f | sort | xargs sha256sum";
    sh(script, dir)
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// What cannot be done is said, and changes nothing.
fn refuse_what_cannot_be_done(room: &Room, mount: &Path) {
    refused(room, &["backup", "/", "monday"], "exists");
    refused(room, &["backup", "/us/none", "none"], "no /us/none in the tree");
    refused(room, &["backup", "/us/kept/small", "none"], "not a directory");
    refused(room, &["backup", "us", "none"], "name it from the root");
    refused(room, &["restore", "kept", "/us/kept"], "not empty");
    refused(room, &["restore", "kept", "/us/none/below"], "in which");
    refused(room, &["restore", "data/cluster.json", "/us/new"], "not a backup");
    let mut damaged = fs::read(room.path("kept")).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(room.path("damaged"), damaged).unwrap();
    refused(room, &["restore", "damaged", "/us/new"], "is damaged");
    refused(room, &["backup", "verify", "damaged"], "is damaged");
    assert!(!mount.join("us/new").exists() && !room.path("none").exists());
}

#[test]
fn a_tree_of_all_regions_is_saved_and_restored_beside_and_in_another_cluster() {
    let room = Room::new();
    let demo = room.demo();
    let mount = demo.mount().to_path_buf();
    make_tree(&room, &mount);
    let quota = mount.join("us/kept/limited");
    fs::create_dir(&quota).unwrap();
    run(&room, &["fs", "quota", quota.to_str().unwrap(), "--inodes", "50"]);
    fs::set_permissions(mount.join("eu"), fs::Permissions::from_mode(0o1771)).unwrap();
    sh("sync -f .", &mount);

    let made = run(&room, &["backup", "/", "monday", "--json"]);
    let report: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!((&report["path"], &report["links"]), (&"/".into(), &3.into()), "{report}");
    assert!(report["at"].as_u64().unwrap() > 0 && report["bytes"].as_u64().unwrap() > 9 << 20);
    let whole = run(&room, &["backup", "verify", "monday"]).stdout;
    assert!(whole.contains("is whole"), "{whole}");
    run(&room, &["backup", "/us/kept", "kept"]);

    refuse_what_cannot_be_done(&room, &mount);

    // Into a new directory, elsewhere.
    run(&room, &["restore", "kept", "/ap/back"]);
    let (kept, back) = (mount.join("us/kept"), mount.join("ap/back"));
    assert_eq!(described(&kept), described(&back));
    assert_eq!(inode(&back.join("small")), inode(&back.join("a/b/linked")));
    let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
    assert_eq!(blocks(&kept.join("sparse")), blocks(&back.join("sparse")), "holes stay holes");
    let placement = |path: &Path| {
        let shown = run(&room, &["fs", "where", path.to_str().unwrap(), "--json"]).stdout;
        serde_json::from_str::<Value>(&shown).unwrap()["placement"].clone()
    };
    assert_eq!((placement(&back), placement(&back.join("placed"))), ("us".into(), "eu".into()));
    let shown = run(&room, &["fs", "quota", back.join("limited").to_str().unwrap()]).stdout;
    assert!(shown.contains("/50"), "{shown}");
    // Into one that is there and empty.
    fs::create_dir(mount.join("eu/empty")).unwrap();
    run(&room, &["restore", "kept", "/eu/empty"]);
    assert_eq!(described(&kept), described(&mount.join("eu/empty")));
    fs::remove_dir_all(mount.join("eu/empty")).unwrap();
    let before = described(&kept);
    demo.stop();

    // All of it, into another cluster.
    fs::rename(room.path("data"), room.path("old")).unwrap();
    let demo = room.demo();
    run(&room, &["restore", "monday", "/"]);
    for region in REGIONS {
        let kept = mount.join(region).join("kept");
        assert!(kept.join("a/large").exists(), "{region}");
    }
    assert_eq!(described(&mount.join("us/kept")), before);
    assert_eq!(fs::metadata(mount.join("eu")).unwrap().permissions().mode() & 0o7777, 0o1771);
    assert!(!mount.join(".restored").exists());
    refused(&room, &["restore", "monday", "/"], "not empty");
    demo.stop();
    room.assert_clean();
}

/// Each moves its own files from region to region, and writes a line to a file of each region, one
/// after the other, until that is over.
fn work(mount: &Path, worker: usize, is_over: &AtomicBool) -> usize {
    let name = |region: &str, what: &str| mount.join(region).join(format!("{what}-{worker}"));
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        let (from, to) = (REGIONS[round % 3], REGIONS[(round + 1) % 3]);
        fs::rename(name(from, "token"), name(to, "token")).unwrap();
        round += 1;
        for region in REGIONS {
            let file = name(region, "round");
            fs::write(&file, format!("{round:08}")).unwrap();
            File::open(&file).unwrap().sync_all().unwrap();
        }
        fs::write(name("us", "large"), vec![round as u8; 300 << 10]).unwrap();
    }
    round
}

/// What a restored tree says of a worker: it is somewhere in its order.
fn check_work(back: &Path, worker: usize) {
    let name = |region: &str, what: &str| back.join(region).join(format!("{what}-{worker}"));
    let at: Vec<_> = REGIONS.iter().filter(|region| name(region, "token").exists()).collect();
    assert_eq!(at.len(), 1, "the token of {worker} is in {at:?}");
    let rounds: Vec<String> =
        REGIONS.map(|region| fs::read_to_string(name(region, "round")).unwrap()).into();
    // Each is written to us, then to eu, then to ap. A file that is just written over is empty.
    let known: Vec<u64> = rounds.iter().filter_map(|round| round.parse().ok()).collect();
    assert!(known.len() >= 2, "{rounds:?}");
    assert!(known.is_sorted_by(|first, then| first >= then), "{rounds:?}: a later one came first");
    assert!(known[0] - known[known.len() - 1] <= 1, "{rounds:?}: one was left out");
    let large = fs::read(name("us", "large")).unwrap();
    assert!(large.windows(2).all(|pair| pair[0] == pair[1]), "{} bytes of two rounds", large.len());
}

fn begin_work(mount: &Path) {
    for worker in 0..3 {
        fs::write(mount.join(format!("us/token-{worker}")), "x").unwrap();
        for region in REGIONS {
            fs::write(mount.join(region).join(format!("round-{worker}")), "00000000").unwrap();
        }
        fs::write(mount.join(format!("us/large-{worker}")), vec![0; 300 << 10]).unwrap();
    }
    // Enough that a backup takes a while.
    for number in 0..20 {
        fs::write(mount.join(format!("us/filling-{number}")), vec![number; 2 << 20]).unwrap();
    }
    sh("sync -f .", mount);
}

fn backup_amid_work(room: &Room, demo: &Running, meanwhile: impl FnOnce()) -> Ended {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let working: Vec<_> = (0..3)
            .map(|worker| {
                let is_over = &is_over;
                scope.spawn(move || work(demo.mount(), worker, is_over))
            })
            .collect();
        let saving = scope.spawn(|| {
            let ended = room.run(&["backup", "/", "amid"]);
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        meanwhile();
        let ended = saving.join().unwrap();
        let rounds: usize = working.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(rounds > 0, "nobody worked meanwhile");
        ended
    })
}

#[test]
fn a_backup_amid_work_is_one_moment_though_a_node_is_killed() {
    let room = Room::new();
    let demo = room.demo();
    begin_work(demo.mount());
    let node = room.pid_of("us-1");
    // The first node of the first region is the one that is asked.
    let part = room.path(".amid.part");
    let saved = backup_amid_work(&room, &demo, || {
        let begun = || fs::metadata(&part).is_ok_and(|file| file.len() > 0);
        eventually("something is saved", || begun() || room.path("amid").exists());
        kill(node, libc::SIGKILL);
    });
    assert!(saved.status.success(), "{saved:?}");
    run(&room, &["restore", "amid", "/eu/back"]);
    let back = demo.mount().join("eu/back");
    (0..3).for_each(|worker| check_work(&back, worker));
    for number in 0..20 {
        let filling = fs::read(back.join(format!("us/filling-{number}"))).unwrap();
        assert!(filling.len() == 2 << 20 && filling.iter().all(|byte| *byte == number));
    }
    demo.stop();
    room.assert_clean();
}

#[test]
fn a_backup_and_a_restore_that_are_killed_are_begun_anew() {
    let room = Room::new();
    let demo = room.demo();
    begin_work(demo.mount());
    let part = room.path(".killed.part");
    let mut command = room.meridian(&["backup", "/", "killed"]);
    let mut saving = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually("it is begun", || part.exists() || saving.try_wait().unwrap().is_some());
    let killed = saving.kill().is_ok() && !saving.wait().unwrap().success();
    if killed {
        assert!(!room.path("killed").exists(), "half of a backup has its name");
        run(&room, &["backup", "/", "killed"]);
    }
    run(&room, &["backup", "verify", "killed"]);

    let staged = demo.mount().join(".back.restored");
    let mut command = room.meridian(&["restore", "killed", "/back"]);
    let mut restoring = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let ended = |of: &mut std::process::Child| of.try_wait().unwrap().is_some();
    eventually("something is restored", || {
        staged.join("us/filling-0").exists() || ended(&mut restoring)
    });
    if restoring.kill().is_ok() && !restoring.wait().unwrap().success() {
        assert!(!demo.mount().join("back").exists(), "half of it has its name");
        refused(&room, &["restore", "killed", "/back"], "did not end");
        run(&room, &["restore", "killed", "/back", "--again"]);
    }
    assert_eq!(described(&demo.mount().join("us")), described(&demo.mount().join("back/us")));
    assert!(!staged.exists());
    demo.stop();
    room.assert_clean();
}
