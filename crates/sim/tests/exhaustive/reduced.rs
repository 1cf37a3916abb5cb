//! What is left out of a search in all orders; why nothing is missed by that is told in [`crate::model`].

use crate::locals::Input;
use crate::model::{Action, Checked, Flight, LATE, Multicasts, Set, Source, State, bits};

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
    /// For each process the others whose messages to it are under way.
    fn waiting(&self, state: &State) -> Vec<Set> {
        let mut waiting = vec![0; self.ids.len()];
        state.flights.iter().for_each(|flight| waiting[usize::from(flight.to)] |= 1 << flight.from);
        waiting
    }

    /// The least set of processes with this one, such that each process which may send something to one of them either is
    /// one of them, or has sent something that is still under way: then what it sends later is no alternative.
    fn closed(&self, at: usize, waiting: &[Set], senders: &[Set], may_stop: Set) -> Set {
        let (mut closed, mut todo): (Set, Set) = (1 << at, 1 << at);
        while todo != 0 {
            let next = todo.trailing_zeros() as usize;
            let stop = if self.suspicious & (1 << next) != 0 { may_stop } else { 0 };
            let empty = senders[next] & !waiting[next] | stop; // It may suspect whoever has stopped.
            todo = (todo | (empty & !closed)) & !(1 << next);
            closed |= empty;
        }
        closed
    }

    /// For each process those that may still send it anything.
    fn senders(&self, state: &State) -> Vec<Set> {
        let futures = self.locals.futures(state.locals.iter().map(|local| local.process));
        let mut senders = self.senders.clone();
        for (from, to) in futures.into_iter().enumerate() {
            let Some(to) = to else { continue };
            let all = senders.iter_mut().enumerate();
            all.filter(|(at, _)| to & (1 << at) == 0)
                .for_each(|(_, senders)| *senders &= !(1 << from));
        }
        senders.iter_mut().for_each(|senders| *senders &= !self.stopped(state));
        senders
    }

    /// What may happen if there is no bound; a persistent set of it.
    pub(crate) fn all_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.ticks > 0 {
            let first = state.flights.first();
            let first = first.map(|flight| Source::Link(flight.from, flight.to));
            actions.extend(first.map(Action::Arrive));
            return;
        }
        let waiting = self.waiting(state);
        let may_stop = self.stops & !self.stopped(state);
        let may_suspect = if state.suspected || may_stop != 0 { 0 } else { self.suspicious };
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
            let busy = (0..self.ids.len()).filter(|at| count(*at) > 0);
            let senders = self.senders(state);
            let sets = busy.map(|at| self.closed(at, &waiting, &senders, may_stop));
            let Some(set) = sets.min_by_key(events) else { return };
            set
        };
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

    /// What may come to the process next, as far as it is under way: with what its sender had heard of.
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
            if self.is_late(*past) && !self.is_late(state.locals[at].past) {
                continue; // It would be later from then on.
            }
            let others = inputs.iter().filter(|(other, ..)| other != source);
            let mut others: Vec<_> = others
                .map(|(_, frame, past)| (Input::Frame(*frame), self.time(state, at, *past)))
                .collect();
            if !state.suspected && self.suspicious & (1 << at) != 0 {
                others.push((Input::Timer, self.time(state, at, LATE)));
            }
            if self.locals.moves(at, process, *frame, now, &others, may_stop) {
                self.arrive_early(state, *source);
                return true;
            }
        }
        false
    }
}
