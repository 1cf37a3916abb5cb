//! Bytes that a program has written and that are not yet sent: runs by offset. A plain value.
//!
//! Invariants:
//! - D1: no run is empty, and there is a gap between each run and the next.
//! - D2: what is read back over any bytes is what writing straight into them would have made.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    runs: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Dirty {
    /// Puts `data` at `offset`, over what is there. A gap stays a gap.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        let before = self.runs.range_mut(..=offset).next_back();
        if let Some((start, run)) = before.filter(|(start, run)| **start + len(run) >= offset) {
            let start = *start;
            let at = index(offset - start);
            let within = data.len().min(run.len() - at);
            run[at..at + within].copy_from_slice(&data[..within]);
            run.extend_from_slice(&data[within..]);
            self.bytes += data.len() - within;
            self.swallow(start);
        } else {
            // Nothing reaches to `offset`; what begins within or just after is joined.
            let after = self.runs.range(offset..=end).next().map(|(start, _)| *start);
            self.runs.insert(offset, data.to_vec());
            self.bytes += data.len();
            if after.is_some() {
                self.swallow(offset);
            }
        }
    }

    /// Joins to the run at `start` those that it overlaps or touches; their overlapped bytes go.
    fn swallow(&mut self, start: u64) {
        let mut run = self.runs.remove(&start).expect("the caller names a run");
        loop {
            let end = start + len(&run);
            let next = self.runs.range(start..=end).next().map(|(next, _)| *next);
            let Some(next) = next else { break };
            let other = self.runs.remove(&next).expect("just seen");
            let overlap = index(end - next).min(other.len());
            run.extend_from_slice(&other[overlap..]);
            self.bytes -= overlap;
        }
        self.runs.insert(start, run);
    }

    /// Writes all of `newer` over this.
    pub fn absorb(&mut self, newer: &Dirty) {
        for (offset, run) in &newer.runs {
            self.write(*offset, run);
        }
    }

    /// Copies what is here of the file's bytes from `offset` over `into`.
    pub fn overlay(&self, offset: u64, into: &mut [u8]) {
        let end = offset + into.len() as u64;
        for (start, run) in self.overlapping(offset..end) {
            let from = start.max(offset);
            let to = (start + len(run)).min(end);
            let source = &run[index(from - start)..index(to - start)];
            into[index(from - offset)..index(to - offset)].copy_from_slice(source);
        }
    }

    /// The runs, or parts of runs, that lie in `range`.
    pub fn within(&self, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let cut = self.overlapping(range.clone()).map(|(start, run)| {
            let (from, to) = (start.max(range.start), (start + len(run)).min(range.end));
            (from, run[index(from - start)..index(to - start)].to_vec())
        });
        cut.collect()
    }

    /// The bytes of `range` if all of them are here.
    pub fn whole(&self, range: Range<u64>) -> Option<&[u8]> {
        let (start, run) = self.runs.range(..=range.start).next_back()?;
        (start + len(run) >= range.end)
            .then(|| &run[index(range.start - start)..index(range.end - start)])
    }

    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Vec<u8>)> {
        let first = self.runs.range(..range.start).next_back();
        let first = first.filter(|(start, run)| **start + len(run) > range.start);
        let range = range.start..range.end.max(range.start);
        first.into_iter().chain(self.runs.range(range)).map(|(start, run)| (*start, run))
    }

    /// One after the last byte; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(start, run)| start + len(run))
    }

    /// The first byte; 0 if there is none.
    pub fn start(&self) -> u64 {
        self.runs.first_key_value().map_or(0, |(start, _)| *start)
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.runs.iter().map(|(start, run)| (*start, &run[..]))
    }

    /// Packs all bytes, in order, into buffers of at most `limit`: for each run its offset and its
    /// parts as (buffer, start in it, length).
    pub fn pack(&self, limit: usize) -> (Vec<Bytes>, Vec<Part>) {
        let (mut buffers, mut current, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (offset, run) in self.iter() {
            let mut done = 0;
            while done < run.len() {
                if current.len() == limit {
                    buffers.push(Bytes::from(std::mem::take(&mut current)));
                }
                let count = (limit - current.len()).min(run.len() - done);
                let (buffer, start) = (buffers.len(), current.len());
                current.extend_from_slice(&run[done..done + count]);
                parts.push(Part { offset: offset + done as u64, buffer, start, len: count });
                done += count;
            }
        }
        if !current.is_empty() {
            buffers.push(Bytes::from(current));
        }
        (buffers, parts)
    }
}

/// Where a stretch of the file lies in packed buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where in the file.
    pub offset: u64,
    /// In which buffer.
    pub buffer: usize,
    /// From which of its bytes.
    pub start: usize,
    /// How many.
    pub len: usize,
}

fn len(run: &[u8]) -> u64 {
    run.len() as u64
}

/// Distances within a run fit into memory.
fn index(distance: u64) -> usize {
    usize::try_from(distance).expect("a run is in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the file holds where something was written.
    type Model = Vec<Option<u8>>;

    fn written() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
        proptest::collection::vec((0..120u64, proptest::collection::vec(any::<u8>(), 0..40)), 0..20)
    }

    fn build(writes: &[(u64, Vec<u8>)]) -> (Dirty, Model) {
        let (mut dirty, mut model) = (Dirty::default(), vec![None; 200]);
        for (offset, data) in writes {
            dirty.write(*offset, data);
            for (at, byte) in data.iter().enumerate() {
                model[*offset as usize + at] = Some(*byte);
            }
        }
        (dirty, model)
    }

    fn agree(dirty: &Dirty, model: &Model) {
        let mut end_before = None;
        for (start, run) in dirty.iter() {
            assert!(!run.is_empty(), "D1");
            assert!(end_before.is_none_or(|end| end < start), "D1: run at {start}");
            end_before = Some(start + run.len() as u64);
        }
        let mut read = vec![None; 200];
        for (start, run) in dirty.iter() {
            for (at, byte) in run.iter().enumerate() {
                read[start as usize + at] = Some(*byte);
            }
        }
        assert_eq!(&read, model, "D2");
        assert_eq!(dirty.bytes(), model.iter().flatten().count());
        let end = model.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        assert_eq!(dirty.end(), end as u64);
    }

    proptest! {
        #[test]
        fn it_holds_what_was_written(writes in written()) {
            let (dirty, model) = build(&writes);
            agree(&dirty, &model);
        }

        #[test]
        fn an_overlay_is_as_writing_straight(
            writes in written(), offset in 0..150usize, count in 0..50usize,
        ) {
            let (dirty, model) = build(&writes);
            let mut into = vec![7; count];
            dirty.overlay(offset as u64, &mut into);
            let wanted: Vec<_> = (offset..offset + count)
                .map(|at| model[at].unwrap_or(7))
                .collect();
            prop_assert_eq!(&into, &wanted);
            let range = offset as u64..(offset + count) as u64;
            let mut again = vec![7; count];
            for (at, part) in dirty.within(range.clone()) {
                let at = at as usize - offset;
                again[at..at + part.len()].copy_from_slice(&part);
            }
            prop_assert_eq!(&again, &wanted);
            let all = model[offset..offset + count].iter().all(Option::is_some);
            if count > 0 {
                prop_assert_eq!(dirty.whole(range).map(<[u8]>::to_vec), all.then_some(wanted));
            }
        }

        #[test]
        fn absorbing_is_writing_after(first in written(), second in written()) {
            let (mut dirty, _) = build(&first);
            dirty.absorb(&build(&second).0);
            let both: Vec<_> = first.into_iter().chain(second).collect();
            agree(&dirty, &build(&both).1);
        }

        #[test]
        fn packed_bytes_unpack_to_the_same(writes in written(), limit in 1..64usize) {
            let (dirty, _) = build(&writes);
            let (buffers, parts) = dirty.pack(limit);
            prop_assert!(buffers.iter().all(|buffer| (1..=limit).contains(&buffer.len())));
            let mut again = Dirty::default();
            for part in parts {
                again.write(part.offset, &buffers[part.buffer][part.start..part.start + part.len]);
            }
            prop_assert_eq!(again, dirty);
        }
    }
}
