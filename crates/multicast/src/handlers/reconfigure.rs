//! Changing the members of a group: what [`crate::state::members`] says, as an epoch change.

use crate::message::{Epoch, Message, Suspect, Touches};
use crate::mutation::Mutation;
use crate::process::PrimCast;
use crate::record::Record;
use crate::state::clocks::quorum;
use crate::state::epochs::Role;
use crate::state::members::Config;
use meridian_core::{GroupId, Outbox, ProcessId, Time};
use std::sync::Arc;

impl PrimCast {
    /// Whether this process is a member of its group in the latest configuration that it knows.
    pub fn is_member(&self) -> bool {
        self.members.of(self.me.group).contains(&self.me.node)
    }

    /// Whether it may stand for primary: it is a member, and knows the configurations whose quorums
    /// must promise.
    pub(crate) fn may_stand(&self) -> bool {
        let latest = self.members.number(self.me.group);
        let known = |number| self.members.in_config(self.me.group, number).is_some();
        let before = latest == 0 || self.epochs.cur.config == latest || known(latest - 1);
        self.is_member() && self.epochs.prom.config <= latest && before
    }

    /// Whether it joined a group that others replicated before, and has not been in any of its
    /// epochs.
    pub(crate) fn knows_nothing(&self) -> bool {
        self.epochs.cur.number == 0 && self.members.number(self.me.group) > 0
    }

    /// Whether those have promised who must: a quorum of the configuration of the epoch, and of the
    /// one before it unless a promiser, whose `T` is taken then, is in an epoch of the new one
    /// already.
    pub(crate) fn has_promises(&self) -> bool {
        let promises = &self.epochs.promises;
        let config = self.epochs.prom.config;
        let promised = |config| {
            let members = self.members.in_config(self.me.group, config);
            members.is_some_and(|members| {
                let promised = members.iter().filter(|node| promises.contains_key(*node));
                promised.count() >= quorum(members.len())
            })
        };
        let opened = promises.values().any(|(_, progress)| progress.e_cur.config == config);
        let first = config > 0 && !self.planted.is(Mutation::NewQuorumOnly) && !opened;
        promised(config) && (!first || promised(config - 1))
    }

    /// A message with a configuration was delivered, which had been proposed in `epoch`.
    pub(crate) fn learn_delivered(&mut self, epoch: Epoch, touches: &Touches, config: &Config) {
        let ours = config.group == self.me.group;
        // Of our own group: not before the one before it is in force. Of others: they alone order
        // theirs, but for the first. And all must deliver two such messages in the same order.
        let counts = match ours {
            true => config.number == epoch.config + 1,
            false => config.number == 0 && !self.members.has(config.group),
        };
        if counts && *touches == Touches::All && self.members.learn(config) && !ours {
            self.outbound.config_told = 0; // The new group does not know ours, perhaps.
        }
    }

    /// The owner tells of another group. Each process may hear of it at another time, as each
    /// delivers a message with a configuration at another time: until then it has no START with
    /// that group as a destination ordered, and hears nobody of that group.
    pub(crate) fn learn_from_owner(&mut self, config: Config, out: &mut Outbox<Self>) {
        if config.group != self.me.group && self.members.learn(&config) {
            self.outbound.config_told = 0; // As above.
            out.note(Record::Config(Arc::new(config)));
        }
    }

    /// A new configuration comes into force with the next epoch, which the present primary opens at
    /// once if it stays, else the first that stays. One that leaves falls silent.
    pub(crate) fn reconfigure(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.stands() || self.members.number(self.me.group) <= self.epochs.cur.config {
            return;
        }
        let (members, old) = (self.members.of(self.me.group), self.voters());
        let leader = Some(self.epochs.cur.leader).filter(|leader| members.contains(leader));
        let first = leader.or_else(|| members.iter().find(|node| old.contains(node)).copied());
        if first == Some(self.me.node) {
            if self.may_stand() {
                self.stand(now, out);
            }
        } else if self.epochs.role == Role::Primary {
            self.epochs.role = Role::Promised;
            self.peers().for_each(|peer| self.tell_config(peer, out));
        }
    }

    /// Others will count, or what one said does no more: what has been reached stays so (C1, C2).
    pub(crate) fn keep_reached(&mut self) {
        let leader = self.clock.members.min_clock(self.epochs.cur.leader);
        self.clock.members.raise_floor(leader.min(self.clock.members.quorum_clock(self.voters())));
    }

    /// Another process tells a configuration of its group.
    pub(crate) fn on_config(&mut self, from: ProcessId, config: &Config, out: &mut Outbox<Self>) {
        if config.group != from.group {
            return;
        }
        self.fences.succeeded(config.group, config.number);
        if !self.members.learn(config) {
            return;
        }
        if config.group == self.me.group {
            // Before any epoch of it is: a restart must know its members.
            out.note(Record::Config(Arc::new(config.clone())));
            return;
        }
        self.decide_remote(config.group);
        if self.epochs.role == Role::Primary {
            self.config_known(config.group, out);
        }
    }

    /// The processes of a group changed: those that are new need our entries.
    pub(crate) fn config_known(&mut self, group: GroupId, out: &mut Outbox<Self>) {
        let slots = self.log.iter_from(0);
        let shares =
            slots.map(|(_, slot)| &slot.entry.start.dest).any(|dest| dest.contains(&group));
        for process in self.processes(group).filter(|_| shares) {
            if !self.outbound.followers.contains_key(&process) {
                self.stream_whole(process, out);
            }
        }
    }

    /// As primary: tells all other groups our configuration, once. That is not genuine; but who
    /// would send to a member that left must learn it from somebody.
    pub(crate) fn tell_config_to_all(&mut self, out: &mut Outbox<Self>) {
        if self.outbound.config_told < self.epochs.cur.config {
            self.outbound.config_told = self.epochs.cur.config;
            let others: Vec<_> =
                self.members.groups().filter(|group| *group != self.me.group).collect();
            for process in others.into_iter().flat_map(|group| self.processes(group)) {
                self.tell_config(process, out);
            }
        }
    }

    /// Tells `to` our group's configurations, those that count now or soon, unless the only one is
    /// the first, which all know.
    pub(crate) fn tell_config(&self, to: ProcessId, out: &mut Outbox<Self>) {
        let latest = self.members.number(self.me.group);
        if latest == 0 || (self.knows_nothing() && self.epochs.role != Role::Candidate) {
            return;
        }
        let from = self.epochs.cur.config.min(latest - 1);
        for config in self.members.from_number(self.me.group, from) {
            out.send(to, Message::from(Arc::new(config)));
        }
    }

    /// Says to one who is in an earlier epoch where we are.
    pub(crate) fn show_epoch(&self, to: ProcessId, theirs: Epoch, out: &mut Outbox<Self>) {
        if theirs.config < self.members.number(self.me.group) {
            self.tell_config(to, out);
        }
        out.send(to, self.clock_message());
    }

    /// A process that joins: the others say where they are.
    pub(crate) fn ask_for_configs(&self, out: &mut Outbox<Self>) {
        let members = self.members.of(self.me.group).iter();
        for node in members.filter(|node| **node != self.me.node) {
            out.send(self.me.group.of(*node), Message::from(Suspect { epoch: self.epochs.prom }));
        }
    }
}
