//! Values at places that do not change, and a table of their keys: what a replica of keys holds.
//!
//! Nothing is ever removed. So a walk by place is in an order that is the same in each run, and
//! meets each value that is there all the time, whatever is added while it goes on.

use crate::table::Table;
use std::hash::Hash;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shelf<K: Eq + Hash, V> {
    places: Table<K, Slot>,
    values: Vec<V>,
}

impl<K: Eq + Hash, V> Default for Shelf<K, V> {
    fn default() -> Self {
        Shelf { places: Table::default(), values: Vec::new() }
    }
}

impl<K: Eq + Hash + Clone, V> Shelf<K, V> {
    /// Where the value of `key` is, if it has one.
    pub fn find(&self, key: &K) -> Option<Slot> {
        self.places.get(key).copied()
    }

    /// Where the value of `key` is, which is made if there is none.
    ///
    /// # Panics
    /// With more than 2^32 keys.
    pub fn slot(&mut self, key: &K, make: impl FnOnce() -> V) -> Slot {
        let Shelf { places, values } = self;
        if let Some(slot) = places.get(key) {
            return *slot;
        }
        let slot = Slot(u32::try_from(values.len()).expect("fewer keys than the memory holds"));
        values.push(make());
        places.insert(key.clone(), slot);
        slot
    }

    /// What is there.
    ///
    /// # Panics
    /// If nothing is: a place comes from this shelf.
    pub fn get(&self, slot: Slot) -> &V {
        &self.values[slot.0 as usize]
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// If nothing is: a place comes from this shelf.
    pub fn get_mut(&mut self, slot: Slot) -> &mut V {
        &mut self.values[slot.0 as usize]
    }

    /// All from a place on, in the order in which they came.
    pub fn since(&self, slot: Slot) -> impl Iterator<Item = (Slot, &V)> {
        let values = self.values.get(slot.0 as usize..).unwrap_or_default();
        values.iter().zip(slot.0..).map(|(value, place)| (Slot(place), value))
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
}
