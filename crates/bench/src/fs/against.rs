//! Two builds compared: each in a demo of its own, one after the other, again and again, as the
//! machine's own speed changes within minutes.

use super::measure::{Figures, Load, measure};
use super::workload::Op;
use crate::harness::demo::{Demo, Watched};
use crate::harness::{Machine, Scratch};
use anyhow::ensure;
use meridian_terminal::note;
use meridian_terminal::output::{self, Row};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What both builds did in one round, in the order of the loads.
#[derive(Debug, Serialize)]
struct Round {
    this: Vec<Figures>,
    other: Vec<Figures>,
}

/// How this build does compared to the other: medians over the rounds of this build's figures, and
/// of this build's by the other's in the same round.
#[derive(Debug, Serialize)]
struct Comparison {
    op: Op,
    threads: u64,
    p50_us: Ratio,
    p99_us: Ratio,
    cpu_us: Ratio,
    switches: Ratio,
    ops_per_second: Ratio,
}

/// One quantity of both builds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Ratio {
    this: f64,
    other: f64,
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    comparisons: Vec<Comparison>,
    rounds: &'a [Round],
}

/// Measures all loads with this program and with `other`, `rounds` times, and prints the ratios.
///
/// # Errors
/// If a demo does not start or stop, an operation fails, or the run is interrupted.
pub fn run(
    loads: &[Load],
    other: &Path,
    rounds: u32,
    json: bool,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let machine = Machine::look_and_warn();
    let this = std::env::current_exe()?;
    let mut done = Vec::new();
    for round in 0..rounds {
        let mut of_both = [Vec::new(), Vec::new()];
        // The one that begins changes: what the first leaves to the second is shared fairly.
        for turn in 0..2 {
            let which = (round as usize + turn) % 2;
            let program = [this.as_path(), other][which];
            if !json {
                note!("round {} of {rounds}: {} ...", round + 1, program.display());
            }
            of_both[which] = of_one(loads, program, stop)?;
        }
        let [this, other] = of_both;
        done.push(Round { this, other });
    }
    let comparisons: Vec<_> = (0..loads.len()).map(|at| Comparison::of(&done, at)).collect();
    if json {
        let report = Report { machine: &machine, comparisons, rounds: &done };
        return output::print(&serde_json::to_string_pretty(&report)?);
    }
    print(&comparisons)?;
    output::print(&format!("medians of {rounds} rounds; ratios: this by the other; {machine}"))
}

/// All loads on a demo of this program.
fn of_one(loads: &[Load], program: &Path, stop: &AtomicBool) -> anyhow::Result<Vec<Figures>> {
    let scratch = Scratch::make(&std::env::temp_dir())?;
    let demo = Demo::start(program, &scratch.path, &[])?;
    let region = demo.mount.join(demo.status()?.first_region()?);
    let watched = Watched::with_children(&[demo.pid()]);
    let mut all = Vec::new();
    for load in loads {
        let folder = Scratch::make(&region)?;
        let figures = measure(*load, &folder.path, None, &watched, stop)?;
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        ensure!(figures.errors == 0, "{}: {:?}", load.op.title(), figures.first_error);
        folder.remove()?;
        all.push(figures);
    }
    demo.stop()?;
    scratch.remove()?;
    Ok(all)
}

impl Comparison {
    fn of(rounds: &[Round], at: usize) -> Comparison {
        let ratio = |of: fn(&Figures) -> f64| Ratio {
            this: median(rounds.iter().map(|round| of(&round.this[at]))),
            other: median(rounds.iter().map(|round| of(&round.other[at]))),
            ratio: median(rounds.iter().map(|r| of(&r.this[at]) / of(&r.other[at]).max(1e-9))),
        };
        let Figures { op, threads, .. } = rounds[0].this[at];
        Comparison {
            op,
            threads,
            p50_us: ratio(|f| f.latency.p50_us),
            p99_us: ratio(|f| f.latency.p99_us),
            cpu_us: ratio(|f| f.cost.map_or(0.0, |cost| cost.all.cpu_us)),
            switches: ratio(|f| f.cost.map_or(0.0, |cost| cost.all.switches)),
            ops_per_second: ratio(|f| f.ops_per_second),
        }
    }
}

fn print(comparisons: &[Comparison]) -> anyhow::Result<()> {
    let head =
        ["operation", "threads", "p50: this", "other", "ratio", "p99: this", "other", "ratio"];
    let pair = |ratio: &Ratio| {
        [output::micros(ratio.this), output::micros(ratio.other), format!("{:.2}", ratio.ratio)]
    };
    let name = |one: &Comparison| vec![one.op.title().to_string(), one.threads.to_string()];
    let rows = comparisons.iter().map(|one| -> Row {
        [name(one), pair(&one.p50_us).into(), pair(&one.p99_us).into()].concat()
    });
    output::print(&output::table(&head, rows))?;
    let head = [
        "operation",
        "threads",
        "CPU: this",
        "other",
        "ratio",
        "switches: this",
        "other",
        "ratio",
        "ops/s: this",
        "other",
        "ratio",
    ];
    let plain = |ratio: &Ratio, digits: usize| {
        let count = |value: f64| format!("{value:.digits$}");
        [count(ratio.this), count(ratio.other), format!("{:.2}", ratio.ratio)]
    };
    let rows = comparisons.iter().map(|one| -> Row {
        let (switches, rate) = (plain(&one.switches, 1), plain(&one.ops_per_second, 0));
        [name(one), pair(&one.cpu_us).into(), switches.into(), rate.into()].concat()
    });
    output::print(&format!("\n{}", output::table(&head, rows)))
}

/// The middle one; of an even number the upper of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_those_of_the_rounds() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([].into_iter()), 0.0);
    }
}
