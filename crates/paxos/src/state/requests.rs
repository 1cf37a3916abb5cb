//! Requests of clients until they are answered: owned, queued, admitted.
//!
//! `requests.rs` beside this folder has the handlers.

use crate::batch::{Batch, Request};
use crate::message::{Answer, Output, Timer};
use crate::options::{ClientIds, Options, Routing};
use meridian_core::{ClientId, NodeId, Outbox, Process, ProcessId, Table, Time};
use std::collections::{BTreeMap, VecDeque};

/// Of a time in nanoseconds so many bits are left out to make an identity: 61,000 identities in a
/// second are fewer than time passes, and 48 bits last for centuries.
const TIME_SHIFT: u32 = 14;
/// What a request takes beside its payload, about, in bytes.
const REQUEST_LEN: usize = 150;

/// A request of an own client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owned {
    pub request: Request,
    /// When it came, or was last forwarded.
    pub at: Time,
}

/// Requests of clients until they are answered: owned, queued, admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Requests {
    pub owned: BTreeMap<ClientId, Owned>,
    /// To be ordered, oldest first, with the time at which they came.
    pub queue: VecDeque<(Request, Time)>,
    pub queue_bytes: usize,
    /// How long they are together in a batch.
    pub queue_len: usize,
    pub owned_bytes: usize,
    /// Of each client the last request that is in the queue or under way.
    pub admitted: Table<ClientId, u64>,
    /// To be forwarded at the end of this batch of events.
    pub fresh: Vec<ClientId>,
    /// The number of the next identity for a client, and up to where that is on disk.
    pub identity: u64,
    pub identities_upto: u64,
}

fn bytes(request: &Request) -> usize {
    REQUEST_LEN + request.payload.len()
}

impl Requests {
    /// How much memory they take, about.
    pub fn bytes(&self) -> usize {
        self.queue_bytes + self.owned_bytes
    }

    /// Identities begin where no earlier start of this replica has given any.
    pub fn start_identities(&mut self, now: Time, epoch: u64, policy: ClientIds) {
        self.identity = match policy {
            ClientIds::Time => now.0 >> TIME_SHIFT,
            ClientIds::Counted => self.identities_upto.max(epoch << 24),
        };
    }

    /// This one was given before.
    pub fn skip_identity(&mut self, client: ClientId) {
        self.identity = self.identity.max((client.0 >> 16) + 1);
    }

    /// Identities below this may have been given.
    pub fn found_identities(&mut self, upto: u64) {
        self.identities_upto = self.identities_upto.max(upto);
    }

    pub fn identities_upto(&self) -> u64 {
        self.identities_upto
    }

    pub fn own(&mut self, now: Time, request: Request) {
        self.owned_bytes += bytes(&request);
        let before = self.owned.insert(request.client, Owned { request, at: now });
        self.owned_bytes -= before.map_or(0, |before| bytes(&before.request));
    }

    /// Nobody waits for the answer to this client any more.
    pub fn disown(&mut self, client: ClientId) {
        if let Some(owned) = self.owned.remove(&client) {
            self.owned_bytes -= bytes(&owned.request);
        }
    }

    /// The leader orders it, unless it does already.
    pub fn admit(&mut self, now: Time, request: Request, options: &Options) {
        let before = self.admitted.get(&request.client);
        let full = self.queue_bytes > options.queue_bytes_max * 2;
        if full || before.is_some_and(|before| *before >= request.sequence) {
            return;
        }
        self.admitted.insert(request.client, request.sequence);
        self.queue_bytes += bytes(&request);
        self.queue_len += request.len();
        self.queue.push_back((request, now));
    }

    /// This replica leads now.
    pub fn lead(&mut self, now: Time, options: &Options) {
        let owned: Vec<_> = self.owned.values().map(|owned| owned.request.clone()).collect();
        owned.into_iter().for_each(|request| self.admit(now, request, options));
    }

    /// This replica leads no more; `leader` may.
    pub fn lose_leadership<P: Process<Peer = ProcessId, Output = Output, Timer = Timer>>(
        &mut self,
        leader: Option<NodeId>,
        options: &Options,
        out: &mut Outbox<P>,
    ) {
        self.queue.clear();
        (self.queue_bytes, self.queue_len) = (0, 0);
        self.admitted.clear();
        match options.routing {
            Routing::Forward => self.owned.values_mut().for_each(|owned| owned.at = Time(0)),
            Routing::Redirect => {
                for (client, owned) in std::mem::take(&mut self.owned) {
                    let sequence = owned.request.sequence;
                    let answer = Answer::Redirect(leader);
                    out.output(Output::Reply { client, sequence, answer });
                }
                self.owned_bytes = 0;
            }
        }
    }

    /// The next batch, if it is to go now (Algorithm 2).
    pub fn next_batch<P: Process<Peer = ProcessId, Output = Output, Timer = Timer>>(
        &mut self,
        now: Time,
        options: &Options,
        out: &mut Outbox<P>,
    ) -> Option<Batch> {
        let (_, oldest) = self.queue.front()?;
        let due = *oldest + options.batch_delay;
        if self.queue_len < options.batch_bytes && due > now {
            out.timer(due, Timer::Batch);
            return None;
        }
        let (mut count, mut len) = (0, 0);
        for (request, _) in &self.queue {
            if count > 0 && len + request.len() > options.batch_bytes {
                break;
            }
            count += 1;
            len += request.len();
            self.queue_bytes -= bytes(request);
        }
        self.queue_len -= len;
        let batch = Batch::new(self.queue.iter().take(count).map(|(request, _)| request));
        self.queue.drain(..count);
        Some(batch)
    }

    /// A request was executed, here as everywhere.
    pub fn on_executed<P: Process<Peer = ProcessId, Output = Output, Timer = Timer>>(
        &mut self,
        client: ClientId,
        sequence: u64,
        answer: Answer,
        out: &mut Outbox<P>,
    ) {
        if self.admitted.get(&client).is_some_and(|admitted| *admitted <= sequence) {
            self.admitted.remove(&client);
        }
        let Some(owned) = self.owned.get(&client) else { return };
        if owned.request.sequence == sequence {
            self.disown(client);
            out.output(Output::Reply { client, sequence, answer });
        }
    }
}
