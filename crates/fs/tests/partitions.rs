//! Several partitions that deliver one common order of what conflicts: what comes of it does not
//! depend on when each of them delivers, in which order what commutes, and when votes arrive; and
//! it is always one tree.
//!
//! Updates are made from views that lag behind, as clients make them, so that many are refused.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{ME, Rng, World, name, node};
use meridian_core::{ClientId, GroupId, MessageId, Stamp};
use meridian_fs::operation::{Access, Changes, Piece, RenameMode, Whiteout, WriteAt, XattrMode};
use meridian_fs::quota::Limits;
use meridian_fs::types::{Data, Lock, LockFamily, LockOwner};
use meridian_fs::{
    Answer, Attributes, Done, Extent, FsError, Ino, Kind, Operation, Partition, Place, Query,
    Timestamp, Update, Vector, cycle_of, quota_keys,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const REGIONS: [&str; 3] = ["us", "eu", "ap"];
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const CLIENTS: [ClientId; 2] = [ClientId(1), ClientId(2)];

/// Which updates there are most of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mix {
    All,
    /// Directories made, renamed, placed and removed.
    Directories,
    /// Locks taken and given back, clients that go while files are removed.
    Leases,
}

type Outcomes = BTreeMap<(MessageId, GroupId), Result<Done, FsError>>;

/// At times, a step of what is being counted.
fn random_step(view: &World, rng: &mut Rng, mix: Mix) -> Option<Update> {
    let mut steps = view.partitions.values().filter_map(|of| of.next_count(2));
    let (step, _) = steps.next().filter(|_| mix == Mix::All && rng.chance(25))?;
    Some(step)
}

/// At times, the directory of a region.
fn region_goes(partition: GroupId, rng: &mut Rng) -> Option<Update> {
    let region = usize::from(partition.0).checked_sub(1).filter(|_| rng.chance(4))?;
    Some(Update::RemoveRegion { partition, name: name(REGIONS[region]) })
}

/// What a client might do that sees `view`.
fn random_update(view: &World, rng: &mut Rng, mix: Mix) -> Update {
    if let Some(step) = random_step(view, rng, mix) {
        return step;
    }
    let entries = view.entries();
    let known = entries.iter().filter(|of| of.3 == Kind::Directory).map(|of| of.2);
    let directories: Vec<Place> = known.chain([Place::ROOT]).collect();
    let (parent, text, child, kind) = rng.pick(&entries).clone();
    let directory = *rng.pick(&directories);
    let new = (*rng.pick(&NAMES)).to_string();
    let keep_for = rng.chance(60).then(|| *rng.pick(&CLIENTS));
    let entry_name = name(&text);
    let choice = match mix {
        Mix::Directories => rng.below(12),
        Mix::All => rng.below(27),
        Mix::Leases => 10 + rng.below(60),
    };
    match choice {
        0 | 1 => {
            Update::Create { parent: directory, name: name(&new), node: node(Kind::Directory) }
        }
        2..=7 => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            let (mut to, mut to_name) = (directory, new.clone());
            if rng.chance(40) {
                let (parent, text, _, _) = rng.pick(&entries).clone();
                (to, to_name) = (parent, text);
            }
            let mode = *rng.pick(&modes);
            let mut update =
                view.rename_update((parent, &text), (to, &to_name), mode, keep_for).unwrap_or(
                    Update::Create { parent: directory, name: name(&new), node: node(Kind::File) },
                );
            if let Update::Rename { whiteout, .. } = &mut update {
                *whiteout = rng.chance(20).then_some(Whiteout { uid: 1, gid: 2 });
            }
            update
        }
        8 | 9 => {
            let to = GroupId(u16::try_from(rng.below(4)).unwrap());
            let place = Update::PlaceDirectory { parent, name: entry_name, child, to };
            if mix == Mix::Directories { region_goes(to, rng) } else { None }.unwrap_or(place)
        }
        10 | 11 => {
            let is_empty = |kind: Kind, place: Place| {
                kind == Kind::Directory && view.list(place).is_ok_and(|all| all.is_empty())
            };
            let empty: Vec<_> =
                entries.iter().filter(|(_, _, place, kind)| is_empty(*kind, *place)).collect();
            if empty.is_empty() || rng.chance(20) {
                return Update::Rmdir { parent, name: entry_name, child };
            }
            let (parent, text, child, _) = *rng.pick(&empty);
            Update::Rmdir { parent: *parent, name: name(text), child: *child }
        }
        12 | 13 => Update::Create { parent: directory, name: name(&new), node: node(Kind::File) },
        14 | 15 => {
            let unnamed = view.partitions[&child.partition].nameless().next();
            let unnamed = unnamed.filter(|_| rng.chance(40)).map(|((ino, _), _)| ino);
            let target = Place { ino: unnamed.unwrap_or(child.ino), ..child };
            Update::Link { target, parent: directory, name: name(&new) }
        }
        16 | 17 => Update::Unlink { parent, name: entry_name, child, keep_for },
        _ if mix == Mix::All && kind == Kind::Directory && rng.chance(70) => {
            Update::Create { parent: child, name: name(&new), node: node(Kind::File) }
        }
        _ => random_change(view, rng, child),
    }
}

/// The quotas that a client names, who may not know them.
fn quotas_of(view: &World, update: &Update, rng: &mut Rng) -> Vec<Place> {
    let all = view.entries().into_iter().filter(|_| rng.chance(90)).map(|entry| entry.2);
    let quota = |place: &Place| {
        let named = view.read(&Query::Quota { inode: *place });
        matches!(named, Ok(Answer::Quota(Some(_))))
    };
    let groups = update.partitions();
    all.filter(|place| groups.contains(&place.partition) && quota(place)).collect()
}

/// A quota is set, changed or taken away.
fn random_quota(view: &World, rng: &mut Rng, inode: Place) -> Update {
    let limit = |rng: &mut Rng| rng.chance(60).then(|| rng.below(6));
    let limits = Limits { bytes: limit(rng).map(|n| 7 * n), inodes: limit(rng) };
    let parent = view.lookup(inode, "..").map_or(inode, |(parent, _)| parent);
    let limits = rng.chance(70).then_some(limits);
    Update::SetQuota { inode, parent, limits }
}

/// A change of one inode, or of what a client holds.
fn random_change(view: &World, rng: &mut Rng, inode: Place) -> Update {
    let (client, partition) = (*rng.pick(&CLIENTS), inode.partition);
    let owner = LockOwner { client, owner: rng.below(2) };
    let family = *rng.pick(&[LockFamily::Posix, LockFamily::Flock, LockFamily::Pages]);
    let start = rng.below(20);
    let end = start + rng.below(10);
    match rng.below(24) {
        23 => Update::Mark { partitions: view.partitions.keys().copied().collect() },
        21 | 22 => random_note(view, rng, inode),
        14 | 15 => Update::CreateUnnamed { parent: inode, node: node(Kind::File) },
        16 => {
            let seen = view.attributes(inode).map_or(Timestamp::default(), |of| of.atime);
            let at = Timestamp { seconds: start as i64, nanos: 1 };
            let reads = vec![Access { inode: inode.ino, seen, at }];
            Update::NoteReads { partition, reads }
        }
        17..=20 => random_wait(view, rng, inode),
        12 | 13 => random_quota(view, rng, inode),
        0..=2 => {
            let exclusive = rng.chance(50);
            let lock = Lock { owner, family, start, end, exclusive, pid: 1 };
            Update::Lock { inode, lock, ticket: None }
        }
        3 => Update::Unlock { inode, owner, family, start, end },
        4 => {
            let id = MessageId { client: ME, sequence: rng.below(view.messages + 2) };
            let ino = Ino::made(partition, id); // Often one that is gone, or not there yet.
            Update::Forget { client, partition, inodes: vec![ino, inode.ino] }
        }
        10 => {
            let nameless = view.partitions[&partition].nameless().map(|((ino, _), _)| ino);
            Update::Hold { client, partition, inodes: nameless.chain([inode.ino]).collect() }
        }
        11 => {
            let nameless = view.partitions[&partition].nameless();
            Update::Reap { partition, inodes: nameless.map(|(name, _)| name).collect() }
        }
        5 => Update::Renew { client, partition: inode.partition },
        6 => {
            let partition = &view.partitions[&inode.partition];
            let renewed = partition.leases().find(|(of, _)| *of == client);
            let never = (Stamp(0), MessageId { client, sequence: 0 });
            let renewed = renewed.map_or(never, |(_, renewed)| renewed);
            let inodes = partition.held_by(client).chain([inode.ino]).collect();
            Update::Expire { client, partition: inode.partition, renewed, inodes }
        }
        7 => {
            let changes = Changes { size: Some(start), mode: Some(0o640), ..Changes::default() };
            Update::SetAttributes { inode, changes }
        }
        8 => {
            let value = Bytes::from(vec![1; 5]);
            Update::SetXattr {
                inode,
                name: name("user.x"),
                value,
                mode: XattrMode::Any,
                drops_set_gid: false,
            }
        }
        _ => {
            let data = Data::Inline(Bytes::from(vec![b'x'; 10]));
            let piece = Piece { offset: 0, extent: Extent { len: 10, data } };
            Update::Write { inode, at: WriteAt::End, pieces: vec![piece] }
        }
    }
}

/// Somebody tells what an inode was, perhaps to a partition that has no name of it.
fn random_note(view: &World, rng: &mut Rng, inode: Place) -> Update {
    let above: Vec<GroupId> = view.partitions.keys().copied().collect();
    let (partition, ts) = (*rng.pick(&above), Stamp(rng.below(view.messages + 2)));
    match view.attributes(inode) {
        Ok(of) => {
            let attributes = Attributes { mode: rng.below(0o777) as u16, ..of };
            Update::NoteTop { partition, attributes, ts }
        }
        Err(_) => Update::Renew { client: ME, partition },
    }
}

/// Somebody waits for a lock, leaves, or ends a cycle.
fn random_wait(view: &World, rng: &mut Rng, inode: Place) -> Update {
    let owner = LockOwner { client: *rng.pick(&CLIENTS), owner: rng.below(2) };
    let family = *rng.pick(&[LockFamily::Posix, LockFamily::Flock, LockFamily::Pages]);
    let start = rng.below(20);
    let end = start + rng.below(10);
    let lock = Lock { owner, family, start, end, exclusive: true, pid: 1 };
    let ticket = rng.below(4);
    match rng.below(4) {
        0 => Update::Leave { inode, lock, ticket },
        1 => match cycle_of(&view.waits()) {
            Some(cycle) => Update::Untangle { cycle },
            None => Update::Leave { inode, lock, ticket },
        },
        _ => Update::Lock { inode, lock, ticket: Some(ticket) },
    }
}

/// One order of messages, and what came of it with each decided before the next.
struct Reference {
    messages: Vec<(MessageId, Operation)>,
    world: World,
    outcomes: Outcomes,
    /// By partition and set of messages decided.
    hashes: BTreeMap<(GroupId, u64), u64>,
}

fn reference(seed: u64, steps: u64, mix: Mix) -> Reference {
    let mut rng = Rng(seed);
    let mut world = World::new(3);
    let mut views = VecDeque::from([world.view()]);
    let (mut messages, mut outcomes) = (Vec::new(), Outcomes::new());
    let mut hashes = BTreeMap::new();
    for step in 1..=steps {
        let lag = usize::try_from(rng.below(4).min(rng.below(4))).unwrap();
        let view = &views[views.len() - 1 - lag.min(views.len() - 1)];
        let update = random_update(view, &mut rng, mix);
        let id = MessageId { client: ME, sequence: step };
        let vector = view.partitions[rng.pick(&[GroupId(0), GroupId(1)])].vector().clone();
        let time = Timestamp { seconds: i64::try_from(step).unwrap(), nanos: 0 };
        let quotas = quotas_of(view, &update, &mut rng);
        let operation = Operation { vector, time, quotas, ..world.operation(update) };
        let groups = operation.update.partitions();
        let result = world.submit_as(id, operation.clone());
        outcomes.extend(groups.iter().map(|group| ((id, *group), result.clone())));
        messages.push((id, operation));
        for (group, partition) in &world.partitions {
            hashes.insert((*group, partition.decided()), partition.state_hash());
        }
        world.check();
        views.push_back(world.view());
        if views.len() > 5 {
            views.pop_front();
        }
    }
    Reference { messages, world, outcomes, hashes }
}

/// What a message is ordered by.
type Keys = fn(&Update, MessageId) -> BTreeSet<u64>;

/// What one partition is still to deliver, in the order of timestamps.
struct Queue<'a> {
    keys: &'a [BTreeSet<u64>],
    left: Vec<usize>,
}

impl Queue<'_> {
    /// The next one: any before which none is left that conflicts with it.
    fn next(&mut self, rng: &mut Rng) -> usize {
        let mut at = usize::try_from(rng.below(self.left.len().min(16) as u64)).unwrap();
        let conflict = |a: usize, b: usize| !self.keys[a].is_disjoint(&self.keys[b]);
        while let Some(before) = (0..at).find(|before| conflict(self.left[*before], self.left[at]))
        {
            at = before;
        }
        self.left.remove(at)
    }
}

/// Delivers the same messages, with everything at random times, and in an order that is the common
/// one only for those that have one of the `keys` in common.
fn shuffled(reference: &mut Reference, seed: u64, keys: Keys) -> World {
    let mut rng = Rng(seed);
    let mut world = World::new(3);
    let all = &reference.messages;
    let keys = |(id, operation): &(MessageId, Operation)| {
        let quotas = quota_keys(&operation.quotas);
        keys(&operation.update, *id).into_iter().chain(quotas).collect()
    };
    let keys: Vec<_> = all.iter().map(keys).collect();
    let mut to_deliver: BTreeMap<GroupId, Queue<'_>> = BTreeMap::new();
    for (index, (_, operation)) in all.iter().enumerate() {
        for group in operation.update.partitions() {
            let queue = to_deliver.entry(group).or_insert(Queue { keys: &keys, left: Vec::new() });
            queue.left.push(index);
        }
    }
    let eager = 10 + rng.below(80);
    loop {
        to_deliver.retain(|_, queue| !queue.left.is_empty());
        let groups: Vec<GroupId> = to_deliver.keys().copied().collect();
        let letters = world.letters.len() as u64;
        let touched = if letters > 0 && (groups.is_empty() || rng.chance(eager)) {
            let letter = usize::try_from(rng.below(letters)).unwrap();
            let to = world.letters[letter].to;
            world.hand_over(letter);
            to
        } else if !groups.is_empty() {
            let group = *rng.pick(&groups);
            let index = to_deliver.get_mut(&group).unwrap().next(&mut rng);
            let (id, operation) = reference.messages[index].clone();
            world.deliver(group, id, operation);
            group
        } else {
            return world;
        };
        let partition = world.partitions.get_mut(&touched).unwrap();
        partition.check_invariants();
        let (set, hash) = (partition.decided(), partition.state_hash());
        let known = *reference.hashes.entry((touched, set)).or_insert(hash);
        assert_eq!(hash, known, "state hash of {touched:?}");
        if rng.chance(3) {
            let bytes = postcard::to_allocvec(partition).unwrap();
            let read: Partition = postcard::from_bytes(&bytes).unwrap();
            assert!(read == *partition, "a snapshot reads back");
            *partition = read;
        }
    }
}

fn assert_independent(seed: u64, steps: u64, mix: Mix) {
    assert_independent_with(seed, steps, mix, Update::keys);
}

fn assert_independent_with(seed: u64, steps: u64, mix: Mix, keys: Keys) {
    let mut reference = reference(seed, steps, mix);
    for schedule in 0..4 {
        let world = shuffled(&mut reference, seed ^ (schedule + 1) << 40, keys);
        assert!(world.results == reference.outcomes, "seed {seed}: outcomes differ");
        for (group, partition) in &world.partitions {
            assert!(partition.waiting().is_empty());
            assert_eq!(partition.applied(), partition.delivered());
            let expected = &reference.world.partitions[group];
            assert_eq!(partition, expected, "seed {seed}, schedule {schedule}");
        }
        world.check();
    }
}

/// Fixed seeds, or the one that `SEED` names.
fn each_seed(count: u64, test: impl Fn(u64)) {
    match std::env::var("SEED") {
        Ok(seed) => test(seed.parse().unwrap()),
        Err(_) => (0..count).for_each(test),
    }
}

#[test]
fn the_state_does_not_depend_on_when_votes_arrive() {
    each_seed(300, |seed| assert_independent(seed, 120, Mix::All));
}

#[test]
fn what_clients_hold_does_not_depend_on_when_votes_arrive() {
    each_seed(300, |seed| assert_independent(2_000 + seed, 200, Mix::Leases));
}

/// Mostly renames of directories over all partitions: no cycles, one parent each.
#[test]
fn directories_stay_one_tree() {
    each_seed(200, |seed| assert_independent(1_000 + seed, 150, Mix::Directories));
}

/// The keys of an update without those of these inodes.
fn without(update: &Update, id: MessageId, forgotten: &[Ino]) -> BTreeSet<u64> {
    let mut keys = update.keys(id);
    keys.retain(|key| !forgotten.iter().any(|ino| ino.key() == *key));
    keys
}

/// The key of a client alone.
fn clients(update: &Update) -> BTreeSet<u64> {
    let renew = |client, partition| {
        let id = MessageId { client, sequence: 0 };
        Update::Renew { client, partition }.keys(id)
    };
    match update {
        Update::Lock { inode, lock, .. } => renew(lock.owner.client, inode.partition),
        Update::Hold { client, partition, .. } => renew(*client, *partition),
        Update::Renew { client, partition } => renew(*client, *partition),
        _ => BTreeSet::new(),
    }
}

/// Keys that forget something of names and inodes.
fn forgetful_of_names() -> Vec<(&'static str, Mix, Keys)> {
    vec![
        ("the parent of what is made", Mix::All, |update, id| match update {
            Update::Create { parent, .. } => without(update, id, &[parent.ino]),
            _ => update.keys(id),
        }),
        ("what is made", Mix::All, |update, id| match update {
            Update::Create { parent, .. } => {
                without(update, id, &[Ino::made(parent.partition, id)])
            }
            _ => update.keys(id),
        }),
        ("what loses a name", Mix::All, |update, id| match update {
            Update::Unlink { child, .. } => without(update, id, &[child.ino]),
            _ => update.keys(id),
        }),
        ("of which is noted what it was", Mix::All, |update, id| match update {
            Update::NoteTop { attributes, .. } => without(update, id, &[attributes.place.ino]),
            _ => update.keys(id),
        }),
        ("the directories above", Mix::Directories, |update, id| match update {
            Update::Rename { ancestors, from, to, .. } => {
                let above = ancestors.iter().filter(|place| *place != from && *place != to);
                without(update, id, &above.map(|place| place.ino).collect::<Vec<_>>())
            }
            _ => update.keys(id),
        }),
    ]
}

/// Keys that forget something of what clients hold.
fn forgetful_of_holds() -> Vec<(&'static str, Mix, Keys)> {
    vec![
        ("what is held by who is gone", Mix::Leases, |update, id| match update {
            Update::Expire { inodes, .. } => without(update, id, inodes),
            _ => update.keys(id),
        }),
        ("that a lock begins a lease", Mix::Leases, |update, id| match update {
            Update::Lock { .. } => &update.keys(id) - &clients(update),
            _ => update.keys(id),
        }),
        ("that an open file begins a lease", Mix::Leases, |update, id| match update {
            Update::Hold { .. } => &update.keys(id) - &clients(update),
            _ => update.keys(id),
        }),
        ("what is held", Mix::Leases, |update, id| match update {
            Update::Hold { inodes, .. } => without(update, id, inodes),
            _ => update.keys(id),
        }),
        ("what is closed", Mix::Leases, |update, id| match update {
            Update::Forget { inodes, .. } => without(update, id, inodes),
            _ => update.keys(id),
        }),
        ("whose quota is set", Mix::All, |update, id| match update {
            Update::SetQuota { inode, .. } => without(update, id, &[inode.ino]),
            _ => update.keys(id),
        }),
        ("what is counted", Mix::All, |update, id| match update {
            Update::Count { stretches, .. } => {
                let inodes = stretches.iter().flat_map(|of| of.inodes.clone());
                without(update, id, &inodes.collect::<Vec<_>>())
            }
            _ => update.keys(id),
        }),
        ("where one waits no more", Mix::Leases, |update, id| match update {
            Update::Leave { inode, .. } => without(update, id, &[inode.ino]),
            _ => update.keys(id),
        }),
        ("what is reaped", Mix::Leases, |update, id| match update {
            Update::Reap { inodes, .. } => {
                without(update, id, &inodes.iter().map(|(ino, _)| *ino).collect::<Vec<_>>())
            }
            _ => update.keys(id),
        }),
        ("whose lease is renewed", Mix::Leases, |update, id| match update {
            Update::Renew { .. } => &update.keys(id) - &clients(update),
            _ => update.keys(id),
        }),
    ]
}

/// What the keys leave out must show: each of these forgets one.
#[test]
fn a_key_that_is_forgotten_is_noticed() {
    for (what, mix, keys) in forgetful_of_names().into_iter().chain(forgetful_of_holds()) {
        let noticed = (0..60).find(|seed| {
            let run = || assert_independent_with(3_000 + seed, 150, mix, keys);
            std::panic::catch_unwind(run).is_err()
        });
        assert!(noticed.is_some(), "nobody noticed without {what}");
    }
}

/// What a name leads to, or who may enter a directory, as far as its answer tells of that.
fn told(world: &World, query: &Query) -> String {
    match world.read(query) {
        Ok(Answer::Entry { entry, .. }) => format!("{entry:?}"),
        Ok(Answer::Attributes(of)) if of.kind == Kind::Directory => {
            format!("{:?} {:o} {} {}", of.place, of.mode, of.uid, of.gid)
        }
        Ok(Answer::Attributes(_)) => "no directory".into(),
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("{error:?}"),
    }
}

/// What a read waits for.
type Needs = fn(&Query) -> Vec<u64>;

/// Panics if an update changes the answer to a query that needs none of its keys.
fn assert_needs(seed: u64, mix: Mix, needs: Needs) {
    let (mut rng, mut world) = (Rng(seed), World::new(3));
    let mut directories = BTreeSet::from([Place::ROOT]);
    for _ in 0..100 {
        let update = random_update(&world.view(), &mut rng, mix);
        let found = world.entries().into_iter();
        directories
            .extend(found.filter(|entry| entry.3 == Kind::Directory).map(|(_, _, place, _)| place));
        let id = world.next_id();
        if let Update::Create { parent, node, .. } = &update
            && node.kind == Kind::Directory
        {
            directories.insert(Place { ino: Ino::made(parent.partition, id), ..*parent });
        }
        let queries: Vec<_> = directories
            .iter()
            .flat_map(|at| {
                let names = NAMES.iter().chain(&[".."]);
                let look = |text: &&str| Query::Lookup { parent: *at, name: name(text) };
                names.map(look).chain([Query::Attributes { inode: *at }]).collect::<Vec<_>>()
            })
            .collect();
        let before: Vec<_> = queries.iter().map(|query| told(&world, query)).collect();
        let operation = world.operation(update.clone());
        let keys = update.keys(id);
        let _ = world.submit_as(id, operation); // Also one that is refused may not change anything.
        for (query, before) in queries.iter().zip(before) {
            if !needs(query).iter().any(|key| keys.contains(key)) {
                assert_eq!(told(&world, query), before, "seed {seed}: {query:?} after {update:?}");
            }
        }
    }
}

/// What a read waits for, of a directory's attributes at least.
fn least(query: &Query) -> Vec<u64> {
    query.least_key().map_or_else(|| query.keys(), |key| vec![key])
}

#[test]
fn an_update_changes_no_answer_that_needs_none_of_its_keys() {
    each_seed(40, |seed| {
        assert_needs(4_000 + seed, Mix::All, least);
        assert_needs(5_000 + seed, Mix::Directories, least);
    });
}

/// Each of these waits for too little.
#[test]
fn a_read_that_needs_too_little_is_noticed() {
    let bugs: [(&str, Needs); 3] = [
        ("the name", |query| least(query).into_iter().skip(1).collect()),
        ("the directory", |query| least(query).into_iter().take(1).collect()),
        ("anything", |_| Vec::new()),
    ];
    for (what, needs) in bugs {
        let noticed = (0..60).find(|seed| {
            let run = || assert_needs(6_000 + seed, Mix::Directories, needs);
            std::panic::catch_unwind(run).is_err()
        });
        assert!(noticed.is_some(), "nobody noticed without {what}");
    }
}

#[test]
fn most_kinds_of_updates_both_succeed_and_fail_in_these_runs() {
    let (mut done, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for seed in 0..40 {
        let reference = reference(seed, 120, Mix::All);
        for (id, operation) in &reference.messages {
            let text = format!("{:?}", operation.update);
            let kind = text.split([' ', '{']).next().unwrap().to_string();
            let group = *operation.update.partitions().first().unwrap();
            let several = operation.update.partitions().len() > 1;
            match &reference.outcomes[&(*id, group)] {
                Ok(_) => *done.entry((kind, several)).or_insert(0) += 1,
                Err(error) => *refused.entry(*error).or_insert(0) += 1,
            }
        }
    }
    for kind in ["Link", "Unlink", "Rmdir", "Rename", "PlaceDirectory"] {
        for several in [false, true] {
            let count = done.get(&(kind.to_string(), several)).copied().unwrap_or(0);
            let alone_never = kind == "PlaceDirectory" && !several;
            assert!(count > 3 || alone_never, "{kind} in several partitions {several}: {count}");
        }
    }
    for error in [FsError::Stale, FsError::Invalid, FsError::NotEmpty, FsError::WouldBlock] {
        assert!(refused.contains_key(&error), "{error:?} never happens: {refused:?}");
    }
}

/// The state of all partitions with nothing seen is a tree, too.
#[test]
fn the_first_state_is_one_tree() {
    let world = World::new(3);
    world.check();
    assert!(world.partitions.values().all(|partition| *partition.vector() == Vector::default()));
}
