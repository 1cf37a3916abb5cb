//! Leases of one replica, given and had; how long they last.

use crate::attention::Doze;
use meridian_core::{NodeId, Time};
use meridian_paxos::{self as paxos, ClientIds, Routing};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long leases last, and how silence is judged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// How long a grant lasts. Together with `suspect_after` it bounds how long writes stand still
    /// when a replica has died.
    pub lease: Duration,
    /// How often a lease is asked for: some times in a lease, so that one lost message costs none.
    pub beat: Duration,
    /// A member that asks for nothing so long is suspected; some beats.
    pub suspect_after: Duration,
    /// By how much a clock may run fast or slow, in parts of a million.
    pub drift_ppm: u32,
    /// When a replica that nobody uses dozes; never, if there is nothing here.
    pub doze: Option<Doze>,
    /// Of the registry's replication.
    pub paxos: paxos::Options,
}

impl Default for Options {
    fn default() -> Self {
        let ms = Duration::from_millis;
        let paxos = paxos::Options {
            routing: Routing::Forward,
            client_ids: ClientIds::Counted,
            heartbeat: ms(20),
            suspect_after: ms(80),
            retransmit: ms(40),
            ..paxos::Options::default()
        };
        Options {
            lease: ms(60),
            beat: ms(10),
            suspect_after: ms(40),
            drift_ppm: 2_000,
            doze: Some(Doze { after: ms(1_000), beat: ms(2_000) }),
            paxos,
        }
    }
}

impl Options {
    pub(crate) fn drift(&self) -> Duration {
        self.lease * self.drift_ppm / 1_000_000
    }

    /// How long a replica uses a grant, from when it asked, by its clock.
    pub(crate) fn used(&self) -> Duration {
        self.lease.saturating_sub(self.drift())
    }

    /// How long a voter must wait, from when it granted, by its own.
    pub(crate) fn lasts(&self) -> Duration {
        self.lease + self.drift()
    }
}

/// A bug planted in the membership, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fault {
    /// None.
    #[default]
    Correct,
    /// Says at once that grants have run out.
    BreaksGrants,
    /// Uses a grant from when it has come, and for longer than it was given.
    StretchesLease,
    /// Takes the silence of those that have dozed for that of dead ones (against W1).
    SuspectsDozing,
    /// Changes voters though leases may rely on those before the last change (against V1).
    ChangesAtOnce,
    /// Counts the grants of whoever gives one, voter or not.
    CountsAnyGrant,
    /// Counts the word of anyone that grants have run out, voter or not.
    CountsAnyone,
    /// Grants leases before it knows all that it said in its earlier starts.
    GrantsAtOnce,
    /// Lets nodes go before those that should hold keys do (against V2).
    LetsGoEarly,
    /// Dismisses nodes that may be wanted again.
    DismissesAtOnce,
}

/// What a replica has granted, and what it was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Leases {
    /// When each was granted a lease last, by the own clock.
    granted: BTreeMap<NodeId, Time>,
    /// Grants of an earlier start may last until then.
    forgotten_until: Time,
    /// Until when each grant may be used.
    held: BTreeMap<NodeId, Time>,
    /// The last that the owner was told of.
    told: Time,
    /// By which change of the voters it goes.
    change: u64,
    /// A lease may be in use until then that relies on earlier voters.
    earlier: Time,
}

impl Leases {
    /// It has started, and forgotten what it granted.
    pub fn start(&mut self, now: Time, options: &Options) {
        self.forgotten_until = now + options.lasts();
    }

    pub fn grant(&mut self, now: Time, node: NodeId) {
        self.granted.insert(node, now);
    }

    /// Whether no lease can be in use any more that this voter has granted.
    pub fn has_expired(&self, now: Time, node: NodeId, options: &Options) -> bool {
        let granted = self.granted.get(&node).map(|granted| *granted + options.lasts());
        now >= self.forgotten_until && granted.is_none_or(|until| now >= until)
    }

    pub fn hold(&mut self, from: NodeId, until: Time) {
        let held = self.held.entry(from).or_default();
        *held = until.max(*held);
    }

    /// The lease, as late as a majority of these voters allows; `any` counts all grants for
    /// theirs.
    pub fn by(&self, voters: &BTreeSet<NodeId>, any: bool) -> Option<Time> {
        let counts = |node: &NodeId| any || voters.contains(node);
        let mut held: Vec<_> =
            self.held.iter().filter(|(node, _)| counts(node)).map(|(_, until)| *until).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        held.get(voters.len() / 2).copied()
    }

    /// The owner is told of this lease.
    pub fn tell(&mut self, until: Time) {
        self.told = self.told.max(until);
    }

    /// Goes by the voters after this change from now on.
    pub fn follow(&mut self, change: u64) {
        if self.change < change {
            (self.change, self.earlier) = (change, self.told);
        }
    }

    /// Whether no lease is in use any more that relies on others than these voters.
    pub fn has_followed(&self, now: Time, voters: &BTreeSet<NodeId>) -> bool {
        now >= self.earlier || self.by(voters, false).is_some_and(|until| until >= self.earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(nodes: &[u16]) -> BTreeSet<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    /// V1: a lease that was told before a change is in use until it ends, or until the voters after
    /// it grant one that is as long.
    #[test]
    fn who_uses_a_lease_of_earlier_voters_does_not_follow() {
        let mut leases = Leases::default();
        let (before, after) = (nodes(&[0, 1, 2]), nodes(&[0, 1, 2, 3]));
        leases.hold(NodeId(0), Time(100));
        leases.hold(NodeId(1), Time(100));
        assert_eq!(leases.by(&before, false), Some(Time(100)));
        leases.tell(Time(100));
        leases.follow(1);
        assert!(!leases.has_followed(Time(99), &after) && leases.has_followed(Time(100), &after));
        leases.hold(NodeId(3), Time(90));
        assert!(!leases.has_followed(Time(50), &after), "that is shorter");
        leases.hold(NodeId(3), Time(110));
        assert!(leases.has_followed(Time(50), &after));
    }

    #[test]
    fn only_grants_of_voters_count() {
        let mut leases = Leases::default();
        leases.hold(NodeId(0), Time(100));
        leases.hold(NodeId(7), Time(100));
        assert_eq!(leases.by(&nodes(&[0, 1, 2]), false), None);
        assert_eq!(leases.by(&nodes(&[0, 1, 2]), true), Some(Time(100)), "the planted bug");
    }
}
