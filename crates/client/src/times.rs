//! How long what a client asks for takes, by what it is and by which groups: the modes in which it
//! is executed.

use crate::client::Client;
use meridian_core::GroupId;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The first bucket is for what takes less, in microseconds, as a power of two.
const FIRST: u32 = 5;
/// So many buckets there are for each power of two, as a power of two.
const STEPS: u32 = 2;
/// So many powers of two: up to two minutes.
const POWERS: u32 = 22;
const LEN: usize = 1 + (POWERS as usize) * (1 << STEPS);

/// How often something was asked, and how long it took: in buckets each of which reaches at most a
/// quarter further than it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    buckets: Vec<u64>,
    /// So often it failed; that counts in the buckets, too.
    pub failed: u64,
    /// How long all took together, in microseconds.
    pub total_us: u64,
}

impl Default for Times {
    fn default() -> Times {
        Times { buckets: vec![0; LEN], failed: 0, total_us: 0 }
    }
}

/// Below what the bucket's times are, in microseconds.
fn end_of(bucket: usize) -> u64 {
    let Some(at) = bucket.checked_sub(1) else { return 1 << FIRST };
    let (power, step) = (at >> STEPS, at as u64 & ((1 << STEPS) - 1));
    ((1 << STEPS) + step + 1) << (power as u32 + FIRST - STEPS)
}

fn bucket_of(us: u64) -> usize {
    let Some(power) = us.checked_ilog2().and_then(|log| log.checked_sub(FIRST)) else { return 0 };
    let step = us >> (power + FIRST - STEPS) & ((1 << STEPS) - 1);
    let at = 1 + (power as usize) * (1 << STEPS) + usize::try_from(step).unwrap_or(0);
    at.min(LEN - 1)
}

impl Times {
    /// Counts one.
    pub fn add(&mut self, took: Duration, failed: bool) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(us)] += 1;
        self.failed += u64::from(failed);
        self.total_us = self.total_us.saturating_add(us);
    }

    /// How often it was asked.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// So long the fastest part of that size took at most, as far as buckets tell; none if there
    /// was none.
    pub fn within(&self, part: f64) -> Option<Duration> {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        #[allow(clippy::cast_sign_loss)]
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut count = 0;
        let reached = |of: &u64| {
            count += of;
            count >= wanted
        };
        Some(Duration::from_micros(end_of(self.buckets.iter().position(reached)?)))
    }

    /// Up to where times went, and how often since the one before: all powers of two. The last is
    /// that of all that took longer, too.
    pub fn powers(&self) -> Vec<(Duration, u64)> {
        let first = (end_of(0), self.buckets[0]);
        let rest = self.buckets[1..].chunks(1 << STEPS).enumerate();
        let power = |(at, of): (usize, &[u64])| (end_of((at + 1) << STEPS), of.iter().sum());
        let all = std::iter::once(first).chain(rest.map(power));
        all.map(|(end, count)| (Duration::from_micros(end), count)).collect()
    }

    /// What was added after it was as `before`.
    pub fn since(&self, before: &Times) -> Times {
        let later = |(now, then): (&u64, &u64)| now.saturating_sub(*then);
        Times {
            buckets: self.buckets.iter().zip(&before.buckets).map(later).collect(),
            failed: self.failed.saturating_sub(before.failed),
            total_us: self.total_us.saturating_sub(before.total_us),
        }
    }
}

/// What was asked of the same groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// `read`, or the update.
    pub what: String,
    /// Who orders or answers it, by name.
    pub groups: Vec<String>,
    /// How long it took.
    pub times: Times,
}

/// What a client keeps of it.
#[derive(Debug, Default)]
pub(crate) struct Record(Mutex<HashMap<(&'static str, Vec<GroupId>), Times>>);

impl Record {
    pub(crate) fn add(&self, what: &'static str, groups: &[GroupId], took: Duration, failed: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((what, groups.to_vec())).or_default().add(took, failed);
    }

    /// All, in a fixed order.
    pub(crate) fn ways(&self, name: impl Fn(GroupId) -> String) -> Vec<Way> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = all.iter().map(|(way, times)| (way.clone(), times.clone())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let way = |((what, groups), times): ((&str, Vec<GroupId>), Times)| Way {
            what: what.into(),
            groups: groups.into_iter().map(&name).collect(),
            times,
        };
        all.into_iter().map(way).collect()
    }
}

impl Client {
    /// How long what it has asked for took, answers from what it keeps aside. What the tree
    /// refuses has not failed.
    pub fn times(&self) -> Vec<Way> {
        let topology = self.topology();
        self.inner.times.ways(|group| topology.group_name(group).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_reach_a_quarter_further() {
        let mut begin = 0;
        for bucket in 0..LEN {
            let end = end_of(bucket);
            assert!(
                end > begin && (bucket == 0 || end * 4 <= begin * 5),
                "{bucket}: {begin} {end}"
            );
            assert_eq!((bucket_of(begin), bucket_of(end - 1)), (bucket, bucket));
            begin = end;
        }
        assert!(begin >= 120_000_000, "{begin}");
        assert_eq!(bucket_of(u64::MAX), LEN - 1);
    }

    #[test]
    fn what_came_since_is_told_apart() {
        let mut times = Times::default();
        assert_eq!(times.within(0.5), None);
        (0..90).for_each(|_| times.add(Duration::from_millis(1), false));
        let before = times.clone();
        (0..10).for_each(|_| times.add(Duration::from_millis(80), true));
        let near = |part: f64, ms: f64| {
            let is = times.within(part).unwrap().as_secs_f64() * 1e3;
            (ms..=ms * 1.25).contains(&is)
        };
        assert!(near(0.5, 1.0) && near(0.9, 1.0) && near(0.91, 80.0) && near(1.0, 80.0));
        let powers = times.powers();
        let told: Vec<_> = powers.iter().filter(|(_, count)| *count > 0).collect();
        let us = Duration::from_micros;
        assert_eq!(told, [&(us(1024), 90), &(us(131_072), 10)]);
        assert!(powers.is_sorted() && powers[0].0 == us(32));
        let since = times.since(&before);
        assert_eq!((since.count(), since.failed, since.total_us), (10, 10, 800_000));
    }
}
