//! What is searched, and the search itself.

use crate::bounded::Slow;
use crate::locals::Frames;
use crate::model::{Checked, Multicasts};
use meridian_core::{ClientId, GroupId, MessageId};
use meridian_multicast::{
    Dissemination, Groups, Mutation, Options, Order, PrimCast, Role, Start, Timestamp,
};
use meridian_sim::of::multicast::short::Cluster;
use rand::SeedableRng as _;
use rand::seq::IteratorRandom as _;
use rand_chacha::ChaCha8Rng;
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt::{Display, Formatter};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZero;
use std::time::Duration;

/// A small case of PrimCast.
#[derive(Clone, Debug)]
pub struct Case {
    /// How many processes each group has.
    pub sizes: Vec<u16>,
    /// Which groups each message goes to.
    pub messages: Vec<Vec<u16>>,
    /// How far the groups' clocks are, at least, when the messages come.
    pub clocks: Vec<u64>,
    /// The groups have ordered a message to all of them before: those whose primaries speak for
    /// them know that.
    pub acquainted: bool,
    /// What a process sends to another in one step arrives together.
    pub framed: bool,
    /// This one may suspect its primary. In all orders: once the next one of its group, which there
    /// must be, says so too.
    pub suspicious: Option<usize>,
    /// This one stops before, at any moment, for good.
    pub stops: Option<usize>,
    /// How often timers fire then when all is quiet and not all is delivered.
    pub ticks: u8,
    /// Not all orders. In a regular run, each message is sent once the one before it was delivered.
    pub delay_bound: Option<u8>,
    /// The order of deliveries.
    pub order: Order,
    /// Who speaks for each group.
    pub dissemination: Dissemination,
    /// A planted bug.
    pub mutation: Mutation,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            sizes: vec![1; 3],
            messages: Vec::new(),
            clocks: Vec::new(),
            acquainted: false,
            framed: false,
            suspicious: None,
            stops: None,
            ticks: 6,
            delay_bound: None,
            order: Order::Linearizable,
            dissemination: Dissemination::AllToAll,
            mutation: Mutation::Correct,
        }
    }
}

/// A message of that name; its timestamps are greater than `after`.
fn start(name: u64, dest: &[u16], after: u64) -> Start {
    let id = MessageId { client: ClientId(name), sequence: 1 };
    let dest: Vec<_> = dest.iter().map(|group| GroupId(*group)).collect();
    Start { after: Timestamp(after), ..Start::new(id, dest, Vec::new()) }
}

/// Messages 1, 2, .. to these groups, sent at any time.
pub fn messages<D: AsRef<[u16]>>(dest: &[D]) -> Vec<(Start, Option<usize>)> {
    (1..).zip(dest).map(|(name, dest)| (start(name, dest.as_ref(), 0), None)).collect()
}

impl Case {
    /// Groups of these sizes, and these messages.
    pub fn of<D: AsRef<[u16]>>(sizes: &[u16], messages: &[D]) -> Case {
        let messages = messages.iter().map(|dest| dest.as_ref().to_vec()).collect();
        Case { sizes: sizes.to_vec(), messages, ..Case::default() }
    }

    fn cluster(&self) -> Cluster<PrimCast> {
        let (order, dissemination) = (self.order, self.dissemination);
        let options = Options { order, dissemination, ..Options::default() };
        let make = |me, groups: &Groups| {
            let process = PrimCast::new(me, groups.clone()).with_options(options);
            process.with_mutation(self.mutation)
        };
        Cluster::new(&self.sizes, 1, make).settle(Duration::from_secs(3))
    }

    /// What is to be explored.
    pub fn model(&self) -> Multicasts<PrimCast> {
        let cluster = self.cluster();
        let mut messages = messages(&self.messages);
        for (at, (_, after)) in messages.iter_mut().enumerate().skip(1) {
            *after = self.delay_bound.map(|_| at - 1);
        }
        let frames = if self.framed { Frames::Step } else { Frames::Single };
        let clocks = (0..).zip(&self.clocks).filter(|(_, clock)| **clock > 0);
        let before =
            clocks.map(|(group, clock)| start(100 + u64::from(group), &[group], clock - 1));
        let all: Vec<_> = (0..).take(self.sizes.len()).collect();
        let to_all = self.acquainted.then(|| start(99, &all, 0));
        let before: Vec<_> = to_all.into_iter().chain(before).collect();
        let mut model = Multicasts::new(&cluster, messages).framed(frames);
        // In all orders, the next one's answer brings it about; else silence, and what timers do
        // then.
        let asks = self.suspicious.filter(|_| self.delay_bound.is_none());
        let asks = asks.map(|process| (process, process + 1));
        if !before.is_empty() || asks.is_some() {
            model = model.preceded_by(&cluster, before, asks);
        }
        if let Some(process) = self.suspicious {
            model = model.suspicious(process, self.ticks);
        }
        if let Some(process) = self.stops {
            model = model.stopping(process);
        }
        match self.delay_bound {
            Some(times) => model.bounded(Slow { times }),
            None => model,
        }
    }

    /// Searches until something is violated.
    ///
    /// # Panics
    /// If nothing is, and whoever may suspect its primary has never been one, though others could
    /// make a quorum with it.
    pub fn search(&self) -> Found {
        let model = self.model();
        let found = search(model.clone());
        let suspicious = self.suspicious.map(|process| model.ids[process]);
        if let Some(me) = suspicious.filter(|me| self.sizes[usize::from(me.group.0)] > 2) {
            let leads = |p: &PrimCast| p.role() == Role::Primary && p.me() == me;
            let changes = !found.violated.is_empty() || model.locals.has_met(leads);
            assert!(changes, "the primary never changes: {self:?}");
        }
        found
    }

    /// The ends of all runs, by their prints: as they are searched, and if nothing is left out.
    pub fn ends(&self) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let model = self.model();
        let found = search(model.clone()); // What is left out is known then.
        assert!(found.violated.is_empty(), "{found}");
        (ends(&model), ends(&self.model().plain()))
    }
}

/// What a search found.
#[derive(Debug)]
pub struct Found {
    /// The properties that are violated, each with the way there.
    pub violated: Vec<(&'static str, String)>,
    /// How many states there are that have a choice or an end, and how many ways lead to one.
    pub states: usize,
    ways: usize,
    /// How many states of processes, and steps from one to another.
    processes: usize,
    steps: usize,
    /// Of how many states of processes it was checked that some frame may come before anything
    /// else.
    moved: usize,
}

impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Found { violated, states, ways, processes, steps, moved } = self;
        let what = if violated.is_empty() { "all holds" } else { "violated" };
        write!(
            f,
            "{what}: {states} states, {ways} ways to them, {processes} states of processes, "
        )?;
        write!(f, "{steps} steps of theirs, {moved} checked to come early as well as late")
    }
}

/// After so many states it is checked, for the first time, whether what was taken to move to the
/// left does.
const CHECKED_FIRST: usize = 10_000;

/// After so many searches that were wrong about some states, it is given up for all states what was
/// wrong: where a search is short, and where it is long.
const TIMES: [usize; 2] = [20, 10];

/// A search of so many states is long.
const LONG: usize = 1_000_000;

/// So many random runs at a time come before a long search: they meet more of what is assumed
/// wrongly than its beginning does.
const RUNS: u64 = 100_000;
/// And so often at most.
const ROUNDS: u64 = 5;

/// Searches until something is violated: at first as far as to so many states, until nothing that
/// it assumes is wrong, then further. Tells how far it is.
pub fn search<P: Checked>(model: Multicasts<P>) -> Found {
    let (mut most, mut times) = (model.slow.is_none().then_some(CHECKED_FIRST), 0);
    loop {
        let checker = model.clone().checker().finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.threads(threads());
        let checker = match most {
            Some(most) => checker.target_state_count(most).spawn_dfs().join(),
            None => checker.spawn_dfs().join(),
        };
        let (states, ways) = (checker.unique_state_count(), checker.state_count());
        eprintln!("  {states} states, {ways} ways to them");
        times += 1;
        let Some(moved) = check(&model, times >= TIMES[usize::from(ways > LONG)]) else { continue };
        let violated = checker.discoveries();
        if let Some(some) = most.filter(|some| ways >= *some && violated.is_empty()) {
            (most, times) = (Some(4 * some), 0);
            if some > LONG {
                most = None;
                run_at_random(&model);
            }
            continue;
        }
        let way = |actions: Vec<_>| {
            let lines = actions.into_iter().map(|action| format!("  {action:?}\n"));
            lines.collect::<String>()
        };
        let violated = violated.into_iter();
        let violated = violated.map(|(property, path)| (property, way(path.into_actions())));
        let (processes, steps) = model.counts();
        return Found { violated: violated.collect(), states, ways, processes, steps, moved };
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Checks what was assumed: of how many states of processes, if nothing was wrong. What was is not
/// assumed again; with `all_states`, whatever the state of the receiver.
fn check<P: Checked>(model: &Multicasts<P>, all_states: bool) -> Option<usize> {
    let ((failed, moved), wrong) = (model.check_moved(all_states), model.foresee());
    if failed + wrong > 0 {
        eprintln!("  wrong about {failed} and {wrong} of {}", model.counts().0);
    }
    (failed + wrong == 0).then_some(moved)
}

/// Random runs, until they meet nothing that was assumed wrongly.
fn run_at_random<P: Checked>(model: &Multicasts<P>) {
    let first = model.init_states().remove(0);
    let run = |seed: u64| {
        let (mut random, mut state) = (ChaCha8Rng::seed_from_u64(seed), first.clone());
        let mut actions = Vec::new();
        loop {
            model.actions(&state, &mut actions);
            let Some(at) = (0..actions.len()).choose(&mut random) else { break };
            match model.next_state(&state, actions.swap_remove(at)) {
                Some(next) => state = next,
                None => break,
            }
            actions.clear();
        }
    };
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            for thread in 0..threads() as u64 {
                let seeds = round * RUNS..(round + 1) * RUNS;
                let seeds = seeds.filter(move |seed| seed % threads() as u64 == thread);
                scope.spawn(move || seeds.for_each(run));
            }
        });
        eprintln!("  {} random runs", (round + 1) * RUNS);
        if check(model, false).is_some() {
            return;
        }
    }
}

fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn ends<P: Checked>(model: &Multicasts<P>) -> BTreeSet<u64> {
    let (mut todo, mut met) = (model.init_states(), Vec::new());
    let (mut known, mut ends, mut actions) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    while let Some(state) = todo.pop() {
        model.actions(&state, &mut actions);
        if actions.is_empty() {
            ends.insert(model.print(&state));
        }
        met.extend(actions.drain(..).filter_map(|action| model.next_state(&state, action)));
        todo.extend(met.drain(..).filter(|next| known.insert(fingerprint(next))));
    }
    ends
}
