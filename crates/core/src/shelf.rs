//! Values at places that do not change, and a table of their keys: what a replica of keys holds.
//!
//! Nothing is ever removed. So a walk by place is in an order that is the same in each run, and
//! meets each value that is there all the time, whatever is added while it goes on.
//!
//! Values lie in pages that are shared with copies of the whole ([`Shelf::freeze`]) until one is
//! written to. So a copy of a million values costs its owner no time in which others would wait:
//! each page is copied when it is first written to.

use crate::table::Table;
use std::hash::Hash;
use std::sync::Arc;

/// So many values are in a page. To copy one takes some microseconds; fewer would make a copy of
/// the whole longer, which is one of a pointer for each page.
const PAGE_LEN: usize = 256;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shelf<K: Eq + Hash, V> {
    places: Table<K, Slot>,
    /// Full pages.
    pages: Vec<Arc<[V]>>,
    /// The values after them: fewer than a page.
    last: Vec<V>,
}

impl<K: Eq + Hash, V> Default for Shelf<K, V> {
    fn default() -> Self {
        Shelf { places: Table::default(), pages: Vec::new(), last: Vec::new() }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Shelf<K, V> {
    /// Where the value of `key` is, if it has one.
    pub fn find(&self, key: &K) -> Option<Slot> {
        self.places.get(key).copied()
    }

    /// Where the value of `key` is, which is made if there is none.
    ///
    /// # Panics
    /// With more than 2^32 keys.
    pub fn slot(&mut self, key: &K, make: impl FnOnce() -> V) -> Slot {
        let Shelf { places, pages, last } = self;
        if let Some(slot) = places.get(key) {
            return *slot;
        }
        let count = pages.len() * PAGE_LEN + last.len();
        let slot = Slot(u32::try_from(count).expect("fewer keys than the memory holds"));
        last.push(make());
        if last.len() == PAGE_LEN {
            pages.push(last.drain(..).collect());
        }
        places.insert(key.clone(), slot);
        slot
    }

    /// What is there.
    ///
    /// # Panics
    /// If nothing is: a place comes from this shelf.
    pub fn get(&self, slot: Slot) -> &V {
        let (page, place) = (slot.0 as usize / PAGE_LEN, slot.0 as usize % PAGE_LEN);
        self.pages.get(page).map_or_else(|| &self.last[place], |page| &page[place])
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// If nothing is: a place comes from this shelf.
    pub fn get_mut(&mut self, slot: Slot) -> &mut V {
        let (page, place) = (slot.0 as usize / PAGE_LEN, slot.0 as usize % PAGE_LEN);
        match self.pages.get_mut(page) {
            Some(page) => &mut Arc::make_mut(page)[place],
            None => &mut self.last[place],
        }
    }

    /// All from a place on, in the order in which they came.
    pub fn since(&self, slot: Slot) -> impl Iterator<Item = (Slot, &V)> {
        let (page, place) = (slot.0 as usize / PAGE_LEN, slot.0 as usize % PAGE_LEN);
        let pages = self.pages.iter().map(|page| &page[..]).chain([&self.last[..]]).skip(page);
        let values = pages.flatten().skip(place);
        values.zip(slot.0..).map(|(value, place)| (Slot(place), value))
    }

    /// All as they are now, in the order in which they came, whatever is done here meanwhile.
    pub fn freeze(&self) -> impl Iterator<Item = V> + use<K, V> {
        let pages = self.pages.clone().into_iter();
        let values = pages.flat_map(|page| (0..page.len()).map(move |place| page[place].clone()));
        values.chain(self.last.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_places() {
        let mut shelf = Shelf::default();
        let first = shelf.slot(&"a", || 1);
        let second = shelf.slot(&"b", || 2);
        assert_eq!((shelf.slot(&"a", || 9), shelf.find(&"b")), (first, Some(second)));
        assert_eq!(shelf.find(&"c"), None);
        *shelf.get_mut(first) += 6;
        let all = |from| shelf.since(from).map(|(_, value)| *value).collect::<Vec<_>>();
        assert_eq!((all(first), all(second), all(Slot(7))), (vec![7, 2], vec![2], vec![]));
    }

    #[test]
    fn a_walk_begins_anywhere_also_behind_full_pages() {
        let mut shelf = Shelf::default();
        for key in 0..1000usize {
            let slot = shelf.slot(&key, || key * 2);
            assert_eq!((slot, shelf.find(&key)), (Slot(key as u32), Some(slot)));
        }
        for from in [0, 1, PAGE_LEN - 1, PAGE_LEN, PAGE_LEN + 1, 999, 1000, 5000] {
            let walked: Vec<_> = shelf.since(Slot(from as u32)).collect();
            let wanted = (from..1000).map(|key| (Slot(key as u32), key * 2));
            assert!(walked.into_iter().map(|(slot, value)| (slot, *value)).eq(wanted), "{from}");
        }
    }

    #[test]
    fn what_is_frozen_stays_as_it_was() {
        let mut shelf = Shelf::default();
        for key in 0..1000u32 {
            shelf.slot(&key, || key);
        }
        let frozen = shelf.freeze();
        for key in 0..1200u32 {
            let slot = shelf.slot(&key, || key);
            *shelf.get_mut(slot) += 1;
        }
        assert!(frozen.eq(0..1000), "as it was");
        assert!(shelf.since(Slot(0)).map(|(_, value)| *value).eq(1..1201), "as it is");
    }
}
