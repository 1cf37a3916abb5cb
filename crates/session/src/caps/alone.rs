//! Directories that the client holds exclusively, and what it keeps back there: new files, until
//! they have all that their programs give them (decision 102), and, where the order of all is kept,
//! removals of files (decision 104), and what was written to files that are its own (decision 116).
//! What is kept back in a directory it says itself, or the owner by default (decision 110).
//!
//! What is kept back is part of what is known of its directory: looks are answered from that. What
//! cannot be answered from it waits until that has *landed*, that is until the update that does it
//! ([`Update::Make`], [`Update::Batch`]) was answered; the owner is told to send that.
//!
//! Invariants:
//! - K7: something is kept back only in a directory that is held exclusively, of which the
//!   attributes are known: a new file if its name is known to lead nowhere, a removal if the name
//!   is known to lead to a file of the directory's partition.
//! - K8: a directory is released after all that was kept back in it has landed, or never will.
//! - K9: what is kept back is shown only as long as its directory is held without a break.
//! - K10: of a partition the owner is told to land nothing before what was kept back in order there
//!   earlier, and no other update of the client is sent there before that.
//! - K12: what was written to a file is kept back only while the file is the client's own: made in
//!   a directory that it holds exclusively since, so that nobody else knows its number.

mod calls;
mod landing;
mod own;

use super::flights::Entries;
use super::order::{Order, Turn};
use super::{Caps, LOOKED_MAX, LOOKS_WITHIN};
use crate::calls::{Keeping, ToLand};
use crate::mutation::Mutation;
pub(super) use landing::Landing;
use meridian_core::{GroupId, Time};
use meridian_fs::batch::{BATCH_MAX, Kept, Part};
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Attributes, Entry, Ino, Kind, Name, Place, Timestamp};
use meridian_fs::{Query, Update, Vector};
use own::Own;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many changes a client keeps back at most.
const KEPT_BACK_MAX: usize = 2048;
/// Where the order is kept, so many land before they are asked for: a batch is under way while the
/// next comes together.
const LANDS_AT: usize = BATCH_MAX;
/// So many files that the client makes or removes in a directory, within [`LOOKS_WITHIN`], and it
/// asks to hold the directory exclusively.
const MADE: u32 = 2;
/// A file is kept back only if the lease lasts for so long still: most have landed by then.
const LASTS: Duration = Duration::from_secs(2);

/// What is kept back of a file.
#[derive(Clone, Copy, Debug)]
enum What {
    /// That it is made, as it was made.
    Made(Attributes),
    Removed,
    /// What was written to it; it is there already.
    Written,
}

/// Something that is kept back.
#[derive(Clone, Debug)]
struct KeptBack {
    parent: Place,
    name: Name,
    /// What is made, removed or written.
    place: Place,
    what: What,
    /// When.
    time: Timestamp,
    /// When its directory was granted, as the client counts.
    granted: u64,
    /// Its place in the order of all.
    number: u64,
    /// Whether its directory keeps the order.
    in_order: bool,
    /// Whether the owner was told to have it land.
    called: bool,
}

impl KeptBack {
    fn turn(&self) -> Turn {
        (self.parent.partition, self.number)
    }

    /// As in [`Alone::names`].
    fn named(&self) -> (Ino, Name, u64, Ino) {
        (self.parent.ino, self.name.clone(), self.number, self.place.ino)
    }

    fn to_land(&self) -> ToLand {
        let KeptBack { parent, name, place, time, .. } = self;
        match self.what {
            What::Made(_) | What::Written => ToLand::File(*place),
            What::Removed => {
                let (parent, name, child) = (*parent, name.clone(), *place);
                let kept = Kept::Unlink { parent, name, child };
                ToLand::Removal(Part { time: *time, kept })
            }
        }
    }

    /// Whether it is what that does.
    fn is(&self, kept: &Kept) -> bool {
        let is_so = match self.what {
            What::Made(_) => matches!(kept, Kept::Make(_)),
            What::Removed => matches!(kept, Kept::Unlink { .. }),
            What::Written => matches!(kept, Kept::Write(_)),
        };
        is_so && (self.parent, &self.name) == (kept.parent(), kept.name())
    }

    fn is_written(&self) -> bool {
        matches!(self.what, What::Written)
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    /// What is kept back where a directory does not say; `None` if the owner sends nothing that is
    /// kept back.
    pub keeping: Option<Keeping>,
    /// By the files that are made or removed.
    kept: BTreeMap<Ino, KeptBack>,
    /// By name, and those of one name in their order: a file goes, and another comes in its place.
    names: BTreeSet<(Ino, Name, u64, Ino)>,
    pub order: Order,
    own: BTreeMap<Ino, Own>,
    /// How many files the client has made in directories, and since when.
    made: BTreeMap<Ino, (Time, u32)>,
    /// Numbers those that were kept back.
    last: u64,
    /// Those in order that the owner was not told to have land.
    uncalled: usize,
    /// What the owner is to be told to have land.
    to_land: Vec<ToLand>,
}

impl Alone {
    fn within(&self, directory: Ino) -> impl Iterator<Item = Ino> + '_ {
        let all = self.names.range((directory, Name::new(), 0, Ino(0))..);
        all.take_while(move |(of, ..)| *of == directory).map(|(.., ino)| *ino)
    }

    /// What is kept back under a name, in its order.
    fn named(&self, directory: Ino, name: &Name) -> impl DoubleEndedIterator<Item = Ino> + '_ {
        let end = |number, ino| (directory, name.clone(), number, ino);
        self.names.range(end(0, Ino(0))..=end(u64::MAX, Ino(u64::MAX))).map(|(.., ino)| *ino)
    }

    /// What is kept back under the name of that, and comes before it.
    fn named_before(&self, ino: Ino) -> impl Iterator<Item = Ino> + '_ {
        let kept = self.kept.get(&ino).into_iter();
        kept.flat_map(move |kept| {
            let all = self.named(kept.parent.ino, &kept.name);
            all.take_while(move |of| *of != ino)
        })
    }

    /// Whether all that is kept back of a file was written to it, and its owner was not told to
    /// have it land: it is forgotten if the file goes.
    fn is_written_unsent(&self, ino: Ino) -> bool {
        self.kept.get(&ino).is_some_and(|kept| kept.is_written() && kept.in_order && !kept.called)
    }

    /// Whether what is kept back under that name must land before more is. After a removal in order
    /// a file may come.
    fn is_taken(&self, directory: Ino, name: &Name) -> bool {
        let last = self.named(directory, name).next_back();
        let last = last.filter(|ino| !self.is_written_unsent(*ino));
        let last = last.and_then(|ino| self.kept.get(&ino));
        last.is_some_and(|last| !last.in_order || !matches!(last.what, What::Removed))
    }

    /// Whether looks at that inode or name do not show what a replica has: it is made or removed.
    fn hides(&self, ino: Ino) -> bool {
        self.kept.get(&ino).is_some_and(|kept| !kept.is_written())
    }

    /// What may be kept back in a directory, as far as that is known.
    fn keeping_in(&self, directory: Option<&Attributes>) -> Keeping {
        let Some(by_default) = self.keeping else { return Keeping::Nothing };
        let own = directory.and_then(Attributes::durability);
        own.map_or(by_default, Keeping::from)
    }

    fn add(&mut self, kept: KeptBack) {
        self.names.insert(kept.named());
        self.order.add(kept.turn(), kept.place.ino, kept.in_order);
        self.uncalled += usize::from(kept.in_order);
        self.kept.insert(kept.place.ino, kept);
    }
}

impl Caps {
    /// From now on the owner has changes kept back, so where a directory does not say, and lets
    /// them land when it is told to; or it does not.
    pub fn keep_back(&mut self, keeping: Option<Keeping>) {
        self.alone.keeping = keeping.filter(|_| self.is_on);
    }

    /// From now on the order is kept where it is to be; or not, as some node has no room.
    pub fn keep_order(&mut self, is_kept: bool) {
        self.alone.order.is_suspended = !is_kept;
    }

    /// The client has made or removed a file in that directory: with enough of them it asks to hold
    /// the directory exclusively.
    pub(super) fn count_changed(&mut self, now: Time, directory: Place, is_removed: bool) {
        let ino = directory.ino;
        let paused = self.paused.get(&ino).is_some_and(|(until, _)| *until > now);
        let known = self.known.get(&ino);
        let held = known.is_some_and(|known| !known.alone);
        let shown = known.and_then(|known| known.attributes.value.as_ref());
        let would_keep = match self.keeping_in(shown) {
            Keeping::Nothing => false,
            Keeping::Files => !is_removed,
            Keeping::InOrder => true,
        };
        if !would_keep || self.ends || paused || !held || ino.is_top() {
            return;
        }
        if self.alone.made.len() >= LOOKED_MAX {
            self.alone.made.clear();
        }
        let (since, made) = self.alone.made.entry(ino).or_insert((now, 0));
        if now.since(*since) > LOOKS_WITHIN {
            (*since, *made) = (now, 0);
        }
        *made += 1;
        if *made >= MADE {
            self.alone.made.remove(&ino);
            let lease = self.leases.entry(directory.partition).or_default();
            lease.wanted_alone.insert(ino);
        }
    }

    /// It was asked at `sent` to hold a directory exclusively, and it does or not.
    pub(super) fn on_alone(&mut self, now: Time, place: Place, sent: Time, granted: bool) {
        let lasted = self.has_lasted(now, place.partition, sent);
        let lease = self.leases.entry(place.partition).or_default();
        lease.asking_alone = None;
        let goes = lease.going.contains(&place.ino);
        if !granted {
            self.paused.insert(place.ino, (now + super::PAUSE.0, super::PAUSE.0));
        } else if lasted
            && !goes
            && let Some(known) = self.known.get_mut(&place.ino)
        {
            known.alone = true;
            self.survey(place.ino);
        }
    }

    fn keeping_in(&self, directory: Option<&Attributes>) -> Keeping {
        let directory = directory.filter(|_| !self.mutation.is(Mutation::IgnoresModes));
        self.alone.keeping_in(directory)
    }

    /// Whether something may be kept back under that name of a directory (K7); what is known of the
    /// directory, and what the name leads to.
    fn may_keep(
        &mut self,
        now: Time,
        (parent, name): (Place, &Name),
        vector: &Vector,
    ) -> Option<(Attributes, Option<Entry>)> {
        let full = self.alone.kept.len() >= KEPT_BACK_MAX;
        if self.alone.keeping.is_none() || full || self.ends {
            return None;
        }
        self.lapse(now);
        let is_busy = self.busy_names.contains_key(&(parent.ino, name.clone()))
            || self.alone.is_taken(parent.ino, name);
        if is_busy || self.is_odd(parent.ino) {
            return None;
        }
        let directory = self.attributes(now, parent, vector)?;
        let known = self.usable(now, parent, vector)?;
        if !known.alone {
            return None;
        }
        let entry = known.name(name)?;
        let lease = self.leases.get(&parent.partition)?;
        (lease.until.since(now) >= LASTS).then_some((directory, entry))
    }

    /// Keeps back a new file, if it may; answers what it is.
    pub fn begin_new(
        &mut self,
        now: Time,
        (parent, name): (Place, &Name),
        (node, time): (&NewNode, Timestamp),
        vector: &Vector,
    ) -> Option<Attributes> {
        let (directory, entry) = self.may_keep(now, (parent, name), vector)?;
        let keeping = self.keeping_new(&directory, name);
        if entry.is_some() || node.kind != Kind::File || keeping == Keeping::Nothing {
            return None;
        }
        let ino = Ino::chosen(parent.partition, self.by, self.alone.last + 1);
        let place = Place { ino, ..parent };
        let made = node.attributes_in(&directory, place, time)?;
        self.keep(keeping == Keeping::InOrder, (parent, name), (place, What::Made(made)), time);
        Some(made)
    }

    /// As what a new file may be kept back under a name for which [`Caps::may_keep`] is true.
    fn keeping_new(&self, directory: &Attributes, name: &Name) -> Keeping {
        match self.keeping_in(Some(directory)) {
            // It is to come after the file that went.
            Keeping::Files if self.keeps_name(directory.place.ino, name) => Keeping::Nothing,
            keeping => keeping,
        }
    }

    /// Keeps back that a name goes which leads to that file, if it may; whether it does. The client
    /// must not have the file open.
    pub fn begin_removal(
        &mut self,
        now: Time,
        (parent, name): (Place, &Name),
        (child, time): (Place, Timestamp),
        vector: &Vector,
    ) -> bool {
        if self.unmake(now, (parent, name), (child, time), vector) {
            return true;
        }
        let may = self.may_keep(now, (parent, name), vector);
        let Some((directory, Some(entry))) = may else { return false };
        let goes = entry.place == child && self.may_remove(now, (&directory, &entry), vector);
        if goes {
            self.end_written(child.ino); // It is never sent.
            self.keep(true, (parent, name), (child, What::Removed), time);
        }
        goes
    }

    /// Whether the removal of a name that leads there may be kept back in a directory of which
    /// [`Caps::may_keep`] is true. It must be the last: who looks at another is to see that this
    /// one went, and need not look in the directory.
    fn may_remove(
        &mut self,
        now: Time,
        (directory, entry): (&Attributes, &Entry),
        vector: &Vector,
    ) -> bool {
        let Entry { place, kind } = entry;
        let shown = self.attributes(now, *place, vector);
        let is_last = self.is_own(place.ino) || shown.is_some_and(|shown| shown.nlink == 1);
        self.keeping_in(Some(directory)) == Keeping::InOrder
            && (is_last || self.mutation.is(Mutation::RemovesOneName))
            && !self.alone.order.is_suspended
            && *kind != Kind::Directory
            && place.partition == directory.place.partition
            && (!self.is_unlanded(place.ino) || self.alone.is_written_unsent(place.ino))
            && !self.busy.contains_key(&place.ino)
    }

    /// What a change under that name would be about if it would be kept back now: the directory if
    /// the name leads nowhere and a file is made, or the file that is there and is removed.
    pub fn would_keep(
        &mut self,
        now: Time,
        (parent, name): (Place, &Name),
        vector: &Vector,
    ) -> Option<Place> {
        let (directory, entry) = self.may_keep(now, (parent, name), vector)?;
        match entry {
            None => {
                let keeps = self.keeping_new(&directory, name) != Keeping::Nothing;
                keeps.then_some(parent)
            }
            Some(entry) => {
                let may = self.may_remove(now, (&directory, &entry), vector);
                may.then_some(entry.place)
            }
        }
    }

    fn keep(
        &mut self,
        in_order: bool,
        (parent, name): (Place, &Name),
        (place, what): (Place, What),
        time: Timestamp,
    ) {
        // Before this is added: a new file has yet to be written.
        if self.alone.uncalled >= LANDS_AT && !self.alone.order.is_suspended {
            self.call_all_to_land();
        }
        let releases = self.mutation.is(Mutation::ReleasesUnlanded)
            || self.mutation.is(Mutation::ReleasesUnwritten) && matches!(what, What::Written);
        if !releases {
            let lease = self.leases.entry(parent.partition).or_default();
            *lease.unlanded.entry(parent.ino).or_default() += 1;
        }
        self.alone.last += 1;
        let number = self.alone.last;
        let granted = self.known.get(&parent.ino).expect("K7: it is held").granted;
        self.show_kept((parent, name), (place, what), time);
        let (name, called) = (name.clone(), false);
        let kept = KeptBack { parent, name, place, what, time, granted, number, in_order, called };
        self.alone.add(kept);
        self.kept_back += 1;
    }

    /// What is kept back is shown of its directory from now on.
    fn show_kept(
        &mut self,
        (parent, name): (Place, &Name),
        (place, what): (Place, What),
        time: Timestamp,
    ) {
        self.count += 1;
        let leads = match what {
            What::Made(made) => Some(Entry { place, kind: made.kind }),
            What::Removed => None,
            What::Written => return,
        };
        if leads.is_none()
            && let Some(known) = self.known.get_mut(&place.ino)
        {
            known.attributes.touch(self.count);
        }
        let adds = Entries::kept(leads.is_some(), time);
        if let Some(known) = self.known.get_mut(&parent.ino) {
            known.attributes.touched_by(self.count, |of| adds.add_to(of, true));
        }
        self.change_names(parent.ino, |known, count| known.keep_name(name, count, leads));
    }

    /// What is kept back is shown as it was made, as long as its directory may be used (K9).
    pub(super) fn newborn(
        &mut self,
        now: Time,
        ino: Ino,
        vector: &Vector,
    ) -> Option<Option<Attributes>> {
        let kept = self.alone.kept.get(&ino)?;
        let (parent, granted) = (kept.parent, kept.granted);
        let made = match kept.what {
            What::Made(made) => Some(made),
            What::Removed => None,
            What::Written => return None, // The owner shows it over what is known of the file.
        };
        if self.mutation.is(Mutation::ShowsLapsed) {
            return Some(made);
        }
        let known = self.usable(now, parent, vector).filter(|known| known.granted == granted);
        Some(known.and(made))
    }

    /// Whether something is kept back in a directory from before it was held last.
    pub(super) fn is_odd(&self, directory: Ino) -> bool {
        let granted = self.known.get(&directory).map(|known| known.granted);
        let mut within = self.alone.within(directory);
        within.any(|ino| self.alone.kept.get(&ino).is_none_or(|of| Some(of.granted) != granted))
    }

    /// What is kept back that a replica does not know of, and that the question is about.
    pub fn unlanded_of_query(&self, query: &Query) -> BTreeSet<Ino> {
        if self.alone.kept.is_empty() {
            return BTreeSet::new();
        }
        let hides = |ino: &Ino| self.alone.hides(*ino);
        let own = query.inode().filter(hides);
        match query {
            Query::Lookup { parent, name } => {
                self.alone.named(parent.ino, name).filter(hides).collect()
            }
            Query::Attributes { inode } | Query::Directory { inode, .. } => {
                self.alone.within(inode.ino).filter(hides).chain(own).collect()
            }
            _ => own.into_iter().collect(),
        }
    }

    /// What comes before an update of the client: what it is about, and all that is in order (K10).
    /// What lands something comes only after what was kept back in order before.
    pub fn unlanded_before(&self, update: &Update) -> BTreeSet<Ino> {
        if self.alone.kept.is_empty() {
            return BTreeSet::new();
        }
        let lands = Landing::all_of(self, update, Timestamp::default());
        let mut all = self.ordered_before(update, &lands);
        if !lands.is_empty() || matches!(update, Update::Make(_) | Update::Batch(_)) {
            return all;
        }
        let names = update.names();
        let named = names.iter().flat_map(|(parent, name)| self.alone.named(parent.ino, name));
        let touched = update.partitions().into_iter().flat_map(|group| update.inodes_in(group));
        let touched: BTreeSet<_> = touched.collect();
        let own = touched.iter().copied().filter(|ino| self.alone.kept.contains_key(ino));
        // What changes a directory in another way than by an entry comes after all in it.
        let whole = update.alters().into_iter().filter(|of| !Entries::are_all(update, *of));
        let within = whole.flat_map(|of| self.alone.within(of.ino));
        all.extend(named.chain(own).chain(within));
        all
    }

    /// K10: what is in order and comes before an update that lands these, or nothing. A batch
    /// brings what is in it in its order. Under one name the order is kept when it is suspended,
    /// too.
    fn ordered_before(&self, update: &Update, lands: &[Landing]) -> BTreeSet<Ino> {
        if self.mutation.is(Mutation::Overtakes) {
            return BTreeSet::new();
        }
        let named = lands.iter().flat_map(|landing| self.alone.named_before(landing.ino));
        let end = lands.iter().map(|landing| landing.number).max().unwrap_or(u64::MAX);
        let groups = update.partitions().into_iter();
        let before = groups.flat_map(|group| self.alone.order.before((group, end)));
        let before = before.filter_map(|turn| self.alone.order.at(turn)).chain(named);
        before.filter(|ino| !lands.iter().any(|landing| landing.ino == *ino)).collect()
    }

    /// Whether something is kept back under that name.
    pub(super) fn keeps_name(&self, directory: Ino, name: &Name) -> bool {
        self.alone.named(directory, name).next().is_some()
    }

    /// Whether an inode is kept back, or something in it.
    pub(super) fn keeps_some_of(&self, ino: Ino) -> bool {
        self.alone.kept.contains_key(&ino) || self.alone.within(ino).next().is_some()
    }

    /// Whether the client's lease has lasted from `since` until now, so that what it keeps back
    /// there is what others must see, too.
    pub fn has_kept(&self, now: Time, group: GroupId, since: Time) -> bool {
        self.has_lasted(now, group, since)
    }

    /// Panics unless what is kept back is named, and counted (K8).
    pub(super) fn check_alone(&self) {
        if [Mutation::ReleasesUnlanded, Mutation::ReleasesUnwritten].contains(&self.mutation) {
            return;
        }
        let named = self.alone.kept.values().map(KeptBack::named);
        assert_eq!(named.collect::<BTreeSet<_>>(), self.alone.names, "K7: the names");
        let all: BTreeSet<_> = self.alone.kept.keys().copied().collect();
        let ordered: BTreeSet<_> = self.alone.order.all().map(|(_, ino)| ino).collect();
        assert_eq!(ordered, all, "K10: the order of what is kept back");
        let strict = self.alone.kept.values().filter(|of| of.in_order);
        let strict: BTreeSet<_> = strict.map(KeptBack::turn).collect();
        assert!(self.alone.order.strict().eq(strict), "K10: those of which the order is kept");
        let uncalled = self.alone.kept.values().filter(|of| of.in_order && !of.called).count();
        assert_eq!(uncalled, self.alone.uncalled, "those that the owner knows nothing of");
        let mut counts = BTreeMap::<Ino, u32>::new();
        self.alone.kept.values().for_each(|of| *counts.entry(of.parent.ino).or_default() += 1);
        let counted = self.leases.values().flat_map(|lease| lease.unlanded.clone());
        assert_eq!(counts, counted.collect(), "K8: what is kept back in directories");
    }
}

#[cfg(test)]
#[path = "alone_tests.rs"]
mod tests;
