//! One claim of the protocol each, on replicas whose messages the test carries.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod net;

use bytes::Bytes;
use meridian_core::{ClientId, Event, MessageId, NodeId, Time, Value};
use meridian_hermes::{
    Acks, Action, Answer, Body, Command, Message, Mutation, Options, Reads, Refusal, Request, State,
};
use net::{Append, LEASE, Net, bytes, key, value};
use std::collections::BTreeSet;
use std::time::Duration;

/// Hermes, section 3.2: one round trip, then VALs: 3 (n - 1) messages.
#[test]
fn a_write_is_answered_after_one_round_trip_and_read_everywhere() {
    let mut net = Net::new(3);
    net.write(1, 1, "a");
    assert_eq!((net.state(1), net.answers.get(&1)), (State::Write, None));
    net.carry(1, 0);
    assert_eq!(net.state(0), State::Invalid);
    net.read(0, 2);
    assert_eq!(net.answers.get(&2), None, "what is Invalid is not read");
    net.run();
    assert_eq!((net.answers.get(&1), net.sent), (Some(&Answer::Written), 6));
    assert_eq!(net.answers.get(&2).cloned(), value(bytes("a")));
    assert_eq!(net.replicas[&2].read(Time(0), &key()), Some(Some(&Value::from(&b"a"[..]))));
    assert_eq!(net.replicas[&2].read(LEASE, &key()), None, "the lease has ended");
}

/// Decision 55: of the writes that wait at one replica only the last needs a round trip; an RMW
/// behind them finds it.
#[test]
fn writes_that_wait_for_the_same_key_are_one() {
    let mut net = Net::new(3);
    for (token, text) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        net.write(0, token, text);
    }
    net.append(0, 5, "!");
    net.run();
    assert_eq!((net.agreed(), net.sent), (bytes("d!"), 6 + 6 + 6));
    assert!((1..=4).all(|token| net.answers[&token] == Answer::Written), "{:?}", net.answers);
    assert_eq!(net.answers[&5], Answer::Modified(Bytes::from("d!")));
}

#[test]
fn of_writes_that_were_combined_nothing_is_known_after_a_removal() {
    let mut net = Net::new(3);
    for (token, text) in [(1, "a"), (2, "b"), (3, "c")] {
        net.write(0, token, text);
    }
    net.carry(0, 1);
    net.carry(0, 2);
    net.carry(1, 0);
    net.carry(2, 0);
    assert_eq!(net.answers.remove(&1), Some(Answer::Written));
    net.install(&[1, 2], &[], &[0, 1, 2]);
    assert_eq!((&net.answers[&2], &net.answers[&3]), (&Answer::Unknown, &Answer::Unknown));
}

/// Hermes, section 3.5: both complete, the one with the greater place is last; O1: the other sends
/// no VAL.
#[test]
fn of_two_writes_at_once_the_later_place_wins_at_all() {
    let mut net = Net::new(3);
    net.write(0, 1, "low");
    net.write(2, 2, "high");
    net.carry(2, 0);
    assert_eq!(net.state(0), State::Trans);
    net.run();
    assert_eq!(net.answers.len(), 2);
    assert_eq!((net.agreed(), net.sent), (bytes("high"), 4 + 4 + 2));
}

#[test]
fn a_delete_is_a_write_and_what_follows_is_later() {
    let mut net = Net::new(3);
    net.write(0, 1, "a");
    net.run();
    net.update(1, 2, None, Action::Write(None));
    net.run();
    assert_eq!(net.agreed(), None);
    net.append(2, 3, "b");
    net.run();
    assert_eq!(net.agreed(), bytes("b"));
}

/// Decision 30: the case in which the paper's rule loses a write that was read.
#[test]
fn an_unseen_write_of_the_same_version_defeats_an_rmw() {
    let mut net = Net::new(3);
    net.write(0, 1, "a");
    net.write(1, 2, "b");
    net.carry(0, 1);
    net.carry(0, 2);
    net.carry(1, 0);
    // Node 0 has met b, which is later: the RMW on a begins only where a is Valid.
    net.append(0, 3, "!");
    net.run();
    assert_eq!(net.agreed(), bytes("b!"));
    assert_eq!(net.answers[&3], Answer::Modified(Bytes::from("b!")));
}

#[test]
fn racing_rmws_all_happen_one_after_the_other() {
    let mut net = Net::new(3);
    for (at, letter) in [(0, "x"), (1, "y"), (2, "z")] {
        net.append(at, u64::from(at), letter);
    }
    net.run();
    net.tick();
    let mut agreed = net.agreed().unwrap().to_vec();
    agreed.sort_unstable();
    assert_eq!(agreed, b"xyz");
    assert!(net.answers.values().all(|answer| matches!(answer, Answer::Modified(_))));
}

/// The one that is defeated finds that what defeated it was the same request.
#[test]
fn a_request_that_several_replicas_are_asked_at_once_happens_once() {
    let mut net = Net::new(3);
    let id = Some(MessageId { client: ClientId(7), sequence: 1 });
    for at in 0..3 {
        net.update(at, u64::from(at), id, Action::Modify(Append("x")));
    }
    net.run();
    net.tick();
    assert_eq!(net.agreed(), bytes("x"));
    for token in 0..3 {
        assert_eq!(net.answers[&token], Answer::Modified(Bytes::from("x")));
    }
}

/// Section 3.4: what is lost is said again after the message-loss timeout, or asked for.
#[test]
fn any_single_message_may_be_lost() {
    for lost in [(0, 1), (1, 0)] {
        for rounds in 0..2 {
            let mut net = Net::new(3);
            net.write(0, 1, "a");
            for _ in 0..rounds {
                net.carry(0, 1);
                net.carry(0, 2);
                net.carry(1, 0);
                net.carry(2, 0);
            }
            net.lose(lost.0, lost.1);
            net.run();
            net.tick();
            assert_eq!(net.agreed(), bytes("a"), "without {lost:?} in round {rounds}");
        }
    }
}

#[test]
fn what_a_dead_coordinator_has_begun_is_replayed_in_the_next_epoch() {
    let mut net = Net::new(3);
    net.append(0, 1, "a");
    net.carry(0, 1);
    net.crash(0);
    net.read(1, 2);
    net.run();
    net.tick();
    assert_eq!(net.state(1), State::Invalid, "nobody replays in an epoch with the coordinator");
    net.install(&[1, 2], &[], &[1, 2]);
    net.run();
    assert_eq!(net.agreed(), bytes("a"));
    assert_eq!(net.answers.get(&2).cloned(), value(bytes("a")));
    assert!(net.replicas[&1].is_settled() && net.replicas[&2].is_settled());
}

#[test]
fn a_write_waits_for_all_who_are_live_until_they_are_removed() {
    let mut net = Net::new(3);
    net.crash(2);
    net.write(0, 1, "a");
    net.run();
    net.tick();
    assert_eq!(net.answers.get(&1), None);
    net.install(&[0, 1], &[], &[0, 1]);
    net.run();
    assert_eq!((net.answers.get(&1), net.agreed()), (Some(&Answer::Written), bytes("a")));
}

/// M9: who is removed does not know what becomes of what it has begun.
#[test]
fn who_is_removed_answers_unknown_and_holds_nothing() {
    let mut net = Net::new(3);
    net.append(0, 1, "a");
    net.carry(0, 1);
    net.install(&[1, 2], &[], &[0, 1, 2]);
    net.run();
    assert_eq!(net.answers.get(&1), Some(&Answer::Unknown));
    assert_eq!((net.held(0), net.held(1), net.held(2)), (None, bytes("a"), bytes("a")));
    net.read(0, 2);
    assert_eq!(net.answers[&2], Answer::Refused(Refusal::NotServing));
}

/// A message of another epoch counts for nothing, an ACK above all (M7).
#[test]
fn an_ack_of_an_earlier_epoch_does_not_count() {
    for bug in [Mutation::Correct, Mutation::CountsOldEpochs] {
        let mut net = Net::of(3, &Options::default(), bug);
        net.append(0, 1, "a");
        net.carry(0, 1);
        net.carry(0, 2);
        net.install(&[0, 1, 2], &[], &[0]);
        net.carry(1, 0);
        net.carry(2, 0);
        assert_eq!(net.answers.contains_key(&1), bug == Mutation::CountsOldEpochs);
        net.epoch -= 1;
        net.install(&[0, 1, 2], &[], &[1, 2]);
        net.run();
        assert_eq!(net.answers.get(&1), Some(&Answer::Modified(Bytes::from("a"))));
        assert_eq!(net.agreed(), bytes("a"));
    }
}

/// M4: the coordinator and that of a later update die before anyone else has heard of the later
/// one; then the RMW is replayed. So "aborted" would have been a lie.
#[test]
fn an_rmw_that_has_met_a_later_update_is_not_said_to_be_aborted() {
    for bug in [Mutation::Correct, Mutation::AbortsEarly] {
        let mut net = Net::of(3, &Options::default(), bug);
        net.append(0, 1, "a");
        net.carry(0, 1);
        net.write(2, 2, "w");
        net.carry(2, 0);
        let aborted = net.answers.get(&1) == Some(&Answer::Aborted);
        net.crash(0);
        net.crash(2);
        net.install(&[1], &[], &[1]);
        net.run();
        assert_eq!((net.agreed(), aborted), (bytes("a"), bug == Mutation::AbortsEarly));
    }
}

/// M5: the coordinator of an RMW does not acknowledge it to another, who could commit it.
#[test]
fn a_live_coordinator_acknowledges_no_replay_of_its_rmw() {
    for bug in [Mutation::Correct, Mutation::AcksOwnRmw] {
        let mut net = Net::of(3, &Options::default(), bug);
        net.append(0, 1, "a");
        let replayed = net.links.remove(&(0, 1)).unwrap();
        for message in replayed {
            net.step(0, Event::Message { from: NodeId(1), message });
        }
        let said = net.links.remove(&(0, 1)).unwrap();
        let is_ack = |message: &Message| matches!(message.body, Body::Ack { .. } | Body::Acks(_));
        let acks = said.iter().any(is_ack);
        assert_eq!(acks, bug == Mutation::AcksOwnRmw, "{said:?}");
    }
}

#[test]
fn a_request_that_is_asked_again_happens_once() {
    let id = |sequence| Some(MessageId { client: ClientId(7), sequence });
    let mut net = Net::new(3);
    net.update(0, 1, id(1), Action::Modify(Append("a")));
    net.update(0, 2, id(1), Action::Modify(Append("a")));
    net.run();
    assert_eq!(net.answers.get(&1), Some(&Answer::Modified(Bytes::from("a"))));
    assert_eq!(net.answers[&2], Answer::Modified(Bytes::from("a")), "both questions are answered");
    // Another update follows; the coordinator dies; the client asks another replica.
    net.append(1, 3, "b");
    net.run();
    net.crash(0);
    net.install(&[1, 2], &[], &[1, 2]);
    net.run();
    net.update(2, 4, id(1), Action::Modify(Append("a")));
    net.run();
    assert_eq!(net.answers[&4], Answer::Modified(Bytes::from("a")));
    assert_eq!(net.agreed(), bytes("ab"));
    net.update(1, 5, id(2), Action::Modify(Append("c")));
    net.run();
    net.update(2, 6, id(1), Action::Modify(Append("a")));
    assert_eq!(net.answers[&6], Answer::Refused(Refusal::Old));
    assert_eq!(net.agreed(), bytes("abc"));
}

/// Whoever asks while the same request is under way, or waits for the key, is answered with it, and
/// before what waits behind it.
#[test]
fn a_request_that_is_asked_twice_at_once_has_two_answers() {
    let id = Some(MessageId { client: ClientId(7), sequence: 1 });
    let appended = |text: &'static str| Answer::Modified(Bytes::from(text));
    let (append, write) = (Action::Modify(Append("a")), Action::Write(bytes("a")));
    for (action, waits, answer, held) in [
        (append.clone(), false, appended("a"), "ay"),
        (append, true, appended("xa"), "xay"),
        (write.clone(), false, Answer::Written, "ay"),
        (write, true, Answer::Written, "ay"),
    ] {
        let mut net = Net::new(3);
        if waits {
            net.append(1, 9, "x");
            net.carry(1, 0);
        }
        net.update(0, 1, id, action.clone());
        net.append(0, 8, "y");
        net.update(0, 2, id, action.clone());
        net.update(0, 3, id, action.clone());
        net.run();
        let answers = [1, 2, 3].map(|token| net.answers.get(&token));
        assert_eq!(answers, [Some(&answer); 3], "{action:?}");
        assert_eq!(net.agreed(), bytes(held), "{action:?}");
    }
}

/// An RMW that is defeated is tried again, and answers all who have asked for it; who is removed
/// knows of none of them.
#[test]
fn a_request_that_is_asked_twice_is_made_once_if_it_is_defeated() {
    let id = Some(MessageId { client: ClientId(7), sequence: 1 });
    for removed in [false, true] {
        let mut net = Net::new(3);
        net.update(0, 1, id, Action::Modify(Append("a")));
        net.update(0, 2, id, Action::Modify(Append("a")));
        net.write(2, 3, "w");
        net.carry(2, 0);
        net.update(0, 4, id, Action::Modify(Append("a")));
        if removed {
            net.install(&[1, 2], &[], &[0, 1, 2]);
        }
        net.run();
        let answer = if removed { Answer::Unknown } else { Answer::Modified(Bytes::from("wa")) };
        assert_eq!([1, 2, 4].map(|token| net.answers.get(&token)), [Some(&answer); 3]);
        assert_eq!(net.replicas[&1].entries().count(), 1);
        assert_eq!(net.held(1), bytes(if removed { "w" } else { "wa" }));
    }
}

/// A request whose RMW was defeated is executed when it is asked again elsewhere: what replicas
/// remember of it does not count.
#[test]
fn a_defeated_rmw_is_not_taken_for_one_that_happened() {
    let id = Some(MessageId { client: ClientId(7), sequence: 1 });
    let mut net = Net::new(3);
    net.update(0, 1, id, Action::Modify(Append("a")));
    net.carry(0, 1);
    net.write(2, 2, "w");
    net.carry(2, 1);
    net.crash(0);
    net.install(&[1, 2], &[], &[1, 2]);
    net.run();
    assert_eq!(net.agreed(), bytes("w"));
    net.update(1, 3, id, Action::Modify(Append("a")));
    net.run();
    assert_eq!((net.agreed(), &net.answers[&3]), (bytes("wa"), &Answer::Modified("wa".into())));
}

#[test]
fn a_donor_waits_until_all_are_in_the_epoch_of_the_shadow_replica() {
    for bug in [Mutation::Correct, Mutation::DonatesEarly] {
        let mut net = Net::of(2, &Options::default(), bug);
        net.start(5);
        net.install(&[0, 1], &[(5, 2)], &[0, 5]);
        net.run();
        net.tick();
        assert_eq!(net.complete.is_empty(), bug == Mutation::Correct);
    }
}

#[test]
fn a_shadow_replica_serves_only_with_everything() {
    let mut net = Net::new(2);
    net.write(0, 1, "a");
    net.run();
    net.start(5);
    net.install(&[0, 1], &[(5, 2)], &[0, 5]);
    net.run();
    net.tick();
    assert!(net.complete.is_empty(), "node 1 is not in the epoch");
    net.read(5, 2);
    assert_eq!(net.answers[&2], Answer::Refused(Refusal::NotServing));
    net.epoch -= 1;
    net.install(&[0, 1], &[(5, 2)], &[1]);
    net.write(1, 3, "b");
    net.run();
    net.tick();
    assert_eq!(net.complete, [5]);
    net.install(&[0, 1, 5], &[], &[0, 1, 5]);
    net.run();
    assert_eq!(net.agreed(), bytes("b"));
    net.append(5, 4, "!");
    net.run();
    assert_eq!(net.agreed(), bytes("b!"));
}

/// J1: the donor doubts an RMW when it tells of it, and the shadow replica holds what follows. It
/// asks again, and so it knows the request when that is asked again.
#[test]
fn what_the_donor_doubts_a_shadow_replica_asks_again() {
    for bug in [Mutation::Correct, Mutation::LeavesUndecided] {
        let id = Some(MessageId { client: ClientId(7), sequence: 1 });
        let mut net = Net::of(2, &Options::default(), bug);
        net.update(1, 1, id, Action::Modify(Append("a")));
        net.carry(1, 0);
        net.carry(0, 1);
        net.lose(1, 0); // The VAL.
        net.start(5);
        net.install(&[0, 1], &[(5, 2)], &[0, 1, 5]);
        net.carry(1, 0); // The donor knows that all are in the epoch.
        net.lose(0, 1); // It asks in vain what became of the RMW.
        net.append(1, 2, "b");
        net.carry(1, 5);
        net.now = net.now + Duration::from_secs(1);
        net.step(5, Event::Timer(meridian_hermes::Timer::Tick));
        for _ in 0..4 {
            net.carry(5, 0);
            net.carry(0, 5);
        }
        assert_eq!(net.complete.is_empty(), bug == Mutation::Correct);
        net.run();
        net.tick();
        assert!(net.complete.contains(&5), "the donor has decided");
        net.install(&[0, 1, 5], &[], &[0, 1, 5]);
        net.run();
        net.crash(1);
        net.install(&[0, 5], &[], &[0, 5]);
        net.run();
        net.update(5, 3, id, Action::Modify(Append("a")));
        net.run();
        let twice = bug == Mutation::LeavesUndecided;
        assert_eq!(net.agreed(), bytes(if twice { "aba" } else { "ab" }));
        let answer = if twice { "aba" } else { "a" };
        assert_eq!(net.answers[&3], Answer::Modified(Bytes::from(answer)));
    }
}

#[test]
#[should_panic(expected = "has not all")]
fn who_has_not_everything_does_not_become_live() {
    let mut net = Net::new(2);
    net.start(5);
    net.install(&[0, 1, 5], &[], &[5]);
}

/// O3: n (n - 1) messages, no VAL; and a follower reads when it has heard all ACKs.
#[test]
fn with_acks_to_all_nobody_waits_for_a_val() {
    let options = Options { acks: Acks::All, ..Options::default() };
    let mut net = Net::of(3, &options, Mutation::Correct);
    net.write(0, 1, "a");
    net.carry(0, 1);
    net.carry(1, 2); // Overtakes the INV.
    net.carry(0, 2);
    assert_eq!(net.state(2), State::Valid);
    net.run();
    assert_eq!((net.agreed(), net.sent), (bytes("a"), 6));
    net.append(1, 2, "b");
    net.run();
    assert_eq!((net.agreed(), net.sent), (bytes("ab"), 12));
}

/// Section 8: without a lease, all are asked whether they are in the epoch.
#[test]
fn without_clocks_a_read_waits_for_a_membership_check() {
    let options = Options { reads: Reads::Check, ..Options::default() };
    let mut net = Net::of(3, &options, Mutation::Correct);
    net.write(0, 1, "a");
    net.run();
    net.read(1, 2);
    net.read(1, 3);
    assert_eq!(net.answers.get(&2), None);
    assert_eq!(net.replicas[&1].read(Time(0), &key()), None);
    net.run();
    let until = Time(u64::MAX);
    let checked = Answer::Value { value: bytes("a"), until };
    assert_eq!((&net.answers[&2], &net.answers[&3]), (&checked, &checked));
    // Who is not in the epoch of the others reads nothing.
    net.install(&[0, 2], &[], &[0, 2]);
    net.write(0, 4, "b");
    net.read(1, 5);
    net.run();
    net.tick();
    assert_eq!((net.answers.get(&5), net.held(1)), (None, bytes("a")));
}

/// O2: with virtual ids the last of two writes at once is not always the same node's.
#[test]
fn virtual_ids_share_the_last_word() {
    let options = Options { virtual_ids: 16, ..Options::default() };
    let mut net = Net::of(2, &options, Mutation::Correct);
    let mut last = BTreeSet::new();
    for round in 0..20 {
        net.write(0, 2 * round, "zero");
        net.write(1, 2 * round + 1, "one");
        net.run();
        last.insert(net.agreed());
    }
    assert_eq!(last.len(), 2);
}

#[test]
fn what_waits_is_bounded() {
    let options = Options { parked_max: 2, ..Options::default() };
    let mut net = Net::of(2, &options, Mutation::Correct);
    net.write(0, 1, "a");
    (2..5).for_each(|token| net.read(0, token));
    assert_eq!(net.answers[&4], Answer::Refused(Refusal::Full));
    net.run();
    assert_eq!(net.answers.len(), 4);
}

#[test]
fn what_is_asked_while_long_values_are_under_way_waits_in_its_order() {
    let options = Options { under_way_bytes: 4, ..Options::default() };
    let mut net = Net::of(2, &options, Mutation::Correct);
    let write = |net: &mut Net, token, key: &'static str| {
        let (key, action) = (Bytes::from(key), Action::Write(bytes("long")));
        net.command(0, Command::Update(Request { token, key, id: None, action }));
    };
    (1..4).zip(["a", "b", "c"]).for_each(|(token, key)| write(&mut net, token, key));
    net.command(0, Command::Read { token: 4, key: Bytes::from("b") });
    assert_eq!((net.sent, net.replicas[&0].is_full()), (1, true), "one INV");
    net.carry(0, 1);
    net.carry(1, 0);
    let answered: Vec<_> = net.answers.keys().copied().collect();
    assert_eq!(answered, [1], "the next has begun, no more");
    net.run();
    assert_eq!(net.answers.len(), 4);
    assert_eq!(net.answers.get(&4).cloned(), value(bytes("long")), "asked after it was written");
    assert!(!net.replicas[&0].is_full());
}
