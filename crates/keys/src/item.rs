//! What a key has: bytes, and when it expires. As the replicas keep it: one byte that tells whether
//! it expires, eight bytes with the time if so, then the bytes themselves.

use bytes::{BufMut, Bytes, BytesMut};
use std::time::Duration;
use thiserror::Error;

/// A time of day: milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// The time left from `now` on, none if it has passed.
    pub fn left_at(self, now: Moment) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }
}

const FOR_EVER: u8 = 0;
const EXPIRES: u8 = 1;

/// What a key has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The value.
    pub data: Bytes,
    /// From when on the key is as if it had none; None: never.
    pub expires: Option<Moment>,
}

/// What was kept is no item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the stored value of a key begins with {0:?}, which no version of this program writes")]
pub struct ItemError(pub Option<u8>);

impl Item {
    /// A value that does not expire.
    pub fn new(data: impl Into<Bytes>) -> Item {
        Item { data: data.into(), expires: None }
    }

    /// Whether it has expired.
    pub fn is_expired(&self, now: Moment) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// As it is kept and sent.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.data.len() + 9);
        match self.expires {
            None => bytes.put_u8(FOR_EVER),
            Some(Moment(time)) => {
                bytes.put_u8(EXPIRES);
                bytes.put_u64_le(time);
            }
        }
        bytes.put_slice(&self.data);
        bytes.freeze()
    }

    /// Reads what [`Item::encode`] wrote. The data is a part of `bytes`.
    ///
    /// # Errors
    /// If `bytes` were written by something else.
    pub fn decode(bytes: &Bytes) -> Result<Item, ItemError> {
        let (expires, data) = head(bytes)?;
        Ok(Item { data: bytes.slice(data..), expires })
    }

    /// Whether `bytes` are an item that has not expired.
    pub fn is_live(bytes: &[u8], now: Moment) -> bool {
        head(bytes).is_ok_and(|(expires, _)| expires.is_none_or(|expires| expires > now))
    }
}

/// When an item expires, and where its data begins.
fn head(bytes: &[u8]) -> Result<(Option<Moment>, usize), ItemError> {
    match bytes.first() {
        Some(&FOR_EVER) => Ok((None, 1)),
        Some(&EXPIRES) => {
            let time = bytes.get(1..9).and_then(|time| time.try_into().ok());
            let time = time.map(u64::from_le_bytes).ok_or(ItemError(Some(EXPIRES)))?;
            Ok((Some(Moment(time)), 9))
        }
        other => Err(ItemError(other.copied())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_item_is_read_as_it_was_written(data: Vec<u8>, expires: Option<u64>, now: u64) {
            let item = Item { data: data.into(), expires: expires.map(Moment) };
            let (bytes, now) = (item.encode(), Moment(now));
            prop_assert_eq!(Item::is_live(&bytes, now), !item.is_expired(now));
            prop_assert_eq!(Item::decode(&bytes), Ok(item));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Item::decode(&bytes.into());
        }
    }

    #[test]
    fn what_nobody_wrote_is_refused() {
        assert_eq!(Item::decode(&Bytes::new()), Err(ItemError(None)));
        assert_eq!(Item::decode(&Bytes::from_static(&[2, 0])), Err(ItemError(Some(2))));
        assert_eq!(Item::decode(&Bytes::from_static(&[1, 0])), Err(ItemError(Some(1))));
    }
}
