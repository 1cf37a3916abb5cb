//! The whole tree at one timestamp: nodes keep it while it is read, and the tree goes on
//! (decision 95). How it is taken is decided by [`meridian_session::Taking`].

use crate::client::{Client, lock};
use crate::error::ClientError;
use crate::words::strange;
use meridian_core::{GroupId, NodeId, Stamp};
use meridian_fs::{Answer, FsError, Query, Update};
use meridian_host::api::{Refusal, ReplyBody, RequestBody, SnapshotStand, SnapshotStep};
use meridian_session::Taking;
use meridian_session::taking::{Ask, Failure, Next, Taken};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};

/// How long a node may take for a step before another is asked.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// How long a node may take to say that it keeps its state: one that is down costs so much.
const KEEP_LIMIT: Duration = Duration::from_secs(2);
/// [`Next::Pause`].
const PAUSE: Duration = Duration::from_millis(50);
/// How often nodes hear that it is still wanted: some times in a lease
/// ([`meridian_host::replica::SNAPSHOT_LEASE`]).
const RENEW: Duration = Duration::from_secs(10);
/// So many questions are sent at a time.
const LOOKS: usize = 1024;

/// See the module. Ends when it is dropped, at nodes some time later: [`Snapshot::end`] tells them.
#[derive(Debug)]
pub struct Snapshot {
    client: Client,
    name: u64,
    at: Stamp,
    /// Who has it, the next to be asked first.
    keepers: Arc<Mutex<BTreeMap<GroupId, Vec<NodeId>>>>,
    renewing: JoinHandle<()>,
}

impl Client {
    /// Has all groups keep the tree at one timestamp. It has all that was acknowledged before, to
    /// whomever. Writers do not wait for it.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the client may not look at all, or too many are kept;
    /// [`ClientError::Unreachable`] or [`ClientError::Timeout`] if a group cannot be reached, or
    /// waits for one that cannot.
    pub async fn snapshot(&self) -> Result<Snapshot, ClientError> {
        let name = self.random();
        let mut taking = Taking::new(&self.topology());
        let taken = self.take(name, &mut taking).await;
        let all: Vec<_> = taking.all().collect();
        let Taken { at, mut keepers } = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.tell(name, SnapshotStep::End, all).await;
                return Err(error);
            }
        };
        // Those that have it hold nothing back any more; the others need not keep theirs.
        let is_kept = |(group, node): &(GroupId, NodeId)| keepers[group].contains(node);
        let (kept, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_kept);
        let settle = SnapshotStep::Look { at, queries: Vec::new() };
        tokio::join!(self.tell(name, settle, kept), self.tell(name, SnapshotStep::End, others));
        let (topology, region) = (self.topology(), self.inner.driver.region());
        for nodes in keepers.values_mut() {
            nodes.sort_by_key(|node| topology.delay(region, topology.node(*node).region));
        }
        let keepers = Arc::new(Mutex::new(keepers));
        let (client, kept) = (self.clone(), keepers.clone());
        let renewing = tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEW).await;
                let all = all_of(&lock(&kept));
                client.tell(name, SnapshotStep::Renew, all).await;
            }
        });
        Ok(Snapshot { client: self.clone(), name, at, keepers, renewing })
    }

    async fn take(&self, name: u64, taking: &mut Taking) -> Result<Taken, ClientError> {
        let mut refusal = None;
        loop {
            match taking.turn() {
                Next::Taken(taken) => return Ok(taken),
                Next::Failed(failure) => return Err(refusal.unwrap_or(self.failed(failure))),
                Next::Pause => tokio::time::sleep(PAUSE).await,
                Next::Mark(partitions) => {
                    taking.on_mark(self.apply(&Update::Mark { partitions }).await?.1);
                }
                Next::Ask(asks) => {
                    let mut asked = JoinSet::new();
                    for ask in asks {
                        let client = self.clone();
                        asked.spawn(async move {
                            let limit = match ask.step {
                                SnapshotStep::Keep => KEEP_LIMIT,
                                _ => STEP_LIMIT,
                            };
                            (client.step(name, &ask, limit).await, ask)
                        });
                    }
                    while let Some(answer) = asked.join_next().await {
                        let Ok((answer, ask)) = answer else { continue };
                        taking.on_answer(&ask, answer.as_ref().ok());
                        refusal = refusal.or(answer.err().filter(is_refusal));
                    }
                }
            }
        }
    }

    /// Asks one replica for one step.
    async fn step(
        &self,
        name: u64,
        ask: &Ask,
        limit: Duration,
    ) -> Result<SnapshotStand, ClientError> {
        let Ask { node, group, step } = ask.clone();
        match self.call(node, RequestBody::Snapshot { group, name, step }, limit).await? {
            ReplyBody::Snapshot(stand) => Ok(stand),
            other => Err(strange(&other)),
        }
    }

    /// Tells replicas something to which they need not answer.
    async fn tell(&self, name: u64, step: SnapshotStep, all: Vec<(GroupId, NodeId)>) {
        let mut told = JoinSet::new();
        for (group, node) in all {
            let (client, step) = (self.clone(), step.clone());
            told.spawn(async move {
                client.step(name, &Ask { node, group, step }, KEEP_LIMIT).await.ok()
            });
        }
        while told.join_next().await.is_some() {}
    }

    fn failed(&self, failure: Failure) -> ClientError {
        let topology = self.topology();
        match failure {
            Failure::NoKeeper(group) => {
                let group = topology.group_name(group);
                ClientError::Unreachable { whom: format!("any node of group {group}") }
            }
            Failure::Waits(group) => {
                let group = topology.group_name(group);
                let what = format!("a snapshot: something in group {group} waits for a region");
                ClientError::Timeout { what }
            }
            Failure::Outrun(group) => {
                let group = topology.group_name(group);
                let what = format!("a snapshot: group {group} changes too fast, try again");
                ClientError::Timeout { what }
            }
        }
    }
}

impl Snapshot {
    /// Its timestamp: all messages up to there are in it, and no other.
    pub fn at(&self) -> Stamp {
        self.at
    }

    /// Answers to questions about inodes of `group`, in their order.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if no node keeps it any more; [`ClientError::Unreachable`] if none
    /// that does answers.
    pub async fn look(
        &self,
        group: GroupId,
        mut queries: Vec<Query>,
    ) -> Result<Vec<Result<Answer, FsError>>, ClientError> {
        let mut all = Vec::with_capacity(queries.len());
        while !queries.is_empty() {
            let page = queries[..queries.len().min(LOOKS)].to_vec();
            let answers = self.look_once(group, page).await?;
            let count = answers.len().min(queries.len());
            if count == 0 {
                return Err(ClientError::Protocol("no answer in an answer".into()));
            }
            queries.drain(..count);
            all.extend(answers);
        }
        Ok(all)
    }

    async fn look_once(
        &self,
        group: GroupId,
        queries: Vec<Query>,
    ) -> Result<Vec<Result<Answer, FsError>>, ClientError> {
        let (begun, step) = (Instant::now(), SnapshotStep::Look { at: self.at, queries });
        loop {
            let first = lock(&self.keepers).get(&group).and_then(|nodes| nodes.first().copied());
            let Some(node) = first else {
                let group = self.client.topology().group_name(group).to_string();
                let what =
                    format!("the snapshot is not kept by any node of group {group} any more");
                return Err(ClientError::Lost(what));
            };
            let ask = Ask { node, group, step: step.clone() };
            let answer = self.client.step(self.name, &ask, STEP_LIMIT).await;
            let keeps = match answer {
                Ok(SnapshotStand::Answers(answers)) => return Ok(answers),
                Ok(_) => false,
                Err(error) if begun.elapsed() >= self.client.timeout() => return Err(error),
                Err(_) => true, // It may be back before the others are lost, too.
            };
            self.pass_over(group, node, keeps);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Others are asked before that node; after them, if it `keeps` the snapshot still.
    fn pass_over(&self, group: GroupId, node: NodeId, keeps: bool) {
        let mut keepers = lock(&self.keepers);
        match keepers.get_mut(&group).filter(|nodes| nodes.first() == Some(&node)) {
            Some(nodes) if keeps => nodes.rotate_left(1),
            Some(nodes) => _ = nodes.remove(0),
            None => {} // Somebody else has, meanwhile.
        }
    }

    /// Nodes need not keep it any more.
    pub async fn end(self) {
        let all = all_of(&lock(&self.keepers));
        self.client.tell(self.name, SnapshotStep::End, all).await;
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

fn all_of(keepers: &BTreeMap<GroupId, Vec<NodeId>>) -> Vec<(GroupId, NodeId)> {
    let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
        nodes.iter().map(|node| (*group, *node)).collect::<Vec<_>>()
    };
    keepers.iter().flat_map(of).collect()
}

fn is_refusal(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(Refusal::Bad(_)))
}
