//! Persistent sets: which events are enough. Why is told in [`super`].

use super::{Action, Explorer, Model, Set, State, bits};

impl<M: Model> Explorer<'_, M> {
    /// The set of processes, closed as the module tells, that has the fewest events.
    pub(super) fn persistent(&self, state: &State, actions: &[Action]) -> Set {
        let count = state.locals.len();
        let events =
            |set: Set| actions.iter().filter(|action| self.is_at(state, **action, set)).count();
        // Who may act without any other, and who has something under way to whom.
        let acts = (0..count).filter(|at| events(1 << at) > 0);
        let acts: Set = acts.map(|at| 1 << at).sum();
        let mut waiting = vec![0; count];
        for flight in &state.flights {
            waiting[usize::from(flight.to)] |= 1 << flight.from;
        }
        let closed = bits(acts).map(|at| self.closed(state, 1 << at, acts, &waiting));
        closed.min_by_key(|set| events(*set)).unwrap_or(Set::MAX)
    }

    fn closed(&self, state: &State, mut set: Set, acts: Set, waiting: &[Set]) -> Set {
        let count = state.locals.len();
        let sends = |from: usize, to: usize| from != to && self.model.may_send(from, to);
        loop {
            let mut active = acts & !set;
            loop {
                let hears = |to: &usize| bits(active).any(|from| sends(from, *to));
                let more = (0..count).filter(|at| (active | set) & (1 << at) == 0).filter(hears);
                let more: Set = more.map(|at| 1 << at).sum();
                if more == 0 {
                    break;
                }
                active |= more;
            }
            let new = |from: &usize| {
                bits(set).any(|to| sends(*from, to) && waiting[to] & (1 << from) == 0)
            };
            let mut others: Set = bits(active).filter(new).map(|at| 1 << at).sum();
            // What comes only after a crash depends on it.
            let suspicion = self.options.suspicion.as_ref();
            if suspicion.is_some_and(|s| s.after_crash && set & (1 << s.at) != 0) {
                others |= self.may_crash(state) & !set;
            }
            if others == 0 {
                return set;
            }
            set |= others;
        }
    }
}
