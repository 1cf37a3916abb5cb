//! One region is cut off: what needs it waits or is refused, and all else goes on as before
//! (thesis, section 4.4.3; decision 11).

use crate::cluster::{Cluster, installs, is_quiet, judge, process, setup_of};
use bytes::Bytes;
use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Process, ProcessId, RegionId,
    Stamp, Time,
};
use meridian_fs::blocks::SHARDS;
use meridian_fs::operation::{NewNode, RenameMode};
use meridian_fs::{
    Answer, CapStep, Done, FsError, Ino, Kind, Place, Query, Timestamp, Update, Vector,
};
use meridian_host::api::{Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_host::replica::CAP_LEASE;
use meridian_host::sessions;
use meridian_host::update::{Change, NOBODY, Payload};
use meridian_host::{Command, ConnectionId, Node, Output};
use meridian_multicast::{Dissemination, Limits, Mutation, Options, Order, Role, Touches};
use meridian_session::{self as session, CallId, Due, Failure, Message};
use meridian_session::{Mutation as InSession, Session};
use meridian_sim::of::files::regions::{are_level, setup, topology};
use meridian_sim::of::multicast::replica::groups_of;
use meridian_sim::of::multicast::trial::{forgotten, with_limits};
use meridian_sim::of::multicast::workload::{Profile, Workload};
use meridian_sim::{Owner, Stimulus, World, each_seed};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

pub const US: GroupId = GroupId(1);
pub const AP: GroupId = GroupId(3);
pub const NODES: usize = 3;
pub const MS: Duration = Duration::from_millis(1);
/// Longer than a round trip between regions and the flushes on the way.
pub const SOON: Duration = Duration::from_millis(200);
/// Longer than any story.
const EVER: Duration = Duration::from_secs(24 * 3600);

/// The connection of the session, and that of questions to nodes of a story's choice.
const OF_SESSION: ConnectionId = ConnectionId(1);
const OF_STORY: ConnectionId = ConnectionId(2);

/// A client's session, which sends its updates; and all answers to other questions, by the number
/// of the request.
pub struct Notes {
    pub session: Session,
    outputs: BTreeMap<CallId, session::Output>,
    answers: BTreeMap<u64, ReplyBody>,
    /// So many requests the session has sent.
    asked: u64,
}

impl Notes {
    fn step(&mut self, now: Time, event: Event<Session>) -> Vec<Stimulus<Node>> {
        let (mut out, mut stimuli) = (Outbox::new(), Vec::new());
        self.session.step(now, event, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message: Message::Request(request) } => {
                    self.asked += 1;
                    let command = Command::Request { connection: OF_SESSION, request };
                    stimuli.push(Stimulus::Command { to, command, after: MS });
                }
                Effect::Output(output) => {
                    drop(self.outputs.insert(output.call().expect("it keeps nothing"), output))
                }
                Effect::Timer { at, timer: Due } => {
                    stimuli.push(Stimulus::Wake { token: 0, after: at.since(now) });
                }
                other => panic!("a session does not {other:?}"),
            }
        }
        stimuli
    }
}

impl Owner<Node> for Notes {
    fn output(&mut self, from: NodeId, output: Output, now: Time) -> Vec<Stimulus<Node>> {
        let Output::Reply { connection, reply } = output else { return Vec::new() };
        if connection == OF_SESSION {
            return self.step(now, Event::Message { from, message: Message::Reply(reply) });
        }
        let Reply { id, body } = reply;
        self.answers.entry(id).or_insert(body);
        Vec::new()
    }

    fn wake(&mut self, _token: u64, now: Time) -> Vec<Stimulus<Node>> {
        self.step(now, Event::Timer(Due))
    }
}

/// One client of a cluster in `us`: its session sends updates, and it asks nodes of its choice.
pub struct Story {
    pub world: World<Node, Notes>,
    vector: Vector,
    requests: u64,
}

impl Story {
    fn new(seed: u64) -> Story {
        Story::with(seed, Limits::default(), InSession::Correct)
    }

    fn with(seed: u64, limits: Limits, bug: InSession) -> Story {
        Story::of(seed, bug, move |node| node.with_limits(limits))
    }

    /// With nodes of which `with` makes something.
    pub fn of(seed: u64, bug: InSession, with: impl Fn(Node) -> Node + 'static) -> Story {
        let topology = topology(NODES);
        let of = topology.clone();
        let setup = setup(&topology, move |me| with(Node::new(of.clone(), me)));
        let session = Session::new(topology, RegionId(0), seed).with_mutation(bug);
        let (outputs, answers, asked) = (BTreeMap::new(), BTreeMap::new(), 0);
        let mut world = World::new(seed, setup, Notes { session, outputs, answers, asked });
        world.run_for(3000 * MS); // Each group has a primary.
        Story { world, vector: Vector::default(), requests: 0 }
    }

    pub fn ask(&mut self, to: NodeId, body: RequestBody) -> u64 {
        self.requests += 1;
        let request = Request { id: self.requests, body };
        let command = Command::Request { connection: OF_STORY, request };
        self.world.inject(Stimulus::Command { to, command, after: MS });
        self.requests
    }

    /// Asks the session for something.
    fn command(&mut self, command: session::Command) {
        let now = self.world.now();
        let stimuli = self.world.owner.step(now, Event::Command(command));
        stimuli.into_iter().for_each(|stimulus| self.world.inject(stimulus));
    }

    /// Begins an update, which is never given up.
    pub fn send(&mut self, update: Update) -> CallId {
        self.requests += 1;
        let (call, deadline) = (CallId(self.requests), self.world.now() + EVER);
        let change = Change::new(Timestamp::default(), update);
        self.command(session::Command::Update { call, change, deadline });
        call
    }

    /// What a node answers, within `limit`.
    pub fn wait(&mut self, number: u64, limit: Duration) -> Option<ReplyBody> {
        self.world.run_until(|world| world.owner.answers.contains_key(&number), limit);
        let body = self.world.owner.answers.get(&number).cloned()?;
        if let ReplyBody::Answer { vector, .. } = &body {
            self.vector.merge(vector);
        }
        Some(body)
    }

    /// A holder says something, in a session of its own.
    fn step(&mut self, client: ClientId, step: CapStep) -> u64 {
        self.update(client, Update::Caps { client, partition: US, step })
    }

    /// A holder begins an update of us.
    fn update(&mut self, by: ClientId, update: Update) -> u64 {
        let shard = (self.requests % u64::from(SHARDS)) as u8;
        let session = sessions::in_shard(self.requests << 32, shard, &[US]);
        let id = MessageId { client: session, sequence: 1 };
        let payload = Payload::new(Vector::default(), Timestamp::default(), update);
        let start = Payload { by, ..payload }.into_start(id, 1, &[US]);
        self.ask(node(US, 0), RequestBody::Update { group: US, start })
    }

    /// What came of that, within `limit`.
    fn stepped(&mut self, number: u64, limit: Duration) -> Option<Result<Done, FsError>> {
        match self.wait(number, limit)? {
            ReplyBody::Updated { result, .. } => Some(result),
            other => panic!("{other:?}"),
        }
    }

    /// What the session tells of an update, within `limit`.
    pub fn told(&mut self, call: CallId, limit: Duration) -> Option<session::Output> {
        self.world.run_until(|world| world.owner.outputs.contains_key(&call), limit);
        self.vector.merge(self.world.owner.session.vector());
        self.world.owner.outputs.remove(&call)
    }

    /// What came of an update, within `limit`. One whose region is out of reach is sent again.
    fn done(&mut self, call: CallId, limit: Duration) -> Option<Result<Done, FsError>> {
        let end = self.world.now() + limit;
        loop {
            match self.told(call, end.since(self.world.now())) {
                Some(session::Output::Updated { result, .. }) => return Some(result),
                Some(session::Output::GaveUp { failure: Failure::OutOfReach { .. }, .. }) => {
                    let deadline = self.world.now() + EVER;
                    self.command(session::Command::Again { call, deadline });
                }
                Some(other) => panic!("{other:?}"),
                None => return None,
            }
        }
    }

    pub fn make(&mut self, parent: Place, name: &str, kind: Kind) -> Place {
        let number = self.send(create(parent, name, kind));
        match self.done(number, SOON) {
            Some(Ok(Done::Attributes(made))) => made.place,
            other => panic!("{name}: {other:?}"),
        }
    }

    /// The nodes of `ap` and the others hear nothing of each other.
    fn cut_ap_off(&mut self) {
        let ap: Vec<_> = (0..NODES).map(|n| node(AP, n)).collect();
        let rest: Vec<_> = (0..6).map(NodeId).collect();
        self.world.cut(&ap, &rest, true);
    }

    /// Until it is delivered at the first node of `us`; there it waits for `ap`'s vote.
    fn wait_for_the_vote(&mut self) {
        let waits = |world: &World<Node, Notes>| {
            let replica = world.process(node(US, 0)).unwrap().replica(US).unwrap();
            !replica.partition().waiting().is_empty()
        };
        let waits = self.world.run_until(waits, SOON);
        assert!(waits, "seed {}: the vote came first", self.world.seed());
    }

    /// A rename of a file to `ap`, which is cut off: before anything of it is heard there, or when
    /// only `ap`'s vote is missing. The directory that the file is in, another one, and the
    /// request.
    fn rename_across_a_cut(&mut self, lacks_its_vote: bool) -> (Place, Place, CallId) {
        let away = self.make(top(US), "away", Kind::Directory);
        let here = self.make(top(US), "here", Kind::Directory);
        let file = self.make(away, "f", Kind::File);
        if !lacks_its_vote {
            self.cut_ap_off();
        }
        let rename = self.send(take_away(away, file));
        if lacks_its_vote {
            self.wait_for_the_vote();
            self.cut_ap_off();
        }
        (away, here, rename)
    }

    fn look(&mut self, at: NodeId, parent: Place, name: &str) -> u64 {
        let query = Query::Lookup { parent, name: Bytes::copy_from_slice(name.as_bytes()) };
        self.ask(at, RequestBody::Read { vector: self.vector.clone(), by: NOBODY, query })
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
    are_level(world, US, (0..NODES).map(|n| node(US, n)))
}

pub fn node(group: GroupId, n: usize) -> NodeId {
    NodeId((group.0 - 1) * NODES as u16 + n as u16)
}

pub fn top(group: GroupId) -> Place {
    Place { ino: Ino::top(group), partition: group }
}

fn create(parent: Place, name: &str, kind: Kind) -> Update {
    let node = NewNode::new(kind, 0o755);
    Update::Create { parent, name: Bytes::copy_from_slice(name.as_bytes()), node }
}

/// The file `f` of a directory becomes one of `ap`'s top.
pub fn take_away(from: Place, moved: Place) -> Update {
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
        whiteout: None,
    }
}

/// A rename from `us` to `ap` that `ap` never hears of touches one directory of `us`. Others go on,
/// at all nodes and as fast as ever; who asks for that directory waits.
#[test]
fn an_undecided_rename_holds_up_only_what_it_touches() {
    each_seed(0..10, |seed| undecided_rename(seed, InSession::Correct));
}

/// What waits for the rename holds up its shard.
#[test]
fn a_client_that_never_takes_another_shard_is_caught() {
    let run = AssertUnwindSafe(|| undecided_rename(0, InSession::NeverDetours));
    assert!(std::panic::catch_unwind(run).is_err());
}

fn undecided_rename(seed: u64, bug: InSession) {
    let mut story = Story::with(seed, Limits::default(), bug);
    let away = story.make(top(US), "away", Kind::Directory);
    let here = story.make(top(US), "here", Kind::Directory);
    let file = story.make(away, "f", Kind::File);
    story.cut_ap_off();
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
    assert_eq!(story.sees(node(US, 1), away, "g", SOON), Some(false), "not yet");
    let looks = (0..NODES).map(|n| story.look(node(US, n), away, "f")).collect::<Vec<_>>();
    assert_eq!(story.wait(looks[1], SOON), None, "nobody knows yet");
    // Later, all that goes to the region is refused, so that it holds up nothing.
    story.world.run_for(5000 * MS);
    let other = story.send(take_away(here, file));
    let refused = story.told(other, SOON);
    let Some(session::Output::GaveUp { failure, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(failure, Failure::OutOfReach { group: AP });
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
}

/// However many updates of one client wait for the rename, what touches nothing of it goes on.
#[test]
fn what_waits_for_an_undecided_rename_waits_in_one_shard() {
    each_seed(0..10, |seed| crowd_behind_a_rename(seed, InSession::Correct));
}

/// Each that waits holds up its shard, and there are 64.
#[test]
fn a_client_that_spreads_what_waits_over_shards_is_caught() {
    let run = AssertUnwindSafe(|| crowd_behind_a_rename(0, InSession::DetoursAlways));
    assert!(std::panic::catch_unwind(run).is_err());
}

fn crowd_behind_a_rename(seed: u64, bug: InSession) {
    let mut story = Story::with(seed, Limits::default(), bug);
    let (away, here, rename) = story.rename_across_a_cut(false);
    let mut crowd = vec![story.send(create(away, "g", Kind::File))];
    story.world.run_for(1500 * MS);
    for number in 0..100 {
        crowd.push(story.send(create(away, &format!("behind-{number}"), Kind::File)));
        story.make(here, &number.to_string(), Kind::File);
    }
    story.world.heal();
    assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
    for behind in crowd {
        assert!(matches!(story.done(behind, 5000 * MS), Some(Ok(_))));
    }
    assert!(story.world.run_until(us_is_equal, 5000 * MS));
}

/// What waits for a rename to a region that is cut off for long stops nothing else, also while
/// partitions raise their horizons of blocks.
#[test]
fn a_long_cut_stops_nothing_else() {
    each_seed(0..3, |seed| {
        let mut story = Story::new(seed);
        let (away, here, rename) = story.rename_across_a_cut(false);
        let beside = story.send(create(away, "g", Kind::File));
        for minute in 0..75 {
            story.world.run_for(60_000 * MS);
            story.make(here, &minute.to_string(), Kind::File);
        }
        let horizon = |n| {
            let replica = story.world.process(node(US, n)).unwrap().replica(US).unwrap();
            (0..SHARDS).filter(|shard| replica.partition().horizon_ms(*shard) > 0).count()
        };
        let raised = usize::from(SHARDS) - 2..usize::from(SHARDS);
        assert!((0..NODES).all(|n| raised.contains(&horizon(n))), "all but those that wait");
        story.world.heal();
        assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
        assert!(matches!(story.done(beside, SOON), Some(Ok(_))));
        let is_raised = |world: &World<Node, Notes>| {
            let replica = world.process(node(US, 1)).unwrap().replica(US).unwrap();
            replica.partition().least_horizon_ms() > 0
        };
        assert!(story.world.run_until(is_raised, 5000 * MS), "a shard never goes on");
    });
}

/// A holder asks for a directory that a rename waits in for `ap`. It keeps nobody from another
/// directory that it holds: it lets that go as ever, and if it is dead its lease ends as ever.
#[test]
fn a_grant_that_waits_delays_no_release_and_no_expiry() {
    for lacks_its_vote in [false, true] {
        each_seed(0..10, |seed| {
            let mut story = Story::new(seed);
            let held = [(ClientId(77), "one"), (ClientId(78), "other")].map(|(holder, name)| {
                let directory = story.make(top(US), name, Kind::Directory);
                let begun = story.step(holder, CapStep::Renew);
                assert_eq!(story.stepped(begun, SOON), Some(Ok(Done::Nothing)));
                let granted = story.step(holder, CapStep::Grant(vec![directory.ino]));
                let given = Some(Ok(Done::Granted(vec![directory.ino])));
                assert_eq!(story.stepped(granted, SOON), given);
                (holder, directory)
            });
            let (away, _, rename) = story.rename_across_a_cut(lacks_its_vote);
            let waits = held.map(|(of, _)| story.step(of, CapStep::Grant(vec![away.ino])));
            let made = held.map(|(_, directory)| story.send(create(directory, "f", Kind::File)));
            assert!(made.iter().all(|made| story.done(*made, SOON).is_none()), "others hold it");
            let (holder, directory) = held[0];
            let released = story.step(holder, CapStep::Release(vec![directory.ino]));
            assert_eq!(story.stepped(released, SOON), Some(Ok(Done::Nothing)));
            assert!(matches!(story.done(made[0], SOON), Some(Ok(_))), "it has let go");
            assert!(matches!(story.done(made[1], CAP_LEASE * 2), Some(Ok(_))), "its lease ends");
            assert!(waits.iter().all(|wait| story.wait(*wait, MS).is_none()), "nobody knows yet");
            story.world.heal();
            assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
            for wait in waits {
                let given = Some(Ok(Done::Granted(vec![away.ino])));
                assert_eq!(story.stepped(wait, SOON), given);
            }
        });
    }
}

/// A look waits for a holder, and before that one is asked to let go, what was given up must be
/// cancelled, also in the region that is cut off. The session asks for that in a loop of its own.
#[test]
fn what_a_session_needs_of_a_region_that_is_cut_off_is_asked_for_with_pauses() {
    each_seed(0..5, |seed| asks_for_a_holder(seed, InSession::Correct));
}

#[test]
fn a_session_that_asks_again_at_once_is_caught() {
    let run = AssertUnwindSafe(|| asks_for_a_holder(0, InSession::RepeatsAtOnce));
    assert!(std::panic::catch_unwind(run).is_err());
}

fn asks_for_a_holder(seed: u64, bug: InSession) {
    let (mut story, holder) = (Story::with(seed, Limits::default(), bug), ClientId(77));
    let (_, _, rename) = story.rename_across_a_cut(false);
    // The session holds what it makes itself, and would have to be waited for.
    let make = |story: &mut Story, update| {
        let made = story.update(holder, update);
        let Some(Ok(Done::Attributes(made))) = story.stepped(made, SOON) else { panic!("none") };
        made.place
    };
    let here = make(&mut story, create(top(US), "alone", Kind::Directory));
    let file = make(&mut story, create(here, "f", Kind::File));
    story.world.run_for(5000 * MS); // From now on all that goes to the region is refused.
    let other = story.send(take_away(here, file));
    let refused = story.told(other, SOON);
    assert!(matches!(refused, Some(session::Output::GaveUp { .. })), "{refused:?}");
    story.command(session::Command::Release(other));
    let alone = vec![here.ino];
    let steps = [CapStep::Grant(alone.clone()), CapStep::GrantExclusive(alone.clone())];
    for step in [CapStep::Renew].into_iter().chain(steps) {
        let expected = match step {
            CapStep::Renew => Done::Nothing,
            _ => Done::Granted(alone.clone()),
        };
        let held = story.step(holder, step);
        assert_eq!(story.stepped(held, SOON), Some(Ok(expected)));
    }
    story.requests += 1;
    let (call, deadline) = (CallId(story.requests), story.world.now() + EVER);
    let query = Query::Lookup { parent: here, name: "f".into() };
    let before = story.world.owner.asked;
    story.command(session::Command::Read { call, query, deadline });
    let told = story.told(call, 4000 * MS);
    assert!(told.is_none(), "it is held: {told:?}");
    let asked = story.world.owner.asked - before;
    assert!((4..=60).contains(&asked), "asked {asked} times in four seconds");
    story.world.heal();
    assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
    let told = story.told(call, CAP_LEASE * 2);
    assert!(matches!(told, Some(session::Output::Answered { .. })), "{told:?}");
}

/// A step that asks for many would wait for what any of them waits for, and who changes the others
/// for it. So it is refused while something of that is under way.
#[test]
fn many_are_not_given_in_one_step_while_one_of_them_waits() {
    for lacks_its_vote in [false, true] {
        each_seed(0..10, |seed| {
            let (mut story, holder) = (Story::new(seed), ClientId(77));
            let directory = story.make(top(US), "one", Kind::Directory);
            let begun = story.step(holder, CapStep::Renew);
            assert_eq!(story.stepped(begun, SOON), Some(Ok(Done::Nothing)));
            let (away, _, rename) = story.rename_across_a_cut(lacks_its_vote);
            story.world.run_for(500 * MS); // Until all nodes have it.
            let both = vec![directory.ino, away.ino];
            let asked = story.step(holder, CapStep::Grant(both.clone()));
            let refused = story.wait(asked, SOON);
            assert!(matches!(refused, Some(ReplyBody::Refused(_))), "{refused:?}");
            let made = story.send(create(directory, "f", Kind::File));
            assert!(matches!(story.done(made, SOON), Some(Ok(_))), "it waits for nothing");
            story.world.heal();
            assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
            let given = (0..20).find_map(|_| {
                story.world.run_for(100 * MS); // Until all of it is done at that node, too.
                let asked = story.step(holder, CapStep::Grant(both.clone()));
                story.wait(asked, SOON).filter(|body| !matches!(body, ReplyBody::Refused(_)))
            });
            let Some(ReplyBody::Updated { result, .. }) = given else { panic!("{given:?}") };
            assert_eq!(result, Ok(Done::Granted(both)));
        });
    }
}

/// What is moved away is a name of the region's top directory, which all paths lead through: other
/// names are found, and may be entered, whatever becomes of it.
#[test]
fn an_undecided_rename_at_the_top_hides_no_other_name() {
    for lacks_its_vote in [false, true] {
        each_seed(0..10, |seed| {
            let mut story = Story::new(seed);
            let here = story.make(top(US), "here", Kind::Directory);
            let file = story.make(top(US), "f", Kind::File);
            if !lacks_its_vote {
                story.cut_ap_off();
            }
            let rename = story.send(take_away(top(US), file));
            if lacks_its_vote {
                story.wait_for_the_vote();
                story.cut_ap_off();
            }
            assert_eq!(story.done(rename, SOON), None);
            story.make(here, "later", Kind::File); // Whoever sees this must see the rename, if it is.
            for n in 0..if lacks_its_vote { 1 } else { NODES } {
                assert_eq!(story.sees(node(US, n), top(US), "here", SOON), Some(true));
                assert_eq!(story.sees(node(US, n), top(US), "nothing", SOON), Some(false));
                assert_eq!(story.sees(node(US, n), top(US), "f", SOON), None, "nobody knows");
                let query = Query::Attributes { inode: top(US) };
                let body = RequestBody::Read { vector: story.vector.clone(), by: NOBODY, query };
                let asked = story.ask(node(US, n), body);
                match story.wait(asked, 800 * MS) {
                    Some(ReplyBody::Answer { result: Ok(Answer::Attributes(top)), .. }) => {
                        assert_eq!(top.kind, Kind::Directory);
                    }
                    other => panic!("node {n}: {other:?}"),
                }
            }
            story.world.heal();
            assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
            assert_eq!(story.sees(node(US, 1), top(US), "f", SOON), Some(false));
            assert!(story.world.run_until(us_is_equal, 5000 * MS));
        });
    }
}

/// A client gives up long before: what it asked leaves the node though its connection stays.
#[test]
fn a_read_that_cannot_be_answered_is_refused_in_the_end() {
    let mut story = Story::new(0);
    let (away, here, _) = story.rename_across_a_cut(false);
    story.make(here, "later", Kind::File);
    let look = story.look(node(US, 0), away, "f");
    assert_eq!(story.wait(look, 5000 * MS), None);
    let told = story.wait(look, 10_000 * MS);
    assert_eq!(told, Some(ReplyBody::Refused(Refusal::Overloaded)));
}

/// A message is final, and one of its partitions is cut off before it votes: that holds up what it
/// touches, at the node that lacks the vote, and nothing else.
#[test]
fn a_missing_vote_holds_up_only_what_it_touches() {
    each_seed(0..10, |seed| {
        let mut story = Story::new(seed);
        let away = story.make(top(US), "away", Kind::Directory);
        let here = story.make(top(US), "here", Kind::Directory);
        let file = story.make(away, "f", Kind::File);
        let rename = story.send(take_away(away, file));
        story.wait_for_the_vote();
        story.cut_ap_off();
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

/// What a client has seen at one node it sees at another as soon as that has delivered it: a group
/// without other traffic shows its clocks in time, and nobody waits for a heartbeat.
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

/// How many entries each node of `us` keeps of its region's, at most.
fn us_keeps(world: &World<Node, Notes>) -> (usize, usize) {
    let of = |n| world.process(node(US, n)).unwrap().replica(US).unwrap().multicast.log_entries();
    (0..NODES).map(of).fold((0, 0), |all, one| (all.0.max(one.0), all.1.max(one.1)))
}

/// Reads of what an undecided message does not touch, at a node that starts while it waits; what
/// others acknowledged before is there.
fn a_restarted_node_answers(story: &mut Story, away: Place, here: Place) {
    let restarts = node(US, 1);
    story.world.crash(restarts);
    story.make(here, "meanwhile", Kind::File);
    story.vector = Vector::default(); // A client that has seen nothing.
    story.world.restart(restarts);
    assert_eq!(story.sees(restarts, here, "meanwhile", 5000 * MS), Some(true));
    assert_eq!(story.sees(restarts, here, "nothing", SOON), Some(false));
    story.vector = Vector::default();
    let look = story.look(restarts, away, "f");
    assert_eq!(
        story.wait(look, SOON),
        None,
        "the rename may have been acknowledged in the other region"
    );
    story.world.heal();
    let told = story.wait(look, 5000 * MS);
    assert!(matches!(told, Some(ReplyBody::Answer { .. })), "{told:?}");
}

/// A rename to a region that is cut off is undecided, or delivered and lacks a vote. A node that
/// starts meanwhile answers what does not concern it.
#[test]
fn a_node_that_starts_while_a_region_is_cut_off_answers_reads() {
    for lacks_its_vote in [false, true] {
        each_seed(0..10, |seed| {
            let mut story = Story::new(seed);
            let (away, here, rename) = story.rename_across_a_cut(lacks_its_vote);
            assert_eq!(story.done(rename, SOON), None);
            a_restarted_node_answers(&mut story, away, here);
            assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
            assert!(story.world.run_until(us_is_equal, 5000 * MS));
        });
    }
}

/// While a region is cut off for long, and a message to it is undecided or lacks its vote, the log
/// of another region stays short; and in the end nothing is kept.
#[test]
fn the_log_stays_short_while_a_region_is_cut_off() {
    let limits = Limits { entries: 10, ..Limits::default() };
    for lacks_its_vote in [false, true] {
        each_seed(0..3, |seed| {
            let mut story = Story::with(seed, limits, InSession::Correct);
            let (_, here, rename) = story.rename_across_a_cut(lacks_its_vote);
            let mut most = (0, 0);
            for n in 0..100 {
                story.make(here, &format!("n{n}"), Kind::File);
                story.world.run_for(100 * MS);
                let keeps = us_keeps(&story.world);
                most = (most.0.max(keeps.0), most.1.max(keeps.1));
            }
            // Those of the last seconds, of which few are aside, and the one that waits.
            assert!(most.0 < 40 && (1..20).contains(&most.1), "seed {seed}: {most:?}");
            story.world.run_for(3000 * MS);
            assert_eq!(us_keeps(&story.world).1, 1);
            assert_eq!(story.done(rename, SOON), None);
            story.world.heal();
            assert_eq!(story.done(rename, 5000 * MS), Some(Ok(Done::Nothing)));
            assert!(story.world.run_until(us_is_equal, 5000 * MS));
            let empty = |world: &World<Node, Notes>| us_keeps(world) == (0, 0);
            assert!(story.world.run_until(empty, 20_000 * MS), "{:?}", us_keeps(&story.world));
        });
    }
}

fn primary(world: &Cluster, group: u16) -> ProcessId {
    let mut processes = world.processes().filter(|(peer, _)| peer.group == GroupId(group));
    let primary = processes.find(|(_, process)| process.multicast.role() == Role::Primary);
    primary.expect("the group has a primary").0
}

/// Multicasts message `n`, which touches `key`, through the primaries of the groups.
fn multicast(world: &mut Cluster, n: u64, key: u64, dest: &[u16]) {
    let (now, id) = (world.now(), MessageId { client: ClientId(77), sequence: n });
    let start = world.owner.multicast_touching(id, dest, Touches::keys([key]), now);
    for group in dest.iter().filter(|group| **group < 2) {
        let to = primary(world, *group);
        let command = meridian_multicast::Command::Start(start.clone());
        world.inject(Stimulus::Command { to, command, after: MS });
    }
}

/// Two of three groups, which the third was cut off from.
fn two_go_on(options: Options) -> Cluster {
    let limits = Limits { entries: 20, exceptions: 8, ..Limits::default() };
    let sizes = [3, 3, 3];
    let profile = Profile { clients: 0, keys: 1, ..Profile::default() };
    let mut workload = Workload::new(0, groups_of(&sizes), profile);
    workload.order = options.order;
    let setup = with_limits(setup_of(&sizes, options, Mutation::Correct, None), limits);
    let mut world = World::new(0, setup, workload);
    world.run_for(8000 * MS);
    let of = |group: u16| (0..3).map(move |n| process(group, n));
    let rest: Vec<_> = of(0).chain(of(1)).collect();
    world.cut(&of(2).collect::<Vec<_>>(), &rest, true);
    for (n, dest) in (1..).zip([&[0, 2][..], &[0, 1, 2], &[1, 2], &[0, 2]]) {
        multicast(&mut world, n, 0, dest);
    }
    world
}

/// A group is cut off for long, with messages to it under way. The others order far more than their
/// logs hold, though a follower restarts and a primary is replaced meanwhile; after the mend all is
/// delivered and nothing kept.
#[test]
fn the_logs_of_the_others_stay_short_while_a_group_is_cut_off() {
    let orders = [Order::Sequential, Order::Linearizable];
    let all = orders.into_iter().flat_map(|order| {
        let with = move |dissemination| Options { order, dissemination, ..Options::default() };
        [Dissemination::AllToAll, Dissemination::ViaLeader].map(with)
    });
    for options in all {
        let mut world = two_go_on(options);
        let (mut most, mut bytes) = ((0, 0), 0);
        let dests = [&[0][..], &[1], &[0, 1]];
        for n in 0..600 {
            multicast(&mut world, 10 + n, 1 + n % 5, dests[(n % 3) as usize]);
            world.run_for(50 * MS);
            for (_, process) in world.processes().filter(|(peer, _)| peer.group.0 < 2) {
                let (held, aside) = process.multicast.log_entries();
                most = (most.0.max(held), most.1.max(aside));
                bytes = bytes.max(process.multicast.log_bytes());
            }
            if n % 100 == 90 {
                // A restart begins with what the last one held, and what came after it.
                (0..3).for_each(|n| world.checkpoint(process(0, n)));
            }
            match n {
                200 => world.crash(process(0, 2)),
                300 => world.restart(process(0, 2)),
                400 => {
                    let first = primary(&world, 0);
                    world.crash(first);
                    let next = |world: &Cluster| {
                        world.processes().any(|(peer, process)| {
                            peer.group.0 == 0 && process.multicast.role() == Role::Primary
                        })
                    };
                    assert!(world.run_until(next, 10_000 * MS));
                    world.restart(first);
                }
                _ => {}
            }
        }
        // What is ordered in two seconds; the messages that wait, and what is delivered and not
        // told of yet.
        assert!(most.0 < 150 && (3..100).contains(&most.1), "{most:?}, {options:?}");
        assert!(bytes < 200 * 200, "{bytes} bytes");
        // Where primaries speak what was dropped was still on its way to it.
        let lacked = installs(&world) > 0 || options.dissemination == Dissemination::ViaLeader;
        assert!(lacked, "who restarted lacked what was dropped");
        world.run_for(3000 * MS);
        let waits =
            |n: u16| world.process(process(0, n)).map(|process| process.multicast.pending());
        assert!((0..3).all(|n| waits(n) == Some(3)), "{options:?}: of group 0");
        world.heal();
        assert!(world.run_until(is_quiet, 20_000 * MS), "{options:?}");
        judge(&world);
        if let Err(what) = forgotten(&mut world) {
            world.fail(&what);
        }
    }
}
