//! Another member: the link with it, what waits to be sent, and the present connection.

use crate::delay::{Delay, Held};
use crate::wire::{WireError, append, encode, to_bytes};
use bytes::{Buf, BytesMut};
use meridian_core::hello::Answer;
use meridian_core::link::{Link, Packet};
use meridian_core::standing::Standing;
use meridian_core::{Endpoint, Time};
use meridian_transport::WriteHalf;
use serde::Serialize;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// So many bytes of protocol messages are given to the link at once at most.
const MESSAGES_LEN: usize = 256 << 10;
/// How many bytes tell how far a log goes, at most.
const LOGGED_LEN: usize = 10;
/// So much is gathered for one write at most.
const WRITE_LEN: usize = 512 << 10;

/// What a member has counted since it started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were closed for what came on them.
    pub bad: AtomicU64,
    /// Frames put on connections.
    pub frames: AtomicU64,
    /// Writes to sockets.
    pub writes: AtomicU64,
    /// Bytes written.
    pub bytes: AtomicU64,
}

/// How the tasks of a connection are told what happened.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// The connection that there was until now ends.
    pub(crate) close: Notify,
    /// The socket did not take all: somebody must wait until it does.
    pub(crate) blocked: Notify,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Peer<I> {
    pub(crate) id: I,
    pub(crate) address: String,
    /// Whether it is one of the members that are wanted.
    pub(crate) present: bool,
    pub(crate) link: Link,
    pub(crate) signals: Rc<Signals>,
    /// Counts its connections; the present one has this number.
    pub(crate) connection: u64,
    /// When a connection last came or went.
    pub(crate) changed: Time,
    /// What the other end of the present connection says of itself.
    pub(crate) greeted: Option<Standing>,
    /// How far the log of this member goes, which all messages tell.
    logged: Rc<Cell<u64>>,
    /// Whether it is to be looked at when the batch ends.
    pub(crate) touched: bool,
    /// Protocol messages of this batch, one after the other.
    messages: Vec<u8>,
    held: Held,
    /// Frames for the socket.
    out: BytesMut,
    socket: Option<Rc<WriteHalf>>,
}

impl<I: Endpoint> Peer<I> {
    pub(crate) fn new(
        id: I,
        address: String,
        (incarnation, logged): (u64, Rc<Cell<u64>>),
        delay: Delay,
        now: Time,
    ) -> Peer<I> {
        let seed = incarnation ^ seed_of(id);
        Peer {
            id,
            address,
            present: true,
            link: Link::new(incarnation),
            signals: Rc::default(),
            connection: 0,
            changed: now,
            greeted: None,
            logged,
            touched: false,
            messages: Vec::new(),
            held: Held::new(delay, seed),
            out: BytesMut::new(),
            socket: None,
        }
    }

    /// From now on it is so far away.
    pub(crate) fn set_delay(&mut self, delay: Delay) {
        self.held.set_delay(delay);
    }

    /// It is not wanted any more: what it was sent and did not get is lost.
    pub(crate) fn leave(&mut self, now: Time) {
        self.present = false;
        self.messages.clear();
        self.link.reset();
        self.signals.close.notify_waiters();
        self.disconnect(now, self.connection);
    }

    /// Queues a protocol message.
    pub(crate) fn send<M: Serialize>(&mut self, message: &M) {
        append(&mut self.messages, message);
        if self.messages.len() >= MESSAGES_LEN {
            self.hand_over();
        }
    }

    /// Gives the link the messages of this batch, as one of its own, after how far the log goes on
    /// which they rely.
    fn hand_over(&mut self) {
        let mut message = BytesMut::with_capacity(self.messages.len() + LOGGED_LEN);
        append(&mut message, &self.logged.get());
        message.extend_from_slice(&self.messages);
        self.link.send(message.freeze());
        self.messages.clear();
        self.messages.shrink_to(2 * MESSAGES_LEN);
    }

    /// There is a new connection, in place of an earlier one; `answer` goes first if it is there.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        socket: Rc<WriteHalf>,
        answer: Option<&Answer<I>>,
    ) -> Result<u64, WireError> {
        self.signals.close.notify_waiters();
        self.connection += 1;
        self.changed = now;
        self.held.clear();
        self.out = BytesMut::new();
        self.socket = Some(socket);
        if let Some(answer) = answer {
            encode(&mut self.out, answer)?;
        }
        let open = self.link.on_connected();
        self.put(now, &open)?;
        Ok(self.connection)
    }

    /// The connection of that number is gone.
    pub(crate) fn disconnect(&mut self, now: Time, connection: u64) {
        if self.connection == connection {
            self.changed = now;
            self.socket = None;
            self.held.clear();
            self.out = BytesMut::new();
            self.link.on_disconnected();
        }
    }

    /// Whether what is sent to it is held back.
    pub(crate) fn is_far(&self) -> bool {
        !self.held.is_near()
    }

    /// When there is something to write though nothing happens: what is on its way has arrived.
    pub(crate) fn held_due(&self) -> Option<Time> {
        self.held.due().filter(|_| self.out.is_empty())
    }

    /// Puts on the socket what is ready, as far as it takes it: one link message, one write.
    pub(crate) fn transmit(&mut self, now: Time, counters: &Counters) {
        if !self.present {
            return;
        }
        if !self.messages.is_empty() {
            self.hand_over();
        }
        if self.link.wants_reconnect() {
            tracing::warn!(peer = %self.id, "too slow: all that waited for it is dropped");
            return self.signals.close.notify_waiters();
        }
        let Some(socket) = self.socket.clone() else { return };
        while let Err(error) = self.write(now, &socket, counters) {
            match error {
                WireError::Io(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.signals.blocked.notify_one();
                }
                WireError::Io(error) if error.kind() == io::ErrorKind::Interrupted => {}
                error => {
                    tracing::info!(peer = %self.id, why = %error, "cannot write");
                    return self.signals.close.notify_waiters();
                }
            }
        }
    }

    fn write(
        &mut self,
        now: Time,
        socket: &WriteHalf,
        counters: &Counters,
    ) -> Result<(), WireError> {
        loop {
            while self.out.len() < WRITE_LEN {
                let Some(packet) = self.link.poll_transmit(now) else { break };
                self.put(now, &packet)?;
                counters.frames.fetch_add(1, Ordering::Relaxed);
            }
            while let Some(frame) = self.held.pop(now) {
                self.out.extend_from_slice(&frame);
            }
            if self.out.is_empty() {
                return Ok(());
            }
            let written = socket.try_write(&self.out)?;
            counters.writes.fetch_add(1, Ordering::Relaxed);
            counters.bytes.fetch_add(written as u64, Ordering::Relaxed);
            if written < self.out.len() {
                self.out.advance(written);
            } else {
                self.out.clear();
                if self.out.capacity() > 2 * WRITE_LEN {
                    self.out = BytesMut::new();
                }
            }
        }
    }

    fn put(&mut self, now: Time, packet: &Packet) -> Result<(), WireError> {
        if self.held.is_near() {
            return Ok(encode(&mut self.out, packet)?);
        }
        let mut frame = BytesMut::new();
        encode(&mut frame, packet)?;
        self.held.push(now, frame);
        Ok(())
    }
}

/// What tells the jitter of one way from that of another.
fn seed_of<I: Endpoint>(id: I) -> u64 {
    let bytes = to_bytes(&id);
    bytes.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}
