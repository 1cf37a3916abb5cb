//! Connections of clients: what is to be answered on each.
//!
//! Answers of a batch are gathered, put into one frame and written at once. A client that asks and
//! does not take its answers is not read any more, then gets only short ones, and in the end is
//! left: [`UNREAD_LEN`], [`STUFFED_LEN`], [`UNTAKEN_MAX`].
//!
//! Where clients speak a protocol of their own, one answer, and one request that is not whole yet,
//! may be long. So all that is kept for these clients together is bounded: when it is more, who has
//! the most of it is left, until it is less.

use crate::peer::Counters;
use crate::wire::{WireError, append};
use bytes::Bytes;
use meridian_core::carried;
use meridian_core::frame::{self, FrameError, MAX_BODY};
use meridian_core::principal::Speaker;
use meridian_transport::{Outbound, WriteHalf};
use serde::Serialize;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;

/// While so many bytes of answers wait for a client, its requests are not read.
const UNREAD_LEN: usize = 1 << 20;
/// The same with those that are expected from elsewhere: some of the longest blocks of data.
const EXPECTED_LEN: usize = 32 << 20;
/// While so many bytes of answers wait for a client, it should be told to ask again.
const STUFFED_LEN: usize = 8 << 20;
/// When more bytes of answers wait for a client, its connection is closed.
const UNTAKEN_MAX: usize = (16 << 20) + EXPECTED_LEN;
/// Buffers that are longer are given back when they are empty.
const KEPT_LEN: usize = 64 << 10;

/// Names a connection of a client; no other has the same name while a member runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    slot: u32,
    /// Which use of the slot.
    turn: u32,
}

/// How the tasks of a connection are told what happened.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// It ends.
    pub(crate) close: Notify,
    /// The socket did not take all.
    pub(crate) blocked: Notify,
    /// There is room for more answers.
    pub(crate) room: Notify,
}

impl From<ConnectionId> for u64 {
    fn from(id: ConnectionId) -> u64 {
        u64::from(id.slot) << 32 | u64::from(id.turn)
    }
}

impl From<u64> for ConnectionId {
    fn from(number: u64) -> ConnectionId {
        ConnectionId { slot: (number >> 32) as u32, turn: number as u32 }
    }
}

/// How answers are put on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// All of a batch in one frame.
    Framed,
    /// As the application writes them.
    Plain,
}

#[derive(Debug)]
struct Connection {
    socket: Rc<WriteHalf>,
    /// Who is at the other end.
    speaker: Speaker,
    form: Form,
    signals: Rc<Signals>,
    /// Answers of this batch, one after the other.
    answers: Vec<u8>,
    /// Frames for the socket.
    out: Outbound,
    /// Bytes of answers that come from elsewhere.
    expected: usize,
    /// Whether it is to be looked at when the batch ends.
    touched: bool,
    /// What the application keeps of what the client sent or is to be answered, in bytes.
    kept: usize,
    /// So much of [`Clients::held`] is this client's.
    counted: usize,
    /// It ends when all is written; nothing more is read from it.
    ends: bool,
    /// It has ended: nothing more is written, either.
    left: bool,
    /// What it ends for, if that is the client's doing.
    why: Option<WireError>,
}

#[derive(Debug, Default)]
struct Slot {
    turn: u32,
    connection: Option<Connection>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    slots: Vec<Slot>,
    free: Vec<u32>,
    touched: Vec<ConnectionId>,
    /// What is kept for clients that speak a protocol of their own, in bytes.
    held: usize,
    /// When it is more, somebody is left.
    held_max: usize,
}

impl Clients {
    /// Nobody has connected yet. So many bytes are kept at most for all clients together that speak
    /// a protocol of their own.
    pub(crate) fn new(held_max: usize) -> Clients {
        Clients { held_max, ..Clients::default() }
    }

    /// So many there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// One more.
    pub(crate) fn add(
        &mut self,
        socket: Rc<WriteHalf>,
        speaker: Speaker,
        form: Form,
    ) -> (ConnectionId, Rc<Signals>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("sockets are fewer")
        });
        let signals = Rc::<Signals>::default();
        let (answers, out) = (Vec::new(), Outbound::new());
        let place = &mut self.slots[slot as usize];
        let signalled = signals.clone();
        place.connection = Some(Connection {
            socket,
            speaker,
            form,
            signals: signalled,
            answers,
            out,
            expected: 0,
            touched: false,
            kept: 0,
            counted: 0,
            ends: false,
            left: false,
            why: None,
        });
        (ConnectionId { slot, turn: place.turn }, signals)
    }

    /// It is gone.
    pub(crate) fn remove(&mut self, id: ConnectionId) {
        if let Some(connection) = self.get(id) {
            let counted = connection.counted;
            self.held -= counted;
            let slot = &mut self.slots[id.slot as usize];
            slot.connection = None;
            slot.turn += 1;
            self.free.push(id.slot);
        }
    }

    fn get(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.connection.as_mut().filter(|_| slot.turn == id.turn)
    }

    /// Who is at the other end, if there still is a connection.
    pub(crate) fn speaker(&mut self, id: ConnectionId) -> Option<Speaker> {
        self.get(id).map(|connection| connection.speaker.clone())
    }

    /// Queues an answer; whether there still is such a connection.
    pub(crate) fn answer<T: Serialize>(&mut self, id: ConnectionId, answer: &T) -> bool {
        self.answer_if_short(id, answer).unwrap_or_else(|len| {
            tracing::error!(len, "an answer cannot be sent");
            if let Some(connection) = self.get(id) {
                connection.signals.close.notify_one();
            }
            true
        })
    }

    /// The same, unless the answer is too long for a frame: then its length.
    pub(crate) fn answer_if_short<T: Serialize>(
        &mut self,
        id: ConnectionId,
        answer: &T,
    ) -> Result<bool, usize> {
        let Some(connection) = self.get(id) else { return Ok(false) };
        let before = connection.answers.len();
        append(&mut connection.answers, answer);
        let len = connection.answers.len() - before;
        if connection.answers.len() > MAX_BODY {
            let last = connection.answers.split_off(before);
            if !connection.answers.is_empty() {
                connection.enframe();
            }
            if len > MAX_BODY {
                return Err(len);
            }
            connection.answers = last;
        }
        self.touch(id);
        Ok(true)
    }

    /// As [`Clients::answer_if_short`], in a frame of its own, without a copy of `carried`, which
    /// lies in the answer.
    pub(crate) fn answer_carrying<T: Serialize>(
        &mut self,
        id: ConnectionId,
        answer: &T,
        carried: &Bytes,
    ) -> Result<bool, usize> {
        let Some(connection) = self.get(id) else { return Ok(false) };
        match carried::encode(answer, carried) {
            Ok(pieces) => {
                if !connection.answers.is_empty() {
                    connection.enframe();
                }
                pieces.into_iter().for_each(|piece| connection.out.push(piece));
                self.touch(id);
                Ok(true)
            }
            Err(FrameError::TooLong(len)) => Err(len),
            Err(error) => unreachable!("writing to memory: {error}"),
        }
    }

    /// Queues bytes for a client that speaks a protocol of its own; whether there still is such a
    /// connection.
    pub(crate) fn write(&mut self, id: ConnectionId, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(connection) = self.get(id).filter(|one| !one.left) else { return false };
        assert_eq!(connection.form, Form::Plain, "only such a client is written to");
        write(&mut connection.answers);
        self.touch(id);
        self.count(id);
        true
    }

    /// The application keeps so many bytes of what a client sent, or is to be answered.
    pub(crate) fn keep_bytes(&mut self, id: ConnectionId, len: usize) {
        if let Some(connection) = self.get(id)
            && std::mem::replace(&mut connection.kept, len) != len
        {
            self.count(id);
        }
    }

    /// Counts what is kept for a client. If that is too much for all together, those who have the
    /// most are left.
    fn count(&mut self, id: ConnectionId) {
        let Some(connection) = self.get(id).filter(|one| one.form == Form::Plain && !one.left)
        else {
            return;
        };
        let now = connection.out.len() + connection.answers.len() + connection.kept;
        let before = std::mem::replace(&mut connection.counted, now);
        self.held = self.held + now - before;
        while self.held > self.held_max {
            self.leave_longest();
        }
    }

    /// Leaves the client for which the most is kept. What the application keeps for it goes when
    /// its task has ended.
    fn leave_longest(&mut self) {
        let connections = self.slots.iter_mut().filter_map(|slot| slot.connection.as_mut());
        let longest = connections.max_by_key(|connection| connection.counted);
        let longest = longest.expect("what is held is somebody's");
        self.held -= std::mem::take(&mut longest.counted);
        (longest.answers, longest.out) = (Vec::new(), Outbound::new());
        (longest.ends, longest.left) = (true, true);
        let why =
            "its requests and answers took the most memory of all clients, and these too much";
        longest.why = Some(WireError::Refused(why.into()));
        longest.signals.close.notify_one();
    }

    /// A client is to be blamed for what it sent, when its connection has ended.
    pub(crate) fn blame(&mut self, id: ConnectionId, why: WireError) {
        if let Some(connection) = self.get(id) {
            connection.why.get_or_insert(why);
        }
    }

    /// What a client is to be blamed for.
    pub(crate) fn blamed(&mut self, id: ConnectionId) -> Option<WireError> {
        self.get(id)?.why.take()
    }

    /// The connection is to end; what was answered is still written.
    pub(crate) fn end(&mut self, id: ConnectionId) {
        if let Some(connection) = self.get(id) {
            connection.ends = true;
            connection.signals.close.notify_one();
        }
    }

    /// Whether a client is still to take something.
    pub(crate) fn waits(&mut self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(|one| !one.out.is_empty() || !one.answers.is_empty())
    }

    fn touch(&mut self, id: ConnectionId) {
        if let Some(connection) = self.get(id)
            && !std::mem::replace(&mut connection.touched, true)
        {
            self.touched.push(id);
        }
    }

    /// Whether so much waits for a client that it should be told to ask again.
    pub(crate) fn is_stuffed(&mut self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(|one| one.out.len() + one.answers.len() > STUFFED_LEN)
    }

    /// Whether so much waits for a client that it is to take some before it asks for more.
    pub(crate) fn is_behind(&mut self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(|one| one.out.len() + one.answers.len() > UNREAD_LEN)
    }

    /// Whether so much waits for a client that nothing more is to be read from it.
    pub(crate) fn is_full(&mut self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(|one| {
            let waiting = one.out.len() + one.answers.len();
            one.ends || waiting > UNREAD_LEN || waiting + one.expected > EXPECTED_LEN
        })
    }

    /// So many bytes of answers come from elsewhere.
    pub(crate) fn expect_bytes(&mut self, id: ConnectionId, len: usize) {
        if let Some(connection) = self.get(id) {
            connection.expected += len;
        }
    }

    /// So many of them are answered, or will not be.
    pub(crate) fn unexpect_bytes(&mut self, id: ConnectionId, len: usize) {
        if let Some(connection) = self.get(id) {
            connection.expected = connection.expected.saturating_sub(len);
            connection.signals.room.notify_one();
        }
    }

    /// Writes what was answered in this batch, as far as sockets take it.
    pub(crate) fn transmit(&mut self, counters: &Counters) {
        let mut touched = std::mem::take(&mut self.touched);
        for id in touched.drain(..) {
            self.transmit_to(id, counters);
        }
        self.touched = touched;
    }

    /// Writes what waits for a client, as far as its socket takes it; whether there still
    /// is one that does.
    pub(crate) fn transmit_to(&mut self, id: ConnectionId, counters: &Counters) -> bool {
        let Some(connection) = self.get(id) else { return false };
        connection.touched = false;
        if connection.left {
            return false;
        }
        if !connection.answers.is_empty() {
            connection.enframe();
            counters.frames.fetch_add(1, Ordering::Relaxed);
        }
        if connection.form == Form::Framed && connection.out.len() > UNTAKEN_MAX {
            // Whatever the socket would take now: how fast a client is decides nothing.
            tracing::info!("a client does not take its answers: closed");
            connection.signals.close.notify_one();
            return false;
        }
        match connection.write(counters) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.signals.blocked.notify_one();
            }
            Err(_) => {
                connection.signals.close.notify_one(); // It has gone, no more.
                return false;
            }
        }
        if connection.out.len() <= UNREAD_LEN {
            connection.signals.room.notify_one();
        }
        self.count(id);
        true
    }
}

impl Connection {
    /// Puts the answers into a frame, or drops one that is too long: who gives it checks that.
    fn enframe(&mut self) {
        let framed = match self.form {
            Form::Framed => self
                .out
                .write_to(|out| frame::encode(out, |into| into.extend_from_slice(&self.answers))),
            // Long answers are not copied.
            Form::Plain if self.answers.len() > KEPT_LEN => {
                self.out.push(std::mem::take(&mut self.answers).into());
                Ok(())
            }
            Form::Plain => {
                self.out.write_to(|out| out.extend_from_slice(&self.answers));
                Ok(())
            }
        };
        if let Err(error) = framed {
            tracing::error!(%error, "an answer cannot be sent");
            self.signals.close.notify_one();
        }
        self.answers.clear();
        if self.answers.capacity() > KEPT_LEN {
            self.answers = Vec::new();
        }
    }

    fn write(&mut self, counters: &Counters) -> io::Result<()> {
        while !self.out.is_empty() {
            let written = match self.out.write(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                written => written?,
            };
            counters.writes.fetch_add(1, Ordering::Relaxed);
            counters.bytes.fetch_add(written as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
