//! Any protocol behind a network that loses, repeats and reorders: what TCP hides.
//!
//! The links of [`crate::World`] keep the order and lose only at crashes and resets. A [`Lossy`]
//! process does with what comes in what a worse network would.

use crate::world::Random;
use meridian_core::{Embedding, Event, Outbox, Process, Time};
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::time::Duration;

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer<T> {
    /// The protocol's.
    Inner(T),
    /// The network's: the late message with this number arrives.
    Late(u64),
}

impl<T: Debug> Timer<T> {
    /// For a trace.
    pub(crate) fn words(self) -> String {
        match self {
            Timer::Inner(timer) => format!("{timer:?}"),
            Timer::Late(number) => format!("late message {number}"),
        }
    }
}

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

impl Loss {
    /// None, some of each, or much.
    pub(crate) fn drawn(random: &mut Random) -> Loss {
        let ms = Duration::from_millis(1);
        match random.random_range(0..3) {
            0 => Loss::default(),
            1 => Loss { lost: 10, repeated: 50, delayed: 50, delay: 30 * ms },
            _ => Loss {
                lost: random.random_range(0..150),
                repeated: random.random_range(0..200),
                delayed: random.random_range(0..200),
                delay: 80 * ms,
            },
        }
    }
}

/// A process behind such a network.
#[derive(Clone, Debug)]
pub struct Lossy<P: Process> {
    /// The process itself.
    pub inner: P,
    /// Commands for which this holds are lost.
    refuses: fn(&P, &P::Command) -> bool,
    random: Random,
    loss: Rc<Cell<Loss>>,
    late: BTreeMap<u64, (P::Peer, P::Message)>,
    last: u64,
}

impl<P: Process> Lossy<P> {
    /// Wraps a process; `loss` can be changed later. `seed` must differ between any two starts.
    pub fn new(inner: P, loss: Rc<Cell<Loss>>, seed: u64) -> Self {
        let random = Random::seed_from_u64(seed ^ 0x1055);
        Lossy { inner, refuses: |_, _| false, random, loss, late: BTreeMap::new(), last: 0 }
    }

    /// The process also never sees the commands for which `refuses` holds: back-pressure, for one.
    pub fn refusing(self, refuses: fn(&P, &P::Command) -> bool) -> Self {
        Lossy { refuses, ..self }
    }

    fn happens(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.random.random_range(0..1000) < thousandths
    }

    /// Whether the message goes on now.
    fn passes(
        &mut self,
        now: Time,
        from: P::Peer,
        message: &P::Message,
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
            self.last += 1;
            self.late.insert(self.last, (from, message.clone()));
            out.timer(now + after, Timer::Late(self.last));
        }
        passes
    }
}

impl<P: Process> Process for Lossy<P> {
    type Peer = P::Peer;
    type Message = P::Message;
    type Record = P::Record;
    type Command = P::Command;
    type Output = P::Output;
    type Timer = Timer<P::Timer>;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let event = match event {
            Event::Message { from, message } => {
                if !self.passes(now, from, &message, out) {
                    return;
                }
                Some(Event::Message { from, message })
            }
            Event::Command(command) if (self.refuses)(&self.inner, &command) => None,
            Event::Timer(Timer::Late(number)) => {
                let late = self.late.remove(&number);
                late.map(|(from, message)| Event::Message { from, message })
            }
            event => event.inward(|timer| match timer {
                Timer::Inner(timer) => Some(timer),
                Timer::Late(_) => None,
            }),
        };
        let Some(event) = event else { return };
        let mut inner = Outbox::new();
        self.inner.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut Behind);
    }

    fn replay(&mut self, record: P::Record) {
        self.inner.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = P::Record> + Send> {
        self.inner.checkpoint()
    }
}

/// How a process behind the network is seen: it differs in its timers only.
struct Behind;

impl<P: Process> Embedding<P, Lossy<P>> for Behind {
    fn message(&mut self, to: P::Peer, message: P::Message) -> (P::Peer, P::Message) {
        (to, message)
    }

    fn record(&mut self, record: P::Record) -> P::Record {
        record
    }

    fn timer(&mut self, timer: P::Timer) -> Timer<P::Timer> {
        Timer::Inner(timer)
    }

    fn output(&mut self, output: P::Output, out: &mut Outbox<Lossy<P>>) {
        out.output(output);
    }
}
