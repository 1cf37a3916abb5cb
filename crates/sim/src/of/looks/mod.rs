//! Clients that keep what they see, in directories that all of them use: no look that a client
//! answers itself is older than what was acknowledged anywhere before the look began.
//!
//! Each client does one update at a time in shared directories of all partitions: it makes, removes
//! and renames names, also between partitions, makes directories, and changes owners; and it looks
//! at all of that, often. Requests and replies are late and lost, now and then by seconds; a client
//! stands still for longer than its lease at times, or is gone for good. Nodes have all kinds of
//! faults. An owner needs a while until it has dropped what is recalled, as a kernel does.

mod register;
pub mod trial;

use super::files::regions;
use super::{Named, Pins, Trials, names_of_planted};
use crate::trial::Counts;
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_core::{Effect, Event, GroupId, NodeId, Outbox, Process, RegionId, Time, mix};
use meridian_fs::{Answer, FsError, Ino, Place, Query, Vector};
use meridian_host::api::{Reply, Request};
use meridian_host::{Command, ConnectionId, Node, Output};
use meridian_session::{CallId, Command as Ask, Due, Message, Mutation, Output as Told, Session};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use register::{Change, Registers, Thing, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// `meridian sim looks`.
pub const NAMED: Named = Named {
    name: "looks",
    about: "Clients that keep what they see, in shared directories",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients make, remove, rename and
change things in directories that all of them use, and look at them, mostly in what they keep
themselves. Requests are late and lost, clients stand still for longer than their leases or are gone
for good, nodes have all kinds of faults. Checked is that no look at what a client keeps is older
than what was acknowledged anywhere before, and that who takes over a token sees nothing older than
what its giver saw, acknowledged or not.

Examples:
  meridian sim looks --seeds 10000
  meridian sim looks --seed 137 --trace",
    settings: &[],
    pin,
    planted: names_of_planted::<trial::Trial>,
};

fn pin(pins: &Pins) -> Result<Box<dyn Trials>, String> {
    Ok(Box::new(pins.planted::<trial::Trial>()?.unwrap_or_default()))
}

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The names in each directory.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// So many directories there are at most.
const DIRECTORIES_MAX: usize = 7;

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
    LetGo(Vec<(GroupId, Ino)>),
    /// A token comes, of who has seen that.
    Take(Vector, Handed),
}

/// What somebody has seen, and has handed over.
#[derive(Clone, Debug)]
struct Handed {
    query: Query,
    thing: Thing,
    value: Value,
    /// Whether the token was taken, and this is looked at.
    taken: bool,
}

/// One client.
struct Client {
    session: Session,
    last: CallId,
    /// The update that it waits for.
    doing: Option<(CallId, Change)>,
    /// Looks that replicas were asked for.
    looks: BTreeMap<CallId, Query>,
    /// Tokens that it takes over.
    handed: BTreeMap<CallId, Handed>,
    left: u64,
    /// Until when it stands still; what comes meanwhile comes then.
    still_until: Time,
    is_gone: bool,
}

/// The clients, and what they were told.
pub struct LooksWorkload {
    /// What happened.
    pub counts: Counts,
    topology: Arc<Topology>,
    random: Random,
    clients: Vec<Client>,
    plans: BTreeMap<u64, (usize, Plan)>,
    planned: u64,
    registers: Registers,
    directories: Vec<Place>,
    lost: Vec<NodeId>,
    /// Whether clients hand tokens to each other: that drops much of what they keep.
    hands: bool,
    calm: bool,
    violated: Option<String>,
}

impl LooksWorkload {
    /// So many clients, each of which does so many things.
    pub fn new(
        seed: u64,
        topology: Arc<Topology>,
        (clients, things): (u64, u64),
        mutation: Mutation,
    ) -> Self {
        let client = |number: u64| {
            let region = RegionId((number % topology.regions.len() as u64) as u16);
            let session = Session::new(topology.clone(), region, mix(seed) ^ number);
            Client {
                session: session.with_mutation(mutation),
                last: CallId(0),
                doing: None,
                looks: BTreeMap::new(),
                handed: BTreeMap::new(),
                left: things,
                still_until: Time(0),
                is_gone: false,
            }
        };
        let top = |partition| Place { ino: Ino::top(partition), partition };
        LooksWorkload {
            counts: Counts::default(),
            random: Random::seed_from_u64(seed ^ 0x100c),
            clients: (0..clients).map(client).collect(),
            directories: topology.group_ids().map(top).collect(),
            topology,
            plans: BTreeMap::new(),
            planned: 0,
            registers: Registers::default(),
            lost: Vec::new(),
            hands: false,
            calm: false,
            violated: None,
        }
    }

    /// Clients hand tokens to each other.
    pub fn hands_tokens(&mut self, hands: bool) {
        self.hands = hands;
    }

    /// From now on nothing is lost or very late.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Whether all clients that are there have done all.
    pub fn is_done(&self) -> bool {
        let done = |client: &Client| client.left == 0 && client.doing.is_none();
        self.clients.iter().all(|client| client.is_gone || done(client))
    }

    /// What clients wait for, in words.
    pub fn waiting(&self) -> String {
        let all = self.clients.iter().enumerate();
        let of =
            |(at, client): (usize, &Client)| Some(format!("{at}: {:?}", client.doing.as_ref()?));
        all.filter_map(of).collect::<Vec<_>>().join("\n")
    }

    /// What must not have been since this was asked last.
    fn violate(&mut self, what: String) {
        self.violated.get_or_insert(what);
    }

    fn plan(&mut self, client: usize, after: Duration, plan: Plan) -> Stimulus<Node> {
        self.planned += 1;
        self.plans.insert(self.planned, (client, plan));
        Stimulus::Wake { token: token(self.planned, PLANNED), after }
    }

    /// How long something is on its way: mostly short, now and then longer than a lease has left.
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
                        stimuli.extend(self.on_told(at, now, told, &mut events));
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

    fn on_told(
        &mut self,
        at: usize,
        now: Time,
        told: Told,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>> {
        match told {
            Told::Recalled { gone } => {
                self.counts.add("recalled", gone.len() as u64);
                // The kernel has to be told first.
                let after = Duration::from_micros(self.random.random_range(10..20_000));
                return Some(self.plan(at, after, Plan::LetGo(gone)));
            }
            Told::Answered { call, result, .. } => {
                self.counts.add("reads", 1);
                let query = self.clients[at].looks.remove(&call);
                if let Some(handed) = self.clients[at].handed.remove(&call) {
                    self.judge_handed(at, &handed, &result);
                }
                return self.hand_over(at, query?, &result);
            }
            Told::Followed { call } => {
                let client = &mut self.clients[at];
                let handed = client.handed.remove(&call).expect("it takes a token");
                client.last.0 += 1;
                let (call, query) = (client.last, handed.query.clone());
                client.handed.insert(call, Handed { taken: true, ..handed });
                let deadline = now + PATIENCE;
                events.push_back(Event::Command(Ask::Read { call, query, deadline }));
            }
            Told::Updated { call, ts, result } => {
                self.counts.add("updates", 1);
                let (doing, change) = self.clients[at].doing.take().expect("it waits for it");
                assert_eq!(doing, call, "it does one thing at a time");
                if let (Ok(done), Change::MakeDirectory(..)) = (&result, &change)
                    && let meridian_fs::Done::Attributes(made) = done
                    && self.directories.len() < DIRECTORIES_MAX
                {
                    self.directories.push(made.place);
                }
                self.registers.end((at, call), ts, &result);
            }
            Told::GaveUp { call, failure } => {
                self.counts.add("given up", 1);
                let client = &mut self.clients[at];
                let looked = client.looks.remove(&call).is_some();
                if client.handed.remove(&call).is_none() && !looked {
                    // Nobody can say what becomes of it: what it touches is not judged any more.
                    expect_failure(&failure);
                    self.clients[at].doing = None;
                }
                events.push_back(Event::Command(Ask::Release(call)));
            }
            other => panic!("nobody asked for {other:?}"),
        }
        None
    }

    /// A client does something, or looks.
    fn act(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let looks = self.random.random_range(0..12);
        let mut stimuli = Vec::new();
        for _ in 0..looks {
            stimuli.extend(self.look(at, now));
        }
        let client = &mut self.clients[at];
        if client.left == 0 || client.doing.is_some() || !self.random.random_ratio(1, 3) {
            return stimuli;
        }
        client.left -= 1;
        client.last.0 += 1;
        let call = client.last;
        let change = self.registers.choose(&self.directories, &mut self.random);
        let Some(change) = change else { return stimuli };
        self.registers.begin((at, call), &change);
        let update = change.update();
        self.clients[at].doing = Some((call, change));
        let change = meridian_host::update::Change::new(Default::default(), update);
        let ask = Ask::Update { call, change, deadline: now + PATIENCE };
        stimuli.extend(self.step(at, now, Event::Command(ask)));
        stimuli
    }

    /// A client looks: what it answers itself is judged.
    fn look(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let parent = *self.directories.choose(&mut self.random).expect("there are some");
        let name = Bytes::from_static(NAMES.choose(&mut self.random).expect("some").as_bytes());
        let named = self.random.random_bool(0.6);
        let (thing, query) = match named {
            true => (Thing::Name(parent.ino, name.clone()), Query::Lookup { parent, name }),
            false => (Thing::Owner(parent.ino), Query::Attributes { inode: parent }),
        };
        let client = &mut self.clients[at];
        client.last.0 += 1;
        let (call, before) = (client.last, client.session.hits());
        client.looks.insert(call, query.clone());
        let ask = Ask::Read { call, query, deadline: now + PATIENCE };
        let mut out = Outbox::new();
        client.session.step(now, Event::Command(ask), &mut out);
        let kept = client.session.hits() > before;
        let mut stimuli = Vec::new();
        for effect in out.drain() {
            match effect {
                Effect::Output(Told::Answered { result, .. }) if kept => {
                    self.clients[at].looks.remove(&call);
                    self.counts.add("kept", 1);
                    self.judge(at, &thing, &result);
                }
                Effect::Output(told) => {
                    let mut events = VecDeque::new();
                    stimuli.extend(self.on_told(at, now, told, &mut events));
                    assert!(events.is_empty());
                }
                Effect::Send { to, message: Message::Request(request) } => {
                    let sent = self.send(at, to, request);
                    // What is lost here is as if the connection had broken a little later.
                    stimuli.push(sent.unwrap_or_else(|| {
                        self.plan(at, Duration::from_micros(10), Plan::Lost(to))
                    }));
                }
                Effect::Timer { at: due, timer: Due } => {
                    let after = due.since(now);
                    stimuli.push(Stimulus::Wake { token: token(at as u64, DUE), after });
                }
                other => panic!("a session does not {other:?}"),
            }
        }
        stimuli
    }

    fn judge(&mut self, at: usize, thing: &Thing, result: &Result<Answer, FsError>) {
        let Some(value) = value_of(result) else {
            return self.violate(format!("looks: {thing:?} is {result:?}"));
        };
        if let Err(what) = self.registers.judge(thing, value) {
            self.violate(format!("fresh: client {at} looks at {thing:?}: {what}"));
        }
    }

    /// At times a client hands another what it has seen as soon as it has seen something.
    fn hand_over(
        &mut self,
        at: usize,
        query: Query,
        result: &Result<Answer, FsError>,
    ) -> Option<Stimulus<Node>> {
        if !self.hands || !self.random.random_ratio(1, 4) {
            return None;
        }
        let to = self.random.random_range(0..self.clients.len());
        let thing = match &query {
            Query::Lookup { parent, name } => Thing::Name(parent.ino, name.clone()),
            other => Thing::Owner(other.inode()?),
        };
        let value = value_of(result).filter(|_| to != at)?;
        let seen = self.clients[at].session.vector().clone();
        let handed = Handed { query, thing, value, taken: false };
        Some(self.plan(to, Duration::ZERO, Plan::Take(seen, handed)))
    }

    /// A client has taken a token, and looks at what its giver saw.
    fn judge_handed(&mut self, at: usize, handed: &Handed, result: &Result<Answer, FsError>) {
        assert!(handed.taken, "a token is no question");
        self.counts.add("taken", 1);
        let Some(found) = value_of(result) else {
            return self.violate(format!("token: {handed:?} is {result:?}"));
        };
        if self.registers.is_older(&handed.thing, found, handed.value) {
            let what = format!("{:?} was seen to be {:?}", handed.thing, handed.value);
            self.violate(format!("token: client {at} took one: {what}, and then {found:?}"));
        }
    }

    fn on_planned(&mut self, at: usize, plan: Plan, now: Time) -> Vec<Stimulus<Node>> {
        let event = match plan {
            Plan::Reply(from, reply) => Event::Message { from, message: Message::Reply(reply) },
            Plan::Lost(node) => Event::Restarted(node),
            Plan::Due => Event::Timer(Due),
            Plan::LetGo(gone) => Event::Command(Ask::LetGo(gone)),
            Plan::Take(seen, handed) => {
                let client = &mut self.clients[at];
                client.last.0 += 1;
                client.handed.insert(client.last, handed);
                let deadline = now + PATIENCE;
                Event::Command(Ask::Follow { call: client.last, seen, deadline })
            }
        };
        self.step(at, now, event)
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
        self.on_planned(at, plan, now)
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
        if self.random.random_ratio(1, 40) {
            let ms = self.random.random_range(10..9_000);
            self.clients[at].still_until = now + Duration::from_millis(ms);
            self.counts.add("still", 1);
        } else if self.random.random_ratio(1, 600) {
            self.clients[at].is_gone = true;
            self.counts.add("gone", 1);
        }
    }
}

/// What a look has shown.
fn value_of(result: &Result<Answer, FsError>) -> Option<Value> {
    match result {
        Ok(Answer::Entry { entry, .. }) => Some(Value::Leads(entry.place)),
        Ok(Answer::Attributes(attributes)) => Some(Value::Owner(attributes.uid)),
        Err(FsError::NotFound) => Some(Value::Absent),
        _ => None,
    }
}

/// A failure that a client may meet.
fn expect_failure(failure: &meridian_session::Failure) {
    use meridian_session::Failure;
    let expected = matches!(
        failure,
        Failure::Timeout { .. } | Failure::Unreachable { .. } | Failure::OutOfReach { .. }
    );
    assert!(expected, "{failure:?}");
}

impl Owner<Node> for LooksWorkload {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        for at in 0..self.clients.len() {
            stimuli.extend(self.step(at, Time(0), Event::Command(Ask::Keep)));
            let token = token(at as u64, GO_ON);
            stimuli.push(Stimulus::Wake { token, after: Duration::from_millis(100) });
        }
        stimuli
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
            let after = Duration::from_millis(self.random.random_range(5..120));
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
