//! A client that names the quotas that its updates count against.

use super::{World, name, node};
use bytes::Bytes;
use meridian_fs::operation::{Piece, WriteAt};
use meridian_fs::quota::Limits;
use meridian_fs::types::Data;
use meridian_fs::{Done, Extent, FsError, Kind, Place, Update};

/// Submits an update as a client does: it names the quota that it is told.
pub fn submit(world: &mut World, update: Update) -> Result<Done, FsError> {
    let mut quotas = Vec::new();
    loop {
        let id = world.next_id();
        let mut operation = world.operation(update.clone());
        operation.quotas.clone_from(&quotas);
        match world.submit_as(id, operation) {
            Err(FsError::UnnamedQuota { quota }) => {
                assert!(!quotas.contains(&quota), "it is named");
                quotas.push(quota);
            }
            other => {
                world.check();
                return other;
            }
        }
    }
}

pub fn make(world: &mut World, parent: Place, text: &str, kind: Kind) -> Result<Place, FsError> {
    let made = submit(world, Update::Create { parent, name: name(text), node: node(kind) });
    made.map(|done| match done {
        Done::Attributes(made) => made.place,
        other => panic!("{other:?}"),
    })
}

pub fn write(world: &mut World, inode: Place, bytes: usize) -> Result<Done, FsError> {
    let data = Data::Inline(Bytes::from(vec![7; bytes]));
    let extent = Extent { len: bytes as u32, data };
    let pieces = vec![Piece { offset: 0, extent }];
    submit(world, Update::Write { inode, at: WriteAt::End, pieces })
}

pub fn set(world: &mut World, inode: Place, limits: Option<Limits>) -> Result<Done, FsError> {
    let parent = world.lookup(inode, "..").map_or(inode, |(parent, _)| parent);
    submit(world, Update::SetQuota { inode, parent, limits })
}
