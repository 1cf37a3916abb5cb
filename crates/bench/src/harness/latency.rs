//! How long operations took, summed up.

use hdrhistogram::Histogram;
use meridian_terminal::output;
use serde::Serialize;

/// Longer latencies count as this, in nanoseconds: one hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// The heads of the columns of [`Latency::cells`].
pub const HEADS: [&str; 5] = ["mean", "p50", "p95", "p99", "max"];

/// Latencies of many operations.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// How many operations.
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// Of what was recorded in nanoseconds.
    pub fn of(latency_ns: &Histogram<u64>) -> Latency {
        let us = |quantile| latency_ns.value_at_quantile(quantile) as f64 / 1000.0;
        Latency {
            count: latency_ns.len(),
            mean_us: latency_ns.mean() / 1000.0,
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            max_us: latency_ns.max() as f64 / 1000.0,
        }
    }

    /// The cells of a table's row, below [`HEADS`].
    pub fn cells(&self) -> [String; 5] {
        let all = [self.mean_us, self.p50_us, self.p95_us, self.p99_us, self.max_us];
        all.map(output::micros)
    }
}

/// A histogram of latencies in nanoseconds, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are in order")
}
