//! Nodes come and go while clients use files, under faults: as the configuration says that changes
//! on the way.

use meridian_cluster::Topology;
use meridian_cluster::configuration::{Configuration, Reply, Request};
use meridian_cluster::topology::DeliveryOrder;
use meridian_core::{NodeId, Time};
use meridian_fs::Query;
use meridian_host::{Command, Node, Output, drain};
use meridian_session::Mutation;
use meridian_sim::of::files::regions::{faults, file, setup};
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
const CHANGE: Duration = Duration::from_secs(60);
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

fn cluster(seed: u64, faults: Option<Faults>, mutation: Mutation) -> Cluster {
    let mut configuration = Configuration::default();
    let json = serde_json::to_string(&file(3, DeliveryOrder::Sequential)).expect("JSON");
    configuration.change(Request::Initialise(json));
    let topology = Arc::new(Topology::new(configuration.file().expect("there")).expect("S1"));
    let now = Rc::new(RefCell::new(topology.clone()));
    let of = now.clone();
    let mut setup = setup(&topology, move |me| Node::new(of.borrow().clone(), me));
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
    let topology = world.owner.topology.borrow().clone();
    world.owner.files.is_done()
        && topology.group_ids().all(|group| {
            let replica = |node: &NodeId| {
                let replica = world.process(*node).and_then(|process| process.replica(group));
                replica.map(|replica| replica.partition())
            };
            let all: Vec<_> = topology.group(group).members.iter().map(replica).collect();
            all.iter().all(|one| one.is_some_and(|one| one.applied() == one.delivered()))
                && all.windows(2).all(|pair| pair[0] == pair[1])
        })
}

fn one_comes_and_one_goes(seed: u64, faults: Option<Faults>, mutation: Mutation) {
    let mut world = cluster(seed, faults, mutation);
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

#[test]
fn a_session_that_places_blocks_on_nodes_that_go_is_caught() {
    let run = |seed| one_comes_and_one_goes(seed, Some(faults()), Mutation::PlacesOnDraining);
    let fails = |seed: &u64| std::panic::catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
    assert!((0..40).any(|seed| fails(&seed)));
}
