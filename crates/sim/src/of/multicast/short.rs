//! Random search for violations of an order in any multicast protocol: many short runs without
//! faults.
//!
//! A run is a handful of messages whose parts travel for random times, so that they overtake each
//! other. Some messages are multicast only once another one was seen delivered: that is what real
//! time orders. The whole [`crate::World`] can do this too, with faults; here a run takes tens of
//! microseconds, so that what happens once in a hundred thousand runs is found.

use crate::harness::{caught, print};
use crate::of::Trials;
use crate::of::multicast::checkers::{
    End, Violation, check_agreement, check_integrity, check_prefix, check_real_time,
    check_timestamps,
};
use crate::of::multicast::history::{Entry, History};
use crate::of::multicast::replica::groups_of;
use crate::trial::{Counts, Detail, Failure, Outcome, Report};
use crate::world::Random;
use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Process, ProcessId, Time,
};
use meridian_multicast::Groups;
use meridian_multicast::{Mutation, Options, Order, PrimCast, Protocol, Start, Timestamp, Touches};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long a run may take, in its own time, before what is not delivered counts as lost: longer
/// than any repeat of a protocol takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How a message is sent that nothing hurries: between these, evenly.
const FAST: (u64, u64) = (1, 30_000);
/// And one that does not arrive for long: several others are exchanged meanwhile. In nanoseconds,
/// and well below a protocol's timers.
const SLOW: (u64, u64) = (1, 600_000);
/// And in some runs to one process, which the others get far ahead of.
const SLOWEST: (u64, u64) = (600_000, 4_000_000);

/// Whether a message may overtake another one between the same two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Never.
    Fifo,
    /// In every second run.
    FifoOrNot,
}

/// How the runs are.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// How many messages are multicast.
    pub messages: u64,
    /// How many destinations a message has at most.
    pub dest_max: usize,
    /// See there.
    pub links: Links,
    /// Each message touches one or two of so many keys; all conflict if there are none.
    pub keys: u64,
    /// The messages form a chain instead, each with a group and a key in common with the next; but
    /// for two: one that raises some clock, and one that is multicast when the last of the chain
    /// has been delivered, and conflicts with the first only.
    pub chain: bool,
}

/// A cluster before its first message.
#[derive(Clone)]
pub struct Cluster<P: Process> {
    groups: Groups,
    /// Those that messages go to; others only send.
    dest: Vec<GroupId>,
    ids: Vec<ProcessId>,
    processes: Vec<P>,
    now: Time,
    /// Timers that are set: when, at which process.
    timers: BTreeSet<(Time, usize, P::Timer)>,
}

impl<P: Protocol + Clone> Cluster<P> {
    /// Groups 0, 1, .. of these sizes, and after them `outside` groups of one process that messages
    /// do not go to: they multicast, as clients do. All have started.
    pub fn new(sizes: &[u16], outside: u16, make: impl Fn(ProcessId, &Groups) -> P) -> Self {
        let dest = (0..).take(sizes.len()).map(GroupId).collect();
        let sizes: Vec<_> = sizes.iter().copied().chain((0..outside).map(|_| 1)).collect();
        let groups: Groups = Arc::new(groups_of(&sizes));
        let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
            let group = *group;
            nodes.clone().into_iter().map(move |node| ProcessId { group, node })
        };
        let ids: Vec<_> = groups.iter().flat_map(of).collect();
        let processes = ids.iter().map(|me| make(*me, &groups)).collect();
        let (now, timers) = (Time(0), BTreeSet::new());
        let cluster = Cluster { groups, dest, ids, processes, now, timers };
        let mut run = Run::new(&cluster, 0, Links::Fifo);
        run.busy = false;
        (0..cluster.ids.len()).for_each(|at| run.step(at, Event::Started));
        run.into_cluster()
    }

    /// Runs for this long without any message, so that each group has a primary.
    pub fn settle(self, time: Duration) -> Self {
        let mut run = Run::new(&self, 0, Links::Fifo);
        run.busy = false;
        let end = self.now + time;
        while run.next_at().is_some_and(|at| at <= end) {
            run.next();
        }
        run.now = end;
        run.into_cluster()
    }

    /// The processes with their names.
    pub fn processes(&self) -> impl Iterator<Item = (ProcessId, &P)> {
        self.ids.iter().copied().zip(&self.processes)
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// A run from here, decided by `seed`, until all is delivered or nothing more can be.
    pub fn run(&self, seed: u64, profile: Profile) -> History {
        self.ran(seed, profile).history
    }

    fn ran(&self, seed: u64, profile: Profile) -> Run<'_, P> {
        let mut run = Run::new(self, seed, profile.links);
        run.plan(&self.dest, profile);
        let end = self.now + TIMEOUT;
        while run.missing > 0 && run.next_at().is_some_and(|at| at <= end) {
            run.next();
        }
        run
    }
}

/// All that is promised of any run: deliveries agree, everywhere.
///
/// # Errors
/// The first violation.
pub fn judge(history: &History) -> Result<(), Violation> {
    check_integrity(history).map_err(|what| format!("integrity: {what}"))?;
    check_prefix(history).map_err(|what| format!("prefix: {what}"))?;
    check_timestamps(history).map_err(|what| format!("timestamps: {what}"))?;
    check_agreement(history).map_err(|what| format!("agreement: {what}"))
}

/// Atomic global order.
///
/// # Errors
/// A cycle.
pub fn judge_real_time(history: &History) -> Result<(), Violation> {
    check_real_time(history, End::Delivered).map_err(|what| format!("order in real time: {what}"))
}

/// Groups of these sizes, unless others are asked for: three to five.
const SIZES: [&[u16]; 6] = [&[1; 3], &[1; 4], &[1; 5], &[3; 3], &[3, 1, 2, 3], &[3, 1, 2, 3, 1]];

/// Short runs of PrimCast: what `meridian sim multicast --short` runs.
pub struct Short {
    options: Options,
    clusters: Vec<(Vec<u16>, Cluster<PrimCast>)>,
}

impl Short {
    /// With groups of these sizes, or of some that each seed draws.
    pub fn new(sizes: Option<Vec<u16>>, options: Options, mutation: Mutation) -> Short {
        let make = |me, groups: &Groups| {
            PrimCast::new(me, groups.clone()).with_options(options).with_mutation(mutation)
        };
        let sizes = sizes.map_or_else(|| SIZES.map(<[u16]>::to_vec).to_vec(), |sizes| vec![sizes]);
        let settled = |sizes: Vec<u16>| {
            let cluster = Cluster::new(&sizes, 2, make).settle(Duration::from_secs(3));
            (sizes, cluster)
        };
        Short { options, clusters: sizes.into_iter().map(settled).collect() }
    }
}

impl Trials for Short {
    /// How many messages there are and to how many groups they go is drawn; in each fourth run they
    /// conflict by keys, and in each eighth they form a chain.
    fn run(&self, seed: u64, detail: Detail) -> Outcome<String> {
        let random = &mut Random::seed_from_u64(seed ^ 0x5407);
        let (sizes, cluster) = &self.clusters[random.random_range(0..self.clusters.len())];
        let (messages, dest_max) = (random.random_range(4..=9), random.random_range(2..=3));
        let (keys, chain) = match random.random_range(0..8) {
            0 | 1 => (4, false),
            2 => (0, true),
            _ => (0, false),
        };
        let profile = Profile { messages, dest_max, links: Links::Fifo, keys, chain };
        let drawn = Box::new(format!("groups {sizes:?}, {profile:?}"));
        let judged = caught(|| {
            let run = cluster.ran(seed, profile);
            if let Some(filter) = &detail.trace {
                let told = run.history.entries.iter().filter(|entry| entry.is_told(filter));
                told.for_each(|entry| print(&entry.to_string()));
            }
            judge(&run.history)?;
            if self.options.order == Order::Linearizable {
                judge_real_time(&run.history)?;
            }
            Ok((run.history, run.count, run.now.since(cluster.now)))
        });
        match judged {
            Ok((history, events, took)) => {
                let (counts, end) = (counts(&history), Time(0) + took);
                Ok(Report { seed, drawn, events, counts, end, trace_hash: 0 })
            }
            Err(violated) => Err(Failure { seed, drawn, violated, events: 0, at: Time(0) }),
        }
    }

    fn explain(&self, _seed: u64, _message: &str) -> Result<String, String> {
        Err("short runs are not explained: leave out --short".into())
    }
}

fn counts(history: &History) -> Counts {
    let count = |wanted: fn(&Entry) -> bool| {
        let wanted = history.entries.iter().filter(|entry| wanted(entry));
        u64::try_from(wanted.count()).unwrap_or(u64::MAX)
    };
    let mut counts = Counts::default();
    counts.add("messages", count(|entry| matches!(entry, Entry::Multicast { .. })));
    counts.add("deliveries", count(|entry| matches!(entry, Entry::Deliver { .. })));
    counts
}

/// A message that is to be multicast.
struct Planned {
    start: Start,
    /// The process that does it.
    sender: usize,
    /// Where it is not delivered yet.
    silent: Vec<GroupId>,
    /// Those that wait until it was delivered once, and in all its groups.
    after_first: Vec<usize>,
    after_all: Vec<usize>,
}

enum Next<P: Protocol> {
    Message {
        from: usize,
        to: usize,
        message: P::Message,
    },
    Multicast(usize),
    /// No more input is ready for the process.
    Idle(usize),
}

struct Run<'a, P: Protocol> {
    cluster: &'a Cluster<P>,
    processes: Vec<P>,
    random: Random,
    fifo: bool,
    /// Whether processes take several events before they are idle. Those that are not idle now.
    busy: bool,
    /// Who hears late, if anybody does.
    late: Option<usize>,
    working: BTreeSet<usize>,
    now: Time,
    timers: BTreeSet<(Time, usize, P::Timer)>,
    queue: BTreeMap<(Time, u64), Next<P>>,
    /// How many were put into the queue.
    count: u64,
    /// When the last message arrives on each way, if messages are not to overtake.
    last: BTreeMap<(usize, usize), Time>,
    plan: Vec<Planned>,
    /// How many deliveries are to come.
    missing: usize,
    history: History,
}

impl<'a, P: Protocol + Clone> Run<'a, P> {
    fn new(cluster: &'a Cluster<P>, seed: u64, links: Links) -> Self {
        let mut random = Random::seed_from_u64(seed);
        let fifo = links == Links::Fifo || random.random_bool(0.5);
        let busy = random.random_bool(0.5);
        let late = random.random_bool(0.25).then(|| random.random_range(0..cluster.ids.len()));
        let mut members: BTreeMap<GroupId, Vec<ProcessId>> = BTreeMap::new();
        for id in &cluster.ids {
            members.entry(id.group).or_default().push(*id);
        }
        Run {
            cluster,
            processes: cluster.processes.clone(),
            random,
            fifo,
            busy,
            late,
            working: BTreeSet::new(),
            now: cluster.now,
            timers: cluster.timers.clone(),
            queue: BTreeMap::new(),
            count: 0,
            last: BTreeMap::new(),
            plan: Vec::new(),
            missing: 0,
            history: History::new(members),
        }
    }

    fn into_cluster(self) -> Cluster<P> {
        let (groups, dest) = (self.cluster.groups.clone(), self.cluster.dest.clone());
        let (ids, processes) = (self.cluster.ids.clone(), self.processes);
        Cluster { groups, dest, ids, processes, now: self.now, timers: self.timers }
    }

    /// Draws the messages. Each has a client of its own, so its name says nothing about its time.
    fn plan(&mut self, dest: &[GroupId], profile: Profile) {
        if profile.chain && dest.len() > 1 {
            return self.plan_chain(dest, profile.messages);
        }
        let mut names: Vec<u64> = (1..=profile.messages).collect();
        for at in 0..profile.messages {
            let name = names.swap_remove(self.random.random_range(0..names.len()));
            let id = MessageId { client: ClientId(name), sequence: 1 };
            let count = self.random.random_range(1..=profile.dest_max.min(dest.len()));
            let mut to: Vec<_> = dest.sample(&mut self.random, count).copied().collect();
            to.sort_unstable();
            let keys = (0..2).map(|_| self.random.random_range(0..profile.keys.max(1)));
            let touches = if profile.keys == 0 { Touches::All } else { Touches::keys(keys) };
            let start = Start { touches, ..Start::new(id, to.clone(), Vec::new()) };
            self.plan_one(start);
            let at = at as usize;
            let earlier = self.random.random_range(0..=at);
            match self.random.random_range(0..4) {
                0 | 1 if earlier < at => self.plan[earlier].after_all.push(at),
                2 if earlier < at => self.plan[earlier].after_first.push(at),
                _ => self.later(SLOW, Next::Multicast(at)),
            }
        }
    }

    /// A message from anybody.
    fn plan_one(&mut self, start: Start) {
        let silent = start.dest.to_vec();
        let members = silent.iter().map(|group| self.cluster.groups[group].len());
        self.missing += members.sum::<usize>();
        let sender = self.random.random_range(0..self.processes.len());
        let (after_first, after_all) = (Vec::new(), Vec::new());
        self.plan.push(Planned { start, sender, silent, after_first, after_all });
    }

    /// See [`Profile::chain`]. They are multicast one after the other, and the first group hears
    /// late.
    fn plan_chain(&mut self, dest: &[GroupId], messages: u64) {
        let id = |name| MessageId { client: ClientId(name), sequence: 1 };
        let any = |random: &mut Random| dest[random.random_range(0..dest.len())];
        let links = messages - 2;
        let first = any(&mut self.random);
        let mut here = first;
        for link in 0..links {
            let mut next = any(&mut self.random);
            while next == here {
                next = any(&mut self.random);
            }
            let mut to = vec![here, next];
            to.sort_unstable();
            let touches = Touches::keys([link, link + 1]);
            self.plan_one(Start { touches, ..Start::new(id(link + 2), to, Vec::new()) });
            here = next;
        }
        let touches = Touches::keys([0]);
        self.plan_one(Start { touches, ..Start::new(id(1), vec![first], Vec::new()) });
        let (touches, after) = (Touches::keys([links + 1]), Timestamp(20));
        let group = any(&mut self.random);
        self.plan_one(Start {
            touches,
            after,
            ..Start::new(id(links + 2), vec![group], Vec::new())
        });
        let links = links as usize;
        self.plan[links - 1].after_first.push(links);
        self.late = self.cluster.ids.iter().position(|process| process.group == first);
        for at in (0..links).chain([links + 1]) {
            let before = at as u64 * FAST.1 * 3;
            self.later((before, before + SLOW.1 / 3), Next::Multicast(at));
        }
    }

    /// Puts into the queue what happens after a random time.
    fn later(&mut self, within: (u64, u64), next: Next<P>) {
        let after = self.random.random_range(within.0..=within.1);
        let mut at = self.now + Duration::from_nanos(after);
        if let Next::Message { from, to, .. } = &next
            && self.fifo
        {
            let last = self.last.entry((*from, *to)).or_default();
            at = at.max(*last);
            *last = at;
        }
        self.count += 1;
        self.queue.insert((at, self.count), next);
    }

    fn next_at(&self) -> Option<Time> {
        let message = self.queue.keys().next().map(|(at, _)| *at);
        let timer = self.timers.first().map(|(at, ..)| *at);
        message.into_iter().chain(timer).min()
    }

    /// Takes what comes next, a message before a timer.
    fn next(&mut self) {
        let timer = self.timers.first().copied();
        if let Some((at, process, timer)) = timer
            && self.queue.keys().next().is_none_or(|(first, _)| at < *first)
        {
            self.timers.pop_first();
            self.now = at;
            self.step(process, Event::Timer(timer));
        } else if let Some(((at, _), next)) = self.queue.pop_first() {
            self.now = at;
            match next {
                Next::Message { from, to, message } => {
                    let from = self.cluster.ids[from];
                    self.step(to, Event::Message { from, message });
                }
                Next::Multicast(at) => {
                    let (start, sender) = (self.plan[at].start.clone(), self.plan[at].sender);
                    let (id, dest, t) = (start.id, start.dest.to_vec(), self.now);
                    let (touches, after) = (start.touches.clone(), start.after);
                    self.history.push(Entry::Multicast { id, dest, touches, after, t });
                    self.step(sender, Event::Command(P::multicast(start)));
                }
                Next::Idle(at) => {
                    self.working.remove(&at);
                    let mut out = Outbox::new();
                    self.processes[at].step(self.now, Event::Idle, &mut out);
                    self.carry_out(at, out);
                }
            }
        }
    }

    /// An event, and that nothing more is ready; or that comes later.
    fn step(&mut self, at: usize, event: Event<P>) {
        let mut out = Outbox::new();
        self.processes[at].step(self.now, event, &mut out);
        if !self.busy {
            self.processes[at].step(self.now, Event::Idle, &mut out);
        } else if self.working.insert(at) {
            self.later(FAST, Next::Idle(at));
        }
        self.carry_out(at, out);
    }

    fn carry_out(&mut self, at: usize, mut out: Outbox<P>) {
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    let Ok(to) = self.cluster.ids.binary_search(&to) else { continue };
                    let within = match self.random.random_range(0..4) {
                        0 | 1 if self.late == Some(to) => SLOWEST,
                        0 => SLOW,
                        _ => FAST,
                    };
                    self.later(within, Next::Message { from: at, to, message });
                }
                Effect::Output(output) => self.deliver(at, output),
                Effect::Timer { at: when, timer } => drop(self.timers.insert((when, at, timer))),
                Effect::Persist(_) | Effect::Note(_) => {}
            }
        }
    }

    fn deliver(&mut self, at: usize, output: P::Output) {
        let Some(delivery) = P::delivery(output) else { return };
        let (process, id, t) = (self.cluster.ids[at], delivery.start.id, self.now);
        let (ts, position) = (delivery.ts, delivery.position);
        self.history.push(Entry::Deliver { process, id, ts, position, t });
        self.missing = self.missing.saturating_sub(1);
        let Some(planned) = self.plan.iter_mut().find(|planned| planned.start.id == id) else {
            return;
        };
        planned.silent.retain(|group| *group != process.group);
        let mut next = std::mem::take(&mut planned.after_first);
        if planned.silent.is_empty() {
            next.append(&mut planned.after_all);
        }
        next.into_iter().for_each(|at| self.later(FAST, Next::Multicast(at)));
    }
}
