//! Exhaustive search of small cases of PrimCast over the real code: all orders in which messages
//! can arrive.
//!
//! ```text
//! cargo run --release -p meridian-sim --example exhaustive -- --groups 1,1,1 --messages fg,gh,h,f
//! ```
//!
//! Groups are named f, g, h, .. and given by their sizes, a message by the groups that it goes to.
//! It prints what is violated, and the way there. The tests search the cases that take no more than
//! seconds (`crates/sim/tests/simulator/exhaustive_multicast.rs`).
//!
//! | option | what |
//! | --- | --- |
//! | `--framed` | what a process sends to another in one step arrives together |
//! | `--acquainted` | the groups have ordered a message to all of them before |
//! | `--clocks 0,4,9` | how far the groups' clocks are, at least, when the messages come |
//! | `--suspect 1` | that process may suspect its primary, once and at any time (in all orders: as the next one of its group, which must be there, says so too) |
//! | `--crash 0` | only after that process has stopped for good, at any time |
//! | `--ticks 6` | how often timers fire when all is quiet and not all is delivered; 0 if there is no suspicion |
//! | `--delays 2` | not all orders: so many delays at most |
//! | `--near` | the primaries speak for their groups |
//! | `--sequential` | the other order: a violation is found |
//! | `--plant IgnoresLinks` | a planted bug |
//! | `--compare` | not whether all holds: whether runs end alike if no event is left out |
#![forbid(unsafe_code)]

use meridian_multicast::{Dissemination, Order};
use meridian_sim::of::multicast::explored::Case;
use meridian_sim::of::multicast::planted;
use std::process::ExitCode;

const USAGE: &str = "--groups 1,1,1 --messages fg,gh,h,f [--framed] [--acquainted] \
    [--clocks 0,4,9] [--suspect P [--crash P]] [--ticks N] [--delays N] [--near] [--sequential] \
    [--plant BUG] [--compare]";

fn groups_of(message: &str) -> Option<Vec<u16>> {
    message.bytes().map(|name| name.checked_sub(b'f').map(u16::from)).collect()
}

fn numbers<T: std::str::FromStr>(list: &str) -> Option<Vec<T>> {
    list.split(',').map(|number| number.parse().ok()).collect()
}

fn case(mut args: impl Iterator<Item = String>) -> Option<(Case, bool)> {
    let mut case = Case::of::<&[u16]>(&[1; 3], &[]);
    let mut compare = false;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--compare" => compare = true,
            "--framed" => case.framed = true,
            "--acquainted" => case.acquainted = true,
            "--near" => case.dissemination = Dissemination::ViaLeader,
            "--sequential" => case.order = Order::Sequential,
            "--groups" => case.sizes = numbers(&args.next()?)?,
            "--clocks" => case.clocks = numbers(&args.next()?)?,
            "--messages" => {
                case.messages = args.next()?.split(',').map(groups_of).collect::<Option<_>>()?;
            }
            "--suspect" => case.suspect = Some(args.next()?.parse().ok()?),
            "--crash" => case.crash = Some(args.next()?.parse().ok()?),
            "--ticks" => case.ticks = args.next()?.parse().ok()?,
            "--delays" => case.delays = Some(args.next()?.parse().ok()?),
            "--plant" => {
                let name = args.next()?;
                let all = planted::ALL.into_iter().chain(planted::OF_ORDER);
                case.mutation = all.into_iter().find(|bug| format!("{bug:?}") == name)?;
            }
            _ => return None,
        }
    }
    is_searched(&case).then_some((case, compare))
}

/// Whether there is such a case.
fn is_searched(case: &Case) -> bool {
    let sizes = case.sizes.iter().enumerate();
    let groups: Vec<usize> =
        sizes.flat_map(|(group, size)| std::iter::repeat_n(group, (*size).into())).collect();
    // There is a primary before who suspects it, and in all orders one after that who answers.
    let follows = |process: usize| {
        let group = groups.get(process)?;
        (groups.iter().position(|of| of == group) < Some(process)).then_some(group)
    };
    let may_suspect = |process: usize| {
        let answers = follows(process) == groups.get(process + 1);
        follows(process).is_some() && (case.delays.is_some() || answers)
    };
    let named = |group: &u16| usize::from(*group) < case.sizes.len();
    (case.crash.is_none() || case.suspect.is_some())
        && case.suspect.is_none_or(may_suspect)
        && !case.messages.is_empty()
        && case.messages.iter().flatten().all(named)
}

fn main() -> ExitCode {
    let Some((case, compare)) = case(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let found = case.search();
    eprintln!("{found}");
    if compare {
        let all = Case { reduced: false, ..case }.search();
        eprintln!("{all}\n{} ends, {} in all states", found.ends.len(), all.ends.len());
        return if found.ends == all.ends { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let Some((property, way)) = found.violated else { return ExitCode::SUCCESS };
    eprintln!("\n{property} is violated:\n{}", way.join("\n"));
    ExitCode::FAILURE
}
