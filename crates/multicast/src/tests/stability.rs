//! What is dropped from `T`, and what stays while a group cannot be reached.

use super::*;

/// A multi-group message is kept until all processes of all its destinations have delivered it: one
/// that comes back may need our timestamp of it.
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
    let stable = place(&did, |did| {
        matches!(did, Did::Sent(_, Message::Stability(StabilityMessage::Stable(_))))
    });
    assert!(mark < stable, "{did:?}");
}

/// Deliveries that the owner has not handled are not told: it may still need the others' votes.
#[test]
fn what_the_owner_has_not_handled_is_not_stable() {
    let mut net = Net::settled(&[1, 1]);
    net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 0)]);
    let one = net.all.get_mut(&process(0, 0)).unwrap();
    one.process.handled(Position(0));
    let tells = |did: &[Did]| {
        sent(did).iter().any(|(_, m)| matches!(m, Message::Stability(StabilityMessage::Stable(_))))
    };
    assert!(!tells(&one.tick(Duration::from_secs(2))));
    one.process.handled(Position(1));
    assert!(tells(&one.tick(Duration::from_secs(2))));
}
/// One that touches this key only.
fn touching(key: u64, sequence: u64, dest: &[u16]) -> Start {
    Start { touches: Touches::keys([key]), ..start(sequence, dest) }
}

/// What it says to others of its deliveries: to whom, up to which timestamp, and but for which.
fn stable(did: &[Did]) -> Vec<(ProcessId, u64, Vec<u64>)> {
    let told = sent(did).into_iter().filter_map(|(to, message)| match message {
        Message::Stability(StabilityMessage::Stable(Stable { delivered: (ts, _), except })) => {
            Some((to, ts.0, except.iter().map(|id| id.sequence).collect()))
        }
        _ => None,
    });
    told.collect()
}

const FEW: Limits = Limits { bytes: 24 << 20, entries: 4, exceptions: 2 };

/// Groups of three of which the second is cut off; message 1 of both waits in the first, which
/// orders 2 to 40 alone.
fn cut_off() -> Net {
    cut_off_without(&[])
}

/// The same, while these are away.
fn cut_off_without(away: &[ProcessId]) -> Net {
    let mut net = Net::settled(&[3, 3]);
    net.away.extend(away);
    for one in net.all.values_mut() {
        one.process = one.process.clone().with_limits(FEW);
    }
    net.away.extend([0, 1, 2].map(|n| process(1, n)));
    net.multicast(touching(1, 1, &[0, 1]), &[process(0, 0)]);
    for sequence in 2..=40 {
        net.multicast(touching(2, sequence, &[0]), &[process(0, 0)]);
    }
    net
}

impl Net {
    /// The second group can be reached again.
    fn mend(&mut self) {
        (0..3).for_each(|n| self.back(process(1, n)));
        self.run_for(Duration::from_secs(8));
    }

    fn keeps_only(&self, me: ProcessId, gap: u64) {
        let log = &self.of(me).log;
        let kept: Vec<_> = log.iter_from(0).map(|(_, slot)| slot.entry.start.id.sequence).collect();
        assert_eq!((kept, log.retained().entries), (vec![gap], 1), "at {me}");
    }
}

/// A message that waits for a group which is cut off is retained as a gap, and all else is dropped.
#[test]
fn what_waits_for_a_group_that_is_cut_off_does_not_keep_the_rest() {
    let mut net = cut_off();
    net.run_for(Duration::from_secs(3));
    (0..3).for_each(|n| net.keeps_only(process(0, n), 1));
    assert_eq!(net.of(process(0, 0)).log_entries(), (0, 1));
    net.mend();
    assert_eq!(net.delivered(1).len(), 6);
    assert!(net.all.keys().all(|me| net.of(*me).log.is_empty()));
    let settled = Output::Settled(vec![id(1)]);
    assert_eq!(net.told.iter().filter(|(_, output)| *output == settled).count(), 6);
}

/// As long as `T` is short nothing is retained as a gap: who lacks something needs no snapshot.
#[test]
fn a_short_log_stays_as_it_is() {
    let mut net = cut_off();
    for one in net.all.values_mut() {
        one.process = one.process.clone().with_limits(Limits::default());
    }
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.of(process(0, 1)).log_entries(), (40, 0));
    net.mend();
    assert!(net.all.keys().all(|me| net.of(*me).log.is_empty()));
}

/// Lines 67 and 80: a new primary has the retained gaps, and streams them to their groups.
#[test]
fn a_retained_gap_survives_a_change_of_the_primary() {
    let mut net = cut_off();
    net.run_for(Duration::from_secs(3));
    net.away.insert(process(0, 0));
    net.run_for(Duration::from_secs(5));
    assert_eq!(net.of(process(0, 1)).role(), Role::Primary);
    net.multicast(touching(3, 41, &[0]), &[process(0, 1)]);
    assert_eq!(net.delivered(41), [process(0, 1), process(0, 2)]);
    net.mend();
    assert_eq!(net.delivered(1).len(), 5);
    net.back(process(0, 0));
    net.run_for(Duration::from_secs(8));
    assert_eq!(net.delivered(1).len(), 6);
    assert!(net.all.keys().all(|me| net.of(*me).log.is_empty()));
}

/// Who was away lacks what is dropped, and gets a snapshot: with the retained gaps.
#[test]
fn a_snapshot_carries_retained_gaps() {
    let late = process(0, 2);
    let mut net = cut_off_without(&[late]);
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.of(process(0, 0)).log_entries(), (FEW.entries, 1));
    net.back(late);
    net.run_for(Duration::from_secs(3));
    assert!(net.told.iter().any(|(me, it)| *me == late && matches!(it, Output::Install { .. })));
    assert_eq!((net.of(late).log.find(id(1)), net.of(late).pending()), (Some(0), 1));
    net.mend();
    assert_eq!(net.delivered(1).len(), 6);
    assert!(net.all.keys().all(|me| net.of(*me).log.is_empty()));
}

/// A state that is restored has the retained gaps, and records after it find them.
#[test]
fn a_checkpoint_holds_the_retained_gaps() {
    let mut net = cut_off();
    net.run_for(Duration::from_secs(3));
    let me = process(0, 1);
    let before = net.of(me);
    let mut again = PrimCast::new(me, groups_of(before));
    again.recover(Record::State(Box::new(before.state())));
    again.check_invariants();
    assert_eq!(again.log_entries(), (0, 1));
    let told = again.recover(Record::Delivered { id: id(1), ts: Timestamp(99) });
    assert!(matches!(told, Some(Output::Deliver(_))), "{told:?}");
}

/// One of a group of one waits, later ones are delivered: they count, and it does when it is
/// delivered.
#[test]
fn exceptions_are_named_and_told_of_when_they_end() {
    let (me, other) = (process(0, 0), process(1, 0));
    let mut one = Net::one(&[1, 1], me);
    one.asked(touching(1, 1, &[0, 1]));
    one.asked(touching(2, 2, &[0, 1]));
    one.idle();
    let (first, second) = (Timestamp(1), Timestamp(2));
    one.hears(other, Message::from(Final { id: id(2), ts: second, delivered: true }));
    assert_eq!(delivered(&one.idle()), [2]);
    assert_eq!(stable(&one.tick(Duration::from_secs(2))), [(other, 2, vec![1])]);
    let has = |sequence, ts| {
        let told = Message::from(Stable { delivered: (second, id(2)), except: [id(1)].into() });
        let mut there = Net::one(&[1, 1], other);
        there.hears(me, told);
        there.process.stability.has(me, (Timestamp(ts), id(sequence)))
    };
    assert!(has(2, 2) && has(9, 1) && !has(1, 1) && !has(9, 3));
    assert!(stable(&one.tick(Duration::from_secs(2))).is_empty(), "nothing is new");
    one.hears(other, Message::from(Final { id: id(1), ts: first, delivered: true }));
    assert_eq!(delivered(&one.idle()), [1]);
    assert_eq!(stable(&one.tick(Duration::from_secs(2))), [(other, 2, vec![])]);
}

/// More exceptions than may be named hold back the rank.
#[test]
fn too_many_exceptions_hold_back_the_rank() {
    let (me, other) = (process(0, 0), process(1, 0));
    let mut one = Net::one(&[1, 1], me);
    one.process = one.process.with_limits(FEW);
    (1..=4).for_each(|n| drop(one.asked(touching(n, n, &[0, 1]))));
    one.idle();
    let finals = |n| Message::from(Final { id: id(n), ts: Timestamp(n), delivered: true });
    one.hears(other, finals(4));
    assert_eq!(delivered(&one.idle()), [4]);
    let rank = (Timestamp(3), id(2));
    let did = one.tick(Duration::from_secs(2));
    let told = Message::from(Stable { delivered: rank, except: [id(1), id(2)].into() });
    assert_eq!(did.last(), Some(&Did::Sent(other, told)), "just before the third of them");
    one.hears(other, finals(2));
    assert_eq!(delivered(&one.idle()), [2]);
    assert_eq!(stable(&one.tick(Duration::from_secs(2))), [(other, 4, vec![1, 3])]);
}

/// What the owner cannot apply yet it names, and it holds up nothing else; its groups hear when
/// that is over.
#[test]
fn what_the_owner_holds_is_not_stable() {
    let (me, other) = (process(0, 0), process(1, 0));
    let mut one = Net::one(&[1, 1], me);
    one.process = one.process.with_limits(Limits { entries: 0, ..FEW });
    one.process.handled(Position(0));
    for n in 1..=2 {
        one.asked(touching(n, n, &[0, 1]));
        one.idle();
        one.hears(other, Message::from(Final { id: id(n), ts: Timestamp(n), delivered: true }));
        assert_eq!(delivered(&one.idle()), [n]);
    }
    let rank: Rank = (Timestamp(1), id(1));
    one.process.hold(rank);
    one.process.handled(Position(2));
    assert_eq!(stable(&one.tick(Duration::from_secs(2))), [(other, 2, vec![1])]);
    let all = Message::from(Stable { delivered: (Timestamp(9), id(9)), except: [].into() });
    one.hears(other, all);
    one.tick(Duration::from_secs(2));
    assert!(one.process.log.find(id(1)).is_some() && one.process.log.find(id(2)).is_none());
    one.process.release(rank);
    assert_eq!(stable(&one.tick(Duration::from_secs(2))), [(other, 2, vec![])]);
    assert!(one.process.log.is_empty());
}

/// A process that is behind in `T` has delivered what waits at the one that would bring it up, as a
/// gap. Neither state contains the other; in a group of which no more are left both would
/// wait for ever.
#[test]
fn who_has_delivered_what_a_snapshot_lacks_forwards_its_final() {
    let [a, b, c] = [0, 1, 2].map(|n| process(0, n));
    let entries =
        [1, 2, 3].map(|n| entry(e1(0), n, touching(n % 2, n, &[0, 1][..(n % 2 + 1) as usize])));
    let of = |me, count: usize| {
        let mut one = Net::one(&[3, 1], me);
        one.hears(a, append(e1(0), 0, entries[..count].to_vec(), 9));
        one.hears(a, ack(e1(0), count as u64, 9));
        one
    };
    let (mut ahead, mut behind) = (of(b, 3), of(c, 1));
    assert_eq!(delivered(&ahead.idle()), [2]);
    behind.hears_remote(process(1, 0), 1, e1(1), 1);
    behind.hears(b, ack(e1(0), 1, 9));
    assert_eq!(delivered(&behind.idle()), [1]);
    let e2 = epoch(2, a);
    ahead.hears(a, Message::from(NewEpoch { epoch: e2 }));
    behind.hears(a, Message::from(NewEpoch { epoch: e2 }));
    assert_eq!(ahead.process.role(), Role::Promised);
    let snapshot = |from: &mut One, to: &mut One| {
        let (giver, taker) = (from.process.me(), to.process.me());
        to.hears(giver, Message::Recovery(RecoveryMessage::Behind));
        from.hears(taker, Message::from(SnapshotRequest { snapshot: 0, offset: 0 }));
        let (position, application) = (from.process.delivered(), Bytes::new());
        let command = Command::Snapshot { to: taker, position, application };
        let did = from.step(Event::Command(command));
        let [Did::Sent(_, part)] = &did[..] else { panic!("{did:?}") };
        to.hears(giver, part.clone())
    };
    let did = snapshot(&mut ahead, &mut behind);
    let forwarded = Message::from(RecoveryMessage::ForwardedFinals(vec![(id(1), Timestamp(1))]));
    assert_eq!(did, [Did::Sent(b, forwarded.clone())]);
    // Message 3 touches the same, and comes after it.
    let early = ahead
        .clone()
        .hears(c, Message::from(RecoveryMessage::ForwardedFinals(vec![(id(3), Timestamp(3))])));
    assert_eq!(delivered(&early), NONE, "message 1 is before it");
    assert_eq!(delivered(&ahead.hears(c, forwarded)), [1]);
    let did = behind.tick(Duration::from_secs(2));
    assert!(
        sent(&did)
            .iter()
            .any(|(_, message)| matches!(message, Message::Epoch(EpochMessage::Promise(_))))
    );
    let did = snapshot(&mut ahead, &mut behind);
    assert!(did.iter().any(|did| matches!(did, Did::Told(Output::Install { .. }))), "{did:?}");
    assert_eq!(behind.process.delivered(), Position(2));
}

/// What was fetched before a snapshot came ends before what that has decided.
#[test]
fn what_was_fetched_before_a_snapshot_is_not_installed_after_it() {
    let [a, b] = [0, 1].map(|n| process(0, n));
    let entries: Vec<_> = (1..=3).map(|n| entry(e1(0), n, start(n, &[0]))).collect();
    let mut ahead = Net::one(&[3], b);
    ahead.hears(a, append(e1(0), 0, entries.clone(), 9));
    ahead.hears(a, ack(e1(0), 3, 9));
    ahead.idle();
    let mut one = Net::one(&[3], process(0, 2));
    one.tick(Duration::from_secs(9));
    let suspected = one.hears(b, Message::from(Suspected { epoch: e1(0) }));
    let e2 = epoch(2, process(0, 2));
    assert!(
        sent(&suspected).contains(&(b, &Message::from(NewEpoch { epoch: e2 }))),
        "{suspected:?}"
    );
    let progress = ahead.process.progress();
    let did = one.hears(b, Message::from(Promise { epoch: e2, clock: Timestamp(9), progress }));
    assert_eq!(did.last(), Some(&Did::Sent(b, Message::from(Fetch { epoch: e2, from: 0 }))));
    one.process.epochs.fetching = Some((b.node, 2)); // A snapshot came, and the rest was asked for.
    let part = Part { start: 0, from: 0, entries, end: 3 };
    one.hears(b, Message::from(Fetched { epoch: e2, part }));
    assert_eq!(one.process.epoch(), e1(0), "it waits for the rest");
}
