//! Exhaustive search.
mod model;
use meridian_core::{ClientId, GroupId, MessageId, ProcessId};
use meridian_multicast::process::Groups;
use meridian_multicast::skeen::{Skeen, Variant};
use meridian_multicast::{Options, Order, PrimCast, Start};
use meridian_sim::search::Cluster;
use model::{Checked, Multicasts, Slow};
use stateright::{Checker, HasDiscoveries, Model};
use std::time::Duration;

fn starts(dest: &[&[u16]]) -> Vec<Start> {
    let start = |(name, dest): (u64, &&[u16])| {
        let id = MessageId { client: ClientId(name), sequence: 1 };
        let dest: Vec<_> = dest.iter().map(|group| GroupId(*group)).collect();
        Start::new(id, dest, Vec::new())
    };
    (1..).zip(dest).map(start).collect()
}

fn skeen(groups: usize, variant: Variant) -> Cluster<Skeen> {
    let make = |me: ProcessId, groups: &Groups| Skeen::new(me, groups.clone(), variant);
    Cluster::new(&[1].repeat(groups), 1, make)
}

fn primcast(sizes: &[u16], order: Order) -> Cluster<PrimCast> {
    let options = Options { order, ..Options::default() };
    let make = |me, groups: &Groups| PrimCast::new(me, groups.clone()).with_options(options);
    Cluster::new(sizes, 1, make).settle(Duration::from_secs(3))
}

fn look<P: Checked>(name: &str, m: Multicasts<P>) {
    let start = std::time::Instant::now();
    let checker = m.checker().finish_when(HasDiscoveries::AnyFailures).threads(1).timeout(Duration::from_secs(30)).spawn_dfs().join();
    println!("{name} {} unique, {} generated, depth {}, {:?} found {:?}", checker.unique_state_count(), checker.state_count(), checker.max_depth(), start.elapsed(), checker.discoveries().keys().collect::<Vec<_>>());
}

fn chain() -> Vec<(Start, Option<usize>)> {
    let mut s: Vec<_> = starts(&[&[0,1], &[1,2], &[2], &[0]]).into_iter().map(|s| (s, None)).collect();
    s[2].1 = Some(1);
    s[3].1 = Some(2);
    s
}
fn two() -> Vec<(Start, Option<usize>)> {
    let mut s: Vec<_> = starts(&[&[0,1], &[0]]).into_iter().map(|s| (s, None)).collect();
    s[1].1 = Some(0);
    s
}

#[test]
fn try_it() {
    for times in 0..3 {
        let slow = Slow { times, ..Slow::default() };
        for order in [Order::Sequential, Order::Linearizable] {
            look(&format!("chain {order:?} {times}"), Multicasts::new(&primcast(&[1,1,1], order), chain()).bounded(slow));
        }
    }
    for times in 0..2 {
        for sus in [0, 0b10] {
        let slow = Slow { times, suspicious: sus, ticks: 6 };
        for order in [Order::Sequential, Order::Linearizable] {
            look(&format!("two {order:?} {times} {sus}"), Multicasts::new(&primcast(&[3,3], order), two()).bounded(slow));
        }
        }
    }
}
