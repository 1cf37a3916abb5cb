//! A program that uses what POSIX has beyond names, bytes and open files: lists of access rights,
//! capabilities, extended attributes, files without a name, whiteouts, times of birth and reading.
//!
//! It tells short stories: a few updates of something of its own, each asked for until it is
//! answered. What must be seen from then on is a fact. Facts are looked at again and again, and
//! once more at the end.

use super::client::deadline;
use super::saving::{expect, time};
use crate::world::Random;
use bytes::{BufMut, Bytes, BytesMut};
use meridian_core::{GroupId, Time};
use meridian_fs::operation::{
    Access, Changes, NewNode, Piece, RenameMode, Whiteout, WriteAt, XattrMode,
};
use meridian_fs::types::Data;
use meridian_fs::{
    Answer, Attributes, Done, Extent, FsError, Ino, Kind, Place, Query, Timestamp, Update,
};
use meridian_host::update::Change;
use meridian_session::{CallId, Command, Output};
use rand::RngExt;
use rand::seq::{IndexedRandom, IteratorRandom};

/// So many stories a program tells.
const STORIES_MAX: u64 = 12;

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";
const OWN_ATTRIBUTE: &[u8] = b"user.own";

/// What a story is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// What is made in a directory with a default list gets its rights from that, whatever the
    /// umask.
    Inherited,
    /// A capability goes with this change, or stays if there is none.
    Capability(Option<Touch>),
    /// An attribute that is there is not made again, and one that is not is not removed.
    Attribute,
    /// A rename leaves a whiteout.
    Whiteout,
    /// A file without a name gets one, or does not.
    Unnamed(bool),
    /// The time of birth stays; of two reads that saw the same time of reading the first counts.
    Times,
}

/// What takes a capability from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    Write,
    Cut,
    Extend,
    Punch,
    Owner,
}

const TOUCHES: [Touch; 5] = [Touch::Write, Touch::Cut, Touch::Extend, Touch::Punch, Touch::Owner];

/// What must come of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Done,
    Refused(FsError),
    /// Or that: it was too late.
    DoneOr(FsError),
}

/// A story as far as it is told.
#[derive(Clone, Debug)]
struct Telling {
    story: Story,
    /// In these directories.
    from: Place,
    to: Place,
    name: Bytes,
    began: Timestamp,
    made: Vec<Attributes>,
    step: usize,
}

/// What must be seen.
#[derive(Clone, Debug)]
struct Fact {
    query: Query,
    shown: Shown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    Mode(u16),
    Value(Bytes),
    NoAttribute,
    /// A name leads there.
    Place(Place),
    /// A name leads to something of that kind.
    Kind(Kind),
    Times {
        born: Timestamp,
        read: Timestamp,
    },
}

#[derive(Clone, Debug)]
enum Asked {
    Update(Expected),
    Look(Fact),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Posix {
    prefix: String,
    told: u64,
    tops: Vec<Place>,
    telling: Option<Telling>,
    facts: Vec<Fact>,
    asked: Option<(CallId, Asked)>,
}

impl Posix {
    /// Of client `number`, with nothing told.
    pub fn new(number: u64, groups: impl Iterator<Item = GroupId>) -> Posix {
        let top = |partition| Place { ino: Ino::top(partition), partition };
        Posix {
            prefix: format!("p{number}-"),
            told: 0,
            tops: groups.map(top).collect(),
            telling: None,
            facts: Vec::new(),
            asked: None,
        }
    }

    /// Whether its last story has ended.
    pub fn is_done(&self) -> bool {
        self.telling.is_none() && self.asked.is_none()
    }

    /// Whether that is its call.
    pub fn waits_for(&self, call: CallId) -> bool {
        self.asked.as_ref().is_some_and(|(asked, _)| *asked == call)
    }

    /// Goes on with its story, begins another if it `may`, or looks at a fact, unless it waits;
    /// `last` is the last call of the client.
    pub fn go_on(
        &mut self,
        may_begin: bool,
        now: Time,
        last: &mut CallId,
        random: &mut Random,
    ) -> Option<Command> {
        if self.asked.is_some() {
            return None;
        }
        if self.telling.is_none() && may_begin && random.random_ratio(1, 3) {
            self.begin(now, random);
        }
        let (call, deadline) = (CallId(last.0 + 1), deadline(now, random));
        let command = if let Some(telling) = &self.telling {
            let (update, expected) = telling.next();
            self.asked = Some((call, Asked::Update(expected)));
            let change = Change::new(telling.began, update);
            Command::Update { call, change, deadline }
        } else {
            let fact = self.facts.choose(random).filter(|_| may_begin)?.clone();
            let query = fact.query.clone();
            self.asked = Some((call, Asked::Look(fact)));
            Command::Read { call, query, deadline }
        };
        *last = call;
        Some(command)
    }

    fn begin(&mut self, now: Time, random: &mut Random) {
        if self.told == STORIES_MAX {
            return;
        }
        self.told += 1;
        let story = match random.random_range(0..6) {
            0 => Story::Inherited,
            1 => Story::Capability(
                TOUCHES.iter().copied().map(Some).chain([None]).choose(random).flatten(),
            ),
            2 => Story::Attribute,
            3 => Story::Whiteout,
            4 => Story::Unnamed(random.random_ratio(2, 3)),
            _ => Story::Times,
        };
        let mut top = || *self.tops.choose(random).expect("there are groups");
        self.telling = Some(Telling {
            story,
            from: top(),
            to: top(),
            name: Bytes::from(format!("{}{}", self.prefix, self.told)),
            began: time(now),
            made: Vec::new(),
            step: 0,
        });
    }

    /// The session has told what came of a call. `looks` counts facts that were seen.
    pub fn on_output(
        &mut self,
        output: Output,
        now: Time,
        random: &mut Random,
        looks: &mut u64,
    ) -> Vec<Command> {
        let (call, asked) = self.asked.take().expect("it waits for that");
        match (asked, output) {
            (Asked::Update(expected), Output::GaveUp { failure, .. }) => {
                expect(&failure);
                self.asked = Some((call, Asked::Update(expected)));
                return vec![Command::Again { call, deadline: deadline(now, random) }];
            }
            (Asked::Look(_), Output::GaveUp { failure, .. }) => {
                expect(&failure);
                return vec![Command::Release(call)];
            }
            (Asked::Update(expected), Output::Updated { result, .. }) => {
                self.on_updated(expected, result);
            }
            (Asked::Look(fact), Output::Answered { result, .. }) => {
                *looks += 1;
                fact.check(&result).unwrap_or_else(|what| panic!("{what}"));
            }
            (asked, output) => panic!("{asked:?}: {output:?}"),
        }
        Vec::new()
    }

    fn on_updated(&mut self, expected: Expected, result: Result<Done, FsError>) {
        let Some(mut telling) = self.telling.take() else { return };
        match (expected, result) {
            (Expected::Done | Expected::DoneOr(_), Ok(done)) => {
                if let Done::Attributes(made) = done {
                    telling.made.push(made);
                }
            }
            (Expected::Refused(error), Err(told)) if told == error => {}
            (Expected::DoneOr(error), Err(told)) if told == error => return,
            (expected, result) => {
                panic!("posix: {telling:?} expects {expected:?}, and is answered {result:?}")
            }
        }
        telling.step += 1;
        match telling.step == telling.len() {
            true => self.facts.extend(telling.facts()),
            false => self.telling = Some(telling),
        }
    }

    /// Looks at all facts: `read` asks a replica.
    ///
    /// # Errors
    /// What is not as it must be.
    pub fn check(&self, read: impl Fn(&Query) -> Result<Answer, FsError>) -> Result<(), String> {
        self.facts.iter().try_for_each(|fact| fact.check(&read(&fact.query)))
    }
}

impl Telling {
    /// How many updates the story has.
    fn len(&self) -> usize {
        match self.story {
            Story::Inherited | Story::Times => 3,
            Story::Capability(touch) => 2 + usize::from(touch.is_some()),
            Story::Attribute => 4,
            Story::Whiteout => 2,
            Story::Unnamed(named) => 1 + usize::from(named),
        }
    }

    /// What comes next, and what must come of it.
    fn next(&self) -> (Update, Expected) {
        let (first, time) = (self.made.first(), self.began);
        let file = |kind| NewNode { umask: 0o027, ..NewNode::new(kind, 0o644) };
        let create = |kind| self.create(self.from, self.name.clone(), file(kind));
        let Some(first) = first else {
            let update = match self.story {
                Story::Unnamed(_) => {
                    Update::CreateUnnamed { parent: self.from, node: file(Kind::File) }
                }
                Story::Inherited => create(Kind::Directory),
                _ => create(Kind::File),
            };
            return (update, Expected::Done);
        };
        let inode = first.place;
        let set = |name, value, mode| set_xattr(inode, name, value, mode);
        match (self.story, self.step) {
            (Story::Inherited, 1) => {
                (set(DEFAULT_LIST, handed_down(), XattrMode::Any), Expected::Done)
            }
            (Story::Inherited, _) => {
                let node = NewNode { umask: 0o077, ..NewNode::new(Kind::File, 0o640) };
                (self.create(inode, Bytes::from_static(b"made"), node), Expected::Done)
            }
            (Story::Capability(Some(touch)), 2) => (touch.update(inode), Expected::Done),
            (Story::Capability(_), _) => {
                (set(CAPABILITY, capability(), XattrMode::Any), Expected::Done)
            }
            (Story::Attribute, 1) => (set(OWN_ATTRIBUTE, own(), XattrMode::Create), Expected::Done),
            (Story::Attribute, 2) => {
                let refused = Expected::Refused(FsError::Exists);
                (set(OWN_ATTRIBUTE, capability(), XattrMode::Create), refused)
            }
            (Story::Attribute, _) => {
                let name = Bytes::from_static(b"user.other");
                let refused = Expected::Refused(FsError::NoAttribute);
                (Update::RemoveXattr { inode, name }, refused)
            }
            (Story::Whiteout, _) => (self.rename(inode), Expected::Done),
            (Story::Unnamed(_), _) => {
                let (parent, name) = (self.to, self.name.clone());
                let late = Expected::DoneOr(FsError::NotFound);
                (Update::Link { target: inode, parent, name }, late)
            }
            (Story::Times, step) => {
                let at = Timestamp { seconds: time.seconds + step as i64, ..time };
                let reads = vec![Access { inode: inode.ino, seen: first.atime, at }];
                (Update::NoteReads { partition: inode.partition, reads }, Expected::Done)
            }
        }
    }

    fn create(&self, parent: Place, name: Bytes, node: NewNode) -> Update {
        Update::Create { parent, name, node }
    }

    fn rename(&self, moved: Place) -> Update {
        Update::Rename {
            from: self.from,
            from_name: self.name.clone(),
            to: self.to,
            to_name: moved_name(&self.name),
            moved,
            replaced: None,
            mode: RenameMode::NoReplace,
            ancestors: Vec::new(),
            keep_for: None,
            whiteout: Some(Whiteout { uid: 3, gid: 4 }),
        }
    }

    /// What must be seen from now on.
    fn facts(&self) -> Vec<Fact> {
        let inode = self.made[0].place;
        let xattr = |inode, name| Query::Xattr { inode, name: Bytes::from_static(name) };
        let attributes = |inode| Query::Attributes { inode };
        let lookup = |parent, name: &Bytes| Query::Lookup { parent, name: name.clone() };
        let all = match self.story {
            Story::Inherited => {
                let made = self.made.last().expect("it was made").place;
                let list = Shown::Value(list([6, 6, 5, 4, 0]));
                vec![
                    (attributes(made), Shown::Mode(0o640)),
                    (xattr(made, ACCESS_LIST), list),
                    (xattr(inode, DEFAULT_LIST), Shown::Value(handed_down())),
                    (attributes(inode), Shown::Mode(0o640)),
                ]
            }
            Story::Capability(Some(_)) => vec![(xattr(inode, CAPABILITY), Shown::NoAttribute)],
            Story::Capability(None) => {
                vec![(xattr(inode, CAPABILITY), Shown::Value(capability()))]
            }
            Story::Attribute => vec![(xattr(inode, OWN_ATTRIBUTE), Shown::Value(own()))],
            Story::Whiteout => vec![
                (lookup(self.from, &self.name), Shown::Kind(Kind::CharDevice)),
                (lookup(self.to, &moved_name(&self.name)), Shown::Place(inode)),
            ],
            Story::Unnamed(true) => vec![
                (lookup(self.to, &self.name), Shown::Place(inode)),
                (attributes(inode), Shown::Mode(0o640)),
            ],
            Story::Unnamed(false) => Vec::new(), // It goes: whoever looks at space sees that.
            Story::Times => {
                let read = Timestamp { seconds: self.began.seconds + 1, ..self.began };
                vec![(attributes(inode), Shown::Times { born: self.began, read })]
            }
        };
        all.into_iter().map(|(query, shown)| Fact { query, shown }).collect()
    }
}

impl Touch {
    fn update(self, inode: Place) -> Update {
        let changes = |changes| Update::SetAttributes { inode, changes };
        match self {
            Touch::Write => {
                let data = Data::Inline(Bytes::from_static(b"x"));
                let pieces = vec![Piece { offset: 0, extent: Extent { len: 1, data } }];
                Update::Write { inode, at: WriteAt::End, pieces }
            }
            Touch::Cut => changes(Changes { size: Some(9), ..Changes::default() }),
            Touch::Extend => Update::Extend { inode, size: 9 },
            Touch::Punch => Update::PunchHole { inode, offset: 0, len: 9 },
            Touch::Owner => changes(Changes { uid: Some(5), ..Changes::default() }),
        }
    }
}

impl Fact {
    fn check(&self, answer: &Result<Answer, FsError>) -> Result<(), String> {
        let seen = match (&self.shown, answer) {
            (Shown::Mode(_), Ok(Answer::Attributes(of))) => Shown::Mode(of.mode),
            (Shown::Times { .. }, Ok(Answer::Attributes(of))) => {
                Shown::Times { born: of.btime, read: of.atime }
            }
            (_, Ok(Answer::Bytes(value))) => Shown::Value(value.clone()),
            (_, Err(FsError::NoAttribute)) => Shown::NoAttribute,
            (Shown::Place(_), Ok(Answer::Entry { entry, .. })) => Shown::Place(entry.place),
            (Shown::Kind(_), Ok(Answer::Entry { entry, .. })) => Shown::Kind(entry.kind),
            (_, answer) => return Err(format!("posix: {self:?} is answered {answer:?}")),
        };
        match seen == self.shown {
            true => Ok(()),
            false => Err(format!("posix: {self:?}, and it is {seen:?}")),
        }
    }
}

fn set_xattr(inode: Place, name: &'static [u8], value: Bytes, mode: XattrMode) -> Update {
    let name = Bytes::from_static(name);
    Update::SetXattr { inode, name, value, mode, drops_set_gid: false }
}

fn moved_name(name: &Bytes) -> Bytes {
    Bytes::from([&name[..], b"-moved"].concat())
}

fn own() -> Bytes {
    Bytes::from_static(b"value")
}

fn capability() -> Bytes {
    Bytes::from_static(b"some rights of root")
}

/// The list that a directory hands down.
fn handed_down() -> Bytes {
    list([7, 6, 5, 6, 4])
}

/// A list of access rights: those of the owner, user 9, the group, the mask, and others.
fn list(rights: [u16; 5]) -> Bytes {
    const TAGS: [(u16, u32); 5] =
        [(0x01, u32::MAX), (0x02, 9), (0x04, u32::MAX), (0x10, u32::MAX), (0x20, u32::MAX)];
    let mut value = BytesMut::new();
    value.put_u32_le(2);
    for ((tag, id), rights) in TAGS.into_iter().zip(rights) {
        value.put_u16_le(tag);
        value.put_u16_le(rights);
        value.put_u32_le(id);
    }
    value.freeze()
}
