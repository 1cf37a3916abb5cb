//! The receiver of a region: it has updates of other regions applied when all that they depend on
//! is (Eunomia, Algorithm 5).
//!
//! The thesis applies the updates of a region one after the other. Here an update waits only for
//! what its session had seen: in its own region the stream up to [`Label::dep`], in others up to
//! the entries of its vector. All that are free are applied at once.
//!
//! A receiver follows one replica of each other region. A stream comes in spans of time, each of
//! which says where it begins, so a receiver knows whether something is missing, whoever sends it.
//!
//! Invariants:
//! - All labels of a region up to its `received` have come; all up to its site time are applied.
//! - Others are told of a site time once it is durable; one that is too low only delays.
//! - All of a region that is gone counts as applied: what was kept of it is.

mod joining;
mod lost;
mod obstacles;

pub use obstacles::{Missing, Obstacles};

use crate::message::{Label, Message, Peer, Role, Timer, Topology};
use crate::mutation::Mutation;
use crate::options::Options;
use crate::regions::{Refusal, Regions, Word};
use crate::timestamp::{Timestamp, Vector};
use lost::Sealing;
use meridian_core::{Event, Outbox, Process, RegionId, Time};
use obstacles::others_of;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What a receiver is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// A session that has seen this wants to go on in this region (Eunomia, section 3.4.2.3).
    Await {
        /// To be given back.
        token: u64,
        /// What it has seen.
        seen: Vector,
    },
    /// It does not want to any more.
    Forget {
        /// Of the request.
        token: u64,
    },
    /// Whether it follows other regions; it does unless it is told otherwise.
    Follow(bool),
    /// Another receiver of the same region has applied this.
    Learn(Vector),
    /// Other replicas of the service than before are where they are; there may be more regions.
    Configure(Arc<Topology>),
    /// These are the regions now; it answers with [`Output::Regions`].
    Regions(Arc<Regions>),
    /// This is kept of a lost region ([`Receiver::without_kept`]).
    Keep {
        /// Of which.
        lost: RegionId,
        /// The round in which that is agreed on.
        round: u64,
        /// All that somebody has applied and others may lack, in the order of its timestamps.
        labels: Vec<Label>,
    },
}

/// What a receiver tells its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// This region has all that the session has seen.
    Reached {
        /// Of the request.
        token: u64,
    },
    /// The session cannot go on in this region.
    Refused {
        /// Of the request.
        token: u64,
        /// Why.
        why: Refusal,
    },
    /// How far it is with the regions.
    Regions(Word),
}

/// What a receiver makes durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// All that was made there up to here is applied.
    SiteTime {
        /// Where.
        origin: RegionId,
        /// Up to here.
        upto: Timestamp,
    },
    /// These are the regions.
    Regions(Regions),
}

/// How far an update has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Progress {
    /// It waits for others.
    Waits,
    /// Its shard was asked, last at this time.
    Asked(Time),
    /// It is applied.
    Done,
}

/// What is known of another region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Origin {
    /// The replica that is to send the stream.
    leader: u16,
    /// When the stream went on last.
    heard: Time,
    /// When it was said last that something is missing.
    lacked: Option<Time>,
    received: Timestamp,
    /// What is durable of the site time.
    durable: Timestamp,
    /// The last update that was applied: there is no need to make more durable.
    made: Timestamp,
    /// Up to where all other regions have applied all.
    everywhere: Timestamp,
    /// What shards were told of both.
    told: (Timestamp, Timestamp),
    /// Up to where all labels were known when it was agreed on what is kept of it.
    known: Option<Timestamp>,
    /// Labels above the site time, in order.
    queue: VecDeque<(Label, Progress)>,
}

impl Origin {
    /// One of which nothing has come.
    fn new(leader: u16, now: Time) -> Origin {
        Origin {
            leader,
            heard: now,
            lacked: None,
            received: Timestamp::ZERO,
            durable: Timestamp::ZERO,
            made: Timestamp::ZERO,
            everywhere: Timestamp::ZERO,
            told: (Timestamp::ZERO, Timestamp::ZERO),
            known: None,
            queue: VecDeque::new(),
        }
    }
}

/// Who waits until a region is applied up to some point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Waiting {
    Update(RegionId, Timestamp),
    Session(u64),
}

/// The receiver of a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receiver {
    region: RegionId,
    topology: Arc<Topology>,
    regions: Arc<Regions>,
    options: Options,
    origins: BTreeMap<RegionId, Origin>,
    /// Eunomia, `SiteTime`.
    site_time: Vector,
    /// Who waits, for which region, and how far.
    waiting: BTreeSet<(RegionId, Timestamp, Waiting)>,
    sessions: BTreeMap<u64, Vector>,
    /// Whether it follows other regions, or another receiver of its region does.
    follows: bool,
    /// Whether it tells how far it is soon.
    soon: bool,
    /// Updates that are free, until they are sent to their shards.
    free: BTreeMap<(Peer, RegionId), Vec<Timestamp>>,
    /// Lost regions, of which shards are told to apply nothing more.
    sealing: BTreeMap<RegionId, Sealing>,
    /// The rounds of lost regions in which its owner has said what is kept; `None` if that comes
    /// with the regions.
    told_kept: Option<BTreeMap<RegionId, u64>>,
    /// What depends on what, of the shards that have copied, where its region joins.
    copied: BTreeMap<u16, Vector>,
    mutation: Mutation,
}

impl Receiver {
    /// That of a region which has nothing of the others.
    pub fn new(region: RegionId, topology: Arc<Topology>, options: Options) -> Receiver {
        let origin = |other| Origin::new(topology.replica_after(other, u16::MAX), Time(0));
        let origins = topology.others(region).map(|other| (other, origin(other))).collect();
        Receiver {
            region,
            regions: Arc::new(Regions::fixed(topology.regions().count())),
            topology,
            options,
            origins,
            site_time: Vector::default(),
            waiting: BTreeSet::new(),
            sessions: BTreeMap::new(),
            follows: true,
            soon: false,
            free: BTreeMap::new(),
            sealing: BTreeMap::new(),
            told_kept: None,
            copied: BTreeMap::new(),
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Receiver {
        Receiver { mutation, ..self }
    }

    /// The same where regions change, and these are there at first.
    pub fn with_regions(self, regions: Arc<Regions>) -> Receiver {
        Receiver { regions, ..self }
    }

    /// Which regions there are, as it has heard, for good.
    pub fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Up to where all that was made in another region is applied.
    pub fn site_time(&self, origin: RegionId) -> Timestamp {
        self.site_time[origin]
    }

    /// How many labels of another region wait, or are being applied.
    pub fn queued(&self, origin: RegionId) -> usize {
        self.origins.get(&origin).map_or(0, |origin| origin.queue.len())
    }

    /// Up to where of each region all is applied.
    pub fn site_times(&self) -> &Vector {
        &self.site_time
    }

    /// Whether it follows other regions. Of several receivers of a region, which have applied what
    /// one of them has, one does; two do no harm.
    fn set_follows(&mut self, now: Time, follows: bool) {
        if follows && !self.follows {
            for (region, origin) in &mut self.origins {
                // Who followed before may be gone before it was heard how far all is applied.
                (origin.heard, origin.made) = (now, self.site_time[*region]);
            }
        }
        self.follows = follows;
    }

    /// Who followed a replica that is there no more follows the next one.
    fn configure(&mut self, now: Time, topology: Arc<Topology>, out: &mut Outbox<Self>) {
        for region in topology.others(self.region) {
            let origin = || Origin::new(topology.replica_after(region, u16::MAX), now);
            self.origins.entry(region).or_insert_with(origin);
        }
        self.topology = topology;
        self.go_by_regions(now, out);
        for (region, origin) in &mut self.origins {
            let leader = Role::Replica(origin.leader);
            if !self.topology.replicas(*region).any(|replica| replica.role == leader) {
                origin.leader = self.topology.replica_after(*region, origin.leader);
                origin.heard = now;
            }
        }
    }

    /// NEW_UPDATE (Eunomia, Algorithm 5), for all labels of a span of time.
    fn on_stream(
        &mut self,
        now: Time,
        from: Peer,
        (after, upto): (Timestamp, Timestamp),
        labels: Vec<Label>,
        out: &mut Outbox<Self>,
    ) {
        if self.is_sealed(from.region) {
            return;
        }
        let Some(origin) = self.origins.get_mut(&from.region) else { return };
        if after > origin.received && !self.mutation.is(Mutation::SkipsGaps) {
            let lacked = origin.lacked.replace(now);
            if lacked.is_some_and(|lacked| now.since(lacked) < self.options.retry) {
                origin.lacked = lacked;
            } else {
                self.follow(from.region, true, out);
            }
            return;
        }
        if upto <= origin.received {
            return;
        }
        let new: Vec<_> = labels.into_iter().filter(|label| label.ts > origin.received).collect();
        (origin.received, origin.heard) = (upto, now);
        if origin.durable == Timestamp::ZERO {
            // Others may wait for what it has copied, of which no label comes.
            origin.made = origin.made.max(upto);
        }
        origin.queue.extend(new.iter().map(|label| (*label, Progress::Waits)));
        new.iter().for_each(|label| self.begin(from.region, label, now));
        self.advance(from.region, now, out);
    }

    /// What the region lacks of what something depends on, if anything: up to where in which
    /// region.
    fn lacks(&self, needed: &Vector, but: RegionId) -> Option<(RegionId, Timestamp)> {
        let mut others = others_of(self.region).filter(|other| *other != but);
        others
            .find(|other| self.site_time[*other] < needed[*other])
            .map(|other| (other, needed[other]))
    }

    /// An update is free, or waits.
    fn begin(&mut self, origin: RegionId, label: &Label, now: Time) {
        if self.is_silenced(origin) {
            return; // What is kept of it will be begun anew.
        }
        let elsewhere = self.lacks(&label.vector, origin);
        let elsewhere = elsewhere.filter(|_| !self.mutation.is(Mutation::IgnoresRegions));
        let at_home = (self.site_time[origin] < label.dep).then_some((origin, label.dep));
        let at_home = at_home.filter(|_| !self.mutation.is(Mutation::IgnoresDep));
        if let Some((region, upto)) = at_home.or(elsewhere) {
            self.waiting.insert((region, upto, Waiting::Update(origin, label.ts)));
            return;
        }
        self.set(origin, label.ts, Progress::Asked(now));
        let home = self.topology.home(self.region, label.place);
        self.free.entry((home, origin)).or_default().push(label.ts);
    }

    fn set(&mut self, origin: RegionId, ts: Timestamp, progress: Progress) {
        let Some(queue) = self.origins.get_mut(&origin).map(|origin| &mut origin.queue) else {
            return;
        };
        if let Ok(place) = queue.binary_search_by_key(&ts, |(label, _)| label.ts) {
            queue[place].1 = progress;
        }
    }

    fn on_applied(
        &mut self,
        now: Time,
        origin: RegionId,
        stamps: &[Timestamp],
        out: &mut Outbox<Self>,
    ) {
        stamps.iter().for_each(|ts| self.set(origin, *ts, Progress::Done));
        self.advance(origin, now, out);
    }

    /// Raises the site time over what is applied, and frees what has waited for that
    /// (FLUSH_PENDING).
    fn advance(&mut self, from: RegionId, now: Time, out: &mut Outbox<Self>) {
        let Some(origin) = self.origins.get_mut(&from) else { return };
        let mut site_time = self.site_time[from];
        while let Some((label, Progress::Done)) = origin.queue.front() {
            site_time = site_time.max(label.ts);
            origin.made = origin.made.max(label.ts);
            origin.queue.pop_front();
        }
        let next = origin.queue.front().map_or(origin.received, |(label, _)| label.ts.before());
        self.site_time[from] = site_time.max(next);
        let mut freed = Vec::new();
        while let Some(first) = self
            .waiting
            .range((from, Timestamp::ZERO, Waiting::Update(RegionId(0), Timestamp::ZERO))..)
            .next()
            .copied()
        {
            if first.0 != from || first.1 > self.site_time[from] {
                break;
            }
            self.waiting.remove(&first);
            freed.push(first.2);
        }
        for waiting in freed {
            match waiting {
                Waiting::Session(token) => self.go_on(token, out),
                Waiting::Update(origin, ts) => {
                    let queue = self.origins.get(&origin).map(|origin| &origin.queue);
                    let label = queue.and_then(|queue| {
                        let place = queue.binary_search_by_key(&ts, |(label, _)| label.ts).ok()?;
                        Some(queue[place].0)
                    });
                    if let Some(label) = label {
                        self.begin(origin, &label, now);
                    }
                }
            }
        }
    }

    /// A session goes on here, or waits.
    fn go_on(&mut self, token: u64, out: &mut Outbox<Self>) {
        let Some(seen) = self.sessions.get(&token).copied() else { return };
        if let Some(why) = self.refusal(&seen) {
            self.sessions.remove(&token);
            return out.output(Output::Refused { token, why });
        }
        let lacks = self.lacks(&seen, self.region).or_else(|| self.may_be_dropped(&seen));
        let at_once = self.mutation.is(Mutation::MovesAtOnce) || self.serves_early();
        match lacks.filter(|_| !at_once) {
            Some((region, upto)) => {
                self.waiting.insert((region, upto, Waiting::Session(token)));
            }
            None => {
                self.sessions.remove(&token);
                out.output(Output::Reached { token });
            }
        }
    }

    /// Tells all replicas of a region how far this one is, and which of them is to send more.
    fn follow(&self, region: RegionId, lacks: bool, out: &mut Outbox<Self>) {
        let Some(origin) = self.origins.get(&region) else { return };
        let says_more = self.mutation.is(Mutation::SaysTooMuch);
        let applied = if says_more { origin.received } else { origin.durable };
        for replica in self.topology.replicas(region) {
            let leads = replica.role == Role::Replica(origin.leader);
            let received = origin.received;
            out.send(replica, Message::Follow { applied, received, leads, lacks: lacks && leads });
        }
    }

    /// Asks shards for what is free.
    fn send_free(&mut self, out: &mut Outbox<Self>) {
        for ((to, origin), stamps) in std::mem::take(&mut self.free) {
            let Some(round) = self.round(origin) else { continue };
            let everywhere = self.origins.get(&origin).map(|origin| origin.everywhere);
            let (applied, everywhere) = (self.site_time[origin], everywhere.unwrap_or_default());
            out.send(to, Message::Apply { origin, round, applied, everywhere, stamps });
        }
    }

    /// Whether something is being applied, or others are to be told of it.
    fn is_busy(&self) -> bool {
        let busy = |(region, origin): (&RegionId, &Origin)| {
            let tells = self.regions.is_there(*region) && origin.made > origin.durable;
            !origin.queue.is_empty() || tells
        };
        self.origins.iter().any(busy)
    }

    /// Tells how far it is soon if there is something to tell.
    fn stir(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.soon && self.is_busy() {
            self.soon = true;
            out.timer(now + self.options.tell, Timer::Soon);
        }
    }

    /// Shards to which nothing is sent learn from time to time what they need not remember.
    fn tell_shards(&mut self) {
        for (region, origin) in &mut self.origins {
            let known = (self.site_time[*region], origin.everywhere);
            if known != origin.told {
                origin.told = known;
                for shard in self.topology.shards(self.region) {
                    self.free.entry((shard, *region)).or_default();
                }
            }
        }
    }

    fn on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        for region in self.topology.others(self.region) {
            if self.is_silenced(region) {
                continue;
            }
            let (site_time, follows) = (self.site_time[region], self.follows_region(region));
            let is_there = self.regions.is_there(region);
            let Some(origin) = self.origins.get_mut(&region) else { continue };
            if follows && now.since(origin.heard) >= self.options.suspect_after {
                origin.leader = self.topology.replica_after(region, origin.leader);
                origin.heard = now;
            }
            if is_there && origin.made > origin.durable {
                origin.durable = site_time;
                out.persist(Record::SiteTime { origin: region, upto: site_time });
            }
            for (label, progress) in &mut origin.queue {
                let Progress::Asked(last) = progress else { continue };
                if now.since(*last) >= self.options.retry {
                    *progress = Progress::Asked(now);
                    let home = self.topology.home(self.region, label.place);
                    self.free.entry((home, region)).or_default().push(label.ts);
                }
            }
            if follows {
                self.follow(region, false, out);
            }
        }
        self.seal_again(out);
        self.join(out);
        self.send_free(out);
        self.stir(now, out);
    }
}

impl Process for Receiver {
    type Peer = Peer;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.origins.values_mut().for_each(|origin| origin.heard = now);
                self.go_by_regions(now, out);
                out.timer(now + self.options.idle, Timer::Tick);
                self.on_tick(now, out);
            }
            Event::Timer(Timer::Tick) => {
                out.timer(now + self.options.idle, Timer::Tick);
                self.tell_shards();
                self.on_tick(now, out);
            }
            Event::Timer(Timer::Soon) => {
                self.soon = false;
                self.on_tick(now, out);
            }
            Event::Message { from, message } => match (from.role, message) {
                (
                    Role::Replica(_),
                    Message::Stream { after, upto, labels, applied, everywhere },
                ) => {
                    self.on_everywhere(from.region, everywhere);
                    self.learn(now, from.region, applied, out);
                    self.on_stream(now, from, (after, upto), labels, out);
                }
                (Role::Shard(_), Message::Applied { origin, stamps }) => {
                    self.on_applied(now, origin, &stamps, out);
                }
                (Role::Shard(number), Message::Sealed { lost, round, labels }) => {
                    self.on_sealed(number, lost, round, labels);
                }
                (Role::Shard(number), Message::Copied(seen)) => {
                    self.copied.insert(number, seen);
                }
                _ => {} // Not for a receiver.
            },
            Event::Command(Command::Await { token, seen }) => {
                self.sessions.insert(token, seen);
                self.go_on(token, out);
            }
            Event::Command(Command::Follow(follows)) => self.set_follows(now, follows),
            Event::Command(Command::Learn(site_times)) => {
                for region in self.topology.others(self.region) {
                    self.learn(now, region, site_times[region], out);
                }
            }
            Event::Command(Command::Forget { token }) => {
                self.sessions.remove(&token);
            }
            Event::Command(Command::Configure(topology)) => self.configure(now, topology, out),
            Event::Command(Command::Regions(regions)) => self.on_regions(now, regions, out),
            Event::Command(Command::Keep { lost, round, labels }) => {
                self.on_keep(now, (lost, round), labels, out);
            }
            Event::Idle => {
                self.send_free(out);
                self.stir(now, out);
            }
            Event::Restarted(_) => {} // What was lost is asked for.
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::SiteTime { origin: region, upto } => {
                self.site_time[region] = self.site_time[region].max(upto);
                let site_time = self.site_time[region];
                if let Some(origin) = self.origins.get_mut(&region) {
                    (origin.received, origin.durable) = (site_time, site_time);
                }
            }
            Record::Regions(regions) => self.regions = Arc::new(regions),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let regions = [Record::Regions((*self.regions).clone())].into_iter();
        let all: Vec<_> = regions.chain(self.recorded()).collect();
        Box::new(all.into_iter())
    }
}
