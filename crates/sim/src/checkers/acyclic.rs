//! Global total order: "delivered before, somewhere" has no cycle. With real time it is atomic
//! global order: a message multicast after another was delivered anywhere does not come before it.

use super::Violation;
use crate::history::{Entry, History};
use meridian_core::{MessageId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Whether real time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealTime {
    /// Only the orders of delivery count.
    Ignored,
    /// A message that was multicast after another was first delivered is after it.
    Counts,
}

/// A place in the graph: a message, or a moment of the run (an index into the sorted times).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Message(MessageId),
    Moment(usize),
}

type Graph = BTreeMap<Place, BTreeSet<Place>>;

/// Judges global total order.
///
/// # Errors
/// A cycle.
pub fn check_acyclic(history: &History, real_time: RealTime) -> Result<(), Violation> {
    let mut graph = Graph::new();
    for sequence in history.sequences()?.values() {
        for pair in sequence.windows(2) {
            add(&mut graph, Place::Message(pair[0]), Place::Message(pair[1]));
        }
    }
    if real_time == RealTime::Counts {
        add_moments(history, &mut graph);
    }
    match cycle(&graph) {
        None => Ok(()),
        Some(cycle) => {
            let of = |place: &Place| match place {
                Place::Message(id) => Some(id.to_string()),
                Place::Moment(_) => None,
            };
            let names: Vec<_> = cycle.iter().filter_map(of).collect();
            Err(format!("a cycle of deliveries: {}", names.join(" < ")))
        }
    }
}

fn add(graph: &mut Graph, before: Place, after: Place) {
    graph.entry(after).or_default();
    graph.entry(before).or_default().insert(after);
}

/// A chain of moments, entered by a message at its first delivery and left by each message that was
/// multicast later: as many edges as events instead of one for each pair.
fn add_moments(history: &History, graph: &mut Graph) {
    let mut first: BTreeMap<MessageId, Time> = BTreeMap::new();
    let mut sent = Vec::new();
    for entry in &history.entries {
        match entry {
            Entry::Deliver { id, t, .. } => {
                first.entry(*id).and_modify(|first| *first = (*first).min(*t)).or_insert(*t);
            }
            Entry::Multicast { id, t, .. } => sent.push((*id, *t)),
            _ => {}
        }
    }
    let times: BTreeSet<_> = first.values().copied().collect();
    let times: Vec<_> = times.into_iter().collect();
    for at in 1..times.len() {
        add(graph, Place::Moment(at - 1), Place::Moment(at));
    }
    for (id, t) in &first {
        let at = times.partition_point(|time| time < t);
        add(graph, Place::Message(*id), Place::Moment(at));
    }
    for (id, t) in sent {
        // The last moment before it was multicast.
        let later = times.partition_point(|time| *time < t);
        if later > 0 && first.contains_key(&id) {
            add(graph, Place::Moment(later - 1), Place::Message(id));
        }
    }
}

/// Takes away what nothing precedes until nothing is left, or only cycles and what follows them.
fn cycle(graph: &Graph) -> Option<Vec<Place>> {
    let mut before: BTreeMap<Place, usize> = graph.keys().map(|place| (*place, 0)).collect();
    for after in graph.values().flatten() {
        *before.entry(*after).or_default() += 1;
    }
    let free = before.iter().filter(|(_, count)| **count == 0).map(|(place, _)| *place);
    let mut free: Vec<_> = free.collect();
    while let Some(place) = free.pop() {
        before.remove(&place);
        for after in &graph[&place] {
            let count = before.get_mut(after).expect("taken away only once nothing precedes it");
            *count -= 1;
            if *count == 0 {
                free.push(*after);
            }
        }
    }
    let mut backward: BTreeMap<Place, Place> = BTreeMap::new();
    for (place, all) in graph.iter().filter(|(place, _)| before.contains_key(place)) {
        for after in all {
            backward.insert(*after, *place);
        }
    }
    // Each that is left has one of those left before it: going back, we come round.
    let mut way = vec![*before.keys().next()?];
    loop {
        let place = backward[way.last().expect("not empty")];
        if let Some(start) = way.iter().position(|seen| *seen == place) {
            way.push(place);
            way.drain(..start);
            way.reverse();
            return Some(way);
        }
        way.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::examples::*;

    #[test]
    fn an_order_without_cycle() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 2]), (2, &[0, 1]), (3, &[1, 2])];
        let good = runs(sent, &[&[1, 2], &[2, 3], &[1, 3]]);
        assert_eq!(check_acyclic(&good, RealTime::Ignored), Ok(()));
    }

    /// The example below the property in the thesis.
    #[test]
    fn a_cycle_over_three_groups() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 2]), (2, &[0, 1]), (3, &[1, 2])];
        let bad = runs(sent, &[&[1, 2], &[2, 3], &[3, 1]]);
        let said = check_acyclic(&bad, RealTime::Ignored).unwrap_err();
        assert!(["9.1", "9.2", "9.3"].iter().all(|id| said.contains(id)), "{said}");
    }

    #[test]
    fn real_time_closes_a_cycle() {
        // 2 is multicast after 1 was delivered in group 0, and delivered before it in group 1.
        let mut history = groups(2, 1);
        history.push(multicast(1, &[0, 1], 0));
        history.push(deliver_at(0, 0, 1, 1, 10));
        history.push(multicast(2, &[1], 20));
        history.push(deliver_at(1, 0, 2, 1, 25));
        history.push(deliver_at(1, 0, 1, 2, 30));
        assert_eq!(check_acyclic(&history, RealTime::Ignored), Ok(()));
        assert!(check_acyclic(&history, RealTime::Counts).is_err());
    }

    #[test]
    fn real_time_forbids_nothing_that_overlaps() {
        let mut history = groups(2, 1);
        history.push(multicast(1, &[0, 1], 0));
        history.push(multicast(2, &[1], 10));
        history.push(deliver_at(0, 0, 1, 1, 10));
        history.push(deliver_at(1, 0, 2, 1, 25));
        history.push(deliver_at(1, 0, 1, 2, 30));
        assert_eq!(check_acyclic(&history, RealTime::Counts), Ok(()));
    }

    #[test]
    fn thousands_of_messages() {
        let mut history = groups(3, 1);
        for message in 1..=5000 {
            history.push(multicast(message, &[0, 1, 2], message));
            for group in 0..3 {
                history.push(deliver_at(group, 0, message, message, message));
            }
        }
        assert_eq!(check_acyclic(&history, RealTime::Counts), Ok(()));
    }
}
