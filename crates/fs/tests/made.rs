//! What a client makes it holds, if it asks for that.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::swaps::{self, Here};
use common::{Rng, World, name, node, top};
use meridian_core::{ClientId, GroupId, MessageId};
use meridian_fs::batch::{Kept, Part};
use meridian_fs::mutation::Mutation;
use meridian_fs::operation::{Changes, NewNode, WriteAt};
use meridian_fs::settled::Made;
use meridian_fs::{
    Attributes, CapStep, Done, FsError, Ino, Kind, Operation, Place, Subject, Timestamp, Update,
};

const US: GroupId = GroupId(1);
const A: ClientId = ClientId(21);
const B: ClientId = ClientId(22);
const NAMES: [&str; 3] = ["a", "b", "c"];
/// So many files the client keeps back, each under a number of its own.
const CHOSEN: u64 = 5;

fn caps(client: ClientId, step: CapStep) -> Update {
    Update::Caps { client, partition: US, step }
}

fn chosen(number: u64) -> Ino {
    Ino::chosen(US, A, number)
}

fn file(parent: Place, text: &str, number: u64) -> Box<Made> {
    let time = Timestamp::default();
    Box::new(Made {
        parent,
        name: name(text),
        node: NewNode::new(Kind::File, 0o640),
        ino: chosen(number),
        made: time,
        at: WriteAt::Offset(0),
        pieces: Vec::new(),
        written: time,
        settings: Vec::new(),
    })
}

fn part(kept: Kept) -> Part {
    Part { time: Timestamp::default(), kept }
}

fn unlink(parent: Place, text: &str, number: u64) -> Part {
    let child = Place { ino: chosen(number), ..parent };
    part(Kept::Unlink { parent, name: name(text), child })
}

fn create(parent: Place, text: &str, kind: Kind) -> Update {
    Update::Create { parent, name: name(text), node: node(kind) }
}

/// What A holds after that, which it sends as one that keeps what it makes.
fn keep(world: &mut World, update: Update) -> (Result<Done, FsError>, Vec<Ino>) {
    let id = world.next_id();
    let operation = Operation { by: A, keeps: true, ..world.operation(update) };
    let result = world.submit_as(id, operation);
    world.check();
    let us = &world.partitions[&US];
    assert_eq!(us.kept(A), us.kept_by(A).count());
    (result, us.kept_by(A).collect())
}

fn is_held_back(world: &World, by: ClientId, ino: Ino) -> bool {
    let rank = world.partitions[&US].holders().find_map(|(_, lease)| lease);
    let rank = rank.map(|(ts, id)| (meridian_core::Stamp(ts.0 + 1_000_000), id)).unwrap();
    world.partitions[&US].holds_back(&Subject { by, inodes: vec![ino] }, rank)
}

#[test]
fn a_client_holds_what_it_makes_and_others_wait_for_it() {
    let mut world = World::new(2);
    keep(&mut world, caps(A, CapStep::Renew)).0.unwrap();
    let mut held = Vec::new();
    for kind in [Kind::Directory, Kind::File, Kind::Symlink] {
        let (done, now) = keep(&mut world, create(top(1), &format!("{kind:?}"), kind));
        let Ok(Done::Held(made)) = done else { panic!("{done:?}") };
        held.push(made.place.ino);
        assert!(now.iter().all(|ino| held.contains(ino)) && now.len() == held.len());
    }
    let (done, now) = keep(&mut world, Update::Make(file(top(1), "made", 1)));
    assert!(matches!(done, Ok(Done::Made(made)) if now.contains(&made.attributes.place.ino)));
    assert_eq!(world.partitions[&US].caps(), 5, "one is the lease");
    let inode = Place { ino: chosen(1), partition: US };
    assert!(!is_held_back(&world, B, inode.ino), "nobody has changed it");
    let changes = Changes { mode: Some(0o600), ..Changes::default() };
    world.submit(Update::SetAttributes { inode, changes }).unwrap();
    assert!(is_held_back(&world, B, inode.ino) && !is_held_back(&world, A, inode.ino));
    keep(&mut world, caps(A, CapStep::Release(vec![inode.ino]))).0.unwrap();
    assert!(!is_held_back(&world, B, inode.ino));
}

#[test]
fn of_a_batch_it_holds_what_is_there_after_it() {
    let mut world = World::new(1);
    let directory = world.create(top(1), "d", Kind::Directory).unwrap();
    let inodes = vec![directory.ino];
    for step in [CapStep::Renew, CapStep::Grant(inodes.clone()), CapStep::GrantExclusive(inodes)] {
        keep(&mut world, caps(A, step)).0.unwrap();
    }
    let make = |text, number| part(Kept::Make(file(directory, text, number)));
    let parts = vec![make("a", 1), make("b", 2), unlink(directory, "a", 1), make("b", 3)];
    let (done, held) = keep(&mut world, Update::Batch(parts));
    let Ok(whole @ Done::Batch { .. }) = done else { panic!("{done:?}") };
    let mut expected = [directory.ino, chosen(2)];
    expected.sort();
    assert_eq!(held, expected, "what has no name any more it does not");
    let (Done::Batch { done, refused }, made) = whole.apart() else { panic!("a batch") };
    let is_written = |done: &Done| matches!(done, Done::Written { .. });
    assert_eq!(done.iter().map(is_written).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(refused, Some(FsError::Exists));
    let inos: Vec<_> = made.iter().map(|of: &Attributes| of.place.ino).collect();
    assert_eq!(inos, [chosen(2)]);
}

#[test]
fn nothing_is_held_that_was_not_asked_for_or_not_made() {
    let mut world = World::new(1);
    let file_there = world.create(top(1), "f", Kind::File).unwrap();
    let made = world.submit(Update::Make(file(top(1), "m", 1))).unwrap();
    assert!(matches!(made, Done::Written { .. }));
    let (refused, held) = keep(&mut world, create(top(1), "f", Kind::File));
    assert_eq!((refused, held), (Err(FsError::Exists), Vec::new()));
    let changes = Changes { mode: Some(0o600), ..Changes::default() };
    let change = Update::SetAttributes { inode: file_there, changes };
    let (changed, held) = keep(&mut world, change);
    assert!(matches!(changed, Ok(Done::Attributes(_))) && held.is_empty());
    world.partitions.values_mut().for_each(|of| of.plant(Mutation::GrantsUnnoted));
    let (made, held) = keep(&mut world, create(top(1), "g", Kind::File));
    assert!(matches!(made, Ok(Done::Held(_))) && held.is_empty(), "as it is planted");
}

/// Something of what clients do, one of which holds what it makes.
fn random(rng: &mut Rng, here: &Here) -> (ClientId, bool, Update) {
    let by = if rng.chance(70) { A } else { B };
    let (parent, text) = (here.directory, *rng.pick(&NAMES));
    let (number, other) = (1 + rng.below(CHOSEN), 1 + rng.below(CHOSEN));
    let last = Ino::made(US, here.last);
    let some = |rng: &mut Rng| vec![*rng.pick(&[chosen(1), chosen(number), last, parent.ino])];
    let renewed = rng.chance(80).then(|| here.ranks.last().copied()).flatten();
    let update = match rng.below(12) {
        0 => caps(by, CapStep::Renew),
        1 => caps(by, CapStep::Grant(some(rng))),
        2 => caps(by, CapStep::Grant(vec![parent.ino])),
        3 => caps(by, CapStep::GrantExclusive(vec![parent.ino])),
        4 => caps(A, CapStep::Release(some(rng))),
        5 => caps(A, CapStep::Expire { renewed, inodes: some(rng) }),
        6 => caps(by, CapStep::ReleaseExclusive(vec![parent.ino])),
        7 => create(parent, text, *rng.pick(&[Kind::File, Kind::Directory])),
        8 => Update::Make(file(parent, text, number)),
        9 => {
            let (third, gone) = (*rng.pick(&NAMES), *rng.pick(&NAMES));
            let made = part(Kept::Make(file(parent, text, number)));
            let other = part(Kept::Make(file(parent, third, other)));
            Update::Batch(vec![made, unlink(parent, gone, number), other])
        }
        10 => {
            let child = Place { ino: chosen(number), ..parent };
            Update::Unlink { parent, name: name(text), child, keep_for: None }
        }
        _ => {
            let inode = Place { ino: some(rng)[0], ..parent };
            let changes = Changes { uid: Some(rng.below(3) as u32), ..Changes::default() };
            Update::SetAttributes { inode, changes }
        }
    };
    (by, rng.chance(80), update)
}

fn keys(operation: &Operation, id: MessageId) -> Vec<u64> {
    let holding = operation.update.holding_keys(operation.by, id);
    let own = operation.update.keys(id).into_iter();
    own.chain(holding.filter(|_| operation.keeps)).collect()
}

#[test]
fn what_has_no_common_key_commutes() {
    let runs = (0..400).map(|seed| swaps::swap(seed, "Made", random, keys));
    let (swapped, made) = runs.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    assert!(swapped > 500 && made > 200, "{swapped} swapped, {made} made");
}

/// A release may come before the grant, or after it.
#[test]
fn what_is_made_needs_the_key_of_its_capability() {
    let bare =
        |operation: &Operation, id: MessageId| operation.update.keys(id).into_iter().collect();
    let is_found =
        |seed| std::panic::catch_unwind(|| swaps::swap(seed, "Made", random, bare)).is_err();
    assert!((0..400).any(is_found));
}
