//! Servers that have their keys in different numbers of shards.
#![allow(clippy::unwrap_used, reason = "a test")]

#[allow(dead_code, reason = "the other tests need all of it")]
mod toy;

use bytes::BytesMut;
use meridian_core::hello::{Answer, Caller, Identity, Lane};
use meridian_core::standing::Standing;
use meridian_core::{NodeId, frame};
use meridian_storage::{Disk, SimDisk};
use std::io::{Read, Write};
use std::sync::Arc;
use toy::{CLUSTER, Cluster, dial, framed, hello};

/// Neither's threads could do anything with the other's: what they would call is not there, and
/// whoever calls is told why.
#[test]
fn nodes_whose_keys_are_in_other_numbers_of_shards_refuse_each_other() {
    let disks = (0..2).map(|_| Arc::new(SimDisk::new()) as Arc<dyn Disk>).collect();
    let mut cluster = Cluster::new(disks, 0);
    let shards = [1, 2];
    (0..2).for_each(|node| cluster.start_with_keys(node, usize::from(shards[node])));
    let answer = |node: usize, lane: u16| {
        let standing = Standing { incarnation: 1, ..Standing::default() };
        let (from, to) = (NodeId(1 - node as u16), NodeId(node as u16));
        let identity = Identity { from, to, durable: true, standing, known: None };
        let caller = Caller::Member(identity);
        let mut stream = dial(&cluster.addresses[node]);
        stream.write_all(&framed(&hello(CLUSTER, caller).to_lane(Lane(lane)))).unwrap();
        let mut body = BytesMut::new();
        loop {
            if let Some(body) = frame::decode(&mut body).unwrap() {
                return postcard::from_bytes::<Answer<NodeId>>(&body).unwrap();
            }
            let mut chunk = [0; 1024];
            let len = stream.read(&mut chunk).unwrap();
            assert!(len > 0, "closed without a word");
            body.extend_from_slice(&chunk[..len]);
        }
    };
    for node in 0..2 {
        let (ours, theirs) = (shards[node], shards[1 - node]);
        for thread in [0, 0xff] {
            let Answer::Refused(why) = answer(node, theirs << 8 | thread) else {
                panic!("a thread of {theirs} shards is taken for one of {ours}");
            };
            assert!(why.contains(&format!("the keys of this node are in {ours} shards")), "{why}");
        }
        // Those of its own kind it does not turn away for that.
        let kin = format!("{:?}", answer(node, ours << 8));
        assert!(!kin.contains("shards"), "{kin}");
    }
}
