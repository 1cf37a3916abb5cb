//! What is stable: the heart of the service (Eunomia, Algorithm 3).
//!
//! The thesis keeps all labels in one red-black tree. Here each source has a queue of its own:
//! labels come almost in order, so one is added in constant time; what becomes stable is the heads
//! of all queues, merged once for a whole moment.
//!
//! Sources may come and go (decision 70): each change has a number. A promise counts only for who
//! knows of all changes that its source knew of, so a source that comes needs to be above one
//! promise of another that knew of it. What a source that goes has left the others know; nothing is
//! stable until they have said it.
//!
//! Invariant: all labels of the region up to [`Stabilizer::stable_time`] are known, or were applied
//! by all other regions before.

use crate::message::{Batch, Label};
use crate::mutation::Mutation;
use crate::timestamp::Timestamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    /// What it promised with a later roster.
    later: Option<(u64, Timestamp)>,
    /// Labels that are not stable, by their timestamps.
    labels: VecDeque<Label>,
}

impl Run {
    /// The source numbers its labels from 0 again. Up to its promise all are known; the others come
    /// again.
    fn begin_anew(&mut self, incarnation: Timestamp) {
        self.before = self.before.max(self.promise);
        (self.incarnation, self.next, self.later) = (incarnation, 0, None);
        let known = self.labels.partition_point(|label| Some(label.ts) <= self.promise);
        self.labels.truncate(known);
    }

    fn promised(&mut self, with: u64, promise: Timestamp, roster: u64) {
        if with <= roster {
            // An older batch that comes late may promise less.
            self.promise = self.promise.max(Some(promise));
        } else {
            self.later = self.later.max(Some((with, promise)));
        }
    }

    /// There is another roster.
    fn follow(&mut self, roster: u64) {
        if let Some((with, promise)) = self.later.take() {
            self.promised(with, promise, roster);
        }
    }
}

/// Labels from all sources of a region, in order as far as they are stable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stabilizer {
    /// Which change of the sources is known.
    roster: u64,
    /// By the numbers of the sources.
    runs: BTreeMap<u16, Run>,
    /// Labels that others knew, and are not stable, by their timestamps.
    taken: VecDeque<Label>,
    /// Whether labels may be missing of those that were sources before.
    awaits_labels: bool,
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
            roster: 0,
            runs: (0..sources).map(|source| (source, Run::default())).collect(),
            taken: VecDeque::new(),
            awaits_labels: false,
            stable_time: Timestamp::ZERO,
            stable: VecDeque::new(),
            merged: Vec::new(),
            mutation,
        }
    }

    /// With a planted bug.
    pub fn with_mutation(self, mutation: Mutation) -> Stabilizer {
        Stabilizer { mutation, ..self }
    }

    /// These are the sources now, unless a later change is known. Nothing more is stable until
    /// [`Stabilizer::take`], as those that have gone may have left something.
    pub fn follow(&mut self, roster: u64, sources: &BTreeSet<u16>) {
        if roster <= self.roster {
            return;
        }
        (self.roster, self.awaits_labels) = (roster, true);
        let gone = self.runs.extract_if(.., |source, _| !sources.contains(source));
        for label in gone.flat_map(|(_, run)| run.labels) {
            insert(&mut self.taken, label);
        }
        for source in sources {
            self.runs.entry(*source).or_default().follow(roster);
        }
    }

    /// Whether it waits for [`Stabilizer::take`].
    pub fn awaits_labels(&self) -> bool {
        self.awaits_labels
    }

    /// All that those have left that were sources before the last change; also what others have
    /// begun changes nothing.
    pub fn take(&mut self, labels: Vec<Label>) {
        for label in labels {
            let run = self.runs.get(&label.ts.source());
            if label.ts <= self.stable_time || run.is_some_and(|run| has(&run.labels, label.ts)) {
                continue;
            }
            insert(&mut self.taken, label);
        }
        self.awaits_labels = false;
    }

    /// ADD_OP and HEARTBEAT (Eunomia, Algorithm 3, lines 1-6). What came before changes nothing.
    ///
    /// # Panics
    /// The source breaks Property 2.
    pub fn add(&mut self, source: u16, batch: Batch) -> Taken {
        let Some(mut run) = self.runs.remove(&source) else { return Taken::All };
        let taken = self.add_to(&mut run, batch);
        self.runs.insert(source, run);
        taken
    }

    fn add_to(&self, run: &mut Run, batch: Batch) -> Taken {
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
            // Of an earlier life of the source: it was taken.
            if label.ts > self.stable_time && !has(&self.taken, label.ts) {
                insert(&mut run.labels, label);
            }
        }
        run.next = run.next.max(end);
        if let Some(promise) = batch.promise {
            let counts = self.mutation.is(Mutation::CountsLaterPromises);
            run.promised(if counts { 0 } else { batch.roster }, promise, self.roster);
        }
        Taken::All
    }

    /// The number of the next label of a source.
    pub fn next_of(&self, source: u16) -> u64 {
        self.runs.get(&source).map_or(0, |run| run.next)
    }

    /// How many sources there are.
    pub fn sources(&self) -> usize {
        self.runs.len()
    }

    /// What a source has promised, if anything.
    pub fn promise_of(&self, source: u16) -> Option<Timestamp> {
        self.runs.get(&source).and_then(|run| run.promise)
    }

    /// The sources that have not promised this much, and what each has promised: while there are
    /// some, a label with this timestamp is not stable.
    pub fn behind(&self, ts: Timestamp) -> BTreeMap<u16, Option<Timestamp>> {
        let behind = self.runs.iter().filter(|(_, run)| run.promise < Some(ts));
        behind.map(|(source, run)| (*source, run.promise)).collect()
    }

    /// Whether the label with this timestamp is kept, stable or not.
    pub fn keeps(&self, ts: Timestamp) -> bool {
        let unstable = self.runs.values().map(|run| &run.labels);
        unstable.chain([&self.taken, &self.stable]).any(|labels| has(labels, ts))
    }

    /// The greatest promise of any source.
    pub fn ahead(&self) -> Timestamp {
        self.runs.values().filter_map(|run| run.promise).max().unwrap_or_default()
    }

    /// The sources for whose promises labels wait, and those that have promised nothing.
    pub fn awaited(&self) -> Vec<u16> {
        let all = self.runs.values().map(|run| &run.labels).chain([&self.taken]);
        let last = all.filter_map(VecDeque::back).map(|label| label.ts).max();
        let awaited = |run: &Run| run.promise < last || run.promise.is_none();
        let runs = self.runs.iter().filter(|(_, run)| awaited(run));
        runs.map(|(source, _)| *source).collect()
    }

    /// Whether a source has promised nothing, of those that were told.
    pub fn lacks_promises(&self) -> bool {
        self.roster > 0 && self.runs.values().any(|run| run.promise.is_none())
    }

    /// All labels up to here are known.
    pub fn stable_time(&self) -> Timestamp {
        self.stable_time
    }

    /// PROCESS_STABLE (Eunomia, Algorithm 3, lines 7-11): puts in order what has become stable.
    /// How many labels have.
    pub fn process_stable(&mut self) -> usize {
        if self.awaits_labels {
            return 0;
        }
        let skips = self.mutation.is(Mutation::SkipsASource) && self.runs.len() > 1;
        let waits = self.runs.values().skip(usize::from(skips));
        let least = waits.map(|run| run.promise).min();
        let Some(stable_time) = least.flatten().filter(|least| *least > self.stable_time) else {
            return 0;
        };
        self.stable_time = stable_time;
        self.merged.clear();
        let all = self.runs.values_mut().map(|run| &mut run.labels).chain([&mut self.taken]);
        for labels in all {
            let stable = labels.partition_point(|label| label.ts <= stable_time);
            self.merged.extend(labels.drain(..stable));
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
        let unstable: usize = self.runs.values().map(|run| run.labels.len()).sum();
        (unstable + self.taken.len(), self.stable.len())
    }
}

/// Whether the label with this timestamp is among them.
fn has(labels: &VecDeque<Label>, ts: Timestamp) -> bool {
    labels.back().is_some_and(|last| ts <= last.ts)
        && labels.binary_search_by_key(&ts, |label| label.ts).is_ok()
}

/// Puts it in its place, which is the last one but for updates that finish out of order; or
/// nowhere, if it is there.
fn insert(labels: &mut VecDeque<Label>, label: Label) {
    if labels.back().is_none_or(|last| last.ts < label.ts) {
        return labels.push_back(label);
    }
    if let Err(place) = labels.binary_search_by_key(&label.ts, |other| other.ts) {
        labels.insert(place, label);
    }
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
        let (roster, incarnation, base) = (0, Timestamp::ZERO, 0);
        let promise = Some(Timestamp(promise));
        Batch { roster, incarnation, base, first, labels, promise, goes_on: true }
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

    fn sources(numbers: &[u16]) -> BTreeSet<u16> {
        numbers.iter().copied().collect()
    }

    /// One that was told of these sources, and that nobody has left anything.
    fn told(roster: u64, numbers: &[u16]) -> Stabilizer {
        let mut stabilizer = Stabilizer::new(0, Mutation::Correct);
        stabilizer.follow(roster, &sources(numbers));
        stabilizer.take(Vec::new());
        stabilizer
    }

    /// Who has not heard of a source must not go on where that one may begin.
    #[test]
    fn a_promise_counts_for_who_knows_of_the_sources_that_its_source_knew_of() {
        let late = |mutation| {
            let mut stabilizer = told(1, &[0]).with_mutation(mutation);
            stabilizer.add(0, batch(0, &[], 9));
            stabilizer.add(0, Batch { roster: 2, ..batch(0, &[], 20) });
            stabilizer.process_stable();
            stabilizer
        };
        assert_eq!(late(Mutation::CountsLaterPromises).stable_time(), Timestamp(20));
        let mut stabilizer = late(Mutation::Correct);
        assert_eq!(stabilizer.stable_time(), Timestamp(9));
        stabilizer.follow(2, &sources(&[0, 1]));
        stabilizer.take(Vec::new());
        assert_eq!(stabilizer.awaited(), [1], "it has promised nothing");
        stabilizer.add(1, Batch { roster: 2, ..batch(0, &[11], 15) });
        assert_eq!((stabilizer.process_stable(), stabilizer.stable_time()), (1, Timestamp(15)));
    }

    /// What it had sent is known, what others know of it comes; then nobody waits for it.
    #[test]
    fn nothing_is_stable_before_all_is_known_that_a_source_has_left() {
        let mut stabilizer = told(1, &[0, 1]);
        stabilizer.add(0, batch(0, &[1024], 9000));
        stabilizer.add(1, batch(0, &[2049], 2500));
        stabilizer.follow(2, &sources(&[0]));
        assert_eq!((stabilizer.process_stable(), stabilizer.awaits_labels()), (0, true));
        stabilizer.take([1024, 2049, 3073].map(label).to_vec());
        assert_eq!((stabilizer.process_stable(), stabilizer.stable_time().0), (3, 9000));
        assert_eq!(all(&stabilizer), [1024, 2049, 3073]);
    }

    #[test]
    fn a_source_that_comes_again_may_send_what_it_had_left() {
        let mut stabilizer = told(1, &[0]);
        stabilizer.follow(2, &sources(&[0, 1]));
        stabilizer.take([2049, 3073].map(label).to_vec());
        stabilizer.add(0, batch(0, &[], 2500));
        stabilizer.add(1, batch(0, &[2049], 2500));
        assert_eq!((stabilizer.process_stable(), all(&stabilizer)), (1, vec![2049]));
        let anew = Batch { incarnation: Timestamp(9), ..batch(0, &[2049, 3073, 5121], 6000) };
        stabilizer.add(1, anew);
        stabilizer.add(0, batch(0, &[], 6000));
        assert_eq!((stabilizer.process_stable(), stabilizer.held()), (2, (0, 3)));
        assert_eq!(all(&stabilizer), [2049, 3073, 5121]);
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
