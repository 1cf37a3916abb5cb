//! A file that is made by the first batch that is sent of it: until then nobody else knows of it
//! (decision 102). Whoever keeps it back has been given its number by the session.

use super::WriteBack;
use super::flush::{Flight, Landed};
use super::setting::Settings;
use meridian_core::Time;
use meridian_fs::operation::{NewNode, Piece, WriteAt};
use meridian_fs::settled::Made;
use meridian_fs::types::{Ino, Name, Place, Timestamp};
use meridian_fs::{FsError, Setting, Update};
use std::time::Duration;

/// How long a new file waits at most to be sent when nobody asks for it.
pub const BIRTH_AGE: Duration = Duration::from_secs(1);

/// What the first batch makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    /// In which directory.
    pub parent: Place,
    /// Under which name.
    pub name: Name,
    /// What.
    pub node: NewNode,
    /// Its number.
    pub ino: Ino,
    /// When the program made it.
    pub made: Timestamp,
}

impl Birth {
    /// The update that makes it, with all that is written and set.
    pub(super) fn update(
        self,
        (at, pieces, written): (WriteAt, Vec<Piece>, Timestamp),
        settings: Vec<Setting>,
    ) -> Update {
        let Birth { parent, name, node, ino, made } = self;
        let made = Made { parent, name, node, ino, made, at, pieces, written, settings };
        Update::Make(Box::new(made))
    }
}

impl<H: Ord + Copy, E: Clone + From<FsError>> WriteBack<H, E> {
    /// The file was made here, and is kept back.
    pub fn born(&mut self, birth: Birth, now: Time) {
        (self.changed, self.size) = (birth.made, Some(0));
        self.since.get_or_insert(now);
        self.birth = Some(birth);
        self.made();
    }

    /// The tree refuses for good what makes the file. If that may be for what comes with it, the
    /// file is made alone first, and what is written and set comes after. Else all is dropped.
    ///
    /// # Errors
    /// Why it is dropped.
    pub(super) fn on_unmade(&mut self, error: FsError) -> Result<Landed, E> {
        self.unname();
        let more = |flight: &mut Flight| flight.bytes() > 0 || flight.sets();
        if !takes_no_file(error)
            && let Some(mut flight) = self.flight.take_if(more)
        {
            self.settings.put_before(std::mem::take(&mut flight.settings));
            self.fly_alone(flight, Settings::default());
            return Ok(Landed::Elsewhere);
        }
        self.clear();
        let error = if takes_no_file(error) { FsError::Unmade } else { error };
        Err(self.fail(error.into()))
    }

    /// Whether the file is kept back, and what makes it brings all that was written and set.
    pub fn is_kept_whole(&self) -> bool {
        let is_more =
            !self.dirty.is_empty() || !self.appended.is_empty() || !self.settings.is_empty();
        self.birth.is_some() && (self.flight.is_none() || !is_more)
    }

    /// What makes the file, if it is kept back.
    pub fn birth(&self) -> Option<&Birth> {
        self.birth.as_ref()
    }
}

/// Whether it is the directory that takes no such file: another has made something of that name, or
/// it is gone.
fn takes_no_file(error: FsError) -> bool {
    matches!(
        error,
        FsError::Exists
            | FsError::NotFound
            | FsError::NotDirectory
            | FsError::Gone
            | FsError::Stale
    )
}
