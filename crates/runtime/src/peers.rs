//! The other members, as the options and later the application name them.
//!
//! Tasks of connections name a peer by its index. So one that is no longer wanted keeps its place:
//! it is absent, which ends its connections and resets its link, until it is wanted again.

use crate::delay::Delay;
use crate::peer::Peer;
use meridian_core::{Endpoint, Time};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::rc::Rc;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Peers<I> {
    all: Vec<Peer<I>>,
    /// Ascending by id.
    order: Vec<(I, usize)>,
    /// What is added to the way to some.
    delays: BTreeMap<I, Delay>,
    incarnation: u64,
    /// How far the log of this member goes.
    logged: Rc<Cell<u64>>,
    /// Whether what is sent to any of them is held back.
    far: bool,
}

/// What another set of peers has changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changed<I> {
    /// The indices of those that had no place before.
    pub(crate) new: Vec<usize>,
    /// Those that were not there just before.
    pub(crate) came: Vec<I>,
}

impl<I: Endpoint> Peers<I> {
    /// None yet.
    pub(crate) fn new(incarnation: u64, delays: BTreeMap<I, Delay>) -> Peers<I> {
        Peers {
            all: Vec::new(),
            order: Vec::new(),
            delays,
            incarnation,
            logged: Rc::default(),
            far: false,
        }
    }

    /// All that is sent from now on relies on a log of this length at most.
    pub(crate) fn set_logged(&self, logged: u64) {
        self.logged.set(logged);
    }

    /// How far the log of this member goes.
    pub(crate) fn logged(&self) -> u64 {
        self.logged.get()
    }

    /// What is added to the way to these, from now on.
    pub(crate) fn set_delays(&mut self, delays: BTreeMap<I, Delay>) {
        for peer in &mut self.all {
            if let Some(delay) = delays.get(&peer.id) {
                peer.set_delay(*delay);
                self.far |= peer.is_far();
            }
        }
        self.delays.extend(delays);
    }

    /// The peers are these from now on; `me` is none.
    pub(crate) fn set(&mut self, now: Time, me: I, wanted: &BTreeMap<I, String>) -> Changed<I> {
        for peer in &mut self.all {
            if peer.present && !wanted.contains_key(&peer.id) {
                peer.leave(now);
            }
        }
        let mut changed = Changed { new: Vec::new(), came: Vec::new() };
        for (id, address) in wanted.iter().filter(|(id, _)| **id != me) {
            match self.place(*id) {
                Ok(at) => {
                    let peer = &mut self.all[self.order[at].1];
                    if peer.present && peer.address != *address {
                        peer.signals.close.notify_waiters();
                    }
                    peer.address.clone_from(address);
                    if !peer.present {
                        peer.present = true;
                        changed.came.push(*id);
                    }
                }
                Err(at) => {
                    let delay = self.delays.get(id).copied().unwrap_or_default();
                    let own = (self.incarnation, self.logged.clone());
                    let peer = Peer::new(*id, address.clone(), own, delay, now);
                    self.far |= peer.is_far();
                    self.order.insert(at, (*id, self.all.len()));
                    changed.new.push(self.all.len());
                    changed.came.push(*id);
                    self.all.push(peer);
                }
            }
        }
        changed
    }

    fn place(&self, id: I) -> Result<usize, usize> {
        self.order.binary_search_by_key(&id, |(id, _)| *id)
    }

    /// The place of a peer that is wanted.
    pub(crate) fn index(&self, id: I) -> Option<usize> {
        let at = self.order[self.place(id).ok()?].1;
        self.all[at].present.then_some(at)
    }

    /// So many places there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Those that are wanted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer<I>> {
        self.all.iter().filter(|peer| peer.present)
    }

    /// Those that are wanted.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer<I>> {
        self.all.iter_mut().filter(|peer| peer.present)
    }

    /// Whether what is sent to any of them is held back.
    pub(crate) fn is_far(&self) -> bool {
        self.far
    }

    /// When something that is held back arrives next.
    pub(crate) fn held_due(&self) -> Option<Time> {
        let far = if self.far { &self.all[..] } else { &[] };
        far.iter().filter_map(Peer::held_due).min()
    }
}

impl<I> Index<usize> for Peers<I> {
    type Output = Peer<I>;

    fn index(&self, at: usize) -> &Peer<I> {
        &self.all[at]
    }
}

impl<I> IndexMut<usize> for Peers<I> {
    fn index_mut(&mut self, at: usize) -> &mut Peer<I> {
        &mut self.all[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{GroupId, NodeId, ProcessId};

    fn id(node: u16) -> ProcessId {
        ProcessId { group: GroupId(0), node: NodeId(node) }
    }

    fn named(nodes: &[u16]) -> BTreeMap<ProcessId, String> {
        nodes.iter().map(|node| (id(*node), format!("host-{node}"))).collect()
    }

    #[test]
    fn a_peer_keeps_its_place_while_others_come_and_go() {
        let mut peers = Peers::new(1, BTreeMap::new());
        let mut set = |nodes: &[u16]| {
            let changed = peers.set(Time(0), id(2), &named(nodes));
            let there: Vec<_> = nodes.iter().map(|node| peers.index(id(*node))).collect();
            (changed.new, changed.came, there)
        };
        let (new, came) = (vec![0, 1], vec![id(1), id(5)]);
        assert_eq!(set(&[1, 2, 5]), (new, came, vec![Some(0), None, Some(1)]));
        assert_eq!(set(&[3, 5]), (vec![2], vec![id(3)], vec![Some(2), Some(1)]));
        assert_eq!(set(&[1, 3]), (vec![], vec![id(1)], vec![Some(0), Some(2)]));
        assert_eq!(peers.index(id(5)), None);
        assert_eq!(peers.iter().map(|peer| peer.id).collect::<Vec<_>>(), [id(1), id(3)]);
        assert_eq!(peers[1].id, id(5));
    }
}
