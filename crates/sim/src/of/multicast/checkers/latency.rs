//! Latency in communication steps, of a run in which each message travels exactly one unit of time
//! and nothing else takes any (thesis, section 4.2: three without collision, five at worst).

use super::Violation;
use crate::of::multicast::history::{Entry, History};
use meridian_core::{MessageId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// Every delivery, at every destination, is at most `steps` units after the multicast; answers the
/// most steps that any took.
///
/// # Errors
/// The first that took more.
pub fn check_latency(history: &History, unit: Duration, steps: u64) -> Result<u64, Violation> {
    let unit = u64::try_from(unit.as_nanos()).map_err(|_| "a unit too long".to_string())?;
    let mut sent: BTreeMap<MessageId, Time> = BTreeMap::new();
    let mut most = 0;
    for entry in &history.entries {
        match entry {
            Entry::Multicast { id, t, .. } => drop(sent.insert(*id, *t)),
            Entry::Deliver { process, id, t, .. } => {
                let Some(start) = sent.get(id) else { continue };
                let took = (t.0 - start.0).div_ceil(unit);
                if took > steps {
                    return Err(format!("{process} delivers {id} after {took} steps"));
                }
                most = most.max(took);
            }
            _ => {}
        }
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;

    #[test]
    fn steps_are_counted() {
        let mut history = groups(1, 1);
        history.push(multicast(1, &[0], 100));
        history.push(deliver_at(0, 0, 1, 1, 130));
        let unit = Duration::from_nanos(10);
        assert_eq!(check_latency(&history, unit, 3), Ok(3));
        assert!(check_latency(&history, unit, 2).is_err());
    }
}
