//! Programs that use the same files through three mounts, and know what must be in them.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::fsx::{Told, Worker};
use crate::harness::{eventually, eventually_within};
use crate::lab::REGIONS;
use crate::random::Random;
use crate::shared::{self, Appended, Appender, Carrier, Raced, Racer};
use crate::trees;
use crate::weather::{Fault, GLOBAL, View, Weather};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where files are: in each region, and in the global part.
const PLACES: [&str; 4] = ["us/work", "eu/work", "ap/work", "work"];
/// Directories between which files are moved. Updates of one wait for each other: while a region is
/// cut off, those of others may not go on.
const MIXED: [&str; 4] = ["us/mixed", "eu/mixed", "ap/mixed", "mixed"];
/// Places of which one file is appended to, and names are raced for, by all mounts.
const SHARED: [&str; 2] = ["us/work", "work"];
/// The place that one program uses through the mount of a region, and that it looks at through
/// another.
const USED: [(&str, &str, &str); 6] = [
    ("us", "eu", "us/work"),
    ("eu", "eu", "eu/work"),
    ("ap", "ap", "ap/work"),
    ("ap", "us", "us/work"),
    ("us", "ap", "work"),
    ("eu", "us", "work"),
];
/// No call may take longer, whatever happens: the longest that a mount waits for a cut, three
/// times over, on a machine that may be busy.
const CALL_MAX: Duration = Duration::from_secs(90);
/// What those do that rest.
const RESTS: &str = "rest";
/// How long all may take to go on.
const GO_ON_MAX: Duration = Duration::from_secs(100);

/// How far a program is.
pub struct Progress {
    stop: Arc<AtomicBool>,
    /// Who moves files between placements rests.
    hold: Arc<AtomicBool>,
    name: String,
    view: View,
    /// Calls that it has begun.
    count: AtomicU64,
    doing: Mutex<(&'static str, Instant)>,
    /// The longest that it has taken for one.
    longest: Mutex<(&'static str, Duration)>,
    thread: AtomicI32,
}

impl Progress {
    /// Whether it must stop. Returns when it need not rest.
    pub fn must_stop(&self) -> bool {
        let must = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
        let rests = || self.view.needs.len() > 1 && must(&self.hold) && !must(&self.stop);
        if rests() {
            self.begin(RESTS);
            while rests() {
                std::thread::sleep(Duration::from_millis(20));
            }
            *self.doing.lock().unwrap() = (RESTS, Instant::now());
        }
        must(&self.stop)
    }

    fn rests(&self) -> bool {
        self.view.needs.len() == 1 || self.doing.lock().unwrap().0 == RESTS
    }

    /// The call before has ended.
    pub fn begin(&self, what: &'static str) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        let (before, since) =
            std::mem::replace(&mut *self.doing.lock().unwrap(), (what, Instant::now()));
        let mut longest = self.longest.lock().unwrap();
        if since.elapsed() > longest.1 {
            *longest = (before, since.elapsed());
        }
        drop(longest);
        assert!(since.elapsed() <= CALL_MAX, "{}: {before} took {:?}", self.name, since.elapsed());
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// What it does, and where in the kernel it waits.
    fn describe(&self) -> String {
        let (what, since) = *self.doing.lock().unwrap();
        let thread = self.thread.load(Ordering::Relaxed);
        let stack = fs::read_to_string(format!("/proc/self/task/{thread}/stack"));
        let stack = stack.unwrap_or_default().replace('\n', ";");
        format!("{}: {what} for {:?} in {stack}", self.name, since.elapsed())
    }
}

/// Threads that use files until they are told to stop.
pub struct Crowd {
    stop: Arc<AtomicBool>,
    hold: Arc<AtomicBool>,
    weather: Arc<Weather>,
    progress: Vec<Arc<Progress>>,
    workers: Vec<JoinHandle<Told>>,
    /// By shared place.
    appenders: [Vec<JoinHandle<Appended>>; 2],
    racers: [Vec<JoinHandle<Raced>>; 2],
    carriers: Vec<JoinHandle<Raced>>,
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What a crowd did.
pub struct Done {
    pub workers: Vec<Told>,
    appended: [Vec<Appended>; 2],
    raced: [Vec<Raced>; 2],
    carried: Vec<Raced>,
}

/// The partition that a place is in.
fn partition(place: &str) -> &'static str {
    let named = |region: &&str| place.split('/').next() == Some(region);
    REGIONS.into_iter().find(named).unwrap_or(GLOBAL)
}

impl Crowd {
    /// Uses the mounts of all regions.
    pub fn start(mounts: &[PathBuf; 3], weather: &Arc<Weather>, seed: u64) -> Crowd {
        let mut crowd = Crowd {
            stop: Arc::new(AtomicBool::new(false)),
            hold: Arc::new(AtomicBool::new(false)),
            weather: Arc::clone(weather),
            progress: Vec::new(),
            workers: Vec::new(),
            appenders: [Vec::new(), Vec::new()],
            racers: [Vec::new(), Vec::new()],
            carriers: Vec::new(),
        };
        for place in PLACES.iter().chain(&MIXED) {
            fs::create_dir_all(mounts[0].join(place).join("race")).unwrap();
        }
        shared::make_parcel(&MIXED.map(|place| mounts[0].join(place)));
        for mount in mounts {
            eventually("the other mounts see the directories", || {
                let mut places = PLACES.iter().chain(&MIXED);
                places.all(|place| mount.join(place).join("race").is_dir())
                    && mount.join(MIXED[0]).join("parcel-0").is_dir()
            });
        }
        crowd.start_workers(mounts, seed);
        crowd.start_shared(mounts, seed);
        crowd
    }

    fn start_workers(&mut self, mounts: &[PathBuf; 3], seed: u64) {
        let at = |region| &mounts[REGIONS.iter().position(|name| *name == region).unwrap()];
        let own = USED.map(|(here, there, place)| (here, there, place, vec![place]));
        // Of these the files come from anywhere.
        let any = [("eu", "us", MIXED[0]), ("ap", "us", MIXED[2]), ("us", "eu", MIXED[3])]
            .map(|(here, there, place)| (here, there, place, MIXED.to_vec()));
        for (number, (here, there, place, makers)) in own.into_iter().chain(any).enumerate() {
            let seed = seed * 100 + number as u64;
            let paths = [at(here).as_path(), at(there).as_path()];
            let view = self.view(&[here, there], &makers);
            let worker = Worker::new(seed, view.clone(), paths, place, &makers);
            let name = format!("file-{seed} of {place} through {here}");
            let worker = self.spawn(name, view, move |progress| worker.run(progress));
            self.workers.push(worker);
        }
    }

    fn start_shared(&mut self, mounts: &[PathBuf; 3], seed: u64) {
        for (kind, place) in SHARED.into_iter().enumerate() {
            let turn = Arc::new(AtomicU64::new(0));
            for (region, mount) in REGIONS.into_iter().zip(mounts) {
                let (dir, view) = (mount.join(place), self.view(&[region], &[place]));
                let (name, random) = (format!("mount-{region}"), Random::new(seed));
                let path = dir.join("lines");
                let appender = Appender { view: view.clone(), name, path, random };
                let name = format!("appender in {place} through {region}");
                let handle = self.spawn(name, view.clone(), move |p| appender.run(p));
                self.appenders[kind].push(handle);
                let (dir, turn) = (dir.join("race"), Arc::clone(&turn));
                let racer = Racer { view: view.clone(), dir, turn };
                let name = format!("racer in {place} through {region}");
                let handle = self.spawn(name, view, move |progress| racer.run(progress));
                self.racers[kind].push(handle);
            }
        }
        let turn = Arc::new(AtomicU64::new(0));
        for (region, mount) in REGIONS.into_iter().zip(mounts) {
            let (view, turn) = (self.view(&[region], &MIXED), Arc::clone(&turn));
            let dirs = MIXED.map(|place| mount.join(place)).to_vec();
            let carrier = Carrier { view: view.clone(), dirs, turn };
            let name = format!("carrier through {region}");
            let handle = self.spawn(name, view, move |progress| carrier.run(progress));
            self.carriers.push(handle);
        }
    }

    fn view(&self, regions: &[&'static str], places: &[&str]) -> View {
        let (weather, regions) = (Arc::clone(&self.weather), regions.to_vec());
        View { weather, regions, needs: places.iter().map(|place| partition(place)).collect() }
    }

    fn spawn<T: Send + 'static>(
        &mut self,
        name: String,
        view: View,
        run: impl FnOnce(&Progress) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let doing = ("nothing", Instant::now());
        let progress = Arc::new(Progress {
            stop: Arc::clone(&self.stop),
            hold: Arc::clone(&self.hold),
            name: name.clone(),
            view,
            count: AtomicU64::new(0),
            doing: Mutex::new(doing),
            longest: Mutex::new(("nothing", Duration::ZERO)),
            thread: AtomicI32::new(0),
        });
        self.progress.push(Arc::clone(&progress));
        std::thread::Builder::new().name(name).spawn(move || run(&progress)).unwrap()
    }

    /// Has those rest that move files between placements, and waits until they do; or not any more.
    pub fn hold(&self, hold: bool) {
        self.hold.store(hold, Ordering::SeqCst);
        let rest = || !hold || self.progress.iter().all(|progress| progress.rests());
        eventually_within(CALL_MAX, "who moves files rests", rest);
    }

    /// Waits until each of them that these faults do not hold up has done something more; returns
    /// how long that took.
    pub fn go_on(&self, faults: &[Fault]) -> Duration {
        let begun = Instant::now();
        let free = |p: &&Arc<Progress>| !faults.iter().any(|fault| p.view.is_held_up_by(*fault));
        let before: Vec<_> = self.progress.iter().filter(free).map(|p| (p, p.count())).collect();
        let limit = begun + GO_ON_MAX;
        loop {
            assert!(!self.one_has_ended(), "one has ended before it was told to: see above");
            // One call may have been under way before; the second has begun since.
            let late = before.iter().filter(|(p, before)| p.count() < before + 2);
            let late: Vec<_> = late.map(|(p, _)| p).collect();
            if late.is_empty() {
                return begun.elapsed();
            }
            if Instant::now() > limit {
                let late: Vec<_> = late.iter().map(|p| p.describe()).collect();
                panic!("not within {GO_ON_MAX:?}: all go on\n{}", late.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn one_has_ended(&self) -> bool {
        let raced = self.racers.iter().flatten().chain(&self.carriers);
        self.workers.iter().any(JoinHandle::is_finished)
            || self.appenders.iter().flatten().any(JoinHandle::is_finished)
            || raced.into_iter().any(JoinHandle::is_finished)
    }

    /// Tells them to stop, and waits until they have.
    pub fn end(mut self) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        let done = Done {
            workers: join(&mut self.workers),
            appended: self.appenders.each_mut().map(join),
            raced: self.racers.each_mut().map(join),
            carried: join(&mut self.carriers),
        };
        let slowest = self.progress.iter().max_by_key(|p| p.longest.lock().unwrap().1).unwrap();
        let (what, longest) = *slowest.longest.lock().unwrap();
        eprintln!("the longest call took {longest:?}: {what}, {}", slowest.name);
        done
    }
}

/// What each has returned, or the first panic.
fn join<T>(threads: &mut Vec<JoinHandle<T>>) -> Vec<T> {
    eventually_within(CALL_MAX, "all end", || threads.iter().all(JoinHandle::is_finished));
    let ended = threads.drain(..).map(|thread| thread.join());
    ended.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

/// All is as its users know it, in all mounts, and they did something. Prints what.
pub fn check(done: &Done, mounts: &[PathBuf; 3], settle: Duration) {
    trees::check_equal(mounts, settle);
    for mount in mounts {
        done.workers.iter().for_each(|told| told.check(mount));
        for (kind, place) in SHARED.iter().enumerate() {
            let (appended, raced) = (&done.appended[kind], &done.raced[kind]);
            let tellers: Vec<_> = appended.iter().collect();
            let lines = shared::check_lines(&mount.join(place).join("lines"), &tellers);
            let racers: Vec<_> = raced.iter().collect();
            let files = shared::check_race(&mount.join(place).join("race"), &racers);
            eprintln!("{}: {lines} lines, {files} files raced for", mount.join(place).display());
            let each = |count: usize| assert!(count > 0, "{place}: {appended:?} {raced:?}");
            appended.iter().for_each(|told| each(told.acknowledged.len()));
            raced.iter().for_each(|told| each(told.won.len() + told.lost.len()));
            assert!(lines > 0 && files > 0);
        }
        let carried: Vec<_> = done.carried.iter().collect();
        let dirs = MIXED.map(|place| mount.join(place));
        let moves = shared::check_parcel(&dirs, &carried);
        let each: Vec<_> = carried.iter().map(|carrier| carrier.won.len()).collect();
        eprintln!("{}: the parcel was moved {moves} times, by each {each:?}", mount.display());
        assert!(moves > 0);
    }
    for told in &done.workers {
        eprintln!("{told}");
        assert!(told.operations > 0 && told.compared > 0, "{told}");
    }
    let there: u64 = done.workers.iter().map(|told| told.compared_there).sum();
    assert!(there > 0, "nothing was compared through the other mount");
}

/// Makes room for another crowd.
pub fn clear(mounts: &[PathBuf; 3]) {
    let places = || PLACES.iter().chain(&MIXED);
    for place in places() {
        fs::remove_dir_all(mounts[0].join(place)).unwrap();
    }
    for mount in mounts {
        eventually("the other mounts see that the directories are gone", || {
            places().all(|place| !mount.join(place).exists())
        });
    }
}
