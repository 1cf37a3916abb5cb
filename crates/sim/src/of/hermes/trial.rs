//! A trial: clients and faults for a while; then all heals, and a judgement.

use super::clients::{Clients, Memory, Profile, agreed};
use super::explain::Explanation;
use super::node::Node;
use super::planted;
use super::replacing::Plan;
use super::words::Words;
use crate::explain::explain;
use crate::faults::Faults;
use crate::lossy::Loss;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Subject, Violation};
use crate::world::{Logs, Random, Setup, World};
use meridian_core::NodeId;
use meridian_hermes::reliable::{self, Doze, Fault, ReliableMembership};
use meridian_hermes::{Acks, Durability, Hermes, Mutation, Options, Reads};
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The world of a trial.
pub type Cluster = World<Node, Clients>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// How many nodes there are.
    pub nodes: Option<u16>,
    /// Who vouches for reads.
    pub reads: Option<Reads>,
    /// To whom writes are acknowledged.
    pub acks: Option<Acks>,
    /// Where keys are kept.
    pub durability: Option<Durability>,
    /// Whether all may lose what they have in memory, at once or one after the other.
    pub power: Option<bool>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// How bad the network is.
    pub loss: Option<Loss>,
    /// How clients behave.
    pub profile: Option<Profile>,
    /// How long a lease lasts.
    pub lease: Option<Duration>,
    /// Whether nodes doze that nobody uses.
    pub dozes: Option<bool>,
    /// Who should hold keys, and when that changes.
    pub plan: Option<Plan>,
    /// A bug planted in the keys.
    #[doc(hidden)]
    pub mutation: Mutation,
    /// A bug planted in the membership.
    #[doc(hidden)]
    pub fault: Fault,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    plan: Plan,
    options: Options,
    membership: reliable::Options,
    profile: Profile,
    faults: Faults,
    loss: Loss,
    slow: bool,
    /// Nobody takes care that somebody always has all keys in memory.
    power: bool,
    /// Logs are those of servers, on simulated disks.
    on_disks: bool,
}

impl Drawn {
    /// Whether nobody has a reason to suspect anyone.
    fn is_calm(&self) -> bool {
        let harmless = Faults { skew_ppm: self.faults.skew_ppm, ..Faults::none() };
        let all_stay = self.plan.configurations.len() == 1;
        self.faults == harmless && self.loss == Loss::default() && !self.slow && all_stay
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

const MS: Duration = Duration::from_millis(1);

/// Clocks are what the leases allow.
pub(crate) fn drawn_faults(random: &mut Random) -> Faults {
    let all = Faults {
        crash_all: None,
        clock_jump: None,
        region: None,
        skew_ppm: None,
        outage: 150 * MS,
        split: 400 * MS,
        stop: 300 * MS,
        ..Faults::all(500 * MS)
    };
    match random.random_range(0..6) {
        0..3 => all,
        3 => Faults { crash: Some(400 * MS), outage: 100 * MS, ..Faults::none() },
        4 => Faults {
            netsplit: Some(250 * MS),
            split: 400 * MS,
            pause: Some(300 * MS),
            stop: 300 * MS,
            ..Faults::none()
        },
        _ => Faults::none(),
    }
}

fn drawn_options(random: &mut Random) -> Options {
    Options {
        reads: if random.random_ratio(1, 4) { Reads::Check } else { Reads::Lease },
        acks: if random.random_ratio(1, 3) { Acks::All } else { Acks::Coordinator },
        virtual_ids: if random.random() { 1 } else { 4 },
        message_loss_timeout: MS * random.random_range(5..60),
        attempts_max: random.random_range(1..12),
        chunk_bytes: random.random_range(1..64),
        ..Options::default()
    }
}

/// As slow as the network may be: most answers come in time.
pub(crate) fn membership_options(drift_ppm: u32) -> reliable::Options {
    let options = reliable::Options::default();
    let paxos = meridian_paxos::Options {
        heartbeat: 30 * MS,
        suspect_after: 200 * MS,
        retransmit: 60 * MS,
        ..options.paxos
    };
    let (lease, beat, suspect_after) = (200 * MS, 15 * MS, 150 * MS);
    reliable::Options { lease, beat, suspect_after, drift_ppm, doze: None, paxos }
}

/// Shorter than the clients' rest.
const DOZE: Doze = Doze { after: Duration::from_millis(150), beat: Duration::from_millis(250) };

fn drawn_profile(random: &mut Random) -> Profile {
    Profile {
        clients: random.random_range(2..6),
        keys: random.random_range(1..4),
        think: MS * random.random_range(2..40),
        reads: random.random_range(10..60),
        rmws: random.random_range(0..80),
        rest: None,
    }
}

/// Whoever changes the network and the cluster.
pub struct Operator {
    /// How bad the network is now.
    loss: Rc<Cell<Loss>>,
    plan: Plan,
}

impl Subject for Trial {
    type Process = Node;
    type Owner = Clients;
    type Drawn = Drawn;
    type Operator = Operator;

    const FAULTS: Duration = Duration::from_millis(2500);
    /// Until all are members again and all is answered.
    const HEALING: Duration = Duration::from_secs(30);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0x4e25);
        let nodes = [3, 3, 3, 4, 5][random.random_range(0..5)];
        let (options, profile) = (drawn_options(random), drawn_profile(random));
        let (faults, loss) = (drawn_faults(random), Loss::drawn(random));
        let mut faults = self.faults.clone().unwrap_or(faults);
        let drift_ppm = [0, 2_000, 100_000][random.random_range(0..3)];
        faults.skew_ppm = (drift_ppm > 0).then_some(u64::from(drift_ppm));
        let membership = membership_options(drift_ppm);
        let lease = self.lease.unwrap_or(membership.lease);
        let loss = self.loss.unwrap_or(loss);
        let slow = random.random_ratio(1, 4);
        let dozes = self.dozes.unwrap_or(random.random_ratio(1, 3)).then_some(DOZE);
        let rest = random.random_ratio(2, 3).then_some(600 * MS).filter(|_| dozes.is_some());
        let profile = self.profile.unwrap_or(Profile { rest, ..profile });
        let disk = if random.random() { Durability::Disk } else { Durability::Memory };
        let durability = self.durability.unwrap_or(disk);
        let disk = durability == Durability::Disk;
        let (loses, on_disks) = (random.random_range(0..6), random.random_ratio(1, 3));
        let power = self.power.unwrap_or(disk || loses == 0);
        let crash_all = random.random::<bool>().then_some(600 * MS);
        if power && self.faults.is_none() {
            faults.crash_all = crash_all;
        }
        let first = (0..self.nodes.unwrap_or(nodes)).map(NodeId).collect();
        let plan = match random.random() {
            _ if self.dozes.is_some() || self.nodes.is_some() => Plan::none(first),
            true => Plan::drawn(random, first, Self::FAULTS),
            false => Plan::none(first),
        };
        Drawn {
            plan: self.plan.clone().unwrap_or(plan),
            options: Options {
                reads: self.reads.unwrap_or(options.reads),
                acks: self.acks.unwrap_or(options.acks),
                durability,
                ..options
            },
            membership: reliable::Options { lease, doze: dozes, ..membership },
            profile,
            faults,
            loss,
            slow,
            power,
            on_disks: disk && on_disks,
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let first = drawn.plan.first().clone();
        let nodes: Vec<_> = drawn.plan.all_nodes().into_iter().collect();
        let later = nodes.iter().filter(|node| !first.contains(node)).copied().collect();
        let voters = first.clone();
        let loss = Rc::new(Cell::new(drawn.loss));
        let (now, mutation, fault) = (loss.clone(), self.mutation, self.fault);
        let (options, membership) = (drawn.options.clone(), drawn.membership.clone());
        let mut starts = 0;
        let make = move |me: NodeId| {
            starts += 1;
            let seed = (seed << 20) + starts;
            let membership = ReliableMembership::new(me, &voters, membership.clone(), seed);
            let membership = membership.with_fault(fault);
            let keys = Hermes::new(me, options.clone(), seed).with_mutation(mutation);
            Node::new(membership, keys, &now, seed)
        };
        let faults = drawn.faults.clone();
        let mut setup = Setup { faults, later, ..Setup::lan(nodes, make) };
        if drawn.on_disks {
            setup.logs = Logs::on_disks();
        }
        if drawn.slow {
            setup.delay = Box::new(|_, _, random| {
                let most = if random.random_bool(0.1) { 40_000 } else { 5_000 };
                Duration::from_micros(random.random_range(100..=most))
            });
        }
        let random = Random::seed_from_u64(seed ^ 0xc11e);
        let keeps = drawn.options.durability == Durability::Disk;
        let mut owner =
            Clients::new(random, drawn.profile, first, Memory { keeps, power: drawn.power });
        owner.calm = drawn.is_calm();
        Made { setup, owner, operator: Operator { loss, plan: drawn.plan.clone() } }
    }

    fn disturb(stage: &mut crate::trial::Stage<Self>) -> Result<(), Violation> {
        let mut left = Self::FAULTS;
        let configurations = stage.operator.plan.configurations.clone();
        for (at, (lasts, named)) in configurations.into_iter().enumerate() {
            if at > 0 {
                let present = stage.world.owner.nodes.present();
                stage.world.owner.nodes.configure(named.clone());
                named.nodes.difference(&present).for_each(|node| stage.world.enter(*node));
            }
            stage.world.run_for(lasts);
            left = left.saturating_sub(lasts);
        }
        stage.world.run_for(left);
        Ok(())
    }

    fn heal(stage: &mut crate::trial::Stage<Self>) {
        stage.world.heal();
        stage.operator.loss.set(Loss::default());
        stage.world.owner.ends = true;
    }

    /// All that should hold keys do, and nobody else; all is answered.
    fn is_quiet(world: &Cluster) -> bool {
        let wanted = world.owner.nodes.wanted();
        let live = |(node, replica): (NodeId, &Node)| {
            let (keys, membership) = (replica.replica(), replica.membership());
            let holds = keys.membership().live == *wanted
                && membership.registry().voters() == wanted
                && membership.replicas() == *wanted
                && keys.is_settled();
            if wanted.contains(&node) { holds } else { membership.has_left() }
        };
        let kept = world.processes().filter(|(node, _)| wanted.contains(node));
        let kept: Vec<_> = kept.map(|(_, replica)| replica).collect();
        world.owner.is_done() && world.processes().all(live) && agreed(&kept).is_some()
    }

    fn judge(stage: &mut crate::trial::Stage<Self>) -> Result<(), Violation> {
        stage.world.owner.judge()
    }

    fn describe(world: &Cluster) -> String {
        let mut text = format!("clients are done: {}", world.owner.is_done());
        for (node, replica) in world.processes() {
            let keys = replica.replica();
            let members = keys.membership();
            let held: Vec<_> =
                keys.entries().map(|(key, ts, ..)| (ts, keys.state(key).0)).collect();
            text += &format!("\n{node}: {members:?}, settled {}, {held:?}", keys.is_settled());
            let membership = replica.membership();
            text += &format!(
                "\n  left {}, replicas {:?}, ",
                membership.has_left(),
                membership.replicas()
            );
            text += &format!("{:?}", membership.registry());
        }
        text
    }

    fn explain(&self, seed: u64, message: &str) -> Result<String, String> {
        explain::<Explanation, _>(self, seed, message)
    }

    fn teller() -> Box<dyn Teller<Node>> {
        Box::new(Words::default())
    }

    fn counts(world: &Cluster) -> Counts {
        world.owner.counts.clone()
    }

    fn planted() -> Vec<(String, Self)> {
        planted::trials()
    }
}
