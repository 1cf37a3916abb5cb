//! A soak test: very many operations while replicas are killed or frozen and come back. Memory and
//! disk must stay as they are, and whoever was away must return.

use super::Machine;
use super::flatness::{self, Flatness, JUDGED_FROM, SAMPLES, Sample, Usage};
use super::processes::{Processes, Program};
use anyhow::{bail, ensure};
use meridian_terminal::note;
use meridian_terminal::output::{self, Row};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often it is looked how much memory and disk the replicas take.
const LOOK: Duration = Duration::from_millis(250);
/// How long the slow replica stands still and runs, in turn.
const SLOW: Duration = Duration::from_millis(200);

/// What a soak test runs on.
pub trait Subject {
    /// Its replicas.
    type Program: Program;
    /// What is counted, in the plural.
    const UNIT: &'static str;
    /// Nothing was completed for so long: nothing more will be.
    const STALLED: Duration;

    /// Its replicas' processes.
    fn processes(&mut self) -> &mut Processes<Self::Program>;

    /// Lets time pass until `until` and takes in what replicas say; it may return earlier.
    ///
    /// # Errors
    /// If a replica cannot go on, or contradicts another.
    fn hear(&mut self, until: Instant) -> anyhow::Result<()>;

    /// How many operations are completed.
    fn completed(&self) -> u64;

    /// What replicas have done in all: it counts up as long as anything goes on.
    fn progress(&self) -> u64;

    /// How many operations the replica that goes away could have executed by now.
    fn executed_by_others(&self, away: u16) -> u64;

    /// What the replica keeps to order and repeat messages, at most since this was asked last, in
    /// bytes.
    fn take_log_bytes(&mut self, node: u16) -> u64;

    /// With which setup a replica that was killed is started again.
    fn setup_after_kill(&mut self, node: u16) -> <Self::Program as Program>::Setup;

    /// The replica is back: what it needs to be told.
    ///
    /// # Errors
    /// If it is down again.
    fn on_back(&mut self, node: u16) -> anyhow::Result<()>;

    /// Whether the replica that is back has what it missed.
    ///
    /// # Errors
    /// If it does not say.
    fn has_returned(&mut self, node: u16) -> anyhow::Result<bool>;

    /// Whether, with all operations completed and the replica back, nothing more is to come.
    fn is_over(&self) -> bool;
}

/// How a replica is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    Killed,
    Frozen,
}

/// What is done to which replica, and when: parts of all operations.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many operations, in all.
    pub operations: u64,
    /// The replica that goes away and comes back, how, and when.
    pub away: u16,
    pub how: How,
    pub gone_at: f64,
    pub back_at: f64,
    /// A replica that is killed for good.
    pub dead: Option<(u16, f64)>,
    /// A replica that stands still every other moment.
    pub slow: Option<u16>,
    /// Nothing is said meanwhile.
    pub quiet: bool,
}

/// How the replica was away and came back.
#[derive(Clone, Debug, Serialize)]
pub struct Outage {
    pub replica: String,
    pub how: How,
    /// How many operations were completed when it went, and when it came.
    pub from: u64,
    pub until: u64,
    /// What the others executed meanwhile.
    pub missed: u64,
    /// From its start until it had all that.
    pub returned_seconds: f64,
    /// What the others had executed when it went.
    #[serde(skip)]
    pub executed_at_gone: u64,
    /// When it was started again.
    #[serde(skip)]
    pub back: Instant,
}

/// What came of a soak test.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub operations: u64,
    pub seconds: f64,
    pub operations_per_second: f64,
    pub outage: Outage,
    /// Who was killed for good, and who was slow.
    pub dead: Option<String>,
    pub slow: Option<String>,
    /// The longest time in which nothing was completed.
    pub longest_pause_seconds: f64,
    pub samples: Vec<Sample>,
    pub flatness: Vec<Flatness>,
    /// `None` if there were too few operations to judge.
    pub flat: Option<bool>,
}

/// A moment of a replica's outage, and how many operations were completed and executed then.
type Mark = (Instant, u64, u64);

/// A soak test that runs.
struct Soak<'a, S: Subject> {
    subject: &'a mut S,
    plan: Plan,
    names: Vec<String>,
    begin: Instant,
    usage: Vec<Usage>,
    samples: Vec<Sample>,
    looked: Instant,
    is_dead: bool,
    gone: Option<Mark>,
    back: Option<Mark>,
    returned: Option<Instant>,
    /// Whether the slow replica stands still, and since when it does or does not.
    frozen: bool,
    turned: Instant,
    /// When anything went on last, and how far all were then.
    moved: (Instant, u64),
    /// When something was completed last, how much that was, and the longest pause.
    completed: (Instant, u64),
    pause: Duration,
}

/// Runs it until all operations are completed, the replica is back and nothing more is to come.
///
/// # Errors
/// If the subject says so, nothing goes on any more, or `stop` is raised.
pub fn run<S: Subject>(subject: &mut S, plan: Plan, stop: &AtomicBool) -> anyhow::Result<Report> {
    let machine = Machine::look_and_warn();
    let names = subject.processes().names();
    let now = Instant::now();
    let mut soak = Soak {
        usage: vec![Usage::default(); names.len()],
        subject,
        plan,
        names,
        begin: now,
        samples: Vec::new(),
        looked: now,
        is_dead: false,
        gone: None,
        back: None,
        returned: None,
        frozen: false,
        turned: now,
        moved: (now, 0),
        completed: (now, 0),
        pause: Duration::ZERO,
    };
    while !soak.is_over() {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        soak.turn()?;
    }
    if let (Some(slow), true) = (plan.slow, soak.frozen) {
        soak.subject.processes().thaw(slow)?; // It must catch up.
    }
    soak.report(machine)
}

impl<S: Subject> Soak<'_, S> {
    fn is_over(&self) -> bool {
        let completed = self.subject.completed() >= self.plan.operations;
        completed && self.returned.is_some() && self.subject.is_over()
    }

    /// Hears what is said, and does what time and the number of operations demand.
    fn turn(&mut self) -> anyhow::Result<()> {
        let mut until = self.looked + LOOK;
        if self.plan.slow.is_some() {
            until = until.min(self.turned + SLOW);
        }
        self.subject.hear(until)?;
        self.watch_progress()?;
        self.turn_slow()?;
        self.take_down_and_bring_back()?;
        if self.looked.elapsed() >= LOOK {
            self.look();
        }
        let (done, count) = (self.subject.completed(), self.samples.len() as u64);
        if count < SAMPLES && done >= (count + 1) * self.plan.operations / SAMPLES {
            self.look();
            self.sample(done);
        }
        Ok(())
    }

    fn watch_progress(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let (progress, completed) = (self.subject.progress(), self.subject.completed());
        if progress != self.moved.1 {
            self.moved = (now, progress);
        }
        if completed != self.completed.1 {
            self.pause = self.pause.max(now - self.completed.0);
            self.completed = (now, completed);
        }
        if now - self.moved.0 > S::STALLED {
            let seconds = S::STALLED.as_secs();
            bail!("nothing went on for {seconds} s: {completed} {} are completed", S::UNIT);
        }
        Ok(())
    }

    fn turn_slow(&mut self) -> anyhow::Result<()> {
        let Some(slow) = self.plan.slow.filter(|_| self.turned.elapsed() >= SLOW) else {
            return Ok(());
        };
        if self.frozen {
            self.subject.processes().thaw(slow)?;
        } else {
            self.subject.processes().freeze(slow)?;
        }
        (self.frozen, self.turned) = (!self.frozen, Instant::now());
        Ok(())
    }

    fn take_down_and_bring_back(&mut self) -> anyhow::Result<()> {
        let Plan { operations, away, how, gone_at, back_at, dead, .. } = self.plan;
        let done = self.subject.completed();
        let at = |part: f64| (operations as f64 * part) as u64;
        if let Some((node, part)) = dead
            && !self.is_dead
            && done >= at(part)
        {
            self.is_dead = true;
            self.subject.processes().kill(node);
            self.say(&format!("{} is killed for good", self.names[usize::from(node)]));
        }
        if self.gone.is_none() && done >= at(gone_at) {
            match how {
                How::Killed => self.subject.processes().kill(away),
                How::Frozen => self.subject.processes().freeze(away)?,
            }
            self.gone = Some((Instant::now(), done, self.subject.executed_by_others(away)));
            self.say(&format!("{} is {how:?}", self.names[usize::from(away)]).to_lowercase());
        }
        if self.gone.is_some() && self.back.is_none() && done >= at(back_at) {
            self.back = Some((Instant::now(), done, self.subject.executed_by_others(away)));
            match how {
                How::Killed => {
                    let setup = self.subject.setup_after_kill(away);
                    self.subject.processes().start_again(away, setup)?;
                }
                How::Frozen => self.subject.processes().thaw(away)?,
            }
            self.subject.on_back(away)?;
            self.say(&format!("{} is back", self.names[usize::from(away)]));
        }
        if self.back.is_some() && self.returned.is_none() && self.subject.has_returned(away)? {
            self.returned = Some(Instant::now());
            self.say(&format!("{} has all again", self.names[usize::from(away)]));
        }
        Ok(())
    }

    /// Looks at what the replicas take, which counts if it is more than before.
    fn look(&mut self) {
        self.looked = Instant::now();
        for (node, usage) in (0..).zip(&mut self.usage) {
            let now = self.subject.processes().usage(node);
            let log = self.subject.take_log_bytes(node);
            *usage = usage.max(Usage { log, ..now });
        }
    }

    fn sample(&mut self, done: u64) {
        let seconds = self.begin.elapsed().as_secs_f64();
        let (before, since) =
            self.samples.last().map_or((0, 0.0), |last| (last.operations, last.seconds));
        let per_second = (done - before) as f64 / (seconds - since).max(1e-3);
        let replicas = vec![Usage::default(); self.usage.len()];
        let replicas = std::mem::replace(&mut self.usage, replicas);
        let sum = |of: fn(&Usage) -> u64| replicas.iter().map(of).sum::<u64>() >> 20;
        self.say(&format!(
            "{:>5.1} %  {per_second:.0} {}/s, {} MiB of memory, {} MiB on disk",
            done as f64 * 100.0 / self.plan.operations as f64,
            S::UNIT,
            sum(|usage| usage.memory),
            sum(|usage| usage.disk),
        ));
        // It counts as away in the sample in which it came back: it has read its log then.
        let last = self.begin + Duration::from_secs_f64(since);
        let away = self.gone.is_some() && self.returned.is_none_or(|at| at >= last);
        let operations_per_second = per_second;
        let operations = done;
        self.samples.push(Sample { operations, seconds, operations_per_second, away, replicas });
    }

    fn say(&self, text: &str) {
        if !self.plan.quiet {
            note!("{:>6.1} s  {text}", self.begin.elapsed().as_secs_f64());
        }
    }

    fn report(self, machine: Machine) -> anyhow::Result<Report> {
        let (Some(gone), Some(back), Some(returned)) = (self.gone, self.back, self.returned) else {
            bail!("no replica was away");
        };
        let Plan { operations, away, how, dead, slow, .. } = self.plan;
        let seconds = self.begin.elapsed().as_secs_f64();
        let judged = flatness::judge(&self.names, away.into(), &self.samples);
        let name = |node: u16| self.names[usize::from(node)].clone();
        let dead = dead.map(|(node, _)| name(node));
        // Of one that is dead there is nothing to be judged.
        let is_dead = |one: &Flatness| dead.as_ref().is_some_and(|dead| one.what.starts_with(dead));
        let flatness: Vec<_> = judged.into_iter().filter(|one| !is_dead(one)).collect();
        let flat = || flatness.iter().all(|one| one.flat);
        Ok(Report {
            machine,
            operations,
            seconds,
            operations_per_second: operations as f64 / seconds,
            outage: Outage {
                replica: name(away),
                how,
                from: gone.1,
                until: back.1,
                missed: back.2 - gone.2,
                returned_seconds: (returned - back.0).as_secs_f64(),
                executed_at_gone: gone.2,
                back: back.0,
            },
            slow: slow.map(name),
            longest_pause_seconds: self.pause.as_secs_f64(),
            flat: (operations >= JUDGED_FROM).then(flat),
            flatness,
            dead,
            samples: self.samples,
        })
    }
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

impl Report {
    /// Prints it for people; `unit` is what was counted.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print(&self, unit: &str) -> anyhow::Result<()> {
        let head = ["", "median", "greatest", "growth", ""];
        let rows = self.flatness.iter().map(|one| -> Row {
            let verdict = if one.flat || self.flat.is_none() { "" } else { "NOT FLAT" };
            let growth = mib(one.growth);
            vec![one.what.clone(), mib(one.median), mib(one.greatest), growth, verdict.into()]
        });
        output::print(&output::table(&head, rows))?;
        let Report { operations, seconds, operations_per_second, .. } = self;
        output::print(&format!(
            "\n{operations} {unit} in {seconds:.0} s: {operations_per_second:.0} {unit}/s; the \
             longest pause was {:.1} s",
            self.longest_pause_seconds
        ))?;
        let Outage { replica, how, from, until, missed, returned_seconds, .. } = &self.outage;
        let how = format!("{how:?}").to_lowercase();
        output::print(&format!(
            "{replica} was {how} from {from} to {until} {unit} and missed {missed}; it had them \
             {returned_seconds:.1} s after it was started again"
        ))?;
        if let Some(dead) = &self.dead {
            output::print(&format!("{dead} was killed for good"))?;
        }
        if let Some(slow) = &self.slow {
            output::print(&format!("{slow} stood still every other {} ms", SLOW.as_millis()))?;
        }
        output::print(match self.flat {
            Some(true) => "memory and disk are flat",
            Some(false) => "memory or disk are NOT FLAT",
            None => "too few to tell whether memory and disk are flat",
        })?;
        output::print(&self.machine.to_string())
    }

    /// # Errors
    /// If memory or disk of a replica grow.
    pub fn ensure_flat(&self) -> anyhow::Result<()> {
        let wrong = self.flatness.iter().filter(|one| !one.flat).map(|one| one.what.as_str());
        let wrong: Vec<&str> = wrong.collect();
        ensure!(self.flat != Some(false), "not flat: {}", wrong.join(", "));
        Ok(())
    }
}
