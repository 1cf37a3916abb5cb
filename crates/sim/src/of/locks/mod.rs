//! Clients that lock files of each other: two never have the same exclusive lock, who waits gets it
//! in the end, nobody gets it who has gone, a cycle is refused, and nothing lands that was written
//! under a lock that was lost.
//!
//! Each client does one thing at a time. Under an exclusive lock it reads the number in the
//! file and writes the next one; no number may be acknowledged twice, as it would be if two had
//! the lock, or if one wrote after it had lost it. Requests and replies are late and lost; a
//! client stands still for longer than its lease at times, gives up waiting, or is gone for
//! good. Nodes have all kinds of faults.

mod client;
pub mod trial;

use super::files::net::{Crowd, Habits, Net};
use super::files::regions;
use super::{Named, draw_all, names_of_planted};
use crate::of::files::words::MESSAGES;
use crate::world::Stimulus;
use client::{Asked, Client, Seen};
use meridian_cluster::Topology;
use meridian_core::{ClientId, Event, GroupId, Time};
use meridian_fs::operation::NewNode;
use meridian_fs::types::Kind;
use meridian_fs::{Done, Ino, Place, Timestamp, Update};
use meridian_host::Node;
use meridian_host::update::Change;
use meridian_session::{CallId, Command as Ask, Mutation, Output as Told, Session};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// `meridian sim locks`.
pub const NAMED: Named = Named {
    name: "locks",
    about: "Clients that lock files of each other, and wait for locks",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients take locks, wait for them,
give up waiting, and count in files under exclusive locks. Requests are late and lost, clients stand
still for longer than their leases or are gone for good, nodes have all kinds of faults. Checked are
that two never have one exclusive lock, that nothing lands that was written under a lock that was
lost, that who waits gets the lock in the end, and that cycles are refused, also those over several
partitions, and nothing else.

Examples:
  meridian sim locks --seeds 10000
  meridian sim locks --seed 137 --trace",
    messages: MESSAGES,
    explained: None,
    settings: &[],
    pin: draw_all::<trial::Trial>,
    planted: names_of_planted::<trial::Trial>,
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The files in each of the partitions that have some.
const FILES: u64 = 2;
/// So many partitions have files.
const PARTITIONS: usize = 2;

/// The clients, and what they were told.
pub struct LocksWorkload {
    /// The sessions, and what is on its way.
    pub net: Net<Infallible>,
    clients: Vec<Client>,
    files: Vec<Place>,
    /// The call of the first client that makes the next file.
    making: Option<CallId>,
    wrote: BTreeSet<(Place, u64)>,
}

impl LocksWorkload {
    /// So many clients, each of which begins so many times with nothing.
    pub fn new(
        seed: u64,
        topology: Arc<Topology>,
        (clients, things): (u64, u64),
        mutation: Mutation,
    ) -> Self {
        let client = |number: u64| Client::new(ClientId(1_000_000 + number), things, mutation);
        LocksWorkload {
            net: Net::new((seed, 0x10c5), topology, clients, |session| session),
            clients: (0..clients).map(client).collect(),
            files: Vec::new(),
            making: None,
            wrote: BTreeSet::new(),
        }
    }

    /// The greatest number that was acknowledged in each file.
    pub fn greatest(&self) -> BTreeMap<Place, u64> {
        self.wrote.iter().copied().collect()
    }

    /// A session tells something; what its client asks then.
    fn asks_after(&mut self, at: usize, told: Told, now: Time) -> Vec<Ask> {
        let Some(call) = told.call() else { return Vec::new() };
        let gave_up = matches!(told, Told::GaveUp { .. });
        let mut asks: Vec<Ask> = gave_up.then_some(Ask::Release(call)).into_iter().collect();
        if self.making == Some(call) {
            self.making = None;
            if let Told::Updated { result: Ok(Done::Attributes(made)), .. } = told {
                self.files.push(made.place);
            }
            return asks;
        }
        let client = &mut self.clients[at];
        if client.renewing.remove(&call) {
            return asks;
        }
        if client.has_look(call) {
            let answer = match told {
                Told::Answered { result, .. } => result.ok(),
                _ => None,
            };
            asks.extend(
                client.on_look(call, answer, now).map(|(call, asked)| ask(call, asked, now)),
            );
            return asks;
        }
        if client.doing.as_ref().is_none_or(|(doing, _, _)| *doing != call) {
            return asks;
        }
        let mut seen = Vec::new();
        let asked = match told {
            Told::Updated { result, .. } => client.on_updated(result, &mut seen),
            Told::Answered { result, .. } => client.on_answered(result, &mut seen),
            Told::GaveUp { .. } => {
                seen.push(Seen::Count("given up"));
                client.on_given_up()
            }
            other => panic!("nobody asked for {other:?}"),
        };
        asks.extend(asked.map(|asked| self.ask(at, asked, now)));
        seen.into_iter().for_each(|seen| self.judge(at, seen));
        self.note_cycles();
        asks
    }

    /// The question or update of what a client does now.
    fn ask(&self, at: usize, asked: Asked, now: Time) -> Ask {
        let (call, _, _) = self.clients[at].doing.as_ref().expect("it has begun it");
        ask(*call, asked, now)
    }

    /// Notes who is in a cycle now, by what clients do and believe to hold. Who waits knows what it
    /// holds; so whoever is in a cycle by the trees' state is so by this, too.
    fn note_cycles(&mut self) {
        let after = |of: usize| {
            let awaited = self.clients[of].awaits();
            let holds = move |(_, client): &(usize, &Client)| {
                awaited.is_some_and(|(place, lock)| {
                    let held = client.held.get(&place).map(|held| held.lock);
                    held.is_some_and(|held| held.exclusive || lock.exclusive)
                })
            };
            let others = self.clients.iter().enumerate().filter(move |(at, _)| *at != of);
            others.filter(holds).map(|(at, _)| at)
        };
        let is_tangled = |of: usize| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![of]);
            while let Some(at) = next.pop() {
                next.extend(after(at).filter(|at| reached.insert(*at)));
            }
            reached.contains(&of)
        };
        let tangled: Vec<_> = (0..self.clients.len()).filter(|of| is_tangled(*of)).collect();
        for at in tangled {
            self.clients[at].was_tangled = true;
        }
    }

    fn judge(&mut self, at: usize, seen: Seen) {
        match seen {
            Seen::Count(what) => self.net.counts.add(what, 1),
            Seen::Refused => {
                self.net.counts.add("deadlocks", 1);
                if !self.clients[at].was_tangled {
                    self.net.violate(format!("deadlocks: client {at} was in no cycle"));
                }
            }
            Seen::Wrong(what) => self.net.violate(format!("locks: {what}")),
            Seen::Wrote(place, value) => {
                self.net.counts.add("writes", 1);
                if !self.wrote.insert((place, value)) {
                    let what = format!("exclusion: client {at} writes {value} again to {place:?}");
                    self.net.violate(what);
                }
            }
        }
    }

    /// The first client makes one file after the other, before all else.
    fn make_file(&mut self, now: Time) -> Vec<Stimulus<Node>> {
        if self.making.is_some() {
            return Vec::new();
        }
        let number = self.files.len();
        let partition = GroupId(u16::try_from(number % PARTITIONS).expect("a few"));
        let parent = Place { ino: Ino::top(partition), partition };
        let call = self.clients[0].next_call();
        let name = bytes::Bytes::from(format!("{number}-{}", call.0));
        let update = Update::Create { parent, name, node: NewNode::new(Kind::File, 0o644) };
        self.making = Some(call);
        let change = Change::new(Timestamp::default(), update);
        let ask = Ask::Update { call, change, deadline: now + PATIENCE };
        self.step(0, now, Event::Command(ask))
    }
}

fn ask(call: CallId, asked: Asked, now: Time) -> Ask {
    let deadline = now + PATIENCE;
    match asked {
        Asked::Update(change) => Ask::Update { call, change, deadline },
        Asked::Query(query) => Ask::Read { call, query, deadline },
    }
}

impl Crowd for LocksWorkload {
    type Own = Infallible;
    const HABITS: Habits = Habits { pause_ms: 20..400, still: (200, 60_000), gone: 3000 };

    fn net(&self) -> &Net<Infallible> {
        &self.net
    }

    fn net_mut(&mut self) -> &mut Net<Infallible> {
        &mut self.net
    }

    fn waiting(&self) -> String {
        let of = |(at, client): (usize, &Client)| {
            let doing = client.doing.as_ref().filter(|_| !self.net.is_gone(at))?;
            Some(format!("{at}: {doing:?}, holds {:?}", client.held))
        };
        self.clients.iter().enumerate().filter_map(of).collect::<Vec<_>>().join("\n")
    }

    fn on_told(
        &mut self,
        at: usize,
        now: Time,
        told: Told,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>> {
        events.extend(self.asks_after(at, told, now).into_iter().map(Event::Command));
        None
    }

    fn on_own(&mut self, _at: usize, own: Infallible, _now: Time) -> Ask {
        match own {}
    }

    fn act(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        if self.files.len() < PARTITIONS * FILES as usize {
            return if at == 0 { self.make_file(now) } else { stimuli };
        }
        for partition in self.clients[at].renews(now) {
            let client = &mut self.clients[at];
            let call = client.next_call();
            client.renewing.insert(call);
            let update = Update::Renew { client: client.id, partition };
            let change = Change::new(Timestamp::default(), update);
            let ask = Ask::Update { call, change, deadline: now + PATIENCE };
            stimuli.extend(self.step(at, now, Event::Command(ask)));
        }
        let partitions = self.net.topology.group_ids();
        for (call, asked) in self.clients[at].looks(now, partitions) {
            stimuli.extend(self.step(at, now, Event::Command(ask(call, asked, now))));
        }
        let before = self.clients[at].doing.as_ref().map(|(call, _, _)| *call);
        let interrupts = self.net.random.random_ratio(1, 60) && !self.net.is_calm();
        let asked = match interrupts {
            true => self.clients[at].interrupt(),
            false => self.clients[at].next(&self.files, &mut self.net.random),
        };
        let Some(asked) = asked else { return stimuli };
        if let Some(call) = before {
            stimuli.extend(self.step(at, now, Event::Command(Ask::Release(call))));
        }
        let ask = self.ask(at, asked, now);
        self.note_cycles();
        stimuli.extend(self.step(at, now, Event::Command(ask)));
        stimuli
    }

    /// The first client makes the files.
    fn may_go(&self, at: usize) -> bool {
        at != 0
    }

    /// They hold nothing, too.
    fn is_done(&self) -> bool {
        let mut all = self.clients.iter().enumerate();
        self.files.len() == PARTITIONS * FILES as usize
            && all.all(|(at, client)| self.net.is_gone(at) || client.is_done())
    }
}
