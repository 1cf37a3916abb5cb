//! A process to try the shell with: a counter that all nodes add to, and a cluster of its servers.
#![allow(clippy::unwrap_used, reason = "a test")]

use bytes::{Bytes, BytesMut};
use meridian_cluster::Topology;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use meridian_core::hello::{Answer, Caller, Hello, ServiceId};
use meridian_core::{
    ClientId, Event, GroupId, MessageId, NodeId, Outbox, Position, Process, Time, frame,
};
use meridian_host::api::{
    KeeperStatus, NodeStatus, Refusal, ReplicaStatus, Reply, ReplyBody, Request, RequestBody,
};
use meridian_host::drain::{self, Drain};
use meridian_host::{ConnectionId, Output, space};
use meridian_multicast::{Epoch, Start, Timestamp};
use meridian_node::keys::KeysOptions;
use meridian_node::{ServerDisk, ServerError, ServerOptions, Service, prepare, serve};
use meridian_paxos as paxos;
use meridian_storage::{Disk, SimDisk};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// Each `Update` adds its sequence number, and is answered once all nodes have it on disk.
#[derive(Clone, Debug)]
pub struct Toy {
    me: NodeId,
    nodes: Vec<NodeId>,
    /// What was added: by whom, its number there, how much.
    added: BTreeMap<(NodeId, u64), u64>,
    /// What was asked of this node: how much, who has it, who waits.
    asked: BTreeMap<u64, Asked>,
    restarts: u64,
    drain: Drain,
}

/// How long a server may take to find out that it cannot go on.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// How often a checkpoint of any toy was begun.
pub static CHECKPOINTS: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Debug, Default)]
struct Asked {
    amount: u64,
    by: Option<(ConnectionId, u64)>,
    acks: BTreeSet<NodeId>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    Add { number: u64, amount: u64, padding: Bytes },
    Ack { number: u64 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    Asked { number: u64, amount: u64 },
    Added { by: NodeId, number: u64, amount: u64 },
}

#[derive(Clone, Debug)]
pub enum Command {
    Request(ConnectionId, Request),
    Closed(ConnectionId),
    Known,
    Configured,
}

impl Toy {
    fn add(&self, number: u64, to: NodeId, out: &mut Outbox<Self>) {
        let amount = self.asked[&number].amount;
        // Some are long: those travel in pieces.
        let padding = if amount == 7 { Bytes::from(vec![1; 3 << 20]) } else { Bytes::new() };
        out.send(to, Message::Add { number, amount, padding });
    }

    fn on_request(&mut self, by: ConnectionId, request: Request, out: &mut Outbox<Self>) {
        let RequestBody::Update { start, .. } = request.body else {
            let body = ReplyBody::Refused(Refusal::Bad("only updates".into()));
            return out.output((by, Reply { id: request.id, body }));
        };
        let (number, amount) = (self.asked.len() as u64 + 1, start.id.sequence);
        let asked = Asked { amount, by: Some((by, request.id)), ..Asked::default() };
        self.asked.insert(number, asked);
        out.persist(Record::Asked { number, amount });
        for node in &self.nodes {
            self.add(number, *node, out);
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, out: &mut Outbox<Self>) {
        match message {
            Message::Add { number, amount, .. } => {
                if self.added.insert((from, number), amount).is_none() {
                    out.persist(Record::Added { by: from, number, amount });
                }
                out.send(from, Message::Ack { number });
            }
            Message::Ack { number } => {
                let asked = self.asked.get_mut(&number).unwrap();
                let new = asked.acks.insert(from);
                if let Some((by, id)) = asked.by
                    && new
                    && asked.acks.len() == self.nodes.len()
                {
                    out.output((by, Reply { id, body: ReplyBody::Stored }));
                }
            }
        }
    }

    fn resend(&self, to: NodeId, out: &mut Outbox<Self>) {
        for (number, asked) in &self.asked {
            if !asked.acks.contains(&to) {
                self.add(*number, to, out);
            }
        }
    }
}

impl Process for Toy {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = (ConnectionId, Reply);
    type Timer = std::convert::Infallible;

    fn step(&mut self, _now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => {
                for node in self.nodes.clone() {
                    self.resend(node, out);
                }
            }
            Event::Message { from, message } => self.on_message(from, message, out),
            Event::Command(Command::Request(by, request)) => self.on_request(by, request, out),
            Event::Command(Command::Known | Command::Configured) => {}
            Event::Command(Command::Closed(by)) => {
                for asked in self.asked.values_mut() {
                    asked.by = asked.by.filter(|(waits, _)| *waits != by);
                }
            }
            Event::Restarted(peer) => {
                self.restarts += 1;
                self.resend(peer, out);
            }
            Event::Timer(_) | Event::Idle => (),
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Asked { number, amount } => {
                self.asked.insert(number, Asked { amount, ..Asked::default() });
            }
            Record::Added { by, number, amount } => {
                self.added.insert((by, number), amount);
            }
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        CHECKPOINTS.fetch_add(1, Ordering::SeqCst);
        let asked = self.asked.clone().into_iter();
        let asked = asked.map(|(number, asked)| Record::Asked { number, amount: asked.amount });
        let added = self.added.clone().into_iter();
        let added = added.map(|((by, number), amount)| Record::Added { by, number, amount });
        Box::new(asked.chain(added))
    }
}

impl Service for Toy {
    fn new(topology: Arc<Topology>, me: NodeId) -> Toy {
        let nodes = (0..topology.nodes.len() as u16).map(NodeId).collect();
        let drain = Drain::new(topology, me);
        Toy { me, nodes, added: BTreeMap::new(), asked: BTreeMap::new(), restarts: 0, drain }
    }

    fn request(connection: ConnectionId, request: Request) -> Command {
        Command::Request(connection, request)
    }

    fn known(_: ConnectionId, _: String) -> Command {
        Command::Known
    }

    fn admits(&self, _: Option<&str>, _: &RequestBody) -> Result<(), Refusal> {
        Ok(())
    }

    fn closed(connection: ConnectionId) -> Command {
        Command::Closed(connection)
    }

    fn configured(_: Arc<Topology>) -> Command {
        Command::Configured
    }

    fn told((connection, reply): (ConnectionId, Reply)) -> Output {
        Output::Reply { connection, reply }
    }

    fn blocks(_: drain::Command) -> Command {
        Command::Configured
    }

    fn drain(&self) -> &Drain {
        &self.drain
    }

    fn with_copies(self, _: drain::keep::Options) -> Toy {
        self
    }

    fn space(_: space::Command) -> Command {
        unreachable!("nobody asked")
    }

    fn space_report(&self) -> space::Report {
        space::Report::default()
    }

    fn configuration(_: paxos::Command) -> Command {
        Command::Configured
    }

    fn keeper(&self) -> Option<KeeperStatus> {
        None
    }

    fn status(&self, now: Time) -> Vec<ReplicaStatus> {
        vec![ReplicaStatus {
            group: GroupId::GLOBAL,
            role: "toy".into(),
            epoch: Epoch { config: 0, number: self.restarts, leader: self.me },
            primary: self.me,
            delivered: Position(self.added.len() as u64),
            applied: Position(self.added.values().sum()),
            clock: Timestamp(now.0),
            pending: self.asked.values().filter(|asked| asked.by.is_some()).count() as u64,
            head_age_ms: 0,
            held_up: None,
            holdings: Default::default(),
            state_hash: 0,
        }]
    }
}

/// What stops a server, and its thread.
type Running = (oneshot::Sender<()>, Receiver<Result<(), ServerError>>);

/// Servers as threads, one region each.
pub struct Cluster {
    root: tempfile::TempDir,
    pub addresses: Vec<String>,
    pub disks: Vec<Arc<dyn Disk>>,
    running: Vec<Option<Running>>,
}

pub const CLUSTER: u64 = 42;

impl Cluster {
    /// Starts `count` servers, each two of which are `rtt_ms` away from each other.
    pub fn start(count: usize, rtt_ms: u32) -> Cluster {
        let disks = (0..count).map(|_| Arc::new(SimDisk::new()) as Arc<dyn Disk>).collect();
        let mut cluster = Cluster::new(disks, rtt_ms);
        (0..count).for_each(|node| cluster.start_node(node));
        cluster
    }

    /// Servers on these disks, not yet started.
    pub fn new(disks: Vec<Arc<dyn Disk>>, rtt_ms: u32) -> Cluster {
        let root = tempfile::tempdir().unwrap();
        let held: Vec<_> =
            disks.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<String> =
            held.iter().map(|held| held.local_addr().unwrap().to_string()).collect();
        let node = |(at, address): (usize, &String)| NodeEntry {
            name: format!("n{at}"),
            region: format!("r{at}"),
            pid: None,
            address: address.clone(),
            groups: vec!["global".into(), format!("r{at}")],
            draining: None,
        };
        let mut rtt = BTreeMap::new();
        for a in 0..disks.len() {
            for b in a + 1..disks.len() {
                rtt.insert(format!("r{a}-r{b}"), rtt_ms);
            }
        }
        let nodes = addresses.iter().enumerate().map(node).collect();
        let file = ClusterFile {
            insecure_plain_text: true,
            format: CLUSTER_FORMAT,
            created_ms: 0,
            cluster: CLUSTER,
            nodes,
            rtt_ms: rtt,
            order: Default::default(),
            configuration: Default::default(),
        };
        meridian_node::config::write_cluster(&root.path().join("cluster.json"), &file).unwrap();
        for at in 0..disks.len() {
            let name = format!("n{at}");
            prepare(&root.path().join(&name), CLUSTER, &name).unwrap();
        }
        let running = disks.iter().map(|_| None).collect();
        Cluster { root, addresses, disks, running }
    }

    pub fn dir(&self, node: usize) -> std::path::PathBuf {
        self.root.path().join(format!("n{node}"))
    }

    pub fn start_node(&mut self, node: usize) {
        self.start_with::<Toy>(node, 64 << 20);
    }

    /// Starts a server of `P` that makes a checkpoint after so many bytes of log.
    pub fn start_with<P: Service>(&mut self, node: usize, checkpoint_bytes: u64) {
        self.run::<P>(node, checkpoint_bytes, None);
    }

    /// Starts a server that also has keys, in so many shards.
    #[allow(dead_code, reason = "one of the tests needs it")]
    pub fn start_with_keys(&mut self, node: usize, shards: usize) {
        let keys = KeysOptions {
            address: "127.0.0.1:0".into(),
            shards: Some(shards),
            durability: None,
            causal: None,
            first: None,
        };
        self.run::<Toy>(node, 64 << 20, Some(keys));
    }

    fn run<P: Service>(&mut self, node: usize, checkpoint_bytes: u64, keys: Option<KeysOptions>) {
        let options = ServerOptions {
            dir: self.dir(node),
            cluster: None,
            security: Default::default(),
            keys,
            copies: Default::default(),
        };
        let on = ServerDisk { disk: self.disks[node].clone(), checkpoint_bytes };
        let (stop, stopped) = oneshot::channel();
        let (ending, ended) = channel();
        std::thread::spawn(move || {
            let _ = ending.send(serve::<P>(&options, on, async {
                let _ = stopped.await;
                Ok(())
            }));
        });
        self.running[node] = Some((stop, ended));
    }

    /// Stops a server; how it ended.
    pub fn stop_node(&mut self, node: usize) -> Result<(), ServerError> {
        let (stop, ended) = self.running[node].take().unwrap();
        let _ = stop.send(()); // It may have ended by itself.
        ended.recv().unwrap()
    }

    /// Waits for a server to end by itself.
    pub fn wait_node(&mut self, node: usize) -> Result<(), ServerError> {
        let (_stop, ended) = self.running[node].take().unwrap();
        ended.recv_timeout(ENDS_WITHIN).expect("the node ends")
    }

    pub fn client(&self, node: usize) -> Client {
        Client::connect(&self.addresses[node])
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (stop, ended) in self.running.iter_mut().filter_map(Option::take) {
            let _ = stop.send(());
            let _ = ended.recv();
        }
    }
}

/// A client that waits for each reply.
pub struct Client {
    stream: TcpStream,
    buffer: BytesMut,
    /// What is left of the last frame.
    body: Bytes,
    next: u64,
}

/// What a caller says first.
pub fn hello(cluster: u64, caller: Caller<NodeId>) -> Hello<NodeId> {
    Hello::new(&cluster.to_string(), caller)
}

/// Connects as soon as somebody listens there.
pub fn dial(address: &str) -> TcpStream {
    for _ in 0..2000 {
        if let Ok(stream) = TcpStream::connect(address) {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            return stream;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nobody listens at {address}");
}

pub fn framed<T: Serialize>(value: &T) -> BytesMut {
    let mut bytes = BytesMut::new();
    let body = postcard::to_stdvec(value).unwrap();
    frame::encode(&mut bytes, |into| into.extend_from_slice(&body)).unwrap();
    bytes
}

impl Client {
    pub fn connect(address: &str) -> Client {
        let mut client =
            Client { stream: dial(address), buffer: BytesMut::new(), body: Bytes::new(), next: 1 };
        client.send(&hello(CLUSTER, Caller::Client(ServiceId::MAIN)));
        assert_eq!(client.receive::<Answer<NodeId>>(), Answer::Client);
        client
    }

    fn send<T: Serialize>(&mut self, value: &T) {
        self.stream.write_all(&framed(value)).unwrap();
    }

    pub fn receive<T: serde::de::DeserializeOwned>(&mut self) -> T {
        loop {
            if !self.body.is_empty() {
                let (value, rest) = postcard::take_from_bytes(&self.body).unwrap();
                self.body = self.body.slice_ref(rest);
                return value;
            }
            if let Some(body) = frame::decode(&mut self.buffer).unwrap() {
                self.body = body;
                continue;
            }
            let mut chunk = [0; 4096];
            let len = self.stream.read(&mut chunk).unwrap();
            assert!(len > 0, "the server closed the connection");
            self.buffer.extend_from_slice(&chunk[..len]);
        }
    }

    /// Asks, without waiting; the request's id.
    pub fn ask(&mut self, body: RequestBody) -> u64 {
        let id = self.next;
        self.next += 1;
        self.send(&Request { id, body });
        id
    }

    pub fn call(&mut self, body: RequestBody) -> ReplyBody {
        let id = self.ask(body);
        let reply: Reply = self.receive();
        assert_eq!(reply.id, id);
        reply.body
    }

    pub fn status(&mut self) -> NodeStatus {
        match self.call(RequestBody::Status) {
            ReplyBody::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    /// Asks until the answer is good.
    pub fn await_status(&mut self, good: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        for _ in 0..4000 {
            let status = self.status();
            if good(&status) {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("never: {:?}", self.status());
    }
}

pub fn update(amount: u64) -> RequestBody {
    let id = MessageId { client: ClientId(9), sequence: amount };
    let start = Start::new(id, [GroupId::GLOBAL], Bytes::new());
    RequestBody::Update { group: GroupId::GLOBAL, start }
}
