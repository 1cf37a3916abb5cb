//! When what is done in a directory, or written to a file, is durable: as it says itself, or else
//! as its mount does (decision 110).
//!
//! A file keeps what counted when it was opened, until nobody has it open on this mount any more
//! and nothing of it is kept back. Its attributes tell it, which the kernel has just looked up, or
//! the client holds: so nobody is asked for it alone.

use crate::client::lock;
use crate::error::ClientError;
use crate::files::attributes::strange;
use crate::files::{Files, OpenInode, OpenMode};
use bytes::Bytes;
use meridian_core::level::Level;
use meridian_fs::types::{Attributes, Ino};
use meridian_fs::{Answer, Durability, FsError, Query, Update};

/// The extended attribute that shows, and of a file or directory changes, when what is done there
/// is durable: `sync`, `close` or `fsync`; of what has no mode of its own `inherit` and that of its
/// mount. Only its owner and root may set it.
pub const DURABILITY: &[u8] = b"user.meridian.durability";
/// The word of what has no mode of its own.
const INHERIT: &str = "inherit";

impl Files {
    /// When what is done there is durable on this mount.
    pub fn durability_of(&self, attributes: &Attributes) -> Durability {
        attributes.durability().unwrap_or(self.client.durability())
    }

    /// The same of a file that is to be opened, if it is known here, or does not matter.
    pub(crate) fn durability_at_hand(&self, ino: Ino, mode: OpenMode) -> Option<Durability> {
        let by_default = self.client.durability();
        if !mode.write || self.client.topology().levels.now < Level::DURABILITY {
            return Some(by_default);
        }
        let open = self.open_inode(ino).and_then(|open| lock(&open.buffer).durability);
        let held = || self.client.driver().held_attributes(self.place_of(ino));
        open.or_else(|| held().map(|of| self.durability_of(&of)))
    }

    /// The same, of the node that tells attributes.
    pub(crate) async fn ask_durability(&self, ino: Ino) -> Result<Durability, ClientError> {
        match self.ask(ino, |inode| Query::Attributes { inode }).await?.0 {
            Answer::Attributes(found) => Ok(self.durability_of(&found)),
            _ => Err(strange()),
        }
    }

    /// When what is written to an open file is durable.
    pub(crate) fn durability_of_open(&self, inode: &OpenInode) -> Durability {
        lock(&inode.buffer).durability.unwrap_or(self.client.durability())
    }

    /// Sets the mode of a directory or file; with `None` it has none any more, and that of each
    /// mount counts. What is in a directory already keeps its own.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is neither; [`ClientError::Level`] as long as not all nodes know
    /// of it.
    pub async fn set_durability(
        &self,
        ino: Ino,
        durability: Option<Durability>,
    ) -> Result<(), ClientError> {
        let (needs, now) = (Level::DURABILITY, self.client.topology().levels.now);
        if now < needs {
            let what = "a mode of durability of a directory or file";
            return Err(ClientError::Level { what, needs, now });
        }
        let open = self.open_inode(ino);
        let _guard = self.flushed(open.as_ref()).await?;
        let update = |inode| Update::SetDurability { inode, durability };
        self.ordered(open.as_ref(), ino, update).await.map(drop)
    }

    /// The value of [`DURABILITY`].
    pub(crate) async fn durability_in_words(&self, ino: Ino) -> Result<Bytes, ClientError> {
        let found = self.attributes_now(ino).await?;
        let by_default = self.client.durability().word();
        Ok(match found.durability() {
            Some(own) => Bytes::from_static(own.word().as_bytes()),
            None => format!("{INHERIT} {by_default}").into(),
        })
    }

    /// Sets what a value of [`DURABILITY`] asks for.
    pub(crate) async fn set_durability_in_words(
        &self,
        ino: Ino,
        value: &[u8],
    ) -> Result<(), ClientError> {
        let wanted = wanted(value).ok_or(FsError::Invalid)?;
        self.set_durability(ino, wanted).await
    }
}

/// What a value of [`DURABILITY`] asks for: a mode, or that there is none. What is shown is read.
fn wanted(value: &[u8]) -> Option<Option<Durability>> {
    let text = std::str::from_utf8(value).ok()?;
    let mut words = text.split(' ');
    match (words.next()?, words.next(), words.next()) {
        (INHERIT, None, _) => Some(None),
        (INHERIT, Some(by_default), None) => Durability::of_word(by_default).map(|_| None),
        (own, None, _) => Durability::of_word(own).map(Some),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_from_words() {
        assert_eq!(wanted(b"sync"), Some(Some(Durability::Sync)));
        assert_eq!(wanted(b"fsync"), Some(Some(Durability::Fsync)));
        assert_eq!(wanted(b"inherit"), Some(None));
        assert_eq!(wanted(b"inherit close"), Some(None), "as it is shown");
        for wrong in ["", "never", "inherit never", "fsync close", "inherit close x"] {
            assert_eq!(wanted(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
