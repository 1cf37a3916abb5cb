//! A log that is a list.

use super::{DiskFailure, Found, Known, Log};
use std::collections::VecDeque;

/// A checkpoint and the records after it, of which the first are durable. Records are numbered over
/// all lives.
#[derive(Debug)]
pub(crate) struct List<R> {
    checkpoint: Vec<R>,
    records: VecDeque<R>,
    /// How many were before those in `records`.
    before: u64,
    /// All records up to this number are durable.
    durable: u64,
    /// The checkpoint that was begun stands for the records up to this number.
    begun: u64,
}

impl<R> Default for List<R> {
    fn default() -> Self {
        let (checkpoint, records) = (Vec::new(), VecDeque::new());
        List { checkpoint, records, before: 0, durable: 0, begun: 0 }
    }
}

impl<R: Clone> Log<R> for List<R> {
    fn end(&self) -> u64 {
        self.before + self.records.len() as u64
    }

    fn durable(&self) -> u64 {
        self.durable
    }

    fn append(&mut self, record: R) {
        self.records.push_back(record);
    }

    fn begin_flush(&mut self, _known: Known) -> Result<u64, DiskFailure> {
        Ok(self.end())
    }

    fn end_flush(&mut self, upto: u64) -> Result<(), DiskFailure> {
        self.durable = self.durable.max(upto);
        Ok(())
    }

    fn begin_checkpoint(&mut self) -> Result<(), DiskFailure> {
        self.begun = self.end();
        Ok(())
    }

    fn end_checkpoint(&mut self, records: Vec<R>, _known: Known) -> Result<(), DiskFailure> {
        let stands_for = usize::try_from(self.begun - self.before).expect("fits in memory");
        self.records.drain(..stands_for);
        self.checkpoint = records;
        self.before = self.begun;
        self.end_flush(self.begun)
    }

    fn crash(&mut self, keep: u64, _seed: u64) {
        let stays = self.durable - self.before + keep;
        self.records.truncate(usize::try_from(stays).expect("fits in memory"));
        self.durable = self.end();
    }

    fn open(&mut self) -> Result<Found<R>, DiskFailure> {
        let records = self.checkpoint.iter().chain(&self.records).cloned().collect();
        Ok(Found { records, known: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(log: &mut List<u32>) -> Vec<u32> {
        log.open().unwrap().records
    }

    #[test]
    fn a_crash_loses_what_is_not_durable() {
        let mut log = List::default();
        (0..2).for_each(|record| log.append(record));
        let upto = log.begin_flush(Vec::new()).unwrap();
        (2..5).for_each(|record| log.append(record));
        log.end_flush(upto).unwrap();
        log.crash(1, 0);
        assert_eq!(found(&mut log), [0, 1, 2]);
        log.begin_checkpoint().unwrap();
        log.append(3);
        log.end_checkpoint(vec![100], Vec::new()).unwrap();
        assert_eq!(found(&mut log), [100, 3]);
        log.crash(0, 0);
        assert_eq!(found(&mut log), [100]);
        assert_eq!(log.end(), 3);
    }
}
