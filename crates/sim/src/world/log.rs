//! Where the records of a process are kept: in a list, or in the log of servers on a simulated
//! disk.

mod list;
mod on_disk;

use meridian_core::standing::{Standing, Start};
use meridian_storage::SimDisk;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is known of other slots.
pub(crate) type Known = Vec<(usize, Standing)>;

/// Why a log, or what else is on a disk, does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskFailure {
    /// The disk refuses: the process stops, and may start again.
    Disk(String),
    /// What lies on the disk is damaged: the process must not start.
    Damaged(String),
}

/// What is found at a start.
pub(crate) struct Found<R> {
    pub records: Vec<R>,
    pub known: Known,
}

/// Keeps records, which are numbered from 1 in each life.
pub(crate) trait Log<R> {
    /// The number of the last record.
    fn end(&self) -> u64;

    /// All records up to this number are durable.
    fn durable(&self) -> u64;

    fn append(&mut self, record: R);

    /// Begins to flush all that was appended, and what is known; up to which record that is.
    fn begin_flush(&mut self, known: Known) -> Result<u64, DiskFailure>;

    /// The flush up to that record ends.
    fn end_flush(&mut self, upto: u64) -> Result<(), DiskFailure>;

    /// A checkpoint is to stand for all that was appended until now.
    fn begin_checkpoint(&mut self) -> Result<(), DiskFailure>;

    /// The checkpoint that was begun is these records.
    fn end_checkpoint(&mut self, records: Vec<R>, known: Known) -> Result<(), DiskFailure>;

    /// Loses what is not durable, but perhaps a part: a list the records after the first `keep`, a
    /// disk what it draws from the seed.
    fn crash(&mut self, keep: u64, seed: u64);

    /// Reads what is there after a crash, or at first.
    fn open(&mut self) -> Result<Found<R>, DiskFailure>;

    /// How far it goes, if a server could tell by it what it lost.
    fn standing(&self) -> Option<Standing> {
        None
    }

    /// All starts that it tells of, this one last.
    fn starts(&self) -> &[Start] {
        &[]
    }

    /// The disk that it is on, if it is on one.
    fn disk(&self) -> Option<&SimDisk> {
        None
    }

    /// The disk is replaced by this one while the process is down.
    fn replace_disk(&mut self, _disk: SimDisk) {}
}

/// Makes the log of a slot, given a seed.
type Make<R> = Box<dyn Fn(u64) -> Box<dyn Log<R>>>;

/// Where the records of all processes are kept.
pub struct Logs<R>(Make<R>);

impl<R: Clone + 'static> Logs<R> {
    /// In lists, of which a crash takes an end: quick, and enough for those who test a protocol.
    pub fn lists() -> Self {
        Logs(Box::new(|_| Box::new(list::List::default())))
    }
}

impl<R: Serialize + DeserializeOwned + 'static> Logs<R> {
    /// In the write-ahead log of servers, each on a simulated disk.
    pub fn on_disks() -> Self {
        Logs(Box::new(|seed| Box::new(on_disk::OnDisk::new(seed))))
    }
}

impl<R> Logs<R> {
    pub(crate) fn make(&self, seed: u64) -> Box<dyn Log<R>> {
        self.0(seed)
    }
}
