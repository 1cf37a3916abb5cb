//! Uniform prefix order: of the messages that two processes both are to deliver, one has delivered
//! a prefix of what the other has. Crashed processes included: none has holes.
//!
//! As the thesis prints it ("either p delivers m' before m or q delivers m before m'") it is the
//! same: where two sequences first differ, that fails; where one is a prefix, it holds.

use super::Violation;
use crate::history::History;
use meridian_core::{GroupId, MessageId, ProcessId};
use std::collections::BTreeMap;

/// Judges uniform prefix order.
///
/// # Errors
/// The first violation.
pub fn check_prefix(history: &History) -> Result<(), Violation> {
    let (sequences, sent) = (history.sequences()?, history.messages());
    for (first, group) in history.groups.keys().enumerate() {
        for other in history.groups.keys().skip(first) {
            let both = |id: &MessageId| {
                sent.get(id).is_some_and(|dest| dest.contains(group) && dest.contains(other))
            };
            let shared = shared(&sequences, &[*group, *other], both);
            check_group_pair(&shared)?;
        }
    }
    Ok(())
}

/// What the processes of two groups delivered of the messages that go to both.
fn shared(
    sequences: &BTreeMap<ProcessId, Vec<MessageId>>,
    groups: &[GroupId],
    both: impl Fn(&MessageId) -> bool,
) -> Vec<(ProcessId, Vec<MessageId>)> {
    let of_groups = sequences.iter().filter(|(process, _)| groups.contains(&process.group));
    let only_both = |sequence: &[MessageId]| sequence.iter().copied().filter(&both).collect();
    of_groups.map(|(process, sequence)| (*process, only_both(sequence))).collect()
}

/// If each is a prefix of the longest, each is a prefix of each that is longer.
fn check_group_pair(shared: &[(ProcessId, Vec<MessageId>)]) -> Result<(), Violation> {
    let Some((leader, longest)) = shared.iter().max_by_key(|(_, sequence)| sequence.len()) else {
        return Ok(());
    };
    for (process, sequence) in shared {
        let differ = sequence.iter().zip(longest).find(|(one, other)| one != other);
        if let Some((one, other)) = differ {
            return Err(format!("{process} delivers {one} where {leader} delivers {other}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::examples::*;

    #[test]
    fn one_may_lag_behind() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 1]), (2, &[0]), (3, &[0, 1])];
        assert_eq!(check_prefix(&runs(sent, &[&[1, 2, 3], &[1]])), Ok(()));
    }

    #[test]
    fn a_hole_is_rejected() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 1]), (2, &[0, 1])];
        let bad = runs(sent, &[&[1, 2], &[2]]);
        assert!(check_prefix(&bad).unwrap_err().contains("where"));
    }

    #[test]
    fn two_orders_are_rejected() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 1]), (2, &[0, 1])];
        assert!(check_prefix(&runs(sent, &[&[1, 2], &[2, 1]])).is_err());
    }
}
