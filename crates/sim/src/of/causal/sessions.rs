//! What sessions ask of any node of their regions, and what becomes of it.

use super::Member;
use super::changing::Configurations;
use super::node::{self, Rmw};
use crate::checkers::causal::Operation;
use crate::sessions::{self, value_of, written};
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{NodeId, RegionId, Time};
use meridian_eunomia::{Order, Refusal, Seen, Standing, Timestamp};
use meridian_hermes::Action;
use meridian_keys::causal::{Command, Found, Output, Update};
use rand::RngExt;
use rand::seq::IteratorRandom;
use std::collections::{BTreeMap, BTreeSet};
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
    /// How many of hundred reads are of several keys at one moment.
    pub snapshots: u32,
}

/// What a session has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Read(u8),
    /// Of the keys whose bits are set.
    Snapshot(u16),
    Write(u8),
    Rmw(u8),
    Move {
        region: RegionId,
        node: NodeId,
    },
}

/// The sessions of a [`crate::World`] of regions, and all checks.
pub struct Sessions {
    all: sessions::Sessions<Asked>,
    profile: Profile,
    /// Who should hold keys.
    pub nodes: Configurations,
    /// Updates that have happened, by their keys.
    committed: BTreeSet<(u8, Order)>,
    /// The key of each update that was asked for, and where.
    keys: BTreeMap<u64, u8>,
    written_at: BTreeMap<u64, RegionId>,
    /// Which updates have happened, by their values.
    made: BTreeMap<u64, (RegionId, Timestamp)>,
    /// What RMWs have replaced where, and by what.
    replaced: BTreeMap<(RegionId, u8, Option<u64>), u64>,
    /// Who has come and served.
    came: BTreeSet<NodeId>,
    /// Sessions whose region does not serve: they move.
    stranded: BTreeSet<usize>,
    /// So many regions there were at first, and what has become of others.
    first: usize,
    changed: BTreeSet<(RegionId, &'static str)>,
}

/// Wakes who tells nodes how the cluster is configured, and how often.
const TELL: u64 = u64::MAX;
const TELL_AGAIN: Duration = Duration::from_millis(25);

/// A node and what it holds: values, and their places.
pub type Held = (String, BTreeMap<u8, (u64, Order)>);

impl Sessions {
    /// Sessions in the first regions.
    pub fn new(random: Random, profile: Profile, nodes: Configurations) -> Sessions {
        let named: Vec<_> = nodes.regions().collect();
        let all = sessions::Sessions::new(random, (profile.sessions, profile.think), &named);
        let (committed, keys, replaced) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let (written_at, made) = (BTreeMap::new(), BTreeMap::new());
        let (came, stranded, changed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let first = named.len();
        Sessions {
            all,
            profile,
            nodes,
            committed,
            keys,
            written_at,
            made,
            replaced,
            came,
            stranded,
            first,
            changed,
        }
    }

    /// What all sessions have in common.
    pub fn all(&self) -> &sessions::Sessions<impl Copy> {
        &self.all
    }

    /// They begin nothing new.
    pub fn end(&mut self) {
        self.all.ends = true;
    }

    /// Judges what was seen, and what nodes hold in the end.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn judge(&self, nodes: &[Held]) -> Result<(), String> {
        self.judge_lost()?;
        for (node, held) in nodes {
            let order = |key| held.get(key).map_or(Order::default(), |(_, order)| *order);
            let lost = self.committed.iter().find(|(key, update)| {
                order(key) < *update && self.is_kept(RegionId(update.region), update.ts)
            });
            if let Some(lost) = lost {
                return Err(format!("lost: {node} holds something older than {lost:?}"));
            }
        }
        let values = |held: &BTreeMap<u8, (u64, Order)>| {
            held.iter().map(|(key, (value, _))| (*key, *value)).collect()
        };
        let held: Vec<_> = nodes.iter().map(|(node, held)| (node.clone(), values(held))).collect();
        self.all.judge_without(&held, &self.dropped(&held))
    }

    /// The first regions that serve now.
    fn serving(&self) -> impl Iterator<Item = RegionId> + '_ {
        let first = (0..self.first as u16).map(RegionId);
        first.filter(|region| self.nodes.standings().reads(*region))
    }

    /// Whether an update is to be everywhere: not if its region is lost and nobody has applied it.
    fn is_kept(&self, origin: RegionId, ts: Timestamp) -> bool {
        let applied = |at| self.all.has_applied(at, origin, ts);
        !self.nodes.is_lost(origin) || self.serving().any(applied)
    }

    /// Of a lost region all that stay have applied the same.
    fn judge_lost(&self) -> Result<(), String> {
        let lost = self.nodes.regions().filter(|origin| self.nodes.is_lost(*origin));
        for origin in lost {
            let serving: BTreeSet<_> = self.serving().collect();
            let of = self.all.applied_of(origin).filter(|(at, _)| serving.contains(at));
            for (at, ts) in of {
                let lacks = |other: &&RegionId| !self.all.has_applied(**other, origin, ts);
                if let Some(other) = serving.iter().find(lacks) {
                    return Err(format!(
                        "kept: {at:?} has applied {ts:?} of {origin:?}, {other:?} not"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Values that were written in a lost region, and that nobody has applied who stays.
    fn dropped(&self, held: &[(String, BTreeMap<u8, u64>)]) -> BTreeSet<u64> {
        let is_held = |value: &u64| held.iter().any(|(_, held)| held.values().any(|v| v == value));
        let is_applied = |value: &u64| {
            self.made.get(value).is_some_and(|(origin, ts)| self.is_kept(*origin, *ts))
        };
        let lost = self.written_at.iter().filter(|(_, at)| self.nodes.is_lost(**at));
        let lost = lost.map(|(value, _)| *value);
        lost.filter(|value| !is_applied(value) && !is_held(value)).collect()
    }

    fn node_of(&mut self, region: RegionId) -> NodeId {
        let any = self.all.happens(10);
        let wanted = self.nodes.wanted_in(region);
        let nodes = if any { self.nodes.present(region) } else { wanted.clone() };
        nodes.into_iter().choose(&mut self.all.random).expect("some")
    }

    fn begin_one(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        let token = self.all.token(client);
        let (region, seen) = (self.all.region(client), self.all.seen(client));
        let number = self.all.random.random_range(0..self.profile.keys);
        let mut to = self.node_of(region);
        let after = Duration::from_micros(self.all.random.random_range(50..500));
        let (moves, reads) =
            (self.all.happens(self.profile.moves), self.all.happens(self.profile.reads));
        let moves = moves || self.stranded.contains(&client);
        let (rmws, creates) = (self.all.happens(self.profile.rmws), self.all.happens(30));
        let key = Bytes::copy_from_slice(&[number]);
        let (command, asked) = if moves {
            let regions = self.nodes.regions().count();
            let region = RegionId(self.all.random.random_range(0..regions as u16));
            to = self.node_of(region);
            (Command::Await { token, seen: seen.vector }, Asked::Move { region, node: to })
        } else if reads && self.profile.snapshots > 0 && self.all.happens(self.profile.snapshots) {
            let all = self.all.random.random_range(1..1u16 << self.profile.keys.min(12));
            let keys = keys_of(all).map(|key| Bytes::copy_from_slice(&[key])).collect();
            (Command::ReadAll { token, keys }, Asked::Snapshot(all))
        } else if reads {
            (Command::Read { token, key }, Asked::Read(number))
        } else {
            let value = written(token);
            self.keys.insert(token, number);
            self.written_at.insert(token, region);
            let (action, asked) = match (rmws, creates) {
                (false, _) => (Action::Write(Some(value)), Asked::Write(number)),
                (true, false) => (Action::Modify(Rmw::Swap(value)), Asked::Rmw(number)),
                (true, true) => (Action::Modify(Rmw::Create(value)), Asked::Rmw(number)),
            };
            if let Asked::Write(_) = asked {
                self.all.note(client, Operation::Write(number, token));
            }
            (Command::Update(Update { token, key, action, seen }), asked)
        };
        let command = node::Command::Keys(Box::new(command));
        vec![Stimulus::Command { to, command, after }, self.all.ask(client, token, asked)]
    }

    /// No answer has come, or that nobody knows: whether it has happened.
    fn give_up(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        let Some((token, asked)) = self.all.give_up(client) else { return Vec::new() };
        if self.nodes.is_struck(self.all.region(client)) {
            self.stranded.insert(client);
        }
        let mut stimuli = Vec::new();
        match asked {
            Asked::Write(_) => self.all.part(client, token),
            Asked::Rmw(key) => {
                self.all.note(client, Operation::Write(key, token));
                self.all.part(client, token);
            }
            Asked::Move { node, .. } => {
                self.all.counts.add("stayed", 1);
                let command = node::Command::Keys(Box::new(Command::Forget { token }));
                stimuli.push(Stimulus::Command { to: node, command, after: Duration::ZERO });
            }
            Asked::Read(_) | Asked::Snapshot(_) => self.all.counts.add("unanswered", 1),
        }
        stimuli.push(self.all.think(client));
        stimuli
    }

    /// A session has seen a value, and what comes with it.
    fn on_seen(&mut self, token: u64, value: Option<u64>, seen: &Seen) -> Option<usize> {
        let (client, asked) = self.all.answered(token)?;
        let (Asked::Read(key) | Asked::Rmw(key)) = asked else { return None };
        self.all.counts.add(if let Asked::Read(_) = asked { "reads" } else { "kept" }, 1);
        self.all.saw(client, seen);
        self.all.note(client, Operation::Read(key, value));
        Some(client)
    }

    /// A session has seen several keys at one moment: it may look at each of them again, and see
    /// the same, though it has seen all the others meanwhile.
    fn on_snapshot(&mut self, token: u64, found: &[Found]) -> Option<usize> {
        let (client, asked) = self.all.answered(token)?;
        let Asked::Snapshot(keys) = asked else { return None };
        self.all.counts.add("snapshots", 1);
        found.iter().for_each(|found| self.all.saw(client, &found.seen));
        let shown: Vec<_> = keys_of(keys).zip(found).collect();
        for (key, found) in shown.iter().chain(&shown) {
            let value = found.value.as_deref().and_then(value_of);
            self.all.note(client, Operation::Read(*key, value));
        }
        Some(client)
    }

    fn on_updated(&mut self, at: NodeId, token: u64, answer: &Bytes, seen: &Seen) -> Option<usize> {
        let region = self.nodes.region_of(at);
        let (version, ts) = (seen.version, seen.vector[region]);
        self.committed.insert((self.keys[&token], Order { version, region: region.0, ts }));
        self.made.insert(token, (region, ts));
        let (client, asked) = self.all.answered(token)?;
        self.all.saw(client, seen);
        if let Asked::Rmw(key) = asked {
            let found = value_of(answer);
            self.all.note(client, Operation::Read(key, found));
            self.all.note(client, Operation::Write(key, token));
            let before = self.replaced.insert((region, key, found), token);
            if let Some(before) = before {
                self.all.violate(format!("rmw: {before:x} and {token:x} replaced {found:x?}"));
            }
            self.all.counts.add("rmws", 1);
        } else {
            self.all.counts.add("writes", 1);
        }
        Some(client)
    }

    fn on_refused(&mut self, token: u64, why: &'static str) -> Option<usize> {
        let (client, asked) = self.all.answered(token)?;
        self.all.counts.add(why, 1);
        if let Asked::Write(_) = asked {
            self.all.strike(client);
        }
        Some(client)
    }

    /// The region does not serve: the session goes to another one. One that has seen what was
    /// dropped ends, and another begins.
    fn on_denied(&mut self, token: u64, why: Refusal) -> Option<usize> {
        if let Refusal::Dropped(_) = why {
            let (client, asked) = self.all.answered(token)?;
            let Asked::Move { region, .. } = asked else { return None };
            self.all.counts.add("dropped", 1);
            self.stranded.remove(&client);
            self.all.begin_anew(client, region);
            return Some(client);
        }
        self.stranded.insert(self.all.who_asks(token)?);
        self.on_refused(token, "denied")
    }

    fn on_reached(&mut self, token: u64) -> Option<usize> {
        let (client, asked) = self.all.answered(token)?;
        let Asked::Move { region, .. } = asked else { return None };
        self.stranded.remove(&client);
        self.all.moved(client, region);
        Some(client)
    }
}

impl Sessions {
    /// Counts what has become of regions.
    fn note_regions(&mut self) {
        let joined = self.nodes.standings().there().filter(|region| {
            usize::from(region.0) >= self.first && self.nodes.standings().writes(*region)
        });
        let gone = self.nodes.regions().filter(|region| {
            matches!(self.nodes.standings().standing(*region), Standing::Gone { .. })
        });
        let joined = joined.map(|region| (region, "joined"));
        let gone = gone.map(|region| match self.nodes.is_lost(region) {
            true => (region, "lost"),
            false => (region, "gone"),
        });
        let changed: Vec<_> = joined.chain(gone).collect();
        for (region, what) in changed {
            if self.changed.insert((region, what)) {
                self.all.counts.add(what, 1);
            }
        }
    }
}

/// The keys whose bits are set.
fn keys_of(set: u16) -> impl Iterator<Item = u8> {
    (0..16).filter(move |key| set & 1 << key != 0)
}

impl Owner<Member> for Sessions {
    fn begin(&mut self) -> Vec<Stimulus<Member>> {
        let tell = Stimulus::Wake { token: TELL, after: TELL_AGAIN };
        std::iter::once(tell).chain(self.all.begin()).collect()
    }

    fn output(&mut self, at: NodeId, output: Output, _now: Time) -> Vec<Stimulus<Member>> {
        let client = match output {
            Output::Value { token, found, .. } => {
                self.on_seen(token, found.value.as_deref().and_then(value_of), &found.seen)
            }
            Output::Values { token, found, .. } => self.on_snapshot(token, &found),
            Output::Kept { token, answer, seen, .. } => {
                self.on_seen(token, value_of(&answer), &seen)
            }
            Output::Updated { token, answer, seen } => self.on_updated(at, token, &answer, &seen),
            Output::Refused { token, .. } => self.on_refused(token, "refused"),
            Output::Aborted { token } => self.on_refused(token, "aborted"),
            Output::Denied { token, why } => self.on_denied(token, why),
            Output::Word(word) => {
                self.nodes.hear(at, word);
                self.note_regions();
                None
            }
            Output::Unknown { token } => {
                return match self.all.who_asks(token) {
                    Some(client) => self.give_up(client),
                    None => Vec::new(),
                };
            }
            Output::Reached { token } => self.on_reached(token),
            Output::Applied { origin, ts, changed } => {
                let region = self.nodes.region_of(at);
                self.all.on_applied(region, (origin, ts), changed);
                None
            }
            Output::Replica(_) | Output::Lapsed { .. } => None,
        };
        client.map(|client| self.all.think(client)).into_iter().collect()
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Member>> {
        if token == TELL {
            let tell = Stimulus::Wake { token: TELL, after: TELL_AGAIN };
            let told = self.nodes.tell(now, &mut self.all.random);
            return std::iter::once(tell).chain(told).collect();
        }
        match self.all.woken(token) {
            Some((client, true)) => self.give_up(client),
            Some((client, false)) if !self.all.ends => self.begin_one(client),
            _ => Vec::new(),
        }
    }

    fn crashed(&mut self, _at: NodeId, _now: Time) {
        self.all.counts.add("crashes", 1);
    }

    fn check(&mut self, at: NodeId, process: &Member, _durable: bool) -> Result<(), String> {
        let replica = process.inner.keys.replica();
        replica.check_invariants()?;
        if Configurations::is_later(at) && replica.is_live() && self.came.insert(at) {
            self.all.counts.add("came", 1);
        }
        let node = &process.inner;
        if node.membership.has_left() && self.nodes.leave(at, node.version()) {
            self.all.counts.add("left", 1);
        }
        self.all.check()
    }
}
