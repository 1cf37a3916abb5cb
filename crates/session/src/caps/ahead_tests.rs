use super::*;
use crate::Pages;
use crate::calls::{Command, Output};
use crate::session::tests::{Client, TWO, topology};
use meridian_core::level::Level;
use meridian_core::{ClientId, Event, Stamp};
use meridian_fs::operation::Changes;
use meridian_fs::types::{Attributes, Data, Entry, Extent, Timestamp};
use meridian_fs::{Done, Update, Vector};
use meridian_host::api::{ReplyBody, RequestBody, UpdatedAlong};
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

fn entries() -> Result<Answer, FsError> {
    let entry = |(number, kind): (u64, Kind)| {
        let of = attributes(place(number), kind, 1);
        (name(number), Entry { place: of.place, kind }, Some(of))
    };
    let entries = (0..).zip(KINDS).map(entry).collect();
    Ok(Answer::Directory { entries, end: true, parent: DIRECTORY, tops: Vec::new() })
}

/// What a replica answers once it has granted.
fn told(queries: &[Query]) -> Vec<Result<Answer, FsError>> {
    let answer = |query: &Query| match query {
        Query::Directory { .. } => entries(),
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
    let mut caps = Caps::new(ClientId(5));
    caps.mutation = mutation;
    caps.turn_on();
    let shown = Ok(Answer::Attributes(attributes(DIRECTORY, Kind::Directory, 2)));
    caps.on_entries(NOW, &shown, &[entries()]);
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
    Query::Lookup { parent: DIRECTORY, name: name(number) }
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

#[test]
fn a_look_that_waits_is_answered_from_what_came_along() {
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
        RequestBody::UpdateAlong { start, queries, .. } => Some((asked, start.id, told(queries))),
        _ => None,
    });
    let (asks, id, along) = asks.expect("it asks for the directory");
    let waits = client.read(place(1));
    let late = client.sent_one();
    let (vector, recalled, and) = (seen(6), Vec::new(), Vec::new());
    let result = Ok(Done::Granted(vec![DIRECTORY.ino, place(1).ino]));
    let ts = Stamp(6);
    let told = UpdatedAlong { id, ts, vector, recalled, and, result, along };
    client.reply(asks, ReplyBody::UpdatedAlong(Box::new(told)));
    let told = client.output();
    assert!(matches!(&told, Output::Answered { call, result: Ok(_), .. } if *call == waits));
    let (vector, recalled) = (seen(4), Vec::new());
    let result = Err(FsError::NotFound);
    client.reply(&late, ReplyBody::Answer { vector, recalled, whole: true, result });
    assert!(client.outputs.is_empty(), "it was answered");
}
