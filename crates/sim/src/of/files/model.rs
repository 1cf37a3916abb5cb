//! What one client knows of its own files. Nobody else touches names that start with its number, so
//! what becomes of each of its updates is certain.

use super::saving::Shown;
use crate::world::Random;
use bytes::Bytes;
use meridian_core::GroupId;
use meridian_fs::operation::{Changes, NewNode, Piece, RenameMode, WriteAt};
use meridian_fs::types::{Data, INLINE_MAX};
use meridian_fs::{Answer, Done, Extent, FsError, Ino, Kind, Place, Query, Update};
use rand::RngExt;
use rand::seq::IteratorRandom;
use std::collections::BTreeMap;

/// The byte that an action appends.
const APPENDED: u8 = b'x';

/// A directory: where it lives, and the one above.
#[derive(Clone, Copy, Debug)]
struct Directory {
    place: Place,
    parent: Ino,
}

/// A file: where it lives, how long it is, how many names it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    pub place: Place,
    pub size: u64,
    pub nlink: u32,
}

/// The name of a directory entry.
pub(super) type Path = (Ino, Bytes);

/// Something that the client does.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Create {
        path: Path,
        kind: Kind,
    },
    Write {
        file: Ino,
        len: u32,
    },
    Link {
        file: Ino,
        path: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
    },
    Place {
        path: Path,
        to: GroupId,
    },
    /// A file under a name that all clients use: whatever comes of it is right.
    Shared {
        update: Update,
        made: Option<Path>,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Model {
    prefix: String,
    named: u64,
    groups: Vec<GroupId>,
    directories: BTreeMap<Ino, Directory>,
    files: BTreeMap<Ino, File>,
    /// What was written to each file.
    contents: BTreeMap<Ino, Vec<u8>>,
    /// The file that is being written: nobody looks at it, or takes it away.
    saving: Option<Ino>,
    /// What was set of files.
    shown: BTreeMap<Ino, Shown>,
    /// What each name leads to, and whether that is a directory.
    entries: BTreeMap<Path, (Ino, bool)>,
    /// Names that are gone.
    removed: Vec<Path>,
    /// Files that this client made under names that all use, if no other took them away.
    shared: Vec<(Path, Place)>,
}

impl Model {
    pub fn new(client: u64, groups: Vec<GroupId>) -> Model {
        let mut model = Model {
            prefix: format!("c{client}-"),
            named: 0,
            directories: BTreeMap::new(),
            groups: Vec::new(),
            files: BTreeMap::new(),
            contents: BTreeMap::new(),
            saving: None,
            shown: BTreeMap::new(),
            entries: BTreeMap::new(),
            removed: Vec::new(),
            shared: Vec::new(),
        };
        groups.into_iter().for_each(|group| model.learn(group));
        model
    }

    /// There is a directory of that group.
    pub fn learn(&mut self, group: GroupId) {
        if !self.groups.contains(&group) {
            let (place, parent) = (Place::top(group), Ino::ROOT);
            self.directories.insert(place.ino, Directory { place, parent });
            self.groups.push(group);
        }
    }

    /// Each entry: its directory, its name, what it leads to.
    pub fn entries(&self) -> impl Iterator<Item = (Place, Bytes, Place)> + '_ {
        self.entries.iter().map(|((directory, name), (ino, _))| {
            (self.directories[directory].place, name.clone(), self.place(*ino))
        })
    }

    /// Some name that is there or was there.
    pub fn any_name(&self, random: &mut Random) -> Option<(Place, Bytes, Option<Place>)> {
        let there = self.entries.keys().chain(&self.removed);
        let path = there.choose(random)?.clone();
        let directory = self.directories.get(&path.0)?.place;
        Some((directory, path.1.clone(), self.entries.get(&path).map(|(ino, _)| self.place(*ino))))
    }

    pub fn any_file(&self, random: &mut Random) -> Option<File> {
        let other = |file: &&File| self.saving != Some(file.place.ino);
        self.files.values().filter(other).choose(random).copied()
    }

    /// What was written to a file.
    pub fn contents(&self, file: Ino) -> &[u8] {
        &self.contents[&file]
    }

    /// All files, and what was written to each.
    pub fn saved_files(&self) -> impl Iterator<Item = (Place, &[u8])> + '_ {
        self.files.values().map(|file| (file.place, self.contents(file.place.ino)))
    }

    /// All files, and what was set of each.
    pub fn set_files(&self) -> impl Iterator<Item = (Place, &Shown)> + '_ {
        self.shown.iter().map(|(ino, shown)| (self.place(*ino), shown))
    }

    /// A file is going to be written: what it is now, and what was set of it.
    pub fn begin_saving(&mut self, file: Ino) -> (Vec<u8>, Shown) {
        self.saving = Some(file);
        (self.contents(file).to_vec(), self.shown.remove(&file).unwrap_or_default())
    }

    /// It has been written, and all of it is stored.
    pub fn saved(&mut self, file: Ino, contents: Vec<u8>, shown: Shown) {
        self.shown.insert(file, shown);
        self.saving = None;
        self.files.get_mut(&file).expect("it was written").size = contents.len() as u64;
        self.contents.insert(file, contents);
    }

    fn place(&self, ino: Ino) -> Place {
        match self.directories.get(&ino) {
            Some(directory) => directory.place,
            None => self.files[&ino].place,
        }
    }

    fn fresh(&mut self, random: &mut Random) -> Path {
        self.named += 1;
        let directory = *self.directories.keys().choose(random).expect("the tops are there");
        (directory, Bytes::from(format!("{}{}", self.prefix, self.named)))
    }

    fn any(&self, directory: bool, random: &mut Random) -> Option<Path> {
        let all = self.entries.iter().filter(|(_, (ino, is_directory))| {
            *is_directory == directory && self.saving != Some(*ino)
        });
        all.map(|(path, _)| path.clone()).choose(random)
    }

    /// Something to do.
    pub fn choose(&mut self, random: &mut Random) -> Option<Action> {
        let action = match random.random_range(0..24) {
            0..4 => Action::Create { path: self.fresh(random), kind: Kind::File },
            4..7 => Action::Create { path: self.fresh(random), kind: Kind::Directory },
            7 => Action::Create { path: self.any(true, random)?, kind: Kind::File },
            8..11 => {
                let File { place, size, .. } = self.any_file(random)?;
                if size > INLINE_MAX as u64 / 2 {
                    return None; // It might not fit.
                }
                Action::Write { file: place.ino, len: random.random_range(1..40) }
            }
            11..13 => {
                let file = self.any_file(random)?.place.ino;
                Action::Link { file, path: self.fresh(random) }
            }
            13 => Action::Unlink { path: self.any(false, random)? },
            14 => Action::Rmdir { path: self.any(true, random)? },
            15 => Action::Rename { from: self.any(false, random)?, to: self.fresh(random) },
            16 => Action::Rename { from: self.any(false, random)?, to: self.any(false, random)? },
            17..19 => {
                let (from, to) = (self.any(true, random)?, self.fresh(random));
                let moved = self.entries[&from].0;
                // Not below itself: a kernel does not even ask.
                if to.0 == moved || self.above(to.0).contains(&moved) {
                    return None;
                }
                Action::Rename { from, to }
            }
            19 => {
                let path = self.any(true, random)?;
                let to = *self.groups.iter().choose(random)?;
                if self.place(self.entries[&path].0).partition == to {
                    return None;
                }
                Action::Place { path, to }
            }
            _ => self.choose_shared(random),
        };
        if let Action::Rename { from, to } = &action
            && self.entries.get(to).is_some_and(|(ino, _)| *ino == self.entries[from].0)
        {
            return None; // Two names of one file: nothing happens.
        }
        Some(action)
    }

    /// Something about names that others use, too: all but the first to come are refused.
    fn choose_shared(&mut self, random: &mut Random) -> Action {
        let group = *self.groups.iter().choose(random).expect("there are groups");
        let name = Bytes::from(format!("shared-{}", random.random_range(0..4)));
        let path = (Ino::top(group), name);
        let known = (!self.shared.is_empty()).then(|| random.random_range(0..self.shared.len()));
        match known.map(|at| self.shared.swap_remove(at)) {
            None => {
                let update = self.update(&Action::Create { path: path.clone(), kind: Kind::File });
                Action::Shared { update, made: Some(path) }
            }
            Some((old, child)) if random.random_bool(0.5) => {
                let (parent, name) = (self.directories[&old.0].place, old.1);
                let update = Update::Unlink { parent, name, child, keep_for: None };
                Action::Shared { update, made: None }
            }
            Some((old, moved)) => {
                let update = Update::Rename {
                    from: self.directories[&old.0].place,
                    from_name: old.1,
                    to: self.directories[&path.0].place,
                    to_name: path.1,
                    moved,
                    replaced: None,
                    mode: RenameMode::NoReplace,
                    ancestors: Vec::new(),
                    keep_for: None,
                    whiteout: None,
                };
                Action::Shared { update, made: None }
            }
        }
    }

    /// A directory and all above it, without the root.
    fn above(&self, mut ino: Ino) -> Vec<Ino> {
        let mut all = Vec::new();
        while ino != Ino::ROOT {
            all.push(ino);
            ino = self.directories[&ino].parent;
        }
        all
    }

    pub fn update(&self, action: &Action) -> Update {
        let parent = |path: &Path| self.directories[&path.0].place;
        let child = |path: &Path| self.place(self.entries[path].0);
        match action {
            Action::Shared { update, .. } => update.clone(),
            Action::Create { path, kind } => {
                let (mode, target) = (0o755, Bytes::new());
                let node = NewNode { uid: 1, gid: 1, target, ..NewNode::new(*kind, mode) };
                Update::Create { parent: parent(path), name: path.1.clone(), node }
            }
            Action::Write { file, len } => {
                let data = Data::Inline(vec![APPENDED; *len as usize].into());
                let pieces = vec![Piece { offset: 0, extent: Extent { len: *len, data } }];
                Update::Write { inode: self.place(*file), at: WriteAt::End, pieces }
            }
            Action::Link { file, path } => Update::Link {
                target: self.place(*file),
                parent: parent(path),
                name: path.1.clone(),
            },
            Action::Unlink { path } => Update::Unlink {
                parent: parent(path),
                name: path.1.clone(),
                child: child(path),
                keep_for: None,
            },
            Action::Rmdir { path } => {
                Update::Rmdir { parent: parent(path), name: path.1.clone(), child: child(path) }
            }
            Action::Rename { from, to } => {
                let moves_directory = self.entries[from].1 && from.0 != to.0;
                let above = if moves_directory { self.above(to.0) } else { Vec::new() };
                Update::Rename {
                    from: parent(from),
                    from_name: from.1.clone(),
                    to: parent(to),
                    to_name: to.1.clone(),
                    moved: child(from),
                    replaced: self.entries.get(to).map(|(ino, _)| self.place(*ino)),
                    mode: RenameMode::Replace,
                    ancestors: above.into_iter().map(|ino| self.place(ino)).collect(),
                    keep_for: None,
                    whiteout: None,
                }
            }
            Action::Place { path, to } => Update::PlaceDirectory {
                parent: parent(path),
                name: path.1.clone(),
                child: child(path),
                to: *to,
            },
        }
    }

    /// What must come of it.
    pub fn expected(&self, action: &Action) -> Result<(), FsError> {
        match action {
            Action::Create { path, .. } | Action::Link { path, .. }
                if self.entries.contains_key(path) =>
            {
                Err(FsError::Exists)
            }
            Action::Rmdir { path } | Action::Place { path, .. } => {
                let ino = self.entries[path].0;
                match self.entries.keys().any(|(directory, _)| *directory == ino) {
                    true => Err(FsError::NotEmpty),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// An update that shares an inode with the action.
    pub fn touch(&self, action: &Action) -> Update {
        let inode = match action {
            Action::Write { file, .. } => self.place(*file),
            Action::Shared { .. } => unreachable!("nobody asks what comes of it"),
            Action::Create { path, .. }
            | Action::Link { path, .. }
            | Action::Unlink { path }
            | Action::Rmdir { path }
            | Action::Rename { from: path, .. }
            | Action::Place { path, .. } => self.directories[&path.0].place,
        };
        Update::SetAttributes {
            inode,
            changes: Changes { mode: Some(0o755), ..Changes::default() },
        }
    }

    /// A question whose answer tells whether the action has happened.
    pub fn look(&self, action: &Action) -> Query {
        match action {
            Action::Write { file, .. } => Query::Attributes { inode: self.place(*file) },
            Action::Shared { .. } => unreachable!("nobody asks what comes of it"),
            Action::Create { path, .. }
            | Action::Link { path, .. }
            | Action::Unlink { path }
            | Action::Rmdir { path }
            | Action::Rename { from: path, .. }
            | Action::Place { path, .. } => {
                Query::Lookup { parent: self.directories[&path.0].place, name: path.1.clone() }
            }
        }
    }

    /// The action was given up, and [`Model::look`] has this answer: it has happened, or never
    /// will.
    pub fn settle(&mut self, action: Action, answer: &Result<Answer, FsError>) {
        let before = match &action {
            Action::Write { file, .. } => {
                let Ok(Answer::Attributes(now)) = answer else { panic!("{action:?}: {answer:?}") };
                return self.settle_write(*file, action.clone(), now.size);
            }
            Action::Shared { .. } => unreachable!("nobody asks what comes of it"),
            Action::Create { path, .. }
            | Action::Link { path, .. }
            | Action::Unlink { path }
            | Action::Rmdir { path }
            | Action::Rename { from: path, .. }
            | Action::Place { path, .. } => self.entries.get(path).map(|(ino, _)| self.place(*ino)),
        };
        let now = match answer {
            Ok(Answer::Entry { entry, .. }) => Some(entry.place),
            Err(FsError::NotFound) => None,
            other => panic!("{action:?}: {other:?}"),
        };
        if now == before {
            return;
        }
        let right = match &action {
            Action::Create { .. } => before.is_none(),
            Action::Link { file, .. } => now == Some(self.place(*file)),
            Action::Place { to, .. } => now.map(|place| place.partition) == Some(*to),
            _ => now.is_none(),
        };
        let expected = self.expected(&action);
        assert!(right && expected == Ok(()), "{action:?} made {now:?} of {before:?}: {expected:?}");
        self.apply(action, now);
    }

    fn settle_write(&mut self, file: Ino, action: Action, size: u64) {
        let before = self.files[&file].size;
        let Action::Write { len, .. } = action else { return };
        let written = before + u64::from(len);
        assert!([before, written].contains(&size), "{action:?} of {before} bytes: now {size}");
        if size == written {
            self.apply(action, None);
        }
    }

    /// It is done, and was answered so.
    pub fn done(&mut self, action: Action, done: &Done) {
        let place = match done {
            Done::Attributes(made) => Some(made.place),
            Done::Written { offset, .. } => {
                let Action::Write { file, .. } = &action else { panic!("{action:?}: {done:?}") };
                assert_eq!(*offset, self.files[file].size, "an append went elsewhere");
                None
            }
            Done::Nothing
            | Done::Batch { .. }
            | Done::Held(_)
            | Done::Made(_)
            | Done::Granted(_)
            | Done::Lock(_) => None,
        };
        self.apply(action, place);
    }

    /// It has happened; what was made or placed is there now.
    fn apply(&mut self, action: Action, made: Option<Place>) {
        match action {
            Action::Shared { made: path, .. } => {
                if let (Some(path), Some(place)) = (path, made) {
                    self.shared.push((path, place));
                }
            }
            Action::Create { path, kind } => {
                let place = made.expect("it was made somewhere");
                let directory = kind == Kind::Directory;
                if directory {
                    self.directories.insert(place.ino, Directory { place, parent: path.0 });
                } else {
                    self.files.insert(place.ino, File { place, size: 0, nlink: 1 });
                    self.contents.insert(place.ino, Vec::new());
                }
                self.entries.insert(path, (place.ino, directory));
            }
            Action::Write { file, len } => {
                let contents = self.contents.get_mut(&file).expect("it was written to");
                contents.extend(std::iter::repeat_n(APPENDED, len as usize));
                self.shown.entry(file).and_modify(|shown| shown.mtime = None);
                let file = self.files.get_mut(&file).expect("it was written to");
                file.size += u64::from(len);
            }
            Action::Link { file, path } => {
                self.files.get_mut(&file).expect("it was linked").nlink += 1;
                self.entries.insert(path, (file, false));
            }
            Action::Unlink { path } => self.remove(path),
            Action::Rmdir { path } => self.remove(path),
            Action::Rename { from, to } => {
                if self.entries.contains_key(&to) {
                    self.remove(to.clone());
                }
                let (ino, directory) = self.entries.remove(&from).expect("it was renamed");
                self.removed.push(from);
                if directory {
                    self.directories.get_mut(&ino).expect("it was renamed").parent = to.0;
                }
                self.entries.insert(to, (ino, directory));
            }
            Action::Place { path, .. } => {
                let place = made.expect("it was placed somewhere");
                let (old, _) = self.entries[&path];
                assert_eq!(place.ino, old, "an inode's number changed");
                self.directories.get_mut(&old).expect("it was placed").place = place;
            }
        }
    }

    fn remove(&mut self, path: Path) {
        let (ino, directory) = self.entries.remove(&path).expect("it was removed");
        self.removed.push(path);
        if directory {
            self.directories.remove(&ino);
        } else {
            let file = self.files.get_mut(&ino).expect("it had a name");
            file.nlink -= 1;
            if file.nlink == 0 {
                self.files.remove(&ino);
                self.contents.remove(&ino);
                self.shown.remove(&ino);
            }
        }
    }
}
