//! When files were read last: which reads are told to the partitions, and when.
//!
//! As local file systems do by default (`relatime`), a read is noted only if the time that is shown
//! is not after the last change, or is a day old. So nearly no read needs an update; those that do
//! are collected, and told late and all at once. Until then this client shows them by itself.
//!
//! Invariants:
//! - T1: an update names the time of reading that was seen: if another was set meanwhile it does
//!   nothing.
//! - T2: of one partition one update is under way at a time.

use meridian_core::{GroupId, Time};
use meridian_fs::operation::Access;
use meridian_fs::{Attributes, Ino, Place, Timestamp, Update};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a read waits to be told: reads of so long share an update.
pub const LATE: Duration = Duration::from_secs(30);
/// After so many seconds a time of reading is old, whatever has changed since.
const OLD_SECONDS: i64 = 24 * 60 * 60;
/// So many reads one update tells: some tens of KiB.
const TOLD_MAX: usize = 1024;
/// So many reads wait at most. What is read beyond them is not noted, but when it is read again.
const WAITING_MAX: usize = 64 * TOLD_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    partition: GroupId,
    seen: Timestamp,
    at: Timestamp,
    since: Time,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Accesses {
    waiting: BTreeMap<Ino, Read>,
    under_way: BTreeSet<GroupId>,
}

/// Whether a read at `now` of what shows these attributes is to be noted.
pub fn is_due(of: &Attributes, now: Timestamp) -> bool {
    let old = now.seconds.saturating_sub(of.atime.seconds) >= OLD_SECONDS;
    of.atime <= of.mtime || of.atime <= of.ctime || old
}

impl Accesses {
    /// What has these attributes was read, `now` by the wall clock.
    pub fn read(&mut self, of: &Attributes, now: Timestamp, since: Time) {
        let Place { ino, partition } = of.place;
        let noted = self.waiting.get(&ino).filter(|read| read.seen == of.atime);
        let shown = Attributes { atime: noted.map_or(of.atime, |read| read.at), ..*of };
        if !is_due(&shown, now) || now <= of.atime {
            return;
        }
        if noted.is_some() || self.waiting.len() < WAITING_MAX {
            let since = noted.map_or(since, |read| read.since);
            self.waiting.insert(ino, Read { partition, seen: of.atime, at: now, since });
        }
    }

    /// Shows what is not told yet.
    pub fn overlay(&self, of: &mut Attributes) {
        let read = self.waiting.get(&of.place.ino).filter(|read| read.seen == of.atime);
        of.atime = read.map_or(of.atime, |read| read.at);
    }

    /// What is to be told now: what has waited for long, or, `at_once`, all. What came of each must
    /// be given to [`Accesses::told`].
    pub fn due(&mut self, now: Time, at_once: bool) -> Vec<(GroupId, Update)> {
        let late = |read: &Read| at_once || read.since + LATE <= now;
        let due = self.waiting.values().filter(|read| late(read)).map(|read| read.partition);
        let partitions: BTreeSet<_> = due.collect();
        let free: Vec<_> = partitions.difference(&self.under_way).copied().collect();
        let update = |partition| {
            let here = self.waiting.iter().filter(|(_, read)| read.partition == partition);
            let access = |(ino, read): (&Ino, &Read)| {
                let Read { seen, at, .. } = *read;
                Access { inode: *ino, seen, at }
            };
            let reads = here.take(TOLD_MAX).map(access).collect();
            (partition, Update::NoteReads { partition, reads })
        };
        let updates: Vec<_> = free.into_iter().map(update).collect();
        self.under_way.extend(updates.iter().map(|(partition, _)| *partition));
        updates
    }

    /// An update has been told, or nobody knows: then the reads are lost.
    pub fn told(&mut self, update: &Update) {
        let Update::NoteReads { partition, reads } = update else { return };
        self.under_way.remove(partition);
        for Access { inode, seen, at } in reads {
            if self.waiting.get(inode).is_some_and(|read| (read.seen, read.at) == (*seen, *at)) {
                self.waiting.remove(inode);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_fs::Kind;

    fn time(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn file(ino: u64, atime: i64, mtime: i64) -> Attributes {
        let place = Place { ino: Ino(ino), partition: GroupId(1) };
        let (atime, mtime) = (time(atime), time(mtime));
        let bare = Attributes::bare(place, Kind::File);
        Attributes { size: 1, stored: 1, atime, mtime, ctime: mtime, ..bare }
    }

    fn shown(accesses: &Accesses, mut of: Attributes) -> Timestamp {
        accesses.overlay(&mut of);
        of.atime
    }

    #[test]
    fn a_read_counts_after_a_change_or_after_a_day() {
        for (atime, mtime, now, counts) in [
            (10, 10, 11, true),
            (10, 20, 30, true),
            (20, 10, 30, false),
            (20, 10, 20 + OLD_SECONDS - 1, false),
            (20, 10, 20 + OLD_SECONDS, true),
            (50, 60, 40, false), // The clock is behind.
        ] {
            let mut accesses = Accesses::default();
            accesses.read(&file(5, atime, mtime), time(now), at(0));
            assert_eq!(!accesses.due(at(0), true).is_empty(), counts, "{atime} {mtime} {now}");
        }
    }

    #[test]
    fn reads_are_shown_at_once_and_told_late_and_together() {
        let mut accesses = Accesses::default();
        accesses.read(&file(5, 10, 10), time(11), at(0));
        accesses.read(&file(5, 10, 10), time(12), at(1));
        accesses.read(&file(6, 10, 10), time(13), at(20));
        assert_eq!(shown(&accesses, file(5, 10, 10)), time(11), "once is enough");
        assert_eq!(shown(&accesses, file(5, 9, 10)), time(9), "another has set it");
        assert!(accesses.due(at(29), false).is_empty());
        let (_, update) = accesses.due(at(30), false).pop().unwrap();
        let reads = vec![
            Access { inode: Ino(5), seen: time(10), at: time(11) },
            Access { inode: Ino(6), seen: time(10), at: time(13) },
        ];
        assert_eq!(update, Update::NoteReads { partition: GroupId(1), reads });
        assert!(accesses.due(at(99), true).is_empty(), "T2");
        // The file was changed and read again meanwhile.
        accesses.read(&file(6, 10, 14), time(15), at(31));
        accesses.told(&update);
        assert_eq!(shown(&accesses, file(5, 10, 10)), time(10));
        assert_eq!(shown(&accesses, file(6, 10, 14)), time(15));
        assert_eq!(accesses.due(at(61), false).len(), 1);
    }
}
