//! What sessions ask of shards and receivers, and what becomes of it.

use super::Member;
use crate::checkers::causal::Operation;
use crate::sessions::{self, Held, value_of, written};
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{RegionId, Time};
use meridian_eunomia::member::{self, Output};
use meridian_eunomia::shard::{self, Request};
use meridian_eunomia::{Peer, Role, Seen, Timestamp, Topology, place_of, receiver};
use rand::RngExt;
use std::collections::BTreeSet;
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
    /// Updates that have happened.
    committed: BTreeSet<(RegionId, Timestamp)>,
}

impl Sessions {
    /// Sessions in these regions.
    pub fn new(random: Random, profile: Profile, topology: Arc<Topology>) -> Sessions {
        let regions: Vec<_> = topology.regions().collect();
        let all = sessions::Sessions::new(random, (profile.sessions, profile.think), &regions);
        Sessions { all, profile, topology, committed: BTreeSet::new() }
    }

    /// What all sessions have in common.
    pub fn all(&self) -> &sessions::Sessions<impl Copy> {
        &self.all
    }

    /// They begin nothing new.
    pub fn end(&mut self) {
        self.all.ends = true;
    }

    /// Updates that some other region was not seen to apply.
    pub fn lost(&self) -> impl Iterator<Item = (RegionId, RegionId, Timestamp)> {
        let each = self.committed.iter().flat_map(|(origin, ts)| {
            self.topology.others(*origin).map(move |at| (at, *origin, *ts))
        });
        each.filter(|(at, origin, ts)| !self.all.has_applied(*at, *origin, *ts))
    }

    /// Judges what was seen, and what regions hold in the end.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn judge(&self, held: &[(String, Held)]) -> Result<(), String> {
        if let Some(lost) = self.lost().next() {
            return Err(format!("lost: nobody has seen {lost:?} applied"));
        }
        self.all.judge(held)
    }

    fn begin_one(&mut self, client: usize) -> Vec<Stimulus<Member>> {
        let token = self.all.token(client);
        let region = self.all.region(client);
        let key = self.all.random.random_range(0..self.profile.keys);
        let home = self.topology.home(region, place_of(&[key]));
        let after = Duration::from_micros(self.all.random.random_range(50..500));
        let moves = self.all.happens(self.profile.moves);
        let reads = self.all.happens(self.profile.reads);
        let key_bytes = Bytes::copy_from_slice(&[key]);
        let seen = self.all.seen(client);
        let mut stimuli = Vec::new();
        let mut ask = |to, command, after| stimuli.push(Stimulus::Command { to, command, after });
        let asked = if moves {
            let regions: Vec<_> = self.topology.regions().collect();
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
        self.all.note(client, Operation::Read(key, value));
        Some(client)
    }

    fn on_updated(&mut self, at: RegionId, token: u64, seen: &Seen) -> Option<usize> {
        self.committed.insert((at, seen.vector[at]));
        let (client, _) = self.all.answered(token)?;
        self.all.counts.add("writes", 1);
        self.all.saw(client, seen);
        Some(client)
    }

    fn on_refused(&mut self, token: u64) -> Option<usize> {
        let (client, _) = self.all.answered(token)?;
        self.all.counts.add("refused", 1);
        self.all.strike(client);
        Some(client)
    }

    fn on_reached(&mut self, token: u64) -> Option<usize> {
        let (client, asked) = self.all.answered(token)?;
        let Asked::Move(region) = asked else { return None };
        self.all.moved(client, region);
        Some(client)
    }
}

impl Owner<Member> for Sessions {
    fn begin(&mut self) -> Vec<Stimulus<Member>> {
        self.all.begin()
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
                self.all.on_applied(at.region, (origin, ts), changed);
                None
            }
            Output::Receiver(receiver::Output::Reached { token }) => self.on_reached(token),
        };
        client.map(|client| self.all.think(client)).into_iter().collect()
    }

    fn wake(&mut self, token: u64, _now: Time) -> Vec<Stimulus<Member>> {
        match self.all.woken(token) {
            Some((client, true)) => self.give_up(client),
            Some((client, false)) if !self.all.ends => self.begin_one(client),
            _ => Vec::new(),
        }
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
