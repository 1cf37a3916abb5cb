//! A model checker over the real code of any [`Process`]: all orders in which messages can arrive
//! in a small case, or those that differ from a regular run in few places.
//!
//! Links are FIFO, unless [`Options::disorder`] says otherwise; each input from outside ([`Input`])
//! travels on its own and arrives at any time. Time stands still but for the options: one process
//! may *suspect* another (so much later it is for it, and for who hears from it), one may *crash*,
//! and when all is quiet *ticks* of timers follow. What is persisted is durable at once. A process
//! is given `Event::Idle` after each message, or after what came together.
//!
//! Each state of a process is stepped once with each input, and looked up from then on
//! (`intern`); a state of the whole is a few numbers. In each state met the [`Model`] is asked
//! whether a property is violated.
//!
//! **Persistent sets** (Godefroid 1996). What arrives at one process changes it alone, and adds to
//! the ends of its links: events at different processes commute. So in each state it is enough to
//! explore the events of some processes C, if no other process can bring about a new event at one
//! of C before these do something. One outside C can only if it may act (something is under way to
//! it, or it is given an input, or one that may act may send to it), may send to one of C, and has
//! nothing under way to that one: behind what is under way, later messages are no alternative.
//! `Explorer::persistent` computes the least such set, and explores the one with the fewest
//! events. Runs are finite, so nothing is put off for ever. While a crash may still lose what was
//! sent, all events are explored: it does not commute.
//!
//! **Who may send to whom** nobody needs to say. A search begins with the belief that nobody sends
//! anything. Once a process sends to one that it was not expected to send to, that link is
//! expected, and the search begins anew; so the last one has met nothing unexpected. It has missed
//! nothing by that: take the shortest run with an unexpected message, and the step that sends it.
//! Up to there the run keeps to what was expected, so the persistent sets were right, and some run
//! of the search has the same step.
//!
//! **Delay bound** (Emmi et al. 2011). Where all orders are too many, runs follow a
//! scheduler that has no choice: the links take turns. [`Options::delays`] bounds how often a run
//! may differ from it: the link whose turn it is waits for one round, or until all else is quiet.
//! What needs more delays is not found.
//!
//! **Bounded disorder.** Over links without an order ([`Disorder`]) all that is under way may come
//! next, and messages that are equal are one choice. [`Disorder::overtakes`] bounds how often a
//! run may take another message than the first of a link, in all orders of the links otherwise.

mod disorder;
mod intern;
mod model;
mod persistent;
mod regular;
mod search;
mod turns;

pub use model::{Begun, Comparable, Crash, Disorder, Frames, Input, Model, Options, Suspicion};
pub use regular::Regular;
pub use search::{Found, search};

use crate::harness;
use intern::{Interned, Step};
use meridian_core::{Process, Time};
use std::time::Duration;
use turns::Turns;

/// A set of processes, or of causes: a bit for each.
pub type Set = u16;

/// The cause of what follows from a suspicion: silence.
pub const SILENT: Set = 1 << 15;

/// How much later it is after a suspicion: longer than any timeout.
const SILENCE: Duration = Duration::from_secs(10);

/// How much later it is at each tick: what is asked for again is asked for by then.
const TICK: Duration = Duration::from_secs(2);

/// When all is quiet, what should have happened has.
pub const DONE: &str = "all is done in the end";
/// No assertion in a process fails.
pub const ASSERTIONS: &str = "assertions hold";

/// Where something comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Input(u8),
    Link(u8, u8),
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// What is first there arrives.
    Arrive(Source),
    /// Of links without an order, this arrives; maybe it does so again.
    Overtake {
        at: u8,
        stays: bool,
    },
    Suspect,
    /// With all that it had sent, or nothing of it that has not arrived.
    Crash {
        at: usize,
        loses: bool,
    },
    Restart,
    /// Timers fire everywhere.
    Tick,
    /// The one whose turn it is waits for one round.
    Delay,
    /// The one whose turn it is waits until all else is quiet.
    Starve,
    /// All is quiet: who waits goes on.
    Resume(Source),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Local {
    process: u32,
    /// What was persisted since the beginning.
    disk: u32,
    /// The causes of what it has done.
    past: Set,
    up: bool,
}

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flight {
    from: u8,
    to: u8,
    past: Set,
    frame: u32,
}

impl Flight {
    fn link(&self) -> (u8, u8) {
        (self.from, self.to)
    }
}

/// A moment.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct State {
    locals: Vec<Local>,
    /// By link, and on each the first one first, if it has an order.
    flights: Vec<Flight>,
    /// How many messages have come twice.
    repeated: u8,
    /// How many have come before earlier ones of their link, if that is bounded.
    overtaken: u8,
    /// A bit for each input that has arrived.
    given: u32,
    observed: u32,
    suspected: bool,
    crashed: Option<usize>,
    restarted: bool,
    ticks: u8,
    failed: bool,
    turns: Turns,
}

/// The orders in which a case can go on.
pub struct Explorer<'a, M: Model> {
    model: &'a M,
    options: Options<M::Process>,
    inputs: Vec<Input<M::Process>>,
    interned: Interned<M>,
    /// To whom each process may send, as far as searches have met it.
    links: Vec<Set>,
    /// Whether the search has met more than it assumed.
    surprised: bool,
    /// How much later it is for all than when the case began.
    elapsed: Duration,
}

/// The numbers of those in a set.
pub(crate) fn bits(set: Set) -> impl Iterator<Item = usize> {
    (0..Set::BITS as usize).filter(move |bit| set & (1 << bit) != 0)
}

impl<'a, M: Model> Explorer<'a, M> {
    /// Before the first event.
    pub fn new(model: &'a M, options: Options<M::Process>) -> Self {
        let inputs = model.inputs();
        assert!(inputs.len() <= u32::BITS as usize, "too many inputs");
        let ids = model.processes().into_iter().map(|begun| begun.peer).collect();
        let mut interned = Interned::new(ids, options.frames);
        interned.forgets_disks = !options.crash.is_some_and(|crash| crash.restarts);
        let links = vec![0; model.processes().len()];
        let elapsed = Duration::ZERO;
        Explorer { model, options, inputs, interned, links, surprised: false, elapsed }
    }

    pub(crate) fn first(&mut self) -> State {
        let processes = self.model.processes();
        assert!(processes.len() < Set::BITS as usize, "too many processes");
        let local = |begun: Begun<M::Process>| {
            let process = self.interned.processes.number(begun.process);
            let disk = self.interned.disks.number(begun.disk);
            Local { process, disk, past: 0, up: true }
        };
        let locals = processes.into_iter().map(local).collect();
        let observed = self.interned.observed.number(M::Observed::default());
        let mut state = State {
            locals,
            flights: Vec::new(),
            repeated: 0,
            overtaken: 0,
            given: 0,
            observed,
            suspected: false,
            crashed: None,
            restarted: false,
            ticks: 0,
            failed: false,
            turns: Turns::new(self.options.delays.unwrap_or(0)),
        };
        self.inputs_come(&mut state);
        state
    }

    /// Whether not all events are explored of which each may come next.
    fn reduces(&self) -> bool {
        let ordered = self.options.delays.is_none() && self.options.disorder.is_none();
        self.options.reduced && ordered
    }

    fn up(&self, state: &State) -> Set {
        let up = state.locals.iter().enumerate().filter(|(_, local)| local.up);
        up.map(|(at, _)| 1 << at).sum()
    }

    fn now(&self, state: &State, at: usize) -> Time {
        let late = u32::from(state.locals[at].past & SILENT != 0);
        self.model.now() + self.elapsed + SILENCE * late + TICK * u32::from(state.ticks)
    }

    fn is_due(&self, state: &State, input: usize) -> bool {
        let Input { at, after_crash, after, .. } = &self.inputs[input];
        let local = &state.locals[*at];
        local.up
            && state.given & (1 << input) == 0
            && (!after_crash || state.crashed.is_some())
            && after.is_none_or(|after| state.given & (1 << after) != 0)
            && self.model.is_due(input, self.process(local), self.observed(state))
    }

    fn due_inputs(&self, state: &State) -> impl Iterator<Item = usize> {
        (0..self.inputs.len()).filter(move |input| self.is_due(state, *input))
    }

    fn may_suspect(&self, state: &State) -> Option<usize> {
        let suspicion = self.options.suspicion.as_ref()?;
        let due = !suspicion.after_crash || state.crashed.is_some();
        (due && !state.suspected && state.locals[suspicion.at].up).then_some(suspicion.at)
    }

    fn may_crash(&self, state: &State) -> Set {
        let who = self.options.crash.map_or(0, |crash| crash.who);
        if state.crashed.is_none() { who } else { 0 }
    }

    fn is_quiet(&self, state: &State) -> bool {
        state.flights.is_empty() && self.due_inputs(state).next().is_none()
    }

    /// What is wrong, if anything is.
    pub(crate) fn violated(&self, state: &State) -> Option<&'static str> {
        if state.failed {
            return Some(ASSERTIONS);
        }
        let violated = self.model.violated(self.observed(state), &self.processes_up(state));
        let ended = state.ticks >= self.options.ticks && self.is_quiet(state);
        let due = self.may_suspect(state).is_none() && !self.awaits_crash(state);
        let stuck = ended && due && !self.is_done(state);
        violated.or(stuck.then_some(DONE))
    }

    /// Whether a suspicion is still to come that comes only after a crash.
    fn awaits_crash(&self, state: &State) -> bool {
        let waits = self.options.suspicion.as_ref().is_some_and(|suspicion| suspicion.after_crash);
        waits && !state.suspected
    }

    fn process(&self, local: &Local) -> &M::Process {
        self.interned.processes.value(local.process)
    }

    fn observed(&self, state: &State) -> &M::Observed {
        self.interned.observed.value(state.observed)
    }

    fn processes_up(&self, state: &State) -> Vec<&M::Process> {
        let up = state.locals.iter().filter(|local| local.up);
        up.map(|local| self.process(local)).collect()
    }

    fn is_done(&self, state: &State) -> bool {
        self.model.is_done(self.observed(state), self.up(state))
    }

    pub(crate) fn is_goal(&self, state: &State) -> bool {
        self.model.is_goal(self.observed(state), &self.processes_up(state))
    }

    pub(crate) fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.options.delays.is_some() {
            state.turns.actions(&mut actions);
            if !actions.is_empty() || self.awaits_crash(state) {
                actions.extend(self.outside_actions(state));
            }
        } else if state.ticks > 0 {
            let first = state.flights.first();
            actions.extend(first.map(|f| Action::Arrive(Source::Link(f.from, f.to))));
        } else {
            self.all_actions(state, &mut actions);
        }
        let may_tick = state.ticks < self.options.ticks && !self.awaits_crash(state);
        if may_tick && self.is_quiet(state) && !self.is_done(state) {
            actions.push(Action::Tick);
        }
        actions
    }

    fn outside_actions(&self, state: &State) -> Vec<Action> {
        let mut actions: Vec<_> =
            self.may_suspect(state).map(|_| Action::Suspect).into_iter().collect();
        let loses = self.options.crash.is_some_and(|crash| crash.loses);
        for at in bits(self.may_crash(state)) {
            actions.push(Action::Crash { at, loses: false });
            actions.extend(loses.then_some(Action::Crash { at, loses: true }));
        }
        let restarts = self.options.crash.is_some_and(|crash| crash.restarts);
        if restarts && state.crashed.is_some() && !state.restarted {
            actions.push(Action::Restart);
        }
        actions
    }

    /// Whether an event is one at that set of processes.
    fn is_at(&self, state: &State, action: Action, set: Set) -> bool {
        let at = match action {
            Action::Arrive(Source::Input(input)) => self.inputs[usize::from(input)].at,
            Action::Arrive(Source::Link(_, to)) => usize::from(to),
            Action::Overtake { at, .. } => usize::from(state.flights[usize::from(at)].to),
            Action::Suspect => self.may_suspect(state).unwrap_or_default(),
            Action::Crash { at, .. } => at,
            Action::Restart => state.crashed.unwrap_or_default(),
            Action::Tick | Action::Delay | Action::Starve | Action::Resume(_) => return true,
        };
        set & (1 << at) != 0
    }

    fn all_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let inputs = self.due_inputs(state);
        let inputs = inputs.map(|input| Action::Arrive(Source::Input(input as u8)));
        actions.extend(inputs);
        let mut last = None;
        for flight in state.flights.iter().filter(|_| self.options.disorder.is_none()) {
            if last.replace(flight.link()) != Some(flight.link()) {
                actions.push(Action::Arrive(Source::Link(flight.from, flight.to)));
            }
        }
        if self.options.disorder.is_some() {
            self.disordered_actions(state, actions);
        }
        actions.extend(self.outside_actions(state));
        let settled = self.options.crash.is_none_or(|crash| {
            let over = state.crashed.is_some() && (state.restarted || !crash.restarts);
            over || !(crash.loses || crash.restarts)
        });
        if self.reduces() && settled && actions.len() > 1 {
            let set = self.persistent(state, actions);
            actions.retain(|action| self.is_at(state, *action, set));
        }
    }

    pub(crate) fn take(&mut self, state: &mut State, action: Action) {
        match action {
            Action::Arrive(source) => {
                state.turns.take();
                self.arrive(state, source);
            }
            Action::Overtake { at, stays } => self.overtake(state, at, stays),
            Action::Suspect => self.suspect(state),
            Action::Crash { at, loses } => {
                let to_or_from = |flight: &Flight| {
                    usize::from(flight.to) != at && (!loses || usize::from(flight.from) != at)
                };
                state.flights.retain(to_or_from);
                state.crashed = Some(at);
                state.locals[at].up = false;
                if !self.options.crash.is_some_and(|crash| crash.restarts) {
                    // Whatever it was, it is no more.
                    state.locals[at] = Local { process: 0, disk: 0, ..state.locals[at] };
                    let mut observed = self.observed(state).clone();
                    self.model.forget(&mut observed, at);
                    self.has_observed(state, observed);
                }
            }
            Action::Restart => self.restart(state),
            Action::Tick => {
                state.ticks += 1;
                for at in bits(self.up(state)) {
                    let silent = self.options.suspicion.as_ref();
                    let silent = silent.is_some_and(|s| s.because.is_empty()) && state.suspected;
                    state.locals[at].past |= if silent { SILENT } else { 0 };
                    self.step(state, at, intern::Input::Timer);
                }
            }
            Action::Delay => state.turns.delay(),
            Action::Starve => state.turns.starve(),
            Action::Resume(source) => state.turns.resume(source),
        }
        self.inputs_come(state);
    }

    /// In regular runs inputs have turns, too.
    fn inputs_come(&self, state: &mut State) {
        if self.options.delays.is_some() {
            for input in 0..self.inputs.len() {
                if self.is_due(state, input) {
                    state.turns.come_once(Source::Input(input as u8));
                }
            }
        }
    }

    fn suspect(&mut self, state: &mut State) {
        let suspicion = self.options.suspicion.clone().expect("it was offered");
        state.suspected = true;
        // Whoever was told of the crash has heard of all that the one had heard of.
        let known = state.crashed.filter(|_| suspicion.after_crash);
        let known = known.map_or(0, |crashed| std::mem::take(&mut state.locals[crashed].past));
        let local = &mut state.locals[suspicion.at];
        local.past |= known;
        if suspicion.because.is_empty() {
            local.past |= SILENT;
            self.step(state, suspicion.at, intern::Input::Timer);
        } else {
            let event = self.interned.events(suspicion.because);
            self.step(state, suspicion.at, event);
        }
    }

    fn arrive(&mut self, state: &mut State, source: Source) {
        match source {
            Source::Input(input) => {
                state.given |= 1 << input;
                let Input { at, event, cause, .. } = self.inputs[usize::from(input)].clone();
                state.locals[at].past |= cause;
                let event = self.interned.events(vec![event]);
                self.step(state, at, event);
            }
            Source::Link(from, to) => {
                // What was under way may be lost in a crash.
                if let Some(flight) = self.next_on(state, (from, to)) {
                    self.deliver(state, flight);
                }
            }
        }
    }

    fn deliver(&mut self, state: &mut State, flight: Flight) {
        let to = usize::from(flight.to);
        state.locals[to].past |= flight.past;
        self.step(state, to, intern::Input::Frame(flight.frame));
    }

    /// Takes what is first on a link.
    fn next_on(&self, state: &mut State, link: (u8, u8)) -> Option<Flight> {
        let at = state.flights.partition_point(|flight| flight.link() < link);
        if state.flights.get(at).map(Flight::link) != Some(link) {
            return None;
        }
        let flight = state.flights.remove(at);
        let next = state.flights.get(at).map(Flight::link);
        if self.options.delays.is_some() && next == Some(link) {
            state.turns.come(Source::Link(link.0, link.1));
        }
        Some(flight)
    }

    fn restart(&mut self, state: &mut State) {
        let at = state.crashed.expect("it was offered");
        let mut process = self.model.restarted(at);
        let records = self.interned.disks.value(state.locals[at].disk).clone();
        state.restarted = true;
        state.locals[at].up = true;
        state.locals[at].past |= SILENT;
        let replayed = harness::caught(|| {
            records.into_iter().for_each(|record| process.replay(record));
            Ok(process)
        });
        match replayed {
            Ok(process) => {
                state.locals[at].process = self.interned.processes.number(process);
                self.step(state, at, intern::Input::Start);
            }
            Err(_) => state.failed = true,
        }
    }

    fn has_observed(&mut self, state: &mut State, observed: M::Observed) {
        if observed != *self.observed(state) {
            state.observed = self.interned.observed.number(observed);
        }
    }

    fn step(&mut self, state: &mut State, at: usize, input: intern::Input) {
        let (now, local) = (self.now(state, at), state.locals[at]);
        let timer = self.model.timer();
        let place = intern::Place { at, process: local.process, disk: local.disk, now };
        let Step { next, disk, sends, outputs, failed } = self.interned.step(place, input, &timer);
        let (next, disk) = (*next, *disk);
        state.failed |= failed;
        let local = Local { process: next, disk, ..local };
        state.locals[at] = local;
        let (sends, outputs) = (sends.clone(), outputs.clone());
        let mut observed = self.observed(state).clone();
        let process = self.process(&local);
        self.model.observe(&mut observed, at, local.past, process, &outputs);
        self.has_observed(state, observed);
        for (to, frame) in sends.iter() {
            // What is sent to one that has crashed might have come before the crash.
            if state.ticks == 0 && self.reduces() && self.links[at] & (1 << to) == 0 {
                self.links[at] |= 1 << to;
                self.surprised = true;
            }
            if !state.locals[*to].up {
                continue;
            }
            let shared = self.model.shares_silence(at, *to);
            let past = if shared { local.past } else { local.past & !SILENT };
            let flight = Flight { from: at as u8, to: *to as u8, past, frame: *frame };
            let ordered = self.options.disorder.is_none_or(|disorder| disorder.overtakes.is_some());
            let after = |other: &Flight| other.place(ordered) <= flight.place(ordered);
            let place = state.flights.partition_point(after);
            state.flights.insert(place, flight);
            let is_first = place == 0 || state.flights[place - 1].link() != flight.link();
            if self.options.delays.is_some() && is_first {
                state.turns.come(Source::Link(flight.from, flight.to));
            }
        }
    }
}
