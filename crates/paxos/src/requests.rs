//! Requests of clients until they are answered (report, sections 4.3.3, 4.4 and 5.1).
//!
//! A replica *owns* the requests of the clients that ask it, and answers them when they are
//! executed. As leader it queues them, and those that others forward, for the next batch; as
//! follower it forwards or redirects.

use crate::batch::Request;
use crate::machine::Known;
use crate::message::{Answer, Message, Output, Record};
use crate::options::{ClientIds, Recovery, Routing};
use crate::process::Paxos;
use crate::service::Service;
use meridian_core::{ClientId, Outbox, Time};

/// So many identities are given for one write to disk.
const IDENTITIES: u64 = 4096;

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
