//! How a group disseminates what concerns other groups, as an option of commands.

use clap::ValueEnum;
use meridian_multicast::Dissemination;
use serde::{Deserialize, Serialize};

/// How a group disseminates what concerns other groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum DisseminationArg {
    /// All its members: three steps to each delivery
    AllToAll,
    /// Its primary, which relays to the others: fewer messages, one or two steps inside a group
    /// more
    ViaLeader,
}

impl From<DisseminationArg> for Dissemination {
    fn from(dissemination: DisseminationArg) -> Dissemination {
        match dissemination {
            DisseminationArg::AllToAll => Dissemination::AllToAll,
            DisseminationArg::ViaLeader => Dissemination::ViaLeader,
        }
    }
}
