//! Feature levels: programs of two ages run in one cluster while it is upgraded.
//!
//! A level stands for all that servers and clients say to each other and write down. Enums are only
//! ever appended to. What a level adds nobody says before the cluster goes by that level, which is
//! when all its servers speak it (decision 96).

use serde::{Deserialize, Serialize};
use std::fmt;

/// A feature level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Level(pub u16);

impl Level {
    /// The level of a cluster whose file tells none.
    pub const FIRST: Level = Level(1);
    /// What is set of a file goes with its bytes (`meridian_fs::Update::Settle`).
    pub const SETTLE: Level = Level(2);
    /// Regions come and go (`meridian_fs::Update::AddRegion`).
    pub const REGIONS: Level = Level(3);
    /// What a client asks for next comes along with an answer (decision 101).
    pub const ALONG: Level = Level(4);
    /// Directories are held exclusively, and new files come in one update (decision 102).
    pub const EXCLUSIVE: Level = Level(5);
    /// What clients keep back comes in batches (`meridian_fs::Update::Batch`).
    pub const BATCHES: Level = Level(6);
    /// A region that is lost is fenced (decision 107).
    pub const FENCES: Level = Level(7);
    /// What a client makes it holds (decision 105).
    pub const MADE: Level = Level(8);
    /// Watchers are revoked (decision 109).
    pub const WATCHERS: Level = Level(9);
    /// Directories say when what is done in them is durable (decision 110).
    pub const DURABILITY: Level = Level(10);
    /// Clients with grants may use keys (decision 93).
    pub const KEY_GRANTS: Level = Level(11);
    /// What is applied of other regions' keys is kept until all have it, so that it can be agreed
    /// on what is kept of a region that is lost (decision 111).
    pub const KEPT: Level = Level(12);
    /// A lost node may leave a seat among those that keep the configuration empty (decision 107).
    pub const SEATS: Level = Level(13);
    /// What is written to files that are a client's own comes in batches (decision 116).
    pub const WRITTEN: Level = Level(14);
}

impl Default for Level {
    fn default() -> Self {
        Level::FIRST
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The levels that a program speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Speaks {
    /// The lowest.
    pub oldest: Level,
    /// The highest.
    pub newest: Level,
}

impl Speaks {
    /// Those of this program. Whoever adds a level raises `newest`; whoever drops what a level had
    /// and a later one has not raises `oldest`.
    pub const HERE: Speaks = Speaks { oldest: Level::FIRST, newest: Level::WRITTEN };

    /// Whether a cluster of that level is understood.
    pub fn has(self, level: Level) -> bool {
        (self.oldest..=self.newest).contains(&level)
    }

    /// Whether there is a level that both speak.
    pub fn meets(self, other: Speaks) -> bool {
        self.oldest <= other.newest && other.oldest <= self.newest
    }
}

impl fmt::Display for Speaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Speaks { oldest, newest } = self;
        match oldest == newest {
            true => write!(f, "level {newest}"),
            false => write!(f, "levels {oldest} to {newest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_meet_that_have_a_level_in_common() {
        let speaks = |oldest, newest| Speaks { oldest: Level(oldest), newest: Level(newest) };
        assert!(speaks(1, 2).meets(speaks(2, 3)) && speaks(2, 3).meets(speaks(1, 2)));
        assert!(!speaks(1, 2).meets(speaks(3, 3)) && !speaks(3, 3).meets(speaks(1, 2)));
        assert!(speaks(1, 2).has(Level(2)) && !speaks(1, 2).has(Level(3)));
        assert_eq!(format!("{}, {}", speaks(2, 2), speaks(1, 3)), "level 2, levels 1 to 3");
    }
}
