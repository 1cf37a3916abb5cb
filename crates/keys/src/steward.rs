//! What one thread of a server runs for all shards of its keys: the membership of this node.
//!
//! Leases are granted and asked for many times in a second, and a member that is silent for long is
//! removed. So the steward shares neither a thread nor a connection with values: a shard may take
//! as long over a long value as it needs (decision 35).
//!
//! The shards tell it what they have ([`Report`]), and it tells them of epochs and leases, in
//! order. What it tells may come late: a lease ends at a time, so that a late one is a shorter one,
//! and no update of an epoch is committed without the shards that have not heard of it.
//!
//! Invariants:
//! - K1: the membership starts when all shards have said what they found on their disks, and
//!   counts as holding all only if all of them do.
//! - K2: this node is complete in an epoch when all its shards are.
//! - K3: no shard serves before all those with a log have begun it. Else a shard could lose what it
//!   acknowledged because another of its node had nothing yet on its disk.

use crate::slots::Shard;
use meridian_core::compose::Same;
use meridian_core::{Effect, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::Epoch;
use meridian_hermes::reliable::{self, Configured, Output, ReliableMembership};
use std::collections::{BTreeMap, BTreeSet};

/// What a shard found on its disk when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// It keeps its keys in memory only.
    NoLog,
    /// A log that does not have all that the shard acknowledged, or none yet.
    NotAll,
    /// All that the shard acknowledged.
    All,
}

/// What a shard says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// What it found on its disk; the first thing that it says.
    Found(Found),
    /// From now on its log has all that it acknowledges.
    Began,
    /// It has everything, as of this epoch.
    Complete(Epoch),
    /// A client uses it, or it waits for others.
    Used,
}

/// What a shard of this node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reported(pub Shard, pub Report);

/// What the steward is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// By a shard.
    Reported(Reported),
    /// By the node: who should hold keys.
    Configure(Configured),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Steward {
    membership: ReliableMembership,
    shards: usize,
    found: BTreeMap<Shard, Found>,
    /// The shards whose logs do not have all that they acknowledge.
    unbegun: BTreeSet<Shard>,
    /// In which epoch each has last had everything.
    complete: BTreeMap<Shard, Epoch>,
    /// What the node has said of who should hold keys, before the membership started.
    configured: Option<Configured>,
}

impl Steward {
    /// That of a node with so many shards.
    pub fn new(membership: ReliableMembership, shards: usize) -> Steward {
        let (found, unbegun, complete) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Steward { membership, shards, found, unbegun, complete, configured: None }
    }

    /// Who takes part, and how that is decided.
    pub fn membership(&self) -> &ReliableMembership {
        &self.membership
    }

    fn has_started(&self) -> bool {
        self.found.len() == self.shards
    }

    fn on_report(&mut self, now: Time, reported: Reported, out: &mut Outbox<Self>) {
        let Reported(shard, report) = reported;
        match report {
            Report::Found(found) => self.on_found(now, shard, found, out),
            Report::Began => drop(self.unbegun.remove(&shard)),
            Report::Complete(epoch) => self.on_complete(now, shard, epoch, out),
            Report::Used if self.membership.wants_use(now) => {
                self.step_membership(now, Event::Command(reliable::Command::Use), out);
            }
            Report::Used => {}
        }
    }

    fn on_found(&mut self, now: Time, shard: Shard, found: Found, out: &mut Outbox<Self>) {
        if found == Found::NotAll {
            self.unbegun.insert(shard);
        }
        if self.found.insert(shard, found).is_none() && self.has_started() {
            self.membership.set_holds(self.found.values().all(|found| *found == Found::All));
            self.step_membership(now, Event::Started, out);
            if let Some(configured) = self.configured.take() {
                self.configure(now, configured, out);
            }
        }
    }

    /// The node does not say it again before that changes: so it is kept until the membership
    /// starts.
    fn configure(&mut self, now: Time, configured: Configured, out: &mut Outbox<Self>) {
        if !self.has_started() {
            self.configured = Some(configured);
            return;
        }
        let command = reliable::Command::Configure(configured);
        self.step_membership(now, Event::Command(command), out);
    }

    fn on_complete(&mut self, now: Time, shard: Shard, epoch: Epoch, out: &mut Outbox<Self>) {
        self.complete.insert(shard, epoch);
        if self.complete.len() == self.shards
            && let Some(epoch) = self.complete.values().min().copied()
        {
            let command = reliable::Command::Complete { epoch };
            self.step_membership(now, Event::Command(command), out);
        }
    }

    /// Before it starts, nothing else that is for the membership counts: it is as if it had been
    /// lost, and is said again.
    fn step_membership(
        &mut self,
        now: Time,
        event: Event<ReliableMembership>,
        out: &mut Outbox<Self>,
    ) {
        if !self.has_started() {
            return;
        }
        let (mut inner, mut told) = (Outbox::new(), Outbox::new());
        self.membership.step(now, event, &mut inner);
        told.absorb(&mut inner, &mut Same);
        let serves = self.unbegun.is_empty();
        out.extend(told.drain().filter(|effect| serves || !is_lease(effect)));
    }
}

fn is_lease(effect: &Effect<Steward>) -> bool {
    matches!(effect, Effect::Output(Output::Lease { .. }))
}

impl Process for Steward {
    type Peer = NodeId;
    type Message = reliable::Message;
    type Record = reliable::Record;
    type Command = Command;
    type Output = Output;
    type Timer = reliable::Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {} // K1.
            Event::Command(Command::Reported(reported)) => self.on_report(now, reported, out),
            Event::Command(Command::Configure(configured)) => {
                self.configure(now, configured, out);
            }
            Event::Message { from, message } => {
                self.step_membership(now, Event::Message { from, message }, out);
            }
            Event::Timer(timer) => self.step_membership(now, Event::Timer(timer), out),
            Event::Restarted(peer) => self.step_membership(now, Event::Restarted(peer), out),
            Event::Idle => self.step_membership(now, Event::Idle, out),
        }
    }

    fn replay(&mut self, record: reliable::Record) {
        self.membership.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = reliable::Record> + Send> {
        self.membership.checkpoint()
    }
}

#[cfg(test)]
#[path = "steward_tests.rs"]
mod tests;
