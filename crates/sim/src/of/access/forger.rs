//! The tree as clients were told of it, what is foreign in it, and what they ask for.

use super::{GROUP, USER, granted};
use crate::world::Random;
use bytes::Bytes;
use meridian_core::{ClientId, GroupId};
use meridian_fs::operation::{Changes, NewNode, Piece, RenameMode, WriteAt, XattrMode};
use meridian_fs::types::{Data, Extent, Name};
use meridian_fs::{Done, FsError, Ino, Kind, Place, Query, Update};
use rand::RngExt;
use rand::seq::{IndexedRandom, IteratorRandom};
use std::collections::{BTreeMap, BTreeSet};

/// So many directories and files there are at most.
const ENTRIES_MAX: usize = 100;

#[derive(Clone, Debug)]
struct Entry {
    parent: Place,
    name: Name,
    kind: Kind,
}

/// See the module.
pub(super) struct Forger {
    tops: Vec<Place>,
    entries: BTreeMap<Place, Entry>,
    quotas: BTreeSet<Place>,
    /// The directory in the granted one that gets a quota of its own.
    apart: Option<Place>,
    /// What was made in it or below it.
    foreign: BTreeSet<Place>,
}

/// The inodes that an update names, of those that [`Forger::forged`] makes.
pub(super) fn named_in(update: &Update) -> Vec<Place> {
    match update {
        Update::Create { parent, .. } | Update::CreateUnnamed { parent, .. } => vec![*parent],
        Update::Link { target, parent, .. } => vec![*target, *parent],
        Update::Unlink { parent, child, .. } | Update::Rmdir { parent, child, .. } => {
            vec![*parent, *child]
        }
        Update::Rename { from, to, moved, replaced, .. } => {
            [*from, *to, *moved].into_iter().chain(*replaced).collect()
        }
        Update::SetAttributes { inode, .. }
        | Update::Write { inode, .. }
        | Update::Extend { inode, .. }
        | Update::SetXattr { inode, .. } => vec![*inode],
        Update::Hold { partition, inodes, .. } => {
            inodes.iter().map(|ino| Place { ino: *ino, partition: *partition }).collect()
        }
        other => panic!("nobody forges {other:?}"),
    }
}

impl Forger {
    pub fn new(groups: Vec<GroupId>) -> Forger {
        let top = |partition| Place { ino: Ino::top(partition), partition };
        Forger {
            tops: groups.into_iter().map(top).collect(),
            entries: BTreeMap::new(),
            quotas: BTreeSet::new(),
            apart: None,
            foreign: BTreeSet::new(),
        }
    }

    pub fn has_quota(&self, place: Place) -> bool {
        self.quotas.contains(&place)
    }

    pub fn apart(&self) -> Option<Place> {
        self.apart
    }

    /// Whether the hostile ones may do nothing with it.
    pub fn is_foreign(&self, place: Place) -> bool {
        place.partition != GROUP || self.foreign.contains(&place)
    }

    /// A directory in which everybody may make things.
    pub fn directory(&self, parent: Place, name: String) -> Update {
        let node = NewNode { uid: USER, gid: USER, ..NewNode::new(Kind::Directory, 0o777) };
        Update::Create { parent, name: name.into(), node }
    }

    fn any(&self, random: &mut Random) -> Place {
        *self.entries.keys().chain(&self.tops).choose(random).expect("there are tops")
    }

    fn any_directory(&self, random: &mut Random) -> Place {
        let known = self.entries.iter().filter(|(_, entry)| entry.kind == Kind::Directory);
        let all = known.map(|(place, _)| place).chain(&self.tops);
        *all.choose(random).expect("there are tops")
    }

    /// What one who may do all asks for.
    pub fn honest(&self, name: String, random: &mut Random) -> Option<Update> {
        let files = self.entries.iter().filter(|(_, entry)| entry.kind == Kind::File);
        let full = self.entries.len() >= ENTRIES_MAX;
        let inode = files.map(|(place, _)| *place).choose(random);
        let parent = self.any_directory(random);
        match random.random_range(0..6) {
            0 if !full => Some(self.directory(parent, name)),
            1..4 if !full => {
                let node = NewNode { uid: USER, gid: USER, ..NewNode::new(Kind::File, 0o666) };
                Some(Update::Create { parent, name: name.into(), node })
            }
            4 => inode.map(write),
            _ => {
                let (child, entry) = self.entries.iter().choose(random)?;
                let Entry { parent, name, kind } = entry.clone();
                let child = (Some(*child) != self.apart && kind == Kind::File).then_some(*child)?;
                Some(Update::Unlink { parent, name, child, keep_for: None })
            }
        }
    }

    /// What a hostile one asks for.
    pub fn forged(&self, name: String, random: &mut Random) -> Option<Update> {
        let (inode, parent) = (self.any(random), self.any_directory(random));
        let uid = *[0, USER, 2000].choose(random).expect("there are some");
        let node = |kind| NewNode { uid, gid: uid, ..NewNode::new(kind, 0o6777) };
        let kind = *[Kind::File, Kind::Directory].choose(random).expect("there are some");
        let known = self.entries.iter().choose(random);
        let name = Name::from(name);
        Some(match random.random_range(0..11) {
            0..2 if self.entries.len() < ENTRIES_MAX => {
                Update::Create { parent, name, node: node(kind) }
            }
            2 => Update::CreateUnnamed { parent, node: node(Kind::File) },
            3 => Update::Link { target: inode, parent, name },
            4 => {
                let (child, Entry { parent, name, kind }) = known?;
                let (parent, name, child) = (*parent, name.clone(), *child);
                match kind {
                    Kind::Directory => Update::Rmdir { parent, name, child },
                    _ => Update::Unlink { parent, name, child, keep_for: None },
                }
            }
            5 | 6 => {
                let (moved, entry) = known?;
                Update::Rename {
                    from: entry.parent,
                    from_name: entry.name.clone(),
                    to: parent,
                    to_name: name,
                    moved: *moved,
                    replaced: None,
                    mode: RenameMode::Replace,
                    ancestors: self.above(parent),
                    keep_for: None,
                    whiteout: None,
                }
            }
            7 => {
                let owner = random.random_bool(0.5).then_some(uid);
                let changes = Changes { uid: owner, mode: Some(0o777), ..Changes::default() };
                Update::SetAttributes { inode, changes }
            }
            8 => {
                let (name, value) = ("user.a".into(), Bytes::from_static(b"v"));
                let (mode, drops_set_gid) = (XattrMode::Any, false);
                Update::SetXattr { inode, name, value, mode, drops_set_gid }
            }
            9 => {
                let (client, partition) = (ClientId(random.random()), inode.partition);
                Update::Hold { client, partition, inodes: vec![inode.ino] }
            }
            _ => write(inode),
        })
    }

    /// What a hostile one wants to know.
    pub fn question(&self, random: &mut Random) -> Query {
        let (inode, parent) = (self.any(random), self.any_directory(random));
        match random.random_range(0..5) {
            0 => Query::Attributes { inode },
            1 => Query::Contents { inode, offset: 0, len: 9 },
            2 => Query::Directory { inode: parent, after: Bytes::new(), limit: 9 },
            3 => Query::Xattrs { inode },
            _ => Query::Lookup { parent, name: Bytes::from_static(b"..") },
        }
    }

    /// The directory and all above it, up to where the hostile ones may work, or to a top.
    fn above(&self, directory: Place) -> Vec<Place> {
        let mut all = vec![directory];
        while let Some(entry) = self.entries.get(all.last().expect("there is one")) {
            if all.contains(&entry.parent) {
                break;
            }
            all.push(entry.parent);
        }
        all.retain(|place| *place != Place::ROOT);
        all
    }

    /// That was done.
    pub fn on_done(&mut self, update: &Update, done: &Done) {
        match (update, done) {
            (Update::Create { parent, name, node }, Done::Attributes(made)) => {
                let entry = Entry { parent: *parent, name: name.clone(), kind: node.kind };
                self.entries.insert(made.place, entry);
                if self.apart.is_none() && *parent == granted() {
                    self.apart = Some(made.place);
                }
                if self.foreign.contains(parent) {
                    self.foreign.insert(made.place);
                }
            }
            (Update::SetQuota { inode, .. }, _) => {
                self.quotas.insert(*inode);
                self.foreign.extend((Some(*inode) == self.apart).then_some(*inode));
            }
            (Update::Rename { to, to_name, moved, .. }, _) => {
                if let Some(entry) = self.entries.get_mut(moved) {
                    (entry.parent, entry.name) = (*to, to_name.clone());
                }
            }
            (Update::Rmdir { child, .. } | Update::Unlink { child, .. }, _) => {
                self.entries.remove(child);
            }
            (_, _) => {}
        }
    }

    /// That was refused: what is not where it should be is forgotten.
    pub fn on_refused(&mut self, update: &Update, error: &FsError) {
        if !matches!(error, FsError::NotFound | FsError::Gone | FsError::Stale) {
            return;
        }
        let named = named_of(update);
        named.into_iter().filter(|place| Some(*place) != self.apart).for_each(|place| {
            self.entries.remove(&place);
        });
    }
}

/// What is forgotten if it is not there.
fn named_of(update: &Update) -> Vec<Place> {
    match update {
        Update::Rename { moved: child, .. }
        | Update::Rmdir { child, .. }
        | Update::Unlink { child, .. }
        | Update::Write { inode: child, .. }
        | Update::Create { parent: child, .. } => vec![*child],
        _ => Vec::new(),
    }
}

fn write(inode: Place) -> Update {
    let data = Data::Inline(Bytes::from_static(b"seven b"));
    let pieces = vec![Piece { offset: 0, extent: Extent { len: 7, data } }];
    Update::Write { inode, at: WriteAt::End, pieces }
}
