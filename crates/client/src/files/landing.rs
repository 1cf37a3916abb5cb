//! What is kept back lands: new files and removals go to the nodes in the order in which they were
//! kept back, many of one partition in one message (decision 104). Each partition has a task for
//! that: one that is out of reach holds up no other.

use crate::client::{Prepared, lock};
use crate::error::ClientError;
use crate::files::write::Answered;
use crate::files::{Files, OpenInode};
use meridian_core::level::Level;
use meridian_core::{GroupId, Stamp};
use meridian_fs::batch::{BATCH_MAX, Kept, Part, Written};
use meridian_fs::types::{Name, Place, Timestamp};
use meridian_fs::{Done, FsError, Update};
use meridian_session::writeback::flush::{Sent, Step};
use meridian_session::{Command, ToLand};
use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{MutexGuard, OwnedMutexGuard};

/// So many bytes go in one batch, and what was called for together with its last part.
const BATCH_BYTES: usize = 512 << 10;
/// Beyond so many also what was called for together is apart: nodes take twice as many at once.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// How long to wait before what nobody has answered is sent again.
const PAUSE: Duration = Duration::from_secs(1);

/// How often something has landed or failed to, and the last failure in each partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts {
    count: u64,
    failed: HashMap<GroupId, (u64, ClientError)>,
}

impl Attempts {
    /// Why something was not sent since then, in that partition or anywhere.
    fn failed_since(&self, group: Option<GroupId>, begun: u64) -> Option<ClientError> {
        let such = |of: GroupId| group.is_none_or(|group| group == of);
        let failed = self.failed.iter().find(|(of, (count, _))| such(**of) && *count > begun);
        failed.map(|(_, (_, error))| error.clone())
    }
}

/// Something that waits to be sent.
#[derive(Debug)]
struct Waiting {
    what: ToLand,
    /// What was called for together has one number: so it is to land (decision 116).
    call: u64,
    /// It was refused in a batch, or must come in a message of its own.
    is_alone: bool,
}

/// A part of a batch.
struct Loaded {
    part: Part,
    /// As in [`Waiting`].
    call: u64,
    /// The file that is made, which nobody else flushes meanwhile.
    file: Option<(Arc<OpenInode>, OwnedMutexGuard<()>)>,
}

/// What is to be done for something that waits.
enum Load {
    Part(Loaded),
    /// Nothing: it has landed.
    Nothing,
    /// It comes in a message of its own.
    Alone,
    Failed(ClientError),
}

/// What became of a part.
enum End {
    Done(Done),
    Refused(FsError),
    /// It was not done, as one before it was refused.
    Unsent,
}

impl Files {
    /// All that is kept back in order lands, in that partition or everywhere.
    ///
    /// # Errors
    /// Why something cannot be sent. It is sent again all the same.
    pub(crate) async fn land_all(&self, group: Option<GroupId>) -> Result<(), ClientError> {
        let driver = self.client.driver();
        let last = driver.last_kept();
        if driver.has_landed(group, last) {
            return Ok(());
        }
        let mut attempts = self.attempts.subscribe();
        let begun = attempts.borrow_and_update().count;
        driver.command(Command::Land);
        while !driver.has_landed(group, last) {
            if attempts.changed().await.is_err() {
                break; // The files are gone, and with them what was kept back.
            }
            if let Some(error) = attempts.borrow_and_update().failed_since(group, begun) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until nobody flushes the file. Who has it land does so until it has.
    ///
    /// # Errors
    /// Why that cannot be sent.
    pub(crate) async fn flushing<'a>(
        &self,
        inode: &'a OpenInode,
    ) -> Result<MutexGuard<'a, ()>, ClientError> {
        let mut attempts = self.attempts.subscribe();
        let begun = attempts.borrow_and_update().count;
        let mut guard = pin!(inode.flushing.lock());
        loop {
            tokio::select! {
                biased;
                guard = &mut guard => return Ok(guard),
                Ok(()) = attempts.changed() => {
                    let group = Some(inode.place.partition);
                    if let Some(error) = attempts.borrow_and_update().failed_since(group, begun) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Somebody may wait for what has landed.
    pub(crate) fn note_landed(&self) {
        self.attempts.send_modify(|attempts| attempts.count += 1);
    }

    fn note_failed(&self, group: GroupId, error: &ClientError) {
        self.client.warn(group, "what was kept back waits to be sent", error);
        self.attempts.send_modify(|attempts| {
            attempts.count += 1;
            attempts.failed.insert(group, (attempts.count, error.clone()));
        });
    }

    /// Sends what comes first, as much as goes in one message.
    async fn land_some(self: &Arc<Self>, group: GroupId, waiting: &mut VecDeque<Waiting>) {
        let batches = self.client.topology().levels.now >= Level::BATCHES;
        let parts_max = if batches { BATCH_MAX } else { 1 };
        let (mut loaded, mut bytes, mut last) = (Vec::new(), 0, None);
        while loaded.len() < parts_max && bytes < BATCH_BYTES_MAX {
            let begins = waiting.front().map(|next| next.call).filter(|call| last != Some(*call));
            if let Some(call) = begins.filter(|_| !loaded.is_empty()) {
                let together = waiting.iter().take_while(|next| next.call == call).count();
                if bytes >= BATCH_BYTES || loaded.len() + together > parts_max {
                    break;
                }
            }
            // On a full disk what gives room back does not wait for what needs some.
            let removes = |what: &ToLand| matches!(what, ToLand::Removal(_));
            let first = loaded.first().map(|first: &Loaded| first.file.is_none());
            let first = first.filter(|_| self.lacks_room.load(Ordering::Relaxed));
            let goes = |next: &mut Waiting| first.is_none_or(|first| first == removes(&next.what));
            let Some(next) = waiting.pop_front_if(goes) else { break };
            last = Some(next.call);
            let load = match next.is_alone {
                true => Load::Alone,
                false => self.load(&next, loaded.is_empty()).await,
            };
            match load {
                Load::Part(part) => {
                    bytes += part.bytes();
                    loaded.push(part);
                }
                Load::Nothing => {}
                Load::Alone if loaded.is_empty() => {
                    return self.land_alone(group, next, waiting).await;
                }
                Load::Alone => {
                    waiting.push_front(next);
                    break;
                }
                Load::Failed(error) => {
                    if loaded.is_empty() {
                        self.wait_after(group, &error, waiting).await;
                    }
                    waiting.push_front(next);
                    break;
                }
            }
        }
        if !loaded.is_empty() {
            self.send_loaded(group, loaded, waiting).await;
        }
    }

    /// Makes a part of a batch of it. Only what comes first waits for others who flush it.
    async fn load(&self, waiting: &Waiting, is_first: bool) -> Load {
        let call = waiting.call;
        let place = match &waiting.what {
            ToLand::File(place) => *place,
            ToLand::Removal(part) => {
                return match self.client.driver().is_unlanded(part.kept.child().ino) {
                    true => Load::Part(Loaded { part: part.clone(), call, file: None }),
                    false => Load::Nothing,
                };
            }
        };
        let Some(inode) = self.unlanded(place).await else { return Load::Nothing };
        let flushing = match inode.flushing.clone().try_lock_owned() {
            Ok(guard) => guard,
            Err(_) if is_first => match self.flushing_or_landed(&inode).await {
                Some(guard) => guard,
                None => return Load::Nothing,
            },
            Err(_) => return Load::Alone,
        };
        let written = self.client.driver().written_in(place.ino);
        if lock(&inode.buffer).writes.birth().is_none() && written.is_none() {
            return Load::Nothing;
        }
        lock(&inode.buffer).writes.begin_flush(None);
        loop {
            let step = lock(&inode.buffer).writes.next_step();
            match step {
                Step::Done => return Load::Nothing,
                Step::Pack(packing) => self.pack(&inode, packing),
                Step::Store(blocks) => {
                    let stored = self.client.put_blocks(place.partition, blocks).await;
                    let ended =
                        self.change_buffer(&inode, |buffer| buffer.writes.on_stored(stored));
                    if let Err(error) = ended {
                        return Load::Failed(error);
                    }
                }
                Step::Send { update, time } => {
                    let Some(kept) = kept_of(update, time, written) else { return Load::Alone };
                    let part = Part { time, kept };
                    return Load::Part(Loaded { part, call, file: Some((inode, flushing)) });
                }
                // It was sent in a message of its own, of which nobody knows what became.
                Step::Again => return Load::Alone,
            }
        }
    }

    /// The file, if it has not landed, or what was written to it. A new one may be on its way into
    /// the table of files: whoever has begun it is about to put it there.
    async fn unlanded(&self, place: Place) -> Option<Arc<OpenInode>> {
        let driver = self.client.driver();
        loop {
            let mut born = pin!(self.born.notified());
            born.as_mut().enable();
            let inode = self.open_inode(place.ino);
            let is_clean = |inode: &Arc<OpenInode>| lock(&inode.buffer).writes.is_clean();
            if inode.as_ref().is_none_or(is_clean) {
                driver.end_written(place.ino); // What was written was cut since, or lost.
            }
            let inode = inode.filter(|inode| self.is_unlanded(inode));
            if inode.is_some() || !driver.is_unlanded(place.ino) {
                return inode;
            }
            born.await;
        }
    }

    /// Waits until nobody flushes the file, or it has landed: whoever flushes it may go on to do
    /// something that waits for what comes after it.
    async fn flushing_or_landed(&self, inode: &OpenInode) -> Option<OwnedMutexGuard<()>> {
        let mut attempts = self.attempts.subscribe();
        let mut guard = pin!(inode.flushing.clone().lock_owned());
        while self.is_unlanded(inode) {
            tokio::select! {
                biased;
                guard = &mut guard => return Some(guard),
                Ok(()) = attempts.changed() => {}
            }
        }
        None
    }

    /// Whether it is a new file that is not there yet, or what was written to it is kept back.
    fn is_unlanded(&self, inode: &OpenInode) -> bool {
        let is_new = lock(&inode.buffer).writes.birth().is_some();
        is_new || self.client.driver().written_in(inode.place.ino).is_some()
    }

    async fn send_loaded(
        self: &Arc<Self>,
        group: GroupId,
        mut loaded: Vec<Loaded>,
        waiting: &mut VecDeque<Waiting>,
    ) {
        let (update, time) = match &loaded[..] {
            [Loaded { part: Part { time, kept: kept @ Kept::Make(_) }, .. }] => {
                (kept.clone().into_update(), *time)
            }
            all => batch_of(all.iter().map(|of| of.part.clone()).collect()),
        };
        let count = loaded.len();
        let prepared = self.client.prepare(&update, time);
        let (ends, ts) = match self.send_to_the_end(group, &prepared, waiting).await {
            Ok((Done::Batch { done, refused }, ts)) => {
                let done = done.into_iter().map(End::Done);
                (done.chain(refused.map(End::Refused)).collect(), ts)
            }
            Ok((done, ts)) => (vec![End::Done(done)], ts),
            Err(error) if count == 1 => (vec![End::Refused(error)], Stamp(0)),
            Err(error) => {
                if let FsError::Late { horizon_ms } = error {
                    self.client.block_refused(horizon_ms);
                }
                (Vec::new(), Stamp(0)) // As a whole: the first comes alone.
            }
        };
        let none_was = ends.is_empty();
        let ends = ends.into_iter().chain(std::iter::repeat_with(|| End::Unsent));
        let mut again = Vec::new();
        for ((nth, of), end) in loaded.drain(..).enumerate().zip(ends) {
            let is_alone = matches!(end, End::Refused(_)) || (none_was && nth == 0);
            let call = of.call;
            again.extend(self.end(of, end, ts).map(|what| Waiting { what, call, is_alone }));
        }
        again.into_iter().rev().for_each(|waits| waiting.push_front(waits));
        self.note_landed();
    }

    /// What became of a part; answers what is to be sent again.
    fn end(self: &Arc<Self>, of: Loaded, end: End, ts: Stamp) -> Option<ToLand> {
        let Loaded { part, file, .. } = of;
        let Some((inode, flushing)) = file else {
            return match end {
                End::Done(_) => None,
                End::Unsent => Some(ToLand::Removal(part)),
                End::Refused(error) => self.removal_refused(part, error),
            };
        };
        let answered = match end {
            End::Done(done) => Answered::of(Ok((done, ts))),
            End::Refused(error) => Answered::of(Err(error.into())),
            End::Unsent => Answered { sent: Sent::Anew, written: None },
        };
        // Whoever has it open is told of a failure at its next call.
        if let (Err(error), Kept::Write(written)) = (self.take_answer(&inode, answered), &part.kept)
            && lock(&inode.buffer).writes.is_clean()
        {
            tracing::warn!(
                "what was written to '{}' in the directory with number {} is lost: {error}",
                written.name.escape_ascii(),
                written.parent.ino.0
            );
        }
        drop(flushing);
        let is_left = self.is_unlanded(&inode);
        self.forget_if_unused(&inode);
        is_left.then_some(ToLand::File(inode.place))
    }

    fn removal_refused(&self, part: Part, error: FsError) -> Option<ToLand> {
        let child = part.kept.child();
        if let FsError::UnnamedQuota { quota } = error {
            self.client.counts_against(child, quota);
            return Some(ToLand::Removal(part));
        }
        tracing::warn!(
            "a removal was refused, of '{}' in the directory with number {}: {error}",
            part.kept.name().escape_ascii(),
            part.kept.parent().ino.0
        );
        None
    }

    /// Sends something in a message of its own.
    async fn land_alone(
        self: &Arc<Self>,
        group: GroupId,
        waits: Waiting,
        waiting: &mut VecDeque<Waiting>,
    ) {
        match &waits.what {
            ToLand::File(place) => {
                let Some(inode) = self.unlanded(*place).await else { return };
                let result = self.flush_inode(&inode, None).await;
                let is_left = self.is_unlanded(&inode);
                self.forget_if_unused(&inode);
                match result {
                    Err(error) if is_left => {
                        self.wait_after(group, &error, waiting).await;
                        waiting.push_front(waits);
                    }
                    _ => self.has_room(),
                }
            }
            ToLand::Removal(part) => {
                let (update, time) = batch_of(vec![part.clone()]);
                let prepared = self.client.prepare(&update, time);
                let sent = self.send_to_the_end(group, &prepared, waiting).await;
                if let Some(error) = refusal(sent) {
                    let again = self.removal_refused(part.clone(), error);
                    let call = waits.call;
                    waiting.extend(again.map(|what| Waiting { what, call, is_alone: true }));
                }
            }
        }
        self.note_landed();
    }

    /// Sends it until it is known what came of it.
    async fn send_to_the_end(
        &self,
        group: GroupId,
        prepared: &Prepared,
        waiting: &mut VecDeque<Waiting>,
    ) -> Result<(Done, Stamp), FsError> {
        loop {
            match self.client.send(prepared).await {
                Ok(done) => {
                    self.has_room();
                    return Ok(done);
                }
                Err(ClientError::Fs(error)) => return Err(error),
                Err(error) => self.wait_after(group, &error, waiting).await,
            }
        }
    }

    /// Something could not be sent. While a disk is full, what gives room back overtakes what waits
    /// for room, or that would wait for ever.
    async fn wait_after(
        &self,
        group: GroupId,
        error: &ClientError,
        waiting: &mut VecDeque<Waiting>,
    ) {
        if error.errno() == FsError::NoSpace.errno() {
            self.lacks_room.store(true, Ordering::Relaxed);
            self.client.driver().command(Command::KeepOrder(false));
            self.send_removals(waiting).await;
        }
        self.note_failed(group, error);
        tokio::time::sleep(PAUSE).await;
    }

    /// Something was sent: the order is kept again.
    fn has_room(&self) {
        if self.lacks_room.swap(false, Ordering::Relaxed) {
            self.client.driver().command(Command::KeepOrder(true));
        }
    }

    /// Sends all removals that wait, each in a message of its own.
    async fn send_removals(&self, waiting: &mut VecDeque<Waiting>) {
        for waits in std::mem::take(waiting) {
            let ToLand::Removal(part) = &waits.what else {
                waiting.push_back(waits);
                continue;
            };
            let (update, time) = batch_of(vec![part.clone()]);
            let sent = match self.client.send(&self.client.prepare(&update, time)).await {
                Err(ClientError::Fs(error)) => Err(error),
                Ok(done) => Ok(done),
                Err(error) => {
                    tracing::debug!("a removal on a full disk: {error}");
                    waiting.push_back(waits);
                    continue;
                }
            };
            if let Some(error) = refusal(sent) {
                self.removal_refused(part.clone(), error);
            }
        }
        self.note_landed();
    }
}

/// The update that brings them, and when the last of them was done.
fn batch_of(parts: Vec<Part>) -> (Update, Timestamp) {
    let time = parts.iter().map(|part| part.time).max().unwrap_or_default();
    (Update::Batch(parts), time)
}

/// What brings an update of that time, of a file that is made, or was written where that tells.
fn kept_of(update: Update, time: Timestamp, written_in: Option<(Place, Name)>) -> Option<Kept> {
    let (inode, at, pieces, written, settings) = match update {
        Update::Make(made) => return Some(Kept::Make(made)),
        Update::Write { inode, at, pieces } => (inode, at, pieces, time, Vec::new()),
        Update::Settle { inode, at, pieces, written, settings } => {
            (inode, at, pieces, written, settings)
        }
        _ => return None,
    };
    let (parent, name) = written_in?;
    let written = Written { parent, name, inode, at, pieces, written, settings };
    Some(Kept::Write(Box::new(written)))
}

/// Why a removal was not done.
fn refusal(sent: Result<(Done, Stamp), FsError>) -> Option<FsError> {
    match sent {
        Ok((Done::Batch { refused, .. }, _)) => refused,
        Ok(_) => None,
        Err(error) => Some(error),
    }
}

impl Loaded {
    /// How many bytes it has in the message.
    fn bytes(&self) -> usize {
        let size = postcard::ser_flavors::Size::default();
        postcard::serialize_with_flavor(&self.part, size).expect("plain values can be encoded")
    }
}

/// Sends what is called for, of each partition in a task of its own.
pub(crate) async fn land_called(files: Weak<Files>, mut called: UnboundedReceiver<Vec<ToLand>>) {
    let mut tasks = HashMap::<GroupId, UnboundedSender<Vec<Waiting>>>::new();
    let mut call = 0;
    while let Some(all) = called.recv().await {
        call += 1;
        let mut by_group = HashMap::<GroupId, Vec<Waiting>>::new();
        for what in all {
            let group = match &what {
                ToLand::File(place) => place.partition,
                ToLand::Removal(part) => part.kept.parent().partition,
            };
            by_group.entry(group).or_default().push(Waiting { what, call, is_alone: false });
        }
        for (group, together) in by_group {
            let task = tasks.entry(group).or_insert_with(|| {
                let (sender, called) = unbounded_channel();
                tokio::spawn(land_in(group, files.clone(), called));
                sender
            });
            let _ = task.send(together); // Who is gone has nothing to send.
        }
    }
}

async fn land_in(group: GroupId, files: Weak<Files>, mut called: UnboundedReceiver<Vec<Waiting>>) {
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let Some(together) = called.recv().await else { return };
            waiting.extend(together);
        }
        while let Ok(together) = called.try_recv() {
            waiting.extend(together);
        }
        let Some(files) = files.upgrade() else { return };
        files.land_some(group, &mut waiting).await;
    }
}
