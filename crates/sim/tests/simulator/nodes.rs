//! Nodes come and go while clients use files, under faults: as the configuration says that changes
//! on the way.

use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Configuration, Reply, Request};
use meridian_cluster::topology::DeliveryOrder;
use meridian_core::level::Level;
use meridian_core::{GroupId, MessageId, NodeId, Time};
use meridian_fs::mutation as tree;
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Ino, Kind, Place};
use meridian_fs::{Partition, Query, Timestamp, Update, Vector};
use meridian_host::api::{self, RequestBody};
use meridian_host::update::Payload;
use meridian_host::{Command, ConnectionId, Node, Output, drain, sessions};
use meridian_session::Mutation;
use meridian_sim::of::files::regions::{all_are_level, faults, file, partitions, setup};
use meridian_sim::of::files::trial::describe_nodes;
use meridian_sim::of::files::{FilesWorkload, Tally};
use meridian_sim::{Faults, Owner, Stimulus, World, each_seed};
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The node that comes, and the one that goes: it is in two groups, and leads them at first, maybe.
const COMES: NodeId = NodeId(9);
const GOES: &str = "us-1";
/// How long a change may take, with faults.
const CHANGE: Duration = Duration::from_secs(180);
/// The region that comes, and its directory.
const SA: GroupId = GroupId(4);
/// Who asks for something on it waits for no answer.
const NOBODYS: ConnectionId = ConnectionId(u64::MAX);
const SOUND: tree::Mutation = tree::Mutation::Correct;
const MS: Duration = Duration::from_millis(1);

/// Clients of files, and the configuration, which the nodes hear of sooner or later.
struct Changing {
    files: FilesWorkload,
    configuration: Configuration,
    /// What those start with that start now.
    topology: Rc<RefCell<Arc<Topology>>>,
}

impl Changing {
    /// The configuration changes, and all nodes are told, though not all of them hear it at once,
    /// or at all: those that are down.
    fn change(&mut self, request: Request) -> Vec<Stimulus<Node>> {
        let reply = self.configuration.change(request);
        assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
        let file = self.configuration.file().expect("it was initialised");
        let topology = Arc::new(Topology::new(file).expect("S1"));
        self.files.configured(topology.clone());
        self.topology.replace(topology);
        self.tell()
    }

    /// A node asks something of its blocks, or is drained.
    fn on_blocks(&mut self, to: NodeId, output: drain::Output) -> Vec<Stimulus<Node>> {
        if let drain::Output::Drained { since } = output {
            let name = self.topology.borrow().node(to).name.clone();
            return self.change(Request::Drained { name, since });
        }
        self.files.on_drain(to, output)
    }

    fn tell(&self) -> Vec<Stimulus<Node>> {
        let topology = self.topology.borrow().clone();
        let tell = |to: NodeId| {
            let command = Command::Configured(topology.clone());
            Stimulus::Command { to, command, after: MS * (10 + 37 * u32::from(to.0)) }
        };
        topology.present().map(tell).collect()
    }
}

impl Owner<Node> for Changing {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        self.files.begin()
    }

    fn output(&mut self, at: NodeId, output: Output, now: Time) -> Vec<Stimulus<Node>> {
        match output {
            Output::InForce { group, number } => {
                let group = self.topology.borrow().group_name(group);
                self.change(Request::InForce { group, number })
            }
            Output::Drain(output) => self.on_blocks(at, output),
            Output::Reply { connection: NOBODYS, .. } => Vec::new(),
            output @ (Output::Reply { .. } | Output::Space(_)) => {
                self.files.output(at, output, now)
            }
            Output::Configuration(_) => Vec::new(), // The test keeps it.
        }
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Node>> {
        self.files.wake(token, now)
    }

    fn started(&mut self, at: NodeId, node: &Node, now: Time) {
        self.files.started(at, node, now);
    }

    fn crashed(&mut self, at: NodeId, now: Time) {
        self.files.crashed(at, now);
    }

    fn check(&mut self, at: NodeId, node: &Node, durable: bool) -> Result<(), String> {
        self.files.check(at, node, durable)
    }
}

type Cluster = World<Node, Changing>;

fn cluster(
    seed: u64,
    order: DeliveryOrder,
    faults: Option<Faults>,
    (mutation, tree): (Mutation, tree::Mutation),
) -> Cluster {
    let mut configuration = Configuration::default();
    let mut file = file(3, order);
    file.configuration.levels.now = Level::REGIONS;
    let json = serde_json::to_string(&file).expect("JSON");
    let reply = configuration.change(Request::Initialise(json));
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    let topology = Arc::new(Topology::new(configuration.file().expect("there")).expect("S1"));
    let now = Rc::new(RefCell::new(topology.clone()));
    let of = now.clone();
    let make = move |me| Node::new(of.borrow().clone(), me).with_tree_mutation(tree);
    let mut setup = setup(&topology, make);
    // The delays are those of the topology at first: the node that comes is as near as the others
    // of its region.
    let mut delay = setup.delay;
    setup.delay = Box::new(move |from, to, random| {
        let place = |node| if node == COMES { NodeId(0) } else { node };
        delay(place(from), place(to), random)
    });
    setup.peers.push(COMES);
    setup.later.push(COMES);
    setup.faults = faults.unwrap_or(setup.faults);
    let files = FilesWorkload::with_mutation(seed, topology, 6, 120, mutation);
    World::new(seed, setup, Changing { files, configuration, topology: now })
}

fn change(world: &mut Cluster, request: Request) {
    let stimuli = world.owner.change(request);
    stimuli.into_iter().for_each(|stimulus| world.inject(stimulus));
}

/// Waits until no group is changing; those who were down are told again.
fn settle(world: &mut Cluster) {
    let settled = |world: &Cluster| {
        world.owner.topology.borrow().groups.iter().all(|group| group.next.is_none())
    };
    let end = world.now() + CHANGE;
    while !world.run_until(settled, MS * 1000) {
        if world.now() > end {
            world.fail(&format!("a group never gets its next members: {}", describe(world)));
        }
        let stimuli = world.owner.tell();
        stimuli.into_iter().for_each(|stimulus| world.inject(stimulus));
    }
}

/// Waits until no node is drained any more; those who were down are told again.
fn drained(world: &mut Cluster) {
    let is_drained = |world: &Cluster| {
        world.owner.topology.borrow().nodes.iter().all(|node| node.draining.is_none())
    };
    let end = world.now() + CHANGE;
    while !world.run_until(is_drained, MS * 1000) {
        if world.now() > end {
            world.fail(&format!("a node is drained for ever: {}", describe(world)));
        }
        let stimuli = world.owner.tell();
        stimuli.into_iter().for_each(|stimulus| world.inject(stimulus));
    }
}

fn describe(world: &Cluster) -> String {
    let nodes = describe_nodes(world.processes(), world.now());
    format!("{:?}{nodes}", world.owner.topology.borrow().groups)
}

fn up(topology: &Topology) -> std::collections::BTreeSet<String> {
    topology.nodes.iter().map(|node| node.name.clone()).collect()
}

/// All clients are done, and all replicas of each group are the same.
fn is_quiet(world: &Cluster) -> bool {
    world.owner.files.is_done() && all_are_level(world, &world.owner.topology.borrow())
}

fn one_comes_and_one_goes(seed: u64, faults: Option<Faults>, mutation: Mutation) {
    let mut world = cluster(seed, DeliveryOrder::Sequential, faults, (mutation, SOUND));
    world.run_for(MS * 2000);
    let names = up(&world.owner.topology.borrow());
    let (region, address) = ("us".to_string(), "us-4:1".to_string());
    change(&mut world, Request::AddNode { region, name: None, address, up: names });
    world.enter(COMES);
    change(&mut world, Request::Up { name: "us-4".into() });
    settle(&mut world);
    let topology = world.owner.topology.borrow().clone();
    assert_eq!(topology.groups_of(COMES).count(), 2);
    let (name, up, keeper, reason) = (GOES.into(), up(&topology), None, None);
    change(&mut world, Request::RemoveNode { name, up, keeper, reason });
    drained(&mut world);
    settle(&mut world);
    let gone = topology.node_named(GOES).expect("it was there");
    assert!(world.owner.topology.borrow().is_gone(gone));
    world.retire(gone);
    judge(world);
}

/// All clients do what they had to do, and all that they did is there.
fn judge(mut world: Cluster) {
    world.run_for(MS * 2000);
    world.heal();
    let stimuli = world.owner.tell();
    stimuli.into_iter().for_each(|stimulus| world.inject(stimulus));
    if !world.run_until(is_quiet, MS * 120_000) {
        let waiting = world.owner.files.waiting();
        world.fail(&format!("not quiet; clients wait for:\n{waiting}\n{}", describe(&world)));
    }
    let topology = world.owner.topology.borrow().clone();
    let read = |query: &Query| {
        let member = topology.group(query.partition()).members[0];
        let replica = world.process(member).and_then(|node| node.replica(query.partition()));
        replica.expect("it is up").partition().read(query)
    };
    if let Err(what) = world.owner.files.check_contents(read) {
        world.fail(&what);
    }
    let Tally { updates, reads, blocks, .. } = world.owner.files.tally;
    assert!(updates > 100 && reads > 50 && blocks > 0, "{updates}, {reads}, {blocks}");
}

#[test]
fn a_node_comes_and_another_goes_while_files_are_used() {
    each_seed(0..4, |seed| one_comes_and_one_goes(seed, None, Mutation::Correct));
}

/// Seed 1008 of its day: who came got messages that all before it had applied, and asked for votes
/// that others had forgotten.
#[test]
fn a_node_comes_and_another_goes_under_faults() {
    each_seed(0..40, |seed| one_comes_and_one_goes(seed, Some(faults()), Mutation::Correct));
}

/// Whether something is there at any replica of `group`; or is there at none that is up, if it is
/// wanted so: one that has just come has nothing yet.
fn is_there(
    world: &Cluster,
    group: GroupId,
    wanted: bool,
    has: impl Fn(&Partition) -> bool,
) -> bool {
    let all = partitions(world, group);
    all.iter().any(|partition| has(partition)) == wanted && !all.is_empty()
}

/// Waits until the root has an entry for the region, or has none any more.
fn has_region(world: &mut Cluster, wanted: bool) {
    let is_so = |world: &Cluster| {
        is_there(world, GroupId::GLOBAL, wanted, |partition| partition.has_region(SA))
    };
    if !world.run_until(is_so, CHANGE) {
        world.fail(&format!("the region is {wanted} never: {}", describe(world)));
    }
}

/// A file is made in the region, or removed, by the message of that number.
fn has_left(world: &mut Cluster, number: u64, wanted: bool) {
    let (parent, name) = (Place::top(SA), Bytes::from_static(b"left"));
    let id = |sequence| MessageId { client: sessions::name(0, &[SA]), sequence };
    let update = match wanted {
        true => {
            Update::Create { parent, name: name.clone(), node: NewNode::new(Kind::File, 0o644) }
        }
        false => {
            let child = Place { ino: Ino::made(SA, id(1)), partition: SA };
            Update::Unlink { parent, name: name.clone(), child, keep_for: None }
        }
    };
    let payload = Payload::new(Vector::default(), Timestamp::default(), update);
    let start = payload.into_start(id(number), number, &[SA]);
    let query = Query::Lookup { parent, name };
    let is_so =
        |world: &Cluster| is_there(world, SA, wanted, |partition| partition.read(&query).is_ok());
    let end = world.now() + CHANGE;
    while !is_so(world) {
        if world.now() > end {
            world.fail(&format!("the file is {wanted} never: {}", describe(world)));
        }
        let body = RequestBody::Update { group: SA, start: start.clone() };
        let request = api::Request { id: number, body };
        let topology = world.owner.topology.borrow().clone();
        for to in topology.group(SA).involved() {
            let command = Command::Request { connection: NOBODYS, request: request.clone() };
            world.inject(Stimulus::Command { to, command, after: MS });
        }
        world.run_until(is_so, MS * 1000);
    }
}

/// A region comes. If it is `used`, clients use its directory, and it stays; else it goes again.
fn a_region_comes(seed: u64, faults: Option<Faults>, used: bool, tree: tree::Mutation) {
    let order = match seed % 2 {
        0 => DeliveryOrder::Sequential,
        _ => DeliveryOrder::Linearizable,
    };
    let mut world = cluster(seed, order, faults, (Mutation::Correct, tree));
    world.run_for(MS * 2000);
    let names = up(&world.owner.topology.borrow());
    let (region, address) = ("sa".to_string(), "sa-1:1".to_string());
    let add = Request::AddRegion { region, name: None, address, up: names, now_ms: 1 };
    change(&mut world, add);
    world.enter(COMES);
    change(&mut world, Request::Up { name: "sa-1".into() });
    settle(&mut world);
    has_region(&mut world, true);
    if used {
        world.owner.files.use_also(SA);
        world.run_for(MS * 3000);
        return judge(world);
    }
    let (region, up, keepers) =
        ("sa".to_string(), up(&world.owner.topology.borrow()), Default::default());
    let close = Request::CloseRegion { region: region.clone(), up: up.clone() };
    has_left(&mut world, 1, true);
    change(&mut world, Request::RemoveRegion { region, up, keepers, now_ms: 2 });
    settle(&mut world);
    world.run_for(MS * 5000);
    has_region(&mut world, true);
    has_left(&mut world, 2, false);
    has_region(&mut world, false);
    change(&mut world, close);
    settle(&mut world);
    assert!(world.owner.topology.borrow().is_gone(COMES));
    world.retire(COMES);
    let heir = world.owner.topology.borrow().group(SA).members[0];
    assert_ne!(heir, COMES);
    judge(world);
}

#[test]
fn a_region_comes_and_is_used() {
    each_seed(0..2, |seed| a_region_comes(seed, None, true, SOUND));
    each_seed(0..20, |seed| a_region_comes(seed, Some(faults()), true, SOUND));
}

#[test]
fn a_region_comes_and_goes_when_nothing_is_left_in_it() {
    each_seed(0..2, |seed| a_region_comes(seed, None, false, SOUND));
    each_seed(0..20, |seed| a_region_comes(seed, Some(faults()), false, SOUND));
}

#[test]
fn a_region_that_goes_with_files_is_caught() {
    let run = || a_region_comes(0, None, false, tree::Mutation::RemovesFullRegions);
    assert!(std::panic::catch_unwind(AssertUnwindSafe(run)).is_err());
}

#[test]
fn a_session_that_places_blocks_on_nodes_that_go_is_caught() {
    let run = |seed| one_comes_and_one_goes(seed, Some(faults()), Mutation::PlacesOnDraining);
    let fails = |seed: &u64| std::panic::catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
    assert!((0..40).any(|seed| fails(&seed)));
}
