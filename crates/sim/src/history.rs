//! What happened in a run of the multicast, as the checkers judge it.

use meridian_core::{GroupId, MessageId, Position, ProcessId, Time};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A client is about to send a message for the first time.
    Multicast {
        /// Which.
        id: MessageId,
        /// Its destinations.
        dest: Vec<GroupId>,
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
        /// The place in the group's order that the process gave it; from 1.
        position: Position,
        /// When.
        t: Time,
    },
    /// A process took over its group's state up to a position instead of delivering so far.
    Installed {
        /// Which process.
        process: ProcessId,
        /// The position.
        position: Position,
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
    /// It runs again.
    Recover(ProcessId),
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

    /// All members of the groups `dest`.
    pub fn members<'a>(&'a self, dest: &'a [GroupId]) -> impl Iterator<Item = ProcessId> + 'a {
        dest.iter().filter_map(|group| self.groups.get(group)).flatten().copied()
    }

    /// What each process delivered, in order, over all its lives: what it skipped by taking over a
    /// state counts as delivered, as its group did.
    ///
    /// # Errors
    /// If two processes of a group, or two lives of one, put different messages at one position, or
    /// if a process leaves a hole.
    pub fn sequences(&self) -> Result<BTreeMap<ProcessId, Vec<MessageId>>, String> {
        let orders = self.orders()?;
        let mut reached: BTreeMap<ProcessId, u64> = BTreeMap::new();
        for entry in &self.entries {
            match entry {
                Entry::Deliver { process, id, position, .. } => {
                    let before = reached.entry(*process).or_default();
                    if position.0 > *before + 1 {
                        let hole = *before + 1;
                        return Err(format!("{process} delivers {id} at {position:?}, not {hole}"));
                    }
                    *before = (*before).max(position.0);
                }
                Entry::Installed { process, position } => {
                    let before = reached.entry(*process).or_default();
                    *before = (*before).max(position.0);
                }
                _ => {}
            }
        }
        let mut sequences = BTreeMap::new();
        for process in self.groups.values().flatten() {
            let upto = reached.get(process).copied().unwrap_or_default();
            let order = orders.get(&process.group);
            let at = |position| order.and_then(|order| order.get(&position)).copied();
            let sequence: Option<Vec<_>> = (1..=upto).map(at).collect();
            let Some(sequence) = sequence else {
                return Err(format!("{process} took over a state that nobody had delivered"));
            };
            sequences.insert(*process, sequence);
        }
        Ok(sequences)
    }

    /// For each group, what is at each position.
    fn orders(&self) -> Result<BTreeMap<GroupId, BTreeMap<u64, MessageId>>, String> {
        let mut orders: BTreeMap<GroupId, BTreeMap<u64, MessageId>> = BTreeMap::new();
        for entry in &self.entries {
            if let Entry::Deliver { process, id, position, .. } = entry {
                let order = orders.entry(process.group).or_default();
                let first = *order.entry(position.0).or_insert(*id);
                if first != *id {
                    let place = position.0;
                    return Err(format!("{process} has {id} at {place}, others have {first}"));
                }
            }
        }
        Ok(orders)
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

    /// The history as lines of JSON (`promises.md`, section 4): each delivery once.
    pub fn to_json_lines(&self) -> String {
        let mut lines = Vec::new();
        for (group, members) in &self.groups {
            let members: Vec<_> = members.iter().map(ToString::to_string).collect();
            lines.push(json!({"ev": "group", "group": name(group), "members": members}));
        }
        let mut reached: BTreeMap<ProcessId, Position> = BTreeMap::new();
        for entry in &self.entries {
            lines.push(match entry {
                Entry::Multicast { id, dest, t } => {
                    let dest: Vec<_> = dest.iter().map(name).collect();
                    let client = format!("{:x}", id.client.0);
                    let id = id.to_string();
                    json!({"ev": "multicast", "p": client, "t": t.0, "m": id, "dest": dest})
                }
                Entry::Deliver { process, id, position, t } => {
                    let before = reached.entry(*process).or_default();
                    if position <= before {
                        continue;
                    }
                    *before = *position;
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
    use crate::checkers::examples::*;

    #[test]
    fn a_process_may_deliver_again_but_not_otherwise() {
        let mut history = groups(1, 2);
        history.push(multicast(1, &[0], 0));
        history.push(multicast(2, &[0], 0));
        history.push(deliver(0, 0, 1, 1));
        history.push(deliver(0, 0, 1, 1));
        history.push(deliver(0, 0, 2, 2));
        assert_eq!(history.sequences().unwrap()[&process(0, 0)], [id(1), id(2)]);
        history.push(Entry::Installed { process: process(0, 1), position: Position(2) });
        assert_eq!(history.sequences().unwrap()[&process(0, 1)], [id(1), id(2)]);
        history.push(deliver(0, 1, 2, 1));
        assert!(history.sequences().unwrap_err().contains("others have"));
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
