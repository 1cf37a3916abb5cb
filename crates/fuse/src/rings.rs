//! Requests over rings of `io_uring`, where the kernel offers that (Linux 6.14).
//!
//! The kernel has a queue for each processor, and puts a request into that of the processor on
//! which somebody asks. A thread on the same processor takes it, so that mostly no other processor
//! must wake up, and one call into the kernel brings replies and fetches requests. Processors on
//! which no thread may run here have queues, too: another's thread serves them.
//!
//! Replies leave by the thread of the ring that brought the request: replies that others give are
//! put on its [`Desk`], and it is woken if it sleeps.
//!
//! `FORGET` and `INTERRUPT` still come through the device, as do all requests if not all queues
//! could be registered: the kernel then uses the device by itself.

use crate::abi::{PAGE, REQUEST_HEADER, ring as abi};
use crate::raw::{Bell, Event, Ring, Slot};
use crate::reply::{Reply, Way, header};
use crate::request::parse_parts;
use crate::session::{Service, Shared};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Which processors there may ever be.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// The queues of all threads have so many entries together at first. Each takes 1 KiB in the
/// kernel, and of its payload what requests have needed.
const ENTRIES: usize = 2048;
/// A queue has so many at first. The kernel gives a request that finds none free to the next entry
/// whose reply comes, not to a new one: so they must be more than wait for each other.
const ENTRIES_OF_QUEUE: RangeInclusive<usize> = 64..=512;
/// A queue of a processor on which no thread may run here has so many.
const ENTRIES_ELSEWHERE: usize = 32;
/// A queue gets as many more when fewer than half of them are free, and has so many times as many
/// at most. What goes beyond waits in the kernel for the reply to any request of its processor.
const STEPS_MAX: usize = 8;

/// The reply to one request.
#[derive(Debug)]
struct Answer {
    number: u32,
    error: i32,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// In the slot, which comes back with it.
    InPlace(Slot, u32),
    /// Still to be put there: the request may be there yet.
    Apart(Vec<u8>),
}

/// Where replies wait for the thread of a ring.
#[derive(Debug)]
struct Desk {
    answers: Mutex<Vec<Answer>>,
    sleeps: AtomicBool,
    bell: Bell,
}

impl Desk {
    fn put(&self, answer: Answer) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        if self.sleeps.swap(false, Ordering::SeqCst)
            && let Err(error) = self.bell.ring()
        {
            // As after an unmount: the thread has ended.
            tracing::debug!("a ring does not take an answer: {error}");
        }
    }

    fn take(&self, answers: &mut Vec<Answer>) {
        std::mem::swap(answers, &mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether the thread may fall asleep: from now on who puts a reply here rings.
    fn is_clear(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// The way to answer one request of a ring.
#[derive(Debug)]
pub(crate) struct Ticket {
    desk: Arc<Desk>,
    number: u32,
    /// Where the body goes, unless the request's own payload is still there.
    slot: Option<Slot>,
}

impl Ticket {
    /// Answers with an error, or with a body.
    ///
    /// # Errors
    /// If the body is longer than the kernel asked for; the answer is `EIO` then.
    pub fn answer(&mut self, error: i32, body: &[u8]) -> io::Result<()> {
        let mut fits = true;
        let body = match self.slot.take() {
            Some(mut slot) => {
                fits = slot.fill(body);
                Body::InPlace(slot, body.len() as u32) // It fits into a slot, or it is dropped.
            }
            None => Body::Apart(body.to_vec()),
        };
        let (number, error) = (self.number, if fits { error } else { -libc::EIO });
        self.desk.put(Answer { number, error, body });
        if fits { Ok(()) } else { Err(io::ErrorKind::FileTooLarge.into()) }
    }
}

/// Threads that have made their rings, and wait for the kernel to know of them.
#[derive(Debug)]
pub(crate) struct Prepared {
    threads: Vec<Starting>,
}

#[derive(Debug)]
struct Starting {
    thread: JoinHandle<io::Result<()>>,
    begin: Sender<()>,
    done: Receiver<io::Result<()>>,
}

impl Starting {
    /// What the thread says of its next step.
    fn done(&self) -> io::Result<()> {
        self.done.recv().unwrap_or_else(|_| Err(io::Error::other("its thread has ended")))
    }
}

impl Prepared {
    /// Makes rings for all processors, with room for `payload` bytes of each request. Threads are
    /// called as `name` says.
    ///
    /// # Errors
    /// If the kernel has no rings for us, or no memory for them.
    pub fn new<S: Service>(shared: &Shared<S>, name: &str, payload: usize) -> io::Result<Prepared> {
        let possible = possible(&std::fs::read_to_string(POSSIBLE)?)
            .ok_or_else(|| io::Error::other(format!("{POSSIBLE} is not understood")))?;
        let allowed = sched_getaffinity(None)?;
        let plan = plan(possible, |cpu| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu));
        let payload = payload.next_multiple_of(PAGE).max(abi::PAYLOAD_MIN);
        let step = ENTRIES / plan.len();
        let step = step.clamp(*ENTRIES_OF_QUEUE.start(), *ENTRIES_OF_QUEUE.end());
        let mut threads = Vec::new();
        for (number, queues) in plan.into_iter().enumerate() {
            let (begin, begun) = channel();
            let (tell, done) = channel();
            let shared = shared.clone();
            let work = move || match Worker::new(shared, queues, step, payload) {
                Ok(worker) => {
                    let _ = tell.send(Ok(())); // Who does not listen drops `begin`, too.
                    match begun.recv() {
                        Ok(()) => worker.work(&tell),
                        Err(_) => Ok(()),
                    }
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    Ok(())
                }
            };
            let name = format!("{name}-ring-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(work)?;
            threads.push(Starting { thread, begin, done });
        }
        threads.iter().map(Starting::done).fold(Ok(()), Result::and)?;
        Ok(Prepared { threads })
    }

    /// Tells the kernel of the rings, to which it has agreed. The threads serve until it is
    /// unmounted, also if only some are known: an error then says why.
    pub fn begin(self) -> (Vec<JoinHandle<io::Result<()>>>, io::Result<()>) {
        for starting in &self.threads {
            let _ = starting.begin.send(()); // A thread that has ended says so below.
        }
        let known = self.threads.iter().map(Starting::done).fold(Ok(()), Result::and);
        (self.threads.into_iter().map(|starting| starting.thread).collect(), known)
    }
}

/// How many processors there may be, of a list as `0-3,8-11`.
fn possible(list: &str) -> Option<usize> {
    let counts = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    counts.sum()
}

/// The queues of one thread, and of which processor it is, if of any.
#[derive(Debug, PartialEq, Eq)]
struct Queues {
    processor: Option<usize>,
    queues: Vec<u16>,
}

/// Which thread serves which queues: a thread for each processor that may be used here, and each of
/// them some of the others.
fn plan(possible: usize, may_use: impl Fn(usize) -> bool) -> Vec<Queues> {
    // The kernel counts processors in 16 bits here.
    let all = 0..u16::try_from(possible).unwrap_or(u16::MAX);
    let (own, others): (Vec<_>, Vec<_>) = all.partition(|cpu| may_use(usize::from(*cpu)));
    let of = |cpu: u16| Queues { processor: Some(usize::from(cpu)), queues: vec![cpu] };
    let mut threads: Vec<_> = own.into_iter().map(of).collect();
    if threads.is_empty() {
        threads.push(Queues { processor: None, queues: Vec::new() });
    }
    let count = threads.len();
    for (at, cpu) in others.into_iter().enumerate() {
        threads[at % count].queues.push(cpu);
    }
    threads
}

/// A queue of the kernel, as its thread knows it.
#[derive(Debug)]
struct Queue {
    number: u16,
    /// How many entries it gets at a time.
    step: usize,
    /// How many it has.
    entries: usize,
    /// How many of them the kernel has, to put requests into.
    free: usize,
    /// Entries that the kernel does not know yet.
    new: Vec<Slot>,
}

/// A request that is not answered.
#[derive(Debug, Default)]
struct Held {
    /// Where its queue is among those of the thread.
    queue: usize,
    unique: u64,
    commit: u64,
    /// The entry, unless who answers has it.
    slot: Option<Slot>,
}

/// The thread of a ring.
struct Worker<S> {
    shared: Shared<S>,
    ring: Ring,
    desk: Arc<Desk>,
    queues: Vec<Queue>,
    /// Bytes that each request may bring, or its reply.
    payload: usize,
    /// By number of the entry.
    held: Vec<Held>,
    /// How many requests are not answered.
    open: usize,
    /// The file system is unmounted.
    is_over: bool,
}

impl<S: Service> Worker<S> {
    /// On this thread, which is to stay on its processor.
    fn new(shared: Shared<S>, of: Queues, step: usize, payload: usize) -> io::Result<Worker<S>> {
        if let Some(processor) = of.processor {
            let mut only = CpuSet::new();
            only.set(processor);
            sched_setaffinity(None, &only)?;
        }
        let own = |number| of.processor == Some(usize::from(number));
        let queues = of.queues.iter().map(|number| {
            let step = if own(*number) { step } else { ENTRIES_ELSEWHERE };
            Queue { number: *number, step, entries: 0, free: 0, new: Vec::new() }
        });
        let queues = queues.collect::<Vec<_>>();
        let entries = queues.iter().map(|queue| queue.step * STEPS_MAX).sum::<usize>();
        let ring = Ring::new(u32::try_from(entries).unwrap_or(u32::MAX))?;
        let (answers, sleeps, bell) = (Mutex::default(), AtomicBool::new(false), ring.bell());
        let (desk, held) = (Arc::new(Desk { answers, sleeps, bell }), Vec::new());
        let (open, is_over) = (0, false);
        let mut worker = Worker { shared, ring, desk, queues, payload, held, open, is_over };
        worker.grow()?;
        Ok(worker)
    }

    /// Queues of which the kernel has filled more than half are to get more entries.
    fn grow(&mut self) -> io::Result<()> {
        for (at, queue) in self.queues.iter_mut().enumerate() {
            let may = queue.entries < queue.step * STEPS_MAX;
            if queue.free < queue.step / 2 && may && !self.is_over {
                let first = u32::try_from(self.held.len()).expect("a few thousand");
                queue.new = Slot::some(first, queue.step, self.payload)?;
                queue.entries += queue.step;
                let held = || Held { queue: at, ..Held::default() };
                self.held.resize_with(self.held.len() + queue.step, held);
            }
        }
        Ok(())
    }

    /// Tells the kernel of new entries.
    fn register(&mut self) -> io::Result<()> {
        for queue in &mut self.queues {
            for slot in queue.new.drain(..) {
                queue.free += 1;
                self.ring.register(self.shared.device.as_fd(), queue.number, slot)?;
            }
        }
        Ok(())
    }

    /// Serves until it is unmounted. Tells first whether the kernel knows all entries.
    fn work(mut self, tell: &Sender<io::Result<()>>) -> io::Result<()> {
        self.register()?;
        self.ring.enter(0)?;
        let known = self.take_events();
        let _ = tell.send(known); // Who began this listens, or has gone.
        let mut answers = Vec::new();
        while self.is_needed() {
            self.desk.take(&mut answers);
            for answer in answers.drain(..) {
                self.commit(answer)?;
            }
            if let Err(error) = self.grow() {
                tracing::debug!("no memory for more requests at a time: {error}");
            }
            self.register()?;
            self.ring.enter(u32::from(self.desk.is_clear()))?;
            self.desk.sleeps.store(false, Ordering::SeqCst);
            if let Err(error) = self.take_events() {
                tracing::warn!("the kernel does not take what is for a ring: {error}");
            }
        }
        Ok(())
    }

    /// Whether the kernel has entries of this thread, or answers are still to come.
    fn is_needed(&self) -> bool {
        let kernel_has_some = self.queues.iter().any(|queue| queue.free > 0);
        kernel_has_some || (self.open > 0 && !self.is_over)
    }

    /// Takes all that has come; the last reason why the kernel refused an entry.
    fn take_events(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        while let Some(event) = self.ring.next() {
            match event {
                Event::Request(slot) => self.call(slot),
                Event::Refused(slot, errno) => {
                    self.queues[self.held[slot.number as usize].queue].free -= 1;
                    match errno {
                        Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => {
                            self.is_over = true;
                        }
                        errno => result = Err(errno.into()),
                    }
                }
                Event::Rung => {}
            }
        }
        result
    }

    /// Has a request answered.
    fn call(&mut self, slot: Slot) {
        let bytes = slot.header();
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|n| bytes[at + n]));
        let (number, unique) = (slot.number, long(abi::UNIQUE));
        let held = &mut self.held[number as usize];
        (held.unique, held.commit) = (unique, long(abi::COMMIT));
        self.queues[held.queue].free -= 1;
        self.open += 1;
        let sent = word(abi::PAYLOAD_LENGTH) as usize;
        // What is wrong in length the parser refuses.
        let fields = (word(0) as usize).saturating_sub(REQUEST_HEADER + sent);
        let fields = &bytes[abi::FIELDS][..fields.min(abi::FIELDS.len())];
        let header = &bytes[..REQUEST_HEADER];
        // The reply's body may go to the place of the payload only if there is none.
        let (own, kept) = if sent == 0 { (Some(slot), None) } else { (None, Some(slot)) };
        let payload = kept.as_ref().map_or(Some(&[][..]), |slot| slot.payload(sent));
        let request = parse_parts(header, fields, payload.unwrap_or_default());
        let way = Way::Ring(Ticket { desk: self.desk.clone(), number, slot: own });
        let reply = Reply::new(unique, way, self.shared.interrupts.clone());
        if let Some(request) = request {
            self.shared.handle(request, |_| reply);
        }
        held.slot = kept;
    }

    /// Gives the kernel a reply, and the entry for another request.
    fn commit(&mut self, answer: Answer) -> io::Result<()> {
        let Answer { number, mut error, body } = answer;
        let held = &mut self.held[number as usize];
        let kept = held.slot.take();
        let (mut slot, mut length) = match body {
            Body::InPlace(slot, length) => (slot, length),
            Body::Apart(body) => {
                let mut slot = kept.expect("a request is answered once");
                if !slot.fill(&body) {
                    error = -libc::EIO;
                }
                (slot, body.len() as u32) // It fits into a slot, or it is an error.
            }
        };
        if error != 0 {
            length = 0;
        }
        slot.answer(header(held.unique, error, length as usize), length);
        let queue = &mut self.queues[held.queue];
        queue.free += 1;
        self.open -= 1;
        self.ring.commit(self.shared.device.as_fd(), queue.number, held.commit, slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_as_the_kernel_lists_them() {
        assert_eq!(possible("0\n"), Some(1));
        assert_eq!(possible("0-127\n"), Some(128));
        assert_eq!(possible("0-3,8-11,15\n"), Some(9));
        assert_eq!(["", "many", "3-1", "0-"].map(possible), [None; 4]);
    }

    #[test]
    fn each_processor_has_a_queue_and_each_that_may_be_used_a_thread() {
        let of = |processor, queues: &[u16]| Queues { processor, queues: queues.to_vec() };
        assert_eq!(plan(2, |_| true), [of(Some(0), &[0]), of(Some(1), &[1])]);
        let some = plan(6, |cpu| matches!(cpu, 1 | 2));
        assert_eq!(some, [of(Some(1), &[1, 0, 4]), of(Some(2), &[2, 3, 5])]);
        assert_eq!(plan(3, |_| false), [of(None, &[0, 1, 2])]);
    }
}
