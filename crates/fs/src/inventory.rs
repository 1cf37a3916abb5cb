//! All that some partitions hold, by paths: for who has their state and no cluster to ask.
//!
//! Partitions are at different points of the order: one may have applied an update of both that the
//! other has not. So a name may lead to an inode that is not there, an inode have no name that
//! leads to it, and a directory have two. All of that is told, and nothing of it left out.
//!
//! Invariants:
//! - L1: each inode of the partitions is in [`Inventory::items`], once for each of its names; only
//!   the empty top directory of a region whose name has gone is left out.
//! - L2: each entry of a directory that is there is in `items` or in [`Inventory::astray`].

use crate::inode::Content;
use crate::operation::Update;
use crate::partition::Partition;
use crate::types::{Attributes, Data, Entry, Extent, Ino, Kind, Name, Place, Timestamp};
use bytes::Bytes;
use meridian_core::{BlockId, GroupId};
use std::collections::{BTreeMap, BTreeSet};

/// The directory under which inodes are told of that no path leads to; if the root has an entry of
/// that name, with as many `_` after it as it takes.
const BY_NUMBER: &str = "by-number";

/// The partitions that are here.
pub type Partitions<'a> = BTreeMap<GroupId, &'a Partition>;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// What is here. A directory comes before all that is in it.
    pub items: Vec<Item>,
    /// Names that lead to nothing here.
    pub astray: Vec<Astray>,
    /// The first item of each inode.
    first: BTreeMap<Place, usize>,
}

/// An inode under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// From the root on, with a `/` before each name; the root's own is `/`.
    pub path: Vec<u8>,
    /// What `stat` shows.
    pub attributes: Attributes,
    /// If it has come before under another name: which item that is.
    pub first: Option<usize>,
}

/// A name that leads to nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Astray {
    /// As [`Item::path`].
    pub path: Vec<u8>,
    /// Where it leads.
    pub entry: Entry,
    /// Why it is not followed.
    pub why: Why,
}

/// Why a name is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The partition in which it lives is not here.
    Elsewhere,
    /// The partition is here, and the inode not yet, or not any more.
    Missing,
    /// It is a directory, and stands under another name already.
    Twice,
}

/// What an inode has beside its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Of a file: what is between them is a hole.
    pub extents: Vec<(u64, Extent)>,
    /// Extended attributes.
    pub xattrs: Vec<(Name, Bytes)>,
    /// Of a symbolic link.
    pub target: Bytes,
}

impl Contents {
    /// The runs of bytes, from each first to before each last, whose block `holds` says no of.
    pub fn missing(&self, holds: impl Fn(BlockId) -> bool) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (offset, extent) in &self.extents {
            let is_here = match &extent.data {
                Data::Inline(_) => true,
                Data::Block { block, .. } => holds(*block),
            };
            let end = offset + u64::from(extent.len);
            match runs.last_mut() {
                _ if is_here => {}
                Some((_, last)) if last == offset => *last = end,
                _ => runs.push((*offset, end)),
            }
        }
        runs
    }
}

impl Partition {
    /// What an inode that lives here has beside its attributes.
    pub fn contents(&self, ino: Ino) -> Option<Contents> {
        let inode = self.tree.get(ino)?;
        let xattrs = inode.xattrs.iter().map(|(name, value)| (name.clone(), value.clone()));
        let mut contents = Contents { xattrs: xattrs.collect(), ..Contents::default() };
        match &inode.content {
            Content::File(extents) => {
                contents.extents = extents.iter().map(|(at, of)| (at, of.clone())).collect();
            }
            Content::Symlink(target) => contents.target = target.clone(),
            Content::Directory(_) | Content::Nothing => {}
        }
        Some(contents)
    }

    /// How many names there are in the directories that live here.
    pub fn names(&self) -> u64 {
        let directories = self.tree.iter().filter_map(|(_, inode)| inode.as_directory());
        directories.map(|directory| directory.entries.len() as u64).sum()
    }

    /// When anything that is here was changed last, by the clocks of clients.
    pub fn changed(&self) -> Option<Timestamp> {
        self.tree.iter().map(|(_, inode)| inode.ctime).max()
    }

    fn attributes(&self, ino: Ino) -> Option<Attributes> {
        let place = Place { ino, partition: self.group() };
        self.tree.attributes(place)
    }

    fn entries(&self, ino: Ino) -> impl DoubleEndedIterator<Item = (&Name, &Entry)> {
        let directory = self.tree.get(ino).and_then(|inode| inode.as_directory());
        directory.into_iter().flat_map(|directory| directory.entries.iter())
    }
}

impl Inventory {
    /// What these partitions hold; `named` says what the region of a partition is called, in whose
    /// directory it is if no root that is here says so.
    pub fn of(partitions: &Partitions<'_>, named: impl Fn(GroupId) -> Name) -> Inventory {
        let mut found = Inventory::default();
        if partitions.contains_key(&GroupId::GLOBAL) {
            found.walk(partitions, b"/".to_vec(), Place::ROOT);
        }
        for (group, partition) in partitions {
            let top = Place::top(*group);
            let is_left = partition.entries(top.ino).next().is_some();
            if is_left && !found.first.contains_key(&top) {
                found.walk(partitions, below(b"/", &named(*group)), top);
            }
        }
        found.walk_nameless(partitions);
        found
    }

    /// The first path of an inode.
    pub fn path_of(&self, place: Place) -> Option<&[u8]> {
        self.first.get(&place).map(|at| &self.items[*at].path[..])
    }

    /// The paths that an update is about: the names that it changes, or else the inodes. Of what is
    /// not here the path is a `?`.
    pub fn about(&self, update: &Update) -> Vec<Vec<u8>> {
        let path = |place| self.path_of(place).unwrap_or(b"?").to_vec();
        let names = update.names();
        match names.is_empty() {
            true => update.alters().into_iter().map(path).collect(),
            false => names.into_iter().map(|(of, name)| below(&path(of), name)).collect(),
        }
    }

    /// Those that no path leads to: first the uppermost, then what only leads to itself.
    fn walk_nameless(&mut self, partitions: &Partitions<'_>) {
        let all = partitions.iter().flat_map(|(group, partition)| {
            let inodes = partition.tree.iter().filter(|(ino, _)| !ino.is_top());
            inodes.map(|(ino, _)| Place { ino, partition: *group })
        });
        let left: Vec<Place> = all.filter(|place| !self.first.contains_key(place)).collect();
        let entries = left.iter().filter_map(|place| {
            let partition = partitions.get(&place.partition)?;
            Some(partition.entries(place.ino).map(|(_, entry)| entry.place))
        });
        let named: BTreeSet<Place> = entries.flatten().collect();
        let (beneath, uppermost): (Vec<Place>, Vec<Place>) =
            left.into_iter().partition(|place| named.contains(place));
        let mut above = below(b"/", BY_NUMBER.as_bytes());
        while self.items.iter().any(|item| item.path == above) {
            above.push(b'_');
        }
        for place in uppermost.into_iter().chain(beneath) {
            if !self.first.contains_key(&place) {
                let Place { ino, partition } = place;
                // One that was placed elsewhere may be in two partitions.
                let name = match ino.birthplace() == partition {
                    true => ino.0.to_string(),
                    false => format!("{}-in-{}", ino.0, partition.0),
                };
                self.walk(partitions, below(&above, name.as_bytes()), place);
            }
        }
    }

    /// Adds what is at `path`, and all below it.
    fn walk(&mut self, partitions: &Partitions<'_>, path: Vec<u8>, place: Place) {
        let mut todo = vec![(path, Entry { place, kind: Kind::Directory })];
        while let Some((path, entry)) = todo.pop() {
            let place = entry.place;
            let partition = partitions.get(&place.partition);
            let attributes = partition.and_then(|partition| partition.attributes(place.ino));
            let (Some(partition), Some(attributes)) = (partition, attributes) else {
                let why = if partition.is_some() { Why::Missing } else { Why::Elsewhere };
                self.astray.push(Astray { path, entry, why });
                continue;
            };
            let first = self.first.get(&place).copied();
            if first.is_some() && attributes.kind == Kind::Directory {
                self.astray.push(Astray { path, entry, why: Why::Twice });
                continue;
            }
            self.first.entry(place).or_insert(self.items.len());
            for (name, entry) in partition.entries(place.ino).rev() {
                todo.push((below(&path, name), entry.clone()));
            }
            self.items.push(Item { path, attributes, first });
        }
    }
}

/// The path of a name in the directory at `path`.
fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    [path, b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_of_a_file_are_runs_of_bytes() {
        let block = |name, len| (len, Data::Block { block: BlockId(name), start: 5 });
        let inline = |len: u32| (len, Data::Inline(Bytes::from(vec![1; len as usize])));
        let mut extents = Vec::new();
        let all = [(0, block(1, 10)), (10, block(2, 10)), (20, inline(4)), (24, block(3, 6))];
        for (at, (len, data)) in all.into_iter().chain([(40, block(2, 10)), (50, block(4, 1))]) {
            extents.push((at, Extent { len, data }));
        }
        let file = Contents { extents, ..Contents::default() };
        assert_eq!(file.missing(|_| true), []);
        assert_eq!(file.missing(|_| false), [(0, 20), (24, 30), (40, 51)]);
        assert_eq!(file.missing(|block| block != BlockId(2)), [(10, 20), (40, 50)]);
    }
}
