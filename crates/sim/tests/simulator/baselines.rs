//! The protocols that PrimCast is compared with, and PrimCast itself, under the same random work:
//! the properties of atomic multicast must hold for all. Nothing fails: that is all that the
//! baselines are made for.

use crate::contenders::*;
use meridian_core::{ClientId, GroupId, MessageId};
use meridian_multicast::{Groups, Protocol, Start};
use meridian_sim::of::multicast::checkers::{check_agreement, check_safety, check_validity};
use meridian_sim::of::multicast::plain::Plain;
use meridian_sim::of::multicast::replica::groups_of;
use meridian_sim::of::multicast::short::{Cluster, Links, Profile};
use meridian_sim::{Random, World, each_seed};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// In which so many messages are sent that many are under way at any moment.
const SPAN: Duration = Duration::from_millis(100);
/// Longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Messages of a few clients, from random processes to random groups below `reach`, all in a short
/// time.
fn plan<P: Protocol>(
    world: &mut World<P, Plain<P>>,
    groups: &Groups,
    reach: u16,
    random: &mut Random,
) {
    let senders: Vec<_> = processes(groups).into_iter().filter(|p| p.group.0 < reach).collect();
    let all: Vec<_> = groups.keys().copied().filter(|group| group.0 < reach).collect();
    for sequence in 1..=random.random_range(20..=80) {
        let count = random.random_range(1..=all.len());
        let mut dest: Vec<GroupId> = all.sample(random, count).copied().collect();
        dest.sort_unstable();
        let id = MessageId { client: ClientId(random.random_range(1..=3)), sequence };
        let at = *senders.choose(random).expect("groups have members");
        world.multicast(
            at,
            Start::new(id, dest, vec![1]),
            random.random_range(Duration::ZERO..SPAN),
        );
    }
}

/// One run; answers the processes that said or heard anything.
fn run<P: Protocol + 'static>(
    contender: &Contender<P>,
    sizes: &[u16],
    reach: u16,
    seed: u64,
) -> usize {
    let mut random = Random::seed_from_u64(seed);
    let groups: Groups = Arc::new(groups_of(sizes));
    let owner = Plain::new(&groups, contender.subjects);
    let mut world = World::new(seed, setup(contender, &groups, None), owner);
    plan(&mut world, &groups, reach, &mut random);
    if !world.run_until(|world| world.owner.is_done(), TIMEOUT) {
        world.fail(&format!("missing {:?}", world.owner.missing()));
    }
    // What is still under way arrives, and leaves nothing behind.
    world.run_for(Duration::from_secs(1));
    for (peer, process) in world.processes() {
        assert_eq!((contender.pending)(process), 0, "{peer}, seed {seed}");
    }
    let history = &world.owner.history;
    let clients: BTreeSet<_> = (1..=3).map(ClientId).collect();
    let judged = check_safety(history)
        .and_then(|()| check_agreement(history))
        .and_then(|()| check_validity(history, &clients));
    if let Err(what) = judged {
        world.fail(&what);
    }
    world.owner.involved().len()
}

fn many_runs<P: Protocol + 'static>(contender: &Contender<P>) {
    each_seed(0..200, |seed| {
        let all = [&[1, 1][..], &[3, 3], &[3, 1, 5], &[3, 3, 3], &[3, 3, 3, 3], &[2, 1, 4, 1]];
        let sizes = all[usize::try_from(seed).expect("small") % all.len()];
        run(contender, sizes, u16::MAX, seed);
    });
}

/// Runs of few messages, whose parts overtake each other on different ways by far.
fn short_runs<P: Protocol + Clone>(contender: &Contender<P>) {
    for sizes in [&[3, 3, 3][..], &[5, 1, 3, 1]] {
        let cluster = Cluster::new(sizes, 2, |me, groups| (contender.make)(me, groups.clone()));
        for seed in 0..2000 {
            let profile =
                Profile { messages: 8, dest_max: 3, links: Links::Fifo, keys: 0, chain: false };
            let history = cluster.run(seed, profile);
            let judged = check_safety(&history).and_then(|()| check_agreement(&history));
            let arrived = judged.and_then(|()| {
                check_validity(&history, &(1..=8).map(ClientId).collect::<BTreeSet<_>>())
            });
            assert_eq!(arrived, Ok(()), "seed {seed} of {sizes:?}");
        }
    }
}

#[test]
fn short_runs_of_the_baselines() {
    short_runs(&white_box());
    short_runs(&fast_cast());
    short_runs(&classic());
}

#[test]
fn white_box_multicasts() {
    many_runs(&white_box());
}

#[test]
fn fast_cast_multicasts() {
    many_runs(&fast_cast());
}

#[test]
fn fast_cast_multicasts_on_its_slow_path() {
    many_runs(&classic());
}

#[test]
fn fast_cast_multicasts_with_as_few_rounds_as_will_do() {
    many_runs(&lean());
}

#[test]
fn primcast_multicasts() {
    many_runs(&primcast());
}

/// Genuineness in the strict sense: who is concerned by no message exchanges none. (In PrimCast
/// those do whose group keeps its primary.)
#[test]
fn bystanders_are_silent() {
    for seed in 0..10 {
        assert_eq!(run(&white_box(), &[3, 3, 3, 3], 2, seed), 6);
        assert_eq!(run(&fast_cast(), &[3, 3, 3, 3], 2, seed), 6);
    }
    assert_eq!(run(&primcast(), &[3, 3, 3, 3], 2, 0), 12);
}
