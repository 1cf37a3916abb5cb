//! What runs on top of a member, on its thread.

use crate::clients::{Clients, ConnectionId};
use crate::peers::Peers;
use crate::wire::WireError;
use bytes::Bytes;
use meridian_core::{GroupId, Process, ProcessId, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;

/// A protocol that can be run over a network.
pub trait Networked:
    Process<
        Peer = ProcessId,
        Message: Serialize + DeserializeOwned,
        Record: Serialize + DeserializeOwned + Send,
    > + 'static
{
}

impl<P> Networked for P where
    P: Process<
            Peer = ProcessId,
            Message: Serialize + DeserializeOwned,
            Record: Serialize + DeserializeOwned + Send,
        > + 'static
{
}

/// What runs on top of a member, called on the member's thread. It must not block.
pub trait Application<P: Networked>: 'static {
    /// What its handle asks of it.
    type Request: Send + 'static;

    /// The handle asks something.
    fn on_request(&mut self, at: &mut At<'_, P>, request: Self::Request);

    /// The process has told something, in order.
    fn on_output(&mut self, at: &mut At<'_, P>, output: P::Output);

    /// All that the process told until now was given to [`Application::on_output`].
    fn on_told(&mut self, _at: &mut At<'_, P>) {}

    /// The time that [`Application::due`] named has come.
    fn on_due(&mut self, _at: &mut At<'_, P>) {}

    /// When it wants to be called next though nothing happens.
    fn due(&self) -> Option<Time> {
        None
    }

    /// Whether it has more to do than it should: sockets are not read until that is over. Whoever ends it
    /// calls the function that [`Application::on_room`] got.
    fn is_full(&self) -> bool {
        false
    }

    /// Whether clients may connect, beside other members.
    fn serves_clients(&self) -> bool {
        false
    }

    /// A client has connected.
    fn on_connected(&mut self, _at: &mut At<'_, P>, _client: ConnectionId) {}

    /// A client asks; `body` is what it put into one frame. All that has arrived is asked in one batch.
    ///
    /// # Errors
    /// If it must not ask that: its connection ends, after [`Application::on_bad`].
    fn on_asked(
        &mut self,
        _at: &mut At<'_, P>,
        _client: ConnectionId,
        _body: Bytes,
    ) -> Result<(), WireError> {
        Err(WireError::Refused("nothing can be asked here".into()))
    }

    /// A client's connection ends for what came on it: the last chance to answer why.
    fn on_bad(&mut self, _at: &mut At<'_, P>, _client: ConnectionId, _why: &WireError) {}

    /// A client's connection is gone.
    fn on_disconnected(&mut self, _at: &mut At<'_, P>, _client: ConnectionId) {}

    /// Whether nothing more is to be read from clients for now, though from members.
    fn holds_clients(&self, _process: &P) -> bool {
        false
    }

    /// A record found on disk, before the start: the process is rebuilt by it.
    fn replay(&mut self, process: &mut P, record: P::Record) {
        process.replay(record);
    }

    /// What must be kept of the application when a checkpoint takes the place of the log, from whose
    /// records it could otherwise be rebuilt. `None`: not now, the log is to grow on.
    fn checkpoint(&mut self) -> Option<Bytes> {
        Some(Bytes::new())
    }

    /// What [`Application::checkpoint`] gave, found on disk after the process's own records.
    fn restore(&mut self, _state: Bytes) {}

    /// Takes what tells the member that there is room again.
    fn on_room(&mut self, _room: Box<dyn Fn() + Send + Sync>) {}
}

/// What an application sees of its member, and how it commands it.
pub struct At<'a, P: Networked> {
    /// The member's time.
    pub now: Time,
    /// The process.
    pub process: &'a P,
    pub(crate) me: ProcessId,
    pub(crate) peers: &'a Peers,
    pub(crate) clients: &'a mut Clients,
    pub(crate) wishes: &'a mut Wishes<P>,
}

/// What an application wants done when it has returned.
pub(crate) struct Wishes<P: Networked> {
    pub(crate) commands: Vec<P::Command>,
    pub(crate) peers: Option<BTreeMap<ProcessId, String>>,
    pub(crate) stop: Option<String>,
}

impl<P: Networked> Default for Wishes<P> {
    fn default() -> Self {
        Wishes { commands: Vec::new(), peers: None, stop: None }
    }
}

impl<P: Networked> At<'_, P> {
    /// Asks the process for something; it is stepped when the application has returned.
    pub fn command(&mut self, command: P::Command) {
        self.wishes.commands.push(command);
    }

    /// Answers a client, with all that it is answered in this batch; whether it is still connected.
    /// An answer must fit into a frame, or the connection ends.
    pub fn answer<T: Serialize>(&mut self, client: ConnectionId, answer: &T) -> bool {
        self.clients.answer(client, answer)
    }

    /// Whether so much waits for a client to take it that it should be told to ask again.
    pub fn is_stuffed(&mut self, client: ConnectionId) -> bool {
        self.clients.is_stuffed(client)
    }

    /// From now on the other members are these, at these addresses; this one may be among them. Of each
    /// two the one with the smaller id calls.
    pub fn set_peers(&mut self, peers: BTreeMap<ProcessId, String>) {
        self.wishes.peers = Some(peers);
    }

    /// The member stops, for this reason, once what was answered until now has been sent.
    pub fn stop(&mut self, why: String) {
        self.wishes.stop.get_or_insert(why);
    }

    /// Which process this is.
    pub fn me(&self) -> ProcessId {
        self.me
    }

    /// Whether there is such a group.
    pub fn knows(&self, group: GroupId) -> bool {
        group == self.me.group || self.peers.iter().any(|peer| peer.id.group == group)
    }

    /// Whether there has been no connection with a quorum of `group` for so long.
    pub fn is_unreachable(&self, group: GroupId, since: Duration) -> bool {
        let (mut members, mut near) = (0, 0);
        if group == self.me.group {
            (members, near) = (1, 1);
        }
        for peer in self.peers.iter().filter(|peer| peer.id.group == group) {
            members += 1;
            near += usize::from(peer.link.is_open() || self.now.since(peer.changed) < since);
        }
        near < members / 2 + 1
    }
}
