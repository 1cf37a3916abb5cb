//! Requests, and the batch of them that one instance decides (report, section 6.2).
//!
//! A batch is one piece of memory: the requests one after the other, each with client (8 bytes,
//! little endian), sequence (8), kind (1), length (4) and payload. It travels and is logged as it
//! is, and the payloads that services see are parts of it. Their order in the batch is that of
//! their execution.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use meridian_core::ClientId;
use serde::{Deserialize, Serialize};

/// The bytes of a request in a batch beside its payload.
pub const REQUEST_HEADER_LEN: usize = 21;

/// What is to be done with the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// The service executes it.
    Execute,
    /// It is a [`crate::Change`] of the members.
    Reconfigure,
}

/// A request of a client. Unique by client and sequence (report, section 5.1.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Request {
    /// Who asks.
    pub client: ClientId,
    /// The client's number for it, from 1; the next is only sent when this one is answered.
    pub sequence: u64,
    /// What the payload is.
    pub kind: Kind,
    /// What is asked.
    pub payload: Bytes,
}

impl Request {
    /// How many bytes it takes in a batch.
    pub fn len(&self) -> usize {
        REQUEST_HEADER_LEN + self.payload.len()
    }

    /// Never: it names its client.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// The value of an instance: requests, in order. Empty to fill an instance that decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batch(Bytes);

impl Batch {
    /// One of these requests.
    pub fn new<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Batch {
        let mut bytes = BytesMut::new();
        for request in requests {
            bytes.reserve(request.len());
            bytes.put_u64_le(request.client.0);
            bytes.put_u64_le(request.sequence);
            bytes.put_u8(request.kind as u8);
            bytes.put_u32_le(u32::try_from(request.payload.len()).expect("shorter than the limit"));
            bytes.put_slice(&request.payload);
        }
        Batch(bytes.freeze())
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no requests in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The requests, in order; what follows something that is none is left out, at all replicas
    /// alike.
    pub fn requests(&self) -> Requests {
        Requests(self.0.clone())
    }
}

/// The requests of a [`Batch`].
#[derive(Clone, Debug)]
pub struct Requests(Bytes);

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.0.len() < REQUEST_HEADER_LEN {
            return None;
        }
        let client = ClientId(self.0.get_u64_le());
        let sequence = self.0.get_u64_le();
        let kind = match self.0.get_u8() {
            0 => Kind::Execute,
            1 => Kind::Reconfigure,
            _ => return None,
        };
        let len = self.0.get_u32_le() as usize;
        if self.0.len() < len {
            self.0.clear();
            return None;
        }
        let payload = self.0.split_to(len);
        Some(Request { client, sequence, kind, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(client: u64, payload: &'static [u8]) -> Request {
        let (kind, payload) = (Kind::Execute, Bytes::from_static(payload));
        Request { client: ClientId(client), sequence: client + 1, kind, payload }
    }

    #[test]
    fn a_batch_holds_its_requests_in_order() {
        let last = Request { kind: Kind::Reconfigure, ..request(9, b"") };
        let requests = [request(7, b"seven"), request(1, b""), last];
        let batch = Batch::new(&requests);
        assert_eq!(batch.len(), requests.iter().map(Request::len).sum::<usize>());
        assert!(batch.requests().eq(requests));
        assert!(Batch::default().requests().next().is_none());
    }

    #[test]
    fn no_bytes_panic() {
        let whole = Batch::new(&[request(1, b"one"), request(2, b"two")]).0;
        for cut in 0..whole.len() {
            let found = Batch(whole.slice(..cut)).requests().count();
            assert_eq!(found, usize::from(cut >= whole.len() / 2), "{cut}");
        }
        let mut bad = BytesMut::from(&whole[..]);
        bad[16] = 7;
        assert_eq!(Batch(bad.freeze()).requests().count(), 0);
    }
}
