//! Updates of locks: taking, waiting, giving back, and what a lease takes with it.

use crate::FsError;
use crate::apply::Moment;
use crate::locks::Locks;
use crate::mutation::Mutation;
use crate::operation::{Done, Update};
use crate::tree::Tree;
use crate::types::{Ino, Lock, Place, Rank};
use crate::waits::{Stand, Standing, Under};
use meridian_core::{ClientId, Stamp};

/// How many locks may lie on one inode: enough for any program, little enough that the state stays
/// small.
const LOCKS_MAX: usize = 65_536;
/// Under this name nobody waits.
pub(crate) const NO_TICKET: u64 = u64::MAX;

/// Does an update of locks, or refuses it.
///
/// # Panics
/// If it is another update.
pub(crate) fn execute(tree: &mut Tree, update: Update, moment: Moment) -> Result<Done, FsError> {
    match update {
        Update::Lock { inode, lock, ticket } => take(tree, inode, (&lock, ticket), moment),
        Update::Leave { inode, lock, ticket } => {
            let gone = !tree.mutation.is(Mutation::KeepsGone);
            give_back(tree, inode, (&lock, ticket), |locks| match gone {
                true => Ok(locks.without_waiter(lock.owner, ticket)),
                false => Ok(locks.clone()),
            })
        }
        Update::Unlock { inode, owner, family, start, end } => {
            let lock = Lock { owner, family, start, end, exclusive: false, pid: 0 };
            give_back(tree, inode, (&lock, NO_TICKET), |locks| {
                locks.without(owner, family, start, end)
            })
        }
        Update::Expire { client, renewed, inodes, .. } => {
            expire(tree, client, renewed, &inodes);
            Ok(Done::Nothing)
        }
        other => panic!("{other:?} is not about locks"),
    }
}

fn take(
    tree: &mut Tree,
    place: Place,
    (lock, ticket): (&Lock, Option<u64>),
    moment: Moment,
) -> Result<Done, FsError> {
    let (before, client) = (&tree.inode(place)?.locks, lock.owner.client);
    let tenure = before.tenure(client);
    let mut locks = match ticket {
        None => before.with(lock)?,
        Some(ticket) => before.waited_for(lock, ticket, moment.rank)?,
    };
    locks.keep_tenure(client, moment.rank.0);
    set(tree, place.ino, locks)?;
    tree.leases.hold(client, place.ino, moment.rank);
    Ok(stand(tree, place.ino, (lock, ticket.unwrap_or(NO_TICKET)), tenure))
}

fn stand(tree: &Tree, ino: Ino, (lock, ticket): (&Lock, u64), before: Option<Stamp>) -> Done {
    let inode = tree.get(ino).expect("the caller found it here");
    Done::Lock(inode.locks.stand(lock, ticket, before))
}

/// Gives something back. What is on an inode that is gone went with it.
fn give_back(
    tree: &mut Tree,
    place: Place,
    (lock, ticket): (&Lock, u64),
    change: impl FnOnce(&Locks) -> Result<Locks, FsError>,
) -> Result<Done, FsError> {
    let client = lock.owner.client;
    let Ok(inode) = tree.inode(place) else {
        let lock = Standing::Gone;
        return Ok(Done::Lock(Stand { lock, before: None, since: None }));
    };
    let before = inode.locks.tenure(client);
    let mut locks = change(&inode.locks)?;
    locks.keep_tenure(client, before.unwrap_or_default());
    set(tree, place.ino, locks)?;
    let inode = tree.get(place.ino).expect("found above");
    if !inode.is_held_by(client) {
        tree.leases.release(client, place.ino);
    }
    Ok(stand(tree, place.ino, (lock, ticket), before))
}

/// Gives an inode other locks, unless they are more than it may have.
fn set(tree: &mut Tree, ino: Ino, locks: Locks) -> Result<(), FsError> {
    let before = tree.get(ino).map_or(0, |inode| inode.locks.len());
    if locks.len() > LOCKS_MAX.max(before) {
        return Err(FsError::NoSpace);
    }
    tree.change_locks(ino, |of| *of = locks);
    Ok(())
}

/// Drops what `client` holds of `inodes`, unless it has shown since `renewed` that it lives.
fn expire(tree: &mut Tree, client: ClientId, renewed: Rank, inodes: &[Ino]) {
    let lease = tree.leases.get(client).filter(|lease| lease.renewed == renewed).cloned();
    let Some(lease) = lease else { return };
    for ino in inodes.iter().filter(|ino| lease.inodes.contains(*ino)) {
        if tree.get(*ino).is_none() {
            continue; // Named twice.
        }
        tree.change_locks(*ino, |locks| locks.drop_client(client));
        tree.forget(client, *ino);
    }
}

impl Tree {
    /// Whether what an update changes was written under locks that have not been lost.
    pub(crate) fn check_under(&self, update: &Update, under: Option<Under>) -> Result<(), FsError> {
        let (Some(under), Some(place)) = (under, update.contents_of()) else { return Ok(()) };
        let tenure = self.inode(place)?.locks.tenure(under.client);
        match tenure == Some(under.since) || self.mutation.is(Mutation::IgnoresTenure) {
            true => Ok(()),
            false => Err(FsError::LockLost),
        }
    }
}

impl Update {
    /// The file whose bytes or length it changes.
    pub fn contents_of(&self) -> Option<Place> {
        match self {
            Update::Write { inode, .. }
            | Update::Extend { inode, .. }
            | Update::PunchHole { inode, .. } => Some(*inode),
            Update::Settle { inode, pieces, .. } => (!pieces.is_empty()).then_some(*inode),
            Update::SetAttributes { inode, changes } => changes.size.map(|_| *inode),
            Update::Create { .. }
            | Update::Make(_)
            | Update::Batch(_)
            | Update::CreateUnnamed { .. }
            | Update::Link { .. }
            | Update::Unlink { .. }
            | Update::Rmdir { .. }
            | Update::Rename { .. }
            | Update::Merge { .. }
            | Update::SetXattr { .. }
            | Update::RemoveXattr { .. }
            | Update::SetDurability { .. }
            | Update::Lock { .. }
            | Update::Leave { .. }
            | Update::Unlock { .. }
            | Update::Untangle { .. }
            | Update::Hold { .. }
            | Update::Forget { .. }
            | Update::Reap { .. }
            | Update::NoteReads { .. }
            | Update::NoteTop { .. }
            | Update::AddRegion { .. }
            | Update::RemoveRegion { .. }
            | Update::Renew { .. }
            | Update::Expire { .. }
            | Update::Caps { .. }
            | Update::Mark { .. }
            | Update::RaiseHorizon { .. }
            | Update::SetQuota { .. }
            | Update::Count { .. }
            | Update::PlaceDirectory { .. } => None,
        }
    }
}
