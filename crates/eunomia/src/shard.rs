//! A shard: some of the keys of a region, on one server (Eunomia, Algorithm 2, with vectors).
//!
//! It serves the sessions of its region, is a source of their updates, and applies those of other
//! regions when the receiver says so and their data is there. What it has is durable before anyone
//! hears of it.
//!
//! Invariants:
//! - A key holds the update with the greatest [`Order`] of all that were committed or applied here.
//! - The data of an update is kept until all other regions have applied it, wherever it was made.

mod joining;
mod lost;

use crate::inbox::{Inbox, Name};
use crate::message::{Batch, Label, Message, Peer, Role, Timer, Topology, Update, place_of};
use crate::mutation::Mutation;
use crate::options::Options;
use crate::regions::{Refusal, Regions, Word};
use crate::source::Source;
use crate::timestamp::{Order, Seen, Timestamp, Vector};
use bytes::Bytes;
use joining::Copying;
use meridian_core::{Event, Outbox, Process, RegionId, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// What a shard is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// The value of a key.
    Read {
        /// To be given back.
        token: u64,
        /// Which.
        key: Bytes,
    },
    /// An update from its beginning to its end.
    Update(Request),
    /// An update gets its timestamp; it happens with [`Command::Commit`], or does not.
    Begin(Request),
    /// The update that was begun with this token happens.
    Commit {
        /// Which.
        token: u64,
    },
    /// The update that was begun with this token does not happen.
    Abort {
        /// Which.
        token: u64,
    },
    /// These are the regions now; it answers with [`Output::Regions`].
    Regions(Arc<Regions>),
}

/// An update that a session asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// To be given back.
    pub token: u64,
    /// Of this key.
    pub key: Bytes,
    /// The new value; `None` deletes the key.
    pub value: Option<Bytes>,
    /// What the session has seen.
    pub seen: Seen,
}

/// What a shard tells its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// What was read.
    Value {
        /// Of the question.
        token: u64,
        /// `None` if there is no such key.
        value: Option<Bytes>,
        /// What the session has seen with it.
        seen: Seen,
    },
    /// The update has happened.
    Updated {
        /// Of the request.
        token: u64,
        /// What the session has seen now.
        seen: Seen,
    },
    /// Nothing has happened.
    Refused {
        /// Of the request.
        token: u64,
        /// Why.
        why: Refusal,
    },
    /// An update of another region was applied.
    Applied {
        /// Where it was made.
        origin: RegionId,
        /// Its timestamp there.
        ts: Timestamp,
        /// Whether the key has changed: not if it held the same, or something later.
        changed: bool,
    },
    /// How far it is with the regions.
    Regions(Word),
}

/// What a shard makes durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// Its source may promise this much; its next label has at least this number.
    Reserved {
        /// Up to here.
        upto: Timestamp,
        /// The number.
        base: u64,
    },
    /// An update of this source was committed.
    Committed {
        /// The number of its label.
        number: u64,
        /// The update.
        update: Update,
    },
    /// A key holds this.
    Held(Update),
    /// All other regions have applied what was made here up to this.
    Trimmed(Timestamp),
    /// An update of another region was applied, and others may lack it.
    Applied(Update),
    /// All have applied what was made there up to this.
    Forgotten(RegionId, Timestamp),
    /// These are the regions.
    Regions(Regions),
    /// Of a lost region only what is agreed on in this round, or a later one, is applied.
    Fenced(RegionId, u64),
    /// All keys of another region were copied, which depend on this.
    Copied(Vector),
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    value: Option<Bytes>,
    order: Order,
    origin: RegionId,
    label: Label,
}

/// A shard of a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    me: Peer,
    topology: Arc<Topology>,
    regions: Arc<Regions>,
    options: Options,
    source: Source,
    keys: BTreeMap<Bytes, Entry>,
    /// Updates that were begun, by their tokens.
    begun: BTreeMap<u64, Update>,
    /// The data of updates made here that some other region may lack.
    data: BTreeMap<Timestamp, Update>,
    /// Updates made here whose data was not sent yet.
    unsent: Vec<Timestamp>,
    /// Updates of other regions.
    inbox: Inbox,
    /// What was applied of each region, and the receiver was not told yet.
    done: BTreeMap<RegionId, Vec<Timestamp>>,
    /// Updates of other regions that were applied here, and others may lack.
    retained: BTreeMap<Name, Update>,
    /// Up to where nothing of another region is retained any more, as all had applied it.
    forgotten: BTreeMap<RegionId, Timestamp>,
    /// Of a lost region nothing is applied that is not of this round.
    fences: BTreeMap<RegionId, u64>,
    /// While it copies the keys of another region.
    copying: Option<Copying>,
    /// What these depend on, once it has them.
    copied: Option<Vector>,
    mutation: Mutation,
}

impl Shard {
    /// The shard with this number in a region. It has nothing.
    pub fn new(region: RegionId, number: u16, topology: Arc<Topology>, options: Options) -> Shard {
        Shard {
            me: Peer { region, role: Role::Shard(number) },
            regions: Arc::new(Regions::fixed(topology.regions().count())),
            topology,
            options,
            source: Source::new(region, number),
            keys: BTreeMap::new(),
            begun: BTreeMap::new(),
            data: BTreeMap::new(),
            unsent: Vec::new(),
            inbox: Inbox::default(),
            done: BTreeMap::new(),
            retained: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            fences: BTreeMap::new(),
            copying: None,
            copied: None,
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Shard {
        Shard { source: self.source.with_mutation(mutation), mutation, ..self }
    }

    /// The same where regions change, and these are there at first.
    pub fn with_regions(self, regions: Arc<Regions>) -> Shard {
        Shard { regions, ..self }
    }

    /// How many updates made here some other region may lack, or are in flight.
    pub fn outstanding(&self) -> usize {
        self.source.outstanding()
    }

    /// What gives updates made here their timestamps.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Updates of other regions, until they are applied.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// What it holds: keys, values and their places.
    pub fn entries(&self) -> impl Iterator<Item = (&Bytes, Option<&Bytes>, Order)> {
        self.keys.iter().map(|(key, entry)| (key, entry.value.as_ref(), entry.order))
    }

    /// A read (Eunomia, Algorithm 2, lines 1-3). What it saw may not be durable yet: it is to be
    /// told in an output of this process.
    fn on_read(&self, token: u64, key: &Bytes, out: &mut Outbox<Self>) {
        if !self.regions.reads(self.me.region) && !self.serves_early() {
            return out.output(Output::Refused { token, why: Refusal::NotServing });
        }
        let found = self.keys.get(key);
        let value = found.and_then(|entry| entry.value.clone());
        let seen = found.map(|entry| seen_with(&entry.label, entry.order)).unwrap_or_default();
        out.output(Output::Value { token, value, seen });
    }

    /// An update from its beginning to its end.
    fn on_update(&mut self, now: Time, request: Request, out: &mut Outbox<Self>) {
        let token = request.token;
        match self.begin(now, request) {
            Ok(update) => self.commit(token, update, out),
            Err(why) => out.output(Output::Refused { token, why }),
        }
    }

    fn on_begin(&mut self, now: Time, request: Request, out: &mut Outbox<Self>) {
        let token = request.token;
        match self.begin(now, request) {
            Ok(update) => drop(self.begun.insert(token, update)),
            Err(why) => out.output(Output::Refused { token, why }),
        }
    }

    /// An update gets its timestamp, unless too much is under way.
    fn begin(&mut self, now: Time, request: Request) -> Result<Update, Refusal> {
        let Request { token, key, value, seen } = request;
        if !self.regions.writes(self.me.region) && !self.serves_early() {
            return Err(Refusal::NotServing);
        }
        let full = self.source.outstanding() >= self.options.outstanding_max;
        if full || self.begun.contains_key(&token) {
            return Err(Refusal::Full);
        }
        let label = self.source.begin(now, &seen.vector, place_of(&key));
        let held = self.keys.get(&key).map(|entry| entry.order).unwrap_or_default();
        let order = held.followed(seen.version, self.me.region, label.ts);
        Ok(Update { origin: self.me.region, label, key, value, order })
    }

    fn on_commit(&mut self, token: u64, out: &mut Outbox<Self>) {
        if let Some(update) = self.begun.remove(&token) {
            self.commit(token, update, out);
        }
    }

    fn commit(&mut self, token: u64, update: Update, out: &mut Outbox<Self>) {
        let number = self.source.end();
        out.persist(Record::Committed { number, update: update.clone() });
        let seen = seen_with(&update.label, update.order);
        self.unsent.push(update.label.ts);
        self.source.commit(update.label);
        self.hold(&update);
        self.data.insert(update.label.ts, update);
        out.output(Output::Updated { token, seen });
    }

    fn on_abort(&mut self, token: u64) {
        if let Some(update) = self.begun.remove(&token) {
            self.source.abort(update.label.ts);
        }
    }

    /// The key has this unless it has something later; whether it had not.
    fn hold(&mut self, update: &Update) -> bool {
        let Update { origin, label, key, value, order } = update;
        let entry = Entry { value: value.clone(), order: *order, origin: *origin, label: *label };
        let Some(held) = self.keys.get_mut(key) else {
            self.keys.insert(key.clone(), entry);
            return true;
        };
        let again = self.mutation.is(Mutation::AppliesAgain);
        let changes = held.order < *order || again;
        if changes {
            *held = entry;
        }
        changes
    }

    /// The receiver asks for updates of another region, whose dependencies are all here.
    fn on_apply(
        &mut self,
        (origin, applied): (RegionId, Timestamp),
        stamps: Vec<Timestamp>,
        out: &mut Outbox<Self>,
    ) {
        self.inbox.raise_floor(origin, applied);
        for name in stamps.iter().map(|ts| (origin, *ts)) {
            // Before a crash; nobody may have heard of it.
            if self.retained.contains_key(&name) && !self.inbox.is_applied(&name) {
                self.inbox.recall(name);
                out.output(Output::Applied { origin, ts: name.1, changed: false });
            }
        }
        let (done, next) = self.inbox.ask(origin, stamps);
        if !done.is_empty() {
            self.done.entry(origin).or_default().extend(done);
        }
        next.into_iter().for_each(|update| self.apply(update, out));
    }

    fn apply(&mut self, update: Update, out: &mut Outbox<Self>) {
        let (origin, ts) = (update.origin, update.label.ts);
        let changed = self.hold(&update);
        if self.mutation.is(Mutation::ForgetsTheLost) {
            out.persist(Record::Held(update));
        } else {
            out.persist(Record::Applied(update.clone()));
            self.retained.insert((origin, ts), update);
        }
        self.inbox.applied((origin, ts));
        self.done.entry(origin).or_default().push(ts);
        out.output(Output::Applied { origin, ts, changed });
    }

    /// Data has come; its label may have come before.
    fn on_data(&mut self, updates: Vec<Update>, out: &mut Outbox<Self>) {
        let known = |update: &Update| self.inbox.is_applied(&(update.origin, update.label.ts));
        let again = match self.mutation.is(Mutation::AppliesAgain) {
            true => updates.iter().filter(|update| known(update)).cloned().collect(),
            false => Vec::new(),
        };
        let next = self.inbox.take(updates, self.options.inbox_max);
        next.into_iter().chain(again).for_each(|update| self.apply(update, out));
    }

    /// Tells the receiver what was applied.
    fn tell_applied(&mut self, out: &mut Outbox<Self>) {
        let receiver = Peer { role: Role::Receiver, ..self.me };
        while let Some((origin, stamps)) = self.done.pop_first() {
            out.send(receiver, Message::Applied { origin, stamps });
        }
    }

    /// Sends what was asked for, and what comes after that: who lacks some data lacks more, and
    /// one update after the other would take a round trip for each.
    fn on_pull(&self, from: Peer, stamps: &[Timestamp], out: &mut Outbox<Self>) {
        let Some(last) = stamps.iter().max() else { return };
        let asked = stamps.iter().filter_map(|ts| self.data.get(ts));
        let after = self.data.range((Bound::Excluded(*last), Bound::Unbounded));
        let home = |update: &&Update| self.topology.home(from.region, update.label.place) == from;
        let more = after.map(|(_, update)| update).filter(home).take(self.options.labels_max);
        let found: Vec<_> = asked.chain(more).cloned().collect();
        if !found.is_empty() {
            out.send(from, Message::Data(found));
        }
        let trimmed = |ts: &&Timestamp| !self.data.contains_key(*ts);
        let trimmed: Vec<_> = stamps.iter().filter(trimmed).copied().collect();
        if !trimmed.is_empty() {
            out.send(from, Message::Trimmed(trimmed));
        }
    }

    /// A source does not have these any more, as all regions have them.
    fn on_trimmed(&mut self, origin: RegionId, stamps: Vec<Timestamp>) {
        let done = self.inbox.pass_over(origin, stamps);
        if !done.is_empty() {
            self.done.entry(origin).or_default().extend(done);
        }
    }

    /// Sends the data of what was committed to those who hold the same keys elsewhere.
    fn send_data(&mut self, out: &mut Outbox<Self>) {
        let mut data: BTreeMap<Peer, Vec<Update>> = BTreeMap::new();
        for ts in self.unsent.drain(..) {
            let Some(update) = self.data.get(&ts) else { continue };
            for region in self.regions.there().filter(|region| *region != self.me.region) {
                let home = self.topology.home(region, update.label.place);
                data.entry(home).or_default().push(update.clone());
            }
        }
        data.into_iter().for_each(|(to, updates)| out.send(to, Message::Data(updates)));
    }

    fn on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        out.timer(self.options.next_batch(now), Timer::Tick);
        let reserve_ns = self.options.reserve.as_nanos() as u64;
        let (promise, more) = self.source.promise(now, reserve_ns);
        if let Some(upto) = more {
            let (_, base) = self.source.recalled();
            out.persist(Record::Reserved { upto: upto.0, base });
        }
        for replica in self.topology.replicas(self.me.region) {
            let Role::Replica(number) = replica.role else { continue };
            let batch = self.source.batch(number, self.options.labels_max, promise);
            out.send(replica, Message::Batch(Batch { goes_on: true, ..batch }));
        }
        self.pull(now, out);
        self.copy_again(now, out);
    }

    /// All other regions have applied what was made here up to `applied`.
    fn trim(&mut self, applied: Timestamp, out: &mut Outbox<Self>) {
        let dropped = self.source.trim(applied);
        if dropped.is_empty() {
            return;
        }
        out.note(Record::Trimmed(applied));
        dropped.iter().for_each(|label| {
            self.data.remove(&label.ts);
        });
    }

    fn on_message(&mut self, now: Time, from: Peer, message: Message, out: &mut Outbox<Self>) {
        match (from.role, message) {
            (Role::Replica(number), Message::Ack { next, lacks, ahead, applied, .. }) => {
                self.source.on_ack(number, next, lacks, ahead);
                self.trim(applied, out);
            }
            (Role::Receiver, Message::Apply { origin, round, applied, everywhere, stamps })
                if self.passes(origin, round) =>
            {
                self.forget(origin, everywhere, out);
                self.on_apply((origin, applied), stamps, out);
            }
            (Role::Receiver, Message::Seal { lost, round }) => self.on_seal(from, lost, round, out),
            (Role::Receiver, Message::Copy { from: region }) => self.on_copy(now, region, out),
            (Role::Shard(_), Message::Fetch { origin, stamps }) => {
                self.on_fetch(from, origin, &stamps, out);
            }
            (Role::Shard(_), Message::AskPage { after }) => self.on_ask_page(from, after, out),
            (Role::Shard(number), Message::Page { after, updates, more }) => {
                self.on_page(now, (from.region, number), after, (updates, more), out);
            }
            (Role::Shard(_), Message::Data(updates)) => self.on_data(updates, out),
            (Role::Shard(_), Message::Pull(stamps)) => self.on_pull(from, &stamps, out),
            (Role::Shard(_), Message::Trimmed(stamps)) => self.on_trimmed(from.region, stamps),
            (Role::Shard(_), Message::Forgotten { origin, stamps }) => {
                self.on_trimmed(origin, stamps);
            }
            _ => {} // Not for a shard, or of a round that is over.
        }
    }
}

/// What has seen an update has seen all that it depends on.
fn seen_with(label: &Label, order: Order) -> Seen {
    Seen { vector: label.vector, version: order.version }
}

impl Process for Shard {
    type Peer = Peer;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                self.unsent = self.data.keys().copied().collect();
                self.go_by_regions(out);
                self.on_tick(now, out);
            }
            Event::Timer(Timer::Tick | Timer::Soon) => self.on_tick(now, out),
            Event::Message { from, message } => self.on_message(now, from, message, out),
            Event::Command(Command::Read { token, key }) => self.on_read(token, &key, out),
            Event::Command(Command::Update(request)) => self.on_update(now, request, out),
            Event::Command(Command::Begin(request)) => self.on_begin(now, request, out),
            Event::Command(Command::Commit { token }) => self.on_commit(token, out),
            Event::Command(Command::Abort { token }) => self.on_abort(token),
            Event::Command(Command::Regions(regions)) => self.on_regions(regions, out),
            Event::Idle => {
                self.send_data(out);
                self.tell_applied(out);
            }
            Event::Restarted(_) => {} // What was lost is asked for.
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Reserved { upto, base } => self.source.recall_promises(upto, base),
            Record::Committed { number, update } => {
                self.source.recall(number, update.label);
                self.hold(&update);
                self.data.insert(update.label.ts, update);
            }
            Record::Held(update) => {
                self.hold(&update);
            }
            Record::Trimmed(applied) => {
                for label in self.source.trim(applied) {
                    self.data.remove(&label.ts);
                }
            }
            Record::Applied(update) => {
                self.hold(&update);
                self.retained.insert((update.origin, update.label.ts), update);
            }
            Record::Forgotten(origin, upto) => self.drop_retained(origin, upto),
            Record::Regions(regions) => self.regions = Arc::new(regions),
            Record::Fenced(lost, round) => drop(self.fences.insert(lost, round)),
            Record::Copied(seen) => self.copied = Some(seen),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let (upto, base) = self.source.recalled();
        let held = self.keys.clone().into_iter();
        let held = held.map(|(key, entry)| Record::Held(entry.update(key)));
        let numbers: Vec<_> =
            self.source.outbox().map(|(number, label)| (number, label.ts)).collect();
        let data = self.data.clone();
        let committed = numbers.into_iter().filter_map(move |(number, ts)| {
            let update = data.get(&ts)?.clone();
            Some(Record::Committed { number, update })
        });
        let first = [Record::Reserved { upto, base }, Record::Regions((*self.regions).clone())];
        let retained = self.retained.clone().into_values().map(Record::Applied);
        let fences =
            self.fences.clone().into_iter().map(|(lost, round)| Record::Fenced(lost, round));
        let forgotten = self.forgotten.clone().into_iter();
        let forgotten = forgotten.map(|(origin, upto)| Record::Forgotten(origin, upto));
        let copied = self.copied.map(Record::Copied);
        let first = first.into_iter().chain(fences).chain(forgotten).chain(copied);
        Box::new(first.chain(held).chain(retained).chain(committed))
    }
}
