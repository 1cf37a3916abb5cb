//! Uniform agreement and validity: judged at the end of a run, when all faults are over and
//! everything has had time to arrive.

use super::Violation;
use crate::of::multicast::history::History;
use meridian_core::{ClientId, MessageId, ProcessId};
use std::collections::{BTreeMap, BTreeSet};

/// Uniform agreement: what any process delivered in any of its lives, all running destinations have
/// delivered. In which order is not judged here.
///
/// # Errors
/// The first violation.
pub fn check_agreement(history: &History) -> Result<(), Violation> {
    let anywhere = history.lives()?.into_iter().flat_map(|life| life.sequence).collect();
    everywhere(history, &delivered(history)?, &anywhere)
}

/// Validity: what the clients `correct` multicast, all running destinations have delivered.
///
/// # Errors
/// The first violation.
pub fn check_validity(history: &History, correct: &BTreeSet<ClientId>) -> Result<(), Violation> {
    let sent = history.messages();
    let wanted = sent.into_keys().filter(|id| correct.contains(&id.client)).collect();
    everywhere(history, &delivered(history)?, &wanted)
}

fn delivered(history: &History) -> Result<BTreeMap<ProcessId, BTreeSet<MessageId>>, Violation> {
    let sequences = history.sequences()?.into_iter();
    Ok(sequences.map(|(process, sequence)| (process, sequence.into_iter().collect())).collect())
}

fn everywhere(
    history: &History,
    delivered: &BTreeMap<ProcessId, BTreeSet<MessageId>>,
    wanted: &BTreeSet<MessageId>,
) -> Result<(), Violation> {
    let (running, sent) = (history.running(), history.messages());
    for id in wanted {
        let Some(dest) = sent.get(id) else { return Err(format!("nobody has multicast {id}")) };
        let mut members = history.members(dest).filter(|process| running.contains(process));
        if let Some(missing) = members.find(|process| !delivered[process].contains(id)) {
            return Err(format!("{missing} has not delivered {id}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;
    use crate::of::multicast::history::Entry;

    #[test]
    fn all_or_nobody() {
        let good = runs(&[(1, &[0, 1]), (2, &[0])], &[&[1], &[1]]);
        assert_eq!(check_agreement(&good), Ok(()));
        let bad = runs(&[(1, &[0, 1])], &[&[1], &[]]);
        assert!(check_agreement(&bad).unwrap_err().contains("has not delivered 9.1"));
    }

    #[test]
    fn a_crashed_process_binds_the_others() {
        let mut history = runs(&[(1, &[0, 1])], &[&[1], &[]]);
        history.push(Entry::Crash(process(0, 0)));
        assert!(check_agreement(&history).is_err());
    }

    #[test]
    fn what_a_restart_loses_must_come_back() {
        let mut history = runs(&[(1, &[0])], &[&[1]]);
        history.push(Entry::Crash(process(0, 0)));
        history.push(Entry::Recover(process(0, 0)));
        history.push(deliver(0, 0, 2, 1));
        assert!(check_agreement(&history).is_err());
    }

    #[test]
    fn nothing_is_expected_of_who_is_down() {
        let mut history = runs(&[(1, &[0, 1])], &[&[1], &[]]);
        history.push(Entry::Crash(process(1, 0)));
        assert_eq!(check_agreement(&history), Ok(()));
        history.push(Entry::Recover(process(1, 0)));
        assert!(check_agreement(&history).is_err());
    }

    #[test]
    fn what_a_correct_client_sends_arrives() {
        let history = runs(&[(1, &[0])], &[&[]]);
        assert!(check_validity(&history, &BTreeSet::from([ClientId(9)])).is_err());
        assert_eq!(check_validity(&history, &BTreeSet::from([ClientId(8)])), Ok(()));
    }
}
