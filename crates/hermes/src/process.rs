//! The process: all parts of a replica, and who handles what.

use crate::batch::Batches;
use crate::busy::{Parked, State, Unsettled};
use crate::completions::Completions;
use crate::coordinator::Tried;
use crate::follower::EarlyAcks;
use crate::join::Joining;
use crate::members::{Members, Membership};
use crate::message::{
    Answer, Body, Command, Completion, Message, Modify, Output, Record, Refusal, Request, Timer,
};
use crate::mutation::Mutation;
use crate::options::{Durability, Options, Reads};
use crate::reads::Checks;
use crate::replay::Installed;
use crate::store::Store;
use crate::timestamp::{Timestamp, Writer};
use bytes::Bytes;
use meridian_core::{
    ClientId, Event, Key, NodeId, Outbox, PLANTED_BUGS, Process, Secret, Slot, Time, Value, mix,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// A replica of keys, on which RMWs are `M`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hermes<M> {
    pub(crate) me: NodeId,
    pub(crate) options: Options,
    pub(crate) mutation: Mutation,
    pub(crate) members: Members,
    pub(crate) installed: Installed,
    /// It serves until then; in no epoch, if it is not live.
    pub(crate) lease: Time,
    pub(crate) store: Store,
    pub(crate) unsettled: Unsettled<M>,
    pub(crate) completions: Completions,
    pub(crate) checks: Checks<M>,
    pub(crate) joining: Option<Joining>,
    pub(crate) early: EarlyAcks,
    pub(crate) batches: Batches,
    /// What is asked while too much is under way, in order.
    held_up: VecDeque<Command<M>>,
    /// Whether the log has all that this replica acknowledged since it last began with nothing.
    pub(crate) begun: bool,
    /// Where virtual ids are drawn from.
    draws: u64,
    /// Whether the owner is told of changes.
    pub(crate) watched: bool,
    /// Whether the timer is set.
    ticking: bool,
}

impl<M: Modify> Hermes<M> {
    /// A replica that holds nothing, and is no member before [`Command::Install`] says so. `seed`
    /// must differ between replicas.
    pub fn new(me: NodeId, options: Options, seed: u64) -> Self {
        Hermes {
            me,
            options,
            mutation: Mutation::Correct,
            members: Members::default(),
            installed: Installed::default(),
            lease: Time(0),
            store: Store::default(),
            unsettled: Unsettled::default(),
            completions: Completions::default(),
            checks: Checks::default(),
            joining: None,
            early: EarlyAcks::default(),
            batches: Batches::default(),
            held_up: VecDeque::new(),
            begun: false,
            draws: seed,
            watched: false,
            ticking: false,
        }
    }

    /// The same, with hashes of keys that depend on what nobody else knows. It must hold nothing
    /// yet.
    pub fn with_secret(mut self, secret: Secret) -> Self {
        assert!(self.store.since(Slot(0)).next().is_none(), "a secret comes before the first key");
        self.store = Store::new(secret);
        self
    }

    /// The same with a planted bug.
    ///
    /// # Panics
    /// In a release build, which contains none ([`meridian_core::PLANTED_BUGS`]).
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: Mutation) -> Self {
        assert!(
            PLANTED_BUGS || mutation == Mutation::Correct,
            "a release build has no bug planted"
        );
        self.mutation = mutation;
        self
    }

    /// Reads from local memory, if the key is Valid and the replica has a lease at `now`; the
    /// value is `None` if there is no such key.
    ///
    /// The value must be read before the clock, or the clock be read again afterwards: who was
    /// stopped between the two would else answer with what was replaced meanwhile. So the owner
    /// asks its clock once more before an answer goes out, and asks anew after [`Hermes::lease`].
    pub fn read(&self, now: Time, key: &[u8]) -> Option<Option<&Value>> {
        if self.options.reads == Reads::Check || !self.serves(now) {
            return None;
        }
        let Some(slot) = self.store.find(key) else { return Some(None) };
        let entry = self.store.get(slot);
        let readable = entry.is_valid() || self.mutation.is(Mutation::ReadsInvalid);
        readable.then_some(entry.value.as_ref())
    }

    /// What a key has if that is committed and nothing later is known, with a lease or without one:
    /// it may have been replaced elsewhere. None: it is being changed.
    pub fn committed(&self, key: &[u8]) -> Option<Option<&Value>> {
        let Some(slot) = self.store.find(key) else { return Some(None) };
        let entry = self.store.get(slot);
        entry.is_valid().then_some(entry.value.as_ref())
    }

    /// The last value of a key that is known here, committed or not: a guess at what an RMW finds.
    pub fn latest(&self, key: &[u8]) -> Option<&Value> {
        self.store.get(self.store.find(key)?).value.as_ref()
    }

    /// Which node's it is.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Where it keeps what it acknowledges.
    pub fn durability(&self) -> Durability {
        self.options.durability
    }

    /// When its lease ends, by its own clock.
    pub fn lease(&self) -> Time {
        self.lease
    }

    /// The membership that it has installed.
    pub fn membership(&self) -> &Membership {
        &self.members.now
    }

    /// Whether it takes requests.
    pub fn serves(&self, now: Time) -> bool {
        let leased = now < self.lease || self.options.reads == Reads::Check;
        self.is_live() && (leased || self.mutation.is(Mutation::ReadsWithoutLease))
    }

    /// Whether no update of a replica that was removed is left to be replayed here or at any live
    /// replica: all have installed the epoch and said so, and what they hold is Valid or has a live
    /// coordinator. See [`crate::completions`].
    pub fn is_settled(&self) -> bool {
        self.is_live() && self.installed.are_all_settled(&self.members, self.me)
    }

    /// The state of a key, and the place of what is held.
    pub fn state(&self, key: &[u8]) -> (State, Timestamp) {
        let Some(slot) = self.store.find(key) else { return (State::Valid, Timestamp::NONE) };
        let entry = self.store.get(slot);
        let busy = self.unsettled.get(entry);
        (busy.map_or(State::Valid, |busy| busy.state(entry)), entry.ts)
    }

    /// What is held, in no particular order: key, place, value, and whether it is Valid.
    pub fn entries(&self) -> impl Iterator<Item = (&Key, Timestamp, Option<&Value>, bool)> {
        let all = self.store.since(Slot(0));
        all.map(|(_, entry)| (&entry.key, entry.ts, entry.value.as_ref(), entry.is_valid()))
    }

    /// What is held from a place on, with the place after each: keys keep their places, so a walk
    /// that goes on where it stopped meets each key that is there all the time. Values that are
    /// not committed are shown, too.
    pub fn walk(&self, from: u32) -> impl Iterator<Item = (u32, &Key, Option<&Value>)> {
        let rest = self.store.since(Slot(from));
        rest.map(|(place, entry)| (place.0 + 1, &entry.key, entry.value.as_ref()))
    }

    /// What is known of the last requests of clients behind `client`, in order of clients. Of an
    /// RMW that is not known to be committed, [`Hermes::happened`] says more.
    pub fn requests(
        &self,
        client: Option<ClientId>,
    ) -> impl Iterator<Item = (ClientId, &Completion)> {
        self.completions.since(client)
    }

    /// Whether what a request led to was committed; `None` while that is open, because its key is
    /// being changed. What is said of a replica that has gone counts once this one has
    /// [settled](Hermes::is_settled).
    pub fn happened(&self, key: &[u8], completion: &Completion) -> Option<bool> {
        let (state, held) = self.state(key);
        let decided = completion.committed || state == State::Valid;
        decided.then_some(completion.committed || completion.ts == held)
    }

    /// How many keys have a value, those among them that are being written.
    pub fn len(&self) -> usize {
        self.store.live()
    }

    /// Whether no key has a value.
    pub fn is_empty(&self) -> bool {
        self.store.live() == 0
    }

    /// How many bytes keys and values have; keys that were deleted still count.
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// Looks for what can never be.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut named = 0;
        for (slot, entry) in self.store.since(Slot(0)) {
            let busy = self.unsettled.get(entry);
            named += usize::from(busy.is_some());
            if !entry.is_valid() && busy.is_none_or(|busy| busy.slot != slot) {
                return Err(format!("states: {:?} names another key", entry.key));
            }
            if self.unsettled.own(entry).is_some_and(|own| own.ts > entry.ts) {
                return Err(format!("order: {:?} is behind its own update", entry.key));
            }
        }
        let busy = self.unsettled.iter().count();
        if named != busy || self.unsettled.is_empty() != (busy == 0) {
            return Err(format!("states: {busy} keys are under way, {named} are not Valid"));
        }
        let live = self.store.since(Slot(0)).filter(|(_, entry)| entry.value.is_some());
        if live.count() != self.store.live() {
            return Err(format!("live: not {}", self.store.live()));
        }
        let parked: usize = self.unsettled.iter().map(|busy| busy.parked.len()).sum();
        if parked != self.unsettled.parked {
            return Err(format!("parked: {parked}, not {}", self.unsettled.parked));
        }
        let bytes: usize = self.unsettled.iter().map(|busy| busy.bytes()).sum();
        if bytes != self.unsettled.bytes {
            return Err(format!("under way: {bytes} bytes, not {}", self.unsettled.bytes));
        }
        Ok(())
    }

    /// Whether it is a member that may serve, with a lease or without one now.
    pub fn is_live(&self) -> bool {
        self.members.i_am_live
    }

    pub(crate) fn send(&self, to: NodeId, body: Body, out: &mut Outbox<Self>) {
        out.send(to, Message { epoch: self.members.epoch(), body });
    }

    pub(crate) fn broadcast(&self, body: &Body, out: &mut Outbox<Self>) {
        let others = self.members.followers().iter().filter(|node| **node != self.me);
        others.for_each(|node| self.send(*node, body.clone(), out));
    }

    pub(crate) fn answer(&self, token: u64, answer: Answer, out: &mut Outbox<Self>) {
        out.output(Output::Answer { token, answer });
    }

    pub(crate) fn refuse(&self, token: u64, refusal: Refusal, out: &mut Outbox<Self>) {
        self.answer(token, Answer::Refused(refusal), out);
    }

    /// Under which id the next write goes (O2).
    pub(crate) fn writer(&mut self) -> Writer {
        let node = self.me;
        if self.options.virtual_ids < 2 {
            return Writer { draw: 0, node };
        }
        self.draws = self.draws.wrapping_add(1);
        let draw = mix(self.draws) % u64::from(self.options.virtual_ids);
        Writer { draw: draw as u16, node }
    }

    /// When what is said now is to be said again.
    pub(crate) fn due(&self, now: Time) -> Time {
        now + self.options.message_loss_timeout
    }

    /// The same of an update with a value of so many bytes: each MiB has as much time to arrive.
    /// Said too early, a long one would fill the links with itself.
    pub(crate) fn due_of(&self, now: Time, value_len: usize) -> Time {
        let mib = u32::try_from(value_len >> 20).expect("a value that is shorter than memory");
        now + self.options.message_loss_timeout * (mib + 1)
    }

    fn on_read(&mut self, now: Time, token: u64, key: &Bytes, out: &mut Outbox<Self>) {
        if !self.serves(now) {
            return self.refuse(token, Refusal::NotServing, out);
        }
        let Some(slot) = self.store.find(key) else {
            return self.answer_read(now, token, key.clone(), None, out);
        };
        let entry = self.store.get(slot);
        if entry.is_valid() || self.mutation.is(Mutation::ReadsInvalid) {
            let (key, value) = (key.clone(), entry.value.as_ref().map(Value::to_bytes));
            return self.answer_read(now, token, key, value, out);
        }
        self.park(now, slot, Parked::Read { token }, out);
    }

    fn on_update(&mut self, now: Time, request: Request<M>, out: &mut Outbox<Self>) {
        if !self.serves(now) {
            return self.refuse(request.token, Refusal::NotServing, out);
        }
        let found = self.store.find(&request.key);
        match found.filter(|slot| !self.store.get(*slot).is_valid()) {
            Some(slot) => self.park(now, slot, Parked::Update(request, 0), out),
            None => self.start(now, (request, Tried::default()), found, out),
        }
    }

    /// A request that is asked again while it is under way waits for it, and finds its answer.
    fn park(&mut self, now: Time, slot: Slot, parked: Parked<M>, out: &mut Outbox<Self>) {
        if self.unsettled.parked >= self.options.parked_max {
            let token = match &parked {
                Parked::Read { token } => *token,
                Parked::Update(request, _) => request.token,
            };
            return self.refuse(token, Refusal::Full, out);
        }
        let due = self.due(now);
        self.unsettled.park_one((slot, self.store.get_mut(slot)), due, parked);
    }

    fn on_message(&mut self, now: Time, from: NodeId, message: Message, out: &mut Outbox<Self>) {
        let Message { epoch, body } = message;
        let current = epoch == self.members.epoch() && self.members.contains(from);
        let counts_old = self.mutation.is(Mutation::CountsOldEpochs);
        match body {
            Body::Val { key, ts } => self.on_val(now, &key, ts, out),
            Body::Installed { asks, settled } => {
                self.on_installed((from, epoch), asks, settled, out);
            }
            Body::Ack { key, ts } if current || counts_old => {
                self.on_ack(now, from, &key, ts, out);
            }
            Body::Acks(numbers) if current || counts_old => {
                self.on_acks(now, from, &numbers, out);
            }
            _ if !current => {} // Said again in the epoch of both.
            Body::Inv(update) => self.on_inv(now, from, update, out),
            Body::Invs { first, ended, updates } => {
                let updates = Arc::unwrap_or_clone(updates);
                self.on_invs(now, from, (first, ended), updates, out);
            }
            Body::Ack { .. } | Body::Acks(_) => {}
            Body::Vals(numbers) => self.on_vals(now, from, &numbers, out),
            Body::Probe { key, ts } => self.on_probe(from, &key, ts, out),
            Body::Check { round } => self.send(from, Body::CheckOk { round }, out),
            Body::CheckOk { round } => self.on_check_ok(from, round, out),
            Body::Fetch(cursor) => self.on_fetch(from, cursor, out),
            Body::Chunk(chunk) => self.on_chunk(now, from, chunk, out),
        }
    }

    pub(crate) fn on_command(&mut self, now: Time, command: Command<M>, out: &mut Outbox<Self>) {
        match command {
            Command::Read { token, key } => self.on_read(now, token, &key, out),
            Command::Update(request) => self.on_update(now, request, out),
            Command::Install(membership) => self.on_install(now, membership, out),
            Command::Lease { until } => self.lease = self.lease.max(until),
            Command::Forget(client) => {
                self.note(|| Record::Forgotten(client), out);
                self.completions.forget(client);
            }
            Command::ForgetBefore(client) => {
                self.note(|| Record::ForgottenBefore(client), out);
                self.completions.forget_before(client);
            }
            Command::Watch(on) => {
                self.watched = on;
                if on {
                    out.output(Output::Watching);
                }
            }
        }
    }

    /// Whether so much is under way that what is asked waits ([`Options::under_way_bytes`]). The
    /// owner should take nothing more from its clients then.
    pub fn is_full(&self) -> bool {
        !self.held_up.is_empty() || self.unsettled.bytes >= self.options.under_way_bytes
    }

    /// What the owner asks waits while too much is under way.
    fn on_asked(&mut self, now: Time, command: Command<M>, out: &mut Outbox<Self>) {
        match command {
            Command::Read { .. } | Command::Update(_) if self.is_full() => {
                self.held_up.push_back(command);
            }
            command => self.on_command(now, command, out),
        }
    }

    /// Goes on with what was asked, as far as there is room.
    fn go_on(&mut self, now: Time, out: &mut Outbox<Self>) {
        while self.unsettled.bytes < self.options.under_way_bytes {
            let Some(command) = self.held_up.pop_front() else { return };
            self.on_command(now, command, out);
        }
    }

    /// Whether anything may have to be said again.
    fn waits(&self) -> bool {
        let waits = self.joining.as_ref().is_some_and(|joining| !joining.is_complete());
        !self.unsettled.is_empty()
            || self.checks.is_under_way()
            || waits
            || !self.installed.are_all_settled(&self.members, self.me)
    }
}

impl<M: Modify> Process for Hermes<M> {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command<M>;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => self.end_log(out),
            Event::Message { from, message } => self.on_message(now, from, message, out),
            Event::Command(command) => self.on_asked(now, command, out),
            Event::Timer(Timer::Tick) => {
                self.ticking = false;
                self.on_tick(now, out);
            }
            Event::Restarted(peer) => self.resync(peer, out),
            Event::Idle => {
                self.send_batches(out);
                self.begin_check(out);
            }
        }
        self.go_on(now, out);
        if !self.ticking && self.waits() {
            self.ticking = true;
            out.timer(now + self.options.message_loss_timeout / 2, Timer::Tick);
        }
    }

    fn replay(&mut self, record: Record) {
        self.read_record(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        self.all_records()
    }
}
