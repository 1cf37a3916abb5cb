//! A region of whole nodes is lost and fenced amid updates of several partitions, under faults: the
//! others agree on all that was under way, and go on.

use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Configuration, Reply, Request};
use meridian_cluster::topology::{ClusterFile, DeliveryOrder};
use meridian_core::level::Level;
use meridian_core::{GroupId, MessageId, NodeId, Time};
use meridian_fs::operation::{NewNode, RenameMode};
use meridian_fs::types::{Ino, Kind, Place};
use meridian_fs::{Done, FsError, Timestamp, Update, Vector};
use meridian_host::api::{self, ReplyBody, RequestBody};
use meridian_host::mutation::Mutation;
use meridian_host::update::Payload;
use meridian_host::{Command, ConnectionId, Node, Output, sessions};
use meridian_multicast::Start;
use meridian_sim::of::files::regions::{all_are_level, faults, file, setup};
use meridian_sim::of::files::trial::describe_nodes;
use meridian_sim::{Faults, Owner, Random, Stimulus, World, each_is_caught, each_seed};
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const REGIONS: [GroupId; 3] = [GroupId(1), GroupId(2), GroupId(3)];
/// So many files each region has at first.
const FILES: u64 = 6;
/// So many updates are asked for.
const UPDATES: u64 = 60;
const MS: Duration = Duration::from_millis(1);
/// How long a change may take, with faults.
const CHANGE: Duration = Duration::from_secs(180);
const CLIENT: ConnectionId = ConnectionId(7);

/// What came of an update, or that it is not known.
type Told = BTreeMap<(MessageId, GroupId), Result<Done, FsError>>;

/// A client that asks for updates of several partitions until all of these answer, and the
/// configuration, which the nodes hear of sooner or later.
struct Struck {
    random: Random,
    configuration: Configuration,
    topology: Rc<RefCell<Arc<Topology>>>,
    /// What is to be asked, by the number of the request; each of one group.
    asked: BTreeMap<u64, (GroupId, Start)>,
    sequences: BTreeMap<Vec<GroupId>, u64>,
    told: Told,
    /// Nodes of the lost region: what they say counts for nothing.
    lost: BTreeSet<NodeId>,
    asks: bool,
}

impl Struck {
    fn change(&mut self, request: Request) -> Vec<Stimulus<Node>> {
        let reply = self.configuration.change(request);
        assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
        let file = self.configuration.file().expect("it was initialised");
        self.topology.replace(Arc::new(Topology::new(file).expect("S1")));
        self.tell()
    }

    fn tell(&self) -> Vec<Stimulus<Node>> {
        let topology = self.topology.borrow().clone();
        let tell = |to: NodeId| {
            let command = Command::Configured(topology.clone());
            Stimulus::Command { to, command, after: MS * (10 + 37 * u32::from(to.0)) }
        };
        topology.present().map(tell).collect()
    }

    /// A new message with that update, to be asked for at all of its partitions.
    fn add(&mut self, update: Update) {
        let dest: Vec<_> = update.partitions().into_iter().collect();
        let sequence = self.sequences.entry(dest.clone()).or_default();
        *sequence += 1;
        let id = MessageId { client: sessions::name(0, &dest), sequence: *sequence };
        let payload = Payload::new(Vector::default(), Timestamp::default(), update);
        let start = payload.into_start(id, 1, &dest);
        for group in dest {
            let number = self.asked.len() as u64;
            self.asked.insert(number, (group, start.clone()));
        }
    }

    /// A directory that is there for all of the trial, and may be of any partition.
    fn directory(&mut self) -> Place {
        match self.random.random_ratio(1, 4) {
            true => Place::ROOT,
            false => Place::top(*REGIONS.choose(&mut self.random).expect("three")),
        }
    }

    /// A file that a region had at first: its name there, and itself.
    fn file(&mut self) -> (Place, Bytes, Place) {
        let partition = *REGIONS.choose(&mut self.random).expect("three");
        let sequence = self.random.random_range(1..=FILES);
        let (parent, client) = (Place::top(partition), sessions::name(0, &[partition]));
        let ino = Ino::made(partition, MessageId { client, sequence });
        (parent, name(sequence), Place { ino, partition })
    }

    fn update(&mut self, number: u64) -> Update {
        let (parent, from, file) = self.file();
        let to = self.directory();
        match self.random.random_range(0..4) {
            0 => Update::Unlink { parent, name: from, child: file, keep_for: None },
            1 => Update::Link { target: file, parent: to, name: name(1000 + number) },
            _ => Update::Rename {
                from: parent,
                from_name: from,
                to,
                to_name: name(2000 + number),
                moved: file,
                replaced: None,
                mode: RenameMode::Replace,
                ancestors: Vec::new(),
                keep_for: None,
                whiteout: None,
            },
        }
    }

    /// Asks for what was not answered, each at a node of its group.
    fn ask(&mut self) -> Vec<Stimulus<Node>> {
        let topology = self.topology.borrow().clone();
        let mut stimuli = Vec::new();
        for (number, (group, start)) in &self.asked {
            if self.told.contains_key(&(start.id, *group)) {
                continue;
            }
            let members = topology.group(*group).members.iter().copied();
            let Some(to) = members.choose(&mut self.random) else { continue };
            let body = RequestBody::Update { group: *group, start: start.clone() };
            let request = api::Request { id: *number, body };
            let command = Command::Request { connection: CLIENT, request };
            let after = MS * self.random.random_range(1..300);
            stimuli.push(Stimulus::Command { to, command, after });
        }
        stimuli.push(Stimulus::Wake { token: 0, after: MS * 700 });
        stimuli
    }

    fn is_answered(&self) -> bool {
        self.asked.values().all(|(group, start)| self.told.contains_key(&(start.id, *group)))
    }

    /// All partitions say the same of each update: but an heir may have ended one without the votes
    /// of others.
    fn check_told(&self, lost: GroupId) -> Result<(), String> {
        let mut results: BTreeMap<MessageId, (GroupId, &Result<Done, FsError>)> = BTreeMap::new();
        for ((id, group), result) in &self.told {
            if *group == lost && *result == Err(FsError::Expired) {
                continue;
            }
            let (other, first) = results.entry(*id).or_insert((*group, result));
            if *first != result {
                return Err(format!("{id} is {first:?} in {other:?}, and {result:?} in {group:?}"));
            }
        }
        Ok(())
    }
}

fn name(number: u64) -> Bytes {
    number.to_string().into()
}

impl Owner<Node> for Struck {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        self.tell()
    }

    fn output(&mut self, at: NodeId, output: Output, _: Time) -> Vec<Stimulus<Node>> {
        match output {
            Output::InForce { group, number } => {
                let group = self.topology.borrow().group_name(group);
                self.change(Request::InForce { group, number })
            }
            Output::Reply { reply, .. } if !self.lost.contains(&at) => {
                let group = self.asked.get(&reply.id).map(|(group, _)| *group);
                if let (Some(group), ReplyBody::Updated { id, result, .. }) = (group, reply.body) {
                    self.told.insert((id, group), result);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn wake(&mut self, _: u64, _: Time) -> Vec<Stimulus<Node>> {
        if self.asks { self.ask() } else { Vec::new() }
    }

    fn check(&mut self, _: NodeId, node: &Node, _: bool) -> Result<(), String> {
        node.check_invariants();
        Ok(())
    }
}

type Cluster = World<Node, Struck>;

/// So many nodes in each region. Where there are fewer than three, each replicates `global`, and
/// all but the last of an even number keep the configuration: nobody can do so in the place of
/// some.
fn first(nodes: usize, order: DeliveryOrder) -> ClusterFile {
    let mut first = file(nodes, order);
    first.configuration.levels.now = Level::SEATS;
    if nodes < 3 {
        for node in &mut first.nodes {
            node.groups = vec!["global".into(), node.region.clone()];
        }
        let keepers = first.nodes.iter().take(nodes * 3 - (nodes + 1) % 2);
        first.configuration.replicas = keepers.map(|node| node.name.clone()).collect();
    }
    first
}

fn cluster(seed: u64, nodes: usize, faults: Option<Faults>, mutation: Mutation) -> Cluster {
    let order = match seed % 2 {
        0 => DeliveryOrder::Sequential,
        _ => DeliveryOrder::Linearizable,
    };
    let mut configuration = Configuration::default();
    let json = serde_json::to_string(&first(nodes, order)).expect("JSON");
    let reply = configuration.change(Request::Initialise(json));
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    let topology = Arc::new(Topology::new(configuration.file().expect("there")).expect("S1"));
    let now = Rc::new(RefCell::new(topology.clone()));
    let of = now.clone();
    let make = move |me| Node::new(of.borrow().clone(), me).with_host_mutation(mutation);
    let mut setup = setup(&topology, make);
    setup.faults = faults.unwrap_or(setup.faults);
    let owner = Struck {
        random: Random::seed_from_u64(seed ^ 0x5712cc),
        configuration,
        topology: now,
        asked: BTreeMap::new(),
        sequences: BTreeMap::new(),
        told: Told::new(),
        lost: BTreeSet::new(),
        asks: true,
    };
    World::new(seed, setup, owner)
}

fn inject(world: &mut Cluster, stimuli: Vec<Stimulus<Node>>) {
    stimuli.into_iter().for_each(|stimulus| world.inject(stimulus));
}

fn describe(world: &Cluster) -> String {
    let nodes = describe_nodes(world.processes(), world.now());
    format!("{:?}{nodes}", world.owner.topology.borrow().groups)
}

/// Until that is so; those who were down are told again.
fn await_that(world: &mut Cluster, what: &str, is_so: impl Fn(&Cluster) -> bool) {
    let end = world.now() + CHANGE;
    while !world.run_until(&is_so, MS * 1000) {
        if world.now() > end {
            world.fail(&format!("{what}: {}", describe(world)));
        }
        let stimuli = world.owner.tell();
        inject(world, stimuli);
    }
}

/// How a region is lost.
#[derive(Clone, Copy, Debug)]
enum Way {
    Stopped,
    CutOff,
    /// It is called lost, and is as alive as ever.
    Alive,
}

/// Files are made in each region.
fn make_files(world: &mut Cluster) {
    for region in REGIONS {
        for number in 1..=FILES {
            let (parent, node) = (Place::top(region), NewNode::new(Kind::File, 0o644));
            world.owner.add(Update::Create { parent, name: name(number), node });
        }
    }
    let stimuli = world.owner.ask();
    inject(world, stimuli);
    await_that(world, "the files are never made", |world| world.owner.is_answered());
}

/// Files are made in each region, and many updates begun; then one is lost, and fenced. In the end
/// those that stay have come to the same, and the region's directory is gone.
fn loses_a_region(seed: u64, faults: Option<Faults>, mutation: Mutation) {
    let random = &mut Random::seed_from_u64(seed ^ 0x10_57);
    let nodes = *[1, 2, 3, 3].choose(random).expect("four");
    let mut world = cluster(seed, nodes, faults, mutation);
    make_files(&mut world);
    let (strikes, region) = (random.random_range(0..UPDATES), *REGIONS.choose(random).expect("3"));
    let way = *[Way::Stopped, Way::CutOff, Way::Alive].choose(random).expect("three");
    let mut decides = None;
    for number in 0..UPDATES {
        let update = world.owner.update(number);
        world.owner.add(update);
        if number % 4 == 0 {
            let stimuli = world.owner.ask();
            inject(&mut world, stimuli);
        }
        world.run_for(MS * random.random_range(0..40));
        if number == strikes {
            strike(&mut world, region, way, random);
            decides = Some(number + random.random_range(0..20));
        }
        if decides == Some(number) {
            decides = None;
            fence(&mut world, region);
        }
    }
    if decides.is_some() {
        fence(&mut world, region);
    }
    let topology = |world: &Cluster| world.owner.topology.borrow().clone();
    await_that(&mut world, "no heirs go on", |world| topology(world).open_fence().is_none());
    await_that(&mut world, "the nodes that are lost never leave", |world| {
        topology(world).groups.iter().all(|group| group.next.is_none())
    });
    judge(world, region);
}

fn strike(world: &mut Cluster, region: GroupId, way: Way, random: &mut Random) {
    let topology = world.owner.topology.borrow().clone();
    let members = topology.group(region).members.clone();
    world.owner.lost.extend(&members);
    match way {
        Way::Stopped => {
            for node in members {
                world.retire(node);
                world.run_for(MS * random.random_range(0..30));
            }
        }
        Way::CutOff => {
            let others: Vec<_> = world.peers().filter(|node| !members.contains(node)).collect();
            world.cut(&members, &others, true);
        }
        Way::Alive => {}
    }
}

fn fence(world: &mut Cluster, region: GroupId) {
    let topology = world.owner.topology.borrow().clone();
    let stays = |node: &NodeId| !world.owner.lost.contains(node);
    let up = topology.present().filter(stays).map(|node| topology.node(node).name.clone());
    let (region, up) = (topology.group_name(region), up.collect());
    let request = Request::FenceRegion { region, up, keyless: true, now_ms: 1 };
    let stimuli = world.owner.change(request);
    inject(world, stimuli);
}

fn judge(mut world: Cluster, region: GroupId) {
    let lost: Vec<_> = world.owner.lost.iter().copied().collect();
    lost.into_iter().for_each(|node| world.retire(node));
    world.heal();
    // Also what had been answered is asked again: of those that stay.
    world.owner.told.clear();
    let stimuli = world.owner.tell();
    inject(&mut world, stimuli);
    await_that(&mut world, "not all is answered", |world| world.owner.is_answered());
    if let Err(what) = world.owner.check_told(region) {
        world.fail(&what);
    }
    world.owner.asks = false;
    await_that(&mut world, "replicas differ", |world| {
        all_are_level(world, &world.owner.topology.borrow())
    });
    let has_gone = |world: &Cluster| {
        let mut replicas = world.processes().filter_map(|(_, node)| node.replica(GroupId::GLOBAL));
        replicas.any(|replica| !replica.partition().has_region(region))
    };
    await_that(&mut world, "its directory never goes", has_gone);
    for (_, node) in world.processes() {
        for group in world.owner.topology.borrow().group_ids() {
            node.replica(group).into_iter().for_each(|of| of.partition().check_invariants());
        }
    }
}

/// A node that has reported to one of three heirs only is lost for good, too: that heir hands on
/// what it has.
fn loses_a_reporter(seed: u64, mutation: Mutation) {
    let mut world = cluster(seed, 3, None, mutation);
    make_files(&mut world);
    for number in 0..20 {
        let update = world.owner.update(number);
        world.owner.add(update);
    }
    let stimuli = world.owner.ask();
    inject(&mut world, stimuli);
    let random = &mut Random::seed_from_u64(seed ^ 0x9e_b0);
    world.run_for(MS * random.random_range(0..100));
    let [_, _, ap] = REGIONS;
    strike(&mut world, ap, Way::Stopped, random);
    let (reporter, heirs) = (NodeId(2), [3, 4, 5].map(NodeId)); // us-3 is in one group.
    let cut = world.cut(&[reporter], &heirs[1..], true);
    fence(&mut world, ap);
    let lost = world.owner.topology.borrow().lost()[&ap].clone();
    assert_eq!(lost.heirs, heirs);
    await_that(&mut world, "no heir has all reports", |world| {
        let node = world.process(heirs[0]);
        let all = node.map(|node| node.status(world.now())).unwrap_or_default();
        all.iter().any(|of| of.group == ap && of.epoch.config == lost.number)
    });
    world.retire(reporter);
    world.mend_cut(cut);
    await_that(&mut world, "no heirs go on", |world| {
        world.owner.topology.borrow().open_fence().is_none()
    });
}

#[test]
fn a_reporter_that_one_heir_has_heard_holds_nobody_up() {
    each_seed(0..10, |seed| loses_a_reporter(seed, Mutation::Correct));
}

#[test]
fn an_heir_that_hands_nothing_on_is_caught() {
    let fails = |mutation: Mutation| {
        let run = || loses_a_reporter(0, mutation);
        std::panic::catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    assert!(fails(Mutation::HandsOnNothing) && !fails(Mutation::Correct));
}

#[test]
fn all_go_on_without_a_lost_region() {
    each_seed(0..6, |seed| loses_a_region(seed, None, Mutation::Correct));
}

#[test]
fn all_go_on_without_a_lost_region_under_faults() {
    each_seed(0..60, |seed| loses_a_region(seed, Some(faults()), Mutation::Correct));
}

#[test]
fn each_planted_bug_of_the_fence_is_caught() {
    let bugs = [Mutation::HearsLostVotes, Mutation::ForgetsHeard, Mutation::BeginsEarly];
    let fails = |seed: u64, mutation: Mutation| {
        let run = || loses_a_region(seed, Some(faults()), mutation);
        std::panic::catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    each_is_caught(&bugs, |mutation| {
        let found = (0..300).find(|seed| fails(*seed, mutation))?;
        // For no other reason.
        (!fails(found, Mutation::Correct)).then_some((found, "a trial fails"))
    });
}
