//! A multicast protocol as a model: the real code, and every order in which its messages may arrive.

use meridian_core::{Effect, Event, Outbox, Process, ProcessId, Time};
use meridian_multicast::{Protocol, Start};
use meridian_sim::search::Cluster;
use stateright::{Model, Property};
use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

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
type Set = u8;

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

/// Messages to multicast with a protocol.
pub struct Multicasts<P: Protocol> {
    ids: Vec<ProcessId>,
    processes: Vec<Shared<P>>,
    now: Time,
    starts: Vec<Sent<P>>,
    eager: fn(&P::Message) -> bool,
    pub real_time: bool,
}

/// A message, as its client sends it.
struct Sent<P: Protocol> {
    start: Start,
    client: ProcessId,
    /// START to the process with that number.
    messages: Vec<(usize, P::Message)>,
    /// The processes that are to deliver it.
    dest: Set,
}

/// A moment.
pub struct State<P: Protocol> {
    processes: Vec<Shared<P>>,
    /// What is under way: from each process to each, row by row.
    links: Vec<VecDeque<Shared<P::Message>>>,
    /// For each message the STARTs that have not arrived; all before it was multicast.
    starts: Vec<Set>,
    /// What each process has delivered.
    delivered: Vec<Set>,
    relation: Relation,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The START of a message arrives at a process.
    Start(usize, usize),
    /// The first message from one process to another arrives.
    Arrive(usize, usize),
}

impl<P: Protocol> Clone for State<P> {
    fn clone(&self) -> Self {
        State {
            processes: self.processes.clone(),
            links: self.links.clone(),
            starts: self.starts.clone(),
            delivered: self.delivered.clone(),
            relation: self.relation.clone(),
        }
    }
}

impl<P: Protocol> Hash for State<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.processes, &self.links, &self.starts).hash(state);
        (&self.delivered, &self.relation).hash(state);
    }
}

impl<P: Checked> PartialEq for State<P> {
    fn eq(&self, other: &Self) -> bool {
        self.processes == other.processes
            && self.links == other.links
            && (&self.starts, &self.delivered) == (&other.starts, &other.delivered)
            && self.relation == other.relation
    }
}

impl<P: Protocol> Debug for State<P> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "delivered {:?}, {:?}", self.delivered, self.relation)
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
    /// These messages, multicast from outside the cluster's groups: by its last process, which must
    /// have a group of its own.
    pub fn new(cluster: &Cluster<P>, starts: Vec<Start>) -> Self {
        let mut all: Vec<_> = cluster.processes().map(|(id, p)| (id, p.clone())).collect();
        let (client, sender) = all.pop().expect("the last one is the client");
        let (ids, processes): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let now = cluster.now();
        let sent = |start: Start| {
            let mut out = Outbox::new();
            let command = Event::Command(P::multicast(start.clone()));
            let mut sender = sender.clone();
            sender.step(now, command, &mut out);
            sender.step(now, Event::Idle, &mut out);
            let messages = out.drain().map(|effect| match effect {
                Effect::Send { to, message } => (place(&ids, to), message),
                _ => panic!("a client that does more than to send"),
            });
            let messages = messages.collect();
            let is_dest = |(_, id): &(usize, &ProcessId)| start.dest.contains(&id.group);
            let dest = ids.iter().enumerate().filter(is_dest).map(|(at, _)| 1 << at).sum();
            Sent { start, client, messages, dest }
        };
        let starts = starts.into_iter().map(sent).collect();
        let processes = processes.into_iter().map(Shared::new).collect();
        Multicasts { ids, processes, now, starts, eager: |_| false, real_time: true }
    }

    pub fn eager(mut self, eager: fn(&P::Message) -> bool) -> Self {
        self.eager = eager;
        self
    }

    fn all_starts(&self, message: usize) -> Set {
        self.starts[message].messages.iter().map(|(to, _)| 1 << to).sum()
    }

    fn step(&self, state: &mut State<P>, at: usize, event: Event<P>) {
        let mut process = P::clone(&state.processes[at].value);
        let mut out = Outbox::new();
        process.step(self.now, event, &mut out);
        process.step(self.now, Event::Idle, &mut out);
        state.processes[at] = Shared::new(process);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    if self.ids.contains(&to) {
                        let link = at * self.ids.len() + place(&self.ids, to);
                        state.links[link].push_back(Shared::new(message));
                    }
                }
                Effect::Output(output) => {
                    if let Some(delivery) = P::delivery(output) {
                        let id = delivery.start.id;
                        let is = |sent: &Sent<P>| sent.start.id == id;
                        let message = self.starts.iter().position(is).expect("it was multicast");
                        self.deliver(state, at, message);
                    }
                }
                Effect::Persist(_) | Effect::Note(_) | Effect::Timer { .. } => {}
            }
        }
    }

    fn deliver(&self, state: &mut State<P>, at: usize, message: usize) {
        for earlier in bits(state.delivered[at]) {
            state.relation.add(earlier, message);
        }
        state.delivered[at] |= 1 << message;
    }

    fn finished(&self, state: &State<P>) -> bool {
        let all = self.starts.iter().enumerate();
        let mut missing = all.flat_map(|(message, sent)| {
            bits(sent.dest).filter(move |at| state.delivered[*at] & (1 << message) == 0)
        });
        missing.next().is_none()
    }
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
        let (count, messages) = (self.ids.len(), self.starts.len());
        let state = State {
            processes: self.processes.clone(),
            links: vec![VecDeque::new(); count * count],
            starts: (0..messages).map(|message| self.all_starts(message)).collect(),
            delivered: vec![0; count],
            relation: Relation { after: vec![0; messages], cyclic: false },
        };
        vec![state]
    }

    fn actions(&self, state: &State<P>, actions: &mut Vec<Action>) {
        for (message, waiting) in state.starts.iter().enumerate() {
            actions.extend(bits(*waiting).map(|to| Action::Start(message, to)));
        }
        let count = self.ids.len();
        for (link, queue) in state.links.iter().enumerate() {
            if queue.front().is_some_and(|message| (self.eager)(&message.value)) {
                actions.clear();
                actions.push(Action::Arrive(link / count, link % count));
                return;
            }
            if !queue.is_empty() {
                actions.push(Action::Arrive(link / count, link % count));
            }
        }
    }

    fn next_state(&self, state: &State<P>, action: Action) -> Option<State<P>> {
        let mut state = state.clone();
        match action {
            Action::Start(message, to) => {
                let sent = &self.starts[message];
                if self.real_time && state.starts[message] == self.all_starts(message) {
                    let ended = state.delivered.iter().fold(0, |all, some| all | some);
                    bits(ended).for_each(|earlier| state.relation.add(earlier, message));
                }
                state.starts[message] &= !(1 << to);
                let (_, start) = sent.messages.iter().find(|(at, _)| *at == to)?;
                let (from, message) = (sent.client, start.clone());
                self.step(&mut state, to, Event::Message { from, message });
            }
            Action::Arrive(from, to) => {
                let message = state.links[from * self.ids.len() + to].pop_front()?;
                let (from, message) = (self.ids[from], P::Message::clone(&message.value));
                self.step(&mut state, to, Event::Message { from, message });
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("order in real time", |_, state: &State<P>| !state.relation.cyclic),
            Property::always("all is delivered", |model: &Self, state: &State<P>| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty() || model.finished(state)
            }),
        ]
    }
}
