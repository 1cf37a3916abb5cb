//! What programs set of a file that they have open, and of which something is kept here or that
//! they have just made: it is kept, too, and one update brings both. So `cp -a` and `tar` cost two
//! ordered updates for each file, that which makes it and that of its close; or one, where new
//! files are kept back ([`crate::files::newborn`]). So is what is set of a file that was closed,
//! while what was written to it is kept back in order: a linker makes its program executable.
//!
//! Programs on this mount see it at once. Others see it, and it is durable, when the file is closed
//! or synced, as written bytes. What would be refused is told by the call as far as that is known
//! here, else by close or `fsync`. Of a client with a grant, whose rights the tree decides, nothing
//! is kept: each call is told what it may.

use crate::client::lock;
use crate::error::ClientError;
use crate::files::attributes::strange;
use crate::files::buffer::Buffer;
use crate::files::{Files, LOOK_AGAIN, OpenInode};
use bytes::Bytes;
use meridian_core::level::Level;
use meridian_fs::operation::Changes;
use meridian_fs::types::{Attributes, Ino, Name};
use meridian_fs::{Answer, Durability, Query, Setting};
use std::sync::Arc;

impl Files {
    /// Keeps a change of attributes, if its file is such a one. What `stat` shows then.
    ///
    /// # Errors
    /// If nobody tells what the file is.
    pub(crate) async fn keep_changes(
        &self,
        ino: Ino,
        changes: &Changes,
    ) -> Result<Option<Attributes>, ClientError> {
        let Some(open) = self.settable(ino).filter(|_| changes.size.is_none()) else {
            return Ok(None);
        };
        for _ in 0..LOOK_AGAIN {
            let begun = self.last_change();
            let asked = self.ask(ino, |inode| Query::Attributes { inode }).await?;
            let (Answer::Attributes(attributes), known_to) = asked else {
                return Err(strange());
            };
            let shown = {
                let mut buffer = lock(&open.buffer);
                if buffer.landed > begun {
                    continue; // Perhaps from before what landed.
                }
                if !self.set(&open, &mut buffer, Setting::Attributes(changes.clone())) {
                    return Ok(None);
                }
                let mut attributes = self.newest(attributes, known_to);
                self.overlay_reads(&mut attributes);
                buffer.writes.learn_size(attributes.size);
                buffer.writes.overlay(attributes)
            };
            return match shown {
                Some(attributes) => Ok(Some(attributes)),
                None => self.attributes_now(ino).await.map(Some),
            };
        }
        Ok(None)
    }

    /// Keeps an extended attribute, if its file is such a one. Whether it is.
    ///
    /// # Errors
    /// If no file can have it.
    pub(crate) fn keep_xattr(
        &self,
        ino: Ino,
        (name, value): (&Name, &Bytes),
        drops_set_gid: bool,
    ) -> Result<bool, ClientError> {
        let Some(open) = self.settable(ino) else { return Ok(false) };
        let (name, value) = (name.clone(), value.clone());
        let setting = Setting::Xattr { name, value, drops_set_gid };
        setting.check()?;
        Ok(self.set(&open, &mut lock(&open.buffer), setting))
    }

    /// The file, if what is set of it may be kept.
    fn settable(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        let open = self.open_inode(ino)?;
        let levels = &self.client.topology().levels;
        let may = levels.now >= Level::SETTLE
            && self.durability_of_open(&open) != Durability::Sync
            && lock(&open.buffer).writes.may_join()
            && !self.client.inner.driver.has_grant();
        may.then_some(open)
    }

    fn set(&self, file: &OpenInode, buffer: &mut Buffer, setting: Setting) -> bool {
        let (time, now) = (crate::client::now(), self.client.time());
        if buffer.writes.open_count() > 0 {
            return buffer.writes.set(setting, time, now);
        }
        // Who sends some of it now does not send this.
        let Ok(_flushing) = file.flushing.try_lock() else { return false };
        let comes_along =
            buffer.writes.is_unsent() && self.client.driver().takes_more(file.place.ino);
        comes_along && buffer.writes.join(setting, time, now)
    }

    /// What is set of a file is sent before its extended attributes are looked at, which it may
    /// change.
    pub(crate) async fn send_settings(&self, ino: Ino) -> Result<(), ClientError> {
        let Some(open) = self.open_inode(ino) else { return Ok(()) };
        let sets = lock(&open.buffer).writes.sets();
        if sets { self.flush_inode(&open, None).await } else { Ok(()) }
    }
}
