//! The data of updates that were made here, for those of other regions that apply them. It travels
//! apart from labels.

use super::message::Message;
use super::node::Causal;
use meridian_core::{NodeId, Outbox, Time};
use meridian_eunomia::{self as eunomia, Role, Timestamp};
use meridian_hermes::Modify;

impl<M: Modify> Causal<M> {
    /// Sends what was asked for, and what this source has made after that: who lacks some data
    /// lacks more.
    pub(super) fn on_pull(
        &mut self,
        now: Time,
        to: NodeId,
        stamps: &[Timestamp],
        out: &mut Outbox<Self>,
    ) {
        let Some(last) = stamps.iter().max() else { return };
        let asked = stamps.iter().filter_map(|ts| self.find(*ts));
        let more = self.data.range(*last..).map(|(_, update)| update.clone());
        let more = more.filter(|update| update.label.ts != *last);
        let found: Vec<_> = asked.chain(more.take(self.options.labels_max)).collect();
        if !found.is_empty() {
            self.send_data(to, found, out);
        }
        self.say_trimmed(now, to, stamps, out);
    }

    fn send_data(&self, to: NodeId, updates: Vec<eunomia::Update>, out: &mut Outbox<Self>) {
        let (from, message) = (Role::Shard(self.number), eunomia::Message::Data(updates));
        out.send(to, Message::Eunomia { from, to: Role::Receiver, message });
    }

    /// Says of which updates that another region lacks all have had the data. What was committed
    /// each live replica knows until then.
    fn say_trimmed(&mut self, now: Time, to: NodeId, stamps: &[Timestamp], out: &mut Outbox<Self>) {
        let known =
            |ts: &Timestamp| self.data.contains_key(ts) || self.completion_of(*ts).is_some();
        let trimmed: Vec<_> = stamps.iter().filter(|ts| !known(ts)).copied().collect();
        if trimmed.is_empty() {
            return;
        }
        if !self.replica.serves(now) {
            self.wants_lease = true; // It will be asked again.
            return;
        }
        let (from, message) = (Role::Shard(self.number), eunomia::Message::Trimmed(trimmed));
        out.send(to, Message::Eunomia { from, to: Role::Receiver, message });
    }

    /// Sends the data of what was committed to who follows, before the labels come.
    pub(super) fn send_unsent(&mut self, out: &mut Outbox<Self>) {
        let unsent = std::mem::take(&mut self.unsent);
        let updates: Vec<_> = unsent.iter().filter_map(|ts| self.data.get(ts)).cloned().collect();
        if !updates.is_empty() {
            self.followers.values().for_each(|node| self.send_data(*node, updates.clone(), out));
        }
    }
}
