use super::*;
use crate::calls::{CallId, Keeping};
use crate::caps::{Errand, SPAN};
use meridian_core::{ClientId, GroupId, Stamp};
use meridian_fs::batch::{Kept, Part};
use meridian_fs::operation::{Changes, NewNode, WriteAt};
use meridian_fs::types::{Name, Place, Timestamp};
use meridian_fs::{Answer, MadeHeld, Query, Vector};
use meridian_host::update::Change;
use std::time::Duration;

const US: GroupId = GroupId(1);
const NOW: Time = Time(1_000_000);
const DIRECTORY: Place = Place { ino: Ino(7), partition: US };
const FILE: Place = Place { ino: Ino(8), partition: US };
const TIME: Timestamp = Timestamp { seconds: 9, nanos: 0 };

fn name() -> Name {
    Name::from_static(b"new")
}

fn node(kind: Kind) -> NewNode {
    NewNode::new(kind, 0o644)
}

/// Of a client with a lease, in a cluster that lets it hold all that it makes.
fn leased() -> Caps {
    let mut caps = Caps::new(ClientId(5));
    caps.turn_on();
    caps.hold_all_that_is_made(true);
    caps.extend(NOW, US, NOW);
    caps
}

fn create(kind: Kind) -> Change {
    let update = Update::Create { parent: DIRECTORY, name: name(), node: node(kind) };
    Change::new(TIME, update)
}

fn attributes() -> Attributes {
    let above = Attributes {
        place: DIRECTORY,
        kind: Kind::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        stored: 0,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        btime: TIME,
        marks: Default::default(),
    };
    node(Kind::File).attributes_in(&above, FILE, TIME).unwrap()
}

fn look(caps: &mut Caps, now: Time) -> Option<Attributes> {
    match caps.answer(now, &Query::Attributes { inode: FILE }, &Vector::default()) {
        Some(Ok(Answer::Attributes(of))) => Some(of),
        _ => None,
    }
}

/// It makes a file, and something comes between that and the reply.
fn make(between: impl FnOnce(&mut Caps)) -> Caps {
    let mut caps = leased();
    assert!(caps.begin_update(NOW, CallId(1), &create(Kind::File)), "it wants to hold it");
    between(&mut caps);
    let mut result = Ok(Done::Held(attributes()));
    caps.end_update(NOW, CallId(1), Stamp(3), &mut result);
    assert_eq!(result, Ok(Done::Attributes(attributes())), "the owner need not know");
    caps.check_invariants();
    caps
}

#[test]
fn what_was_made_is_held_and_known() {
    let mut caps = make(|_| {});
    assert_eq!(look(&mut caps, NOW), Some(attributes()));
    assert_eq!(look(&mut caps, NOW + SPAN), None, "K2");
}

#[test]
fn what_was_recalled_before_the_reply_is_not_kept() {
    let mut caps = make(|caps| drop(caps.heard(NOW, US, Stamp(4), &[FILE.ino])));
    assert!(!caps.known.contains_key(&FILE.ino), "K11");
    caps.let_go(&[(US, FILE.ino)]);
    let next = caps.next_errand(NOW).map(|(_, errand)| errand);
    assert_eq!(next, Some(Errand::Release(vec![FILE.ino])));
}

#[test]
fn what_the_client_has_changed_before_the_reply_is_held_and_not_known() {
    let mut caps = make(|caps| {
        let changes = Changes { mode: Some(0o600), ..Changes::default() };
        let change = Change::new(TIME, Update::SetAttributes { inode: FILE, changes });
        caps.begin_update(NOW, CallId(2), &change);
        let changed = Attributes { mode: 0o600, ..attributes() };
        caps.end_update(NOW, CallId(2), Stamp(4), &mut Ok(Done::Attributes(changed)));
    });
    assert!(caps.known.contains_key(&FILE.ino));
    assert_eq!(look(&mut caps, NOW), None, "K11");
}

#[test]
fn what_was_noted_for_what_is_made_is_forgotten() {
    let mut caps = leased();
    for number in 0..3 * LOOKED_MAX as u64 {
        caps.begin_update(NOW, CallId(number + 1), &create(Kind::File));
        caps.heard(NOW, US, Stamp(4), &[Ino(1000 + number)]);
        let end = CallId(number.max(1));
        caps.end_update(NOW, end, Stamp(4), &mut Err(FsError::Exists));
    }
    assert!(caps.making.spoiled.len() < 2 * LOOKED_MAX);
}

#[test]
fn nothing_is_held_without_a_lease_or_below_the_level() {
    let mut caps = leased();
    let late = NOW + SPAN;
    assert!(!caps.begin_update(late, CallId(1), &create(Kind::File)), "its lease is to begin");
    assert_eq!(caps.next_errand(late), Some((US, Errand::Renew)));
    let mut caps = leased();
    caps.hold_all_that_is_made(false);
    assert!(!caps.begin_update(NOW, CallId(1), &create(Kind::File)));
    assert!(caps.begin_update(NOW, CallId(2), &create(Kind::Directory)));
    let mut caps = leased();
    caps.begin_update(NOW, CallId(1), &create(Kind::File));
    caps.extend(late + Duration::from_secs(1), US, late);
    caps.end_update(
        late + Duration::from_secs(1),
        CallId(1),
        Stamp(3),
        &mut Ok(Done::Held(attributes())),
    );
    assert!(caps.known.is_empty(), "the lease has run out in between");
    assert!(caps.leases[&US].to_release.contains(&FILE.ino));
}

/// What was kept back is held once it has landed, alone or with others.
#[test]
fn what_lands_is_held() {
    for in_batch in [false, true] {
        let mut caps = leased();
        caps.keep_back(Some(Keeping::InOrder));
        caps.hold(NOW, DIRECTORY);
        let known = caps.known.get_mut(&DIRECTORY.ino).unwrap();
        known.is_empty();
        known.alone = true;
        let above = Attributes { place: DIRECTORY, kind: Kind::Directory, ..attributes() };
        known.attributes.value = Some(above);
        let seen = Vector::default();
        let what = (&node(Kind::File), TIME);
        let made = caps.begin_new(NOW, (DIRECTORY, &name()), what, &seen).unwrap();
        let whole = Box::new(meridian_fs::settled::Made {
            parent: DIRECTORY,
            name: name(),
            node: node(Kind::File),
            ino: made.place.ino,
            made: TIME,
            at: WriteAt::End,
            pieces: Vec::new(),
            written: TIME,
            settings: Vec::new(),
        });
        let landed = Attributes { size: 5, ..made };
        let done = MadeHeld { offset: 0, attributes: landed, merge_from: None };
        let done = Done::Made(Box::new(done));
        let (update, done) = match in_batch {
            true => {
                let parts = vec![Part { time: TIME, kept: Kept::Make(whole) }];
                (Update::Batch(parts), Done::Batch { done: vec![done], refused: None })
            }
            false => (Update::Make(whole), done),
        };
        assert!(caps.begin_update(NOW, CallId(1), &Change::new(TIME, update)));
        let mut result = Ok(done);
        caps.end_update(NOW, CallId(1), Stamp(3), &mut result);
        assert!(!format!("{result:?}").contains("Made"), "the owner need not know");
        let query = Query::Attributes { inode: made.place };
        let answer = caps.answer(NOW, &query, &seen);
        assert_eq!(answer, Some(Ok(Answer::Attributes(landed))));
        caps.check_invariants();
    }
}
