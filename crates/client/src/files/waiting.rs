//! Waiting for a lock: the partition keeps who waits, in the order of arrival, and a replica keeps
//! the question whether it is granted. Nothing is ordered meanwhile but that the client lives.
//!
//! Who waits no more says so, or its lock would be granted to nobody. What cannot be said now is
//! said later ([`Files::give_back_left`]).

use crate::client::lock as hold;
use crate::error::ClientError;
use crate::files::locks::Wanted;
use crate::files::{Files, Handle, OpenInode};
use meridian_fs::{Answer, FsError, Query, Standing};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long after a question that nobody answers it is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Somebody waits, until it is ended. Dropped before, it is abandoned.
struct Ticket {
    files: Arc<Files>,
    inode: Arc<OpenInode>,
    number: u64,
    ended: bool,
}

impl Ticket {
    fn new(files: &Arc<Files>, inode: &Arc<OpenInode>, wanted: Wanted) -> Ticket {
        let number = files.next_ticket.fetch_add(1, Ordering::Relaxed);
        hold(&inode.buffer).holders.wait(number, wanted);
        Ticket { files: files.clone(), inode: inode.clone(), number, ended: false }
    }

    /// The partition knows that it is over.
    fn end(mut self) {
        self.ended = true;
        hold(&self.inode.buffer).holders.end_wait(self.number);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        hold(&self.inode.buffer).holders.abandon(self.number);
        let (files, inode) = (self.files.clone(), self.inode.clone());
        tokio::spawn(async move {
            files.give_back_left(&inode).await;
            files.forget_if_unused(&inode);
        });
    }
}

impl Files {
    /// Takes a lock when it is free, however long that takes. Returns whether it has it: not if
    /// `interrupted` ended before.
    ///
    /// # Errors
    /// [`FsError::Deadlock`] if it would wait for ever; or as [`Files::lock`].
    pub async fn lock_waiting(
        self: &Arc<Self>,
        handle: Handle,
        wanted: Wanted,
        interrupted: impl Future<Output = ()>,
    ) -> Result<bool, ClientError> {
        let mut interrupted = std::pin::pin!(interrupted);
        loop {
            let inode = self.ready_to_lock(handle, wanted.owner).await?;
            let ticket = Ticket::new(self, &inode, wanted);
            let turn = self.turn(&inode).await?;
            let asked = self.take(&inode, &turn, (handle, wanted), Some(ticket.number)).await;
            drop(turn);
            let ended = match asked {
                Ok(Standing::Waits) => {
                    let _watch = self.watch(wanted);
                    tokio::select! {
                        biased;
                        ended = self.granted(&inode, wanted, ticket.number) => ended,
                        () = &mut interrupted => {
                            return self.end_wait(&inode, wanted, ticket).await;
                        }
                    }
                }
                // It may wait all the same if another lock turns out to be lost.
                Err(ClientError::Fs(error)) if error != FsError::LockLost => {
                    ticket.end();
                    return Err(error.into());
                }
                asked => asked,
            };
            match ended? {
                Standing::Held => {
                    ticket.end();
                    return Ok(true);
                }
                Standing::Deadlock => {
                    self.end_wait(&inode, wanted, ticket).await?;
                    return Err(FsError::Deadlock.into());
                }
                // Its lease has run out: it asks anew.
                Standing::Gone | Standing::Waits => ticket.end(),
            }
        }
    }

    /// How a wait ends in the partition.
    async fn granted(
        &self,
        inode: &OpenInode,
        wanted: Wanted,
        ticket: u64,
    ) -> Result<Standing, ClientError> {
        let (inode, lock) = (inode.place, self.lock_of(wanted));
        loop {
            match self.client.read(Query::Awaited { inode, lock, ticket }).await {
                Ok(Answer::Awaited(stand)) if stand.lock == Standing::Waits => {}
                Ok(Answer::Awaited(stand)) => return Ok(stand.lock),
                Err(error @ ClientError::Fs(_)) => return Err(error),
                Ok(_) => return Err(crate::files::attributes::strange()),
                Err(error) => {
                    tracing::debug!("who waits for a lock is not answered: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits no more. Whether the lock was given before.
    async fn end_wait(
        &self,
        inode: &Arc<OpenInode>,
        wanted: Wanted,
        ticket: Ticket,
    ) -> Result<bool, ClientError> {
        let turn = self.turn(inode).await?;
        let held = self.leave(inode, &turn, (wanted, ticket.number)).await?;
        ticket.end();
        Ok(held)
    }
}
