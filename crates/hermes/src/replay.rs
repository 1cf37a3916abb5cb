//! What is said again: after a loss (mlt), after a link broke, and in a new epoch, where also the
//! updates of coordinators that have gone are replayed (Hermes, section 3.4).

use crate::batch::Batches;
use crate::busy::{Parked, State};
use crate::members::{Epoch, Members, Membership};
use crate::message::{Answer, Body, Command, Modify, Record, Update};
use crate::mutation::Mutation;
use crate::process::Hermes;
use crate::timestamp::Timestamp;
use meridian_core::{Key, NodeId, Outbox, Slot, Time};
use std::collections::{BTreeMap, BTreeSet};

/// What each replica has said of its epoch, and what is left to replay here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Installed {
    /// The last epoch, and whether all was replayed in it.
    said: BTreeMap<NodeId, (Epoch, bool)>,
    /// Replays that this epoch began with and that have not ended.
    replays: BTreeSet<Slot>,
}

impl Installed {
    /// Whether a replica is in the epoch, and perhaps settled in it.
    fn is_in(&self, node: NodeId, epoch: Epoch, settled: bool) -> bool {
        let said = self.said.get(&node);
        said.is_some_and(|(theirs, done)| *theirs == epoch && (*done || !settled))
    }

    /// Whether nothing that the epoch began with is left to be replayed here.
    pub fn is_settled(&self) -> bool {
        self.replays.is_empty()
    }

    /// Whether nothing is left to be replayed anywhere.
    pub fn are_all_settled(&self, members: &Members, me: NodeId) -> bool {
        let others = members.followers().iter().filter(|node| **node != me);
        let mut settled = others.map(|node| self.is_in(*node, members.epoch(), true));
        self.is_settled() && settled.all(|settled| settled)
    }

    /// Whether all live replicas are in the epoch.
    pub fn is_everywhere(&self, members: &Members, me: NodeId) -> bool {
        let mut others = members.now.live.iter().filter(|node| **node != me);
        others.all(|node| self.is_in(*node, members.epoch(), false))
    }
}

impl<M: Modify> Hermes<M> {
    /// An m-update: the members of a later epoch.
    ///
    /// # Panics
    /// If a replica without all that there is becomes live.
    pub(crate) fn on_install(&mut self, now: Time, next: Membership, out: &mut Outbox<Self>) {
        if next.epoch <= self.members.epoch() {
            return;
        }
        let (is_first, me) = (next.epoch == Epoch::FIRST, self.me);
        let recovered = self.is_recovered();
        let has_all = is_first || self.is_live() || self.has_joined() || recovered;
        assert!(has_all || !next.live.contains(&me), "{me} is live in {next:?} and has not all");
        let goes_on = next.live.contains(&me)
            || next.shadows.get(&me).is_some_and(|since| *since <= self.members.epoch());
        self.send_batches(out);
        if !self.mutation.is(Mutation::CountsOldEpochs) {
            self.batches = Batches::default();
        }
        self.members = Members::new(next, me);
        self.early.clear();
        self.installed.replays.clear();
        let mut again = self.drop_checks();
        let keeps = goes_on || recovered && self.mutation.is(Mutation::KeepsLostKeys);
        if !keeps {
            self.leave(again.iter().filter_map(Command::token), out);
            again.clear();
        }
        if !goes_on || !self.begun {
            self.begin_log(out);
        }
        if !self.members.contains(me) {
            return;
        }
        self.follow_or_serve(now, out);
        self.begin_epoch(now, out);
        self.announce(false, out);
        for command in again {
            self.on_command(now, command, out);
        }
    }

    /// All that is under way begins anew: no ACK of an earlier epoch counts (M7).
    fn begin_epoch(&mut self, now: Time, out: &mut Outbox<Self>) {
        for slot in self.unsettled.slots(|_| true) {
            let entry = self.store.get(slot);
            let due = self.due_of(now, entry.bytes());
            let orphan = !self.members.is_live(entry.last_writer);
            let (key, held) = (entry.key.clone(), entry.ts);
            let only_me = self.own_ack(&key, held, out);
            let own = self.unsettled.own(entry).map(|own| own.ts);
            if let Some(own) = own.filter(|own| *own != held) {
                self.own_ack(&key, own, out);
            }
            let Some(busy) = self.unsettled.get_mut(self.store.get(slot)) else { continue };
            (busy.heard, busy.due) = (only_me, due);
            if let Some(own) = &mut busy.own {
                own.named = true;
                if !self.mutation.is(Mutation::CountsOldEpochs) {
                    (own.number, own.acks) = (None, only_me);
                }
            }
            if (orphan || busy.replay.is_some()) && !self.mutation.is(Mutation::NeverReplays) {
                let again = busy.replay.replace(only_me).is_some();
                self.installed.replays.insert(slot);
                if !again {
                    self.record(|| Record::Replayed { key, ts: held }, out);
                }
            }
            self.repeat(slot, None, out);
            self.look_at_own(now, slot, out);
            self.look_at_held(now, slot, out);
        }
    }

    /// A replica that was removed holds nothing, and knows of nothing what became of it (M9). So
    /// does one that has missed its removal and is a shadow replica again.
    fn leave(&mut self, held: impl Iterator<Item = u64>, out: &mut Outbox<Self>) {
        let unsettled = std::mem::take(&mut self.unsettled);
        let mut tokens: Vec<u64> = held.collect();
        for busy in unsettled.into_all() {
            tokens.extend(busy.own.iter().flat_map(|own| own.tokens()));
            tokens.extend(busy.parked.into_iter().map(|parked| match parked {
                Parked::Read { token } => token,
                Parked::Update(request, _) => request.token,
            }));
        }
        tokens.into_iter().for_each(|token| self.answer(token, Answer::Unknown, out));
        self.forget_all();
        self.joining = None;
        self.installed = Installed::default();
    }

    /// Tells all in which epoch it is.
    fn announce(&self, asks: bool, out: &mut Outbox<Self>) {
        self.broadcast(&Body::Installed { asks, settled: self.installed.is_settled() }, out);
    }

    pub(crate) fn on_installed(
        &mut self,
        (from, epoch): (NodeId, Epoch),
        asks: bool,
        settled: bool,
        out: &mut Outbox<Self>,
    ) {
        let said = self.installed.said.entry(from).or_default();
        let comes = said.0 < epoch;
        if comes || said.0 == epoch {
            *said = (epoch, settled);
        }
        if epoch != self.members.epoch() || !self.members.contains(from) {
            return;
        }
        if asks {
            let settled = self.installed.is_settled();
            self.send(from, Body::Installed { asks: false, settled }, out);
        }
        if comes {
            // What it was told before it was in the epoch it has dropped.
            self.resync(from, out);
        }
    }

    /// A replay has ended here: it is committed, or another coordinates something later.
    pub(crate) fn replays_end(&mut self, slot: Slot, out: &mut Outbox<Self>) {
        if self.installed.replays.remove(&slot) && self.installed.is_settled() {
            self.announce(false, out);
        }
    }

    /// Says again what waits for an answer, and asks about what stays invalid.
    pub(crate) fn on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        for slot in self.unsettled.slots(|busy| busy.due <= now) {
            let entry = self.store.get(slot);
            let due = self.due_of(now, entry.bytes());
            self.unsettled.get_mut(entry).into_iter().for_each(|busy| busy.due = due);
            self.repeat(slot, None, out);
        }
        if self.members.contains(self.me) {
            self.check_again(out);
            self.fetch_again(now, out);
            if !self.installed.are_all_settled(&self.members, self.me) {
                self.announce(true, out);
            }
        }
    }

    /// The link to a peer has lost something, or the peer something that was said.
    pub(crate) fn resync(&mut self, peer: NodeId, out: &mut Outbox<Self>) {
        if self.members.contains(peer) {
            let slots = self.unsettled.slots(|_| true);
            slots.into_iter().for_each(|slot| self.repeat(slot, Some(peer), out));
        }
    }

    /// Says again what is under way for a key, to all who have not answered or to one of them.
    fn repeat(&mut self, slot: Slot, only: Option<NodeId>, out: &mut Outbox<Self>) {
        let entry = self.store.get(slot);
        let own = self.unsettled.get_mut(entry).and_then(|busy| busy.own.as_mut());
        own.into_iter().for_each(|own| own.named = true);
        let Some(busy) = self.unsettled.get(entry) else { return };
        let wanted = |node: &NodeId| only.is_none_or(|only| only == *node);
        if let Some(own) = busy.own.as_ref().filter(|own| !own.losing) {
            for node in self.members.missing(own.acks).filter(wanted) {
                self.say_again(node, own.update(entry), out);
            }
        }
        if let Some(acks) = busy.replay {
            for node in self.members.missing(acks).filter(wanted) {
                self.say_again(node, entry.update(), out);
            }
        }
        if matches!(busy.state(entry), State::Invalid | State::Trans) {
            let (key, ts) = (entry.key.clone(), entry.ts);
            let writer = entry.last_writer;
            if wanted(&writer) && writer != self.me && self.members.contains(writer) {
                self.send(writer, Body::Probe { key, ts }, out);
            }
        }
    }

    /// Says an update to one who has not acknowledged it.
    fn say_again(&self, node: NodeId, update: Update, out: &mut Outbox<Self>) {
        if node == self.me {
            self.own_ack(&update.key, update.ts, out);
        } else {
            self.send(node, Body::Inv(update), out);
        }
    }

    /// Says its own update again to one who has been told of it by another.
    pub(crate) fn repeat_own(&self, slot: Slot, to: NodeId, out: &mut Outbox<Self>) {
        let entry = self.store.get(slot);
        let Some(own) = self.unsettled.own(entry) else { return };
        let update = own.update(entry);
        self.send(to, Body::Inv(update), out);
    }

    pub(crate) fn on_probe(&self, from: NodeId, key: &Key, ts: Timestamp, out: &mut Outbox<Self>) {
        let Some(slot) = self.store.find(key) else { return };
        let entry = self.store.get(slot);
        let (valid, held) = (entry.is_valid(), entry.ts);
        if held == ts && valid {
            self.send(from, Body::Val { key: key.clone(), ts }, out);
        } else if held > ts {
            // What it holds itself it says again until all have acknowledged it.
            self.tell_held(from, slot, out);
        }
    }
}
