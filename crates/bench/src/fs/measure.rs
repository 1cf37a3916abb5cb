//! One operation by many threads: how long it took, and what it cost.

use super::history::History;
use super::workload::{Op, Outcome, Worker};
use crate::harness::cost::{Cost, CostPerOperation};
use crate::harness::demo::Watched;
use crate::harness::latency::{HEADS, Latency};
use meridian_terminal::note;
use meridian_terminal::output::{self, Row};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What is measured, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub op: Op,
    pub threads: u64,
    pub length: Duration,
    /// Read past the kernel's cache.
    pub direct: bool,
}

/// The figures of one operation.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub op: Op,
    pub threads: u64,
    pub seconds: f64,
    pub errors: u64,
    pub ops_per_second: f64,
    #[serde(flatten)]
    pub latency: Latency,
    /// Of the processes that were watched and of the bench; `None` if none was.
    pub cost: Option<Costs>,
    pub first_error: Option<String>,
}

/// What one operation cost which processes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Costs {
    pub mount: CostPerOperation,
    pub servers: CostPerOperation,
    pub bench: CostPerOperation,
    pub all: CostPerOperation,
}

impl Costs {
    fn between(before: [Cost; 3], after: [Cost; 3], operations: u64) -> Costs {
        let [mount, servers, bench] = [0, 1, 2].map(|at| (after[at] - before[at]).per(operations));
        let sum = |of: fn(&CostPerOperation) -> f64| of(&mount) + of(&servers) + of(&bench);
        let all = CostPerOperation { cpu_us: sum(|c| c.cpu_us), switches: sum(|c| c.switches) };
        Costs { mount, servers, bench, all }
    }
}

/// Lets all threads do the operation in folders below `dir`, which are removed.
///
/// # Errors
/// If the folders cannot be made.
pub fn measure(
    load: Load,
    dir: &Path,
    history: Option<&Arc<History>>,
    watched: &Watched,
    stop: &AtomicBool,
) -> anyhow::Result<Figures> {
    let Load { op, threads, length, direct } = load;
    let mut workers = Vec::new();
    for thread in 0..threads {
        workers.push(Worker::prepare(op, direct, dir, thread, history.cloned())?);
    }
    let before = watched.costs();
    let begin = Instant::now();
    let outcomes: Vec<(Outcome, Worker)> = std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .into_iter()
            .map(|mut worker| scope.spawn(|| (worker.work(begin + length, stop), worker)))
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let mut after = watched.costs();
    let mut total = Outcome::new();
    std::thread::scope(|scope| {
        for (outcome, worker) in outcomes {
            total.merge(&outcome);
            scope.spawn(move || worker.clean_up());
        }
    });
    after[2].switches += total.switches; // The threads have ended.
    let latency = Latency::of(&total.latency_ns);
    Ok(Figures {
        op,
        threads,
        seconds,
        errors: total.errors,
        ops_per_second: latency.count as f64 / seconds,
        latency,
        cost: (!watched.is_empty()).then(|| Costs::between(before, after, latency.count)),
        first_error: total.first_error,
    })
}

/// Prints tables of latencies and of costs.
///
/// # Errors
/// If standard output cannot be written.
pub fn print(all: &[Figures]) -> anyhow::Result<()> {
    let mut head = vec!["operation", "threads", "ops", "ops/s"];
    head.extend(HEADS.iter().chain(&["errors"]));
    let rows = all.iter().map(|f| -> Row {
        let mut row = vec![f.op.title().into(), f.threads.to_string()];
        row.extend([f.latency.count.to_string(), format!("{:.0}", f.ops_per_second)]);
        row.extend(f.latency.cells());
        row.push(f.errors.to_string());
        row
    });
    output::print(&output::table(&head, rows))?;
    let costs = all.iter().filter_map(|f| Some((f, f.cost?)));
    let rows = costs.map(|(f, Costs { mount, servers, bench, all })| -> Row {
        let mut row = vec![f.op.title().into(), f.threads.to_string()];
        row.extend([all, servers, mount, bench].map(|cost| output::micros(cost.cpu_us)));
        row.push(format!("{:.1}", all.switches));
        row
    });
    let rows: Vec<Row> = rows.collect();
    if !rows.is_empty() {
        let head =
            ["CPU for each", "threads", "all", "servers", "mount", "bench", "context switches"];
        output::print(&format!("\n{}", output::table(&head, rows)))?;
    }
    for f in all {
        if let Some(error) = &f.first_error {
            note!("{}: {} errors, the first: {error}", f.op.title(), f.errors);
        }
    }
    Ok(())
}
