//! Figures 4.5 to 4.8: what stores of three regions answer, and how much later than need be they
//! show what other regions write.
//!
//! The thesis measures the delay from the arrival of the data; here it is from the moment of the
//! update, without the way between the regions, which is the same for all. So it counts also what a
//! server waits before it sends. Throughput is measured with sessions that ask at once again; the
//! delay with sessions that pause, so that no server has a queue.

use super::bars::Bar;
use crate::eunomia::regions::cluster::{self, Setup};
use crate::eunomia::regions::store::Protocol;
use crate::eunomia::regions::{
    Figures, KEYS, PARTITIONS, SESSIONS, THETA_MS, VALUE_BYTES, WARM_UP, Workload,
};
use crate::harness::draw::Distribution;
use crate::harness::figures::{Drawing, Figure, Results, curves, in_turn};
use crate::harness::latency::histogram;
use crate::harness::plot::{Curve, distribution, linear};
use hdrhistogram::Histogram;
use meridian_core::RegionId;
use meridian_terminal::output;
use std::time::Duration;

/// Of hundred operations so many update (Figure 4.5).
const RATIOS: [u32; 4] = [1, 10, 25, 50];
const DISTRIBUTIONS: [(Distribution, &str, &str); 2] = [
    (Distribution::Uniform, "4.5-uniform", "throughput, uniform keys"),
    (Distribution::Zipfian, "4.5-power-law", "throughput, Zipfian 0.99"),
];
/// The ways that are drawn, from region to region (Figures 4.6 and 4.7).
const WAYS: [(&str, u16, u16); 2] = [("4.6", 0, 1), ("4.7", 1, 2)];
/// After how many milliseconds it is found out again what is stable (Figure 4.8).
const THETAS_MS: [u32; 5] = [1, 5, 20, 50, 100];
/// Those that do.
const STABILIZING: [Protocol; 2] = [Protocol::GentleRain, Protocol::Cure];
/// How sessions pause when the delay is measured, and how many there are in each region.
const THINK: Duration = Duration::from_millis(20);
const PAUSING: u32 = 64;
/// What is asked: Eunomia answers at most so much less than without order, on average; and shows
/// this share of updates with less than so much delay.
const LOSS_MAX: f64 = 0.03;
const SHARE: f64 = 0.95;
const EXTRA_MS_MAX: f64 = 10.0;

const OPERATIONS: &str = "operations/s";
const EXTRA: &str = "extra delay (ms)";

/// One measurement.
struct Point {
    setup: Setup,
    per_second: f64,
    /// From region 0 to 1, and from 1 to 2.
    extra_ns: [Histogram<u64>; WAYS.len()],
}

impl Point {
    /// How late a share of the updates is at most, on one of [`WAYS`], in milliseconds.
    fn extra_ms(&self, way: usize, share: f64) -> f64 {
        self.extra_ns[way].value_at_quantile(share) as f64 / 1e6
    }

    fn is(&self, protocol: Protocol) -> bool {
        self.setup.protocol == protocol
    }
}

/// How many measurements a figure takes.
pub fn points(figure: &str) -> usize {
    match figure {
        "4.5" => RATIOS.len() * DISTRIBUTIONS.len() * Protocol::ALL.len(),
        "4.6" => Protocol::ALL.len(),
        _ => 2 * (1 + THETAS_MS.len() * STABILIZING.len()),
    }
}

/// Measures and draws one of them; 4.7 with 4.6.
pub fn figure(drawing: &mut Drawing<'_>, name: &str) -> anyhow::Result<Vec<Bar>> {
    let mut results = drawing.results(&format!("figure-{name}"))?;
    match name {
        "4.5" => throughput(drawing, &mut results),
        "4.6" => visibility(drawing, &mut results),
        _ => tradeoff(drawing, &mut results),
    }
}

/// What is measured where nothing else is said: 90 of hundred operations read.
fn usual(protocol: Protocol, length: Duration) -> Setup {
    Setup {
        protocol,
        partitions: PARTITIONS,
        replicas: 1,
        workload: Workload {
            updates_percent: 10,
            distribution: Distribution::Uniform,
            keys: KEYS,
            value_bytes: VALUE_BYTES,
            sessions: SESSIONS,
            think: Duration::ZERO,
        },
        theta: Duration::from_millis(THETA_MS.into()),
        warm_up: WARM_UP,
        length,
    }
}

/// With sessions that pause.
fn calm(setup: Setup) -> Setup {
    let workload = Workload { sessions: PAUSING, think: THINK, ..setup.workload };
    Setup { workload, ..setup }
}

fn measure(
    drawing: &mut Drawing<'_>,
    results: &mut Results,
    name: &str,
    setup: Setup,
) -> anyhow::Result<Point> {
    let outcome = cluster::run(&setup)?;
    let figures = Figures::of(drawing.machine(), &setup, &outcome);
    results.add(&figures)?;
    let per_second = figures.operations_per_second;
    let extra_ns = WAYS.map(|(_, from, to)| {
        let found = outcome.extra_ns.get(&(RegionId(from), RegionId(to)));
        found.cloned().unwrap_or_else(histogram)
    });
    let point = Point { setup, per_second, extra_ns };
    let shown = format!(
        "{:<10} {:>2} % updates {per_second:>8.0}/s  extra p95 {:>7} and {:>7}",
        point.setup.protocol.title(),
        point.setup.workload.updates_percent,
        output::micros(point.extra_ms(0, SHARE) * 1e3),
        output::micros(point.extra_ms(1, SHARE) * 1e3),
    );
    drawing.show(name, &shown);
    Ok(point)
}

/// Figure 4.5.
fn throughput(drawing: &mut Drawing<'_>, results: &mut Results) -> anyhow::Result<Vec<Bar>> {
    let (length, mut all) = (drawing.length(), Vec::new());
    for (distribution, name, title) in DISTRIBUTIONS {
        let mut points = Vec::new();
        for (round, updates_percent) in RATIOS.into_iter().enumerate() {
            for protocol in in_turn(&Protocol::ALL, round) {
                let usual = usual(*protocol, length);
                let workload = Workload { updates_percent, distribution, ..usual.workload };
                let setup = Setup { workload, ..usual };
                points.push(measure(drawing, results, "4.5", setup)?);
            }
        }
        let (x, y) = ("updates (%)", OPERATIONS);
        let figure = Figure { name, title, x, y, note: "", plot: linear };
        let at =
            |point: &Point| [(f64::from(point.setup.workload.updates_percent), point.per_second)];
        let name = |protocol: &Protocol| protocol.title().into();
        let of = |protocol: &Protocol, point: &Point| point.is(*protocol);
        drawing.draw(&figure, &curves(&Protocol::ALL, name, &points, of, at))?;
        all.extend(points);
    }
    let workload =
        |point: &Point| (point.setup.workload.distribution, point.setup.workload.updates_percent);
    let loss = |point: &Point| {
        let same =
            |other: &&Point| other.is(Protocol::Eventual) && workload(other) == workload(point);
        let eventual = all.iter().find(same)?;
        Some(1.0 - point.per_second / eventual.per_second.max(1.0))
    };
    let losses: Vec<f64> =
        all.iter().filter(|point| point.is(Protocol::Eunomia)).filter_map(loss).collect();
    Ok(vec![loss_bar(&losses)])
}

fn loss_bar(losses: &[f64]) -> Bar {
    let loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
    Bar {
        what: "throughput that causality costs, on average",
        measured: format!("{:.1} %", loss * 100.0),
        asked: format!("{:.0} % at most", LOSS_MAX * 100.0),
        met: loss <= LOSS_MAX,
    }
}

/// Figures 4.6 and 4.7.
fn visibility(drawing: &mut Drawing<'_>, results: &mut Results) -> anyhow::Result<Vec<Bar>> {
    let (length, mut points) = (drawing.length(), Vec::new());
    for protocol in Protocol::ALL {
        points.push(measure(drawing, results, "4.6", calm(usual(protocol, length)))?);
    }
    let mut bars = Vec::new();
    for (way, (name, from, to)) in WAYS.into_iter().enumerate() {
        let curve = |point: &Point| {
            let at = |hundredth| {
                let share = f64::from(hundredth) / 100.0;
                (point.extra_ms(way, share), share)
            };
            Curve { name: point.setup.protocol.title().into(), points: (0..100).map(at).collect() }
        };
        let title = format!("delay of updates of region {from} in region {to}");
        let (x, y) = (EXTRA, "share of updates");
        let figure = Figure { name, title: &title, x, y, note: "", plot: distribution };
        drawing.draw(&figure, &points.iter().map(curve).collect::<Vec<_>>())?;
        bars.extend(extra_bars(&points, way));
    }
    Ok(bars)
}

fn extra_bars(points: &[Point], way: usize) -> Vec<Bar> {
    let of = |protocol| points.iter().find(move |point: &&Point| point.is(protocol));
    let Some(eunomia) = of(Protocol::Eunomia) else { return Vec::new() };
    let (what, orders) = match way {
        0 => ("extra delay of 95 % of updates, 0 to 1", "below GentleRain and Cure, 0 to 1"),
        _ => ("extra delay of 95 % of updates, 1 to 2", "below GentleRain and Cure, 1 to 2"),
    };
    let extra_ms = eunomia.extra_ms(way, SHARE);
    let others: Vec<&Point> = STABILIZING.into_iter().filter_map(of).collect();
    let below = |hundredth: u32| {
        let share = f64::from(hundredth) / 100.0;
        others.iter().all(|other| eunomia.extra_ms(way, share) < other.extra_ms(way, share))
    };
    let shares = (1..100).filter(|hundredth| below(*hundredth)).count();
    vec![
        Bar {
            what,
            measured: format!("{extra_ms:.1} ms"),
            asked: format!("less than {EXTRA_MS_MAX} ms"),
            met: extra_ms < EXTRA_MS_MAX,
        },
        Bar {
            what: orders,
            measured: format!("at {shares} of 99 percentiles"),
            asked: "at all".into(),
            met: shares == 99,
        },
    ]
}

/// Figure 4.8. What Eunomia has does not depend on how often others look, and is a level line.
fn tradeoff(drawing: &mut Drawing<'_>, results: &mut Results) -> anyhow::Result<Vec<Bar>> {
    let length = drawing.length();
    let mut curves: Vec<[Curve; 2]> = Vec::new();
    let mut both = |drawing: &mut Drawing<'_>, setup: Setup| {
        let loaded = measure(drawing, results, "4.8", setup.clone())?;
        let calm = measure(drawing, results, "4.8", calm(setup))?;
        anyhow::Ok([loaded.per_second, calm.extra_ms(0, 0.9)])
    };
    for protocol in STABILIZING {
        let mut points = [Vec::new(), Vec::new()];
        for theta_ms in THETAS_MS {
            let theta = Duration::from_millis(theta_ms.into());
            let measured = both(drawing, Setup { theta, ..usual(protocol, length) })?;
            let at = points.iter_mut().zip(measured);
            at.for_each(|(points, value)| points.push((f64::from(theta_ms), value)));
        }
        curves.push(points.map(|points| Curve { name: protocol.title().into(), points }));
    }
    let measured = both(drawing, usual(Protocol::Eunomia, length))?;
    curves.push(measured.map(|value| {
        let points = THETAS_MS.map(|theta_ms| (f64::from(theta_ms), value)).into();
        Curve { name: Protocol::Eunomia.title().into(), points }
    }));
    let [throughput, delay]: [Vec<Curve>; 2] = {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for [throughput, delay] in curves {
            first.push(throughput);
            second.push(delay);
        }
        [first, second]
    };
    let x = "between two looks at what is stable (ms)";
    let title = "delay, p90, of updates of region 0 in region 1";
    let figure = Figure { name: "4.8-delay", title, x, y: EXTRA, note: "", plot: linear };
    drawing.draw(&figure, &delay)?;
    let (name, title) = ("4.8-throughput", "throughput, 10 % updates");
    let figure = Figure { name, title, x, y: OPERATIONS, note: "", plot: linear };
    drawing.draw(&figure, &throughput)?;
    Ok(Vec::new())
}
