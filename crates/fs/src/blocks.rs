//! Which blocks files lie in, and which will never be named again.
//!
//! An update that names a block is executed only if the name was drawn after the *horizon*, a time
//! that [`Update::RaiseHorizon`] raises. So a block with an older name, in which no file lies and
//! which no waiting update names, will never be named: it may be freed (decision 0042).
//!
//! Messages are delivered in one order only within a *shard*, a share of the sessions. So each
//! shard has a horizon of its own, and what is freed is older than all of them: one that waits for
//! another region keeps the blocks, and holds up no update of another shard.
//!
//! Invariants:
//! - N1: `extents` counts the extents of all files, by block.
//! - N2: what is admitted is decided where a message is delivered: those of a shard that name
//!   blocks and those that raise its horizon are delivered in one order at all replicas.

use crate::FsError;
use crate::batch::Kept;
use crate::operation::{Done, Operation, Piece, Update};
use crate::partition::Partition;
use crate::types::Data;
use imbl::OrdMap;
use meridian_core::{BlockId, ClientId, GroupId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Bound;

/// So many shards a partition has.
pub const SHARDS: u8 = 1 << SHARD_BITS;
/// The bits of a session's name that tell its shard.
pub const SHARD_BITS: u32 = 6;
/// The bits below them.
pub const SHARD_SHIFT: u32 = 12;

/// The shard of a session.
pub fn shard(session: ClientId) -> u8 {
    (session.0 >> SHARD_SHIFT) as u8 & (SHARDS - 1)
}

/// See the module.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Named {
    /// How many extents lie in each block.
    extents: OrdMap<BlockId, u32>,
    /// Since when a block must be named that an update of a shard names, in milliseconds since
    /// 1970. None is 0.
    horizons: OrdMap<u8, u64>,
    /// Blocks that no extent lies in any more, since this was asked last.
    #[serde(skip)]
    released: Vec<BlockId>,
}

impl Named {
    /// Extents came (`true`) and went, all at once.
    pub fn change(&mut self, changes: &[(BlockId, bool)]) {
        for (block, _) in changes.iter().filter(|(_, came)| *came) {
            *self.extents.entry(*block).or_insert(0) += 1;
        }
        for (block, _) in changes.iter().filter(|(_, came)| !came) {
            let count = self.extents.get_mut(block).expect("N1: an extent goes that came");
            *count -= 1;
            if *count == 0 {
                self.extents.remove(block);
                self.released.push(*block);
            }
        }
    }

    /// No update of the shard of `session` may name a block that was named before.
    pub fn raise(&mut self, session: ClientId, horizon_ms: u64) -> Result<Done, FsError> {
        let horizon = self.horizons.entry(shard(session)).or_insert(0);
        *horizon = (*horizon).max(horizon_ms);
        Ok(Done::Nothing)
    }

    /// Whether an update of `partition` in a message of `session` may name its blocks.
    pub fn admit(
        &self,
        partition: GroupId,
        session: ClientId,
        update: &Update,
    ) -> Result<(), FsError> {
        let (blocks, horizon_ms) = (blocks_in(update), self.horizon_ms(shard(session)));
        if blocks.iter().any(|block| block.partition() != partition) {
            return Err(FsError::Invalid);
        }
        match blocks.iter().any(|block| block.born_ms() < horizon_ms) {
            true => Err(FsError::Late { horizon_ms }),
            false => Ok(()),
        }
    }

    fn horizon_ms(&self, shard: u8) -> u64 {
        self.horizons.get(&shard).copied().unwrap_or(0)
    }

    /// The blocks that no extent lies in any more, since this was asked last.
    pub fn take_released(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.released)
    }

    /// How many extents lie in each block.
    pub fn extents(&self) -> &OrdMap<BlockId, u32> {
        &self.extents
    }
}

/// The blocks that an update begins to name.
fn blocks_in(update: &Update) -> Vec<BlockId> {
    let of_piece = |piece: &Piece| match piece.extent.data {
        Data::Block { block, .. } => Some(block),
        Data::Inline(_) => None,
    };
    let of_all = |pieces: &[Piece]| pieces.iter().filter_map(of_piece).collect::<Vec<_>>();
    match update {
        Update::Write { pieces, .. } | Update::Settle { pieces, .. } => of_all(pieces),
        Update::Make(made) => of_all(&made.pieces),
        Update::Batch(parts) => parts
            .iter()
            .flat_map(|part| match &part.kept {
                Kept::Make(made) => of_all(&made.pieces),
                Kept::Write(written) => of_all(&written.pieces),
                Kept::Unlink { .. } => Vec::new(),
            })
            .collect(),
        Update::Merge { block, .. } => vec![*block],
        _ => Vec::new(),
    }
}

impl Partition {
    /// Since when a block must be named that an update of a shard names, in milliseconds since
    /// 1970.
    pub fn horizon_ms(&self, shard: u8) -> u64 {
        self.tree.named.horizon_ms(shard)
    }

    /// No update may name a block that was named before.
    pub fn least_horizon_ms(&self) -> u64 {
        (0..SHARDS).map(|shard| self.horizon_ms(shard)).min().unwrap_or(0)
    }

    /// Those of these blocks that no file here lies in, and no update names that waits here. Files
    /// of other partitions are not looked at.
    pub fn unnamed(&self, blocks: impl IntoIterator<Item = BlockId>) -> Vec<BlockId> {
        let mut all: Vec<_> = blocks
            .into_iter()
            .filter(|block| !self.tree.named.extents.contains_key(block))
            .collect();
        if !all.is_empty() {
            let waiting = self.pending.iter();
            let updates = waiting.map(|(_, waiting)| &waiting.operation);
            let named = |Operation { update, .. }: &Operation| blocks_in(update);
            let named: BTreeSet<_> = updates.flat_map(named).collect();
            all.retain(|block| !named.contains(block));
        }
        all
    }

    /// Those of these blocks that no file lies in, and none ever will: the others may yet be named.
    pub fn never_named(&self, blocks: impl IntoIterator<Item = BlockId>) -> Vec<BlockId> {
        let (group, horizon_ms) = (self.group(), self.least_horizon_ms());
        let old = |block: &BlockId| block.partition() == group && block.born_ms() < horizon_ms;
        self.unnamed(blocks.into_iter().filter(old))
    }

    /// The blocks after `after` that files here lie in, in order, `limit` at most.
    pub fn named_after(&self, after: Option<BlockId>, limit: usize) -> Vec<BlockId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.tree.named.extents.range((from, Bound::Unbounded));
        rest.take(limit).map(|(block, _)| *block).collect()
    }

    /// The blocks that files here lie in; for checks.
    pub fn names_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.tree.named.extents.keys().copied()
    }
}
