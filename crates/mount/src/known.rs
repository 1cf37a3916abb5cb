//! Nodes that programs use without opening them here: a directory that a process is in, a pipe.
//!
//! Nobody tells the partition that they are in use, so they go soon after their last name. What is
//! left to be seen of them then is little, and the same for ever: a removed directory is empty, and
//! nothing can be made in it. The attributes that they had are remembered as long as the kernel
//! refers to them, and of directories where the kernel has them: see [`crate::moved`].

use crate::answers::entry;
use meridian_client::ClientError;
use meridian_fs::FsError;
use meridian_fs::types::{Attributes, Ino, Kind, Name};
use meridian_fuse::Reply;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many nodes are remembered, some tens of MiB, more with long names. Of more than that, those
/// that are removed while a program is in them answer `ESTALE`.
const NODES_MAX: usize = 1 << 18;

/// Of paths with more directories the end is told.
const DEPTH_MAX: usize = 256;

/// A name, and in which directory.
pub(crate) type At = (Ino, Name);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    nodes: BTreeMap<Ino, Node>,
    /// The directory that the kernel has under a name: [`Node::at`].
    directories: BTreeMap<At, Ino>,
}

#[derive(Clone, Debug)]
struct Node {
    attributes: Attributes,
    /// How many references the kernel has.
    lookups: u64,
    /// Where the kernel has it, if it is a directory that has a name there.
    at: Option<At>,
}

impl All {
    /// The kernel has this directory there now, or none. Where it had it before.
    fn put(&mut self, at: &At, ino: Option<Ino>) -> Option<At> {
        let other = match ino {
            Some(ino) => self.directories.insert(at.clone(), ino),
            None => self.directories.remove(at),
        };
        if let Some(other) = other.filter(|other| Some(*other) != ino)
            && let Some(node) = self.nodes.get_mut(&other)
        {
            node.at = None;
        }
        let before = self.nodes.get_mut(&ino?)?.at.replace(at.clone())?;
        if before == *at {
            return None;
        }
        self.directories.remove(&before);
        Some(before)
    }

    fn forget(&mut self, ino: Ino) {
        let at = self.nodes.remove(&ino).and_then(|node| node.at);
        if let Some(at) = at {
            self.directories.remove(&at);
        }
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the kernel is told what was made or linked there.
    pub fn give(
        known: &Arc<Known>,
        at: At,
    ) -> impl FnOnce(Result<Attributes, ClientError>, Reply) + Send + use<> {
        let known = known.clone();
        move |result, reply| {
            if let Ok(attributes) = &result {
                known.look_up(attributes, Some(&at)); // It is new there, and nowhere else.
            }
            entry(result, reply);
        }
    }

    /// The kernel is told what a name leads to, `at` unless it is `.` or `..`. Where it has the
    /// same directory still, if that is elsewhere.
    pub fn look_up(&self, attributes: &Attributes, at: Option<&At>) -> Option<At> {
        let mut all = self.lock();
        // Files are opened, links are read at once.
        if matches!(attributes.kind, Kind::File | Kind::Symlink) {
            return at.and_then(|at| all.put(at, None));
        }
        let ino = attributes.place.ino;
        if all.nodes.len() >= NODES_MAX && !all.nodes.contains_key(&ino) {
            let first = all.nodes.keys().next().copied();
            first.into_iter().for_each(|first| all.forget(first));
        }
        let new = Node { attributes: *attributes, lookups: 0, at: None };
        let node = all.nodes.entry(ino).or_insert(new);
        (node.attributes, node.lookups) = (*attributes, node.lookups + 1);
        let is_directory = attributes.kind == Kind::Directory;
        at.and_then(|at| all.put(at, is_directory.then_some(ino)))
    }

    /// The kernel is told that there is nothing.
    pub fn lost(&self, at: &At) {
        self.lock().put(at, None);
    }

    /// The kernel has moved what was at `from` to `to`, or exchanged what was there.
    pub fn renamed(&self, from: &At, to: &At, exchanged: bool) {
        let mut all = self.lock();
        let (moved, other) = (all.directories.get(from).copied(), all.directories.get(to).copied());
        all.put(to, None);
        all.put(from, other.filter(|_| exchanged));
        all.put(to, moved);
    }

    /// The kernel has dropped references.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        let mut all = self.lock();
        if let Some(node) = all.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                all.forget(ino);
            }
        }
    }

    /// The path of a directory from `root` on as the kernel has it, without a `/` at its end; it
    /// begins with `?` if not all of it is known.
    pub fn path(&self, root: Ino, directory: Ino) -> String {
        let all = self.lock();
        let (mut names, mut at) = (Vec::new(), directory);
        // Directories that others have moved meanwhile might lie in each other here.
        while at != root && names.len() <= DEPTH_MAX {
            let Some((parent, name)) = all.nodes.get(&at).and_then(|node| node.at.as_ref()) else {
                break;
            };
            names.push(String::from_utf8_lossy(name));
            at = *parent;
        }
        let begin = if at == root { "" } else { "?" };
        names.iter().rev().fold(begin.to_string(), |path, name| path + "/" + name)
    }

    /// What is to be seen of a node whose attributes could not be had, as `error` says: if it is
    /// gone, those that it had.
    pub fn removed(&self, ino: Ino, error: ClientError) -> Result<Attributes, ClientError> {
        let gone = matches!(error, ClientError::Fs(FsError::Gone));
        let node = self.lock().nodes.get(&ino).cloned().filter(|_| gone);
        node.map(|node| Attributes { nlink: 0, size: 0, ..node.attributes }).ok_or(error)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use meridian_core::GroupId;
    use meridian_fs::Place;

    fn attributes(ino: u64, kind: Kind) -> Attributes {
        let place = Place { ino: Ino(ino), partition: GroupId(1) };
        let bare = Attributes::bare(place, kind);
        Attributes { mode: 0o700, nlink: 2, uid: 1, gid: 1, size: 3, ..bare }
    }

    pub(crate) fn directory(ino: u64) -> Attributes {
        attributes(ino, Kind::Directory)
    }

    #[test]
    fn what_is_removed_is_known_as_long_as_the_kernel_refers_to_it() {
        let known = Known::default();
        let gone = || ClientError::Fs(FsError::Gone);
        known.look_up(&attributes(5, Kind::Directory), Some(&at(1, "d")));
        known.look_up(&attributes(5, Kind::Directory), None);
        known.look_up(&attributes(6, Kind::File), Some(&at(1, "f")));
        let removed = known.removed(Ino(5), gone()).unwrap();
        assert_eq!((removed.nlink, removed.size, removed.mode), (0, 0, 0o700));
        let unknown = ClientError::Timeout { what: "stat".into() };
        assert!(known.removed(Ino(5), unknown).is_err(), "it may be there");
        assert!(known.removed(Ino(6), gone()).is_err());
        known.forget(Ino(5), 1);
        assert!(known.removed(Ino(5), gone()).is_ok());
        known.forget(Ino(5), 1);
        assert!(known.removed(Ino(5), gone()).is_err());
        assert!(known.lock().nodes.is_empty() && known.lock().directories.is_empty());
    }

    fn at(parent: u64, name: &'static str) -> At {
        (Ino(parent), Name::from_static(name.as_bytes()))
    }

    #[test]
    fn a_directory_that_another_has_moved_is_where_it_was_until_the_kernel_is_told() {
        let known = Known::default();
        let found = |ino, at: &At| known.look_up(&attributes(ino, Kind::Directory), Some(at));
        let (x, y, z) = (at(1, "x"), at(2, "y"), at(2, "z"));
        assert_eq!((found(5, &x), found(5, &x)), (None, None));
        assert_eq!((found(5, &y), found(5, &y)), (Some(x.clone()), None));
        // What this mount has moved the kernel has moved itself.
        known.renamed(&y, &z, false);
        assert_eq!((found(5, &z), found(5, &x)), (None, Some(z.clone())));
        // Another took its place.
        assert_eq!((found(6, &x), found(5, &y)), (None, None));
        known.renamed(&x, &y, true);
        assert_eq!((found(5, &x), found(6, &y)), (None, None));
        known.renamed(&x, &y, false);
        assert_eq!((found(5, &y), found(6, &z)), (None, None), "one went with its name");
        assert_eq!(
            (known.path(Ino(2), Ino(5)), known.path(Ino(1), Ino(6))),
            ("/y".into(), "?/z".into())
        );
        known.lost(&y);
        assert_eq!(found(5, &x), None, "it is nowhere");
        known.look_up(&attributes(7, Kind::File), Some(&x));
        assert_eq!(found(5, &y), None, "a file took its place");
        known.forget(Ino(5), 11);
        known.forget(Ino(6), 3);
        assert!(known.lock().nodes.is_empty() && known.lock().directories.is_empty());
    }
}
