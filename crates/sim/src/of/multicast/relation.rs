//! What a run has said about the order of messages, and whether that is an order.
//!
//! What is to hold is "atomic global order": delivered before, somewhere, or multicast after a
//! delivery, has no cycle. The relation forgets how its edges came about: it holds which messages
//! are before which, over any number of steps, and whether later edges close a cycle depends on
//! nothing else.
//!
//! **When a message is multicast** is not a choice of the search. A message may have been multicast
//! after a delivery of `x` if its START is not among the causes of that delivery. One such pair is
//! enough to look for. Let `a` end before `b` is multicast and `c` before `d`, in one cycle. Then
//! `a` ends before `d` is multicast, or `c` before `b`; either way there is a cycle with one such
//! pair less. So there is none if nothing that may have been multicast after a delivery of `x`
//! precedes `x`.

use crate::explore::{Set, bits};

/// So many messages at most.
pub const MESSAGES_MAX: usize = 7;

/// What the order of deliveries and real time say so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub struct Relation {
    /// For each message those that are delivered after it, over any number of steps.
    after: [Set; MESSAGES_MAX],
    /// For each message those that may have been multicast after a delivery of it.
    ended_before: [Set; MESSAGES_MAX],
}

impl Relation {
    /// A process delivers `message` that has delivered `earlier` before; `later` may have been
    /// multicast after that.
    pub fn deliver(&mut self, message: usize, earlier: Set, later: Set) {
        bits(earlier).for_each(|earlier| self.add(earlier, message));
        self.ended_before[message] |= later;
    }

    fn add(&mut self, before: usize, after: usize) {
        let gained = self.after[after] | (1 << after);
        for (at, set) in self.after.iter_mut().enumerate() {
            if at == before || *set & (1 << before) != 0 {
                *set |= gained;
            }
        }
    }

    /// Whether it is no order.
    pub fn is_cyclic(&self) -> bool {
        let mut all = self.ended_before.iter().zip(&self.after).enumerate();
        all.any(|(message, (ended_before, after))| {
            let mut later = bits(*ended_before | (*after & (1 << message)));
            later.any(|later| self.after[later] & (1 << message) != 0)
        })
    }
}
