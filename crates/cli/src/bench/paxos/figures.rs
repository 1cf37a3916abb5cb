//! `meridian bench paxos figures`: the measurements of the report's Figures 13 and 14, drawn.

use super::{Outcome, PaxosArgs, measure};
use crate::bench::plot::{Curve, Labels, lines};
use crate::output;
use anyhow::Context;
use clap::Args;
use meridian_paxos::Recovery;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to draw.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    /// The folder that the figures and raw results are written to; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// For how many seconds each point is measured
    #[arg(long, default_value_t = 5.0, value_parser = crate::bench::positive_seconds)]
    seconds: f64,
    /// Fewer points: some minutes in place of half an hour
    #[arg(long)]
    quick: bool,
    /// The round trip between replicas of Figure 14, in milliseconds
    #[arg(long, default_value_t = 100.0, value_name = "MS", value_parser = super::millis)]
    rtt: f64,
    /// What survives a crash: crash-stop, full-ss, epoch-ss or view-ss
    #[arg(long, default_value = "crash-stop", value_parser = super::mode)]
    mode: Recovery,
}

/// One of the report's figures.
struct Figure {
    number: u32,
    title: &'static str,
    far: bool,
    clients: u32,
    /// WND of the curves.
    windows: &'static [u64],
    /// BSZ of their points, in KiB.
    batches: &'static [u32],
}

const FIGURES: [Figure; 2] = [
    Figure {
        number: 13,
        title: "LAN",
        far: false,
        clients: 900,
        windows: &[1, 2, 5],
        batches: &[1, 2, 5, 10, 20, 35, 50, 65],
    },
    Figure {
        number: 14,
        title: "WAN",
        far: true,
        clients: 1200,
        windows: &[1, 2, 5, 10, 20, 35],
        batches: &[1, 2, 5, 10, 25, 50, 75, 100, 130],
    },
];

/// What a part of a figure shows over BSZ.
type Part = (char, &'static str, fn(&Outcome) -> f64);

const PARTS: [Part; 4] = [
    ('a', "client latency (ms)", |outcome| outcome.mean_us / 1000.0),
    ('d', "throughput (requests/s)", |outcome| outcome.requests_per_second),
    ('e', "average batch (KiB)", |outcome| outcome.batch_bytes / 1024.0),
    ('f', "average window (instances)", |outcome| outcome.window),
];

/// Runs `meridian bench paxos figures`.
pub fn run(args: &FiguresArgs) -> anyhow::Result<ExitCode> {
    let dir = &args.out;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let raw = dir.join("results.jsonl");
    let mut file = File::create(&raw).with_context(|| format!("cannot write {}", raw.display()))?;
    for figure in &FIGURES {
        let mut all = Vec::new();
        let step = if args.quick { 2 } else { 1 };
        for wnd in figure.windows.iter().step_by(step) {
            for batch in figure.batches.iter().step_by(step) {
                let outcome = point(args, figure, *wnd, *batch)
                    .with_context(|| format!("WND {wnd}, BSZ {batch} KiB"))?;
                note!(
                    "figure {}  WND {wnd:>2}  BSZ {batch:>3} KiB  {:>8.0} requests/s  mean {}",
                    figure.number,
                    outcome.requests_per_second,
                    output::micros(outcome.mean_us)
                );
                writeln!(file, "{}", serde_json::to_string(&outcome)?)
                    .context("cannot write the raw results")?;
                all.push(outcome);
            }
        }
        draw(dir, figure, &all)?;
    }
    output::print(&format!("figures and raw results are in {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn point(args: &FiguresArgs, figure: &Figure, wnd: u64, batch: u32) -> anyhow::Result<Outcome> {
    measure(&PaxosArgs {
        command: None,
        clients: figure.clients,
        connections: 8,
        size: 128,
        replicas: 3,
        mode: args.mode,
        bsz: batch << 10,
        wnd,
        delta_b: 0.0,
        seconds: args.seconds,
        rtt: if figure.far { args.rtt } else { 0.0 },
        dir: std::env::temp_dir(),
        json: false,
    })
}

fn draw(dir: &Path, figure: &Figure, all: &[Outcome]) -> anyhow::Result<()> {
    for (letter, what, value) in PARTS {
        let of = |wnd: u64| all.iter().filter(move |outcome| outcome.wnd == wnd);
        let curves = figure.windows.iter().filter(|wnd| of(**wnd).next().is_some());
        let curves = curves.map(|wnd| Curve {
            name: format!("WND = {wnd}"),
            points: of(*wnd).map(|o| (f64::from(o.bsz) / 1024.0, value(o))).collect(),
        });
        let curves: Vec<Curve> = curves.collect();
        let title =
            format!("Figure {}{letter}: {}, requests of 128 bytes", figure.number, figure.title);
        let labels = Labels { title: &title, x: "BSZ (KiB)", y: what };
        lines(&dir.join(format!("figure-{}{letter}.svg", figure.number)), &labels, &curves)?;
    }
    Ok(())
}
