//! Clients that keep what they see: no look at that is older than what was acknowledged.

use meridian_core::level::Level;
use meridian_sim::of::looks::trial::Trial;
use meridian_sim::of::{each_planted_is_found, equal_seeds_give_equal_runs, trials_show};
use meridian_sim::{Subject, one_seed};

#[test]
fn no_look_is_older_than_what_was_acknowledged() {
    let all = [
        "kept",
        "kept with attributes",
        "swept",
        "came along",
        "came along from below",
        "kept late",
        "listings kept",
        "pages kept",
        "updates",
        "reads",
        "recalled",
        "still",
        "gone",
        "taken",
        "kept back",
        "landed",
        "called to land",
    ];
    let counts = trials_show(0..120, &Trial::default(), (&all, 1));
    assert!(counts.of("kept") * 10 > counts.of("reads") || one_seed(), "hardly kept: {counts:?}");
}

/// The planted bugs that are about what clients keep back, or the others.
fn planted(kept_back: bool) -> Vec<(String, Trial)> {
    let is_one = |trial: &Trial| trial.level >= Some(Level::EXCLUSIVE);
    Trial::planted().into_iter().filter(|(_, trial)| is_one(trial) == kept_back).collect()
}

#[test]
fn each_rule_that_is_dropped_is_noticed() {
    each_planted_is_found(&planted(false), |_| 0..400);
}

#[test]
fn each_rule_of_what_is_kept_back_that_is_dropped_is_noticed() {
    each_planted_is_found(&planted(true), |_| 0..200);
}

#[test]
fn nothing_that_is_seen_contradicts_what_is_kept_back() {
    let all = [
        "kept",
        "kept back",
        "surveyed",
        "called to land",
        "landed",
        "updates",
        "recalled",
        "taken",
    ];
    let trial = Trial { level: Some(Level::EXCLUSIVE), ..Trial::default() };
    trials_show(0..40, &trial, (&all, 1));
}

/// What a client does in a partition lands in that order, whatever it keeps back.
#[test]
fn what_is_kept_back_in_order_lands_in_order() {
    let all = [
        "kept",
        "kept back",
        "removals kept back",
        "names made anew",
        "called to land",
        "batches",
        "landed",
        "updates",
        "recalled",
        "taken",
    ];
    let trial = Trial { level: Some(Level::BATCHES), ..Trial::default() };
    trials_show(0..40, &trial, (&all, 1));
}

/// Nobody sees a file without what its maker has written to it since, and what is removed before it
/// was sent was never there.
#[test]
fn what_is_written_to_files_of_a_clients_own_is_kept_back() {
    let all = [
        "writes kept back",
        "writes joined",
        "removals kept back",
        "names made anew",
        "never sent",
        "landed",
        "recalled",
    ];
    let trial = Trial { level: Some(Level::WRITTEN), ..Trial::default() };
    trials_show(0..60, &trial, (&all, 1));
}

/// Nobody is shown a name that it has removed, by whatever other name it looks.
#[test]
fn files_with_several_names_lose_one_for_who_removed_it() {
    let (level, links) = (Some(Level::WRITTEN), Some(true));
    let all = ["linked", "removals kept back", "landed", "kept", "recalled"];
    trials_show(0..40, &Trial { level, links, ..Trial::default() }, (&all, 1));
}

#[test]
fn equal_seeds_are_equal_runs() {
    equal_seeds_give_equal_runs(&Trial::default(), 3);
}
