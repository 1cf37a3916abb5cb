//! Copies of blocks: when a node is gone, others hold what it held.
//!
//! A client does this, as all that has to do with where blocks lie. It can be done at any time, and
//! again: blocks never change, and one that is on enough nodes stays where it is.

use crate::client::{Client, strange};
use crate::error::ClientError;
use bytes::Bytes;
use meridian_blocks::ring::REPLICAS;
use meridian_core::{BlockId, NodeId, RegionId};
use meridian_fs::types::BLOCK_MAX;
use meridian_host::api::{ReplyBody, RequestBody};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;

/// Blocks that are copied at a time.
const IN_FLIGHT: usize = 16;
/// How long one node may take for one request.
const NODE_LIMIT: Duration = Duration::from_secs(10);

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// So many blocks have been copied.
    pub blocks: u64,
    /// So many are still on too few nodes.
    pub missing: u64,
}

impl Client {
    /// Copies the blocks of `region` that are on too few of its nodes; what is on `leaving` does
    /// not count, as that node is to go. Needs memory for the names of all.
    ///
    /// # Errors
    /// If one of the nodes does not tell what it holds: a block that is on it alone would be
    /// missed.
    pub async fn restore_copies(
        &self,
        region: RegionId,
        leaving: Option<NodeId>,
    ) -> Result<Copied, ClientError> {
        let nodes: Vec<_> = self.topology().nodes_in(region).collect();
        let stay = |node: &&NodeId| Some(**node) != leaving;
        let wanted = REPLICAS.min(nodes.iter().filter(stay).count());
        let mut holders: BTreeMap<BlockId, Vec<NodeId>> = BTreeMap::new();
        for node in nodes {
            let mut after = None;
            loop {
                let page = self.call(node, RequestBody::ListBlocks { after }, NODE_LIMIT).await?;
                let ReplyBody::Blocks(names) = page else { return Err(strange(&page)) };
                let Some(last) = names.last().copied() else { break };
                names.into_iter().for_each(|name| holders.entry(name).or_default().push(node));
                after = Some(last);
            }
        }
        holders.retain(|_, on| on.iter().filter(stay).count() < wanted);
        let (mut copied, mut under_way) = (Copied::default(), JoinSet::new());
        for (block, on) in holders {
            if under_way.len() >= IN_FLIGHT {
                copied.note(under_way.join_next().await);
            }
            let (client, missing) = (self.clone(), wanted - on.iter().filter(stay).count());
            under_way.spawn(async move {
                let Some(data) = client.read_from(&on, block).await else { return false };
                let not: Vec<_> = on.into_iter().chain(leaving).collect();
                client.copy(region, block, data, &not, missing).await
            });
        }
        while !under_way.is_empty() {
            copied.note(under_way.join_next().await);
        }
        Ok(copied)
    }

    /// Stores a block on so many nodes, `not` on these.
    async fn copy(
        &self,
        region: RegionId,
        block: BlockId,
        data: Bytes,
        not: &[NodeId],
        missing: usize,
    ) -> bool {
        let mut left = missing;
        let nodes = self.known().rings[usize::from(region.0)].placement(block);
        for node in nodes.into_iter().filter(|node| !not.contains(node)) {
            if left == 0 {
                break;
            }
            let body = RequestBody::PutBlock { block, data: data.clone() };
            match self.call(node, body, NODE_LIMIT).await {
                Ok(ReplyBody::Stored) => left -= 1,
                answer => tracing::warn!("node {} does not store a block: {answer:?}", node.0),
            }
        }
        left == 0
    }

    async fn read_from(&self, on: &[NodeId], block: BlockId) -> Option<Bytes> {
        let len = u32::try_from(BLOCK_MAX).expect("a block has less than 4 GiB");
        for node in on {
            let body = RequestBody::GetBlock { block, offset: 0, len };
            match self.call(*node, body, NODE_LIMIT).await {
                Ok(ReplyBody::Block(data)) if !data.is_empty() => return Some(data),
                answer => tracing::warn!("node {} does not give a block: {answer:?}", node.0),
            }
        }
        None
    }
}

impl Copied {
    fn note(&mut self, ended: Option<Result<bool, tokio::task::JoinError>>) {
        match ended {
            Some(Ok(true)) => self.blocks += 1,
            _ => self.missing += 1,
        }
    }
}
