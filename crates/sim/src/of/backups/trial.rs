//! A trial of snapshots that are taken while clients work.

use super::BackupsWorkload;
use crate::faults::Faults;
use crate::of::files::crowd::CrowdTrial;
use crate::of::files::regions::{Drawn, nodes_on_disks, topology};
use crate::trial::Made;
use crate::world::{Random, World};
use meridian_host::Node;
use meridian_host::mutation::Mutation as InHost;
use meridian_session::Mutation as InSession;
use rand::SeedableRng;
use std::time::Duration;

const WORKERS: usize = 5;
/// How many things each worker does.
const THINGS: u64 = 400;
const SNAPSHOTS: u64 = 4;

/// The world of a trial.
pub type Cluster = World<Node, BackupsWorkload>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What may go wrong with nodes.
    pub faults: Option<Faults>,
    /// A bug planted in nodes.
    #[doc(hidden)]
    pub in_host: InHost,
    /// A bug planted in who takes snapshots.
    #[doc(hidden)]
    pub in_session: InSession,
}

impl CrowdTrial for Trial {
    type Crowd = BackupsWorkload;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(25);
    const HEALING: Duration = Duration::from_secs(240);

    fn draw(&self, seed: u64) -> Drawn {
        Drawn::draw(&mut Random::seed_from_u64(seed ^ 0xbac1), self.faults.as_ref())
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let in_host = self.in_host;
        let topology = topology(drawn.nodes);
        let mut setup =
            nodes_on_disks(&topology, move |node: Node| node.with_host_mutation(in_host));
        setup.faults = drawn.faults.clone();
        let sizes = (WORKERS, THINGS, SNAPSHOTS);
        let owner = BackupsWorkload::new(seed, topology, sizes, self.in_session);
        Made { setup, owner, operator: () }
    }

    fn planted() -> Vec<(String, Self)> {
        let in_host = [InHost::TakesAtOnce, InHost::FreesKept, InHost::WaitsForNothing];
        let in_host =
            in_host.map(|in_host| (format!("{in_host:?}"), Trial { in_host, ..Trial::default() }));
        let in_session = InSession::IgnoresCauses;
        let ignores = (format!("{in_session:?}"), Trial { in_session, ..Trial::default() });
        in_host.into_iter().chain([ignores]).collect()
    }
}
