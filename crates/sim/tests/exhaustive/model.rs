//! A multicast protocol as a model: the real code, and the orders in which its messages may arrive.
//!
//! Links are FIFO; what is multicast comes from outside, so each START travels on its own. Time stands
//! still, timers do not fire (but see [`Slow`]), and nothing is lost.
//!
//! What is not explored, and why nothing is missed by that:
//!
//! - **When a message is multicast** is not a choice: it is as its first START arrives. A run in which that
//!   is earlier has the same deliveries, and fewer messages had ended by then, so a subset of its edges.
//! - **How edges came about**: the state holds only which messages are before which, over any number of steps.
//!   Whether later edges close a cycle depends on nothing else.
//! - **What commutes**: deliveries at different processes lead to the same state in either order, and stateright
//!   goes on from it once. What the order means for real time is kept: it is in the state which messages had
//!   ended before which were multicast.
//!
//! What is missed: a process is given `Event::Idle` after each message (or frame), not after several, and what it
//! persists is durable at once. The random search and the simulator have these.
//!
//! Where all orders are too many, [`Slow`] bounds how much a run may differ from a regular one.

use meridian_core::{Effect, Event, Outbox, Process, ProcessId, Time, Token};
use meridian_multicast::{Protocol, Start};
use meridian_sim::search::Cluster;
use stateright::{Model, Property};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Formatter};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Atomic global order: "delivered before, somewhere, or multicast after a delivery" has no cycle.
pub const ORDER: &str = "atomic global order";

/// When nothing is under way any more, all destinations have delivered.
pub const DELIVERED: &str = "all is delivered";

/// What is changed by copying, and hashed once.
pub struct Shared<T> {
    value: Arc<T>,
    print: u64,
}

impl<T: Hash> Shared<T> {
    fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Shared { value: Arc::new(value), print: hasher.finish() }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared { value: Arc::clone(&self.value), print: self.print }
    }
}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.print.hash(state);
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print && self.value == other.value
    }
}

impl<T: Debug> Debug for Shared<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

/// A set of messages, or of processes.
pub type Set = u8;

/// What the order of deliveries and real time say so far.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Relation {
    /// For each message those that are after it, over any number of steps.
    after: Vec<Set>,
    /// Whether one is after itself.
    cyclic: bool,
}

impl Relation {
    fn add(&mut self, before: usize, after: usize) {
        if before == after || self.after[after] & (1 << before) != 0 {
            self.cyclic = true;
        }
        let gained = self.after[after] | (1 << after);
        for (at, set) in self.after.iter_mut().enumerate() {
            if at == before || *set & (1 << before) != 0 {
                *set |= gained;
            }
        }
    }
}

/// How far a run may differ from the regular one, in which messages arrive in about the order in which they
/// were sent: at each link in turn, the one that waits for the longest time.
///
/// This is a bound, and no reduction: what needs more differences is not found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slow {
    /// So often the link whose turn it is may become slow instead, or that START: nothing more arrives on it
    /// before all else is quiet. Or its turn comes once more after all others.
    pub times: u8,
    /// One of these processes may, once and at any time, believe that it has not heard of its primary for
    /// long. All clocks have gone on by then, so that others may believe it, too.
    pub suspicious: Set,
    /// How often, when all is quiet and not all is delivered, timers fire.
    pub ticks: u8,
}

/// How much later it is when a primary is suspected: longer than any election timeout.
const SILENCE: Duration = Duration::from_secs(10);

/// How much later it is at each tick: what is asked for again is asked for by then.
const TICK: Duration = Duration::from_secs(2);

/// Messages to multicast with a protocol.
pub struct Multicasts<P: Protocol> {
    ids: Vec<ProcessId>,
    processes: Vec<Shared<P>>,
    now: Time,
    sent: Vec<Sent<P>>,
    /// All orders, if there is no bound.
    slow: Option<Slow>,
    framed: bool,
}

/// A message, as its client sends it.
struct Sent<P: Protocol> {
    start: Start,
    client: ProcessId,
    /// START to the process with that number.
    messages: Vec<(usize, P::Message)>,
    /// The processes that are to deliver it.
    dest: Set,
    /// In regular runs it is sent once this one was delivered somewhere.
    after: Option<usize>,
}

/// Where messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The START of a message, to a process.
    Start(u8, u8),
    /// The link from one process to another.
    Link(u8, u8),
}

/// Whose turn it is.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
struct Turns {
    /// The first one first.
    next: VecDeque<Source>,
    slow: Vec<Source>,
    times: u8,
    suspected: bool,
    ticks: u8,
}

/// A moment.
pub struct State<P: Protocol> {
    processes: Vec<Shared<P>>,
    /// What is under way: from each process to each, row by row.
    links: Vec<VecDeque<Shared<Vec<P::Message>>>>,
    /// For each message the STARTs that have not arrived; all before it was multicast.
    starts: Vec<Set>,
    /// What each process has delivered.
    delivered: Vec<Set>,
    relation: Relation,
    turns: Turns,
    now: Time,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The first message from there arrives.
    Arrive(Source),
    /// The one whose turn it is becomes slow.
    Slow,
    /// Its turn comes once more later.
    Later,
    /// All is quiet: a slow one is as others again.
    Hurry(Source),
    /// A process suspects its primary.
    Suspect(usize),
    /// Timers fire at all processes.
    Tick,
}

impl<P: Protocol> Clone for State<P> {
    fn clone(&self) -> Self {
        State {
            processes: self.processes.clone(),
            links: self.links.clone(),
            starts: self.starts.clone(),
            delivered: self.delivered.clone(),
            relation: self.relation.clone(),
            turns: self.turns.clone(),
            now: self.now,
        }
    }
}

impl<P: Protocol> Hash for State<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.processes, &self.links, &self.starts).hash(state);
        (&self.delivered, &self.relation, &self.turns, self.now).hash(state);
    }
}

impl<P: Checked> PartialEq for State<P> {
    fn eq(&self, other: &Self) -> bool {
        (&self.processes, &self.links, &self.starts)
            == (&other.processes, &other.links, &other.starts)
            && (&self.delivered, &self.relation) == (&other.delivered, &other.relation)
            && (&self.turns, self.now) == (&other.turns, other.now)
    }
}

impl<P: Protocol> Debug for State<P> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "delivered {:?}, {:?}, {:?}", self.delivered, self.relation, self.turns)
    }
}

/// A protocol whose states can be told apart.
pub trait Checked:
    Protocol
    + Process<Message: Hash + PartialEq + Send + Sync + 'static>
    + Clone
    + Hash
    + PartialEq
    + Send
    + Sync
    + 'static
{
}

impl<P> Checked for P
where
    P: Protocol + Clone + Hash + PartialEq + Send + Sync + 'static,
    P::Message: Hash + PartialEq + Send + Sync + 'static,
{
}

impl<P: Checked> Multicasts<P> {
    /// These messages, multicast by the cluster's last process, which must have a group of its own and is
    /// no part of the model. With each of them the message after whose first delivery it is sent in
    /// regular runs.
    pub fn new(cluster: &Cluster<P>, starts: Vec<(Start, Option<usize>)>) -> Self {
        let mut all: Vec<_> = cluster.processes().map(|(id, p)| (id, p.clone())).collect();
        let (client, sender) = all.pop().expect("the last one is the client");
        let (ids, processes): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let now = cluster.now();
        let send = |(start, after): (Start, Option<usize>)| {
            let (mut sender, mut out) = (sender.clone(), Outbox::new());
            sender.step(now, Event::Command(P::multicast(start.clone())), &mut out);
            sender.step(now, Event::Idle, &mut out);
            let messages = out.drain().map(|effect| match effect {
                Effect::Send { to, message } => (place(&ids, to), message),
                _ => panic!("a client that does more than to send"),
            });
            let messages = messages.collect();
            let is_dest = |(_, id): &(usize, &ProcessId)| start.dest.contains(&id.group);
            let dest = ids.iter().enumerate().filter(is_dest).map(|(at, _)| 1 << at).sum();
            Sent { start, client, messages, dest, after }
        };
        let sent = starts.into_iter().map(send).collect();
        let processes = processes.into_iter().map(Shared::new).collect();
        Multicasts { ids, processes, now, sent, slow: None, framed: false }
    }

    /// Other messages were delivered before, in a regular run.
    pub fn preceded_by(self, cluster: &Cluster<P>, starts: Vec<Start>) -> Self {
        let starts = starts.into_iter().map(|start| (start, None)).collect();
        let before = Multicasts::new(cluster, starts).bounded(Slow::default());
        let mut state = before.init_states().remove(0);
        loop {
            let mut actions = Vec::new();
            before.actions(&state, &mut actions);
            let Some(action) = actions.pop() else { break };
            state = before.next_state(&state, action).expect("it was offered");
        }
        assert!(before.finished(&state), "not all was delivered in a regular run");
        Multicasts { processes: state.processes, ..self }
    }

    /// Not all orders, but those with so few differences.
    pub fn bounded(self, slow: Slow) -> Self {
        Multicasts { slow: Some(slow), ..self }
    }

    /// What a process sends to another in one step, after the same record, arrives together. So it is as good as
    /// always with a real runtime. It is a bound nevertheless: that something comes between is not explored.
    pub fn framed(self) -> Self {
        Multicasts { framed: true, ..self }
    }

    fn link(&self, from: usize, to: usize) -> usize {
        from * self.ids.len() + to
    }

    fn all_starts(&self, message: usize) -> Set {
        self.sent[message].messages.iter().map(|(to, _)| 1 << to).sum()
    }

    /// It is sent now, in regular runs.
    fn turn_of_starts(&self, turns: &mut Turns, message: usize) {
        let to = bits(self.all_starts(message));
        turns.next.extend(to.map(|to| Source::Start(message as u8, to as u8)));
    }

    /// What comes together, and then that there is nothing more.
    fn step(&self, state: &mut State<P>, at: usize, events: impl Iterator<Item = Event<P>>) {
        let mut process = P::clone(&state.processes[at].value);
        let mut out = Outbox::new();
        events.chain([Event::Idle]).for_each(|event| process.step(state.now, event, &mut out));
        state.processes[at] = Shared::new(process);
        let mut records = 0;
        let mut frames: BTreeMap<(usize, usize), Vec<P::Message>> = BTreeMap::new();
        for (number, effect) in out.drain().enumerate() {
            match effect {
                // What is sent to the client is of no interest.
                Effect::Send { to, message } if self.ids.contains(&to) => {
                    let frame = if self.framed { records } else { number };
                    frames.entry((frame, place(&self.ids, to))).or_default().push(message);
                }
                Effect::Output(output) => {
                    if let Some(delivery) = P::delivery(output) {
                        let id = delivery.start.id;
                        let message = self.sent.iter().position(|sent| sent.start.id == id);
                        self.deliver(state, at, message.expect("it was multicast"));
                    }
                }
                Effect::Persist(_) => records += 1,
                _ => {}
            }
        }
        for ((_, to), frame) in frames {
            let queue = &mut state.links[self.link(at, to)];
            queue.push_back(Shared::new(frame));
            let source = Source::Link(at as u8, to as u8);
            if queue.len() == 1 && !state.turns.slow.contains(&source) {
                state.turns.next.push_back(source);
            }
        }
    }

    fn deliver(&self, state: &mut State<P>, at: usize, message: usize) {
        for earlier in bits(state.delivered[at]) {
            state.relation.add(earlier, message);
        }
        let first = ended(state) & (1 << message) == 0;
        state.delivered[at] |= 1 << message;
        for (next, sent) in self.sent.iter().enumerate() {
            if first && sent.after == Some(message) {
                self.turn_of_starts(&mut state.turns, next);
            }
        }
    }

    fn arrive(&self, state: &mut State<P>, source: Source) {
        match source {
            Source::Start(message, to) => {
                let (message, to) = (usize::from(message), usize::from(to));
                let sent = &self.sent[message];
                if state.starts[message] == self.all_starts(message) {
                    bits(ended(state)).for_each(|earlier| state.relation.add(earlier, message));
                }
                state.starts[message] &= !(1 << to);
                let start = sent.messages.iter().find(|(at, _)| *at == to);
                let (_, message) = start.expect("it was sent").clone();
                let event = Event::Message { from: sent.client, message };
                self.step(state, to, std::iter::once(event));
            }
            Source::Link(from, to) => {
                let (from, to) = (usize::from(from), usize::from(to));
                let link = self.link(from, to);
                let frame = state.links[link].pop_front().expect("something is under way");
                if !state.links[link].is_empty() {
                    state.turns.next.push_back(source);
                }
                let (from, messages) = (self.ids[from], frame.value.iter().cloned());
                self.step(state, to, messages.map(|message| Event::Message { from, message }));
            }
        }
    }

    fn finished(&self, state: &State<P>) -> bool {
        let all = self.sent.iter().enumerate();
        let mut missing = all.flat_map(|(message, sent)| {
            bits(sent.dest).filter(move |at| state.delivered[*at] & (1 << message) == 0)
        });
        missing.next().is_none()
    }

    /// What may happen in a bounded run.
    fn bounded_actions(&self, slow: Slow, state: &State<P>, actions: &mut Vec<Action>) {
        let turns = &state.turns;
        match turns.next.front() {
            Some(source) => actions.push(Action::Arrive(*source)),
            None if !turns.slow.is_empty() => {
                actions.extend(turns.slow.iter().copied().map(Action::Hurry));
            }
            None if turns.ticks > 0 && !self.finished(state) => actions.push(Action::Tick),
            None => return,
        }
        if turns.times > 0 && !turns.next.is_empty() {
            actions.push(Action::Slow);
            if turns.next.len() > 1 {
                actions.push(Action::Later);
            }
        }
        if !turns.suspected {
            actions.extend(bits(slow.suspicious).map(Action::Suspect));
        }
    }
}

/// What was delivered anywhere.
fn ended<P: Protocol>(state: &State<P>) -> Set {
    state.delivered.iter().fold(0, |all, some| all | some)
}

fn place(ids: &[ProcessId], id: ProcessId) -> usize {
    ids.iter().position(|known| *known == id).expect("it is in the cluster")
}

fn bits(set: Set) -> impl Iterator<Item = usize> {
    (0..Set::BITS as usize).filter(move |bit| set & (1 << bit) != 0)
}

impl<P: Checked> Model for Multicasts<P> {
    type State = State<P>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<P>> {
        let (count, messages) = (self.ids.len(), self.sent.len());
        let slow = self.slow.unwrap_or_default();
        let mut turns = Turns { times: slow.times, ticks: slow.ticks, ..Turns::default() };
        let at_once = (0..messages).filter(|message| self.sent[*message].after.is_none());
        at_once.for_each(|message| self.turn_of_starts(&mut turns, message));
        let state = State {
            processes: self.processes.clone(),
            links: vec![VecDeque::new(); count * count],
            starts: (0..messages).map(|message| self.all_starts(message)).collect(),
            delivered: vec![0; count],
            relation: Relation { after: vec![0; messages], cyclic: false },
            turns,
            now: self.now,
        };
        vec![state]
    }

    fn actions(&self, state: &State<P>, actions: &mut Vec<Action>) {
        if let Some(slow) = self.slow {
            self.bounded_actions(slow, state, actions);
            return;
        }
        for (message, waiting) in (0..).zip(&state.starts) {
            let to = bits(*waiting).map(|to| Source::Start(message, to as u8));
            actions.extend(to.map(Action::Arrive));
        }
        let count = self.ids.len();
        let busy = state.links.iter().enumerate().filter(|(_, queue)| !queue.is_empty());
        let ends = |(link, _)| Source::Link((link / count) as u8, (link % count) as u8);
        actions.extend(busy.map(ends).map(Action::Arrive));
    }

    fn next_state(&self, state: &State<P>, action: Action) -> Option<State<P>> {
        let mut state = state.clone();
        match action {
            Action::Arrive(source) => {
                state.turns.next.pop_front();
                self.arrive(&mut state, source);
            }
            Action::Slow => {
                let source = state.turns.next.pop_front()?;
                state.turns.slow.push(source);
                state.turns.times -= 1;
            }
            Action::Later => {
                state.turns.next.rotate_left(1);
                state.turns.times -= 1;
            }
            Action::Hurry(source) => {
                state.turns.slow.retain(|slow| *slow != source);
                state.turns.next.push_back(source);
            }
            Action::Suspect(at) => {
                state.turns.suspected = true;
                state.now = state.now + SILENCE;
                self.step(&mut state, at, std::iter::once(Event::Timer(Token(0))));
            }
            Action::Tick => {
                state.turns.ticks -= 1;
                state.now = state.now + TICK;
                for at in 0..self.ids.len() {
                    self.step(&mut state, at, std::iter::once(Event::Timer(Token(0))));
                }
            }
        }
        if self.slow.is_none() {
            state.turns = Turns::default();
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, state: &State<P>| !state.relation.cyclic),
            Property::always(DELIVERED, |model: &Self, state: &State<P>| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                actions.iter().any(|action| !matches!(action, Action::Suspect(_)))
                    || model.finished(state)
            }),
        ]
    }
}
