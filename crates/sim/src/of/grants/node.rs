//! A node with keys: the steward, and threads that have each a shard and the clients of a desk.
//!
//! As at a server, a node writes down how the cluster is configured before its threads hear of it,
//! and these hear of it one after the other. What they say to each other the node sends to itself:
//! so it waits for what must be durable first.

use super::thread::{Bug, Here, Thread, Wanted};
use bytes::Bytes;
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::reliable::{self, Configured, ReliableMembership};
use meridian_hermes::{self as hermes, Hermes};
use meridian_keys::change::Rmw;
use meridian_keys::desk::passing::Passed;
use meridian_keys::desk::{ClientNumber, Desk, Now, Replica};
use meridian_keys::node::{self, told};
use meridian_keys::resp::Reply;
use meridian_keys::slots::Shard;
use meridian_keys::steward::{self, Report, Reported, Steward};
use meridian_keys::{Grants, Keys};
use std::sync::Arc;
use std::time::Duration;

/// So many threads have keys: what one passes on to the other was looked at by the first.
pub const SHARDS: u8 = 2;
/// So much later than the thread before it one hears how the cluster is configured.
const LATER: Duration = Duration::from_millis(5);
/// A desk that is due at once is looked at after this: time goes on.
const SOON: Duration = Duration::from_micros(100);

/// What threads are told of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following {
    /// Who should hold keys, and in which version.
    pub configured: Configured,
    /// What clients may do.
    pub grants: Arc<Grants>,
}

/// What one thread of a node says to others.
#[derive(Clone, Debug)]
pub enum Within {
    /// To the steward.
    Report(Reported),
    /// The steward, to all shards.
    Told(reliable::Output),
    /// One desk to another.
    Passed {
        /// From the thread of this shard.
        from: Shard,
        /// To that of this one.
        to: Shard,
        /// What it says.
        passed: Passed,
    },
    /// A replica, to its desk.
    Said(Shard, node::Output),
    /// The configuration is written down, and threads hear of it.
    Follow(Following),
}

/// What comes to a node.
#[derive(Clone, Debug)]
pub enum Message {
    /// Between stewards.
    Steward(reliable::Message),
    /// Between replicas of a shard.
    Replica(Shard, hermes::Message),
    /// Between threads of this node.
    Within(Within),
}

/// What comes from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Bytes come from a client; the first open its connection.
    Ask {
        /// To this thread.
        shard: Shard,
        /// On this connection.
        client: ClientNumber,
        /// The client's name in its certificate.
        name: &'static str,
        /// What it sends.
        bytes: Bytes,
    },
    /// A client has closed its connection.
    Leave {
        /// To this thread.
        shard: Shard,
        /// Which.
        client: ClientNumber,
    },
    /// The node hears how the cluster is configured.
    Follow(Following),
}

/// What is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A client is written this.
    Wrote {
        /// On this connection.
        client: ClientNumber,
        /// What.
        reply: Reply,
    },
    /// A connection has ended.
    Ended(ClientNumber),
    /// All threads have this version of the configuration, and will have it or a later one.
    InForce(u64),
}

/// What is on a node's disk.
#[derive(Clone, Debug)]
pub enum Record {
    /// The steward's.
    Steward(reliable::Record),
    /// That of the replica of a shard.
    Replica(Shard, hermes::Record),
    /// How the cluster is configured.
    Follows(Following),
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// The steward's.
    Steward(reliable::Timer),
    /// That of the replica of a shard.
    Replica(Shard, hermes::Timer),
    /// The desk of that shard is to be looked at, which comes with the end of each batch.
    Desk(Shard),
    /// The thread of that shard hears how the cluster is configured.
    Hears(Shard),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Node {
    me: NodeId,
    steward: Steward,
    threads: Vec<Thread>,
    /// The configuration as it is written down.
    following: Following,
    /// The version that all threads have.
    in_force: u64,
}

fn shards() -> impl Iterator<Item = Shard> {
    (0..SHARDS).map(Shard)
}

impl Node {
    /// One with this steward and a replica for each shard, of a cluster that is configured so.
    pub fn new(
        membership: ReliableMembership,
        replica: impl Fn(Shard) -> Replica,
        first: Following,
        bug: Bug,
    ) -> Node {
        let thread = |shard| Thread::new(shard, replica(shard), &first, bug);
        let threads: Vec<_> = shards().map(thread).collect();
        let (me, in_force) = (threads[0].keys.replica().me(), first.configured.version);
        let steward = Steward::new(membership, usize::from(SHARDS));
        Node { me, steward, threads, following: first, in_force }
    }

    /// What it has of each shard.
    pub fn replicas(&self) -> impl Iterator<Item = &Hermes<Rmw>> {
        self.threads.iter().map(|thread| thread.keys.replica())
    }

    /// Who takes part.
    pub fn membership(&self) -> &ReliableMembership {
        self.steward.membership()
    }

    fn thread(&mut self, shard: Shard) -> &mut Thread {
        &mut self.threads[usize::from(shard.0)]
    }

    fn step_steward(&mut self, now: Time, event: Event<Steward>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.steward.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut OfSteward(self.me));
    }

    fn step_keys(&mut self, now: Time, shard: Shard, event: Event<Keys>, out: &mut Outbox<Self>) {
        let (me, mut inner) = (self.me, Outbox::new());
        self.thread(shard).keys.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut OfKeys(me, shard));
    }

    fn at_desk<R>(
        &mut self,
        now: Time,
        shard: Shard,
        out: &mut Outbox<Self>,
        work: impl FnOnce(&mut Desk, Now, &Replica, &mut Here<'_>) -> R,
    ) -> R {
        let (result, wanted) = self.thread(shard).at_desk(now, work);
        for wanted in wanted {
            match wanted {
                Wanted::Ask(asked) => {
                    let asked = node::Command::Replica(asked);
                    self.step_keys(now, shard, Event::Command(asked), out);
                }
                Wanted::Pass(to, passed) => {
                    let passed = Within::Passed { from: shard, to, passed };
                    out.send(self.me, Message::Within(passed));
                }
                Wanted::Write(client, reply) => out.output(Output::Wrote { client, reply }),
                Wanted::End(client) => {
                    out.output(Output::Ended(client));
                    self.disconnect(now, shard, client, out);
                }
            }
        }
        result
    }

    fn disconnect(
        &mut self,
        now: Time,
        shard: Shard,
        client: ClientNumber,
        out: &mut Outbox<Self>,
    ) {
        self.at_desk(now, shard, out, |desk, _, _, here| desk.disconnect(client, here));
        let thread = self.thread(shard);
        thread.names.remove(&client);
        thread.first.remove(&client);
    }

    fn on_command(&mut self, now: Time, command: Command, out: &mut Outbox<Self>) {
        match command {
            Command::Ask { shard, client, name, bytes } => {
                let thread = self.thread(shard);
                if thread.names.insert(client, name).is_none() {
                    thread.desk.connect(client);
                }
                thread.desk.feed(client, &bytes);
                while self.at_desk(now, shard, out, |desk, now, replica, here| {
                    desk.take(now, client, replica, here)
                }) {
                    if self.thread(shard).keys.wants_use(now) {
                        self.step_keys(now, shard, Event::Command(node::Command::Use), out);
                    }
                }
            }
            Command::Leave { shard, client } => self.disconnect(now, shard, client, out),
            Command::Follow(following) => {
                if following.configured.version > self.following.configured.version {
                    self.following = following.clone();
                    out.persist(Record::Follows(following.clone()));
                    out.send(self.me, Message::Within(Within::Follow(following)));
                }
            }
        }
    }

    fn on_within(&mut self, now: Time, within: Within, out: &mut Outbox<Self>) {
        match within {
            Within::Report(reported) => {
                let reported = steward::Command::Reported(reported);
                self.step_steward(now, Event::Command(reported), out);
            }
            Within::Told(output) => {
                for shard in shards() {
                    let told = node::Command::Replica(told(output.clone()));
                    self.step_keys(now, shard, Event::Command(told), out);
                }
            }
            Within::Passed { from, to, passed } => {
                self.at_desk(now, to, out, |desk, now, replica, here| {
                    desk.on_passed(now, from, passed, replica, here)
                });
            }
            Within::Said(shard, node::Output::Answered { token, answer }) => {
                self.at_desk(now, shard, out, |desk, now, replica, here| {
                    desk.on_answer(now, token, answer, replica, here)
                });
            }
            Within::Said(shard, node::Output::Watching) => {
                self.thread(shard).desk.on_watching();
            }
            Within::Said(shard, node::Output::Committed { key }) => {
                self.thread(shard).desk.on_committed(&key);
            }
            Within::Said(_, node::Output::Report(report)) => {
                panic!("{report:?} is for the steward")
            }
            Within::Follow(following) => {
                let configure = steward::Command::Configure(following.configured);
                self.step_steward(now, Event::Command(configure), out);
                for shard in shards() {
                    out.timer(now + LATER * u32::from(shard.0), Timer::Hears(shard));
                }
            }
        }
    }

    /// A thread hears of the configuration that is written down.
    fn hear(&mut self, now: Time, shard: Shard, out: &mut Outbox<Self>) {
        let following = self.following.clone();
        if self.thread(shard).follow(&following) {
            self.at_desk(now, shard, out, |desk, _, _, here| desk.on_grants(here));
        }
        let all = self.threads.iter().map(|thread| thread.version).min().unwrap_or_default();
        if all > self.in_force {
            self.in_force = all;
            out.output(Output::InForce(all));
        }
    }

    /// The batch is over: desks go on with what waited.
    fn look_again(&mut self, now: Time, shard: Shard, out: &mut Outbox<Self>) {
        self.at_desk(now, shard, out, |desk, now, replica, here| {
            desk.look_again(now, replica, here)
        });
        let thread = self.thread(shard);
        let due = thread.desk.due().map(|due| due.max(now + SOON));
        if let Some(due) = due.filter(|due| thread.alarm.is_none_or(|alarm| *due < alarm)) {
            thread.alarm = Some(due);
            out.timer(due, Timer::Desk(shard));
        }
    }

    /// The same for the steward and all shards.
    fn step_all(
        &mut self,
        now: Time,
        steward: Event<Steward>,
        keys: impl Fn() -> Event<Keys>,
        out: &mut Outbox<Self>,
    ) {
        shards().for_each(|shard| self.step_keys(now, shard, keys(), out));
        self.step_steward(now, steward, out);
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
                self.step_all(now, Event::Started, || Event::Started, out);
                out.output(Output::InForce(self.in_force));
            }
            Event::Message { from, message: Message::Steward(message) } => {
                self.step_steward(now, Event::Message { from, message }, out);
            }
            Event::Message { from, message: Message::Replica(shard, message) } => {
                self.step_keys(now, shard, Event::Message { from, message }, out);
            }
            Event::Message { message: Message::Within(within), .. } => {
                self.on_within(now, within, out);
            }
            Event::Command(command) => self.on_command(now, command, out),
            Event::Timer(Timer::Steward(timer)) => {
                self.step_steward(now, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Replica(shard, timer)) => {
                self.step_keys(now, shard, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Desk(shard)) => {
                let thread = self.thread(shard);
                thread.alarm = thread.alarm.filter(|alarm| *alarm > now);
            }
            Event::Timer(Timer::Hears(shard)) => self.hear(now, shard, out),
            Event::Restarted(peer) => {
                self.step_all(now, Event::Restarted(peer), || Event::Restarted(peer), out);
            }
            Event::Idle => {
                self.step_all(now, Event::Idle, || Event::Idle, out);
                shards().for_each(|shard| self.look_again(now, shard, out));
            }
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Steward(record) => self.steward.replay(record),
            Record::Replica(shard, record) => self.thread(shard).keys.replay(record),
            Record::Follows(following) => {
                for thread in &mut self.threads {
                    thread.follow(&following); // Nobody is connected, so nobody watches.
                }
                self.in_force = following.configured.version;
                self.following = following;
            }
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let replicas = shards().zip(&self.threads).flat_map(|(shard, thread)| {
            thread.keys.checkpoint().map(move |record| Record::Replica(shard, record))
        });
        let replicas: Vec<_> = replicas.collect();
        let steward = self.steward.checkpoint().map(Record::Steward);
        let own = [Record::Follows(self.following.clone())];
        Box::new(own.into_iter().chain(steward).chain(replicas))
    }
}

/// The steward of this node.
struct OfSteward(NodeId);

impl Embedding<Steward, Node> for OfSteward {
    fn message(&mut self, to: NodeId, message: reliable::Message) -> (NodeId, Message) {
        (to, Message::Steward(message))
    }

    fn record(&mut self, record: reliable::Record) -> Record {
        Record::Steward(record)
    }

    fn timer(&mut self, timer: reliable::Timer) -> Timer {
        Timer::Steward(timer)
    }

    fn output(&mut self, output: reliable::Output, out: &mut Outbox<Node>) {
        out.send(self.0, Message::Within(Within::Told(output)));
    }
}

/// The replica of a shard of this node.
struct OfKeys(NodeId, Shard);

impl Embedding<Keys, Node> for OfKeys {
    fn message(&mut self, to: NodeId, message: hermes::Message) -> (NodeId, Message) {
        (to, Message::Replica(self.1, message))
    }

    fn record(&mut self, record: hermes::Record) -> Record {
        Record::Replica(self.1, record)
    }

    fn timer(&mut self, timer: hermes::Timer) -> Timer {
        Timer::Replica(self.1, timer)
    }

    fn output(&mut self, output: node::Output, out: &mut Outbox<Node>) {
        let within = match output {
            node::Output::Report(report) => of_shard(self.1, report),
            output => Within::Said(self.1, output),
        };
        out.send(self.0, Message::Within(within));
    }
}

fn of_shard(shard: Shard, report: Report) -> Within {
    Within::Report(Reported(shard, report))
}
