//! What a node answers with its blocks: to clients, and to the part of it that drains nodes.
//!
//! Nothing here waits or has a thread. [`on_client`] and [`on_drain`] say what a question needs of
//! the disk; a [`Writer`] and [`Read::run`] do that, and say what is answered. The server runs them
//! on threads, the simulator in virtual time.
//!
//! Invariants:
//! - K1: that a block is stored, or that all is settled, is said after a sync that covers it.
//! - K2: after a failed write or sync nothing is said to be stored or settled any more.
//! - K3: a node that drains, or helps, is told of a block that it is held here only after its data
//!   was read and checked.

use crate::store::{BlockError, Blocks, Store};
use bytes::Bytes;
use meridian_core::{BlockId, NodeId};
use meridian_host::api::{NAMES_MAX, Refusal, Reply, ReplyBody, RequestBody};
use meridian_host::{ConnectionId, drain, space};
use meridian_storage::Room;

/// So many bytes of blocks are moved with one sync: what a disk takes in some milliseconds.
const MOVED_MAX: u64 = 1 << 20;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Its connection.
    pub connection: ConnectionId,
    /// [`meridian_host::api::Request::id`].
    pub id: u64,
}

/// Who sent a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A client.
    Client(Asker),
    /// A node of which this one is to hold a copy.
    Node(NodeId),
}

/// Something to be made durable, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A block.
    Put {
        /// Who is answered.
        from: Sender,
        /// Its name.
        block: BlockId,
        /// All of it.
        data: Bytes,
    },
    /// This is next when all before is durable, or was refused.
    Settle(Box<Next>),
    /// No file names these blocks, and none ever will.
    Free(Vec<BlockId>),
}

/// Something to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A part of a block, for a client.
    Part {
        /// Who is answered.
        by: Asker,
        /// The block.
        block: BlockId,
        /// From this byte.
        offset: u32,
        /// So many.
        len: u32,
    },
    /// A block, to be copied: see [`drain::Output::Read`].
    Whole {
        /// The block.
        block: BlockId,
        /// To be given back.
        to: Option<NodeId>,
    },
    /// How much room the disk has: see [`space::Output::Measure`].
    Room,
    /// Which of these can be read: see [`drain::Output::Which`].
    Check {
        /// Who asks.
        by: NodeId,
        /// To be given back.
        number: u64,
        /// To be given back.
        version: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// Those of these that are here: see [`drain::Output::Scrub`].
    Scrub {
        /// To be given back.
        number: u64,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
}

/// What is said, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a client.
    Client(ConnectionId, Reply),
    /// To the node's process.
    Node(drain::Command),
    /// To what frees blocks.
    Space(space::Command),
}

/// What a question needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: this is the answer.
    Answer(Answer),
    /// A write.
    Write(Write),
    /// A read.
    Read(Read),
}

impl Asker {
    /// The answer to it.
    pub fn answer(self, body: ReplyBody) -> Answer {
        Answer::Client(self.connection, Reply { id: self.id, body })
    }

    fn refuse(self, error: &BlockError) -> Answer {
        self.answer(ReplyBody::Refused(refusal(error)))
    }
}

/// A client asks for something; `takes_blocks` says whether the node still does.
///
/// # Errors
/// The question, if it is not about blocks.
pub fn on_client(
    blocks: &Blocks,
    takes_blocks: bool,
    by: Asker,
    body: RequestBody,
) -> Result<Next, Box<RequestBody>> {
    Ok(match body {
        RequestBody::PutBlock { .. } if !takes_blocks => {
            Next::Answer(by.answer(ReplyBody::Refused(Refusal::Draining)))
        }
        RequestBody::PutBlock { block, data } => {
            Next::Write(Write::Put { from: Sender::Client(by), block, data })
        }
        RequestBody::GetBlock { block, offset, len } => {
            Next::Read(Read::Part { by, block, offset, len })
        }
        RequestBody::ListBlocks { after } => {
            Next::Answer(by.answer(ReplyBody::Blocks(blocks.names(after, NAMES_MAX))))
        }
        body @ (RequestBody::Update { .. }
        | RequestBody::Read { .. }
        | RequestBody::UpdateAlong { .. }
        | RequestBody::ReadAlong { .. }
        | RequestBody::Recalls { .. }
        | RequestBody::Discard { .. }
        | RequestBody::Snapshot { .. }
        | RequestBody::Scrub
        | RequestBody::Steps { .. }
        | RequestBody::Status) => return Err(Box::new(body)),
    })
}

/// The node's process wants something of the blocks; `None` for [`drain::Output::Drained`] and
/// [`drain::Output::Live`], which are for the configuration and for the trees.
pub fn on_drain(blocks: &Blocks, output: drain::Output) -> Option<Next> {
    Some(match output {
        drain::Output::List { number, after } => {
            let blocks = blocks.names(after, drain::PAGE);
            Next::Answer(Answer::Node(drain::Command::Names { number, blocks }))
        }
        drain::Output::Which { by, number, version, blocks: mut asked } => {
            asked.retain(|block| blocks.holds(*block));
            let check = Read::Check { by, number, version, blocks: asked };
            Next::Write(Write::Settle(Box::new(Next::Read(check))))
        }
        drain::Output::Read { block, to } => Next::Read(Read::Whole { block, to }),
        drain::Output::Store { from, block, data } => {
            Next::Write(Write::Put { from: Sender::Node(from), block, data })
        }
        drain::Output::Seal => {
            let sealed = Next::Answer(Answer::Node(drain::Command::Sealed));
            Next::Write(Write::Settle(Box::new(sealed)))
        }
        drain::Output::Look { number, blocks: mut asked } => {
            asked.retain(|block| !blocks.holds(*block));
            Next::Answer(Answer::Node(drain::Command::Lacking { number, blocks: asked }))
        }
        drain::Output::Scrub { number, blocks } => Next::Read(Read::Scrub { number, blocks }),
        drain::Output::GiveUp(blocks) => Next::Write(Write::Free(blocks)),
        drain::Output::Drained { .. } | drain::Output::Live { .. } => return None,
    })
}

/// What frees blocks wants something.
pub fn on_space(blocks: &Blocks, output: space::Output) -> Next {
    match output {
        space::Output::List { number, after } => {
            let blocks = blocks.names(after, space::PAGE);
            Next::Answer(Answer::Space(space::Command::Names { number, blocks }))
        }
        space::Output::Measure => Next::Read(Read::Room),
        space::Output::Free(blocks) => Next::Write(Write::Free(blocks)),
    }
}

impl Write {
    /// How many bytes it keeps busy until it is written.
    pub fn len_bytes(&self) -> usize {
        match self {
            Write::Put { data, .. } => data.len(),
            Write::Settle(_) | Write::Free(_) => 0,
        }
    }

    /// What is next now that it was written, or was not. Nobody is told that all is settled if it
    /// is not: whoever waits for that waits until the node starts again.
    pub fn end(self, result: Result<(), BlockError>) -> Option<Next> {
        match (self, result) {
            (Write::Put { from: Sender::Client(by), .. }, result) => {
                Some(Next::Answer(match result {
                    Ok(()) => by.answer(ReplyBody::Stored),
                    Err(error) => by.refuse(&error),
                }))
            }
            (Write::Put { from: Sender::Node(from), block, .. }, result) => {
                let stored = result.is_ok();
                Some(Next::Answer(Answer::Node(drain::Command::Stored { from, block, stored })))
            }
            (Write::Settle(next), Ok(())) => Some(*next),
            (Write::Settle(_), Err(_)) | (Write::Free(_), _) => None,
        }
    }
}

impl Read {
    /// Reads it.
    pub fn run(self, blocks: &Blocks) -> Answer {
        match self {
            Read::Part { by, block, offset, len } => match blocks.get(block, offset, len) {
                Ok(data) => by.answer(ReplyBody::Block(data)),
                Err(error) => by.refuse(&error),
            },
            Read::Whole { block, to } => {
                let data = blocks.get(block, 0, u32::MAX).ok();
                Answer::Node(drain::Command::Data { block, to, data })
            }
            Read::Room => {
                let room = blocks.room().ok().map(|Room { free, total, device }| space::Room {
                    free,
                    writable: blocks.writable(free),
                    total,
                    device,
                });
                Answer::Space(space::Command::Room(room))
            }
            Read::Check { by, number, version, blocks: asked } => {
                let (asked, damaged): (Vec<_>, Vec<_>) =
                    asked.into_iter().partition(|block| blocks.is_sound(*block));
                let damaged = damaged.into_iter().filter(|block| blocks.holds(*block)).collect();
                let held = drain::Command::Held { by, number, version, blocks: asked, damaged };
                Answer::Node(held)
            }
            Read::Scrub { number, blocks: asked } => Answer::Node(scrub(blocks, number, asked)),
        }
    }

    /// The block that is read, if it is one.
    pub fn block(&self) -> Option<BlockId> {
        match self {
            Read::Part { block, .. } | Read::Whole { block, .. } => Some(*block),
            Read::Room | Read::Check { .. } | Read::Scrub { .. } => None,
        }
    }

    /// What is said as too much waits already. Who asks what is held asks again.
    pub fn refuse(self) -> Option<Answer> {
        match self {
            Read::Part { by, .. } => Some(by.refuse(&BlockError::Busy)),
            Read::Whole { block, to } => {
                Some(Answer::Node(drain::Command::Data { block, to, data: None }))
            }
            Read::Scrub { number, .. } => {
                let (bytes, damaged) = (0, Vec::new());
                Some(Answer::Node(drain::Command::Scrubbed { number, bytes, damaged }))
            }
            Read::Room | Read::Check { .. } => None,
        }
    }
}

/// Reads blocks that are here; what is not is looked for elsewhere.
fn scrub(blocks: &Blocks, number: u64, asked: Vec<BlockId>) -> drain::Command {
    let (mut bytes, mut damaged) = (0, Vec::new());
    for block in asked {
        blocks.will_read(block);
        match blocks.get(block, 0, u32::MAX) {
            Ok(data) => bytes += data.len() as u64,
            Err(BlockError::Damaged(_) | BlockError::Io { .. }) => damaged.push(block),
            Err(_) => {}
        }
    }
    drain::Command::Scrubbed { number, bytes, damaged }
}

/// What the node's process is to hear of an answer to a client: that a block is damaged here.
pub fn damage(answer: &Answer) -> Option<drain::Command> {
    match answer {
        Answer::Client(_, Reply { body: ReplyBody::Refused(Refusal::Damaged(block)), .. }) => {
            Some(drain::Command::Damaged(*block))
        }
        Answer::Client(..) | Answer::Node(_) | Answer::Space(_) => None,
    }
}

/// Takes writes in batches, each made durable by one sync.
pub struct Writer {
    store: Store,
    /// What was appended since the last sync.
    batch: Vec<(Write, Result<(), BlockError>)>,
    failed: Option<BlockError>,
}

impl Writer {
    /// The writer of this store.
    pub fn new(store: Store) -> Writer {
        Writer { store, batch: Vec::new(), failed: None }
    }

    /// The blocks, to be read by any thread.
    pub fn blocks(&self) -> Blocks {
        self.store.blocks()
    }

    /// Why nothing can be stored any more, if a write has failed: the node has to stop.
    pub fn failed(&self) -> Option<&BlockError> {
        self.failed.as_ref()
    }

    /// Appends what is to be written; the answers come from [`Writer::sync`].
    pub fn append(&mut self, writes: impl IntoIterator<Item = Write>) {
        for write in writes {
            let result = match &write {
                Write::Put { block, data, .. } => self.store.put(*block, data),
                Write::Settle(_) => Ok(()),
                Write::Free(blocks) => {
                    self.store.free(blocks.iter().copied());
                    Ok(())
                }
            };
            self.note(&result);
            self.batch.push((write, result));
        }
    }

    /// Whether [`Writer::sync`] has something to do though nothing was appended: the room of freed
    /// blocks comes back in steps, between which others are served.
    pub fn is_untidy(&self) -> bool {
        self.store.is_untidy()
    }

    /// Makes durable what was appended, with some of what is left in segments that are half empty.
    /// What is next.
    pub fn sync(&mut self) -> Vec<Next> {
        let moved = self.store.move_some(MOVED_MAX);
        self.note(&moved);
        let synced = self.store.sync();
        self.note(&synced);
        let removed = self.store.remove_empty();
        self.note(&removed);
        let batch = std::mem::take(&mut self.batch).into_iter();
        let end = |(write, result): (Write, Result<(), BlockError>)| {
            write.end(result.and_then(|()| synced.clone()))
        };
        batch.filter_map(end).collect()
    }

    fn note(&mut self, result: &Result<(), BlockError>) {
        if let Err(error @ (BlockError::Closed | BlockError::Io { .. })) = result {
            self.failed.get_or_insert_with(|| error.clone());
        }
    }
}

fn refusal(error: &BlockError) -> Refusal {
    match error {
        BlockError::NoBlock(block) => Refusal::NoBlock(*block),
        BlockError::Damaged(block) => Refusal::Damaged(*block),
        BlockError::Length(_) => Refusal::Bad(error.to_string()),
        BlockError::Busy => Refusal::Overloaded,
        BlockError::Full => Refusal::Full,
        BlockError::Closed => Refusal::Disk(error.to_string()),
        BlockError::Io { source, .. } => Refusal::Disk(format!("{error}: {source}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Options;
    use meridian_storage::SimDisk;
    use std::path::Path;
    use std::sync::Arc;

    const BY: Asker = Asker { connection: ConnectionId(1), id: 7 };

    fn writer(disk: &SimDisk) -> Writer {
        let options = Options { segment_bytes: 4096, salt: 5, reserve_bytes: 0 };
        let opened = Store::open(Arc::new(disk.clone()), Path::new("/blocks"), options);
        Writer::new(opened.unwrap().0)
    }

    fn put(block: u128) -> Write {
        Write::Put { from: Sender::Client(BY), block: BlockId(block), data: vec![1; 100].into() }
    }

    /// K1 and K2.
    #[test]
    fn what_is_said_to_be_stored_or_settled_is_durable() {
        let disk = SimDisk::new();
        let mut writer = writer(&disk);
        let sealed = || Next::Answer(Answer::Node(drain::Command::Sealed));
        let settle = || Write::Settle(Box::new(sealed()));
        writer.append([put(1), settle()]);
        let stored = Next::Answer(BY.answer(ReplyBody::Stored));
        assert_eq!(writer.sync(), [stored, sealed()]);
        disk.fail_sync_at(disk.syncs() + 1);
        writer.append([put(2), settle()]);
        let refused = |next: &[Next]| {
            let [Next::Answer(Answer::Client(_, Reply { body, .. }))] = next else { return false };
            matches!(body, ReplyBody::Refused(Refusal::Disk(_)))
        };
        assert!(refused(&writer.sync()), "nobody is told of what is not settled");
        assert!(writer.failed().is_some());
        writer.append([put(3)]);
        assert!(refused(&writer.sync()));
        let read = Read::Part { by: BY, block: BlockId(1), offset: 90, len: 20 };
        let found = read.run(&writer.blocks());
        assert_eq!(found, BY.answer(ReplyBody::Block(vec![1; 10].into())));
    }

    /// K3.
    #[test]
    fn a_damaged_block_is_not_said_to_be_held() {
        let disk = SimDisk::new();
        let mut writer = writer(&disk);
        writer.append([put(1), put(2)]);
        writer.sync();
        disk.flip(Path::new("/blocks/blocks-0000000000000001"), 60, 3);
        let (by, blocks) = (NodeId(1), vec![BlockId(1), BlockId(2), BlockId(3)]);
        let (number, version) = (5, 2);
        let which = drain::Output::Which { by, number, version, blocks };
        let Some(Next::Write(settle)) = on_drain(&writer.blocks(), which) else { panic!("settle") };
        writer.append([settle]);
        let [Next::Read(check)] = &writer.sync()[..] else { panic!("a check") };
        let (blocks, damaged) = (vec![BlockId(2)], vec![BlockId(1)]);
        let held = drain::Command::Held { by, number, version, blocks, damaged };
        assert_eq!(check.clone().run(&writer.blocks()), Answer::Node(held));
    }

    #[test]
    fn a_node_that_is_sealed_takes_no_blocks_of_clients_but_answers_reads() {
        let disk = SimDisk::new();
        let mut writer = writer(&disk);
        writer.append([put(1)]);
        writer.sync();
        let ask = |body| on_client(&writer.blocks(), false, BY, body).unwrap();
        let (block, data) = (BlockId(2), Bytes::from_static(b"x"));
        let refused = BY.answer(ReplyBody::Refused(Refusal::Draining));
        assert_eq!(ask(RequestBody::PutBlock { block, data }), Next::Answer(refused));
        let named = BY.answer(ReplyBody::Blocks(vec![BlockId(1)]));
        assert_eq!(ask(RequestBody::ListBlocks { after: None }), Next::Answer(named));
        let read = ask(RequestBody::GetBlock { block, offset: 0, len: 1 });
        let Next::Read(read) = read else { panic!("{read:?}") };
        let none = BY.answer(ReplyBody::Refused(Refusal::NoBlock(block)));
        assert_eq!(read.run(&writer.blocks()), none);
        assert_eq!(
            on_client(&writer.blocks(), false, BY, RequestBody::Status),
            Err(Box::new(RequestBody::Status))
        );
    }
}
