//! The blocks of a node, without waiting for the disk: threads around [`meridian_blocks::desk`].
//!
//! One thread writes: it takes all writes that wait, appends them, syncs once and answers them all.
//! [`READERS`] threads read, and tell the disk which long blocks are read next
//! (decision 106). Answers are given on these threads.

use meridian_blocks::desk::{Answer, Next, Read, Write, Writer};
use meridian_blocks::store::reach::Reach;
use meridian_blocks::store::{Blocks, OpenError, Options};
use meridian_blocks::{BlockError, Store};
use meridian_core::BlockId;
use meridian_host::space::LEAST_BYTES;
use meridian_runtime::journal::describe;
use meridian_storage::Disk;
use meridian_storage::real_disk::random_salt;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

/// How long a segment becomes, in bytes.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// So many bytes of the disk are not for blocks: a log has up to four segments of 32 MiB, and makes
/// the next before it removes the first. Half of it, for blocks that are moved, is more than
/// [`LEAST_BYTES`]: segments are emptied while updates are taken.
pub const RESERVE_BYTES: u64 = 3 * LEAST_BYTES;
/// So many bytes more at most on a large disk, of which a 64th is kept: a large tree takes its
/// length twice while a checkpoint is written.
const RESERVE_MORE: u64 = 4 << 30;
/// How much may wait to be written, in bytes, before a put is answered [`BlockError::Busy`]: some
/// hundred milliseconds of what a disk takes.
pub const WRITE_QUEUE_BYTES: usize = 64 << 20;
/// How many reads may wait before one is answered [`BlockError::Busy`].
pub const READ_QUEUE: usize = 4096;
/// How many threads read: reads come mostly from the page cache, and a slow one should not hold up
/// all others.
pub const READERS: usize = 2;
/// So many reads the disk knows of: a disk does more with some requests at a time, and more than a
/// client reads ahead (8 MiB) from one node there seldom are.
pub const TOLD_MAX: usize = 8;

/// Called with each answer, on any thread; and with nothing when a write has failed.
pub type Tell = Arc<dyn Fn(Option<Answer>) + Send + Sync>;

/// The blocks of a node. Dropping it answers all that waits.
///
/// After a write or a sync has failed, that put is refused and so are all later ones, while reads
/// go on: the owner should stop the node.
pub struct BlockEngine {
    shared: Arc<Shared>,
    blocks: Blocks,
    found: Reach,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    writes: Mutex<Writes>,
    write_came: Condvar,
    reads: Mutex<Reads>,
    read_came: Condvar,
    failed: OnceLock<String>,
    tell: Tell,
}

#[derive(Default)]
struct Writes {
    waiting: Vec<Write>,
    bytes: usize,
    closing: bool,
}

#[derive(Default)]
struct Reads {
    waiting: VecDeque<Read>,
    /// The disk knows of so many of them, the first.
    told: usize,
    closing: bool,
}

impl Reads {
    /// See [`Shared::take_read`].
    fn take(&mut self) -> Option<(Read, Vec<BlockId>)> {
        let to = self.waiting.len().min(TOLD_MAX);
        let soon = self.waiting.range(self.told.min(to)..to).filter_map(Read::block).collect();
        let read = self.waiting.pop_front()?;
        self.told = self.told.max(to) - 1;
        Some((read, soon))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockEngine {
    /// Opens the blocks in `dir`, or makes the directory, and starts the threads.
    ///
    /// # Errors
    /// If the disk refuses, or the directory is of another version.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, tell: Tell) -> Result<Self, OpenError> {
        // If the disk does not tell, the first block will say so.
        let total = disk.room(dir.parent().unwrap_or(dir)).map_or(0, |room| room.total);
        let reserve_bytes = RESERVE_BYTES + (total / 64).min(RESERVE_MORE);
        let options = Options { segment_bytes: SEGMENT_BYTES, salt: random_salt(), reserve_bytes };
        Self::open_with(disk, dir, options, tell)
    }

    /// As [`BlockEngine::open`], set up as told.
    ///
    /// # Errors
    /// If the disk refuses, or the directory is of another version.
    pub fn open_with(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
        tell: Tell,
    ) -> Result<Self, OpenError> {
        let (store, findings) = Store::open(disk, dir, options)?;
        if let Some((file, offset)) = &findings.cut {
            tracing::warn!(file = %file.display(), offset, "blocks have a torn tail, which is cut");
        }
        for (file, offset) in &findings.damaged {
            tracing::warn!(file = %file.display(), offset, "a block here cannot be read");
        }
        let (shared, blocks) = (Arc::new(Shared::new(tell)), store.blocks());
        let found = findings.reach;
        let mut engine = BlockEngine { shared, blocks, found, threads: Vec::new() };
        let shared = engine.shared.clone();
        engine.spawn("blocks-write", dir, move || shared.write(Writer::new(store)))?;
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

    /// Does what is needed. The answer is told, now or later.
    pub fn go_on(&self, next: Next) {
        self.shared.go_on(next);
    }

    /// How far records went when it was opened.
    pub fn found(&self) -> Reach {
        self.found
    }

    /// The blocks, to be looked at without waiting.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Why nothing can be stored any more, if a write has failed: the server has to stop.
    pub fn failed(&self) -> Option<&str> {
        self.shared.failed.get().map(String::as_str)
    }
}

impl Drop for BlockEngine {
    fn drop(&mut self) {
        lock(&self.shared.writes).closing = true;
        lock(&self.shared.reads).closing = true;
        self.shared.write_came.notify_all();
        self.shared.read_came.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // Why it panicked it has said itself.
        }
    }
}

impl Shared {
    fn new(tell: Tell) -> Shared {
        Shared {
            writes: Mutex::default(),
            write_came: Condvar::new(),
            reads: Mutex::default(),
            read_came: Condvar::new(),
            failed: OnceLock::new(),
            tell,
        }
    }

    fn go_on(&self, next: Next) {
        match next {
            Next::Answer(answer) => (self.tell)(Some(answer)),
            Next::Write(write) => self.queue_write(write),
            Next::Read(read) => self.queue_read(read),
        }
    }

    fn queue_write(&self, write: Write) {
        let mut writes = lock(&self.writes);
        let len = write.len_bytes();
        if len > 0 && writes.bytes + len > WRITE_QUEUE_BYTES {
            drop(writes);
            if let Some(next) = write.end(Err(BlockError::Busy)) {
                self.go_on(next);
            }
            return;
        }
        writes.bytes += len;
        writes.waiting.push(write);
        drop(writes);
        self.write_came.notify_one();
    }

    fn queue_read(&self, read: Read) {
        let mut reads = lock(&self.reads);
        if reads.waiting.len() >= READ_QUEUE {
            drop(reads);
            return (self.tell)(read.refuse());
        }
        reads.waiting.push_back(read);
        drop(reads);
        self.read_came.notify_one();
    }

    /// All writes that wait; `None` when there will be no more. Who has something else to do does
    /// not wait for one.
    fn take_writes(&self, is_busy: bool) -> Option<Vec<Write>> {
        let mut writes = lock(&self.writes);
        while writes.waiting.is_empty() {
            if writes.closing {
                return None;
            }
            if is_busy {
                break;
            }
            writes = self.write_came.wait(writes).unwrap_or_else(PoisonError::into_inner);
        }
        writes.bytes = 0;
        Some(std::mem::take(&mut writes.waiting))
    }

    /// The next read, and the blocks that the disk is to be told of.
    fn take_read(&self) -> Option<(Read, Vec<BlockId>)> {
        let mut reads = lock(&self.reads);
        loop {
            if let Some(next) = reads.take() {
                return Some(next);
            }
            if reads.closing {
                return None;
            }
            reads = self.read_came.wait(reads).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write(&self, mut writer: Writer) {
        while let Some(writes) = self.take_writes(writer.is_untidy()) {
            writer.append(writes);
            let ended = writer.sync();
            if let Some(error) = writer.failed() {
                self.failed.get_or_init(|| describe(error));
                (self.tell)(None);
            }
            ended.into_iter().for_each(|next| self.go_on(next));
        }
    }

    fn read(&self, blocks: &Blocks) {
        while let Some((read, soon)) = self.take_read() {
            soon.into_iter().for_each(|block| blocks.will_read(block));
            (self.tell)(Some(read.run(blocks)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use meridian_blocks::Counters;
    use meridian_blocks::desk::{Asker, Sender};
    use meridian_host::ConnectionId;
    use meridian_host::api::{Refusal, ReplyBody};
    use meridian_host::drain;
    use meridian_storage::RealDisk;
    use meridian_storage::SimDisk;
    use std::collections::BTreeMap;
    use std::sync::mpsc::{Sender as Channel, channel};

    /// An engine, and who waits for the answers: by the number of the request, or (0) for those of
    /// the node.
    struct Engine {
        engine: BlockEngine,
        waiting: Arc<Mutex<BTreeMap<u64, Channel<Answer>>>>,
        asked: std::sync::atomic::AtomicU64,
    }

    fn open(disk: Arc<dyn Disk>, dir: &Path) -> Engine {
        let waiting: Arc<Mutex<BTreeMap<u64, Channel<Answer>>>> = Arc::default();
        let told = waiting.clone();
        let tell = move |answer: Option<Answer>| {
            let Some(answer) = answer else { return };
            let id = if let Answer::Client(_, reply) = &answer { reply.id } else { 0 };
            let _ = lock(&told)[&id].send(answer);
        };
        let options = Options { segment_bytes: 1 << 16, salt: 5, reserve_bytes: 0 };
        let engine = BlockEngine::open_with(disk, dir, options, Arc::new(tell)).unwrap();
        Engine { engine, waiting, asked: Default::default() }
    }

    impl Engine {
        fn ask(&self, next: impl FnOnce(Asker) -> Next) -> ReplyBody {
            let id = 1 + self.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (sender, answer) = channel();
            lock(&self.waiting).insert(id, sender);
            self.engine.go_on(next(Asker { connection: ConnectionId(1), id }));
            let Answer::Client(_, reply) = answer.recv().unwrap() else { panic!("to the node") };
            lock(&self.waiting).remove(&id);
            reply.body
        }

        fn put(&self, block: u128, data: Vec<u8>) -> ReplyBody {
            let (block, data) = (BlockId(block), data.into());
            self.ask(|by| Next::Write(Write::Put { from: Sender::Client(by), block, data }))
        }

        fn get(&self, block: u128, offset: u32, len: u32) -> ReplyBody {
            let block = BlockId(block);
            self.ask(|by| Next::Read(Read::Part { by, block, offset, len }))
        }
    }

    fn block(bytes: &[u8]) -> ReplyBody {
        ReplyBody::Block(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn blocks_are_stored_by_many_and_read_after_a_restart() {
        let temp = tempfile::tempdir().unwrap();
        let engine = open(Arc::new(RealDisk), temp.path());
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let engine = &engine;
                scope.spawn(move || {
                    for at in 0..25 {
                        let name = u128::from(writer) * 100 + at;
                        assert_eq!(engine.put(name, vec![writer; 5_000]), ReplyBody::Stored);
                        assert_eq!(engine.get(name, 4_990, 100), block(&[writer; 10]));
                    }
                });
            }
        });
        drop(engine);
        let engine = open(Arc::new(RealDisk), temp.path());
        let blocks = engine.engine.blocks();
        assert_eq!(blocks.counters(), Counters { blocks: 100, bytes: 500_000 });
        let (first, rest) = (blocks.names(None, 30), blocks.names(Some(BlockId(104)), 100));
        assert_eq!((first.len(), first[29], rest.len()), (30, BlockId(104), 70));
        for writer in 0..4u8 {
            assert_eq!(engine.get(u128::from(writer) * 100 + 7, 0, 3), block(&[writer; 3]));
        }
        assert_eq!(engine.get(99, 0, 1), ReplyBody::Refused(Refusal::NoBlock(BlockId(99))));
    }

    /// Who is told that all is settled is told so after the puts before, which are durable.
    #[test]
    fn what_was_put_before_is_durable_when_all_is_settled() {
        let disk = SimDisk::new();
        let engine = open(Arc::new(disk.clone()), Path::new("/blocks"));
        let (sender, answers) = channel();
        lock(&engine.waiting).insert(0, sender);
        for at in 0..20 {
            let (block, data) = (BlockId(at), vec![1; 100].into());
            let from = Sender::Node(meridian_core::NodeId(2));
            engine.engine.go_on(Next::Write(Write::Put { from, block, data }));
        }
        let sealed = || Box::new(Next::Answer(Answer::Node(drain::Command::Sealed)));
        engine.engine.go_on(Next::Write(Write::Settle(sealed())));
        let stored = |answer: &Answer| {
            matches!(answer, Answer::Node(drain::Command::Stored { stored: true, .. }))
        };
        assert!(answers.iter().take(20).all(|answer| stored(&answer)));
        assert_eq!(answers.recv().unwrap(), Answer::Node(drain::Command::Sealed));
        assert!(engine.engine.blocks().holds(BlockId(19)));
        disk.fail_sync_at(disk.syncs() + 1);
        assert!(matches!(engine.put(20, vec![1; 10]), ReplyBody::Refused(Refusal::Disk(_))));
        engine.engine.go_on(Next::Write(Write::Settle(sealed())));
        assert!(matches!(engine.put(21, vec![1; 10]), ReplyBody::Refused(Refusal::Disk(_))));
        assert!(answers.try_recv().is_err(), "nothing is known to be durable any more");
    }

    /// Each is told of once, before it is read.
    #[test]
    fn the_disk_is_told_of_what_is_read_next() {
        let part = |at: usize| {
            let by = Asker { connection: ConnectionId(1), id: at as u64 };
            Read::Part { by, block: BlockId(at as u128), offset: 0, len: 1 }
        };
        let mut reads = Reads::default();
        assert_eq!(reads.take(), None);
        reads.waiting.extend((0..TOLD_MAX + 3).map(part));
        let mut told = 0;
        for at in 0..TOLD_MAX + 5 {
            if at == 4 {
                reads.waiting.extend((TOLD_MAX + 3..TOLD_MAX + 5).map(part));
            }
            let (read, soon) = reads.take().unwrap();
            assert_eq!(read, part(at));
            let next = told..told + soon.len();
            assert!(next.clone().map(|at| BlockId(at as u128)).eq(soon));
            told = next.end;
            assert_eq!(told, (at + TOLD_MAX).min(TOLD_MAX + 5));
        }
        reads.waiting.extend([Read::Room, part(1)]);
        assert_eq!(reads.take(), Some((Read::Room, vec![BlockId(1)])));
        assert_eq!(reads.take(), Some((part(1), Vec::new())));
        assert_eq!(reads.take(), None);
    }

    #[test]
    fn a_full_disk_refuses_puts_and_still_reads() {
        let disk = SimDisk::new();
        let engine = open(Arc::new(disk.clone()), Path::new("/blocks"));
        disk.set_capacity(Some(100_000));
        let put = |at: &u128| engine.put(*at, vec![1; 5_000]) == ReplyBody::Stored;
        assert!((0..).take_while(put).count() > 5);
        assert_eq!(engine.put(1_000, vec![1; 5_000]), ReplyBody::Refused(Refusal::Full));
        assert_eq!(engine.get(3, 0, 9), block(&[1; 9]));
        assert_eq!(engine.engine.failed(), None);
        disk.set_capacity(None);
        assert_eq!(engine.put(1_000, vec![1; 5_000]), ReplyBody::Stored);
    }

    #[test]
    fn after_a_failed_sync_nothing_is_stored_any_more() {
        let disk = SimDisk::new();
        let engine = open(Arc::new(disk.clone()), Path::new("/blocks"));
        assert_eq!(engine.put(1, vec![1; 10]), ReplyBody::Stored);
        disk.fail_sync_at(disk.syncs() + 1);
        assert!(matches!(engine.put(2, vec![1; 10]), ReplyBody::Refused(Refusal::Disk(_))));
        assert!(matches!(engine.put(3, vec![1; 10]), ReplyBody::Refused(Refusal::Disk(_))));
        assert!(engine.engine.failed().is_some_and(|why| why.contains("sync")));
        assert_eq!(engine.get(1, 0, 10), block(&[1; 10]));
    }
}
