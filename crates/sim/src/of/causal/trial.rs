//! A trial: sessions and faults for a while; then all heals, and a judgement.

use super::changing::{Configurations, Nodes, Plan, Wanted, Way};
use super::node::Node;
use super::sessions::{Held, Profile, Sessions};
use super::words::Words;
use super::{Member, planted};
use crate::explain::explain;
use crate::faults::Faults;
use crate::lossy::{Loss, Lossy};
use crate::of::eunomia::explain::Explanation;
use crate::sessions::{delays, value_of};
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{Random, Setup, World};
use meridian_core::{Key, NodeId, Value};
use meridian_eunomia as eunomia;
use meridian_hermes::reliable::{self, ReliableMembership};
use meridian_hermes::{self as hermes, Durability, Hermes};
use meridian_keys::causal::{Causal, Mutation, Regions, held};
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The world of a trial.
pub type Groups = World<Member, Sessions>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// How many regions there are.
    pub regions: Option<u16>,
    /// How many nodes each has.
    pub nodes: Option<u16>,
    /// Where keys are kept.
    pub durability: Option<Durability>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// How bad the network is.
    pub loss: Option<Loss>,
    /// How sessions behave.
    pub profile: Option<Profile>,
    /// Which nodes and regions come and go, by the first nodes.
    pub plan: Option<fn(Nodes) -> Plan>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
    /// A bug planted in a part of Eunomia.
    #[doc(hidden)]
    pub eunomia: eunomia::Mutation,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    plan: Plan,
    hermes: hermes::Options,
    drift_ppm: u32,
    options: eunomia::Options,
    profile: Profile,
    faults: Faults,
    loss: Loss,
    /// Between two regions, one way, at most.
    far: Duration,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

const MS: Duration = Duration::from_millis(1);

/// Clocks run as evenly as leases need; they show anything.
fn drawn_faults(random: &mut Random) -> Faults {
    let all = Faults {
        crash_all: Some(2000 * MS),
        region: Some(1000 * MS),
        clock_jump: None,
        depose: None,
        skew_ppm: Some(2_000),
        outage: 150 * MS,
        split: 300 * MS,
        stop: 300 * MS,
        ..Faults::all(500 * MS)
    };
    match random.random_range(0..6) {
        0..3 => all,
        3 => Faults { crash: Some(200 * MS), outage: 80 * MS, ..Faults::none() },
        4 => Faults {
            netsplit: Some(300 * MS),
            region: Some(500 * MS),
            pause: Some(300 * MS),
            stop: 300 * MS,
            split: 400 * MS,
            skew_ppm: Some(2_000),
            ..Faults::none()
        },
        _ => Faults::none(),
    }
}

fn drawn_options(random: &mut Random) -> eunomia::Options {
    let suspect_after = MS * random.random_range(150..400);
    eunomia::Options {
        batch: 15 * MS,
        theta: 15 * MS,
        tell: 25 * MS,
        retry: 100 * MS,
        idle: suspect_after / 3,
        suspect_after,
        labels_max: random.random_range(4..40),
        window: random.random_range(10..100),
        outstanding_max: [6, 100, 1000][random.random_range(0..3)],
        inbox_max: random.random_range(5..50),
        reserve: MS * random.random_range(0..1000),
    }
}

fn drawn_profile(random: &mut Random) -> Profile {
    Profile {
        sessions: random.random_range(4..9),
        keys: [2, 4, 12][random.random_range(0..3)],
        think: MS * random.random_range(5..60),
        reads: random.random_range(20..70),
        moves: random.random_range(0..15),
        rmws: random.random_range(0..60),
        snapshots: random.random_range(0..50),
    }
}

/// As in the trials of Hermes: most answers come in time.
fn membership_options(drift_ppm: u32) -> reliable::Options {
    let options = reliable::Options::default();
    let paxos = meridian_paxos::Options {
        heartbeat: 30 * MS,
        suspect_after: 200 * MS,
        retransmit: 60 * MS,
        ..options.paxos
    };
    let (lease, beat, suspect_after) = (200 * MS, 30 * MS, 150 * MS);
    reliable::Options { lease, beat, suspect_after, drift_ppm, doze: None, paxos }
}

/// What each node holds.
fn all_held(world: &Groups) -> Vec<Held> {
    let of = |node: &Node| {
        let entry = |(key, _, value, _): (&Key, _, Option<&Value>, _)| {
            let update = held(value)?;
            Some((key[0], (value_of(&update.value?)?, update.order)))
        };
        node.keys.replica().entries().filter_map(entry).collect()
    };
    let serves = |node: &NodeId| world.owner.nodes.serves(*node);
    let kept = world.processes().filter(|(node, _)| serves(node));
    kept.map(|(node, member)| (node.to_string(), of(&member.inner))).collect()
}

/// Those are struck that were not.
fn strike(stage: &mut Stage<Trial>, wanted: &Wanted) {
    for (region, way) in &wanted.struck {
        let nodes = &stage.world.owner.nodes;
        if nodes.is_struck(*region) {
            continue;
        }
        let struck: Vec<_> = nodes.present(*region).into_iter().collect();
        match way {
            Way::Stopped => struck.into_iter().for_each(|node| stage.world.retire(node)),
            Way::CutOff => {
                let others = stage.world.peers().filter(|node| !struck.contains(node));
                let others: Vec<_> = others.collect();
                stage.world.cut(&struck, &others, true);
            }
            Way::Alive => {}
        }
    }
}

/// What is outside of the world.
pub struct Operator {
    /// How bad the network is now.
    loss: Rc<Cell<Loss>>,
    plan: Plan,
}

impl Subject for Trial {
    type Process = Member;
    type Owner = Sessions;
    type Drawn = Drawn;
    type Operator = Operator;

    const FAULTS: Duration = Duration::from_millis(1500);
    const HEALING: Duration = Duration::from_secs(30);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0xca_05a1);
        let regions = self.regions.unwrap_or([2, 2, 3][random.random_range(0..3)]);
        let nodes = |random: &mut Random| [1, 2, 3, 3][random.random_range(0..4)];
        let (drawn, faults) = (drawn_profile(random), drawn_faults(random));
        let (loss, options) = (Loss::drawn(random), drawn_options(random));
        let far = MS * random.random_range(4..100);
        let memory = random.random_ratio(1, 2);
        let faults = self.faults.clone().unwrap_or(faults);
        // Who has keys in memory may lose them all by crashes.
        let memory = memory && faults.crash.is_none() && faults.crash_all.is_none();
        let durability = if memory { Durability::Memory } else { Durability::Disk };
        let hermes = hermes::Options {
            durability: self.durability.unwrap_or(durability),
            message_loss_timeout: MS * random.random_range(10..60),
            attempts_max: random.random_range(1..8),
            ..hermes::Options::default()
        };
        let each = (0..regions).map(|_| nodes(random)).collect::<Vec<_>>();
        let each = each.into_iter().map(|drawn| self.nodes.unwrap_or(drawn));
        let mut next = 0;
        let region = |count| {
            next += count;
            (next - count..next).map(NodeId).collect()
        };
        let first: Nodes = each.map(region).collect();
        let changes = (random.random(), random.random(), random.random());
        let plan = match (self.plan, changes) {
            (Some(plan), _) => plan(first),
            (None, changes) if self.nodes.is_none() => {
                Plan::drawn(random, first, changes, Self::FAULTS)
            }
            _ => Plan::none(first),
        };
        Drawn {
            plan,
            hermes,
            drift_ppm: faults.skew_ppm.unwrap_or(0) as u32,
            options,
            profile: self.profile.unwrap_or(drawn),
            faults,
            loss: self.loss.unwrap_or(loss),
            far,
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let plan = drawn.plan.clone();
        let first = plan.first().clone();
        let configurations = Configurations::new(first.clone(), self.eunomia);
        let files = configurations.files();
        let nodes: Vec<Vec<NodeId>> =
            plan.all_nodes().into_iter().map(|nodes| nodes.into_iter().collect()).collect();
        let regions = Arc::new(Regions::new(nodes.clone()));
        let loss = Rc::new(Cell::new(drawn.loss));
        let (now, mutation, bug) = (loss.clone(), self.mutation, self.eunomia);
        let (all, options, keys) = (regions.clone(), drawn.options.clone(), drawn.hermes.clone());
        let leases = membership_options(drawn.drift_ppm);
        let (mut starts, planned) = (0, plan.clone());
        let make = move |me: NodeId| {
            starts += 1;
            let seed = (seed << 20) + starts;
            let region = all.find(me).expect("a node of a region");
            let voters = planned.first_of(region);
            let known = files.borrow().get(&me).expect("it was named").clone();
            let membership = ReliableMembership::new(me, &voters, leases.clone(), seed);
            let replica = Hermes::new(me, keys.clone(), seed);
            let keys = Causal::new(replica, known, options.clone());
            let node = Node::new(membership, keys.with_mutations(mutation, bug));
            Lossy::new(node, now.clone(), seed)
        };
        let known = regions.clone();
        let region_of = move |node| known.find(node).expect("a node of a region");
        let is_first = |node: &NodeId| first.iter().any(|nodes| nodes.contains(node));
        let later = nodes.concat().into_iter().filter(|node| !is_first(node)).collect();
        let setup = Setup {
            faults: drawn.faults.clone(),
            delay: delays(region_of, drawn.far),
            ..Setup::lan(nodes.concat(), make)
        };
        let setup = Setup { regions: nodes, later, ..setup };
        let random = Random::seed_from_u64(seed ^ 0xc11e);
        let owner = Sessions::new(random, drawn.profile, configurations);
        Made { setup, owner, operator: Operator { loss, plan } }
    }

    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let mut left = Self::FAULTS;
        let configurations = stage.operator.plan.configurations.clone();
        for (at, wanted) in configurations.into_iter().enumerate() {
            let lasts = wanted.lasts;
            if at > 0 {
                strike(stage, &wanted);
                let new = stage.world.owner.nodes.configure(wanted);
                new.into_iter().for_each(|node| stage.world.enter(node));
            }
            stage.world.run_for(lasts);
            left = left.saturating_sub(lasts);
        }
        stage.world.run_for(left);
        Ok(())
    }

    fn heal(stage: &mut Stage<Self>) {
        stage.world.heal();
        stage.operator.loss.set(Loss::default());
        stage.world.owner.end();
    }

    /// All is answered, all nodes are members, all regions have everything, and nothing is kept for
    /// them.
    fn is_quiet(world: &Groups) -> bool {
        let nodes = &world.owner.nodes;
        // Of a region that is gone nobody says any more that it needs nothing.
        let nothing = |node: &Node| {
            let mut kept = node.keys.replica().requests(None);
            node.keys.outstanding() == 0 && kept.next().is_none()
        };
        let done = |(id, member): (NodeId, &Member)| {
            let region = nodes.region_of(id);
            if nodes.is_struck(region) {
                return true;
            }
            let (node, wanted) = (&member.inner, nodes.wanted_in(region));
            if !wanted.contains(&id) {
                return node.membership.has_left();
            }
            let (replica, membership) = (node.keys.replica(), &node.membership);
            replica.membership().live == *wanted
                && membership.registry().voters() == wanted
                && membership.replicas() == *wanted
                && replica.is_settled()
                && (nothing(node) || !nodes.standings().is_there(region))
                && replica.entries().all(|(.., valid)| valid)
        };
        world.owner.all().is_done() && nodes.is_settled() && world.processes().all(done)
    }

    fn progress(world: &Groups) -> Option<u64> {
        Some(world.owner.all().counts.of("applied") + world.owner.all().counts.of("superseded"))
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        stage.world.owner.judge(&all_held(&stage.world))
    }

    fn describe(world: &Groups) -> String {
        let mut text = format!("sessions are done: {}", world.owner.all().is_done());
        text += &format!("\n{:?}", world.owner.nodes);
        for (name, member) in world.processes() {
            let keys = &member.inner.keys;
            let replica = keys.replica();
            text += &format!(
                "\n{name}: {:?}, settled {}, {keys}, requests {:?}, invalid {}",
                replica.membership(),
                replica.is_settled(),
                replica.requests(None).collect::<Vec<_>>(),
                replica.entries().filter(|(.., valid)| !valid).count(),
            );
        }
        text
    }

    fn teller() -> Box<dyn Teller<Member>> {
        Box::new(Words::default())
    }

    fn explain(&self, seed: u64, message: &str) -> Result<String, String> {
        explain::<Explanation<_>, _>(self, seed, message)
    }

    fn counts(world: &Groups) -> Counts {
        world.owner.all().counts.clone()
    }

    fn planted() -> Vec<(String, Self)> {
        planted::trials()
    }
}
