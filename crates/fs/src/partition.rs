//! One partition of the tree: executes the messages that its group delivers.
//!
//! After GlobalFS (thesis, sections 3.3 and 3.4), with one difference: only the partitions that an
//! update concerns take part in it, and each goes on with what does not touch its inodes.
//!
//! - An update of one partition is decided when it is first in its queues ([`crate::pending`]).
//! - An update of several is decided when, moreover, all of them have voted ([`crate::vote`]).
//!
//! Invariants:
//! - P1: equal deliveries give equal states, whenever the votes come.
//! - P2: all messages up to `applied` are decided, the one after it is not.
//! - P3: whoever sees an update here, and all that this partition's vector says elsewhere, sees
//!   the update elsewhere, too.

use crate::FsError;
use crate::apply::{Moment, apply};
use crate::execute::execute;
use crate::inode::Inode;
use crate::keys::keys_of;
use crate::operation::{Answer, Done, Operation, Query, Update};
use crate::pending::{Pending, Waiting};
use crate::read::read;
use crate::tree::Tree;
use crate::types::{Entry, Ino, Kind, Place, Timestamp, Vector};
use crate::vote::{Vote, conclude, prepare};
use bytes::Bytes;
use imbl::OrdMap;
use meridian_core::{BlockId, ClientId, GroupId, MessageId, Position, Topology};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

/// Something that a [`Partition`] wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this vote to all replicas of these partitions.
    Vote {
        /// The other partitions that the message concerns.
        to: Vec<GroupId>,
        /// The message.
        id: MessageId,
        /// This partition's vote.
        vote: Vote,
    },
    /// The message is decided and applied here.
    Done {
        /// The message.
        id: MessageId,
        /// What came of it: the same in every partition that it concerns.
        result: Result<Done, FsError>,
    },
}

/// The state of one partition of the tree. Cheap to clone: clones share what they have in common.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Partition {
    pub(crate) tree: Tree,
    pub(crate) pending: Pending,
    /// This partition's votes, kept for those who may have missed them.
    own_votes: OrdMap<MessageId, Vote>,
    delivered: Position,
    applied: Position,
    vector: Vector,
    /// Of the messages up to `applied` and what came of them.
    state_hash: u64,
    /// The same of single messages that are decided though earlier ones are not.
    ahead: OrdMap<Position, u64>,
}

impl Partition {
    /// The state before the first message: the top directory of the partition. That of `global` is
    /// the root, which has an entry for each region.
    pub fn new(topology: &Topology, group: GroupId) -> Partition {
        let mut tree = Tree::new(group);
        let mode = if group == GroupId::GLOBAL { 0o755 } else { 0o777 };
        let top = Ino::made(group, Position(0));
        tree.insert(top, Inode::directory(Place::ROOT, mode, Timestamp::default()));
        if group == GroupId::GLOBAL {
            for (region, id) in topology.group_ids().map(|id| (topology.group(id), id)) {
                if region.region.is_none() {
                    continue;
                }
                let place = Place { ino: Ino::made(id, Position(0)), partition: id };
                let name = Bytes::copy_from_slice(region.name.as_bytes());
                tree.change_directory(top, |directory, nlink| {
                    directory.set(nlink, name, Entry { place, kind: Kind::Directory });
                });
            }
        }
        Partition {
            tree,
            pending: Pending::default(),
            own_votes: OrdMap::new(),
            delivered: Position(0),
            applied: Position(0),
            vector: Vector::default(),
            state_hash: 0,
            ahead: OrdMap::new(),
        }
    }

    /// The message `id` was delivered as the next one.
    ///
    /// The destinations of the message must be the partitions that the update concerns: with others
    /// it would wait for ever. Whoever delivers checks that, and else calls [`Partition::skip`].
    ///
    /// # Panics
    /// If a message of that name already waits.
    pub fn deliver(&mut self, id: MessageId, operation: Operation, out: &mut Vec<Effect>) {
        let position = self.next_position();
        let early = self.pending.take_early(id);
        let mut others = operation.update.partitions();
        if !others.remove(&self.tree.group) {
            self.finish(id, position, Err(FsError::Invalid), out);
            return;
        }
        let keys = keys_of(&self.tree, &self.pending, &operation.update, position);
        if others.is_empty() && self.pending.is_free(&keys) {
            let result = self.decide_alone(operation, position);
            self.finish(id, position, result, out);
            return;
        }
        let votes = early.into_iter().filter(|(from, _)| others.contains(from)).collect();
        self.pending.add(position, Waiting { id, operation, keys, others, votes });
        self.advance(position, out);
    }

    /// A message was delivered that changes nothing, because its payload makes no sense.
    pub fn skip(&mut self, id: MessageId) {
        let position = self.next_position();
        self.pending.take_early(id);
        self.note_decided(id, position, &Err(FsError::Invalid));
    }

    /// The partition `from` voted on the message `id`, which may not be delivered here yet. What was
    /// heard before is ignored. The message must not be decided here already.
    pub fn vote(&mut self, id: MessageId, from: GroupId, vote: Vote, out: &mut Vec<Effect>) {
        if let Some(position) = self.pending.vote(id, from, vote) {
            self.advance(position, out);
        }
    }

    /// Messages delivered here that wait for votes, and the partitions whose votes are missing.
    pub fn waiting(&self) -> Vec<(MessageId, Vec<GroupId>)> {
        let all = self.pending.iter();
        all.map(|(_, waiting)| (waiting.id, waiting.missing().collect::<Vec<_>>()))
            .filter(|(_, missing)| !missing.is_empty())
            .collect()
    }

    /// This partition's vote on a message, from when it was cast until [`Partition::forget_vote`].
    pub fn own_vote(&self, id: MessageId) -> Option<&Vote> {
        self.own_votes.get(&id)
    }

    /// All replicas of the other partitions have this partition's vote on the message.
    pub fn forget_vote(&mut self, id: MessageId) {
        self.own_votes.remove(&id);
    }

    /// Answers a query from what is applied here.
    ///
    /// # Errors
    /// What a program would see; [`FsError::Stale`] if the inode lives in another partition.
    pub fn read(&self, query: &Query) -> Result<Answer, FsError> {
        read(&self.tree, query)
    }

    /// How many messages were delivered.
    pub fn delivered(&self) -> Position {
        self.delivered
    }

    /// Up to which message all are decided and applied.
    pub fn applied(&self) -> Position {
        self.applied
    }

    /// What one must have seen of each partition who has seen this state; of this partition
    /// itself [`Partition::applied`].
    pub fn vector(&self) -> &Vector {
        &self.vector
    }

    /// A hash of the messages up to [`Partition::applied`] and of what came of them: equal at all
    /// replicas where that is equal.
    pub fn state_hash(&self) -> u64 {
        self.state_hash
    }

    /// The clients that hold locks or files without a name here, and a number for each that grows
    /// with every renewal: what [`Update::Expire`] must name. It does not start at 0.
    pub fn leases(&self) -> impl Iterator<Item = (ClientId, u64)> {
        self.tree.leases.iter().map(|(client, lease)| (client, lease.renewals))
    }

    /// Which partition it is.
    pub fn group(&self) -> GroupId {
        self.tree.group
    }

    /// All blocks that files here hold bytes in, one that several extents lie in several times.
    /// Walks the whole tree.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.tree.iter().flat_map(|(_, inode)| inode.blocks())
    }

    fn next_position(&mut self) -> Position {
        self.delivered = Position(self.delivered.0 + 1);
        self.delivered
    }

    /// Goes on with the message at `position`, and with all that waited for it.
    fn advance(&mut self, position: Position, out: &mut Vec<Effect>) {
        let mut ready = BTreeSet::from([position]);
        while let Some(position) = ready.pop_first() {
            let Some(waiting) = self.pending.get(position) else { continue };
            if !self.pending.is_first(waiting, position) {
                continue;
            }
            if waiting.others.is_empty() {
                let (waiting, next) = self.pending.remove(position);
                let result = self.decide_alone(waiting.operation, position);
                self.finish(waiting.id, position, result, out);
                ready.extend(next);
                continue;
            }
            if !waiting.votes.contains_key(&self.tree.group) {
                self.cast_vote(position, out);
            }
            if self.pending.get(position).is_some_and(|waiting| waiting.missing().next().is_none())
            {
                let (waiting, next) = self.pending.remove(position);
                let id = waiting.id;
                let result = self.decide_together(waiting, position);
                self.finish(id, position, result, out);
                ready.extend(next);
            }
        }
    }

    /// Votes on the message at `position`, which is first in its queues.
    fn cast_vote(&mut self, position: Position, out: &mut Vec<Effect>) {
        let waiting = self.pending.get(position).expect("the caller found it");
        let Operation { update, time, .. } = &waiting.operation;
        let vote = Vote { position, result: prepare(&self.tree, update, *time) };
        let (id, to) = (waiting.id, waiting.others.iter().copied().collect());
        self.own_votes.insert(id, vote.clone());
        self.pending.note(position, self.tree.group, vote.clone());
        out.push(Effect::Vote { to, id, vote });
    }

    /// Decides and applies an update that concerns this partition only.
    fn decide_alone(&mut self, operation: Operation, position: Position) -> Result<Done, FsError> {
        let Operation { vector, time, update } = operation;
        let moment = Moment { position, time };
        let done = if names_several(&update) {
            let vote = prepare(&self.tree, &update, time);
            let conclusion = conclude(&update, &BTreeMap::from([(self.tree.group, &vote)]))?;
            apply(&mut self.tree, &update, conclusion, moment)
        } else {
            execute(&mut self.tree, update, moment)?
        };
        self.merge(&vector);
        Ok(done)
    }

    /// Decides an update of several partitions, all of which have voted, and applies its part here.
    fn decide_together(&mut self, waiting: Waiting, position: Position) -> Result<Done, FsError> {
        let Waiting { operation: Operation { vector, time, update }, votes, .. } = waiting;
        for (from, vote) in votes.iter().filter(|(from, _)| **from != self.tree.group) {
            self.vector.raise(*from, vote.position); // Also for a refusal: it tells of that state.
        }
        let results = votes.iter().map(|(from, vote)| (*from, &vote.result)).collect();
        let conclusion = conclude(&update, &results)?;
        let done = apply(&mut self.tree, &update, conclusion, Moment { position, time });
        self.merge(&vector);
        Ok(done)
    }

    /// Whoever sees this state must see what the client had seen. Of this partition itself it saw
    /// what was delivered before its message.
    fn merge(&mut self, seen: &Vector) {
        for (partition, position) in &seen.0 {
            if *partition != self.tree.group {
                self.vector.raise(*partition, *position);
            }
        }
    }

    fn finish(
        &mut self,
        id: MessageId,
        position: Position,
        result: Result<Done, FsError>,
        out: &mut Vec<Effect>,
    ) {
        self.note_decided(id, position, &result);
        out.push(Effect::Done { id, result });
    }

    fn note_decided(&mut self, id: MessageId, position: Position, result: &Result<Done, FsError>) {
        let mut hasher = Fnv::default();
        (position, id, result).hash(&mut hasher);
        let mut next = Some(hasher.finish());
        if position.0 != self.applied.0 + 1 {
            self.ahead.insert(position, hasher.finish());
            next = None;
        }
        while let Some(hash) = next {
            let mut hasher = Fnv::default();
            (self.state_hash, hash).hash(&mut hasher);
            self.state_hash = hasher.finish();
            self.applied = Position(self.applied.0 + 1);
            next = self.ahead.remove(&Position(self.applied.0 + 1));
        }
        self.vector.raise(self.tree.group, self.applied);
    }

    /// Panics if the state contradicts itself. Walks all of it: for the simulator and tests.
    pub fn check_invariants(&self) {
        crate::invariants::check_partition(self);
        let first = self.pending.iter().next().map(|(position, _)| position);
        let applied = first.map_or(self.delivered, |first| Position(first.0 - 1));
        assert_eq!(self.applied, applied, "P2: applied");
        assert_eq!(self.vector.get(self.tree.group), self.applied, "P2: own entry of the vector");
    }
}

/// Whether an update concerns several inodes, and so perhaps several partitions.
fn names_several(update: &Update) -> bool {
    match update {
        Update::Link { .. }
        | Update::Unlink { .. }
        | Update::Rmdir { .. }
        | Update::Rename { .. }
        | Update::PlaceDirectory { .. } => true,
        Update::Create { .. }
        | Update::SetAttributes { .. }
        | Update::Write { .. }
        | Update::PunchHole { .. }
        | Update::SetXattr { .. }
        | Update::RemoveXattr { .. }
        | Update::Lock { .. }
        | Update::Unlock { .. }
        | Update::Forget { .. }
        | Update::Renew { .. }
        | Update::Expire { .. } => false,
    }
}

/// FNV-1a of 64 bits: the same on every machine and in every version of the standard library.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
