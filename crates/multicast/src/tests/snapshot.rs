//! Snapshots between processes.

use super::*;
use crate::state::transfer::{Content, PARTS_IN_FLIGHT, SNAPSHOT_PART};

const FEW: Limits = Limits { bytes: 1 << 20, entries: 5, exceptions: 1024 };

fn request(snapshot: u64, offset: u64) -> Message {
    SnapshotRequest { snapshot, offset }.into()
}

fn parts(did: &[Did]) -> Vec<SnapshotPart> {
    let part = |(_, message): (_, &Message)| match message {
        Message::Recovery(RecoveryMessage::SnapshotPart(part)) => Some(part.clone()),
        _ => None,
    };
    sent(did).into_iter().filter_map(part).collect()
}

/// The primary of a group of three, asked by `late` for its state, which takes so many bytes.
fn asked(late: ProcessId, bytes: usize) -> (One, Vec<SnapshotPart>) {
    let mut giver = Net::one(&[3], process(0, 0));
    let did = giver.hears(late, request(0, 0));
    assert!(did.contains(&Did::Told(Output::SnapshotWanted { to: late })), "{did:?}");
    let application = Bytes::from(vec![7; bytes]);
    let position = giver.process.delivered();
    let command = Command::Snapshot { to: late, position, application };
    let did = giver.step(Event::Command(command));
    (giver, parts(&did))
}

/// One part for each round trip was 2.5 MB/s at 200 ms, less than a busy group adds.
#[test]
fn several_parts_of_a_snapshot_are_under_way() {
    let late = process(0, 2);
    let (mut giver, first) = asked(late, 20 << 20);
    assert_eq!(first.len(), PARTS_IN_FLIGHT);
    let mut taker = Net::one(&[3], late);
    taker.process.request_snapshot(Time(0), process(0, 0), &mut Outbox::new());
    let mut wire: VecDeque<_> = first.into();
    let (mut most, mut complete) = (0, false);
    while let Some(part) = wire.pop_front() {
        most = most.max(wire.len() + 1);
        for (_, message) in sent(&taker.hears(process(0, 0), part.into())) {
            let asked = matches!(message, Message::Recovery(RecoveryMessage::SnapshotRequest(_)));
            if asked {
                wire.extend(parts(&giver.hears(late, message.clone())));
            }
        }
        complete = taker.process.recovery.transfers.incoming.is_none();
    }
    assert!(complete && most == PARTS_IN_FLIGHT, "{most}");
}

#[test]
fn a_part_that_is_asked_for_twice_is_sent_once() {
    let late = process(0, 2);
    let (mut giver, first) = asked(late, 2 * PARTS_IN_FLIGHT * SNAPSHOT_PART);
    let snapshot = first[0].snapshot;
    let next = SNAPSHOT_PART as u64;
    assert_eq!(parts(&giver.hears(late, request(snapshot, next))).len(), 1);
    assert_eq!(parts(&giver.hears(late, request(snapshot, next))).len(), 0);
    assert_eq!(parts(&giver.hears(late, request(snapshot, 3 * next))).len(), 2);
    assert_eq!(parts(&giver.hears(late, request(snapshot + 1, next))).len(), 0);
}

/// Parts may be cut anywhere; the application's bytes are not copied but for one part.
#[test]
fn a_snapshot_is_cut_anywhere_and_put_together() {
    let one = Net::one(&[3], process(0, 0));
    let application = Bytes::from((0..100).collect::<Vec<u8>>());
    let content = Content::new(&one.process.state(), application.clone());
    let state = one.process.state().with_application(application);
    for step in [1, 7, 64, content.len()] {
        let starts = (0..content.len()).step_by(step);
        let parts = starts.map(|from| content.slice(from, content.len().min(from + step)));
        let whole: Vec<u8> = parts.flatten().collect();
        assert_eq!(Content::decode(whole.clone().into()).as_ref(), Some(&state));
        for len in 0..content.len() - 100 {
            assert_eq!(Content::decode(whole[..len].to_vec().into()), None, "cut to {len}");
        }
    }
    assert_eq!(Content::decode(vec![0xff; 64].into()), None);
}

/// What the primary drops while a member is brought up, that member would lack at the end, for
/// ever.
#[test]
fn what_a_transfer_needs_is_retained_within_a_limit() {
    let (giver, late) = (process(0, 0), process(0, 2));
    let mut net = Net::settled(&[3]);
    for one in net.all.values_mut() {
        one.process = one.process.clone().with_limits(FEW);
    }
    net.away.insert(late);
    (1..=20).for_each(|n| net.multicast(start(n, &[0]), &[giver]));
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.of(giver).log_entries().0, FEW.entries);
    net.step(giver, Event::Message { from: late, message: request(0, 0) });
    (21..=50).for_each(|n| net.multicast(start(n, &[0]), &[giver]));
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.of(giver).log_entries().0, 30, "all that the snapshot does not contain");
    (51..=90).for_each(|n| net.multicast(start(n, &[0]), &[giver]));
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.of(giver).log_entries().0, 40, "and no more than the limit");
    net.run_for(Duration::from_secs(8));
    assert_eq!(net.of(giver).log_entries().0, FEW.entries, "it was given up");
}

/// A member's application lacks what another group keeps no more: it is as far as the others, and
/// takes over the state of one of them all the same.
#[test]
fn a_state_of_the_same_position_is_installed_if_the_owner_needs_it() {
    let (primary, lacks) = (process(0, 0), process(0, 1));
    let mut net = Net::settled(&[3]);
    net.multicast(start(1, &[0]), &[primary]);
    net.step(lacks, Event::Command(Command::FetchState));
    net.run();
    let installs = |net: &Net| {
        let install = |output: &Output| matches!(output, Output::Install { .. });
        net.told.iter().filter(|(me, output)| *me == lacks && install(output)).count()
    };
    assert_eq!(installs(&net), 1);
    net.run_for(Duration::from_secs(3));
    net.multicast(start(2, &[0]), &[primary]);
    assert_eq!(net.delivered(2).len(), 3, "it goes on from there");
    assert_eq!(installs(&net), 1, "once");
}

/// The first that is asked may lack the same.
#[test]
fn each_member_is_asked_in_turn() {
    let mut one = Net::one(&[3], process(0, 1));
    let asks = |one: &mut One| {
        let did = one.step(Event::Command(Command::FetchState));
        sent(&did).iter().map(|(to, _)| *to).collect::<Vec<_>>()
    };
    assert_eq!(asks(&mut one), [process(0, 0)]);
    assert_eq!(asks(&mut one), [], "an answer is awaited");
    one.process.restart_transfer(Time(0), process(0, 0));
    one.process.recovery.transfers.incoming = None;
    assert_eq!(asks(&mut one), [process(0, 2)]);
}
