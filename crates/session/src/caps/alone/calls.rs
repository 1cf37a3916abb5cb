//! What is kept back still, and what the owner is told to have land.

use super::super::Caps;
use super::What;
use crate::calls::ToLand;
use meridian_core::GroupId;
use meridian_fs::Ino;
use std::collections::BTreeSet;

impl Caps {
    /// Whether it is kept back still.
    pub fn is_unlanded(&self, ino: Ino) -> bool {
        self.alone.kept.contains_key(&ino)
    }

    /// Whether a name is removed that leads there, and the nodes may not know yet.
    pub fn removes(&self, ino: Ino) -> bool {
        self.alone.kept.get(&ino).is_some_and(|of| matches!(of.what, What::Removed))
    }

    /// Whether it is kept back, and lands in its turn.
    pub fn lands_in_order(&self, ino: Ino) -> bool {
        self.alone.kept.get(&ino).is_some_and(|of| of.in_order)
    }

    /// Which files are kept back in a directory, or removed there.
    pub fn unlanded_in(&self, directory: Ino) -> Vec<Ino> {
        self.alone.within(directory).collect()
    }

    /// The number of what was kept back last, of all that ever was.
    pub fn last_kept(&self) -> u64 {
        self.alone.last
    }

    /// Whether nothing is kept back in order any more that has that number or a lower one, in that
    /// partition, or in any.
    pub fn has_landed(&self, group: Option<GroupId>, number: u64) -> bool {
        let such = |of: GroupId| group.is_none_or(|group| group == of);
        !self.alone.order.strict().any(|(of, turn)| turn <= number && such(of))
    }

    /// These are to land, and all that is in order before them (K10): the owner is told so. What
    /// is in order after them comes along: a file that was made before and removed after something
    /// is never sent, so that what lands is as it was at some moment only if it lands together.
    pub fn call_to_land(&mut self, inodes: impl IntoIterator<Item = Ino>) {
        let mut of = BTreeSet::new();
        for ino in inodes {
            let all = self.alone.named_before(ino).chain([ino]);
            of.extend(all.filter_map(|ino| Some(self.alone.kept.get(&ino)?.turn())));
        }
        let groups: BTreeSet<_> = of.iter().map(|(group, _)| *group).collect();
        let strict = groups.into_iter().flat_map(|of| self.alone.order.before((of, u64::MAX)));
        of.extend(strict.collect::<Vec<_>>());
        for turn in of {
            let ino = self.alone.order.at(turn);
            if let Some(kept) = ino.and_then(|ino| self.alone.kept.get_mut(&ino))
                && !std::mem::replace(&mut kept.called, true)
            {
                self.alone.uncalled -= usize::from(kept.in_order);
                self.alone.to_land.push(kept.to_land());
            }
        }
    }

    /// All that is kept back in order is to land.
    pub fn call_all_to_land(&mut self) {
        let all = self.alone.order.strict().filter_map(|turn| self.alone.order.at(turn));
        let all: Vec<_> = all.collect();
        self.call_to_land(all);
    }

    /// All that is kept back in that directory is to land.
    pub(in super::super) fn call_within(&mut self, directory: Ino) {
        let within = self.unlanded_in(directory);
        self.call_to_land(within);
    }

    /// The lease of a partition has run out: all that is kept back there is to land, if it can.
    pub(in super::super) fn call_all_of(&mut self, group: GroupId) {
        let all = self.alone.kept.iter().filter(|(_, of)| of.parent.partition == group);
        let all: Vec<_> = all.map(|(ino, _)| *ino).collect();
        self.call_to_land(all);
    }

    /// Whether there is something that the owner is to be told to have land.
    pub fn calls_to_land(&self) -> bool {
        !self.alone.to_land.is_empty()
    }

    /// What the owner is to be told to have land.
    pub fn take_to_land(&mut self) -> Vec<ToLand> {
        std::mem::take(&mut self.alone.to_land)
    }
}
