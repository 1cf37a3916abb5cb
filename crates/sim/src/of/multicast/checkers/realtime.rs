//! Order in real time: "delivered before, somewhere" together with "multicast after the other had
//! ended" has no cycle (thesis, section 5.2.2: atomic global order). What an end is makes two
//! judges of it, see [`End`].
//!
//! Messages that do not conflict (thesis, section 4.4.3) may be delivered in any order; real time
//! orders them all the same.
//!
//! Real time alone would need an edge for each pair of messages. It is a chain of moments instead:
//! each message leads to the moment of its end, and the last moment before a multicast leads to its
//! message.

use super::Violation;
use crate::of::multicast::history::{Entry, History};
use meridian_core::{GroupId, MessageId, ProcessId, Time};
use meridian_multicast::Touches;
use std::collections::{BTreeMap, BTreeSet};

/// After what of a message another one must be multicast to be ordered after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// After its first delivery anywhere: atomic global order, as the thesis defines it.
    Delivered,
    /// After its delivery in each of its groups, when its client can have the answer: what
    /// linearizability needs.
    Completed,
}

/// Judges order in real time.
///
/// # Errors
/// A cycle, in words.
pub fn check_real_time(history: &History, end: End) -> Result<(), Violation> {
    judge(history, end, &history.touches())
}

fn judge(
    history: &History,
    end: End,
    touches: &BTreeMap<MessageId, Touches>,
) -> Result<(), Violation> {
    let mut graph = Graph::default();
    for life in history.lives()? {
        add_deliveries(&mut graph, life.process, &life.sequence, touches);
    }
    add_moments(&mut graph, history, end);
    match graph.cycle() {
        None => Ok(()),
        Some(cycle) => Err(format!("a cycle: {}", in_words(&cycle))),
    }
}

/// A place in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Message(MessageId),
    /// Something ended.
    Moment(Time),
}

/// What puts one place before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    DeliveredBy(ProcessId),
    RealTime,
}

/// Edges between conflicting messages, as many as keys: who conflicts through a key is chained
/// through it.
fn add_deliveries(
    graph: &mut Graph,
    process: ProcessId,
    sequence: &[MessageId],
    touches: &BTreeMap<MessageId, Touches>,
) {
    let reason = Reason::DeliveredBy(process);
    let mut all: Option<MessageId> = None;
    // The last one of each key since that.
    let mut last: BTreeMap<u64, MessageId> = BTreeMap::new();
    for id in sequence {
        let after = Place::Message(*id);
        let mut add = |before: MessageId| graph.add(Place::Message(before), after, reason);
        match touches.get(id).unwrap_or(&Touches::All) {
            Touches::All => {
                all.into_iter().chain(std::mem::take(&mut last).into_values()).for_each(&mut add);
                all = Some(*id);
            }
            Touches::Keys(keys) => {
                all.into_iter().for_each(&mut add);
                keys.iter().filter_map(|key| last.insert(*key, *id)).for_each(&mut add);
            }
        }
    }
}

/// When each message ended, if it did.
fn ends(history: &History, end: End) -> BTreeMap<MessageId, Time> {
    let mut first: BTreeMap<MessageId, BTreeMap<GroupId, Time>> = BTreeMap::new();
    for entry in &history.entries {
        if let Entry::Deliver { process, id, t, .. } = entry {
            let known = first.entry(*id).or_default().entry(process.group).or_insert(*t);
            *known = (*known).min(*t);
        }
    }
    let sent = history.messages();
    let ended = first.into_iter().filter_map(|(id, groups)| {
        let times = groups.values().copied();
        let all = sent.get(&id).is_some_and(|dest| groups.len() == dest.len());
        let at = match end {
            End::Delivered => times.min(),
            End::Completed => times.max().filter(|_| all),
        };
        at.map(|at| (id, at))
    });
    ended.collect()
}

fn add_moments(graph: &mut Graph, history: &History, end: End) {
    let ends = ends(history, end);
    let moments: BTreeSet<_> = ends.values().copied().collect();
    for (before, after) in moments.iter().zip(moments.iter().skip(1)) {
        graph.add(Place::Moment(*before), Place::Moment(*after), Reason::RealTime);
    }
    for (id, at) in ends {
        graph.add(Place::Message(id), Place::Moment(at), Reason::RealTime);
    }
    for entry in &history.entries {
        if let Entry::Multicast { id, t, .. } = entry
            && let Some(last) = moments.range(..*t).next_back()
        {
            graph.add(Place::Moment(*last), Place::Message(*id), Reason::RealTime);
        }
    }
}

/// Places are numbered as they come.
#[derive(Default)]
struct Graph {
    numbers: BTreeMap<Place, usize>,
    places: Vec<Place>,
    after: Vec<Vec<(usize, Reason)>>,
}

impl Graph {
    fn number(&mut self, place: Place) -> usize {
        let next = self.places.len();
        let number = *self.numbers.entry(place).or_insert(next);
        if number == next {
            self.places.push(place);
            self.after.push(Vec::new());
        }
        number
    }

    fn add(&mut self, before: Place, after: Place, reason: Reason) {
        let (before, after) = (self.number(before), self.number(after));
        self.after[before].push((after, reason));
    }

    /// Takes away what nothing precedes until nothing is left, or only cycles and what follows
    /// them.
    fn cycle(&self) -> Option<Vec<(Place, Reason)>> {
        let mut before = vec![0_usize; self.places.len()];
        for (after, _) in self.after.iter().flatten() {
            before[*after] += 1;
        }
        let mut free: Vec<_> = (0..before.len()).filter(|place| before[*place] == 0).collect();
        let mut left = before.len();
        while let Some(place) = free.pop() {
            left -= 1;
            for (after, _) in &self.after[place] {
                before[*after] -= 1;
                if before[*after] == 0 {
                    free.push(*after);
                }
            }
        }
        if left == 0 {
            return None;
        }
        // Each that is left has one of those left before it: going back, we come round.
        let mut back: Vec<Option<(usize, Reason)>> = vec![None; before.len()];
        for place in (0..before.len()).filter(|place| before[*place] > 0) {
            for (after, reason) in &self.after[place] {
                back[*after] = Some((place, *reason));
            }
        }
        let mut way: Vec<(usize, Reason)> = Vec::new();
        let mut place = before.iter().position(|count| *count > 0)?;
        loop {
            let (earlier, reason) = back[place]?;
            if let Some(start) = way.iter().position(|(seen, _)| *seen == earlier) {
                way.push((earlier, reason));
                let cycle = way[start + 1..].iter().rev();
                return Some(cycle.map(|(at, reason)| (self.places[*at], *reason)).collect());
            }
            way.push((earlier, reason));
            place = earlier;
        }
    }
}

/// Each message of the cycle, and why the next one is after it. Moments are left out.
fn in_words(cycle: &[(Place, Reason)]) -> String {
    let messages = cycle.iter().filter_map(|(place, reason)| match place {
        Place::Message(id) => Some((*id, *reason)),
        Place::Moment(_) => None,
    });
    let mut words = String::new();
    for (id, reason) in messages.clone() {
        words += &match reason {
            Reason::DeliveredBy(process) => format!("{id} < (at {process}) "),
            Reason::RealTime => format!("{id} < (in real time) "),
        };
    }
    let first = messages.map(|(id, _)| id.to_string()).next();
    words + &first.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;

    const BOTH: [End; 2] = [End::Delivered, End::Completed];

    /// 2 is multicast after 1 was delivered in group 0, and delivered before it in group 1.
    fn overtaken() -> History {
        let mut history = groups(2, 1);
        history.push(multicast(1, &[0, 1], 0));
        history.push(deliver_at(0, 0, 1, 1, 10));
        history.push(multicast(2, &[1], 20));
        history.push(deliver_at(1, 0, 2, 1, 25));
        history.push(deliver_at(1, 0, 1, 2, 30));
        history
    }

    /// Figure 5.3: atomic global order asks for more than linearizability.
    #[test]
    fn the_first_delivery_binds_only_atomic_global_order() {
        let said = check_real_time(&overtaken(), End::Delivered).unwrap_err();
        assert_eq!(said, "a cycle: 9.2 < (at g1/n100) 9.1 < (in real time) 9.2");
        assert_eq!(check_real_time(&overtaken(), End::Completed), Ok(()));
    }

    /// Figure 5.2: the query 3 sees the second write and not the first one, which had ended before.
    #[test]
    fn a_write_that_ended_is_seen() {
        let mut history = groups(2, 1);
        history.push(multicast(3, &[0, 1], 0));
        history.push(multicast(1, &[0], 0));
        history.push(deliver_at(0, 0, 3, 1, 10));
        history.push(deliver_at(0, 0, 1, 2, 20));
        history.push(multicast(2, &[1], 30));
        history.push(deliver_at(1, 0, 2, 1, 40));
        history.push(deliver_at(1, 0, 3, 2, 50));
        for end in BOTH {
            let said = check_real_time(&history, end).unwrap_err();
            assert!(["9.1", "9.2", "9.3"].iter().any(|id| said.contains(id)), "{said}");
        }
    }

    /// Each pair of messages that share a group is ordered as it should be: the chain is not.
    #[test]
    fn a_chain_over_three_groups_breaks_both() {
        let mut history = groups(3, 1);
        history.push(multicast(2, &[0, 1], 0));
        history.push(multicast(3, &[1, 2], 0));
        history.push(deliver_at(2, 0, 3, 1, 10));
        history.push(multicast(4, &[2], 11));
        history.push(deliver_at(2, 0, 4, 2, 12));
        history.push(multicast(1, &[0], 13));
        history.push(deliver_at(0, 0, 1, 1, 14));
        history.push(deliver_at(0, 0, 2, 2, 20));
        history.push(deliver_at(1, 0, 2, 1, 21));
        history.push(deliver_at(1, 0, 3, 2, 22));
        let said = check_real_time(&history, End::Completed).unwrap_err();
        let cycle = ["9.1 < (at g0/n0) 9.2", "9.3 < (at g2/n200) 9.4", "9.4 < (in real time) 9.1"];
        assert!(cycle.iter().any(|part| said.contains(part)), "{said}");
        assert!(check_real_time(&history, End::Delivered).is_err());
    }

    #[test]
    fn what_overlaps_is_not_ordered() {
        let mut history = overtaken();
        history.entries.retain(|entry| !matches!(entry, Entry::Multicast { .. }));
        history.push(multicast(1, &[0, 1], 0));
        history.push(multicast(2, &[1], 10));
        for end in BOTH {
            assert_eq!(check_real_time(&history, end), Ok(()));
        }
    }

    /// The cycle needs the order of 1 and 2 in group 1, which matters only if they conflict.
    #[test]
    fn only_conflicting_messages_are_ordered_by_delivery() {
        let judge = |one: Touches, two: Touches| {
            let touches = BTreeMap::from([(id(1), one), (id(2), two)]);
            judge(&overtaken(), End::Delivered, &touches)
        };
        assert_eq!(judge(Touches::keys([1]), Touches::keys([2])), Ok(()));
        assert!(judge(Touches::keys([1, 3]), Touches::keys([3])).is_err());
        assert!(judge(Touches::All, Touches::keys([3])).is_err());
        assert!(judge(Touches::keys([3]), Touches::All).is_err());
    }

    /// 1 and 3 do not conflict, but 2 may do so with both; 1 is multicast after 3 was delivered in
    /// group 1.
    #[test]
    fn conflicts_chain_through_keys_and_through_what_touches_all() {
        let mut history = groups(2, 1);
        history.push(multicast(2, &[0], 0));
        history.push(multicast(3, &[0, 1], 0));
        history.push(deliver_at(1, 0, 3, 1, 10));
        history.push(multicast(1, &[0], 20));
        for (position, message) in [(1, 1), (2, 2), (3, 3)] {
            history.push(deliver_at(0, 0, message, position, 30));
        }
        let judge = |middle: Touches| {
            let (one, three) = (Touches::keys([1]), Touches::keys([3]));
            let touches = BTreeMap::from([(id(1), one), (id(2), middle), (id(3), three)]);
            judge(&history, End::Delivered, &touches)
        };
        assert!(judge(Touches::All).is_err());
        assert!(judge(Touches::keys([1, 3])).is_err());
        assert_eq!(judge(Touches::keys([1])), Ok(()));
        assert_eq!(judge(Touches::keys([3])), Ok(()));
    }

    #[test]
    fn what_is_not_delivered_everywhere_has_not_completed() {
        let mut history = overtaken();
        history.entries.pop();
        history.push(deliver(1, 0, 3, 2));
        assert_eq!(check_real_time(&history, End::Completed), Ok(()));
    }

    #[test]
    fn tens_of_thousands_of_messages() {
        let mut history = groups(3, 1);
        let mut touches = BTreeMap::new();
        for message in 1..=30_000 {
            history.push(multicast(message, &[0, 1, 2], message));
            touches.insert(id(message), Touches::keys([message % 7, 100 + message % 11]));
            for group in 0..3 {
                history.push(deliver_at(group, 0, message, message, message));
            }
        }
        for end in BOTH {
            assert_eq!(judge(&history, end, &touches), Ok(()));
        }
        history.push(multicast(30_001, &[0, 1], 30_001));
        history.push(deliver_at(0, 0, 30_001, 30_001, 30_002));
        history.push(multicast(30_002, &[1], 30_003));
        history.push(deliver_at(1, 0, 30_002, 30_001, 30_004));
        history.push(deliver_at(1, 0, 30_001, 30_002, 30_005));
        assert!(judge(&history, End::Delivered, &touches).is_err());
        assert_eq!(judge(&history, End::Completed, &touches), Ok(()));
    }
}
