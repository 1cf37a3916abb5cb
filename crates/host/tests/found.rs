//! What seeds of the simulator found in whole nodes, as the shortest story that shows it. Deliveries come from
//! records, as after a restart, so that no multicast must run; the primary of `us` is the test.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use bytes::Bytes;
use meridian_core::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Position, Process, Time, Topology,
};
use meridian_fs::operation::NewNode;
use meridian_fs::{
    Answer, FsError, Ino, Kind, Operation, Place, Query, Timestamp, Update, Vector, Vote,
};
use meridian_host::api::{Reply, ReplyBody, Request, RequestBody};
use meridian_host::{Command, ConnectionId, Message, Node, Output, Record};
use meridian_multicast::message::Entry;
use meridian_multicast::{self as multicast, Epoch, Start};
use std::sync::Arc;

const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);
const US_1: NodeId = NodeId(0);
const US_2: NodeId = NodeId(1);
const US_3: NodeId = NodeId(2);
const EU_1: NodeId = NodeId(3);
/// The epoch that all in `us` are in.
const EPOCH: Epoch = Epoch { config: 0, number: 1, leader: US_3 };
const CLIENT: ClientId = ClientId(7);

/// Three nodes in `us`, one in `eu`, which also has `global`.
fn topology() -> Arc<Topology> {
    let entry = |name: &str, groups: &[&str]| NodeEntry {
        name: name.into(),
        region: name[..2].into(),
        pid: None,
        address: "127.0.0.1:1".into(),
        groups: groups.iter().map(|group| (*group).into()).collect(),
    };
    let mut nodes = ["us-1", "us-2", "us-3"].map(|name| entry(name, &["us"])).to_vec();
    nodes.push(entry("eu-1", &["eu", "global"]));
    let rtt_ms = Default::default();
    Arc::new(
        Topology::new(&ClusterFile { format: CLUSTER_FORMAT, cluster: 1, nodes, rtt_ms }).unwrap(),
    )
}

/// The inode that `group` made at `position`; at 0 its top.
fn place(group: GroupId, position: u64) -> Place {
    Place { ino: Ino::made(group, Position(position)), partition: group }
}

fn create(parent: Place, name: &'static str, kind: Kind) -> Update {
    let node = NewNode { kind, mode: 0o755, uid: 0, gid: 0, rdev: 0, target: Bytes::new() };
    Update::Create { parent, name: name.into(), node }
}

/// What waits for a vote of `eu`: a name in the directory `parent` for a file that lives there.
fn link(parent: Place) -> Update {
    Update::Link { target: place(EU, 1), parent, name: "link".into() }
}

fn id(sequence: u64) -> MessageId {
    MessageId { client: CLIENT, sequence }
}

/// The client's message with that number, which says that it waits for nothing before it.
fn message(sequence: u64, update: Update) -> Start {
    let dest: Vec<_> = update.partitions().into_iter().collect();
    let operation = Operation { vector: Vector::default(), time: Timestamp::default(), update };
    let payload = postcard::to_stdvec(&operation).unwrap();
    Start { low: sequence, ..Start::new(id(sequence), dest, payload) }
}

struct One {
    node: Node,
    /// How many messages `us` has delivered here.
    delivered: u64,
}

impl One {
    fn new(me: NodeId) -> One {
        let mut node = Node::new(topology(), me);
        let record = multicast::Record::NewState { epoch: EPOCH, from: 0, entries: Vec::new() };
        node.replay(Record::Multicast { group: US, record });
        One { node, delivered: 0 }
    }

    /// It has started, and hears that there is no more than what it has: so it answers reads.
    fn starts(&mut self) -> Vec<ReplyBody> {
        self.step(Event::Started);
        let (epoch, len, clock) = (EPOCH, self.delivered, multicast::Timestamp(0));
        let message = multicast::Message::Ack { epoch, len, clock };
        let message = Message::Multicast { from: US, to: US, message };
        self.step(Event::Message { from: US_3, message });
        replies(self.step(Event::Idle))
    }

    /// `us` delivers this as its next message.
    fn delivers(&mut self, start: Start) {
        let (id, ts) = (start.id, multicast::Timestamp(self.delivered + 1));
        let entries = vec![Entry { epoch: EPOCH, ts, start, final_ts: None }];
        let append = multicast::Record::Append { from: self.delivered, entries };
        for record in [append, multicast::Record::Delivered { id, ts }] {
            self.node.replay(Record::Multicast { group: US, record });
        }
        self.delivered += 1;
        self.node.check_invariants();
    }

    fn step(&mut self, event: Event<Node>) -> Vec<Effect<Node>> {
        let mut out = Outbox::new();
        self.node.step(Time(0), event, &mut out);
        self.node.check_invariants();
        out.drain().collect()
    }

    /// A vote of `eu` arrives.
    fn hears_vote(&mut self, sequence: u64) -> Vec<Effect<Node>> {
        let vote = Vote { position: Position(1), result: Err(FsError::NotFound) };
        let message = Message::Vote { from: EU, to: US, id: id(sequence), vote };
        self.step(Event::Message { from: EU_1, message })
    }

    fn asked(&mut self, body: RequestBody) -> Vec<ReplyBody> {
        let request = Request { id: 1, body };
        let connection = ConnectionId(1);
        replies(self.step(Event::Command(Command::Request { connection, request })))
    }

    fn reads(&mut self, vector: &Vector, name: &'static str) -> Vec<ReplyBody> {
        let query = Query::Lookup { parent: place(US, 0), name: name.into() };
        self.asked(RequestBody::Read { vector: vector.clone(), query })
    }

    fn applied(&self) -> Position {
        self.node.replica(US).unwrap().partition().applied()
    }
}

fn replies(effects: Vec<Effect<Node>>) -> Vec<ReplyBody> {
    let reply = |effect| match effect {
        Effect::Output(Output::Reply { reply: Reply { body, .. }, .. }) => Some(body),
        _ => None,
    };
    effects.into_iter().filter_map(reply).collect()
}

/// The other partition had answered a client, which then said that it waits for that message no more. The vote
/// that came after this was dropped as too late, though the message waited for it still: for ever, and all
/// behind it.
#[test]
fn a_vote_is_not_too_late_because_its_client_waits_no_more() {
    let mut one = One::new(US_1);
    one.delivers(message(1, link(place(US, 0))));
    one.delivers(message(2, create(place(US, 0), "file", Kind::File)));
    assert_eq!(one.applied(), Position(0));
    let effects = one.hears_vote(1);
    assert!(matches!(effects[..], [Effect::Note(Record::Vote { .. })]), "{effects:?}");
    assert_eq!(one.applied(), Position(2));
    // Now it is too late.
    assert!(one.hears_vote(1).is_empty());
}

/// An update overtook one that waited for a vote and was acknowledged, but the vector told only what was applied
/// without a gap. A replica that was not as far then answered the client from before its own update.
#[test]
fn an_update_that_overtook_another_is_in_the_vector_of_its_reply() {
    let directory = message(1, create(place(US, 0), "d", Kind::Directory));
    let waits = message(2, link(place(US, 1)));
    let overtakes = message(3, create(place(US, 0), "file", Kind::File));
    let mut one = One::new(US_1);
    for start in [&directory, &waits, &overtakes] {
        one.delivers(start.clone());
    }
    one.starts();
    assert_eq!(one.applied(), Position(1));
    let told = one.asked(RequestBody::Update { group: US, start: overtakes.clone() });
    let [ReplyBody::Updated { vector, result: Ok(_), .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(vector.get(US), Position(3));

    let mut other = One::new(US_2);
    other.delivers(directory);
    other.delivers(waits);
    other.starts();
    assert_eq!(other.applied(), one.applied());
    assert!(other.reads(vector, "file").is_empty(), "it must wait");
    other.delivers(overtakes);
    let answers = replies(other.hears_vote(2));
    let found = |body: &ReplyBody| {
        matches!(body, ReplyBody::Answer { result: Ok(Answer::Entry { .. }), .. })
    };
    assert!(answers.len() == 1 && found(&answers[0]), "{answers:?}");
}

/// The same for who only read: what one replica showed must not vanish at another.
#[test]
fn what_a_read_saw_beyond_a_gap_is_in_its_vector() {
    let mut one = One::new(US_1);
    one.delivers(message(1, create(place(US, 0), "d", Kind::Directory)));
    one.delivers(message(2, link(place(US, 1))));
    one.delivers(message(3, create(place(US, 0), "file", Kind::File)));
    one.starts();
    let told = one.reads(&Vector::default(), "file");
    let [ReplyBody::Answer { vector, result: Ok(_) }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((vector.get(US), one.applied()), (Position(3), Position(1)));
}

/// A replica that had restarted answered a client that had seen nothing yet from its log, without what had been
/// acknowledged while it was away.
#[test]
fn reads_wait_until_a_restarted_replica_has_caught_up() {
    let mut one = One::new(US_1);
    one.delivers(message(1, create(place(US, 0), "file", Kind::File)));
    assert!(one.reads(&Vector::default(), "file").is_empty(), "it must wait");
    let told = one.starts();
    assert!(matches!(told[..], [ReplyBody::Answer { result: Ok(_), .. }]), "{told:?}");
}
