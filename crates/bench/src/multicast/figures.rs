//! `meridian bench multicast figures`: the measurements of the thesis's Figures 4.2 to 4.5, drawn.

use super::cluster::{self, Outcome, Protocol, Setup};
use super::layout::Layout;
use super::{Figures, WARM_UP_MAX, usual_dissemination};
use crate::harness::Machine;
use crate::harness::figures::{Drawing, Figure, Folder, Results, curves, in_turn};
use crate::harness::plot::{distribution, latency_over_throughput};
use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;
use meridian_terminal::output;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

/// How many messages each client keeps in flight (the thesis's points: the 2nd is 2, the 8th 128).
const LEVELS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// The levels of a quick run; those of Figure 4.5 are among them.
const QUICK_LEVELS: [u64; 3] = [2, 16, 128];
/// How many replicas each group has.
const REPLICAS: u16 = 3;
/// Bytes of each message.
const PAYLOAD: usize = 64;
/// Low and high load of Figure 4.5.
const CDF_LEVELS: [(char, u64); 2] = [('a', 2), ('b', 128)];

/// What to draw.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    #[command(flatten)]
    folder: Folder,
    /// Fewer and shorter measurements, and not of all diagrams: some minutes in place of half an
    /// hour
    #[arg(long)]
    quick: bool,
    /// Only these diagrams; 4.5 shows what is measured for 4.4a, and is drawn with it
    #[arg(long, value_delimiter = ',', value_name = "DIAGRAM,..", value_parser = PossibleValuesParser::new(DIAGRAMS.map(|diagram| diagram.name)))]
    only: Vec<String>,
    /// Only these protocols
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PROTOCOL,..", default_values_t = Protocol::OF_THE_THESIS)]
    protocols: Vec<Protocol>,
    /// How many threads the members share
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

/// One of the thesis's diagrams of latency over throughput.
struct Diagram {
    name: &'static str,
    layout: Layout,
    dest: u16,
    /// Not part of a quick run, unless it is asked for.
    long: bool,
}

const DIAGRAMS: [Diagram; 7] = [
    Diagram { name: "4.2", layout: Layout::Lan, dest: 2, long: false },
    Diagram { name: "4.3a", layout: Layout::WanColocated, dest: 1, long: true },
    Diagram { name: "4.3b", layout: Layout::WanColocated, dest: 2, long: false },
    Diagram { name: "4.3c", layout: Layout::WanColocated, dest: 4, long: true },
    Diagram { name: "4.3d", layout: Layout::WanColocated, dest: 8, long: true },
    Diagram { name: "4.4a", layout: Layout::WanDistributed, dest: 2, long: false },
    Diagram { name: "4.4b", layout: Layout::WanDistributed, dest: 4, long: true },
];

/// The diagram whose points Figure 4.5 shows in full.
const CDF_OF: &str = "4.4a";

/// A line of the raw results.
#[derive(Serialize)]
struct Line<'a> {
    figure: &'a str,
    machine: &'a Machine,
    layout: Layout,
    #[serde(flatten)]
    figures: &'a Figures,
    /// Shares of the clients' messages, and the latency that so many had at most.
    distribution_us: &'a [(f64, f64)],
}

/// One measurement.
struct Point {
    protocol: Protocol,
    outstanding: u64,
    throughput: f64,
    p95_us: f64,
    distribution_us: Vec<(f64, f64)>,
}

/// Runs `meridian bench multicast figures`.
pub fn run(args: &FiguresArgs) -> anyhow::Result<ExitCode> {
    let levels: &[u64] = if args.quick { &QUICK_LEVELS } else { &LEVELS };
    let diagrams: Vec<_> = DIAGRAMS.iter().filter(|diagram| args.is_drawn(diagram)).collect();
    let all = diagrams.len() * levels.len() * args.protocols.len();
    let mut drawing = Drawing::begin(&args.folder, args.quick, all)?;
    for diagram in diagrams {
        let mut results = drawing.results(&format!("figure-{}", diagram.name))?;
        let mut points = Vec::new();
        for (round, outstanding) in levels.iter().enumerate() {
            for protocol in in_turn(&args.protocols, round) {
                let setup = setup(args, drawing.length(), diagram, (*protocol, *outstanding));
                let outcome = cluster::run(setup.clone(), |_, _| ())
                    .with_context(|| format!("{protocol:?} with {outstanding} in flight"))?;
                let machine = drawing.machine();
                let point = take(&mut results, (diagram, machine), &setup, &outcome)?;
                drawing.show(diagram.name, &point.to_string());
                points.push(point);
            }
        }
        let note = format!("{} messages in flight from each of 24 clients", levels_of(levels));
        draw(&drawing, diagram, &args.protocols, &points, &note)?;
    }
    drawing.end()
}

impl FiguresArgs {
    fn is_drawn(&self, diagram: &Diagram) -> bool {
        if self.only.is_empty() {
            !(self.quick && diagram.long)
        } else {
            self.only.iter().any(|name| name == diagram.name)
        }
    }
}

fn setup(
    args: &FiguresArgs,
    length: Duration,
    diagram: &Diagram,
    (protocol, outstanding): (Protocol, u64),
) -> Setup {
    let distances = diagram.layout.distances();
    let dissemination = usual_dissemination(&distances, REPLICAS);
    Setup {
        protocol,
        groups: 8,
        replicas: REPLICAS,
        dest: diagram.dest,
        payload: PAYLOAD,
        outstanding,
        warm_up: (length / 5).min(WARM_UP_MAX) + distances.longest() * 3,
        length,
        distances,
        cut: None,
        dissemination,
        threads: usize::from(args.threads),
    }
}

/// Adds a measurement to the raw results.
fn take(
    results: &mut Results,
    (diagram, machine): (&Diagram, &Machine),
    setup: &Setup,
    outcome: &Outcome,
) -> anyhow::Result<Point> {
    let figures = Figures::of(setup, outcome);
    let (_, part) = &outcome.parts[0];
    let shares = (0..=200).map(|step| f64::from(step) / 200.0);
    let at = |share| part.client_ns.value_at_quantile(share) as f64 / 1000.0;
    let distribution_us: Vec<(f64, f64)> = shares.map(|share| (share, at(share))).collect();
    results.add(&Line {
        figure: diagram.name,
        machine,
        layout: diagram.layout,
        figures: &figures,
        distribution_us: &distribution_us,
    })?;
    let all = &figures.parts[0];
    Ok(Point {
        protocol: setup.protocol,
        outstanding: setup.outstanding,
        throughput: all.messages_per_second,
        p95_us: all.client.p95_us,
        distribution_us,
    })
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<12}  {:>3} in flight  {:>8.0} messages/s  p95 {}",
            self.protocol.title(),
            self.outstanding,
            self.throughput,
            output::micros(self.p95_us)
        )
    }
}

fn draw(
    drawing: &Drawing<'_>,
    diagram: &Diagram,
    protocols: &[Protocol],
    points: &[Point],
    note: &str,
) -> anyhow::Result<()> {
    let title = format!("{}, {}", diagram.layout.title(), destinations(diagram.dest));
    let name = |protocol: &Protocol| protocol.title().into();
    let figure = Figure {
        name: diagram.name,
        title: &title,
        x: "throughput (messages/s)",
        y: "95th percentile of latency (ms)",
        note,
        plot: latency_over_throughput,
    };
    let at = |point: &Point| [(point.throughput, point.p95_us / 1000.0)];
    let of = |protocol: &Protocol, point: &Point| point.protocol == *protocol;
    drawing.draw(&figure, &curves(protocols, name, points, of, at))?;
    if diagram.name != CDF_OF {
        return Ok(());
    }
    for (part, outstanding) in CDF_LEVELS {
        let figure = Figure {
            name: &format!("4.5{part}"),
            title: &format!("{title}, {outstanding} in flight"),
            x: "latency (ms)",
            y: "share of messages",
            note,
            plot: distribution,
        };
        let of = |protocol: &Protocol, point: &Point| {
            point.protocol == *protocol && point.outstanding == outstanding
        };
        let at = |point: &Point| {
            let shares = point.distribution_us.iter();
            shares.map(|(share, us)| (us / 1000.0, *share)).collect::<Vec<_>>()
        };
        drawing.draw(&figure, &curves(protocols, name, points, of, at))?;
    }
    Ok(())
}

/// The first and the last of these.
fn levels_of(levels: &[u64]) -> String {
    let ends = [levels.first(), levels.last()].map(|end| end.copied().unwrap_or_default());
    ends.map(|end| end.to_string()).join(" to ")
}

fn destinations(count: u16) -> String {
    if count == 1 { "1 destination group".into() } else { format!("{count} destination groups") }
}
