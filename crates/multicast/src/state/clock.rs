//! The clock of a process, with what it knows of the clocks of its group.

use crate::message::Timestamp;
use crate::state::clocks::Clocks;
use crate::state::partners::Partners;

/// See the module's documentation.
///
/// Invariant P2: `now <= ceiling`, and the ceiling is durable before a greater clock is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Clock {
    /// The thesis's `clock`.
    pub now: Timestamp,
    /// A restart begins here.
    pub ceiling: Timestamp,
    /// The clocks of the group's members, this process's own among them.
    pub members: Clocks,
    /// The groups that are shown this clock as time goes by.
    pub partners: Partners,
}
