//! Messages that pass others with which they do not conflict (thesis, section 4.4.3), in the
//! linearizable order.
//!
//! A process does not look at its own group where a chain comes back to it: what it delivers comes
//! after all that is before it there (see `linearizable`). That does not hold for a message that
//! passes others. Such a one waits until its own group is closed up to its timestamp, too; or, as
//! it shall not wait for what it has passed, until the others are *ready*: a primary says so of a
//! message once all that conflicts with it and precedes it in the group is delivered there. It says
//! so of a message that passes others, and of any that another group is ready for.

use crate::message::{Dest, Final, Horizon, Message, Timestamp};
use crate::mutation::Mutation;
use crate::process::PrimCast;
use crate::state::done::Known;
use crate::state::epochs::Role;
use meridian_core::{GroupId, MessageId, Outbox, ProcessId};
use std::collections::BTreeMap;

impl PrimCast {
    /// At these groups nothing that conflicts with the messages is before them.
    pub(crate) fn on_ready(&mut self, from: ProcessId, ids: &[MessageId], out: &mut Outbox<Self>) {
        for id in ids.iter().copied() {
            match self.known(id) {
                Known::No => {
                    let groups = self.linearizable.ready.or_insert_with(id, Dest::new);
                    if !groups.contains(&from.group) {
                        groups.push(from.group);
                        self.linearizable.dirty = true;
                    }
                }
                Known::Delivered(ts) if self.epochs.role == Role::Primary => {
                    out.send(from, Message::from(Final { id, ts, delivered: true }));
                }
                Known::Delivered(_) | Known::Ended => {}
            }
        }
    }

    /// Whether the entry at `index`, final at `ts`, may be delivered though others stand before it,
    /// with which it does not conflict; notes that it waits if not. Nothing new comes here up to
    /// `clock`; `own` is up to where our group is closed then, once somebody has looked.
    pub(crate) fn is_settled_passing(
        &mut self,
        index: u64,
        ts: Timestamp,
        clock: Timestamp,
        own: &mut Option<Timestamp>,
    ) -> bool {
        let Some(slot) = self.log.get(index) else { return false };
        let start = slot.entry.start.clone();
        let mut others = start.dest.iter().filter(|group| **group != self.me.group);
        if slot.settled || others.all(|group| self.is_ready(start.id, *group)) {
            return true;
        }
        if !self.is_settled(index, ts) {
            return false;
        }
        let closed = match *own {
            _ if self.planted.is(Mutation::PassesUnclosed) => Timestamp(u64::MAX),
            Some(closed) => closed,
            None => {
                let (group, links) = (self.me.group, self.links().as_slice().into());
                let version = (self.epochs.cur, 0);
                let own = Horizon { group, version, stable: clock, links };
                self.linearizable.closure.close(&own, None)
            }
        };
        *own = Some(closed);
        if closed < ts {
            self.await_others((ts, start.id), &start.touches);
        }
        ts <= closed
    }

    /// Whether `group` has nothing before the message.
    pub(crate) fn is_ready(&self, id: MessageId, group: GroupId) -> bool {
        self.linearizable.ready.get(&id).is_some_and(|ready| ready.contains(&group))
    }

    /// As primary: nothing here is before the message, and it waits for its other groups only. They
    /// are told, once.
    pub(crate) fn tell_ready(&mut self, index: u64, told: &mut BTreeMap<GroupId, Vec<MessageId>>) {
        let Some(slot) = self.log.get(index) else { return };
        let start = &slot.entry.start;
        if self.epochs.role == Role::Primary && self.linearizable.said.insert(start.id) {
            for group in start.dest.iter().filter(|group| **group != self.me.group) {
                told.entry(*group).or_default().push(start.id);
            }
        }
    }

    /// The same of one that passes nothing here, if it does at another group: there it may wait for
    /// our word.
    pub(crate) fn answer_ready(
        &mut self,
        index: u64,
        told: &mut BTreeMap<GroupId, Vec<MessageId>>,
    ) {
        if self.epochs.role != Role::Primary || self.linearizable.ready.is_empty() {
            return;
        }
        if let Some(slot) = self.log.get(index)
            && self.linearizable.ready.contains(&slot.entry.start.id)
        {
            self.tell_ready(index, told);
        }
    }
}
