//! What has happened before a search begins.

use crate::bounded::Slow;
use crate::locals::Input;
use crate::model::{Action, Checked, Multicasts, Source, State};
use meridian_multicast::Start;
use meridian_sim::of::multicast::short::Cluster;
use stateright::Model;
use std::time::Duration;

/// So often so much time passes after messages that were delivered before: enough for all to say
/// so, and no silence.
const PAUSES: usize = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// So long without a word of its primary that it is suspected, and not so long that the next one
/// would be.
const SHORT_SILENCE: Duration = Duration::from_millis(1800);

impl<P: Checked> Multicasts<P> {
    /// Other messages were delivered before, in a regular run, and so much time has passed since
    /// that all have said so: else what timers bring about would begin with that.
    ///
    /// With `asks`, the first of these processes has then suspected its primary and asked the
    /// others of its group, and the answer of the second one is what comes at any time.
    pub fn preceded_by(
        self,
        cluster: &Cluster<P>,
        starts: Vec<Start>,
        asks: Option<(usize, usize)>,
    ) -> Self {
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
        let answer = asks.map(|(asks, answers)| {
            before.now = before.now + SHORT_SILENCE;
            before.step(&mut state, asks, Input::Timer, 0);
            let answer = before.run_up_to(&mut state, Source::Link(answers as u8, asks as u8));
            before.run(&mut state);
            before.locals.frame_with(answer)
        });
        let processes =
            state.locals.iter().map(|local| before.locals.value(local.process)).collect();
        let model = Multicasts { processes, now: before.now, ..self };
        match answer {
            Some((from, messages)) => model.answered(from, messages),
            None => model,
        }
    }

    /// A regular run until that is next, which is withheld.
    fn run_up_to(&self, state: &mut State, source: Source) -> u32 {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        while let Some(action) = actions.pop() {
            if action == Action::Arrive(source) {
                state.turns.take();
                return self.next_from(state, source).0;
            }
            self.take(state, action);
            actions.clear();
            self.actions(state, &mut actions);
        }
        panic!("nothing came from {source:?}");
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
