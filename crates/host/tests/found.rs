//! What seeds of the simulator found in whole nodes, as the shortest story that shows it.
//! Deliveries come from records, as after a restart, so that no multicast must run; the primary of
//! `us` is the test.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

mod common;

use common::cluster;
use meridian_cluster::Topology;
use meridian_cluster::grants::{Below, Grant};
use meridian_core::{
    BlockId, ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Position, Process, Stamp,
    Time,
};
use meridian_fs::operation::{NewNode, Piece, WriteAt};
use meridian_fs::types::{Data, Extent};
use meridian_fs::{
    Answer, CapStep, FsError, Ino, Kind, Place, Query, Rights, Timestamp, Update, Vector, Vote,
};
use meridian_host::api::{ALONG_MAX, Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_host::replica::{Looks, Replica, Waiter, Wish};
use meridian_host::sessions;
use meridian_host::update::{NOBODY, Payload};
use meridian_host::{Command, ConnectionId, Message, Node, Output, Record, Timer};
use meridian_multicast::message::{Append, Entry};
use meridian_multicast::{self as multicast, Delivery, Epoch, Start, Touches};
use std::sync::Arc;

const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);
const US_1: NodeId = NodeId(0);
const US_2: NodeId = NodeId(1);
const US_3: NodeId = NodeId(2);
const EU_1: NodeId = NodeId(3);
/// The epoch that all in `us` are in.
const EPOCH: Epoch = Epoch { config: 0, number: 1, leader: US_3 };
/// Drawn by the client for its sessions.
const RANDOM: u64 = 7 << 32;

/// Three nodes in `us`, one in `eu`, which also has `global`.
fn topology() -> Arc<Topology> {
    let us = ["us"];
    cluster(&[("us-1", &us), ("us-2", &us), ("us-3", &us), ("eu-1", &["eu", "global"])])
}

/// The inode that `group` made with the client's message of that number; at 0 its top.
fn place(group: GroupId, sequence: u64) -> Place {
    let made = || Ino::made(group, id_to(&[group], sequence));
    let ino = if sequence == 0 { Ino::top(group) } else { made() };
    Place { ino, partition: group }
}

fn create(parent: Place, name: &'static str, kind: Kind) -> Update {
    let node = NewNode::new(kind, 0o755);
    Update::Create { parent, name: name.into(), node }
}

/// What waits for a vote of `eu`: a name in the directory `parent` for a file that lives there.
fn link(parent: Place) -> Update {
    Update::Link { target: place(EU, 1), parent, name: "link".into() }
}

/// The client's message of that number to these groups.
fn id_to(dest: &[GroupId], sequence: u64) -> MessageId {
    MessageId { client: sessions::name(RANDOM, dest), sequence }
}

/// The same to both regions.
fn id(sequence: u64) -> MessageId {
    id_to(&[US, EU], sequence)
}

/// Messages of so many other clients as make a shard of sessions forget the first of them.
fn forgets(dest: &[GroupId]) -> impl Iterator<Item = Start> {
    (0..=sessions::SHARD_MAX / 2).map(move |number| {
        let client = sessions::successor((number + 100) << 32, sessions::name(RANDOM, dest));
        let payload = only_cancels(seen(number), Vec::new());
        payload.into_start(MessageId { client, sequence: 1 }, 1, dest)
    })
}

/// The vector of a client that has seen so many messages of each group.
fn seen(count: u64) -> Vector {
    let mut vector = Vector::default();
    [GroupId::GLOBAL, US, EU].into_iter().for_each(|group| vector.raise(group, Stamp(count)));
    vector
}

/// The client's message with that number, which says that it waits for nothing before it.
fn message(sequence: u64, update: Update) -> Start {
    message_of(sequence, Vector::default(), update)
}

/// The same of a client that has seen this.
fn message_of(sequence: u64, vector: Vector, update: Update) -> Start {
    let dest: Vec<_> = update.partitions().into_iter().collect();
    let payload = Payload::new(vector, Timestamp::default(), update);
    payload.into_start(id_to(&dest, sequence), sequence, &dest)
}

/// What does nothing but cancel these, of a client that has seen that.
fn only_cancels(vector: Vector, cancels: Vec<MessageId>) -> Payload {
    Payload { vector, cancels, change: None, by: NOBODY, keeps: false, rights: None }
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
            let message = multicast::message::Ack { epoch, len, clock }.into();
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

    /// The timer of `us` is due.
    fn ticks(&mut self, now: Time) {
        let mut out = Outbox::new();
        self.node.step(now, Event::Timer(Timer::Multicast(US, multicast::Timer::Tick)), &mut out);
        self.node.check_invariants();
    }

    /// A vote of `eu` arrives.
    fn hears_vote(&mut self, sequence: u64) -> Vec<Effect<Node>> {
        let vote = Vote { result: Err(FsError::NotFound), held: false };
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
        self.asked(RequestBody::Read { vector: vector.clone(), by: NOBODY, query })
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

/// The other partition had answered a client, which then said that it waits for that message no
/// more. The vote that came after this was dropped as too late, though the message waited for it
/// still: for ever, and all behind it.
#[test]
fn a_vote_is_not_too_late_because_its_client_waits_no_more() {
    let mut one = One::new(US_1);
    one.delivers(message(1, link(place(US, 0))));
    let nothing = only_cancels(Vector::default(), Vec::new());
    one.delivers(nothing.into_start(id(2), 2, &[US, EU]));
    assert_eq!(one.applied(), Position(1));
    let effects = one.hears_vote(1);
    assert!(matches!(effects[..], [Effect::Persist(Record::Vote { .. })]), "{effects:?}");
    assert_eq!(one.applied(), Position(2));
    // Now it is too late.
    assert!(one.hears_vote(1).is_empty());
}

/// An update overtook one that waited for a vote and was acknowledged, but the vector told only
/// what was applied without a gap. A replica that was not as far then answered the client from
/// before its own update.
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
    let [ReplyBody::Answer { vector, result: Ok(_), .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((vector.get(US), one.applied()), (Stamp(3), Position(2)));
}

/// Whoever has seen more than what is decided waits only if it asks for what is not decided.
#[test]
fn a_read_waits_for_what_its_answer_needs_and_no_more() {
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
    let [ReplyBody::Answer { result: Ok(Answer::Entry { entry, attributes: None, .. }), .. }] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(entry.place, place(US, 1));
    assert!(one.reads(&seen, place(US, 1), "link").is_empty(), "it must wait");
    // Another name in the same directory does not.
    assert_eq!(one.reads(&seen, place(US, 1), "x").len(), 1);
    // Who has seen less needs not wait.
    let mut less = Vector::default();
    less.raise(US, Stamp(1));
    assert_eq!(one.reads(&less, place(US, 1), "link").len(), 1);
    let answers = replies(one.hears_vote(2));
    assert!(matches!(answers[..], [ReplyBody::Answer { result: Err(FsError::NotFound), .. }]));
}

/// What a message touches is what it is ordered by: a client that says less could make replicas
/// differ.
#[test]
fn a_message_that_hides_what_it_touches_changes_nothing() {
    let mut one = One::new(US_1);
    let honest = message(1, create(place(US, 0), "file", Kind::File));
    let keys = |keys: &[u64]| Touches::keys(keys.iter().copied());
    let lies = [Touches::All, keys(&[]), keys(&[place(US, 0).ino.key()])];
    for (sequence, touches) in (2..).zip(lies) {
        let payload = honest.payload.clone();
        let id = id_to(&[US], sequence);
        one.delivers(Start { low: sequence, touches, ..Start::new(id, [US], payload) });
    }
    one.delivers(honest);
    one.starts();
    for sequence in 2..5 {
        let start = message(sequence, create(place(US, 0), "file", Kind::File));
        let told = one.asked(RequestBody::Update { group: US, start });
        assert!(matches!(&told[..], [ReplyBody::Refused(Refusal::Bad(_))]), "{told:?}");
    }
    assert_eq!(one.reads(&Vector::default(), place(US, 0), "file").len(), 1);
}

/// A vote came before its message, of a session that is not known where others were forgotten. So
/// it seemed too late.
#[test]
fn a_vote_that_comes_before_its_message_and_seems_too_late_is_asked_for() {
    let mut one = One::new(US_1);
    forgets(&[US, EU]).for_each(|start| one.delivers(start));
    one.starts();
    let effects = one.hears_vote(4);
    assert!(matches!(effects[..], [Effect::Persist(Record::Vote { .. })]), "{effects:?}");
    let before = one.delivered;
    let start = message_of(4, seen(before), link(place(US, 0)));
    let (epoch, from, ts) = (EPOCH, before, multicast::Timestamp(before + 1));
    let entries: Arc<[Entry]> =
        Arc::from([Entry { epoch, ts, start: start.into(), final_ts: None }]);
    let append = Append { epoch, from, entries, clock: ts, prompt: true }.into();
    let message = Message::Multicast { from: US, to: US, message: append };
    one.step(Event::Message { from: US_3, message });
    let last = multicast::message::Final { id: id(4), ts, delivered: true }.into();
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
    assert_eq!(one.applied(), Position(before + 1));
}

/// `eu` has forgotten its vote, since a quorum of `us` had applied the message: this replica, which
/// was away, asked for that vote for ever. It takes over the state of a replica of its own group.
#[test]
fn a_vote_that_nobody_keeps_is_replaced_by_a_state() {
    let mut one = One::new(US_1);
    one.delivers(message(1, link(place(US, 0))));
    one.starts();
    let settled = |sequence| Message::VoteSettled { from: EU, to: US, id: id(sequence) };
    let asks_for_state = |one: &mut One, message| {
        let effects = one.step(Event::Message { from: EU_1, message });
        let request = multicast::message::SnapshotRequest { snapshot: 0, offset: 0 };
        let request = multicast::Message::from(request);
        effects.into_iter().any(|effect| match effect {
            Effect::Send { to, message: Message::Multicast { message, .. } } => {
                to == US_3 && message == request
            }
            _ => false,
        })
    };
    assert!(!asks_for_state(&mut one, settled(2)), "it does not wait for that");
    assert!(asks_for_state(&mut one, settled(1)));
}

/// The other end: a message that all replicas of all groups have for good has left `T`, with its
/// vote.
#[test]
fn a_vote_that_was_forgotten_is_said_to_be_settled() {
    let mut one = One::new(US_1);
    one.delivers(message(1, link(place(US, 0))));
    one.starts();
    one.hears_vote(1);
    let answer = |one: &mut One| {
        let message = Message::VoteWanted { by: EU, of: US, id: id(1) };
        let effects = one.step(Event::Message { from: EU_1, message });
        let answer = |effect| match effect {
            Effect::Send { to, message } => Some((to, message)),
            _ => None,
        };
        effects.into_iter().find_map(answer)
    };
    assert!(matches!(answer(&mut one), Some((EU_1, Message::Vote { .. }))));
    for (group, from) in [(US, US_2), (US, US_3), (EU, EU_1)] {
        let delivered = (multicast::Timestamp(9), id(9));
        let stable = multicast::message::Stable { delivered, except: [].into() };
        let message = Message::Multicast { from: group, to: US, message: stable.into() };
        one.step(Event::Message { from, message });
    }
    one.ticks(Time(3_000_000_000));
    let settled = Message::VoteSettled { from: US, to: EU, id: id(1) };
    assert_eq!(answer(&mut one), Some((EU_1, settled)));
}

/// The same between two replicas of one node, which nobody asked: seed 126 of three regions of
/// three nodes.
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
    let others: Vec<_> = forgets(&[global, EU]).collect();
    let count = others.len() as u64;
    for (at, start) in (0..).zip(&others) {
        delivers(EU, at, start, at + 1);
    }
    let both = message_of(4, seen(count), link(Place::ROOT));
    let after = |applied| (Position(applied), Position(applied));
    assert_eq!(delivers(global, 0, &both, count + 1), (Position(1), Position(0)));
    assert_eq!(delivers(EU, count, &both, count + 1), after(count + 1));
}

/// Who waits for an update that cannot be ordered now is told which group is the reason.
#[test]
fn who_waits_for_a_group_out_of_reach_is_told() {
    let topology = topology();
    let mut replica = Replica::new(&topology, US, US_1);
    let waiter = Waiter { connection: ConnectionId(1), request: 3 };
    let start = message(1, link(place(US, 0)));
    let mut wishes = Vec::new();
    assert!(replica.on_update(waiter, (&start, Looks::default()), false, &mut wishes));
    replica.on_refused(start.id, EU, &mut wishes);
    let refused = ReplyBody::Refused(Refusal::OutOfReach(EU));
    assert_eq!(wishes, [Wish::Reply(waiter, refused)]);
}

/// A replica that had restarted answered a client that had seen nothing yet from its log, without
/// what had been acknowledged while it was away.
#[test]
fn reads_wait_until_a_restarted_replica_has_caught_up() {
    let mut one = One::new(US_1);
    one.delivers(message(1, create(place(US, 0), "file", Kind::File)));
    assert!(one.reads(&Vector::default(), place(US, 0), "file").is_empty(), "it must wait");
    let told = one.starts();
    assert!(matches!(told[..], [ReplyBody::Answer { result: Ok(_), .. }]), "{told:?}");
}

/// What was delivered before a replica started and lacks a vote here may have been acknowledged by
/// another replica.
#[test]
fn reads_at_a_restarted_replica_wait_for_what_lacks_a_vote() {
    let mut one = One::new(US_1);
    one.delivers(message(1, create(place(US, 0), "d", Kind::Directory)));
    one.delivers(message(2, link(place(US, 1))));
    one.starts();
    let nothing = Vector::default();
    assert_eq!(one.reads(&nothing, place(US, 0), "x").len(), 1);
    assert_eq!(one.reads(&nothing, place(US, 1), "x").len(), 1);
    assert!(one.reads(&nothing, place(US, 1), "link").is_empty(), "it must wait");
    let answers = replies(one.hears_vote(2));
    assert!(matches!(answers[..], [ReplyBody::Answer { .. }]), "{answers:?}");
}

/// Known fault 4: a client that never says that its first message has ended, as one group of that
/// cannot be reached.
#[test]
fn what_a_replica_remembers_of_a_client_is_bounded() {
    let mut one = One::new(US_1);
    let mut most = 0;
    for sequence in 1..=3 * sessions::WINDOW {
        let start = message(sequence, Update::Renew { client: ClientId(1), partition: US });
        one.delivers(Start { low: 1, ..start });
        let (_, outcomes) = one.node.replica(US).unwrap().remembered();
        most = outcomes.max(most);
    }
    assert_eq!(most as u64, sessions::WINDOW);
}

/// Known fault 1: an update that was given up comes after one that cancels it, and after others.
#[test]
fn an_update_that_was_cancelled_takes_no_effect_when_it_comes() {
    let mut one = One::new(US_1);
    let late = message(1, create(place(US, 0), "late", Kind::File));
    let dest = [US];
    let client = sessions::successor(9 << 32, late.id.client);
    let update = create(place(US, 0), "later", Kind::File);
    let cancels = vec![late.id];
    let payload = Payload { cancels, ..Payload::new(seen(0), Timestamp::default(), update) };
    one.delivers(payload.into_start(MessageId { client, sequence: 1 }, 1, &dest));
    one.delivers(late);
    one.starts();
    let nothing = Vector::default();
    assert!(matches!(
        one.reads(&nothing, place(US, 0), "later")[..],
        [ReplyBody::Answer { result: Ok(_), .. }]
    ));
    let late = one.reads(&nothing, place(US, 0), "late");
    assert!(
        matches!(late[..], [ReplyBody::Answer { result: Err(FsError::NotFound), .. }]),
        "{late:?}"
    );
}

/// A message that only cancels, and is cancelled itself before it comes: who waited for it was told
/// that it is invalid, and who asked again that it has expired.
#[test]
fn what_was_cancelled_is_told_alike_at_once_and_later() {
    let mut replica = Replica::new(&topology(), US, US_1);
    let first = id(1);
    let cancelling = |random: u64, of: MessageId| {
        let client = sessions::successor(RANDOM + (random << 40), first.client);
        let payload = only_cancels(seen(0), vec![of]);
        payload.into_start(MessageId { client, sequence: 1 }, 1, &[US, EU])
    };
    let cancelled = cancelling(1, first);
    let canceller = cancelling(2, cancelled.id);
    let waiter = Waiter { connection: ConnectionId(1), request: 3 };
    let mut wishes = Vec::new();
    assert!(replica.on_update(waiter, (&cancelled, Looks::default()), false, &mut wishes));
    for (count, start) in (1..).zip([&canceller, &cancelled]) {
        let (ts, position) = (multicast::Timestamp(count), Position(count));
        replica.on_delivery(Delivery { start: start.clone().into(), ts, position }, &mut wishes);
    }
    let is_reply = |wish: &Wish| matches!(wish, Wish::Reply(..));
    let at_once: Vec<_> = wishes.drain(..).filter(is_reply).collect();
    assert!(!replica.on_update(waiter, (&cancelled, Looks::default()), false, &mut wishes));
    let expired = |wish: &Wish| match wish {
        Wish::Reply(to, ReplyBody::Updated { ts, result, .. }) => {
            (*to, *ts, result) == (waiter, Stamp(1), &Err(FsError::Expired))
        }
        _ => false,
    };
    assert!(matches!(&wishes[..], [later] if expired(later)), "{wishes:?}");
    assert!(matches!(&at_once[..], [told] if expired(told)), "{at_once:?}");
}

/// The other group has executed all before the update and waits for our vote, which must be no.
#[test]
fn a_cancelled_update_of_two_groups_is_refused_by_both() {
    let mut one = One::new(US_1);
    let late = message(1, link(place(US, 0)));
    let client = sessions::successor(9 << 32, late.id.client);
    let payload = only_cancels(seen(0), vec![late.id]);
    one.delivers(payload.into_start(MessageId { client, sequence: 1 }, 1, &[US, EU]));
    one.delivers(late);
    assert_eq!(one.applied(), Position(2));
    let partition = one.node.replica(US).unwrap().partition();
    let vote = partition.own_vote(id(1)).cloned();
    assert_eq!(vote, Some(Vote { result: Err(FsError::Expired), held: false }));
}

/// Decision 93: what a client says of its own rights does not count.
#[test]
fn no_update_brings_other_rights_than_its_node_gives_it() {
    let rights = Rights { read_only: true, ..Rights::default() };
    let start = message(1, create(place(US, 0), "name", Kind::File));
    let payload = Payload { rights: Some(Rights::default()), ..Payload::read(&start).unwrap() };
    let forged = payload.clone().into_start(start.id, start.low, &start.dest);
    let given = Payload::restrict(forged.clone(), rights.clone()).unwrap();
    let read = Payload::read(&given).unwrap();
    assert_eq!(read, Payload { rights: Some(rights.clone()), ..payload });
    assert_eq!(given, Start { payload: given.payload.clone(), ..forged });
    let nonsense = Start { payload: "nonsense".into(), ..start };
    assert!(Payload::restrict(nonsense, rights).is_err());
}

/// The tree believes what nodes say on behalf of a partition: a region's top got a second name by
/// such an update of a client that has no grant.
#[test]
fn no_client_says_what_only_nodes_say() {
    let mut one = One::new(US_1);
    one.starts();
    let rank = (Stamp(1), id(1));
    let (client, partition, name) = (ClientId(5), US, "also".into());
    let made = Timestamp::default();
    let caps = |step| Update::Caps { client, partition, step };
    for (sequence, update) in (1..).zip([
        Update::AddRegion { partition, name, made },
        Update::RemoveRegion { partition, name: "us".into() },
        Update::Expire { client, partition, renewed: rank, inodes: Vec::new() },
        Update::RaiseHorizon { partition, horizon_ms: u64::MAX },
        caps(CapStep::Expire { renewed: Some(rank), inodes: Vec::new() }),
    ]) {
        assert!(update.is_of_nodes());
        let start = message(sequence, update);
        let refused = Refusal::Bad("only nodes say that".into());
        assert_eq!(Payload::admit(&start, false), Err(refused.clone()));
        let told = one.asked(RequestBody::Update { group: US, start });
        assert_eq!(told, [ReplyBody::Refused(refused)]);
    }
}

/// Decision 93: rights are looked up by the name in the certificate, each time, and a connection
/// that nobody has introduced may do all.
#[test]
fn rights_follow_the_configuration_at_once() {
    let mut one = One::new(US_1);
    one.starts();
    let (known, unknown) = (ConnectionId(5), ConnectionId(6));
    let query = Query::Attributes { inode: place(US, 0) };
    let body = RequestBody::Read { vector: Vector::default(), by: NOBODY, query };
    let ask = |one: &mut One, connection| {
        let request = Request { id: 1, body: body.clone() };
        replies(one.step(Event::Command(Command::Request { connection, request })))
    };
    let is_denied = |replies: Vec<ReplyBody>| {
        let [ReplyBody::Answer { result, .. }] = &replies[..] else { panic!("{replies:?}") };
        *result == Err(FsError::Denied)
    };
    one.step(Event::Command(Command::Known { connection: known, client: "lab".into() }));
    assert!(!is_denied(ask(&mut one, known)), "it has no grant");
    let below = Below { path: "/us/lab".into(), partition: US.0, ino: 77 };
    let grant = Grant { below: Some(below), ..Grant::default() };
    let mut topology = (*topology()).clone();
    (topology.version, topology.grants) = (9, [("lab".to_string(), grant)].into());
    one.step(Event::Command(Command::Configured(topology.into())));
    assert!(is_denied(ask(&mut one, known)));
    assert!(!is_denied(ask(&mut one, unknown)));
    one.step(Event::Command(Command::Closed(known)));
    assert!(!is_denied(ask(&mut one, known)), "its number is another's");
}

/// Decision 101: what comes along with a grant of capabilities is what the client may see, and
/// nobody asks for more than there may be.
#[test]
fn what_comes_along_is_what_its_client_may_see() {
    let mut one = One::new(US_1);
    one.delivers(message(1, create(place(US, 0), "file", Kind::File)));
    let (inode, step) = (place(US, 1), CapStep::Grant(vec![place(US, 1).ino]));
    let start = message(2, Update::Caps { client: ClientId(5), partition: US, step });
    one.delivers(start.clone());
    one.starts();
    let below = Below { path: "/us/lab".into(), partition: US.0, ino: 77 };
    let grant = Grant { below: Some(below), ..Grant::default() };
    let mut topology = (*topology()).clone();
    (topology.version, topology.grants) = (9, [("lab".to_string(), grant)].into());
    one.step(Event::Command(Command::Configured(topology.into())));
    let connection = ConnectionId(5);
    one.step(Event::Command(Command::Known { connection, client: "lab".into() }));
    let query = Query::Contents { inode, offset: 0, len: 9 };
    let asks = |count| {
        let (start, queries) = (start.clone(), vec![query.clone(); count]);
        RequestBody::UpdateAlong { group: US, start, queries }
    };
    let along = |replies: Vec<ReplyBody>| match &replies[..] {
        [ReplyBody::UpdatedAlong(told)] => told.along.clone(),
        other => panic!("{other:?}"),
    };
    let shown = along(one.asked(asks(1)));
    assert!(matches!(shown[..], [Ok(Answer::Contents { .. })]), "{shown:?}");
    let request = Request { id: 1, body: asks(1) };
    let told = one.step(Event::Command(Command::Request { connection, request }));
    assert_eq!(along(replies(told)), [Err(FsError::Denied)]);
    assert_eq!(along(one.asked(asks(ALONG_MAX))).len(), ALONG_MAX);
    let told = one.asked(asks(ALONG_MAX + 1));
    assert!(matches!(told[..], [ReplyBody::Refused(Refusal::Bad(_))]), "{told:?}");
    let told = one.asked(RequestBody::UpdateAlong { group: US, start, queries: Vec::new() });
    assert!(matches!(told[..], [ReplyBody::Updated { .. }]), "{told:?}");
}

/// Abuse 11: who has a grant cannot have a node take other bytes for a block that it lacks, is told
/// no names, and stores nothing at all if it may only look.
#[test]
fn nothing_is_stored_under_a_name_that_a_file_has() {
    let mut one = One::new(US_1);
    let [named, free] = [1, 2].map(|random| BlockId::named(US, 0, random));
    one.delivers(message(1, create(place(US, 0), "file", Kind::File)));
    let data = Data::Block { block: named, start: 0 };
    let pieces = vec![Piece { offset: 0, extent: Extent { len: 9, data } }];
    one.delivers(message(2, Update::Write { inode: place(US, 1), at: WriteAt::End, pieces }));
    one.starts();
    let mut topology = (*topology()).clone();
    let grant = |read_only| Grant { read_only, ..Grant::default() };
    (topology.version, topology.grants) =
        (9, [("lab".to_string(), grant(false)), ("guest".to_string(), grant(true))].into());
    one.step(Event::Command(Command::Configured(topology.into())));
    let put = |block| RequestBody::PutBlock { block, data: "bytes".into() };
    let get = RequestBody::GetBlock { block: named, offset: 0, len: 9 };
    let discard = RequestBody::Discard { blocks: vec![free] };
    let admitted = |body: &RequestBody| {
        [None, Some("lab"), Some("guest")].map(|client| one.node.admits(client, body).is_ok())
    };
    assert_eq!(admitted(&put(named)), [true, false, false]);
    assert_eq!(admitted(&put(free)), [true, true, false]);
    assert_eq!(admitted(&discard), [true, true, false]);
    assert_eq!(admitted(&RequestBody::ListBlocks { after: None }), [true, false, false]);
    assert_eq!(admitted(&get), [true, true, true]);
}
