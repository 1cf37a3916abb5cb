//! A run of a bench: warming up, the parts that are measured, the end.

use std::time::{Duration, Instant};

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Under load, not measured.
    WarmUp,
    /// Measured: the how manyth of the measured parts, from 0.
    Measured(usize),
    /// Nothing more is begun.
    Ended,
}

/// What is put under load.
pub trait Subject {
    /// A phase begins.
    ///
    /// # Errors
    /// If the subject cannot go on.
    fn enter(&mut self, phase: Phase) -> anyhow::Result<()>;

    /// How many operations are completed so far.
    fn completed(&self) -> u64;
}

/// Lets a subject pass through all phases; `progress` is told, once a second, the seconds since the
/// warm-up and how many operations were completed in the last one. The parts' true lengths.
///
/// # Errors
/// If the subject cannot go on.
pub fn run(
    subject: &mut impl Subject,
    warm_up: Duration,
    parts: &[Duration],
    mut progress: impl FnMut(f64, f64),
) -> anyhow::Result<Vec<Duration>> {
    subject.enter(Phase::WarmUp)?;
    std::thread::sleep(warm_up);
    let begin = Instant::now();
    let (mut shown, mut total) = (0, subject.completed());
    let mut lengths = Vec::new();
    for (number, length) in parts.iter().enumerate() {
        let entered = Instant::now();
        subject.enter(Phase::Measured(number))?;
        while entered.elapsed() < *length {
            let next = begin + Duration::from_secs(shown + 1);
            let until = next.min(entered + *length);
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            if Instant::now() >= next {
                shown += 1;
                let now = subject.completed();
                progress(begin.elapsed().as_secs_f64(), (now - total) as f64);
                total = now;
            }
        }
        lengths.push(entered.elapsed());
    }
    subject.enter(Phase::Ended)?;
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorded(Vec<Phase>);

    impl Subject for Recorded {
        fn enter(&mut self, phase: Phase) -> anyhow::Result<()> {
            self.0.push(phase);
            Ok(())
        }

        fn completed(&self) -> u64 {
            self.0.len() as u64
        }
    }

    #[test]
    fn phases_follow_each_other_and_last_as_long_as_was_asked() {
        let (mut subject, part) = (Recorded::default(), Duration::from_millis(5));
        let lengths = run(&mut subject, Duration::ZERO, &[part, part], |_, _| ()).unwrap();
        assert!(lengths.len() == 2 && lengths.iter().all(|length| *length >= part));
        let all = [Phase::WarmUp, Phase::Measured(0), Phase::Measured(1), Phase::Ended];
        assert_eq!(subject.0, all);
    }
}
