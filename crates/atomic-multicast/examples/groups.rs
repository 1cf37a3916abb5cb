//! Two groups of three members over TCP on this machine: messages to one group and to both,
//! delivered everywhere in the same order.
//!
//! `cargo run -p meridian-atomic-multicast --example groups`

use meridian_atomic_multicast::{GroupId, Groups, Member, NodeId, Options, PrimCast};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

const GREEN: GroupId = GroupId(0);
const BLUE: GroupId = GroupId(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let [green, blue] = [0..3, 3..6].map(|nodes| nodes.map(NodeId).collect());
    let groups: Groups = Arc::new(BTreeMap::from([(GREEN, green), (BLUE, blue)]));
    let mut members = Vec::new();
    for options in Options::on_this_machine("example", &groups)? {
        let process = PrimCast::new(options.me, groups.clone());
        members.push(Member::start(options, process).await?);
    }
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
        println!("  all with timestamps below {} are delivered", member.safe_ts().await?.0);
    }
    for (member, _) in members {
        member.close().await?;
    }
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
