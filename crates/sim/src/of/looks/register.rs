//! What was acknowledged of the things that clients change, and what a look may show.

use crate::world::Random;
use bytes::Bytes;
use meridian_core::{GroupId, Stamp, Time};
use meridian_fs::operation::{Changes, NewNode, RenameMode};
use meridian_fs::{Done, Durability, FsError, Ino, Kind, Place, Update};
use meridian_session::CallId;
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Something that changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thing {
    /// What a name leads to.
    Name(Ino, Bytes),
    /// To whom an inode belongs.
    Owner(Ino),
}

/// What a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    Absent,
    Leads(Place),
    Owner(u32),
}

impl Thing {
    /// What it is at first.
    fn first(&self) -> Value {
        match self {
            Thing::Name(..) => Value::Absent,
            Thing::Owner(_) => Value::Owner(0),
        }
    }
}

/// What a client does.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Make(Place, Bytes),
    MakeDirectory(Place, Bytes),
    Remove(Place, Bytes, Place),
    Rename((Place, Bytes), (Place, Bytes), Place),
    Give(Place, u32),
    /// A file gets another name.
    Link(Place, (Place, Bytes)),
    /// What is done in the directory is durable as on a local disk: in its order.
    KeepOrder(Place),
}

/// Who did it, and its call.
pub(super) type Who = (usize, CallId);

#[derive(Clone, Debug)]
struct Register {
    /// The last that was acknowledged; of several with one timestamp nobody told which is later.
    acked: (Stamp, Vec<Value>),
    /// Changes under way: what they make of it; not known of what is made.
    open: BTreeMap<Who, Option<Value>>,
}

/// All things.
#[derive(Clone, Debug, Default)]
pub(super) struct Registers {
    all: BTreeMap<Thing, Register>,
    /// Changes under way.
    open: BTreeMap<Who, Open>,
    owners: u32,
    names: u32,
    /// What is kept back, of what, and since when: what was kept back later lands later.
    kept: BTreeMap<Thing, Vec<Kept>>,
    /// What was kept back and never landed.
    lost: BTreeSet<(Thing, Value)>,
    /// The changes that made a thing something, as far as that is known.
    made: BTreeMap<(Thing, Value), BTreeMap<Who, Made>>,
    /// Counts what begins and what ends.
    events: u64,
}

/// Something that a client keeps back.
#[derive(Clone, Copy, Debug)]
struct Kept {
    value: Value,
    keeper: usize,
    since: Time,
    group: GroupId,
}

/// A change under way: when it began, and what it makes of which things.
#[derive(Clone, Debug)]
struct Open {
    begun: u64,
    things: Vec<(Thing, Option<Value>)>,
}

/// When a change began, and when it was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Made {
    begun: u64,
    acked: Option<u64>,
}

impl Change {
    pub fn update(&self) -> Update {
        let node = |kind| NewNode::new(kind, 0o755);
        match self.clone() {
            Change::Make(parent, name) => Update::Create { parent, name, node: node(Kind::File) },
            Change::MakeDirectory(parent, name) => {
                Update::Create { parent, name, node: node(Kind::Directory) }
            }
            Change::Remove(parent, name, child) => {
                Update::Unlink { parent, name, child, keep_for: None }
            }
            Change::Rename((from, from_name), (to, to_name), moved) => Update::Rename {
                from,
                from_name,
                to,
                to_name,
                moved,
                replaced: None,
                mode: RenameMode::NoReplace,
                ancestors: Vec::new(),
                keep_for: None,
                whiteout: None,
            },
            Change::Give(inode, uid) => Update::SetAttributes {
                inode,
                changes: Changes { uid: Some(uid), ..Changes::default() },
            },
            Change::Link(target, (parent, name)) => Update::Link { target, parent, name },
            Change::KeepOrder(inode) => {
                Update::SetDurability { inode, durability: Some(Durability::Fsync) }
            }
        }
    }

    /// What it gives to another owner.
    pub fn given(&self) -> Option<Ino> {
        match self {
            Change::Give(inode, _) => Some(inode.ino),
            _ => None,
        }
    }

    fn things(&self) -> Vec<(Thing, Option<Value>)> {
        let thing = |place: &Place, name: &Bytes| Thing::Name(place.ino, name.clone());
        match self {
            Change::Make(parent, name) => vec![(thing(parent, name), None)],
            // Nobody else uses its name.
            Change::MakeDirectory(..) => Vec::new(),
            Change::KeepOrder(_) => Vec::new(), // Nobody looks at it.
            Change::Remove(parent, name, _) => vec![(thing(parent, name), Some(Value::Absent))],
            Change::Rename(from, to, moved) => vec![
                (thing(&from.0, &from.1), Some(Value::Absent)),
                (thing(&to.0, &to.1), Some(Value::Leads(*moved))),
            ],
            Change::Link(file, to) => vec![(thing(&to.0, &to.1), Some(Value::Leads(*file)))],
            Change::Give(inode, uid) => vec![(Thing::Owner(inode.ino), Some(Value::Owner(*uid)))],
        }
    }
}

impl Registers {
    fn of(&mut self, thing: &Thing) -> &mut Register {
        let value = thing.first();
        let fresh = || Register { acked: (Stamp(0), vec![value]), open: BTreeMap::new() };
        self.all.entry(thing.clone()).or_insert_with(fresh)
    }

    /// One of the files that are in these directories, if the name that is drawn leads to one.
    pub fn a_file(&mut self, directories: &[Place], random: &mut Random) -> Option<Place> {
        let parent = directories.choose(random)?;
        let name = Bytes::from_static(super::NAMES.choose(random)?.as_bytes());
        match self.of(&Thing::Name(parent.ino, name)).acked.1[..] {
            [Value::Leads(place), ..] => Some(place),
            _ => None,
        }
    }

    /// What some client does next. There may be so many directories at most; whether they are made
    /// in each other mostly.
    pub fn choose(
        &mut self,
        directories: &[Place],
        (max, deep): (usize, bool),
        random: &mut Random,
    ) -> Option<Change> {
        let parent = *directories.choose(random)?;
        let name = Bytes::from_static(super::NAMES.choose(random)?.as_bytes());
        let thing = Thing::Name(parent.ino, name.clone());
        let found = match self.of(&thing).acked.1[..] {
            [Value::Leads(place), ..] => Some(place),
            _ => None,
        };
        Some(match (random.random_range(0..10), found) {
            (0, _) if directories.len() < max => {
                self.names += 1;
                let last = directories.last().filter(|_| deep && random.random_bool(0.7));
                let parent = last.copied().unwrap_or(parent);
                Change::MakeDirectory(parent, format!("d{}", self.names).into())
            }
            (0..4, found) => {
                let given = found.filter(|_| random.random_bool(0.5)).unwrap_or(parent);
                Change::Give(given, self.new_owner())
            }
            (4..7, Some(moved)) => {
                let to = *directories.choose(random)?;
                let to_name = Bytes::from_static(super::NAMES.choose(random)?.as_bytes());
                if (to, &to_name) == (parent, &name) {
                    return None;
                }
                Change::Rename((parent, name), (to, to_name), moved)
            }
            (_, Some(child)) => Change::Remove(parent, name, child),
            (_, None) => Change::Make(parent, name),
        })
    }

    /// One that owns nothing yet.
    pub fn new_owner(&mut self) -> u32 {
        self.owners += 1;
        self.owners
    }

    /// A client begins a change.
    pub fn begin(&mut self, who: Who, change: &Change) {
        let things = change.things();
        self.events += 1;
        let begun = self.events;
        for (thing, value) in &things {
            self.of(thing).open.insert(who, *value);
            if let Some(value) = value {
                let made = self.made.entry((thing.clone(), *value)).or_default();
                made.insert(who, Made { begun, acked: None });
            }
        }
        self.open.insert(who, Open { begun, things });
    }

    /// Whether a name leads to nothing, and nothing is being made of it.
    pub fn is_free(&self, thing: &Thing) -> bool {
        let of = self.all.get(thing);
        let free = of.is_none_or(|of| of.acked.1 == [Value::Absent] && of.open.is_empty());
        free && !self.kept.contains_key(thing)
    }

    /// Whether a name is to lead to nothing, and that client keeps that back.
    pub fn goes(&self, thing: &Thing, by: usize) -> bool {
        self.last_kept(thing).is_some_and(|of| of.keeper == by && of.value == Value::Absent)
    }

    fn last_kept(&self, thing: &Thing) -> Option<&Kept> {
        self.kept.get(thing)?.last()
    }

    /// Where a name leads, if that is known and nothing is being made of it.
    pub fn leads(&self, thing: &Thing) -> Option<Place> {
        let of = self.all.get(thing)?;
        match of.acked.1[..] {
            [Value::Leads(place)] if of.open.is_empty() && !self.kept.contains_key(thing) => {
                Some(place)
            }
            _ => None,
        }
    }

    /// A client has made this of it in that partition, and keeps it back.
    pub fn keep(
        &mut self,
        thing: Thing,
        value: Value,
        (keeper, since, group): (usize, Time, GroupId),
    ) {
        self.events += 1;
        let made = Made { begun: self.events, acked: Some(self.events) };
        let who = (keeper, CallId(u64::MAX - self.events));
        self.made.entry((thing.clone(), value)).or_default().insert(who, made);
        self.kept.entry(thing).or_default().push(Kept { value, keeper, since, group });
    }

    /// It sends that.
    pub fn begin_landing(&mut self, who: Who, things: Vec<(Thing, Value)>) {
        self.events += 1;
        let things: Vec<_> =
            things.into_iter().map(|(thing, value)| (thing, Some(value))).collect();
        for (thing, value) in &things {
            self.of(thing).open.insert(who, *value);
        }
        self.open.insert(who, Open { begun: self.events, things });
    }

    /// So many of those have landed at `ts`, and the others have not.
    pub fn end_landing(&mut self, who: Who, ts: Stamp, count: usize) {
        let Some(open) = self.open.get_mut(&who) else { return };
        let left = open.things.split_off(count);
        for (thing, _) in left {
            self.of(&thing).open.remove(&who);
        }
        self.end(who, ts, &Ok(Done::Nothing));
    }

    /// That is kept back no more.
    pub fn let_land(&mut self, thing: &Thing, value: Value, lost: bool) {
        let Some(all) = self.kept.get_mut(thing) else { return };
        let Some(at) = all.iter().position(|kept| kept.value == value) else { return };
        all.remove(at);
        if all.is_empty() {
            self.kept.remove(thing);
        }
        self.lost.extend(lost.then(|| (thing.clone(), value)));
    }

    /// Who keeps something back of it, since when, and in which partition.
    pub fn keeper(&self, thing: &Thing) -> Option<(usize, Time, GroupId)> {
        let Kept { keeper, since, group, .. } = *self.last_kept(thing)?;
        Some((keeper, since, group))
    }

    /// Whether it was kept back and never landed.
    pub fn is_lost(&self, thing: &Thing, value: Value) -> bool {
        self.lost.contains(&(thing.clone(), value))
    }

    /// A look shows that of a thing of which something is kept back by one whose lease has lasted.
    ///
    /// # Errors
    /// That it is not what is kept back.
    pub fn judge_kept_back(&mut self, thing: &Thing, value: Value) -> Result<(), String> {
        let Some(kept) = self.last_kept(thing).copied() else { return self.judge(thing, value) };
        let others = self.of(thing).open.values().any(|of| *of == Some(value));
        if value == kept.value || others {
            return Ok(());
        }
        Err(format!("{value:?}, and {} keeps {:?} back", kept.keeper, kept.value))
    }

    /// A change was answered.
    pub fn end(&mut self, who: Who, ts: Stamp, result: &Result<Done, FsError>) {
        if *result == Err(FsError::Expired) {
            return; // A repeat that was refused: nobody knows what came of the first.
        }
        self.events += 1;
        let Some(Open { begun, things }) = self.open.remove(&who) else { return };
        for (nth, (thing, value)) in things.iter().cloned().enumerate() {
            // One message may make something of a thing twice.
            let is_last = things[nth + 1..].iter().all(|(other, _)| *other != thing);
            self.of(&thing).open.remove(&who);
            let value = match (value, result) {
                (Some(value), Err(_)) => {
                    let made = self.made.entry((thing, value)).or_default();
                    made.remove(&who);
                    continue;
                }
                (None, Err(_)) => continue,
                (Some(value), Ok(_)) => value,
                (None, Ok(Done::Attributes(made))) => Value::Leads(made.place),
                (None, Ok(other)) => panic!("{thing:?} was made, and answered {other:?}"),
            };
            let made = self.made.entry((thing.clone(), value)).or_default();
            made.insert(who, Made { begun, acked: Some(self.events) });
            if !is_last {
                continue;
            }
            let register = self.of(&thing);
            match ts.cmp(&register.acked.0) {
                Ordering::Less => {}
                Ordering::Equal => register.acked.1.push(value),
                Ordering::Greater => register.acked = (ts, vec![value]),
            }
        }
    }

    /// Whether a thing was this only before it was `than`: all that made it so was acknowledged
    /// before anything began that made it `than`.
    pub fn is_older(&self, thing: &Thing, value: Value, than: Value) -> bool {
        let of = |value| self.made.get(&(thing.clone(), value));
        let begun = of(than).and_then(|all| all.values().map(|made| made.begun).min());
        let Some(begun) = begun.filter(|_| than != thing.first()) else { return false };
        let before = |made: &Made| made.acked.is_some_and(|acked| acked < begun);
        match of(value) {
            _ if value == than => false,
            Some(all) => all.values().all(before) && (!all.is_empty() || value == thing.first()),
            None => value == thing.first(), // Or it is being made.
        }
    }

    /// A look shows that now, and began now.
    ///
    /// # Errors
    /// That is older than what was acknowledged.
    pub fn judge(&mut self, thing: &Thing, value: Value) -> Result<(), String> {
        let Register { acked, open } = self.of(thing);
        let may_be = |of: &Option<Value>| match (of, value) {
            (Some(of), _) => *of == value,
            (None, Value::Leads(_)) => true, // What is being made.
            (None, _) => false,
        };
        if acked.1.contains(&value) || open.values().any(may_be) {
            return Ok(());
        }
        Err(format!("{value:?}, and {:?} was acknowledged at {:?}", acked.1, acked.0))
    }
}
