//! The processes of a model by number: each step of the real code is taken once, and looked up from
//! then on.
//!
//! A state of the model is then a few numbers, however large the states of processes are, and the
//! same state of a process is met in very many states of the model.

use crate::futures::Futures;
use crate::model::{Checked, Set};
use crate::movers::Movers;
use meridian_core::{Effect, Event, MessageId, Outbox, ProcessId, Table, Time};
use meridian_multicast::Protocol;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What travels together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Nothing: another message may come between any two. So all is explored that can happen.
    Single,
    /// What a process sends to another in one step, after the same record: so it is as good as
    /// always with a real runtime, which writes out what is there.
    Step,
}

/// What a process is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A frame, by number.
    Frame(u32),
    /// Its timer fires.
    Timer,
    /// A frame that comes at any time, whatever is under way on its link.
    Answer(u32),
}

/// Something that a process is given: which one, in which state, and when.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub at: usize,
    pub process: u32,
    pub input: Input,
    pub now: Time,
}

impl Now {
    fn key(self) -> (u32, Input, Time) {
        (self.process, self.input, self.now)
    }
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

/// Values by number.
pub struct Pool<T> {
    pub(crate) values: Vec<T>,
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

/// What was met.
pub struct Known<P: Protocol> {
    processes: Pool<P>,
    pub(crate) frames: Pool<(ProcessId, Vec<P::Message>)>,
    /// And whether the step was explored, or only looked at.
    steps: Table<(u32, Input, Time), (Arc<Step>, bool)>,
    /// What came to a process in which state, and when.
    pub(crate) inputs: Table<u32, Vec<(Input, Time)>>,
    pub(crate) movers: Movers,
    pub(crate) futures: Arc<Futures>,
}

impl<P: Protocol> Known<P> {
    /// A step, if it was taken before.
    pub(crate) fn step(&self, now: Now) -> Result<&Step, Now> {
        self.steps.get(&now.key()).map(|(step, _)| &**step).ok_or(now)
    }

    /// A step that was looked at may happen; whether that is news.
    pub(crate) fn explored(&mut self, process: u32, input: Input, now: Time) -> bool {
        let step = self.steps.get_mut(&(process, input, now));
        let news = step.is_some_and(|(_, explored)| !std::mem::replace(explored, true));
        if news {
            self.inputs.or_insert_with(process, Vec::new).push((input, now));
        }
        news
    }

    /// How many states of processes there are.
    pub(crate) fn count(&self) -> u32 {
        self.processes.values.len() as u32
    }

    /// The steps that were explored: from where, upon what, to where, and to whom something is
    /// sent.
    pub(crate) fn ways(&self) -> Vec<(u32, Input, u32, Set)> {
        let of = |process: u32| {
            let inputs = self.inputs.get(&process).into_iter().flatten();
            inputs.filter_map(move |(input, now)| {
                let (step, _) = self.steps.get(&(process, *input, *now))?;
                let to = step.sends.iter().fold(0, |all, (to, _)| all | 1 << to);
                Some((process, *input, step.next, to))
            })
        };
        (0..self.count()).flat_map(of).collect()
    }
}

/// See the module's documentation.
pub struct Locals<P: Protocol> {
    ids: Vec<ProcessId>,
    frames: Frames,
    /// The names of messages.
    sent: Vec<MessageId>,
    known: RwLock<Known<P>>,
}

impl<P: Checked> Locals<P> {
    /// With these processes and messages.
    pub fn new(ids: Vec<ProcessId>, frames: Frames, sent: Vec<MessageId>) -> Locals<P> {
        let (processes, pool) = (Pool::new(), Pool::new());
        let (steps, inputs) = (Table::default(), Table::default());
        let (movers, futures) = (Movers::default(), Arc::default());
        let known = Known { processes, frames: pool, steps, inputs, movers, futures };
        let known = RwLock::new(known);
        Locals { ids, frames, sent, known }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Known<P>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Known<P>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many processes there are.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// Where that comes from: a process, by its number, or one more if it is none.
    pub(crate) fn source(&self, known: &Known<P>, input: Input) -> usize {
        let from = match input {
            Input::Frame(frame) => self.place(known.frames.values[frame as usize].0),
            Input::Timer | Input::Answer(_) => None,
        };
        from.unwrap_or(self.count())
    }

    /// Which process that is.
    pub fn place(&self, id: ProcessId) -> Option<usize> {
        self.ids.iter().position(|known| *known == id)
    }

    /// The number of a state of a process.
    pub fn process(&self, process: P) -> u32 {
        self.write().processes.number(process)
    }

    /// The state with that number.
    pub fn value(&self, process: u32) -> P {
        let known = self.read();
        known.processes.values[process as usize].clone()
    }

    /// Whether anything was given, in the search, to a process in such a state.
    pub fn has_met(&self, is_such: impl Fn(&P) -> bool) -> bool {
        let known = self.read();
        let met = (0..).zip(&known.processes.values);
        met.filter(|(number, _)| known.inputs.get(number).is_some()).any(|(_, p)| is_such(p))
    }

    /// The number of a frame.
    pub fn frame(&self, from: ProcessId, messages: Vec<P::Message>) -> u32 {
        self.write().frames.number((from, messages))
    }

    /// The frame with that number.
    pub fn frame_with(&self, number: u32) -> (ProcessId, Vec<P::Message>) {
        self.read().frames.values[number as usize].clone()
    }

    /// How many states of processes there are, and steps.
    pub fn counts(&self) -> (usize, usize) {
        let known = self.read();
        (known.processes.values.len(), known.steps.len())
    }

    /// What a process does with what comes together, and then that there is nothing more;
    /// `explored` unless all is quiet.
    pub fn step(
        &self,
        at: usize,
        process: u32,
        input: Input,
        now: Time,
        explored: bool,
    ) -> Arc<Step> {
        let now = Now { at, process, input, now };
        if let Some((step, met)) = self.read().steps.get(&now.key())
            && (*met || !explored)
        {
            return Arc::clone(step);
        }
        let mut known = self.write();
        let step = self.known_step(&mut known, now);
        if explored {
            known.explored(process, input, now.now);
        }
        step
    }

    pub(crate) fn known_step(&self, known: &mut Known<P>, now: Now) -> Arc<Step> {
        if let Some((step, _)) = known.steps.get(&now.key()) {
            return Arc::clone(step);
        }
        let step = Arc::new(self.take(known, now.at, now.process, now.input, now.now));
        known.steps.insert(now.key(), (Arc::clone(&step), false));
        step
    }

    fn take(&self, known: &mut Known<P>, at: usize, number: u32, input: Input, now: Time) -> Step {
        let mut process = known.processes.values[number as usize].clone();
        let events: Vec<Event<P>> = match input {
            Input::Timer => vec![Event::Timer(P::tick())],
            Input::Frame(frame) | Input::Answer(frame) => {
                let (from, messages) = &known.frames.values[frame as usize];
                let messages = messages.iter().cloned();
                messages.map(|message| Event::Message { from: *from, message }).collect()
            }
        };
        let (mut out, events) = (Outbox::new(), events.into_iter().chain([Event::Idle]));
        let taken = quietly(|| events.for_each(|event| process.step(now, event, &mut out)));
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
                    let Some(to) = self.place(to) else { continue };
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

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// As `catch_unwind`, and nothing is written out: a step that cannot happen may be looked at.
fn quietly(take: impl FnOnce()) -> std::thread::Result<()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                hook(info);
            }
        }));
    });
    QUIET.set(true);
    let taken = catch_unwind(AssertUnwindSafe(take));
    QUIET.set(false);
    taken
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use meridian_core::{ClientId, GroupId};
    use meridian_multicast::{Message, PrimCast, Start};
    use meridian_sim::of::multicast::short::Cluster;
    use std::time::Duration;

    /// A group that has its first primary, and the STARTs of two messages to it: all by number.
    pub(crate) struct Group {
        pub locals: Locals<PrimCast>,
        pub processes: Vec<u32>,
        pub starts: [u32; 2],
        pub now: Time,
    }

    /// A group of that size.
    pub(crate) fn group(size: u16) -> Group {
        let make = |me, groups: &_| PrimCast::new(me, Arc::clone(groups));
        let cluster = Cluster::new(&[size], 1, make).settle(Duration::from_secs(3));
        let mut ids: Vec<_> = cluster.processes().map(|(id, _)| id).collect();
        let client = ids.pop().expect("the last one is the client");
        let start = |name| {
            let id = MessageId { client: ClientId(name), sequence: 1 };
            Start::new(id, [GroupId(0)], Vec::new())
        };
        let names = [1, 2].map(|name| start(name).id).to_vec();
        let locals = Locals::new(ids.clone(), Frames::Single, names);
        let processes = cluster.processes().take(ids.len());
        let processes = processes.map(|(_, process)| locals.process(process.clone())).collect();
        let starts = [1, 2].map(|name| Message::from(Arc::new(start(name))));
        let starts = starts.map(|start| locals.frame(client, vec![start]));
        Group { locals, processes, starts, now: cluster.now() }
    }
}
