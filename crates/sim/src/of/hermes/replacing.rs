//! Nodes that come and go while keys are used: what is planned, how nodes hear of it, and what must
//! hold of those that are let go.

use super::node::{Command, Node};
use crate::world::{Random, Stimulus};
use meridian_core::NodeId;
use meridian_hermes::reliable::Configured;
use rand::RngExt;
use rand::seq::IteratorRandom;
use std::collections::BTreeSet;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// So many nodes are changed at most.
const CHANGES_MAX: usize = 6;

/// Who should hold keys, one configuration after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How long each is the last one, and whom it names; the first one is there at first.
    pub configurations: Vec<(Duration, Named)>,
}

/// Whom a configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Who should hold keys.
    pub nodes: BTreeSet<NodeId>,
    /// Who should not, and may again.
    pub may_return: BTreeSet<NodeId>,
}

impl Named {
    fn of(nodes: BTreeSet<NodeId>) -> Named {
        Named { nodes, may_return: BTreeSet::new() }
    }
}

impl Plan {
    /// Nothing changes.
    pub fn none(first: BTreeSet<NodeId>) -> Plan {
        Plan { configurations: vec![(Duration::ZERO, Named::of(first))] }
    }

    /// Any nodes come and go, so that somebody is there at any time. Of some that go the removal is
    /// taken back; in the end it is for good.
    pub fn drawn(random: &mut Random, first: BTreeSet<NodeId>, span: Duration) -> Plan {
        let mut plan = Plan::none(first.clone());
        let changes = random.random_range(1..=CHANGES_MAX);
        let (mut now, mut next) = (first, 100);
        for _ in 0..changes {
            let (comes, goes) =
                [(true, false), (true, true), (false, true)][random.random_range(0..3)];
            let old =
                now.iter().copied().choose(random).filter(|_| goes && (comes || now.len() > 1));
            if comes && now.len() < 6 {
                now.insert(NodeId(next));
                next += 1;
            }
            let old = old.filter(|_| now.len() > 1);
            old.map(|node| now.remove(&node));
            let after = random.random_range(0..=2) * span / (changes as u32 * 2);
            let may_return = old.filter(|_| random.random()).into_iter().collect();
            plan.then(after, Named { nodes: now.clone(), may_return });
            if let Some(node) = old.filter(|_| random.random_ratio(1, 3))
                && plan.last().may_return.contains(&node)
            {
                now.insert(node);
                let after = span * random.random_range(0..=4) / (changes as u32 * 4);
                plan.then(after, Named::of(now.clone()));
            }
        }
        plan.then(Duration::ZERO, Named::of(now));
        plan
    }

    /// The three first nodes are replaced, one after the other, or all are there first.
    pub fn all(apart: Duration) -> Plan {
        let of = |nodes: std::ops::Range<u16>| nodes.map(NodeId).collect::<BTreeSet<_>>();
        let mut plan = Plan::none(of(0..3));
        plan.then(MS * 200, Named::of(of(0..6)));
        (1..=3).for_each(|gone| plan.then(apart, Named::of(of(gone..6))));
        plan
    }

    /// One of four nodes is to go, and when the others are long enough that is taken back.
    pub fn taken_back(apart: Duration) -> Plan {
        let of = |nodes: std::ops::Range<u16>| nodes.map(NodeId).collect::<BTreeSet<_>>();
        let mut plan = Plan::none(of(0..4));
        plan.then(MS * 200, Named { nodes: of(0..3), may_return: of(3..4) });
        plan.then(apart, Named::of(of(0..4)));
        plan
    }

    /// Then the cluster is configured so, after a while.
    fn then(&mut self, after: Duration, named: Named) {
        self.configurations.last_mut().expect("the first").0 = after;
        self.configurations.push((Duration::ZERO, named));
    }

    fn last(&self) -> &Named {
        &self.configurations.last().expect("the first").1
    }

    /// All nodes that there are at any time.
    pub fn all_nodes(&self) -> BTreeSet<NodeId> {
        self.configurations.iter().flat_map(|(_, named)| named.nodes.iter().copied()).collect()
    }

    /// Those that are there at first.
    pub fn first(&self) -> &BTreeSet<NodeId> {
        &self.configurations[0].1.nodes
    }
}

/// What the voters were when they were seen last.
#[derive(Clone, Debug, Default)]
struct Seen {
    changes: u64,
    voters: BTreeSet<NodeId>,
    wanted: BTreeSet<NodeId>,
}

/// The configuration as it is, and who knows what of it.
#[derive(Clone, Debug)]
pub struct Configurations {
    /// All that there were, by their versions.
    all: Vec<Named>,
    seen: Seen,
}

impl Configurations {
    /// Only the first one.
    pub fn new(first: BTreeSet<NodeId>) -> Configurations {
        let seen = Seen { voters: first.clone(), wanted: first.clone(), changes: 0 };
        Configurations { all: vec![Named::of(first)], seen }
    }

    /// The next one.
    pub fn configure(&mut self, named: Named) {
        self.all.push(named);
    }

    /// Who should hold keys.
    pub fn wanted(&self) -> &BTreeSet<NodeId> {
        &self.all.last().expect("the first").nodes
    }

    /// Everybody who is there, and should go or not.
    pub fn present(&self) -> BTreeSet<NodeId> {
        self.all.iter().flat_map(|named| named.nodes.iter().copied()).collect()
    }

    /// Some node hears of some configuration, mostly the last.
    pub fn tell(&self, random: &mut Random) -> Stimulus<Node> {
        let to = self.present().into_iter().choose(random).expect("some");
        let last = self.all.len() - 1;
        let at = if random.random_ratio(1, 5) { random.random_range(0..=last) } else { last };
        let (version, Named { nodes, may_return }) = (at as u64, self.all[at].clone());
        let command = Command::Configure(Configured { version, nodes, may_return });
        Stimulus::Command { to, command, after: MS }
    }

    /// A voter is let go only when all that should hold keys vote: which they do once they are
    /// live. How many have gone.
    ///
    /// # Errors
    /// It is gone earlier.
    pub fn check(&mut self, process: &Node) -> Result<u64, String> {
        let registry = process.membership().registry();
        if registry.changes() <= self.seen.changes {
            return Ok(0);
        }
        let now = Seen {
            changes: registry.changes(),
            voters: registry.voters().clone(),
            wanted: registry.wanted().clone(),
        };
        let before = std::mem::replace(&mut self.seen, now);
        let now = &self.seen;
        let gone: Vec<_> = before.voters.difference(&now.voters).copied().collect();
        let should: BTreeSet<_> = before.wanted.intersection(&now.wanted).copied().collect();
        let one = now.changes == before.changes + 1;
        if one && !gone.is_empty() && !should.is_subset(&now.voters) {
            return Err(format!(
                "let go: {gone:?} go, and of {should:?} only {:?} vote",
                now.voters
            ));
        }
        Ok(gone.len() as u64)
    }
}
