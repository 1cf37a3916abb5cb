//! `stat` and what changes it, `statfs`.

use crate::error::ClientError;
use crate::files::{Files, Handle, LOOK_AGAIN, OpenInode};
use meridian_core::{GroupId, Stamp};
use meridian_fs::operation::Changes;
use meridian_fs::types::{Attributes, Ino, Place};
use meridian_fs::{Answer, Done, FsError, Query, Update};
use std::sync::Arc;

/// So many bytes `fallocate` gives a file without asking whether there is room.
const SMALL: u64 = 1 << 20;
/// How often `stat` asks again before it keeps flushes from coming between.
const PATIENT_AFTER: usize = 4;

/// How much a partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// How many inodes.
    pub inodes: u64,
    /// How many bytes in files.
    pub bytes: u64,
    /// How many bytes more can be written.
    pub room: u64,
    /// How many inodes there may be at most, if there is a limit.
    pub inodes_max: Option<u64>,
}

impl Files {
    /// As [`Files::attributes`], however long it takes.
    pub(crate) async fn attributes_now(&self, ino: Ino) -> Result<Attributes, ClientError> {
        for attempt in 0..LOOK_AGAIN {
            // After some flushes that came between, none more may.
            let open = self.open_inode(ino).filter(|_| attempt >= PATIENT_AFTER);
            let guard = match &open {
                Some(inode) => Some(self.flushing(inode).await?),
                None => None,
            };
            let begun = self.last_change();
            let asked = self.ask(ino, |inode| Query::Attributes { inode }).await?;
            let (Answer::Attributes(attributes), known_to) = asked else {
                return Err(strange());
            };
            if let Some(attributes) = self.overlaid(attributes, known_to, begun) {
                return Ok(attributes);
            }
            drop(guard);
            self.settle(ino).await?;
        }
        Err(ClientError::Timeout { what: "stat of a file that is written all the time".into() })
    }

    /// `attributes`, which contain all changes up to `known_to`, as a program shall see them here.
    /// They were asked for after the change `begun`.
    pub(crate) async fn seen(
        &self,
        attributes: Attributes,
        known_to: Stamp,
        begun: u64,
    ) -> Attributes {
        match self.overlaid(attributes, known_to, begun) {
            Some(attributes) => attributes,
            None => self.attributes_now(attributes.place.ino).await.unwrap_or(attributes),
        }
    }

    fn overlaid(&self, attributes: Attributes, known_to: Stamp, begun: u64) -> Option<Attributes> {
        let Some(inode) = self.open_inode(attributes.place.ino) else {
            let mut attributes = self.newest(attributes, known_to);
            self.overlay_reads(&mut attributes);
            return Some(attributes);
        };
        // Under the lock: a flush clears its bytes and notes what came of them in one step.
        let mut buffer = crate::client::lock(&inode.buffer);
        if buffer.landed > begun {
            return None; // Perhaps from before what landed: see [`Files::last_change`].
        }
        let mut attributes = self.newest(attributes, known_to);
        self.overlay_reads(&mut attributes);
        buffer.writes.learn_size(attributes.size);
        buffer.writes.overlay(attributes)
    }

    /// Waits for a flush that is under way. If one failed and nobody knows whether a replica has
    /// what was appended or set, that is sent again.
    pub(crate) async fn settle(&self, ino: Ino) -> Result<(), ClientError> {
        let Some(inode) = self.open_inode(ino) else { return Ok(()) };
        let _guard = self.flushing(&inode).await?;
        let unknown = crate::client::lock(&inode.buffer).writes.is_unsure();
        if unknown { self.flush_locked(&inode, None).await } else { Ok(()) }
    }

    /// `setattr`. What is buffered of the file is sent before, or together with it: see
    /// [`crate::files::settings`].
    ///
    /// # Errors
    /// If that fails, or the tree refuses.
    pub async fn set_attributes(
        &self,
        ino: Ino,
        changes: Changes,
    ) -> Result<Attributes, ClientError> {
        if let Some(attributes) = self.keep_changes(ino, &changes).await? {
            return Ok(attributes);
        }
        let open = self.open_inode(ino);
        let update = |inode| Update::SetAttributes { inode, changes: changes.clone() };
        let attributes = match &open {
            Some(inode) if changes.size == Some(0) => self.empty(inode, update).await?,
            open => {
                let _guard = self.flushed(open.as_ref()).await?;
                self.ordered(open.as_ref(), ino, update).await?
            }
        };
        Ok(match &open {
            Some(inode) => crate::client::lock(&inode.buffer).writes.overlay(attributes),
            None => Some(attributes),
        }
        .unwrap_or(attributes))
    }

    /// `fallocate(FALLOC_FL_PUNCH_HOLE)`.
    ///
    /// # Errors
    /// As [`Files::set_attributes`].
    pub async fn punch_hole(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
    ) -> Result<(), ClientError> {
        let inode = self.file(handle)?.inode;
        let _guard = self.flushed(Some(&inode)).await?;
        let hole = |inode: Place| Update::PunchHole { inode, offset, len };
        self.ordered(Some(&inode), inode.place.ino, hole).await.map(drop)
    }

    /// `fallocate` without flags: the file is at least so long. Nothing is reserved, but what could
    /// not be written now is refused.
    ///
    /// # Errors
    /// As [`Files::set_attributes`]; [`FsError::NoSpace`] if there is no room for so much more.
    pub async fn extend(&self, handle: Handle, size: u64) -> Result<(), ClientError> {
        let inode = self.file(handle)?.inode;
        if size > SMALL {
            let now = self.attributes_now(inode.place.ino).await?;
            let more = size.saturating_sub(now.size);
            if more > SMALL && more > self.client.room(now.place.partition).await {
                return Err(FsError::NoSpace.into());
            }
        }
        let _guard = self.flushed(Some(&inode)).await?;
        let extend = |inode| Update::Extend { inode, size };
        self.ordered(Some(&inode), inode.place.ino, extend).await.map(drop)
    }

    /// Cuts an open file to nothing. It can be done also when there is no room for what is
    /// buffered.
    async fn empty(
        &self,
        inode: &Arc<OpenInode>,
        update: impl Fn(Place) -> Update,
    ) -> Result<Attributes, ClientError> {
        let _guard = self.flushing(inode).await?;
        let Err(error) = self.flush_locked(inode, None).await else {
            return self.ordered(Some(inode), inode.place.ino, update).await;
        };
        // What may have been sent must end first, or it could come after the cut.
        let aside = self.change_buffer(inode, |buffer| buffer.writes.set_aside()).ok_or(error)?;
        let result = self.ordered(Some(inode), inode.place.ino, update).await;
        self.change_buffer(inode, |buffer| match result {
            Ok(_) => buffer.writes.forget_failures(), // Of bytes that are cut.
            Err(_) => buffer.writes.put_back(aside, self.client.time()),
        });
        result
    }

    /// Sends what is buffered, and keeps what is written meanwhile back while the guard is held.
    pub(crate) async fn flushed<'a>(
        &self,
        open: Option<&'a Arc<OpenInode>>,
    ) -> Result<Option<tokio::sync::MutexGuard<'a, ()>>, ClientError> {
        let Some(inode) = open else { return Ok(None) };
        let guard = self.flushing(inode).await?;
        self.flush_locked(inode, None).await?;
        Ok(Some(guard))
    }

    /// Does an update of one inode, whose buffer the caller has flushed: see [`Files::flushed`].
    pub(crate) async fn ordered(
        &self,
        open: Option<&Arc<OpenInode>>,
        ino: Ino,
        update: impl Fn(Place) -> Update,
    ) -> Result<Attributes, ClientError> {
        let mut place = self.place_of(ino);
        for _ in 0..LOOK_AGAIN {
            let under = open.and_then(|inode| self.under(inode));
            match self.client.apply_under(&update(place), under).await {
                Ok((Done::Attributes(attributes), ts)) => {
                    if let Some(inode) = open {
                        self.change_buffer(inode, |buffer| {
                            buffer.writes.learn_size(attributes.size);
                            buffer.landed = self.next_change();
                            self.note(attributes, ts);
                        });
                    } else {
                        self.note(attributes, ts);
                        self.note_root(attributes, ts).await;
                    }
                    return Ok(attributes);
                }
                Ok(_) => return Err(strange()),
                Err(ClientError::Fs(FsError::Stale)) => place = self.search(ino).await?,
                Err(ClientError::Fs(FsError::LockLost)) => {
                    if let Some(inode) = open
                        && self.was_lost(inode, under).await
                    {
                        return Err(FsError::LockLost.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(FsError::Gone.into())
    }

    /// How much `partition` holds, and how much more can be written to it.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn totals(&self, partition: GroupId) -> Result<Totals, ClientError> {
        let read = self.client.read(Query::Totals { partition });
        let (read, room) = tokio::join!(read, self.client.room(partition));
        match read? {
            Answer::Totals { inodes, bytes } => {
                Ok(Totals { inodes, bytes, room, inodes_max: None })
            }
            _ => Err(strange()),
        }
    }
}

pub(crate) fn strange() -> ClientError {
    ClientError::Protocol("an answer to something else".into())
}
