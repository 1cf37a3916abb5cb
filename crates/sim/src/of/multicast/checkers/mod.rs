//! The properties of atomic multicast (thesis, section 2.2.1), one file each, judged on a recorded
//! [`History`]. Each answers with the first violation in words.
//!
//! That a process leaves no hole is judged by [`History::lives`], which all of them start from. The
//! order of two messages counts only if they conflict; in a run in which all do these are the plain
//! properties.

mod acyclic;
mod agreement;
mod genuine;
mod integrity;
mod latency;
mod orders;
mod prefix;
mod realtime;
mod timestamps;

pub use acyclic::check_acyclic;
pub use agreement::{check_agreement, check_validity};
pub use genuine::check_genuine;
pub use integrity::check_integrity;
pub use latency::check_latency;
pub use prefix::check_prefix;
pub use realtime::{End, check_real_time};
pub(crate) use timestamps::Ranks;
pub use timestamps::{SafeTimes, check_timestamps};

use crate::of::multicast::history::History;

pub use crate::trial::Violation;

/// What must hold at any moment of a run, by name.
type Property = (&'static str, fn(&History) -> Result<(), Violation>);

/// See [`check_safety`].
const SAFETY: [Property; 5] = [
    ("integrity", check_integrity),
    ("timestamps", check_timestamps),
    ("prefix order", check_prefix),
    ("global total order", check_acyclic),
    ("genuineness", check_genuine),
];

/// All that must hold at any moment of a run.
///
/// # Errors
/// The first violation, after the name of its property.
pub fn check_safety(history: &History) -> Result<(), Violation> {
    SAFETY
        .iter()
        .try_for_each(|(name, check)| check(history).map_err(|what| format!("{name}: {what}")))
}

#[cfg(test)]
pub(crate) mod examples {
    //! Small histories.

    use crate::of::multicast::history::{Entry, History};
    use meridian_core::{ClientId, GroupId, MessageId, NodeId, Position, ProcessId, Time};
    use meridian_multicast::{Timestamp, Touches};

    /// Groups of so many processes.
    pub fn groups(groups: u16, members: u16) -> History {
        let of = |group| (0..members).map(|node| process(group, node)).collect();
        History::new((0..groups).map(|group| (GroupId(group), of(group))).collect())
    }

    pub fn process(group: u16, node: u16) -> ProcessId {
        ProcessId { group: GroupId(group), node: NodeId(group * 100 + node) }
    }

    pub fn id(sequence: u64) -> MessageId {
        MessageId { client: ClientId(9), sequence }
    }

    pub fn multicast(sequence: u64, dest: &[u16], t: u64) -> Entry {
        let dest = dest.iter().copied().map(GroupId).collect();
        let (touches, after) = (Touches::All, Timestamp(0));
        Entry::Multicast { id: id(sequence), dest, touches, after, t: Time(t) }
    }

    /// A message multicast at the beginning.
    pub fn touching(sequence: u64, dest: &[u16], touches: Touches) -> Entry {
        let dest = dest.iter().copied().map(GroupId).collect();
        let after = Timestamp(0);
        Entry::Multicast { id: id(sequence), dest, touches, after, t: Time(0) }
    }

    pub fn deliver(group: u16, node: u16, sequence: u64, position: u64) -> Entry {
        deliver_at(group, node, sequence, position, 0)
    }

    pub fn deliver_at(group: u16, node: u16, sequence: u64, position: u64, t: u64) -> Entry {
        let (process, position) = (process(group, node), Position(position));
        Entry::Deliver { process, id: id(sequence), ts: Timestamp(sequence), position, t: Time(t) }
    }

    /// One process in each of the groups, and what each delivers.
    pub fn runs(sent: &[(u64, &[u16])], delivered: &[&[u64]]) -> History {
        let mut history = groups(delivered.len() as u16, 1);
        for (sequence, dest) in sent {
            history.push(multicast(*sequence, dest, 0));
        }
        for (group, sequence) in (0..).zip(delivered) {
            for (position, message) in (1..).zip(*sequence) {
                history.push(deliver(group, 0, *message, position));
            }
        }
        history
    }
}
