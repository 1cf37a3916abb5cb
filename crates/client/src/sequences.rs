//! The numbers of a client's messages, and which of them have not ended.

use std::collections::BTreeSet;

/// How many messages may be given up and not have ended before no more are begun. The nodes remember
/// what came of each message from the lowest unfinished one on, so this bounds what they remember.
pub const GIVEN_UP_MAX: usize = 1024;

/// Numbers from 1, none twice.
#[derive(Debug, Default)]
pub struct Sequences {
    last: u64,
    unfinished: BTreeSet<u64>,
    given_up: BTreeSet<u64>,
}

impl Sequences {
    /// The next number, and the lowest that has not ended (perhaps itself).
    pub fn begin(&mut self) -> (u64, u64) {
        self.last += 1;
        self.unfinished.insert(self.last);
        (self.last, self.low())
    }

    /// The lowest that has not ended; the next one if all have.
    pub fn low(&self) -> u64 {
        self.unfinished.first().copied().unwrap_or(self.last + 1)
    }

    /// An answer came: it ended.
    pub fn end(&mut self, sequence: u64) {
        self.unfinished.remove(&sequence);
        self.given_up.remove(&sequence);
    }

    /// Its caller waits for it no more; it may still happen, so it counts until it has ended.
    pub fn give_up(&mut self, sequence: u64) {
        if self.unfinished.contains(&sequence) {
            self.given_up.insert(sequence);
        }
    }

    /// Whether too many were given up.
    pub fn is_full(&self) -> bool {
        self.given_up.len() >= GIVEN_UP_MAX
    }

    /// Whether it has begun and not ended.
    pub fn is_unfinished(&self, sequence: u64) -> bool {
        self.unfinished.contains(&sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_is_the_lowest_that_has_not_ended() {
        let mut sequences = Sequences::default();
        assert_eq!(sequences.begin(), (1, 1));
        assert_eq!(sequences.begin(), (2, 1));
        sequences.end(1);
        assert_eq!(sequences.begin(), (3, 2));
        sequences.give_up(2);
        sequences.end(3);
        assert_eq!(sequences.low(), 2);
        sequences.end(2);
        assert_eq!(sequences.low(), 4);
    }

    #[test]
    fn what_is_given_up_is_bounded() {
        let mut sequences = Sequences::default();
        for _ in 0..GIVEN_UP_MAX {
            assert!(!sequences.is_full());
            let (sequence, _) = sequences.begin();
            sequences.give_up(sequence);
        }
        assert!(sequences.is_full());
        assert_eq!(sequences.low(), 1, "what may still happen is never passed over");
        sequences.end(1);
        assert!(!sequences.is_full());
        assert_eq!(sequences.low(), 2);
    }
}
