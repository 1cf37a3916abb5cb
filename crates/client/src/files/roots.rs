//! Directories that live in another partition than their names: what was last seen of them is shown
//! when nobody answers for that partition. So `ls -l` above them goes on while a region is cut off;
//! all that is below needs the region.

use crate::client::lock;
use crate::error::ClientError;
use crate::files::Files;
use meridian_core::GroupId;
use meridian_fs::types::{Attributes, Ino, Place};
use meridian_fs::{Answer, Partition, Query, Timestamp};
use std::time::Duration;

/// So long somebody may be silent before what was last seen is shown.
const SHOWN_AFTER: Duration = Duration::from_millis(700);
/// Of so many directories it is remembered what was seen.
const ROOTS_MAX: usize = 1024;

impl Files {
    /// What was seen of a directory that lives in another partition than its name.
    pub(crate) fn remember_root(&self, attributes: Attributes) {
        let mut roots = lock(&self.roots);
        if roots.len() >= ROOTS_MAX {
            roots.clear();
        }
        roots.insert(attributes.place.ino, attributes);
    }

    /// What was last seen of it, if it is such a directory. That of a region is there from the
    /// start.
    fn root(&self, ino: Ino) -> Option<Attributes> {
        if let Some(seen) = lock(&self.roots).get(&ino) {
            return Some(*seen);
        }
        let Place { partition, .. } = self.place_of(ino);
        let inode = Place { ino, partition };
        let is_region = ino == Ino::top(partition) && partition != GroupId::GLOBAL;
        let made = Timestamp::from_millis(self.client.topology().created_ms);
        let first = || Partition::new(partition, [], made).read(&Query::Attributes { inode });
        let first = is_region.then(first);
        match first {
            Some(Ok(Answer::Attributes(attributes))) => Some(attributes),
            _ => None,
        }
    }

    /// `stat`, with what is buffered here.
    ///
    /// # Errors
    /// [`meridian_fs::FsError::Gone`] if there is no such inode any more; what was appended and
    /// must be stored before anybody knows the length cannot be stored.
    pub async fn attributes(&self, ino: Ino) -> Result<Attributes, ClientError> {
        let Some(root) = self.root(ino) else { return self.attributes_now(ino).await };
        let group = root.place.partition;
        if self.client.is_cut(group) {
            return Ok(root);
        }
        let Some(files) = self.me.upgrade() else { return Ok(root) };
        let heard = self.client.heard(group);
        let mut asked = Box::pin(async move { files.attributes_now(ino).await });
        loop {
            match tokio::time::timeout(SHOWN_AFTER, &mut asked).await {
                Ok(Ok(attributes)) => {
                    self.remember_root(attributes);
                    return Ok(attributes);
                }
                Ok(Err(error)) if error.is_unknown() => return Ok(root),
                Ok(Err(error)) => return Err(error),
                Err(_) if self.client.heard(group) == heard => {
                    // It goes on: that a region is cut off is seen by who asks for long.
                    tokio::spawn(asked);
                    return Ok(root);
                }
                Err(_) => {}
            }
        }
    }
}
