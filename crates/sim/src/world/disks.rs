//! Disks that fail, and processes that find less on theirs than they had.

use crate::world::log::{DiskFailure, Found, Log};
use crate::world::owner::Owner;
use crate::world::{Item, Plan, World};
use meridian_core::standing::Standing;
use meridian_core::{Process, Time, mix};
use meridian_storage::SimDisk;
use rand::RngExt;
use std::time::Duration;

/// How long a process waits until what it knows of others is written down with nothing else.
const REMEMBER: Duration = Duration::from_millis(200);
/// When a process is tried again whose disk is not what it was, while some are away.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// A bug planted in what surrounds the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskBug {
    /// What waits for a flush is let out when the flush begins, not when it has ended.
    EarlyGate,
    /// Nobody minds a process whose disk is not what it was.
    OldDisk,
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
                self.log_event("disk", slot, slot, || why);
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
        let found = self.slots[slot].log.open().and_then(|found| {
            let objection = self.objection(slot);
            if objection.is_none() {
                self.mount(slot)?;
            }
            Ok((found, objection))
        });
        match found {
            Err(DiskFailure::Disk(why)) => {
                self.log_event("disk", slot, slot, || why);
                let seed = self.random.random();
                self.slots[slot].log.crash(0, seed);
                let after = self.up_to(self.faults.outage * 2);
                self.plan(after.max(TRY_AGAIN), Plan::Start(slot));
                None
            }
            Err(DiskFailure::Damaged(why)) => {
                assert!(self.slots[slot].tampered, "a crash has damaged a log: {why}");
                self.refuse(slot, why);
                None
            }
            Ok((_, Some(why))) => {
                self.refuse(slot, why);
                None
            }
            Ok((found, None)) => {
                self.slots[slot].tampered = false;
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

    /// Why one of those that are up objects to a process that starts.
    fn objection(&self, slot: usize) -> Option<String> {
        let standing = self.slots[slot].log.standing()?;
        let object = |other: usize| {
            let there = self.slots[other].up && !self.is_cut(slot, other);
            let checked = self.slots[other].acquaintances.check(slot, &standing);
            checked.err().filter(|_| there).map(|lost| lost.to_string())
        };
        let objects = self.others(slot).find_map(object);
        objects.filter(|_| self.bug != Some(DiskBug::OldDisk))
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
    pub(crate) fn hear(&mut self, slot: usize, from: usize, standing: Standing) -> bool {
        let known = &mut self.slots[slot].acquaintances;
        if let Err(lost) = known.check(from, &standing)
            && self.bug != Some(DiskBug::OldDisk)
        {
            if self.slots[from].up {
                self.crash_slot(from);
            }
            self.refuse(from, lost.to_string());
            return false;
        }
        known.meet(from, standing);
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

    /// A process is down and must not come back.
    fn refuse(&mut self, slot: usize, why: String) {
        self.log_event("refused", slot, slot, || why.clone());
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
                disk.set_capacity(Some(used));
                let after = self.up_to(self.faults.outage * 2);
                self.plan(after, Plan::DiskFreed(slot));
            }
        }
    }

    /// A process comes back with another disk than it had, or a damaged one. One in a world: what
    /// two have lost may be lost.
    pub(crate) fn lose_disk(&mut self, slot: usize) {
        if let Some(at) = self.slots.iter().position(|slot| slot.copy.is_some()) {
            let copy = self.slots[at].copy.take().expect("it has one");
            return self.tamper(at, |_| copy);
        }
        let spent = self.slots.iter().any(|slot| slot.tampered)
            || !self.refused.is_empty()
            || !self.owner.may_lose_disk();
        if spent || !self.slots[slot].up || !self.may_crash(slot) {
            return;
        }
        let (kind, draw) = (self.random.random_range(0..4), self.random.random::<u64>());
        match kind {
            0 => self.tamper(slot, |_| SimDisk::new()),
            1 => self.tamper(slot, |disk| {
                flip(&disk, draw);
                disk
            }),
            _ => self.slots[slot].copy = self.slots[slot].log.disk().map(SimDisk::copy),
        }
    }

    /// Crashes a process, if it is up, and gives it another disk.
    fn tamper(&mut self, slot: usize, make: impl FnOnce(SimDisk) -> SimDisk) {
        let Some(disk) = self.slots[slot].log.disk().cloned() else { return };
        if self.slots[slot].up {
            self.crash_slot(slot);
        }
        self.log_event("tamper", slot, slot, String::new);
        self.slots[slot].log.replace_disk(make(disk));
        self.slots[slot].tampered = true;
    }
}

/// Flips a bit somewhere on the disk.
fn flip(disk: &SimDisk, draw: u64) {
    let files: Vec<_> = disk.files().into_iter().filter(|(_, len)| *len > 0).collect();
    let Some((path, len)) = files.get((mix(draw) % files.len().max(1) as u64) as usize) else {
        return;
    };
    disk.flip(path, mix(draw ^ 1) % len, (draw % 8) as u8);
}
