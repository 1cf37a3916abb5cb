//! Exhaustive search of small cases of PrimCast over the real code: all orders in which messages
//! can arrive.
//!
//! ```text
//! cargo run --release -p meridian-sim --example exhaustive -- --groups 1,1,1 --messages fg,gh,h,f
//! ```
//!
//! Groups are named f, g, h, .. and given by their sizes, a message by the groups that it goes to.
//! For each thing that is violated it prints the way there. The tests search the cases that take no
//! more than seconds (`crates/sim/tests/exhaustive`).
//!
//! | option | what |
//! | --- | --- |
//! | `--framed` | what a process sends to another in one step arrives together |
//! | `--acquainted` | the groups have ordered a message to all of them before |
//! | `--clocks 0,4,9` | how far the groups' clocks are, at least, when the messages come |
//! | `--suspect 1` | that process may suspect its primary, once and at any time (in all orders: as the next one of its group, which must be there, says so too) |
//! | `--crash 0` | only after that process has stopped for good, at any time; not with `--delay-bound` |
//! | `--ticks 6` | how often timers fire when all is quiet and not all is delivered; 0 if there is no suspicion |
//! | `--delay-bound 2` | not all orders, but so many differences from a regular run |
//! | `--near` | the primaries speak for their groups |
//! | `--sequential` | the other order: a violation is found |
//! | `--plant IgnoresLinks` | a planted bug |
//! | `--compare` | not whether all holds: whether the ends of all runs are the same if no state is left out |
#![forbid(unsafe_code)]

#[path = "../tests/exhaustive/before.rs"]
mod before;
#[path = "../tests/exhaustive/bounded.rs"]
mod bounded;
#[path = "../tests/exhaustive/cases.rs"]
mod cases;
#[path = "../tests/exhaustive/futures.rs"]
mod futures;
#[path = "../tests/exhaustive/locals.rs"]
mod locals;
#[path = "../tests/exhaustive/model.rs"]
mod model;
#[path = "../tests/exhaustive/movers.rs"]
mod movers;
#[path = "../tests/exhaustive/reduced.rs"]
mod reduced;
#[path = "../tests/exhaustive/relation.rs"]
mod relation;

use cases::Case;
use meridian_multicast::{Dissemination, Order};
use meridian_sim::of::multicast::planted;
use std::process::ExitCode;

const USAGE: &str = "--groups 1,1,1 --messages fg,gh,h,f [--framed] [--acquainted] [--clocks 0,4,9] [--suspect P [--crash P]] [--ticks N] \
    [--delay-bound N] [--near] [--sequential] [--plant BUG] [--compare]";

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
            "--suspect" => case.suspicious = Some(args.next()?.parse().ok()?),
            "--crash" => case.stops = Some(args.next()?.parse().ok()?),
            "--ticks" => case.ticks = args.next()?.parse().ok()?,
            "--delay-bound" => case.delay_bound = Some(args.next()?.parse().ok()?),
            "--plant" => {
                let name = args.next()?;
                let all = planted::ALL.into_iter().chain(planted::OF_ORDER);
                case.mutation = all.into_iter().find(|bug| format!("{bug:?}") == name)?;
            }
            _ => return None,
        }
    }
    let searched =
        case.stops.is_none() || (case.suspicious.is_some() && case.delay_bound.is_none());
    let sizes = case.sizes.iter().enumerate();
    let groups: Vec<usize> =
        sizes.flat_map(|(group, size)| std::iter::repeat_n(group, (*size).into())).collect();
    // There is a primary before it, and in all orders one after it that answers.
    let follows = |process: usize| {
        groups
            .get(process)
            .filter(|group| groups.iter().position(|of| of == *group) < Some(process))
    };
    let answers = |process: usize| follows(process) == groups.get(process + 1);
    let searched = searched
        && case.suspicious.is_none_or(|process| {
            follows(process).is_some() && (case.delay_bound.is_some() || answers(process))
        });
    let named = |group: &u16| usize::from(*group) < case.sizes.len();
    (searched && !case.messages.is_empty() && case.messages.iter().flatten().all(named))
        .then_some((case, compare))
}

fn main() -> ExitCode {
    let Some((case, compare)) = case(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if compare {
        let (few, all) = case.ends();
        eprintln!("{} ends, {} in all states", few.len(), all.len());
        return if few == all { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let found = case.search();
    eprintln!("{found}");
    for (property, way) in &found.violated {
        eprintln!("\n{property} is violated:\n{way}");
    }
    if found.violated.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
