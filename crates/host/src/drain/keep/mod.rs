//! Copies are kept: each node sees to it that it holds what the ring gives it, and can read it.
//!
//! What must be held the trees say: a node knows which blocks the files of its partitions lie in,
//! and the ring of its region which of them are its own. It goes through their names again and
//! again, a page with each tick, and looks which are not here (`look`). Beside that it reads those
//! that are here, a full pass in [`Options::pass`] (`scrub`). What is missing or damaged it asks of
//! the other holders, one after the other (`fetch`). What others should hold in its place, as the
//! ring has changed or a node was down, it gives up when they do (`spare`).
//!
//! So nothing has to be noticed: a block that a region missed while it was cut off, a disk that
//! has lost some, a node that is new, and what a removed node held, are all the same.
//!
//! Invariants:
//! - C1: a block is fetched only if a file lies in it in a state of the tree here, or if it is
//!   here, damaged. What is freed meanwhile is freed once more by its age (decision 0042).
//! - C2: a copy is given up only after each node that the ring names instead has said, under the
//!   same configuration, that it holds the block durably and has read it.
//! - C3: no copy is given up under a configuration that is older than one under which another
//!   node has asked for copies here, nor while a node of the region is drained: who asked may
//!   count them.
//! - C4: reading and fetching take [`Options::bytes_per_s`] at most, and a quarter of it while
//!   clients change files here; fetching stops while the disk is nearly full.

mod fetch;
mod look;
mod scrub;
mod spare;

use super::{Drain, Mutation, TICK, Tick};
use crate::space::Room;
use fetch::Fetching;
use look::Looking;
use meridian_cluster::Topology;
use meridian_cluster::ring::Ring;
use meridian_core::{BlockId, NodeId, Outbox, RegionId, Time};
use scrub::Scrubbing;
use serde::{Deserialize, Serialize};
use spare::Sparing;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Fetching leaves this share of the disk to clients: what they can still write is worth more than
/// one copy more of what is there.
const LEFT_SHARE: u64 = 32;
/// It leaves no more than this, so that a large disk need not be empty to a good part for copies.
const LEFT_MAX: u64 = 1 << 30;

/// Whether copies may be fetched while the disk has so much room.
fn is_enough(room: Room) -> bool {
    room.writable > 0 && room.writable >= (room.total / LEFT_SHARE).min(LEFT_MAX)
}

/// So many parts of a tick get their share of what may be read or fetched in it, so that nothing
/// waits for all of that at once.
const SLICES: u32 = 16;
/// So many updates within a second say that clients change files here.
const BUSY: u64 = 32;
/// That part of the rate is left to copies while clients change files.
const BUSY_SHARE: u64 = 4;
/// So many blocks are on their way at a time: some megabytes, between which other messages pass.
const UNDER_WAY: usize = 8;

/// How fast copies are looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// How long it takes to read all blocks once.
    pub pass: Duration,
    /// So many bytes are read and fetched within a second at most; a quarter of it, and one block
    /// after the other, while clients change files.
    pub bytes_per_s: u64,
}

/// A week: a disk that loses a sector now and then does not lose both copies within it.
pub const PASS: Duration = Duration::from_secs(7 * 24 * 3600);
/// A fraction of what any disk or network takes, and a terabyte within nine hours.
pub const BYTES_PER_S: u64 = 32 << 20;

impl Default for Options {
    fn default() -> Options {
        Options { pass: PASS, bytes_per_s: BYTES_PER_S }
    }
}

/// How the copies are that a node should hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How many blocks files of this node's partitions lie in, as counted last: of each its region
    /// should have copies.
    pub live: u64,
    /// How many blocks the ring gives to this node, as counted last.
    pub own: u64,
    /// How many of them are not here.
    pub missing: u64,
    /// How many are here and cannot be read.
    pub damaged: u64,
    /// How many are asked of other nodes now.
    pub copying: u64,
    /// So many no node that was asked could give, when that was tried last.
    pub unfound: u64,
    /// How many were repaired since the start.
    pub repaired: u64,
    /// How many copies were given up since the start, as others hold them.
    pub given_up: u64,
    /// Nothing is copied, as the disk has too little room for more than clients write.
    pub lacks_room: bool,
    /// The pass in which all are read.
    pub scrub: ScrubReport,
}

/// How far the pass is in which all blocks are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// How many passes have ended since the start.
    pub passes: u64,
    /// Whether somebody wants it done now.
    pub is_urgent: bool,
    /// How many blocks were read in this pass, since the start.
    pub read: u64,
    /// How many of them were damaged.
    pub damaged: u64,
    /// The same of the last pass that has ended.
    pub last_read: u64,
    /// The same of the last pass that has ended.
    pub last_damaged: u64,
}

/// Where this node is, and who else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    topology: Arc<Topology>,
    me: NodeId,
    region: RegionId,
    /// By region: of the nodes that stay.
    rings: Vec<Ring>,
    mutation: Mutation,
}

impl Place {
    fn new(topology: Arc<Topology>, me: NodeId) -> Place {
        let regions = 0..u16::try_from(topology.regions.len()).unwrap_or(u16::MAX);
        let nodes = |region| topology.nodes_in(RegionId(region)).collect::<Vec<_>>();
        let rings = regions.map(|region| Ring::new(&nodes(region))).collect();
        let region = topology.node(me).region;
        Place { topology, me, region, rings, mutation: Mutation::Correct }
    }

    fn ring(&self) -> &Ring {
        &self.rings[usize::from(self.region.0)]
    }

    /// Whether this node is to hold any.
    fn stays(&self) -> bool {
        self.topology.nodes_in(self.region).any(|node| node == self.me)
    }

    /// Whether the ring gives this block to this node.
    fn is_own(&self, block: BlockId) -> bool {
        let group = self.topology.groups.get(usize::from(block.partition().0));
        let is_here = group.is_none_or(|group| group.region.is_none_or(|of| of == self.region));
        is_here && self.ring().holders(block).contains(&self.me)
    }

    /// Who may have a block, the likeliest first: this region's nodes, those that are drained,
    /// then other regions'.
    fn others(&self, block: BlockId) -> VecDeque<NodeId> {
        let drained = self.topology.draining_in(self.region).map(|(node, _)| node);
        let mut all: VecDeque<_> =
            self.ring().placement(block).into_iter().chain(drained).collect();
        let group = self.topology.groups.get(usize::from(block.partition().0));
        if group.is_some_and(|group| group.region.is_none()) {
            let far = self.rings.iter().enumerate();
            let far = far.filter(|(region, _)| *region != usize::from(self.region.0));
            all.extend(far.flat_map(|(_, ring)| ring.placement(block)));
        }
        all.retain(|node| *node != self.me);
        all
    }
}

/// What has to do with other things than what a node gives away: odd numbers are for its questions,
/// even ones for those of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 += 2;
        self.0
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Keep {
    options: Options,
    place: Place,
    numbers: Numbers,
    /// Bytes that may be read or fetched until the next slice; what was too much is made up for.
    budget: i64,
    /// Slices come by themselves.
    is_paced: bool,
    /// How many updates were applied, and whether many in the last tick.
    applied: u64,
    is_busy: bool,
    has_room: bool,
    /// For tests of a drain alone: copies are not looked after.
    is_off: bool,
    look: Looking,
    scrub: Scrubbing,
    fetch: Fetching,
    spare: Sparing,
}

impl Keep {
    pub fn new(topology: Arc<Topology>, me: NodeId) -> Keep {
        Keep {
            options: Options::default(),
            place: Place::new(topology, me),
            numbers: Numbers(1),
            budget: 0,
            is_paced: false,
            applied: 0,
            is_busy: false,
            has_room: true,
            is_off: false,
            look: Looking::default(),
            scrub: Scrubbing::default(),
            fetch: Fetching::default(),
            spare: Sparing::default(),
        }
    }

    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    pub fn set_mutation(&mut self, mutation: Mutation) {
        self.place.mutation = mutation;
    }

    pub fn turn_off(&mut self) {
        self.is_off = true;
    }

    pub fn report(&self) -> Report {
        let counted = self.look.counted();
        let (missing, damaged) = self.fetch.wanted(counted.missing);
        Report {
            live: counted.live,
            own: counted.own,
            missing,
            damaged,
            copying: self.fetch.under_way(),
            unfound: self.fetch.unfound(),
            repaired: self.fetch.repaired(),
            given_up: self.spare.given_up(),
            lacks_room: !self.has_room,
            scrub: self.scrub.report(),
        }
    }

    /// The cluster is configured so now.
    pub fn on_configured(&mut self, topology: Arc<Topology>) {
        let mutation = self.place.mutation;
        self.place = Place { mutation, ..Place::new(topology, self.place.me) };
        self.spare.reset();
    }

    /// The disk has so much room.
    pub fn on_room(&mut self, room: Room) {
        self.has_room = is_enough(room);
    }

    /// So many updates were applied since the start; told once before each tick.
    pub fn on_applied(&mut self, updates: u64) {
        self.is_busy = updates.saturating_sub(self.applied) >= BUSY;
        self.applied = updates;
    }

    /// The node takes blocks, or does not, as it is to go.
    pub fn on_tick(&mut self, now: Time, takes_blocks: bool, out: &mut Outbox<Drain>) {
        if !takes_blocks || !self.place.stays() || self.is_off {
            self.fetch.stop();
            self.spare.reset();
            return;
        }
        self.fetch.on_tick(&self.place, out);
        self.look.on_tick(&self.place, &mut self.numbers, out);
        self.scrub.on_tick(self.look.counted().own, self.options.pass);
        self.spare.on_tick(&self.place, &mut self.numbers, out);
        if !self.is_paced {
            self.on_slice(out);
            self.pace(now, out);
        }
    }

    /// The next slice has come.
    pub fn on_pace(&mut self, now: Time, out: &mut Outbox<Drain>) {
        if self.place.stays() && !self.is_off {
            self.on_slice(out);
        }
        self.pace(now, out);
    }

    /// Has another slice come while there is something to read or to fetch.
    fn pace(&mut self, now: Time, out: &mut Outbox<Drain>) {
        let has_more = self.fetch.has_more() || self.reads_more();
        self.is_paced = has_more && self.place.stays() && !self.is_off;
        if self.is_paced {
            out.timer(now + TICK / SLICES, Tick::Pace);
        }
    }

    fn on_slice(&mut self, out: &mut Outbox<Drain>) {
        let share = if self.is_busy { BUSY_SHARE } else { 1 };
        let most =
            i64::try_from(self.options.bytes_per_s / u64::from(SLICES) / share).unwrap_or(i64::MAX);
        self.budget = self.budget.saturating_add(most).min(most);
        self.read_more(out);
        self.fetch_more(out);
    }

    /// Whether blocks are to be read.
    fn reads_more(&self) -> bool {
        let never = self.place.mutation.is(Mutation::NeverScrubs);
        self.scrub.has_more(self.options.pass) && !never
    }

    fn read_more(&mut self, out: &mut Outbox<Drain>) {
        if self.budget > 0 && self.reads_more() {
            self.scrub.go_on(&mut self.numbers, self.options.pass, out);
        }
    }

    fn fetch_more(&mut self, out: &mut Outbox<Drain>) {
        if self.budget > 0 && self.has_room {
            let most = if self.is_busy { 1 } else { UNDER_WAY };
            self.fetch.go_on(&self.place, most, out);
        }
    }

    /// Names of blocks that files lie in, for who has asked.
    pub fn on_live(&mut self, number: u64, blocks: Vec<BlockId>, out: &mut Outbox<Drain>) {
        if self.look.has_asked(number) {
            self.fetch.seen(self.look.pass(), &blocks);
            self.look.on_live(&self.place, blocks, out);
            self.end_look();
        } else if self.scrub.has_asked(number) {
            let (place, pass) = (&self.place, self.options.pass);
            if let Some(read) = self.scrub.on_live(place, pass, blocks, out) {
                out.note(super::Record::Scrubbed(read));
            }
        }
    }

    /// Those of the blocks looked for that are not here.
    pub fn on_lacking(&mut self, number: u64, blocks: Vec<BlockId>, out: &mut Outbox<Drain>) {
        if !self.look.has_asked(number) {
            return;
        }
        for block in self.look.on_lacking(blocks) {
            self.fetch.want(block, fetch::Why::Missing, self.look.pass());
        }
        self.end_look();
        self.fetch_more(out);
    }

    fn end_look(&mut self) {
        if self.look.take_end() {
            self.fetch.on_looked(self.look.pass());
        }
    }

    /// A page of blocks was read.
    pub fn on_scrubbed(
        &mut self,
        (number, bytes): (u64, u64),
        damaged: Vec<BlockId>,
        out: &mut Outbox<Drain>,
    ) {
        if !self.scrub.has_asked(number) {
            return;
        }
        let (cost, read) = self.scrub.on_read(bytes, damaged.len() as u64);
        self.budget = self.budget.saturating_sub(i64::try_from(cost).unwrap_or(i64::MAX));
        if let Some(read) = read {
            out.note(super::Record::Scrubbed(read));
        }
        damaged.into_iter().for_each(|block| self.on_damaged(block, out));
        self.read_more(out);
    }

    /// A block that is here was read, and is damaged.
    pub fn on_damaged(&mut self, block: BlockId, out: &mut Outbox<Drain>) {
        self.fetch.want(block, fetch::Why::Damaged, self.look.pass());
        self.fetch_more(out);
    }

    /// A node sends a block, which this one may have asked for.
    pub fn on_copy(&mut self, block: BlockId, len: usize) {
        if self.fetch.on_copy(block) {
            self.budget = self.budget.saturating_sub(i64::try_from(len).unwrap_or(i64::MAX));
        }
    }

    /// A block that a node sent was stored, or was not.
    pub fn on_stored(&mut self, block: BlockId, stored: bool, out: &mut Outbox<Drain>) {
        if self.fetch.on_stored(block, stored) {
            self.look.on_repaired();
        }
        self.fetch_more(out);
    }

    /// A node cannot give a block that it was asked for.
    pub fn on_unread(&mut self, from: NodeId, block: BlockId, out: &mut Outbox<Drain>) {
        self.fetch.on_unread(&self.place, from, block, out);
        self.fetch_more(out);
    }

    /// What was asked of `peer` may be lost.
    pub fn on_restarted(&mut self, peer: NodeId, out: &mut Outbox<Drain>) {
        self.fetch.on_restarted(&self.place, peer, out);
    }

    /// Names of blocks that are here.
    pub fn on_names(&mut self, number: u64, blocks: &[BlockId], out: &mut Outbox<Drain>) {
        self.spare.on_names(&self.place, &mut self.numbers, number, blocks, out);
    }

    /// Another node asks which blocks are here, under that configuration.
    pub fn on_asked(&mut self, version: u64) {
        self.spare.on_asked(version);
    }

    /// Another node holds some of what this one wants to give up.
    pub fn on_held(
        &mut self,
        from: NodeId,
        (number, version): (u64, u64),
        blocks: &[BlockId],
        out: &mut Outbox<Drain>,
    ) {
        self.spare.on_held(&self.place, from, (number, version), blocks, out);
    }

    /// All is to be read now.
    pub fn on_scrub(&mut self, out: &mut Outbox<Drain>) {
        self.scrub.begin_now();
        self.read_more(out);
    }

    /// The pass that was under way had come so far.
    pub fn replay(&mut self, read: Option<BlockId>) {
        self.scrub.replay(read);
    }

    /// How far the pass is that is under way.
    pub fn read(&self) -> Option<BlockId> {
        self.scrub.cursor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_disk_leaves_a_gibibyte_to_clients_and_no_more() {
        let is_enough = |writable, total| is_enough(Room { writable, total, ..Room::default() });
        assert!(is_enough(2 << 30, 250 << 30) && !is_enough((1 << 30) - 1, 250 << 30));
        assert!(is_enough(1 << 20, 32 << 20) && !is_enough((1 << 20) - 1, 32 << 20));
        assert!(!is_enough(0, 0));
    }
}
