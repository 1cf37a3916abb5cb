//! What the thesis leaves open: durability, repeats.

use super::*;

/// The sender told one of two groups and is gone: that group tells the
/// other: the agreement of reliable multicast (thesis, section 2.2.1).
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
        (*message == Message::Normal(NormalMessage::Start(start(1, &[0, 1]).into()))).then_some(to)
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
    let whole = Message::from(RemoteAppend {
        epoch,
        whole,
        from,
        upto,
        entries: [entry].into(),
        relays: false,
    });
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
    assert_eq!(again.clock(), follower.process.clock.ceiling);
}

/// Who restarts may lack what others have acknowledged since: it knows up to which timestamp that
/// may be once it holds the `T` of its primary and has heard a quorum. One message that waits is
/// all that it lacks then.
#[test]
fn who_restarts_knows_what_it_may_lack_once_it_holds_what_its_primary_held() {
    let (a, b, c) = (process(0, 0), process(0, 1), process(0, 2));
    let before = Net::one(&[3, 1], c);
    assert!(before.process.floor().is_some());
    let again = PrimCast::new(c, groups_of(&before.process));
    let mut one = One { process: again, now: Time(0) };
    one.process.recover(Record::State(Box::new(before.process.state())));
    one.step(Event::Started);
    one.hears(b, ack(e1(0), 2, 2));
    one.idle();
    assert_eq!(one.process.floor(), None, "it has not heard its primary");
    one.hears(a, ack(e1(0), 2, 2));
    one.idle();
    assert_eq!(one.process.floor(), None, "it lacks entries");
    let of = |sequence, dest: &[u16], key| Start {
        touches: Touches::keys([key]),
        ..start(sequence, dest)
    };
    let entries = vec![entry(e1(0), 1, of(1, &[0, 1], 1)), entry(e1(0), 2, of(2, &[0], 2))];
    one.hears(a, append(e1(0), 0, entries, 0));
    one.hears(a, ack(e1(0), 2, 2));
    assert_eq!(delivered(&one.idle()), [2]);
    assert_eq!(one.process.floor(), Some(Timestamp(2)));
    let reached = |key| one.process.reached(&Touches::keys([key]), Timestamp(2));
    assert!(reached(2) && reached(3) && !reached(1), "the first waits for another group");
}

/// A primary that was deposed, and does not know it, still says how long its `T` is: in a group of
/// five it and the one that restarts are no quorum, so its word is not enough.
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
    assert_eq!(one.process.floor(), None, "the primary alone may be deposed");
    one.hears(b, ack(e1(0), 0, 0));
    one.idle();
    assert!(one.process.floor().is_some());
}
