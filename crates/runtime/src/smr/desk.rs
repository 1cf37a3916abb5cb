//! Between a replica's process and its clients, on the thread of whoever runs it: on its own
//! ([`super::Replica`]), or as a part of a node.

use crate::application::{At, Networked};
use crate::clients::ConnectionId;
use crate::smr::wire::{Asked, PAYLOAD_MAX, Told};
use crate::wire::{WireError, take};
use bytes::Bytes;
use meridian_core::principal::Speaker;
use meridian_core::{ClientId, NodeId, Process, Table};
use meridian_paxos::{Answer, Command, Output, View};
use std::collections::{BTreeMap, BTreeSet};

/// So many clients may share a connection.
const SHARED_MAX: usize = 100_000;

/// See the module's documentation. `C` are the commands of the process that the replica is, or is
/// a part of.
pub struct Desk<C> {
    me: NodeId,
    /// How such a process is commanded.
    command: fn(Command) -> C,
    /// Where the answer to each client goes that has asked something.
    owners: Table<ClientId, ConnectionId>,
    /// The connections, and the clients that asked on each.
    connections: BTreeMap<ConnectionId, BTreeSet<ClientId>>,
    /// What is to be answered on a connection under a name of its own: identities and reads.
    /// Counted from 1.
    tokens: BTreeMap<u64, (ConnectionId, u64)>,
    next_token: u64,
    members: BTreeMap<NodeId, String>,
    view: View,
    /// Whether the replica has its memory.
    active: bool,
    /// Who may ask for changes.
    changed_by: ChangedBy,
}

/// Who may ask for changes; all who are connected may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedBy {
    /// All who are connected.
    Clients,
    /// Those whose certificate says so: [`Speaker::is_admin`].
    Admins,
}

impl<C> Desk<C> {
    /// That of replica `me`, without clients.
    pub fn new(me: NodeId, command: fn(Command) -> C, changed_by: ChangedBy) -> Desk<C> {
        Desk {
            me,
            command,
            owners: Table::default(),
            connections: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next_token: 0,
            members: BTreeMap::new(),
            view: View::NONE,
            active: false,
            changed_by,
        }
    }

    /// Whether the replica has its memory, and takes part.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Where the replicas listen, as far as clients were told.
    pub fn members(&self) -> &BTreeMap<NodeId, String> {
        &self.members
    }

    /// Whether the client of this connection is served here.
    pub fn serves(&self, connection: ConnectionId) -> bool {
        self.connections.contains_key(&connection)
    }

    /// The replicas listen there from now on: clients are told.
    pub fn set_members<P: Networked + Process<Command = C>>(
        &mut self,
        at: &mut At<'_, P>,
        members: BTreeMap<NodeId, String>,
    ) {
        if members == self.members {
            return;
        }
        let told = Told::Members(members);
        for connection in self.connections.keys() {
            at.answer(*connection, &told);
        }
        if let Told::Members(members) = told {
            self.members = members;
        }
    }

    /// A client has connected.
    pub fn on_connected<P: Networked + Process<Command = C>>(
        &mut self,
        at: &mut At<'_, P>,
        connection: ConnectionId,
    ) {
        self.connections.insert(connection, BTreeSet::new());
        let (me, leader, members) = (self.me, self.view.leader(), self.members.clone());
        at.answer(connection, &Told::Welcome { me, leader, members });
    }

    /// A client's connection is gone.
    pub fn on_disconnected<P: Networked + Process<Command = C>>(
        &mut self,
        at: &mut At<'_, P>,
        connection: ConnectionId,
    ) {
        self.tokens.retain(|_, (of, _)| *of != connection);
        for client in self.connections.remove(&connection).unwrap_or_default() {
            self.owners.remove(&client);
            at.command((self.command)(Command::Disconnected(client)));
        }
    }

    /// A client asks.
    ///
    /// # Errors
    /// If it must not ask that.
    pub fn on_asked<P: Networked + Process<Command = C>>(
        &mut self,
        at: &mut At<'_, P>,
        connection: ConnectionId,
        body: &Bytes,
    ) -> Result<(), WireError> {
        let mut rest = &body[..];
        while !rest.is_empty() {
            let asked;
            (asked, rest) = take(rest)?;
            self.take(at, connection, asked)?;
        }
        Ok(())
    }

    /// A client's connection ends for what came on it: it is told why.
    pub fn on_bad<P: Networked + Process<Command = C>>(
        &self,
        at: &mut At<'_, P>,
        connection: ConnectionId,
        why: &WireError,
    ) {
        at.answer(connection, &Told::Closing(why.to_string()));
    }

    /// The replica has told something. Who its members are and where they listen its owner says:
    /// [`Desk::set_members`].
    pub fn on_output<P: Networked + Process<Command = C>>(
        &mut self,
        at: &mut At<'_, P>,
        output: Output,
    ) {
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
            Output::View { view, leading } => {
                tracing::info!(me = %self.me, %view, leading, "view");
                self.view = view;
            }
            Output::Recovered => self.active = true,
            Output::Stopped(_) => self.active = false,
            Output::Members(_) => {}
        }
    }

    fn token(&mut self, connection: ConnectionId, theirs: u64) -> u64 {
        self.next_token += 1;
        self.tokens.insert(self.next_token, (connection, theirs));
        self.next_token
    }

    fn take<P: Networked + Process<Command = C>>(
        &mut self,
        at: &mut At<'_, P>,
        connection: ConnectionId,
        asked: Asked,
    ) -> Result<(), WireError> {
        match asked {
            Asked::Identity { token } if self.active => {
                let token = self.token(connection, token);
                at.command((self.command)(Command::Connect { token }));
            }
            Asked::Identity { token } => {
                at.answer(connection, &Told::Refused { token });
            }
            Asked::Requests(batch) => {
                self.authorize(at.speaker(connection))?;
                let mut len = 0;
                for request in batch.requests() {
                    len += request.len();
                    self.own(connection, request.client)?;
                    at.command((self.command)(Command::Request(request)));
                }
                if len != batch.len() {
                    return Err(WireError::Refused("requests that cannot be read".into()));
                }
            }
            Asked::Read { token, question, consistency } => {
                let token = self.token(connection, token);
                at.command((self.command)(Command::Read { token, question, consistency }));
            }
            Asked::Gone(client) => {
                if self.owners.get(&client) == Some(&connection) {
                    self.owners.remove(&client);
                    self.connections.entry(connection).or_default().remove(&client);
                    at.command((self.command)(Command::Disconnected(client)));
                }
            }
        }
        Ok(())
    }

    /// Whether whoever is at the other end of a connection may ask for changes.
    fn authorize(&self, speaker: Option<Speaker>) -> Result<(), WireError> {
        match (self.changed_by, speaker) {
            (ChangedBy::Clients, _) => Ok(()),
            (ChangedBy::Admins, Some(speaker)) if speaker.is_admin() => Ok(()),
            (ChangedBy::Admins, Some(speaker)) => Err(WireError::Unauthorized(format!(
                "{speaker} may look at the cluster and not change it: that needs the certificate \
                 of an admin"
            ))),
            (ChangedBy::Admins, None) => Err(WireError::Closed),
        }
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

    fn reply<P: Networked + Process<Command = C>>(
        &mut self,
        at: &mut At<'_, P>,
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
}

fn is_long(answer: &Answer) -> bool {
    matches!(answer, Answer::Done(reply) if reply.len() > PAYLOAD_MAX)
}
