//! A replica of the service (Eunomia, Algorithm 4, without its loss of labels: decision 40).
//!
//! All replicas do the same with what sources send them. A receiver of another region says which
//! replica sends it the stream: that one leads, for this receiver. Two that send the same do no
//! harm. A replica keeps labels until all other regions have applied them, and the sources do, too;
//! so it has nothing on disk: one that starts anew is sent all that some region may lack.

use crate::message::{Batch, Label, Message, Peer, Role, Timer, Topology};
use crate::mutation::Mutation;
use crate::options::Options;
use crate::stabilizer::{Stabilizer, Taken};
use crate::timestamp::Timestamp;
use meridian_core::{Event, Outbox, Process, RegionId, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a replica is told, where sources come and go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// These are the sources now: see [`Stabilizer::follow`].
    Follow {
        /// Which change of them this is.
        roster: u64,
        /// Their numbers.
        sources: BTreeSet<u16>,
    },
    /// What those have left that were sources before: see [`Stabilizer::take`].
    Take(Vec<Label>),
    /// Others take part than before; regions are the same. One that has nobody left is not waited
    /// for.
    Configure(Arc<Topology>),
}

/// It tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Output {}

/// And keeps nothing on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {}

/// What is known of another region's receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Follower {
    /// It has applied all up to here, for good.
    applied: Timestamp,
    /// It was sent all up to here.
    sent: Timestamp,
    /// Whether it wants the stream from this replica.
    leads: bool,
}

/// A replica of a region's service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    me: Peer,
    topology: Arc<Topology>,
    options: Options,
    stabilizer: Stabilizer,
    followers: BTreeMap<RegionId, Follower>,
    /// Sources that have sent something since the last tick.
    heard: BTreeSet<u16>,
    /// Sources that have sent what comes after something missing; each is told once a while.
    lacking: BTreeMap<u16, Time>,
    /// Whether it looks at all of that soon.
    soon: bool,
    mutation: Mutation,
}

impl Replica {
    /// The replica with this number in a region, whose shards are the sources. It knows nothing.
    pub fn new(
        region: RegionId,
        number: u16,
        topology: Arc<Topology>,
        options: Options,
    ) -> Replica {
        let sources = topology.shard_count(region);
        let followers = topology.others(region).map(|other| (other, Follower::default()));
        Replica {
            me: Peer { region, role: Role::Replica(number) },
            stabilizer: Stabilizer::new(sources, Mutation::Correct),
            followers: followers.collect(),
            topology,
            options,
            heard: BTreeSet::new(),
            lacking: BTreeMap::new(),
            soon: false,
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Replica {
        Replica { stabilizer: self.stabilizer.with_mutation(mutation), mutation, ..self }
    }

    /// The same that is told who the sources are.
    pub fn without_sources(self) -> Replica {
        Replica { stabilizer: Stabilizer::new(0, self.mutation), ..self }
    }

    /// Whether it waits for what those have left that were sources before.
    pub fn awaits_labels(&self) -> bool {
        self.stabilizer.awaits_labels()
    }

    /// How many labels it keeps: those that are not stable, and those that are.
    pub fn held(&self) -> (usize, usize) {
        self.stabilizer.held()
    }

    /// All labels of the region up to here are known.
    pub fn stable_time(&self) -> Timestamp {
        self.stabilizer.stable_time()
    }

    fn on_batch(&mut self, now: Time, source: u16, batch: Batch, out: &mut Outbox<Self>) {
        self.heard.insert(source);
        let has_labels = !batch.labels.is_empty();
        if self.stabilizer.add(source, batch) == Taken::All {
            if has_labels && !self.soon {
                self.look(now, out);
            }
            return;
        }
        let told = self.lacking.get(&source);
        if told.is_none_or(|told| now.since(*told) >= self.options.theta * 2) {
            self.lacking.insert(source, now);
            self.ack(source, (true, false), out);
        }
    }

    /// Whether there is something to do before long.
    fn is_busy(&self) -> bool {
        let (unstable, stable) = self.stabilizer.held();
        let unsent = |follower: &Follower| {
            let (waits, sent) = self.counts(follower);
            follower.leads && sent < stable && sent.saturating_sub(waits) < self.options.window
        };
        unstable > 0 || self.stabilizer.lacks_promises() || self.followers.values().any(unsent)
    }

    /// How many of the stable labels a receiver has applied, and how many it was sent.
    fn counts(&self, follower: &Follower) -> (usize, usize) {
        let upto = |point| self.stabilizer.count_upto(point);
        (upto(follower.applied), upto(follower.sent))
    }

    fn ack(&self, source: u16, (lacks, waits): (bool, bool), out: &mut Outbox<Self>) {
        let to = Peer { role: Role::Shard(source), ..self.me };
        let (next, ahead) = (self.stabilizer.next_of(source), self.stabilizer.ahead());
        out.send(to, Message::Ack { next, lacks, ahead, waits, applied: self.applied() });
    }

    /// All other regions have applied all up to here, as far as is known.
    pub fn applied(&self) -> Timestamp {
        let is_there = |region: RegionId| self.topology.replicas(region).next().is_some();
        let there = self.followers.iter().filter(|(region, _)| is_there(**region));
        let applied = there.map(|(_, follower)| follower.applied).min();
        applied.unwrap_or(Timestamp::NEVER)
    }

    fn on_follow(&mut self, region: RegionId, told: Told) {
        let Some(follower) = self.followers.get_mut(&region) else { return };
        follower.applied = follower.applied.max(told.applied);
        if told.leads && (told.lacks || !follower.leads) {
            follower.sent = told.received;
        }
        follower.leads = told.leads;
        self.stabilizer.drop_upto(self.applied());
    }

    /// Sends each receiver that it leads what is stable, and how far that goes, whether there is
    /// anything or not: so a receiver sees what it lacks.
    fn send_streams(&mut self, out: &mut Outbox<Self>) {
        let stable_time = self.stabilizer.stable_time();
        for (region, follower) in &mut self.followers {
            if !follower.leads {
                continue;
            }
            let after = follower.sent;
            let upto = |point| self.stabilizer.count_upto(point);
            let (waits, sent) = (upto(follower.applied), upto(after));
            let room = self.options.window.saturating_sub(sent.saturating_sub(waits));
            let labels_max = self.options.labels_max.min(room);
            let labels: Vec<_> = self.stabilizer.after(after, labels_max).copied().collect();
            let last = labels.last().map_or(after, |label| label.ts);
            let all = sent + labels.len() == self.stabilizer.held().1;
            follower.sent = if all { stable_time.max(after) } else { last };
            let to = Peer { region: *region, role: Role::Receiver };
            out.send(
                to,
                Message::Stream { after, upto: follower.sent, labels, applied: follower.applied },
            );
        }
        if self.mutation.is(Mutation::DropsOnStable) {
            let sent = self.followers.values().map(|follower| follower.sent).min();
            self.stabilizer.drop_upto(sent.unwrap_or_default());
        }
    }

    /// Sends what is stable, and tells sources what it has of them, and what it waits for.
    fn look(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.stabilizer.process_stable();
        self.send_streams(out);
        let awaited = self.stabilizer.awaited();
        self.heard.extend(awaited.iter().copied());
        for source in std::mem::take(&mut self.heard) {
            self.ack(source, (false, awaited.contains(&source)), out);
        }
        self.stir(now, out);
        if self.applied() == Timestamp::NEVER {
            self.stabilizer.drop_upto(self.stabilizer.stable_time());
        }
    }

    /// Looks again soon if there is something to do.
    fn stir(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.soon && self.is_busy() {
            self.soon = true;
            out.timer(now + self.options.theta, Timer::Soon);
        }
    }
}

/// What a receiver says.
#[derive(Clone, Copy, Debug)]
struct Told {
    applied: Timestamp,
    received: Timestamp,
    leads: bool,
    lacks: bool,
}

impl Process for Replica {
    type Peer = Peer;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started | Event::Timer(Timer::Tick) => {
                out.timer(now + self.options.idle, Timer::Tick);
                self.look(now, out);
            }
            Event::Timer(Timer::Soon) => {
                self.soon = false;
                self.look(now, out);
            }
            Event::Message { from, message } => match (from.role, message) {
                (Role::Shard(source), Message::Batch(batch)) if from.region == self.me.region => {
                    self.on_batch(now, source, batch, out);
                }
                (Role::Receiver, Message::Follow { applied, received, leads, lacks }) => {
                    self.on_follow(from.region, Told { applied, received, leads, lacks });
                    self.stir(now, out);
                }
                _ => {} // Not for a replica.
            },
            Event::Command(Command::Follow { roster, sources }) => {
                self.stabilizer.follow(roster, &sources);
                self.look(now, out);
            }
            Event::Command(Command::Configure(topology)) => {
                self.topology = topology;
                self.stabilizer.drop_upto(self.applied());
            }
            Event::Command(Command::Take(labels)) => {
                self.stabilizer.take(labels);
                self.look(now, out);
            }
            Event::Restarted(_) | Event::Idle => {} // What was lost is asked for.
        }
    }

    fn replay(&mut self, record: Record) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        Box::new(std::iter::empty())
    }
}
