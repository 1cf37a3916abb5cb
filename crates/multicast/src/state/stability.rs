//! Who has delivered what for good.

use crate::message::{Rank, Stable, Timestamp};
use crate::options::Limits;
use meridian_core::{ClientId, GroupId, MessageId, Position, ProcessId, Time};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// What a process has reported of its durable deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Report {
    pub delivered: Rank,
    pub except: BTreeSet<MessageId>,
}

impl Report {
    /// Whether a message with this final rank is durably delivered and applied there.
    pub fn covers(&self, rank: Rank) -> bool {
        rank <= self.delivered && !self.except.contains(&rank.1)
    }

    /// As it is sent.
    pub fn message(&self) -> Stable {
        let except = self.except.iter().copied().collect();
        Stable { delivered: self.delivered, except }
    }
}

/// Up to where all processes of each group have delivered all, looked up once: it answers for most
/// messages.
#[derive(Debug, Default)]
pub(crate) struct Common(SmallVec<[(GroupId, Option<Rank>); 4]>);

impl Common {
    pub fn up_to(&mut self, group: GroupId, look: impl FnOnce() -> Option<Rank>) -> Option<Rank> {
        if let Some((_, rank)) = self.0.iter().find(|(of, _)| *of == group) {
            return *rank;
        }
        let rank = look();
        self.0.push((group, rank));
        rank
    }
}

/// Who has delivered what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stability {
    /// How much is kept and named.
    pub limits: Limits,
    /// What this process has reported last.
    pub reported: Option<Report>,
    /// What each other process has reported last.
    pub reports: BTreeMap<ProcessId, Report>,
    /// The other groups that messages delivered since they were told of all went to, with the last
    /// such delivery.
    pub kept_for: BTreeMap<GroupId, Position>,
    /// The greatest rank among the deliveries that the owner has handled.
    pub settled: Option<Rank>,
    /// See [`PrimCast::handled`].
    pub handled: Option<Position>,
    /// See [`PrimCast::hold`].
    pub held: BTreeSet<Rank>,
    /// When retained gaps were last looked through.
    pub looked: Time,
}

impl Stability {
    /// Whether `process` has durably delivered the message with this final rank.
    pub fn has(&self, process: ProcessId, rank: Rank) -> bool {
        self.reports.get(&process).is_some_and(|report| report.covers(rank))
    }

    /// What `process` has reported last; `me` is this process.
    pub fn reported_by(&self, process: ProcessId, me: ProcessId) -> Option<Stable> {
        let own = process == me;
        let report = if own { self.reported.as_ref() } else { self.reports.get(&process) };
        report.map(Report::message)
    }

    /// A message was delivered that went to this other group, too.
    pub fn keep_for(&mut self, group: GroupId, position: Position) {
        self.kept_for.insert(group, position);
    }

    /// What `process` reported counts no more: it has lost its memory.
    pub fn forget(&mut self, process: ProcessId) {
        self.reports.remove(&process);
    }

    /// The owner's state is replaced: it says again what it holds.
    pub fn let_go(&mut self) {
        self.held.clear();
    }
}

/// The rank just before.
pub(crate) fn before((ts, id): Rank) -> Rank {
    let MessageId { client, sequence } = id;
    if let Some(sequence) = sequence.checked_sub(1) {
        return (ts, MessageId { client, sequence });
    }
    let (ts, client) = match client.0.checked_sub(1) {
        Some(client) => (ts, ClientId(client)),
        None => (Timestamp(ts.0.saturating_sub(1)), ClientId(u64::MAX)),
    };
    (ts, MessageId { client, sequence: u64::MAX })
}
