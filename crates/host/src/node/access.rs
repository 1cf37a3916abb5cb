//! What the client of a connection may do: its node knows its name, and the configuration says what
//! is granted to that (decision 93).
//!
//! Nodes learn of a change of the configuration one after the other. So messages of one client may
//! carry different rights for a moment; each replica of a group reads what its group's primary
//! proposed, and the votes of several groups are the same at all of them.

use super::Node;
use crate::replica::ConnectionId;
use meridian_cluster::grants::{Below, Grant};
use meridian_core::GroupId;
use meridian_fs::access::NOBODY;
use meridian_fs::{Ino, Place, Rights};

impl Node {
    /// What the client of that connection may do; none if that is all.
    pub(super) fn rights_of(&self, connection: ConnectionId) -> Option<Rights> {
        let grant = self.topology.grants.get(self.known.get(&connection)?)?;
        (!self.admits_all).then(|| rights(grant))
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
