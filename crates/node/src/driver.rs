//! Events into the process, effects out of it.
//!
//! The driver takes what is ready, a bounded batch, then lets the process send what it held back,
//! and wakes the tasks that write. The disk works meanwhile: what waits for it waits in the gate.

use crate::error::ServerError;
use crate::journal::Journal;
use crate::service::Service;
use crate::shared::{Input, Shared};
use meridian_core::{Effect, Event, NodeId, Outbox, Time, Token};
use meridian_host::Output;
use meridian_runtime::gate::Gate;
use meridian_runtime::wire::to_bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use tokio::time::sleep_until;

/// So many events are taken at once: more, and the sockets would starve.
const BATCH: usize = 1024;
/// A log that grew by so many bytes is replaced by a checkpoint.
const CHECKPOINT_BYTES: u64 = 64 << 20;

/// What passes the gate.
enum Passing<P: Service> {
    Send { to: NodeId, message: P::Message },
    Output(P::Output),
}

/// See the module's documentation.
pub(crate) struct Driver<P: Service> {
    process: P,
    shared: Rc<Shared<P>>,
    journal: Box<dyn Journal>,
    gate: Gate<Passing<P>>,
    /// By time, then in the order in which they were set.
    timers: BTreeMap<(Time, u64), Token>,
    timers_set: u64,
    /// What the process sent to itself.
    loopback: VecDeque<P::Message>,
    /// Peers whom something was sent since their writers were woken.
    touched: BTreeSet<NodeId>,
    /// Whether something was persisted since the last flush.
    persisted: bool,
    outbox: Outbox<P>,
}

impl<P: Service> Driver<P> {
    /// Drives `process`, for which the records in `journal` were replayed.
    pub(crate) fn new(
        process: P,
        shared: Rc<Shared<P>>,
        journal: Box<dyn Journal>,
    ) -> Result<Driver<P>, ServerError> {
        let durable = journal.durable().map_err(ServerError::Log)?;
        Ok(Driver {
            process,
            shared,
            journal,
            gate: Gate::new(durable),
            timers: BTreeMap::new(),
            timers_set: 0,
            loopback: VecDeque::new(),
            touched: BTreeSet::new(),
            persisted: false,
            outbox: Outbox::new(),
        })
    }

    /// Runs until the server is to stop.
    pub(crate) async fn run(mut self) -> Result<(), ServerError> {
        self.step(Event::Started);
        self.end_batch();
        let shared = self.shared.clone();
        while !shared.stopping.get() {
            if self.batch()? {
                // Sockets and timers have their turn before the next batch.
                tokio::task::yield_now().await;
                continue;
            }
            let woken = shared.wake.notified();
            match self.timers.first_key_value() {
                None => woken.await,
                Some(((at, _), _)) => {
                    tokio::select! {
                        () = woken => (),
                        () = sleep_until(shared.instant(*at)) => (),
                    }
                }
            }
        }
        self.journal.close().map_err(ServerError::Log)
    }

    /// Takes what is ready; tells whether there was anything.
    fn batch(&mut self) -> Result<bool, ServerError> {
        self.pass_durable()?;
        let mut taken = 0;
        while taken < BATCH && !self.journal.is_full() {
            let Some(input) = self.next_input() else { break };
            match input {
                Input::Event(event) => self.step(event),
                Input::Status { connection, id } => {
                    self.shared.reply(connection, &self.shared.status(&self.process, id));
                }
            }
            taken += 1;
        }
        if taken > 0 {
            self.end_batch();
        } else {
            self.wake_writers();
        }
        Ok(taken > 0)
    }

    /// What comes next: timers that are due, then what was sent from here to here, then the rest.
    fn next_input(&mut self) -> Option<Input<P>> {
        if let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= self.shared.now()
        {
            return Some(Input::Event(Event::Timer(entry.remove())));
        }
        if let Some(message) = self.loopback.pop_front() {
            return Some(Input::Event(Event::Message { from: self.shared.me, message }));
        }
        self.shared.inbox.borrow_mut().pop_front()
    }

    fn end_batch(&mut self) {
        self.step(Event::Idle);
        if self.persisted {
            self.journal.flush();
            self.persisted = false;
        }
        self.wake_writers();
        self.shared.room.notify_waiters();
        if self.journal.bytes_since_checkpoint() > CHECKPOINT_BYTES {
            let records = self.process.checkpoint().map(|record| to_bytes(&record));
            self.journal.checkpoint(Box::new(records));
        }
    }

    /// Steps the process and carries out what it asks for, as far as it may be.
    fn step(&mut self, event: Event<P>) {
        self.process.step(self.shared.now(), event, &mut self.outbox);
        let mut outbox = std::mem::take(&mut self.outbox);
        for effect in outbox.drain() {
            match effect {
                Effect::Persist(record) => {
                    let number = self.journal.append(to_bytes(&record));
                    self.gate.on_persisted(number);
                    self.persisted = true;
                }
                Effect::Note(record) => {
                    self.journal.append(to_bytes(&record));
                }
                Effect::Timer { at, token } => {
                    self.timers_set += 1;
                    self.timers.insert((at, self.timers_set), token);
                }
                Effect::Send { to, message } => self.gate.push(Passing::Send { to, message }),
                Effect::Output(output) => self.gate.push(Passing::Output(output)),
            }
        }
        self.outbox = outbox;
        self.pass();
    }

    /// Lets out what the disk has made durable since the last time.
    fn pass_durable(&mut self) -> Result<(), ServerError> {
        self.gate.on_durable(self.journal.durable().map_err(ServerError::Log)?);
        if let Some(error) = self.shared.blocks.failed() {
            return Err(ServerError::Blocks(error));
        }
        self.pass();
        Ok(())
    }

    fn pass(&mut self) {
        while let Some(passing) = self.gate.pop() {
            match passing {
                Passing::Send { to, message } if to == self.shared.me => {
                    self.loopback.push_back(message);
                }
                Passing::Send { to, message } => {
                    let Some(peer) = self.shared.peer(to) else { continue };
                    peer.link.borrow_mut().send(to_bytes(&message));
                    self.touched.insert(to);
                }
                Passing::Output(output) => match P::told(output) {
                    Output::Reply { connection, reply } => self.shared.reply(connection, &reply),
                    Output::InForce { group, number } => {
                        self.shared.in_force.borrow_mut().insert(group, number);
                        self.shared.told.notify_one();
                    }
                },
            }
        }
    }

    fn wake_writers(&mut self) {
        for node in std::mem::take(&mut self.touched) {
            let Some(peer) = self.shared.peer(node) else { continue };
            if peer.link.borrow().wants_reconnect() {
                tracing::warn!(peer = node.0, "too slow: all that waited for it is dropped");
                peer.close.notify_waiters();
            }
            peer.wake.notify_one();
        }
    }
}
