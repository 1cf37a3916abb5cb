//! Updates of other regions, from their labels and their data to who applies them.
//!
//! The receiver says what is to be applied, once all that it depends on is. The data comes apart;
//! what does not come is asked for. To apply an update may take its time, and may have to be tried
//! again; when it is applied once more it changes nothing.

use crate::{Options, Timestamp, Update, Vector};
use meridian_core::{RegionId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// An update of another region: where and when it was made.
pub type Name = (RegionId, Timestamp);

/// Data that is to be applied, and was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Wanted {
    /// Last at this time.
    asked: Option<Time>,
    /// So often.
    times: usize,
}

/// What is known of updates of other regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Inbox {
    /// Data that has come, and is not to be applied yet.
    early: BTreeMap<Name, Update>,
    wanted: BTreeMap<Name, Wanted>,
    /// What is being applied.
    begun: BTreeSet<Name>,
    /// What was applied, above what the receiver knows to be.
    applied: BTreeSet<Name>,
    /// Up to where the receiver knows all to be applied.
    floor: Vector,
}

impl Inbox {
    /// Whether it is applied, as far as is known.
    pub fn is_applied(&self, name: &Name) -> bool {
        name.1 <= self.floor[name.0] || self.applied.contains(name)
    }

    /// Whether the data of an update has come, and is not applied yet.
    pub fn has_data(&self, name: &Name) -> bool {
        self.early.contains_key(name) || self.begun.contains(name)
    }

    /// Whether an update is to be applied, and its data has not come.
    pub fn wants(&self, name: &Name) -> bool {
        self.wanted.contains_key(name)
    }

    /// Whether an update is applied by itself, and not only among all up to where the receiver
    /// knows all to be.
    pub fn has_applied(&self, name: &Name) -> bool {
        self.applied.contains(name)
    }

    /// The receiver asks for these: what is applied already, and what is to be applied now. Each
    /// of these is to come to an end: [`Inbox::applied`] or [`Inbox::failed`].
    pub fn ask(
        &mut self,
        origin: RegionId,
        stamps: Vec<Timestamp>,
    ) -> (Vec<Timestamp>, Vec<Update>) {
        let (mut done, mut next) = (Vec::new(), Vec::new());
        for ts in stamps {
            let name = (origin, ts);
            if self.is_applied(&name) {
                done.push(ts);
            } else if let Some(update) = self.early.remove(&name) {
                self.begun.insert(name);
                next.push(update);
            } else if !self.begun.contains(&name) {
                self.wanted.entry(name).or_default();
            }
        }
        (done, next)
    }

    /// What is known of updates up to here is not needed any more.
    pub fn raise_floor(&mut self, origin: RegionId, floor: Timestamp) {
        if floor <= self.floor[origin] {
            return;
        }
        self.floor[origin] = floor;
        let old = (origin, Timestamp::ZERO)..=(origin, floor);
        self.early.extract_if(old.clone(), |_, _| true).for_each(drop);
        self.wanted.extract_if(old.clone(), |_, _| true).for_each(drop);
        self.applied.extract_if(old, |_| true).for_each(drop);
    }

    /// Data has come: what is to be applied now. Of what nobody has asked for yet at most so many
    /// updates are kept.
    pub fn take(&mut self, updates: Vec<Update>, inbox_max: usize) -> Vec<Update> {
        let mut next = Vec::new();
        for update in updates {
            let name = (update.origin, update.label.ts);
            if self.is_applied(&name) || self.begun.contains(&name) {
                continue;
            }
            if self.wanted.remove(&name).is_some() {
                self.begun.insert(name);
                next.push(update);
            } else if self.early.len() < inbox_max {
                self.early.insert(name, update);
            }
        }
        next
    }

    /// What was to be applied is, for good.
    pub fn applied(&mut self, name: Name) {
        if self.begun.remove(&name) && !self.is_applied(&name) {
            self.applied.insert(name);
        }
    }

    /// Nothing of a region is to be applied any more, unless it is asked for again.
    pub fn withdraw(&mut self, origin: RegionId) {
        let all = (origin, Timestamp::ZERO)..=(origin, Timestamp::NEVER);
        self.wanted.extract_if(all, |_, _| true).for_each(drop);
    }

    /// All regions have applied these, or have copied what they made: which were to be applied.
    pub fn pass_over(&mut self, origin: RegionId, stamps: Vec<Timestamp>) -> Vec<Timestamp> {
        let wanted = |ts: &Timestamp| self.wanted.remove(&(origin, *ts)).is_some();
        let stamps: Vec<_> = stamps.into_iter().filter(wanted).collect();
        self.applied.extend(stamps.iter().map(|ts| (origin, *ts)));
        stamps
    }

    /// Who starts again knows that this is applied.
    pub fn recall(&mut self, name: Name) {
        if !self.is_applied(&name) {
            self.applied.insert(name);
        }
    }

    /// What was to be applied is not: the receiver asks again.
    pub fn failed(&mut self, update: Update) {
        let name = (update.origin, update.label.ts);
        if self.begun.remove(&name) && !self.is_applied(&name) {
            self.early.insert(name, update);
        }
    }

    /// Whom to ask for data that has not come: `holder` says who has an update that was asked for
    /// so many times before. What is wanted for the first time may be on its way.
    pub fn missing<P: Ord>(
        &mut self,
        now: Time,
        options: &Options,
        holder: impl Fn(Name, usize) -> P,
    ) -> BTreeMap<P, Vec<Timestamp>> {
        let mut missing: BTreeMap<P, Vec<Timestamp>> = BTreeMap::new();
        for (name, wanted) in &mut self.wanted {
            let Some(last) = wanted.asked else {
                wanted.asked = Some(now);
                continue;
            };
            if now.since(last) < options.retry {
                continue;
            }
            let stamps = missing.entry(holder(*name, wanted.times)).or_default();
            (wanted.asked, wanted.times) = (Some(now), wanted.times + 1);
            if stamps.len() < options.labels_max {
                stamps.push(name.1);
            }
        }
        missing
    }
}
