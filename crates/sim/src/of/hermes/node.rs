//! A server's keys: the steward, and a replica of the only shard.
//!
//! What the two say to each other is delayed, as between threads of which one has much to do; it
//! arrives in order, and nobody hears what a crash could undo. What each says to its like at other
//! nodes goes its own way through a bad network.

use super::register::Change;
use crate::lossy::{self, Loss, Lossy};
use crate::world::Random;
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::reliable::{self, ReliableMembership};
use meridian_hermes::{self as hermes, Answer, Hermes};
use meridian_keys::node::{self, Keys, told};
use meridian_keys::slots::Shard;
use meridian_keys::steward::{self, Report, Reported, Steward};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// A thread that has much to do hears others this late at most.
const BUSY: Duration = Duration::from_millis(30);

/// What one thread says to the other.
#[derive(Clone, Debug)]
pub enum Passed {
    /// To the steward.
    Report(Report),
    /// To the replica.
    Told(reliable::Output),
}

/// What comes to a node.
#[derive(Clone, Debug)]
pub enum Message {
    /// Between stewards.
    Steward(reliable::Message),
    /// Between replicas.
    Replica(hermes::Message),
    /// Within the node, which sends it to itself: so it waits for what must be durable first.
    Passed(Passed),
}

/// What comes from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A client asks.
    Keys(hermes::Command<Change>),
    /// The node hears who should hold keys.
    Configure(reliable::Configured),
}

/// What is on the node's disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    /// The steward's.
    Steward(reliable::Record),
    /// The replica's.
    Replica(hermes::Record),
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// The steward's.
    Steward(lossy::Timer<reliable::Timer>),
    /// The replica's.
    Replica(lossy::Timer<hermes::Timer>),
    /// One thread hears the other.
    Hears,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Node {
    me: NodeId,
    steward: Lossy<Steward>,
    keys: Lossy<Keys<Change>>,
    /// What one thread has said to the other, and when it is heard.
    reports: VecDeque<(Time, Report)>,
    told: VecDeque<(Time, reliable::Output)>,
    random: Random,
}

impl Node {
    /// One of these two, behind that network. `seed` must differ between any two starts.
    pub fn new(
        membership: ReliableMembership,
        replica: Hermes<Change>,
        loss: &Rc<Cell<Loss>>,
        seed: u64,
    ) -> Node {
        let me = replica.me();
        let steward = Lossy::new(Steward::new(membership, 1), loss.clone(), seed ^ 0x57e7);
        let keys = Lossy::new(Keys::new(replica), loss.clone(), seed);
        let random = Random::seed_from_u64(seed ^ 0x7427);
        Node { me, steward, keys, reports: VecDeque::new(), told: VecDeque::new(), random }
    }

    /// The replica.
    pub fn replica(&self) -> &Hermes<Change> {
        self.keys.inner.replica()
    }

    /// Who takes part.
    pub fn membership(&self) -> &ReliableMembership {
        self.steward.inner.membership()
    }

    /// When what is said now is heard: mostly at once, and not before what was said earlier.
    fn heard(&mut self, now: Time, earlier: Option<Time>) -> Time {
        let most = if self.random.random_ratio(1, 10) { BUSY } else { BUSY / 300 };
        let most = u64::try_from(most.as_nanos()).expect("short");
        let after = Duration::from_nanos(self.random.random_range(0..=most));
        (now + after).max(earlier.unwrap_or_default())
    }

    fn pass(&mut self, now: Time, passed: Passed, out: &mut Outbox<Self>) {
        let at = match passed {
            Passed::Report(report) => {
                let at = self.heard(now, self.reports.back().map(|(at, _)| *at));
                self.reports.push_back((at, report));
                at
            }
            Passed::Told(output) => {
                let at = self.heard(now, self.told.back().map(|(at, _)| *at));
                self.told.push_back((at, output));
                at
            }
        };
        out.timer(at, Timer::Hears);
    }

    fn hear(&mut self, now: Time, out: &mut Outbox<Self>) {
        while let Some((_, report)) = self.reports.pop_front_if(|(at, _)| *at <= now) {
            self.step_steward(
                now,
                Event::Command(steward::Command::Reported(Reported(Shard(0), report))),
                out,
            );
        }
        while let Some((_, output)) = self.told.pop_front_if(|(at, _)| *at <= now) {
            self.step_keys(now, Event::Command(node::Command::Replica(told(output))), out);
        }
    }

    fn step_steward(&mut self, now: Time, event: Event<Lossy<Steward>>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.steward.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut Within(self.me));
    }

    fn step_keys(&mut self, now: Time, event: Event<Lossy<Keys<Change>>>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.keys.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut Within(self.me));
    }
}

impl Process for Node {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = (u64, Answer);
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.step_keys(now, Event::Started, out);
                self.step_steward(now, Event::Started, out);
            }
            Event::Message { from, message: Message::Steward(message) } => {
                self.step_steward(now, Event::Message { from, message }, out);
            }
            Event::Message { from, message: Message::Replica(message) } => {
                self.step_keys(now, Event::Message { from, message }, out);
            }
            Event::Message { message: Message::Passed(passed), .. } => self.pass(now, passed, out),
            Event::Command(Command::Keys(command)) => {
                self.step_keys(now, Event::Command(node::Command::Replica(command)), out);
            }
            Event::Command(Command::Configure(configured)) => {
                let configure = steward::Command::Configure(configured);
                self.step_steward(now, Event::Command(configure), out);
            }
            Event::Timer(Timer::Steward(timer)) => {
                self.step_steward(now, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Replica(timer)) => self.step_keys(now, Event::Timer(timer), out),
            Event::Timer(Timer::Hears) => self.hear(now, out),
            Event::Restarted(peer) => {
                self.step_steward(now, Event::Restarted(peer), out);
                self.step_keys(now, Event::Restarted(peer), out);
            }
            Event::Idle => {
                self.step_steward(now, Event::Idle, out);
                self.step_keys(now, Event::Idle, out);
            }
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Steward(record) => self.steward.replay(record),
            Record::Replica(record) => self.keys.replay(record),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let steward = self.steward.checkpoint().map(Record::Steward);
        Box::new(steward.chain(self.keys.checkpoint().map(Record::Replica)))
    }
}

/// The threads of this node, as seen from outside.
struct Within(NodeId);

impl Embedding<Lossy<Steward>, Node> for Within {
    fn message(&mut self, to: NodeId, message: reliable::Message) -> (NodeId, Message) {
        (to, Message::Steward(message))
    }

    fn record(&mut self, record: reliable::Record) -> Record {
        Record::Steward(record)
    }

    fn timer(&mut self, timer: lossy::Timer<reliable::Timer>) -> Timer {
        Timer::Steward(timer)
    }

    fn output(&mut self, output: reliable::Output, out: &mut Outbox<Node>) {
        out.send(self.0, Message::Passed(Passed::Told(output)));
    }
}

impl Embedding<Lossy<Keys<Change>>, Node> for Within {
    fn message(&mut self, to: NodeId, message: hermes::Message) -> (NodeId, Message) {
        (to, Message::Replica(message))
    }

    fn record(&mut self, record: hermes::Record) -> Record {
        Record::Replica(record)
    }

    fn timer(&mut self, timer: lossy::Timer<hermes::Timer>) -> Timer {
        Timer::Replica(timer)
    }

    fn output(&mut self, output: node::Output, out: &mut Outbox<Node>) {
        match output {
            node::Output::Answered { token, answer } => out.output((token, answer)),
            node::Output::Report(report) => {
                out.send(self.0, Message::Passed(Passed::Report(report)))
            }
            node::Output::Watching | node::Output::Committed { .. } => {}
        }
    }
}
