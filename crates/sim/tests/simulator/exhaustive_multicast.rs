//! Exhaustive search of small cases of PrimCast over the real code: the linearizable order, while
//! nothing fails, while the primary of a group changes, and when it stops.
//!
//! Groups of one, and a change in one group of three, are searched in all orders of arrival. Larger
//! cases are searched with a delay bound: what it is worth is seen from the planted bugs that such
//! searches find. The sizes, and what more a machine can do in minutes, are in
//! docs/decisions/0020-one-kit-for-every-simulated-protocol.md.
//!
//! A search fails in which the primary of a group of three never changes. Each test prints its
//! states (`-- --nocapture`).

use meridian_baselines::skeen::{Skeen, Variant};
use meridian_core::ProcessId;
use meridian_multicast::{Dissemination, Groups, Mutation, Order};
use meridian_sim::explore::{DONE, Found};
use meridian_sim::of::multicast::explored::{Case, ORDER, search_single};

/// The groups f, g, h of decision 8.
const F: u16 = 0;
const G: u16 = 1;
const H: u16 = 2;

/// Decision 8: 1 and 2 over two groups, the others over one.
const CHAIN: [&[u16]; 4] = [&[F, G], &[G, H], &[H], &[F]];

fn holds(what: &str, found: &Found) {
    eprintln!("{what}: {found}");
    assert!(found.violated.is_none(), "{what}: {:?}", found.violated);
    assert!(found.reached, "{what}: the primary never changes");
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
    search_single(3, case, |me: ProcessId, groups: &Groups| Skeen::new(me, groups.clone(), variant))
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

/// Groups of one.
fn single(messages: &[&[u16]]) -> Case {
    Case::of(&[1; 3], messages)
}

/// The clocks of that chain: g's is at 4 and h's at 9 when the messages come.
fn chain() -> Case {
    Case { clocks: vec![0, 4, 9], ..single(&CHAIN) }
}

fn framed(case: Case) -> Case {
    Case { framed: true, ..case }
}

/// f's second process may suspect the first at any moment, and takes over then.
fn suspected(sizes: &[u16], messages: &[&[u16]]) -> Case {
    Case { suspect: Some(1), ..Case::of(sizes, messages) }
}

/// f's first process stops at any moment, and the second takes over.
fn stops(sizes: &[u16], messages: &[&[u16]]) -> Case {
    Case { crash: Some(0), framed: true, ..suspected(sizes, messages) }
}

/// The primaries speak for their groups, which have heard of each other before.
fn near_groups(case: Case) -> Case {
    Case { dissemination: Dissemination::ViaLeader, acquainted: true, framed: true, ..case }
}

fn bounded(delays: u8, case: Case) -> Case {
    Case { delays: Some(delays), ..case }
}

#[test]
fn linearizable_order_of_primcast_in_all_orders_of_arrival() {
    holds("the chain of the design", &chain().search());
    holds("the chain, clocks equal", &single(&CHAIN).search());
}

/// What a process sends to another in one step arrives together, so that there is time for all of
/// these.
#[test]
fn linearizable_order_of_four_messages_in_frames() {
    for case in cases() {
        let found = Case { clocks: vec![0, 4, 9], ..framed(single(&case)) }.search();
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

/// What persistent sets leave out of a search is not missed: runs end alike, and each process gets
/// into the same states by the same steps.
#[test]
fn runs_end_alike_whether_all_is_explored_or_not() {
    let pair = Case::of::<&[u16]>(&[1; 2], &[&[F, G], &[G]]);
    let three = Case::of(&[3], &[[F], [F]]);
    let changes = framed(suspected(&[3], &[&[F]]));
    let near = Case { dissemination: Dissemination::ViaLeader, ..changes.clone() };
    let singles = [2, 3].map(|most| framed(single(&CHAIN[..most])));
    let stop = stops(&[3], &[&[F], &[F]]);
    let near_stop = near_groups(stops(&[3, 1], &[&[F, G]]));
    let cases = [pair, three, changes, near, stop, near_stop];
    for case in cases.into_iter().chain(singles) {
        let few = case.search();
        let all = Case { reduced: false, ..case.clone() }.search();
        let ends = all.ends.len();
        eprintln!("{:?} to {:?}: {ends} ends; {few}; {all}", case.messages, case.sizes);
        assert!(few.ends == all.ends && ends > 1, "{case:?}: {} of {ends}", few.ends.len());
        assert_eq!(few.processes, all.processes, "{case:?}");
        assert!(few.states < all.states, "{case:?}: nothing was left out");
    }
}

#[test]
fn all_holds_while_the_primary_changes() {
    holds("one message to [3]", &suspected(&[3], &[&[F]]).search());
    holds("two messages to [3]", &framed(suspected(&[3], &[&[F], &[F]])).search());
    let near = near_groups(suspected(&[3, 1], &[&[F, G]]));
    holds("one to [3, 1] by primaries", &bounded(3, near).search());
}

#[test]
fn all_holds_when_the_primary_stops() {
    holds("two messages to [3]", &stops(&[3], &[&[F], &[F]]).search());
    let near = near_groups(stops(&[3, 1], &[&[F, G]]));
    holds("one to [3, 1] by primaries", &near.search());
    for messages in [&[&[F, G][..]][..], &[&[F, G], &[F]], &[&[F, G], &[G]]] {
        let near = near_groups(stops(&[3, 3], messages));
        holds(&format!("{messages:?} to [3, 3] by primaries"), &bounded(2, near).search());
    }
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
    let planted = |case| Case { mutation: Mutation::NoOrder, ..framed(case) };
    breaks("NoOrder", ORDER, &planted(suspected(&[3], &[&[F], &[F]])).search());
    let near = suspected(&[3, 1], &[&[F, G], &[F]]);
    let near = Case { dissemination: Dissemination::ViaLeader, ..near };
    breaks("NoOrder by primaries", ORDER, &planted(near).search());
}

/// 1 goes to f and g, 2 to f once 1 was delivered; meanwhile f's second process may take over from
/// the first. g's clock is ahead, so that f has timestamps left to order 2 before 1.
fn while_the_primary_changes(sizes: &[u16]) -> Case {
    bounded(1, Case { clocks: vec![0, 9], ..suspected(sizes, &[&[F, G], &[F]]) })
}

#[test]
fn linearizable_order_holds_while_the_primary_changes() {
    holds("groups of [3, 3]", &while_the_primary_changes(&[3, 3]).search());
    let two = bounded(2, while_the_primary_changes(&[3, 1]));
    holds("groups of [3, 1], two delays", &two.search());
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
    breaks("HidesRaisedClock", DONE, &found);
}
