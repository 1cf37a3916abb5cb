//! What has happened before a search begins.

use crate::bounded::Slow;
use crate::locals::Input;
use crate::model::{Checked, Multicasts, State};
use meridian_multicast::Start;
use meridian_sim::search::Cluster;
use stateright::Model;
use std::time::Duration;

/// So often so much time passes after messages that were delivered before: enough for all to say so, and no silence.
const PAUSES: usize = 4;
const PAUSE: Duration = Duration::from_secs(1);

impl<P: Checked> Multicasts<P> {
    /// Other messages were delivered before, in a regular run, and so much time has passed since that all have said so: else
    /// what timers bring about would begin with that.
    pub fn preceded_by(self, cluster: &Cluster<P>, starts: Vec<Start>) -> Self {
        let starts = starts.into_iter().map(|start| (start, None)).collect();
        let mut before = Multicasts::new(cluster, starts).bounded(Slow::default());
        let mut state = before.init_states().remove(0);
        before.run(&mut state);
        for _ in 0..PAUSES {
            before.now = before.now + PAUSE;
            for at in 0..before.ids.len() {
                before.step(&mut state, at, Input::Timer, 0);
            }
            before.run(&mut state);
        }
        assert!(before.finished(&state), "not all was delivered in a regular run");
        let processes =
            state.locals.iter().map(|local| before.locals.value(local.process)).collect();
        Multicasts { processes, now: before.now, ..self }
    }

    /// A regular run, until all is quiet.
    fn run(&self, state: &mut State) {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        while let Some(action) = actions.pop() {
            *state = self.next_state(state, action).expect("it was offered");
            actions.clear();
            self.actions(state, &mut actions);
        }
    }
}
