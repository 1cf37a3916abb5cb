//! `meridian bench paxos figures`: what Figures 13 and 14 of the report show, drawn.

use super::{Figures, Setup, load};
use crate::harness::figures::{Drawing, Figure, Folder, Results, curves};
use crate::harness::plot::linear;
use clap::Args;
use meridian_paxos::Recovery;
use meridian_terminal::output;
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

/// What to draw.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    #[command(flatten)]
    folder: Folder,
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
    let all = NEAR_KIB.len() * NEAR_WINDOWS.len() + FAR_KIB.len() * FAR_WINDOWS.len();
    let mut drawing = Drawing::begin(&args.folder, args.quick, all)?;
    let mut results = drawing.results("results")?;
    let near = (13, Duration::ZERO, CLIENTS, &NEAR_KIB, &NEAR_WINDOWS[..]);
    let far = (14, FAR, args.far_clients, &FAR_KIB, &FAR_WINDOWS[..]);
    for (figure, rtt, clients, all_kib, windows) in [near, far] {
        let mut points = Vec::new();
        for wnd in windows {
            for kib in all_kib {
                let setup = setup(args, drawing.length(), (rtt, clients), (*kib, *wnd));
                points.push(measure(&mut drawing, &mut results, figure, &setup)?);
            }
        }
        for diagram in &DIAGRAMS {
            draw(&drawing, (figure, rtt), diagram, windows, &points)?;
        }
    }
    drawing.end()
}

fn setup(
    args: &FiguresArgs,
    length: Duration,
    (rtt, clients): (Duration, u32),
    (kib, wnd): (u32, u64),
) -> Setup {
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
    drawing: &mut Drawing<'_>,
    results: &mut Results,
    figure: u32,
    setup: &Setup,
) -> anyhow::Result<Point> {
    let outcome = load::run(setup, |_, _| ())?;
    let figures = Figures::of(drawing.machine(), setup, &outcome);
    results.add(&figures)?;
    let kib = setup.bsz >> 10;
    let shown = format!(
        "BSZ {kib:>3} KiB  WND {:>2}  {:>8.0} requests/s  mean {}  {:.1} in a batch",
        setup.wnd,
        figures.requests_per_second,
        output::micros(figures.latency.mean_us),
        figures.batch
    );
    let point = Point {
        kib,
        wnd: setup.wnd,
        requests: figures.requests_per_second,
        instances: figures.instances_per_second,
        client_ms: figures.latency.mean_us / 1e3,
        instance_ms: figures.instance_us / 1e3,
        batch: figures.batch,
        window: figures.window,
    };
    drawing.show(&figure.to_string(), &shown);
    Ok(point)
}

fn draw(
    drawing: &Drawing<'_>,
    (figure, rtt): (u32, Duration),
    diagram: &Diagram,
    windows: &[u64],
    points: &[Point],
) -> anyhow::Result<()> {
    let curves = curves(
        windows,
        |wnd| format!("WND {wnd}"),
        points,
        |wnd, point| point.wnd == *wnd,
        |point| [(f64::from(point.kib), (diagram.of)(point))],
    );
    let way = if rtt.is_zero() { "LAN".into() } else { format!("round trip {rtt:?}") };
    let Diagram { letter, title, y, .. } = diagram;
    let figure = Figure {
        name: &format!("{figure}{letter}"),
        title: &format!("{title}, {SIZE} B, {way}"),
        x: "BSZ (KiB)",
        y,
        note: "",
        plot: linear,
    };
    drawing.draw(&figure, &curves)
}
