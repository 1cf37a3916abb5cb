//! Replicas of a service and their clients over real connections on this machine.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use bytes::{Bytes, BytesMut};
use meridian_core::hello::{Caller, Hello, ServiceId, VERSION};
use meridian_core::{ClientId, NodeId, frame};
use meridian_paxos::{
    Answer, Batch, Change, Consistency, Kind, Leases, Options as PaxosOptions, Paxos, Recovery,
    Request, Routing, Service,
};
use meridian_runtime::smr::wire::{Asked, Told};
use meridian_runtime::smr::{Client, ClientError, ClientOptions, Options, Replica};
use meridian_runtime::wire::FrameReader;
use meridian_runtime::{Listen, MemberError, Storage, Worker};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Keeps all that it was asked, in order, and tells how much that is; asked, it tells the last, so
/// many times.
#[derive(Clone, Debug, Default, PartialEq)]
struct Diary(Vec<Bytes>);

impl Service for Diary {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        self.0.push(Bytes::copy_from_slice(request));
        Bytes::copy_from_slice(&(self.0.len() as u64).to_le_bytes())
    }

    fn query(&self, times: &[u8]) -> Bytes {
        let times: usize = std::str::from_utf8(times).unwrap().parse().unwrap();
        self.0.last().cloned().unwrap_or_default().repeat(times).into()
    }

    fn snapshot(&self) -> Bytes {
        postcard::to_stdvec(&self.0).unwrap().into()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = postcard::from_bytes(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// Replicas that run or not.
struct Cluster {
    worker: Worker,
    members: BTreeMap<NodeId, String>,
    paxos: PaxosOptions,
    dir: tempfile::TempDir,
    replicas: BTreeMap<NodeId, Replica<Diary>>,
}

impl Cluster {
    /// Three replicas that run.
    async fn start(recovery: Recovery, change: impl FnOnce(&mut PaxosOptions)) -> Cluster {
        let mut paxos = PaxosOptions { recovery, ..PaxosOptions::default() };
        change(&mut paxos);
        let sockets: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = sockets.iter().map(|socket| socket.local_addr().unwrap().to_string());
        let members = (0..3).map(NodeId).zip(addresses).collect();
        let (worker, dir) = (Worker::start("replicas").unwrap(), tempfile::tempdir().unwrap());
        let mut cluster = Cluster { worker, members, paxos, dir, replicas: BTreeMap::new() };
        for (node, socket) in (0..3).zip(sockets) {
            let listen = Listen::Socket(socket);
            let options = Options { listen, ..cluster.options(node) };
            cluster.run(options).await;
        }
        cluster
    }

    fn options(&self, node: u16) -> Options {
        let storage = match self.paxos.recovery {
            Recovery::CrashStop => Storage::Memory,
            _ => Storage::directory(self.dir.path().join(node.to_string())),
        };
        let paxos = self.paxos.clone();
        Options { paxos, ..Options::new("test", NodeId(node), self.members.clone(), storage) }
    }

    async fn run(&mut self, options: Options) {
        let me = options.me;
        let replica = Replica::start_on(&self.worker, options, Diary::default()).await.unwrap();
        self.replicas.insert(me, replica);
    }

    /// Starts a replica that must not come back: it ends as it starts, or soon after.
    async fn is_refused(&self, options: Options) {
        let started = Replica::start_on(&self.worker, options, Diary::default()).await;
        let why = match started {
            Ok(replica) => loop {
                match replica.status().await {
                    Ok(_) => tokio::task::yield_now().await,
                    Err(why) => break why,
                }
            },
            Err(why) => why,
        };
        assert!(matches!(why, MemberError::Forgot(_)), "{why}");
    }

    async fn kill(&mut self, node: NodeId) {
        self.replicas.remove(&node).unwrap().close().await.unwrap();
    }

    async fn client(&self) -> Client {
        Client::connect("test", self.members.values()).await.unwrap()
    }

    /// The replica that leads, once one does.
    async fn leader(&self) -> NodeId {
        loop {
            for (node, replica) in &self.replicas {
                if replica.status().await.unwrap().leading {
                    return *node;
                }
            }
        }
    }

    /// What all replicas hold, once they have executed so many requests.
    async fn diary(&self, count: usize) -> Vec<Bytes> {
        let mut diaries = Vec::new();
        for replica in self.replicas.values() {
            let look = |process: &Paxos<Diary>| process.service().0.clone();
            let mut diary = replica.look(look).await.unwrap();
            while diary.len() < count {
                tokio::task::yield_now().await;
                diary = replica.look(look).await.unwrap();
            }
            diaries.push(diary);
        }
        assert!(diaries.windows(2).all(|pair| pair[0] == pair[1]), "{diaries:?}");
        diaries.pop().unwrap()
    }
}

/// Each of so many clients asks for so many requests, one after the other.
async fn ask(client: &Client, name: &str, clients: usize, requests: usize) -> BTreeSet<Bytes> {
    let mut asking = tokio::task::JoinSet::new();
    for at in 0..clients {
        let (mut client, name) = (client.clone(), name.to_string());
        asking.spawn(async move {
            for number in 0..requests {
                client.execute(format!("{name} {at} {number}")).await.unwrap();
            }
        });
    }
    while let Some(done) = asking.join_next().await {
        done.unwrap();
    }
    let all = (0..clients).flat_map(|at| (0..requests).map(move |number| (at, number)));
    all.map(|(at, number)| format!("{name} {at} {number}").into()).collect()
}

/// Each was executed once.
fn check_once(diary: &[Bytes], asked: &BTreeSet<Bytes>) {
    assert_eq!(diary.len(), asked.len());
    assert_eq!(diary.iter().cloned().collect::<BTreeSet<_>>(), *asked);
}

#[tokio::test]
async fn all_replicas_execute_the_same_in_the_same_order() {
    for routing in [Routing::Redirect, Routing::Forward] {
        let cluster = Cluster::start(Recovery::CrashStop, |paxos| paxos.routing = routing).await;
        let mut client = cluster.client().await;
        let asked = ask(&client, "x", 10, 30).await;
        check_once(&cluster.diary(300).await, &asked);
        let count = client.execute("last").await.unwrap();
        assert_eq!(count, &301u64.to_le_bytes()[..]);
        for consistency in [Consistency::Linearizable, Consistency::Stale] {
            cluster.diary(301).await;
            assert_eq!(client.read("2", consistency).await.unwrap(), "lastlast");
        }
        for replica in cluster.replicas.values() {
            assert_eq!(replica.counters().bad.load(Ordering::Relaxed), 0);
        }
    }
}

#[tokio::test]
async fn when_the_leader_is_killed_clients_go_on_with_another_and_nothing_is_done_twice() {
    for routing in [Routing::Redirect, Routing::Forward] {
        let mut cluster =
            Cluster::start(Recovery::CrashStop, |paxos| paxos.routing = routing).await;
        let client = cluster.client().await;
        let mut asked = ask(&client, "before", 5, 10).await;
        let asking = tokio::spawn({
            let client = client.clone();
            async move { ask(&client, "while", 20, 50).await }
        });
        let leader = cluster.leader().await;
        while cluster.replicas[&leader].look(|p| p.service().0.len()).await.unwrap() < 100 {}
        cluster.kill(leader).await;
        asked.extend(asking.await.unwrap());
        check_once(&cluster.diary(asked.len()).await, &asked);
        assert_ne!(cluster.leader().await, leader);
    }
}

#[tokio::test]
async fn with_full_ss_one_or_all_may_end_and_start_again() {
    let mut cluster = Cluster::start(Recovery::FullSs, |_| ()).await;
    let mut client = cluster.client().await;
    let mut asked = ask(&client, "all there", 3, 10).await;
    cluster.kill(NodeId(2)).await;
    asked.extend(ask(&client, "one away", 3, 10).await);
    cluster.run(cluster.options(2)).await;
    asked.extend(ask(&client, "back", 3, 10).await);
    check_once(&cluster.diary(90).await, &asked);
    for node in [0, 1, 2] {
        cluster.kill(NodeId(node)).await;
    }
    for node in [0, 1, 2] {
        cluster.run(cluster.options(node)).await;
    }
    asked.extend(ask(&client, "all back", 3, 10).await);
    assert_eq!(client.execute("last").await.unwrap(), &121u64.to_le_bytes()[..]);
    asked.insert("last".into());
    check_once(&cluster.diary(121).await, &asked);
}

#[tokio::test]
async fn with_epoch_ss_and_view_ss_one_comes_back_with_what_the_others_remember() {
    for recovery in [Recovery::EpochSs, Recovery::ViewSs] {
        let mut cluster = Cluster::start(recovery, |_| ()).await;
        let client = cluster.client().await;
        let mut asked = ask(&client, "all there", 3, 10).await;
        let leader = cluster.leader().await;
        cluster.kill(leader).await;
        asked.extend(ask(&client, "one away", 3, 10).await);
        cluster.run(cluster.options(leader.0)).await;
        cluster.replicas[&leader].serving().await.unwrap();
        asked.extend(ask(&client, "back", 3, 10).await);
        check_once(&cluster.diary(90).await, &asked);
    }
}

#[tokio::test]
async fn a_directory_of_another_replica_cluster_or_mode_is_refused() {
    let mut cluster = Cluster::start(Recovery::FullSs, |_| ()).await;
    cluster.kill(NodeId(1)).await;
    let storage = Storage::directory(cluster.dir.path().join("1"));
    let start = async |change: &dyn Fn(&mut Options)| {
        let mut options = cluster.options(1);
        options.storage = storage.clone();
        change(&mut options);
        let started = Replica::start_on(&cluster.worker, options, Diary::default()).await;
        started.err().map(|error| error.to_string())
    };
    let other = start(&|options| options.me = NodeId(7)).await.unwrap();
    assert!(other.contains("of g0/n1 of cluster \"test\""), "{other}");
    let other = start(&|options| options.cluster = "other".into()).await.unwrap();
    assert!(other.contains("of g0/n1 of cluster \"test\""), "{other}");
    let other = start(&|options| options.paxos.recovery = Recovery::EpochSs).await.unwrap();
    assert!(other.contains("with recovery full-ss, not"), "{other}");
    let none = start(&|options| options.storage = Storage::Memory).await.unwrap();
    assert!(none.contains("full-ss needs a directory"), "{none}");
    assert_eq!(start(&|_| ()).await, None);
}

#[tokio::test]
async fn with_crash_stop_who_has_crashed_does_not_come_back() {
    let mut cluster = Cluster::start(Recovery::CrashStop, |_| ()).await;
    let mut client = cluster.client().await;
    client.execute("before").await.unwrap();
    // With a directory it knows that itself.
    let dir = cluster.dir.path().join("crash-stop");
    let alone = |dir: &Path| {
        let (storage, members) =
            (Storage::directory(dir), BTreeMap::from([(NodeId(9), "".into())]));
        let options = Options::new("alone", NodeId(9), members, storage);
        let (paxos, listen) = (cluster.paxos.clone(), Listen::Address("127.0.0.1:0".into()));
        Replica::start(Options { paxos, listen, ..options }, Diary::default())
    };
    alone(&dir).await.unwrap().close().await.unwrap();
    let refused = alone(&dir).await.err().unwrap().to_string();
    assert!(refused.contains("replace it by one with a new identity"), "{refused}");
    // Without one the others know.
    cluster.kill(NodeId(0)).await;
    cluster.is_refused(cluster.options(0)).await;
    client.execute("after").await.unwrap();
    cluster.diary(2).await;
}

#[tokio::test]
async fn with_full_ss_who_has_lost_its_disk_is_refused_under_its_old_name() {
    let mut cluster = Cluster::start(Recovery::FullSs, |_| ()).await;
    let mut client = cluster.client().await;
    client.execute("before").await.unwrap();
    cluster.diary(1).await;
    cluster.kill(NodeId(0)).await;
    std::fs::remove_dir_all(cluster.dir.path().join("0")).unwrap();
    cluster.is_refused(cluster.options(0)).await;
    client.execute("after").await.unwrap();
    cluster.diary(2).await;
}

#[tokio::test]
async fn members_are_added_replaced_and_removed_while_it_serves() {
    let mut cluster = Cluster::start(Recovery::EpochSs, |_| ()).await;
    let mut client = cluster.client().await;
    let mut asked = ask(&client, "three", 3, 10).await;
    for node in [3, 4] {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let options = Options { listen: Listen::Socket(socket), ..cluster.options(node) };
        cluster.run(options).await;
        let change = match node {
            3 => Change::Add { node: NodeId(3), address: address.clone() },
            _ => Change::Replace { old: NodeId(0), new: NodeId(4), address: address.clone() },
        };
        let members = client.reconfigure(change).await.unwrap().members;
        assert_eq!(members.get(&NodeId(node)), Some(&address));
        cluster.members = members;
    }
    let removed = async |replica: Replica<Diary>| {
        let why = timeout(Duration::from_secs(60), replica.stopped()).await.unwrap();
        assert!(why.unwrap().contains("was removed"));
    };
    removed(cluster.replicas.remove(&NodeId(0)).unwrap()).await;
    asked.extend(ask(&client, "four", 3, 10).await);
    let again = Change::Add { node: NodeId(0), address: "x".into() };
    let refused = client.reconfigure(again).await;
    assert!(matches!(refused, Err(ClientError::Unchanged(why)) if why.contains("new identity")));
    client.reconfigure(Change::Remove { node: NodeId(1) }).await.unwrap();
    removed(cluster.replicas.remove(&NodeId(1)).unwrap()).await;
    asked.extend(ask(&client, "three again", 3, 10).await);
    check_once(&cluster.diary(90).await, &asked);
}

fn framed(body: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    frame::encode(&mut out, |into| into.extend_from_slice(body)).unwrap();
    out
}

fn asked(asked: &Asked) -> BytesMut {
    framed(&postcard::to_stdvec(asked).unwrap())
}

/// A connection of a client, with what comes first on it.
async fn connect(address: &str, version: u16, cluster: &str) -> (FrameReader, impl AsyncWriteExt) {
    let (reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    let caller = Caller::<NodeId>::Client(ServiceId::MAIN);
    let hello = Hello { version, ..Hello::new(cluster, caller) };
    writer.write_all(&framed(&postcard::to_stdvec(&hello).unwrap())).await.unwrap();
    (FrameReader::new(reader), writer)
}

#[tokio::test]
async fn what_does_not_belong_on_the_port_is_refused_with_the_reason() {
    let cluster = Cluster::start(Recovery::CrashStop, |paxos| paxos.request_bytes_max = 1000).await;
    let mut client = cluster.client().await;
    let leader = cluster.leader().await;
    let (replica, address) = (&cluster.replicas[&leader], &cluster.members[&leader]);
    // A request that is too long, and after it one that is not.
    let long = client.execute(vec![0; 1001]).await;
    assert_eq!(long, Err(ClientError::TooLong { len: 1001, max: 1000 }));
    let too_long = client.execute(vec![0; 5 << 20]).await.unwrap_err();
    assert!(too_long.to_string().contains("raise request_bytes_max"), "{too_long}");
    client.execute("short").await.unwrap();
    // Another cluster, another version.
    let other = Client::connect("other", cluster.members.values()).await.unwrap_err();
    assert!(matches!(&other, ClientError::Refused(why) if why.contains("\"test\"")), "{other}");
    let (mut reader, _writer) = connect(address, VERSION + 1, "test").await;
    let (refused, why): (u8, String) = reader.next().await.unwrap();
    assert!(refused == 0 && why.contains(&format!("version {}", VERSION + 1)), "{why}");
    let before = replica.counters().bad.load(Ordering::Relaxed);
    // What is no request.
    let (mut reader, mut writer) = connect(address, VERSION, "test").await;
    let (_client, _welcome) =
        (reader.next_body().await.unwrap(), reader.next_body().await.unwrap());
    writer.write_all(&framed(&[1, 3, 7, 7, 7])).await.unwrap();
    match reader.next().await.unwrap() {
        Told::Closing(why) => assert!(why.contains("cannot be read"), "{why}"),
        told => panic!("{told:?}"),
    }
    assert_eq!(replica.counters().bad.load(Ordering::Relaxed), before + 1);
    client.execute("still there").await.unwrap();
}

#[tokio::test]
async fn a_client_whom_nobody_answers_is_told_so() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let give_up_after = Duration::from_millis(300);
    let options = ClientOptions { give_up_after, ..ClientOptions::new("test", [address.as_str()]) };
    let error = Client::connect_with(options).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(Client::connect("test", [""; 0]).await.is_err());
}

#[tokio::test]
async fn requests_that_cannot_be_ordered_fill_the_leader_and_then_the_client_waits() {
    let mut cluster =
        Cluster::start(Recovery::FullSs, |paxos| paxos.queue_bytes_max = 1 << 20).await;
    let mut client = cluster.client().await;
    let id = client.identity().await.unwrap();
    client.execute("first").await.unwrap();
    let leader = cluster.leader().await;
    let address = cluster.members[&leader].clone();
    let followers: Vec<NodeId> =
        cluster.replicas.keys().copied().filter(|node| *node != leader).collect();
    for node in &followers {
        cluster.kill(*node).await;
    }
    // Many clients on a connection, each with one request, until the socket takes no more.
    let (mut reader, mut writer) = connect(&address, VERSION, "test").await;
    let may_take_all = Cell::new(false);
    let mut sent = 0u64;
    let mut send = async || {
        loop {
            let request = |at| Request {
                client: ClientId(id.0 + ((sent * 10 + at + 1) << 16)),
                sequence: 1,
                kind: Kind::Execute,
                payload: Bytes::from(vec![1; 100 << 10]),
            };
            let requests: Vec<Request> = (0..10).map(request).collect();
            let frame = asked(&Asked::Requests(Batch::new(&requests)));
            writer.write_all(&frame).await.unwrap();
            sent += 1;
            assert!(sent < 100 || may_take_all.get(), "100 MB were taken");
        }
    };
    let mut sending = std::pin::pin!(send());
    assert!(timeout(Duration::from_millis(500), &mut sending).await.is_err());
    for node in &followers {
        cluster.run(cluster.options(node.0)).await;
    }
    // Now they are ordered and answered, and more is taken.
    may_take_all.set(true);
    let answers = async {
        reader.next_body().await.unwrap();
        let mut replies = 0;
        while replies < 200 {
            let body = reader.next_body().await.unwrap();
            let mut rest = &body[..];
            while !rest.is_empty() {
                let told;
                (told, rest) = postcard::take_from_bytes(rest).unwrap();
                replies += usize::from(matches!(told, Told::Reply { .. }));
            }
        }
    };
    tokio::select! {
        () = answers => {}
        () = sending => unreachable!("it sends for ever"),
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_holds_up_nobody() {
    let cluster =
        Cluster::start(Recovery::CrashStop, |p| p.leases = Leases::For(p.suspect_after)).await;
    let mut client = cluster.client().await;
    client.execute("ten bytes.").await.unwrap();
    let (mut reader, mut writer) = connect(&cluster.members[&NodeId(0)], VERSION, "test").await;
    // Each question has an answer of a megabyte.
    let question = Bytes::from_static(b"100000");
    for token in 0..100 {
        let (question, consistency) = (question.clone(), Consistency::Stale);
        writer.write_all(&asked(&Asked::Read { token, question, consistency })).await.unwrap();
    }
    ask(&client, "meanwhile", 10, 20).await;
    let written = cluster.replicas[&NodeId(0)].counters().bytes.load(Ordering::Relaxed);
    assert!(written < 60 << 20, "{written} bytes");
    // When it reads at last it has some answers, and asks for the others again.
    reader.next_body().await.unwrap();
    let (mut done, mut busy) = (0, 0);
    while done + busy < 100 {
        let body = reader.next_body().await.unwrap();
        let mut rest = &body[..];
        while !rest.is_empty() {
            let told;
            (told, rest) = postcard::take_from_bytes(rest).unwrap();
            match told {
                Told::Read { answer: Answer::Done(answer), .. } => {
                    assert!(answer.len() >= 1_000_000, "of a line of ten bytes or more");
                    done += 1;
                }
                Told::Read { answer: Answer::Busy, .. } => busy += 1,
                Told::Welcome { .. } | Told::Members(_) => {}
                told => panic!("{told:?}"),
            }
        }
    }
    assert!(done >= 8 && busy > 0, "{done} {busy}");
    // A client does that itself.
    let mut reading = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let client = client.clone();
        reading
            .spawn(async move { client.read("100000", Consistency::Stale).await.unwrap().len() });
    }
    while let Some(len) = reading.join_next().await {
        assert!(len.unwrap() >= 1_000_000);
    }
    // One that is too long for a connection is said to be, in time.
    let long = client.read("1000000", Consistency::Linearizable).await;
    assert_eq!(long, Err(ClientError::LongReply));
}
