//! A trial of PrimCast: clients and faults for a while, then healing, and a judgement.

use super::checkers::{End, check_agreement, check_real_time, check_safety, check_validity};
use super::explain::Explanation;
use super::history::Entry;
use super::planted;
use super::replica::{Replica, groups_of};
use super::words::Words;
use super::workload::{Profile, Workload};
use crate::explain::explain;
use crate::faults::Faults;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{Delay, Random, Setup, World};
use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::mutation::PLANTED;
use meridian_multicast::{Dissemination, Limits, Notice, Options, PrimCast};
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use meridian_multicast::{ClockSource, Mutation, Order};

/// The world of a trial.
pub type Cluster = World<Replica, Workload>;

/// How long it may take after the faults until something is delivered, and in the end until nobody
/// keeps any of it: some elections, some repeats.
const HEALING: Duration = Duration::from_secs(60);

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
    /// There are none: who crashes has lost its memory, and asks the others. Groups of less than
    /// three have disks all the same.
    Absent,
}

/// The shortest and the longest flush of slow disks.
pub(super) const SLOW: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(200));

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
    pub profile: Option<Profile>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// Who speaks for the groups.
    pub dissemination: Option<Dissemination>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
}

impl Default for Trial {
    fn default() -> Self {
        Trial {
            sizes: None,
            order: None,
            clock: None,
            links: None,
            disks: None,
            profile: None,
            faults: None,
            dissemination: None,
            mutation: Mutation::Correct,
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
    pub profile: Profile,
    /// What may go wrong.
    pub faults: Faults,
    /// How much processes keep for those that are away: now and then next to nothing.
    pub limits: Limits,
    /// Who speaks for each group.
    pub dissemination: Vec<Dissemination>,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { sizes, options, links, disks, limits, dissemination, .. } = self;
        write!(
            f,
            "groups {sizes:?}, {dissemination:?}, {options:?}, {links:?}, {disks:?}, {limits:?}"
        )
    }
}

/// In the end nothing is kept in any log.
///
/// # Errors
/// Something is, though all have delivered everything.
pub fn forgotten(world: &mut Cluster) -> Result<(), Violation> {
    let of = |process: &Replica| process.multicast.log_entries();
    let empty = |world: &Cluster| world.processes().all(|(_, process)| of(process) == (0, 0));
    if world.run_until(empty, HEALING) {
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
    let history = &*world.owner.judged();
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
pub fn describe(world: &Cluster) -> String {
    let mut text = format!("clients wait for {:?}", world.owner.unanswered());
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

/// What happened in a world, by name.
pub(super) fn counts(world: &Cluster) -> Counts {
    let entries = &world.owner.history.entries;
    let count = |wanted: fn(&Entry) -> bool| {
        let wanted = entries.iter().filter(|entry| wanted(entry));
        u64::try_from(wanted.count()).unwrap_or(u64::MAX)
    };
    Counts(BTreeMap::from([
        ("messages", count(|entry| matches!(entry, Entry::Multicast { .. }))),
        ("deliveries", world.owner.deliveries),
        ("crashes", count(|entry| matches!(entry, Entry::Crash(_)))),
        ("snapshots", count(|entry| matches!(entry, Entry::Installed { .. }))),
    ]))
}

impl Trial {
    /// With groups of these sizes; all else is drawn.
    pub fn of(sizes: &[u16]) -> Trial {
        Trial { sizes: Some(sizes.to_vec()), ..Trial::default() }
    }
}

impl Subject for Trial {
    type Process = Replica;
    type Owner = Workload;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(8);
    const HEALING: Duration = HEALING;

    fn draw(&self, seed: u64) -> Drawn {
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
        let profile = Profile::drawn(random);
        let faults = drawn_faults(random);
        let sizes = self.sizes.clone().unwrap_or_else(|| sizes.to_vec());
        let mut disks = self.disks.unwrap_or(disks);
        if disks == Disks::Absent && sizes.iter().any(|size| *size < 3) {
            disks = Disks::Quick;
        }
        let limits = drawn_limits(random);
        let dissemination = drawn_dissemination(random, sizes.len());
        Drawn {
            options: Options {
                order: self.order.unwrap_or(order),
                clock: self.clock.unwrap_or(clock),
                ..Options::default()
            },
            links: self.links.unwrap_or(links),
            disks,
            profile: self.profile.clone().unwrap_or(profile),
            faults: self.faults.clone().unwrap_or(faults),
            limits,
            dissemination: self
                .dissemination
                .map_or(dissemination, |dissemination| vec![dissemination; sizes.len()]),
            sizes,
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let drawn = drawn.clone();
        let setup = setup(&drawn.sizes, drawn.options, self.mutation);
        let mut setup = with_limits(with_dissemination(setup, drawn.dissemination), drawn.limits);
        setup.faults = drawn.faults;
        match drawn.disks {
            Disks::Quick => {}
            Disks::Slow => setup.flush = SLOW,
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
        let mut owner = Workload::new(seed, groups_of(&drawn.sizes), drawn.profile);
        owner.order = drawn.options.order;
        Made { setup, owner, operator: () }
    }

    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        stage.world.run_for(Self::FAULTS);
        check_safety(&stage.world.owner.history)
    }

    fn is_quiet(world: &Cluster) -> bool {
        is_quiet(world)
    }

    /// Many messages one after the other over slow links take long; but not one of them.
    fn progress(world: &Cluster) -> Option<u64> {
        Some(world.owner.deliveries)
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        judge(&stage.world)?;
        forgotten(&mut stage.world)
    }

    fn describe(world: &Cluster) -> String {
        describe(world)
    }

    fn counts(world: &Cluster) -> Counts {
        counts(world)
    }

    fn teller() -> Box<dyn Teller<Replica>> {
        Box::new(Words::default())
    }

    fn explain(&self, seed: u64, message: &str) -> Result<String, String> {
        explain::<Explanation, _>(self, seed, message)
    }

    fn planted() -> Vec<(String, Self)> {
        if !PLANTED {
            return Vec::new();
        }
        let all = planted::ALL.into_iter().chain(planted::OF_ORDER);
        all.map(|mutation| (format!("{mutation:?}"), planted::trial(mutation))).collect()
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
pub fn with_dissemination(
    mut setup: Setup<Replica>,
    dissemination: Vec<Dissemination>,
) -> Setup<Replica> {
    let make = Box::new(move |me: ProcessId| {
        let Replica { multicast, .. } = (setup.make)(me);
        let dissemination = dissemination.get(usize::from(me.group.0)).copied().unwrap_or_default();
        // Both are tried, beside each other.
        let notice = [Notice::AtOnce, Notice::WithNext][usize::from(me.group.0 % 2)];
        let options = Options { dissemination, notice, ..multicast.options() };
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

/// Half of the time nearly all that waits is a straggler, and who has missed something gets a
/// snapshot.
pub(crate) fn drawn_limits(random: &mut Random) -> Limits {
    let few = Limits {
        entries: random.random_range(0..20),
        exceptions: random.random_range(0..10),
        ..Limits::default()
    };
    if random.random() { few } else { Limits::default() }
}

/// Now all processes of each group, now its primary, now either.
pub(crate) fn drawn_dissemination(random: &mut Random, groups: usize) -> Vec<Dissemination> {
    let share = [0.0, 0.5, 1.0][random.random_range(0..3)];
    let of = |_| {
        if random.random_bool(share) { Dissemination::ViaLeader } else { Dissemination::AllToAll }
    };
    (0..groups).map(of).collect()
}

/// Now all kinds, now some that are rare among all.
pub(in crate::of) fn drawn_faults(random: &mut Random) -> Faults {
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
