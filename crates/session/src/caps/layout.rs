//! Where the bytes of a long file lie, by ranges, as far as reads have shown it: who reads on in a
//! file asks a node once for what is read ahead, not again for each part of that (decision 106).
//!
//! It is kept of a file that is held, and goes as all else that is kept of it (K1 to K4). Who reads
//! on in a long file looks at it, and so comes to hold it.
//!
//! Invariants:
//! - L1: ranges that were shown neither overlap nor touch, and all blocks lie in them.
//! - L2: what is answered of a range is what a replica would: cut to the range, holes left out.

use super::Caps;
use super::known::Known;
use meridian_core::{BlockId, Time};
use meridian_fs::types::{Data, Extent, Place};
use std::collections::BTreeMap;
use std::ops::Range;

/// So many parts of blocks are kept in all: some MiB, and what 64 GiB of long blocks take.
const PARTS_MAX: usize = 1 << 16;

/// Bytes of a file that lie behind each other in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    len: u64,
    block: BlockId,
    /// The first byte in the block.
    start: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    parts: BTreeMap<u64, Part>,
    /// Of these ranges all is known: their ends by their beginnings.
    shown: BTreeMap<u64, u64>,
}

impl Layout {
    /// A read has shown what lies in a range. What was known of it before says the same, though it
    /// may be cut elsewhere.
    fn add(&mut self, range: Range<u64>, parts: impl IntoIterator<Item = (u64, Part)>) {
        for edge in [range.start, range.end] {
            self.cut(edge);
        }
        let old: Vec<_> = self.parts.range(range.clone()).map(|(at, _)| *at).collect();
        old.iter().for_each(|at| _ = self.parts.remove(at));
        self.parts.extend(parts);
        for edge in [range.start, range.end] {
            self.join(edge);
        }
        let Range { mut start, mut end } = range;
        while let Some((from, to)) = self.shown.range(..=end).next_back().map(|(a, b)| (*a, *b))
            && to >= start
        {
            (start, end) = (start.min(from), end.max(to));
            self.shown.remove(&from);
        }
        self.shown.insert(start, end);
    }

    /// No part lies on both sides of that byte.
    fn cut(&mut self, edge: u64) {
        if let Some((at, part)) = self.parts.range_mut(..edge).next_back()
            && at + part.len > edge
        {
            let len = edge - at;
            let behind = part.after(len);
            part.len = len;
            self.parts.insert(edge, behind);
        }
    }

    /// Parts that meet at that byte are one, if they lie so in their block.
    fn join(&mut self, edge: u64) {
        let Some(behind) = self.parts.get(&edge).copied() else { return };
        if let Some((at, part)) = self.parts.range_mut(..edge).next_back()
            && at + part.len == edge
            && part.after(part.len) == (Part { len: 0, ..behind })
        {
            part.len += behind.len;
            self.parts.remove(&edge);
        }
    }

    /// What lies in a range, if all of that is known.
    fn get(&self, range: Range<u64>) -> Option<Vec<(u64, Extent)>> {
        self.shown.range(..=range.start).next_back().filter(|(_, end)| **end >= range.end)?;
        let before = self.parts.range(..range.start).next_back();
        let all = before.into_iter().chain(self.parts.range(range.clone()));
        let within = all.filter_map(|(at, part)| {
            let from = range.start.max(*at);
            let to = range.end.min(at + part.len);
            let len = to.checked_sub(from).filter(|len| *len > 0)?;
            let Part { block, start, .. } = part.after(from - at);
            let len = u32::try_from(len).expect("a part of a block");
            Some((from, Extent { len, data: Data::Block { block, start } }))
        });
        Some(within.collect())
    }
}

impl Part {
    fn of(extent: &Extent) -> Option<Part> {
        match extent.data {
            Data::Block { block, start } => Some(Part { len: extent.len.into(), block, start }),
            Data::Inline(_) => None,
        }
    }

    /// What of it comes after so many bytes.
    fn after(self, len: u64) -> Part {
        let start = u32::try_from(u64::from(self.start) + len).expect("within a block");
        Part { len: self.len - len, start, ..self }
    }
}

impl Caps {
    /// A read that began at that count has shown what lies in a range of a file of that size.
    pub(super) fn fill_layout(
        &mut self,
        now: Time,
        (file, begun): (Place, u64),
        (range, size): (Range<u64>, u64),
        extents: &[(u64, Extent)],
    ) {
        if range.start > 0 && range.end < size {
            self.count_look(now, file);
        }
        let range = range.start..range.end.min(size);
        let parts = extents.iter().map(|(at, extent)| Some((*at, Part::of(extent)?)));
        let Some(parts) = parts.collect::<Option<Vec<_>>>() else { return };
        if range.is_empty() || parts.len() > PARTS_MAX / 2 || self.busy.contains_key(&file.ino) {
            return;
        }
        if self.parts + parts.len() > PARTS_MAX {
            let of = |known: &Known| known.layout.value.as_ref().map_or(0, |of| of.parts.len());
            self.parts = self.count_anew(PARTS_MAX, of, |known| known.layout.value = None);
        }
        let added = parts.len();
        if let Some(known) = self.fillable(file, begun) {
            known.layout.fill_by(begun, |layout| layout.add(range, parts));
            self.parts += added;
        }
    }
}

impl Known {
    /// What lies in a range of a file of that size, if all of that is known.
    pub(super) fn laid_out(&self, range: &Range<u64>, size: u64) -> Option<Vec<(u64, Extent)>> {
        let range = range.start..range.end.min(size);
        self.layout.value.as_ref().filter(|_| !range.is_empty())?.get(range)
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
