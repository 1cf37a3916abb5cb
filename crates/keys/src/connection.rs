//! What a connection of a client remembers, and what it answers of itself.

use crate::command::Connection;
use crate::desk::watch::Subject;
use crate::resp::{Reply, Version};
use bytes::Bytes;
use meridian_core::ClientId;

/// The longest name of a connection, in bytes.
const NAME_MAX: usize = 256;

/// What a connection remembers between requests.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its number, of which no other of this server has the same.
    pub id: i64,
    /// Which version it speaks.
    pub version: Version,
    /// What the client calls it.
    pub name: Bytes,
    /// The client that its requests are of, if they have names.
    pub client: Option<ClientId>,
    /// The keys of whose changes it is told, if it is.
    pub watches: Option<Subject>,
    /// Whether it is a session of causal keys.
    pub is_session: bool,
    /// It ends once the last answer is written.
    pub ends: bool,
}

impl Peer {
    /// A new connection.
    pub fn new(id: i64) -> Peer {
        let (version, name) = (Version::Resp2, Bytes::new());
        let (client, watches, is_session, ends) = (None, None, false, false);
        Peer { id, version, name, client, watches, is_session, ends }
    }

    /// What is answered. The version that is spoken may be another after it.
    pub fn handle(&mut self, asked: &Connection<'_>) -> Reply {
        match asked {
            Connection::Ping(None) => Reply::Simple("PONG"),
            Connection::Ping(Some(bytes)) | Connection::Echo(bytes) => {
                Reply::Bulk(Bytes::copy_from_slice(bytes))
            }
            Connection::Hello { version, name, authenticates } => {
                self.hello(*version, *name, *authenticates)
            }
            Connection::Select(0) => Reply::OK,
            Connection::Select(_) => Reply::error("DB index is out of range: there is only 0"),
            Connection::Reset if self.watches.is_some() => {
                Reply::error("this connection watches: it can only end")
            }
            Connection::Reset => {
                *self = Peer::new(self.id);
                Reply::Simple("RESET")
            }
            Connection::Quit => {
                self.ends = true;
                Reply::OK
            }
            Connection::Authenticate => no_password(),
            Connection::Id => Reply::Integer(self.id),
            Connection::Name if self.name.is_empty() => Reply::Null,
            Connection::Name => Reply::Bulk(self.name.clone()),
            Connection::SetName(name) => match self.rename(name) {
                Ok(()) => Reply::OK,
                Err(error) => error,
            },
            Connection::SetInfo => Reply::OK,
        }
    }

    fn hello(&mut self, version: Option<i64>, name: Option<&[u8]>, authenticates: bool) -> Reply {
        if authenticates {
            return no_password();
        }
        let version = match version {
            None => self.version,
            Some(2) => Version::Resp2,
            Some(3) => Version::Resp3,
            Some(_) => return Reply::Error("NOPROTO unsupported protocol version".into()),
        };
        if let Some(name) = name
            && let Err(error) = self.rename(name)
        {
            return error;
        }
        self.version = version;
        let proto = if version == Version::Resp3 { 3 } else { 2 };
        Reply::Map(vec![
            (Reply::bulk("server"), Reply::bulk("meridian")),
            (Reply::bulk("version"), Reply::bulk(env!("CARGO_PKG_VERSION"))),
            (Reply::bulk("proto"), Reply::Integer(proto)),
            (Reply::bulk("id"), Reply::Integer(self.id)),
            (Reply::bulk("mode"), Reply::bulk("standalone")),
            (Reply::bulk("role"), Reply::bulk("master")),
            (Reply::bulk("modules"), Reply::Array(Vec::new())),
        ])
    }

    fn rename(&mut self, name: &[u8]) -> Result<(), Reply> {
        if name.len() > NAME_MAX || !name.iter().all(u8::is_ascii_graphic) {
            return Err(Reply::error(format!(
                "a connection's name has at most {NAME_MAX} bytes, no blanks or special characters"
            )));
        }
        self.name = Bytes::copy_from_slice(name);
        Ok(())
    }
}

fn no_password() -> Reply {
    Reply::error("AUTH called without any password configured: there are none")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version: Option<i64>) -> Connection<'static> {
        Connection::Hello { version, name: None, authenticates: false }
    }

    #[test]
    fn a_connection_speaks_the_version_that_it_asked_for() {
        let mut peer = Peer::new(7);
        assert!(peer.handle(&hello(Some(4))).is_error());
        assert_eq!(peer.version, Version::Resp2);
        let Reply::Map(pairs) = peer.handle(&hello(Some(3))) else { panic!("no map") };
        assert!(pairs.contains(&(Reply::bulk("proto"), Reply::Integer(3))));
        assert_eq!(peer.version, Version::Resp3);
        peer.handle(&hello(None));
        assert_eq!(peer.version, Version::Resp3);
        peer.handle(&Connection::Reset);
        assert_eq!(peer.version, Version::Resp2);
    }

    #[test]
    fn a_hello_with_a_bad_name_changes_nothing() {
        let mut peer = Peer::new(7);
        let bad = Connection::Hello { version: Some(3), name: Some(b"a b"), authenticates: false };
        assert!(peer.handle(&bad).is_error());
        assert_eq!((peer.version, peer.name.len()), (Version::Resp2, 0));
    }

    #[test]
    fn there_are_no_passwords_and_one_database() {
        let mut peer = Peer::new(7);
        assert!(peer.handle(&Connection::Authenticate).is_error());
        assert!(peer.handle(&Connection::Select(1)).is_error());
        assert_eq!(peer.handle(&Connection::Select(0)), Reply::OK);
    }

    #[test]
    fn a_name_is_remembered() {
        let mut peer = Peer::new(7);
        assert_eq!(peer.handle(&Connection::Name), Reply::Null);
        assert_eq!(peer.handle(&Connection::SetName(b"worker-1")), Reply::OK);
        assert_eq!(peer.handle(&Connection::Name), Reply::bulk("worker-1"));
    }
}
