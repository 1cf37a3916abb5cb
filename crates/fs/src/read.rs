//! Answers to queries, from what is applied here.

use crate::FsError;
use crate::inode::{Content, Inode};
use crate::query::{Answer, Query};
use crate::tree::Tree;
use crate::types::{Entry, Kind, NAME_MAX, Name, Place};
use crate::waits::Waits;
use std::ops::Bound;

/// The most entries in one answer: what fits into a frame with long names.
const ENTRIES_MAX: usize = 4096;

/// Answers `query`.
pub(crate) fn read(tree: &Tree, query: &Query) -> Result<Answer, FsError> {
    match query {
        Query::Lookup { parent, name } => lookup(tree, *parent, name),
        Query::Attributes { inode } => {
            Ok(Answer::Attributes(tree.inode(*inode)?.attributes(*inode)))
        }
        Query::Directory { inode, after, limit } => list(tree, *inode, after, *limit),
        Query::Symlink { inode } => match &tree.inode(*inode)?.content {
            Content::Symlink(target) => Ok(Answer::Bytes(target.clone())),
            Content::File(_) | Content::Directory(_) | Content::Nothing => Err(FsError::Invalid),
        },
        Query::Contents { inode, offset, len } => {
            let file: &Inode = tree.inode(*inode)?;
            match &file.content {
                Content::File(extents) => {
                    let attributes = file.attributes(*inode);
                    let (extents, end) = extents.range(*offset, *len);
                    Ok(Answer::Contents { attributes, extents, end })
                }
                Content::Directory(_) => Err(FsError::IsDirectory),
                Content::Symlink(_) | Content::Nothing => Err(FsError::Invalid),
            }
        }
        Query::Xattr { inode, name } => {
            let value = tree.inode(*inode)?.xattrs.get(name).ok_or(FsError::NoAttribute)?;
            Ok(Answer::Bytes(value.clone()))
        }
        Query::Xattrs { inode } => {
            Ok(Answer::Names(tree.inode(*inode)?.xattrs.keys().cloned().collect()))
        }
        Query::LockInTheWay { inode, lock } => {
            Ok(Answer::Lock(tree.inode(*inode)?.locks.in_the_way(lock)))
        }
        Query::Awaited { inode, lock, ticket } => {
            let locks = &tree.inode(*inode)?.locks;
            Ok(Answer::Awaited(locks.stand(lock, *ticket, locks.tenure(lock.owner.client))))
        }
        Query::Quota { inode } => {
            let counts = tree.inode(*inode)?.quota.and_then(|of| tree.quotas.get(of));
            Ok(Answer::Quota(tree.quotas.get(inode.ino).or(counts).copied()))
        }
        Query::OwnQuota { inode } => {
            tree.inode(*inode)?;
            Ok(Answer::Quota(tree.quotas.get(inode.ino).copied()))
        }
        Query::Totals { partition } if *partition == tree.group => {
            let (inodes, bytes) = tree.totals();
            Ok(Answer::Totals { inodes, bytes })
        }
        Query::Waits { partition } if *partition == tree.group => {
            Ok(Answer::Waits(Waits::of(tree)))
        }
        Query::Totals { .. } | Query::Waits { .. } => Err(FsError::Stale),
    }
}

fn lookup(tree: &Tree, parent: Place, name: &Name) -> Result<Answer, FsError> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    let directory = tree.directory(parent)?;
    let entry = match &name[..] {
        b"." => Entry { place: parent, kind: Kind::Directory },
        b".." => Entry { place: directory.parent, kind: Kind::Directory },
        _ => directory.entries.get(name).ok_or(FsError::NotFound)?.clone(),
    };
    let attributes = tree.attributes(entry.place);
    let top = tree.tops.get(entry.place.ino).map(Box::new);
    Ok(Answer::Entry { entry, attributes, top })
}

fn list(tree: &Tree, place: Place, after: &Name, limit: u32) -> Result<Answer, FsError> {
    let directory = tree.directory(place)?;
    let limit = usize::try_from(limit).map_or(ENTRIES_MAX, |limit| limit.min(ENTRIES_MAX));
    let greater = (Bound::Excluded(after), Bound::Unbounded);
    let mut rest = directory.entries.range::<_, Name>(greater);
    let entries: Vec<_> = rest
        .by_ref()
        .take(limit)
        .map(|(name, entry)| (name.clone(), entry.clone(), tree.attributes(entry.place)))
        .collect();
    let tops = entries.iter().filter_map(|(_, entry, _)| tree.tops.get(entry.place.ino)).collect();
    let (end, parent) = (rest.next().is_none(), directory.parent);
    Ok(Answer::Directory { entries, end, parent, tops })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Ino;

    #[test]
    fn a_query_to_the_wrong_partition_looks_again() {
        let tree = Tree::new(meridian_core::GroupId(1));
        let inode = Place { ino: Ino(5), partition: meridian_core::GroupId(2) };
        assert_eq!(read(&tree, &Query::Attributes { inode }), Err(FsError::Stale));
    }
}
