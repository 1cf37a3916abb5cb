//! Requests of clients until they are answered (report, sections 4.3.3, 4.4 and 5.1).
//!
//! A replica *owns* the requests of the clients that ask it, and answers them when they are executed. As leader it
//! queues them, and those that others forward, for the next batch; as follower it forwards or redirects.

use crate::batch::{Batch, Request};
use crate::machine::Known;
use crate::message::{Answer, Message, Output, Record};
use crate::options::{ClientIds, Options, Recovery, Routing};
use crate::process::{BATCH, Paxos};
use crate::service::Service;
use meridian_core::{ClientId, NodeId, Outbox, Table, Time};
use std::collections::{BTreeMap, VecDeque};

/// So many identities are given for one write to disk.
const IDENTITIES: u64 = 4096;
/// Of a time in nanoseconds so many bits are left out to make an identity: 61,000 identities in a second are fewer than time
/// passes, and 48 bits last for centuries.
const TIME_SHIFT: u32 = 14;
/// What a request takes beside its payload, about, in bytes.
const REQUEST_LEN: usize = 150;

/// A request of an own client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owned {
    request: Request,
    /// When it came, or was last forwarded.
    at: Time,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Requests {
    owned: BTreeMap<ClientId, Owned>,
    /// To be ordered, oldest first, with the time at which they came.
    queue: VecDeque<(Request, Time)>,
    queue_bytes: usize,
    /// How long they are together in a batch.
    queue_len: usize,
    owned_bytes: usize,
    /// Of each client the last request that is in the queue or under way.
    admitted: Table<ClientId, u64>,
    /// To be forwarded at the end of this batch of events.
    fresh: Vec<ClientId>,
    /// The number of the next identity for a client, and up to where that is on disk.
    identity: u64,
    identities_upto: u64,
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

    fn own(&mut self, now: Time, request: Request) {
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
    fn admit(&mut self, now: Time, request: Request, options: &Options) {
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
    pub fn lose_leadership<S: Service>(
        &mut self,
        leader: Option<NodeId>,
        options: &Options,
        out: &mut Outbox<Paxos<S>>,
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
    pub fn next_batch<S: Service>(
        &mut self,
        now: Time,
        options: &Options,
        out: &mut Outbox<Paxos<S>>,
    ) -> Option<Batch> {
        let (_, oldest) = self.queue.front()?;
        let due = *oldest + options.batch_delay;
        if self.queue_len < options.batch_bytes && due > now {
            out.timer(due, BATCH);
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
    pub fn on_executed<S: Service>(
        &mut self,
        client: ClientId,
        sequence: u64,
        answer: Answer,
        out: &mut Outbox<Paxos<S>>,
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

impl<S: Service> Paxos<S> {
    /// A client asks for an identity (report, section 5.1.1).
    pub(crate) fn on_connect(&mut self, token: u64, out: &mut Outbox<Self>) {
        if !self.is_active() {
            return; // The client asks again.
        }
        let requests = &mut self.requests;
        let number = requests.identity;
        requests.identity += 1;
        let counted = self.options.client_ids == ClientIds::Counted;
        if counted
            && self.options.recovery == Recovery::FullSs
            && requests.identity > requests.identities_upto
        {
            requests.identities_upto = requests.identity + IDENTITIES;
            out.persist(Record::Clients(requests.identities_upto));
        }
        let client = ClientId(number << 16 | u64::from(self.me.0));
        out.output(Output::Connected { token, client });
    }

    /// A client asks for something.
    pub(crate) fn on_request(&mut self, now: Time, request: Request, out: &mut Outbox<Self>) {
        let (client, sequence) = (request.client, request.sequence);
        let answer = match self.machine.known(client, sequence) {
            _ if !self.is_active() => Some(Answer::Busy),
            Some(Known::Reply(reply)) => Some(Answer::Done(reply)),
            Some(Known::Forgotten) => Some(Answer::Forgotten),
            Some(Known::Old) => return, // A late copy: its client knows the answer.
            None if request.payload.len() > self.options.request_bytes_max => {
                Some(Answer::TooLong(self.options.request_bytes_max))
            }
            None if self.requests.bytes() > self.options.queue_bytes_max * 2 => Some(Answer::Busy),
            None if self.proposer.is_none() && self.options.routing == Routing::Redirect => {
                Some(Answer::Redirect(self.view.leader().filter(|leader| *leader != self.me)))
            }
            None => None,
        };
        if let Some(answer) = answer {
            return out.output(Output::Reply { client, sequence, answer });
        }
        if self.is_leading() {
            self.requests.admit(now, request.clone(), &self.options);
        } else if self.proposer.is_none() {
            self.requests.fresh.push(client);
        }
        self.requests.own(now, request);
    }

    /// Forwards what came in this batch of events.
    pub(crate) fn forward(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.requests.fresh.is_empty() {
            return;
        }
        let fresh = std::mem::take(&mut self.requests.fresh);
        self.forward_these(now, fresh, out);
    }

    /// Forwards again what was not answered in time.
    pub(crate) fn forward_again(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.proposer.is_some() {
            return;
        }
        let after = self.options.retransmit;
        let late = self.requests.owned.iter().filter(|(_, owned)| now.since(owned.at) >= after);
        let late: Vec<ClientId> = late.map(|(client, _)| *client).collect();
        if !late.is_empty() {
            self.forward_these(now, late, out);
        }
    }

    fn forward_these(&mut self, now: Time, clients: Vec<ClientId>, out: &mut Outbox<Self>) {
        let Some(leader) = self.view.leader().filter(|leader| *leader != self.me) else { return };
        let (mut requests, mut len) = (Vec::new(), 0);
        for client in clients {
            let Some(owned) = self.requests.owned.get_mut(&client) else { continue };
            if len > 0 && len + owned.request.len() > self.options.batch_bytes.max(1 << 16) {
                self.send(leader, Message::Forward(std::mem::take(&mut requests)), out);
                len = 0;
            }
            let Some(owned) = self.requests.owned.get_mut(&client) else { continue };
            owned.at = now;
            len += owned.request.len();
            requests.push(owned.request.clone());
        }
        self.send(leader, Message::Forward(requests), out);
    }

    /// Another replica's clients ask for something.
    pub(crate) fn on_forward(&mut self, now: Time, requests: Vec<Request>) {
        if !self.is_leading() {
            return; // They are forwarded again, to whoever leads then.
        }
        for request in requests {
            let short = request.payload.len() <= self.options.request_bytes_max;
            if short && self.machine.known(request.client, request.sequence).is_none() {
                self.requests.admit(now, request, &self.options);
            }
        }
    }
}
