//! The plainest workload, for any protocol of the multicast: messages at given times from given
//! processes. Whoever runs it gets the history, for the checkers.

use crate::of::multicast::history::{Entry, History};
use crate::world::World;
use crate::world::{Owner, Stimulus};
use meridian_core::{GroupId, MessageId, NodeId, ProcessId, Time};
use meridian_multicast::{Protocol, Rank, Start, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The messages of the multicast that a message of the protocol is about.
pub type Subjects<P> = fn(&<P as meridian_core::Process>::Message) -> Vec<MessageId>;

/// The owner: see the module.
pub struct Plain<P: Protocol> {
    /// All that happened.
    pub history: History,
    subjects: Subjects<P>,
    /// What is to be multicast, by the token that says when.
    planned: BTreeMap<u64, (ProcessId, Start)>,
    tokens: u64,
    /// Who has not delivered what was multicast.
    missing: BTreeSet<(ProcessId, MessageId)>,
    /// Who sent or received anything.
    involved: BTreeSet<ProcessId>,
    finals: BTreeMap<MessageId, Timestamp>,
    last: BTreeMap<ProcessId, Rank>,
}

impl<P: Protocol> Plain<P> {
    /// Of these groups.
    pub fn new(groups: &BTreeMap<GroupId, Vec<NodeId>>, subjects: Subjects<P>) -> Self {
        let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
            let process = |node: &NodeId| ProcessId { group: *group, node: *node };
            (*group, nodes.iter().map(process).collect())
        };
        Plain {
            history: History::new(groups.iter().map(of).collect()),
            subjects,
            planned: BTreeMap::new(),
            tokens: 0,
            missing: BTreeSet::new(),
            involved: BTreeSet::new(),
            finals: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    /// Who has not delivered what was multicast so far: (process, message).
    pub fn missing(&self) -> &BTreeSet<(ProcessId, MessageId)> {
        &self.missing
    }

    /// The processes that have sent or received a message of the protocol, whatever about.
    pub fn involved(&self) -> &BTreeSet<ProcessId> {
        &self.involved
    }

    /// Whether all that was planned has been multicast, and that delivered at all destinations.
    pub fn is_done(&self) -> bool {
        self.planned.is_empty() && self.missing.is_empty()
    }
}

impl<P: Protocol> World<P, Plain<P>> {
    /// Plans that `at` multicasts a message `after` so long.
    pub fn multicast(&mut self, at: ProcessId, start: Start, after: Duration) {
        self.owner.tokens += 1;
        let token = self.owner.tokens;
        self.owner.planned.insert(token, (at, start));
        self.inject(Stimulus::Wake { token, after });
    }
}

impl<P: Protocol> Owner<P> for Plain<P> {
    fn output(&mut self, at: ProcessId, output: P::Output, now: Time) -> Vec<Stimulus<P>> {
        let Some(delivery) = P::delivery(output) else { return Vec::new() };
        let (id, ts) = (delivery.start.id, delivery.ts);
        let last = self.last.insert(at, (ts, id));
        assert!(last < Some((ts, id)), "{at} delivers {id} with {ts:?} after {last:?}");
        let first = *self.finals.entry(id).or_insert(ts);
        assert_eq!(first, ts, "{at} has another final timestamp for {id}");
        assert!(self.missing.remove(&(at, id)), "{at} delivers {id} again, or is no destination");
        let position = delivery.position;
        self.history.push(Entry::Deliver { process: at, id, ts, position, t: now });
        Vec::new()
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<P>> {
        let (at, start) = self.planned.remove(&token).expect("woken once for each");
        let (id, dest) = (start.id, start.dest.to_vec());
        self.missing.extend(self.history.members(&dest).map(|process| (process, id)));
        let (touches, after) = (start.touches.clone(), start.after);
        self.history.push(Entry::Multicast { id, dest, touches, after, t: now });
        self.history.push(Entry::Asked { process: at, id });
        vec![Stimulus::Command { to: at, command: P::multicast(start), after: Duration::ZERO }]
    }

    fn traffic(&mut self, at: ProcessId, message: &P::Message) {
        self.involved.insert(at);
        for id in (self.subjects)(message) {
            self.history.push(Entry::Step { process: at, id });
        }
    }
}
