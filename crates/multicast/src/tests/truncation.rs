//! What is dropped from `T`, and what stays while a group cannot be reached.

use super::*;
use crate::message::Rank;
use crate::truncation::Limits;

/// A multi-group message is kept until all processes of all its destinations have delivered it: one that
/// comes back may need our timestamp of it.
#[test]
fn truncation_needs_all_destinations() {
    let mut net = Net::settled(&[3, 3]);
    let late = process(1, 2);
    net.away.insert(late);
    net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 0)]);
    assert_eq!(net.delivered(1).len(), 5);
    net.run_for(Duration::from_secs(10));
    let keeps = |net: &Net, me| net.of(me).log.find(id(1)).is_some();
    let others: Vec<_> = net.all.keys().copied().filter(|me| *me != late).collect();
    assert!(others.iter().all(|me| keeps(&net, *me)));
    net.back(late);
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.delivered(1).len(), 6);
    assert!(net.all.keys().all(|me| !keeps(&net, *me)));
    let settled = Output::Settled(vec![id(1)]);
    assert_eq!(net.told.iter().filter(|(_, output)| *output == settled).count(), 6);
}

/// Others drop what we say is stable here, so it is durable first.
#[test]
fn stable_follows_the_deliveries() {
    let mut net = Net::settled(&[1, 1]);
    net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 0)]);
    let did = net.all.get_mut(&process(0, 0)).unwrap().tick(Duration::from_secs(2));
    let mark = place(&did, |did| *did == Did::Persisted(Record::Mark));
    let stable = place(&did, |did| matches!(did, Did::Sent(_, Message::Stable { .. })));
    assert!(mark < stable, "{did:?}");
}

/// Deliveries that the owner has not handled are not told: it may still need the others' votes.
#[test]
fn what_the_owner_has_not_handled_is_not_stable() {
    let mut net = Net::settled(&[1, 1]);
    net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 0)]);
    let one = net.all.get_mut(&process(0, 0)).unwrap();
    one.process.handled(Position(0));
    let tells = |did: &[Did]| sent(did).iter().any(|(_, m)| matches!(m, Message::Stable { .. }));
    assert!(!tells(&one.tick(Duration::from_secs(2))));
    one.process.handled(Position(1));
    assert!(tells(&one.tick(Duration::from_secs(2))));
}
