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
    /// All that is under way may come next, and come again later as often as is left.
    pub(super) fn disordered_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let repeats = self.options.disorder.is_some_and(|most| state.repeated < most);
        let mut last = None;
        for (at, flight) in state.flights.iter().enumerate() {
            if last.replace(flight) != Some(flight) {
                let at = u8::try_from(at).expect("few are under way");
                actions.push(Action::Overtake { at, stays: false });
                actions.extend(repeats.then_some(Action::Overtake { at, stays: true }));
            }
        }
    }

    pub(super) fn overtake(&mut self, state: &mut State, at: u8, stays: bool) {
        let flight = state.flights[usize::from(at)];
        if stays {
            state.repeated += 1;
        } else {
            state.flights.remove(usize::from(at));
        }
        self.deliver(state, flight);
    }
}
