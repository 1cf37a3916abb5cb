//! Blocks: immutable, under names drawn at random, stored in each region that holds the file.
//!
//! A region's partition keeps its blocks in that region, the partition `global` in all. Within a
//! region a block goes to the first nodes of the ring that take it ([`Placing`]), and is looked for
//! in the same order.

use crate::client::{Client, lock};
use crate::error::ClientError;
use bytes::Bytes;
use meridian_core::{BlockId, GroupId, NodeId, RegionId};
use meridian_fs::FsError;
use meridian_fs::types::BLOCK_MAX;
use meridian_host::api::{Refusal, ReplyBody, RequestBody};
use meridian_session::{Placing, Progress};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Blocks that one call sends at a time.
const IN_FLIGHT: usize = 16;
/// How long one node may take to store or read a block before another is asked: a flush of its
/// disk and the bytes' way, with much to spare.
const NODE_LIMIT: Duration = Duration::from_secs(3);
/// How long a region out of reach may hold up a write to all regions when most have stored it.
/// Reads of that region find the block in another.
const REGION_GRACE: Duration = Duration::from_secs(5);
/// How long to wait when all nodes of a region failed.
const PAUSE: Duration = Duration::from_millis(100);

impl Client {
    /// The regions that hold the data of files in `partition`: the nearest first.
    pub fn regions_of(&self, partition: GroupId) -> Vec<RegionId> {
        let topology = self.topology();
        if let Some(region) = topology.group(partition).region {
            return vec![region];
        }
        let count = u16::try_from(topology.regions.len()).unwrap_or(u16::MAX);
        let mut regions: Vec<_> = (0..count).map(RegionId).collect();
        let own = self.inner.region;
        regions.sort_by_key(|region| (*region != own, topology.delay(own, *region)));
        regions
    }

    /// Stores `blocks` for a file in `partition`, some at a time; their names in the same order.
    ///
    /// # Errors
    /// If too few nodes take one of them in time.
    ///
    /// # Panics
    /// If one is empty or longer than [`BLOCK_MAX`].
    pub async fn put_blocks(
        &self,
        partition: GroupId,
        blocks: Vec<Bytes>,
    ) -> Result<Vec<BlockId>, ClientError> {
        let names: Vec<_> = blocks.iter().map(|_| self.new_block()).collect();
        let mut under_way = JoinSet::new();
        for (name, data) in names.iter().zip(blocks) {
            assert!(!data.is_empty() && data.len() <= BLOCK_MAX, "a block of {}", data.len());
            if under_way.len() >= IN_FLIGHT {
                join(under_way.join_next().await)?;
            }
            let (client, name) = (self.clone(), *name);
            under_way.spawn(async move { client.put_block(partition, name, data).await });
        }
        while !under_way.is_empty() {
            join(under_way.join_next().await)?;
        }
        Ok(names)
    }

    async fn put_block(
        &self,
        partition: GroupId,
        block: BlockId,
        data: Bytes,
    ) -> Result<(), ClientError> {
        let regions = self.regions_of(partition);
        let (all, begun) = (regions.len(), Instant::now());
        let deadline = begun + self.timeout();
        let mut under_way = JoinSet::new();
        for region in regions {
            let (client, data) = (self.clone(), data.clone());
            under_way.spawn(async move { client.put_in(region, block, data, deadline).await });
        }
        let (mut stored, mut failure) = (0, None);
        while stored < all {
            let patience = if stored * 2 > all { begun + REGION_GRACE } else { deadline };
            match timeout_at(patience.max(Instant::now()), under_way.join_next()).await {
                Ok(None) => break,
                Ok(ended) => match join(ended) {
                    Ok(()) => stored += 1,
                    Err(error) => failure = Some(error),
                },
                Err(_) => break,
            }
        }
        if stored * 2 <= all {
            let what = format!("storing block {block}");
            return Err(failure.unwrap_or(ClientError::Timeout { what }));
        }
        if stored < all {
            tracing::warn!("block {block} is in {stored} of {all} regions only");
        }
        self.keep(block, 0, data);
        Ok(())
    }

    /// Stores it on as many nodes of `region` as it should be on.
    async fn put_in(
        &self,
        region: RegionId,
        block: BlockId,
        data: Bytes,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let mut placing = Placing::new(self.in_order(region, block));
        let mut under_way = JoinSet::new();
        loop {
            for node in placing.ask() {
                let (client, data) = (self.clone(), data.clone());
                under_way.spawn(async move {
                    let body = RequestBody::PutBlock { block, data };
                    (node, client.call(node, body, NODE_LIMIT).await)
                });
            }
            match placing.progress() {
                Progress::Stored => return Ok(()),
                Progress::Full => return Err(FsError::NoSpace.into()),
                Progress::Stuck if Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                    placing.again(self.in_order(region, block));
                    continue;
                }
                Progress::Stuck | Progress::Asking => {}
            }
            match timeout_at(deadline, under_way.join_next()).await {
                Ok(Some(Ok((node, Ok(ReplyBody::Stored))))) => placing.on_stored(node),
                Ok(Some(Ok((node, Err(ClientError::Refused(Refusal::Disk(_))))))) => {
                    placing.on_full(node);
                }
                Ok(Some(Ok((node, answer)))) => {
                    tracing::debug!("node {} does not store a block: {answer:?}", node.0);
                    self.avoid_blocks_of(node);
                    placing.on_failed(node);
                }
                Ok(Some(Err(error))) => return Err(ClientError::Protocol(error.to_string())),
                Ok(None) | Err(_) => {
                    let name = &self.topology().regions[usize::from(region.0)].name;
                    return Err(ClientError::Unreachable {
                        whom: format!("enough nodes of region {name} to store data"),
                    });
                }
            }
        }
    }

    /// Reads `len` bytes of `block` from `start`, of a file in `partition`.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if all nodes say that they do not have it, or damaged;
    /// [`ClientError::Timeout`] if those that may have it do not answer.
    pub async fn read_block(
        &self,
        partition: GroupId,
        block: BlockId,
        start: u32,
        len: u32,
    ) -> Result<Bytes, ClientError> {
        if let Some(data) = self.cached(block, start, len) {
            return Ok(data);
        }
        let deadline = Instant::now() + self.timeout();
        loop {
            let nodes: Vec<_> = self
                .regions_of(partition)
                .into_iter()
                .flat_map(|region| self.holders(region, block))
                .collect();
            let mut without = 0;
            for node in &nodes {
                let body = RequestBody::GetBlock { block, offset: start, len };
                match self.call(*node, body, NODE_LIMIT).await {
                    Ok(ReplyBody::Block(data)) if data.len() == len as usize => {
                        self.keep(block, start, data.clone());
                        return Ok(data);
                    }
                    Err(ClientError::Refused(Refusal::NoBlock(_))) => without += 1,
                    Err(ClientError::Refused(refusal)) if refusal != Refusal::Overloaded => {
                        tracing::warn!("node {}: {refusal}", node.0);
                        without += 1;
                    }
                    answer => {
                        tracing::debug!("node {} does not give a block: {answer:?}", node.0);
                        self.avoid_blocks_of(*node);
                    }
                }
            }
            if without == nodes.len() {
                return Err(ClientError::Lost(format!("block {block} is on no node")));
            }
            if Instant::now() + PAUSE >= deadline {
                return Err(ClientError::Timeout { what: format!("reading block {block}") });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The nodes of `region` that may hold `block`: those that will, then those that are drained.
    fn holders(&self, region: RegionId, block: BlockId) -> Vec<NodeId> {
        let mut nodes = self.in_order(region, block);
        nodes.extend(self.topology().draining_in(region).map(|(node, _)| node));
        nodes
    }

    /// The nodes of `region` in the order in which they come for `block`, those that failed lately
    /// at the end.
    fn in_order(&self, region: RegionId, block: BlockId) -> Vec<NodeId> {
        let mut nodes = self.known().rings[usize::from(region.0)].placement(block);
        nodes.sort_by_key(|node| self.avoids_blocks_of(*node));
        nodes
    }

    pub(crate) fn cached(&self, block: BlockId, start: u32, len: u32) -> Option<Bytes> {
        lock(&self.inner.cache).get(block, start, len)
    }

    pub(crate) fn keep(&self, block: BlockId, start: u32, data: Bytes) {
        lock(&self.inner.cache).insert(block, start, data);
    }
}

fn join<T>(
    ended: Option<Result<Result<T, ClientError>, tokio::task::JoinError>>,
) -> Result<T, ClientError> {
    match ended {
        Some(Ok(result)) => result,
        Some(Err(error)) => Err(ClientError::Protocol(error.to_string())),
        None => Err(ClientError::Protocol("nothing was under way".into())),
    }
}
