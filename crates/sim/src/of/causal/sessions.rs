//! Sessions in all regions: each has one operation outstanding, at any node of its region. And the
//! checks of what they see, and of what is applied.

use super::Member;
use super::node::Rmw;
use crate::checkers::causal::{self, Operation};
use crate::trial::Counts;
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{NodeId, RegionId, Time};
use meridian_eunomia::{Order, Seen, Session, Timestamp};
use meridian_hermes::Action;
use meridian_keys::causal::{Command, Output, Regions, Update};
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
    /// How many of hundred updates are RMWs.
    pub rmws: u32,
}

/// How long a session waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(400);

/// What a session has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Read(u8),
    Write(u8),
    Rmw(u8),
    Move { region: RegionId, node: NodeId },
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
    regions: Arc<Regions>,
    random: Random,
    clients: Vec<Client>,
    histories: Vec<Vec<Operation<u8, u64>>>,
    /// Values of updates of which nobody knows whether they happened.
    unknown: BTreeSet<u64>,
    tokens: u64,
    /// Updates that have happened, by their keys.
    committed: BTreeSet<(u8, Order)>,
    /// The key of each update that was asked for.
    keys: BTreeMap<u64, u8>,
    /// What was applied where, and whether it has changed something.
    applied: BTreeMap<(RegionId, RegionId, Timestamp), bool>,
    /// What RMWs have replaced where, and by what.
    replaced: BTreeMap<(RegionId, u8, Option<u64>), u64>,
    violated: Option<String>,
}

/// A node and what it holds: values, and their places.
pub type Held = (String, BTreeMap<u8, (u64, Order)>);

fn written(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

/// The value in these bytes; RMWs answer nothing where there was none.
pub fn value_of(bytes: &Bytes) -> Option<u64> {
    bytes[..].try_into().ok().map(u64::from_be_bytes)
}

impl Sessions {
    /// Sessions in these regions.
    pub fn new(random: Random, profile: Profile, regions: Arc<Regions>) -> Sessions {
        let all: Vec<_> = regions.topology().regions().collect();
        let client = |number| Client {
            region: all[number % all.len()],
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
            regions,
            unknown: BTreeSet::new(),
            tokens: 0,
            committed: BTreeSet::new(),
            keys: BTreeMap::new(),
            applied: BTreeMap::new(),
            replaced: BTreeMap::new(),
            violated: None,
        }
    }

    /// Whether nobody waits for an answer.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.asked.is_none())
    }

    /// Judges what was seen, and what nodes hold in the end.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn judge(&self, nodes: &[Held]) -> Result<(), String> {
        for (node, held) in nodes {
            let order = |key| held.get(key).map_or(Order::default(), |(_, order)| *order);
            let lost = self.committed.iter().find(|(key, update)| order(key) < *update);
            if let Some(lost) = lost {
                return Err(format!("lost: {node} holds something older than {lost:?}"));
            }
        }
        let values = |held: &BTreeMap<u8, (u64, Order)>| {
            held.iter().map(|(key, (value, _))| (*key, *value)).collect::<BTreeMap<u8, u64>>()
        };
        let held: Vec<_> = nodes.iter().map(|(node, held)| (node, values(held))).collect();
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
        causal::check_final(&histories, &held)
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

    fn node_of(&mut self, region: RegionId) -> NodeId {
        let nodes = self.regions.nodes(region).len();
        let number = self.random.random_range(0..nodes);
        self.regions.node(region, number)
    }

    fn begin_one(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        self.tokens += 1;
        let token = self.tokens << 16 | client as u64;
        let Client { region, session, history, .. } = self.clients[client].clone();
        let number = self.random.random_range(0..self.profile.keys);
        let mut to = self.node_of(region);
        let after = Duration::from_micros(self.random.random_range(50..500));
        let (moves, reads) = (self.happens(self.profile.moves), self.happens(self.profile.reads));
        let (rmws, creates) = (self.happens(self.profile.rmws), self.happens(30));
        let key = Bytes::copy_from_slice(&[number]);
        let (command, asked) = if moves {
            let regions = self.regions.topology().regions().count();
            let region = RegionId(self.random.random_range(0..regions as u16));
            to = self.node_of(region);
            let seen = session.seen().vector;
            (Command::Await { token, seen }, Asked::Move { region, node: to })
        } else if reads {
            (Command::Read { token, key }, Asked::Read(number))
        } else {
            let value = written(token);
            self.keys.insert(token, number);
            let (action, asked) = match (rmws, creates) {
                (false, _) => (Action::Write(Some(value)), Asked::Write(number)),
                (true, false) => (Action::Modify(Rmw::Swap(value)), Asked::Rmw(number)),
                (true, true) => (Action::Modify(Rmw::Create(value)), Asked::Rmw(number)),
            };
            if let Asked::Write(_) = asked {
                self.histories[history].push(Operation::Write(number, token));
            }
            (Command::Update(Update { token, key, action, seen: *session.seen() }), asked)
        };
        self.clients[client].asked = Some((token, asked));
        vec![Stimulus::Command { to, command, after }, self.alarm(client, TIMEOUT)]
    }

    /// No answer has come, or that nobody knows: whether it has happened.
    fn give_up(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        let Some((token, asked)) = self.clients[client].asked.take() else {
            return Vec::new();
        };
        let mut stimuli = Vec::new();
        match asked {
            Asked::Write(_) | Asked::Rmw(_) => {
                // Whoever goes on does not know.
                self.counts.add("unknown", 1);
                self.unknown.insert(token);
                if let Asked::Rmw(key) = asked {
                    let history = self.clients[client].history;
                    self.histories[history].push(Operation::Write(key, token));
                }
                self.clients[client].history = self.histories.len();
                self.clients[client].session = Session::default();
                self.histories.push(Vec::new());
            }
            Asked::Move { node, .. } => {
                self.counts.add("stayed", 1);
                let command = Command::Forget { token };
                stimuli.push(Stimulus::Command { to: node, command, after: Duration::ZERO });
            }
            Asked::Read(_) => self.counts.add("unanswered", 1),
        }
        stimuli.extend(self.think(client));
        stimuli
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

    /// A session has seen a value, and what comes with it.
    fn on_seen(&mut self, token: u64, value: Option<u64>, seen: &Seen) -> Option<usize> {
        let (client, asked) = self.answered(token)?;
        let (Asked::Read(key) | Asked::Rmw(key)) = asked else { return None };
        self.counts.add(if let Asked::Read(_) = asked { "reads" } else { "kept" }, 1);
        let it = &mut self.clients[client];
        it.session.saw(seen);
        self.histories[it.history].push(Operation::Read(key, value));
        Some(client)
    }

    fn on_updated(&mut self, at: NodeId, token: u64, answer: &Bytes, seen: &Seen) -> Option<usize> {
        let (region, _) = self.regions.find(at).expect("a node of a region");
        let (version, ts) = (seen.version, seen.vector[region]);
        self.committed.insert((self.keys[&token], Order { version, region: region.0, ts }));
        let (client, asked) = self.answered(token)?;
        let it = &mut self.clients[client];
        it.session.saw(seen);
        if let Asked::Rmw(key) = asked {
            let found = value_of(answer);
            let history = &mut self.histories[it.history];
            history.extend([Operation::Read(key, found), Operation::Write(key, token)]);
            let before = self.replaced.insert((region, key, found), token);
            if let Some(before) = before {
                self.violated = Some(format!("rmw: {before:x} and {token:x} replaced {found:x?}"));
            }
            self.counts.add("rmws", 1);
        } else {
            self.counts.add("writes", 1);
        }
        Some(client)
    }

    fn on_refused(&mut self, token: u64, why: &'static str) -> Option<usize> {
        let (client, asked) = self.answered(token)?;
        self.counts.add(why, 1);
        if let Asked::Write(_) = asked {
            self.histories[self.clients[client].history].pop();
        }
        Some(client)
    }

    fn on_reached(&mut self, token: u64) -> Option<usize> {
        let (client, asked) = self.answered(token)?;
        let Asked::Move { region, .. } = asked else { return None };
        self.counts.add("moved", 1);
        // As a token, which is all that goes to the other region.
        let token = self.clients[client].session.token();
        self.clients[client].session = Session::from_token(&token).expect("it is one");
        self.clients[client].region = region;
        Some(client)
    }

    fn on_applied(&mut self, at: NodeId, origin: RegionId, ts: Timestamp, changed: bool) {
        let (region, _) = self.regions.find(at).expect("a node of a region");
        self.counts.add(if changed { "applied" } else { "superseded" }, 1);
        let name = (region, origin, ts);
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

    fn output(&mut self, at: NodeId, output: Output, _now: Time) -> Vec<Stimulus<Member>> {
        let client = match output {
            Output::Value { token, value, seen, .. } => {
                self.on_seen(token, value.as_ref().and_then(value_of), &seen)
            }
            Output::Kept { token, answer, seen, .. } => {
                self.on_seen(token, value_of(&answer), &seen)
            }
            Output::Updated { token, answer, seen } => self.on_updated(at, token, &answer, &seen),
            Output::Refused { token, .. } => self.on_refused(token, "refused"),
            Output::Aborted { token } => self.on_refused(token, "aborted"),
            Output::Unknown { token } => {
                let client = (token & 0xffff) as usize;
                let asks = self.clients[client].asked.is_some_and(|(last, _)| last == token);
                return if asks { self.give_up(client) } else { Vec::new() };
            }
            Output::Reached { token } => self.on_reached(token),
            Output::Applied { origin, ts, changed } => {
                self.on_applied(at, origin, ts, changed);
                None
            }
            Output::Replica(_) => None,
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

    fn crashed(&mut self, _at: NodeId, _now: Time) {
        self.counts.add("crashes", 1);
    }

    fn check(&mut self, _at: NodeId, process: &Member, _durable: bool) -> Result<(), String> {
        process.inner.keys.replica().check_invariants()?;
        self.violated.take().map_or(Ok(()), Err)
    }
}
