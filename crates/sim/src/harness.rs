//! Running a test with many seeds, or with many planted bugs.

use std::fmt::Debug;
use std::ops::Range;

/// Runs `test` with each seed. The environment variable `SEED` names one to run instead, and `SEEDS`
/// a range of others, `1000..2000`, for long runs.
///
/// # Panics
/// If the variables are no numbers.
pub fn each_seed(seeds: Range<u64>, mut test: impl FnMut(u64)) {
    let number = |text: &str| text.parse::<u64>().expect("SEED and SEEDS are numbers");
    if let Ok(seed) = std::env::var("SEED") {
        return test(number(&seed));
    }
    let seeds = match std::env::var("SEEDS") {
        Ok(range) => {
            let (first, end) = range.split_once("..").expect("SEEDS is a range: 0..100");
            number(first)..number(end)
        }
        Err(_) => seeds,
    };
    seeds.for_each(test);
}

/// Whether the environment variable `TRACE` asks for all events to be printed.
pub(crate) fn trace_wanted() -> bool {
    std::env::var_os("TRACE").is_some()
}

/// How to see a failure of a test again.
pub fn how_to_repeat(seed: u64) -> String {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("the_test");
    format!("SEED={seed} cargo test -p meridian-sim {test}  (TRACE=1 prints all events)")
}

/// Looks for each planted bug; `caught` tells what shows it, if anything does.
///
/// # Panics
/// If one is not caught.
pub fn each_is_caught<M: Copy + Debug, C: Debug>(planted: &[M], caught: impl Fn(M) -> Option<C>) {
    // Their panics are expected, and many.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let all: Vec<_> = planted.iter().map(|mutation| (*mutation, caught(*mutation))).collect();
    std::panic::set_hook(hook);
    for (mutation, caught) in &all {
        println!("{mutation:?}: {caught:?}");
    }
    let missed: Vec<_> = all.iter().filter(|(_, caught)| caught.is_none()).collect();
    assert!(!planted.is_empty() && missed.is_empty(), "nobody noticed {missed:?}");
}
