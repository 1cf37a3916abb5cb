//! What a replica holds: entries at places that do not change, and a table of keys.
//!
//! A walk by place is in an order that is the same in each run, so a donor can go through all that
//! it holds while updates go on.

use crate::message::{Kind, Update};
use crate::timestamp::Timestamp;
use bytes::Bytes;
use meridian_core::{NodeId, Shelf, Slot};

/// What is held of a key (Hermes, section 3.1): the last update, and the state as far as readers
/// ask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub update: Update,
    /// Whether it is Valid: the update is committed, and no later one is known.
    pub valid: bool,
    /// Who sent the INV.
    pub last_writer: NodeId,
}

/// All entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    entries: Shelf<Bytes, Entry>,
    /// How many keys have a value.
    live: usize,
    /// How much all keys and values take, in bytes.
    bytes: usize,
}

impl Store {
    pub fn find(&self, key: &Bytes) -> Option<Slot> {
        self.entries.find(key)
    }

    /// The place of a key; a new one is Valid, and nothing was written to it.
    pub fn slot(&mut self, key: &Bytes, me: NodeId) -> Slot {
        let Store { entries, bytes, .. } = self;
        entries.slot(key, || {
            let (ts, base) = (Timestamp::NONE, Timestamp::NONE);
            let (kind, value, request) = (Kind::Write, None, None);
            let update = Update { key: key.clone(), ts, base, kind, value, request };
            *bytes += key.len();
            Entry { update, valid: true, last_writer: me }
        })
    }

    pub fn get(&self, slot: Slot) -> &Entry {
        self.entries.get(slot)
    }

    pub fn get_mut(&mut self, slot: Slot) -> &mut Entry {
        self.entries.get_mut(slot)
    }

    /// From now on this is held, which `from` has sent, and the key is not Valid; what was held
    /// before.
    pub fn hold(&mut self, slot: Slot, update: Update, from: NodeId) -> Update {
        let entry = self.entries.get_mut(slot);
        self.live += usize::from(update.value.is_some());
        self.live -= usize::from(entry.update.value.is_some());
        self.bytes += update.bytes();
        self.bytes -= entry.update.bytes();
        (entry.valid, entry.last_writer) = (false, from);
        std::mem::replace(&mut entry.update, update)
    }

    /// How many keys have a value.
    pub fn live(&self) -> usize {
        self.live
    }

    /// How much all keys and values take, in bytes; those of deleted keys, too.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entries from a place on.
    pub fn since(&self, slot: Slot) -> impl Iterator<Item = (Slot, &Entry)> {
        self.entries.since(slot)
    }

    /// All entries as they are now, whatever happens meanwhile.
    pub fn freeze(&self) -> impl Iterator<Item = Entry> + use<> {
        self.entries.freeze()
    }
}
