//! A trial: some protocol under a workload and faults for a while; then all heals, and a judgement.
//!
//! A [`Subject`] says what is tried; [`run`] does it. Tests, `meridian sim` and the planted bugs
//! run the same trials.

use crate::harness;
use crate::trace::{Filter, Plain, Teller, Trace};
use crate::world::{Owner, Setup, Watcher, World};
use meridian_core::{Process, Time};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What does not hold, in words; the name of the property comes first, before a colon.
pub type Violation = String;

/// What one seed draws from: a protocol, its workload, and what may go wrong. A value of it pins
/// some parameters; what it leaves open is drawn.
pub trait Subject: Sized {
    /// The process of each peer.
    type Process: Process + 'static;
    /// The workload, and who watches.
    type Owner: Owner<Self::Process>;
    /// What a trial is once all is drawn.
    type Drawn: Clone + fmt::Display;
    /// Whoever acts from outside beside the faults of the world: changes members, for one.
    /// `()` for most.
    type Operator;

    /// How long faults happen.
    const FAULTS: Duration;
    /// How long it may take after the faults until all is quiet, or until [`Subject::progress`] is
    /// seen.
    const HEALING: Duration;

    /// All parameters of the trial with this seed. Draws the same numbers whatever is pinned, so
    /// that the rest of the trial is the same.
    fn draw(&self, seed: u64) -> Self::Drawn;

    /// What the world is made of.
    fn make(&self, seed: u64, drawn: &Self::Drawn) -> Made<Self>;

    /// The faulty phase.
    ///
    /// # Errors
    /// A property does not hold.
    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        stage.world.run_for(Self::FAULTS);
        Ok(())
    }

    /// Ends all faults.
    fn heal(stage: &mut Stage<Self>) {
        stage.world.heal();
    }

    /// Whether all that was asked for is done, everywhere.
    fn is_quiet(world: &WorldOf<Self>) -> bool;

    /// Counts what is done: the healing phase goes on while this grows. `None` if it may not go on.
    fn progress(_world: &WorldOf<Self>) -> Option<u64> {
        None
    }

    /// Judges the whole run once all is quiet.
    ///
    /// # Errors
    /// A property does not hold.
    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation>;

    /// How all processes are and what clients wait for, for a trial that never gets quiet.
    fn describe(world: &WorldOf<Self>) -> String;

    /// What happened, by name.
    fn counts(world: &WorldOf<Self>) -> Counts;

    /// Says in words what happens; a trace is in these.
    fn teller() -> Box<dyn Teller<Self::Process>> {
        Box::new(Plain)
    }

    /// Why a message came where and when it did, in the trial with this seed.
    ///
    /// # Errors
    /// There is no such message, or nobody can tell of this subject.
    fn explain(&self, _seed: u64, _message: &str) -> Result<String, String> {
        Err("of this subject nobody can tell why something happened: see its trace".into())
    }

    /// Planted bugs by name, each with a trial that shows it soon.
    fn planted() -> Vec<(String, Self)> {
        Vec::new()
    }
}

/// The world of a subject.
pub type WorldOf<S> = World<<S as Subject>::Process, <S as Subject>::Owner>;

/// What a world is made of, and who is in it.
pub struct Made<S: Subject> {
    /// Processes, links, disks and faults.
    pub setup: Setup<S::Process>,
    /// The workload.
    pub owner: S::Owner,
    /// See [`Subject::Operator`].
    pub operator: S::Operator,
}

/// A trial under way, or a written scenario.
pub struct Stage<S: Subject> {
    /// The processes and their workload.
    pub world: WorldOf<S>,
    /// See [`Subject::Operator`].
    pub operator: S::Operator,
}

impl<S: Subject> Stage<S> {
    /// Before its first event.
    pub fn new(subject: &S, seed: u64, drawn: &S::Drawn, detail: Detail) -> Self {
        let Made { setup, owner, operator } = subject.make(seed, drawn);
        let deep = setup.deep || detail.deep;
        let mut world = World::new(seed, Setup { deep, ..setup }, owner);
        let wanted = harness::trace_wanted().then(Filter::default);
        if let Some(filter) = detail.trace.or(wanted) {
            world.watch(Box::new(Trace::new(S::teller(), filter)));
        }
        Stage { world, operator }
    }

    /// Faults for a while; then all heals, and everything is done.
    fn faults_then_healing(&mut self) -> Result<(), Violation> {
        S::disturb(self)?;
        S::heal(self);
        let mut before = None;
        while !self.world.run_until(S::is_quiet, S::HEALING) {
            let progress = S::progress(&self.world);
            if progress.is_none() || progress == before {
                return Err(format!("liveness: {}", S::describe(&self.world)));
            }
            before = progress;
        }
        S::judge(self)
    }
}

/// How much of a trial is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Prints these events.
    pub trace: Option<Filter>,
    /// The hash of the trace covers the contents of messages.
    pub deep: bool,
}

/// How often what happened, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<&'static str, u64>);

impl Counts {
    /// How often that happened.
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// It happened so often more.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// What happened in another trial happened, too.
    pub fn add_all(&mut self, other: &Counts) {
        other.0.iter().for_each(|(name, count)| self.add(name, *count));
    }
}

/// A trial in which nothing was wrong.
#[derive(Clone, Debug)]
pub struct Report<D> {
    /// Its seed.
    pub seed: u64,
    /// What was drawn.
    pub drawn: Box<D>,
    /// How many events there were.
    pub events: u64,
    /// What happened.
    pub counts: Counts,
    /// The time of the world at the end.
    pub end: Time,
    /// Equal for equal seeds.
    pub trace_hash: u64,
}

/// A trial in which something was wrong.
#[derive(Clone, Debug)]
pub struct Failure<D> {
    /// Its seed.
    pub seed: u64,
    /// What was drawn.
    pub drawn: Box<D>,
    /// Which property does not hold, and why.
    pub violated: Violation,
    /// How many events there were until it was seen.
    pub events: u64,
    /// The time of the world then.
    pub at: Time,
}

impl<D: fmt::Display> fmt::Display for Failure<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, events, ms) = (self.seed, self.events, self.at.0 as f64 / 1e6);
        writeln!(f, "{}", self.violated)?;
        writeln!(f, "seed {seed}, event {events}, at {ms:.3} ms; {}", self.drawn)?;
        write!(f, "repeat with: {}", harness::how_to_repeat(seed))
    }
}

/// What comes of a trial.
pub type Outcome<D> = Result<Report<D>, Failure<D>>;

/// Runs a trial with a seed.
///
/// # Errors
/// A property does not hold, something takes for ever, or an assertion in a process fails.
pub fn run<S: Subject>(seed: u64, subject: &S) -> Outcome<S::Drawn> {
    run_with(seed, subject, Detail::default())
}

/// The same; so much of it is recorded.
///
/// # Errors
/// As [`run`].
pub fn run_with<S: Subject>(seed: u64, subject: &S, detail: Detail) -> Outcome<S::Drawn> {
    let drawn = Box::new(subject.draw(seed));
    let mut stage = Stage::new(subject, seed, &drawn, detail);
    stage.world.say_nothing();
    let judged = harness::caught(|| stage.faults_then_healing());
    let world = &stage.world;
    let (events, at) = (world.events(), world.now());
    match judged {
        Ok(()) => {
            let (counts, trace_hash) = (S::counts(world), world.trace_hash());
            Ok(Report { seed, drawn, events, counts, end: at, trace_hash })
        }
        Err(violated) => Err(Failure { seed, drawn, violated, events, at }),
    }
}

/// Runs a trial with a seed while `watcher` is told of all events; how the world is then, and what
/// does not hold.
pub(crate) fn run_watched<S: Subject>(
    seed: u64,
    subject: &S,
    watcher: Box<dyn Watcher<S::Process>>,
) -> (Stage<S>, Result<(), Violation>) {
    let mut stage = Stage::new(subject, seed, &subject.draw(seed), Detail::default());
    stage.world.say_nothing();
    stage.world.watch(watcher);
    let judged = harness::caught(|| stage.faults_then_healing());
    (stage, judged)
}
