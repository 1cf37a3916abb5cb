//! Which files lack what the kernel asks for all the time.
//!
//! Whenever it has looked up a name the kernel asks for the list of access rights, and for the
//! capability of what is run or written. Nearly no file has them. So an answer about a file says
//! which it has, and for as long as the kernel may keep attributes (decision 6) that one of them is
//! missing is told from here.
//!
//! Of a file that it has just looked up and opens it is told from here, too, when what is written
//! to it is durable.
//!
//! What is set through this mount is asked for at once: an answer that was asked for before is not
//! noted any more.

use meridian_client::files::xattrs::{ACCESS_LIST, CAPABILITY, DEFAULT_LIST};
use meridian_fs::types::{Attributes, Ino};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long it is told: for about as long as the kernel keeps attributes, a tick or two.
const TOLD_FOR: Duration = Duration::from_millis(4);
/// Of so many files it is noted at most: of more than are looked up in that time.
const FILES_MAX: usize = 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Marked(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    files: HashMap<Ino, (Attributes, Instant)>,
    /// How often something was set.
    changes: u64,
}

/// A question that was asked at some time.
#[derive(Debug)]
pub(crate) struct Look {
    marked: Arc<Marked>,
    changes: u64,
}

impl Marked {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attributes are asked for.
    pub fn look(self: &Arc<Self>) -> Look {
        Look { marked: self.clone(), changes: self.lock().changes }
    }

    /// Something was set.
    pub fn forget(&self) {
        let mut noted = self.lock();
        noted.changes += 1;
        noted.files.clear();
    }

    /// Whether the file had no such attribute a moment ago.
    pub fn lacks(&self, ino: Ino, name: &[u8]) -> bool {
        let Some(Attributes { marks, .. }) = self.noted(ino) else { return false };
        let has = match name {
            ACCESS_LIST => marks.access_list,
            DEFAULT_LIST => marks.default_list,
            CAPABILITY => marks.capability,
            _ => true,
        };
        !has
    }

    /// What the file was a moment ago.
    pub fn noted(&self, ino: Ino) -> Option<Attributes> {
        let noted = self.lock();
        let (attributes, since) = noted.files.get(&ino)?;
        (since.elapsed() <= TOLD_FOR).then_some(*attributes)
    }
}

impl Look {
    /// They have come.
    pub fn note(&self, attributes: &Attributes) {
        let mut noted = self.marked.lock();
        if noted.changes != self.changes {
            return; // They may be from before.
        }
        if noted.files.len() >= FILES_MAX {
            noted.files.clear();
        }
        noted.files.insert(attributes.place.ino, (*attributes, Instant::now()));
    }
}
