//! Who may not connect though its certificate is in order: connections of those end, and new ones
//! are refused (decision 94).

use crate::stream::Session;
use meridian_core::principal::Speaker;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Ended connections are forgotten when so many more are open than after the last time.
const FORGET_AFTER: usize = 64;

/// Names of principals, as `ROLE/NAME`, and the connections that are open.
#[derive(Default)]
pub(crate) struct Shut(Mutex<State>);

#[derive(Default)]
struct State {
    names: BTreeSet<String>,
    open: Vec<(String, Weak<Mutex<Session>>)>,
    /// At so many open ones those that have ended are forgotten.
    forget_at: usize,
}

impl Shut {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These may not connect from now on, and no others. Tells how many connections end.
    pub fn set(&self, names: BTreeSet<String>) -> usize {
        let mut state = self.lock();
        state.names = names;
        let State { names, open, .. } = &mut *state;
        let before = open.len();
        open.retain(|(name, session)| {
            let Some(session) = session.upgrade().filter(|_| names.contains(name)) else {
                return session.strong_count() > 0;
            };
            session.lock().unwrap_or_else(PoisonError::into_inner).shut();
            false
        });
        before - open.len()
    }

    /// A connection has begun; whether it may.
    pub fn admit(&self, speaker: &Speaker, session: &Arc<Mutex<Session>>) -> bool {
        let Speaker::Known(who) = speaker else { return true };
        let (name, mut state) = (format!("{}/{}", who.role.name(), who.name), self.lock());
        if state.names.contains(&name) {
            return false;
        }
        if state.open.len() >= state.forget_at {
            state.open.retain(|(_, session)| session.strong_count() > 0);
            state.forget_at = 2 * state.open.len() + FORGET_AFTER;
        }
        state.open.push((name, Arc::downgrade(session)));
        true
    }
}

impl std::fmt::Debug for Shut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shut").field(&self.lock().names).finish()
    }
}
