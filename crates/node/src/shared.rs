//! What the tasks of one server share. All run on one thread: cells, no locks.

use crate::client::Client;
use crate::journal::Blocks;
use crate::service::Service;
use meridian_core::frame;
use meridian_core::link::Link;
use meridian_core::{Event, GroupId, NodeId, Time, Topology};
use meridian_host::ConnectionId;
use meridian_host::api::{Hello, KeeperStatus, NodeStatus, Reply, ReplyBody, Who};
use meridian_runtime::wire::WireError;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// So many inputs wait for the process at most; then sockets are not read.
const INBOX_MAX: usize = 16 << 10;
/// So many senders of bad frames are remembered, so that each is logged once.
const BLAMED_MAX: usize = 1024;

/// Something for the driver to do.
pub(crate) enum Input<P: Service> {
    /// The process is stepped with it.
    Event(Event<P>),
    /// A client wants to know how the node is.
    Status {
        /// Who.
        connection: ConnectionId,
        /// The request's.
        id: u64,
    },
}

/// Another node.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    /// Where it listens; nothing as long as the configuration that names it is not known here.
    pub(crate) address: RefCell<String>,
    /// How long what is sent to it is held back.
    pub(crate) delay: Cell<Duration>,
    /// It was removed: it is not called any more.
    pub(crate) gone: Cell<bool>,
    pub(crate) link: RefCell<Link>,
    /// There may be something to transmit.
    pub(crate) wake: Notify,
    /// The present connection, 0 without one.
    pub(crate) connection: Cell<u64>,
    /// The connection that there was until now ends.
    pub(crate) close: Notify,
}

/// See the module's documentation.
pub(crate) struct Shared<P: Service> {
    pub(crate) me: NodeId,
    /// The node's directory.
    pub(crate) dir: PathBuf,
    topology: RefCell<Arc<Topology>>,
    pub(crate) incarnation: u64,
    start: Instant,
    /// Wakes the driver, also from other threads.
    pub(crate) wake: Arc<Notify>,
    pub(crate) inbox: RefCell<VecDeque<Input<P>>>,
    /// The inbox has room again.
    pub(crate) room: Notify,
    peers: RefCell<BTreeMap<NodeId, Rc<Peer>>>,
    /// Peers that are to be called from now on.
    pub(crate) fresh: RefCell<Vec<NodeId>>,
    /// There are some.
    pub(crate) has_fresh: Notify,
    /// Which configurations of groups count now, that those who keep the configuration were not told.
    pub(crate) in_force: RefCell<BTreeMap<GroupId, u64>>,
    /// There is something to tell them.
    pub(crate) told: Notify,
    /// How the replica of the configuration is, if there is one.
    pub(crate) keeper: RefCell<Option<KeeperStatus>>,
    pub(crate) clients: RefCell<BTreeMap<ConnectionId, Rc<Client>>>,
    pub(crate) blocks: Blocks,
    pub(crate) stopping: Cell<bool>,
    /// Open connections of all kinds.
    pub(crate) open: Cell<usize>,
    next_connection: Cell<u64>,
    bad_frames: Cell<u64>,
    blamed: RefCell<BTreeSet<IpAddr>>,
}

impl<P: Service> Shared<P> {
    pub(crate) fn new(
        dir: PathBuf,
        topology: Arc<Topology>,
        me: NodeId,
        incarnation: u64,
        blocks: Blocks,
        wake: Arc<Notify>,
    ) -> Shared<P> {
        let shared = Shared {
            me,
            dir,
            topology: RefCell::new(topology.clone()),
            incarnation,
            start: Instant::now(),
            wake,
            inbox: RefCell::default(),
            room: Notify::new(),
            peers: RefCell::default(),
            fresh: RefCell::default(),
            has_fresh: Notify::new(),
            in_force: RefCell::default(),
            told: Notify::new(),
            keeper: RefCell::default(),
            clients: RefCell::default(),
            blocks,
            stopping: Cell::new(false),
            open: Cell::new(0),
            next_connection: Cell::new(1),
            bad_frames: Cell::new(0),
            blamed: RefCell::default(),
        };
        shared.meet(&topology);
        shared
    }

    /// The cluster as it is configured now.
    pub(crate) fn topology(&self) -> Arc<Topology> {
        self.topology.borrow().clone()
    }

    /// The cluster is configured so now.
    pub(crate) fn configured(&self, topology: Arc<Topology>) {
        self.topology.replace(topology.clone());
        self.meet(&topology);
        self.push(Input::Event(Event::Command(P::configured(topology))));
    }

    /// Looks where the peers are now, and which of them are new or gone.
    fn meet(&self, topology: &Topology) {
        let home = topology.node(self.me).region;
        for id in topology.node_ids().filter(|id| *id != self.me) {
            if topology.is_gone(id) {
                if let Some(peer) = self.peers.borrow_mut().remove(&id) {
                    peer.gone.set(true);
                    peer.close.notify_waiters();
                }
                continue;
            }
            let Some(peer) = self.peer(id) else { continue };
            let node = topology.node(id);
            peer.delay.set(topology.delay(home, node.region));
            let before = peer.address.replace(node.address.clone());
            if before.is_empty() && self.me < id {
                self.fresh.borrow_mut().push(id);
                self.has_fresh.notify_one();
            }
            if before != node.address {
                peer.close.notify_waiters();
            }
        }
    }

    /// A peer. One that is not known yet is soon: what is sent to it waits. None if it was removed.
    pub(crate) fn peer(&self, node: NodeId) -> Option<Rc<Peer>> {
        let topology = self.topology.borrow();
        let known = usize::from(node.0) < topology.nodes.len();
        if known && topology.is_gone(node) {
            return None;
        }
        let mut peers = self.peers.borrow_mut();
        let peer = peers.entry(node).or_insert_with(|| {
            Rc::new(Peer {
                node,
                address: RefCell::default(),
                delay: Cell::default(),
                gone: Cell::new(false),
                link: RefCell::new(Link::new(self.incarnation)),
                wake: Notify::new(),
                connection: Cell::new(0),
                close: Notify::new(),
            })
        });
        Some(peer.clone())
    }

    /// What a peer is called.
    pub(crate) fn name_of(&self, node: NodeId) -> String {
        let topology = self.topology.borrow();
        let found = topology.nodes.get(usize::from(node.0));
        found.map_or_else(|| format!("node {}", node.0), |node| node.name.clone())
    }

    /// Time as the process sees it: since the server started.
    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// When that is by the clock of this machine.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        // Timers set for the end of time mean never; the clock cannot count as far.
        self.start + Duration::from_nanos(time.0).min(Duration::from_secs(1 << 31))
    }

    /// Hands something to the driver.
    pub(crate) fn push(&self, input: Input<P>) {
        self.inbox.borrow_mut().push_back(input);
        self.wake.notify_one();
    }

    /// Waits until the inbox has room.
    pub(crate) async fn room(&self) {
        while self.inbox.borrow().len() >= INBOX_MAX {
            self.room.notified().await;
        }
    }

    pub(crate) fn next_connection(&self) -> u64 {
        let connection = self.next_connection.get();
        self.next_connection.set(connection + 1);
        connection
    }

    /// What this node says first on each connection.
    pub(crate) fn hello(&self) -> Hello {
        let who = Who::Node { node: self.me, incarnation: self.incarnation };
        Hello { cluster: self.topology.borrow().cluster, who }
    }

    /// Answers a client, if it is still there.
    pub(crate) fn reply(&self, connection: ConnectionId, reply: &Reply) {
        if let Some(client) = self.clients.borrow().get(&connection) {
            client.sender().reply(reply);
        }
    }

    /// Counts and logs a connection that is closed for what came on it.
    pub(crate) fn on_bad(&self, from: IpAddr, error: &WireError) {
        self.bad_frames.set(self.bad_frames.get() + 1);
        let mut blamed = self.blamed.borrow_mut();
        if blamed.len() < BLAMED_MAX && blamed.insert(from) {
            tracing::warn!(%from, %error, "connection closed; more from there are only counted");
        }
    }

    /// The answer to a client's question how the node is.
    pub(crate) fn status(&self, process: &P, id: u64) -> Reply {
        let now = self.now();
        let peers = self.peers.borrow();
        let connected = peers.values().filter(|peer| peer.link.borrow().is_open());
        let status = NodeStatus {
            node: self.me,
            pid: std::process::id(),
            uptime_ms: now.0 / 1_000_000,
            replicas: process.status(now),
            blocks: self.blocks.held(),
            bad_frames: self.bad_frames.get(),
            connected: connected.map(|peer| peer.node).collect(),
            configured: self.topology.borrow().version,
            keeper: self.keeper.borrow().clone(),
        };
        Reply { id, body: ReplyBody::Status(status) }
    }
}

// A message is cut by the link, all else that is sent fits in a frame of its own.
const _: () = assert!(meridian_core::link::PIECE_LEN * 2 < frame::MAX_BODY);
