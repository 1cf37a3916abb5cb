//! What an update of another region waits for, for who wants to know why it was applied when it
//! was. The receiver itself does not go by this.

use super::{Progress, Receiver};
use crate::message::Label;
use crate::timestamp::{REGIONS_MAX, Timestamp};
use meridian_core::RegionId;

/// Something that an update depends on, and that is not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Missing {
    /// All of this region has to be applied,
    pub region: RegionId,
    /// up to here.
    pub upto: Timestamp,
    /// The first label of it that is here and whose update is not applied; `None` if something up
    /// to there has not come yet, and all that has is applied.
    pub first: Option<Timestamp>,
}

/// What stands between an update and its being applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Obstacles {
    /// Its label.
    pub label: Label,
    /// Whether its shard was asked to apply it, and has not said that it has.
    pub asked: bool,
    /// What it depends on that is not applied, by region.
    pub missing: Vec<Missing>,
}

impl Receiver {
    /// What an update of another region waits for; `None` unless its label is here and it is not
    /// known to be applied with all before it.
    pub fn obstacles(&self, origin: RegionId, ts: Timestamp) -> Option<Obstacles> {
        let queue = &self.origins.get(&origin)?.queue;
        let place = queue.binary_search_by_key(&ts, |(label, _)| label.ts).ok()?;
        let (label, progress) = queue[place];
        let missing = |region: RegionId| {
            let upto = if region == origin { label.dep } else { label.vector[region] };
            let first = self.origins.get(&region).and_then(|origin| origin.queue.front());
            let first = first.map(|(label, _)| label.ts).filter(|first| *first <= upto);
            (self.site_time[region] < upto).then_some(Missing { region, upto, first })
        };
        let asked = matches!(progress, Progress::Asked(_));
        let missing = others_of(self.region).filter_map(missing).collect();
        Some(Obstacles { label, asked, missing })
    }
}

/// All regions but one that a vector may name: also one that comes and is not known to take part.
pub(super) fn others_of(region: RegionId) -> impl Iterator<Item = RegionId> {
    (0..REGIONS_MAX as u16).map(RegionId).filter(move |other| *other != region)
}
