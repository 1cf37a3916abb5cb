//! Blocks read or written a moment ago. Blocks never change, so nothing here is ever wrong.

use bytes::Bytes;
use meridian_core::BlockId;
use std::collections::BTreeMap;

/// Runs of bytes of blocks, the longest unused leaving first.
#[derive(Debug)]
pub struct Cache {
    limit: usize,
    bytes: usize,
    tick: u64,
    runs: BTreeMap<(BlockId, u32), (Bytes, u64)>,
    by_use: BTreeMap<u64, (BlockId, u32)>,
}

impl Cache {
    /// Of at most `limit` bytes.
    pub fn new(limit: usize) -> Cache {
        Cache { limit, bytes: 0, tick: 0, runs: BTreeMap::new(), by_use: BTreeMap::new() }
    }

    /// How many bytes it keeps at most.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes of `block` from `start`, if all `len` of them are here in one run.
    pub fn get(&mut self, block: BlockId, start: u32, len: u32) -> Option<Bytes> {
        let (key, (run, used)) = self.runs.range_mut((block, 0)..=(block, start)).next_back()?;
        let from = usize::try_from(start - key.1).ok()?;
        let to = from.checked_add(usize::try_from(len).ok()?)?;
        if to > run.len() {
            return None;
        }
        self.tick += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.tick, *key);
        *used = self.tick;
        Some(run.slice(from..to))
    }

    /// Keeps `data`, the bytes of `block` from `start`.
    pub fn insert(&mut self, block: BlockId, start: u32, data: Bytes) {
        if data.len() > self.limit {
            return;
        }
        self.tick += 1;
        self.bytes += data.len();
        if let Some((old, used)) = self.runs.insert((block, start), (data, self.tick)) {
            self.bytes -= old.len();
            self.by_use.remove(&used);
        }
        self.by_use.insert(self.tick, (block, start));
        while self.bytes > self.limit {
            let Some((_, key)) = self.by_use.pop_first() else { break };
            if let Some((run, _)) = self.runs.remove(&key) {
                self.bytes -= run.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_answers_for_its_parts_only() {
        let mut cache = Cache::new(100);
        cache.insert(BlockId(2), 10, Bytes::from_static(b"0123456789"));
        assert_eq!(cache.get(BlockId(2), 12, 3).unwrap(), "234");
        assert_eq!(cache.get(BlockId(2), 9, 3), None);
        assert_eq!(cache.get(BlockId(2), 12, 9), None);
        assert_eq!(cache.get(BlockId(3), 12, 3), None);
        assert_eq!(cache.get(BlockId(3), 5, 1), None, "before the start of another block's run");
    }

    #[test]
    fn the_longest_unused_leaves_first() {
        let mut cache = Cache::new(20);
        for block in 0..2 {
            cache.insert(BlockId(block), 0, Bytes::from_static(b"0123456789"));
        }
        assert!(cache.get(BlockId(0), 0, 1).is_some());
        cache.insert(BlockId(2), 0, Bytes::from_static(b"0123456789"));
        assert!(cache.get(BlockId(0), 0, 1).is_some());
        assert!(cache.get(BlockId(1), 0, 1).is_none());
        assert!(cache.get(BlockId(2), 0, 1).is_some());
    }
}
