//! Blocks on their way: stored in all regions that hold a file, fetched from a node that has them.
//!
//! | module | what |
//! | --- | --- |
//! | `storing` | one block on its way to all its regions |
//! | [`placing`] | one block on its way to the nodes of one region |
//! | `fetching` | a part of a block, which nodes are asked for one after the other |
//!
//! A slow node may still answer when another one has been asked: its answer counts as long as the
//! call goes on.
//!
//! Invariants:
//! - B3: a request belongs to a block on its way.
//! - B4: a block on its way is due at exactly one time.

mod fetching;
mod names;
pub mod placing;
mod storing;

use crate::calls::{CallId, Failure, Output};
use crate::nodes::Nodes;
use crate::session::Session;
use bytes::Bytes;
use fetching::Fetching;
use meridian_core::{BlockId, GroupId, NodeId, Outbox, RegionId, Time};
use meridian_host::api::{NAMES_MAX, Reply, ReplyBody, RequestBody};
pub use names::BlockNames;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use storing::Storing;

/// How long one node may take to store or read a block before another is asked: a flush of its
/// disk and the bytes' way, with much to spare.
const NODE_LIMIT: Duration = Duration::from_secs(3);
/// How long to wait when all nodes that might do it failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A block that is to be stored for a file.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its name, which no other block has.
    pub name: BlockId,
    /// Its bytes.
    pub data: Bytes,
}

/// A part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of which block.
    pub block: BlockId,
    /// From which byte.
    pub start: u32,
    /// How many bytes.
    pub len: u32,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is stored, except in these regions.
    Stored {
        missing: Vec<RegionId>,
    },
    Fetched(Bytes),
    Failed(Failure),
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There are few, and none for long.
enum Work {
    Storing(Storing),
    Fetching(Fetching),
}

impl Work {
    /// The nodes that are to be asked now.
    fn ask(&mut self, now: Time, nodes: &Nodes) -> Vec<NodeId> {
        match self {
            Work::Storing(storing) => storing.ask(now),
            Work::Fetching(fetching) => fetching.ask(now, nodes).into_iter().collect(),
        }
    }

    fn body(&self) -> RequestBody {
        match self {
            Work::Storing(storing) => storing.body(),
            Work::Fetching(fetching) => fetching.body(),
        }
    }

    /// A node has answered; nothing, if the connection to it was lost.
    fn on_answer(&mut self, now: Time, from: NodeId, reply: Option<ReplyBody>, nodes: &mut Nodes) {
        match self {
            Work::Storing(storing) => storing.on_answer(now, from, reply, nodes),
            Work::Fetching(fetching) => fetching.on_answer(now, from, reply, nodes),
        }
    }

    /// Its time has come.
    fn on_due(&mut self, now: Time, nodes: &mut Nodes) {
        match self {
            Work::Storing(storing) => storing.on_due(now, nodes),
            Work::Fetching(fetching) => fetching.on_due(now, nodes),
        }
    }

    fn due(&self) -> Time {
        match self {
            Work::Storing(storing) => storing.due(),
            Work::Fetching(fetching) => fetching.due(),
        }
    }

    fn outcome(&self, now: Time) -> Option<Outcome> {
        match self {
            Work::Storing(storing) => storing.outcome(now),
            Work::Fetching(fetching) => fetching.outcome(now),
        }
    }
}

/// One block on its way.
#[derive(Clone, Debug)]
struct Way {
    work: Work,
    /// The requests that may still be answered.
    open: Vec<u64>,
    due: Time,
}

/// All nodes that may hold these blocks of files in `partition` hear, once, that no update will
/// ever name them. One that does not hear it finds them by their age.
pub(crate) fn discard(
    now: Time,
    partition: GroupId,
    blocks: &[BlockId],
    nodes: &mut Nodes,
    out: &mut Outbox<Session>,
) {
    let mut by_node: BTreeMap<NodeId, Vec<BlockId>> = BTreeMap::new();
    for block in blocks {
        for node in nodes.holders(partition, *block, now) {
            by_node.entry(node).or_default().push(*block);
        }
    }
    for (node, blocks) in by_node {
        for some in blocks.chunks(NAMES_MAX) {
            nodes.ask(now, node, RequestBody::Discard { blocks: some.to_vec() }, out);
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    ways: BTreeMap<CallId, Way>,
    /// By number: for which call, and which node was asked.
    requests: BTreeMap<u64, (CallId, NodeId)>,
    due: BTreeSet<(Time, CallId)>,
}

impl Blocks {
    /// Stores a block for a file in `partition`.
    pub fn store(
        &mut self,
        now: Time,
        call: CallId,
        (partition, block, deadline): (GroupId, Block, Time),
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) {
        let storing = Storing::new(now, partition, block, deadline, nodes);
        self.begin(now, call, Work::Storing(storing), nodes, out);
    }

    /// Fetches a part of a block, of a file in `partition`.
    pub fn fetch(
        &mut self,
        now: Time,
        call: CallId,
        (partition, part, deadline): (GroupId, Part, Time),
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) {
        let fetching = Fetching::new(now, partition, part, deadline, nodes);
        self.begin(now, call, Work::Fetching(fetching), nodes, out);
    }

    fn begin(
        &mut self,
        now: Time,
        call: CallId,
        work: Work,
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) {
        let way = Way { work, open: Vec::new(), due: now };
        self.due.insert((now, call));
        self.ways.insert(call, way);
        self.go_on(now, call, nodes, out);
    }

    /// When something is to be done without an answer.
    pub fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Whether the request is for a block.
    pub fn knows(&self, request: u64) -> bool {
        self.requests.contains_key(&request)
    }

    /// Nobody waits for it any more.
    pub fn end(&mut self, call: CallId) {
        if let Some(way) = self.ways.remove(&call) {
            self.due.remove(&(way.due, call));
            for request in way.open {
                self.requests.remove(&request);
            }
        }
    }

    /// A node has answered.
    pub fn on_reply(
        &mut self,
        now: Time,
        from: NodeId,
        reply: Reply,
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) {
        if self.requests.get(&reply.id).is_some_and(|(_, node)| *node == from) {
            self.on_answer(now, reply.id, Some(reply.body), nodes, out);
        }
    }

    /// The connection to `node` is lost, or cannot be opened, and with it what was asked there.
    pub fn on_lost(
        &mut self,
        now: Time,
        node: NodeId,
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) {
        let asked = self.requests.iter().filter(|(_, (_, of))| *of == node);
        let lost: Vec<_> = asked.map(|(request, _)| *request).collect();
        lost.into_iter().for_each(|request| self.on_answer(now, request, None, nodes, out));
    }

    /// What is due goes on: another node is asked, or it is given up.
    pub fn on_due(&mut self, now: Time, nodes: &mut Nodes, out: &mut Outbox<Session>) {
        while let Some((_, call)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.ways.get_mut(&call).expect("B4: who is due goes on").work.on_due(now, nodes);
            self.go_on(now, call, nodes, out);
        }
    }

    fn on_answer(
        &mut self,
        now: Time,
        request: u64,
        reply: Option<ReplyBody>,
        nodes: &mut Nodes,
        out: &mut Outbox<Session>,
    ) {
        let Some((call, from)) = self.requests.remove(&request) else { return };
        let way = self.ways.get_mut(&call).expect("B3: requests belong to blocks on their way");
        way.open.retain(|open| *open != request);
        way.work.on_answer(now, from, reply, nodes);
        self.go_on(now, call, nodes, out);
    }

    /// Tells the outcome, or asks who is to be asked now.
    fn go_on(&mut self, now: Time, call: CallId, nodes: &mut Nodes, out: &mut Outbox<Session>) {
        let way = self.ways.get_mut(&call).expect("the caller has it");
        if way.work.outcome(now).is_none() {
            for to in way.work.ask(now, nodes) {
                let number = nodes.ask(now, to, way.work.body(), out);
                way.open.push(number);
                self.requests.insert(number, (call, to));
            }
        }
        match way.work.outcome(now) {
            Some(outcome) => {
                self.end(call);
                if let Outcome::Stored { missing } = &outcome {
                    Storing::note_missing(missing, now, nodes);
                }
                out.output(match outcome {
                    Outcome::Stored { missing } => Output::Stored { call, missing },
                    Outcome::Fetched(data) => Output::Fetched { call, data },
                    Outcome::Failed(failure) => Output::GaveUp { call, failure },
                });
            }
            None => {
                self.due.remove(&(way.due, call));
                way.due = way.work.due();
                self.due.insert((way.due, call));
            }
        }
    }

    /// Checks what must hold between steps.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        for (request, (call, _)) in &self.requests {
            let of = self.ways.get(call);
            assert!(of.is_some_and(|of| of.open.contains(request)), "B3: request {request}");
        }
        let open: usize = self.ways.values().map(|way| way.open.len()).sum();
        assert_eq!(open, self.requests.len(), "B3: open requests");
        let due = self.ways.iter().map(|(call, way)| (way.due, *call));
        assert_eq!(due.collect::<BTreeSet<_>>(), self.due, "B4");
    }
}

#[cfg(test)]
mod tests;
