//! What an update may touch in a partition, known when it is delivered.
//!
//! The keys may be more than what is touched in the end, never less: messages that are not decided
//! yet are counted with all that they may do. So more or fewer of them make an update wait longer
//! or shorter and never change what comes of it.

use crate::operation::Update;
use crate::pending::{Key, Pending};
use crate::tree::Tree;
use crate::types::{Ino, Place};
use meridian_core::Position;
use std::collections::BTreeSet;

/// The keys of `update`, delivered at `position`.
pub(crate) fn keys_of(
    tree: &Tree,
    pending: &Pending,
    update: &Update,
    position: Position,
) -> BTreeSet<Key> {
    let (mut keys, mut doomed) = named(tree, update, position);
    if let Update::Expire { client, .. } = update {
        if let Some(lease) = tree.leases.get(*client) {
            doomed.extend(lease.inodes.iter().copied());
        }
        for waiting in pending.queue(Key::Client(*client)).filter_map(|at| pending.get(at)) {
            doomed.extend(waiting.keys.iter().filter_map(|key| match key {
                Key::Inode(ino) => Some(*ino),
                Key::Client(_) => None,
            }));
        }
    }
    // An inode that goes takes its locks with it.
    for ino in doomed {
        keys.insert(Key::Inode(ino));
        if let Some(inode) = tree.get(ino) {
            keys.extend(inode.locks.holders().into_keys().map(Key::Client));
        }
        for waiting in pending.queue(Key::Inode(ino)).filter_map(|at| pending.get(at)) {
            keys.extend(waiting.keys.iter().filter(|key| matches!(key, Key::Client(_))));
        }
    }
    keys
}

/// The keys that the update itself names, and the inodes that may go.
fn named(tree: &Tree, update: &Update, position: Position) -> (BTreeSet<Key>, Vec<Ino>) {
    let here = |place: &Place| place.partition == tree.group;
    let mut keys = BTreeSet::new();
    let mut doomed = Vec::new();
    let mut add = |places: &[Place]| {
        let local = places.iter().filter(|place| here(place));
        keys.extend(local.map(|place| Key::Inode(place.ino)));
    };
    let mut clients = Vec::new();
    match update {
        Update::Create { parent, .. } => {
            add(&[*parent, tree.place(Ino::made(tree.group, position))]);
        }
        Update::Link { target, parent, .. } => add(&[*target, *parent]),
        Update::Unlink { parent, child, keep_for, .. } => {
            add(&[*parent, *child]);
            if here(child) {
                doomed.push(child.ino);
                clients.extend(*keep_for);
            }
        }
        Update::Rmdir { parent, child, .. } => {
            add(&[*parent, *child]);
            doomed.extend(here(child).then_some(child.ino));
        }
        Update::Rename { from, to, moved, replaced, ancestors, keep_for, .. } => {
            add(&[*from, *to, *moved]);
            add(ancestors);
            if let Some(replaced) = replaced.as_ref().filter(|place| here(place)) {
                doomed.push(replaced.ino);
                clients.extend(*keep_for);
            }
        }
        Update::SetAttributes { inode, .. }
        | Update::Write { inode, .. }
        | Update::PunchHole { inode, .. }
        | Update::SetXattr { inode, .. }
        | Update::RemoveXattr { inode, .. } => add(&[*inode]),
        Update::Lock { inode, lock } => {
            add(&[*inode]);
            clients.push(lock.owner.client);
        }
        Update::Unlock { inode, owner, .. } => {
            add(&[*inode]);
            clients.push(owner.client);
        }
        Update::Forget { inode, client } => {
            add(&[*inode]);
            clients.push(*client);
            doomed.extend(here(inode).then_some(inode.ino));
        }
        Update::Renew { client, .. } | Update::Expire { client, .. } => clients.push(*client),
        Update::PlaceDirectory { parent, child, to, .. } => {
            add(&[*parent, *child, Place { ino: child.ino, partition: *to }]);
        }
    }
    keys.extend(clients.into_iter().map(Key::Client));
    (keys, doomed)
}
