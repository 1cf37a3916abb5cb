//! Processes that keep nothing on disk crash, and come back knowing nothing.

use meridian_multicast::Mutation;
use meridian_sim::changes::memory;
use meridian_sim::{each_seed, how_to_repeat};

fn all_hold(seeds: std::ops::Range<u64>, sizes: &[u16]) {
    let (mut crashes, mut installs, mut runs) = (0, 0, 0);
    each_seed(seeds, |seed| match memory(seed, sizes, Mutation::Correct) {
        Ok(counts) => {
            runs += 1;
            crashes += counts.crashes;
            installs += counts.installs;
        }
        Err(what) => panic!("{what}\nseed {seed}, repeat with: {}", how_to_repeat(seed)),
    });
    println!("{runs} runs: {crashes} crashes, {installs} snapshots");
    assert!(crashes >= 3 * runs && installs >= runs, "nothing crashes");
}

#[test]
fn groups_of_three() {
    all_hold(0..60, &[3, 3]);
}

#[test]
fn a_group_of_five() {
    all_hold(100..140, &[5]);
}

#[test]
fn groups_of_different_sizes() {
    all_hold(200..230, &[3, 5]);
}

/// The first seed that shows a bug.
fn caught(mutation: Mutation) -> Option<(u64, String)> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = (0..60).find_map(|seed| Some((seed, memory(seed, &[3, 3], mutation).err()?)));
    std::panic::set_hook(hook);
    caught
}

#[test]
fn who_rejoins_at_once_is_caught() {
    let (seed, what) = caught(Mutation::RejoinsAtOnce).expect("nobody noticed");
    println!("seed {seed}: {}", what.lines().next().unwrap_or_default());
}
