//! What is read of a node that has stopped (decision 108) has all that it had answered, wherever
//! its power failed.

use meridian_cluster::topology::DeliveryOrder;
use meridian_core::{GroupId, MessageId, NodeId};
use meridian_fs::Place;
use meridian_fs::inventory::{Inventory, Partitions};
use meridian_host::api::ReplyBody;
use meridian_host::{Node, Output, sessions};
use meridian_sim::of::files::trial::{Cluster, Trial, power_cuts};
use meridian_sim::trial::Made;
use meridian_sim::{Happened, Subject, Watcher, What, one_seed, share};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    /// How often something was read.
    read: u64,
    /// Answered updates that were applied, as their records said, or as they were taken as decided.
    applied: u64,
    /// How many were taken as decided.
    assumed: u64,
    /// Answered updates that wait behind what another region has a say in, and were told of.
    waiting: u64,
    /// Answered updates that were neither applied nor told of.
    lost: Vec<String>,
}

/// Reads each node that starts again as `meridian salvage` reads one that does not: it has what it
/// answered in its own log, whether it is alone in its region or one of three.
struct Reader {
    /// Whether what the group alone had to decide is taken as decided, and the rest is told of.
    takes_rest: bool,
    answered: BTreeMap<NodeId, BTreeSet<MessageId>>,
    seen: Rc<RefCell<Seen>>,
}

impl Watcher<Node> for Reader {
    fn happened(&mut self, event: &Happened<'_, Node>) {
        let What::Output(Output::Reply { reply, .. }) = event.what else { return };
        if let ReplyBody::Updated { id, result: Ok(_), .. } = &reply.body {
            self.answered.entry(event.at).or_default().insert(*id);
        }
    }

    fn restored(&mut self, at: NodeId, process: &Node) {
        let answered = self.answered.get(&at).cloned().unwrap_or_default();
        self.read(process.clone(), &answered);
    }
}

impl Reader {
    fn read(&self, mut node: Node, answered: &BTreeSet<MessageId>) {
        let mut seen = self.seen.borrow_mut();
        seen.read += 1;
        if self.takes_rest {
            seen.assumed += node.deliver_rest().len() as u64;
        }
        node.check_invariants();
        check_inventory(&node);
        let regions = node.replicas().filter(|(group, _)| *group != GroupId::GLOBAL);
        for (group, replica) in regions {
            let told: Vec<_> = replica.doubtful().filter(|_| self.takes_rest).collect();
            let others = |of: &GroupId| *of != group;
            let waits = told.iter().any(|of| of.waits_for.iter().any(others));
            for id in answered.iter().filter(|id| sessions::goes_to(id.client, &[group])) {
                let multicast = &replica.multicast;
                if multicast.delivered_at(*id).is_some() || multicast.has_dropped(*id) {
                    seen.applied += 1;
                } else if waits && told.iter().any(|of| of.id == *id) {
                    seen.waiting += 1;
                } else {
                    seen.lost.push(format!("{id} of {group:?} at {:?}", node.me()));
                }
            }
        }
    }
}

/// Each inode has a path; but for the top of a region whose name is gone, if nothing is in it.
fn check_inventory(node: &Node) {
    let partitions: Partitions<'_> =
        node.replicas().map(|(group, replica)| (group, replica.partition())).collect();
    let found = Inventory::of(&partitions, |group| group.0.to_string().into());
    let told: BTreeSet<Place> = found.items.iter().map(|item| item.attributes.place).collect();
    let left = partitions.keys().filter(|group| !told.contains(&Place::top(**group))).count();
    let inodes: u64 = partitions.values().map(|partition| partition.holdings().inodes).sum();
    assert_eq!(told.len() + left, inodes as usize, "L1: {found:?}");
    let paths: BTreeSet<&[u8]> = found.items.iter().map(|item| &item.path[..]).collect();
    assert_eq!(paths.len(), found.items.len(), "two things have one path");
}

fn seen(seed: u64, nodes: usize, takes_rest: bool) -> Seen {
    let order = Some(DeliveryOrder::Sequential);
    let trial = Trial { faults: Some(power_cuts()), order, ..Trial::of(nodes) };
    let Made { setup, owner, .. } = trial.make(seed, &trial.draw(seed));
    let mut world = Cluster::new(seed, setup, owner);
    let seen = Rc::<RefCell<Seen>>::default();
    let answered = BTreeMap::new();
    world.watch(Box::new(Reader { takes_rest, answered, seen: seen.clone() }));
    world.run_for(Trial::FAULTS);
    drop(world);
    Rc::into_inner(seen).unwrap().into_inner()
}

#[test]
fn nothing_that_was_answered_is_lost_silently() {
    let mut all = Seen::default();
    meridian_sim::each_seed(0..24, |seed| {
        let nodes = if seed % 2 == 0 { 1 } else { 3 };
        let Seen { read, applied, assumed, waiting, lost } = seen(seed, nodes, true);
        assert!(lost.is_empty(), "seed {seed}: {lost:?}");
        (all.read, all.applied) = (all.read + read, all.applied + applied);
        (all.assumed, all.waiting) = (all.assumed + assumed, all.waiting + waiting);
    });
    let enough = all.read > 60 / share() && all.applied > 300 / share() && all.assumed > 0;
    assert!(enough || one_seed(), "too little happened: {all:?}");
}

/// The planted fault: only what records say was decided is applied, and nothing else is told. Where
/// a group has one member these always do when it answers; where it has three they may not.
#[test]
fn what_no_record_calls_delivered_would_be_missed() {
    let mut tried = Vec::new();
    let found = (0..30).any(|seed| {
        let (with, without) = (seen(seed, 3, false), seen(seed, 3, true));
        let finds = !with.lost.is_empty() && without.lost.is_empty();
        tried.push((with.read, with.applied, with.lost.len(), without.lost.len()));
        finds
    });
    assert!(found, "no power failed before a delivery was flushed: {tried:?}");
}
