//! Keys over real sockets and disks: three replicas, of which one ends and comes back.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use meridian_client::keys::{Change, Keys, KeysOptions, Watch, Watched};
use meridian_core::NodeId;
use meridian_core::hello::ServiceId;
use meridian_host::api::KeysStatus;
use meridian_node::board::Board;
use meridian_node::keys::{self, Durability, Members, Running};
use meridian_runtime::{Clock, Listen, Options, Storage};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// So many shards there are where keys are kept on disks.
const SHARDS: usize = 2;

/// Three replicas of one region's keys.
struct Region {
    dirs: Vec<TempDir>,
    /// Where the threads of each shard listen; the last are those of the stewards.
    peers: Vec<BTreeMap<NodeId, String>>,
    /// Where clients call each.
    ports: Vec<SocketAddr>,
    running: Vec<Option<Running>>,
    boards: Vec<Arc<Board>>,
    starts: u64,
    /// Where who starts next keeps its keys.
    durability: Durability,
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

impl Region {
    async fn start() -> Region {
        Region::of(1).await
    }

    async fn of(shards: usize) -> Region {
        Region::kept(shards, Durability::Memory).await
    }

    async fn kept(shards: usize, durability: Durability) -> Region {
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let listeners: Vec<Vec<_>> =
            (0..3).map(|_| (0..=shards).map(|_| listener()).collect()).collect();
        let peers = (0..=shards).map(|thread| {
            let addresses = listeners.iter().map(|node| address(&node[thread]).to_string());
            (0..).map(NodeId).zip(addresses).collect()
        });
        let plain: Vec<_> = (0..3).map(|_| listener()).collect();
        let mut region = Region {
            dirs: (0..3).map(|_| TempDir::new().unwrap()).collect(),
            peers: peers.collect(),
            ports: plain.iter().map(address).collect(),
            running: (0..3).map(|_| None).collect(),
            boards: vec![Arc::default(); 3],
            starts: 0,
            durability,
        };
        for (node, (listeners, plain)) in listeners.into_iter().zip(plain).enumerate() {
            region.run(node, listeners, plain).await;
        }
        region
    }

    async fn run(&mut self, node: usize, listeners: Vec<TcpListener>, plain: TcpListener) {
        self.starts += 1;
        let me = NodeId(u16::try_from(node).unwrap());
        let shards = listeners.len() - 1;
        let members = listeners.into_iter().enumerate().map(|(thread, listener)| {
            let path = self.dirs[node].path().join(format!("keys-{thread}"));
            let (incarnation, checkpoint_bytes) = (self.starts, 1 << 20);
            let plain = (thread < shards).then(|| plain.try_clone().unwrap());
            Options {
                storage: Storage::Log { path, incarnation, checkpoint_bytes },
                listen: Listen::Socket(listener),
                plain: plain.into_iter().map(|plain| (ServiceId::KEYS, plain)).collect(),
                ..Options::new("test", me, "", self.peers[thread].clone())
            }
        });
        let mut members: Vec<_> = members.collect();
        let steward = members.pop().unwrap();
        let grants = Arc::default();
        let members = Members { steward, shards: members, causal: None, grants };
        let replicas: BTreeSet<_> = self.peers[0].keys().copied().collect();
        let board = Arc::new(Board::new(shards));
        let running = keys::host(members, &replicas, self.durability, self.starts, &board);
        let running = running.await;
        self.boards[node] = board;
        self.running[node] = Some(running.unwrap());
    }

    async fn stop(&mut self, node: usize) {
        self.running[node].take().unwrap().close().await.unwrap();
    }

    async fn restart(&mut self, node: usize) {
        let id = NodeId(u16::try_from(node).unwrap());
        let bind = |address: &str| TcpListener::bind(address).unwrap();
        let listeners = self.peers.iter().map(|peers| bind(&peers[&id])).collect();
        let plain = bind(&self.ports[node].to_string());
        self.run(node, listeners, plain).await;
    }

    /// All stop, and start again.
    async fn restart_all(&mut self) {
        for node in 0..3 {
            self.stop(node).await;
        }
        for node in 0..3 {
            self.restart(node).await;
        }
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

/// Links reset themselves when more waits than they may keep: together these values are longer.
#[tokio::test]
async fn long_values_go_to_all_replicas_also_many_at_once() {
    let region = Region::start().await;
    let mut client = region.served(0).await;
    let lengths = [64 << 20, 24 << 20, 24 << 20, 24 << 20];
    for (key, length) in lengths.into_iter().enumerate() {
        let head = format!("*3\r\n$3\r\nSET\r\n$2\r\nk{key}\r\n${length}\r\n");
        client.socket.write_all(head.as_bytes()).await.unwrap();
        client.socket.write_all(&vec![b'v'; length]).await.unwrap();
        client.socket.write_all(b"\r\n").await.unwrap();
        assert_eq!(client.read(1).await, "+OK\r\n");
    }
    // Each changes its value, and so sends it to the others.
    let all: String = (0..lengths.len()).map(|key| format!("expire k{key} 1000\n")).collect();
    client.socket.write_all(all.as_bytes()).await.unwrap();
    assert_eq!(client.read(lengths.len()).await, ":1\r\n".repeat(lengths.len()));
    let mut other = region.served(2).await;
    for (key, length) in lengths.into_iter().enumerate() {
        assert_eq!(other.ask(&format!("strlen k{key}")).await, format!(":{length}\r\n"));
        assert!(!other.ask(&format!("ttl k{key}")).await.starts_with(":-"));
    }
    assert_eq!(region.status(0).live.len(), 3, "nobody was taken for dead");
}

/// What a link keeps of a long message must leave room for the ACKs of others.
#[tokio::test]
async fn long_values_at_all_nodes_at_once_get_into_all_logs() {
    const LEN: usize = 64 << 20;
    let region = Region::kept(1, Durability::Disk).await;
    let value = Arc::new(vec![b'v'; LEN]);
    let mut setting = JoinSet::new();
    for node in 0..3 {
        let (mut client, value) = (region.served(node).await, value.clone());
        setting.spawn(async move {
            let head = format!("*3\r\n$3\r\nSET\r\n$2\r\nk{node}\r\n${LEN}\r\n");
            client.socket.write_all(head.as_bytes()).await.unwrap();
            client.socket.write_all(&value).await.unwrap();
            client.socket.write_all(b"\r\n").await.unwrap();
            client.read(1).await
        });
    }
    let answers = setting.join_all().await;
    assert!(answers.iter().all(|answer| answer == "+OK\r\n"), "{answers:?}");
    for node in 0..3 {
        let mut client = region.served(node).await;
        for key in 0..3 {
            assert_eq!(client.ask(&format!("strlen k{key}")).await, format!(":{LEN}\r\n"));
        }
    }
    assert_eq!(region.status(0).live.len(), 3, "nobody was taken for dead");
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

#[tokio::test]
async fn keys_in_several_shards_are_one_store_at_any_thread() {
    let mut region = Region::of(3).await;
    // Connections come to any of the threads.
    let mut clients = Vec::new();
    for client in 0..6 {
        clients.push(region.served(client % 3).await);
    }
    for number in 0..60 {
        let client = &mut clients[number % 6];
        assert_eq!(client.ask(&format!("set k{number} {number}")).await, "+OK\r\n");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let key = 59 - number;
        let expected = format!("$2\r\n{key}\r\n");
        assert_eq!(client.ask(&format!("get k{key}")).await, expected);
    }
    assert_eq!(clients[0].ask("dbsize").await, ":60\r\n");
    let held: Vec<_> = region.boards[1].status(Clock::start().now(), NodeId(1));
    assert!(held.iter().all(|shard| shard.keys > 5), "all shards have some: {held:?}");
    // A node goes and comes back; it serves when all of its shards have everything.
    region.stop(2).await;
    assert_eq!(clients[0].ask("set k0 changed").await, "+OK\r\n");
    region.restart(2).await;
    let mut back = region.served(2).await;
    assert_eq!(back.ask("get k0").await, "$7\r\nchanged\r\n");
    for number in 10..60 {
        let expected = format!("$2\r\n{number}\r\n");
        assert_eq!(back.ask(&format!("get k{number}")).await, expected);
    }
}

/// When all have stopped, what they had in memory has gone: they serve again, with nothing, and
/// nobody has to help them.
#[tokio::test]
async fn a_region_that_has_stopped_begins_with_nothing() {
    let mut region = Region::of(2).await;
    let mut client = region.served(0).await;
    assert_eq!(client.ask("set k0 lost").await, "+OK\r\n");
    assert_eq!(client.ask("set k1 lost").await, "+OK\r\n");
    for node in 0..3 {
        region.stop(node).await;
    }
    for node in 0..3 {
        region.restart(node).await;
    }
    for node in 0..3 {
        let mut client = region.served(node).await;
        assert_eq!(client.ask("get k0").await, "$-1\r\n");
    }
    assert_eq!(region.served(1).await.ask("set k1 new").await, "+OK\r\n");
    assert_eq!(region.served(2).await.ask("get k1").await, "$3\r\nnew\r\n");
}

/// Also with several shards, of which each has a log: none of them is taken for whole alone.
#[tokio::test]
async fn keys_on_disks_outlive_all_replicas_and_one_that_was_away_catches_up() {
    let mut region = Region::kept(SHARDS, Durability::Disk).await;
    let mut client = region.served(0).await;
    for number in 0..40 {
        assert_eq!(client.ask(&format!("set k{number} {number}")).await, "+OK\r\n");
    }
    assert_eq!(client.ask("del k0").await, ":1\r\n");
    for count in 1..=5 {
        assert_eq!(client.ask("incr n").await, format!(":{count}\r\n"));
    }
    region.restart_all().await;
    for node in 0..3 {
        let mut client = region.served(node).await;
        assert_eq!(client.ask("get k0").await, "$-1\r\n");
        assert_eq!(client.ask("get k39").await, "$2\r\n39\r\n");
        assert_eq!(client.ask("get n").await, "$1\r\n5\r\n");
        assert_eq!(client.ask("dbsize").await, ":40\r\n");
    }
    region.stop(2).await;
    let mut client = region.served(0).await;
    assert_eq!(client.ask("set k1 changed").await, "+OK\r\n");
    region.restart(2).await;
    let mut back = region.served(2).await;
    assert_eq!(back.ask("get k1").await, "$7\r\nchanged\r\n");
    assert_eq!(back.ask("get k39").await, "$2\r\n39\r\n");
    assert_eq!(back.ask("incr n").await, ":6\r\n");
    region.restart_all().await;
    assert_eq!(region.served(2).await.ask("get k1").await, "$7\r\nchanged\r\n");
    assert_eq!(region.served(1).await.ask("get n").await, "$1\r\n6\r\n");
}

/// A log that was not kept up for a start is not taken for whole by the next.
#[tokio::test]
async fn keys_that_a_disk_had_before_a_start_in_memory_never_return() {
    let mut region = Region::kept(SHARDS, Durability::Disk).await;
    let mut client = region.served(0).await;
    for number in 0..10 {
        assert_eq!(client.ask(&format!("set k{number} old")).await, "+OK\r\n");
    }
    // One after the other: what the disks had is now in memory, and goes on.
    region.durability = Durability::Memory;
    for node in 0..3 {
        region.stop(node).await;
        region.restart(node).await;
        assert_eq!(region.served(node).await.ask("get k1").await, "$3\r\nold\r\n");
    }
    assert_eq!(region.served(0).await.ask("set k1 new").await, "+OK\r\n");
    region.durability = Durability::Disk;
    region.restart_all().await;
    for number in 0..10 {
        let found = region.served(number % 3).await.ask(&format!("get k{number}")).await;
        assert_eq!(found, "$-1\r\n", "k{number}");
    }
    // From now on the disks count again.
    assert_eq!(region.served(1).await.ask("set k1 kept").await, "+OK\r\n");
    region.restart_all().await;
    assert_eq!(region.served(2).await.ask("get k1").await, "$4\r\nkept\r\n");
}

/// A proxy before the nodes takes a change and breaks the connection before it is answered: the
/// change is asked again, by its name, and is made once.
#[tokio::test]
async fn a_change_whose_connection_breaks_is_made_once() {
    let region = Region::of(2).await;
    for node in 0..3 {
        region.served(node).await;
    }
    let proxies: Vec<_> =
        (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = proxies.iter().map(|p| p.local_addr().unwrap().to_string()).collect();
    for (proxy, to) in proxies.into_iter().zip(region.ports.clone()) {
        proxy.set_nonblocking(true).unwrap();
        tokio::spawn(break_often(tokio::net::TcpListener::from_std(proxy).unwrap(), to));
    }
    let keys = Keys::new(KeysOptions { timeout: PATIENCE, ..KeysOptions::new(addresses) }).unwrap();
    for number in 1..=50 {
        assert_eq!(keys.add("n", 1).await.unwrap(), number);
    }
    assert_eq!(region.client(2).await.ask("get n").await, "$2\r\n50\r\n");
    assert!(keys.remove("n").await.unwrap() && keys.get("n").await.unwrap().is_none());
}

/// Passes on what comes, and breaks a connection before every third answer to a change.
async fn break_often(listener: tokio::net::TcpListener, to: SocketAddr) {
    let mut changes = 0;
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(to).await.unwrap();
        let (mut asked, mut answered) = ([0; 4096], [0; 4096]);
        loop {
            let len = client.read(&mut asked).await.unwrap_or(0);
            if len == 0 {
                break;
            }
            server.write_all(&asked[..len]).await.unwrap();
            let is_change = asked[..len].windows(4).any(|word| word == b"ONCE");
            let len = server.read(&mut answered).await.unwrap();
            changes += u32::from(is_change);
            if is_change && changes % 3 == 0 {
                break;
            }
            client.write_all(&answered[..len]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_watch_tells_changes_and_goes_on_at_another_node() {
    let mut region = Region::of(2).await;
    region.served(1).await;
    let mut writer = region.served(0).await;
    let addresses = [1, 0].map(|node| region.ports[node].to_string());
    let keys = Keys::new(KeysOptions::new(addresses)).unwrap();
    assert_eq!(writer.ask("set user:1 a").await, "+OK\r\n");
    // Where it is watched it is known to be committed: else it could be told twice.
    assert_eq!(region.client(1).await.ask("get user:1").await, "$1\r\na\r\n");
    let mut watch = keys.watch(Watched::prefix("user:"));
    let set =
        |key: &str, value: &str| Change::Set(key.to_string().into(), value.to_string().into());
    assert_eq!(next(&mut watch).await, Change::Began);
    assert_eq!(next(&mut watch).await, set("user:1", "a"));
    assert_eq!(writer.ask("set user:1 b").await, "+OK\r\n");
    assert_eq!(next(&mut watch).await, set("user:1", "b"));
    region.stop(1).await;
    assert_eq!(next(&mut watch).await, Change::Began);
    assert_eq!(next(&mut watch).await, set("user:1", "b"));
    assert_eq!(writer.ask("del user:1").await, ":1\r\n");
    assert_eq!(next(&mut watch).await, Change::Removed("user:1".into()));
    region.stop(0).await;
    let away = next(&mut watch).await;
    assert!(matches!(away, Change::Away { .. }), "{away:?}");
}

async fn next(watch: &mut Watch) -> Change {
    timeout(PATIENCE, watch.next()).await.unwrap().unwrap()
}

/// A socket that is broken is always ready: who waited until it took more did nothing else any
/// more, and no client of the replica was answered.
#[tokio::test]
async fn who_goes_without_reading_the_answers_holds_up_nobody() {
    let region = Region::start().await;
    let mut one = region.served(0).await;
    let value = "v".repeat(50_000);
    assert_eq!(one.ask(&format!("set long {value}")).await, "+OK\r\n");
    for _ in 0..5 {
        let mut silent = region.client(0).await;
        silent.socket.write_all(&b"get long\n".repeat(1000)).await.unwrap();
        silent.socket.readable().await.unwrap(); // It is being answered.
    }
    for _ in 0..20 {
        assert_eq!(one.ask("strlen long").await, ":50000\r\n");
    }
}
