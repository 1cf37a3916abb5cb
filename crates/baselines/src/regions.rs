//! Keys that several regions hold: the store and the links that [`Eventual`], [`GentleRain`] and
//! [`Cure`] have in common. When an update of another region may be seen is their [`Rule`].
//!
//! Each region has all keys, on partitions that are the same in number everywhere. A partition
//! answers its sessions from memory, gives an update its timestamp without asking anyone, and sends
//! it to its *siblings*, which hold the same keys in other regions. Links are FIFO, so a partition
//! has all that a sibling made up to the last timestamp that it was sent: an update, or a heartbeat
//! if there was none for a while. Partitions of a region tell each other how far each has come, all
//! to all (Eunomia, section 4.2), and a rule makes of that what is stable.
//!
//! Timestamps are hybrid (Eunomia, section 3.1): in the papers an update waits until the clock has
//! passed what its session has seen. Of several updates of a key the one with the greatest
//! [`Order`] stays, as in `meridian_eunomia`.
//!
//! # Made for a fair comparison
//!
//! What a partition holds it makes durable, in one record for each update, as a shard of Eunomia
//! does. Updates to a sibling wait for [`Event::Idle`] and travel together. Sessions stay in their
//! regions.
//!
//! Invariants:
//! - R1: a partition sends updates and heartbeats in the order of their timestamps.
//! - R2: what may be seen once may be seen ever after; sessions tell partitions what that is.
//!
//! [`Eventual`]: crate::Eventual
//! [`GentleRain`]: crate::GentleRain
//! [`Cure`]: crate::Cure

use bytes::Bytes;
use meridian_core::{Event, Outbox, PLANTED_BUGS, Process, RegionId, Time};
use meridian_eunomia::{Order, Peer, Role, Timestamp, Topology, Vector};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// How a protocol decides when an update of another region may be seen. It is a part of a
/// partition.
pub trait Rule: Clone + Debug + Sized + 'static {
    /// What a session has seen; and with what a key holds, what a session has seen that reads it.
    type Seen: Copy + Debug + Default + PartialEq + Serialize + DeserializeOwned + Send;
    /// What an update says of that to other regions.
    type Carried: Copy + Debug + Serialize + DeserializeOwned;
    /// What a partition tells the others of its region of how far it has come.
    type Told: Copy + Debug + Serialize + DeserializeOwned;

    /// Whether it needs to be told anything: heartbeats, and what partitions tell each other.
    const STABILIZES: bool;

    /// That of the partition with this number in a region; it knows nothing.
    fn new(region: RegionId, number: u16, topology: &Topology, mutation: Mutation) -> Self;

    /// An update of a session has a timestamp above this.
    fn floor(&self, seen: &Self::Seen) -> Timestamp;

    /// The greatest [`Order::version`] that a session has seen.
    fn version(seen: &Self::Seen) -> Timestamp;

    /// What is seen with an update of this region, which a session made that had seen `seen`.
    fn made(&self, seen: &Self::Seen, order: &Order) -> Self::Seen;

    /// What such an update says to other regions.
    fn carried(&self, seen: &Self::Seen) -> Self::Carried;

    /// What is seen in this region with an update of another.
    fn arrived(&self, order: &Order, carried: &Self::Carried) -> Self::Seen;

    /// A session that has seen `mine` has now also seen `other`.
    fn join(mine: &mut Self::Seen, other: &Self::Seen);

    /// A session of this region has seen that: so all that led to it is there.
    fn learn(&mut self, seen: &Self::Seen);

    /// Whether an update of another region may be seen.
    fn is_visible(&self, order: &Order, carried: &Self::Carried) -> bool;

    /// No update with a later timestamp may be seen.
    fn horizon(&self) -> Timestamp;

    /// What the partition tells the others: it has all that was made in each region up to here.
    fn told(&self, received: &Vector) -> Self::Told;

    /// A partition of this region, perhaps this one, has told that.
    fn on_told(&mut self, partition: u16, told: Self::Told);

    /// Finds out what is stable.
    fn stabilize(&mut self);
}

/// A planted bug, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// None.
    #[default]
    Correct,
    /// What has come may be seen.
    SeesAtOnce,
    /// A partition takes for stable what it has itself.
    HearsNobody,
    /// What a session has seen raises the stable time of no partition.
    LearnsNothing,
    /// An update of a region does not tell how much of the others its session had seen.
    CarriesNothing,
}

impl Mutation {
    /// Whether this is `bug` and bugs can be planted at all.
    pub(crate) fn is(self, bug: Mutation) -> bool {
        PLANTED_BUGS && self == bug
    }
}

/// How partitions behave: the defaults are those of the thesis (Eunomia, section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// A sibling that was sent nothing for so long is sent a heartbeat.
    pub heartbeat: Duration,
    /// So often partitions tell each other how far they are, and find out what is stable.
    pub theta: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { heartbeat: Duration::from_millis(10), theta: Duration::from_millis(5) }
    }
}

/// An update on its way to another region.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Update<C> {
    /// Its place among the updates of its key; its region and its timestamp are in it.
    pub order: Order,
    /// Of this key.
    pub key: Bytes,
    /// The new value; `None` deletes the key.
    pub value: Option<Bytes>,
    /// What it depends on.
    pub carried: C,
}

/// What partitions say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message<C, T> {
    /// To a sibling, in the order of their timestamps.
    Updates(Vec<Update<C>>),
    /// To a sibling: no update at or below this will follow.
    Heartbeat(Timestamp),
    /// To another partition of the region.
    Told(T),
}

/// What a partition is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command<S> {
    /// The value of a key.
    Read {
        /// To be given back.
        token: u64,
        /// Which.
        key: Bytes,
        /// What the session has seen.
        seen: S,
    },
    /// A new value.
    Update {
        /// To be given back.
        token: u64,
        /// Of this key.
        key: Bytes,
        /// `None` deletes it.
        value: Option<Bytes>,
        /// What the session has seen.
        seen: S,
    },
}

/// What a partition tells its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output<S> {
    /// What was read.
    Value {
        /// Of the question.
        token: u64,
        /// `None` if there is no such key.
        value: Option<Bytes>,
        /// What the session has seen with it.
        seen: S,
    },
    /// The update has happened.
    Updated {
        /// Of the request.
        token: u64,
        /// What the session has seen with it.
        seen: S,
    },
    /// An update of another region may be seen from now on.
    Applied {
        /// Where it was made.
        origin: RegionId,
        /// Its timestamp there.
        ts: Timestamp,
        /// Whether the key has changed: not if it held something later.
        changed: bool,
    },
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held<S> {
    value: Option<Bytes>,
    order: Order,
    seen: S,
}

/// What a partition makes durable: a key holds this.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record<S> {
    key: Bytes,
    value: Option<Bytes>,
    order: Order,
    seen: S,
}

/// What there is of a key: what may be seen, and updates of other regions that may not yet.
#[derive(Clone, Debug)]
struct Chain<R: Rule> {
    held: Option<Held<R::Seen>>,
    waiting: Vec<Update<R::Carried>>,
}

impl<R: Rule> Default for Chain<R> {
    fn default() -> Self {
        Chain { held: None, waiting: Vec::new() }
    }
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// To find out what is stable.
    Stabilize,
    /// To send heartbeats.
    Heartbeat,
}

/// A partition of a region.
#[derive(Clone, Debug)]
pub struct Partition<R: Rule> {
    me: Peer,
    number: u16,
    topology: Arc<Topology>,
    options: Options,
    rule: R,
    /// The greatest timestamp used or promised.
    max_ts: Timestamp,
    /// It has all that its siblings made up to here, and makes nothing at or below its own entry.
    received: Vector,
    /// What siblings were promised last.
    sent: Timestamp,
    keys: BTreeMap<Bytes, Chain<R>>,
    /// The keys of all updates that wait, by timestamp and region.
    waiting: BTreeMap<(Timestamp, u16), Bytes>,
    unsent: Vec<Update<R::Carried>>,
}

impl<R: Rule> Partition<R> {
    /// The partition with this number in a region. It has nothing.
    ///
    /// # Panics
    /// If regions have different numbers of partitions: then a partition has no sibling.
    pub fn new(region: RegionId, number: u16, topology: Arc<Topology>, options: Options) -> Self {
        let count = topology.shard_count(region);
        let even = topology.regions().all(|other| topology.shard_count(other) == count);
        assert!(even, "each region has as many partitions as all others");
        Partition {
            me: Peer { region, role: Role::Shard(number) },
            number,
            rule: R::new(region, number, &topology, Mutation::Correct),
            topology,
            options,
            max_ts: Timestamp::ZERO,
            received: Vector::default(),
            sent: Timestamp::ZERO,
            keys: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unsent: Vec::new(),
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Self {
        let rule = R::new(self.me.region, self.number, &self.topology, mutation);
        Partition { rule, ..self }
    }

    /// What may be seen: keys, values and their places.
    pub fn entries(&self) -> impl Iterator<Item = (&Bytes, Option<&Bytes>, Order)> {
        self.keys.iter().filter_map(|(key, chain)| {
            let held = chain.held.as_ref()?;
            Some((key, held.value.as_ref(), held.order))
        })
    }

    /// How many updates of other regions have come and may not be seen yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn siblings(&self) -> impl Iterator<Item = Peer> + use<R> {
        let role = self.me.role;
        self.topology.others(self.me.region).map(move |region| Peer { region, role })
    }

    fn on_read(&mut self, token: u64, key: &Bytes, seen: &R::Seen, out: &mut Outbox<Self>) {
        self.rule.learn(seen);
        let mut found = self.keys.get(key);
        if found.is_some_and(|chain| !chain.waiting.is_empty()) {
            self.settle(key, out);
            found = self.keys.get(key);
        }
        let held = found.and_then(|chain| chain.held.as_ref());
        let value = held.and_then(|held| held.value.clone());
        let seen = held.map(|held| held.seen).unwrap_or_default();
        out.output(Output::Value { token, value, seen });
    }

    fn on_update(
        &mut self,
        now: Time,
        (token, key, value): (u64, Bytes, Option<Bytes>),
        seen: &R::Seen,
        out: &mut Outbox<Self>,
    ) {
        self.rule.learn(seen);
        let least = self.max_ts.max(self.rule.floor(seen));
        let ts = Timestamp::following(now, least, self.number);
        self.max_ts = ts;
        let held = self.keys.get(&key).and_then(|chain| chain.held.as_ref());
        let held = held.map(|held| held.order).unwrap_or_default();
        let order = held.followed(R::version(seen), self.me.region, ts);
        let seen = self.rule.made(seen, &order);
        let carried = self.rule.carried(&seen);
        self.unsent.push(Update { order, key: key.clone(), value: value.clone(), carried });
        self.hold(Record { key, value, order, seen }, out);
        out.output(Output::Updated { token, seen });
    }

    /// The key has this unless it has something later; whether it had not.
    fn hold(&mut self, record: Record<R::Seen>, out: &mut Outbox<Self>) -> bool {
        let changes = self.replay_one(&record);
        if changes {
            out.persist(record);
        }
        changes
    }

    fn replay_one(&mut self, record: &Record<R::Seen>) -> bool {
        let Record { value, order, seen, .. } = record;
        let chain = self.keys.entry(record.key.clone()).or_default();
        if chain.held.as_ref().is_some_and(|held| held.order >= *order) {
            return false;
        }
        chain.held = Some(Held { value: value.clone(), order: *order, seen: *seen });
        true
    }

    /// An update of another region may be seen.
    fn apply(&mut self, update: Update<R::Carried>, out: &mut Outbox<Self>) {
        let Update { order, key, value, carried } = update;
        let seen = self.rule.arrived(&order, &carried);
        let changed = self.hold(Record { key, value, order, seen }, out);
        let (origin, ts) = (RegionId(order.region), order.ts);
        out.output(Output::Applied { origin, ts, changed });
    }

    /// What may be seen of a key by now is seen.
    fn settle(&mut self, key: &Bytes, out: &mut Outbox<Self>) {
        let Some(chain) = self.keys.get_mut(key).filter(|chain| !chain.waiting.is_empty()) else {
            return;
        };
        let rule = &self.rule;
        let visible = |update: &mut Update<_>| rule.is_visible(&update.order, &update.carried);
        let freed: Vec<_> = chain.waiting.extract_if(.., visible).collect();
        for update in freed {
            self.waiting.remove(&(update.order.ts, update.order.region));
            self.apply(update, out);
        }
    }

    fn on_updates(
        &mut self,
        from: RegionId,
        updates: Vec<Update<R::Carried>>,
        out: &mut Outbox<Self>,
    ) {
        for update in updates {
            let ts = update.order.ts;
            assert!(ts > self.received[from], "R1: {ts:?} of {from:?} at {:?}", self.me);
            self.received[from] = ts;
            if self.rule.is_visible(&update.order, &update.carried) {
                self.apply(update, out);
                continue;
            }
            self.waiting.insert((ts, from.0), update.key.clone());
            self.keys.entry(update.key.clone()).or_default().waiting.push(update);
        }
    }

    /// Tells the others how far this partition is, and shows what is stable.
    fn on_stabilize(&mut self, now: Time, out: &mut Outbox<Self>) {
        out.timer(now + self.options.theta, Timer::Stabilize);
        self.max_ts = self.max_ts.max(Timestamp(now.0));
        self.received[self.me.region] = self.max_ts;
        let told = self.rule.told(&self.received);
        self.rule.on_told(self.number, told);
        for peer in self.topology.shards(self.me.region).filter(|peer| *peer != self.me) {
            out.send(peer, Message::Told(told));
        }
        self.rule.stabilize();
        let upto = (self.rule.horizon(), u16::MAX);
        let keys: Vec<_> = self.waiting.range(..=upto).map(|(_, key)| key.clone()).collect();
        keys.iter().for_each(|key| self.settle(key, out));
    }

    /// R1: what was made is sent before a heartbeat says that nothing earlier will follow.
    fn on_heartbeat(&mut self, now: Time, out: &mut Outbox<Self>) {
        out.timer(now + self.options.heartbeat, Timer::Heartbeat);
        self.send_updates(out);
        if now.since(Time(self.sent.0)) < self.options.heartbeat {
            return;
        }
        self.max_ts = self.max_ts.max(Timestamp(now.0));
        self.sent = self.max_ts;
        self.siblings().for_each(|to| out.send(to, Message::Heartbeat(self.max_ts)));
    }

    fn send_updates(&mut self, out: &mut Outbox<Self>) {
        let updates = std::mem::take(&mut self.unsent);
        let Some(last) = updates.last() else { return };
        self.sent = last.order.ts;
        for to in self.siblings() {
            out.send(to, Message::Updates(updates.clone()));
        }
    }

    fn on_message(
        &mut self,
        from: Peer,
        message: Message<R::Carried, R::Told>,
        out: &mut Outbox<Self>,
    ) {
        match (from.role, message) {
            (Role::Shard(_), Message::Updates(updates)) => {
                self.on_updates(from.region, updates, out);
            }
            (Role::Shard(_), Message::Heartbeat(ts)) => {
                self.received[from.region] = self.received[from.region].max(ts);
            }
            (Role::Shard(partition), Message::Told(told)) => self.rule.on_told(partition, told),
            (Role::Replica(_) | Role::Receiver, _) => {} // There are none.
        }
    }
}

impl<R: Rule> Process for Partition<R> {
    type Peer = Peer;
    type Message = Message<R::Carried, R::Told>;
    type Record = Record<R::Seen>;
    type Command = Command<R::Seen>;
    type Output = Output<R::Seen>;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                if R::STABILIZES {
                    self.on_stabilize(now, out);
                    self.on_heartbeat(now, out);
                }
            }
            Event::Timer(Timer::Stabilize) => self.on_stabilize(now, out),
            Event::Timer(Timer::Heartbeat) => self.on_heartbeat(now, out),
            Event::Message { from, message } => self.on_message(from, message, out),
            Event::Command(Command::Read { token, key, seen }) => {
                self.on_read(token, &key, &seen, out);
            }
            Event::Command(Command::Update { token, key, value, seen }) => {
                self.on_update(now, (token, key, value), &seen, out);
            }
            Event::Idle => self.send_updates(out),
            Event::Restarted(_) => {}
        }
    }

    fn replay(&mut self, record: Record<R::Seen>) {
        self.replay_one(&record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record<R::Seen>> + Send> {
        let record = |(key, chain): (&Bytes, &Chain<R>)| {
            let Held { value, order, seen } = chain.held.clone()?;
            Some(Record { key: key.clone(), value, order, seen })
        };
        let records: Vec<_> = self.keys.iter().filter_map(record).collect();
        Box::new(records.into_iter())
    }
}
