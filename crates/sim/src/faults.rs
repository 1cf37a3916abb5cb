//! What may go wrong, and how it does.

use crate::world::Item;
use crate::world::Owner;
use crate::world::{Plan, What, World};
use meridian_core::{Process, Time};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::BTreeSet;
use std::time::Duration;

/// Which faults happen, and how often: each duration is the mean time between two of a kind in the
/// whole world; `None` for never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A process crashes: between two steps, or between two effects of a step.
    pub crash: Option<Duration>,
    /// All processes crash at once.
    pub crash_all: Option<Duration>,
    /// How long a crashed process is down, on average.
    pub outage: Duration,
    /// Not more than so many are down at once, but for `crash_all`.
    pub down_max: usize,
    /// The network falls into two parts, one of which may still hear the other.
    pub netsplit: Option<Duration>,
    /// A region of [`crate::Setup`] is cut off as a whole.
    pub region: Option<Duration>,
    /// How long a netsplit lasts, on average.
    pub split: Duration,
    /// The link between two processes is reset.
    pub reset: Option<Duration>,
    /// A process stops for a while.
    pub pause: Option<Duration>,
    /// How long it stops, on average.
    pub stop: Duration,
    /// Someone who leads others (see [`Owner::leads`]) crashes, stops long enough to be deposed, or
    /// is cut off alone.
    pub depose: Option<Duration>,
    /// A process replaces its log by a checkpoint.
    pub checkpoint: Option<Duration>,
    /// The clock of a process jumps forward.
    pub clock_jump: Option<Duration>,
    /// A disk is full for a while, or fails, which stops its process: see
    /// [`crate::Logs::on_disks`].
    pub disk: Option<Duration>,
    /// The disk of a process is emptied, damaged, or put back as it was some time ago. One in a
    /// world.
    pub lost_disk: Option<Duration>,
    /// Clocks start anywhere and run up to so many parts in a million fast.
    pub skew_ppm: Option<u64>,
}

impl Faults {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        Faults {
            crash: None,
            crash_all: None,
            outage: Duration::ZERO,
            down_max: usize::MAX,
            netsplit: None,
            region: None,
            split: Duration::ZERO,
            reset: None,
            pause: None,
            stop: Duration::ZERO,
            depose: None,
            checkpoint: None,
            clock_jump: None,
            disk: None,
            lost_disk: None,
            skew_ppm: None,
        }
    }

    /// Everything goes wrong but disks, each kind about once in `mean`.
    pub fn all(mean: Duration) -> Self {
        Faults {
            crash: Some(mean),
            crash_all: Some(mean * 20),
            outage: mean / 2,
            down_max: usize::MAX,
            netsplit: Some(mean),
            region: Some(mean * 5),
            split: mean,
            reset: Some(mean),
            pause: Some(mean),
            stop: mean / 2,
            depose: Some(mean * 5),
            checkpoint: Some(mean),
            clock_jump: Some(mean * 5),
            disk: None,
            lost_disk: None,
            skew_ppm: Some(50_000),
        }
    }

    /// Whether anything may go wrong.
    pub fn any(&self) -> bool {
        *self != Faults::none()
    }

    fn mean(&self, fault: Fault) -> Option<Duration> {
        match fault {
            Fault::Crash => self.crash,
            Fault::CrashAll => self.crash_all,
            Fault::Netsplit => self.netsplit,
            Fault::Region => self.region,
            Fault::Reset => self.reset,
            Fault::Pause => self.pause,
            Fault::Depose => self.depose,
            Fault::Checkpoint => self.checkpoint,
            Fault::ClockJump => self.clock_jump,
            Fault::Disk => self.disk,
            Fault::LostDisk => self.lost_disk,
        }
    }
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Crash,
    CrashAll,
    Netsplit,
    Region,
    Reset,
    Pause,
    Depose,
    Checkpoint,
    ClockJump,
    Disk,
    LostDisk,
}

const ALL: [Fault; 11] = [
    Fault::Crash,
    Fault::CrashAll,
    Fault::Netsplit,
    Fault::Region,
    Fault::Reset,
    Fault::Pause,
    Fault::Depose,
    Fault::Checkpoint,
    Fault::ClockJump,
    Fault::Disk,
    Fault::LostDisk,
];

/// How long someone who leads is paused to be deposed, at most.
const DEPOSED: Duration = Duration::from_secs(4);

/// How far a clock jumps forward at most.
const CLOCK_JUMP: Duration = Duration::from_secs(60);

/// Which of the records that are not durable survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unflushed {
    /// None of them.
    Lost,
    /// All, some, or none: the first ones, at random.
    Chance,
    /// All of them.
    Kept,
}

/// A cut in the network.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    from: BTreeSet<usize>,
    to: BTreeSet<usize>,
    both: bool,
}

/// Names a netsplit that was made by [`World::cut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutId(u64);

impl<P: Process, O: Owner<P>> World<P, O> {
    /// From now on these faults may happen, and no others.
    pub fn allow(&mut self, faults: Faults) {
        self.faults = faults;
        self.faults_generation += 1;
        for fault in ALL {
            self.plan_fault(fault);
        }
    }

    /// Ends all faults: starts who is down, mends the network, wakes who was stopped.
    pub fn heal(&mut self) {
        self.allow(Faults::none());
        let cuts: Vec<_> = self.cuts.keys().copied().collect();
        for cut in cuts {
            self.mend(cut);
        }
        for slot in 0..self.slots.len() {
            self.slots[slot].crash_point = None;
            self.slots[slot].paused_until = self.now;
            self.heal_disk(slot);
            self.start(slot);
        }
    }

    /// Crashes a process now; it stays down until [`World::restart`] or [`World::heal`].
    pub fn crash(&mut self, peer: P::Peer) {
        let slot = self.place(peer);
        if self.slots[slot].up {
            self.crash_slot(slot);
        }
    }

    /// Crashes a process after so many more effects; it stays down.
    pub fn crash_after(&mut self, peer: P::Peer, effects: u32) {
        let slot = self.place(peer);
        self.slots[slot].crash_point = Some(effects);
    }

    /// Says what survives all further crashes.
    pub fn keep_at_crashes(&mut self, unflushed: Unflushed) {
        self.unflushed = unflushed;
    }

    /// A process of [`crate::Setup::later`] is there from now on.
    pub fn enter(&mut self, peer: P::Peer) {
        let slot = self.place(peer);
        self.slots[slot].absent = false;
        self.start(slot);
    }

    /// Stops a process for good.
    pub fn retire(&mut self, peer: P::Peer) {
        self.crash(peer);
        let slot = self.place(peer);
        self.slots[slot].absent = true;
    }

    /// Starts a process that is down.
    pub fn restart(&mut self, peer: P::Peer) {
        self.start(self.place(peer));
    }

    /// Stops a process for `span`: it lives, but takes no step.
    pub fn pause(&mut self, peer: P::Peer, span: Duration) {
        let slot = self.place(peer);
        self.slots[slot].paused_until = (Time(self.now) + span).0;
    }

    /// The clock of a process jumps forward, as that of a machine that was paused.
    pub fn jump_clock(&mut self, peer: P::Peer, span: Duration) {
        let slot = self.place(peer);
        self.jump(slot, span);
    }

    /// Replaces the log of a process by a checkpoint, soon.
    pub fn checkpoint(&mut self, peer: P::Peer) {
        self.begin_checkpoint(self.place(peer));
    }

    /// Cuts the way from the processes `from` to the processes `to`, and back if `both`. Messages
    /// wait until it is mended.
    pub fn cut(&mut self, from: &[P::Peer], to: &[P::Peer], both: bool) -> CutId {
        let from = from.iter().map(|peer| self.place(*peer)).collect();
        let to = to.iter().map(|peer| self.place(*peer)).collect();
        CutId(self.add_cut(Cut { from, to, both }))
    }

    /// Ends a netsplit.
    pub fn mend_cut(&mut self, cut: CutId) {
        self.mend(cut.0);
    }

    /// Resets the link between two processes.
    pub fn reset(&mut self, a: P::Peer, b: P::Peer) {
        let (a, b) = (self.place(a), self.place(b));
        self.reset_link(a, b);
    }

    fn add_cut(&mut self, cut: Cut) -> u64 {
        let id = self.cuts.last_key_value().map_or(0, |(last, _)| last + 1);
        self.cuts.insert(id, cut);
        id
    }

    pub(crate) fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cuts.values().any(|cut| {
            (cut.from.contains(&a) && cut.to.contains(&b))
                || (cut.both && cut.from.contains(&b) && cut.to.contains(&a))
        })
    }

    /// Ends a cut. At random a link that it cut does not go on, but is reset.
    pub(crate) fn mend(&mut self, id: u64) {
        let Some(cut) = self.cuts.remove(&id) else { return };
        for a in &cut.from {
            for b in &cut.to {
                if a == b {
                    continue;
                }
                if self.faults.reset.is_some() && self.random.random_ratio(1, 4) {
                    self.reset_link(*a, *b);
                }
                self.pay_owed(*a, *b);
                self.pay_owed(*b, *a);
            }
        }
    }

    /// Loses what is under way in both directions, but perhaps the first of it.
    fn reset_link(&mut self, a: usize, b: usize) {
        if a == b || !self.slots[a].up || !self.slots[b].up {
            return;
        }
        self.log_event("reset", a, b, What::Words(format_args!("")));
        for (from, to) in [(a, b), (b, a)] {
            let keep = self.part_of(self.links[&(from, to)].queue.len());
            self.link(from, to).keep_first(keep);
            self.pay_owed(from, to);
            self.put_on_link(from, to, Item::Restarted);
        }
    }

    /// A process stops dead. Of its unflushed records some may survive, and so may what it sent
    /// last, if it was allowed to be seen.
    pub(crate) fn crash_slot(&mut self, slot: usize) {
        let log = &self.slots[slot].log;
        let on_disk = log.disk().is_some();
        let unflushed = usize::try_from(log.end() - log.durable()).expect("fits in memory");
        let keep = match self.unflushed {
            Unflushed::Lost => 0,
            Unflushed::Chance => self.part_of(unflushed),
            Unflushed::Kept => unflushed,
        };
        let what = format_args!("keeps {keep} of {unflushed} unflushed");
        self.log_event("crash", slot, slot, What::Words(what));
        let seed = if on_disk { self.random.random() } else { 0 };
        self.slots[slot].crash(keep as u64, seed);
        self.slots[slot].keeps_mail = self.random.random_bool(0.5);
        for other in self.others(slot) {
            // What was released last may or may not have left the machine; what comes to it now
            // waits for its next start or is lost.
            let sent = self.part_of(self.links[&(slot, other)].queue.len());
            self.link(slot, other).keep_first(sent);
            self.pay_owed(slot, other);
            let lost = self.part_of(self.links[&(other, slot)].queue.len());
            self.link(other, slot).lose_first(lost);
            if !self.slots[slot].keeps_mail {
                self.link(other, slot).keep_first(0);
            }
        }
        self.owner.crashed(self.slots[slot].peer, Time(self.now));
        if self.faults.any() {
            let after = self.up_to(self.faults.outage * 2);
            self.plan(after, Plan::Start(slot));
        }
    }

    fn plan_fault(&mut self, fault: Fault) {
        if let Some(mean) = self.faults.mean(fault) {
            let after = self.up_to(mean * 2);
            let generation = self.faults_generation;
            self.plan(after, Plan::Fault { fault, generation });
        }
    }

    pub(crate) fn on_fault(&mut self, fault: Fault) {
        self.plan_fault(fault);
        let slot = self.someone();
        match fault {
            Fault::Crash => self.crash_someone(slot),
            Fault::CrashAll => {
                for slot in 0..self.slots.len() {
                    if self.slots[slot].up && self.may_crash(slot) {
                        self.crash_slot(slot);
                    }
                }
            }
            Fault::Netsplit => self.split_at_random(),
            Fault::Region => self.cut_off_region(),
            Fault::Depose => self.depose_someone(),
            Fault::Reset => {
                let other = self.someone();
                self.reset_link(slot, other);
            }
            Fault::Pause => {
                let span = self.up_to(self.faults.stop * 2);
                self.slots[slot].paused_until = (Time(self.now) + span).0;
            }
            Fault::Checkpoint => self.begin_checkpoint(slot),
            Fault::Disk => self.fail_disk(slot),
            Fault::LostDisk => self.lose_disk(slot),
            Fault::ClockJump => {
                let span = self.up_to(CLOCK_JUMP);
                self.jump(slot, span);
            }
        }
    }

    fn jump(&mut self, slot: usize, span: Duration) {
        let offset = &mut self.slots[slot].clock.offset;
        *offset = (Time(*offset) + span).0;
        if self.slots[slot].up {
            self.on_timers(slot);
        }
    }

    /// Whether a crash leaves enough to come back from.
    pub(crate) fn may_crash(&self, slot: usize) -> bool {
        let lost = |other: &&usize| {
            let process = self.slots[**other].process.as_ref();
            **other != slot && process.is_none_or(|process| !self.owner.is_whole(process))
        };
        let others = |region: &Vec<usize>| region.iter().filter(lost).count();
        let mut of_slot = self.regions.iter().filter(|region| region.contains(&slot));
        let minority = self.disks || of_slot.all(|region| others(region) < (region.len() - 1) / 2);
        minority
            && self.owner.may_crash(self.slots[slot].peer, &self.processes().collect::<Vec<_>>())
    }

    /// One of those that are there, up or down.
    fn someone(&mut self) -> usize {
        let there: Vec<_> = (0..self.slots.len()).filter(|at| !self.slots[*at].absent).collect();
        there[self.random.random_range(0..there.len())]
    }

    /// Crashes a process now, or in the midst of one of its next steps.
    fn crash_someone(&mut self, slot: usize) {
        let down = self.slots.iter().filter(|slot| !slot.up).count();
        let down_max = self.faults.down_max;
        if !self.slots[slot].up || down >= down_max || !self.may_crash(slot) {
            return;
        }
        if self.random.random_bool(0.3) {
            self.crash_slot(slot);
            return;
        }
        self.slots[slot].crash_point = Some(self.random.random_range(0..30));
        let incarnation = self.slots[slot].incarnation;
        let after = self.up_to(Duration::from_millis(100));
        self.plan(after, Plan::CrashPoint { slot, incarnation });
    }

    fn split_at_random(&mut self) {
        let count = self.slots.len();
        // Often one alone; a leader that hears nobody is the interesting case.
        let from: BTreeSet<_> = if self.random.random_bool(0.4) {
            BTreeSet::from([self.someone()])
        } else {
            (0..count).filter(|_| self.random.random_bool(0.5)).collect()
        };
        let to = (0..count).filter(|slot| !from.contains(slot)).collect();
        let both = self.random.random_bool(0.7);
        let (from, to) = if self.random.random_bool(0.5) { (from, to) } else { (to, from) };
        self.cut_for_a_while(Cut { from, to, both });
    }

    fn cut_for_a_while(&mut self, cut: Cut) {
        let id = self.add_cut(cut);
        let after = self.up_to(self.faults.split * 2);
        self.plan(after, Plan::Mend(id));
    }

    fn cut_off_region(&mut self) {
        if self.regions.len() < 2 {
            return; // Nobody to be cut off from.
        }
        let region = self.random.random_range(0..self.regions.len());
        let from: BTreeSet<_> = self.regions[region].iter().copied().collect();
        let to = (0..self.slots.len()).filter(|slot| !from.contains(slot)).collect();
        let both = self.random.random_bool(0.8);
        let (from, to) = if self.random.random_bool(0.5) { (from, to) } else { (to, from) };
        self.cut_for_a_while(Cut { from, to, both });
    }

    fn depose_someone(&mut self) {
        let leads = |slot: &usize| {
            self.slots[*slot].process.as_ref().is_some_and(|process| self.owner.leads(process))
        };
        let leaders: Vec<_> = (0..self.slots.len()).filter(leads).collect();
        let Some(slot) = leaders.choose(&mut self.random).copied() else { return };
        match self.random.random_range(0..3) {
            0 => self.crash_someone(slot),
            1 => {
                let span = self.up_to(DEPOSED);
                self.slots[slot].paused_until = (Time(self.now) + span).0;
            }
            _ => {
                let both = self.random.random_bool(0.5);
                let to = self.others(slot).collect();
                self.cut_for_a_while(Cut { from: BTreeSet::from([slot]), to, both });
            }
        }
    }
}
