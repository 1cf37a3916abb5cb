//! What a replica tells of itself, and whether it takes part.

use crate::configuration::Configuration;
use crate::message::Stopped;
use crate::state::recovery::Recovering;
use crate::view::{Instance, View};
use meridian_core::{NodeId, Position};

/// What a replica tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Which replica.
    pub node: NodeId,
    /// Its view.
    pub view: View,
    /// Whether it leads that view and has finished Phase 1.
    pub leading: bool,
    /// Whether it takes part: not before it has its memory back, and not after it has stopped.
    pub active: bool,
    /// Why it serves no more.
    pub stopped: Option<Stopped>,
    /// All instances below this are executed.
    pub executed: Instance,
    /// So many requests.
    pub position: Position,
    /// How long its log in memory is, in bytes.
    pub log_bytes: usize,
    /// So many instances are under way, if it leads.
    pub under_way: u64,
    /// The members, as they are in force soon or already.
    pub members: Configuration,
}

/// Whether a replica takes part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// It was made, and maybe replays.
    New,
    /// It comes later, and has no snapshot yet to begin with.
    Joining,
    /// It has lost its memory, and asks for it.
    Recovering(Recovering),
    /// It takes part.
    Active,
    /// It never will again.
    Stopped(Stopped),
}
