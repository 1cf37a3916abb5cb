//! The contents of a file: extents by their offset, holes between them.
//!
//! Each extent takes some 100 bytes of each replica's memory. A file that grows by small pieces, as
//! a log does, would be nothing but tiny extents; so whoever writes is told when many short ones
//! lie behind each other, and merges them ([`Extents::merge`]). Extents are merged with those of
//! their own class of length, so that each byte is stored once more per class and not once per
//! write.
//!
//! Invariants:
//! - E1: extents do not overlap, none is empty, none reaches past the length of the file.
//! - E2: no two inline extents touch: they would be one.
//! - E3: `stored` and `inline` are the sums over the extents; `inline` is at most [`INLINE_MAX`].

use crate::FsError;
use crate::operation::Piece;
use crate::types::{BLOCK_MAX, Data, EXTENTS_MAX, Extent, FILE_MAX, INLINE_MAX};
use bytes::{Bytes, BytesMut};
use imbl::OrdMap;
use meridian_core::BlockId;
use serde::{Deserialize, Serialize};

/// Blocks of fewer bytes are merged.
const SHORT: u32 = 16 << 10;
/// So many of one class of length are merged into one block: with the shorter ones after them they
/// always fit.
const MERGE_MIN: usize = 32;
/// A class reaches from a length to 32 times that.
const CLASS_BITS: u32 = 5;

/// The contents of a file.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Extents {
    size: u64,
    stored: u64,
    inline: u64,
    by_offset: OrdMap<u64, Extent>,
    /// The blocks of extents that came (`true`) and went since [`Extents::take_changes`].
    #[serde(skip)]
    changes: Vec<(BlockId, bool)>,
}

impl Extents {
    /// The length of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many bytes are not holes.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Writes all `pieces`, relative to `start`, or nothing.
    pub fn write(&mut self, start: u64, pieces: &[Piece]) -> Result<(), FsError> {
        check_pieces(start, pieces)?;
        let mut after = self.clone(); // Shares its structure.
        for piece in pieces {
            let offset = start + piece.offset;
            let end = offset + u64::from(piece.extent.len);
            after.remove(offset, end);
            after.insert(offset, piece.extent.clone());
            after.size = after.size.max(end);
        }
        if after.inline > INLINE_MAX as u64 {
            return Err(FsError::InlineFull);
        }
        *self = after;
        Ok(())
    }

    /// Cuts the file at `size`, or lengthens it with a hole.
    pub fn resize(&mut self, size: u64) -> Result<(), FsError> {
        if size > FILE_MAX {
            return Err(FsError::TooLarge);
        }
        self.remove(size, u64::MAX);
        self.size = size;
        Ok(())
    }

    /// Makes `len` bytes from `offset` a hole; the length stays.
    pub fn punch(&mut self, offset: u64, len: u64) {
        self.remove(offset, offset.saturating_add(len));
    }

    /// What lies in `len` bytes from `offset`, in order and cut to the range, and up to where that
    /// is all: there may be more than one answer may tell.
    pub fn range(&self, offset: u64, len: u64) -> (Vec<(u64, Extent)>, u64) {
        let end = offset.saturating_add(len);
        let mut found = Vec::new();
        for (at, extent) in self.overlapping(offset, end) {
            let from = offset.max(at);
            if found.len() >= EXTENTS_MAX {
                return (found, from);
            }
            let to = end.min(at + u64::from(extent.len));
            found.push((from, slice(extent, from - at, to - from)));
        }
        (found, end)
    }

    /// From where on the short blocks that lie behind each other up to `end` should be merged: at
    /// least [`MERGE_MIN`] of one class of length, with all shorter ones after them.
    pub fn short_run(&self, end: u64) -> Option<u64> {
        let (mut from, mut class, mut count, mut bytes) = (end, 0, 0, 0);
        while count < MERGE_MIN && from > 0 {
            let (at, extent) = self.by_offset.get_prev(&(from - 1))?;
            let is_block = matches!(extent.data, Data::Block { .. });
            bytes += u64::from(extent.len);
            let touches = at + u64::from(extent.len) == from;
            if !is_block || !touches || extent.len >= SHORT || bytes > BLOCK_MAX as u64 {
                return None;
            }
            let of = extent.len.ilog2() / CLASS_BITS;
            if of > class {
                (class, count) = (of, 0);
            }
            (from, count) = (*at, count + 1);
        }
        (count >= MERGE_MIN).then_some(from)
    }

    /// The extents of `run`, which lie behind each other from `offset` on, become one, of `block`.
    pub fn merge(&mut self, offset: u64, run: &[Extent], block: BlockId) -> Result<(), FsError> {
        let len: u64 = run.iter().map(|extent| u64::from(extent.len)).sum();
        let in_blocks = run.iter().all(|extent| matches!(extent.data, Data::Block { .. }));
        if len == 0 || len > BLOCK_MAX as u64 || !in_blocks {
            return Err(FsError::Invalid);
        }
        let end = offset.checked_add(len).ok_or(FsError::TooLarge)?;
        let mut at = offset;
        let mut expected = run.iter().map(|extent| {
            let from = at;
            at += u64::from(extent.len);
            (from, extent)
        });
        let mut found = self.overlapping(offset, end);
        if !expected.all(|wanted| found.next() == Some(wanted)) {
            return Err(FsError::Stale);
        }
        drop(found);
        self.remove(offset, end);
        let len = u32::try_from(len).expect("at most a block");
        self.put(offset, Extent { len, data: Data::Block { block, start: 0 } });
        Ok(())
    }

    /// The blocks of extents that came (`true`) and went since this was asked last.
    pub fn take_changes(&mut self) -> Vec<(BlockId, bool)> {
        std::mem::take(&mut self.changes)
    }

    /// All extents, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Extent)> {
        self.by_offset.iter().map(|(offset, extent)| (*offset, extent))
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Extent)> {
        let before = (start > 0).then(|| self.by_offset.get_prev(&(start - 1))).flatten();
        let before =
            before.filter(|(at, extent)| **at + u64::from(extent.len) > start && end > start);
        let within = (start < end).then(|| self.by_offset.range(start..end));
        before
            .map(|(at, extent)| (*at, extent))
            .into_iter()
            .chain(within.into_iter().flatten().map(|(at, extent)| (*at, extent)))
    }

    /// Makes the bytes from `start` to before `end` a hole.
    fn remove(&mut self, start: u64, end: u64) {
        let cut: Vec<u64> = self.overlapping(start, end).map(|(at, _)| at).collect();
        for at in cut {
            let Some(extent) = self.take(at) else { continue };
            let extent_end = at + u64::from(extent.len);
            if at < start {
                self.put(at, slice(&extent, 0, start - at));
            }
            if extent_end > end {
                self.put(end, slice(&extent, end - at, extent_end - end));
            }
        }
    }

    /// Adds an extent where a hole is, joined with its neighbours if all are inline.
    fn insert(&mut self, offset: u64, extent: Extent) {
        let Data::Inline(bytes) = &extent.data else { return self.put(offset, extent) };
        let mut start = offset;
        let mut joined: Option<BytesMut> = None;
        let before = (offset > 0).then(|| self.by_offset.get_prev(&(offset - 1))).flatten();
        if let Some((at, Extent { len, data: Data::Inline(head) })) = before
            && at + u64::from(*len) == offset
        {
            start = *at;
            let mut all = BytesMut::with_capacity(head.len() + bytes.len());
            all.extend_from_slice(head);
            all.extend_from_slice(bytes);
            joined = Some(all);
        }
        let end = offset + u64::from(extent.len);
        if let Some(Extent { data: Data::Inline(tail), .. }) = self.by_offset.get(&end) {
            let mut all = joined.take().unwrap_or_else(|| BytesMut::from(&bytes[..]));
            all.extend_from_slice(tail);
            joined = Some(all);
            self.take(end);
        }
        let Some(all) = joined else { return self.put(offset, extent) };
        self.take(start);
        let len = u32::try_from(all.len()).expect("inline extents are shorter than a message");
        self.put(start, Extent { len, data: Data::Inline(all.freeze()) });
    }

    fn take(&mut self, at: u64) -> Option<Extent> {
        let extent = self.by_offset.remove(&at)?;
        self.stored -= u64::from(extent.len);
        match extent.data {
            Data::Inline(_) => self.inline -= u64::from(extent.len),
            Data::Block { block, .. } => self.changes.push((block, false)),
        }
        Some(extent)
    }

    fn put(&mut self, at: u64, extent: Extent) {
        self.stored += u64::from(extent.len);
        match extent.data {
            Data::Inline(_) => self.inline += u64::from(extent.len),
            Data::Block { block, .. } => self.changes.push((block, true)),
        }
        self.by_offset.insert(at, extent);
    }

    /// Panics unless E1 to E3 hold.
    pub fn check_invariants(&self) {
        let (mut end, mut stored, mut inline) = (0, 0, 0);
        let mut inline_before = false;
        for (at, extent) in self.iter() {
            assert!(extent.len > 0 && at >= end, "E1: extent at {at} overlaps or is empty");
            let is_inline = match &extent.data {
                Data::Inline(bytes) => {
                    assert_eq!(bytes.len(), extent.len as usize, "E1: length of inline bytes");
                    inline += u64::from(extent.len);
                    true
                }
                Data::Block { start, .. } => {
                    assert!((start + extent.len) as usize <= BLOCK_MAX, "E1: past a block's end");
                    false
                }
            };
            assert!(!(is_inline && inline_before && at == end && at > 0), "E2: at {at}");
            end = at + u64::from(extent.len);
            stored += u64::from(extent.len);
            inline_before = is_inline;
        }
        assert!(end <= self.size && self.size <= FILE_MAX, "E1: past the end of the file");
        assert_eq!((self.stored, self.inline), (stored, inline), "E3");
        assert!(self.inline <= INLINE_MAX as u64, "E3: too much inline");
    }
}

/// `len` bytes of an extent from its byte `from`. Inline bytes are copied: a slice would keep the
/// whole buffer in memory.
fn slice(extent: &Extent, from: u64, len: u64) -> Extent {
    if from == 0 && len == u64::from(extent.len) {
        return extent.clone();
    }
    let data = match &extent.data {
        Data::Inline(bytes) => {
            let from = usize::try_from(from).expect("within an extent");
            let len = usize::try_from(len).expect("within an extent");
            Data::Inline(Bytes::copy_from_slice(&bytes[from..from + len]))
        }
        Data::Block { block, start } => {
            let from = u32::try_from(from).expect("within an extent");
            Data::Block { block: *block, start: start + from }
        }
    };
    Extent { len: u32::try_from(len).expect("within an extent"), data }
}

fn check_pieces(start: u64, pieces: &[Piece]) -> Result<(), FsError> {
    let mut end = 0;
    for Piece { offset, extent } in pieces {
        let sound = match &extent.data {
            Data::Inline(bytes) => bytes.len() == extent.len as usize,
            Data::Block { start, .. } => {
                u64::from(*start) + u64::from(extent.len) <= BLOCK_MAX as u64
            }
        };
        if !sound || extent.len == 0 || *offset < end {
            return Err(FsError::Invalid);
        }
        end = offset.checked_add(u64::from(extent.len)).ok_or(FsError::TooLarge)?;
    }
    match start.checked_add(end) {
        Some(end) if end <= FILE_MAX => Ok(()),
        Some(_) | None => Err(FsError::TooLarge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    #[derive(Clone, Debug)]
    enum Step {
        Write { start: u64, pieces: Vec<(u64, u32, bool)> },
        Resize(u64),
        Punch(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let piece = (0..30u64, 1..60u32, any::<bool>());
        let write = (0..400u64, proptest::collection::vec(piece, 0..4))
            .prop_map(|(start, pieces)| Step::Write { start, pieces });
        let step = prop_oneof![
            4 => write,
            1 => (0..500u64).prop_map(Step::Resize),
            1 => (0..500u64, 0..200u64).prop_map(|(offset, len)| Step::Punch(offset, len)),
        ];
        proptest::collection::vec(step, 1..60)
    }

    /// Byte `at` of block `block`: differs between blocks and places.
    fn stored(block: u128, at: u32) -> u8 {
        u8::try_from((block * 37 + u128::from(at) * 11) % 255).unwrap() + 1
    }

    fn piece(offset: u64, bytes: &[u8]) -> Piece {
        let len = u32::try_from(bytes.len()).unwrap();
        Piece { offset, extent: Extent { len, data: Data::Inline(Bytes::copy_from_slice(bytes)) } }
    }

    fn bytes_of(extents: &[(u64, Extent)], start: u64, end: u64) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(end - start).unwrap()];
        for (offset, extent) in extents {
            assert!(*offset >= start && offset + u64::from(extent.len) <= end, "not cut");
            for index in 0..extent.len {
                let byte = match &extent.data {
                    Data::Inline(bytes) => bytes[index as usize],
                    Data::Block { block, start } => stored(block.0, start + index),
                };
                all[usize::try_from(offset - start).unwrap() + index as usize] = byte;
            }
        }
        all
    }

    fn write(
        file: &mut Extents,
        model: &mut Vec<u8>,
        start: u64,
        pieces: &[(u64, u32, bool)],
        number: u128,
    ) {
        let (mut all, mut end) = (Vec::new(), 0);
        for (gap, len, inline) in pieces {
            let offset = end + gap;
            let bytes: Vec<u8> = (0..*len).map(|at| stored(number, 7 + at)).collect();
            let extent = match inline {
                true => piece(offset, &bytes),
                false => {
                    let data = Data::Block { block: BlockId(number), start: 7 };
                    Piece { offset, extent: Extent { len: *len, data } }
                }
            };
            all.push(extent);
            end = offset + u64::from(*len);
            let (from, to) =
                (usize::try_from(start + offset).unwrap(), usize::try_from(start + end).unwrap());
            model.resize(model.len().max(to), 0);
            model[from..to].copy_from_slice(&bytes);
        }
        file.write(start, &all).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 500,
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(1),
            ..ProptestConfig::default()
        })]

        #[test]
        fn extents_hold_what_a_vector_of_bytes_holds(
            steps in steps(),
            from in 0..500u64,
            len in 0..500u64,
        ) {
            let (mut file, mut model) = (Extents::default(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Write { start, pieces } => {
                        write(&mut file, &mut model, start, &pieces, number as u128);
                    }
                    Step::Resize(size) => {
                        file.resize(size).unwrap();
                        model.resize(usize::try_from(size).unwrap(), 0);
                    }
                    Step::Punch(offset, len) => {
                        file.punch(offset, len);
                        let end = model.len().min(usize::try_from(offset + len).unwrap());
                        let start = end.min(usize::try_from(offset).unwrap());
                        model[start..end].fill(0);
                    }
                }
                file.check_invariants();
                prop_assert_eq!(file.size(), model.len() as u64);
                prop_assert_eq!(&bytes_of(&file.range(0, u64::MAX).0, 0, file.size()), &model);
            }
            let end = (from + len).min(model.len() as u64).max(from);
            let mut expected = vec![0; usize::try_from(end - from).unwrap()];
            if from < model.len() as u64 {
                let [from, end] = [from, end].map(|at| usize::try_from(at).unwrap());
                expected.copy_from_slice(&model[from..end]);
            }
            prop_assert_eq!(bytes_of(&file.range(from, len).0, from, end), expected);
        }
    }

    #[test]
    fn touching_inline_extents_are_one() {
        let mut file = Extents::default();
        file.write(0, &[piece(0, b"ab"), piece(4, b"ef")]).unwrap();
        assert_eq!(file.iter().count(), 2);
        file.write(2, &[piece(0, b"cd")]).unwrap();
        let all: Vec<_> = file.iter().collect();
        let data = Data::Inline(Bytes::from_static(b"abcdef"));
        assert_eq!(all, [(0, &Extent { len: 6, data })]);
    }

    #[test]
    fn a_block_that_is_cut_in_two_keeps_its_places() {
        let (mut file, block) = (Extents::default(), BlockId(5));
        let extent = Extent { len: 1000, data: Data::Block { block, start: 50 } };
        file.write(100, &[Piece { offset: 0, extent }]).unwrap();
        file.punch(300, 100);
        let all: Vec<_> = file.iter().map(|(at, extent)| (at, extent.clone())).collect();
        let part = |len, start| Extent { len, data: Data::Block { block, start } };
        assert_eq!(all, [(100, part(200, 50)), (400, part(700, 350))]);
        assert_eq!((file.size(), file.stored()), (1100, 900));
    }

    fn block(number: u128, len: u32) -> Extent {
        Extent { len, data: Data::Block { block: BlockId(number), start: 0 } }
    }

    /// Appends pieces of `len` bytes and merges as the client does: how many extents there were at
    /// most, and how many bytes were stored again.
    fn append(file: &mut Extents, count: u64, len: u32) -> (usize, u64) {
        let (mut most, mut again) = (0, 0);
        for number in 0..count {
            let extent = block(u128::from(number), len);
            file.write(file.size(), &[Piece { offset: 0, extent }]).unwrap();
            if let Some(from) = file.short_run(file.size()) {
                let run = file.range(from, file.size() - from).0;
                let run: Vec<_> = run.into_iter().map(|(_, extent)| extent).collect();
                file.merge(from, &run, BlockId(u128::from(count + number))).unwrap();
                again += file.size() - from;
            }
            most = most.max(file.iter().count());
            file.check_invariants();
        }
        (most, again)
    }

    #[test]
    fn a_log_of_short_lines_has_few_extents() {
        for len in [3, 100, 5000] {
            let mut file = Extents::default();
            let (most, again) = append(&mut file, 20_000, len);
            let size = 20_000 * u64::from(len);
            assert_eq!((file.size(), file.stored()), (size, size));
            let long = size / u64::from(SHORT);
            assert!(most as u64 <= long + 3 * MERGE_MIN as u64, "{most} extents of {len} bytes");
            assert!(again <= 4 * size, "{again} bytes were stored again of {size}");
        }
    }

    #[test]
    fn a_run_is_merged_only_as_it_was_seen() {
        let mut file = Extents::default();
        for number in 0..40 {
            let piece = Piece { offset: 0, extent: block(number, 10) };
            file.write(file.size(), &[piece]).unwrap();
        }
        let run: Vec<_> = (0..40).map(|number| block(number, 10)).collect();
        let mut other = run.clone();
        other[7] = block(99, 10);
        let before = file.clone();
        assert_eq!(file.merge(0, &other, BlockId(7)), Err(FsError::Stale));
        assert_eq!(file.merge(10, &run, BlockId(7)), Err(FsError::Stale));
        assert_eq!(file.merge(0, &[], BlockId(7)), Err(FsError::Invalid));
        assert_eq!(file.merge(0, &[block(1, u32::MAX)], BlockId(7)), Err(FsError::Invalid));
        assert_eq!(file, before);
        file.merge(0, &run, BlockId(7)).unwrap();
        assert_eq!(file.iter().collect::<Vec<_>>(), [(0, &block(7, 400))]);
        assert_eq!(file.size(), 400);
    }

    #[test]
    fn an_answer_tells_of_some_extents_and_up_to_where() {
        let mut file = Extents::default();
        let count = 2 * EXTENTS_MAX as u64 + 5;
        for number in 0..count {
            let piece = Piece { offset: 0, extent: block(u128::from(number), 3) };
            file.write(3 * number, &[piece]).unwrap();
        }
        let (mut at, mut all) = (1, Vec::new());
        while at < 3 * count {
            let (found, end) = file.range(at, 3 * count - at);
            assert!(end > at && found.len() <= EXTENTS_MAX);
            all.extend(found);
            at = end;
        }
        assert_eq!(all.len() as u64, count);
        assert!(all.windows(2).all(|two| two[0].0 + u64::from(two[0].1.len) == two[1].0));
    }

    #[test]
    fn a_write_is_done_whole_or_not_at_all() {
        let mut file = Extents::default();
        file.write(0, &[piece(0, &vec![1; INLINE_MAX])]).unwrap();
        let before = file.clone();
        let more = [piece(0, b"x"), piece(INLINE_MAX as u64 + 9, b"y")];
        assert_eq!(file.write(0, &more), Err(FsError::InlineFull));
        assert_eq!(file.write(FILE_MAX, &[piece(0, b"x")]), Err(FsError::TooLarge));
        assert_eq!(file.write(u64::MAX, &[piece(0, b"x")]), Err(FsError::TooLarge));
        assert_eq!(file.write(0, &[piece(5, b"x"), piece(5, b"y")]), Err(FsError::Invalid));
        assert_eq!(file.write(0, &[piece(0, b"")]), Err(FsError::Invalid));
        let past = Data::Block { block: BlockId(1), start: u32::MAX };
        let past = Piece { offset: 0, extent: Extent { len: 1, data: past } };
        assert_eq!(file.write(0, &[past]), Err(FsError::Invalid));
        assert_eq!(file.resize(FILE_MAX + 1), Err(FsError::TooLarge));
        assert_eq!(file, before);
        file.write(0, &[piece(0, b"over")]).unwrap();
        file.resize(FILE_MAX).unwrap();
        file.write(FILE_MAX - 1, &[]).unwrap();
        file.check_invariants();
    }
}
