//! What is said first on each connection: the caller's [`Hello`], then the [`Answer`].

use crate::wire::{WireError, decode, take};
use meridian_core::ProcessId;
use serde::{Deserialize, Serialize};

/// The version of what is said on connections, beside that of frames.
pub(crate) const VERSION: u16 = 4;

/// What the caller says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`VERSION`]; the first in all versions, so that those of another can be told so.
    pub(crate) version: u16,
    /// The name of the cluster: members and clients of another are turned away.
    pub(crate) cluster: String,
    pub(crate) caller: Caller,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Caller {
    Member(Identity),
    Client,
}

/// One end of a connection between members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Who speaks.
    pub(crate) from: ProcessId,
    /// Whom it believes to speak to.
    pub(crate) to: ProcessId,
    /// Grows with each start of the speaker.
    pub(crate) incarnation: u64,
    /// Whether the speaker remembers what it said before its last start.
    pub(crate) durable: bool,
    /// Names the directory in which it remembers that.
    pub(crate) memory: u64,
}

/// What is said in return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The caller is turned away for this reason. The first in all versions.
    Refused(String),
    /// To a member.
    Member(Identity),
    /// To a client.
    Client,
}

impl Hello {
    pub(crate) fn new(cluster: &str, caller: Caller) -> Hello {
        Hello { version: VERSION, cluster: cluster.into(), caller }
    }

    /// Reads what a caller says; it is of this version and cluster.
    pub(crate) fn read(body: &[u8], cluster: &str) -> Result<Hello, WireError> {
        let refused = |text: String| Err(WireError::Refused(text));
        let (version, _) = take::<u16>(body)?;
        if version != VERSION {
            return refused(format!("the caller speaks version {version}, not {VERSION}"));
        }
        let hello: Hello = decode(body)?;
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
pub(crate) struct Known {
    incarnation: u64,
    memory: u64,
}

impl From<&Identity> for Known {
    fn from(identity: &Identity) -> Known {
        Known { incarnation: identity.incarnation, memory: identity.memory }
    }
}

/// Whether the other end may be spoken with: it means this member, and has not lost its memory.
pub(crate) fn check(
    ours: &Identity,
    theirs: &Identity,
    known: Option<Known>,
) -> Result<(), WireError> {
    let refused = |text: String| Err(WireError::Refused(text));
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
    use crate::wire::to_bytes;
    use meridian_core::{GroupId, NodeId};

    fn identity(from: u16, to: u16) -> Identity {
        let process = |node| ProcessId { group: GroupId(0), node: NodeId(node) };
        Identity { from: process(from), to: process(to), incarnation: 5, durable: false, memory: 0 }
    }

    #[test]
    fn only_callers_of_the_same_cluster_and_version_are_read() {
        let read = |version, cluster: &str| {
            let hello = Hello { version, cluster: cluster.into(), caller: Caller::Client };
            Hello::read(&to_bytes(&hello), "a").map_err(|error| error.to_string())
        };
        assert_eq!(read(VERSION, "a").unwrap(), Hello::new("a", Caller::Client));
        assert!(read(9, "a").unwrap_err().contains("version 9"));
        assert!(read(VERSION, "b").unwrap_err().contains("\"b\""));
        assert!(Hello::read(&[9, 0xff, 0xff], "a").unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn only_members_that_remember_and_are_meant_are_met() {
        let ours = identity(0, 1);
        let refused = |change: fn(&mut Identity), known| {
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
