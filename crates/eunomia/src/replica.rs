//! A replica of the service (Eunomia, Algorithm 4, without its loss of labels: decision 40).
//!
//! All replicas do the same with what sources send them. A receiver of another region says which
//! replica sends it the stream: that one leads, for this receiver. Two that send the same do no
//! harm. A replica keeps labels until all other regions have applied them, and the sources do, too;
//! so it has nothing on disk: one that starts anew is sent all that some region may lack.

use crate::message::{Batch, Label, Message, Peer, Role, Timer, Topology};
use crate::mutation::Mutation;
use crate::options::Options;
use crate::regions::Standing::Absent;
use crate::regions::{Regions, Word};
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
    /// Others take part than before; there may be more regions.
    Configure(Arc<Topology>),
    /// These are the regions now; it answers with [`Output::Regions`].
    Regions(Arc<Regions>),
}

/// What it tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// How far it is with the regions.
    Regions(Word),
}

/// It keeps nothing on disk.
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

/// What is known of a source beside its labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Contact {
    /// When it has spoken last, and whether it said that it goes on.
    heard: Time,
    goes_on: bool,
    /// When it was answered last.
    answered: Option<Time>,
    /// When it was told last that something is missing.
    lacked: Option<Time>,
}

/// A replica of a region's service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    me: Peer,
    /// `None` until it is told, where they change: it has them nowhere.
    regions: Option<Arc<Regions>>,
    options: Options,
    stabilizer: Stabilizer,
    followers: BTreeMap<RegionId, Follower>,
    /// Sources that have spoken.
    contacts: BTreeMap<u16, Contact>,
    /// Those that have since it was looked last for what is stable.
    heard: BTreeSet<u16>,
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
            regions: Some(Arc::new(Regions::fixed(topology.regions().count()))),
            options,
            contacts: BTreeMap::new(),
            heard: BTreeSet::new(),
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

    /// The same where regions change. Until it is told which there are it keeps everything.
    pub fn without_regions(self) -> Replica {
        Replica { regions: None, ..self }
    }

    /// Whether it waits for what those have left that were sources before.
    pub fn awaits_labels(&self) -> bool {
        self.stabilizer.awaits_labels()
    }

    /// How many labels it keeps: those that are not stable, and those that are.
    pub fn held(&self) -> (usize, usize) {
        self.stabilizer.held()
    }

    /// The labels that it keeps, and what sources have promised.
    pub fn stabilizer(&self) -> &Stabilizer {
        &self.stabilizer
    }

    /// All labels of the region up to here are known.
    pub fn stable_time(&self) -> Timestamp {
        self.stabilizer.stable_time()
    }

    fn on_batch(&mut self, now: Time, source: u16, batch: Batch, out: &mut Outbox<Self>) {
        self.heard.insert(source);
        let contact = self.contacts.entry(source).or_default();
        (contact.heard, contact.goes_on) = (now, batch.goes_on);
        let has_labels = !batch.labels.is_empty();
        if self.stabilizer.add(source, batch) == Taken::Lacks {
            if contact.lacked.is_none_or(|told| now.since(told) >= self.options.theta * 2) {
                contact.lacked = Some(now);
                self.ack(now, source, (true, false), out);
            }
        } else if self.heard.len() >= self.stabilizer.sources() {
            self.look(now, out);
        } else if has_labels && !self.soon {
            self.wake(now, out);
            self.stir(now, out);
        }
    }

    /// Whether there is something to do before long.
    fn is_busy(&self) -> bool {
        let (unstable, stable) = self.stabilizer.held();
        let unsent = |follower: &Follower| {
            let (waits, sent) = self.counts(follower);
            follower.leads && sent < stable && sent.saturating_sub(waits) < self.options.window
        };
        let mut there = self.followers.iter().filter(|(region, _)| self.is_there(**region));
        let unsent = there.any(|(_, follower)| unsent(follower));
        unstable > 0 || self.stabilizer.lacks_promises() || unsent
    }

    /// How many of the stable labels a receiver has applied, and how many it was sent.
    fn counts(&self, follower: &Follower) -> (usize, usize) {
        let upto = |point| self.stabilizer.count_upto(point);
        (upto(follower.applied), upto(follower.sent))
    }

    fn ack(
        &mut self,
        now: Time,
        source: u16,
        (lacks, waits): (bool, bool),
        out: &mut Outbox<Self>,
    ) {
        self.contacts.entry(source).or_default().answered = Some(now);
        let to = Peer { role: Role::Shard(source), ..self.me };
        let (next, ahead) = (self.stabilizer.next_of(source), self.stabilizer.ahead());
        out.send(to, Message::Ack { next, lacks, ahead, waits, applied: self.applied() });
    }

    /// Asks those for a promise for which labels wait, unless they go on by themselves.
    fn wake(&mut self, now: Time, out: &mut Outbox<Self>) {
        for source in self.stabilizer.awaited() {
            let contact = self.contacts.get(&source).copied().unwrap_or_default();
            let late = now.since(contact.heard) > self.options.batch * 2;
            if !contact.goes_on || late {
                self.ack(now, source, (false, true), out);
            }
        }
    }

    /// Tells those that have spoken how far other regions are, from time to time; and those whose
    /// clocks are slow what the fastest one has promised, at once.
    fn answer(&mut self, now: Time, out: &mut Outbox<Self>) {
        let ahead = self.stabilizer.ahead();
        let interval_ns = self.options.batch.as_nanos() as u64;
        let slow = Timestamp(ahead.0.saturating_sub(interval_ns));
        for source in std::mem::take(&mut self.heard) {
            let answered = self.contacts.get(&source).and_then(|contact| contact.answered);
            let is_slow = self.stabilizer.promise_of(source).is_some_and(|made| made < slow);
            if is_slow || answered.is_none_or(|at| now.since(at) >= self.options.tell) {
                self.ack(now, source, (false, false), out);
            }
        }
    }

    /// All other regions have applied all up to here, as far as is known. If there are none, all
    /// that is stable: what is made later concerns one that may join.
    pub fn applied(&self) -> Timestamp {
        let Some(regions) = &self.regions else { return Timestamp::ZERO };
        let waits = self.mutation.is(Mutation::WaitsForTheGone);
        let counts = |region: &RegionId| {
            let is_there =
                regions.is_there(*region) || (waits && *regions.standing(*region) != Absent);
            *region != self.me.region && is_there
        };
        // Also one is waited for that is not among those who take part, as far as is known.
        let all = (0..regions.standings().len() as u16).map(RegionId).filter(counts);
        let applied = all.map(|region| self.followers.get(&region).map(|of| of.applied));
        let applied = applied.map(Option::unwrap_or_default).min();
        applied.unwrap_or(self.stabilizer.stable_time())
    }

    /// Whether a region is there, as far as is known.
    fn is_there(&self, region: RegionId) -> bool {
        self.regions.as_ref().is_none_or(|regions| regions.is_there(region))
    }

    fn on_regions(&mut self, regions: Arc<Regions>, out: &mut Outbox<Self>) {
        if self.regions.as_ref().is_none_or(|known| known.epoch() < regions.epoch()) {
            self.regions = Some(regions);
            self.stabilizer.drop_upto(self.applied());
        }
        let epoch = self.regions.as_ref().map_or(0, |regions| regions.epoch());
        out.output(Output::Regions(Word::Heard(epoch)));
    }

    fn on_follow(&mut self, region: RegionId, told: Told) {
        if !self.is_there(region) || region == self.me.region {
            return;
        }
        let follower = self.followers.entry(region).or_default();
        follower.applied = follower.applied.max(told.applied);
        if told.leads && (told.lacks || !follower.leads) {
            follower.sent = told.received;
        }
        follower.leads = told.leads;
        self.stabilizer.drop_upto(self.applied());
    }

    /// Sends each receiver that it leads what is stable, and how far that goes; if `always`, also
    /// one that was sent all: so a receiver sees what it lacks.
    fn send_streams(&mut self, always: bool, out: &mut Outbox<Self>) {
        let (stable_time, everywhere) = (self.stabilizer.stable_time(), self.applied());
        let there: Vec<_> =
            self.followers.keys().copied().filter(|region| self.is_there(*region)).collect();
        for region in there {
            let Some(follower) = self.followers.get_mut(&region) else { continue };
            if !follower.leads {
                continue;
            }
            let after = follower.sent;
            if after >= stable_time && !always {
                continue;
            }
            let upto = |point| self.stabilizer.count_upto(point);
            let (waits, sent) = (upto(follower.applied), upto(after));
            let room = self.options.window.saturating_sub(sent.saturating_sub(waits));
            let labels_max = self.options.labels_max.min(room);
            let labels: Vec<_> = self.stabilizer.after(after, labels_max).copied().collect();
            let last = labels.last().map_or(after, |label| label.ts);
            let all = sent + labels.len() == self.stabilizer.held().1;
            follower.sent = if all { stable_time.max(after) } else { last };
            let to = Peer { region, role: Role::Receiver };
            let (upto, applied) = (follower.sent, follower.applied);
            out.send(to, Message::Stream { after, upto, labels, applied, everywhere });
        }
        if self.mutation.is(Mutation::DropsOnStable) {
            let sent = self.followers.values().map(|follower| follower.sent).min();
            self.stabilizer.drop_upto(sent.unwrap_or_default());
        }
    }

    /// Sends what is stable, and tells sources what it has of them, and what it waits for.
    fn look(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.look_and_send(now, false, out);
    }

    fn look_and_send(&mut self, now: Time, always: bool, out: &mut Outbox<Self>) {
        self.stabilizer.process_stable();
        self.send_streams(always, out);
        self.answer(now, out);
        self.wake(now, out);
        self.stir(now, out);
        // In a region that is alone nobody says what is needed no more.
        self.stabilizer.drop_upto(self.applied());
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
                self.look_and_send(now, true, out);
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
                self.contacts.retain(|source, _| sources.contains(source));
                self.heard.retain(|source| sources.contains(source));
                self.stabilizer.follow(roster, &sources);
                self.look(now, out);
            }
            Event::Command(Command::Configure(topology)) => {
                for region in topology.others(self.me.region) {
                    self.followers.entry(region).or_default();
                }
            }
            Event::Command(Command::Regions(regions)) => self.on_regions(regions, out),
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
