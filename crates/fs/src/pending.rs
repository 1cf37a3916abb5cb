//! Messages that were delivered and are not decided yet.
//!
//! Each touches some keys, inodes and clients, and waits in the queue of each. A message is looked
//! at when it is the first in all its queues; so two messages that touch the same key are executed
//! in the order of their ranks, and the state does not depend on when votes arrive.
//!
//! Invariants:
//! - Q1: the queues hold each waiting message under exactly its keys.
//! - Q2: messages come to a queue in the order of their ranks: those of a queue conflict, and the
//!   multicast delivers them in order.

use crate::keys::Key;
use crate::operation::Operation;
use crate::types::Rank;
use crate::vote::Vote;
use imbl::{OrdMap, OrdSet};
use meridian_core::{ClientId, GroupId, MessageId, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Before and after all ranks.
const FIRST: Rank = (Stamp(0), MessageId { client: ClientId(0), sequence: 0 });
const LAST: Rank = (Stamp(u64::MAX), MessageId { client: ClientId(u64::MAX), sequence: u64::MAX });

/// A message that was delivered and is not decided yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Waiting {
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

    /// The partitions but `own` where others hold what it changes.
    pub fn held(&self, own: GroupId) -> Vec<GroupId> {
        let held = self.votes.iter().filter(|(from, vote)| vote.held && **from != own);
        held.map(|(from, _)| *from).collect()
    }
}

/// All such messages, and votes for messages that are not delivered yet.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Pending {
    waiting: OrdMap<Rank, Arc<Waiting>>,
    by_id: OrdMap<MessageId, Stamp>,
    queues: OrdSet<(Key, Rank)>,
    early: OrdMap<MessageId, BTreeMap<GroupId, Vote>>,
}

impl Pending {
    /// Whether no message waits for any of the keys.
    pub fn is_free(&self, keys: &BTreeSet<Key>) -> bool {
        self.queues.is_empty() || keys.iter().all(|key| self.first(*key).is_none())
    }

    /// The first message that waits for `key`.
    pub fn first(&self, key: Key) -> Option<Rank> {
        let mut all = self.queues.range((key, FIRST)..=(key, LAST));
        all.next().map(|(_, rank)| *rank)
    }

    fn last(&self, key: Key) -> Option<Rank> {
        let mut all = self.queues.range((key, FIRST)..=(key, LAST));
        all.next_back().map(|(_, rank)| *rank)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the votes that came before the message itself.
    pub fn take_early(&mut self, id: MessageId) -> BTreeMap<GroupId, Vote> {
        self.early.remove(&id).unwrap_or_default()
    }

    /// Adds a message that was delivered.
    pub fn add(&mut self, rank: Rank, waiting: Waiting) {
        let before = self.by_id.insert(rank.1, rank.0);
        assert_eq!(before, None, "{} was delivered twice", rank.1);
        for key in &waiting.keys {
            let last = self.last(*key);
            assert!(
                last < Some(rank),
                "Q2: {rank:?} comes after {last:?} and touches {key:?}, too"
            );
            self.queues.insert((*key, rank));
        }
        self.waiting.insert(rank, Arc::new(waiting));
    }

    /// Notes a vote; answers where the message waits if that is new.
    pub fn vote(&mut self, id: MessageId, from: GroupId, vote: Vote) -> Option<Rank> {
        let Some(ts) = self.by_id.get(&id).copied() else {
            self.early.entry(id).or_default().entry(from).or_insert(vote);
            return None;
        };
        let rank = (ts, id);
        let waiting = self.waiting.get(&rank)?;
        if !waiting.others.contains(&from) || waiting.votes.contains_key(&from) {
            return None;
        }
        self.note(rank, from, vote);
        Some(rank)
    }

    /// Notes a vote, perhaps this partition's own, for the message of that rank.
    pub fn note(&mut self, rank: Rank, from: GroupId, vote: Vote) {
        let waiting = self.waiting.get_mut(&rank).expect("the caller found it");
        Arc::make_mut(waiting).votes.insert(from, vote);
    }

    pub fn get(&self, rank: Rank) -> Option<&Waiting> {
        self.waiting.get(&rank).map(Arc::as_ref)
    }

    pub fn find(&self, id: MessageId) -> Option<&Waiting> {
        self.get((*self.by_id.get(&id)?, id))
    }

    /// The rank of a message that waits.
    pub fn rank_of(&self, id: MessageId) -> Option<Rank> {
        self.by_id.get(&id).map(|ts| (*ts, id))
    }

    /// Whether the message of that rank is the first in all its queues.
    pub fn is_first(&self, waiting: &Waiting, rank: Rank) -> bool {
        waiting.keys.iter().all(|key| self.first(*key) == Some(rank))
    }

    /// Takes a message out of its queues; answers it and who is first there now.
    pub fn remove(&mut self, rank: Rank) -> (Waiting, BTreeSet<Rank>) {
        let waiting = self.waiting.remove(&rank).expect("the caller found it");
        let waiting = Arc::unwrap_or_clone(waiting);
        self.by_id.remove(&rank.1);
        for key in &waiting.keys {
            self.queues.remove(&(*key, rank));
        }
        let next = waiting.keys.iter().filter_map(|key| self.first(*key)).collect();
        (waiting, next)
    }

    /// The greatest timestamp of those that wait.
    pub fn latest(&self) -> Option<Stamp> {
        self.waiting.get_max().map(|((ts, _), _)| *ts)
    }

    /// All that wait, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &Waiting)> {
        self.waiting.iter().map(|(rank, waiting)| (*rank, waiting.as_ref()))
    }

    /// Panics unless Q1 holds.
    pub fn check_invariants(&self) {
        let mut queued = 0;
        for (rank, waiting) in self.iter() {
            assert_eq!(self.by_id.get(&rank.1), Some(&rank.0), "Q1: {}", rank.1);
            let all = waiting.keys.iter().all(|key| self.queues.contains(&(*key, rank)));
            assert!(all, "Q1: {} misses a queue", rank.1);
            queued += waiting.keys.len();
        }
        assert_eq!(queued, self.queues.len(), "Q1: a queue holds a message that is decided");
        assert_eq!(self.by_id.len(), self.waiting.len(), "Q1: names");
        let early = self.early.keys().find(|id| self.by_id.contains_key(*id));
        assert_eq!(early, None, "Q1: votes lie aside for a message that is here");
    }
}
