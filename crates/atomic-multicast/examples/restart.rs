//! A member with a log on disk ends and starts again. Its program keeps its own state short: it
//! gives it to the member now and then, and gets it back.
//!
//! `cargo run -p meridian-atomic-multicast --example restart`

use meridian_atomic_multicast::{
    Delivered, Deliveries, GroupId, Groups, Member, NodeId, Options, Position, PrimCast, ProcessId,
    Storage,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

const GROUP: GroupId = GroupId(0);
/// After so many messages the program gives its state to the member.
const KEEP_EVERY: u64 = 10;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How many messages there were, and how long they were together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    messages: u64,
    bytes: u64,
}

impl Totals {
    fn to_bytes(self) -> Vec<u8> {
        [self.messages, self.bytes].map(u64::to_be_bytes).concat()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Totals> {
        let (messages, rest) = bytes.split_first_chunk().ok_or("too short")?;
        let (messages, bytes) =
            (u64::from_be_bytes(*messages), u64::from_be_bytes(rest.try_into()?));
        Ok(Totals { messages, bytes })
    }
}

/// Takes what is delivered until there were so many messages.
async fn follow(
    member: &Member<PrimCast>,
    deliveries: &mut Deliveries,
    messages: u64,
) -> Result<Totals> {
    let mut totals = Totals::default();
    while totals.messages < messages {
        match deliveries.next().await.ok_or("the member has stopped")? {
            // The state that was kept here, or by another if this one was away too long.
            Delivered::State { state, .. } => totals = Totals::from_bytes(&state)?,
            Delivered::Message(delivery) => {
                totals.messages += 1;
                totals.bytes += delivery.start.payload.len() as u64;
                if totals.messages.is_multiple_of(KEEP_EVERY) {
                    member.keep(Position(delivery.position.0), totals.to_bytes()).await?;
                }
            }
        }
    }
    Ok(totals)
}

async fn start(
    options: Options,
    groups: &Groups,
    dir: &Path,
) -> Result<(Member<PrimCast>, Deliveries)> {
    let storage = Storage::directory(dir.join(options.me.node.0.to_string()));
    let process = PrimCast::new(options.me, groups.clone());
    Ok(Member::start(Options { storage, ..options }, process).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let groups: Groups = Arc::new(BTreeMap::from([(GROUP, (0..3).map(NodeId).collect())]));
    let (mut members, mut addresses) = (Vec::new(), BTreeMap::<ProcessId, String>::new());
    for options in Options::on_this_machine("example", &groups)? {
        let joined = start(options, &groups, dir.path()).await?;
        addresses.insert(joined.0.me(), joined.0.address().to_string());
        members.push(joined);
    }
    for number in 0..25 {
        members[1].0.multicast(&[GROUP], format!("message {number}")).await?;
    }
    let (member, mut deliveries) = members.remove(0);
    let before = follow(&member, &mut deliveries, 25).await?;
    member.close().await?;
    println!("{} has ended after {before:?}", member.me());
    for number in 25..30 {
        members[1].0.multicast(&[GROUP], format!("message {number}")).await?;
    }

    let mut peers = addresses.clone();
    let address = peers.remove(&member.me()).ok_or("it had an address")?;
    let options = Options::new("example", member.me(), address, peers);
    let (member, mut deliveries) = start(options, &groups, dir.path()).await?;
    let after = follow(&member, &mut deliveries, 30).await?;
    println!("{} has started again: {after:?}", member.me());
    let (other, mut deliveries) = members.remove(0);
    assert_eq!(follow(&other, &mut deliveries, 30).await?, after);
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
