//! All blocks of this node are read, a full pass in a given time, or as fast as allowed if somebody
//! wants it done now. What other nodes are asked for copies it has nothing to do with.

use super::{Drain, Numbers, Place, ScrubReport};
use crate::drain::{Output, TICK};
use meridian_core::{BlockId, Outbox};
use std::time::Duration;

/// So many names are looked through for the next blocks to be read, and so many are read at a time:
/// some megabytes, between which a disk serves others.
const NAMES: usize = 32;
/// What finding a block costs a disk, in bytes that it might have read meanwhile.
const SEEK_BYTES: u64 = 64 << 10;
/// After so many pages the place is noted where a restart goes on.
const NOTE_AFTER: u32 = 64;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Scrubbing {
    /// Up to which block all were read.
    after: Option<BlockId>,
    asked: Option<u64>,
    /// How many are being read, and up to where.
    page: (u64, Option<BlockId>),
    /// No names come after the page.
    is_last: bool,
    /// What should have been read by now, in blocks times the milliseconds of a pass.
    owed: u64,
    /// Somebody wants all read now: so many passes are to end.
    urgent: u64,
    pages: u32,
    passes: u64,
    read: u64,
    damaged: u64,
    last: (u64, u64),
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

impl Scrubbing {
    pub fn report(&self) -> ScrubReport {
        ScrubReport {
            passes: self.passes,
            is_urgent: self.is_urgent(),
            read: self.read,
            damaged: self.damaged,
            last_read: self.last.0,
            last_damaged: self.last.1,
        }
    }

    fn is_urgent(&self) -> bool {
        self.urgent > self.passes
    }

    pub fn has_asked(&self, number: u64) -> bool {
        self.asked == Some(number)
    }

    pub fn cursor(&self) -> Option<BlockId> {
        self.after
    }

    pub fn replay(&mut self, read: Option<BlockId>) {
        self.after = read;
    }

    /// A pass begins now. The one that is under way does not count: what it has read was read
    /// before.
    pub fn begin_now(&mut self) {
        if !self.is_urgent() {
            (self.after, self.asked, self.read, self.damaged) = (None, None, 0, 0);
            self.urgent = self.passes + 1;
        }
    }

    /// With so many blocks, some are due.
    pub fn on_tick(&mut self, own: u64, pass: Duration) {
        let most = millis(pass).saturating_mul(NAMES as u64);
        self.owed = self.owed.saturating_add(own.saturating_mul(millis(TICK))).min(most);
    }

    /// Whether a page is due.
    pub fn has_more(&self, pass: Duration) -> bool {
        self.is_urgent() || self.owed >= millis(pass)
    }

    /// The next page, if some are due.
    pub fn go_on(&mut self, numbers: &mut Numbers, pass: Duration, out: &mut Outbox<Drain>) {
        if self.asked.is_none() && self.has_more(pass) {
            let number = numbers.next();
            self.asked = Some(number);
            out.output(Output::Live { number, after: self.after, limit: NAMES });
        }
    }

    /// These files lie in: those of this node are read, as many as are due. Nothing is read if none
    /// of them is its own; then what is to be noted, if that is due.
    pub fn on_live(
        &mut self,
        place: &Place,
        pass: Duration,
        blocks: Vec<BlockId>,
        out: &mut Outbox<Drain>,
    ) -> Option<Option<BlockId>> {
        let number = self.asked?;
        let most = if self.is_urgent() { u64::MAX } else { self.owed / millis(pass) };
        let (mut own, mut end, mut looked) = (Vec::new(), self.after, 0);
        for block in &blocks {
            if place.is_own(*block) {
                if own.len() as u64 == most {
                    break;
                }
                own.push(*block);
            }
            (end, looked) = (Some(*block), looked + 1);
        }
        self.is_last = looked == blocks.len() && blocks.len() < NAMES;
        self.page = (own.len() as u64, end);
        if !self.is_urgent() {
            self.owed = self.owed.saturating_sub(self.page.0.saturating_mul(millis(pass)));
        }
        if own.is_empty() {
            return self.end_page();
        }
        out.output(Output::Scrub { number, blocks: own });
        None
    }

    /// The page was read: what that has cost, and what is to be noted, if that is due.
    pub fn on_read(&mut self, bytes: u64, damaged: u64) -> (u64, Option<Option<BlockId>>) {
        let cost = bytes.saturating_add(self.page.0.saturating_mul(SEEK_BYTES));
        self.read += self.page.0;
        self.damaged += damaged;
        (cost, self.end_page())
    }

    fn end_page(&mut self) -> Option<Option<BlockId>> {
        (self.asked, self.after) = (None, self.page.1);
        self.pages += 1;
        if self.is_last {
            self.last = (self.read, self.damaged);
            (self.read, self.damaged, self.after) = (0, 0, None);
            self.passes += 1;
        } else if self.pages < NOTE_AFTER {
            return None;
        }
        self.pages = 0;
        Some(self.after)
    }
}
