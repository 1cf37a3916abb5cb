//! What was acknowledged of the things that clients change, and what a look may show.

use crate::world::Random;
use bytes::Bytes;
use meridian_core::Stamp;
use meridian_fs::operation::{Changes, NewNode, RenameMode};
use meridian_fs::{Done, FsError, Ino, Kind, Place, Update};
use meridian_session::CallId;
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Something that changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thing {
    /// What a name leads to.
    Name(Ino, Bytes),
    /// To whom an inode belongs.
    Owner(Ino),
}

/// What a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Absent,
    Leads(Place),
    Owner(u32),
}

/// What a client does.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Make(Place, Bytes),
    MakeDirectory(Place, Bytes),
    Remove(Place, Bytes, Place),
    Rename((Place, Bytes), (Place, Bytes), Place),
    Give(Place, u32),
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
    /// The things of changes under way.
    open: BTreeMap<Who, Vec<(Thing, Option<Value>)>>,
    owners: u32,
    names: u32,
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
        }
    }

    fn things(&self) -> Vec<(Thing, Option<Value>)> {
        let thing = |place: &Place, name: &Bytes| Thing::Name(place.ino, name.clone());
        match self {
            Change::Make(parent, name) => vec![(thing(parent, name), None)],
            // Nobody else uses its name.
            Change::MakeDirectory(..) => Vec::new(),
            Change::Remove(parent, name, _) => vec![(thing(parent, name), Some(Value::Absent))],
            Change::Rename(from, to, moved) => vec![
                (thing(&from.0, &from.1), Some(Value::Absent)),
                (thing(&to.0, &to.1), Some(Value::Leads(*moved))),
            ],
            Change::Give(inode, uid) => vec![(Thing::Owner(inode.ino), Some(Value::Owner(*uid)))],
        }
    }
}

impl Registers {
    fn of(&mut self, thing: &Thing) -> &mut Register {
        let value = match thing {
            Thing::Name(..) => Value::Absent,
            Thing::Owner(_) => Value::Owner(0),
        };
        let fresh = || Register { acked: (Stamp(0), vec![value]), open: BTreeMap::new() };
        self.all.entry(thing.clone()).or_insert_with(fresh)
    }

    /// What some client does next.
    pub fn choose(&mut self, directories: &[Place], random: &mut Random) -> Option<Change> {
        let parent = *directories.choose(random)?;
        let name = Bytes::from_static(super::NAMES.choose(random)?.as_bytes());
        let thing = Thing::Name(parent.ino, name.clone());
        let found = match self.of(&thing).acked.1[..] {
            [Value::Leads(place), ..] => Some(place),
            _ => None,
        };
        Some(match (random.random_range(0..10), found) {
            (0, _) if directories.len() < super::DIRECTORIES_MAX => {
                self.names += 1;
                Change::MakeDirectory(parent, format!("d{}", self.names).into())
            }
            (0..4, _) => {
                self.owners += 1;
                Change::Give(parent, self.owners)
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

    /// A client begins a change.
    pub fn begin(&mut self, who: Who, change: &Change) {
        let things = change.things();
        for (thing, value) in &things {
            self.of(thing).open.insert(who, *value);
        }
        self.open.insert(who, things);
    }

    /// A change was answered.
    pub fn end(&mut self, who: Who, ts: Stamp, result: &Result<Done, FsError>) {
        if *result == Err(FsError::Expired) {
            return; // A repeat that was refused: nobody knows what came of the first.
        }
        for (thing, value) in self.open.remove(&who).unwrap_or_default() {
            let register = self.of(&thing);
            register.open.remove(&who);
            let value = match (value, result) {
                (_, Err(_)) => continue,
                (Some(value), Ok(_)) => value,
                (None, Ok(Done::Attributes(made))) => Value::Leads(made.place),
                (None, Ok(other)) => panic!("{thing:?} was made, and answered {other:?}"),
            };
            match ts.cmp(&register.acked.0) {
                Ordering::Less => {}
                Ordering::Equal => register.acked.1.push(value),
                Ordering::Greater => register.acked = (ts, vec![value]),
            }
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
