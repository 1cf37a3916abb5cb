//! Short blocks that lie behind each other in a file become one.
//!
//! The tree says when there are many, with the answer to a write. They are read, stored as one
//! block, and put in its place by an update that does nothing if the file has changed there
//! meanwhile. All of it is done beside what programs do: if it fails, the next write says so again.

use crate::client::{Client, lock};
use crate::error::ClientError;
use crate::files::Files;
use crate::files::read::{contents, fill};
use crate::files::write::zeros;
use bytes::Bytes;
use meridian_fs::Update;
use meridian_fs::types::{Ino, Place};
use meridian_session::Block;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The files of which a run is being merged.
pub(crate) type Merging = Arc<Mutex<HashSet<Ino>>>;

impl Files {
    /// Has the short blocks in that range of a file merged, unless some of it are just now.
    pub(crate) fn merge(&self, inode: Place, range: Range<u64>) {
        if !lock(&self.merging).insert(inode.ino) {
            return;
        }
        let (client, merging) = (self.client.clone(), self.merging.clone());
        tokio::spawn(async move {
            if let Err(error) = merge(&client, inode, range).await {
                tracing::debug!("short blocks stay as they are: {error}");
            }
            lock(&merging).remove(&inode.ino);
        });
    }
}

async fn merge(client: &Client, inode: Place, range: Range<u64>) -> Result<(), ClientError> {
    let (_, extents) = contents(client, inode, range.clone()).await?;
    let len: u64 = extents.iter().map(|(_, extent)| u64::from(extent.len)).sum();
    if len != range.end - range.start {
        return Ok(()); // Cut or punched meanwhile.
    }
    let run = extents.iter().map(|(_, extent)| extent.clone()).collect();
    let mut bytes = zeros(usize::try_from(len).expect("at most a block"));
    fill(client, inode.partition, range.start, &mut bytes, extents).await?;
    let (name, data) = (client.new_block(inode.partition), Bytes::from(bytes));
    let stored = client.put_blocks(inode.partition, vec![Block { name, data }]).await;
    if stored.is_err() {
        client.discard(inode.partition, vec![name]);
    }
    stored?;
    let update = Update::Merge { inode, offset: range.start, run, block: name };
    let merged = client.update(&update).await;
    if matches!(merged, Err(ClientError::Fs(error)) if error.is_final()) {
        client.discard(inode.partition, vec![name]);
    }
    merged.map(drop)
}
