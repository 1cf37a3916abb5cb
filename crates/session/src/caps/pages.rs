//! Which pages of a file its owner's kernel may keep when the file is opened once more.
//!
//! A kernel drops the pages that it has of a file when that is opened, unless the answer says
//! otherwise. It may keep them if all of them were read since the client holds the inode: nobody
//! else has changed it since, or the capability would be gone.
//!
//! Invariant:
//! - K5: pages are kept only once the kernel has dropped those from before the grant. It does when
//!   it takes an answer that says so; it has taken that when it uses the handle that came with it.

use super::Caps;
use crate::mutation::Mutation;
use crate::session::Session;
use meridian_core::Time;
use meridian_fs::Vector;
use meridian_fs::types::{Attributes, Ino, Place};

/// What becomes of the pages that a kernel has of a file that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// It may keep them: they are not older than anything that was acknowledged. With the
    /// attributes of the file, if they are known.
    Kept(Option<Attributes>),
    /// It drops them. When that is done, what it reads from then on may be kept, if there is a
    /// holding: see [`Session::dropped_pages`].
    Dropped(Option<Holding>),
}

/// A time during which an inode is held without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    ino: Ino,
    /// The count when it was granted.
    granted: u64,
}

impl Session {
    /// A file is opened: what becomes of the pages that the owner's kernel has of it.
    pub fn open(&mut self, now: Time, file: Place) -> Pages {
        self.caps.open(now, file, &self.vector)
    }

    /// The kernel has dropped pages, as an answer to [`Session::open`] said.
    pub fn dropped_pages(&mut self, holding: Holding) {
        self.caps.dropped_pages(holding);
    }

    /// The kernel may have pages of the file that show what is not in it, as what was written
    /// could not be stored.
    pub fn doubt_pages(&mut self, ino: Ino) {
        self.caps.doubt_pages(ino);
    }
}

impl Caps {
    /// A file is opened by a client that has seen `vector`.
    pub fn open(&mut self, now: Time, file: Place, vector: &Vector) -> Pages {
        let anyhow = self.mutation.is(Mutation::KeepsOldPages);
        let Some(known) = self.usable(now, file, vector) else { return Pages::Dropped(None) };
        let (granted, dropped) = (known.granted, known.pages_dropped);
        match dropped || anyhow {
            true => Pages::Kept(self.attributes(now, file, vector)),
            false => Pages::Dropped(Some(Holding { ino: file.ino, granted })),
        }
    }

    /// The kernel has dropped the pages from before that holding.
    pub fn dropped_pages(&mut self, Holding { ino, granted }: Holding) {
        let late = self.mutation.is(Mutation::KeepsAnyHolding);
        if let Some(known) = self.known.get_mut(&ino)
            && (known.granted == granted || late)
        {
            known.pages_dropped = true;
        }
    }

    /// The kernel may have pages of the file that show what is not in it.
    pub fn doubt_pages(&mut self, ino: Ino) {
        if let Some(known) = self.known.get_mut(&ino) {
            known.pages_dropped = false;
        }
    }
}
