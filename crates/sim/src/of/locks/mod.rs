//! Clients that lock files of each other: two never have the same exclusive lock, who waits gets it
//! in the end, nobody gets it who has gone, a cycle is refused, and nothing lands that was written
//! under a lock that was lost.
//!
//! Each client does one thing at a time. Under an exclusive lock it reads the number in the
//! file and writes the next one; no number may be acknowledged twice, as it would be if two had
//! the lock, or if one wrote after it had lost it. Requests and replies are late and lost; a
//! client stands still for longer than its lease at times, gives up waiting, or is gone for
//! good. Nodes have all kinds of faults.

mod client;
pub mod trial;

use super::files::regions;
use super::{Named, Pins, Trials, names_of_planted};
use crate::trial::Counts;
use crate::world::{Owner, Random, Stimulus};
use client::{Asked, Client, Seen};
use meridian_cluster::Topology;
use meridian_core::{
    ClientId, Effect, Event, GroupId, NodeId, Outbox, Process, RegionId, Time, mix,
};
use meridian_fs::operation::NewNode;
use meridian_fs::types::Kind;
use meridian_fs::{Done, Ino, Place, Timestamp, Update};
use meridian_host::api::{Reply, Request};
use meridian_host::update::Change;
use meridian_host::{Command, ConnectionId, Node, Output};
use meridian_session::{CallId, Command as Ask, Due, Message, Output as Told, Session};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// `meridian sim locks`.
pub const NAMED: Named = Named {
    name: "locks",
    about: "Clients that lock files of each other, and wait for locks",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients take locks, wait for them,
give up waiting, and count in files under exclusive locks. Requests are late and lost, clients stand
still for longer than their leases or are gone for good, nodes have all kinds of faults. Checked are
that two never have one exclusive lock, that nothing lands that was written under a lock that was
lost, that who waits gets the lock in the end, and that cycles are refused.

Examples:
  meridian sim locks --seeds 10000
  meridian sim locks --seed 137 --trace",
    settings: &[],
    pin,
    planted: names_of_planted::<trial::Trial>,
};

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    Ok(Box::new(pins.planted::<trial::Trial>()?.unwrap_or_default()))
}

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The files in each of the partitions that have some.
const FILES: u64 = 2;
/// So many partitions have files.
const PARTITIONS: usize = 2;

/// What a wake-up is for: the lowest bits of its token; those above are a client, or a number.
const GO_ON: u64 = 0;
const DUE: u64 = 1;
const PLANNED: u64 = 2;
const KINDS: u32 = 2;

fn token(number: u64, kind: u64) -> u64 {
    number << KINDS | kind
}

/// Something on its way to a client.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There are few, and none for long.
enum Plan {
    Reply(NodeId, Reply),
    Lost(NodeId),
    Due,
}

/// The clients, and what they were told.
pub struct LocksWorkload {
    /// What happened.
    pub counts: Counts,
    topology: Arc<Topology>,
    random: Random,
    clients: Vec<Client>,
    plans: BTreeMap<u64, (usize, Plan)>,
    planned: u64,
    files: Vec<Place>,
    /// The call of the first client that makes the next file.
    making: Option<CallId>,
    wrote: BTreeSet<(Place, u64)>,
    lost: Vec<NodeId>,
    calm: bool,
    violated: Option<String>,
}

impl LocksWorkload {
    /// So many clients, each of which begins so many times with nothing.
    pub fn new(seed: u64, topology: Arc<Topology>, (clients, things): (u64, u64)) -> Self {
        let client = |number: u64| {
            let region = RegionId((number % topology.regions.len() as u64) as u16);
            let session = Session::new(topology.clone(), region, mix(seed) ^ number);
            Client::new(session, ClientId(1_000_000 + number), things)
        };
        LocksWorkload {
            counts: Counts::default(),
            random: Random::seed_from_u64(seed ^ 0x10c5),
            clients: (0..clients).map(client).collect(),
            topology,
            plans: BTreeMap::new(),
            planned: 0,
            files: Vec::new(),
            making: None,
            wrote: BTreeSet::new(),
            lost: Vec::new(),
            calm: false,
            violated: None,
        }
    }

    /// From now on nothing is lost or very late, and nobody stands still.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Whether all clients that are there have done all, and hold nothing.
    pub fn is_done(&self) -> bool {
        self.files.len() == PARTITIONS * FILES as usize && self.clients.iter().all(Client::is_done)
    }

    /// The greatest number that was acknowledged in each file.
    pub fn greatest(&self) -> BTreeMap<Place, u64> {
        self.wrote.iter().copied().collect()
    }

    /// What clients wait for, in words.
    pub fn waiting(&self) -> String {
        let of = |(at, client): (usize, &Client)| {
            let doing = client.doing.as_ref().filter(|_| !client.is_gone)?;
            Some(format!("{at}: {doing:?}, holds {:?}", client.held))
        };
        self.clients.iter().enumerate().filter_map(of).collect::<Vec<_>>().join("\n")
    }

    fn plan(&mut self, client: usize, after: Duration, plan: Plan) -> Stimulus<Node> {
        self.planned += 1;
        self.plans.insert(self.planned, (client, plan));
        Stimulus::Wake { token: token(self.planned, PLANNED), after }
    }

    /// How long something is on its way: mostly short, now and then seconds.
    fn way(&mut self) -> Duration {
        let late = self.random.random_ratio(1, 150) && !self.calm;
        let most = if late { 3_000_000 } else { 3_000 };
        Duration::from_micros(self.random.random_range(50..most))
    }

    fn step(&mut self, at: usize, now: Time, event: Event<Session>) -> Vec<Stimulus<Node>> {
        let (mut out, mut stimuli) = (Outbox::new(), Vec::new());
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.clients[at].session.step(now, event, &mut out);
            for effect in out.drain() {
                match effect {
                    Effect::Send { to, message: Message::Request(request) } => {
                        match self.send(at, to, request) {
                            Some(sent) => stimuli.push(sent),
                            None => events.push_back(Event::Restarted(to)),
                        }
                    }
                    Effect::Output(told) => {
                        let asked = self.on_told(at, told, now);
                        events.extend(asked.into_iter().map(Event::Command));
                    }
                    Effect::Timer { at: due, timer: Due } => {
                        let after = due.since(now);
                        stimuli.push(Stimulus::Wake { token: token(at as u64, DUE), after });
                    }
                    other => panic!("a session does not {other:?}"),
                }
            }
        }
        self.clients[at].session.check_invariants();
        stimuli
    }

    fn send(&mut self, at: usize, to: NodeId, request: Request) -> Option<Stimulus<Node>> {
        if self.random.random_ratio(1, 60) && !self.calm {
            return None;
        }
        let connection = ConnectionId((at as u64) << 16 | u64::from(to.0));
        let (command, after) = (Command::Request { connection, request }, self.way());
        Some(Stimulus::Command { to, command, after })
    }

    /// A session tells something; what its client asks then.
    fn on_told(&mut self, at: usize, told: Told, now: Time) -> Vec<Ask> {
        let Some(call) = told.call() else { return Vec::new() };
        let gave_up = matches!(told, Told::GaveUp { .. });
        let mut asks: Vec<Ask> = gave_up.then_some(Ask::Release(call)).into_iter().collect();
        if self.making == Some(call) {
            self.making = None;
            if let Told::Updated { result: Ok(Done::Attributes(made)), .. } = told {
                self.files.push(made.place);
            }
            return asks;
        }
        let client = &mut self.clients[at];
        if client.renewing == Some(call) {
            client.renewing = None;
            return asks;
        }
        if client.doing.as_ref().is_none_or(|(doing, _, _)| *doing != call) {
            return asks;
        }
        let mut seen = Vec::new();
        let asked = match told {
            Told::Updated { result, .. } => client.on_updated(result, &mut seen),
            Told::Answered { result, .. } => client.on_answered(result, &mut seen),
            Told::GaveUp { .. } => {
                seen.push(Seen::Count("given up"));
                client.on_given_up()
            }
            other => panic!("nobody asked for {other:?}"),
        };
        asks.extend(asked.map(|asked| self.ask(at, asked, now)));
        seen.into_iter().for_each(|seen| self.judge(at, seen));
        asks
    }

    /// The question or update of what a client does now.
    fn ask(&self, at: usize, asked: Asked, now: Time) -> Ask {
        let (call, _, _) = self.clients[at].doing.as_ref().expect("it has begun it");
        let (call, deadline) = (*call, now + PATIENCE);
        match asked {
            Asked::Update(change) => Ask::Update { call, change, deadline },
            Asked::Query(query) => Ask::Read { call, query, deadline },
        }
    }

    fn judge(&mut self, at: usize, seen: Seen) {
        match seen {
            Seen::Count(what) => self.counts.add(what, 1),
            Seen::Wrong(what) => drop(self.violated.get_or_insert(format!("locks: {what}"))),
            Seen::Wrote(place, value) => {
                self.counts.add("writes", 1);
                if !self.wrote.insert((place, value)) {
                    let what = format!("exclusion: client {at} writes {value} again to {place:?}");
                    self.violated.get_or_insert(what);
                }
            }
        }
    }

    /// A client does something.
    fn act(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        if self.files.len() < PARTITIONS * FILES as usize {
            return if at == 0 { self.make_file(now) } else { stimuli };
        }
        if let Some(partition) = self.clients[at].renews(now) {
            let client = &mut self.clients[at];
            let call = client.next_call();
            client.renewing = Some(call);
            let update = Update::Renew { client: client.id, partition };
            let change = Change::new(Timestamp::default(), update);
            let ask = Ask::Update { call, change, deadline: now + PATIENCE };
            stimuli.extend(self.step(at, now, Event::Command(ask)));
        }
        let before = self.clients[at].doing.as_ref().map(|(call, _, _)| *call);
        let interrupts = self.random.random_ratio(1, 60) && !self.calm;
        let asked = match interrupts {
            true => self.clients[at].interrupt(),
            false => self.clients[at].next(&self.files, &mut self.random),
        };
        let Some(asked) = asked else { return stimuli };
        if let Some(call) = before {
            stimuli.extend(self.step(at, now, Event::Command(Ask::Release(call))));
        }
        let ask = self.ask(at, asked, now);
        stimuli.extend(self.step(at, now, Event::Command(ask)));
        stimuli
    }

    /// The first client makes one file after the other, before all else.
    fn make_file(&mut self, now: Time) -> Vec<Stimulus<Node>> {
        if self.making.is_some() {
            return Vec::new();
        }
        let number = self.files.len();
        let partition = GroupId(u16::try_from(number % PARTITIONS).expect("a few"));
        let parent = Place { ino: Ino::top(partition), partition };
        let call = self.clients[0].next_call();
        let name = bytes::Bytes::from(format!("{number}-{}", call.0));
        let update = Update::Create { parent, name, node: NewNode::new(Kind::File, 0o644) };
        self.making = Some(call);
        let change = Change::new(Timestamp::default(), update);
        let ask = Ask::Update { call, change, deadline: now + PATIENCE };
        self.step(0, now, Event::Command(ask))
    }

    /// A client that stands still gets what comes to it later; one that is gone nothing.
    fn receive(&mut self, at: usize, plan: Plan, now: Time) -> Vec<Stimulus<Node>> {
        let client = &self.clients[at];
        if client.is_gone {
            return Vec::new();
        }
        if client.still_until > now {
            let after = client.still_until.since(now);
            return vec![self.plan(at, after, plan)];
        }
        let event = match plan {
            Plan::Reply(from, reply) => Event::Message { from, message: Message::Reply(reply) },
            Plan::Lost(node) => Event::Restarted(node),
            Plan::Due => Event::Timer(Due),
        };
        self.step(at, now, event)
    }

    /// Sessions hear that connections are lost.
    fn hear(&mut self, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        for node in std::mem::take(&mut self.lost) {
            for at in 0..self.clients.len() {
                stimuli.extend(self.receive(at, Plan::Lost(node), now));
            }
        }
        stimuli
    }

    /// A client may stand still for a while, for longer than its lease at times, or go for good.
    fn disturb(&mut self, at: usize, now: Time) {
        if self.calm {
            return;
        }
        if self.random.random_ratio(1, 200) {
            let ms = self.random.random_range(10..60_000);
            self.clients[at].still_until = now + Duration::from_millis(ms);
            self.counts.add("still", 1);
        } else if self.random.random_ratio(1, 3000) && at != 0 {
            self.clients[at].is_gone = true;
            self.counts.add("gone", 1);
        }
    }
}

impl Owner<Node> for LocksWorkload {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        let wake = |at| Stimulus::Wake {
            token: token(at as u64, GO_ON),
            after: Duration::from_millis(100),
        };
        (0..self.clients.len()).map(wake).collect()
    }

    fn output(&mut self, from: NodeId, output: Output, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.hear(now);
        let Output::Reply { connection, reply } = output else { return stimuli };
        let at = usize::try_from(connection.0 >> 16).expect("an index");
        if self.random.random_ratio(1, 60) && !self.calm {
            return stimuli; // It is lost, and nobody hears of it.
        }
        let after = self.way();
        stimuli.push(self.plan(at, after, Plan::Reply(from, reply)));
        stimuli
    }

    fn wake(&mut self, woken: u64, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.hear(now);
        let (number, kind) = (woken >> KINDS, woken & ((1 << KINDS) - 1));
        if kind == PLANNED {
            let (at, plan) = self.plans.remove(&number).expect("planned once");
            stimuli.extend(self.receive(at, plan, now));
            return stimuli;
        }
        let at = usize::try_from(number).expect("an index");
        if kind == DUE {
            stimuli.extend(self.receive(at, Plan::Due, now));
            return stimuli;
        }
        let client = &self.clients[at];
        if client.is_gone {
            return stimuli;
        }
        if client.still_until <= now {
            stimuli.extend(self.act(at, now));
            self.disturb(at, now);
        }
        if !self.is_done() {
            let after = Duration::from_millis(self.random.random_range(20..400));
            stimuli.push(Stimulus::Wake { token: token(at as u64, GO_ON), after });
        }
        stimuli
    }

    fn crashed(&mut self, at: NodeId, _now: Time) {
        self.lost.push(at);
    }

    fn check(&mut self, _at: NodeId, node: &Node, _durable: bool) -> Result<(), String> {
        if self.random.random_ratio(1, 256) {
            node.check_invariants();
            for group in self.topology.groups_of(node.me()) {
                node.replica(group).expect("its node has it").partition().check_invariants();
            }
        }
        self.violated.take().map_or(Ok(()), Err)
    }
}
