use super::*;
use crate::calls::CallId;
use meridian_core::{ClientId, GroupId, Stamp};
use meridian_fs::operation::Changes;
use meridian_fs::types::{Attributes, Ino, Kind, Timestamp};
use meridian_fs::{Answer, Done, Query, Update, Vector};
use meridian_host::update::Change;
use proptest::prelude::*;

const EU: GroupId = GroupId(2);
const NOW: Time = Time(1_000_000);
const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

fn place(number: u64) -> Place {
    Place { ino: Ino(100 + number), partition: EU }
}

fn attributes(place: Place) -> Attributes {
    Attributes {
        mode: 0o600,
        uid: 1,
        gid: 1,
        size: SIZE,
        stored: SIZE,
        ..Attributes::bare(place, Kind::File)
    }
}

/// Of a file of blocks of a MiB each, with a hole in place of each fifth.
fn extents(range: Range<u64>) -> Vec<(u64, Extent)> {
    let mut found = Vec::new();
    for block in range.start / MIB..range.end.div_ceil(MIB) {
        let from = range.start.max(block * MIB);
        let to = range.end.min((block + 1) * MIB);
        let data = Data::Block { block: BlockId(block.into()), start: (from % MIB) as u32 };
        if block % 5 != 4 && from < to {
            found.push((from, Extent { len: (to - from) as u32, data }));
        }
    }
    found
}

fn query(place: Place, range: Range<u64>) -> Query {
    Query::Contents { inode: place, offset: range.start, len: range.end - range.start }
}

fn answer(place: Place, range: Range<u64>) -> Answer {
    let extents = extents(range.start..range.end.min(SIZE));
    Answer::Contents { attributes: attributes(place), extents, end: range.end }
}

/// Of a client that holds these files.
fn holding(files: u64) -> Caps {
    let mut caps = Caps::new(ClientId(5));
    caps.turn_on();
    caps.extend(NOW, EU, NOW);
    (0..files).for_each(|number| caps.hold(NOW, place(number)));
    caps
}

/// A node has answered that.
fn shown(caps: &mut Caps, number: u64, range: Range<u64>, begun: u64) {
    let (query, answer) = (query(place(number), range.clone()), answer(place(number), range));
    caps.fill(NOW, &query, (begun, true), &Ok(answer));
}

fn look(caps: &mut Caps, number: u64, range: Range<u64>) -> Option<Answer> {
    let found = caps.answer(NOW, &query(place(number), range), &Vector::default());
    found.map(|answer| answer.unwrap())
}

fn begin(caps: &mut Caps) {
    let update = Update::SetAttributes { inode: place(0), changes: Changes::default() };
    caps.begin_update(NOW, CallId(1), &Change::new(Timestamp::default(), update));
}

fn end(caps: &mut Caps) {
    caps.end_update(NOW, CallId(1), Stamp(9), &mut Ok(Done::Attributes(attributes(place(0)))));
}

#[test]
fn who_reads_on_in_a_file_that_is_held_asks_once() {
    let mut caps = holding(2);
    let (now, ahead) = (caps.begin_read(), 9 * MIB + 4096..17 * MIB + 4096);
    assert_eq!(look(&mut caps, 0, ahead.clone()), None);
    shown(&mut caps, 0, ahead.clone(), now);
    assert_eq!(look(&mut caps, 0, ahead.clone()), Some(answer(place(0), ahead)));
    let part = 10 * MIB + 512..11 * MIB + 1024;
    assert_eq!(look(&mut caps, 0, part.clone()), Some(answer(place(0), part.clone())));
    assert_eq!(look(&mut caps, 1, part), None);
    assert_eq!(look(&mut caps, 0, 9 * MIB..10 * MIB), None, "not all of it is known");
    assert_eq!(look(&mut caps, 0, 17 * MIB..17 * MIB + 4097), None);
    // What follows meets it within a block, which is one again.
    shown(&mut caps, 0, 17 * MIB + 4096..20 * MIB, now);
    let across = 17 * MIB..18 * MIB;
    assert_eq!(look(&mut caps, 0, across.clone()), Some(answer(place(0), across)));
}

#[test]
fn the_end_of_a_file_is_known_as_far_as_the_file_goes() {
    let mut caps = holding(1);
    let (now, last) = (caps.begin_read(), SIZE - MIB..SIZE + MIB);
    shown(&mut caps, 0, last.clone(), now);
    assert_eq!(look(&mut caps, 0, last.clone()), Some(answer(place(0), last)));
    assert_eq!(look(&mut caps, 0, SIZE..SIZE + 1), None);
}

/// K1.
#[test]
fn what_the_client_changes_is_asked_for_anew() {
    let (range, mut caps) = (8 * MIB..16 * MIB, holding(2));
    let before = caps.begin_read();
    (0..2).for_each(|number| shown(&mut caps, number, range.clone(), before));
    begin(&mut caps);
    assert_eq!(look(&mut caps, 0, range.clone()), None);
    let meanwhile = caps.begin_read();
    shown(&mut caps, 0, range.clone(), meanwhile);
    end(&mut caps);
    for early in [before, meanwhile] {
        shown(&mut caps, 0, range.clone(), early);
        assert_eq!(look(&mut caps, 0, range.clone()), None);
    }
    assert!(look(&mut caps, 1, range.clone()).is_some());
    let after = caps.begin_read();
    shown(&mut caps, 0, range.clone(), after);
    assert!(look(&mut caps, 0, range).is_some());
}

/// K1, K2 and K4.
#[test]
fn it_goes_with_all_else_that_is_kept() {
    let range = 8 * MIB..16 * MIB;
    let fresh = || {
        let mut caps = holding(1);
        let now = caps.begin_read();
        shown(&mut caps, 0, 8 * MIB..16 * MIB, now);
        caps
    };
    let mut recalled = fresh();
    assert!(look(&mut recalled, 0, range.clone()).is_some());
    let before = recalled.begin_read();
    recalled.heard(NOW, EU, Stamp(1), &[place(0).ino]);
    assert_eq!(look(&mut recalled, 0, range.clone()), None);
    shown(&mut recalled, 0, range.clone(), before);
    assert_eq!(look(&mut recalled, 0, range.clone()), None);
    let later = NOW + super::super::SPAN;
    let query = query(place(0), range.clone());
    assert_eq!(fresh().answer(later, &query, &Vector::default()), None);
    // A read that began before the grant.
    let mut caps = Caps::new(ClientId(5));
    caps.turn_on();
    caps.extend(NOW, EU, NOW);
    let before = caps.begin_read();
    caps.hold(NOW, place(0));
    shown(&mut caps, 0, range.clone(), before);
    assert_eq!(look(&mut caps, 0, range), None);
}

#[test]
fn who_reads_on_in_a_long_file_comes_to_hold_it() {
    let asks = |ranges: [Range<u64>; 3]| {
        let mut caps = holding(0);
        for range in ranges {
            shown(&mut caps, 0, range, 0);
        }
        caps.leases[&EU].wanted.contains(&place(0).ino)
    };
    assert!(asks([MIB..2 * MIB, 2 * MIB..3 * MIB, 3 * MIB..4 * MIB]));
    assert!(!asks([0..MIB, 0..MIB, MIB..2 * MIB]), "the beginning of many files is read");
    assert!(!asks([SIZE - 3..SIZE, SIZE - 2..SIZE, SIZE - 1..SIZE]), "so is the end of logs");
}

/// A quarter of the parts that there may be, and the range in which they lie.
fn quarter() -> (Range<u64>, Vec<(u64, Extent)>) {
    let part = |at: u64| {
        let data = Data::Block { block: BlockId(at.into()), start: 0 };
        (at * 64, Extent { len: 64, data })
    };
    let parts: Vec<_> = (0..PARTS_MAX as u64 / 4).map(part).collect();
    (0..parts.len() as u64 * 64, parts)
}

fn kept(caps: &Caps) -> usize {
    let layouts = caps.known.values().filter_map(|known| known.layout.value.as_ref());
    layouts.map(|layout| layout.parts.len()).sum()
}

#[test]
fn no_more_is_kept_than_there_may_be() {
    let mut caps = holding(9);
    let (now, (range, parts)) = (caps.begin_read(), quarter());
    for number in 0..9 {
        caps.fill_layout(NOW, (place(number), now), (range.clone(), SIZE), &parts);
        assert!(kept(&caps) <= PARTS_MAX && kept(&caps) >= parts.len());
    }
}

#[test]
fn parts_that_have_gone_do_not_count() {
    let mut caps = holding(2);
    let (now, (range, parts)) = (caps.begin_read(), quarter());
    caps.fill_layout(NOW, (place(1), now), (0..64, SIZE), &parts[..1]);
    for _ in 0..9 {
        caps.fill_layout(NOW, (place(0), now), (range.clone(), SIZE), &parts);
        assert_eq!(kept(&caps), parts.len() + 1, "each reading takes the place of the last");
    }
}

proptest! {
    /// L1 and L2.
    #[test]
    fn what_is_known_is_what_a_replica_says(
        reads in prop::collection::vec((0..SIZE, 1..9 * MIB), 1..20),
        asked in prop::collection::vec((0..SIZE, 1..3 * MIB), 20),
    ) {
        let mut layout = Layout::default();
        let mut known: Vec<Range<u64>> = Vec::new();
        for (start, len) in reads {
            let range = start..start + len;
            let parts = extents(range.clone());
            layout.add(range.clone(), parts.iter().map(|(at, of)| (*at, Part::of(of).unwrap())));
            known.push(range);
            let mut last = None;
            for (from, to) in &layout.shown {
                prop_assert!(from < to && last.is_none_or(|last| last < *from), "L1");
                last = Some(*to);
            }
        }
        for (start, len) in asked {
            let range = start..start + len;
            let mut at = start;
            while let Some(more) = known.iter().find(|of| of.contains(&at)) {
                at = more.end;
            }
            let found = layout.get(range.clone());
            prop_assert_eq!(found, (at >= range.end).then(|| extents(range)), "L2");
        }
    }
}
