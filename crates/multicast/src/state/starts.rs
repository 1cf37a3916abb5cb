//! `M`, as far as it holds STARTs that this group has not proposed.

use crate::message::Start;
use meridian_core::{MessageId, ProcessId, Table, Time};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// STARTs and bytes of them held, at most; more are dropped, and their senders send them again.
const HELD_MAX: usize = 1 << 18;
const BYTES_MAX: usize = 256 << 20;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Starts {
    held: Table<MessageId, Arc<Start>>,
    /// To be proposed, or passed on, in this order; some have gone meanwhile.
    fresh: VecDeque<MessageId>,
    /// Passed on to the primary, and when.
    passed_on: VecDeque<(Time, MessageId)>,
    bytes: usize,
    /// Those on their way out, by process.
    pub outgoing: BTreeMap<ProcessId, Vec<Arc<Start>>>,
}

impl Starts {
    /// Whether `id` is held.
    pub fn contains(&self, id: MessageId) -> bool {
        self.held.contains(&id)
    }

    /// The START of `id`.
    pub fn get(&self, id: MessageId) -> Option<&Arc<Start>> {
        self.held.get(&id)
    }

    /// Holds one, if it is new and there is room.
    pub fn hold(&mut self, start: Arc<Start>) {
        if self.held.len() < HELD_MAX && self.bytes < BYTES_MAX {
            self.hold_always(start);
        }
    }

    /// Holds one, room or not: it was in `T`.
    pub fn hold_always(&mut self, start: Arc<Start>) {
        let (id, bytes) = (start.id, start.payload.len());
        if self.held.insert_new(id, || start) {
            self.fresh.push_back(id);
            self.bytes += bytes;
        }
    }

    /// Lets one go: `T` holds it.
    pub fn remove(&mut self, id: MessageId) -> Option<Arc<Start>> {
        if self.held.is_empty() {
            return None;
        }
        let start = self.held.remove(&id)?;
        self.bytes -= start.payload.len();
        if self.held.is_empty() {
            self.fresh.clear();
            self.passed_on.clear();
        }
        Some(start)
    }

    /// Takes the first.
    pub fn pop(&mut self) -> Option<Arc<Start>> {
        loop {
            let id = self.fresh.pop_front()?;
            if let Some(start) = self.remove(id) {
                return Some(start);
            }
        }
    }

    /// All that are fresh go out to `to` now.
    pub fn pass_on(&mut self, now: Time, to: ProcessId) {
        for id in std::mem::take(&mut self.fresh) {
            if let Some(start) = self.held.get(&id) {
                self.outgoing.entry(to).or_default().push(start.clone());
                self.passed_on.push_back((now, id));
            }
        }
    }

    /// Those that were passed on before `before` are fresh again.
    pub fn again(&mut self, before: Time) {
        while let Some((_, id)) = self.passed_on.pop_front_if(|(at, _)| *at < before) {
            if self.held.contains(&id) {
                self.fresh.push_back(id);
            }
        }
    }

    /// Keeps those for which `of` holds.
    pub fn retain(&mut self, of: impl Fn(MessageId) -> bool) {
        let ids = self.fresh.iter().chain(self.passed_on.iter().map(|(_, id)| id));
        let gone: Vec<_> = ids.copied().filter(|id| !of(*id)).collect();
        gone.into_iter().for_each(|id| drop(self.remove(id)));
    }
}
