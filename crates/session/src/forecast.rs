//! How long an update or a look will take, before anybody asks for it: from where its groups are,
//! who leads them, and how far nodes are from each other.
//!
//! Which node a client asks is what [`Routes`](crate::Routes) says for a client of its region; the
//! groups are those that the update is multicast to. Then each milestone is the latest of what it
//! waits for, as the protocol has it without other messages under way (`docs/multicast.md`):
//!
//! 1. START is at the node that is asked for each group, and from there at all primaries.
//! 2. A primary proposes. Its members have that, and a quorum acknowledges.
//! 3. A process delivers once it knows of a quorum of each group, and if the clock of another group
//!    is ahead, once its own group's has followed.
//! 4. It gives its vote to the other groups. With all votes it applies, and answers.
//!
//! Who holds something has flushed it to its disk, which takes as long as its last flushes took.
//! What else nodes need to do their part is in the measured round trips only as far as answering an
//! echo takes it.

use crate::nodes::Nodes;
use meridian_cluster::Topology;
use meridian_core::{GroupId, NodeId, RegionId, Time};
use meridian_fs::Update;
use meridian_host::api::NodeStatus;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What must be known of a cluster for a forecast.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Who leads each group.
    pub leaders: BTreeMap<GroupId, Leader>,
    /// How long it takes from one node to another and back.
    pub nodes: BTreeMap<(NodeId, NodeId), Duration>,
    /// How long it takes from the client to a node and back.
    pub client: BTreeMap<NodeId, Duration>,
    /// How long a node's disk takes to flush; those that keep nothing on a disk are not in it.
    pub flushes: BTreeMap<NodeId, Duration>,
}

impl Measured {
    /// What these nodes say of themselves, each with how long the client took to ask it.
    pub fn of(answers: &[(NodeStatus, Duration)]) -> Measured {
        let mut measured = Measured::default();
        let mut epochs = BTreeMap::new();
        for (status, took) in answers {
            measured.client.insert(status.node, *took);
            let flush = status.flush_us.map(Duration::from_micros);
            measured.flushes.extend(flush.map(|took| (status.node, took)));
            let ways = status.round_trips_us.iter();
            let ways = ways.map(|(to, us)| ((status.node, *to), Duration::from_micros(*us)));
            measured.nodes.extend(ways);
            for replica in status.replicas.iter().filter(|replica| replica.role == "primary") {
                // While epochs change an old primary may not know yet.
                let epoch = epochs.entry(replica.group).or_insert(replica.epoch);
                if replica.epoch >= *epoch {
                    *epoch = replica.epoch;
                    let leader = Leader { node: status.node, clock: replica.clock.0 };
                    measured.leaders.insert(replica.group, leader);
                }
            }
        }
        measured
    }
}

/// Who leads a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its primary.
    pub node: NodeId,
    /// Where its clock is: the group whose clock is behind follows before it delivers.
    pub clock: u64,
}

/// What is missing for a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Nobody is known to lead that group.
    Leader(GroupId),
    /// Nobody has measured the way between these nodes, nor another between their regions.
    Way(NodeId, NodeId),
    /// The client has not measured its way to that node.
    Client(NodeId),
}

/// A cluster, as a client in one of its regions meets it.
#[derive(Clone, Debug)]
pub struct Surroundings {
    nodes: Nodes,
    measured: Measured,
}

/// Something that must have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Milestone {
    /// The node that is asked has the client's request.
    Asked,
    /// The primary proposes.
    Proposed,
    /// The primary knows that a quorum of its group holds it.
    Acknowledged,
    /// The node that is asked knows its place in the order, and that all before it is done.
    Ordered,
    /// The node that is asked has the votes of the other groups, and applies it.
    Applied,
    /// The client has the answer of that group.
    Answered,
}

/// A milestone of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long after the client asked.
    pub at: Duration,
    /// What happened.
    pub milestone: Milestone,
    /// In which group.
    pub group: GroupId,
    /// At which node.
    pub node: NodeId,
}

/// A group that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The group.
    pub group: GroupId,
    /// Which node of it the client asks.
    pub asked: NodeId,
    /// Its primary.
    pub primary: NodeId,
}

/// What is to be expected of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Who takes part.
    pub parts: Vec<Part>,
    /// What happens, in the order of time.
    pub steps: Vec<Step>,
    /// When the client has the first answer, which decides.
    pub total: Duration,
}

impl Surroundings {
    /// Those of a client in `region`.
    pub fn new(topology: Arc<Topology>, region: RegionId, measured: Measured) -> Surroundings {
        Surroundings { nodes: Nodes::new(topology, region), measured }
    }

    /// Which node is asked to look at something in `group`, and how long that takes.
    ///
    /// # Errors
    /// If the way there is not measured.
    pub fn look(&self, group: GroupId) -> Result<(NodeId, Duration), Unknown> {
        let node = self.asked(group);
        Ok((node, self.to_client(node)?))
    }

    /// How long it takes to store a block of a file in `partition`: until all regions have it that
    /// hold the file.
    ///
    /// # Errors
    /// If the way to a node is not measured.
    pub fn store(&self, partition: GroupId) -> Result<Duration, Unknown> {
        let regions = self.nodes.regions_of(partition).into_iter();
        let nodes = regions.flat_map(|region| self.nodes.topology.nodes_in(region));
        let ways: Result<Vec<_>, _> = nodes.map(|node| self.to_client(node)).collect();
        Ok(ways?.into_iter().max().unwrap_or_default())
    }

    /// What is to be expected of `update`.
    ///
    /// # Errors
    /// If one of its groups has no primary, or a way is not measured.
    pub fn update(&self, update: &Update) -> Result<Forecast, Unknown> {
        Flow::new(self, update.partitions().into_iter().collect())?.forecast()
    }

    fn asked(&self, group: GroupId) -> NodeId {
        self.nodes.routes.candidates(&self.nodes.topology, group, Time(0))[0]
    }

    fn leader(&self, group: GroupId) -> Result<Leader, Unknown> {
        self.measured.leaders.get(&group).copied().ok_or(Unknown::Leader(group))
    }

    fn to_client(&self, node: NodeId) -> Result<Duration, Unknown> {
        self.measured.client.get(&node).copied().ok_or(Unknown::Client(node))
    }

    fn members(&self, group: GroupId) -> &[NodeId] {
        &self.nodes.topology.group(group).members
    }

    /// Half of the round trip; if nobody has measured it, the median of those between the regions.
    fn way(&self, from: NodeId, to: NodeId) -> Result<Duration, Unknown> {
        if from == to {
            return Ok(Duration::ZERO);
        }
        let measured = &self.measured.nodes;
        let known = measured.get(&(from, to)).or_else(|| measured.get(&(to, from)));
        if let Some(known) = known {
            return Ok(*known / 2);
        }
        let region = |node| self.nodes.topology.node(node).region;
        let ends = (region(from), region(to));
        let alike = |a, b| (region(a), region(b)) == ends || (region(b), region(a)) == ends;
        let between = measured.iter().filter(|((a, b), _)| a != b && alike(*a, *b));
        let mut between: Vec<_> = between.map(|(_, took)| *took).collect();
        between.sort_unstable();
        let median = between.get(between.len() / 2).ok_or(Unknown::Way(from, to))?;
        Ok(*median / 2)
    }
}

/// An update on its way: the moments of its groups' processes.
struct Flow<'a> {
    around: &'a Surroundings,
    parts: Vec<Part>,
    /// By group: when its primary has START.
    proposed: BTreeMap<GroupId, Duration>,
}

impl<'a> Flow<'a> {
    fn new(around: &'a Surroundings, groups: Vec<GroupId>) -> Result<Flow<'a>, Unknown> {
        let part = |group| {
            let (asked, primary) = (around.asked(group), around.leader(group)?.node);
            Ok(Part { group, asked, primary })
        };
        let parts: Vec<Part> = groups.into_iter().map(part).collect::<Result<_, _>>()?;
        let mut flow = Flow { around, parts, proposed: BTreeMap::new() };
        for to in &flow.parts {
            // Each node that is asked passes START on to the primaries of all groups.
            let ways = flow
                .parts
                .iter()
                .map(|by| Ok(around.to_client(by.asked)? / 2 + around.way(by.asked, to.primary)?));
            let first = ways.collect::<Result<Vec<_>, _>>()?.into_iter().min();
            flow.proposed.insert(to.group, first.expect("it is one of them"));
        }
        Ok(flow)
    }

    fn part(&self, group: GroupId) -> Part {
        *self.parts.iter().find(|part| part.group == group).expect("it takes part")
    }

    /// Whether the primary of `group` alone speaks with other groups (decision 16).
    fn relays(&self, group: GroupId) -> bool {
        self.around.nodes.topology.group(group).region.is_some()
    }

    /// When `at` knows of a quorum of those of `group`, if `told` says when each member's word
    /// leaves.
    fn quorum(
        &self,
        group: GroupId,
        at: NodeId,
        told: impl Fn(NodeId) -> Result<Duration, Unknown>,
    ) -> Result<Duration, Unknown> {
        let members = self.around.members(group).iter();
        let heard = members.map(|from| Ok(told(*from)? + self.around.way(*from, at)?));
        let mut heard = heard.collect::<Result<Vec<_>, _>>()?;
        heard.sort_unstable();
        Ok(heard.get(heard.len() / 2).copied().unwrap_or_default())
    }

    /// When a node has the proposal of the primary of `group`.
    fn held(&self, group: GroupId, node: NodeId) -> Result<Duration, Unknown> {
        Ok(self.proposed[&group] + self.around.way(self.part(group).primary, node)?)
    }

    /// When a node holds the proposal of the primary of `group` on its disk.
    fn flushed(&self, group: GroupId, node: NodeId) -> Result<Duration, Unknown> {
        let flush = self.around.measured.flushes.get(&node).copied().unwrap_or_default();
        Ok(self.held(group, node)? + flush)
    }

    /// When the primary of `group` knows that a quorum holds the proposal.
    fn acknowledged(&self, group: GroupId) -> Result<Duration, Unknown> {
        self.quorum(group, self.part(group).primary, |member| self.flushed(group, member))
    }

    /// When the process of `group` at `node` knows that a quorum of its own group holds it.
    fn own(&self, group: GroupId, node: NodeId) -> Result<Duration, Unknown> {
        let members = self.around.members(group).len();
        // Members of small groups acknowledge to the primary; it and another one are a quorum.
        match node == self.part(group).primary || members > 3 {
            true => self.quorum(group, node, |member| self.flushed(group, member)),
            false => self.flushed(group, node),
        }
    }

    /// When the process of `group` at `node` knows that a quorum of `other` holds it.
    fn heard(&self, group: GroupId, node: NodeId, other: GroupId) -> Result<Duration, Unknown> {
        let primary = self.part(group).primary;
        let listener = if self.relays(group) { primary } else { node };
        let known = match self.relays(other) {
            true => {
                let speaker = self.part(other).primary;
                self.acknowledged(other)? + self.around.way(speaker, listener)?
            }
            false => {
                let quorum = self.quorum(other, listener, |member| self.flushed(other, member))?;
                quorum.max(self.held(other, listener)?)
            }
        };
        Ok(known + self.around.way(listener, node)?)
    }

    /// When the process of `group` at `node` knows that clocks of its group are past what `other`
    /// has proposed. Followers of a primary that relays keep theirs ahead.
    fn followed(&self, group: GroupId, node: NodeId, other: GroupId) -> Result<Duration, Unknown> {
        let clock = |group| self.around.leader(group).map(|leader| leader.clock);
        if clock(other)? < clock(group)? {
            return Ok(Duration::ZERO);
        }
        let (from, primary) = (self.part(other).primary, self.part(group).primary);
        let proposed = self.proposed[&other];
        let learned = |member| Ok(proposed + self.around.way(from, member)?);
        let leader = learned(primary)? + self.around.way(primary, node)?;
        match self.relays(group) {
            true => Ok(leader),
            false => Ok(leader.max(self.quorum(group, node, learned)?)),
        }
    }

    /// When the process of `group` at `node` delivers.
    fn ordered(&self, group: GroupId, node: NodeId) -> Result<Duration, Unknown> {
        let mut at = self.own(group, node)?;
        for other in self.others(group) {
            at = at.max(self.heard(group, node, other)?).max(self.followed(group, node, other)?);
        }
        Ok(at)
    }

    fn others(&self, group: GroupId) -> impl Iterator<Item = GroupId> + use<'_> {
        self.parts.iter().map(|part| part.group).filter(move |other| *other != group)
    }

    /// When the process of `group` at `node` has all votes, and applies. A node that is in both
    /// groups has no need of a network.
    fn applied(&self, group: GroupId, node: NodeId) -> Result<Duration, Unknown> {
        let mut at = self.ordered(group, node)?;
        for other in self.others(group) {
            let members = self.around.members(other);
            let voters = match members.contains(&node) {
                true => std::slice::from_ref(&node),
                false => members,
            };
            let votes = voters
                .iter()
                .map(|voter| Ok(self.ordered(other, *voter)? + self.around.way(*voter, node)?));
            at = at.max(votes.collect::<Result<Vec<_>, _>>()?.into_iter().min().unwrap_or(at));
        }
        Ok(at)
    }

    fn forecast(self) -> Result<Forecast, Unknown> {
        let mut steps = Vec::new();
        for Part { group, asked, primary } in self.parts.iter().copied() {
            let client = self.around.to_client(asked)? / 2;
            let applied = self.applied(group, asked)?;
            let mut step = |at, milestone, node| steps.push(Step { at, milestone, group, node });
            step(client, Milestone::Asked, asked);
            step(self.proposed[&group], Milestone::Proposed, primary);
            step(self.acknowledged(group)?, Milestone::Acknowledged, primary);
            step(self.ordered(group, asked)?, Milestone::Ordered, asked);
            if self.parts.len() > 1 {
                step(applied, Milestone::Applied, asked);
            }
            step(applied + client, Milestone::Answered, asked);
        }
        steps.sort_by_key(|step| (step.at, step.milestone, step.group));
        let answers = steps.iter().filter(|step| step.milestone == Milestone::Answered);
        let total = answers.map(|step| step.at).min().unwrap_or_default();
        Ok(Forecast { parts: self.parts, steps, total })
    }
}

#[cfg(test)]
#[path = "forecast_tests.rs"]
mod tests;
