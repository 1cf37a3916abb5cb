//! What processes use: time on processors and context switches, from `/proc`.

use anyhow::Context;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Sub;
use std::path::Path;
use std::time::Duration;

/// Ticks of `/proc/PID/stat` in a second: Linux says 100 to every program.
const TICKS: f64 = 100.0;

/// What some processes have used since they were started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds on a processor, in the kernel or not.
    pub cpu_seconds: f64,
    /// Times that a thread waited, or was made to. Of threads that have ended nothing is known.
    pub switches: u64,
}

impl Cost {
    /// Of all these processes; one that has ended counts nothing.
    pub fn of(pids: impl IntoIterator<Item = u32>) -> Cost {
        let mut sum = Cost::default();
        for pid in pids {
            sum.cpu_seconds += cpu_seconds(pid).unwrap_or_default();
            sum.switches += switches(pid);
        }
        sum
    }

    /// For each of so many operations.
    pub fn per(self, operations: u64) -> CostPerOperation {
        let operations = operations.max(1) as f64;
        CostPerOperation {
            cpu_us: self.cpu_seconds * 1e6 / operations,
            switches: self.switches as f64 / operations,
        }
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, before: Cost) -> Cost {
        Cost {
            cpu_seconds: (self.cpu_seconds - before.cpu_seconds).max(0.0),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

/// What one operation costs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CostPerOperation {
    pub cpu_us: f64,
    pub switches: f64,
}

/// A process and all that it has started, and they again. The first comes first.
pub fn family(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let child = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some((child, parent)) = child.and_then(|child| Some((child, parent(child)?))) {
            children.entry(parent).or_default().push(child);
        }
    }
    let (mut found, mut seen) = (vec![pid], BTreeSet::from([pid]));
    let mut at = 0;
    while let Some(next) = found.get(at) {
        let more = children.get(next).into_iter().flatten().copied();
        let more: Vec<u32> = more.filter(|child| seen.insert(*child)).collect();
        found.extend(more);
        at += 1;
    }
    found
}

/// The fields of `/proc/PID/stat` behind the name, which may hold spaces: the state comes first.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = text.rsplit_once(')')?;
    Some(behind.split_whitespace().map(String::from).collect())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

fn cpu_seconds(pid: u32) -> Option<f64> {
    let fields = stat(pid)?;
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

/// Over all threads that are there: the process's own line counts only its first.
fn switches(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| switches_in(&thread.path().join("status"))).sum()
}

/// What each thread of this process has used, by its number.
#[derive(Clone, Debug, Default)]
pub struct Threads(BTreeMap<String, Duration>);

impl Threads {
    /// As it is now.
    ///
    /// # Errors
    /// If the threads cannot be listed.
    pub fn look() -> anyhow::Result<Threads> {
        let tasks =
            std::fs::read_dir("/proc/self/task").context("cannot list this process's threads")?;
        let time = |thread: &str| {
            // Nanoseconds on a processor are the first of its numbers.
            let numbers =
                std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
            Some(Duration::from_nanos(numbers.split_whitespace().next()?.parse().ok()?))
        };
        let threads = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
        Ok(Threads(threads.filter_map(|thread| Some((thread.clone(), time(&thread)?))).collect()))
    }

    /// What the one that used the most has used since then.
    pub fn busiest_since(&self, before: &Threads) -> Duration {
        let used = self.0.iter().map(|(thread, time)| {
            time.saturating_sub(before.0.get(thread).copied().unwrap_or_default())
        });
        used.max().unwrap_or_default()
    }
}

/// How often the thread that asks has waited, or was made to.
pub fn switches_of_this_thread() -> u64 {
    switches_in(Path::new("/proc/thread-self/status"))
}

fn switches_in(status: &Path) -> u64 {
    let text = std::fs::read_to_string(status).unwrap_or_default();
    let lines = text.lines().filter(|line| line.contains("ctxt_switches:"));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn work_of_a_process_and_its_children_is_counted() {
        let me = std::process::id();
        let before = Cost::of([me]);
        let deadline = Instant::now() + Duration::from_secs(30);
        while (Cost::of([me]) - before).cpu_seconds == 0.0 && Instant::now() < deadline {
            std::hint::spin_loop();
        }
        let used = Cost::of([me]) - before;
        assert!(used.cpu_seconds > 0.0, "{used:?}");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let all = family(me);
        assert_eq!(all[0], me);
        assert!(all.contains(&child.id()), "{all:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!family(me).contains(&child.id()));
    }

    #[test]
    fn the_thread_that_used_the_most_is_found() {
        let of = |threads: &[(&str, u64)]| {
            let time = |(name, ms): &(&str, u64)| (name.to_string(), Duration::from_millis(*ms));
            Threads(threads.iter().map(time).collect())
        };
        let (before, after) = (of(&[("1", 70), ("2", 5)]), of(&[("1", 72), ("2", 9), ("3", 3)]));
        assert_eq!(after.busiest_since(&before), Duration::from_millis(4));
        let mine = Threads::look().unwrap();
        assert!(!mine.0.is_empty() && mine.busiest_since(&mine) == Duration::ZERO);
    }

    #[test]
    fn what_has_ended_costs_nothing() {
        let gone = Cost { cpu_seconds: 2.0, switches: 9 };
        assert_eq!(Cost::default() - gone, Cost::default());
        assert_eq!(gone.per(4).switches, 2.25);
    }
}
