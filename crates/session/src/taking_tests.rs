use super::*;
use crate::session::tests;
use std::sync::Arc;

fn topology() -> Arc<Topology> {
    tests::topology(&["us-1", "us-2", "eu-1", "eu-2"])
}

/// Has all replicas asked answer by `answer`; what is to be done then.
fn answered(taking: &mut Taking, answer: impl Fn(&Ask) -> Option<SnapshotStand>) -> Next {
    let Next::Ask(asks) = taking.turn() else { panic!("nobody is asked") };
    assert!(!asks.is_empty());
    asks.iter().for_each(|ask| taking.on_answer(ask, answer(ask).as_ref()));
    taking.turn()
}

/// All keep it, and the message has that timestamp.
fn marked(at: u64) -> Taking {
    let mut taking = Taking::new(&topology());
    let next = answered(&mut taking, |_| Some(SnapshotStand::Kept));
    assert_eq!(next, Next::Mark(topology().group_ids().collect()));
    taking.on_mark(Stamp(at));
    taking
}

fn whole(seen: &[(GroupId, u64)]) -> SnapshotStand {
    SnapshotStand::Whole(Vector(seen.iter().map(|(group, ts)| (*group, Stamp(*ts))).collect()))
}

#[test]
fn it_is_taken_when_all_are_whole() {
    let mut taking = marked(7);
    let next = answered(&mut taking, |ask| {
        assert_eq!(ask.step, SnapshotStep::Cut(Stamp(7)));
        Some(whole(&[(ask.group, 7)]))
    });
    let Next::Taken(taken) = next else { panic!("{next:?}") };
    assert_eq!(taken.at, Stamp(7));
    for group in topology().group_ids() {
        assert_eq!(taken.keepers[&group], topology().group(group).members);
    }
}

#[test]
fn a_state_that_has_seen_more_of_another_group_needs_a_later_timestamp() {
    let (one, two) = (GroupId::GLOBAL, topology().group_ids().last().unwrap());
    let seen = |ask: &Ask| if ask.group == one { vec![(two, 8)] } else { vec![] };
    let mut taking = marked(7);
    assert!(matches!(answered(&mut taking, |ask| Some(whole(&seen(ask)))), Next::Mark(_)));
    taking.on_mark(Stamp(8));
    let next = answered(&mut taking, |ask| Some(whole(&seen(ask))));
    assert!(matches!(next, Next::Taken(Taken { at: Stamp(8), .. })), "{next:?}");
    let hasty = marked(7).with_mutation(Mutation::IgnoresCauses);
    let next = answered(&mut { hasty }, |ask| Some(whole(&seen(ask))));
    assert!(matches!(next, Next::Taken(Taken { at: Stamp(7), .. })), "the bug does nothing");
}

#[test]
fn replicas_that_are_beyond_the_timestamp_take_a_later_one() {
    let mut taking = marked(7);
    assert!(matches!(answered(&mut taking, |_| Some(SnapshotStand::Passed)), Next::Mark(_)));
}

#[test]
fn it_fails_if_no_replica_of_a_group_keeps_it_or_one_waits_for_ever() {
    let lost = topology().group_ids().last().unwrap();
    let keeps = |ask: &Ask| (ask.group != lost).then_some(SnapshotStand::Kept);
    let next = answered(&mut Taking::new(&topology()), keeps);
    assert_eq!(next, Next::Failed(Failure::NoKeeper(lost)));

    let mut taking = marked(7);
    let stand = |ask: &Ask| match ask.group == lost {
        true => Some(SnapshotStand::Waiting),
        false => Some(whole(&[])),
    };
    for _ in 0..PAUSES_MAX {
        assert_eq!(answered(&mut taking, stand), Next::Pause);
    }
    assert_eq!(answered(&mut taking, stand), Next::Failed(Failure::Waits(lost)));
}

#[test]
fn who_does_not_answer_is_asked_again_only_a_few_times() {
    let mut taking = marked(7);
    let slow = NodeId(0);
    let stand = |ask: &Ask| (ask.node != slow).then(|| whole(&[]));
    for _ in 0..SILENCES {
        assert_eq!(answered(&mut taking, stand), Next::Pause);
    }
    let Next::Taken(taken) = answered(&mut taking, stand) else { panic!("it waits for ever") };
    assert!(taken.keepers.values().all(|nodes| !nodes.contains(&slow)));
}

#[test]
fn who_is_behind_is_waited_for_only_as_long_as_it_could_step_in() {
    let mut taking = marked(7);
    let slow = NodeId(0);
    let stand = |ask: &Ask| match ask.node == slow {
        true => Some(SnapshotStand::Waiting),
        false => Some(whole(&[])),
    };
    for _ in 0..SPARE_PAUSES {
        assert_eq!(answered(&mut taking, stand), Next::Pause);
    }
    assert!(matches!(answered(&mut taking, stand), Next::Taken(_)));
}
