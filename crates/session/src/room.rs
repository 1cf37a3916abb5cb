//! How much can still be written to a partition: what nodes say of their disks, put together.

use meridian_cluster::Topology;
use meridian_cluster::ring::REPLICAS;
use meridian_core::{GroupId, NodeId};
use meridian_host::space::Room;
use std::collections::BTreeMap;

/// How many bytes of files can still be written to `partition`, as long as its nodes say so of
/// their disks. A node that does not answer has no room.
///
/// A block is stored on some nodes of each region that holds the partition, and is stored if most
/// of these regions have it. Nodes that share a disk have equal parts of what is left there.
pub fn room_for(topology: &Topology, partition: GroupId, rooms: &BTreeMap<NodeId, Room>) -> u64 {
    let mut sharing: BTreeMap<u64, u64> = BTreeMap::new();
    for room in rooms.values() {
        *sharing.entry(room.device).or_default() += 1;
    }
    let part = |node| {
        let room = rooms.get(&node)?;
        Some(room.writable / sharing[&room.device])
    };
    let of_region = |region| {
        let parts: Vec<u64> =
            topology.nodes_in(region).map(|node| part(node).unwrap_or(0)).collect();
        spread(parts)
    };
    let mut regions: Vec<u64> = match topology.group(partition).region {
        Some(region) => vec![of_region(region)],
        None => topology.staying_regions().map(of_region).collect(),
    };
    regions.sort_unstable_by(|a, b| b.cmp(a));
    regions.get(regions.len() / 2).copied().unwrap_or(0)
}

/// How many bytes can be stored on nodes with so much room, each byte on as many nodes as should
/// hold it.
fn spread(mut rooms: Vec<u64>) -> u64 {
    rooms.sort_unstable();
    let mut copies = REPLICAS.min(rooms.len()) as u64;
    let mut sum = rooms.iter().fold(0u64, |sum, room| sum.saturating_add(*room));
    // A node with more room than all bytes take has a copy of each, and the others the rest.
    while copies > 1
        && let Some(most) = rooms.pop()
        && most > sum / copies
    {
        (sum, copies) = (sum - most, copies - 1);
    }
    sum.checked_div(copies).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::{US, topology};
    use meridian_core::RegionId;

    #[test]
    fn each_byte_needs_room_on_two_nodes() {
        assert_eq!(spread(vec![]), 0);
        assert_eq!(spread(vec![7]), 7);
        assert_eq!(spread(vec![7, 0]), 0);
        assert_eq!(spread(vec![100, 10]), 10);
        assert_eq!(spread(vec![10, 10, 100]), 20);
        assert_eq!(spread(vec![40, 40, 40]), 60);
    }

    #[test]
    fn nodes_share_disks_and_most_regions_are_enough() {
        let topology = topology(&["us-1", "us-2", "eu-1", "eu-2", "ap-1", "ap-2"]);
        let global = topology.group_named("global").unwrap();
        let room = |writable, device| Room { writable, device, ..Room::default() };
        let mut rooms = BTreeMap::new();
        for region in 0..3u16 {
            for node in topology.nodes_in(RegionId(region)) {
                rooms.insert(node, room(600, u64::from(region)));
            }
        }
        let all = 600 / REPLICAS as u64;
        assert_eq!(room_for(&topology, US, &rooms), all);
        rooms.retain(|node, _| topology.node(*node).region != RegionId(0));
        assert_eq!(room_for(&topology, US, &rooms), 0, "nobody answers");
        assert_eq!(room_for(&topology, global, &rooms), all);
        rooms.retain(|node, _| topology.node(*node).region != RegionId(1));
        assert_eq!(room_for(&topology, global, &rooms), 0);
    }
}
