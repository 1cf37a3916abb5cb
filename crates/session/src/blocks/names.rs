//! Names of blocks.

use meridian_core::{BlockId, GroupId};

/// Names are drawn so far ahead of the horizon of a partition at least, in milliseconds, once the
/// client has learnt that it lies ahead of the client's own clock.
const AHEAD_MS: u64 = 3_600_000;

/// Draws names of blocks for one client. A name tells when it was drawn, and the tree refuses to
/// name a block whose name is too old ([`meridian_fs::FsError::Late`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockNames {
    /// How far the client's clock is taken to be behind that of the tree.
    behind_ms: u64,
}

impl BlockNames {
    /// A name for a block of a file in `partition`; `random` must be drawn anew for each.
    pub fn name(&self, partition: GroupId, now_ms: u64, random: u64) -> BlockId {
        BlockId::named(partition, now_ms.saturating_add(self.behind_ms), random)
    }

    /// A name was refused as older than `horizon_ms`. Either its block was on its way for long, or
    /// the client's clock is behind: then names are drawn as if it were not.
    pub fn refused(&mut self, horizon_ms: u64, now_ms: u64) {
        if now_ms.saturating_add(self.behind_ms) <= horizon_ms {
            self.behind_ms = horizon_ms.saturating_add(AHEAD_MS).saturating_sub(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_whose_clock_is_behind_draws_names_that_are_young_enough() {
        let (mut names, of) = (BlockNames::default(), GroupId(3));
        let first = names.name(of, 50, 7);
        assert_eq!((first.partition(), first.born_ms(), first.0 as u64), (of, 50, 7));
        names.refused(40, 60);
        assert_eq!(names.name(of, 70, 7).born_ms(), 70, "it was on its way for long");
        names.refused(10_000, 80);
        assert!(names.name(of, 80, 7).born_ms() > 10_000);
        assert!(names.name(of, 90, 7).born_ms() > names.name(of, 80, 7).born_ms());
    }
}
