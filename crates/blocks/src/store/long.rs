//! What the disk is told before a long block is read (decision 106).
//!
//! A kernel that sees reads follow each other in a file reads on behind them, and throws away what
//! nobody asks for: the blocks between those of one file that this node gave away, or that are of
//! others. Told what will be read it reads that, several blocks at a time, and no more.

use super::Blocks;
use meridian_core::BlockId;

/// A block of so many bytes is long. A shorter one comes with what the kernel reads ahead, and so
/// do those beside it: mostly they are of files that were written together.
pub const LONG_LEN: u32 = 128 << 10;

impl Blocks {
    /// A part of this block will be read soon: if it is long the disk may begin.
    pub fn will_read(&self, block: BlockId) {
        let told = {
            let index = self.read_index();
            let at = index.blocks.get(&block).copied().filter(|at| at.len >= LONG_LEN);
            at.map(|at| (index.segments[&at.segment].file.clone(), at))
        };
        if let Some((file, at)) = told {
            file.will_read(at.offset, at.bytes());
        }
    }
}
