//! Blocks that no file names are freed.
//!
//! What a file lies in is decided by the partition of its tree, in order; each node goes by its own
//! replicas of the partitions (decision 0042). Three ways lead to a block that is freed:
//!
//! - The tree has *released* it: the last extent that lay in it went. It is freed when the grace is
//!   over, within which readers may ask for it who were told of it before.
//! - Its client has *discarded* it: the update that was to name it has ended without effect, or was
//!   never sent (decision 0066). It is freed at once.
//! - It was *never named*, or nobody here has seen that it was released: the node looks through the
//!   names of all blocks that it holds, a page at a time, for those that the tree will never name
//!   again ([`meridian_fs::Partition::never_named`]).
//!
//! The node also looks how much room its disk has. When it is nearly full the node takes no updates
//! that need room: what is left is for the log of those that give room back, and of what other
//! nodes have ordered. Blocks stop earlier, in their store.
//!
//! Nothing is durable: what was released and is not freed when the node stops is found among the
//! others after it.
//!
//! Invariants:
//! - F1: a block is freed only if no file lies in it, and none ever will, in a state of its
//!   partition that is durable here.
//! - F4: nor in a snapshot that a replica here keeps.
//! - F2: a block that was released is not freed before the grace is over.
//! - F3: a node that knows its disk to be nearly full has no update of a client ordered that needs
//!   room.

use crate::replica::Replica;
use meridian_core::{BlockId, GroupId, PLANTED_BUGS, Time};
use meridian_fs::Partition;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// So many names of blocks are looked at with one tick: some milliseconds' work, and a million
/// blocks in twenty minutes.
pub const PAGE: usize = 1024;
/// So many blocks are freed with one tick.
const FREED_MAX: usize = 4096;

/// With less room on its disk a node takes no updates that need more: two segments of the log, so
/// that those go on which give room back, and the node can be started again.
pub const LEAST_BYTES: u64 = 64 << 20;

/// How long what takes, and how full a disk may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// How often something is done.
    pub tick: Duration,
    /// How long a block stays that the tree has released: longer than most readers take from the
    /// tree's answer to the block. One that comes too late asks the tree again.
    pub grace: Duration,
    /// How long after a block was named an update may come that names it: much longer than a slow
    /// client takes that is still alive. One that comes too late stores its bytes anew.
    pub window: Duration,
    /// With less room on the disk than so many bytes, the node takes no updates that need more.
    pub least_bytes: u64,
    /// How long a file stays that has lost its last name, beside those who are known to have it
    /// open: several times as long as a client takes to say so (`meridian_session::opens`).
    pub linger: Duration,
}

/// How much room a disk has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Room {
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes of that which blocks may still take; the rest is for the log.
    pub writable: u64,
    /// Bytes in all.
    pub total: u64,
    /// Nodes that name the same device share the disk.
    pub device: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tick: Duration::from_secs(1),
            grace: Duration::from_secs(5),
            window: Duration::from_secs(3600),
            least_bytes: LEAST_BYTES,
            linger: Duration::from_secs(10),
        }
    }
}

/// How full the disk is, and what is to be freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many blocks the tree has released that are not freed yet, here or at other nodes of the
    /// region.
    pub to_free: usize,
    /// How much room the disk has, when that was looked at last.
    pub room: Option<Room>,
    /// Whether the disk is nearly full.
    pub is_full: bool,
}

/// What the owner, who has the blocks, is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Name the blocks that are here, [`PAGE`] at a time.
    List {
        /// To be given back.
        number: u64,
        /// Those after this one.
        after: Option<BlockId>,
    },
    /// Tell how much room there is on the disk.
    Measure,
    /// Free these, if they are here.
    Free(Vec<BlockId>),
}

/// What the owner answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// To [`Output::Measure`]; nothing if the disk does not say.
    Room(Option<Room>),
    /// To [`Output::List`].
    Names {
        /// That of the question.
        number: u64,
        /// Names of blocks, in order; none if there are no more.
        blocks: Vec<BlockId>,
    },
}

/// The only timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tick;

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// What nobody named is never looked for.
    NeverLooks,
    /// What no file lies in is freed though an update that names it may be under way.
    FreesUnnamed,
    /// Nobody minds that the disk is full.
    TakesAll,
    /// A file goes with its last name, unless somebody has said before that it is open there.
    NeverLingers,
    /// Files without a name are never removed.
    NeverReaps,
}

impl Mutation {
    fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Space {
    options: Options,
    /// Blocks that were released, and when they may be freed.
    released: BTreeMap<BlockId, Time>,
    /// The same in the order of time.
    queue: VecDeque<(Time, BlockId)>,
    /// Names the question that was asked last.
    number: u64,
    /// Up to which block all were looked at.
    looked: Option<BlockId>,
    room: Option<Room>,
    mutation: Mutation,
}

impl Space {
    /// Of a node that has freed nothing.
    pub fn new(options: Options) -> Space {
        Space {
            options,
            released: BTreeMap::new(),
            queue: VecDeque::new(),
            number: 0,
            looked: None,
            room: None,
            mutation: Mutation::Correct,
        }
    }

    /// The same with a bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Space {
        Space { mutation, ..self }
    }

    /// How long what takes.
    pub fn options(&self) -> Options {
        self.options
    }

    /// How long files stay that have lost their last names; none if they stay for ever.
    pub(crate) fn linger(&self) -> Option<Duration> {
        match self.mutation {
            Mutation::NeverReaps if PLANTED_BUGS => None,
            Mutation::NeverLingers if PLANTED_BUGS => Some(Duration::ZERO),
            _ => Some(self.options.linger),
        }
    }

    /// How it is.
    pub fn report(&self) -> Report {
        Report { to_free: self.released.len(), room: self.room, is_full: self.is_full() }
    }

    /// Whether the disk is nearly full.
    pub fn is_full(&self) -> bool {
        self.room.is_some_and(|room| room.free < self.options.least_bytes)
            && !self.mutation.is(Mutation::TakesAll)
    }

    /// Some time has passed.
    pub(crate) fn on_tick(
        &mut self,
        now: Time,
        replicas: &mut BTreeMap<GroupId, Replica>,
    ) -> Vec<Output> {
        let due = now + self.options.grace;
        for replica in replicas.values_mut() {
            for block in replica.take_released() {
                if self.released.insert(block, due).is_none() {
                    self.queue.push_back((due, block));
                }
            }
        }
        let mut freed: BTreeMap<GroupId, Vec<BlockId>> = BTreeMap::new();
        for _ in 0..FREED_MAX {
            let Some((_, block)) = self.queue.pop_front_if(|(due, _)| *due <= now) else { break };
            self.released.remove(&block);
            freed.entry(block.partition()).or_default().push(block);
        }
        let mut out = vec![Output::Measure];
        for (group, blocks) in freed {
            let Some(replica) = replicas.get(&group) else { continue };
            let (free, kept) = replica.without_kept(replica.partition().unnamed(blocks));
            for block in kept {
                self.released.insert(block, due);
                self.queue.push_back((due, block));
            }
            out.push(Output::Free(free));
        }
        if !self.mutation.is(Mutation::NeverLooks) {
            self.number += 1;
            out.push(Output::List { number: self.number, after: self.looked });
        }
        out
    }

    /// The owner has answered: those of its blocks that were never named, or are no more, go.
    pub(crate) fn on_command(
        &mut self,
        command: Command,
        replicas: &BTreeMap<GroupId, Replica>,
    ) -> Option<Output> {
        let (number, blocks) = match command {
            Command::Names { number, blocks } => (number, blocks),
            Command::Room(room) => {
                self.room = room.or(self.room);
                return None;
            }
        };
        if number != self.number {
            return None;
        }
        self.looked = blocks.last().copied();
        self.free(&blocks, replicas, |partition, blocks| {
            match self.mutation.is(Mutation::FreesUnnamed) {
                true => partition.unnamed(blocks),
                false => partition.never_named(blocks),
            }
        })
    }

    /// A client says that no update will ever name these. It may be wrong only about those that it
    /// has stored itself; what is named by now stays, whatever it says.
    pub(crate) fn on_discard(
        &self,
        blocks: &[BlockId],
        replicas: &BTreeMap<GroupId, Replica>,
    ) -> Option<Output> {
        self.free(blocks, replicas, |partition, blocks| partition.unnamed(blocks))
    }

    /// Frees those of these blocks that are `chosen` by their partition and are not in their grace.
    fn free(
        &self,
        blocks: &[BlockId],
        replicas: &BTreeMap<GroupId, Replica>,
        chosen: impl Fn(&Partition, Vec<BlockId>) -> Vec<BlockId>,
    ) -> Option<Output> {
        let mut freed = Vec::new();
        for (group, replica) in replicas {
            let of_group = blocks.iter().copied().filter(|block| block.partition() == *group);
            let of_group = of_group.filter(|block| !self.released.contains_key(block)).collect();
            freed.extend(replica.without_kept(chosen(replica.partition(), of_group)).0);
        }
        (!freed.is_empty()).then_some(Output::Free(freed))
    }
}
