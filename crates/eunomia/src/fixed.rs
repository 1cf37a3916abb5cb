//! Labels and vectors as bytes of a fixed layout.
//!
//! Each label is written and read by each process on its way, and each question and answer has what
//! its session has seen. A number at a time, of varying length, that was a good part of what an
//! update cost. So each is one run of bytes: some words, and of the vector the entries up to the
//! last region of which there is anything. The length of the run tells how many these are.

use crate::message::Label;
use crate::timestamp::{REGIONS_MAX, Seen, Timestamp, Vector};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Bytes of a number.
const WORD: usize = 8;
/// Of a label there are two timestamps and its place before the vector.
const HEAD_MAX: usize = 2 * WORD + 4;

/// A run of bytes that is being put together.
struct Run {
    bytes: [u8; HEAD_MAX + REGIONS_MAX * WORD],
    len: usize,
}

impl Run {
    fn new() -> Run {
        Run { bytes: [0; HEAD_MAX + REGIONS_MAX * WORD], len: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn word(mut self, word: Timestamp) -> Run {
        self.put(&word.0.to_le_bytes());
        self
    }

    fn vector(mut self, vector: &Vector) -> Run {
        let entries = vector.entries();
        let last = entries.iter().rposition(|entry| *entry != Timestamp::ZERO);
        for entry in &entries[..last.map_or(0, |last| last + 1)] {
            self.put(&entry.0.to_le_bytes());
        }
        self
    }

    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes[..self.len])
    }
}

/// A run of bytes that is being taken apart.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn word(&mut self) -> Option<Timestamp> {
        Some(Timestamp(u64::from_le_bytes(self.take()?)))
    }

    /// The vector is the rest of it; one that names no region more is as good.
    fn vector(mut self) -> Option<Vector> {
        let mut entries = [Timestamp::ZERO; REGIONS_MAX];
        let len = self.0.len();
        if !len.is_multiple_of(WORD) || len / WORD > REGIONS_MAX {
            return None;
        }
        for entry in &mut entries[..len / WORD] {
            *entry = self.word()?;
        }
        Some(Vector::of(entries))
    }
}

/// What is read from such a run.
trait Fixed: Sized {
    const WHAT: &'static str;

    fn read(rest: Rest<'_>) -> Option<Self>;
}

struct Reader<T>(std::marker::PhantomData<T>);

impl<'de, T: Fixed> Visitor<'de> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
        T::read(Rest(bytes)).ok_or_else(|| E::invalid_length(bytes.len(), &self))
    }

    /// As text has them.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<T, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = list.next_element()? {
            bytes.push(byte);
        }
        self.visit_bytes(&bytes)
    }
}

fn read<'de, T: Fixed, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_bytes(Reader(std::marker::PhantomData))
}

impl Fixed for Vector {
    const WHAT: &'static str = "a vector";

    fn read(rest: Rest<'_>) -> Option<Vector> {
        rest.vector()
    }
}

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Run::new().vector(self).write(serializer)
    }
}

impl<'de> Deserialize<'de> for Vector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vector, D::Error> {
        read(deserializer)
    }
}

impl Fixed for Seen {
    const WHAT: &'static str = "what a session has seen";

    fn read(mut rest: Rest<'_>) -> Option<Seen> {
        let version = rest.word()?;
        Some(Seen { version, vector: rest.vector()? })
    }
}

impl Serialize for Seen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Run::new().word(self.version).vector(&self.vector).write(serializer)
    }
}

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seen, D::Error> {
        read(deserializer)
    }
}

impl Fixed for Label {
    const WHAT: &'static str = "a label";

    fn read(mut rest: Rest<'_>) -> Option<Label> {
        let (ts, dep) = (rest.word()?, rest.word()?);
        let place = u32::from_le_bytes(rest.take()?);
        Some(Label { ts, dep, place, vector: rest.vector()? })
    }
}

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut run = Run::new().word(self.ts).word(self.dep);
        run.put(&self.place.to_le_bytes());
        run.vector(&self.vector).write(serializer)
    }
}

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Label, D::Error> {
        read(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vectors() -> impl Strategy<Value = Vector> {
        let entry = prop_oneof![Just(0), any::<u64>()];
        proptest::array::uniform8(entry).prop_map(|entries| Vector::of(entries.map(Timestamp)))
    }

    fn read<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
        let (read, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(read)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            vector in vectors(), ts in any::<u64>(), dep in any::<u64>(), place in any::<u32>()
        ) {
            let (ts, dep) = (Timestamp(ts), Timestamp(dep));
            let label = Label { ts, dep, place, vector };
            let seen = Seen { vector, version: ts };
            prop_assert_eq!(read(&postcard::to_stdvec(&label).unwrap()), Some(label));
            prop_assert_eq!(read(&postcard::to_stdvec(&seen).unwrap()), Some(seen));
            prop_assert_eq!(read(&postcard::to_stdvec(&vector).unwrap()), Some(vector));
        }

        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = (read::<Label>(&bytes), read::<Seen>(&bytes), read::<Vector>(&bytes));
        }
    }

    #[test]
    fn only_what_there_is_takes_room() {
        let len = |vector: &Vector| postcard::to_stdvec(vector).unwrap().len();
        let mut entries = [Timestamp::ZERO; REGIONS_MAX];
        assert_eq!(len(&Vector::of(entries)), 1);
        entries[2] = Timestamp(1);
        assert_eq!(len(&Vector::of(entries)), 25);
    }

    #[test]
    fn a_run_of_another_length_is_refused() {
        // A list of bytes is written as a run of bytes is.
        let bytes = |len: usize| postcard::to_stdvec(&vec![7_u8; len]).unwrap();
        assert!(read::<Vector>(&bytes(24)).is_some() && read::<Label>(&bytes(20)).is_some());
        assert!(read::<Vector>(&bytes(23)).is_none() && read::<Label>(&bytes(19)).is_none());
        assert!(read::<Vector>(&bytes(8 * REGIONS_MAX + 8)).is_none());
    }
}
