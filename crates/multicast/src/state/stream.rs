//! What a primary has sent a follower of its `T`: a window of entries and bytes is under way.

use std::collections::VecDeque;

/// How many entries a follower may be sent before it acknowledges the first of them: two a
/// microsecond when it is 30 ms away.
const WINDOW: u64 = 1 << 16;
/// How many bytes of them: far less than a link holds back before it gives up.
const WINDOW_BYTES: usize = 16 << 20;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    next: u64,
    acked: u64,
    /// What is under way: the index after each batch, and its bytes.
    batches: VecDeque<(u64, usize)>,
    bytes: usize,
}

impl Stream {
    /// To a follower that holds `T` up to `len`.
    pub fn from(len: u64) -> Stream {
        Stream { next: len, acked: len, ..Stream::default() }
    }

    /// The next index to send.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether more may be sent.
    pub fn has_room(&self) -> bool {
        self.next < self.acked + WINDOW && self.bytes < WINDOW_BYTES
    }

    /// A batch up to index `end` was sent.
    pub fn sent(&mut self, end: u64, bytes: usize) {
        self.next = end;
        self.bytes += bytes;
        self.batches.push_back((end, bytes));
    }

    /// The follower holds `T` up to `len`.
    pub fn acknowledged(&mut self, len: u64) {
        self.acked = len.max(self.acked);
        while let Some((_, bytes)) = self.batches.pop_front_if(|(end, _)| *end <= len) {
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_bytes_are_bounded() {
        let mut stream = Stream::from(7);
        stream.sent(8, WINDOW_BYTES);
        assert!(!stream.has_room());
        stream.acknowledged(8);
        assert!(stream.has_room());
        stream.sent(8 + WINDOW, 1);
        assert!(!stream.has_room());
        stream.acknowledged(9);
        assert!(stream.has_room() && stream.next() == 8 + WINDOW);
        assert_eq!(stream.bytes, 1, "half of a batch is none");
        stream.acknowledged(8 + WINDOW);
        assert_eq!((stream.bytes, stream.batches.len()), (0, 0));
    }
}
