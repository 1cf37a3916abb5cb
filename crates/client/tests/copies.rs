//! Blocks are copied before a node goes.
#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use fake::Cluster;
use meridian_client::copies::Copied;
use meridian_core::{BlockId, NodeId, RegionId};

const US: RegionId = RegionId(0);

/// On how many of these nodes each block is.
fn copies(cluster: &Cluster, nodes: std::ops::Range<usize>) -> Vec<usize> {
    let world = cluster.shared.world.lock().unwrap();
    let on = |block| nodes.clone().filter(|node| world.blocks[*node].contains_key(&block)).count();
    (0..7).map(|number| on(BlockId(number))).collect()
}

#[tokio::test]
async fn what_a_node_holds_is_on_enough_others_before_it_goes() {
    let cluster = Cluster::start(4, 0).await;
    {
        let mut world = cluster.shared.world.lock().unwrap();
        for number in 0..7 {
            // Alone on the one that goes, on it and another, on two others.
            let on: &[usize] = [&[0][..], &[0, 2], &[1, 3]][number as usize % 3];
            for node in on {
                world.blocks[*node].insert(BlockId(number), Bytes::from(vec![number as u8; 50]));
            }
        }
    }
    let client = cluster.client("us");
    assert_eq!(copies(&cluster, 1..4), [0, 1, 2, 0, 1, 2, 0]);
    let copied = client.restore_copies(US, Some(NodeId(0))).await.unwrap();
    assert_eq!(copied, Copied { blocks: 5, missing: 0 });
    assert_eq!(copies(&cluster, 1..4), [2; 7]);
    assert_eq!(copies(&cluster, 0..1), [1, 1, 0, 1, 1, 0, 1], "it gets none any more");
    let again = client.restore_copies(US, Some(NodeId(0))).await.unwrap();
    assert_eq!(again, Copied::default());
    let world = cluster.shared.world.lock().unwrap();
    let same = |number: u128| {
        let held = world.blocks[1..4].iter().filter_map(|blocks| blocks.get(&BlockId(number)));
        held.into_iter().all(|data| data[..] == [number as u8; 50])
    };
    assert!((0..7).all(same));
}

#[tokio::test]
async fn nobody_goes_while_another_does_not_tell_what_it_holds() {
    let cluster = Cluster::start(3, 0).await;
    cluster.set_down(2, true);
    let client = cluster.impatient("us", 500);
    assert!(client.restore_copies(US, Some(NodeId(0))).await.is_err());
}
