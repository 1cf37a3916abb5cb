//! Bugs planted in what surrounds the protocols at a node: the checks of files object to each.

use meridian_core::compose::Same;
use meridian_core::{Effect, Event, GroupId, MessageId, NodeId, Outbox, Process, Time};
use meridian_fs::Vector;
use meridian_host::api::RequestBody;
use meridian_host::{Command, Message, Node, Output, Record, Timer};
use meridian_sim::of::files::FilesWorkload;
use meridian_sim::of::files::regions::{faults, setup, topology};
use meridian_sim::{Faults, Owner, Stimulus, World};
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Reads are answered without waiting for what their clients have seen.
    StaleReads,
    /// What each node says first of its vote for a message is lost, and who lacks one gets no
    /// answer.
    LosesVotes,
    /// Votes are not written down.
    ForgetsVotes,
    /// Clients are answered before what they are told is durable.
    AnswersEarly,
}

/// A node with a bug.
struct Bugged {
    node: Node,
    bug: Bug,
    voted: BTreeSet<(NodeId, GroupId, MessageId)>,
}

impl Bugged {
    /// The event as the bug lets it through.
    fn bend(&mut self, mut event: Event<Bugged>) -> Option<Event<Node>> {
        match &mut event {
            Event::Message { from, message } => {
                let lost = match (self.bug, message) {
                    (Bug::LosesVotes, Message::VoteWanted { .. }) => true,
                    (Bug::LosesVotes, Message::Vote { from: group, id, .. }) => {
                        self.voted.insert((*from, *group, *id))
                    }
                    _ => false,
                };
                if lost {
                    return None;
                }
            }
            Event::Command(Command::Request { request, .. }) => {
                if let RequestBody::Read { vector, .. } = &mut request.body
                    && self.bug == Bug::StaleReads
                {
                    *vector = Vector::default();
                }
            }
            _ => {}
        }
        event.inward(Some)
    }
}

impl Process for Bugged {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let Some(event) = self.bend(event) else { return };
        let mut inner = Outbox::new();
        self.node.step(now, event, &mut inner);
        let mut effects: Vec<_> = inner.drain().collect();
        if self.bug == Bug::AnswersEarly {
            effects.sort_by_key(|effect| !matches!(effect, Effect::Output(_)));
        }
        if self.bug == Bug::ForgetsVotes {
            effects.retain(|effect| !matches!(effect, Effect::Persist(Record::Vote { .. })));
        }
        inner.extend(effects);
        out.absorb(&mut inner, &mut Same);
    }

    fn replay(&mut self, record: Record) {
        self.node.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        self.node.checkpoint()
    }
}

/// The clients and watchers, who know nothing of the bug.
struct Watched(FilesWorkload);

fn stimuli(stimuli: Vec<Stimulus<Node>>) -> Vec<Stimulus<Bugged>> {
    let map = |stimulus| match stimulus {
        Stimulus::Command { to, command, after } => Stimulus::Command { to, command, after },
        Stimulus::Wake { token, after } => Stimulus::Wake { token, after },
        Stimulus::Stop(peer) => Stimulus::Stop(peer),
    };
    stimuli.into_iter().map(map).collect()
}

impl Owner<Bugged> for Watched {
    fn begin(&mut self) -> Vec<Stimulus<Bugged>> {
        stimuli(self.0.begin())
    }

    fn output(&mut self, at: NodeId, output: Output, now: Time) -> Vec<Stimulus<Bugged>> {
        stimuli(self.0.output(at, output, now))
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Bugged>> {
        stimuli(self.0.wake(token, now))
    }

    fn started(&mut self, at: NodeId, process: &Bugged, now: Time) {
        self.0.started(at, &process.node, now);
    }

    fn crashed(&mut self, at: NodeId, now: Time) {
        self.0.crashed(at, now);
    }

    fn check(&mut self, at: NodeId, process: &Bugged, durable: bool) -> Result<(), String> {
        self.0.check(at, &process.node, durable)
    }
}

/// Whether all clients are done, and all replicas have applied what they delivered.
fn is_quiet(world: &World<Bugged, Watched>) -> bool {
    let applied = |(_, process): (NodeId, &Bugged)| {
        let replicas = process.node.status(world.now());
        replicas.iter().all(|replica| replica.applied == replica.delivered)
    };
    world.owner.0.is_done() && world.processes().all(applied)
}

/// A cluster whose nodes have the bug, and clients that have begun.
fn world(bug: Bug, seed: u64, nodes: usize, faults: Faults) -> World<Bugged, Watched> {
    let topology = topology(nodes);
    let of = topology.clone();
    let make = move |me| {
        let voted = BTreeSet::new();
        Bugged { node: Node::new(of.clone(), me), bug, voted }
    };
    let mut setup = setup(&topology, make);
    setup.faults = faults;
    let workload = FilesWorkload::new(seed, topology, 6, 60);
    let mut world = World::new(seed, setup, Watched(workload));
    world.say_nothing();
    world
}

/// Faults, then healing: whether all was as told, and all came to an end.
fn runs_well(bug: Bug, seed: u64, nodes: usize, faults: Faults) -> bool {
    let run = || {
        let mut world = world(bug, seed, nodes, faults);
        world.run_for(Duration::from_secs(10));
        world.heal();
        world.run_until(is_quiet, Duration::from_secs(60))
    };
    std::panic::catch_unwind(run).unwrap_or(false)
}

/// All nodes of one region crash when the others have what they told it behind them: whether these
/// nodes know by themselves what they knew before.
fn a_region_comes_back(bug: Bug, seed: u64) -> bool {
    const NODES: u16 = 3;
    let run = || {
        let mut world = world(bug, seed, usize::from(NODES), Faults::none());
        assert!(world.run_until(is_quiet, Duration::from_secs(60)));
        world.run_for(Duration::from_secs(10));
        let region = (NODES..2 * NODES).map(NodeId);
        region.clone().for_each(|node| world.crash(node));
        region.for_each(|node| world.restart(node));
        world.run_for(Duration::from_secs(10));
        world.run_until(is_quiet, Duration::from_secs(60))
    };
    std::panic::catch_unwind(run).unwrap_or(false)
}

/// How many seeds it takes to notice. None may be noticed where there is none.
fn assert_caught(bug: Bug, runs_well: impl Fn(Bug, u64) -> bool) {
    let caught = (0..60).find(|seed| !runs_well(bug, *seed));
    eprintln!("{bug:?}: {caught:?}");
    let caught = caught.unwrap_or_else(|| panic!("nobody noticed {bug:?}"));
    assert!(runs_well(Bug::None, caught), "it is not {bug:?} that fails");
}

#[test]
fn reads_that_do_not_wait_are_caught() {
    assert_caught(Bug::StaleReads, |bug, seed| runs_well(bug, seed, 3, Faults::none()));
}

#[test]
fn votes_that_are_lost_are_caught() {
    assert_caught(Bug::LosesVotes, |bug, seed| runs_well(bug, seed, 3, Faults::none()));
}

/// Who has forgotten one asks for it, or takes over the state of another replica of its group. So
/// it matters only when all of them have forgotten it.
#[test]
fn votes_that_are_not_durable_are_caught() {
    assert_caught(Bug::ForgetsVotes, a_region_comes_back);
}

#[test]
fn answers_before_durability_are_caught() {
    assert_caught(Bug::AnswersEarly, |bug, seed| runs_well(bug, seed, 1, faults()));
}
