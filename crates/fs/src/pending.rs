//! Messages that were delivered and are not decided yet.
//!
//! Each touches some keys, inodes and clients, and waits in the queue of each. A message is looked
//! at when it is the first in all its queues; so two messages that touch the same key are executed
//! in the order of delivery, and the state does not depend on when votes arrive.
//!
//! Invariant: Q1: the queues hold each waiting message under exactly its keys.

use crate::operation::Operation;
use crate::types::Ino;
use crate::vote::Vote;
use imbl::{OrdMap, OrdSet};
use meridian_core::{ClientId, GroupId, MessageId, Position};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What messages queue for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Key {
    /// An inode: all of it.
    Inode(Ino),
    /// What a client holds.
    Client(ClientId),
}

/// A message that was delivered and is not decided yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub id: MessageId,
    pub operation: Operation,
    pub keys: BTreeSet<Key>,
    /// The other partitions that it concerns.
    pub others: BTreeSet<GroupId>,
    /// What they said, and what this partition said.
    pub votes: BTreeMap<GroupId, Vote>,
}

impl Waiting {
    /// The other partitions whose votes are missing.
    pub fn missing(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.others.iter().filter(|group| !self.votes.contains_key(group)).copied()
    }
}

/// All such messages, and votes for messages that are not delivered yet.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Pending {
    waiting: OrdMap<Position, Arc<Waiting>>,
    by_id: OrdMap<MessageId, Position>,
    queues: OrdSet<(Key, Position)>,
    early: OrdMap<MessageId, BTreeMap<GroupId, Vote>>,
}

impl Pending {
    /// Whether no message waits for any of the keys.
    pub fn is_free(&self, keys: &BTreeSet<Key>) -> bool {
        self.queues.is_empty() || keys.iter().all(|key| self.queue(*key).next().is_none())
    }

    /// The messages that wait for `key`, in order.
    pub fn queue(&self, key: Key) -> impl Iterator<Item = Position> + '_ {
        let all = (key, Position(0))..=(key, Position(u64::MAX));
        self.queues.range(all).map(|(_, position)| *position)
    }

    /// Takes the votes that came before the message itself.
    pub fn take_early(&mut self, id: MessageId) -> BTreeMap<GroupId, Vote> {
        self.early.remove(&id).unwrap_or_default()
    }

    /// Adds the message delivered at `position`.
    pub fn add(&mut self, position: Position, waiting: Waiting) {
        let before = self.by_id.insert(waiting.id, position);
        assert_eq!(before, None, "{} was delivered twice", waiting.id);
        self.queues.extend(waiting.keys.iter().map(|key| (*key, position)));
        self.waiting.insert(position, Arc::new(waiting));
    }

    /// Notes a vote; answers where the message waits if that is new.
    pub fn vote(&mut self, id: MessageId, from: GroupId, vote: Vote) -> Option<Position> {
        let Some(position) = self.by_id.get(&id).copied() else {
            self.early.entry(id).or_default().entry(from).or_insert(vote);
            return None;
        };
        let waiting = self.waiting.get(&position)?;
        if !waiting.others.contains(&from) || waiting.votes.contains_key(&from) {
            return None;
        }
        self.note(position, from, vote);
        Some(position)
    }

    /// Notes a vote, perhaps this partition's own, for the message at `position`.
    pub fn note(&mut self, position: Position, from: GroupId, vote: Vote) {
        let waiting = self.waiting.get_mut(&position).expect("the caller found it");
        Arc::make_mut(waiting).votes.insert(from, vote);
    }

    pub fn get(&self, position: Position) -> Option<&Waiting> {
        self.waiting.get(&position).map(Arc::as_ref)
    }

    /// Whether the message at `position` is the first in all its queues.
    pub fn is_first(&self, waiting: &Waiting, position: Position) -> bool {
        waiting.keys.iter().all(|key| self.queue(*key).next() == Some(position))
    }

    /// Takes the message at `position` out of its queues; answers it and who is first there now.
    pub fn remove(&mut self, position: Position) -> (Waiting, BTreeSet<Position>) {
        let waiting = self.waiting.remove(&position).expect("the caller found it");
        let waiting = Arc::unwrap_or_clone(waiting);
        self.by_id.remove(&waiting.id);
        for key in &waiting.keys {
            self.queues.remove(&(*key, position));
        }
        let next = waiting.keys.iter().filter_map(|key| self.queue(*key).next()).collect();
        (waiting, next)
    }

    /// All that wait, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Position, &Waiting)> {
        self.waiting.iter().map(|(position, waiting)| (*position, waiting.as_ref()))
    }

    /// Panics unless Q1 holds.
    pub fn check_invariants(&self) {
        let mut queued = 0;
        for (position, waiting) in self.iter() {
            assert_eq!(self.by_id.get(&waiting.id), Some(&position), "Q1: {}", waiting.id);
            let all = waiting.keys.iter().all(|key| self.queues.contains(&(*key, position)));
            assert!(all, "Q1: {} misses a queue", waiting.id);
            queued += waiting.keys.len();
        }
        assert_eq!(queued, self.queues.len(), "Q1: a queue holds a message that is decided");
        assert_eq!(self.by_id.len(), self.waiting.len(), "Q1: names");
        let early = self.early.keys().find(|id| self.by_id.contains_key(*id));
        assert_eq!(early, None, "Q1: votes lie aside for a message that is here");
    }
}
