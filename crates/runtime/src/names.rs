//! What members are called in their certificates.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The names of members; whose name it does not have cannot show who it is. Threads share it.
#[derive(Debug)]
pub struct Names<I>(Mutex<BTreeMap<I, String>>);

impl<I> Default for Names<I> {
    fn default() -> Self {
        Names(Mutex::default())
    }
}

impl<I: Ord> Names<I> {
    /// From now on these are the names of all members.
    pub fn set(&self, names: BTreeMap<I, String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// What a member is called.
    pub fn get(&self, member: I) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&member).cloned()
    }
}
