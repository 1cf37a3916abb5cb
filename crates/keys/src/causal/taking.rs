//! Sources come and go with the members of their group (decision 70).
//!
//! In each epoch the sources are the members: the live replicas and the shadow replicas. What a
//! source has left that is none any more the group knows once it has settled: so each replica of
//! the service takes that from the replica of Hermes beside it, and waits for nobody who has gone.
//! Who is a member again is a new source.
//!
//! Invariants:
//! - T1: of two epochs the sources of the later one begin above all that a service can take for
//!   stable which knows the earlier one only. It is below any promise that another source makes
//!   which knows of the later one, as promises of before count there alone. So a shadow replica
//!   waits for such a promise, and becomes live after that.
//! - T2: nothing is stable in an epoch before the service has all that its group knew when it had
//!   settled.

use super::message::{Output, Record};
use super::mutation::Mutation;
use super::node::Causal;
use super::regions::number_of;
use meridian_core::{Event, NodeId, Outbox, RegionId, Time};
use meridian_eunomia::source::Reservation;
use meridian_eunomia::{self as eunomia, Label, Peer, Role, Timestamp, replica};
use meridian_hermes::{self as hermes, Epoch, Modify};
use std::collections::BTreeSet;

/// What the group knew when it had settled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Taking {
    /// Updates that may still come to nothing.
    open: BTreeSet<Timestamp>,
    /// Those that have happened.
    labels: Vec<Label>,
}

impl<M: Modify> Causal<M> {
    /// The numbers of the members.
    pub(super) fn members(&self) -> BTreeSet<u16> {
        let members = self.replica.membership();
        let all = members.live.iter().chain(members.shadows.keys());
        all.map(|node| number_of(*node)).collect()
    }

    /// The region of a node, also of one that is a member and was not heard of otherwise.
    pub(super) fn region_of(&self, node: NodeId) -> Option<RegionId> {
        let members = self.replica.membership();
        let is_near = members.live.contains(&node) || members.shadows.contains_key(&node);
        if is_near { Some(self.region) } else { self.regions.find(node) }
    }

    /// Since when this node is a shadow replica, if it is one.
    fn since(&self) -> Option<Epoch> {
        self.replica.membership().shadows.get(&self.replica.me()).copied()
    }

    /// Another epoch was installed.
    pub(super) fn follow_members(&mut self, now: Time, out: &mut Outbox<Self>) {
        let (roster, sources) = (self.replica.membership().epoch.0, self.members());
        self.source.follow(roster, &sources);
        (self.taking, self.sweeps) = (None, true);
        let goes_on = self.replica.is_live() || self.since().is_some_and(|_| self.has_begun());
        if !goes_on {
            self.end_life();
        }
        let follow = replica::Command::Follow { roster, sources };
        self.step_service(now, Event::Command(follow), out);
        self.look(now, out);
    }

    /// The others know what has become of all that this source has begun.
    fn end_life(&mut self) {
        (self.recovered, self.begun) = (false, None);
        self.source.end_life();
        self.data.clear();
        self.unsent.clear();
    }

    fn has_begun(&self) -> bool {
        self.begun.is_some() && self.begun == self.since()
    }

    /// The source of a shadow replica begins above what another has promised that knows of it (T1).
    pub(super) fn begin_above(
        &mut self,
        from: Peer,
        batch: &eunomia::Batch,
        out: &mut Outbox<Self>,
    ) {
        let (Role::Shard(number), Some(promise)) = (from.role, batch.promise) else { return };
        let Some(since) = self.since().filter(|since| since.0 <= batch.roster) else { return };
        let other = number != self.number && self.members().contains(&number);
        if self.has_begun() || from.region != self.region || !other {
            return;
        }
        (self.recovered, self.begun) = (true, Some(since));
        let Reservation(reserved) = self.source.begin_life(promise);
        out.persist(Record::Reserved(reserved));
        self.say_complete(out);
    }

    /// A shadow replica that has everything, and whose source has begun, may become live.
    pub(super) fn say_complete(&mut self, out: &mut Outbox<Self>) {
        if self.has_begun() {
            let complete = self.complete.take();
            let complete = complete.map(|epoch| hermes::Output::Complete { epoch });
            complete.into_iter().for_each(|output| out.output(Output::Replica(output)));
        }
    }

    /// The service is told what the group knows, once nothing of that is open (T2).
    pub(super) fn take_over(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.service.awaits_labels() || !self.replica.is_settled() {
            return;
        }
        let mut taking = self.taking.take().unwrap_or_else(|| {
            let open = self.known().map(|(ts, _)| ts).collect();
            Taking { open, labels: Vec::new() }
        });
        for ts in std::mem::take(&mut taking.open) {
            // What was forgotten has come to nothing, or all regions have it.
            let Some(completion) = self.completion_of(ts) else { continue };
            match self.fate(completion) {
                Some(update) => taking.labels.extend(update.map(|update| update.label)),
                None => drop(taking.open.insert(ts)),
            }
        }
        if !taking.open.is_empty() {
            self.taking = Some(taking);
            return;
        }
        if self.mutation.is(Mutation::DropsEnded) {
            let members = self.members();
            taking.labels.retain(|label| members.contains(&label.ts.source()));
        }
        // The clock of who made them may have been far ahead of all that are left.
        taking.labels.iter().for_each(|label| self.source.pass(label.ts));
        let take = replica::Command::Take(taking.labels);
        self.step_service(now, Event::Command(take), out);
    }
}
