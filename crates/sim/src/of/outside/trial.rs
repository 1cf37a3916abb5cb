//! A trial of clients that are in no group: what is drawn, the run, the end; planted bugs.

use super::clients::Clients;
use super::station::{NOWHERE, Station};
use super::words::Words;
use crate::faults::Faults;
use crate::of::multicast::replica::{Replica, groups_of};
use crate::of::multicast::trial::drawn_faults;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{Random, Setup, World};
use meridian_core::{NodeId, ProcessId};
use meridian_multicast::mutation::PLANTED;
use meridian_multicast::outside::{Desk, Mutation, Sender};
use meridian_multicast::{Options, Order, PrimCast};
use rand::{RngExt, SeedableRng};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many members each group has.
    pub sizes: Vec<u16>,
    /// How many clients there are.
    pub clients: u16,
    /// The order of deliveries.
    pub order: Order,
    /// Whether links are slow and uneven.
    pub slow: bool,
    /// What may go wrong.
    pub faults: Faults,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

type Cluster = World<Station, Clients>;

fn setup(seed: u64, drawn: &Drawn, mutation: Mutation) -> Setup<Station> {
    let groups = Arc::new(groups_of(&drawn.sizes));
    let of = |(group, nodes): (&meridian_core::GroupId, &Vec<NodeId>)| {
        let group = *group;
        nodes.iter().map(move |node| ProcessId { group, node: *node }).collect::<Vec<_>>()
    };
    let mut peers: Vec<_> = groups.iter().flat_map(of).collect();
    peers.extend((0..drawn.clients).map(|node| ProcessId { group: NOWHERE, node: NodeId(node) }));
    let options = Options { order: drawn.order, ..Options::default() };
    let mut starts = 0;
    let make = move |me: ProcessId| {
        starts += 1;
        if me.group == NOWHERE {
            let sender = Sender::new(groups.clone(), (seed << 20) + starts);
            return Station::Client(sender.with_mutation(mutation));
        }
        let multicast = PrimCast::new(me, groups.clone()).with_options(options);
        let desk = Desk::new(me.group).with_mutation(mutation);
        Station::Member { replica: Replica::new(multicast), desk }
    };
    let mut setup = Setup { faults: drawn.faults.clone(), ..Setup::lan(peers, make) };
    if drawn.slow {
        setup.delay = Box::new(|_, _, random| {
            let most = if random.random_bool(0.2) { 400 } else { 40 };
            Duration::from_millis(random.random_range(1..=most))
        });
    }
    setup
}

impl Subject for Trial {
    type Process = Station;
    type Owner = Clients;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(6);
    const HEALING: Duration = Duration::from_secs(90);

    fn draw(&self, seed: u64) -> Drawn {
        // All is drawn whether it is given or not, so that the rest is the same.
        let random = &mut Random::seed_from_u64(seed ^ 0x0075);
        let sizes: &[u16] = match random.random_range(0..5) {
            0 => &[3],
            1 | 2 => &[3, 3],
            3 => &[3, 1],
            _ => &[3, 3, 3],
        };
        let order = if random.random() { Order::Sequential } else { Order::Linearizable };
        let (clients, slow) = (random.random_range(1..4), random.random_ratio(1, 4));
        let faults = drawn_faults(random);
        let faults = self.faults.clone().unwrap_or(faults);
        Drawn { sizes: sizes.to_vec(), clients, order, slow, faults }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let setup = setup(seed, drawn, self.mutation);
        let random = Random::seed_from_u64(seed ^ 0xc11e);
        let owner = Clients::new(groups_of(&drawn.sizes), drawn.clients, random);
        Made { setup, owner, operator: () }
    }

    fn heal(stage: &mut Stage<Self>) {
        stage.world.heal();
        stage.world.owner.end();
    }

    /// Whether all calls have ended, nothing is to be delivered, and groups are level.
    fn is_quiet(world: &Cluster) -> bool {
        let members = || world.processes().filter_map(|(at, one)| Some((at, one.member()?)));
        let level = |(at, one): (ProcessId, &Replica)| {
            let same = |(other, two): (ProcessId, &Replica)| {
                other.group != at.group || two.delivered.len() == one.delivered.len()
            };
            one.multicast.pending() == 0 && members().all(same)
        };
        world.owner.is_done() && members().all(level)
    }

    fn progress(world: &Cluster) -> Option<u64> {
        Some(world.owner.counts.of("deliveries"))
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let members = stage.world.processes().filter(|(_, one)| one.member().is_some());
        stage.world.owner.judge(members)
    }

    fn describe(world: &Cluster) -> String {
        let mut text = format!("clients wait for {:?}", world.owner.unanswered());
        for (peer, station) in world.processes() {
            let Some(replica) = station.member() else { continue };
            let multicast = &replica.multicast;
            text += &format!(
                "\n{peer}: {:?} {:?} delivered {:?} pending {}",
                multicast.role(),
                multicast.epoch(),
                multicast.delivered(),
                multicast.pending()
            );
        }
        text
    }

    fn teller() -> Box<dyn Teller<Station>> {
        Box::new(Words::default())
    }

    fn counts(world: &Cluster) -> Counts {
        world.owner.counts.clone()
    }

    fn planted() -> Vec<(String, Self)> {
        if !PLANTED {
            return Vec::new();
        }
        let all = [
            Mutation::RenamesRepeats,
            Mutation::BelievesRefusals,
            Mutation::ForgetsGivenUp,
            Mutation::AnswersAtOnce,
            Mutation::RefusesPassedOn,
        ];
        let trial = |mutation| (format!("{mutation:?}"), Trial { mutation, ..Trial::default() });
        all.map(trial).into()
    }
}
