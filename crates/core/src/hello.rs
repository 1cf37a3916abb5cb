//! What is said first on each connection: the caller's [`Hello`], then the [`Answer`].
//!
//! Nodes and clients call the same port; the hello says who calls, and which service of the node a
//! client wants.

use crate::ids::{GroupId, NodeId, ProcessId};
use crate::introduction::Forgotten;
use crate::standing::Standing;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Display};
use std::hash::Hash;

/// The version of what is said on connections, beside that of frames.
pub const VERSION: u16 = 22;

/// How the ends of connections between servers are named: a server that runs one process by the
/// process, one that runs all processes of a node by the node.
pub trait Endpoint:
    Copy + Ord + Hash + Debug + Display + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The group whose network can be cut off, if the endpoint is of one.
    fn group(&self) -> Option<GroupId>;
}

impl Endpoint for ProcessId {
    fn group(&self) -> Option<GroupId> {
        Some(self.group)
    }
}

impl Endpoint for NodeId {
    fn group(&self) -> Option<GroupId> {
        None
    }
}

/// One of the services that a server offers to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceId(pub u16);

impl ServiceId {
    /// The service of a server that has only one; at a node the files.
    pub const MAIN: ServiceId = ServiceId(0);
    /// The configuration of the cluster.
    pub const CONFIGURATION: ServiceId = ServiceId(1);
    /// Keys. Their clients speak RESP, and say no hello.
    pub const KEYS: ServiceId = ServiceId(2);
}

/// One of the threads of a server that speak with those of other servers. Each has connections of
/// its own with the threads of the same number; all are called at the server's one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lane(pub u16);

impl Lane {
    /// The thread that has the port.
    pub const MAIN: Lane = Lane(0);
}

/// Why a caller or its answer is turned away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError<I> {
    /// It is not meant for this server, or not of this cluster or version.
    #[error("{0}")]
    Refused(String),
    /// It comes with less than it had.
    #[error("{0}")]
    Forgot(Forgotten<I>),
}

/// What the caller says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello<I> {
    /// [`VERSION`]; the first in all versions, so that those of another can be told so.
    pub version: u16,
    /// The name of the cluster: members and clients of another are turned away.
    pub cluster: String,
    /// Which thread of the server is meant.
    pub lane: Lane,
    /// Who calls.
    pub caller: Caller<I>,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Caller<I> {
    /// Another server.
    Member(Identity<I>),
    /// A client of this service.
    Client(ServiceId),
    /// Another server, before it does anything: it only asks whether it is known to have had more
    /// than it has. It is answered as a member, and the connection ends.
    Starting(Identity<I>),
}

/// One end of a connection between members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity<I> {
    /// Who speaks.
    pub from: I,
    /// Whom it believes to speak to.
    pub to: I,
    /// Whether the speaker remembers what it said before its last start.
    pub durable: bool,
    /// How far its memory goes.
    pub standing: Standing,
    /// What it remembers of the other end.
    pub known: Option<Standing>,
}

/// What is said in return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer<I> {
    /// The caller is turned away for this reason. The first in all versions.
    Refused(String),
    /// To another server.
    Member(Identity<I>),
    /// To a client.
    Client,
}

impl<I: Endpoint> Hello<I> {
    /// What `caller` says to the main thread of a server of `cluster`.
    pub fn new(cluster: &str, caller: Caller<I>) -> Hello<I> {
        Hello { version: VERSION, cluster: cluster.into(), lane: Lane::MAIN, caller }
    }

    /// The same to another thread.
    pub fn to_lane(self, lane: Lane) -> Hello<I> {
        Hello { lane, ..self }
    }

    /// Reads what a caller says.
    ///
    /// # Errors
    /// If it is not of this version and cluster, or no hello.
    pub fn read(body: &[u8], cluster: &str) -> Result<Hello<I>, HelloError<I>> {
        let refused = |text: String| Err(HelloError::Refused(text));
        let unread = |error: postcard::Error| HelloError::Refused(format!("no hello: {error}"));
        let (version, _) = postcard::take_from_bytes::<u16>(body).map_err(unread)?;
        if version != VERSION {
            return refused(format!("the caller speaks version {version}, not {VERSION}"));
        }
        let hello: Hello<I> = postcard::from_bytes(body).map_err(unread)?;
        if hello.cluster != cluster {
            return refused(format!(
                "the caller is of cluster {:?}, not {cluster:?}",
                hello.cluster
            ));
        }
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_bytes(hello: &Hello<ProcessId>) -> Vec<u8> {
        postcard::to_stdvec(hello).unwrap()
    }

    #[test]
    fn only_callers_of_the_same_cluster_and_version_are_read() {
        let read = |version, cluster: &str| {
            let (lane, caller) = (Lane::MAIN, Caller::Client(ServiceId::MAIN));
            let hello = Hello { version, cluster: cluster.into(), lane, caller };
            Hello::<ProcessId>::read(&to_bytes(&hello), "a").map_err(|error| error.to_string())
        };
        assert_eq!(read(VERSION, "a").unwrap(), Hello::new("a", Caller::Client(ServiceId::MAIN)));
        assert!(read(VERSION + 1, "a").unwrap_err().contains("speaks version"));
        assert!(read(VERSION, "b").unwrap_err().contains("\"b\""));
        assert!(
            Hello::<ProcessId>::read(&[99, 0xff, 0xff], "a")
                .unwrap_err()
                .to_string()
                .contains("version 99")
        );
    }
}
