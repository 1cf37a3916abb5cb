//! A trial of whole nodes: what clients were told of their files holds, under all faults.

use super::regions::{faults, have_applied_all, ordered, partitions, setup};
use super::words::Words;
use super::{FilesWorkload, Tally};
use crate::faults::Faults;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{DiskBug, Logs, Owner, Random, World};
use meridian_cluster::ring::Ring;
use meridian_cluster::topology::DeliveryOrder;
use meridian_core::{BlockId, GroupId, NodeId, Time};
use meridian_fs::invariants::check_tree;
use meridian_fs::mutation::Mutation as InTree;
use meridian_fs::{Answer, Partition, Query};
use meridian_host::Node;
use meridian_host::drain::keep::Options;
use meridian_host::drain::{self, Drain};
use meridian_host::space::{self, Space};
use meridian_multicast::Mutation;
use meridian_multicast::mutation::PLANTED;
use meridian_session as session;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The bugs of sessions that trials show. A session forgets the horizon where a shard has
/// forgotten sessions, which takes thousands: that is a scenario.
const IN_SESSION: [session::Mutation; 15] = [
    session::Mutation::ForgetsGivenUp,
    session::Mutation::SkipsCancelling,
    session::Mutation::KeepsVector,
    session::Mutation::NamesRepeatsAnew,
    session::Mutation::CountsOneNode,
    session::Mutation::PlacesTwice,
    session::Mutation::TakesDamaged,
    session::Mutation::AsksOneHolder,
    session::Mutation::SendsBeforeStored,
    session::Mutation::OvertakesAppended,
    session::Mutation::NamesFlightAnew,
    session::Mutation::DiscardsUnknown,
    session::Mutation::IgnoresToken,
    session::Mutation::DropsSettings,
    session::Mutation::SetsOnNewerBytes,
];

/// The bugs of trees.
const IN_TREE: [InTree; 7] = [
    InTree::LeavesNoWhiteout,
    InTree::KeepsCapability,
    InTree::InheritsNothing,
    InTree::ReapsNamed,
    InTree::LosesTops,
    InTree::NotesAnyRead,
    InTree::SettlesBackwards,
];

/// The bugs of what frees blocks.
const IN_SPACE: [space::Mutation; 3] =
    [space::Mutation::NeverLooks, space::Mutation::FreesUnnamed, space::Mutation::NeverReaps];

/// The world of a trial.
pub type Cluster = World<Node, FilesWorkload>;

const CLIENTS: u64 = 6;
/// How many things each client does.
const THINGS: u64 = 90;
/// How long it may take after all is applied until nobody keeps votes for others.
const FORGET: Duration = Duration::from_secs(60);
/// Short, so that clients are too slow at times, and much is freed while others go on.
const SPACE: space::Options = space::Options {
    tick: Duration::from_millis(200),
    grace: Duration::from_millis(500),
    window: Duration::from_secs(3),
    least_bytes: 40 << 10,
    linger: Duration::from_secs(3),
};
/// How long it takes to read all blocks once.
const SCRUB: Duration = Duration::from_secs(10);
/// How long it may take until all blocks are where they should be.
const COPIED: Duration = Duration::from_secs(60);
/// How long it may take until nothing is left that no file lies in.
const TIDY: Duration = Duration::from_secs(60);

/// What a trial is made of. What is `None` is drawn from the seed.
#[derive(Clone, Debug)]
pub struct Trial {
    /// How many nodes each of the three regions has.
    pub nodes: Option<usize>,
    /// The order of messages.
    pub order: Option<DeliveryOrder>,
    /// What may go wrong.
    pub faults: Option<Faults>,
    /// A bug planted in the multicast.
    #[doc(hidden)]
    pub mutation: Mutation,
    /// A bug planted in what surrounds the nodes.
    #[doc(hidden)]
    pub bug: Option<DiskBug>,
    /// A bug planted in the sessions of the clients.
    #[doc(hidden)]
    pub in_session: session::Mutation,
    /// A bug planted in trees.
    #[doc(hidden)]
    pub in_tree: InTree,
    /// A bug planted in what frees blocks.
    #[doc(hidden)]
    pub in_space: space::Mutation,
    /// A bug planted in what looks after copies.
    #[doc(hidden)]
    pub in_copies: drain::Mutation,
}

impl Default for Trial {
    fn default() -> Self {
        Trial {
            nodes: None,
            order: None,
            faults: None,
            mutation: Mutation::Correct,
            bug: None,
            in_session: session::Mutation::Correct,
            in_tree: InTree::Correct,
            in_space: space::Mutation::Correct,
            in_copies: drain::Mutation::Correct,
        }
    }
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How many nodes each of the three regions has.
    pub nodes: usize,
    /// The order of messages.
    pub order: DeliveryOrder,
    /// What may go wrong.
    pub faults: Faults,
    /// The node whose disk damages blocks.
    pub rots: Option<NodeId>,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "regions of {} nodes, {:?}", self.nodes, self.order)
    }
}

impl Trial {
    /// With so many nodes in each region; all else is drawn.
    pub fn of(nodes: usize) -> Trial {
        Trial { nodes: Some(nodes), ..Trial::default() }
    }
}

impl Subject for Trial {
    type Process = Node;
    type Owner = FilesWorkload;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(10);
    const HEALING: Duration = Duration::from_secs(120);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0xd1ce);
        let nodes = if random.random_ratio(1, 3) { 1 } else { 3 };
        let linearizable = random.random_ratio(1, 3);
        let order =
            if linearizable { DeliveryOrder::Linearizable } else { DeliveryOrder::Sequential };
        let nodes = self.nodes.unwrap_or(nodes);
        let loses_disk = random.random_bool(0.5);
        let faults = self.faults.clone().unwrap_or_else(|| all_faults(nodes, loses_disk));
        // A block is on two nodes: one may lose it.
        let may_rot = nodes > 1 && faults.lost_disk.is_none();
        let rots = random.random_range(0..3 * nodes);
        let rots = NodeId(u16::try_from(rots).expect("a few"));
        let rots = may_rot.then_some(rots);
        Drawn { nodes, order: self.order.unwrap_or(order), faults, rots }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let topology = ordered(drawn.nodes, drawn.order);
        let (of, mutation, in_tree) = (topology.clone(), self.mutation, self.in_tree);
        let space = Space::new(SPACE).with_mutation(self.in_space);
        let (in_copies, options) = (self.in_copies, Options { pass: SCRUB, ..Options::default() });
        let make = move |me| {
            let drain = Drain::new(of.clone(), me).with_options(options).with_mutation(in_copies);
            let node = Node::new(of.clone(), me).with_mutation(mutation);
            let node = node.with_tree_mutation(in_tree);
            node.with_space(space.clone()).with_drain(drain)
        };
        let mut setup = setup(&topology, make);
        (setup.faults, setup.bug) = (drawn.faults.clone(), self.bug);
        setup.logs = Logs::on_disks();
        if self.bug == Some(DiskBug::EarlyGate) {
            setup.flush = (Duration::from_millis(1), Duration::from_millis(50)); // Slow disks.
        }
        let bug = self.in_session;
        let mut owner = FilesWorkload::with_mutation(seed, topology, CLIENTS, THINGS, bug);
        drawn.rots.into_iter().for_each(|node| owner.rots(node));
        Made { setup, owner, operator: () }
    }

    /// All clients are done, and all replicas have applied the same.
    fn is_quiet(world: &Cluster) -> bool {
        let topology = world.owner.topology();
        world.owner.is_done()
            && topology
                .group_ids()
                .all(|group| have_applied_all(world, group, members_left(world, group)))
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let world = &mut stage.world;
        if !world.run_until(are_equal, FORGET) {
            return Err("equal states: replicas of a group differ".into());
        }
        check_tree(world.owner.topology().group_ids().map(|group| partitions(world, group)[0]));
        check_space(world)?;
        check_copies(world)?;
        let read = |query: &Query| partitions(world, query.partition())[0].read(query);
        world.owner.check_contents(read)?;
        world.owner.check_facts(read)?;
        for (parent, name, child) in world.owner.entries() {
            let query = Query::Lookup { parent, name };
            match partitions(world, parent.partition)[0].read(&query) {
                Ok(Answer::Entry { entry, .. }) if entry.place == child => {}
                other => {
                    return Err(format!("durability: {query:?} was answered, and is {other:?}"));
                }
            }
        }
        Ok(())
    }

    fn describe(world: &Cluster) -> String {
        describe_waiting(world, &world.owner.waiting())
    }

    fn teller() -> Box<dyn Teller<Node>> {
        Box::new(Words::default())
    }

    fn counts(world: &Cluster) -> Counts {
        let Tally { updates, reads, given_up, again, blocks, .. } = world.owner.tally;
        let Tally { discarded, late, files, beyond, held, taken, facts, .. } = world.owner.tally;
        let counts = [
            ("updates", updates),
            ("reads", reads),
            ("given up", given_up),
            ("again", again),
            ("blocks", blocks),
            ("discarded", discarded),
            ("late", late),
            ("freed", world.owner.freed().len() as u64),
            ("files", files),
            ("beyond", beyond),
            ("held", held),
            ("taken", taken),
            ("facts", facts),
            ("refused", world.refused().len() as u64),
        ];
        Counts(BTreeMap::from(counts))
    }

    fn planted() -> Vec<(String, Self)> {
        if !PLANTED {
            return Vec::new();
        }
        let all = [Mutation::NoOrder, Mutation::NoLeaderClock, Mutation::NoCeiling];
        let trial = |mutation| {
            let order = Some(DeliveryOrder::Sequential);
            Trial { mutation, order, ..Trial::of(3) }
        };
        let disks = [
            (DiskBug::EarlyGate, power_cuts()),
            (DiskBug::OldDisk, lost_disks()),
            (DiskBug::SkipsPast, lost_disks()),
            (DiskBug::SameStart, lost_disks()),
            (DiskBug::TellsUnflushed, power_cuts()),
        ];
        let on_disk = |(bug, faults)| {
            let trial = Trial { bug: Some(bug), faults: Some(faults), ..Trial::of(3) };
            (format!("{bug:?}"), trial)
        };
        let of_session = IN_SESSION.map(|in_session| {
            (format!("{in_session:?}"), Trial { in_session, ..trial(Mutation::Correct) })
        });
        let multicast = all.map(|mutation| (format!("{mutation:?}"), trial(mutation)));
        let of_space = IN_SPACE.map(|in_space| {
            (format!("{in_space:?}"), Trial { in_space, ..trial(Mutation::Correct) })
        });
        let of_tree = IN_TREE
            .map(|in_tree| (format!("{in_tree:?}"), Trial { in_tree, ..trial(Mutation::Correct) }));
        let of_copies = [drain::Mutation::NeverLooks, drain::Mutation::NeverScrubs];
        let of_copies = of_copies.map(|in_copies| {
            (format!("{in_copies:?}"), Trial { in_copies, ..trial(Mutation::Correct) })
        });
        let all = multicast.into_iter().chain(disks.map(on_disk)).chain(of_session);
        all.chain(of_tree).chain(of_space).chain(of_copies).collect()
    }
}

/// All kinds of faults. A disk is lost only where the others of its region can do without it.
fn all_faults(nodes: usize, loses_disk: bool) -> Faults {
    let faults = faults();
    let mean = faults.crash.expect("all kinds");
    let lost_disk = (loses_disk && nodes >= 3).then_some(mean * 4);
    Faults { disk: Some(mean * 2), lost_disk, ..faults }
}

/// Every node loses power at once, again and again.
pub fn power_cuts() -> Faults {
    let second = Duration::from_secs(1);
    Faults { crash_all: Some(4 * second), outage: second / 2, ..Faults::none() }
}

/// Nodes crash, and one comes back with another disk than it had.
pub fn lost_disks() -> Faults {
    let second = Duration::from_secs(1);
    let crash = Some(second / 2);
    Faults { crash, outage: second / 2, lost_disk: Some(second), ..Faults::none() }
}

/// Nothing is freed that a file lies in, and in the end nothing is left that none does.
fn check_space(world: &mut Cluster) -> Result<(), Violation> {
    let groups: Vec<_> = world.owner.topology().group_ids().collect();
    for group in groups {
        let freed = world.owner.freed();
        let named = partitions(world, group)[0].names_blocks().find(|block| freed.contains(block));
        if let Some(block) = named {
            return Err(format!("space: {block} was freed, and a file of {group:?} lies in it"));
        }
    }
    let tidy = world.run_until(|world| unreachable_blocks(world).is_empty(), TIDY);
    if !tidy {
        return Err(format!("space: nobody frees {:?}", unreachable_blocks(world)));
    }
    match world.run_until(|world| nameless(world) == 0, TIDY) {
        true => Ok(()),
        false => Err(format!("space: nobody reaps {} files without a name", nameless(world))),
    }
}

/// How many files without a name replicas have. Nobody has any open in the end.
fn nameless(world: &Cluster) -> usize {
    let groups = world.owner.topology().group_ids();
    let all = groups.flat_map(|group| partitions(world, group));
    all.map(|partition| partition.nameless().count()).sum()
}

/// Each block that a file lies in can be read at all nodes that should hold it.
fn check_copies(world: &mut Cluster) -> Result<(), Violation> {
    let kept = world.run_until(|world| lacking(world).is_empty(), COPIED);
    let left = || format!("copies: nobody repairs {:?}", lacking(world));
    if kept { Ok(()) } else { Err(left()) }
}

/// The blocks that nodes should hold, as files of their partitions lie in them, and cannot read.
fn lacking(world: &Cluster) -> Vec<(NodeId, BlockId)> {
    let topology = world.owner.topology();
    let mut all = Vec::new();
    for (at, node) in world.processes() {
        let nodes: Vec<_> = topology.nodes_in(topology.node(at).region).collect();
        let ring = Ring::new(&nodes);
        for replica in topology.groups_of(at).filter_map(|group| node.replica(group)) {
            let blocks = replica.partition().names_blocks();
            let own = blocks.filter(|block| ring.holders(*block).contains(&at));
            all.extend(own.filter(|block| !world.owner.is_sound(at, *block)).map(|of| (at, of)));
        }
    }
    all
}

/// The blocks that no file lies in, and who holds them though it has their partition. Not those
/// whose names are from the future: their client saw the clock of a primary run ahead.
fn unreachable_blocks(world: &Cluster) -> Vec<(NodeId, BlockId)> {
    let mut left = Vec::new();
    for (at, node) in world.processes() {
        for block in world.owner.held(at) {
            let Some(replica) = node.replica(block.partition()) else { continue };
            let is_old = block.born_ms() <= world.now().0 / 1_000_000;
            if is_old && !replica.partition().unnamed([block]).is_empty() {
                left.push((at, block));
            }
        }
    }
    left
}

/// How many members of a group may come back.
fn members_left(world: &Cluster, group: GroupId) -> usize {
    let members = &world.owner.topology().group(group).members;
    let refused = |node: &&NodeId| world.refused().iter().any(|(refused, _)| refused == *node);
    members.len() - members.iter().filter(refused).count()
}

/// Whether all replicas of each group are equal, down to the votes that they keep for others: once
/// all have applied everything, none are needed. Votes for who must not come back are kept.
fn are_equal(world: &Cluster) -> bool {
    let whole = world.refused().is_empty();
    let same = |a: &Partition, b: &Partition| match whole {
        true => a == b,
        false => a.state_hash() == b.state_hash(),
    };
    let equal = |group| partitions(world, group).windows(2).all(|pair| same(pair[0], pair[1]));
    world.owner.topology().group_ids().all(equal)
}

/// What clients wait for, in words, and how the nodes are.
pub fn describe_waiting<O: Owner<Node>>(world: &World<Node, O>, waiting: &str) -> String {
    format!("clients wait for:\n{waiting}{}", describe_nodes(world.processes(), world.now()))
}

/// How the groups of these nodes are, and what their partitions wait for.
pub fn describe_nodes<'a>(nodes: impl Iterator<Item = (NodeId, &'a Node)>, now: Time) -> String {
    let mut text = String::new();
    for (node, process) in nodes {
        for status in process.status(now) {
            let (group, role, epoch) = (status.group, status.role, status.epoch);
            let (delivered, applied) = (status.delivered, status.applied);
            let waits = process.replica(group).map(|replica| replica.partition().waiting());
            text += &format!(
                "\n{node:?} {group:?} {role} {epoch:?} {delivered:?} {applied:?}, \
                 {} pending, waits for {waits:?}",
                status.pending
            );
        }
    }
    text
}
