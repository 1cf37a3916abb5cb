//! A replica behind a network that loses, repeats and reorders: what TCP hides, and Paxos need not rely on.
//!
//! The links of [`crate::World`] keep the order and lose only at crashes and resets. So each replica is wrapped in a
//! process that does with what comes in what such a network would.

use super::service::Registers;
use crate::world::Random;
use meridian_core::{Effect, Event, Outbox, Process, ProcessId, Time, Token};
use meridian_paxos::{Command, Message, Output, Paxos, Record};
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Timers from here on are those of messages that come late.
const LATE: u64 = 1000;

/// How bad the network is, in thousandths of all messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// So many are lost.
    pub lost: u32,
    /// So many come again.
    pub repeated: u32,
    /// So many come later than those behind them.
    pub delayed: u32,
    /// By how much at most.
    pub delay: Duration,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Lossy {
    /// The replica.
    pub paxos: Paxos<Registers>,
    random: Random,
    loss: Rc<Cell<Loss>>,
    late: BTreeMap<u64, (ProcessId, Message)>,
    numbered: u64,
}

impl Lossy {
    /// Wraps a replica; `loss` can be changed later. `seed` must differ between any two starts.
    pub fn new(paxos: Paxos<Registers>, loss: Rc<Cell<Loss>>, seed: u64) -> Lossy {
        let random = Random::seed_from_u64(seed ^ 0x1055);
        Lossy { paxos, random, loss, late: BTreeMap::new(), numbered: LATE }
    }

    fn happens(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.random.random_range(0..1000) < thousandths
    }

    /// Whether the message goes on now.
    fn passes(
        &mut self,
        now: Time,
        from: ProcessId,
        message: &Message,
        out: &mut Outbox<Self>,
    ) -> bool {
        let loss = self.loss.get();
        if self.happens(loss.lost) {
            return false;
        }
        let passes = !self.happens(loss.delayed);
        if !passes || self.happens(loss.repeated) {
            let most = u64::try_from(loss.delay.as_nanos()).unwrap_or(u64::MAX);
            let after = Duration::from_nanos(self.random.random_range(0..=most));
            self.numbered += 1;
            self.late.insert(self.numbered, (from, message.clone()));
            out.timer(now + after, Token(self.numbered));
        }
        passes
    }
}

impl Process for Lossy {
    type Peer = ProcessId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let event = match event {
            Event::Started => Event::Started,
            Event::Message { from, message } => {
                if !self.passes(now, from, &message, out) {
                    return;
                }
                Event::Message { from, message }
            }
            // Who is full reads no clients.
            Event::Command(Command::Request(_)) if self.paxos.is_full() => return,
            Event::Command(command) => Event::Command(command),
            Event::Timer(Token(token)) => match self.late.remove(&token) {
                Some((from, message)) => Event::Message { from, message },
                None if token > LATE => return,
                None => Event::Timer(Token(token)),
            },
            Event::Restarted(peer) => Event::Restarted(peer),
            Event::Idle => Event::Idle,
        };
        let mut inner = Outbox::new();
        self.paxos.step(now, event, &mut inner);
        for effect in inner.drain() {
            match effect {
                Effect::Send { to, message } => out.send(to, message),
                Effect::Persist(record) => out.persist(record),
                Effect::Note(record) => out.note(record),
                Effect::Output(output) => out.output(output),
                Effect::Timer { at, token } => out.timer(at, token),
            }
        }
    }

    fn replay(&mut self, record: Record) {
        self.paxos.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        self.paxos.checkpoint()
    }
}
