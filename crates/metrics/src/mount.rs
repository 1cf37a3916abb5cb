//! Which values a mount tells. `docs/metrics.md` has the same table.

use crate::table::{self, ENDS, Head, Kind};
use crate::text::Value;
use meridian_transport::Ends;
use std::time::Duration;

/// A kind of what a mount asks of nodes: an update, or a read, and who orders or answers it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `read`, or what updates are called.
    pub what: String,
    /// The groups' names with + between them.
    pub group: String,
    /// So often nobody answered in time, or not as it should be.
    pub failed: u64,
    /// How long all took together.
    pub total: Duration,
    /// So often it took no longer than that, and longer than the one before.
    pub took: Vec<(Duration, u64)>,
}

/// A mount as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// In which region its client is.
    pub region: &'a str,
    /// Where it is.
    pub at: &'a str,
    /// How many looks it has answered from what it keeps.
    pub kept: u64,
    /// Until when its certificates count.
    pub ends: Ends,
    /// What it has asked.
    pub asked: &'a [Asked],
}

/// Values by their labels.
pub type Labelled = Vec<(Vec<String>, Value)>;

/// A kind of value of a mount.
#[derive(Debug)]
pub struct Metric {
    /// What it is.
    pub head: Head,
    /// Its values now.
    pub read: fn(&Told<'_>) -> Labelled,
}

/// Counts are far from 2^53.
#[allow(clippy::cast_precision_loss)]
fn number(count: u64) -> Value {
    Value::Number(count as f64)
}

fn info(told: &Told<'_>) -> Labelled {
    let words = [told.region, told.at, env!("CARGO_PKG_VERSION")];
    vec![(words.map(String::from).to_vec(), Value::Number(1.0))]
}

fn ends(told: &Told<'_>) -> Labelled {
    let one = |(of, until): (&str, f64)| (vec![of.to_string()], Value::Number(until));
    table::ends(told.ends).map(one).collect()
}

fn each(told: &Told<'_>, read: impl Fn(&Asked) -> Value) -> Labelled {
    let one = |asked: &Asked| (vec![asked.what.clone(), asked.group.clone()], read(asked));
    told.asked.iter().map(one).collect()
}

fn times(asked: &Asked) -> Value {
    let mut buckets: Vec<_> =
        asked.took.iter().map(|(end, count)| (end.as_secs_f64(), *count)).collect();
    buckets.push((f64::INFINITY, 0));
    Value::Times { sum: asked.total.as_secs_f64(), buckets }
}

/// All values of a mount.
pub const METRICS: &[Metric] = &[
    Metric {
        head: Head {
            name: "meridian_mount_info",
            kind: Kind::Gauge,
            labels: &["region", "at", "version"],
            help: "1; the labels name the mount",
        },
        read: info,
    },
    Metric { head: ENDS, read: ends },
    Metric {
        head: Head {
            name: "meridian_mount_looks_kept_total",
            kind: Kind::Counter,
            labels: &[],
            help: "Looks at names and attributes that the mount answered from what it keeps",
        },
        read: |told| vec![(Vec::new(), number(told.kept))],
    },
    Metric {
        head: Head {
            name: "meridian_mount_asked_seconds",
            kind: Kind::Histogram,
            labels: &["what", "group"],
            help: "How long updates and reads took that nodes were asked for",
        },
        read: |told| each(told, times),
    },
    Metric {
        head: Head {
            name: "meridian_mount_failed_total",
            kind: Kind::Counter,
            labels: &["what", "group"],
            help: "How many of them failed: nobody answered in time, or not as it should be",
        },
        read: |told| each(told, |asked| number(asked.failed)),
    },
];
