//! What a node asks of its blocks.

use bytes::Bytes;
use meridian_core::BlockId;
use meridian_host::api::ReplyBody;

/// Called once, on any thread.
pub type BlockDone = Box<dyn FnOnce(ReplyBody) + Send>;

/// Called once, on any thread; not if the disk fails.
pub type Settled = Box<dyn FnOnce() + Send>;

/// Where blocks are kept. Nothing here waits for the disk.
pub trait BlockService {
    /// Stores a block; `done` is called when it is durable, or cannot be.
    fn put(&self, block: BlockId, data: Bytes, done: BlockDone);

    /// Reads a part of a block.
    fn get(&self, block: BlockId, offset: u32, len: u32, done: BlockDone);

    /// Calls `done` when all that was put before is durable, or was refused.
    fn settled(&self, done: Settled);

    /// Whether a block is here, durable or not yet.
    fn holds(&self, block: BlockId) -> bool;

    /// Why nothing can be stored any more, if a write has failed: the server has to stop. Its
    /// thread is woken.
    fn failed(&self) -> Option<String>;

    /// The names of the blocks after `after`, in order, `limit` at most.
    fn names(&self, after: Option<BlockId>, limit: usize) -> Vec<BlockId>;

    /// How many blocks are held, and their bytes.
    fn held(&self) -> (u64, u64);
}

/// See [`BlockService`].
pub type Blocks = Box<dyn BlockService + Send>;
