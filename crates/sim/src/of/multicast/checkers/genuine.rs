//! Genuineness: only who multicasts a message and its destinations take steps for it.

use super::Violation;
use crate::of::multicast::history::{Entry, History};
use std::collections::BTreeSet;

/// Judges genuineness.
///
/// # Errors
/// The first step of a bystander.
pub fn check_genuine(history: &History) -> Result<(), Violation> {
    let sent = history.messages();
    let mut asked = BTreeSet::new();
    for entry in &history.entries {
        match entry {
            Entry::Asked { process, id } => drop(asked.insert((*process, *id))),
            Entry::Step { process, id } => {
                let concerned = sent.get(id).is_some_and(|dest| dest.contains(&process.group));
                if !concerned && !asked.contains(&(*process, *id)) {
                    return Err(format!("{process} takes a step for {id}, a bystander"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;

    #[test]
    fn senders_and_destinations_only() {
        let mut history = groups(3, 1);
        history.push(multicast(1, &[0, 1], 0));
        history.push(Entry::Asked { process: process(2, 0), id: id(1) });
        for group in 0..3 {
            history.push(Entry::Step { process: process(group, 0), id: id(1) });
        }
        assert_eq!(check_genuine(&history), Ok(()));
    }

    #[test]
    fn a_bystander_is_seen() {
        let mut history = groups(3, 1);
        history.push(multicast(1, &[0, 1], 0));
        history.push(Entry::Step { process: process(2, 0), id: id(1) });
        assert!(check_genuine(&history).unwrap_err().contains("bystander"));
    }
}
