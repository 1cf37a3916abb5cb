//! What is in a directory that the client holds exclusively. Before a program makes a file the
//! kernel looks whether its name is there, and a node would be asked each time. So the client asks
//! for all entries once, page by page, and what else is absent it knows by itself (decision 115).
//!
//! What the pages show is kept as of any listing; so it counts that they began after the grant, and
//! that names which the client changes meanwhile are its own (K1, K6).

use super::lease::Errand;
use super::{Caps, Mutation};
use meridian_core::GroupId;
use meridian_fs::Ino;
use meridian_fs::types::{Name, Place};

/// So many pages are asked for at most, of 256 entries each: who makes a file in a directory of
/// more has its name asked for.
const PAGES_MAX: u32 = 64;

/// A directory whose entries are being asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Survey {
    /// The next page begins after that name.
    after: Name,
    sent: bool,
    /// So many pages more may be asked for.
    left: u32,
}

impl Caps {
    /// The client holds this directory exclusively from now on.
    pub(super) fn survey(&mut self, directory: Ino) {
        let Some(known) = self.known.get_mut(&directory) else { return };
        if self.mutation.is(Mutation::TakesPartForWhole) {
            known.is_empty();
        }
        if let Some(after) = known.rest() {
            self.surveys.insert(directory, Survey { after, sent: false, left: PAGES_MAX });
        }
    }

    /// What is to be sent for surveys now.
    pub(super) fn next_of_surveys(&mut self) -> Option<(GroupId, Errand)> {
        let (ino, survey) = self.surveys.iter_mut().find(|(_, survey)| !survey.sent)?;
        let group = self.known.get(ino).expect("surveys go with what is held").group;
        (survey.sent, survey.left) = (true, survey.left - 1);
        let directory = Place { ino: *ino, partition: group };
        Some((group, Errand::Survey(directory, survey.after.clone())))
    }

    /// A page has come, and is kept as far as it may be; or it has not.
    pub(super) fn on_surveyed(&mut self, directory: Ino) {
        let Some(survey) = self.surveys.get_mut(&directory) else { return };
        let rest = self.known.get(&directory).and_then(|known| known.rest());
        self.surveyed += u64::from(rest.is_none());
        match rest.filter(|after| *after > survey.after && survey.left > 0) {
            Some(after) => (survey.after, survey.sent) = (after, false),
            None => drop(self.surveys.remove(&directory)),
        }
    }
}

#[cfg(test)]
#[path = "surveys_tests.rs"]
mod tests;
