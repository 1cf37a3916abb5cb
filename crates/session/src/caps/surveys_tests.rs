use super::*;
use crate::calls::Keeping;
use meridian_core::{ClientId, Time};
use meridian_fs::types::{Attributes, Entry, Kind};
use meridian_fs::{Answer, FsError, Query, Vector};

const EU: GroupId = GroupId(2);
const NOW: Time = Time(1_000_000);
const DIRECTORY: Place = Place { ino: Ino(7), partition: EU };

fn name(number: u32) -> Name {
    format!("{number:06}").into()
}

/// Of a client that holds a directory of which it knows no names, and is told that it does so
/// exclusively.
fn holding_alone() -> Caps {
    let mut caps = Caps::new(ClientId(5));
    caps.turn_on();
    caps.keep_back(Some(Keeping::Files));
    caps.extend(NOW, EU, NOW);
    caps.hold(NOW, DIRECTORY);
    let known = caps.known.get_mut(&DIRECTORY.ino).unwrap();
    known.attributes.value = Some(Attributes::bare(DIRECTORY, Kind::Directory));
    caps.on_ended(NOW, EU, (Errand::GrantExclusive(DIRECTORY.ino), NOW), Some(vec![DIRECTORY.ino]));
    caps
}

/// The next page that is asked for, by the name after which it begins.
fn asked(caps: &mut Caps) -> Option<Name> {
    let mut errands = std::iter::from_fn(|| caps.next_errand(NOW));
    errands.find_map(|(group, errand)| match errand {
        Errand::Survey(directory, after) => {
            assert_eq!((group, directory), (EU, DIRECTORY));
            Some(after)
        }
        _ => None,
    })
}

/// A node shows these entries after that name; `whole`: it lacks nothing.
fn show(caps: &mut Caps, after: &Name, numbers: std::ops::Range<u32>, (end, whole): (bool, bool)) {
    let entry = |number| {
        let place = Place { ino: Ino(100 + u64::from(number)), partition: EU };
        (name(number), Entry { place, kind: Kind::File }, None)
    };
    let entries = numbers.map(entry).collect();
    let (parent, tops) = (Place::top(EU), Vec::new());
    let query = Query::Directory { inode: DIRECTORY, after: after.clone(), limit: 256 };
    let answer = Ok(Answer::Directory { entries, end, parent, tops });
    caps.fill(NOW, &query, (caps.count, whole), &answer);
    caps.on_surveyed(DIRECTORY.ino);
}

fn look(caps: &mut Caps, number: u32) -> Option<Result<Answer, FsError>> {
    let query = Query::Lookup { parent: DIRECTORY, name: name(number) };
    caps.answer(NOW, &query, &Vector::default())
}

#[test]
fn what_is_absent_is_known_once_all_pages_have_come() {
    let mut caps = holding_alone();
    let first = asked(&mut caps);
    assert_eq!((first, asked(&mut caps)), (Some(Name::new()), None), "one page at a time");
    show(&mut caps, &Name::new(), 0..256, (false, true));
    assert_eq!(look(&mut caps, 999), None, "a later page may have it");
    let second = asked(&mut caps);
    assert_eq!(second, Some(name(255)));
    show(&mut caps, &name(255), 256..300, (true, true));
    assert_eq!(look(&mut caps, 999), Some(Err(FsError::NotFound)));
    assert!(matches!(look(&mut caps, 299), Some(Ok(_))));
    assert_eq!((asked(&mut caps), caps.surveys.len()), (None, 0));
}

#[test]
fn a_page_that_lacks_something_ends_it_and_nothing_is_absent() {
    let mut caps = holding_alone();
    asked(&mut caps);
    show(&mut caps, &Name::new(), 0..3, (true, false));
    assert_eq!((asked(&mut caps), look(&mut caps, 999)), (None, None));
}

#[test]
fn a_question_that_fails_ends_it() {
    let mut caps = holding_alone();
    let after = asked(&mut caps).unwrap();
    caps.on_ended(NOW, EU, (Errand::Survey(DIRECTORY, after), NOW), None);
    assert_eq!((asked(&mut caps), caps.surveys.len()), (None, 0));
}

#[test]
fn a_directory_of_very_many_entries_is_not_asked_for_to_its_end() {
    let (mut caps, mut pages) = (holding_alone(), 0);
    while let Some(after) = asked(&mut caps) {
        show(&mut caps, &after, pages * 256..(pages + 1) * 256, (false, true));
        pages += 1;
    }
    assert_eq!((pages, look(&mut caps, 999_999)), (PAGES_MAX, None));
}

/// Who lets the directory go, as it is recalled or the lease ends, asks no more.
#[test]
fn a_directory_that_is_let_go_is_not_asked_for() {
    let mut caps = holding_alone();
    caps.let_go(&[(EU, DIRECTORY.ino)]);
    assert_eq!((asked(&mut caps), caps.surveys.len()), (None, 0));
}
