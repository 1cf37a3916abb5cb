//! What travels together: items are held back for each peer until a process has no more input.

use meridian_core::ProcessId;
use meridian_multicast::Start;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A message is closed before its payloads exceed this; PrimCast cuts its runs at the same length.
const BATCH_BYTES: usize = 512 << 10;

/// About how much an item takes beside its payload.
const ITEM_BYTES: usize = 32;

/// A message: all that one process had to tell another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Batch<I>(pub Vec<I>);

/// A record of a protocol that persists nothing: there is none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Nothing {}

/// Something that is said in a batch.
pub(crate) trait Item {
    /// The message whose payload it carries, if it does.
    fn carried(&self) -> Option<&Start>;
}

/// What is held back for each peer, in order.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing<I> {
    held: BTreeMap<ProcessId, Held<I>>,
}

#[derive(Clone, Debug)]
struct Held<I> {
    closed: Vec<Batch<I>>,
    open: Vec<I>,
    bytes: usize,
}

impl<I> Default for Outgoing<I> {
    fn default() -> Self {
        Outgoing { held: BTreeMap::new() }
    }
}

impl<I: Item> Outgoing<I> {
    /// Adds an item to what `to` will be told.
    pub fn push(&mut self, to: ProcessId, item: I) {
        let bytes = ITEM_BYTES + item.carried().map_or(0, |start| start.payload.len());
        let held = self.held.entry(to).or_insert_with(|| Held {
            closed: Vec::new(),
            open: Vec::new(),
            bytes: 0,
        });
        if held.bytes + bytes > BATCH_BYTES && !held.open.is_empty() {
            held.closed.push(Batch(std::mem::take(&mut held.open)));
            held.bytes = 0;
        }
        held.bytes += bytes;
        held.open.push(item);
    }

    /// Takes all of it.
    pub fn drain(&mut self) -> impl Iterator<Item = (ProcessId, Batch<I>)> + use<I> {
        let batches = |(to, held): (ProcessId, Held<I>)| {
            let open = Some(Batch(held.open)).filter(|batch| !batch.0.is_empty());
            held.closed.into_iter().chain(open).map(move |batch| (to, batch))
        };
        std::mem::take(&mut self.held).into_iter().flat_map(batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{ClientId, GroupId, MessageId, NodeId};

    impl Item for Start {
        fn carried(&self) -> Option<&Start> {
            Some(self)
        }
    }

    #[test]
    fn one_message_for_each_peer_unless_it_is_too_long() {
        let peer = |node| ProcessId { group: GroupId(0), node: NodeId(node) };
        let start = |sequence, len: usize| {
            let id = MessageId { client: ClientId(1), sequence };
            Start::new(id, [GroupId(0)], vec![0; len])
        };
        let mut outgoing = Outgoing::default();
        outgoing.push(peer(1), start(1, 10));
        outgoing.push(peer(2), start(2, BATCH_BYTES * 2));
        outgoing.push(peer(1), start(3, 10));
        outgoing.push(peer(2), start(4, BATCH_BYTES / 2));
        outgoing.push(peer(2), start(5, BATCH_BYTES / 3));
        let sent: Vec<_> = outgoing
            .drain()
            .map(|(to, batch)| {
                let names = batch.0.iter().map(|start| start.id.sequence);
                (to.node.0, names.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(sent, [(1, vec![1, 3]), (2, vec![2]), (2, vec![4, 5])]);
        assert_eq!(outgoing.drain().count(), 0);
    }
}
