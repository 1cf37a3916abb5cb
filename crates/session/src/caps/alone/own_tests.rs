//! Files of a client's own, seen by one that holds a directory exclusively and keeps the order.

use super::super::Landing;
use super::super::tests::{DIRECTORY, NOW, TIME, end_batch, in_order, name, node, part_of};
use super::*;
use crate::caps::CallId;
use meridian_fs::batch::{Kept, Part, Written};
use meridian_fs::operation::{Changes, RenameMode, WriteAt};
use meridian_fs::types::{Attributes, Entry};
use meridian_fs::{Answer, Done, FsError, MadeHeld, Query, Setting};
use meridian_host::update::Change;
use std::collections::BTreeSet;

/// The client has made a file there, which has landed.
fn owning() -> (Caps, Attributes) {
    let mut caps = in_order();
    caps.keeps_written = true;
    caps.hold_all_that_is_made(true);
    let named = (DIRECTORY, &name("new"));
    let made = caps.begin_new(NOW, named, (&node(), TIME), &Vector::default()).unwrap();
    begin(&mut caps, part_of(&made, "new").into_update());
    let done = MadeHeld { offset: 0, attributes: made, merge_from: None };
    end_batch(&mut caps, Ok(Done::Made(Box::new(done))));
    assert_eq!(shown(&mut caps, made.place), Some(made.mode), "it is held");
    (caps, made)
}

fn write(caps: &mut Caps, file: Place) -> bool {
    let begun = caps.begin_written(NOW, file, &Vector::default());
    caps.check_invariants();
    begun
}

fn remove(caps: &mut Caps, text: &'static str, file: Place) -> bool {
    let begun = caps.begin_removal(NOW, (DIRECTORY, &name(text)), (file, TIME), &Vector::default());
    caps.check_invariants();
    begun
}

fn batch_of(file: Place) -> Update {
    let changes = Changes { mode: Some(0o600), ..Changes::default() };
    let (at, settings) = (WriteAt::End, vec![Setting::Attributes(changes)]);
    let (parent, name, pieces) = (DIRECTORY, name("new"), Vec::new());
    let written = Written { parent, name, inode: file, at, pieces, written: TIME, settings };
    Update::Batch(vec![Part { time: TIME, kept: Kept::Write(Box::new(written)) }])
}

fn begin(caps: &mut Caps, update: Update) {
    caps.begin_update(NOW, CallId(78), &Change::new(TIME, update));
}

fn shown(caps: &mut Caps, file: Place) -> Option<u16> {
    let found = caps.answer(NOW, &Query::Attributes { inode: file }, &Vector::default());
    match found? {
        Ok(Answer::Attributes(of)) => Some(of.mode),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_written_to_a_file_of_its_own_is_kept_back_until_it_lands() {
    let (mut caps, made) = owning();
    let file = made.place;
    assert!(write(&mut caps, file) && write(&mut caps, file), "twice is once");
    assert_eq!(caps.written_in(file.ino), Some((DIRECTORY, name("new"))));
    let look = Query::Lookup { parent: DIRECTORY, name: name("new") };
    assert_eq!(caps.unlanded_of_query(&look), BTreeSet::new(), "replicas know the name");
    assert_eq!(shown(&mut caps, file), Some(made.mode), "its owner shows what is written");
    caps.call_all_to_land();
    assert_eq!(caps.take_to_land(), [crate::ToLand::File(file)]);
    assert!(!write(&mut caps, file), "it is being sent");
    begin(&mut caps, batch_of(file));
    let attributes = Attributes { mode: 0o600, ..made };
    let written = Done::Written { offset: 0, attributes, merge_from: None };
    end_batch(&mut caps, Ok(Done::Batch { done: vec![written], refused: None }));
    assert_eq!((caps.is_unlanded(file.ino), shown(&mut caps, file)), (false, Some(0o600)));
    assert!(write(&mut caps, file), "and so on");
}

#[test]
fn what_is_kept_back_of_a_file_is_read_and_added_to_until_it_is_called_for() {
    let (mut caps, made) = owning();
    let file = made.place.ino;
    let knows_end = |caps: &mut Caps, now| caps.knows_end(now, file, &Vector::default());
    assert!(!knows_end(&mut caps, NOW) && !caps.takes_more(file), "nothing is kept back");
    assert!(write(&mut caps, made.place));
    assert!(knows_end(&mut caps, NOW) && caps.takes_more(file));
    caps.call_all_to_land();
    assert!(knows_end(&mut caps, NOW) && !caps.takes_more(file), "it is being sent");
    caps.mutation = Mutation::JoinsCalled;
    assert!(caps.takes_more(file), "planted");
    let late = NOW + crate::caps::SPAN;
    assert!(!knows_end(&mut caps, late), "others may have appended");
    let mut caps = in_order();
    let named = (DIRECTORY, &name("x"));
    let new = caps.begin_new(NOW, named, (&node(), TIME), &Vector::default()).unwrap().place;
    assert!(caps.takes_more(new.ino) && !caps.knows_end(NOW, new.ino, &Vector::default()));
}

#[test]
fn a_write_of_its_own_message_lands_it_too() {
    let (mut caps, made) = owning();
    let file = made.place;
    assert!(write(&mut caps, file));
    let update = || Update::Write { inode: file, at: WriteAt::End, pieces: Vec::new() };
    assert_eq!(caps.unlanded_before(&update()), BTreeSet::new(), "it waits for nothing");
    assert_eq!(Landing::all_of(&caps, &update(), TIME).len(), 1);
    begin(&mut caps, update());
    assert_eq!(shown(&mut caps, file), None, "it is being changed");
    let attributes = Attributes { size: 3, ..made };
    end_batch(&mut caps, Ok(Done::Written { offset: 0, attributes, merge_from: None }));
    assert_eq!((caps.is_unlanded(file.ino), shown(&mut caps, file)), (false, Some(made.mode)));
}

#[test]
fn a_file_is_its_own_no_more_once_others_may_know_of_it() {
    let old = Place { ino: Ino(100), ..DIRECTORY };
    let (mut caps, made) = owning();
    assert!(!write(&mut caps, old), "it was there before");
    caps.keeps_written = false;
    assert!(!write(&mut caps, made.place), "the nodes do not know of that");
    let link = |target| Update::Link { target, parent: DIRECTORY, name: name("also") };
    let rename = |moved| Update::Rename {
        from: DIRECTORY,
        from_name: name("new"),
        to: DIRECTORY,
        to_name: name("other"),
        moved,
        replaced: None,
        mode: RenameMode::NoReplace,
        ancestors: Vec::new(),
        keep_for: None,
        whiteout: None,
    };
    for (mutation, is_own) in [(Mutation::Correct, false), (Mutation::OwnsForever, true)] {
        for update in [link, rename as fn(Place) -> Update] {
            let (mut caps, made) = owning();
            caps.mutation = mutation;
            begin(&mut caps, update(made.place));
            end_batch(&mut caps, Err(FsError::Denied));
            // What the name leads to is not known any more after a rename.
            let entry = Entry { place: made.place, kind: Kind::File };
            caps.change_names(DIRECTORY.ino, |known, count| {
                known.keep_name(&name("new"), count, Some(entry.clone()));
            });
            assert_eq!(write(&mut caps, made.place), is_own);
        }
    }
}

#[test]
fn a_file_that_is_removed_before_it_is_sent_was_never_there() {
    let mut caps = in_order();
    let named = (DIRECTORY, &name("x"));
    let made = caps.begin_new(NOW, named, (&node(), TIME), &Vector::default()).unwrap();
    assert!(remove(&mut caps, "x", made.place));
    assert!(!caps.is_unlanded(made.place.ino) && caps.has_landed(None, u64::MAX));
    caps.call_all_to_land();
    assert!(caps.take_to_land().is_empty());
    assert!(caps.begin_new(NOW, named, (&node(), TIME), &Vector::default()).is_some());
    // Once its owner was told to send it, it lands first.
    let other = (DIRECTORY, &name("y"));
    let sent = caps.begin_new(NOW, other, (&node(), TIME), &Vector::default()).unwrap();
    caps.call_all_to_land();
    assert!(!remove(&mut caps, "y", sent.place) && caps.is_unlanded(sent.place.ino));
}

#[test]
fn what_was_written_to_a_file_that_is_removed_is_not_sent() {
    let (mut caps, made) = owning();
    assert!(write(&mut caps, made.place) && remove(&mut caps, "new", made.place));
    assert!(caps.removes(made.place.ino) && caps.written_in(made.place.ino).is_none());
    caps.call_all_to_land();
    assert!(matches!(&caps.take_to_land()[..], [crate::ToLand::Removal(_)]));
    let (mut caps, made) = owning();
    assert!(write(&mut caps, made.place));
    caps.end_written(made.place.ino);
    assert!(!caps.is_unlanded(made.place.ino));
    caps.check_invariants();
}
