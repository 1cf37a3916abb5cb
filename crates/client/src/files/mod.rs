//! Files as POSIX programs see them, without a word of FUSE: names, attributes, open files, and
//! the bytes that were written and are not yet sent.
//!
//! | module | what |
//! | --- | --- |
//! | [`opening`], [`durability`] | open; when what is written is durable |
//! | [`names`] | lookup, create, unlink, rename and the like; placement |
//! | [`attributes`] | stat, setattr |
//! | [`xattrs`] | extended attributes |
//! | [`settings`] | what is set of a file and goes with its bytes |
//! | [`newborn`] | new files and removals that are kept back; `landing`: how they are sent |
//! | [`directory`] | listings |
//! | [`buffer`] | what is kept of one open file |
//! | [`write`] | write, flush, fsync |
//! | [`read`] | read, seek; `ahead`: what will be read next |
//! | [`locks`] | locks; `waiting`: for one; `deadlocks`: in a cycle; `tenure`: lost ones |
//! | [`pages`] | files that are memory of one mount |
//! | [`quota`] | quotas of directories |
//! | [`token`] | what was seen here, handed over; what others saw, taken over |
//! | `merge` | short blocks become one |
//!
//! Invariants:
//! - F1: what a program wrote, and set with it, is in the file's buffer until it is stored, or the
//!   file is gone.
//! - F2: of one file one flush is under way at a time; writes meanwhile wait for the next.
//! - F3: what is read or shown of a file is what a replica has, never from before this mount's last
//!   flush of it, and over it all that is buffered.

mod accesses;
mod ahead;
pub mod attributes;
pub mod buffer;
mod deadlocks;
pub mod directory;
pub mod durability;
mod landing;
pub mod locks;
mod merge;
pub mod names;
pub mod newborn;
pub mod opening;
pub mod pages;
pub mod quota;
pub mod read;
mod roots;
mod settings;
mod tenure;
pub mod token;
mod waiting;
pub mod write;
pub mod xattrs;

use crate::client::{Client, lock};
use crate::error::ClientError;
use buffer::Buffer;
use meridian_core::{GroupId, Stamp};
use meridian_fs::types::{Attributes, Ino, Name, Place};
use meridian_fs::{Answer, FsError, Query, Update};
use meridian_keys::causal::Token;
use meridian_session::accesses::Accesses;
use meridian_session::opens::LAZY;
use meridian_session::{Command, Deadlocks, Opens, Tops};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// How often a call looks again when the tree has changed under it.
pub(crate) const LOOK_AGAIN: usize = 16;
/// How often it is looked for written bytes that have waited for long.
const TICK: Duration = Duration::from_secs(1);
/// How often the partitions in which this client holds something hear that it lives.
const RENEW: Duration = Duration::from_secs(10);
/// How many inodes' last own changes are remembered, at least.
const RECENT: usize = 8192;
/// How long to wait for a partition that may have an inode, when it is looked for in all.
const SEARCH_LIMIT: Duration = Duration::from_secs(3);

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// `O_WRONLY` or `O_RDWR`.
    pub write: bool,
    /// `O_APPEND`.
    pub append: bool,
    /// `O_NOATIME`.
    pub noatime: bool,
    /// `O_SYNC` or `O_DSYNC`: each write is as durable as after fsync.
    pub sync: bool,
}

/// The number of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// An inode that is open on this mount, or has something buffered.
#[derive(Debug)]
pub(crate) struct OpenInode {
    pub(crate) place: Place,
    pub(crate) buffer: Mutex<Buffer>,
    /// F2: who holds it flushes, or changes what flushed bytes must not overtake.
    pub(crate) flushing: Arc<tokio::sync::Mutex<()>>,
    /// A flush has put in flight what waited in the buffer.
    pub(crate) room: Notify,
    /// K1: who holds it asks for a lock of the file, or gives one back.
    pub(crate) locking: tokio::sync::Mutex<()>,
}

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<OpenInode>,
    pub(crate) mode: OpenMode,
}

/// The last own change of inodes: its timestamp, and the attributes after it. An answer that may be
/// from before it is not believed.
#[derive(Debug, Default)]
struct Recent {
    now: HashMap<Ino, (Stamp, Attributes)>,
    before: HashMap<Ino, (Stamp, Attributes)>,
}

/// Files over a client. Made once per mount.
#[derive(Debug)]
pub struct Files {
    me: Weak<Files>,
    pub(crate) client: Client,
    pub(crate) open: Mutex<HashMap<Handle, OpenFile>>,
    pub(crate) inodes: Mutex<HashMap<Ino, Arc<OpenInode>>>,
    /// Where inodes live that are not where they were made.
    moved: Mutex<HashMap<Ino, GroupId>>,
    /// Where names lead that lead into another partition, as they did when last looked at.
    placed: Mutex<HashMap<(Ino, Name), Ino>>,
    recent: Mutex<Recent>,
    /// Inodes of which names are being removed, and how many; opening them waits.
    unlinking: Mutex<HashMap<Ino, usize>>,
    unlinked: Notify,
    /// A new file that is kept back is in the table of files.
    born: Notify,
    /// How often what is kept back was sent; whether a node had no room for it.
    attempts: watch::Sender<landing::Attempts>,
    lacks_room: AtomicBool,
    /// What the partitions are told of open files.
    opens: Arc<Mutex<Opens>>,
    /// What was read and is not told yet.
    accesses: Mutex<Accesses>,
    /// Whether reads are noted.
    notes_reads: AtomicBool,
    /// What was taken over of others.
    taken: Mutex<Option<Token>>,
    /// Files whose pages programs share.
    shared: Mutex<pages::Shared>,
    /// How often the kernel may have kept pages.
    pages_kept: AtomicU64,
    next_handle: AtomicU64,
    next_ticket: AtomicU64,
    deadlocks: Mutex<Deadlocks>,
    /// What is known of directories that live elsewhere than their names.
    tops: Mutex<Tops>,
    /// When the last renewal was sent of which a partition has heard.
    renewed: Mutex<HashMap<GroupId, Instant>>,
    /// Counts own changes of open files as they end.
    changes: AtomicU64,
    /// Bytes buffered, of all files.
    pub(crate) buffered: AtomicUsize,
    pub(crate) merging: merge::Merging,
}

impl Files {
    /// Files over `client`. Must be called within a tokio runtime: a task flushes what is old.
    pub fn new(client: Client) -> Arc<Files> {
        let opens = Arc::new(Mutex::new(Opens::new(client.id(), LAZY)));
        let files = Arc::new_cyclic(|me| Files {
            me: me.clone(),
            client,
            opens,
            open: Mutex::default(),
            inodes: Mutex::default(),
            moved: Mutex::default(),
            placed: Mutex::default(),
            recent: Mutex::default(),
            unlinking: Mutex::default(),
            unlinked: Notify::new(),
            born: Notify::new(),
            attempts: watch::Sender::default(),
            lacks_room: AtomicBool::new(false),
            accesses: Mutex::default(),
            notes_reads: AtomicBool::new(true),
            taken: Mutex::default(),
            shared: Mutex::default(),
            pages_kept: AtomicU64::new(0),
            next_handle: AtomicU64::new(1),
            next_ticket: AtomicU64::new(1),
            deadlocks: Mutex::default(),
            tops: Mutex::default(),
            renewed: Mutex::default(),
            changes: AtomicU64::new(0),
            buffered: AtomicUsize::new(0),
            merging: Default::default(),
        });
        tokio::spawn(keep_up(Arc::downgrade(&files)));
        files
    }

    /// The client beneath.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The open file of that number.
    pub(crate) fn file(&self, handle: Handle) -> Result<OpenFile, ClientError> {
        const EBADF: FsError = FsError::Invalid;
        lock(&self.open).get(&handle).cloned().ok_or(ClientError::Fs(EBADF))
    }

    /// Which inode is open under that number.
    pub fn inode_of(&self, handle: Handle) -> Option<Ino> {
        lock(&self.open).get(&handle).map(|file| file.inode.place.ino)
    }

    /// Closes it for good. What is still buffered is sent later, unless the file has no name left.
    /// The locks that were taken through it are given back, unless their owner has locked the file
    /// through another handle, too.
    pub async fn release(&self, handle: Handle) {
        if self.release_now(handle) {
            return;
        }
        let Some(file) = lock(&self.open).remove(&handle) else { return };
        let (inode, mode) = (file.inode, file.mode);
        let kept = {
            let mut buffer = lock(&inode.buffer);
            buffer.close(handle, mode);
            buffer.kept && buffer.writes.open_count() == 0
        };
        self.give_back_left(&inode).await;
        if kept {
            self.give_up_kept(&inode).await;
        }
        if lock(&self.opens).close(inode.place.ino) {
            self.tell_opens().join_all().await;
        }
        self.forget_if_unused(&inode);
    }

    /// As [`Files::release`], if nobody must be told; otherwise nothing is done.
    pub fn release_now(&self, handle: Handle) -> bool {
        let Ok(OpenFile { inode, mode }) = self.file(handle) else { return true };
        {
            let mut buffer = lock(&inode.buffer);
            let last = buffer.writes.open_count() == 1;
            if (last && buffer.kept) || buffer.holders.leaves(handle) {
                return false;
            }
            buffer.close(handle, mode);
        }
        lock(&self.open).remove(&handle);
        lock(&self.opens).close(inode.place.ino);
        self.forget_if_unused(&inode);
        true
    }

    /// A file that is kept was closed. Without a name nobody can ever see it again; if it may have
    /// one what was written is sent before it is given up.
    pub(crate) async fn give_up_kept(&self, inode: &Arc<OpenInode>) {
        let _guard = inode.flushing.lock().await; // A flush must not find its batch gone.
        if lock(&inode.buffer).nameless {
            self.change_buffer(inode, |buffer| buffer.clear());
        } else if let Err(error) = self.flush_locked(inode, None).await {
            tracing::warn!("written data of a closed file wait to be sent: {error}");
        }
    }

    /// Tells the partitions what is open here and what is not any more, each at once: one out of
    /// reach must not hold up the others.
    pub(crate) fn tell_opens(&self) -> JoinSet<()> {
        let (due, mut telling) = (lock(&self.opens).due(self.client.time()), JoinSet::new());
        for (partition, update) in due {
            let (client, opens) = (self.client.clone(), self.opens.clone());
            telling.spawn(async move {
                let told = client.update(&update).await;
                if let Err(error) = &told {
                    client.warn(partition, "a partition does not hear which files are open", error);
                }
                lock(&opens).told(partition, told.is_ok());
            });
        }
        telling
    }

    pub(crate) fn forget_if_unused(&self, inode: &Arc<OpenInode>) {
        let mut inodes = lock(&self.inodes);
        let buffer = lock(&inode.buffer);
        let same = |known: &Arc<OpenInode>| Arc::ptr_eq(known, inode);
        if buffer.is_unused() && inodes.get(&inode.place.ino).is_some_and(same) {
            inodes.remove(&inode.place.ino);
        }
    }

    /// The number of the last own change of an open file that has ended. Whoever asks a replica
    /// after that is answered from after it; who asked before cannot know. Timestamps do not tell:
    /// a write may wait for votes on its inode while later ones are seen.
    pub(crate) fn last_change(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// An own change of an open file has ended.
    pub(crate) fn next_change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether nothing is buffered of the inode, and nothing kept that was set.
    pub fn is_clean(&self, ino: Ino) -> bool {
        self.open_inode(ino).is_none_or(|open| lock(&open.buffer).writes.is_clean())
    }

    pub(crate) fn open_inode(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        lock(&self.inodes).get(&ino).cloned()
    }

    /// Changes a buffer, counts what it then holds, and discards the blocks that it does not need.
    pub(crate) fn change_buffer<R>(
        &self,
        inode: &OpenInode,
        change: impl FnOnce(&mut Buffer) -> R,
    ) -> R {
        let mut buffer = lock(&inode.buffer);
        let before = buffer.writes.held();
        let result = change(&mut buffer);
        let after = buffer.writes.held();
        self.buffered.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        let discarded = buffer.writes.take_discarded();
        drop(buffer);
        self.client.discard(inode.place.partition, discarded);
        result
    }

    /// Where `ino` lives, as far as is known here.
    pub fn place_of(&self, ino: Ino) -> Place {
        let partition = lock(&self.moved).get(&ino).copied().unwrap_or(ino.birthplace());
        Place { ino, partition }
    }

    /// Whether it is known without asking that a name leads to nothing, and nothing is being made
    /// of it here.
    pub fn is_absent(&self, parent: Ino, name: &Name) -> bool {
        self.client.driver().is_absent(self.place_of(parent), name)
    }

    pub(crate) fn learn(&self, place: Place) {
        let mut moved = lock(&self.moved);
        if place.partition == place.ino.birthplace() {
            moved.remove(&place.ino);
        } else {
            moved.insert(place.ino, place.partition);
        }
    }

    /// Asks about `ino` where it lives; looks for it everywhere if it has moved.
    pub(crate) async fn ask(
        &self,
        ino: Ino,
        query: impl Fn(Place) -> Query,
    ) -> Result<(Answer, Stamp), ClientError> {
        let mut place = self.place_of(ino);
        for _ in 0..LOOK_AGAIN {
            match self.client.read_within(query(place), self.client.timeout()).await {
                Err(ClientError::Fs(FsError::Stale)) => place = self.search(ino).await?,
                other => return other,
            }
        }
        Err(FsError::Gone.into())
    }

    /// Looks for an inode in all partitions: a directory that was placed elsewhere meanwhile.
    ///
    /// # Errors
    /// [`FsError::Gone`] if no partition has it; if one that may have it does not answer, its
    /// failure.
    pub(crate) async fn search(&self, ino: Ino) -> Result<Place, ClientError> {
        let (mut asked, mut missing) = (tokio::task::JoinSet::new(), FsError::Gone.into());
        let limit = SEARCH_LIMIT.min(self.client.timeout());
        for partition in self.client.topology().group_ids() {
            let (client, place) = (self.client.clone(), Place { ino, partition });
            asked.spawn(async move {
                let query = Query::Attributes { inode: place };
                client.read_within(query, limit).await.map(|_| place)
            });
        }
        while let Some(found) = asked.join_next().await {
            match found {
                Ok(Ok(place)) => {
                    self.learn(place);
                    return Ok(place);
                }
                Ok(Err(ClientError::Fs(_))) => {} // It is not there.
                Ok(Err(error)) => missing = error,
                Err(error) => missing = ClientError::Protocol(error.to_string()),
            }
        }
        Err(missing)
    }

    /// Notes the attributes after an own change, made at `ts`.
    pub(crate) fn note(&self, attributes: Attributes, ts: Stamp) {
        let mut recent = lock(&self.recent);
        if recent.now.len() >= RECENT {
            recent.before = std::mem::take(&mut recent.now);
        }
        let ino = attributes.place.ino;
        let place = attributes.place;
        let newer = recent.newest(ino).is_none_or(|(known, old)| known <= ts || old.place != place);
        if newer {
            recent.now.insert(ino, (ts, attributes));
        }
    }

    /// `attributes`, which contain all changes up to `known_to`, or those after an own change that
    /// they may lack.
    pub(crate) fn newest(&self, attributes: Attributes, known_to: Stamp) -> Attributes {
        match lock(&self.recent).newest(attributes.place.ino) {
            // Timestamps of two partitions tell nothing of each other.
            Some((known, newer)) if known > known_to && newer.place == attributes.place => newer,
            _ => attributes,
        }
    }

    pub(crate) fn begin_unlink(&self, ino: Ino) -> Unlinking<'_> {
        *lock(&self.unlinking).entry(ino).or_default() += 1;
        Unlinking { files: self, ino }
    }

    /// Sends what is old, of each file in a task of its own: one that must wait for a partition out
    /// of reach holds up no other.
    fn flush_old(self: &Arc<Self>) {
        let driver = self.client.driver();
        if !driver.has_landed(None, u64::MAX) {
            driver.command(Command::Land);
        }
        let inodes: Vec<_> = lock(&self.inodes).values().cloned().collect();
        for inode in inodes {
            let old = lock(&inode.buffer).writes.is_old(self.client.time());
            let lands = || driver.lands_in_order(inode.place.ino);
            if !old || lands() || inode.flushing.try_lock().is_err() {
                continue; // Or it is under way.
            }
            let files = self.clone();
            tokio::spawn(async move {
                if let Err(error) = files.flush_inode(&inode, None).await {
                    let partition = inode.place.partition;
                    files.client.warn(partition, "written data wait to be sent", &error);
                    lock(&inode.buffer).writes.postpone(files.client.time());
                }
                files.forget_if_unused(&inode);
            });
        }
    }

    /// Gives back locks that closed files left behind, where that failed before.
    fn give_back_old(self: &Arc<Self>) {
        let inodes: Vec<_> = lock(&self.inodes).values().cloned().collect();
        for inode in inodes {
            let left = lock(&inode.buffer).holders.has_left();
            if !left || inode.locking.try_lock().is_err() {
                continue; // Or it is under way.
            }
            let files = self.clone();
            tokio::spawn(async move {
                files.give_back_left(&inode).await;
                files.forget_if_unused(&inode);
            });
        }
    }

    /// Says that the client lives where it holds something: to all partitions at once, since one
    /// out of reach must not let the leases of the others run out.
    fn renew(self: &Arc<Self>) {
        let mut held = lock(&self.opens).partitions();
        let inodes: Vec<_> = lock(&self.inodes).values().cloned().collect();
        let locked = inodes.iter().filter(|inode| !lock(&inode.buffer).holders.is_empty());
        held.extend(locked.map(|inode| inode.place.partition));
        for partition in held {
            let files = self.clone();
            tokio::spawn(async move {
                let (update, sent) =
                    (Update::Renew { client: files.client.id(), partition }, Instant::now());
                match files.client.update(&update).await {
                    Ok(_) => files.on_renewed(partition, sent).await,
                    Err(error) => {
                        files.client.warn(partition, "cannot renew what is held", &error);
                        lock(&files.opens).doubt(partition);
                    }
                }
            });
        }
    }
}

impl Recent {
    fn newest(&self, ino: Ino) -> Option<(Stamp, Attributes)> {
        self.now.get(&ino).or_else(|| self.before.get(&ino)).copied()
    }
}

/// While it exists, opens of the inode wait.
pub(crate) struct Unlinking<'a> {
    files: &'a Files,
    ino: Ino,
}

impl Drop for Unlinking<'_> {
    fn drop(&mut self) {
        let mut unlinking = lock(&self.files.unlinking);
        if let Entry::Occupied(mut count) = unlinking.entry(self.ino) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        drop(unlinking);
        self.files.unlinked.notify_waiters();
    }
}

/// Flushes what is old and says that the client lives, as long as there are files.
async fn keep_up(files: Weak<Files>) {
    let mut renewed = Instant::now();
    loop {
        tokio::time::sleep(TICK).await;
        let Some(files) = files.upgrade() else { return };
        files.flush_old();
        files.give_back_old();
        files.look_for_deadlocks();
        files.tell_opens().detach_all();
        files.tell_reads(false).detach_all();
        if renewed.elapsed() >= 2 * RENEW {
            // This process was stopped: its leases may have run out.
            let mut opens = lock(&files.opens);
            opens.partitions().into_iter().for_each(|partition| opens.doubt(partition));
        }
        if renewed.elapsed() >= RENEW {
            renewed = Instant::now();
            files.renew();
        }
    }
}
