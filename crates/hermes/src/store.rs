//! What a replica holds: entries at places that do not change, and a table of keys.
//!
//! A walk by place is in an order that is the same in each run, so a donor can go through all that
//! it holds while updates go on.

use crate::busy::Place;
use crate::message::{Completed, Kind, Update};
use crate::timestamp::Timestamp;
use meridian_core::{Key, Keyed, NodeId, Secret, Shelf, Slot, Value};

/// What is held of a key (Hermes, section 3.1): the last update, and what is under way. What a read
/// compares and copies is in the first of two lines of memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    pub key: Key,
    pub value: Option<Value>,
    pub ts: Timestamp,
    pub base: Timestamp,
    pub request: Option<Box<Completed>>,
    /// `None` if it is Valid: the update is committed, and no later one is known.
    pub busy: Option<Place>,
    /// Who sent the INV.
    pub last_writer: NodeId,
    pub kind: Kind,
}

// Two lines of memory (decision 85).
const _: () = assert!(size_of::<Entry>() == 128);

impl Entry {
    pub fn is_valid(&self) -> bool {
        self.busy.is_none()
    }

    /// The update that is held.
    pub fn update(&self) -> Update {
        let (key, value, request) = (self.key.clone(), self.value.clone(), self.request.clone());
        let Entry { ts, base, kind, .. } = *self;
        Update { key, ts, base, kind, value, request }
    }

    /// The same, of an entry that is not needed any more.
    pub fn into_update(self) -> Update {
        let Entry { key, value, ts, base, request, kind, .. } = self;
        Update { key, ts, base, kind, value, request }
    }

    /// How many bytes its value has.
    pub fn bytes(&self) -> usize {
        self.value.as_ref().map_or(0, |value| value.len())
    }
}

impl Keyed for Entry {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

/// All entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    entries: Shelf<Entry>,
    /// How many keys have a value.
    live: usize,
    /// How much all keys and values take, in bytes.
    bytes: usize,
}

impl Store {
    pub fn new(secret: Secret) -> Store {
        Store { entries: Shelf::new(secret), live: 0, bytes: 0 }
    }

    /// All is forgotten.
    pub fn clear(&mut self) {
        *self = Store::new(self.entries.secret());
    }

    pub fn find(&self, key: &[u8]) -> Option<Slot> {
        self.entries.find(key)
    }

    /// The place of a key; a new one is Valid, and nothing was written to it.
    pub fn slot(&mut self, key: &[u8], me: NodeId) -> Slot {
        let Store { entries, bytes, .. } = self;
        entries.slot(key, || unwritten(key, me, bytes))
    }

    /// The places of the keys of a batch, which are all looked up before one is changed.
    pub fn slots(&mut self, updates: &[Update], me: NodeId) -> Vec<Slot> {
        let Store { entries, bytes, .. } = self;
        let keys = updates.iter().map(|update| &update.key[..]);
        entries.slots(keys, |key| unwritten(key, me, bytes))
    }

    pub fn get(&self, slot: Slot) -> &Entry {
        self.entries.get(slot)
    }

    pub fn get_mut(&mut self, slot: Slot) -> &mut Entry {
        self.entries.get_mut(slot)
    }

    /// From now on this is held, which `from` has sent.
    pub fn hold(&mut self, slot: Slot, update: Update, from: NodeId) -> &mut Entry {
        let entry = self.entries.get_mut(slot);
        self.live += usize::from(update.value.is_some());
        self.live -= usize::from(entry.value.is_some());
        self.bytes += update.bytes();
        self.bytes -= entry.bytes();
        let Update { key: _, ts, base, kind, value, request } = update;
        (entry.ts, entry.base, entry.kind, entry.last_writer) = (ts, base, kind, from);
        (entry.value, entry.request) = (value, request);
        entry
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

/// An entry of a key to which nothing was written; `bytes` count it.
fn unwritten(key: &[u8], me: NodeId, bytes: &mut usize) -> Entry {
    *bytes += key.len();
    let (ts, base, kind) = (Timestamp::NONE, Timestamp::NONE, Kind::Write);
    let (value, request, busy) = (None, None, None);
    Entry { key: key.into(), value, ts, base, request, busy, last_writer: me, kind }
}
