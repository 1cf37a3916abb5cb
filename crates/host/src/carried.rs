//! Blocks in requests and replies, of which no copy is made (decision 106).
//!
//! A block may be as long as all else that a client and a node say to each other in a second. Who
//! sends it writes it from where it lies ([`meridian_core::carried::encode`]), and who receives it
//! keeps a part of the frame. On the wire both are plain postcard, as all other messages.

use crate::api::{Reply, ReplyBody, Request, RequestBody};
use bytes::Bytes;
use meridian_core::{BlockId, carried};

/// The number of [`RequestBody::PutBlock`] among the kinds of requests.
const PUT_BLOCK: u32 = 3;
/// The number of [`ReplyBody::Block`] among the kinds of replies.
const BLOCK: u32 = 4;

impl RequestBody {
    /// The bytes in it that are not copied.
    pub fn carried(&self) -> Option<&Bytes> {
        match self {
            RequestBody::PutBlock { data, .. } => carried::long(data),
            _ => None,
        }
    }
}

impl ReplyBody {
    /// The bytes in it that are not copied.
    pub fn carried(&self) -> Option<&Bytes> {
        match self {
            ReplyBody::Block(data) => carried::long(data),
            _ => None,
        }
    }
}

/// Takes a request off the beginning of `rest`, which is what is left of the body of a frame; also
/// gives what follows.
///
/// # Errors
/// If what comes first is none.
pub fn take_request<'a>(body: &Bytes, rest: &'a [u8]) -> postcard::Result<(Request, &'a [u8])> {
    let ((id, kind), inside) = postcard::take_from_bytes::<(u64, u32)>(rest)?;
    if kind != PUT_BLOCK {
        return postcard::take_from_bytes(rest);
    }
    let (block, inside) = postcard::take_from_bytes::<BlockId>(inside)?;
    let (data, rest) = carried::take(body, inside)?;
    Ok((Request { id, body: RequestBody::PutBlock { block, data } }, rest))
}

/// The same with a reply.
///
/// # Errors
/// If what comes first is none.
pub fn take_reply<'a>(body: &Bytes, rest: &'a [u8]) -> postcard::Result<(Reply, &'a [u8])> {
    let ((id, kind), inside) = postcard::take_from_bytes::<(u64, u32)>(rest)?;
    if kind != BLOCK {
        return postcard::take_from_bytes(rest);
    }
    let (data, rest) = carried::take(body, inside)?;
    Ok((Reply { id, body: ReplyBody::Block(data) }, rest))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use meridian_core::carried::CARRIED_MIN;
    use proptest::prelude::*;

    /// More than there are kinds of requests, and of replies.
    const KINDS: u32 = 20;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// Of whatever kind it is, and whether it is one.
        #[test]
        fn what_is_taken_is_what_postcard_takes(
            id: u64,
            kind in 0..KINDS,
            // With short lengths, and options and kinds that there are, more of it is read.
            after in prop_oneof![any::<Vec<u8>>(), prop::collection::vec(0..4_u8, 0..99)],
        ) {
            let mut bytes = postcard::to_stdvec(&(id, kind)).unwrap();
            bytes.extend(after);
            let body = Bytes::from(bytes);
            let (taken, plain) = (take_request(&body, &body), postcard::take_from_bytes(&body));
            prop_assert_eq!(taken.ok(), plain.ok());
            let (taken, plain) = (take_reply(&body, &body), postcard::take_from_bytes(&body));
            prop_assert_eq!(taken.ok(), plain.ok());
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let body = Bytes::from(bytes);
            let _ = (take_request(&body, &body).is_ok(), take_reply(&body, &body).is_ok());
        }

        #[test]
        fn blocks_are_sent_and_taken(id: u64, block: u128, data: Vec<u8>, long: bool, again: u64) {
            let len = data.len() + if long { CARRIED_MIN } else { 0 };
            let data: Bytes = data.into_iter().chain(std::iter::repeat(5)).take(len).collect();
            let block = BlockId(block);
            let body = RequestBody::PutBlock { block, data: data.clone() };
            let request = Request { id, body };
            let reply = Reply { id, body: ReplyBody::Block(data.clone()) };
            prop_assert_eq!(request.body.carried(), Some(&data).filter(|_| long));
            prop_assert_eq!(reply.body.carried(), Some(&data).filter(|_| long));
            // Another may follow in the frame.
            let next = Request { id: again, body: RequestBody::Status };
            let next = postcard::to_stdvec(&next).unwrap();
            let body: Bytes = [postcard::to_stdvec(&request).unwrap(), next].concat().into();
            let (taken, rest) = take_request(&body, &body).unwrap();
            prop_assert_eq!(&taken, &request);
            prop_assert_eq!(take_request(&body, rest).unwrap().0.id, again);
            let carried = taken.body.carried().is_some_and(|data| is_part(&body, data));
            prop_assert_eq!(carried, long);
            let body = Bytes::from(postcard::to_stdvec(&reply).unwrap());
            let (taken, rest) = take_reply(&body, &body).unwrap();
            prop_assert_eq!((&taken, rest), (&reply, &[][..]));
            let carried = taken.body.carried().is_some_and(|data| is_part(&body, data));
            prop_assert_eq!(carried, long);
        }
    }

    fn is_part(of: &Bytes, data: &Bytes) -> bool {
        of.as_ptr_range().contains(&data.as_ptr())
    }
}
