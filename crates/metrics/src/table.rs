//! Which values a server tells, and where each comes from. `docs/metrics.md` has the same table.

use crate::Told;
use meridian_host::api::{KeysStatus, ReplicaStatus};
use meridian_transport::Ends;
use std::time::Duration;

/// How a value behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only grows, from each start of the process on.
    Counter,
    /// How often something took how long: all only grow.
    Histogram,
}

impl Kind {
    /// Its name in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        }
    }
}

/// A value, with what its labels are.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// As many as the metric has labels.
    pub labels: Vec<String>,
    /// In the unit that the metric's name ends with.
    pub value: f64,
}

/// What there is to say of a kind of value.
#[derive(Debug)]
pub struct Head {
    /// As it is served. It ends with the unit, and that of a counter with `_total`.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// By what its values differ.
    pub labels: &'static [&'static str],
    /// What it is, in a sentence without its full stop.
    pub help: &'static str,
}

/// A kind of value of a server.
#[derive(Debug)]
pub struct Metric {
    /// What it is.
    pub head: Head,
    /// Its values now.
    pub read: fn(&Told<'_>) -> Vec<Sample>,
}

/// Whether the node has answered: the one value that is told also if it has not.
pub const UP: &str = "meridian_up";

/// One value without labels.
fn one(value: f64) -> Vec<Sample> {
    vec![Sample { labels: Vec::new(), value }]
}

/// Counts are far from 2^53, and ages far from 2^53 milliseconds.
#[allow(clippy::cast_precision_loss)]
fn number(count: u64) -> f64 {
    count as f64
}

fn count(count: u64) -> Vec<Sample> {
    one(number(count))
}

fn seconds(ms: u64) -> f64 {
    number(ms) / 1e3
}

fn yes(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// One value for each group that the node has a replica of.
fn groups(told: &Told<'_>, read: impl Fn(&ReplicaStatus) -> f64) -> Vec<Sample> {
    let sample = |replica: &ReplicaStatus| Sample {
        labels: vec![told.topology.group_name(replica.group)],
        value: read(replica),
    };
    told.status.replicas.iter().map(sample).collect()
}

/// One value for each shard of keys.
fn shards(told: &Told<'_>, read: impl Fn(&KeysStatus) -> f64) -> Vec<Sample> {
    let sample = |(number, shard): (usize, &KeysStatus)| Sample {
        labels: vec![if shard.causal { "causal".into() } else { number.to_string() }],
        value: read(shard),
    };
    told.status.keys.iter().enumerate().map(sample).collect()
}

/// One value for each other region, of its causal keys.
fn causal(told: &Told<'_>, read: impl Fn(&meridian_host::api::CausalFrom) -> f64) -> Vec<Sample> {
    let from = told.status.causal.iter().flat_map(|causal| &causal.from);
    from.map(|from| Sample { labels: vec![region_of(told, from.of)], value: read(from) }).collect()
}

fn region_of(told: &Told<'_>, node: meridian_core::NodeId) -> String {
    let node = told.topology.nodes.get(usize::from(node.0));
    let region = node.and_then(|node| told.topology.regions.get(usize::from(node.region.0)));
    region.map_or_else(String::new, |region| region.name.clone())
}

fn peers(told: &Told<'_>) -> Vec<Sample> {
    let others = told.topology.present().filter(|id| *id != told.status.node);
    let sample = |id| Sample {
        labels: vec![told.topology.node(id).name.clone(), region_of(told, id)],
        value: yes(told.status.connected.contains(&id)),
    };
    others.map(sample).collect()
}

fn round_trips(told: &Told<'_>) -> Vec<Sample> {
    let there = |id: &meridian_core::NodeId| told.topology.present().any(|node| node == *id);
    let known = told.status.round_trips_us.iter().filter(|(id, _)| there(id));
    let sample = |(id, us): &(_, u64)| Sample {
        labels: vec![told.topology.node(*id).name.clone(), region_of(told, *id)],
        value: Duration::from_micros(*us).as_secs_f64(),
    };
    known.map(sample).collect()
}

const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: fn(&Told<'_>) -> Vec<Sample>,
) -> Metric {
    Metric { head: Head { name, kind: Kind::Gauge, labels, help }, read }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: fn(&Told<'_>) -> Vec<Sample>,
) -> Metric {
    Metric { head: Head { name, kind: Kind::Counter, labels, help }, read }
}

/// Until when certificates count, by whose they are.
pub(crate) fn ends(ends: Ends) -> impl Iterator<Item = (&'static str, f64)> {
    let all = [("own", ends.own), ("authority", ends.authority)];
    all.into_iter().filter_map(|(of, until)| Some((of, number(until?))))
}

fn certificates(told: &Told<'_>) -> Vec<Sample> {
    let one = |(of, value): (&str, f64)| Sample { labels: vec![of.into()], value };
    ends(told.ends).map(one).collect()
}

/// What is told of [`ends`], by servers and mounts.
pub(crate) const ENDS: Head = Head {
    name: "meridian_certificate_ends_timestamp_seconds",
    kind: Kind::Gauge,
    labels: &["of"],
    help: "When the certificate ends that is shown (`own`), and that of the authority which \
           signed it (`authority`), in seconds since 1970; not told under plain text",
};

/// All values of a server.
pub const METRICS: &[Metric] = &[
    gauge(
        UP,
        &[],
        "1 if the node has answered within the last seconds, else 0 and nothing but this \
        is told",
        |_| one(1.0),
    ),
    gauge(
        "meridian_node_info",
        &["node", "region", "version"],
        "1; the labels name the node",
        info,
    ),
    gauge(
        "meridian_serving",
        &[],
        "1 if all groups of the node have a primary that it is or \
        follows",
        |told| one(yes(told.serves())),
    ),
    gauge("meridian_uptime_seconds", &[], "How long the server has run", |told| {
        one(seconds(told.status.uptime_ms))
    }),
    gauge(
        "meridian_configuration_version",
        &[],
        "The version of the cluster's configuration that \
        the node follows",
        |told| count(told.status.configured),
    ),
    gauge(
        "meridian_configuration_leader",
        &[],
        "1 at the node that leads those who keep the \
        configuration",
        |told| one(yes(told.status.keeper.as_ref().is_some_and(|keeper| keeper.leads))),
    ),
    gauge(
        "meridian_peer_connected",
        &["peer", "region"],
        "1 if there is a connection to that node",
        peers,
    ),
    gauge(
        "meridian_peer_round_trip_seconds",
        &["peer", "region"],
        "How long a packet takes to that node and back, in the mean",
        round_trips,
    ),
    gauge(
        "meridian_log_flush_seconds",
        &[],
        "How long a flush of the log takes, the median of the last",
        |told| {
            let flush = told.status.flush_us.map(Duration::from_micros);
            flush.map_or_else(Vec::new, |took| one(took.as_secs_f64()))
        },
    ),
    counter(
        "meridian_bad_frames_total",
        &[],
        "Connections closed for bytes that were not frames",
        |told| count(told.status.bad_frames),
    ),
    counter(
        "meridian_unauthorized_connections_total",
        &[],
        "Connections refused for who was at their other end: no certificate of the cluster, or \
        one that does not allow what was said",
        |told| count(told.status.unauthorized),
    ),
    Metric { head: ENDS, read: certificates },
    gauge("meridian_group_primary", &["group"], "1 if the node is the group's primary", |told| {
        groups(told, |replica| yes(replica.role == "primary"))
    }),
    gauge(
        "meridian_group_led",
        &["group"],
        "1 if the node is the group's primary or follows it",
        |told| groups(told, |replica| yes(["primary", "follower"].contains(&&*replica.role))),
    ),
    gauge(
        "meridian_group_epoch",
        &["group"],
        "The epoch that the replica is in: it grows with each \
        change of the primary",
        |told| groups(told, |replica| number(replica.epoch.number)),
    ),
    gauge(
        "meridian_group_delivered",
        &["group"],
        "Messages that the replica has delivered in all, \
        also before its start",
        |told| groups(told, |replica| number(replica.delivered.0)),
    ),
    gauge("meridian_group_applied", &["group"], "How many of them are applied", |told| {
        groups(told, |replica| number(replica.applied.0))
    }),
    gauge(
        "meridian_group_pending",
        &["group"],
        "Messages proposed here and not yet delivered",
        |told| groups(told, |replica| number(replica.pending)),
    ),
    gauge(
        "meridian_group_oldest_pending_seconds",
        &["group"],
        "How long the first of those has \
        waited",
        |told| groups(told, |replica| seconds(replica.head_age_ms)),
    ),
    gauge("meridian_blocks", &[], "Blocks that the node holds", |told| count(told.status.blocks.0)),
    gauge("meridian_block_bytes", &[], "What is in them", |told| count(told.status.blocks.1)),
    gauge("meridian_block_disk_bytes", &[], "What they take on the disk", |told| {
        count(told.status.block_disk_bytes)
    }),
    gauge(
        "meridian_blocks_to_free",
        &[],
        "Blocks of no file any more that are not freed yet",
        |told| count(told.status.to_free),
    ),
    gauge(
        "meridian_blocks_missing",
        &[],
        "Blocks that the node should hold and does not",
        |told| count(told.status.copies.missing),
    ),
    gauge("meridian_blocks_damaged", &[], "Blocks on its disk that cannot be read", |told| {
        count(told.status.copies.damaged)
    }),
    gauge(
        "meridian_blocks_copying",
        &[],
        "Blocks that are being copied from other nodes",
        |told| count(told.status.copies.copying),
    ),
    gauge("meridian_blocks_unfound", &[], "Blocks that no other node could give", |told| {
        count(told.status.copies.unfound)
    }),
    counter(
        "meridian_blocks_repaired_total",
        &[],
        "Blocks that were got from other nodes",
        |told| count(told.status.copies.repaired),
    ),
    gauge("meridian_disk_free_bytes", &[], "What the node's disk has left", |told| {
        told.status.room.iter().flat_map(|room| count(room.free)).collect()
    }),
    gauge("meridian_disk_bytes", &[], "What the node's disk holds in all", |told| {
        told.status.room.iter().flat_map(|room| count(room.total)).collect()
    }),
    gauge(
        "meridian_disk_full",
        &[],
        "1 if the node stores no more blocks, as its disk is full",
        |told| one(yes(told.status.room.is_some_and(|room| room.writable == 0))),
    ),
    gauge(
        "meridian_refuses_updates",
        &[],
        "1 if the disk is so full that the node takes no updates \
        that need room",
        |told| one(yes(told.status.full)),
    ),
    gauge("meridian_keys", &["shard"], "Keys that have a value", |told| {
        shards(told, |shard| number(shard.keys))
    }),
    gauge("meridian_keys_bytes", &["shard"], "What all keys and values take", |told| {
        shards(told, |shard| number(shard.bytes))
    }),
    gauge("meridian_keys_clients", &["shard"], "Connections of clients of keys", |told| {
        shards(told, |shard| number(shard.clients))
    }),
    gauge(
        "meridian_keys_epoch",
        &["shard"],
        "The membership of the shard: it grows with each \
        change",
        |told| shards(told, |shard| number(shard.epoch)),
    ),
    gauge("meridian_keys_live", &["shard"], "How many nodes serve the shard", |told| {
        shards(told, |shard| number(shard.live.len() as u64))
    }),
    gauge(
        "meridian_keys_lease_seconds",
        &["shard"],
        "For how long the node serves unless its lease \
        is renewed; 0 while it dozes or does not serve",
        |told| shards(told, |shard| seconds(shard.serves_ms)),
    ),
    gauge(
        "meridian_causal_lag_seconds",
        &["from"],
        "For how long what that region has made may not \
        be here",
        |told| causal(told, |from| seconds(from.lag_ms)),
    ),
    gauge("meridian_causal_queue", &["from"], "Updates of that region that wait here", |told| {
        causal(told, |from| number(from.queue))
    }),
    gauge(
        "meridian_causal_outstanding",
        &[],
        "Updates made here that some other region may lack",
        |told| told.status.causal.iter().flat_map(|causal| count(causal.outstanding)).collect(),
    ),
];

fn info(told: &Told<'_>) -> Vec<Sample> {
    let node = told.topology.nodes.get(usize::from(told.status.node.0));
    let name = node.map_or_else(String::new, |node| node.name.clone());
    let region = region_of(told, told.status.node);
    let labels = vec![name, region, env!("CARGO_PKG_VERSION").into()];
    vec![Sample { labels, value: 1.0 }]
}
