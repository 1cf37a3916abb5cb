//! What is wrong with a snapshot, as the replicas keep it.

use super::top;
use crate::trial::Counts;
use meridian_core::{BlockId, GroupId, NodeId, Stamp};
use meridian_fs::invariants::check_tree;
use meridian_fs::types::{Entry, Name};
use meridian_fs::{Answer, FsError, Partition, Place, Query};
use meridian_host::Node;
use meridian_session::taking::Taken;
use std::collections::{BTreeMap, BTreeSet};

/// A file that a worker was told to be made.
pub struct Acknowledged {
    pub worker: usize,
    pub parent: Place,
    pub name: Name,
    pub ts: Stamp,
}

/// See the module.
#[derive(Default)]
pub struct Judge {
    /// In the order in which workers were told.
    acknowledged: Vec<Acknowledged>,
    tokens: BTreeMap<Place, Stamp>,
    /// So much was acknowledged before the snapshot was begun.
    before: usize,
    /// What the first replica of each group keeps.
    kept: BTreeMap<GroupId, Partition>,
    /// Replicas that were looked at, and keep it.
    keeps: BTreeSet<(GroupId, NodeId)>,
    judged: bool,
}

impl Judge {
    pub fn acknowledged(&mut self, made: Acknowledged) {
        self.acknowledged.push(made);
    }

    pub fn token(&mut self, file: Place, ts: Stamp) {
        self.tokens.insert(file, ts);
    }

    /// A snapshot is being taken.
    pub fn begin(&mut self) {
        self.before = self.acknowledged.len();
        self.end();
    }

    /// Nobody keeps it any more.
    pub fn end(&mut self) {
        self.kept.clear();
        self.keeps.clear();
        self.judged = false;
    }

    /// Looks at a node that may keep the snapshot.
    pub fn look(
        &mut self,
        at: NodeId,
        node: &Node,
        (name, taken): (u64, &Taken),
        counts: &mut Counts,
    ) -> Result<(), String> {
        let of_node = taken.keepers.iter().filter(|(_, nodes)| nodes.contains(&at));
        for (group, _) in of_node {
            let kept = node.replica(*group).and_then(|of| of.snapshot(name, taken.at));
            let Some(kept) = kept else {
                self.keeps.remove(&(*group, at));
                continue;
            };
            if !self.keeps.insert((*group, at)) {
                continue;
            }
            let same = |of: &Partition| (of.decided(), of.state_hash());
            match self.kept.get(group) {
                Some(first) if same(first) != same(kept) => {
                    return Err(format!("snapshots: replicas of {group:?} keep different states"));
                }
                Some(_) => {}
                None => _ = self.kept.insert(*group, kept.clone()),
            }
        }
        if self.judged || self.kept.len() < taken.keepers.len() {
            return Ok(());
        }
        self.judged = true;
        counts.add("judged", 1);
        self.judge(taken.at)
    }

    fn judge(&self, at: Stamp) -> Result<(), String> {
        let entries: BTreeMap<_, _> =
            self.kept.iter().map(|(group, of)| (*group, entries(of))).collect();
        let mut places: BTreeMap<Place, usize> = BTreeMap::new();
        for entry in entries.values().flat_map(BTreeMap::values) {
            *places.entry(entry.place).or_default() += 1;
        }
        for (token, ts) in self.tokens.iter().filter(|(_, ts)| **ts <= at) {
            let count = places.get(token).copied().unwrap_or_default();
            if count != 1 {
                return Err(format!("snapshots: {token:?} of {ts:?} is at {count} places, {at:?}"));
            }
        }
        let mut beyond = BTreeSet::new();
        for (number, made) in self.acknowledged.iter().enumerate() {
            let Acknowledged { worker, parent, name, ts } = made;
            let is_in = entries[&parent.partition].contains_key(name);
            if is_in != (*ts <= at) {
                return Err(format!("snapshots: {name:?} of {ts:?} is in: {is_in}, at {at:?}"));
            }
            if !is_in && number < self.before {
                return Err(format!("snapshots: {name:?} was made before it began, {at:?}"));
            }
            if is_in && beyond.contains(worker) {
                return Err(format!("snapshots: {name:?} is in without what came before, {at:?}"));
            }
            beyond.extend((!is_in).then_some(*worker));
        }
        check_tree(self.kept.values());
        Ok(())
    }

    /// A replica has told of what it keeps.
    pub fn compare(
        &self,
        group: GroupId,
        queries: &[Query],
        answers: &[Result<Answer, FsError>],
    ) -> Result<(), String> {
        let Some(kept) = self.kept.get(&group) else { return Ok(()) };
        let differs =
            |(query, answer): &(&Query, &Result<Answer, FsError>)| kept.read(query) != **answer;
        match queries.iter().zip(answers).find(differs) {
            None => Ok(()),
            Some((query, answer)) => Err(format!("snapshots: {query:?} is answered by {answer:?}")),
        }
    }

    /// A node frees blocks.
    pub fn on_freed(&self, at: NodeId, blocks: &[BlockId]) -> Result<(), String> {
        for block in blocks {
            let group = block.partition();
            let kept = self.kept.get(&group).filter(|_| self.keeps.contains(&(group, at)));
            if kept.is_some_and(|kept| kept.unnamed([*block]).is_empty()) {
                return Err(format!("snapshots: {at:?} frees {block}, which it keeps"));
            }
        }
        Ok(())
    }
}

/// What is in the directory of a group.
fn entries(of: &Partition) -> BTreeMap<Name, Entry> {
    let (mut all, mut after) = (BTreeMap::new(), Name::new());
    loop {
        let query = Query::Directory { inode: top(of.group()), after, limit: u32::MAX };
        let Ok(Answer::Directory { entries, end, .. }) = of.read(&query) else {
            panic!("{:?} has a directory", of.group());
        };
        all.extend(entries.into_iter().map(|(name, entry, _)| (name, entry)));
        match all.last_key_value() {
            Some((last, _)) if !end => after = last.clone(),
            _ => return all,
        }
    }
}
