//! Random search for violations of an order in any multicast protocol: many short runs without
//! faults.
//!
//! A run is a handful of messages whose parts travel for random times, so that they overtake each
//! other. Some messages are multicast only once another one was seen delivered: that is what real
//! time orders. Nothing is persisted for long and nobody crashes, so a run takes a fraction of a
//! millisecond, and what happens once in a hundred thousand runs is found.

use crate::lossy::{Loss, Lossy};
use crate::of::multicast::checkers::{
    End, Violation, check_agreement, check_integrity, check_prefix, check_real_time,
    check_timestamps,
};
use crate::of::multicast::history::{Entry, History};
use crate::of::multicast::replica::groups_of;
use crate::trial::{Counts, Detail, Made, Stage, Subject, WorldOf};
use crate::world::{Delay, Owner, Random, Setup, Stimulus};
use meridian_core::{ClientId, GroupId, MessageId, NodeId, ProcessId, Time};
use meridian_multicast::Groups;
use meridian_multicast::{Mutation, Options, Order, PrimCast, Protocol, Start, Timestamp, Touches};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long a message travels that nothing hurries: between these, evenly. In nanoseconds.
const FAST: (u64, u64) = (1, 30_000);
/// And one that does not arrive for long: several others are exchanged meanwhile. Well below a
/// protocol's timers.
const SLOW: (u64, u64) = (1, 600_000);
/// And in some runs to one process, which the others get far ahead of.
const SLOWEST: (u64, u64) = (600_000, 4_000_000);

/// So many events a process may take before it is idle, in runs in which it is busy.
const BATCH: usize = 8;

/// So many of a thousand messages are overtaken by others of their link, in runs in which links
/// keep no order.
const OVERTAKEN: u32 = 250;

/// Whether a message may overtake another one between the same two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Never.
    Fifo,
    /// In every second run.
    FifoOrNot,
}

/// How the runs are.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// How many messages are multicast.
    pub messages: u64,
    /// How many destinations a message has at most.
    pub dest_max: usize,
    /// See there.
    pub links: Links,
    /// Each message touches one or two of so many keys; all conflict if there are none.
    pub keys: u64,
    /// The messages form a chain instead, each with a group and a key in common with the next; but
    /// for two: one that raises some clock, and one that is multicast when the last of the chain
    /// has been delivered, and conflicts with the first only.
    pub chain: bool,
}

/// All that is promised of any run: deliveries agree, everywhere.
///
/// # Errors
/// The first violation.
pub fn judge(history: &History) -> Result<(), Violation> {
    check_integrity(history).map_err(|what| format!("integrity: {what}"))?;
    check_prefix(history).map_err(|what| format!("prefix: {what}"))?;
    check_timestamps(history).map_err(|what| format!("timestamps: {what}"))?;
    check_agreement(history).map_err(|what| format!("agreement: {what}"))
}

/// Atomic global order.
///
/// # Errors
/// A cycle.
pub fn judge_real_time(history: &History) -> Result<(), Violation> {
    check_real_time(history, End::Delivered).map_err(|what| format!("order in real time: {what}"))
}

/// Groups of these sizes, unless others are asked for: three to five.
const SIZES: [&[u16]; 6] = [&[1; 3], &[1; 4], &[1; 5], &[3; 3], &[3, 1, 2, 3], &[3, 1, 2, 3, 1]];

/// So many groups of one process follow that no message goes to: they multicast, as clients do.
const OUTSIDE: usize = 2;

/// How a protocol makes its processes.
type Make<P> = dyn Fn(ProcessId, &Groups) -> P + Send + Sync;

/// Short runs of a protocol.
pub struct Short<P: Protocol> {
    make: Arc<Make<P>>,
    /// One of these is drawn.
    sizes: Vec<Vec<u16>>,
    /// Drawn if there is none.
    profile: Option<Profile>,
    /// After so long each group has a primary.
    settled: Duration,
    /// Whether deliveries are to be ordered as in real time.
    real_time: bool,
}

impl<P: Protocol> Short<P> {
    /// Of a protocol whose groups are ready at once.
    pub fn new(
        sizes: &[u16],
        profile: Profile,
        make: impl Fn(ProcessId, &Groups) -> P + Send + Sync + 'static,
    ) -> Self {
        let (sizes, settled) = (vec![sizes.to_vec()], Duration::ZERO);
        Short { make: Arc::new(make), sizes, profile: Some(profile), settled, real_time: false }
    }
}

impl Short<PrimCast> {
    /// Of PrimCast, with groups of these sizes, or of some that each seed draws.
    pub fn of_primcast(sizes: Option<Vec<u16>>, options: Options, mutation: Mutation) -> Self {
        let make = move |me, groups: &Groups| {
            PrimCast::new(me, groups.clone()).with_options(options).with_mutation(mutation)
        };
        let sizes = sizes.map_or_else(|| SIZES.map(<[u16]>::to_vec).to_vec(), |sizes| vec![sizes]);
        let (settled, real_time) = (Duration::from_secs(3), options.order == Order::Linearizable);
        Short { make: Arc::new(make), sizes, profile: None, settled, real_time }
    }

    /// The same with this profile.
    pub fn with_profile(self, profile: Profile) -> Self {
        Short { profile: Some(profile), ..self }
    }
}

impl<P: Protocol<Record: 'static> + Clone + 'static> Short<P> {
    /// What happens in the run with this seed, until all is delivered or nothing more can be.
    pub fn history(&self, seed: u64) -> History {
        let mut stage = Stage::new(self, seed, &self.draw(seed), Detail::default());
        stage.world.run_until(Self::is_quiet, Self::HEALING);
        std::mem::take(&mut stage.world.owner.history)
    }
}

/// What is drawn for a run.
#[derive(Clone, Debug)]
pub struct Drawn {
    sizes: Vec<u16>,
    profile: Profile,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "groups {:?}, {:?}", self.sizes, self.profile)
    }
}

impl<P: Protocol<Record: 'static> + Clone + 'static> Subject for Short<P> {
    type Process = Lossy<P>;
    type Owner = Few;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::ZERO;
    /// Longer than any repeat of a protocol takes.
    const HEALING: Duration = Duration::from_secs(23);

    /// How many messages there are and to how many groups they go is drawn; in each fourth run they
    /// conflict by keys, and in each eighth they form a chain.
    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0x5407);
        let sizes = self.sizes[random.random_range(0..self.sizes.len())].clone();
        let (messages, dest_max) = (random.random_range(4..=9), random.random_range(2..=3));
        let (keys, chain) = match random.random_range(0..8) {
            0 | 1 => (4, false),
            2 => (0, true),
            _ => (0, false),
        };
        let drawn = Profile { messages, dest_max, links: Links::Fifo, keys, chain };
        Drawn { sizes, profile: self.profile.unwrap_or(drawn) }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let mut random = Random::seed_from_u64(seed);
        let sizes: Vec<_> = drawn.sizes.iter().copied().chain([1; OUTSIDE]).collect();
        let groups: Groups = Arc::new(groups_of(&sizes));
        let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
            let group = *group;
            nodes.clone().into_iter().map(move |node| ProcessId { group, node })
        };
        let ids: Vec<_> = groups.iter().flat_map(of).collect();
        let unordered = drawn.profile.links == Links::FifoOrNot && random.random_bool(0.5);
        let busy = random.random_bool(0.5);
        let anybody = ids[random.random_range(0..ids.len())];
        let late = random.random_bool(0.25).then_some(anybody);
        let dest = (0..).take(drawn.sizes.len()).map(GroupId).collect();
        let mut plan = Plan { random, ids: ids.clone(), dest, late, all: Vec::new() };
        plan.draw(drawn.profile);
        let Plan { late, all, .. } = plan;
        let loss =
            Loss { delayed: OVERTAKEN, delay: Duration::from_nanos(SLOW.1), ..Loss::default() };
        let loss = Rc::new(Cell::new(if unordered { loss } else { Loss::default() }));
        let make = self.make.clone();
        let made = groups.clone();
        let wrapped = move |me: ProcessId| {
            let name = u64::from(me.group.0) << 16 | u64::from(me.node.0);
            Lossy::new(make(me, &made), loss.clone(), seed ^ name)
        };
        let setup = Setup {
            delay: delay(late),
            flush: (Duration::ZERO, Duration::ZERO),
            busy: Duration::from_nanos(if busy { FAST.1 } else { 0 }),
            batch: if busy { BATCH } else { 1 },
            disks: false,
            ..Setup::lan(ids, wrapped)
        };
        let owner = Few::new(&groups, all, (self.settled, self.real_time));
        Made { setup, owner, operator: () }
    }

    fn is_quiet(world: &WorldOf<Self>) -> bool {
        world.owner.missing == 0
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let Few { history, real_time, .. } = &stage.world.owner;
        judge(history)?;
        if *real_time { judge_real_time(history) } else { Ok(()) }
    }

    fn describe(world: &WorldOf<Self>) -> String {
        format!("{} deliveries are missing", world.owner.missing)
    }

    fn counts(world: &WorldOf<Self>) -> Counts {
        let count = |wanted: fn(&Entry) -> bool| {
            let wanted = world.owner.history.entries.iter().filter(|entry| wanted(entry));
            u64::try_from(wanted.count()).unwrap_or(u64::MAX)
        };
        let mut counts = Counts::default();
        counts.add("messages", count(|entry| matches!(entry, Entry::Multicast { .. })));
        counts.add("deliveries", count(|entry| matches!(entry, Entry::Deliver { .. })));
        counts
    }
}

/// How long messages travel; `late` hears late.
fn delay(late: Option<ProcessId>) -> Delay<ProcessId> {
    Box::new(move |_, to, random| {
        let (least, most) = match random.random_range(0..4) {
            0 | 1 if late == Some(to) => SLOWEST,
            0 => SLOW,
            _ => FAST,
        };
        Duration::from_nanos(random.random_range(least..=most))
    })
}

/// A message that is to be multicast.
struct Planned {
    start: Start,
    /// The process that does it.
    sender: ProcessId,
    /// When, if it waits for no other.
    when: Option<Duration>,
    /// Where it is not delivered yet.
    silent: Vec<GroupId>,
    /// Those that wait until it was delivered once, and in all its groups.
    after_first: Vec<usize>,
    after_all: Vec<usize>,
}

/// The messages of a run while they are drawn.
struct Plan {
    random: Random,
    ids: Vec<ProcessId>,
    /// Those that messages go to.
    dest: Vec<GroupId>,
    /// Who hears late, if anybody does.
    late: Option<ProcessId>,
    all: Vec<Planned>,
}

impl Plan {
    /// Draws the messages. Each has a client of its own, so its name says nothing about its time.
    fn draw(&mut self, profile: Profile) {
        if profile.chain && self.dest.len() > 1 {
            return self.draw_chain(profile.messages);
        }
        let mut names: Vec<u64> = (1..=profile.messages).collect();
        for at in 0..names.len() {
            let name = names.swap_remove(self.random.random_range(0..names.len()));
            let id = MessageId { client: ClientId(name), sequence: 1 };
            let count = self.random.random_range(1..=profile.dest_max.min(self.dest.len()));
            let mut to: Vec<_> = self.dest.sample(&mut self.random, count).copied().collect();
            to.sort_unstable();
            let keys = (0..2).map(|_| self.random.random_range(0..profile.keys.max(1)));
            let touches = if profile.keys == 0 { Touches::All } else { Touches::keys(keys) };
            self.add(Start { touches, ..Start::new(id, to.clone(), Vec::new()) });
            let earlier = self.random.random_range(0..=at);
            match self.random.random_range(0..4) {
                0 | 1 if earlier < at => self.all[earlier].after_all.push(at),
                2 if earlier < at => self.all[earlier].after_first.push(at),
                _ => self.all[at].when = Some(self.between(SLOW)),
            }
        }
    }

    fn between(&mut self, (least, most): (u64, u64)) -> Duration {
        Duration::from_nanos(self.random.random_range(least..=most))
    }

    /// A message from anybody.
    fn add(&mut self, start: Start) {
        let sender = self.ids[self.random.random_range(0..self.ids.len())];
        let (silent, when) = (start.dest.to_vec(), None);
        let (after_first, after_all) = (Vec::new(), Vec::new());
        self.all.push(Planned { start, sender, when, silent, after_first, after_all });
    }

    /// See [`Profile::chain`]. They are multicast one after the other, and the first group hears
    /// late.
    fn draw_chain(&mut self, messages: u64) {
        let id = |name| MessageId { client: ClientId(name), sequence: 1 };
        let links = messages - 2;
        let first = self.anywhere();
        let mut here = first;
        for link in 0..links {
            let mut next = self.anywhere();
            while next == here {
                next = self.anywhere();
            }
            let mut to = vec![here, next];
            to.sort_unstable();
            let touches = Touches::keys([link, link + 1]);
            self.add(Start { touches, ..Start::new(id(link + 2), to, Vec::new()) });
            here = next;
        }
        let touches = Touches::keys([0]);
        self.add(Start { touches, ..Start::new(id(1), vec![first], Vec::new()) });
        let (touches, after) = (Touches::keys([links + 1]), Timestamp(20));
        let group = self.anywhere();
        self.add(Start { touches, after, ..Start::new(id(links + 2), vec![group], Vec::new()) });
        let links = links as usize;
        self.all[links - 1].after_first.push(links);
        self.late = self.ids.iter().copied().find(|process| process.group == first);
        for at in (0..links).chain([links + 1]) {
            let before = at as u64 * FAST.1 * 3;
            self.all[at].when = Some(self.between((before, before + SLOW.1 / 3)));
        }
    }

    fn anywhere(&mut self) -> GroupId {
        self.dest[self.random.random_range(0..self.dest.len())]
    }
}

/// The owner: a few messages, some of which wait for deliveries of others.
pub struct Few {
    history: History,
    plan: Vec<Planned>,
    /// How many deliveries are to come.
    missing: usize,
    settled: Duration,
    real_time: bool,
}

impl Few {
    fn new(groups: &Groups, plan: Vec<Planned>, (settled, real_time): (Duration, bool)) -> Few {
        let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
            let process = |node: &NodeId| ProcessId { group: *group, node: *node };
            (*group, nodes.iter().map(process).collect())
        };
        let members: BTreeMap<GroupId, Vec<ProcessId>> = groups.iter().map(of).collect();
        let dest = plan.iter().flat_map(|planned| planned.silent.iter());
        let missing = dest.map(|group| members[group].len()).sum();
        let history = History::new(members);
        Few { history, plan, missing, settled, real_time }
    }
}

impl<P: Protocol> Owner<Lossy<P>> for Few {
    fn begin(&mut self) -> Vec<Stimulus<Lossy<P>>> {
        let planned = (0..).zip(&self.plan);
        let wake = |(token, planned): (u64, &Planned)| {
            Some(Stimulus::Wake { token, after: self.settled + planned.when? })
        };
        planned.filter_map(wake).collect()
    }

    fn wake(&mut self, token: u64, t: Time) -> Vec<Stimulus<Lossy<P>>> {
        let Planned { start, sender, .. } = &self.plan[token as usize];
        let (id, dest, touches, after) =
            (start.id, start.dest.to_vec(), start.touches.clone(), start.after);
        self.history.push(Entry::Multicast { id, dest, touches, after, t });
        let command = P::multicast(start.clone());
        vec![Stimulus::Command { to: *sender, command, after: Duration::ZERO }]
    }

    fn output(&mut self, at: ProcessId, output: P::Output, t: Time) -> Vec<Stimulus<Lossy<P>>> {
        let Some(delivery) = P::delivery(output) else { return Vec::new() };
        let (id, ts, position) = (delivery.start.id, delivery.ts, delivery.position);
        self.history.push(Entry::Deliver { process: at, id, ts, position, t });
        self.missing = self.missing.saturating_sub(1);
        let Some(planned) = self.plan.iter_mut().find(|planned| planned.start.id == id) else {
            return Vec::new();
        };
        planned.silent.retain(|group| *group != at.group);
        let mut next = std::mem::take(&mut planned.after_first);
        if planned.silent.is_empty() {
            next.append(&mut planned.after_all);
        }
        let after = Duration::from_nanos(FAST.1 / 2);
        next.into_iter().map(|at| Stimulus::Wake { token: at as u64, after }).collect()
    }
}
