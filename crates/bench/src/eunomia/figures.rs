//! `meridian bench eunomia figures`: Figures 4.2 and 4.3 of the Eunomia thesis.
//!
//! There each replica has a machine; here all share one. So what is drawn is how much one replica
//! could order with a processor of its own: updates for each second of its processor time, of the
//! replica that uses most.

use super::Figures;
use super::cluster::{self, Setup};
use super::contender::Service;
use crate::harness::figures::{Drawing, Figure, Folder, curves, in_turn};
use crate::harness::plot::linear;
use clap::Args;
use std::process::ExitCode;

/// How many partitions update (Figure 4.2).
const PARTITIONS: [u16; 5] = [15, 30, 45, 60, 75];
/// Replicas of a service (Figure 4.3).
const REPLICAS: [u16; 2] = [1, 3];
const SERVICES: [Service; 2] = [Service::Eunomia, Service::Sequencer];
const ALL: [&str; 2] = ["4.2", "4.3"];
const THROUGHPUT: &str = "updates in a second of one processor";

/// What to draw.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    #[command(flatten)]
    folder: Folder,
    /// Shorter measurements: 1 minute in place of 3
    #[arg(long)]
    quick: bool,
    /// Only these: 4.2, 4.3
    #[arg(long, value_name = "FIGURE", value_delimiter = ',', value_parser = ALL)]
    only: Vec<String>,
    /// How many updates a partition waits for at a time, with the sequencer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
}

/// One measurement.
struct Point {
    service: Service,
    replicas: u16,
    partitions: u16,
    per_cpu_second: f64,
}

/// Runs `meridian bench eunomia figures`.
///
/// # Errors
/// If something cannot be measured, or the folder cannot be written.
pub fn run(args: &FiguresArgs) -> anyhow::Result<ExitCode> {
    let is_wanted = |name: &&str| args.only.is_empty() || args.only.iter().any(|one| one == name);
    let wanted: Vec<&str> = ALL.into_iter().filter(is_wanted).collect();
    let all: usize = wanted.iter().map(|name| replicas_of(name).len()).sum();
    let points = all * PARTITIONS.len() * SERVICES.len();
    let mut drawing = Drawing::begin(&args.folder, args.quick, points)?;
    for name in wanted {
        let points = measure(&mut drawing, name, args.clients)?;
        draw(&drawing, name, &points)?;
    }
    drawing.end()
}

fn replicas_of(figure: &str) -> &'static [u16] {
    if figure == "4.2" { &REPLICAS[..1] } else { &REPLICAS }
}

fn measure(drawing: &mut Drawing<'_>, name: &str, clients: u32) -> anyhow::Result<Vec<Point>> {
    let (length, mut points) = (drawing.length(), Vec::new());
    let mut results = drawing.results(&format!("figure-{name}"))?;
    for (round, partitions) in PARTITIONS.into_iter().enumerate() {
        for replicas in replicas_of(name) {
            for service in in_turn(&SERVICES, round) {
                let setup = Setup {
                    service: *service,
                    replicas: *replicas,
                    partitions,
                    clients,
                    outstanding: 8192,
                    warm_up: length / 5,
                    length,
                };
                let outcome = cluster::run(setup.clone(), |_, _| ())?;
                let figures = Figures::of(drawing.machine(), &setup, &outcome);
                results.add(&figures)?;
                let per_cpu_second = figures.updates_per_cpu_second;
                let title = service.title();
                let shown = format!(
                    "{title:<9} {replicas} replicas {partitions:>2} partitions {:>9.0}/s  \
                     {per_cpu_second:>9.0} in a second of CPU",
                    figures.updates_per_second
                );
                drawing.show(name, &shown);
                let (service, replicas) = (*service, *replicas);
                points.push(Point { service, replicas, partitions, per_cpu_second });
            }
        }
    }
    Ok(points)
}

fn draw(drawing: &Drawing<'_>, name: &str, points: &[Point]) -> anyhow::Result<()> {
    let title = match name {
        "4.2" => "what the service orders",
        _ => "what fault tolerance costs",
    };
    let (x, y) = ("partitions that update", THROUGHPUT);
    let figure = Figure { name, title, x, y, note: "", plot: linear };
    let each = |service: Service| replicas_of(name).iter().map(move |count| (service, *count));
    let all: Vec<(Service, u16)> = SERVICES.into_iter().flat_map(each).collect();
    let curves = curves(
        &all,
        |(service, replicas)| match replicas {
            1 => format!("{}, 1 replica", service.title()),
            more => format!("{}, {more} replicas", service.title()),
        },
        points,
        |one, point| *one == (point.service, point.replicas),
        |point| [(f64::from(point.partitions), point.per_cpu_second)],
    );
    drawing.draw(&figure, &curves)
}
