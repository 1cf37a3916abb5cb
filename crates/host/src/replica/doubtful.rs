//! Messages of which the records of a replica do not say what came of them, for who reads the state
//! of a node that has stopped.

use super::Replica;
use crate::update::Payload;
use meridian_core::{GroupId, MessageId};
use meridian_fs::{Timestamp, Update};
use meridian_multicast::Start;

/// A message that was known, and perhaps not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubtful {
    /// Its name.
    pub id: MessageId,
    /// What it is to do, and when its client asked for that; none if it changes no files.
    pub change: Option<(Timestamp, Update)>,
    /// How far it got.
    pub stage: Stage,
    /// The groups whose word is missing: of which there is no timestamp, or no vote.
    pub waits_for: Vec<GroupId>,
}

/// How far a message got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is taken as decided, and applied ([`crate::Node::deliver_rest`]).
    Assumed,
    /// It was delivered, and not decided.
    Delivered,
    /// It is in the log of its group, and was not delivered: others may have done so, or never
    /// have heard of it.
    Proposed,
}

impl Doubtful {
    pub(crate) fn of(start: &Start, stage: Stage, waits_for: Vec<GroupId>) -> Doubtful {
        let payload = Payload::read(start).ok();
        let change = payload.and_then(|payload| payload.change);
        let change = change.map(|change| (change.time, change.update));
        Doubtful { id: start.id, change, stage, waits_for }
    }
}

impl Replica {
    /// Messages that this replica knows of and has not applied: those that were delivered first,
    /// each kind in its order.
    pub fn doubtful(&self) -> impl Iterator<Item = Doubtful> {
        let delivered = self.partition.undecided().map(|(id, operation, waits_for)| {
            let change = Some((operation.time, operation.update.clone()));
            Doubtful { id, change, stage: Stage::Delivered, waits_for }
        });
        let proposed = self.multicast.undelivered();
        let proposed = proposed.map(|(start, of)| Doubtful::of(start, Stage::Proposed, of));
        delivered.chain(proposed)
    }
}
