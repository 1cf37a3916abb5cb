//! What programs of several mounts do to the same files: they append lines to one, race to make
//! others, and carry a directory from place to place.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::crowd::Progress;
use crate::fsx::close;
use crate::random::Random;
use crate::weather::View;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often is tried again what nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long who makes files, or lines, rests after each: all of them are read in the end.
const REST: Duration = Duration::from_millis(40);

/// Appends numbered lines to a file that others append to.
pub struct Appender {
    pub view: View,
    pub name: String,
    pub path: PathBuf,
    pub random: Random,
}

/// What an appender did.
#[derive(Debug)]
pub struct Appended {
    pub name: String,
    pub acknowledged: BTreeSet<u64>,
    /// Lines whose `fsync` or `close` failed, or was not reached: there once, or not at all.
    pub unknown: BTreeSet<u64>,
}

impl Appender {
    pub fn run(mut self, progress: &Progress) -> Appended {
        let (acknowledged, unknown) = (BTreeSet::new(), BTreeSet::new());
        let mut told = Appended { name: self.name.clone(), acknowledged, unknown };
        let mut next = 0;
        while !progress.must_stop() {
            progress.begin("append");
            let begun = Instant::now();
            let lines = next..next + 1 + self.random.below(5) as u64;
            next = lines.end;
            match self.append(lines.clone()) {
                Ok(()) => told.acknowledged.extend(lines),
                Err(error) => {
                    let path = self.path.display();
                    assert!(self.view.excuses(&error, begun), "append to {path}: {error}");
                    told.unknown.extend(lines);
                    if self.view.is_gone(&error) {
                        break;
                    }
                }
            }
            std::thread::sleep(REST);
        }
        told
    }

    /// Each line by one `write`; `fsync` or `close` acknowledges them.
    fn append(&mut self, lines: std::ops::Range<u64>) -> io::Result<()> {
        let mut file = File::options().append(true).create(true).open(&self.path)?;
        for number in lines {
            let filler = "x".repeat(1 + self.random.below(2000));
            let line = format!("{} {number} {filler} end of {number}\n", self.name);
            let written = file.write(line.as_bytes())?;
            assert_eq!(written, line.len(), "a write of a line is not torn");
        }
        if self.random.below(2) == 0 { file.sync_all() } else { close(file) }
    }
}

/// Every acknowledged line of all of `tellers` is in the file once, and none is torn or out of
/// order. Returns how many there are.
pub fn check_lines(path: &Path, tellers: &[&Appended]) -> usize {
    let text = fs::read_to_string(path).unwrap();
    let mut found: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in text.split_inclusive('\n') {
        let torn = || -> ! { panic!("{}: a torn line: {line:?}", path.display()) };
        let Some((name, rest)) = line.split_once(' ') else { torn() };
        let Some((number, rest)) = rest.split_once(' ') else { torn() };
        let Some(filler) = rest.strip_suffix(&format!(" end of {number}\n")) else { torn() };
        if filler.is_empty() || filler.bytes().any(|byte| byte != b'x') {
            torn()
        }
        found.entry(name).or_default().push(number.parse().unwrap_or_else(|_| torn()));
    }
    for Appended { name, acknowledged, unknown } in tellers {
        let numbers = found.remove(name.as_str()).unwrap_or_default();
        let unordered = numbers.windows(2).find(|pair| pair[0] >= pair[1]);
        assert_eq!(unordered, None, "{}: lines of {name} twice or out of order", path.display());
        let set: BTreeSet<u64> = numbers.into_iter().collect();
        let lost: Vec<_> = acknowledged.difference(&set).collect();
        assert!(lost.is_empty(), "{}: {name} lost {lost:?}", path.display());
        let strange: Vec<_> = set.iter().filter(|n| !acknowledged.contains(n)).collect();
        assert!(strange.iter().all(|n| unknown.contains(n)), "{name} never wrote {strange:?}");
    }
    assert!(found.is_empty(), "{}: lines of nobody: {:?}", path.display(), found.keys());
    text.lines().count()
}

/// Makes files and directories that others want to make, too.
pub struct Racer {
    pub view: View,
    pub dir: PathBuf,
    /// The number that all racers try at about the same time.
    pub turn: Arc<AtomicU64>,
}

/// The numbers of what a racer made, or a carrier carried, and of which it does not know.
#[derive(Debug, Default)]
pub struct Raced {
    pub won: BTreeSet<u64>,
    pub lost: BTreeSet<u64>,
    pub unknown: BTreeSet<u64>,
}

impl Racer {
    pub fn run(self, progress: &Progress) -> Raced {
        let mut told = Raced::default();
        let mut next = 0;
        while !progress.must_stop() {
            progress.begin("make");
            let (begun, number) = (Instant::now(), self.turn.load(Ordering::SeqCst).max(next));
            let path = self.dir.join(number.to_string());
            let made = match number % 3 {
                0 => fs::create_dir(&path),
                _ => File::create_new(&path).and_then(close),
            };
            match made {
                Ok(()) => told.won.insert(number),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    told.lost.insert(number)
                }
                Err(error) => {
                    assert!(self.view.excuses(&error, begun), "make {}: {error}", path.display());
                    told.unknown.insert(number);
                    if self.view.is_gone(&error) {
                        break;
                    }
                    true
                }
            };
            next = number + 1;
            self.turn.fetch_max(next, Ordering::SeqCst);
            std::thread::sleep(REST);
        }
        told
    }
}

/// No number was won by two.
fn check_won_once(what: &str, all: &[&Raced]) -> BTreeSet<u64> {
    let mut won = BTreeSet::new();
    for raced in all {
        let twice: Vec<_> = won.intersection(&raced.won).collect();
        assert!(twice.is_empty(), "{what}: won by two: {twice:?}");
        won.extend(&raced.won);
    }
    won
}

/// Each file has one maker, and is there. Returns how many there are.
pub fn check_race(dir: &Path, racers: &[&Raced]) -> usize {
    let found: BTreeSet<u64> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().parse().unwrap())
        .collect();
    let won = check_won_once(&dir.display().to_string(), racers);
    let gone: Vec<_> = won.difference(&found).collect();
    assert!(gone.is_empty(), "{}: made, but not there: {gone:?}", dir.display());
    let nobodys = |n: &&u64| !won.contains(n) && racers.iter().all(|r| !r.unknown.contains(n));
    let nobodys: Vec<_> = found.iter().filter(nobodys).collect();
    assert!(nobodys.is_empty(), "{}: made by nobody: {nobodys:?}", dir.display());
    found.len()
}

/// Carries the one parcel, a directory with a file in it, from place to place: each move renames it
/// to the next number, and all carriers want to make it.
pub struct Carrier {
    pub view: View,
    /// The places, in turns.
    pub dirs: Vec<PathBuf>,
    /// How often the parcel has been moved, at least.
    pub turn: Arc<AtomicU64>,
}

/// The file in the parcel, and what is in it.
const INSIDE: [&str; 2] = ["inside", "do not bend"];

/// Makes the parcel, at the first place.
pub fn make_parcel(dirs: &[PathBuf]) {
    let parcel = parcel(dirs, 0);
    fs::create_dir(&parcel).unwrap();
    fs::write(parcel.join(INSIDE[0]), INSIDE[1]).unwrap();
}

fn parcel(dirs: &[PathBuf], number: u64) -> PathBuf {
    let at = usize::try_from(number).unwrap() % dirs.len();
    dirs[at].join(format!("parcel-{number}"))
}

impl Carrier {
    pub fn run(self, progress: &Progress) -> Raced {
        let mut told = Raced::default();
        while !progress.must_stop() {
            progress.begin("carry");
            let (begun, number) = (Instant::now(), self.turn.load(Ordering::SeqCst));
            let [from, to] = [number, number + 1].map(|number| parcel(&self.dirs, number));
            // Linux does not move a directory of which it knows only where it was before (ESTALE).
            let looked = fs::symlink_metadata(&from);
            match looked.and_then(|_| fs::rename(&from, &to)) {
                Ok(()) => {
                    told.won.insert(number);
                    self.turn.fetch_max(number + 1, Ordering::SeqCst);
                    self.look_inside(&to, begun);
                }
                Err(error) if is_elsewhere(&error) => {
                    told.lost.insert(number);
                    // One who does not know that it was moved may have done so.
                    if fs::symlink_metadata(&to).is_ok() {
                        self.turn.fetch_max(number + 1, Ordering::SeqCst);
                    }
                    std::thread::sleep(LOOK_AGAIN);
                }
                Err(error) => {
                    self.check_excused(&from, &error, begun);
                    told.unknown.insert(number);
                    if self.view.is_gone(&error) {
                        break;
                    }
                }
            }
        }
        told
    }

    fn check_excused(&self, path: &Path, error: &io::Error, begun: Instant) {
        assert!(self.view.excuses(error, begun), "{}: {error}", path.display());
    }

    /// What was moved is whole, unless another has moved it on.
    fn look_inside(&self, parcel: &Path, begun: Instant) {
        match fs::read_to_string(parcel.join(INSIDE[0])) {
            Ok(found) => assert_eq!(found, INSIDE[1], "{}", parcel.display()),
            Err(error) if is_elsewhere(&error) => {}
            Err(error) => self.check_excused(parcel, &error, begun),
        }
    }
}

/// Another has moved it meanwhile.
fn is_elsewhere(error: &io::Error) -> bool {
    [io::ErrorKind::NotFound, io::ErrorKind::StaleNetworkFileHandle].contains(&error.kind())
}

/// There is one parcel, and each of its moves was made by one. Returns how many there were.
pub fn check_parcel(dirs: &[PathBuf], carriers: &[&Raced]) -> u64 {
    let mut found = Vec::new();
    for (at, dir) in dirs.iter().enumerate() {
        for entry in fs::read_dir(dir).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            let Some(number) = name.strip_prefix("parcel-") else { continue };
            found.push((number.parse::<u64>().unwrap(), at));
        }
    }
    let [(number, at)] = found[..] else { panic!("not one parcel, but (number, place) {found:?}") };
    assert_eq!(parcel(dirs, number).parent().unwrap(), dirs[at], "parcel {number} is elsewhere");
    let inside = fs::read_to_string(parcel(dirs, number).join(INSIDE[0])).unwrap();
    assert_eq!(inside, INSIDE[1]);
    let won = check_won_once("the parcel", carriers);
    let made = |n: &u64| won.contains(n) || carriers.iter().any(|raced| raced.unknown.contains(n));
    let nobodys: Vec<_> = (0..number).filter(|n| !made(n)).collect();
    assert!(nobodys.is_empty(), "moved by nobody: {nobodys:?}");
    let lost: Vec<_> = won.range(number..).collect();
    assert!(lost.is_empty(), "moved to {number}, and these moves are lost: {lost:?}");
    number
}
