//! Algorithm 3: changing the primary.

use super::*;

fn progress(e_cur: Epoch, len: u64) -> Progress {
    let mut runs = Runs::default();
    (0..len).for_each(|_| runs.push(e_cur));
    Progress { e_cur, len, base: 0, runs }
}

fn promise(epoch: Epoch, clock: u64, progress: Progress) -> Message {
    Message::from(Promise { epoch, clock: Timestamp(clock), progress })
}

fn accept(epoch: Epoch, clock: u64) -> Message {
    Message::from(Accept { epoch, clock: Timestamp(clock) })
}

/// It misses the leader of `missed`, as the processes `with` of its group do; so it stands.
fn stand(one: &mut One, missed: Epoch, with: &[u16]) -> Vec<Did> {
    one.tick(ELECTION_TIMEOUT * 3);
    assert_ne!(one.process.role(), Role::Candidate);
    let suspected = Message::from(Suspected { epoch: missed });
    let hears = |n: &u16| one.hears(process(0, *n), suspected.clone());
    let did = with.iter().flat_map(hears).collect();
    assert_eq!(one.process.role(), Role::Candidate);
    did
}

/// Lines 57-60 and 61-64: what is promised is durable before anybody hears of it.
#[test]
fn new_epoch_and_promise_follow_their_records() {
    let (b, c) = (process(0, 1), process(0, 2));
    let e2 = epoch(2, b);
    let did = stand(&mut Net::one(&[3], b), e1(0), &[2]);
    let record = Did::Persisted(Record::Promised(e2));
    assert_eq!(did[0], record);
    assert_eq!(
        did[1..],
        [0, 2].map(|n| Did::Sent(process(0, n), Message::from(NewEpoch { epoch: e2 })))
    );
    let did = Net::one(&[3], c).hears(b, Message::from(NewEpoch { epoch: e2 }));
    assert_eq!(did, [record, Did::Sent(b, promise(e2, 0, progress(e1(0), 0)))]);
}

/// A primary that promises before it was idle counts in its promise what it has just proposed: the
/// next primary takes that for durable. Found by the simulator with disks.
#[test]
fn a_promise_follows_the_records_of_all_that_it_counts() {
    let (a, b) = (process(0, 0), process(0, 1));
    let mut one = Net::one(&[3], a);
    let mut did = one.asked(start(1, &[0]));
    did.extend(one.hears(b, Message::from(NewEpoch { epoch: epoch(2, b) })));
    assert_eq!(one.process.log.len(), 1);
    let appended = |did: &Did| matches!(did, Did::Persisted(Record::Append { from: 0, .. }));
    let promised = |did: &Did| matches!(did, Did::Persisted(Record::Promised(_)));
    assert!(place(&did, appended) < place(&did, promised));
}

/// Line 61, with "greater or equal" read so that a NEW-EPOCH said again throws no follower back: it
/// is answered again if its sender lacks the answer, and changes nothing.
#[test]
fn new_epoch_said_again_changes_nothing() {
    let b = process(0, 1);
    let said = Message::from(NewEpoch { epoch: epoch(2, b) });
    let mut one = Net::one(&[3], process(0, 2));
    let first = one.hears(b, said.clone());
    let promised = one.process.clone();
    assert_eq!(one.hears(b, said), first[1..]);
    assert_eq!(one.process, promised);
    let mut follower = Net::one(&[3], process(0, 2));
    let before = follower.process.clone();
    assert!(follower.hears(process(0, 0), Message::from(NewEpoch { epoch: e1(0) })).is_empty());
    assert_eq!(follower.process, before);
}

/// Lines 42 and 53: who has promised takes no proposals of the old primary, and delivers nothing
/// before it is a follower again, though it learns what makes a message deliverable; then it does.
#[test]
fn a_promised_process_neither_acknowledges_nor_delivers() {
    let [a, b, c, d] = [0, 1, 2, 3].map(|n| process(0, n));
    let e2 = epoch(2, b);
    let mut one = Net::one(&[5, 1], c);
    one.hears(a, append(e1(0), 0, vec![entry(e1(0), 1, start(1, &[0, 1]))], 9));
    one.hears(a, ack(e1(0), 1, 9));
    one.hears(b, ack(e1(0), 1, 4));
    one.hears_remote(process(1, 0), 1, e1(1), 5);
    assert_eq!(delivered(&one.idle()), NONE, "no quorum of clocks");
    one.hears(b, Message::from(NewEpoch { epoch: e2 }));
    one.hears(d, Message::from(Bump { epoch: e1(0), clock: Timestamp(5) }));
    assert_eq!(delivered(&one.idle()), NONE, "though it is deliverable");
    let did = one.hears(a, append(e1(0), 1, vec![entry(e1(0), 10, start(2, &[0]))], 10));
    let [Did::Sent(to, Message::Normal(NormalMessage::Bump(bump)))] = &did[..] else {
        panic!("{did:?}")
    };
    assert_eq!((*to, bump.epoch), (a, e2));
    assert_eq!(one.process.log.len(), 1);
    one.hears(b, new_state(e2, 9, 1, vec![]));
    assert_eq!(delivered(&one.idle()), NONE);
    one.hears(b, ack(e2, 1, 9));
    one.hears(d, ack(e2, 1, 9));
    assert_eq!(delivered(&one.idle()), [1]);
}

/// Line 50: BUMP shows what its sender has promised to, so that it raises no quorum-clock of epochs
/// before.
#[test]
fn a_bump_carries_the_promised_epoch() {
    let mut one = Net::one(&[3, 1], process(0, 2));
    let e2 = epoch(2, process(0, 1));
    one.hears(process(0, 1), Message::from(NewEpoch { epoch: e2 }));
    one.hears_remote(process(1, 0), 1, e1(1), 40);
    let bump = Message::from(Bump { epoch: e2, clock: Timestamp(40) });
    let did = one.idle();
    assert_eq!(sent(&did), [0, 1].map(|n| (process(0, n), &bump)));
    let mut other = Net::one(&[3, 1], process(0, 0));
    other.process.clock.members.note(process(0, 2).node, e2, Timestamp(40), e1(0));
    assert_eq!(other.process.clock.members.min_clock(process(0, 2).node), Timestamp(0));
}

/// Lines 65-68: the new primary's clock is the maximum over all promises, not over those only whose
/// `T` it takes: so it is past all that a quorum-clock let anybody deliver.
#[test]
fn the_new_primarys_clock_is_the_maximum_over_the_promises() {
    let [b, c, d] = [1, 2, 3].map(|n| process(0, n));
    let e2 = epoch(2, b);
    let mut one = Net::one(&[5], b);
    stand(&mut one, e1(0), &[2, 3]);
    one.hears(c, promise(e2, 7, progress(e1(0), 0)));
    assert_eq!(one.process.epoch(), e1(0), "no quorum yet");
    let did = one.hears(d, promise(e2, 42, progress(epoch(0, process(0, 0)), 0)));
    assert_eq!((one.process.epoch(), one.process.clock()), (e2, Timestamp(42)));
    let state = new_state(e2, 42, 0, vec![]);
    let states = [c, d].map(|to| Did::Sent(to, state.clone()));
    assert!(states.iter().all(|state| did.contains(state)), "{did:?}");
}

/// Lines 66-67: the longest `T` of the highest epoch, however long those of earlier ones are.
#[test]
fn the_longest_t_of_the_highest_epoch_is_taken() {
    let [b, c, d] = [1, 2, 3].map(|n| process(0, n));
    let (e2, e3) = (epoch(2, d), epoch(3, b));
    let mut one = Net::one(&[5], b);
    one.hears(d, Message::from(NewEpoch { epoch: e2 }));
    stand(&mut one, e2, &[2, 4]);
    one.hears(c, promise(e3, 5, progress(e1(0), 5)));
    let did = one.hears(d, promise(e3, 1, progress(e2, 1)));
    assert_eq!(did, [Did::Sent(d, Message::from(Fetch { epoch: e3, from: 0 }))]);
    let entries = vec![entry(e2, 1, start(1, &[0]))];
    let part = Part { start: 0, from: 0, entries: entries.clone(), end: 1 };
    let did = one.hears(d, Message::from(Fetched { epoch: e3, part }));
    let mut runs = Runs::default();
    runs.push(e2);
    assert_eq!(one.process.log.runs(), &runs);
    assert!(did.contains(&Did::Sent(c, new_state(e3, 5, 0, entries))), "{did:?}");
}

/// Lines 70-74: `T` and the epoch are durable before ACCEPT, and ACCEPT shows the clock, which no
/// later BUMP might show.
#[test]
fn accept_follows_the_record_of_what_is_accepted() {
    let (b, c) = (process(0, 1), process(0, 2));
    let e2 = epoch(2, b);
    let mut one = Net::one(&[3], c);
    one.hears(b, Message::from(NewEpoch { epoch: e2 }));
    let entries = vec![entry(e1(0), 1, start(1, &[0]))];
    let did = one.hears(b, new_state(e2, 7, 0, entries.clone()));
    assert!(matches!(did[0], Did::Persisted(Record::Ceiling(at)) if at >= Timestamp(7)));
    assert_eq!(did[1], Did::Persisted(Record::NewState { epoch: e2, from: 0, entries }));
    assert_eq!(did[2..], [0, 1].map(|n| Did::Sent(process(0, n), accept(e2, 7))));
}

/// Lines 75-81: before a quorum has accepted, `T` may be gone with the next epoch: nobody, in the
/// group or outside, is shown an ACK. After it all follow, with the epochs in which the entries
/// were proposed.
#[test]
fn no_ack_before_the_accept_quorum() {
    let (b, c) = (process(0, 1), process(0, 2));
    let e2 = epoch(2, b);
    let mut one = Net::one(&[5, 1], c);
    one.hears(b, Message::from(NewEpoch { epoch: e2 }));
    one.hears(b, new_state(e2, 7, 0, vec![entry(e1(0), 1, start(1, &[0, 1]))]));
    let acks = |did: &[Did]| {
        let is_ack = |m: &Message| {
            matches!(
                m,
                Message::Normal(NormalMessage::Ack(_))
                    | Message::Remote(RemoteMessage::RemoteAck(_))
            )
        };
        sent(did).iter().filter(|(_, message)| is_ack(message)).count()
    };
    assert_eq!(acks(&one.idle()), 0);
    one.hears(b, accept(e2, 7));
    assert_eq!(acks(&one.idle()), 0, "two of five");
    one.hears(process(0, 3), accept(e2, 7));
    assert_eq!(one.process.role(), Role::Follower);
    let did = one.idle();
    assert!(did.contains(&Did::Sent(b, ack(e2, 1, 7))), "{did:?}");
    assert!(
        did.contains(&Did::Sent(
            process(1, 0),
            Message::from(RemoteAck { epoch: e2, len: 1, clock: Timestamp(7) })
        )),
        "{did:?}"
    );
}

/// Line 42 with five processes: the new primary's first proposals may come before the ACCEPTs of a
/// quorum. They are appended: dropped, they would leave a hole in `T`.
#[test]
fn proposals_that_come_before_the_accept_quorum_are_kept() {
    let (b, c) = (process(0, 1), process(0, 2));
    let e2 = epoch(2, b);
    let mut one = Net::one(&[5], c);
    one.hears(b, Message::from(NewEpoch { epoch: e2 }));
    one.hears(b, new_state(e2, 0, 0, vec![]));
    one.hears(b, append(e2, 0, vec![entry(e2, 1, start(1, &[0]))], 1));
    assert_eq!(one.process.log.len(), 1);
    let did = one.idle();
    assert!(did.contains(&Did::Sent(b, ack(e2, 1, 1))), "{did:?}");
}

/// Line 71 with lines 24-25: what NEW-STATE drops from `T` can be proposed again. Nothing is lost
/// and nothing comes twice.
#[test]
fn a_deposed_primarys_undecided_entries_are_proposed_again() {
    let mut net = Net::settled(&[3]);
    let [a, b, c] = [0, 1, 2].map(|n| process(0, n));
    net.away.insert(a);
    net.multicast(start(1, &[0]), &[a]);
    assert_eq!(net.of(a).log.slot(id(1)).unwrap().entry.epoch, e1(0));
    net.run_for(Duration::from_secs(4));
    assert_eq!(net.of(b).role(), Role::Primary);
    net.multicast(start(2, &[0]), &[b]);
    assert_eq!((net.delivered(1), net.delivered(2)), (vec![], vec![b, c]));
    net.back(a);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.delivered(2), [a, b, c]);
    assert_eq!(net.delivered(1), [a, b, c]);
    let proposed = net.of(a).epoch();
    assert!(proposed > e1(0));
}

/// Line 57 needs an oracle that does not depose who is well: a process that alone is cut off asks
/// in vain, and changes nothing when it comes back.
#[test]
fn a_process_that_alone_is_cut_off_deposes_nobody() {
    let mut net = Net::settled(&[3]);
    let (a, c) = (process(0, 0), process(0, 2));
    net.away.insert(c);
    net.run_for(Duration::from_secs(30));
    assert_eq!((net.of(c).role(), net.of(c).epochs.prom), (Role::Follower, e1(0)));
    net.back(c);
    net.run_for(Duration::from_secs(5));
    assert!(net.all.values().all(|one| one.process.epochs.prom == e1(0)));
    assert_eq!(net.of(a).role(), Role::Primary);
}

/// A primary's proposals are sent before they are durable. So after a restart it does not go on in
/// an epoch of its own, in which others may hold more than it does: it opens a new one.
#[test]
fn a_primary_that_restarts_opens_a_new_epoch() {
    let before = Net::one(&[3], process(0, 0));
    let process_0 = PrimCast::new(process(0, 0), groups_of(&before.process));
    let mut one = One { process: process_0, now: Time(0) };
    one.process.recover(Record::State(Box::new(before.process.state())));
    let mut did = one.step(Event::Started);
    assert_eq!(one.process.role(), Role::Promised);
    one.asked(start(1, &[0]));
    did.extend(one.idle());
    assert!(
        sent(&did)
            .iter()
            .all(|(_, message)| !matches!(message, Message::Normal(NormalMessage::Append(_))))
    );
    assert_eq!(one.process.log.len(), 0);
    one.hears(process(0, 1), Message::from(Suspected { epoch: e1(0) }));
    assert_eq!(one.process.epochs.prom, epoch(2, process(0, 0)));
}
