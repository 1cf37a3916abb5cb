//! Answers out of the bytes of a connection, for clients: the part of RESP 2 that servers of keys
//! speak until they are asked for more.

use super::{BULK_MAX, integer};
use bytes::Bytes;
use thiserror::Error;

/// Answers within answers, at most.
const DEPTH_MAX: usize = 8;

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// A word or an error's line.
    Line(String),
    /// It refuses; why.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Bytes),
    /// Nothing.
    Null,
    /// Several.
    Array(Vec<Answered>),
}

/// What came is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("what the server answers is not RESP 2: {0}")]
pub struct AnswerError(pub String);

/// Reads one answer from the front of `bytes`: it, and how long it was; nothing if it is not whole.
///
/// # Errors
/// If it is none.
pub fn read(bytes: &[u8]) -> Result<Option<(Answered, usize)>, AnswerError> {
    let mut reader = Reader { bytes, at: 0 };
    Ok(reader.answer(0)?.map(|answer| (answer, reader.at)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn answer(&mut self, depth: usize) -> Result<Option<Answered>, AnswerError> {
        let wrong = |what: &str| Err(AnswerError(what.into()));
        let Some(line) = self.line() else { return Ok(None) };
        let Some((marker, rest)) = line.split_first() else { return wrong("an empty line") };
        let text = || String::from_utf8_lossy(rest).into_owned();
        Ok(Some(match (marker, integer(rest)) {
            (b'+', _) => Answered::Line(text()),
            (b'-', _) => Answered::Error(text()),
            (b':', Some(value)) => Answered::Integer(value),
            (b'$' | b'*', Some(-1)) => Answered::Null,
            (b'$', Some(len)) => match usize::try_from(len) {
                Ok(len) if len <= BULK_MAX => return self.bulk(len),
                _ => return wrong("a length"),
            },
            (b'*', Some(count)) if depth < DEPTH_MAX => {
                let mut items = Vec::new();
                for _ in 0..count {
                    let Some(item) = self.answer(depth + 1)? else { return Ok(None) };
                    items.push(item);
                }
                Answered::Array(items)
            }
            _ => return wrong(&format!("{:?}", String::from_utf8_lossy(line))),
        }))
    }

    /// The next line, without its end.
    fn line(&mut self) -> Option<&'_ [u8]> {
        let rest = &self.bytes[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        self.at += end + 2;
        Some(&rest[..end])
    }

    fn bulk(&mut self, len: usize) -> Result<Option<Answered>, AnswerError> {
        let rest = &self.bytes[self.at..];
        if rest.len() < len + 2 {
            return Ok(None);
        }
        if &rest[len..len + 2] != b"\r\n" {
            return Err(AnswerError("a value is longer than was announced".into()));
        }
        self.at += len + 2;
        Ok(Some(Answered::Bulk(Bytes::copy_from_slice(&rest[..len]))))
    }
}

/// Appends a request.
pub fn write_request<'a>(words: impl IntoIterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    let words: Vec<_> = words.into_iter().collect();
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reply, Requests, Version};
    use super::*;
    use proptest::prelude::*;

    fn reply() -> impl Strategy<Value = Reply> {
        let one = prop_oneof![
            Just(Reply::OK),
            Just(Reply::Null),
            any::<i64>().prop_map(Reply::Integer),
            "[a-z ]{0,20}".prop_map(|why| Reply::error(&why)),
            any::<Vec<u8>>().prop_map(|bytes| Reply::Bulk(bytes.into())),
        ];
        one.prop_recursive(3, 20, 4, |one| prop::collection::vec(one, 0..4).prop_map(Reply::Array))
    }

    fn answered(reply: &Reply) -> Answered {
        match reply {
            Reply::Simple(word) => Answered::Line((*word).into()),
            Reply::Error(why) => Answered::Error(why.clone().into_owned()),
            Reply::Integer(value) => Answered::Integer(*value),
            Reply::Bulk(bytes) => Answered::Bulk(bytes.clone()),
            Reply::Null => Answered::Null,
            Reply::Array(items) => Answered::Array(items.iter().map(answered).collect()),
            other => panic!("{other:?} is not drawn"),
        }
    }

    proptest! {
        #[test]
        fn an_answer_is_read_as_the_reply_was_written(reply in reply(), more: Vec<u8>) {
            let mut bytes = Vec::new();
            reply.write(Version::Resp2, &mut bytes);
            let len = bytes.len();
            for part in 0..len {
                prop_assert_eq!(read(&bytes[..part]), Ok(None));
            }
            bytes.extend_from_slice(&more);
            prop_assert_eq!(read(&bytes), Ok(Some((answered(&reply), len))));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_request_is_read_as_it_was_written(
            words in prop::collection::vec(any::<Vec<u8>>(), 1..5),
        ) {
            let mut bytes = Vec::new();
            write_request(words.iter().map(Vec::as_slice), &mut bytes);
            let mut requests = Requests::default();
            requests.feed(&bytes);
            let request = requests.take().expect("a request").expect("a whole one");
            prop_assert_eq!(request.from(0).map(<[u8]>::to_vec).collect::<Vec<_>>(), words);
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for bytes in [&b"\r\n"[..], b"!x\r\n", b"$-2\r\n", b":x\r\n", b"$1\r\nabc\r\n", b"_\r\n"] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        assert!(read(b"*1\r\n".repeat(100).as_slice()).is_err());
    }
}
