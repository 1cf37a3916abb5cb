//! New directories in which their maker makes files at once, so that it holds them exclusively, and
//! keeps files back there: these land after a while, or when somebody else comes.

use super::register::{Change, Thing, Value};
use super::{LooksWorkload, NAMES, PATIENCE, Plan};
use crate::of::files::net::{Crowd, Plan as Planned};
use crate::world::Stimulus;
use bytes::Bytes;
use meridian_core::{Event, GroupId, Time};
use meridian_fs::batch::{Kept, Part, Written};
use meridian_fs::operation::{Changes, NewNode, WriteAt};
use meridian_fs::settled::Made;
use meridian_fs::{Done, FsError, Ino, Kind, Place, Query, Setting, Timestamp, Update};
use meridian_host::Node;
use meridian_session::{CallId, Command as Ask, Session, ToLand};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The names that are used there, those among them that others look at first.
const USED: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// So often a client uses such a directory before others hear of it.
const USES_MAX: u32 = 40;

/// A file lands within so many milliseconds if nobody asks for it.
const LANDS_MS: u64 = 900;

/// What a client has to do with such directories.
#[derive(Debug, Default)]
pub(super) struct Nests {
    /// The one in which it makes files, and whether others know of it.
    nest: Option<(Place, bool)>,
    /// Whether that has said that its order is kept.
    keeps_order: bool,
    /// What it keeps back, and since when.
    newborns: BTreeMap<Ino, Newborn>,
    landings: BTreeMap<CallId, Ino>,
    /// Another name of a file there, in a directory that all use.
    linked: Option<(Place, Bytes)>,
    /// How often it has used the directory.
    uses: u32,
}

/// Something that is kept back.
#[derive(Clone, Debug)]
pub(super) struct Newborn {
    parent: Place,
    name: Bytes,
    node: NewNode,
    sent: bool,
    /// The last call before it.
    after: CallId,
    what: What,
}

/// What is kept back of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Made,
    Removed,
    /// Who its owner is.
    Given(Place, u32),
}

impl Newborn {
    /// The removal of a file.
    pub fn removed(parent: Place, name: Bytes, after: CallId) -> Newborn {
        let (node, sent) = (NewNode::new(Kind::File, 0o755), false);
        Newborn { parent, name, node, sent, after, what: What::Removed }
    }

    /// That the file has another owner.
    pub fn given(
        parent: Place,
        name: Bytes,
        (file, owner): (Place, u32),
        after: CallId,
    ) -> Newborn {
        Newborn { what: What::Given(file, owner), ..Newborn::removed(parent, name, after) }
    }

    fn made(self, ino: Ino) -> Made {
        let Newborn { parent, name, node, .. } = self;
        let time = Timestamp::default();
        let (pieces, settings, at) = (Vec::new(), Vec::new(), WriteAt::End);
        Made { parent, name, node, ino, made: time, at, pieces, written: time, settings }
    }
}

/// The names that are used there.
pub(super) fn names() -> impl IntoIterator<Item = Bytes> {
    USED.iter().map(|name| Bytes::from_static(name.as_bytes()))
}

impl Nests {
    /// The client has made a directory; whether it makes files there before others hear of it.
    pub fn settle(&mut self, made: Place) -> bool {
        let has_none = self.nest.is_none();
        if has_none {
            (self.nest, self.uses) = (Some((made, false)), 0);
        }
        self.keeps_order &= !has_none;
        has_none
    }

    /// The directory has said that its order is kept.
    pub fn set_order(&mut self, directory: Place) {
        self.keeps_order |= self.nest.is_some_and(|(nest, _)| nest == directory);
    }

    /// The one that nobody else knows of.
    fn reveal(&mut self) -> Option<Place> {
        let (nest, known) = self.nest.as_mut()?;
        (!std::mem::replace(known, true)).then_some(*nest)
    }

    /// Something is kept back.
    pub fn keep(&mut self, ino: Ino, newborn: Newborn) {
        self.newborns.insert(ino, newborn);
    }

    /// It is not any more.
    pub fn landed(&mut self, ino: Ino) {
        self.newborns.remove(&ino).expect("it was kept back");
    }

    /// What makes or changes that file.
    pub fn part(&self, place: Place) -> Part {
        let newborn = self.newborns.get(&place.ino).expect("it was kept back").clone();
        let time = Timestamp::default();
        let What::Given(inode, owner) = newborn.what else {
            return Part { time, kept: Kept::Make(Box::new(newborn.made(place.ino))) };
        };
        let Newborn { parent, name, .. } = newborn;
        let changes = Changes { uid: Some(owner), ..Changes::default() };
        let (at, pieces, settings) = (WriteAt::End, Vec::new(), vec![Setting::Attributes(changes)]);
        let written = Written { parent, name, inode, at, pieces, written: time, settings };
        Part { time, kept: Kept::Write(Box::new(written)) }
    }

    /// What is kept back of that file, if anything: that it is there, or not, or who owns it.
    pub fn kept(&self, file: Place) -> Option<Value> {
        let newborn = self.newborns.get(&file.ino)?;
        Some(match newborn.what {
            What::Made => Value::Leads(file),
            What::Removed => Value::Absent,
            What::Given(_, owner) => Value::Owner(owner),
        })
    }

    /// The file is given to another still before that was sent.
    pub fn give_again(&mut self, ino: Ino, owner: u32) {
        let newborn = self.newborns.get_mut(&ino).expect("it is kept back");
        let What::Given(file, _) = newborn.what else { panic!("{newborn:?} is given to nobody") };
        newborn.what = What::Given(file, owner);
    }

    /// Whether it keeps the removal of that file back since before that call.
    pub fn removes_before(&self, call: CallId, ino: Ino) -> bool {
        let newborn = self.newborns.get(&ino);
        newborn.is_some_and(|of| of.what == What::Removed && of.after < call)
    }

    /// A file there that is kept back.
    pub fn unsent(&self, parent: Place) -> Option<(Bytes, Place)> {
        let mut all = self.newborns.iter();
        let (ino, newborn) =
            all.find(|(_, of)| of.what == What::Made && of.parent == parent && !of.sent)?;
        Some((newborn.name.clone(), Place { ino: *ino, ..parent }))
    }

    /// What is kept back of that file is never sent.
    pub fn forget(&mut self, ino: Ino) {
        self.newborns.remove(&ino);
    }

    /// Something that was kept back in one of these partitions before that call.
    pub fn kept_before(&self, call: CallId, groups: &[GroupId]) -> Option<&Bytes> {
        let such = |of: &&Newborn| of.after < call && groups.contains(&of.parent.partition);
        self.newborns.values().find(such).map(|of| &of.name)
    }

    /// Whether nothing is kept back.
    pub fn is_done(&self) -> bool {
        self.newborns.is_empty()
    }
}

impl LooksWorkload {
    /// A client with a new directory makes a file there, at times.
    pub(super) fn use_nest(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let Some((parent, known)) = self.clients[at].nests.nest else {
            return self.land_rest(at, now);
        };
        if self.by_directory && !self.clients[at].nests.keeps_order {
            return self.change_nest(at, now, Change::KeepOrder(parent));
        }
        if known && self.net.random.random_bool(0.3) {
            return Vec::new();
        }
        self.clients[at].nests.uses += 1;
        if self.in_order
            && self.clients[at].nests.uses < USES_MAX
            && let Some(stimuli) = self.change_in_order(at, now, parent)
        {
            return stimuli;
        }
        let name = names();
        let again = self.in_order && self.net.random.random_bool(0.5);
        let free = |name: &Bytes| {
            let thing = Thing::Name(parent.ino, name.clone());
            self.registers.is_free(&thing) || again && self.registers.goes(&thing, at)
        };
        let Some(name) = name.into_iter().find(free) else {
            let nest = self.clients[at].nests.reveal();
            self.directories.extend(nest);
            self.clients[at].nests.nest = None;
            return Vec::new();
        };
        let node = NewNode::new(Kind::File, 0o755);
        let session = self.net.session(at);
        let made = session.begin_new(now, (parent, &name), (&node, Timestamp::default()));
        if let Some(made) = made {
            self.net.counts.add("kept back", 1);
            let thing = Thing::Name(parent.ino, name.clone());
            if self.registers.goes(&thing, at) {
                self.net.counts.add("names made anew", 1);
            }
            let keeper = (at, now, parent.partition);
            self.registers.keep(thing, Value::Leads(made.place), keeper);
            self.private.insert(made.place.ino);
            let removed = Newborn::removed(parent, name, self.clients[at].last);
            let newborn = Newborn { node, what: What::Made, ..removed };
            self.clients[at].nests.newborns.insert(made.place.ino, newborn);
            // What is written to what was made there is kept back as long as nobody else looks.
            let reveals = if self.writes { 0.1 } else { 0.5 };
            if self.net.random.random_bool(reveals) {
                let nest = self.clients[at].nests.reveal();
                self.directories.extend(nest);
            }
            if self.in_order {
                return Vec::new();
            }
            let ms = self.net.random.random_range(1..LANDS_MS);
            let plan = Planned::Own(Plan::Land(made.place.ino));
            return vec![self.net.plan(at, Duration::from_millis(ms), plan)];
        }
        self.change_nest(at, now, Change::Make(parent, name))
    }

    /// A client that keeps the order has things land there, or changes something, at times.
    fn change_in_order(
        &mut self,
        at: usize,
        now: Time,
        parent: Place,
    ) -> Option<Vec<Stimulus<Node>>> {
        if self.net.random.random_bool(0.1) {
            return Some(self.step(at, now, Event::Command(Ask::Land)));
        }
        if self.links && self.net.random.random_bool(0.2) {
            return Some(self.link_from_nest(at, now, parent));
        }
        if self.net.random.random_bool(0.4) {
            self.remove_from_nest(at, now, parent);
            let linked = self.clients[at].nests.linked.clone();
            let look = linked.map(|(parent, name)| Query::Lookup { parent, name });
            return Some(look.map_or(Vec::new(), |look| self.look_at(at, now, look)));
        }
        if self.writes && self.net.random.random_bool(0.4) {
            self.give_in_nest(at, now, parent);
            return Some(Vec::new());
        }
        None
    }

    /// A client gives a file there another name, in a directory that all use.
    fn link_from_nest(&mut self, at: usize, now: Time, parent: Place) -> Vec<Stimulus<Node>> {
        let Some((_, file)) = self.drawn_in_nest(parent) else { return Vec::new() };
        let near = self.directories.iter().filter(|of| of.partition == parent.partition);
        let near: Vec<_> = near.copied().collect();
        let random = &mut self.net.random;
        let (Some(to), Some(name)) = (near.choose(random), NAMES.choose(random)) else {
            return Vec::new();
        };
        let to = (*to, Bytes::from_static(name.as_bytes()));
        if self.clients[at].doing.is_none() {
            self.net.counts.add("linked", 1);
            self.clients[at].nests.linked = Some(to.clone());
        }
        self.change_nest(at, now, Change::Link(file, to))
    }

    /// All that is kept back by who has no such directory any more lands, at times.
    fn land_rest(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let is_some = self.in_order && !self.clients[at].nests.is_done();
        match is_some && self.net.random.random_bool(0.1) {
            true => self.step(at, now, Event::Command(Ask::Land)),
            false => Vec::new(),
        }
    }

    /// A client does that in its directory, unless it waits for something.
    fn change_nest(&mut self, at: usize, now: Time, change: Change) -> Vec<Stimulus<Node>> {
        let client = &mut self.clients[at];
        if client.doing.is_some() {
            return Vec::new();
        }
        client.last.0 += 1;
        let call = client.last;
        self.registers.begin((at, call), &change);
        let update = change.update();
        self.clients[at].doing = Some((call, change));
        let change = meridian_host::update::Change::new(Timestamp::default(), update);
        let ask = Ask::Update { call, change, deadline: now + PATIENCE };
        self.step(at, now, Event::Command(ask))
    }

    /// The session wants these to land: the owner needs a moment for the last.
    pub(super) fn called_to_land(
        &mut self,
        at: usize,
        all: Vec<ToLand>,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>> {
        if self.in_order {
            return Some(self.called_in_order(at, all));
        }
        let mut files: Vec<_> = all.into_iter().filter_map(file).collect();
        self.net.counts.add("called to land", files.len() as u64);
        let last = files.pop()?;
        for file in files {
            let ask = self.land(at, file.ino);
            events.extend(ask.map(Event::Command));
        }
        let after = Duration::from_micros(self.net.random.random_range(10..20_000));
        Some(self.net.plan(at, after, Planned::Own(Plan::Land(last.ino))))
    }

    /// A file lands, unless it has.
    pub(super) fn land(&mut self, at: usize, ino: Ino) -> Option<Ask> {
        let client = &mut self.clients[at];
        let newborn = client.nests.newborns.get_mut(&ino)?;
        if std::mem::replace(&mut newborn.sent, true) {
            return None;
        }
        let newborn = newborn.clone();
        client.last.0 += 1;
        let call = client.last;
        client.nests.landings.insert(call, ino);
        let value = Value::Leads(Place { ino, ..newborn.parent });
        let thing = Thing::Name(newborn.parent.ino, newborn.name.clone());
        self.registers.begin_landing((at, call), vec![(thing, value)]);
        let made = Update::Make(Box::new(newborn.made(ino)));
        let change = meridian_host::update::Change::new(Timestamp::default(), made);
        Some(Ask::Update { call, change, deadline: self.now + PATIENCE })
    }

    /// A file has landed, or never will; whether that call was about one.
    pub(super) fn has_landed(&mut self, at: usize, call: CallId, error: Option<FsError>) -> bool {
        let nests = &mut self.clients[at].nests;
        let Some(ino) = nests.landings.remove(&call) else { return false };
        let newborn = nests.newborns.remove(&ino).expect("it was kept back");
        let made = Place { ino, ..newborn.parent };
        let thing = Thing::Name(newborn.parent.ino, newborn.name);
        self.judge_landed(at, (&thing, Value::Leads(made)), error);
        true
    }

    /// What was kept back of a thing is so for all now, or never will be, which may only be if its
    /// keeper's lease has run out.
    pub(super) fn judge_landed(
        &mut self,
        at: usize,
        (thing, value): (&Thing, Value),
        error: Option<FsError>,
    ) {
        let strict = self.is_strict(thing);
        self.registers.let_land(thing, value, error.is_some());
        match error {
            None => self.net.counts.add("landed", 1),
            Some(error) => {
                self.net.counts.add("lost", 1);
                if strict && error != FsError::Expired {
                    let what = format!("{thing:?} was kept back, and refused: {error:?}");
                    self.net.violate(format!("kept: client {at}, whose lease has lasted: {what}"));
                }
            }
        }
    }

    /// What is kept back of a thing is what all others must see: its keeper's lease has lasted.
    pub(super) fn is_strict(&mut self, thing: &Thing) -> bool {
        let Some((keeper, since, group)) = self.registers.keeper(thing) else { return false };
        let now = self.now;
        !self.net.is_gone(keeper) && self.net.session(keeper).has_kept(now, group, since)
    }

    /// An answer to a landing that nobody waits for any more is waited for again.
    pub(super) fn land_again(&mut self, at: usize, call: CallId, now: Time) -> Option<Ask> {
        let lands = self.clients[at].nests.landings.contains_key(&call);
        lands.then_some(Ask::Again { call, deadline: now + PATIENCE })
    }
}

fn file(what: ToLand) -> Option<Place> {
    match what {
        ToLand::File(place) => Some(place),
        ToLand::Removal(_) => None, // Kept back only by who keeps the order.
    }
}

/// Whether an update is done, and otherwise why not.
pub(super) fn error_of(result: &Result<Done, FsError>) -> Option<FsError> {
    result.as_ref().err().copied()
}
