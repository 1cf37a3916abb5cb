//! Disks become full: the nodes refuse what needs room before their logs have none, so no node
//! stops. What gives room back goes on, and so does all else when there is room again.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use bytes::Bytes;
use meridian_core::{BlockId, GroupId, MessageId, NodeId, PLANTED_BUGS, Time};
use meridian_fs::operation::{NewNode, Piece, WriteAt};
use meridian_fs::types::{Data, Extent, INLINE_MAX};
use meridian_fs::{Ino, Kind, Place, Timestamp, Update, Vector};
use meridian_host::api::{NAMES_MAX, Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_host::space::{self, Mutation, Options, Room, Space};
use meridian_host::update::Payload;
use meridian_host::{Command, ConnectionId, Node, Output, sessions};
use meridian_sim::of::files::regions::{setup, topology};
use meridian_sim::{DiskFailure, Logs, Owner, Stimulus, World, each_seed};
use meridian_storage::{Disk, SimDisk};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const US: GroupId = GroupId(1);
const NODES: u16 = 3;
const MS: Duration = Duration::from_millis(1);
/// What the disks of `us` have left when they are said to be nearly full.
const LEAST: u64 = 128 << 10;

fn top() -> Place {
    Place { ino: Ino::top(US), partition: US }
}

/// The disks of the nodes, and the answers to the client.
#[derive(Default)]
struct Shell {
    disks: BTreeMap<NodeId, SimDisk>,
    /// How often nodes have started.
    starts: usize,
    answers: BTreeMap<u64, ReplyBody>,
    /// What nodes have freed.
    freed: Vec<(NodeId, BlockId)>,
}

impl Owner<Node> for Shell {
    fn mount(&mut self, at: NodeId, disk: &SimDisk, _: bool) -> Result<(), DiskFailure> {
        self.starts += 1;
        self.disks.insert(at, disk.clone());
        Ok(())
    }

    fn output(&mut self, at: NodeId, output: Output, _now: Time) -> Vec<Stimulus<Node>> {
        match output {
            Output::Reply { reply: Reply { id, body }, .. } => {
                self.answers.insert(id, body);
                Vec::new()
            }
            Output::Space(space::Output::Measure) => {
                let room = self.disks[&at].room(Path::new("/")).unwrap();
                let (free, total) = (room.free, room.total);
                let room = Room { free, writable: 0, total, device: 0 };
                let command = Command::Space(space::Command::Room(Some(room)));
                vec![Stimulus::Command { to: at, command, after: MS }]
            }
            Output::Space(space::Output::Free(blocks)) => {
                self.freed.extend(blocks.into_iter().map(|block| (at, block)));
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

struct Story {
    world: World<Node, Shell>,
    requests: u64,
}

impl Story {
    fn new(seed: u64, mutation: Mutation) -> Story {
        let topology = topology(usize::from(NODES));
        let (of, tick) = (topology.clone(), 5 * MS);
        let options = Options { least_bytes: LEAST, tick, ..Options::default() };
        let space = Space::new(options).with_mutation(mutation);
        let make = move |me| Node::new(of.clone(), me).with_space(space.clone());
        let mut setup = setup(&topology, make);
        setup.logs = Logs::on_disks();
        let mut world = World::new(seed, setup, Shell::default());
        world.run_for(6000 * MS); // Each group has a primary.
        Story { world, requests: 0 }
    }

    /// The disks of `us` have so many bytes left.
    fn leave(&mut self, bytes: Option<u64>) {
        for node in 0..NODES {
            let disk = &self.world.owner.disks[&NodeId(node)];
            let used: u64 = disk.files().iter().map(|(_, len)| len).sum();
            disk.set_capacity(bytes.map(|bytes| used + bytes));
        }
        self.world.run_for(300 * MS);
    }

    /// Whether no node has stopped since they started.
    fn all_run(&self) -> bool {
        let all = 3 * usize::from(NODES);
        self.world.owner.starts == all && self.world.processes().count() == all
    }

    /// What the first node of `us` answers; nothing if it does not within a second.
    fn ask(&mut self, update: Update) -> (MessageId, Option<ReplyBody>) {
        let number = self.requests + 1;
        let id = MessageId { client: sessions::name(0, &[US]), sequence: number };
        let payload = Payload::new(Vector::default(), Timestamp::default(), update);
        let start = payload.into_start(id, number, &[US]);
        (id, self.request(RequestBody::Update { group: US, start }))
    }

    fn request(&mut self, body: RequestBody) -> Option<ReplyBody> {
        self.requests += 1;
        let number = self.requests;
        let request = Request { id: number, body };
        let command = Command::Request { connection: ConnectionId(1), request };
        self.world.inject(Stimulus::Command { to: NodeId(0), command, after: MS });
        self.world.run_until(|world| world.owner.answers.contains_key(&number), 1000 * MS);
        self.world.owner.answers.get(&number).cloned()
    }

    /// Makes a file that lies in this block.
    fn make_in(&mut self, name: &str, block: BlockId) {
        let node = NewNode::new(Kind::File, 0o644);
        let name = Bytes::copy_from_slice(name.as_bytes());
        let (id, made) = self.ask(Update::Create { parent: top(), name, node });
        is_done(&made).unwrap();
        let inode = Place { ino: Ino::made(US, id), partition: US };
        let extent = Extent { len: 9, data: Data::Block { block, start: 0 } };
        let pieces = vec![Piece { offset: 0, extent }];
        let (_, written) = self.ask(Update::Write { inode, at: WriteAt::Offset(0), pieces });
        is_done(&written).unwrap();
    }

    /// Makes a file with as much in it as lies in the tree itself; whether that was done.
    fn fill(&mut self, name: &str) -> Option<Place> {
        let node = NewNode::new(Kind::File, 0o644);
        let name = Bytes::copy_from_slice(name.as_bytes());
        let (id, made) = self.ask(Update::Create { parent: top(), name, node });
        is_done(&made)?;
        let inode = Place { ino: Ino::made(US, id), partition: US };
        let data = Data::Inline(Bytes::from(vec![7; INLINE_MAX]));
        let piece = Piece { offset: 0, extent: Extent { len: INLINE_MAX as u32, data } };
        let (_, written) =
            self.ask(Update::Write { inode, at: WriteAt::Offset(0), pieces: vec![piece] });
        is_done(&written).map(|()| inode)
    }
}

/// Nothing if it was refused as the disk is full, or not answered.
fn is_done(answer: &Option<ReplyBody>) -> Option<()> {
    match answer {
        Some(ReplyBody::Updated { result: Ok(_), .. }) => Some(()),
        Some(ReplyBody::Refused(Refusal::Full)) | None => None,
        other => panic!("{other:?}"),
    }
}

/// Whether no node has stopped while a client filled the disks and then made room.
fn nobody_stops(seed: u64, mutation: Mutation) -> bool {
    let mut story = Story::new(seed, mutation);
    story.leave(Some(4 * LEAST));
    let mut files = Vec::new();
    for number in 0..1000 {
        let Some(file) = story.fill(&format!("f{number}")) else { break };
        files.push((format!("f{number}"), file));
    }
    if !story.all_run() {
        return false;
    }
    let count = files.len();
    assert!((10..1000).contains(&count), "seed {seed}: {count} files");
    assert!(story.fill("more").is_none(), "seed {seed}: the disk is full");
    for (name, child) in files.drain(..).take(20) {
        let name = Bytes::from(name.into_bytes());
        let unlink = Update::Unlink { parent: top(), name, child, keep_for: None };
        let answer = story.ask(unlink).1;
        assert!(is_done(&answer).is_some(), "seed {seed}: {answer:?} to a removal");
    }
    story.leave(None);
    assert!(story.fill("again").is_some(), "seed {seed}: there is room again");
    story.all_run()
}

/// Long before its name is old, and whatever a client says, not before no file lies in it.
#[test]
fn what_a_client_discards_is_freed_at_once_unless_a_file_lies_in_it() {
    let mut story = Story::new(1, Mutation::Correct);
    let block = |random| BlockId::named(US, story.world.now().0 / 1_000_000, random);
    let (named, unnamed) = (block(1), block(2));
    story.make_in("f", named);
    let answer = story.request(RequestBody::Discard { blocks: vec![named, unnamed] });
    assert_eq!(answer, Some(ReplyBody::Discarded));
    assert_eq!(story.world.owner.freed, [(NodeId(0), unnamed)]);
    let blocks = vec![unnamed; NAMES_MAX + 1];
    let answer = story.request(RequestBody::Discard { blocks });
    assert!(matches!(answer, Some(ReplyBody::Refused(Refusal::Bad(_)))), "{answer:?}");
}

#[test]
fn full_disks_stop_nobody_and_are_used_again() {
    each_seed(0..10, |seed| assert!(nobody_stops(seed, Mutation::Correct), "seed {seed}"));
    let noticed = (0..10).any(|seed| !nobody_stops(seed, Mutation::TakesAll));
    assert!(noticed || !PLANTED_BUGS, "nobody noticed that the log was left no room");
}
