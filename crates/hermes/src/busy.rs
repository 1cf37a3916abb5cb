//! What a replica has of a key that is not Valid: the updates that it coordinates, and who waits.
//!
//! The entry of a key names the place of what is here of it; without one the key is Valid. The
//! paper's other states are read from what is here.

use crate::members::NodeSet;
use crate::message::{Modify, Request, Update};
use crate::store::Entry;
use crate::timestamp::Timestamp;
use bytes::Bytes;
use meridian_core::{MessageId, Slot, Time};
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// The state of a key at a replica (Hermes, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// It may be read.
    Valid,
    /// Another replica coordinates an update that may not be committed yet.
    Invalid,
    /// This replica coordinates the update that it holds.
    Write,
    /// This replica replays the update that it holds, as the coordinator has gone.
    Replay,
    /// This replica coordinates a write that a later update has superseded.
    Trans,
}

/// An update that this replica coordinates. It is kept apart from what the replica holds of the
/// key, so that a later update cannot make it forget who asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pending<M> {
    pub ts: Timestamp,
    /// Its number in this epoch, if it was begun in it.
    pub number: Option<u64>,
    /// It was said again, by name: not all followers know its number.
    pub named: bool,
    /// Who has acknowledged it, in this epoch.
    pub acks: NodeSet,
    /// An RMW that has met a later update: it is not committed any more (M3).
    pub losing: bool,
    pub token: u64,
    /// Of writes that take effect directly before this one (decision 55).
    pub before: Vec<u64>,
    pub id: Option<MessageId>,
    pub bytes: usize,
    /// The update, once something later is held in its place.
    pub superseded: Option<Box<Update>>,
    /// Of an RMW, which may have to be computed anew.
    pub rmw: Option<Box<Attempt<M>>>,
}

impl<M> Pending<M> {
    /// Whom its end is told.
    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.before.iter().copied().chain([self.token])
    }

    /// The update itself: what is held, if nothing later is.
    pub fn update(&self, entry: &Entry) -> Update {
        self.superseded.as_deref().cloned().unwrap_or_else(|| entry.update())
    }
}

/// An RMW that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt<M> {
    pub request: Request<M>,
    /// So often it was tried before.
    pub attempt: u32,
    /// What it answers once it is committed.
    pub answer: Bytes,
}

/// Who waits for a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Parked<M> {
    Read {
        token: u64,
    },
    /// So often it was tried before.
    Update(Request<M>, u32),
}

impl<M: Modify> Parked<M> {
    pub fn bytes(&self) -> usize {
        match self {
            Parked::Read { .. } => 0,
            Parked::Update(request, _) => request.bytes(),
        }
    }

    /// Its name, if it may be asked again.
    fn id(&self) -> Option<MessageId> {
        match self {
            Parked::Read { .. } => None,
            Parked::Update(request, _) => request.id,
        }
    }
}

/// A key that is not Valid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Busy<M> {
    /// Which key.
    pub slot: Slot,
    pub own: Option<Pending<M>>,
    /// Who has acknowledged the replay of what is held.
    pub replay: Option<NodeSet>,
    /// Who holds it, as far as is known here: for ACKs that go to all.
    pub heard: NodeSet,
    pub parked: VecDeque<Parked<M>>,
    /// When something is to be said again.
    pub due: Time,
}

impl<M: Modify> Busy<M> {
    fn new(slot: Slot, due: Time) -> Self {
        let (replay, heard) = (None, NodeSet::default());
        Busy { slot, own: None, replay, heard, parked: VecDeque::new(), due }
    }

    /// How many bytes the own update and who waits have, without the key.
    pub fn bytes(&self) -> usize {
        let parked: usize = self.parked.iter().map(Parked::bytes).sum();
        self.own.as_ref().map_or(0, |own| own.bytes) + parked
    }

    /// Where among those that wait one more belongs: at the end. A request that is asked again
    /// waits directly behind itself: so nothing comes between the two, and both have one answer.
    fn place_of(&self, parked: &Parked<M>) -> usize {
        let end = self.parked.len();
        let Some(id) = parked.id() else { return end };
        let same = self.parked.iter().rposition(|other| other.id() == Some(id));
        let own = self.own.as_ref().filter(|own| own.id == Some(id));
        same.map(|last| last + 1).or(own.map(|_| 0)).unwrap_or(end)
    }

    pub fn state(&self, entry: &Entry) -> State {
        match &self.own {
            _ if self.replay.is_some() => State::Replay,
            Some(own) if own.ts == entry.ts => State::Write,
            Some(own) if !own.losing => State::Trans,
            Some(_) | None => State::Invalid,
        }
    }
}

/// Where among all that is under way what there is of a key is: its number, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place(NonZeroU32);

impl Place {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// So much room is kept when nothing is under way: for what usually is.
const ROOM: usize = 1024;

/// All keys that are not Valid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unsettled<M> {
    places: Vec<Option<Busy<M>>>,
    /// Those that are free.
    free: Vec<Place>,
    /// How many wait, for all keys.
    pub parked: usize,
    /// How many bytes the own updates and those that wait have, without their keys.
    pub bytes: usize,
}

impl<M> Default for Unsettled<M> {
    fn default() -> Self {
        Unsettled { places: Vec::new(), free: Vec::new(), parked: 0, bytes: 0 }
    }
}

impl<M> Unsettled<M> {
    /// Whether all keys are Valid.
    pub fn is_empty(&self) -> bool {
        self.places.len() == self.free.len()
    }

    /// What there is of each key, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Busy<M>> {
        self.places.iter().flatten()
    }

    /// The keys of which `wanted` holds, in order.
    pub fn slots(&self, wanted: impl Fn(&Busy<M>) -> bool) -> Vec<Slot> {
        let mut slots: Vec<_> =
            self.iter().filter(|busy| wanted(busy)).map(|busy| busy.slot).collect();
        slots.sort_unstable();
        slots
    }

    /// What there is of a key.
    pub fn get(&self, entry: &Entry) -> Option<&Busy<M>> {
        self.places[entry.busy?.index()].as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, entry: &Entry) -> Option<&mut Busy<M>> {
        self.places[entry.busy?.index()].as_mut()
    }

    /// The own update of a key.
    pub fn own(&self, entry: &Entry) -> Option<&Pending<M>> {
        self.get(entry)?.own.as_ref()
    }
}

impl<M: Modify> Unsettled<M> {
    /// What is known of a key; it is not Valid from now on.
    pub fn at(&mut self, slot: Slot, entry: &mut Entry, due: Time) -> &mut Busy<M> {
        let place = *entry.busy.get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.places.push(None);
                let number = u32::try_from(self.places.len()).ok().and_then(NonZeroU32::new);
                Place(number.expect("fewer keys than the memory holds"))
            })
        });
        self.places[place.index()].get_or_insert_with(|| Busy::new(slot, due))
    }

    /// One more waits for a key, in the place where it belongs.
    pub fn park_one(&mut self, (slot, entry): (Slot, &mut Entry), due: Time, parked: Parked<M>) {
        self.parked += 1;
        self.bytes += parked.bytes();
        let busy = self.at(slot, entry, due);
        let place = busy.place_of(&parked);
        busy.parked.insert(place, parked);
    }

    /// These wait for a key, behind who does already.
    pub fn park(
        &mut self,
        (slot, entry): (Slot, &mut Entry),
        due: Time,
        parked: VecDeque<Parked<M>>,
    ) {
        self.parked += parked.len();
        self.bytes += parked.iter().map(Parked::bytes).sum::<usize>();
        self.at(slot, entry, due).parked.extend(parked);
    }

    /// The key is Valid: what there was of it.
    pub fn remove(&mut self, entry: &mut Entry) -> Option<Busy<M>> {
        let place = entry.busy.take()?;
        let busy = self.places[place.index()].take()?;
        self.free.push(place);
        self.parked -= busy.parked.len();
        self.bytes -= busy.bytes();
        if self.is_empty() {
            self.places.clear();
            self.free.clear();
            self.places.shrink_to(ROOM);
            self.free.shrink_to(ROOM);
        }
        Some(busy)
    }

    /// The own update of a key is no more under way.
    pub fn end_own(&mut self, entry: &Entry) -> Option<Pending<M>> {
        let own = self.get_mut(entry)?.own.take()?;
        self.bytes -= own.bytes;
        Some(own)
    }

    /// What there was, in order of keys.
    pub fn into_all(self) -> Vec<Busy<M>> {
        let mut all: Vec<_> = self.places.into_iter().flatten().collect();
        all.sort_unstable_by_key(|busy| busy.slot);
        all
    }
}
