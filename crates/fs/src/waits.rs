//! Who waits for a lock of an inode, who is granted one, and cycles of those who wait for each
//! other.
//!
//! Who waits is part of the state, in the order of arrival. Whatever gives a lock back grants it in
//! the same step to the first who may have it, so nobody needs to ask again.
//!
//! Who holds no lock of the family on the inode does not pass one who came earlier and wants what
//! conflicts: else who wants all could wait for ever behind those who share. One who holds a lock
//! may pass, or two that wait for each other could be each other's only hope.
//!
//! A cycle over several inodes is found by whoever looks at all of the partition
//! ([`crate::Partition::tangle`]) and named in a message with the keys of its inodes
//! ([`crate::Update::Untangle`]); that does nothing if the cycle is not there any more.
//!
//! Invariants:
//! - Q1: nobody waits who may have its lock.
//! - Q2: `Tree::waits` names exactly those who wait for locks of `fcntl`.

use crate::FsError;
use crate::locks::{Locks, conflict, normal};
use crate::mutation::Mutation;
use crate::operation::{Stand, Standing};
use crate::tree::Tree;
use crate::types::{Ino, Lock, LockFamily, LockOwner, Rank};
use meridian_core::{ClientId, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Cycles of more are not looked for.
pub const CYCLE_MAX: usize = 256;

/// One who waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub lock: Lock,
    /// The client's name for it.
    pub ticket: u64,
    /// It passes those who came earlier: it was in a cycle with them.
    pub passes: bool,
    /// It is refused, as it would wait for ever, until it says that it has gone.
    pub refused: bool,
}

impl Locks {
    /// What this would be once `wanted` waits, if it must: else it is taken. A lock of `flock` that
    /// its owner has already is given up first, as Linux does: it may be what others wait for.
    pub fn waited_for(&self, wanted: &Lock, ticket: u64, rank: Rank) -> Result<Locks, FsError> {
        if wanted.start > wanted.end {
            return Err(FsError::Invalid);
        }
        let lock = normal(wanted);
        let waiter = Waiter { lock, ticket, passes: false, refused: false };
        let mut after = match lock.family {
            LockFamily::Flock => self.without(lock.owner, lock.family, 0, u64::MAX)?,
            LockFamily::Posix | LockFamily::Pages => self.clone(),
        };
        if after.in_the_way(&lock).is_none() && after.before(rank, &waiter).is_none() {
            return after.with(&lock);
        }
        after.waiting.insert(rank, waiter);
        Ok(after)
    }

    /// What this is without one who waits.
    pub fn without_waiter(&self, owner: LockOwner, ticket: u64) -> Locks {
        let mut after = self.clone();
        if let Some((rank, _)) = self.find(owner, ticket) {
            after.waiting.remove(&rank);
        }
        after
    }

    fn find(&self, owner: LockOwner, ticket: u64) -> Option<(Rank, &Waiter)> {
        let same = |of: &Waiter| of.lock.owner == owner && of.ticket == ticket;
        self.waiting.iter().find(|(_, of)| same(of)).map(|(rank, of)| (*rank, of))
    }

    /// How it stands with a lock that was asked for, and how it was `before`.
    pub fn stand(&self, wanted: &Lock, ticket: u64, before: Option<Stamp>) -> Stand {
        let lock = match self.find(wanted.owner, ticket) {
            Some((_, waiter)) if waiter.refused => Standing::Deadlock,
            Some(_) => Standing::Waits,
            None if self.covers(&normal(wanted)) => Standing::Held,
            None => Standing::Gone,
        };
        Stand { lock, before, since: self.tenure(wanted.owner.client) }
    }

    /// Since which message the client has held or awaited locks without a break.
    pub fn tenure(&self, client: ClientId) -> Option<Stamp> {
        self.tenures.get(&client).copied()
    }

    /// Whether the owner holds all of that.
    fn covers(&self, wanted: &Lock) -> bool {
        let mut next = wanted.start;
        for held in self.held_by(wanted.family, wanted.owner, wanted.start) {
            if held.end < next {
                continue; // The one before.
            }
            if held.start > next || (wanted.exclusive && !held.exclusive) {
                return false;
            }
            match held.end.checked_add(1).filter(|_| held.end < wanted.end) {
                Some(after) => next = after,
                None => return true,
            }
        }
        false
    }

    /// The first who came before that rank and is not to be passed.
    fn before(&self, rank: Rank, waiter: &Waiter) -> Option<Rank> {
        let lock = &waiter.lock;
        if waiter.passes || self.held_by(lock.family, lock.owner, 0).next().is_some() {
            return None;
        }
        let stands =
            |of: &Waiter| !of.refused && of.lock.owner != lock.owner && conflict(&of.lock, lock);
        self.waiting.range(..rank).find(|(_, of)| stands(of)).map(|(rank, _)| *rank)
    }

    /// Grants what can be granted, in the order of arrival (Q1).
    pub fn grant(&mut self, mutation: Mutation) {
        if mutation.is(Mutation::ForgetsWaiters) {
            return;
        }
        loop {
            let free = |(rank, waiter): &(&Rank, &Waiter)| {
                let blocked = self.in_the_way(&waiter.lock).is_some();
                !waiter.refused
                    && (!blocked || mutation.is(Mutation::GrantsToAll))
                    && self.before(**rank, waiter).is_none()
            };
            let Some((rank, waiter)) = self.waiting.iter().find(free) else { return };
            let (rank, lock) = (*rank, waiter.lock);
            match self.with(&lock) {
                Ok(after) => *self = after,
                Err(_) => drop(self.held.insert((lock.family, lock.owner, lock.start), lock)),
            }
            self.waiting.remove(&rank);
        }
    }

    /// Whether one who waits does so for `next`: as it holds a lock, or only as it came earlier.
    fn waits_for(&self, rank: Rank, next: (bool, Rank, LockOwner)) -> Option<Link> {
        let waiter = self.waiting.get(&rank).filter(|waiter| !waiter.refused)?;
        let (here, earlier, owner) = next;
        let lock = &waiter.lock;
        if owner != lock.owner
            && self.held_by(lock.family, owner, 0).any(|held| conflict(held, lock))
        {
            return Some(Link::Holds);
        }
        let behind = here && earlier < rank && self.before(rank, waiter).is_some();
        let of = self.waiting.get(&earlier).filter(|of| behind && !of.refused)?;
        (of.lock.owner == owner && conflict(&of.lock, lock)).then_some(Link::CameFirst)
    }

    /// Owners that hold `fcntl` locks.
    fn posix_owners(&self) -> BTreeSet<LockOwner> {
        let posix = |lock: &&Lock| lock.family == LockFamily::Posix;
        self.held.values().filter(posix).map(|lock| lock.owner).collect()
    }
}

/// Why one waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Holds,
    CameFirst,
}

/// One who waits, by its inode.
type Place = (Ino, Rank);

/// Those who wait for `fcntl` locks of a partition.
struct Graph<'a> {
    tree: &'a Tree,
    by_owner: BTreeMap<LockOwner, Vec<Place>>,
}

impl Graph<'_> {
    /// Those for whom one waits.
    fn after(&self, (ino, rank): Place) -> Vec<Place> {
        let Some(locks) = self.tree.get(ino).map(|inode| &inode.locks) else { return Vec::new() };
        let Some(waiter) = locks.waiting.get(&rank).filter(|of| !of.refused) else {
            return Vec::new();
        };
        let lock = waiter.lock;
        let holds = |of: &&Lock| of.owner != lock.owner && conflict(of, &lock);
        let holders: BTreeSet<_> = locks.held.values().filter(holds).map(|of| of.owner).collect();
        let waits = |owner: &LockOwner| self.by_owner.get(owner).into_iter().flatten().copied();
        let mut all: Vec<Place> = holders.iter().flat_map(waits).collect();
        if locks.before(rank, waiter).is_some() {
            let first = |of: &Waiter| of.lock.owner != lock.owner && conflict(&of.lock, &lock);
            let earlier = locks.waiting.range(..rank).filter(|(_, of)| first(of));
            all.extend(earlier.map(|(rank, _)| (ino, *rank)));
        }
        all
    }

    /// A cycle that can be reached from there; what was seen leads to none.
    fn cycle_from(&self, start: Place, seen: &mut BTreeSet<Place>) -> Option<Vec<Place>> {
        let mut path: Vec<(Place, Vec<Place>)> = Vec::new();
        let mut next = Some(start);
        loop {
            if let Some(place) = next.take() {
                if let Some(at) = path.iter().position(|(on, _)| *on == place) {
                    return Some(path[at..].iter().map(|(place, _)| *place).collect());
                }
                if path.len() < CYCLE_MAX && seen.insert(place) {
                    path.push((place, self.after(place)));
                }
            }
            match path.last_mut()?.1.pop() {
                Some(place) => next = Some(place),
                None => drop(path.pop()),
            }
        }
    }
}

/// A cycle of those who wait for each other's locks, each for the next and the last for the first.
pub(crate) fn tangle(tree: &Tree) -> Option<Vec<Place>> {
    let mut by_owner: BTreeMap<LockOwner, Vec<Place>> = BTreeMap::new();
    for (owner, ino, rank) in &tree.waits {
        by_owner.entry(*owner).or_default().push((*ino, *rank));
    }
    // Each cycle has one who waits and holds what another waits for.
    let inodes: BTreeSet<Ino> = tree.waits.iter().map(|(_, ino, _)| *ino).collect();
    let of = |ino: &Ino| tree.get(*ino).map(|inode| inode.locks.posix_owners());
    let holders: BTreeSet<_> = inodes.iter().filter_map(of).flatten().collect();
    let starts: Vec<_> = holders.iter().filter_map(|owner| by_owner.get(owner)).flatten().collect();
    let starts: Vec<Place> = starts.into_iter().copied().collect();
    let (graph, mut seen) = (Graph { tree, by_owner }, BTreeSet::new());
    starts.into_iter().find_map(|start| graph.cycle_from(start, &mut seen))
}

/// Ends a cycle, if it is there: one who waits in it only as another came first passes that; if
/// there is none, who came last is refused.
pub(crate) fn untangle(tree: &mut Tree, cycle: &[Place]) {
    if cycle.len() > CYCLE_MAX {
        return;
    }
    let Some(links) = links(tree, cycle) else { return };
    let passing = links.iter().position(|link| *link == Link::CameFirst);
    let last = (0..cycle.len()).max_by_key(|at| cycle[*at].1);
    let Some(at) = passing.or(last) else { return };
    let (ino, rank) = cycle[at];
    tree.change_locks(ino, |locks| {
        if let Some(waiter) = locks.waiting.get_mut(&rank) {
            match passing {
                Some(_) => waiter.passes = true,
                None => waiter.refused = true,
            }
        }
    });
}

/// Why each in a cycle waits for the next, if each does.
fn links(tree: &Tree, cycle: &[Place]) -> Option<Vec<Link>> {
    let next_of = |at: usize| cycle[(at + 1) % cycle.len()];
    let link = |at: usize| {
        let ((ino, rank), next) = (cycle[at], next_of(at));
        let waiter = tree.get(next.0)?.locks.waiting.get(&next.1)?;
        let fresh = (next.0 == ino, next.1, waiter.lock.owner);
        tree.get(ino)?.locks.waits_for(rank, fresh)
    };
    (0..cycle.len()).map(link).collect()
}

/// The tenure of one who writes, as it must be for the write to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Under {
    /// Who holds locks on the inode.
    pub client: ClientId,
    /// Since which message, without a break.
    pub since: Stamp,
}
