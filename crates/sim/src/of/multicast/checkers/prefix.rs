//! Generalized uniform prefix order (thesis, section 4.4.3): of two messages that conflict and go
//! to the groups of two processes, if one of the processes delivered the one and the other the
//! other, then one of them delivered both in that order. Crashed processes and earlier lives
//! included: none has holes.
//!
//! If all messages conflict it is the uniform prefix order of section 2.2.1: of what both are to
//! deliver, one has delivered a prefix of what the other has.

use super::Violation;
use super::orders::{Bits, Order, Orders};
use crate::of::multicast::history::History;
use meridian_core::GroupId;
use std::collections::BTreeMap;

/// Judges generalized prefix order.
///
/// # Errors
/// The first violation.
pub fn check_prefix(history: &History) -> Result<(), Violation> {
    let orders = Orders::new(history)?;
    let groups: Vec<_> = history.groups.keys().copied().collect();
    if orders.total && groups.iter().all(|g| groups.iter().all(|h| is_prefix(&orders, *g, *h))) {
        return Ok(());
    }
    let lonely: BTreeMap<GroupId, Vec<Bits>> =
        groups.iter().map(|group| (*group, lonely(&orders, *group))).collect();
    for (at, g) in groups.iter().enumerate() {
        for h in &groups[at..] {
            let both = |m: usize| orders.dest[m].contains(g) && orders.dest[m].contains(h);
            for m in (0..orders.ids.len()).filter(|m| both(*m)) {
                let mut others = lonely[g][m].iter().filter(|other| both(*other));
                if let Some(other) = others.find(|other| lonely[h][*other].contains(m)) {
                    return Err(describe(&orders, (*g, m), (*h, other)));
                }
            }
        }
    }
    Ok(())
}

/// Whether of what goes to both groups, and all of which conflicts, each process has delivered a
/// prefix of what the one that delivered most has.
fn is_prefix(orders: &Orders, g: GroupId, h: GroupId) -> bool {
    let both = |m: &&usize| orders.dest[**m].contains(&g) && orders.dest[**m].contains(&h);
    let of = |life: &&Order| life.process.group == g || life.process.group == h;
    let lives = orders.lives.iter().filter(of);
    let runs: Vec<Vec<_>> = lives.map(|life| life.sequence.iter().filter(both).collect()).collect();
    let longest = runs.iter().max_by_key(|run| run.len());
    longest.is_none_or(|longest| runs.iter().all(|run| longest.starts_with(run)))
}

/// For each message those that conflict with it and that a process of `group` that delivered it had
/// not delivered before.
fn lonely(orders: &Orders, group: GroupId) -> Vec<Bits> {
    let count = orders.ids.len();
    let mut lonely = vec![Bits::new(count); count];
    for life in orders.lives.iter().filter(|life| life.process.group == group) {
        orders.walk(life, |m, before| lonely[m].add(&orders.conflicts[m], before, false));
    }
    lonely
}

fn describe(orders: &Orders, (g, m): (GroupId, usize), (h, other): (GroupId, usize)) -> String {
    let finds = |group: GroupId, m: usize, without: usize| {
        let position = |life: &Order, m| life.sequence.iter().position(|at| *at == m);
        let wrong = |life: &&Order| {
            life.process.group == group
                && position(life, m)
                    .is_some_and(|at| position(life, without).is_none_or(|other| other > at))
        };
        orders.lives.iter().find(wrong).map(|life| life.process.to_string()).unwrap_or_default()
    };
    let (p, q) = (finds(g, m, other), finds(h, other, m));
    let (m, other) = (orders.ids[m], orders.ids[other]);
    format!("{p} delivers {m} without {other} before it, {q} delivers {other} without {m}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;
    use crate::of::multicast::history::Entry;
    use meridian_multicast::Touches;

    #[test]
    fn one_may_lag_behind() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 1]), (2, &[0]), (3, &[0, 1])];
        assert_eq!(check_prefix(&runs(sent, &[&[1, 2, 3], &[1]])), Ok(()));
    }

    #[test]
    fn a_hole_is_rejected() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 1]), (2, &[0, 1])];
        let bad = runs(sent, &[&[1, 2], &[2]]);
        assert!(check_prefix(&bad).unwrap_err().contains("without"));
    }

    #[test]
    fn two_orders_are_rejected() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 1]), (2, &[0, 1])];
        assert!(check_prefix(&runs(sent, &[&[1, 2], &[2, 1]])).is_err());
    }

    #[test]
    fn messages_that_do_not_conflict_pass_each_other() {
        let keys = |keys: [u64; 2]| Touches::keys(keys);
        let of = |touches: [Touches; 3]| {
            let mut history = groups(2, 1);
            for (n, touches) in (1..).zip(touches) {
                history.push(touching(n, &[0, 1], touches));
            }
            for (group, order) in [(0, [1, 2, 3]), (1, [2, 1, 3])] {
                for (position, message) in (1..).zip(order) {
                    history.push(deliver(group, 0, message, position));
                }
            }
            check_prefix(&history)
        };
        assert_eq!(of([keys([1, 2]), keys([3, 4]), keys([1, 4])]), Ok(()));
        assert!(of([keys([1, 2]), keys([2, 3]), keys([1, 4])]).is_err());
        assert!(of([keys([1, 2]), Touches::All, keys([1, 4])]).is_err());
    }

    #[test]
    fn a_hole_is_a_hole_only_where_it_conflicts() {
        let of = |first: u64, second: u64| {
            let mut history = groups(2, 1);
            history.push(touching(1, &[0, 1], Touches::keys([first])));
            history.push(touching(2, &[0, 1], Touches::keys([second])));
            history.push(deliver(0, 0, 1, 1));
            history.push(deliver(1, 0, 2, 1));
            check_prefix(&history)
        };
        assert_eq!(of(1, 2), Ok(()));
        assert!(of(1, 1).is_err());
    }

    #[test]
    fn an_earlier_life_binds() {
        let mut history = groups(1, 1);
        history.push(multicast(1, &[0], 0));
        history.push(multicast(2, &[0], 0));
        history.push(deliver(0, 0, 1, 1));
        history.push(Entry::Crash(process(0, 0)));
        history.push(Entry::Recover(process(0, 0)));
        history.push(deliver(0, 0, 2, 1));
        assert!(check_prefix(&history).is_err());
    }
}
