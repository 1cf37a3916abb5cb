//! A trial: clients, faults and changes of the members for a while; then all heals, and a
//! judgement.

use super::Replica;
use super::clients::{Clients, Profile, process};
use super::explain::Explanation;
use super::planted;
use super::service::Registers;
use super::watch::Watch;
use super::words::Words;
use crate::explain::explain;
use crate::faults::Faults;
use crate::lossy::{Loss, Lossy};
use crate::trace::Teller;
use crate::trial::{Counts, Made, Subject, Violation};
use crate::world::{Random, Setup, World};
use meridian_core::{NodeId, ProcessId};
use meridian_paxos::{
    Change, ClientIds, Command, Configuration, Leases, Mutation, Options, Paxos, Recovery, Routing,
    Status,
};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The world of a trial.
pub type Cluster = World<Replica, Clients>;

/// A trial under way, or a written scenario.
pub type Stage = crate::trial::Stage<Trial>;

/// Nodes from this number on come later.
pub const LATER: u16 = 10;
/// So many come later at most.
const LATER_MAX: u16 = 6;
/// Snapshots of the service are no longer, in bytes.
const SNAPSHOT_BYTES: usize = 8 << 10;
/// How far a clock is ahead of that of the last start at each start.
const CLOCK_STEP: Duration = Duration::from_secs(3600);

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What survives a crash.
    pub recovery: Option<Recovery>,
    /// How many replicas there are at first.
    pub replicas: Option<u16>,
    /// What is done with requests at a follower.
    pub routing: Option<Routing>,
    /// Whether leases are used.
    pub leases: Option<bool>,
    /// Whether members change.
    pub changes: Option<bool>,
    /// So many of hundred operations are reads that do not go through the log.
    pub reads: Option<u32>,
    /// Whether members change again as soon as they have changed.
    pub hasty: bool,
    /// What may go wrong, but for clocks: these depend on options.
    pub faults: Option<Faults>,
    /// How bad the network is.
    pub loss: Option<Loss>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many replicas there are at first.
    pub replicas: u16,
    /// How they behave.
    pub options: Options,
    /// How clients behave.
    pub profile: Profile,
    /// Whether members change.
    pub changes: bool,
    /// Whether links are slow and uneven.
    pub slow: bool,
    /// Whether flushes take long.
    pub slow_disks: bool,
    /// One in so many requests makes a service want a snapshot.
    pub eager: u64,
    /// What may go wrong.
    pub faults: Faults,
    /// How bad the network is.
    pub loss: Loss,
}

impl Drawn {
    /// Replicas with these options, without clients and faults.
    pub fn calm(replicas: u16, options: Options) -> Drawn {
        let think = Duration::from_millis(10);
        let request_bytes_max = options.request_bytes_max;
        Drawn {
            replicas,
            options,
            profile: Profile { clients: 0, keys: 1, think, reads: 0, request_bytes_max },
            changes: false,
            slow: false,
            slow_disks: false,
            eager: 0,
            faults: Faults::none(),
            loss: Loss::default(),
        }
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Who changes the members, and how bad the network is.
pub struct Operator {
    /// How bad the network is now.
    pub loss: Rc<Cell<Loss>>,
    /// What a replica that comes now is told of the members.
    pub known: Rc<RefCell<Configuration>>,
    random: Random,
    /// The next identity that was never used.
    next: u16,
    /// Whether members change.
    changes: bool,
    /// Whether all that crash come back with all that they had.
    all_return: bool,
    /// How long it is to the next change at most, in milliseconds.
    pause: u64,
}

fn address(node: NodeId) -> String {
    format!("a{}", node.0)
}

impl Operator {
    /// Asks for a change of the members, if the last one is made; and starts who is needed for it.
    fn change(&mut self, world: &mut Cluster) {
        if world.owner.is_changing() {
            return;
        }
        let nodes = world.owner.nodes.clone();
        let active = |node: &NodeId| world.process(process(*node)).is_some_and(serves);
        let dead: Vec<_> = nodes.iter().copied().filter(|node| !active(node)).collect();
        let old = dead.choose(&mut self.random).or_else(|| nodes.choose(&mut self.random));
        let old = *old.expect("there are always members");
        let new = NodeId(self.next);
        let comes = self.next < LATER + LATER_MAX;
        let change = match self.random.random_range(0..4) {
            0 if comes && nodes.len() < 5 => Change::Add { node: new, address: address(new) },
            1 if nodes.len() > 3 => Change::Remove { node: old },
            _ if comes => Change::Replace { old, new, address: address(new) },
            _ => return,
        };
        let comes = !matches!(change, Change::Remove { .. });
        let goes = !matches!(change, Change::Add { .. });
        let stay = nodes.iter().copied().filter(|node| !goes || *node != old);
        let next: Vec<_> = stay.chain(comes.then_some(new)).collect();
        // A majority of the new ones must be there, or who changes the members stops the service.
        if !configuration(&next).has_quorum(|node| active(&node)) && !self.all_return {
            return;
        }
        *self.known.borrow_mut() = configuration(&nodes);
        if comes {
            self.next += 1;
            world.enter(process(new));
        }
        world.owner.plan(change, configuration(&next));
    }
}

/// These as members.
pub fn configuration(nodes: &[NodeId]) -> Configuration {
    Configuration { members: nodes.iter().map(|node| (*node, address(*node))).collect() }
}

/// Whether it takes part.
fn serves(replica: &Replica) -> bool {
    replica.inner.status().active
}

/// Whether all is answered, and all members that serve are equal.
pub fn is_quiet(world: &Cluster) -> bool {
    if !world.owner.is_done() {
        return false;
    }
    let of = |(peer, replica): (ProcessId, &Replica)| {
        (peer, replica.inner.status(), replica.inner.digest())
    };
    let all: Vec<_> = world.processes().map(of).collect();
    let Some((_, leader, digest)) = all.iter().find(|(_, status, _)| status.leading) else {
        return false;
    };
    let level = |(peer, status, theirs): &(ProcessId, Status, u64)| {
        if !leader.members.contains(peer.node) {
            return !status.members.contains(peer.node) || !status.active;
        }
        let equal = (status.executed, status.position, *theirs)
            == (leader.executed, leader.position, *digest);
        let dead = status.stopped.is_some() && world.owner.may_be_dead(*peer);
        dead || (status.active && equal)
    };
    leader.under_way == 0 && all.iter().all(level)
}

/// How all replicas are, and what clients wait for.
pub fn describe(world: &Cluster) -> String {
    let mut text = format!("clients wait for {}", world.owner.unanswered());
    for (peer, replica) in world.processes() {
        let Status { view, leading, active, stopped, executed, position, members, .. } =
            replica.inner.status();
        let members: Vec<_> = members.members.keys().map(|node| node.0).collect();
        let state = stopped.map_or(format!("active {active}"), |why| why.to_string());
        text += &format!(
            "\n{peer}: {view} leading {leading}, {state}, executed {} ({}), members {members:?}",
            executed.0, position.0
        );
    }
    text
}

/// What a replica is told of the members when it starts.
struct Bootstrap {
    first: Configuration,
    known: Rc<RefCell<Configuration>>,
    begun: Rc<RefCell<BTreeSet<ProcessId>>>,
}

impl Bootstrap {
    /// At its first start one of the first members must know the first members; one that comes
    /// later must not be among those that it is told.
    fn tells(&self, me: ProcessId) -> Configuration {
        let again = self.begun.borrow().contains(&me);
        if !again && self.first.contains(me.node) {
            return self.first.clone();
        }
        let mut known = self.known.borrow().clone();
        known.members.retain(|node, _| again || *node != me.node);
        known
    }
}

fn setup(
    seed: u64,
    mutation: Mutation,
    drawn: &Drawn,
    told: Bootstrap,
    loss: Rc<Cell<Loss>>,
) -> Setup<Replica> {
    let first: Vec<_> = (0..drawn.replicas).map(|node| process(NodeId(node))).collect();
    let later: Vec<_> = (LATER..LATER + LATER_MAX).map(|node| process(NodeId(node))).collect();
    let peers = [first, later.clone()].concat();
    let (options, eager) = (drawn.options.clone(), drawn.eager);
    let mut starts = 0;
    let make = move |me: ProcessId| {
        starts += 1;
        let seed = (seed << 20) + starts;
        let configuration = told.tells(me);
        let service = Registers::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), eager);
        let paxos = Paxos::new(me, configuration, options.clone(), service, seed);
        // Who is full reads no clients.
        let refuses = |paxos: &Paxos<_>, command: &Command| {
            matches!(command, Command::Request(_)) && paxos.is_full()
        };
        Lossy::new(paxos.with_mutation(mutation), loss.clone(), seed).refusing(refuses)
    };
    let mut setup = Setup { later, faults: drawn.faults.clone(), ..Setup::lan(peers, make) };
    let mut ahead: BTreeMap<ProcessId, u32> = BTreeMap::new();
    setup.ahead = Box::new(move |peer| {
        let times = ahead.entry(peer).or_insert(u32::from(peer.node.0));
        *times += 1;
        CLOCK_STEP * *times
    });
    if drawn.slow {
        setup.delay = Box::new(|_, _, random| {
            let most = if random.random_bool(0.1) { 150 } else { 25 };
            Duration::from_millis(random.random_range(1..=most))
        });
    }
    if drawn.slow_disks {
        setup.flush = (Duration::from_millis(1), Duration::from_millis(60));
    }
    setup
}

/// Now all kinds, now some that are rare among all.
pub(in crate::of) fn drawn_faults(random: &mut Random) -> Faults {
    let ms = Duration::from_millis(1);
    let all = Faults { outage: 200 * ms, split: 400 * ms, region: None, ..Faults::all(250 * ms) };
    match random.random_range(0..8) {
        0..4 => all,
        4 => Faults { depose: Some(400 * ms), outage: 150 * ms, split: 500 * ms, ..Faults::none() },
        5 => Faults {
            netsplit: Some(200 * ms),
            split: 300 * ms,
            reset: Some(300 * ms),
            ..Faults::none()
        },
        6 => Faults {
            crash: Some(120 * ms),
            outage: 80 * ms,
            checkpoint: Some(300 * ms),
            ..Faults::none()
        },
        _ => Faults::none(),
    }
}

pub(in crate::of) fn drawn_loss(random: &mut Random) -> Loss {
    let ms = Duration::from_millis(1);
    match random.random_range(0..3) {
        0 => Loss::default(),
        1 => Loss { lost: 30, repeated: 50, delayed: 50, delay: 60 * ms },
        _ => Loss {
            lost: random.random_range(0..250),
            repeated: random.random_range(0..200),
            delayed: random.random_range(0..200),
            delay: 300 * ms,
        },
    }
}

impl Trial {
    /// With this recovery mode; all else is drawn.
    pub fn of(recovery: Recovery) -> Trial {
        Trial { recovery: Some(recovery), ..Trial::default() }
    }
}

impl Subject for Trial {
    type Process = Replica;
    type Owner = Clients;
    type Drawn = Drawn;
    type Operator = Operator;

    const FAULTS: Duration = Duration::from_millis(2500);
    /// Until all is answered and all are level: some elections, some repeats.
    const HEALING: Duration = Duration::from_secs(30);

    fn draw(&self, seed: u64) -> Drawn {
        // All is drawn whether it is given or not, so that the rest is the same.
        let random = &mut Random::seed_from_u64(seed ^ 0xd1ce);
        let recovery = *Recovery::ALL.choose(random).expect("four");
        let replicas = if random.random_ratio(1, 3) { 5 } else { 3 };
        let routing = if random.random() { Routing::Redirect } else { Routing::Forward };
        let (leases, changes) = (random.random_ratio(1, 3), random.random_ratio(1, 2));
        let (faults, loss) = (drawn_faults(random), drawn_loss(random));
        let leases = self.leases.unwrap_or(leases);
        let routing = self.routing.unwrap_or(routing);
        let options = drawn_options(random, self.recovery.unwrap_or(recovery), routing, leases);
        let mut faults = self.faults.clone().unwrap_or(faults);
        // Clocks may be anything at a start only where identities do not come from them; with
        // leases they differ in speed only as far as these allow.
        let counted = options.client_ids == ClientIds::Counted;
        faults.skew_ppm = faults.skew_ppm.filter(|_| counted);
        faults.clock_jump = faults.clock_jump.filter(|_| !leases);
        Drawn {
            replicas: self.replicas.unwrap_or(replicas),
            profile: Profile {
                clients: random.random_range(2..6),
                keys: random.random_range(1..4),
                think: Duration::from_millis(random.random_range(2..60)),
                reads: {
                    let reads = random.random_range(0..50);
                    self.reads.unwrap_or(reads)
                },
                request_bytes_max: options.request_bytes_max,
            },
            options,
            changes: self.changes.unwrap_or(changes),
            slow: random.random_ratio(1, 5),
            slow_disks: random.random_ratio(1, 3),
            eager: if random.random() { 0 } else { random.random_range(5..60) },
            faults,
            loss: self.loss.unwrap_or(loss),
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let nodes: Vec<_> = (0..drawn.replicas).map(NodeId).collect();
        let known = Rc::new(RefCell::new(configuration(&nodes)));
        let loss = Rc::new(Cell::new(drawn.loss));
        let watch = Watch::new(&drawn.options, SNAPSHOT_BYTES);
        let random = Random::seed_from_u64(seed ^ 0xc11e);
        let recovery = drawn.options.recovery;
        let clients = Clients::new(random, drawn.profile, recovery, nodes, watch);
        let (first, known_now) = (configuration(&clients.nodes), known.clone());
        let told = Bootstrap { first, known: known_now, begun: clients.begun.clone() };
        let setup = setup(seed, self.mutation, drawn, told, loss.clone());
        let operator = Operator {
            loss,
            known,
            random: Random::seed_from_u64(seed ^ 0x0be7),
            next: LATER,
            changes: drawn.changes,
            all_return: recovery == Recovery::FullSs,
            pause: if self.hasty { 25 } else { 600 },
        };
        Made { setup, owner: clients, operator }
    }

    fn disturb(stage: &mut Stage) -> Result<(), Violation> {
        let Stage { world, operator } = stage;
        let end = world.now() + Self::FAULTS;
        while world.now() < end {
            let pause = operator.random.random_range(1..operator.pause);
            world.run_for(Duration::from_millis(pause));
            if operator.changes {
                operator.change(world);
            }
        }
        Ok(())
    }

    fn heal(stage: &mut Stage) {
        stage.world.heal();
        if stage.operator.random.random() {
            stage.operator.loss.set(Loss::default());
        }
        for left in &mut stage.world.owner.left {
            *left = 2;
        }
    }

    fn is_quiet(world: &Cluster) -> bool {
        is_quiet(world)
    }

    fn judge(stage: &mut Stage) -> Result<(), Violation> {
        let level = |(peer, replica): &(ProcessId, &Replica)| {
            let Status { active, members, .. } = replica.inner.status();
            active && members.contains(peer.node)
        };
        let owner = &stage.world.owner;
        let mut level = stage.world.processes().filter(level);
        level.try_for_each(|(_, replica)| owner.judge_replica(replica))?;
        owner.judge()
    }

    fn describe(world: &Cluster) -> String {
        describe(world)
    }

    fn teller() -> Box<dyn Teller<Replica>> {
        Box::new(Words)
    }

    fn explain(&self, seed: u64, message: &str) -> Result<String, String> {
        explain::<Explanation, _>(self, seed, message)
    }

    /// Also how many instances were decided, and how often a log was seen to begin late.
    fn counts(world: &Cluster) -> Counts {
        let mut counts = world.owner.counts.clone();
        counts.add("instances", world.owner.watch.decided() as u64);
        counts.add("truncated", world.owner.watch.truncated);
        counts
    }

    fn planted() -> Vec<(String, Self)> {
        let name = |mutation| (format!("{mutation:?}"), planted::trial(mutation));
        planted::ALL.map(name).into()
    }
}

pub(in crate::of) fn drawn_options(
    random: &mut Random,
    recovery: Recovery,
    routing: Routing,
    leases: bool,
) -> Options {
    let ms = Duration::from_millis(1);
    let counted = recovery != Recovery::ViewSs && random.random();
    Options {
        recovery,
        window: *[1, 2, 3, 8, 64].choose(random).expect("some"),
        batch_bytes: random.random_range(60..600),
        batch_delay: if random.random() { Duration::ZERO } else { 5 * ms },
        request_bytes_max: 150,
        queue_bytes_max: random.random_range(500..4000),
        heartbeat: 30 * ms,
        suspect_after: 150 * ms,
        retransmit: 60 * ms,
        leases: if leases { Leases::For(120 * ms) } else { Leases::Off },
        routing,
        client_ids: if counted { ClientIds::Counted } else { ClientIds::Time },
        snapshot_bytes_min: random.random_range(500..5000),
        ask_percent: 100,
        force_percent: 300,
        log_bytes_max: random.random_range(8 << 10..32 << 10),
        clients_max: random.random_range(5..16),
        digest_every: random.random_range(1..8),
    }
}
