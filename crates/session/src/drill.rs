//! What clients can still change while a region is cut off from all others: as it follows from who
//! is where, and whether it was so when somebody tried.
//!
//! A group orders updates as long as a quorum of its members reach each other. A client's session
//! reaches the members on its own side of the cut. So what is placed in the region can be changed
//! there and nowhere else, and what is global where most of its members are.

use meridian_cluster::Topology;
use meridian_core::{GroupId, RegionId};
use std::time::Duration;

/// What becomes of updates in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// They are done, after a pause if its primary was on the other side.
    Writable,
    /// They wait until the region can be reached again, or fail as the mount was told.
    Waits,
}

impl Outlook {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Outlook::Writable => "writable",
            Outlook::Waits => "waits",
        }
    }
}

/// A group while a region is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The group.
    pub group: GroupId,
    /// How many of its members are in the region.
    pub inside: usize,
    /// How many are elsewhere.
    pub outside: usize,
}

impl Split {
    /// So many of its members must reach each other.
    pub fn quorum(&self) -> usize {
        (self.inside + self.outside) / 2 + 1
    }

    /// What clients in the region meet.
    pub fn from_inside(&self) -> Outlook {
        self.with(self.inside)
    }

    /// What clients elsewhere meet.
    pub fn from_outside(&self) -> Outlook {
        self.with(self.outside)
    }

    fn with(&self, members: usize) -> Outlook {
        match members >= self.quorum() {
            true => Outlook::Writable,
            false => Outlook::Waits,
        }
    }
}

/// How the groups are split if `region` is cut off.
pub fn cut(topology: &Topology, region: RegionId) -> Vec<Split> {
    let split = |group| {
        let members = &topology.group(group).members;
        let is_inside = |node: &&_| topology.node(**node).region == region;
        let inside = members.iter().filter(is_inside).count();
        Split { group, inside, outside: members.len() - inside }
    };
    topology.group_ids().map(split).collect()
}

/// Somebody tried to change something in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// So long after the region was cut off.
    pub at: Duration,
    /// Whether it was done.
    pub done: bool,
}

/// Whether it came as it was foretold: what was tried between `settled`, by when another primary
/// leads where the one before was cut off, and the end of the cut. `None` if nothing was tried
/// then.
pub fn is_as_foretold(outlook: Outlook, tries: &[Tried], settled: Duration) -> Option<bool> {
    let mut tries = tries.iter().filter(|tried| tried.at >= settled).peekable();
    tries.peek()?;
    Some(tries.all(|tried| tried.done == (outlook == Outlook::Writable)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::topology;
    use Outlook::{Waits, Writable};

    fn outlooks(names: &[&str], region: u16) -> Vec<(Outlook, Outlook)> {
        let splits = cut(&topology(names), RegionId(region));
        splits.iter().map(|split| (split.from_outside(), split.from_inside())).collect()
    }

    #[test]
    fn a_placed_tree_is_writable_on_its_own_side_and_the_global_one_where_most_are() {
        // Groups in order: global, us, eu, ap.
        let three = ["us-1", "eu-1", "ap-1"];
        let of_eu = [(Writable, Waits), (Writable, Waits), (Waits, Writable), (Writable, Waits)];
        assert_eq!(outlooks(&three, 1), of_eu);
        let uneven = ["us-1", "us-2", "us-3", "eu-1"];
        let of_us = [(Waits, Writable), (Waits, Writable), (Writable, Waits)];
        assert_eq!(outlooks(&uneven, 0), of_us, "three of four are in us");
        let even = ["us-1", "us-2", "eu-1", "eu-2"];
        assert_eq!(outlooks(&even, 1)[0], (Waits, Waits), "no side has three of four");
        assert_eq!(cut(&topology(&even), RegionId(1))[0].quorum(), 3);
    }

    #[test]
    fn what_comes_otherwise_than_foretold_is_found() {
        let tried = |at, done| Tried { at: Duration::from_secs(at), done };
        let judge =
            |outlook, tries: &[Tried]| is_as_foretold(outlook, tries, Duration::from_secs(5));
        assert_eq!(judge(Writable, &[tried(1, false), tried(6, true), tried(9, true)]), Some(true));
        assert_eq!(judge(Writable, &[tried(6, true), tried(9, false)]), Some(false));
        assert_eq!(judge(Waits, &[tried(1, true), tried(6, false)]), Some(true), "before");
        assert_eq!(judge(Waits, &[tried(6, false), tried(9, true)]), Some(false));
        assert_eq!(judge(Waits, &[tried(1, false)]), None, "nobody tried");
    }
}
