//! A trial of the multicast: clients and faults for a while, then peace, and a judgement. The tests and
//! `meridian sim multicast` run the same one: [`run`].

use crate::checkers::{
    End, Violation, check_agreement, check_real_time, check_safety, check_validity,
};
use crate::faults::Faults;
use crate::history::Entry;
use crate::replica::{Replica, groups_of};
use crate::workload::{Manner, Workload};
use crate::world::{Delay, Random, Setup, World};
use meridian_core::{GroupId, NodeId, ProcessId, Time};
use meridian_multicast::{Limits, Options, PrimCast, Speakers};
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub use meridian_multicast::{ClockSource, Mutation, Order};

/// The world of a trial.
pub type Cluster = World<Replica, Workload>;

/// How long clients begin messages and faults happen.
const FAULTS: Duration = Duration::from_secs(8);
/// How long it may take then until something is delivered, and in the end until nobody keeps any of it: some
/// elections, some repeats.
const PEACE: Duration = Duration::from_secs(60);

/// How long messages travel between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// A local network.
    Lan,
    /// Regions far from each other.
    Wan,
    /// Slow and uneven, so that epochs overlap.
    Slow,
}

/// How long disks take to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disks {
    /// Up to 5 milliseconds.
    Quick,
    /// Up to a fifth of a second: much is seen of the time between a record and its flush.
    Slow,
    /// There are none: who crashes has lost its memory, and asks the others. Groups of less than three have
    /// disks all the same.
    Absent,
}

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug)]
pub struct Trial {
    /// How many processes each group has.
    pub sizes: Option<Vec<u16>>,
    /// The order of deliveries.
    pub order: Option<Order>,
    /// The source of timestamps.
    pub clock: Option<ClockSource>,
    /// How long messages travel.
    pub links: Option<Links>,
    /// How long disks take.
    pub disks: Option<Disks>,
    /// How clients behave.
    pub manner: Option<Manner>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// Who speaks for the groups.
    pub speakers: Option<Speakers>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
    /// Whether all events are printed.
    pub trace: bool,
    /// Whether the hash of the trace covers the contents of messages.
    pub deep: bool,
}

impl Default for Trial {
    fn default() -> Self {
        Trial {
            sizes: None,
            order: None,
            clock: None,
            links: None,
            disks: None,
            manner: None,
            faults: None,
            speakers: None,
            mutation: Mutation::Correct,
            trace: false,
            deep: false,
        }
    }
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many processes each group has.
    pub sizes: Vec<u16>,
    /// How PrimCast is used.
    pub options: Options,
    /// How long messages travel.
    pub links: Links,
    /// How long disks take.
    pub disks: Disks,
    /// How clients behave.
    pub manner: Manner,
    /// What may go wrong.
    pub faults: Faults,
    /// How much processes keep for those that are away: now and then next to nothing.
    pub limits: Limits,
    /// Who speaks for each group.
    pub speakers: Vec<Speakers>,
}

/// A trial in which nothing was wrong.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What was drawn.
    pub drawn: Box<Drawn>,
    /// How many events there were.
    pub events: u64,
    /// How many messages were multicast.
    pub messages: usize,
    /// How often one was delivered somewhere.
    pub deliveries: u64,
    /// How often a process crashed.
    pub crashes: usize,
    /// How many snapshots were installed.
    pub installs: usize,
    /// The time of the world at the end.
    pub end: Time,
    /// Equal for equal seeds.
    pub trace_hash: u64,
}

/// A trial in which something was wrong.
#[derive(Clone, Debug)]
pub struct Failure<D = Drawn> {
    /// Its seed.
    pub seed: u64,
    /// What was drawn.
    pub drawn: Box<D>,
    /// Which property does not hold, and why.
    pub violated: Violation,
    /// How many events there were until it was seen.
    pub events: u64,
    /// The time of the world then.
    pub at: Time,
}

impl<D: fmt::Display> fmt::Display for Failure<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, events, ms) = (self.seed, self.events, self.at.0 as f64 / 1e6);
        writeln!(f, "{}", self.violated)?;
        write!(f, "seed {seed}, event {events}, at {ms:.3} ms; {}", self.drawn)
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { sizes, options, links, disks, limits, speakers, .. } = self;
        write!(f, "groups {sizes:?}, {speakers:?}, {options:?}, {links:?}, {disks:?}, {limits:?}")
    }
}

/// Runs a trial with a seed.
///
/// # Errors
/// A property of atomic multicast does not hold, something was not delivered in time, or an assertion
/// in a process fails.
pub fn run(seed: u64, trial: &Trial) -> Result<Report, Failure> {
    let drawn = Box::new(trial.drawn(seed));
    let mut world = trial.world(seed);
    world.say_nothing();
    let judged = catch_unwind(AssertUnwindSafe(|| faults_then_peace(&mut world)));
    let violated = match judged {
        Ok(Ok(())) => return Ok(report(seed, drawn, &world)),
        Ok(Err(violation)) => violation,
        Err(panic) => said(&*panic),
    };
    Err(Failure { seed, drawn, violated, events: world.events(), at: world.now() })
}

/// What a panic says.
pub(crate) fn said(panic: &(dyn std::any::Any + Send)) -> Violation {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("assertion: {}", text.unwrap_or("a panic without words"))
}

/// Faults for a while; then all heals, and everything arrives.
fn faults_then_peace(world: &mut Cluster) -> Result<(), Violation> {
    world.run_for(FAULTS);
    check_safety(&world.owner.history)?;
    world.heal();
    // Many messages one after the other over slow links take long; but not one of them.
    let mut before = None;
    while !world.run_until(is_quiet, PEACE) {
        if before == Some(world.owner.deliveries) {
            return Err(describe(world));
        }
        before = Some(world.owner.deliveries);
    }
    judge(world)?;
    forgotten(world)
}

/// In the end nothing is kept in any log.
///
/// # Errors
/// Something is, though all have delivered everything.
pub fn forgotten(world: &mut Cluster) -> Result<(), Violation> {
    let of = |process: &Replica| process.multicast.log_entries();
    let empty = |world: &Cluster| world.processes().all(|(_, process)| of(process) == (0, 0));
    if world.run_until(empty, PEACE) {
        return Ok(());
    }
    let kept: Vec<_> = world.processes().map(|(peer, process)| (peer, of(process))).collect();
    Err(format!("truncation: all is delivered and still kept, {kept:?}"))
}

/// Whether all that was asked is delivered, everywhere.
pub fn is_quiet(world: &Cluster) -> bool {
    world.owner.is_done()
        && world.owner.is_level()
        && world.processes().all(|(peer, process)| {
            let multicast = &process.multicast;
            multicast.pending() == 0 && world.owner.has_heard(peer, multicast.delivered())
        })
}

/// All properties, at the end.
///
/// # Errors
/// The first violation.
pub fn judge(world: &Cluster) -> Result<(), Violation> {
    let history = &world.owner.history;
    check_safety(history)?;
    if world.owner.order == Order::Linearizable {
        check_real_time(history, End::Delivered)
            .map_err(|what| format!("order in real time: {what}"))?;
    }
    check_agreement(history).map_err(|what| format!("agreement: {what}"))?;
    let correct = world.owner.survivors();
    check_validity(history, &correct).map_err(|what| format!("validity: {what}"))
}

/// How all processes are, and what clients wait for.
pub fn describe(world: &Cluster) -> Violation {
    let mut text = format!("liveness: clients wait for {:?}", world.owner.unanswered());
    for (peer, process) in world.processes() {
        let multicast = &process.multicast;
        text += &format!(
            "\n{peer}: {:?} {:?} clock {:?} delivered {:?} pending {}",
            multicast.role(),
            multicast.epoch(),
            multicast.clock(),
            multicast.delivered(),
            multicast.pending()
        );
    }
    text
}

fn report(seed: u64, drawn: Box<Drawn>, world: &Cluster) -> Report {
    let entries = &world.owner.history.entries;
    let count = |wanted: fn(&Entry) -> bool| entries.iter().filter(|entry| wanted(entry)).count();
    Report {
        seed,
        drawn,
        events: world.events(),
        messages: count(|entry| matches!(entry, Entry::Multicast { .. })),
        deliveries: world.owner.deliveries,
        crashes: count(|entry| matches!(entry, Entry::Crash(_))),
        installs: count(|entry| matches!(entry, Entry::Installed { .. })),
        end: world.now(),
        trace_hash: world.trace_hash(),
    }
}

impl Trial {
    /// With groups of these sizes; all else is drawn.
    pub fn of(sizes: &[u16]) -> Trial {
        Trial { sizes: Some(sizes.to_vec()), ..Trial::default() }
    }

    /// What it is with this seed.
    pub fn drawn(&self, seed: u64) -> Drawn {
        // All is drawn whether it is given or not, so that the rest is the same.
        let random = &mut Random::seed_from_u64(seed ^ 0xd1ce);
        let sizes: &[u16] = match random.random_range(0..10) {
            0 => &[1],
            1 => &[3],
            2 => &[5],
            3..6 => &[3, 3],
            6 => &[3, 1, 5],
            7 => &[3, 3, 3],
            8 => &[1, 1, 1],
            _ => &[3, 3, 3, 3],
        };
        let order = if random.random() { Order::Sequential } else { Order::Linearizable };
        let clock = if random.random() { ClockSource::Logical } else { ClockSource::Hybrid };
        let links = match random.random_range(0..4) {
            0 | 1 => Links::Lan,
            2 => Links::Wan,
            _ => Links::Slow,
        };
        let disks = match random.random_range(0..6) {
            0 => Disks::Slow,
            1 => Disks::Absent,
            _ => Disks::Quick,
        };
        let manner = Manner::drawn(random);
        let faults = drawn_faults(random);
        let sizes = self.sizes.clone().unwrap_or_else(|| sizes.to_vec());
        let mut disks = self.disks.unwrap_or(disks);
        if disks == Disks::Absent && sizes.iter().any(|size| *size < 3) {
            disks = Disks::Quick;
        }
        let limits = drawn_limits(random);
        let speakers = drawn_speakers(random, sizes.len());
        Drawn {
            options: Options {
                order: self.order.unwrap_or(order),
                clock: self.clock.unwrap_or(clock),
                ..Options::default()
            },
            links: self.links.unwrap_or(links),
            disks,
            manner: self.manner.clone().unwrap_or(manner),
            faults: self.faults.clone().unwrap_or(faults),
            limits,
            speakers: self.speakers.map_or(speakers, |speakers| vec![speakers; sizes.len()]),
            sizes,
        }
    }

    /// The world of the trial, before its first event.
    pub fn world(&self, seed: u64) -> Cluster {
        let drawn = self.drawn(seed);
        let setup = setup(&drawn.sizes, drawn.options, self.mutation);
        let mut setup = with_limits(with_speakers(setup, drawn.speakers), drawn.limits);
        setup.faults = drawn.faults;
        setup.deep = self.deep;
        match drawn.disks {
            Disks::Quick => {}
            Disks::Slow => setup.flush = (Duration::from_millis(1), Duration::from_millis(200)),
            Disks::Absent => setup = without_disks(setup),
        }
        match drawn.links {
            Links::Lan => {}
            Links::Wan => setup.delay = wan(),
            Links::Slow => {
                setup.delay = Box::new(|_, _, random| {
                    let most = if random.random_bool(0.3) { 500 } else { 50 };
                    Duration::from_millis(random.random_range(1..=most))
                });
            }
        }
        let mut workload = Workload::new(seed, groups_of(&drawn.sizes), drawn.manner);
        workload.order = drawn.options.order;
        let mut world = World::new(seed, setup, workload);
        if self.trace {
            world.show_trace();
        }
        world.owner.begin().into_iter().for_each(|ask| world.ask(ask));
        world
    }
}

/// Each group is in a region of its own; 20 to 60 milliseconds lie between two.
fn wan() -> Delay<ProcessId> {
    Box::new(|from: ProcessId, to: ProcessId, random: &mut Random| {
        let (least, most) = if from.group == to.group {
            (50, 1000)
        } else {
            let far = 20_000 * (1 + u64::from(from.group.0 + to.group.0) % 3);
            (far, far + 2000)
        };
        Duration::from_micros(random.random_range(least..=most))
    })
}

/// Processes of groups of these sizes in a local network, each group a region, without faults.
pub fn setup(sizes: &[u16], options: Options, mutation: Mutation) -> Setup<Replica> {
    let groups = Arc::new(groups_of(sizes));
    let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
        let group = *group;
        nodes.iter().map(|node| ProcessId { group, node: *node }).collect()
    };
    let regions: Vec<Vec<_>> = groups.iter().map(of).collect();
    let make = move |me| {
        let multicast = PrimCast::new(me, groups.clone()).with_options(options);
        Replica::new(multicast.with_mutation(mutation))
    };
    Setup { regions: regions.clone(), ..Setup::lan(regions.concat(), make) }
}

/// The same with processes that keep so much.
pub fn with_limits(mut setup: Setup<Replica>, limits: Limits) -> Setup<Replica> {
    let make = Box::new(move |me| {
        let Replica { multicast, .. } = (setup.make)(me);
        Replica::new(multicast.with_limits(limits))
    });
    Setup { make, ..setup }
}

/// The same with groups of which these speak for each.
pub fn with_speakers(mut setup: Setup<Replica>, speakers: Vec<Speakers>) -> Setup<Replica> {
    let make = Box::new(move |me: ProcessId| {
        let Replica { multicast, .. } = (setup.make)(me);
        let speakers = speakers.get(usize::from(me.group.0)).copied().unwrap_or_default();
        let options = Options { speakers, ..multicast.options() };
        Replica::new(multicast.with_options(options))
    });
    Setup { make, ..setup }
}

/// The same without disks: each start of a process is another incarnation.
pub fn without_disks(mut setup: Setup<Replica>) -> Setup<Replica> {
    let mut starts: BTreeMap<ProcessId, u64> = BTreeMap::new();
    let make = Box::new(move |me| {
        let incarnation = starts.entry(me).or_default();
        *incarnation += 1;
        let Replica { multicast, .. } = (setup.make)(me);
        Replica::new(multicast.in_memory(*incarnation))
    });
    Setup { make, disks: false, ..setup }
}

/// All kinds of faults, about as often as elections can follow.
pub fn all_faults() -> Faults {
    let ms = Duration::from_millis(1);
    Faults { outage: 700 * ms, split: 1500 * ms, ..Faults::all(600 * ms) }
}

/// Half of the time nearly all that waits is a straggler, and who has missed something gets a snapshot.
pub(crate) fn drawn_limits(random: &mut Random) -> Limits {
    let few = Limits {
        entries: random.random_range(0..20),
        exceptions: random.random_range(0..10),
        ..Limits::default()
    };
    if random.random() { few } else { Limits::default() }
}

/// Now all processes of each group, now its primary, now either.
pub(crate) fn drawn_speakers(random: &mut Random, groups: usize) -> Vec<Speakers> {
    let share = [0.0, 0.5, 1.0][random.random_range(0..3)];
    let of = |_| if random.random_bool(share) { Speakers::Primary } else { Speakers::All };
    (0..groups).map(of).collect()
}

/// Now all kinds, now some that are rare among all.
fn drawn_faults(random: &mut Random) -> Faults {
    let (s, ms) = (Duration::from_secs(1), Duration::from_millis(1));
    let all = all_faults();
    let clocks = Faults { skew_ppm: all.skew_ppm, clock_jump: Some(2 * s), ..Faults::none() };
    match random.random_range(0..10) {
        0..5 => all,
        5 => Faults { depose: Some(1200 * ms), outage: 500 * ms, split: 2 * s, ..clocks },
        6 => Faults { region: Some(2 * s), split: 2 * s, reset: Some(s), ..clocks },
        7 => Faults { netsplit: Some(500 * ms), split: 700 * ms, ..Faults::none() },
        8 => Faults {
            crash: Some(300 * ms),
            outage: 200 * ms,
            down_max: 1,
            checkpoint: Some(500 * ms),
            ..clocks
        },
        _ => Faults { clock_jump: Some(300 * ms), ..clocks },
    }
}
