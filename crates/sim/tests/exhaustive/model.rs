//! A multicast protocol as a model: the real code, and the orders in which its messages may arrive.
//!
//! Links are FIFO; what is multicast comes from outside, so each START travels on its own. Time
//! stands still, timers do not fire (but see [`Multicasts::suspicious`]), and nothing is lost.
//!
//! What is not explored, and why nothing is missed by that:
//!
//! - **Processes are independent.** What arrives at one process changes it alone, and adds to the
//!   ends of its links: so of two events at different processes the order does not matter, neither
//!   for what becomes of the processes nor for what is checked, which are sets that only grow. It
//!   is enough to explore, in each state, a *persistent set* of events: all those at some
//!   processes, such that no other can send them an alternative to what is under way before one of
//!   them has done something ([`Multicasts::closed`]). Each process comes to see each order of
//!   arrivals that it can see, and all together each combination. (No event is put off for ever:
//!   each takes a message, so runs are finite.)
//! - **To whom a process may still send** depends on its state, and on whom it can hear of until
//!   then: who waits for word of one of those processes cannot send them anything before. It is
//!   taken from the steps that were met in the search before ([`crate::futures`]); where a search
//!   meets more, it is repeated. So in the last one nothing was assumed wrongly: take the shortest
//!   run that has a step at some process which was not met. Before that step nobody sends what he
//!   was not expected to send; so the first event of the run that is in the persistent set can come
//!   first, or, if none is, any of that set can; what is left is shorter, or has less under way,
//!   and its steps were met.
//! - **When a message is multicast** is not a choice. It may have been after a delivery of `x` if
//!   its STARTs are not among the causes of that: the state holds which of them are in the past of
//!   each process and of what is under way. One such pair is enough to look for. Let `a` end before
//!   `b` is multicast and `c` before `d`, in one cycle. Then `a` ends before `d` is multicast, or
//!   `c` before `b`; either way there is a cycle with one such pair less. So there is none if
//!   nothing that may have been multicast after a delivery of `x` precedes `x`.
//! - **What may arrive early** ([`crate::movers`]): a frame after which all that can come to its
//!   receiver has the same effect as before it, and that has the same effect after all of that. It
//!   is taken at once: any run in which it arrives later has an equal one. What the receiver does
//!   later was not caused by it, as far as it is not told so by another way; so what its sender had
//!   heard of is in the past of what follows from it, and not of what else the receiver does. Where
//!   the receiver has heard of all that anyway, it does not matter either which of two frames is
//!   followed by what both bring about: taken early, it has heard of no more, so whatever is wrong
//!   with the other run is wrong with this one. Whether it was right is checked with all steps that
//!   were met; what was not is not done again, and the search is repeated. Runs go on until nothing
//!   is under way, as what would come after the last delivery in one run may come before it in
//!   another that is left out.
//! - **How edges came about**: the state holds only which messages are before which, over any
//!   number of steps. Whether later edges close a cycle depends on nothing else.
//! - **States in which there is no choice** are passed through, and not counted.
//!
//! A test compares the ends of all runs with and without all this.
//!
//! A primary changes without any time passing: some process has missed it before the search, and
//! asked the others of its group whether they do too. The answer that makes it stand comes at any
//! time ([`Multicasts::preceded_by`]): while the primary goes on, or after it has stopped
//! ([`Multicasts::stopping`]).
//!
//! What is missed: a process is given `Event::Idle` after each message (or frame), not after
//! several, what it persists is durable at once, and what timers repeat is not repeated. The random
//! search and the simulator have these.
//!
//! Where all orders are too many, [`Slow`] bounds how much a run may differ from a regular one.

use crate::bounded::{Slow, Turns};
use crate::locals::{Frames, Input, Locals};
use crate::reduced::is_first;
use crate::relation::Relation;
use meridian_baselines::Skeen;
use meridian_core::{Effect, Event, Outbox, Process, ProcessId, Time};
use meridian_multicast::{PrimCast, Protocol, Start, Timer};
use meridian_sim::of::multicast::short::Cluster;
use stateright::{Model, Property};
use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Atomic global order: "delivered before, somewhere, or multicast after a delivery" has no cycle.
pub const ORDER: &str = "atomic global order";

/// When nothing is under way any more, all destinations have delivered.
pub const DELIVERED: &str = "all is delivered";

/// No assertion in a process fails.
pub const ASSERTIONS: &str = "assertions hold";

/// A set of messages, or of processes.
pub type Set = u8;

/// So many messages at most: one bit is needed for [`LATE`].
pub(crate) const MESSAGES_MAX: usize = 7;

/// In the past of a process: so long without a word of its primary that it is suspected.
pub(crate) const LATE: Set = 1 << 7;

/// How much later it is then: longer than any election timeout.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// How much later it is at each tick: what is asked for again is asked for by then.
const TICK: Duration = Duration::from_secs(2);

/// Messages to multicast with a protocol.
#[derive(Clone)]
pub struct Multicasts<P: Protocol> {
    pub(crate) ids: Vec<ProcessId>,
    pub(crate) processes: Vec<P>,
    pub(crate) locals: Arc<Locals<P>>,
    pub(crate) now: Time,
    pub(crate) sent: Vec<Sent<P>>,
    /// For each process those that may send it anything.
    pub(crate) senders: Vec<Set>,
    pub(crate) suspicious: Set,
    /// What makes it so: none if it is silence.
    pub(crate) answer: Option<u32>,
    /// Who stops before that.
    pub(crate) stops: Set,
    pub(crate) ticks: u8,
    /// All orders, if there is no bound.
    pub(crate) slow: Option<Slow>,
    /// All events in each state, and nothing absorbed.
    pub(crate) plain: bool,
}

/// A message, as its client sends it.
#[derive(Clone)]
pub(crate) struct Sent<P: Protocol> {
    start: Start,
    client: ProcessId,
    /// START to the process with that number.
    messages: Vec<(usize, P::Message)>,
    /// The same as frames.
    pub(crate) frames: Vec<(usize, u32)>,
    /// The processes that are to deliver it.
    dest: Set,
    /// In regular runs it is sent once this one was delivered somewhere.
    pub(crate) after: Option<usize>,
}

/// Where messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The START of a message, to a process.
    Start(u8, u8),
    /// The link from one process to another.
    Link(u8, u8),
}

impl Source {
    fn to(self) -> usize {
        let (Source::Start(_, to) | Source::Link(_, to)) = self;
        usize::from(to)
    }
}

/// A process at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct Local {
    /// The number of its state.
    pub(crate) process: u32,
    delivered: Set,
    /// The messages whose STARTs are among the causes of what it has done.
    pub(crate) past: Set,
    /// STARTs under way to it.
    pub(crate) starts: Set,
}

/// A frame under way.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct Flight {
    pub(crate) from: u8,
    pub(crate) to: u8,
    pub(crate) past: Set,
    pub(crate) frame: u32,
}

/// A moment.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    pub(crate) locals: Vec<Local>,
    /// By link, and on each the first one first.
    pub(crate) flights: Vec<Flight>,
    relation: Relation,
    failed: bool,
    pub(crate) suspected: bool,
    pub(crate) stopped: bool,
    /// How often timers fired when all was quiet.
    pub(crate) ticks: u8,
    pub(crate) turns: Turns,
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
    /// A process stops for good.
    Stop(usize),
    /// A process suspects its primary.
    Suspect(usize),
    /// Timers fire at all processes.
    Tick,
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
    /// The timer upon which it suspects its primary.
    fn tick() -> Self::Timer;
}

impl Checked for PrimCast {
    fn tick() -> Timer {
        Timer::Tick
    }
}

impl Checked for Skeen {
    fn tick() -> Infallible {
        panic!("it has no timers")
    }
}

impl<P: Checked> Multicasts<P> {
    /// These messages, multicast by the cluster's last process, which must have a group of its own
    /// and is no part of the model. With each of them the message after whose first delivery it is
    /// sent in regular runs.
    pub fn new(cluster: &Cluster<P>, starts: Vec<(Start, Option<usize>)>) -> Self {
        assert!(starts.len() <= MESSAGES_MAX, "too many messages");
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
            Sent { start, client, messages, frames: Vec::new(), dest, after }
        };
        let sent: Vec<_> = starts.into_iter().map(send).collect();
        let senders = ids.iter().map(|to| {
            let shares = |from: &ProcessId| {
                let both = |sent: &Sent<P>| {
                    [from, to].iter().all(|id| sent.start.dest.contains(&id.group))
                };
                from != to && (from.group == to.group || sent.iter().any(both))
            };
            let from = ids.iter().enumerate().filter(|(_, from)| shares(from));
            from.map(|(at, _)| 1 << at).sum()
        });
        let senders = senders.collect();
        let locals = Arc::new(Locals::new(Vec::new(), Frames::Single, Vec::new()));
        let model = Multicasts {
            ids,
            processes,
            locals,
            now,
            sent,
            senders,
            suspicious: 0,
            answer: None,
            stops: 0,
            ticks: 0,
            slow: None,
            plain: false,
        };
        model.framed(Frames::Single)
    }

    /// What travels together.
    pub fn framed(mut self, frames: Frames) -> Self {
        let names = self.sent.iter().map(|sent| sent.start.id).collect();
        let locals = Locals::new(self.ids.clone(), frames, names);
        for sent in &mut self.sent {
            let messages = sent.messages.iter();
            let frame = |(to, message): &(_, P::Message)| {
                (*to, locals.frame(sent.client, vec![message.clone()]))
            };
            sent.frames = messages.map(frame).collect();
        }
        Multicasts { locals: Arc::new(locals), ..self }
    }

    /// Not all orders, but those with so few delays.
    pub fn bounded(self, slow: Slow) -> Self {
        Multicasts { slow: Some(slow), ..self }
    }

    /// All events are explored in each state: to see that what is left out is not missed.
    pub fn plain(self) -> Self {
        Multicasts { plain: true, ..self }
    }

    /// This process may, once and at any time, suspect its primary: upon an answer (see
    /// [`Multicasts::answered`]), or as it believes that it has not heard of it for long. That much
    /// its clock is ahead from then on, and those of the others of its group once they hear from
    /// it, so that they miss the primary too. (Nobody compares clocks of different processes. In
    /// all orders it must be an answer: what a process does when it is late differs.)
    ///
    /// When all is quiet and not all is delivered, timers fire, so often at most. What follows is
    /// there to see that all is delivered: it is explored in one order only, link by link, if there
    /// is no other bound.
    pub fn suspicious(self, process: usize, ticks: u8) -> Self {
        Multicasts { suspicious: 1 << process, ticks, ..self }
    }

    /// What makes it suspect its primary is this frame, which arrives at any time: time stands
    /// still for all.
    pub fn answered(self, from: ProcessId, messages: Vec<P::Message>) -> Self {
        let answer = self.locals.frame(from, messages);
        Multicasts { answer: Some(answer), ..self }
    }

    /// What makes a process suspect its primary, and what it has heard of with it.
    pub(crate) fn suspicion(&self) -> (Input, Set) {
        self.answer.map_or((Input::Timer, LATE), |answer| (Input::Answer(answer), 0))
    }

    /// That process stops for good at any moment, and is suspected after that only. What it has
    /// sent arrives, what is sent to it does not; so clients tell whoever suspects it, too. (A
    /// search in all orders only.)
    pub fn stopping(mut self, process: usize) -> Self {
        for sent in &mut self.sent {
            let frame = sent.frames.iter().find(|(to, _)| *to == process).copied();
            let again = frame.map(|(_, frame)| bits(self.suspicious).map(move |to| (to, frame)));
            sent.frames.extend(again.into_iter().flatten());
        }
        Multicasts { stops: 1 << process, ..self }
    }

    /// The messages that a client sends there.
    fn starts_to(&self, at: usize) -> Set {
        let to = |sent: &Sent<P>| sent.frames.iter().any(|(to, _)| *to == at);
        let starts = self.sent.iter().enumerate().filter(|(_, sent)| to(sent));
        starts.map(|(message, _)| 1 << message).sum()
    }

    /// Who has stopped.
    pub(crate) fn stopped(&self, state: &State) -> Set {
        if state.stopped { self.stops } else { 0 }
    }

    /// Checks what was taken to move to the left. How many of these do not, and will not be taken
    /// so again, and how many pairs of a state and a frame were looked at.
    pub fn check_moved(&self, all_states: bool) -> (usize, usize) {
        self.locals.check_moved(all_states)
    }

    /// Looks again to whom processes may still send. Of how many of their states less was assumed.
    pub fn foresee(&self) -> usize {
        self.locals.foresee()
    }

    /// How many states of processes were met, and how many different steps.
    pub fn counts(&self) -> (usize, usize) {
        self.locals.counts()
    }

    /// What time it is there.
    pub(crate) fn now(&self, state: &State, at: usize) -> Time {
        let is_late = state.locals[at].past & LATE != 0;
        self.now + SILENCE * u32::from(is_late) + TICK * u32::from(state.ticks)
    }

    /// Whether one who hears from the other, which suspects its primary, misses that too.
    fn shares_silence(&self, from: usize, to: usize) -> bool {
        self.suspicious & (1 << from) != 0 && self.ids[from].group == self.ids[to].group
    }

    /// With `past` being what has caused it.
    pub(crate) fn step(&self, state: &mut State, at: usize, input: Input, past: Set) {
        let now = self.now(state, at);
        let step = self.locals.step(at, state.locals[at].process, input, now, state.ticks == 0);
        state.locals[at].process = step.next;
        let from = at as u8;
        state.failed |= step.failed;
        step.delivers.iter().for_each(|message| self.deliver(state, at, *message, past));
        for (to, frame) in &step.sends {
            assert!(self.senders[*to] & (1 << at) != 0, "{} -> {}", self.ids[at], self.ids[*to]);
            if self.stopped(state) & (1 << to) != 0 {
                continue;
            }
            let shared = if self.shares_silence(at, *to) { past } else { past & !LATE };
            let flight = Flight { from, to: *to as u8, past: shared, frame: *frame };
            let place = state.flights.partition_point(|other| other.link() <= flight.link());
            state.flights.insert(place, flight);
            if self.slow.is_some() && is_first(&state.flights, place) {
                state.turns.come(Source::Link(from, flight.to));
            }
        }
    }

    fn deliver(&self, state: &mut State, at: usize, message: usize, past: Set) {
        let first = ended(state) & (1 << message) == 0;
        let local = &mut state.locals[at];
        let others = (1 << self.sent.len()) - 1 - (1 << message);
        state.relation.deliver(message, local.delivered, others & !past);
        local.delivered |= 1 << message;
        if self.slow.is_some() && first {
            let next = self.sent.iter().enumerate();
            let next: Vec<_> = next.filter(|(_, sent)| sent.after == Some(message)).collect();
            next.into_iter().for_each(|(next, _)| self.turn_of_starts(&mut state.turns, next));
        }
    }

    /// It is sent now, in regular runs.
    fn turn_of_starts(&self, turns: &mut Turns, message: usize) {
        let to = self.sent[message].frames.iter();
        to.for_each(|(to, _)| turns.come(Source::Start(message as u8, *to as u8)));
    }

    /// What comes next from there: the frame, and what its sender had heard of.
    pub(crate) fn next_from(&self, state: &mut State, source: Source) -> (u32, Set) {
        match source {
            Source::Start(message, to) => {
                let at = usize::from(to);
                let start = self.sent[usize::from(message)].frames.iter().find(|(to, _)| *to == at);
                let (_, frame) = *start.expect("it was sent");
                state.locals[at].starts &= !(1 << message);
                (frame, 1 << message)
            }
            Source::Link(from, to) => {
                let at = state.flights.partition_point(|flight| flight.link() < (from, to));
                let flight = state.flights.remove(at);
                assert_eq!(flight.link(), (from, to), "something is under way");
                let next = state.flights.get(at).map(Flight::link);
                if self.slow.is_some() && next == Some((from, to)) {
                    state.turns.come(source);
                }
                (flight.frame, flight.past)
            }
        }
    }

    pub(crate) fn arrive(&self, state: &mut State, source: Source) {
        let (frame, past) = self.next_from(state, source);
        let at = source.to();
        state.locals[at].past |= past;
        let past = state.locals[at].past;
        self.step(state, at, Input::Frame(frame), past);
    }

    /// It may also come later: what the process does without it has not been caused by it.
    pub(crate) fn arrive_early(&self, state: &mut State, source: Source) {
        let (frame, past) = self.next_from(state, source);
        let at = source.to();
        let past = state.locals[at].past | past;
        self.step(state, at, Input::Frame(frame), past);
    }

    pub(crate) fn finished(&self, state: &State) -> bool {
        let mut all = self.sent.iter().enumerate();
        all.all(|(message, sent)| {
            bits(sent.dest & !self.stopped(state))
                .all(|at| state.locals[at].delivered & (1 << message) != 0)
        })
    }

    /// The same for equal processes with equal deliveries, in other models, too.
    pub fn print(&self, state: &State) -> u64 {
        let mut hasher = DefaultHasher::new();
        for local in &state.locals {
            (self.locals.value(local.process), local.delivered).hash(&mut hasher);
        }
        state.relation.after().hash(&mut hasher);
        hasher.finish()
    }

    fn is_quiet(&self, state: &State) -> bool {
        state.flights.is_empty() && state.locals.iter().all(|local| local.starts == 0)
    }

    fn offered(&self, state: &State, actions: &mut Vec<Action>) {
        if state.failed || state.relation.is_cyclic() {
            return;
        }
        match self.slow {
            Some(_) => self.bounded_actions(state, actions),
            None => self.all_actions(state, actions),
        }
        // (Whoever stops is suspected at some time.)
        let is_due = self.stops != 0 && !state.suspected;
        let may_tick = self.is_quiet(state) && !is_due && state.ticks < self.ticks;
        if may_tick && !self.finished(state) {
            actions.push(Action::Tick);
        }
    }

    pub(crate) fn take(&self, state: &mut State, action: Action) {
        match action {
            Action::Arrive(source) => {
                state.turns.take();
                self.arrive(state, source);
            }
            Action::Stop(at) => {
                state.stopped = true;
                state.flights.retain(|flight| usize::from(flight.to) != at);
                for to in bits(self.suspicious) {
                    state.locals[to].starts = self.starts_to(to);
                }
                // Whatever it was, it is no more.
                state.locals[at] =
                    Local { process: 0, delivered: 0, starts: 0, ..state.locals[at] };
            }
            Action::Suspect(at) => {
                state.suspected = true;
                for stopped in bits(self.stopped(state)) {
                    let past = std::mem::take(&mut state.locals[stopped].past);
                    state.locals[at].past |= past;
                }
                let (input, late) = self.suspicion();
                state.locals[at].past |= late;
                let past = state.locals[at].past;
                self.step(state, at, input, past);
            }
            Action::Tick => {
                state.ticks += 1;
                for at in bits(((1 << self.ids.len()) - 1) & !self.stopped(state)) {
                    state.locals[at].past |= if state.suspected { self.suspicion().1 } else { 0 };
                    let past = state.locals[at].past;
                    self.step(state, at, Input::Timer, past);
                }
            }
            Action::Slow => state.turns.slow(),
            Action::Later => state.turns.later(),
            Action::Hurry(source) => state.turns.hurry(source),
        }
    }
}

/// What was delivered anywhere.
fn ended(state: &State) -> Set {
    state.locals.iter().fold(0, |all, local| all | local.delivered)
}

fn place(ids: &[ProcessId], id: ProcessId) -> usize {
    ids.iter().position(|known| *known == id).expect("it is in the cluster")
}

pub(crate) fn bits(set: Set) -> impl Iterator<Item = usize> {
    (0..Set::BITS as usize).filter(move |bit| set & (1 << bit) != 0)
}

impl<P: Checked> Model for Multicasts<P> {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let silent = self.suspicious != 0 && self.answer.is_none();
        assert!(self.slow.is_some() || !silent, "a primary's silence, in all orders");
        let mut turns = Turns::new(self.slow.unwrap_or_default());
        if self.slow.is_some() {
            let at_once =
                (0..self.sent.len()).filter(|message| self.sent[*message].after.is_none());
            at_once.for_each(|message| self.turn_of_starts(&mut turns, message));
        }
        let local = |(at, process): (usize, &P)| {
            let later = self.stops != 0 && self.suspicious & (1 << at) != 0;
            let starts = if later { 0 } else { self.starts_to(at) };
            Local { process: self.locals.process(process.clone()), delivered: 0, past: 0, starts }
        };
        let locals = self.processes.iter().enumerate().map(local).collect();
        let (flights, relation) = (Vec::new(), Relation::default());
        vec![State {
            locals,
            flights,
            relation,
            failed: false,
            suspected: false,
            stopped: false,
            ticks: 0,
            turns,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.offered(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        self.take(&mut state, action);
        let mut actions = Vec::new();
        loop {
            if self.moves(&state) {
                self.move_left(&mut state);
            }
            self.offered(&state, &mut actions);
            match actions.pop() {
                Some(only) if actions.is_empty() => self.take(&mut state, only),
                _ => return Some(state),
            }
            actions.clear();
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, state: &State| !state.relation.is_cyclic()),
            Property::always(ASSERTIONS, |_, state: &State| !state.failed),
            Property::always(DELIVERED, |model: &Self, state: &State| {
                !model.is_quiet(state) || state.ticks < model.ticks || model.finished(state)
            }),
        ]
    }
}
