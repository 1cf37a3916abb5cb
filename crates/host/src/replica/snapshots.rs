//! The state at one timestamp, kept for who reads it while the replica goes on (decision 95).
//!
//! A snapshot begins as a clone of the partition, which shares with it what does not change. From
//! then on it hears what the partition hears, and holds it back until its timestamp is told: it
//! takes what comes before that, and drops what comes after it. So it has exactly the messages up
//! to its timestamp, in whatever order the replica delivers those that commute, and nobody waits
//! for it.
//!
//! It is in the memory of this replica alone. A node that is started anew has none, nor has a
//! replica that got its state from another while it was not whole; the client asks another.
//!
//! Invariants:
//! - T1: a snapshot that is whole has all messages of its group up to its timestamp, and no other.
//! - T2: no block is freed here that a snapshot names or, before it is whole, may come to name.

use super::Replica;
use crate::api::{LOOKS_MAX, Refusal, ReplyBody, SnapshotStand, SnapshotStep};
use crate::mutation::Mutation;
use meridian_core::{BlockId, GroupId, MessageId, Stamp};
use meridian_fs::vote::Vote;
use meridian_fs::{Operation, Partition, Query, Update};
use meridian_multicast::{self as multicast, Touches};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a snapshot is kept without a word from its client.
pub const SNAPSHOT_LEASE: Duration = Duration::from_secs(60);
/// So many are kept at a replica at most: each costs what changes while it is kept.
const SNAPSHOTS_MAX: usize = 4;
/// So many messages and votes are held back for one: some seconds of a busy group, while it takes a
/// round trip or two between regions to agree on a timestamp.
const HELD_MAX: usize = 1 << 16;
/// Answers of so many bytes go into a reply, and one more: a quarter of a frame.
const ANSWERS_BYTES: usize = 1 << 20;

/// What a replica has heard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Heard {
    Execute(MessageId, Stamp, Operation),
    Refuse(MessageId, Stamp, Update),
    Skip(MessageId, Stamp),
    Vote(MessageId, GroupId, Vote),
}

impl Heard {
    /// The timestamp of a message; a vote goes with its own, which may still come.
    fn ts(&self) -> Stamp {
        match self {
            Heard::Execute(_, ts, _) | Heard::Refuse(_, ts, _) | Heard::Skip(_, ts) => *ts,
            Heard::Vote(..) => Stamp(0),
        }
    }

    /// The original has said all that follows from it.
    fn apply(self, tree: &mut Partition) {
        let effects = &mut Vec::new();
        match self {
            Heard::Execute(id, ts, operation) => tree.deliver(id, ts, operation, effects),
            Heard::Refuse(id, ts, update) => tree.refuse(id, ts, &update, effects),
            Heard::Skip(id, ts) => tree.skip(id, ts, effects),
            Heard::Vote(id, from, vote) => tree.vote(id, from, vote, effects),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Snapshot {
    tree: Partition,
    /// None until it is told.
    at: Option<Stamp>,
    /// What comes after that, as far as is known: a later timestamp may be told.
    held: Vec<Heard>,
    /// It was whole, and is being read: no other timestamp will be told.
    settled: bool,
    /// How long nobody has asked for it.
    idle: Duration,
}

impl Snapshot {
    fn hear(&mut self, heard: Heard, mutation: Mutation) {
        let is_in = |at| heard.ts() <= at || mutation.is(Mutation::TakesAtOnce);
        match self.at {
            Some(at) if is_in(at) => heard.apply(&mut self.tree),
            _ => self.held.push(heard),
        }
    }

    fn cut(&mut self, at: Stamp, mutation: Mutation) {
        self.at = self.at.max(Some(at));
        for heard in std::mem::take(&mut self.held) {
            self.hear(heard, mutation);
        }
    }
}

/// The snapshots of a replica, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Snapshots {
    kept: BTreeMap<u64, Snapshot>,
    mutation: Mutation,
}

impl Snapshots {
    /// The partition is about to hear this. What is settled needs no more.
    pub fn hear(&mut self, heard: impl Fn() -> Heard) {
        let mutation = self.mutation;
        for snapshot in self.kept.values_mut().filter(|snapshot| !snapshot.settled) {
            snapshot.hear(heard(), mutation);
        }
        self.kept.retain(|_, snapshot| snapshot.held.len() <= HELD_MAX);
    }

    /// Those go that nobody has asked for.
    pub fn age(&mut self, by: Duration) {
        self.kept.values_mut().for_each(|snapshot| snapshot.idle += by);
        self.kept.retain(|_, snapshot| snapshot.idle < SNAPSHOT_LEASE);
    }

    /// Something was not heard: those go that may lack it.
    pub fn lose(&mut self) {
        self.kept.retain(|_, snapshot| snapshot.settled);
    }

    pub fn plant(&mut self, mutation: Mutation) {
        self.mutation = mutation;
    }
}

impl Replica {
    /// A client asks for a step with the snapshot of that name; it may look at all of the tree or
    /// not.
    pub fn on_snapshot(&mut self, name: u64, step: SnapshotStep, sees_all: bool) -> ReplyBody {
        let refused = |why: &str| ReplyBody::Refused(Refusal::Bad(why.into()));
        if !sees_all {
            return refused(
                "not authorized: a snapshot shows all of the tree, not what was granted",
            );
        }
        if let Some(snapshot) = self.snapshots.kept.get_mut(&name) {
            snapshot.idle = Duration::ZERO;
        }
        let kept = &mut self.snapshots.kept;
        ReplyBody::Snapshot(match step {
            SnapshotStep::Keep if kept.contains_key(&name) => SnapshotStand::Kept,
            SnapshotStep::Keep if kept.len() >= SNAPSHOTS_MAX => {
                return refused("as many snapshots are kept as may be; each ends with its backup");
            }
            SnapshotStep::Keep => {
                let tree = self.partition.clone();
                let (at, held, idle) = (None, Vec::new(), Duration::ZERO);
                kept.insert(name, Snapshot { tree, at, held, settled: false, idle });
                SnapshotStand::Kept
            }
            SnapshotStep::Cut(at) => self.cut_snapshot(name, at),
            SnapshotStep::Look { queries, .. } if queries.len() > LOOKS_MAX => {
                return refused("too many questions at a time");
            }
            SnapshotStep::Look { at, queries } => self.look_at_snapshot(name, at, &queries),
            SnapshotStep::Renew if kept.contains_key(&name) => SnapshotStand::Kept,
            SnapshotStep::Renew => SnapshotStand::Unknown,
            SnapshotStep::End => {
                kept.remove(&name);
                SnapshotStand::Unknown
            }
        })
    }

    fn cut_snapshot(&mut self, name: u64, at: Stamp) -> SnapshotStand {
        let mutation = self.snapshots.mutation;
        let snapshot = self.snapshots.kept.get_mut(&name);
        let Some(snapshot) = snapshot.filter(|snapshot| !snapshot.settled) else {
            return SnapshotStand::Unknown;
        };
        if snapshot.tree.latest() > at && !mutation.is(Mutation::TakesAtOnce) {
            return SnapshotStand::Passed;
        }
        snapshot.cut(at, mutation);
        match self.snapshot(name, at) {
            Some(tree) => SnapshotStand::Whole(tree.vector().clone()),
            None => SnapshotStand::Waiting,
        }
    }

    /// The state at that timestamp, if it is kept under that name and whole.
    pub fn snapshot(&self, name: u64, at: Stamp) -> Option<&Partition> {
        let Snapshot { tree, at: cut, settled, .. } = self.snapshots.kept.get(&name)?;
        let all_told = || self.partition.delivered() == self.multicast.delivered();
        let all_came = || self.multicast.reached(&Touches::All, multicast::Timestamp(at.0));
        let hasty = self.snapshots.mutation.is(Mutation::WaitsForNothing);
        let all_decided = tree.applied().0 == tree.delivered().0;
        let whole = *settled || hasty || all_decided && all_told() && all_came();
        (*cut == Some(at) && whole).then_some(tree)
    }

    fn look_at_snapshot(&mut self, name: u64, at: Stamp, queries: &[Query]) -> SnapshotStand {
        let Some(tree) = self.snapshot(name, at) else { return SnapshotStand::Unknown };
        let (mut answers, mut bytes) = (Vec::new(), 0);
        for query in queries {
            let answer = tree.read(query);
            bytes += postcard::to_stdvec(&answer).map_or(0, |encoded| encoded.len());
            answers.push(answer);
            if bytes >= ANSWERS_BYTES {
                break;
            }
        }
        if let Some(snapshot) = self.snapshots.kept.get_mut(&name) {
            (snapshot.settled, snapshot.held) = (true, Vec::new());
        }
        SnapshotStand::Answers(answers)
    }

    /// Of blocks that no file lies in any more: those that no snapshot needs, and the others (T2).
    pub(crate) fn without_kept(&self, blocks: Vec<BlockId>) -> (Vec<BlockId>, Vec<BlockId>) {
        let kept = &self.snapshots.kept;
        if kept.is_empty() || self.snapshots.mutation.is(Mutation::FreesKept) {
            return (blocks, Vec::new());
        }
        if kept.values().any(|snapshot| !snapshot.settled) {
            return (Vec::new(), blocks);
        }
        let needed = |block: &BlockId| {
            kept.values().any(|snapshot| snapshot.tree.unnamed([*block]).is_empty())
        };
        blocks.into_iter().partition(|block| !needed(block))
    }
}

#[cfg(test)]
#[path = "snapshots_tests.rs"]
mod tests;
