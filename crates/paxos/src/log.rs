//! The log: what is known of each instance (report, section 4.2).
//!
//! It begins at `base`; what was before is in snapshots. All below `decided` are decided and
//! executed.
//!
//! Invariants:
//! - G1: a decided entry has a value, and never another one.
//! - G2: the vote of an entry that is not decided never goes to an earlier view.

use crate::batch::Batch;
use crate::view::{Instance, View};
use meridian_core::{NodeId, Time};
use std::collections::VecDeque;

/// What an entry takes beside its value, about, in bytes.
pub(crate) const ENTRY_LEN: usize = 100;

/// Who has accepted the value of an instance in one view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Accepts {
    view: View,
    nodes: Vec<NodeId>,
}

impl Accepts {
    /// `node` has, in `view`. Those of earlier views do not count any more.
    pub fn add(&mut self, view: View, node: NodeId) {
        if self.view < view {
            self.view = view;
            self.nodes.clear();
        }
        if self.view == view && !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
    }

    /// Whether `node` has, in `view`.
    pub fn contains(&self, view: View, node: NodeId) -> bool {
        self.view == view && self.nodes.contains(&node)
    }
}

/// What is known of an instance: UNKNOWN without a vote, KNOWN with one, DECIDED.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// The last value accepted here and in which view; with `decided` the decision.
    pub vote: Option<(View, Batch)>,
    pub decided: bool,
    pub accepts: Accepts,
    /// When its leader last proposed it.
    pub sent: Time,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Log {
    base: Instance,
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl Log {
    /// The first instance that is in it.
    pub fn base(&self) -> Instance {
        self.base
    }

    /// The first that nothing is known of, and nothing of any after it.
    pub fn end(&self) -> Instance {
        Instance(self.base.0 + self.entries.len() as u64)
    }

    /// How much memory it takes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn index(&self, instance: Instance) -> Option<usize> {
        usize::try_from(instance.0.checked_sub(self.base.0)?).ok()
    }

    pub fn get(&self, instance: Instance) -> Option<&Entry> {
        self.entries.get(self.index(instance)?)
    }

    /// The entry of an instance that is not below the base; the caller sees to it that it is not
    /// far beyond the end.
    pub fn entry(&mut self, instance: Instance) -> &mut Entry {
        let index = self.index(instance).expect("what is truncated is not asked for");
        while self.entries.len() <= index {
            self.entries.push_back(Entry::default());
            self.bytes += ENTRY_LEN;
        }
        &mut self.entries[index]
    }

    /// Sets the vote of an entry.
    pub fn vote(&mut self, instance: Instance, view: View, batch: Batch) {
        let len = batch.len();
        let before = self.entry(instance).vote.replace((view, batch));
        self.bytes += len;
        self.bytes -= before.map_or(0, |(_, batch)| batch.len());
    }

    /// Entries from `from` on, with their instances.
    pub fn since(&self, from: Instance) -> impl Iterator<Item = (Instance, &Entry)> + '_ {
        let skip = usize::try_from(from.0.saturating_sub(self.base.0)).unwrap_or(usize::MAX);
        let first = Instance(self.base.0.max(from.0));
        let numbers = (first.0..).map(Instance);
        numbers.zip(self.entries.range(skip.min(self.entries.len())..))
    }

    /// Forgets all below `to`.
    pub fn truncate(&mut self, to: Instance) {
        while self.base < to {
            if let Some(entry) = self.entries.pop_front() {
                self.bytes -= ENTRY_LEN + entry.vote.map_or(0, |(_, batch)| batch.len());
                self.base = self.base.next();
            } else {
                self.base = to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Kind, Request};
    use meridian_core::ClientId;

    /// How many bytes the entries have.
    fn sum(log: &Log) -> usize {
        let len = |entry: &Entry| ENTRY_LEN + entry.vote.as_ref().map_or(0, |(_, b)| b.len());
        log.since(Instance(0)).map(|(_, entry)| len(entry)).sum()
    }

    fn batch(len: usize) -> Batch {
        let payload = vec![0; len].into();
        Batch::new(&[Request { client: ClientId(1), sequence: 1, kind: Kind::Execute, payload }])
    }

    #[test]
    fn bytes_are_those_of_what_is_in_it() {
        let mut log = Log::default();
        let view = View::NONE.next(NodeId(0));
        for instance in [0, 3, 1] {
            log.vote(Instance(instance), view, batch(10));
        }
        log.vote(Instance(3), view, batch(50));
        assert_eq!(log.end(), Instance(4));
        assert_eq!(log.bytes(), sum(&log));
        log.truncate(Instance(2));
        assert_eq!(log.since(Instance(0)).map(|(i, _)| i.0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(log.bytes(), sum(&log));
        log.truncate(Instance(9));
        assert_eq!((log.base(), log.end(), log.bytes()), (Instance(9), Instance(9), 0));
    }

    #[test]
    fn accepts_of_earlier_views_do_not_count() {
        let (first, second) = (View::NONE.next(NodeId(0)), View::NONE.next(NodeId(1)));
        let mut accepts = Accepts::default();
        accepts.add(first, NodeId(0));
        accepts.add(second, NodeId(1));
        accepts.add(first, NodeId(2));
        let nodes = (0..3).map(NodeId);
        assert_eq!(nodes.filter(|node| accepts.contains(second, *node)).count(), 1);
    }
}
