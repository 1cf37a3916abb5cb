//! The node as a [`Process`]: what comes from peers and clients goes to its replicas, and what they
//! want done goes out.
//!
//! Two replicas of one node give each other votes at once, without the network: a node that has
//! replicas of both groups of an operation needs nobody else's vote.

mod access;
mod configuration;
mod drained;
mod former;
mod heirs;
mod member;
mod messages;
mod noting;
mod requests;
mod space;

pub use heirs::{Inheritance, VotesPart};
pub use messages::{Command, Message, Output, Record, Timer};

use crate::api::{ReplicaStatus, Reply};
use crate::configuration::{self as configuring, ConfigurationReplica};
use crate::drain::{self, Drain};
use crate::mutation::Mutation;
use crate::replica::{ConnectionId, Replica, Wish};
use crate::space::Space;
use crate::steps::{Step, Steps, What};
use heirs::{Heirs, own_groups};
use member::Member;
use meridian_cluster::Topology;
use meridian_core::{
    Aside, Event, GroupId, MessageId, NodeId, Outbox, Process, ProcessId, Time, Visible,
};
use meridian_fs::vote::Vote;
use meridian_multicast::{self as multicast, PrimCast};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How often a replica is asked whether votes are missing or leases ran out. What it looks for is
/// due after some hundreds of milliseconds.
const REPLICA_TICK: Duration = Duration::from_millis(125);

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    topology: Arc<Topology>,
    me: NodeId,
    replicas: BTreeMap<GroupId, Replica>,
    /// Which configuration of a group the owner was told to be in force.
    told: BTreeMap<GroupId, u64>,
    drain: Drain,
    space: Space,
    configuration: ConfigurationReplica,
    /// The names of clients, as their certificates say, by their connections.
    known: BTreeMap<ConnectionId, String>,
    admits_all: bool,
    heirs: Heirs,
    /// A planted bug, for replicas that come later.
    mutation: Mutation,
    /// What was done for which message.
    steps: Aside<Steps>,
}

impl Node {
    /// The node `me` of `topology`, with nothing delivered.
    pub fn new(topology: Arc<Topology>, me: NodeId) -> Node {
        let replica = |group| (group, Replica::new(&topology, group, me));
        let replicas = own_groups(&topology, me).map(replica).collect();
        let drain = Drain::new(topology.clone(), me);
        let configuration = ConfigurationReplica::new(topology.clone(), me);
        Node {
            topology,
            me,
            replicas,
            told: BTreeMap::new(),
            drain,
            space: Space::new(Default::default()),
            configuration,
            known: BTreeMap::new(),
            admits_all: false,
            heirs: Heirs::default(),
            mutation: Mutation::Correct,
            steps: Aside::default(),
        }
    }

    /// Which node it is.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// What gives its blocks to others.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Its replica of the configuration, if it keeps that.
    pub fn configuration(&self) -> &ConfigurationReplica {
        &self.configuration
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

    /// The same with a bug planted in what surrounds its protocols.
    #[doc(hidden)]
    pub fn with_host_mutation(mut self, mutation: Mutation) -> Node {
        self.replicas.values_mut().for_each(|replica| replica.plant(mutation));
        self.admits_all = mutation.is(Mutation::AdmitsAll);
        self.steps.plant(mutation);
        self.plant_in_heirs(mutation);
        self
    }

    /// The same with a bug planted in its trees.
    #[doc(hidden)]
    pub fn with_tree_mutation(mut self, mutation: meridian_fs::mutation::Mutation) -> Node {
        self.replicas.values_mut().for_each(|replica| replica.plant_in_tree(mutation));
        self
    }

    /// The same, whose steps count so many directories and entries at most.
    #[doc(hidden)]
    pub fn with_count_step(mut self, most: usize) -> Node {
        self.replicas.values_mut().for_each(|replica| replica.set_count_step(most));
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
        self.note_heard(now, from, &message);
        match message {
            Message::Multicast { from: group, to, message } => {
                let from = ProcessId { group, node: from };
                self.step_multicast(now, to, Event::Message { from, message }, out);
            }
            Message::Vote { from: group, to, id, vote } => {
                let Some(replica) = self.replicas.get_mut(&to) else { return };
                if replica.hears(id, group, from) {
                    if !replica.has_heard(id, group) {
                        out.persist(Record::Vote { from: group, to, id, vote: vote.clone() });
                    }
                    let mut wishes = Vec::new();
                    replica.on_vote(id, group, vote, &mut wishes);
                    self.grant(now, to, wishes, Some(out));
                }
            }
            Message::VoteSettled { from: group, to, id } => {
                let lacks =
                    |replica: &&mut Replica| replica.partition().missing(id).contains(&group);
                let Some(replica) = self.replicas.get_mut(&to).filter(lacks) else { return };
                if replica.partition().inherited().is_some() {
                    let mut wishes = Vec::new();
                    replica.end_inherited(id, &mut wishes);
                    self.grant(now, to, wishes, Some(out));
                } else {
                    // Only a replica of the same group can bring ours on.
                    let command = Event::Command(multicast::Command::FetchState);
                    self.step_multicast(now, to, command, out);
                }
            }
            Message::Drain(message) => self.step_drain(now, Event::Message { from, message }, out),
            Message::Configuration(message) => {
                self.step_configuration(now, Event::Message { from, message }, out);
            }
            Message::VoteWanted { by, of, id } => {
                let Some(replica) = self.replicas.get(&of) else { return };
                if let Some(vote) = replica.own_vote(id).cloned() {
                    out.send(from, Message::Vote { from: of, to: by, id, vote });
                } else if replica.has_ended(id) {
                    out.send(from, Message::VoteSettled { from: of, to: by, id });
                }
            }
            Message::Begins(group) => {
                self.all_step(now, &Event::Restarted(group.of(from)), out);
            }
            Message::VotesWanted { of, number, by, offset } => {
                let part = self.votes_part(of, number, by, offset);
                part.into_iter().for_each(|part| out.send(from, Message::VotesPart(part)));
            }
            Message::VotesPart(part) => self.on_votes_part(now, from, part, out),
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
        let mut member = Member { node: self, now, group, commands: Vec::new() };
        out.absorb(&mut inner, &mut member);
        for command in member.commands {
            self.step_multicast(now, group, Event::Command(command), out);
        }
        self.make_reports(group, out);
    }

    /// What the multicast tells. `out` is `None` while records are replayed: all was said before.
    fn on_output(
        &mut self,
        now: Time,
        group: GroupId,
        output: multicast::Output,
        out: Option<&mut Outbox<Self>>,
    ) -> Option<multicast::Command> {
        if let (multicast::Output::Deliver(delivery), Some(_)) = (&output, &out) {
            self.note_delivered(now, group, delivery.start.id);
        }
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

    /// Carries out what the replica of `group` wants, and what follows from it at our other
    /// replicas.
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
                Wish::Applied(id) => {
                    if out.is_some() {
                        self.steps.note(id, Step::of(now, What::Applied, group));
                    }
                }
                Wish::Vote { to, id, vote } => {
                    if out.is_some() {
                        self.steps.note(id, Step::of(now, What::Voted, group));
                    }
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
                    let wishes = self.end_where_others_have(id, group, &of);
                    todo.extend(wishes.into_iter().map(|wish| (group, wish)));
                    if let Some(out) = &mut out {
                        self.ask_votes(group, id, &of, out);
                    }
                }
                Wish::Multicast(start) => {
                    if let Some(out) = &mut out {
                        let command = multicast::Command::Multicast(start);
                        self.step_multicast(now, group, Event::Command(command), out);
                    }
                }
            }
        }
    }

    /// Gives our replica of `to` the vote of ours of `from`, if that has voted: it may have come
    /// too early, or the one have got the other's state in a snapshot.
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
        // Who is not known yet asks.
        let known = self.topology.groups.get(usize::from(to.0));
        let involved = known.into_iter().flat_map(|group| group.involved());
        for node in involved.filter(|node| !ours.contains(node)) {
            out.send(node, Message::Vote { from, to, id, vote: vote.clone() });
        }
    }

    fn ask_votes(&self, by: GroupId, id: MessageId, of: &[GroupId], out: &mut Outbox<Self>) {
        // A replica of ours that has come by a snapshot may have none.
        let own_vote = |group| self.replicas.get(group).and_then(|replica| replica.own_vote(id));
        for group in of.iter().filter(|group| own_vote(group).is_none()) {
            let known = self.topology.groups.get(usize::from(group.0));
            let involved = known.into_iter().flat_map(|group| group.involved());
            for node in involved.filter(|node| *node != self.me) {
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
            return self.tell_in_force(group, out);
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

    /// Groups may have begun, and this node have come into one that is taken over from others.
    fn learn_groups(&mut self, now: Time, out: &mut Outbox<Self>) {
        let (topology, me) = (self.topology.clone(), self.me);
        let unknown = |(group, replica): (&GroupId, &Replica)| {
            let news = replica.unknown_groups(&topology, me).into_iter();
            news.map(|config| (*group, multicast::Command::Learn(config))).collect::<Vec<_>>()
        };
        let news: Vec<_> = self.replicas.iter().flat_map(unknown).collect();
        for (group, command) in news {
            self.step_multicast(now, group, Event::Command(command), out);
        }
        let known = |group: &GroupId| self.replicas.contains_key(group);
        let new: Vec<_> = own_groups(&topology, me).filter(|group| !known(group)).collect();
        for group in new {
            self.replicas.insert(group, Replica::new(&topology, group, me));
            self.step_multicast(now, group, Event::Started, out);
            out.timer(now + REPLICA_TICK, Timer::Replica(group));
        }
        self.learn_fences(now, out);
    }

    fn on_replica_tick(&mut self, now: Time, group: GroupId, out: &mut Outbox<Self>) {
        if let Some(replica) = self.replicas.get_mut(&group) {
            let mut wishes = Vec::new();
            let counted = replica.on_tick(now, &mut wishes);
            replica.raise_horizon(now, self.space.options().window, &mut wishes);
            if let Some(linger) = self.space.linger() {
                replica.reap(counted, linger, &mut wishes);
            }
            replica.count(&mut wishes);
            replica.say_regions(now, &self.topology, &mut wishes);
            self.grant(now, group, wishes, Some(out));
            self.change_members(now, group, out);
            out.timer(now + REPLICA_TICK, Timer::Replica(group));
        } else if self.heirs.gathers(group) {
            self.gather(now, group, out);
            out.timer(now + REPLICA_TICK, Timer::Replica(group));
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
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.all_step(now, &Event::Started, out);
                self.step_drain(now, Event::Started, out);
                self.step_configuration(now, Event::Started, out);
                out.output(Output::Space(crate::space::Output::Measure));
                out.timer(now + self.space.options().tick, Timer::Space(crate::space::Tick));
                for group in self.replicas.keys() {
                    out.timer(now + REPLICA_TICK, Timer::Replica(*group));
                }
                self.learn_fences(now, out);
            }
            Event::Message { from, message } => self.on_message(now, from, message, out),
            Event::Command(Command::Request { connection, request }) => {
                self.on_request(now, connection, request, out);
            }
            Event::Command(Command::Known { connection, client }) => {
                self.known.insert(connection, client);
            }
            Event::Command(Command::Closed(connection)) => {
                self.known.remove(&connection);
                self.replicas.values_mut().for_each(|replica| replica.on_closed(connection));
            }
            Event::Command(Command::Configured(topology)) => {
                if topology.version > self.topology.version {
                    self.topology = topology.clone();
                    self.learn_groups(now, out);
                }
                let command = drain::Command::Configured(topology.clone());
                self.step_drain(now, Event::Command(command), out);
                let command = configuring::Command::Configured(topology);
                self.step_configuration(now, Event::Command(command), out);
            }
            Event::Command(Command::Drain(command)) => {
                self.step_drain(now, Event::Command(command), out);
            }
            Event::Command(Command::Space(command)) => self.on_space(now, command, out),
            Event::Command(Command::Configuration(command)) => {
                let command = configuring::Command::Service(command);
                self.step_configuration(now, Event::Command(command), out);
            }
            Event::Timer(Timer::Configuration(timer)) => {
                self.step_configuration(now, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Space(tick)) => self.on_space_tick(now, tick, out),
            Event::Timer(Timer::Drain(tick)) => self.on_drain_tick(now, tick, out),
            Event::Timer(Timer::Multicast(group, timer)) => {
                self.step_multicast(now, group, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Replica(group)) => self.on_replica_tick(now, group, out),
            Event::Restarted(node) => {
                let groups: Vec<_> = self.topology.groups_of(node).collect();
                for group in groups {
                    let peer = ProcessId { group, node };
                    self.all_step(now, &Event::Restarted(peer), out);
                }
                self.step_drain(now, Event::Restarted(node), out);
                self.step_configuration(now, Event::Restarted(node), out);
            }
            Event::Idle => {
                self.all_step(now, &Event::Idle, out);
                self.step_configuration(now, Event::Idle, out);
                self.answer_reads(now, out);
            }
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Multicast { group, record } => self.recover(group, record),
            Record::Drain(record) => self.drain.replay(record),
            Record::Configuration(record) => self.configuration.replay(record),
            Record::Vote { from, to, id, vote } => {
                let Some(replica) = self.replicas.get_mut(&to) else { return };
                let mut wishes = Vec::new();
                replica.on_vote(id, from, vote, &mut wishes);
                self.grant(Time(0), to, wishes, None);
            }
            Record::VotesReport { of, number, by, votes } => {
                if let Some(replica) = self.replicas.get_mut(&by) {
                    replica.reported(of, number, votes);
                }
            }
            Record::Inherited(inheritance) => self.inherits(inheritance),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let frozen: Vec<_> = self
            .replicas
            .iter()
            .map(|(group, replica)| (*group, replica.multicast.clone(), replica.frozen()))
            .collect();
        let groups = frozen.into_iter().map(|(group, multicast, application)| {
            let state = multicast.state().with_application(application.encode());
            Record::Multicast { group, record: multicast::Record::State(Box::new(state)) }
        });
        let drain = self.drain.checkpoint().map(Record::Drain);
        let configuration = self.configuration.checkpoint().map(Record::Configuration);
        let (begun, reports) = self.kept_of_heirs();
        Box::new(drain.chain(configuration).chain(begun).chain(groups).chain(reports))
    }

    fn passed(&mut self, now: Time, visible: &Visible<Self>) {
        self.note_passed(now, visible);
    }
}
