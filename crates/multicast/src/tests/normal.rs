//! Algorithms 1 and 2: proposing, acknowledging, delivering.

use super::*;

/// A follower that holds these entries of its primary, whose clock is `clock`.
fn follower_of(sizes: &[u16], n: u16, entries: Vec<Entry>, clock: u64) -> One {
    let mut one = Net::one(sizes, process(0, n));
    one.hears(process(0, 0), append(e1(0), 0, entries, clock));
    one
}

/// Lines 36-39. The proposals travel while the primary writes them; they count as its vote only
/// with its ACK, which waits for the record. And no clock is shown before its ceiling is durable.
#[test]
fn proposals_go_out_before_their_record_and_the_ack_after() {
    let mut primary = Net::one(&[3], process(0, 0));
    let mut did = primary.asked(start(1, &[0]));
    did.extend(primary.asked(start(2, &[0])));
    assert!(sent(&did).is_empty());
    did.extend(primary.idle());
    assert!(matches!(did[0], Did::Persisted(Record::Ceiling(at)) if at >= Timestamp(2)));
    let entries = vec![entry(e1(0), 1, start(1, &[0])), entry(e1(0), 2, start(2, &[0]))];
    let to_both = |message: Message| [1, 2].map(|n| Did::Sent(process(0, n), message.clone()));
    let proposals = to_both(append(e1(0), 0, entries.clone(), 2));
    let record = [Did::Persisted(Record::Append { from: 0, entries: entries.into() })];
    assert_eq!(did[1..], [&proposals[..], &record, &to_both(ack(e1(0), 2, 2))].concat());
}

/// Lines 43-45: a follower's ACKs, in its group and to others, follow the record of what they
/// cover.
#[test]
fn an_ack_follows_its_record() {
    let mut follower = Net::one(&[3, 1], process(0, 2));
    let entries = vec![entry(e1(0), 1, start(1, &[0, 1]))];
    let mut did = follower.hears(process(0, 0), append(e1(0), 0, entries.clone(), 1));
    assert!(sent(&did).is_empty());
    did.extend(follower.idle());
    let record = place(&did, |did| {
        *did == Did::Persisted(Record::Append { from: 0, entries: entries.clone().into() })
    });
    let to_own = place(&did, |did| *did == Did::Sent(process(0, 0), ack(e1(0), 1, 1)));
    let to_other = place(&did, |did| *did == Did::Sent(process(1, 0), remote_ack(0, e1(0), 1)));
    assert!(record < to_own && record < to_other, "{did:?}");
}

/// Line 43: `T` has no holes. What comes after a gap is not appended but asked for, and what comes
/// twice is appended once.
#[test]
fn a_follower_appends_without_gaps_and_repetitions() {
    let entries: Vec<_> = (1..=3).map(|n| entry(e1(0), n, start(n, &[0]))).collect();
    let mut follower = follower_of(&[3], 2, entries[..1].to_vec(), 1);
    let did = follower.hears(process(0, 0), append(e1(0), 2, entries[2..].to_vec(), 3));
    let asked = Message::from(Resend { epoch: e1(0), from: 1 });
    assert_eq!(did, [Did::Sent(process(0, 0), asked)]);
    assert_eq!(follower.process.log.len(), 1);
    follower.hears(process(0, 0), append(e1(0), 0, entries, 3));
    assert_eq!(follower.process.log.len(), 3);
}

/// Lines 46-50: a timestamp of another group moves the clock, and the group is told; the ceiling
/// first.
#[test]
fn a_remote_ack_above_the_clock_is_shown_to_the_group() {
    let shown = |sizes: &[u16], me: ProcessId| {
        let mut one = Net::one(sizes, me);
        let mut did = one.hears_remote(process(1, 0), 1, e1(1), 40);
        did.extend(one.idle());
        assert!(matches!(did[0], Did::Persisted(Record::Ceiling(at)) if at >= Timestamp(40)));
        one.hears_remote(process(1, 0), 2, e1(1), 39);
        assert!(one.idle().is_empty(), "line 48: only if it is higher");
        did.split_off(1)
    };
    let to = |n| Did::Sent(process(0, n), ack(e1(0), 0, 40));
    assert_eq!(shown(&[5, 1], process(0, 2)), [0, 1, 3, 4].map(to));
    assert_eq!(shown(&[3, 1], process(0, 0)), [1, 2].map(to));
    assert_eq!(shown(&[3, 1], process(0, 2)), [to(0)], "with the primary each is a quorum");
}

/// Line 47: who acknowledged a message knows it; the primary asks for it, and proposes it.
#[test]
fn a_remote_ack_makes_the_message_known() {
    let mut primary = Net::one(&[3, 1], process(0, 0));
    primary.hears_remote(process(1, 0), 1, e1(1), 1);
    let did = primary.tick(Duration::from_secs(2));
    assert!(did.contains(&Did::Sent(process(1, 0), Message::from(Pull { id: id(1) }))), "{did:?}");
    primary.hears(process(1, 0), Message::Normal(NormalMessage::Start(start(1, &[0, 1]).into())));
    primary.idle();
    assert_eq!(primary.process.log.find(id(1)), Some(0));
}

/// Line 10: a local timestamp is decided by a quorum of ACKs of one epoch. An ACK of an earlier
/// epoch, which another `T` may have had, does not count for this one.
#[test]
fn acks_of_an_earlier_epoch_do_not_count() {
    let [_, b, c] = [0, 1, 2].map(|n| process(0, n));
    let e2 = epoch(2, b);
    let mut follower = Net::one(&[5], c);
    follower.hears(b, Message::from(NewEpoch { epoch: e2 }));
    follower.hears(process(0, 3), ack(e1(0), 1, 9));
    follower.hears(process(0, 4), ack(e1(0), 1, 9));
    follower.hears(b, new_state(e2, 0, 0, vec![]));
    for n in [1, 3] {
        let accept = Message::from(Accept { epoch: e2, clock: Timestamp(9) });
        follower.hears(process(0, n), accept);
    }
    follower.hears(b, append(e2, 0, vec![entry(e2, 5, start(1, &[0]))], 9));
    assert_eq!(delivered(&follower.idle()), NONE);
    assert_eq!(follower.process.log.decided, 0);
    follower.hears(process(0, 3), ack(e2, 1, 9));
    assert_eq!(delivered(&follower.idle()), NONE);
    follower.hears(process(0, 4), ack(e2, 1, 9));
    assert_eq!(delivered(&follower.idle()), [1]);
}

/// Lines 12-14: final is the maximum of the local timestamps, once all destinations have decided.
#[test]
fn final_ts_is_the_maximum_over_all_destinations() {
    let mut follower = follower_of(&[3, 1, 1], 2, vec![entry(e1(0), 1, start(1, &[0, 1, 2]))], 90);
    follower.hears(process(0, 1), ack(e1(0), 1, 90));
    follower.hears_remote(process(1, 0), 1, e1(1), 40);
    assert_eq!(delivered(&follower.idle()), NONE);
    follower.hears_remote(process(2, 0), 1, e1(2), 20);
    let did = follower.idle();
    let at = place(&did, |did| matches!(did, Did::Told(_)));
    assert!(
        matches!(&did[at], Did::Told(Output::Deliver(it)) if it.ts == Timestamp(40)),
        "{did:?}"
    );
}

/// Line 28: above the primary's clock new proposals may still come before it.
#[test]
fn nothing_is_delivered_above_the_primarys_clock() {
    let mut follower = follower_of(&[3, 1], 2, vec![entry(e1(0), 1, start(1, &[0, 1]))], 1);
    follower.hears(process(0, 1), ack(e1(0), 1, 9));
    follower.hears_remote(process(1, 0), 1, e1(1), 5);
    assert_eq!(delivered(&follower.idle()), NONE);
    follower.hears(process(0, 0), ack(e1(0), 1, 4));
    assert_eq!(delivered(&follower.idle()), NONE);
    follower.hears(process(0, 0), ack(e1(0), 1, 5));
    assert_eq!(delivered(&follower.idle()), [1]);
}

/// Line 29: above the quorum's clock the primary of a later epoch may still propose.
#[test]
fn nothing_is_delivered_above_the_clocks_of_a_quorum() {
    let mut follower = follower_of(&[5, 1], 4, vec![entry(e1(0), 1, start(1, &[0, 1]))], 9);
    follower.hears(process(0, 0), ack(e1(0), 1, 9));
    follower.hears(process(0, 1), ack(e1(0), 1, 4));
    follower.hears_remote(process(1, 0), 1, e1(1), 5);
    assert_eq!(delivered(&follower.idle()), NONE);
    assert!(follower.process.log.slot(id(1)).unwrap().entry.final_ts.is_some());
    // A clock of a later epoch does not count here: what it promises is for that epoch.
    let later = epoch(2, process(0, 4));
    follower.hears(process(0, 3), Message::from(Bump { epoch: e1(0), clock: Timestamp(4) }));
    follower.process.clock.members.note(process(0, 3).node, later, Timestamp(9), e1(0));
    assert_eq!(delivered(&follower.idle()), NONE);
    follower.hears(process(0, 2), Message::from(Bump { epoch: e1(0), clock: Timestamp(5) }));
    assert_eq!(delivered(&follower.idle()), [1]);
}

/// Line 30: a message waits for each other that may still get a smaller timestamp.
#[test]
fn a_message_waits_for_one_that_may_be_smaller() {
    let entries = vec![entry(e1(0), 1, start(1, &[0, 1])), entry(e1(0), 2, start(2, &[0]))];
    let mut follower = follower_of(&[3, 1], 2, entries, 9);
    follower.hears(process(0, 1), ack(e1(0), 2, 9));
    assert_eq!(delivered(&follower.idle()), NONE, "1 may get the timestamp 1");
    follower.hears_remote(process(1, 0), 1, e1(1), 5);
    assert_eq!(delivered(&follower.idle()), [2, 1]);
}

/// Line 30: equal final timestamps are told apart by the messages' names, not by their places in
/// `T`.
#[test]
fn ties_are_broken_by_name() {
    let entries = vec![entry(e1(0), 1, start(2, &[0, 1])), entry(e1(0), 2, start(1, &[0, 2]))];
    let mut follower = follower_of(&[3, 1, 1], 2, entries, 9);
    follower.hears(process(0, 1), ack(e1(0), 2, 9));
    follower.hears_remote(process(1, 0), 2, e1(1), 5);
    assert_eq!(delivered(&follower.idle()), NONE);
    follower.hears_remote(process(2, 0), 1, e1(2), 5);
    assert_eq!(delivered(&follower.idle()), [1, 2]);
}

/// Lines 24-25: what was delivered is not proposed again. Who asks is told its final timestamp, or,
/// once its client waits for it no more and it is dropped, nothing.
#[test]
fn a_late_start_of_a_delivered_message_is_answered_not_proposed() {
    let mut net = Net::settled(&[3, 1]);
    let (first, other) = (process(0, 0), process(1, 0));
    net.multicast(start(1, &[0, 1]), &[first, other]);
    assert_eq!(net.delivered(1).len(), 4);
    let one = net.all.get_mut(&first).unwrap();
    let did = one.hears(other, Message::Normal(NormalMessage::Start(start(1, &[0, 1]).into())));
    assert!(
        matches!(did[..], [Did::Sent(to, Message::Remote(RemoteMessage::Final(_)))] if to == other),
        "{did:?}"
    );
    assert_eq!(one.asked(start(1, &[0, 1])), [Did::Told(Output::Duplicate(id(1)))]);
    net.multicast(Start { low: 2, ..start(2, &[0, 1]) }, &[first, other]);
    net.run_for(Duration::from_secs(3));
    let one = net.all.get_mut(&first).unwrap();
    assert!(
        one.hears(other, Message::Normal(NormalMessage::Start(start(1, &[0, 1]).into())))
            .is_empty()
    );
    assert_eq!(one.asked(start(1, &[0, 1])), [Did::Told(Output::Duplicate(id(1)))]);
    one.idle();
    assert_eq!(one.process.log.len(), 2);
    assert_eq!(net.delivered(1).len(), 4);
}

/// Line 34, with START sent to one process: a follower passes it on, once.
#[test]
fn a_follower_passes_a_start_on_to_the_primary() {
    let mut follower = Net::one(&[3], process(0, 2));
    follower.asked(start(1, &[0]));
    let passed =
        Did::Sent(process(0, 0), Message::Normal(NormalMessage::Start(start(1, &[0]).into())));
    assert_eq!(follower.idle(), [passed]);
    assert!(follower.idle().is_empty());
}

/// For who reads a process that has stopped: what others have no say in is taken as decided, but
/// nothing overtakes what it conflicts with.
#[test]
fn the_rest_is_delivered_up_to_what_others_have_a_say_in() {
    let entries = [(1, &[0][..]), (2, &[0, 1]), (3, &[0])]
        .map(|(at, dest)| entry(e1(0), at, start(at, dest)));
    let ids = |process: &mut PrimCast| -> Vec<MessageId> {
        process.deliver_rest().iter().map(|delivery| delivery.start.id).collect()
    };
    let stopped = || {
        let mut process = Net::one(&[3, 1], process(0, 1)).process;
        process.recover(Record::Append { from: 0, entries: entries.to_vec().into() });
        process
    };
    let mut first = stopped();
    assert_eq!(ids(&mut first), [id(1)]);
    assert_eq!(ids(&mut first), []);
    first.recover(Record::Delivered { id: id(2), ts: Timestamp(2) });
    assert_eq!(ids(&mut first), [id(3)]);
    let waiting: Vec<_> = stopped().undelivered().map(|(start, _)| start.id).collect();
    assert_eq!(waiting, [id(1), id(2), id(3)]);
}

/// Proposition 1: who is no destination takes no step.
#[test]
fn bystanders_hear_nothing() {
    let mut net = Net::settled(&[3, 3, 3]);
    let before: Vec<_> = (0..3).map(|n| net.of(process(2, n)).clone()).collect();
    net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 1)]);
    assert_eq!(net.delivered(1).len(), 6);
    assert!((0..3).all(|n| *net.of(process(2, n)) == before[usize::from(n)]));
}
