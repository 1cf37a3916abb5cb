//! What is said first on each connection: the caller's [`Hello`], then the [`Answer`].
//!
//! Nodes and clients call the same port; the hello says who calls, and which service of the node a
//! client wants.

use crate::ids::{GroupId, NodeId, ProcessId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Display};
use std::hash::Hash;

/// The version of what is said on connections, beside that of frames.
pub const VERSION: u16 = 5;

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
}

/// Why a caller or its answer is turned away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HelloError(pub String);

/// What the caller says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello<I> {
    /// [`VERSION`]; the first in all versions, so that those of another can be told so.
    pub version: u16,
    /// The name of the cluster: members and clients of another are turned away.
    pub cluster: String,
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
}

/// One end of a connection between members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity<I> {
    /// Who speaks.
    pub from: I,
    /// Whom it believes to speak to.
    pub to: I,
    /// Grows with each start of the speaker.
    pub incarnation: u64,
    /// Whether the speaker remembers what it said before its last start.
    pub durable: bool,
    /// Names the directory in which it remembers that.
    pub memory: u64,
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
    /// What `caller` says to a server of `cluster`.
    pub fn new(cluster: &str, caller: Caller<I>) -> Hello<I> {
        Hello { version: VERSION, cluster: cluster.into(), caller }
    }

    /// Reads what a caller says.
    ///
    /// # Errors
    /// If it is not of this version and cluster, or no hello.
    pub fn read(body: &[u8], cluster: &str) -> Result<Hello<I>, HelloError> {
        let refused = |text: String| Err(HelloError(text));
        let unread = |error: postcard::Error| HelloError(format!("no hello: {error}"));
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

/// What is remembered of a member that has spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    incarnation: u64,
    memory: u64,
}

impl<I> From<&Identity<I>> for Known {
    fn from(identity: &Identity<I>) -> Known {
        Known { incarnation: identity.incarnation, memory: identity.memory }
    }
}

/// Whether the other end may be spoken with: it means this server, and has not lost its memory.
///
/// # Errors
/// If it may not: why.
pub fn check<I: Endpoint>(
    ours: &Identity<I>,
    theirs: &Identity<I>,
    known: Option<Known>,
) -> Result<(), HelloError> {
    let refused = |text: String| Err(HelloError(text));
    if theirs.from != ours.to {
        return refused(format!("{} where {} should be", theirs.from, ours.to));
    }
    if theirs.to != ours.from {
        return refused(format!("{} wants {}, this is {}", theirs.from, theirs.to, ours.from));
    }
    let forgot = |known: Known| match theirs.durable {
        true => known.memory != theirs.memory,
        false => known.incarnation != theirs.incarnation,
    };
    if known.is_some_and(forgot) {
        return refused(format!(
            "{} has lost its memory: it must not come back under its name",
            theirs.from
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_bytes(hello: &Hello<ProcessId>) -> Vec<u8> {
        postcard::to_stdvec(hello).unwrap()
    }

    fn identity(from: u16, to: u16) -> Identity<ProcessId> {
        let process = |node| ProcessId { group: GroupId(0), node: NodeId(node) };
        Identity { from: process(from), to: process(to), incarnation: 5, durable: false, memory: 0 }
    }

    #[test]
    fn only_callers_of_the_same_cluster_and_version_are_read() {
        let read = |version, cluster: &str| {
            let hello =
                Hello { version, cluster: cluster.into(), caller: Caller::Client(ServiceId::MAIN) };
            Hello::<ProcessId>::read(&to_bytes(&hello), "a").map_err(|error| error.to_string())
        };
        assert_eq!(read(VERSION, "a").unwrap(), Hello::new("a", Caller::Client(ServiceId::MAIN)));
        assert!(read(9, "a").unwrap_err().contains("version 9"));
        assert!(read(VERSION, "b").unwrap_err().contains("\"b\""));
        assert!(
            Hello::<ProcessId>::read(&[9, 0xff, 0xff], "a")
                .unwrap_err()
                .to_string()
                .contains("version 9")
        );
    }

    #[test]
    fn only_members_that_remember_and_are_meant_are_met() {
        let ours = identity(0, 1);
        let refused = |change: fn(&mut Identity<ProcessId>), known| {
            let mut theirs = identity(1, 0);
            change(&mut theirs);
            check(&ours, &theirs, known).err().map(|error| error.to_string())
        };
        assert_eq!(refused(|_| (), None), None);
        let known = |incarnation, memory| Some(Known { incarnation, memory });
        assert_eq!(refused(|_| (), known(5, 0)), None);
        assert!(refused(|theirs| theirs.to.node = NodeId(7), None).unwrap().contains("n7"));
        assert!(refused(|theirs| theirs.from.node = NodeId(7), None).unwrap().contains("n7"));
        assert!(refused(|_| (), known(4, 0)).unwrap().contains("lost its memory"));
        assert_eq!(refused(|theirs| theirs.durable = true, known(4, 0)), None);
        let wiped = refused(|theirs| theirs.durable = true, known(4, 7));
        assert!(wiped.unwrap().contains("lost its memory"));
    }
}
