//! A trial: sessions and faults for a while; then all heals, and a judgement.

use super::changing::{Configuration, Plan};
use super::explain::Explanation;
use super::sessions::{Profile, Sessions};
use super::words::Words;
use super::{Member, planted};
use crate::explain::explain;
use crate::faults::Faults;
use crate::lossy::{Loss, Lossy};
use crate::sessions::{Held, delays, value_of};
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{Random, Setup, World};
use meridian_core::RegionId;
use meridian_eunomia::{
    self as eunomia, Mutation, Options, Peer, REGIONS_MAX, Shard, Site, Topology,
};
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The world of a trial.
pub type Regions = World<Member, Sessions>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// How many regions there are at first.
    pub regions: Option<u16>,
    /// Who joins, leaves and is lost.
    pub plan: Option<Plan>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// How bad the network is.
    pub loss: Option<Loss>,
    /// How sessions behave.
    pub profile: Option<Profile>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    sites: Vec<Site>,
    plan: Plan,
    options: Options,
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

fn drawn_faults(random: &mut Random) -> Faults {
    let all = Faults {
        crash_all: Some(3000 * MS),
        region: Some(1000 * MS),
        clock_jump: Some(500 * MS),
        depose: None,
        outage: 100 * MS,
        split: 300 * MS,
        stop: 150 * MS,
        ..Faults::all(300 * MS)
    };
    match random.random_range(0..6) {
        0..3 => all,
        3 => Faults { crash: Some(60 * MS), outage: 60 * MS, ..Faults::none() },
        4 => Faults {
            netsplit: Some(200 * MS),
            region: Some(400 * MS),
            split: 400 * MS,
            skew_ppm: Some(100_000),
            ..Faults::none()
        },
        _ => Faults::none(),
    }
}

fn drawn_options(random: &mut Random) -> Options {
    let suspect_after = MS * random.random_range(150..400);
    Options {
        batch: 10 * MS,
        theta: 10 * MS,
        tell: 20 * MS,
        retry: 100 * MS,
        idle: suspect_after / 3,
        suspect_after,
        labels_max: random.random_range(4..40),
        window: random.random_range(10..100),
        outstanding_max: [4, 100, 1000][random.random_range(0..3)],
        inbox_max: random.random_range(5..50),
        reserve: MS * random.random_range(0..1000),
    }
}

fn drawn_profile(random: &mut Random) -> Profile {
    Profile {
        sessions: random.random_range(4..10),
        keys: [2, 5, 20][random.random_range(0..3)],
        think: MS * random.random_range(5..60),
        reads: random.random_range(20..70),
        moves: random.random_range(0..15),
        slow: random.random_range(0..60),
    }
}

/// What a region holds.
fn held(world: &Regions, region: RegionId) -> Held {
    let of = |shard: &Shard| {
        let entry = |(key, value, _): (&bytes::Bytes, Option<&bytes::Bytes>, _)| {
            Some((key[0], value_of(value?).expect("eight bytes were written")))
        };
        shard.entries().filter_map(entry).collect::<Vec<_>>()
    };
    shards(world)
        .filter(|(peer, _)| peer.region == region)
        .flat_map(|(_, shard)| of(shard))
        .collect()
}

fn shards(world: &Regions) -> impl Iterator<Item = (Peer, &Shard)> {
    world.processes().filter_map(|(peer, member)| match &member.inner {
        eunomia::Member::Shard(shard) => Some((peer, shard)),
        _ => None,
    })
}

/// What those regions hold that serve.
fn all_held(world: &Regions) -> Vec<(String, Held)> {
    let regions = world.owner.configuration.serving();
    regions.into_iter().map(|region| (format!("{region:?}"), held(world, region))).collect()
}

impl Subject for Trial {
    type Process = Member;
    type Owner = Sessions;
    type Drawn = Drawn;
    /// How bad the network is now.
    type Operator = Rc<Cell<Loss>>;

    const FAULTS: Duration = Duration::from_millis(1200);
    const HEALING: Duration = Duration::from_secs(5);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0xe0_0301a);
        let regions = [3, 3, 3, 4, 5][random.random_range(0..5)];
        let site = |random: &mut Random| Site {
            shards: random.random_range(1..4),
            replicas: [1, 2, 2, 3][random.random_range(0..4)],
        };
        let (drawn, faults) = (drawn_profile(random), drawn_faults(random));
        let (loss, options) = (Loss::drawn(random), drawn_options(random));
        let far = MS * random.random_range(4..100);
        let regions = self.regions.unwrap_or(regions);
        let mut sites: Vec<_> = (0..regions).map(|_| site(random)).collect();
        let plan = Plan::drawn(random, Self::FAULTS);
        let mut plan = self.plan.clone().unwrap_or(plan);
        plan.later = plan.later.min(REGIONS_MAX as u16 - regions);
        sites.extend((0..plan.later).map(|_| site(random)));
        Drawn {
            sites,
            plan,
            options,
            profile: self.profile.unwrap_or(drawn),
            faults: self.faults.clone().unwrap_or(faults),
            loss: self.loss.unwrap_or(loss),
            far,
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let topology = Arc::new(Topology::new(drawn.sites.clone()));
        let loss = Rc::new(Cell::new(drawn.loss));
        let (now, mutation) = (loss.clone(), self.mutation);
        let (of, options) = (topology.clone(), drawn.options.clone());
        let first = Arc::new(Configuration::first(&topology, &drawn.plan));
        let mut starts = 0;
        let make = move |me: Peer| {
            starts += 1;
            let member = eunomia::Member::new(me, of.clone(), options.clone());
            let member = member.with_regions(&first).with_mutation(mutation);
            Lossy::new(member, now.clone(), (seed << 20) + starts)
        };
        let peers = topology.peers();
        let region = |region| peers.iter().copied().filter(|peer| peer.region == region).collect();
        let setup = Setup {
            faults: drawn.faults.clone(),
            regions: topology.regions().map(region).collect(),
            delay: delays(|peer: Peer| peer.region, drawn.far),
            ..Setup::lan(peers.clone(), make)
        };
        let random = Random::seed_from_u64(seed ^ 0xc11e);
        let plan = drawn.plan.clone();
        let changes = Random::seed_from_u64(seed ^ 0xc4a6e);
        let configuration = Configuration::new(changes, topology.clone(), plan, mutation);
        let owner = Sessions::new(random, drawn.profile, topology, configuration);
        Made { setup, owner, operator: loss }
    }

    fn heal(stage: &mut Stage<Self>) {
        stage.world.heal();
        stage.operator.set(Loss::default());
        stage.world.owner.end();
    }

    /// All is answered, all regions have everything, and nothing is kept for them.
    fn is_quiet(world: &Regions) -> bool {
        let configuration = &world.owner.configuration;
        let there = |(peer, _): &(Peer, _)| configuration.regions().is_there(peer.region);
        let sent = shards(world).filter(there).all(|(_, shard)| shard.outstanding() == 0);
        sent && configuration.is_settled()
            && world.owner.all().is_done()
            && world.owner.lost().next().is_none()
    }

    fn progress(world: &Regions) -> Option<u64> {
        Some(world.owner.all().counts.of("applied") + world.owner.all().counts.of("superseded"))
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        stage.world.owner.judge(&all_held(&stage.world))
    }

    fn describe(world: &Regions) -> String {
        let lost: Vec<_> = world.owner.lost().collect();
        let regions = world.owner.configuration.regions();
        let mut text =
            format!("sessions are done: {}, lost: {lost:?}", world.owner.all().is_done());
        text += &format!("\n{regions:?}");
        for (peer, member) in world.processes() {
            text += &match &member.inner {
                eunomia::Member::Shard(shard) => {
                    format!("\n{peer:?}: {} outstanding", shard.outstanding())
                }
                eunomia::Member::Replica(replica) => {
                    format!(
                        "\n{peer:?}: {:?} held, stable {:?}",
                        replica.held(),
                        replica.stable_time()
                    )
                }
                eunomia::Member::Receiver(receiver) => {
                    let of = |region| (receiver.site_time(region), receiver.queued(region));
                    let regions = regions.standings().len() as u16;
                    format!(
                        "\n{peer:?}: {:?}",
                        (0..regions).map(RegionId).map(of).collect::<Vec<_>>()
                    )
                }
            };
        }
        text
    }

    fn teller() -> Box<dyn Teller<Member>> {
        Box::new(Words)
    }

    fn explain(&self, seed: u64, message: &str) -> Result<String, String> {
        explain::<Explanation<_>, _>(self, seed, message)
    }

    fn counts(world: &Regions) -> Counts {
        world.owner.all().counts.clone()
    }

    fn planted() -> Vec<(String, Self)> {
        planted::trials()
    }
}
