//! What an update touches: known from the update and its name alone, before it is delivered
//! anywhere.
//!
//! Two messages without a key in common commute: whichever is delivered first, the states after
//! both, and what came of each, are equal. The multicast delivers such messages in any order, and
//! here they do not wait for each other. Why each part of the state follows from these keys:
//!
//! - **Inodes**, with their entries, locks and for whom they are kept. An update reads and changes
//!   only those that it names, and it has their keys. Also the number of a new inode is named: it
//!   follows from the message's name ([`Ino::made`]), so a write to the file comes after its
//!   creation.
//! - **Where inodes went** that were placed elsewhere: under the inode's key.
//! - **What is known of directories that live elsewhere** ([`crate::tops`]): under the inode's key,
//!   in the partition of the name, too.
//! - **Leases** ([`crate::leases`]). What begins or renews a lease has the client's key. What ends
//!   a hold without naming the client (an inode goes with the locks on it) or only gives it back
//!   need not: it takes its inode out of the lease, whatever the lease's rank is, and the lease is
//!   there as long as any inode is in it. An [`Update::Expire`] names the inodes that its sender
//!   saw; it does nothing if the client has begun or renewed anything since, and without that no
//!   others are held.
//! - **Who waits for locks** is part of the inodes. Of updates only [`Update::Untangle`] looks at
//!   several, and it has the keys of all of them.
//! - **Capabilities** ([`crate::caps`]), each under the key of its client and inode; a grant has
//!   the key of its inode, too, and so has all that begins or ends one that is *exclusive*: whether
//!   an update of another client is refused depends on that. The *leases* of holders have a key for
//!   each client.
//! - **Sums and maxima**: bytes stored, the count and the hash of what was decided, the vector.
//! - What is told of a client's earlier messages (`low`, in `host`) is a maximum, too.
//!
//! - **Quotas**: what counts against one is a sum, but whether an update is refused depends on it.
//!   So whatever changes a sum names the quota ([`Operation::quotas`]) and has its key.
//!
//! - **What is being counted** ([`crate::counting`]) has a key of its own, for whoever begins
//!   that or does a step. A move from one quota to another looks at it, too; it names both quotas,
//!   and the one that is counted, or given back, is among them if it matters.
//!
//! Reads wait for keys, too, and for as few as their answer needs. So what changes a directory's
//! entries has, beside the directory's inode, the *name* that it changes; and what makes, removes,
//! places or changes an inode itself has its *node*. Whoever looks a name up needs that name and
//! the directory's node: an undecided update of another name does not hold it up.
//!
//! The limit of locks is one per inode, so that no client's locks need to be counted together.

use crate::batch::{Kept, Part};
use crate::counting::Stretch;
use crate::operation::{Access, CapStep, Operation, Update};
use crate::query::Query;
use crate::types::{Ino, Name, Place};
use meridian_core::{ClientId, GroupId, MessageId, Stamp, mix};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What messages queue for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Key {
    /// An inode: all of it.
    Inode(Ino),
    /// The lease of a client.
    Client(ClientId),
    /// Whether a client holds an inode.
    Cap(ClientId, Ino),
    /// The lease of a holder.
    Holder(ClientId),
    /// What a name in a directory leads to; the name as its hash.
    Name(Ino, u64),
    /// How much counts against the quota of a directory.
    Quota(Ino),
    /// What is being counted.
    Counting,
    /// That an inode is here, and what only an update of the inode itself changes: not what changes
    /// with a directory's entries.
    Node(Ino),
}

impl Key {
    /// Its name among the keys of all partitions: an inode's number is the same in all. The
    /// uppermost bit tells the others from inodes ([`meridian_cluster::topology::GROUPS_MAX`]). A
    /// collision would only make messages wait for each other.
    fn number(self, partition: GroupId) -> u64 {
        match self {
            Key::Inode(ino) => ino.0,
            Key::Client(client) => mix(client.0 ^ u64::from(partition.0) << 48) | 1 << 63,
            Key::Cap(client, ino) => mix(mix(client.0) ^ ino.0.rotate_left(16)) | 1 << 63,
            Key::Holder(client) => mix(!client.0 ^ u64::from(partition.0) << 48) | 1 << 63,
            Key::Name(directory, name) => mix(mix(directory.0) ^ name) | 1 << 63,
            Key::Node(ino) => mix(!ino.0) | 1 << 63,
            Key::Counting => mix(0x636f_756e_7400_0000 ^ u64::from(partition.0)) | 1 << 63,
            Key::Quota(ino) => mix(ino.0.rotate_left(32) ^ 0x0071_756f_7461) | 1 << 63,
        }
    }

    /// The key of `name` in `directory`.
    fn name(directory: Ino, name: &Name) -> Key {
        // FNV-1a of 64 bits.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Key::Name(directory, name.iter().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

/// The keys that `operation`, named `id`, has in `partition`.
pub(crate) fn keys_in(operation: &Operation, id: MessageId, partition: GroupId) -> BTreeSet<Key> {
    let here = |(of, key): (GroupId, Key)| (of == partition).then_some(key);
    let quotas = operation.quotas.iter().map(|quota| (quota.partition, Key::Quota(quota.ino)));
    let made = operation.made(id).into_iter().filter(|made| made.partition == partition);
    let holds = made.map(|made| Key::Cap(operation.by, made.ino));
    let own = all_keys(&operation.update, id).into_iter().chain(quotas).filter_map(here);
    own.chain(holds).collect()
}

/// What an update touches that names these quotas, beside its own keys.
pub fn quota_keys(quotas: &[Place]) -> impl Iterator<Item = u64> + '_ {
    quotas.iter().map(|quota| Key::Quota(quota.ino).number(quota.partition))
}

/// What an update touches.
#[derive(Default)]
struct Touched<'a> {
    places: Vec<Place>,
    names: Vec<(Place, &'a Name)>,
    /// Those whose attributes it needs or changes as a whole.
    nodes: Vec<Place>,
    /// Those whose quotas it sets.
    quotas: Vec<Place>,
    client: Option<(GroupId, ClientId)>,
}

/// Each key, and in which partition.
fn all_keys(update: &Update, id: MessageId) -> Vec<(GroupId, Key)> {
    let Touched { places, names, nodes, quotas, client } = touched(update, id);
    let inodes = places.into_iter().map(|place| (place.partition, Key::Inode(place.ino)));
    let names = names.into_iter().map(|(of, name)| (of.partition, Key::name(of.ino, name)));
    let nodes = nodes.into_iter().map(|place| (place.partition, Key::Node(place.ino)));
    let client = client.map(|(partition, of)| (partition, Key::Client(of)));
    let counting = quotas.first().map(|place| (place.partition, Key::Counting));
    let quotas = quotas.into_iter().map(|place| (place.partition, Key::Quota(place.ino)));
    let quotas = quotas.chain(counting);
    let caps = keys_of_caps(update);
    inodes.chain(names).chain(nodes).chain(quotas).chain(client).chain(caps).collect()
}

fn touched(update: &Update, id: MessageId) -> Touched<'_> {
    let Touched { mut places, mut names, mut nodes, mut quotas, mut client } = Touched::default();
    let made_in = |of: &Place| Place { ino: Ino::made(of.partition, id), ..*of };
    match update {
        Update::Create { parent, .. } | Update::CreateUnnamed { parent, .. } => {
            places.extend([*parent, made_in(parent)]);
            nodes.push(made_in(parent));
            names.extend(created(update));
        }
        Update::Batch(parts) => (places, names, nodes) = touched_of_batch(parts),
        Update::Make(made) => {
            (places, nodes) = (vec![made.parent, made.place()], vec![made.place()]);
            names.extend(created(update));
        }
        Update::Link { target, parent, name } => {
            places.extend([*target, *parent]);
            names.push((*parent, name));
        }
        Update::Unlink { parent, name, child, keep_for } => {
            places.extend([*parent, *child]);
            names.push((*parent, name));
            client = keep_for.map(|client| (child.partition, client));
        }
        Update::Rmdir { parent, name, child } => {
            places.extend([*parent, *child, top_in(child, parent)]);
            names.push((*parent, name));
            nodes.push(*child);
        }
        Update::Rename { from, to, moved, replaced, ancestors, keep_for, whiteout, .. } => {
            let left = whiteout.map(|_| made_in(from));
            nodes.extend(left.into_iter().chain(*replaced));
            places.extend([from, to, moved].into_iter().chain(ancestors).chain(replaced));
            places.extend(left.into_iter().chain(tops_of_renamed(update)));
            names.extend(renamed(update));
            client = replaced.zip(*keep_for).map(|(place, client)| (place.partition, client));
        }
        Update::SetAttributes { inode, .. }
        | Update::SetDurability { inode, .. }
        | Update::Settle { inode, .. }
        | Update::SetXattr { inode, .. }
        | Update::RemoveXattr { inode, .. } => {
            places.push(*inode);
            nodes.push(*inode); // Access rights come as extended attributes, too.
        }
        Update::SetQuota { .. } | Update::Count { .. } => {
            (places, quotas) = touched_of_quotas(update);
        }
        Update::Write { inode, .. }
        | Update::Merge { inode, .. }
        | Update::Extend { inode, .. }
        | Update::PunchHole { inode, .. }
        | Update::Leave { inode, .. }
        | Update::Unlock { inode, .. } => places.push(*inode),
        Update::Lock { .. }
        | Update::Untangle { .. }
        | Update::Hold { .. }
        | Update::Forget { .. }
        | Update::Reap { .. }
        | Update::NoteReads { .. }
        | Update::NoteTop { .. }
        | Update::Renew { .. }
        | Update::Caps { .. }
        | Update::Expire { .. } => (places, client) = touched_of_held(update),
        Update::RaiseHorizon { .. } | Update::Mark { .. } => {} // Sessions' keys order the first.
        Update::AddRegion { .. } | Update::RemoveRegion { .. } | Update::PlaceDirectory { .. } => {
            (places, names, nodes) = touched_of_placed(update);
        }
    }
    Touched { places, names, nodes, quotas, client }
}

/// The inodes, the names and the nodes of a batch.
fn touched_of_batch(parts: &[Part]) -> (Vec<Place>, Vec<(Place, &Name)>, Vec<Place>) {
    let all = || parts.iter().map(|part| &part.kept);
    // Access rights come with what is written, too.
    let made = all().filter(|of| matches!(of, Kept::Make(_) | Kept::Write(_)));
    (
        all().flat_map(|kept| [kept.parent(), kept.child()]).collect(),
        all().map(|kept| (kept.parent(), kept.name())).collect(),
        made.map(Kept::child).collect(),
    )
}

/// The inodes, the name and the nodes of an update that gives a directory another partition than
/// that of its name, or takes that away.
fn touched_of_placed(update: &Update) -> (Vec<Place>, Vec<(Place, &Name)>, Vec<Place>) {
    match update {
        Update::AddRegion { partition, name, .. } | Update::RemoveRegion { partition, name } => {
            let top = Place::top(*partition);
            let places = vec![Place::ROOT, top, top_in(&top, &Place::ROOT)];
            (places, vec![(Place::ROOT, name)], vec![top])
        }
        Update::PlaceDirectory { parent, name, child, to } => {
            let moved = [*child, Place { ino: child.ino, partition: *to }];
            let tops = [top_in(child, parent), Place::top(*to)];
            let places = [*parent].into_iter().chain(moved).chain(tops).collect();
            (places, vec![(*parent, name)], moved.into())
        }
        other => panic!("{other:?} places nothing"),
    }
}

/// The inodes of an update that sets a quota or counts for one, and whose quota that is.
fn touched_of_quotas(update: &Update) -> (Vec<Place>, Vec<Place>) {
    match update {
        Update::SetQuota { inode, parent, .. } => {
            let above = Some(*parent).filter(|parent| parent.partition == inode.partition);
            ([*inode].into_iter().chain(above).collect(), vec![*inode])
        }
        Update::Count { root, stretches, rest, .. } => {
            let of = |of: &Stretch| [of.directory].into_iter().chain(of.inodes.clone());
            let all = stretches.iter().flat_map(of).chain(rest.iter().copied());
            let all = all.map(|ino| Place { ino, ..*root });
            ([*root].into_iter().chain(all).collect(), vec![*root])
        }
        other => panic!("{other:?} is not about quotas"),
    }
}

/// What is known of a directory where its name is, which is `parent`.
fn top_in(directory: &Place, parent: &Place) -> Place {
    Place { ino: directory.ino, partition: parent.partition }
}

/// What is known of the directories that a rename moves, where their names are and come.
fn tops_of_renamed(update: &Update) -> Vec<Place> {
    let Update::Rename { from, to, moved, replaced, .. } = update else { return Vec::new() };
    let named = [Some(moved), replaced.as_ref()].into_iter().flatten();
    named.flat_map(|of| [top_in(of, from), top_in(of, to)]).collect()
}

/// The inodes and the client of an update of what clients hold. What only ends a hold needs no key
/// of its client: see the module's documentation.
fn touched_of_held(update: &Update) -> (Vec<Place>, Option<(GroupId, ClientId)>) {
    match update {
        Update::Untangle { cycle } => (cycle.iter().map(|wait| wait.inode).collect(), None),
        Update::Lock { inode, lock, .. } => {
            (vec![*inode], Some((inode.partition, lock.owner.client)))
        }
        Update::Forget { partition, inodes, .. } => (all_of(inodes, *partition).collect(), None),
        Update::Hold { client, partition, inodes }
        | Update::Expire { client, partition, inodes, .. } => {
            (all_of(inodes, *partition).collect(), Some((*partition, *client)))
        }
        Update::Reap { partition, inodes } => {
            let place = |(ino, _): &(Ino, Stamp)| Place { ino: *ino, partition: *partition };
            (inodes.iter().map(place).collect(), None)
        }
        Update::NoteTop { partition, attributes, .. } => {
            (vec![Place { partition: *partition, ..attributes.place }], None)
        }
        Update::NoteReads { partition, reads } => {
            let place = |read: &Access| Place { ino: read.inode, partition: *partition };
            (reads.iter().map(place).collect(), None)
        }
        Update::Renew { client, partition } => (Vec::new(), Some((*partition, *client))),
        Update::Caps { partition, step, .. } => match step {
            CapStep::Grant(inodes)
            | CapStep::GrantExclusive(inodes)
            | CapStep::ReleaseExclusive(inodes)
            | CapStep::ExpireExclusive { inodes, .. }
            | CapStep::Recall(inodes) => (all_of(inodes, *partition).collect(), None),
            CapStep::Release(_) | CapStep::Renew | CapStep::Expire { .. } => (Vec::new(), None),
        },
        other => panic!("{other:?} is not about what clients hold"),
    }
}

fn all_of(inodes: &[Ino], partition: GroupId) -> impl Iterator<Item = Place> {
    inodes.iter().map(move |ino| Place { ino: *ino, partition })
}

/// The name of what is made, if it has one.
fn created(update: &Update) -> Option<(Place, &Name)> {
    match update {
        Update::Create { parent, name, .. } => Some((*parent, name)),
        Update::Make(made) => Some((made.parent, &made.name)),
        _ => None,
    }
}

/// Both names of a rename.
fn renamed(update: &Update) -> Vec<(Place, &Name)> {
    match update {
        Update::Rename { from, from_name, to, to_name, .. } => {
            vec![(*from, from_name), (*to, to_name)]
        }
        _ => Vec::new(),
    }
}

/// The capabilities and the lease of a holder that a step is about.
fn keys_of_caps(update: &Update) -> Vec<(GroupId, Key)> {
    let Update::Caps { client, partition, step } = update else { return Vec::new() };
    let (inodes, lease) = match step {
        CapStep::Grant(inodes)
        | CapStep::Release(inodes)
        | CapStep::GrantExclusive(inodes)
        | CapStep::ReleaseExclusive(inodes) => (&inodes[..], false),
        CapStep::Expire { inodes, .. } | CapStep::ExpireExclusive { inodes, .. } => {
            (&inodes[..], true)
        }
        CapStep::Renew => (&[][..], true),
        CapStep::Recall(_) => (&[][..], false),
    };
    let caps = inodes.iter().map(|ino| (*partition, Key::Cap(*client, *ino)));
    caps.chain(lease.then_some((*partition, Key::Holder(*client)))).collect()
}

/// The names that an update changes, each in its directory.
pub(crate) fn named_by(update: &Update) -> Vec<(Place, &Name)> {
    touched(update, MessageId { client: ClientId(0), sequence: 0 }).names
}

/// The inodes of `partition` that an update names, by whatever word.
pub(crate) fn inodes_of(update: &Update, partition: GroupId) -> BTreeSet<Ino> {
    let all = touched(update, MessageId { client: ClientId(0), sequence: 0 });
    let own = all.places.into_iter().chain(all.nodes).chain(all.quotas);
    own.filter(|place| place.partition == partition).map(|place| place.ino).collect()
}

/// The names of these keys of `partition`.
pub(crate) fn numbers(keys: &BTreeSet<Key>, partition: GroupId) -> Vec<u64> {
    keys.iter().map(|key| key.number(partition)).collect()
}

impl Update {
    /// What the update touches, in all partitions, if its message is named `id`: the order of two
    /// updates without a key in common does not matter.
    pub fn keys(&self, id: MessageId) -> BTreeSet<u64> {
        all_keys(self, id).into_iter().map(|(partition, key)| key.number(partition)).collect()
    }

    /// The inodes of `partition` that it names, by whatever word.
    pub fn inodes_in(&self, partition: GroupId) -> BTreeSet<Ino> {
        inodes_of(self, partition)
    }

    /// What it touches, too, if its client wants to hold what it makes, by a message named `id`.
    pub fn holding_keys(&self, by: ClientId, id: MessageId) -> impl Iterator<Item = u64> {
        let made = self.makes(id).into_iter();
        made.map(move |made| Key::Cap(by, made.ino).number(made.partition))
    }
}

impl Query {
    /// What an update has that may change the answer; of names and listings only the directory's.
    /// [`Query::Totals`] and [`Query::Waits`] have none: they tell what is applied at the replica
    /// asked.
    pub(crate) fn needs(&self) -> Vec<Key> {
        match self {
            Query::Lookup { parent, name } if !matches!(&name[..], b"." | b"..") => {
                vec![Key::name(parent.ino, name), Key::Node(parent.ino)]
            }
            // The directory above changes with the inode.
            Query::Lookup { .. }
            | Query::Attributes { .. }
            | Query::Directory { .. }
            | Query::Symlink { .. }
            | Query::Contents { .. }
            | Query::Xattr { .. }
            | Query::Xattrs { .. }
            | Query::Quota { .. }
            | Query::OwnQuota { .. }
            | Query::Awaited { .. }
            | Query::LockInTheWay { .. }
            | Query::Totals { .. }
            | Query::Waits { .. } => self.inode().map(Key::Inode).into_iter().collect(),
        }
    }

    /// What an answer needs at least that shows who may use a directory: without it none is given,
    /// with it all but times and counts of the directory is certain.
    pub(crate) fn needs_at_least(&self) -> Option<Key> {
        match self {
            Query::Attributes { inode } => Some(Key::Node(inode.ino)),
            Query::Lookup { .. }
            | Query::Directory { .. }
            | Query::Symlink { .. }
            | Query::Contents { .. }
            | Query::Xattr { .. }
            | Query::Xattrs { .. }
            | Query::Quota { .. }
            | Query::OwnQuota { .. }
            | Query::Awaited { .. }
            | Query::LockInTheWay { .. }
            | Query::Totals { .. }
            | Query::Waits { .. } => None,
        }
    }

    /// What an update has in [`Update::keys`] that may change the answer: see [`crate::keys`].
    pub fn keys(&self) -> Vec<u64> {
        self.needs().into_iter().map(|key| key.number(self.partition())).collect()
    }

    /// The one key without which attributes of a directory are never shown; `None` for other
    /// queries. Times and counts of the directory may lack an update that is not decided.
    pub fn least_key(&self) -> Option<u64> {
        self.needs_at_least().map(|key| key.number(self.partition()))
    }
}
