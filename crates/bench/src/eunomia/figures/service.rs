//! Figures 4.2 to 4.4: how much the service orders, what fault tolerance costs, and what a replica
//! does that stops.
//!
//! In the thesis each replica has a machine; here all share one. So what 4.2 and 4.3 draw is how
//! much one replica could order with a processor of its own: updates for each second of its
//! processor time, of the replica that uses most. 4.4 draws what is ordered in each second, where
//! fewer replicas leave more of the machine to the others.

use super::bars::Bar;
use crate::eunomia::Figures;
use crate::eunomia::cluster::{self, Setup};
use crate::eunomia::contender::Service;
use crate::harness::figures::{Drawing, Figure, curves, in_turn};
use crate::harness::plot::{Curve, linear};

/// How many partitions update (Figure 4.2).
const PARTITIONS: [u16; 5] = [15, 30, 45, 60, 75];
/// Replicas of a service (Figure 4.3).
const REPLICAS: [u16; 2] = [1, 3];
const SERVICES: [Service; 2] = [Service::Eunomia, Service::Sequencer];
const THROUGHPUT: &str = "updates in a second of one processor";
/// What is asked: so many times the sequencer, so many updates, at most this loss by replicas.
const TIMES_MIN: f64 = 7.7;
const PER_SECOND_MIN: f64 = 2_000_000.0;
const LOSS_MAX: f64 = 0.09;

/// One measurement.
struct Point {
    service: Service,
    replicas: u16,
    partitions: u16,
    per_cpu_second: f64,
}

/// Replicas of a service of which two stop, or all (Figure 4.4), and how many partitions update.
const FAILING: [u16; 3] = [1, 2, 3];
const FAILING_PARTITIONS: u16 = 15;
/// How long it goes on from one stop to the next, times the length of a measurement.
const BETWEEN_STOPS: u32 = 2;

/// How many measurements a figure takes.
pub fn points(figure: &str) -> usize {
    if figure == "4.4" {
        return FAILING.len();
    }
    replicas_of(figure).len() * PARTITIONS.len() * SERVICES.len()
}

/// Measures and draws one of the three.
pub fn figure(drawing: &mut Drawing<'_>, name: &str, clients: u32) -> anyhow::Result<Vec<Bar>> {
    if name == "4.4" {
        return failures(drawing).map(|()| Vec::new());
    }
    let points = measure(drawing, name, clients)?;
    draw(drawing, name, &points)?;
    Ok(bars(name, &points))
}

/// Of one service, the most that it orders with so many replicas.
fn most(points: &[Point], service: Service, replicas: u16) -> f64 {
    let of = points.iter().filter(|point| (point.service, point.replicas) == (service, replicas));
    of.map(|point| point.per_cpu_second).fold(0.0, f64::max)
}

fn bars(name: &str, points: &[Point]) -> Vec<Bar> {
    let alone = most(points, Service::Eunomia, 1);
    if name == "4.2" {
        let times = alone / most(points, Service::Sequencer, 1).max(1.0);
        return vec![
            Bar {
                what: "the service over the sequencer",
                measured: format!("{times:.1} times"),
                asked: format!("{TIMES_MIN} at least"),
                met: times >= TIMES_MIN,
            },
            Bar {
                what: "updates/s of the service on one processor",
                measured: format!("{alone:.0}"),
                asked: format!("{PER_SECOND_MIN:.0} at least"),
                met: alone >= PER_SECOND_MIN,
            },
        ];
    }
    let loss = 1.0 - most(points, Service::Eunomia, 3) / alone.max(1.0);
    vec![Bar {
        what: "what three replicas cost the service",
        measured: format!("{:.1} %", loss * 100.0),
        asked: format!("less than {:.0} %", LOSS_MAX * 100.0),
        met: loss < LOSS_MAX,
    }]
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
                    stops: 0,
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

/// What is ordered in each second while replicas stop, of what one orders on average before that.
fn failures(drawing: &mut Drawing<'_>) -> anyhow::Result<()> {
    let part = drawing.length() * BETWEEN_STOPS;
    let mut results = drawing.results("figure-4.4")?;
    let (mut curves, mut usual): (Vec<Curve>, Option<f64>) = (Vec::new(), None);
    for replicas in FAILING {
        let stops = replicas.min(2);
        let setup = Setup {
            service: Service::Eunomia,
            replicas,
            partitions: FAILING_PARTITIONS,
            clients: 1,
            outstanding: 8192,
            stops,
            warm_up: drawing.length() / 5,
            length: part * u32::from(stops + 1),
        };
        let mut points = Vec::new();
        let outcome =
            cluster::run(setup.clone(), |second, updates| points.push((second, updates)))?;
        results.add(&Figures::of(drawing.machine(), &setup, &outcome))?;
        let before = points.iter().filter(|(second, _)| *second <= part.as_secs_f64());
        let before: Vec<f64> = before.map(|(_, updates)| *updates).collect();
        let mean = before.iter().sum::<f64>() / before.len().max(1) as f64;
        let usual = usual.get_or_insert(mean.max(1.0));
        drawing.show("4.4", &format!("{replicas} replicas {mean:>9.0}/s before the first stops"));
        let name = format!("{replicas} replicas, {stops} stop");
        let shares = points.iter().map(|(second, updates)| (*second, updates / *usual));
        curves.push(Curve { name, points: shares.collect() });
    }
    let (title, x) = ("replicas that stop, one after the other", "seconds");
    let y = "updates/s over those of one replica";
    let figure = Figure { name: "4.4", title, x, y, note: "", plot: linear };
    drawing.draw(&figure, &curves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_met_and_missed() {
        let point = |service, replicas, per_cpu_second| Point {
            service,
            replicas,
            partitions: 15,
            per_cpu_second,
        };
        let of = |sequencer, replicated| {
            let points = [
                point(Service::Eunomia, 1, 1_000_000.0),
                point(Service::Eunomia, 1, 3_000_000.0),
                point(Service::Sequencer, 1, sequencer),
                point(Service::Eunomia, 3, replicated),
            ];
            let all = [bars("4.2", &points), bars("4.3", &points)].concat();
            all.iter().map(|bar| bar.met).collect::<Vec<_>>()
        };
        assert_eq!(of(300_000.0, 2_900_000.0), [true, true, true]);
        assert_eq!(of(600_000.0, 2_600_000.0), [false, true, false]);
    }
}
