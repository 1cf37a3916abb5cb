//! Reading ahead in one open file: what is to be fetched before somebody asks for it. A plain
//! value.
//!
//! For who reads in order more and more is fetched ahead, up to [`AHEAD_MAX`]; for who reads here
//! and there nothing is. The kernel asks for several parts at a time, which come in any order: what
//! is [`NEAR`] the end of what was read is in order, too.
//!
//! Invariants:
//! - A1: what is fetched ahead lies behind what was read, and ends at most [`AHEAD_MAX`] after it.
//! - A2: while somebody reads in order, nothing is fetched ahead twice.

use std::ops::Range;

/// How far is read ahead at most, in bytes: some blocks on each of a region's nodes.
pub const AHEAD_MAX: u64 = 8 << 20;
/// How far is read ahead at first.
const AHEAD_MIN: u64 = 1 << 20;
/// How far reads that are under way at the same time lie apart at most.
const NEAR: u64 = 4 << 20;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAhead {
    /// Where the farthest read ended; none before the first.
    end: Option<u64>,
    /// How far is read ahead now: nothing yet after the first read.
    window: u64,
    /// Up to where all was fetched, or is about to be.
    fetched: u64,
}

impl ReadAhead {
    /// `range` is read of a file that is `size` bytes long. What is to be fetched ahead now.
    pub fn on_read(&mut self, range: Range<u64>, size: u64) -> Option<Range<u64>> {
        let near = |end: u64| range.start.abs_diff(end) <= NEAR;
        let Some(end) = self.end.filter(|end| near(*end)) else {
            *self = ReadAhead { end: Some(range.end), window: 0, fetched: range.end };
            return None;
        };
        if range.end <= end {
            return None;
        }
        self.end = Some(range.end);
        self.window = (self.window * 2).clamp(AHEAD_MIN, AHEAD_MAX);
        self.fetched = self.fetched.max(range.end);
        let to = (range.end + self.window).min(size);
        // In large steps, as each costs a question; the last one is as large as it is.
        if to <= self.fetched || (to < size && to - self.fetched < self.window / 2) {
            return None;
        }
        Some(std::mem::replace(&mut self.fetched, to)..to)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: u64 = 128 << 10;
    const SIZE: u64 = 64 << 20;

    #[test]
    fn who_reads_in_order_is_read_ahead_for_more_and_more() {
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.on_read(0..STEP, SIZE), None, "nobody knows yet");
        assert_eq!(ahead.on_read(STEP..2 * STEP, SIZE), Some(2 * STEP..2 * STEP + AHEAD_MIN));
        let mut fetched = 2 * STEP + AHEAD_MIN;
        for at in 2..SIZE / STEP {
            let end = (at + 1) * STEP;
            if let Some(more) = ahead.on_read(at * STEP..end, SIZE) {
                assert_eq!(more.start, fetched, "A2");
                assert!(more.end <= SIZE.min(end + AHEAD_MAX), "A1");
                assert!(more.end == SIZE || more.end - more.start >= AHEAD_MIN / 2);
                fetched = more.end;
            }
            assert!(fetched >= SIZE.min(end + AHEAD_MIN / 2), "it stays ahead at {at}");
        }
        assert_eq!(fetched, SIZE);
    }

    #[test]
    fn parts_that_come_in_another_order_are_in_order() {
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.on_read(STEP..2 * STEP, SIZE), None);
        assert_eq!(ahead.on_read(0..STEP, SIZE), None, "nothing new");
        assert_eq!(ahead.on_read(3 * STEP..4 * STEP, SIZE), Some(4 * STEP..4 * STEP + AHEAD_MIN));
        assert_eq!(ahead.on_read(2 * STEP..3 * STEP, SIZE), None);
    }

    #[test]
    fn who_reads_here_and_there_is_not() {
        let mut ahead = ReadAhead::default();
        for at in [40, 9, 33, 2, 50, 21, 60] {
            assert_eq!(ahead.on_read(at << 20..(at << 20) + 4096, SIZE), None, "at {at} MiB");
        }
        let at = 30 << 20;
        assert_eq!(ahead.on_read(at..at + STEP, SIZE), None);
        let again = ahead.on_read(at + STEP..at + 2 * STEP, SIZE).unwrap();
        assert_eq!(again, at + 2 * STEP..at + 2 * STEP + AHEAD_MIN, "it begins anew");
    }

    #[test]
    fn nothing_is_read_ahead_behind_the_end() {
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.on_read(0..4096, 5000), None);
        assert_eq!(ahead.on_read(4096..8192, 5000), None);
    }

    proptest! {
        #[test]
        fn what_is_fetched_ahead_is_bounded(reads: Vec<(u32, u16)>, size: u32) {
            let (mut ahead, size) = (ReadAhead::default(), u64::from(size));
            for (start, len) in reads {
                let start = u64::from(start);
                let range = start..start + u64::from(len);
                if let Some(more) = ahead.on_read(range.clone(), size) {
                    prop_assert!(more.start >= range.end && more.start < more.end, "A1");
                    prop_assert!(more.end <= size.min(range.end + AHEAD_MAX), "A1");
                }
            }
        }
    }
}
