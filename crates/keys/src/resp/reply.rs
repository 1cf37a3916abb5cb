//! Replies, and how each version of the protocol writes them.

use super::write_integer;
use bytes::Bytes;
use std::borrow::Cow;

/// The version of RESP that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// What a connection speaks until it asks for more.
    #[default]
    Resp2,
    /// Asked for by `HELLO 3`.
    Resp3,
}

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// One of a few words, such as OK.
    Simple(&'static str),
    /// The request was not carried out; a word in capitals for programs, then why.
    Error(Cow<'static, str>),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Bytes),
    /// Text for people.
    Text(Cow<'static, str>),
    /// There is nothing.
    Null,
    /// Several in order.
    Array(Vec<Reply>),
    /// Pairs; in version 2 an array of twice the length.
    Map(Vec<(Reply, Reply)>),
    /// Several without an order; in version 2 an array.
    Set(Vec<Reply>),
    /// What was not asked for: several in order; in version 2 an array.
    Push(Vec<Reply>),
}

impl Reply {
    /// The usual answer of what only had to be done.
    pub const OK: Reply = Reply::Simple("OK");

    /// An error of no particular kind.
    pub fn error(why: impl AsRef<str>) -> Reply {
        Reply::Error(format!("ERR {}", why.as_ref()).into())
    }

    /// Some fixed bytes.
    pub fn bulk(text: &'static str) -> Reply {
        Reply::Bulk(Bytes::from_static(text.as_bytes()))
    }

    /// Whether the request was not carried out.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// So many bytes it takes in memory, about.
    pub fn len_bytes(&self) -> usize {
        let inside = match self {
            Reply::Simple(_) | Reply::Integer(_) | Reply::Null => 0,
            Reply::Error(text) | Reply::Text(text) => text.len(),
            Reply::Bulk(bytes) => bytes.len(),
            Reply::Array(all) | Reply::Set(all) | Reply::Push(all) => {
                all.iter().map(Reply::len_bytes).sum()
            }
            Reply::Map(pairs) => {
                pairs.iter().map(|(key, value)| key.len_bytes() + value.len_bytes()).sum()
            }
        };
        inside + size_of::<Reply>()
    }

    /// Appends it as `version` writes it.
    pub fn write(&self, version: Version, out: &mut Vec<u8>) {
        match self {
            Reply::Simple(word) => line(b'+', word.as_bytes(), out),
            Reply::Error(why) => {
                // A line's end in it would end the reply.
                let why: Vec<u8> =
                    why.bytes().map(|byte| if byte < b' ' { b' ' } else { byte }).collect();
                line(b'-', &why, out);
            }
            Reply::Integer(value) => head(b':', *value, out),
            Reply::Bulk(bytes) => bulk(bytes, out),
            Reply::Text(text) if version == Version::Resp3 => {
                head(b'=', signed(text.len() + 4), out);
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Reply::Text(text) => bulk(text.as_bytes(), out),
            Reply::Null if version == Version::Resp3 => out.extend_from_slice(b"_\r\n"),
            Reply::Null => out.extend_from_slice(b"$-1\r\n"),
            Reply::Array(items) => list(b'*', items, version, out),
            Reply::Set(items) if version == Version::Resp3 => list(b'~', items, version, out),
            Reply::Push(items) if version == Version::Resp3 => list(b'>', items, version, out),
            Reply::Set(items) | Reply::Push(items) => list(b'*', items, version, out),
            Reply::Map(pairs) => {
                match version {
                    Version::Resp3 => head(b'%', signed(pairs.len()), out),
                    Version::Resp2 => head(b'*', signed(2 * pairs.len()), out),
                }
                for (key, value) in pairs {
                    key.write(version, out);
                    value.write(version, out);
                }
            }
        }
    }
}

fn signed(len: usize) -> i64 {
    i64::try_from(len).expect("a length in memory")
}

fn head(marker: u8, number: i64, out: &mut Vec<u8>) {
    out.push(marker);
    write_integer(number, out);
    out.extend_from_slice(b"\r\n");
}

fn line(marker: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(marker);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    head(b'$', signed(bytes.len()), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn list(marker: u8, items: &[Reply], version: Version, out: &mut Vec<u8>) {
    head(marker, signed(items.len()), out);
    items.iter().for_each(|item| item.write(version, out));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, version: Version) -> String {
        let mut out = Vec::new();
        reply.write(version, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn each_reply_is_written_as_its_version_says() {
        let pair = vec![(Reply::bulk("proto"), Reply::Integer(3))];
        let cases = [
            (Reply::OK, "+OK\r\n", "+OK\r\n"),
            (Reply::error("no"), "-ERR no\r\n", "-ERR no\r\n"),
            (Reply::Integer(-7), ":-7\r\n", ":-7\r\n"),
            (Reply::bulk(""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (Reply::Null, "$-1\r\n", "_\r\n"),
            (Reply::Text("hi".into()), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
            (Reply::Array(vec![Reply::Null]), "*1\r\n$-1\r\n", "*1\r\n_\r\n"),
            (Reply::Set(vec![]), "*0\r\n", "~0\r\n"),
            (Reply::Push(vec![Reply::OK]), "*1\r\n+OK\r\n", ">1\r\n+OK\r\n"),
            (Reply::Map(pair), "*2\r\n$5\r\nproto\r\n:3\r\n", "%1\r\n$5\r\nproto\r\n:3\r\n"),
        ];
        for (reply, second, third) in cases {
            assert_eq!(written(&reply, Version::Resp2), second);
            assert_eq!(written(&reply, Version::Resp3), third);
        }
    }

    #[test]
    fn an_error_is_one_line_whatever_it_quotes() {
        let reply = Reply::error("unknown command 'a\r\n+OK\r\n'");
        assert_eq!(written(&reply, Version::Resp2), "-ERR unknown command 'a  +OK  '\r\n");
    }
}
