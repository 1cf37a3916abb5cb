//! How many communication steps a delivery takes, in PrimCast and in the protocols that the thesis
//! compares it with: each message travels exactly one unit, and nothing else takes time (thesis,
//! section 4.1.2). *Collision-free* latency is that of a message alone; *failure-free* latency is
//! the worst that others under way can make of it.

use crate::contenders::*;
use meridian_core::{ClientId, GroupId, MessageId, ProcessId};
use meridian_multicast::{Groups, Protocol, Start};
use meridian_sim::of::multicast::checkers::{check_agreement, check_safety};
use meridian_sim::of::multicast::history::Entry;
use meridian_sim::of::multicast::plain::Plain;
use meridian_sim::of::multicast::replica::groups_of;
use meridian_sim::{Random, Setup, World};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const UNIT: Duration = Duration::from_millis(1);
/// What is before by so much is hardly before; yet clocks tell the two apart.
const MOMENT: Duration = Duration::from_micros(1);
/// The worst is a limit, of moments ever shorter before an arrival; and where timestamps come from
/// clocks, of whole microseconds, one for each message that arrives at once. So near is as good as
/// reached.
const NEARLY: Duration = Duration::from_micros(16);
/// Longer than any of the protocols takes, by far.
const TIMEOUT: Duration = Duration::from_secs(1);

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

    /// Whether it is `bound`, or hardly less.
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
        if !self.world.run_until(|world| world.owner.is_done(), TIMEOUT) {
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
        let judged = check_safety(history).and_then(|()| check_agreement(history));
        if let Err(what) = judged {
            self.world.fail(&what);
        }
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
            worst =
                worst.max(field.play(&[Sent { by, dest, after: Duration::from_nanos(357_913) }]));
        }
    }
    field.judge();
    worst
}

/// Moments of five units, on a grid, and just before each.
fn moments() -> impl Iterator<Item = Duration> {
    let grid = (0..=20).map(|quarter| UNIT + UNIT * quarter / 4);
    grid.flat_map(|at| [at - MOMENT, at])
}

/// What two messages take that meet, at most: over the groups of both and their senders, over the
/// moments, and over which group's clock is ahead by messages before. The search ends when it is
/// more than `bound`.
fn with_one_conflict<P: Protocol + 'static>(
    field: &mut Field<P>,
    bound: Latency,
    ahead: &[Option<&[u16]>],
) -> Latency {
    let ones = [DESTS[3], DESTS[6]];
    let others = [DESTS[1], DESTS[3], DESTS[5], DESTS[4], DESTS[6]];
    let mut worst = Latency::default();
    for ahead in ahead {
        for (one, by) in pairs(&ones, &[process(0, 1), process(2, 0)]) {
            let senders = [process(0, 0), process(1, 0), process(1, 1), process(2, 0)];
            for (other, sender) in pairs(&others, &senders) {
                for after in moments() {
                    let alone = ahead.map(|dest| Sent { by, dest, after: Duration::ZERO });
                    let mut messages: Vec<_> = alone.into_iter().cycle().take(3).collect();
                    messages.push(Sent { by, dest: one, after: UNIT * 8 });
                    messages.push(Sent { by: sender, dest: other, after: UNIT * 6 + after });
                    worst = worst.max(field.play(&messages));
                    if !worst.is_within(bound) {
                        eprintln!("{worst:?} takes: {messages:?}");
                        return worst;
                    }
                }
            }
        }
    }
    worst
}

const AHEAD: Option<&[u16]> = Some(DESTS[0]);

fn pairs<A: Copy, B: Copy>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter().flat_map(|a| b.iter().map(|b| (*a, *b))).collect()
}

/// What several messages take that meet at random, at most. The search ends like the other one.
fn with_many_conflicts<P: Protocol + 'static>(
    field: &mut Field<P>,
    bound: Latency,
    rounds: usize,
) -> Latency {
    let mut random = Random::seed_from_u64(7);
    let senders = processes(&Arc::new(groups_of(&[3, 3, 3])));
    let moments: Vec<_> = moments().collect();
    let mut worst = Latency::default();
    for _ in 0..rounds {
        let count = random.random_range(3..=9);
        let mut any = || Sent {
            by: *senders.choose(&mut random).expect("there are some"),
            dest: DESTS.choose(&mut random).expect("there are some"),
            after: *moments.choose(&mut random).expect("there are some"),
        };
        let messages: Vec<_> = (0..count).map(|_| any()).collect();
        worst = worst.max(field.play(&messages));
        if !worst.is_within(bound) {
            eprintln!("{worst:?} takes: {messages:?}");
            return worst;
        }
    }
    worst
}

/// The worst that the search finds, which must not be more than `bound`.
fn failure_free<P: Protocol + 'static>(contender: &Contender<P>, bound: Latency) -> Latency {
    let mut field = Field::new(contender, &[3, 3, 3], as_it_is);
    let one = with_one_conflict(&mut field, bound, &[None, AHEAD, Some(DESTS[2])]);
    let many = with_many_conflicts(&mut field, bound, 1000);
    field.judge();
    let worst = one.max(many);
    assert!(worst.is_within(bound), "one conflict: {one:?}; many: {many:?}; bound: {bound:?}");
    worst
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

/// Decision 8: without concurrent messages what the linearizable order asks for comes with the
/// third step.
#[test]
fn linearizable_order_takes_three_steps_everywhere() {
    for sizes in [[3, 3, 3], [1, 3, 5], [5, 5, 5]] {
        assert_eq!(
            collision_free(&linearizable(), &sizes, as_it_is),
            Latency::steps(3, 3),
            "{sizes:?}"
        );
    }
}

/// Fewer messages for one step inside the group, and another one at followers.
#[test]
fn primcast_whose_primaries_speak_takes_four_steps_at_primaries_and_five_at_followers() {
    for sizes in [[3, 3, 3], [1, 3, 5], [5, 5, 5]] {
        assert_eq!(collision_free(&near(), &sizes, as_it_is), Latency::steps(4, 5), "{sizes:?}");
    }
    let bound = Latency::steps(6, 7);
    let worst = failure_free(&near(), bound);
    assert!(worst.reaches(bound), "{worst:?}");
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
    let bound = Latency::steps(5, 5);
    let worst = failure_free(&primcast(), bound);
    assert!(worst.reaches(bound), "{worst:?}");
}

/// Section 4.6.2.
#[test]
fn white_box_takes_five_steps_at_leaders_and_six_at_followers_at_worst() {
    let bound = Latency::steps(5, 6);
    let worst = failure_free(&white_box(), bound);
    assert!(worst.reaches(bound), "{worst:?}");
}

/// Section 4.6.1 gives eight steps: four until a group's clock is past the final timestamp of a
/// message, and four more for one that was timestamped before. That holds for any consensus inside
/// the groups. Under ours a stable leader proposes in the order of the log: what it proposes after
/// the proposal to move the clock is decided after that. So the clock counts as soon as its move is
/// proposed, after two steps, and six are the worst that there is.
#[test]
fn fast_cast_takes_at_most_eight_steps_and_at_worst_six_of_them() {
    let worst = failure_free(&fast_cast(), Latency::steps(8, 8));
    let ours = Latency::steps(6, 6);
    assert!(worst.reaches(ours) && worst.is_within(ours), "{worst:?}");
}

fn is_noticed(found: Latency, leaders: u32, followers: u32) {
    assert!(!found.is_within(Latency::steps(leaders, followers)), "{found:?}");
}

/// Each of these breaks the bounds of a faster one.
#[test]
fn a_protocol_that_is_slower_alone_is_noticed() {
    const SIZES: [u16; 3] = [3, 3, 3];
    is_noticed(collision_free(&white_box(), &SIZES, as_it_is), 3, 3);
    is_noticed(collision_free(&fast_cast(), &SIZES, as_it_is), 3, 4);
    // Two rounds of consensus one after the other (section 4.1.2).
    is_noticed(collision_free(&classic(), &SIZES, as_it_is), 4, 4);
    is_noticed(collision_free(&primcast(), &SIZES, with_a_detour), 3, 3);
    is_noticed(collision_free(&white_box(), &SIZES, with_a_detour), 3, 4);
    is_noticed(collision_free(&fast_cast(), &SIZES, with_a_detour), 4, 4);
}

fn breaks<P: Protocol + 'static>(
    contender: &Contender<P>,
    change: impl FnOnce(&mut Setup<P>),
    bound: Latency,
) {
    let mut field = Field::new(contender, &[3, 3, 3], change);
    let found = with_one_conflict(&mut field, bound, &[AHEAD]);
    assert!(!found.is_within(bound), "{found:?}");
}

#[test]
fn a_protocol_that_is_slower_at_worst_is_noticed() {
    breaks(&white_box(), as_it_is, Latency::steps(5, 5));
    breaks(&fast_cast(), as_it_is, Latency::steps(5, 6));
    breaks(&classic(), as_it_is, Latency::steps(6, 6));
    breaks(&primcast(), with_a_detour, Latency::steps(5, 5));
    breaks(&white_box(), with_a_detour, Latency::steps(5, 6));
    breaks(&fast_cast(), with_a_detour, Latency::steps(8, 8));
    // Clocks that count, or that differ by more than they should.
    let bound = hybrid_limit(UNIT / 8);
    breaks(&primcast(), as_it_is, bound);
    breaks(&hybrid(), |setup| setup.ahead = ahead_in(UNIT / 4, &[0]), bound);
}

/// The clocks of these groups are twice `epsilon` ahead of the others': all are within `epsilon` of
/// the time between.
fn ahead_in(epsilon: Duration, fast: &'static [u16]) -> Box<dyn FnMut(ProcessId) -> Duration> {
    Box::new(move |process| match fast.contains(&process.group.0) {
        true => epsilon * 2,
        false => Duration::ZERO,
    })
}

/// Section 4.4.1; and the microseconds of [`NEARLY`].
fn hybrid_limit(epsilon: Duration) -> Latency {
    let everywhere = (UNIT * 5).min(UNIT * 4 + epsilon * 2 + NEARLY / 2);
    Latency { leaders: everywhere, followers: everywhere }
}

/// At worst four steps and twice the clocks' distance from the time; and, whatever the clocks show,
/// not more than the five without them.
#[test]
fn primcast_with_hybrid_clocks_takes_four_steps_and_the_skew_at_worst() {
    let skews = [(Duration::ZERO, [].as_slice()), (UNIT / 8, &[0]), (UNIT / 8, &[1]), (UNIT, &[0])];
    for (epsilon, fast) in skews {
        let change = |setup: &mut Setup<_>| setup.ahead = ahead_in(epsilon, fast);
        let mut field = Field::new(&hybrid(), &[3, 3, 3], change);
        let bound = hybrid_limit(epsilon);
        // No group's clock is ahead for long by what was before.
        let one = with_one_conflict(&mut field, bound, &[None]);
        let many = with_many_conflicts(&mut field, bound, 300);
        field.judge();
        let worst = one.max(many);
        assert!(worst.is_within(bound), "{epsilon:?} {fast:?}: one {one:?}, many {many:?}");
        assert!(worst.reaches(bound), "{epsilon:?} {fast:?}: one {one:?}, many {many:?}");
    }
}

/// What these take at most: one to groups 1 and 2, and then one to groups 0 and 1. All are far from
/// each other, and each has just shared a message with each.
fn behind_another<P: Protocol + 'static>(contender: &Contender<P>) -> Duration {
    const FAR: Duration = Duration::from_millis(45);
    let far = |setup: &mut Setup<P>| {
        setup.delay = Box::new(|from, to, _| if from.group == to.group { UNIT } else { FAR });
    };
    let mut field = Field::new(contender, &[3, 3, 3], far);
    let mut worst = Duration::ZERO;
    for round in 0..20 {
        let sent = |group, dest, after| Sent { by: process(group, 0), dest, after };
        let gap = UNIT + FAR * round / 20;
        field.play(&[sent(2, DESTS[4], UNIT)]);
        let Latency { leaders, followers } =
            field.play(&[sent(1, DESTS[5], UNIT), sent(0, DESTS[3], UNIT + gap)]);
        worst = worst.max(leaders).max(followers);
    }
    field.judge();
    worst
}

/// Before the second message there may be new ones until group 2, which knows nothing of it, has
/// passed its timestamp. With hybrid clocks it has, and says so every ten milliseconds.
#[test]
fn with_hybrid_clocks_no_message_waits_for_groups_that_know_nothing_of_it() {
    let least = behind_another(&hybrid());
    let (with_hybrid, with_logical) =
        (behind_another(&linearizable_hybrid()), behind_another(&linearizable()));
    assert!(with_hybrid < least + UNIT * 13, "{with_hybrid:?}, without the order {least:?}");
    assert!(with_logical > least + UNIT * 40, "{with_logical:?}, without the order {least:?}");
}
