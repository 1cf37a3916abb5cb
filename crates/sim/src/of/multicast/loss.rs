//! A group that was lost, as whoever judges sees it.
//!
//! Its heirs are another group than its old members were. So a history with a loss is judged as one
//! of two groups in place of one ([`Loss::judged`]), and each message that went to it goes to the
//! one, to the other, to both, or to neither:
//!
//! - to the old members, if they have delivered it, and somebody who was not lost had done so
//!   before the heirs went on. What nobody else had delivered may get another timestamp;
//! - to the heirs, unless all who were not lost had dropped it, as all had it; or it went to nobody
//!   else but groups that were lost with it, and was delivered before.

use super::history::{Entry, History};
use super::replica::Replica;
use meridian_core::{GroupId, MessageId, ProcessId};
use meridian_multicast::{Fence, Role};
use std::collections::{BTreeMap, BTreeSet};

/// Old members are judged as of a group with a number that is greater by this.
const BYGONE: u16 = 1000;

/// See the module.
#[derive(Clone, Debug)]
pub struct Loss {
    /// What was decided.
    pub fence: Fence,
    /// Who was lost.
    pub old: BTreeSet<ProcessId>,
    /// Who of other groups was lost with it.
    others: BTreeSet<ProcessId>,
    /// Reporters that were sealed.
    sealed: BTreeSet<ProcessId>,
    /// What reporters had delivered of what went to the group, when they were sealed.
    before: BTreeSet<MessageId>,
    /// What of that one of them still held.
    pub held: BTreeSet<MessageId>,
    /// How long the history was when the heirs went on.
    pub stood: Option<usize>,
}

impl Loss {
    /// That of the processes `old`, at the same time as these others of other groups.
    pub fn new(fence: Fence, old: BTreeSet<ProcessId>, others: BTreeSet<ProcessId>) -> Loss {
        let (sealed, before, held) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Loss { fence, old, others, sealed, before, held, stood: None }
    }

    /// The group.
    pub fn group(&self) -> GroupId {
        self.fence.config.group
    }

    /// Whether a process is sealed.
    pub fn is_sealed(&self, process: &Replica) -> bool {
        process.multicast.fenced(self.group()) >= Some(self.fence.config.number)
    }

    /// Whether one of the heirs is primary.
    pub fn has_ended(&self) -> bool {
        self.stood.is_some()
    }

    /// A process has made a step, after so many entries of the history; `goes` says which messages
    /// go to the group.
    pub fn watch(
        &mut self,
        at: ProcessId,
        process: &Replica,
        entries: usize,
        goes: impl Fn(&MessageId) -> bool,
    ) {
        let (epoch, role) = (process.multicast.epoch(), process.multicast.role());
        let of_heirs = at.group == self.group() && epoch.config == self.fence.config.number;
        if of_heirs && role == Role::Primary {
            self.stood.get_or_insert(entries);
        }
        let reports = self.fence.reporters.contains(&at) && self.is_sealed(process);
        if reports && self.sealed.insert(at) {
            let delivered = process.delivered.iter().map(|(_, id)| *id);
            for id in delivered.filter(goes) {
                self.before.insert(id);
                if !process.multicast.has_dropped(id) {
                    self.held.insert(id);
                }
            }
        }
    }

    /// The history with two groups in place of the one.
    pub fn judged(&self, history: &History) -> History {
        let split = Split::new(self, history);
        let mut groups = history.groups.clone();
        if let Some(members) = groups.get_mut(&self.group()) {
            members.retain(|process| !self.old.contains(process));
        }
        let old = self.old.iter().map(|process| self.bygone(*process)).collect();
        groups.insert(self.bygone_group(), old);
        let mut judged = History::new(groups);
        let mut positions: BTreeMap<ProcessId, u64> = BTreeMap::new();
        for entry in &history.entries {
            match entry {
                Entry::Multicast { id, dest, touches, after, t } => {
                    let (goes, dest) = (dest.contains(&self.group()), split.dest(*id, dest));
                    let (id, touches, after, t) = (*id, touches.clone(), *after, *t);
                    judged.push(Entry::Multicast { id, dest, touches, after, t });
                    let members = history.members(std::slice::from_ref(&split.group));
                    for process in members.filter(|_| goes) {
                        let process = self.renamed(process);
                        judged.push(Entry::Asked { process, id });
                    }
                }
                Entry::Deliver { process, id, ts, t, .. } if self.old.contains(process) => {
                    if !split.is_excused(*id) {
                        let position = positions.entry(*process).or_default();
                        *position += 1;
                        let position = meridian_core::Position(*position);
                        let (process, id, ts, t) = (self.bygone(*process), *id, *ts, *t);
                        judged.push(Entry::Deliver { process, id, ts, position, t });
                    }
                }
                Entry::Installed { process, state } if self.old.contains(process) => {
                    let state: Vec<_> =
                        state.iter().copied().filter(|id| !split.is_excused(*id)).collect();
                    positions.insert(*process, state.len() as u64);
                    judged.push(Entry::Installed { process: self.bygone(*process), state });
                }
                Entry::Asked { process, id } => {
                    judged.push(Entry::Asked { process: self.renamed(*process), id: *id });
                }
                Entry::Step { process, id } => {
                    judged.push(Entry::Step { process: self.renamed(*process), id: *id });
                }
                Entry::Crash(process) => judged.push(Entry::Crash(self.renamed(*process))),
                Entry::Recover(process) => {
                    positions.remove(process);
                    judged.push(Entry::Recover(self.renamed(*process)));
                }
                Entry::Deliver { .. } | Entry::Installed { .. } => judged.push(entry.clone()),
            }
        }
        judged
    }

    fn bygone_group(&self) -> GroupId {
        let number = u16::try_from(self.fence.config.number).unwrap_or(u16::MAX);
        GroupId(self.group().0 + BYGONE * number)
    }

    fn bygone(&self, process: ProcessId) -> ProcessId {
        ProcessId { group: self.bygone_group(), node: process.node }
    }

    fn renamed(&self, process: ProcessId) -> ProcessId {
        if self.old.contains(&process) { self.bygone(process) } else { process }
    }
}

/// Which message went to whom.
struct Split<'a> {
    loss: &'a Loss,
    group: GroupId,
    /// Delivered by old members, by others before the heirs went on, by heirs.
    by_old: BTreeSet<MessageId>,
    saved: BTreeSet<MessageId>,
    by_heirs: BTreeSet<MessageId>,
}

impl<'a> Split<'a> {
    fn new(loss: &'a Loss, history: &History) -> Split<'a> {
        let [mut by_old, mut saved, mut by_heirs] = [const { BTreeSet::new() }; 3];
        let stood = loss.stood.unwrap_or(history.entries.len());
        for (at, entry) in history.entries.iter().enumerate() {
            let (process, ids) = match entry {
                Entry::Deliver { process, id, .. } => (process, std::slice::from_ref(id)),
                Entry::Installed { process, state } => (process, state.as_slice()),
                _ => continue,
            };
            if loss.old.contains(process) {
                by_old.extend(ids);
            } else if process.group == loss.group() {
                by_heirs.extend(ids);
            } else if at < stood && process.group.0 < BYGONE && !loss.others.contains(process) {
                saved.extend(ids);
            }
        }
        Split { loss, group: loss.group(), by_old, saved, by_heirs }
    }

    /// Whether the old members alone have delivered it.
    fn is_excused(&self, id: MessageId) -> bool {
        !self.saved.contains(&id)
    }

    fn dest(&self, id: MessageId, dest: &[GroupId]) -> Vec<GroupId> {
        if !dest.contains(&self.group) {
            return dest.to_vec();
        }
        let dropped = self.loss.before.contains(&id) && !self.loss.held.contains(&id);
        let gone = |group: &GroupId| {
            let mut others = self.loss.others.iter();
            *group == self.group || group.0 >= BYGONE || others.any(|of| of.group == *group)
        };
        let lost = dest.iter().all(gone) && self.by_old.contains(&id);
        let to_heirs = self.by_heirs.contains(&id) || !(dropped || lost);
        let to_old = self.by_old.contains(&id) && !self.is_excused(id);
        let others = dest.iter().copied().filter(|group| *group != self.group);
        let heirs = to_heirs.then_some(self.group);
        let old = to_old.then(|| self.loss.bygone_group());
        others.chain(heirs).chain(old).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::multicast::checkers::examples::*;
    use crate::of::multicast::checkers::{check_agreement, check_safety};
    use meridian_core::{NodeId, Position, Time};
    use meridian_multicast::{Config, Timestamp};

    /// Group 1 is lost; its process was node 100, its heir is node 150.
    fn lost(history: &mut History) -> Loss {
        let heir = ProcessId { group: GroupId(1), node: NodeId(150) };
        if let Some(members) = history.groups.get_mut(&GroupId(1)) {
            members.push(heir);
        }
        history.push(Entry::Crash(process(1, 0)));
        let config = Config { group: GroupId(1), number: 1, members: vec![heir.node] };
        let fence = Fence { config, reporters: vec![process(0, 0)], lost: Vec::new() };
        let mut loss = Loss::new(fence, BTreeSet::from([process(1, 0)]), BTreeSet::new());
        loss.stood = Some(history.entries.len());
        loss
    }

    fn judge(loss: &Loss, history: &History) -> Result<(), String> {
        let judged = loss.judged(history);
        check_safety(&judged)?;
        check_agreement(&judged)
    }

    #[test]
    fn what_others_had_delivered_the_heirs_must_deliver() {
        let mut history = runs(&[(1, &[0, 1]), (2, &[1])], &[&[1], &[1, 2]]);
        let mut loss = lost(&mut history);
        loss.before.insert(id(1));
        loss.held.insert(id(1));
        assert!(judge(&loss, &history).unwrap_err().contains("n150"));
        history.push(deliver(1, 50, 1, 1));
        assert_eq!(judge(&loss, &history), Ok(()), "2 has gone with those that were lost");
        loss.held.clear();
        history.entries.pop();
        assert_eq!(judge(&loss, &history), Ok(()), "all had dropped it");
    }

    #[test]
    fn what_nobody_else_had_delivered_may_come_in_another_order() {
        let sent: &[(u64, &[u16])] = &[(1, &[0, 1]), (2, &[0, 1])];
        let mut history = runs(sent, &[&[], &[1, 2]]);
        let loss = lost(&mut history);
        for (group, node) in [(0, 0), (1, 50)] {
            for (position, (sequence, ts)) in (1..).zip([(2, 5), (1, 6)]) {
                let process = ProcessId { group: GroupId(group), node: NodeId(group * 100 + node) };
                let (position, ts, t) = (Position(position), Timestamp(ts), Time(9));
                history.push(Entry::Deliver { process, id: id(sequence), ts, position, t });
            }
        }
        assert_eq!(judge(&loss, &history), Ok(()));
        let late = Loss { stood: None, ..loss };
        let said = judge(&late, &history).unwrap_err();
        assert!(said.contains("timestamps"), "others had delivered it before: {said}");
    }
}
