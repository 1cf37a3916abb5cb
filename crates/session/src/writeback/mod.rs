//! Write-back of one file: what a program has written and is not yet stored, and in which order it
//! goes out. A plain value, changed under one lock and never across a wait.
//!
//! Bytes leave in this order: what is in flight, what was written at an offset, what was appended.
//! So a write at an offset waits while appended bytes wait: see [`WriteBack::accept`]. What is in
//! flight stays here, and is sent again, until its update was answered.
//!
//! | module | what |
//! | --- | --- |
//! | [`dirty`] | bytes by offset |
//! | [`birth`] | a new file that is kept back until its first batch is sent |
//! | [`setting`] | what was set of the file and goes with the bytes |
//! | [`seen`] | what programs see of it before it is stored |
//! | [`flush`] | one batch after the other on its way: packed, its blocks stored, sent, landed |
//!
//! Invariants:
//! - W1: of one file one batch is in flight at a time, and no later one leaves before it has landed
//!   or was refused for good.
//! - W2: an update that names blocks is sent only after each of them counts as stored.
//! - W3: a batch that may have been sent keeps its name: appended bytes are appended once.
//! - W4: each open file is told of each failure once, by a result or at its next call.
//! - W5: a block is discarded only if no update that names it was sent, or that one has ended
//!   without effect.
//! - W6: what was set leaves with all bytes that are kept then, in one batch. So nobody sees bytes
//!   without what was set before they were written, or what was set without those before it.

pub mod birth;
pub mod dirty;
pub mod flush;
mod seen;
pub mod setting;

use crate::mutation::Mutation;
use birth::{BIRTH_AGE, Birth};
use dirty::Dirty;
use flush::{Batch, Flight};
use meridian_core::{BlockId, Time};
use meridian_fs::Setting;
use meridian_fs::types::Timestamp;
use setting::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// Buffered bytes of one file from which on they are sent while the program goes on writing.
pub const FLUSH_AT: usize = 4 << 20;
/// Bytes of one file that wait for their flight at which the program waits, too: as many again may
/// be in flight. So while some blocks are stored on each node, as many are written.
pub const WAITING_MAX: usize = 4 * FLUSH_AT;
/// Runs of one file at which the program waits: one message names them all.
pub const RUNS_MAX: usize = 4096;
/// Buffered bytes of all files of a client at which writers wait.
pub const ALL_MAX: usize = 256 << 20;
/// How long written bytes wait at most to be sent when nobody asks for it.
pub const FLUSH_AGE: Duration = Duration::from_secs(5);

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is buffered.
    Buffered,
    /// It is buffered, and so much is that a flush is to begin beside.
    Much,
    /// It is not: the file must be flushed first.
    FlushFirst,
}

/// Bytes taken out: see [`WriteBack::set_aside`].
#[derive(Debug)]
pub struct Aside {
    dirty: Dirty,
    appended: Vec<u8>,
    flight: Option<Flight>,
}

/// See the module. `H` names open files, `E` is why a flush failed.
#[derive(Debug)]
pub struct WriteBack<H, E> {
    dirty: Dirty,
    appended: Vec<u8>,
    flight: Option<Flight>,
    /// What was set and goes with what is next in flight.
    settings: Settings,
    /// It was made here, and nothing of it was sent yet.
    is_new: bool,
    /// What makes it: no replica has heard of it, or nobody knows whether one has.
    birth: Option<Birth>,
    /// When the program wrote last.
    changed: Timestamp,
    /// Since when there is something to be sent.
    since: Option<Time>,
    /// How many batches the flush under way may still send.
    left: usize,
    /// Whom the result of the flush under way is told to.
    teller: Option<H>,
    /// Of each open file, the failure that it was not yet told of.
    untold: BTreeMap<H, Option<E>>,
    /// The length that a replica last told.
    size: Option<u64>,
    /// The inode is full: bytes go to blocks.
    use_blocks: bool,
    /// Blocks that may be stored and that no update will ever name.
    discarded: Vec<BlockId>,
    mutation: Mutation,
}

impl<H, E> Default for WriteBack<H, E> {
    fn default() -> Self {
        WriteBack {
            dirty: Dirty::default(),
            appended: Vec::new(),
            flight: None,
            settings: Settings::default(),
            is_new: false,
            birth: None,
            changed: Timestamp::default(),
            since: None,
            left: 0,
            teller: None,
            untold: BTreeMap::new(),
            size: None,
            use_blocks: false,
            discarded: Vec::new(),
            mutation: Mutation::Correct,
        }
    }
}

impl<H: Ord + Copy, E: Clone> WriteBack<H, E> {
    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: Mutation) -> Self {
        self.mutation = mutation;
        self
    }

    /// The file is open under that name, too.
    pub fn open(&mut self, handle: H) {
        self.untold.insert(handle, None);
    }

    /// It is not any more.
    pub fn close(&mut self, handle: H) {
        self.untold.remove(&handle);
    }

    /// How often the file is open.
    pub fn open_count(&self) -> usize {
        self.untold.len()
    }

    /// The failure that this open file was not yet told of.
    pub fn take_failure(&mut self, handle: H) -> Option<E> {
        self.untold.get_mut(&handle).and_then(Option::take)
    }

    /// What failed concerned bytes that the file does not have any more.
    pub fn forget_failures(&mut self) {
        self.untold.values_mut().for_each(|untold| *untold = None);
    }

    /// Takes written bytes, at `offset` or at the end; `time` is what `stat` will show of it.
    pub fn accept(
        &mut self,
        offset: Option<u64>,
        data: &[u8],
        time: Timestamp,
        now: Time,
    ) -> Accepted {
        let offset = offset.or_else(|| self.own_end());
        let waiting = self.dirty.bytes() + self.appended.len();
        let full = waiting + data.len() > WAITING_MAX || self.dirty.runs() >= RUNS_MAX;
        let overtakes = offset.is_some() && !self.appended.is_empty();
        // W6: bytes of both kinds are two batches.
        let apart = offset.is_none() && !self.dirty.is_empty() && !self.settings.is_empty();
        if (full && waiting > 0)
            || apart
            || (overtakes && !self.mutation.is(Mutation::OvertakesAppended))
        {
            return Accepted::FlushFirst;
        }
        match offset {
            Some(offset) => self.dirty.write(offset, data),
            None => self.appended.extend_from_slice(data),
        }
        if !self.mutation.is(Mutation::SetsOnNewerBytes) {
            self.settings.on_write();
        }
        self.changed = time;
        self.since.get_or_insert(now);
        if self.held() >= FLUSH_AT { Accepted::Much } else { Accepted::Buffered }
    }

    /// The file was made here.
    pub fn made(&mut self) {
        self.is_new = true;
    }

    /// Keeps what was set at `time`, to be sent with the bytes: if there are any, or the file is
    /// new, and it is open. Else it is to be sent at once, after what is kept.
    pub fn set(&mut self, setting: Setting, time: Timestamp, now: Time) -> bool {
        !self.untold.is_empty() && self.join(setting, time, now)
    }

    /// Whether the file is such a one.
    pub fn may_set(&self) -> bool {
        !self.untold.is_empty() && self.may_join()
    }

    /// As [`WriteBack::set`] of a file that need not be open: its owner sends what is kept of it.
    pub fn join(&mut self, setting: Setting, time: Timestamp, now: Time) -> bool {
        if !self.may_join() || !self.settings.push(setting, time) {
            return false;
        }
        self.since.get_or_insert(now);
        true
    }

    /// Whether the file is such a one.
    pub fn may_join(&self) -> bool {
        let is_kept = self.is_new || !self.is_clean();
        let is_one = self.dirty.is_empty() || self.appended.is_empty(); // W6.
        is_kept && is_one
    }

    /// What was set and is in no flight.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether anything was set that may not be at a replica yet.
    pub fn sets(&self) -> bool {
        !self.settings.is_empty() || self.flight.as_ref().is_some_and(Flight::sets)
    }

    /// Whether nothing is held, and nothing set.
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && self.appended.is_empty()
            && self.settings.is_empty()
            && self.flight.is_none()
            && self.birth.is_none()
    }

    /// Whether no replica can have heard of anything that is held.
    pub fn is_unsent(&self) -> bool {
        self.flight.as_ref().is_none_or(|flight| !flight.was_sent())
    }

    /// Whether one update brings all that is held, and none was begun.
    pub fn is_one_unsent(&self) -> bool {
        let is_one = self.dirty.is_empty() || self.appended.is_empty();
        self.flight.is_none() && is_one && self.birth.is_none() && !self.is_clean()
    }

    /// How many bytes are held, those in flight too.
    pub fn held(&self) -> usize {
        self.dirty.bytes() + self.appended.len() + self.flight.as_ref().map_or(0, Flight::bytes)
    }

    /// Whether something has waited for so long that it is to be sent.
    pub fn is_old(&self, now: Time) -> bool {
        let age = if self.birth.is_some() { BIRTH_AGE } else { FLUSH_AGE };
        self.since.is_some_and(|since| now.since(since) >= age)
    }

    /// What is old could not be sent: not again at once.
    pub fn postpone(&mut self, now: Time) {
        self.since = self.since.and(Some(now));
    }

    /// A replica has told how long the file is.
    pub fn learn_size(&mut self, size: u64) {
        self.size = Some(size);
    }

    /// The blocks that may be stored and that no update will ever name, since this was asked last.
    pub fn take_discarded(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.discarded)
    }

    /// Drops all bytes: nobody can ever see them.
    pub fn clear(&mut self) {
        self.begin_anew();
        self.dirty = Dirty::default();
        self.appended = Vec::new();
        self.settings = Settings::default();
        self.flight = None;
        self.birth = None;
        self.since = None;
    }

    /// What was written does not count any more, if anything is held: all are told of that, and all
    /// is dropped but what may have been sent, of which an answer will tell.
    pub fn lose(&mut self, error: E) {
        if self.held() == 0 {
            return;
        }
        self.dirty = Dirty::default();
        self.appended = Vec::new();
        self.begin_anew();
        self.ground(|flight| !flight.was_sent());
        self.since = self.since.filter(|_| !self.is_clean());
        self.untold.values_mut().for_each(|untold| *untold = Some(error.clone()));
    }

    /// Takes the flight away if it is such a one; what it sets is kept.
    fn ground(&mut self, such: impl FnOnce(&Flight) -> bool) -> Option<Flight> {
        let mut flight = self.flight.take_if(|flight| such(flight))?;
        self.settings.put_before(std::mem::take(&mut flight.settings));
        Some(flight)
    }

    /// Takes all bytes out, unless some of them may have been sent. What was set stays, but for
    /// what a change of the bytes undoes.
    pub fn set_aside(&mut self) -> Option<Aside> {
        if self.birth.is_some() || self.flight.as_ref().is_some_and(Flight::was_sent) {
            return None;
        }
        self.begin_anew();
        let dirty = std::mem::take(&mut self.dirty);
        let appended = std::mem::take(&mut self.appended);
        let flight = self.ground(|_| true);
        let aside = Aside { dirty, appended, flight: flight.filter(|flight| flight.bytes() > 0) };
        self.settings.on_write();
        self.since = self.since.filter(|_| !self.is_clean());
        Some(aside)
    }

    /// Puts bytes back under those that were written since.
    ///
    /// # Panics
    /// If something is in flight.
    pub fn put_back(&mut self, mut aside: Aside, now: Time) {
        assert!(self.flight.is_none(), "W1: who set bytes aside keeps flushes back");
        aside.dirty.absorb(&self.dirty);
        aside.appended.append(&mut self.appended);
        (self.dirty, self.appended, self.flight) = (aside.dirty, aside.appended, aside.flight);
        if !self.is_clean() {
            self.since.get_or_insert(now);
        }
    }

    /// Whether appended bytes wait or fly: their place is known when they are stored.
    fn appends(&self) -> bool {
        !self.appended.is_empty() || self.append_flies() || self.append_next() > 0
    }

    /// Whether appended bytes fly: a replica may have them or not yet.
    fn append_flies(&self) -> bool {
        let sent = self.flight.as_ref().filter(|flight| flight.was_sent());
        matches!(sent.map(|flight| &*flight.batch), Some(Batch::Append(_)))
    }

    /// How many appended bytes come next, of which no replica can have heard.
    fn append_next(&self) -> u64 {
        let unsent = self.flight.as_ref().filter(|flight| !flight.was_sent());
        match unsent.map(|flight| &*flight.batch) {
            Some(Batch::Append(bytes)) => bytes.len() as u64,
            Some(Batch::Positional(_) | Batch::Nothing) | None => 0,
        }
    }

    /// Whether what a replica has depends on whether what flies has come: appended bytes, or what
    /// was set.
    pub fn is_unsure(&self) -> bool {
        let sent = self.flight.as_ref().filter(|flight| flight.was_sent());
        self.append_flies() || sent.is_some_and(Flight::sets)
    }

    /// Whether nobody needs it any more.
    pub fn is_unused(&self) -> bool {
        self.untold.is_empty() && self.is_clean()
    }
}

#[cfg(test)]
mod tests;
