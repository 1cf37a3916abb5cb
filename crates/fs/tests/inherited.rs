//! The partition of a group that was lost: what its heirs make of updates, one rule each.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{World, name, node, regions, rename, top};
use meridian_core::{GroupId, MessageId, Stamp};
use meridian_fs::{
    Done, Effect, FsError, Kind, Operation, Partition, Place, Timestamp, Update, Vote,
};

const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);

fn make(world: &mut World, parent: Place, text: &str, kind: Kind) -> Place {
    let update = Update::Create { parent, name: name(text), node: node(kind) };
    match world.submit(update).unwrap() {
        Done::Attributes(made) => made.place,
        other => panic!("{other:?}"),
    }
}

/// What heirs of us begin with.
fn heir(votes: impl IntoIterator<Item = (MessageId, Vote)>) -> Partition {
    let mut partition = Partition::new(US, regions(3), Timestamp::default());
    partition.inherit(votes);
    partition
}

fn loses_us(world: &mut World) {
    world.partitions.insert(US, heir([]));
}

fn unlink(parent: Place, text: &str, child: Place) -> Update {
    Update::Unlink { parent, name: name(text), child, keep_for: None }
}

#[test]
fn names_that_lead_to_what_is_lost_can_be_removed_and_nothing_else_be_done() {
    let mut world = World::new(3);
    let file = make(&mut world, top(1), "file", Kind::File);
    let full = make(&mut world, top(1), "full", Kind::Directory);
    make(&mut world, full, "in it", Kind::File);
    let other = make(&mut world, top(2), "other", Kind::File);
    world.submit(rename((top(1), "file"), (top(2), "file"), file)).unwrap();
    world.submit(rename((top(1), "full"), (top(2), "full"), full)).unwrap();
    loses_us(&mut world);
    assert_eq!(world.attributes(file), Err(FsError::Gone));
    let made = Update::Create { parent: full, name: name("new"), node: node(Kind::File) };
    let linked = Update::Link { target: file, parent: top(2), name: name("linked") };
    let into = Update::Link { target: other, parent: full, name: name("linked") };
    let renamed = rename((top(2), "file"), (top(2), "renamed"), file);
    let comes = rename((top(2), "other"), (full, "other"), other);
    assert_eq!(world.submit(made), Err(FsError::NotFound), "as in a directory that was removed");
    for update in [linked, into, renamed, comes] {
        assert_eq!(world.submit(update.clone()), Err(FsError::Gone), "{update:?}");
    }
    assert_eq!(world.submit(unlink(top(2), "file", file)), Ok(Done::Nothing));
    let rmdir = Update::Rmdir { parent: top(2), name: name("full"), child: full };
    assert_eq!(world.submit(rmdir), Ok(Done::Nothing));
    assert_eq!(world.list(top(2)).unwrap().len(), 1, "what is not lost is there");
    let goes = Update::RemoveRegion { partition: US, name: name("us") };
    assert_eq!(world.submit(goes), Ok(Done::Nothing));
    assert_eq!(world.lookup(Place::ROOT, "us"), Err(FsError::NotFound));
    world.partitions[&US].check_invariants();
}

/// An update of us and eu that us has voted on, and its vote.
fn voted(world: &mut World) -> (MessageId, Operation, Vote) {
    let file = make(world, top(1), "file", Kind::File);
    let (id, update) = (world.next_id(), rename((top(1), "file"), (top(2), "file"), file));
    let operation = world.operation(update);
    world.deliver(US, id, operation.clone());
    let letter = world.letters.iter().position(|letter| letter.from == US).unwrap();
    let vote = world.letters[letter].vote.clone();
    assert!(vote.result.is_ok());
    (id, operation, vote)
}

#[test]
fn a_vote_that_somebody_has_heard_is_given_again() {
    for heard in [true, false] {
        let mut world = World::new(3);
        let (id, operation, vote) = voted(&mut world);
        let us = world.letters.swap_remove(0);
        world.partitions.insert(US, heir(heard.then_some((us.id, us.vote))));
        assert_eq!(world.partitions[&US].has_inherited(id), heard);
        world.deliver(US, id, operation.clone());
        let again = world.partitions[&US].own_vote(id).unwrap();
        assert_eq!(again == &vote, heard);
        world.deliver(EU, id, operation);
        while !world.letters.is_empty() {
            world.hand_over(0);
        }
        let result = |group| world.results[&(id, group)].clone();
        let expected = if heard { Ok(Done::Nothing) } else { Err(FsError::Gone) };
        assert_eq!([result(US), result(EU)], [expected.clone(), expected]);
        assert_eq!(world.lookup(top(2), "file").is_ok(), heard);
    }
}

/// All who have the votes of others have ended the message and forgotten them.
#[test]
fn what_all_others_have_ended_is_ended_and_the_state_is_the_same() {
    let mut world = World::new(3);
    let (id, operation, vote) = voted(&mut world);
    let next = MessageId { sequence: id.sequence + 1, ..id };
    let mut early = heir([(id, vote)]);
    let mut late = early.clone();
    let eu = world.partitions.get_mut(&EU).unwrap();
    let mut said = Vec::new();
    eu.deliver(id, Stamp(id.sequence), operation.clone(), &mut said);
    let Some(Effect::Vote { vote: of_eu, .. }) = said.first() else { panic!("{said:?}") };
    for heir in [&mut early, &mut late] {
        let mut out = Vec::new();
        heir.deliver(id, Stamp(id.sequence), operation.clone(), &mut out);
        heir.deliver(next, Stamp(next.sequence), operation.clone(), &mut out);
        assert_eq!((heir.waiting().len(), heir.own_vote(next)), (2, None));
    }
    early.vote(id, EU, of_eu.clone(), &mut Vec::new());
    let mut out = Vec::new();
    late.end_inherited(id, &mut out);
    let ended = |effect: &Effect| match effect {
        Effect::Done { result, id: of, .. } => (*of, result) == (id, &Err(FsError::Expired)),
        _ => false,
    };
    assert!(out.iter().any(ended), "{out:?}");
    assert!(late.own_vote(next).is_some(), "the next one goes on");
    assert_eq!(late.own_vote(id), early.own_vote(id));
    for heir in [&early, &late] {
        heir.check_invariants();
        assert!(!heir.is_waiting(id) && heir.is_waiting(next));
    }
    assert_eq!((early.decided(), early.state_hash()), (late.decided(), late.state_hash()));
    assert_eq!(early.vector(), late.vector());
    late.end_inherited(id, &mut out);
    let mut whole = world.partitions[&EU].clone();
    whole.end_inherited(id, &mut out);
    assert!(whole.is_waiting(id), "only heirs end what others have ended");
}
