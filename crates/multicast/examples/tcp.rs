//! Two groups of three members over TCP on this machine: messages to one group and to both,
//! delivered everywhere in the same order.
//!
//! ```sh
//! cargo run -p meridian-multicast --example tcp
//! ```

use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::{Groups, PrimCast};
use meridian_runtime::{Deliveries, Listen, Member, Options};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const GREEN: GroupId = GroupId(0);
const BLUE: GroupId = GroupId(1);

/// Members of both groups. On several machines each program would call [`Member::join`] once, with
/// addresses instead of sockets.
async fn start() -> Result<Vec<(Member<PrimCast>, Deliveries)>> {
    let mut groups = BTreeMap::new();
    let (mut addresses, mut sockets) = (BTreeMap::new(), Vec::new());
    for node in (0..6).map(NodeId) {
        let group = if node.0 < 3 { GREEN } else { BLUE };
        groups.entry(group).or_insert_with(Vec::new).push(node);
        let socket = TcpListener::bind("127.0.0.1:0")?;
        let me = ProcessId { group, node };
        addresses.insert(me, socket.local_addr()?.to_string());
        sockets.push((me, socket));
    }
    let groups: Groups = Arc::new(groups);
    let mut members = Vec::new();
    for (me, socket) in sockets {
        let options = Options::new("example", me, "", addresses.clone());
        let options = Options { listen: Listen::Socket(socket), ..options };
        members.push(Member::join(options, PrimCast::new(me, groups.clone())).await?);
    }
    Ok(members)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut members = start().await?;
    let (green, blue) = (members[0].0.clone(), members[4].0.clone());

    // All at once: which comes first is not up to us, but the same everywhere.
    let sent = tokio::try_join!(
        green.multicast(&[GREEN], "to green"),
        blue.multicast(&[BLUE], "to blue"),
        green.multicast(&[GREEN, BLUE], "to both, from green"),
        blue.multicast(&[GREEN, BLUE], "to both, from blue"),
    )?;
    println!("delivered where they were sent, with timestamps {sent:?}");

    // After those, so its timestamp is greater, and so is what is safe once it is delivered.
    let last = green.multicast(&[GREEN, BLUE], "the last").await?;
    for (member, deliveries) in &mut members {
        println!("{}", member.me());
        while let Some(delivery) = deliveries.next_message().await {
            let text = String::from_utf8_lossy(&delivery.start.payload);
            println!("  {:>4}  {text}", delivery.ts.0);
            if delivery.ts == last {
                break;
            }
        }
        let safe = member.safe_ts().await?;
        println!("  all with timestamps below {} are delivered here", safe.0);
    }
    for (member, _) in members {
        member.close().await?;
    }
    Ok(())
}
