//! What a case is, and how it is searched: what a protocol brings.

use super::Set;
use meridian_core::{Event, Process, Time};
use std::hash::Hash;

/// A process whose states can be told apart.
pub trait Comparable:
    Process<Message: Hash + PartialEq, Record: Hash + PartialEq> + Clone + Hash + PartialEq
{
}

impl<P> Comparable for P
where
    P: Process + Clone + Hash + PartialEq,
    P::Message: Hash + PartialEq,
    P::Record: Hash + PartialEq,
{
}

/// A small case of a protocol.
pub trait Model {
    /// The real code.
    type Process: Comparable;
    /// What a run has shown so far, as far as properties depend on it.
    type Observed: Clone + Default + Hash + PartialEq;

    /// The processes that run; the place of one is its number.
    fn processes(&self) -> Vec<Begun<Self::Process>>;

    /// What time it is.
    fn now(&self) -> Time;

    /// The event of a timer that fires.
    fn timer(&self) -> Event<Self::Process>;

    /// What comes from outside.
    fn inputs(&self) -> Vec<Input<Self::Process>>;

    /// Whether an input may arrive now. What was observed may decide that in runs with a delay
    /// bound only: events at different processes commute no more if it does.
    fn is_due(&self, _input: usize, _at: &Self::Process, _observed: &Self::Observed) -> bool {
        true
    }

    /// Whether who hears from a process that suspects another misses that one, too.
    fn shares_silence(&self, _from: usize, _to: usize) -> bool {
        true
    }

    /// Takes down what a step has shown. `past` are the causes of it, `at` the process, now
    /// `process`.
    fn observe(
        &self,
        observed: &mut Self::Observed,
        at: usize,
        past: Set,
        process: &Self::Process,
        outputs: &[<Self::Process as Process>::Output],
    );

    /// Forgets what was observed of a process that is gone for good, as far as nothing depends on
    /// it.
    fn forget(&self, _observed: &mut Self::Observed, _at: usize) {}

    /// The property that is violated, if one is. What compares processes belongs into what was
    /// observed: not all of their states that a run has are seen at one moment.
    fn violated(&self, observed: &Self::Observed, up: &[&Self::Process]) -> Option<&'static str>;

    /// Whether all that should happen has, where these processes are up.
    fn is_done(&self, _observed: &Self::Observed, _up: Set) -> bool {
        true
    }

    /// Whether this state is one that some run must reach, or the search shows nothing.
    fn is_goal(&self, observed: &Self::Observed, up: &[&Self::Process]) -> bool;

    /// A process that starts again; its records are replayed then.
    fn restarted(&self, at: usize) -> Self::Process;
}

/// A process when a case begins.
#[derive(Clone, Debug)]
pub struct Begun<P: Process> {
    /// Its name.
    pub peer: P::Peer,
    /// Its state.
    pub process: P,
    /// What it has persisted.
    pub disk: Vec<P::Record>,
}

/// What comes from outside, once.
#[derive(Clone, Debug)]
pub struct Input<P: Process> {
    /// To whom.
    pub at: usize,
    /// What.
    pub event: Event<P>,
    /// The cause that it is, as a bit; 0 if nobody needs to know.
    pub cause: Set,
    /// The number of the input to the same process that must have arrived before.
    pub after: Option<usize>,
    /// Whether it comes only after a crash.
    pub after_crash: bool,
}

/// What travels together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frames {
    /// Nothing: another message may come between any two. So all is explored that can happen.
    #[default]
    Single,
    /// What a process sends to another in one step, after the same record: so it is as good as
    /// always with a real runtime, which writes out what is there.
    Step,
}

/// One process crashes, at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Which one may.
    pub who: Set,
    /// Whether also all that it has sent and that has not arrived may be lost.
    pub loses: bool,
    /// Whether it may start again, with all that it persisted.
    pub restarts: bool,
}

/// A process suspects another, once and at any time.
#[derive(Clone, Debug)]
pub struct Suspicion<P: Process> {
    /// Which one does.
    pub at: usize,
    /// What makes it so, together; its timer fires if there is nothing, and it is late then.
    pub because: Vec<Event<P>>,
    /// Whether it comes only after a crash.
    pub after_crash: bool,
}

/// How a case is searched.
#[derive(Clone, Debug)]
pub struct Options<P: Process> {
    /// What travels together.
    pub frames: Frames,
    /// Whether somebody suspects another.
    pub suspicion: Option<Suspicion<P>>,
    /// Whether somebody crashes.
    pub crash: Option<Crash>,
    /// How often timers fire when all is quiet and not all is done; followed in one order only.
    pub ticks: u8,
    /// The delay bound; all orders if there is none.
    pub delays: Option<u8>,
    /// Whether only persistent sets are explored; not where links have no order.
    pub reduced: bool,
    /// Links have no order. Not with a delay bound.
    pub disorder: Option<Disorder>,
}

/// What links without an order may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disorder {
    /// So many messages in a run come twice.
    pub repeated: u8,
    /// So many messages in a run come before earlier ones of their link; any, if it is not said. A
    /// message that comes twice comes the second time behind what is under way on its link then.
    pub overtakes: Option<u8>,
}

impl<P: Process> Default for Options<P> {
    fn default() -> Self {
        let (suspicion, crash, delays) = (None, None, None);
        let (frames, disorder) = (Frames::Single, None);
        Options { frames, suspicion, crash, ticks: 0, delays, reduced: true, disorder }
    }
}
