//! Connections of clients.
//!
//! A connection is one task that reads and writes. Replies come from the process (on this thread)
//! and from the disk (on others) and are framed where they come from. What a client has asked and
//! not yet taken is bounded: beyond a number of requests it is refused, beyond a number of bytes its
//! socket is not read.

use crate::peer::WRITE_LEN;
use crate::service::Service;
use crate::shared::{Input, Shared};
use bytes::BytesMut;
use meridian_core::{Event, Time};
use meridian_host::ConnectionId;
use meridian_host::api::{NAMES_MAX, Refusal, Reply, ReplyBody, Request, RequestBody};
use meridian_runtime::wire::{FrameReader, WireError, decode, encode};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, mpsc};

/// Requests of one connection that may wait for their reply.
const IN_FLIGHT_MAX: usize = 4096;
/// A request that has waited so long is counted no more: clients have given up by then.
const IN_FLIGHT_FOR: Duration = Duration::from_secs(120);
/// Bytes of blocks under way and of replies that the client has not taken.
const BYTES_MAX: usize = 32 << 20;

/// A reply on its way to the socket.
#[derive(Debug)]
struct Framed {
    id: u64,
    frame: BytesMut,
}

/// Where replies to a client go; for any thread.
#[derive(Clone, Debug)]
pub(crate) struct ReplySender {
    frames: mpsc::UnboundedSender<Framed>,
    bytes: Arc<AtomicUsize>,
}

impl ReplySender {
    /// Queues a reply; nothing happens if the client is gone.
    pub(crate) fn reply(&self, reply: &Reply) {
        let mut frame = BytesMut::new();
        if let Err(error) = encode(&mut frame, reply) {
            let body = ReplyBody::Refused(Refusal::Bad(format!("the answer: {error}")));
            encode(&mut frame, &Reply { id: reply.id, body }).expect("a short reply");
        }
        self.bytes.fetch_add(frame.len(), Ordering::Relaxed);
        // The receiver is gone when the connection is: so are the bytes that were counted.
        let _ = self.frames.send(Framed { id: reply.id, frame });
    }
}

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Client {
    id: ConnectionId,
    sender: ReplySender,
    /// When each request came that has no reply yet, and the bytes that it keeps busy.
    in_flight: RefCell<BTreeMap<u64, (Time, usize)>>,
    /// Replies were taken.
    room: Notify,
}

impl Client {
    pub(crate) fn sender(&self) -> &ReplySender {
        &self.sender
    }

    /// Notes a request; tells whether there is room for it.
    fn begin(&self, now: Time, request: u64, bytes: usize) -> bool {
        let mut in_flight = self.in_flight.borrow_mut();
        if in_flight.len() >= IN_FLIGHT_MAX {
            in_flight.retain(|_, (since, bytes)| {
                let keep = now.since(*since) < IN_FLIGHT_FOR;
                if !keep {
                    self.sender.bytes.fetch_sub(*bytes, Ordering::Relaxed);
                }
                keep
            });
        }
        if in_flight.len() >= IN_FLIGHT_MAX {
            return false;
        }
        self.sender.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some((_, before)) = in_flight.insert(request, (now, bytes)) {
            self.sender.bytes.fetch_sub(before, Ordering::Relaxed);
        }
        true
    }

    /// A reply was given to the socket.
    fn end(&self, request: u64, frame_len: usize) {
        let bytes = self.in_flight.borrow_mut().remove(&request).map_or(0, |(_, bytes)| bytes);
        self.sender.bytes.fetch_sub(bytes + frame_len, Ordering::Relaxed);
        self.room.notify_one();
    }

    /// Waits until the client has taken enough of what it asked for.
    async fn room(&self) {
        while self.sender.bytes.load(Ordering::Relaxed) > BYTES_MAX {
            self.room.notified().await;
        }
    }
}

/// Serves a client that has said who it is, until the connection ends.
pub(crate) async fn serve<P: Service>(
    shared: &Shared<P>,
    reader: FrameReader,
    writer: OwnedWriteHalf,
) -> Result<Infallible, WireError> {
    let id = ConnectionId(shared.next_connection());
    let (frames, receiver) = mpsc::unbounded_channel();
    let client = Rc::new(Client {
        id,
        sender: ReplySender { frames, bytes: Arc::default() },
        in_flight: RefCell::default(),
        room: Notify::new(),
    });
    shared.clients.borrow_mut().insert(id, client.clone());
    let ended = tokio::select! {
        biased;
        ended = read(shared, &client, reader) => ended,
        ended = write(shared, &client, writer, receiver) => ended,
    };
    shared.clients.borrow_mut().remove(&id);
    shared.push(Input::Event(Event::Command(P::closed(id))));
    ended
}

async fn read<P: Service>(
    shared: &Shared<P>,
    client: &Client,
    mut reader: FrameReader,
) -> Result<Infallible, WireError> {
    loop {
        while let Some(body) = reader.buffered()? {
            client.room().await;
            on_request(shared, client, decode(&body)?);
        }
        shared.room().await;
        reader.fill().await?;
    }
}

fn on_request<P: Service>(shared: &Shared<P>, client: &Client, request: Request) {
    let id = request.id;
    let bytes = match &request.body {
        RequestBody::PutBlock { data, .. } => data.len(),
        // The block may be shorter, but no longer than what fits in a frame.
        RequestBody::GetBlock { len, .. } => (*len as usize).min(meridian_core::frame::MAX_BODY),
        RequestBody::Update { .. }
        | RequestBody::Read { .. }
        | RequestBody::ListBlocks { .. }
        | RequestBody::Status => 0,
    };
    if !client.begin(shared.now(), id, bytes) {
        let body = ReplyBody::Refused(Refusal::Overloaded);
        return client.sender.reply(&Reply { id, body });
    }
    match request.body {
        RequestBody::Update { .. } | RequestBody::Read { .. } => {
            shared.push(Input::Event(Event::Command(P::request(client.id, request))));
        }
        RequestBody::Status => shared.push(Input::Status { connection: client.id, id }),
        RequestBody::ListBlocks { after } => {
            let body = ReplyBody::Blocks(shared.blocks.names(after, NAMES_MAX));
            client.sender.reply(&Reply { id, body });
        }
        RequestBody::PutBlock { block, data } => {
            let sender = client.sender.clone();
            let done = move |body| sender.reply(&Reply { id, body });
            shared.blocks.put(block, data, Box::new(done));
        }
        RequestBody::GetBlock { block, offset, len } => {
            let sender = client.sender.clone();
            let done = move |body| sender.reply(&Reply { id, body });
            shared.blocks.get(block, offset, len, Box::new(done));
        }
    }
}

async fn write<P: Service>(
    shared: &Shared<P>,
    client: &Client,
    mut socket: OwnedWriteHalf,
    mut replies: mpsc::UnboundedReceiver<Framed>,
) -> Result<Infallible, WireError> {
    let mut out = BytesMut::new();
    encode(&mut out, &shared.hello())?;
    socket.write_all(&out).await?;
    out.clear();
    loop {
        let mut next = replies.recv().await;
        while let Some(Framed { id, frame }) = next {
            client.end(id, frame.len());
            if out.is_empty() {
                out = frame;
            } else {
                out.extend_from_slice(&frame);
            }
            next = if out.len() < WRITE_LEN { replies.try_recv().ok() } else { None };
        }
        socket.write_all(&out).await?;
        out.clear();
    }
}
