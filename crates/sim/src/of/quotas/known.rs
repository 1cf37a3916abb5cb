//! The tree as clients were told of it, and what may be done in it. It may be wrong: replies come
//! in any order, and some never.

use crate::world::Random;
use bytes::Bytes;
use meridian_core::GroupId;
use meridian_fs::operation::{NewNode, Piece, RenameMode, WriteAt};
use meridian_fs::quota::Limits;
use meridian_fs::types::{Data, Extent, Kind, Name};
use meridian_fs::{Done, FsError, Ino, Place, Update};
use rand::RngExt;
use rand::seq::{IndexedRandom, IteratorRandom};
use std::collections::{BTreeMap, BTreeSet};

/// So many directories and files there are at most: enough for some tens of steps.
const ENTRIES_MAX: usize = 120;

#[derive(Clone, Debug)]
struct Entry {
    parent: Place,
    name: Name,
    kind: Kind,
}

/// See the module.
pub(super) struct Known {
    tops: Vec<Place>,
    entries: BTreeMap<Place, Entry>,
    /// The directories that have quotas.
    quotas: BTreeSet<Place>,
}

impl Known {
    pub fn new(groups: impl Iterator<Item = GroupId>) -> Known {
        let top = |partition| Place { ino: Ino::top(partition), partition };
        // Two are enough: more would spread what there is too thinly.
        let tops = groups.take(2).map(top).collect();
        Known { tops, entries: BTreeMap::new(), quotas: BTreeSet::new() }
    }

    /// What a client may do; what is made or moved gets that name.
    pub fn choose(&self, name: &str, random: &mut Random) -> Option<Update> {
        let name = Bytes::copy_from_slice(name.as_bytes());
        let full = self.entries.len() >= ENTRIES_MAX;
        match random.random_range(0..16) {
            0..3 if !full => self.create(name, Kind::Directory, random),
            3..7 if !full => self.create(name, Kind::File, random),
            0..5 => self.write(random),
            5..10 => self.rename(name, random),
            10..12 => self.remove(random),
            12 => self.place(random),
            _ => self.set_quota(random),
        }
    }

    fn any(&self, kind: Kind, random: &mut Random) -> Option<(Place, &Entry)> {
        let of = self.entries.iter().filter(|(_, entry)| entry.kind == kind);
        of.choose(random).map(|(place, entry)| (*place, entry))
    }

    fn any_directory(&self, random: &mut Random) -> Place {
        let known = self.entries.iter().filter(|(_, entry)| entry.kind == Kind::Directory);
        let all = known.map(|(place, _)| place).chain(&self.tops);
        *all.choose(random).expect("there are tops")
    }

    fn create(&self, name: Name, kind: Kind, random: &mut Random) -> Option<Update> {
        let parent = self.any_directory(random);
        Some(Update::Create { parent, name, node: NewNode::new(kind, 0o755) })
    }

    fn write(&self, random: &mut Random) -> Option<Update> {
        let (inode, _) = self.any(Kind::File, random)?;
        let data = Data::Inline(Bytes::from_static(b"seven b"));
        let pieces = vec![Piece { offset: 0, extent: Extent { len: 7, data } }];
        Some(Update::Write { inode, at: WriteAt::End, pieces })
    }

    fn rename(&self, to_name: Name, random: &mut Random) -> Option<Update> {
        let (moved, entry) = self.entries.iter().choose(random)?;
        let within = random.random_ratio(1, 4);
        let to = if within { entry.parent } else { self.any_directory(random) };
        let (from, is_directory) = (entry.parent, entry.kind == Kind::Directory);
        let ancestors = if is_directory && from != to { self.above(to)? } else { Vec::new() };
        Some(Update::Rename {
            from,
            from_name: entry.name.clone(),
            to,
            to_name,
            moved: *moved,
            replaced: None,
            mode: RenameMode::Replace,
            ancestors,
            keep_for: None,
            whiteout: None,
        })
    }

    /// The directory and all above it, up to a top; not if what is known is a circle.
    fn above(&self, directory: Place) -> Option<Vec<Place>> {
        let mut all = vec![directory];
        while let Some(entry) = self.entries.get(all.last().expect("there is one")) {
            if all.contains(&entry.parent) {
                return None;
            }
            all.push(entry.parent);
        }
        all.retain(|place| *place != Place::ROOT);
        Some(all)
    }

    fn remove(&self, random: &mut Random) -> Option<Update> {
        let (child, entry) = self.entries.iter().choose(random)?;
        let Entry { parent, name, kind } = entry.clone();
        Some(match kind {
            Kind::Directory => Update::Rmdir { parent, name, child: *child },
            _ => Update::Unlink { parent, name, child: *child, keep_for: None },
        })
    }

    fn place(&self, random: &mut Random) -> Option<Update> {
        let (child, entry) = self.any(Kind::Directory, random)?;
        let to = self.tops.choose(random)?.partition;
        Some(Update::PlaceDirectory { parent: entry.parent, name: entry.name.clone(), child, to })
    }

    /// Mostly of a directory with something in it.
    fn set_quota(&self, random: &mut Random) -> Option<Update> {
        let taken = self.quotas.iter().choose(random).filter(|_| random.random_bool(0.5));
        let (inode, limits) = match taken {
            Some(place) => (*place, None),
            None => (self.any(Kind::Directory, random)?.0, Some(Limits::default())),
        };
        let parent = self.entries.get(&inode)?.parent;
        Some(Update::SetQuota { inode, parent, limits })
    }

    /// That was done.
    pub fn on_done(&mut self, update: &Update, done: &Done) {
        match (update, done) {
            (Update::Create { parent, name, node }, Done::Attributes(made)) => {
                let entry = Entry { parent: *parent, name: name.clone(), kind: node.kind };
                self.entries.insert(made.place, entry);
            }
            (Update::Rename { to, to_name, moved, .. }, _) => {
                if let Some(entry) = self.entries.get_mut(moved) {
                    (entry.parent, entry.name) = (*to, to_name.clone());
                }
            }
            (Update::Rmdir { child, .. } | Update::Unlink { child, .. }, _) => {
                self.forget(child);
            }
            (Update::PlaceDirectory { child, .. }, Done::Attributes(placed)) => {
                if let Some(entry) = self.entries.remove(child) {
                    self.entries.insert(placed.place, entry);
                }
            }
            (Update::SetQuota { inode, limits, .. }, _) => {
                match limits {
                    Some(_) => self.quotas.insert(*inode),
                    None => self.quotas.remove(inode),
                };
            }
            (_, _) => {}
        }
    }

    /// That was refused: what is not where it should be is forgotten.
    pub fn on_refused(&mut self, update: &Update, error: &FsError) {
        if !matches!(error, FsError::NotFound | FsError::Gone | FsError::Stale) {
            return;
        }
        match update {
            Update::Rename { moved: child, .. }
            | Update::Rmdir { child, .. }
            | Update::Unlink { child, .. }
            | Update::PlaceDirectory { child, .. }
            | Update::SetQuota { inode: child, .. }
            | Update::Write { inode: child, .. }
            | Update::Create { parent: child, .. } => self.forget(child),
            _ => {}
        }
    }

    fn forget(&mut self, place: &Place) {
        self.entries.remove(place);
        self.quotas.remove(place);
    }
}
