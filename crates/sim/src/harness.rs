//! Running a test with many seeds.

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
