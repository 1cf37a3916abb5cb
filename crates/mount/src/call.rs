//! What the kernel asks, before it is translated.

use crate::convert::permissions;
use bytes::Bytes;
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Ino, Kind};
use meridian_fuse::Reply;

/// Who asks, about what, and the way to answer.
pub(crate) struct Call {
    pub uid: u32,
    pub gid: u32,
    pub thread: u32,
    pub node: Ino,
    /// What is called, about which name.
    pub called: (&'static str, Option<Bytes>),
    /// Whether names lead elsewhere after it.
    pub changes_names: bool,
    pub reply: Reply,
}

impl Call {
    /// What is made belongs to who makes it.
    pub fn new_node(&self, kind: Kind, mode: u32, umask: u32) -> NewNode {
        let Call { uid, gid, .. } = *self;
        let (mode, umask) = (permissions(mode), permissions(umask));
        NewNode { umask, uid, gid, ..NewNode::new(kind, mode) }
    }
}
