//! Small cases of atomic multicast, in all orders of arrival, or in those with few delays.
//!
//! A few messages are multicast to a few groups. Each group has its first primary before the search
//! begins. Each START travels on its own and arrives at any time; what is persisted is durable at
//! once, timers do not fire, and nothing is lost. What varies is in [`Case`]: a process may suspect
//! its primary, the primary may have stopped for good before.
//!
//! A primary changes without any time passing: some process has missed it before the search, and
//! asked the others of its group whether they do too. The answer that makes it stand comes at any
//! time, while the primary goes on, or after it has stopped. In runs with a delay bound silence
//! makes it suspect instead, at any time.
//!
//! What is missed: a process is given `Event::Idle` after each message (or frame), not after
//! several, and what timers repeat is not repeated. Trials and short runs have these.

use super::relation::{MESSAGES_MAX, Relation};
use super::replica::groups_of;
use crate::explore::{
    Begun, Comparable, Crash, Found, Frames, Input, Model, Options as How, Regular, Set, Suspicion,
    bits, search,
};
use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, Outbox, Process, ProcessId, Time,
};
use meridian_multicast::{
    Dissemination, Groups, Mutation, Options, Order, PrimCast, Protocol, Role, Start, Timer,
    Timestamp,
};
use std::sync::Arc;
use std::time::Duration;

/// Atomic global order: "delivered before, somewhere, or multicast after a delivery" has no cycle.
pub const ORDER: &str = "atomic global order";

/// When the processes have started, so much time passes: enough for the first of a group to stand,
/// and for no other.
const FIRST_SILENCE: Duration = Duration::from_millis(600);

/// So often so much time passes after what was delivered before the search: enough for all to say
/// so, and no silence. Else what timers bring about would begin with that.
const PAUSES: usize = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// So long without a word of its primary that it is suspected, and not so long that the next one
/// would be.
const SHORT_SILENCE: Duration = Duration::from_millis(1800);

/// A small case of PrimCast.
#[derive(Clone, Debug)]
pub struct Case {
    /// How many processes each group has.
    pub sizes: Vec<u16>,
    /// Which groups each message goes to.
    pub messages: Vec<Vec<u16>>,
    /// How far the groups' clocks are, at least, when the messages come.
    pub clocks: Vec<u64>,
    /// The groups have ordered a message to all of them before: those whose primaries speak for
    /// them know that.
    pub acquainted: bool,
    /// What a process sends to another in one step arrives together.
    pub framed: bool,
    /// This one may suspect its primary. In all orders: once the next one of its group, which there
    /// must be, says so too.
    pub suspect: Option<usize>,
    /// This one stops before, at any moment, for good.
    pub crash: Option<usize>,
    /// How often timers fire then when all is quiet and not all is delivered.
    pub ticks: u8,
    /// Not all orders, but those with so few delays. A message is sent there once the one before it
    /// was delivered.
    pub delays: Option<u8>,
    /// Whether only persistent sets are explored.
    pub reduced: bool,
    /// The order of deliveries.
    pub order: Order,
    /// Who speaks for each group.
    pub dissemination: Dissemination,
    /// A planted bug.
    pub mutation: Mutation,
}

impl Case {
    /// Messages to these groups, of groups of these sizes.
    pub fn of<D: AsRef<[u16]>>(sizes: &[u16], messages: &[D]) -> Case {
        Case {
            sizes: sizes.to_vec(),
            messages: messages.iter().map(|dest| dest.as_ref().to_vec()).collect(),
            clocks: Vec::new(),
            acquainted: false,
            framed: false,
            suspect: None,
            crash: None,
            ticks: 6,
            delays: None,
            reduced: true,
            order: Order::Linearizable,
            dissemination: Dissemination::AllToAll,
            mutation: Mutation::Correct,
        }
    }

    /// Searches until something is violated.
    pub fn search(&self) -> Found {
        let (order, dissemination) = (self.order, self.dissemination);
        let options = Options { order, dissemination, ..Options::default() };
        let make = |me, groups: &Groups| {
            let process = PrimCast::new(me, groups.clone()).with_options(options);
            process.with_mutation(self.mutation)
        };
        let mut cluster = Cluster::new(&self.sizes, make, Event::Timer(Timer::Tick));
        cluster.settle();
        cluster.deliver(self.before());
        let because = self.suspect.map(|at| match self.delays {
            // In all orders, the next one's answer brings it about; else silence, and what timers
            // do then.
            None => cluster.asks(at, at + 1),
            Some(_) => Vec::new(),
        });
        let starts = messages(&self.messages);
        let mut model = cluster.multicasts(starts, self.delays.is_some());
        model.suspect = self.suspect;
        if let (Some(crash), Some(suspect)) = (self.crash, self.suspect) {
            model.is_told_again(crash, suspect);
        }
        if let Some(at) = self.suspect.filter(|at| self.needs_others(*at)) {
            let me = model.begun[at].peer;
            model.goal = Box::new(move |p| p.role() == Role::Primary && p.me() == me);
        }
        let after_crash = self.crash.is_some();
        let suspicion = self.suspect.zip(because);
        let suspicion = suspicion.map(|(at, because)| Suspicion { at, because, after_crash });
        let crash = self.crash.map(|at| Crash { who: 1 << at, loses: false, restarts: false });
        let frames = if self.framed { Frames::Step } else { Frames::Single };
        let ticks = if self.suspect.is_some() { self.ticks } else { 0 };
        let (delays, reduced) = (self.delays, self.reduced);
        search(&model, How { frames, suspicion, crash, ticks, delays, reduced, ..How::default() })
    }

    /// Whether others than its primary can make a quorum with this one, so that it must lead in
    /// some run.
    fn needs_others(&self, at: usize) -> bool {
        let of = self.sizes.iter().flat_map(|size| std::iter::repeat_n(*size, (*size).into()));
        of.skip(at).take(1).any(|size| size > 2)
    }

    /// What was delivered before the search.
    fn before(&self) -> Vec<Start> {
        let all: Vec<_> = (0..).take(self.sizes.len()).collect();
        let to_all = self.acquainted.then(|| start(99, &all, 0));
        let clocks = (0..).zip(&self.clocks).filter(|(_, clock)| **clock > 0);
        let clocks =
            clocks.map(|(group, clock)| start(100 + u64::from(group), &[group], clock - 1));
        to_all.into_iter().chain(clocks).collect()
    }
}

/// A message of that name; its timestamps are greater than `after`.
fn start(name: u64, dest: &[u16], after: u64) -> Start {
    let id = MessageId { client: ClientId(name), sequence: 1 };
    let dest: Vec<_> = dest.iter().map(|group| GroupId(*group)).collect();
    Start { after: Timestamp(after), ..Start::new(id, dest, Vec::new()) }
}

/// Messages 1, 2, .. to these groups.
fn messages<D: AsRef<[u16]>>(dest: &[D]) -> Vec<Start> {
    (1..).zip(dest).map(|(name, dest)| start(name, dest.as_ref(), 0)).collect()
}

/// Searches all orders in which these messages can arrive at groups of one in any protocol, until
/// something is violated.
pub fn search_single<P: Protocol + Comparable>(
    groups: u16,
    dest: &[&[u16]],
    make: impl Fn(ProcessId, &Groups) -> P,
) -> Found {
    let cluster = Cluster::new(&vec![1; groups.into()], make, Event::Idle);
    search(&cluster.multicasts(messages(dest), false), How::default())
}

/// A cluster while it is prepared.
struct Cluster<P: Protocol> {
    begun: Vec<Begun<P>>,
    /// Of a group of its own, that nothing is sent to.
    client: P,
    client_id: ProcessId,
    now: Time,
    timer: Event<P>,
}

impl<P: Protocol + Comparable> Cluster<P> {
    fn new(sizes: &[u16], make: impl Fn(ProcessId, &Groups) -> P, timer: Event<P>) -> Cluster<P> {
        let sizes: Vec<_> = sizes.iter().copied().chain([1]).collect();
        let groups: Groups = Arc::new(groups_of(&sizes));
        let ids = groups.iter().flat_map(|(group, nodes)| {
            nodes.iter().map(|node| ProcessId { group: *group, node: *node })
        });
        let begin = |peer| Begun { peer, process: make(peer, &groups), disk: Vec::new() };
        let mut begun: Vec<_> = ids.map(begin).collect();
        let client = begun.pop().expect("the last one is the client");
        let (client, client_id) = (client.process, client.peer);
        Cluster { begun, client, client_id, now: Time(0), timer }
    }

    /// All start, and each group gets its first primary.
    fn settle(&mut self) {
        let start = |at| input(at, Event::Started, 0);
        let inputs = (0..self.begun.len()).map(start).collect();
        let model = self.model(Vec::new(), inputs);
        let mut regular = Regular::new(&model, How::default());
        regular.run();
        for pause in [FIRST_SILENCE].into_iter().chain([PAUSE; PAUSES]) {
            regular.pause(pause, model.all());
            regular.run();
        }
        let (begun, now) = regular.end();
        (self.begun, self.now) = (begun, now);
    }

    /// These messages are delivered in a regular run, and so much time passes that all have said
    /// so.
    fn deliver(&mut self, starts: Vec<Start>) {
        if starts.is_empty() {
            return;
        }
        let model = self.multicasts(starts, false);
        let mut regular = Regular::new(&model, How::default());
        regular.run();
        for _ in 0..PAUSES {
            regular.pause(PAUSE, model.all());
            regular.run();
        }
        assert!(regular.is_done(), "not all was delivered in a regular run");
        let (begun, now) = regular.end();
        (self.begun, self.now) = (begun, now);
    }

    /// A process suspects its primary and asks the others of its group; what it would be answered
    /// by this one is withheld.
    fn asks(&mut self, asks: usize, answers: usize) -> Vec<Event<P>> {
        let model = self.model(Vec::new(), Vec::new());
        let mut regular = Regular::new(&model, How::default());
        regular.pause(SHORT_SILENCE, 1 << asks);
        let answer = regular.withhold(answers, asks);
        regular.run();
        let (begun, now) = regular.end();
        (self.begun, self.now) = (begun, now);
        answer
    }

    /// These messages, multicast by the client; `in_turn` if each is sent once the one before it
    /// was delivered.
    fn multicasts(&self, starts: Vec<Start>, in_turn: bool) -> Multicasts<P> {
        assert!(starts.len() <= MESSAGES_MAX, "too many messages");
        // One message alone is in no order.
        let cause = |number: usize| if starts.len() > 1 { 1 << number } else { 0 };
        let parts = |(number, start): (usize, &Start)| {
            let (mut client, mut out) = (self.client.clone(), Outbox::new());
            client.step(self.now, Event::Command(P::multicast(start.clone())), &mut out);
            client.step(self.now, Event::Idle, &mut out);
            let part = |effect| {
                let Effect::Send { to, message } = effect else {
                    panic!("a client that does more than to send");
                };
                let to = self.begun.iter().position(|begun| begun.peer == to);
                let event = Event::Message { from: self.client_id, message };
                input(to.expect("it is in the cluster"), event, cause(number))
            };
            out.drain().map(part).collect::<Vec<_>>()
        };
        let inputs = starts.iter().enumerate().flat_map(parts).collect();
        Multicasts { in_turn, ..self.model(starts, inputs) }
    }

    fn model(&self, starts: Vec<Start>, inputs: Vec<Input<P>>) -> Multicasts<P> {
        let dest = |start: &Start| {
            let begun = self.begun.iter().enumerate();
            let dest = begun.filter(|(_, begun)| start.dest.contains(&begun.peer.group));
            dest.map(|(at, _)| 1 << at).sum()
        };
        let dest = starts.iter().map(dest).collect();
        let names = starts.iter().map(|start| start.id).collect();
        let (begun, now, timer) = (self.begun.clone(), self.now, self.timer.clone());
        let goal = Box::new(|_: &P| true);
        let (in_turn, suspect) = (false, None);
        Multicasts { begun, now, timer, names, dest, inputs, in_turn, suspect, goal }
    }
}

/// Something to a process from outside.
fn input<P: Process>(at: usize, event: Event<P>, cause: Set) -> Input<P> {
    Input { at, event, cause, after: None, after_crash: false }
}

/// Messages to multicast with a protocol.
struct Multicasts<P: Protocol> {
    begun: Vec<Begun<P>>,
    now: Time,
    timer: Event<P>,
    /// The names of the messages, and the processes that are to deliver each.
    names: Vec<MessageId>,
    dest: Vec<Set>,
    /// The cause of each is the message.
    inputs: Vec<Input<P>>,
    in_turn: bool,
    /// Who may suspect its primary.
    suspect: Option<usize>,
    /// What some process must become.
    goal: Box<dyn Fn(&P) -> bool>,
}

impl<P: Protocol + Comparable> Multicasts<P> {
    fn all(&self) -> Set {
        (1 << self.begun.len()) - 1
    }

    /// What clients have sent to one that stops, they send then to whoever suspects it.
    fn is_told_again(&mut self, crash: usize, suspect: usize) {
        let told = self.inputs.iter().filter(|input| input.at == crash);
        let again = told.map(|input| Input { at: suspect, after_crash: true, ..input.clone() });
        let again: Vec<_> = again.collect();
        self.inputs.retain(|input| input.at != suspect);
        self.inputs.extend(again);
    }
}

/// What processes have delivered in a run, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
struct Deliveries {
    /// By each process.
    by: [Set; Set::BITS as usize],
    relation: Relation,
}

impl<P: Protocol + Comparable> Model for Multicasts<P> {
    type Process = P;
    type Observed = Deliveries;

    fn processes(&self) -> Vec<Begun<P>> {
        self.begun.clone()
    }

    fn now(&self) -> Time {
        self.now
    }

    fn timer(&self) -> Event<P> {
        self.timer.clone()
    }

    fn inputs(&self) -> Vec<Input<P>> {
        self.inputs.clone()
    }

    fn is_due(&self, input: usize, _at: &P, observed: &Deliveries) -> bool {
        let message = bits(self.inputs[input].cause).next().unwrap_or_default();
        let before = observed.by.iter().fold(0, |all, by| all | by);
        !self.in_turn || message == 0 || before & (1 << (message - 1)) != 0
    }

    fn shares_silence(&self, from: usize, to: usize) -> bool {
        self.suspect == Some(from) && self.begun[from].peer.group == self.begun[to].peer.group
    }

    fn observe(
        &self,
        observed: &mut Deliveries,
        at: usize,
        past: Set,
        _process: &P,
        outputs: &[P::Output],
    ) {
        for delivery in outputs.iter().cloned().filter_map(P::delivery) {
            // (What was delivered before the search says nothing.)
            let id = delivery.start.id;
            let Some(message) = self.names.iter().position(|name| *name == id) else { continue };
            let others = (1 << self.names.len()) - 1 - (1 << message);
            observed.relation.deliver(message, observed.by[at], others & !past);
            observed.by[at] |= 1 << message;
        }
    }

    fn forget(&self, observed: &mut Deliveries, at: usize) {
        observed.by[at] = 0;
    }

    fn violated(&self, observed: &Deliveries, _up: &[&P]) -> Option<&'static str> {
        observed.relation.is_cyclic().then_some(ORDER)
    }

    fn is_done(&self, observed: &Deliveries, up: Set) -> bool {
        let mut all = self.dest.iter().enumerate();
        all.all(|(message, dest)| bits(dest & up).all(|at| observed.by[at] & (1 << message) != 0))
    }

    fn is_goal(&self, _observed: &Deliveries, up: &[&P]) -> bool {
        up.iter().any(|process| (self.goal)(process))
    }

    fn restarted(&self, _at: usize) -> P {
        unreachable!("whoever stops here stops for good")
    }
}
