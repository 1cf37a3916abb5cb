//! A shard: some of the keys of a region, on one server (Eunomia, Algorithm 2, with vectors).
//!
//! It serves the sessions of its region, is a source of their updates, and applies those of other
//! regions when the receiver says so and their data is there. What it has is durable before anyone
//! hears of it.
//!
//! Invariants:
//! - A key holds the update with the greatest [`Order`] of all that were committed or applied here.
//! - The data of an update is kept until all other regions have applied it.

use crate::inbox::{Inbox, Name};
use crate::message::{Batch, Label, Message, Peer, Role, Timer, Topology, Update, place_of};
use crate::mutation::Mutation;
use crate::options::Options;
use crate::source::Source;
use crate::timestamp::{Order, Seen, Timestamp};
use bytes::Bytes;
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
    /// Too much is under way to other regions; nothing has happened.
    Refused {
        /// Of the request.
        token: u64,
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
    mutation: Mutation,
}

impl Shard {
    /// The shard with this number in a region. It has nothing.
    pub fn new(region: RegionId, number: u16, topology: Arc<Topology>, options: Options) -> Shard {
        Shard {
            me: Peer { region, role: Role::Shard(number) },
            topology,
            options,
            source: Source::new(region, number),
            keys: BTreeMap::new(),
            begun: BTreeMap::new(),
            data: BTreeMap::new(),
            unsent: Vec::new(),
            inbox: Inbox::default(),
            done: BTreeMap::new(),
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Shard {
        Shard { source: self.source.with_mutation(mutation), mutation, ..self }
    }

    /// How many updates made here some other region may lack, or are in flight.
    pub fn outstanding(&self) -> usize {
        self.source.outstanding()
    }

    /// What it holds: keys, values and their places.
    pub fn entries(&self) -> impl Iterator<Item = (&Bytes, Option<&Bytes>, Order)> {
        self.keys.iter().map(|(key, entry)| (key, entry.value.as_ref(), entry.order))
    }

    /// A read (Eunomia, Algorithm 2, lines 1-3). What it saw may not be durable yet: it is to be
    /// told in an output of this process.
    fn on_read(&self, token: u64, key: &Bytes, out: &mut Outbox<Self>) {
        let found = self.keys.get(key);
        let value = found.and_then(|entry| entry.value.clone());
        let seen = found.map(|entry| seen_with(&entry.label, entry.order)).unwrap_or_default();
        out.output(Output::Value { token, value, seen });
    }

    /// An update from its beginning to its end.
    fn on_update(&mut self, now: Time, request: Request, out: &mut Outbox<Self>) {
        let token = request.token;
        match self.begin(now, request) {
            Some(update) => self.commit(token, update, out),
            None => out.output(Output::Refused { token }),
        }
    }

    fn on_begin(&mut self, now: Time, request: Request, out: &mut Outbox<Self>) {
        let token = request.token;
        match self.begin(now, request) {
            Some(update) => drop(self.begun.insert(token, update)),
            None => out.output(Output::Refused { token }),
        }
    }

    /// An update gets its timestamp, unless too much is under way.
    fn begin(&mut self, now: Time, request: Request) -> Option<Update> {
        let Request { token, key, value, seen } = request;
        let full = self.source.outstanding() >= self.options.outstanding_max;
        if full || self.begun.contains_key(&token) {
            return None;
        }
        let label = self.source.begin(now, &seen.vector, place_of(&key));
        let held = self.keys.get(&key).map(|entry| entry.order).unwrap_or_default();
        let order = held.followed(seen.version, self.me.region, label.ts);
        Some(Update { origin: self.me.region, label, key, value, order })
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
        let (done, next) = self.inbox.ask(origin, stamps);
        if !done.is_empty() {
            self.done.entry(origin).or_default().extend(done);
        }
        next.into_iter().for_each(|update| self.apply(update, out));
    }

    fn apply(&mut self, update: Update, out: &mut Outbox<Self>) {
        let (origin, ts) = (update.origin, update.label.ts);
        let changed = self.hold(&update);
        if changed {
            out.persist(Record::Held(update));
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
    }

    /// Asks for data that has not come. What is wanted for the first time may be on its way.
    fn pull(&mut self, now: Time, out: &mut Outbox<Self>) {
        let source = |(region, ts): Name, _| Peer { region, role: Role::Shard(ts.source()) };
        let missing = self.inbox.missing(now, &self.options, source);
        missing.into_iter().for_each(|(to, stamps)| out.send(to, Message::Pull(stamps)));
    }

    /// Sends the data of what was committed to those who hold the same keys elsewhere.
    fn send_data(&mut self, out: &mut Outbox<Self>) {
        let mut data: BTreeMap<Peer, Vec<Update>> = BTreeMap::new();
        for ts in self.unsent.drain(..) {
            let Some(update) = self.data.get(&ts) else { continue };
            for region in self.topology.others(self.me.region) {
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

    fn on_message(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        match (from.role, message) {
            (Role::Replica(number), Message::Ack { next, lacks, ahead, applied, .. }) => {
                self.source.on_ack(number, next, lacks, ahead);
                self.trim(applied, out);
            }
            (Role::Receiver, Message::Apply { origin, applied, stamps }) => {
                self.on_apply((origin, applied), stamps, out);
            }
            (Role::Shard(_), Message::Data(updates)) => self.on_data(updates, out),
            (Role::Shard(_), Message::Pull(stamps)) => self.on_pull(from, &stamps, out),
            _ => {} // Not for a shard.
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
                self.on_tick(now, out);
            }
            Event::Timer(Timer::Tick | Timer::Soon) => self.on_tick(now, out),
            Event::Message { from, message } => self.on_message(from, message, out),
            Event::Command(Command::Read { token, key }) => self.on_read(token, &key, out),
            Event::Command(Command::Update(request)) => self.on_update(now, request, out),
            Event::Command(Command::Begin(request)) => self.on_begin(now, request, out),
            Event::Command(Command::Commit { token }) => self.on_commit(token, out),
            Event::Command(Command::Abort { token }) => self.on_abort(token),
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
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let (upto, base) = self.source.recalled();
        let held = self.keys.clone().into_iter().map(|(key, entry)| {
            let Entry { value, order, origin, label } = entry;
            Record::Held(Update { origin, label, key, value, order })
        });
        let numbers: Vec<_> =
            self.source.outbox().map(|(number, label)| (number, label.ts)).collect();
        let data = self.data.clone();
        let committed = numbers.into_iter().filter_map(move |(number, ts)| {
            let update = data.get(&ts)?.clone();
            Some(Record::Committed { number, update })
        });
        Box::new(std::iter::once(Record::Reserved { upto, base }).chain(held).chain(committed))
    }
}
