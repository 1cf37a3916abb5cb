//! What a replica with a disk has after a start: decision 33.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod net;

use bytes::Bytes;
use meridian_core::{ClientId, MessageId, Process};
use meridian_hermes::{Acks, Action, Answer, Durability, Mutation, Options, Record, State};
use net::{Append, Net, bytes, key, value};

fn on_disk() -> Options {
    Options { durability: Durability::Disk, ..Options::default() }
}

fn three(mutation: Mutation) -> Net {
    Net::of(3, &on_disk(), mutation)
}

/// All lose power, and start again in a new epoch, in which all are live.
fn lose_power(net: &mut Net) {
    (0..3).for_each(|at| net.crash(at));
    (0..3).for_each(|at| net.start(at));
    assert!(net.replicas.values().all(|replica| replica.holds()));
    net.install(&[0, 1, 2], &[], &[0, 1, 2]);
    net.run();
}

#[test]
fn what_was_acknowledged_is_there_after_all_have_lost_power() {
    for acks in [Acks::Coordinator, Acks::All] {
        let mut net = Net::of(3, &Options { acks, ..on_disk() }, Mutation::Correct);
        net.write(0, 1, "a");
        net.run();
        net.append(1, 2, "b");
        net.run();
        assert_eq!(net.answers.len(), 2);
        lose_power(&mut net);
        assert_eq!(net.agreed(), bytes("ab"));
        net.append(2, 3, "c");
        net.run();
        assert_eq!(net.agreed(), bytes("abc"));
    }
}

#[test]
fn what_was_not_committed_is_not_read_before_it_is() {
    let mut net = three(Mutation::Correct);
    net.write(0, 1, "a");
    net.carry(0, 1);
    (0..3).for_each(|at| net.crash(at));
    (0..3).for_each(|at| net.start(at));
    net.install(&[0, 1, 2], &[], &[0, 1, 2]);
    assert_eq!((net.state(0), net.state(1)), (State::Replay, State::Invalid));
    net.run();
    assert_eq!(net.agreed(), bytes("a"));
}

/// It was removed while it was down: what only it had, a client may have asked of another again.
fn keeps_what_it_had_alone(mutation: Mutation) -> Option<Bytes> {
    let mut net = three(mutation);
    net.write(2, 1, "late");
    net.crash(2);
    net.install(&[0, 1], &[], &[0, 1]);
    net.run();
    net.start(2);
    net.install(&[0, 1], &[(2, 3)], &[0, 1, 2]);
    net.run();
    net.tick();
    assert_eq!(net.complete, [2]);
    net.held(2)
}

#[test]
fn a_shadow_replica_forgets_what_its_disk_had() {
    assert_eq!(keeps_what_it_had_alone(Mutation::Correct), None);
    assert_eq!(keeps_what_it_had_alone(Mutation::KeepsLostKeys), bytes("late"));
}

#[test]
fn what_a_shadow_replica_has_forgotten_stays_so_if_it_starts_again() {
    let mut net = three(Mutation::Correct);
    net.write(2, 1, "late");
    net.crash(2);
    net.install(&[0, 1], &[], &[0, 1]);
    net.start(2);
    net.install(&[0, 1], &[(2, 3)], &[2]);
    net.crash(2);
    net.start(2);
    assert_eq!((net.held(2), net.replicas[&2].entries().count()), (None, 0));
}

#[test]
fn who_is_alone_reads_only_what_is_durable() {
    let mut net = Net::of(1, &on_disk(), Mutation::Correct);
    net.write(0, 1, "a");
    net.read(0, 2);
    assert_eq!((net.state(0), net.answers.len()), (State::Write, 0), "its own ACK is under way");
    net.run();
    assert_eq!(net.answers.get(&1), Some(&Answer::Written));
    assert_eq!(net.answers.get(&2).cloned(), value(bytes("a")));
}

#[test]
fn a_request_that_is_asked_again_after_a_loss_of_power_happens_once() {
    let mut net = three(Mutation::Correct);
    let id = Some(MessageId { client: ClientId(7), sequence: 1 });
    net.update(0, 1, id, Action::Modify(Append("a")));
    net.run();
    lose_power(&mut net);
    net.update(0, 2, id, Action::Modify(Append("a")));
    net.run();
    assert_eq!(net.answers.get(&2), Some(&Answer::Modified(Bytes::from("a"))));
    assert_eq!(net.agreed(), bytes("a"));
}

/// With the log of its start, or a checkpoint that was taken meanwhile.
fn goes_on_to_replay(from_checkpoint: bool) {
    let mut net = three(Mutation::Correct);
    net.write(0, 1, "a");
    net.carry(0, 1);
    net.crash(0);
    // Replica 1 begins to replay it, and starts again; replica 0 is live again without it.
    net.install(&[1, 2], &[], &[1]);
    if from_checkpoint {
        let records = net.replicas[&1].checkpoint().collect();
        net.disks.insert(1, records);
    }
    net.crash(1);
    net.start(1);
    net.disks.remove(&0);
    net.start(0);
    net.install(&[0, 1, 2], &[], &[1, 2]);
    assert_eq!(net.state(1), State::Replay);
}

#[test]
fn a_replay_goes_on_after_a_start() {
    goes_on_to_replay(false);
    goes_on_to_replay(true);
}

#[test]
fn a_checkpoint_says_the_same_as_the_log() {
    let mut net = three(Mutation::Correct);
    let id = Some(MessageId { client: ClientId(7), sequence: 1 });
    net.update(0, 1, id, Action::Modify(Append("a")));
    net.run();
    net.write(1, 2, "b");
    let records: Vec<_> = net.replicas[&1].checkpoint().collect();
    assert_eq!(records.first(), Some(&Record::Begun));
    net.disks.insert(1, records);
    lose_power(&mut net);
    assert_eq!(net.agreed(), bytes("b"));
    net.update(1, 3, id, Action::Modify(Append("a")));
    assert_eq!(net.answers.get(&3), Some(&Answer::Modified(Bytes::from("a"))));
}

#[test]
fn a_log_that_does_not_go_on_counts_no_more() {
    let mut net = three(Mutation::Correct);
    net.write(0, 1, "a");
    net.run();
    let kept = net.disks[&0].clone();
    let mut memory = Net::of(0, &Options::default(), Mutation::Correct);
    memory.disks.insert(0, kept);
    memory.start(0);
    let mut net = Net::of(0, &on_disk(), Mutation::Correct);
    net.disks = memory.disks;
    net.start(0);
    assert!(!net.replicas[&0].holds(), "it has gaps");
    assert_eq!(net.replicas[&0].state(&key()).0, State::Valid);
    assert!(net.replicas[&0].is_empty());
}
