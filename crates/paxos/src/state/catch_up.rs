//! What a replica knows to be missing, and a snapshot on its way.
//!
//! `catch_up.rs` beside this folder has the handlers.

use crate::message::Part;
use crate::view::Instance;
use meridian_core::{NodeId, Time};
use std::collections::BTreeMap;

/// How good and how bad a replica may be.
pub(crate) const RATINGS: (i32, i32) = (-5, 5);

/// A snapshot that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Download {
    pub from: NodeId,
    pub part: Part,
    pub bytes: Vec<u8>,
    pub tries: u32,
}

impl Download {
    /// From the beginning, of the last snapshot that `from` has.
    pub fn of(from: NodeId) -> Download {
        Download { from, part: Part::default(), bytes: Vec::new(), tries: 0 }
    }
}

/// What a replica knows to be missing, and a snapshot on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CatchUp {
    /// All below this are decided somewhere.
    pub decided: Instance,
    /// No instance from here on is known to have been started.
    pub highest: Instance,
    /// How well each has answered.
    pub ratings: BTreeMap<NodeId, i32>,
    /// The last question that was not answered: to whom, and when.
    pub asked: Option<(NodeId, Time)>,
    /// Nobody else knew anything.
    pub ask_leader: bool,
    /// What was executed at the last tick.
    pub seen: Instance,
    /// When all was last asked for to be sure, and how often: each time it is another one's turn.
    pub checked: Time,
    pub turn: usize,
    pub download: Option<Download>,
    /// Those that a replica which comes later began with: the members that it learns of first may
    /// be of long ago, and gone.
    pub guides: Vec<NodeId>,
}

impl CatchUp {
    /// Instances up to `highest` are started, and those up to `decided` are decided.
    pub fn hear(&mut self, highest: Instance, decided: Instance) {
        self.highest = self.highest.max(highest);
        self.decided = self.decided.max(decided);
    }

    pub fn rate(&mut self, node: NodeId, change: i32) {
        let rating = self.ratings.entry(node).or_default();
        *rating = (*rating + change).clamp(RATINGS.0, RATINGS.1);
    }
}
