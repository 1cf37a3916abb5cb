//! A member for programs that want messages in order and no more: futures and a stream.

use crate::error::{MemberError, MulticastError};
use crate::handle::{Handle, Options, Worker};
use crate::hosted::Hosted;
use crate::peer::Counters;
use crate::replica::{Ask, Replica};
use bytes::Bytes;
use meridian_core::{GroupId, Position, ProcessId};
pub use meridian_multicast::outside::Outgoing;
use meridian_multicast::{Delivery, Timestamp, Touches};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// So many deliveries wait for their reader at most; then the member reads no sockets.
const DELIVERIES_MAX: usize = 64 << 10;
/// The same in bytes of what they say.
const DELIVERIES_BYTES_MAX: usize = 64 << 20;

/// What comes out of a member, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The next message.
    Message(Delivery),
    /// The member was away too long and got another's state, as that one's program gave it to
    /// [`Member::keep`]: it takes the place of all that was delivered here, and contains the first
    /// `position` deliveries. The ones after it follow.
    State {
        /// How many deliveries it contains.
        position: Position,
        /// What the other program gave.
        state: Bytes,
    },
}

impl Delivered {
    /// How much it says, in bytes.
    fn len(&self) -> usize {
        match self {
            Delivered::Message(delivery) => delivery.start.payload.len(),
            Delivered::State { state, .. } => state.len(),
        }
    }
}

/// How long a sender waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A group that had no quorum in reach for so long is sent nothing.
    pub refuse_after: Duration,
    /// A message that was not delivered after so long counts as held up.
    pub give_up_after: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { refuse_after: Duration::from_secs(3), give_up_after: Duration::from_secs(30) }
    }
}

/// One process of one group, from a program's point of view. It ends when all clones are gone.
pub struct Member<P: Hosted> {
    handle: Handle<Ask<P>>,
}

impl<P: Hosted> Clone for Member<P> {
    fn clone(&self) -> Self {
        Member { handle: self.handle.clone() }
    }
}

impl<P: Hosted> Member<P> {
    /// Starts one on a thread of its own.
    ///
    /// # Errors
    /// If the address cannot be listened on, the options contradict each other, or what is on disk
    /// cannot be used.
    pub async fn start(
        options: Options,
        process: P,
    ) -> Result<(Member<P>, Deliveries), MemberError> {
        let worker = Worker::start(&format!("member-{}", options.me.node.0))?;
        Member::start_on(&worker, options, process, Patience::default()).await
    }

    /// Starts one on a thread that may host others.
    ///
    /// # Errors
    /// As [`Member::start`].
    pub async fn start_on(
        worker: &Worker,
        options: Options,
        process: P,
        patience: Patience,
    ) -> Result<(Member<P>, Deliveries), MemberError> {
        let (told, messages) = mpsc::unbounded_channel();
        let waiting = Arc::new(Waiting::default());
        let replica = Replica::new(options.me, patience, told, waiting.clone());
        let handle = worker.host(options, process, replica).await?;
        Ok((Member { handle }, Deliveries { messages, waiting }))
    }

    /// Which member this is.
    pub fn me(&self) -> ProcessId {
        self.handle.me()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.handle.address()
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        self.handle.counters()
    }

    /// Multicasts a message that conflicts with all others; its timestamp, once it is delivered
    /// here.
    ///
    /// # Errors
    /// If it was refused or is held up; the error names the group.
    pub async fn multicast(
        &self,
        dest: &[GroupId],
        payload: impl Into<Bytes>,
    ) -> Result<Timestamp, MulticastError> {
        let (dest, payload) = (dest.to_vec(), payload.into());
        self.send(Outgoing { dest, payload, touches: Touches::All, after: Timestamp(0) }).await
    }

    /// Multicasts a message; its timestamp, once it is delivered here.
    ///
    /// # Errors
    /// If it was refused or is held up; the error names the group.
    pub async fn send(&self, message: Outgoing) -> Result<Timestamp, MulticastError> {
        let (done, ended) = oneshot::channel();
        let asked = self.handle.request(Ask::Multicast { message, done }).await;
        asked.map_err(|_| MulticastError::Stopped)?;
        ended.await.unwrap_or(Err(MulticastError::Stopped))
    }

    /// All messages with a lower timestamp have been delivered here.
    ///
    /// # Errors
    /// If the member has stopped.
    pub async fn safe_ts(&self) -> Result<Timestamp, MemberError> {
        let (answer, told) = oneshot::channel();
        self.handle.request(Ask::SafeTs(answer)).await?;
        told.await.map_err(|_| MemberError::Stopped)
    }

    /// How much memory the messages take that it keeps to order or repeat them, in bytes.
    ///
    /// # Errors
    /// If the member has stopped.
    pub async fn log_bytes(&self) -> Result<usize, MemberError> {
        let (answer, told) = oneshot::channel();
        self.handle.request(Ask::LogBytes(answer)).await?;
        told.await.map_err(|_| MemberError::Stopped)
    }

    /// The program's state after its first `position` deliveries. With it the member can bring up
    /// one that was away too long and, if it keeps a log on disk, replace the log by something
    /// shorter: a program that runs for long gives it now and then.
    ///
    /// # Errors
    /// If the member has stopped.
    pub async fn keep(
        &self,
        position: Position,
        state: impl Into<Bytes>,
    ) -> Result<(), MemberError> {
        self.handle.request(Ask::Keep { position, state: state.into() }).await
    }

    /// See [`Handle::cut`].
    ///
    /// # Errors
    /// If the member has stopped.
    pub async fn cut(&self, groups: BTreeSet<GroupId>) -> Result<(), MemberError> {
        self.handle.cut(groups).await
    }

    /// See [`Handle::close`].
    ///
    /// # Errors
    /// If it had stopped before, or the disk failed.
    pub async fn close(&self) -> Result<(), MemberError> {
        self.handle.close().await
    }
}

/// How many deliveries wait for their reader, and whom to tell when there is room again.
#[derive(Default)]
pub(crate) struct Waiting {
    count: AtomicUsize,
    bytes: AtomicUsize,
    pub(crate) room: std::sync::OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Waiting {
    /// Whether the member should deliver no more for now.
    pub(crate) fn is_full(&self) -> bool {
        let [count, bytes] = [&self.count, &self.bytes].map(|of| of.load(Ordering::Acquire));
        count >= DELIVERIES_MAX || bytes >= DELIVERIES_BYTES_MAX
    }

    /// One more waits.
    pub(crate) fn add(&self, told: &Delivered) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(told.len(), Ordering::AcqRel);
    }

    /// One is taken; the member is told if it may go on now.
    fn remove(&self, told: &Delivered) {
        let len = told.len();
        let count = self.count.fetch_sub(1, Ordering::AcqRel);
        let bytes = self.bytes.fetch_sub(len, Ordering::AcqRel);
        let below = |before: usize, taken: usize, max| before >= max && before - taken < max;
        if below(count, 1, DELIVERIES_MAX) || below(bytes, len, DELIVERIES_BYTES_MAX) {
            self.tell();
        }
    }

    /// Nobody wants any.
    pub(crate) fn clear(&self) {
        self.count.store(0, Ordering::Release);
        self.bytes.store(0, Ordering::Release);
    }

    fn tell(&self) {
        if let Some(room) = self.room.get() {
            room();
        }
    }
}

/// What a member delivers, in order. Who does not want it drops it: while nobody reads, up to
/// 65,536 deliveries or 64 MiB wait, and then the member reads no sockets. The others of its group
/// go on without it; it catches up once it is read again.
pub struct Deliveries {
    messages: mpsc::UnboundedReceiver<Delivered>,
    waiting: Arc<Waiting>,
}

impl Deliveries {
    /// The next one; `None` when the member has stopped and all is read.
    pub async fn next(&mut self) -> Option<Delivered> {
        let next = self.messages.recv().await?;
        self.waiting.remove(&next);
        Some(next)
    }

    /// The next message; what is installed instead of messages is passed over.
    pub async fn next_message(&mut self) -> Option<Delivery> {
        loop {
            if let Delivered::Message(delivery) = self.next().await? {
                return Some(delivery);
            }
        }
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.waiting.clear();
        self.waiting.tell();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn state(len: usize) -> Delivered {
        Delivered::State { position: Position(1), state: Bytes::from(vec![0; len]) }
    }

    /// A member that is full is told once there is room, whichever bound it was.
    #[test]
    fn deliveries_that_nobody_reads_are_bounded_in_number_and_in_bytes() {
        let told = Arc::new(AtomicUsize::new(0));
        let (waiting, counts) = (Waiting::default(), told.clone());
        let room = move || {
            counts.fetch_add(1, Ordering::AcqRel);
        };
        assert!(waiting.room.set(Box::new(room)).is_ok());
        let told = || told.load(Ordering::Acquire);
        let (long, short) = (state(DELIVERIES_BYTES_MAX / 2), state(1));
        waiting.add(&long);
        waiting.add(&short);
        assert!(!waiting.is_full());
        waiting.add(&long);
        assert!(waiting.is_full());
        waiting.remove(&short);
        assert!(waiting.is_full() && told() == 0);
        waiting.remove(&long);
        assert!(!waiting.is_full() && told() == 1);
        waiting.remove(&long);
        (0..DELIVERIES_MAX).for_each(|_| waiting.add(&short));
        assert!(waiting.is_full());
        waiting.remove(&short);
        assert!(!waiting.is_full() && told() == 2);
    }
}
