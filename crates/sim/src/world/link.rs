//! The links between two processes, one for each direction: in order, delayed, cut and reset.
//!
//! A link keeps what is under way in a queue; a *tick* takes one item off its front, so the order
//! holds whatever the ticks' times. Ticks that come while the way is cut are owed.

use meridian_core::NodeId;
use meridian_core::hello::Identity;
use std::collections::VecDeque;

/// Something under way.
#[derive(Debug)]
pub(crate) enum Item<M> {
    /// A message, and how its sender introduces itself where logs are on disks.
    Message(M, Option<Box<Identity<NodeId>>>),
    /// The news that the sender started anew or that the link was reset.
    Restarted,
}

/// One direction between two processes.
#[derive(Debug)]
pub(crate) struct Link<M> {
    /// What is under way, in order.
    pub queue: VecDeque<Item<M>>,
    /// Ticks that found the way cut, or the receiver down.
    pub owed: usize,
    /// Ticks that are still to come.
    pub coming: usize,
    /// The time of the last tick that was set.
    pub last_tick: u64,
    /// Counts resets: ticks of an earlier generation are void.
    pub generation: u64,
    /// Whether the receiver has got nothing since it started: only then may the first messages be
    /// lost without its knowing.
    pub fresh: bool,
}

impl<M> Default for Link<M> {
    fn default() -> Self {
        Link {
            queue: VecDeque::new(),
            owed: 0,
            coming: 0,
            last_tick: 0,
            generation: 0,
            fresh: true,
        }
    }
}

impl<M> Link<M> {
    /// Whether each item has its tick, coming or owed.
    pub fn is_consistent(&self) -> bool {
        self.queue.len() == self.owed + self.coming
    }

    /// Loses all but the first `keep` items; `Restarted` news among the lost are lost too.
    pub fn keep_first(&mut self, keep: usize) {
        self.queue.truncate(keep);
        self.void_ticks();
    }

    /// Loses the messages among the first `lose` items; the news of a restart always arrives.
    pub fn lose_first(&mut self, lose: usize) {
        let mut lost = self.queue.drain(..lose.min(self.queue.len()));
        let news = lost.any(|item| matches!(item, Item::Restarted));
        drop(lost);
        if news {
            self.queue.push_front(Item::Restarted);
        }
        self.void_ticks();
    }

    /// Makes all ticks void; what stays in the queue is owed its ticks.
    fn void_ticks(&mut self) {
        self.generation += 1;
        self.coming = 0;
        self.owed = self.queue.len();
    }
}
