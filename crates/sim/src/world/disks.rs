//! Disks that fail, and processes that find less on theirs than they had.

use crate::world::log::{DiskFailure, Found, Log};
use crate::world::owner::Owner;
use crate::world::{Item, Plan, What, World};
use meridian_core::hello::{HelloError, Identity};
use meridian_core::introduction::{Forgotten, Introduction, Member, Mutation, Verdict};
use meridian_core::standing::Standing;
use meridian_core::{NodeId, Process, Time, mix};
use meridian_storage::SimDisk;
use rand::RngExt;
use std::time::Duration;

/// How long a process waits until what it knows of others is written down with nothing else.
const REMEMBER: Duration = Duration::from_millis(200);
/// When a process is tried again whose disk is not what it was, while some are away.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// How many bytes are left at most on a disk that becomes full: mostly enough for the log to go on,
/// and not for blocks.
const LEFT: u64 = 128 << 10;

/// A bug planted in what surrounds the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskBug {
    /// What waits for a flush is let out when the flush begins, not when it has ended.
    EarlyGate,
    /// Nobody minds a process whose disk is not what it was.
    OldDisk,
    /// A process compares what others know with its present start only.
    SkipsPast,
    /// Starts have no marks: one of an older disk is taken for another of the same number.
    SameStart,
    /// A process tells others of records that are not durable yet.
    TellsUnflushed,
}

/// What a slot is called in introductions.
fn name(slot: usize) -> NodeId {
    NodeId(u16::try_from(slot).expect("worlds are small"))
}

impl<P: Process, O: Owner<P>> World<P, O> {
    /// Does something with the log of a process that is up; if the disk refuses, the process stops.
    pub(crate) fn on_disk<T>(
        &mut self,
        slot: usize,
        what: impl FnOnce(&mut dyn Log<P::Record>) -> Result<T, DiskFailure>,
    ) -> Option<T> {
        match what(&mut *self.slots[slot].log) {
            Ok(done) => Some(done),
            Err(DiskFailure::Disk(why) | DiskFailure::Damaged(why)) => {
                self.log_event("disk", slot, slot, What::Words(format_args!("{why}")));
                self.stop(slot);
                None
            }
        }
    }

    /// A process stops as its disk has refused. It is started again, also where no other fault is
    /// to come any more.
    pub(crate) fn stop(&mut self, slot: usize) {
        self.crash_slot(slot);
        if !self.faults.any() {
            self.plan(TRY_AGAIN, Plan::Start(slot));
        }
    }

    /// What a process finds that starts; `None` if it cannot, or must not.
    pub(crate) fn open_log(&mut self, slot: usize) -> Option<Found<P::Record>> {
        if self.slots[slot].tampered && !self.is_whole_but(slot) {
            // Whoever puts an old disk back does so while those are there whom it spoke with.
            self.plan(TRY_AGAIN, Plan::Start(slot));
            return None;
        }
        let opened = self.slots[slot].log.open().and_then(|found| {
            self.mount(slot)?;
            Ok(found)
        });
        match opened {
            Err(DiskFailure::Disk(why)) => {
                self.log_event("disk", slot, slot, What::Words(format_args!("{why}")));
                let seed = self.random.random();
                self.slots[slot].log.crash(0, seed);
                let after = self.up_to(self.faults.outage * 2);
                self.plan(after.max(TRY_AGAIN), Plan::Start(slot));
                None
            }
            Err(DiskFailure::Damaged(why)) => {
                self.refuse(slot, why);
                None
            }
            Ok(found) => {
                self.slots[slot].acquaintances.restore(found.known.iter().copied());
                if let Some(forgotten) = self.introduce(slot) {
                    self.refuse(slot, forgotten.to_string());
                    return None;
                }
                (self.slots[slot].tampered, self.slots[slot].kept) = (false, None);
                Some(found)
            }
        }
    }

    /// The owner looks at what it has on the disk.
    fn mount(&mut self, slot: usize) -> Result<(), DiskFailure> {
        let place = &self.slots[slot];
        match place.log.disk() {
            Some(disk) => self.owner.mount(place.peer, disk, place.tampered),
            None => Ok(()),
        }
    }

    /// What a process says of itself to another.
    pub(crate) fn identity(&self, slot: usize, to: usize) -> Option<Identity<NodeId>> {
        let place = &self.slots[slot];
        let mut logged = place.log.standing()?.logged;
        if self.bug == Some(DiskBug::TellsUnflushed) {
            logged += place.log.end() - place.log.durable();
        }
        let introduction = place.introduction.as_ref()?;
        Some(introduction.identity(name(to), logged, place.acquaintances.get(to)))
    }

    /// A process that starts asks those that are there what they remember of it. What it has
    /// forgotten, if it has. Whoever does not answer is not waited for.
    fn introduce(&mut self, slot: usize) -> Option<Forgotten<NodeId>> {
        let place = &self.slots[slot];
        let (mut standing, mut starts) = (place.log.standing()?, place.log.starts().to_vec());
        if self.bug == Some(DiskBug::SameStart) {
            standing.mark = 0;
            starts.iter_mut().for_each(|start| start.mark = 0);
        }
        let member = Member { me: name(slot), durable: true, standing, starts };
        let skips = self.bug == Some(DiskBug::SkipsPast);
        let mutation = if skips { Mutation::SkipsPast } else { Mutation::Correct };
        let introduction = Introduction::new(member, self.others(slot).map(name));
        self.slots[slot].introduction = Some(introduction.with_mutation(mutation));
        for other in self.others(slot) {
            let near = !self.is_cut(slot, other) && !self.is_cut(other, slot);
            if !self.slots[other].up || !near {
                continue;
            }
            let (ours, theirs) = (self.identity(slot, other)?, self.identity(other, slot)?);
            self.meet(slot, &ours, &theirs);
            if !self.meet(other, &theirs, &ours) && self.has_forgotten(other) {
                self.turn_away(other);
            }
        }
        let own = self.slots[slot].introduction.as_mut()?;
        own.on_patience_lost();
        let forgotten = own.forgotten().filter(|_| self.bug != Some(DiskBug::OldDisk));
        if forgotten.is_none() {
            self.check_memory(slot);
        }
        forgotten
    }

    /// Two processes say who they are; whether the first may listen to the second.
    fn meet(&mut self, slot: usize, ours: &Identity<NodeId>, theirs: &Identity<NodeId>) -> bool {
        let introduction = self.slots[slot].introduction.as_mut().expect("it runs");
        match introduction.on_met(ours, theirs) {
            Ok(()) => true,
            Err(HelloError::Forgot(_)) => self.bug == Some(DiskBug::OldDisk),
            Err(HelloError::Refused(why)) => self.fail(&why),
        }
    }

    fn has_forgotten(&self, slot: usize) -> bool {
        let introduction = self.slots[slot].introduction.as_ref();
        introduction.is_some_and(|own| own.verdict() == Verdict::Stops)
    }

    /// A process that goes on with another disk lacks nothing that another knows of which is there,
    /// however often it was started meanwhile and however long its log has become so.
    fn check_memory(&self, slot: usize) {
        let Some(kept) = self.slots[slot].kept else { return };
        for other in self.others(slot).filter(|other| self.slots[*other].up) {
            let Some(known) = self.slots[other].acquaintances.get(slot) else { continue };
            let reached = |of: &Standing| (of.incarnation, of.logged);
            if reached(&known) > reached(&kept) {
                let (peer, by) = (self.slots[slot].peer, self.slots[other].peer);
                self.fail(&format!("memory: {peer:?} begins with less than {by:?} knows of it"));
            }
        }
    }

    /// Whether all others are up and can be reached, and nothing of the process is under way.
    fn is_whole_but(&self, slot: usize) -> bool {
        self.others(slot).all(|other| {
            let place = &self.slots[other];
            let message = |item: &Item<P::Message>| matches!(item, Item::Message(..));
            let quiet = !self.links[&(slot, other)].queue.iter().any(message);
            let near = !self.is_cut(slot, other) && !self.is_cut(other, slot);
            place.absent || (place.up && near && quiet)
        })
    }

    /// A process has said how far its log goes; whether it may be listened to.
    pub(crate) fn hear(&mut self, slot: usize, from: usize, theirs: &Identity<NodeId>) -> bool {
        let ours = self.identity(slot, from).expect("it is on a disk, too");
        if !self.meet(slot, &ours, theirs) {
            let who = if self.has_forgotten(slot) { slot } else { from };
            self.turn_away(who);
            return false;
        }
        self.slots[slot].acquaintances.meet(from, theirs.standing);
        let place = &mut self.slots[slot];
        if place.acquaintances.is_changed() && !place.remembers {
            place.remembers = true;
            let incarnation = place.incarnation;
            self.plan(REMEMBER, Plan::Remember { slot, incarnation });
        }
        true
    }

    pub(crate) fn on_remember(&mut self, slot: usize) {
        self.slots[slot].remembers = false;
        if self.slots[slot].acquaintances.is_changed() {
            self.want_flush(slot);
        }
    }

    /// A process that runs has lost what another knows of.
    fn turn_away(&mut self, slot: usize) {
        if self.slots[slot].up {
            self.crash_slot(slot);
        }
        self.refuse(slot, "another knows that it had more".into());
    }

    /// A process is down and must not come back.
    fn refuse(&mut self, slot: usize, why: String) {
        if self.slots[slot].absent {
            return; // What it sent before tells it once more.
        }
        if !self.slots[slot].altered {
            let peer = self.slots[slot].peer;
            self.fail(&format!("memory: {peer:?} is refused with its own disk: {why}"));
        }
        self.log_event("refused", slot, slot, What::Words(format_args!("{why}")));
        self.slots[slot].absent = true;
        let peer = self.slots[slot].peer;
        self.refused.push((peer, why));
        let stimuli = self.owner.refused(peer, Time(self.now));
        self.inject_all(stimuli);
    }

    /// The disk has room again, and does as it is told.
    pub(crate) fn free_disk(&mut self, slot: usize) {
        if let Some(disk) = self.slots[slot].log.disk() {
            disk.set_capacity(None);
        }
    }

    /// No fault of the disk is to come any more.
    pub(crate) fn heal_disk(&mut self, slot: usize) {
        self.free_disk(slot);
        self.slots[slot].copy = None;
        if let Some(disk) = self.slots[slot].log.disk() {
            disk.fail_no_more();
        }
    }

    /// A disk is full for a while, or fails with one of its next operations: its process stops.
    pub(crate) fn fail_disk(&mut self, slot: usize) {
        let (kind, soon) = (self.random.random_range(0..3), self.random.random_range(1..12));
        let Some(disk) = self.slots[slot].log.disk() else { return };
        match kind {
            0 => disk.fail_sync_at(disk.syncs() + 1),
            1 => disk.cut_power_at(disk.operations() + soon),
            _ => {
                let used: u64 = disk.files().iter().map(|(_, len)| len).sum();
                let left = self.random.random_range(0..=LEFT);
                disk.set_capacity(Some(used + left));
                let after = self.up_to(self.faults.outage * 2);
                self.plan(after, Plan::DiskFreed(slot));
            }
        }
    }

    /// A process comes back with another disk than it had, or a damaged one. One in a world: what
    /// two have lost may be lost.
    pub(crate) fn lose_disk(&mut self, slot: usize) {
        if let Some(at) = self.slots.iter().position(|slot| slot.copy.is_some()) {
            self.put_copy_back(at);
            return self.start_alone(at);
        }
        let spent = self.slots.iter().any(|slot| slot.tampered)
            || !self.refused.is_empty()
            || !self.owner.may_lose_disk();
        if spent || !self.slots[slot].up || !self.may_crash(slot) {
            return;
        }
        let (kind, draw) = (self.random.random_range(0..4), self.random.random::<u64>());
        match kind {
            0 => {
                self.tamper(slot, |_| SimDisk::new());
                self.slots[slot].kept = Some(Standing::default());
                self.start_alone(slot);
            }
            1 => self.tamper(slot, |disk| {
                flip(&disk, draw);
                disk
            }),
            _ => {
                self.copy_disk(slot);
                if kind == 2 {
                    self.crash_slot(slot); // As who stops a server to copy its disk.
                }
            }
        }
    }

    /// Keeps the disk of a process as it is, to be put back.
    pub(super) fn copy_disk(&mut self, slot: usize) {
        let log = &self.slots[slot].log;
        let copy = log.disk().map(SimDisk::copy);
        self.slots[slot].copy = copy.zip(log.standing());
    }

    /// A process comes back with the disk that was kept.
    pub(super) fn put_copy_back(&mut self, slot: usize) {
        let (copy, kept) = self.slots[slot].copy.take().expect("it was kept");
        self.tamper(slot, |_| copy);
        self.slots[slot].kept = Some(kept);
    }

    /// Crashes a process, if it is up, and gives it another disk.
    fn tamper(&mut self, slot: usize, make: impl FnOnce(SimDisk) -> SimDisk) {
        let Some(disk) = self.slots[slot].log.disk().cloned() else { return };
        if self.slots[slot].up {
            self.crash_slot(slot);
        }
        self.log_event("tamper", slot, slot, What::Words(format_args!("")));
        self.slots[slot].log.replace_disk(make(disk));
        (self.slots[slot].tampered, self.slots[slot].altered) = (true, true);
    }

    /// A process is started some times while it reaches nobody. Each start makes its log longer,
    /// and so does what it writes.
    fn start_alone(&mut self, slot: usize) {
        for _ in 0..self.random.random_range(0..4) {
            let (seed, flushes) = (self.random.random(), self.random.random_range(1..6));
            // A copy may lack what was written when it was made: then it does not start.
            let _ = write_alone(&mut *self.slots[slot].log, flushes);
            self.slots[slot].log.crash(0, seed);
        }
    }
}

/// Opens a log and makes it longer, with nothing new in it.
pub(super) fn write_alone<R>(log: &mut dyn Log<R>, flushes: u32) -> Result<(), DiskFailure> {
    let known = log.open()?.known;
    (0..flushes).try_for_each(|_| {
        let upto = log.begin_flush(known.clone())?;
        log.end_flush(upto)
    })
}

/// Flips a bit somewhere on the disk.
fn flip(disk: &SimDisk, draw: u64) {
    let files: Vec<_> = disk.files().into_iter().filter(|(_, len)| *len > 0).collect();
    let Some((path, len)) = files.get((mix(draw) % files.len().max(1) as u64) as usize) else {
        return;
    };
    disk.flip(path, mix(draw ^ 1) % len, (draw % 8) as u8);
}
