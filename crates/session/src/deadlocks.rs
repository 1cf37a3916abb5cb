//! Whether programs wait for each other's locks in a cycle, of which one waits here.
//!
//! A client whose program has waited for a lock for [`FIRST`] asks all partitions who waits there,
//! and for whom, and joins the answers. If they show a cycle it names that in an update, upon which
//! the partitions of the cycle see whether it is there (`meridian_fs`'s `waits`): answers may be
//! old, and from different times. The client looks again after ever longer; each new wait begins
//! anew. Who closes a cycle is the last to wait in it, so its client soon looks.
//!
//! Invariants:
//! - D1: a cycle is named only after each wait in it was seen, in answers to one look.
//! - D2: a look asks each partition once, and ends when each has answered or has not.

use crate::Mutation;
use meridian_core::{GroupId, Time};
use meridian_fs::{Query, Update, Waits, cycle_of};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a program waits before a cycle is looked for: longer than most wait.
pub const FIRST: Duration = Duration::from_secs(1);
/// How long after a look that has found nothing the next one comes at the latest.
pub const LATEST: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub struct Deadlocks {
    /// How many programs wait.
    waiting: usize,
    /// When it looks next, and how long after that again.
    next: Time,
    pause: Duration,
    look: Option<Look>,
    mutation: Mutation,
}

/// The partitions are being asked.
#[derive(Debug)]
struct Look {
    missing: BTreeSet<GroupId>,
    seen: Vec<Waits>,
}

impl Deadlocks {
    /// The same with a bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Deadlocks {
        Deadlocks { mutation, ..self }
    }

    /// A program begins to wait for a lock.
    pub fn begin(&mut self, now: Time) {
        let first = now + FIRST;
        self.next = if self.waiting == 0 { first } else { self.next.min(first) };
        self.pause = FIRST;
        self.waiting += 1;
    }

    /// A program waits no more.
    pub fn end(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// What is to be asked now, of each of `partitions` one question. What comes of each must be
    /// given to [`Deadlocks::answered`].
    pub fn due(&mut self, now: Time, partitions: impl Iterator<Item = GroupId>) -> Vec<Query> {
        if self.waiting == 0 || self.look.is_some() || now < self.next {
            return Vec::new();
        }
        let missing: BTreeSet<GroupId> = partitions.collect();
        let asked = missing.iter().map(|partition| Query::Waits { partition: *partition });
        let asked = asked.collect();
        self.look = Some(Look { missing, seen: Vec::new() });
        asked
    }

    /// A partition has answered, or does not. Returns the update that ends a cycle, if the answers
    /// show one. Whether that succeeds does not matter: if the cycle stays it is seen again.
    pub fn answered(
        &mut self,
        partition: GroupId,
        waits: Option<Waits>,
        now: Time,
    ) -> Option<Update> {
        let look = self.look.as_mut()?;
        look.missing.remove(&partition);
        look.seen.extend(waits);
        if !look.missing.is_empty() {
            return None;
        }
        let Look { seen, .. } = self.look.take()?;
        let cycle = match self.mutation.is(Mutation::JoinsNothing) {
            true => seen.iter().find_map(|one| cycle_of(std::slice::from_ref(one))),
            false => cycle_of(&seen),
        };
        // Where there was one there may be more.
        self.pause = if cycle.is_some() { FIRST } else { self.pause };
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(LATEST);
        cycle.map(|cycle| Update::Untangle { cycle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITIONS: [GroupId; 2] = [GroupId(0), GroupId(1)];

    fn at(s: u64) -> Time {
        Time(s * 1_000_000_000)
    }

    /// Whether it looks; if so all partitions answer that nobody waits.
    fn looks(deadlocks: &mut Deadlocks, s: u64) -> bool {
        let asked = deadlocks.due(at(s), PARTITIONS.into_iter());
        let none = deadlocks.due(at(s), PARTITIONS.into_iter());
        assert!(none.is_empty(), "D2");
        for query in &asked {
            let waits = Some(Waits::default());
            assert_eq!(deadlocks.answered(query.partition(), waits, at(s)), None);
        }
        assert!(asked.is_empty() || asked.len() == PARTITIONS.len());
        !asked.is_empty()
    }

    #[test]
    fn it_looks_ever_more_rarely_and_soon_again_when_another_waits() {
        let mut deadlocks = Deadlocks::default();
        assert!(!looks(&mut deadlocks, 5), "nobody waits");
        deadlocks.begin(at(10));
        let all: Vec<u64> = (10..300).filter(|s| looks(&mut deadlocks, *s)).collect();
        assert_eq!(all, [11, 12, 14, 18, 26, 42, 74, 134, 194, 254]);
        deadlocks.begin(at(300));
        assert!(!looks(&mut deadlocks, 300) && looks(&mut deadlocks, 301));
        deadlocks.end();
        assert!(looks(&mut deadlocks, 302), "the first still waits");
        deadlocks.end();
        assert!(!looks(&mut deadlocks, 400));
    }

    #[test]
    fn a_look_ends_when_the_last_partition_has_answered_or_has_not() {
        let mut deadlocks = Deadlocks::default();
        deadlocks.begin(at(0));
        assert_eq!(deadlocks.due(at(1), PARTITIONS.into_iter()).len(), 2);
        deadlocks.answered(GroupId(1), None, at(2));
        assert!(deadlocks.due(at(9), PARTITIONS.into_iter()).is_empty());
        deadlocks.answered(GroupId(0), Some(Waits::default()), at(9));
        assert_eq!(deadlocks.due(at(10), PARTITIONS.into_iter()).len(), 2);
    }
}
