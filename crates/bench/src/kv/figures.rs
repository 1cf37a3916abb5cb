//! `meridian bench kv figures`: what Figures 5 to 8 of the Hermes paper show, as far as it applies
//! to replicas that share one machine.
//!
//! The paper's Figures 6b and 6c are measured at the load of CRAQ's greatest throughput; here all
//! have equally many clients. Its Figure 8 compares with Derecho, here with CRAQ and ZAB.

use super::contender::Protocol;
use super::{Figures, Setup, cluster};
use crate::harness::draw::Distribution;
use crate::harness::figures::{Drawing, Figure, Folder, curves, in_turn};
use crate::harness::plot::{Curve, latency_over_throughput, linear};
use clap::Args;
use meridian_terminal::output;
use std::process::ExitCode;

/// How many replicas there are where nothing else is said.
const REPLICAS: u16 = 5;
/// How many clients each replica has where nothing else is said.
const CLIENTS: u32 = 64;
/// Of hundred requests so many write (Figures 5, 6b and 6c).
const RATIOS: [u32; 6] = [1, 5, 20, 50, 75, 100];
/// Clients of each replica (Figure 6a).
const LOADS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Replicas, and of hundred requests so many that write (Figure 7).
const SCALES: [u16; 3] = [3, 5, 7];
const SCALE_RATIOS: [u32; 2] = [1, 20];
/// Bytes of a value (Figure 8).
const SIZES: [u32; 4] = [32, 256, 512, 1024];

/// What is measured, by the figure that it is drawn as.
const ALL: [&str; 5] = ["5a", "5b", "6a", "7", "8"];

/// The axis below a figure whose points differ in their share of writes.
const RATIO: &str = "writes (%)";
const THROUGHPUT: &str = "requests/s";
const LATENCY: &str = "latency (ms)";

/// What to draw.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    #[command(flatten)]
    folder: Folder,
    /// Shorter measurements: 4 minutes in place of 11
    #[arg(long)]
    quick: bool,
    /// Only these: 5a (with 6b), 5b (with 6c), 6a, 7, 8
    #[arg(long, value_name = "FIGURE", value_delimiter = ',', value_parser = ALL)]
    only: Vec<String>,
    /// How many keys there are
    #[arg(long, default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,
}

/// One measurement.
struct Point {
    protocol: Protocol,
    replicas: u16,
    writes_percent: u32,
    value_bytes: u32,
    per_second: f64,
    /// Of all requests, of reads and of writes: the median and the 99th percentile, in ms.
    all_ms: [f64; 2],
    reads_ms: [f64; 2],
    writes_ms: [f64; 2],
}

/// Runs `meridian bench kv figures`.
///
/// # Errors
/// If something cannot be measured, or the folder cannot be written.
pub fn run(args: &FiguresArgs) -> anyhow::Result<ExitCode> {
    let is_wanted = |name: &&str| args.only.is_empty() || args.only.iter().any(|one| one == name);
    let wanted: Vec<&str> = ALL.into_iter().filter(is_wanted).collect();
    let all: usize = wanted.iter().map(|name| setups(name, args.keys).len()).sum();
    let protocols = Protocol::OF_THE_PAPER.len();
    let mut drawing = Drawing::begin(&args.folder, args.quick, all * protocols)?;
    for name in wanted {
        let points = measure(&mut drawing, name, &setups(name, args.keys))?;
        draw(&drawing, name, &points)?;
    }
    drawing.end()
}

/// What is measured for a figure, each with all protocols.
fn setups(name: &str, keys: u32) -> Vec<Setup> {
    let usual = Setup {
        protocol: Protocol::Hermes,
        replicas: REPLICAS,
        writes_percent: 5,
        distribution: Distribution::Uniform,
        keys,
        value_bytes: 32,
        clients: CLIENTS,
        pipeline: 1,
        threads: REPLICAS,
        warm_up: Default::default(),
        length: Default::default(),
    };
    let usual = || usual.clone();
    let ratio = |distribution| {
        let with = |writes_percent| Setup { writes_percent, distribution, ..usual() };
        RATIOS.map(with).into()
    };
    match name {
        "5a" => ratio(Distribution::Uniform),
        "5b" => ratio(Distribution::Zipfian),
        "6a" => LOADS.map(|clients| Setup { clients, ..usual() }).into(),
        "7" => {
            let with = |replicas| {
                SCALE_RATIOS.map(|writes_percent| Setup { replicas, writes_percent, ..usual() })
            };
            SCALES.map(with).as_flattened().to_vec()
        }
        _ => SIZES.map(|value_bytes| Setup { value_bytes, writes_percent: 100, ..usual() }).into(),
    }
}

/// Takes measurements, notes them in the raw results and shows them.
fn measure(
    drawing: &mut Drawing<'_>,
    figure: &str,
    setups: &[Setup],
) -> anyhow::Result<Vec<Point>> {
    let (length, mut points) = (drawing.length(), Vec::new());
    let mut results = drawing.results(&format!("figure-{figure}"))?;
    for (round, setup) in setups.iter().enumerate() {
        for protocol in in_turn(&Protocol::OF_THE_PAPER, round) {
            let (protocol, warm_up) = (*protocol, length / 5);
            let threads = setup.replicas;
            let setup = Setup { protocol, warm_up, length, threads, ..setup.clone() };
            let outcome = cluster::run(setup.clone(), |_, _| ())?;
            let figures = Figures::of(drawing.machine(), &setup, &outcome);
            results.add(&figures)?;
            let point = Point {
                protocol,
                replicas: setup.replicas,
                writes_percent: setup.writes_percent,
                value_bytes: setup.value_bytes,
                per_second: figures.requests_per_second,
                all_ms: [figures.all.p50_us / 1e3, figures.all.p99_us / 1e3],
                reads_ms: [figures.reads.p50_us / 1e3, figures.reads.p99_us / 1e3],
                writes_ms: [figures.writes.p50_us / 1e3, figures.writes.p99_us / 1e3],
            };
            let shown = format!(
                "{:<7}{} replicas {:>3} clients {:>3} % writes {:>9.0}/s  p99 {}",
                protocol.title(),
                setup.replicas,
                setup.clients,
                setup.writes_percent,
                point.per_second,
                output::micros(figures.all.p99_us)
            );
            drawing.show(figure, &shown);
            points.push(point);
        }
    }
    Ok(points)
}

fn draw(drawing: &Drawing<'_>, name: &str, points: &[Point]) -> anyhow::Result<()> {
    let usual = |x, y| Figure { name, title: "", x, y, note: "", plot: linear };
    match name {
        "5a" => draw_ratio(drawing, (name, "6b"), "uniform", points),
        "5b" => draw_ratio(drawing, (name, "6c"), "Zipfian 0.99", points),
        "6a" => {
            let (title, plot) = ("latency at load, 5 % writes", latency_over_throughput as _);
            let figure = Figure { title, plot, ..usual("throughput (requests/s)", LATENCY) };
            let curves = quantiles(points, |point| (point.per_second, point.all_ms));
            drawing.draw(&figure, &curves)
        }
        "7" => {
            let figure =
                Figure { title: "scalability on one machine", ..usual("replicas", THROUGHPUT) };
            let each = |protocol| SCALE_RATIOS.map(|writes| (protocol, writes));
            let all = Protocol::OF_THE_PAPER.map(each);
            let curves = curves(
                all.as_flattened(),
                |(protocol, writes)| format!("{}, {writes} % writes", protocol.title()),
                points,
                |one, point| *one == (point.protocol, point.writes_percent),
                |point| [(f64::from(point.replicas), point.per_second)],
            );
            drawing.draw(&figure, &curves)
        }
        _ => {
            let figure = Figure { title: "writes only", ..usual("bytes of a value", "writes/s") };
            let at = |point: &Point| (f64::from(point.value_bytes), point.per_second);
            drawing.draw(&figure, &by_protocol(points, at))
        }
    }
}

/// Throughput, and the latencies of reads and of writes, over the ratio of writes.
fn draw_ratio(
    drawing: &Drawing<'_>,
    (throughput, latency): (&str, &str),
    how: &str,
    points: &[Point],
) -> anyhow::Result<()> {
    let at = |point: &Point| f64::from(point.writes_percent);
    let all = by_protocol(points, |point| (at(point), point.per_second));
    let reads = quantiles(points, |point| (at(point), point.reads_ms));
    let writes = quantiles(points, |point| (at(point), point.writes_ms));
    let figures = [
        (throughput.to_string(), "throughput", THROUGHPUT, all),
        (format!("{latency}-reads"), "reads", LATENCY, reads),
        (format!("{latency}-writes"), "writes", LATENCY, writes),
    ];
    figures.iter().try_for_each(|(name, what, y, curves)| {
        let title = format!("{what}, {how}");
        let figure = Figure { name, title: &title, x: RATIO, y, note: "", plot: linear };
        drawing.draw(&figure, curves)
    })
}

/// A curve for each protocol.
fn by_protocol(points: &[Point], at: impl Fn(&Point) -> (f64, f64)) -> Vec<Curve> {
    let name = |protocol: &Protocol| protocol.title().into();
    let of = |protocol: &Protocol, point: &Point| *protocol == point.protocol;
    curves(&Protocol::OF_THE_PAPER, name, points, of, |point| [at(point)])
}

/// Two for each: the median and the 99th percentile.
fn quantiles(points: &[Point], at: impl Fn(&Point) -> (f64, [f64; 2])) -> Vec<Curve> {
    let of_one = |(quantile, name): (usize, &str)| {
        let curves = by_protocol(points, |point| (at(point).0, at(point).1[quantile]));
        let named = |curve: Curve| Curve { name: format!("{}, {name}", curve.name), ..curve };
        curves.into_iter().map(named).collect::<Vec<_>>()
    };
    [of_one((0, "p50")), of_one((1, "p99"))].into_iter().flatten().collect()
}
