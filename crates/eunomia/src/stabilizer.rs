//! What is stable: the heart of the service (Eunomia, Algorithm 3).
//!
//! The thesis keeps all labels in one red-black tree. Here each source has a queue of its own:
//! labels come almost in order, so one is added in constant time; what becomes stable is the heads
//! of all queues, merged once for a whole moment.
//!
//! Invariant: all labels of the region up to [`Stabilizer::stable_time`] are known, or were applied
//! by all other regions before.

use crate::message::{Batch, Label};
use crate::mutation::Mutation;
use crate::timestamp::Timestamp;
use std::collections::VecDeque;

/// What is known of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Run {
    /// Which numbers they are.
    incarnation: Timestamp,
    /// What was promised with the numbers before: labels up to there are known.
    before: Option<Timestamp>,
    /// The number of the next label.
    next: u64,
    /// Nothing at or below this will come (Eunomia, `PartitionTime`); `None` before its first
    /// promise.
    promise: Option<Timestamp>,
    /// Labels that are not stable, by their timestamps.
    labels: VecDeque<Label>,
}

impl Run {
    /// The source numbers its labels from 0 again. Up to its promise all are known; the others come
    /// again.
    fn begin_anew(&mut self, incarnation: Timestamp) {
        (self.incarnation, self.before, self.next) = (incarnation, self.promise, 0);
        let known = self.labels.partition_point(|label| Some(label.ts) <= self.promise);
        self.labels.truncate(known);
    }
}

/// Labels from all sources of a region, in order as far as they are stable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stabilizer {
    runs: Vec<Run>,
    stable_time: Timestamp,
    /// Stable labels, in order, until they are dropped.
    stable: VecDeque<Label>,
    /// What becomes stable in a moment: kept for its memory.
    merged: Vec<Label>,
    mutation: Mutation,
}

/// What a replica has of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All that it was sent.
    All,
    /// Something before it is missing.
    Lacks,
}

impl Stabilizer {
    /// For so many sources, of which nothing is known.
    pub fn new(sources: u16, mutation: Mutation) -> Stabilizer {
        Stabilizer {
            runs: vec![Run::default(); usize::from(sources)],
            stable_time: Timestamp::ZERO,
            stable: VecDeque::new(),
            merged: Vec::new(),
            mutation,
        }
    }

    /// ADD_OP and HEARTBEAT (Eunomia, Algorithm 3, lines 1-6). What came before changes nothing.
    ///
    /// # Panics
    /// The source breaks Property 2.
    pub fn add(&mut self, source: u16, batch: Batch) -> Taken {
        let Some(run) = self.runs.get_mut(usize::from(source)) else { return Taken::All };
        if batch.incarnation < run.incarnation {
            return Taken::All; // It was sent before the source has started again.
        }
        if batch.incarnation > run.incarnation {
            run.begin_anew(batch.incarnation);
        }
        // What all regions have is not needed here.
        run.next = run.next.max(batch.base);
        if batch.first > run.next {
            return Taken::Lacks;
        }
        let known = (run.next - batch.first) as usize;
        let end = batch.first + batch.labels.len() as u64;
        for label in batch.labels.into_iter().skip(known) {
            if run.before.is_some_and(|before| label.ts <= before) {
                continue;
            }
            let promised = run.promise.is_some_and(|promise| label.ts <= promise);
            assert!(!promised, "Property 2: {label:?} after {:?}", run.promise);
            insert(&mut run.labels, label);
        }
        run.next = run.next.max(end);
        // An older batch that comes late may promise less.
        run.promise = run.promise.max(batch.promise);
        Taken::All
    }

    /// The number of the next label of a source.
    pub fn next_of(&self, source: u16) -> u64 {
        self.runs.get(usize::from(source)).map_or(0, |run| run.next)
    }

    /// The greatest promise of any source.
    pub fn ahead(&self) -> Timestamp {
        self.runs.iter().filter_map(|run| run.promise).max().unwrap_or_default()
    }

    /// The sources for whose promises labels wait.
    pub fn awaited(&self) -> Vec<u16> {
        let last = self.runs.iter().filter_map(|run| run.labels.back()).map(|label| label.ts).max();
        let Some(last) = last else { return Vec::new() };
        let runs = (0..).zip(&self.runs);
        runs.filter(|(_, run)| run.promise < Some(last)).map(|(source, _)| source).collect()
    }

    /// All labels up to here are known.
    pub fn stable_time(&self) -> Timestamp {
        self.stable_time
    }

    /// PROCESS_STABLE (Eunomia, Algorithm 3, lines 7-11): puts in order what has become stable.
    /// How many labels have.
    pub fn process_stable(&mut self) -> usize {
        let skips = usize::from(self.mutation.is(Mutation::SkipsASource));
        let waits = if self.runs.len() > skips { &self.runs[skips..] } else { &self.runs };
        let least = waits.iter().map(|run| run.promise).min();
        let Some(stable_time) = least.flatten().filter(|least| *least > self.stable_time) else {
            return 0;
        };
        self.stable_time = stable_time;
        self.merged.clear();
        for run in &mut self.runs {
            let stable = run.labels.partition_point(|label| label.ts <= stable_time);
            self.merged.extend(run.labels.drain(..stable));
        }
        // A sort that keeps what is in order already: a merge of one run for each source.
        self.merged.sort_by_key(|label| label.ts);
        self.stable.extend(self.merged.iter().copied());
        self.merged.len()
    }

    /// Stable labels after this point, at most so many.
    pub fn after(&self, point: Timestamp, labels_max: usize) -> impl Iterator<Item = &Label> {
        let first = self.count_upto(point);
        self.stable.range(first..).take(labels_max)
    }

    /// How many of the stable labels that are kept are not after this point.
    pub fn count_upto(&self, point: Timestamp) -> usize {
        self.stable.partition_point(|label| label.ts <= point)
    }

    /// Drops stable labels up to this point.
    pub fn drop_upto(&mut self, point: Timestamp) {
        let dropped = self.count_upto(point);
        self.stable.drain(..dropped);
    }

    /// How many labels are kept: those that are not stable, and those that are.
    pub fn held(&self) -> (usize, usize) {
        (self.runs.iter().map(|run| run.labels.len()).sum(), self.stable.len())
    }
}

/// Puts it in its place, which is the last one but for updates that finish out of order.
fn insert(labels: &mut VecDeque<Label>, label: Label) {
    if labels.back().is_none_or(|last| last.ts < label.ts) {
        return labels.push_back(label);
    }
    let place = labels.partition_point(|other| other.ts < label.ts);
    labels.insert(place, label);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::Vector;

    fn label(ts: u64) -> Label {
        Label { ts: Timestamp(ts), dep: Timestamp::ZERO, place: 0, vector: Vector::default() }
    }

    fn batch(first: u64, stamps: &[u64], promise: u64) -> Batch {
        let labels = stamps.iter().map(|ts| label(*ts)).collect();
        let (incarnation, base) = (Timestamp::ZERO, 0);
        Batch { incarnation, base, first, labels, promise: Some(Timestamp(promise)) }
    }

    fn all(stabilizer: &Stabilizer) -> Vec<u64> {
        stabilizer.after(Timestamp::ZERO, usize::MAX).map(|label| label.ts.0).collect()
    }

    #[test]
    fn nothing_is_stable_before_every_source_has_promised() {
        let mut stabilizer = Stabilizer::new(3, Mutation::Correct);
        stabilizer.add(0, batch(0, &[5, 9], 9));
        stabilizer.add(1, batch(0, &[7], 20));
        assert_eq!(stabilizer.process_stable(), 0);
        stabilizer.add(2, batch(0, &[], 8));
        assert_eq!((stabilizer.process_stable(), stabilizer.stable_time()), (2, Timestamp(8)));
        assert_eq!(all(&stabilizer), [5, 7]);
        stabilizer.add(2, batch(0, &[], 9));
        assert_eq!(stabilizer.process_stable(), 1);
        assert_eq!(all(&stabilizer), [5, 7, 9]);
    }

    #[test]
    fn labels_may_come_out_of_order_above_the_promise() {
        let mut stabilizer = Stabilizer::new(1, Mutation::Correct);
        stabilizer.add(0, batch(0, &[8, 5, 9], 4));
        stabilizer.add(0, batch(3, &[6], 9));
        stabilizer.process_stable();
        assert_eq!(all(&stabilizer), [5, 6, 8, 9]);
    }

    #[test]
    #[should_panic(expected = "Property 2")]
    fn a_broken_promise_is_noticed() {
        let mut stabilizer = Stabilizer::new(1, Mutation::Correct);
        stabilizer.add(0, batch(0, &[], 8));
        stabilizer.add(0, batch(0, &[8], 9));
    }

    #[test]
    fn duplicates_change_nothing_and_gaps_are_refused() {
        let mut stabilizer = Stabilizer::new(1, Mutation::Correct);
        stabilizer.add(0, batch(0, &[5, 7], 7));
        stabilizer.process_stable();
        let before = stabilizer.clone();
        assert_eq!(stabilizer.add(0, batch(0, &[5, 7], 7)), Taken::All);
        assert_eq!(stabilizer.add(0, batch(3, &[11], 11)), Taken::Lacks);
        stabilizer.process_stable();
        assert_eq!(stabilizer, before);
        assert_eq!(stabilizer.add(0, batch(1, &[7, 9], 9)), Taken::All);
        stabilizer.process_stable();
        assert_eq!(all(&stabilizer), [5, 7, 9]);
    }

    /// A replica that starts anew begins with what some region may lack.
    #[test]
    fn a_new_replica_begins_at_the_base() {
        let mut stabilizer = Stabilizer::new(1, Mutation::Correct);
        let batch = Batch { base: 40, ..batch(40, &[90], 90) };
        assert_eq!(stabilizer.add(0, batch), Taken::All);
        assert_eq!((stabilizer.next_of(0), stabilizer.process_stable()), (41, 1));
    }

    #[test]
    fn a_source_that_starts_again_may_number_its_labels_anew() {
        let mut stabilizer = Stabilizer::new(1, Mutation::Correct);
        stabilizer.add(0, batch(0, &[5, 9, 7], 6));
        stabilizer.process_stable();
        let anew = |first, stamps: &[u64], promise| Batch {
            incarnation: Timestamp(8),
            ..batch(first, stamps, promise)
        };
        assert_eq!(stabilizer.add(0, anew(1, &[9], 8)), Taken::Lacks);
        assert_eq!(stabilizer.add(0, anew(0, &[5, 7, 9], 20)), Taken::All);
        assert_eq!(stabilizer.add(0, batch(3, &[6], 30)), Taken::All, "a late word");
        assert_eq!((stabilizer.process_stable(), all(&stabilizer)), (2, vec![5, 7, 9]));
    }

    #[test]
    fn what_is_dropped_is_what_is_not_after() {
        let mut stabilizer = Stabilizer::new(1, Mutation::Correct);
        stabilizer.add(0, batch(0, &[5, 7, 9], 9));
        stabilizer.process_stable();
        stabilizer.drop_upto(Timestamp(7));
        assert_eq!((all(&stabilizer), stabilizer.held()), (vec![9], (0, 1)));
    }
}
