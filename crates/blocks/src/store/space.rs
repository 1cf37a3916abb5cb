//! How the room of freed blocks comes back.
//!
//! A segment whose blocks are all freed is removed. What is left of one that is half empty is moved
//! to the newest first: so the segments take at most twice what is held, and the newest and the one
//! that is being emptied ([`Store::move_some`], [`Store::remove_empty`]).
//!
//! Nothing of that is written down. After a crash a freed block may be there again, as long as its
//! segment is: whoever had it freed has that done again.
//!
//! Invariant S4: a segment is removed after the copies of all that it held are durable.

use super::{BlockError, Findings, Mutation, Store, failed, headers};
use meridian_core::BlockId;
use std::collections::VecDeque;

/// A segment that is being emptied.
pub(super) struct Emptied {
    number: u64,
    /// What may be left in it, and where.
    rest: VecDeque<(u64, BlockId)>,
}

impl Store {
    /// These blocks are held no more; how many of them were. They are no longer served, and their
    /// room comes back in time.
    pub fn free(&mut self, blocks: impl IntoIterator<Item = BlockId>) -> usize {
        let mut index = self.blocks.write_index();
        let freed = blocks.into_iter().filter(|block| index.forget(*block)).count();
        self.is_tight &= freed == 0;
        freed
    }

    /// Whether there is a segment to be emptied or removed.
    pub fn is_untidy(&self) -> bool {
        !self.closed
            && (!self.empty().is_empty() || (!self.is_tight && self.half_empty().is_some()))
    }

    /// The segments that hold nothing, without the newest.
    fn empty(&self) -> Vec<u64> {
        let index = self.blocks.read_index();
        let all = index.segments.iter().filter(|(number, _)| **number != self.newest);
        all.filter(|(_, segment)| segment.live == 0).map(|(number, _)| *number).collect()
    }

    /// The segment that holds least, if that is half of it or less.
    fn half_empty(&self) -> Option<u64> {
        let index = self.blocks.read_index();
        let all = index.segments.iter().filter(|(number, of)| {
            **number != self.newest && !of.is_damaged && of.live > 0 && of.live * 2 <= of.size
        });
        all.min_by_key(|(_, segment)| segment.live).map(|(number, _)| *number)
    }

    /// Moves what is left in a segment that is half empty to the newest, `limit` bytes at a time.
    /// What is moved is durable after the next [`Store::sync`].
    ///
    /// # Errors
    /// After [`BlockError::Io`] the store is closed. A full disk is no failure: what was freed is
    /// room for others, too.
    pub fn move_some(&mut self, limit: u64) -> Result<(), BlockError> {
        if self.closed || self.is_tight {
            return Ok(());
        }
        if self.emptied.is_none() {
            let Some(number) = self.half_empty() else { return Ok(()) };
            let segment = self.blocks.read_index().segments[&number].clone();
            let found = headers(&segment, &mut Findings::default())?;
            let rest = found.into_iter().map(|(at, header)| (at, header.block)).collect();
            self.emptied = Some(Emptied { number, rest });
        }
        let Some(mut emptied) = self.emptied.take() else { return Ok(()) };
        let mut moved = 0;
        while moved < limit {
            let Some((offset, block)) = emptied.rest.pop_front() else {
                self.leave_if_unread(emptied.number);
                return Ok(());
            };
            match self.move_one(emptied.number, offset, block) {
                Ok(bytes) => moved += bytes,
                Err(BlockError::Full) => {
                    self.is_tight = true;
                    return Ok(());
                }
                Err(BlockError::Damaged(_)) => {
                    self.leave_if_unread(emptied.number);
                    return Ok(());
                }
                Err(error) => {
                    self.closed = true;
                    return Err(error);
                }
            }
        }
        self.emptied = Some(emptied);
        Ok(())
    }

    /// A segment that was gone through and still holds something cannot all be read: it stays.
    fn leave_if_unread(&self, number: u64) {
        let mut index = self.blocks.write_index();
        if let Some(segment) = index.segments.get_mut(&number) {
            segment.is_damaged = segment.live > 0;
        }
    }

    /// Moves a block unless it was freed, or lies elsewhere; how many bytes that were.
    fn move_one(&mut self, number: u64, offset: u64, block: BlockId) -> Result<u64, BlockError> {
        let at = self.blocks.read_index().blocks.get(&block).copied();
        if at.is_none_or(|at| (at.segment, at.offset) != (number, offset)) {
            return Ok(0);
        }
        let data = self.blocks.get(block, 0, u32::MAX)?;
        self.append(block, &data, self.blocks.reserve_bytes / 2)?;
        Ok(data.len() as u64)
    }

    /// Removes the segments that hold nothing, once all that was appended is durable.
    ///
    /// # Errors
    /// If the disk refuses: the store is then closed.
    pub fn remove_empty(&mut self) -> Result<(), BlockError> {
        let early = self.blocks.mutation.is(Mutation::RemovesEarly);
        if self.closed || (self.durable != self.end && !early) {
            return Ok(());
        }
        for number in self.empty() {
            if self.emptied.as_ref().is_some_and(|emptied| emptied.number == number) {
                self.emptied = None;
            }
            let segment = self.blocks.write_index().segments.remove(&number);
            let path = segment.expect("it is empty").path;
            self.is_tight = false;
            if let Err(error) = self.blocks.disk.remove(&path) {
                self.closed = true;
                return Err(failed("remove", &path)(error));
            }
        }
        Ok(())
    }
}

impl super::Blocks {
    /// How much of the disk the segments take, in bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.read_index().segments.values().map(|segment| segment.size).sum()
    }
}
