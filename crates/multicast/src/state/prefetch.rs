//! Loading entries into the cache before they are looked at.
//!
//! Entries are many, and out of the cache when something is heard of them. Looked at one by one,
//! each would wait for memory. Here something of each cache line that will be touched is read for
//! many of them, in a way that no load waits for another. No state changes.

use crate::message::Start;
use crate::state::log::{Log, Slot};

/// So many entries are loaded at a time: as many as a core waits for at once, or few more.
const LOADED_AHEAD: u64 = 16;

impl Slot {
    /// Something of each cache line that handling this slot touches.
    fn load(&self) -> u64 {
        let Start { id, dest, .. } = &*self.entry.start;
        id.sequence ^ (dest.len() ^ self.locals.len()) as u64 ^ self.since.0
    }
}

impl Log {
    /// Loads these entries.
    pub(crate) fn prefetch(&self, indexes: impl Iterator<Item = u64>) {
        let slots = indexes.filter_map(|index| self.get(index));
        std::hint::black_box(slots.fold(0, |seen, slot| seen ^ slot.load()));
    }

    /// Loads some entries from `index` on, if those before `loaded` are; returns before which they
    /// are then.
    pub(crate) fn prefetch_ahead(&self, index: u64, loaded: u64) -> u64 {
        if index < loaded {
            return loaded;
        }
        let end = index + LOADED_AHEAD;
        self.prefetch(index..end);
        end
    }

    /// Loads some entries from `base` on, with all that is touched when they are dropped.
    pub(crate) fn prefetch_to_drop(&self, loaded: u64) -> u64 {
        if self.base() < loaded {
            return loaded;
        }
        let slots = self.slots.iter().take(LOADED_AHEAD as usize);
        std::hint::black_box(slots.fold(0, |seen, slot| {
            let Start { id, payload, .. } = &*slot.entry.start;
            let first = payload.first().copied().unwrap_or_default();
            let index = self.index.get(id).copied().unwrap_or_default();
            seen ^ slot.load() ^ u64::from(first) ^ index
        }));
        self.base() + LOADED_AHEAD
    }
}
