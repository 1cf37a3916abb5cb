//! The capabilities of a client: what it holds, until when, and what it keeps of that (decision
//! 57). While it holds an inode it answers looks at it itself.
//!
//! Invariants:
//! - K1: what is kept of an inode comes from reads that began after its grant was acknowledged, or
//!   from answers to the client's own updates, and nobody else has changed it since.
//! - K2: nothing is answered after the lease, counted from when what was acknowledged was sent.
//! - K3: nothing is answered that is older than what a reply of the same partition has shown.
//! - K4: a capability is released after all that was kept of it is dropped, by the owner, too.

mod ahead;
mod alone;
mod errands;
mod flights;
mod kept;
pub(crate) mod known;
mod layout;
mod lease;
mod made;
mod order;
mod pages;
mod room;
mod surveys;
mod sweeps;
mod windows;

pub(crate) use errands::OWN;
pub(crate) use lease::Errand;
pub use pages::{Holding, Pages};
pub use room::HELD_MAX;
pub(crate) use sweeps::WINDOW;

use crate::calls::CallId;
use crate::mutation::Mutation;
use ahead::Ahead;
use alone::Alone;
use flights::Flight;
use known::Known;
use lease::Lease;
use made::Making;
use meridian_core::{ClientId, GroupId, Stamp, Time};
use meridian_fs::types::{Attributes, Name, Place};
use meridian_fs::{Ino, Query};
use meridian_host::replica::CAP_LEASE;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use surveys::Survey;
use sweeps::Sweep;

/// So many looks at an inode, within [`LOOKS_WITHIN`], and the client asks for it.
const LOOKS: u32 = 3;
const LOOKS_WITHIN: Duration = Duration::from_secs(1);
/// The looks at so many inodes are counted.
const LOOKED_MAX: usize = 4096;
/// How long an inode that was recalled is not asked for: at first, and at most. Each time that it
/// is recalled soon after, it takes twice as long.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long it is remembered that an inode was recalled.
const PAUSE_KEPT: Duration = Duration::from_secs(60);

/// For how long a holder uses a lease: clocks may differ in rate by an eighth.
pub const SPAN: Duration = Duration::from_nanos(CAP_LEASE.as_nanos() as u64 / 8 * 7);

/// When a look began, as what is kept counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// How often something had been lost.
    losses: u64,
    count: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Caps {
    is_on: bool,
    /// What it is given from now on it lets go.
    ends: bool,
    /// Under which name it holds them.
    pub by: ClientId,
    leases: BTreeMap<GroupId, Lease>,
    known: BTreeMap<Ino, Known>,
    flights: BTreeMap<CallId, Flight>,
    /// What the owner is to drop, and has not dropped yet.
    undropped: BTreeSet<(GroupId, Ino)>,
    /// The count when the client has gone on after another: what it began before may be older.
    followed: u64,
    /// Own updates under way that make something which is to be held.
    making: Making,
    /// How many names are kept.
    names: usize,
    busy: BTreeMap<Ino, u32>,
    busy_names: BTreeMap<(Ino, Name), u32>,
    /// Counts grants, and beginnings and ends of own updates.
    count: u64,
    looked: BTreeMap<Ino, (Time, u32)>,
    /// Until when what was recalled is not asked for, and how long that took.
    paused: BTreeMap<Ino, (Time, Duration)>,
    losses: u64,
    sweeps: BTreeMap<Ino, Sweep>,
    /// Directories that are held exclusively, and not known whole yet.
    surveys: BTreeMap<Ino, Survey>,
    /// By the directory.
    aheads: BTreeMap<Place, Ahead>,
    /// What is held exclusively, and kept back.
    alone: Alone,
    /// What a window showed before it was held, for a planted bug.
    seen_before: BTreeMap<Ino, Attributes>,
    /// The bytes of files that were kept since they were counted, and those that were there then:
    /// some have gone.
    bytes: usize,
    /// The same of parts of blocks in [`layout`].
    parts: usize,
    pub hits: u64,
    pub swept: u64,
    /// How much was held with what came along.
    pub along: u64,
    /// How much of that was not in the directory that was looked at, but further below.
    pub below: u64,
    /// How many directories have become known whole as they are held exclusively.
    pub surveyed: u64,
    /// Whether the cluster takes what was written to a file in a batch.
    pub keeps_written: bool,
    /// How many new files were kept back.
    pub kept_back: u64,
    /// How many of these were removed before they were sent, and so were not.
    pub unsent: u64,
    pub mutation: Mutation,
}

impl Caps {
    /// None yet; the client has that name.
    pub fn new(by: ClientId) -> Caps {
        Caps {
            is_on: false,
            ends: false,
            by,
            leases: BTreeMap::new(),
            known: BTreeMap::new(),
            flights: BTreeMap::new(),
            undropped: BTreeSet::new(),
            followed: 0,
            making: Making::default(),
            names: 0,
            busy: BTreeMap::new(),
            busy_names: BTreeMap::new(),
            count: 0,
            looked: BTreeMap::new(),
            paused: BTreeMap::new(),
            losses: 0,
            sweeps: BTreeMap::new(),
            surveys: BTreeMap::new(),
            aheads: BTreeMap::new(),
            alone: Alone::default(),
            seen_before: BTreeMap::new(),
            bytes: 0,
            parts: 0,
            hits: 0,
            swept: 0,
            surveyed: 0,
            along: 0,
            below: 0,
            keeps_written: false,
            kept_back: 0,
            unsent: 0,
            mutation: Mutation::Correct,
        }
    }

    /// From now on it asks for capabilities.
    pub fn turn_on(&mut self) {
        self.is_on = true;
    }

    /// From now on it asks for none, and lets go what it holds.
    pub fn turn_off(&mut self) {
        self.looked.clear();
        self.sweeps.clear();
        self.surveys.clear();
        self.aheads.retain(|_, ahead| ahead.is_sent());
        self.leases.values_mut().for_each(|lease| {
            lease.wanted.clear();
            lease.wanted_alone.clear();
        });
        let all = self.known.iter().map(|(ino, known)| (known.group, *ino)).collect();
        self.drop_held(all);
        let going = self.leases.iter().flat_map(|(group, lease)| {
            lease.going.iter().map(|ino| (*group, *ino)).collect::<Vec<_>>()
        });
        let going: Vec<_> = going.collect();
        self.let_go(&going);
        self.ends = true;
    }

    /// Whether something is still to be released.
    pub fn is_letting_go(&self) -> bool {
        let goes = |lease: &Lease| !lease.going.is_empty() || lease.granting.is_some();
        self.leases.values().any(goes) || self.aheads.values().any(Ahead::is_sent)
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Now: before a look begins whose answer somebody else is to keep.
    pub fn moment(&self) -> Moment {
        Moment { losses: self.losses, count: self.count }
    }

    /// For how long what a look that began at that moment has shown of the inode may be kept. Not
    /// at all if something was lost since, or the inode is held only since then: somebody else may
    /// have changed it in between.
    pub fn rest(&mut self, now: Time, moment: Moment, ino: Ino) -> Duration {
        let known = self.known.get(&ino).filter(|known| known.granted <= moment.count);
        let Some(known) = known.filter(|_| moment.losses == self.losses) else {
            return Duration::ZERO;
        };
        let lease = self.leases.get_mut(&known.group);
        lease.map_or(Duration::ZERO, |lease| {
            lease.used = now;
            lease.until.since(now)
        })
    }

    /// The count of now: what a read that begins now must not be older than.
    pub fn begin_read(&self) -> u64 {
        self.count
    }

    /// The client asks a replica this: with enough looks it asks to hold the inode.
    pub fn look(&mut self, now: Time, query: &Query) {
        if !self.is_on || self.ends {
            return;
        }
        match query {
            Query::Lookup { parent: inode, .. } | Query::Attributes { inode } => {
                self.count_look(now, *inode);
            }
            _ => {}
        }
    }

    fn count_look(&mut self, now: Time, place: Place) {
        let ino = place.ino;
        let paused = self.paused.get(&ino).is_some_and(|(until, _)| *until > now);
        if self.ends || paused || self.known.contains_key(&ino) {
            return;
        }
        if self.looked.len() >= LOOKED_MAX {
            self.looked.clear();
        }
        let (since, looks) = self.looked.entry(ino).or_insert((now, 0));
        if now.since(*since) > LOOKS_WITHIN {
            (*since, *looks) = (now, 0);
        }
        *looks += 1;
        if *looks >= LOOKS {
            self.looked.remove(&ino);
            self.leases.entry(place.partition).or_default().wanted.insert(ino);
        }
    }

    /// A reply of the group told that up to there no more than these is recalled; answers what the
    /// owner is to drop.
    pub fn heard(
        &mut self,
        now: Time,
        group: GroupId,
        upto: Stamp,
        recalled: &[Ino],
    ) -> Vec<(GroupId, Ino)> {
        if !self.is_on {
            return Vec::new();
        }
        let lease = self.leases.entry(group).or_default();
        lease.checked = lease.checked.max(upto);
        let new: Vec<_> = recalled.iter().filter(|ino| !lease.going.contains(ino)).collect();
        lease.urgent.extend(recalled);
        let beside = self.held_beside(&new);
        for ino in new {
            self.pause_sweep(now, *ino);
            let before = self.paused.get(ino).filter(|(until, _)| now.since(*until) < PAUSE_KEPT);
            let pause = before.map_or(PAUSE.0, |(_, pause)| (*pause * 2).min(PAUSE.1));
            self.paused.insert(*ino, (now + pause, pause));
        }
        if self.paused.len() > LOOKED_MAX {
            self.paused.retain(|_, (until, _)| *until > now);
        }
        let gone = recalled.iter().copied().chain(beside).map(|ino| (group, ino)).collect();
        self.drop_held(gone)
    }

    /// Drops what is kept of these; answers those that the owner is to drop.
    pub fn drop_held(&mut self, gone: Vec<(GroupId, Ino)>) -> Vec<(GroupId, Ino)> {
        let mut told = Vec::new();
        for (group, ino) in gone {
            // A grant that is under way may come before the release, whichever is answered first.
            self.spoil(ino);
            self.making.spoil(ino, self.count);
            let lease = self.leases.entry(group).or_default();
            if !lease.going.insert(ino) {
                continue;
            }
            told.push((group, ino));
            self.undropped.insert((group, ino));
            if self.mutation.is(Mutation::ReleasesFirst) {
                lease.to_release.insert(ino);
            } else {
                self.forget(ino);
            }
            self.call_within(ino);
        }
        told
    }

    /// What is being asked for must not keep the inode.
    fn spoil(&mut self, ino: Ino) {
        let granting = self.leases.values_mut().filter_map(|lease| lease.granting.as_mut());
        let aheads = self.aheads.values_mut().map(|ahead| &mut ahead.spoiled);
        granting.chain(aheads).for_each(|spoiled| spoiled.extend([ino]));
    }

    fn forget(&mut self, ino: Ino) {
        if let Some(known) = self.known.remove(&ino) {
            self.losses += 1;
            self.names -= known.names_kept();
            self.sweeps.remove(&ino);
            self.surveys.remove(&ino);
            if let Some(lease) = self.leases.get_mut(&known.group) {
                lease.held -= 1;
            }
        }
    }

    /// The owner has dropped these.
    pub fn let_go(&mut self, gone: &[(GroupId, Ino)]) {
        for (group, ino) in gone {
            self.forget(*ino);
            self.undropped.remove(&(*group, *ino));
            if let Some(lease) = self.leases.get_mut(group)
                && lease.going.contains(ino)
            {
                lease.to_release.insert(*ino);
            }
        }
    }

    /// What the owner is to drop, and has not dropped yet.
    pub fn kept_by_owner(&self) -> &BTreeSet<(GroupId, Ino)> {
        &self.undropped
    }

    /// The client goes on as one who has seen more of the group: what is kept may be older, and so
    /// may be what is under way. Answers what the owner is to drop.
    pub fn follow(&mut self, group: GroupId) -> Vec<(GroupId, Ino)> {
        self.count += 1;
        self.followed = self.count;
        let aheads = self.aheads.iter_mut().filter(|(of, _)| of.partition == group);
        aheads.for_each(|(_, ahead)| ahead.spoil_all());
        let held = self.known.iter().filter(|(_, known)| known.group == group);
        let held = held.map(|(ino, _)| (group, *ino)).collect();
        self.drop_held(held)
    }

    /// What is to be sent now.
    pub fn next_errand(&mut self, now: Time) -> Option<(GroupId, Errand)> {
        if !self.is_on {
            return None;
        }
        self.lapse(now);
        let full = self.is_full();
        let mut all = self.leases.iter_mut();
        let next = all.find_map(|(group, lease)| Some((*group, lease.next_errand(now, full)?)));
        let next = next.or_else(|| self.next_of_surveys());
        next.or_else(|| self.next_ahead(now, full)).or_else(|| self.next_of_sweeps(now, full))
    }

    /// An errand that was sent at `sent` has ended; `granted` are the inodes that were given, none
    /// if it failed.
    pub fn on_ended(
        &mut self,
        now: Time,
        group: GroupId,
        (errand, sent): (Errand, Time),
        result: Option<Vec<Ino>>,
    ) -> Vec<(GroupId, Ino)> {
        self.lapse(now);
        let lease = self.leases.entry(group).or_default();
        match errand {
            Errand::Poll => lease.polling = false,
            Errand::Renew => {
                lease.renewing = false;
                if result.is_some() {
                    self.extend(now, group, sent);
                } else {
                    // Looks will ask again.
                    (lease.begins, lease.wanted) = (false, BTreeSet::new());
                }
            }
            // What is shared is not among what may be exclusive.
            Errand::Release(inodes) | Errand::ReleaseExclusive(inodes) => {
                lease.releasing = false;
                if result.is_some() {
                    lease.released(&inodes);
                    lease.alone.retain(|ino| !inodes.contains(ino));
                } else {
                    lease.to_release.extend(inodes);
                }
            }
            Errand::GrantExclusive(ino) => {
                let granted = result.is_some_and(|granted| granted.contains(&ino));
                self.on_alone(now, Place { ino, partition: group }, sent, granted);
            }
            Errand::Recall => {}
            Errand::List(directory, _) => self.stop_sweep(now, directory.ino),
            Errand::Survey(directory, _) => drop(self.surveys.remove(&directory.ino)),
            Errand::Grant(asked) => {
                // Nobody answers while a region is cut off that the inode waits for.
                let pause = if result.is_some() { PAUSE.0 } else { PAUSE.1 };
                let granted = result.unwrap_or_default();
                for ino in asked.iter().filter(|ino| !granted.contains(ino)) {
                    self.paused.insert(*ino, (now + pause, pause));
                }
                let spoiled = lease.granting.take().unwrap_or_default();
                return self.take_granted(now, (group, sent), (granted, spoiled), None);
            }
            Errand::Ahead { directory, queries, told, .. } => {
                return self.on_ahead(now, directory, sent, (queries, told), result);
            }
            Errand::Window { directory, queries, told, .. } => {
                let spoiled = lease.granting.take().unwrap_or_default();
                let (along, granted) = ((queries, told), (result, spoiled));
                return self.on_window(now, (directory, sent), along, granted);
            }
            Errand::Sweep(directory, _) => {
                let spoiled = lease.granting.take().unwrap_or_default();
                self.on_swept(now, directory, result.is_some());
                let granted = (result.unwrap_or_default(), spoiled);
                return self.take_granted(now, (group, sent), granted, Some(directory));
            }
        }
        Vec::new()
    }

    /// These were given, to what was sent then; answers what the owner is to drop.
    fn take_granted(
        &mut self,
        now: Time,
        (group, sent): (GroupId, Time),
        (granted, spoiled): (Vec<Ino>, BTreeSet<Ino>),
        swept: Option<Ino>,
    ) -> Vec<(GroupId, Ino)> {
        let ends = self.ends || !self.has_lasted(now, group, sent);
        let (gone, kept): (Vec<_>, Vec<_>) =
            granted.into_iter().partition(|ino| ends || spoiled.contains(ino));
        for ino in kept {
            self.hold(now, Place { ino, partition: group });
            let is_far = self.leases.get(&group).is_some_and(|lease| lease.is_far);
            if let Some(known) = self.known.get_mut(&ino) {
                known.swept = swept;
                known.ahead = swept.filter(|_| is_far);
                self.swept += u64::from(swept.is_some());
                let before = self.seen_before.remove(&ino);
                known.attributes.value = known.attributes.value.or(before);
            }
        }
        self.drop_held(gone.into_iter().map(|ino| (group, ino)).collect())
    }

    /// The lease of a partition was renewed by what was sent then (K2).
    fn extend(&mut self, now: Time, group: GroupId, sent: Time) {
        let late = self.mutation.is(Mutation::CountsFromReply);
        let lease = self.leases.entry(group).or_default();
        if lease.until <= now {
            lease.since = now;
        }
        lease.sent = lease.sent.max(sent);
        lease.until = lease.until.max(if late { now } else { sent } + SPAN);
    }

    /// Whether the lease lasts, and has since then: what was granted since is there still.
    fn has_lasted(&self, now: Time, group: GroupId, since: Time) -> bool {
        let of = self.leases.get(&group);
        of.is_some_and(|lease| lease.until > now && lease.since <= since)
    }

    fn hold(&mut self, now: Time, place: Place) {
        let lease = self.leases.entry(place.partition).or_default();
        if lease.going.contains(&place.ino) || self.known.contains_key(&place.ino) {
            return;
        }
        self.count += 1;
        lease.held += 1;
        lease.used = now;
        let mut known = Known::new(place.partition, self.count, now);
        let from = (place.ino, Name::new());
        let under_way = self.busy_names.range(from..).take_while(|((of, _), _)| *of == place.ino);
        under_way.for_each(|((_, name), _)| known.touch_name(name, self.count));
        self.names += known.names_kept();
        self.known.insert(place.ino, known);
    }

    /// Leases have run out (K2).
    fn lapse(&mut self, now: Time) {
        let mut lapsed = Vec::new();
        for (group, lease) in &mut self.leases {
            if lease.held > 0 && lease.until <= now {
                let gone = self.known.extract_if(.., |_, known| known.group == *group);
                self.names -= gone.map(|(_, known)| known.names_kept()).sum::<usize>();
                self.sweeps.clear();
                self.surveys.clear();
                (lease.held, self.losses) = (0, self.losses + 1);
                lapsed.push(*group);
            }
        }
        lapsed.into_iter().for_each(|group| self.call_all_of(group));
    }

    /// Panics unless what is counted is there.
    pub fn check_invariants(&self) {
        for (group, lease) in &self.leases {
            let held = self.known.values().filter(|known| known.group == *group).count();
            assert_eq!(held, lease.held, "held in {group:?}");
        }
        let busy: u32 = self.busy.values().sum();
        let alters: usize = self.flights.values().map(|flight| flight.alters.len()).sum();
        assert_eq!(busy as usize, alters, "what is being changed");
        let names: usize = self.known.values().map(Known::names_kept).sum();
        assert_eq!(names, self.names, "names that are kept");
        for lease in self.leases.values() {
            assert!(lease.urgent.is_subset(&lease.going), "what others wait for goes");
        }
        self.check_alone();
    }
}
