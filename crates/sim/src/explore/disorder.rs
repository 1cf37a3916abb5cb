//! Links that reorder and repeat: what a protocol must bear that does not rely on FIFO links.

use super::{Action, Explorer, Flight, Model, State};

impl Flight {
    /// In a state without an order on links, equal sets of flights are equal lists.
    pub(super) fn place(&self, ordered: bool) -> impl Ord + use<> {
        let within = if ordered { (0, 0) } else { (self.frame, self.past) };
        (self.link(), within)
    }
}

impl<M: Model> Explorer<'_, M> {
    /// All that is under way may come next, and come again later, as often as is left.
    pub(super) fn disordered_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let Some(disorder) = self.options.disorder else { return };
        let repeats = state.repeated < disorder.repeated;
        let overtakes = disorder.overtakes.is_none_or(|most| state.overtaken < most);
        for (at, flight) in state.flights.iter().enumerate() {
            let before = state.flights[..at].iter().rev();
            let mut before = before.take_while(|other| other.link() == flight.link()).peekable();
            let late = before.peek().is_some();
            if (late && !overtakes) || before.any(|other| other == flight) {
                continue;
            }
            let at = u8::try_from(at).expect("few are under way");
            actions.push(Action::Overtake { at, stays: false });
            actions.extend(repeats.then_some(Action::Overtake { at, stays: true }));
        }
    }

    pub(super) fn overtake(&mut self, state: &mut State, at: u8, stays: bool) {
        let at = usize::from(at);
        let flight = state.flights[at];
        let bounded = self.options.disorder.is_some_and(|disorder| disorder.overtakes.is_some());
        let late = at > 0 && state.flights[at - 1].link() == flight.link();
        state.overtaken += u8::from(bounded && late);
        if !stays || bounded {
            state.flights.remove(at);
        }
        if stays && bounded {
            let behind = state.flights.partition_point(|other| other.link() <= flight.link());
            state.flights.insert(behind, flight);
        }
        state.repeated += u8::from(stays);
        self.deliver(state, flight);
    }
}
