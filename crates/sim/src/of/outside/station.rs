//! The process of each peer: a member with its desk, or a client.

use crate::of::multicast::replica::{Kept, Replica};
use meridian_core::{Embedding, Event, GroupId, Outbox, Process, ProcessId, Time};
use meridian_multicast::outside::{self, Desk, Due, Say, Sender};
use meridian_multicast::{Command, Message, Output, Timer};
use std::convert::Infallible;

/// The group that clients seem to be in.
pub const NOWHERE: GroupId = GroupId(1000);

/// See the module.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There are few.
pub enum Station {
    /// A member.
    Member {
        /// The protocol, and the list of what it delivered.
        replica: Replica,
        /// Senders that are in no group.
        desk: Desk<ProcessId>,
    },
    /// A client.
    Client(Sender),
}

/// What travels.
#[derive(Clone, Debug)]
pub enum Travels {
    /// Between members.
    Inside(Message),
    /// Between a client and a member.
    Outside(Say),
}

/// What is told.
#[derive(Clone, Debug)]
pub enum Told {
    /// By a member.
    Member(Output),
    /// By a client.
    Client(outside::Output),
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Alarm {
    /// A member's.
    Member(Timer),
    /// A client's.
    Client(Due),
}

struct OfMember<'a> {
    desk: &'a mut Desk<ProcessId>,
    replica: &'a Replica,
}

impl Embedding<Replica, Station> for OfMember<'_> {
    fn message(&mut self, to: ProcessId, message: Message) -> (ProcessId, Travels) {
        (to, Travels::Inside(message))
    }

    fn record(&mut self, record: Kept) -> Kept {
        record
    }

    fn timer(&mut self, timer: Timer) -> Alarm {
        Alarm::Member(timer)
    }

    fn output(&mut self, output: Output, out: &mut Outbox<Station>) {
        let answer = match &output {
            Output::Deliver(delivery) => self.desk.on_delivered(delivery.start.id, delivery.ts),
            Output::Duplicate(id) => {
                let ts = self.replica.multicast.delivered_at(*id);
                ts.and_then(|ts| self.desk.on_delivered(*id, ts))
            }
            Output::Refused { id, group } => self.desk.on_refused(*id, *group),
            _ => None,
        };
        out.output(Told::Member(output));
        if let Some((client, say)) = answer {
            out.send(client, Travels::Outside(say));
        }
    }
}

struct OfClient;

impl Embedding<Sender, Station> for OfClient {
    fn message(&mut self, to: ProcessId, say: Say) -> (ProcessId, Travels) {
        (to, Travels::Outside(say))
    }

    fn record(&mut self, never: Infallible) -> Kept {
        match never {}
    }

    fn timer(&mut self, timer: Due) -> Alarm {
        Alarm::Client(timer)
    }

    fn output(&mut self, output: outside::Output, out: &mut Outbox<Station>) {
        out.output(Told::Client(output));
    }
}

/// The event for a member's protocol; what comes from clients is the desk's.
fn inside(event: Event<Station>) -> Option<Event<Replica>> {
    Some(match event {
        Event::Started => Event::Started,
        Event::Message { from, message: Travels::Inside(message) } => {
            Event::Message { from, message }
        }
        Event::Timer(Alarm::Member(timer)) => Event::Timer(timer),
        Event::Restarted(peer) if peer.group != NOWHERE => Event::Restarted(peer),
        Event::Idle => Event::Idle,
        Event::Message { .. } | Event::Timer(_) | Event::Restarted(_) | Event::Command(_) => {
            return None;
        }
    })
}

/// The event for a client.
fn of_client(event: Event<Station>) -> Option<Event<Sender>> {
    Some(match event {
        Event::Started => Event::Started,
        Event::Message { from, message: Travels::Outside(message) } => {
            Event::Message { from, message }
        }
        Event::Command(command) => Event::Command(command),
        Event::Timer(Alarm::Client(due)) => Event::Timer(due),
        Event::Restarted(peer) => Event::Restarted(peer),
        Event::Idle => Event::Idle,
        Event::Message { .. } | Event::Timer(_) => return None,
    })
}

/// What a client says to a member, or that its connection is gone.
fn at_desk(
    (now, desk, replica): (Time, &mut Desk<ProcessId>, &Replica),
    event: &Event<Station>,
    out: &mut Outbox<Station>,
) -> Option<Event<Replica>> {
    match event {
        Event::Restarted(client) => desk.on_disconnected(*client),
        Event::Message { from, message: Travels::Outside(Say::Start(start)) } => {
            let all = replica.multicast.members();
            let count = all.groups().map(|group| all.of(group).len()).sum();
            let answer = desk.on_start(now, *from, start.clone(), count, |group| all.has(group));
            match answer {
                Ok(start) => return start.map(|start| Event::Command(Command::Multicast(start))),
                Err(say) => out.send(*from, Travels::Outside(say)),
            }
        }
        _ => {}
    }
    None
}

impl Process for Station {
    type Peer = ProcessId;
    type Message = Travels;
    type Record = Kept;
    type Command = outside::Command;
    type Output = Told;
    type Timer = Alarm;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match self {
            Station::Client(sender) => {
                let Some(event) = of_client(event) else { return };
                let mut inner = Outbox::new();
                sender.step(now, event, &mut inner);
                out.absorb(&mut inner, &mut OfClient);
            }
            Station::Member { replica, desk } => {
                let asked = at_desk((now, desk, replica), &event, out);
                let Some(event) = asked.or_else(|| inside(event)) else { return };
                let mut inner = Outbox::new();
                replica.step(now, event, &mut inner);
                out.absorb(&mut inner, &mut OfMember { desk, replica });
            }
        }
    }

    fn replay(&mut self, record: Kept) {
        match self {
            Station::Member { replica, .. } => replica.replay(record),
            Station::Client(_) => unreachable!("a client keeps nothing"),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Kept> + Send> {
        match self {
            Station::Member { replica, .. } => replica.checkpoint(),
            Station::Client(_) => Box::new(std::iter::empty()),
        }
    }
}

impl Station {
    /// The member, unless it is a client.
    pub fn member(&self) -> Option<&Replica> {
        match self {
            Station::Member { replica, .. } => Some(replica),
            Station::Client(_) => None,
        }
    }
}
