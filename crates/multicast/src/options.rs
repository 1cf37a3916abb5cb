//! How a deployment uses PrimCast: the options, and what follows from them.

use crate::state::epochs::Role;
use crate::state::log::Amount;
use meridian_core::{GroupId, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// After so many deliveries they are reported, so that `T` stays short when they are many.
const REPORT_AT: usize = 1024;
/// The same where reports travel with other things, by way of a primary.
const REPORT_NEAR_AT: usize = 256;

/// The members of each group, in order; the same at all processes.
pub type Groups = Arc<BTreeMap<GroupId, Vec<NodeId>>>;

/// Which order deliveries have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Acyclic over all processes (thesis, section 2.2.1).
    #[default]
    Sequential,
    /// Beside that a message multicast after the delivery of another one, in real time, is not
    /// ordered before it, not even by a chain of others (thesis, section 5.2.2; corrected). Where
    /// groups are far from each other [`ClockSource::Hybrid`] saves a third of its latency.
    Linearizable,
}

/// What an order asks of a process: whom it notifies of what, and when.
impl Order {
    /// Whether a delivery waits for other groups beside Algorithm 1's conditions.
    pub(crate) fn waits_for_others(self) -> bool {
        self == Order::Linearizable
    }

    /// Whether a primary that relays sends what it has heard of other groups on, so that its
    /// followers decide by themselves.
    pub(crate) fn relays_what_was_heard(self) -> bool {
        self == Order::Sequential
    }

    /// Whether it sends what it has delivered on: followers cannot tell by themselves when a
    /// message may be delivered.
    pub(crate) fn relays_what_was_delivered(self) -> bool {
        self == Order::Linearizable
    }

    /// Whether other groups are shown the clock beside ACKs, and followed in what they show.
    pub(crate) fn shows_clocks_to_others(self) -> bool {
        self == Order::Linearizable
    }

    /// Whether a message with a known final timestamp may still wait for word of other groups.
    pub(crate) fn asks_about_finals(self) -> bool {
        self == Order::Linearizable
    }
}

/// Where a primary's timestamps come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClockSource {
    /// They count.
    #[default]
    Logical,
    /// Microseconds of the clock that steps are given, or more (thesis, section 4.4.1; see
    /// `hybrid`). Skew costs latency only.
    Hybrid,
}

/// How a group disseminates what concerns other groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dissemination {
    /// All to all: each process of a group speaks with each of the other groups, and a delivery
    /// takes three steps (thesis, section 4.2). For groups whose members are far from each other.
    #[default]
    AllToAll,
    /// Via the leader: the primary alone speaks with other groups and relays to its followers. For
    /// groups whose members are near each other, so that a step costs less than a message.
    ViaLeader,
}

/// What a way of dissemination asks of a process: who relays for the group, and when.
impl Dissemination {
    /// Whether a process in this role relays: it relays for its group, and sends its followers what
    /// it hears.
    pub(crate) fn relays(self, role: Role) -> bool {
        self == Dissemination::ViaLeader && role == Role::Primary
    }

    /// Whether a follower leaves it to its primary to speak with other groups.
    pub(crate) fn is_via_leader(self) -> bool {
        self == Dissemination::ViaLeader
    }

    /// Whether all members acknowledge to other groups.
    pub(crate) fn all_acknowledge(self) -> bool {
        self == Dissemination::AllToAll
    }

    /// Whether a process in this role hears other groups itself.
    pub(crate) fn hears_others(self, role: Role) -> bool {
        self == Dissemination::AllToAll || role == Role::Primary
    }

    /// After how many deliveries they are reported though less than a second has passed.
    pub(crate) fn report_after(self) -> usize {
        match self {
            Dissemination::AllToAll => REPORT_AT,
            Dissemination::ViaLeader => REPORT_NEAR_AT,
        }
    }
}

/// When followers of a primary that relays hear that a message which concerns their group alone is
/// decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Notice {
    /// At once: they deliver it one step after their primary.
    #[default]
    AtOnce,
    /// With what their primary sends next, and within 2 ms; at once if the message came by one of
    /// them. For groups whose clients mostly ask the primary.
    WithNext,
}

/// When the owner is told of the delivery of a message to several groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deliveries {
    /// At once. A restart may have forgotten it, and learns it again from the other groups.
    #[default]
    Noted,
    /// When it is durable here: what was delivered stays so, though another group may be lost
    /// ([`crate::Fence`]) and this process crash at the same moment. Costs a flush before such a
    /// delivery.
    Durable,
}

/// How a deployment uses PrimCast; the first two the same at all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// The order of deliveries.
    pub order: Order,
    /// The source of timestamps.
    pub clock: ClockSource,
    /// How it disseminates what concerns other groups; the same in a group.
    pub dissemination: Dissemination,
    /// When followers hear of deliveries where that is by the leader; the same in a group.
    pub notice: Notice,
    /// When deliveries are told.
    pub deliveries: Deliveries,
}

/// How much a process keeps and names. The same at all processes of a group, or nearly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// How many bytes of `T` are kept for a member that is away, beside what came in the last
    /// second, and how many of retained gaps until all have them; after that it is brought up by a
    /// snapshot.
    pub bytes: usize,
    /// The same in entries.
    pub entries: usize,
    /// How many exceptions are named: so many that what goes to a group until that is found to be
    /// cut off finds room, and so few that they take some kilobytes.
    pub exceptions: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bytes: 24 << 20, entries: 50_000, exceptions: 1024 }
    }
}

impl Limits {
    /// Whether so many entries and bytes are more than so many times what is kept.
    pub(crate) fn are_exceeded(self, times: usize, amount: Amount) -> bool {
        amount.entries > self.entries.saturating_mul(times)
            || amount.bytes > self.bytes.saturating_mul(times)
    }
}
