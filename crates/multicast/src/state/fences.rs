//! Groups that were lost: what this process reports of them, who else is sealed, and as an heir the
//! reports of the others.

use crate::message::{Fence, Start, Timestamp};
use crate::state::done::{Done, Known};
use bytes::Bytes;
use meridian_core::{GroupId, MessageId, ProcessId, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How much of a report travels in one message, in bytes.
const PART: usize = 512 << 10;

/// What this process is sealed by, by group.
pub(crate) type Seals = BTreeMap<GroupId, Seal>;

/// A process is sealed for a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Seal {
    pub fence: Arc<Fence>,
    /// What it knew then, encoded: a [`Report`]. Nothing once the heirs are known to go on.
    pub report: Bytes,
}

/// What a process knows of a lost group when it is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// No less than the clock, and than any timestamp up to which something was delivered.
    pub clock: Timestamp,
    /// The messages to the group in `T` of which its timestamp, or the final one, is known.
    pub messages: Vec<Reported>,
    /// What was delivered and is in `T` no more.
    pub done: Done,
}

/// A message in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reported {
    pub start: Arc<Start>,
    /// What the lost group has decided.
    pub local: Option<Timestamp>,
    /// Its final timestamp.
    pub last: Option<Timestamp>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fences {
    pub seals: Seals,
    /// Who is known to be sealed for which group, by the number of the heirs' configuration.
    marks: BTreeMap<(ProcessId, GroupId), u64>,
    /// When lost processes that still speak were told.
    pub told: BTreeMap<ProcessId, Time>,
    /// As an heir that has no state yet: the parts of reports that have come, and whether all have.
    pub inheritance: Option<Inheritance>,
}

/// Reports under way to an heir.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Inheritance {
    pub parts: Parts,
    /// When they were last asked for.
    pub asked: Option<Time>,
}

/// Reports that come in parts: of each reporter so many bytes, and whether that is all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parts(BTreeMap<ProcessId, (Vec<u8>, bool)>);

impl Fences {
    /// The configuration of the heirs of `group`, if it was fenced.
    pub fn number(&self, group: GroupId) -> Option<u64> {
        self.seals.get(&group).map(|seal| seal.fence.config.number)
    }

    /// Whether `other` knows the same fences.
    pub fn are_those_of(&self, other: &Seals) -> bool {
        let numbers =
            |seals: &Seals| seals.values().map(|seal| seal.fence.config.number).collect::<Vec<_>>();
        self.seals.keys().eq(other.keys()) && numbers(&self.seals) == numbers(other)
    }

    /// `process` is sealed.
    pub fn mark(&mut self, process: ProcessId, fence: &Fence) {
        let number = self.marks.entry((process, fence.config.group)).or_default();
        *number = fence.config.number.max(*number);
    }

    /// Whether what `process` says of timestamps of messages to these groups counts: it is sealed
    /// for all of them for which we are, or is an heir.
    pub fn may_tell(&self, process: ProcessId, dest: &[GroupId]) -> bool {
        dest.iter().all(|group| {
            let marked = self.marks.get(&(process, *group)).copied();
            process.group == *group || self.number(*group) <= marked
        })
    }

    /// The same for whatever message.
    pub fn may_tell_all(&self, process: ProcessId) -> bool {
        self.seals.keys().all(|group| self.may_tell(process, &[*group]))
    }

    /// The heirs of `group` go on in configuration `number`, or a later one: they have all reports.
    pub fn succeeded(&mut self, group: GroupId, number: u64) {
        if let Some(seal) = self.seals.get_mut(&group)
            && seal.fence.config.number <= number
        {
            seal.report = Bytes::new();
        }
    }
}

impl Seal {
    /// The report, if it is still needed.
    pub fn decode(&self) -> Option<Report> {
        postcard::from_bytes(&self.report).ok()
    }
}

impl Parts {
    /// The part of a report that begins with that byte; `None` if there is no such byte in it.
    pub fn part(report: &Bytes, offset: u64) -> Option<Bytes> {
        let from = usize::try_from(offset).ok().filter(|from| *from < report.len())?;
        Some(report.slice(from..report.len().min(from + PART)))
    }

    /// How much of the report of `process` is here; `None` if it is complete.
    pub fn offset(&self, process: ProcessId) -> Option<u64> {
        match self.0.get(&process) {
            Some((_, true)) => None,
            Some((bytes, false)) => Some(bytes.len() as u64),
            None => Some(0),
        }
    }

    /// A part has come, of a report that is `total` bytes long; whether it was the next one.
    pub fn add(&mut self, from: ProcessId, offset: u64, bytes: &[u8], total: u64) -> bool {
        let next = self.offset(from) == Some(offset);
        if next {
            let (held, complete) = self.0.entry(from).or_default();
            held.extend_from_slice(bytes);
            *complete = held.len() as u64 >= total;
        }
        next
    }

    /// The reports that are complete.
    pub fn complete(&self) -> impl Iterator<Item = &[u8]> {
        let complete = self.0.values().filter(|(_, complete)| *complete);
        complete.map(|(bytes, _)| &bytes[..])
    }
}

impl Inheritance {
    /// The complete reports; `None` if one of them is damaged.
    pub fn reports(&self) -> Option<Vec<Report>> {
        self.parts.complete().map(|bytes| postcard::from_bytes(bytes).ok()).collect()
    }
}

/// What reports say together: the same whatever their order.
#[derive(Debug, Default)]
pub(crate) struct Estate {
    pub clock: Timestamp,
    pub done: Done,
    messages: BTreeMap<MessageId, Reported>,
}

impl Estate {
    /// # Panics
    /// Lemma 4: if two of them name two timestamps of the group for one message.
    pub fn new(reports: Vec<Report>) -> Estate {
        let mut estate = Estate::default();
        for Report { clock, messages, done } in reports {
            estate.clock = clock.max(estate.clock);
            estate.done.merge(done);
            messages.into_iter().for_each(|reported| estate.add(reported));
        }
        estate
    }

    fn add(&mut self, reported: Reported) {
        let id = reported.start.id;
        let Some(known) = self.messages.get_mut(&id) else {
            self.messages.insert(id, reported);
            return;
        };
        for (of, new) in [(&mut known.local, reported.local), (&mut known.last, reported.last)] {
            let agree = of.is_none() || new.is_none() || *of == new;
            assert!(agree, "Lemma 4: {id} is reported with {of:?} and {new:?}");
            *of = of.or(new);
        }
    }

    /// The messages, each with the timestamp that the group has given it, and the final one if it
    /// is known; ascending by that of the group. Who knows the final one only takes it for that of
    /// the group, too: the greatest of all is the same.
    ///
    /// What has ended, and nobody knows the timestamp of, was delivered by a quorum of each other
    /// destination: whoever lacks it gets it there.
    pub fn messages(&self) -> Vec<(Timestamp, Option<Timestamp>, Arc<Start>)> {
        let of = |(id, Reported { start, local, last }): (&MessageId, &Reported)| {
            let last = match self.done.known(*id) {
                Known::No => *last,
                Known::Delivered(ts) => last.or(Some(ts)),
                Known::Ended => Some((*last)?),
            };
            local.or(last).map(|ts| (ts, last, start.clone()))
        };
        let mut all: Vec<_> = self.messages.iter().filter_map(of).collect();
        all.sort_by_key(|(ts, _, start)| (*ts, start.id));
        all
    }
}
