//! What the client of a connection may do: its node knows its name, and the configuration says what
//! is granted to that (decision 93).
//!
//! Nodes learn of a change of the configuration one after the other. So messages of one client may
//! carry different rights for a moment; each replica of a group reads what its group's primary
//! proposed, and the votes of several groups are the same at all of them.

use super::Node;
use crate::api::{Refusal, RequestBody};
use crate::replica::ConnectionId;
use meridian_cluster::grants::{Below, Grant};
use meridian_core::{BlockId, GroupId};
use meridian_fs::access::NOBODY;
use meridian_fs::{Ino, Place, Rights};

impl Node {
    /// What the client of that connection may do; none if that is all.
    pub(super) fn rights_of(&self, connection: ConnectionId) -> Option<Rights> {
        self.rights_named(self.known.get(&connection)?)
    }

    /// What a client may do that is called so.
    fn rights_named(&self, client: &str) -> Option<Rights> {
        let grant = self.topology.grants.get(client)?;
        (!self.admits_all).then(|| rights(grant))
    }

    /// Whether a client that is called so in its certificate may ask this of the blocks here. One
    /// that has a grant is told no names, and stores nothing under a name that a file has: the node
    /// may have no copy of that block yet, and must not take another for it.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, client: Option<&str>, body: &RequestBody) -> Result<(), Refusal> {
        let rights = client.and_then(|client| self.rights_named(client));
        let Some(rights) = rights else { return Ok(()) };
        let why = match body {
            RequestBody::ListBlocks { .. } => "a client that has a grant may not list blocks",
            RequestBody::PutBlock { .. } | RequestBody::Discard { .. } if rights.read_only => {
                "the grant is read-only"
            }
            RequestBody::PutBlock { block, .. } if self.is_named(*block) => {
                "the name of the block is in use"
            }
            RequestBody::PutBlock { .. }
            | RequestBody::Discard { .. }
            | RequestBody::GetBlock { .. }
            | RequestBody::Update { .. }
            | RequestBody::Read { .. }
            | RequestBody::UpdateAlong { .. }
            | RequestBody::ReadAlong { .. }
            | RequestBody::Recalls { .. }
            | RequestBody::Snapshot { .. }
            | RequestBody::Scrub
            | RequestBody::Steps { .. }
            | RequestBody::Status => return Ok(()),
        };
        Err(Refusal::Bad(format!("not authorized: {why}")))
    }

    /// Whether a file lies in that block, or an update that waits names it, as far as this node
    /// knows.
    fn is_named(&self, block: BlockId) -> bool {
        let replica = self.replicas.get(&block.partition());
        replica.is_some_and(|replica| replica.partition().unnamed([block]).is_empty())
    }
}

/// What a grant means to the tree.
fn rights(grant: &Grant) -> Rights {
    let Grant { below, read_only, root, users, groups, squash } = grant.clone();
    let place =
        |Below { partition, ino, .. }| Place { ino: Ino(ino), partition: GroupId(partition) };
    let (below, squash) = (below.map(place), squash.unwrap_or(NOBODY));
    Rights { below, read_only, root, users, groups, squash }
}
