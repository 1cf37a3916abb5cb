//! Commands on one key, as the replicas of Hermes understand them: an RMW is a [`Modify`] with the
//! time of day at which it was asked, and its answer is a reply in bytes, which a replay knows too.

use crate::access::{Change, Modify};
use crate::item::{Item, Moment};
use crate::resp::Reply;
use bytes::{BufMut, Bytes, BytesMut};
use meridian_hermes as hermes;

/// A change that depends on what the key has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rmw {
    /// The change.
    pub modify: Modify,
    /// When it was asked.
    pub now: Moment,
}

impl hermes::Modify for Rmw {
    fn modify(&self, found: Option<&Bytes>) -> hermes::Modified {
        let item = match found.map(Item::decode) {
            None => None,
            Some(Ok(item)) => Some(item),
            Some(Err(error)) => {
                return hermes::Modified::Keep { answer: pack(&Reply::error(error.to_string())) };
            }
        };
        let (change, reply) = self.modify.apply(item.as_ref(), self.now);
        let answer = pack(&reply);
        match change {
            Change::Keep => hermes::Modified::Keep { answer },
            Change::Put(item) => hermes::Modified::Change { value: Some(item.encode()), answer },
            Change::Remove => hermes::Modified::Change { value: None, answer },
        }
    }

    fn bytes(&self) -> usize {
        match &self.modify {
            Modify::Set { data, .. } | Modify::Append(data) => data.len(),
            _ => 0,
        }
    }
}

const SIMPLE: u8 = 0;
const ERROR: u8 = 1;
const INTEGER: u8 = 2;
const BULK: u8 = 3;
const NULL: u8 = 4;

/// A reply of one key in bytes.
///
/// # Panics
/// If it is of another kind than the commands on one key answer.
pub fn pack(reply: &Reply) -> Bytes {
    let mut out = BytesMut::new();
    match reply {
        Reply::Simple(word) => {
            assert_eq!(*reply, Reply::OK, "no command on one key answers {word}");
            out.put_u8(SIMPLE);
        }
        Reply::Error(why) => {
            out.put_u8(ERROR);
            out.put_slice(why.as_bytes());
        }
        Reply::Integer(value) => {
            out.put_u8(INTEGER);
            out.put_i64_le(*value);
        }
        Reply::Bulk(bytes) => {
            out.put_u8(BULK);
            out.put_slice(bytes);
        }
        Reply::Null => out.put_u8(NULL),
        other => panic!("{other:?} is no reply of one key"),
    }
    out.freeze()
}

/// The reply that [`pack`] wrote.
pub fn unpack(bytes: &Bytes) -> Reply {
    let rest = bytes.slice(bytes.len().min(1)..);
    match (bytes.first(), rest.as_ref().try_into()) {
        (Some(&SIMPLE), _) => Reply::OK,
        (Some(&ERROR), _) => Reply::Error(String::from_utf8_lossy(&rest).into_owned().into()),
        (Some(&INTEGER), Ok(value)) => Reply::Integer(i64::from_le_bytes(value)),
        (Some(&BULK), _) => Reply::Bulk(rest),
        (Some(&NULL), _) => Reply::Null,
        _ => Reply::error("the answer of another version of this program cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_hermes::{Modified, Modify as _};

    #[test]
    fn a_reply_of_one_key_is_read_as_it_was_written() {
        let replies = [
            Reply::OK,
            Reply::error("no"),
            Reply::Integer(-7),
            Reply::bulk("bytes"),
            Reply::bulk(""),
            Reply::Null,
        ];
        for reply in replies {
            assert_eq!(unpack(&pack(&reply)), reply);
        }
        for bytes in [&[][..], &[9], &[INTEGER, 1]] {
            assert!(unpack(&Bytes::copy_from_slice(bytes)).is_error());
        }
    }

    #[test]
    fn an_rmw_changes_items_and_answers_in_bytes() {
        let rmw = Rmw { modify: Modify::Add(1), now: Moment(5) };
        let (value, answer) = (Some(Item::new("1").encode()), pack(&Reply::Integer(1)));
        assert_eq!(rmw.modify(None), Modified::Change { value, answer });
        let rmw = Rmw { modify: Modify::Take, now: Moment(5) };
        let (value, answer) = (None, pack(&Reply::bulk("v")));
        assert_eq!(rmw.modify(Some(&Item::new("v").encode())), Modified::Change { value, answer });
        assert_eq!(rmw.modify(None), Modified::Keep { answer: pack(&Reply::Null) });
        let Modified::Keep { answer } = rmw.modify(Some(&Bytes::from_static(&[9]))) else {
            panic!("a value that nobody wrote was changed")
        };
        assert!(unpack(&answer).is_error());
    }
}
