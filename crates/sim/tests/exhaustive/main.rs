//! Exhaustive search.
mod model;
use meridian_core::{ClientId, GroupId, MessageId, ProcessId};
use meridian_multicast::process::Groups;
use meridian_multicast::skeen::{Skeen, Variant};
use meridian_multicast::{Options, Order, PrimCast, Start};
use meridian_sim::search::Cluster;
use model::{Checked, Multicasts};
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

fn look<P: Checked>(cluster: &Cluster<P>, dest: &[&[u16]], real_time: bool) {
    let start = std::time::Instant::now();
    let mut m = Multicasts::new(cluster, starts(dest));
    m.real_time = real_time;
    let checker = m
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .threads(1)
        .timeout(Duration::from_secs(40))
        .spawn_dfs()
        .join();
    println!(
        "{dest:?} {} unique, {} generated, depth {}, {:?} found {:?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed(),
        checker.discoveries().keys().collect::<Vec<_>>()
    );
}

#[test]
fn try_it() {
    for (sizes, dest) in [
        (&[3u16, 3][..], &[&[0u16, 1][..]][..]),
        (&[3, 3], &[&[0, 1], &[0]]),
        (&[3, 1], &[&[0, 1], &[0]]),
    ] {
        let m = Multicasts::new(&primcast(sizes, Order::Sequential), starts(dest));
        let mut state = m.init_states().pop().unwrap();
        let mut n = 0;
        loop {
            let mut a = Vec::new();
            m.actions(&state, &mut a);
            let Some(x) = a.into_iter().next() else { break };
            n += 1;
            state = m.next_state(&state, x).unwrap();
        }
        println!("{sizes:?} {dest:?} {n}");
    }
}
