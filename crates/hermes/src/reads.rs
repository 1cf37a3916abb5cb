//! Reads, and RMWs that were none in the end: by the lease, or by a membership check.
//!
//! A check asks whether all followers are still in the epoch (Hermes, section 8, "without LSCs").
//! The paper asks a majority, as it takes the majority of its membership protocol for the same
//! nodes. Here all are asked, as by a write: whoever is asked after the read and is in the epoch
//! cannot have acknowledged an update of a later one before it, and without its ACK none was
//! committed. That needs no more than that each membership keeps one live replica of the one
//! before.

use crate::members::NodeSet;
use crate::message::{Answer, Body, Command, Modify, Refusal, Request};
use crate::mutation::Mutation;
use crate::options::Reads;
use crate::process::Hermes;
use bytes::Bytes;
use meridian_core::{NodeId, Outbox, Time};

/// A read that is not vouched for yet, and the command that asks it anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held<M> {
    token: u64,
    answer: Answer,
    again: Command<M>,
}

/// Reads that wait for a membership check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Checks<M> {
    round: u64,
    /// Who has answered the check that is under way.
    heard: Option<NodeSet>,
    /// It vouches for these.
    checked: Vec<Held<M>>,
    /// Read since it began.
    waiting: Vec<Held<M>>,
}

impl<M> Default for Checks<M> {
    fn default() -> Self {
        Checks { round: 0, heard: None, checked: Vec::new(), waiting: Vec::new() }
    }
}

impl<M> Checks<M> {
    pub fn is_under_way(&self) -> bool {
        self.heard.is_some()
    }
}

impl<M: Modify> Hermes<M> {
    pub(crate) fn answer_read(
        &mut self,
        now: Time,
        token: u64,
        key: Bytes,
        value: Option<Bytes>,
        out: &mut Outbox<Self>,
    ) {
        let answer = Answer::Value { value, until: self.until() };
        self.vouch(now, Held { token, answer, again: Command::Read { token, key } }, out);
    }

    pub(crate) fn answer_kept(
        &mut self,
        now: Time,
        request: Request<M>,
        answer: Bytes,
        out: &mut Outbox<Self>,
    ) {
        let answer = Answer::Kept { answer, until: self.until() };
        let token = request.token;
        self.vouch(now, Held { token, answer, again: Command::Update(request) }, out);
    }

    fn until(&self) -> Time {
        match self.options.reads {
            Reads::Lease => self.lease,
            Reads::Check => Time(u64::MAX),
        }
    }

    fn vouch(&mut self, now: Time, held: Held<M>, out: &mut Outbox<Self>) {
        if !self.serves(now) {
            self.refuse(held.token, Refusal::NotServing, out);
        } else if self.options.reads == Reads::Lease
            || self.mutation.is(Mutation::ReadsWithoutLease)
        {
            self.answer(held.token, held.answer, out);
        } else {
            self.checks.waiting.push(held);
        }
    }

    /// Begins a check if reads wait and none is under way; called when no more input is ready.
    pub(crate) fn begin_check(&mut self, out: &mut Outbox<Self>) {
        if self.checks.is_under_way() || self.checks.waiting.is_empty() {
            return;
        }
        self.checks.round += 1;
        self.checks.checked = std::mem::take(&mut self.checks.waiting);
        self.checks.heard = Some(self.members.of(&[self.me]));
        self.broadcast(&Body::Check { round: self.checks.round }, out);
        self.end_check(out);
    }

    pub(crate) fn on_check_ok(&mut self, from: NodeId, round: u64, out: &mut Outbox<Self>) {
        if let Some(heard) = self.checks.heard.as_mut().filter(|_| round == self.checks.round) {
            self.members.add(heard, from);
            self.end_check(out);
        }
    }

    fn end_check(&mut self, out: &mut Outbox<Self>) {
        if self.checks.heard.is_some_and(|heard| self.members.is_all(heard)) {
            self.checks.heard = None;
            for Held { token, answer, .. } in std::mem::take(&mut self.checks.checked) {
                self.answer(token, answer, out);
            }
        }
    }

    /// Asks again who has not answered.
    pub(crate) fn check_again(&self, out: &mut Outbox<Self>) {
        let Some(heard) = self.checks.heard else { return };
        let round = self.checks.round;
        self.members.missing(heard).for_each(|node| self.send(node, Body::Check { round }, out));
    }

    /// What was read in an earlier epoch cannot be vouched for any more: these ask it anew.
    pub(crate) fn drop_checks(&mut self) -> Vec<Command<M>> {
        let Checks { round, checked, waiting, .. } = std::mem::take(&mut self.checks);
        self.checks.round = round;
        checked.into_iter().chain(waiting).map(|held| held.again).collect()
    }
}
