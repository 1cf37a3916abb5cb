//! Hermes in all orders of arrival, over links without an order: small cases with the real code.

use meridian_hermes::Mutation;
use meridian_sim::each_is_caught;
use meridian_sim::explore::Found;
use meridian_sim::of::hermes::explored::{Case, LINEARIZABLE};

fn holds(case: &Case) {
    let Found { violated, reached, .. } = case.search();
    assert!(violated.is_none() && reached, "{violated:?}");
}

#[test]
fn two_writes_and_an_rmw_are_linearizable() {
    holds(&Case::two_writes_and_an_rmw());
}

#[test]
fn of_two_rmws_at_once_one_follows_the_other() {
    holds(&Case::two_rmws());
}

#[test]
fn any_message_may_come_twice() {
    holds(&Case { repeated: 1, ..Case::a_write_and_an_rmw() });
}

/// All orders of links that are FIFO but for one message: `crates/sim/examples/hermes.rs` has more.
#[test]
fn each_of_the_replicas_may_crash() {
    for at in 0..3 {
        let case = Case::two_writes_and_an_rmw();
        holds(&Case { crash: Some(at), overtakes: Some(0), ..case });
        let case = Case::a_write_and_an_rmw();
        holds(&Case { crash: Some(at), overtakes: Some(1), repeated: 1, ..case });
    }
}

/// A bound keeps the order of what is under way; without one, what is equal is sorted together.
#[test]
fn a_bound_that_no_run_reaches_leaves_nothing_out() {
    for repeated in [0, 1] {
        let all = Case { repeated, ..Case::a_write_and_an_rmw() };
        let bounded = Case { overtakes: Some(u8::MAX), ..all.clone() };
        let (all, bounded) = (all.search(), bounded.search());
        assert_eq!((&all.ends, all.processes), (&bounded.ends, bounded.processes));
        assert!(all.ends.len() > 1, "{all}");
    }
    let few = Case { overtakes: Some(0), ..Case::a_write_and_an_rmw() }.search();
    assert!(few.states < Case::a_write_and_an_rmw().search().states, "{few}");
}

/// Decision 30: the rule of the paper loses a write that was read, without any failure.
#[test]
fn the_timestamps_of_the_paper_are_found_out() {
    let case = Case::two_writes_and_an_rmw().and_a_read(1).and_a_read(1);
    let found = Case { mutation: Mutation::PaperTimestamps, ..case }.search();
    let (property, way) = found.violated.expect("nobody noticed");
    println!("{property}: {way:?}");
    assert_eq!(property, LINEARIZABLE);
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [
        Mutation::MissesAnAck,
        Mutation::ReadsInvalid,
        Mutation::AcksLowerRmw,
        Mutation::NeverReplays,
    ];
    each_is_caught(&bugs, |mutation| {
        let case = match mutation {
            Mutation::AcksLowerRmw => Case::two_rmws(),
            Mutation::NeverReplays => Case { crash: Some(0), ..Case::a_write_and_an_rmw() },
            _ => Case::two_writes_and_an_rmw().and_a_read(2),
        };
        Case { mutation, ..case }.search().violated.map(|(property, _)| property)
    });
}
