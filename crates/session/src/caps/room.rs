//! How much a client keeps, and what goes when there is no room for more: what was used least
//! recently, some thousands at a time. So making room costs little for each (decision 105).
//!
//! Nobody waits for what goes for room: others' recalls are released first, and the lease is
//! renewed meanwhile.

use super::{Caps, known::Known};
use meridian_core::GroupId;
use meridian_fs::Ino;

/// Of so many inodes a client keeps something, of each half a KiB; then it lets go those that it
/// used least recently.
pub const HELD_MAX: usize = 131_072;
/// The same where nodes may give it no more than 16,384.
const HELD_MAX_BEFORE: usize = 8192;
/// One in so many goes then.
const LET_GO: usize = 32;
/// So many names are kept in all directories with what they lead to, each some 200 bytes.
const NAMES_MAX: usize = 262_144;
/// So many are left once names are forgotten.
const NAMES_LEFT: usize = NAMES_MAX / 4 * 3;

impl Caps {
    fn held_max(&self) -> usize {
        if self.making.all { HELD_MAX } else { HELD_MAX_BEFORE }
    }

    /// Whether nothing more is to be asked for.
    pub(super) fn is_full(&self) -> bool {
        self.known.len() >= self.held_max()
    }

    /// Whether half of the room is taken: the rest is for what was looked at, or made.
    pub(super) fn is_half_full(&self) -> bool {
        self.known.len() >= self.held_max() / 2
    }

    /// What must go so that there is room again: what was used least recently. Answers what the
    /// owner is to drop.
    pub fn surplus(&mut self) -> Vec<(GroupId, Ino)> {
        if self.names > NAMES_MAX {
            self.forget_names(NAMES_LEFT);
        }
        if !self.is_full() {
            return Vec::new();
        }
        let by_use = self.known.iter().map(|(ino, known)| (known.used, *ino, known.group));
        let mut by_use: Vec<_> = by_use.collect();
        let count = self.held_max() / LET_GO;
        by_use.select_nth_unstable(count);
        by_use.truncate(count);
        by_use.sort_unstable();
        let gone = by_use.into_iter().map(|(_, ino, group)| (group, ino)).collect();
        self.drop_held(gone)
    }

    /// Forgets the names in directories that were used least recently, until so many are left.
    fn forget_names(&mut self, left: usize) {
        let with_names = self.known.iter().filter(|(_, known)| known.names_kept() > 0);
        let mut by_use: Vec<_> = with_names.map(|(ino, known)| (known.used, *ino)).collect();
        by_use.sort_unstable();
        for (_, ino) in by_use {
            if self.names <= left {
                break;
            }
            self.change_names(ino, |known, count| known.forget_names(count));
        }
    }

    /// Changes what is known of the names in a directory that is held, at the count of now; they
    /// are counted.
    pub(super) fn change_names(&mut self, directory: Ino, change: impl FnOnce(&mut Known, u64)) {
        if let Some(known) = self.known.get_mut(&directory) {
            let before = known.names_kept();
            change(known, self.count);
            self.names = self.names + known.names_kept() - before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::{Errand, SPAN};
    use meridian_core::{ClientId, Stamp, Time};
    use meridian_fs::types::Place;
    use meridian_host::replica::CAP_LEASE;
    use std::time::Duration;

    const US: GroupId = GroupId(1);
    const NOW: Time = Time(1_000_000);
    const GO: usize = HELD_MAX / LET_GO;

    fn holding(count: usize) -> Caps {
        let mut caps = Caps::new(ClientId(5)).with_all_made_held(true);
        caps.turn_on();
        caps.extend(NOW, US, NOW);
        for number in 0..count as u64 {
            let at = NOW + Duration::from_nanos(number);
            caps.hold(at, Place { ino: Ino(number), partition: US });
        }
        caps
    }

    fn released(caps: &mut Caps, now: Time) -> Option<Vec<Ino>> {
        let (_, errand) = caps.next_errand(now)?;
        let inodes = match &errand {
            Errand::Release(inodes) => inodes.clone(),
            _ => return released(caps, now),
        };
        caps.on_ended(now, US, (errand, now), Some(Vec::new()));
        Some(inodes)
    }

    #[test]
    fn those_go_that_were_used_least_recently() {
        let mut caps = holding(HELD_MAX - 1);
        assert!(caps.surplus().is_empty() && !caps.is_full());
        let first = Place { ino: Ino(0), partition: US };
        caps.usable(NOW + Duration::from_secs(1), first, &Default::default());
        caps.hold(NOW, Place { ino: Ino(HELD_MAX as u64), partition: US });
        let gone = caps.surplus();
        assert_eq!(gone.len(), GO);
        assert!(!gone.contains(&(US, first.ino)), "it was used");
        assert!(gone.contains(&(US, Ino(1))) && gone.contains(&(US, Ino(HELD_MAX as u64))));
        assert!(caps.surplus().is_empty(), "there is room");
        caps.check_invariants();
    }

    #[test]
    fn what_others_wait_for_is_released_first_and_the_lease_goes_on() {
        let mut caps = holding(HELD_MAX);
        let gone = caps.surplus();
        caps.let_go(&gone);
        let (of, later) = (Ino(HELD_MAX as u64 - 1), NOW + CAP_LEASE / 2);
        caps.leases.get_mut(&US).unwrap().used = later;
        let (_, first) = caps.next_errand(later).unwrap();
        assert!(matches!(&first, Errand::Release(inodes) if inodes[0] == Ino(0)));
        let (_, next) = caps.next_errand(later).unwrap();
        assert_eq!(next, Errand::Renew, "nobody waits for these");
        // One of those that go, and one that is held still.
        let recalled = [Ino(GO as u64 - 1), of];
        assert_eq!(caps.heard(later, US, Stamp(1), &recalled), [(US, of)]);
        caps.let_go(&[(US, of)]);
        caps.on_ended(later, US, (next, later), None);
        assert_eq!(caps.next_errand(later), None, "one release at a time, and no renewal");
        caps.on_ended(later, US, (first, later), Some(Vec::new()));
        assert_eq!(released(&mut caps, later), Some(recalled.to_vec()));
        assert!(later < NOW + SPAN);
        let mut left = 0;
        while let Some(inodes) = released(&mut caps, later) {
            left += inodes.len();
        }
        assert_eq!(left, GO - 512 - 1);
        assert!(!caps.is_letting_go());
        caps.check_invariants();
    }

    #[test]
    fn names_are_forgotten_where_none_was_looked_at_for_longest() {
        let mut caps = holding(3);
        let name = |number: usize| format!("{number}").into();
        for number in 0..=NAMES_MAX {
            let directory = Ino(number as u64 % 3);
            caps.change_names(directory, |known, count| {
                known.keep_name(&name(number), count, None)
            });
        }
        assert_eq!(caps.names, NAMES_MAX + 1);
        assert!(caps.surplus().is_empty());
        let known = |ino: u64| caps.known[&Ino(ino)].name(&name(ino as usize)).is_some();
        assert_eq!([known(0), known(1), known(2)], [false, true, true]);
        caps.check_invariants();
    }
}
