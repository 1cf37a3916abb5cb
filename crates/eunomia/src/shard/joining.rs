//! How a shard of a region that joins copies keys (decision 88): from each shard of the other
//! region, page by page, what it holds itself, while both serve.
//!
//! Pages are read one after the other while updates go on, so a copy is of no moment. It is enough
//! that it begins when all other regions keep for this one what they make: whatever was made
//! before, and is not kept, is in it. All that a copied key depends on has come when the streams of
//! labels are applied up to the vector that [`Message::Copied`] tells.

use super::{Entry, Record, Shard};
use crate::message::{Message, Peer, Role, Update};
use crate::timestamp::Vector;
use bytes::Bytes;
use meridian_core::{Outbox, RegionId, Time};
use std::collections::BTreeMap;
use std::ops::Bound;

/// How far a copy is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Copying {
    from: RegionId,
    /// After which key each shard there goes on; those that are done are not in it.
    next: BTreeMap<u16, Option<Bytes>>,
    /// When a page was asked for last.
    asked: Time,
}

impl Shard {
    /// Its receiver wants it to copy the keys of another region.
    pub(super) fn on_copy(&mut self, now: Time, from: RegionId, out: &mut Outbox<Self>) {
        if let Some(seen) = self.copied {
            let receiver = Peer { role: Role::Receiver, ..self.me };
            return out.send(receiver, Message::Copied(seen));
        }
        if self.copying.as_ref().is_some_and(|copying| copying.from == from) {
            return;
        }
        let next = (0..self.topology.shard_count(from)).map(|number| (number, None)).collect();
        self.copying = Some(Copying { from, next, asked: now });
        self.ask_pages(out);
    }

    fn ask_pages(&self, out: &mut Outbox<Self>) {
        let Some(Copying { from, next, .. }) = &self.copying else { return };
        for (number, after) in next {
            let to = Peer { region: *from, role: Role::Shard(*number) };
            out.send(to, Message::AskPage { after: after.clone() });
        }
    }

    /// Asks for pages that have not come.
    pub(super) fn copy_again(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(copying) = &mut self.copying else { return };
        if now.since(copying.asked) >= self.options.retry {
            copying.asked = now;
            self.ask_pages(out);
        }
    }

    /// The next keys that are another shard's there.
    pub(super) fn on_ask_page(&self, to: Peer, after: Option<Bytes>, out: &mut Outbox<Self>) {
        let start = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.keys.range::<Bytes, _>((start, Bound::Unbounded));
        let own = |label_place| self.topology.home(to.region, label_place) == to;
        let mut rest = entries.filter(|(_, entry)| own(entry.label.place));
        let page = rest.by_ref().take(self.options.labels_max.max(1));
        let updates: Vec<_> = page.map(|(key, entry)| entry.update(key.clone())).collect();
        let more = rest.next().is_some();
        out.send(to, Message::Page { after, updates, more });
    }

    /// A page of a shard of another region has come.
    pub(super) fn on_page(
        &mut self,
        now: Time,
        (from, number): (RegionId, u16),
        after: Option<Bytes>,
        (updates, more): (Vec<Update>, bool),
        out: &mut Outbox<Self>,
    ) {
        let Some(copying) = self.copying.as_mut().filter(|copying| copying.from == from) else {
            return;
        };
        if copying.next.get(&number) != Some(&after) {
            return; // It came before.
        }
        match updates.last().filter(|_| more) {
            Some(last) => drop(copying.next.insert(number, Some(last.key.clone()))),
            None => drop(copying.next.remove(&number)),
        }
        copying.asked = now;
        let next = copying.next.get(&number).cloned();
        let all = copying.next.is_empty();
        for update in updates {
            if self.hold(&update) {
                out.persist(Record::Held(update));
            }
        }
        if let Some(after) = next {
            let to = Peer { region: from, role: Role::Shard(number) };
            out.send(to, Message::AskPage { after });
        }
        if all {
            // Also what was copied of another region before this one.
            let mut seen = Vector::default();
            self.keys.values().for_each(|entry| seen.join(&entry.label.vector));
            (self.copying, self.copied) = (None, Some(seen));
            out.persist(Record::Copied(seen));
            self.on_copy(now, from, out);
        }
    }
}

impl Entry {
    /// The update that a key holds.
    pub(super) fn update(&self, key: Bytes) -> Update {
        let Entry { value, order, origin, label } = self.clone();
        Update { origin, label, key, value, order }
    }
}
