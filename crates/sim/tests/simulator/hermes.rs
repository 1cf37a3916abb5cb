//! Hermes with its reliable membership under faults: many seeds.

use meridian_sim::lossy::Loss;
use meridian_sim::of::hermes::Trial;
use meridian_sim::{Faults, Subject, of};

/// How many seeds a planted bug may take; most show themselves in the first ten.
const SEEDS_MAX: u64 = 3000;

/// What must have happened, or the trials show nothing.
const HAPPENED: [&str; 15] = [
    "reads",
    "writes",
    "rmws",
    "kept",
    "aborted",
    "unknown",
    "refused",
    "removed",
    "crashes",
    "recovered",
    "losses",
    "asked again",
    "asked another",
    "dozed",
    "let go",
];

#[test]
fn keys_are_linearizable_and_agree_in_the_end() {
    let counts = of::trials_show(0..500, &Trial::default(), (&HAPPENED, 11));
    println!("{counts:?}");
}

#[test]
fn each_planted_bug_is_found() {
    of::each_planted_is_found(&Trial::planted(), |_| 0..SEEDS_MAX);
}

#[test]
fn without_a_bug_the_same_trials_hold() {
    let correct = |(name, trial)| {
        (name, Trial { mutation: Default::default(), fault: Default::default(), ..trial })
    };
    of::trials_hold_without_a_bug(Trial::planted().into_iter().map(correct), 0..8);
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&Trial::default(), 3);
}

#[test]
fn an_update_is_explained_by_its_seed_and_its_name() {
    let (faults, loss) = (Some(Faults::none()), Some(Loss::default()));
    let (nodes, dozes) = (Some(3), Some(false));
    let trial = Trial { faults, loss, nodes, dozes, ..Trial::default() };
    let others = trial.explain(3, "k1@0.0").unwrap_err();
    assert!(others.contains("no message of seed 3 is called k1@0.0"), "{others}");
    let names = others.split("there are ").nth(1).unwrap();
    let name = names.split(", ").next().unwrap();
    let text = trial.explain(3, name).unwrap();
    assert_eq!(text, trial.explain(3, name).unwrap(), "the same twice");
    for words in [name, " sends INV: ", " sends ACK: ", "  holds it", "  is Valid"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("violated"), "{text}");
    assert!(trial.explain(3, "x").unwrap_err().contains("is no update"));
}
