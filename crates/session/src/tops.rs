//! Directories that live in another partition than their names, and what is shown of them while
//! nobody answers for that partition: what it told last, or what the partition of the name keeps of
//! them ([`meridian_fs::Answer::Entry`]). So `ls -l` above them goes on while a region is cut off,
//! also for a client that begins meanwhile; all that is below needs the region.
//!
//! Invariants:
//! - O1: what is known is shown only if the partition has answered nobody for [`SHOWN_AFTER`] while
//!   it was asked, and not since, or is cut off.

use crate::Mutation;
use crate::cuts::SILENCE;
use meridian_core::{GroupId, Time};
use meridian_fs::types::{Attributes, Ino, Place};
use std::collections::BTreeMap;
use std::time::Duration;

/// So long somebody may be silent before what is known is shown.
pub const SHOWN_AFTER: Duration = Duration::from_millis(700);
/// Of so many directories it is known at most: of more, a person does not place.
const KNOWN_MAX: usize = 1024;

/// One such directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Top {
    place: Place,
    /// The partition of its name.
    above: GroupId,
    attributes: Attributes,
}

/// A group was silent for so long once it had answered so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Silence {
    heard: u64,
    since: Time,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Tops {
    by_ino: BTreeMap<Ino, Top>,
    silent: BTreeMap<GroupId, Silence>,
    mutation: Mutation,
}

impl Tops {
    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(mutation: Mutation) -> Tops {
        Tops { mutation, ..Tops::default() }
    }

    /// A name in the partition `above` leads to `place`, which is elsewhere; `kept` is what that
    /// partition keeps of it if it is a directory.
    pub fn named(&mut self, above: GroupId, place: Place, kept: Option<Attributes>) {
        let before = self.by_ino.get(&place.ino).filter(|top| top.place == place);
        let seen = before.map(|top| top.attributes);
        let older = |kept: &Attributes| seen.is_none_or(|seen| seen.ctime < kept.ctime);
        let Some(attributes) = kept.filter(older).or(seen) else { return };
        if self.by_ino.len() >= KNOWN_MAX && !self.by_ino.contains_key(&place.ino) {
            self.by_ino.pop_first();
        }
        self.by_ino.insert(place.ino, Top { place, above, attributes });
    }

    /// Its own partition has told what it is.
    pub fn seen(&mut self, attributes: Attributes) {
        if let Some(top) = self.by_ino.get_mut(&attributes.place.ino) {
            (top.place, top.attributes) = (attributes.place, attributes);
        }
    }

    /// It lives where its name is.
    pub fn forget(&mut self, ino: Ino) {
        self.by_ino.remove(&ino);
    }

    /// What is known of it, if it is such a directory.
    pub fn get(&self, ino: Ino) -> Option<Attributes> {
        self.by_ino.get(&ino).map(|top| top.attributes)
    }

    /// The partition that keeps what it was, if it is such a directory: it is told what it became.
    pub fn above(&self, ino: Ino) -> Option<GroupId> {
        let top = self.by_ino.get(&ino)?;
        let tells = !self.mutation.is(Mutation::TellsNoTop);
        (top.above != top.place.partition && tells).then_some(top.above)
    }

    /// A group was asked for [`SHOWN_AFTER`]; before that it had answered `before` times, and now
    /// `heard` times. Whether what is known is shown, as it answers nobody.
    pub fn was_asked(&mut self, group: GroupId, (before, heard): (u64, u64), now: Time) -> bool {
        let shown = before == heard && !self.mutation.is(Mutation::HidesTops);
        if shown {
            self.silent.insert(group, Silence { heard, since: now });
        }
        shown
    }

    /// Whether what is known of it is shown at once: the group, which has answered `heard` times,
    /// is cut off, or was silent a moment ago and still is. It is asked all the same by whoever
    /// found it silent, until it is known whether it is cut off.
    pub fn shows_at_once(&self, group: GroupId, heard: u64, is_cut: bool, now: Time) -> bool {
        let silence = self.silent.get(&group).filter(|silence| silence.heard == heard);
        let silent = silence.is_some_and(|silence| now.since(silence.since) < SILENCE);
        (is_cut || silent) && !self.mutation.is(Mutation::HidesTops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_fs::{Answer, Partition, Query, Timestamp};

    const US: GroupId = GroupId(1);
    const TOP: Place = Place { ino: Ino(1 << 52 | 1), partition: US };

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn attributes(mode: u16, seconds: i64) -> Attributes {
        let made = Partition::new(US, [], Timestamp::default());
        match made.read(&Query::Attributes { inode: TOP }) {
            Ok(Answer::Attributes(of)) => {
                Attributes { mode, ctime: Timestamp { seconds, nanos: 0 }, ..of }
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_seen_last_is_known_and_what_is_kept_else() {
        let mut tops = Tops::default();
        tops.seen(attributes(0o700, 9));
        assert_eq!(tops.get(TOP.ino), None, "no name that leads elsewhere");
        tops.named(GroupId::GLOBAL, TOP, None);
        assert_eq!(tops.get(TOP.ino), None);
        tops.named(GroupId::GLOBAL, TOP, Some(attributes(0o755, 1)));
        assert_eq!(tops.get(TOP.ino), Some(attributes(0o755, 1)));
        tops.seen(attributes(0o700, 2));
        tops.named(GroupId::GLOBAL, TOP, Some(attributes(0o755, 1)));
        assert_eq!(tops.get(TOP.ino), Some(attributes(0o700, 2)));
        tops.named(GroupId::GLOBAL, TOP, Some(attributes(0o711, 3)));
        assert_eq!(tops.get(TOP.ino), Some(attributes(0o711, 3)), "another client changed it");
        assert_eq!(tops.above(TOP.ino), Some(GroupId::GLOBAL));
        let away = Place { partition: GroupId(2), ..TOP };
        let placed = Attributes { place: away, ..attributes(0o733, 0) };
        tops.named(GroupId::GLOBAL, away, Some(placed));
        assert_eq!(tops.get(TOP.ino), Some(placed), "it was placed elsewhere");
    }

    #[test]
    fn it_is_shown_at_once_while_nobody_answers() {
        let mut tops = Tops::default();
        assert!(!tops.shows_at_once(US, 3, false, at(0)));
        assert!(tops.shows_at_once(US, 3, true, at(0)));
        assert!(!tops.was_asked(US, (2, 3), at(700)), "it answers others");
        assert!(tops.was_asked(US, (3, 3), at(700)));
        assert!(tops.shows_at_once(US, 3, false, at(800)));
        assert!(!tops.shows_at_once(US, 4, false, at(800)), "it has answered");
        assert!(!tops.shows_at_once(US, 3, false, at(700) + SILENCE), "and else it is cut off");
    }

    #[test]
    fn so_many_are_known() {
        let mut tops = Tops::default();
        for number in 0..2 * KNOWN_MAX as u64 {
            let place = Place { ino: Ino(number), ..TOP };
            tops.named(GroupId::GLOBAL, place, Some(attributes(0o755, 1)));
        }
        assert_eq!(tops.by_ino.len(), KNOWN_MAX);
    }
}
