//! The process: its parts, and how they speak with those of other nodes.

use super::change::Change;
use super::joining::Copying;
use super::lost::Gathering;
use super::make::Making;
use super::message::{Command, Message, Output, Record, Timer};
use super::mutation::Mutation;
use super::read::Reading;
use super::regions::{Regions, node_of, number_of};
use super::sweep::Sweep;
use super::taking::Taking;
use meridian_core::{Effect, Event, NodeId, Outbox, Process, RegionId, Time};
use meridian_eunomia::inbox::{Inbox, Name};
use meridian_eunomia::{
    self as eunomia, Options, Peer, Receiver, Replica, Role, Source, Timestamp, Vector, receiver,
};
use meridian_hermes::{self as hermes, Answer, Epoch, Hermes, Modify};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Tokens with this bit are the node's own; its owner uses none.
pub(super) const INTERNAL: u64 = 1 << 63;

/// What Hermes was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asked<M> {
    /// A read of a session.
    Read(u64),
    /// An update of a session.
    Make(Box<Making<M>>),
    /// A read of several keys at one moment, and how often they were looked at.
    ReadAll(Box<Reading>, u32),
    /// To show no value of what has expired.
    Lapse(u64),
    /// To hold what was made elsewhere.
    Merge(Box<eunomia::Update>),
    /// To hold what was copied of another region.
    Copy,
    /// A key that was being changed when a node of a region that joins asked for a page.
    Page(NodeId, (Option<Timestamp>, u32)),
}

/// A node of a region. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Causal<M> {
    pub(super) region: RegionId,
    pub(super) number: u16,
    pub(super) regions: Arc<Regions>,
    pub(super) options: Options,
    pub(super) mutation: Mutation,
    pub(super) replica: Hermes<Change<M>>,
    pub(super) source: Source,
    pub(super) service: Replica,
    pub(super) receiver: Receiver,
    pub(super) inbox: Inbox,
    /// What the source may have promised before it started: each start has more.
    pub(super) reserved: Timestamp,
    /// Whether the source has taken up what it had left, or is a new one (see `taking`).
    pub(super) recovered: bool,
    /// Since which epoch this node is a shadow replica whose source has begun.
    pub(super) begun: Option<Epoch>,
    /// The shadow replica has everything since then, and its source has not begun.
    pub(super) complete: Option<Epoch>,
    pub(super) taking: Option<Taking>,
    /// Updates made here that some other region may lack.
    pub(super) data: BTreeMap<Timestamp, eunomia::Update>,
    /// Those among them whose data was not sent yet.
    pub(super) unsent: Vec<Timestamp>,
    /// Which node of another region follows this one.
    pub(super) followers: BTreeMap<RegionId, NodeId>,
    /// Whether the source looks at what it has to say soon.
    soon: bool,
    /// What was made elsewhere and could not be taken for want of a lease. The windows of the
    /// streams bound it.
    pub(super) deferred: Vec<eunomia::Update>,
    /// While its region copies the keys of another.
    pub(super) copying: Option<Copying>,
    /// Up to where all regions but their own have applied what was made in each.
    pub(super) everywhere: Vector,
    /// Whether something of regions that are gone may be kept.
    pub(super) sweeps: bool,
    /// What of the kept was looked at, whether all regions have it.
    pub(super) sweep: Sweep,
    /// What is gathered of lost regions, and the rounds in which this one has all that is kept.
    pub(super) gathering: BTreeMap<RegionId, Gathering>,
    pub(super) settled: BTreeMap<RegionId, u64>,
    /// Another region was not answered for want of a lease.
    pub(super) wants_lease: bool,
    pub(super) asked: BTreeMap<u64, Asked<M>>,
    pub(super) tokens: u64,
}

impl<M: Modify> Causal<M> {
    /// The node with this replica.
    ///
    /// # Panics
    /// If it is not among the `regions`.
    pub fn new(replica: Hermes<Change<M>>, regions: Arc<Regions>, options: Options) -> Self {
        let me = replica.me();
        let region = regions.find(me).unwrap_or_else(|| panic!("{me} has no region"));
        let (number, topology) = (number_of(me), regions.topology());
        let service = Replica::new(region, number, topology.clone(), options.clone());
        Causal {
            region,
            number,
            service: service.without_sources().without_regions(),
            receiver: Receiver::new(region, topology.clone(), options.clone())
                .with_regions(regions.standings().clone())
                .without_kept(),
            source: Source::new(region, number),
            regions,
            options,
            mutation: Mutation::Correct,
            replica,
            inbox: Inbox::default(),
            reserved: Timestamp::ZERO,
            recovered: false,
            begun: None,
            complete: None,
            taking: None,
            data: BTreeMap::new(),
            unsent: Vec::new(),
            followers: BTreeMap::new(),
            soon: false,
            deferred: Vec::new(),
            copying: None,
            everywhere: Vector::default(),
            sweeps: true,
            sweep: Sweep::default(),
            gathering: BTreeMap::new(),
            settled: BTreeMap::new(),
            wants_lease: false,
            asked: BTreeMap::new(),
            tokens: 0,
        }
    }

    /// With planted bugs.
    #[doc(hidden)]
    pub fn with_mutations(self, own: Mutation, eunomia: eunomia::Mutation) -> Self {
        Causal {
            mutation: own,
            source: self.source.with_mutation(eunomia),
            service: self.service.with_mutation(eunomia),
            receiver: self.receiver.with_mutation(eunomia),
            ..self
        }
    }

    /// The replica of Hermes.
    pub fn replica(&self) -> &Hermes<Change<M>> {
        &self.replica
    }

    /// What gives the updates of this node their timestamps.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its replica of the service.
    pub fn service(&self) -> &Replica {
        &self.service
    }

    /// Its receiver.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Updates of other regions, until they are applied.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// How many updates made here some other region may lack, or are in flight.
    pub fn outstanding(&self) -> usize {
        self.source.outstanding()
    }

    /// Whether Hermes was asked for something, or is to be when it serves.
    pub fn is_under_way(&self) -> bool {
        let waits = self.copying.is_some() || self.wants_lease;
        !self.asked.is_empty() || !self.deferred.is_empty() || waits
    }

    /// Whether requests are taken now: it has a lease, knows what its source had left, and its
    /// region serves.
    pub fn serves(&self, now: Time) -> bool {
        self.recovered && self.replica.serves(now) && self.receiver.serves().0
    }

    /// When its lease ends, by its own clock.
    pub fn lease(&self) -> Time {
        self.replica.lease()
    }

    /// Who takes part.
    pub fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// In which region this node is.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Whether so many updates are outstanding that no more are taken.
    pub fn is_full(&self) -> bool {
        self.source.outstanding() >= self.options.outstanding_max
    }

    /// All updates of this region up to here are known to this node's service.
    pub fn stable_time(&self) -> Timestamp {
        self.service.stable_time()
    }

    /// Up to where of another region all is applied in this one, as far as this node knows, and how
    /// many labels wait here.
    pub fn site_time(&self, origin: RegionId) -> (Timestamp, usize) {
        (self.receiver.site_time(origin), self.receiver.queued(origin))
    }

    /// Whether this node follows the other regions for its own.
    pub(super) fn leads(&self) -> bool {
        self.replica.membership().live.first() == Some(&self.replica.me())
    }

    /// What the source needs on disk before anyone hears of its last timestamp.
    pub(super) fn reserve(&mut self, out: &mut Outbox<Self>) {
        let reserve_ns = self.options.reserve.as_nanos() as u64;
        if let Some(upto) = self.source.reserve(reserve_ns) {
            out.persist(Record::Reserved(upto.0));
        }
    }

    pub(super) fn step_replica(
        &mut self,
        now: Time,
        event: Event<Hermes<Change<M>>>,
        out: &mut Outbox<Self>,
    ) {
        let (mut inner, mut answers) = (Outbox::new(), Vec::new());
        self.replica.step(now, event, &mut inner);
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, message } => out.send(to, Message::Replica(message)),
                Effect::Persist(record) => out.persist(Record::Replica(record)),
                Effect::Note(record) => out.note(Record::Replica(record)),
                Effect::Timer { at, timer } => out.timer(at, Timer::Replica(timer)),
                Effect::Output(hermes::Output::Answer { token, answer })
                    if token & INTERNAL != 0 =>
                {
                    answers.push((token, answer));
                }
                Effect::Output(hermes::Output::Complete { epoch }) => {
                    self.complete = Some(epoch);
                    self.say_complete(out);
                }
                Effect::Output(output) => out.output(Output::Replica(output)),
            }
        }
        for (token, answer) in answers {
            match self.asked.remove(&token) {
                Some(Asked::Read(token)) => self.on_value(token, answer, out),
                Some(Asked::Make(making)) => self.on_made(now, *making, answer, out),
                Some(Asked::ReadAll(reading, looks)) => {
                    self.on_looked(now, (*reading, looks), answer, out);
                }
                Some(Asked::Lapse(token)) => self.on_lapsed(token, &answer, out),
                Some(Asked::Merge(update)) => self.on_merged(now, *update, &answer, out),
                Some(Asked::Copy) => self.on_copied(now, token, &answer, out),
                Some(Asked::Page(to, page)) if matches!(answer, Answer::Value { .. }) => {
                    self.on_ask_page(now, to, page, out);
                }
                Some(Asked::Page(..)) | None => {}
            }
        }
    }

    pub(super) fn step_receiver(
        &mut self,
        now: Time,
        event: Event<Receiver>,
        out: &mut Outbox<Self>,
    ) {
        let (mut inner, mut applies) = (Outbox::new(), Vec::new());
        let (mut copies, mut seals) = (None, Vec::new());
        self.receiver.step(now, event, &mut inner);
        for effect in inner.drain() {
            match effect {
                // Each node has a replica of all shards.
                Effect::Send {
                    message: eunomia::Message::Apply { origin, applied, stamps, .. },
                    ..
                } => {
                    applies.push((origin, applied, stamps));
                }
                Effect::Send { message: eunomia::Message::Copy { from }, .. } => {
                    copies = Some(from);
                }
                Effect::Send { message: eunomia::Message::Seal { lost, round }, .. } => {
                    seals.push((lost, round));
                }
                Effect::Send { to, message } => self.say(Role::Receiver, to, message, out),
                Effect::Persist(record) => out.persist(Record::Receiver(record)),
                Effect::Note(record) => out.note(Record::Receiver(record)),
                Effect::Timer { at, timer } => out.timer(at, Timer::Receiver(timer)),
                Effect::Output(receiver::Output::Reached { token }) => {
                    out.output(Output::Reached { token });
                }
                Effect::Output(receiver::Output::Refused { token, why }) => {
                    out.output(Output::Denied { token, why });
                }
                Effect::Output(receiver::Output::Regions(word)) => self.say_word(word, out),
            }
        }
        for (origin, applied, stamps) in applies {
            self.inbox.raise_floor(origin, applied);
            let (done, next) = self.inbox.ask(origin, stamps);
            self.tell_applied(now, origin, done, out);
            self.merge(now, next, out);
        }
        if let Some(from) = copies {
            self.copy(now, from, out);
        }
        for (lost, round) in seals {
            self.seal(now, lost, round, out);
        }
    }

    pub(super) fn step_service(
        &mut self,
        now: Time,
        event: Event<Replica>,
        out: &mut Outbox<Self>,
    ) {
        let mut inner = Outbox::new();
        self.service.step(now, event, &mut inner);
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, message } => {
                    self.say(Role::Replica(self.number), to, message, out);
                }
                Effect::Timer { at, timer } => out.timer(at, Timer::Service(timer)),
                Effect::Persist(record) | Effect::Note(record) => match record {},
                // The receiver says the same.
                Effect::Output(eunomia::replica::Output::Regions(_)) => {}
            }
        }
    }

    /// Sends what one of this node's parts says.
    fn say(&self, from: Role, to: Peer, message: eunomia::Message, out: &mut Outbox<Self>) {
        let follower = || self.followers.get(&to.region).copied();
        if let Some(node) = node_of(to).or_else(follower) {
            out.send(node, Message::Eunomia { from, to: to.role, message });
        }
    }

    fn on_eunomia(
        &mut self,
        now: Time,
        node: NodeId,
        (from, to): (Role, Role),
        message: eunomia::Message,
        out: &mut Outbox<Self>,
    ) {
        use eunomia::Message::{Ack, Batch, Data, Follow, Pull, Trimmed};
        let Some(region) = self.region_of(node) else { return };
        let from = Peer { region, role: from };
        match (to, message) {
            (_, Data(updates)) => {
                let next = self.inbox.take(updates, self.options.inbox_max);
                self.merge(now, next, out);
            }
            (_, Pull(stamps)) => self.on_pull(now, node, &stamps, out),
            (_, Trimmed(stamps)) => {
                let done = self.inbox.pass_over(region, stamps);
                self.tell_applied(now, region, done, out);
            }
            (Role::Shard(_), Ack { next, lacks, ahead, waits, applied: _ }) => {
                if let Role::Replica(number) = from.role {
                    self.source.on_ack(number, next, lacks, ahead);
                }
                if (waits || lacks) && !self.soon {
                    self.look(now, out);
                }
            }
            (Role::Shard(_), _) => {} // Not for a source.
            (Role::Replica(_), message) => {
                match &message {
                    Follow { .. } => drop(self.followers.insert(region, node)),
                    Batch(batch) => self.begin_above(from, batch, out),
                    _ => {}
                }
                self.step_service(now, Event::Message { from, message }, out);
                self.trim(now, out);
            }
            (Role::Receiver, message) => {
                self.step_receiver(now, Event::Message { from, message }, out);
            }
        }
    }

    /// Whether the source looks again and again until the group has settled.
    fn waits(&self) -> bool {
        self.replica.is_live() && (!self.recovered || self.service.awaits_labels())
    }

    /// Whether the source has something to say before long.
    fn is_busy(&self) -> bool {
        self.waits() || self.source.has_news()
    }

    /// The source looks again soon if there is something to say.
    pub(super) fn stir(&mut self, now: Time, out: &mut Outbox<Self>) {
        if !self.soon && self.is_busy() {
            self.soon = true;
            out.timer(self.options.next_batch(now), Timer::Source(eunomia::Timer::Soon));
        }
    }

    /// What the source does again and again.
    pub(super) fn look(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.recover();
        self.take_over(now, out);
        self.trim(now, out);
        if self.recovered {
            self.send_batches(now, out);
        }
        // Its source, then the others of its region, which know it, too.
        let holder = |(origin, ts): Name, times| self.regions.holder(origin, ts.source(), times);
        let missing = self.inbox.missing(now, &self.options, holder);
        for (node, stamps) in missing {
            let Some(node) = node else { continue };
            let (from, message) = (Role::Receiver, eunomia::Message::Pull(stamps));
            out.send(node, Message::Eunomia { from, to: Role::Shard(0), message });
        }
        self.stir(now, out);
    }

    fn send_batches(&mut self, now: Time, out: &mut Outbox<Self>) {
        let reserve_ns = self.options.reserve.as_nanos() as u64;
        let (promise, more) = self.source.promise(now, reserve_ns);
        if let Some(upto) = more {
            out.persist(Record::Reserved(upto.0));
        }
        let goes_on = self.waits() || self.source.is_open();
        for number in self.members() {
            let replica = Peer { region: self.region, role: Role::Replica(number) };
            let batch = self.source.batch(number, self.options.labels_max, promise);
            let batch = eunomia::Batch { goes_on, ..batch };
            let (from, message) = (Role::Shard(self.number), eunomia::Message::Batch(batch));
            self.say(from, replica, message, out);
        }
    }

    fn on_receiver_tick(&mut self, now: Time, timer: eunomia::Timer, out: &mut Outbox<Self>) {
        self.step_receiver(now, Event::Timer(timer), out);
        self.say_words(now, out);
        self.follow_others(now, out);
        if !self.leads() {
            return;
        }
        let (site_times, copied) = (*self.receiver.site_times(), self.receiver.copied());
        let mut told = vec![Message::SiteTimes(site_times)];
        told.extend(copied.map(Message::Copied));
        told.extend(self.regions.keeps().then_some(Message::Everywhere(self.everywhere)));
        told.extend(self.settled.iter().map(|(lost, round)| {
            let (lost, round) = (*lost, *round);
            Message::Settled { lost, round }
        }));
        for number in self.members().into_iter().filter(|number| *number != self.number) {
            told.iter().for_each(|message| out.send(NodeId(number), message.clone()));
        }
    }

    fn on_message(&mut self, now: Time, from: NodeId, message: Message, out: &mut Outbox<Self>) {
        match message {
            Message::Replica(message) => {
                self.step_replica(now, Event::Message { from, message }, out);
            }
            Message::Eunomia { from: role, to, message } => {
                self.on_eunomia(now, from, (role, to), message, out);
            }
            Message::SiteTimes(site_times) => {
                let learn = receiver::Command::Learn(site_times);
                self.step_receiver(now, Event::Command(learn), out);
            }
            Message::AskPage { run, place } => self.on_ask_page(now, from, (run, place), out),
            Message::Page { run, place, updates, next } => {
                self.on_page(now, from, (run, place), (updates, next), out);
            }
            Message::Copied(seen) => self.has_copied(now, seen, out),
            Message::Everywhere(everywhere) => self.everywhere.join(&everywhere),
            Message::AskKept { lost, round, after } => {
                self.on_ask_kept(now, from, (lost, round, after), out);
            }
            Message::Kept { lost, round, after, updates, next } => {
                self.on_kept(now, from, (lost, round, after), (updates, next), out);
            }
            Message::Settled { lost, round } => self.on_settled(lost, round, out),
        }
    }
}

impl<M: Modify> fmt::Display for Causal<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} outstanding, ", self.outstanding())?;
        write!(f, "recovered {}, stable {:?}", self.recovered, self.stable_time())?;
        for origin in self.regions.topology().others(self.region) {
            write!(f, ", {origin:?}: {:?}", self.site_time(origin))?;
        }
        Ok(())
    }
}

impl<M: Modify> Process for Causal<M> {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command<M>;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                // More than before, though nothing else were reserved: each start has its numbers.
                let reserved = Timestamp(self.reserved.0 + 1);
                out.persist(Record::Reserved(reserved));
                let again = self.mutation.is(Mutation::RepeatsNumbers);
                self.source.begin_anew(if again { Timestamp::ZERO } else { reserved });
                self.recall_regions(now, out);
                self.step_replica(now, Event::Started, out);
                let follow = receiver::Command::Follow(false);
                self.step_receiver(now, Event::Command(follow), out);
                self.step_receiver(now, Event::Started, out);
                self.step_service(now, Event::Started, out);
                out.timer(now + self.options.idle, Timer::Source(eunomia::Timer::Tick));
                self.look(now, out);
            }
            Event::Message { from, message } => self.on_message(now, from, message, out),
            Event::Command(command) => self.on_command(now, command, out),
            Event::Timer(Timer::Replica(timer)) => {
                self.step_replica(now, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Source(eunomia::Timer::Tick)) => {
                out.timer(now + self.options.idle, Timer::Source(eunomia::Timer::Tick));
                self.look(now, out);
            }
            Event::Timer(Timer::Source(eunomia::Timer::Soon)) => {
                self.soon = false;
                self.look(now, out);
            }
            Event::Timer(Timer::Service(timer)) => {
                self.step_service(now, Event::Timer(timer), out);
            }
            Event::Timer(Timer::Receiver(timer)) => self.on_receiver_tick(now, timer, out),
            Event::Restarted(peer) => self.step_replica(now, Event::Restarted(peer), out),
            Event::Idle => {
                // What the receiver asks of the replica leaves with its batch.
                self.step_receiver(now, Event::Idle, out);
                self.step_replica(now, Event::Idle, out);
                self.send_unsent(out);
                self.stir(now, out);
            }
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Replica(record) => self.replica.replay(record),
            Record::Receiver(record) => self.receiver.replay(record),
            Record::Reserved(upto) => {
                self.reserved = self.reserved.max(upto);
                self.source.recall_promises(upto, 0);
            }
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let (reserved, _) = self.source.recalled();
        let replica = self.replica.checkpoint().map(Record::Replica);
        let receiver = self.receiver.checkpoint().map(Record::Receiver);
        Box::new(std::iter::once(Record::Reserved(reserved)).chain(receiver).chain(replica))
    }
}
