//! Whole servers on loopback, with a toy for a process.
#![allow(clippy::unwrap_used, reason = "a test")]

mod toy;

use bytes::Bytes;
use meridian_blocks::{Disk, DiskFile, SimDisk};
use meridian_core::frame::{HEADER_LEN, MAGIC, VERSION};
use meridian_core::{BlockId, ClientId, Position};
use meridian_host::api::{Hello, Refusal, Reply, ReplyBody, RequestBody, Who};
use meridian_node::journal::{Journal, Records};
use meridian_node::{ServerError, storage};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use toy::{CLUSTER, Client, Cluster, dial, framed, update};

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
    let who = Who::Client(ClientId(1));
    let stranger = framed(&Hello { cluster: CLUSTER + 1, who: who.clone() }).to_vec();
    let mut then_garbage = framed(&Hello { cluster: CLUSTER, who }).to_vec();
    then_garbage.extend(framed(&vec![255u8; 100]));
    let node = Who::Node { node: meridian_core::NodeId(9), incarnation: 1 };
    let unknown_node = framed(&Hello { cluster: CLUSTER, who: node }).to_vec();
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
    });
    let serve = |dir: &Path| {
        let never = |_: &Path,
                     _: meridian_node::server::Wake,
                     _: meridian_node::server::Replay<'_>| { panic!("opened") };
        meridian_node::serve::<toy::Toy>(&options(dir), never, async { Ok(()) }).unwrap_err()
    };
    assert!(matches!(serve(&first), ServerError::Locked(_)));
    let copy = first.with_file_name("copy");
    meridian_node::prepare(&copy, CLUSTER, "n0").unwrap();
    let error = serve(&copy);
    assert!(matches!(error, ServerError::Address { .. }), "{error}");
    assert!(error.to_string().contains(&cluster.addresses[0]), "{error}");
    cluster.stop_node(0).unwrap();
}

/// A journal that wants a checkpoint after a few bytes.
struct Hasty {
    journal: Box<dyn Journal>,
    checkpoints: Arc<AtomicUsize>,
}

impl Journal for Hasty {
    fn append(&mut self, record: Bytes) -> u64 {
        self.journal.append(record)
    }
    fn flush(&mut self) {
        self.journal.flush();
    }
    fn durable(&self) -> Result<u64, String> {
        self.journal.durable()
    }
    fn is_full(&self) -> bool {
        self.journal.is_full()
    }
    fn bytes_since_checkpoint(&self) -> u64 {
        self.journal.bytes_since_checkpoint() << 16
    }
    fn checkpoint(&mut self, records: Records) {
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.journal.checkpoint(records);
    }
    fn close(self: Box<Self>) -> Result<(), String> {
        self.journal.close()
    }
}

#[test]
fn checkpoints_stand_for_what_they_replace() {
    let mut cluster = Cluster::new(vec![Arc::new(SimDisk::new())], 0);
    let checkpoints = Arc::new(AtomicUsize::new(0));
    for round in 1..=3 {
        let checkpoints = checkpoints.clone();
        cluster.start_with::<toy::Toy>(0, |journal| Box::new(Hasty { journal, checkpoints }));
        let mut client = cluster.client(0);
        for _ in 0..20 {
            assert_eq!(client.call(update(1)), ReplyBody::Stored);
        }
        let status = client.await_status(|status| status.replicas[0].delivered.0 >= round * 20);
        assert_eq!(status.replicas[0].applied, Position(round * 20));
        cluster.stop_node(0).unwrap();
    }
    assert!(checkpoints.load(Ordering::Relaxed) > 3);
}

#[test]
fn a_record_that_does_not_decode_is_named() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let mut cluster = Cluster::new(vec![disk.clone()], 0);
    let dir = cluster.dir(0);
    let mut journal =
        storage::open_journal(disk, &dir, Arc::new(|| ()), &mut |_, _| Ok(())).unwrap();
    journal.append(Bytes::from_static(&[0, 1, 1])); // Toy's `Asked`.
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
        cluster.start_with::<meridian_host::Node>(node, |journal| journal);
    }
    let mut client = cluster.client(0);
    let status = client.await_status(|status| status.connected.len() == 2);
    assert_eq!(status.replicas.len(), 2, "global and the region's");
}

/// A disk whose syncs wait for the test's word, or fail.
struct Held {
    disk: SimDisk,
    holding: Arc<(Mutex<Syncs>, Condvar)>,
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

    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
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
        self.disk.create(path).map(|file| self.file(file))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(path).map(|file| self.file(file))
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
    let held = Arc::new(Held { disk: SimDisk::new(), holding });
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
    held.set(Syncs::Fail);
    client.ask(update(2));
    let error = cluster.wait_node(0).unwrap_err();
    assert!(matches!(error, ServerError::Log(_)), "{error}");
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    assert_eq!(error.exit_code(), 3);
}
