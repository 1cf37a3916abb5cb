//! What runs on top of a member, on its thread.

use crate::clients::{Clients, ConnectionId};
use crate::clock::Clock;
use crate::delay::Delay;
use crate::peer::Counters;
use crate::peers::Peers;
use crate::store::Store;
use crate::wire::WireError;
use bytes::Bytes;
use meridian_core::hello::ServiceId;
use meridian_core::principal::Speaker;
use meridian_core::{Endpoint, GroupId, Process, ProcessId, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A protocol that can be run over a network.
pub trait Networked:
    Process<
        Peer: Endpoint,
        Message: Serialize + DeserializeOwned,
        Record: Serialize + DeserializeOwned + Send,
    > + 'static
{
}

impl<P> Networked for P where
    P: Process<
            Peer: Endpoint,
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

    /// Whether it has more to do than it should: sockets are not read until that is over. Whoever
    /// ends it calls the function that [`Application::on_room`] got.
    fn is_full(&self) -> bool {
        false
    }

    /// What a member is called in messages for people.
    fn name_of(&self, member: P::Peer) -> String {
        member.to_string()
    }

    /// Whether clients of this service may connect, beside other members.
    fn serves_clients(&self, _service: ServiceId) -> bool {
        false
    }

    /// A client has connected.
    fn on_connected(&mut self, _at: &mut At<'_, P>, _client: ConnectionId, _service: ServiceId) {}

    /// A client asks; `body` is what it put into one frame. All that has arrived is asked in one
    /// batch.
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

    /// Bytes have come on a connection of a client that speaks a protocol of its own
    /// ([`crate::Options::plain`]). They are to be kept; [`Application::on_next`] follows.
    fn on_bytes(&mut self, _at: &mut At<'_, P>, _client: ConnectionId, _bytes: &[u8]) {}

    /// What such a client is told that is turned away, as there are as many as there may be.
    fn turned_away(&self) -> &'static [u8] {
        &[]
    }

    /// Does the next thing that the bytes of such a connection ask for; whether there was one. It
    /// is called again until there is none, or too much waits for the client.
    ///
    /// # Errors
    /// If the bytes ask for nothing that there is: the connection ends, after
    /// [`Application::on_bad`].
    fn on_next(&mut self, _at: &mut At<'_, P>, _client: ConnectionId) -> Result<bool, WireError> {
        Ok(false)
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

    /// What must be kept of the application when a checkpoint takes the place of the log, from
    /// whose records it could otherwise be rebuilt. `None`: not now, the log is to grow on.
    fn checkpoint(&mut self) -> Option<Bytes> {
        Some(Bytes::new())
    }

    /// What [`Application::checkpoint`] gave, found on disk after the process's own records.
    fn restore(&mut self, _state: Bytes) {}

    /// Called before each batch ends: the place to take what other threads have left.
    fn on_batch(&mut self, _at: &mut At<'_, P>) {}

    /// Takes what wakes the member, from any thread, so that a batch ends soon.
    fn on_waker(&mut self, _wake: Arc<dyn Fn() + Send + Sync>) {}

    /// Takes what tells the member that there is room again.
    fn on_room(&mut self, _room: Box<dyn Fn() + Send + Sync>) {}
}

/// What an application sees of its member, and how it commands it.
pub struct At<'a, P: Networked> {
    /// The member's time.
    pub now: Time,
    /// The process.
    pub process: &'a P,
    pub(crate) clock: Clock,
    pub(crate) me: P::Peer,
    pub(crate) peers: &'a Peers<P::Peer>,
    pub(crate) counters: &'a Counters,
    pub(crate) store: Option<&'a Store<P>>,
    pub(crate) clients: &'a mut Clients,
    pub(crate) wishes: &'a mut Wishes<P>,
}

/// What an application wants done when it has returned.
pub(crate) struct Wishes<P: Networked> {
    pub(crate) commands: Vec<P::Command>,
    pub(crate) peers: Option<BTreeMap<P::Peer, String>>,
    pub(crate) delays: BTreeMap<P::Peer, Delay>,
    pub(crate) stop: Option<String>,
}

impl<P: Networked> Default for Wishes<P> {
    fn default() -> Self {
        Wishes { commands: Vec::new(), peers: None, delays: BTreeMap::new(), stop: None }
    }
}

impl<P: Networked> At<'_, P> {
    /// The member's time by now: [`At::now`] is that of the beginning of the call.
    pub fn time(&self) -> Time {
        self.clock.now()
    }

    /// Asks the process for something; it is stepped when the application has returned.
    pub fn command(&mut self, command: P::Command) {
        self.wishes.commands.push(command);
    }

    /// Answers a client, with all that it is answered in this batch; whether it is still connected.
    /// An answer must fit into a frame, or the connection ends.
    pub fn answer<T: Serialize>(&mut self, client: ConnectionId, answer: &T) -> bool {
        self.clients.answer(client, answer)
    }

    /// The same for an answer that may be too long: then nothing is answered.
    ///
    /// # Errors
    /// Its length in bytes, if it does not fit into a frame.
    pub fn answer_if_short<T: Serialize>(
        &mut self,
        client: ConnectionId,
        answer: &T,
    ) -> Result<bool, usize> {
        self.clients.answer_if_short(client, answer)
    }

    /// The same without a copy of `carried`, long bytes that lie in the answer.
    ///
    /// # Errors
    /// As [`At::answer_if_short`].
    pub fn answer_carrying<T: Serialize>(
        &mut self,
        client: ConnectionId,
        answer: &T,
        carried: &Bytes,
    ) -> Result<bool, usize> {
        self.clients.answer_carrying(client, answer, carried)
    }

    /// Writes to a client that speaks a protocol of its own; whether it is still connected.
    pub fn write(&mut self, client: ConnectionId, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.clients.write(client, write)
    }

    /// Who is at the other end of a client's connection; nobody once it is gone.
    pub fn speaker(&mut self, client: ConnectionId) -> Option<Speaker> {
        self.clients.speaker(client)
    }

    /// So many bytes are kept for a client that speaks a protocol of its own: of requests that are
    /// not whole, and of answers that are not written. When it is too much for all such clients
    /// together ([`crate::Options::plain_bytes_max`]), those with the most are left.
    pub fn keep_bytes(&mut self, client: ConnectionId, len: usize) {
        self.clients.keep_bytes(client, len);
    }

    /// A client that speaks a protocol of its own has sent what is none: when its connection has
    /// ended, this is counted, and the first of an address is logged.
    pub fn blame(&mut self, client: ConnectionId, why: String) {
        self.clients.blame(client, WireError::Refused(why));
    }

    /// Ends a client's connection once what it was answered has been sent.
    pub fn end(&mut self, client: ConnectionId) {
        self.clients.end(client);
    }

    /// Whether so much waits for a client to take it that it should be told to ask again.
    pub fn is_stuffed(&mut self, client: ConnectionId) -> bool {
        self.clients.is_stuffed(client)
    }

    /// Whether so much waits for a client to take it that its requests are not read.
    pub fn is_behind(&mut self, client: ConnectionId) -> bool {
        self.clients.is_behind(client)
    }

    /// From now on the other members are these, at these addresses; this one may be among them. Of
    /// each two the one with the smaller id calls.
    pub fn set_peers(&mut self, peers: BTreeMap<P::Peer, String>) {
        self.wishes.peers = Some(peers);
    }

    /// From now on so much is added to the way to these peers, once [`At::set_peers`] names them.
    pub fn set_delays(&mut self, delays: BTreeMap<P::Peer, Delay>) {
        self.wishes.delays.extend(delays);
    }

    /// So many bytes of answers to a client will come from elsewhere: its requests are not read
    /// while they are too many.
    pub fn expect_bytes(&mut self, client: ConnectionId, len: usize) {
        self.clients.expect_bytes(client, len);
    }

    /// So many bytes that were expected are answered, or will not be.
    pub fn unexpect_bytes(&mut self, client: ConnectionId, len: usize) {
        self.clients.unexpect_bytes(client, len);
    }

    /// The peers that there is a connection with.
    pub fn connected(&self) -> impl Iterator<Item = P::Peer> + '_ {
        self.peers.iter().filter(|peer| peer.link.is_open()).map(|peer| peer.id)
    }

    /// How long it takes to them and back, as far as that is known.
    pub fn round_trips(&self) -> impl Iterator<Item = (P::Peer, Duration)> + '_ {
        self.peers.iter().filter_map(|peer| Some((peer.id, peer.link.round_trip()?)))
    }

    /// How long it takes to flush the log, if there is one on a disk and it was flushed.
    pub fn flush_time(&self) -> Option<Duration> {
        self.store?.flush_time()
    }

    /// How many connections were closed for what came on them.
    pub fn bad_connections(&self) -> u64 {
        self.counters.bad.load(Ordering::Relaxed)
    }

    /// The member stops, for this reason, once what was answered until now has been sent.
    pub fn stop(&mut self, why: String) {
        self.wishes.stop.get_or_insert(why);
    }

    /// Which process this is.
    pub fn me(&self) -> P::Peer {
        self.me
    }
}

impl<P: Networked + Process<Peer = ProcessId>> At<'_, P> {
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
