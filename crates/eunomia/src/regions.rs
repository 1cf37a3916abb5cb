//! Which regions there are, while some join, leave or are lost (decision 88).
//!
//! Beyond the thesis, whose regions are fixed. Which regions there are is decided outside, one
//! epoch after the other ([`crate::Registry`]); each process hears of an epoch at its own time, and
//! of none that is older than what it has heard. A region has its number for ever: vectors name it.
//!
//! | standing | sessions | updates of it |
//! | --- | --- | --- |
//! | absent | refused | none |
//! | comes, copies | refused | none; all others keep for it what they make |
//! | serves | served | applied everywhere |
//! | leaves | read | no more begin; those that did are applied everywhere |
//! | lost | | nobody applies any; all that stay say what they have applied |
//! | settles | | all that stay apply what one of them has applied |
//! | gone | refused | what was kept is everywhere, the rest nowhere |

use crate::message::Label;
use crate::timestamp::Timestamp;
use meridian_core::RegionId;
use serde::{Deserialize, Serialize};

/// What a region is to the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// It was never there.
    #[default]
    Absent,
    /// All are being told that it comes: they keep for it what they make from now on.
    Comes {
        /// Whose keys it will copy.
        from: RegionId,
    },
    /// All know that it comes. It copies, then it follows the others.
    Copies {
        /// Whose keys.
        from: RegionId,
    },
    /// It serves sessions.
    Serves,
    /// It begins no updates any more.
    Leaves,
    /// It is lost, and those that stay say what they have of it.
    Lost {
        /// The epoch in which they were asked; each further loss asks again.
        round: u64,
    },
    /// It is lost, and those that stay take what is kept.
    Settles {
        /// See [`Standing::Lost`].
        round: u64,
        /// What is kept.
        kept: Kept,
    },
    /// It is not there any more.
    Gone {
        /// All that it made up to here is everywhere.
        kept: Timestamp,
    },
}

/// What is kept of the updates of a lost region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kept {
    /// All that the region made up to here. Something after this was dropped, or may have been.
    pub upto: Timestamp,
    /// What somebody has applied and others may lack, in the order of its timestamps. Nothing else
    /// is kept that not all have.
    pub labels: Vec<Label>,
}

/// What a region that stays has of a lost one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report {
    /// It knows the labels of all updates up to here.
    pub known: Timestamp,
    /// Of these it has not applied these, in order.
    pub waiting: Vec<Timestamp>,
    /// What it has applied and others may lack.
    pub applied: Vec<Label>,
}

impl Report {
    /// What another process of the same region has.
    pub(crate) fn join(&mut self, mut other: Report) {
        self.applied.append(&mut other.applied);
        self.applied.sort_unstable_by_key(|label| label.ts);
        self.applied.dedup_by_key(|label| label.ts);
        if self.kept_upto(&self.applied) < other.kept_upto(&self.applied) {
            (self.known, self.waiting) = (other.known, other.waiting);
        }
    }

    /// All up to here is among what somebody has applied, if `kept` says what that is.
    fn kept_upto(&self, kept: &[Label]) -> Timestamp {
        let has = |ts: &Timestamp| kept.binary_search_by_key(ts, |label| label.ts).is_ok();
        let dropped = self.waiting.iter().find(|ts| !has(ts));
        dropped.map_or(self.known, |ts| ts.before().min(self.known))
    }
}

impl Kept {
    /// What is kept, as the regions that stay have reported.
    pub fn of<'a>(reports: impl Iterator<Item = &'a Report> + Clone) -> Kept {
        let applied = reports.clone().flat_map(|report| &report.applied);
        let mut labels: Vec<_> = applied.copied().collect();
        labels.sort_unstable_by_key(|label| label.ts);
        labels.dedup_by_key(|label| label.ts);
        let upto = reports.map(|report| report.kept_upto(&labels)).max().unwrap_or_default();
        Kept { upto, labels }
    }
}

/// What a process answers who tells it which regions there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Word {
    /// It goes by this epoch, for good.
    Heard(u64),
    /// A receiver: its region, which comes, has all that it needs to serve.
    Copied,
    /// A shard: its region leaves, and all others have applied what the shard has made.
    Drained,
    /// A receiver: its region applies nothing more of a lost one.
    Sealed {
        /// Which.
        lost: RegionId,
        /// See [`Standing::Lost`].
        round: u64,
        /// What the region has of it.
        report: Report,
    },
    /// A receiver: its region has applied all that is kept of a lost one.
    Settled {
        /// Which.
        lost: RegionId,
        /// See [`Standing::Lost`].
        round: u64,
    },
}

/// Why a session is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Nothing has happened; it may be asked again.
    #[error("too many updates are under way to other regions: try again later")]
    Full,
    /// It has to go to another region.
    #[error("this region does not serve (it joins, leaves or is gone): go to another one")]
    NotServing,
    /// It has to begin anew.
    #[error(
        "the session has seen updates of region {}, which is lost, and not all of them were kept: \
         begin a new session", .0.0
    )]
    Dropped(RegionId),
}

/// All regions, in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Regions {
    epoch: u64,
    standings: Vec<Standing>,
}

impl Regions {
    /// So many regions that serve, before any epoch.
    pub fn fixed(count: usize) -> Regions {
        Regions { epoch: 0, standings: vec![Standing::Serves; count] }
    }

    /// These, in the first epoch.
    pub fn first(standings: Vec<Standing>) -> Regions {
        Regions { epoch: 1, standings }
    }

    /// The next epoch, with other standings.
    pub fn next(&self, standings: Vec<Standing>) -> Regions {
        Regions { epoch: self.epoch + 1, standings }
    }

    /// The number of the epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All standings; the place of one is its [`RegionId`].
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// What a region is.
    pub fn standing(&self, region: RegionId) -> &Standing {
        self.standings.get(usize::from(region.0)).unwrap_or(&Standing::Absent)
    }

    /// Whether the others follow a region, and keep for it what it lacks.
    pub fn is_there(&self, region: RegionId) -> bool {
        match self.standing(region) {
            Standing::Comes { .. } | Standing::Copies { .. } => true,
            Standing::Serves | Standing::Leaves => true,
            Standing::Absent | Standing::Lost { .. } => false,
            Standing::Settles { .. } | Standing::Gone { .. } => false,
        }
    }

    /// All that are there.
    pub fn there(&self) -> impl Iterator<Item = RegionId> + '_ {
        let all = (0..self.standings.len() as u16).map(RegionId);
        all.filter(|region| self.is_there(*region))
    }

    /// Whether sessions of a region may read.
    pub fn reads(&self, region: RegionId) -> bool {
        matches!(self.standing(region), Standing::Serves | Standing::Leaves)
    }

    /// Whether sessions of a region may begin updates.
    pub fn writes(&self, region: RegionId) -> bool {
        *self.standing(region) == Standing::Serves
    }

    /// Whether a region joins, and does not serve yet.
    pub fn joins(&self, region: RegionId) -> bool {
        matches!(self.standing(region), Standing::Comes { .. } | Standing::Copies { .. })
    }

    /// Whether what is kept of some region is being agreed on.
    pub fn is_open(&self) -> bool {
        let open = |standing: &Standing| {
            matches!(standing, Standing::Lost { .. } | Standing::Settles { .. })
        };
        self.standings.iter().any(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::Vector;

    fn label(ts: u64) -> Label {
        Label { ts: Timestamp(ts), dep: Timestamp::ZERO, place: 0, vector: Vector::default() }
    }

    fn report(known: u64, waiting: &[u64], applied: &[u64]) -> Report {
        Report {
            known: Timestamp(known),
            waiting: waiting.iter().copied().map(Timestamp).collect(),
            applied: applied.iter().copied().map(label).collect(),
        }
    }

    fn kept(reports: &[Report]) -> (u64, Vec<u64>) {
        let kept = Kept::of(reports.iter());
        (kept.upto.0, kept.labels.iter().map(|label| label.ts.0).collect())
    }

    #[test]
    fn what_one_has_applied_is_kept_and_no_session_may_know_more() {
        assert_eq!(kept(&[report(9, &[], &[]), report(4, &[], &[])]), (9, vec![]));
        let reports = [report(9, &[5, 7], &[8]), report(7, &[7], &[5])];
        assert_eq!(kept(&reports), (6, vec![5, 8]), "7 is dropped, 8 is not");
        let reports = [report(9, &[5, 7], &[8]), report(7, &[], &[5, 7])];
        assert_eq!(kept(&reports), (9, vec![5, 7, 8]));
    }
}
