//! What a client keeps of an inode that it holds, and which answers may go there.
//!
//! Everything that the client itself changes is counted: a value that was touched after a read had
//! begun is not filled from that read, whose answer may be from before.

use super::layout::Layout;
use bytes::Bytes;
use meridian_core::{GroupId, Stamp, Time, mix};
use meridian_fs::types::{Attributes, Entry, Extent, Ino, Name, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// So many names of one directory are kept as "perhaps there": beyond them, what is absent is asked
/// for.
const PERHAPS_MAX: usize = 1 << 18;

/// Something that may be known, and when it was touched last by the client itself.
#[derive(Clone, Debug)]
pub(crate) struct Slot<T> {
    pub value: Option<T>,
    /// By the count of the client's own changes.
    touched: u64,
    /// The greatest timestamp of the client's changes of it.
    ts: Stamp,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { value: None, touched: 0, ts: Stamp(0) }
    }
}

impl<T> Slot<T> {
    /// The client begins to change it.
    pub fn touch(&mut self, count: u64) {
        (self.value, self.touched) = (None, count);
    }

    /// The client begins to change it; what is there now is the base of what comes.
    pub fn mark(&mut self, count: u64) {
        self.touched = count;
    }

    /// A change of the client is kept back: it counts here from now on.
    pub fn touched_by(&mut self, count: u64, change: impl FnOnce(&mut T)) {
        self.touched = count;
        if let Some(value) = &mut self.value {
            change(value);
        }
    }

    /// A change of the client has ended at `ts`, which adds this to what was there before; whether
    /// it is the last so far is told, too.
    pub fn amend(&mut self, count: u64, ts: Stamp, add: impl FnOnce(&mut T, bool)) {
        self.touched = count;
        if let Some(value) = &mut self.value {
            add(value, ts > self.ts);
        }
        self.ts = self.ts.max(ts);
    }

    /// A change of the client has ended at `ts`; `value` is what is there after it, if that is
    /// known and no other change of the client may have come later.
    pub fn end(&mut self, count: u64, ts: Stamp, value: Option<T>) {
        self.touched = count;
        self.value = value.filter(|_| ts > self.ts);
        self.ts = self.ts.max(ts);
    }

    /// A read that began at that count has shown it.
    pub fn fill(&mut self, begun: u64, value: T) {
        if self.touched <= begun {
            self.value = Some(value);
        }
    }

    /// A read that began at that count has shown some of it.
    pub fn fill_by(&mut self, begun: u64, add: impl FnOnce(&mut T))
    where
        T: Default,
    {
        if self.touched <= begun {
            add(self.value.get_or_insert_default());
        }
    }
}

/// How far a directory was listed since it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Listed {
    No,
    To(Name),
    All,
}

/// The extents of a file, each with its offset.
pub(crate) type Extents = Vec<(u64, Extent)>;

/// What is kept of one inode.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub group: GroupId,
    /// The count when it was granted: reads that began before may know less.
    pub granted: u64,
    pub attributes: Slot<Attributes>,
    pub used: Time,
    /// All extents of a file, if they are few.
    pub extents: Slot<Extents>,
    /// Where the bytes of a longer one lie, as far as that is known.
    pub layout: Slot<Layout>,
    /// The directory above a directory.
    pub parent: Slot<Place>,
    /// Whether it is held exclusively.
    pub alone: bool,
    /// Whether the owner's kernel has dropped all pages from before the grant.
    pub pages_dropped: bool,
    /// The directory with which it was asked for, among many.
    pub swept: Option<Ino>,
    /// In another region: the directory with which it was asked for, and with which it goes.
    pub ahead: Option<Ino>,
    names: BTreeMap<Name, Slot<Option<Entry>>>,
    /// Reads that began before know nothing of names: some were forgotten.
    floor: u64,
    listed: Listed,
    /// Hashes of all names that may be there, as far as the directory was listed.
    perhaps: BTreeSet<u64>,
}

impl Known {
    /// An inode that is held from now on, of which nothing is known.
    pub fn new(group: GroupId, granted: u64, used: Time) -> Known {
        Known {
            group,
            granted,
            attributes: Slot::default(),
            extents: Slot::default(),
            layout: Slot::default(),
            parent: Slot::default(),
            used,
            alone: false,
            pages_dropped: false,
            swept: None,
            ahead: None,
            names: BTreeMap::new(),
            floor: 0,
            listed: Listed::No,
            perhaps: BTreeSet::new(),
        }
    }

    /// How many names are kept with what they lead to.
    pub fn names_kept(&self) -> usize {
        self.names.len()
    }

    /// Forgets what its names lead to, at that count.
    pub fn forget_names(&mut self, count: u64) {
        self.names.clear();
        self.floor = count;
    }

    /// It is an empty directory.
    pub fn is_empty(&mut self) {
        self.listed = Listed::All;
    }

    /// After which name it was not listed yet; none if all of it was.
    pub fn rest(&self) -> Option<Name> {
        match &self.listed {
            Listed::No => Some(Name::new()),
            Listed::To(last) => Some(last.clone()),
            Listed::All => None,
        }
    }

    /// What the name leads to; `Some(None)` if to nothing.
    pub fn name(&self, name: &Name) -> Option<Option<Entry>> {
        match self.names.get(name).and_then(|slot| slot.value.as_ref()) {
            Some(value) => Some(value.clone()),
            None if self.listed != Listed::All || self.names.contains_key(name) => None,
            None => (!self.perhaps.contains(&hash(name))).then_some(None),
        }
    }

    /// The first `limit` entries after that name, and whether the directory ends there; if all of
    /// it is known.
    pub fn entries(&self, after: &Name, limit: usize) -> Option<(Vec<(Name, Entry)>, bool)> {
        // Some names were forgotten.
        if self.listed != Listed::All || self.floor > 0 {
            return None;
        }
        let after = (Bound::Excluded(after), Bound::Unbounded);
        let mut all = Vec::new();
        for (name, slot) in self.names.range::<Name, _>(after) {
            if let Some(entry) = slot.value.as_ref()? {
                if all.len() == limit {
                    return Some((all, false));
                }
                all.push((name.clone(), entry.clone()));
            }
        }
        Some((all, true))
    }

    /// The numbers of all entries, in their order; if all of it is known.
    pub fn numbers(&self) -> Option<Vec<Ino>> {
        if self.listed != Listed::All || self.floor > 0 {
            return None;
        }
        let entries = self.names.values().filter_map(|slot| slot.value.as_ref()?.as_ref());
        let mut all: Vec<_> = entries.map(|entry| entry.place.ino).collect();
        all.sort_unstable();
        Some(all)
    }

    /// The client begins to change a name, or has begun before it held the directory.
    pub fn touch_name(&mut self, name: &Name, count: u64) {
        self.perhaps.insert(hash(name));
        self.slot(name).touch(count);
    }

    /// See [`Slot::end`].
    pub fn end_name(&mut self, name: &Name, count: u64, ts: Stamp, value: Option<Option<Entry>>) {
        self.perhaps.insert(hash(name));
        self.slot(name).end(count, ts, value);
    }

    /// The client has kept back that the name leads there, or nowhere.
    pub fn keep_name(&mut self, name: &Name, count: u64, leads: Option<Entry>) {
        self.perhaps.insert(hash(name));
        let slot = self.slot(name);
        (slot.touched, slot.value) = (count, Some(leads));
    }

    /// A read that began at that count has shown it.
    pub fn fill_name(&mut self, name: &Name, begun: u64, value: Option<Entry>) {
        if begun < self.floor {
            return;
        }
        if value.is_some() {
            self.perhaps.insert(hash(name));
        }
        self.slot(name).fill(begun, value);
    }

    /// A part of its listing after `after` was read: names up to `last` are known.
    pub fn listed(&mut self, after: &Name, last: Option<&Name>, end: bool) {
        let goes_on = after.is_empty() || self.listed == Listed::To(after.clone());
        if !goes_on || self.listed == Listed::All {
            return;
        }
        self.listed = match last {
            _ if end => Listed::All,
            Some(last) => Listed::To(last.clone()),
            None => Listed::No,
        };
        if self.perhaps.len() > PERHAPS_MAX {
            self.listed = Listed::No;
        }
    }

    fn slot(&mut self, name: &Name) -> &mut Slot<Option<Entry>> {
        if self.perhaps.len() > PERHAPS_MAX {
            self.perhaps.clear();
            self.listed = Listed::No;
        }
        self.names.entry(Bytes::clone(name)).or_default()
    }
}

/// A hash of a name. Two names with one hash make the client ask once more.
fn hash(name: &Name) -> u64 {
    // FNV-1a of 64 bits.
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(name.iter().fold(0xcbf2_9ce4_8422_2325, step))
}
