//! FIFO without loss between two nodes, over connections that break.
//!
//! A [`Link`] is one end: what a node keeps for one peer, in both directions. Messages are numbered
//! from 1, kept until acknowledged, sent again on the next connection, and told apart by number
//! where they arrive; a gap is never skipped.
//!
//! # Sessions
//! Numbers mean something within a *session* only. Each end has a [`Life`]: its incarnation, which
//! grows with each start of the node, and a count of the times it gave up on the link since. A
//! session is the pair of both ends' lives, and every packet names it. So each end alone can end a
//! session, by a new life; the other end cannot take what is left of the old one for a part of the
//! new, and a session that both know began at number 1 for both.
//!
//! On each connection both ends first send [`Packet::Open`]: their life, the life of the other that
//! they know, the number they expect. Whoever thereby learns that the session is another drops what
//! it had queued, numbers anew and gives its owner [`LinkEvent::Restarted`].
//!
//! # Connections
//! The driver uses one connection at a time and feeds the link with that one's packets. Should two
//! interleave all the same, numbers make each packet of an old one a duplicate or a gap, and
//! [`Open::connection`], which counts up, refuses an old one's `Open`. After a [`LinkError`] the
//! connection is to be closed; the next one goes on where this one ended.
//!
//! # Invariants
//! - L1: within a session the peer's owner is given a prefix of what was sent, in order, each once.
//! - L2: what was sent before a [`LinkEvent::Restarted`] is never given to the peer's owner after
//!   the one that it gets for the same session.
//! - L3: what is queued is bounded by [`MAX_QUEUED_BYTES`], [`MAX_QUEUED_LONG_BYTES`] and
//!   [`MAX_QUEUED`], and without a connection by [`MAX_QUEUED_DOWN_BYTES`]; one message more may be
//!   queued, however long. A long message leaves room for all that is short.

use crate::echo::{Echo, RoundTrip};
use crate::time::Time;
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// When so many bytes of short messages, of one piece, wait for an acknowledgement, the next one
/// resets the link.
pub const MAX_QUEUED_BYTES: usize = 64 << 20;
/// The same of long messages, of several pieces: one of the longest, and what is said again of it.
pub const MAX_QUEUED_LONG_BYTES: usize = 256 << 20;
/// The same while there is no connection: who is away for longer than a moment can be brought up
/// otherwise.
pub const MAX_QUEUED_DOWN_BYTES: usize = 8 << 20;
/// The most pieces of messages that wait for an acknowledgement.
pub const MAX_QUEUED: usize = 100_000;
/// The longest message, in bytes: the value of a key before and after a change, of 64 MiB each,
/// with what names them.
pub const MAX_MESSAGE: usize = 136 << 20;
/// A message is cut into pieces of so many bytes, each of which fits in a frame.
pub const PIECE_LEN: usize = 1 << 20;
/// A packet with so many bytes takes no further message: a longer one saves nothing.
const PACKET_LEN: usize = 256 << 10;
/// So many messages are acknowledged at once, though there is no data to carry the word.
const ACK_MESSAGES: u64 = 256;
/// So many bytes are acknowledged at once.
const ACK_BYTES: usize = 1 << 20;
/// How long an acknowledgement waits for data to travel with. The sender only wants to drop what it
/// keeps, of which there is little below [`ACK_MESSAGES`] and [`ACK_BYTES`], so this trades memory
/// against packets: heartbeats that go both ways acknowledge each other.
const ACK_DELAY: Duration = Duration::from_secs(1);

/// One end of a link between two of its resets. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Life {
    /// Counts the starts of the node, from 1.
    pub incarnation: u64,
    /// Counts the resets of this link by this end since.
    pub resets: u64,
}

/// Between what two lives a packet travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The sender's.
    pub from: Life,
    /// The receiver's.
    pub to: Life,
}

/// What an end says first on each connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The sender's life.
    pub life: Life,
    /// The receiver's as the sender knows it.
    pub known: Option<Life>,
    /// The number that the sender expects next in the session of these two.
    pub expected: u64,
    /// Counts the connections in the sender's incarnation.
    pub connection: u64,
}

/// A message, or a part of one that is longer than [`PIECE_LEN`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Whether the next piece belongs to the same message.
    pub more: bool,
    /// Its bytes.
    pub bytes: Bytes,
}

/// What two links say to each other; each is the body of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packet {
    /// The first on a connection.
    Open(Open),
    /// Messages.
    Data {
        /// Of what session.
        session: Session,
        /// All numbers below this have arrived at the sender.
        expected: u64,
        /// The number of the first piece; the others follow.
        first: u64,
        /// The pieces, at least one.
        pieces: Vec<Piece>,
    },
    /// Only an acknowledgement.
    Ack {
        /// Of what session.
        session: Session,
        /// All numbers below this have arrived at the sender.
        expected: u64,
    },
    /// Nothing of a session: it measures the connection.
    Echo(Echo),
}

/// What a link tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The peer sent this.
    Message(Bytes),
    /// A new session with the peer: what was under way in either direction is lost.
    Restarted,
}

/// Why a connection cannot be used any longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// `Open` came twice, late or not at all.
    #[error("packets in the wrong order")]
    Order,
    /// The connection or the peer is older than one that was seen.
    #[error("an old connection")]
    Old,
    /// A packet of another session.
    #[error("a packet of another session")]
    Session,
    /// A message is missing.
    #[error("message {found} where {expected} was expected")]
    Gap {
        /// The number that should come.
        expected: u64,
        /// The one that came.
        found: u64,
    },
    /// The peer acknowledges or expects what it cannot.
    #[error("the peer expects message {0}, which it cannot")]
    Expected(u64),
    /// A message of more than [`MAX_MESSAGE`].
    #[error("a message of more than {MAX_MESSAGE} bytes")]
    TooLong,
}

/// One end of a link. See the module's documentation.
#[derive(Debug)]
pub struct Link {
    life: Life,
    peer: Option<Life>,
    /// Whether the session is one that the owner has yet to hear of: all sends are dropped.
    reset: bool,
    connections: u64,
    /// Our life as the present connection's `Open` names it.
    announced: Life,
    /// The last connection whose `Open` was taken, in the peer's incarnation.
    peer_connection: u64,
    state: Connection,
    /// What is not acknowledged; the first has number `first`.
    queue: VecDeque<Piece>,
    /// The bytes in it of short messages, and of long ones.
    queued_bytes: [usize; 2],
    /// Whether the first in the queue belongs to the message of the last that was acknowledged.
    continues: bool,
    first: u64,
    /// The number to be sent next on this connection.
    cursor: u64,
    /// The number that comes next from the peer.
    expected: u64,
    /// The start of a message whose end has not come.
    partial: BytesMut,
    /// Messages and bytes that came since the last acknowledgement, and when the first came.
    unacknowledged: u64,
    unacknowledged_bytes: usize,
    unacknowledged_since: Option<Time>,
    /// Of the present connection.
    round_trip: RoundTrip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    Down,
    /// Our `Open` is on its way, the peer's has not come.
    Opening,
    Open,
}

impl Link {
    /// The end of a node in its `incarnation`, which is not 0.
    pub fn new(incarnation: u64) -> Link {
        assert!(incarnation > 0, "incarnations count from 1");
        let life = Life { incarnation, resets: 0 };
        Link {
            life,
            announced: life,
            peer: None,
            reset: false,
            connections: 0,
            peer_connection: 0,
            state: Connection::Down,
            queue: VecDeque::new(),
            queued_bytes: [0; 2],
            continues: false,
            first: 1,
            cursor: 1,
            expected: 1,
            partial: BytesMut::new(),
            unacknowledged: 0,
            unacknowledged_bytes: 0,
            unacknowledged_since: None,
            round_trip: RoundTrip::new(Time(0)),
        }
    }

    /// Queues a message. If too much waits already the link is reset: all is dropped, and what is
    /// sent until the owner is told of it as well; see [`Link::wants_reconnect`].
    ///
    /// # Panics
    /// If the message is longer than [`MAX_MESSAGE`].
    pub fn send(&mut self, message: Bytes) {
        assert!(message.len() <= MAX_MESSAGE, "a message of {} bytes", message.len());
        if self.reset {
            return;
        }
        let pieces = message.len().div_ceil(PIECE_LEN).max(1);
        let long = usize::from(pieces > 1);
        let (queued, max) = match self.state {
            Connection::Down => (self.queued_bytes.iter().sum(), MAX_QUEUED_DOWN_BYTES),
            _ => (self.queued_bytes[long], [MAX_QUEUED_BYTES, MAX_QUEUED_LONG_BYTES][long]),
        };
        if queued >= max || self.queue.len() + pieces > MAX_QUEUED {
            return self.give_up();
        }
        self.queued_bytes[long] += message.len();
        for piece in 0..pieces {
            let (start, end) = (piece * PIECE_LEN, message.len().min((piece + 1) * PIECE_LEN));
            let more = piece + 1 < pieces;
            self.queue.push_back(Piece { more, bytes: message.slice(start..end) });
        }
    }

    /// Gives the session up: the owner has lost something that the peer believes to have arrived.
    /// All is dropped, and both owners are told.
    pub fn reset(&mut self) {
        if !self.reset {
            self.give_up();
        }
    }

    /// Whether the link was reset by this end while connected: the driver closes the connection and
    /// makes a new one, for only an `Open` begins a session.
    pub fn wants_reconnect(&self) -> bool {
        self.state != Connection::Down && self.announced != self.life
    }

    /// Whether both ends have opened the present connection.
    pub fn is_open(&self) -> bool {
        self.state == Connection::Open
    }

    /// How long it takes to the peer and back on the present connection, as far as it is known.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip.mean().filter(|_| self.is_open())
    }

    /// There is a new connection: what to send first on it. It replaces an earlier one.
    pub fn on_connected(&mut self) -> Packet {
        self.state = Connection::Opening;
        self.connections += 1;
        self.announced = self.life;
        let (life, known, connection) = (self.life, self.peer, self.connections);
        Packet::Open(Open { life, known, expected: self.expected, connection })
    }

    /// The connection is gone, and what was under way on it may be lost.
    pub fn on_disconnected(&mut self) {
        self.state = Connection::Down;
    }

    /// Takes a packet of the present connection.
    ///
    /// # Errors
    /// If the connection must be closed. Nothing was taken that the owner is not told of.
    pub fn on_packet(&mut self, now: Time, packet: Packet) -> Result<Vec<LinkEvent>, LinkError> {
        match (self.state, packet) {
            (Connection::Opening, Packet::Open(open)) => {
                self.round_trip = RoundTrip::new(now);
                self.on_open(open)
            }
            (Connection::Open, Packet::Echo(echo)) => {
                self.round_trip.on_echo(now, echo);
                Ok(Vec::new())
            }
            (Connection::Open, Packet::Data { session, expected, first, pieces }) => {
                self.check_session(session)?;
                self.on_data(now, expected, first, pieces)
            }
            (Connection::Open, Packet::Ack { session, expected }) => {
                self.check_session(session)?;
                self.on_acknowledged(expected)?;
                Ok(Vec::new())
            }
            (Connection::Down | Connection::Opening | Connection::Open, _) => Err(LinkError::Order),
        }
    }

    /// The next packet to put on the connection, if there is one: all that is ready, up to a length
    /// beyond which packets do not get cheaper.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Packet> {
        let session = self.outgoing()?;
        if let Some(echo) = self.round_trip.poll(now) {
            return Some(Packet::Echo(echo));
        }
        let sent = usize::try_from(self.cursor - self.first).expect("bounded by the queue");
        let mut bytes = 0;
        let fits = |piece: &&Piece| {
            let fits = bytes < PACKET_LEN;
            bytes += piece.bytes.len();
            fits
        };
        let pieces: Vec<Piece> = self.queue.range(sent..).take_while(fits).cloned().collect();
        let expected = self.expected;
        if !pieces.is_empty() {
            let first = self.cursor;
            self.cursor += pieces.len() as u64;
            self.clear_unacknowledged();
            return Some(Packet::Data { session, expected, first, pieces });
        }
        let much = self.unacknowledged >= ACK_MESSAGES || self.unacknowledged_bytes >= ACK_BYTES;
        if much || self.unacknowledged_since.is_some_and(|since| since + ACK_DELAY <= now) {
            self.clear_unacknowledged();
            return Some(Packet::Ack { session, expected });
        }
        None
    }

    /// When [`Link::poll_transmit`] must be asked again although nothing has happened.
    pub fn poll_timer(&self) -> Option<Time> {
        self.outgoing()?;
        let acknowledge = self.unacknowledged_since.map(|since| since + ACK_DELAY);
        acknowledge.into_iter().chain([self.round_trip.due()]).min()
    }

    /// The session of packets that are sent now; `None` while nothing can be.
    fn outgoing(&self) -> Option<Session> {
        let ready = self.state == Connection::Open && !self.reset;
        self.peer.filter(|_| ready).map(|peer| Session { from: self.life, to: peer })
    }

    fn check_session(&self, session: Session) -> Result<(), LinkError> {
        let ours = session.to == self.life && Some(session.from) == self.peer && !self.reset;
        if ours { Ok(()) } else { Err(LinkError::Session) }
    }

    fn on_open(&mut self, open: Open) -> Result<Vec<LinkEvent>, LinkError> {
        if self.announced != self.life {
            return Err(LinkError::Session);
        }
        let same_incarnation =
            self.peer.is_some_and(|peer| peer.incarnation == open.life.incarnation);
        let old_connection = same_incarnation && open.connection <= self.peer_connection;
        if open.life.incarnation == 0 || Some(open.life) < self.peer || old_connection {
            return Err(LinkError::Old);
        }
        let known = open.known == Some(self.life);
        // At the first contact there is no session to end, unless one of us knows of an earlier.
        let restarted = self.reset
            || match self.peer {
                Some(peer) => peer != open.life,
                None => open.life.resets > 0 || (open.known.is_some() && !known),
            };
        self.peer_connection = open.connection;
        self.peer = Some(open.life);
        if restarted {
            self.start_anew();
            self.reset = false;
        }
        // An end that does not know our life has nothing of the session, and starts it on our
        // `Open`.
        let expected = if known { open.expected } else { 1 };
        if expected < self.first || expected > self.first + self.queue.len() as u64 {
            self.give_up();
            return Err(LinkError::Expected(expected));
        }
        self.drop_below(expected);
        self.cursor = expected;
        self.state = Connection::Open;
        // What was acknowledged on the last connection may be lost; our `Open` has said it anew.
        self.clear_unacknowledged();
        Ok(if restarted { vec![LinkEvent::Restarted] } else { Vec::new() })
    }

    fn on_data(
        &mut self,
        now: Time,
        expected: u64,
        first: u64,
        pieces: Vec<Piece>,
    ) -> Result<Vec<LinkEvent>, LinkError> {
        if first > self.expected {
            return Err(LinkError::Gap { expected: self.expected, found: first });
        }
        self.on_acknowledged(expected)?;
        let known = usize::try_from(self.expected - first).unwrap_or(usize::MAX);
        let mut events = Vec::with_capacity(pieces.len().saturating_sub(known));
        for piece in pieces.into_iter().skip(known) {
            if self.partial.len() + piece.bytes.len() > MAX_MESSAGE {
                self.give_up();
                return Err(LinkError::TooLong);
            }
            self.expected += 1;
            self.unacknowledged += 1;
            self.unacknowledged_bytes += piece.bytes.len();
            self.unacknowledged_since.get_or_insert(now);
            if piece.more || !self.partial.is_empty() {
                self.partial.extend_from_slice(&piece.bytes);
                if !piece.more {
                    events.push(LinkEvent::Message(self.partial.split().freeze()));
                }
            } else {
                events.push(LinkEvent::Message(piece.bytes));
            }
        }
        Ok(events)
    }

    fn on_acknowledged(&mut self, expected: u64) -> Result<(), LinkError> {
        if expected > self.cursor {
            return Err(LinkError::Expected(expected));
        }
        self.drop_below(expected);
        Ok(())
    }

    fn drop_below(&mut self, number: u64) {
        while self.first < number {
            let piece = self.queue.pop_front().expect("checked against the queue by the caller");
            let long = usize::from(piece.more || self.continues);
            self.queued_bytes[long] -= piece.bytes.len();
            self.continues = piece.more;
            self.first += 1;
        }
    }

    /// Ends the session from this end; the next connection begins another.
    fn give_up(&mut self) {
        self.life.resets += 1;
        self.reset = true;
        self.start_anew();
    }

    fn start_anew(&mut self) {
        self.queue = VecDeque::new();
        (self.queued_bytes, self.continues) = ([0; 2], false);
        (self.first, self.cursor, self.expected) = (1, 1, 1);
        self.partial = BytesMut::new();
        self.clear_unacknowledged();
    }

    fn clear_unacknowledged(&mut self) {
        self.unacknowledged = 0;
        self.unacknowledged_bytes = 0;
        self.unacknowledged_since = None;
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
