//! What a partition knows of directories that have their names in it and live in another.
//!
//! Attributes are where the inode is, and who lists a directory asks each partition for those of
//! its entries. While one is out of reach nobody could say whose a directory is that is placed in
//! it. So the partition of the name keeps the attributes as they were when the directory was placed
//! or got this name, which both partitions decide, or as a client has told later
//! ([`crate::Update::NoteTop`]). They are as of then, and for whoever has no answer of the
//! directory's own partition.
//!
//! Invariants:
//! - T1: there are attributes of exactly the directories that entries here lead to elsewhere.
//! - T2: what is noted of one placement only gets newer.

use crate::types::{Attributes, Ino};
use imbl::OrdMap;
use meridian_core::Stamp;
use serde::{Deserialize, Serialize};

/// Attributes, and the timestamp of the message after which the directory had them.
type Top = (Attributes, Stamp);

/// See the module.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Tops {
    by_ino: OrdMap<Ino, Top>,
}

impl Tops {
    /// What is known of a directory that lives elsewhere.
    pub fn get(&self, ino: Ino) -> Option<Attributes> {
        self.by_ino.get(&ino).map(|(attributes, _)| *attributes)
    }

    /// A directory got a name here, or another place.
    pub fn set(&mut self, attributes: Attributes, ts: Stamp) {
        self.by_ino.insert(attributes.place.ino, (attributes, ts));
    }

    /// It has no name here any more, or lives here.
    pub fn remove(&mut self, ino: Ino) {
        self.by_ino.remove(&ino);
    }

    /// A client tells what it was after the message of that timestamp.
    pub fn note(&mut self, attributes: Attributes, ts: Stamp) {
        let known = self.by_ino.get_mut(&attributes.place.ino);
        let same = |(known, _): &&mut Top| known.place == attributes.place;
        if let Some((known, since)) = known.filter(same)
            && ts > *since
        {
            (*known, *since) = (attributes, ts);
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Attributes> {
        self.by_ino.values().map(|(attributes, _)| attributes)
    }
}
