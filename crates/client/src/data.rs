//! Blocks: immutable, under names drawn at random. Which nodes store one, and which are asked for
//! it, is decided by the session.

use crate::client::{Client, lock};
use crate::driver::Caller;
use crate::error::ClientError;
use crate::plan::Asked;
use bytes::Bytes;
use meridian_core::{BlockId, GroupId};
use meridian_fs::types::BLOCK_MAX;
use meridian_session::{Block, Command, Output, Part};
use std::collections::VecDeque;

/// Blocks that one call sends at a time.
const IN_FLIGHT: usize = 16;

impl Client {
    /// Stores `blocks` for a file in `partition`, some at a time.
    ///
    /// # Errors
    /// If too few nodes take one of them in time.
    ///
    /// # Panics
    /// If one is empty or longer than [`BLOCK_MAX`].
    pub async fn put_blocks(
        &self,
        partition: GroupId,
        blocks: Vec<Block>,
    ) -> Result<(), ClientError> {
        let mut under_way = VecDeque::new();
        for block in blocks {
            if self.inner.plan.is_on() {
                let bytes = block.data.len();
                self.inner.plan.note(Asked::Store { partition, bytes });
                continue;
            }
            if under_way.len() >= IN_FLIGHT {
                self.stored(under_way.pop_front()).await?;
            }
            under_way.push_back(self.put_block(partition, block));
        }
        while !under_way.is_empty() {
            self.stored(under_way.pop_front()).await?;
        }
        Ok(())
    }

    /// No update will ever name these blocks of files in `partition`: the nodes that hold them may
    /// free them. Nobody waits for that.
    pub fn discard(&self, partition: GroupId, blocks: Vec<BlockId>) {
        if !blocks.is_empty() && !self.inner.plan.is_on() {
            self.inner.driver.command(Command::Discard { partition, blocks });
        }
    }

    /// Begins to store a block.
    fn put_block(&self, partition: GroupId, block: Block) -> (Caller, Block) {
        let len = block.data.len();
        assert!((1..=BLOCK_MAX).contains(&len), "a block of {len} bytes");
        let caller = self.inner.driver.caller();
        let deadline = self.inner.driver.deadline(self.timeout());
        let (call, of) = (caller.call(), block.clone());
        self.inner.driver.command(Command::Store { call, partition, block: of, deadline });
        (caller, block)
    }

    /// Waits until a block is stored.
    async fn stored(&self, under_way: Option<(Caller, Block)>) -> Result<(), ClientError> {
        let Some((caller, Block { name, data })) = under_way else { return Ok(()) };
        match caller.output().await {
            Output::Stored { missing, .. } => {
                if !missing.is_empty() {
                    tracing::warn!("block {name} is not in {} regions", missing.len());
                }
                self.keep(name, 0, data);
                Ok(())
            }
            output => Err(self.unexpected("storing a block", output)),
        }
    }

    /// Reads `len` bytes of `block` from `start`, of a file in `partition`.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if all nodes say that they do not have it, or damaged, or less of it;
    /// [`ClientError::Timeout`] if those that may have it do not answer.
    pub async fn read_block(
        &self,
        partition: GroupId,
        block: BlockId,
        start: u32,
        len: u32,
    ) -> Result<Bytes, ClientError> {
        if let Some(data) = self.cached(block, start, len) {
            return Ok(data);
        }
        let part = Part { block, start, len };
        let _fetch = match self.inner.fetches.begin(part) {
            Ok(fetch) => Some(fetch),
            Err(mut over) => {
                let _ = over.changed().await; // It is over when the sender is gone.
                if let Some(data) = self.cached(block, start, len) {
                    return Ok(data);
                }
                None // It failed, and is tried again by each who wants it.
            }
        };
        self.inner.plan.note(Asked::Fetch(partition));
        let caller = self.inner.driver.caller();
        let (call, deadline) = (caller.call(), self.inner.driver.deadline(self.timeout()));
        match caller.ask(Command::Fetch { call, partition, part, deadline }).await {
            Output::Fetched { data, .. } => {
                self.keep(block, start, data.clone());
                Ok(data)
            }
            output => Err(self.unexpected("reading a block", output)),
        }
    }

    /// Whether so much may be fetched ahead: beside what is under way it is to find room here, and
    /// not to drive out what nobody has read yet.
    pub(crate) fn may_fetch(&self, bytes: u64) -> bool {
        let room = lock(&self.inner.cache).limit() as u64 / 2;
        self.inner.fetches.bytes() + bytes <= room
    }

    pub(crate) fn cached(&self, block: BlockId, start: u32, len: u32) -> Option<Bytes> {
        lock(&self.inner.cache).get(block, start, len)
    }

    pub(crate) fn keep(&self, block: BlockId, start: u32, data: Bytes) {
        lock(&self.inner.cache).insert(block, start, data);
    }
}
