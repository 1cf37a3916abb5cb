//! The incarnations of processes, and a recovery of lost memory under way.

use crate::message::{Epoch, Timestamp};
use meridian_core::{NodeId, ProcessId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// What is kept of a recovery, and of the incarnations of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    /// Our incarnation, from 1; 0 if all is durable.
    pub incarnation: u64,
    /// Whether we have lost our memory and have not recovered it.
    pub lost: bool,
    pub asked: Option<Time>,
    pub answers: BTreeMap<NodeId, Answer>,
    /// The latest incarnations that we know of, but for the first ones.
    pub known: BTreeMap<ProcessId, u64>,
    /// The incarnations that our links lead to, as their other ends said, but for the first ones.
    pub linked: BTreeMap<ProcessId, u64>,
    /// Links that were reset, whose other ends have not said yet which incarnations they know of.
    pub reset: BTreeSet<ProcessId>,
    /// When we last asked for that.
    pub asked_at: BTreeMap<ProcessId, Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Answer {
    pub e_prom: Epoch,
    /// The epoch that it is the primary of.
    pub primary_of: Option<Epoch>,
    pub clock: Timestamp,
}
