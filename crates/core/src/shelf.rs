//! Entries at places that do not change, and a table of their keys: what a replica of keys holds.
//!
//! Nothing is ever removed. So a walk by place is in an order that is the same in each run, and
//! meets each entry that is there all the time, whatever is added while it goes on.
//!
//! Entries lie in pages that are shared with copies of the whole ([`Shelf::freeze`]) until one is
//! written to. So a copy of a million entries costs its owner no time in which others would wait:
//! each page is copied when it is first written to.
//!
//! The table has eight bytes for a key: its hash, and the place of the entry that it lies in. It is
//! SipHash-1-3 with a secret (decision 85): who knew the hash could choose keys that all have the
//! same one.

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// So many entries are in a page. To copy one takes some microseconds; fewer would make a copy of
/// the whole longer, which is one of a pointer for each page.
const PAGE_LEN: usize = 256;

/// What has a key.
pub trait Keyed {
    /// Its key, which does not change while it is on a shelf.
    fn key(&self) -> &[u8];
}

/// What the hashes of keys depend on. A server draws it at each start, and tells nobody. Nothing
/// else depends on it; the default, which all know, is for runs that must be the same again.
#[derive(Clone, Copy, Default)]
pub struct Secret(pub [u64; 2]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What the table has of an entry.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    slot: Slot,
}

const _: () = assert!(size_of::<Place>() == 8);

impl Place {
    /// The table takes its buckets from the lower bits and compares the upper ones.
    fn spread(hash: u32) -> u64 {
        u64::from(hash) << 32 | u64::from(hash)
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Shelf<V> {
    secret: Secret,
    places: HashTable<Place>,
    entries: Pages<V>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pages<V> {
    full: Vec<Arc<[V]>>,
    /// The entries after them: fewer than a page.
    last: Vec<V>,
}

impl<V> Default for Shelf<V> {
    fn default() -> Self {
        Shelf::new(Secret::default())
    }
}

/// The table follows from the entries.
impl<V: PartialEq> PartialEq for Shelf<V> {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl<V: Eq> Eq for Shelf<V> {}

impl<V: Hash> Hash for Shelf<V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries.hash(state);
    }
}

impl<V> Pages<V> {
    fn get(&self, slot: Slot) -> &V {
        let (page, place) = (slot.0 as usize / PAGE_LEN, slot.0 as usize % PAGE_LEN);
        self.full.get(page).map_or_else(|| &self.last[place], |page| &page[place])
    }

    fn add(&mut self, entry: V) -> Slot {
        let count = self.full.len() * PAGE_LEN + self.last.len();
        self.last.push(entry);
        if self.last.len() == PAGE_LEN {
            self.full.push(self.last.drain(..).collect());
        }
        Slot(u32::try_from(count).expect("fewer keys than the memory holds"))
    }
}

impl<V> Shelf<V> {
    /// Nothing yet.
    pub fn new(secret: Secret) -> Shelf<V> {
        let entries = Pages { full: Vec::new(), last: Vec::new() };
        Shelf { secret, places: HashTable::new(), entries }
    }

    /// What its hashes depend on.
    pub fn secret(&self) -> Secret {
        self.secret
    }

    fn hash_of(&self, key: &[u8]) -> u32 {
        let Secret([one, other]) = self.secret;
        SipHasher13::new_with_keys(one, other).hash(key) as u32
    }
}

impl<V: Keyed + Clone> Shelf<V> {
    /// Where the entry of `key` is, if it has one.
    pub fn find(&self, key: &[u8]) -> Option<Slot> {
        self.find_hashed(self.hash_of(key), key)
    }

    fn find_hashed(&self, hash: u32, key: &[u8]) -> Option<Slot> {
        let is_it = |at: &Place| at.hash == hash && self.entries.get(at.slot).key() == key;
        self.places.find(Place::spread(hash), is_it).map(|at| at.slot)
    }

    /// Where the entry of `key` is, which is made if there is none.
    ///
    /// # Panics
    /// With more than 2^32 keys.
    pub fn slot(&mut self, key: &[u8], make: impl FnOnce() -> V) -> Slot {
        self.slot_hashed(self.hash_of(key), key, make)
    }

    fn slot_hashed(&mut self, hash: u32, key: &[u8], make: impl FnOnce() -> V) -> Slot {
        self.find_hashed(hash, key).unwrap_or_else(|| {
            let slot = self.entries.add(make());
            let rehash = |at: &Place| Place::spread(at.hash);
            self.places.insert_unique(Place::spread(hash), Place { hash, slot }, rehash);
            slot
        })
    }

    /// Where the entries of many keys are; [`Shelf::slot`] of each, one after the other, but that
    /// nothing is done in between: so the processor waits for the memory of many at once.
    pub fn slots<'k, K>(&mut self, keys: K, mut make: impl FnMut(&[u8]) -> V) -> Vec<Slot>
    where
        K: Iterator<Item = &'k [u8]> + Clone,
    {
        let hashes: Vec<u32> = keys.clone().map(|key| self.hash_of(key)).collect();
        let slot = |(hash, key)| self.slot_hashed(hash, key, || make(key));
        hashes.into_iter().zip(keys).map(slot).collect()
    }

    /// What is there.
    ///
    /// # Panics
    /// If nothing is: a place comes from this shelf.
    pub fn get(&self, slot: Slot) -> &V {
        self.entries.get(slot)
    }

    /// The same, to be changed; its key stays.
    ///
    /// # Panics
    /// If nothing is: a place comes from this shelf.
    pub fn get_mut(&mut self, slot: Slot) -> &mut V {
        let (page, place) = (slot.0 as usize / PAGE_LEN, slot.0 as usize % PAGE_LEN);
        match self.entries.full.get_mut(page) {
            Some(page) => &mut Arc::make_mut(page)[place],
            None => &mut self.entries.last[place],
        }
    }

    /// All from a place on, in the order in which they came.
    pub fn since(&self, slot: Slot) -> impl Iterator<Item = (Slot, &V)> {
        let (page, place) = (slot.0 as usize / PAGE_LEN, slot.0 as usize % PAGE_LEN);
        let Pages { full, last } = &self.entries;
        let pages = full.iter().map(|page| &page[..]).chain([&last[..]]).skip(page);
        let entries = pages.flatten().skip(place);
        entries.zip(slot.0..).map(|(entry, place)| (Slot(place), entry))
    }

    /// All as they are now, in the order in which they came, whatever is done here meanwhile.
    pub fn freeze(&self) -> impl Iterator<Item = V> + use<V> {
        let pages = self.entries.full.clone().into_iter();
        let entries = pages.flat_map(|page| (0..page.len()).map(move |place| page[place].clone()));
        entries.chain(self.entries.last.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Pair(Vec<u8>, u32);

    impl Keyed for Pair {
        fn key(&self) -> &[u8] {
            &self.0
        }
    }

    fn key(number: u32) -> Vec<u8> {
        number.to_be_bytes().into()
    }

    fn pair(number: u32) -> Pair {
        Pair(key(number), number)
    }

    fn shelf_of(count: u32) -> Shelf<Pair> {
        let mut shelf = Shelf::new(Secret([1, 2]));
        for number in 0..count {
            let slot = shelf.slot(&key(number), || pair(number));
            assert_eq!((slot, shelf.find(&key(number))), (Slot(number), Some(slot)));
        }
        shelf
    }

    #[test]
    fn entries_keep_their_places() {
        let mut shelf = shelf_of(2);
        let again = shelf.slot(&key(0), || panic!("it is there"));
        assert_eq!(
            (again, shelf.find(&key(1)), shelf.find(&key(2))),
            (Slot(0), Some(Slot(1)), None)
        );
        shelf.get_mut(again).1 += 6;
        let all = |from| shelf.since(Slot(from)).map(|(_, pair)| pair.1).collect::<Vec<_>>();
        assert_eq!((all(0), all(1), all(7)), (vec![6, 1], vec![1], vec![]));
    }

    #[test]
    fn a_walk_begins_anywhere_also_behind_full_pages() {
        let shelf = shelf_of(1000);
        let page = PAGE_LEN as u32;
        for from in [0, 1, page - 1, page, page + 1, 999, 1000, 5000] {
            let walked = shelf.since(Slot(from)).map(|(slot, pair)| (slot.0, pair.1));
            assert!(walked.eq((from..1000).map(|number| (number, number))), "{from}");
        }
    }

    #[test]
    fn what_is_frozen_stays_as_it_was() {
        let mut shelf = shelf_of(1000);
        let frozen = shelf.freeze();
        for number in 0..1200 {
            let slot = shelf.slot(&key(number), || pair(number));
            shelf.get_mut(slot).1 += 1;
        }
        assert!(frozen.map(|pair| pair.1).eq(0..1000), "as it was");
        assert!(shelf.since(Slot(0)).map(|(_, pair)| pair.1).eq(1..1201), "as it is");
    }

    /// Of those that are not there, too, and of one that comes twice.
    #[test]
    fn places_of_many_keys_are_those_of_each() {
        let numbers = [3, 1000, 7, 1001, 1000, 999];
        let (mut many, mut each) = (shelf_of(1000), shelf_of(1000));
        let keys = numbers.map(key);
        let made = |key: &[u8]| Pair(key.into(), 0);
        let slots = many.slots(keys.iter().map(|key| &key[..]), made);
        assert!(slots.iter().eq(&keys.each_ref().map(|key| each.slot(key, || made(key)))));
        assert_eq!(
            slots.iter().map(|slot| slot.0).collect::<Vec<_>>(),
            [3, 1000, 7, 1001, 1000, 999]
        );
        assert_eq!(many, each);
    }

    /// Whoever does not know the secret cannot choose keys that have one hash: those that have it
    /// with one secret do not with another.
    #[test]
    fn keys_that_collide_with_one_secret_do_not_with_another() {
        let of = |secret| Shelf::<Pair>::new(Secret(secret));
        let (known, drawn) = (of([0, 0]), of([7, 9]));
        let alike =
            |shelf: &Shelf<Pair>, number: &u32| shelf.hash_of(&key(*number)).is_multiple_of(4096);
        let chosen: Vec<u32> = (0..1 << 20).filter(|number| alike(&known, number)).collect();
        let left = chosen.iter().filter(|number| alike(&drawn, number)).count();
        assert!(chosen.len() > 100 && left < 10, "{left} of {}", chosen.len());
        assert_eq!(format!("{:?}", drawn.secret()), "Secret", "it is not printed");
    }
}
