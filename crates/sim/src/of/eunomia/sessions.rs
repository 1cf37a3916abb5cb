//! Sessions in all regions: each has one operation outstanding. And the checks of what they see,
//! and of what is applied.

use super::Member;
use crate::checkers::causal::{self, Operation};
use crate::trial::Counts;
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{RegionId, Time};
use meridian_eunomia::member::{self, Output};
use meridian_eunomia::shard::{self, Request};
use meridian_eunomia::{Peer, Role, Seen, Session, Timestamp, Topology, place_of, receiver};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How sessions behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// How many there are.
    pub sessions: usize,
    /// How many keys there are.
    pub keys: u8,
    /// How long one waits between two operations at most.
    pub think: Duration,
    /// How many of hundred operations read.
    pub reads: u32,
    /// How many of hundred operations move to another region.
    pub moves: u32,
    /// How many of hundred updates take their time, and may not happen.
    pub slow: u32,
}

/// How long a session waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(400);
/// How long an update is in flight at most.
const SLOW: Duration = Duration::from_millis(60);

/// What a session has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Read(u8),
    Write,
    Move(RegionId),
}

#[derive(Clone, Debug)]
struct Client {
    region: RegionId,
    session: Session,
    /// The number of its history.
    history: usize,
    asked: Option<(u64, Asked)>,
    /// The last alarm: earlier ones do not count.
    alarm: u64,
}

/// The sessions of a [`crate::World`] of regions, and all checks.
pub struct Sessions {
    /// What happened.
    pub counts: Counts,
    /// Whether they begin nothing new.
    pub ends: bool,
    profile: Profile,
    topology: Arc<Topology>,
    random: Random,
    clients: Vec<Client>,
    histories: Vec<Vec<Operation<u8, u64>>>,
    /// Values of updates of which nobody knows whether they happened.
    unknown: BTreeSet<u64>,
    tokens: u64,
    committed: BTreeSet<(RegionId, Timestamp)>,
    /// What was applied where, and whether it has changed something.
    applied: BTreeMap<(RegionId, RegionId, Timestamp), bool>,
    violated: Option<String>,
}

/// A value on the way.
fn written(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

fn value_of(bytes: &Bytes) -> u64 {
    u64::from_be_bytes(bytes[..].try_into().expect("eight bytes were written"))
}

impl Sessions {
    /// Sessions in these regions.
    pub fn new(random: Random, profile: Profile, topology: Arc<Topology>) -> Sessions {
        let regions: Vec<_> = topology.regions().collect();
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
            profile,
            random,
            clients: (0..profile.sessions).map(client).collect(),
            histories: vec![Vec::new(); profile.sessions],
            topology,
            unknown: BTreeSet::new(),
            tokens: 0,
            committed: BTreeSet::new(),
            applied: BTreeMap::new(),
            violated: None,
        }
    }

    /// Whether nobody waits for an answer.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.asked.is_none())
    }

    /// Updates that some other region was not seen to apply.
    pub fn lost(&self) -> impl Iterator<Item = (RegionId, RegionId, Timestamp)> {
        let each = self.committed.iter().flat_map(|(origin, ts)| {
            self.topology.others(*origin).map(move |at| (at, *origin, *ts))
        });
        each.filter(|name| !self.applied.contains_key(name))
    }

    /// Judges what was seen, and what regions hold in the end.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn judge(&self, held: &[(String, BTreeMap<u8, u64>)]) -> Result<(), String> {
        if let Some(lost) = self.lost().next() {
            return Err(format!("lost: nobody has seen {lost:?} applied"));
        }
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
        causal::check_final(&histories, held)
    }

    fn alarm(&mut self, client: usize, after: Duration) -> Stimulus<Member> {
        self.tokens += 1;
        let token = self.tokens << 16 | client as u64;
        self.clients[client].alarm = token;
        Stimulus::Wake { token, after }
    }

    fn think(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        let most = self.profile.think.as_micros() as u64;
        let after = Duration::from_micros(self.random.random_range(0..=most));
        vec![self.alarm(client, after)]
    }

    fn happens(&mut self, of_hundred: u32) -> bool {
        self.random.random_range(0..100) < of_hundred
    }

    fn begin_one(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        self.tokens += 1;
        let token = self.tokens << 16 | client as u64;
        let region = self.clients[client].region;
        let key = self.random.random_range(0..self.profile.keys);
        let home = self.topology.home(region, place_of(&[key]));
        let after = Duration::from_micros(self.random.random_range(50..500));
        let (moves, reads) = (self.happens(self.profile.moves), self.happens(self.profile.reads));
        let key_bytes = Bytes::copy_from_slice(&[key]);
        let mut stimuli = Vec::new();
        let mut ask = |to, command, after| stimuli.push(Stimulus::Command { to, command, after });
        let asked = if moves {
            let regions: Vec<_> = self.topology.regions().collect();
            let region = regions[self.random.random_range(0..regions.len())];
            let seen = self.clients[client].session.seen().vector;
            let command = receiver::Command::Await { token, seen };
            let to = Peer { region, role: Role::Receiver };
            ask(to, member::Command::Receiver(command), after);
            Asked::Move(region)
        } else if reads {
            let command = shard::Command::Read { token, key: key_bytes };
            ask(home, member::Command::Shard(command), after);
            Asked::Read(key)
        } else {
            let value = Some(written(token));
            let seen = *self.clients[client].session.seen();
            let request = Request { token, key: key_bytes, value, seen };
            if self.random.random_range(0..100) < self.profile.slow {
                let most = SLOW.as_micros() as u64;
                let end = after + Duration::from_micros(self.random.random_range(1..most));
                ask(home, member::Command::Shard(shard::Command::Begin(request)), after);
                if self.random.random_ratio(1, 5) {
                    self.counts.add("aborted", 1);
                    let abort = shard::Command::Abort { token };
                    ask(home, member::Command::Shard(abort), end);
                    return self.then_think(client, stimuli);
                }
                let commit = shard::Command::Commit { token };
                ask(home, member::Command::Shard(commit), end);
            } else {
                ask(home, member::Command::Shard(shard::Command::Update(request)), after);
            }
            self.histories[self.clients[client].history].push(Operation::Write(key, token));
            Asked::Write
        };
        self.clients[client].asked = Some((token, asked));
        stimuli.push(self.alarm(client, TIMEOUT));
        stimuli
    }

    fn then_think(
        &mut self,
        client: usize,
        mut stimuli: Vec<Stimulus<Member>>,
    ) -> Vec<Stimulus<Member>> {
        stimuli.extend(self.think(client));
        stimuli
    }

    /// No answer has come.
    fn give_up(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        let Some((token, asked)) = self.clients[client].asked.take() else {
            return Vec::new();
        };
        if asked == Asked::Write {
            // It may have happened: whoever goes on does not know.
            self.counts.add("unknown", 1);
            self.unknown.insert(token);
            self.clients[client].history = self.histories.len();
            self.clients[client].session = Session::default();
            self.histories.push(Vec::new());
        }
        let mut stimuli = Vec::new();
        if let Asked::Move(region) = asked {
            self.counts.add("stayed", 1);
            let command = member::Command::Receiver(receiver::Command::Forget { token });
            let to = Peer { region, role: Role::Receiver };
            stimuli.push(Stimulus::Command { to, command, after: Duration::ZERO });
        }
        self.then_think(client, stimuli)
    }

    /// The client whose last question this answers, and what that was.
    fn answered(&mut self, token: u64) -> Option<(usize, Asked)> {
        let client = (token & 0xffff) as usize;
        let (last, asked) = self.clients.get(client)?.asked?;
        if last != token {
            return None;
        }
        self.clients[client].asked = None;
        Some((client, asked))
    }

    fn on_value(&mut self, token: u64, value: Option<&Bytes>, seen: &Seen) -> Option<usize> {
        let (client, asked) = self.answered(token)?;
        let Asked::Read(key) = asked else { return None };
        self.counts.add("reads", 1);
        let it = &mut self.clients[client];
        it.session.saw(seen);
        self.histories[it.history].push(Operation::Read(key, value.map(value_of)));
        Some(client)
    }

    fn on_updated(&mut self, at: RegionId, token: u64, seen: &Seen) -> Option<usize> {
        self.committed.insert((at, seen.vector[at]));
        let (client, _) = self.answered(token)?;
        self.counts.add("writes", 1);
        self.clients[client].session.saw(seen);
        Some(client)
    }

    fn on_refused(&mut self, token: u64) -> Option<usize> {
        let (client, _) = self.answered(token)?;
        self.counts.add("refused", 1);
        self.histories[self.clients[client].history].pop();
        Some(client)
    }

    fn on_reached(&mut self, token: u64) -> Option<usize> {
        let (client, asked) = self.answered(token)?;
        let Asked::Move(region) = asked else { return None };
        self.counts.add("moved", 1);
        // As a token, which is all that goes to the other region.
        let token = self.clients[client].session.token();
        self.clients[client].session = Session::from_token(&token).expect("it is one");
        self.clients[client].region = region;
        Some(client)
    }

    fn on_applied(&mut self, name: (RegionId, RegionId, Timestamp), changed: bool) {
        self.counts.add(if changed { "applied" } else { "superseded" }, 1);
        let before = self.applied.entry(name).or_default();
        if *before && changed {
            self.violated = Some(format!("once: {name:?} has changed something twice"));
        }
        *before |= changed;
    }
}

impl Owner<Member> for Sessions {
    fn begin(&mut self) -> Vec<Stimulus<Member>> {
        (0..self.clients.len()).flat_map(|client| self.think(client)).collect()
    }

    fn output(&mut self, at: Peer, output: Output, _now: Time) -> Vec<Stimulus<Member>> {
        use shard::Output::{Applied, Refused, Updated, Value};
        let client = match output {
            Output::Shard(Value { token, value, seen }) => {
                self.on_value(token, value.as_ref(), &seen)
            }
            Output::Shard(Updated { token, seen }) => self.on_updated(at.region, token, &seen),
            Output::Shard(Refused { token }) => self.on_refused(token),
            Output::Shard(Applied { origin, ts, changed }) => {
                self.on_applied((at.region, origin, ts), changed);
                None
            }
            Output::Receiver(receiver::Output::Reached { token }) => self.on_reached(token),
        };
        client.map_or_else(Vec::new, |client| self.think(client))
    }

    fn wake(&mut self, token: u64, _now: Time) -> Vec<Stimulus<Member>> {
        let client = (token & 0xffff) as usize;
        if self.clients[client].alarm != token {
            return Vec::new();
        }
        match self.clients[client].asked {
            Some(_) => self.give_up(client),
            None if self.ends => Vec::new(),
            None => self.begin_one(client),
        }
    }

    fn crashed(&mut self, at: Peer, _now: Time) {
        let name = match at.role {
            Role::Shard(_) => "shard crashes",
            Role::Replica(_) => "replica crashes",
            Role::Receiver => "receiver crashes",
        };
        self.counts.add(name, 1);
    }

    fn check(&mut self, _at: Peer, _process: &Member, _durable: bool) -> Result<(), String> {
        self.violated.take().map_or(Ok(()), Err)
    }
}
