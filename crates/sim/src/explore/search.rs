//! The search itself: depth first, each state once.

use super::{Action, Explorer, Model, Options, State};
use meridian_core::Table;
use std::fmt::{Display, Formatter};
use std::hash::{DefaultHasher, Hash, Hasher};

/// So many states at most: a case that has more is too large.
const STATES_MAX: usize = 50_000_000;

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The property that is violated, and the way there.
    pub violated: Option<(&'static str, Vec<String>)>,
    /// Whether some run reached the goal.
    pub reached: bool,
    /// How many states there are that have a choice or an end.
    pub states: usize,
    /// How many states of processes, and how many steps from one to another.
    pub processes: (usize, usize),
    /// The states of all in which runs ended, by fingerprint: to compare two searches.
    pub ends: std::collections::BTreeSet<u64>,
}

impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Found { violated, states, processes: (processes, steps), .. } = self;
        let what = violated.as_ref().map_or("all holds", |(property, _)| property);
        write!(f, "{what}: {states} states, {processes} states of processes, {steps} steps")
    }
}

/// Searches a case until something is violated.
///
/// # Panics
/// If there are too many states.
pub fn search<M: Model>(model: &M, options: Options<M::Process>) -> Found {
    let mut explorer = Explorer::new(model, options);
    loop {
        let mut search = Search::default();
        let mut first = explorer.first();
        explorer.surprised = false;
        search.run(&mut explorer, &mut first);
        if !explorer.surprised || search.found.violated.is_some() {
            return Found { processes: explorer.interned.counts(), ..search.found };
        }
    }
}

#[derive(Default)]
struct Search {
    seen: Table<u64, ()>,
    /// What was done to get to the state that is looked at, and what else could be done at each
    /// choice.
    way: Vec<Choice>,
    found: Found,
}

struct Choice {
    state: State,
    left: Vec<Action>,
    /// What was taken since the choice before.
    taken: Vec<Action>,
}

impl Search {
    fn run<M: Model>(&mut self, explorer: &mut Explorer<'_, M>, first: &mut State) {
        let mut state = first.clone();
        let mut taken = Vec::new();
        loop {
            if let Some(left) = self.follow(explorer, &mut state, &mut taken) {
                self.way.push(Choice { state, left, taken: std::mem::take(&mut taken) });
            }
            if self.found.violated.is_some() || explorer.surprised {
                return;
            }
            let (next, action) = loop {
                let Some(choice) = self.way.last_mut() else { return };
                match choice.left.pop() {
                    Some(action) => break (choice.state.clone(), action),
                    None => drop(self.way.pop()),
                }
            };
            state = next;
            taken = vec![action];
            explorer.take(&mut state, action);
        }
    }

    /// Goes on to the next choice; the actions there, unless it was met before or is an end.
    fn follow<M: Model>(
        &mut self,
        explorer: &mut Explorer<'_, M>,
        state: &mut State,
        taken: &mut Vec<Action>,
    ) -> Option<Vec<Action>> {
        loop {
            self.found.reached = self.found.reached || explorer.is_goal(state);
            if let Some(violated) = explorer.violated(state) {
                let way = self.way.iter().flat_map(|choice| &choice.taken).chain(&*taken);
                let way = way.map(|action| format!("{action:?}")).collect();
                self.found.violated = Some((violated, way));
                return None;
            }
            let actions = explorer.actions(state);
            if let [only] = actions[..] {
                explorer.take(state, only);
                taken.push(only);
                continue;
            }
            let mut hasher = DefaultHasher::new();
            state.hash(&mut hasher);
            let fingerprint = hasher.finish();
            if !self.seen.insert_new(fingerprint, || ()) {
                return None;
            }
            self.found.states += 1;
            assert!(self.found.states <= STATES_MAX, "the case is too large");
            if actions.is_empty() {
                self.found.ends.insert(explorer.fingerprint(state));
                return None;
            }
            return Some(actions);
        }
    }
}

impl<M: Model> Explorer<'_, M> {
    /// Equal for equal processes and equal observations, also of another search.
    fn fingerprint(&self, state: &State) -> u64 {
        let mut hasher = DefaultHasher::new();
        for local in &state.locals {
            (local.up, self.interned.processes.hash(local.process)).hash(&mut hasher);
        }
        self.interned.observed.hash(state.observed).hash(&mut hasher);
        hasher.finish()
    }
}
