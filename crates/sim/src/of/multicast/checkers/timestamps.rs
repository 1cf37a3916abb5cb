//! Timestamped multicast (thesis, section 4.4.2): a message has one final timestamp, greater than
//! its lower bound; a process delivers messages that conflict in the order of their timestamps; and
//! it delivers nothing below the safe timestamp that it has shown.

use super::Violation;
use crate::of::multicast::history::{Entry, History};
use meridian_core::{MessageId, ProcessId};
use meridian_multicast::{Rank, Timestamp, Touches};
use std::collections::BTreeMap;

/// Judges the timestamps of all deliveries.
///
/// # Errors
/// The first violation.
pub fn check_timestamps(history: &History) -> Result<(), Violation> {
    let mut sent: BTreeMap<MessageId, (&Touches, Timestamp)> = BTreeMap::new();
    let mut finals: BTreeMap<MessageId, Timestamp> = BTreeMap::new();
    let mut ranks: BTreeMap<ProcessId, Ranks> = BTreeMap::new();
    for entry in &history.entries {
        match entry {
            Entry::Multicast { id, touches, after, .. } => {
                sent.insert(*id, (touches, *after));
            }
            Entry::Deliver { process, id, ts, .. } => {
                let (touches, after) =
                    sent.get(id).copied().unwrap_or((&Touches::All, Timestamp(0)));
                if *ts <= after {
                    return Err(format!("{process} delivers {id} at {ts:?}, bound {after:?}"));
                }
                let first = *finals.entry(*id).or_insert(*ts);
                if first != *ts {
                    return Err(format!("{process} delivers {id} at {ts:?}, others at {first:?}"));
                }
                if let Some(last) = ranks.entry(*process).or_default().raise(touches, (*ts, *id)) {
                    return Err(format!("{process} delivers {:?} after {last:?}", (*ts, *id)));
                }
            }
            Entry::Crash(process) | Entry::Installed { process, .. } => drop(ranks.remove(process)),
            Entry::Asked { .. } | Entry::Step { .. } | Entry::Recover(_) => {}
        }
    }
    Ok(())
}

/// The greatest ranks that a process has delivered: of all, of what conflicts with all, for each
/// key.
#[derive(Default)]
pub(crate) struct Ranks {
    any: Option<Rank>,
    all: Option<Rank>,
    keys: BTreeMap<u64, Rank>,
}

impl Ranks {
    /// Adds one; answers a greater one that conflicts with it, if there is one.
    pub fn raise(&mut self, touches: &Touches, rank: Rank) -> Option<Rank> {
        let before = match touches {
            Touches::All => self.any,
            Touches::Keys(keys) => {
                keys.iter().filter_map(|key| self.keys.get(key).copied()).chain(self.all).max()
            }
        };
        self.any = self.any.max(Some(rank));
        match touches {
            Touches::All => self.all = self.all.max(Some(rank)),
            Touches::Keys(keys) => {
                for key in keys.iter() {
                    let known = self.keys.entry(*key).or_insert(rank);
                    *known = rank.max(*known);
                }
            }
        }
        before.filter(|before| *before > rank)
    }
}

/// Watches the safe timestamps that the processes show.
#[derive(Default)]
pub struct SafeTimes {
    /// Shown in this life, and in a state that no crash can undo.
    shown: BTreeMap<ProcessId, (Timestamp, Timestamp)>,
    /// For each key up to where a process said in this life that it has delivered what touches it.
    reached: BTreeMap<(ProcessId, u64), Timestamp>,
}

impl SafeTimes {
    /// A process has made a step: the lowest timestamp that it delivered in it, the lowest of a
    /// message that it had not delivered in an earlier life, and its safe timestamp after it.
    /// `durable` tells whether no crash can undo that.
    ///
    /// # Errors
    /// If the safe timestamp goes down, or was not safe.
    pub fn step(
        &mut self,
        process: ProcessId,
        [lowest, lowest_new]: [Option<Timestamp>; 2],
        safe: Timestamp,
        durable: bool,
    ) -> Result<(), Violation> {
        let (shown, kept) = self.shown.entry(process).or_default();
        if let Some(lowest) = lowest.filter(|lowest| lowest < shown) {
            return Err(format!(
                "{process} delivers {lowest:?}, below its safe timestamp {shown:?}"
            ));
        }
        if let Some(lowest) = lowest_new.filter(|lowest| lowest < kept) {
            return Err(format!(
                "{process} delivers {lowest:?}; before a restart {kept:?} was safe"
            ));
        }
        if safe < *shown {
            return Err(format!("the safe timestamp of {process} goes from {shown:?} to {safe:?}"));
        }
        *shown = safe;
        if durable {
            *kept = safe.max(*kept);
        }
        Ok(())
    }

    /// A process begins another life.
    pub fn started(&mut self, process: ProcessId) {
        self.shown.entry(process).or_default().0 = Timestamp(0);
        self.reached.retain(|(of, _), _| *of != process);
    }

    /// A process says that it has delivered all that touches `key` up to `ts`.
    pub fn reached(&mut self, process: ProcessId, key: u64, ts: Timestamp) {
        let known = self.reached.entry((process, key)).or_default();
        *known = ts.max(*known);
    }

    /// A process delivers a message in this life.
    ///
    /// # Errors
    /// If it had said that it had delivered all such.
    pub fn delivered(
        &self,
        process: ProcessId,
        touches: &Touches,
        rank: Rank,
    ) -> Result<(), Violation> {
        let of_process = self.reached.range((process, 0)..=(process, u64::MAX));
        let touched = |key: &u64| match touches {
            Touches::All => true,
            Touches::Keys(keys) => keys.contains(key),
        };
        let mut wrong = of_process.filter(|((_, key), ts)| touched(key) && rank.0 <= **ts);
        match wrong.next() {
            None => Ok(()),
            Some(((_, key), ts)) => {
                Err(format!("{process} delivers {rank:?}; it had reached {ts:?} for key {key}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;
    use meridian_core::{GroupId, Position, Time};

    fn at(node: u16, sequence: u64, ts: u64, position: u64) -> Entry {
        let (process, position) = (process(0, node), Position(position));
        Entry::Deliver { process, id: id(sequence), ts: Timestamp(ts), position, t: Time(0) }
    }

    fn after(sequence: u64, after: u64, touches: Touches) -> Entry {
        let (dest, after) = (vec![GroupId(0)], Timestamp(after));
        Entry::Multicast { id: id(sequence), dest, touches, after, t: Time(0) }
    }

    fn judged(entries: impl IntoIterator<Item = Entry>) -> Result<(), Violation> {
        let mut history = groups(1, 2);
        entries.into_iter().for_each(|entry| history.push(entry));
        check_timestamps(&history)
    }

    #[test]
    fn a_lower_bound_is_below() {
        let sent = |bound| after(1, bound, Touches::All);
        assert_eq!(judged([sent(6), at(0, 1, 7, 1)]), Ok(()));
        assert!(judged([sent(7), at(0, 1, 7, 1)]).unwrap_err().contains("bound"));
    }

    #[test]
    fn a_message_has_one_timestamp() {
        let sent = after(1, 0, Touches::All);
        assert_eq!(judged([sent.clone(), at(0, 1, 7, 1), at(1, 1, 7, 1)]), Ok(()));
        assert!(judged([sent, at(0, 1, 7, 1), at(1, 1, 8, 1)]).unwrap_err().contains("others"));
    }

    #[test]
    fn conflicting_messages_ascend() {
        let of = |a: &Touches, b: &Touches| {
            let sent = [after(1, 0, a.clone()), after(2, 0, b.clone())];
            judged(sent.into_iter().chain([at(0, 1, 7, 1), at(0, 2, 6, 2)]))
        };
        let (one, other) = (Touches::keys([1, 2]), Touches::keys([3]));
        assert_eq!(of(&one, &other), Ok(()));
        for (a, b) in [(&one, &one), (&Touches::All, &one), (&one, &Touches::All)] {
            assert!(of(a, b).unwrap_err().contains("after"), "{a:?} {b:?}");
        }
    }

    #[test]
    fn what_is_safe_stays_safe() {
        let (mut safe, p) = (SafeTimes::default(), process(0, 0));
        let ts = |ts| Some(Timestamp(ts));
        assert_eq!(safe.step(p, [None, None], Timestamp(5), true), Ok(()));
        assert_eq!(safe.step(p, [ts(5), ts(5)], Timestamp(9), false), Ok(()));
        assert!(safe.step(p, [None, None], Timestamp(8), true).unwrap_err().contains("goes from"));
        assert!(safe.step(p, [ts(8), ts(8)], Timestamp(9), true).unwrap_err().contains("below"));
    }

    #[test]
    fn what_was_reached_for_a_key_is_delivered() {
        let (mut safe, p) = (SafeTimes::default(), process(0, 0));
        safe.reached(p, 3, Timestamp(5));
        let delivered = |safe: &SafeTimes, touches: Touches, ts| {
            safe.delivered(p, &touches, (Timestamp(ts), id(1))).is_ok()
        };
        assert!(delivered(&safe, Touches::keys([3, 4]), 6));
        assert!(delivered(&safe, Touches::keys([4]), 5));
        assert!(!delivered(&safe, Touches::keys([3, 4]), 5));
        assert!(!delivered(&safe, Touches::All, 4));
        safe.started(p);
        assert!(delivered(&safe, Touches::All, 4));
    }

    #[test]
    fn after_a_restart_what_was_durable_binds() {
        let (mut safe, p) = (SafeTimes::default(), process(0, 0));
        let ts = |ts| Some(Timestamp(ts));
        assert_eq!(safe.step(p, [None, None], Timestamp(5), true), Ok(()));
        assert_eq!(safe.step(p, [None, None], Timestamp(9), false), Ok(()));
        safe.started(p);
        assert_eq!(safe.step(p, [ts(4), None], Timestamp(5), true), Ok(()));
        assert_eq!(safe.step(p, [ts(6), ts(6)], Timestamp(7), true), Ok(()));
        safe.started(p);
        assert!(safe.step(p, [ts(4), ts(4)], Timestamp(7), true).unwrap_err().contains("restart"));
    }
}
