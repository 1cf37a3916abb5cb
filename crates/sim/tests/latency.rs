//! How many communication steps a delivery takes, in PrimCast and in the protocols that the thesis
//! compares it with: each message travels exactly one unit, and nothing else takes time (thesis,
//! section 4.1.2). *Collision-free* latency is that of a message alone; *failure-free* latency is the worst
//! that others under way can make of it.

mod contenders;

use contenders::*;
use meridian_core::{ClientId, GroupId, MessageId, ProcessId};
use meridian_multicast::{Groups, Protocol, Start};
use meridian_sim::checkers::{check_agreement, check_safety};
use meridian_sim::plain::Plain;
use meridian_sim::replica::groups_of;
use meridian_sim::{Entry, Random, Setup, World};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const UNIT: Duration = Duration::from_millis(1);
/// The least by which one moment can be before another.
const MOMENT: Duration = Duration::from_nanos(1);
/// The worst is a limit, of moments ever shorter before an arrival: so near is as good as reached.
const NEARLY: Duration = Duration::from_micros(1);
/// Longer than any of the protocols takes, by far.
const PATIENCE: Duration = Duration::from_millis(100);

/// Latencies: at the leaders of groups, their first members, and at the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Latency {
    leaders: Duration,
    followers: Duration,
}

impl Latency {
    fn steps(leaders: u32, followers: u32) -> Latency {
        Latency { leaders: UNIT * leaders, followers: UNIT * followers }
    }

    fn max(self, other: Latency) -> Latency {
        let leaders = self.leaders.max(other.leaders);
        Latency { leaders, followers: self.followers.max(other.followers) }
    }

    fn is_within(self, bound: Latency) -> bool {
        self.max(bound) == bound
    }

    /// Whether it is `bound`, or less by a moment.
    fn reaches(self, bound: Latency) -> bool {
        self.leaders + NEARLY > bound.leaders && self.followers + NEARLY > bound.followers
    }
}

/// A message of a scenario.
#[derive(Clone, Debug)]
struct Sent<'a> {
    by: ProcessId,
    dest: &'a [u16],
    after: Duration,
}

/// Settled groups, in which scenarios are played one after the other.
struct Field<P: Protocol> {
    world: World<P, Plain<P>>,
    sent: u64,
}

impl<P: Protocol + 'static> Field<P> {
    fn new(contender: &Contender<P>, sizes: &[u16], change: impl FnOnce(&mut Setup<P>)) -> Self {
        let groups: Groups = Arc::new(groups_of(sizes));
        let mut setup = setup(contender, &groups, Some(UNIT));
        change(&mut setup);
        let mut world = World::new(0, setup, Plain::new(&groups, contender.subjects));
        world.run_for(contender.settle);
        Field { world, sent: 0 }
    }

    /// Multicasts these, waits for all deliveries, and says how long they took at most.
    fn play(&mut self, messages: &[Sent]) -> Latency {
        let (before, low) = (self.world.owner.history.entries.len(), self.sent + 1);
        for Sent { by, dest, after } in messages {
            self.sent += 1;
            let id = MessageId { client: ClientId(1), sequence: self.sent };
            let dest: Vec<_> = dest.iter().copied().map(GroupId).collect();
            let start = Start { low, ..Start::new(id, dest, vec![]) };
            self.world.multicast(*by, start, *after);
        }
        if !self.world.run_until(|world| world.owner.is_done(), PATIENCE) {
            self.world.fail(&format!("{messages:?}: missing {:?}", self.world.owner.missing()));
        }
        // What was still to be said of these has been said when the next are sent.
        self.world.run_for(UNIT * 8);
        self.worst_since(before)
    }

    /// What took longest in the history from there on.
    fn worst_since(&self, before: usize) -> Latency {
        let history = &self.world.owner.history;
        let (mut sent, mut worst) = (BTreeMap::new(), Latency::default());
        for entry in &history.entries[before..] {
            match entry {
                Entry::Multicast { id, t, .. } => drop(sent.insert(*id, *t)),
                Entry::Deliver { process, id, t, .. } => {
                    let leads = history.groups[&process.group][0] == *process;
                    let place = if leads { &mut worst.leaders } else { &mut worst.followers };
                    *place = t.since(sent[id]).max(*place);
                }
                _ => {}
            }
        }
        worst
    }

    fn judge(&self) {
        let history = &self.world.owner.history;
        check_safety(history).and_then(|()| check_agreement(history)).unwrap();
    }
}

const DESTS: [&[u16]; 7] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];

/// What messages take that are alone, at most: over all senders and destinations.
fn collision_free<P: Protocol + 'static>(
    contender: &Contender<P>,
    sizes: &[u16],
    change: impl FnOnce(&mut Setup<P>),
) -> Latency {
    let mut field = Field::new(contender, sizes, change);
    let mut worst = Latency::default();
    for by in processes(&Arc::new(groups_of(sizes))) {
        for dest in DESTS {
            // Not at a multiple of the unit, so that heartbeats fall anywhere.
            worst = worst.max(field.play(&[Sent { by, dest, after: MOMENT * 357_913 }]));
        }
    }
    field.judge();
    worst
}

/// Moments from one unit before until five units after the second unit, on a grid, and just before each.
fn moments() -> impl Iterator<Item = Duration> {
    let grid = (0..=24).map(|quarter| UNIT + UNIT * quarter / 4);
    grid.flat_map(|at| [at - MOMENT, at])
}

/// What two messages take that meet, at most: over the groups of both and their senders, over the
/// moments, and over which group's clock is ahead.
fn with_one_conflict<P: Protocol + 'static>(field: &mut Field<P>) -> Latency {
    let ones = [DESTS[3], DESTS[6]];
    let others = [DESTS[1], DESTS[3], DESTS[5], DESTS[4], DESTS[6]];
    let mut worst = Latency::default();
    for ahead in [None, Some(DESTS[0]), Some(DESTS[2])] {
        for (one, by) in pairs(&ones, &[process(0, 1), process(2, 0)]) {
            let senders = [process(0, 0), process(1, 0), process(1, 1), process(2, 0)];
            for (other, sender) in pairs(&others, &senders) {
                for after in moments() {
                    let alone = ahead.map(|dest| Sent { by, dest, after: Duration::ZERO });
                    let mut messages: Vec<_> = alone.into_iter().cycle().take(3).collect();
                    messages.push(Sent { by, dest: one, after: UNIT * 8 });
                    messages.push(Sent { by: sender, dest: other, after: UNIT * 6 + after });
                    worst = worst.max(field.play(&messages));
                }
            }
        }
    }
    worst
}

fn pairs<A: Copy, B: Copy>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter().flat_map(|a| b.iter().map(|b| (*a, *b))).collect()
}

/// What several messages take that meet at random, at most.
fn with_many_conflicts<P: Protocol + 'static>(field: &mut Field<P>) -> Latency {
    let mut random = Random::seed_from_u64(7);
    let senders = processes(&Arc::new(groups_of(&[3, 3, 3])));
    let moments: Vec<_> = moments().collect();
    let mut worst = Latency::default();
    for _ in 0..1500 {
        let count = random.random_range(3..=9);
        let mut any = || Sent {
            by: *senders.choose(&mut random).unwrap(),
            dest: DESTS.choose(&mut random).unwrap(),
            after: *moments.choose(&mut random).unwrap(),
        };
        let messages: Vec<_> = (0..count).map(|_| any()).collect();
        worst = worst.max(field.play(&messages));
    }
    worst
}

/// The worst that the search finds.
fn failure_free<P: Protocol + 'static>(
    contender: &Contender<P>,
    change: impl FnOnce(&mut Setup<P>),
) -> Latency {
    let mut field = Field::new(contender, &[3, 3, 3], change);
    let (one, many) = (with_one_conflict(&mut field), with_many_conflicts(&mut field));
    eprintln!("one conflict: {one:?}; many: {many:?}");
    field.judge();
    one.max(many)
}

/// The thesis's setup.
fn as_it_is<P: Protocol>(_: &mut Setup<P>) {}

/// A planted fault: what is said between groups takes one step more.
fn with_a_detour<P: Protocol<Peer = ProcessId>>(setup: &mut Setup<P>) {
    setup.delay = Box::new(|from, to, _| if from.group == to.group { UNIT } else { UNIT * 2 });
}

/// Section 4.2, Proposition 2.
#[test]
fn primcast_takes_three_steps_everywhere() {
    for sizes in [[3, 3, 3], [1, 3, 5], [5, 5, 5]] {
        assert_eq!(
            collision_free(&primcast(), &sizes, as_it_is),
            Latency::steps(3, 3),
            "{sizes:?}"
        );
    }
}

/// Section 4.6.2.
#[test]
fn white_box_takes_three_steps_at_leaders_and_four_at_followers() {
    for sizes in [[3, 3, 3], [1, 3, 5], [5, 5, 5]] {
        assert_eq!(
            collision_free(&white_box(), &sizes, as_it_is),
            Latency::steps(3, 4),
            "{sizes:?}"
        );
    }
}

/// Section 4.6.1; and section 4.5.4: followers, too, if they learn decisions by themselves.
#[test]
fn fast_cast_takes_four_steps() {
    for sizes in [[3, 3, 3], [1, 3, 5], [5, 5, 5]] {
        assert_eq!(
            collision_free(&fast_cast(), &sizes, as_it_is),
            Latency::steps(4, 4),
            "{sizes:?}"
        );
    }
}

/// Section 4.2, Proposition 2.
#[test]
fn primcast_takes_five_steps_at_worst() {
    let (worst, bound) = (failure_free(&primcast(), as_it_is), Latency::steps(5, 5));
    assert!(worst.is_within(bound), "{worst:?}");
    assert!(worst.reaches(bound), "{worst:?}");
}

/// Section 4.6.2.
#[test]
fn white_box_takes_five_steps_at_leaders_and_six_at_followers_at_worst() {
    let (worst, bound) = (failure_free(&white_box(), as_it_is), Latency::steps(5, 6));
    assert!(worst.is_within(bound), "{worst:?}");
    assert!(worst.reaches(bound), "{worst:?}");
}

/// Section 4.6.1 gives eight steps: four until a group's clock is past the final timestamp of a message,
/// and four more for one that was timestamped before. That holds for any consensus inside the
/// groups. Under ours a stable leader proposes in the order of the log: what it proposes after the
/// proposal to move the clock is decided after that. So the clock counts as soon as its move is
/// proposed, after two steps, and six are the worst.
#[test]
fn fast_cast_takes_eight_steps_at_most_and_six_with_a_log() {
    let worst = failure_free(&fast_cast(), as_it_is);
    assert!(worst.is_within(Latency::steps(8, 8)), "{worst:?}");
    assert!(worst.is_within(Latency::steps(6, 6)), "{worst:?}");
    assert!(worst.reaches(Latency::steps(6, 6)), "{worst:?}");
}

/// The measurements tell protocols apart: each of these breaks the bounds of a faster one.
#[test]
fn slower_protocols_are_noticed() {
    let breaks = |latency: Latency, leaders, followers| {
        assert!(!latency.is_within(Latency::steps(leaders, followers)), "{latency:?}");
    };
    breaks(collision_free(&white_box(), &[3, 3, 3], as_it_is), 3, 3);
    breaks(collision_free(&fast_cast(), &[3, 3, 3], as_it_is), 3, 4);
    // Two rounds of consensus one after the other (section 4.1.2).
    breaks(collision_free(&classic(), &[3, 3, 3], as_it_is), 4, 4);
    breaks(collision_free(&primcast(), &[3, 3, 3], with_a_detour), 3, 3);
    breaks(collision_free(&white_box(), &[3, 3, 3], with_a_detour), 3, 4);
    breaks(collision_free(&fast_cast(), &[3, 3, 3], with_a_detour), 4, 4);

    let mut field = Field::new(&fast_cast(), &[3, 3, 3], with_a_detour);
    breaks(with_one_conflict(&mut field), 8, 8);
    let mut field = Field::new(&classic(), &[3, 3, 3], as_it_is);
    breaks(with_one_conflict(&mut field), 5, 6);
    let mut field = Field::new(&white_box(), &[3, 3, 3], as_it_is);
    breaks(with_one_conflict(&mut field), 5, 5);
}
