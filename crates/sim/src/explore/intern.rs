//! States of processes, disks and frames by number: each step of the real code is taken once.

use super::{Comparable, Frames, Model};
use crate::harness;
use meridian_core::{Effect, Event, Outbox, Process, Table, Time};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Values by number.
pub(super) struct Pool<T> {
    /// And their hashes.
    values: Vec<(T, u64)>,
    numbers: Table<u64, Vec<u32>>,
}

impl<T: Hash + PartialEq> Pool<T> {
    fn new() -> Self {
        Pool { values: Vec::new(), numbers: Table::default() }
    }

    pub fn number(&mut self, value: T) -> u32 {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        let hash = hasher.finish();
        let numbers = self.numbers.or_insert_with(hash, Vec::new);
        let known = numbers.iter().find(|number| self.values[**number as usize].0 == value);
        known.copied().unwrap_or_else(|| {
            let number = u32::try_from(self.values.len()).expect("fewer than the memory holds");
            numbers.push(number);
            self.values.push((value, hash));
            number
        })
    }

    pub fn value(&self, number: u32) -> &T {
        &self.values[number as usize].0
    }

    /// Equal for equal values, also of another pool.
    pub fn hash(&self, number: u32) -> u64 {
        self.values[number as usize].1
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }
}

/// What a process is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// What came together from another process.
    Frame(u32),
    /// An event from outside.
    Event(u32),
    /// Its timer fires.
    Timer,
    /// It starts again.
    Start,
}

/// Where and when a process is given something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub at: usize,
    pub process: u32,
    pub disk: u32,
    pub now: Time,
}

/// What a step leads to.
pub(super) struct Step<P: Process> {
    /// The state of the process then.
    pub next: u32,
    /// And its disk.
    pub disk: u32,
    /// Frames, and to whom, in order.
    pub sends: Arc<Vec<(usize, u32)>>,
    /// What it told its owner.
    pub outputs: Arc<Vec<P::Output>>,
    /// Whether an assertion in the process failed.
    pub failed: bool,
}

type FrameOf<P> = (<P as Process>::Peer, Vec<<P as Process>::Message>);
/// The process and its disk, what it is given, and when.
type Key = (u32, u32, Input, Time);

/// All that was met.
pub(super) struct Interned<M: Model> {
    ids: Vec<<M::Process as Process>::Peer>,
    together: Frames,
    /// Nobody starts again, so what is persisted makes no difference.
    pub forgets_disks: bool,
    pub processes: Pool<M::Process>,
    pub disks: Pool<Vec<<M::Process as Process>::Record>>,
    pub observed: Pool<M::Observed>,
    frames: Pool<ByPeer<M::Process>>,
    /// With the text that tells them apart.
    events: Vec<(String, Vec<Event<M::Process>>)>,
    steps: Table<Key, Step<M::Process>>,
}

/// A frame; a peer is compared by its order only.
pub(super) struct ByPeer<P: Process>(FrameOf<P>);

impl<P: Comparable> PartialEq for ByPeer<P> {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0 && self.0.1 == other.0.1
    }
}

impl<P: Comparable> Hash for ByPeer<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.1.hash(state);
    }
}

impl<M: Model> Interned<M> {
    pub fn new(ids: Vec<<M::Process as Process>::Peer>, together: Frames) -> Self {
        let (processes, disks, frames) = (Pool::new(), Pool::new(), Pool::new());
        let (observed, events, steps) = (Pool::new(), Vec::new(), Table::default());
        let forgets_disks = false;
        Interned { ids, together, forgets_disks, processes, disks, observed, frames, events, steps }
    }

    /// How many states of processes there are, and steps from one to another.
    pub fn counts(&self) -> (usize, usize) {
        (self.processes.len(), self.steps.len())
    }

    /// Events from outside, that come together. There are few.
    pub fn events(&mut self, events: Vec<Event<M::Process>>) -> Input {
        let text = |event: &Event<M::Process>| match event {
            Event::Message { from, message } => format!("{from:?} {message:?}"),
            Event::Command(command) => format!("{command:?}"),
            Event::Restarted(peer) => format!("restarted {peer:?}"),
            Event::Started => "started".into(),
            Event::Timer(token) => format!("{token:?}"),
            Event::Idle => "idle".into(),
        };
        let wanted: String = events.iter().map(text).collect();
        let known = self.events.iter().position(|(known, _)| *known == wanted);
        let number = known.unwrap_or_else(|| {
            self.events.push((wanted, events));
            self.events.len() - 1
        });
        Input::Event(u32::try_from(number).expect("few"))
    }

    /// What came together, as events.
    pub fn frame(&self, number: u32) -> Vec<Event<M::Process>> {
        let frame = self.frames.value(number);
        let (from, messages) = &frame.0;
        let messages = messages.iter().cloned();
        messages.map(|message| Event::Message { from: *from, message }).collect()
    }

    pub fn step(
        &mut self,
        place: Place,
        input: Input,
        timer: &Event<M::Process>,
    ) -> &Step<M::Process> {
        let key = (place.process, place.disk, input, place.now);
        if !self.steps.contains(&key) {
            let step = self.take(place, input, timer);
            self.steps.insert(key, step);
        }
        self.steps.get(&key).expect("inserted above")
    }

    fn take(&mut self, place: Place, input: Input, timer: &Event<M::Process>) -> Step<M::Process> {
        let mut process = self.processes.value(place.process).clone();
        let events: Vec<Event<M::Process>> = match input {
            Input::Timer => vec![timer.clone()],
            Input::Start => vec![Event::Started],
            Input::Event(event) => self.events[event as usize].1.clone(),
            Input::Frame(frame) => self.frame(frame),
        };
        let events = events.into_iter().chain([Event::Idle]);
        let stepped = harness::caught_quietly(|| {
            let mut out = Outbox::new();
            events.for_each(|event| process.step(place.now, event, &mut out));
            (process, out)
        });
        match stepped {
            Some((process, out)) => self.carry_out(place, process, out),
            None => {
                let (sends, outputs) = (Arc::default(), Arc::default());
                Step { next: place.process, disk: place.disk, sends, outputs, failed: true }
            }
        }
    }

    fn carry_out(
        &mut self,
        place: Place,
        process: M::Process,
        mut out: Outbox<M::Process>,
    ) -> Step<M::Process> {
        let (mut records, mut outputs) = (Vec::new(), Vec::new());
        let mut frames: BTreeMap<(usize, usize), Vec<_>> = BTreeMap::new();
        for (number, effect) in out.drain().enumerate() {
            match effect {
                Effect::Send { to, message } => {
                    // What is sent to clients is of no interest.
                    let Some(to) = self.ids.iter().position(|id| *id == to) else { continue };
                    let single = self.together == Frames::Single;
                    let frame = if single { number } else { records.len() };
                    frames.entry((frame, to)).or_default().push(message);
                }
                Effect::Output(output) => outputs.push(output),
                Effect::Persist(record) | Effect::Note(record) => records.push(record),
                Effect::Timer { .. } => {}
            }
        }
        let from = self.ids[place.at];
        let send = |((_, to), messages)| (to, self.frames.number(ByPeer((from, messages))));
        let sends = Arc::new(frames.into_iter().map(send).collect());
        let disk = if records.is_empty() || self.forgets_disks {
            place.disk
        } else {
            let before = self.disks.value(place.disk);
            self.disks.number(before.iter().cloned().chain(records).collect())
        };
        let next = self.processes.number(process);
        Step { next, disk, sends, outputs: Arc::new(outputs), failed: false }
    }
}
