//! What programs of several mounts do to the same files: they append lines to one, and race to make
//! another.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::fsx::{Random, close, excused, gone};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Appends numbered lines to a file that others append to.
pub struct Appender {
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
    pub fn run(mut self, stop: &AtomicBool, progress: &AtomicU64) -> Appended {
        let (acknowledged, unknown) = (BTreeSet::new(), BTreeSet::new());
        let mut told = Appended { name: self.name.clone(), acknowledged, unknown };
        let mut next = 0;
        while !stop.load(Ordering::Relaxed) {
            let lines = next..next + 1 + self.random.below(5) as u64;
            next = lines.end;
            match self.append(lines.clone()) {
                Ok(()) => told.acknowledged.extend(lines),
                Err(error) => {
                    assert!(excused(&error) || gone(&error), "{}: {error}", self.path.display());
                    told.unknown.extend(lines);
                    if gone(&error) {
                        break;
                    }
                }
            }
            progress.fetch_add(1, Ordering::Relaxed);
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

/// Makes files that another wants to make, too.
pub struct Racer {
    pub dir: PathBuf,
}

/// The numbers of the files that a racer made, and those of which it does not know.
#[derive(Debug, Default)]
pub struct Raced {
    pub won: BTreeSet<u64>,
    pub lost: BTreeSet<u64>,
    pub unknown: BTreeSet<u64>,
}

impl Racer {
    /// `turn` is the number that all racers try at about the same time.
    pub fn run(self, stop: &AtomicBool, turn: &AtomicU64, progress: &AtomicU64) -> Raced {
        let mut told = Raced::default();
        let mut next = 0;
        while !stop.load(Ordering::Relaxed) {
            let number = turn.load(Ordering::SeqCst).max(next);
            match File::create_new(self.dir.join(number.to_string())).and_then(close) {
                Ok(()) => told.won.insert(number),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    told.lost.insert(number)
                }
                Err(error) => {
                    told.unknown.insert(number);
                    if gone(&error) {
                        break;
                    }
                    assert!(excused(&error), "create of {number}: {error}");
                    true
                }
            };
            next = number + 1;
            turn.fetch_max(next, Ordering::SeqCst);
            progress.fetch_add(1, Ordering::Relaxed);
        }
        told
    }
}

/// Each file has one maker, and is there. Returns how many there are.
pub fn check_race(dir: &Path, racers: [&Raced; 2]) -> usize {
    let found: BTreeSet<u64> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().parse().unwrap())
        .collect();
    let [one, two] = racers;
    let both: Vec<_> = one.won.intersection(&two.won).collect();
    assert!(both.is_empty(), "made by both: {both:?}");
    let gone: Vec<_> = one.won.union(&two.won).filter(|n| !found.contains(n)).collect();
    assert!(gone.is_empty(), "{}: made, but not there: {gone:?}", dir.display());
    let nobodys = |n: &&u64| racers.iter().all(|r| !r.won.contains(n) && !r.unknown.contains(n));
    let nobodys: Vec<_> = found.iter().filter(nobodys).collect();
    assert!(nobodys.is_empty(), "{}: made by nobody: {nobodys:?}", dir.display());
    found.len()
}
