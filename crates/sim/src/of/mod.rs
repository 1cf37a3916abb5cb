//! What is simulated: one module for each protocol, each with a [`crate::Subject`]; and the table
//! from which `meridian sim NAME` is made.

pub mod access;
pub mod backups;
pub mod causal;
pub mod configuration;
pub mod cuts;
pub mod drain;
pub mod eunomia;
pub mod files;
pub mod grants;
pub mod hermes;
pub mod locks;
pub mod looks;
pub mod multicast;
pub mod outside;
pub mod paxos;
pub mod quotas;
pub mod service;

use crate::checkers::linearizable::UNDECIDED;
use crate::harness;
use crate::processors::each_is_caught;
use crate::trial::{Counts, Detail, Failure, Outcome, Report, Subject, run_with};
use std::collections::BTreeMap;
use std::str::FromStr;

/// All subjects of `meridian sim`.
pub const TABLE: [&Named; 16] = [
    &multicast::NAMED,
    &outside::NAMED,
    &paxos::NAMED,
    &hermes::NAMED,
    &eunomia::NAMED,
    &causal::NAMED,
    &files::NAMED,
    &looks::NAMED,
    &locks::NAMED,
    &quotas::NAMED,
    &access::NAMED,
    &grants::NAMED,
    &backups::NAMED,
    &cuts::NAMED,
    &drain::NAMED,
    &configuration::NAMED,
];

/// A subject with a name, for a command.
#[derive(Debug)]
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What a seed is and what is checked, and examples.
    pub help: &'static str,
    /// What the names of messages are in its traces.
    pub messages: &'static str,
    /// What [`Trials::explain`] tells of a message, if it tells anything.
    pub explained: Option<&'static str>,
    /// What can be pinned; the rest is drawn.
    pub settings: &'static [Setting],
    /// The trials with these settings.
    pub pin: fn(&Pins) -> Result<Box<dyn Trials>, String>,
    /// The names of the planted bugs.
    pub planted: fn() -> Vec<String>,
}

/// A parameter that can be pinned.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Values in words, or what a value stands for in capitals; none for a switch.
    pub values: &'static [&'static str],
    /// What it decides.
    pub help: &'static str,
}

/// What is pinned, by name, and which bug is planted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// The values as they were given; that of a switch is empty.
    pub values: BTreeMap<&'static str, String>,
    /// The name of a planted bug.
    pub planted: Option<String>,
}

impl Pins {
    /// A pinned value.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn get<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let read = |value: &String| {
            value.parse().map_err(|_| format!("{value} is not a value of --{name}"))
        };
        self.values.get(name).map(read).transpose()
    }

    /// A pinned value that has one of these names.
    ///
    /// # Errors
    /// It has another.
    pub fn one_of<T: Copy>(&self, name: &str, all: &[(&str, T)]) -> Result<Option<T>, String> {
        let read = |value: &String| {
            let found = all.iter().find(|(known, _)| known == value);
            found.map(|(_, value)| *value).ok_or_else(|| format!("--{name} has no value {value}"))
        };
        self.values.get(name).map(read).transpose()
    }

    /// Whether a switch is set.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The trial for the bug that is planted, if one is.
    ///
    /// # Errors
    /// There is no such bug.
    pub fn planted<S: Subject>(&self) -> Result<Option<S>, String> {
        let Some(wanted) = &self.planted else { return Ok(None) };
        let found = S::planted().into_iter().find(|(name, _)| name == wanted);
        found.map(|(_, subject)| Some(subject)).ok_or_else(|| format!("no bug is called {wanted}"))
    }
}

/// The trials of a subject of which nothing can be pinned.
///
/// # Errors
/// There is no such bug as is to be planted.
pub fn draw_all<S: Subject + Default + Sync + 'static>(
    pins: &Pins,
) -> Result<Box<dyn Trials>, String> {
    Ok(Box::new(pins.planted::<S>()?.unwrap_or_default()))
}

/// The names of all bugs planted in a subject.
pub fn names_of_planted<S: Subject>() -> Vec<String> {
    S::planted().into_iter().map(|(name, _)| name).collect()
}

/// Trials of some subject, for a command. What was drawn is told in words.
pub trait Trials: Sync {
    /// The trial with this seed.
    ///
    /// # Errors
    /// As [`crate::run`].
    fn run(&self, seed: u64, detail: Detail) -> Outcome<String>;

    /// See [`Subject::explain`].
    ///
    /// # Errors
    /// As there.
    fn explain(&self, seed: u64, message: &str) -> Result<String, String>;
}

impl<S: Subject + Sync> Trials for S {
    fn run(&self, seed: u64, detail: Detail) -> Outcome<String> {
        match run_with(seed, self, detail) {
            Ok(Report { drawn, events, counts, end, trace_hash, .. }) => {
                let drawn = Box::new(drawn.to_string());
                Ok(Report { seed, drawn, events, counts, end, trace_hash })
            }
            Err(Failure { drawn, violated, events, at, .. }) => {
                let drawn = Box::new(drawn.to_string());
                Err(Failure { seed, drawn, violated, events, at })
            }
        }
    }

    fn explain(&self, seed: u64, message: &str) -> Result<String, String> {
        Subject::explain(self, seed, message)
    }
}

/// Runs trials until a seed shows something wrong; for planted bugs. A history without a verdict
/// shows nothing.
pub fn first_failure<S: Subject>(
    mut seeds: std::ops::Range<u64>,
    subject: &S,
) -> Option<Failure<S::Drawn>> {
    let shows = |failure: &Failure<S::Drawn>| !failure.violated.contains(UNDECIDED);
    harness::quietly(|| seeds.find_map(|seed| crate::run(seed, subject).err().filter(shows)))
}

/// Runs a trial with each of these seeds ([`harness::each_seed`]); what happened.
///
/// # Panics
/// If one fails.
pub fn trials_hold<S: Subject>(seeds: std::ops::Range<u64>, subject: &S) -> Counts {
    let mut counts = Counts::default();
    harness::each_seed(seeds, |seed| match crate::run(seed, subject) {
        Ok(report) => counts.add_all(&report.counts),
        Err(failure) => panic!("{failure}"),
    });
    counts
}

/// The same; each of these must have happened at least so often, or the trials show nothing. Of one
/// seed that is looked at alone nothing is asked, and of a part of them as large a part.
///
/// # Panics
/// If one fails, or something happened too seldom.
pub fn trials_show<S: Subject>(
    seeds: std::ops::Range<u64>,
    subject: &S,
    (names, least): (&[&str], u64),
) -> Counts {
    let counts = trials_hold(seeds, subject);
    let least = least.div_ceil(harness::share());
    let seldom: Vec<_> = names.iter().filter(|name| counts.of(name) < least).collect();
    assert!(seldom.is_empty() || harness::one_seed(), "seldom: {seldom:?} of {counts:?}");
    counts
}

/// Runs trials for planted bugs without their bugs: what finds these objects to nothing else.
///
/// # Panics
/// If one fails.
pub fn trials_hold_without_a_bug<S: Subject>(
    trials: impl IntoIterator<Item = (String, S)>,
    seeds: std::ops::Range<u64>,
) {
    let mut count = 0;
    for (name, trial) in trials {
        for seed in seeds.clone() {
            if let Err(failure) = crate::run(seed, &trial) {
                panic!("the trial for {name}: {failure}");
            }
            count += 1;
        }
    }
    assert!(count > 0, "there are no trials");
}

/// Looks for each of these planted bugs in trials with its seeds.
///
/// # Panics
/// If one is not found.
pub fn each_planted_is_found<S: Subject + Sync>(
    planted: &[(String, S)],
    seeds: impl Fn(&S) -> std::ops::Range<u64> + Sync,
) {
    let numbers: Vec<_> = (0..planted.len()).collect();
    each_is_caught(&numbers, |number| {
        let (name, trial) = &planted[number];
        let found = first_failure(seeds(trial), trial)?;
        let what = found.violated.lines().next().unwrap_or_default().to_string();
        Some((name.clone(), found.seed, what))
    });
}

/// Runs each seed twice.
///
/// # Panics
/// If two runs of a seed differ, or those of the first two seeds are equal.
pub fn equal_seeds_give_equal_runs<S: Subject>(subject: &S, seeds: u64) {
    let deep = Detail { deep: true, ..Detail::default() };
    let hash = |seed| {
        let outcome = crate::run_with(seed, subject, deep.clone());
        outcome.map(|report| report.trace_hash).map_err(|failure| failure.to_string())
    };
    for seed in 0..seeds {
        assert_eq!(hash(seed), hash(seed));
    }
    assert_ne!(hash(0), hash(1));
}
