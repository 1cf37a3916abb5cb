//! A hash table whose order nobody sees and nothing depends on.
//!
//! For the state of processes: with a fixed hasher, so equal on all machines; and `Hash`, so that
//! whole processes can be compared. There is no iteration: a walk in an order that is no one's
//! choice does not belong into a protocol.

use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher};

#[allow(clippy::disallowed_types)] // Its hasher is fixed, and its order is not shown.
type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::FixedState>;

/// See the module's documentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound(
    serialize = "K: Serialize + Eq + Hash, V: Serialize",
    deserialize = "K: Deserialize<'de> + Eq + Hash, V: Deserialize<'de>"
))]
pub struct Table<K, V> {
    map: Map<K, V>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table { map: Map::default() }
    }
}

impl<K: Eq + Hash, V: PartialEq> PartialEq for Table<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl<K: Eq + Hash, V: Eq> Eq for Table<K, V> {}

impl<K: Eq + Hash, V: Hash> Hash for Table<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A sum over the entries: the same in any order.
        let fixed = foldhash::fast::FixedState::default();
        let sum = self.map.iter().fold(0u64, |sum, entry| sum.wrapping_add(fixed.hash_one(entry)));
        (self.map.len(), sum).hash(state);
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Whether there is an entry under `key`.
    pub fn contains(&self, key: &K) -> bool {
        self.map.contains_key(key)
    }

    /// The value under `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    /// The value under `key`, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    /// Puts `value` under `key`; the value that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.map.insert(key, value)
    }

    /// The value under `key`, made if there is none.
    pub fn or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.map.entry(key).or_insert_with(make)
    }

    /// Puts the value under `key` if there is none; whether it did.
    pub fn insert_new(&mut self, key: K, make: impl FnOnce() -> V) -> bool {
        match self.map.entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(make());
                true
            }
        }
    }

    /// Takes out the value under `key`.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.map.remove(key)
    }

    /// Takes over what `other` has under keys that are not here, and puts together with `both` what
    /// is under the same key. In which order is not told.
    pub fn merge(&mut self, other: Table<K, V>, mut both: impl FnMut(&mut V, V)) {
        for (key, theirs) in other.map {
            match self.map.entry(key) {
                Entry::Occupied(mut ours) => both(ours.get_mut(), theirs),
                Entry::Vacant(place) => drop(place.insert(theirs)),
            }
        }
    }

    /// Gives back memory that is not needed for `least` entries, or as many as there are.
    pub fn shrink_to(&mut self, least: usize) {
        self.map.shrink_to(least);
    }

    /// Takes out all.
    pub fn clear(&mut self) {
        self.map.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_are_equal_and_have_equal_hashes() {
        let (mut a, mut b) = (Table::default(), Table::default());
        (0..100).for_each(|n| assert_eq!(a.insert(n, n * n), None));
        (0..100).rev().for_each(|n| assert_eq!(b.insert(n, n * n), None));
        let hash = |table: &Table<i32, i32>| foldhash::fast::FixedState::default().hash_one(table);
        assert_eq!((&a, hash(&a)), (&b, hash(&b)));
        assert_eq!(b.remove(&7), Some(49));
        assert_ne!((&a, hash(&a)), (&b, hash(&b)));
        assert!(!b.insert_new(8, || 0) && b.insert_new(7, || 49));
        assert_eq!((&a, hash(&a)), (&b, hash(&b)));
        let mut few = Table::default();
        assert_eq!((few.insert(7, 1), few.insert(1000, 2)), (None, None));
        b.merge(few, |ours, theirs| *ours += theirs);
        assert_eq!((b.len(), b.get(&7), b.get(&1000)), (101, Some(&50), Some(&2)));
    }
}
