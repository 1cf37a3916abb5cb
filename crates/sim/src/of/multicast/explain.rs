//! Why a message was delivered where and when it was: the conditions of its delivery at each
//! process, when each was met, and by which event.

use crate::explain::{Inquiry, Moment, OTHERS_MAX, line};
use crate::of::multicast::history::{Entry, History};
use crate::of::multicast::replica::Replica;
use crate::of::multicast::words::{Words, of_epoch, of_groups};
use crate::of::multicast::workload::Workload;
use crate::trial::{Stage, Subject};
use crate::world::{Happened, Watcher, What};
use meridian_core::{GroupId, MessageId, Position, ProcessId, Time};
use meridian_multicast::{Epoch, Obstacles, Output, Rank, Timestamp};
use std::collections::BTreeMap;
use std::fmt::Write;

/// So many of those that were before a message are named.
const BEFORE_MAX: usize = 8;

/// What must be for a delivery. The first three may be met at any time; whether the others are can
/// be said once the final timestamp is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The message is in `T`.
    Held,
    /// The process follows a primary, or is one.
    Stands,
    /// The timestamps of all groups are known.
    Timestamps,
    /// The primary's clock has reached the final timestamp.
    PrimaryClock,
    /// The clocks of a quorum have.
    QuorumClock,
    /// Nothing that conflicts is before it.
    Turn,
    /// In the linearizable order, the other groups are closed up to it.
    Closed,
    /// What was persisted before the delivery is on the disk.
    Disk,
}

impl Condition {
    const ALL: [Condition; 8] = [
        Condition::Held,
        Condition::Stands,
        Condition::Timestamps,
        Condition::PrimaryClock,
        Condition::QuorumClock,
        Condition::Turn,
        Condition::Closed,
        Condition::Disk,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Held => "the message",
            Condition::Stands => "a primary",
            Condition::Timestamps => "timestamps of all groups",
            Condition::PrimaryClock => "the primary's clock",
            Condition::QuorumClock => "clocks of a quorum",
            Condition::Turn => "its turn",
            Condition::Closed => "other groups to be closed",
            Condition::Disk => "its disk",
        }
    }

    /// Whether nothing stands against it; `None` if that cannot be said yet.
    fn is_met(self, obstacles: &Obstacles) -> Option<bool> {
        let reached = |clock: Timestamp| obstacles.final_ts.map(|ts| ts <= clock);
        let known = |met: bool| obstacles.final_ts.map(|_| met);
        match self {
            Condition::Held => Some(true),
            Condition::Stands => Some(obstacles.stands),
            Condition::Timestamps => Some(obstacles.final_ts.is_some()),
            Condition::PrimaryClock => reached(obstacles.leader_clock),
            Condition::QuorumClock => reached(obstacles.quorum_clock),
            Condition::Turn => known(obstacles.before.is_empty()),
            Condition::Closed => known(obstacles.open.is_empty()),
            Condition::Disk => None,
        }
    }
}

/// How a condition was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Met {
    /// It was when it could be said first: nothing waited for it.
    Before,
    /// With this event.
    With(Moment),
}

/// What happened to the message at a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Each condition that is met, or was when the message was delivered.
    pub met: BTreeMap<Condition, Met>,
    /// Those that were before it when its final timestamp was known.
    pub before: Vec<Rank>,
    /// What it waits for, or waited for at the last event that it was looked at.
    pub obstacles: Option<Obstacles>,
    /// When the process delivered it.
    pub delivered: Option<Moment>,
    /// When the owner of the process was told of that, with which final timestamp and position.
    pub told: Option<(Time, Timestamp, Position)>,
    /// Whether it is in a state that the process took over, or found on its disk.
    pub taken_over: bool,
}

impl Account {
    /// What the delivery waited for last: all that was met with the latest event.
    pub fn last(&self) -> Vec<Condition> {
        let with = self.met.iter().filter_map(|(condition, met)| match met {
            Met::With(moment) => Some((*condition, (moment.at, moment.number))),
            Met::Before => None,
        });
        let latest = with.clone().map(|(_, number)| number).max();
        with.filter(|(_, number)| Some(*number) == latest).map(|(condition, _)| condition).collect()
    }

    /// A condition that was not met when the process delivered the message: then the process is
    /// wrong, or what is told of it.
    pub fn contradiction(&self) -> Option<Condition> {
        let mut wanted = Condition::ALL.into_iter().filter(|wanted| *wanted < Condition::Disk);
        let unmet = wanted.find(|condition| !self.met.contains_key(condition));
        self.delivered.as_ref().filter(|_| !self.taken_over).and(unmet)
    }

    fn look(&mut self, obstacles: Obstacles, cause: &Moment) {
        let could_be_said = self.obstacles.as_ref().is_some_and(|known| known.final_ts.is_some());
        for condition in Condition::ALL {
            match condition.is_met(&obstacles) {
                Some(true) => {
                    let at_first = condition > Condition::Timestamps && !could_be_said;
                    let met = if at_first { Met::Before } else { Met::With(cause.clone()) };
                    self.met.entry(condition).or_insert(met);
                }
                Some(false) => drop(self.met.remove(&condition)),
                None => {}
            }
        }
        if obstacles.final_ts.is_some() && !could_be_said {
            self.before.clone_from(&obstacles.before);
        }
        self.obstacles = Some(obstacles);
    }
}

/// What a group proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// In which epoch.
    pub epoch: Epoch,
    /// The timestamp.
    pub ts: Timestamp,
    /// When its primary did.
    pub proposed: Moment,
    /// Which process knew first that it is decided, and when.
    pub decided: Option<(ProcessId, Moment)>,
}

/// All that happened to a message in a run.
#[derive(Debug)]
pub struct Explanation {
    id: MessageId,
    words: Words,
    /// What each group proposed; anew where a change of epoch cut off what it had.
    pub proposals: BTreeMap<GroupId, Vec<Proposal>>,
    /// What happened at each process.
    pub accounts: BTreeMap<ProcessId, Account>,
    batches: BTreeMap<ProcessId, Batch>,
}

/// The events of a process since it was idle.
#[derive(Debug, Default)]
struct Batch {
    /// The one that it steps with.
    now: Option<Moment>,
    /// The last one.
    last: Option<Moment>,
    /// The last one about the message.
    about: Option<Moment>,
}

impl Batch {
    /// What the step that has ended was caused by. What is done when a process is idle is due to
    /// all events of the batch: most likely to one about the message.
    fn cause(&mut self) -> Option<Moment> {
        self.now.take().or_else(|| self.about.take().or_else(|| self.last.clone()))
    }
}

impl Explanation {
    /// Of this message; to be told of all events.
    pub fn new(id: MessageId) -> Self {
        Explanation {
            id,
            words: Words::default(),
            proposals: BTreeMap::new(),
            accounts: BTreeMap::new(),
            batches: BTreeMap::new(),
        }
    }

    fn account(&mut self, process: ProcessId) -> &mut Account {
        self.accounts.entry(process).or_default()
    }

    /// A process takes up an event.
    fn begins(&mut self, event: &Happened<'_, Replica>, is_about: bool) {
        let moment = Moment::of(event, &self.words);
        let batch = self.batches.entry(event.at).or_default();
        if is_about {
            batch.about = Some(moment.clone());
        }
        (batch.now, batch.last) = (Some(moment.clone()), Some(moment));
    }

    fn propose(&mut self, process: ProcessId, obstacles: &Obstacles, cause: &Moment) {
        let (epoch, ts) = obstacles.proposed;
        let proposals = self.proposals.entry(process.group).or_default();
        let known = proposals.iter_mut().find(|known| (known.epoch, known.ts) == (epoch, ts));
        match known {
            Some(known) if obstacles.decided && known.decided.is_none() => {
                known.decided = Some((process, cause.clone()));
            }
            Some(_) => {}
            None => {
                let decided = obstacles.decided.then(|| (process, cause.clone()));
                proposals.push(Proposal { epoch, ts, proposed: cause.clone(), decided });
            }
        }
    }
}

impl Watcher<Replica> for Explanation {
    fn happened(&mut self, event: &Happened<'_, Replica>) {
        let is_about = self.words.messages(event).contains(&self.id);
        let (id, at, now) = (self.id, event.at, event.now);
        match event.what {
            What::Event(_) => self.begins(event, is_about),
            What::Output(Output::Deliver(delivery)) if delivery.start.id == id => {
                let (ts, position) = (delivery.ts, delivery.position);
                let account = self.account(at);
                if account.told.is_none() {
                    account.told = Some((now, ts, position));
                    let before = account.delivered.as_ref().is_some_and(|then| then.at < now);
                    let words = "what it persisted before is durable".into();
                    let moment = Moment { number: event.number, at: now, words };
                    let met = if before { Met::With(moment) } else { Met::Before };
                    account.met.insert(Condition::Disk, met);
                }
            }
            // What the process had is lost, unless its disk has it.
            What::Words(_) if event.kind == "crash" => {
                self.batches.remove(&at);
                if self.account(at).told.is_none() {
                    self.accounts.remove(&at);
                }
            }
            _ => {}
        }
    }

    fn stepped(&mut self, at: ProcessId, process: &Replica, _now: Time) {
        let Some(cause) = self.batches.entry(at).or_default().cause() else { return };
        let id = self.id;
        let obstacles = process.multicast.obstacles(id);
        let is_delivered = process.multicast.delivered_at(id).is_some();
        if obstacles.is_none() && !is_delivered {
            return; // Most steps are about other messages.
        }
        let account = self.account(at);
        if account.delivered.is_some() || account.taken_over {
            return;
        }
        let known = account.obstacles.is_some();
        account.taken_over =
            is_delivered && !known && !process.news.iter().any(|(_, of)| *of == id);
        if let Some(obstacles) = obstacles.clone() {
            account.look(obstacles, &cause);
        }
        if is_delivered {
            account.delivered = Some(cause.clone());
        }
        if let Some(obstacles) = obstacles {
            self.propose(at, &obstacles, &cause);
        }
    }
}

impl<S: Subject<Process = Replica, Owner = Workload>> Inquiry<S> for Explanation {
    type Name = MessageId;

    fn about(name: MessageId) -> Self {
        Explanation::new(name)
    }

    fn found(&self, stage: &Stage<S>) -> Result<String, Vec<String>> {
        let history = &stage.world.owner.history;
        let some =
            || history.messages().into_keys().take(OTHERS_MAX).map(|id| id.to_string()).collect();
        self.text(history).ok_or_else(some)
    }
}

impl Explanation {
    /// What is known of the message, for people; `None` if nobody multicast it.
    pub fn text(&self, history: &History) -> Option<String> {
        let sent = history.entries.iter().find_map(|entry| match entry {
            Entry::Multicast { id, dest, t, .. } if *id == self.id => Some((dest, *t)),
            _ => None,
        });
        let (dest, at) = sent?;
        let told = self.accounts.values().find_map(|account| account.told);
        let last = match told {
            Some((_, ts, _)) => format!("its final timestamp is {}", ts.0),
            None => "no process has delivered it".into(),
        };
        let ms = at.0 as f64 / 1e6;
        let mut text =
            format!("{} to {}, multicast at {ms:.3} ms; {last}\n", self.id, of_groups(dest));
        for (group, proposals) in &self.proposals {
            proposals.iter().for_each(|proposal| proposal.write(*group, &mut text));
        }
        for process in history.members(dest) {
            match self.accounts.get(&process) {
                Some(account) => account.write(process, &mut text),
                None => drop(write!(text, "\n{process} has heard nothing of it\n")),
            }
        }
        Some(text.trim_end().into())
    }
}

impl Proposal {
    fn write(&self, group: GroupId, text: &mut String) {
        let (ts, epoch, first) = (self.ts.0, of_epoch(self.epoch), self.proposed.text());
        let _ = write!(text, "\ng{} proposes {ts} in {epoch}: {first}\n", group.0);
        let _ = match &self.decided {
            Some((process, moment)) => {
                writeln!(text, "  {process} is the first to know it decided: {}", moment.text())
            }
            None => writeln!(text, "  nobody knew it decided before the delivery"),
        };
    }
}

impl Account {
    fn write(&self, process: ProcessId, text: &mut String) {
        let _ = match (&self.delivered, &self.told) {
            _ if self.taken_over => {
                writeln!(text, "\n{process} has it in a state that it took over, or on its disk")
            }
            (_, Some((at, ts, position))) => {
                let (ms, place) = (at.0 as f64 / 1e6, position.0);
                writeln!(
                    text,
                    "\n{process} delivers it at {ms:.3} ms, at {}, as number {place}",
                    ts.0
                )
            }
            (Some(_), None) => writeln!(text, "\n{process} delivers it, which nobody has seen yet"),
            (None, None) => writeln!(text, "\n{process} does not deliver it"),
        };
        if self.taken_over {
            return;
        }
        for condition in Condition::ALL {
            let met = match self.met.get(&condition) {
                Some(Met::With(moment)) => moment.text(),
                Some(Met::Before) if condition == Condition::Closed => continue,
                Some(Met::Before) => "at once".into(),
                None if condition == Condition::Disk => continue,
                None => "not yet".into(),
            };
            line(text, condition.name(), met);
        }
        if !self.before.is_empty() {
            let names = self.before.iter().take(BEFORE_MAX);
            let names: Vec<_> = names.map(|(ts, id)| format!("{id} ({})", ts.0)).collect();
            let more = self.before.len().saturating_sub(BEFORE_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            line(text, "before it were", format!("{}{more}", names.join(", ")));
        }
        let last: Vec<_> = self.last().into_iter().map(Condition::name).collect();
        if self.delivered.is_some() && !last.is_empty() {
            line(text, "it waited last for", last.join(" and "));
        }
        if let (None, Some(obstacles)) = (&self.delivered, &self.obstacles) {
            self.write_missing(obstacles, text);
        }
    }

    /// What it waits for at the end.
    fn write_missing(&self, obstacles: &Obstacles, text: &mut String) {
        let Obstacles { missing, leader_clock, quorum_clock, open, .. } = obstacles;
        let (leader, quorum) = (leader_clock.0, quorum_clock.0);
        line(text, "the clocks are at", format!("{leader} and {quorum}"));
        for (what, groups) in [("timestamps are missing of", missing), ("not closed are", open)] {
            if !groups.is_empty() {
                line(text, what, of_groups(groups));
            }
        }
    }
}
