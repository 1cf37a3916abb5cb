//! Who of a group speaks with other groups, as an option of commands.

use clap::ValueEnum;
use meridian_multicast::Speakers;
use serde::{Deserialize, Serialize};

/// Who of a group speaks with other groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum SpeakersArg {
    /// All its members: three steps to each delivery
    All,
    /// Its primary, which relays to the others: fewer messages, one or two steps inside a group more
    Primary,
}

impl From<SpeakersArg> for Speakers {
    fn from(speakers: SpeakersArg) -> Speakers {
        match speakers {
            SpeakersArg::All => Speakers::All,
            SpeakersArg::Primary => Speakers::Primary,
        }
    }
}
