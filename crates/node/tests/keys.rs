//! Keys over real sockets and disks: three replicas, of which one ends and comes back.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use meridian_core::NodeId;
use meridian_core::hello::ServiceId;
use meridian_host::api::KeysStatus;
use meridian_node::board::Board;
use meridian_node::keys::{self, KeysHandle};
use meridian_runtime::{Clock, Listen, Options, Storage, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three replicas of one region's keys.
struct Region {
    dirs: Vec<TempDir>,
    peers: BTreeMap<NodeId, String>,
    /// Where clients call each.
    ports: Vec<SocketAddr>,
    running: Vec<Option<KeysHandle>>,
    boards: Vec<Arc<Board>>,
    starts: u64,
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

impl Region {
    async fn start() -> Region {
        let listeners: Vec<_> = (0..3).map(|_| listener()).collect();
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let peers = (0..).map(NodeId).zip(listeners.iter().map(|one| address(one).to_string()));
        let mut region = Region {
            dirs: (0..3).map(|_| TempDir::new().unwrap()).collect(),
            peers: peers.collect(),
            ports: Vec::new(),
            running: (0..3).map(|_| None).collect(),
            boards: vec![Arc::default(); 3],
            starts: 0,
        };
        let plain: Vec<_> = (0..3).map(|_| listener()).collect();
        region.ports = plain.iter().map(address).collect();
        for (node, (listener, plain)) in listeners.into_iter().zip(plain).enumerate() {
            region.run(node, listener, plain).await;
        }
        region
    }

    async fn run(&mut self, node: usize, listener: TcpListener, plain: TcpListener) {
        self.starts += 1;
        let me = NodeId(u16::try_from(node).unwrap());
        let path = self.dirs[node].path().join("keys");
        let storage = Storage::Log { path, incarnation: self.starts, checkpoint_bytes: 1 << 20 };
        let options = Options {
            storage,
            listen: Listen::Socket(listener),
            plain: vec![(ServiceId::KEYS, plain)],
            ..Options::new("test", me, "", self.peers.clone())
        };
        let worker = Worker::start("keys").unwrap();
        let replicas: BTreeSet<_> = self.peers.keys().copied().collect();
        let board = Arc::new(Board::new(1));
        let handle = keys::host(&worker, options, &replicas, self.starts, board.clone()).await;
        self.boards[node] = board;
        self.running[node] = Some(handle.unwrap());
    }

    async fn stop(&mut self, node: usize) {
        self.running[node].take().unwrap().close().await.unwrap();
    }

    async fn restart(&mut self, node: usize) {
        let id = NodeId(u16::try_from(node).unwrap());
        let bind = |address: &str| TcpListener::bind(address).unwrap();
        let listener = bind(&self.peers[&id]);
        let plain = bind(&self.ports[node].to_string());
        self.run(node, listener, plain).await;
    }

    fn status(&self, node: usize) -> KeysStatus {
        let me = NodeId(u16::try_from(node).unwrap());
        self.boards[node].status(Clock::start().now(), me).remove(0)
    }

    async fn client(&self, node: usize) -> Client {
        Client { socket: TcpStream::connect(self.ports[node]).await.unwrap() }
    }

    /// A client of a replica that serves.
    async fn served(&self, node: usize) -> Client {
        let mut client = self.client(node).await;
        let serves = async { while client.ask("get nothing").await != "$-1\r\n" {} };
        timeout(PATIENCE, serves).await.expect("it serves");
        client
    }
}

struct Client {
    socket: TcpStream,
}

impl Client {
    /// The answer to a line, of one line or a short value.
    async fn ask(&mut self, line: &str) -> String {
        self.socket.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        self.read(if line.starts_with("get") { 2 } else { 1 }).await
    }

    /// So many lines; nothing has one only.
    async fn read(&mut self, lines: usize) -> String {
        let mut read = String::new();
        let enough = |read: &str| {
            let wanted = if read.starts_with("$-1") || read.starts_with('-') { 1 } else { lines };
            read.matches("\r\n").count() >= wanted
        };
        let mut buffer = [0; 4096];
        while !enough(&read) {
            let len = timeout(PATIENCE, self.socket.read(&mut buffer)).await.unwrap().unwrap();
            assert!(len > 0, "closed after {read:?}");
            read += std::str::from_utf8(&buffer[..len]).unwrap();
        }
        read
    }
}

#[tokio::test]
async fn what_is_written_at_one_replica_is_read_at_the_others() {
    let region = Region::start().await;
    let mut clients = Vec::new();
    for node in 0..3 {
        clients.push(region.served(node).await);
    }
    assert_eq!(clients[0].ask("set k v").await, "+OK\r\n");
    for client in &mut clients {
        assert_eq!(client.ask("get k").await, "$1\r\nv\r\n");
    }
    let counting = clients.into_iter().map(|mut client| {
        tokio::spawn(async move {
            for _ in 0..50 {
                assert!(client.ask("incr n").await.starts_with(':'));
            }
        })
    });
    for counted in counting.collect::<Vec<_>>() {
        counted.await.unwrap();
    }
    let counted = region.client(2).await.ask("get n").await;
    assert_eq!(counted, "$3\r\n150\r\n");
}

#[tokio::test]
async fn writes_go_on_without_a_replica_and_it_comes_back_with_everything() {
    let mut region = Region::start().await;
    let mut client = region.served(0).await;
    for number in 0..100 {
        assert_eq!(client.ask(&format!("set k{number} {number}")).await, "+OK\r\n");
    }
    region.stop(2).await;
    let stopped = Instant::now();
    assert_eq!(client.ask("set k0 changed").await, "+OK\r\n");
    let stood_still = stopped.elapsed();
    assert!(stood_still < Duration::from_secs(5), "writes stood still for {stood_still:?}");
    assert!(!region.status(0).live.contains(&NodeId(2)));
    region.restart(2).await;
    let mut back = region.served(2).await;
    assert_eq!(back.ask("get k0").await, "$7\r\nchanged\r\n");
    for number in 1..100 {
        let length = number.to_string().len();
        assert_eq!(back.ask(&format!("get k{number}")).await, format!("${length}\r\n{number}\r\n"));
    }
    let status = region.status(2);
    assert_eq!((status.live.len(), status.keys), (3, 100));
    // It counts again: without it, one of three is left of those that began.
    region.stop(1).await;
    assert_eq!(back.ask("set k1 again").await, "+OK\r\n");
    assert_eq!(client.ask("get k1").await, "$5\r\nagain\r\n");
}

#[tokio::test]
async fn what_is_no_request_is_answered_and_its_connection_ends() {
    let region = Region::start().await;
    let mut client = region.served(0).await;
    client.socket.write_all(b"set k v\r\n*1\r\n:1\r\nget k\r\n").await.unwrap();
    let mut rest = String::new();
    client.socket.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "+OK\r\n-ERR Protocol error: expected '$', got ':'\r\n");
    assert_eq!(region.served(1).await.ask("get k").await, "$1\r\nv\r\n");
}
