//! Exhaustive search of small cases over the real code: the linearizable order.
//!
//! Skeen's algorithm and the simplest cases of PrimCast are searched in all orders. The linearizable order of
//! PrimCast says much more, and the number of orders grows with each message by a factor of about a hundred: there the
//! search is bounded ([`Slow`], [`Multicasts::framed`]), which is less than a proof. What the bounds
//! are worth is seen from the planted bugs that they find.
//!
//! Each test prints how many states it met; `-- --nocapture` shows it.
//! `DEEPER=1 cargo test -p meridian-sim --test exhaustive NAME` allows one more difference where the search is
//! bounded by their number, for 10 to 30 times as many states.

mod model;

use meridian_core::{ClientId, GroupId, MessageId, ProcessId};
use meridian_multicast::process::Groups;
use meridian_multicast::skeen::{Skeen, Variant};
use meridian_multicast::{Mutation, Options, Order, PrimCast, Start, Timestamp};
use meridian_sim::search::Cluster;
use model::{Checked, DELIVERED, Multicasts, ORDER, Slow};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::time::Duration;

/// The groups f, g, h of the design.
const F: u16 = 0;
const G: u16 = 1;
const H: u16 = 2;

/// A message of that name; its timestamps are greater than `after`.
fn start(name: u64, dest: &[u16], after: u64) -> Start {
    let id = MessageId { client: ClientId(name), sequence: 1 };
    let dest: Vec<_> = dest.iter().map(|group| GroupId(*group)).collect();
    Start { after: Timestamp(after), ..Start::new(id, dest, Vec::new()) }
}

/// Messages 1, 2, .. to these groups, sent at any time.
fn messages<D: AsRef<[u16]>>(dest: &[D]) -> Vec<(Start, Option<usize>)> {
    (1..).zip(dest).map(|(name, dest)| (start(name, dest.as_ref(), 0), None)).collect()
}

fn skeen(groups: usize, variant: Variant) -> Cluster<Skeen> {
    let make = |me: ProcessId, groups: &Groups| Skeen::new(me, groups.clone(), variant);
    Cluster::new(&[1].repeat(groups), 1, make)
}

fn primcast(sizes: &[u16], order: Order, mutation: Mutation) -> Cluster<PrimCast> {
    let options = Options { order, ..Options::default() };
    let make = |me, groups: &Groups| {
        PrimCast::new(me, groups.clone()).with_options(options).with_mutation(mutation)
    };
    Cluster::new(sizes, 1, make).settle(Duration::from_secs(3))
}

/// What is violated, and in how many states.
fn explore<P: Checked>(model: Multicasts<P>) -> (BTreeSet<&'static str>, usize) {
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    let found: BTreeSet<_> = checker.discoveries().into_keys().collect();
    (found, checker.unique_state_count())
}

fn holds<P: Checked>(what: &str, model: Multicasts<P>) {
    let (found, states) = explore(model);
    eprintln!("{what}: {states} states");
    assert_eq!(found, BTreeSet::new(), "{what}");
}

/// A planted bug is found.
fn breaks<P: Checked>(what: &str, property: &str, model: Multicasts<P>) {
    let (found, states) = explore(model);
    eprintln!("{what}: found in {states} states");
    assert!(found.contains(property), "{what}: {found:?}");
}

fn differences(times: u8) -> Slow {
    let more: u8 = std::env::var("DEEPER").map_or(0, |more| more.parse().expect("a number"));
    Slow { times: times + more, ..Slow::default() }
}

/// Design, section 4.4: 1 and 2 over two groups, the others over one.
const CHAIN: [&[u16]; 4] = [&[F, G], &[G, H], &[H], &[F]];

/// Four messages, two of them over two groups, as far as they differ by more than the groups' names.
fn cases() -> impl Iterator<Item = [&'static [u16]; 4]> {
    const ONE: [&[u16]; 3] = [&[F], &[G], &[H]];
    const TWO: [&[u16]; 2] = [&[F, G], &[G, H]];
    let ones = || ONE.into_iter().flat_map(|a| ONE.map(|b| (a, b)));
    TWO.into_iter().flat_map(move |two| ones().map(move |(a, b)| [TWO[0], two, a, b]))
}

#[test]
fn acks_do_not_order_four_messages() {
    for variant in [Variant::Plain, Variant::Ack] {
        let model = Multicasts::new(&skeen(3, variant), messages(&CHAIN));
        breaks(&format!("{variant:?}"), ORDER, model);
    }
}

#[test]
fn readiness_orders_four_messages() {
    let cluster = skeen(3, Variant::Ready);
    for case in cases() {
        holds(&format!("READY, {case:?}"), Multicasts::new(&cluster, messages(&case)));
    }
    let three_pairs: [&[u16]; 4] = [&[F, G], &[G, H], &[F, H], &[F]];
    holds("READY, three pairs", Multicasts::new(&cluster, messages(&three_pairs)));
}

#[test]
fn readiness_orders_messages_to_three_groups() {
    let cluster = skeen(3, Variant::Ready);
    let cases: [&[&[u16]]; 2] = [&[&[F, G, H], &[F, G, H]], &[&[F, G, H], &[F, G], &[H]]];
    for case in cases {
        holds(&format!("READY, {case:?}"), Multicasts::new(&cluster, messages(case)));
    }
}

fn single_processes(order: Order) -> Cluster<PrimCast> {
    primcast(&[1; 3], order, Mutation::Correct)
}

#[test]
fn linearizable_order_of_primcast_in_all_orders_of_arrival() {
    let cluster = single_processes(Order::Linearizable);
    let cases: [&[&[u16]]; 2] = [&[&[F, G], &[G]], &[&[F, G], &[F], &[G]]];
    for case in cases {
        holds(&format!("PrimCast, {case:?}"), Multicasts::new(&cluster, messages(case)));
    }
    let model = Multicasts::new(&cluster, messages(&CHAIN[..2])).framed();
    holds("PrimCast, two pairs, framed", model);
}

#[test]
fn sequential_order_of_primcast_is_found_wanting() {
    let cluster = single_processes(Order::Sequential);
    breaks("Sequential", ORDER, Multicasts::new(&cluster, messages(&CHAIN[..2])));
}

/// Each message after the first two is sent once the one before it was delivered, or at any other time.
fn in_turn(case: &[&[u16]]) -> Vec<(Start, Option<usize>)> {
    let mut messages = messages(case);
    for (at, (_, after)) in messages.iter_mut().enumerate().skip(2) {
        *after = Some(at - 1);
    }
    messages
}

/// g's clock is at 4 and h's at 9, when the messages come.
fn from_different_clocks(order: Order, case: &[&[u16]], slow: Slow) -> Multicasts<PrimCast> {
    let cluster = single_processes(order);
    let clocks = vec![start(8, &[G], 3), start(9, &[H], 8)];
    Multicasts::new(&cluster, in_turn(case)).preceded_by(&cluster, clocks).bounded(slow)
}

#[test]
fn linearizable_order_of_primcast_with_three_differences() {
    let model = from_different_clocks(Order::Linearizable, &CHAIN, differences(3));
    holds("PrimCast, the chain", model);
}

#[test]
fn linearizable_order_of_primcast_with_one_difference() {
    for case in cases() {
        let model = from_different_clocks(Order::Linearizable, &case, differences(1));
        holds(&format!("PrimCast, {case:?}"), model);
    }
}

#[test]
fn sequential_order_breaks_with_one_difference() {
    let model = from_different_clocks(Order::Sequential, &CHAIN, differences(1));
    breaks("Sequential", ORDER, model);
}

/// 1 goes to f and g, 2 to f once 1 was delivered; meanwhile f's second process may take over from the first.
/// g's clock is ahead, so that f has timestamps left to order 2 before 1.
fn while_the_primary_changes(
    sizes: &[u16],
    order: Order,
    mutation: Mutation,
) -> Multicasts<PrimCast> {
    let cluster = primcast(sizes, order, mutation);
    let slow = Slow { suspicious: 0b10, ticks: 6, ..differences(1) };
    let messages = vec![(start(1, &[F, G], 0), None), (start(2, &[F], 0), Some(0))];
    Multicasts::new(&cluster, messages).preceded_by(&cluster, vec![start(9, &[G], 8)]).bounded(slow)
}

#[test]
fn linearizable_order_holds_while_the_primary_changes() {
    for sizes in [[3, 1], [3, 3]] {
        let model = while_the_primary_changes(&sizes, Order::Linearizable, Mutation::Correct);
        holds(&format!("PrimCast, {sizes:?}"), model);
    }
}

#[test]
fn planted_bugs_are_found_while_the_primary_changes() {
    let planted = [
        ([3, 3], Order::Sequential, Mutation::Correct, ORDER),
        ([3, 3], Order::Linearizable, Mutation::NoLeaderClock, ORDER),
        ([3, 3], Order::Linearizable, Mutation::NoOrder, ORDER),
        ([3, 1], Order::Linearizable, Mutation::HidesRaisedClock, DELIVERED),
    ];
    for (sizes, order, mutation, property) in planted {
        let model = while_the_primary_changes(&sizes, order, mutation);
        breaks(&format!("{sizes:?} {order:?} {mutation:?}"), property, model);
    }
}
