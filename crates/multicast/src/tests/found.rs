//! What seeds of the simulator found, as the shortest story that shows it.

use super::*;

/// A primary that restarted showed its ceiling as its clock, with ACCEPT and BUMP, which carry no
/// length of `T`. A follower took it for the clock of a `T` that it held, and delivered before an
/// entry that it lacked.
#[test]
fn the_clock_of_a_restarted_primary_counts_only_with_a_length() {
    let [a, b, c] = [0, 1, 2].map(|n| process(0, n));
    let entries = [entry(e1(0), 1, start(1, &[0, 1])), entry(e1(0), 2, start(2, &[0]))];
    let mut one = Net::one(&[3, 1], c);
    one.hears(a, append(e1(0), 0, entries[..1].to_vec(), 1));
    one.hears(b, ack(e1(0), 1, 50));
    one.hears_remote(process(1, 0), 1, e1(1), 50);
    one.step(Event::Restarted(a));
    let clock = Timestamp(65_537);
    one.hears(a, Message::from(Accept { epoch: e1(0), clock }));
    assert_eq!(delivered(&one.idle()), NONE, "after ACCEPT");
    one.hears(a, Message::from(Bump { epoch: e1(0), clock }));
    assert_eq!(delivered(&one.idle()), NONE, "after BUMP");
    one.hears(a, ack(e1(0), 2, clock.0));
    assert_eq!(delivered(&one.idle()), NONE, "after ACK of a longer T");
    one.hears(a, append(e1(0), 1, entries[1..].to_vec(), clock.0));
    one.hears(b, ack(e1(0), 2, 50));
    assert_eq!(delivered(&one.idle()), [2, 1]);
}

/// A deposed primary still held its proposal of a message that the next primary had proposed again,
/// with a smaller timestamp. Told the final one by another group it stopped: it was below its own.
#[test]
fn a_final_timestamp_below_an_obsolete_proposal_is_not_for_it() {
    let (b, other) = (process(0, 1), process(1, 0));
    let e2 = epoch(2, b);
    let mut deposed = Net::one(&[3, 1], process(0, 0));
    deposed.hears_remote(other, 9, e1(1), 10);
    deposed.asked(start(1, &[0, 1]));
    deposed.idle();
    assert_eq!(deposed.process.log.slot(id(1)).unwrap().entry.ts, Timestamp(11));
    deposed.hears(b, Message::from(NewEpoch { epoch: e2 }));
    let told = Message::from(Final { id: id(1), ts: Timestamp(6), delivered: true });
    assert!(deposed.hears(other, told.clone()).is_empty());
    assert_eq!(deposed.process.log.slot(id(1)).unwrap().entry.final_ts, None);
    deposed.hears(b, new_state(e2, 6, 0, vec![entry(e2, 6, start(1, &[0, 1]))]));
    deposed.hears(other, told);
    assert_eq!(deposed.process.log.slot(id(1)).unwrap().entry.final_ts, Some(Timestamp(6)));
}

/// ACKs of an epoch that came before its NEW-STATE were forgotten. Who had sent them had nothing
/// new to say, so the follower waited for them until the group ordered something else.
#[test]
fn acks_that_come_before_new_state_count_after_it() {
    let e2 = epoch(2, process(0, 1));
    let mut one = Net::one(&[5], process(0, 4));
    one.hears(process(0, 1), Message::from(NewEpoch { epoch: e2 }));
    let entries = vec![entry(e2, 1, start(1, &[0]))];
    for n in [2, 3] {
        one.hears(process(0, n), Message::from(Accept { epoch: e2, clock: Timestamp(0) }));
        one.hears(process(0, n), ack(e2, 1, 1));
    }
    one.hears(process(0, 1), new_state(e2, 0, 0, vec![]));
    // The primary writes still: its own ACK is not among the three of five.
    one.hears(process(0, 1), append(e2, 0, entries, 1));
    assert_eq!(delivered(&one.idle()), [1]);
}

/// A process that a snapshot had brought past a message never held it, so it told its watermark
/// only inside its group. The other destination kept the message, and its vote, for ever.
#[test]
fn who_was_brought_past_a_message_by_a_snapshot_is_asked_for_its_watermark() {
    let mut net = Net::settled(&[1, 3]);
    let (keeper, late) = (process(0, 0), process(1, 2));
    net.away.insert(late);
    net.multicast(start(1, &[0, 1]), &[keeper, process(1, 0)]);
    assert_eq!(net.delivered(1).len(), 3);
    for n in [0, 1] {
        // As if too much were kept: then a quorum is enough.
        let up = &mut net.all.get_mut(&process(1, n)).unwrap().process;
        let ts = up.log.truncate_first().and_then(|entry| entry.final_ts).unwrap();
        up.deliveries.done.truncated(id(1), ts);
    }
    net.back(late);
    net.run_for(Duration::from_secs(2));
    assert!(net.told.iter().any(|(me, it)| *me == late && matches!(it, Output::Install { .. })));
    assert!(net.of(late).log.is_empty() && !net.of(keeper).log.is_empty());
    net.run_for(Duration::from_secs(8));
    assert!(net.of(keeper).log.is_empty());
    assert!(net.told.contains(&(keeper, Output::Settled(vec![id(1)]))));
}

/// Seed 303670: who had delivered a message by word of another had not counted that a quorum holds
/// it. A NEW-STATE that was meant for what it had promised before it got a snapshot would have cut
/// that off.
#[test]
fn what_was_delivered_by_word_of_another_is_decided() {
    let [a, b] = [0, 1].map(|n| process(0, n));
    let mut one = Net::one(&[3], process(0, 2));
    let entries: Vec<_> = (1..=2).map(|n| entry(e1(0), n, start(n, &[0]))).collect();
    one.hears(a, append(e1(0), 0, entries, 2)); // Its ACK is still under way.
    one.hears(b, Message::from(Final { id: id(1), ts: Timestamp(1), delivered: true }));
    one.hears(b, Message::from(Final { id: id(2), ts: Timestamp(2), delivered: true }));
    assert_eq!(delivered(&one.idle()), [1, 2]);
    assert_eq!(one.process.log.decided, 2);
    let e2 = epoch(2, b);
    one.hears(b, Message::from(NewEpoch { epoch: e2 }));
    let late = entry(e2, 3, start(3, &[0]));
    one.hears(b, new_state(e2, 2, 1, vec![late.clone()]));
    assert_eq!((one.process.epoch(), one.process.log.len()), (e1(0), 2), "of before a snapshot");
    one.hears(b, new_state(e2, 2, 2, vec![late]));
    assert_eq!((one.process.epoch(), one.process.log.len()), (e2, 3));
}
