//! Clients that multicast and are in no group, under faults; and planted bugs.

use meridian_sim::of::outside::Trial;
use meridian_sim::{Subject, of, one_seed};

#[test]
fn what_clients_are_told_of_their_messages_is_so() {
    let counts = of::trials_hold(0..60, &Trial::default());
    println!("{counts:?}");
    let happened = ["delivered", "unknown", "refused", "repeated", "crashes", "clients_crashed"];
    assert!(one_seed() || happened.iter().all(|what| counts.of(what) > 3), "{counts:?}");
}

#[test]
fn planted_bugs_are_found() {
    of::each_planted_is_found(&Trial::planted(), |_| 0..300);
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&Trial::default(), 3);
}
