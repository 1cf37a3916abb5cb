//! Nodes that programs use without opening them here: a directory that a process is in, a pipe.
//!
//! Nobody tells the partition that they are in use, so they go soon after their last name. What is
//! left to be seen of them then is little, and the same for ever: a removed directory is empty, and
//! nothing can be made in it. The attributes that they had are remembered as long as the kernel
//! refers to them.

use crate::answers::entry;
use meridian_client::ClientError;
use meridian_fs::FsError;
use meridian_fs::types::{Attributes, Ino, Kind};
use meridian_fuse::Reply;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many nodes are remembered, some tens of MiB. Of more than that, those that are removed while
/// a program is in them answer `ESTALE`.
const NODES_MAX: usize = 1 << 18;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<BTreeMap<Ino, Node>>);

#[derive(Clone, Copy, Debug)]
struct Node {
    attributes: Attributes,
    /// How many references the kernel has.
    lookups: u64,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the kernel is told what was made or linked.
    pub fn give(
        known: &Arc<Known>,
    ) -> impl FnOnce(Result<Attributes, ClientError>, Reply) + Send + use<> {
        let known = known.clone();
        move |result, reply| {
            if let Ok(attributes) = &result {
                known.look_up(attributes);
            }
            entry(result, reply);
        }
    }

    /// The kernel is told what a name leads to.
    pub fn look_up(&self, attributes: &Attributes) {
        // Files are opened, links are read at once.
        if matches!(attributes.kind, Kind::File | Kind::Symlink) {
            return;
        }
        let mut all = self.lock();
        if all.len() >= NODES_MAX {
            all.pop_first();
        }
        let new = Node { attributes: *attributes, lookups: 0 };
        let node = all.entry(attributes.place.ino).or_insert(new);
        (node.attributes, node.lookups) = (*attributes, node.lookups + 1);
    }

    /// The kernel has dropped references.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        let mut all = self.lock();
        if let Some(node) = all.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                all.remove(&ino);
            }
        }
    }

    /// What is to be seen of a node whose attributes could not be had, as `error` says: if it is
    /// gone, those that it had.
    pub fn removed(&self, ino: Ino, error: ClientError) -> Result<Attributes, ClientError> {
        let gone = matches!(error, ClientError::Fs(FsError::Gone));
        let node = self.lock().get(&ino).copied().filter(|_| gone);
        node.map(|node| Attributes { nlink: 0, size: 0, ..node.attributes }).ok_or(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::GroupId;
    use meridian_fs::types::Marks;
    use meridian_fs::{Place, Timestamp};

    fn attributes(ino: u64, kind: Kind) -> Attributes {
        let (place, time) = (Place { ino: Ino(ino), partition: GroupId(1) }, Timestamp::default());
        Attributes {
            place,
            kind,
            mode: 0o700,
            nlink: 2,
            uid: 1,
            gid: 1,
            rdev: 0,
            size: 3,
            stored: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            marks: Marks::default(),
        }
    }

    #[test]
    fn what_is_removed_is_known_as_long_as_the_kernel_refers_to_it() {
        let known = Known::default();
        let gone = || ClientError::Fs(FsError::Gone);
        known.look_up(&attributes(5, Kind::Directory));
        known.look_up(&attributes(5, Kind::Directory));
        known.look_up(&attributes(6, Kind::File));
        let removed = known.removed(Ino(5), gone()).unwrap();
        assert_eq!((removed.nlink, removed.size, removed.mode), (0, 0, 0o700));
        let unknown = ClientError::Timeout { what: "stat".into() };
        assert!(known.removed(Ino(5), unknown).is_err(), "it may be there");
        assert!(known.removed(Ino(6), gone()).is_err());
        known.forget(Ino(5), 1);
        assert!(known.removed(Ino(5), gone()).is_ok());
        known.forget(Ino(5), 1);
        assert!(known.removed(Ino(5), gone()).is_err());
        assert!(known.lock().is_empty());
    }
}
