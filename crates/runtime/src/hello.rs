//! What is said first on each connection.

use meridian_core::ProcessId;
use serde::{Deserialize, Serialize};

/// The version of what members say to each other, beside that of frames.
pub(crate) const VERSION: u16 = 1;

/// What each end of a connection says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`VERSION`].
    pub(crate) version: u16,
    /// The name of the cluster: members of another are turned away.
    pub(crate) cluster: String,
    /// Who speaks.
    pub(crate) from: ProcessId,
    /// Whom it believes to speak to.
    pub(crate) to: ProcessId,
    /// Grows with each start of the speaker.
    pub(crate) incarnation: u64,
    /// Whether the speaker remembers what it said before its last start.
    pub(crate) durable: bool,
}
