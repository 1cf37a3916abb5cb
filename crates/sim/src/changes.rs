//! Trials of what changes while clients and faults go on: who replicates a group, and (with processes that keep
//! nothing on disk) who remembers anything. As in [`crate::trial`], peace and a judgement follow.

use crate::checkers::{Violation, check_safety};
use crate::faults::Faults;
use crate::history::Entry;
use crate::owner::Ask;
use crate::replica::{Replica, groups_of};
use crate::trial::{
    Cluster, all_faults, describe, drawn_limits, drawn_speakers, forgotten, is_quiet, judge, said,
    setup, with_speakers,
};
use crate::workload::{Manner, Workload};
use crate::world::{Random, World};
use meridian_core::{ClientId, GroupId, MessageId, NodeId, ProcessId};
use meridian_multicast::{Command, Config, Mutation, Options, Order, PrimCast, Role, Start};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Who asks for changes.
const OPERATOR: ClientId = ClientId(900);
/// How many changes there are in a trial of members.
const CHANGES: u64 = 5;
/// How long crashes go on in a trial of memory.
const CRASHES: Duration = Duration::from_secs(8);
/// How long it may take then until all is delivered.
const PEACE: Duration = Duration::from_secs(60);
/// How long a change may take, with all faults: of a group of two both must be up, and hear each other.
const CHANGE: Duration = Duration::from_secs(180);
/// After how long the operator asks again.
const AGAIN: Duration = Duration::from_millis(300);
/// A node of a group below this number is a member from the beginning or comes later.
const NODES: u16 = 18;

/// What happened in a trial.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// How many members came.
    pub joined: usize,
    /// How many left.
    pub left: usize,
    /// How many processes crashed.
    pub crashes: usize,
    /// How many snapshots were installed.
    pub installs: usize,
    /// How often one message was delivered somewhere.
    pub deliveries: u64,
}

/// Members of two groups of three are replaced, added and removed one change after the other, now one at a time and
/// now all at once; and a third group is added.
///
/// # Errors
/// A property does not hold, a change or a message takes for ever, or an assertion fails.
pub fn members(seed: u64, mutation: Mutation) -> Result<Counts, Violation> {
    let known = Rc::new(RefCell::new(BTreeMap::new()));
    let mut world = changing_world(seed, mutation, known.clone());
    let mut operator = Operator { random: Random::seed_from_u64(seed ^ 0xc0de), known, asked: 0 };
    judged(&mut world, |world| {
        let adds_at = operator.random.random_range(0..CHANGES);
        for change in 0..CHANGES {
            let pause = operator.random.random_range(0..800);
            world.run_for(Duration::from_millis(pause));
            if change == adds_at {
                operator.add_group(world)?;
            } else {
                operator.change_group(world)?;
            }
            check_safety(&world.owner.history)?;
        }
        Ok(operator.random.random_range(0..2000))
    })
}

/// Processes that keep nothing on disk crash, in each group a minority at a time of those that have all their memory.
///
/// # Errors
/// As [`members`].
pub fn memory(seed: u64, sizes: &[u16], mutation: Mutation) -> Result<Counts, Violation> {
    let mut random = Random::seed_from_u64(seed ^ 0x3e3);
    let mut world = forgetful_world(seed, sizes, mutation, &mut random);
    judged(&mut world, |world| {
        let end = world.now() + CRASHES;
        while world.now() < end {
            crash_one(world, &mut random);
            let pause = random.random_range(20..700);
            world.run_for(Duration::from_millis(pause));
        }
        check_safety(&world.owner.history)?;
        Ok(random.random_range(0..1000))
    })
}

/// `faults`, so many milliseconds, then peace; and what was wrong.
fn judged(
    world: &mut Cluster,
    faults: impl FnOnce(&mut Cluster) -> Result<u64, Violation>,
) -> Result<Counts, Violation> {
    world.say_nothing();
    let trial = catch_unwind(AssertUnwindSafe(|| {
        let more = faults(world)?;
        world.run_for(Duration::from_millis(more));
        world.heal();
        if !world.run_until(is_quiet, PEACE) {
            return Err(describe(world));
        }
        judge(world)?;
        forgotten(world)
    }));
    trial.unwrap_or_else(|panic| Err(said(&*panic)))?;
    let entries = &world.owner.history.entries;
    let count = |wanted: fn(&Entry) -> bool| entries.iter().filter(|entry| wanted(entry)).count();
    let crashes = count(|entry| matches!(entry, Entry::Crash(_)));
    let installs = count(|entry| matches!(entry, Entry::Installed { .. }));
    let first: BTreeSet<_> = processes(&groups_of(&[3, 3])).collect();
    let last: BTreeSet<_> = processes(world.owner.groups()).collect();
    let (joined, left) = (last.difference(&first).count(), first.difference(&last).count());
    Ok(Counts { joined, left, crashes, installs, deliveries: world.owner.deliveries })
}

fn processes(groups: &BTreeMap<GroupId, Vec<NodeId>>) -> impl Iterator<Item = ProcessId> + use<> {
    let of = |(group, nodes): (GroupId, Vec<NodeId>)| {
        nodes.into_iter().map(move |node| ProcessId { group, node })
    };
    groups.clone().into_iter().flat_map(of)
}

/// What those that come later are started with.
type Known = Rc<RefCell<BTreeMap<ProcessId, Vec<Config>>>>;

fn changing_world(seed: u64, mutation: Mutation, known: Known) -> Cluster {
    let random = &mut Random::seed_from_u64(seed ^ 0xd1ce);
    let order = if random.random() { Order::Sequential } else { Order::Linearizable };
    let options = Options { order, ..Options::default() };
    let (manner, limits) = (Manner::drawn(random), drawn_limits(random));
    let sizes = [3, 3];
    let speakers = drawn_speakers(random, sizes.len());
    let groups = Arc::new(groups_of(&sizes));
    let mut setup = setup(&sizes, options, mutation);
    let later: Vec<_> = processes(&groups_of(&[NODES, NODES, 3]))
        .filter(|process| !setup.peers.contains(process))
        .collect();
    setup.peers.extend(&later);
    setup.later.clone_from(&later);
    setup.faults = all_faults();
    setup.make = Box::new(move |me| {
        let process = match known.borrow().get(&me) {
            Some(configs) => PrimCast::joining(me, configs.clone()),
            None => PrimCast::new(me, groups.clone()),
        };
        let process = process.with_options(options).with_limits(limits);
        Replica::new(process.with_mutation(mutation))
    });
    let setup = with_speakers(setup, speakers);
    let mut workload = Workload::new(seed, groups_of(&sizes), manner);
    workload.expect(&later);
    workload.order = order;
    begun(World::new(seed, setup, workload))
}

fn forgetful_world(seed: u64, sizes: &[u16], mutation: Mutation, random: &mut Random) -> Cluster {
    let order = if random.random() { Order::Sequential } else { Order::Linearizable };
    let options = Options { order, ..Options::default() };
    let (manner, limits) = (Manner::drawn(random), drawn_limits(random));
    let speakers = drawn_speakers(random, sizes.len());
    let groups = Arc::new(groups_of(sizes));
    let mut setup = setup(sizes, options, mutation);
    setup.disks = false;
    setup.faults = Faults {
        crash: None,
        crash_all: None,
        depose: None,
        checkpoint: None,
        outage: Duration::from_millis(200),
        ..all_faults()
    };
    let mut lives: BTreeMap<ProcessId, u64> = BTreeMap::new();
    setup.make = Box::new(move |me| {
        let life = lives.entry(me).or_default();
        *life += 1;
        let process = PrimCast::new(me, groups.clone()).with_options(options);
        let process = process.with_limits(limits).with_mutation(mutation);
        Replica::new(process.in_memory(*life))
    });
    let setup = with_speakers(setup, speakers);
    let mut workload = Workload::new(seed, groups_of(sizes), manner);
    workload.order = order;
    begun(World::new(seed, setup, workload))
}

fn begun(mut world: Cluster) -> Cluster {
    world.owner.begin().into_iter().for_each(|ask| world.ask(ask));
    world
}

/// One more crashes, soon and in the midst of a step, if its group has so many that remember.
fn crash_one(world: &mut Cluster, random: &mut Random) {
    let groups = world.owner.groups().clone();
    let (group, nodes) = groups.iter().nth(random.random_range(0..groups.len())).expect("one");
    let remembers = |node: &&NodeId| {
        let process = world.process(ProcessId { group: *group, node: **node });
        process.is_some_and(|process| !process.multicast.is_recovering())
    };
    let left = nodes.iter().filter(remembers).count();
    // Also if the chosen one is among those who have forgotten all: its next life begins later.
    if left > nodes.len() / 2 + 1 {
        let node = *nodes.choose(random).expect("groups have members");
        let victim = ProcessId { group: *group, node };
        world.crash_after(victim, random.random_range(0..30));
        world.run_for(Duration::from_millis(random.random_range(0..60)));
        world.crash(victim);
    }
}

struct Operator {
    random: Random,
    known: Known,
    asked: u64,
}

impl Operator {
    fn next_id(&mut self) -> MessageId {
        self.asked += 1;
        MessageId { client: OPERATOR, sequence: self.asked }
    }

    /// Replaces, adds or removes members of one group.
    fn change_group(&mut self, world: &mut Cluster) -> Result<(), Violation> {
        let groups: Vec<_> = world.owner.groups().keys().copied().filter(|g| g.0 < 2).collect();
        let group = *groups.choose(&mut self.random).expect("two");
        let number = world.owner.config_of(group) + 1;
        let old = world.owner.groups()[&group].clone();
        let mut members = old.clone();
        let (goes, comes) = match self.random.random_range(0..6) {
            0 => (old.len(), 3),
            1 => (0, 1),
            2 => (usize::from(old.len() > 1), 0),
            3 => (old.len().min(2), 2),
            _ => (1, 1),
        };
        for _ in 0..goes {
            members.remove(self.random.random_range(0..members.len()));
        }
        let used = 3 + u16::try_from(number - 1).unwrap_or(u16::MAX) * 3;
        let first = group.0 * 100 + used;
        let new: Vec<_> = (first..first + comes).map(NodeId).collect();
        for node in &new {
            members.insert(self.random.random_range(0..=members.len()), *node);
        }
        let start = Start::configure(self.next_id(), group, number, members.clone());
        self.deliver(world, &start, group, number)?;
        self.start(world, group, number, &new)?;
        let in_force = |world: &Cluster| {
            world.processes().any(|(process, replica)| {
                let (epoch, role) = (replica.multicast.epoch(), replica.multicast.role());
                let here = process.group == group && members.contains(&process.node);
                here && role == Role::Primary && epoch.config == number
            })
        };
        if !world.run_until(in_force, CHANGE) {
            return Err(format!("{group:?} never gets to {members:?}; {}", describe(world)));
        }
        for node in old.iter().filter(|node| !members.contains(node)) {
            world.retire(ProcessId { group, node: *node });
        }
        Ok(())
    }

    fn add_group(&mut self, world: &mut Cluster) -> Result<(), Violation> {
        let all: Vec<_> = world.owner.groups().keys().copied().collect();
        let group = GroupId(2);
        let members: Vec<_> = (200..203).map(NodeId).collect();
        let start = Start::add_group(self.next_id(), &all, group, members.clone());
        let now = world.now();
        world.owner.begins(&start, now);
        let added = |world: &Cluster| world.owner.groups().contains_key(&group);
        self.ask_until(world, &start, &all, added)?;
        self.start(world, group, 0, &members)
    }

    /// Until it is delivered somewhere.
    fn deliver(
        &mut self,
        world: &mut Cluster,
        start: &Start,
        group: GroupId,
        number: u64,
    ) -> Result<(), Violation> {
        let now = world.now();
        world.owner.begins(start, now);
        // Who delivered it may have crashed before it could say so.
        let delivered = move |world: &Cluster| {
            let number_at = |replica: &Replica| replica.multicast.members().number(group);
            world.owner.config_of(group) == number
                || world.processes().any(|(_, replica)| number_at(replica) == number)
        };
        self.ask_until(world, start, &[group], delivered)?;
        if let Some(config) = &start.config {
            world.owner.configured(config);
        }
        Ok(())
    }

    fn ask_until(
        &mut self,
        world: &mut Cluster,
        start: &Start,
        groups: &[GroupId],
        wanted: impl Fn(&Cluster) -> bool,
    ) -> Result<(), Violation> {
        let end = world.now() + CHANGE;
        while world.now() < end {
            for group in groups {
                let nodes = &world.owner.groups()[group];
                let node = *nodes.choose(&mut self.random).expect("groups have members");
                let (to, after) = (ProcessId { group: *group, node }, Duration::from_millis(1));
                world.ask(Ask::Command { to, command: Command::Start(start.clone()), after });
            }
            if world.run_until(&wanted, AGAIN) {
                return Ok(());
            }
        }
        Err(format!("{} is never delivered; {}", start.id, describe(world)))
    }

    /// Starts new members with what one of the old knows.
    fn start(
        &mut self,
        world: &mut Cluster,
        group: GroupId,
        number: u64,
        new: &[NodeId],
    ) -> Result<(), Violation> {
        let knows = |replica: &Replica| {
            let members = replica.multicast.members();
            members.has(group) && members.number(group) == number
        };
        let known = |world: &Cluster| world.processes().any(|(_, replica)| knows(replica));
        if !world.run_until(known, CHANGE) {
            return Err(format!("nobody knows of {group:?} {number}; {}", describe(world)));
        }
        let (_, from) = world.processes().find(|(_, replica)| knows(replica)).expect("waited");
        let configs: Vec<_> = from.multicast.members().configs().collect();
        for node in new {
            let process = ProcessId { group, node: *node };
            self.known.borrow_mut().insert(process, configs.clone());
            let wait = self.random.random_range(0..300);
            world.run_for(Duration::from_millis(wait));
            world.enter(process);
        }
        Ok(())
    }
}
