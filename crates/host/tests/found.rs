//! What seeds of the simulator found in whole nodes, as the shortest story that shows it. Deliveries come from
//! records, as after a restart, so that no multicast must run; the primary of `us` is the test.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use bytes::Bytes;
use meridian_core::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Position, Process, Stamp, Time,
    Topology,
};
use meridian_fs::operation::NewNode;
use meridian_fs::{
    Answer, FsError, Ino, Kind, Operation, Place, Query, Timestamp, Update, Vector, Vote,
};
use meridian_host::api::{Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_host::replica::{Replica, Waiter, Wish};
use meridian_host::{Command, ConnectionId, Message, Node, Output, Record};
use meridian_multicast::message::Entry;
use meridian_multicast::{self as multicast, Epoch, Start, Touches};
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
    let (rtt_ms, order) = Default::default();
    let file = ClusterFile {
        format: CLUSTER_FORMAT,
        cluster: 1,
        nodes,
        rtt_ms,
        order,
        configuration: Default::default(),
    };
    Arc::new(Topology::new(&file).unwrap())
}

/// The inode that `group` made with the client's message of that number; at 0 its top.
fn place(group: GroupId, sequence: u64) -> Place {
    let ino = if sequence == 0 { Ino::top(group) } else { Ino::made(group, id(sequence)) };
    Place { ino, partition: group }
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
    let touches = Touches::keys(update.keys(id(sequence)));
    let operation = Operation { vector: Vector::default(), time: Timestamp::default(), update };
    let payload = postcard::to_stdvec(&operation).unwrap();
    Start { low: sequence, touches, ..Start::new(id(sequence), dest, payload) }
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
        self.hears_clocks(self.delivered)
    }

    /// The primary, and one more, show that no other message comes up to that timestamp.
    fn hears_clocks(&mut self, clock: u64) -> Vec<ReplyBody> {
        let other = if self.node.me() == US_1 { US_2 } else { US_1 };
        for from in [US_3, other] {
            let (epoch, len, clock) = (EPOCH, self.delivered, multicast::Timestamp(clock));
            let message = multicast::Message::Ack { epoch, len, clock };
            let message = Message::Multicast { from: US, to: US, message };
            self.step(Event::Message { from, message });
        }
        replies(self.step(Event::Idle))
    }

    /// `us` delivers this as its next message.
    fn delivers(&mut self, start: Start) {
        let (id, ts) = (start.id, multicast::Timestamp(self.delivered + 1));
        let entries: Arc<[Entry]> =
            Arc::from([Entry { epoch: EPOCH, ts, start: start.into(), final_ts: None }]);
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
        let vote = Vote { result: Err(FsError::NotFound) };
        let message = Message::Vote { from: EU, to: US, id: id(sequence), vote };
        self.step(Event::Message { from: EU_1, message })
    }

    fn asked(&mut self, body: RequestBody) -> Vec<ReplyBody> {
        let request = Request { id: 1, body };
        let connection = ConnectionId(1);
        replies(self.step(Event::Command(Command::Request { connection, request })))
    }

    fn reads(&mut self, vector: &Vector, parent: Place, name: &'static str) -> Vec<ReplyBody> {
        let query = Query::Lookup { parent, name: name.into() };
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
    assert_eq!(one.applied(), Position(2));
    let told = one.asked(RequestBody::Update { group: US, start: overtakes.clone() });
    let [ReplyBody::Updated { ts, vector, result: Ok(_), .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((*ts, vector.get(US)), (Stamp(3), Stamp(3)));

    let mut other = One::new(US_2);
    other.delivers(directory);
    other.delivers(waits);
    other.starts();
    assert!(other.reads(vector, place(US, 0), "file").is_empty(), "it must wait");
    other.delivers(overtakes);
    let answers = other.hears_clocks(3);
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
    let told = one.reads(&Vector::default(), place(US, 0), "file");
    let [ReplyBody::Answer { vector, result: Ok(_) }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((vector.get(US), one.applied()), (Stamp(3), Position(2)));
}

/// Whoever has seen more than what is decided waits only if it asks for what is not decided.
#[test]
fn a_read_waits_for_what_touches_its_inode_and_no_more() {
    let mut one = One::new(US_1);
    one.delivers(message(1, create(place(US, 0), "d", Kind::Directory)));
    one.starts();
    one.delivers(message(2, link(place(US, 1))));
    one.delivers(message(3, create(place(US, 0), "file", Kind::File)));
    one.hears_clocks(3);
    let mut seen = Vector::default();
    seen.raise(US, Stamp(3));
    assert_eq!(one.reads(&seen, place(US, 0), "file").len(), 1);
    // A listing goes without the attributes of the directory that waits.
    let told = one.reads(&seen, place(US, 0), "d");
    let [ReplyBody::Answer { result: Ok(Answer::Entry { entry, attributes: None }), .. }] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(entry.place, place(US, 1));
    assert!(one.reads(&seen, place(US, 1), "x").is_empty(), "it must wait");
    // Who has seen less needs not wait.
    let mut less = Vector::default();
    less.raise(US, Stamp(1));
    assert_eq!(one.reads(&less, place(US, 1), "x").len(), 1);
    let answers = replies(one.hears_vote(2));
    assert!(matches!(answers[..], [ReplyBody::Answer { result: Err(FsError::NotFound), .. }]));
}

/// What a message touches is what it is ordered by: a client that says less could make replicas differ.
#[test]
fn a_message_that_hides_what_it_touches_changes_nothing() {
    let mut one = One::new(US_1);
    let honest = message(1, create(place(US, 0), "file", Kind::File));
    let keys = |keys: &[u64]| Touches::keys(keys.iter().copied());
    let lies = [Touches::All, keys(&[]), keys(&[place(US, 0).ino.key()])];
    for (sequence, touches) in (2..).zip(lies) {
        let payload = honest.payload.clone();
        one.delivers(Start { touches, ..Start::new(id(sequence), [US], payload) });
    }
    one.delivers(honest);
    one.starts();
    for sequence in 2..5 {
        let start = message(sequence, create(place(US, 0), "file", Kind::File));
        let told = one.asked(RequestBody::Update { group: US, start });
        let refused = Err(FsError::Invalid);
        assert!(matches!(&told[..], [ReplyBody::Updated { result, .. }] if *result == refused));
    }
    assert_eq!(one.reads(&Vector::default(), place(US, 0), "file").len(), 1);
}

/// A later message of a client, which commutes with the one before, was delivered first, and says that the client
/// waits for that one no more: `eu` had answered it. Its vote then came, and seemed too late.
#[test]
fn a_vote_that_comes_before_its_message_and_after_its_end_is_asked_for() {
    let mut one = One::new(US_1);
    one.delivers(message(5, create(place(US, 0), "file", Kind::File)));
    one.starts();
    assert!(one.hears_vote(4).is_empty());
    let start = message(4, link(place(US, 0)));
    let (epoch, from, ts) = (EPOCH, 1, multicast::Timestamp(2));
    let entries: Arc<[Entry]> =
        Arc::from([Entry { epoch, ts, start: start.into(), final_ts: None }]);
    let append = multicast::Message::Append { epoch, from, entries, clock: ts, prompt: true };
    let message = Message::Multicast { from: US, to: US, message: append };
    one.step(Event::Message { from: US_3, message });
    let last = multicast::Message::Final { id: id(4), ts, delivered: true };
    let message = Message::Multicast { from: EU, to: US, message: last };
    one.step(Event::Message { from: EU_1, message });
    let effects = one.step(Event::Idle);
    let asks = |effect: &Effect<Node>| match effect {
        Effect::Send { to, message: Message::VoteWanted { id: of, .. } } => {
            (*to, *of) == (EU_1, id(4))
        }
        _ => false,
    };
    assert!(effects.iter().any(asks), "{effects:?}");
    one.delivered += 1;
    one.hears_vote(4);
    assert_eq!(one.applied(), Position(2));
}

/// The same between two replicas of one node, which nobody asked: seed 126 of three regions of three nodes.
#[test]
fn a_vote_of_our_other_replica_that_seemed_too_late_is_not_lost() {
    let global = GroupId::GLOBAL;
    let mut node = Node::new(topology(), EU_1);
    let epoch = Epoch { config: 0, number: 1, leader: EU_1 };
    for group in [EU, global] {
        let record = multicast::Record::NewState { epoch, from: 0, entries: Vec::new() };
        node.replay(Record::Multicast { group, record });
    }
    let mut delivers = |group, from, start: &Start, ts| {
        let (id, ts) = (start.id, multicast::Timestamp(ts));
        let entries = Arc::from([Entry { epoch, ts, start: start.clone().into(), final_ts: None }]);
        for record in
            [multicast::Record::Append { from, entries }, multicast::Record::Delivered { id, ts }]
        {
            node.replay(Record::Multicast { group, record });
        }
        let replica = node.replica(group).unwrap();
        (replica.partition().delivered(), replica.partition().applied())
    };
    let both = message(4, link(Place::ROOT));
    let later = message(5, create(place(EU, 0), "file", Kind::File));
    assert_eq!(delivers(EU, 0, &later, 2), (Position(1), Position(1)));
    assert_eq!(delivers(global, 0, &both, 3), (Position(1), Position(0)));
    assert_eq!(delivers(EU, 1, &both, 3), (Position(2), Position(2)));
}

/// Who waits for an update that cannot be ordered now is told which group is the reason.
#[test]
fn who_waits_for_a_group_out_of_reach_is_told() {
    let topology = topology();
    let mut replica = Replica::new(&topology, US, US_1);
    let waiter = Waiter { connection: ConnectionId(1), request: 3 };
    let start = message(1, link(place(US, 0)));
    let mut wishes = Vec::new();
    assert!(replica.on_update(waiter, &start, &mut wishes));
    replica.on_refused(start.id, EU, &mut wishes);
    let refused = ReplyBody::Refused(Refusal::OutOfReach(EU));
    assert_eq!(wishes, [Wish::Reply(waiter, refused)]);
}

/// A replica that had restarted answered a client that had seen nothing yet from its log, without what had been
/// acknowledged while it was away.
#[test]
fn reads_wait_until_a_restarted_replica_has_caught_up() {
    let mut one = One::new(US_1);
    one.delivers(message(1, create(place(US, 0), "file", Kind::File)));
    assert!(one.reads(&Vector::default(), place(US, 0), "file").is_empty(), "it must wait");
    let told = one.starts();
    assert!(matches!(told[..], [ReplyBody::Answer { result: Ok(_), .. }]), "{told:?}");
}

/// What was delivered before a replica started and lacks a vote here may have been acknowledged by another replica.
#[test]
fn reads_at_a_restarted_replica_wait_for_what_lacks_a_vote() {
    let mut one = One::new(US_1);
    one.delivers(message(1, create(place(US, 0), "d", Kind::Directory)));
    one.delivers(message(2, link(place(US, 1))));
    one.starts();
    let nothing = Vector::default();
    assert_eq!(one.reads(&nothing, place(US, 0), "x").len(), 1);
    assert!(one.reads(&nothing, place(US, 1), "x").is_empty(), "it must wait");
    let answers = replies(one.hears_vote(2));
    assert!(matches!(answers[..], [ReplyBody::Answer { .. }]), "{answers:?}");
}
