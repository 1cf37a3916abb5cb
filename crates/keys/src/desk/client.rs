//! One client of a thread: what it has sent, and its requests that are not answered.

use super::{ClientNumber, Counter};
use crate::command::Combined;
use crate::connection::Peer;
use crate::resp::{ProtocolError, Reply, Request, Requests, Version};
use crate::slots::Shard;
use std::collections::{BTreeSet, VecDeque};

/// A word of a request that is under way takes so many bytes beside its own, about: it is a wish
/// for a replica, and what waits for the answer.
const WORD_LEN: usize = 256;

/// A request and its reply.
#[derive(Debug)]
pub(super) struct Slot {
    version: Version,
    pub reply: Progress,
    /// So many bytes it takes until it is written: the request while that is under way, then the
    /// reply.
    len: usize,
}

#[derive(Debug)]
pub(super) enum Progress {
    Done(Reply),
    One,
    Many {
        combined: Combined,
        parts: Vec<Option<Reply>>,
        left: usize,
    },
    /// Some keys of that shard; of a type that there is not, if `none`.
    Page {
        shard: Shard,
        none: bool,
    },
}

/// What a client has in a desk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// So many of its requests are not answered.
    pub unanswered: usize,
    /// So many bytes these take that are with replicas, which end them whatever the client does.
    pub under_way: usize,
    /// So many bytes are kept until the client goes on: requests that are not whole, and replies
    /// that it does not take.
    pub kept: usize,
}

#[derive(Debug)]
pub(super) struct Client {
    pub requests: Requests,
    pub peer: Peer,
    /// Requests whose replies are not written.
    pub slots: VecDeque<Slot>,
    /// The number of the first of them.
    pub first: u64,
    under_way: usize,
    /// The replies that are known take so many bytes.
    replied: usize,
}

impl Client {
    pub fn new(peer: Peer) -> Client {
        let (requests, slots) = (Requests::default(), VecDeque::new());
        Client { requests, peer, slots, first: 0, under_way: 0, replied: 0 }
    }

    pub fn load(&self) -> Load {
        let kept = self.requests.len_bytes() + self.replied;
        Load { unanswered: self.slots.len(), under_way: self.under_way, kept }
    }

    /// What a request takes while it is under way.
    pub fn len_of(request: &Request<'_>) -> usize {
        request.len_bytes() + request.len() * WORD_LEN
    }

    /// It has asked for something more, in a request that takes so many bytes.
    pub fn push(&mut self, reply: Progress, request_len: usize) {
        let len = match &reply {
            Progress::Done(reply) => {
                let len = reply.len_bytes();
                self.replied += len;
                len
            }
            Progress::One | Progress::Many { .. } | Progress::Page { .. } => {
                self.under_way += request_len;
                request_len
            }
        };
        // A version that was just asked for is that of the answer, too.
        self.slots.push_back(Slot { version: self.peer.version, reply, len });
    }

    /// What it has sent is no request: nothing more is taken, and it ends when it has this reply.
    pub fn refuse(
        &mut self,
        number: ClientNumber,
        error: &ProtocolError,
        counter: &mut impl Counter,
    ) -> Progress {
        self.peer.ends = true;
        self.requests = Requests::default();
        counter.blame(number, error);
        Progress::Done(Reply::error(format!("Protocol error: {error}")))
    }

    /// The reply to the request in that place is known.
    pub fn done(&mut self, place: usize, reply: Reply) {
        let slot = &mut self.slots[place];
        let len = reply.len_bytes();
        self.under_way -= std::mem::replace(&mut slot.len, len);
        self.replied += len;
        slot.reply = Progress::Done(reply);
    }

    /// Writes the replies up to the first that is not known, as long as the client takes them:
    /// those of many requests may have become known at once. It is `behind` if some are left.
    pub fn write(
        &mut self,
        number: ClientNumber,
        behind: &mut BTreeSet<ClientNumber>,
        counter: &mut impl Counter,
    ) {
        while let Some(Slot { reply: Progress::Done(reply), version, len }) = self.slots.front() {
            if counter.is_stuffed(number) {
                behind.insert(number);
                return;
            }
            counter.write(number, reply, *version);
            self.replied -= len;
            self.slots.pop_front();
            self.first += 1;
        }
        if self.peer.ends && self.slots.is_empty() {
            counter.end(number);
        }
    }
}
