use super::*;
use crate::Pages;
use crate::calls::{Command, Output};
use crate::session::tests::{Client, TWO, topology};
use meridian_core::level::Level;
use meridian_core::{ClientId, Event, NodeId, Stamp};
use meridian_fs::operation::{Changes, NewNode};
use meridian_fs::types::{Attributes, Data, Entry, Extent, Timestamp};
use meridian_fs::{Done, Update, Vector};
use meridian_host::api::{ALONG_MAX, ReplyBody, Request, RequestBody, UpdatedAlong};
use meridian_host::update::Change;
use std::sync::Arc;

const EU: GroupId = GroupId(2);
const NOW: Time = Time(1_000_000);
const DIRECTORY: Place = Place { ino: Ino(7), partition: EU };
/// What is in it: a directory and two files.
const KINDS: [Kind; 3] = [Kind::Directory, Kind::File, Kind::File];

fn place(number: u64) -> Place {
    Place { ino: Ino(100 + number), partition: EU }
}

fn name(number: u64) -> Name {
    format!("f{number}").into()
}

fn attributes(place: Place, kind: Kind, uid: u32) -> Attributes {
    Attributes { mode: 0o600, uid, gid: 1, size: 5, stored: 5, ..Attributes::bare(place, kind) }
}

/// What is in a directory, as it was before it was granted, or since: as its owner tells.
fn listing(of: Place, uid: u32) -> Vec<Listed> {
    let numbers = match of {
        DIRECTORY => 0..3,
        of if of == place(0) => 3..5,
        of if of == place(3) => 5..6,
        other => panic!("{other:?} is no directory"),
    };
    let entry = |number| {
        let kind = if matches!(number, 0 | 3) { Kind::Directory } else { Kind::File };
        let of = attributes(place(number), kind, uid);
        (name(number), Entry { place: of.place, kind }, Some(of))
    };
    numbers.map(entry).collect()
}

/// What comes along with the answer that shows the directory: its entries, and those of these below
/// it.
fn along(below: &[Place]) -> Result<Answer, FsError> {
    let mut entries = listing(DIRECTORY, 1);
    for place in below {
        let here = Entry { place: *place, kind: Kind::Directory };
        entries.push((Name::from_static(HERE), here, None));
        entries.extend(listing(*place, 1));
    }
    Ok(Answer::Directory { entries, end: true, parent: DIRECTORY, tops: Vec::new() })
}

fn entries() -> Result<Answer, FsError> {
    along(&[])
}

/// All that is below it.
fn all() -> Result<Answer, FsError> {
    along(&[place(0), place(3)])
}

/// What a replica answers once it has granted.
fn told(queries: &[Query]) -> Vec<Result<Answer, FsError>> {
    let answer = |query: &Query| match query {
        Query::Directory { inode, .. } => {
            let (entries, tops) = (listing(*inode, 2), Vec::new());
            Ok(Answer::Directory { entries, end: true, parent: DIRECTORY, tops })
        }
        Query::Attributes { inode } => {
            Ok(Answer::Attributes(attributes(*inode, Kind::Directory, 2)))
        }
        Query::Contents { inode, .. } => {
            let extent = Extent { len: 5, data: Data::Inline("hello".into()) };
            let attributes = attributes(*inode, Kind::File, 2);
            Ok(Answer::Contents { attributes, extents: vec![(0, extent)], end: 5 })
        }
        other => panic!("nobody asks for {other:?}"),
    };
    queries.iter().map(answer).collect()
}

/// Of a client to which the directory was shown, and the step with which it asks for it.
fn asking(mutation: Mutation) -> (Caps, Errand) {
    asking_for(entries(), mutation)
}

/// The same if that came along with it.
fn asking_for(along: Result<Answer, FsError>, mutation: Mutation) -> (Caps, Errand) {
    let mut caps = Caps::new(ClientId(5));
    caps.mutation = mutation;
    caps.turn_on();
    let shown = Ok(Answer::Attributes(attributes(DIRECTORY, Kind::Directory, 2)));
    caps.on_entries(NOW, &shown, &[along]);
    assert_eq!(caps.next_errand(NOW), None, "there is no lease yet");
    caps.extend(NOW, EU, NOW);
    let (group, errand) = caps.next_errand(NOW).unwrap();
    assert_eq!(group, EU);
    assert_eq!(caps.next_errand(NOW), None, "it is asked once");
    (caps, errand)
}

/// All of it is granted but `not`.
fn granted(caps: &mut Caps, errand: Errand, not: &[Ino]) -> Vec<(GroupId, Ino)> {
    let Errand::Ahead { directory, inodes, queries, .. } = errand else { panic!("{errand:?}") };
    let given = inodes.iter().copied().filter(|ino| !not.contains(ino)).collect();
    let told = told(&queries);
    let errand = Errand::Ahead { directory, inodes, queries, told };
    let gone = caps.on_ended(NOW, EU, (errand, NOW), Some(given));
    caps.leases.get_mut(&EU).unwrap().polling = true; // Nothing of that here.
    caps.check_invariants();
    gone
}

fn look(caps: &mut Caps, query: Query) -> Option<Result<Answer, FsError>> {
    caps.answer(NOW, &query, &Vector::default())
}

fn look_up(number: u64) -> Query {
    look_up_in(DIRECTORY, number)
}

fn look_up_in(parent: Place, number: u64) -> Query {
    Query::Lookup { parent, name: name(number) }
}

/// To whom it belongs, if that is known.
fn owner(caps: &mut Caps, inode: Place) -> Option<u32> {
    match look(caps, Query::Attributes { inode })? {
        Ok(Answer::Attributes(of)) => Some(of.uid),
        other => panic!("{other:?}"),
    }
}

/// What is asked for in a step, and how many questions with it.
fn asked(errand: &Errand) -> (Vec<Ino>, usize) {
    let Errand::Ahead { inodes, queries, .. } = errand else { panic!("{errand:?}") };
    (inodes.clone(), queries.len())
}

/// The directory, and these.
fn with_directory(numbers: impl IntoIterator<Item = u64>) -> Vec<Ino> {
    let others = numbers.into_iter().map(|number| place(number).ino);
    std::iter::once(DIRECTORY.ino).chain(others).collect()
}

fn read(number: u64) -> Query {
    Query::Contents { inode: place(number), offset: 0, len: 100 }
}

fn begin(caps: &mut Caps, inode: Place) {
    let update = Update::SetAttributes { inode, changes: Changes::default() };
    caps.begin_update(NOW, CallId(1), &Change::new(Timestamp::default(), update));
}

fn end(caps: &mut Caps) {
    caps.end_update(NOW, CallId(1), Stamp(9), &mut Ok(Done::Nothing));
}

#[test]
fn what_comes_along_is_kept_with_its_bytes() {
    let (mut caps, errand) = asking(Mutation::Correct);
    assert!(granted(&mut caps, errand, &[]).is_empty());
    for (number, kind) in (0..).zip(KINDS) {
        let found = look(&mut caps, look_up(number));
        let Some(Ok(Answer::Entry { attributes: Some(of), .. })) = found else {
            panic!("{found:?}")
        };
        assert_eq!((of.kind, of.uid), (kind, 2), "as it is since the grant");
    }
    assert_eq!(look(&mut caps, look_up(9)), Some(Err(FsError::NotFound)));
    let found = look(&mut caps, read(1));
    let Some(Ok(Answer::Contents { extents, .. })) = found else { panic!("{found:?}") };
    assert_eq!(extents[0].1.data, Data::Inline("hello".into()));
    let part = Query::Contents { inode: place(1), offset: 0, len: 4 };
    assert_eq!(look(&mut caps, part), None, "only all of it");
    assert_eq!(caps.along, 4);
}

#[test]
fn what_is_not_granted_is_not_kept() {
    let (mut caps, errand) = asking(Mutation::Correct);
    // This was recalled since it was asked for.
    assert_eq!(caps.heard(NOW, EU, Stamp(1), &[place(2).ino]), [(EU, place(2).ino)]);
    caps.let_go(&[(EU, place(2).ino)]);
    granted(&mut caps, errand, &[place(1).ino]);
    for number in [1, 2] {
        assert_eq!(look(&mut caps, Query::Attributes { inode: place(number) }), None);
        assert_eq!(look(&mut caps, read(number)), None);
    }
    assert!(look(&mut caps, Query::Attributes { inode: place(0) }).is_some());
}

#[test]
fn a_path_that_came_along_is_known_to_its_end() {
    let (mut caps, errand) = asking_for(all(), Mutation::Correct);
    // Three listings, four files, and the directory itself.
    assert_eq!(asked(&errand), (with_directory(0..6), 8));
    assert!(granted(&mut caps, errand, &[]).is_empty());
    for (parent, number) in [(DIRECTORY, 0), (place(0), 3), (place(3), 5)] {
        let found = look(&mut caps, look_up_in(parent, number));
        let Some(Ok(Answer::Entry { attributes: Some(of), .. })) = found else {
            panic!("{found:?}")
        };
        assert_eq!((of.place, of.uid), (place(number), 2), "as it is since the grant");
        let absent = look(&mut caps, look_up_in(parent, 9));
        assert_eq!(absent, Some(Err(FsError::NotFound)));
    }
    assert!(look(&mut caps, read(5)).is_some());
    assert_eq!((caps.along, caps.below), (7, 3));
}

#[test]
fn of_a_directory_that_did_not_come_whole_nothing_is_absent() {
    let (mut caps, errand) = asking_for(along(&[place(0)]), Mutation::Correct);
    assert_eq!(asked(&errand).0, with_directory(0..5));
    granted(&mut caps, errand, &[]);
    assert_eq!(owner(&mut caps, place(3)), Some(2), "it is held");
    for number in [5, 9] {
        assert_eq!(look(&mut caps, look_up_in(place(3), number)), None);
    }
}

#[test]
fn a_listing_is_not_kept_of_a_directory_that_is_not_granted() {
    let (mut caps, errand) = asking_for(all(), Mutation::Correct);
    granted(&mut caps, errand, &[place(0).ino]);
    for number in [3, 9] {
        assert_eq!(look(&mut caps, look_up_in(place(0), number)), None);
    }
    assert_eq!([0, 3].map(|of| owner(&mut caps, place(of))), [None; 2], "only that has shown it");
    assert!(look(&mut caps, look_up_in(place(3), 5)).is_some(), "this was granted");
    assert!(look(&mut caps, read(4)).is_some(), "and this");
}

#[test]
fn what_is_held_since_before_is_not_shown_older() {
    let mut caps = Caps::new(ClientId(5));
    caps.turn_on();
    caps.extend(NOW, EU, NOW);
    caps.hold(NOW, place(0));
    caps.leases.get_mut(&EU).unwrap().polling = true;
    let begun = caps.begin_read();
    let newer = Ok(Answer::Attributes(attributes(place(0), Kind::Directory, 3)));
    caps.fill(NOW, &Query::Attributes { inode: place(0) }, (begun, true), &newer);
    let shown = Ok(Answer::Attributes(attributes(DIRECTORY, Kind::Directory, 2)));
    caps.on_entries(NOW, &shown, &[all()]);
    let (_, errand) = caps.next_errand(NOW).unwrap();
    assert_eq!(asked(&errand).0, with_directory(1..3), "nor what is in it, without its names");
    granted(&mut caps, errand, &[]);
    assert_eq!([0, 1].map(|of| owner(&mut caps, place(of))), [Some(3), Some(2)]);
}

#[test]
fn what_is_refused_is_asked_for_once_more_without_what_is_below() {
    let (mut caps, errand) = asking_for(all(), Mutation::Correct);
    assert!(caps.on_ended(NOW, EU, (errand, NOW), None).is_empty());
    let (_, again) = caps.next_errand(NOW).unwrap();
    assert_eq!(asked(&again), (with_directory(0..3), 4));
    assert!(caps.on_ended(NOW, EU, (again, NOW), None).is_empty());
    assert_eq!(caps.next_errand(NOW), None);
    assert!(!caps.may_ask(NOW, DIRECTORY), "not for a while");
}

#[test]
fn who_ends_asks_for_nothing_again() {
    let (mut caps, errand) = asking_for(all(), Mutation::Correct);
    caps.turn_off();
    caps.on_ended(NOW, EU, (errand, NOW), None);
    assert_eq!(caps.next_errand(NOW), None);
    assert!(!caps.is_letting_go());
}

#[test]
fn what_comes_with_the_directory_above_is_not_asked_for_again() {
    let (mut caps, errand) = asking_for(all(), Mutation::Correct);
    let shown = Ok(Answer::Attributes(attributes(place(0), Kind::Directory, 1)));
    let entries = Answer::Directory {
        entries: listing(place(0), 1),
        end: true,
        parent: DIRECTORY,
        tops: Vec::new(),
    };
    caps.on_entries(NOW, &shown, &[Ok(entries)]);
    assert_eq!(caps.next_errand(NOW), None);
    granted(&mut caps, errand, &[]);
    assert_eq!(caps.next_errand(NOW), None);
}

#[test]
fn no_more_is_asked_for_than_one_step_may_grant() {
    let of = |number: u64| {
        let of = attributes(Place { ino: Ino(1000 + number), ..DIRECTORY }, Kind::File, 1);
        (name(number), Entry { place: of.place, kind: of.kind }, Some(of))
    };
    let (entries, tops) = ((0..2 * WINDOW as u64).map(of).collect(), Vec::new());
    let many = Answer::Directory { entries, end: false, parent: DIRECTORY, tops };
    let (_, errand) = asking_for(Ok(many), Mutation::Correct);
    let (inodes, questions) = asked(&errand);
    assert_eq!((inodes.len(), questions), (WINDOW, ALONG_MAX));
}

/// To whom a directory below another belongs after the grant.
fn owner_below(mutation: Mutation) -> Option<u32> {
    let (mut caps, errand) = asking_for(all(), mutation);
    granted(&mut caps, errand, &[]);
    owner(&mut caps, place(3))
}

#[test]
fn what_was_brought_before_the_grant_is_not_kept() {
    assert_eq!(owner_below(Mutation::Correct), Some(2));
    assert_eq!(owner_below(Mutation::KeepsBrought), Some(1));
}

/// Whether a client keeps what came along though it has changed that since it asked.
fn keeps_changed(mutation: Mutation) -> bool {
    let (mut caps, errand) = asking(mutation);
    begin(&mut caps, place(1));
    end(&mut caps);
    granted(&mut caps, errand, &[]);
    assert!(look(&mut caps, read(2)).is_some());
    look(&mut caps, Query::Attributes { inode: place(1) }).is_some()
}

#[test]
fn what_the_client_has_changed_meanwhile_is_not_kept() {
    assert!(!keeps_changed(Mutation::Correct));
    assert!(keeps_changed(Mutation::KeepsChanged));
}

/// Whether pages count as dropped that were dropped before their file was held anew.
fn keeps_any_holding(mutation: Mutation) -> bool {
    let (mut caps, errand) = asking(mutation);
    granted(&mut caps, errand, &[]);
    let open = |caps: &mut Caps| caps.open(NOW, place(1), &Vector::default());
    let Pages::Dropped(Some(before)) = open(&mut caps) else { panic!("it was never opened") };
    // It is let go, and granted again.
    caps.known.get_mut(&place(1).ino).unwrap().granted += 1;
    caps.dropped_pages(before);
    matches!(open(&mut caps), Pages::Kept(_))
}

#[test]
fn pages_that_were_dropped_before_a_file_was_held_count_for_nothing() {
    assert!(!keeps_any_holding(Mutation::Correct));
    assert!(keeps_any_holding(Mutation::KeepsAnyHolding));
}

/// Whether bytes are kept of a file that the client changes.
fn keeps_bytes(mutation: Mutation) -> bool {
    let (mut caps, errand) = asking(mutation);
    granted(&mut caps, errand, &[]);
    begin(&mut caps, place(1));
    assert_eq!(look(&mut caps, read(1)), None, "while it does");
    end(&mut caps);
    let query = Query::Attributes { inode: place(1) };
    let begun = caps.begin_read();
    let shown = Ok(Answer::Attributes(attributes(place(1), Kind::File, 3)));
    caps.fill(NOW, &query, (begun, true), &shown);
    assert_eq!(look(&mut caps, query), Some(shown));
    look(&mut caps, read(1)).is_some()
}

#[test]
fn bytes_are_not_kept_of_what_the_client_changes() {
    assert!(!keeps_bytes(Mutation::Correct));
    assert!(keeps_bytes(Mutation::KeepsBytes));
}

#[test]
fn what_came_along_goes_together() {
    let (mut caps, errand) = asking(Mutation::Correct);
    granted(&mut caps, errand, &[]);
    let gone = caps.heard(NOW, EU, Stamp(1), &[place(1).ino]);
    let all = (0..3).map(|number| (EU, place(number).ino));
    assert_eq!(gone.into_iter().collect::<BTreeSet<_>>(), all.collect());
    assert!(look(&mut caps, Query::Attributes { inode: DIRECTORY }).is_some(), "it stays");
    let shown = Ok(Answer::Attributes(attributes(place(0), Kind::Directory, 2)));
    caps.on_entries(NOW, &shown, &[entries()]);
    assert!(!matches!(caps.next_errand(NOW), Some((_, Errand::Ahead { .. }))), "it is recalled");
}

#[test]
fn what_came_along_from_below_goes_with_the_rest() {
    let (mut caps, errand) = asking_for(all(), Mutation::Correct);
    granted(&mut caps, errand, &[]);
    let gone = caps.heard(NOW, EU, Stamp(1), &[place(5).ino]);
    let all = (0..6).map(|number| (EU, place(number).ino));
    assert_eq!(gone.into_iter().collect::<BTreeSet<_>>(), all.collect());
}

/// What goes of two files that were swept together when one is recalled.
fn swept_and_recalled(is_far: bool) -> usize {
    let mut caps = Caps::new(ClientId(5));
    caps.turn_on();
    caps.extend(NOW, EU, NOW);
    caps.leases.get_mut(&EU).unwrap().is_far = is_far;
    let both = vec![place(1).ino, place(2).ino];
    caps.take_granted(NOW, (EU, NOW), (both, BTreeSet::new()), Some(DIRECTORY.ino));
    caps.heard(NOW, EU, Stamp(1), &[place(1).ino]).len()
}

#[test]
fn what_was_swept_in_another_region_goes_together() {
    assert_eq!(swept_and_recalled(true), 2);
    assert_eq!(swept_and_recalled(false), 1, "near by it costs little");
}

#[test]
fn what_was_under_way_as_a_token_came_is_released() {
    let (mut caps, errand) = asking(Mutation::Correct);
    caps.follow(EU);
    assert_eq!(granted(&mut caps, errand, &[]).len(), 4);
    assert_eq!(look(&mut caps, Query::Attributes { inode: DIRECTORY }), None);
}

/// A replica of the group has executed all up to there.
fn seen(ts: u64) -> Vector {
    let mut vector = Vector::default();
    vector.raise(EU, Stamp(ts));
    vector
}

/// A client that has asked for the directory, which was shown to it: the request, and the reply.
fn asked_for_it() -> (Client, (NodeId, Request), ReplyBody) {
    let mut client = Client::new();
    let topology = topology(&TWO);
    let mut configured = topology.as_ref().clone();
    configured.levels.now = Level::ALONG;
    client.step(Event::Command(Command::Configured(Arc::new(configured))));
    client.step(Event::Command(Command::Keep));
    client.read(DIRECTORY);
    let sent = client.sent();
    let [shows, renews] = &sent[..] else { panic!("{sent:?}") };
    assert!(matches!(shows.1.body, RequestBody::ReadAlong { .. }), "{shows:?}");
    client.decide(renews, 5, Ok(Done::Nothing));
    let (vector, recalled) = (seen(5), Vec::new());
    let result = Ok(Answer::Attributes(attributes(DIRECTORY, Kind::Directory, 2)));
    let along = Box::new(entries().unwrap());
    client.reply(shows, ReplyBody::AnswerAlong { vector, recalled, whole: true, result, along });
    client.outputs.clear();
    let sent = client.sent();
    let asks = sent.iter().find_map(|asked| match &asked.1.body {
        RequestBody::UpdateAlong { start, queries, .. } => {
            Some((asked.clone(), start.id, told(queries)))
        }
        _ => None,
    });
    let (asks, id, along) = asks.expect("it asks for the directory");
    let (vector, recalled, and, ts) = (seen(6), Vec::new(), Vec::new(), Stamp(6));
    let result = Ok(Done::Granted(vec![DIRECTORY.ino, place(1).ino]));
    let told = UpdatedAlong { id, ts, vector, recalled, and, result, along };
    (client, asks, ReplyBody::UpdatedAlong(Box::new(told)))
}

#[test]
fn a_look_that_waits_is_answered_from_what_came_along() {
    let (mut client, asks, told) = asked_for_it();
    let waits = client.read(place(1));
    let late = client.sent_one();
    client.reply(&asks, told);
    let told = client.output();
    assert!(matches!(&told, Output::Answered { call, result: Ok(_), .. } if *call == waits));
    let (vector, recalled) = (seen(4), Vec::new());
    let result = Err(FsError::NotFound);
    client.reply(&late, ReplyBody::Answer { vector, recalled, whole: true, result });
    assert!(client.outputs.is_empty(), "it was answered");
}

#[test]
fn a_name_is_absent_only_until_the_client_begins_to_make_it() {
    let (mut client, asks, told) = asked_for_it();
    let is_absent = |client: &mut Client, number| {
        client.session.is_absent(client.now, DIRECTORY, &name(number))
    };
    assert!(!is_absent(&mut client, 9), "the directory is not held");
    client.reply(&asks, told);
    assert_eq!([1, 9].map(|number| is_absent(&mut client, number)), [false, true]);
    let node = NewNode::new(Kind::File, 0o644);
    let update = Update::Create { parent: DIRECTORY, name: name(9), node };
    let change = Change::new(Timestamp::default(), update);
    let (call, deadline) = (CallId(99), client.now + Duration::from_secs(9));
    client.step(Event::Command(Command::Update { call, change, deadline }));
    assert_eq!([8, 9].map(|number| is_absent(&mut client, number)), [true, false]);
}
