//! The node as a [`Process`]: what comes from peers and clients goes to its replicas, and what they
//! want done goes out.
//!
//! Two replicas of one node give each other votes at once, without the network: a node that has
//! replicas of both groups of an operation needs nobody else's vote.

use crate::api::{Refusal, ReplicaStatus, Reply, ReplyBody, Request, RequestBody};
use crate::replica::{ConnectionId, Replica, Waiter, Wish, encode};
use bytes::Bytes;
use meridian_core::{
    Effect, Event, GroupId, MessageId, NodeId, Outbox, Process, ProcessId, Time, Token, Topology,
};
use meridian_fs::vote::Vote;
use meridian_multicast::{self as multicast, PrimCast};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How much of a long record of the multicast is in one record of ours, in bytes.
const PART_LEN: usize = 1 << 20;

/// What nodes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// From one process of the multicast to another.
    Multicast {
        /// The group of the sender.
        from: GroupId,
        /// The group of the receiver.
        to: GroupId,
        /// What it says.
        message: multicast::Message,
    },
    /// A partition's vote.
    Vote {
        /// Whose.
        from: GroupId,
        /// For a replica of which group.
        to: GroupId,
        /// For which message.
        id: MessageId,
        /// The vote.
        vote: Vote,
    },
    /// A replica lacks a vote.
    VoteWanted {
        /// Of which group the replica is.
        by: GroupId,
        /// Whose vote.
        of: GroupId,
        /// For which message.
        id: MessageId,
    },
}

/// What the server's shell passes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A client's request: an update or a read.
    Request {
        /// Where it came.
        connection: ConnectionId,
        /// What.
        request: Request,
    },
    /// A client's connection is gone.
    Closed(ConnectionId),
    /// The cluster is configured so now.
    Configured(Arc<Topology>),
}

/// What the server's shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Answer a client.
    Reply {
        /// Where.
        connection: ConnectionId,
        /// What.
        reply: Reply,
    },
    /// In a group whose members change, the next ones count now.
    InForce {
        /// The group.
        group: GroupId,
        /// The number of that configuration.
        number: u64,
    },
}

/// What is made durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// Of the multicast's process of a group.
    Multicast {
        /// Which group.
        group: GroupId,
        /// What.
        record: multicast::Record,
    },
    /// A vote came from another node. Noted before the message counts as stable.
    Vote {
        /// Of which group.
        from: GroupId,
        /// For our replica of which group.
        to: GroupId,
        /// For which message.
        id: MessageId,
        /// The vote.
        vote: Vote,
    },
    /// A part of a record of the multicast that is too long for one record of the log.
    Part {
        /// Of which group.
        group: GroupId,
        /// The bytes.
        part: Bytes,
        /// Whether none come before: what a crash left of another is void.
        first: bool,
        /// Whether none come after: now it counts.
        last: bool,
    },
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    topology: Arc<Topology>,
    me: NodeId,
    replicas: BTreeMap<GroupId, Replica>,
    /// Which configuration of a group the owner was told to be in force.
    told: BTreeMap<GroupId, u64>,
    /// The parts of a long record, while records are replayed.
    restoring: Vec<u8>,
}

impl Node {
    /// The node `me` of `topology`, with nothing delivered.
    pub fn new(topology: Arc<Topology>, me: NodeId) -> Node {
        let replica = |group| (group, Replica::new(&topology, group, me));
        let replicas = topology.groups_of(me).map(replica).collect();
        Node { topology, me, replicas, told: BTreeMap::new(), restoring: Vec::new() }
    }

    /// Which node it is.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Its replica of `group`.
    pub fn replica(&self, group: GroupId) -> Option<&Replica> {
        self.replicas.get(&group)
    }

    /// The same with a bug planted in its multicast.
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: multicast::Mutation) -> Node {
        for replica in self.replicas.values_mut() {
            replica.multicast = replica.multicast.clone().with_mutation(mutation);
        }
        self
    }

    /// The same with other limits of its multicast.
    #[doc(hidden)]
    pub fn with_limits(mut self, limits: multicast::Limits) -> Node {
        for replica in self.replicas.values_mut() {
            replica.multicast = replica.multicast.clone().with_limits(limits);
        }
        self
    }

    /// How its replicas are.
    pub fn status(&self, now: Time) -> Vec<ReplicaStatus> {
        self.replicas.values().map(|replica| replica.status(now)).collect()
    }

    /// Checks what must hold between steps.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        self.replicas.values().for_each(Replica::check_invariants);
    }

    fn on_message(&mut self, now: Time, from: NodeId, message: Message, out: &mut Outbox<Self>) {
        match message {
            Message::Multicast { from: group, to, message } => {
                let from = ProcessId { group, node: from };
                self.step_multicast(now, to, Event::Message { from, message }, out);
            }
            Message::Vote { from: group, to, id, vote } => {
                let Some(replica) = self.replicas.get_mut(&to) else { return };
                if !replica.is_decided(id) {
                    out.note(Record::Vote { from: group, to, id, vote: vote.clone() });
                    let mut wishes = Vec::new();
                    replica.on_vote(id, group, vote, &mut wishes);
                    self.grant(now, to, wishes, Some(out));
                }
            }
            Message::VoteWanted { by, of, id } => {
                let vote = self.replicas.get(&of).and_then(|replica| replica.own_vote(id));
                if let Some(vote) = vote.cloned() {
                    out.send(from, Message::Vote { from: of, to: by, id, vote });
                }
            }
        }
    }

    fn on_request(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        out: &mut Outbox<Self>,
    ) {
        let waiter = Waiter { connection, request: request.id };
        let (group, mut wishes) = match &request.body {
            RequestBody::Update { group, .. } => (*group, Vec::new()),
            RequestBody::Read { query, .. } => (query.partition(), Vec::new()),
            // The shell answers these itself.
            RequestBody::PutBlock { .. }
            | RequestBody::GetBlock { .. }
            | RequestBody::ListBlocks { .. }
            | RequestBody::Status => return,
        };
        let Some(replica) = self.replicas.get_mut(&group) else {
            let body = ReplyBody::Refused(Refusal::NoReplica(group));
            let reply = Reply { id: request.id, body };
            out.output(Output::Reply { connection, reply });
            return;
        };
        let mut start = None;
        match request.body {
            RequestBody::Update { start: wanted, .. } => {
                if replica.on_update(waiter, &wanted, &mut wishes) {
                    start = Some(wanted);
                }
            }
            RequestBody::Read { vector, query } => {
                replica.on_read(waiter, &vector, query, &mut wishes);
            }
            RequestBody::PutBlock { .. }
            | RequestBody::GetBlock { .. }
            | RequestBody::ListBlocks { .. }
            | RequestBody::Status => {}
        }
        self.grant(now, group, wishes, Some(out));
        if let Some(start) = start {
            let command = Event::Command(multicast::Command::Start(start));
            self.step_multicast(now, group, command, out);
        }
    }

    /// Steps the multicast of `group` and carries out what it wants, in order.
    fn step_multicast(
        &mut self,
        now: Time,
        group: GroupId,
        event: Event<PrimCast>,
        out: &mut Outbox<Self>,
    ) {
        let Some(replica) = self.replicas.get_mut(&group) else { return };
        let mut inner = Outbox::new();
        replica.multicast.step(now, event, &mut inner);
        let mut commands = Vec::new();
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, message } => {
                    let message = Message::Multicast { from: group, to: to.group, message };
                    out.send(to.node, message);
                }
                Effect::Persist(record) => match record {
                    multicast::Record::State(_) | multicast::Record::NewState { .. } => {
                        parts(group, &record).for_each(|part| out.persist(part));
                    }
                    record => out.persist(Record::Multicast { group, record }),
                },
                Effect::Note(record) => out.note(Record::Multicast { group, record }),
                Effect::Timer { at, .. } => out.timer(at, Token(u64::from(group.0))),
                Effect::Output(output) => {
                    commands.extend(self.on_output(now, group, output, Some(out)));
                }
            }
        }
        for command in commands {
            self.step_multicast(now, group, Event::Command(command), out);
        }
    }

    /// What the multicast tells. `out` is `None` while records are replayed: all was said before.
    fn on_output(
        &mut self,
        now: Time,
        group: GroupId,
        output: multicast::Output,
        out: Option<&mut Outbox<Self>>,
    ) -> Option<multicast::Command> {
        let replica = self.replicas.get_mut(&group).expect("the caller has it");
        let (mut wishes, mut command) = (Vec::new(), None);
        match output {
            multicast::Output::Deliver(delivery) => replica.on_delivery(delivery, &mut wishes),
            multicast::Output::Duplicate(id) => replica.on_duplicate(id, &mut wishes),
            multicast::Output::Settled(ids) => replica.on_settled(&ids),
            multicast::Output::Ended { .. } => {} // We are a destination of all that we multicast.
            multicast::Output::Refused { id, group } => {
                replica.on_refused(id, group, &mut wishes);
            }
            multicast::Output::Install { application, .. } => {
                replica.install(&application, &mut wishes);
            }
            multicast::Output::SnapshotWanted { to } => {
                let (position, application) =
                    (replica.partition().delivered(), replica.application());
                command = Some(multicast::Command::Snapshot { to, position, application });
            }
        }
        self.grant(now, group, wishes, out);
        command
    }

    /// Carries out what the replica of `group` wants, and what follows from it at our other replicas.
    fn grant(
        &mut self,
        now: Time,
        group: GroupId,
        wishes: Vec<Wish>,
        mut out: Option<&mut Outbox<Self>>,
    ) {
        let mut todo: VecDeque<_> = wishes.into_iter().map(|wish| (group, wish)).collect();
        while let Some((group, wish)) = todo.pop_front() {
            match wish {
                Wish::Reply(waiter, body) => {
                    if let Some(out) = &mut out {
                        let reply = Reply { id: waiter.request, body };
                        out.output(Output::Reply { connection: waiter.connection, reply });
                    }
                }
                Wish::Vote { to, id, vote } => {
                    for other in to {
                        if let Some(replica) = self.replicas.get_mut(&other) {
                            let mut wishes = Vec::new();
                            replica.on_vote(id, group, vote.clone(), &mut wishes);
                            todo.extend(wishes.into_iter().map(|wish| (other, wish)));
                        }
                        if let Some(out) = &mut out {
                            self.send_vote(group, other, id, &vote, out);
                        }
                    }
                }
                Wish::AskVotes { id, of } => {
                    for other in &of {
                        let wishes = self.hand_over_vote(id, *other, group);
                        todo.extend(wishes.into_iter().map(|wish| (group, wish)));
                    }
                    if let Some(out) = &mut out {
                        self.ask_votes(group, id, &of, out);
                    }
                }
                Wish::Multicast(start) => {
                    if let Some(out) = &mut out {
                        let command = multicast::Command::Start(start);
                        self.step_multicast(now, group, Event::Command(command), out);
                    }
                }
            }
        }
    }

    /// Gives our replica of `to` the vote of ours of `from`, if that has voted: it may have come too early,
    /// or the one have got the other's state in a snapshot.
    fn hand_over_vote(&mut self, id: MessageId, from: GroupId, to: GroupId) -> Vec<Wish> {
        let mut wishes = Vec::new();
        let vote = self.replicas.get(&from).and_then(|replica| replica.own_vote(id)).cloned();
        if let (Some(vote), Some(replica)) = (vote, self.replicas.get_mut(&to)) {
            replica.on_vote(id, from, vote, &mut wishes);
        }
        wishes
    }

    /// To those of `to`'s replicas whose node has none of `from`'s: the others have it from that.
    fn send_vote(
        &self,
        from: GroupId,
        to: GroupId,
        id: MessageId,
        vote: &Vote,
        out: &mut Outbox<Self>,
    ) {
        let ours: Vec<_> = self.topology.group(from).involved().collect();
        for node in self.topology.group(to).involved().filter(|node| !ours.contains(node)) {
            out.send(node, Message::Vote { from, to, id, vote: vote.clone() });
        }
    }

    fn ask_votes(&self, by: GroupId, id: MessageId, of: &[GroupId], out: &mut Outbox<Self>) {
        // A replica of ours that has come by a snapshot may have none.
        let own_vote = |group| self.replicas.get(group).and_then(|replica| replica.own_vote(id));
        for group in of.iter().filter(|group| own_vote(group).is_none()) {
            for node in self.topology.group(*group).involved().filter(|node| *node != self.me) {
                out.send(node, Message::VoteWanted { by, of: *group, id });
            }
        }
    }

    /// The members of a group change: as primary has that ordered, and tells when it is done.
    fn change_members(&mut self, now: Time, group: GroupId, out: &mut Outbox<Self>) {
        let topology = self.topology.clone();
        let (Some(replica), of) = (self.replicas.get(&group), topology.group(group)) else {
            return;
        };
        if of.next.is_none() {
            return;
        }
        if let Some(start) = replica.next_members(of) {
            let command = Event::Command(multicast::Command::Start(start));
            self.step_multicast(now, group, command, out);
        } else if let Some(number) = replica.in_force().filter(|number| *number > of.number)
            && self.told.insert(group, number) != Some(number)
        {
            out.output(Output::InForce { group, number });
        }
    }

    fn on_timer(&mut self, now: Time, token: Token, out: &mut Outbox<Self>) {
        let group = GroupId(u16::try_from(token.0).unwrap_or(u16::MAX));
        if let Some(replica) = self.replicas.get_mut(&group) {
            let mut wishes = Vec::new();
            replica.on_tick(now, &mut wishes);
            self.grant(now, group, wishes, Some(out));
            self.step_multicast(now, group, Event::Timer(token), out);
            self.change_members(now, group, out);
        }
    }

    fn answer_reads(&mut self, now: Time, out: &mut Outbox<Self>) {
        let mut wishes = Vec::new();
        for (group, replica) in &mut self.replicas {
            let mut of_group = Vec::new();
            replica.answer_reads(&mut of_group);
            wishes.extend(of_group.into_iter().map(|wish| (*group, wish)));
        }
        for (group, wish) in wishes {
            self.grant(now, group, vec![wish], Some(out));
        }
    }

    /// Replays a record of the multicast; what it told then is told to the replica again.
    fn recover(&mut self, group: GroupId, record: multicast::Record) {
        let Some(replica) = self.replicas.get_mut(&group) else { return };
        if let Some(output) = replica.multicast.recover(record) {
            self.on_output(Time(0), group, output, None);
        }
    }

    fn all_step(&mut self, now: Time, event: &Event<PrimCast>, out: &mut Outbox<Self>) {
        let groups: Vec<_> = self.replicas.keys().copied().collect();
        for group in groups {
            self.step_multicast(now, group, event.clone(), out);
        }
    }
}

impl Process for Node {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => self.all_step(now, &Event::Started, out),
            Event::Message { from, message } => self.on_message(now, from, message, out),
            Event::Command(Command::Request { connection, request }) => {
                self.on_request(now, connection, request, out);
            }
            Event::Command(Command::Closed(connection)) => {
                self.replicas.values_mut().for_each(|replica| replica.on_closed(connection));
            }
            Event::Command(Command::Configured(topology)) => {
                if topology.version > self.topology.version {
                    self.topology = topology;
                }
            }
            Event::Timer(token) => self.on_timer(now, token, out),
            Event::Restarted(node) => {
                let groups: Vec<_> = self.topology.groups_of(node).collect();
                for group in groups {
                    let peer = ProcessId { group, node };
                    self.all_step(now, &Event::Restarted(peer), out);
                }
            }
            Event::Idle => {
                self.all_step(now, &Event::Idle, out);
                self.answer_reads(now, out);
            }
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Multicast { group, record } => self.recover(group, record),
            Record::Part { group, part, first, last } => {
                if first {
                    self.restoring.clear();
                }
                self.restoring.extend_from_slice(&part);
                if last {
                    let record = postcard::from_bytes(&std::mem::take(&mut self.restoring));
                    self.recover(
                        group,
                        record.expect("what passed its checksums is of this version"),
                    );
                }
            }
            Record::Vote { from, to, id, vote } => {
                let Some(replica) = self.replicas.get_mut(&to) else { return };
                let mut wishes = Vec::new();
                replica.on_vote(id, from, vote, &mut wishes);
                self.grant(Time(0), to, wishes, None);
            }
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let frozen: Vec<_> = self
            .replicas
            .iter()
            .map(|(group, replica)| (*group, replica.multicast.clone(), replica.frozen()))
            .collect();
        Box::new(frozen.into_iter().flat_map(|(group, multicast, (partition, sessions))| {
            let state = multicast.state().with_application(encode(&partition, &sessions));
            parts(group, &multicast::Record::State(Box::new(state)))
        }))
    }
}

/// A record of the multicast, cut into records of bounded length.
fn parts(group: GroupId, record: &multicast::Record) -> impl Iterator<Item = Record> + use<> {
    let bytes = Bytes::from(postcard::to_stdvec(record).expect("a record can be encoded"));
    let count = bytes.len().div_ceil(PART_LEN);
    (0..count).map(move |n| {
        let part = bytes.slice(n * PART_LEN..bytes.len().min((n + 1) * PART_LEN));
        Record::Part { group, part, first: n == 0, last: n + 1 == count }
    })
}
