//! One region is cut off: what needs it waits or is refused, and all else goes on as before (thesis, section
//! 4.4.3; design, section 4.5).
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

mod regions;

use bytes::Bytes;
use meridian_core::{ClientId, GroupId, MessageId, NodeId, Stamp, Time};
use meridian_fs::operation::{NewNode, RenameMode};
use meridian_fs::{
    Answer, Done, FsError, Ino, Kind, Operation, Place, Query, Timestamp, Update, Vector,
};
use meridian_host::api::{Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_host::{Command, ConnectionId, Node, Output};
use meridian_multicast::{Start, Touches};
use meridian_sim::{Ask, Owner, World, each_seed};
use regions::{setup, topology};
use std::collections::BTreeMap;
use std::time::Duration;

const US: GroupId = GroupId(1);
const AP: GroupId = GroupId(3);
const NODES: usize = 3;
const MS: Duration = Duration::from_millis(1);
/// Longer than a round trip between regions and the flushes on the way.
const SOON: Duration = Duration::from_millis(200);

/// Notes all answers, by the number of the request, and when they came.
#[derive(Default)]
struct Notes(BTreeMap<u64, (Time, ReplyBody)>);

impl Owner<Node> for Notes {
    fn output(&mut self, _at: NodeId, output: Output, now: Time) -> Vec<Ask<Node>> {
        let Output::Reply { reply: Reply { id, body }, .. } = output;
        self.0.entry(id).or_insert((now, body));
        Vec::new()
    }
}

/// One client of a cluster, which asks nodes of its choice.
struct Story {
    world: World<Node, Notes>,
    vector: Vector,
    requests: u64,
}

impl Story {
    fn new(seed: u64) -> Story {
        let topology = topology(NODES);
        let of = topology.clone();
        let setup = setup(&topology, move |me| Node::new(of.clone(), me));
        let mut world = World::new(seed, setup, Notes::default());
        world.run_for(3000 * MS); // Each group has a primary.
        Story { world, vector: Vector::default(), requests: 0 }
    }

    fn ask(&mut self, to: NodeId, body: RequestBody) -> u64 {
        self.requests += 1;
        let request = Request { id: self.requests, body };
        let command = Command::Request { connection: ConnectionId(1), request };
        self.world.ask(Ask::Command { to, command, after: MS });
        self.requests
    }

    /// Multicasts `update`, and asks the first node of each group for what comes of it.
    fn send(&mut self, update: Update) -> u64 {
        let id = MessageId { client: ClientId(7), sequence: self.requests + 1 };
        let dest: Vec<_> = update.partitions().into_iter().collect();
        let touches = Touches::keys(update.keys(id));
        let (vector, time) = (self.vector.clone(), Timestamp::default());
        let operation = Operation { vector, time, update };
        let payload = postcard::to_stdvec(&operation).unwrap();
        let start = Start { touches, ..Start::new(id, dest.clone(), payload) };
        let body = |group| RequestBody::Update { group, start: start.clone() };
        let number = self.requests + 1;
        for group in dest {
            self.requests = number - 1; // One request: whoever answers first.
            self.ask(node(group, 0), body(group));
        }
        number
    }

    /// What came of it, within `limit`.
    fn wait(&mut self, number: u64, limit: Duration) -> Option<ReplyBody> {
        self.world.run_until(|world| world.owner.0.contains_key(&number), limit);
        let body = self.world.owner.0.get(&number).map(|(_, body)| body.clone())?;
        if let ReplyBody::Updated { vector, .. } | ReplyBody::Answer { vector, .. } = &body {
            self.vector.merge(vector);
        }
        Some(body)
    }

    fn done(&mut self, number: u64, limit: Duration) -> Option<Result<Done, FsError>> {
        match self.wait(number, limit)? {
            ReplyBody::Updated { result, .. } => Some(result),
            other => panic!("{other:?}"),
        }
    }

    fn make(&mut self, parent: Place, name: &str, kind: Kind) -> Place {
        let number = self.send(create(parent, name, kind));
        match self.done(number, SOON) {
            Some(Ok(Done::Attributes(made))) => made.place,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn look(&mut self, at: NodeId, parent: Place, name: &str) -> u64 {
        let query = Query::Lookup { parent, name: Bytes::copy_from_slice(name.as_bytes()) };
        self.ask(at, RequestBody::Read { vector: self.vector.clone(), query })
    }

    /// Whether the name is there, asked of that node.
    fn sees(&mut self, at: NodeId, parent: Place, name: &str, limit: Duration) -> Option<bool> {
        let number = self.look(at, parent, name);
        match self.wait(number, limit)? {
            ReplyBody::Answer { result: Ok(Answer::Entry { .. }), .. } => Some(true),
            ReplyBody::Answer { result: Err(FsError::NotFound), .. } => Some(false),
            other => panic!("{other:?}"),
        }
    }
}

/// Whether the nodes of `us` have the same state, with nothing waiting.
fn us_is_equal(world: &World<Node, Notes>) -> bool {
    let of = |n| world.process(node(US, n)).unwrap().replica(US).unwrap().partition();
    (0..NODES).all(|n| of(n) == of(0) && of(n).applied() == of(n).delivered())
}

fn node(group: GroupId, n: usize) -> NodeId {
    NodeId((group.0 - 1) * NODES as u16 + n as u16)
}

fn top(group: GroupId) -> Place {
    Place { ino: Ino::top(group), partition: group }
}

fn create(parent: Place, name: &str, kind: Kind) -> Update {
    let node = NewNode { kind, mode: 0o755, uid: 0, gid: 0, rdev: 0, target: Bytes::new() };
    Update::Create { parent, name: Bytes::copy_from_slice(name.as_bytes()), node }
}

/// The file `f` of a directory becomes one of `ap`'s top.
fn take_away(from: Place, moved: Place) -> Update {
    Update::Rename {
        from,
        from_name: "f".into(),
        to: top(AP),
        to_name: "f".into(),
        moved,
        replaced: None,
        mode: RenameMode::Replace,
        ancestors: Vec::new(),
        keep_for: None,
    }
}

/// A rename from `us` to `ap` that `ap` never hears of touches one directory of `us`. Others go on, at
/// all nodes and as fast as ever; who asks for that directory waits.
#[test]
fn an_undecided_rename_holds_up_only_what_it_touches() {
    each_seed(0..10, |seed| {
        let mut story = Story::new(seed);
        let away = story.make(top(US), "away", Kind::Directory);
        let here = story.make(top(US), "here", Kind::Directory);
        let file = story.make(away, "f", Kind::File);
        let ap: Vec<_> = (0..NODES).map(|n| node(AP, n)).collect();
        let rest: Vec<_> = (0..6).map(NodeId).collect();
        story.world.cut(&ap, &rest, true);
        let rename = story.send(take_away(away, file));
        assert_eq!(story.done(rename, SOON), None);
        for name in ["a", "b", "c"] {
            story.make(here, name, Kind::File);
            for n in 0..NODES {
                let seen = story.sees(node(US, n), here, name, SOON);
                assert_eq!(seen, Some(true), "{name} at node {n}");
            }
        }
        let beside = story.send(create(away, "g", Kind::File));
        assert_eq!(story.done(beside, SOON), None, "it may come after the rename");
        let looks = (0..NODES).map(|n| story.look(node(US, n), away, "g")).collect::<Vec<_>>();
        assert_eq!(story.wait(looks[1], SOON), None, "nobody knows yet");
        // Later, all that goes to the region is refused, so that it holds up nothing.
        story.world.run_for(5000 * MS);
        let other = story.send(take_away(here, file));
        let refused = story.wait(other, SOON);
        assert_eq!(refused, Some(ReplyBody::Refused(Refusal::OutOfReach(AP))));
        story.make(here, "f", Kind::File);
        story.world.heal();
        assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
        assert!(matches!(story.done(beside, SOON), Some(Ok(_))));
        for look in looks {
            // Asked before it was there.
            let told = story.wait(look, SOON);
            assert!(matches!(told, Some(ReplyBody::Answer { .. })), "{told:?}");
        }
        assert_eq!(story.sees(node(US, 2), away, "f", SOON), Some(false));
        assert_eq!(story.sees(node(AP, 0), top(AP), "f", SOON), Some(true));
        assert!(story.world.run_until(us_is_equal, 5000 * MS));
    });
}

/// A message is final, and one of its partitions is cut off before it votes: that holds up what it touches, at
/// the node that lacks the vote, and nothing else.
#[test]
fn a_missing_vote_holds_up_only_what_it_touches() {
    each_seed(0..10, |seed| {
        let mut story = Story::new(seed);
        let away = story.make(top(US), "away", Kind::Directory);
        let here = story.make(top(US), "here", Kind::Directory);
        let file = story.make(away, "f", Kind::File);
        let rename = story.send(take_away(away, file));
        // Until it is delivered at the first node of `us`; then it waits there for `ap`'s vote.
        let waits = |world: &World<Node, Notes>| {
            let replica = world.process(node(US, 0)).unwrap().replica(US).unwrap();
            !replica.partition().waiting().is_empty()
        };
        assert!(story.world.run_until(waits, SOON), "seed {seed}: the vote came first");
        let ap: Vec<_> = (0..NODES).map(|n| node(AP, n)).collect();
        let rest: Vec<_> = (0..6).map(NodeId).collect();
        story.world.cut(&ap, &rest, true);
        assert_eq!(story.done(rename, SOON), None);
        for name in ["a", "b"] {
            story.make(here, name, Kind::File);
            assert_eq!(story.sees(node(US, 0), here, name, SOON), Some(true));
        }
        assert_eq!(story.sees(node(US, 0), away, "f", SOON), None);
        story.world.heal();
        assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
        assert_eq!(story.sees(node(US, 1), away, "f", SOON), Some(false));
        assert!(story.world.run_until(us_is_equal, 5000 * MS));
    });
}

/// What a client has seen at one node it sees at another as soon as that has delivered it: a group without other
/// traffic shows its clocks in time, and nobody waits for a heartbeat.
#[test]
fn a_read_after_a_write_does_not_wait_for_a_heartbeat() {
    let mut waits = Vec::new();
    each_seed(0..5, |seed| {
        let mut story = Story::new(seed);
        for round in 0..20 {
            let name = format!("n{round}");
            story.make(top(US), &name, Kind::File);
            assert!(story.vector.get(US) > Stamp(0));
            let begun = story.world.now();
            let seen = story.sees(node(US, 1 + round % 2), top(US), &name, SOON);
            assert_eq!(seen, Some(true), "seed {seed}, round {round}");
            waits.push(story.world.now().since(begun));
            story.world.run_for(700 * MS);
        }
    });
    waits.sort_unstable();
    let worst = waits.last().copied().unwrap_or_default();
    eprintln!("median {:?}, worst {worst:?}", waits[waits.len() / 2]);
    assert!(worst < 30 * MS, "a way, a flush, and the request's own");
}
