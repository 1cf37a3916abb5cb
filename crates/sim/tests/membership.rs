//! Members of groups change while messages flow and everything goes wrong.

use meridian_multicast::Mutation;
use meridian_sim::changes::{Counts, members};
use meridian_sim::{each_seed, how_to_repeat};

fn holds(seed: u64) -> Counts {
    match members(seed, Mutation::Correct) {
        Ok(counts) => counts,
        Err(what) => panic!("{what}\nseed {seed}, repeat with: {}", how_to_repeat(seed)),
    }
}

/// Safety at each moment, and in the end all that was asked is delivered by all that are members then.
#[test]
fn members_are_replaced_added_and_removed_and_a_group_is_added() {
    let (mut joined, mut left, mut installs, mut runs) = (0, 0, 0, 0);
    each_seed(0..100, |seed| {
        let counts = holds(seed);
        runs += 1;
        joined += counts.joined;
        left += counts.left;
        installs += counts.installs;
    });
    println!("{runs} runs: {joined} joined, {left} left, {installs} snapshots");
    assert!(joined >= 4 * runs && left >= runs, "nothing changes");
}

#[test]
fn promises_of_the_new_quorum_alone_are_not_enough() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught =
        (0..60).find_map(|seed| Some((seed, members(seed, Mutation::NewQuorumOnly).err()?)));
    std::panic::set_hook(hook);
    let (seed, what) = caught.expect("nobody noticed");
    println!("seed {seed}: {}", what.lines().next().unwrap_or_default());
}
