//! A replica was away for longer than the others keep what it missed: it takes over the state of
//! one of them, whatever goes on meanwhile.

use bytes::Bytes;
use meridian_core::{GroupId, MessageId, NodeId, Time};
use meridian_fs::operation::{NewNode, Piece, WriteAt};
use meridian_fs::types::{Data, Extent, INLINE_MAX};
use meridian_fs::{
    Answer, Done, FsError, Ino, Kind, Partition, Place, Query, Timestamp, Update, Vector,
};
use meridian_host::api::{Reply, ReplyBody, Request, RequestBody};
use meridian_host::sessions::{self, WINDOW};
use meridian_host::update::Payload;
use meridian_host::{Command, ConnectionId, Node, Output};
use meridian_multicast::Limits;
use meridian_sim::of::files::regions::{are_level, setup, topology};
use meridian_sim::{Owner, Setup, Stimulus, World, each_seed};
use std::collections::BTreeMap;
use std::time::Duration;

const GLOBAL: GroupId = GroupId::GLOBAL;
const US: GroupId = GroupId(1);
const NODES: u16 = 3;
const MS: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_millis(5000);

const LIMITS: Limits = Limits { bytes: 24 << 20, entries: 50, exceptions: 1024 };

/// All answers, by the number of the request.
#[derive(Default)]
struct Notes(BTreeMap<u64, ReplyBody>);

impl Owner<Node> for Notes {
    fn output(&mut self, _at: NodeId, output: Output, _now: Time) -> Vec<Stimulus<Node>> {
        let Output::Reply { reply: Reply { id, body }, .. } = output else { return Vec::new() };
        self.0.entry(id).or_insert(body);
        Vec::new()
    }
}

/// Three regions, and one client that multicasts its updates itself.
struct Story {
    world: World<Node, Notes>,
    requests: u64,
}

impl Story {
    fn new(seed: u64, change: impl FnOnce(&mut Setup<Node>)) -> Story {
        let topology = topology(usize::from(NODES));
        let of = topology.clone();
        let mut setup = setup(&topology, move |me| Node::new(of.clone(), me).with_limits(LIMITS));
        change(&mut setup);
        let mut world = World::new(seed, setup, Notes::default());
        world.run_for(6000 * MS); // Each group has a primary.
        Story { world, requests: 0 }
    }

    /// Multicasts `update`, and asks the first node of each group for what comes of it.
    fn send(&mut self, update: Update) -> MessageId {
        let dest: Vec<_> = update.partitions().into_iter().collect();
        self.requests += 1;
        let id = MessageId { client: sessions::name(0, &dest), sequence: self.requests };
        let low = self.requests.saturating_sub(WINDOW / 2).max(1); // What is before has ended.
        let payload = Payload::new(Vector::default(), Timestamp::default(), update);
        let start = payload.into_start(id, low, &dest);
        for group in dest {
            let body = RequestBody::Update { group, start: start.clone() };
            let request = Request { id: self.requests, body };
            let command = Command::Request { connection: ConnectionId(1), request };
            self.world.inject(Stimulus::Command { to: node(group, 0), command, after: MS });
        }
        id
    }

    /// What came of it.
    fn done(&mut self, id: MessageId) -> Result<Done, FsError> {
        let number = id.sequence;
        self.world.run_until(|world| world.owner.0.contains_key(&number), SOON);
        match self.world.owner.0.get(&number).cloned() {
            Some(ReplyBody::Updated { result, .. }) => result,
            other => panic!("{id}: {other:?}"),
        }
    }

    fn make(&mut self, parent: Place, name: &str) -> Place {
        let id = self.send(create(parent, name));
        match self.done(id) {
            Ok(Done::Attributes(made)) => made.place,
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// The node of that number of a region, or of `global`: the first of each region.
fn node(group: GroupId, n: u16) -> NodeId {
    NodeId(if group == GLOBAL { n * NODES } else { (group.0 - 1) * NODES + n })
}

fn partition(world: &World<Node, Notes>, at: NodeId, group: GroupId) -> &Partition {
    world.process(at).unwrap().replica(group).unwrap().partition()
}

/// Whether the nodes of `us` have the same state, with nothing waiting.
fn us_is_equal(world: &World<Node, Notes>) -> bool {
    are_level(world, US, (0..NODES).map(|n| node(US, n)))
}

fn create(parent: Place, name: &str) -> Update {
    let (kind, target) = (Kind::File, Bytes::new());
    let node = NewNode { target, ..NewNode::new(kind, 0o755) };
    Update::Create { parent, name: Bytes::copy_from_slice(name.as_bytes()), node }
}

/// `global` is busy, and has dropped a message to it and `us`, since a quorum of `us` has it for
/// good. The log of `us` is short: from there the replica that was away gets the message, but
/// nobody has the vote of `global` any more.
#[test]
fn a_replica_that_lacks_a_vote_that_nobody_keeps_goes_on() {
    each_seed(0..5, |seed| {
        let mut story = Story::new(seed, |_| {});
        let file = story.make(Place { ino: Ino::top(US), partition: US }, "f");
        let late = node(US, 2);
        story.world.crash(late);
        story.world.run_for(SOON); // The others have a primary.
        let (parent, name) = (Place::ROOT, Bytes::from_static(b"link"));
        let link = story.send(Update::Link { target: file, parent, name });
        assert!(matches!(story.done(link), Ok(Done::Attributes(_))));
        for n in 0..200 {
            story.make(Place::ROOT, &format!("n{n}"));
        }
        story.world.run_for(3000 * MS);
        let first = story.world.process(node(US, 0)).unwrap();
        let has_dropped = |group| first.replica(group).unwrap().multicast.has_dropped(link);
        assert!(has_dropped(GLOBAL) && !has_dropped(US), "seed {seed}");
        story.world.restart(late);
        story.world.run_for(MS);
        let goes_on = story.world.run_until(us_is_equal, 30_000 * MS);
        assert!(goes_on, "seed {seed}: it waits for ever");
    });
}

/// A state of 16 MB, 200 ms away, takes 6.4 s at half a megabyte for each round trip. The others
/// drop meanwhile what comes after it, and the transfer would begin anew for ever.
#[test]
fn a_replica_far_away_is_brought_up_under_load() {
    const FILES: u64 = 1000;
    let mut story = Story::new(0, |setup| setup.delay = Box::new(|_, _, _| 100 * MS));
    let (first, late) = (node(GLOBAL, 0), node(GLOBAL, 2));
    story.world.crash(late);
    story.world.run_for(SOON);
    for n in 0..FILES {
        let id = story.send(create(Place::ROOT, &format!("n{n}")));
        let inode = Place { ino: Ino::made(GLOBAL, id), partition: GLOBAL };
        let data = Data::Inline(Bytes::from(vec![7; INLINE_MAX]));
        let piece = Piece { offset: 0, extent: Extent { len: INLINE_MAX as u32, data } };
        story.send(Update::Write { inode, at: WriteAt::Offset(0), pieces: vec![piece] });
        story.world.run_for(5 * MS);
    }
    story.world.run_for(2 * SOON);
    let delivered = |story: &Story, at| partition(&story.world, at, GLOBAL).delivered().0;
    let totals = partition(&story.world, first, GLOBAL).read(&Query::Totals { partition: GLOBAL });
    let Ok(Answer::Totals { bytes, .. }) = totals else { panic!("{totals:?}") };
    assert_eq!((delivered(&story, first), bytes), (2 * FILES, FILES * INLINE_MAX as u64));
    story.world.restart(late);
    story.world.run_for(MS);
    assert_eq!(delivered(&story, late), 0, "it was away");
    let level = (0..3000).find(|n| {
        story.send(create(Place::ROOT, &format!("later{n}")));
        story.world.run_for(10 * MS);
        delivered(&story, first) < delivered(&story, late) + 100
    });
    let (late, first) = (delivered(&story, late), delivered(&story, first));
    assert!(level.is_some(), "{late} of {first}");
}
