//! What is left out of a search in all orders; why nothing is missed by that is told in
//! [`crate::model`].

use crate::futures::Futures;
use crate::locals::Input;
use crate::model::{Action, Checked, Flight, Multicasts, Set, Source, State, bits};
use std::sync::Arc;

/// One for each process.
type OfEach<T> = [T; Set::BITS as usize];

/// What may happen next, and what may follow.
struct Moment {
    /// For each process the others whose messages to it are under way.
    waiting: OfEach<Set>,
    /// To whom something may happen, and to whom something from outside.
    busy: Set,
    alone: Set,
    may_stop: Set,
    may_suspect: Set,
    stopped: Set,
    futures: Arc<Futures>,
    processes: OfEach<u32>,
    /// For each process those that may ever send to it.
    senders: OfEach<Set>,
}

impl Moment {
    /// To whom that process may send, if it hears of `from` only.
    fn to(&self, process: usize, from: usize) -> Set {
        if self.stopped & (1 << process) != 0 {
            return 0;
        }
        self.futures.of(self.processes[process], from).unwrap_or_else(|| {
            let senders = self.senders.iter().enumerate();
            let to = senders.filter(|(_, senders)| **senders & (1 << process) != 0);
            to.map(|(to, _)| 1 << to).sum()
        })
    }

    /// To whom something from outside may happen before `closed` do anything.
    fn alone(&self, closed: Set, suspicious: Set) -> Set {
        let stops = self.may_stop & !closed != 0;
        self.alone | if stops { suspicious } else { 0 }
    }
}

impl Flight {
    pub(crate) fn link(&self) -> (u8, u8) {
        (self.from, self.to)
    }
}

/// Whether it is the first one on its link.
pub(crate) fn is_first(flights: &[Flight], at: usize) -> bool {
    at == 0 || flights[at - 1].link() != flights[at].link()
}

impl<P: Checked> Multicasts<P> {
    fn moment(&self, state: &State) -> Moment {
        let mut waiting: OfEach<Set> = OfEach::default();
        state.flights.iter().for_each(|flight| waiting[usize::from(flight.to)] |= 1 << flight.from);
        let may_stop = self.stops & !self.stopped(state);
        let may_suspect = if state.suspected || may_stop != 0 { 0 } else { self.suspicious };
        let started = state.locals.iter().enumerate().filter(|(_, local)| local.starts != 0);
        let alone = started.map(|(at, _)| 1 << at).sum::<Set>() | may_suspect | may_stop;
        let heard = waiting.iter().enumerate().filter(|(_, from)| **from != 0);
        let busy = heard.map(|(at, _)| 1 << at).sum::<Set>() | alone;
        let futures = self.locals.futures();
        let (mut senders, mut processes) = (OfEach::default(), OfEach::default());
        senders[..self.ids.len()].copy_from_slice(&self.senders);
        for (local, process) in state.locals.iter().zip(&mut processes) {
            *process = local.process;
        }
        let stopped = self.stopped(state);
        Moment { waiting, busy, alone, may_stop, may_suspect, futures, senders, processes, stopped }
    }

    /// The least set of processes with this one, such that no other can send any of them an
    /// alternative to what is under way, before one of them does something: where something is
    /// under way on a link, what is sent later is none.
    fn closed(&self, at: usize, moment: &Moment) -> Set {
        let mut closed: Set = 1 << at;
        loop {
            let others = self.alternatives(closed, moment);
            if others & !closed == 0 {
                return closed;
            }
            closed |= others;
        }
    }

    /// Those who may send an alternative to `closed` before one of these does anything.
    fn alternatives(&self, closed: Set, moment: &Moment) -> Set {
        let Moment { waiting, busy, .. } = moment;
        let outside = 1 << self.ids.len();
        let mut from = waiting.map(usize::from);
        let alone = moment.alone(closed, self.suspicious);
        bits(alone).for_each(|at| from[at] |= outside);
        let all: Set = (1 << self.ids.len()) - 1;
        let mut to: OfEach<Set> = OfEach::default();
        let mut todo = all & !closed & (busy | alone);
        while todo != 0 {
            let next = todo.trailing_zeros() as usize;
            todo &= !(1 << next);
            to[next] = moment.to(next, from[next]);
            for hears in bits(to[next] & !closed) {
                if from[hears] & (1 << next) == 0 {
                    from[hears] |= 1 << next;
                    todo |= 1 << hears;
                }
            }
        }
        let is_empty = |from: usize| {
            let links = bits(to[from] & closed);
            links.filter(|to| waiting[*to] & (1 << from) == 0).count() > 0
        };
        let found = (0..to.len()).filter(|from| is_empty(*from));
        let found: Set = found.map(|from| 1 << from).sum();
        // It may suspect whoever has stopped.
        found | if closed & self.suspicious != 0 { moment.may_stop } else { 0 }
    }

    /// What may happen if there is no bound; a persistent set of it.
    pub(crate) fn all_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.ticks > 0 {
            let first = state.flights.first();
            let first = first.map(|flight| Source::Link(flight.from, flight.to));
            actions.extend(first.map(Action::Arrive));
            return;
        }
        let moment = self.moment(state);
        let Moment { waiting, may_stop, may_suspect, .. } = &moment;
        let count = |at: usize| {
            let local = &state.locals[at];
            waiting[at].count_ones()
                + local.starts.count_ones()
                + u32::from(may_suspect >> at & 1)
                + u32::from(may_stop >> at & 1)
        };
        let events = |set: &Set| bits(*set).map(count).sum::<u32>();
        let set = if self.plain {
            (1 << self.ids.len()) - 1
        } else {
            let sets = bits(moment.busy).map(|at| self.closed(at, &moment));
            let Some(set) = sets.min_by_key(events) else { return };
            set
        };
        let (may_stop, may_suspect) = (*may_stop, *may_suspect);
        for at in bits(set) {
            let (to, local) = (at as u8, &state.locals[at]);
            let starts = bits(local.starts).map(|message| Source::Start(message as u8, to));
            let links = bits(waiting[at]).map(|from| Source::Link(from as u8, to));
            actions.extend(starts.chain(links).map(Action::Arrive));
            if may_stop & (1 << at) != 0 {
                actions.push(Action::Stop(at));
            }
            if may_suspect & (1 << at) != 0 {
                actions.push(Action::Suspect(at));
            }
        }
    }

    pub(crate) fn moves(&self, state: &State) -> bool {
        self.slow.is_none() && !self.plain && state.ticks == 0
    }

    /// Takes all that may arrive at once.
    pub(crate) fn move_left(&self, state: &mut State) {
        while (0..self.ids.len()).any(|at| self.move_left_at(state, at)) {}
    }

    /// What may come to the process next, as far as it is under way: with what its sender had heard
    /// of.
    fn inputs(&self, state: &State, at: usize) -> Vec<(Source, u32, Set)> {
        let starts = bits(state.locals[at].starts).map(|message| {
            let to = self.sent[message].frames.iter().find(|(to, _)| *to == at);
            let (_, frame) = *to.expect("it was sent");
            (Source::Start(message as u8, at as u8), frame, 1 << message)
        });
        let flights = state.flights.iter().enumerate();
        let flights = flights
            .filter(|(nth, flight)| usize::from(flight.to) == at && is_first(&state.flights, *nth));
        let flights = flights
            .map(|(_, flight)| (Source::Link(flight.from, flight.to), flight.frame, flight.past));
        starts.chain(flights).collect()
    }

    /// Whether there was something that a process may take at once; it has taken it then.
    fn move_left_at(&self, state: &mut State, at: usize) -> bool {
        let (inputs, now) = (self.inputs(state, at), self.now(state, at));
        let process = state.locals[at].process;
        let may_stop = self.stops & !self.stopped(state) & (1 << at) != 0;
        for (source, frame, past) in &inputs {
            let others = inputs.iter().filter(|(other, ..)| other != source);
            let mut others: Vec<_> =
                others.map(|(_, frame, _)| (Input::Frame(*frame), now)).collect();
            if !state.suspected && self.suspicious & (1 << at) != 0 {
                others.push((self.suspicion().0, now));
            }
            // (Who may stop in between says what either brings about, and nothing more.)
            let told = past & !state.locals[at].past == 0 && !may_stop;
            if self.locals.moves((at, process, *frame, now), &others, may_stop, told) {
                self.arrive_early(state, *source);
                return true;
            }
        }
        false
    }
}
