//! Nodes copy blocks: what a node holds is given to the nodes of its region that stay, before it
//! or another goes; and each sees to it that it holds what it should ([`keep`]).
//!
//! The configuration says who is drained ([`Draining`]). A node that is drained looks through all
//! blocks that it holds; so does each node that stays while one that is down is drained. It asks
//! the nodes that stay which of the blocks they hold, copies those that are on too few, and looks
//! again until there are none. Then the node that goes takes no blocks any more, durably (it is
//! *sealed*), looks a last time at what came meanwhile, and reports. So a client that does not know
//! yet has its block copied, or is refused and stores it elsewhere.
//!
//! A removal may be taken back until the node has left. The node then takes blocks again.
//!
//! Invariants:
//! - D1: who is said to hold a block has said so itself, when the block was durable there and could
//!   be read.
//! - D2: a node reports that it is drained after its seal is durable, and after all blocks that it
//!   took before are on enough nodes that stay.
//! - D3: a copy of a block that files lie in is given up only when as many others are there that
//!   should be (see [`keep`]). So that enough nodes hold a block stays true as long as the same
//!   nodes stay. When others stay all is looked at anew.
//! - D4: a seal is broken only by a configuration that is newer than the drain that it was for and
//!   in which the node stays. A node that starts with an older one does not know of that drain.

pub mod keep;
mod messages;

pub use messages::{Command, Message, Mutation, Output, Progress, Record, Tick};

use bytes::Bytes;
use keep::{Keep, Options, Report};
use meridian_cluster::Topology;
use meridian_cluster::ring::{REPLICAS, Ring};
use meridian_core::{BlockId, Event, NodeId, Outbox, Process, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// So many blocks are asked for at a time: who is asked reads them all in some ticks.
pub const PAGE: usize = 128;
/// So many blocks are copied at a time: some megabytes, between which other messages pass.
const COPIES: usize = 4;
/// How often a node looks again, reports again, and notices that another does not answer.
pub const TICK: Duration = Duration::from_secs(1);
/// After so many ticks without an answer a node goes on without it, for now.
const PATIENCE: u8 = 3;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Drain {
    topology: Arc<Topology>,
    me: NodeId,
    /// No blocks are taken since that drain, or a later one.
    sealed: Option<u64>,
    work: Option<Work>,
    /// Names what was asked last. Even: odd ones are those of [`Keep`].
    number: u64,
    keep: Keep,
    mutation: Mutation,
}

/// What must be looked through, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Task {
    since: u64,
    /// Whether this node goes itself.
    own: bool,
    /// The nodes of the region that stay.
    staying: Vec<NodeId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    task: Task,
    /// The blocks that are on enough nodes that stay.
    safe: BTreeSet<BlockId>,
    /// The nodes that do not answer in this pass.
    absent: BTreeSet<NodeId>,
    /// In this pass so many are not, and could not be copied.
    left: u64,
    /// Nothing is taken any more, and this pass began after that.
    last: bool,
    /// How many ticks there were since something happened.
    idle: u8,
    stage: Stage,
}

/// Which nodes hold each block.
type Holders = BTreeMap<BlockId, BTreeSet<NodeId>>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// The names after this one were asked for.
    Listing,
    /// Other nodes were asked what they hold of a page.
    Asking { end: BlockId, holders: Holders, waiting: BTreeSet<NodeId> },
    /// What is on too few nodes is copied.
    Copying {
        end: BlockId,
        todo: VecDeque<(BlockId, Copying)>,
        under_way: BTreeMap<BlockId, Copying>,
    },
    /// What was taken before the seal becomes durable.
    Sealing,
    /// Until the next tick.
    Resting,
    /// All is reported.
    Done,
}

/// A block that is copied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Copying {
    /// Once it is read.
    data: Option<Bytes>,
    /// So many nodes are still to hold it.
    missing: usize,
    /// Who may, in order.
    candidates: VecDeque<NodeId>,
    /// Who was sent it.
    waiting: BTreeSet<NodeId>,
    /// One of those that hold it already.
    holder: Option<NodeId>,
}

impl Drain {
    /// The node `me`, which takes blocks.
    pub fn new(topology: Arc<Topology>, me: NodeId) -> Drain {
        let (mutation, keep) = (Mutation::Correct, Keep::new(topology.clone(), me));
        Drain { topology, me, sealed: None, work: None, number: 0, keep, mutation }
    }

    /// The same, which looks after copies that fast.
    pub fn with_options(mut self, options: Options) -> Drain {
        self.keep.set_options(options);
        self
    }

    /// The same with a bug.
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: Mutation) -> Drain {
        self.keep.set_mutation(mutation);
        Drain { mutation, ..self }
    }

    /// The same, which only looks after copies when a node goes.
    #[doc(hidden)]
    pub fn alone(mut self) -> Drain {
        self.keep.turn_off();
        self
    }

    /// How the copies are that this node should hold.
    pub fn copies(&self) -> Report {
        self.keep.report()
    }

    /// Whether blocks may be stored here.
    pub fn takes_blocks(&self) -> bool {
        self.sealed.is_none()
    }

    /// How far it is, if there is something to do.
    pub fn progress(&self) -> Option<Progress> {
        let of = |work: &Work| Progress {
            safe: work.safe.len() as u64,
            done: matches!(work.stage, Stage::Done),
        };
        self.work.as_ref().map(of)
    }

    /// What is to be done as the cluster is configured now.
    fn task(&self) -> Option<Task> {
        let region = self.topology.node(self.me).region;
        let draining = || self.topology.draining_in(region);
        let own = draining().any(|(node, _)| node == self.me);
        let staying: Vec<_> = self.topology.staying_in(region).collect();
        let mut helps = draining().any(|(_, draining)| draining.down);
        let mut since = draining().map(|(_, draining)| draining.since).max().unwrap_or_default();
        if self.mutation.is(Mutation::GoesFirst) && !own {
            let of_region = |node: &NodeId| self.topology.node(*node).region == region;
            let leaves = |node: &NodeId| self.topology.node(*node).leaves;
            let left = self.topology.node_ids().filter(|node| of_region(node) && leaves(node));
            (helps, since) = (true, left.count() as u64);
        }
        let wanted = own || helps && staying.contains(&self.me);
        let wanted = wanted && !staying.is_empty();
        wanted.then_some(Task { since, own, staying })
    }

    /// Begins what the configuration asks for, unless that is under way.
    fn refresh(&mut self, out: &mut Outbox<Self>) {
        self.unseal(out);
        let task = self.task();
        if self.work.as_ref().map(|work| &work.task) == task.as_ref() {
            return;
        }
        self.work = None;
        let Some(task) = task else { return };
        let goes_first = task.own && self.mutation.is(Mutation::GoesFirst);
        let stage = if goes_first { Stage::Done } else { Stage::Resting };
        let (safe, absent) = (BTreeSet::new(), BTreeSet::new());
        self.work = Some(Work { task, safe, absent, left: 0, last: false, idle: 0, stage });
        if goes_first {
            self.report(out);
        } else {
            self.begin_pass(out);
        }
    }

    /// Takes blocks again if the removal was taken back (D4).
    fn unseal(&mut self, out: &mut Outbox<Self>) {
        let node = self.topology.node(self.me);
        let stays = node.draining.is_none() && !node.leaves;
        let early = self.mutation.is(Mutation::OpensEarly);
        let newer = self.sealed.is_some_and(|since| early || self.topology.version > since);
        if newer && stays && !self.mutation.is(Mutation::StaysSealed) {
            self.sealed = None;
            out.persist(Record::Unsealed);
        }
    }

    /// Looks through all blocks from the first.
    fn begin_pass(&mut self, out: &mut Outbox<Self>) {
        let sealed = self.sealed.is_some();
        let Some(work) = &mut self.work else { return };
        work.left = 0;
        work.absent.clear();
        if work.task.own && sealed && !work.last {
            // After a restart, or when it was sealed for another task: what was taken is durable by
            // the time that the owner says so.
            work.stage = Stage::Sealing;
            out.output(Output::Seal);
            return;
        }
        self.list(None, out);
    }

    fn list(&mut self, after: Option<BlockId>, out: &mut Outbox<Self>) {
        self.number += 2;
        let number = self.number;
        let Some(work) = &mut self.work else { return };
        (work.stage, work.idle) = (Stage::Listing, 0);
        out.output(Output::List { number, after });
    }

    fn on_names(&mut self, number: u64, blocks: Vec<BlockId>, out: &mut Outbox<Self>) {
        let (me, version) = (self.me, self.topology.version);
        let Some(work) = self.work.as_mut().filter(|_| number == self.number) else { return };
        if work.stage != Stage::Listing {
            return;
        }
        let Some(end) = blocks.last().copied() else { return self.end_pass(out) };
        let rest = blocks.into_iter().filter(|block| !work.safe.contains(block));
        let holders: Holders = rest.map(|block| (block, BTreeSet::new())).collect();
        if holders.is_empty() {
            return self.list(Some(end), out);
        }
        let blocks: Vec<_> = holders.keys().copied().collect();
        let asked = |node: &NodeId| !work.absent.contains(node);
        let waiting: BTreeSet<_> = work.task.staying.iter().copied().filter(asked).collect();
        for node in &waiting {
            let blocks = blocks.clone();
            if *node == me {
                out.output(Output::Which { by: me, number, version, blocks });
            } else {
                out.send(*node, Message::Which { number, version, blocks });
            }
        }
        (work.stage, work.idle) = (Stage::Asking { end, holders, waiting }, 0);
        self.end_asking(out);
    }

    fn on_held(&mut self, from: NodeId, held: (u64, Vec<BlockId>), out: &mut Outbox<Self>) {
        let (number, blocks) = held;
        let Some(work) = &mut self.work else { return };
        let Stage::Asking { holders, waiting, .. } = &mut work.stage else { return };
        if !work.task.staying.contains(&from) {
            return;
        }
        for block in blocks {
            if let Some(holders) = holders.get_mut(&block) {
                holders.insert(from);
            }
        }
        if number == self.number && waiting.remove(&from) {
            work.idle = 0;
        }
        self.end_asking(out);
    }

    /// Goes on once all have answered.
    fn end_asking(&mut self, out: &mut Outbox<Self>) {
        let Some(work) = &self.work else { return };
        if matches!(&work.stage, Stage::Asking { waiting, .. } if waiting.is_empty()) {
            self.begin_copying(out);
        }
    }

    /// Copies what is on too few nodes to those that have answered.
    fn begin_copying(&mut self, out: &mut Outbox<Self>) {
        let Some(work) = &mut self.work else { return };
        let stage = std::mem::replace(&mut work.stage, Stage::Resting);
        let Stage::Asking { end, holders, waiting } = stage else { return };
        work.absent.extend(waiting);
        let absent = &work.absent;
        let staying = &work.task.staying;
        let (ring, wanted) = (Ring::new(staying), REPLICAS.min(staying.len()));
        let mut todo = VecDeque::new();
        for (block, on) in holders {
            if on.len() >= wanted {
                work.safe.insert(block);
                continue;
            }
            let others = ring.placement(block).into_iter();
            let candidates = others.filter(|node| !on.contains(node) && !absent.contains(node));
            let (missing, candidates) = (wanted - on.len(), candidates.collect());
            let (data, waiting, holder) = (None, BTreeSet::new(), on.first().copied());
            todo.push_back((block, Copying { data, missing, candidates, waiting, holder }));
        }
        let under_way = BTreeMap::new();
        (work.stage, work.idle) = (Stage::Copying { end, todo, under_way }, 0);
        self.copy_more(out);
    }

    /// Begins to copy as many blocks as may be under way; goes on after the last.
    fn copy_more(&mut self, out: &mut Outbox<Self>) {
        let Some(work) = &mut self.work else { return };
        let Stage::Copying { end, todo, under_way } = &mut work.stage else { return };
        while under_way.len() < COPIES
            && let Some((block, copying)) = todo.pop_front()
        {
            if copying.candidates.is_empty() {
                work.left += 1;
                continue;
            }
            under_way.insert(block, copying);
            out.output(Output::Read { block, to: None });
        }
        if under_way.is_empty() {
            let end = *end;
            self.list(Some(end), out);
        }
    }

    fn on_data(&mut self, block: BlockId, data: Option<Bytes>, out: &mut Outbox<Self>) {
        let Some(Work { stage: Stage::Copying { under_way, .. }, .. }) = &mut self.work else {
            return;
        };
        let Some(copying) = under_way.get_mut(&block).filter(|of| of.data.is_none()) else {
            return;
        };
        if data.is_none() {
            // The next pass finds what comes of that.
            let to = copying.candidates.drain(..).take(copying.missing);
            if let Some(holder) = copying.holder {
                to.for_each(|to| out.send(holder, Message::Pass { block, to }));
            }
        }
        copying.data = data;
        self.send_copies(block, out);
    }

    /// Sends a block to as many nodes as it is missing on, or ends its copying.
    fn send_copies(&mut self, block: BlockId, out: &mut Outbox<Self>) {
        let counts_sent = self.mutation.is(Mutation::CountsSent);
        let Some(work) = &mut self.work else { return };
        let Stage::Copying { under_way, .. } = &mut work.stage else { return };
        let Some(copying) = under_way.get_mut(&block) else { return };
        while let Some(data) = &copying.data
            && copying.waiting.len() < copying.missing
            && let Some(node) = copying.candidates.pop_front()
        {
            out.send(node, Message::Copy { block, data: data.clone() });
            if counts_sent {
                copying.missing -= 1;
            } else {
                copying.waiting.insert(node);
            }
        }
        if copying.waiting.is_empty() {
            if copying.missing == 0 {
                work.safe.insert(block);
            } else {
                work.left += 1;
            }
            under_way.remove(&block);
            work.idle = 0;
            self.copy_more(out);
        }
    }

    fn on_copied(&mut self, from: NodeId, block: BlockId, stored: bool, out: &mut Outbox<Self>) {
        let Some(work) = &mut self.work else { return };
        let Stage::Copying { under_way, .. } = &mut work.stage else { return };
        let Some(copying) = under_way.get_mut(&block) else { return };
        if copying.waiting.remove(&from) {
            copying.missing -= usize::from(stored);
            work.idle = 0;
            self.send_copies(block, out);
        }
    }

    /// All blocks were looked at.
    fn end_pass(&mut self, out: &mut Outbox<Self>) {
        let never = self.mutation.is(Mutation::NeverSeals);
        let Some(work) = &mut self.work else { return };
        if work.left > 0 {
            work.stage = Stage::Resting;
        } else if work.task.own && !work.last && !never {
            if self.sealed.is_none() {
                let since = work.task.since;
                self.sealed = Some(since);
                if !self.mutation.is(Mutation::ForgetsSeal) {
                    out.persist(Record::Sealed { since });
                }
            }
            work.stage = Stage::Sealing;
            out.output(Output::Seal);
            if self.mutation.is(Mutation::LooksEarly) {
                self.on_sealed(out);
            }
        } else {
            work.stage = Stage::Done;
            self.report(out);
        }
    }

    fn on_sealed(&mut self, out: &mut Outbox<Self>) {
        let Some(work) = self.work.as_mut().filter(|work| work.stage == Stage::Sealing) else {
            return;
        };
        work.last = true;
        self.begin_pass(out);
    }

    fn report(&self, out: &mut Outbox<Self>) {
        if let Some(work) = &self.work {
            out.output(Output::Drained { since: work.task.since });
        }
    }

    fn on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        out.timer(now + TICK, Tick::Look);
        self.keep.on_tick(now, self.sealed.is_none(), out);
        let Some(work) = &mut self.work else { return };
        work.idle = work.idle.saturating_add(1);
        let tired = work.idle > PATIENCE;
        match &mut work.stage {
            Stage::Listing | Stage::Sealing => {} // The owner answers.
            Stage::Resting => self.begin_pass(out),
            Stage::Done => self.report(out),
            Stage::Asking { .. } if tired => self.begin_copying(out),
            Stage::Copying { todo, under_way, .. } if tired => {
                work.left += (todo.len() + under_way.len()) as u64;
                todo.clear();
                under_way.clear();
                self.copy_more(out);
            }
            Stage::Asking { .. } | Stage::Copying { .. } => {}
        }
    }

    /// What was under way to or from `peer` may be lost.
    fn on_restarted(&mut self, peer: NodeId, out: &mut Outbox<Self>) {
        self.keep.on_restarted(peer, out);
        let (number, version) = (self.number, self.topology.version);
        let Some(work) = &mut self.work else { return };
        match &mut work.stage {
            Stage::Asking { holders, waiting, .. } if waiting.contains(&peer) => {
                let blocks = holders.keys().copied().collect();
                out.send(peer, Message::Which { number, version, blocks });
            }
            Stage::Copying { under_way, .. } => {
                let lost = |(block, of): (&BlockId, &mut Copying)| {
                    of.waiting.remove(&peer).then_some(*block)
                };
                let lost: Vec<_> = under_way.iter_mut().filter_map(lost).collect();
                lost.into_iter().for_each(|block| self.send_copies(block, out));
            }
            Stage::Asking { .. }
            | Stage::Listing
            | Stage::Sealing
            | Stage::Resting
            | Stage::Done => {}
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, out: &mut Outbox<Self>) {
        match message {
            Message::Which { number, version, blocks } => {
                self.keep.on_asked(version);
                let version = self.topology.version;
                out.output(Output::Which { by: from, number, version, blocks });
            }
            Message::Held { number, version, blocks } if number % 2 == 1 => {
                self.keep.on_held(from, (number, version), &blocks, out);
            }
            Message::Held { number, blocks, .. } => self.on_held(from, (number, blocks), out),
            Message::Copy { block, .. } if self.sealed.is_some() => {
                out.send(from, Message::Copied { block, stored: false });
            }
            Message::Copy { block, data } => {
                self.keep.on_copy(block, data.len());
                out.output(Output::Store { from, block, data });
            }
            Message::Copied { block, stored } => self.on_copied(from, block, stored, out),
            Message::Pass { block, to } => out.output(Output::Read { block, to: Some(to) }),
            Message::Unread { block } => self.keep.on_unread(from, block, out),
        }
    }

    fn on_command(&mut self, command: Command, out: &mut Outbox<Self>) {
        match command {
            Command::Configured(topology) => {
                if topology.version > self.topology.version {
                    self.keep.on_configured(topology.clone());
                    self.topology = topology;
                    self.refresh(out);
                }
            }
            Command::Names { number, blocks } if number % 2 == 1 => {
                self.keep.on_names(number, &blocks, out);
            }
            Command::Names { number, blocks } => self.on_names(number, blocks, out),
            Command::Held { by, number, version, blocks, damaged } => {
                damaged.into_iter().for_each(|block| self.keep.on_damaged(block, out));
                if by == self.me {
                    return self.on_held(by, (number, blocks), out);
                }
                out.send(by, Message::Held { number, version, blocks });
            }
            Command::Data { block, to: None, data } => self.on_data(block, data, out),
            Command::Data { block, to: Some(to), data } => out.send(
                to,
                match data {
                    Some(data) => Message::Copy { block, data },
                    None => Message::Unread { block },
                },
            ),
            Command::Stored { from, block, stored } => {
                self.keep.on_stored(block, stored, out);
                out.send(from, Message::Copied { block, stored });
            }
            Command::Sealed => self.on_sealed(out),
            Command::Live { number, blocks } => self.keep.on_live(number, blocks, out),
            Command::Lacking { number, blocks } => self.keep.on_lacking(number, blocks, out),
            Command::Scrubbed { number, bytes, damaged } => {
                self.keep.on_scrubbed((number, bytes), damaged, out);
            }
            Command::Damaged(block) => self.keep.on_damaged(block, out),
            Command::Scrub => self.keep.on_scrub(out),
            Command::Room(room) => self.keep.on_room(room),
            Command::Applied(updates) => self.keep.on_applied(updates),
        }
    }
}

impl Process for Drain {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Tick;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                out.timer(now + TICK, Tick::Look);
                self.refresh(out);
            }
            Event::Message { from, message } => self.on_message(from, message, out),
            Event::Command(command) => self.on_command(command, out),
            Event::Timer(Tick::Look) => self.on_tick(now, out),
            Event::Timer(Tick::Pace) => self.keep.on_pace(now, out),
            Event::Restarted(peer) => self.on_restarted(peer, out),
            Event::Idle => {}
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Sealed { since } => self.sealed = Some(since),
            Record::Unsealed => self.sealed = None,
            Record::Scrubbed(read) => self.keep.replay(read),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let sealed = self.sealed.map(|since| Record::Sealed { since });
        let read = self.keep.read().map(|read| Record::Scrubbed(Some(read)));
        Box::new(sealed.into_iter().chain(read))
    }
}
