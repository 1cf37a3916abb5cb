//! Sessions that live in regions and move between them: what all causally consistent stores have
//! in common. Each has one operation outstanding, at most; the owner says what it asks and whom.

use crate::checkers::causal::{self, Operation};
use crate::trial::Counts;
use crate::world::{Delay, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{Process, RegionId};
use meridian_eunomia::{Seen, Session, Timestamp};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a replica holds, or a region: values by key.
pub type Held = BTreeMap<u8, u64>;

/// How long a session waits for an answer.
pub const TIMEOUT: Duration = Duration::from_millis(400);

/// One session, which has asked an `A`.
#[derive(Clone, Debug)]
struct Client<A> {
    region: RegionId,
    session: Session,
    /// The number of its history.
    history: usize,
    asked: Option<(u64, A)>,
    /// The last alarm: earlier ones do not count.
    alarm: u64,
}

/// The sessions of a [`crate::World`] of regions, what they have seen, and the checks of it.
pub struct Sessions<A> {
    /// What happened.
    pub counts: Counts,
    /// Whether they begin nothing new.
    pub ends: bool,
    /// What draws what they do.
    pub random: Random,
    /// How long one waits between two operations at most.
    think: Duration,
    clients: Vec<Client<A>>,
    histories: Vec<Vec<Operation<u8, u64>>>,
    /// Values of updates of which nobody knows whether they happened.
    unknown: BTreeSet<u64>,
    tokens: u64,
    /// What was applied where, and whether it has changed something.
    applied: BTreeMap<(RegionId, RegionId, Timestamp), bool>,
    violated: Option<String>,
}

/// A value as it is stored.
pub fn written(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

/// The value in these bytes, if there is one.
pub fn value_of(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

/// Near within a region, far between two; the way over a third one may be the shorter.
pub fn delays<T: 'static>(region: impl Fn(T) -> RegionId + 'static, far: Duration) -> Delay<T> {
    Box::new(move |from, to, random| {
        let near = if random.random_ratio(1, 20) { 10_000 } else { 500 };
        let near = Duration::from_micros(random.random_range(50..=near));
        let (RegionId(from), RegionId(to)) = (region(from), region(to));
        if from == to {
            return near;
        }
        near + if (from + 2 * to) % 3 == 1 { far } else { far / 6 }
    })
}

impl<A: Copy> Sessions<A> {
    /// So many, by turns in these regions.
    pub fn new(random: Random, (count, think): (usize, Duration), regions: &[RegionId]) -> Self {
        let client = |number| Client {
            region: regions[number % regions.len()],
            session: Session::default(),
            history: number,
            asked: None,
            alarm: 0,
        };
        Sessions {
            counts: Counts::default(),
            ends: false,
            random,
            think,
            clients: (0..count).map(client).collect(),
            histories: vec![Vec::new(); count],
            unknown: BTreeSet::new(),
            tokens: 0,
            applied: BTreeMap::new(),
            violated: None,
        }
    }

    /// Whether nobody waits for an answer.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.asked.is_none())
    }

    /// Whether so many of hundred times something happens, this time.
    pub fn happens(&mut self, of_hundred: u32) -> bool {
        self.random.random_range(0..100) < of_hundred
    }

    /// Where a session is.
    pub fn region(&self, client: usize) -> RegionId {
        self.clients[client].region
    }

    /// What a session has seen.
    pub fn seen(&self, client: usize) -> Seen {
        *self.clients[client].session.seen()
    }

    /// Names an operation of a session; its value, if it writes one.
    pub fn token(&mut self, client: usize) -> u64 {
        self.tokens += 1;
        self.tokens << 16 | client as u64
    }

    fn alarm<P: Process>(&mut self, client: usize, after: Duration) -> Stimulus<P> {
        let token = self.token(client);
        self.clients[client].alarm = token;
        Stimulus::Wake { token, after }
    }

    /// All sessions begin.
    pub fn begin<P: Process>(&mut self) -> Vec<Stimulus<P>> {
        (0..self.clients.len()).map(|client| self.think(client)).collect()
    }

    /// A session waits before it does something else.
    pub fn think<P: Process>(&mut self, client: usize) -> Stimulus<P> {
        let most = self.think.as_micros() as u64;
        let after = Duration::from_micros(self.random.random_range(0..=most));
        self.alarm(client, after)
    }

    /// A session has asked that, and waits for an answer.
    pub fn ask<P: Process>(&mut self, client: usize, token: u64, asked: A) -> Stimulus<P> {
        self.clients[client].asked = Some((token, asked));
        self.alarm(client, TIMEOUT)
    }

    /// Which session an alarm is for, and whether it waits for an answer, if it is its last one.
    pub fn woken(&self, token: u64) -> Option<(usize, bool)> {
        let number = (token & 0xffff) as usize;
        let client = &self.clients[number];
        (client.alarm == token).then_some((number, client.asked.is_some()))
    }

    /// What a session has asked and will not be answered.
    pub fn give_up(&mut self, client: usize) -> Option<(u64, A)> {
        self.clients[client].asked.take()
    }

    /// The session whose last question that is, if it waits for an answer.
    pub fn who_asks(&self, token: u64) -> Option<usize> {
        let client = (token & 0xffff) as usize;
        let asked = self.clients.get(client)?.asked.as_ref();
        asked.is_some_and(|(last, _)| *last == token).then_some(client)
    }

    /// The session whose last question this answers, and what that was.
    pub fn answered(&mut self, token: u64) -> Option<(usize, A)> {
        let client = self.who_asks(token)?;
        self.clients[client].asked.take().map(|(_, asked)| (client, asked))
    }

    /// A session notes that it does that, or has seen it.
    pub fn note(&mut self, client: usize, operation: Operation<u8, u64>) {
        self.histories[self.clients[client].history].push(operation);
    }

    /// What a session noted last has not happened.
    pub fn strike(&mut self, client: usize) {
        self.histories[self.clients[client].history].pop();
    }

    /// A session has seen what depends on these.
    pub fn saw(&mut self, client: usize, seen: &Seen) {
        self.clients[client].session.saw(seen);
    }

    /// The update that a session noted last may have happened, or may yet: whoever goes on in its
    /// place does not know.
    pub fn part(&mut self, client: usize, token: u64) {
        self.counts.add("unknown", 1);
        self.unknown.insert(token);
        self.clients[client].history = self.histories.len();
        self.clients[client].session = Session::default();
        self.histories.push(Vec::new());
    }

    /// A session is not taken on with what it has seen: another begins, in that region.
    pub fn begin_anew(&mut self, client: usize, region: RegionId) {
        let history = self.histories.len();
        self.histories.push(Vec::new());
        let client = &mut self.clients[client];
        (client.session, client.history, client.region) = (Session::default(), history, region);
    }

    /// A session has moved, as a token, which is all that goes to the other region.
    pub fn moved(&mut self, client: usize, region: RegionId) {
        self.counts.add("moved", 1);
        let client = &mut self.clients[client];
        client.session = Session::from_token(&client.session.token()).expect("it is one");
        client.region = region;
    }

    /// A region has applied an update of `origin`.
    pub fn on_applied(&mut self, at: RegionId, (origin, ts): (RegionId, Timestamp), changed: bool) {
        self.counts.add(if changed { "applied" } else { "superseded" }, 1);
        let name = (at, origin, ts);
        let before = self.applied.entry(name).or_default();
        if *before && changed {
            self.violated = Some(format!("once: {name:?} has changed something twice"));
        }
        *before |= changed;
    }

    /// Whether a region has applied an update of another.
    pub fn has_applied(&self, at: RegionId, origin: RegionId, ts: Timestamp) -> bool {
        self.applied.contains_key(&(at, origin, ts))
    }

    /// Which updates of a region were applied, and where.
    pub fn applied_of(&self, origin: RegionId) -> impl Iterator<Item = (RegionId, Timestamp)> + '_ {
        let of = self.applied.keys().filter(move |(_, of, _)| *of == origin);
        of.map(|(at, _, ts)| (*at, *ts))
    }

    /// Something must not have been.
    pub fn violate(&mut self, what: String) {
        self.violated = Some(what);
    }

    /// What must not have been since this was asked last.
    ///
    /// # Errors
    /// Something.
    pub fn check(&mut self) -> Result<(), String> {
        self.violated.take().map_or(Ok(()), Err)
    }

    /// Judges what was seen, and what is held in the end.
    ///
    /// # Errors
    /// The histories are not causal, or not all hold the same.
    pub fn judge(&self, held: &[(String, Held)]) -> Result<(), String> {
        self.judge_without(held, &BTreeSet::new())
    }

    /// The same if these values were dropped with what had seen them: nobody holds them.
    ///
    /// # Errors
    /// The histories are not causal, or not all hold the same.
    pub fn judge_without(
        &self,
        held: &[(String, Held)],
        dropped: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let mut seen: BTreeSet<u64> =
            held.iter().flat_map(|(_, held)| held.values().copied()).collect();
        seen.extend(self.histories.iter().flatten().filter_map(|operation| match operation {
            Operation::Read(_, value) => *value,
            Operation::Write(..) => None,
        }));
        let happened = |operation: &&Operation<u8, u64>| match operation {
            Operation::Write(_, value) => !self.unknown.contains(value) || seen.contains(value),
            Operation::Read(..) => true,
        };
        let known = |history: &Vec<_>| history.iter().filter(happened).cloned().collect();
        let histories: Vec<Vec<_>> = self.histories.iter().map(known).collect();
        causal::check(&histories)?;
        let stays = |operation: &Operation<u8, u64>| match operation {
            Operation::Write(_, value) | Operation::Read(_, Some(value)) => {
                !dropped.contains(value)
            }
            Operation::Read(_, None) => true,
        };
        let stay = |history: Vec<_>| history.into_iter().filter(stays).collect();
        let histories: Vec<Vec<_>> = histories.into_iter().map(stay).collect();
        causal::check_final(&histories, held)
    }
}
