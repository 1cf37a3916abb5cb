//! A flush: its owner asks for one [`Step`] after the other, and tells what came of each.
//!
//! A flush sends what was written before it began, in at most [`BATCHES`] batches. One that its
//! owner left in the middle is taken up again by the next: what was sent keeps its name, and all
//! else begins anew.

use super::WriteBack;
use super::birth::Birth;
use super::dirty::Dirty;
use super::setting::Settings;
use crate::blocks::Block;
use crate::mutation::Mutation;
use bytes::Bytes;
use meridian_core::BlockId;
use meridian_fs::operation::{Piece, WriteAt};
use meridian_fs::types::{BLOCK_MAX, Data, Extent, INLINE_MAX, Place, Timestamp};
use meridian_fs::{FsError, Update};
use std::sync::Arc;

/// Batches that one flush sends: what was in flight, what was written at offsets, what was
/// appended. What comes after waits for the next flush, or a busy writer would hold up the caller.
pub(super) const BATCHES: usize = 3;

/// Bytes that go in one message.
#[derive(Debug)]
pub(super) enum Batch {
    /// At their offsets.
    Positional(Dirty),
    /// At the end.
    Append(Vec<u8>),
    /// None: something is only set.
    Nothing,
}

impl Batch {
    /// How far it reaches from its first byte.
    fn span(&self) -> u64 {
        match self {
            Batch::Positional(dirty) => dirty.end() - dirty.start(),
            Batch::Append(bytes) => bytes.len() as u64,
            Batch::Nothing => 0,
        }
    }
}

/// How far a batch is.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// It is to be packed.
    Begun,
    /// Its blocks are to be stored, then its update is to be sent.
    Packed(Packed),
    /// All that its update names is stored.
    Stored(Update),
    /// Its update may have been sent, under a name that its owner keeps.
    Sent,
}

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) batch: Arc<Batch>,
    /// When the program wrote it.
    time: Timestamp,
    /// What comes after the bytes, in the same update.
    pub(super) settings: Settings,
    pub(super) stage: Stage,
    /// The blocks of its update.
    blocks: Vec<BlockId>,
}

impl Flight {
    pub(super) fn bytes(&self) -> usize {
        match &*self.batch {
            Batch::Positional(dirty) => dirty.bytes(),
            Batch::Append(bytes) => bytes.len(),
            Batch::Nothing => 0,
        }
    }

    pub(super) fn sets(&self) -> bool {
        !self.settings.is_empty()
    }

    pub(super) fn was_sent(&self) -> bool {
        matches!(self.stage, Stage::Sent)
    }
}

/// What is to be done next for a flush.
#[derive(Debug)]
pub enum Step {
    /// Pack this, then [`WriteBack::on_packed`]. It copies all bytes: not under a lock.
    Pack(Packing),
    /// Store these blocks, then [`WriteBack::on_stored`].
    Store(Vec<Block>),
    /// Send this, and keep its name until [`WriteBack::on_answer`].
    Send {
        /// What to send.
        update: Update,
        /// When the program wrote it.
        time: Timestamp,
    },
    /// Send what was sent before again, under its name, then [`WriteBack::on_answer`].
    Again,
    /// Nothing: all that was written before the flush is stored.
    Done,
}

/// A batch that is to be packed.
#[derive(Debug)]
pub struct Packing {
    batch: Arc<Batch>,
    inline: bool,
    written: Timestamp,
    settings: Settings,
    birth: Option<Birth>,
}

/// The blocks of a batch and the update that names them.
#[derive(Clone, Debug)]
pub struct Packed {
    blocks: Vec<Block>,
    update: Update,
}

/// What came of an update that was sent.
#[derive(Clone, Debug)]
pub enum Sent<E> {
    /// It happened.
    Written {
        /// So long is the file now.
        size: u64,
    },
    /// The tree refuses it.
    Refused(FsError),
    /// It did not happen, and is to be sent under another name.
    Anew,
    /// Nobody knows whether it happened, or will.
    Unknown(E),
}

/// What is known after an update was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// It is written, and reaches so far from its first byte.
    Written {
        /// In bytes.
        span: u64,
    },
    /// It goes another way.
    Elsewhere,
}

impl Packing {
    /// Packs the batch, for the file `inode`; `name` draws names of blocks.
    pub fn pack(self, inode: Place, name: impl FnMut() -> BlockId) -> Packed {
        let (at, start) = match &*self.batch {
            Batch::Positional(dirty) => (WriteAt::Offset(dirty.start()), dirty.start()),
            Batch::Append(_) | Batch::Nothing => (WriteAt::End, 0),
        };
        let limit = if self.inline { INLINE_MAX } else { BLOCK_MAX };
        let (buffers, parts) = match &*self.batch {
            Batch::Positional(dirty) => dirty.pack(limit),
            Batch::Append(bytes) => {
                let mut dirty = Dirty::default();
                dirty.write(0, bytes);
                dirty.pack(limit)
            }
            Batch::Nothing => (Vec::new(), Vec::new()),
        };
        let blocks: Vec<Block> = match self.inline {
            true => Vec::new(),
            false => std::iter::repeat_with(name)
                .zip(&buffers)
                .map(|(name, data)| Block { name, data: data.clone() })
                .collect(),
        };
        let pieces = parts.into_iter().map(|part| {
            let data = match blocks.get(part.buffer) {
                None => Data::Inline(cut(&buffers[part.buffer], part.start, part.len)),
                Some(block) => {
                    let start = u32::try_from(part.start).expect("within a block");
                    Data::Block { block: block.name, start }
                }
            };
            let len = u32::try_from(part.len).expect("within a block");
            Piece { offset: part.offset - start, extent: Extent { len, data } }
        });
        let (pieces, settings) = (pieces.collect(), self.settings.to_vec());
        let written = self.written;
        let update = match self.birth {
            Some(birth) => birth.update((at, pieces, written), settings),
            None if settings.is_empty() => Update::Write { inode, at, pieces },
            None => Update::Settle { inode, at, pieces, written, settings },
        };
        Packed { blocks, update }
    }
}

/// Whether something that is set can be refused so, and what is written is not lost by it.
fn is_of_settings(error: FsError) -> bool {
    matches!(error, FsError::Denied | FsError::NotPermitted | FsError::Invalid | FsError::NoSpace)
}

fn cut(buffer: &Bytes, start: usize, len: usize) -> Bytes {
    buffer.slice(start..start + len)
}

impl<H: Ord + Copy, E: Clone + From<FsError>> WriteBack<H, E> {
    /// A flush begins. If it fails the result tells that to `teller`; all others who have the file
    /// open are told at their next call.
    pub fn begin_flush(&mut self, teller: Option<H>) {
        (self.left, self.teller) = (BATCHES, teller);
        self.begin_anew();
    }

    /// What is to be done next for the flush that has begun.
    pub fn next_step(&mut self) -> Step {
        if self.left == 0 || !self.take_off() {
            return Step::Done;
        }
        let inline = self.fits_inline();
        let flight = self.flight.as_mut().expect("taken off");
        let early = self.mutation.is(Mutation::SendsBeforeStored);
        match &mut flight.stage {
            Stage::Begun => {
                let (batch, settings) = (flight.batch.clone(), flight.settings.clone());
                let birth = self.birth.clone();
                Step::Pack(Packing { batch, inline, written: flight.time, settings, birth })
            }
            Stage::Packed(packed) if !packed.blocks.is_empty() && !early => {
                Step::Store(packed.blocks.clone())
            }
            Stage::Packed(Packed { update, .. }) | Stage::Stored(update) => {
                let (update, time) = (update.clone(), flight.time.max(flight.settings.time()));
                flight.stage = Stage::Sent;
                Step::Send { update, time }
            }
            Stage::Sent => Step::Again,
        }
    }

    /// Puts the next batch in flight, unless one is; whether there is one.
    fn take_off(&mut self) -> bool {
        if self.flight.is_none() {
            let batch = if !self.dirty.is_empty() {
                Batch::Positional(std::mem::take(&mut self.dirty))
            } else if !self.appended.is_empty() {
                Batch::Append(std::mem::take(&mut self.appended))
            } else if !self.settings.is_empty() || self.birth.is_some() {
                Batch::Nothing
            } else {
                return false;
            };
            let mut settings = self.settings.take();
            if self.mutation.is(Mutation::DropsSettings) {
                settings = Settings::default();
            }
            let (batch, time) = (Arc::new(batch), self.changed);
            let (stage, blocks) = (Stage::Begun, Vec::new());
            self.flight = Some(Flight { batch, time, settings, stage, blocks });
        }
        true
    }

    /// Whether the file is small with what is in flight.
    fn fits_inline(&self) -> bool {
        let size = self.size.unwrap_or(0);
        let end = match self.flight.as_ref().map(|flight| &*flight.batch) {
            Some(Batch::Positional(dirty)) => size.max(dirty.end()),
            Some(Batch::Append(bytes)) => size + bytes.len() as u64,
            Some(Batch::Nothing) | None => size,
        };
        end <= INLINE_MAX as u64 && !self.use_blocks
    }

    /// The batch in flight is packed.
    pub fn on_packed(&mut self, packed: Packed) {
        if let Some(flight) = &mut self.flight {
            flight.blocks = packed.blocks.iter().map(|block| block.name).collect();
            flight.stage = Stage::Packed(packed);
        }
    }

    /// The blocks of the batch in flight are stored, or not.
    ///
    /// # Errors
    /// The failure, with which the flush ends. The bytes stay and are sent again.
    pub fn on_stored(&mut self, result: Result<(), E>) -> Result<(), E> {
        if let Err(error) = result {
            return Err(self.fail(error));
        }
        if let Some(flight) = &mut self.flight
            && let Stage::Packed(Packed { update, .. }) = &flight.stage
        {
            flight.stage = Stage::Stored(update.clone());
        }
        Ok(())
    }

    /// The batch in flight is written, and the file so long.
    fn on_written(&mut self, size: u64) -> Landed {
        let flight = self.flight.take();
        self.left = self.left.saturating_sub(1);
        self.size = Some(size);
        (self.is_new, self.birth) = (false, None);
        self.since = self.since.filter(|_| !self.is_clean());
        Landed::Written { span: flight.map_or(0, |flight| flight.batch.span()) }
    }

    /// The update of the batch in flight was answered, or not.
    ///
    /// # Errors
    /// The failure, with which the flush ends.
    pub fn on_answer(&mut self, sent: Sent<E>) -> Result<Landed, E> {
        match sent {
            Sent::Written { size } => Ok(self.on_written(size)),
            Sent::Refused(FsError::InlineFull) => {
                self.use_blocks = true;
                self.unname();
                Ok(Landed::Elsewhere)
            }
            // Its blocks may have been freed meanwhile; or it is to name another quota.
            Sent::Refused(FsError::Late { .. } | FsError::UnnamedQuota { .. }) => {
                self.unname();
                Ok(Landed::Elsewhere)
            }
            Sent::Anew => {
                self.unname();
                Ok(Landed::Elsewhere)
            }
            Sent::Refused(error) if self.birth.is_some() && error.is_final() => {
                self.on_unmade(error)
            }
            Sent::Refused(error @ FsError::LockLost) => {
                self.unname();
                self.ground(|_| true);
                self.since = self.since.filter(|_| !self.is_clean());
                Err(self.fail(error.into()))
            }
            // Perhaps because of what is set: that is tried alone.
            Sent::Refused(error) if self.is_to_split(error) => {
                self.split();
                Ok(Landed::Elsewhere)
            }
            Sent::Refused(error) if self.only_sets(error) => {
                self.flight = None; // It was never set; the bytes stay.
                self.since = self.since.filter(|_| !self.is_clean());
                Err(self.fail(error.into()))
            }
            // There is no file for these bytes, or the client may not write to it: so it remains.
            Sent::Refused(
                error @ (FsError::Gone
                | FsError::Stale
                | FsError::Denied
                | FsError::NotPermitted
                | FsError::ReadOnly),
            ) => {
                self.unname();
                self.clear();
                Err(self.fail(error.into()))
            }
            Sent::Refused(error) if !error.is_final() => {
                // This copy was refused; one before it may have taken effect.
                self.flight.iter_mut().for_each(|flight| flight.blocks.clear());
                self.unname();
                Err(self.fail(error.into()))
            }
            Sent::Refused(error) => {
                self.unname(); // Refused for good; the bytes stay.
                Err(self.fail(error.into()))
            }
            Sent::Unknown(error) => {
                if self.mutation.is(Mutation::NamesFlightAnew) {
                    self.unname();
                }
                if self.mutation.is(Mutation::DiscardsUnknown) {
                    self.discarded.extend(self.flight.iter().flat_map(|of| of.blocks.clone()));
                }
                Err(self.fail(error)) // It may have happened: its name stays.
            }
        }
    }

    /// Whether the flight brings both bytes and what could be the reason for its refusal.
    fn is_to_split(&self, error: FsError) -> bool {
        let both = |flight: &Flight| flight.bytes() > 0 && flight.settings.can_go_first();
        is_of_settings(error) && self.flight.as_ref().is_some_and(both)
    }

    /// Whether the flight brings no bytes, and is refused for what it sets.
    fn only_sets(&self, error: FsError) -> bool {
        let only = |flight: &Flight| matches!(&*flight.batch, Batch::Nothing);
        is_of_settings(error) && self.flight.as_ref().is_some_and(only)
    }

    /// What is set goes alone, before the bytes, as far as these do not undo it.
    fn split(&mut self) {
        self.unname();
        let Some(mut flight) = self.flight.take() else { return };
        let (first, rest) = std::mem::take(&mut flight.settings).split();
        self.settings.put_before(rest);
        self.fly_alone(flight, first);
    }

    /// What is set goes without the bytes of a flight, which are put before all that came later.
    pub(super) fn fly_alone(&mut self, flight: Flight, settings: Settings) {
        let newer = (std::mem::take(&mut self.dirty), std::mem::take(&mut self.appended));
        match Arc::try_unwrap(flight.batch) {
            Ok(Batch::Positional(dirty)) => self.dirty = dirty,
            Ok(Batch::Append(bytes)) => self.appended = bytes,
            Ok(Batch::Nothing) => {}
            Err(shared) => match &*shared {
                Batch::Positional(dirty) => self.dirty = dirty.clone(),
                Batch::Append(bytes) => self.appended = bytes.clone(),
                Batch::Nothing => {}
            },
        }
        self.dirty.absorb(&newer.0);
        self.appended.extend(newer.1);
        let (batch, stage, blocks) = (Arc::new(Batch::Nothing), Stage::Begun, Vec::new());
        self.flight = Some(Flight { batch, time: flight.time, settings, stage, blocks });
    }

    /// The flush ends with a failure: all who have the file open are told, sooner or later.
    pub(super) fn fail(&mut self, error: E) -> E {
        self.left = 0;
        self.begin_anew();
        for (handle, untold) in &mut self.untold {
            if self.teller != Some(*handle) {
                *untold = Some(error.clone());
            }
        }
        error
    }
}

impl<H, E> WriteBack<H, E> {
    /// The message of the batch in flight has ended without effect, or there is none.
    pub(super) fn unname(&mut self) {
        if let Some(flight) = &mut self.flight {
            flight.stage = Stage::Begun;
            self.discarded.append(&mut flight.blocks);
        }
    }

    /// What was not sent is packed anew: some of its blocks may be stored and some not.
    pub(super) fn begin_anew(&mut self) {
        if self.flight.as_ref().is_some_and(|flight| !flight.was_sent()) {
            self.unname();
        }
    }
}
