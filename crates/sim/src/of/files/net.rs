//! Sessions and a bad network between them and the nodes: what all workloads have in common whose
//! clients are nothing but sessions.
//!
//! Requests and replies are late and lost, now and then by seconds. A client stands still for
//! longer than its lease at times, and what comes to it meanwhile comes then; or it is gone for
//! good.

use super::regions::{have_applied_all, partitions};
use crate::trial::{Counts, Violation};
use crate::world::{Owner, Random, Stimulus, World};
use meridian_cluster::Topology;
use meridian_core::{BlockId, Effect, Event, NodeId, Outbox, Process, RegionId, Time, mix};
use meridian_fs::Partition;
use meridian_fs::invariants::check_tree;
use meridian_host::api::{Reply, Request};
use meridian_host::{Command, ConnectionId, Node, Output, space};
use meridian_session::{Command as Ask, Due, Message, Output as Told, Session};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What a wake-up is for: the lowest bits of its token; those above are a client, or a number.
const GO_ON: u64 = 0;
const DUE: u64 = 1;
const PLANNED: u64 = 2;
const KINDS: u32 = 2;

fn token(number: u64, kind: u64) -> u64 {
    number << KINDS | kind
}

/// How clients are.
pub struct Habits {
    /// A client does something after so many milliseconds, again and again.
    pub pause_ms: Range<u64>,
    /// It stands still once in so many times, for so many milliseconds at most.
    pub still: (u32, u64),
    /// It is gone for good once in so many times.
    pub gone: u32,
}

/// Something on its way to a client, some of which only one kind of client has.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There are few, and none for long.
pub enum Plan<Own> {
    /// A node answers.
    Reply(NodeId, Reply),
    /// The connection to a node breaks.
    Lost(NodeId),
    /// The session's timer.
    Due,
    /// What else.
    Own(Own),
}

struct Line {
    session: Session,
    region: RegionId,
    still_until: Time,
    is_gone: bool,
}

/// The sessions of the clients, and what is on its way.
pub struct Net<Own> {
    /// What happened.
    pub counts: Counts,
    /// The cluster.
    pub topology: Arc<Topology>,
    /// Between this region and the others nothing passes, and nobody hears that it does not.
    pub cut: Option<RegionId>,
    pub random: Random,
    lines: Vec<Line>,
    plans: BTreeMap<u64, (usize, Plan<Own>)>,
    planned: u64,
    /// What clients are called in their certificates, if that is told to nodes.
    pub names: BTreeMap<usize, String>,
    lost: Vec<NodeId>,
    calm: bool,
    violated: Option<String>,
}

impl<Own> Net<Own> {
    /// So many sessions, each made up by `make` after that of the kit.
    pub fn new(
        (seed, salt): (u64, u64),
        topology: Arc<Topology>,
        clients: u64,
        make: impl Fn(Session) -> Session,
    ) -> Net<Own> {
        let line = |number: u64| {
            let region = RegionId((number % topology.regions.len() as u64) as u16);
            let session = Session::new(topology.clone(), region, mix(seed) ^ number);
            Line { session: make(session), region, still_until: Time(0), is_gone: false }
        };
        Net {
            counts: Counts::default(),
            random: Random::seed_from_u64(seed ^ salt),
            lines: (0..clients).map(line).collect(),
            topology,
            cut: None,
            plans: BTreeMap::new(),
            planned: 0,
            names: BTreeMap::new(),
            lost: Vec::new(),
            calm: false,
            violated: None,
        }
    }

    /// From now on nothing is lost or very late, and nobody stands still.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    pub fn is_calm(&self) -> bool {
        self.calm
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_gone(&self, at: usize) -> bool {
        self.lines[at].is_gone
    }

    pub fn session(&mut self, at: usize) -> &mut Session {
        &mut self.lines[at].session
    }

    /// What must not have been, unless something else was before.
    pub fn violate(&mut self, what: String) {
        self.violated.get_or_insert(what);
    }

    pub fn plan(&mut self, client: usize, after: Duration, plan: Plan<Own>) -> Stimulus<Node> {
        self.planned += 1;
        self.plans.insert(self.planned, (client, plan));
        Stimulus::Wake { token: token(self.planned, PLANNED), after }
    }

    fn is_cut_off(&self, at: usize, node: NodeId) -> bool {
        let (here, there) = (self.lines[at].region, self.topology.node(node).region);
        self.cut.is_some_and(|cut| here != there && (here == cut || there == cut))
    }

    /// How long something is on its way: mostly short, now and then longer than a lease has left.
    fn way(&mut self) -> Duration {
        let late = self.random.random_ratio(1, 150) && !self.calm;
        let most = if late { 3_000_000 } else { 3_000 };
        Duration::from_micros(self.random.random_range(50..most))
    }

    fn loses(&mut self) -> bool {
        self.random.random_ratio(1, 60) && !self.calm
    }

    /// A request on its way to a node, unless it is lost.
    pub fn send(&mut self, at: usize, to: NodeId, request: Request) -> Option<Stimulus<Node>> {
        if self.loses() {
            return None;
        }
        let connection = ConnectionId((at as u64) << 16 | u64::from(to.0));
        let (command, after) = (Command::Request { connection, request }, self.way());
        Some(Stimulus::Command { to, command, after })
    }

    /// What comes with a request: a node that was started anew is told again who asks.
    fn introduce(&self, at: usize, request: &Stimulus<Node>) -> Option<Stimulus<Node>> {
        let Stimulus::Command { to, command: Command::Request { connection, .. }, after } = request
        else {
            return None;
        };
        let (connection, client) = (*connection, self.names.get(&at)?.clone());
        let command = Command::Known { connection, client };
        Some(Stimulus::Command { to: *to, command, after: *after })
    }

    /// The session's timer is due then.
    pub fn wait(at: usize, due: Time, now: Time) -> Stimulus<Node> {
        Stimulus::Wake { token: token(at as u64, DUE), after: due.since(now) }
    }

    /// A client may stand still for a while, for longer than its lease at times, or go for good.
    fn disturb(&mut self, at: usize, now: Time, habits: &Habits, may_go: bool) {
        if self.calm {
            return;
        }
        let (still, most_ms) = habits.still;
        if self.random.random_ratio(1, still) {
            let ms = self.random.random_range(10..most_ms);
            self.lines[at].still_until = now + Duration::from_millis(ms);
            self.counts.add("still", 1);
        } else if self.random.random_ratio(1, habits.gone) && may_go {
            self.lines[at].is_gone = true;
            self.counts.add("gone", 1);
        }
    }
}

/// What clients do over their sessions, and what is judged of it.
pub trait Crowd {
    /// What only these clients have on its way.
    type Own: Clone;
    /// How they are.
    const HABITS: Habits;

    fn net(&self) -> &Net<Self::Own>;

    fn net_mut(&mut self) -> &mut Net<Self::Own>;

    /// What clients wait for, in words.
    fn waiting(&self) -> String;

    /// A session tells something; what it hears of at once, and what comes later.
    fn on_told(
        &mut self,
        at: usize,
        now: Time,
        told: Told,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>>;

    /// What it does with what only these clients have on its way.
    fn on_own(&mut self, at: usize, own: Self::Own, now: Time) -> Ask;

    /// A client does something.
    fn act(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>>;

    /// What all do first.
    fn prepare(&mut self, _at: usize) -> Vec<Stimulus<Node>> {
        Vec::new()
    }

    /// Whether a client may be gone for good.
    fn may_go(&self, _at: usize) -> bool {
        true
    }

    /// A node answers something that no session asked for; what is done then.
    fn on_reply(
        &mut self,
        _at: usize,
        _from: NodeId,
        _reply: &Reply,
        _now: Time,
    ) -> Option<Vec<Stimulus<Node>>> {
        None
    }

    /// A node frees blocks.
    fn on_freed(&mut self, _at: NodeId, _blocks: &[BlockId]) {}

    /// A node has done a step.
    fn look(&mut self, _at: NodeId, _node: &Node) {}

    /// Whether all clients that are there have done all.
    fn is_done(&self) -> bool;

    /// A session hears of something, and all comes of it.
    fn step(&mut self, at: usize, now: Time, event: Event<Session>) -> Vec<Stimulus<Node>> {
        let (mut out, mut stimuli) = (Outbox::new(), Vec::new());
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.net_mut().session(at).step(now, event, &mut out);
            for effect in out.drain() {
                match effect {
                    Effect::Send { to, .. } if self.net_mut().is_cut_off(at, to) => {}
                    Effect::Send { to, message: Message::Request(request) } => {
                        match self.net_mut().send(at, to, request) {
                            Some(sent) => {
                                stimuli.extend(self.net_mut().introduce(at, &sent));
                                stimuli.push(sent);
                            }
                            None => events.push_back(Event::Restarted(to)),
                        }
                    }
                    Effect::Output(told) => {
                        stimuli.extend(self.on_told(at, now, told, &mut events));
                    }
                    Effect::Timer { at: due, timer: Due } => {
                        stimuli.push(Net::<Self::Own>::wait(at, due, now));
                    }
                    other => panic!("a session does not {other:?}"),
                }
            }
        }
        self.net_mut().session(at).check_invariants();
        stimuli
    }

    /// A client that stands still gets what comes to it later; one that is gone nothing.
    fn receive(&mut self, at: usize, plan: Plan<Self::Own>, now: Time) -> Vec<Stimulus<Node>> {
        let net = self.net_mut();
        let line = &net.lines[at];
        if line.is_gone {
            return Vec::new();
        }
        if line.still_until > now {
            let after = line.still_until.since(now);
            return vec![net.plan(at, after, plan)];
        }
        if let Plan::Reply(from, reply) = &plan
            && let Some(stimuli) = self.on_reply(at, *from, reply, now)
        {
            return stimuli;
        }
        let event = match plan {
            Plan::Reply(from, reply) => Event::Message { from, message: Message::Reply(reply) },
            Plan::Lost(node) => Event::Restarted(node),
            Plan::Due => Event::Timer(Due),
            Plan::Own(own) => Event::Command(self.on_own(at, own, now)),
        };
        self.step(at, now, event)
    }

    /// Sessions hear that connections are lost.
    fn hear(&mut self, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        for node in std::mem::take(&mut self.net_mut().lost) {
            for at in 0..self.net_mut().len() {
                stimuli.extend(self.receive(at, Plan::Lost(node), now));
            }
        }
        stimuli
    }
}

impl<C: Crowd> Owner<Node> for C {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        for at in 0..self.net_mut().len() {
            stimuli.extend(self.prepare(at));
            let token = token(at as u64, GO_ON);
            stimuli.push(Stimulus::Wake { token, after: Duration::from_millis(100) });
        }
        stimuli
    }

    fn output(&mut self, from: NodeId, output: Output, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.hear(now);
        if let Output::Space(space::Output::Free(blocks)) = &output {
            self.on_freed(from, blocks);
        }
        let Output::Reply { connection, reply } = output else { return stimuli };
        let at = usize::try_from(connection.0 >> 16).expect("an index");
        let net = self.net_mut();
        if net.is_cut_off(at, from) || net.loses() {
            return stimuli; // And nobody hears of it.
        }
        let after = net.way();
        stimuli.push(net.plan(at, after, Plan::Reply(from, reply)));
        stimuli
    }

    fn wake(&mut self, woken: u64, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.hear(now);
        let (number, kind) = (woken >> KINDS, woken & ((1 << KINDS) - 1));
        if kind == PLANNED {
            let (at, plan) = self.net_mut().plans.remove(&number).expect("planned once");
            stimuli.extend(self.receive(at, plan, now));
            return stimuli;
        }
        let at = usize::try_from(number).expect("an index");
        if kind == DUE {
            stimuli.extend(self.receive(at, Plan::Due, now));
            return stimuli;
        }
        let line = &self.net_mut().lines[at];
        if line.is_gone {
            return stimuli;
        }
        if line.still_until <= now {
            stimuli.extend(self.act(at, now));
            let may_go = self.may_go(at);
            self.net_mut().disturb(at, now, &C::HABITS, may_go);
        }
        if !self.is_done() {
            let ms = self.net_mut().random.random_range(C::HABITS.pause_ms);
            let (token, after) = (token(at as u64, GO_ON), Duration::from_millis(ms));
            stimuli.push(Stimulus::Wake { token, after });
        }
        stimuli
    }

    fn crashed(&mut self, at: NodeId, _now: Time) {
        self.net_mut().lost.push(at);
    }

    fn check(&mut self, at: NodeId, node: &Node, _durable: bool) -> Result<(), String> {
        self.look(at, node);
        let net = self.net_mut();
        if net.random.random_ratio(1, 256) {
            node.check_invariants();
            for group in net.topology.groups_of(node.me()) {
                node.replica(group).expect("its node has it").partition().check_invariants();
            }
        }
        net.violated.take().map_or(Ok(()), Err)
    }
}

/// Nothing goes wrong any more, with nodes and on the way to them.
pub fn heal<C: Crowd>(world: &mut World<Node, C>) {
    world.heal();
    world.owner.net_mut().calm();
}

/// Whether all clients are done, and all replicas have applied all and are `idle`.
pub fn is_quiet<C: Crowd>(
    world: &World<Node, C>,
    topology: &Topology,
    idle: impl Fn(&Partition) -> bool,
) -> bool {
    world.owner.is_done()
        && topology.group_ids().all(|group| {
            have_applied_all(world, group, topology.group(group).members.len())
                && partitions(world, group).into_iter().all(&idle)
        })
}

/// The replicas of each group are equal, and all directories one tree.
///
/// # Panics
/// If they are no tree.
pub fn check_equal<C: Crowd>(world: &World<Node, C>, topology: &Topology) -> Result<(), Violation> {
    for group in topology.group_ids() {
        let all = partitions(world, group);
        if all.windows(2).any(|pair| pair[0].state_hash() != pair[1].state_hash()) {
            return Err(format!("equal states: replicas of {group:?} differ"));
        }
    }
    check_tree(topology.group_ids().map(|group| partitions(world, group)[0]));
    Ok(())
}
