//! State machine replication: written scenarios, each of a bug that the random trials have found.

use meridian_core::{ClientId, NodeId, ProcessId};
use meridian_paxos::{
    ALPHA, Answer, Change, Command, Consistency, Kind, Leases, Mutation, Options, Recovery,
    Request, Stopped, change_payload,
};
use meridian_sim::of::paxos::clients::process;
use meridian_sim::of::paxos::service::{Action, Call, register_of};
use meridian_sim::of::paxos::trial::{Drawn, Stage, configuration};
use meridian_sim::of::paxos::{Cluster, Trial};
use meridian_sim::{Detail, Stimulus};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn options(recovery: Recovery) -> Options {
    Options {
        recovery,
        heartbeat: 30 * MS,
        suspect_after: 150 * MS,
        retransmit: 60 * MS,
        leases: Leases::Off,
        snapshot_bytes_min: 1 << 20,
        ..Options::default()
    }
}

/// A stage on which all is asked by hand.
struct Scene {
    stage: Stage,
    /// The last request of each client.
    asked: u64,
}

impl Scene {
    /// So many replicas with a leader.
    fn new(replicas: u16, options: Options) -> Scene {
        Scene::planted(replicas, options, Mutation::Correct)
    }

    /// The same, with a planted bug.
    fn planted(replicas: u16, options: Options, mutation: Mutation) -> Scene {
        let drawn = Drawn::calm(replicas, options);
        let trial = Trial { mutation, ..Trial::default() };
        let stage = Stage::new(&trial, 0, &drawn, Detail::default());
        let mut scene = Scene { stage, asked: 0 };
        scene.until("somebody leads", |world| leader(world).is_some());
        scene
    }

    fn world(&mut self) -> &mut Cluster {
        &mut self.stage.world
    }

    fn until(&mut self, what: &str, wanted: impl Fn(&Cluster) -> bool) {
        if !self.world().run_until(wanted, 20 * SECOND) {
            panic!("{what}: {}", meridian_sim::of::paxos::trial::describe(self.world()));
        }
    }

    fn ask(&mut self, to: u16, kind: Kind, payload: bytes::Bytes) {
        let (client, sequence) = (ClientId(1 << 40), self.asked);
        let command = Command::Request(Request { client, sequence, kind, payload });
        self.world().inject(Stimulus::Command { to: node(to), command, after: MS });
    }

    /// A request that is executed at `to`.
    fn request(&mut self, to: u16) {
        self.asked += 1;
        let operation = self.asked;
        let ask = Call { operation, key: 0, action: Action::Add(1), padding: vec![0; 50] };
        self.ask(to, Kind::Execute, ask.bytes());
        self.until("a request is executed", |world| {
            at(world, to).is_some_and(|replica| replica.service().has_executed(operation))
        });
    }

    /// A change of the members, that `to` executes; these are the members then.
    fn change(&mut self, to: u16, change: Change, members: &[u16]) {
        self.asked += 1;
        self.ask(to, Kind::Reconfigure, change_payload(&change));
        let members = configuration(&members.iter().copied().map(NodeId).collect::<Vec<_>>());
        *self.stage.operator.known.borrow_mut() = members.clone();
        self.until("the members change", |world| {
            at(world, to).is_some_and(|replica| replica.status().members == members)
        });
    }

    fn enter(&mut self, new: u16) {
        self.stage.operator.known.borrow_mut().members.remove(&NodeId(new));
        self.world().enter(node(new));
    }

    fn replace(&mut self, to: u16, old: u16, new: u16, members: &[u16]) {
        self.enter(new);
        let (old, new, address) = (NodeId(old), NodeId(new), format!("a{new}"));
        self.change(to, Change::Replace { old, new, address }, members);
    }

    /// All of these take part and are equal.
    fn until_level(&mut self, nodes: &[u16]) {
        let nodes = nodes.to_vec();
        self.until("all are level", move |world| {
            let state = |node: &u16| {
                let replica = at(world, *node).filter(|replica| replica.status().active)?;
                Some((replica.status().executed, replica.digest()))
            };
            let states: Vec<_> = nodes.iter().map(state).collect();
            states.iter().all(|state| state.is_some() && *state == states[0])
        });
    }
}

fn node(node: u16) -> ProcessId {
    process(NodeId(node))
}

fn at(
    world: &Cluster,
    of: u16,
) -> Option<&meridian_paxos::Paxos<meridian_sim::of::paxos::service::Registers>> {
    world.process(node(of)).map(|replica| &replica.inner)
}

fn leader(world: &Cluster) -> Option<u16> {
    let mut leaders = world.processes().filter(|(_, replica)| replica.inner.is_leading());
    leaders.next().map(|(peer, _)| peer.node.0)
}

fn stopped(world: &Cluster, of: u16) -> Option<Stopped> {
    at(world, of)?.status().stopped
}

/// The limit of the log is below what lies between two snapshots: the service must be told that one
/// is needed, and the log be cut at the last.
#[test]
fn a_log_that_is_full_is_cut() {
    let base = options(Recovery::FullSs);
    let options = Options { snapshot_bytes_min: 5000, log_bytes_max: 6000, ..base };
    let mut scene = Scene::new(3, options);
    let leader = leader(scene.world()).expect("there is one");
    for _ in 0..200 {
        // Who is full takes nothing: the client asks again.
        scene.until("there is room", |world| at(world, leader).is_some_and(|r| !r.is_full()));
        scene.request(leader);
    }
    scene.until_level(&[0, 1, 2]);
}

/// It is told who the members are now, not who they were when instance 0 was decided.
#[test]
fn who_comes_later_does_not_judge_the_past_by_the_members_of_now() {
    for recovery in Recovery::ALL {
        let mut scene = Scene::new(3, options(recovery));
        scene.request(0);
        scene.replace(0, 2, 10, &[0, 1, 10]);
        scene.replace(0, 1, 11, &[0, 10, 11]);
        scene.until_level(&[0, 10, 11]);
        scene.request(0);
        scene.until_level(&[0, 10, 11]);
    }
}

/// A checkpoint of a replica that has nothing yet must not stand for a state.
#[test]
fn who_comes_later_and_crashes_before_it_has_anything_still_has_nothing() {
    let mut scene = Scene::new(3, options(Recovery::FullSs));
    scene.request(0);
    scene.replace(0, 2, 10, &[0, 1, 10]);
    let cut = scene.world().cut(&[node(11)], &[node(0), node(1), node(10)], true);
    scene.replace(0, 1, 11, &[0, 10, 11]);
    scene.world().checkpoint(node(11));
    scene.world().run_for(200 * MS);
    scene.world().crash(node(11));
    scene.world().restart(node(11));
    scene.world().mend_cut(cut);
    scene.until_level(&[0, 10, 11]);
}

/// Once it has said that it takes part it is a member like others, and finds on its disk who the
/// members were.
#[test]
fn who_has_joined_and_crashes_finds_what_it_joined_with() {
    let mut scene = Scene::new(3, options(Recovery::FullSs));
    scene.world().keep_at_crashes(meridian_sim::Unflushed::Lost);
    scene.request(0);
    scene.replace(0, 2, 10, &[0, 1, 10]);
    scene.until("10 takes part", |world| at(world, 10).is_some_and(|r| r.status().active));
    scene.until("10 has said so", |world| world.owner.begun.borrow().contains(&node(10)));
    scene.world().crash(node(10));
    scene.world().restart(node(10));
    scene.until_level(&[0, 1, 10]);
}

/// The last to know what was decided is a leader that was removed by it.
#[test]
fn who_is_removed_does_not_take_decisions_along() {
    for recovery in Recovery::ALL {
        let mut scene = Scene::new(5, options(recovery));
        let first = leader(scene.world()).expect("there is one");
        assert_eq!(first, 0);
        scene.request(0);
        scene.until_level(&[0, 1, 2, 3, 4]);
        scene.world().crash(node(3));
        scene.world().crash(node(4));
        // Each hears the leader and him alone, and so decides nothing that he does not tell.
        let cut = scene.world().cut(&[node(1)], &[node(2)], true);
        scene.replace(0, 0, 10, &[1, 2, 3, 4, 10]);
        scene.until("0 is removed", |world| stopped(world, 0) == Some(Stopped::Removed));
        scene.world().mend_cut(cut);
        scene.until("a new leader", |world| leader(world).is_some_and(|leader| leader != 0));
        scene.until_level(&[1, 2, 10]);
    }
}

/// It forgets neither at a restart, nor serves on as one that comes later.
#[test]
fn who_is_removed_stays_so() {
    let mut scene = Scene::new(3, options(Recovery::FullSs));
    scene.request(0);
    scene.replace(0, 2, 10, &[0, 1, 10]);
    scene.until("2 is removed", |world| stopped(world, 2) == Some(Stopped::Removed));
    scene.world().run_for(SECOND);
    scene.world().crash(node(2));
    scene.world().restart(node(2));
    scene.world().run_for(SECOND);
    assert_eq!(stopped(scene.world(), 2), Some(Stopped::Removed));
}

/// All whom it knew as members are gone when it can speak again: only the leader tells it anything.
#[test]
fn who_was_away_while_all_others_were_replaced_asks_whoever_leads() {
    let mut scene = Scene::new(3, options(Recovery::FullSs));
    scene.request(0);
    scene.until_level(&[0, 1, 2]);
    let others: Vec<_> = [0, 2, 10, 11].map(node).to_vec();
    let cut = scene.world().cut(&[node(1)], &others, true);
    scene.replace(0, 2, 10, &[0, 1, 10]);
    scene.until_level(&[0, 10]);
    scene.replace(0, 0, 11, &[1, 10, 11]);
    scene.until("they lead themselves", |world| leader(world).is_some_and(|leader| leader >= 10));
    scene.until_level(&[10, 11]);
    scene.world().retire(node(0));
    scene.world().retire(node(2));
    scene.world().mend_cut(cut);
    scene.until_level(&[1, 10, 11]);
}

/// The snapshot that it gets at first is of a time before it was a member: that does not mean that
/// it was removed.
#[test]
fn an_old_snapshot_removes_nobody() {
    for recovery in [Recovery::EpochSs, Recovery::ViewSs] {
        let mut scene = Scene::new(3, options(recovery));
        scene.request(0);
        scene.replace(0, 2, 10, &[0, 1, 10]);
        scene.request(0);
        scene.until_level(&[0, 1, 10]);
        scene.world().crash(node(10));
        scene.world().restart(node(10));
        scene.until_level(&[0, 1, 10]);
        scene.request(0);
        scene.until_level(&[0, 1, 10]);
    }
}

/// A leader is removed by what it executes; it knows that as soon as the change is in force, not at
/// the next change.
#[test]
fn a_leader_that_is_removed_stops() {
    for recovery in Recovery::ALL {
        let mut scene = Scene::new(3, options(recovery));
        scene.request(0);
        scene.replace(0, 0, 10, &[1, 2, 10]);
        scene.until("0 is removed", |world| stopped(world, 0) == Some(Stopped::Removed));
        scene.until("a new leader", |world| leader(world).is_some_and(|leader| leader != 0));
        scene.until_level(&[1, 2, 10]);
    }
}

/// A new leader has the promises of a majority of the members of now and of those to come, but of
/// none of those between: it asks for these again.
#[test]
fn promises_are_asked_for_again_for_each_open_configuration() {
    let mut scene = Scene::new(3, Options { window: 1, ..options(Recovery::FullSs) });
    let add = |new: u16| Change::Add { node: NodeId(new), address: format!("a{new}") };
    scene.request(0);
    scene.until_level(&[0, 1, 2]);
    scene.enter(10);
    scene.enter(11);
    scene.until("both have joined", |world| {
        [10, 11].iter().all(|node| at(world, *node).is_some_and(|r| r.status().active))
    });
    scene.change(0, add(10), &[0, 1, 2, 10]);
    scene.change(0, add(11), &[0, 1, 2, 10, 11]);
    scene.change(0, Change::Remove { node: NodeId(0) }, &[1, 2, 10, 11]);
    let before = at(scene.world(), 0).map_or(0, |replica| replica.open_members().count());
    assert_eq!(before, 4, "the first change is not in force");
    scene.world().crash(node(0));
    let far = [node(10), node(11)];
    let cut = scene.world().cut(&far, &[node(1), node(2)], true);
    scene.until("a new leader", |world| leader(world).is_some());
    scene.world().run_for(SECOND);
    for (near, far) in [(1, 10), (1, 11), (2, 10), (2, 11)] {
        scene.world().reset(node(near), node(far));
    }
    scene.world().mend_cut(cut);
    scene.until("all changes are in force", |world| {
        at(world, 1).is_some_and(|replica| replica.open_members().count() == 1)
    });
    scene.until_level(&[1, 2, 10, 11]);
}

/// What a read at node 0 is answered that is asked after node 1 has answered a request. Node 0 has
/// proposed all instances below the first one of the members {0, 1, 10}, and nodes 1 and 10, which
/// it does not hear, have elected node 1 and decided that one. Node 0 hears node 2, with which it
/// is a majority of the members of before.
fn read_at_a_leader_of_former_members(leases: Leases, mutation: Mutation) -> Answer {
    let mut scene = Scene::planted(3, Options { leases, ..options(Recovery::FullSs) }, mutation);
    scene.request(0);
    scene.until_level(&[0, 1, 2]);
    scene.enter(10);
    scene.until("10 has joined", |world| at(world, 10).is_some_and(|r| r.status().active));
    let away = scene.world().cut(&[node(2)], &[node(0), node(1), node(10)], true);
    let (old, new, address) = (NodeId(2), NodeId(10), "a10".to_string());
    let executed = |world: &Cluster, of| at(world, of).map_or(0, |r| r.status().executed.0);
    let changed = executed(scene.world(), 0) + ALPHA;
    scene.asked += 1;
    scene.ask(0, Kind::Reconfigure, change_payload(&Change::Replace { old, new, address }));
    scene.until("1 has executed all of the former members'", |world| executed(world, 1) == changed);
    assert!(executed(scene.world(), 0) < changed, "0 has heard it all");
    let cut = scene.world().cut(&[node(0), node(2)], &[node(1), node(10)], true);
    scene.until("1 leads", |world| at(world, 1).is_some_and(|r| r.is_leading()));
    scene.request(1);
    assert!(at(scene.world(), 0).is_some_and(|r| r.is_leading()), "0 has stepped down");
    scene.world().reset(node(0), node(2)); // It hears of now before it hears what it has missed.
    scene.world().mend_cut(away);
    let (token, question) = (1 << 40, bytes::Bytes::from_static(&[0]));
    let command = Command::Read { token, question, consistency: Consistency::Linearizable };
    scene.world().inject(Stimulus::Command { to: node(0), command, after: Duration::ZERO });
    scene.until("the read is answered", |world| world.owner.answers.contains_key(&token));
    scene.world().mend_cut(cut);
    scene.until_level(&[0, 1, 10]);
    scene.world().owner.answers[&token].clone()
}

/// A majority of the members of the next instance is none of the members of the instance to which
/// the read would not wait.
#[test]
fn a_read_sees_what_members_to_come_have_decided() {
    for leases in [Leases::Off, Leases::For(100 * MS)] {
        let answer = read_at_a_leader_of_former_members(leases, Mutation::Correct);
        assert!(matches!(answer, Answer::Redirect(_)), "{leases:?}: {answer:?}");
    }
}

/// The checker of the scenario above objects if the leader asks only the members of before.
#[test]
fn a_read_confirmed_by_former_members_is_stale() {
    let bug = Mutation::ConfirmsByFormerMembers;
    let answer = read_at_a_leader_of_former_members(Leases::Off, bug);
    let Answer::Done(reply) = &answer else { panic!("{answer:?}") };
    assert_eq!(register_of(reply).version, 1, "the second request was executed, and is not seen");
}
