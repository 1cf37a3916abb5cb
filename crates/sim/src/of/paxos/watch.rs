//! What must hold of the replicas at all times.
//!
//! What a replica has in memory counts once all that it persisted before is durable: until then a
//! crash can undo it, and nobody has heard of it.

use super::Replica;
use meridian_core::{Position, ProcessId};
use meridian_paxos::{ALPHA, Batch, Instance, Options, Status};
use std::collections::BTreeMap;

/// Something that was seen at a replica.
#[derive(Clone, Debug)]
enum Seen {
    Decided(Instance, Batch),
    Reached(Position, State),
}

/// What a replica was at a position: the digests of all replies and of the service, and how far the
/// log was executed.
type State = (u64, u64);

/// What was seen of one replica since its last start.
#[derive(Clone, Debug, Default)]
struct Life {
    /// Decisions below this, and the state there, were looked at.
    executed: Instance,
    /// Decisions that were seen above it.
    ahead: usize,
    position: Position,
    /// Not durable yet.
    waiting: Vec<Seen>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    decisions: BTreeMap<Instance, (Batch, ProcessId)>,
    states: BTreeMap<Position, (State, ProcessId)>,
    lives: BTreeMap<ProcessId, Life>,
    log_bytes_max: usize,
    /// The longest log that was seen, in bytes.
    pub log_bytes: usize,
    /// How often a log was seen that begins after instance 0.
    pub truncated: u64,
}

impl Watch {
    /// Watches replicas with these options.
    pub fn new(options: &Options, snapshot_bytes: usize) -> Watch {
        // Two intervals between snapshots, each as long as a forced one allows or the limit; and
        // what is under way.
        let estimate = options.snapshot_bytes_min.max(snapshot_bytes) as u64;
        let forced = usize::try_from(estimate * options.force_percent / 100).unwrap_or(usize::MAX);
        let entry = options.batch_bytes.max(options.request_bytes_max) + 200;
        let open = (ALPHA + 2) as usize * entry;
        let log_bytes_max = 2 * forced.min(options.log_bytes_max + open) + 2 * open;
        Watch { log_bytes_max, ..Watch::default() }
    }

    /// The replica starts anew.
    pub fn forget(&mut self, at: ProcessId) {
        self.lives.remove(&at);
    }

    /// How many instances were decided.
    pub fn decided(&self) -> usize {
        self.decisions.len()
    }

    /// Looks at a replica after a step.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn look(&mut self, at: ProcessId, replica: &Replica, durable: bool) -> Result<(), String> {
        let paxos = &replica.inner;
        if let Some(operation) = paxos.service().twice() {
            return Err(format!("exactly once: operation {operation} was executed again"));
        }
        let Status { executed, position, log_bytes, .. } = paxos.status();
        self.log_bytes = self.log_bytes.max(log_bytes);
        if log_bytes > self.log_bytes_max {
            let max = self.log_bytes_max;
            return Err(format!("memory: a log of {log_bytes} bytes, at most {max} are expected"));
        }
        let life = self.lives.entry(at).or_default();
        let ahead = paxos.decisions().skip_while(|(instance, _)| *instance < life.executed);
        let ahead: Vec<_> = ahead.map(|(instance, batch)| (instance, batch.clone())).collect();
        if executed != life.executed || ahead.len() != life.ahead {
            let first = paxos.decisions().next().map_or(0, |(instance, _)| instance.0);
            self.truncated += u64::from(first > 0 && executed != life.executed);
            life.ahead = ahead.iter().filter(|(instance, _)| *instance >= executed).count();
            life.waiting.extend(ahead.into_iter().map(|(i, batch)| Seen::Decided(i, batch)));
            life.executed = executed;
        }
        if position != life.position {
            life.position = position;
            let state = (paxos.digest(), meridian_paxos::Service::digest(paxos.service()));
            life.waiting.push(Seen::Reached(position, state));
        }
        if !durable {
            return Ok(());
        }
        let waiting = std::mem::take(&mut life.waiting);
        waiting.into_iter().try_for_each(|seen| self.compare(at, seen))
    }

    fn compare(&mut self, at: ProcessId, seen: Seen) -> Result<(), String> {
        match seen {
            Seen::Decided(instance, batch) => {
                let (known, by) = self.decisions.entry(instance).or_insert((batch.clone(), at));
                if *known != batch {
                    let (known, batch) = (describe(known), describe(&batch));
                    return Err(format!(
                        "agreement: {instance:?} is decided with {known} at {by}, with {batch} at {at}"
                    ));
                }
            }
            Seen::Reached(position, state) => {
                let (known, by) = self.states.entry(position).or_insert((state, at));
                if *known != state {
                    return Err(format!(
                        "equal states: at {position:?} {by} was {known:x?}, {at} is {state:x?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn describe(batch: &Batch) -> String {
    let requests = batch.requests().map(|request| (request.client.0, request.sequence));
    format!("{:?}", requests.collect::<Vec<_>>())
}
