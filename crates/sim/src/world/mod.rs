//! A whole cluster in one thread: virtual time, and one seed that decides everything.

mod disks;
mod link;
mod log;
mod owner;
mod run;
mod slot;
#[cfg(test)]
mod tests;
mod watch;

pub use disks::DiskBug;
pub use log::{DiskFailure, Logs};
pub use owner::{Owner, Stimulus};
pub use watch::{Happened, Watcher, Way, What};

use crate::faults::{Cut, Fault, Faults, Unflushed};
use crate::harness;
use crate::trace::{Filter, Plain, Teller, Trace};
pub(crate) use link::{Item, Link};
use meridian_core::{Event, Outbox, Process, Time, mix};
use rand::{RngExt, SeedableRng};
use slot::Slot;
use std::collections::BTreeMap;
use std::time::Duration;

/// The generator that all chance comes from.
pub type Random = rand_chacha::ChaCha8Rng;

/// How long a message travels from one peer to another.
pub type Delay<A> = Box<dyn FnMut(A, A, &mut Random) -> Duration>;

/// So many events at one moment are a process that answers itself for ever.
const MOMENT_EVENTS_MAX: u64 = 1_000_000;

/// What a world is made of.
pub struct Setup<P: Process> {
    /// The processes, each once.
    pub peers: Vec<P::Peer>,
    /// Makes a process that has nothing on its disk.
    pub make: Box<dyn FnMut(P::Peer) -> P>,
    /// How long messages travel; asked for each.
    pub delay: Delay<P::Peer>,
    /// The shortest and the longest flush.
    pub flush: (Duration, Duration),
    /// How far the clock of a process is ahead of the world's: a bound of it is the bound of their
    /// skew. Not asked where [`Faults`] let clocks show anything.
    pub ahead: Box<dyn FnMut(P::Peer) -> Duration>,
    /// How long a process is busy with a batch of events at most.
    pub busy: Duration,
    /// How many events make a batch at most; [`Event::Idle`] follows each.
    pub batch: usize,
    /// What may go wrong.
    pub faults: Faults,
    /// Who is cut off together.
    pub regions: Vec<Vec<P::Peer>>,
    /// Whether there are disks. Without, a crash takes all records; it does not happen where more
    /// than a minority of a region would then have lost something that it has not back (see
    /// [`Owner::is_whole`]).
    pub disks: bool,
    /// Where records are kept.
    pub logs: Logs<P::Record>,
    /// A bug planted in what surrounds the processes.
    pub bug: Option<DiskBug>,
    /// Those of the processes that are not there before [`World::enter`].
    pub later: Vec<P::Peer>,
    /// Whether the hash of the trace covers the contents of messages: thorough, and slow.
    pub deep: bool,
}

impl<P: Process<Record: 'static>> Setup<P> {
    /// A local network with ordinary disks, without faults.
    pub fn lan(peers: Vec<P::Peer>, make: impl FnMut(P::Peer) -> P + 'static) -> Self {
        Setup {
            peers,
            make: Box::new(make),
            delay: Box::new(|_, _, random| {
                // Mostly quick; one in twenty is late enough to be overtaken on other links.
                let most = if random.random_ratio(1, 20) { 20_000 } else { 1_000 };
                Duration::from_micros(random.random_range(50..=most))
            }),
            flush: (Duration::from_micros(100), Duration::from_millis(5)),
            ahead: Box::new(|_| Duration::ZERO),
            busy: Duration::from_micros(50),
            batch: 8,
            faults: Faults::none(),
            regions: Vec::new(),
            disks: true,
            logs: Logs::lists(),
            bug: None,
            later: Vec::new(),
            deep: false,
        }
    }

    /// Each message travels exactly `unit`, and nothing else takes time: for counting
    /// communication steps.
    pub fn exact(
        peers: Vec<P::Peer>,
        unit: Duration,
        make: impl FnMut(P::Peer) -> P + 'static,
    ) -> Self {
        Setup::lan(peers, make).exactly(unit)
    }

    /// The same, but as in [`Setup::exact`].
    pub fn exactly(self, unit: Duration) -> Self {
        Setup {
            delay: Box::new(move |_, _, _| unit),
            flush: (Duration::ZERO, Duration::ZERO),
            busy: Duration::ZERO,
            batch: usize::MAX,
            ..self
        }
    }
}

/// What is planned.
pub(crate) enum Plan<P: Process> {
    Start(usize),
    Run { slot: usize, incarnation: u64 },
    Tick { from: usize, to: usize, generation: u64 },
    Timers { slot: usize, incarnation: u64 },
    FlushStart { slot: usize, incarnation: u64 },
    Flushed { slot: usize, incarnation: u64, upto: u64 },
    Checkpointed { slot: usize, incarnation: u64 },
    CrashPoint { slot: usize, incarnation: u64 },
    Remember { slot: usize, incarnation: u64 },
    DiskFreed(usize),
    Stop { slot: usize, incarnation: u64 },
    Command { slot: usize, command: P::Command },
    Wake(u64),
    Fault { fault: Fault, generation: u64 },
    Mend(u64),
}

/// A cluster of processes `P` under an owner.
pub struct World<P: Process, O: Owner<P>> {
    /// The workload and whoever watches.
    pub owner: O,
    seed: u64,
    pub(crate) random: Random,
    pub(crate) now: u64,
    plans: BTreeMap<(u64, u64), Plan<P>>,
    planned: u64,
    events: u64,
    moment_events: u64,
    hash: u64,
    watcher: Option<Box<dyn Watcher<P>>>,
    quiet: bool,
    deep: bool,
    make: Box<dyn FnMut(P::Peer) -> P>,
    delay: Delay<P::Peer>,
    pub(crate) flush: (Duration, Duration),
    pub(crate) ahead: Box<dyn FnMut(P::Peer) -> Duration>,
    pub(crate) busy: Duration,
    pub(crate) batch: usize,
    pub(crate) slots: Vec<Slot<P>>,
    places: BTreeMap<P::Peer, usize>,
    pub(crate) links: BTreeMap<(usize, usize), Link<P::Message>>,
    pub(crate) cuts: BTreeMap<u64, Cut>,
    pub(crate) faults: Faults,
    pub(crate) faults_generation: u64,
    pub(crate) regions: Vec<Vec<usize>>,
    pub(crate) disks: bool,
    pub(crate) bug: Option<DiskBug>,
    /// Who must not come back, and why.
    pub(crate) refused: Vec<(P::Peer, String)>,
    pub(crate) unflushed: Unflushed,
    pub(crate) outbox: Outbox<P>,
}

impl<P: Process, O: Owner<P>> World<P, O> {
    /// A world in which all processes are about to start.
    pub fn new(seed: u64, setup: Setup<P>, owner: O) -> Self {
        let count = setup.peers.len();
        let places: BTreeMap<_, _> = setup.peers.iter().copied().zip(0..).collect();
        assert_eq!(places.len(), count, "a peer stands there twice");
        let mut links = BTreeMap::new();
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                links.insert((from, to), Link::default());
            }
        }
        let of = |region: &Vec<P::Peer>| region.iter().map(|peer| places[peer]).collect();
        let regions = setup.regions.iter().map(of).collect();
        let log = |at: usize| setup.logs.make(mix(seed) ^ at as u64);
        let slot = |(at, peer)| Slot::new(peer, log(at));
        let slots = setup.peers.into_iter().enumerate().map(slot).collect();
        let mut world = World {
            owner,
            seed,
            random: Random::seed_from_u64(seed),
            now: 0,
            plans: BTreeMap::new(),
            planned: 0,
            events: 0,
            moment_events: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            watcher: None,
            quiet: false,
            deep: setup.deep,
            make: setup.make,
            delay: setup.delay,
            flush: setup.flush,
            ahead: setup.ahead,
            busy: setup.busy,
            batch: setup.batch,
            slots,
            places,
            links,
            cuts: BTreeMap::new(),
            faults: Faults::none(),
            faults_generation: 0,
            regions,
            disks: setup.disks,
            bug: setup.bug,
            refused: Vec::new(),
            unflushed: Unflushed::Chance,
            outbox: Outbox::new(),
        };
        if harness::trace_wanted() {
            world.watch(Box::new(Trace::new(Box::new(Plain), Filter::default())));
        }
        for peer in setup.later {
            let slot = world.place(peer);
            world.slots[slot].absent = true;
        }
        // With faults the processes start one after the other, so that some miss the first
        // messages.
        let spread = if setup.faults.any() { Duration::from_millis(20) } else { Duration::ZERO };
        for slot in 0..count {
            let after = world.up_to(spread);
            world.plan(after, Plan::Start(slot));
        }
        world.allow(setup.faults);
        let stimuli = world.owner.begin();
        world.inject_all(stimuli);
        world
    }

    /// The time of the world.
    pub fn now(&self) -> Time {
        Time(self.now)
    }

    /// The seed that it was made with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// A hash of all that happened: equal for equal seeds.
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// The process, unless it is down.
    pub fn process(&self, peer: P::Peer) -> Option<&P> {
        self.slots[self.place(peer)].process.as_ref()
    }

    /// The processes that were refused as their disks had lost something, and why.
    pub fn refused(&self) -> &[(P::Peer, String)] {
        &self.refused
    }

    /// All processes that there are, were or may be.
    pub fn peers(&self) -> impl Iterator<Item = P::Peer> + '_ {
        self.slots.iter().map(|slot| slot.peer)
    }

    /// All processes that are up.
    pub fn processes(&self) -> impl Iterator<Item = (P::Peer, &P)> + '_ {
        self.slots.iter().filter_map(|slot| Some((slot.peer, slot.process.as_ref()?)))
    }

    /// Does what an owner would ask for.
    pub fn inject(&mut self, stimulus: Stimulus<P>) {
        match stimulus {
            Stimulus::Command { to, command, after } => {
                let slot = self.place(to);
                self.plan(after, Plan::Command { slot, command });
            }
            Stimulus::Stop(peer) => {
                let slot = self.place(peer);
                let incarnation = self.slots[slot].incarnation;
                self.plan(Duration::ZERO, Plan::Stop { slot, incarnation });
            }
            Stimulus::Wake { token, after } => self.plan(after, Plan::Wake(token)),
        }
    }

    /// Says nothing of the seed when a test fails: for tests that expect to.
    pub fn say_nothing(&mut self) {
        self.quiet = true;
    }

    /// From now on `watcher` is told of all events; who was before is not.
    pub fn watch(&mut self, watcher: Box<dyn Watcher<P>>) {
        self.watcher = Some(watcher);
    }

    /// Lets `span` pass.
    pub fn run_for(&mut self, span: Duration) {
        let reached = self.run_until(|_| false, span);
        debug_assert!(!reached);
    }

    /// Runs until `wanted` holds, at most for `limit`; says whether it holds.
    pub fn run_until(&mut self, mut wanted: impl FnMut(&Self) -> bool, limit: Duration) -> bool {
        let end = (self.time() + limit).0;
        loop {
            if wanted(self) {
                return true;
            }
            let next = self.plans.first_key_value().map(|((at, _), _)| *at);
            match next {
                Some(at) if at <= end => self.advance(),
                Some(_) | None => {
                    self.now = end;
                    return false;
                }
            }
        }
    }

    /// Stops the test: says what is wrong, and how to see it again.
    ///
    /// # Panics
    /// Always.
    pub fn fail(&self, what: &str) -> ! {
        panic!("{what}");
    }

    fn time(&self) -> Time {
        Time(self.now)
    }

    /// Carries out the next plan.
    fn advance(&mut self) {
        let ((at, _), plan) = self.plans.pop_first().expect("run_until saw it");
        self.moment_events = if at > self.now { 0 } else { self.moment_events + 1 };
        if self.moment_events > MOMENT_EVENTS_MAX {
            self.fail("time stands still");
        }
        self.now = at;
        self.events += 1;
        match plan {
            Plan::Start(slot) => self.start(slot),
            Plan::Run { slot, incarnation } if self.lives(slot, incarnation) => self.run(slot),
            Plan::Tick { from, to, generation } => self.on_tick(from, to, generation),
            Plan::Timers { slot, incarnation } if self.lives(slot, incarnation) => {
                self.on_timers(slot);
            }
            Plan::FlushStart { slot, incarnation } if self.lives(slot, incarnation) => {
                self.on_flush_start(slot);
            }
            Plan::Flushed { slot, incarnation, upto } if self.lives(slot, incarnation) => {
                self.on_flushed(slot, upto);
            }
            Plan::Checkpointed { slot, incarnation } if self.lives(slot, incarnation) => {
                self.on_checkpointed(slot);
            }
            Plan::Remember { slot, incarnation } if self.lives(slot, incarnation) => {
                self.on_remember(slot);
            }
            Plan::DiskFreed(slot) => self.free_disk(slot),
            Plan::Stop { slot, incarnation } if self.lives(slot, incarnation) => {
                self.stop(slot);
            }
            Plan::CrashPoint { slot, incarnation } if self.lives(slot, incarnation) => {
                // Unless the world was healed meanwhile.
                if self.slots[slot].crash_point.is_some() && self.may_crash(slot) {
                    self.crash_slot(slot);
                }
            }
            Plan::Command { slot, command } => self.on_command(slot, command),
            Plan::Wake(token) => {
                let stimuli = self.owner.wake(token, Time(self.now));
                self.inject_all(stimuli);
            }
            Plan::Fault { fault, generation } if generation == self.faults_generation => {
                self.on_fault(fault);
            }
            Plan::Mend(cut) => self.mend(cut),
            Plan::Run { .. }
            | Plan::Timers { .. }
            | Plan::FlushStart { .. }
            | Plan::Flushed { .. }
            | Plan::Checkpointed { .. }
            | Plan::CrashPoint { .. }
            | Plan::Remember { .. }
            | Plan::Stop { .. }
            | Plan::Fault { .. } => {} // Void: planned for a process that crashed meanwhile.
        }
    }

    fn lives(&self, slot: usize, incarnation: u64) -> bool {
        self.slots[slot].up && self.slots[slot].incarnation == incarnation
    }

    fn on_command(&mut self, slot: usize, command: P::Command) {
        if self.slots[slot].up {
            self.log_event("command", slot, slot, What::Command(&command));
            self.owner.commanded(self.slots[slot].peer, &command, Time(self.now));
            self.push(slot, Event::Command(command));
        }
    }

    pub(crate) fn inject_all(&mut self, stimuli: Vec<Stimulus<P>>) {
        for stimulus in stimuli {
            self.inject(stimulus);
        }
    }

    pub(crate) fn place(&self, peer: P::Peer) -> usize {
        match self.places.get(&peer) {
            Some(place) => *place,
            None => self.fail(&format!("there is no process {peer:?}")),
        }
    }

    pub(crate) fn plan(&mut self, after: Duration, plan: Plan<P>) {
        let at = (self.time() + after).0;
        self.plan_at(at, plan);
    }

    pub(crate) fn plan_at(&mut self, at: u64, plan: Plan<P>) {
        self.planned += 1;
        self.plans.insert((at.max(self.now), self.planned), plan);
    }

    /// A random duration up to `most`.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        self.between((Duration::ZERO, most))
    }

    pub(crate) fn between(&mut self, (least, most): (Duration, Duration)) -> Duration {
        if least >= most { least } else { self.random.random_range(least..=most) }
    }

    pub(crate) fn make_process(&mut self, slot: usize) -> P {
        (self.make)(self.slots[slot].peer)
    }

    pub(crate) fn link(&mut self, from: usize, to: usize) -> &mut Link<P::Message> {
        self.links.get_mut(&(from, to)).expect("made with the world")
    }

    /// Puts a message, or the news of a restart, on its way.
    pub(crate) fn put_on_link(&mut self, from: usize, to: usize, item: Item<P::Message>) {
        let (sender, receiver) = (self.slots[from].peer, self.slots[to].peer);
        let delay = (self.delay)(sender, receiver, &mut self.random);
        let at = (self.time() + delay).0;
        let link = self.link(from, to);
        link.queue.push_back(item);
        link.coming += 1;
        link.last_tick = link.last_tick.max(at);
        let (at, generation) = (link.last_tick, link.generation);
        debug_assert!(link.is_consistent());
        self.plan_at(at, Plan::Tick { from, to, generation });
    }

    /// Adds to the hash of all that happened, and tells the watcher.
    pub(crate) fn log_event(&mut self, kind: &str, a: usize, b: usize, what: What<'_, P>) {
        let (at, to) = (self.slots[a].peer, (a != b).then_some(self.slots[b].peer));
        let (number, now, what) = (self.events, Time(self.now), &what);
        let event = Happened { number, now, kind, at, to, what };
        let mut hasher = Fnv(self.hash);
        hasher.bytes(&self.now.to_le_bytes());
        hasher.bytes(kind.as_bytes());
        hasher.bytes(&[a as u8, b as u8]);
        if self.deep {
            hasher.bytes(Plain.words(&event).as_bytes());
        }
        self.hash = hasher.0;
        if let Some(watcher) = &mut self.watcher {
            watcher.happened(&event);
        }
    }
}

impl<P: Process, O: Owner<P>> Drop for World<P, O> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.quiet {
            let ms = self.now as f64 / 1e6;
            let (seed, events, repeat) =
                (self.seed, self.events, harness::how_to_repeat(self.seed));
            harness::print(&format!("\nseed {seed}, event {events}, at {ms:.3} ms"));
            harness::print(&format!("repeat with: {repeat}"));
        }
    }
}

/// The hash of Fowler, Noll and Vo: simple, and the same everywhere.
struct Fnv(u64);

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
