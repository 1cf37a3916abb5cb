//! The blocks of a node, without waiting for the disk: threads around [`meridian_blocks::Store`].
//!
//! One thread writes: it takes all puts that wait, appends them, syncs once and answers them all.
//! [`READERS`] threads read. Answers are given by callbacks, on these threads.

use bytes::Bytes;
use meridian_blocks::store::{Blocks, OpenError, Options};
use meridian_blocks::{BlockError, Counters, Store};
use meridian_core::BlockId;
use meridian_storage::Disk;
use meridian_storage::real_disk::random_salt;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// How long a segment becomes, in bytes.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// How much may wait to be written, in bytes, before a put is answered [`BlockError::Busy`]: some
/// hundred milliseconds of what a disk takes.
pub const PUT_QUEUE_BYTES: usize = 64 << 20;
/// How many reads may wait before one is answered [`BlockError::Busy`].
pub const GET_QUEUE: usize = 4096;
/// How many threads read: reads come mostly from the page cache, and a slow one should not hold up
/// all others.
pub const READERS: usize = 2;

/// Called once with what came of a put: `Ok` if the block is durable.
pub type PutDone = Box<dyn FnOnce(Result<(), BlockError>) + Send>;
/// Called when all that was put before is durable, or was refused.
pub type SettledDone = Box<dyn FnOnce() + Send>;
/// Called once with what was read.
pub type GetDone = Box<dyn FnOnce(Result<Bytes, BlockError>) + Send>;

/// The blocks of a node. Dropping it answers all that waits.
///
/// After a write or a sync has failed, that put is answered with [`BlockError::Io`] and all later
/// ones with [`BlockError::Closed`], while reads go on: the owner should stop the node.
pub struct BlockEngine {
    shared: Arc<Shared>,
    blocks: Blocks,
    threads: Vec<JoinHandle<()>>,
}

struct Put {
    block: BlockId,
    data: Bytes,
    done: PutDone,
}

struct Get {
    block: BlockId,
    offset: u32,
    len: u32,
    done: GetDone,
}

#[derive(Default)]
struct Shared {
    puts: Mutex<Puts>,
    put_came: Condvar,
    gets: Mutex<Gets>,
    get_came: Condvar,
}

#[derive(Default)]
struct Puts {
    waiting: Vec<Put>,
    /// To be called when those are durable.
    settled: Vec<SettledDone>,
    bytes: usize,
    closing: bool,
}

#[derive(Default)]
struct Gets {
    waiting: VecDeque<Get>,
    closing: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockEngine {
    /// Opens the blocks in `dir`, or makes the directory, and starts the threads.
    ///
    /// # Errors
    /// If the disk refuses, or the directory is of another version.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self, OpenError> {
        Self::open_with(disk, dir, Options { segment_bytes: SEGMENT_BYTES, salt: random_salt() })
    }

    /// As [`BlockEngine::open`], set up as told.
    ///
    /// # Errors
    /// If the disk refuses, or the directory is of another version.
    pub fn open_with(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<Self, OpenError> {
        let (store, findings) = Store::open(disk, dir, options)?;
        if let Some((file, offset)) = &findings.cut {
            tracing::warn!(file = %file.display(), offset, "blocks have a torn tail, which is cut");
        }
        for (file, offset) in &findings.damaged {
            tracing::warn!(file = %file.display(), offset, "a block here cannot be read");
        }
        let (shared, blocks) = (Arc::new(Shared::default()), store.blocks());
        let mut engine = BlockEngine { shared, blocks, threads: Vec::new() };
        let shared = engine.shared.clone();
        engine.spawn("blocks-write", dir, move || shared.write(store))?;
        for _ in 0..READERS {
            let (shared, blocks) = (engine.shared.clone(), engine.blocks.clone());
            engine.spawn("blocks-read", dir, move || shared.read(&blocks))?;
        }
        Ok(engine)
    }

    fn spawn(
        &mut self,
        name: &str,
        dir: &Path,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), BlockError> {
        let thread = Builder::new().name(name.into()).spawn(run).map_err(|source| {
            let (action, path) = ("start the threads of", dir.to_owned());
            BlockError::Io { action, path, source: Arc::new(source) }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Stores a block; `done` is called when it is durable, or cannot be.
    pub fn put(&self, block: BlockId, data: Bytes, done: PutDone) {
        let mut puts = lock(&self.shared.puts);
        if puts.bytes + data.len() > PUT_QUEUE_BYTES {
            drop(puts);
            return done(Err(BlockError::Busy));
        }
        puts.bytes += data.len();
        puts.waiting.push(Put { block, data, done });
        drop(puts);
        self.shared.put_came.notify_one();
    }

    /// Calls `done` when all that was put before is durable or was refused; never if the disk
    /// fails.
    pub fn settled(&self, done: SettledDone) {
        lock(&self.shared.puts).settled.push(done);
        self.shared.put_came.notify_one();
    }

    /// Whether a block is here, durable or not yet.
    pub fn holds(&self, block: BlockId) -> bool {
        self.blocks.holds(block)
    }

    /// Reads `len` bytes of a block from `offset` on, or fewer where it ends.
    pub fn get(&self, block: BlockId, offset: u32, len: u32, done: GetDone) {
        let mut gets = lock(&self.shared.gets);
        if gets.waiting.len() >= GET_QUEUE {
            drop(gets);
            return done(Err(BlockError::Busy));
        }
        gets.waiting.push_back(Get { block, offset, len, done });
        drop(gets);
        self.shared.get_came.notify_one();
    }

    /// The names of the blocks after `after`, in order, `limit` at most.
    pub fn names(&self, after: Option<BlockId>, limit: usize) -> Vec<BlockId> {
        self.blocks.names(after, limit)
    }

    /// How much is held.
    pub fn counters(&self) -> Counters {
        self.blocks.counters()
    }
}

impl Drop for BlockEngine {
    fn drop(&mut self) {
        lock(&self.shared.puts).closing = true;
        lock(&self.shared.gets).closing = true;
        self.shared.put_came.notify_all();
        self.shared.get_came.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // Why it panicked it has said itself.
        }
    }
}

impl Shared {
    /// All puts that wait, and who waits for them; `None` when there will be no more.
    fn take_puts(&self) -> Option<(Vec<Put>, Vec<SettledDone>)> {
        let mut puts = lock(&self.puts);
        while puts.waiting.is_empty() && puts.settled.is_empty() {
            if puts.closing {
                return None;
            }
            puts = self.put_came.wait(puts).unwrap_or_else(PoisonError::into_inner);
        }
        puts.bytes = 0;
        Some((std::mem::take(&mut puts.waiting), std::mem::take(&mut puts.settled)))
    }

    fn take_get(&self) -> Option<Get> {
        let mut gets = lock(&self.gets);
        loop {
            if let Some(get) = gets.waiting.pop_front() {
                return Some(get);
            }
            if gets.closing {
                return None;
            }
            gets = self.get_came.wait(gets).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write(&self, mut store: Store) {
        while let Some((puts, settled)) = self.take_puts() {
            let appended: Vec<_> = puts
                .into_iter()
                .map(|Put { block, data, done }| (store.put(block, &data), done))
                .collect();
            let synced = store.sync();
            for (result, done) in appended {
                done(result.and_then(|()| synced.clone()));
            }
            if synced.is_ok() {
                settled.into_iter().for_each(|done| done());
            }
        }
    }

    fn read(&self, blocks: &Blocks) {
        while let Some(Get { block, offset, len, done }) = self.take_get() {
            done(blocks.get(block, offset, len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_storage::RealDisk;
    use meridian_storage::SimDisk;
    use std::sync::mpsc::channel;

    fn open(disk: Arc<dyn Disk>, dir: &Path) -> BlockEngine {
        BlockEngine::open_with(disk, dir, Options { segment_bytes: 1 << 16, salt: 5 }).unwrap()
    }

    fn put(engine: &BlockEngine, block: u128, data: Vec<u8>) -> Result<(), BlockError> {
        let (sender, answer) = channel();
        let done = Box::new(move |result| sender.send(result).unwrap());
        engine.put(BlockId(block), data.into(), done);
        answer.recv().unwrap()
    }

    fn get(engine: &BlockEngine, block: u128, offset: u32, len: u32) -> Result<Bytes, BlockError> {
        let (sender, answer) = channel();
        let done = Box::new(move |result| sender.send(result).unwrap());
        engine.get(BlockId(block), offset, len, done);
        answer.recv().unwrap()
    }

    #[test]
    fn blocks_are_stored_by_many_and_read_after_a_restart() {
        let temp = tempfile::tempdir().unwrap();
        let engine = open(Arc::new(RealDisk), temp.path());
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let engine = &engine;
                scope.spawn(move || {
                    for block in 0..25 {
                        let name = u128::from(writer) * 100 + block;
                        put(engine, name, vec![writer; 5_000]).unwrap();
                        assert_eq!(get(engine, name, 4_990, 100).unwrap(), vec![writer; 10]);
                    }
                });
            }
        });
        drop(engine);
        let engine = open(Arc::new(RealDisk), temp.path());
        assert_eq!(engine.counters(), Counters { blocks: 100, bytes: 500_000 });
        let (first, rest) = (engine.names(None, 30), engine.names(Some(BlockId(104)), 100));
        assert_eq!((first.len(), first[29], rest.len()), (30, BlockId(104), 70));
        for writer in 0..4u8 {
            assert_eq!(get(&engine, u128::from(writer) * 100 + 7, 0, 3).unwrap(), vec![writer; 3]);
        }
        assert!(matches!(get(&engine, 99, 0, 1), Err(BlockError::NoBlock(BlockId(99)))));
    }

    /// Who is told that all is settled is told so after the puts before, which are durable.
    #[test]
    fn what_was_put_before_is_durable_when_all_is_settled() {
        let disk = SimDisk::new();
        let engine = open(Arc::new(disk.clone()), Path::new("/blocks"));
        let (sender, answers) = channel();
        for block in 0..20 {
            let sender = sender.clone();
            let done = Box::new(move |result: Result<(), _>| sender.send(result.is_ok()).unwrap());
            engine.put(BlockId(block), vec![1; 100].into(), done);
        }
        let (settle, settled) = channel();
        engine.settled(Box::new(move || settle.send(()).unwrap()));
        settled.recv().unwrap();
        assert_eq!(answers.try_iter().filter(|stored| *stored).count(), 20);
        assert!(engine.holds(BlockId(19)) && !engine.holds(BlockId(20)));
        disk.fail_sync_at(disk.syncs() + 1);
        assert!(put(&engine, 20, vec![1; 10]).is_err());
        let (settle, settled) = channel::<()>();
        engine.settled(Box::new(move || settle.send(()).unwrap()));
        assert!(settled.recv().is_err(), "nothing is known to be durable any more");
    }

    #[test]
    fn a_full_disk_refuses_puts_and_still_reads() {
        let disk = SimDisk::new();
        let engine = open(Arc::new(disk.clone()), Path::new("/blocks"));
        disk.set_capacity(Some(100_000));
        let stored = (0..).take_while(|block| put(&engine, *block, vec![1; 5_000]).is_ok()).count();
        assert!(stored > 5);
        assert!(matches!(put(&engine, 1_000, vec![1; 5_000]), Err(BlockError::Full)));
        assert_eq!(get(&engine, 3, 0, 9).unwrap(), vec![1; 9]);
        disk.set_capacity(None);
        put(&engine, 1_000, vec![1; 5_000]).unwrap();
    }

    #[test]
    fn after_a_failed_sync_nothing_is_stored_any_more() {
        let disk = SimDisk::new();
        let engine = open(Arc::new(disk.clone()), Path::new("/blocks"));
        put(&engine, 1, vec![1; 10]).unwrap();
        disk.fail_sync_at(disk.syncs() + 1);
        assert!(matches!(put(&engine, 2, vec![1; 10]), Err(BlockError::Io { .. })));
        assert!(matches!(put(&engine, 3, vec![1; 10]), Err(BlockError::Closed)));
        assert_eq!(get(&engine, 1, 0, 10).unwrap(), vec![1; 10]);
    }
}
