//! What clients kept back and send together is as if each part came alone, up to the first that is
//! refused.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{Rng, World, name, top};
use meridian_core::{ClientId, GroupId};
use meridian_fs::batch::{BATCH_MAX, Kept, Part, Written};
use meridian_fs::mutation::Mutation;
use meridian_fs::operation::{Changes, NewNode, Piece, WriteAt};
use meridian_fs::quota::Limits;
use meridian_fs::settled::Made;
use meridian_fs::types::Data;
use meridian_fs::{
    CapStep, Done, Extent, FsError, Ino, Kind, Operation, Place, Rights, Setting, Timestamp, Update,
};

const US: GroupId = GroupId(1);
const A: ClientId = ClientId(21);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

fn submit(world: &mut World, time: Timestamp, update: Update) -> Result<Done, FsError> {
    let id = world.next_id();
    let operation = Operation { time, by: A, ..world.operation(update) };
    world.submit_as(id, operation)
}

/// The client holds that directory exclusively.
fn hold(world: &mut World, directory: Place) {
    let inodes = || vec![directory.ino];
    let steps = [CapStep::Renew, CapStep::Grant(inodes()), CapStep::GrantExclusive(inodes())];
    for step in steps {
        submit(world, at(1), Update::Caps { client: A, partition: US, step }).unwrap();
    }
}

fn make(parent: Place, text: &str, number: u64) -> Kept {
    let data = Data::Inline(Bytes::from_static(b"bytes"));
    Kept::Make(Box::new(Made {
        parent,
        name: name(text),
        node: NewNode::new(Kind::File, 0o640),
        ino: Ino::chosen(US, A, number),
        made: at(1),
        at: WriteAt::Offset(0),
        pieces: vec![Piece { offset: 0, extent: Extent { len: 5, data } }],
        written: at(2),
        settings: Vec::new(),
    }))
}

fn unlink(parent: Place, text: &str, child: Place) -> Kept {
    Kept::Unlink { parent, name: name(text), child }
}

fn write(parent: Place, text: &str, inode: Place) -> Kept {
    let data = Data::Inline(Bytes::from_static(b"more"));
    let pieces = vec![Piece { offset: 0, extent: Extent { len: 4, data } }];
    let changes = Changes { mode: Some(0o600), ..Changes::default() };
    let (at, written, settings) = (WriteAt::End, at(3), vec![Setting::Attributes(changes)]);
    let name = name(text);
    Kept::Write(Box::new(Written { parent, name, inode, at, pieces, written, settings }))
}

fn part(seconds: i64, kept: Kept) -> Part {
    Part { time: at(seconds), kept }
}

/// All that there is in two directories.
fn shown(world: &World, directories: [Place; 2]) -> Vec<String> {
    let mut all = Vec::new();
    for directory in directories {
        all.push(format!("{:?}", world.attributes(directory)));
        for (name, place, kind) in world.list(directory).unwrap() {
            let attributes = world.attributes(place);
            let contents = (kind == Kind::File).then(|| world.contents(place));
            all.push(format!("{name} {attributes:?} {contents:?}"));
        }
    }
    all
}

/// Compares a batch with its parts, sent one by one until one is refused; how many were done, and
/// whether one was refused.
fn compare(seed: u64, mutation: Mutation) -> (usize, bool) {
    let mut rng = Rng(seed);
    let mut world = World::new(1);
    let directories = ["d", "e"].map(|text| world.create(top(1), text, Kind::Directory).unwrap());
    let mut files = Vec::new();
    for (number, text) in (0..).zip(NAMES) {
        let parent = *rng.pick(&directories);
        let kind = if rng.chance(90) { Kind::File } else { Kind::Directory };
        files.push((parent, text, world.create(parent, text, kind).unwrap()));
        if rng.chance(30) {
            let (made, text) = (make(parent, "twice", number), "twice");
            let made = made.into_update();
            let _ = submit(&mut world, at(5), made);
            let child = Place { ino: Ino::chosen(US, A, number), partition: US };
            files.push((parent, text, child));
        }
    }
    directories.into_iter().for_each(|directory| hold(&mut world, directory));
    let mut parts = Vec::new();
    for number in 0..=rng.below(8) {
        let kept = if rng.chance(60) {
            let (parent, text, child) = *rng.pick(&files);
            if rng.chance(60) { unlink(parent, text, child) } else { write(parent, text, child) }
        } else {
            let (parent, text) = (*rng.pick(&directories), *rng.pick(&["x", "y", "z", "a", "b"]));
            let made = make(parent, text, 100 + number);
            files.push((parent, text, made.child()));
            made
        };
        parts.push(part(10 + number as i64, kept));
    }
    let mut other = world.view();
    let mut alone = Vec::new();
    let mut refusal = None;
    for Part { time, kept } in parts.clone() {
        match submit(&mut other, time, kept.into_update()) {
            Ok(done) => alone.push(done),
            Err(error) => {
                refusal = Some(error);
                break;
            }
        }
    }
    world.partitions.values_mut().for_each(|partition| partition.plant(mutation));
    let count = alone.len();
    let result = submit(&mut world, at(30), Update::Batch(parts.clone()));
    assert_eq!(result, Ok(Done::Batch { done: alone, refused: refusal }));
    assert_eq!(shown(&world, directories), shown(&other, directories), "{parts:?}");
    world.check();
    (count, refusal.is_some())
}

#[test]
fn a_batch_is_its_parts_up_to_the_first_that_is_refused() {
    let ends: Vec<_> = (0..400).map(|seed| compare(seed, Mutation::Correct)).collect();
    let whole = ends.iter().filter(|(count, refused)| *count > 1 && !refused).count();
    let broken = ends.iter().filter(|(count, refused)| *count > 0 && *refused).count();
    assert!(whole > 20 && broken > 50, "{whole} and {broken}: the test does not test");
}

#[test]
fn one_that_goes_on_after_a_refusal_is_found() {
    let is_found =
        |seed| std::panic::catch_unwind(|| compare(seed, Mutation::PassesRefused)).is_err();
    assert!((0..400).any(is_found));
}

#[test]
fn what_may_not_come_in_a_batch_is_refused() {
    let mut world = World::new(2);
    let directory = world.create(top(1), "d", Kind::Directory).unwrap();
    hold(&mut world, directory);
    let far = world.create(top(2), "f", Kind::File).unwrap();
    let mut number = 0;
    let mut refused = |world: &mut World, kept: Kept| {
        number += 1;
        let parts = vec![part(9, make(directory, "before", number)), part(9, kept)];
        let result = submit(world, at(9), Update::Batch(parts));
        let Ok(Done::Batch { done, refused }) = result else { panic!("{result:?}") };
        assert_eq!(done.len(), 1);
        let child = world.lookup(directory, "before").unwrap().0;
        submit(world, at(9), unlink(directory, "before", child).into_update()).unwrap();
        world.check();
        refused.expect("it is refused")
    };
    assert_eq!(refused(&mut world, unlink(directory, "f", far)), FsError::Invalid);
    assert_eq!(refused(&mut world, make(top(2), "x", 90)), FsError::Invalid);
    assert_eq!(refused(&mut world, unlink(top(1), "d", directory)), FsError::IsDirectory);
    let limited = world.create(top(1), "q", Kind::Directory).unwrap();
    let limits = Some(Limits { bytes: None, inodes: Some(1) });
    submit(&mut world, at(9), Update::SetQuota { inode: limited, parent: top(1), limits }).unwrap();
    let error = refused(&mut world, make(limited, "x", 91));
    assert_eq!(error, FsError::UnnamedQuota { quota: limited }, "it counts, so it comes alone");
    let many = (0..=BATCH_MAX as u64).map(|number| part(9, make(directory, "m", number))).collect();
    assert_eq!(submit(&mut world, at(9), Update::Batch(many)), Err(FsError::Invalid));
}

/// Another may have written to it since.
#[test]
fn nothing_goes_from_or_comes_to_a_directory_that_is_not_held_any_more() {
    let ended = |kept: fn(Place, &str, Place) -> Kept, mutation| {
        let mut world = World::new(1);
        let directory = world.create(top(1), "d", Kind::Directory).unwrap();
        let file = world.create(directory, "f", Kind::File).unwrap();
        hold(&mut world, directory);
        world.partitions.values_mut().for_each(|partition| partition.plant(mutation));
        let step = CapStep::ReleaseExclusive(vec![directory.ino]);
        submit(&mut world, at(2), Update::Caps { client: A, partition: US, step }).unwrap();
        let parts = vec![part(9, kept(directory, "f", file))];
        submit(&mut world, at(9), Update::Batch(parts)).unwrap()
    };
    let refused = Done::Batch { done: Vec::new(), refused: Some(FsError::Stale) };
    for kept in [unlink, write] {
        assert_eq!(ended(kept, Mutation::Correct), refused);
        assert_ne!(ended(kept, Mutation::RemovesUnheld), refused, "the test does not test");
    }
}

/// Who has a grant keeps nothing back: a batch sets what its client may not set.
#[test]
fn clients_with_a_grant_send_no_batches() {
    let mut world = World::new(1);
    let directory = world.create(top(1), "d", Kind::Directory).unwrap();
    let rights = Rights { root: false, ..Rights::default() };
    let id = world.next_id();
    let update = Update::Batch(vec![part(9, make(directory, "x", 1))]);
    let operation = Operation { rights: Some(rights), ..world.operation(update) };
    assert_eq!(world.submit_as(id, operation), Err(FsError::NotPermitted));
}
