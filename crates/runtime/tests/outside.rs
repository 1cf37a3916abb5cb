//! Clients that multicast and are in no group, over real connections.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::outside::Failure;
use meridian_multicast::{Groups, PrimCast};
use meridian_runtime::outside::{Client, ClientOptions};
use meridian_runtime::{Deliveries, Member, Options, Storage};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const GREEN: GroupId = GroupId(0);
const BLUE: GroupId = GroupId(1);
const RED: GroupId = GroupId(2);

fn groups() -> Groups {
    let of = |group: u16| (GroupId(group), (0..3).map(|node| NodeId(10 * group + node)).collect());
    Arc::new((0..3).map(of).collect())
}

type Joined = (Member<PrimCast>, Deliveries);

async fn join(options: Options) -> Joined {
    let me = options.me;
    Member::start(options, PrimCast::new(me, groups())).await.unwrap()
}

fn stored(dir: &Path, options: Options) -> Options {
    let path = dir.join(options.me.node.0.to_string());
    Options { storage: Storage::directory(path), ..options }
}

fn client(members: &[Joined]) -> Client {
    let addresses = members.iter().map(|(one, _)| (one.me(), one.address().to_string()));
    Client::new(ClientOptions::new("outside", addresses.collect()))
}

/// All that was delivered up to the message that says so.
async fn read(deliveries: &mut Deliveries) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let delivery = deliveries.next_message().await.unwrap();
        let text = String::from_utf8(delivery.start.payload.to_vec()).unwrap();
        if text == "the end" {
            return texts;
        }
        texts.push(text);
    }
}

#[tokio::test]
async fn anybody_multicasts_to_any_groups() {
    let mut members = Vec::new();
    for options in Options::on_this_machine("outside", &groups()).unwrap() {
        members.push(join(options).await);
    }
    let (one, two) = (client(&members), client(&members));
    let sent = [
        (&one, "green", vec![GREEN]),
        (&two, "both", vec![BLUE, RED]),
        (&one, "all", vec![RED, GREEN, BLUE]),
    ];
    for (client, text, dest) in sent {
        client.multicast(&dest, text).await.unwrap();
    }
    assert_eq!(one.multicast(&[], "nobody").await, Err(Failure::NoDestination));
    assert_eq!(one.multicast(&[GroupId(7)], "no").await, Err(Failure::NoGroup(GroupId(7))));
    one.multicast(&[GREEN, BLUE, RED], "the end").await.unwrap();
    for (member, deliveries) in &mut members {
        let expected = match member.me().group {
            GREEN => vec!["green", "all"],
            _ => vec!["both", "all"],
        };
        assert_eq!(read(deliveries).await, expected, "{}", member.me());
    }
}

/// Members are ended one after the other, those too that the client asks and primaries: what it is
/// told is delivered is, once.
#[tokio::test]
async fn each_message_is_delivered_once_though_members_end_and_start_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for options in Options::on_this_machine("outside", &groups()).unwrap() {
        let joined = join(stored(dir.path(), options)).await;
        addresses.insert(joined.0.me(), joined.0.address().to_string());
        members.insert(joined.0.me(), joined);
    }
    let options = ClientOptions::new("outside", addresses.clone());
    let client = Client::new(ClientOptions { give_up_after: Duration::from_secs(60), ..options });
    let (progress, mut sent) = watch::channel(0);
    let sending = tokio::spawn({
        let client = client.clone();
        async move {
            let mut number = 0;
            // Until nobody looks any more.
            while progress.send(number).is_ok() {
                let dest = [vec![GREEN, BLUE], vec![BLUE], vec![GREEN]][number % 3].clone();
                client.multicast(&dest, number.to_string()).await.unwrap();
                number += 1;
            }
            number
        }
    });
    for (group, node) in [(GREEN, 0), (BLUE, 10), (GREEN, 1), (BLUE, 11), (GREEN, 2)] {
        let me = ProcessId { group, node: NodeId(node) };
        let before = *sent.borrow();
        sent.wait_for(|sent| *sent >= before + 10).await.unwrap();
        let (member, deliveries) = members.remove(&me).unwrap();
        member.close().await.unwrap();
        drop(deliveries);
        let before = *sent.borrow();
        sent.wait_for(|sent| *sent >= before + 10).await.unwrap();
        let mut peers = addresses.clone();
        peers.remove(&me);
        let options = Options::new("outside", me, addresses[&me].clone(), peers);
        members.insert(me, join(stored(dir.path(), options)).await);
    }
    drop(sent);
    let sent = sending.await.unwrap();
    client.multicast(&[GREEN, BLUE], "the end").await.unwrap();
    for (me, (_, deliveries)) in &mut members {
        let skips = match me.group {
            GREEN => 1,
            BLUE => 2,
            _ => continue,
        };
        let texts = read(deliveries).await;
        let numbers: Vec<usize> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let once: BTreeSet<_> = numbers.iter().copied().collect();
        assert_eq!(once.len(), numbers.len(), "{me} delivers twice: {numbers:?}");
        // Who started again tells only what its log had not been replaced for: all, in so short.
        let expected: BTreeSet<_> = (0..sent).filter(|number| number % 3 != skips).collect();
        let missing: Vec<_> = expected.symmetric_difference(&once).collect();
        assert!(missing.is_empty(), "{me}: {missing:?}");
    }
}

#[tokio::test]
async fn who_is_in_another_cluster_or_finds_nobody_is_told_that_nothing_is_known() {
    let mut members = Vec::new();
    for options in Options::on_this_machine("outside", &groups()).unwrap() {
        members.push(join(options).await);
    }
    let addresses: BTreeMap<_, _> =
        members.iter().map(|(one, _)| (one.me(), one.address().to_string())).collect();
    let options = ClientOptions::new("another", addresses);
    let give_up_after = Duration::from_millis(500);
    let client = Client::new(ClientOptions { give_up_after, ..options });
    assert_eq!(client.multicast(&[GREEN], "text").await, Err(Failure::Unknown));
}
