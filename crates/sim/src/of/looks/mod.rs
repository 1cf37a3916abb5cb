//! Clients that keep what they see, in directories that all of them use: no look that a client
//! answers itself is older than what was acknowledged anywhere before the look began.
//!
//! Each client does one update at a time in shared directories of all partitions: it makes, removes
//! and renames names, also between partitions, makes directories, also deep below each other, and
//! changes owners; and it looks at all of that, often, and now and then at all names of a directory
//! one after the other, so that it asks to hold what they lead to in one step; and it opens files
//! of which its kernel keeps pages. Requests and replies are late and lost, now and then by
//! seconds; a client stands still for longer than its lease at times, or is gone for good. Nodes
//! have all kinds of faults. An owner needs a while until it has dropped what is recalled, as a
//! kernel does.

mod batches;
mod judging;
mod nests;
mod pages;
mod register;
pub mod trial;

use super::files::net::{Crowd, Habits, Net, Plan as Planned};
use super::files::regions;
use super::{Named, draw_all, names_of_planted};
use crate::of::files::words::MESSAGES;
use crate::world::Stimulus;
use batches::Batches;
use bytes::Bytes;
use judging::{files_in, thing_of, value_of};
use meridian_cluster::Topology;
use meridian_core::{Effect, Event, GroupId, Outbox, Process, Stamp, Time};
use meridian_fs::{Answer, Done, FsError, Ino, Place, Query, Vector};
use meridian_host::Node;
use meridian_session::{
    CallId, Command as Ask, Due, Keeping, Message, Mutation, Output as Told, Session,
};
use nests::Nests;
use pages::Kernel;
use rand::RngExt;
use rand::seq::IndexedRandom;
use register::{Change, Registers, Thing, Value};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// `meridian sim looks`.
pub const NAMED: Named = Named {
    name: "looks",
    about: "Clients that keep what they see, in shared directories",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients make, remove, rename and
change things in directories that all of them use, and look at them, mostly in what they keep
themselves. Requests are late and lost, clients stand still for longer than their leases or are gone
for good, nodes have all kinds of faults. Checked is that no look at what a client keeps is older
than what was acknowledged anywhere before, and that who takes over a token sees nothing older than
what its giver saw, acknowledged or not.

Examples:
  meridian sim looks --seeds 10000
  meridian sim looks --seed 137 --trace",
    messages: MESSAGES,
    explained: None,
    settings: &[],
    pin: draw_all::<trial::Trial>,
    planted: names_of_planted::<trial::Trial>,
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The names in each directory.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Once in so many times a client looks at all names of a directory.
const LISTS: u32 = 6;
/// So many directories there are at most.
const DIRECTORIES_MAX: usize = 7;

/// Something on its way to a client that only these have.
#[derive(Clone, Debug)]
pub enum Plan {
    /// The kernel has dropped that.
    LetGo(Vec<(GroupId, Ino)>),
    /// A token comes, of who has seen that.
    Take(Vector, Handed),
    /// What it keeps back is to be sent.
    Land(Ino),
    /// The same of what comes first, of who keeps the order.
    Send,
}

/// What somebody has seen, and has handed over.
#[derive(Clone, Debug)]
pub struct Handed {
    query: Query,
    thing: Thing,
    value: Value,
    /// Whether the token was taken, and this is looked at.
    taken: bool,
}

/// One client.
struct Client {
    last: CallId,
    /// The update that it waits for.
    doing: Option<(CallId, Change)>,
    /// Looks that replicas were asked for.
    looks: BTreeMap<CallId, Query>,
    /// Tokens that it takes over.
    handed: BTreeMap<CallId, Handed>,
    left: u64,
    /// How much it had asked to hold in one step with more, when that was looked at last, how much
    /// with what came along, and how much of that from below what it had looked at; how many
    /// directories it had come to know whole.
    swept: [u64; 4],
    /// How many looks it had answered itself.
    hits: u64,
    kernel: Kernel,
    nests: Nests,
    batches: Batches,
    /// Files that it has seen names of.
    seen: BTreeSet<Place>,
}

/// The clients, and what they were told.
pub struct LooksWorkload {
    /// The sessions, and what is on its way.
    pub net: Net<Plan>,
    clients: Vec<Client>,
    registers: Registers,
    directories: Vec<Place>,
    /// Whether clients hand tokens to each other: that drops much of what they keep.
    hands: bool,
    /// Whether they keep new files back.
    keeps_back: bool,
    /// Whether they keep removals back, too, and the order of all.
    in_order: bool,
    /// Whether they keep back what they change of files of their own, too.
    writes: bool,
    /// Whether they give files that are made there other names elsewhere.
    links: bool,
    /// Files that were kept back: who has not seen a name of one does not know its number.
    private: BTreeSet<Ino>,
    /// Whether directories say so, not clients.
    by_directory: bool,
    /// Whether some go through a directory in the order of numbers.
    by_number: bool,
    /// Whether directories are made in each other mostly.
    deep: bool,
    now: Time,
}

impl LooksWorkload {
    /// So many clients, each of which does so many things.
    pub fn new(
        seed: u64,
        topology: Arc<Topology>,
        (clients, things): (u64, u64),
        mutation: Mutation,
    ) -> Self {
        let client = |_| Client {
            last: CallId(0),
            doing: None,
            looks: BTreeMap::new(),
            handed: BTreeMap::new(),
            left: things,
            swept: [0; 4],
            hits: 0,
            kernel: Kernel::default(),
            nests: Nests::default(),
            batches: Batches::default(),
            seen: BTreeSet::new(),
        };
        let top = |partition| Place { ino: Ino::top(partition), partition };
        LooksWorkload {
            clients: (0..clients).map(client).collect(),
            directories: topology.group_ids().map(top).collect(),
            net: Net::new((seed, 0x100c), topology, clients, |one| one.with_mutation(mutation)),
            registers: Registers::default(),
            hands: false,
            keeps_back: false,
            in_order: false,
            writes: false,
            links: false,
            private: BTreeSet::new(),
            by_directory: false,
            by_number: false,
            deep: false,
            now: Time(0),
        }
    }

    /// Clients keep changes back, in directories that they make for that.
    pub fn keeps_back(&mut self, keeping: Keeping) {
        self.keeps_back = keeping != Keeping::Nothing;
        self.in_order = keeping == Keeping::InOrder;
    }

    /// What they change of files of their own they keep back, too.
    pub fn keeps_writes_back(&mut self) {
        self.keeps_back(Keeping::InOrder);
        self.writes = true;
    }

    /// They give files of the directories that they make for that other names, in others.
    pub fn gives_names(&mut self, gives: bool) {
        self.links = gives;
    }

    /// Directories say that the order is kept there (decision 110); clients by default do not.
    pub fn keeps_back_by_directory(&mut self) {
        self.keeps_back(Keeping::InOrder);
        self.by_directory = true;
    }

    /// Some go through directories in the order of numbers.
    pub fn goes_by_number(&mut self, by_number: bool) {
        self.by_number = by_number;
    }

    /// Clients hand tokens to each other.
    pub fn hands_tokens(&mut self, hands: bool) {
        self.hands = hands;
    }

    /// Directories are made in each other mostly.
    pub fn makes_deep(&mut self, deep: bool) {
        self.deep = deep;
    }

    fn directories_max(&self) -> usize {
        if self.keeps_back || self.deep { 2 * DIRECTORIES_MAX } else { DIRECTORIES_MAX }
    }

    /// A client looks: what it answers itself is judged.
    fn look(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let parent = *self.directories.choose(&mut self.net.random).expect("there are some");
        let name = Bytes::from_static(NAMES.choose(&mut self.net.random).expect("some").as_bytes());
        if self.writes && self.net.random.random_ratio(1, 3) {
            let seen = self.clients[at].seen.iter();
            let seen: Vec<_> =
                seen.filter(|place| self.private.contains(&place.ino)).copied().collect();
            if let Some(inode) = seen.choose(&mut self.net.random).copied() {
                return self.look_at(at, now, Query::Attributes { inode });
            }
        }
        let named = self.net.random.random_bool(0.6);
        let query = match named {
            true => Query::Lookup { parent, name },
            false if self.net.random.random_ratio(1, 3) => {
                Query::Directory { inode: parent, after: Bytes::new(), limit: 100 }
            }
            false => Query::Attributes { inode: parent },
        };
        self.look_at(at, now, query)
    }

    fn look_at(&mut self, at: usize, now: Time, query: Query) -> Vec<Stimulus<Node>> {
        let client = &mut self.clients[at];
        client.last.0 += 1;
        let call = client.last;
        client.looks.insert(call, query.clone());
        let session = self.net.session(at);
        let swept = [session.swept(), session.along(), session.below(), session.surveyed()];
        let before = std::mem::replace(&mut client.swept, swept);
        let names = ["swept", "came along", "came along from below", "surveyed"];
        for (name, (now, before)) in names.into_iter().zip(swept.into_iter().zip(before)) {
            self.net.counts.add(name, now - before);
        }
        let session = self.net.session(at);
        let before = session.hits();
        let ask = Ask::Read { call, query: query.clone(), deadline: now + PATIENCE };
        let mut out = Outbox::new();
        session.step(now, Event::Command(ask), &mut out);
        let hits = session.hits();
        let kept = hits > before;
        self.clients[at].hits = hits;
        let mut stimuli = Vec::new();
        for effect in out.drain() {
            match effect {
                Effect::Output(Told::Answered { result, .. }) if kept => {
                    self.clients[at].looks.remove(&call);
                    self.net.counts.add("kept", 1);
                    self.judge_kept(at, &query, &result);
                }
                Effect::Output(told) => {
                    let mut events = VecDeque::new();
                    stimuli.extend(self.on_told(at, now, told, &mut events));
                    for event in events {
                        stimuli.extend(self.step(at, now, event));
                    }
                }
                Effect::Send { to, message: Message::Request(request) } => {
                    let sent = self.net.send(at, to, request);
                    // What is lost here is as if the connection had broken a little later.
                    stimuli.push(sent.unwrap_or_else(|| {
                        self.net.plan(at, Duration::from_micros(10), Planned::Lost(to))
                    }));
                }
                Effect::Timer { at: due, timer: Due } => {
                    stimuli.push(Net::<Plan>::wait(at, due, now));
                }
                other => panic!("a session does not {other:?}"),
            }
        }
        stimuli
    }

    /// A client looks at all names of a directory, one after the other.
    fn list(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let parent = *self.directories.choose(&mut self.net.random).expect("there are some");
        let mut names = NAMES.map(|name| Bytes::from_static(name.as_bytes()));
        let mut stimuli = Vec::new();
        if self.by_number && self.net.random.random_bool(0.5) {
            let query = Query::Directory { inode: parent, after: Bytes::new(), limit: 100 };
            stimuli.extend(self.look_at(at, now, query));
            let led = |name: &Bytes| self.registers.leads(&Thing::Name(parent.ino, name.clone()));
            names.sort_by_key(|name| led(name).map(|place| place.ino));
        }
        let looks = names.map(|name| self.look_at(at, now, Query::Lookup { parent, name }));
        stimuli.into_iter().chain(looks.into_iter().flatten()).collect()
    }

    /// At times a client hands another what it has seen as soon as it has seen something.
    fn hand_over(
        &mut self,
        at: usize,
        query: Query,
        result: &Result<Answer, FsError>,
    ) -> Option<Stimulus<Node>> {
        if !self.hands || !self.net.random.random_ratio(1, 4) {
            return None;
        }
        if matches!(query, Query::Attributes { inode } if !self.directories.contains(&inode)) {
            return None; // A file, which may be removed meanwhile.
        }
        let to = self.net.random.random_range(0..self.clients.len());
        let thing = thing_of(&query);
        let value = value_of(result).filter(|_| to != at)?;
        let seen = self.net.session(at).vector().clone();
        let handed = Handed { query, thing, value, taken: false };
        Some(self.net.plan(to, Duration::ZERO, Planned::Own(Plan::Take(seen, handed))))
    }

    /// An update was decided.
    fn on_updated(
        &mut self,
        at: usize,
        call: CallId,
        (ts, result): (Stamp, &Result<Done, FsError>),
    ) {
        self.net.counts.add("updates", 1);
        if !self.has_landed(at, call, nests::error_of(result)) {
            let (doing, change) = self.clients[at].doing.take().expect("it waits for it");
            assert_eq!(doing, call, "it does one thing at a time");
            if self.in_order {
                let groups: Vec<_> = change.update().partitions().into_iter().collect();
                self.judge_order(at, call, &groups);
            }
            change.given().into_iter().for_each(|ino| self.clients[at].kernel.drop_pages(ino));
            if let (Ok(_), Change::KeepOrder(directory)) = (result, &change) {
                self.clients[at].nests.set_order(*directory);
            }
            if let (Ok(Done::Attributes(made)), Change::MakeDirectory(..)) = (result, &change)
                && self.directories.len() < self.directories_max()
                && (!self.keeps_back || !self.clients[at].nests.settle(made.place))
            {
                self.directories.push(made.place);
            }
        }
        self.registers.end((at, call), ts, result);
    }

    /// A client has taken a token, and looks at what its giver saw.
    fn judge_handed(&mut self, at: usize, handed: &Handed, result: &Result<Answer, FsError>) {
        assert!(handed.taken, "a token is no question");
        self.net.counts.add("taken", 1);
        let Some(found) = value_of(result) else {
            return self.net.violate(format!("token: {handed:?} is {result:?}"));
        };
        let kept = self.registers.keeper(&handed.thing).is_some();
        if self.registers.is_lost(&handed.thing, handed.value)
            || kept && !self.is_strict(&handed.thing)
        {
            return; // Its keeper was cut off for too long, or is gone.
        }
        if self.registers.is_older(&handed.thing, found, handed.value) {
            let what = format!("{:?} was seen to be {:?}", handed.thing, handed.value);
            self.net.violate(format!("token: client {at} took one: {what}, and then {found:?}"));
        }
    }
}

/// A failure that a client may meet.
fn expect_failure(failure: &meridian_session::Failure) {
    use meridian_session::Failure;
    let expected = matches!(
        failure,
        Failure::Timeout { .. } | Failure::Unreachable { .. } | Failure::OutOfReach { .. }
    );
    assert!(expected, "{failure:?}");
}

impl Crowd for LooksWorkload {
    type Own = Plan;
    const HABITS: Habits = Habits { pause_ms: 5..120, still: (40, 9_000), gone: 600 };

    fn net(&self) -> &Net<Plan> {
        &self.net
    }

    fn net_mut(&mut self) -> &mut Net<Plan> {
        &mut self.net
    }

    fn waiting(&self) -> String {
        let all = self.clients.iter().enumerate();
        let of =
            |(at, client): (usize, &Client)| Some(format!("{at}: {:?}", client.doing.as_ref()?));
        all.filter_map(of).collect::<Vec<_>>().join("\n")
    }

    fn prepare(&mut self, at: usize) -> Vec<Stimulus<Node>> {
        let mut stimuli = self.step(at, Time(0), Event::Command(Ask::Keep));
        if self.keeps_back {
            let in_order = self.in_order && !self.by_directory;
            let keeping = if in_order { Keeping::InOrder } else { Keeping::Files };
            stimuli.extend(self.step(at, Time(0), Event::Command(Ask::KeepBack(keeping))));
        }
        stimuli
    }

    fn on_told(
        &mut self,
        at: usize,
        now: Time,
        told: Told,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>> {
        self.now = now;
        match told {
            Told::Land { all } => {
                return self.called_to_land(at, all, events);
            }
            Told::Recalled { gone } => {
                self.net.counts.add("recalled", gone.len() as u64);
                // The kernel has to be told first.
                let after = Duration::from_micros(self.net.random.random_range(10..20_000));
                return Some(self.net.plan(at, after, Planned::Own(Plan::LetGo(gone))));
            }
            Told::Answered { call, result, .. } => {
                self.net.counts.add("reads", 1);
                self.clients[at].seen.extend(files_in(&result));
                self.judge_removed(at, call, &result);
                self.judge_late(at, call, &result);
                let client = &mut self.clients[at];
                let query = client.looks.remove(&call);
                if client.kernel.on_read(call, &result) {
                    return None;
                }
                if let Some(handed) = self.clients[at].handed.remove(&call) {
                    self.judge_handed(at, &handed, &result);
                }
                return self.hand_over(at, query?, &result);
            }
            Told::Followed { call } => {
                let client = &mut self.clients[at];
                let handed = client.handed.remove(&call).expect("it takes a token");
                client.last.0 += 1;
                let (call, query) = (client.last, handed.query.clone());
                client.handed.insert(call, Handed { taken: true, ..handed });
                let deadline = now + PATIENCE;
                events.push_back(Event::Command(Ask::Read { call, query, deadline }));
            }
            Told::Updated { call, ts, result, .. } => {
                if let Some(next) = self.on_batch(at, call, (ts, &result)) {
                    return Some(next);
                }
                self.on_updated(at, call, (ts, &result));
            }
            Told::GaveUp { call, failure } => {
                self.net.counts.add("given up", 1);
                let again = self.land_again(at, call, now);
                if let Some(again) = again.or_else(|| self.batch_again(at, call, now)) {
                    events.push_back(Event::Command(again));
                    return None;
                }
                let client = &mut self.clients[at];
                let looked = client.looks.remove(&call).is_some();
                if client.handed.remove(&call).is_none() && !looked {
                    // Nobody can say what becomes of it: what it touches is not judged any more.
                    expect_failure(&failure);
                    self.clients[at].doing = None;
                }
                events.push_back(Event::Command(Ask::Release(call)));
            }
            other => panic!("nobody asked for {other:?}"),
        }
        None
    }

    fn on_own(&mut self, at: usize, own: Plan, now: Time) -> Ask {
        match own {
            Plan::LetGo(gone) => Ask::LetGo(gone),
            Plan::Land(ino) => {
                self.now = now;
                self.land(at, ino).unwrap_or(Ask::LetGo(Vec::new()))
            }
            Plan::Send => {
                self.now = now;
                self.send_batch(at).unwrap_or(Ask::LetGo(Vec::new()))
            }
            Plan::Take(seen, handed) => {
                let client = &mut self.clients[at];
                client.last.0 += 1;
                client.handed.insert(client.last, handed);
                Ask::Follow { call: client.last, seen, deadline: now + PATIENCE }
            }
        }
    }

    /// It changes something, or looks.
    fn act(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let looks = self.net.random.random_range(0..12);
        self.now = now;
        let mut stimuli = self.use_open(at, now);
        stimuli.extend(self.use_nest(at, now));
        self.open(at, now);
        for _ in 0..looks {
            stimuli.extend(self.look(at, now));
        }
        if self.net.random.random_ratio(1, LISTS) {
            stimuli.extend(self.list(at, now));
        }
        let client = &mut self.clients[at];
        if client.left == 0 || client.doing.is_some() || !self.net.random.random_ratio(1, 3) {
            return stimuli;
        }
        client.left -= 1;
        client.last.0 += 1;
        let call = client.last;
        let made = (self.directories_max(), self.deep);
        let change = self.registers.choose(&self.directories, made, &mut self.net.random);
        let is_known = |change: &Change| {
            let file = change.given().filter(|ino| self.private.contains(ino));
            file.is_none_or(|ino| self.clients[at].seen.iter().any(|place| place.ino == ino))
        };
        let Some(change) = change.filter(is_known) else { return stimuli };
        self.registers.begin((at, call), &change);
        change.given().into_iter().for_each(|ino| self.clients[at].kernel.drop_pages(ino));
        let update = change.update();
        self.clients[at].doing = Some((call, change));
        let change = meridian_host::update::Change::new(Default::default(), update);
        let ask = Ask::Update { call, change, deadline: now + PATIENCE };
        stimuli.extend(self.step(at, now, Event::Command(ask)));
        stimuli
    }

    fn is_done(&self) -> bool {
        let done =
            |client: &Client| client.left == 0 && client.doing.is_none() && client.nests.is_done();
        let mut all = self.clients.iter().enumerate();
        all.all(|(at, client)| self.net.is_gone(at) || done(client))
    }
}
