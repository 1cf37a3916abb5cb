//! Up to where groups are closed: what is known of other groups, as a graph. See
//! `handlers::linearizable`.

use crate::message::{Horizon, Timestamp};
use meridian_core::GroupId;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What a process knows of the groups that are not its own.
///
/// Invariants:
/// - C1: the links of a group tell of all messages with a timestamp up to where it is stable that
///   its primary has not delivered.
/// - C2: what is closed stays closed, and what is stable stays stable, unless a group is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Closure {
    /// How far each is stable, and its links.
    best: BTreeMap<GroupId, Horizon>,
    /// Up to where each is closed, our own group left out.
    closed: BTreeMap<GroupId, Timestamp>,
}

impl Closure {
    /// Puts together what is known of a group: how far it is stable, by whomever that was learned,
    /// and its latest links. What was stable before is known to its primary since, so those links
    /// tell of it. Returns whether that is news.
    pub fn learn(&mut self, shown: &Horizon, stable: Timestamp) -> bool {
        let Some(known) = self.best.get_mut(&shown.group) else {
            self.best.insert(shown.group, Horizon { stable, ..shown.clone() });
            return true;
        };
        let (further, later) = (stable > known.stable, shown.version > known.version);
        if further {
            known.stable = stable;
        }
        if later {
            known.version = shown.version;
            known.links = shown.links.clone();
        }
        further || later
    }

    /// A group was lost: how far it was stable counts no more.
    pub fn forget(&mut self, group: GroupId) {
        self.best.remove(&group);
        self.closed.remove(&group);
    }

    /// `group` is closed up to there; whether that is news.
    pub fn learn_closed(&mut self, group: GroupId, closed: Timestamp) -> bool {
        let known = self.closed.entry(group).or_default();
        let further = *known < closed;
        *known = closed.max(*known);
        further
    }

    /// Up to where `group` is closed as far as anybody has said or looked.
    pub fn closed(&self, group: GroupId) -> Timestamp {
        self.closed.get(&group).copied().unwrap_or_default()
    }

    /// How far `group` is.
    pub fn best(&self, group: GroupId) -> Option<&Horizon> {
        self.best.get(&group)
    }

    /// Up to where the group of `root` is closed, if what is before comes not from `apart`, or is
    /// delivered there.
    ///
    /// Tries the greatest timestamp that is possible, and a lower one as long as some group stands
    /// against it.
    pub fn close(&self, root: &Horizon, apart: Option<GroupId>) -> Timestamp {
        let mut cap = root.stable;
        while let Err(lower) = self.is_closed(root, apart, cap) {
            cap = lower;
        }
        cap
    }

    /// Whether the group of `root` is closed up to `cap`; if not, a lower timestamp up to which it
    /// may be, none between being possible.
    pub fn is_closed(
        &self,
        root: &Horizon,
        apart: Option<GroupId>,
        cap: Timestamp,
    ) -> Result<(), Timestamp> {
        if root.stable < cap {
            return Err(root.stable);
        }
        let mut seen: SmallVec<[GroupId; 16]> = apart.into_iter().chain([root.group]).collect();
        let mut todo: SmallVec<[(&Horizon, Timestamp); 16]> = SmallVec::new();
        todo.push((root, Timestamp(0)));
        // Below this, some group that we look beyond would be known to be closed.
        let mut beyond = Timestamp(0);
        while let Some((shown, at)) = todo.pop() {
            for (group, link) in shown.links.iter() {
                if *link > cap || seen.contains(group) {
                    continue;
                }
                seen.push(*group);
                let at = at.max(*link);
                let closed = self.closed(*group);
                if closed >= cap {
                    continue;
                }
                beyond = beyond.max(closed);
                match self.best(*group) {
                    Some(known) if known.stable >= cap => todo.push((known, at)),
                    known => {
                        let stable = known.map(|known| known.stable).unwrap_or_default();
                        return Err(beyond.max(stable).max(Timestamp(at.0.saturating_sub(1))));
                    }
                }
            }
        }
        Ok(())
    }

    /// What is known of third groups that can be reached from `links` and that `to` is not told by
    /// those.
    pub fn reached_from<'a>(
        &'a self,
        links: &'a [(GroupId, Timestamp)],
        to: GroupId,
    ) -> Vec<&'a Horizon> {
        let mut reached = Vec::new();
        let mut seen: SmallVec<[GroupId; 16]> = SmallVec::new();
        seen.push(to);
        let mut todo: SmallVec<[&[(GroupId, Timestamp)]; 16]> = SmallVec::new();
        todo.push(links);
        while let Some(links) = todo.pop() {
            for (group, _) in links {
                if !seen.contains(group) {
                    seen.push(*group);
                    if let Some(shown) = self.best(*group) {
                        todo.push(&shown.links);
                        if shown.links.iter().all(|(linked, _)| *linked != to) {
                            reached.push(shown);
                        }
                    }
                }
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Epoch;
    use meridian_core::NodeId;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::BTreeSet;

    fn shown(group: u16, stable: u64, links: &[(u16, u64)]) -> Horizon {
        let epoch = Epoch { config: 0, number: 1, leader: NodeId(0) };
        let links = links.iter().map(|(group, ts)| (GroupId(*group), Timestamp(*ts))).collect();
        Horizon { group: GroupId(group), version: (epoch, 1), stable: Timestamp(stable), links }
    }

    fn known(all: &[Horizon]) -> Closure {
        let mut closure = Closure::default();
        all.iter().for_each(|shown| assert!(closure.learn(shown, shown.stable)));
        closure
    }

    #[test]
    fn a_group_is_closed_as_far_as_all_are_stable_that_links_lead_to() {
        let root = shown(0, 10, &[(1, 3)]);
        let mut closure = known(&[shown(1, 8, &[(2, 5)])]);
        assert_eq!(closure.close(&root, None), Timestamp(4), "2 is not known");
        assert_eq!(closure.close(&root, Some(GroupId(2))), Timestamp(8));
        assert_eq!(closure.close(&root, Some(GroupId(1))), Timestamp(10));
        closure.learn(&shown(2, 7, &[(0, 1)]), Timestamp(7));
        assert_eq!(closure.close(&root, None), Timestamp(7));
        assert!(closure.learn_closed(GroupId(1), Timestamp(9)));
        assert!(!closure.learn_closed(GroupId(1), Timestamp(9)));
        assert_eq!(closure.close(&root, None), Timestamp(9), "as its primary has said");
    }

    #[test]
    fn others_are_told_of_third_groups_that_do_not_tell_them() {
        let links = [(GroupId(1), Timestamp(1)), (GroupId(2), Timestamp(1))];
        let closure = known(&[
            shown(1, 5, &[(4, 1)]),
            shown(2, 5, &[(9, 1), (3, 1)]),
            shown(3, 5, &[]),
            shown(5, 5, &[]),
            shown(9, 5, &[(5, 1)]),
        ]);
        let told = |to| {
            let told = closure.reached_from(&links, GroupId(to)).into_iter();
            told.map(|shown| shown.group.0).collect::<BTreeSet<_>>()
        };
        assert_eq!(told(9), BTreeSet::from([1, 3]), "2 speaks for itself; 5 is behind 9");
        assert_eq!(told(3), BTreeSet::from([1, 5, 9]));
    }

    /// By the definition: the greatest timestamp for which all that can be reached is stable up to
    /// it, or known to be closed.
    fn by_definition(closure: &Closure, root: &Horizon, apart: Option<GroupId>) -> Timestamp {
        let holds = |cap: Timestamp| {
            let mut reached = BTreeMap::from([(root.group, root)]);
            loop {
                let beyond = reached.values().flat_map(|shown| shown.links.iter());
                let beyond = beyond.filter(|(group, ts)| *ts <= cap && Some(*group) != apart);
                let open = beyond.filter(|(group, _)| closure.closed(*group) < cap);
                let new: BTreeSet<_> = open
                    .map(|(group, _)| *group)
                    .filter(|group| !reached.contains_key(group))
                    .collect();
                if new.is_empty() {
                    return reached.values().all(|shown| shown.stable >= cap);
                }
                for group in new {
                    let Some(shown) = closure.best(group) else { return false };
                    reached.insert(group, shown);
                }
            }
        };
        (0..=root.stable.0).rev().map(Timestamp).find(|cap| holds(*cap)).unwrap_or_default()
    }

    #[test]
    fn the_greatest_timestamp_is_found() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut kinds = BTreeSet::new();
        for _ in 0..20_000 {
            let mut draw = |group| {
                let links = (0..6).filter(|other| *other != group && random.random_bool(0.4));
                let links: Vec<_> = links.collect();
                let links: Vec<_> =
                    links.into_iter().map(|other| (other, random.random_range(1..12))).collect();
                shown(group, random.random_range(0..15), &links)
            };
            let root = draw(0);
            let mut closure = known(&[draw(1), draw(2), draw(3), draw(4)]);
            for group in 1..6 {
                if random.random_bool(0.3) {
                    closure.learn_closed(GroupId(group), Timestamp(random.random_range(1..15)));
                }
            }
            let apart = random.random_bool(0.5).then(|| GroupId(random.random_range(1..6)));
            let found = closure.close(&root, apart);
            assert_eq!(found, by_definition(&closure, &root, apart), "{root:?} {closure:?}");
            kinds.insert((found == root.stable, found.0));
        }
        assert!(kinds.len() > 20, "{kinds:?}");
    }
}
