//! The durability rule: a send or an output is seen outside only after every record persisted
//! before it is durable.
//!
//! Sends and outputs pass the gate in the order in which they came, each once the last record that
//! was persisted before it is durable. Notes and timers never meet it.

use meridian_core::room::Room;
use std::collections::VecDeque;

/// Holds items back until the records before them are durable. See the module's documentation.
#[derive(Debug)]
pub struct Gate<T> {
    waiting: VecDeque<(u64, T)>,
    /// The number of the last record persisted, and of the last that is durable.
    persisted: u64,
    durable: u64,
}

impl<T> Gate<T> {
    /// One at which all records up to number `durable` are durable.
    pub fn new(durable: u64) -> Gate<T> {
        Gate { waiting: VecDeque::new(), persisted: durable, durable }
    }

    /// A record was appended under this number; what comes now waits for it.
    pub fn on_persisted(&mut self, number: u64) {
        assert!(number > self.persisted, "record {number} after {}", self.persisted);
        self.persisted = number;
    }

    /// All records up to this number are durable.
    pub fn on_durable(&mut self, number: u64) {
        self.durable = self.durable.max(number);
    }

    /// An item that may pass once all that was persisted until now is durable.
    pub fn push(&mut self, item: T) {
        self.waiting.push_back((self.persisted, item));
    }

    /// The next item, if it may pass.
    pub fn pop(&mut self) -> Option<T> {
        let (after, _) = self.waiting.front()?;
        if *after > self.durable {
            return None;
        }
        let (_, item) = self.waiting.pop_front()?;
        self.waiting.give_back();
        Some(item)
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing(gate: &mut Gate<char>) -> String {
        std::iter::from_fn(|| gate.pop()).collect()
    }

    #[test]
    fn items_wait_for_the_records_before_them_and_for_no_others() {
        let mut gate = Gate::new(5);
        gate.push('a');
        assert_eq!(passing(&mut gate), "a");
        gate.on_persisted(6);
        gate.push('b');
        gate.on_persisted(9); // 7 and 8 are notes.
        gate.push('c');
        gate.push('d');
        assert_eq!(passing(&mut gate), "");
        gate.on_durable(6);
        assert_eq!(passing(&mut gate), "b");
        gate.on_durable(8);
        assert_eq!(passing(&mut gate), "");
        gate.on_persisted(10);
        gate.on_durable(9);
        assert_eq!(passing(&mut gate), "cd");
        assert!(gate.is_empty());
    }
}
