//! How a cluster is, put together from what its nodes say of themselves.

use super::causal::{self, CausalReport};
use super::copies::{self, RegionReport};
use super::links::{self, LinkReport};
use super::lost::{self, LostReport};
use super::mounts::MountReport;
use super::verdict::{Seen, Verdict, of_certificate};
use meridian_client::Client;
use meridian_cluster::Topology;
use meridian_core::{GroupId, NodeId};
use meridian_fs::Holdings;
use meridian_host::api::NodeStatus;
use meridian_host::drain::keep::Report as Copies;
use meridian_transport::{Ends, Security};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a node may take to answer before it counts as not reachable.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// What is told.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether anything is wrong, for people.
    pub sentence: String,
    /// The same, with all that is.
    pub(super) verdict: Verdict,
    pub(super) cluster: u64,
    /// Which order updates have.
    pub(super) order: &'static str,
    pub(super) nodes: Vec<NodeReport>,
    /// How far regions are from each other.
    pub(super) links: Vec<LinkReport>,
    /// How many copies of blocks each region lacks.
    pub(super) regions: Vec<RegionReport>,
    pub(super) groups: Vec<GroupReport>,
    /// Shards of keys at the nodes that are reachable.
    pub(super) keys: Vec<KeysReport>,
    /// How far each region is with the causal keys of each other.
    pub(super) causal: Vec<CausalReport>,
    /// Regions whose causal keys come or go.
    pub(super) moving: Vec<String>,
    /// Where it is mounted on this machine.
    pub(super) mounts: Vec<MountReport>,
    /// Regions that were declared lost.
    pub(super) lost: Vec<LostReport>,
}

/// A node.
#[derive(Debug, Serialize)]
pub(super) struct NodeReport {
    pub(super) node: String,
    pub(super) region: String,
    pub(super) address: String,
    pub(super) reachable: bool,
    /// Why it is not reachable.
    pub(super) error: Option<String>,
    pub(super) pid: Option<u32>,
    pub(super) uptime_ms: Option<u64>,
    pub(super) connected_peers: Option<usize>,
    pub(super) blocks: Option<u64>,
    /// How much of the disk the blocks take, in bytes.
    pub(super) block_disk_bytes: Option<u64>,
    /// So many blocks no file lies in any more that are not freed yet.
    pub(super) to_free: Option<u64>,
    pub(super) block_bytes: Option<u64>,
    /// How many bytes its disk has left.
    pub(super) disk_free_bytes: Option<u64>,
    /// How many it holds in all.
    pub(super) disk_bytes: Option<u64>,
    /// Whether it stores no more blocks, as its disk is full.
    pub(super) full: bool,
    /// Whether it takes nothing at all that needs room.
    pub(super) takes_nothing: bool,
    /// How the copies of blocks are that it should hold.
    pub(super) copies: Option<Copies>,
    /// So many copies that it should hold cannot be had from it.
    pub(super) under_replicated: Option<u64>,
    pub(super) bad_frames: Option<u64>,
    /// Clients of the files that are connected.
    pub(super) clients: Option<u64>,
    /// Until when the certificate counts that it shows, in seconds since 1970: told to who has
    /// called it just now.
    pub(super) certificate_until: Option<u64>,
}

/// A group.
#[derive(Debug, Serialize)]
pub(super) struct GroupReport {
    pub(super) group: String,
    /// How many it has, also those that do not answer.
    pub(super) members: usize,
    /// How many of them answer.
    pub(super) answering: usize,
    /// The greatest epoch that a member follows.
    pub(super) epoch: Option<u64>,
    /// Who leads it, if it says itself that it does.
    pub(super) primary: Option<String>,
    /// The foremost position delivered.
    pub(super) delivered: u64,
    /// How much is placed in its tree, and what clients hold of it, as the foremost member says.
    pub(super) holdings: Option<Holdings>,
    /// What the foremost member cannot show yet, and why.
    pub(super) held_up: Option<HeldUpReport>,
    pub(super) replicas: Vec<ReplicaReport>,
}

/// What waits first, and for whom.
#[derive(Debug, Serialize)]
pub(super) struct HeldUpReport {
    /// Its name, for `meridian timeline`.
    pub(super) message: String,
    /// `votes`, `timestamps`, or `its turn`.
    pub(super) waits_for: &'static str,
    /// Of these groups.
    pub(super) by: Vec<String>,
}

/// A member of a group that is reachable.
#[derive(Debug, Serialize)]
pub(super) struct ReplicaReport {
    pub(super) node: String,
    pub(super) role: String,
    pub(super) epoch: u64,
    pub(super) delivered: u64,
    pub(super) applied: u64,
    pub(super) lag: u64,
    pub(super) pending: u64,
    pub(super) head_age_ms: u64,
    pub(super) state_hash: String,
}

/// A shard of a region's keys at a node.
#[derive(Debug, Serialize)]
pub(super) struct KeysReport {
    pub(super) region: String,
    pub(super) shard: usize,
    /// Whether it has the keys of all regions.
    pub(super) causal: bool,
    pub(super) node: String,
    pub(super) epoch: u64,
    pub(super) live: Vec<String>,
    pub(super) shadows: Vec<String>,
    /// Who grants leases.
    pub(super) voters: Vec<String>,
    /// How long its lease lasts, unless it is renewed; 0: it does not serve now.
    pub(super) serves_ms: u64,
    pub(super) clients: u64,
    pub(super) keys: u64,
    pub(super) bytes: u64,
    /// `memory` or `disk`.
    pub(super) kept_in: &'static str,
}

/// Asks all nodes at once.
pub async fn ask_all(client: &Client, topology: &Topology) -> Report {
    Report::new(topology, &answers(client, topology).await)
}

/// How a node says that it is, or why it does not.
pub type Answered = Result<NodeStatus, String>;

/// What the nodes answer that were not removed, and are not lost.
pub async fn answers(client: &Client, topology: &Topology) -> BTreeMap<NodeId, Answered> {
    let mut asked = Vec::new();
    for node in topology.present().filter(|node| !topology.is_lost(*node)) {
        let client = client.clone();
        let ask = async move { client.status(node, PATIENCE).await.map_err(|e| e.to_string()) };
        asked.push((node, tokio::spawn(ask)));
    }
    let mut answers = BTreeMap::new();
    for (node, answer) in asked {
        answers.insert(node, answer.await.unwrap_or_else(|error| Err(error.to_string())));
    }
    answers
}

impl NodeReport {
    /// How it is, if it is reachable.
    pub(super) fn state(&self) -> &'static str {
        let lacks_copies = self.copies.is_some_and(|copies| {
            copies.lacks_room && copies.missing + copies.damaged > copies.unfound
        });
        match (self.full, self.takes_nothing) {
            (false, false) if lacks_copies => "yes, but NO ROOM for copies that it should hold",
            (false, false) => "yes",
            (true, false) => "yes, but FULL: stores no more blocks",
            (_, true) => "yes, but FULL: takes nothing that needs room",
        }
    }
}

impl Report {
    /// Says for how long what is wrong has been so, as far as that is known.
    pub fn see(&mut self, seen: &mut Seen) {
        seen.note(&self.verdict.findings);
        self.sentence = self.verdict.sentence(seen);
    }

    pub(super) fn new(topology: &Topology, answers: &BTreeMap<NodeId, Answered>) -> Report {
        let nodes = answers.iter().map(|(id, answer)| {
            let node = topology.node(*id);
            let status = answer.as_ref().ok();
            NodeReport {
                node: node.name.clone(),
                region: topology.regions[usize::from(node.region.0)].name.clone(),
                address: node.address.clone(),
                reachable: status.is_some(),
                error: answer.as_ref().err().cloned(),
                pid: status.map(|s| s.pid),
                uptime_ms: status.map(|s| s.uptime_ms),
                connected_peers: status.map(|s| s.connected.len()),
                blocks: status.map(|s| s.blocks.0),
                block_bytes: status.map(|s| s.blocks.1),
                block_disk_bytes: status.map(|s| s.block_disk_bytes),
                to_free: status.map(|s| s.to_free),
                disk_free_bytes: status.and_then(|s| s.room).map(|room| room.free),
                disk_bytes: status.and_then(|s| s.room).map(|room| room.total),
                full: status.and_then(|s| s.room).is_some_and(|room| room.writable == 0),
                takes_nothing: status.is_some_and(|s| s.full),
                copies: status.map(|s| s.copies),
                under_replicated: copies::of_node(topology, answers, *id),
                bad_frames: status.map(|s| s.bad_frames),
                clients: status.map(|s| s.clients),
                certificate_until: None,
            }
        });
        let begun = topology.group_ids().filter(|group| topology.has_begun(*group));
        let groups = begun.map(|group| group_report(topology, group, answers));
        let (nodes, groups): (Vec<_>, Vec<_>) = (nodes.collect(), groups.collect());
        // A node without such keys says nothing of them, and nobody waits for that.
        let mut told = answers.values().filter_map(|answer| answer.as_ref().ok());
        let has_causal = told.any(|status| status.keys.iter().any(|shard| shard.causal));
        Report {
            sentence: String::new(),
            verdict: Verdict::new(&nodes, &groups, lost::findings(topology, answers)),
            cluster: topology.cluster,
            order: topology.order.name(),
            nodes,
            links: links::reports(topology, answers),
            regions: copies::reports(topology, answers),
            groups,
            keys: keys_reports(topology, answers),
            causal: causal::reports(topology, answers),
            moving: if has_causal { topology.key_moves() } else { Vec::new() },
            mounts: Vec::new(),
            lost: lost::reports(topology),
        }
    }

    /// Until when the certificates count that the nodes have shown to this client, which has just
    /// called them, and that of the one who asks and its authority; `now` is in seconds since 1970.
    pub(super) fn certify(&mut self, client: &Client, security: &Security, now: u64) {
        let topology = client.topology();
        for node in &mut self.nodes {
            let id = topology.node_named(&node.node);
            node.certificate_until = id.and_then(|id| client.shown_until(id));
        }
        let Ends { own, authority } = security.ends();
        let nodes = self.nodes.iter().map(|node| (node.node.clone(), node.certificate_until));
        let here =
            [("the cluster's authority".into(), authority), (security.own().to_string(), own)];
        let found = nodes.chain(here).filter_map(|(at, until)| of_certificate(&at, until?, now));
        self.verdict.add(found.collect());
    }

    /// Whether each group has a primary.
    pub fn all_led(&self) -> bool {
        self.groups.iter().all(|group| group.primary.is_some())
    }

    /// The groups that have none, for people.
    pub fn not_led(&self) -> String {
        let names = self.groups.iter().filter(|group| group.primary.is_none());
        names.map(|group| group.group.as_str()).collect::<Vec<_>>().join(", ")
    }
}

fn keys_reports(topology: &Topology, answers: &BTreeMap<NodeId, Answered>) -> Vec<KeysReport> {
    let name = |id: &NodeId| {
        topology.nodes.get(usize::from(id.0)).map_or_else(|| id.to_string(), |n| n.name.clone())
    };
    let names = |ids: &BTreeSet<NodeId>| ids.iter().map(name).collect::<Vec<_>>();
    let mut reports = Vec::new();
    for (id, answer) in answers {
        let node = topology.node(*id);
        let region = &topology.regions[usize::from(node.region.0)].name;
        let shards = answer.iter().flat_map(|status| status.keys.iter().enumerate());
        reports.extend(shards.map(|(shard, status)| KeysReport {
            region: region.clone(),
            shard,
            causal: status.causal,
            node: node.name.clone(),
            epoch: status.epoch,
            live: names(&status.live),
            shadows: names(&status.shadows),
            voters: names(&status.voters),
            serves_ms: status.serves_ms,
            clients: status.clients,
            keys: status.keys,
            bytes: status.bytes,
            kept_in: if status.on_disk { "disk" } else { "memory" },
        }));
    }
    // All replicas of a shard stand together.
    reports.sort_by(|a, b| (&a.region, a.shard).cmp(&(&b.region, b.shard)));
    reports
}

fn group_report(
    topology: &Topology,
    group: GroupId,
    answers: &BTreeMap<NodeId, Answered>,
) -> GroupReport {
    let answered: Vec<_> = topology
        .group(group)
        .involved()
        .filter_map(|node| {
            let status = answers.get(&node)?.as_ref().ok()?;
            Some((node, status.replicas.iter().find(|replica| replica.group == group)?))
        })
        .collect();
    let members = &topology.group(group).members;
    let delivered = answered.iter().map(|(_, replica)| replica.delivered.0).max().unwrap_or(0);
    let primaries = answered.iter().filter(|(_, replica)| replica.role == "primary");
    // While epochs change an old primary may not know yet: the one of the greatest epoch leads.
    let primary = primaries.max_by_key(|(_, replica)| replica.epoch.number);
    let foremost = answered.iter().max_by_key(|(_, replica)| replica.applied);
    let held_up = foremost.and_then(|(_, replica)| replica.held_up.as_ref());
    let held_up = held_up.map(|held_up| HeldUpReport {
        message: held_up.message.to_string(),
        waits_for: match (held_up.votes, held_up.by.is_empty()) {
            (true, _) => "votes",
            (false, false) => "timestamps",
            (false, true) => "its turn",
        },
        by: held_up.by.iter().map(|group| topology.group_name(*group)).collect(),
    });
    let replicas = answered.iter().map(|(node, replica)| ReplicaReport {
        node: topology.node(*node).name.clone(),
        role: replica.role.clone(),
        epoch: replica.epoch.number,
        delivered: replica.delivered.0,
        applied: replica.applied.0,
        lag: delivered - replica.delivered.0,
        pending: replica.pending,
        head_age_ms: replica.head_age_ms,
        state_hash: format!("{:016x}", replica.state_hash),
    });
    GroupReport {
        group: topology.group(group).name.clone(),
        members: members.len(),
        answering: answered.iter().filter(|(node, _)| members.contains(node)).count(),
        epoch: answered.iter().map(|(_, replica)| replica.epoch.number).max(),
        primary: primary.map(|(node, _)| topology.node(*node).name.clone()),
        delivered,
        holdings: foremost.map(|(_, replica)| replica.holdings),
        held_up,
        replicas: replicas.collect(),
    }
}
