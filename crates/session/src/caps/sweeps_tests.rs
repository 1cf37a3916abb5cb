use super::*;
use crate::calls::CallId;
use crate::caps::SPAN;
use meridian_core::{ClientId, Stamp};
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Attributes, Entry, Kind, Timestamp};
use meridian_fs::{Done, Update, Vector};
use meridian_host::update::Change;
use std::time::Duration;

const US: GroupId = GroupId(1);
const NOW: Time = Time(1_000_000);
const DIRECTORY: Place = Place { ino: Ino(7), partition: US };

fn name(number: u64) -> Name {
    format!("f{number:04}").into()
}

fn attributes(number: u64, partition: GroupId) -> Attributes {
    let place = Place { ino: Ino(100 + number), partition };
    Attributes { mode: 0o600, uid: 1, gid: 1, ..Attributes::bare(place, Kind::File) }
}

/// The entries of a window: those after that number, of so many in all.
fn listed(after: u64, all: u64) -> Result<Answer, FsError> {
    let until = all.min(after + WINDOW as u64);
    let entry = |number| {
        let of = attributes(number, US);
        (name(number), Entry { place: of.place, kind: of.kind }, Some(of))
    };
    let entries = (after + 1..=until).map(entry).collect();
    let (parent, tops) = (DIRECTORY, Vec::new());
    Ok(Answer::Directory { entries, end: until == all, parent, tops })
}

/// Of a client that holds the directory.
fn holding() -> Caps {
    let mut caps = Caps::new(ClientId(5));
    caps.turn_on();
    caps.extend(NOW, US, NOW);
    caps.hold(NOW, DIRECTORY);
    caps.leases.get_mut(&US).unwrap().polling = true; // Nothing of that here.
    caps
}

fn look_up(number: u64) -> Query {
    Query::Lookup { parent: DIRECTORY, name: name(number) }
}

fn errand(caps: &mut Caps) -> Option<Errand> {
    caps.next_errand(NOW).map(|(_, errand)| errand)
}

/// The first window, from `first` on, is listed, held, and listed once more.
fn sweep(caps: &mut Caps, first: u64, all: u64) {
    let list = Errand::List(DIRECTORY, name(first));
    assert_eq!(errand(caps), Some(list.clone()));
    assert_eq!(errand(caps), None, "it is asked once");
    caps.on_listed(NOW, DIRECTORY, &listed(first, all));
    let until = all.min(first + WINDOW as u64);
    let inodes: Vec<_> = (first + 1..=until).map(|number| Ino(100 + number)).collect();
    let step = Errand::Sweep(DIRECTORY.ino, inodes.clone());
    assert_eq!(errand(caps), Some(step.clone()));
    assert_eq!(errand(caps), None);
    assert!(caps.on_ended(NOW, US, (step, NOW), Some(inodes)).is_empty());
    assert_eq!(errand(caps), Some(list), "for what may be kept");
    let query = Query::Directory { inode: DIRECTORY, after: name(first), limit: WINDOW as u32 };
    let begun = caps.begin_read();
    caps.fill(NOW, &query, (begun, true), &listed(first, all));
    caps.on_listed(NOW, DIRECTORY, &listed(first, all));
    assert_eq!(errand(caps), None);
    caps.check_invariants();
}

#[test]
fn names_that_are_looked_up_in_order_are_held_together() {
    let mut caps = holding();
    for number in 3..6 {
        assert_eq!(errand(&mut caps), None);
        caps.looked_up(NOW, &look_up(number), false);
    }
    let all = 3 + WINDOW as u64 + 5;
    sweep(&mut caps, 3, all);
    let seen = Vector::default();
    for number in 4..=3 + WINDOW as u64 {
        let answer = caps.answer(NOW, &look_up(number), &seen);
        assert!(matches!(answer, Some(Ok(Answer::Entry { attributes: Some(_), .. }))), "{number}");
    }
    // Looks that come to it have the next one begun, up to the end.
    caps.looked_up(NOW, &look_up(6), true);
    sweep(&mut caps, 3 + WINDOW as u64, all);
    caps.looked_up(NOW, &look_up(3 + WINDOW as u64 + 1), true);
    assert_eq!(errand(&mut caps), None, "there are no more");
    assert_eq!(caps.swept, WINDOW as u64 + 5);
}

#[test]
fn what_a_listing_showed_before_the_step_is_not_kept() {
    let mut caps = holding();
    (3..6).for_each(|number| caps.looked_up(NOW, &look_up(number), false));
    errand(&mut caps);
    let begun = caps.begin_read();
    caps.on_listed(NOW, DIRECTORY, &listed(3, 9));
    let Some(step @ Errand::Sweep(..)) = errand(&mut caps) else { panic!("it is asked to hold") };
    caps.on_ended(NOW, US, (step, NOW), Some(vec![Ino(105)]));
    let query = Query::Directory { inode: DIRECTORY, after: name(3), limit: WINDOW as u32 };
    caps.fill(NOW, &query, (begun, true), &listed(3, 9));
    let inode = attributes(5, US).place;
    assert_eq!(caps.answer(NOW, &Query::Attributes { inode }, &Vector::default()), None);
}

#[test]
fn names_that_are_skipped_and_names_that_one_changes_are_no_sweep() {
    let mut caps = holding();
    [3, 5, 6].iter().for_each(|number| caps.looked_up(NOW, &look_up(*number), false));
    assert!(matches!(errand(&mut caps), Some(Errand::List(..))));
    caps.on_listed(NOW, DIRECTORY, &listed(3, 9));
    assert_eq!(errand(&mut caps), None, "4 was left out");
    let mut caps = holding();
    for number in 3..9 {
        caps.looked_up(NOW, &look_up(number), false);
        caps.disturb(DIRECTORY.ino);
    }
    [8, 7, 6, 5, 4].iter().for_each(|number| caps.looked_up(NOW, &look_up(*number), false));
    assert_eq!(errand(&mut caps), None);
}

#[test]
fn what_others_change_pauses_the_sweep() {
    let mut caps = holding();
    (3..6).for_each(|number| caps.looked_up(NOW, &look_up(number), false));
    sweep(&mut caps, 3, 1000);
    assert_eq!(caps.heard(NOW, US, Stamp(1), &[Ino(110)]), [(US, Ino(110))]);
    caps.let_go(&[(US, Ino(110))]);
    let release = errand(&mut caps);
    assert_eq!(release, Some(Errand::Release(vec![Ino(110)])));
    caps.on_ended(NOW, US, (release.unwrap(), NOW), Some(Vec::new()));
    caps.looked_up(NOW, &look_up(6), true);
    assert_eq!(errand(&mut caps), None);
    let later = NOW + PAUSE.0;
    caps.looked_up(later, &look_up(7), true);
    assert!(matches!(caps.next_errand(later), Some((US, Errand::List(..)))));
}

/// Found by a seed of `looks`: it was released, and looks were answered from what was kept of it.
#[test]
fn a_directory_that_is_swept_before_its_maker_hears_of_it_stays_held() {
    let mut caps = holding();
    let (parent, node) = (DIRECTORY, NewNode::new(Kind::Directory, 0o755));
    let update = Update::Create { parent, name: name(5), node };
    let change = Change::new(Timestamp::default(), update);
    assert!(caps.begin_update(NOW, CallId(3), &change), "it wants to hold it");
    // The reply is lost, and the lease runs out and begins anew before another comes.
    let later = NOW + SPAN + Duration::from_nanos(1);
    caps.lapse(later);
    caps.extend(later, US, later);
    let made = attributes(5, US);
    caps.hold(later, made.place);
    let mut result = Ok(Done::Held(made));
    caps.end_update(later, CallId(3), Stamp(9), &mut result);
    assert_eq!(result, Ok(Done::Attributes(made)));
    let inode = made.place;
    assert_eq!(caps.answer(later, &Query::Attributes { inode }, &Vector::default()), None);
    assert!(caps.known.contains_key(&made.place.ino));
    assert!(caps.leases[&US].to_release.is_empty(), "it is held");
    caps.check_invariants();
}
