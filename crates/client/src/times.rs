//! How long what a client asks for takes, by what it is and by which groups: the modes in which it
//! is executed.

use crate::client::Client;
use hdrhistogram::Histogram;
use meridian_core::GroupId;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What takes longer counts as that, in microseconds: two minutes.
const MOST_US: u64 = (1 << 27) - 1;
/// How many digits of each time are kept: a few kilobytes for each kind of what is asked.
const DIGITS: u8 = 1;
/// Times up to this power of two, in microseconds, are one for [`Times::powers`].
const FIRST_POWER: u32 = 5;

/// How often something was asked, and how long it took, to a tenth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Told", into = "Told")]
pub struct Times {
    took_us: Histogram<u64>,
    /// So often it failed; that counts among the times, too.
    pub failed: u64,
    /// How long all took together, in microseconds.
    pub total_us: u64,
}

/// As it is written.
#[derive(Serialize, Deserialize)]
struct Told {
    /// Times, each with how often.
    took_us: Vec<(u64, u64)>,
    failed: u64,
    total_us: u64,
}

impl From<Told> for Times {
    fn from(told: Told) -> Times {
        let mut times = Times { failed: told.failed, total_us: told.total_us, ..Times::default() };
        for (us, count) in told.took_us {
            times.took_us.saturating_record_n(us, count);
        }
        times
    }
}

impl From<Times> for Told {
    fn from(times: Times) -> Told {
        let one = |step: hdrhistogram::iterators::IterationValue<u64>| {
            (step.value_iterated_to(), step.count_at_value())
        };
        let took_us = times.took_us.iter_recorded().map(one).collect();
        Told { took_us, failed: times.failed, total_us: times.total_us }
    }
}

impl Default for Times {
    fn default() -> Times {
        let took_us = Histogram::new_with_bounds(1, MOST_US, DIGITS).expect("they are in order");
        Times { took_us, failed: 0, total_us: 0 }
    }
}

impl Times {
    /// Counts one.
    pub fn add(&mut self, took: Duration, failed: bool) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.took_us.saturating_record(us);
        self.failed += u64::from(failed);
        self.total_us = self.total_us.saturating_add(us);
    }

    /// How often it was asked.
    pub fn count(&self) -> u64 {
        self.took_us.len()
    }

    /// So long the fastest part of that size took at most; none if there was none.
    pub fn within(&self, part: f64) -> Option<Duration> {
        let us = self.took_us.value_at_quantile(part);
        (self.count() > 0).then(|| Duration::from_micros(us))
    }

    /// Up to where times went, and how often since the one before: all powers of two. The last is
    /// that of all that took longer, too.
    pub fn powers(&self) -> Vec<(Duration, u64)> {
        let last = MOST_US.count_ones();
        let power = |power: u32| {
            let (begin, end) =
                (if power == FIRST_POWER { 0 } else { 1 << (power - 1) }, 1 << power);
            (Duration::from_micros(end), self.took_us.count_between(begin, end - 1))
        };
        (FIRST_POWER..=last).map(power).collect()
    }

    /// What was added after it was as `before`; all of it if that is not a part of it.
    pub fn since(&self, before: &Times) -> Times {
        let mut since = self.clone();
        if since.took_us.subtract(&before.took_us).is_ok() {
            since.failed = since.failed.saturating_sub(before.failed);
            since.total_us = since.total_us.saturating_sub(before.total_us);
        }
        since
    }
}

/// What was asked of the same groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    fn all_times_are_in_one_power_of_two_and_are_read_as_they_were_written() {
        let mut times = Times::default();
        let all = [0, 1, 31, 32, 33, 63, 64, 1000, 80_000, MOST_US, u64::MAX];
        all.iter().for_each(|us| times.add(Duration::from_micros(*us), false));
        let powers = times.powers();
        assert_eq!(powers.iter().map(|(_, count)| count).sum::<u64>(), all.len() as u64);
        assert_eq!(powers[0], (Duration::from_micros(32), 3));
        assert_eq!(powers[1], (Duration::from_micros(64), 3));
        assert_eq!(powers.last().unwrap().1, 2);
        let read = Times::from(Told::from(times.clone()));
        assert_eq!(read, times);
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
            (ms..=ms * 1.1).contains(&is)
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
