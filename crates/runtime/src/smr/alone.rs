//! A replica that is a member of its own: its peers, its clients, and what its handle asks.

use crate::application::{Application, At};
use crate::clients::ConnectionId;
use crate::smr::desk::{ChangedBy, Desk};
use crate::wire::WireError;
use bytes::Bytes;
use meridian_core::hello::ServiceId;
use meridian_core::{NodeId, ProcessId};
use meridian_paxos::{Command, Output, Paxos, Service, Stopped};
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::{oneshot, watch};

/// So many who were members are spoken with.
const FORMER_MAX: usize = 8;

type Look<S> = Box<dyn FnOnce(&Paxos<S>) + Send>;

/// What its handle asks a replica.
pub(crate) enum Ask<S> {
    /// A look at the process.
    Look(Look<S>),
    /// Whether it serves: told once it has its memory, or never will.
    Serving(oneshot::Sender<()>),
}

/// See the module's documentation.
pub(crate) struct Alone<S> {
    me: ProcessId,
    desk: Desk<Command>,
    /// The last that were members and are none any more: they may have to be told, and may be asked
    /// what was decided.
    former: VecDeque<(NodeId, String)>,
    waiting: Vec<oneshot::Sender<()>>,
    /// Why it has stopped.
    stopped: watch::Sender<Option<String>>,
    service: std::marker::PhantomData<fn(S)>,
}

impl<S: Service> Alone<S> {
    pub(crate) fn new(me: ProcessId, stopped: watch::Sender<Option<String>>) -> Alone<S> {
        Alone {
            me,
            desk: Desk::new(me.node, |command| command, ChangedBy::Clients),
            former: VecDeque::new(),
            waiting: Vec::new(),
            stopped,
            service: std::marker::PhantomData,
        }
    }

    fn meet(&mut self, at: &mut At<'_, Paxos<S>>, members: BTreeMap<NodeId, String>) {
        let before = self.desk.members();
        let gone = before.iter().filter(|(node, _)| !members.contains_key(node));
        self.former.extend(gone.map(|(node, address)| (*node, address.clone())));
        self.former.retain(|(_, address)| members.values().all(|other| other != address));
        while self.former.len() > FORMER_MAX {
            self.former.pop_front();
        }
        let process = |node| ProcessId { group: self.me.group, node };
        let former = self.former.iter().map(|(node, address)| (node, address));
        let peers = members.iter().chain(former);
        at.set_peers(peers.map(|(k, v)| (process(*k), v.clone())).collect());
        self.desk.set_members(at, members);
    }
}

impl<S: Service> Application<Paxos<S>> for Alone<S> {
    type Request = Ask<S>;

    fn on_request(&mut self, at: &mut At<'_, Paxos<S>>, ask: Ask<S>) {
        match ask {
            Ask::Look(look) => look(at.process),
            Ask::Serving(tell) if !self.desk.is_active() => self.waiting.push(tell),
            Ask::Serving(tell) => {
                let _ = tell.send(()); // Who asked has given up.
            }
        }
    }

    fn on_output(&mut self, at: &mut At<'_, Paxos<S>>, output: Output) {
        match &output {
            Output::Members(members) => return self.meet(at, members.clone()),
            Output::Recovered => {
                for tell in self.waiting.drain(..) {
                    let _ = tell.send(()); // Who asked has given up.
                }
            }
            Output::Stopped(why) => {
                self.stopped.send_replace(Some(why.to_string()));
                // Who was removed still tells others what was decided, until its owner closes it.
                if *why != Stopped::Removed {
                    at.stop(why.to_string());
                }
            }
            Output::Connected { .. }
            | Output::Reply { .. }
            | Output::Read { .. }
            | Output::View { .. } => {}
        }
        self.desk.on_output(at, output);
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
        self.desk.on_connected(at, connection);
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
        self.desk.on_asked(at, connection, &body)
    }

    fn on_bad(&mut self, at: &mut At<'_, Paxos<S>>, connection: ConnectionId, why: &WireError) {
        self.desk.on_bad(at, connection, why);
    }

    fn on_disconnected(&mut self, at: &mut At<'_, Paxos<S>>, connection: ConnectionId) {
        self.desk.on_disconnected(at, connection);
    }

    fn holds_clients(&self, process: &Paxos<S>) -> bool {
        process.is_full()
    }
}
