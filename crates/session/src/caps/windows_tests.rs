use super::*;
use crate::calls::CallId;
use meridian_core::{ClientId, Stamp};
use meridian_fs::operation::Changes;
use meridian_fs::types::{Attributes, Kind, Timestamp};
use meridian_fs::{Done, Update, Vector};
use meridian_host::update::Change;

const US: GroupId = GroupId(1);
const NOW: Time = Time(1_000_000);
const DIRECTORY: Place = Place { ino: Ino(7), partition: US };
/// So many entries the directory has.
const ALL: u64 = 3 * WINDOW as u64;

fn name(number: u64) -> Name {
    format!("f{number:04}").into()
}

/// Numbers are in another order than names.
fn ino(number: u64) -> Ino {
    Ino(1000 + number * 7 % ALL)
}

fn place(number: u64) -> Place {
    Place { ino: ino(number), partition: US }
}

fn attributes(ino: Ino) -> Attributes {
    let place = Place { ino, partition: US };
    Attributes { mode: 0o600, uid: 1, gid: 1, ..Attributes::bare(place, Kind::File) }
}

/// Of a client that holds the directory and knows its names.
fn holding() -> Caps {
    let mut caps = Caps::new(ClientId(5)).with_all_made_held(true);
    caps.turn_on();
    caps.extend(NOW, US, NOW);
    caps.hold(NOW, DIRECTORY);
    caps.leases.get_mut(&US).unwrap().polling = true; // Nothing of that here.
    let query = Query::Directory { inode: DIRECTORY, after: Name::new(), limit: ALL as u32 };
    let entry = |number| {
        let entry = Entry { place: place(number), kind: Kind::File };
        (name(number), entry, Some(attributes(ino(number))))
    };
    let entries = (0..ALL).map(entry).collect();
    let (parent, tops) = (DIRECTORY, Vec::new());
    let answer = Ok(Answer::Directory { entries, end: true, parent, tops });
    caps.fill(NOW, &query, (caps.count, true), &answer);
    caps
}

fn look_up(number: u64) -> Query {
    Query::Lookup { parent: DIRECTORY, name: name(number) }
}

/// A look, as a session counts it; whether it was answered with all.
fn look(caps: &mut Caps, number: u64) -> bool {
    let answer = caps.answer(NOW, &look_up(number), &Vector::default());
    let answered = matches!(answer, Some(Ok(Answer::Entry { attributes: Some(_), .. })));
    caps.looked_up(NOW, &look_up(number), answered);
    answered
}

/// A replica has to be asked for these.
fn asked(caps: &mut Caps, names: impl IntoIterator<Item = u64>) {
    names.into_iter().for_each(|number| assert!(!look(caps, number)));
}

fn window(caps: &mut Caps) -> Option<(Errand, Vec<Ino>)> {
    let (_, errand) = caps.next_errand(NOW)?;
    let Errand::Window { directory: DIRECTORY, inodes, .. } = &errand else { panic!("{errand:?}") };
    let inodes = inodes.clone();
    Some((errand, inodes))
}

/// The window is granted, and what is in it has come along.
fn granted(caps: &mut Caps, errand: Errand) {
    let Errand::Window { directory, inodes, queries, .. } = errand else { panic!("{errand:?}") };
    let told = inodes.iter().map(|ino| Ok(Answer::Attributes(attributes(*ino)))).collect();
    let errand = Errand::Window { directory, inodes: inodes.clone(), queries, told };
    caps.on_ended(NOW, US, (errand, NOW), Some(inodes));
    caps.check_invariants();
}

/// Which names come one after the other in the order of their numbers.
fn by_number() -> Vec<u64> {
    let mut all: Vec<_> = (0..ALL).collect();
    all.sort_by_key(|number| ino(*number));
    all
}

#[test]
fn a_window_of_known_names_is_one_question() {
    let mut caps = holding();
    asked(&mut caps, 0..3);
    let (errand, inodes) = window(&mut caps).unwrap();
    assert_eq!(inodes, (1..=WINDOW as u64).map(ino).collect::<Vec<_>>());
    assert_eq!(window(&mut caps), None, "it is asked once");
    granted(&mut caps, errand);
    assert!((1..WINDOW as u64).all(|number| look(&mut caps, number)));
    let (errand, inodes) = window(&mut caps).expect("the next one has begun");
    assert_eq!(inodes[0], ino(WINDOW as u64 + 1));
    granted(&mut caps, errand);
    assert!(look(&mut caps, WINDOW as u64 + 1) && caps.swept == 2 * WINDOW as u64);
}

#[test]
fn looks_that_go_by_number_are_a_sweep() {
    let mut caps = holding();
    let order = by_number();
    asked(&mut caps, order[..3].to_vec());
    let mut seen = 3;
    while let Some((errand, inodes)) = window(&mut caps) {
        assert!(
            inodes.iter().eq(order[seen..]
                .iter()
                .map(|of| ino(*of))
                .take(WINDOW)
                .collect::<Vec<_>>()
                .iter())
        );
        granted(&mut caps, errand);
        assert!(order[seen..seen + inodes.len()].iter().all(|number| look(&mut caps, *number)));
        seen += inodes.len();
    }
    assert_eq!(seen as u64, ALL);
    assert!(order.iter().skip(3).all(|number| look(&mut caps, *number)), "all are held");
    assert_eq!(window(&mut caps), None);
}

#[test]
fn looks_that_leave_numbers_out_are_none() {
    let mut caps = holding();
    let order = by_number();
    asked(&mut caps, [0, 1, 3, 4].map(|at| order[at]));
    assert_eq!(window(&mut caps), None, "one was left out");
    asked(&mut caps, [5, 6, 7].map(|at| order[at]));
    assert_eq!(window(&mut caps), None, "it pauses");
    let mut caps = holding();
    asked(&mut caps, [0, 1, 2].map(|at| order[at]));
    let (errand, _) = window(&mut caps).unwrap();
    granted(&mut caps, errand);
    assert!(!look(&mut caps, order[2 * WINDOW]), "it went elsewhere");
    assert_eq!(window(&mut caps), None);
}

/// `rm -r` looks each name up before it removes it.
#[test]
fn who_removes_what_it_looks_up_sweeps() {
    for order in [(0..ALL).collect(), by_number()] {
        let mut caps = holding();
        for (call, number) in (1..).zip(&order[..3]) {
            assert!(!look(&mut caps, *number));
            let (parent, child) = (DIRECTORY, place(*number));
            let update = Update::Unlink { parent, name: name(*number), child, keep_for: None };
            caps.begin_update(NOW, CallId(call), &Change::new(Timestamp::default(), update));
            caps.end_update(NOW, CallId(call), Stamp(call), &mut Ok(Done::Nothing));
        }
        assert!(window(&mut caps).is_some());
    }
}

#[test]
fn what_the_client_changes_meanwhile_is_not_kept_of_a_window() {
    let mut caps = holding();
    asked(&mut caps, 0..3);
    let (errand, _) = window(&mut caps).unwrap();
    let changes = Changes { mode: Some(0o600), ..Changes::default() };
    let update = Update::SetAttributes { inode: place(5), changes };
    caps.begin_update(NOW, CallId(1), &Change::new(Timestamp::default(), update));
    caps.end_update(NOW, CallId(1), Stamp(4), &mut Err(FsError::NotFound));
    caps.heard(NOW, US, Stamp(5), &[ino(6)]);
    granted(&mut caps, errand);
    assert!(look(&mut caps, 4) && !look(&mut caps, 5) && !look(&mut caps, 6), "K6");
}

#[test]
fn a_window_is_listed_of_which_nothing_came_along() {
    let mut caps = holding();
    asked(&mut caps, 0..3);
    let (errand, inodes) = window(&mut caps).unwrap();
    caps.on_ended(NOW, US, (errand, NOW), Some(inodes));
    let next = caps.next_errand(NOW).map(|(_, errand)| errand);
    assert_eq!(next, Some(Errand::List(DIRECTORY, name(0))));
}

#[test]
fn a_window_that_is_refused_stops_the_sweep() {
    let mut caps = holding();
    asked(&mut caps, 0..3);
    let (errand, _) = window(&mut caps).unwrap();
    caps.on_ended(NOW, US, (errand, NOW), None);
    asked(&mut caps, 3..9);
    assert_eq!(window(&mut caps), None, "it pauses");
}
