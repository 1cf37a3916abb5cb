//! Programs that know what must be in their files, through a mount in each region, while nodes are
//! killed and stopped, regions are cut off and go dark, disks are full or lost.
//!
//! Without more words each kind of fault happens once, in a fixed order. `CHAOS_MINUTES` has them
//! happen at random for so long, after `CHAOS_SEED`.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/crowd.rs"]
mod crowd;
#[path = "harness/faults.rs"]
mod faults;
#[path = "harness/fsx.rs"]
mod fsx;
#[allow(dead_code)] // Other tests use the rest of it.
mod harness;
#[path = "harness/lab.rs"]
mod lab;
#[path = "harness/random.rs"]
mod random;
#[path = "harness/shared.rs"]
mod shared;
#[path = "harness/shell.rs"]
mod shell;
#[path = "harness/trees.rs"]
mod trees;
#[path = "harness/weather.rs"]
mod weather;

use crowd::{Crowd, Done};
use faults::{Faults, KINDS, Kind};
use harness::{Room, eventually};
use lab::Lab;
use random::Random;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weather::{Fault, Weather};

/// In the long form a crowd is checked, and another begins, after so many faults.
const FAULTS: usize = 10;

/// A number that the environment gives.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The faults happen while files are used. Then all lose power, the mounts too, and what was
/// acknowledged is there.
fn round(lab: &mut Lab, seed: u64, kinds: impl IntoIterator<Item = Kind>) {
    let weather = Arc::new(Weather::default());
    let crowd = Crowd::start(&lab.mounts(), &weather, seed);
    crowd.go_on(&[]);
    let random = Random::new(seed);
    let mut faults = Faults { lab, weather: Arc::clone(&weather), crowd: &crowd, random };
    kinds.into_iter().for_each(|kind| faults.one(kind));
    lab.tell("all lose power, the mounts too");
    weather.begin(Fault::Gone);
    lab.kill_all();
    let done = crowd.end();
    lab.start_all();
    eventually("all replicas are equal", || lab.all_are_equal());
    crowd::check(&done, &lab.mounts(), trees::SETTLE);
}

/// What the checks say, which must object.
fn objection(done: &Done, mounts: &[PathBuf; 3]) -> String {
    let checked = catch_unwind(AssertUnwindSafe(|| crowd::check(done, mounts, Duration::ZERO)));
    *checked.expect_err("nobody objects").downcast::<String>().unwrap()
}

/// In a file system that has no faults, behind the back of who uses it.
#[test]
fn the_checks_object_to_planted_violations() {
    let _room = Room::new(); // The machine is ours.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let top = dir.path().join("top");
    let mounts = [(); 3].map(|()| top.clone());
    let crowd = Crowd::start(&mounts, &Arc::default(), 7);
    for _ in 0..5 {
        crowd.go_on(&[]);
    }
    let done = crowd.end();
    crowd::check(&done, &mounts, Duration::ZERO);

    let told = done.workers.iter().find(|told| told.path.starts_with("eu")).unwrap();
    let file = top.join(&told.path);
    let whole = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert!(objection(&done, &mounts).contains("is lost"));
    fs::write(&file, [&whole[..], b"x"].concat()).unwrap();
    assert!(objection(&done, &mounts).contains("bytes long, and not one of"));
    fs::write(&file, &whole).unwrap();

    let lines = fs::read_to_string(top.join("work/lines")).unwrap();
    let (first, rest) = lines.split_once('\n').unwrap();
    fs::write(top.join("work/lines"), rest).unwrap();
    assert!(objection(&done, &mounts).contains(" lost ["), "{first}");
    fs::write(top.join("work/lines"), lines).unwrap();

    let raced = fs::read_dir(top.join("us/work/race")).unwrap().next().unwrap().unwrap().path();
    let away = dir.path().join("away");
    fs::rename(&raced, &away).unwrap();
    assert!(objection(&done, &mounts).contains("made, but not there"));
    fs::rename(&away, &raced).unwrap();

    fs::create_dir(top.join("ap/mixed/parcel-9999999")).unwrap();
    assert!(objection(&done, &mounts).contains("not one parcel"));
    fs::remove_dir(top.join("ap/mixed/parcel-9999999")).unwrap();

    let other = dir.path().join("other");
    assert!(Command::new("cp").arg("-a").args([&top, &other]).status().unwrap().success());
    let mounts = [top.clone(), top, other];
    crowd::check(&done, &mounts, Duration::ZERO);
    let changed = mounts[2].join(&told.path);
    fs::set_permissions(&changed, Permissions::from_mode(0o600)).unwrap();
    assert!(objection(&done, &mounts).contains("differ"));
}

#[test]
fn files_last() {
    let mut lab = Lab::new();
    let seed = number("CHAOS_SEED").unwrap_or(2026);
    match number("CHAOS_MINUTES") {
        None => round(&mut lab, seed, KINDS),
        Some(minutes) => {
            let end = Instant::now() + Duration::from_secs(60 * minutes);
            let mut random = Random::new(seed);
            for count in 0.. {
                lab.tell(&format!("crowd {count} of CHAOS_SEED={seed}"));
                let kinds = [(); FAULTS].map(|()| random.pick(&KINDS));
                round(&mut lab, seed + count, kinds);
                crowd::clear(&lab.mounts());
                if Instant::now() > end {
                    break;
                }
            }
        }
    }
    lab.end();
}
