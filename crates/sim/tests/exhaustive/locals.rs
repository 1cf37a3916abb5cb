//! The processes of a model by number: each step of the real code is taken once, and looked up from then on.
//!
//! A state of the model is then a few numbers, however large the states of processes are, and the same state of a
//! process is met in very many states of the model.

use crate::model::Checked;
use meridian_core::{Effect, Event, MessageId, Outbox, ProcessId, Table, Time, Token};
use meridian_multicast::Protocol;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// What travels together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Nothing: another message may come between any two. So all is explored that can happen.
    Single,
    /// What a process sends to another in one step, after the same record: so it is as good as always with a real
    /// runtime, which writes out what is there.
    Step,
}

/// What a process is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A frame, by number.
    Frame(u32),
    /// Its timer fires.
    Timer,
}

/// What a step leads to.
#[derive(Debug)]
pub struct Step {
    /// The state of the process then.
    pub next: u32,
    /// Frames, and to whom, in order.
    pub sends: Vec<(usize, u32)>,
    /// Messages, in order.
    pub delivers: Vec<usize>,
    /// An assertion in the process failed.
    pub failed: bool,
}

impl Step {
    /// Whether it leaves a process in that state and has no effect.
    fn is_inert(&self, process: u32) -> bool {
        self.next == process && self.sends.is_empty() && self.delivers.is_empty() && !self.failed
    }
}

/// Values by number.
struct Pool<T> {
    values: Vec<T>,
    numbers: Table<u64, Vec<u32>>,
}

impl<T: Hash + PartialEq> Pool<T> {
    fn new() -> Self {
        Pool { values: Vec::new(), numbers: Table::default() }
    }

    fn number(&mut self, value: T) -> u32 {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        let numbers = self.numbers.or_insert_with(hasher.finish(), Vec::new);
        let known = numbers.iter().find(|number| self.values[**number as usize] == value);
        known.copied().unwrap_or_else(|| {
            let number = u32::try_from(self.values.len()).expect("fewer than the memory holds");
            numbers.push(number);
            self.values.push(value);
            number
        })
    }
}

struct Known<P: Protocol> {
    processes: Pool<P>,
    frames: Pool<(ProcessId, Vec<P::Message>)>,
    steps: Table<(u32, Input, Time), Arc<Step>>,
    /// From which state of a process to which there are steps.
    ways: BTreeSet<(u32, u32)>,
    /// What was absorbed: by which process, in which state, which frame.
    absorbed: BTreeSet<(usize, u32, u32)>,
}

/// See the module's documentation.
pub struct Locals<P: Protocol> {
    ids: Vec<ProcessId>,
    frames: Frames,
    /// The names of messages.
    sent: Vec<MessageId>,
    known: Mutex<Known<P>>,
}

impl<P: Checked> Locals<P> {
    /// With these processes and messages.
    pub fn new(ids: Vec<ProcessId>, frames: Frames, sent: Vec<MessageId>) -> Locals<P> {
        let (processes, pool) = (Pool::new(), Pool::new());
        let (steps, ways, absorbed) = (Table::default(), BTreeSet::new(), BTreeSet::new());
        let known = Mutex::new(Known { processes, frames: pool, steps, ways, absorbed });
        Locals { ids, frames, sent, known }
    }

    /// The number of a state of a process.
    pub fn process(&self, process: P) -> u32 {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).processes.number(process)
    }

    /// The state with that number.
    pub fn value(&self, process: u32) -> P {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.processes.values[process as usize].clone()
    }

    /// The number of a frame.
    pub fn frame(&self, from: ProcessId, messages: Vec<P::Message>) -> u32 {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).frames.number((from, messages))
    }

    /// How many states of processes there are, and steps.
    pub fn counts(&self) -> (usize, usize) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (known.processes.values.len(), known.steps.len())
    }

    /// What a process does with what comes together, and then that there is nothing more.
    pub fn step(&self, at: usize, process: u32, input: Input, now: Time) -> Arc<Step> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = known.steps.get(&(process, input, now)) {
            return Arc::clone(step);
        }
        let step = Arc::new(self.take(&mut known, at, process, input, now));
        known.steps.insert((process, input, now), Arc::clone(&step));
        known.ways.insert((process, step.next));
        step
    }

    /// Whether the frame has no effect on the process; it is absorbed then. That is right if it stays so: see
    /// [`Locals::check_absorbed`].
    pub fn absorbs(&self, at: usize, process: u32, frame: u32, now: Time) -> bool {
        let inert = self.step(at, process, Input::Frame(frame), now).is_inert(process);
        if inert {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.absorbed.insert((at, process, frame));
        }
        inert
    }

    /// Checks that what was absorbed would have had no effect later either, in any state that its receiver came to from
    /// the one in which it was absorbed. How many pairs of a state and a frame that were.
    ///
    /// # Panics
    /// If it would have.
    pub fn check_absorbed(&self, now: Time) -> usize {
        let (ways, mut checked) = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            (known.ways.clone(), known.absorbed.clone())
        };
        let mut todo: Vec<_> = checked.iter().copied().collect();
        while let Some((at, process, frame)) = todo.pop() {
            let step = self.step(at, process, Input::Frame(frame), now);
            assert!(step.is_inert(process), "frame {frame} was absorbed and has an effect later");
            let next = ways.range((process, 0)..=(process, u32::MAX)).map(|(_, next)| *next);
            todo.extend(next.map(|next| (at, next, frame)).filter(|pair| checked.insert(*pair)));
        }
        checked.len()
    }

    fn take(&self, known: &mut Known<P>, at: usize, number: u32, input: Input, now: Time) -> Step {
        let mut process = known.processes.values[number as usize].clone();
        let events: Vec<Event<P>> = match input {
            Input::Timer => vec![Event::Timer(Token(0))],
            Input::Frame(frame) => {
                let (from, messages) = &known.frames.values[frame as usize];
                let messages = messages.iter().cloned();
                messages.map(|message| Event::Message { from: *from, message }).collect()
            }
        };
        let (mut out, events) = (Outbox::new(), events.into_iter().chain([Event::Idle]));
        let taken = catch_unwind(AssertUnwindSafe(|| {
            events.for_each(|event| process.step(now, event, &mut out));
        }));
        let (sends, delivers, failed) = (Vec::new(), Vec::new(), taken.is_err());
        let mut step = Step { next: number, sends, delivers, failed };
        if !failed {
            step.next = known.processes.number(process);
            self.carry_out(known, at, out, &mut step);
        }
        step
    }

    fn carry_out(&self, known: &mut Known<P>, at: usize, mut out: Outbox<P>, step: &mut Step) {
        let mut records = 0;
        let mut frames: BTreeMap<(usize, usize), Vec<P::Message>> = BTreeMap::new();
        for (number, effect) in out.drain().enumerate() {
            match effect {
                Effect::Send { to, message } => {
                    // What is sent to the client is of no interest.
                    let Some(to) = self.ids.iter().position(|id| *id == to) else { continue };
                    let frame = if self.frames == Frames::Single { number } else { records };
                    frames.entry((frame, to)).or_default().push(message);
                }
                Effect::Output(output) => {
                    if let Some(delivery) = P::delivery(output) {
                        let id = delivery.start.id;
                        let message = self.sent.iter().position(|sent| *sent == id);
                        step.delivers.push(message.expect("it was multicast"));
                    }
                }
                Effect::Persist(_) => records += 1,
                _ => {}
            }
        }
        for ((_, to), messages) in frames {
            step.sends.push((to, known.frames.number((self.ids[at], messages))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{ClientId, GroupId};
    use meridian_multicast::{Message, PrimCast, Start};
    use meridian_sim::search::Cluster;
    use std::time::Duration;

    /// A START that comes again is answered, and the client is no part of the model.
    #[test]
    #[should_panic(expected = "has an effect later")]
    fn what_has_an_effect_later_must_not_be_absorbed() {
        let make = |me, groups: &_| PrimCast::new(me, Arc::clone(groups));
        let cluster = Cluster::new(&[1], 1, make).settle(Duration::from_secs(3));
        let (ids, processes): (Vec<_>, Vec<_>) = cluster.processes().unzip();
        let start = |name| {
            let id = MessageId { client: ClientId(name), sequence: 1 };
            Start::new(id, [GroupId(0)], Vec::new())
        };
        let names = [1, 2].map(|name| start(name).id).to_vec();
        let locals: Locals<PrimCast> = Locals::new(ids[..1].to_vec(), Frames::Single, names);
        let process = locals.process(processes[0].clone());
        let frames =
            [1, 2].map(|name| locals.frame(ids[1], vec![Message::Start(Arc::new(start(name)))]));
        let now = cluster.now();
        assert!(!locals.absorbs(0, process, frames[0], now), "it is delivered");
        let next = locals.step(0, process, Input::Frame(frames[0]), now).next;
        assert!(locals.absorbs(0, next, frames[0], now), "it comes twice");
        assert_eq!(locals.check_absorbed(now), 1);
        // As if the other had been taken to have no effect before the first came.
        locals.known.lock().unwrap().absorbed.insert((0, process, frames[1]));
        locals.check_absorbed(now);
    }
}
