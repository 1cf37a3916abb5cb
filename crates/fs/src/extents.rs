//! The contents of a file: extents by their offset, holes between them.
//!
//! Invariants:
//! - E1: extents do not overlap, none is empty, none reaches past the length of the file.
//! - E2: no two inline extents touch: they would be one.
//! - E3: `stored` and `inline` are the sums over the extents; `inline` is at most [`INLINE_MAX`].

use crate::FsError;
use crate::operation::Piece;
use crate::types::{BLOCK_MAX, Data, Extent, FILE_MAX, INLINE_MAX};
use bytes::{Bytes, BytesMut};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};

/// The contents of a file.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Extents {
    size: u64,
    stored: u64,
    inline: u64,
    by_offset: OrdMap<u64, Extent>,
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

    /// What lies in `len` bytes from `offset`, in order and cut to the range.
    pub fn range(&self, offset: u64, len: u64) -> Vec<(u64, Extent)> {
        let end = offset.saturating_add(len);
        let mut found = Vec::new();
        for (at, extent) in self.overlapping(offset, end) {
            let from = offset.max(at);
            let to = end.min(at + u64::from(extent.len));
            found.push((from, slice(extent, from - at, to - from)));
        }
        found
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
        if let Data::Inline(_) = extent.data {
            self.inline -= u64::from(extent.len);
        }
        Some(extent)
    }

    fn put(&mut self, at: u64, extent: Extent) {
        self.stored += u64::from(extent.len);
        if let Data::Inline(_) = extent.data {
            self.inline += u64::from(extent.len);
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
    use meridian_core::BlockId;
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
            cases: 500, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default()
        })]

        #[test]
        fn extents_hold_what_a_vector_of_bytes_holds(steps in steps(), from in 0..500u64, len in 0..500u64) {
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
                prop_assert_eq!(&bytes_of(&file.range(0, u64::MAX), 0, file.size()), &model);
            }
            let end = (from + len).min(model.len() as u64).max(from);
            let mut expected = vec![0; usize::try_from(end - from).unwrap()];
            if from < model.len() as u64 {
                expected.copy_from_slice(&model[usize::try_from(from).unwrap()..usize::try_from(end).unwrap()]);
            }
            prop_assert_eq!(bytes_of(&file.range(from, len), from, end), expected);
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
