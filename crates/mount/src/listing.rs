//! Open directories: an entry keeps its place in the listing as long as it is open, whatever is
//! made or removed meanwhile.

use bytes::Bytes;
use meridian_client::files::directory::Page;
use meridian_client::{ClientError, Files};
use meridian_fs::types::{Entry, Ino, Name};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Entries before the first of the directory's own: `.` and `..`.
const DOTS: usize = 2;
/// A line needs so many bytes at least: what stands before a name, and that.
const LINE_MIN: usize = 32;

/// The open directories of a mount, by number.
#[derive(Debug, Default)]
pub struct Listings {
    open: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<Listing>>>>,
    next: AtomicU64,
}

impl Listings {
    /// Opens the directory `ino`.
    pub fn open(&self, ino: Ino) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let listing = Arc::new(tokio::sync::Mutex::new(Listing::new(ino)));
        self.all().insert(number, listing);
        number
    }

    /// The open directory of that number.
    pub fn get(&self, number: u64) -> Option<Arc<tokio::sync::Mutex<Listing>>> {
        self.all().get(&number).cloned()
    }

    /// Forgets it.
    pub fn close(&self, number: u64) {
        self.all().remove(&number);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<tokio::sync::Mutex<Listing>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One open directory.
#[derive(Debug)]
pub struct Listing {
    ino: Ino,
    above: Ino,
    entries: Vec<(Name, Entry)>,
    begun: bool,
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
        Listing { ino, above: ino, entries: Vec::new(), begun: false, end: false }
    }

    /// Reads from the start again: what `rewinddir` means.
    pub fn rewind(&mut self) {
        *self = Listing::new(self.ino);
    }

    /// What stands from `place` on, counted from 0, as far as it may fit into `size` bytes; nothing
    /// after the last line.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub async fn lines(
        &mut self,
        files: &Files,
        place: usize,
        size: u32,
    ) -> Result<Vec<Line>, ClientError> {
        while self.line(place).is_none() && !self.end {
            let after = self.entries.last().map_or_else(Bytes::new, |(name, _)| name.clone());
            if !self.begun {
                files.note_listing(self.ino).await;
            }
            let Page { entries, end, parent } = files.list(self.ino, &after, false).await?;
            self.entries.extend(entries.into_iter().map(|(name, entry, _)| (name, entry)));
            (self.end, self.above) = (end, parent.ino);
            self.begun = true;
        }
        let most = size as usize / LINE_MIN;
        Ok((place..).map_while(|place| self.line(place)).take(most).collect())
    }

    fn line(&self, place: usize) -> Option<Line> {
        let dot = |name: &'static [u8], ino| Line {
            name: Bytes::from_static(name),
            entry: crate::convert::directory_entry(ino),
        };
        match place {
            0 | 1 if !self.begun => None, // What is above comes with the first entries.
            0 => Some(dot(b".", self.ino)),
            1 => Some(dot(b"..", self.above)),
            _ => self
                .entries
                .get(place - DOTS)
                .map(|(name, entry)| Line { name: name.clone(), entry: entry.clone() }),
        }
    }
}
