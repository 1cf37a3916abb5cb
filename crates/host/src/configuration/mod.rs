//! A node's part in keeping the configuration of its cluster: a replica of [`Configuration`], if
//! that says that the node keeps it.
//!
//! The replica begins when the node learns that it is to keep the configuration, and takes no part
//! until those who keep it have made it a member. Whoever leads the
//! replicas compares the members with the nodes that the configuration names, and replaces one
//! after the other. A replica that came in another's place says when it takes part; the other one
//! goes on until then (decision 26), and ends.
//!
//! Invariants:
//! - K1: a node that has ended to keep the configuration never begins again: it may have voted.
//! - K2: a replica says that it takes part only once all instances that it is no member of are
//!   executed here: nobody needs the one in whose place it came.

mod messages;

pub use messages::{Command, Message, Mutation, Record, Timer};

use crate::api::KeeperStatus;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Configuration, Request, encode};
use meridian_core::{
    ClientId, Embedding, Event, GroupId, NodeId, Outbox, Process, ProcessId, Time,
};
use meridian_paxos::message::Output as Told;
use meridian_paxos::{
    self as paxos, Answer, Change, Consistency, Kind, Paxos, Service, Stopped, change_payload,
};
use messages::OWN_TOKEN;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The configuration changes seldom: its replicas need not be as quick to suspect a leader as
/// others, and must not keep an idle machine busy.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How often the replica looks whether there is something to be asked of all of them.
const TICK: Duration = Duration::from_secs(1);
/// So long a configuration is known before who kept it is replaced: the node that comes has learned
/// by then that it is to keep it.
const LEARNED: Duration = Duration::from_secs(3);
/// After so long without an answer the replica asks for what is to be done then.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The replica of a node that may or may not have one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConfigurationReplica {
    topology: Arc<Topology>,
    me: NodeId,
    begun: Option<Begun>,
    /// The node kept the configuration, and others do in its place.
    ended: bool,
    mutation: Mutation,
}

/// A replica that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Begun {
    /// The version that says so. What is older does not say that it ends.
    since: u64,
    /// With whom it began.
    members: BTreeSet<NodeId>,
    paxos: Paxos<Configuration>,
    own: Own,
    /// The version that was executed last, and since when.
    executed: (u64, Time),
}

/// What the replica asks of all of them, as a client of its own: one request at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Own {
    client: Option<ClientId>,
    sequence: u64,
    /// Since when it waits for an answer.
    asked: Option<Time>,
}

impl ConfigurationReplica {
    /// That of node `me`, before its records are replayed.
    pub fn new(topology: Arc<Topology>, me: NodeId) -> ConfigurationReplica {
        let mutation = Mutation::Correct;
        ConfigurationReplica { topology, me, begun: None, ended: false, mutation }
    }

    /// The same with a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> ConfigurationReplica {
        ConfigurationReplica { mutation, ..self }
    }

    /// The protocol's process, if the node keeps the configuration.
    pub fn paxos(&self) -> Option<&Paxos<Configuration>> {
        self.begun.as_ref().map(|begun| &begun.paxos)
    }

    /// How it is, if the node keeps the configuration.
    pub fn status(&self) -> Option<KeeperStatus> {
        let status = self.paxos()?.status();
        Some(KeeperStatus {
            leads: status.leading,
            takes_part: status.active,
            executed: status.position,
            members: status.members.members.into_keys().collect(),
            stopped: status.stopped.map(|why| why.to_string()),
        })
    }

    fn process(&self, node: NodeId) -> ProcessId {
        ProcessId { group: GroupId::GLOBAL, node }
    }

    /// Makes the process of a replica that begins, or that is found on disk.
    fn make(&mut self, since: u64, members: BTreeSet<NodeId>) {
        let farthest = self.topology.one_way.values().max().copied().unwrap_or_default();
        let options = paxos::Options {
            heartbeat: HEARTBEAT,
            suspect_after: HEARTBEAT * 4 + farthest * 4,
            retransmit: HEARTBEAT + farthest * 4,
            // What it asks itself must not depend on who leads.
            routing: paxos::Routing::Forward,
            ..paxos::Options::default()
        };
        // Where they listen says the topology.
        let addresses = members.iter().map(|node| (*node, String::new())).collect();
        let planted = self.mutation.in_service();
        let (me, service) = (self.process(self.me), Configuration::default());
        let service = service.with_mutation(planted);
        // It keeps its memory, so that its starts need not be told apart.
        let seed = meridian_core::mix(u64::from(self.me.0));
        let paxos =
            Paxos::new(me, paxos::Configuration { members: addresses }, options, service, seed);
        let (own, executed) = (Own::default(), (0, Time(0)));
        self.begun = Some(Begun { since, members, paxos, own, executed });
    }

    /// Begins if the configuration says so; whether it does.
    fn begin(&mut self, out: &mut Outbox<Self>) -> bool {
        let keeping = &self.topology.keeping;
        if self.begun.is_some() || self.ended || !keeping.goes_on(self.me) {
            return false;
        }
        let (since, members) = (self.topology.version, self.begins_with());
        out.persist(Record::Began { since, members: members.clone() });
        self.make(since, members);
        true
    }

    /// Who keeps the configuration: those that kept it first, for each of them; for who comes later
    /// those that do now.
    fn begins_with(&self) -> BTreeSet<NodeId> {
        let keeping = &self.topology.keeping;
        if self.mutation.is(Mutation::BeginsAlone) {
            return keeping.replicas.clone();
        }
        if keeping.first.contains(&self.me) || self.mutation.is(Mutation::BeginsWithFirst) {
            return keeping.first.clone();
        }
        let now = keeping.replicas.union(&keeping.replaced);
        now.filter(|node| **node != self.me && !keeping.joining.contains(node)).copied().collect()
    }

    fn start(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.begun.is_some() {
            self.step_paxos(now, Event::Started, out);
            out.timer(now + TICK, Timer::Tick);
        }
    }

    fn on_configured(&mut self, now: Time, topology: Arc<Topology>, out: &mut Outbox<Self>) {
        if topology.version < self.topology.version {
            return;
        }
        self.topology = topology;
        if self.begin(out) {
            let keeping = &self.topology.keeping;
            let all = [&keeping.first, &keeping.replicas, &keeping.replaced];
            let others: BTreeSet<_> =
                all.into_iter().flatten().filter(|n| **n != self.me).collect();
            for other in others {
                out.send(*other, Message::Began);
            }
            self.start(now, out);
        }
        let keeping = &self.topology.keeping;
        let early = self.mutation.is(Mutation::EndsEarly) && !keeping.replicas.contains(&self.me);
        let ends = early || !keeping.goes_on(self.me);
        if ends && self.begun.as_ref().is_some_and(|begun| begun.since < self.topology.version) {
            self.ended = true;
            self.begun = None;
            out.persist(Record::Ended);
            out.output(Told::Stopped(Stopped::Removed));
        }
    }

    fn on_service(&mut self, now: Time, command: paxos::Command, out: &mut Outbox<Self>) {
        let paxos = self.begun.as_ref().map(|begun| &begun.paxos);
        if paxos.is_some_and(|paxos| paxos.status().stopped.is_none()) {
            return self.step_paxos(now, Event::Command(command), out);
        }
        let answer = Answer::Redirect(None);
        match (command, paxos) {
            // Who was removed may be the only one that knows who comes in its place.
            (
                paxos::Command::Read { token, question, consistency: Consistency::Stale },
                Some(paxos),
            ) => {
                let answer = Answer::Done(paxos.service().query(&question));
                out.output(Told::Read { token, answer });
            }
            (paxos::Command::Request(request), _) => {
                let (client, sequence) = (request.client, request.sequence);
                out.output(Told::Reply { client, sequence, answer });
            }
            (paxos::Command::Read { token, .. }, _) => out.output(Told::Read { token, answer }),
            (paxos::Command::Connect { .. } | paxos::Command::Disconnected(_), _) => {}
        }
    }

    fn step_paxos(
        &mut self,
        now: Time,
        event: Event<Paxos<Configuration>>,
        out: &mut Outbox<Self>,
    ) {
        let Some(Begun { paxos, own, .. }) = &mut self.begun else { return };
        let mut inner = Outbox::new();
        paxos.step(now, event, &mut inner);
        out.absorb(&mut inner, own);
    }

    fn on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(begun) = &mut self.begun else { return };
        out.timer(now + TICK, Timer::Tick);
        let version = begun.paxos.service().file().map_or(0, |file| file.configuration.version);
        if begun.executed.0 != version {
            begun.executed = (version, now);
        }
        if begun.own.asked.is_some_and(|since| now.since(since) < ASK_AGAIN) {
            return;
        }
        begun.own.asked = None;
        let Some((kind, payload)) = begun.wish(now, self.me) else { return };
        if begun.own.client.is_none() {
            let connect = paxos::Command::Connect { token: OWN_TOKEN };
            self.step_paxos(now, Event::Command(connect), out);
        }
        let Some(Begun { own, .. }) = &mut self.begun else { return };
        let Some(client) = own.client else { return };
        own.sequence += 1;
        own.asked = Some(now);
        let request = paxos::Request { client, sequence: own.sequence, kind, payload };
        self.step_paxos(now, Event::Command(paxos::Command::Request(request)), out);
    }
}

impl Begun {
    /// What is to be asked of all replicas, going by what is executed here.
    fn wish(&self, now: Time, me: NodeId) -> Option<(Kind, bytes::Bytes)> {
        let file = self.paxos.service().file()?;
        // S1: the state is a topology.
        let topology = Topology::new(file).ok()?;
        let (keeping, status) = (&topology.keeping, self.paxos.status());
        let mut open = self.paxos.open_members();
        let takes_part = status.active && open.all(|members| members.contains(me));
        if keeping.joining.contains(&me) && takes_part {
            let name = topology.node(me).name.clone();
            return Some((Kind::Execute, encode(&Request::Keeps { name })));
        }
        let members = status.members.members;
        let old = members.keys().find(|node| !keeping.replicas.contains(node));
        let new = keeping.replicas.iter().find(|node| !members.contains_key(node));
        let learned = now.since(self.executed.1) >= LEARNED;
        let (Some(old), Some(new), true, true) = (old, new, status.leading, learned) else {
            return None;
        };
        let change = Change::Replace { old: *old, new: *new, address: String::new() };
        Some((Kind::Reconfigure, change_payload(&change)))
    }
}

/// The answers to what the replica asks itself stay with it.
impl Embedding<Paxos<Configuration>, ConfigurationReplica> for Own {
    fn message(&mut self, to: ProcessId, message: paxos::Message) -> (NodeId, Message) {
        (to.node, Message::Paxos(message))
    }

    fn record(&mut self, record: paxos::Record) -> Record {
        Record::Paxos(record)
    }

    fn timer(&mut self, timer: paxos::Timer) -> Timer {
        Timer::Paxos(timer)
    }

    fn output(&mut self, output: Told, out: &mut Outbox<ConfigurationReplica>) {
        match output {
            Told::Connected { token: OWN_TOKEN, client } => self.client = Some(client),
            Told::Reply { client, sequence, answer } if Some(client) == self.client => {
                if answer == Answer::Forgotten {
                    self.client = None;
                }
                if sequence == self.sequence {
                    self.asked = None; // Whether it is done shows the state.
                }
            }
            output => out.output(output),
        }
    }
}

impl Process for ConfigurationReplica {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Told;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.begin(out);
                self.start(now, out);
            }
            Event::Message { from, message: Message::Paxos(message) } => {
                let from = self.process(from);
                self.step_paxos(now, Event::Message { from, message }, out);
            }
            // What it was sent before it had begun is lost.
            Event::Message { from, message: Message::Began } | Event::Restarted(from) => {
                self.step_paxos(now, Event::Restarted(self.process(from)), out);
            }
            Event::Command(Command::Configured(topology)) => {
                self.on_configured(now, topology, out);
            }
            Event::Command(Command::Service(command)) => self.on_service(now, command, out),
            Event::Timer(Timer::Tick) => self.on_tick(now, out),
            Event::Timer(Timer::Paxos(timer)) => self.step_paxos(now, Event::Timer(timer), out),
            Event::Idle => self.step_paxos(now, Event::Idle, out),
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Began { since, members } => self.make(since, members),
            Record::Paxos(record) => {
                let begun = self.begun.as_mut().expect("a replica begins before all it notes");
                begun.paxos.replay(record);
            }
            Record::Ended => (self.begun, self.ended) = (None, true),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        match &self.begun {
            Some(begun) => {
                let (since, members) = (begun.since, begun.members.clone());
                let began = std::iter::once(Record::Began { since, members });
                Box::new(began.chain(begun.paxos.checkpoint().map(Record::Paxos)))
            }
            None => Box::new(self.ended.then_some(Record::Ended).into_iter()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
