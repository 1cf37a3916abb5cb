//! Capabilities: who may answer looks at an inode by itself, until it is taken back.
//!
//! A capability is granted to a client for an inode. It lets the client keep what it sees: of a
//! directory its attributes and names, of another inode its attributes. An update that changes any
//! of that *recalls* the capabilities of all others; it is acknowledged once they are gone (see
//! [`crate::Partition::holds_back`]).
//!
//! Each holder has a *lease* of the partition, which it begins and renews, and which is apart from
//! what it holds. A step on an inode is ordered with the client's other steps on that inode only, a
//! grant also with what touches the inode; renewals and expiries of a client with each other. So
//! what waits for an undecided update of one inode keeps no other inode from being let go, and no
//! lease from being renewed or ended.
//!
//! A release or an expiry commutes with an update: whichever comes first, the capability is gone
//! after both. So the state does not depend on their order, and nothing else of it may: no sum over
//! several inodes or clients decides anything here.
//!
//! A directory may be held *exclusively*: its holder may keep back new files in it (decision 102).
//! Updates of others that change the directory are refused then ([`FsError::Held`]), and so are
//! their questions about it, until they have had it recalled. What begins or ends that is ordered
//! with all that touches the directory: a plain release or expiry passes it over. Who else holds it
//! decides nothing, as others release it in any order: they are to let it go, and who asked is
//! answered then.
//!
//! Invariants:
//! - H1: `by_inode` names exactly the clients that hold the inode.
//! - H2: the rank of a lease only grows.
//! - H3: one client at most holds an inode exclusively.

use crate::FsError;
use crate::batch::Kept;
use crate::holders::Holders;
use crate::keys::named_by;
use crate::mutation::Mutation;
use crate::operation::{CapStep, Done, Update};
use crate::tree::Tree;
use crate::types::{Ino, Name, Place, Rank};
use imbl::{OrdMap, OrdSet};
use meridian_core::{ClientId, GroupId, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How many inodes one message may ask for: a few KiB.
pub const GRANT_MAX: usize = 256;

/// One client's capability on one inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
struct Cap {
    granted: Rank,
    standing: Standing,
}

/// How it stands with a capability. The first two were `false` and `true` before there were
/// others, and are written as these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
enum Standing {
    Shared,
    /// An update waits for it to go.
    Recalled,
    Exclusive,
    /// Somebody waits for it to go.
    ExclusiveRecalled,
}

impl Standing {
    fn is_recalled(self) -> bool {
        matches!(self, Standing::Recalled | Standing::ExclusiveRecalled)
    }

    fn is_exclusive(self) -> bool {
        matches!(self, Standing::Exclusive | Standing::ExclusiveRecalled)
    }

    fn recalled(self) -> Standing {
        if self.is_exclusive() { Standing::ExclusiveRecalled } else { Standing::Recalled }
    }
}

/// What one client holds: something.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
struct Holder {
    caps: OrdMap<Ino, Cap>,
    recalled: OrdSet<Ino>,
}

/// All capabilities of a partition.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Caps {
    /// The rank of each client's last renewal.
    leases: OrdMap<ClientId, Rank>,
    by_client: OrdMap<ClientId, Holder>,
    by_inode: OrdMap<Ino, Holders>,
    count: u64,
}

/// What an update changes here of what others may keep, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Subject {
    /// The holder that changes it: its own capabilities stay.
    pub by: ClientId,
    /// The inodes.
    pub inodes: Vec<Ino>,
}

impl Subject {
    /// Nothing.
    pub(crate) fn none() -> Subject {
        Subject { by: ClientId(0), inodes: Vec::new() }
    }

    /// That of an update of `by`, in `partition`.
    pub fn of(update: &Update, by: ClientId, partition: GroupId) -> Subject {
        let here = update.alters().into_iter().filter(|place| place.partition == partition);
        Subject { by, inodes: here.map(|place| place.ino).collect() }
    }
}

impl Caps {
    /// How many there are, leases among them.
    pub fn len(&self) -> u64 {
        self.count + self.leases.len() as u64
    }

    /// The holders, each with the rank of its lease if it has one.
    pub fn holders(&self) -> impl Iterator<Item = (ClientId, Option<Rank>)> {
        let all = self.leases.iter().map(|(client, renewed)| (*client, Some(*renewed)));
        let others = self.by_client.keys().filter(|client| !self.leases.contains_key(*client));
        all.chain(others.map(|client| (*client, None)))
    }

    /// How much a client holds.
    pub fn held(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, |holder| holder.caps.len())
    }

    /// What a client holds.
    pub fn held_by(&self, client: ClientId) -> impl Iterator<Item = Ino> {
        let holder = self.by_client.get(&client);
        holder.into_iter().flat_map(|holder| holder.caps.keys().copied())
    }

    /// What a client holds exclusively.
    pub fn held_alone(&self, client: ClientId) -> impl Iterator<Item = Ino> {
        let caps = self.by_client.get(&client).into_iter().flat_map(|holder| &holder.caps);
        caps.filter(|(_, cap)| cap.standing.is_exclusive()).map(|(ino, _)| *ino)
    }

    /// Whether the client holds the inode exclusively.
    pub fn holds_alone(&self, client: ClientId, ino: Ino) -> bool {
        let cap = self.by_client.get(&client).and_then(|holder| holder.caps.get(&ino));
        cap.is_some_and(|cap| cap.standing.is_exclusive())
    }

    /// Whether another than `by` holds the inode exclusively.
    pub fn is_held_alone(&self, by: ClientId, ino: Ino) -> bool {
        let holders = self.by_inode.get(&ino).into_iter().flat_map(Holders::iter);
        let others = holders.filter(|of| *of != by);
        let mut standings = others.map(|of| self.by_client[&of].caps[&ino].standing);
        standings.any(Standing::is_exclusive)
    }

    /// What updates wait for of a client.
    pub fn recalled(&self, client: ClientId) -> impl Iterator<Item = Ino> {
        let holder = self.by_client.get(&client);
        holder.into_iter().flat_map(|holder| holder.recalled.iter().copied())
    }

    /// Who but `subject.by` holds something of it.
    fn others<'a>(&'a self, subject: &'a Subject) -> impl Iterator<Item = (ClientId, Ino)> + 'a {
        let none = self.by_inode.is_empty();
        let inodes = subject.inodes.iter().filter(move |_| !none);
        inodes.flat_map(move |ino| {
            let holders = self.by_inode.get(ino).into_iter().flat_map(Holders::iter);
            holders.filter(|client| *client != subject.by).map(|client| (client, *ino))
        })
    }

    /// Whether another than `subject.by` holds something of it.
    pub fn is_held(&self, subject: &Subject) -> bool {
        self.others(subject).next().is_some()
    }

    /// Whether another than `subject.by` is to let go what it was granted before `rank`.
    pub fn holds_back(&self, subject: &Subject, rank: Rank) -> bool {
        self.others(subject).any(|(client, ino)| {
            let cap = self.by_client[&client].caps[&ino];
            cap.standing.is_recalled() && cap.granted < rank
        })
    }

    /// An update has changed the subject; answers who is to let go and was not before.
    pub fn recall(&mut self, subject: &Subject) -> Vec<ClientId> {
        let others: Vec<_> = self.others(subject).collect();
        let mut told = Vec::new();
        for (client, ino) in others {
            let holder = self.by_client.get_mut(&client).expect("H1: it holds the inode");
            let cap = holder.caps.get_mut(&ino).expect("H1: it holds the inode");
            if !cap.standing.is_recalled() {
                cap.standing = cap.standing.recalled();
                holder.recalled.insert(ino);
                told.push(client);
            }
        }
        told
    }

    /// The message of that rank gives the client capabilities; answers those that it has now. What
    /// was recalled is not given again before it was released.
    pub fn grant(&mut self, client: ClientId, inodes: &[Ino], rank: Rank) -> Vec<Ino> {
        let mut granted = Vec::new();
        for ino in inodes {
            if self.is_held_alone(client, *ino) {
                continue;
            }
            let holder = self.by_client.entry(client).or_default();
            match holder.caps.get(ino) {
                Some(cap) if cap.standing.is_recalled() => continue,
                Some(_) => {}
                None => {
                    let cap = Cap { granted: rank, standing: Standing::Shared };
                    holder.caps.insert(*ino, cap);
                    self.by_inode.entry(*ino).or_default().insert(client);
                    self.count += 1;
                }
            }
            granted.push(*ino);
        }
        granted
    }

    /// The client asks to hold these exclusively; answers those that it does.
    fn grant_exclusive(&mut self, client: ClientId, inodes: &[Ino]) -> Vec<Ino> {
        let mut granted = Vec::new();
        for ino in inodes {
            let taken = self.is_held_alone(client, *ino); // H3.
            let holder = self.by_client.get_mut(&client);
            let cap = holder.and_then(|holder| holder.caps.get_mut(ino));
            if let Some(cap) = cap.filter(|cap| !taken && !cap.standing.is_recalled()) {
                cap.standing = Standing::Exclusive;
                granted.push(*ino);
            }
        }
        granted
    }

    /// The client lives: its lease begins, or goes on.
    fn renew(&mut self, client: ClientId, rank: Rank) {
        let before = self.leases.insert(client, rank);
        assert!(before < Some(rank), "H2: renewed at {rank:?} after {before:?}");
    }

    /// The client has let these go; those that it holds exclusively only by what says so.
    fn release(&mut self, client: ClientId, inodes: &[Ino], exclusive: bool) {
        let Some(holder) = self.by_client.get_mut(&client) else { return };
        for ino in inodes {
            let cap = holder.caps.get(ino);
            if cap.is_none_or(|cap| cap.standing.is_exclusive() && !exclusive) {
                continue;
            }
            holder.caps.remove(ino);
            holder.recalled.remove(ino);
            self.count -= 1;
            if let Some(clients) = self.by_inode.get_mut(ino) {
                clients.remove(client);
                if clients.is_empty() {
                    self.by_inode.remove(ino);
                }
            }
        }
        if holder.caps.is_empty() {
            self.by_client.remove(&client);
        }
    }

    /// The client's lease has not been renewed since `renewed`, or there was none: it ends, and
    /// with it what is named.
    fn expire(&mut self, client: ClientId, renewed: Option<Rank>, inodes: &[Ino]) {
        if self.leases.get(&client).copied() == renewed {
            self.leases.remove(&client);
            self.release(client, inodes, false);
        }
    }

    /// The same of what is held exclusively, but for the lease.
    fn expire_exclusive(&mut self, client: ClientId, renewed: Option<Rank>, inodes: &[Ino]) {
        if self.leases.get(&client).copied() == renewed {
            self.release(client, inodes, true);
        }
    }

    /// Panics unless H1 holds.
    pub fn check_invariants(&self) {
        let all = self.by_client.iter().flat_map(|(client, holder)| {
            holder.caps.keys().map(|ino| (*ino, *client)).collect::<Vec<_>>()
        });
        let all: OrdSet<(Ino, ClientId)> = all.collect();
        let named = self.by_inode.iter().flat_map(|(ino, clients)| {
            clients.iter().map(|client| (*ino, client)).collect::<Vec<_>>()
        });
        assert_eq!(all, named.collect::<OrdSet<_>>(), "H1");
        assert_eq!(all.len() as u64, self.count, "H1: the count");
        for (client, holder) in &self.by_client {
            let recalled = holder.caps.iter().filter(|(_, cap)| cap.standing.is_recalled());
            let recalled: OrdSet<_> = recalled.map(|(ino, _)| *ino).collect();
            assert_eq!(recalled, holder.recalled, "H1: recalled of {client:?}");
            assert!(!holder.caps.is_empty(), "H1: {client:?} holds nothing");
            for ino in self.held_alone(*client) {
                assert!(!self.is_held_alone(*client, ino), "H3: {ino:?}");
            }
        }
    }
}

/// Does a step of a client.
pub(crate) fn step(tree: &mut Tree, client: ClientId, step: CapStep, rank: Rank) -> Done {
    match step {
        CapStep::Grant(mut inodes) => {
            inodes.truncate(GRANT_MAX);
            inodes.retain(|ino| tree.get(*ino).is_some());
            return Done::Granted(tree.caps.grant(client, &inodes, rank));
        }
        CapStep::Release(inodes) => tree.caps.release(client, &inodes, false),
        CapStep::Renew => tree.caps.renew(client, rank),
        CapStep::Expire { renewed, inodes } => tree.caps.expire(client, renewed, &inodes),
        CapStep::GrantExclusive(mut inodes) => {
            inodes.truncate(GRANT_MAX);
            let is_directory =
                |ino: &Ino| tree.get(*ino).is_some_and(|inode| inode.as_directory().is_some());
            inodes.retain(|ino| is_directory(ino) && !ino.is_top());
            return Done::Granted(tree.caps.grant_exclusive(client, &inodes));
        }
        CapStep::ReleaseExclusive(inodes) => tree.caps.release(client, &inodes, true),
        CapStep::ExpireExclusive { renewed, inodes } => {
            tree.caps.expire_exclusive(client, renewed, &inodes);
        }
        CapStep::Recall(_) => {} // As each update that succeeds: it changes nothing else.
    }
    Done::Nothing
}

/// Whether others let `by` change what it does here.
///
/// # Errors
/// [`FsError::Held`] if one holds a directory exclusively that the update changes.
pub(crate) fn check_alone(tree: &Tree, update: &Update, by: ClientId) -> Result<(), FsError> {
    let is_step = matches!(update, Update::Caps { .. });
    if is_step || tree.mutation.is(Mutation::IgnoresExclusive) {
        return Ok(());
    }
    let subject = Subject::of(update, by, tree.group);
    let held = subject.inodes.iter().any(|ino| tree.caps.is_held_alone(by, *ino));
    if held { Err(FsError::Held) } else { Ok(()) }
}

impl Update {
    /// What it changes of what a client may keep: inodes that are there before. Locks are not kept.
    pub fn alters(&self) -> Vec<Place> {
        match self {
            Update::Create { parent, .. } => vec![*parent],
            Update::Make(made) => vec![made.parent],
            Update::Batch(parts) => {
                let parents = parts.iter().map(|part| part.kept.parent());
                let there = parts.iter().filter(|part| !matches!(part.kept, Kept::Make(_)));
                let there = there.map(|part| part.kept.child());
                parents.chain(there).collect::<BTreeSet<_>>().into_iter().collect()
            }
            Update::Caps {
                partition,
                step: CapStep::Recall(inodes) | CapStep::GrantExclusive(inodes),
                ..
            } => {
                let place = |ino: &Ino| Place { ino: *ino, partition: *partition };
                inodes.iter().map(place).collect()
            }
            Update::Link { target, parent, .. } => vec![*parent, *target],
            Update::Unlink { parent, child, .. } | Update::Rmdir { parent, child, .. } => {
                vec![*parent, *child]
            }
            Update::Rename { from, to, moved, replaced, .. } => {
                let mut all = vec![*from, *moved];
                all.extend(replaced);
                all.extend((to != from).then_some(*to));
                all
            }
            Update::SetAttributes { inode, .. }
            | Update::Write { inode, .. }
            | Update::Settle { inode, .. }
            | Update::Merge { inode, .. }
            | Update::Extend { inode, .. }
            | Update::PunchHole { inode, .. }
            | Update::SetXattr { inode, .. }
            | Update::RemoveXattr { inode, .. }
            | Update::SetDurability { inode, .. } => vec![*inode],
            Update::Forget { partition, inodes, .. } => {
                let place = |ino: &Ino| Place { ino: *ino, partition: *partition };
                inodes.iter().map(place).collect()
            }
            Update::Reap { partition, inodes } => {
                let place = |(ino, _): &(Ino, Stamp)| Place { ino: *ino, partition: *partition };
                inodes.iter().map(place).collect()
            }
            Update::PlaceDirectory { parent, child, .. } => vec![*parent, *child],
            Update::AddRegion { .. } => vec![Place::ROOT],
            Update::RemoveRegion { partition, .. } => vec![Place::ROOT, Place::top(*partition)],
            Update::CreateUnnamed { .. }
            | Update::Lock { .. }
            | Update::Leave { .. }
            | Update::Untangle { .. }
            | Update::Unlock { .. }
            | Update::Hold { .. }
            | Update::NoteReads { .. }
            | Update::NoteTop { .. }
            | Update::Renew { .. }
            | Update::Expire { .. }
            | Update::Caps { .. }
            | Update::SetQuota { .. }
            | Update::Count { .. }
            | Update::Mark { .. }
            | Update::RaiseHorizon { .. } => Vec::new(),
        }
    }

    /// The names that it changes, each in its directory.
    pub fn names(&self) -> Vec<(Place, &Name)> {
        named_by(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{MessageId, Stamp};

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    fn rank(ts: u64) -> Rank {
        (Stamp(ts), MessageId { client: A, sequence: ts })
    }

    fn subject(by: ClientId, ino: u64) -> Subject {
        Subject { by, inodes: vec![Ino(ino)] }
    }

    #[test]
    fn an_update_is_held_back_by_others_until_they_have_let_go() {
        let mut caps = Caps::default();
        assert_eq!(caps.grant(A, &[Ino(5), Ino(6)], rank(1)), [Ino(5), Ino(6)]);
        assert_eq!(caps.grant(B, &[Ino(5)], rank(2)), [Ino(5)]);
        assert!(!caps.is_held(&subject(A, 6)) && caps.is_held(&subject(B, 6)));
        assert_eq!(caps.recall(&subject(B, 5)), [A]);
        assert!(caps.recall(&subject(B, 5)).is_empty(), "told once");
        assert!(caps.holds_back(&subject(B, 5), rank(3)));
        assert!(!caps.holds_back(&subject(A, 5), rank(3)), "B's is not recalled");
        assert!(caps.grant(A, &[Ino(5)], rank(4)).is_empty(), "not before it was released");
        caps.release(A, &[Ino(5), Ino(9)], false);
        assert!(!caps.holds_back(&subject(B, 5), rank(3)));
        assert_eq!(caps.grant(A, &[Ino(5)], rank(5)), [Ino(5)]);
        caps.recall(&subject(B, 5));
        assert!(!caps.holds_back(&subject(B, 5), rank(3)), "what was granted after it");
        assert!(caps.holds_back(&subject(B, 5), rank(6)));
        caps.check_invariants();
    }

    #[test]
    fn a_release_and_an_update_commute() {
        let mut caps = Caps::default();
        caps.grant(A, &[Ino(5), Ino(6)], rank(1));
        let (mut first, mut last) = (caps.clone(), caps);
        first.release(A, &[Ino(5)], false);
        first.recall(&subject(B, 5));
        last.recall(&subject(B, 5));
        last.release(A, &[Ino(5)], false);
        assert_eq!(first, last);
    }

    #[test]
    fn an_expiry_ends_only_the_lease_that_was_seen() {
        let mut caps = Caps::default();
        caps.renew(A, rank(1));
        caps.grant(A, &[Ino(5), Ino(6)], rank(2));
        caps.renew(A, rank(3));
        caps.expire(A, Some(rank(1)), &[Ino(5)]);
        assert_eq!(caps.holders().collect::<Vec<_>>(), [(A, Some(rank(3)))]);
        caps.expire(A, Some(rank(3)), &[Ino(5)]);
        assert_eq!(caps.holders().collect::<Vec<_>>(), [(A, None)], "it holds what came late");
        caps.expire(A, None, &[Ino(6)]);
        assert_eq!(caps, Caps::default());
    }

    #[test]
    fn what_is_granted_and_the_end_of_the_lease_commute() {
        let mut caps = Caps::default();
        caps.renew(A, rank(1));
        caps.grant(A, &[Ino(5)], rank(2));
        let (mut first, mut last) = (caps.clone(), caps);
        first.grant(A, &[Ino(6)], rank(4));
        first.expire(A, Some(rank(1)), &[Ino(5)]);
        last.expire(A, Some(rank(1)), &[Ino(5)]);
        last.grant(A, &[Ino(6)], rank(4));
        assert_eq!(first, last);
    }

    #[test]
    fn what_is_held_exclusively_is_given_to_nobody_else_and_ends_in_its_order() {
        let mut caps = Caps::default();
        caps.renew(A, rank(1));
        caps.grant(A, &[Ino(5), Ino(6)], rank(2));
        caps.grant(B, &[Ino(6)], rank(3));
        assert_eq!(caps.grant_exclusive(A, &[Ino(5), Ino(7)]), [Ino(5)], "it holds one of them");
        assert_eq!(caps.grant_exclusive(B, &[Ino(6)]), [Ino(6)], "A is to let go its own");
        assert!(caps.grant_exclusive(A, &[Ino(6)]).is_empty(), "H3");
        caps.release(B, &[Ino(6)], true);
        assert!(caps.is_held_alone(B, Ino(5)) && !caps.is_held_alone(A, Ino(5)));
        assert!(caps.grant(B, &[Ino(5)], rank(4)).is_empty());
        caps.release(A, &[Ino(5), Ino(6)], false);
        caps.expire(A, Some(rank(1)), &[Ino(5)]);
        assert!(caps.is_held_alone(B, Ino(5)), "what commutes with updates passes it over");
        assert_eq!(caps.recall(&subject(B, 5)), [A]);
        assert!(caps.is_held_alone(B, Ino(5)) && caps.holds_back(&subject(B, 5), rank(5)));
        assert!(caps.grant_exclusive(A, &[Ino(5)]).is_empty(), "not before it was released");
        caps.check_invariants();
        caps.expire_exclusive(A, Some(rank(1)), &[Ino(5)]);
        assert!(caps.is_held_alone(B, Ino(5)), "the lease is another");
        caps.expire_exclusive(A, None, &[Ino(5)]);
        assert!(!caps.holds_back(&subject(B, 5), rank(5)));
        assert_eq!(caps, Caps::default());
    }
}
