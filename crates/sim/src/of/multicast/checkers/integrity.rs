//! Integrity: a process delivers a message at most once in a life, only if it was multicast before,
//! and only at its destinations.

use super::Violation;
use crate::of::multicast::history::{Entry, History};
use meridian_core::MessageId;
use std::collections::{BTreeMap, BTreeSet};

/// Judges integrity.
///
/// # Errors
/// The first violation.
pub fn check_integrity(history: &History) -> Result<(), Violation> {
    let mut sent: BTreeMap<MessageId, &[_]> = BTreeMap::new();
    for entry in &history.entries {
        match entry {
            Entry::Multicast { id, dest, .. } if sent.insert(*id, dest).is_some() => {
                return Err(format!("{id} is multicast twice under one name"));
            }
            Entry::Deliver { process, id, .. } => match sent.get(id) {
                None => return Err(format!("{process} delivers {id}, which nobody has multicast")),
                Some(dest) if !dest.contains(&process.group) => {
                    return Err(format!("{process} delivers {id}, which goes to {dest:?}"));
                }
                Some(_) => {}
            },
            _ => {}
        }
    }
    for life in history.lives()? {
        let mut seen = BTreeSet::new();
        if let Some(twice) = life.sequence.iter().find(|id| !seen.insert(**id)) {
            return Err(format!("{} delivers {twice} twice", life.process));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;

    #[test]
    fn each_once_at_its_destinations() {
        let good = runs(&[(1, &[0]), (2, &[0, 1])], &[&[1, 2], &[2]]);
        assert_eq!(check_integrity(&good), Ok(()));
    }

    #[test]
    fn twice_is_too_much() {
        let bad = runs(&[(1, &[0])], &[&[1, 1]]);
        assert!(check_integrity(&bad).unwrap_err().contains("twice"));
    }

    #[test]
    fn nobody_sent_it() {
        assert!(check_integrity(&runs(&[], &[&[1]])).unwrap_err().contains("nobody"));
    }

    #[test]
    fn it_was_for_others() {
        let bad = runs(&[(1, &[1])], &[&[1], &[1]]);
        assert!(check_integrity(&bad).unwrap_err().contains("goes to"));
    }
}
