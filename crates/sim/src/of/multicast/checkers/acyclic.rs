//! Global total order: "delivered before, somewhere" has no cycle, as far as messages conflict.
//! With real time it is [`super::check_real_time`].

use super::Violation;
use super::orders::{Bits, Orders};
use crate::of::multicast::history::History;
use std::collections::{BTreeMap, BTreeSet};

/// Judges global total order.
///
/// # Errors
/// A cycle.
pub fn check_acyclic(history: &History) -> Result<(), Violation> {
    let orders = Orders::new(history)?;
    if orders.total && cycle(&graph(&orders, true)).is_none() {
        return Ok(());
    }
    let graph = graph(&orders, false);
    let Some(cycle) = cycle(&graph) else { return Ok(()) };
    let names: Vec<_> =
        cycle.iter().filter_map(|at| orders.ids.get(*at)).map(ToString::to_string).collect();
    Err(format!("a cycle of deliveries: {}", names.join(" < ")))
}

/// For each message those after it; only the next ones if `sparse`, which is enough if all
/// conflict.
fn graph(orders: &Orders, sparse: bool) -> Vec<Bits> {
    let count = orders.ids.len();
    let mut graph = vec![Bits::new(count); count];
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
    graph
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
    use crate::of::multicast::checkers::examples::*;
    use crate::of::multicast::checkers::{End, check_real_time};
    use meridian_multicast::Touches;

    #[test]
    fn an_order_without_cycle() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 2]), (2, &[0, 1]), (3, &[1, 2])];
        let good = runs(sent, &[&[1, 2], &[2, 3], &[1, 3]]);
        assert_eq!(check_acyclic(&good), Ok(()));
    }

    /// The example below the property in the thesis.
    #[test]
    fn a_cycle_over_three_groups() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 2]), (2, &[0, 1]), (3, &[1, 2])];
        let bad = runs(sent, &[&[1, 2], &[2, 3], &[3, 1]]);
        let said = check_acyclic(&bad).unwrap_err();
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
        assert_eq!(check_acyclic(&history), Ok(()));
        assert!(check_real_time(&history, End::Delivered).is_err());
    }

    #[test]
    fn real_time_forbids_nothing_that_overlaps() {
        let mut history = groups(2, 1);
        history.push(multicast(1, &[0, 1], 0));
        history.push(multicast(2, &[1], 10));
        history.push(deliver_at(0, 0, 1, 1, 10));
        history.push(deliver_at(1, 0, 2, 1, 25));
        history.push(deliver_at(1, 0, 1, 2, 30));
        assert_eq!(check_real_time(&history, End::Delivered), Ok(()));
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
        assert_eq!(check_acyclic(&history), Ok(()));
        assert_eq!(check_real_time(&history, End::Delivered), Ok(()));
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
            check_acyclic(&history)
        };
        assert_eq!(of([Touches::keys([1]), Touches::keys([1, 2]), Touches::keys([2])]), Ok(()));
        assert!(of([Touches::keys([1]), Touches::keys([1, 2]), Touches::All]).is_err());
    }
}
