//! The votes of other groups: those that were heard, what is reported of them once a group is lost,
//! and how the heirs of one end what all others have ended.
//!
//! Invariants:
//! - V1: a vote that anything rests on was durable before that left the node, and is kept until all
//!   replicas of all destinations have applied its message.
//! - V2: what a replica reports of a lost group never changes. From then on it hears no vote of
//!   those that were lost.

use super::snapshots::Heard;
use super::{Replica, VOTE_RETRY, Wish};
use crate::mutation::Mutation;
use bytes::Bytes;
use imbl::OrdMap;
use meridian_core::{GroupId, MessageId, NodeId, Time};
use meridian_fs::vote::Vote;
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Votes {
    heard: OrdMap<(MessageId, GroupId), Vote>,
    /// What was reported of which lost group.
    reports: BTreeMap<GroupId, Report>,
    pub mutation: Mutation,
}

/// What was known of a lost group's votes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Report {
    /// The configuration of the heirs.
    number: u64,
    /// The votes, each with its message.
    votes: Bytes,
}

impl Votes {
    /// Those that are kept.
    pub fn heard(&self) -> impl Iterator<Item = (&(MessageId, GroupId), &Vote)> {
        self.heard.iter()
    }

    /// Keeps a vote, unless another was heard before.
    pub fn keep(&mut self, id: MessageId, from: GroupId, vote: &Vote) {
        self.heard.entry((id, from)).or_insert_with(|| vote.clone());
    }
}

/// The bytes of a report.
pub(crate) fn encode<'a>(votes: impl IntoIterator<Item = (&'a MessageId, &'a Vote)>) -> Bytes {
    let votes: Vec<_> = votes.into_iter().collect();
    postcard::to_stdvec(&votes).expect("votes can be encoded").into()
}

/// The votes of a report.
pub(crate) fn decode(report: &[u8]) -> Option<Vec<(MessageId, Vote)>> {
    postcard::from_bytes(report).ok()
}

impl Replica {
    /// Another partition's vote.
    pub fn on_vote(&mut self, id: MessageId, from: GroupId, vote: Vote, out: &mut Vec<Wish>) {
        if self.multicast.has_dropped(id) {
            return;
        }
        self.votes.keep(id, from, &vote);
        self.count_vote(id, from, vote, out);
    }

    fn count_vote(&mut self, id: MessageId, from: GroupId, vote: Vote, out: &mut Vec<Wish>) {
        if self.is_decided(id) {
            return;
        }
        let mut effects = Vec::new();
        self.snapshots.hear(|| Heard::Vote(id, from, vote.clone()));
        self.partition.vote(id, from, vote, &mut effects);
        self.carry_out(effects, out);
    }

    /// Another state was installed: votes that were heard before count in it, too.
    pub(super) fn vote_again(&mut self, out: &mut Vec<Wish>) {
        for ((id, from), vote) in self.votes.heard.clone() {
            self.count_vote(id, from, vote, out);
        }
    }

    /// Whether a vote of a node's replica of `group` counts (V2), and is of use.
    pub(crate) fn hears(&self, id: MessageId, group: GroupId, node: NodeId) -> bool {
        let is_lost = self.multicast.fenced(group).is_some()
            && !self.multicast.members().contains(group, node)
            && !self.votes.mutation.is(Mutation::HearsLostVotes);
        !is_lost && !self.multicast.has_dropped(id)
    }

    /// Whether the vote of a group was heard before.
    pub(crate) fn has_heard(&self, id: MessageId, group: GroupId) -> bool {
        self.votes.heard.contains_key(&(id, group))
    }

    /// Whether `id` was decided here: what concerns it now comes too late. One that waits was not,
    /// even if its client was answered elsewhere and waits for it no more.
    pub fn is_decided(&self, id: MessageId) -> bool {
        !self.partition.is_waiting(id) && self.sessions.is_decided(id)
    }

    /// Whether our vote on `id` was forgotten, as the message has ended: all have applied it, or
    /// this is the replica of an heir, which may have ended it without a vote.
    pub(crate) fn has_ended(&self, id: MessageId) -> bool {
        let inherits = self.partition.inherited().is_some();
        self.multicast.has_dropped(id) || inherits && self.is_decided(id)
    }

    /// Another's replica lacks our vote.
    pub fn own_vote(&self, id: MessageId) -> Option<&Vote> {
        self.partition.own_vote(id)
    }

    /// All replicas of all destinations have applied these.
    pub fn on_settled(&mut self, ids: &[MessageId]) {
        ids.iter().for_each(|id| self.partition.forget_vote(*id));
    }

    /// V1: votes on what all have applied are kept no more. And asks for those that are missing.
    pub(super) fn on_votes_tick(&mut self, now: Time, out: &mut Vec<Wish>) {
        if now.since(self.votes_asked) < VOTE_RETRY {
            return;
        }
        self.votes_asked = now;
        let all = self.votes.heard.keys();
        let gone: Vec<_> = all.filter(|(id, _)| self.multicast.has_dropped(*id)).copied().collect();
        gone.iter().for_each(|of| drop(self.votes.heard.remove(of)));
        let waiting = self.partition.waiting();
        out.extend(waiting.into_iter().map(|(id, of)| Wish::AskVotes { id, of }));
    }

    /// What is to be reported of groups that this replica has been sealed for: the group, the
    /// configuration of its heirs, and the report.
    pub(crate) fn reports_due(&self) -> Vec<(GroupId, u64, Bytes)> {
        let is_due = |(group, number): &(GroupId, u64)| {
            *group != self.group
                && self.votes.reports.get(group).is_none_or(|report| report.number < *number)
        };
        let forgets = self.votes.mutation.is(Mutation::ForgetsHeard);
        let report = |(group, number)| {
            let of = self.votes.heard.iter().filter(|((_, from), _)| *from == group && !forgets);
            (group, number, encode(of.map(|((id, _), vote)| (id, vote))))
        };
        self.multicast.fences().filter(is_due).map(report).collect()
    }

    /// V2: this is reported.
    pub(crate) fn reported(&mut self, group: GroupId, number: u64, votes: Bytes) {
        self.votes.reports.insert(group, Report { number, votes });
    }

    /// All that was reported: of which group, for which heirs, what.
    pub(crate) fn reports(&self) -> impl Iterator<Item = (GroupId, u64, Bytes)> + '_ {
        let all = self.votes.reports.iter();
        all.map(|(group, report)| (*group, report.number, report.votes.clone()))
    }

    /// The report on `group` for these heirs, if it was made.
    pub(crate) fn report_on(&self, group: GroupId, number: u64) -> Option<&Bytes> {
        let report = self.votes.reports.get(&group).filter(|report| report.number == number);
        report.map(|report| &report.votes)
    }

    /// As an heir's: others have ended the message, and their votes are forgotten.
    pub(crate) fn end_inherited(&mut self, id: MessageId, out: &mut Vec<Wish>) {
        let mut effects = Vec::new();
        self.partition.end_inherited(id, &mut effects);
        self.carry_out(effects, out);
    }
}
