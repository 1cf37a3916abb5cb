//! Keys, on a thread of their own: clients speak RESP at a port of their own, the nodes of a region
//! speak with each other at the ports that they have.

use crate::application::peers_of;
use crate::board::Board;
use crate::config::NodeDir;
use crate::error::ServerError;
use meridian_cluster::Topology;
use meridian_core::hello::{Lane, ServiceId};
use meridian_core::{NodeId, Time, mix};
use meridian_hermes::{self as hermes, reliable};
use meridian_keys::change::Rmw;
use meridian_keys::command::KEY_MAX;
use meridian_keys::desk::{ClientNumber, Counter, Desk, Now, options};
use meridian_keys::node::{Answered, Command};
use meridian_keys::resp::{BULK_MAX, Reply, Version};
use meridian_keys::{Keys, Moment};
use meridian_runtime::directory::write_durably;
use meridian_runtime::wire::WireError;
use meridian_runtime::{Application, At, ConnectionId, Handle, Lanes, Listen, MemberError};
use meridian_runtime::{Options, Storage, Worker};
use meridian_storage::Disk;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// So many bytes of answers are expected of a request that waits for other replicas: what a client
/// may have under way is bounded by it.
const EXPECTED_LEN: usize = 8 << 10;

/// When the keys of a region take so many bytes, what could take more is refused.
pub const BYTES_MAX: usize = 1 << 30;

/// The thread of keys, as the node's port knows it.
const LANE: Lane = Lane(1);
/// A log that grew by so many bytes is replaced by a checkpoint: it has members, and no keys.
const CHECKPOINT_BYTES: u64 = 1 << 20;

/// Ends a thread of keys; there is nothing to ask, what it says of itself is on its [`Board`].
pub type KeysHandle = Handle<Infallible, NodeId>;

/// How the replicas of a region know that one of them is gone. All of them together bound how long
/// writes stand still then: the lease must have run out, and the others must have noticed.
pub fn leases() -> reliable::Options {
    let ms = Duration::from_millis;
    reliable::Options {
        lease: ms(120),
        beat: ms(30),
        suspect_after: ms(100),
        ..reliable::Options::default()
    }
}

/// Runs one of the `replicas` of a region's keys on `worker`; how it is stands on `board`.
///
/// # Errors
/// As [`Worker::host`].
pub async fn host(
    worker: &Worker,
    member: Options<NodeId>,
    replicas: &BTreeSet<NodeId>,
    seed: u64,
    board: Arc<Board>,
) -> Result<KeysHandle, MemberError> {
    let process = Keys::new(member.me, replicas, (options(), leases()), seed);
    let service = Service { desk: Desk::new(BYTES_MAX), expected: BTreeMap::new(), board };
    worker.host(member, process, service).await
}

/// What a thread of keys needs, before it runs.
pub(crate) struct Opened {
    member: Options<NodeId>,
    replicas: BTreeSet<NodeId>,
}

/// Listens at `address` and opens a lane at the node's port, if the node is to serve keys.
///
/// # Errors
/// If it cannot listen, or its directory cannot be used.
pub(crate) fn open(
    address: Option<&str>,
    dir: &NodeDir,
    topology: &Topology,
    me: NodeId,
    listener: &TcpListener,
) -> Result<(Lanes, Option<Opened>), ServerError> {
    let mut lanes = Lanes::default();
    let Some(address) = address else { return Ok((lanes, None)) };
    let unable = |source| ServerError::Address {
        address: address.into(),
        node: dir.file.node.clone(),
        source,
    };
    let plain = TcpListener::bind(address).map_err(unable)?;
    let port = listener.local_addr().map_err(unable)?;
    let home = topology.node(me).region;
    let near: BTreeSet<_> =
        topology.present().filter(|node| topology.node(*node).region == home).collect();
    let replicas = first_replicas(dir, topology, &near)?;
    let mut peers = peers_of(topology, me);
    peers.retain(|node, _| replicas.contains(node));
    let path = dir.dir.join("keys");
    let storage = Storage::Log {
        path,
        incarnation: dir.next_incarnation()?,
        checkpoint_bytes: CHECKPOINT_BYTES,
    };
    let member = Options {
        listen: Listen::Lane(lanes.open(LANE, port)),
        storage,
        plain: vec![(ServiceId::KEYS, plain)],
        ..Options::new(topology.cluster.to_string(), me, "", peers)
    };
    Ok((lanes, Some(Opened { member, replicas })))
}

/// The nodes that were in the region when this one first had keys: by their number the registry of
/// the members knows its majority, also after a restart with more nodes.
fn first_replicas(
    dir: &NodeDir,
    topology: &Topology,
    near: &BTreeSet<NodeId>,
) -> Result<BTreeSet<NodeId>, ServerError> {
    let path = dir.dir.join("keys.json");
    let names: BTreeSet<String> = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| ServerError::Directory {
            path: path.clone(),
            why: format!("is no list of nodes: {error}"),
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let names = near.iter().map(|node| topology.node(*node).name.clone()).collect();
            let json = serde_json::to_vec(&names).expect("names");
            write_durably(&path, &json)?;
            names
        }
        Err(source) => return Err(ServerError::File { action: "read", path, source }),
    };
    Ok(names.iter().filter_map(|name| topology.node_named(name)).collect())
}

/// Forgets who had part in a region's keys, before any node of the region is started: they were in
/// memory, and have gone with the last of their servers.
///
/// # Errors
/// If the disk refuses.
pub fn forget(dir: &Path) -> Result<(), ServerError> {
    let missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let (log, names) = (dir.join("keys"), dir.join("keys.json"));
    let ended = |path: &Path, ended: std::io::Result<()>| match ended {
        Err(source) if !missing(&source) => {
            Err(ServerError::File { action: "remove", path: path.into(), source })
        }
        _ => Ok(()),
    };
    ended(&names, std::fs::remove_file(&names))?;
    ended(&log, std::fs::remove_dir_all(&log))
}

impl Opened {
    /// Runs it, on a thread of its own.
    pub(crate) async fn start(
        self,
        disk: Arc<dyn Disk>,
        board: Arc<Board>,
    ) -> Result<KeysHandle, MemberError> {
        let Opened { member, replicas } = self;
        let worker = Worker::start("keys")?;
        let seed = mix(member.clock.now().0 ^ u64::from(std::process::id()) << 32);
        host(&worker, Options { disk, ..member }, &replicas, seed, board).await
    }
}

/// What runs on top of the replica.
struct Service {
    desk: Desk,
    /// For how many requests of a client answers are expected.
    expected: BTreeMap<ClientNumber, usize>,
    board: Arc<Board>,
}

/// Carries out what the desk wants done, at the member.
struct Here<'a, 'b> {
    at: &'a mut At<'b, Keys>,
    clients: usize,
}

impl Counter for Here<'_, '_> {
    fn time(&self) -> Time {
        self.at.time()
    }

    fn ask(&mut self, asked: hermes::Command<Rmw>) {
        self.at.command(Command::Replica(asked));
    }

    fn write(&mut self, client: ClientNumber, reply: &Reply, version: Version) {
        self.at.write(ConnectionId::from(client), |out| reply.write(version, out));
    }

    fn end(&mut self, client: ClientNumber) {
        self.at.end(ConnectionId::from(client));
    }

    fn info(&self, sections: &[&[u8]]) -> String {
        let wanted = |name: &[u8]| {
            let all = |section: &&[u8]| {
                section.eq_ignore_ascii_case(name)
                    || section.eq_ignore_ascii_case(b"all")
                    || section.eq_ignore_ascii_case(b"everything")
                    || section.eq_ignore_ascii_case(b"default")
            };
            sections.is_empty() || sections.iter().any(all)
        };
        let mut text = String::new();
        if wanted(b"server") {
            text += &format!(
                "# Server\r\nmeridian_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\n\r\n",
                env!("CARGO_PKG_VERSION"),
                std::process::id()
            );
        }
        if wanted(b"clients") {
            text += &format!("# Clients\r\nconnected_clients:{}\r\n\r\n", self.clients);
        }
        if wanted(b"replication") {
            let (replica, now) = (self.at.process.replica(), self.at.now);
            let membership = replica.membership();
            text += &format!(
                "# Replication\r\nrole:master\r\nepoch:{}\r\nlive:{}\r\nshadows:{}\r\nserves:{}\r\n\
                 key_bytes_max:{KEY_MAX}\r\nvalue_bytes_max:{BULK_MAX}\r\n\r\n",
                membership.epoch.0,
                names(membership.live.iter()),
                names(membership.shadows.keys()),
                u8::from(replica.serves(now)),
            );
        }
        text
    }
}

fn names<'a>(nodes: impl Iterator<Item = &'a NodeId>) -> String {
    nodes.map(NodeId::to_string).collect::<Vec<_>>().join(",")
}

impl Service {
    fn with_desk<R>(
        &mut self,
        at: &mut At<'_, Keys>,
        work: impl FnOnce(&mut Desk, Now, &mut Here<'_, '_>) -> R,
    ) -> R {
        let now = Now { time: at.now, moment: Moment(at.now.0 / 1_000_000) };
        let clients = self.desk.len();
        work(&mut self.desk, now, &mut Here { at, clients })
    }

    /// Tells the member how much is still to be answered to a client.
    fn expect(&mut self, at: &mut At<'_, Keys>, client: ClientNumber) {
        let wanted = self.desk.unanswered(client);
        let told = self.expected.entry(client).or_default();
        let (before, id) = (std::mem::replace(told, wanted), ConnectionId::from(client));
        if wanted > before {
            at.expect_bytes(id, (wanted - before) * EXPECTED_LEN);
        } else if wanted < before {
            at.unexpect_bytes(id, (before - wanted) * EXPECTED_LEN);
        }
    }
}

impl Application<Keys> for Service {
    type Request = Infallible;

    fn on_request(&mut self, _: &mut At<'_, Keys>, asked: Infallible) {
        match asked {}
    }

    fn on_output(&mut self, at: &mut At<'_, Keys>, Answered { token, answer }: Answered) {
        let client = self.with_desk(at, |desk, now, here| desk.on_answer(now, token, answer, here));
        if let Some(client) = client {
            self.expect(at, client);
        }
    }

    fn on_connected(&mut self, _: &mut At<'_, Keys>, client: ConnectionId, _: ServiceId) {
        self.desk.connect(client.into());
    }

    fn on_disconnected(&mut self, _: &mut At<'_, Keys>, client: ConnectionId) {
        self.desk.disconnect(client.into());
        self.expected.remove(&client.into());
    }

    fn on_bytes(&mut self, _: &mut At<'_, Keys>, client: ConnectionId, bytes: &[u8]) {
        self.desk.feed(client.into(), bytes);
    }

    fn on_next(&mut self, at: &mut At<'_, Keys>, client: ConnectionId) -> Result<bool, WireError> {
        let (process, number) = (at.process, client.into());
        let taken =
            self.with_desk(at, |desk, now, here| desk.take(now, number, process.replica(), here));
        self.expect(at, number);
        if taken && at.process.wants_use(at.now) {
            at.command(Command::Use);
        }
        Ok(taken)
    }

    fn holds_clients(&self, process: &Keys) -> bool {
        process.replica().is_full()
    }

    fn due(&self) -> Option<Time> {
        self.desk.due()
    }

    fn on_batch(&mut self, at: &mut At<'_, Keys>) {
        self.board.note(0, at.process.replica(), self.desk.len());
        if self.desk.due().is_none() {
            return;
        }
        let process = at.process;
        let refused =
            self.with_desk(at, |desk, now, here| desk.look_again(now, process.replica(), here));
        refused.into_iter().for_each(|client| self.expect(at, client));
    }
}
