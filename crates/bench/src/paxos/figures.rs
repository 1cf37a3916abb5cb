//! `meridian bench paxos figures`: what Figures 13 and 14 of the report show, drawn.

use super::{Figures, Setup, load};
use crate::harness::Machine;
use crate::harness::plot::{Curve, Labels, linear};
use anyhow::Context;
use clap::Args;
use meridian_paxos::Recovery;
use meridian_terminal::note;
use meridian_terminal::output;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The report's clients and request sizes.
const CLIENTS: u32 = 900;
const SIZE: u32 = 128;
/// BSZ in KiB: near, and far.
const NEAR_KIB: [u32; 6] = [1, 4, 8, 16, 32, 64];
const FAR_KIB: [u32; 6] = [1, 8, 16, 32, 64, 128];
/// WND: near, and far.
const NEAR_WINDOWS: [u64; 3] = [1, 2, 5];
const FAR_WINDOWS: [u64; 4] = [1, 5, 20, 40];
/// The round trip of Figure 14.
const FAR: Duration = Duration::from_millis(100);
/// How long each point is measured.
const LENGTH: Duration = Duration::from_secs(5);
const QUICK_LENGTH: Duration = Duration::from_millis(1500);

/// What to draw.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    /// The folder that the figures and raw results are written to; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Shorter measurements: two minutes in place of five
    #[arg(long)]
    quick: bool,
    /// What survives a crash
    #[arg(long, default_value = "crash-stop")]
    mode: Recovery,
    /// Clients of Figure 14, whose instances take long
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    far_clients: u32,
}

/// What one of the six diagrams of a figure shows.
struct Diagram {
    letter: char,
    title: &'static str,
    y: &'static str,
    of: fn(&Point) -> f64,
}

const DIAGRAMS: [Diagram; 6] = [
    Diagram { letter: 'a', title: "client latency", y: "mean latency (ms)", of: |p| p.client_ms },
    Diagram {
        letter: 'b',
        title: "latency of an instance",
        y: "mean latency (ms)",
        of: |p| p.instance_ms,
    },
    Diagram { letter: 'c', title: "batch", y: "requests in a batch", of: |p| p.batch },
    Diagram { letter: 'd', title: "throughput", y: "requests/s", of: |p| p.requests },
    Diagram { letter: 'e', title: "instances", y: "instances/s", of: |p| p.instances },
    Diagram { letter: 'f', title: "window", y: "instances in flight", of: |p| p.window },
];

/// One measurement.
struct Point {
    kib: u32,
    wnd: u64,
    requests: f64,
    instances: f64,
    client_ms: f64,
    instance_ms: f64,
    batch: f64,
    window: f64,
}

/// Runs `meridian bench paxos figures`.
pub fn run(args: &FiguresArgs) -> anyhow::Result<ExitCode> {
    let dir = &args.out;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let raw = dir.join("results.jsonl");
    let mut file = File::create(&raw).with_context(|| format!("cannot write {}", raw.display()))?;
    let machine = Machine::look_and_warn();
    let near = (13, Duration::ZERO, CLIENTS, &NEAR_KIB, &NEAR_WINDOWS[..]);
    let far = (14, FAR, args.far_clients, &FAR_KIB, &FAR_WINDOWS[..]);
    for (figure, rtt, clients, all_kib, windows) in [near, far] {
        let mut points = Vec::new();
        for wnd in windows {
            for kib in all_kib {
                let setup = setup(args, rtt, clients, (*kib, *wnd));
                points.push(measure(&mut file, figure, (&machine, &setup), *kib)?);
            }
        }
        for diagram in &DIAGRAMS {
            draw(dir, (figure, rtt, &machine), diagram, windows, &points)?;
        }
    }
    output::print(&format!("figures and raw results are in {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn setup(args: &FiguresArgs, rtt: Duration, clients: u32, (kib, wnd): (u32, u64)) -> Setup {
    let length = if args.quick { QUICK_LENGTH } else { LENGTH };
    Setup {
        mode: args.mode,
        clients,
        connections: 8,
        size: SIZE,
        replicas: 3,
        bsz: kib << 10,
        wnd,
        delta_b: Duration::ZERO,
        rtt,
        warm_up: length / 10 + rtt * 5,
        length,
        dir: None,
    }
}

/// Takes a measurement, notes it in the raw results and shows it.
fn measure(
    file: &mut File,
    figure: u32,
    (machine, setup): (&Machine, &Setup),
    kib: u32,
) -> anyhow::Result<Point> {
    let outcome = load::run(setup, |_, _| ())?;
    let figures = Figures::of(machine, setup, &outcome);
    let mut text = serde_json::to_vec(&figures)?;
    text.push(b'\n');
    file.write_all(&text).context("cannot write the raw results")?;
    note!(
        "figure {figure}  BSZ {kib:>3} KiB  WND {:>2}  {:>8.0} requests/s  mean {}  {:.1} in a batch",
        setup.wnd,
        figures.requests_per_second,
        output::micros(figures.latency.mean_us),
        figures.batch
    );
    Ok(Point {
        kib,
        wnd: setup.wnd,
        requests: figures.requests_per_second,
        instances: figures.instances_per_second,
        client_ms: figures.latency.mean_us / 1e3,
        instance_ms: figures.instance_us / 1e3,
        batch: figures.batch,
        window: figures.window,
    })
}

fn draw(
    dir: &Path,
    (figure, rtt, machine): (u32, Duration, &Machine),
    diagram: &Diagram,
    windows: &[u64],
    points: &[Point],
) -> anyhow::Result<()> {
    let curves = windows.iter().map(|wnd| {
        let of_it = points.iter().filter(|point| point.wnd == *wnd);
        let points = of_it.map(|point| (f64::from(point.kib), (diagram.of)(point))).collect();
        Curve { name: format!("WND {wnd}"), points }
    });
    let curves: Vec<Curve> = curves.collect();
    let way = if rtt.is_zero() { "LAN".into() } else { format!("round trip {rtt:?}") };
    let Diagram { letter, title, y, .. } = diagram;
    let title = format!("Figure {figure}{letter}: {title}, {SIZE} B, {way}");
    let caption = machine.to_string();
    let labels = Labels { title: &title, x: "BSZ (KiB)", y, caption: &caption };
    linear(&dir.join(format!("figure-{figure}{letter}.svg")), &labels, &curves)
}
