//! The blocks of simulated nodes: the store of servers on the disk of each node, and what a server
//! answers with it, in virtual time.
//!
//! The owner of a world keeps one [`Stores`]. It passes on what happens to the nodes
//! ([`Stores::mount`], [`Stores::crash`]) and what is asked of them ([`Stores::on_client`],
//! [`Stores::on_drain`]), and carries out what comes back.
//!
//! Checked is that a block which a node has said to store can be read there ever after, unless its
//! disk was damaged or exchanged; and that no byte of a block is ever another than was stored.

use crate::world::{DiskFailure, Random};
use bytes::Bytes;
use meridian_blocks::desk::{self, Answer, Asker, Next, Read, Sender, Write, Writer};
use meridian_blocks::store::{Mutation, OpenError, Options};
use meridian_blocks::{BlockError, Blocks, Store};
use meridian_core::{BlockId, NodeId, mix};
use meridian_host::api::{Reply, ReplyBody, RequestBody};
use meridian_host::{ConnectionId, drain, space};
use meridian_storage::format::FormatError;
use meridian_storage::{Disk, SimDisk};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "/node/blocks";
/// Short, so that most runs go on from segment to segment.
const SEGMENT_BYTES: u64 = 8 << 10;
/// What blocks leave of a disk: some segments of the simulated log.
const RESERVE_BYTES: u64 = 96 << 10;

/// What comes later, and is given back to [`Stores::on_due`] then.
#[derive(Clone, Debug)]
pub struct Due {
    at: NodeId,
    /// In this life of the node, or never.
    life: u64,
    what: What,
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There are few, and none for long.
enum What {
    Append,
    Sync,
    Read(Read),
    Tell(Answer),
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// [`Stores::on_due`] is to be called.
    Later(Duration, Due),
    /// The node says this.
    Tell(NodeId, Answer),
    /// The node stops: its disk has refused.
    Stop(NodeId),
}

/// See the module's documentation.
pub struct Stores {
    random: Random,
    mutation: Mutation,
    nodes: BTreeMap<NodeId, Place>,
    /// What each block contains that was ever to be stored.
    contents: BTreeMap<BlockId, Bytes>,
    /// Nodes that went on with a disk that is not what it was.
    altered: BTreeSet<NodeId>,
    reads: u64,
    /// What was ever said to be stored.
    ever: BTreeSet<(NodeId, BlockId)>,
    /// What was freed anywhere: no file will ever lie in it.
    freed: BTreeSet<BlockId>,
}

/// The blocks of one node.
#[derive(Default)]
struct Place {
    disk: SimDisk,
    /// Whether the disk has nothing else, and nobody else looks after it.
    is_own: bool,
    /// Whether the disk damages what lies on it.
    rots: bool,
    /// At the next start some of its segments are gone.
    wiped: bool,
    /// While the node runs.
    writer: Option<Writer>,
    /// Counts starts.
    life: u64,
    waiting: Vec<Write>,
    writing: bool,
    /// Which blocks clients have sent in this life.
    sent: BTreeMap<(ConnectionId, u64), BlockId>,
    /// The blocks that it has said to store.
    said: BTreeSet<BlockId>,
}

impl Stores {
    /// Of nodes that have nothing on their disks.
    pub fn new(seed: u64, mutation: Mutation) -> Stores {
        Stores {
            random: Random::seed_from_u64(mix(seed) ^ 0x5705),
            mutation,
            nodes: BTreeMap::new(),
            contents: BTreeMap::new(),
            altered: BTreeSet::new(),
            reads: 0,
            ever: BTreeSet::new(),
            freed: BTreeSet::new(),
        }
    }

    /// A node starts on this disk; see [`crate::Owner::mount`].
    ///
    /// # Errors
    /// If the disk refuses, or is damaged.
    ///
    /// # Panics
    /// If a block is lost, or another than was stored.
    pub fn mount(&mut self, at: NodeId, disk: &SimDisk, altered: bool) -> Result<(), DiskFailure> {
        if self.nodes.entry(at).or_default().wiped {
            self.remove_segments(at, disk);
        }
        let salt = self.random.random();
        let options = Options { segment_bytes: SEGMENT_BYTES, salt, reserve_bytes: RESERVE_BYTES };
        let opened =
            Store::open_mutated(Arc::new(disk.clone()), Path::new(DIR), options, self.mutation);
        let writer = Writer::new(opened.map_err(failed)?.0);
        let blocks = writer.blocks();
        if altered {
            self.altered.insert(at);
        }
        let place = self.nodes.entry(at).or_default();
        let altered = altered || place.rots;
        for block in blocks.names(None, usize::MAX) {
            if let Ok(data) = blocks.get(block, 0, u32::MAX) {
                let sound = self.contents.get(&block) == Some(&data);
                assert!(sound, "integrity: {block} at {at} is another after a start");
            }
        }
        place.said.retain(|block| !self.freed.contains(block));
        place.said.retain(|block| match blocks.get(*block, 0, 0) {
            Ok(_) => true,
            Err(_) if altered => false,
            Err(error) => panic!("durability: {at} said that it stores {block}: {error}"),
        });
        (place.writer, place.life) = (Some(writer), place.life + 1);
        place.disk = disk.clone();
        Ok(())
    }

    /// A node starts whose log is on no disk: its blocks lie on one of their own, which only loses
    /// what was not synced.
    pub fn mount_own(&mut self, at: NodeId) {
        let place = self.nodes.entry(at).or_default();
        if place.writer.is_none() {
            place.is_own = true;
            let disk = place.disk.clone();
            self.mount(at, &disk, false).expect("nothing fails on it");
        }
    }

    /// A bit of the blocks of a node is flipped on its disk.
    pub fn rot(&mut self, at: NodeId) {
        let place = self.nodes.entry(at).or_default();
        let disk = &place.disk;
        let is_segment = |(path, len): &(PathBuf, u64)| {
            path.starts_with(DIR) && path.file_name() != Some("FORMAT".as_ref()) && *len > 0
        };
        let segments: Vec<_> = disk.files().into_iter().filter(is_segment).collect();
        let Some((path, len)) = segments.choose(&mut self.random) else { return };
        disk.flip(path, self.random.random_range(0..*len), self.random.random_range(0..8));
        place.rots = true;
        self.altered.insert(at);
    }

    /// At the next start of a node some of its segments are gone, or all.
    pub fn wipe(&mut self, at: NodeId) {
        let place = self.nodes.entry(at).or_default();
        (place.rots, place.wiped) = (true, true);
        self.altered.insert(at);
    }

    fn remove_segments(&mut self, at: NodeId, disk: &SimDisk) {
        self.nodes.entry(at).or_default().wiped = false;
        let all = self.random.random_bool(0.5);
        for (path, _) in disk.files() {
            let is_segment = path.starts_with(DIR) && path.file_name() != Some("FORMAT".as_ref());
            if is_segment && (all || self.random.random_bool(0.5)) {
                let _ = disk.remove(&path); // Without power they stay, and harm is done less.
            }
        }
        let _ = disk.sync_dir(Path::new(DIR));
    }

    /// A node stops dead.
    pub fn crash(&mut self, at: NodeId) {
        let place = self.nodes.entry(at).or_default();
        if place.is_own {
            place.disk.restart(self.random.random());
        }
        (place.writer, place.writing) = (None, false);
        place.waiting.clear();
        place.sent.clear();
    }

    /// The blocks of a node, if it runs.
    pub fn blocks(&self, at: NodeId) -> Option<Blocks> {
        Some(self.nodes.get(&at)?.writer.as_ref()?.blocks())
    }

    /// Whether a node has said that it stores a block, and still does, as far as can be seen now.
    pub fn holds(&self, at: NodeId, block: BlockId) -> bool {
        let Some(place) = self.nodes.get(&at) else { return false };
        let read = |writer: &Writer| writer.blocks().get(block, 0, 0);
        place.said.contains(&block)
            && !self.freed.contains(&block)
            && match place.writer.as_ref().map(read) {
                Some(Ok(_) | Err(BlockError::Io { .. })) | None => true,
                Some(Err(_)) => false,
            }
    }

    /// Whether a node that runs can read a block.
    pub fn is_sound(&self, at: NodeId, block: BlockId) -> bool {
        self.blocks(at).is_some_and(|blocks| blocks.get(block, 0, 0).is_ok())
    }

    /// Whether a node has ever said that it stores a block.
    pub fn has_said(&self, at: NodeId, block: BlockId) -> bool {
        self.ever.contains(&(at, block))
    }

    /// The nodes that went on with a disk that was damaged, or exchanged.
    pub fn altered(&self) -> &BTreeSet<NodeId> {
        &self.altered
    }

    /// How many reads were answered with data.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// A client's request has come to a node that runs.
    ///
    /// # Errors
    /// The question, if it is not about blocks.
    pub fn on_client(
        &mut self,
        at: NodeId,
        takes_blocks: bool,
        by: Asker,
        body: RequestBody,
    ) -> Result<Vec<Effect>, Box<RequestBody>> {
        let Some(blocks) = self.blocks(at) else { return Ok(Vec::new()) };
        let next = desk::on_client(&blocks, takes_blocks, by, body)?;
        Ok(self.go_on(at, next))
    }

    /// A node's process wants something of its blocks; `None` if that is for others.
    pub fn on_drain(&mut self, at: NodeId, output: drain::Output) -> Option<Vec<Effect>> {
        let Some(blocks) = self.blocks(at) else { return Some(Vec::new()) };
        let next = desk::on_drain(&blocks, output)?;
        Some(self.go_on(at, next))
    }

    /// A node's process frees blocks, or asks which there are.
    pub fn on_space(&mut self, at: NodeId, output: space::Output) -> Vec<Effect> {
        let Some(blocks) = self.blocks(at) else { return Vec::new() };
        if let space::Output::Free(blocks) = &output {
            self.freed.extend(blocks);
        }
        self.go_on(at, desk::on_space(&blocks, output))
    }

    /// What some node was told to free.
    pub fn freed(&self) -> &BTreeSet<BlockId> {
        &self.freed
    }

    fn go_on(&mut self, at: NodeId, next: Next) -> Vec<Effect> {
        match next {
            Next::Answer(answer) => vec![self.soon(at, What::Tell(answer))],
            Next::Read(read) => vec![self.soon(at, What::Read(read))],
            Next::Write(write) => {
                if let Write::Put { block, data, .. } = &write {
                    let first = self.contents.entry(*block).or_insert_with(|| data.clone());
                    assert_eq!(first, data, "integrity: {block} comes to {at} with other data");
                }
                let place = self.nodes.entry(at).or_default();
                if let Write::Put { from: Sender::Client(by), block, .. } = &write {
                    place.sent.insert((by.connection, by.id), *block);
                }
                place.waiting.push(write);
                if std::mem::replace(&mut place.writing, true) {
                    return Vec::new();
                }
                vec![self.soon(at, What::Append)]
            }
        }
    }

    fn soon(&mut self, at: NodeId, what: What) -> Effect {
        let after = Duration::from_micros(self.random.random_range(0..3000));
        self.later(at, after, what)
    }

    fn later(&self, at: NodeId, after: Duration, what: What) -> Effect {
        Effect::Later(after, Due { at, life: self.nodes[&at].life, what })
    }

    /// The time of an [`Effect::Later`] has come.
    pub fn on_due(&mut self, due: Due) -> Vec<Effect> {
        let Due { at, life, what } = due;
        let place = self.nodes.get_mut(&at).expect("it asked for this");
        let Some(writer) = place.writer.as_mut().filter(|_| place.life == life) else {
            return Vec::new(); // It has crashed meanwhile.
        };
        match what {
            What::Append => {
                let before = writer.blocks().disk_bytes();
                for write in &place.waiting {
                    if let Write::Free(blocks) = write {
                        blocks.iter().for_each(|block| _ = place.said.remove(block));
                    }
                }
                writer.append(std::mem::take(&mut place.waiting));
                let blocks = writer.blocks();
                if blocks.disk_bytes() > before
                    && let Ok(room) = blocks.room()
                {
                    assert!(room.free >= RESERVE_BYTES, "reserve: {at} has {room:?} left");
                }
                // Mostly short; sometimes long enough for much else to happen.
                let long = self.random.random_ratio(1, 12);
                let most = if long { 1_500_000 } else { 4_000 };
                let after = Duration::from_micros(self.random.random_range(50..most));
                vec![self.later(at, after, What::Sync)]
            }
            What::Sync => {
                let ended = writer.sync();
                let failed = writer.failed().is_some();
                place.writing = !place.waiting.is_empty() || writer.is_untidy();
                let again = place.writing;
                let mut effects = Vec::new();
                for next in ended {
                    effects.extend(match next {
                        Next::Answer(answer) => vec![self.tell(at, answer)],
                        next => self.go_on(at, next),
                    });
                }
                if failed {
                    effects.push(Effect::Stop(at));
                } else if again {
                    effects.push(self.soon(at, What::Append));
                }
                effects
            }
            What::Read(read) => {
                let answer = read.clone().run(&writer.blocks());
                self.check_read(at, &read, &answer);
                vec![self.tell(at, answer)]
            }
            What::Tell(answer) => vec![self.tell(at, answer)],
        }
    }

    /// What is said to be stored is so from now on.
    fn tell(&mut self, at: NodeId, answer: Answer) -> Effect {
        let place = self.nodes.get_mut(&at).expect("it says something");
        // What was stored may have been given up before that is said.
        let is_here = |place: &Place, block| {
            place.writer.as_ref().is_some_and(|writer| writer.blocks().holds(block))
        };
        match &answer {
            Answer::Client(connection, Reply { id, body: ReplyBody::Stored }) => {
                let block = place.sent[&(*connection, *id)];
                self.ever.insert((at, block));
                if is_here(place, block) {
                    place.said.insert(block);
                }
            }
            Answer::Node(drain::Command::Stored { block, stored: true, .. }) => {
                self.ever.insert((at, *block));
                if is_here(place, *block) {
                    place.said.insert(*block);
                }
            }
            Answer::Node(drain::Command::Held { blocks, .. }) => place.said.extend(blocks),
            Answer::Client(..) | Answer::Node(_) | Answer::Space(_) => {}
        }
        Effect::Tell(at, answer)
    }

    /// What is read is what was stored.
    fn check_read(&mut self, at: NodeId, read: &Read, answer: &Answer) {
        let (block, offset, len) = match read {
            Read::Part { block, offset, len, .. } => (*block, *offset, *len),
            Read::Whole { block, .. } => (*block, 0, u32::MAX),
            Read::Room | Read::Check { .. } | Read::Scrub { .. } => return,
        };
        let read = match answer {
            Answer::Client(_, Reply { body: ReplyBody::Block(data), .. })
            | Answer::Node(drain::Command::Data { data: Some(data), .. }) => data,
            // It could not be read.
            Answer::Client(..) | Answer::Node(_) | Answer::Space(_) => return,
        };
        let whole = &self.contents[&block];
        let start = (offset as usize).min(whole.len());
        let end = start.saturating_add(len as usize).min(whole.len());
        assert_eq!(*read, whole[start..end], "integrity: {block} read at {at} is another");
        self.reads += 1;
    }
}

fn failed(error: OpenError) -> DiskFailure {
    match &error {
        OpenError::Block(_) | OpenError::Format(FormatError::Io { .. }) => {
            DiskFailure::Disk(error.to_string())
        }
        OpenError::Format(_) => DiskFailure::Damaged(error.to_string()),
    }
}
