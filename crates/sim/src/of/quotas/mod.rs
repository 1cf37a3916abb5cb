//! Quotas of directories that are not empty, set and taken away while clients work below them: what
//! is counted in the end is what a walk finds, and every count ends.
//!
//! All clients know one tree, from what any of them was told of it. Each does one thing at a time:
//! it makes, writes, renames and removes files and directories, also between partitions, places
//! empty directories elsewhere, sets quotas, changes their limits and takes them away. Whom another
//! was faster than is refused; whoever is told a quota names it and asks again. Requests and
//! replies are late and lost, and nodes have all kinds of faults, so that a count goes from one
//! primary to the next. No file has two names: it would count as long as it has either.

mod known;
pub mod trial;

use super::files::net::{Crowd, Habits, Net};
use super::files::regions;
use super::{Named, draw_all, names_of_planted};
use crate::of::files::words::MESSAGES;
use crate::world::Stimulus;
use known::Known;
use meridian_cluster::Topology;
use meridian_core::{Event, Time};
use meridian_fs::{Done, FsError, Place, Timestamp, Update};
use meridian_host::Node;
use meridian_host::update::Change;
use meridian_session::{CallId, Command as Ask, Output as Told, Session};
use rand::RngExt;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// `meridian sim quotas`.
pub const NAMED: Named = Named {
    name: "quotas",
    about: "Quotas set and taken away on directories in which clients work",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients make, write, rename, remove
and place things in one tree, and set quotas on its directories and take them away, whatever is in
them. Requests are late and lost, nodes have all kinds of faults, and primaries change amid the
counting. Checked are that every count ends, and that in the end each quota has counted exactly what
is below its directory.

Examples:
  meridian sim quotas --seeds 10000
  meridian sim quotas --seed 137 --trace",
    messages: MESSAGES,
    explained: None,
    settings: &[],
    pin: draw_all::<trial::Trial>,
    planted: names_of_planted::<trial::Trial>,
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client waits for.
#[derive(Clone, Debug)]
struct Doing {
    call: CallId,
    update: Update,
    /// The quotas that it was told to name.
    quotas: Vec<Place>,
}

/// One client.
struct Client {
    last: CallId,
    doing: Option<Doing>,
    left: u64,
}

/// The clients, and what they were told.
pub struct QuotasWorkload {
    /// The sessions, and what is on its way.
    pub net: Net<Infallible>,
    clients: Vec<Client>,
    known: Known,
}

impl QuotasWorkload {
    /// So many clients, each of which does so many things.
    pub fn new(seed: u64, topology: Arc<Topology>, (clients, things): (u64, u64)) -> Self {
        let client = |_| Client { last: CallId(0), doing: None, left: things };
        QuotasWorkload {
            clients: (0..clients).map(client).collect(),
            known: Known::new(topology.group_ids()),
            net: Net::new((seed, 0x900a), topology, clients, |session| session),
        }
    }

    /// A client asks for that, and names these quotas.
    fn ask(&mut self, at: usize, update: Update, quotas: Vec<Place>, now: Time) -> Ask {
        let client = &mut self.clients[at];
        client.last.0 += 1;
        let call = client.last;
        let time = Timestamp::default();
        let change = Change { quotas: quotas.clone(), ..Change::new(time, update.clone()) };
        client.doing = Some(Doing { call, update, quotas });
        Ask::Update { call, change, deadline: now + PATIENCE }
    }

    /// What came of it; what the client asks for next.
    fn on_updated(&mut self, at: usize, result: Result<Done, FsError>, now: Time) -> Option<Ask> {
        let Doing { update, mut quotas, .. } = self.clients[at].doing.take()?;
        match result {
            Ok(done) => {
                self.net.counts.add(kind_of(&update), 1);
                self.known.on_done(&update, &done);
            }
            Err(FsError::UnnamedQuota { quota }) if quotas.contains(&quota) => {
                self.net
                    .violate(format!("quotas: {quota:?} is named in {update:?}, and asked for"));
            }
            Err(FsError::UnnamedQuota { quota }) => {
                quotas.push(quota);
                return Some(self.ask(at, update, quotas, now));
            }
            Err(error) => {
                self.net.counts.add("refused", 1);
                self.known.on_refused(&update, &error);
            }
        }
        None
    }
}

/// Under which word it is counted.
fn kind_of(update: &Update) -> &'static str {
    match update {
        Update::SetQuota { limits: Some(_), .. } => "set",
        Update::SetQuota { limits: None, .. } => "taken away",
        Update::Rename { .. } => "renamed",
        Update::PlaceDirectory { .. } => "placed",
        Update::Create { .. } => "made",
        Update::Write { .. } => "written",
        _ => "removed",
    }
}

impl Crowd for QuotasWorkload {
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

    fn on_told(
        &mut self,
        at: usize,
        now: Time,
        told: Told,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>> {
        match told {
            Told::Updated { call, result, .. } => {
                let doing = self.clients[at].doing.as_ref().map(|doing| doing.call);
                assert_eq!(doing, Some(call), "it does one thing at a time");
                let next = self.on_updated(at, result, now);
                events.extend(next.map(Event::Command));
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
        let client = &mut self.clients[at];
        if client.doing.is_some() || client.left == 0 {
            return Vec::new();
        }
        client.left -= 1;
        let name = format!("{}-{at}-{}", self.net.random.random_range(0..10), client.last.0);
        let Some(update) = self.known.choose(&name, &mut self.net.random) else {
            return Vec::new();
        };
        let ask = self.ask(at, update, Vec::new(), now);
        self.step(at, now, Event::Command(ask))
    }

    fn is_done(&self) -> bool {
        let done = |client: &Client| client.left == 0 && client.doing.is_none();
        let mut all = self.clients.iter().enumerate();
        all.all(|(at, client)| self.net.is_gone(at) || done(client))
    }
}
