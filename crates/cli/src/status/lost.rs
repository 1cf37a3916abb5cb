//! A region that is being fenced, and whom that waits for; what is missing since regions were lost.

use super::report::Answered;
use super::verdict::{Finding, Level};
use meridian_cluster::Topology;
use meridian_cluster::lost::LostRegion;
use meridian_core::NodeId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

/// A region that was declared lost.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct LostReport {
    region: String,
    /// When, in milliseconds since 1970.
    since_ms: u64,
    /// Whether its heirs go on; else the fence is open.
    stands: bool,
    heirs: Vec<String>,
}

fn names(topology: &Topology, nodes: impl IntoIterator<Item = NodeId>) -> Vec<String> {
    nodes.into_iter().map(|node| topology.node(node).name.clone()).collect()
}

/// The regions that were declared lost.
pub fn reports(topology: &Topology) -> Vec<LostReport> {
    let report = |lost: &LostRegion| LostReport {
        region: topology.regions[usize::from(lost.region.0)].name.clone(),
        since_ms: lost.since_ms,
        stands: lost.stands,
        heirs: names(topology, lost.heirs.iter().copied()),
    };
    topology.lost().values().map(report).collect()
}

/// What an open fence waits for, for people.
pub fn waits_for(
    topology: &Topology,
    lost: &LostRegion,
    answers: &BTreeMap<NodeId, Answered>,
) -> String {
    let needed: BTreeSet<_> = lost.reporters.iter().map(|process| process.node).collect();
    let count = needed.len();
    let silent = |node: &NodeId| !answers.get(node).is_some_and(Result::is_ok);
    let silent = names(topology, needed.into_iter().filter(silent));
    let heirs = names(topology, lost.heirs.iter().copied()).join(", ");
    match silent.is_empty() {
        true => format!("its heirs {heirs} gather what {count} nodes know of it"),
        false => format!(
            "its heirs {heirs} need what {} know of it, who do not answer: nothing goes on \
             without that",
            silent.join(", ")
        ),
    }
}

/// An open fence, and seats that are empty.
pub(super) fn findings(topology: &Topology, answers: &BTreeMap<NodeId, Answered>) -> Vec<Finding> {
    let seats = empty_seats(topology).map(|what| {
        let (level, at, for_ms) = (Level::Degraded, "the configuration".into(), None);
        Finding { level, at, what, for_ms }
    });
    open_fence(topology, answers).into_iter().chain(seats).collect()
}

/// What keeps the configuration since nodes were lost with nobody in their place, for people.
pub fn empty_seats(topology: &Topology) -> Option<String> {
    let (seats, empty) = (topology.keeping.replicas.len(), topology.lost_seats().count());
    (empty > 0).then(|| {
        format!(
            "is kept by {} nodes of {seats}, as {} was lost: the next node that is added does so, \
             too (meridian cluster add-node)",
            seats - empty,
            names(topology, topology.lost_seats()).join(", ")
        )
    })
}

fn open_fence(topology: &Topology, answers: &BTreeMap<NodeId, Answered>) -> Option<Finding> {
    let lost = topology.open_fence()?;
    let region = &topology.regions[usize::from(lost.region.0)].name;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or_default();
    let what = format!("is being fenced: {}", waits_for(topology, lost, answers));
    let for_ms = Some(now_ms.saturating_sub(lost.since_ms));
    Some(Finding { level: Level::Down, at: format!("region {region}"), what, for_ms })
}

#[cfg(test)]
mod tests {
    use super::super::report::Report;
    use super::super::verdict::Seen;
    use super::*;
    use crate::cluster::{Shape, new_cluster};
    use meridian_cluster::Configuration;
    use meridian_cluster::configuration::Request;

    #[test]
    fn an_open_fence_comes_first_and_says_whom_it_waits_for() {
        let regions = ["us", "eu", "ap"].map(String::from).into();
        let shape = Shape { regions, nodes_per_region: Some(3), ..Shape::default() };
        let mut configuration = Configuration::default();
        let text = serde_json::to_string(&new_cluster(&shape).unwrap()).unwrap();
        configuration.change(Request::Initialise(text));
        let up = ["us-1", "us-2", "us-3", "eu-1", "eu-2", "eu-3"];
        let up = up.map(String::from).into_iter().collect();
        let region = "ap".to_string();
        configuration.change(Request::FenceRegion { region, up, keyless: true, now_ms: 9 });
        let topology = Topology::new(configuration.file().unwrap()).unwrap();
        let status = |node: NodeId| super::super::tests::status(node.0, &[]);
        let mut answers: BTreeMap<NodeId, Answered> =
            topology.node_ids().take(6).map(|node| (node, Ok(status(node)))).collect();
        let report = Report::new(&topology, &answers);
        let said = report.verdict.sentence(&Seen::default());
        let begin = "Not all can be written: region ap is being fenced: its heirs eu-1, eu-2, \
                     eu-3 gather what 6 nodes know of it, for at least ";
        assert!(said.starts_with(begin), "{said}");
        answers.insert(NodeId(1), Err("connection refused".into()));
        let said = Report::new(&topology, &answers).verdict.sentence(&Seen::default());
        assert!(said.contains("need what us-2 know of it"), "{said}");
        assert_eq!(reports(&topology)[0].heirs, ["eu-1", "eu-2", "eu-3"]);
        configuration.change(Request::InForce { group: "ap".into(), number: 2 });
        let topology = Topology::new(configuration.file().unwrap()).unwrap();
        assert!(findings(&topology, &answers).is_empty());
    }

    #[test]
    fn seats_that_are_empty_since_a_region_was_lost_are_told() {
        let regions = ["us", "eu", "ap"].map(String::from).into();
        let shape = Shape { regions, nodes_per_region: Some(1), ..Shape::default() };
        let mut configuration = Configuration::default();
        let text = serde_json::to_string(&new_cluster(&shape).unwrap()).unwrap();
        configuration.change(Request::Initialise(text));
        let up: BTreeSet<_> = ["us-1", "eu-1"].map(String::from).into();
        let region = "ap".to_string();
        let fence = Request::FenceRegion { region, up: up.clone(), keyless: true, now_ms: 9 };
        configuration.change(fence);
        for (group, number) in [("ap", 2), ("global", 1)] {
            configuration.change(Request::InForce { group: group.into(), number });
        }
        let found = |configuration: &Configuration| {
            let topology = Topology::new(configuration.file().unwrap()).unwrap();
            findings(&topology, &BTreeMap::new())
        };
        let told = found(&configuration);
        let [Finding { level: Level::Degraded, at, what, .. }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(at, "the configuration");
        assert!(what.starts_with("is kept by 2 nodes of 3, as ap-1 was lost"), "{what}");
        let (region, address) = ("us".to_string(), "here".to_string());
        configuration.change(Request::AddNode { region, name: None, address, up });
        configuration.change(Request::Up { name: "us-2".into() });
        assert!(found(&configuration).is_empty());
    }
}
