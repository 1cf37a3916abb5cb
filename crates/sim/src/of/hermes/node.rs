//! A node with keys: the reliable membership, and one shard of Hermes that it tells of epochs and
//! leases.

use super::register::Change;
use meridian_core::{Effect, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::reliable::{self, ReliableMembership};
use meridian_hermes::{self as hermes, Hermes};

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Who is a member.
    pub membership: ReliableMembership,
    /// The keys.
    pub keys: Hermes<Change>,
}

/// Of the one or the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Of the membership.
    Membership(reliable::Message),
    /// Of the keys.
    Keys(hermes::Message),
}

/// Of the one or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Of the membership.
    Membership(reliable::Timer),
    /// Of the keys.
    Keys(hermes::Timer),
}

impl Node {
    fn step_membership(
        &mut self,
        now: Time,
        event: Event<ReliableMembership>,
        out: &mut Outbox<Self>,
    ) {
        let mut inner = Outbox::new();
        self.membership.step(now, event, &mut inner);
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, message } => out.send(to, Message::Membership(message)),
                Effect::Persist(record) => out.persist(record),
                Effect::Note(record) => out.note(record),
                Effect::Timer { at, timer } => out.timer(at, Timer::Membership(timer)),
                Effect::Output(output) => {
                    let command = match output {
                        reliable::Output::Install(members) => hermes::Command::Install(members),
                        reliable::Output::Lease { until } => hermes::Command::Lease { until },
                    };
                    self.step_keys(now, Event::Command(command), out);
                }
            }
        }
    }

    fn step_keys(&mut self, now: Time, event: Event<Hermes<Change>>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.keys.step(now, event, &mut inner);
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, message } => out.send(to, Message::Keys(message)),
                Effect::Persist(record) | Effect::Note(record) => match record {},
                Effect::Timer { at, timer } => out.timer(at, Timer::Keys(timer)),
                Effect::Output(hermes::Output::Complete { epoch }) => {
                    let complete = reliable::Command::Complete { epoch };
                    self.step_membership(now, Event::Command(complete), out);
                }
                Effect::Output(output) => out.output(output),
            }
        }
    }
}

impl Process for Node {
    type Peer = NodeId;
    type Message = Message;
    type Record = reliable::Record;
    type Command = hermes::Command<Change>;
    type Output = hermes::Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.step_membership(now, Event::Started, out);
                self.step_keys(now, Event::Started, out);
            }
            Event::Message { from, message: Message::Membership(message) } => {
                self.step_membership(now, Event::Message { from, message }, out);
            }
            Event::Message { from, message: Message::Keys(message) } => {
                self.step_keys(now, Event::Message { from, message }, out);
            }
            Event::Command(command) => self.step_keys(now, Event::Command(command), out),
            Event::Timer(Timer::Membership(timer)) => {
                self.step_membership(now, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Keys(timer)) => self.step_keys(now, Event::Timer(timer), out),
            Event::Restarted(peer) => {
                self.step_membership(now, Event::Restarted(peer), out);
                self.step_keys(now, Event::Restarted(peer), out);
            }
            Event::Idle => {
                self.step_membership(now, Event::Idle, out);
                self.step_keys(now, Event::Idle, out);
            }
        }
    }

    fn replay(&mut self, record: reliable::Record) {
        self.membership.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = reliable::Record> + Send> {
        self.membership.checkpoint()
    }
}
