//! Between a node's process and its clients, on the node's thread: requests become commands,
//! outputs become replies, blocks are put and got.
//!
//! What is answered with blocks [`meridian_blocks::desk`] says. Replies come from the process, and
//! from the threads of the disk, which leave them in [`Replies`]. Clients of the configuration
//! share the port: a [`Desk`] serves those. What a client of the files has asked and has no answer
//! to is bounded: beyond a number of requests it is refused, beyond a number of bytes its socket is
//! not read.

use crate::blocks::BlockEngine;
use crate::board::Board;
use crate::error::ServerError;
use crate::service::Service;
use bytes::Bytes;
use meridian_blocks::desk::{self, Answer, Asker, Next};
use meridian_cluster::Topology;
use meridian_cluster::grants::revoked_name;
use meridian_core::frame::FrameError;
use meridian_core::hello::ServiceId;
use meridian_core::principal::{Role, Speaker};
use meridian_core::{GroupId, NodeId, Time};
use meridian_host::api::{NodeStatus, Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_host::carried::take_request;
use meridian_host::drain::keep::Report as Copies;
use meridian_host::{Output, drain, space};
use meridian_paxos as paxos;
use meridian_runtime::smr::{ChangedBy, Desk};
use meridian_runtime::wire::WireError;
use meridian_runtime::{Application, At, ConnectionId, Delay, Names};
use meridian_transport::Security;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Requests of one connection that may wait for their reply.
const IN_FLIGHT_MAX: usize = 4096;
/// A request that has waited so long is counted no more: clients have given up by then.
const IN_FLIGHT_FOR: Duration = Duration::from_secs(120);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the node's thread and those who follow the configuration know of each other.
pub(crate) struct Shared {
    pub(crate) me: NodeId,
    pub(crate) security: Security,
    /// The same at the port of the keys, where others are shut out.
    pub(crate) keys_security: Security,
    /// What the nodes are called in their certificates.
    pub(crate) names: Arc<Names<NodeId>>,
    topology: Mutex<Arc<Topology>>,
    /// Which configurations of groups count now, that the configuration was not told.
    in_force: Mutex<BTreeMap<GroupId, u64>>,
    /// There is something to tell it.
    pub(crate) told: Notify,
    /// What is here is on enough nodes that stay, which the configuration was not told.
    drained: Mutex<Option<u64>>,
    /// Why the server is to stop, as the configuration has it.
    stop: Mutex<Option<ServerError>>,
    stops: Notify,
    /// How its keys are.
    pub(crate) keys: Arc<Board>,
}

impl Shared {
    pub(crate) fn new(
        (me, security, keys_security): (NodeId, Security, Security),
        (topology, names): (Arc<Topology>, Arc<Names<NodeId>>),
        keys: Arc<Board>,
    ) -> Shared {
        Shared {
            me,
            security,
            keys_security,
            names,
            topology: Mutex::new(topology),
            in_force: Mutex::default(),
            told: Notify::new(),
            drained: Mutex::default(),
            stop: Mutex::default(),
            stops: Notify::new(),
            keys,
        }
    }

    /// The server is to stop.
    pub(crate) fn stop(&self, why: ServerError) {
        *lock(&self.stop) = Some(why);
        self.stops.notify_one();
    }

    /// Waits until it is to stop.
    pub(crate) async fn stops(&self) -> ServerError {
        loop {
            self.stops.notified().await;
            if let Some(why) = lock(&self.stop).take() {
                return why;
            }
        }
    }

    /// The cluster as it is configured now.
    pub(crate) fn topology(&self) -> Arc<Topology> {
        lock(&self.topology).clone()
    }

    /// The cluster is configured so now; [`Configured`] tells the process.
    pub(crate) fn set_topology(&self, topology: Arc<Topology>) {
        self.names.set(names_of(&topology));
        shut_out(&topology, &self.security, &self.keys_security);
        *lock(&self.topology) = topology;
    }

    /// What a node is called.
    pub(crate) fn name_of(&self, node: NodeId) -> String {
        let topology = self.topology();
        let found = topology.nodes.get(usize::from(node.0));
        found.map_or_else(|| node.to_string(), |node| node.name.clone())
    }

    /// The first change of members that the configuration was not told to be done.
    pub(crate) fn next_in_force(&self) -> Option<(GroupId, u64)> {
        lock(&self.in_force).first_key_value().map(|(group, number)| (*group, *number))
    }

    /// The configuration was told of this one.
    pub(crate) fn in_force_told(&self, group: GroupId, number: u64) {
        lock(&self.in_force).retain(|of, reached| *of != group || *reached > number);
    }

    /// The report that the configuration is to get: see [`drain::Output::Drained`].
    pub(crate) fn take_drained(&self) -> Option<u64> {
        lock(&self.drained).take()
    }
}

/// Those whose certificates count no more are shut out, and from the keys all who have a grant
/// without any (decisions 93 and 94).
pub(crate) fn shut_out(topology: &Topology, nodes: &Security, keys: &Security) {
    let mut names = topology.revoked.clone();
    let ended = nodes.shut_out(names.clone());
    let keyless = |name: &&String| !topology.key_prefixes.contains_key(*name);
    let clients = topology.grants.keys().filter(keyless);
    names.extend(clients.map(|name| revoked_name(Role::Client, name)));
    let ended = ended + keys.shut_out(names);
    if ended > 0 {
        tracing::info!(ended, "connections of who is shut out, or has gone, are forgotten");
    }
}

/// What the nodes are called in their certificates.
pub(crate) fn names_of(topology: &Topology) -> BTreeMap<NodeId, String> {
    topology.node_ids().map(|node| (node, topology.node(node).name.clone())).collect()
}

/// The addresses of the other nodes.
pub(crate) fn peers_of(topology: &Topology, me: NodeId) -> BTreeMap<NodeId, String> {
    let others = topology.present().filter(|node| *node != me);
    others.map(|node| (node, topology.node(node).address.clone())).collect()
}

/// Where the replicas of the configuration listen.
fn keepers_of(topology: &Topology) -> BTreeMap<NodeId, String> {
    let keeps = |node: &NodeId| topology.keeping.goes_on(*node);
    let nodes = topology.node_ids().filter(keeps);
    nodes.map(|node| (node, topology.node(node).address.clone())).collect()
}

/// How far away they are made, beside the real way.
pub(crate) fn delays_of(topology: &Topology, me: NodeId) -> BTreeMap<NodeId, Delay> {
    let home = topology.node(me).region;
    let delay = |node: NodeId| {
        let one_way = topology.delay(home, topology.node(node).region);
        (node, Delay { one_way, jitter_percent: 0.0 })
    };
    topology.present().filter(|node| *node != me).map(delay).collect()
}

/// What the threads of the disk have left, and how to wake the node's.
#[derive(Default)]
pub(crate) struct Replies {
    left: Mutex<Vec<Answer>>,
    wake: OnceLock<Arc<dyn Fn() + Send + Sync>>,
}

impl Replies {
    /// What one of them has to say; nothing if its disk has failed.
    pub(crate) fn leave(&self, answer: Option<Answer>) {
        lock(&self.left).extend(answer);
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
}

/// The cluster is configured so now.
pub(crate) struct Configured(pub(crate) Arc<Topology>);

/// When a request came that has no reply yet, and the bytes that it keeps busy.
type InFlight = BTreeMap<u64, (Time, usize)>;

/// See the module's documentation.
pub(crate) struct Requests<P: Service> {
    shared: Arc<Shared>,
    blocks: BlockEngine,
    replies: Arc<Replies>,
    clients: BTreeMap<ConnectionId, InFlight>,
    /// For clients of the configuration.
    desk: Desk<P::Command>,
    started: Option<Time>,
    /// The disk had no room for blocks when that was looked at last.
    is_full: bool,
    /// How copies were when that was looked at last.
    copies: Copies,
}

impl<P: Service> Requests<P> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        blocks: BlockEngine,
        replies: Arc<Replies>,
    ) -> Requests<P> {
        let desk = Desk::new(shared.me, P::configuration, ChangedBy::Admins);
        Requests {
            shared,
            blocks,
            replies,
            clients: BTreeMap::new(),
            desk,
            started: None,
            is_full: false,
            copies: Copies::default(),
        }
    }

    /// Notes a request; tells whether there is room for it.
    fn begin(&mut self, at: &mut At<'_, P>, client: ConnectionId, id: u64, len: usize) -> bool {
        let now = at.now;
        let in_flight = self.clients.entry(client).or_default();
        if in_flight.len() >= IN_FLIGHT_MAX {
            in_flight.retain(|_, (since, len)| {
                let keep = now.since(*since) < IN_FLIGHT_FOR;
                if !keep {
                    at.unexpect_bytes(client, *len);
                }
                keep
            });
        }
        if in_flight.len() >= IN_FLIGHT_MAX {
            return false;
        }
        if len > 0 {
            at.expect_bytes(client, len);
        }
        if let Some((_, before @ 1..)) = in_flight.insert(id, (now, len)) {
            at.unexpect_bytes(client, before);
        }
        true
    }

    fn reply(&mut self, at: &mut At<'_, P>, client: ConnectionId, reply: &Reply) {
        let in_flight = self.clients.get_mut(&client);
        let ended = in_flight.and_then(|in_flight| in_flight.remove(&reply.id));
        if let Some((_, len @ 1..)) = ended {
            at.unexpect_bytes(client, len);
        }
        let answered = match reply.body.carried() {
            Some(carried) => at.answer_carrying(client, reply, carried),
            None => at.answer_if_short(client, reply),
        };
        if let Err(len) = answered {
            let why = format!("the answer has {len} bytes: ask for less at a time");
            let body = ReplyBody::Refused(Refusal::Bad(why));
            at.answer(client, &Reply { id: reply.id, body });
        }
    }

    fn on_request(&mut self, at: &mut At<'_, P>, client: ConnectionId, request: Request) {
        let id = request.id;
        let len = match &request.body {
            RequestBody::PutBlock { data, .. } => data.len(),
            // The block may be shorter, but no longer than what fits in a frame.
            RequestBody::GetBlock { len, .. } => {
                (*len as usize).min(meridian_core::frame::MAX_BODY)
            }
            RequestBody::Update { .. }
            | RequestBody::Read { .. }
            | RequestBody::UpdateAlong { .. }
            | RequestBody::ReadAlong { .. }
            | RequestBody::Recalls { .. }
            | RequestBody::Discard { .. }
            | RequestBody::ListBlocks { .. }
            | RequestBody::Scrub
            | RequestBody::Snapshot { .. }
            | RequestBody::Steps { .. }
            | RequestBody::Status => 0,
        };
        if !self.begin(at, client, id, len) {
            let body = ReplyBody::Refused(Refusal::Overloaded);
            at.answer(client, &Reply { id, body });
            return;
        }
        let by = Asker { connection: host_id(client), id };
        if request.body == RequestBody::Scrub && !self.is_admin(at, client) {
            let why = "not authorized: that needs the certificate of an admin".into();
            let body = ReplyBody::Refused(Refusal::Bad(why));
            return self.reply(at, client, &Reply { id, body });
        }
        let name = at.speaker(client).as_ref().and_then(name_of_client);
        if let Err(why) = at.process.admits(name.as_deref(), &request.body) {
            return self.reply(at, client, &Reply { id, body: ReplyBody::Refused(why) });
        }
        let takes = at.process.drain().takes_blocks();
        match desk::on_client(self.blocks.blocks(), takes, by, request.body) {
            Ok(next) => self.go_on(at, next),
            Err(body) if matches!(*body, RequestBody::Status | RequestBody::Scrub) => {
                let before = self.status(at);
                if *body == RequestBody::Scrub {
                    at.command(P::blocks(drain::Command::Scrub));
                }
                let body = ReplyBody::Status(Box::new(before));
                self.reply(at, client, &Reply { id, body });
            }
            Err(body) => at.command(P::request(host_id(client), Request { id, body: *body })),
        }
    }

    /// Whether a client may have the node do more than serve it; if not, that is counted.
    fn is_admin(&self, at: &mut At<'_, P>, client: ConnectionId) -> bool {
        let may = at.speaker(client).is_some_and(|speaker| speaker.is_admin());
        if !may {
            self.shared.security.count_refused();
        }
        may
    }

    /// The process wants something of the blocks that are here.
    fn on_drain(&mut self, at: &mut At<'_, P>, output: drain::Output) {
        if let drain::Output::Drained { since } = output {
            *lock(&self.shared.drained) = Some(since);
            self.shared.told.notify_one();
        } else if let Some(next) = desk::on_drain(self.blocks.blocks(), output) {
            self.go_on(at, next);
        }
    }

    fn go_on(&mut self, at: &mut At<'_, P>, next: Next) {
        match next {
            Next::Answer(answer) => self.tell(at, answer),
            next @ (Next::Write(_) | Next::Read(_)) => self.blocks.go_on(next),
        }
    }

    fn tell(&mut self, at: &mut At<'_, P>, answer: Answer) {
        if let Some(command) = desk::damage(&answer) {
            at.command(P::blocks(command));
        }
        match answer {
            Answer::Client(connection, reply) => self.reply(at, connection.0.into(), &reply),
            Answer::Node(command) => {
                at.command(P::blocks(command));
                self.note_copies(at.process.drain().copies());
            }
            Answer::Space(command) => {
                if let space::Command::Room(Some(room)) = command {
                    self.note_room(room);
                }
                at.command(P::space(command));
            }
        }
    }

    /// Says so when the disk becomes full, and when it is so no more.
    fn note_room(&mut self, room: space::Room) {
        let is_full = room.writable == 0;
        if is_full == self.is_full {
            return;
        }
        self.is_full = is_full;
        let (free, total) = (room.free, room.total);
        match is_full {
            true => tracing::warn!(free, total, "full: no more blocks are stored here"),
            false => tracing::info!(free, total, "no more full: blocks are stored again"),
        }
    }

    /// Says so when copies are missing or damaged, and when all are well again.
    fn note_copies(&mut self, now: Copies) {
        let before = std::mem::replace(&mut self.copies, now);
        let (missing, damaged, unfound) = (now.missing, now.damaged, now.unfound);
        let (bad, was_bad) = (missing + damaged, before.missing + before.damaged);
        if missing > 0 && before.missing == 0 {
            tracing::warn!(missing, own = now.own, "blocks that should be here are not");
        }
        if damaged > 0 && before.damaged == 0 {
            tracing::warn!(damaged, "blocks here cannot be read");
        }
        if unfound > 0 && before.unfound == 0 {
            tracing::error!(unfound, "blocks are asked of all other nodes, and none has them");
        }
        let (starves, starved) = (now.lacks_room && bad > 0, before.lacks_room && was_bad > 0);
        if starves && !starved {
            tracing::warn!(bad, "blocks are not copied here: the disk has too little room");
        }
        if bad == 0 && was_bad > 0 {
            let repaired = now.repaired;
            tracing::info!(repaired, "all blocks that should be here are, and are whole");
        }
        if now.scrub.passes > before.scrub.passes {
            let (read, damaged) = (now.scrub.last_read, now.scrub.last_damaged);
            tracing::info!(read, damaged, "all blocks were read");
        }
    }

    fn status(&self, at: &At<'_, P>) -> NodeStatus {
        let held = self.blocks.blocks().counters();
        let space = at.process.space_report();
        let uptime = at.now.since(self.started.unwrap_or(at.now));
        NodeStatus {
            node: self.shared.me,
            pid: std::process::id(),
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            replicas: at.process.status(at.now),
            blocks: (held.blocks, held.bytes),
            block_disk_bytes: self.blocks.blocks().disk_bytes(),
            room: space.room,
            full: space.is_full,
            to_free: space.to_free as u64,
            to_drain: at.process.drain().progress().map(|progress| {
                let all_safe = progress.done;
                held.blocks.saturating_sub(progress.safe) * u64::from(!all_safe)
            }),
            copies: at.process.drain().copies(),
            bad_frames: at.bad_connections(),
            unauthorized: self.shared.security.refused(),
            clients: self.clients.len() as u64,
            connected: at.connected().collect(),
            round_trips_us: at.round_trips().map(|(peer, took)| (peer, micros(took))).collect(),
            flush_us: at.flush_time().map(micros),
            configured: self.shared.topology().version,
            keeper: at.process.keeper(),
            keys: self.shared.keys.status(at.now, self.shared.me),
            causal: self.shared.keys.causal(at.now),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The name of a client in its certificate; none of a node or an admin, and none under plain text.
pub(crate) fn name_of_client(speaker: &Speaker) -> Option<String> {
    match speaker {
        Speaker::Known(who) if who.role == Role::Client => Some(who.name.clone()),
        Speaker::Known(_) | Speaker::Anybody => None,
    }
}

fn host_id(client: ConnectionId) -> meridian_host::ConnectionId {
    meridian_host::ConnectionId(client.into())
}

impl<P: Service> Application<P> for Requests<P> {
    type Request = Configured;

    fn on_request(&mut self, at: &mut At<'_, P>, Configured(topology): Configured) {
        at.set_delays(delays_of(&topology, self.shared.me));
        at.set_peers(peers_of(&topology, self.shared.me));
        self.desk.set_members(at, keepers_of(&topology));
        at.command(P::configured(topology));
    }

    fn on_output(&mut self, at: &mut At<'_, P>, output: P::Output) {
        match P::told(output) {
            Output::Reply { connection, reply } => self.reply(at, connection.0.into(), &reply),
            Output::InForce { group, number } => {
                lock(&self.shared.in_force).insert(group, number);
                self.shared.told.notify_one();
            }
            Output::Drain(output) => self.on_drain(at, output),
            Output::Space(output) => {
                let next = desk::on_space(self.blocks.blocks(), output);
                self.go_on(at, next);
            }
            Output::Configuration(output) => {
                if let paxos::Output::Stopped(why) = &output {
                    tracing::info!(%why, "keeps the configuration no more");
                }
                self.desk.on_output(at, output);
            }
        }
    }

    fn on_batch(&mut self, at: &mut At<'_, P>) {
        if self.started.is_none() {
            self.started = Some(at.now);
            self.desk.set_members(at, keepers_of(&self.shared.topology()));
        }
        let left = std::mem::take(&mut *lock(&self.replies.left));
        left.into_iter().for_each(|answer| self.tell(at, answer));
        if let Some(error) = self.blocks.failed() {
            at.stop(error.into());
        }
    }

    fn on_waker(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        let _ = self.replies.wake.set(wake); // A node starts once.
    }

    fn name_of(&self, node: NodeId) -> String {
        self.shared.name_of(node)
    }

    fn serves_clients(&self, service: ServiceId) -> bool {
        service == ServiceId::MAIN || service == ServiceId::CONFIGURATION
    }

    fn on_connected(&mut self, at: &mut At<'_, P>, client: ConnectionId, service: ServiceId) {
        if service == ServiceId::CONFIGURATION {
            self.desk.on_connected(at, client);
        } else if let Some(name) = at.speaker(client).as_ref().and_then(name_of_client) {
            at.command(P::known(host_id(client), name));
        }
    }

    fn on_asked(
        &mut self,
        at: &mut At<'_, P>,
        client: ConnectionId,
        body: Bytes,
    ) -> Result<(), WireError> {
        if self.desk.serves(client) {
            return self.desk.on_asked(at, client, &body);
        }
        let none = |error: postcard::Error| FrameError::Body(error.to_string());
        let (mut request, mut rest) = take_request(&body, &body).map_err(none)?;
        loop {
            self.on_request(at, client, request);
            if rest.is_empty() {
                return Ok(());
            }
            (request, rest) = take_request(&body, rest).map_err(none)?;
        }
    }

    fn on_bad(&mut self, at: &mut At<'_, P>, client: ConnectionId, why: &WireError) {
        if self.desk.serves(client) {
            self.desk.on_bad(at, client, why);
        }
    }

    fn on_disconnected(&mut self, at: &mut At<'_, P>, client: ConnectionId) {
        if self.desk.serves(client) {
            return self.desk.on_disconnected(at, client);
        }
        self.clients.remove(&client);
        at.command(P::closed(host_id(client)));
    }
}
