//! The order of all updates of a key (Hermes, section 3.1; RMWs: decision 30).
//!
//! An RMW takes the place directly behind its base, the update whose value it has read. A write
//! that the coordinator of the RMW has not seen is either before the base, or has a greater
//! [`Timestamp::version`] or [`Timestamp::writer`] and is behind the RMW, which it defeats.

use meridian_core::NodeId;
use serde::{Deserialize, Serialize};

/// Who wrote: a virtual node id (Hermes, O2). The draw decides first, so that of writes at the same
/// moment not always that of the same node is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Writer {
    /// Drawn for each write; always 0 without virtual ids.
    pub draw: u16,
    /// The node itself.
    pub node: NodeId,
}

/// The place of an update among those of its key; the greater one is the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Timestamp {
    /// Grows with each write; may jump.
    pub version: u64,
    /// Who wrote it.
    pub writer: Writer,
    /// How many RMWs stand between the write and this one, and this one; 0 for the write.
    pub extension: u32,
    /// The coordinator of the RMW.
    pub modifier: NodeId,
}

impl Timestamp {
    /// Before all updates.
    pub const NONE: Timestamp = Timestamp {
        version: 0,
        writer: Writer { draw: 0, node: NodeId(0) },
        extension: 0,
        modifier: NodeId(0),
    };

    /// That of a write which follows this.
    ///
    /// # Panics
    /// After 2^64 writes.
    pub fn written(self, writer: Writer) -> Timestamp {
        let version = self.version.checked_add(1).expect("versions do not run out");
        Timestamp { version, writer, extension: 0, modifier: NodeId(0) }
    }

    /// That of an RMW on the value that has this one; `None` if there are too many in a row, until
    /// the next write.
    pub fn extended(self, modifier: NodeId) -> Option<Timestamp> {
        let extension = self.extension.checked_add(1)?;
        Some(Timestamp { extension, modifier, ..self })
    }

    /// Those of the paper (Hermes, section 3.6, C_TS), that are not enough: two more for a write,
    /// one more for an RMW. For the test that must find it.
    pub(crate) fn of_paper(self, writer: Writer, more: u64) -> Timestamp {
        let version = self.version + more;
        Timestamp { version, writer, extension: 0, modifier: NodeId(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(node: u16) -> Writer {
        Writer { draw: 0, node: NodeId(node) }
    }

    #[test]
    fn an_rmw_stands_directly_behind_its_base() {
        let base = Timestamp::NONE.written(writer(1));
        let rmw = base.extended(NodeId(0)).unwrap();
        let unseen = Timestamp::NONE.written(writer(2));
        assert!(base < rmw && rmw < unseen, "a write of the same version is behind both");
        let next = rmw.extended(NodeId(0)).unwrap();
        assert!(rmw < next && next < unseen && next < rmw.written(writer(0)));
        assert!(rmw < base.extended(NodeId(1)).unwrap(), "of two on one base one is greater");
        assert_eq!(Timestamp { extension: u32::MAX, ..base }.extended(NodeId(0)), None);
    }

    #[test]
    fn the_draw_of_a_virtual_id_decides_before_the_node() {
        let drawn = Timestamp::NONE.written(Writer { draw: 1, node: NodeId(0) });
        assert!(Timestamp::NONE.written(writer(9)) < drawn);
    }
}
