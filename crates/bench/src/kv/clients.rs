//! The clients of one replica, on its thread: each asks for some keys at once, and for more when
//! all is answered.

use super::cluster::Setup;
use super::contender::Contender;
use crate::harness::draw::Draw;
use crate::harness::latency::histogram;
use bytes::{BufMut, Bytes, BytesMut};
use hdrhistogram::Histogram;
use meridian_core::{Key, NodeId, Time, Value, mix};
use meridian_runtime::{Application, At};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tokio::sync::oneshot;

/// So many requests are begun in one batch of the engine at most: then sockets have their turn.
const TURN: usize = 256;
/// While the store is filled each replica has so many writes in flight.
const FILLING: u32 = 512;
/// The tokens of those writes have this bit.
const FILLS: u64 = 1 << 63;

/// The part of a run; a request counts in the part in which it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Each key is written once.
    Fill = 0,
    /// Under load, not measured.
    WarmUp = 1,
    /// Measured.
    Measured = 2,
    /// Nothing more is asked.
    Drain = 3,
}

/// What all clients of a run share.
#[derive(Debug)]
pub struct Control {
    phase: AtomicU8,
    /// Answered requests of each replica's clients, for the display while it runs.
    pub completed: Vec<AtomicU64>,
}

impl Control {
    pub fn new(replicas: u16) -> Control {
        let completed = std::iter::repeat_with(AtomicU64::default).take(replicas.into()).collect();
        Control { phase: AtomicU8::new(Phase::Fill as u8), completed }
    }

    pub fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }
}

/// What the clients of a replica are asked.
pub enum Ask {
    /// Join the others.
    Begin,
    /// Write this replica's share of the keys.
    Fill,
    /// Put load on the replica.
    Load,
    /// Tell how it stands.
    Report(oneshot::Sender<Report>),
}

/// How a replica and its clients stand.
#[derive(Clone, Debug)]
pub struct Report {
    /// Requests that are not answered.
    pub pending: u64,
    /// A hash of all that the replica holds.
    pub digest: u64,
    pub reads_ns: Histogram<u64>,
    pub writes_ns: Histogram<u64>,
    /// Reads that the replica's own memory did not answer at once.
    pub asked: u64,
    /// Why a request was not answered.
    pub refused: Option<String>,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
struct Asked {
    since: Time,
    is_write: bool,
}

/// See the module's documentation.
pub struct Clients {
    setup: Arc<Setup>,
    control: Arc<Control>,
    me: NodeId,
    keys: Vec<Bytes>,
    draw: Draw,
    random: ChaCha8Rng,
    /// The next key to be filled in.
    next: u32,
    /// How many requests of each client are not answered.
    open: Vec<u32>,
    /// By token: that of the n-th request of a client is behind those of all before it.
    asked: Vec<Asked>,
    /// Who may ask again, and since when.
    ready: VecDeque<(u32, Time)>,
    pending: u64,
    written: u64,
    report: Report,
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Clients {
    pub fn new(setup: Arc<Setup>, control: Arc<Control>, me: NodeId) -> Clients {
        let (clients, pipeline) = (setup.clients as usize, setup.pipeline as usize);
        // Of its own, so that threads do not count references together.
        let key = |number| Bytes::from(mix(u64::from(number)).to_be_bytes().to_vec());
        let asked = Asked { since: Time(0), is_write: false };
        let [reads_ns, writes_ns] = std::array::from_fn(|_| histogram());
        let report = Report { pending: 0, digest: 0, reads_ns, writes_ns, asked: 0, refused: None };
        Clients {
            me,
            keys: (0..setup.keys).map(key).collect(),
            draw: Draw::new(setup.distribution, setup.keys),
            random: ChaCha8Rng::seed_from_u64(u64::from(me.0) + 1),
            next: me.0.into(),
            open: vec![0; clients],
            asked: vec![asked; clients * pipeline],
            ready: VecDeque::new(),
            pending: 0,
            written: 0,
            report,
            wake: None,
            setup,
            control,
        }
    }

    /// A value that no other write has.
    fn value(&mut self) -> Bytes {
        self.written += 1;
        let len = self.setup.value_bytes as usize;
        let mut value = BytesMut::with_capacity(len.max(16));
        value.put_u64(self.written);
        value.put_u64(self.me.0.into());
        value.put_bytes(b'v', len.saturating_sub(16));
        value.truncate(len);
        value.freeze()
    }

    fn fill<P: Contender>(&mut self, at: &mut At<'_, P>) {
        if self.next < self.setup.keys {
            let (key, value) = (self.keys[self.next as usize].clone(), self.value());
            at.command(P::write(FILLS, key, value));
            self.next += u32::from(self.setup.replicas);
            self.pending += 1;
        }
    }

    fn record(&mut self, asked: Asked, now: Time) {
        if self.control.is(Phase::Measured) {
            let latency = now.0.saturating_sub(asked.since.0).max(1);
            let Report { reads_ns, writes_ns, .. } = &mut self.report;
            let histogram = if asked.is_write { writes_ns } else { reads_ns };
            histogram.saturating_record(latency);
        }
    }

    /// A client asks for as much as it may at once.
    fn ask<P: Contender>(&mut self, at: &mut At<'_, P>, client: u32, since: Time) -> Time {
        let mut now = since;
        let mut answered = 0;
        for request in 0..self.setup.pipeline {
            let key = &self.keys[self.draw.next(&mut self.random) as usize];
            let is_write = self.random.random_range(0..100) < self.setup.writes_percent;
            let asked = Asked { since, is_write };
            if !is_write && at.process.read_here(at.now, key).is_some() {
                now = at.time();
                answered += 1;
                self.record(asked, now);
                continue;
            }
            let at_once = u64::from(client) * u64::from(self.setup.pipeline) + u64::from(request);
            let (token, key) = (at_once, key.clone());
            self.asked[token as usize] = asked;
            self.open[client as usize] += 1;
            self.pending += 1;
            if is_write {
                let value = self.value();
                at.command(P::write(token, key, value));
            } else {
                self.report.asked += u64::from(self.control.is(Phase::Measured));
                at.command(P::read(token, key));
            }
        }
        self.control.completed[usize::from(self.me.0)].fetch_add(answered, Ordering::Relaxed);
        now
    }

    /// All ask who may, as far as it is their turn.
    fn ask_ready<P: Contender>(&mut self, at: &mut At<'_, P>) {
        let mut begun = 0;
        while begun < TURN
            && let Some((client, since)) = self.ready.pop_front()
        {
            if self.control.is(Phase::Drain) {
                continue;
            }
            begun += self.setup.pipeline as usize;
            let now = self.ask(at, client, since);
            if self.open[client as usize] == 0 {
                self.ready.push_back((client, now));
            }
        }
        if let Some(wake) = &self.wake
            && !self.ready.is_empty()
        {
            wake(); // They go on in the next batch.
        }
    }

    fn on_answer<P: Contender>(&mut self, at: &mut At<'_, P>, token: u64, now: Time) {
        self.pending -= 1;
        if token & FILLS != 0 {
            return self.fill(at);
        }
        self.control.completed[usize::from(self.me.0)].fetch_add(1, Ordering::Relaxed);
        self.record(self.asked[token as usize], now);
        let client = (token / u64::from(self.setup.pipeline)) as u32;
        self.open[client as usize] -= 1;
        if self.open[client as usize] == 0 {
            self.ready.push_back((client, now));
        }
    }

    /// A hash of what is held that no order changes.
    fn digest<P: Contender>(process: &P) -> u64 {
        let hash = |bytes: &[u8]| {
            bytes.iter().fold(0, |hash: u64, byte| mix(hash.rotate_left(8) ^ u64::from(*byte)))
        };
        let entry = |(key, value): (&Key, Option<&Value>)| {
            mix(hash(key) ^ value.map_or(1, |value| hash(value)).rotate_left(32))
        };
        process.held().map(entry).fold(0, u64::wrapping_add)
    }
}

impl<P: Contender> Application<P> for Clients {
    type Request = Ask;

    fn on_request(&mut self, at: &mut At<'_, P>, ask: Ask) {
        match ask {
            Ask::Begin => {
                let nodes: Vec<_> = (0..self.setup.replicas).map(NodeId).collect();
                P::begin(&nodes).into_iter().for_each(|command| at.command(command));
            }
            Ask::Fill => (0..FILLING).for_each(|_| self.fill(at)),
            Ask::Load => {
                let now = at.time();
                self.ready.extend((0..self.setup.clients).map(|client| (client, now)));
            }
            Ask::Report(answer) => {
                let pending = self.pending;
                let digest = if pending == 0 { Clients::digest(at.process) } else { 0 };
                let report = Report { pending, digest, ..self.report.clone() };
                let _ = answer.send(report); // Who asked has given up.
            }
        }
    }

    fn on_output(&mut self, at: &mut At<'_, P>, output: P::Output) {
        match P::answered(output) {
            Some(Ok(token)) => self.on_answer(at, token, at.now),
            Some(Err(why)) => self.report.refused = Some(why),
            None => {}
        }
    }

    /// Whoever has been answered asks at once.
    fn on_told(&mut self, at: &mut At<'_, P>) {
        self.ask_ready(at);
    }

    fn on_batch(&mut self, at: &mut At<'_, P>) {
        self.ask_ready(at);
    }

    fn on_waker(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.wake = Some(wake);
    }
}
