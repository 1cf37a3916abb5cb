//! Events into the process, effects out of it.
//!
//! Tasks that read sockets step the process with what arrived. When all that was ready is in, the
//! batch ends: the process is told so ([`Event::Idle`]), the application hears what was delivered,
//! and each peer is sent all that is for it in one frame and one write. Nothing waits for a batch
//! to fill.

use crate::application::{Application, At, Networked, Wishes};
use crate::clients::{Clients, ConnectionId};
use crate::clock::Clock;
use crate::error::MemberError;
use crate::peer::Counters;
use crate::peers::Peers;
use crate::store::Store;
use crate::wire::{self, WireError};
use bytes::Bytes;
use meridian_core::hello::ServiceId;
use meridian_core::link::{LinkEvent, Packet};
use meridian_core::room::Room;
use meridian_core::standing::{Acquaintances, Standing};
use meridian_core::{Effect, Endpoint, Event, GroupId, Outbox, Time, Visible};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// So often a process may answer itself and its application before others have their turn.
const ROUNDS: usize = 16;
/// So many bytes of requests are taken into one batch: only its end shows what the process makes of
/// them.
const ASKED_LEN: usize = 1 << 20;
/// What is heard of how far the logs of others go is made durable with what is flushed next, or
/// after so long.
const REMEMBER: Duration = Duration::from_secs(1);
/// How often links are asked at most whether they have only an acknowledgement to send, or want to
/// know how far the peer is.
const SWEEP: Duration = Duration::from_millis(25);

/// See the module's documentation.
pub(crate) struct Engine<P: Networked, A> {
    pub(crate) me: P::Peer,
    pub(crate) clock: Clock,
    pub(crate) peers: Peers<P::Peer>,
    pub(crate) clients: Clients,
    /// How far the logs of others go.
    pub(crate) acquaintances: Acquaintances<P::Peer>,
    /// When what is known of them is to be durable.
    remember_by: Option<Time>,
    /// Whether peers have come since tasks were last told, and those that none has called yet.
    pub(crate) peers_changed: bool,
    pub(crate) new_peers: Vec<usize>,
    /// Who was sent something and is no peer.
    lost: BTreeSet<P::Peer>,
    pub(crate) counters: Arc<Counters>,
    /// The groups that are cut off from all others.
    pub(crate) cut: BTreeSet<GroupId>,
    process: P,
    application: A,
    store: Option<Store<P>>,
    outbox: Outbox<P>,
    /// By time, then in the order in which they were set.
    timers: BTreeMap<(Time, u64), P::Timer>,
    timers_set: u64,
    /// What the process sent to itself.
    loopback: VecDeque<P::Message>,
    outputs: Vec<P::Output>,
    wishes: Wishes<P>,
    /// What clients have asked in this batch, in bytes.
    asked_len: usize,
    /// The peers that something was sent to in this batch.
    touched: Vec<usize>,
    /// Whether anything has happened since the last batch ended.
    stirred: bool,
    sweep: Option<Time>,
    /// The log is long: nothing more is taken in until what it holds back is out.
    wants_checkpoint: bool,
    /// The application could not be saved when it was last asked: the log grows on.
    refuses_checkpoint: bool,
}

impl<P: Networked, A: Application<P>> Engine<P, A> {
    pub(crate) fn new(
        me: P::Peer,
        parts: (P, A, Option<Store<P>>),
        clock: Clock,
        (peers, clients): (Peers<P::Peer>, Clients),
        counters: Arc<Counters>,
    ) -> Engine<P, A> {
        let (process, application, store) = parts;
        let new_peers = (0..peers.len()).collect();
        Engine {
            me,
            clock,
            peers,
            clients,
            acquaintances: Acquaintances::default(),
            remember_by: None,
            peers_changed: true,
            new_peers,
            lost: BTreeSet::new(),
            counters,
            cut: BTreeSet::new(),
            process,
            application,
            store,
            outbox: Outbox::new(),
            timers: BTreeMap::new(),
            timers_set: 0,
            loopback: VecDeque::new(),
            outputs: Vec::new(),
            wishes: Wishes::default(),
            asked_len: 0,
            touched: Vec::new(),
            stirred: false,
            sweep: None,
            wants_checkpoint: false,
            refuses_checkpoint: false,
        }
    }

    /// The member stands here when it starts, and this was written down of others.
    pub(crate) fn restore(&mut self, own: Standing, known: Acquaintances<P::Peer>) {
        self.peers.set_logged(own.logged);
        self.acquaintances = known;
    }

    pub(crate) fn start(&mut self) {
        self.step(self.clock.now(), Event::Started);
    }

    /// Whether sockets are not to be read for now.
    pub(crate) fn is_full(&self) -> bool {
        self.wants_checkpoint
            || self.application.is_full()
            || self.store.as_ref().is_some_and(Store::is_full)
    }

    /// Whether sockets of clients are not to be read for now.
    pub(crate) fn holds_clients(&self) -> bool {
        self.asked_len > ASKED_LEN
            || self.is_full()
            || self.application.holds_clients(&self.process)
    }

    pub(crate) fn serves_clients(&self, service: ServiceId) -> bool {
        self.application.serves_clients(service)
    }

    /// Whether the network between the groups of this member and of that one is cut.
    pub(crate) fn is_cut(&self, from: P::Peer) -> bool {
        let cut = |group: Option<GroupId>| group.is_some_and(|group| self.cut.contains(&group));
        let (ours, theirs) = (self.me.group(), from.group());
        ours != theirs && (cut(ours) || cut(theirs))
    }

    /// What a member is called in messages for people.
    pub(crate) fn name_of(&self, member: P::Peer) -> String {
        self.application.name_of(member)
    }

    pub(crate) fn index(&self, id: P::Peer) -> Option<usize> {
        self.peers.index(id)
    }

    /// Takes what a peer has put into a frame.
    pub(crate) fn on_frame(&mut self, peer: usize, body: &[u8]) -> Result<(), WireError> {
        let packet: Packet = wire::decode(body)?;
        let now = self.clock.now();
        let with = &mut self.peers[peer];
        let (from, was_open) = (with.id, with.link.is_open());
        let events = with.link.on_packet(now, packet)?;
        // Who only says a name is not known: it has spoken now.
        if !was_open
            && with.link.is_open()
            && let Some(standing) = with.greeted
        {
            self.acquaintances.meet(from, standing);
        }
        let due = with.link.poll_timer().map(|due| due.max(now + SWEEP));
        self.sweep = self.sweep.into_iter().chain(due).min();
        for event in events {
            match event {
                LinkEvent::Restarted => self.step(now, Event::Restarted(from)),
                LinkEvent::Message(bytes) => {
                    let (logged, mut rest) = wire::take(&bytes)
                        .inspect_err(|_: &WireError| self.peers[peer].link.reset())?;
                    self.acquaintances.hear(from, logged);
                    while !rest.is_empty() {
                        let message;
                        // It counts as arrived: without a reset both would believe that it did.
                        (message, rest) = wire::take(rest)
                            .inspect_err(|_: &WireError| self.peers[peer].link.reset())?;
                        self.step(now, Event::Message { from, message });
                    }
                }
            }
        }
        self.touch(peer); // The link may have waited for this one to open.
        Ok(())
    }

    /// The application's handle asks something.
    pub(crate) fn on_request(&mut self, request: A::Request) {
        let now = self.clock.now();
        self.with_application(now, |application, at| application.on_request(at, request));
    }

    /// A client has connected.
    pub(crate) fn on_connected(&mut self, client: ConnectionId, service: ServiceId) {
        let now = self.clock.now();
        self.with_application(now, |application, at| {
            application.on_connected(at, client, service);
        });
    }

    /// Takes what a client has put into a frame.
    pub(crate) fn on_asked(&mut self, client: ConnectionId, body: Bytes) -> Result<(), WireError> {
        self.asked_len += body.len();
        let now = self.clock.now();
        self.with_application(now, |application, at| application.on_asked(at, client, body))
    }

    /// Takes what has come from a client that speaks a protocol of its own.
    pub(crate) fn on_bytes(&mut self, client: ConnectionId, bytes: &[u8]) {
        self.asked_len += bytes.len();
        let now = self.clock.now();
        self.with_application(now, |application, at| application.on_bytes(at, client, bytes));
    }

    /// What such a client is told that is turned away.
    pub(crate) fn turned_away(&self) -> &'static [u8] {
        self.application.turned_away()
    }

    /// Does the next thing that such a client asks for; whether there was one.
    pub(crate) fn on_next(&mut self, client: ConnectionId) -> Result<bool, WireError> {
        let now = self.clock.now();
        self.with_application(now, |application, at| application.on_next(at, client))
    }

    /// A client's connection will end for what came on it.
    pub(crate) fn on_bad(&mut self, client: ConnectionId, why: &WireError) {
        let now = self.clock.now();
        self.with_application(now, |application, at| application.on_bad(at, client, why));
    }

    /// A client's connection ends.
    pub(crate) fn on_disconnected(&mut self, client: ConnectionId) {
        let now = self.clock.now();
        self.with_application(now, |application, at| application.on_disconnected(at, client));
    }

    /// The application learns how to wake the member.
    pub(crate) fn on_waker(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.application.on_waker(wake);
    }

    /// The application learns how to end that it is full.
    pub(crate) fn on_room(&mut self, room: Box<dyn Fn() + Send + Sync>) {
        self.application.on_room(room);
    }

    /// Ends the batch; tells whether there is more to do at once.
    pub(crate) fn finish(&mut self) -> Result<bool, MemberError> {
        let now = self.clock.now();
        self.pass_durable(now)?;
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let timer = entry.remove();
            self.step(now, Event::Timer(timer));
        }
        self.with_application(now, |application, at| application.on_batch(at));
        if self.application.due().is_some_and(|due| due <= now) {
            self.with_application(now, |application, at| application.on_due(at));
        }
        for _ in 0..ROUNDS {
            for _ in 0..self.loopback.len() {
                let Some(message) = self.loopback.pop_front() else { break };
                self.step(now, Event::Message { from: self.me, message });
            }
            self.run_commands(now);
            if !self.stirred {
                break;
            }
            self.stirred = false;
            self.step(now, Event::Idle);
            self.tell();
        }
        self.asked_len = 0;
        self.transmit(now); // Before the flush, which may be on this thread.
        self.end_batch(now);
        if let Some(why) = self.wishes.stop.take() {
            return Err(MemberError::Halted(why));
        }
        Ok(self.stirred || !self.loopback.is_empty() || !self.wishes.commands.is_empty())
    }

    fn end_batch(&mut self, now: Time) {
        let Some(store) = &mut self.store else { return };
        if self.acquaintances.is_changed() {
            let by = *self.remember_by.get_or_insert(now + REMEMBER);
            if store.is_persisted() || by <= now {
                store.remember(self.acquaintances.take_changed());
                self.remember_by = None;
            }
        }
        let wanted = store.end_batch();
        // The process is ahead of what the application was told by what the gate holds back.
        if !wanted || !store.gate.is_empty() || !self.outputs.is_empty() {
            self.wants_checkpoint = wanted && !self.refuses_checkpoint;
            return;
        }
        let state = self.application.checkpoint();
        self.refuses_checkpoint = state.is_none();
        self.wants_checkpoint = false;
        if let Some(state) = state {
            store.checkpoint(&self.process, state, self.acquaintances.all());
        }
    }

    /// When [`Engine::finish`] must be called though nothing happens.
    pub(crate) fn due(&self) -> Option<Time> {
        let timer = self.timers.first_key_value().map(|((at, _), _)| *at);
        [timer, self.peers.held_due(), self.sweep, self.application.due(), self.remember_by]
            .into_iter()
            .flatten()
            .min()
    }

    /// Writes to a peer whose connection takes more.
    pub(crate) fn transmit_to(&mut self, peer: usize) {
        let now = self.clock.now();
        self.peers[peer].transmit(now, &self.counters);
    }

    /// Stops what is written to disk.
    pub(crate) fn close(&mut self) -> Result<(), MemberError> {
        let Some(mut store) = self.store.take() else { return Ok(()) };
        if self.acquaintances.is_changed() {
            store.remember(self.acquaintances.take_changed());
        }
        store.close()
    }

    fn run_commands(&mut self, now: Time) {
        let mut commands = std::mem::take(&mut self.wishes.commands);
        for command in commands.drain(..) {
            self.step(now, Event::Command(command));
        }
        if self.wishes.commands.is_empty() {
            self.wishes.commands = commands;
        }
    }

    /// Tells the application what the process has told.
    fn tell(&mut self) {
        if self.outputs.is_empty() {
            return;
        }
        let now = self.clock.now();
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.give_back();
        self.with_application(now, |application, at| {
            outputs.drain(..).for_each(|output| application.on_output(at, output));
            application.on_told(at);
        });
        self.outputs = outputs;
    }

    fn with_application<R>(
        &mut self,
        now: Time,
        run: impl FnOnce(&mut A, &mut At<'_, P>) -> R,
    ) -> R {
        let Engine { application, process, peers, clients, counters, wishes, .. } = self;
        let (me, clock, store) = (self.me, self.clock, self.store.as_ref());
        let mut at = At { now, process, clock, me, peers, counters, store, clients, wishes };
        let result = run(application, &mut at);
        if !self.wishes.delays.is_empty() {
            self.peers.set_delays(std::mem::take(&mut self.wishes.delays));
        }
        if let Some(wanted) = self.wishes.peers.take() {
            self.set_peers(now, &wanted);
        }
        result
    }

    fn set_peers(&mut self, now: Time, wanted: &BTreeMap<P::Peer, String>) {
        let changed = self.peers.set(now, self.me, wanted);
        self.peers_changed = true;
        self.new_peers.extend(changed.new);
        for id in changed.came {
            if self.lost.remove(&id) {
                self.step(now, Event::Restarted(id));
            }
        }
    }

    /// Sends each peer what is for it.
    fn transmit(&mut self, now: Time) {
        let mut touched = std::mem::take(&mut self.touched);
        for index in touched.drain(..) {
            let peer = &mut self.peers[index];
            peer.touched = false;
            peer.transmit(now, &self.counters);
        }
        self.touched = touched;
        self.clients.transmit(&self.counters);
        if self.peers.is_far() {
            for peer in self.peers.iter_mut() {
                if peer.held_due().is_some_and(|due| due <= now) {
                    peer.transmit(now, &self.counters);
                }
            }
        }
        if self.sweep.is_some_and(|at| at <= now) {
            let mut next = None;
            for peer in self.peers.iter_mut() {
                if peer.link.poll_timer().is_some_and(|due| due <= now) {
                    peer.transmit(now, &self.counters);
                }
                next = peer.link.poll_timer().into_iter().chain(next).min();
            }
            self.sweep = next.map(|due| due.max(now + SWEEP));
        }
    }

    /// Steps the process and carries out what it asks for, as far as it may be.
    fn step(&mut self, now: Time, event: Event<P>) {
        self.stirred |= !matches!(event, Event::Idle);
        self.process.step(now, event, &mut self.outbox);
        if self.outbox.is_empty() {
            return;
        }
        let mut outbox = std::mem::take(&mut self.outbox);
        for effect in outbox.drain() {
            let visible = match effect {
                Effect::Persist(record) => {
                    if let Some(store) = &mut self.store {
                        store.persist(&record);
                    }
                    continue;
                }
                Effect::Note(record) => {
                    if let Some(store) = &mut self.store {
                        store.note(&record);
                    }
                    continue;
                }
                Effect::Timer { at, timer } => {
                    self.timers_set += 1;
                    self.timers.insert((at, self.timers_set), timer);
                    continue;
                }
                Effect::Send { to, message } => Visible::Send { to, message },
                Effect::Output(output) => Visible::Output(output),
            };
            match &mut self.store {
                None => self.pass(now, visible),
                Some(store) => store.gate.push(visible),
            }
        }
        self.outbox = outbox;
        self.pass_open(now);
    }

    /// Lets out what the disk has made durable since the last time.
    fn pass_durable(&mut self, now: Time) -> Result<(), MemberError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        store.on_durable()?;
        self.peers.set_logged(store.logged());
        self.pass_open(now);
        self.stirred |= !self.outputs.is_empty(); // To be told.
        Ok(())
    }

    fn pass_open(&mut self, now: Time) {
        while let Some(visible) = self.store.as_mut().and_then(|store| store.gate.pop()) {
            self.pass(now, visible);
        }
    }

    fn pass(&mut self, now: Time, visible: Visible<P>) {
        self.process.passed(now, &visible);
        match visible {
            Visible::Send { to, message } if to == self.me => self.loopback.push_back(message),
            Visible::Send { to, message } => {
                let Some(index) = self.index(to) else {
                    // It is told when there is a connection that what it sent is lost.
                    self.lost.insert(to);
                    return;
                };
                self.peers[index].send(&message);
                self.touch(index);
            }
            Visible::Output(output) => self.outputs.push(output),
        }
    }

    fn touch(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        if !peer.touched {
            peer.touched = true;
            self.touched.push(index);
        }
    }
}
