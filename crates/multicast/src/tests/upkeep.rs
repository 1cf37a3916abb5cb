//! What the thesis leaves open: durability, repeats, truncation.

use super::*;

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

/// Deliveries that the owner has not applied are not told: it still needs the others' votes.
#[test]
fn what_the_owner_holds_back_is_not_stable() {
    let mut net = Net::settled(&[1, 1]);
    net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 0)]);
    let one = net.all.get_mut(&process(0, 0)).unwrap();
    one.process.hold_stable(meridian_core::Position(0));
    let tells = |did: &[Did]| sent(did).iter().any(|(_, m)| matches!(m, Message::Stable { .. }));
    assert!(!tells(&one.tick(Duration::from_secs(2))));
    one.process.hold_stable(meridian_core::Position(1));
    assert!(tells(&one.tick(Duration::from_secs(2))));
}

/// The sender told one of two groups and is gone: that group tells the other (reliable multicast's agreement,
/// section 2.2.1).
#[test]
fn a_start_that_reached_one_group_reaches_all() {
    let mut net = Net::settled(&[3, 3]);
    net.multicast(start(1, &[0, 1]), &[process(0, 0)]);
    net.run_for(Duration::from_secs(5));
    assert_eq!(net.delivered(1).len(), 6);
}

/// Who waits too long for another group's timestamp tells all its processes of the message.
#[test]
fn a_message_that_waits_for_a_group_is_sent_to_that_group() {
    let mut primary = Net::one(&[3, 3, 1], process(0, 0));
    primary.asked(start(1, &[0, 1]));
    primary.idle();
    let did = primary.tick(Duration::from_secs(2));
    let is_start = |(to, message): (ProcessId, &Message)| {
        (*message == Message::Start(start(1, &[0, 1]).into())).then_some(to)
    };
    let to: Vec<_> = sent(&did).into_iter().filter_map(is_start).collect();
    assert_eq!(to, [0, 1, 2].map(|n| process(1, n)));
}

/// ACKs are not durable where they arrive: who restarts is sent them again.
#[test]
fn acks_are_sent_again_to_a_process_of_another_group_that_restarted() {
    let mut primary = Net::one(&[3, 1], process(0, 0));
    primary.asked(start(1, &[0, 1]));
    primary.idle();
    let did = primary.step(Event::Restarted(process(1, 0)));
    let entry = RemoteEntry { index: 0, id: id(1), ts: Timestamp(1) };
    let (epoch, whole, from, upto) = (e1(0), true, 0, 1);
    let whole = Message::RemoteAppend { epoch, whole, from, upto, entries: [entry].into() };
    assert_eq!(did, [Did::Sent(process(1, 0), whole)]);
    assert_eq!(primary.idle(), [Did::Sent(process(1, 0), remote_ack(0, e1(0), 1))]);
}

/// A clock that was shown is never gone back below: others deliver because of it (quorum-clock).
#[test]
fn a_restart_begins_at_the_ceiling() {
    let mut follower = Net::one(&[3, 1], process(0, 2));
    let did = follower.hears_remote(process(1, 0), 1, e1(1), 40);
    let mut again = PrimCast::new(process(0, 2), groups_of(&follower.process));
    for did in did {
        if let Did::Persisted(record) = did {
            assert_eq!(again.recover(record), None);
        }
    }
    assert!(again.clock() >= follower.process.clock());
    assert_eq!(again.clock(), follower.process.ceiling);
}

/// Who restarts may lack what others have acknowledged since: it knows that it does not once it has delivered all
/// that was in its primary's `T`.
#[test]
fn who_restarts_has_caught_up_once_it_has_delivered_what_its_primary_held() {
    let (a, b, c) = (process(0, 0), process(0, 1), process(0, 2));
    let before = Net::one(&[3], c);
    assert!(before.process.is_caught_up());
    let again = PrimCast::new(c, groups_of(&before.process));
    let mut one = One { process: again, now: Time(0) };
    one.process.recover(Record::State(Box::new(before.process.state())));
    one.step(Event::Started);
    one.hears(b, ack(e1(0), 1, 1));
    one.idle();
    assert!(!one.process.is_caught_up(), "it has not heard its primary");
    one.hears(a, ack(e1(0), 1, 1));
    one.idle();
    assert!(!one.process.is_caught_up(), "it lacks an entry");
    one.hears(a, append(e1(0), 0, vec![entry(e1(0), 1, start(1, &[0]))], 0));
    one.hears(a, ack(e1(0), 1, 0));
    assert_eq!(delivered(&one.idle()), NONE);
    assert!(!one.process.is_caught_up(), "it has not delivered it");
    one.hears(a, ack(e1(0), 1, 1));
    assert_eq!(delivered(&one.idle()), [1]);
    assert!(one.process.is_caught_up());
}

/// A primary that was deposed, and does not know it, still says how long its `T` is: in a group of five it and
/// the one that restarts are no quorum, so its word is not enough.
#[test]
fn one_heartbeat_does_not_tell_that_nothing_is_missed() {
    let (a, b, c) = (process(0, 0), process(0, 1), process(0, 2));
    let before = Net::one(&[5], c);
    let again = PrimCast::new(c, groups_of(&before.process));
    let mut one = One { process: again, now: Time(0) };
    one.process.recover(Record::State(Box::new(before.process.state())));
    one.step(Event::Started);
    one.hears(a, ack(e1(0), 0, 0));
    one.idle();
    assert!(!one.process.is_caught_up(), "the primary alone may be deposed");
    one.hears(b, ack(e1(0), 0, 0));
    one.idle();
    assert!(one.process.is_caught_up());
}
