//! One process with its log, its clock, its timers, and what waits for durability.

use meridian_core::{Event, Process, Time};
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

/// What waits until all records before it are durable.
pub(crate) enum Visible<P: Process> {
    Send { to: P::Peer, message: P::Message },
    Output(P::Output),
}

/// A log on a simulated disk: a checkpoint and the records after it, of which the first are
/// durable. Records are numbered from 0 over all incarnations.
#[derive(Debug)]
pub(crate) struct Log<R> {
    checkpoint: Vec<R>,
    records: VecDeque<R>,
    /// The number of the first in `records`.
    first: u64,
    /// All records below this number are durable.
    durable: u64,
}

impl<R> Default for Log<R> {
    fn default() -> Self {
        Log { checkpoint: Vec::new(), records: VecDeque::new(), first: 0, durable: 0 }
    }
}

impl<R: Clone> Log<R> {
    /// The number that the next record gets.
    pub fn end(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    pub fn durable(&self) -> u64 {
        self.durable
    }

    pub fn append(&mut self, record: R) {
        self.records.push_back(record);
    }

    pub fn flushed(&mut self, upto: u64) {
        self.durable = self.durable.max(upto);
    }

    /// Loses what is not durable but its first `keep` records.
    pub fn crash(&mut self, keep: u64) {
        let stays = self.durable - self.first + keep;
        self.records.truncate(usize::try_from(stays).expect("fits in memory"));
        self.durable = self.end();
    }

    /// `checkpoint` stands for all records below `upto` and is durable.
    pub fn replace(&mut self, upto: u64, checkpoint: Vec<R>) {
        self.records.drain(..usize::try_from(upto - self.first).expect("fits in memory"));
        self.checkpoint = checkpoint;
        self.first = upto;
        self.flushed(upto);
    }

    /// What is found on the disk after a crash.
    pub fn replay(&self) -> impl Iterator<Item = R> + '_ {
        self.checkpoint.iter().chain(&self.records).cloned()
    }
}

/// A checkpoint that is being written.
pub(crate) struct Checkpoint<R> {
    /// It stands for the records below this number.
    pub upto: u64,
    /// Not drawn yet.
    pub records: Box<dyn Iterator<Item = R> + Send>,
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
    pub log: Log<P::Record>,
    pub flushing: bool,
    /// Sends and outputs wait for all records below this number.
    pub gate: u64,
    pub held: VecDeque<(u64, Visible<P>)>,
    pub checkpoint: Option<Checkpoint<P::Record>>,
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
    pub fn new(peer: P::Peer) -> Self {
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
            log: Log::default(),
            flushing: false,
            gate: 0,
            held: VecDeque::new(),
            checkpoint: None,
            crash_point: None,
            keeps_mail: false,
            ran: false,
            absent: false,
        }
    }

    /// Forgets all that a crash destroys: without a disk all; else `keep` of the records that are
    /// not durable survive.
    pub fn crash(&mut self, keep: u64, disk: bool) {
        assert!(self.up, "{:?} is down already", self.peer);
        self.up = false;
        self.process = None;
        self.incarnation += 1;
        self.inbox.clear();
        self.scheduled = false;
        self.timers.clear();
        self.held.clear();
        self.log.crash(keep);
        if !disk {
            self.log = Log::default();
        }
        self.flushing = false;
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
    fn a_crash_loses_what_is_not_durable() {
        let mut log = Log::default();
        for record in 0..5 {
            log.append(record);
        }
        log.flushed(2);
        log.crash(1);
        assert!(log.replay().eq(0..3));
        log.replace(2, vec![100]);
        assert!(log.replay().eq([100, 2]));
        log.append(3);
        log.crash(0);
        assert!(log.replay().eq([100, 2]));
        assert_eq!(log.end(), 3);
    }

    #[test]
    fn a_clock_finds_back() {
        let clock = Clock { offset: 77, fast_ppm: 30_000 };
        for world in [0, 1, 999, 123_456_789] {
            let back = clock.when(clock.at(world));
            assert!(back <= world && world - back <= 2);
        }
    }
}
