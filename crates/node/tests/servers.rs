//! Whole servers on loopback, with a toy for a process.
#![allow(clippy::unwrap_used, reason = "a test")]

mod toy;

use bytes::Bytes;
use meridian_core::NodeId;
use meridian_core::frame::{HEADER_LEN, MAGIC, VERSION};
use meridian_core::hello::{Caller, Identity, ServiceId};
use meridian_core::standing::Standing;
use meridian_core::{BlockId, Position};
use meridian_host::api::{Refusal, Reply, ReplyBody, RequestBody};
use meridian_node::{ServerDisk, ServerError};
use meridian_runtime::directory::DirectoryError;
use meridian_runtime::journal;
use meridian_storage::disk::{read_all, write_whole};
use meridian_storage::{Disk, DiskFile, Room, SimDisk};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use toy::{CHECKPOINTS, CLUSTER, Client, Cluster, dial, framed, hello, update};

#[test]
fn all_nodes_add_up_to_the_same() {
    let cluster = Cluster::start(3, 0);
    let mut clients: Vec<Client> = (0..3).map(|node| cluster.client(node)).collect();
    for round in 1..=20 {
        for client in &mut clients {
            assert_eq!(client.call(update(round)), ReplyBody::Stored);
        }
    }
    for client in &mut clients {
        let status = client.await_status(|status| status.replicas[0].delivered == Position(60));
        assert_eq!(status.replicas[0].applied, Position(3 * 210));
        assert_eq!(status.connected.len(), 2);
        assert_eq!(status.bad_frames, 0);
    }
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let cluster = Cluster::start(3, 0);
    let mut client = cluster.client(1);
    for _ in 0..3000 {
        client.ask(update(1));
    }
    let mut ids: Vec<u64> = (0..3000).map(|_| client.receive::<Reply>().id).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(1..=3000));
}

#[test]
fn who_was_away_catches_up_and_all_start_again_from_their_disks() {
    let mut cluster = Cluster::start(3, 0);
    assert_eq!(cluster.client(0).call(update(1)), ReplyBody::Stored);
    cluster.stop_node(2).unwrap();
    let mut waiting = cluster.client(0);
    let id = waiting.ask(update(20));
    let mut other = cluster.client(1);
    other.await_status(|status| status.replicas[0].applied == Position(21));
    cluster.start_node(2);
    let reply: Reply = waiting.receive();
    assert_eq!((reply.id, reply.body), (id, ReplyBody::Stored));
    for node in 0..3 {
        cluster.stop_node(node).unwrap();
    }
    for node in 0..3 {
        cluster.start_node(node);
    }
    for node in 0..3 {
        cluster.client(node).await_status(|status| status.replicas[0].applied == Position(21));
    }
    assert_eq!(cluster.client(2).call(update(300)), ReplyBody::Stored);
}

#[test]
fn a_region_is_as_far_away_as_it_should_be() {
    let cluster = Cluster::start(2, 60);
    let mut client = cluster.client(0);
    client.await_status(|status| status.connected.len() == 1);
    let start = Instant::now();
    assert_eq!(client.call(update(7)), ReplyBody::Stored); // One of 3 MiB.
    assert!(start.elapsed() >= Duration::from_millis(60), "{:?}", start.elapsed());
}

#[test]
fn blocks_are_put_and_got_beside_other_requests() {
    let cluster = Cluster::start(1, 0);
    let mut client = cluster.client(0);
    let (block, data) = (BlockId(5), Bytes::from(vec![3; 1 << 20]));
    let stored = client.call(RequestBody::PutBlock { block, data: data.clone() });
    assert_eq!(stored, ReplyBody::Stored);
    for _ in 0..100 {
        client.ask(RequestBody::GetBlock { block, offset: 0, len: 1 << 20 });
    }
    for _ in 0..100 {
        assert_eq!(client.receive::<Reply>().body, ReplyBody::Block(data.clone()));
    }
    let missing = client.call(RequestBody::GetBlock { block: BlockId(6), offset: 0, len: 1 });
    assert_eq!(missing, ReplyBody::Refused(Refusal::NoBlock(BlockId(6))));
    assert_eq!(client.status().blocks, (1, 1 << 20));
}

#[test]
fn a_client_that_asks_too_much_is_refused_and_can_go_on() {
    let mut cluster = Cluster::start(2, 0);
    cluster.stop_node(1).unwrap(); // So that no update is answered.
    let mut client = cluster.client(0);
    for _ in 0..4097 {
        client.ask(update(1));
    }
    let refused: Reply = client.receive();
    assert_eq!(refused.body, ReplyBody::Refused(Refusal::Overloaded));
    cluster.start_node(1);
    for _ in 0..4096 {
        assert_eq!(client.receive::<Reply>().body, ReplyBody::Stored);
    }
}

#[test]
fn garbage_closes_its_connection_and_is_counted() {
    let cluster = Cluster::start(1, 0);
    let header = |magic: u16, version: u16, len: u32, checksum: u32| {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&magic.to_le_bytes());
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(bytes.len(), HEADER_LEN);
        bytes
    };
    let client = Caller::Client(ServiceId::MAIN);
    let stranger = framed(&hello(CLUSTER + 1, client.clone())).to_vec();
    let mut then_garbage = framed(&hello(CLUSTER, client)).to_vec();
    then_garbage.extend(framed(&vec![255u8; 100]));
    let (from, to) = (NodeId(9), NodeId(0));
    let standing = Standing { incarnation: 1, ..Standing::default() };
    let node = Identity { from, to, durable: true, standing, known: None };
    let unknown_node = framed(&hello(CLUSTER, Caller::Member(node))).to_vec();
    let bad: [Vec<u8>; 8] = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        header(MAGIC, VERSION + 1, 0, 0),
        header(MAGIC, VERSION, u32::MAX, 0),
        [header(MAGIC, VERSION, 1, 1), vec![7]].concat(),
        framed(&[9u8; 3]).to_vec(),
        stranger,
        then_garbage,
        unknown_node,
    ];
    for (at, bytes) in bad.iter().enumerate() {
        let mut stream = dial(&cluster.addresses[0]);
        stream.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest); // Until the server closes it, in whatever way.
        let status = cluster.client(0).await_status(|status| status.bad_frames > at as u64);
        assert_eq!(status.bad_frames, at as u64 + 1);
    }
    assert_eq!(cluster.client(0).call(update(1)), ReplyBody::Stored);
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let mut cluster = Cluster::start(1, 0);
    drop(cluster.client(0));
    let (first, options) = (cluster.dir(0), |dir: &Path| meridian_node::ServerOptions {
        dir: dir.into(),
        cluster: Some(dir.parent().unwrap().join("cluster.json")),
        keys: None,
        copies: Default::default(),
        security: Default::default(),
    });
    let serve = |dir: &Path| {
        let on = ServerDisk { disk: Arc::new(SimDisk::new()), checkpoint_bytes: 1 << 20 };
        meridian_node::serve::<toy::Toy>(&options(dir), on, async { Ok(()) }).unwrap_err()
    };
    assert!(matches!(serve(&first), ServerError::Held(DirectoryError::Locked(_))));
    let copy = first.with_file_name("copy");
    meridian_node::prepare(&copy, CLUSTER, "n0").unwrap();
    let error = serve(&copy);
    assert!(matches!(error, ServerError::Address { .. }), "{error}");
    assert!(error.to_string().contains(&cluster.addresses[0]), "{error}");
    cluster.stop_node(0).unwrap();
}

/// Acknowledged by a quorum, and one of that quorum comes back with an empty log: with a node that
/// never heard of it, it would be a quorum that knows nothing.
#[test]
fn a_node_whose_log_is_not_its_own_is_refused() {
    let mut cluster = Cluster::start(3, 0);
    assert_eq!(cluster.client(0).call(update(1)), ReplyBody::Stored);
    cluster.stop_node(2).unwrap();
    cluster.client(0).ask(update(20)); // Answered once all nodes have it.
    for node in [0, 1] {
        cluster.client(node).await_status(|status| status.replicas[0].applied == Position(21));
        cluster.stop_node(node).unwrap();
    }
    let kept = std::mem::replace(&mut cluster.disks[0], Arc::new(SimDisk::new()));
    cluster.start_node(2);
    cluster.start_node(0);
    let error = cluster.wait_node(0).unwrap_err();
    assert!(matches!(error, ServerError::Forgot { .. }), "{error}");
    assert!(error.to_string().contains("cluster remove-node n0"), "{error}");
    // Another's log is no better than none.
    cluster.disks[0] = cluster.disks[1].clone();
    cluster.start_node(0);
    assert!(matches!(cluster.wait_node(0), Err(ServerError::Forgot { .. })));
    cluster.disks[0] = kept;
    cluster.start_node(0);
    cluster.start_node(1);
    for node in 0..3 {
        cluster.client(node).await_status(|status| status.replicas[0].applied == Position(21));
    }
}

/// Why a node does not come back that is started now.
fn refusal(cluster: &mut Cluster, node: usize) -> String {
    cluster.start_node(node);
    let error = cluster.wait_node(node).unwrap_err();
    assert!(matches!(error, ServerError::Forgot { .. }), "{error}");
    assert_eq!(error.exit_code(), meridian_node::FORGOT_CODE);
    let (error, way_out) = (error.to_string(), format!("cluster remove-node n{node}"));
    assert!(error.contains(&way_out), "{error}");
    error
}

/// All that it acknowledged since is gone from its disk, which is whole in itself.
#[test]
fn a_node_whose_directory_is_older_is_refused_by_those_it_spoke_with() {
    let disks: [SimDisk; 3] = std::array::from_fn(|_| SimDisk::new());
    let all = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
    let mut cluster = Cluster::new(all, 0);
    (0..3).for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.client(1).call(update(1)), ReplyBody::Stored);
    let count = cluster.dir(0).join("incarnation");
    let (older, starts) = (disks[0].copy(), std::fs::read(&count).unwrap());
    assert_eq!(cluster.client(1).call(update(20)), ReplyBody::Stored); // By all three.
    cluster.stop_node(0).unwrap();
    let newest = std::fs::read(&count).unwrap();
    let kept = std::mem::replace(&mut cluster.disks[0], Arc::new(older));
    std::fs::write(&count, &starts).unwrap();
    let error = refusal(&mut cluster, 0);
    assert!(error.contains("n0 has lost its memory, as n"), "{error}");
    assert!(error.contains("its disk is as it was"), "{error}");
    // The others know it from their disks, too.
    for node in [1, 2] {
        cluster.stop_node(node).unwrap();
        cluster.start_node(node);
    }
    std::fs::write(&count, &starts).unwrap();
    refusal(&mut cluster, 0);
    cluster.disks[0] = kept;
    std::fs::write(&count, newest).unwrap();
    cluster.start_node(0);
    for node in 0..3 {
        cluster.client(node).await_status(|status| status.replicas[0].applied == Position(21));
    }
}

/// The log is the newest, and so is all else in its directory.
#[test]
fn a_node_whose_blocks_alone_are_older_is_refused() {
    let disk = SimDisk::new();
    let mut cluster = Cluster::new(vec![Arc::new(disk.clone())], 0);
    cluster.start_node(0);
    cluster.stop_node(0).unwrap();
    let older = disk.copy();
    cluster.start_node(0);
    cluster.stop_node(0).unwrap();
    let blocks = cluster.dir(0).join("blocks");
    let newest = disk.copy();
    for name in older.list(&blocks).unwrap() {
        let file = older.open(&blocks.join(&name)).unwrap();
        write_whole(&disk, &blocks.join(&name), &read_all(&*file).unwrap()).unwrap();
    }
    let error = refusal(&mut cluster, 0);
    assert!(error.contains("knows 1 starts of n0, its log 2: later blocks are gone"), "{error}");
    cluster.disks[0] = Arc::new(newest);
    cluster.start_node(0);
}

/// Nothing but the blocks is older, by less than a run of the node. What was stored since the copy
/// is counted by other nodes as held here.
#[test]
fn a_node_whose_blocks_alone_are_as_before_in_this_run_is_refused() {
    let disk = SimDisk::new();
    let mut cluster = Cluster::new(vec![Arc::new(disk.clone())], 0);
    let store = |cluster: &Cluster, number: u128| {
        let data = Bytes::from(vec![7; 3000]);
        let put = RequestBody::PutBlock { block: BlockId(number), data };
        assert_eq!(cluster.client(0).call(put), ReplyBody::Stored);
    };
    cluster.start_node(0);
    store(&cluster, 1);
    let older = disk.copy();
    store(&cluster, 2);
    cluster.stop_node(0).unwrap();
    let (blocks, newest) = (cluster.dir(0).join("blocks"), disk.copy());
    for name in older.list(&blocks).unwrap() {
        let file = older.open(&blocks.join(&name)).unwrap();
        write_whole(&disk, &blocks.join(&name), &read_all(&*file).unwrap()).unwrap();
    }
    let error = refusal(&mut cluster, 0);
    assert!(error.contains("later blocks are gone"), "{error}");
    // With its own it starts, and also when they end in a record that is damaged.
    cluster.disks[0] = Arc::new(newest.clone());
    cluster.start_node(0);
    cluster.stop_node(0).unwrap();
    let last = newest.list(&blocks).unwrap().into_iter().rfind(|name| name.starts_with("blocks-"));
    let segment = newest.open(&blocks.join(last.unwrap())).unwrap();
    let bytes = read_all(&*segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte == 7).unwrap();
    segment.write_at(end as u64, &[8]).unwrap();
    segment.sync_data().unwrap();
    cluster.start_node(0);
    store(&cluster, 2);
}

/// Nothing in its directory says that it ever ran.
#[test]
fn a_node_with_an_empty_directory_is_refused_by_those_it_spoke_with() {
    let mut cluster = Cluster::start(2, 0);
    assert_eq!(cluster.client(1).call(update(1)), ReplyBody::Stored);
    cluster.stop_node(0).unwrap();
    std::fs::remove_dir_all(cluster.dir(0)).unwrap();
    meridian_node::prepare(&cluster.dir(0), CLUSTER, "n0").unwrap();
    cluster.disks[0] = Arc::new(SimDisk::new());
    let error = refusal(&mut cluster, 0);
    assert!(error.contains("another disk"), "{error}");
}

/// Both tests count the checkpoints of all toys.
static COUNTING: Mutex<()> = Mutex::new(());

#[test]
fn checkpoints_stand_for_what_they_replace() {
    const UPDATES: u64 = 100;
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut cluster = Cluster::new(vec![Arc::new(SimDisk::new())], 0);
    let (before, mut updates) = (CHECKPOINTS.load(Ordering::SeqCst), 0);
    for round in 1..=3 {
        cluster.start_with::<toy::Toy>(0, 200);
        let mut client = cluster.client(0);
        // On a busy machine one checkpoint is being written for long.
        let is_due = || CHECKPOINTS.load(Ordering::SeqCst) - before <= round;
        while updates < round as u64 * UPDATES || (is_due() && updates < 100 * UPDATES) {
            assert_eq!(client.call(update(1)), ReplyBody::Stored);
            updates += 1;
        }
        let status = client.await_status(|status| status.replicas[0].delivered.0 >= updates);
        assert_eq!(status.replicas[0].applied, Position(updates));
        cluster.stop_node(0).unwrap();
    }
    assert!(CHECKPOINTS.load(Ordering::SeqCst) - before > 3);
}

/// A copy of the process is dear, and of no use while another is being written.
#[test]
fn no_checkpoint_is_made_while_another_is_being_written() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let holding = Arc::new((Mutex::new(Syncs::Pass), Condvar::new()));
    let held = Arc::new(Held { disk: SimDisk::new(), holding, only: Some("checkpoint") });
    let mut cluster = Cluster::new(vec![held.clone()], 0);
    let _released = Released(held.clone()); // Before the cluster waits for its servers.
    cluster.start_with::<toy::Toy>(0, 200);
    let mut client = cluster.client(0);
    held.set(Syncs::Wait);
    let before = CHECKPOINTS.load(Ordering::SeqCst);
    for _ in 0..100 {
        assert_eq!(client.call(update(1)), ReplyBody::Stored);
    }
    assert_eq!(CHECKPOINTS.load(Ordering::SeqCst) - before, 1);
    held.set(Syncs::Pass);
}

#[test]
fn a_record_that_does_not_decode_is_named() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let mut cluster = Cluster::new(vec![disk.clone()], 0);
    let dir = cluster.dir(0);
    let mut journal = journal::open(disk, &dir.join("wal"), Arc::new(|| ())).unwrap().journal;
    journal.append(Bytes::from_static(&[0, 0, 1, 1])); // Toy's `Asked`.
    journal.append(Bytes::from_static(&[200]));
    journal.close().unwrap();
    cluster.start_node(0);
    let error = cluster.wait_node(0).unwrap_err();
    assert!(matches!(error, ServerError::Record { number: 2, .. }), "{error}");
}

#[test]
fn a_node_of_meridian_answers() {
    let disks: [Arc<dyn Disk>; 3] = std::array::from_fn(|_| Arc::new(SimDisk::new()) as _);
    let mut cluster = Cluster::new(disks.to_vec(), 0);
    for node in 0..3 {
        cluster.start_with::<meridian_host::Node>(node, 64 << 20);
    }
    let mut client = cluster.client(0);
    let status = client.await_status(|status| status.connected.len() == 2);
    assert_eq!(status.replicas.len(), 2, "global and the region's");
}

/// A disk whose syncs wait for the test's word, or fail.
struct Held {
    disk: SimDisk,
    holding: Arc<(Mutex<Syncs>, Condvar)>,
    /// Only files whose names begin so are held.
    only: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Syncs {
    Pass,
    Wait,
    Fail,
}

struct HeldFile {
    file: Arc<dyn DiskFile>,
    holding: Arc<(Mutex<Syncs>, Condvar)>,
}

impl Held {
    fn set(&self, syncs: Syncs) {
        *self.holding.0.lock().unwrap() = syncs;
        self.holding.1.notify_all();
    }

    fn file(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let name = path.file_name().unwrap().to_str().unwrap();
        if self.only.is_some_and(|only| !name.starts_with(only)) {
            return file;
        }
        Arc::new(HeldFile { file, holding: self.holding.clone() })
    }
}

impl Disk for Held {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(path).map(|file| self.file(path, file))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(path).map(|file| self.file(path, file))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn room(&self, dir: &Path) -> io::Result<Room> {
        self.disk.room(dir)
    }
}

impl DiskFile for HeldFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, into)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        let (syncs, changed) = &*self.holding;
        let syncs = changed.wait_while(syncs.lock().unwrap(), |now| *now == Syncs::Wait).unwrap();
        match *syncs {
            Syncs::Fail => Err(io::Error::other("the disk is gone")),
            Syncs::Pass | Syncs::Wait => self.file.sync_data(),
        }
    }
    fn preallocate(&self, len: u64) -> io::Result<()> {
        self.file.preallocate(len)
    }
    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }
}

/// Lets the servers stop, however the test ends.
impl Drop for Released {
    fn drop(&mut self) {
        self.0.set(Syncs::Pass);
    }
}

struct Released(Arc<Held>);

fn held_cluster() -> (Cluster, Arc<Held>) {
    let holding = Arc::new((Mutex::new(Syncs::Pass), Condvar::new()));
    let held = Arc::new(Held { disk: SimDisk::new(), holding, only: None });
    let mut cluster = Cluster::new(vec![held.clone(), Arc::new(SimDisk::new())], 0);
    cluster.start_node(0);
    cluster.start_node(1);
    (cluster, held)
}

#[test]
fn no_message_leaves_before_the_record_before_it_is_durable() {
    let (cluster, held) = held_cluster();
    let _released = Released(held.clone());
    let (mut slow, mut other) = (cluster.client(0), cluster.client(1));
    assert_eq!(slow.call(update(1)), ReplyBody::Stored);
    other.await_status(|status| status.replicas[0].applied == Position(1));
    held.set(Syncs::Wait);
    let mut asking = cluster.client(0);
    let id = asking.ask(update(10));
    // The process goes on stepping meanwhile, and hears of others.
    slow.await_status(|status| status.replicas[0].pending == 2);
    let waiting = other.ask(update(100));
    let status = slow.await_status(|status| status.replicas[0].applied >= Position(101));
    assert_eq!(status.replicas[0].applied, Position(101));
    for _ in 0..100 {
        // Had the message left, it would have been here before these.
        let mut fresh = cluster.client(1);
        assert_eq!(fresh.status().replicas[0].applied, Position(101));
    }
    held.set(Syncs::Pass);
    assert_eq!(asking.receive::<Reply>().id, id);
    assert_eq!(other.receive::<Reply>().id, waiting);
    other.await_status(|status| status.replicas[0].applied == Position(111));
}

#[test]
fn a_failed_sync_stops_the_server() {
    let (mut cluster, held) = held_cluster();
    let mut client = cluster.client(0);
    assert_eq!(client.call(update(1)), ReplyBody::Stored);
    while !meridian_node::has_run(&cluster.dir(0)) {
        client.status(); // Clients are served while it still notes its start.
    }
    held.set(Syncs::Fail);
    client.ask(update(2));
    let error = cluster.wait_node(0).unwrap_err();
    assert!(matches!(error, ServerError::Log(_)), "{error}");
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    assert_eq!(error.exit_code(), 3);
}

/// Clocks of nodes that started at different times agree, and do not begin anew with a restart:
/// timestamps of hybrid clocks come from them.
#[test]
fn clocks_of_nodes_show_the_time_of_day() {
    let mut cluster = Cluster::start(1, 0);
    let shown = |cluster: &Cluster| {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let clock = cluster.client(0).status().replicas[0].clock.0;
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        (Duration::from_nanos(clock), before - SLACK..after + SLACK)
    };
    for _ in 0..2 {
        let (clock, right) = shown(&cluster);
        assert!(right.contains(&clock), "{clock:?} is not in {right:?}");
        cluster.stop_node(0).unwrap();
        cluster.start_node(0);
    }
}

/// By so much the clock may be set while a test runs.
const SLACK: Duration = Duration::from_secs(60);
