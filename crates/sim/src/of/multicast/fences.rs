//! Trials in which all of a group, or most of it, is lost while clients and faults go on: its owner
//! has it go on as a group of heirs. Those that were lost may come back. As in
//! [`crate::of::multicast::trial`], healing and a judgement follow; see [`super::loss`] for what is
//! judged then.

use super::checkers::check_safety;
use super::loss::Loss;
use super::profile::Profile;
use super::replica::{Replica, groups_of};
use super::trial::{
    self, Cluster, Disks, Drawn, Links, all_faults, describe, drawn_dissemination, drawn_limits,
    setup, with_dissemination, with_limits,
};
use super::words::Words;
use super::workload::Workload;
use crate::faults::CutId;
use crate::trace::Teller;
use crate::trial::{Counts, Made, Stage, Subject, Violation};
use crate::world::{Random, Setup, Stimulus};
use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::{
    ClockSource, Command, Config, Deliveries, Fence, Mutation, Options, Order, PrimCast,
};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long it may take until heirs go on, with all faults: all reporters must be up, and hear
/// them.
const SUCCESSION: Duration = Duration::from_secs(120);
/// How often the owner tells those that do not know.
const AGAIN: Duration = Duration::from_millis(300);
/// The first node of a group that may be an heir, counted from the group's first.
const HEIRS: u16 = 50;
/// How often groups are lost at most, one or two at the same time.
const LOSSES: u16 = 2;

/// Groups are lost, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Fences {
    /// The order of deliveries; else it is drawn.
    pub order: Option<Order>,
    /// A planted bug.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// What heirs are started with.
type Known = Rc<RefCell<BTreeMap<ProcessId, (Fence, Vec<Config>)>>>;

/// Who decides on heirs.
pub struct Operator {
    random: Random,
    known: Known,
    losses: u16,
}

/// How a group is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// All of it stop.
    Stopped,
    /// A majority of it stop; the others go on as far as they can.
    MostStopped,
    /// It is cut off, and does not know.
    CutOff,
}

impl Subject for Fences {
    type Process = Replica;
    type Owner = Workload;
    type Drawn = Drawn;
    type Operator = Operator;

    const FAULTS: Duration = Duration::ZERO; // As long as the losses take.
    const HEALING: Duration = <trial::Trial as Subject>::HEALING;

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0xd1ce);
        let sizes: &[u16] = match random.random_range(0..4) {
            0 => &[3, 3],
            1 => &[1, 3, 1],
            _ => &[3, 3, 3],
        };
        let order = if random.random() { Order::Sequential } else { Order::Linearizable };
        let order = self.order.unwrap_or(order);
        let hybrid = random.random_bool(0.3);
        let clock = if hybrid { ClockSource::Hybrid } else { ClockSource::Logical };
        let disks = if random.random_bool(0.3) { Disks::Slow } else { Disks::Quick };
        let (profile, limits) = (Profile::drawn(random), drawn_limits(random));
        let dissemination = drawn_dissemination(random, sizes.len());
        let deliveries = Deliveries::Durable;
        let options = Options { order, clock, deliveries, ..Options::default() };
        let (sizes, links, faults) = (sizes.to_vec(), Links::Lan, all_faults());
        Drawn { sizes, options, links, disks, profile, faults, limits, dissemination }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let known: Known = Rc::default();
        let mut owner = Workload::new(seed, groups_of(&drawn.sizes), drawn.profile.clone());
        owner.order = drawn.options.order;
        let setup = inherited_setup(drawn.clone(), self.mutation, known.clone());
        owner.expect(&setup.later);
        let random = Random::seed_from_u64(seed ^ 0xfe2ce);
        Made { setup, owner, operator: Operator { random, known, losses: 0 } }
    }

    fn disturb(stage: &mut Stage<Self>) -> Result<(), Violation> {
        let Stage { world, operator } = stage;
        let losses = operator.random.random_range(1..=LOSSES);
        for _ in 0..losses {
            let pause = operator.random.random_range(0..2500);
            world.run_for(Duration::from_millis(pause));
            operator.lose_groups(world)?;
            check_safety(&world.owner.judged())?;
        }
        let more = operator.random.random_range(0..2000);
        world.run_for(Duration::from_millis(more));
        let old: Vec<_> = world.owner.losses.iter().flat_map(|loss| loss.old.clone()).collect();
        old.into_iter().for_each(|process| world.retire(process));
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

    /// Also how many groups were lost, and of how many messages that others had delivered the heirs
    /// needed to hear.
    fn counts(world: &Cluster) -> Counts {
        let mut counts = trial::counts(world);
        counts.add("losses", world.owner.losses.len() as u64);
        let held = world.owner.losses.iter().map(|loss| loss.held.len() as u64).sum();
        counts.add("held", held);
        counts
    }
}

fn processes(groups: &BTreeMap<GroupId, Vec<NodeId>>) -> impl Iterator<Item = ProcessId> + '_ {
    groups.iter().flat_map(|(group, nodes)| nodes.iter().map(|node| group.of(*node)))
}

/// Also those that may be heirs.
fn inherited_setup(drawn: Drawn, mutation: Mutation, known: Known) -> Setup<Replica> {
    let options = drawn.options;
    let mut setup = setup(&drawn.sizes, options, mutation);
    let make = &mut setup.make;
    let mut first = std::mem::replace(make, Box::new(|_| unreachable!("replaced below")));
    *make = Box::new(move |me| match known.borrow().get(&me) {
        Some((fence, configs)) => {
            let heir = PrimCast::inheriting(me, fence.clone(), configs.clone());
            Replica::new(heir.with_options(options).with_mutation(mutation))
        }
        None => first(me),
    });
    let groups = groups_of(&drawn.sizes).into_keys();
    let heirs = groups.flat_map(|group| {
        let first = group.0 * 100 + HEIRS;
        (first..first + 3 * 2 * LOSSES).map(move |node| group.of(NodeId(node)))
    });
    setup.later = heirs.collect();
    setup.peers.extend(&setup.later);
    setup.faults = drawn.faults;
    if drawn.disks == Disks::Slow {
        setup.flush = trial::SLOW;
    }
    with_dissemination(with_limits(setup, drawn.limits), drawn.dissemination)
}

impl Operator {
    /// One or two groups are lost, and some time later their owner decides on heirs.
    fn lose_groups(&mut self, world: &mut Cluster) -> Result<(), Violation> {
        let all: Vec<_> = world.owner.groups().keys().copied().collect();
        let count = if all.len() > 2 && self.random.random_bool(0.3) { 2 } else { 1 };
        let groups: Vec<_> = all.sample(&mut self.random, count).copied().collect();
        let of_groups = |world: &Cluster| {
            let members = processes(world.owner.groups());
            members.filter(|process| groups.contains(&process.group)).collect::<Vec<_>>()
        };
        let old = of_groups(world);
        let cuts: Vec<_> = groups.iter().map(|group| self.strike(world, *group)).collect();
        let unnoticed = self.random.random_range(0..3000);
        world.run_for(Duration::from_millis(unnoticed));
        let fences: Vec<_> =
            groups.iter().map(|group| self.decide(world, *group, &groups)).collect();
        for fence in &fences {
            let (of, others) = old.iter().partition(|old| old.group == fence.config.group);
            world.owner.lose(Loss::new(fence.clone(), of, others));
        }
        let comes_back = self.random.random_bool(0.6);
        let return_at = world.now() + Duration::from_millis(self.random.random_range(0..4000));
        let mut back = comes_back.then_some(return_at);
        let come_back = |world: &mut Cluster| {
            cuts.iter().flatten().for_each(|cut| world.mend_cut(*cut));
            old.iter().for_each(|process| world.enter(*process));
        };
        let end = world.now() + SUCCESSION;
        let all_go_on = |world: &Cluster| world.owner.losses.iter().all(Loss::has_ended);
        while !world.run_until(all_go_on, AGAIN) {
            if back.take_if(|at| *at <= world.now()).is_some() {
                come_back(world);
            }
            if world.now() > end {
                return Err(format!("liveness: no heirs of {groups:?}; {}", describe(world)));
            }
            fences.iter().for_each(|fence| self.tell(world, fence, 0.6));
        }
        let later = self.random.random_range(0..1500);
        world.run_for(Duration::from_millis(later));
        fences.iter().for_each(|fence| self.tell(world, fence, 1.0));
        if back.is_some() {
            come_back(world);
        }
        Ok(())
    }

    /// A group is lost in some way; the cut, if it is one.
    fn strike(&mut self, world: &mut Cluster, group: GroupId) -> Option<CutId> {
        let old: Vec<_> =
            processes(world.owner.groups()).filter(|process| process.group == group).collect();
        let ways = [Way::Stopped, Way::MostStopped, Way::CutOff];
        let count = match ways.choose(&mut self.random).expect("three") {
            Way::Stopped => old.len(),
            Way::MostStopped => old.len() / 2 + 1,
            Way::CutOff => {
                let others = world.peers().filter(|process| !old.contains(process));
                let others: Vec<_> = others.collect();
                return Some(world.cut(&old, &others, true));
            }
        };
        for process in &old[..count] {
            world.crash_after(*process, self.random.random_range(0..30));
            let soon = self.random.random_range(0..60);
            world.run_for(Duration::from_millis(soon));
            world.retire(*process);
        }
        None
    }

    /// What the owner decides of one of the groups that are lost.
    fn decide(&mut self, world: &Cluster, group: GroupId, lost: &[GroupId]) -> Fence {
        let first = group.0 * 100 + HEIRS + 3 * self.losses;
        self.losses += 1;
        let heirs = if self.random.random_bool(0.8) { 3 } else { 1 };
        let members = (first..first + heirs).map(NodeId).collect();
        let number = world.owner.config_of(group) + self.random.random_range(1..=2);
        let all = processes(world.owner.groups());
        let others = all.filter(|process| process.group != group);
        let (lost, reporters) = others.partition(|process| lost.contains(&process.group));
        Fence { config: Config { group, number, members }, reporters, lost }
    }

    /// Each reporter that does not know is told at some time, and heirs that were not started yet
    /// are, with that chance.
    fn tell(&mut self, world: &mut Cluster, fence: &Fence, chance: f64) {
        let Config { group, number, members } = &fence.config;
        for to in &fence.reporters {
            let known =
                world.process(*to).map(|process| process.multicast.fenced(*group) >= Some(*number));
            if known == Some(false) {
                let after = Duration::from_millis(self.random.random_range(0..400));
                let command = Command::Fence(fence.clone());
                world.inject(Stimulus::Command { to: *to, command, after });
            }
        }
        let configs = world.owner.groups().iter().map(|(group, members)| {
            let (number, members) = (world.owner.config_of(*group), members.clone());
            Config { group: *group, number, members }
        });
        let configs: Vec<_> = configs.collect();
        for heir in members.iter().map(|node| group.of(*node)) {
            if !self.known.borrow().contains_key(&heir) && self.random.random_bool(chance) {
                self.known.borrow_mut().insert(heir, (fence.clone(), configs.clone()));
                world.enter(heir);
            }
        }
    }
}
