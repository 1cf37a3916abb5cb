//! Directories that are held exclusively, and files that come with all that they have.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::swaps::{self, Here};
use common::{Rng, World, name, node, top};
use meridian_core::{ClientId, GroupId, MessageId};
use meridian_fs::batch::{Kept, Part, Written};
use meridian_fs::mutation::Mutation;
use meridian_fs::operation::{Changes, NewNode, Piece, WriteAt};
use meridian_fs::settled::Made;
use meridian_fs::types::{Data, Rank};
use meridian_fs::{
    Answer, CapStep, Done, Extent, FsError, Ino, Kind, Operation, Place, Query, Setting, Timestamp,
    Update,
};

const US: GroupId = GroupId(1);
const A: ClientId = ClientId(21);
const B: ClientId = ClientId(22);
const NAMES: [&str; 3] = ["a", "b", "c"];

fn caps(client: ClientId, step: CapStep) -> Update {
    Update::Caps { client, partition: US, step }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

fn submit(world: &mut World, by: ClientId, update: Update) -> Result<Done, FsError> {
    let id = world.next_id();
    let operation = Operation { by, ..world.operation(update) };
    world.submit_as(id, operation)
}

fn pieces(bytes: &'static [u8]) -> Vec<Piece> {
    let data = Data::Inline(Bytes::from_static(bytes));
    vec![Piece { offset: 0, extent: Extent { len: bytes.len() as u32, data } }]
}

fn made(parent: Place, text: &str, number: u64) -> Made {
    Made {
        parent,
        name: name(text),
        node: NewNode { uid: 5, gid: 6, umask: 0o027, ..NewNode::new(Kind::File, 0o666) },
        ino: Ino::chosen(US, A, number),
        made: at(1),
        at: WriteAt::Offset(0),
        pieces: Vec::new(),
        written: at(1),
        settings: Vec::new(),
    }
}

fn make(made: Made) -> Update {
    Update::Make(Box::new(made))
}

/// A directory that A holds exclusively.
fn world() -> (World, Place) {
    let mut world = World::new(2);
    let directory = world.create(top(1), "d", Kind::Directory).unwrap();
    let inodes = vec![directory.ino];
    submit(&mut world, A, caps(A, CapStep::Renew)).unwrap();
    submit(&mut world, A, caps(A, CapStep::Grant(inodes.clone()))).unwrap();
    let granted = submit(&mut world, A, caps(A, CapStep::GrantExclusive(inodes.clone())));
    assert_eq!(granted, Ok(Done::Granted(inodes)));
    (world, directory)
}

#[test]
fn others_are_refused_until_it_is_let_go() {
    let (mut world, directory) = world();
    let create = || Update::Create { parent: directory, name: name("x"), node: node(Kind::File) };
    let changes = Changes { mode: Some(0o700), ..Changes::default() };
    let change = Update::SetAttributes { inode: directory, changes };
    for update in [create(), change, make(made(directory, "y", 1))] {
        assert_eq!(submit(&mut world, B, update), Err(FsError::Held));
    }
    let rmdir = Update::Rmdir { parent: top(1), name: name("d"), child: directory };
    assert_eq!(submit(&mut world, B, rmdir), Err(FsError::Held));
    let other = world.create(top(2), "o", Kind::File).unwrap();
    let link = Update::Link { target: other, parent: directory, name: name("l") };
    assert_eq!(submit(&mut world, B, link), Err(FsError::Held), "of two partitions, too");
    let granted = submit(&mut world, B, caps(B, CapStep::Grant(vec![directory.ino])));
    assert_eq!(granted, Ok(Done::Granted(Vec::new())));
    assert!(submit(&mut world, A, create()).is_ok(), "its holder goes on");
    let recall = caps(B, CapStep::Recall(vec![directory.ino]));
    submit(&mut world, B, recall.clone()).unwrap();
    let recalled: Vec<_> = world.partitions[&US].recalled(A).collect();
    assert_eq!(recalled, [directory.ino]);
    submit(&mut world, A, make(made(directory, "y", 1))).unwrap();
    let release = caps(A, CapStep::ReleaseExclusive(vec![directory.ino]));
    submit(&mut world, A, release).unwrap();
    let taken = make(made(directory, "y", 2));
    assert_eq!(submit(&mut world, B, taken), Err(FsError::Exists));
    world.check();
}

#[test]
fn others_are_told_nothing_of_it() {
    let (world, directory) = world();
    let us = &world.partitions[&US];
    let (parent, x) = (directory, name("x"));
    let queries = [
        Query::Lookup { parent, name: x },
        Query::Attributes { inode: directory },
        Query::Directory { inode: directory, after: Bytes::new(), limit: 9 },
    ];
    for query in &queries {
        assert_eq!(us.read_as(query, B, None), Err(FsError::Held), "{query:?}");
        assert_ne!(us.read_as(query, A, None), Err(FsError::Held), "{query:?}");
    }
    let above = Query::Lookup { parent: top(1), name: name("d") };
    let shown = |by| match us.read_as(&above, by, None) {
        Ok(Answer::Entry { attributes, .. }) => attributes.is_some(),
        other => panic!("{other:?}"),
    };
    assert_eq!((shown(A), shown(B)), (true, false), "its times may be others by now");
    let mut planted = us.clone();
    planted.plant(Mutation::IgnoresExclusive);
    assert!(planted.read_as(&queries[1], B, None).is_ok());
}

#[test]
fn what_cannot_be_held_exclusively() {
    let mut world = World::new(1);
    let file = world.create(top(1), "f", Kind::File).unwrap();
    let taken = world.create(top(1), "t", Kind::Directory).unwrap();
    let inodes = vec![top(1).ino, file.ino, taken.ino, Ino(99)];
    submit(&mut world, A, caps(A, CapStep::Grant(inodes.clone()))).unwrap();
    submit(&mut world, B, caps(B, CapStep::Grant(vec![taken.ino]))).unwrap();
    submit(&mut world, B, caps(B, CapStep::GrantExclusive(vec![taken.ino]))).unwrap();
    let granted = submit(&mut world, A, caps(A, CapStep::GrantExclusive(inodes)));
    assert_eq!(granted, Ok(Done::Granted(Vec::new())));
}

/// As [`Update::Create`] and [`Update::Settle`].
#[test]
fn a_file_is_made_with_all_that_it_has() {
    let (mut world, directory) = world();
    let mode = Setting::Attributes(Changes { mode: Some(0o751), ..Changes::default() });
    let settings = vec![mode];
    let whole =
        Made { pieces: pieces(b"data"), written: at(2), settings, ..made(directory, "y", 1) };
    let done = submit(&mut world, A, make(whole.clone())).unwrap();
    let Done::Written { attributes, .. } = done else { panic!("{done:?}") };
    assert_eq!(world.attributes(whole.place()), Ok(attributes));
    let times = (attributes.btime, attributes.mtime);
    assert_eq!((times, attributes.mode, attributes.size), ((at(1), at(2)), 0o751, 4));
    assert_eq!(world.contents(whole.place()).unwrap(), b"data");
    assert_eq!(world.lookup(directory, "y").unwrap().0, whole.place());
    for (text, ino) in [("y", Ino::chosen(US, A, 2)), ("z", whole.ino)] {
        let again = Made { name: name(text), ino, ..whole.clone() };
        let refused = submit(&mut world, A, make(again)).unwrap_err();
        assert!(matches!(refused, FsError::Exists | FsError::Stale), "{refused:?}");
    }
    let strange = [
        Made { ino: Ino::chosen(GroupId(2), A, 3), ..made(directory, "z", 3) },
        Made { ino: Ino::top(US), ..made(directory, "z", 3) },
        Made { node: node(Kind::Directory), ..made(directory, "z", 3) },
        Made { name: name("a/b"), ..made(directory, "z", 3) },
    ];
    for strange in strange {
        assert_eq!(submit(&mut world, A, make(strange)), Err(FsError::Invalid));
    }
    world.check();
}

#[test]
fn a_directory_hands_down_to_what_was_kept_back() {
    let (mut world, directory) = world();
    let changes = Changes { mode: Some(0o2775), gid: Some(77), ..Changes::default() };
    submit(&mut world, A, Update::SetAttributes { inode: directory, changes }).unwrap();
    let new = made(directory, "y", 1);
    let above = world.attributes(directory).unwrap();
    let told = new.node.attributes_in(&above, new.place(), new.made).unwrap();
    let id = world.next_id();
    let operation = Operation { by: A, ..world.operation(make(new.clone())) };
    world.submit_as(id, Operation { time: at(1), ..operation }).unwrap();
    assert_eq!(world.attributes(new.place()), Ok(told), "as its client has shown it");
    assert_eq!(told.gid, 77);
}

/// Something of what clients do with one directory.
fn random(rng: &mut Rng, directory: Place, ranks: &[Rank]) -> (ClientId, Update) {
    let (by, other) = if rng.chance(50) { (A, B) } else { (B, A) };
    let text = *rng.pick(&NAMES);
    let inodes = vec![directory.ino];
    let renewed = rng.chance(80).then(|| ranks.last().copied()).flatten();
    let update = match rng.below(13) {
        0 => caps(by, CapStep::Renew),
        1 => caps(by, CapStep::Grant(inodes)),
        2 | 3 => caps(by, CapStep::GrantExclusive(inodes)),
        4 => caps(by, CapStep::Release(inodes)),
        5 => caps(by, CapStep::ReleaseExclusive(inodes)),
        6 => caps(by, CapStep::Recall(inodes)),
        7 => caps(other, CapStep::Expire { renewed, inodes }),
        8 => caps(other, CapStep::ExpireExclusive { renewed, inodes }),
        9 => Update::Create { parent: directory, name: name(text), node: node(Kind::File) },
        10 => make(made(directory, text, rng.below(9))),
        11 => {
            let (child, other) = (made(directory, text, rng.below(9)), *rng.pick(&NAMES));
            let child = child.place();
            let unlink = Kept::Unlink { parent: directory, name: name(text), child };
            let Made { parent, name, at: end, pieces, written, settings, .. } =
                made(directory, other, rng.below(9));
            let inode = made(directory, text, rng.below(9)).place();
            let written = Written { parent, name, inode, at: end, pieces, written, settings };
            let write = Kept::Write(Box::new(written));
            let make = Kept::Make(Box::new(made(directory, other, rng.below(9))));
            let part = |kept| Part { time: at(3), kept };
            let last = if rng.chance(50) { make } else { write };
            Update::Batch([unlink, last].map(part).into())
        }
        _ => {
            let changes = Changes { uid: Some(rng.below(3) as u32), ..Changes::default() };
            Update::SetAttributes { inode: directory, changes }
        }
    };
    (by, update)
}

/// See [`swaps::swap`].
fn swap(seed: u64, keys: impl Fn(&Update, MessageId) -> Vec<u64>) -> (usize, usize) {
    let draw = |rng: &mut Rng, here: &Here| {
        let (by, update) = random(rng, here.directory, &here.ranks);
        (by, false, update)
    };
    swaps::swap(seed, "Held", draw, |operation, id| keys(&operation.update, id))
}

#[test]
fn what_has_no_common_key_commutes() {
    let runs = (0..400).map(|seed| swap(seed, |update, id| update.keys(id).into_iter().collect()));
    let (swapped, held) = runs.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    assert!(swapped > 500 && held > 200, "{swapped} swapped, {held} held");
}

/// Whether others are refused depends on the order of what begins and ends an exclusive capability.
#[test]
fn each_exclusive_step_needs_the_key_of_its_directory() {
    let is = |update: &Update, number: usize| match update {
        Update::Caps { step: CapStep::GrantExclusive(_), .. } => number == 0,
        Update::Caps { step: CapStep::ReleaseExclusive(_), .. } => number == 1,
        Update::Caps { step: CapStep::ExpireExclusive { .. }, .. } => number == 2,
        _ => false,
    };
    for number in 0..3 {
        let forgets = move |update: &Update, id: MessageId| {
            let keys = update.keys(id).into_iter();
            let inodes = update.inodes_in(US);
            let own = move |key: &u64| inodes.iter().any(|ino| ino.key() == *key);
            keys.filter(|key| !(is(update, number) && own(key))).collect::<Vec<_>>()
        };
        let found = |seed| std::panic::catch_unwind(|| swap(seed, forgets)).is_err();
        assert!((0..400).any(found), "step {number} without its key");
    }
}
