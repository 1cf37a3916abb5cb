//! Open directories: an entry keeps its place in the listing as long as it is open, whatever is made
//! or removed meanwhile.

use bytes::Bytes;
use meridian_client::files::directory::Page;
use meridian_client::{ClientError, Files};
use meridian_fs::types::{Entry, Ino, Name};

/// Entries before the first of the directory's own: `.` and `..`.
const DOTS: usize = 2;

/// One open directory.
#[derive(Debug)]
pub struct Listing {
    ino: Ino,
    above: Ino,
    entries: Vec<(Name, Entry)>,
    end: bool,
}

/// What stands at one place of a listing.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name.
    pub name: Name,
    /// What it leads to.
    pub entry: Entry,
}

impl Listing {
    /// Of the directory `ino`, nothing read yet.
    pub fn new(ino: Ino) -> Listing {
        Listing { ino, above: ino, entries: Vec::new(), end: false }
    }

    /// Reads from the start again: what `rewinddir` means.
    pub fn rewind(&mut self) {
        *self = Listing::new(self.ino);
    }

    /// What stands at `place`, counted from 0; `None` after the last.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub async fn line(&mut self, files: &Files, place: usize) -> Result<Option<Line>, ClientError> {
        while place >= self.entries.len() + if self.entries.is_empty() { 0 } else { DOTS }
            && !self.end
        {
            let after = self.entries.last().map_or_else(Bytes::new, |(name, _)| name.clone());
            let Page { entries, end, parent } = files.list(self.ino, &after, false).await?;
            self.entries.extend(entries.into_iter().map(|(name, entry, _)| (name, entry)));
            (self.end, self.above) = (end, parent.ino);
        }
        let dot = |name: &'static [u8], ino| Line {
            name: Bytes::from_static(name),
            entry: crate::convert::directory_entry(ino),
        };
        match place {
            0 => Ok(Some(dot(b".", self.ino))),
            1 => Ok(Some(dot(b"..", self.above))),
            _ => Ok(self
                .entries
                .get(place - DOTS)
                .map(|(name, entry)| Line { name: name.clone(), entry: entry.clone() })),
        }
    }
}
