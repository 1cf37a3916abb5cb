//! Where the simulator meets the test that runs it: seeds from the environment, what is printed,
//! and panics. No other file of this crate prints or reads the environment.

use crate::trial::Violation;
use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Runs `test` with each seed. The environment variable `SEED` names one to run instead, `SEEDS` a
/// range of others, `1000..2000`, for long runs. With `SHARE=4` the first quarter of them is run,
/// for those who cannot wait.
///
/// # Panics
/// If the variables are no numbers.
pub fn each_seed(seeds: Range<u64>, mut test: impl FnMut(u64)) {
    if let Ok(seed) = std::env::var("SEED") {
        return test(number(&seed));
    }
    let seeds = match std::env::var("SEEDS") {
        Ok(range) => {
            let (first, end) = range.split_once("..").expect("SEEDS is a range: 0..100");
            number(first)..number(end)
        }
        Err(_) => seeds.start..seeds.start + (seeds.end - seeds.start).div_ceil(share()),
    };
    seeds.for_each(test);
}

/// One of how many parts of the seeds is run: `SHARE`, or else all of them as one part.
///
/// # Panics
/// If that is no number.
pub fn share() -> u64 {
    std::env::var("SHARE").map_or(1, |text| number(&text).max(1))
}

fn number(text: &str) -> u64 {
    text.parse().expect("SEED, SEEDS and SHARE are numbers")
}

/// Whether the environment variable `SEED` names one seed, so that tests cannot expect much to
/// happen.
pub fn one_seed() -> bool {
    std::env::var_os("SEED").is_some()
}

/// Whether the environment variable `TRACE` asks for all events to be printed.
pub(crate) fn trace_wanted() -> bool {
    std::env::var_os("TRACE").is_some()
}

/// Prints a line of a trace, or what a failed test has to say.
pub(crate) fn print(line: &str) {
    eprintln!("{line}");
}

/// How to see a failure of a test again.
pub fn how_to_repeat(seed: u64) -> String {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("the_test");
    format!("SEED={seed} cargo test -p meridian-sim {test}  (TRACE=1 prints all events)")
}

/// Runs `judge`; an assertion that fails in it is a violation, too.
pub(crate) fn caught<T>(judge: impl FnOnce() -> Result<T, Violation>) -> Result<T, Violation> {
    catch_unwind(AssertUnwindSafe(judge)).unwrap_or_else(|panic| Err(said(&*panic)))
}

/// What `work` gives, or the panic that ended it; this thread prints nothing of that.
fn hushed<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    thread_local! {
        static QUIET: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                hook(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    done
}

/// What `work` gives, unless an assertion in it fails; nothing is printed then.
pub(crate) fn caught_quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    hushed(work).ok()
}

/// Runs `work` in which panics are expected, and many: they print nothing.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    hushed(work).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What a panic says.
fn said(panic: &(dyn Any + Send)) -> Violation {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("assertion: {}", text.unwrap_or("a panic without words"))
}
