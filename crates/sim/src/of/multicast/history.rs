//! What happened in a run of the multicast, as the checkers judge it.

use crate::of::multicast::words::of_groups;
use crate::trace::Filter;
use meridian_core::{GroupId, MessageId, Position, ProcessId, Time};
use meridian_multicast::{Timestamp, Touches};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A client is about to send a message for the first time.
    Multicast {
        /// Which.
        id: MessageId,
        /// Its destinations.
        dest: Vec<GroupId>,
        /// What it must be ordered with.
        touches: Touches,
        /// Its final timestamp is to be greater.
        after: Timestamp,
        /// When.
        t: Time,
    },
    /// A process was asked by a client to multicast it: it counts as a sender.
    Asked {
        /// Which process.
        process: ProcessId,
        /// Which message.
        id: MessageId,
    },
    /// A process delivered a message, perhaps again after a restart.
    Deliver {
        /// Which process.
        process: ProcessId,
        /// Which message.
        id: MessageId,
        /// Its final timestamp.
        ts: Timestamp,
        /// How many the process has delivered, with this one.
        position: Position,
        /// When.
        t: Time,
    },
    /// A process took over the state of another of its group instead of delivering so far.
    Installed {
        /// Which process.
        process: ProcessId,
        /// What the other had delivered, in its order.
        state: Vec<MessageId>,
    },
    /// A process sent or received a message of the protocol about `id`.
    Step {
        /// Which process.
        process: ProcessId,
        /// Which message.
        id: MessageId,
    },
    /// A process crashed.
    Crash(ProcessId),
    /// It runs, for the first time or again; what it found on its disk follows as deliveries.
    Recover(ProcessId),
}

impl Entry {
    /// Whether a trace with this filter tells it.
    pub fn is_told(&self, filter: &Filter) -> bool {
        let (process, id, t) = match self {
            Entry::Multicast { id, t, .. } => (None, Some(*id), Some(*t)),
            Entry::Deliver { process, id, t, .. } => (Some(*process), Some(*id), Some(*t)),
            Entry::Asked { process, id } | Entry::Step { process, id } => {
                (Some(*process), Some(*id), None)
            }
            Entry::Installed { process, .. } | Entry::Crash(process) | Entry::Recover(process) => {
                (Some(*process), None, None)
            }
        };
        let named =
            |wanted: &Option<String>, name: Option<String>| wanted.is_none() || *wanted == name;
        named(&filter.process, process.map(|process| process.to_string()))
            && named(&filter.message, id.map(|id| id.to_string()))
            && t.is_none_or(|t| (filter.from..=filter.until).contains(&t))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |t: &Time| t.0 as f64 / 1e6;
        match self {
            Entry::Multicast { id, dest, t, .. } => {
                write!(f, "{:.3} ms {id} to {} is multicast", ms(t), of_groups(dest))
            }
            Entry::Asked { process, id } => write!(f, "{process} is to multicast {id}"),
            Entry::Deliver { process, id, ts, position, t } => {
                let (ms, ts, place) = (ms(t), ts.0, position.0);
                write!(f, "{ms:.3} ms {process} delivers {id} at {ts}, as number {place}")
            }
            Entry::Installed { process, state } => {
                write!(f, "{process} takes over a state with {} deliveries", state.len())
            }
            Entry::Step { process, id } => write!(f, "{process} hears or tells of {id}"),
            Entry::Crash(process) => write!(f, "{process} crashes"),
            Entry::Recover(process) => write!(f, "{process} starts"),
        }
    }
}

/// What a process delivered between two of its crashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Which process.
    pub process: ProcessId,
    /// The messages, in order.
    pub sequence: Vec<MessageId>,
}

/// A recorded run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The members of each group.
    pub groups: BTreeMap<GroupId, Vec<ProcessId>>,
    /// What happened, in order.
    pub entries: Vec<Entry>,
    /// Steps are many and alike: each is kept once.
    steps: BTreeSet<(ProcessId, MessageId)>,
}

impl History {
    /// An empty one.
    pub fn new(groups: BTreeMap<GroupId, Vec<ProcessId>>) -> Self {
        History { groups, entries: Vec::new(), steps: BTreeSet::new() }
    }

    /// Adds an entry.
    pub fn push(&mut self, entry: Entry) {
        if let Entry::Step { process, id } = &entry
            && !self.steps.insert((*process, *id))
        {
            return;
        }
        self.entries.push(entry);
    }

    /// The destinations of each message.
    pub fn messages(&self) -> BTreeMap<MessageId, &[GroupId]> {
        let sent = self.entries.iter().filter_map(|entry| match entry {
            Entry::Multicast { id, dest, .. } => Some((*id, dest.as_slice())),
            _ => None,
        });
        sent.collect()
    }

    /// What each message touches.
    pub fn touches(&self) -> BTreeMap<MessageId, Touches> {
        let sent = self.entries.iter().filter_map(|entry| match entry {
            Entry::Multicast { id, touches, .. } => Some((*id, touches.clone())),
            _ => None,
        });
        sent.collect()
    }

    /// All members of the groups `dest`.
    pub fn members<'a>(&'a self, dest: &'a [GroupId]) -> impl Iterator<Item = ProcessId> + 'a {
        dest.iter().filter_map(|group| self.groups.get(group)).flatten().copied()
    }

    /// What each process delivered, in order, in each of its lives: a life begins with a start, and
    /// with what the disk kept of the one before. What a process skipped by taking over a state
    /// counts as delivered, in the order in which its group did.
    ///
    /// # Errors
    /// If a process leaves a hole, or takes a delivery back.
    pub fn lives(&self) -> Result<Vec<Life>, String> {
        let mut lives: Vec<Life> = Vec::new();
        let mut last: BTreeMap<ProcessId, usize> = BTreeMap::new();
        for process in self.groups.values().flatten() {
            last.insert(*process, lives.len());
            lives.push(Life { process: *process, sequence: Vec::new() });
        }
        for entry in &self.entries {
            match entry {
                Entry::Recover(process) if !lives[last[process]].sequence.is_empty() => {
                    last.insert(*process, lives.len());
                    lives.push(Life { process: *process, sequence: Vec::new() });
                }
                Entry::Deliver { process, id, position, .. } => {
                    let sequence = &mut lives[last[process]].sequence;
                    let next = sequence.len() as u64 + 1;
                    if position.0 != next {
                        return Err(format!("{process} delivers {id} at {position:?}, not {next}"));
                    }
                    sequence.push(*id);
                }
                Entry::Installed { process, state } => {
                    let sequence = &mut lives[last[process]].sequence;
                    if let Some(id) = sequence.iter().find(|id| !state.contains(id)) {
                        return Err(format!("{process} takes its delivery of {id} back"));
                    }
                    sequence.clone_from(state);
                }
                _ => {}
            }
        }
        Ok(lives)
    }

    /// What each process has delivered, in order, in its last life.
    ///
    /// # Errors
    /// As [`History::lives`].
    pub fn sequences(&self) -> Result<BTreeMap<ProcessId, Vec<MessageId>>, String> {
        // A later life replaces an earlier one.
        Ok(self.lives()?.into_iter().map(|life| (life.process, life.sequence)).collect())
    }

    /// The processes that run at the end.
    pub fn running(&self) -> BTreeSet<ProcessId> {
        let mut running: BTreeSet<_> = self.groups.values().flatten().copied().collect();
        for entry in &self.entries {
            match entry {
                Entry::Crash(process) => drop(running.remove(process)),
                Entry::Recover(process) => drop(running.insert(*process)),
                _ => {}
            }
        }
        running
    }

    /// The history as lines of JSON: each delivery once.
    pub fn to_json_lines(&self) -> String {
        let mut lines = Vec::new();
        for (group, members) in &self.groups {
            let members: Vec<_> = members.iter().map(ToString::to_string).collect();
            lines.push(json!({"ev": "group", "group": name(group), "members": members}));
        }
        let mut said = BTreeSet::new();
        for entry in &self.entries {
            lines.push(match entry {
                Entry::Multicast { id, dest, t, .. } => {
                    let dest: Vec<_> = dest.iter().map(name).collect();
                    let client = format!("{:x}", id.client.0);
                    let id = id.to_string();
                    json!({"ev": "multicast", "p": client, "t": t.0, "m": id, "dest": dest})
                }
                Entry::Deliver { process, id, t, .. } => {
                    if !said.insert((*process, *id)) {
                        continue;
                    }
                    let (p, m) = (process.to_string(), id.to_string());
                    json!({"ev": "deliver", "p": p, "t": t.0, "m": m})
                }
                Entry::Step { process, id } => {
                    json!({"ev": "step", "p": process.to_string(), "m": id.to_string()})
                }
                Entry::Crash(process) => json!({"ev": "crash", "p": process.to_string()}),
                Entry::Recover(process) => json!({"ev": "recover", "p": process.to_string()}),
                Entry::Asked { .. } | Entry::Installed { .. } => continue,
            });
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

fn name(group: &GroupId) -> String {
    format!("g{}", group.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;

    #[test]
    fn a_process_may_deliver_again_after_a_start_but_not_otherwise() {
        let mut history = groups(1, 2);
        history.push(deliver(0, 0, 1, 1));
        history.push(Entry::Crash(process(0, 0)));
        history.push(Entry::Recover(process(0, 0)));
        history.push(deliver(0, 0, 1, 1));
        history.push(deliver(0, 0, 2, 2));
        assert_eq!(history.sequences().unwrap()[&process(0, 0)], [id(1), id(2)]);
        assert_eq!(history.lives().unwrap().len(), 3);
        history.push(deliver(0, 0, 2, 2));
        assert!(history.sequences().unwrap_err().contains("at Position(2), not 3"));
    }

    #[test]
    fn a_state_taken_over_counts_and_takes_nothing_back() {
        let mut history = groups(1, 2);
        history.push(deliver(0, 0, 1, 1));
        let state = vec![id(2), id(1)];
        history.push(Entry::Installed { process: process(0, 0), state: state.clone() });
        assert_eq!(history.sequences().unwrap()[&process(0, 0)], state);
        history.push(deliver(0, 0, 3, 3));
        history.push(Entry::Installed { process: process(0, 0), state });
        assert!(history.sequences().unwrap_err().contains("takes its delivery of 9.3 back"));
    }

    #[test]
    fn a_hole_is_seen() {
        let mut history = groups(1, 2);
        history.push(multicast(1, &[0], 0));
        history.push(deliver(0, 0, 1, 2));
        assert!(history.sequences().is_err());
    }

    #[test]
    fn lines_of_json() {
        let mut history = groups(1, 1);
        history.push(multicast(1, &[0], 5));
        history.push(deliver(0, 0, 1, 1));
        history.push(deliver(0, 0, 1, 1));
        let lines = history.to_json_lines();
        assert_eq!(lines.lines().count(), 3);
        assert!(lines.contains(r#"{"dest":["g0"],"ev":"multicast","m":"9.1","p":"9","t":5}"#));
    }
}
