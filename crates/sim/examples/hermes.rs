//! Exhaustive search of small cases of Hermes over the real code: all orders in which messages can
//! arrive, over links without an order.
//!
//! ```text
//! cargo run --release -p meridian-sim --example hermes -- --asked 0w,0m,1w --crash 0 --repeated 1
//! ```
//!
//! What is asked is named by the replica and a letter: it *w*rites, *m*odifies (an RMW), *r*eads.
//! It prints what is violated, and the way there. The tests search the cases that take no more than
//! seconds (`crates/sim/tests/simulator/hermes_explored.rs`).
//!
//! | option | what |
//! | --- | --- |
//! | `--crash 0` | that replica may crash, at any time |
//! | `--repeated 1` | so many messages come twice |
//! | `--overtakes 2` | not all orders: so many messages at most come before earlier ones of their link |
#![forbid(unsafe_code)]

use meridian_sim::of::hermes::explored::{Case, append, write};
use meridian_sim::of::hermes::register::Operation;
use std::process::ExitCode;

const USAGE: &str = "--asked 0w,0m,1w [--crash R] [--repeated N] [--overtakes N]";

fn asked(word: &str, place: usize) -> Option<(u16, Operation)> {
    const TEXTS: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let (at, what) = word.split_at_checked(word.len().checked_sub(1)?)?;
    let operation = match what {
        "w" => write(TEXTS[place % TEXTS.len()]),
        "m" => append(),
        "r" => Operation::Read,
        _ => return None,
    };
    Some((at.parse().ok()?, operation))
}

fn case(mut args: impl Iterator<Item = String>) -> Option<Case> {
    let mut case = Case::two_writes_and_an_rmw();
    while let Some(arg) = args.next() {
        let value = args.next()?;
        match arg.as_str() {
            "--asked" => {
                let words = value.split(',').enumerate();
                case.asked =
                    words.map(|(place, word)| asked(word, place)).collect::<Option<_>>()?;
            }
            "--crash" => case.crash = Some(value.parse().ok()?),
            "--repeated" => case.repeated = value.parse().ok()?,
            "--overtakes" => case.overtakes = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    Some(case)
}

fn main() -> ExitCode {
    let Some(case) = case(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let found = case.search();
    println!("{found}");
    let Some((_, way)) = found.violated else { return ExitCode::SUCCESS };
    way.iter().for_each(|action| println!("  {action}"));
    ExitCode::FAILURE
}
