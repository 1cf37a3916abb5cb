//! What a message costs with so many under way: six processes of two groups in one thread, without
//! sockets and disks. In each round two messages are multicast to both groups; what processes send
//! to each other is so many rounds on its way. So the number under way grows with the rounds, and
//! what is done in a round stays the same.
//!
//! ```sh
//! cargo build --release -p meridian-multicast --example cost
//! valgrind --tool=cachegrind --cache-sim=no target/release/examples/cost ROUNDS MESSAGES [keys]
//! ```
//!
//! The instructions for a message are the difference between two runs, divided by how many more
//! messages one had. With `keys` each message conflicts with one of a thousand others, else with
//! all.

use bytes::Bytes;
use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Process, ProcessId, Time,
};
use meridian_multicast::{Command, Message, Output, PrimCast, Start, Touches};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const REPLICAS: u16 = 3;
const GROUPS: [GroupId; 2] = [GroupId(0), GroupId(1)];
/// So many messages are multicast in each round.
const RATE: u64 = 2;
/// How long a round takes.
const ROUND: Duration = Duration::from_micros(2);
const KEYS: u64 = 1000;

struct Node {
    me: ProcessId,
    process: PrimCast,
    delivered: u64,
    timers: BTreeMap<Time, meridian_multicast::Timer>,
    /// What this process multicast and has not delivered, from number `low` on: whether it has.
    own: VecDeque<bool>,
    low: u64,
}

impl Node {
    /// The next message of this process.
    fn start(&mut self, touches: Touches, payload: &Bytes) -> Start {
        let sequence = self.low + self.own.len() as u64;
        self.own.push_back(false);
        let id = MessageId { client: ClientId(self.me.node.0.into()), sequence };
        Start { low: self.low, touches, ..Start::new(id, GROUPS, payload.clone()) }
    }

    fn on_delivery(&mut self, id: MessageId) {
        self.delivered += 1;
        if id.client.0 == u64::from(self.me.node.0)
            && let Some(at) = id.sequence.checked_sub(self.low)
            && let Some(own) = usize::try_from(at).ok().and_then(|at| self.own.get_mut(at))
        {
            *own = true;
            while self.own.pop_front_if(|own| *own).is_some() {
                self.low += 1;
            }
        }
    }
}

/// What arrives in a round: to whom, from whom, what.
type Arrivals = Vec<(usize, ProcessId, Message)>;

struct World {
    now: Time,
    nodes: Vec<Node>,
    /// By round, the next one first.
    under_way: VecDeque<Arrivals>,
    rounds: usize,
    outbox: Outbox<PrimCast>,
}

impl World {
    fn new(rounds: usize) -> World {
        let groups = (0..).zip(GROUPS).map(|(at, group): (u16, _)| {
            (group, (at * REPLICAS..(at + 1) * REPLICAS).map(NodeId).collect::<Vec<_>>())
        });
        let groups = Arc::new(groups.collect::<BTreeMap<_, _>>());
        let members = groups.iter().flat_map(|(group, nodes)| {
            nodes.iter().map(|node| ProcessId { group: *group, node: *node })
        });
        let node = |me| Node {
            me,
            process: PrimCast::new(me, groups.clone()),
            delivered: 0,
            timers: BTreeMap::new(),
            own: VecDeque::new(),
            low: 1,
        };
        let nodes = members.map(node).collect();
        let under_way = VecDeque::from([Arrivals::new()]);
        let mut world = World { now: Time(0), nodes, under_way, rounds, outbox: Outbox::new() };
        (0..world.nodes.len()).for_each(|at| world.step(at, Event::Started));
        world
    }

    fn step(&mut self, at: usize, event: Event<PrimCast>) {
        let node = &mut self.nodes[at];
        node.process.step(self.now, event, &mut self.outbox);
        for effect in self.outbox.drain() {
            match effect {
                Effect::Send { to, message } => {
                    let after = if to == node.me { 0 } else { self.rounds };
                    while self.under_way.len() <= after {
                        self.under_way.push_back(Arrivals::new());
                    }
                    // Node numbers count through all groups.
                    self.under_way[after].push((usize::from(to.node.0), node.me, message));
                }
                Effect::Output(Output::Deliver(delivery)) => node.on_delivery(delivery.start.id),
                Effect::Timer { at, timer } => drop(node.timers.insert(at, timer)),
                Effect::Persist(_) | Effect::Note(_) | Effect::Output(_) => {}
            }
        }
    }

    /// One round, in which processes multicast messages with these numbers, in turn.
    fn round(&mut self, fresh: Range<u64>, keys: bool, payload: &Bytes) {
        self.now = self.now + ROUND;
        for (to, from, message) in self.under_way.pop_front().unwrap_or_default() {
            self.step(to, Event::Message { from, message });
        }
        for number in fresh {
            let at = usize::try_from(number).unwrap_or_default() % self.nodes.len();
            let touches = if keys { Touches::keys([number % KEYS]) } else { Touches::All };
            let start = self.nodes[at].start(touches, payload);
            self.step(at, Event::Command(Command::Multicast(start)));
        }
        for at in 0..self.nodes.len() {
            while let Some(due) = self.nodes[at].timers.first_entry()
                && *due.key() <= self.now
            {
                let timer = due.remove();
                self.step(at, Event::Timer(timer));
            }
            self.step(at, Event::Idle);
        }
    }

    fn delivered(&self) -> u64 {
        self.nodes.iter().map(|node| node.delivered).min().unwrap_or_default()
    }
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: cost ROUNDS MESSAGES [keys]";
    let number = |at: usize| {
        let number = arguments.get(at).and_then(|text| text.parse::<u64>().ok());
        number.filter(|number| *number > 0).ok_or(usage)
    };
    let (rounds, messages) = (number(0)?, number(1)?);
    let keys = match arguments.get(2).map(String::as_str) {
        None => false,
        Some("keys") => true,
        Some(_) => return Err(usage.into()),
    };
    let mut world = World::new(usize::try_from(rounds).map_err(|_| usage)?);
    let payload = Bytes::from_static(&[7; 64]);
    let (mut sent, mut most, mut looks) = (0, 0, 0);
    while world.delivered() < messages {
        // First the processes meet.
        let fresh = if looks < rounds * 4 { 0 } else { RATE.min(messages - sent) };
        world.round(sent..sent + fresh, keys, &payload);
        sent += fresh;
        looks += 1;
        most = most.max(sent - world.delivered());
        if world.now > Time(0) + ROUND * 1_000_000_000 {
            return Err(format!("{} of {messages} messages were delivered", world.delivered()));
        }
    }
    println!("{messages} messages in {looks} rounds, {most} under way at most");
    Ok(())
}
