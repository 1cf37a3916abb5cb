//! What is left out of a search in all orders; why nothing is missed by that is told in [`crate::model`].

use crate::model::{Action, Checked, Flight, Multicasts, Set, Source, State, bits};

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
    fn closed(&self, at: usize, waiting: &[Set]) -> Set {
        let (mut closed, mut todo): (Set, Set) = (1 << at, 1 << at);
        while todo != 0 {
            let next = todo.trailing_zeros() as usize;
            let empty = self.senders[next] & !waiting[next];
            todo = (todo | (empty & !closed)) & !(1 << next);
            closed |= empty;
        }
        closed
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
        let may_suspect = if state.suspected { 0 } else { self.suspicious };
        let count = |at: usize| {
            let local = &state.locals[at];
            waiting[at].count_ones() + local.starts.count_ones() + u32::from(may_suspect >> at & 1)
        };
        let events = |set: &Set| bits(*set).map(count).sum::<u32>();
        let set = if self.plain {
            (1 << self.ids.len()) - 1
        } else {
            let busy = (0..self.ids.len()).filter(|at| count(*at) > 0);
            let sets = busy.map(|at| self.closed(at, &waiting));
            let Some(set) = sets.min_by_key(events) else { return };
            set
        };
        for at in bits(set) {
            let (to, local) = (at as u8, &state.locals[at]);
            let starts = bits(local.starts).map(|message| Source::Start(message as u8, to));
            let links = bits(waiting[at]).map(|from| Source::Link(from as u8, to));
            actions.extend(starts.chain(links).map(Action::Arrive));
            if may_suspect & (1 << at) != 0 {
                actions.push(Action::Suspect(at));
            }
        }
    }

    /// Not with clocks that go on: to be heard of later is an effect. Nor inside groups, where [`Multicasts::check_absorbed`]
    /// finds that what has no effect now may have one later.
    pub(crate) fn absorbs(&self) -> bool {
        let alone = self.ids.windows(2).all(|pair| pair[0].group != pair[1].group);
        self.slow.is_none() && self.suspicious == 0 && !self.plain && alone
    }

    /// Takes all that has no effect where it arrives, and may thus arrive at once. Nothing depends on it: what its
    /// sender had heard of is not in the receiver's past by that.
    pub(crate) fn absorb(&self, state: &mut State) {
        let has_none = |state: &State, at: usize| {
            let (flight, to) = (state.flights[at], usize::from(state.flights[at].to));
            let process = state.locals[to].process;
            is_first(&state.flights, at) && self.locals.absorbs(to, process, flight.frame, self.now)
        };
        while let Some(at) = (0..state.flights.len()).find(|at| has_none(state, *at)) {
            state.flights.remove(at);
        }
    }

    /// Checks what was left out because it has no effect. How much that was.
    ///
    /// # Panics
    /// If it could have had one.
    pub fn check_absorbed(&self) -> usize {
        self.locals.check_absorbed(self.now)
    }
}
