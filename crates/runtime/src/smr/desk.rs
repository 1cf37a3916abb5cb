//! Between a replica's process and its clients, on the replica's thread.

use crate::application::{Application, At};
use crate::clients::ConnectionId;
use crate::smr::wire::{Asked, PAYLOAD_MAX, Told};
use crate::wire::{WireError, take};
use bytes::Bytes;
use meridian_core::hello::ServiceId;
use meridian_core::{ClientId, GroupId, NodeId, ProcessId, Table};
use meridian_paxos::{Answer, Command, Output, Paxos, Service, Stopped, View};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tokio::sync::{oneshot, watch};

/// So many who were members are spoken with.
const FORMER_MAX: usize = 8;
/// So many clients may share a connection.
const SHARED_MAX: usize = 100_000;

type Look<S> = Box<dyn FnOnce(&Paxos<S>) + Send>;

/// What its handle asks a replica.
pub(crate) enum Ask<S> {
    /// A look at the process.
    Look(Look<S>),
    /// Whether it serves: told once it has its memory, or never will.
    Serving(oneshot::Sender<()>),
}

/// See the module's documentation.
pub(crate) struct Desk<S> {
    group: GroupId,
    /// Where the answer to each client goes that has asked something.
    owners: Table<ClientId, ConnectionId>,
    /// The connections, and the clients that asked on each.
    connections: BTreeMap<ConnectionId, BTreeSet<ClientId>>,
    /// What is to be answered on a connection under a name of its own: identities and reads.
    tokens: BTreeMap<u64, (ConnectionId, u64)>,
    next_token: u64,
    members: BTreeMap<NodeId, String>,
    /// The last that were members and are none any more: they may have to be told, and may be asked
    /// what was decided.
    former: VecDeque<(NodeId, String)>,
    view: View,
    /// Whether it has its memory.
    active: bool,
    waiting: Vec<oneshot::Sender<()>>,
    /// Why it has stopped.
    stopped: watch::Sender<Option<String>>,
    service: std::marker::PhantomData<fn(S)>,
}

impl<S: Service> Desk<S> {
    pub(crate) fn new(group: GroupId, stopped: watch::Sender<Option<String>>) -> Desk<S> {
        Desk {
            group,
            owners: Table::default(),
            connections: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next_token: 0,
            members: BTreeMap::new(),
            former: VecDeque::new(),
            view: View::NONE,
            active: false,
            waiting: Vec::new(),
            stopped,
            service: std::marker::PhantomData,
        }
    }

    fn token(&mut self, connection: ConnectionId, theirs: u64) -> u64 {
        self.next_token += 1;
        self.tokens.insert(self.next_token, (connection, theirs));
        self.next_token
    }

    fn take(
        &mut self,
        at: &mut At<'_, Paxos<S>>,
        connection: ConnectionId,
        asked: Asked,
    ) -> Result<(), WireError> {
        match asked {
            Asked::Identity { token } if self.active => {
                let token = self.token(connection, token);
                at.command(Command::Connect { token });
            }
            Asked::Identity { token } => {
                at.answer(connection, &Told::Refused { token });
            }
            Asked::Requests(batch) => {
                let mut len = 0;
                for request in batch.requests() {
                    len += request.len();
                    self.own(connection, request.client)?;
                    at.command(Command::Request(request));
                }
                if len != batch.len() {
                    return Err(WireError::Refused("requests that cannot be read".into()));
                }
            }
            Asked::Read { token, question, consistency } => {
                let token = self.token(connection, token);
                at.command(Command::Read { token, question, consistency });
            }
            Asked::Gone(client) => {
                if self.owners.get(&client) == Some(&connection) {
                    self.owners.remove(&client);
                    self.connections.entry(connection).or_default().remove(&client);
                    at.command(Command::Disconnected(client));
                }
            }
        }
        Ok(())
    }

    /// Answers to a client go to where it asked last.
    fn own(&mut self, connection: ConnectionId, client: ClientId) -> Result<(), WireError> {
        let before = self.owners.insert(client, connection);
        if before == Some(connection) {
            return Ok(());
        }
        if let Some(clients) = before.and_then(|before| self.connections.get_mut(&before)) {
            clients.remove(&client);
        }
        let clients = self.connections.entry(connection).or_default();
        clients.insert(client);
        if clients.len() > SHARED_MAX {
            let why = format!("more than {SHARED_MAX} clients on one connection: make another");
            return Err(WireError::Refused(why));
        }
        Ok(())
    }

    fn reply(
        &mut self,
        at: &mut At<'_, Paxos<S>>,
        (client, sequence): (ClientId, u64),
        answer: Answer,
    ) {
        let Some(connection) = self.owners.get(&client).copied() else { return };
        if is_long(&answer) {
            at.answer(connection, &Told::LongReply { client, sequence });
        } else {
            let answer = if at.is_stuffed(connection) { Answer::Busy } else { answer };
            at.answer(connection, &Told::Reply { client, sequence, answer });
        }
    }

    fn meet(&mut self, at: &mut At<'_, Paxos<S>>, members: BTreeMap<NodeId, String>) {
        let gone = self.members.iter().filter(|(node, _)| !members.contains_key(node));
        self.former.extend(gone.map(|(node, address)| (*node, address.clone())));
        self.former.retain(|(_, address)| members.values().all(|other| other != address));
        while self.former.len() > FORMER_MAX {
            self.former.pop_front();
        }
        let process = |node| ProcessId { group: self.group, node };
        let former = self.former.iter().map(|(node, address)| (node, address));
        let peers = members.iter().chain(former);
        at.set_peers(peers.map(|(k, v)| (process(*k), v.clone())).collect());
        let told = Told::Members(members);
        for connection in self.connections.keys() {
            at.answer(*connection, &told);
        }
        if let Told::Members(members) = told {
            self.members = members;
        }
    }
}

fn is_long(answer: &Answer) -> bool {
    matches!(answer, Answer::Done(reply) if reply.len() > PAYLOAD_MAX)
}

impl<S: Service> Application<Paxos<S>> for Desk<S> {
    type Request = Ask<S>;

    fn on_request(&mut self, at: &mut At<'_, Paxos<S>>, ask: Ask<S>) {
        match ask {
            Ask::Look(look) => look(at.process),
            Ask::Serving(tell) if !self.active => self.waiting.push(tell),
            Ask::Serving(tell) => {
                let _ = tell.send(()); // Who asked has given up.
            }
        }
    }

    fn on_output(&mut self, at: &mut At<'_, Paxos<S>>, output: Output) {
        match output {
            Output::Reply { client, sequence, answer } => {
                self.reply(at, (client, sequence), answer);
            }
            Output::Connected { token, client } => {
                if let Some((connection, token)) = self.tokens.remove(&token) {
                    at.answer(connection, &Told::Connected { token, client });
                }
            }
            Output::Read { token, answer } => {
                let Some((connection, token)) = self.tokens.remove(&token) else { return };
                if is_long(&answer) {
                    at.answer(connection, &Told::LongAnswer { token });
                } else {
                    let answer = if at.is_stuffed(connection) { Answer::Busy } else { answer };
                    at.answer(connection, &Told::Read { token, answer });
                }
            }
            Output::Members(members) => self.meet(at, members),
            Output::View { view, leading } => {
                tracing::info!(me = %at.me(), %view, leading, "view");
                self.view = view;
            }
            Output::Recovered => {
                self.active = true;
                for tell in self.waiting.drain(..) {
                    let _ = tell.send(()); // Who asked has given up.
                }
            }
            Output::Stopped(why) => {
                self.active = false;
                self.stopped.send_replace(Some(why.to_string()));
                // Who was removed still tells others what was decided, until its owner closes it.
                if why != Stopped::Removed {
                    at.stop(why.to_string());
                }
            }
        }
    }

    fn serves_clients(&self, _service: ServiceId) -> bool {
        true
    }

    fn on_connected(
        &mut self,
        at: &mut At<'_, Paxos<S>>,
        connection: ConnectionId,
        _service: ServiceId,
    ) {
        self.connections.insert(connection, BTreeSet::new());
        let (leader, members) = (self.view.leader(), self.members.clone());
        at.answer(connection, &Told::Welcome { me: at.me().node, leader, members });
    }

    fn on_asked(
        &mut self,
        at: &mut At<'_, Paxos<S>>,
        connection: ConnectionId,
        body: Bytes,
    ) -> Result<(), WireError> {
        if let Some(why) = &*self.stopped.borrow() {
            return Err(WireError::Refused(why.clone()));
        }
        let mut rest = &body[..];
        while !rest.is_empty() {
            let asked;
            (asked, rest) = take(rest)?;
            self.take(at, connection, asked)?;
        }
        Ok(())
    }

    fn on_bad(&mut self, at: &mut At<'_, Paxos<S>>, connection: ConnectionId, why: &WireError) {
        at.answer(connection, &Told::Closing(why.to_string()));
    }

    fn on_disconnected(&mut self, at: &mut At<'_, Paxos<S>>, connection: ConnectionId) {
        for client in self.connections.remove(&connection).unwrap_or_default() {
            self.owners.remove(&client);
            at.command(Command::Disconnected(client));
        }
    }

    fn holds_clients(&self, process: &Paxos<S>) -> bool {
        process.is_full()
    }
}
