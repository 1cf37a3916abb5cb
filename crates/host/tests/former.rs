//! What a node had that is a member of no group any more, and what it knew of and had not applied.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

mod common;

use common::cluster;
use meridian_cluster::Topology;
use meridian_core::{GroupId, MessageId, NodeId, Process};
use meridian_fs::inventory::{Inventory, Partitions};
use meridian_fs::operation::NewNode;
use meridian_fs::{Ino, Kind, Place, Timestamp, Update, Vector};
use meridian_host::replica::{Doubtful, Stage};
use meridian_host::update::Payload;
use meridian_host::{Node, Record, sessions};
use meridian_multicast::message::Entry;
use meridian_multicast::{self as multicast, Epoch, Start};
use std::sync::Arc;

const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);
const US_1: NodeId = NodeId(0);
const EPOCH: Epoch = Epoch { config: 0, number: 1, leader: US_1 };

/// `us-1` is in these groups, and `us-2` and `eu-1` in all.
fn topology(groups: &[&str]) -> Arc<Topology> {
    let all = ["global", "us", "eu"];
    cluster(&[("us-1", groups), ("us-2", &all), ("eu-1", &all)])
}

fn create(name: &'static str) -> Update {
    let node = NewNode::new(Kind::File, 0o644);
    Update::Create { parent: Place::top(US), name: name.into(), node }
}

fn id(dest: &[GroupId], sequence: u64) -> MessageId {
    MessageId { client: sessions::name(7 << 32, dest), sequence }
}

fn start(sequence: u64, update: Update) -> Start {
    let dest: Vec<_> = update.partitions().into_iter().collect();
    let payload = Payload::new(Vector::default(), Timestamp::from_millis(1000 * sequence), update);
    payload.into_start(id(&dest, sequence), sequence, &dest)
}

/// A file is made in `us`, and a name for it in `eu` is delivered and waits for the vote of `eu`.
/// Another file is made, and gets a name in `eu`, which the log only proposes.
fn records() -> (Vec<Record>, [Update; 4]) {
    let link = |sequence, name: &'static str| {
        let target = Place { ino: Ino::made(US, id(&[US], sequence)), partition: US };
        Update::Link { target, parent: Place::top(EU), name: name.into() }
    };
    let updates = [create("file"), link(1, "link"), create("later"), link(3, "second")];
    let starts = (1..).zip(&updates).map(|(at, update)| start(at, update.clone()));
    let starts: Vec<Start> = starts.collect();
    let entry = |(at, start): (u64, &Start)| Entry {
        epoch: EPOCH,
        ts: multicast::Timestamp(at),
        start: start.clone().into(),
        final_ts: None,
    };
    let entries: Arc<[Entry]> = (1..).zip(&starts).map(entry).collect();
    let delivered = (1..).zip(&starts[..2]).map(|(at, start)| multicast::Record::Delivered {
        id: start.id,
        ts: multicast::Timestamp(at),
    });
    let begins = [
        multicast::Record::NewState { epoch: EPOCH, from: 0, entries: Vec::new() },
        multicast::Record::Append { from: 0, entries },
    ];
    let all = begins.into_iter().chain(delivered);
    (all.map(|record| Record::Multicast { group: US, record }).collect(), updates)
}

fn paths(node: &Node) -> Vec<String> {
    let partitions: Partitions<'_> =
        node.replicas().map(|(group, replica)| (group, replica.partition())).collect();
    let found = Inventory::of(&partitions, |_| "us".into());
    found.items.iter().map(|item| String::from_utf8_lossy(&item.path).into_owned()).collect()
}

#[test]
fn what_a_node_had_is_read_when_it_has_left_its_groups() {
    let (records, updates) = records();
    let mut left = Node::new(topology(&[]), US_1);
    records.iter().for_each(|record| left.replay(record.clone()));
    assert_eq!(left.replicas().count(), 0, "a server would not know them");
    records.iter().for_each(|record| left.replay_former(record.clone()));
    assert_eq!(paths(&left), ["/us", "/us/file"]);
    let expected = |at: u64, stage, waits_for: &[GroupId]| {
        let update = updates[at as usize - 1].clone();
        let dest: Vec<_> = update.partitions().into_iter().collect();
        let change = Some((Timestamp::from_millis(1000 * at), update));
        Doubtful { id: id(&dest, at), change, stage, waits_for: waits_for.to_vec() }
    };
    assert_eq!(left.deliver_rest(), [(US, expected(3, Stage::Assumed, &[]))]);
    assert_eq!(paths(&left), ["/us", "/us/file", "/us/later"]);
    let (_, replica) = left.replicas().next().unwrap();
    let told = [expected(2, Stage::Delivered, &[EU]), expected(4, Stage::Proposed, &[US, EU])];
    assert_eq!(replica.doubtful().collect::<Vec<_>>(), told);
    replica.check_invariants();
}

/// A checkpoint says who the members were; nothing of the topology is needed.
#[test]
fn a_former_member_is_read_from_its_checkpoint_as_from_its_log() {
    let (records, _) = records();
    let mut member = Node::new(topology(&["global", "us"]), US_1);
    records.into_iter().for_each(|record| member.replay(record));
    let mut left = Node::new(topology(&[]), US_1);
    member.checkpoint().for_each(|record| left.replay_former(record));
    assert_eq!(paths(&left), ["/", "/us", "/us/file"]);
    for (group, replica) in left.replicas() {
        replica.check_invariants();
        let before = member.replica(group).unwrap();
        assert_eq!(replica.partition(), before.partition());
        assert!(replica.doubtful().eq(before.doubtful()));
    }
}
