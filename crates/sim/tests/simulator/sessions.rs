//! Sessions of clients in situations that are written out: the nodes have forgotten a session; a
//! message that cancels is given up itself.

use meridian_core::{
    ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, Process, RegionId, Time,
};
use meridian_fs::operation::Changes;
use meridian_fs::{Answer, Ino, Place, Query, Timestamp, Update, Vector};
use meridian_host::api::{Request, RequestBody};
use meridian_host::update::{Change, NOBODY, Payload};
use meridian_host::{Command, ConnectionId, Node, Output as NodeOutput, sessions};
use meridian_session::{CallId, Command as Ask, Due, Message, Mutation, Output, Session};
use meridian_sim::of::files::FilesWorkload;
use meridian_sim::of::files::regions::{setup, topology};
use meridian_sim::{Faults, Owner, Stimulus, World, each_seed};
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);
const US_1: NodeId = NodeId(0);
const EU_1: NodeId = NodeId(1);
const MS: Duration = Duration::from_millis(1);
/// Sessions with one message each: more than a shard remembers.
const OTHERS: u64 = sessions::SHARD_MAX;

/// Another client sends a message in each of many sessions of the same shard.
fn crowd_out(world: &mut World<Node, FilesWorkload>, session: ClientId) {
    for number in 1..=OTHERS {
        let client = sessions::successor(number << 32, session);
        let id = MessageId { client, sequence: 1 };
        let payload = Payload {
            vector: Vector::default(),
            cancels: Vec::new(),
            change: None,
            by: NOBODY,
            keeps: false,
            rights: None,
        };
        let body = RequestBody::Update { group: US, start: payload.into_start(id, 1, &[US]) };
        let connection = ConnectionId(u64::MAX);
        let command = Command::Request { connection, request: Request { id: number, body } };
        let after = Duration::from_micros(100 * number);
        world.inject(Stimulus::Command { to: US_1, command, after });
    }
    world.run_for(MS * 2000);
}

/// Clients do something, are forgotten, and go on; how many updates were refused at first.
fn forgotten(seed: u64, mutation: Mutation) -> usize {
    let topology = topology(1);
    let of = topology.clone();
    let mut setup = setup(&topology, move |me| Node::new(of.clone(), me));
    setup.faults = Faults::none();
    // A repeat may be refused, and nobody knows then what came of the first.
    let workload = FilesWorkload::with_mutation(seed, topology, 3, 30, mutation).calmly();
    let mut world = World::new(seed, setup, workload);
    world.say_nothing();
    assert!(world.run_until(|world| world.owner.is_done(), MS * 60_000));
    let before = world.owner.refused();
    let sessions = world.owner.sessions();
    let of_us = sessions.into_iter().filter(|session| sessions::goes_to(*session, &[US]));
    of_us.for_each(|session| crowd_out(&mut world, session));
    let stimuli = world.owner.go_on(30);
    stimuli.into_iter().for_each(|stimulus| world.inject(stimulus));
    assert!(world.run_until(|world| world.owner.is_done(), MS * 60_000));
    world.owner.refused() - before
}

#[test]
fn who_was_forgotten_learns_the_horizon_and_goes_on() {
    let mut refused = 0;
    each_seed(0..4, |seed| refused += forgotten(seed, Mutation::Correct));
    assert!(refused > 0, "nobody was forgotten");
}

#[test]
fn a_session_that_forgets_the_horizon_is_caught() {
    let run = |seed| forgotten(seed, Mutation::ForgetsHorizon);
    let fails = |seed: &u64| std::panic::catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
    assert!((0..4).any(|seed| fails(&seed)));
}

/// One session, whose requests to some nodes are lost.
struct Scene {
    session: Session,
    cut_off: BTreeSet<NodeId>,
    outputs: Vec<Output>,
    /// Requests for updates that set this mode are held back.
    late_mode: Option<u16>,
    late: Vec<(NodeId, Request)>,
    /// The names of all updates that were sent.
    sent: Vec<MessageId>,
}

impl Scene {
    fn new(session: Session, cut_off: BTreeSet<NodeId>) -> Scene {
        let (outputs, late, sent) = (Vec::new(), Vec::new(), Vec::new());
        Scene { session, cut_off, outputs, late_mode: None, late, sent }
    }

    /// Whether the request is for an update that is held back.
    fn is_late(&mut self, request: &Request) -> bool {
        let RequestBody::Update { start, .. } = &request.body else { return false };
        self.sent.push(start.id);
        let change = Payload::read(start).expect("a session writes it").change;
        let Some(Update::SetAttributes { changes, .. }) = change.map(|change| change.update) else {
            return false;
        };
        self.late_mode.is_some() && changes.mode == self.late_mode
    }

    fn step(&mut self, now: Time, event: Event<Session>) -> Vec<Stimulus<Node>> {
        let mut out = Outbox::new();
        self.session.step(now, event, &mut out);
        let mut stimuli = Vec::new();
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message: Message::Request(request) } => {
                    if self.is_late(&request) {
                        self.late.push((to, request));
                    } else if !self.cut_off.contains(&to) {
                        stimuli.push(arrival(to, request));
                    }
                }
                Effect::Output(output) => self.outputs.push(output),
                Effect::Timer { at, timer: Due } => {
                    stimuli.push(Stimulus::Wake { token: 0, after: at.since(now) });
                }
                other => panic!("a session does not {other:?}"),
            }
        }
        stimuli
    }
}

fn arrival(to: NodeId, request: Request) -> Stimulus<Node> {
    let command = Command::Request { connection: ConnectionId(0), request };
    Stimulus::Command { to, command, after: MS }
}

impl Owner<Node> for Scene {
    fn output(&mut self, from: NodeId, output: NodeOutput, now: Time) -> Vec<Stimulus<Node>> {
        let NodeOutput::Reply { reply, .. } = output else { return Vec::new() };
        self.step(now, Event::Message { from, message: Message::Reply(reply) })
    }

    fn wake(&mut self, _token: u64, now: Time) -> Vec<Stimulus<Node>> {
        self.step(now, Event::Timer(Due))
    }
}

fn command(world: &mut World<Node, Scene>, command: Ask) {
    let now = world.now();
    let stimuli = world.owner.step(now, Event::Command(command));
    stimuli.into_iter().for_each(|stimulus| world.inject(stimulus));
}

/// Asks for an update and waits so long; whether it was answered. If not, it is given up.
fn try_to(world: &mut World<Node, Scene>, call: u64, update: Update, limit: Duration) -> bool {
    let (call, deadline) = (CallId(call), world.now() + limit);
    let change = Change::new(Timestamp::default(), update);
    command(world, Ask::Update { call, change, deadline });
    world.run_until(|world| !world.owner.outputs.is_empty(), limit * 2);
    let output = world.owner.outputs.pop();
    command(world, Ask::Release(call));
    matches!(output, Some(Output::Updated { .. }))
}

fn top(partition: GroupId) -> Place {
    Place { ino: Ino::top(partition), partition }
}

/// Touches the top of `us`.
fn set_mode(mode: u16) -> Update {
    let changes = Changes { mode: Some(mode), ..Changes::default() };
    Update::SetAttributes { inode: top(US), changes }
}

/// A message that cancels reaches one of two groups only, and is given up itself; the next such
/// message reaches the other group before the first group has told it of the former. Seed 0 of
/// trials found that its session's `low` passed it: each such message has a session of its own now.
#[test]
fn a_cancelling_message_that_is_given_up_stops_no_other() {
    let topology = topology(1);
    let of = topology.clone();
    let mut setup = setup(&topology, move |me| Node::new(of.clone(), me));
    setup.faults = Faults::none();
    let session = Session::new(topology, RegionId(0), 1);
    let mut world = World::new(1, setup, Scene::new(session, [US_1, EU_1].into()));
    world.run_for(MS * 3000); // Each group has a primary.
    let touch = || set_mode(0o755);
    let both = || Update::Link { target: top(US), parent: top(EU), name: "name".into() };
    assert!(!try_to(&mut world, 1, both(), MS * 100));
    world.owner.cut_off.remove(&US_1);
    assert!(!try_to(&mut world, 2, touch(), MS * 20), "eu has not cancelled");
    world.owner.cut_off.clear();
    assert!(try_to(&mut world, 3, touch(), MS * 20_000));
    assert!(try_to(&mut world, 4, both(), MS * 1000));
}

/// An update is late on its way for more than a second, so its client goes on in another shard, and
/// gives the late one up. A later update of the same inode is answered; then the late one arrives.
/// The mode that the later one has set is what is left.
fn late_and_given_up(mutation: Mutation) {
    const LATE: u16 = 0o700;
    let topology = topology(1);
    let of = topology.clone();
    let mut setup = setup(&topology, move |me| Node::new(of.clone(), me));
    setup.faults = Faults::none();
    let session = Session::new(topology, RegionId(0), 1).with_mutation(mutation);
    let mut world = World::new(1, setup, Scene::new(session, BTreeSet::new()));
    world.say_nothing();
    world.run_for(MS * 3000); // The group has a primary.
    world.owner.late_mode = Some(LATE);
    let deadline = world.now() + MS * 60_000;
    let change = Change::new(Timestamp::default(), set_mode(LATE));
    command(&mut world, Ask::Update { call: CallId(1), change, deadline });
    world.run_for(MS * 1500);
    let late = world.owner.sent[0].client;
    let other = Update::Renew { client: ClientId(7), partition: US };
    assert!(try_to(&mut world, 2, other, MS * 20_000), "it waits for nothing");
    let beside = world.owner.sent.last().expect("it was sent").client;
    assert_ne!(sessions::shard(late), sessions::shard(beside), "the client takes no detour");
    command(&mut world, Ask::Release(CallId(1)));
    assert!(try_to(&mut world, 3, set_mode(0o755), MS * 20_000));
    for (to, request) in std::mem::take(&mut world.owner.late) {
        world.inject(arrival(to, request));
    }
    world.run_for(MS * 2000);
    let (query, deadline) = (Query::Attributes { inode: top(US) }, world.now() + MS * 5000);
    command(&mut world, Ask::Read { call: CallId(4), query, deadline });
    world.run_until(|world| !world.owner.outputs.is_empty(), MS * 5000);
    let told = world.owner.outputs.pop();
    let Some(Output::Answered { result: Ok(Answer::Attributes(now)), .. }) = told else {
        panic!("{told:?}");
    };
    assert_eq!(now.mode, 0o755, "V3: what was given up took effect after a later update");
}

#[test]
fn a_client_that_goes_on_in_another_shard_keeps_the_order_of_its_updates() {
    late_and_given_up(Mutation::Correct);
}

#[test]
fn a_session_that_takes_no_detour_or_a_wrong_one_is_caught() {
    for bug in [Mutation::NeverDetours, Mutation::DetoursUncancelled] {
        let run = AssertUnwindSafe(|| late_and_given_up(bug));
        assert!(std::panic::catch_unwind(run).is_err(), "nobody noticed {bug:?}");
    }
}
