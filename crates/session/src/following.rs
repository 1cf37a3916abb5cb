//! A client goes on as one who has seen what another has (decision 65).
//!
//! Each group of which the other has seen something is asked a question that touches nothing: a
//! replica answers it once no message can come any more up to where the other has seen. From then
//! on the client has seen that, too, so that each of its looks waits for what it touches; and what
//! it kept of the group is dropped, as it may be older. A group that does not answer in time is
//! named, and what the others have answered counts.
//!
//! Invariants:
//! - T1: when the owner is told, the client has seen all that the other had.
//! - T2: the owner is told only once it has dropped what it was told to drop.
//! - T3: nothing counts as seen that no replica has answered for: a token that is wrong makes its
//!   bearer wait, and nobody else.

use crate::calls::{CallId, Failure, Output};
use crate::inquiries::InquiryId;
use crate::mutation::Mutation;
use crate::session::{Call, Session, Work};
use meridian_core::{GroupId, Outbox, Stamp, Time};
use meridian_fs::{Ino, Query, Vector};
use meridian_host::api::RequestBody;
use std::collections::{BTreeMap, BTreeSet};

/// What is still to come for one call.
#[derive(Clone, Debug)]
pub(crate) struct Following {
    /// Groups that have not answered, and up to where the other has seen them.
    left: BTreeMap<GroupId, Stamp>,
    /// What the owner has not dropped yet.
    kept: BTreeSet<(GroupId, Ino)>,
}

impl Session {
    pub(crate) fn on_follow(
        &mut self,
        now: Time,
        id: CallId,
        (seen, deadline): (&Vector, Time),
        out: &mut Outbox<Session>,
    ) {
        if self.mutation.is(Mutation::IgnoresToken) {
            return out.output(Output::Followed { call: id });
        }
        let known = |group: &GroupId| self.nodes.topology.group_ids().any(|other| other == *group);
        let left: BTreeMap<_, _> =
            seen.0.iter().filter(|(group, _)| known(group)).map(|(at, ts)| (*at, *ts)).collect();
        let mut inquiries = Vec::new();
        for (group, ts) in &left {
            let mut vector = Vector::default();
            vector.raise(*group, self.vector.get(*group).max(*ts));
            let (by, query) = (self.holder(false).0, Query::Totals { partition: *group });
            let body = RequestBody::Read { vector, by, query };
            inquiries.push(self.inquiries.begin(now, id, *group, body, &mut self.nodes, out));
        }
        let work = Work::Follow(Following { left, kept: BTreeSet::new() });
        let call = Call { deadline, inquiries, work };
        match call.inquiries.is_empty() {
            true => self.end_following(id, call, out),
            false => {
                self.deadlines.insert((deadline, id));
                self.calls.insert(id, call);
            }
        }
    }

    /// A group has all that the other has seen of it.
    pub(crate) fn on_caught_up(
        &mut self,
        id: CallId,
        mut call: Call,
        (inquiry, group): (InquiryId, GroupId),
        vector: &Vector,
        out: &mut Outbox<Session>,
    ) {
        let Work::Follow(following) = &mut call.work else { return };
        let ts = following.left.remove(&group).unwrap_or_default();
        self.vector.merge(vector);
        self.vector.raise(group, ts);
        let gone = self.caps.follow(group);
        self.tell_dropped(gone, out);
        self.stop_inquiry(&mut call, inquiry);
        match call.inquiries.is_empty() {
            true => self.end_following(id, call, out),
            false => drop(self.calls.insert(id, call)),
        }
    }

    /// All groups have answered: the owner is told once it has dropped what it kept (T2).
    fn end_following(&mut self, id: CallId, mut call: Call, out: &mut Outbox<Session>) {
        self.deadlines.remove(&(call.deadline, id));
        let Work::Follow(following) = &mut call.work else { return };
        if !following.left.is_empty() {
            let failure = following.failure();
            return out.output(Output::GaveUp { call: id, failure });
        }
        following.kept = self.caps.kept_by_owner().clone();
        match following.kept.is_empty() {
            true => out.output(Output::Followed { call: id }),
            false => drop(self.calls.insert(id, call)),
        }
    }

    /// The owner has dropped these.
    pub(crate) fn on_let_go(&mut self, gone: &[(GroupId, Ino)], out: &mut Outbox<Session>) {
        self.caps.let_go(gone);
        let mut done = Vec::new();
        for (id, call) in &mut self.calls {
            if let Work::Follow(following) = &mut call.work
                && call.inquiries.is_empty()
            {
                for of in gone {
                    following.kept.remove(of);
                }
                done.extend(following.kept.is_empty().then_some(*id));
            }
        }
        for id in done {
            self.calls.remove(&id);
            out.output(Output::Followed { call: id });
        }
    }
}

impl Following {
    /// What the owner is told when it does not come.
    pub(crate) fn failure(&self) -> Failure {
        Failure::Behind { groups: self.left.keys().copied().collect() }
    }
}

#[cfg(test)]
#[path = "following_tests.rs"]
mod tests;
