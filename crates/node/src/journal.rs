//! What the driver asks of the write-ahead log and of the blocks, and who does it.

use bytes::Bytes;
use meridian_core::BlockId;
use meridian_host::api::ReplyBody;

/// Records that make up a checkpoint, drawn on another thread.
pub type Records = Box<dyn Iterator<Item = Bytes> + Send>;

/// Where records go. Appending never waits for the disk.
pub trait Journal {
    /// Appends a record and tells its number, which is greater than all before.
    fn append(&mut self, record: Bytes) -> u64;

    /// What was appended is to be made durable now.
    fn flush(&mut self);

    /// All records up to this number are durable. When it grows the driver is woken.
    ///
    /// # Errors
    /// If the disk has failed.
    fn durable(&self) -> Result<u64, String>;

    /// Whether so much waits for the disk that the driver must not make more.
    fn is_full(&self) -> bool;

    /// Bytes appended since the last checkpoint began.
    fn bytes_since_checkpoint(&self) -> u64;

    /// Makes `records` stand for all that was appended until now; does not wait for it.
    fn checkpoint(&mut self, records: Records);

    /// Waits until all that was appended is durable.
    ///
    /// # Errors
    /// If the disk has failed.
    fn close(self: Box<Self>) -> Result<(), String>;
}

/// Called once, on any thread.
pub type BlockDone = Box<dyn FnOnce(ReplyBody) + Send>;

/// Where blocks are kept. Nothing here waits for the disk.
pub trait BlockService {
    /// Stores a block; `done` is called when it is durable, or cannot be.
    fn put(&self, block: BlockId, data: Bytes, done: BlockDone);

    /// Reads a part of a block.
    fn get(&self, block: BlockId, offset: u32, len: u32, done: BlockDone);

    /// Why nothing can be stored any more, if a write has failed: the server has to stop. The
    /// driver is woken.
    fn failed(&self) -> Option<String>;

    /// How many blocks are held, and their bytes.
    fn held(&self) -> (u64, u64);
}

/// See [`BlockService`].
pub type Blocks = Box<dyn BlockService>;
