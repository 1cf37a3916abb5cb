//! Drives the session of a client: its requests go to the connections, their replies and the time
//! come to it, its outputs go to who waits for them. It decides nothing.

use crate::client::lock;
use crate::connection::{CallError, Connection};
use meridian_cluster::Topology;
use meridian_core::hello::{Caller as HelloCaller, Hello, ServiceId};
use meridian_core::principal::{Role, Speaker};
use meridian_core::{Effect, Event, GroupId, MessageId, NodeId, Outbox, Process, RegionId, Time};
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Attributes, Name, Timestamp};
use meridian_fs::{Ino, Place, Query, Vector};
use meridian_host::api::{Refusal, Reply, ReplyBody, Request};
use meridian_host::steps::Report;
use meridian_session::{
    CallId, Command, Due, Holding, Keeping, Message, Moment, Output, Pages, Session, ToLand,
};
use meridian_transport::Security;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

/// The cluster as it is known now, and what follows from that.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) topology: Arc<Topology>,
    /// By node.
    pub(crate) connections: Vec<Arc<Connection>>,
}

impl Known {
    /// Connections of `before` to nodes that are where they were are used further on.
    fn new(
        topology: Topology,
        region: RegionId,
        before: Option<&Known>,
        (driver, security): (&Weak<Driver>, &Security),
    ) -> Known {
        let hello = Hello::new(&topology.cluster.to_string(), HelloCaller::Client(ServiceId::MAIN));
        let connections = topology.node_ids().map(|id| {
            let node = topology.node(id);
            let delay = topology.delay(region, node.region);
            let open = before.and_then(|before| before.connections.get(usize::from(id.0)));
            match open.filter(|open| open.leads_to(&node.address, delay)) {
                Some(open) => open.clone(),
                None => {
                    let (id, driver) = ((id, node.name.clone()), driver.clone());
                    let at = (node.address.clone(), security.clone());
                    Arc::new(Connection::new(id, at, hello.clone(), delay, driver))
                }
            }
        });
        let connections = connections.collect();
        Known { topology: Arc::new(topology), connections }
    }
}

/// What is to be dropped.
pub(crate) type Gone = Vec<(GroupId, Ino)>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Driver {
    cluster: Mutex<Arc<Known>>,
    region: RegionId,
    security: Security,
    session: Mutex<Session>,
    callers: Mutex<HashMap<CallId, Arc<Slot>>>,
    last_call: AtomicU64,
    /// Who keeps something beside the session. It holds no more than what is recalled, which is
    /// bounded.
    elsewhere: Mutex<Option<UnboundedSender<Gone>>>,
    /// Who keeps new files back, and is told which must be sent.
    landing: Mutex<Option<UnboundedSender<Vec<ToLand>>>>,
    begun: Instant,
    me: Weak<Driver>,
}

/// Where the output of a call is left.
#[derive(Debug, Default)]
struct Slot {
    output: Mutex<Option<Output>>,
    told: Notify,
    /// The session does not know the call any more.
    over: AtomicBool,
}

impl Driver {
    /// Of a client in `region`, whose session draws names from `seed`.
    pub fn new(topology: Topology, region: RegionId, security: Security, seed: u64) -> Arc<Driver> {
        Arc::new_cyclic(|me| {
            let known = Known::new(topology, region, None, (me, &security));
            let session = Session::new(known.topology.clone(), region, seed);
            Driver {
                cluster: Mutex::new(Arc::new(known)),
                region,
                security,
                session: Mutex::new(session),
                callers: Mutex::default(),
                last_call: AtomicU64::new(0),
                elsewhere: Mutex::default(),
                landing: Mutex::default(),
                begun: Instant::now(),
                me: me.clone(),
            }
        })
    }

    /// The cluster as it is known now.
    pub fn known(&self) -> Arc<Known> {
        lock(&self.cluster).clone()
    }

    /// Whether the configuration says what the client may do: else its kernel alone decides that.
    pub fn has_grant(&self) -> bool {
        let Speaker::Known(own) = self.security.own() else { return false };
        own.role == Role::Client && self.known().topology.grants.contains_key(&own.name)
    }

    /// The cluster is configured so now, if that is newer and of the same cluster.
    pub fn configured(&self, topology: Topology) {
        let mut cluster = lock(&self.cluster);
        let newer = topology.version > cluster.topology.version;
        if !newer || topology.cluster != cluster.topology.cluster {
            return;
        }
        let with = (&self.me, &self.security);
        *cluster = Arc::new(Known::new(topology, self.region, Some(&cluster), with));
        let topology = cluster.topology.clone();
        drop(cluster);
        self.command(Command::Configured(topology));
    }

    /// The region that its client is in.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// What the session has seen.
    pub fn vector(&self) -> Vector {
        lock(&self.session).vector().clone()
    }

    /// The time of the session that is `after` from now.
    pub fn deadline(&self, after: Duration) -> Time {
        self.time() + after
    }

    /// Who waits for the outputs of a new call, which nobody has asked for yet.
    pub fn caller(self: &Arc<Self>) -> Caller {
        let call = CallId(self.last_call.fetch_add(1, Ordering::Relaxed));
        let slot = Arc::<Slot>::default();
        lock(&self.callers).insert(call, slot.clone());
        Caller { driver: self.clone(), call, slot }
    }

    /// From now on the session keeps what it may; whoever keeps something beside it is told by
    /// `elsewhere` what to drop.
    pub fn keep(&self, elsewhere: Option<UnboundedSender<Gone>>) {
        *lock(&self.elsewhere) = elsewhere;
        self.command(Command::Keep);
    }

    /// From now on changes may be kept back; `landing` is told which are to be sent.
    pub fn keep_back(&self, keeping: Keeping, landing: UnboundedSender<Vec<ToLand>>) {
        *lock(&self.landing) = Some(landing);
        self.command(Command::KeepBack(keeping));
    }

    /// See [`Session::begin_new`].
    pub fn begin_new(
        &self,
        parent: Place,
        name: &Name,
        node: &NewNode,
        time: Timestamp,
    ) -> Option<Attributes> {
        self.keep_one(|session, now| session.begin_new(now, (parent, name), (node, time)))
    }

    /// See [`Session::begin_removal`].
    pub fn begin_removal(&self, parent: Place, name: &Name, child: Place, time: Timestamp) -> bool {
        self.keep_one(|session, now| session.begin_removal(now, (parent, name), (child, time)))
    }

    /// See [`Session::begin_written`].
    pub fn begin_written(&self, file: Place) -> bool {
        self.keep_one(|session, now| session.begin_written(now, file))
    }

    /// See [`Session::unsent`].
    pub fn unsent(&self) -> u64 {
        lock(&self.session).unsent()
    }

    /// See [`Session::written_in`].
    pub fn written_in(&self, file: Ino) -> Option<(Place, Name)> {
        lock(&self.session).written_in(file)
    }

    /// See [`Session::knows_end`].
    pub fn knows_end(&self, file: Ino) -> bool {
        let mut session = lock(&self.session);
        session.knows_end(self.time(), file)
    }

    /// See [`Session::takes_more`].
    pub fn takes_more(&self, file: Ino) -> bool {
        lock(&self.session).takes_more(file)
    }

    /// See [`Session::end_written`].
    pub fn end_written(&self, file: Ino) {
        lock(&self.session).end_written(file);
    }

    /// Has the session keep something back, which may be so much that it wants some to land.
    fn keep_one<T>(&self, begin: impl FnOnce(&mut Session, Time) -> T) -> T {
        let (begun, calls) = {
            let mut session = lock(&self.session);
            let now = self.time();
            (begin(&mut session, now), session.calls_to_land())
        };
        if calls {
            self.step(Event::Idle);
        }
        begun
    }

    /// See [`Session::last_kept`].
    pub fn last_kept(&self) -> u64 {
        lock(&self.session).last_kept()
    }

    /// See [`Session::has_landed`].
    pub fn has_landed(&self, group: Option<GroupId>, number: u64) -> bool {
        lock(&self.session).has_landed(group, number)
    }

    /// See [`Session::is_unlanded`].
    pub fn is_unlanded(&self, ino: Ino) -> bool {
        lock(&self.session).is_unlanded(ino)
    }

    /// See [`Session::removes`].
    pub fn removes(&self, ino: Ino) -> bool {
        lock(&self.session).removes(ino)
    }

    /// See [`Session::lands_in_order`].
    pub fn lands_in_order(&self, ino: Ino) -> bool {
        lock(&self.session).lands_in_order(ino)
    }

    /// See [`Session::held_attributes`].
    pub fn held_attributes(&self, inode: Place) -> Option<Attributes> {
        let mut session = lock(&self.session);
        let now = self.time();
        session.held_attributes(now, inode)
    }

    /// See [`Session::unlanded_in`].
    pub fn unlanded_in(&self, directory: Ino) -> Vec<Ino> {
        lock(&self.session).unlanded_in(directory)
    }

    /// The session drops what is to go; who keeps it elsewhere says so when that is done.
    fn recalled(&self, gone: Gone) -> Option<Event<Session>> {
        let told = match &*lock(&self.elsewhere) {
            Some(elsewhere) => elsewhere.send(gone),
            None => return Some(Event::Command(Command::LetGo(gone))),
        };
        // Who is gone keeps nothing.
        told.err().map(|unsent| Event::Command(Command::LetGo(unsent.0)))
    }

    /// Tells people that a group is cut off, or is not any more.
    fn tell_cut(&self, output: &Output) {
        let topology = self.known().topology.clone();
        match output {
            Output::Cut { group } => {
                let name = topology.group_name(*group);
                tracing::warn!("{name} is cut off: no node answers for it");
            }
            Output::Reached { group, after } => {
                let name = topology.group_name(*group);
                tracing::warn!("{name} answers again, after {} s", after.as_secs());
            }
            _ => {}
        }
    }

    /// What the session has noted of an update.
    pub fn report(&self, id: MessageId) -> Report {
        lock(&self.session).report(self.time(), id)
    }

    /// Whether nobody answers for a group.
    pub fn is_cut(&self, group: GroupId) -> bool {
        lock(&self.session).cut_since(group).is_some()
    }

    /// For how long nobody has answered for a group that is cut off.
    pub fn cut_for(&self, group: GroupId) -> Option<Duration> {
        let since = lock(&self.session).cut_since(group)?;
        Some(self.time().since(since))
    }

    /// How often a node has answered for a group.
    pub fn heard(&self, group: GroupId) -> u64 {
        lock(&self.session).answers(group)
    }

    /// See [`Session::moment`].
    pub fn moment(&self) -> Moment {
        lock(&self.session).moment()
    }

    /// See [`Session::rest`].
    pub fn rest(&self, moment: Moment, inodes: &[Ino]) -> Duration {
        let mut session = lock(&self.session);
        let now = self.time();
        session.rest(now, moment, inodes)
    }

    /// See [`Session::open`].
    pub fn open(&self, file: Place) -> Pages {
        let mut session = lock(&self.session);
        let now = self.time();
        session.open(now, file)
    }

    /// See [`Session::dropped_pages`].
    pub fn dropped_pages(&self, holding: Holding) {
        lock(&self.session).dropped_pages(holding);
    }

    /// See [`Session::doubt_pages`].
    pub fn doubt_pages(&self, ino: Ino) {
        lock(&self.session).doubt_pages(ino);
    }

    /// See [`Session::holds`].
    pub fn holds(&self, query: &Query) -> bool {
        let mut session = lock(&self.session);
        let now = self.time();
        session.holds(now, query)
    }

    /// See [`Session::would_keep`].
    pub fn would_keep(&self, parent: Place, name: &Name) -> Option<Place> {
        let mut session = lock(&self.session);
        let now = self.time();
        session.would_keep(now, (parent, name))
    }

    /// See [`Session::is_absent`].
    pub fn is_absent(&self, parent: Place, name: &Name) -> bool {
        let mut session = lock(&self.session);
        let now = self.time();
        session.is_absent(now, parent, name)
    }

    /// Whether something is still to be released.
    pub fn is_letting_go(&self) -> bool {
        lock(&self.session).is_letting_go()
    }

    /// See [`Session::kept_back`].
    pub fn kept_back(&self) -> u64 {
        lock(&self.session).kept_back()
    }

    /// How many looks were answered from what is kept.
    pub fn hits(&self) -> u64 {
        lock(&self.session).hits()
    }

    /// See [`Session::swept`].
    pub fn swept(&self) -> u64 {
        lock(&self.session).swept()
    }

    /// Asks the session for something.
    pub fn command(&self, command: Command) {
        self.step(Event::Command(command));
    }

    /// A node has answered a request of the session.
    pub fn replied(&self, from: NodeId, reply: Reply) {
        if let ReplyBody::Refused(refusal) = &reply.body {
            tracing::debug!("node {} refuses: {refusal}", from.0);
        }
        self.step(Event::Message { from, message: Message::Reply(reply) });
    }

    /// The connection to a node is lost, and what was asked through it.
    pub fn lost(&self, node: NodeId) {
        self.step(Event::Restarted(node));
    }

    fn step(&self, event: Event<Session>) {
        let mut events = VecDeque::from([event]);
        let mut out = Outbox::new();
        while let Some(event) = events.pop_front() {
            {
                let mut session = lock(&self.session);
                let now = self.time(); // Not before the lock is held: it must not go back.
                session.step(now, event, &mut out);
            }
            events.extend(out.drain().filter_map(|effect| self.carry_out(effect)));
        }
    }

    /// Does what the session asks for, and says what comes of it at once.
    fn carry_out(&self, effect: Effect<Session>) -> Option<Event<Session>> {
        match effect {
            Effect::Send { to, message: Message::Request(request) } => self.post(to, &request),
            Effect::Output(Output::Recalled { gone }) => self.recalled(gone),
            Effect::Output(Output::Land { all }) => {
                // Who is gone has sent all that it kept.
                lock(&self.landing).iter().for_each(|to| _ = to.send(all.clone()));
                None
            }
            Effect::Output(output @ (Output::Cut { .. } | Output::Reached { .. })) => {
                self.tell_cut(&output);
                None
            }
            Effect::Output(output) => {
                let slot = lock(&self.callers).get(&output.call()?).cloned()?;
                slot.put(output);
                None
            }
            Effect::Timer { at, timer: Due } => {
                let (me, at) = (self.me.clone(), self.begun + Duration::from_nanos(at.0));
                tokio::spawn(async move {
                    tokio::time::sleep_until(at).await;
                    if let Some(driver) = me.upgrade() {
                        driver.step(Event::Timer(Due));
                    }
                });
                None
            }
            Effect::Persist(record) | Effect::Note(record) => match record {},
            Effect::Send { message: Message::Reply(reply), .. } => {
                unreachable!("a session answers nobody: {reply:?}")
            }
        }
    }

    /// Sends a request; what comes of it at once, if it cannot be sent.
    fn post(&self, to: NodeId, request: &Request) -> Option<Event<Session>> {
        let connection = lock(&self.cluster).connections[usize::from(to.0)].clone();
        let refusal = match connection.post(request) {
            Ok(()) => return None,
            Err(CallError::Broken(reason)) => {
                tracing::debug!("{reason}");
                return Some(Event::Restarted(to));
            }
            Err(CallError::TooLong) => Refusal::Bad("request too long".into()),
            Err(CallError::Full) => Refusal::Overloaded,
        };
        let reply = Reply { id: request.id, body: ReplyBody::Refused(refusal) };
        Some(Event::Message { from: to, message: Message::Reply(reply) })
    }

    /// The time of the session.
    pub fn time(&self) -> Time {
        let nanos = self.begun.elapsed().as_nanos();
        Time(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Slot {
    fn put(&self, output: Output) {
        let over = match output {
            Output::Updated { .. }
            | Output::Answered { .. }
            | Output::Stored { .. }
            | Output::Followed { .. }
            | Output::Fetched { .. } => true,
            Output::GaveUp { .. }
            | Output::Recalled { .. }
            | Output::Land { .. }
            | Output::Cut { .. }
            | Output::Reached { .. } => false,
        };
        self.over.store(over, Ordering::Relaxed);
        *lock(&self.output) = Some(output);
        self.told.notify_one();
    }
}

/// Waits for the outputs of one call; when it is dropped the call is released.
#[derive(Debug)]
pub(crate) struct Caller {
    driver: Arc<Driver>,
    call: CallId,
    slot: Arc<Slot>,
}

impl Caller {
    /// The call.
    pub fn call(&self) -> CallId {
        self.call
    }

    /// The output of a call that is over, which nobody has taken; without it the call may be asked
    /// for again.
    pub fn left(&self) -> Option<Output> {
        lock(&self.slot.output).take_if(|_| self.slot.over.load(Ordering::Relaxed))
    }

    /// Asks for the call and waits for its output.
    pub async fn ask(&self, command: Command) -> Output {
        lock(&self.slot.output).take_if(|_| !self.slot.over.load(Ordering::Relaxed));
        self.driver.command(command);
        self.output().await
    }

    /// Waits for the output of what was asked for.
    pub async fn output(&self) -> Output {
        loop {
            if let Some(output) = lock(&self.slot.output).take() {
                return output;
            }
            self.slot.told.notified().await;
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        lock(&self.driver.callers).remove(&self.call);
        if !self.slot.over.load(Ordering::Relaxed) {
            self.driver.command(Command::Release(self.call));
        }
    }
}
