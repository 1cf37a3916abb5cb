//! What `meridian cluster show` tells.

use crate::configuration::Newest;
use crate::output;
use crate::status::Answered;
use meridian_cluster::Topology;
use meridian_core::NodeId;
use meridian_host::api::{KeeperStatus, NodeStatus};
use serde::Serialize;
use std::collections::BTreeMap;

/// What `show` tells.
#[derive(Debug, Serialize)]
pub struct Report {
    cluster: u64,
    version: u64,
    /// Whether it may be old: it is that of the cluster file.
    pub from_file: bool,
    order: &'static str,
    nodes: Vec<NodeReport>,
    groups: Vec<GroupReport>,
    keepers: Vec<KeeperReport>,
}

#[derive(Debug, Serialize)]
struct NodeReport {
    node: String,
    id: u16,
    region: String,
    address: String,
    /// `member`, `coming`, `draining`, `leaving`, `removed` or `lost`.
    state: &'static str,
    /// Why it was removed, or is, though its region has fewer nodes then than it needs.
    forced: Option<String>,
    /// While it is drained: so many blocks are not known to be on enough others.
    to_drain: Option<u64>,
    reachable: bool,
    /// The version of the configuration that it follows.
    follows: Option<u64>,
    groups: Vec<String>,
}

#[derive(Debug, Serialize)]
struct GroupReport {
    group: String,
    /// How often its members have changed.
    number: u64,
    /// Those of its primary's epoch, if that answers.
    epoch: Option<u64>,
    primary: Option<String>,
    members: Vec<String>,
    next: Option<Vec<String>>,
    /// The node that comes and is not up yet.
    waits_for: Option<String>,
}

#[derive(Debug, Serialize)]
struct KeeperReport {
    node: String,
    up: bool,
    leads: bool,
    /// So many changes it has executed.
    executed: Option<u64>,
    error: Option<String>,
}

impl NodeReport {
    /// What it is to its cluster, for people.
    fn say_state(&self) -> String {
        let left = self.to_drain.map_or(String::new(), |left| format!(", {left} blocks left"));
        let forced = self.forced.as_ref().map_or(String::new(), |why| format!(" (forced: {why})"));
        format!("{}{left}{forced}", self.state)
    }
}

/// The groups that a node is in, or will be in soon.
pub fn names_of_groups(topology: &Topology, id: NodeId) -> Vec<String> {
    topology.groups_of(id).map(|group| topology.group_name(group)).collect()
}

/// What a node is to its cluster: `member`, `coming`, `draining`, `leaving`, `removed` or `lost`.
pub fn state(topology: &Topology, id: NodeId) -> &'static str {
    let node = topology.node(id);
    let counts = |group| topology.group(group).members.contains(&id);
    match (topology.is_gone(id), node.leaves, topology.groups_of(id).all(counts)) {
        _ if topology.is_lost(id) => "lost",
        (true, _, _) => "removed",
        (_, true, _) => "leaving",
        _ if node.draining.is_some() => "draining",
        (_, _, true) => "member",
        (_, _, false) => "coming",
    }
}

/// While a node is drained: of how many blocks the nodes that copy them do not know yet that they
/// are on enough nodes that stay.
pub fn left_to_drain(
    topology: &Topology,
    answers: &BTreeMap<NodeId, Answered>,
    id: NodeId,
) -> Option<u64> {
    let left = |node: NodeId| answers.get(&node)?.as_ref().ok()?.to_drain;
    let draining = topology.node(id).draining.as_ref()?;
    if !draining.down {
        return left(id);
    }
    let waits_for = |node: &NodeId| !draining.reported.contains(&topology.node(*node).name);
    topology.staying_in(topology.node(id).region).filter(waits_for).map(left).sum()
}

/// The nodes that are to have the keys of a node that is drained, and do not yet: it stays until
/// then.
pub fn without_keys(
    topology: &Topology,
    answers: &BTreeMap<NodeId, Answered>,
    id: NodeId,
) -> Vec<String> {
    let answer = answers.get(&id).and_then(|answer| answer.as_ref().ok());
    let keys = answer.map(|status| &status.keys[..]).unwrap_or_default();
    let Some(first) = keys.first() else { return Vec::new() };
    let lacks = |node: &NodeId| !(first.live.contains(node) && first.voters.contains(node));
    let begun = first.live.contains(&id);
    let without = topology.staying_in(topology.node(id).region).filter(|node| begun && lacks(node));
    without.map(|node| topology.node(node).name.clone()).collect()
}

impl Report {
    /// Of that configuration, with what nodes answer.
    pub fn new(newest: &Newest, answers: &BTreeMap<NodeId, Answered>) -> Report {
        let topology = &newest.topology;
        let name = |id: &NodeId| topology.node(*id).name.clone();
        let status = |id: &NodeId| answers.get(id).and_then(|answer| answer.as_ref().ok());
        let nodes = topology.node_ids().map(|id| NodeReport {
            node: name(&id),
            id: id.0,
            region: topology.regions[usize::from(topology.node(id).region.0)].name.clone(),
            address: topology.node(id).address.clone(),
            state: state(topology, id),
            forced: newest.file.configuration.forced.get(&name(&id)).cloned(),
            to_drain: left_to_drain(topology, answers, id),
            reachable: status(&id).is_some(),
            follows: status(&id).map(|status| status.configured),
            groups: names_of_groups(topology, id),
        });
        let groups = topology.group_ids().map(|id| {
            let group = topology.group(id);
            let replicas = group.involved().filter_map(|node| {
                let replica = status(&node)?.replicas.iter().find(|of| of.group == id)?;
                (replica.role == "primary").then_some((node, replica.epoch.number))
            });
            let primary = replicas.max_by_key(|(_, epoch)| *epoch);
            GroupReport {
                group: group.name.clone(),
                number: group.number,
                epoch: primary.map(|(_, epoch)| epoch),
                primary: primary.map(|(node, _)| name(&node)),
                members: group.members.iter().map(name).collect(),
                next: group.next.as_ref().map(|next| next.iter().map(name).collect()),
                waits_for: group.waits_for.as_ref().map(name),
            }
        });
        let keepers = newest.file.configuration.replicas.iter().map(|node| {
            let id = topology.node_named(node);
            let answer = id.and_then(|id| answers.get(&id)).map(|answer| answer.as_ref());
            let lost = "lost with its region: the next node that is added does so".to_string();
            match id.is_some_and(|id| topology.is_lost(id)) {
                true => KeeperReport::new(node, Some(Err(&lost))),
                false => KeeperReport::new(node, answer),
            }
        });
        Report {
            cluster: topology.cluster,
            version: topology.version,
            from_file: newest.error.is_some(),
            order: topology.order.name(),
            nodes: nodes.collect(),
            groups: groups.collect(),
            keepers: keepers.collect(),
        }
    }

    /// As tables.
    pub fn for_people(&self) -> String {
        let or_dash = |number: Option<u64>| number.map_or("-".into(), |n| n.to_string());
        let nodes = self.nodes.iter().map(|node| {
            vec![
                node.node.clone(),
                node.id.to_string(),
                node.region.clone(),
                node.address.clone(),
                node.say_state(),
                if node.reachable { "yes" } else { "NO" }.into(),
                or_dash(node.follows),
                node.groups.join(", "),
            ]
        });
        let head = ["node", "id", "region", "address", "state", "reachable", "follows", "groups"];
        let nodes = output::table(&head, nodes);
        let groups = self.groups.iter().map(|group| {
            let mut members = group.members.join(", ");
            if let Some(next) = &group.next {
                members = format!("{members} -> {}", next.join(", "));
            }
            if let Some(node) = &group.waits_for {
                members = format!("{members} (when {node} is up)");
            }
            let primary = group.primary.clone().unwrap_or("NONE".into());
            vec![
                group.group.clone(),
                group.number.to_string(),
                or_dash(group.epoch),
                primary,
                members,
            ]
        });
        let groups = output::table(&["group", "number", "epoch", "primary", "members"], groups);
        let keepers = self.keepers.iter().map(|keeper| {
            vec![
                keeper.node.clone(),
                keeper.error.as_ref().map_or("yes".into(), |error| format!("NO: {error}")),
                if keeper.leads { "leads" } else { "" }.into(),
                or_dash(keeper.executed),
            ]
        });
        let head = ["keeps the configuration", "up", "", "executed"];
        let keepers = output::table(&head, keepers);
        let source = if self.from_file { " of the cluster file, which may be old" } else { "" };
        let (version, order) = (self.version, self.order);
        format!("{nodes}\n\n{groups}\n\n{keepers}\n\nversion {version}{source}; order: {order}")
    }
}

impl KeeperReport {
    fn new(node: &str, answer: Option<Result<&NodeStatus, &String>>) -> KeeperReport {
        let keeper = match answer {
            None => Err("no such node".to_string()),
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(status)) => status.keeper.clone().ok_or("it does not know yet".to_string()),
        };
        let error = match &keeper {
            Err(error) => Some(error.clone()),
            Ok(KeeperStatus { stopped: Some(why), .. }) => Some(why.clone()),
            Ok(KeeperStatus { takes_part: false, .. }) => Some("it has no memory yet".into()),
            Ok(_) => None,
        };
        let keeper = keeper.ok();
        KeeperReport {
            node: node.into(),
            up: error.is_none(),
            leads: error.is_none() && keeper.as_ref().is_some_and(|keeper| keeper.leads),
            executed: keeper.map(|keeper| keeper.executed.0),
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, new_cluster};
    use meridian_cluster::configuration::{Configuration, Reply, Request};
    use std::collections::BTreeSet;

    #[test]
    fn a_node_comes_and_goes_and_the_tables_say_so() {
        let file = new_cluster(&Shape::default()).unwrap();
        let mut service = Configuration::default();
        let up: BTreeSet<_> = file.nodes.iter().map(|node| node.name.clone()).collect();
        let mut changed = |request: Request| {
            let reply = service.change(request);
            assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
            let file = service.file().unwrap().clone();
            let security = Default::default();
            Newest { topology: Topology::new(&file).unwrap(), file, security, error: None }
        };
        let states = |newest: &Newest, name: &str| {
            let id = newest.topology.node_named(name).unwrap();
            state(&newest.topology, id)
        };
        changed(Request::Initialise(serde_json::to_string(&file).unwrap()));
        let (region, address) = ("us".to_string(), "127.0.0.1:1".to_string());
        let request = Request::AddNode { region, name: None, address, up: up.clone() };
        let coming = changed(request);
        assert_eq!((states(&coming, "us-4"), states(&coming, "us-1")), ("coming", "member"));
        let text = Report::new(&coming, &BTreeMap::new()).for_people();
        assert!(text.contains("us-3 -> us-1, us-2, us-3, us-4 (when us-4 is up)"), "{text}");
        changed(Request::Up { name: "us-4".into() });
        for group in ["us", "global"] {
            changed(Request::InForce { group: group.into(), number: 1 });
        }
        let (name, keeper, reason) = ("us-3".to_string(), None, None);
        let draining = changed(Request::RemoveNode { name, up, keeper, reason });
        assert_eq!(states(&draining, "us-3"), "draining");
        let since = draining.topology.version;
        let reports = || Request::Drained { name: "us-3".into(), since };
        assert_eq!(states(&changed(reports()), "us-3"), "draining", "it goes for good");
        let leaving = changed(reports());
        assert_eq!((states(&leaving, "us-4"), states(&leaving, "us-3")), ("member", "leaving"));
        changed(Request::InForce { group: "us".into(), number: 2 });
        let gone = changed(Request::InForce { group: "global".into(), number: 2 });
        assert_eq!(states(&gone, "us-3"), "removed");
        let report = Report::new(&gone, &BTreeMap::new());
        assert!(report.keepers.iter().all(|keeper| !keeper.up) && !report.from_file);
        assert!(report.for_people().contains("NONE"), "{}", report.for_people());
    }
}
