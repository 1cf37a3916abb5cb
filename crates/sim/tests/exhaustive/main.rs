//! Exhaustive search of small cases over the real code: the linearizable order.
//!
//! | what | orders of arrival | states |
//! | --- | --- | --- |
//! | Skeen with READY: four messages in three groups, two of them over two groups, 12 cases | all | up to 1,700 |
//! | three of them over two groups | all | 9,400 |
//! | two messages over all three groups | all | 2,200 |
//! | PrimCast, linearizable, three groups of one: the chain of four messages of decision 8 | all | 19,000 |
//! | the same from equal clocks | all | 17,000 |
//! | four messages, two of them over two groups, 12 cases | all, in frames | up to 31,000 |
//! | two groups of three, two messages, by primaries (they speak for their groups), no change | all, in frames | up to 6,400 |
//! | a group of three and one message, the primary changes at any moment | all | 490 |
//! | a group of three and two messages, the same | all, in frames | 11,000 |
//! | groups of three and one and a message to both, the same, by primaries | all, in frames | 27,000 |
//! | a group of three and two messages, the primary stops at any moment and another takes over | all, in frames | 13,000 |
//! | groups of three and one and a message to both, the same, by primaries | all, in frames | 8,800 |
//! | two groups of three and a message to both, the same | all, in frames | 233,000 |
//! | groups of three and one, two messages, a change | two differences from a regular run | 125,000 |
//! | two groups of three, two messages, a change | one difference | 14,000 |
//!
//! States without a choice are not counted. *In frames*: what a process sends to another in one
//! step arrives together. What is left out of a search in all orders, and why it may be, is told in
//! [`model`]; that no end of a run is missed is tested. What a *bounded* search is worth is seen
//! from the planted bugs that it finds.
//!
//! More takes minutes. `cargo run --release -p meridian-sim --example exhaustive -- ARGS` searches
//! any case (on two cores; with `CASE` for `--suspect 1 --framed --near --acquainted`):
//!
//! | ARGS | states |
//! | --- | --- |
//! | `--groups 1,1,1 --messages fg,gh,g,g --clocks 0,4,9` (of the 12 cases the one with most steps) | 50,000 |
//! | `--groups 3,1 --messages fg --framed` | 56 |
//! | `--groups 3,3 --messages fg --framed` | 127,000, in 7 seconds |
//! | `--groups 3,3 --messages fg --framed --near`: groups that know nothing of each other yet | 11,000 |
//! | **`--groups 3,3 --messages fg,g --crash 0 CASE`**: two messages, the primary stops and another takes over | 2,650,000, in 4 minutes |
//! | `--groups 3,3 --messages fg CASE`: the primary need not have stopped | 500,000, in 47 seconds |
//! | `--groups 3,1 --messages fg,f CASE` | 765,000, in a minute |
//! | **`--groups 3,3 --messages fg,f --crash 0 CASE`**: both to the group that changes | 12,800,000, in 16 minutes |
//! | `--groups 3,3 --messages fg,f CASE` | no end: the first whole search had 144,000,000 in 28 minutes, and all held |
//! | `--groups 3,3 --messages fg,f --clocks 0,9 --suspect 1 --delay-bound 2` | 470,000 |
//! | the same with `--near` | 273,000 |
//! | the same with `--near --delay-bound 3` | 10,800,000, in 77 seconds |
//! | `--groups 1,1,1 --messages fg,gh,fh --framed`: three pairs, each group with each other | no end in 100 seconds |
//!
//! With `--compare` the ends of all runs are compared with those of a search that leaves nothing
//! out. They are the same in the cases of the test, and by hand in `--groups 3,2 --messages fg
//! --crash 0 CASE` (1,350 ends, 54 seconds), `--groups 3,1 --messages fg --crash 0 --suspect 1
//! --near --acquainted` (453) and `--groups 3 --messages f,f --suspect 1 --framed`, with `--near`
//! and without (442, 250).
//!
//! A search fails in which the primary of a group of three never changes.
//!
//! Each test prints its states (`-- --nocapture`).

mod before;
mod bounded;
mod cases;
mod futures;
mod locals;
mod model;
mod movers;
mod reduced;
mod relation;

use cases::{Case, Found, messages, search};
use meridian_baselines::skeen::{Skeen, Variant};
use meridian_core::ProcessId;
use meridian_multicast::Groups;
use meridian_multicast::{Dissemination, Mutation, Order};
use meridian_sim::of::multicast::short::Cluster;
use model::{DELIVERED, Multicasts, ORDER};

/// The groups f, g, h of decision 8.
const F: u16 = 0;
const G: u16 = 1;
const H: u16 = 2;

/// Decision 8: 1 and 2 over two groups, the others over one.
const CHAIN: [&[u16]; 4] = [&[F, G], &[G, H], &[H], &[F]];

fn holds(what: &str, found: &Found) {
    eprintln!("{what}: {found}");
    assert!(found.violated.is_empty(), "{what}: {:?}", found.violated);
}

/// A planted bug is found.
fn breaks(what: &str, property: &str, found: &Found) {
    eprintln!("{what}: {found}");
    assert!(found.violated.iter().any(|(violated, _)| *violated == property), "{what}");
}

/// Four messages, two of them over two groups, as far as they differ by more than the groups'
/// names. (The names of the other two decide nothing if they go to different groups.)
fn cases() -> impl Iterator<Item = [&'static [u16]; 4]> {
    const ONE: [&[u16]; 3] = [&[F], &[G], &[H]];
    const TWO: [&[u16]; 2] = [&[F, G], &[G, H]];
    let ones = || (0..3).flat_map(|a| (a..3).map(move |b| (ONE[a], ONE[b])));
    TWO.into_iter().flat_map(move |two| ones().map(move |(a, b)| [TWO[0], two, a, b]))
}

fn skeen(variant: Variant, case: &[&[u16]]) -> Found {
    let make = |me: ProcessId, groups: &Groups| Skeen::new(me, groups.clone(), variant);
    search(Multicasts::new(&Cluster::new(&[1; 3], 1, make), messages(case)))
}

#[test]
fn acks_do_not_order_four_messages() {
    for variant in [Variant::Plain, Variant::Ack] {
        breaks(&format!("{variant:?}"), ORDER, &skeen(variant, &CHAIN));
    }
}

#[test]
fn readiness_orders_four_messages() {
    for case in cases() {
        holds(&format!("READY, {case:?}"), &skeen(Variant::Ready, &case));
    }
    let three_pairs: [&[u16]; 4] = [&[F, G], &[G, H], &[F, H], &[F]];
    holds("READY, three pairs", &skeen(Variant::Ready, &three_pairs));
}

#[test]
fn readiness_orders_messages_to_three_groups() {
    let cases: [&[&[u16]]; 2] = [&[&[F, G, H], &[F, G, H]], &[&[F, G, H], &[F, G], &[H]]];
    for case in cases {
        holds(&format!("READY, {case:?}"), &skeen(Variant::Ready, case));
    }
}

/// Groups of one: all orders in which messages can arrive.
fn single(messages: &[&[u16]]) -> Case {
    Case::of(&[1; 3], messages)
}

/// The clocks of that chain: g's is at 4 and h's at 9 when the messages come.
fn chain() -> Case {
    Case { clocks: vec![0, 4, 9], ..single(&CHAIN) }
}

#[test]
fn linearizable_order_of_primcast_in_all_orders_of_arrival() {
    holds("the chain of the design", &chain().search());
    holds("the chain, clocks equal", &single(&CHAIN).search());
}

/// What is left out of the search is not missed.
#[test]
fn runs_end_alike_whether_all_is_explored_or_not() {
    let framed = |case| Case { framed: true, ..case };
    let pair = Case::of::<&[u16]>(&[1; 2], &[&[F, G], &[G]]);
    let three = Case::of(&[3], &[[F], [F]]);
    let changes = framed(suspected(&[3], &[&[F]]));
    let near = Case { dissemination: Dissemination::ViaLeader, ..changes.clone() };
    let singles = [2, 3].map(|most| framed(single(&CHAIN[..most])));
    let stops = |case| Case { stops: Some(0), framed: true, ..case };
    let stop = stops(suspected(&[3], &[&[F], &[F]]));
    let near_stops: [&[&[u16]]; 2] = [&[&[F, G]], &[&[F, G], &[G]]];
    let near_stops = near_stops.map(|messages| near_groups(stops(suspected(&[3, 1], messages))));
    let cases = singles.into_iter().chain([pair, three, changes, near, stop]);
    for case in cases.chain(near_stops) {
        let (few, all) = case.ends();
        eprintln!("{:?} to {:?}: {} ends", case.messages, case.sizes, all.len());
        assert!(few == all && all.len() > 1, "{case:?}: {} of {}", few.len(), all.len());
    }
}

/// What a process sends to another in one step arrives together, so that there is time for all of
/// these.
#[test]
fn linearizable_order_of_four_messages_in_frames() {
    for case in cases() {
        let found = Case { clocks: vec![0, 4, 9], framed: true, ..single(&case) }.search();
        holds(&format!("{case:?}, in frames"), &found);
    }
}

/// That the search of the chain finds what there is to find: cycles over three groups, and over
/// two.
#[test]
fn orders_that_are_none_are_found_wanting() {
    let sequential = |case| Case { order: Order::Sequential, ..case };
    breaks("Sequential, two pairs", ORDER, &sequential(single(&CHAIN[..2])).search());
    breaks("Sequential", ORDER, &sequential(chain()).search());
    for framed in [false, true] {
        let mutation = Mutation::IgnoresLinks;
        breaks("IgnoresLinks", ORDER, &Case { mutation, framed, ..chain() }.search());
        let found = Case { mutation, framed, ..single(&CHAIN[..2]) }.search();
        holds("IgnoresLinks, two pairs: it needs a chain", &found);
    }
}

/// f's second process may suspect the first at any moment, and takes over then: all orders of
/// arrival.
fn suspected(sizes: &[u16], messages: &[&[u16]]) -> Case {
    Case { suspicious: Some(1), ..Case::of(sizes, messages) }
}

#[test]
fn all_holds_while_the_primary_changes_in_all_orders_of_arrival() {
    holds("one message to [3]", &suspected(&[3], &[&[F]]).search());
    let two = Case { framed: true, ..suspected(&[3], &[&[F], &[F]]) };
    holds("two messages to [3]", &two.search());
    let near = near_groups(suspected(&[3, 1], &[&[F, G]]));
    holds("one message to [3, 1] by primaries", &near.search());
}

/// f's first process stops at any moment, and the second takes over.
#[test]
fn all_holds_when_the_primary_stops_in_all_orders_of_arrival() {
    let stops = |case| Case { stops: Some(0), framed: true, ..case };
    let three = stops(suspected(&[3], &[&[F], &[F]]));
    holds("two messages to [3], its primary stops", &three.search());
    let near = near_groups(stops(suspected(&[3, 1], &[&[F, G]])));
    holds("one to [3, 1] by primaries, the same", &near.search());
    let near = near_groups(stops(suspected(&[3, 3], &[&[F, G]])));
    holds("one to [3, 3] by primaries, the same", &near.search());
}

/// The primaries speak for their groups, which have heard of each other before.
fn near_groups(case: Case) -> Case {
    Case { dissemination: Dissemination::ViaLeader, acquainted: true, framed: true, ..case }
}

#[test]
fn linearizable_order_of_two_groups_of_three_in_all_orders_of_arrival() {
    let case = near_groups(Case { clocks: vec![0, 9], ..Case::of(&[3, 3], &[&[F, G][..], &[F]]) });
    holds("two messages to [3, 3] by primaries", &case.search());
    let found = Case { order: Order::Sequential, ..case.clone() }.search();
    breaks("Sequential, [3, 3]", ORDER, &found);
    let pairs = Case { messages: vec![vec![F, G]; 2], ..case };
    holds("both to [3, 3] by primaries", &pairs.search());
}

#[test]
fn planted_bugs_are_found_among_all_orders_of_arrival() {
    let planted = |case| Case { mutation: Mutation::NoOrder, framed: true, ..case };
    breaks("NoOrder", ORDER, &planted(suspected(&[3], &[&[F], &[F]])).search());
    let near =
        Case { dissemination: Dissemination::ViaLeader, ..suspected(&[3, 1], &[&[F, G], &[F]]) };
    breaks("NoOrder by primaries", ORDER, &planted(near).search());
}

/// 1 goes to f and g, 2 to f once 1 was delivered; meanwhile f's second process may take over from
/// the first. g's clock is ahead, so that f has timestamps left to order 2 before 1.
fn while_the_primary_changes(sizes: &[u16]) -> Case {
    let case = Case::of::<&[u16]>(sizes, &[&[F, G], &[F]]);
    Case { clocks: vec![0, 9], suspicious: Some(1), delay_bound: Some(1), ..case }
}

#[test]
fn linearizable_order_holds_while_the_primary_changes() {
    holds("groups of [3, 3]", &while_the_primary_changes(&[3, 3]).search());
    let two = Case { delay_bound: Some(2), ..while_the_primary_changes(&[3, 1]) };
    holds("groups of [3, 1], two differences", &two.search());
    holds("groups of [2, 2], it stays: two need it", &while_the_primary_changes(&[2, 2]).search());
    let pairs = Case { messages: vec![vec![F, G]; 2], ..while_the_primary_changes(&[3, 3]) };
    holds("both messages to [3, 3]", &pairs.search());
    for case in [pairs, two] {
        holds("by primaries", &Case { dissemination: Dissemination::ViaLeader, ..case }.search());
    }
}

#[test]
fn planted_bugs_are_found_while_the_primary_changes() {
    let case = while_the_primary_changes(&[3, 3]);
    let found = Case { order: Order::Sequential, ..case.clone() }.search();
    breaks("Sequential", ORDER, &found);
    // (Without the primary's clock nothing breaks in a group of three: it is in each quorum that a
    // follower hears of.)
    let found = Case { mutation: Mutation::NoOrder, ..case }.search();
    breaks("NoOrder", ORDER, &found);
    let mutation = Mutation::HidesRaisedClock;
    let found = Case { mutation, ..while_the_primary_changes(&[3, 1]) }.search();
    breaks("HidesRaisedClock", DELIVERED, &found);
}
