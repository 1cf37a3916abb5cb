//! A trial of clients that keep what they see.

use super::LooksWorkload;
use super::regions::{self, at_level, faults, nodes_on_disks, partitions};
use crate::faults::Faults;
use crate::of::files::crowd::CrowdTrial;
use crate::trial::Made;
use crate::world::{Random, World};
use meridian_core::level::Level;
use meridian_fs::Partition;
use meridian_fs::mutation::Mutation as InTree;
use meridian_host::Node;
use meridian_host::mutation::Mutation as InHost;
use meridian_session::{Keeping, Mutation};
use rand::{RngExt, SeedableRng};
use std::fmt;
use std::time::Duration;

const CLIENTS: u64 = 5;
/// How many changes each client makes.
const THINGS: u64 = 60;

/// The world of a trial.
pub type Cluster = World<Node, LooksWorkload>;

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What may go wrong with nodes.
    pub faults: Option<Faults>,
    /// Whether clients hand tokens to each other, by which they lose much of what they keep.
    pub tokens: Option<bool>,
    /// By which level the cluster goes.
    pub level: Option<Level>,
    /// Whether directories are made in each other mostly.
    pub deep: Option<bool>,
    /// Whether files that are kept back get other names.
    pub links: Option<bool>,
    /// A bug planted in sessions.
    #[doc(hidden)]
    pub in_session: Mutation,
    /// A bug planted in nodes.
    #[doc(hidden)]
    pub in_host: InHost,
    /// A bug planted in the tree.
    #[doc(hidden)]
    pub in_tree: InTree,
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The nodes.
    pub of: regions::Drawn,
    /// Whether clients hand tokens to each other.
    pub tokens: bool,
    /// By which level the cluster goes.
    pub level: Level,
    /// Whether directories are made in each other mostly.
    pub deep: bool,
    /// Whether files that are kept back get other names.
    pub links: bool,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = if self.tokens { ", tokens" } else { "" };
        let deep = if self.deep { ", deep" } else { "" };
        let links = if self.links { ", links" } else { "" };
        write!(f, "{}{tokens}{deep}{links}, level {}", self.of, self.level)
    }
}

impl CrowdTrial for Trial {
    type Crowd = LooksWorkload;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(25);
    const HEALING: Duration = Duration::from_secs(240);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0x100d);
        let nodes = if random.random_ratio(1, 3) { 1 } else { 3 };
        // Where nothing fails leases are renewed, and most is seen.
        let drawn = match random.random_range(0..3) {
            0 => Faults::none(),
            1 => Faults { skew_ppm: Some(50_000), clock_jump: Some(JUMP), ..Faults::none() },
            _ => Faults { disk: None, lost_disk: None, ..faults() },
        };
        let tokens = self.tokens.unwrap_or(seed.is_multiple_of(3));
        let of = regions::Drawn { nodes, faults: self.faults.clone().unwrap_or(drawn) };
        let drawn = match seed % 8 {
            1 => Level::REGIONS,
            5 => Level::WRITTEN,
            3 => Level::EXCLUSIVE,
            7 => Level::BATCHES,
            2 | 6 => Level::MADE,
            4 if seed % 16 == 12 => Level::DURABILITY,
            _ => Level::ALONG,
        };
        let level = self.level.unwrap_or(drawn);
        // With each of the levels.
        let deep = self.deep.unwrap_or(seed / 8 % 3 == 1);
        let links = self.links.unwrap_or(seed / 8 % 4 == 3);
        Drawn { of, tokens, level, deep, links }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let in_host = self.in_host;
        let in_tree = self.in_tree;
        let with = move |node: Node| node.with_host_mutation(in_host).with_tree_mutation(in_tree);
        let topology = at_level(drawn.of.nodes, drawn.level);
        let mut setup = nodes_on_disks(&topology, with);
        setup.faults = drawn.of.faults.clone();
        let work = (CLIENTS, THINGS);
        let mut owner = LooksWorkload::new(seed, topology, work, self.in_session);
        owner.hands_tokens(drawn.tokens);
        owner.goes_by_number(drawn.level >= Level::MADE);
        owner.makes_deep(drawn.deep);
        owner.gives_names(drawn.links);
        owner.keeps_back(match drawn.level {
            Level::BATCHES => Keeping::InOrder,
            Level::EXCLUSIVE => Keeping::Files,
            Level::MADE => match seed % 3 {
                0 => Keeping::Nothing,
                1 => Keeping::Files,
                _ => Keeping::InOrder,
            },
            _ => Keeping::Nothing,
        });
        if drawn.level >= Level::WRITTEN {
            owner.keeps_writes_back();
        }
        if drawn.level == Level::DURABILITY {
            owner.keeps_back_by_directory();
        }
        Made { setup, owner, operator: () }
    }

    fn is_idle(one: &Partition) -> bool {
        one.caps() == 0
    }

    fn describe(world: &Cluster) -> String {
        let held =
            |group| partitions(world, group).iter().map(|one| one.caps()).collect::<Vec<_>>();
        let held: Vec<_> = world.owner.net.topology.group_ids().map(held).collect();
        format!("\nheld: {held:?}")
    }

    fn planted() -> Vec<(String, Self)> {
        // Where most is asked for, not made and held.
        let in_session = [
            Mutation::TakesAnyAnswer,
            Mutation::FillsFromEarlier,
            Mutation::KeepsListed,
            Mutation::KeepsOldPages,
            Mutation::ReleasesFirst,
        ];
        let in_host = [InHost::AnswersAtOnce, InHost::ExpiresAnyhow];
        let ignores = Mutation::IgnoresToken;
        let ignoring = Trial { in_session: ignores, tokens: Some(true), ..Trial::default() };
        let sessions = in_session.map(|in_session| {
            let level = Some(Level::ALONG);
            (format!("{in_session:?}"), Trial { in_session, level, ..Trial::default() })
        });
        let hosts =
            in_host.map(|in_host| (format!("{in_host:?}"), Trial { in_host, ..Trial::default() }));
        let ignoring = (format!("{ignores:?}"), ignoring);
        let level = Some(Level::EXCLUSIVE);
        let in_tree = InTree::IgnoresExclusive;
        let in_tree = (format!("{in_tree:?}"), Trial { in_tree, level, ..Trial::default() });
        let in_session = Mutation::TakesPartForWhole;
        let part = (format!("{in_session:?}"), Trial { in_session, level, ..Trial::default() });
        let level = Some(Level::BATCHES);
        let of_batches = [
            Mutation::ReleasesUnlanded,
            Mutation::CountsFromReply,
            Mutation::Overtakes,
            Mutation::EndsNames,
        ];
        let of_batches = of_batches.map(|in_session| {
            (format!("{in_session:?}"), Trial { in_session, level, ..Trial::default() })
        });
        let (unnoted, level) = (InTree::GrantsUnnoted, Some(Level::MADE));
        let unnoted =
            (format!("{unnoted:?}"), Trial { in_tree: unnoted, level, ..Trial::default() });
        let (in_session, level) = (Mutation::IgnoresModes, Some(Level::DURABILITY));
        let modes = (format!("{in_session:?}"), Trial { in_session, level, ..Trial::default() });
        let (in_session, level, deep) = (Mutation::KeepsBrought, Some(Level::ALONG), Some(true));
        let brought =
            (format!("{in_session:?}"), Trial { in_session, level, deep, ..Trial::default() });
        let level = Some(Level::WRITTEN);
        let of_written = [Mutation::ReleasesUnwritten, Mutation::JoinsCalled];
        let of_written = of_written.map(|in_session| {
            (format!("{in_session:?}"), Trial { in_session, level, ..Trial::default() })
        });
        let (in_session, links) = (Mutation::RemovesOneName, Some(true));
        let one =
            (format!("{in_session:?}"), Trial { in_session, level, links, ..Trial::default() });
        let others = [ignoring, in_tree, part, unnoted, modes, brought, one];
        let kept = of_batches.into_iter().chain(of_written);
        sessions.into_iter().chain(kept).chain(others).chain(hosts).collect()
    }
}

/// How often the clock of some node jumps where nothing else goes wrong.
const JUMP: Duration = Duration::from_secs(2);
