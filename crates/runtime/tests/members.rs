//! Members over real connections on this machine.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use bytes::{Bytes, BytesMut};
use meridian_core::hello::{Caller, Hello, Identity, VERSION};
use meridian_core::standing::Standing;
use meridian_core::{GroupId, NodeId, ProcessId, frame};
use meridian_multicast::{ClockSource, Delivery, Groups, Options as PrimCastOptions, PrimCast};
use meridian_runtime::{
    Clock, Delivered, Deliveries, Listen, Member, MulticastError, Options, Patience, Storage,
    Worker,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const G0: GroupId = GroupId(0);
const G1: GroupId = GroupId(1);

/// Members that are not started yet, or were.
struct Cluster {
    worker: Worker,
    groups: Groups,
    ids: Vec<ProcessId>,
    addresses: BTreeMap<ProcessId, String>,
    patience: Patience,
}

impl Cluster {
    /// With `replicas` in each of two groups. Nobody else on this machine is given the ports
    /// between the time that they are chosen and the time that members listen on them: the sockets
    /// stay open.
    fn new(replicas: u16) -> (Cluster, Vec<TcpListener>) {
        let ids: Vec<ProcessId> = (0..2 * replicas)
            .map(|node| ProcessId { group: GroupId(node / replicas), node: NodeId(node) })
            .collect();
        let mut groups: BTreeMap<GroupId, Vec<NodeId>> = BTreeMap::new();
        ids.iter().for_each(|id| groups.entry(id.group).or_default().push(id.node));
        let sockets: Vec<TcpListener> =
            ids.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let local = sockets.iter().map(|socket| socket.local_addr().unwrap().to_string());
        let addresses = ids.iter().copied().zip(local).collect();
        let worker = Worker::start("members").unwrap();
        let (groups, patience) = (Arc::new(groups), Patience::default());
        (Cluster { worker, groups, ids, addresses, patience }, sockets)
    }

    fn options(&self, at: usize, listen: Listen) -> Options {
        let me = self.ids[at];
        Options { listen, ..Options::new("test", me, "", self.addresses.clone()) }
    }

    async fn join(&self, options: Options) -> (Member<PrimCast>, Deliveries) {
        let process = PrimCast::new(options.me, self.groups.clone());
        Member::start_on(&self.worker, options, process, self.patience).await.unwrap()
    }

    async fn all(&self, sockets: Vec<TcpListener>) -> Vec<(Member<PrimCast>, Deliveries)> {
        let mut members = Vec::new();
        for (at, socket) in sockets.into_iter().enumerate() {
            members.push(self.join(self.options(at, Listen::Socket(socket))).await);
        }
        members
    }
}

async fn next(deliveries: &mut Deliveries, count: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        all.push(deliveries.next_message().await.unwrap());
    }
    all
}

/// Delivered with the same timestamps in the same order, and that is ascending.
fn check_same_order(sequences: &[Vec<Delivery>]) {
    for sequence in sequences {
        let ranks: Vec<_> = sequence.iter().map(|one| (one.ts, one.start.id)).collect();
        assert!(ranks.is_sorted(), "{ranks:?}");
    }
    for pair in sequences.windows(2) {
        assert_eq!(pair[0], pair[1]);
    }
}

#[tokio::test]
async fn all_members_deliver_in_the_same_order() {
    let (cluster, sockets) = Cluster::new(3);
    let mut members = cluster.all(sockets).await;
    let mut sent = Vec::new();
    for (number, (member, _)) in members.iter().enumerate() {
        for count in 0..20 {
            let member = member.clone();
            let own = member.me().group;
            let dest = if count % 2 == 0 { vec![own] } else { vec![G1, G0] };
            let payload = format!("{number}.{count}");
            sent.push(tokio::spawn(async move {
                let ts = member.multicast(&dest, payload.clone()).await.unwrap();
                (payload, ts)
            }));
        }
    }
    let mut stamps = BTreeMap::new();
    for sent in sent {
        let (payload, ts) = sent.await.unwrap();
        stamps.insert(Bytes::from(payload), ts);
    }
    // 3 members x 10 messages to one group, 6 members x 10 to both.
    let mut sequences = Vec::new();
    for (member, deliveries) in &mut members {
        let sequence = next(deliveries, 90).await;
        for one in &sequence {
            assert_eq!(stamps[&one.start.payload], one.ts);
        }
        // What was sent after all that has a greater timestamp than all that is safe.
        assert!(member.safe_ts().await.unwrap() >= sequence[0].ts);
        sequences.push(sequence);
    }
    check_same_order(&sequences[..3]);
    check_same_order(&sequences[3..]);
    let both = |sequence: &Vec<Delivery>| -> Vec<Bytes> {
        let both = sequence.iter().filter(|one| one.start.dest.len() == 2);
        both.map(|one| one.start.payload.clone()).collect()
    };
    assert_eq!(both(&sequences[0]), both(&sequences[3]));
    for (member, _) in &members {
        assert_eq!(member.counters().bad.load(Ordering::Relaxed), 0);
        member.close().await.unwrap();
        assert!(member.close().await.is_err());
    }
}

#[tokio::test]
async fn messages_go_to_known_groups_and_ones_own() {
    let (cluster, sockets) = Cluster::new(1);
    let members = cluster.all(sockets).await;
    let (member, _) = &members[0];
    assert_eq!(member.multicast(&[G1], "x").await, Err(MulticastError::NotAmong(G0)));
    let unknown = GroupId(9);
    assert_eq!(member.multicast(&[G0, unknown], "x").await, Err(MulticastError::NoGroup(unknown)));
    let first = member.multicast(&[G0, G1], "x").await.unwrap();
    assert!(first < member.multicast(&[G0], "y").await.unwrap());
}

#[tokio::test]
async fn a_group_that_is_cut_off_is_named() {
    let (mut cluster, sockets) = Cluster::new(1);
    cluster.patience = Patience {
        refuse_after: Duration::from_millis(50),
        give_up_after: Duration::from_millis(200),
    };
    let members = cluster.all(sockets).await;
    let (member, _) = &members[0];
    while member.multicast(&[G0, G1], "connected").await.is_err() {}
    for (member, _) in &members {
        member.cut(BTreeSet::from([G1])).await.unwrap();
    }
    // At first it is sent and held up, later not even sent.
    let held_up = member.multicast(&[G0, G1], "held up").await;
    let named = [MulticastError::Timeout(G1), MulticastError::Unreachable(G1)];
    assert!(named.contains(held_up.as_ref().unwrap_err()), "{held_up:?}");
    while member.multicast(&[G0, G1], "x").await != Err(MulticastError::Unreachable(G1)) {}
    for (member, _) in &members {
        member.cut(BTreeSet::new()).await.unwrap();
    }
    while member.multicast(&[G0, G1], "again").await.is_err() {}
}

/// What a member says first on a connection.
fn hello(version: u16, cluster: &str, from: ProcessId, to: ProcessId) -> BytesMut {
    let standing = Standing { incarnation: u64::MAX, ..Standing::default() };
    let identity = Identity { from, to, durable: true, standing, known: None };
    let hello = Hello { version, ..Hello::new(cluster, Caller::Member(identity)) };
    let body = postcard::to_stdvec(&hello).unwrap();
    let mut out = BytesMut::new();
    frame::encode(&mut out, |into| into.extend_from_slice(&body)).unwrap();
    out
}

#[tokio::test]
async fn garbage_and_strangers_are_turned_away_and_counted() {
    let (cluster, sockets) = Cluster::new(1);
    let members = cluster.all(sockets).await;
    let (member, _) = &members[1];
    member.multicast(&[G0, G1], "x").await.unwrap();
    let hello = |version, cluster: &str| hello(version, cluster, members[0].0.me(), member.me());
    let mut flipped = hello(VERSION, "test");
    *flipped.last_mut().unwrap() ^= 1;
    let bad = [
        BytesMut::from(&[7u8; 100][..]),
        flipped,
        hello(VERSION, "other"),
        hello(VERSION + 1, "test"),
    ];
    for (count, bytes) in bad.iter().enumerate() {
        let mut stream = TcpStream::connect(member.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await; // Closed, or reset.
        assert_eq!(member.counters().bad.load(Ordering::Relaxed), count as u64 + 1);
    }
    member.multicast(&[G0, G1], "still there").await.unwrap();
}

#[tokio::test]
async fn garbage_from_a_peer_ends_the_connection_and_nothing_is_lost() {
    let (cluster, sockets) = Cluster::new(1);
    let members = cluster.all(sockets).await;
    let (member, _) = &members[1];
    member.multicast(&[G0, G1], "x").await.unwrap();
    // Someone who says that it is the peer takes its place, and then says nonsense.
    let mut out = hello(VERSION, "test", members[0].0.me(), member.me());
    frame::encode(&mut out, |into| into.extend_from_slice(&[0xff; 50])).unwrap();
    let mut stream = TcpStream::connect(member.address()).await.unwrap();
    stream.write_all(&out).await.unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await; // Closed, or reset.
    assert_eq!(member.counters().bad.load(Ordering::Relaxed), 1);
    // The real one calls again.
    member.multicast(&[G0, G1], "still there").await.unwrap();
}

async fn join_durably(cluster: &Cluster, at: usize, dir: &Path) -> (Member<PrimCast>, Deliveries) {
    let listen = Listen::Address(cluster.addresses[&cluster.ids[at]].clone());
    let storage = Storage::directory(dir.join(at.to_string()));
    cluster.join(Options { storage, ..cluster.options(at, listen) }).await
}

#[tokio::test]
async fn a_member_that_ends_and_starts_again_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, sockets) = Cluster::new(3);
    drop(sockets);
    let mut members = Vec::new();
    for at in 0..6 {
        members.push(join_durably(&cluster, at, dir.path()).await);
    }
    for count in 0..10 {
        members[0].0.multicast(&[G0, G1], format!("before {count}")).await.unwrap();
    }
    let (member, mut deliveries) = members.remove(2);
    let before = next(&mut deliveries, 10).await;
    member.close().await.unwrap();
    for count in 0..10 {
        members[0].0.multicast(&[G0, G1], format!("away {count}")).await.unwrap();
    }
    let (member, mut deliveries) = join_durably(&cluster, 2, dir.path()).await;
    // Its program is told again what it had been told, and then what it missed.
    let all = next(&mut deliveries, 20).await;
    assert_eq!(all[..10], before);
    check_same_order(&[all, next(&mut members[0].1, 20).await]);
    member.multicast(&[G0, G1], "back").await.unwrap();
    // With the whole cluster away at once nothing is lost either.
    members.push((member, deliveries));
    for (member, _) in members.drain(..) {
        member.close().await.unwrap();
    }
    for at in 0..6 {
        members.push(join_durably(&cluster, at, dir.path()).await);
    }
    members[5].0.multicast(&[G0, G1], "all back").await.unwrap();
    let mut sequences = Vec::new();
    for (_, deliveries) in &mut members {
        sequences.push(next(deliveries, 22).await);
    }
    check_same_order(&sequences);
    assert_eq!(sequences[0][21].start.payload, "all back");
}

/// The numbers of the checkpoints in a member's directory, of which it keeps the newest.
fn newest_checkpoint(dir: &Path) -> u64 {
    let names = std::fs::read_dir(dir.join("wal")).unwrap().map(|entry| entry.unwrap().file_name());
    let numbers = names.filter_map(|name| {
        u64::from_str_radix(name.to_str()?.strip_prefix("checkpoint-")?, 16).ok()
    });
    numbers.max().unwrap_or(0)
}

#[tokio::test]
async fn a_checkpoint_takes_the_place_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, sockets) = Cluster::new(1);
    drop(sockets);
    let join = async |at: usize| {
        let listen = Listen::Address(cluster.addresses[&cluster.ids[at]].clone());
        let path = dir.path().join(at.to_string());
        let storage = Storage::Directory { path, checkpoint_bytes: 4096 };
        cluster.join(Options { storage, ..cluster.options(at, listen) }).await
    };
    let mut members = vec![join(0).await, join(1).await];
    for count in 0..20 {
        members[0].0.multicast(&[G0, G1], format!("early {count}")).await.unwrap();
    }
    let position = next(&mut members[0].1, 20).await[19].position;
    members[0].0.keep(position, "state of 20").await.unwrap();
    members[0].0.safe_ts().await.unwrap(); // It has answered, so it has the state.
    // One that began before may end after that, the first as number 2; the next one has it.
    let before = newest_checkpoint(&dir.path().join("0")).max(1);
    let mut late = 0;
    while newest_checkpoint(&dir.path().join("0")) < before + 2 {
        members[0].0.multicast(&[G0, G1], format!("late {late}")).await.unwrap();
        late += 1;
    }
    for (member, _) in members.drain(..) {
        member.close().await.unwrap();
    }
    members = vec![join(0).await, join(1).await];
    members[1].0.multicast(&[G0, G1], "after").await.unwrap();
    // Who gave its state is given that and what followed, the other one everything.
    let state = Delivered::State { position, state: "state of 20".into() };
    assert_eq!(members[0].1.next().await.unwrap(), state);
    let rest = next(&mut members[0].1, late + 1).await;
    let all = next(&mut members[1].1, 20 + late + 1).await;
    check_same_order(&[all[20..].to_vec(), rest]);
    assert_eq!(all.last().unwrap().start.payload, "after");
}

#[tokio::test]
async fn a_member_without_memory_is_not_taken_for_the_one_before() {
    let (cluster, sockets) = Cluster::new(3);
    let mut members = cluster.all(sockets).await;
    members[1].0.multicast(&[G0, G1], "x").await.unwrap();
    let (member, _) = members.remove(0);
    member.close().await.unwrap();
    let listen = Listen::Address(cluster.addresses[&cluster.ids[0]].clone());
    let (again, _) = cluster.join(cluster.options(0, listen)).await;
    // The smaller id calls, so each peer counts it.
    while members[0].0.counters().bad.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    // The others go on.
    members[0].0.multicast(&[G0, G1], "y").await.unwrap();
    drop(again.close().await); // It has stopped by itself, or is about to.
}

#[tokio::test]
async fn clocks_that_differ_do_not_harm_the_order() {
    let (cluster, sockets) = Cluster::new(1);
    let mut members = Vec::new();
    let clock = Clock::start();
    for (at, socket) in sockets.into_iter().enumerate() {
        let hybrid = PrimCastOptions { clock: ClockSource::Hybrid, ..Default::default() };
        let mut options = cluster.options(at, Listen::Socket(socket));
        options.clock = clock.skewed(at as i64 * 5_000_000_000);
        let process = PrimCast::new(options.me, cluster.groups.clone()).with_options(hybrid);
        let joined = Member::start_on(&cluster.worker, options, process, cluster.patience);
        members.push(joined.await.unwrap());
    }
    for count in 0..5 {
        for (member, _) in &members {
            member.multicast(&[G0, G1], count.to_string()).await.unwrap();
        }
    }
    let first = next(&mut members[0].1, 10).await;
    check_same_order(&[first, next(&mut members[1].1, 10).await]);
}
