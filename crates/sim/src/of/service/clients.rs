//! Clients of the service, as the library's own behave: each has an identity and one request
//! outstanding, which it sends again elsewhere when no answer comes. What they saw is kept.

use super::alone::{Alone, Ask};
use super::{Replica, process};
use crate::checkers::linearizable::{self, CallOf};
use crate::trial::Counts;
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{ClientId, NodeId, ProcessId, Time};
use meridian_paxos::{
    Answer, Command, Consistency, Kind, Message, Output, Request, Service, Stopped,
};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Draws what a client asks next.
pub type Draw = Rc<dyn Fn(&mut Random) -> Ask>;

#[derive(Clone, Debug)]
enum Doing {
    Nothing,
    Connecting,
    Request { request: Request, call: usize },
    Query { question: Bytes, call: usize },
}

#[derive(Clone, Debug)]
struct Client {
    identity: Option<ClientId>,
    /// The number of its last request.
    sequence: u64,
    at: NodeId,
    doing: Doing,
    /// Only what names it counts: an alarm, or an answer to a question.
    token: u64,
    /// It was told to send where it is: it does not choose another when the alarm comes.
    stays: bool,
    /// So many operations it still begins.
    left: u32,
}

/// See the module.
pub struct Clients<S: Service> {
    /// What happened.
    pub counts: Counts,
    alone: Alone<S>,
    draw: Draw,
    nodes: Vec<NodeId>,
    /// How long a client waits between two operations at most.
    think: Duration,
    random: Random,
    clients: Vec<Client>,
    history: Vec<CallOf<Alone<S>>>,
    owners: BTreeMap<ClientId, usize>,
    tokens: BTreeMap<u64, usize>,
    last_token: u64,
    moment: u64,
    wrong: Option<String>,
}

impl<S: Service> Clients<S> {
    /// So many clients of replicas on `nodes`.
    pub fn new(
        alone: Alone<S>,
        draw: Draw,
        nodes: Vec<NodeId>,
        count: usize,
        mut random: Random,
    ) -> Clients<S> {
        let client = Client {
            identity: None,
            sequence: 0,
            at: nodes[0],
            doing: Doing::Nothing,
            token: 0,
            stays: false,
            left: u32::MAX,
        };
        Clients {
            counts: Counts::default(),
            alone,
            draw,
            nodes,
            think: Duration::from_millis(random.random_range(10..80)),
            random,
            clients: vec![client; count],
            history: Vec::new(),
            owners: BTreeMap::new(),
            tokens: BTreeMap::new(),
            last_token: 0,
            moment: 0,
            wrong: None,
        }
    }

    /// Each begins at most so many operations more.
    pub fn end_after(&mut self, left: u32) {
        self.clients.iter_mut().for_each(|client| client.left = left);
    }

    /// Whether nobody waits for anything, nor will.
    pub fn is_done(&self) -> bool {
        let done = |one: &Client| matches!(one.doing, Doing::Nothing) && one.left == 0;
        self.clients.iter().all(done)
    }

    /// What clients wait for.
    pub fn unanswered(&self) -> String {
        let waiting = self.clients.iter().filter(|one| !matches!(one.doing, Doing::Nothing));
        let each = waiting.map(|one| format!("{:?} at {:?}", one.doing, one.at));
        each.collect::<Vec<_>>().join("; ")
    }

    /// Whether the service, asked alone, could have given all answers.
    ///
    /// # Errors
    /// It could not.
    pub fn judge(&self) -> Result<(), String> {
        let judged = linearizable::check(&self.alone, &self.history);
        judged.map_err(|what| format!("linearizable: {what}"))
    }

    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Names what a client waits for now, and nothing before it.
    fn token(&mut self, client: usize) -> u64 {
        self.last_token += 1;
        self.tokens.insert(self.last_token, client);
        self.clients[client].token = self.last_token;
        self.last_token
    }

    fn alarm(&mut self, client: usize, most: Duration) -> Vec<Stimulus<Replica<S>>> {
        let after = self.random.random_range(Duration::ZERO..=most);
        vec![Stimulus::Wake { token: self.token(client), after }]
    }

    fn elsewhere(&mut self, client: usize) -> Vec<Stimulus<Replica<S>>> {
        self.clients[client].at = *self.nodes.choose(&mut self.random).expect("there are some");
        self.send(client)
    }

    /// Sends what the client waits for, and sets the alarm.
    fn send(&mut self, client: usize) -> Vec<Stimulus<Replica<S>>> {
        let token = self.token(client);
        let one = &self.clients[client];
        let command = match &one.doing {
            Doing::Nothing => return Vec::new(),
            Doing::Connecting => Command::Connect { token },
            Doing::Request { request, .. } => Command::Request(request.clone()),
            Doing::Query { question, .. } => {
                let (question, consistency) = (question.clone(), Consistency::Linearizable);
                Command::Read { token, question, consistency }
            }
        };
        let (to, ms) = (process(one.at), Duration::from_millis(1));
        let travels = self.random.random_range(Duration::ZERO..=3 * ms);
        let patience = self.random.random_range(150 * ms..=450 * ms);
        let wake = Stimulus::Wake { token, after: patience };
        vec![Stimulus::Command { to, command, after: travels }, wake]
    }

    fn begin_one(&mut self, client: usize) -> Vec<Stimulus<Replica<S>>> {
        if self.clients[client].left == 0 {
            return Vec::new();
        }
        let Some(identity) = self.clients[client].identity else {
            self.clients[client].doing = Doing::Connecting;
            return self.elsewhere(client);
        };
        self.clients[client].left -= 1;
        let (operation, called) = ((self.draw)(&mut self.random), self.tick());
        let (one, call) = (&mut self.clients[client], self.history.len());
        one.doing = match &operation {
            Ask::Execute(payload) => {
                one.sequence += 1;
                let (sequence, payload) = (one.sequence, payload.clone());
                let kind = Kind::Execute;
                Doing::Request {
                    request: Request { client: identity, sequence, kind, payload },
                    call,
                }
            }
            Ask::Query(question) => Doing::Query { question: question.clone(), call },
        };
        self.history.push(linearizable::Call { operation, called, answered: None });
        self.send(client)
    }

    fn on_done(&mut self, client: usize, call: usize, reply: Bytes) -> Vec<Stimulus<Replica<S>>> {
        let answered = self.tick();
        self.history[call].answered = Some((answered, reply));
        let asked = matches!(self.history[call].operation, Ask::Execute(_));
        self.counts.add(if asked { "requests" } else { "queries" }, 1);
        self.clients[client].doing = Doing::Nothing;
        self.alarm(client, self.think)
    }

    fn on_answer(
        &mut self,
        client: usize,
        call: usize,
        answer: Answer,
    ) -> Vec<Stimulus<Replica<S>>> {
        let ms = Duration::from_millis(1);
        match answer {
            Answer::Done(reply) => self.on_done(client, call, reply),
            Answer::Redirect(leader) => {
                self.counts.add("redirects", 1);
                let one = &mut self.clients[client];
                one.stays = leader.is_some();
                one.at = leader.unwrap_or(one.at);
                self.alarm(client, if leader.is_some() { 2 * ms } else { 40 * ms })
            }
            Answer::Busy => self.alarm(client, 40 * ms),
            Answer::Forgotten | Answer::TooLong(_) => {
                self.wrong.get_or_insert(format!("clients: one is answered {answer:?}"));
                Vec::new()
            }
        }
    }

    fn on_reply(&mut self, name: (ClientId, u64), answer: Answer) -> Vec<Stimulus<Replica<S>>> {
        let Some(client) = self.owners.get(&name.0).copied() else { return Vec::new() };
        match &self.clients[client].doing {
            Doing::Request { request, call } if (request.client, request.sequence) == name => {
                let call = *call;
                self.on_answer(client, call, answer)
            }
            _ => Vec::new(),
        }
    }

    /// The client that waits for just that.
    fn waiting(&self, token: u64) -> Option<usize> {
        let client = self.tokens.get(&token).copied()?;
        (self.clients[client].token == token).then_some(client)
    }
}

impl<S: Service> Owner<Replica<S>> for Clients<S> {
    fn begin(&mut self) -> Vec<Stimulus<Replica<S>>> {
        (0..self.clients.len()).flat_map(|client| self.alarm(client, self.think)).collect()
    }

    fn output(&mut self, at: ProcessId, output: Output, _: Time) -> Vec<Stimulus<Replica<S>>> {
        match output {
            Output::Connected { token, client: identity } => {
                let Some(client) = self.waiting(token) else { return Vec::new() };
                self.owners.insert(identity, client);
                let one = &mut self.clients[client];
                (one.identity, one.sequence, one.doing) = (Some(identity), 0, Doing::Nothing);
                return self.alarm(client, Duration::from_millis(2));
            }
            Output::Reply { client, sequence, answer } => {
                return self.on_reply((client, sequence), answer);
            }
            Output::Read { token, answer } => {
                let Some(client) = self.waiting(token) else { return Vec::new() };
                if let Doing::Query { call, .. } = self.clients[client].doing {
                    return self.on_answer(client, call, answer);
                }
            }
            Output::View { leading, .. } => self.counts.add("leaders", u64::from(leading)),
            Output::Stopped(why @ Stopped::Diverged { .. }) => {
                self.wrong.get_or_insert(format!("equal replicas: {at} has stopped: {why}"));
            }
            Output::Stopped(why) => {
                self.wrong.get_or_insert(format!("stopped: {at}: {why}"));
            }
            Output::Recovered | Output::Members(_) => {}
        }
        Vec::new()
    }

    fn wake(&mut self, token: u64, _now: Time) -> Vec<Stimulus<Replica<S>>> {
        let client = self.tokens.remove(&token);
        let Some(client) = client.filter(|client| self.clients[*client].token == token) else {
            return Vec::new();
        };
        let stays = std::mem::take(&mut self.clients[client].stays);
        match self.clients[client].doing {
            Doing::Nothing => self.begin_one(client),
            _ if stays => self.send(client),
            _ => self.elsewhere(client),
        }
    }

    fn crashed(&mut self, _at: ProcessId, _now: Time) {
        self.counts.add("crashes", 1);
    }

    fn traffic(&mut self, _at: ProcessId, message: &Message) {
        self.counts.add("snapshots", u64::from(matches!(message, Message::CatchUpSnapshot(_))));
    }

    fn leads(&self, process: &Replica<S>) -> bool {
        process.inner.is_leading()
    }

    fn check(&mut self, _: ProcessId, _: &Replica<S>, _: bool) -> Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)
    }
}
