//! Which open files the partitions are told of, so that they outlive their last names.
//!
//! A file that has lost its last name, through whichever client, stays for a while in its partition
//! (`meridian_host::space`). So a client that has opened it need not say so at once, and of files
//! that are open for a moment only it says nothing: most are. It says so, of all at a time, of
//! those that have been open for [`LAZY`]; the partition then keeps them until the client says that
//! it has closed them, or its lease runs out.
//!
//! Invariants:
//! - O1: a file that may be held in its partition is closed there once it is closed here.
//! - O2: to one partition one update is under way at a time, so each comes after those before it.

use crate::Mutation;
use meridian_core::{ClientId, GroupId, Time};
use meridian_fs::{Ino, Place, Update};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a file is open before its partition is told: longer than most are, and several times
/// shorter than files without a name stay.
pub const LAZY: Duration = Duration::from_secs(1);
/// So many files one update names: some tens of KiB.
const NAMED_MAX: usize = 4096;

/// What the partition of a file knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// That it is not open here.
    Nothing,
    /// Perhaps that it is open here.
    Perhaps,
    /// That it is open here.
    Open,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    partition: GroupId,
    /// Through how many handles.
    count: usize,
    since: Time,
    known: Known,
    /// It may have no name any more, so its partition is told of its end at once.
    urgent: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Opens {
    client: ClientId,
    lazy: Duration,
    inodes: BTreeMap<Ino, Open>,
    /// What each partition is being told, and whether it is that files are open.
    under_way: BTreeMap<GroupId, (Vec<Ino>, bool)>,
    mutation: Mutation,
}

impl Opens {
    /// Nothing is open at `client`. Partitions are told of what is open for longer than `lazy`.
    pub fn new(client: ClientId, lazy: Duration) -> Opens {
        Opens {
            client,
            lazy,
            inodes: BTreeMap::new(),
            under_way: BTreeMap::new(),
            mutation: Mutation::Correct,
        }
    }

    /// The same with a bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Opens {
        Opens { mutation, ..self }
    }

    /// A file was opened, once more perhaps.
    pub fn open(&mut self, file: Place, now: Time) {
        let open = self.entry(file, now);
        if open.count == 0 {
            open.since = now;
        }
        open.count += 1;
    }

    fn entry(&mut self, file: Place, now: Time) -> &mut Open {
        let partition = file.partition;
        let (known, urgent) = (Known::Nothing, false);
        let new = Open { partition, count: 0, since: now, known, urgent };
        self.inodes.entry(file.ino).or_insert(new)
    }

    /// It was closed once. Returns whether its partition is to be told at once.
    pub fn close(&mut self, ino: Ino) -> bool {
        let Some(open) = self.inodes.get_mut(&ino) else { return false };
        open.count = open.count.saturating_sub(1);
        if open.count > 0 {
            return false;
        }
        let urgent = open.urgent && open.known != Known::Nothing;
        self.drop_unused(ino);
        urgent
    }

    /// An update that took a name of the file has said, `certainly` or perhaps, that it is open
    /// here. Returns whether it is not, so that its partition is to be told at once.
    pub fn kept(&mut self, file: Place, certainly: bool, now: Time) -> bool {
        let mut known = if certainly { Known::Open } else { Known::Perhaps };
        if let Some((inodes, false)) = self.under_way.get_mut(&file.partition)
            && let Some(at) = inodes.iter().position(|ino| *ino == file.ino)
        {
            inodes.swap_remove(at);
            known = Known::Perhaps; // Who comes first there is not known.
        }
        let open = self.entry(file, now);
        (open.known, open.urgent) = (known, true);
        open.count == 0
    }

    /// What is to be told now, each to a partition that is being told nothing. What came of it must
    /// be given to [`Opens::told`].
    pub fn due(&mut self, now: Time) -> Vec<(GroupId, Update)> {
        let partitions: BTreeSet<_> = self.inodes.values().map(|open| open.partition).collect();
        let free = |partition: &GroupId| !self.under_way.contains_key(partition);
        let free: Vec<_> = partitions.into_iter().filter(free).collect();
        free.into_iter().filter_map(|partition| self.due_in(partition, now)).collect()
    }

    fn due_in(&mut self, partition: GroupId, now: Time) -> Option<(GroupId, Update)> {
        let opened = |open: &Open| {
            let told = self.mutation.is(Mutation::NeverHolds) || open.known == Known::Open;
            open.count > 0 && !told && now.since(open.since) >= self.lazy
        };
        let closed = |open: &Open| open.count == 0 && open.known != Known::Nothing;
        let named = |wanted: &dyn Fn(&Open) -> bool| -> Vec<Ino> {
            let here = self.inodes.iter().filter(|(_, open)| open.partition == partition);
            let wanted = here.filter(|(_, open)| wanted(open));
            wanted.map(|(ino, _)| *ino).take(NAMED_MAX).collect()
        };
        let (client, inodes) = (self.client, named(&opened));
        if !inodes.is_empty() {
            self.under_way.insert(partition, (inodes.clone(), true));
            self.note(&inodes, Known::Perhaps);
            return Some((partition, Update::Hold { client, partition, inodes }));
        }
        let inodes = named(&closed);
        if inodes.is_empty() {
            return None;
        }
        self.under_way.insert(partition, (inodes.clone(), false));
        // One that is opened again meanwhile is not held any more, whatever was told before.
        self.note(&inodes, Known::Perhaps);
        Some((partition, Update::Forget { client, partition, inodes }))
    }

    /// The partition has been told, or may not have been.
    pub fn told(&mut self, partition: GroupId, certainly: bool) {
        let Some((inodes, holds)) = self.under_way.remove(&partition) else { return };
        if certainly {
            self.note(&inodes, if holds { Known::Open } else { Known::Nothing });
        }
        inodes.into_iter().for_each(|ino| self.drop_unused(ino));
    }

    fn note(&mut self, inodes: &[Ino], known: Known) {
        for ino in inodes {
            if let Some(open) = self.inodes.get_mut(ino) {
                open.known = known;
            }
        }
    }

    fn drop_unused(&mut self, ino: Ino) {
        let unused = |open: &Open| open.count == 0 && open.known == Known::Nothing; // O1
        if self.inodes.get(&ino).is_some_and(unused) {
            self.inodes.remove(&ino);
        }
    }

    /// The client's lease in a partition may have run out: what was held there may be no more.
    pub fn doubt(&mut self, partition: GroupId) {
        let held = self.inodes.values_mut().filter(|open| open.partition == partition);
        held.filter(|open| open.known == Known::Open).for_each(|open| open.known = Known::Perhaps);
    }

    /// Whether the partition of the file surely holds it for this client.
    pub fn is_held(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|open| open.known == Known::Open)
    }

    /// The partitions that may hold files for this client: it must tell them that it lives.
    pub fn partitions(&self) -> BTreeSet<GroupId> {
        let held = self.inodes.values().filter(|open| open.known != Known::Nothing);
        held.map(|open| open.partition).collect()
    }

    /// Whether nothing is open and no partition holds anything.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ClientId = ClientId(7);
    const US: GroupId = GroupId(1);

    fn file(ino: u64) -> Place {
        Place { ino: Ino(ino), partition: US }
    }

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn hold(inodes: &[u64]) -> Vec<(GroupId, Update)> {
        let inodes = inodes.iter().copied().map(Ino).collect();
        vec![(US, Update::Hold { client: ME, partition: US, inodes })]
    }

    fn forget(ino: u64) -> Vec<(GroupId, Update)> {
        vec![(US, Update::Forget { client: ME, partition: US, inodes: vec![Ino(ino)] })]
    }

    #[test]
    fn of_what_is_open_for_a_moment_nobody_hears() {
        let mut opens = Opens::new(ME, LAZY);
        opens.open(file(5), at(0));
        assert!(opens.due(at(999)).is_empty() && !opens.close(Ino(5)));
        assert!(opens.due(at(5000)).is_empty() && opens.is_empty());
    }

    #[test]
    fn a_partition_hears_what_is_open_and_then_what_is_closed() {
        let mut opens = Opens::new(ME, LAZY);
        opens.open(file(5), at(0));
        opens.open(file(6), at(0));
        opens.open(file(7), at(900));
        assert_eq!(opens.due(at(1000)), hold(&[5, 6]));
        opens.close(Ino(5));
        assert!(opens.due(at(2500)).is_empty(), "O2: the first is under way");
        opens.told(US, true);
        assert!(opens.is_held(Ino(6)) && !opens.is_held(Ino(7)));
        assert_eq!(opens.due(at(2500)), hold(&[7]));
        opens.told(US, true);
        assert_eq!(opens.due(at(2500)), forget(5));
        opens.told(US, true);
        assert!(opens.due(at(9999)).is_empty());
        assert_eq!(opens.partitions(), [US].into());
    }

    /// The partition may reap it as soon as it has heard that it was closed.
    #[test]
    fn what_is_opened_again_while_its_end_is_told_is_held_only_when_that_is_told() {
        let mut opens = Opens::new(ME, LAZY);
        opens.open(file(5), at(0));
        assert_eq!(opens.due(at(1000)), hold(&[5]));
        opens.told(US, true);
        opens.close(Ino(5));
        assert_eq!(opens.due(at(1100)), forget(5));
        opens.open(file(5), at(1200));
        assert!(!opens.is_held(Ino(5)));
        opens.told(US, true);
        assert_eq!(opens.due(at(2200)), hold(&[5]));
        opens.told(US, true);
        assert!(opens.is_held(Ino(5)));
    }

    #[test]
    fn what_may_have_been_said_is_said_again_or_taken_back() {
        let mut opens = Opens::new(ME, LAZY);
        opens.open(file(5), at(0));
        assert_eq!(opens.due(at(1000)), hold(&[5]));
        opens.told(US, false);
        assert_eq!(opens.due(at(1001)), hold(&[5]));
        opens.close(Ino(5));
        opens.told(US, false);
        assert_eq!(opens.due(at(1002)), forget(5));
        opens.told(US, false);
        assert_eq!(opens.due(at(1003)), forget(5), "O1");
        opens.open(file(5), at(1004));
        opens.told(US, true);
        assert_eq!(opens.due(at(2004)), hold(&[5]), "it was opened meanwhile");
    }

    #[test]
    fn what_may_be_held_no_more_is_said_again() {
        let mut opens = Opens::new(ME, LAZY);
        opens.open(file(5), at(0));
        assert_eq!(opens.due(at(1000)), hold(&[5]));
        opens.told(US, true);
        opens.doubt(GroupId(2));
        assert!(opens.is_held(Ino(5)) && opens.due(at(2000)).is_empty());
        opens.doubt(US);
        assert!(!opens.is_held(Ino(5)) && opens.partitions() == [US].into());
        assert_eq!(opens.due(at(2000)), hold(&[5]));
    }

    #[test]
    fn a_file_that_lost_its_name_here_is_closed_at_once() {
        let mut opens = Opens::new(ME, LAZY);
        opens.open(file(5), at(0));
        opens.kept(file(5), true, at(1));
        assert!(opens.is_held(Ino(5)) && opens.due(at(5000)).is_empty());
        assert!(opens.close(Ino(5)), "nobody else needs it");
        assert_eq!(opens.due(at(5000)), forget(5));
    }
}
