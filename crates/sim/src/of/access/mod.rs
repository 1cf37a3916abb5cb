//! Hostile clients that may only work below one directory, beside others that may do all: nothing
//! that is not theirs changes or is shown, and nothing that they make is root's.
//!
//! The grant of the hostile ones is for the top directory of a region, which gets a quota; in it
//! lies another directory with a quota of its own. What is in that, and in all other partitions, is
//! foreign, and stays so: nothing comes under another quota. Hostile clients know all numbers and
//! names. They name foreign inodes wherever one can be named, link and move them to where they may
//! work and what is theirs out of there, make things in the name of root and of users that they may
//! not act as, and ask what they must not know. Requests and replies are late and lost, and nodes
//! have all kinds of faults.

mod forger;
pub mod trial;

use super::files::net::{Crowd, Habits, Net};
use super::files::regions;
use super::{Named, draw_all, names_of_planted};
use crate::of::files::words::MESSAGES;
use crate::world::Stimulus;
use forger::{Forger, named_in};
use meridian_cluster::Topology;
use meridian_core::{Event, GroupId, Time};
use meridian_fs::access::NOBODY;
use meridian_fs::quota::Limits;
use meridian_fs::{Answer, Done, FsError, Ino, Place, Query, Timestamp, Update};
use meridian_host::Node;
use meridian_host::update::Change;
use meridian_session::{CallId, Command as Ask, Output as Told, Session};
use rand::RngExt;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// `meridian sim access`.
pub const NAMED: Named = Named {
    name: "access",
    about: "Hostile clients that may only work below one directory, beside others",
    help: "\
Each seed is a run of nodes in three regions in simulated time: some clients may do all, others only
what counts against the quota of one directory, and as one user. These name foreign inodes by their
numbers, link and move what is not theirs, and claim to be others. Requests are late and lost, and
nodes have all kinds of faults. Checked are that no update and no question of a hostile client that
names what is foreign succeeds, that what they make is never root's, and that the others may still
do all.

Examples:
  meridian sim access --seeds 10000
  meridian sim access --seed 137 --trace",
    messages: MESSAGES,
    explained: None,
    settings: &[],
    pin: draw_all::<trial::Trial>,
    planted: names_of_planted::<trial::Trial>,
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// What hostile clients are called in their certificates.
const TENANT: &str = "tenant";
/// The user as whom they may act.
const USER: u32 = 1000;
/// Below whose top they may work.
const GROUP: GroupId = GroupId(1);

/// Below which they may work.
fn granted() -> Place {
    Place { ino: Ino::top(GROUP), partition: GROUP }
}

/// What a client waits for.
#[derive(Clone, Debug)]
enum Doing {
    Update {
        call: CallId,
        update: Update,
        /// The quotas that it was told to name.
        quotas: Vec<Place>,
    },
    Read {
        call: CallId,
        query: Query,
    },
}

impl Doing {
    fn call(&self) -> CallId {
        match self {
            Doing::Update { call, .. } | Doing::Read { call, .. } => *call,
        }
    }
}

/// One client.
struct Client {
    is_hostile: bool,
    last: CallId,
    doing: Option<Doing>,
    left: u64,
}

/// The clients, and what they know.
pub struct AccessWorkload {
    /// The sessions, and what is on its way.
    pub net: Net<Infallible>,
    clients: Vec<Client>,
    forger: Forger,
}

impl AccessWorkload {
    /// So many clients that may do all, and so many that are hostile, each of which does so many
    /// things.
    pub fn new(seed: u64, topology: Arc<Topology>, (all, hostile): (u64, u64), left: u64) -> Self {
        let client =
            |number| Client { is_hostile: number >= all, last: CallId(0), doing: None, left };
        let groups = topology.group_ids().collect();
        let mut net = Net::new((seed, 0xacce), topology, all + hostile, |session| session);
        let names = (all..all + hostile).map(|at| (at as usize, TENANT.to_string()));
        net.names.extend(names);
        let clients = (0..all + hostile).map(client).collect();
        AccessWorkload { clients, forger: Forger::new(groups), net }
    }

    fn next_call(&mut self, at: usize) -> CallId {
        let client = &mut self.clients[at];
        client.last.0 += 1;
        client.last
    }

    fn ask(&mut self, at: usize, update: Update, quotas: Vec<Place>, now: Time) -> Ask {
        let call = self.next_call(at);
        let time = Timestamp::default();
        let change = Change { quotas: quotas.clone(), ..Change::new(time, update.clone()) };
        self.clients[at].doing = Some(Doing::Update { call, update, quotas });
        Ask::Update { call, change, deadline: now + PATIENCE }
    }

    /// What comes before all else: the two quotas. The first client brings that about.
    fn begin(&self, name: String) -> Option<Update> {
        let limits = Some(Limits::default());
        let (top, root) = (granted(), Place::ROOT);
        match (self.forger.has_quota(top), self.forger.apart()) {
            (false, _) => Some(Update::SetQuota { inode: top, parent: root, limits }),
            (true, None) => Some(self.forger.directory(top, name)),
            (true, Some(apart)) if !self.forger.has_quota(apart) => {
                Some(Update::SetQuota { inode: apart, parent: top, limits })
            }
            (true, Some(_)) => None,
        }
    }

    fn on_updated(&mut self, at: usize, result: Result<Done, FsError>, now: Time) -> Option<Ask> {
        let Doing::Update { update, mut quotas, .. } = self.clients[at].doing.take()? else {
            panic!("it asked a question")
        };
        let is_hostile = self.clients[at].is_hostile;
        match result {
            Err(FsError::UnnamedQuota { quota }) if !quotas.contains(&quota) => {
                quotas.push(quota);
                return Some(self.ask(at, update, quotas, now));
            }
            Ok(done) if is_hostile => {
                self.check_done(&update, &done);
                self.forger.on_done(&update, &done);
                self.net.counts.add("done by hostile ones", 1);
            }
            Ok(done) => {
                self.forger.on_done(&update, &done);
                self.net.counts.add("done by others", 1);
            }
            Err(FsError::Denied | FsError::NotPermitted) if is_hostile => {
                self.net.counts.add("refused", 1);
            }
            Err(error @ (FsError::Denied | FsError::ReadOnly)) => {
                self.net.violate(format!("access: {error} to one that may do all: {update:?}"));
            }
            Err(error) => self.forger.on_refused(&update, &error),
        }
        None
    }

    /// N1 and N2, of an update of a hostile client that was done.
    fn check_done(&mut self, update: &Update, done: &Done) {
        let mut named = named_in(update).into_iter();
        if let Some(place) = named.find(|place| self.forger.is_foreign(*place)) {
            self.net.violate(format!("access: {place:?} is foreign, and {update:?} is done"));
        }
        let made = matches!(update, Update::Create { .. } | Update::CreateUnnamed { .. });
        if let Done::Attributes(of) = done
            && made
            && ![USER, NOBODY.0].contains(&of.uid)
        {
            self.net.violate(format!("access: {:?} is made, and of user {}", of.place, of.uid));
        }
    }

    fn on_answered(&mut self, at: usize, result: &Result<Answer, FsError>) {
        let Some(Doing::Read { query, .. }) = self.clients[at].doing.take() else {
            panic!("it asked for an update")
        };
        let inode = query.inode().map(|ino| Place { ino, partition: query.partition() });
        match result {
            Ok(_) if inode.is_some_and(|place| self.forger.is_foreign(place)) => {
                self.net.violate(format!("access: {query:?} is answered, of what is foreign"));
            }
            Ok(_) => self.net.counts.add("shown", 1),
            Err(_) => self.net.counts.add("not shown", 1),
        }
    }
}

impl Crowd for AccessWorkload {
    type Own = Infallible;
    const HABITS: Habits = Habits { pause_ms: 5..150, still: (200, 3_000), gone: 2_000 };

    fn net(&self) -> &Net<Infallible> {
        &self.net
    }

    fn net_mut(&mut self) -> &mut Net<Infallible> {
        &mut self.net
    }

    fn waiting(&self) -> String {
        let of = |(at, client): (usize, &Client)| {
            let doing = client.doing.as_ref().filter(|_| !self.net.is_gone(at))?;
            Some(format!("{at}: {doing:?}"))
        };
        self.clients.iter().enumerate().filter_map(of).collect::<Vec<_>>().join("\n")
    }

    fn may_go(&self, at: usize) -> bool {
        at > 0
    }

    fn on_told(
        &mut self,
        at: usize,
        now: Time,
        told: Told,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>> {
        let doing = self.clients[at].doing.as_ref().map(Doing::call);
        match told {
            Told::Updated { call, result, .. } => {
                assert_eq!(doing, Some(call), "it does one thing at a time");
                let next = self.on_updated(at, result, now);
                events.extend(next.map(Event::Command));
            }
            Told::Answered { call, result, .. } => {
                assert_eq!(doing, Some(call), "it does one thing at a time");
                self.on_answered(at, &result);
            }
            Told::GaveUp { call, .. } => {
                self.net.counts.add("given up", 1);
                self.clients[at].doing = None;
                events.push_back(Event::Command(Ask::Release(call)));
            }
            other => panic!("nobody asked for {other:?}"),
        }
        None
    }

    fn on_own(&mut self, _at: usize, own: Infallible, _now: Time) -> Ask {
        match own {}
    }

    fn act(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let client = &self.clients[at];
        if client.doing.is_some() || client.left == 0 {
            return Vec::new();
        }
        let is_hostile = client.is_hostile;
        let name = format!("{}-{at}-{}", self.net.random.random_range(0..10), client.last.0);
        let begins = self.begin(name.clone());
        if begins.is_some() && at > 0 {
            return Vec::new();
        }
        self.clients[at].left -= u64::from(begins.is_none());
        let random = &mut self.net.random;
        let ask = if let Some(update) = begins {
            self.ask(at, update, Vec::new(), now)
        } else if is_hostile && random.random_ratio(1, 4) {
            let query = self.forger.question(random);
            let call = self.next_call(at);
            self.clients[at].doing = Some(Doing::Read { call, query: query.clone() });
            Ask::Read { call, query, deadline: now + PATIENCE }
        } else {
            let update = match is_hostile {
                true => self.forger.forged(name, random),
                false => self.forger.honest(name, random),
            };
            let Some(update) = update else { return Vec::new() };
            self.ask(at, update, Vec::new(), now)
        };
        self.step(at, now, Event::Command(ask))
    }

    fn is_done(&self) -> bool {
        let done = |client: &Client| client.left == 0 && client.doing.is_none();
        let mut all = self.clients.iter().enumerate();
        all.all(|(at, client)| self.net.is_gone(at) || done(client))
    }
}
