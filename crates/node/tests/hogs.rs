//! Clients of keys that want more memory than there is for all of them: who has the most is left.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use meridian_core::NodeId;
use meridian_core::hello::ServiceId;
use meridian_node::board::Board;
use meridian_node::keys::{self, Durability, Members, Running};
use meridian_runtime::{Listen, Options, Storage};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// So much is kept for all clients.
const MAX: usize = 8 << 20;
/// Each hog wants so much of it.
const LEN: usize = 3 << 20;
/// There are so many.
const HOGS: usize = 12;

/// The only replica of its keys.
struct Alone {
    address: SocketAddr,
    clients_max: usize,
    running: Running,
    _dir: TempDir,
}

impl Alone {
    async fn start(clients_max: usize) -> Alone {
        let dir = TempDir::new().unwrap();
        let me = NodeId(0);
        let plain = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = plain.local_addr().unwrap();
        let mut plain = vec![(ServiceId::KEYS, plain)];
        let mut member = |name: &str| {
            let path = dir.path().join(name);
            let storage = Storage::Log { path, incarnation: 1, checkpoint_bytes: 1 << 20 };
            let listen = Listen::Socket(TcpListener::bind("127.0.0.1:0").unwrap());
            let (plain, plain_bytes_max) = (std::mem::take(&mut plain), MAX);
            let options = Options::new("test", me, "", BTreeMap::new());
            Options { storage, listen, plain, plain_bytes_max, clients_max, ..options }
        };
        let shards = vec![member("keys-0")];
        let members = Members {
            steward: member("keys-steward"),
            shards,
            causal: None,
            grants: Arc::default(),
        };
        let board = Arc::new(Board::new(1));
        let first = BTreeSet::from([me]);
        let running = keys::host(members, &first, Durability::Memory, 1, &board).await.unwrap();
        let alone = Alone { address, clients_max, running, _dir: dir };
        let mut client = alone.client().await;
        let serves = async { while ask(&mut client, "set k v").await != "+OK\r\n" {} };
        timeout(PATIENCE, serves).await.expect("it serves");
        alone
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// The answer to a line, of one line.
async fn ask(client: &mut TcpStream, line: &str) -> String {
    client.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    while !answer.ends_with('\n') {
        answer.push(char::from(timeout(PATIENCE, client.read_u8()).await.unwrap().unwrap()));
    }
    answer
}

/// How many of the connections the server has ended, of which it ends some.
async fn ended(hogs: &mut [TcpStream], stay: usize) -> usize {
    let mut ended = 0;
    for hog in hogs.iter_mut() {
        let mut piece = vec![0; 1 << 16];
        let left = hogs_left(hog, &mut piece).await;
        ended += usize::from(left);
    }
    assert!(hogs.len() - ended <= stay, "{ended} of {} have ended", hogs.len());
    ended
}

/// Whether the connection has ended, once all that was sent before is read.
async fn hogs_left(hog: &mut TcpStream, piece: &mut [u8]) -> bool {
    loop {
        // Of one that stays nothing comes for so long, as all of it waited in its socket.
        match timeout(Duration::from_millis(300), hog.read(piece)).await {
            Err(_) => return false,
            Ok(Ok(0) | Err(_)) => return true,
            Ok(Ok(_)) => {}
        }
    }
}

#[tokio::test]
async fn of_clients_that_stop_in_long_requests_those_with_the_most_are_left() {
    let alone = Alone::start(100).await;
    let (mut short, mut half) = (alone.client().await, alone.client().await);
    half.write_all(b"*2\r\n$3\r\nGET\r\n").await.unwrap();
    let mut hogs = Vec::new();
    for _ in 0..HOGS {
        let mut hog = alone.client().await;
        hog.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\nh\r\n${LEN}\r\n").as_bytes())
            .await
            .unwrap();
        let _ = hog.write_all(&vec![b'v'; LEN - 1]).await;
        hogs.push(hog);
        assert_eq!(ask(&mut short, "strlen k").await, ":1\r\n");
    }
    let left = ended(&mut hogs, MAX / (LEN - 1) + 1).await;
    assert!(left >= HOGS - MAX / (LEN - 1) - 1, "{left}");
    // Who has less goes on, also in the middle of a request.
    half.write_all(b"$1\r\nk\r\n").await.unwrap();
    let mut answer = [0; 7];
    timeout(PATIENCE, half.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"$1\r\nv\r\n");
    // Those that are gone take nothing any more: there is room for a long request.
    drop(hogs);
    let value = "v".repeat(LEN);
    assert_eq!(ask(&mut short, &format!("set h {}", &value[..60_000])).await, "+OK\r\n");
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nh\r\n${LEN}\r\n{value}\r");
    short.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(ask(&mut short, "").await, "+OK\r\n");
    alone.running.close().await.unwrap();
}

#[tokio::test]
async fn when_there_are_too_many_clients_the_next_is_told() {
    let alone = Alone::start(3).await;
    let mut clients = Vec::new();
    let refused = loop {
        let mut client = alone.client().await;
        let mut answer = String::new();
        // Who is served is told nothing before it asks.
        let told = client.read_to_string(&mut answer);
        if let Ok(told) = timeout(Duration::from_millis(500), told).await {
            told.unwrap();
            break answer;
        }
        clients.push(client);
        assert!(clients.len() <= alone.clients_max);
    };
    assert!(refused.starts_with("-ERR max number of clients reached"), "{refused}");
    alone.running.close().await.unwrap();
}
