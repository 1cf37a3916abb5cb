//! Where the time of an update went: what this client and the nodes have noted of it, on one line
//! (decision 92); and which updates took longest.

use crate::client::{Client, lock};
use crate::error::ClientError;
use crate::words::strange;
use meridian_cluster::Topology;
use meridian_core::{GroupId, MessageId, NodeId};
use meridian_host::api::{ReplyBody, RequestBody};
use meridian_host::steps::{Report, What};
use meridian_session::timeline::{Point, Told, timeline};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::task::JoinSet;

/// So many of the slowest updates are kept until somebody asks.
pub const KEPT: usize = 8;
/// How long a node may take to tell what it has noted.
const LIMIT: Duration = Duration::from_secs(3);
/// How often a node is asked: its clock is known by the quickest answer.
const TIMES: usize = 3;
/// So many steps are told at most: as JSON they fit into what a mount can answer.
const STEPS_MAX: usize = 256;

/// An update that took long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowUpdate {
    /// What it was, as `create` or `rename`.
    pub what: String,
    /// Who has ordered it, by name.
    pub groups: Vec<String>,
    /// Under which name it was multicast.
    pub message: String,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

/// The slowest updates since that was asked last, the slowest first.
#[derive(Debug, Default)]
pub(crate) struct Slowest(Mutex<Vec<Kept>>);

#[derive(Debug)]
struct Kept {
    took: Duration,
    what: &'static str,
    groups: Vec<GroupId>,
    id: MessageId,
}

impl Slowest {
    pub fn note(&self, what: &'static str, groups: &[GroupId], took: Duration, id: MessageId) {
        let mut all = lock(&self.0);
        let at = all.partition_point(|kept| kept.took >= took);
        if at < KEPT {
            all.insert(at, Kept { took, what, groups: groups.to_vec(), id });
            all.truncate(KEPT);
        }
    }

    fn take(&self) -> Vec<Kept> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// The path of one update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Its name.
    pub message: String,
    /// What was done for it, in order.
    pub steps: Vec<TimedStep>,
    /// So many more steps were left out, the last ones.
    pub left_out: usize,
    /// Nodes that did not answer, by name.
    pub silent: Vec<String>,
    /// Nodes that remember only what is younger than the first step, or nothing of it though they
    /// keep one of its groups: their part may be missing.
    pub forgotten: Vec<String>,
}

/// A step of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedStep {
    /// When, in microseconds since the first one.
    pub at_us: u64,
    /// By so much that may be wrong, as clocks differ.
    pub within_us: u64,
    /// Who did it: `client`, or a node by name.
    pub by: String,
    /// What.
    pub what: What,
    /// By whose replica, or asked of which group.
    pub group: Option<String>,
    /// The other node that it has to do with, and for which group that acts.
    pub with: Option<(String, String)>,
}

impl Client {
    /// Which of its updates took longest since this was asked last, the slowest first.
    pub fn slowest_updates(&self) -> Vec<SlowUpdate> {
        let topology = self.topology();
        let name = |group: &GroupId| topology.group_name(*group);
        let told = |kept: Kept| SlowUpdate {
            what: kept.what.into(),
            groups: kept.groups.iter().map(name).collect(),
            message: kept.id.to_string(),
            took_us: u64::try_from(kept.took.as_micros()).unwrap_or(u64::MAX),
        };
        self.inner.slowest.take().into_iter().map(told).collect()
    }

    /// The path of an update, of this client or another, as far as it is remembered. Asks all
    /// nodes; waits three seconds at most.
    pub async fn timeline(&self, id: MessageId) -> Timeline {
        let topology = self.topology();
        let mut asked = JoinSet::new();
        for node in topology.present() {
            let client = self.clone();
            let told = async move { client.told(node, id).await };
            asked.spawn(async move { (node, tokio::time::timeout(LIMIT, told).await) });
        }
        let mut told = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            if let Ok((node, Ok(Ok(of_node)))) = answer {
                told.insert(node, of_node);
            }
        }
        let told: Vec<Told> = told.into_values().collect();
        let own = self.inner.driver.report(id).steps;
        Timeline::new(&topology, id, &timeline(&own, &told), &told)
    }

    /// What a node has noted, by its quickest answer.
    async fn told(&self, node: NodeId, id: MessageId) -> Result<Told, ClientError> {
        let mut best: Option<Told> = None;
        for _ in 0..TIMES {
            let asked = self.time();
            let report = match self.call(node, RequestBody::Steps { of: id }, LIMIT).await? {
                ReplyBody::Steps(report) => report,
                other => return Err(strange(&other)),
            };
            let told = Told { node, asked, answered: self.time(), report };
            let trip = |told: &Told| told.answered.since(told.asked);
            if best.as_ref().is_none_or(|best| trip(&told) < trip(best)) {
                best = Some(told);
            }
        }
        Ok(best.expect("it was asked"))
    }
}

impl Timeline {
    fn new(topology: &Topology, id: MessageId, points: &[Point], told: &[Told]) -> Timeline {
        let name = |node: NodeId| match topology.nodes.get(usize::from(node.0)) {
            Some(node) => node.name.clone(),
            None => node.to_string(),
        };
        let group = |group: GroupId| topology.group_name(group);
        let first = points.first().map_or(0, |point| point.at_ns);
        let step = |point: &Point| TimedStep {
            at_us: point.at_ns.abs_diff(first) / 1000,
            within_us: point.within_ns / 1000,
            by: point.node.map_or_else(|| "client".into(), name),
            what: point.step.what,
            group: point.step.group.map(group),
            with: point.step.with.map(|with| (name(with.node), group(with.group))),
        };
        let groups: Vec<_> = points.iter().filter_map(|point| point.step.group).collect();
        let answered = |node: NodeId| told.iter().find(|told| told.node == node);
        let concerned = |node: &NodeId| topology.groups_of(*node).any(|of| groups.contains(&of));
        let forgot = |node: &NodeId| answered(*node).is_some_and(|told| lacks(&told.report));
        let silent = |node: &NodeId| answered(*node).is_none();
        Timeline {
            message: id.to_string(),
            steps: points.iter().take(STEPS_MAX).map(step).collect(),
            left_out: points.len().saturating_sub(STEPS_MAX),
            silent: topology.present().filter(silent).map(name).collect(),
            forgotten: topology.present().filter(concerned).filter(forgot).map(name).collect(),
        }
    }
}

/// Whether steps may have been forgotten: those that are known lie close to what is forgotten.
fn lacks(report: &Report) -> bool {
    match (report.since, report.steps.first()) {
        (Some(since), Some(first)) => first.at <= since,
        (_, None) => true,
        (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::ClientId;

    #[test]
    fn the_slowest_updates_are_told_once() {
        let slowest = Slowest::default();
        let id = |sequence| MessageId { client: ClientId(1), sequence };
        for ms in [5, 1, 9, 2, 8, 3, 7, 4, 6, 10, 5] {
            slowest.note("create", &[GroupId(1)], Duration::from_millis(ms), id(ms));
        }
        let told: Vec<_> = slowest.take().iter().map(|kept| kept.id.sequence).collect();
        assert_eq!(told, [10, 9, 8, 7, 6, 5, 5, 4]);
        assert!(slowest.take().is_empty());
    }
}
