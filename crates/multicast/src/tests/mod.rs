//! Tests that step processes by hand: one for each claim of the thesis, and one for each bug that a
//! seed of the simulator found.
//!
//! Group `g` has the nodes `10 g`, `10 g + 1`, …; the first of them leads the first
//! epoch, [`e1`].

mod dissemination;
mod epoch;
mod fence;
mod found;
mod hybrid;
mod members;
mod memory;
mod normal;
mod retransmission;
mod snapshot;
mod stability;

use crate::message::*;
use crate::mutation::{Mutation, Planted};
use crate::options::*;
use crate::process::PrimCast;
use crate::record::Record;
use crate::state::epochs::{ELECTION_TIMEOUT, Role};
use crate::state::members::{Config, Members};
use crate::state::partners::{PARTNERS_FOR, SHOW_DELAY};
use crate::state::reach::CUT_TIMEOUT;
use crate::state::relay::{ACK_DELAY, AHEAD};
use crate::state::retransmission::{TICK, Timer};
use crate::state::runs::Runs;
use bytes::Bytes;
use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Position, Process, ProcessId, Time,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

fn process(group: u16, n: u16) -> ProcessId {
    ProcessId { group: GroupId(group), node: NodeId(group * 10 + n) }
}

fn epoch(number: u64, leader: ProcessId) -> Epoch {
    Epoch { config: 0, number, leader: leader.node }
}

/// The groups that the process knows.
fn groups_of(process: &PrimCast) -> Groups {
    let members = &process.members;
    Arc::new(members.groups().map(|group| (group, members.of(group).to_vec())).collect())
}

/// The first epoch of a group that stands.
fn e1(group: u16) -> Epoch {
    epoch(1, process(group, 0))
}

fn id(sequence: u64) -> MessageId {
    MessageId { client: ClientId(7), sequence }
}

fn start(sequence: u64, dest: &[u16]) -> Start {
    let dest: Vec<_> = dest.iter().map(|group| GroupId(*group)).collect();
    Start { low: 1, ..Start::new(id(sequence), dest, Bytes::new()) }
}

fn entry(epoch: Epoch, ts: u64, start: Start) -> Entry {
    Entry { epoch, ts: Timestamp(ts), start: start.into(), final_ts: None }
}

fn remote_append(sequence: u64, epoch: Epoch, ts: u64) -> Message {
    let entry = RemoteEntry { index: sequence, id: id(sequence), ts: Timestamp(ts) };
    let (from, upto) = (sequence, sequence + 1);
    Message::from(RemoteAppend {
        epoch,
        whole: true,
        from,
        upto,
        entries: [entry].into(),
        relays: false,
    })
}

fn remote_ack(sequence: u64, epoch: Epoch, ts: u64) -> Message {
    Message::from(RemoteAck { epoch, len: sequence + 1, clock: Timestamp(ts) })
}

fn ack(epoch: Epoch, len: u64, clock: u64) -> Message {
    Message::from(Ack { epoch, len, clock: Timestamp(clock) })
}

fn append(epoch: Epoch, from: u64, entries: Vec<Entry>, clock: u64) -> Message {
    let entries = entries.into();
    Message::from(Append { epoch, from, entries, clock: Timestamp(clock), prompt: true })
}

/// NEW-STATE in one part.
fn new_state(epoch: Epoch, clock: u64, start: u64, entries: Vec<Entry>) -> Message {
    let end = start + entries.len() as u64;
    let part = Part { start, from: start, entries, end };
    Message::from(NewState { epoch, clock: Timestamp(clock), part })
}

/// An effect that can be compared. Timers are left out.
#[derive(Clone, Debug, PartialEq)]
enum Did {
    Sent(ProcessId, Message),
    Persisted(Record),
    Noted(Record),
    Told(Output),
}

/// One process, whose peers are the test.
#[derive(Clone, Debug)]
struct One {
    process: PrimCast,
    now: Time,
}

impl One {
    fn step(&mut self, event: Event<PrimCast>) -> Vec<Did> {
        let mut out = Outbox::new();
        self.process.step(self.now, event, &mut out);
        self.process.check_invariants();
        let did = out.drain().filter_map(|effect| match effect {
            Effect::Send { to, message } => Some(Did::Sent(to, message)),
            Effect::Persist(record) => Some(Did::Persisted(record)),
            Effect::Note(record) => Some(Did::Noted(record)),
            Effect::Output(output) => Some(Did::Told(output)),
            Effect::Timer { .. } => None,
        });
        did.collect()
    }

    fn hears(&mut self, from: ProcessId, message: Message) -> Vec<Did> {
        self.step(Event::Message { from, message })
    }

    /// The primary of another group, alone in it, proposes and acknowledges.
    fn hears_remote(&mut self, from: ProcessId, sequence: u64, epoch: Epoch, ts: u64) -> Vec<Did> {
        let mut did = self.hears(from, remote_append(sequence, epoch, ts));
        did.extend(self.hears(from, remote_ack(sequence, epoch, ts)));
        did
    }

    fn asked(&mut self, start: Start) -> Vec<Did> {
        self.step(Event::Command(Command::Start(start)))
    }

    fn idle(&mut self) -> Vec<Did> {
        self.step(Event::Idle)
    }

    /// A tick of its timer after so long.
    fn tick(&mut self, after: Duration) -> Vec<Did> {
        self.now = self.now + after;
        self.step(Event::Timer(Timer::Tick))
    }
}

/// What was sent, without the rest.
fn sent(did: &[Did]) -> Vec<(ProcessId, &Message)> {
    let sends = did.iter().filter_map(|did| match did {
        Did::Sent(to, message) => Some((*to, message)),
        _ => None,
    });
    sends.collect()
}

/// No message.
const NONE: [u64; 0] = [];

/// The numbers of the messages delivered, in order.
fn delivered(did: &[Did]) -> Vec<u64> {
    let deliveries = did.iter().filter_map(|did| match did {
        Did::Told(Output::Deliver(delivery)) => Some(delivery.start.id.sequence),
        _ => None,
    });
    deliveries.collect()
}

/// Where the first effect of that kind stands.
fn place(did: &[Did], kind: impl Fn(&Did) -> bool) -> usize {
    did.iter().position(kind).unwrap_or_else(|| panic!("not among {did:?}"))
}

/// Processes and perfect links, on which all arrives at once.
struct Net {
    all: BTreeMap<ProcessId, One>,
    /// Who hears nothing and is not heard.
    away: BTreeSet<ProcessId>,
    wire: VecDeque<(ProcessId, ProcessId, Message)>,
    told: Vec<(ProcessId, Output)>,
    /// Who sent something to whom.
    spoke: BTreeSet<(ProcessId, ProcessId)>,
}

impl Net {
    /// Groups of these sizes, each of which has its first primary.
    fn settled(sizes: &[u16]) -> Net {
        Net::settled_with(sizes, Options::default())
    }

    fn settled_with(sizes: &[u16], options: Options) -> Net {
        let ids = || (0..).zip(sizes);
        let nodes = |(group, size): (u16, &u16)| {
            (GroupId(group), (0..*size).map(|n| process(group, n).node).collect())
        };
        let groups: Arc<BTreeMap<_, _>> = Arc::new(ids().map(nodes).collect());
        let of = |(group, size): (u16, &u16)| (0..*size).map(move |n| process(group, n));
        let make = |me| PrimCast::new(me, groups.clone()).with_options(options);
        let one = |me| (me, One { process: make(me), now: Time(0) });
        let all: BTreeMap<_, _> = ids().flat_map(of).map(one).collect();
        let (away, wire, told) = (BTreeSet::new(), VecDeque::new(), Vec::new());
        let mut net = Net { all, away, wire, told, spoke: BTreeSet::new() };
        let everybody: Vec<_> = net.all.keys().copied().collect();
        everybody.into_iter().for_each(|me| net.step(me, Event::Started));
        net.run_for(Duration::from_secs(3));
        for (me, one) in &net.all {
            assert_eq!(one.process.epoch(), e1(me.group.0));
            let leads = e1(me.group.0).leader == me.node;
            assert_eq!(one.process.role(), if leads { Role::Primary } else { Role::Follower });
        }
        net
    }

    /// The process alone, out of settled groups.
    fn one(sizes: &[u16], me: ProcessId) -> One {
        Net::one_with(sizes, Options::default(), me)
    }

    fn one_with(sizes: &[u16], options: Options, me: ProcessId) -> One {
        Net::settled_with(sizes, options).all.remove(&me).unwrap()
    }

    fn step(&mut self, me: ProcessId, event: Event<PrimCast>) {
        for did in self.all.get_mut(&me).unwrap().step(event) {
            match did {
                Did::Sent(to, message) if !self.away.contains(&me) => {
                    self.spoke.insert((me, to));
                    self.wire.push_back((me, to, message));
                }
                Did::Sent(..) | Did::Persisted(_) | Did::Noted(_) => {}
                Did::Told(Output::SnapshotWanted { to }) => {
                    let (position, application) = (self.of(me).delivered(), Bytes::new());
                    self.step(me, Event::Command(Command::Snapshot { to, position, application }));
                }
                Did::Told(output) => self.told.push((me, output)),
            }
        }
    }

    /// Until nobody has anything to say.
    fn run(&mut self) {
        loop {
            while let Some((from, to, message)) = self.wire.pop_front() {
                if !self.away.contains(&to) {
                    self.step(to, Event::Message { from, message });
                }
            }
            let everybody: Vec<_> = self.all.keys().copied().collect();
            everybody.into_iter().for_each(|me| self.step(me, Event::Idle));
            if self.wire.is_empty() {
                return;
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        for _ in 0..time.as_nanos() / TICK.as_nanos() {
            let everybody: Vec<_> = self.all.keys().copied().collect();
            for me in everybody {
                let one = self.all.get_mut(&me).unwrap();
                one.now = one.now + TICK;
                self.step(me, Event::Timer(Timer::Tick));
            }
            self.run();
        }
    }

    /// It can be reached again; both ends of its links know that something may be lost.
    fn back(&mut self, me: ProcessId) {
        self.away.remove(&me);
        let others: Vec<_> = self.all.keys().copied().filter(|other| *other != me).collect();
        for other in others {
            self.step(me, Event::Restarted(other));
            self.step(other, Event::Restarted(me));
        }
        self.run();
    }

    /// The owners at `to` multicast, and all happens that follows at once.
    fn multicast(&mut self, start: Start, to: &[ProcessId]) {
        for to in to {
            self.step(*to, Event::Command(Command::Start(start.clone())));
        }
        self.run();
    }

    fn of(&self, me: ProcessId) -> &PrimCast {
        &self.all[&me].process
    }

    /// Who delivered the message, in order.
    fn delivered(&self, sequence: u64) -> Vec<ProcessId> {
        let is = |output: &Output| match output {
            Output::Deliver(delivery) => delivery.start.id == id(sequence),
            _ => false,
        };
        let mut who: Vec<_> =
            self.told.iter().filter(|(_, output)| is(output)).map(|(me, _)| *me).collect();
        who.sort_unstable();
        who
    }
}
