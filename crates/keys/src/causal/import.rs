//! Updates of other regions, from their labels and their data to the replica of Hermes.
//!
//! The receiver says what is to be applied, once all that it depends on is. The data comes apart;
//! what does not come is asked for. An update is applied when Hermes has committed it, or something
//! later: then all replicas of the region have it. An update that is applied again changes nothing.

use meridian_core::{NodeId, RegionId, Time};
use meridian_eunomia::{Label, Options, Timestamp, Update, Vector};
use std::collections::{BTreeMap, BTreeSet};

use super::regions::Regions;

/// An update of another region: where and when it was made.
pub(super) type Name = (RegionId, Timestamp);

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
pub(super) struct Import {
    /// Data that has come, and is not to be applied yet.
    inbox: BTreeMap<Name, Update>,
    wanted: BTreeMap<Name, Wanted>,
    /// What Hermes was asked to hold.
    merging: BTreeMap<Name, Update>,
    /// What was applied, above what the receiver knows to be.
    applied: BTreeSet<Name>,
    /// Up to where the receiver knows all to be applied.
    floor: Vector,
}

impl Import {
    fn is_applied(&self, name: &Name) -> bool {
        name.1 <= self.floor[name.0] || self.applied.contains(name)
    }

    /// The receiver asks for these: what is applied already, and what Hermes is to be asked.
    pub fn ask(&mut self, origin: RegionId, labels: Vec<Label>) -> (Vec<Timestamp>, Vec<Update>) {
        let (mut done, mut next) = (Vec::new(), Vec::new());
        for label in labels {
            let name = (origin, label.ts);
            if self.is_applied(&name) {
                done.push(label.ts);
            } else if let Some(update) = self.inbox.remove(&name) {
                self.merging.insert(name, update.clone());
                next.push(update);
            } else if !self.merging.contains_key(&name) {
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
        self.inbox.extract_if(old.clone(), |_, _| true).for_each(drop);
        self.wanted.extract_if(old.clone(), |_, _| true).for_each(drop);
        self.applied.extract_if(old, |_| true).for_each(drop);
    }

    /// Data has come: what Hermes is to be asked.
    pub fn take(&mut self, updates: Vec<Update>, inbox_max: usize) -> Vec<Update> {
        let mut next = Vec::new();
        for update in updates {
            let name = (update.origin, update.label.ts);
            if self.is_applied(&name) || self.merging.contains_key(&name) {
                continue;
            }
            if self.wanted.remove(&name).is_some() {
                self.merging.insert(name, update.clone());
                next.push(update);
            } else if self.inbox.len() < inbox_max {
                self.inbox.insert(name, update);
            }
        }
        next
    }

    /// Hermes has answered: whether it is applied. Else the receiver asks again.
    pub fn merged(&mut self, name: Name, applied: bool) {
        let Some(update) = self.merging.remove(&name) else { return };
        if self.is_applied(&name) {
            return;
        }
        if applied {
            self.applied.insert(name);
        } else {
            self.inbox.insert(name, update);
        }
    }

    /// Whom to ask for data that has not come. What is wanted for the first time may be on its way;
    /// then its source is asked, then the others of its region, which know it, too.
    pub fn missing(
        &mut self,
        now: Time,
        regions: &Regions,
        options: &Options,
    ) -> BTreeMap<NodeId, Vec<Timestamp>> {
        let mut missing: BTreeMap<NodeId, Vec<Timestamp>> = BTreeMap::new();
        for ((origin, ts), wanted) in &mut self.wanted {
            let Some(last) = wanted.asked else {
                wanted.asked = Some(now);
                continue;
            };
            if now.since(last) < options.retry {
                continue;
            }
            let source = regions.node(*origin, usize::from(ts.source()) + wanted.times);
            (wanted.asked, wanted.times) = (Some(now), wanted.times + 1);
            let stamps = missing.entry(source).or_default();
            if stamps.len() < options.labels_max {
                stamps.push(*ts);
            }
        }
        missing
    }
}
