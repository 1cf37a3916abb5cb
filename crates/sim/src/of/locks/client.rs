//! One client: what it does with locks, one thing after the other.
//!
//! It takes locks, waits for them, gives up waiting, and under an exclusive one adds one to a
//! number that the file holds. It believes in its locks until it is told that they were lost.

use crate::world::Random;
use bytes::Bytes;
use meridian_core::{ClientId, GroupId, Stamp, Time};
use meridian_fs::operation::{Piece, WriteAt};
use meridian_fs::types::{Data, Extent, Lock, LockFamily, LockOwner};
use meridian_fs::{Answer, Done, FsError, Place, Query, Stand, Standing, Timestamp, Under, Update};
use meridian_host::update::Change;
use meridian_session::{CallId, Deadlocks, Mutation};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many locks a client holds at a time: enough for cycles.
const HELD_MAX: usize = 2;
/// How often a client says that it lives.
const RENEW: Duration = Duration::from_secs(10);

/// What a client waits for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Doing {
    Take(Lock, Option<u64>),
    Wait(Lock, u64),
    Leave(Lock, u64),
    Read,
    /// The number that it writes.
    Write(u64),
    Unlock(Lock),
}

/// A lock that a client believes to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub lock: Lock,
    pub since: Stamp,
}

/// What a client asks for.
pub(super) enum Asked {
    Update(Change),
    Query(Query),
}

/// What a client has seen that the trial is to judge or count.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    Count(&'static str),
    /// It would wait for ever.
    Refused,
    /// Its number was written and acknowledged.
    Wrote(Place, u64),
    Wrong(String),
}

/// See the module.
pub(super) struct Client {
    pub last: CallId,
    pub id: ClientId,
    pub doing: Option<(CallId, Place, Doing)>,
    /// The calls that say that it lives.
    pub renewing: BTreeSet<CallId>,
    renewed: Time,
    pub held: BTreeMap<Place, Held>,
    /// Whether it was in a cycle at any time since it began to take what it takes or awaits.
    pub was_tangled: bool,
    deadlocks: Deadlocks,
    is_watched: bool,
    /// The questions who waits, each with the partition asked, and updates that end cycles.
    looks: BTreeMap<CallId, Option<GroupId>>,
    tickets: u64,
    pub left: u64,
    /// It gives all back, and begins nothing.
    ends: bool,
}

impl Client {
    pub fn new(id: ClientId, left: u64, mutation: Mutation) -> Client {
        Client {
            last: CallId(0),
            id,
            doing: None,
            renewing: BTreeSet::new(),
            renewed: Time(0),
            held: BTreeMap::new(),
            was_tangled: false,
            deadlocks: Deadlocks::default().with_mutation(mutation),
            is_watched: false,
            looks: BTreeMap::new(),
            tickets: 0,
            left,
            ends: false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.left == 0 && self.doing.is_none() && self.held.is_empty()
    }

    pub fn next_call(&mut self) -> CallId {
        self.last.0 += 1;
        self.last
    }

    /// The partitions in which it holds or awaits something, if it is time to say that it lives.
    pub fn renews(&mut self, now: Time) -> BTreeSet<GroupId> {
        if now.since(self.renewed) < RENEW {
            return BTreeSet::new();
        }
        self.renewed = now;
        let doing = self.doing.iter().map(|(_, place, _)| place.partition);
        doing.chain(self.held.keys().map(|place| place.partition)).collect()
    }

    /// What it asks to see whether it waits in a cycle, if it is time to.
    pub fn looks(
        &mut self,
        now: Time,
        partitions: impl Iterator<Item = GroupId>,
    ) -> Vec<(CallId, Asked)> {
        let waits = matches!(self.doing, Some((_, _, Doing::Wait(..))));
        match (waits, std::mem::replace(&mut self.is_watched, waits)) {
            (true, false) => self.deadlocks.begin(now),
            (false, true) => self.deadlocks.end(),
            (true, true) | (false, false) => {}
        }
        let asked = self.deadlocks.due(now, partitions);
        let ask = |query: Query| {
            let call = self.next_call();
            self.looks.insert(call, Some(query.partition()));
            (call, Asked::Query(query))
        };
        asked.into_iter().map(ask).collect()
    }

    /// Whether that is a call by which cycles are looked for.
    pub fn has_look(&self, call: CallId) -> bool {
        self.looks.contains_key(&call)
    }

    /// What came of it: the update that ends a cycle, if one was seen.
    pub fn on_look(
        &mut self,
        call: CallId,
        answer: Option<Answer>,
        now: Time,
    ) -> Option<(CallId, Asked)> {
        let partition = self.looks.remove(&call)??;
        let waits = match answer {
            Some(Answer::Waits(waits)) => Some(waits),
            Some(other) => panic!("asked who waits: {other:?}"),
            None => None,
        };
        let update = self.deadlocks.answered(partition, waits, now)?;
        let call = self.next_call();
        self.looks.insert(call, None);
        Some((call, self.update(update, None)))
    }

    /// The lock for which it may wait.
    pub fn awaits(&self) -> Option<(Place, Lock)> {
        match self.doing.as_ref()? {
            (
                _,
                place,
                Doing::Take(lock, Some(_)) | Doing::Wait(lock, _) | Doing::Leave(lock, _),
            ) => Some((*place, *lock)),
            (_, _, Doing::Take(_, None) | Doing::Read | Doing::Write(_) | Doing::Unlock(_)) => None,
        }
    }

    /// What it does next, if it is idle.
    pub fn next(&mut self, files: &[Place], random: &mut Random) -> Option<Asked> {
        if self.doing.is_some() {
            return None;
        }
        let held: Vec<_> = self.held.iter().map(|(place, held)| (*place, *held)).collect();
        self.ends |= self.left == 0;
        if let Some((place, held)) = held.choose(random).copied() {
            let wants_more = self.held.len() < HELD_MAX && !self.ends;
            return Some(match random.random_range(0..6) {
                0..2 if wants_more => self.take(files, random),
                2..5 if held.lock.exclusive && !self.ends => {
                    self.begin(place, Doing::Read);
                    Asked::Query(contents(place))
                }
                _ => self.unlock(place, held.lock),
            });
        }
        self.ends = false;
        self.left = self.left.checked_sub(1)?;
        Some(self.take(files, random))
    }

    /// Begins to take a lock.
    fn take(&mut self, files: &[Place], random: &mut Random) -> Asked {
        let free = |place: &&Place| !self.held.contains_key(*place);
        let some: Vec<_> = files.iter().filter(free).copied().collect();
        self.was_tangled = false;
        let place = *some.choose(random).unwrap_or(&files[0]);
        let owner = LockOwner { client: self.id, owner: 1 };
        let (family, exclusive) = (LockFamily::Posix, random.random_ratio(3, 4));
        let lock = Lock { owner, family, start: 0, end: 9, exclusive, pid: 1 };
        self.tickets += 1;
        let ticket = random.random_ratio(5, 6).then_some(self.tickets);
        self.begin(place, Doing::Take(lock, ticket));
        self.update(Update::Lock { inode: place, lock, ticket }, None)
    }

    fn unlock(&mut self, place: Place, lock: Lock) -> Asked {
        let Lock { owner, family, start, end, .. } = lock;
        self.begin(place, Doing::Unlock(lock));
        self.update(Update::Unlock { inode: place, owner, family, start, end }, None)
    }

    fn update(&self, update: Update, under: Option<Stamp>) -> Asked {
        let under = under.map(|since| Under { client: self.id, since });
        Asked::Update(Change { under, ..Change::new(Timestamp::default(), update) })
    }

    fn begin(&mut self, place: Place, doing: Doing) {
        let call = self.next_call();
        self.doing = Some((call, place, doing));
    }

    /// A signal comes: it waits no more.
    pub fn interrupt(&mut self) -> Option<Asked> {
        let Some((_, place, Doing::Wait(lock, ticket))) = self.doing.clone() else { return None };
        self.begin(place, Doing::Leave(lock, ticket));
        Some(self.update(Update::Leave { inode: place, lock, ticket }, None))
    }

    /// An update was answered.
    pub fn on_updated(
        &mut self,
        result: Result<Done, FsError>,
        seen: &mut Vec<Seen>,
    ) -> Option<Asked> {
        let (_, place, doing) = self.doing.take()?;
        match (doing, result) {
            (Doing::Take(lock, ticket), Ok(Done::Lock(stand))) => {
                self.on_stand(place, lock, ticket, stand, seen)
            }
            (Doing::Take(..), Err(FsError::WouldBlock)) => {
                seen.push(Seen::Count("refused"));
                None
            }
            (Doing::Leave(lock, _), Ok(Done::Lock(stand))) => {
                seen.push(Seen::Count("left"));
                match stand.lock {
                    Standing::Waits | Standing::Deadlock => {
                        seen.push(Seen::Wrong(format!("{lock:?} waits after its client left")));
                    }
                    Standing::Held => self.hold(place, lock, stand),
                    Standing::Gone => {}
                }
                None
            }
            (Doing::Write(value), Ok(Done::Written { .. })) => {
                seen.push(Seen::Wrote(place, value));
                None
            }
            (Doing::Write(_), Err(FsError::LockLost)) => {
                seen.push(Seen::Count("lost"));
                self.held.remove(&place);
                None
            }
            (Doing::Unlock(_), Ok(Done::Lock(_))) => {
                self.held.remove(&place);
                None
            }
            // A repeat that was refused: nobody knows what came of the first.
            (doing, Err(FsError::Expired)) => {
                self.doing = Some((self.last, place, doing));
                self.on_given_up()
            }
            (doing, other) => {
                seen.push(Seen::Wrong(format!("{doing:?} is answered by {other:?}")));
                None
            }
        }
    }

    fn on_stand(
        &mut self,
        place: Place,
        lock: Lock,
        ticket: Option<u64>,
        stand: Stand,
        seen: &mut Vec<Seen>,
    ) -> Option<Asked> {
        match (stand.lock, ticket) {
            (Standing::Held, _) => {
                self.hold(place, lock, stand);
                None
            }
            (Standing::Waits, Some(ticket)) => {
                self.begin(place, Doing::Wait(lock, ticket));
                Some(Asked::Query(Query::Awaited { inode: place, lock, ticket }))
            }
            (Standing::Deadlock, Some(ticket)) => {
                seen.push(Seen::Refused);
                self.ends = true; // As a program does that gives all back.
                self.begin(place, Doing::Leave(lock, ticket));
                Some(self.update(Update::Leave { inode: place, lock, ticket }, None))
            }
            (Standing::Gone, _) => {
                seen.push(Seen::Count("gone meanwhile"));
                None
            }
            (other, None) => {
                seen.push(Seen::Wrong(format!("who does not wait is told {other:?}")));
                None
            }
        }
    }

    fn hold(&mut self, place: Place, lock: Lock, stand: Stand) {
        if let Some(since) = stand.since {
            self.held.insert(place, Held { lock, since });
        }
    }

    /// A question was answered.
    pub fn on_answered(
        &mut self,
        result: Result<Answer, FsError>,
        seen: &mut Vec<Seen>,
    ) -> Option<Asked> {
        let (_, place, doing) = self.doing.take()?;
        match (doing, result) {
            (Doing::Wait(lock, ticket), Ok(Answer::Awaited(stand))) => {
                if stand.lock == Standing::Held {
                    seen.push(Seen::Count("granted"));
                }
                self.on_stand(place, lock, Some(ticket), stand, seen)
            }
            (Doing::Read, Ok(Answer::Contents { extents, .. })) => {
                let held = self.held.get(&place).copied()?;
                let value = value_of(extents.first().map(|(_, extent)| extent)) + 1;
                let data = Data::Inline(Bytes::copy_from_slice(&value.to_be_bytes()));
                let pieces = vec![Piece { offset: 0, extent: Extent { len: 8, data } }];
                self.begin(place, Doing::Write(value));
                let update = Update::Write { inode: place, at: WriteAt::Offset(0), pieces };
                Some(self.update(update, Some(held.since)))
            }
            (doing, other) => {
                seen.push(Seen::Wrong(format!("{doing:?} is answered by {other:?}")));
                None
            }
        }
    }

    /// What it did has no answer: what may be held is given back, and who waits asks again.
    pub fn on_given_up(&mut self) -> Option<Asked> {
        let (_, place, doing) = self.doing.take()?;
        match doing {
            Doing::Take(lock, Some(ticket)) | Doing::Leave(lock, ticket) => {
                self.begin(place, Doing::Leave(lock, ticket));
                Some(self.update(Update::Leave { inode: place, lock, ticket }, None))
            }
            Doing::Wait(lock, ticket) => {
                self.begin(place, Doing::Wait(lock, ticket));
                Some(Asked::Query(Query::Awaited { inode: place, lock, ticket }))
            }
            Doing::Take(lock, None) | Doing::Unlock(lock) => Some(self.unlock(place, lock)),
            Doing::Read => None,
            Doing::Write(_) => {
                let lock = self.held.get(&place)?.lock;
                Some(self.unlock(place, lock))
            }
        }
    }
}

fn contents(inode: Place) -> Query {
    Query::Contents { inode, offset: 0, len: 8 }
}

/// The number in a file, 0 at first.
pub(super) fn value_of(extent: Option<&Extent>) -> u64 {
    let bytes = match extent.map(|extent| &extent.data) {
        Some(Data::Inline(bytes)) => <[u8; 8]>::try_from(&bytes[..]).ok(),
        Some(Data::Block { .. }) | None => None,
    };
    bytes.map_or(0, u64::from_be_bytes)
}
