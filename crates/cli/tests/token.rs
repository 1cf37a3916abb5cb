//! One token for files and keys: programs in two regions that hand over what they have seen.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/clients.rs"]
#[allow(dead_code)] // Not every test needs all of it.
mod clients;
#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/regions.rs"]
#[allow(dead_code)] // Not every test needs all of it.
mod regions;

use harness::{Ended, Running, eventually, kill};
use meridian_keys::causal::Token;
use meridian_keys::resp::answer::Answered;
use regions::Regions;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// A mount of the demo in that region.
fn mount(regions: &Regions, region: &str, more: &[&str]) -> Running {
    let cluster = regions.room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", region, region];
    let command = regions.room.meridian(&[&args[..], more].concat());
    Running::start_quietly(command, regions.room.path(region))
}

/// What has been seen and written in a mount.
fn token(regions: &Regions, path: &Path) -> String {
    let told = regions.room.run(&["fs", "token", path.to_str().unwrap()]);
    assert!(told.status.success(), "{told:?}");
    told.stdout.trim().to_string()
}

fn after(regions: &Regions, token: &str, path: &Path, more: &[&str]) -> Ended {
    regions.room.run(&[&["fs", "after", token, path.to_str().unwrap()], more].concat())
}

/// Goes on from a token, without a word.
fn take(regions: &Regions, token: &str, path: &Path) {
    let taken = after(regions, token, path, &[]);
    assert!(taken.status.success() && taken.stdout.is_empty(), "{taken:?}");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Programs in `a` write files and a key, programs in `c` find both, and answer with both. What is
/// read before shows what a mount keeps, and the token goes over the keys of a third region.
#[test]
fn who_saw_a_key_finds_the_files_that_led_to_it_and_the_reverse() {
    let regions = Regions::start(2, &["--rtt", "60"]);
    let here = regions.room.mount();
    let (there, only_read) =
        (mount(&regions, "c", &[]), mount(&regions, "b", &["-o", "ro,ask_always"]));
    let (far, third) = (there.mount().to_path_buf(), only_read.mount().to_path_buf());
    let (mut a, mut b, mut c) =
        (regions.session(0, 0), regions.session(1, 1), regions.session(2, 0));
    for round in 0..5 {
        let text = round.to_string();
        for mount in [&far, &third] {
            let known: Vec<_> = fs::read_dir(mount).unwrap().map(|entry| entry.unwrap()).collect();
            assert!(known.iter().all(|entry| entry.metadata().is_ok()));
        }
        // One of them is not even closed.
        let mut open = File::create(here.join("a/result")).unwrap();
        open.write_all(text.as_bytes()).unwrap();
        fs::write(here.join(format!("global-{round}")), &text).unwrap();
        a.take(&token(&regions, &here));
        a.set("causal:ready", &text);

        c.take(&a.token());
        assert_eq!(c.get("causal:ready"), Some(text.clone()));
        let handed = c.token();
        for mount in [&far, &third] {
            take(&regions, &handed, mount);
            assert_eq!(read(&mount.join(format!("global-{round}"))), text);
            assert_eq!(read(&mount.join("a/result")), text);
        }
        drop(open);

        // The reverse: a program in `c` saw the key, and writes files.
        c.set("causal:seen", &text);
        take(&regions, &c.token(), &far);
        fs::write(far.join("c/answer"), &text).unwrap();
        fs::rename(far.join(format!("global-{round}")), far.join("done")).unwrap();
        let answer = token(&regions, &far);
        b.take(&answer);
        assert_eq!(b.get("causal:seen"), Some(text.clone()), "a file led to it");
        take(&regions, &b.token(), &here);
        assert_eq!(read(&here.join("c/answer")), text);
        assert_eq!(read(&here.join("done")), text);
        assert!(!here.join(format!("global-{round}")).exists());
    }
    only_read.stop();
    there.stop();
    regions.stop();
}

#[test]
fn while_a_region_is_stopped_a_mount_says_what_it_lacks() {
    let regions = Regions::start(2, &[]);
    let here = regions.room.mount();
    let there = mount(&regions, "c", &[]);
    let far = there.mount().to_path_buf();
    let mut c = regions.session(2, 1);
    assert_eq!(c.get("causal:ready"), None);
    fs::write(here.join("a/result"), "1").unwrap();
    let mut a = regions.session(0, 0);
    a.take(&token(&regions, &here));
    a.set("causal:ready", "1");
    let handed = a.token();
    let stopped = regions.pids("a");
    stopped.iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
    let begun = Instant::now();
    let late = after(&regions, &handed, &far, &["--wait", "1s"]);
    assert!(!late.status.success() && begun.elapsed() >= Duration::from_secs(1), "{late:?}");
    assert!(late.stderr.starts_with("meridian: TIMEOUT"), "{late:?}");
    assert!(late.stderr.contains("lacks what it saw of a;"), "all else is here: {late:?}");
    // It goes on, and hands on nothing of that.
    fs::write(far.join("c/other"), "2").unwrap();
    let own = Token::read(token(&regions, &far).as_bytes()).unwrap();
    assert_eq!(own.keys, Token::new(0).keys);
    let patient = std::thread::scope(|scope| {
        let patient = scope.spawn(|| after(&regions, &handed, &far, &["--wait", "2m"]));
        eventually("it says that nobody answers", || {
            let late = after(&regions, &handed, &far, &["--wait", "0s"]);
            late.stderr.contains("saw of a (no node answers);")
        });
        stopped.iter().for_each(|pid| kill(*pid, libc::SIGCONT));
        patient.join().unwrap()
    });
    assert!(patient.status.success(), "{patient:?}");
    assert_eq!(read(&far.join("a/result")), "1");
    c.take(&token(&regions, &far));
    assert_eq!(c.get("causal:ready").as_deref(), Some("1"));

    refuses(&regions, &handed, &far, &mut c);
    there.stop();
    regions.stop();
}

/// What is no token is refused by mounts and by keys, in the same words.
fn refuses(regions: &Regions, good: &str, mount: &Path, keys: &mut regions::Session) {
    let cluster = regions.room.cluster()["cluster"].as_u64().unwrap();
    let future = Token { files: [(1, u64::MAX)].into(), ..Token::new(cluster) }.text();
    let elsewhere = Token::new(cluster ^ 1).text();
    let cut = &good[..good.len() - 2];
    let wrong = [
        (cut, "this is no token of a session, or not a whole one"),
        ("m1-00", "this is no token of a session, or not a whole one"),
        (&elsewhere, "this token is of another cluster"),
        (&future, "this token is from the future"),
    ];
    for (token, why) in wrong {
        let told = after(regions, token, mount, &[]);
        assert!(told.stderr.contains(why) && told.status.code() == Some(1), "{told:?}");
        let told = keys.ask(&["MERIDIAN.SESSION", token]);
        assert!(matches!(&told, Answered::Error(told) if told.contains(why)), "{told:?}");
    }
    let unknown = Token { files: [(77, 1)].into(), ..Token::new(cluster) }.text();
    let told = after(regions, &unknown, mount, &[]);
    assert!(told.stderr.contains("of another cluster"), "{told:?}");
    let outside = after(regions, good, Path::new("/proc"), &[]);
    assert!(outside.stderr.contains("not a file or directory in a Meridian mount"), "{outside:?}");
}
