//! One process with its log, its clock, its timers, and what waits for durability.

use super::log::Log;
use meridian_core::introduction::Introduction;
use meridian_core::standing::{Acquaintances, Standing};
use meridian_core::{Event, NodeId, Process, Time, Visible};
use meridian_storage::SimDisk;
use std::collections::{BTreeSet, VecDeque};

/// A clock that starts anywhere and runs fast or slow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// Added to the world's time.
    pub offset: u64,
    /// How many parts in a million it runs fast.
    pub fast_ppm: u64,
}

impl Clock {
    /// What it shows at the world's time `now`.
    pub fn at(self, now: u64) -> Time {
        let gain = u128::from(now) * u128::from(self.fast_ppm) / 1_000_000;
        Time(self.offset + now + u64::try_from(gain).expect("no world lasts so long"))
    }

    /// A time of the world, not after the first at which it shows `time` by more than rounding.
    pub fn when(self, time: Time) -> u64 {
        let shown = u128::from(time.0.saturating_sub(self.offset));
        let world = shown * 1_000_000 / (1_000_000 + u128::from(self.fast_ppm));
        u64::try_from(world).unwrap_or(u64::MAX)
    }
}

/// A place for a process: what a machine is to a server.
pub(crate) struct Slot<P: Process> {
    pub peer: P::Peer,
    /// `None` while it is down (or steps).
    pub process: Option<P>,
    /// Whether it is up.
    pub up: bool,
    /// Counts starts and crashes: what was planned for an earlier one is void.
    pub incarnation: u64,
    pub clock: Clock,
    pub inbox: VecDeque<Event<P>>,
    /// Whether a run is planned.
    pub scheduled: bool,
    pub busy_until: u64,
    pub paused_until: u64,
    /// How many timers were set: what tells equal ones apart.
    pub timers_set: u64,
    pub timers: BTreeSet<(Time, u64, P::Timer)>,
    pub log: Box<dyn Log<P::Record>>,
    /// What it knows of how far the logs of others go.
    pub acquaintances: Acquaintances<usize>,
    /// How it introduces itself, if its log is on a disk.
    pub introduction: Option<Introduction<NodeId>>,
    /// Whether what it knows is going to be written down.
    pub remembers: bool,
    /// Its disk as it was once, to be put back, and how far its log went.
    pub copy: Option<(SimDisk, Standing)>,
    /// Whether its disk is not what it was: it may have forgotten what it said.
    pub tampered: bool,
    /// Whether it ever was not.
    pub altered: bool,
    /// How far its log goes for sure: its disk was exchanged.
    pub kept: Option<Standing>,
    pub flushing: bool,
    /// Records up to this number are being flushed, or were.
    pub begun: u64,
    /// Sends and outputs wait for all records below this number.
    pub gate: u64,
    pub held: VecDeque<(u64, Visible<P>)>,
    /// The records of a checkpoint that is being written; not drawn yet.
    pub checkpoint: Option<Box<dyn Iterator<Item = P::Record> + Send>>,
    /// It crashes after so many effects.
    pub crash_point: Option<u32>,
    /// Whether messages that come while it is down wait for its next start.
    pub keeps_mail: bool,
    /// Whether it ran before.
    pub ran: bool,
    /// Whether it is not there: not yet, or no more.
    pub absent: bool,
}

impl<P: Process> Slot<P> {
    pub fn new(peer: P::Peer, log: Box<dyn Log<P::Record>>) -> Self {
        Slot {
            peer,
            process: None,
            up: false,
            incarnation: 0,
            clock: Clock::default(),
            inbox: VecDeque::new(),
            scheduled: false,
            busy_until: 0,
            paused_until: 0,
            timers_set: 0,
            timers: BTreeSet::new(),
            log,
            acquaintances: Acquaintances::default(),
            introduction: None,
            remembers: false,
            copy: None,
            tampered: false,
            altered: false,
            kept: None,
            flushing: false,
            begun: 0,
            gate: 0,
            held: VecDeque::new(),
            checkpoint: None,
            crash_point: None,
            keeps_mail: false,
            ran: false,
            absent: false,
        }
    }

    /// Forgets all that a crash destroys: of the records that are not durable `keep` survive, or
    /// what the disk draws from the seed.
    pub fn crash(&mut self, keep: u64, seed: u64) {
        assert!(self.up, "{:?} is down already", self.peer);
        self.up = false;
        self.process = None;
        self.incarnation += 1;
        self.inbox.clear();
        self.scheduled = false;
        self.timers.clear();
        self.held.clear();
        self.log.crash(keep, seed);
        self.acquaintances = Acquaintances::default();
        self.introduction = None;
        self.remembers = false;
        self.flushing = false;
        self.begun = 0;
        self.gate = 0;
        self.checkpoint = None;
        self.crash_point = None;
        self.paused_until = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_finds_back() {
        let clock = Clock { offset: 77, fast_ppm: 30_000 };
        for world in [0, 1, 999, 123_456_789] {
            let back = clock.when(clock.at(world));
            assert!(back <= world && world - back <= 2);
        }
    }
}
