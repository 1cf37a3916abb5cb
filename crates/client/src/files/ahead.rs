//! Reading ahead: what a file has behind that which is read in order is fetched meanwhile, several
//! blocks at a time, each from a node that has it. How far, [`ReadAhead`] says.
//!
//! Only blocks are kept, which never change. Which of them lie there each read asks for itself.

use crate::client::{Client, lock};
use crate::error::ClientError;
use crate::files::read::contents;
use crate::files::{Files, Handle, OpenInode};
use meridian_fs::types::{Data, Place};
use meridian_session::ReadAhead;
use std::collections::BTreeMap;
use std::ops::Range;
use tokio::task::JoinSet;

/// Of each handle through which a file was read.
pub(crate) type Ahead = BTreeMap<Handle, ReadAhead>;

impl Files {
    /// `range` is read of a file that is `size` bytes long: has what comes next fetched. Nobody
    /// waits for it.
    pub(crate) fn read_ahead(
        &self,
        inode: &OpenInode,
        handle: Handle,
        range: Range<u64>,
        size: u64,
    ) {
        let read = range.start..range.end.min(size);
        if read.is_empty() {
            return;
        }
        let next = lock(&inode.buffer).ahead.entry(handle).or_default().on_read(read, size);
        let Some(next) = next.filter(|next| self.client.may_fetch(next.end - next.start)) else {
            return;
        };
        let (client, place) = (self.client.clone(), inode.place);
        tokio::spawn(async move {
            if let Err(error) = fetch(&client, place, next).await {
                tracing::debug!("reading ahead in inode {:#x}: {error}", place.ino.0);
            }
        });
    }
}

/// Fetches the blocks of a range of a file, all at a time.
async fn fetch(client: &Client, inode: Place, range: Range<u64>) -> Result<(), ClientError> {
    let (_, extents) = contents(client, inode, range).await?;
    let mut under_way = JoinSet::new();
    for (_, extent) in extents {
        if let Data::Block { block, start } = extent.data {
            let client = client.clone();
            under_way.spawn(async move {
                client.read_block(inode.partition, block, start, extent.len).await.map(drop)
            });
        }
    }
    let mut result = Ok(());
    while let Some(ended) = under_way.join_next().await {
        let ended = ended.map_err(|error| ClientError::Protocol(error.to_string()));
        result = result.and(ended.flatten());
    }
    result
}
