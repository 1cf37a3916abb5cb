//! Regions are cut off for a while, and clients are told which groups they cannot reach: in time,
//! and only if it is so.
//!
//! Each client does a few things at a time, each in one region: it looks at a file of its own or
//! changes it, or at one that it links into another region now and then, for which it may have to
//! wait though all answer. Who is told that a group is cut off must have been unable to reach it;
//! who cannot reach a group that it asks all the time is told so, and told again when that is
//! over; what needs no region that is cut off is answered at once; what does is given up when it
//! should be. What a region's top is like is shown in any case, also to a client that begins while
//! the region is cut off, and not as it was before somebody changed it in calm times.

mod tops;
pub mod trial;

use super::files::net::{Crowd, Habits, Net};
use super::files::regions;
use super::{Named, draw_all, names_of_planted};
use crate::of::files::words::MESSAGES;
use crate::world::Stimulus;
use meridian_cluster::Topology;
use meridian_core::{Event, GroupId, RegionId, Time};
use meridian_fs::operation::{Changes, NewNode};
use meridian_fs::types::Kind;
use meridian_fs::{Done, Ino, Place, Query, Timestamp, Update};
use meridian_host::Node;
use meridian_host::update::Change;
use meridian_session::cuts::{LOOK, LOOK_LIMIT, SILENCE, TRY};
use meridian_session::{CallId, Command as Ask, Mutation, Output as Told, Session, Tops};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tops::Looking;

/// `meridian sim cuts`.
pub const NAMED: Named = Named {
    name: "cuts",
    about: "Clients that are told which regions are cut off",
    help: "\
Each seed is a run of nodes in three regions in simulated time, of which one after the other is cut
off for a while. Checked are that clients are told of a cut and of its end in time, and of none that
is not there; that what needs no region that is cut off is answered at once; that what needs one is
given up in time; and that the tops of regions are shown in any case.

Examples:
  meridian sim cuts --seeds 10000
  meridian sim cuts --seed 137 --trace",
    messages: MESSAGES,
    explained: None,
    settings: &[],
    pin: draw_all::<trial::Trial>,
    planted: names_of_planted::<trial::Trial>,
};

/// How long a call may wait by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer takes at most where all can be reached: round trips between regions, flushes,
/// and a node that is asked in vain before.
const SOON: Duration = Duration::from_secs(2);
/// How late a client is that acts now and then.
const LATE: Duration = Duration::from_millis(500);
/// How long what was sent before a cut is under way.
const UNDER_WAY: Duration = Duration::from_millis(100);

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It makes a file.
    Make,
    /// It looks at a file that nobody else touches, or changes it.
    Free,
    /// It looks at one that it may be linking.
    Linked,
    /// It links that into this group's region.
    Link(GroupId),
    /// It looks up the name of this group's region in the root.
    Name(GroupId),
    /// It looks at the top of the region.
    Top,
    /// It changes the top of its region.
    Change,
    /// It tells what that became.
    Note,
}

#[derive(Clone, Copy, Debug)]
struct Under {
    doing: Doing,
    group: GroupId,
    begun: Time,
}

/// One client.
#[derive(Debug)]
struct Client {
    region: RegionId,
    last: CallId,
    /// So many things it does at a time.
    slots: usize,
    calls: BTreeMap<CallId, Under>,
    /// By region: the file that nobody else touches, and the one that is linked.
    files: BTreeMap<GroupId, Vec<Place>>,
    /// Since when it has asked a group without a break. A link may first have to cancel an earlier
    /// one elsewhere.
    asks: BTreeMap<GroupId, Time>,
    /// The groups of which it was told that they are cut off, and when.
    cut: BTreeMap<GroupId, Time>,
    links: u64,
    /// What it knows of the tops of regions, and the one that it looks at.
    tops: Tops,
    looking: Option<Looking>,
    /// It begins nothing in a region that it knows to be cut off.
    avoids: bool,
}

/// A region that is cut off, or was.
#[derive(Clone, Copy, Debug)]
struct Window {
    region: RegionId,
    from: Time,
    until: Option<Time>,
}

/// The clients, and what they were told.
pub struct CutsWorkload {
    /// The sessions, and what is on its way.
    pub net: Net<Infallible>,
    clients: Vec<Client>,
    windows: Vec<Window>,
    patience: Duration,
    /// By region: who owned its top from when on.
    owners: BTreeMap<GroupId, Vec<(Time, u32)>>,
    /// The regions whose tops were changed since all was calm.
    changed: BTreeSet<GroupId>,
    mutation: Mutation,
    ends: bool,
}

impl CutsWorkload {
    /// So many clients, who wait so long for what is cut off.
    pub fn new(
        seed: u64,
        topology: Arc<Topology>,
        clients: u64,
        patience: Duration,
        mutation: Mutation,
    ) -> Self {
        let regions = topology.regions.len() as u64;
        let mut net =
            Net::new((seed, 0xc075), topology, clients, |session| session.with_mutation(mutation));
        net.calm();
        let client = |number: u64| Client {
            region: RegionId((number % regions) as u16),
            last: CallId(0),
            slots: (number / regions) as usize % 3 + 1,
            calls: BTreeMap::new(),
            files: BTreeMap::new(),
            asks: BTreeMap::new(),
            cut: BTreeMap::new(),
            links: 0,
            tops: Tops::with_mutation(mutation),
            looking: None,
            avoids: number.is_multiple_of(2),
        };
        let clients = (0..clients).map(client).collect();
        CutsWorkload {
            net,
            clients,
            windows: Vec::new(),
            patience,
            owners: BTreeMap::new(),
            changed: BTreeSet::new(),
            mutation,
            ends: false,
        }
    }

    /// A region is cut off from now on.
    pub fn begin_cut(&mut self, region: RegionId, now: Time) {
        self.windows.push(Window { region, from: now, until: None });
        self.net.cut = Some(region);
    }

    /// It is not any more.
    pub fn end_cut(&mut self, now: Time) {
        self.windows.last_mut().expect("it has begun").until = Some(now);
        self.net.cut = None;
    }

    /// Clients begin nothing more.
    pub fn end(&mut self) {
        self.ends = true;
    }

    /// The windows in which a client cannot reach a group.
    fn windows_of(&self, at: usize, group: GroupId) -> impl Iterator<Item = &Window> {
        let of = |group| self.net.topology.group(group).region;
        let (here, there) = (self.clients[at].region, of(group));
        self.windows.iter().filter(move |window| {
            Some(here) != there && (window.region == here || Some(window.region) == there)
        })
    }

    /// Since when a client cannot reach a group, if it cannot. `global` is everywhere: in a region
    /// that is cut off it answers questions, and orders no updates.
    fn cut_since(&self, at: usize, group: GroupId) -> Option<Time> {
        self.net.topology.group(group).region?;
        self.windows_of(at, group).find(|window| window.until.is_none()).map(|window| window.from)
    }

    /// Whether a client could reach a group all the time from then on, and before that for long
    /// enough that nobody is unsure, and nothing in a shard may wait for another group.
    fn was_reached(&self, at: usize, group: GroupId, from: Time) -> bool {
        !self.changed.contains(&group)
            && self
                .windows_of(at, group)
                .all(|window| window.until.is_some_and(|end| end + SOON < from))
    }

    fn on_cut(&mut self, at: usize, group: GroupId, now: Time) {
        self.net.counts.add("cuts", 1);
        let right = self.windows_of(at, group).any(|window| {
            let lasted = window.from + TRY <= now + UNDER_WAY;
            lasted && window.until.is_none_or(|end| now.since(end) < SOON)
        });
        if !right {
            self.net.violate(format!("cuts: {at} is told of a cut of {group:?} that is none"));
        }
        self.clients[at].cut.insert(group, now);
    }

    fn on_reached(&mut self, at: usize, group: GroupId, now: Time) {
        self.net.counts.add("reached", 1);
        if self.cut_since(at, group).is_some_and(|since| since + UNDER_WAY < now) {
            self.net.violate(format!("cuts: {at} is told that it reaches {group:?}"));
        }
        if self.clients[at].cut.remove(&group).is_none() {
            self.net.violate(format!("cuts: {at} is told of the end of a cut it knew not of"));
        }
    }

    /// What a client should have been told by now, and what should have ended.
    fn check(&mut self, at: usize, now: Time) {
        let mut wrong = Vec::new();
        let client = &self.clients[at];
        for (group, asks) in &client.asks {
            let since = self.cut_since(at, *group).map(|from| (from + UNDER_WAY).max(*asks));
            let late = since.is_some_and(|since| since + SILENCE + LATE < now);
            if late && !client.cut.contains_key(group) {
                wrong.push(format!("cuts: {at} is not told that {group:?} is cut off"));
            }
        }
        for group in client.cut.keys() {
            let ends = self.windows_of(at, *group).map(|window| window.until);
            let end = ends.max_by_key(|end| end.map_or(u64::MAX, |end| end.0)).flatten();
            if end.is_some_and(|end| end + LOOK + LOOK_LIMIT + LATE * 2 < now) {
                wrong.push(format!("cuts: {at} is not told that {group:?} can be reached"));
            }
        }
        for under in client.calls.values() {
            let known = client.cut.get(&under.group);
            let ends = known.map(|known| (*known + self.patience).max(under.begun + TRY));
            if ends.is_some_and(|ends| ends + LATE < now) {
                wrong.push(format!("cuts: {at} still waits for {under:?}"));
            }
            let free = under.doing == Doing::Free && under.begun + SOON < now;
            if free && self.was_reached(at, under.group, under.begun) {
                wrong.push(format!("cuts: {at} waits for {under:?}, which is not cut off"));
            }
        }
        wrong.into_iter().for_each(|what| self.net.violate(what));
        self.check_look(at, now);
    }

    /// A client begins something.
    fn begin(&mut self, at: usize, doing: Doing, group: GroupId, now: Time) -> Ask {
        let client = &mut self.clients[at];
        client.last.0 += 1;
        let (call, deadline) = (client.last, now + PATIENCE);
        client.calls.insert(call, Under { doing, group, begun: now });
        if !matches!(doing, Doing::Link(_)) {
            client.asks.entry(group).or_insert(now);
        }
        let top = |partition| Place { ino: Ino::top(partition), partition };
        let change = |update| Change::new(Timestamp::default(), update);
        let files = client.files.get(&group).cloned().unwrap_or_default();
        let update = match doing {
            Doing::Name(_) | Doing::Top | Doing::Change | Doing::Note => {
                panic!("{doing:?} is begun elsewhere")
            }
            Doing::Make => {
                let name = format!("{at}-{}", call.0).into();
                let node = NewNode::new(Kind::File, 0o644);
                Update::Create { parent: top(group), name, node }
            }
            Doing::Free if self.net.random.random_bool(0.5) => {
                let changes = Changes { mode: Some(0o600), ..Changes::default() };
                Update::SetAttributes { inode: files[0], changes }
            }
            Doing::Free | Doing::Linked => {
                let inode = files[usize::from(doing == Doing::Linked)];
                return Ask::Read { call, query: Query::Attributes { inode }, deadline };
            }
            Doing::Link(to) => {
                client.links += 1;
                let name = format!("{at}-link-{}", client.links).into();
                Update::Link { target: files[1], parent: top(to), name }
            }
        };
        Ask::Update { call, change: change(update), deadline }
    }

    /// Something to do, and where.
    fn choose(&mut self, at: usize) -> Option<(Doing, GroupId)> {
        let groups: Vec<GroupId> = self.net.topology.region_groups().map(|(id, _)| id).collect();
        let client = &self.clients[at];
        let has = |group: &&GroupId| client.files.get(group).is_none_or(|files| files.len() < 2);
        if let Some(lacks) = groups.iter().find(has) {
            return client.calls.is_empty().then_some((Doing::Make, *lacks));
        }
        let random = &mut self.net.random;
        let knows = |group: &&GroupId| client.avoids && client.cut.contains_key(group);
        let group = groups.choose(random).filter(|group| !knows(group)).copied()?;
        let to = *groups.choose(random)?;
        Some(match random.random_range(0..8) {
            0 if to != group => (Doing::Link(to), group),
            1..3 => (Doing::Linked, group),
            _ => (Doing::Free, group),
        })
    }

    /// A call has ended.
    fn on_ended(&mut self, at: usize, call: CallId, told: Told, now: Time) -> Vec<Ask> {
        let client = &mut self.clients[at];
        let Some(under) = client.calls.remove(&call) else { return Vec::new() };
        let asks = |one: &Under| {
            let alone = matches!(one.doing, Doing::Make | Doing::Free | Doing::Linked | Doing::Top);
            one.group == under.group && alone
        };
        if !client.calls.values().any(asks) {
            client.asks.remove(&under.group);
        }
        if matches!(under.doing, Doing::Name(_) | Doing::Top | Doing::Change | Doing::Note) {
            return self.on_top_ended(at, under, told, now);
        }
        match told {
            Told::GaveUp { failure, .. } => {
                self.net.counts.add("given up", 1);
                let free = matches!(under.doing, Doing::Free | Doing::Make);
                if free && self.was_reached(at, under.group, under.begun) {
                    let what = format!("cuts: {at} gives up {under:?}: {failure:?}");
                    self.net.violate(what);
                }
                return vec![Ask::Release(call)];
            }
            Told::Updated { result: Ok(Done::Attributes(made)), .. }
                if under.doing == Doing::Make =>
            {
                client.files.entry(under.group).or_default().push(made.place);
            }
            Told::Updated { .. } | Told::Answered { .. } => self.net.counts.add("answered", 1),
            other => panic!("nobody asked for {other:?}"),
        }
        let free = under.doing == Doing::Free && under.begun + SOON < now;
        if free && self.was_reached(at, under.group, under.begun) {
            self.net.violate(format!("cuts: {at} waited long for {under:?}"));
        }
        Vec::new()
    }
}

impl Crowd for CutsWorkload {
    type Own = Infallible;
    const HABITS: Habits = Habits { pause_ms: 50..300, still: (u32::MAX, 11), gone: u32::MAX };

    fn net(&self) -> &Net<Infallible> {
        &self.net
    }

    fn net_mut(&mut self) -> &mut Net<Infallible> {
        &mut self.net
    }

    fn waiting(&self) -> String {
        let of = |client: &Client| format!("{:?}, cut off: {:?}", client.calls, client.cut);
        self.clients.iter().map(of).collect::<Vec<_>>().join("\n")
    }

    fn on_told(
        &mut self,
        at: usize,
        now: Time,
        told: Told,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>> {
        match told {
            Told::Cut { group } => self.on_cut(at, group, now),
            Told::Reached { group, .. } => self.on_reached(at, group, now),
            told => {
                let call = told.call()?;
                events.extend(self.on_ended(at, call, told, now).into_iter().map(Event::Command));
            }
        }
        None
    }

    fn on_own(&mut self, _at: usize, own: Infallible, _now: Time) -> Ask {
        match own {}
    }

    fn prepare(&mut self, at: usize) -> Vec<Stimulus<Node>> {
        let patience = self.patience;
        self.step(at, Time(0), Event::Command(Ask::OnCut(patience)))
    }

    fn act(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        self.settle_changes(now);
        self.check(at, now);
        self.look_on(at, now);
        let busy = self.clients[at].calls.len() >= self.clients[at].slots;
        if busy || self.ends {
            return Vec::new();
        }
        if let Some(ask) = self.choose_top(at, now) {
            return self.step(at, now, Event::Command(ask));
        }
        let Some((doing, group)) = self.choose(at) else { return Vec::new() };
        let ask = self.begin(at, doing, group, now);
        self.step(at, now, Event::Command(ask))
    }

    fn is_done(&self) -> bool {
        self.ends && self.clients.iter().all(|one| one.calls.is_empty() && one.cut.is_empty())
    }
}
