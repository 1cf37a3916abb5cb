//! What sessions ask of shards and receivers, and what becomes of it.

use super::Member;
use super::changing::Configuration;
use crate::checkers::causal::Operation;
use crate::sessions::{self, Held, value_of, written};
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{RegionId, Time};
use meridian_eunomia::member::{self, Output};
use meridian_eunomia::shard::{self, Request};
use meridian_eunomia::{
    Peer, Refusal, Regions, Role, Seen, Timestamp, Topology, place_of, receiver,
};
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

/// How long an update is in flight at most.
const SLOW: Duration = Duration::from_millis(60);

/// What a session has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Read(u8),
    Write,
    Move(RegionId),
}

/// The sessions of a [`crate::World`] of regions, and all checks.
pub struct Sessions {
    all: sessions::Sessions<Asked>,
    profile: Profile,
    topology: Arc<Topology>,
    /// Which regions there are.
    pub configuration: Configuration,
    /// Sessions whose region does not serve them.
    stranded: BTreeSet<usize>,
    /// Updates that have happened, the values that they wrote, and the regions that there were.
    committed: BTreeMap<(RegionId, Timestamp), (u64, Arc<Regions>)>,
    /// Where values were written, and where they were read.
    written_at: BTreeMap<u64, RegionId>,
    read_at: BTreeSet<(u64, RegionId)>,
}

/// The alarm of the configuration; those of its changes count down from there.
const TELL: u64 = u64::MAX;
/// So many alarms are the configuration's.
const CHANGES_MAX: u64 = 100;

impl Sessions {
    /// Sessions in these regions.
    pub fn new(
        random: Random,
        profile: Profile,
        topology: Arc<Topology>,
        configuration: Configuration,
    ) -> Sessions {
        let regions = configuration.serving();
        let all = sessions::Sessions::new(random, (profile.sessions, profile.think), &regions);
        Sessions {
            all,
            profile,
            topology,
            configuration,
            stranded: BTreeSet::new(),
            committed: BTreeMap::new(),
            written_at: BTreeMap::new(),
            read_at: BTreeSet::new(),
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

    /// Updates that some other region was not seen to apply which serves now, and did so when they
    /// were made. Of a lost region only those that another has applied.
    pub fn lost(&self) -> impl Iterator<Item = (RegionId, RegionId, Timestamp)> {
        let serving = self.configuration.serving();
        let each = self.committed.iter().flat_map(move |((origin, ts), (_, regions))| {
            let (origin, ts) = (*origin, *ts);
            let kept = !self.configuration.is_lost(origin)
                || serving.iter().any(|at| self.all.has_applied(*at, origin, ts));
            let served = serving.iter().filter(|at| **at != origin && regions.writes(**at));
            let served: Vec<_> = served.filter(|_| kept).copied().collect();
            served.into_iter().map(move |at| (at, origin, ts))
        });
        each.filter(|(at, origin, ts)| !self.all.has_applied(*at, *origin, *ts))
    }

    /// Values that were written in a lost region, and that no region has which serves.
    fn dropped(&self, held: &[(String, Held)]) -> BTreeSet<u64> {
        let serving = self.configuration.serving();
        let applied = self.committed.iter().filter(|((origin, ts), _)| {
            serving.iter().any(|at| self.all.has_applied(*at, *origin, *ts))
        });
        let mut kept: BTreeSet<u64> = applied.map(|(_, (value, _))| *value).collect();
        kept.extend(held.iter().flat_map(|(_, held)| held.values()));
        let read = self.read_at.iter().filter(|(_, at)| serving.contains(at));
        kept.extend(read.map(|(value, _)| value));
        let lost = self.written_at.iter().filter(|(_, at)| self.configuration.is_lost(**at));
        lost.map(|(value, _)| *value).filter(|value| !kept.contains(value)).collect()
    }

    /// Judges what was seen, and what regions hold in the end.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn judge(&self, held: &[(String, Held)]) -> Result<(), String> {
        if let Some(lost) = self.lost().next() {
            return Err(format!("lost: nobody has seen {lost:?} applied"));
        }
        self.all.judge_without(held, &self.dropped(held))
    }

    fn begin_one(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        let token = self.all.token(client);
        let region = self.all.region(client);
        let key = self.all.random.random_range(0..self.profile.keys);
        let home = self.topology.home(region, place_of(&[key]));
        let after = Duration::from_micros(self.all.random.random_range(50..500));
        let moves = self.all.happens(self.profile.moves) || self.stranded.contains(&client);
        let reads = self.all.happens(self.profile.reads);
        let key_bytes = Bytes::copy_from_slice(&[key]);
        let seen = self.all.seen(client);
        let mut stimuli = Vec::new();
        let mut ask = |to, command, after| stimuli.push(Stimulus::Command { to, command, after });
        let asked = if moves {
            let regions: Vec<_> = match self.all.happens(80) {
                true => self.configuration.regions().there().collect(),
                false => self.topology.regions().collect(),
            };
            let region = regions[self.all.random.random_range(0..regions.len())];
            let command = receiver::Command::Await { token, seen: seen.vector };
            let to = Peer { region, role: Role::Receiver };
            ask(to, member::Command::Receiver(command), after);
            Asked::Move(region)
        } else if reads {
            let command = shard::Command::Read { token, key: key_bytes };
            ask(home, member::Command::Shard(command), after);
            Asked::Read(key)
        } else {
            let request = Request { token, key: key_bytes, value: Some(written(token)), seen };
            if self.all.happens(self.profile.slow) {
                let most = SLOW.as_micros() as u64;
                let end = after + Duration::from_micros(self.all.random.random_range(1..most));
                ask(home, member::Command::Shard(shard::Command::Begin(request)), after);
                if self.all.random.random_ratio(1, 5) {
                    self.all.counts.add("aborted", 1);
                    let abort = shard::Command::Abort { token };
                    ask(home, member::Command::Shard(abort), end);
                    stimuli.push(self.all.think(client));
                    return stimuli;
                }
                let commit = shard::Command::Commit { token };
                ask(home, member::Command::Shard(commit), end);
            } else {
                ask(home, member::Command::Shard(shard::Command::Update(request)), after);
            }
            self.written_at.insert(token, region);
            self.all.note(client, Operation::Write(key, token));
            Asked::Write
        };
        stimuli.push(self.all.ask(client, token, asked));
        stimuli
    }

    /// No answer has come.
    fn give_up(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        let Some((token, asked)) = self.all.give_up(client) else { return Vec::new() };
        let mut stimuli = Vec::new();
        match asked {
            Asked::Write => self.all.part(client, token),
            Asked::Read(_) => {}
            Asked::Move(region) => {
                self.all.counts.add("stayed", 1);
                let command = member::Command::Receiver(receiver::Command::Forget { token });
                let to = Peer { region, role: Role::Receiver };
                stimuli.push(Stimulus::Command { to, command, after: Duration::ZERO });
            }
        }
        stimuli.push(self.all.think(client));
        stimuli
    }

    fn on_value(&mut self, token: u64, value: Option<&Bytes>, seen: &Seen) -> Option<usize> {
        let (client, asked) = self.all.answered(token)?;
        let Asked::Read(key) = asked else { return None };
        self.all.counts.add("reads", 1);
        self.all.saw(client, seen);
        let value = value.map(|value| value_of(value).expect("eight bytes were written"));
        self.read_at.extend(value.map(|value| (value, self.all.region(client))));
        self.all.note(client, Operation::Read(key, value));
        Some(client)
    }

    fn on_updated(&mut self, at: RegionId, token: u64, seen: &Seen) -> Option<usize> {
        let regions = self.configuration.regions().clone();
        self.committed.insert((at, seen.vector[at]), (token, regions));
        let (client, _) = self.all.answered(token)?;
        self.all.counts.add("writes", 1);
        self.all.saw(client, seen);
        Some(client)
    }

    fn on_refused(&mut self, token: u64, why: Refusal) -> Option<usize> {
        let (client, asked) = self.all.answered(token)?;
        match (asked, why) {
            (Asked::Move(region), Refusal::Dropped(_)) => {
                self.all.counts.add("dropped", 1);
                self.stranded.remove(&client);
                self.all.begin_anew(client, region);
            }
            (_, Refusal::NotServing | Refusal::Dropped(_)) => {
                self.all.counts.add("not served", 1);
                self.stranded.insert(client);
            }
            (_, Refusal::Full) => self.all.counts.add("refused", 1),
        }
        if asked == Asked::Write {
            self.all.strike(client);
        }
        Some(client)
    }

    fn on_reached(&mut self, token: u64) -> Option<usize> {
        let (client, asked) = self.all.answered(token)?;
        let Asked::Move(region) = asked else { return None };
        self.stranded.remove(&client);
        self.all.moved(client, region);
        Some(client)
    }
}

impl Owner<Member> for Sessions {
    fn begin(&mut self) -> Vec<Stimulus<Member>> {
        let mut stimuli: Vec<_> = self.all.begin();
        let changes = (1..).zip(self.configuration.begin());
        stimuli.extend(changes.map(|(n, after)| Stimulus::Wake { token: TELL - n, after }));
        stimuli.push(Stimulus::Wake { token: TELL, after: Duration::ZERO });
        stimuli
    }

    fn output(&mut self, at: Peer, output: Output, _now: Time) -> Vec<Stimulus<Member>> {
        use shard::Output::{Applied, Refused, Updated, Value};
        let client = match output {
            Output::Shard(Value { token, value, seen }) => {
                self.on_value(token, value.as_ref(), &seen)
            }
            Output::Shard(Updated { token, seen }) => self.on_updated(at.region, token, &seen),
            Output::Shard(Refused { token, why }) => self.on_refused(token, why),
            Output::Shard(Applied { origin, ts, changed }) => {
                self.all.on_applied(at.region, (origin, ts), changed);
                None
            }
            Output::Receiver(receiver::Output::Reached { token }) => self.on_reached(token),
            Output::Receiver(receiver::Output::Refused { token, why }) => {
                self.on_refused(token, why)
            }
            Output::Regions(word)
            | Output::Shard(shard::Output::Regions(word))
            | Output::Receiver(receiver::Output::Regions(word)) => {
                self.configuration.hear(at, word);
                None
            }
        };
        client.map(|client| self.all.think(client)).into_iter().collect()
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Member>> {
        if token == TELL {
            let (mut stimuli, after) = self.configuration.tell(now);
            stimuli.push(Stimulus::Wake { token: TELL, after });
            return stimuli;
        }
        if token >= TELL - CHANGES_MAX {
            if !self.all.ends {
                let what = self.configuration.change((TELL - token - 1) as usize);
                self.all.counts.add(what, 1);
            }
            return Vec::new();
        }
        match self.all.woken(token) {
            Some((client, true)) => self.give_up(client),
            Some((client, false)) if !self.all.ends => self.begin_one(client),
            _ => Vec::new(),
        }
    }

    fn started(&mut self, at: Peer, _process: &Member, _now: Time) {
        self.configuration.started(at);
    }

    fn crashed(&mut self, at: Peer, _now: Time) {
        let name = match at.role {
            Role::Shard(_) => "shard crashes",
            Role::Replica(_) => "replica crashes",
            Role::Receiver => "receiver crashes",
        };
        self.all.counts.add(name, 1);
    }

    fn check(&mut self, _at: Peer, _process: &Member, _durable: bool) -> Result<(), String> {
        self.all.check()
    }
}
