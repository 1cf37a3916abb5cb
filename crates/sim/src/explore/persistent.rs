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
        let sends = |from: usize, to: usize| from != to && self.links[from] & (1 << to) != 0;
        let (crashes, awaits) = (self.may_crash(state), self.await_crash(state));
        loop {
            let active = self.active(acts & !set, set, (crashes, awaits));
            let new = |from: &usize| {
                bits(set).any(|to| sends(*from, to) && waiting[to] & (1 << from) == 0)
            };
            let mut others: Set = bits(active).filter(new).map(|at| 1 << at).sum();
            if set & awaits != 0 {
                others |= crashes & !set;
            }
            if others == 0 {
                return set;
            }
            set |= others;
        }
    }

    /// Who may act before `set` does anything, if those do who are `active` already.
    fn active(&self, mut active: Set, set: Set, (crashes, awaits): (Set, Set)) -> Set {
        loop {
            let told = bits(active).fold(0, |told, from| told | self.links[from]);
            let crash = if active & crashes == 0 { 0 } else { awaits };
            let more = (told | crash) & !set & !active;
            if more == 0 {
                return active;
            }
            active |= more;
        }
    }

    /// To whom something happens only after a crash, which has not come yet.
    fn await_crash(&self, state: &State) -> Set {
        if state.crashed.is_some() {
            return 0;
        }
        let inputs = self.inputs.iter().filter(|input| input.after_crash).map(|input| input.at);
        let suspicion = self.options.suspicion.iter().filter(|suspicion| suspicion.after_crash);
        let all = inputs.chain(suspicion.map(|suspicion| suspicion.at));
        all.fold(0, |all, at| all | 1 << at)
    }
}
