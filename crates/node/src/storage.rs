//! A node's blocks on a disk.

use crate::blocks::BlockEngine;
use crate::error::ServerError;
use crate::journal::{BlockDone, BlockService, Blocks, Settled};
use bytes::Bytes;
use meridian_blocks::BlockError;
use meridian_core::BlockId;
use meridian_host::api::{Refusal, ReplyBody};
use meridian_runtime::journal::{Wake, describe};
use meridian_storage::Disk;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Opens the blocks of the node in `dir` on any disk.
///
/// # Errors
/// If the disk refuses, or is damaged.
pub fn open_blocks(disk: Arc<dyn Disk>, dir: &Path, wake: Wake) -> Result<Blocks, ServerError> {
    let engine = BlockEngine::open(disk, &dir.join("blocks"))
        .map_err(|error| ServerError::Blocks(describe(&error)))?;
    Ok(Box::new(EngineBlocks { engine, failed: Arc::default(), wake }))
}

/// A [`BlockEngine`] as the server wants it.
struct EngineBlocks {
    engine: BlockEngine,
    failed: Arc<OnceLock<String>>,
    wake: Wake,
}

impl BlockService for EngineBlocks {
    fn put(&self, block: BlockId, data: Bytes, done: BlockDone) {
        let (failed, wake) = (self.failed.clone(), self.wake.clone());
        let stored = move |result: Result<(), BlockError>| {
            if let Err(error @ (BlockError::Closed | BlockError::Io { .. })) = &result {
                failed.get_or_init(|| describe(error));
                wake();
            }
            done(result.map_or_else(|error| refused(&error), |()| ReplyBody::Stored));
        };
        self.engine.put(block, data, Box::new(stored));
    }

    fn get(&self, block: BlockId, offset: u32, len: u32, done: BlockDone) {
        let read = move |result: Result<Bytes, BlockError>| {
            done(result.map_or_else(|error| refused(&error), ReplyBody::Block));
        };
        self.engine.get(block, offset, len, Box::new(read));
    }

    fn settled(&self, done: Settled) {
        self.engine.settled(done);
    }

    fn holds(&self, block: BlockId) -> bool {
        self.engine.holds(block)
    }

    fn failed(&self) -> Option<String> {
        self.failed.get().cloned()
    }

    fn names(&self, after: Option<BlockId>, limit: usize) -> Vec<BlockId> {
        self.engine.names(after, limit)
    }

    fn held(&self) -> (u64, u64) {
        let counters = self.engine.counters();
        (counters.blocks, counters.bytes)
    }
}

fn refused(error: &BlockError) -> ReplyBody {
    ReplyBody::Refused(match error {
        BlockError::NoBlock(block) => Refusal::NoBlock(*block),
        BlockError::Damaged(block) => Refusal::Damaged(*block),
        BlockError::Length(_) => Refusal::Bad(error.to_string()),
        BlockError::Busy => Refusal::Overloaded,
        BlockError::Full | BlockError::Closed | BlockError::Io { .. } => {
            Refusal::Disk(describe(error))
        }
    })
}
