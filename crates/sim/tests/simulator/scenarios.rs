//! PrimCast in the simulator: written scenarios.

use crate::cluster::{Cluster, is_quiet, judge, process, setup_of};
use bytes::Bytes;
use meridian_core::{ClientId, GroupId, MessageId, ProcessId, Time};
use meridian_multicast::{
    ClockSource, Command, Dissemination, Mutation, Options, Order, Role, Start, Touches,
};
use meridian_sim::of::multicast::checkers::check_latency;
use meridian_sim::of::multicast::history::Entry;
use meridian_sim::of::multicast::replica::groups_of;
use meridian_sim::of::multicast::workload::{Profile, Workload};
use meridian_sim::{Stimulus, World};
use std::collections::BTreeSet;
use std::time::Duration;

pub const UNIT: Duration = Duration::from_millis(10);
/// Long enough for the first primaries to be there.
const SETTLE: Duration = Duration::from_secs(8);

/// Settled groups without clients.
fn settled(sizes: &[u16], exact: Option<Duration>) -> Cluster {
    settled_of(sizes, Options::default(), exact)
}

fn settled_of(sizes: &[u16], options: Options, exact: Option<Duration>) -> Cluster {
    settled_with(sizes, options, Mutation::Correct, exact)
}

/// The same with a bug.
pub fn settled_with(
    sizes: &[u16],
    options: Options,
    mutation: Mutation,
    exact: Option<Duration>,
) -> Cluster {
    // They say themselves what they touch.
    let profile = Profile { clients: 0, keys: 1, ..Profile::default() };
    let mut workload = Workload::new(0, groups_of(sizes), profile);
    workload.order = options.order;
    let mut world = World::new(0, setup_of(sizes, options, mutation, exact), workload);
    world.run_for(SETTLE);
    for group in groups_of(sizes).into_keys() {
        primary(&world, group.0);
    }
    world
}

pub fn primary(world: &Cluster, group: u16) -> ProcessId {
    let mut primaries = world.processes().filter(|(peer, process)| {
        peer.group == GroupId(group) && process.multicast.role() == Role::Primary
    });
    primaries.next().expect("the group has a primary").0
}

pub fn id(sequence: u64) -> MessageId {
    MessageId { client: ClientId(77), sequence }
}

/// Multicasts a message, whose START arrives at each of `to` after `after`.
pub fn multicast(world: &mut Cluster, n: u64, dest: &[u16], to: &[ProcessId], after: Duration) {
    let now = world.now();
    let start = world.owner.multicast(id(n), dest, now);
    send(world, start, to, after);
}

fn send(world: &mut Cluster, start: Start, to: &[ProcessId], after: Duration) {
    for to in to {
        let command = Command::Start(start.clone());
        world.inject(Stimulus::Command { to: *to, command, after });
    }
}

fn deliveries(world: &Cluster, n: u64) -> usize {
    let of = |entry: &&Entry| matches!(entry, Entry::Deliver { id: of, .. } if *of == id(n));
    world.owner.history.entries.iter().filter(of).count()
}

/// Section 4.2: three communication steps at every destination if nothing else is under way.
#[test]
fn three_steps_without_collision() {
    let mut world = settled(&[3, 3, 3], Some(UNIT));
    for (n, dest) in (1..).zip([&[0][..], &[0, 1], &[0, 1, 2], &[1, 2], &[2], &[0, 2], &[1]]) {
        let to: Vec<_> = dest.iter().map(|group| primary(&world, *group)).collect();
        multicast(&mut world, n, dest, &to, UNIT);
        // Not a multiple of the unit, so that heartbeats fall anywhere.
        world.run_for(Duration::from_micros(123_457));
        assert_eq!(deliveries(&world, n), 3 * dest.len());
    }
    assert_eq!(check_latency(&world.owner.history, UNIT, 3), Ok(3));
}

/// Section 4.2: five at worst, with messages that collide.
#[test]
fn five_steps_with_collisions() {
    let mut world = settled(&[3, 3, 3], Some(UNIT));
    // Group 0 is ahead of the others, so that what comes to them alone meanwhile is before.
    let dests = [&[0][..], &[0, 1], &[0], &[1], &[1, 2], &[0, 1, 2], &[2], &[0, 2], &[1]];
    for n in 0..300 {
        let dest = dests[usize::try_from(n).unwrap() % dests.len()];
        let to: Vec<_> = dest.iter().map(|group| primary(&world, *group)).collect();
        multicast(&mut world, n + 1, dest, &to, UNIT);
        world.run_for(Duration::from_micros(n % 11 * 700));
    }
    world.run_for(Duration::from_secs(1));
    assert!((1..=300).all(|n| deliveries(&world, n) > 0));
    let most = check_latency(&world.owner.history, UNIT, 5).unwrap();
    assert!(most > 3, "nothing collided");
    judge(&world);
}

/// The sender tells one group only, and is gone: the others get it from there.
#[test]
fn the_sender_dies_between_two_groups() {
    let mut world = settled(&[3, 3], None);
    for (n, to) in [(1, process(0, 0)), (2, process(1, 1)), (3, process(0, 2))] {
        multicast(&mut world, n, &[0, 1], &[to], UNIT);
    }
    world.run_for(Duration::from_secs(10));
    assert!((1..=3).all(|n| deliveries(&world, n) == 6));
    assert!(is_quiet(&world));
    judge(&world);
}

/// Whatever the primary was about, its group goes on without it in a few seconds.
#[test]
fn the_primary_is_killed() {
    for effects in 0..40 {
        let mut world = settled(&[3, 3], None);
        let (first, other) = (primary(&world, 0), primary(&world, 1));
        world.crash_after(first, effects);
        let now = world.now();
        let start = world.owner.multicast(id(1), &[0, 1], now);
        send(&mut world, start.clone(), &[first, other], UNIT);
        // The client sends again, to a follower.
        send(&mut world, start, &[process(0, 1)], Duration::from_secs(1));
        world.run_for(Duration::from_secs(5));
        assert!(deliveries(&world, 1) >= 5, "{effects}: {}", deliveries(&world, 1));
        world.heal();
        assert!(world.run_until(is_quiet, Duration::from_secs(10)), "{effects}");
        judge(&world);
    }
}

/// A primary that hears its group but is not heard, or is heard and does not hear, is replaced.
#[test]
fn a_primary_cut_off_one_way_does_not_stop_its_group() {
    for outward in [true, false] {
        let mut world = settled(&[3], None);
        let first = primary(&world, 0);
        let others: Vec<_> =
            world.processes().map(|(peer, _)| peer).filter(|peer| *peer != first).collect();
        let cut = match outward {
            true => world.cut(&[first], &others, false),
            false => world.cut(&others, &[first], false),
        };
        for n in 1..=20 {
            multicast(&mut world, n, &[0], &[others[0], others[1]], UNIT);
            world.run_for(Duration::from_millis(500));
        }
        let all = |world: &Cluster| (1..=20).all(|n| deliveries(world, n) >= 2);
        assert!(all(&world) || !outward, "outward {outward}");
        world.mend_cut(cut);
        assert!(world.run_until(is_quiet, Duration::from_secs(10)));
        assert!((1..=20).all(|n| deliveries(&world, n) == 3));
        judge(&world);
    }
}

/// All lose power in the midst of their work, again and again.
#[test]
fn all_crash_at_once() {
    let mut world = settled(&[3, 3], None);
    for round in 0..20 {
        for n in 1..=5 {
            let to = [process(0, 0), process(1, 0)];
            multicast(&mut world, round * 5 + n, &[0, 1], &to, UNIT * n as u32);
        }
        world.run_for(UNIT + Duration::from_millis(2 * round));
        let all: Vec<_> = world.processes().map(|(peer, _)| peer).collect();
        all.into_iter().for_each(|peer| world.crash(peer));
        world.run_for(UNIT * 6);
        world.heal();
        world.run_for(Duration::from_secs(3));
    }
    assert!(world.run_until(is_quiet, Duration::from_secs(20)));
    judge(&world);
}

/// Who was away while the log grew beyond what the others keep comes back by a snapshot.
#[test]
fn a_process_that_lags_far_comes_back_by_a_snapshot() {
    let mut world = settled(&[3, 1], None);
    let late = process(0, 2);
    world.crash(late);
    let big = Bytes::from(vec![7; 4 << 20]);
    for n in 1..=30 {
        let now: Time = world.now();
        let dest: &[u16] = if n % 3 == 0 { &[0, 1] } else { &[0] };
        let dest_groups: Vec<_> = dest.iter().copied().map(GroupId).collect();
        let start = Start::new(id(n), dest_groups, big.clone());
        world.owner.begins(&start, now);
        let to: Vec<_> = dest.iter().map(|group| process(*group, 0)).collect();
        send(&mut world, start, &to, UNIT);
        world.run_for(Duration::from_millis(300));
    }
    let (_, kept) = world.processes().next().expect("it is up");
    assert!(kept.multicast.log_bytes() < 60 << 20, "{} bytes", kept.multicast.log_bytes());
    world.restart(late);
    assert!(world.run_until(is_quiet, Duration::from_secs(60)));
    assert_eq!(crate::cluster::installs(&world), 1);
    assert_eq!(world.process(late).map(|process| process.delivered.len()), Some(30));
    // And it is a full member again.
    world.crash(process(0, 1));
    multicast(&mut world, 31, &[0], &[late], UNIT);
    world.run_for(Duration::from_secs(8));
    assert_eq!(deliveries(&world, 31), 2);
    judge(&world);
}

/// What all destinations have delivered is dropped, also by those that restarted from a checkpoint
/// before they heard that.
#[test]
fn what_all_have_delivered_is_dropped() {
    let mut world = settled(&[3, 3], None);
    for n in 1..=10 {
        multicast(&mut world, n, &[0, 1], &[process(0, 0), process(1, 0)], UNIT);
    }
    assert!(world.run_until(is_quiet, Duration::from_secs(1)));
    let all: Vec<_> = world.processes().map(|(peer, _)| peer).collect();
    all.iter().for_each(|peer| world.checkpoint(*peer));
    world.run_for(UNIT * 6);
    let dropped = |world: &Cluster| world.processes().all(|(_, p)| p.multicast.log_bytes() == 0);
    assert!(!dropped(&world), "too late");
    all.into_iter().for_each(|peer| world.crash(peer));
    world.heal();
    assert!(world.run_until(dropped, Duration::from_secs(20)));
}

fn each_option(mut test: impl FnMut(Options)) {
    for order in [Order::Sequential, Order::Linearizable] {
        for clock in [ClockSource::Logical, ClockSource::Hybrid] {
            for dissemination in [Dissemination::AllToAll, Dissemination::ViaLeader] {
                test(Options { order, clock, dissemination, ..Options::default() });
            }
        }
    }
}

/// Who is no destination hears nothing, of whatever option.
#[test]
fn bystanders_take_no_step() {
    each_option(|options| {
        let mut world = settled_of(&[3, 3, 3], options, None);
        for n in 1..=12 {
            let dest: &[u16] = [&[0][..], &[0, 1], &[1]][(n % 3) as usize];
            let (now, key) = (world.now(), n % 4);
            let touches = if key == 0 { Touches::All } else { Touches::keys([key]) };
            let start = world.owner.multicast_touching(id(n), dest, touches, now);
            let to = primary(&world, dest[0]);
            world.inject(Stimulus::Command { to, command: Command::Multicast(start), after: UNIT });
            world.run_for(UNIT * 3);
        }
        world.crash(process(0, 0));
        world.run_for(Duration::from_secs(5));
        world.heal();
        assert!(world.run_until(is_quiet, Duration::from_secs(10)), "{options:?}");
        let involved = world.owner.between.iter().map(|process| process.group.0);
        assert!(involved.clone().any(|group| group < 2), "nobody said anything");
        assert_eq!(involved.filter(|group| *group == 2).count(), 0, "{options:?}");
        judge(&world);
    });
}

/// Numbers of the messages that wait for the group that is cut off, and of those that do not
/// conflict with them.
const WAITING: std::ops::Range<u64> = 1..6;
const FREE: std::ops::Range<u64> = 100..160;

/// Group 2 cannot be reached, or can; how long each message of [`FREE`] takes to all its
/// destinations.
fn latencies(options: Options, cut: bool) -> (Cluster, Vec<Duration>) {
    let mut world = settled_of(&[3, 3, 3], options, Some(UNIT));
    let members = |groups: &[u16]| -> Vec<ProcessId> {
        groups.iter().flat_map(|group| (0..3).map(|node| process(*group, node))).collect()
    };
    if cut {
        world.cut(&members(&[0, 1]), &members(&[2]), true);
    }
    for n in WAITING {
        let (now, touches) = (world.now(), Touches::keys([n % 2]));
        let dest: &[u16] = if n % 2 == 0 { &[0, 2] } else { &[0, 1, 2] };
        let start = world.owner.multicast_touching(id(n), dest, touches, now);
        let to = primary(&world, 0);
        world.inject(Stimulus::Command { to, command: Command::Multicast(start), after: UNIT });
    }
    world.run_for(Duration::from_secs(1));
    let mut took = Vec::new();
    for n in FREE {
        let (now, touches) = (world.now(), Touches::keys([10 + n % 3, 20 + n % 5]));
        let dest: &[u16] = [&[0][..], &[0, 1], &[1]][(n % 3) as usize];
        let start = world.owner.multicast_touching(id(n), dest, touches, now);
        let to: Vec<_> = dest.iter().map(|group| primary(&world, *group)).collect();
        send(&mut world, start, &to, UNIT);
        let all = |world: &Cluster| deliveries(world, n) == 3 * dest.len();
        assert!(world.run_until(all, Duration::from_secs(5)), "{n} waits, {options:?}");
        took.push(world.now().since(now));
        world.run_for(Duration::from_micros(123_457));
    }
    (world, took)
}

/// Decision 11: a region that is cut off does not stop the others.
#[test]
fn a_group_that_is_cut_off_holds_up_only_what_conflicts() {
    each_option(|options| {
        let (_, before) = latencies(options, false);
        let (mut world, during) = latencies(options, true);
        for (n, (before, during)) in FREE.zip(before.iter().zip(&during)) {
            // In the linearizable order one step more says that a message may pass those that wait.
            let more = match options.order {
                Order::Sequential => *before / 10,
                Order::Linearizable => UNIT,
            };
            assert!(*during <= *before + more, "{n}: {before:?}, then {during:?}, {options:?}");
        }
        // What waits for the group holds up what conflicts with it; more for that group is refused.
        assert!(WAITING.into_iter().all(|n| deliveries(&world, n) == 0));
        let (now, touches) = (world.now(), Touches::keys([0]));
        let start = world.owner.multicast_touching(id(200), &[0], touches, now);
        let first = primary(&world, 0);
        send(&mut world, start, &[first], UNIT);
        world.run_for(Duration::from_secs(1));
        assert_eq!(deliveries(&world, 200), 0);
        let knows = world.process(first).map(|process| process.multicast.unreachable().collect());
        assert_eq!(knows, Some(vec![GroupId(2)]), "{options:?}");
        // Each knows that and no more, also who hears nobody of other groups, or started after it
        // was told.
        let last = process(0, 2);
        assert_ne!(last, first, "a primary finds it out for itself");
        world.crash(last);
        world.restart(last);
        let unreachable = |world: &Cluster, groups: &[u16]| -> BTreeSet<Vec<GroupId>> {
            let of = world.processes().filter(|(peer, _)| groups.contains(&peer.group.0));
            of.map(|(_, process)| process.multicast.unreachable().collect()).collect()
        };
        let known =
            |world: &Cluster| unreachable(world, &[0, 1]) == BTreeSet::from([vec![GroupId(2)]]);
        assert!(world.run_until(known, Duration::from_secs(10)), "{options:?}");
        world.heal();
        assert!(world.run_until(is_quiet, Duration::from_secs(10)), "{options:?}");
        let all = |n: u64| deliveries(&world, n) == if n.is_multiple_of(2) { 6 } else { 9 };
        assert!(WAITING.into_iter().all(all) && deliveries(&world, 200) == 3);
        world.run_for(Duration::from_secs(5));
        assert_eq!(unreachable(&world, &[0, 1, 2]), BTreeSet::from([vec![]]), "{options:?}");
        judge(&world);
    });
}

/// A clock that jumps makes others look silent. When nothing waits for them any more they say
/// nothing, and are not refused for that.
#[test]
fn who_was_silent_is_not_refused_for_ever() {
    let mut world = settled(&[1, 1], None);
    let (here, there) = (process(0, 0), process(1, 0));
    let cut = world.cut(&[here], &[there], true);
    multicast(&mut world, 1, &[0, 1], &[here], UNIT);
    world.run_for(Duration::from_secs(1));
    world.jump_clock(here, Duration::from_secs(10));
    world.run_for(UNIT);
    let refused = |world: &Cluster| {
        world.process(here).map_or(0, |process| process.multicast.unreachable().count())
    };
    assert_eq!(refused(&world), 1);
    world.mend_cut(cut);
    assert!(world.run_until(|world| deliveries(world, 1) == 2, Duration::from_secs(5)));
    world.jump_clock(here, Duration::from_secs(10));
    world.run_for(Duration::from_secs(5));
    assert_eq!(refused(&world), 0);
    multicast(&mut world, 2, &[0, 1], &[here], UNIT);
    assert!(world.run_until(|world| deliveries(world, 2) == 2, Duration::from_secs(5)));
}

/// A process that was away learns that it may deliver what all others have delivered, though who
/// was primary then is not any more.
#[test]
fn who_was_away_delivers_what_the_others_have_settled() {
    each_option(|options| {
        let mut world = settled_of(&[3, 3], options, None);
        let (first, away) = (primary(&world, 0), process(0, 2));
        let others: Vec<_> = (0..3).map(|node| process(1, node)).collect();
        let cut = world.cut(&[away], &others, true);
        multicast(&mut world, 1, &[0, 1], &[first], UNIT);
        assert!(world.run_until(|world| deliveries(world, 1) >= 5, Duration::from_secs(2)));
        let there = primary(&world, 1);
        for process in [away, there] {
            world.crash(process);
        }
        world.mend_cut(cut);
        world.run_for(Duration::from_secs(5));
        assert_ne!(primary(&world, 1), there);
        world.heal();
        assert!(world.run_until(is_quiet, Duration::from_secs(10)), "{options:?}");
        assert_eq!(world.process(away).map(|process| process.delivered.len()), Some(1));
        judge(&world);
    });
}
