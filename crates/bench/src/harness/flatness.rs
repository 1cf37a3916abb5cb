//! Samples of what replicas take, and whether that stays as it is.

use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How many samples are taken in a run.
pub const SAMPLES: u64 = 40;
/// In runs of fewer operations it is not judged whether memory and disk are flat: what is kept for
/// a replica that is away, and the log until its first checkpoints, have not reached their limits
/// in most of it.
pub const JUDGED_FROM: u64 = 500_000;
/// The greatest value is at most so many times the median: logs and checkpoints are a saw, not a
/// line.
const PEAK_MAX: f64 = 2.0;
/// The trend over the samples adds at most this part of the median.
const GROWTH_MAX: f64 = 0.25;
/// Memory goes up and down; among so many samples that follow each other there is a high one.
const FEW: usize = 3;
/// What is less than this, in bytes, is no growth: the allocator keeps so much for itself.
const SLACK: f64 = (16 << 20) as f64;

/// What one replica took, at most, since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Resident memory of its process, in bytes; 0 while it was down.
    pub memory: u64,
    /// Its files, in bytes.
    pub disk: u64,
    /// What its part of the protocol keeps to order and repeat messages, in bytes.
    pub log: u64,
}

impl Usage {
    /// The greater of both, in each.
    pub fn max(self, other: Usage) -> Usage {
        Usage {
            memory: self.memory.max(other.memory),
            disk: self.disk.max(other.disk),
            log: self.log.max(other.log),
        }
    }
}

/// One sample.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// How many operations were completed.
    pub operations: u64,
    pub seconds: f64,
    /// Since the sample before.
    pub operations_per_second: f64,
    /// Whether a replica was down, or on its way back, at some time since the sample before.
    pub away: bool,
    /// By node.
    pub replicas: Vec<Usage>,
}

/// Whether one quantity stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flatness {
    /// Which replica's, and what.
    pub what: String,
    pub median: f64,
    pub greatest: f64,
    /// What the trend adds from the first value to the last.
    pub growth: f64,
    pub flat: bool,
}

impl Flatness {
    /// Of a replica that was always there: of the last three quarters of its values, as the first
    /// is for filling what has a limit; and of few that follow each other the greatest. With each
    /// goes whether another replica was away: then more is kept.
    pub fn of(what: String, values: &[(f64, bool)]) -> Flatness {
        let last = &highs(&values[values.len() / 4..]);
        let growth = slope(last) * last.len().saturating_sub(1) as f64;
        let last: Vec<f64> = last.iter().map(|(value, _)| *value).collect();
        let (median, greatest) = (median(&last), greatest(&last));
        let flat = greatest <= (PEAK_MAX * median).max(median + SLACK)
            && growth <= (GROWTH_MAX * median).max(SLACK);
        Flatness { what, median, greatest, growth, flat }
    }

    /// Of a replica that was away, while it was there, by what is usual at the others: it has read
    /// a log and taken in a state since.
    pub fn beside(what: String, values: &[f64], usual: f64) -> Flatness {
        let greatest = greatest(values);
        let flat = greatest <= (PEAK_MAX * usual).max(usual + SLACK);
        Flatness { what, median: median(values), greatest, growth: 0.0, flat }
    }
}

/// Judges memory and disk of all replicas; `away` was away.
pub fn judge(names: &[String], away: usize, samples: &[Sample]) -> Vec<Flatness> {
    type Quantity = (&'static str, fn(&Usage) -> u64);
    let quantities: [Quantity; 2] =
        [("memory", |usage| usage.memory), ("disk", |usage| usage.disk)];
    let mut all = Vec::new();
    for (quantity, get) in quantities {
        let values = |node: usize| -> Vec<(f64, bool)> {
            let value = |sample: &Sample| (get(&sample.replicas[node]) as f64, sample.away);
            samples.iter().map(value).collect()
        };
        let what = |node: usize| format!("{} {quantity}", names[node]);
        let others = (0..names.len()).filter(|node| *node != away);
        let others: Vec<Flatness> =
            others.map(|node| Flatness::of(what(node), &values(node))).collect();
        let usual = greatest(&others.iter().map(|other| other.median).collect::<Vec<_>>());
        let there = values(away).into_iter().filter(|(_, away)| !away);
        let there: Vec<f64> = there.map(|(value, _)| value).collect();
        all.push(Flatness::beside(what(away), &there, usual));
        all.extend(others);
    }
    all
}

/// The resident memory of a process, in bytes; `None` if there is none.
pub fn memory_of(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// What the files below `dir` take on disk, in bytes. Those that go meanwhile take nothing.
pub fn disk_of(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_of(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len.is_multiple_of(2) => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
        len => sorted[len / 2],
    }
}

/// The greatest of each few values of one kind that follow each other: whether a short high falls
/// between two samples or not is no trend.
fn highs(values: &[(f64, bool)]) -> Vec<(f64, bool)> {
    let few = (0..values.len()).map(|at| &values[at..values.len().min(at + FEW)]);
    let high = |few: &[(f64, bool)]| {
        let (_, kind) = few[0];
        let same = few.iter().filter(|(_, other)| *other == kind);
        (same.map(|(value, _)| *value).fold(0.0, f64::max), kind)
    };
    few.map(high).collect()
}

/// The median of the slopes between any two values of one kind (Theil and Sen): a few that stand
/// out do not bend it, nor does the step from one kind to the other.
fn slope(values: &[(f64, bool)]) -> f64 {
    let pairs = values.iter().enumerate().flat_map(|(at, (first, kind))| {
        let later = (1..).zip(&values[at + 1..]).filter(move |(_, (_, other))| other == kind);
        later.map(move |(distance, (second, _))| (second - first) / f64::from(distance))
    });
    median(&pairs.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1_048_576.0;

    fn flatness(value: impl Fn(u64) -> f64) -> Flatness {
        let values = (0..SAMPLES).map(|at| (value(at) * MIB, (10..31).contains(&at)));
        Flatness::of("it".into(), &values.collect::<Vec<_>>())
    }

    #[test]
    fn what_fills_up_and_stays_or_goes_up_and_down_is_flat() {
        assert!(flatness(|at| (at * 10).min(80) as f64).flat);
        assert!(flatness(|at| (60 + at * 37 % 50) as f64).flat);
        // More is kept while a replica is away.
        assert!(flatness(|at| if (10..31).contains(&at) { 100.0 } else { 60.0 }).flat);
        // A run, from a quarter of it on: while a replica is away every other sample or so is high.
        let run: [u64; 30] = [
            175, 101, 175, 100, 135, 186, 106, 161, 109, 189, 119, 175, 205, 205, 165, 124, 206,
            125, 201, 204, 126, 62, 62, 63, 61, 64, 65, 65, 63, 62,
        ];
        let value_at = |at: u64| at.checked_sub(10).map_or(30, |at| run[at as usize]);
        assert!(flatness(|at| value_at(at) as f64).flat);
        // One peak, as while a snapshot is made.
        assert!(flatness(|at| if at == 33 { 180.0 } else { 100.0 }).flat);
        assert!(flatness(|_| 0.0).flat);
    }

    #[test]
    fn what_grows_is_not_flat() {
        // A hundred bytes for each of ten million messages, beside what is there anyway.
        assert!(!flatness(|at| 80.0 + at as f64 * 25.0).flat);
        // Five bytes.
        assert!(!flatness(|at| 80.0 + at as f64 * 1.25).flat);
        // The same, though less is kept when the replica is back.
        assert!(!flatness(|at| at as f64 * 1.25 + if at < 31 { 80.0 } else { 60.0 }).flat);
        // The same, of what goes up and down.
        assert!(
            !flatness(|at| at as f64 * 2.5 + if at.is_multiple_of(3) { 140.0 } else { 80.0 }).flat
        );
        // Only while a replica is away.
        assert!(!flatness(|at| 80.0 + at.clamp(10, 30) as f64 * 10.0).flat);
        // At the very end.
        assert!(!flatness(|at| if at < 38 { 80.0 } else { 400.0 }).flat);
    }

    #[test]
    fn a_replica_that_grows_is_named_also_if_it_was_away() {
        let names = ["n0", "n1", "n2"].map(String::from);
        let usage = |mib: u64| Usage { memory: mib << 20, disk: 100 << 20, log: 0 };
        let wrong = |of: fn(u64) -> [u64; 3]| -> Vec<String> {
            let sample = |at| Sample {
                operations: at,
                seconds: 0.0,
                operations_per_second: 0.0,
                away: (10..31).contains(&at),
                replicas: of(at).map(usage).to_vec(),
            };
            let samples: Vec<Sample> = (0..SAMPLES).map(sample).collect();
            let judged = judge(&names, 2, &samples).into_iter();
            judged.filter(|judged| !judged.flat).map(|judged| judged.what).collect()
        };
        // It is down, and reads its log.
        assert!(wrong(|at| [80, 81, if at == 30 { 500 } else { 80 }]).is_empty());
        assert_eq!(wrong(|at| [80, 81, if at == 31 { 500 } else { 80 }]), ["n2 memory"]);
        assert_eq!(wrong(|at| [80, 80 + 10 * at, 80]), ["n1 memory"]);
        assert_eq!(wrong(|at| [80, 80, 80 + 10 * at]), ["n2 memory"]);
    }
}
