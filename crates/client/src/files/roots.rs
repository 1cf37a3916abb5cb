//! Directories that live in another partition than their names: see [`meridian_session::tops`].

use crate::client::lock;
use crate::error::ClientError;
use crate::files::Files;
use crate::files::xattrs::lacks;
use bytes::Bytes;
use meridian_core::{GroupId, Stamp};
use meridian_fs::types::{Attributes, Entry, Ino, Kind, Name, Place};
use meridian_fs::{FsError, Update};
use meridian_session::tops::SHOWN_AFTER;
use std::future::Future;
use std::sync::Arc;

impl Files {
    /// A name in the directory `parent` leads elsewhere; `kept` is what is known of it there.
    pub(crate) fn named_root(&self, parent: Ino, place: Place, kept: Option<Attributes>) {
        let above = self.place_of(parent).partition;
        lock(&self.tops).named(above, place, kept);
    }

    /// `stat`, with what is buffered here. Of a directory that lives elsewhere than its name what
    /// is known, if nobody answers.
    ///
    /// # Errors
    /// [`FsError::Gone`] if there is no such inode any more, unless it was lost with its region and
    /// a name leads to it; what was appended and must be stored before anybody knows the length
    /// cannot be stored.
    pub async fn attributes(&self, ino: Ino) -> Result<Attributes, ClientError> {
        let ask = |files: Arc<Files>| async move { files.attributes_now(ino).await };
        match self.asked_or_known(ino, ask).await {
            Ok(Ok(attributes)) => {
                lock(&self.tops).seen(attributes);
                Ok(attributes)
            }
            Ok(Err(ClientError::Fs(FsError::Gone))) => self.lost(ino).ok_or(FsError::Gone.into()),
            Ok(Err(error)) => Err(error),
            Err(known) => Ok(known),
        }
    }

    /// Whether a place was lost with its region (decision 107): its name is all that is left.
    pub(crate) fn is_lost(&self, place: Place) -> bool {
        self.client.topology().has_lost(place.partition)
    }

    /// What is shown of an inode that was lost so, if a name was seen that leads to it.
    fn lost(&self, ino: Ino) -> Option<Attributes> {
        let known = lock(&self.tops).get(ino).filter(|known| self.is_lost(known.place))?;
        Some(Entry { place: known.place, kind: known.kind }.lost())
    }

    /// What an extended attribute is that the kernel asks for all the time. That a directory which
    /// lives elsewhere than its name has none such is told as in [`Files::attributes`].
    pub(crate) async fn marked_xattr(&self, ino: Ino, name: Name) -> Result<Bytes, ClientError> {
        if !lock(&self.tops).get(ino).is_some_and(|known| lacks(&known, &name)) {
            return self.xattr_now(ino, name).await;
        }
        let of = name.clone();
        let ask = |files: Arc<Files>| async move { files.xattr_now(ino, of).await };
        match self.asked_or_known(ino, ask).await {
            Ok(asked) => asked,
            Err(_) => Err(FsError::NoAttribute.into()),
        }
    }

    /// What `ask` says; or what is known of the directory `ino`, if nobody answers for the
    /// partition where it lives.
    async fn asked_or_known<T, F>(
        &self,
        ino: Ino,
        ask: impl FnOnce(Arc<Files>) -> F,
    ) -> Result<Result<T, ClientError>, Attributes>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ClientError>> + Send + 'static,
    {
        let Some(files) = self.me.upgrade() else { return Ok(Err(FsError::Gone.into())) };
        let mut asked = Box::pin(ask(files));
        let Some(known) = lock(&self.tops).get(ino) else { return Ok(asked.await) };
        let group = known.place.partition;
        let mut heard = self.client.heard(group);
        if self.shows_at_once(group, heard) {
            return Err(known);
        }
        loop {
            match tokio::time::timeout(SHOWN_AFTER, &mut asked).await {
                Ok(Err(error)) if error.is_unknown() => return Err(known),
                Ok(result) => return Ok(result),
                Err(_) => {}
            }
            let (before, now) = (heard, self.client.time());
            heard = self.client.heard(group);
            if lock(&self.tops).was_asked(group, (before, heard), now) {
                // It goes on: that a region is cut off is seen by who asks for long.
                tokio::spawn(asked);
                return Err(known);
            }
        }
    }

    fn shows_at_once(&self, group: GroupId, heard: u64) -> bool {
        let (is_cut, now) = (self.client.is_cut(group), self.client.time());
        lock(&self.tops).shows_at_once(group, heard, is_cut, now)
    }

    /// A directory was changed by the message of that timestamp. If it lives elsewhere than its
    /// name, those are told who keep what it was; that is waited for only as long as for an answer
    /// when nobody is cut off.
    pub(crate) async fn note_root(&self, attributes: Attributes, ts: Stamp) {
        if attributes.kind != Kind::Directory {
            return;
        }
        let above = {
            let mut tops = lock(&self.tops);
            tops.seen(attributes);
            tops.above(attributes.place.ino)
        };
        let Some(partition) = above else { return };
        let client = self.client.clone();
        let told = tokio::spawn(async move {
            let note = Update::NoteTop { partition, attributes, ts };
            if let Err(error) = client.update(&note).await {
                tracing::debug!("what a placed directory became is not noted: {error}");
            }
        });
        let _ = tokio::time::timeout(SHOWN_AFTER, told).await;
    }
}
