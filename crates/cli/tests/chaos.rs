//! Programs that know what must be in their files, through two mounts, while nodes are killed,
//! stopped and started again.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/faults.rs"]
mod faults;
#[path = "harness/fsx.rs"]
mod fsx;
#[allow(dead_code)] // Other tests use the rest of it.
mod harness;
#[path = "harness/shared.rs"]
mod shared;

use faults::{Faults, all_are_equal};
use fsx::{Random, Told, Worker};
use harness::{Room, Running, eventually};
use shared::{Appended, Appender, Raced, Racer};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where files are: in two regions, and in the global part.
const PLACES: [&str; 3] = ["us/work", "eu/work", "work"];
/// Places of which one file is appended to, and names are raced for, by both mounts.
const SHARED: [&str; 2] = ["us/work", "work"];

/// Two mounts, in two regions.
struct Mounts {
    us: Running,
    eu: Running,
}

impl Mounts {
    fn new(room: &Room) -> Mounts {
        let us = room.demo();
        let cluster = room.path("data/cluster.json");
        let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "eu", "eu"];
        let eu = Running::start(room.meridian(&args), room.path("eu"));
        Mounts { us, eu }
    }

    /// The mount of this number, and the other one.
    fn pair(&self, number: usize) -> (&Path, &Path) {
        let (us, eu) = (self.us.mount(), self.eu.mount());
        if number.is_multiple_of(2) { (us, eu) } else { (eu, us) }
    }
}

/// Threads that use files until they are told to stop.
struct Crowd {
    stop: Arc<AtomicBool>,
    /// What each has done so far, in the order of `all`.
    progress: Vec<Arc<AtomicU64>>,
    workers: Vec<JoinHandle<Told>>,
    appenders: Vec<JoinHandle<Appended>>,
    racers: Vec<JoinHandle<Raced>>,
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What a crowd did.
struct Done {
    workers: Vec<Told>,
    /// By shared place, one of each mount.
    appended: Vec<[Appended; 2]>,
    raced: Vec<[Raced; 2]>,
}

impl Crowd {
    fn start(mounts: &Mounts, seed: u64) -> Crowd {
        for place in PLACES {
            fs::create_dir_all(mounts.us.mount().join(place).join("race")).unwrap();
            eventually("the other mount sees a directory", || {
                mounts.eu.mount().join(place).join("race").is_dir()
            });
        }
        let (workers, appenders, racers) = (Vec::new(), Vec::new(), Vec::new());
        let (stop, progress) = (Arc::new(AtomicBool::new(false)), Vec::new());
        let mut crowd = Crowd { stop, progress, workers, appenders, racers };
        for number in 0..2 * PLACES.len() {
            let (here, there) = mounts.pair(number);
            let seed = seed * 100 + number as u64;
            let worker = Worker::new(seed, here, there, PLACES[number / 2], &PLACES);
            let worker = crowd.spawn(move |stop, progress| worker.run(stop, progress));
            crowd.workers.push(worker);
        }
        for place in SHARED {
            let turn = Arc::new(AtomicU64::new(0));
            for number in 0..2 {
                let dir = mounts.pair(number).0.join(place);
                let (name, random) = (format!("mount-{number}"), Random::new(seed + number as u64));
                let appender = Appender { name, path: dir.join("lines"), random };
                let appender = crowd.spawn(move |stop, progress| appender.run(stop, progress));
                crowd.appenders.push(appender);
                let (racer, turn) = (Racer { dir: dir.join("race") }, Arc::clone(&turn));
                let racer = crowd.spawn(move |stop, progress| racer.run(stop, &turn, progress));
                crowd.racers.push(racer);
            }
        }
        crowd
    }

    fn spawn<T: Send + 'static>(
        &mut self,
        run: impl FnOnce(&AtomicBool, &AtomicU64) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let (stop, progress) = (Arc::clone(&self.stop), Arc::new(AtomicU64::new(0)));
        self.progress.push(Arc::clone(&progress));
        std::thread::spawn(move || run(&stop, &progress))
    }

    /// Waits until each of them has done something more; returns how long that took.
    fn go_on(&self) -> Duration {
        let (begun, counts) =
            (Instant::now(), || self.progress.iter().map(|p| p.load(Ordering::Relaxed)));
        let before: Vec<u64> = counts().collect();
        eventually("all go on", || {
            assert!(!self.one_has_ended(), "one has ended before it was told to: see above");
            // One operation may have been under way before; the second has begun since.
            counts().zip(&before).all(|(now, before)| now >= before + 2)
        });
        begun.elapsed()
    }

    fn one_has_ended(&self) -> bool {
        self.workers.iter().any(JoinHandle::is_finished)
            || self.appenders.iter().any(JoinHandle::is_finished)
            || self.racers.iter().any(JoinHandle::is_finished)
    }

    fn end(mut self) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        Done {
            workers: join(&mut self.workers),
            appended: pairs(join(&mut self.appenders)),
            raced: pairs(join(&mut self.racers)),
        }
    }
}

/// What each has returned, or the first panic.
fn join<T>(threads: &mut Vec<JoinHandle<T>>) -> Vec<T> {
    eventually("all end", || threads.iter().all(JoinHandle::is_finished));
    let ended = threads.drain(..).map(|thread| thread.join());
    ended.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

fn pairs<T>(all: Vec<T>) -> Vec<[T; 2]> {
    let mut all = all.into_iter();
    std::iter::from_fn(|| Some([all.next()?, all.next()?])).collect()
}

/// All is as its users know it, in both mounts, and they did something. Prints what.
fn check(done: &Done, mounts: &Mounts) {
    for mount in [mounts.us.mount(), mounts.eu.mount()] {
        for told in &done.workers {
            let path = mount.join(&told.path);
            match fs::read(&path) {
                Ok(found) => {
                    let objection = told.model.objection(&found);
                    assert_eq!(objection, None, "{}", path.display());
                }
                // Unlinked, and not yet made again.
                Err(error) => {
                    let none = error.kind() == std::io::ErrorKind::NotFound;
                    assert!(none && told.model.may_be_gone(), "{}: {error}", path.display());
                }
            }
        }
        for ((place, appended), raced) in SHARED.iter().zip(&done.appended).zip(&done.raced) {
            let lines = shared::check_lines(&mount.join(place).join("lines"), &appended.each_ref());
            let files = shared::check_race(&mount.join(place).join("race"), raced.each_ref());
            eprintln!("{}: {lines} lines, {files} files raced for", mount.join(place).display());
            let each = |count: usize| assert!(count > 0, "{place}: {appended:?} {raced:?}");
            appended.iter().for_each(|told| each(told.acknowledged.len()));
            raced.iter().for_each(|told| each(told.won.len() + told.lost.len()));
            assert!(lines > 0 && files > 0);
        }
    }
    for told in &done.workers {
        eprintln!("{told}");
        assert!(told.operations > 0 && told.compared > 0, "{told}");
    }
    let there: u64 = done.workers.iter().map(|told| told.compared_there).sum();
    assert!(there > 0, "nothing was compared through the other mount");
}

/// At most one node of each region is down at a time: nothing may be wrong, and all goes on. Then
/// all lose power, the mounts do not, and programs that wait for an answer get it.
#[test]
fn files_are_right_while_nodes_are_killed_stopped_and_started() {
    let room = Room::new();
    let mounts = Mounts::new(&room);
    let (mut faults, mut random) = (Faults::new(&room), Random::new(2026));
    let crowd = Crowd::start(&mounts, 1);
    crowd.go_on();
    let mut longest = Duration::ZERO;
    for _ in 0..6 {
        faults.round(&room, &mut random, || longest = longest.max(crowd.go_on()));
    }
    faults.kill_all(&room);
    faults.start_all(&room);
    crowd.go_on();
    let done = crowd.end();
    check(&done, &mounts);
    eventually("all replicas are equal", || all_are_equal(&room));
    let (killed, stopped) = (faults.killed, faults.stopped);
    eprintln!("{killed} killed, {stopped} stopped; with nodes down all went on within {longest:?}");
    assert!(killed > 0 && stopped > 0 && faults.blackouts > 0);
    mounts.eu.stop();
    mounts.us.stop();
    faults.end();
    room.assert_clean();
}

/// All nodes and both mounts are killed while files are used, more than once: what `fsync` or
/// `close` acknowledged is there, and what was not is as it was at some time.
#[test]
fn what_was_acknowledged_is_there_after_a_loss_of_power_in_the_midst_of_it() {
    let room = Room::new();
    let mut mounts = Mounts::new(&room);
    let mut faults = Faults::new(&room);
    for round in 0..3 {
        let crowd = Crowd::start(&mounts, 10 + round);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            crowd.go_on();
        }
        faults.kill_all(&room);
        mounts.us.kill();
        mounts.eu.kill();
        let done = crowd.end();
        mounts = Mounts::new(&room);
        check(&done, &mounts);
        eventually("all replicas are equal", || all_are_equal(&room));
        clear(&mounts);
    }
    mounts.eu.stop();
    mounts.us.stop();
    faults.end();
    room.assert_clean();
}

/// Makes room for another crowd.
fn clear(mounts: &Mounts) {
    for place in PLACES {
        fs::remove_dir_all(mounts.us.mount().join(place)).unwrap();
        eventually("the other mount sees that a directory is gone", || {
            !mounts.eu.mount().join(place).exists()
        });
    }
}
