//! What comes along with an answer, so that a client in another region need not ask for it next:
//! decisions 101 and 114.

use super::Replica;
use crate::api::HERE;
use crate::reads::Read;
use meridian_core::ClientId;
use meridian_fs::types::{Attributes, Data, Kind, Name, Place};
use meridian_fs::{Answer, Done, FsError, GRANT_MAX, Listed, Query, Rights};

/// So many entries come along with the answer that shows a directory: one step may ask to hold all
/// that they lead to, and the directory.
const ENTRIES_MAX: usize = GRANT_MAX - 1;

/// So many bytes come along with an answer, or a little more: a part of a frame.
const BYTES_MAX: usize = 512 << 10;
/// What an inode's attributes take, or an entry without its name.
const ATTRIBUTES: usize = 160;

/// Questions that are answered with the reply to an update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Looks {
    /// The questions.
    pub queries: Vec<Query>,
    /// What the client may do; none if that is all.
    pub rights: Option<Rights>,
}

impl Replica {
    /// The first entries of the directory that an answer is about, and those of directories below
    /// it, as far as there is room.
    pub(super) fn entries_along(&self, read: &Read, answer: &Answer) -> Option<Box<Answer>> {
        let (Answer::Entry { attributes: Some(of), .. } | Answer::Attributes(of)) = answer else {
            return None;
        };
        if !read.along || of.kind != Kind::Directory {
            return None;
        }
        let mut all = self.entries_of(read, of.place, ENTRIES_MAX)?;
        if let Answer::Directory { entries, .. } = &mut all {
            self.add_below(read, entries);
        }
        Some(Box::new(all))
    }

    /// Adds what is in the directories among these entries, breadth first, of each all or nothing.
    /// What lives elsewhere, or waits for something undecided, has no attributes here.
    fn add_below(&self, read: &Read, entries: &mut Vec<Listed>) {
        let mut room = ENTRIES_MAX.saturating_sub(entries.len());
        let mut at = 0;
        while let Some((_, entry, of)) = entries.get(at) {
            at += 1;
            let fits = |of: &Attributes| of.kind == Kind::Directory && of.size <= room as u64;
            if !of.as_ref().is_some_and(fits) {
                continue;
            }
            let entry = entry.clone();
            let below = self.entries_of(read, entry.place, room);
            let Some(Answer::Directory { entries: below, end: true, .. }) = below else { continue };
            room -= below.len();
            entries.push((Name::from_static(HERE), entry, None));
            entries.extend(below);
        }
    }

    /// The first entries of a directory, if its client may know them, and go through it.
    fn entries_of(&self, read: &Read, inode: Place, limit: usize) -> Option<Answer> {
        let through = Query::Lookup { parent: inode, name: Name::from_static(HERE) };
        let query = Query::Directory { inode, after: Name::new(), limit: limit as u32 };
        if !self.can_show(&query, read.seen) {
            return None;
        }
        let shown =
            |query: &Query| self.partition.read_as(query, read.by, read.rights.as_ref()).ok();
        let mut entries = shown(&through).and_then(|_| shown(&query))?;
        self.leave_out(&mut entries, self.wanted(read.seen));
        Some(entries)
    }

    /// Answers to the first questions, once an update that grants capabilities was executed here:
    /// so what they tell of an inode that it grants is not older than the grant, however far this
    /// replica is with the rest.
    pub(super) fn looks_along(
        &self,
        by: ClientId,
        result: &Result<Done, FsError>,
        looks: &Looks,
    ) -> Vec<Result<Answer, FsError>> {
        let (mut all, mut len) = (Vec::new(), 0);
        if !matches!(result, Ok(Done::Granted(_))) {
            return all;
        }
        for query in &looks.queries {
            let answer = self.partition.read_as(query, by, looks.rights.as_ref());
            len += answer.as_ref().map_or(0, bytes);
            all.push(answer);
            if len >= BYTES_MAX {
                break;
            }
        }
        all
    }
}

/// How many bytes an answer takes, about.
fn bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Directory { entries, tops, .. } => {
            let names: usize = entries.iter().map(|(name, ..)| name.len()).sum();
            names + 2 * ATTRIBUTES * entries.len() + ATTRIBUTES * tops.len()
        }
        Answer::Contents { extents, .. } => {
            let of = |data: &Data| match data {
                Data::Inline(bytes) => bytes.len(),
                Data::Block { .. } => 0,
            };
            ATTRIBUTES + extents.iter().map(|(_, extent)| 40 + of(&extent.data)).sum::<usize>()
        }
        Answer::Bytes(bytes) => bytes.len(),
        _ => ATTRIBUTES,
    }
}

#[cfg(test)]
#[path = "along_tests.rs"]
mod tests;
