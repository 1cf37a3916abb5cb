//! A trial: clients, changes of what they may do and faults for a while; then all heals.

use super::clients::Clients;
use super::node::Node;
use super::thread::Bug;
use super::words::Words;
use crate::faults::Faults;
use crate::of::hermes::trial::{drawn_faults, membership_options};
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{Random, Setup, World};
use meridian_core::NodeId;
use meridian_hermes::Options;
use meridian_hermes::reliable::ReliableMembership;
use meridian_keys::desk::{self, Replica};
use meridian_keys::grant::Mutation;
use meridian_keys::slots::Shard;
use rand::SeedableRng;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
/// How many nodes there are.
const NODES: u16 = 3;

/// The world of a trial.
pub type Cluster = World<Node, Clients>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// A planted bug.
    #[doc(hidden)]
    pub bug: Bug,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    faults: Faults,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Subject for Trial {
    type Process = Node;
    type Owner = Clients;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(3);
    const HEALING: Duration = Duration::from_secs(30);

    fn draw(&self, seed: u64) -> Drawn {
        let faults = drawn_faults(&mut Random::seed_from_u64(seed ^ 0x6ea7));
        Drawn { faults: self.faults.clone().unwrap_or(faults) }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let nodes: BTreeSet<_> = (0..NODES).map(NodeId).collect();
        let owner = Clients::new(Random::seed_from_u64(seed ^ 0xc11e), nodes.clone());
        let (first, bug) = (owner.first(), self.bug);
        let peers = nodes.iter().copied().collect();
        let mut starts = 0;
        let make = move |me: NodeId| {
            starts += 1;
            let seed = (seed << 20) + starts;
            let membership = ReliableMembership::new(me, &nodes, membership_options(0), seed);
            let options = Options { message_loss_timeout: MS * 20, ..desk::options() };
            let replica =
                |shard: Shard| Replica::new(me, options.clone(), seed ^ u64::from(shard.0) << 60);
            Node::new(membership, replica, first.clone(), bug)
        };
        let setup = Setup { faults: drawn.faults.clone(), ..Setup::lan(peers, make) };
        Made { setup, owner, operator: () }
    }

    fn heal(stage: &mut Stage<Self>) {
        stage.world.heal();
        stage.world.owner.ends = true;
    }

    fn is_quiet(world: &Cluster) -> bool {
        world.owner.is_done()
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        stage.world.owner.judge(stage.world.processes().map(|(_, node)| node))
    }

    fn describe(world: &Cluster) -> String {
        let mut text = world.owner.waiting();
        for (node, process) in world.processes() {
            text += &format!("\n{node}: {:?}", process.membership().registry());
        }
        text
    }

    fn teller() -> Box<dyn Teller<Node>> {
        Box::new(Words::default())
    }

    fn counts(world: &Cluster) -> Counts {
        world.owner.counts.clone()
    }

    fn planted() -> Vec<(String, Self)> {
        let in_desk = [
            Mutation::LooksAtFirstKey,
            Mutation::LooksAtFirstPrefix,
            Mutation::ShowsAll,
            Mutation::DoesAnyway,
            Mutation::WatchesOn,
        ];
        let of = |mutation| (format!("{mutation:?}"), Bug::InDesk(mutation));
        let around = (format!("{:?}", Bug::KeepsFirstGrant), Bug::KeepsFirstGrant);
        let all = in_desk.map(of).into_iter().chain([around]);
        all.map(|(name, bug)| (name, Trial { bug, ..Trial::default() })).collect()
    }
}
