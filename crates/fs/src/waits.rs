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
//! A cycle is found by a client that waits in it: it asks all partitions who waits there
//! ([`Waits`]), joins the answers ([`cycle_of`]) and has the cycle named in a message with the keys
//! of its inodes ([`crate::Update::Untangle`]). The partitions of the cycle vote whether each link
//! is there where the message is in their order; if one is not, nothing happens.
//!
//! So nobody is refused for waits that were never all there at one time. Who sends the message has
//! seen each wait begun. One that had ended anywhere when the message was sent has ended before
//! it in its partition's order, and the link is missed there. So all of them were there when the
//! message was sent.
//!
//! Invariants:
//! - Q1: nobody waits who may have its lock.
//! - Q2: `Tree::waits` names exactly those who wait for locks of `fcntl`.

use crate::FsError;
use crate::locks::{Locks, conflict, normal};
use crate::mutation::Mutation;
use crate::tree::Tree;
use crate::types::{Ino, Lock, LockFamily, LockOwner, Place, Rank};
use imbl::OrdMap;
use meridian_core::{ClientId, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Cycles of more are not looked for.
pub const CYCLE_MAX: usize = 256;
/// So many locks and waits of a partition are shown to who looks for a cycle: less than a MiB. Of
/// files that have more none is looked for.
const LOCKS_SHOWN_MAX: usize = 8192;

/// How it stands with the locks of a client on an inode. Its *tenure* is the time in which it holds
/// locks there or waits for some, named by the message with which that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stand {
    /// With the lock that was asked for.
    pub lock: Standing,
    /// The tenure before the update.
    pub before: Option<Stamp>,
    /// The tenure now.
    pub since: Option<Stamp>,
}

/// How it stands with a lock that a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// Its owner has it.
    Held,
    /// It is waited for.
    Waits,
    /// It would be waited for by its own owner.
    Deadlock,
    /// Its owner neither has it nor waits.
    Gone,
}

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

    /// Whether one who waits here does so for `next`: as it holds a lock, or only as it came
    /// earlier.
    fn waits_for(&self, of: &Wait, next: &Wait) -> Option<Link> {
        let waiter = self.waiting.get(&of.rank).filter(|waiter| !waiter.refused)?;
        let lock = &waiter.lock;
        if lock.owner != of.owner || lock.owner == next.owner {
            return None;
        }
        if self.held_by(lock.family, next.owner, 0).any(|held| conflict(held, lock)) {
            return Some(Link::Holds);
        }
        let behind =
            next.inode == of.inode && next.rank < of.rank && self.before(of.rank, waiter).is_some();
        let earlier = self.waiting.get(&next.rank).filter(|of| behind && !of.refused)?;
        (earlier.lock.owner == next.owner && conflict(&earlier.lock, lock))
            .then_some(Link::CameFirst)
    }
}

/// Why one waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Holds,
    CameFirst,
}

/// One who waits for a lock of `fcntl`, as a cycle names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Wait {
    /// The file.
    pub inode: Place,
    /// The message with which it came.
    pub rank: Rank,
    /// Who waits.
    pub owner: LockOwner,
}

/// Who waits for locks of `fcntl` in a partition, and who holds some of the same files.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Waits(Vec<(Place, Locks)>);

impl Waits {
    /// Those of a partition, up to so many locks: a file that has more is left out.
    pub(crate) fn of(tree: &Tree) -> Waits {
        let inodes: BTreeSet<Ino> = tree.waits.iter().map(|(_, ino, _)| *ino).collect();
        let (mut shown, mut left) = (Vec::new(), LOCKS_SHOWN_MAX);
        for (ino, inode) in inodes.into_iter().filter_map(|ino| Some((ino, tree.get(ino)?))) {
            if let Some(rest) = left.checked_sub(inode.locks.len()) {
                left = rest;
                shown.push((tree.place(ino), inode.locks.of_fcntl()));
            }
        }
        Waits(shown)
    }

    /// Leaves those of other inodes out.
    pub(crate) fn retain(&mut self, mut of: impl FnMut(Place) -> bool) {
        self.0.retain(|(place, _)| of(*place));
    }
}

impl Locks {
    /// Those of `fcntl`, and who waits for some.
    fn of_fcntl(&self) -> Locks {
        let posix = |lock: &Lock| lock.family == LockFamily::Posix;
        let held = self.held.iter().filter(|(_, lock)| posix(lock));
        let waiting = self.waiting.iter().filter(|(_, of)| posix(&of.lock));
        Locks {
            held: held.map(|(key, lock)| (*key, *lock)).collect(),
            waiting: waiting.map(|(rank, of)| (*rank, *of)).collect(),
            tenures: OrdMap::new(),
        }
    }
}

/// Those who wait for `fcntl` locks, wherever.
struct Graph<'a> {
    locks: BTreeMap<Place, &'a Locks>,
    by_owner: BTreeMap<LockOwner, Vec<Wait>>,
}

impl Graph<'_> {
    fn of(all: &[Waits]) -> Graph<'_> {
        let locks: BTreeMap<Place, &Locks> =
            all.iter().flat_map(|of| &of.0).map(|(place, locks)| (*place, locks)).collect();
        let mut by_owner: BTreeMap<LockOwner, Vec<Wait>> = BTreeMap::new();
        for (inode, locks) in &locks {
            for (rank, waiter) in &locks.waiting {
                let wait = Wait { inode: *inode, rank: *rank, owner: waiter.lock.owner };
                by_owner.entry(wait.owner).or_default().push(wait);
            }
        }
        Graph { locks, by_owner }
    }

    /// Those for whom one waits.
    fn after(&self, of: Wait) -> Vec<Wait> {
        let Some(locks) = self.locks.get(&of.inode) else { return Vec::new() };
        let Some(waiter) = locks.waiting.get(&of.rank).filter(|of| !of.refused) else {
            return Vec::new();
        };
        let lock = waiter.lock;
        let holds = |of: &&Lock| of.owner != lock.owner && conflict(of, &lock);
        let holders: BTreeSet<_> = locks.held.values().filter(holds).map(|of| of.owner).collect();
        let waits = |owner: &LockOwner| self.by_owner.get(owner).into_iter().flatten().copied();
        let mut all: Vec<Wait> = holders.iter().flat_map(waits).collect();
        if locks.before(of.rank, waiter).is_some() {
            let first = |of: &Waiter| of.lock.owner != lock.owner && conflict(&of.lock, &lock);
            let earlier = locks.waiting.range(..of.rank).filter(|(_, of)| first(of));
            all.extend(earlier.map(|(rank, earlier)| Wait {
                rank: *rank,
                owner: earlier.lock.owner,
                ..of
            }));
        }
        all
    }

    /// A cycle that can be reached from there; what was seen leads to none.
    fn cycle_from(&self, start: Wait, seen: &mut BTreeSet<Wait>) -> Option<Vec<Wait>> {
        let mut path: Vec<(Wait, Vec<Wait>)> = Vec::new();
        let mut next = Some(start);
        loop {
            if let Some(wait) = next.take() {
                if let Some(at) = path.iter().position(|(on, _)| *on == wait) {
                    return Some(path[at..].iter().map(|(wait, _)| *wait).collect());
                }
                if path.len() < CYCLE_MAX && seen.insert(wait) {
                    path.push((wait, self.after(wait)));
                }
            }
            match path.last_mut()?.1.pop() {
                Some(wait) => next = Some(wait),
                None => drop(path.pop()),
            }
        }
    }
}

/// A cycle of those who wait for each other's locks, each for the next and the last for the first,
/// as far as partitions have shown who waits: at most [`CYCLE_MAX`].
pub fn cycle_of(all: &[Waits]) -> Option<Vec<Wait>> {
    let (graph, mut seen) = (Graph::of(all), BTreeSet::new());
    // Each cycle has one who waits and holds what another waits for.
    let holders: BTreeSet<_> =
        graph.locks.values().flat_map(|locks| locks.held.values()).map(|lock| lock.owner).collect();
    let starts = holders.iter().filter_map(|owner| graph.by_owner.get(owner)).flatten();
    starts.copied().find_map(|start| graph.cycle_from(start, &mut seen))
}

/// Whether the links of a cycle that begin in this partition are there; and the first of those who
/// wait here only as another came first.
pub(crate) fn check(tree: &Tree, cycle: &[Wait]) -> Result<Option<usize>, FsError> {
    if cycle.len() > CYCLE_MAX {
        return Err(FsError::Invalid);
    }
    let mut passes = None;
    if tree.mutation.is(Mutation::BelievesCycles) {
        return Ok(None);
    }
    for (at, of) in cycle.iter().enumerate().filter(|(_, of)| of.inode.partition == tree.group) {
        let next = cycle[(at + 1) % cycle.len()];
        let locks = tree.get(of.inode.ino).map(|inode| &inode.locks);
        match locks.and_then(|locks| locks.waits_for(of, &next)) {
            Some(Link::Holds) => {}
            Some(Link::CameFirst) => passes = passes.or(Some(at)),
            None => return Err(FsError::Stale),
        }
    }
    Ok(passes)
}

/// Ends a cycle: whom all partitions have found to wait only as another came first passes that; if
/// there is none, who came last is refused.
pub(crate) fn untangle(tree: &mut Tree, cycle: &[Wait], passes: Option<usize>) {
    let last = (0..cycle.len()).max_by_key(|at| cycle[*at].rank);
    let Some(Wait { inode, rank, .. }) = passes.or(last).map(|at| cycle[at]) else { return };
    if inode.partition != tree.group || tree.get(inode.ino).is_none() {
        return;
    }
    tree.change_locks(inode.ino, |locks| {
        if let Some(waiter) = locks.waiting.get_mut(&rank) {
            match passes {
                Some(_) => waiter.passes = true,
                None => waiter.refused = true,
            }
        }
    });
}

/// The tenure of one who writes, as it must be for the write to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Under {
    /// Who holds locks on the inode.
    pub client: ClientId,
    /// Since which message, without a break.
    pub since: Stamp,
}
