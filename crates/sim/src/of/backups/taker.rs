//! Takes one snapshot after the other.

use super::top;
use crate::of::files::net::Net;
use meridian_cluster::Topology;
use meridian_core::{GroupId, NodeId, Time};
use meridian_fs::{Answer, FsError, Query};
use meridian_host::api::{Request, RequestBody, SnapshotStand, SnapshotStep};
use meridian_session::taking::{self, Next, Taken};
use meridian_session::{CallId, Mutation, Taking};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Tells its questions from those of the session.
const OWN: u64 = 1 << 62;
/// How long it waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it keeps what it has taken: longer than a block that was released stays.
const HELD: Duration = Duration::from_secs(9);
/// How often nodes hear that it does.
const RENEW: Duration = Duration::from_secs(2);

/// Whether it has asked that.
pub fn is_own(id: u64) -> bool {
    id & OWN != 0
}

#[derive(Debug)]
enum Stage {
    Idle,
    Asking { until: Time },
    Marking(Option<CallId>),
    Pausing { until: Time },
    Holding { taken: Taken, until: Time, renewed: Time },
}

/// What is to be done.
#[derive(Default)]
pub struct Step {
    pub requests: Vec<(NodeId, Request)>,
    pub mark: Option<BTreeSet<GroupId>>,
    pub began: bool,
    pub ended: bool,
}

/// Answers to these questions, which came together.
pub type Looked = (GroupId, Vec<Query>, Vec<Result<Answer, FsError>>);

/// See the module.
#[derive(Debug)]
pub struct Taker {
    topology: Arc<Topology>,
    mutation: Mutation,
    left: u64,
    /// Of what is being taken or held.
    name: u64,
    taking: Taking,
    stage: Stage,
    asked: BTreeMap<u64, taking::Ask>,
    last: u64,
}

impl Taker {
    pub fn new(topology: Arc<Topology>, left: u64, mutation: Mutation) -> Taker {
        let taking = Taking::new(&topology);
        let (asked, stage) = (BTreeMap::new(), Stage::Idle);
        Taker { topology, mutation, left, name: 0, taking, stage, asked, last: 0 }
    }

    pub fn is_done(&self) -> bool {
        self.left == 0 && matches!(self.stage, Stage::Idle)
    }

    /// What is held, and under which name.
    pub fn taken(&self) -> Option<(u64, &Taken)> {
        match &self.stage {
            Stage::Holding { taken, .. } => Some((self.name, taken)),
            _ => None,
        }
    }

    /// A mark is being ordered by that call.
    pub fn marking(&mut self, call: CallId) {
        self.stage = Stage::Marking(Some(call));
    }

    /// It was, at that timestamp, or was not.
    pub fn on_marked(&mut self, call: CallId, at: Option<meridian_core::Stamp>) {
        if !matches!(self.stage, Stage::Marking(Some(of)) if of == call) {
            return;
        }
        match at {
            Some(at) => {
                self.taking.on_mark(at);
                self.stage = Stage::Marking(None);
            }
            None => self.stage = Stage::Idle,
        }
    }

    /// A node answers; what it tells of the tree, if it does.
    pub fn on_answer(&mut self, id: u64, answer: Option<&SnapshotStand>) -> Option<Looked> {
        let ask = self.asked.remove(&id)?;
        match (&self.stage, ask.step.clone(), answer) {
            (Stage::Asking { .. }, _, _) => self.taking.on_answer(&ask, answer),
            (
                Stage::Holding { .. },
                SnapshotStep::Look { queries, .. },
                Some(SnapshotStand::Answers(answers)),
            ) => return Some((ask.group, queries, answers.clone())),
            (_, _, _) => {}
        }
        None
    }

    fn request(&mut self, ask: taking::Ask) -> (NodeId, Request) {
        self.last += 1;
        let (id, name) = (OWN | self.last, self.name);
        let body = RequestBody::Snapshot { group: ask.group, name, step: ask.step.clone() };
        let to = ask.node;
        self.asked.insert(id, ask);
        (to, Request { id, body })
    }

    fn tell(&mut self, all: &[(GroupId, NodeId)], step: &SnapshotStep) -> Vec<(NodeId, Request)> {
        let ask = |(group, node): &(GroupId, NodeId)| taking::Ask {
            node: *node,
            group: *group,
            step: step.clone(),
        };
        all.iter().map(ask).map(|ask| self.request(ask)).collect()
    }

    /// Goes on.
    pub fn act(&mut self, now: Time, net: &mut Net<Infallible>) -> Step {
        let mut step = Step::default();
        match &self.stage {
            Stage::Idle if self.left == 0 => {}
            Stage::Idle => {
                self.left -= 1;
                self.name = net.random.random();
                self.taking = Taking::new(&self.topology).with_mutation(self.mutation);
                self.asked.clear();
                step.began = true;
                self.go_on(now, net, &mut step);
            }
            Stage::Asking { until } if !self.asked.is_empty() && now < *until => {}
            Stage::Asking { .. } => {
                for ask in std::mem::take(&mut self.asked).into_values() {
                    self.taking.on_answer(&ask, None);
                }
                self.go_on(now, net, &mut step);
            }
            Stage::Pausing { until } if now < *until => {}
            Stage::Pausing { .. } | Stage::Marking(None) => self.go_on(now, net, &mut step),
            Stage::Marking(Some(_)) => {}
            Stage::Holding { until, renewed, taken } => {
                let all: Vec<_> = all_of(taken);
                if now >= *until {
                    step.requests = self.tell(&all, &SnapshotStep::End);
                    (step.ended, self.stage) = (true, Stage::Idle);
                } else if now.since(*renewed) >= RENEW {
                    step.requests = self.tell(&all, &SnapshotStep::Renew);
                    if let Stage::Holding { renewed, .. } = &mut self.stage {
                        *renewed = now;
                    }
                }
            }
        }
        step
    }

    fn go_on(&mut self, now: Time, net: &mut Net<Infallible>, step: &mut Step) {
        match self.taking.turn() {
            Next::Ask(asks) => {
                step.requests = asks.into_iter().map(|ask| self.request(ask)).collect();
                self.stage = Stage::Asking { until: now + PATIENCE };
            }
            Next::Mark(groups) => {
                step.mark = Some(groups);
                self.stage = Stage::Marking(None);
                net.counts.add("marked", 1);
            }
            Next::Pause => {
                self.stage = Stage::Pausing { until: now + Duration::from_millis(50) };
            }
            Next::Failed(_) => {
                net.counts.add("not taken", 1);
                self.stage = Stage::Idle;
            }
            Next::Taken(taken) => {
                net.counts.add("taken", 1);
                let at = taken.at;
                for (group, nodes) in &taken.keepers {
                    let inode = top(*group);
                    let list = Query::Directory { inode, after: Default::default(), limit: 4096 };
                    let queries = vec![Query::Attributes { inode }, list];
                    let look = SnapshotStep::Look { at, queries };
                    let all: Vec<_> = nodes.iter().map(|node| (*group, *node)).collect();
                    step.requests.extend(self.tell(&all, &look));
                }
                self.stage = Stage::Holding { taken, until: now + HELD, renewed: now };
            }
        }
    }
}

fn all_of(taken: &Taken) -> Vec<(GroupId, NodeId)> {
    let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
        nodes.iter().map(|node| (*group, *node)).collect::<Vec<_>>()
    };
    taken.keepers.iter().flat_map(of).collect()
}
