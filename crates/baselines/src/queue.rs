//! The order of deliveries.

use meridian_core::MessageId;
use meridian_multicast::{Rank, Timestamp};
use std::collections::BTreeMap;

/// The messages that have a local timestamp in the own group and are not delivered, by that
/// timestamp until the final one is known, then by the final one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// Whether the rank is final.
    ranks: BTreeMap<Rank, bool>,
}

impl Queue {
    /// `id` has this timestamp in the own group.
    pub fn add(&mut self, id: MessageId, local: Timestamp) {
        self.ranks.insert((local, id), false);
    }

    /// The final timestamp of `id`, which was added with `local`.
    ///
    /// # Panics
    /// If it is below `local`, or `id` was not added.
    pub fn settle(&mut self, id: MessageId, local: Timestamp, last: Timestamp) {
        assert!(local <= last, "{id}: final {last:?} below {local:?}");
        assert!(
            self.ranks.remove(&(local, id)) == Some(false),
            "{id}: settled twice, or never added"
        );
        self.ranks.insert((last, id), true);
    }

    /// Takes the first message, if its final timestamp is known and at most `clock`.
    pub fn pop(&mut self, clock: Timestamp) -> Option<Rank> {
        let first = self.ranks.first_entry()?;
        let is_due = *first.get() && first.key().0 <= clock;
        is_due.then(|| first.remove_entry().0)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::ClientId;

    #[test]
    fn in_order_and_only_when_final() {
        let id = |sequence| MessageId { client: ClientId(1), sequence };
        let mut queue = Queue::default();
        queue.add(id(1), Timestamp(1));
        queue.add(id(2), Timestamp(2));
        queue.add(id(3), Timestamp(3));
        queue.settle(id(3), Timestamp(3), Timestamp(3));
        assert_eq!(queue.pop(Timestamp(9)), None, "1 may still come before");
        queue.settle(id(1), Timestamp(1), Timestamp(7));
        queue.settle(id(2), Timestamp(2), Timestamp(3));
        assert_eq!(queue.pop(Timestamp(2)), None, "the clock has not reached it");
        let popped: Vec<_> = std::iter::from_fn(|| queue.pop(Timestamp(6))).collect();
        assert_eq!(popped, [(Timestamp(3), id(2)), (Timestamp(3), id(3))]);
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.pop(Timestamp(7)), Some((Timestamp(7), id(1))));
    }
}
