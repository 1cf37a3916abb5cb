//! Global total order: "delivered before, somewhere" has no cycle, as far as messages conflict. With real
//! time it is atomic global order: a message multicast after another was delivered anywhere does not come
//! before it.

use super::Violation;
use super::orders::{Bits, Orders};
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

/// Judges global total order.
///
/// # Errors
/// A cycle.
pub fn check_acyclic(history: &History, real_time: RealTime) -> Result<(), Violation> {
    let orders = Orders::new(history)?;
    let moments = match real_time {
        RealTime::Ignored => Moments::default(),
        RealTime::Counts => Moments::of(history),
    };
    if orders.total && cycle(&graph(&orders, &moments, true)).is_none() {
        return Ok(());
    }
    let graph = graph(&orders, &moments, false);
    let Some(cycle) = cycle(&graph) else { return Ok(()) };
    let names: Vec<_> =
        cycle.iter().filter_map(|at| orders.ids.get(*at)).map(ToString::to_string).collect();
    Err(format!("a cycle of deliveries: {}", names.join(" < ")))
}

/// For each place those after it; only the next ones if `sparse`, which is enough if all conflict. Places are
/// the messages, then the moments.
fn graph(orders: &Orders, moments: &Moments, sparse: bool) -> Vec<Bits> {
    let count = orders.ids.len();
    let mut graph = vec![Bits::new(count + moments.times.len()); count + moments.times.len()];
    for life in &orders.lives {
        // Backward: what was delivered after each message, and conflicts with it.
        let mut after = Bits::new(count);
        for message in life.sequence.iter().rev() {
            graph[*message].add(&orders.conflicts[*message], &after, true);
            if sparse {
                after = Bits::new(count);
            }
            after.insert(*message);
        }
    }
    // A chain of moments, entered by a message at its first delivery and left by each message that was
    // multicast later: as many edges as events instead of one for each pair.
    for at in 1..moments.times.len() {
        graph[count + at - 1].insert(count + at);
    }
    let number: BTreeMap<_, _> = orders.ids.iter().copied().zip(0..).collect();
    for (id, t) in &moments.first {
        let at = moments.times.partition_point(|time| time < t);
        graph[number[id]].insert(count + at);
    }
    for (id, t) in &moments.sent {
        // The last moment before it was multicast.
        let later = moments.times.partition_point(|time| time < t);
        if later > 0 && moments.first.contains_key(id) {
            graph[count + later - 1].insert(number[id]);
        }
    }
    graph
}

/// When what happened.
#[derive(Default)]
struct Moments {
    first: BTreeMap<MessageId, Time>,
    sent: Vec<(MessageId, Time)>,
    /// The times of first deliveries, ascending.
    times: Vec<Time>,
}

impl Moments {
    fn of(history: &History) -> Self {
        let mut moments = Moments::default();
        for entry in &history.entries {
            match entry {
                Entry::Deliver { id, t, .. } => {
                    let first = moments.first.entry(*id).or_insert(*t);
                    *first = (*first).min(*t);
                }
                Entry::Multicast { id, t, .. } => moments.sent.push((*id, *t)),
                _ => {}
            }
        }
        let times: BTreeSet<_> = moments.first.values().copied().collect();
        moments.times = times.into_iter().collect();
        moments
    }
}

/// Takes away what nothing precedes until nothing is left, or only cycles and what follows them.
fn cycle(graph: &[Bits]) -> Option<Vec<usize>> {
    let mut before = vec![0_usize; graph.len()];
    for after in graph.iter().flat_map(Bits::iter) {
        before[after] += 1;
    }
    let mut left: BTreeSet<usize> = (0..graph.len()).collect();
    let mut free: Vec<_> = (0..graph.len()).filter(|place| before[*place] == 0).collect();
    while let Some(place) = free.pop() {
        left.remove(&place);
        for after in graph[place].iter() {
            before[after] -= 1;
            if before[after] == 0 {
                free.push(after);
            }
        }
    }
    let mut backward: BTreeMap<usize, usize> = BTreeMap::new();
    for place in &left {
        backward.extend(graph[*place].iter().map(|after| (after, *place)));
    }
    // Each that is left has one of those left before it: going back, we come round.
    let mut way = vec![*left.first()?];
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
    use meridian_multicast::Touches;

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

    #[test]
    fn messages_that_do_not_conflict_close_no_cycle() {
        let of = |touches: [Touches; 3]| {
            let mut history = groups(3, 1);
            for (n, (dest, touches)) in (1..).zip([[0, 2], [0, 1], [1, 2]].into_iter().zip(touches))
            {
                history.push(touching(n, &dest, touches));
            }
            for (group, order) in [(0, [1, 2]), (1, [2, 3]), (2, [3, 1])] {
                for (position, message) in (1..).zip(order) {
                    history.push(deliver(group, 0, message, position));
                }
            }
            check_acyclic(&history, RealTime::Ignored)
        };
        assert_eq!(of([Touches::keys([1]), Touches::keys([1, 2]), Touches::keys([2])]), Ok(()));
        assert!(of([Touches::keys([1]), Touches::keys([1, 2]), Touches::All]).is_err());
    }
}
