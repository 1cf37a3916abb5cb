//! A program that writes a file, sets this and that of it, and waits until all is stored: what it
//! has written and set goes through the write-back that the embeddable client drives.
//!
//! A flush that fails is tried again, as a program does that asks for `fsync` once more.

use super::client::{Tally, deadline};
use crate::world::Random;
use bytes::Bytes;
use meridian_core::Time;
use meridian_fs::operation::Changes;
use meridian_fs::types::INLINE_MAX;
use meridian_fs::{Answer, Done, FsError, Place, Query, Setting, Timestamp};
use meridian_host::api::Refusal;
use meridian_host::update::Change;
use meridian_session::writeback::Accepted;
use meridian_session::writeback::flush::{Sent, Step};
use meridian_session::{BlockNames, CallId, Command, Failure, Mutation, Output, WriteBack};
use rand::RngExt;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;

/// The extended attribute that it sets.
const NAME: &[u8] = b"user.saved";
/// The only open file.
const HANDLE: u8 = 0;

/// Why a flush failed: it is tried again.
#[derive(Clone, Debug)]
struct Unsaved;

impl From<FsError> for Unsaved {
    fn from(error: FsError) -> Unsaved {
        panic!("a write is refused: {error:?}")
    }
}

/// What a program does next.
enum Deed {
    /// It writes this there, or at the end.
    Write(Option<u64>, Vec<u8>),
    Set(Setting),
}

/// What was set of a file, as far as nothing else changes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    gid: Option<u32>,
    value: Option<Bytes>,
    /// Unless it was written otherwise since.
    pub mtime: Option<Timestamp>,
}

impl Shown {
    fn set(&mut self, setting: &Setting) {
        match setting {
            Setting::Attributes(Changes { gid, mtime, .. }) => {
                (self.gid, self.mtime) = (gid.or(self.gid), mtime.or(self.mtime));
            }
            Setting::Xattr { value, .. } => self.value = Some(value.clone()),
        }
    }

    /// Whether the file is so.
    ///
    /// # Errors
    /// How it is, if not.
    pub fn check(
        &self,
        inode: Place,
        read: impl Fn(&Query) -> Result<Answer, FsError>,
    ) -> Result<(), String> {
        let answer = read(&Query::Attributes { inode });
        let Ok(Answer::Attributes(of)) = answer else {
            return Err(format!("settings: {inode:?} is answered {answer:?}"));
        };
        let same = self.gid.is_none_or(|gid| gid == of.gid)
            && self.mtime.is_none_or(|mtime| mtime == of.mtime);
        let value = match &self.value {
            None => true,
            Some(value) => {
                let found = read(&Query::Xattr { inode, name: Bytes::from_static(NAME) });
                found == Ok(Answer::Bytes(value.clone()))
            }
        };
        match same && value {
            true => Ok(()),
            false => Err(format!("settings: {self:?}, and it is {of:?} with its value {value}")),
        }
    }
}

/// See the module.
pub(super) struct Saving {
    pub file: Place,
    /// What the file is once all that was written is stored.
    pub contents: Vec<u8>,
    /// What is set of it then.
    pub shown: Shown,
    writes: WriteBack<u8, Unsaved>,
    /// What the program has yet to do.
    todo: VecDeque<Deed>,
    flushing: bool,
    /// The update that was sent; it keeps its name.
    update: Option<CallId>,
    /// The blocks that are being stored.
    blocks: BTreeSet<CallId>,
    names: BlockNames,
}

impl Saving {
    /// Some writes to `file`, which is `contents` now.
    pub fn new(
        file: Place,
        (contents, shown): (Vec<u8>, Shown),
        mutation: Mutation,
        random: &mut Random,
    ) -> Saving {
        let mut writes = WriteBack::default().with_mutation(mutation);
        writes.open(HANDLE);
        writes.learn_size(contents.len() as u64);
        writes.made(); // As if: what is set before it writes is kept, too.
        let count = random.random_range(1..8);
        let long = random.random_bool(0.5);
        let deed = |_| {
            if random.random_bool(0.3) {
                return Deed::Set(setting(random));
            }
            let most = if long { 2 * INLINE_MAX } else { 64 };
            let data = vec![random.random(); random.random_range(1..most)];
            let end = contents.len() as u64 + 100;
            let offset = random.random_bool(0.6).then(|| random.random_range(0..end));
            Deed::Write(offset, data)
        };
        let todo = (0..count).map(deed).collect();
        let (update, blocks, names) = (None, BTreeSet::new(), BlockNames::default());
        Saving { file, contents, shown, writes, todo, flushing: false, update, blocks, names }
    }

    /// Whether all is written and stored.
    pub fn is_done(&self) -> bool {
        self.todo.is_empty() && self.writes.is_clean() && !self.flushing
    }

    /// The program writes, until it must wait for a flush.
    fn write(&mut self, now: Time) -> Accepted {
        while let Some(deed) = self.todo.front() {
            let (offset, data) = match deed {
                Deed::Write(offset, data) => (offset, data),
                Deed::Set(setting) => {
                    let may = self.writes.may_set();
                    if may && self.writes.set(setting.clone(), time(now), now) {
                        self.shown.set(setting);
                    } else if !self.writes.is_clean() {
                        return Accepted::FlushFirst;
                    } // Else a client sends it at once: that is no matter of its write-back.
                    self.todo.pop_front();
                    continue;
                }
            };
            if self.writes.accept(*offset, data, time(now), now) == Accepted::FlushFirst {
                return Accepted::FlushFirst;
            }
            let at = offset.map_or(self.contents.len(), |at| usize::try_from(at).expect("short"));
            let end = self.contents.len().max(at + data.len());
            self.contents.resize(end, 0);
            self.contents[at..at + data.len()].copy_from_slice(data);
            self.shown.mtime = Some(time(now));
            self.todo.pop_front();
        }
        Accepted::Buffered
    }

    /// What the session is asked for next; `last` is the last call of the client.
    pub fn go_on(&mut self, now: Time, last: &mut CallId, random: &mut Random) -> Vec<Command> {
        let mut commands = Vec::new();
        while !self.is_done() {
            if !self.flushing || random.random_bool(0.3) {
                self.write(now);
            }
            if !std::mem::replace(&mut self.flushing, true) {
                self.writes.begin_flush(Some(HANDLE));
            }
            match self.writes.next_step() {
                Step::Done => self.flushing = false,
                Step::Pack(packing) => {
                    let (names, partition) = (self.names, self.file.partition);
                    let name = || names.name(partition, millis(now), random.random());
                    let packed = packing.pack(self.file, name);
                    self.writes.on_packed(packed);
                }
                Step::Store(blocks) => {
                    for block in blocks {
                        let (call, deadline) = (next(last), deadline(now, random));
                        let partition = self.file.partition;
                        self.blocks.insert(call);
                        commands.push(Command::Store { call, partition, block, deadline });
                    }
                    break;
                }
                Step::Send { update, time } => {
                    commands.extend(self.update.take().map(Command::Release));
                    let (call, deadline) = (next(last), deadline(now, random));
                    self.update = Some(call);
                    let change = Change::new(time, update);
                    commands.push(Command::Update { call, change, deadline });
                    break;
                }
                Step::Again => {
                    let call = self.update.expect("W3: what was sent keeps its name");
                    commands.push(Command::Again { call, deadline: deadline(now, random) });
                    break;
                }
            }
        }
        commands
    }

    /// The session has told what came of a call.
    pub fn on_output(&mut self, output: Output, now: Time, done: &mut Tally) -> Vec<Command> {
        match output {
            Output::Stored { call, .. } => {
                assert!(self.blocks.remove(&call), "nobody stores a block as {call:?}");
                done.blocks += 1;
                if self.blocks.is_empty() {
                    self.flushing = self.writes.on_stored(Ok(())).is_ok();
                    return Vec::new();
                }
            }
            Output::GaveUp { call, failure } if self.blocks.remove(&call) => {
                expect(&failure);
                self.flushing = self.writes.on_stored(Err(Unsaved)).is_ok();
                let rest = std::mem::take(&mut self.blocks);
                return rest.into_iter().map(Command::Release).collect();
            }
            Output::GaveUp { failure, .. } => {
                expect(&failure);
                done.again += 1;
                self.flushing = self.writes.on_answer(Sent::Unknown(Unsaved)).is_ok();
            }
            Output::Updated { result: Ok(Done::Written { attributes, .. }), .. } => {
                done.updates += 1;
                self.update = None;
                let size = attributes.size;
                self.flushing = self.writes.on_answer(Sent::Written { size }).is_ok();
            }
            Output::Updated { result: Err(error), .. } => {
                self.update = None;
                if let FsError::Late { horizon_ms } = error {
                    done.late += 1;
                    self.names.refused(horizon_ms, millis(now));
                }
                self.flushing = self.writes.on_answer(Sent::Refused(error)).is_ok();
            }
            other => panic!("{other:?} while a file is saved"),
        }
        Vec::new()
    }

    /// The blocks that no update will name.
    pub fn discard(&mut self) -> Option<Command> {
        let (partition, blocks) = (self.file.partition, self.writes.take_discarded());
        (!blocks.is_empty()).then_some(Command::Discard { partition, blocks })
    }

    /// Whether blocks are still being stored.
    pub fn waits(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Whether that is its call.
    pub fn waits_for(&self, call: CallId) -> bool {
        self.update == Some(call) || self.blocks.contains(&call)
    }
}

impl fmt::Debug for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, todo) = (self.writes.held(), self.todo.len());
        write!(f, "{:?} with {held} bytes held and {todo} writes to come", self.file)?;
        write!(f, ", waits for the update {:?} or the blocks {:?}", self.update, self.blocks)
    }
}

/// Something that is set of a file, and that no other deed of its client changes.
fn setting(random: &mut Random) -> Setting {
    match random.random_range(0..3) {
        0 => {
            let gid = Some(random.random_range(1..9));
            Setting::Attributes(Changes { gid, ..Changes::default() })
        }
        1 => {
            let mtime = Some(Timestamp { seconds: random.random_range(0..9), nanos: 1 });
            Setting::Attributes(Changes { mtime, ..Changes::default() })
        }
        _ => {
            let (name, value) = (Bytes::from_static(NAME), Bytes::from(vec![random.random()]));
            Setting::Xattr { name, value, drops_set_gid: false }
        }
    }
}

fn next(last: &mut CallId) -> CallId {
    last.0 += 1;
    *last
}

fn millis(now: Time) -> u64 {
    now.0 / 1_000_000
}

/// What a program sees as time goes.
pub(super) fn time(now: Time) -> Timestamp {
    let seconds = i64::try_from(now.0 / 1_000_000_000).expect("no world lasts so long");
    Timestamp { seconds, nanos: 0 }
}

/// That there is no answer may be, or that disks are full for a while; that a block is lost, or
/// that nodes do not understand, not.
pub(super) fn expect(failure: &Failure) {
    let expected = match failure {
        Failure::Timeout { .. }
        | Failure::Unreachable { .. }
        | Failure::OutOfReach { .. }
        | Failure::TooFewNodes { .. }
        | Failure::Refused(Refusal::Full)
        | Failure::NoSpace => true,
        Failure::Behind { .. }
        | Failure::Lost { .. }
        | Failure::Beyond { .. }
        | Failure::Refused(_)
        | Failure::Strange(_) => false,
    };
    assert!(expected, "{failure:?}");
}
