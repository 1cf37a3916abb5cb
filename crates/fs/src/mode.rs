//! In which of the modes of the GlobalFS thesis (section 3.4) an update or a query is executed.

use crate::operation::Update;
use crate::query::Query;
use serde::{Deserialize, Serialize};

/// How something is executed. There are no *uncoordinated* updates: what concerns several
/// partitions is voted on by all of them (decision 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One replica answers.
    ReadOnly,
    /// One partition orders it and decides alone.
    SinglePartition,
    /// Several partitions order it, exchange votes, and do it together or not at all.
    Coordinated,
}

impl Mode {
    /// Its name, as in the thesis.
    pub fn name(self) -> &'static str {
        match self {
            Mode::ReadOnly => "read-only",
            Mode::SinglePartition => "single-partition",
            Mode::Coordinated => "coordinated",
        }
    }
}

impl Update {
    /// How it is executed: as many partitions as it is multicast to have a say.
    pub fn mode(&self) -> Mode {
        match self.partitions().len() {
            0 | 1 => Mode::SinglePartition,
            _ => Mode::Coordinated,
        }
    }
}

impl Query {
    /// How it is executed.
    pub fn mode(&self) -> Mode {
        Mode::ReadOnly
    }
}
