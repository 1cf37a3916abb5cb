//! Trials of what changes while clients and faults go on: who replicates a group, and (with
//! processes that keep nothing on disk) who remembers anything. As in
//! [`crate::of::multicast::trial`], healing and a judgement follow.

use super::checkers::check_safety;
use super::replica::{Replica, groups_of};
use super::trial::{
    self, Cluster, Disks, Drawn, Links, all_faults, describe, drawn_dissemination, drawn_limits,
    setup, with_dissemination, with_limits, without_disks,
};
use super::words::Words;
use super::workload::{Profile, Workload};
use crate::faults::Faults;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{Random, Setup, Stimulus};
use meridian_core::{ClientId, GroupId, MessageId, NodeId, ProcessId};
use meridian_multicast::{Command, Config, Mutation, Options, Order, PrimCast, Role, Start};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Who asks for changes.
const OPERATOR: ClientId = ClientId(900);
/// How many changes there are in a trial of members.
const CHANGES: u64 = 5;
/// How long a change may take, with all faults: of a group of two both must be up, and hear each
/// other.
const CHANGE: Duration = Duration::from_secs(180);
/// After how long the operator asks again.
const AGAIN: Duration = Duration::from_millis(300);
/// A node of a group below this number is a member from the beginning or comes later.
const NODES: u16 = 18;

/// Members of two groups of three are replaced, added and removed one change after the other, now
/// one at a time and now all at once; and a third group is added.
#[derive(Clone, Copy, Debug)]
pub struct Members {
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// Processes that keep nothing on disk crash, in each group a minority at a time of those that have
/// all their memory.
#[derive(Clone, Debug)]
pub struct Memory {
    /// How many processes each group has.
    pub sizes: Vec<u16>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// The groups of a trial of members at first.
const SIZES: [u16; 2] = [3, 3];

fn drawn(seed: u64, sizes: &[u16], disks: Disks, faults: Faults) -> Drawn {
    let random = &mut Random::seed_from_u64(seed ^ 0xd1ce);
    let order = if random.random() { Order::Sequential } else { Order::Linearizable };
    let (profile, limits) = (Profile::drawn(random), drawn_limits(random));
    let dissemination = drawn_dissemination(random, sizes.len());
    let (options, sizes) = (Options { order, ..Options::default() }, sizes.to_vec());
    Drawn { sizes, options, links: Links::Lan, disks, profile, faults, limits, dissemination }
}

fn workload(seed: u64, drawn: &Drawn) -> Workload {
    let mut workload = Workload::new(seed, groups_of(&drawn.sizes), drawn.profile.clone());
    workload.order = drawn.options.order;
    workload
}

impl Subject for Members {
    type Process = Replica;
    type Owner = Workload;
    type Drawn = Drawn;
    type Operator = Operator;

    const FAULTS: Duration = Duration::ZERO; // As long as the changes take.
    const HEALING: Duration = <trial::Trial as Subject>::HEALING;

    fn draw(&self, seed: u64) -> Drawn {
        drawn(seed, &SIZES, Disks::Quick, all_faults())
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let known: Known = Rc::default();
        let (setup, later) = changing_setup(drawn.clone(), self.mutation, known.clone());
        let mut owner = workload(seed, drawn);
        owner.expect(&later);
        let random = Random::seed_from_u64(seed ^ 0xc0de);
        Made { setup, owner, operator: Operator { random, known, asked: 0 } }
    }

    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let Stage { world, operator } = stage;
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
        let more = operator.random.random_range(0..2000);
        world.run_for(Duration::from_millis(more));
        Ok(())
    }

    fn is_quiet(world: &Cluster) -> bool {
        trial::is_quiet(world)
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        trial::judge(&stage.world)?;
        trial::forgotten(&mut stage.world)
    }

    fn describe(world: &Cluster) -> String {
        describe(world)
    }

    fn teller() -> Box<dyn Teller<Replica>> {
        Box::new(Words::default())
    }

    /// Also how many members came and left.
    fn counts(world: &Cluster) -> Counts {
        let first: BTreeSet<_> = processes(&groups_of(&SIZES)).collect();
        let last: BTreeSet<_> = processes(world.owner.groups()).collect();
        let mut counts = trial::counts(world);
        counts.add("joined", last.difference(&first).count() as u64);
        counts.add("left", first.difference(&last).count() as u64);
        counts
    }
}

impl Subject for Memory {
    type Process = Replica;
    type Owner = Workload;
    type Drawn = Drawn;
    type Operator = Random;

    const FAULTS: Duration = Duration::from_secs(8);
    const HEALING: Duration = <trial::Trial as Subject>::HEALING;

    fn draw(&self, seed: u64) -> Drawn {
        let faults = Faults {
            crash: None,
            crash_all: None,
            depose: None,
            checkpoint: None,
            outage: Duration::from_millis(200),
            ..all_faults()
        };
        drawn(seed, &self.sizes, Disks::Absent, faults)
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let setup = setup(&drawn.sizes, drawn.options, self.mutation);
        let setup =
            with_dissemination(with_limits(setup, drawn.limits), drawn.dissemination.clone());
        let mut setup = without_disks(setup);
        setup.faults = drawn.faults.clone();
        let owner = workload(seed, drawn);
        Made { setup, owner, operator: Random::seed_from_u64(seed ^ 0x3e3) }
    }

    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let Stage { world, operator: random } = stage;
        let end = world.now() + Self::FAULTS;
        while world.now() < end {
            crash_one(world, random);
            let pause = random.random_range(20..700);
            world.run_for(Duration::from_millis(pause));
        }
        check_safety(&world.owner.history)?;
        world.run_for(Duration::from_millis(random.random_range(0..1000)));
        Ok(())
    }

    fn is_quiet(world: &Cluster) -> bool {
        trial::is_quiet(world)
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        trial::judge(&stage.world)?;
        trial::forgotten(&mut stage.world)
    }

    fn describe(world: &Cluster) -> String {
        describe(world)
    }

    fn teller() -> Box<dyn Teller<Replica>> {
        Box::new(Words::default())
    }

    fn counts(world: &Cluster) -> Counts {
        trial::counts(world)
    }
}

fn processes(groups: &BTreeMap<GroupId, Vec<NodeId>>) -> impl Iterator<Item = ProcessId> + use<> {
    let of = |(group, nodes): (GroupId, Vec<NodeId>)| {
        nodes.into_iter().map(move |node| ProcessId { group, node })
    };
    groups.clone().into_iter().flat_map(of)
}

/// What those that come later are started with.
type Known = Rc<RefCell<BTreeMap<ProcessId, Vec<Config>>>>;

/// And those that come later.
fn changing_setup(
    drawn: Drawn,
    mutation: Mutation,
    known: Known,
) -> (Setup<Replica>, Vec<ProcessId>) {
    let groups = Arc::new(groups_of(&drawn.sizes));
    let mut setup = setup(&drawn.sizes, drawn.options, mutation);
    let later: Vec<_> = processes(&groups_of(&[NODES, NODES, 3]))
        .filter(|process| !setup.peers.contains(process))
        .collect();
    setup.peers.extend(&later);
    setup.later.clone_from(&later);
    setup.faults = drawn.faults;
    setup.make = Box::new(move |me| {
        let process = match known.borrow().get(&me) {
            Some(configs) => PrimCast::joining(me, configs.clone()),
            None => PrimCast::new(me, groups.clone()),
        };
        let process = process.with_options(drawn.options).with_limits(drawn.limits);
        Replica::new(process.with_mutation(mutation))
    });
    (with_dissemination(setup, drawn.dissemination), later)
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

/// Who changes the members.
pub struct Operator {
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

    /// By a message to all groups, or by their owners, who tell each process at some time.
    fn add_group(&mut self, world: &mut Cluster) -> Result<(), Violation> {
        let all: Vec<_> = world.owner.groups().keys().copied().collect();
        let group = GroupId(2);
        let members: Vec<_> = (200..203).map(NodeId).collect();
        if self.random.random() {
            let config = Config { group, number: 0, members: members.clone() };
            world.owner.configured(&config);
            return self.tell_of_group(world, config);
        }
        let start = Start::add_group(self.next_id(), &all, group, members.clone());
        let now = world.now();
        world.owner.begins(&start, now);
        let added = |world: &Cluster| world.owner.groups().contains_key(&group);
        self.ask_until(world, &start, &all, added)?;
        self.start(world, group, 0, &members)
    }

    /// Each process is told at some time, and starts with it from now on, as its owner knows it.
    fn tell_of_group(&mut self, world: &mut Cluster, config: Config) -> Result<(), Violation> {
        let first = groups_of(&SIZES).into_iter();
        let first = first.map(|(group, members)| Config { group, number: 0, members });
        let first: Vec<_> = first.chain([config.clone()]).collect();
        for to in processes(&groups_of(&[NODES, NODES])) {
            let mut known = self.known.borrow_mut();
            match known.get_mut(&to) {
                Some(configs) => configs.push(config.clone()),
                None if first
                    .iter()
                    .any(|of| to.group == of.group && of.members.contains(&to.node)) =>
                {
                    known.insert(to, first.clone());
                }
                None => continue, // It comes later, with what another one knows then.
            }
            let after = Duration::from_millis(self.random.random_range(1..800));
            world.inject(Stimulus::Command { to, command: Command::Learn(config.clone()), after });
        }
        self.start(world, config.group, 0, &config.members)
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
                world.inject(Stimulus::Command {
                    to,
                    command: Command::Start(start.clone()),
                    after,
                });
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
