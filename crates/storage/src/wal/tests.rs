use super::*;
use crate::RealDisk;
use crate::SimDisk;
use crate::disk::read_all;
use std::cell::Cell;
use std::sync::mpsc::{Receiver, channel};

const DIR: &str = "/node/wal";
/// Of a size that some records together fill.
const SEGMENT: u64 = 2048;

struct Log {
    wal: Wal,
    found: Recovered,
    reports: Receiver<Report>,
    durable: Cell<u64>,
    checkpointed: Cell<bool>,
}

fn open_with(disk: Arc<dyn Disk>, dir: &Path, segment_bytes: u64) -> Result<Log, WalError> {
    let (sender, reports) = channel();
    let options = Options { segment_bytes, salt: 0x0f0f_1234 };
    let report = move |report| sender.send(report).unwrap_or_default();
    let (found, wal) = Wal::open(disk, dir, options, report)?;
    Ok(Log { wal, found, reports, durable: Cell::new(0), checkpointed: Cell::new(false) })
}

fn open(disk: &SimDisk) -> Result<Log, WalError> {
    open_with(Arc::new(disk.clone()), Path::new(DIR), SEGMENT)
}

impl Log {
    /// All records, those of the checkpoint first.
    fn all(&self) -> Vec<Bytes> {
        [&self.found.checkpoint[..], &self.found.records].concat()
    }

    /// Takes reports until one fits; false if the log or a checkpoint fails before.
    fn wait_until(&self, fits: impl Fn(u64, bool) -> bool) -> bool {
        while !fits(self.durable.get(), self.checkpointed.get()) {
            match self.reports.recv().unwrap() {
                Report::Durable { upto, .. } => self.durable.set(upto),
                Report::Checkpointed => self.checkpointed.set(true),
                Report::Failed(_) | Report::CheckpointFailed(_) => return false,
            }
        }
        true
    }

    fn wait(&self, number: u64) -> bool {
        self.wait_until(|durable, _| durable >= number)
    }

    fn wait_for_checkpoint(&self) -> bool {
        self.wait_until(|_, checkpointed| checkpointed)
    }

    fn write(&self, records: &[Bytes]) -> bool {
        let numbers = records.iter().map(|record| self.wal.append(record.clone(), true));
        let last = numbers.last().unwrap();
        self.wait(last)
    }
}

/// Records of 8 to some hundred bytes, all different.
fn record(number: usize) -> Bytes {
    let mut record = (number as u64).to_le_bytes().to_vec();
    record.resize(8 + number * 37 % 700, number as u8);
    record.into()
}

/// One life of a node: opens the log and checks what is there, writes some flushes, a checkpoint
/// between. `all` is what was ever appended, `durable` how much of it is known to be durable.
fn live(disk: &SimDisk, all: &mut Vec<Bytes>, durable: &mut usize) -> Option<()> {
    let log = match open(disk) {
        Ok(log) => log,
        Err(_) if disk.is_off() => return None,
        Err(error) => panic!("{error}"),
    };
    let found = log.all();
    assert!(found.len() >= *durable, "{} records of {durable} are left", found.len());
    assert_eq!(found, all[..found.len()], "other records than were written");
    all.truncate(found.len());
    let base = all.len();
    *durable = base;
    for flush in 0..6 {
        let records = 1 + flush * 2 % 5; // So many that some flushes lie in two segments.
        for part in 1..=records {
            all.push(record(all.len()));
            let number = log.wal.append(all[all.len() - 1].clone(), part == records);
            assert_eq!(number as usize, all.len() - base);
        }
        let written = all.len();
        if flush == 3 {
            log.wal.checkpoint(Box::new(all.clone().into_iter()));
        }
        if !log.wait((written - base) as u64) {
            return None;
        }
        *durable = written;
        if flush == 4 && !log.wait_for_checkpoint() {
            return None;
        }
    }
    drop(log);
    (!disk.is_off()).then_some(())
}

/// Nothing acknowledged is lost when un-synced writes are lost, kept in part, torn or reordered.
#[test]
fn after_a_crash_at_any_operation_everything_durable_is_there() {
    for seed in 0..4 {
        let mut cut = 0;
        loop {
            cut += 1;
            let (disk, mut all, mut durable) = (SimDisk::new(), Vec::new(), 0);
            disk.cut_power_at(cut);
            let ended = live(&disk, &mut all, &mut durable);
            for again in 0..3 {
                disk.restart(seed * 1_000 + cut * 10 + again);
                // The second life is hurt, too, while it repairs what the first left.
                if again == 0 {
                    disk.cut_power_at(disk.operations() + 1 + (cut * 7 + seed) % 60);
                }
                let lived = live(&disk, &mut all, &mut durable);
                assert!(again == 0 || lived.is_some());
            }
            if ended.is_some() {
                assert!(cut > 40, "only {cut} operations");
                break;
            }
        }
    }
}

#[test]
fn a_note_is_written_with_the_next_wanted_record_or_at_the_end() {
    let disk = SimDisk::new();
    let log = open(&disk).unwrap();
    log.wal.append(record(0), false);
    assert_eq!(log.wal.queued_bytes(), record(0).len() + HEADER_LEN);
    assert_eq!(log.wal.append(record(1), true), 2);
    assert!(log.wait(2));
    assert_eq!(log.wal.queued_bytes(), 0);
    log.wal.append(record(2), false);
    assert_eq!(log.wal.sync(), 3);
    assert!(log.wait(3));
    log.wal.append(record(3), false);
    drop(log);
    assert_eq!(open(&disk).unwrap().all(), (0..4).map(record).collect::<Vec<_>>());
}

/// The newest segment that has records, and the offset of each.
fn newest(disk: &SimDisk) -> (PathBuf, Vec<usize>) {
    let names = disk.list(Path::new(DIR)).unwrap();
    let mut found = (PathBuf::new(), Vec::new());
    for name in names.iter().filter(|name| name.starts_with("wal-")) {
        let path = Path::new(DIR).join(name);
        let index = u64::from_str_radix(&name[4..], 16).unwrap();
        let bytes = Bytes::from(read_all(&*disk.open(&path).unwrap()).unwrap());
        let Some(start) = (1..100).find_map(|number| {
            let reader = || crate::record::Reader::new(bytes.clone(), 0x0f0f_1234 + index, number);
            reader().next().map(|_| reader())
        }) else {
            continue;
        };
        found = (path, start.map(|record| record.offset).collect());
    }
    found
}

/// A log of three flushes of one record, whose process is killed.
fn killed() -> SimDisk {
    let disk = SimDisk::new();
    let log = open(&disk).unwrap();
    for number in 0..3 {
        assert!(log.write(&[record(number)]));
    }
    disk.cut_power();
    drop(log);
    disk.restart(1);
    disk
}

#[test]
fn a_torn_tail_is_cut_and_said() {
    let disk = killed();
    let (path, offsets) = newest(&disk);
    assert_eq!(offsets.len(), 4);
    disk.flip(&path, offsets[3] as u64 + 41, 3);
    let log = open(&disk).unwrap();
    assert_eq!(log.found.torn, Some((path, offsets[3] as u64)));
    assert_eq!(log.all(), [record(0), record(1)]);
    assert!(log.write(&[record(7)]));
    drop(log);
    disk.restart(2);
    let log = open(&disk).unwrap();
    assert_eq!(log.found.torn, None);
    assert_eq!(log.all(), [record(0), record(1), record(7)]);
}

#[test]
fn corruption_in_the_middle_is_refused_with_its_place() {
    let disk = killed();
    let (path, offsets) = newest(&disk);
    for at in [0, 10, 39, 40] {
        disk.flip(&path, offsets[2] as u64 + at, 3);
        let refused = open(&disk).err().unwrap();
        let expected = format!(
            "{} is corrupt at byte {}: record 3 of the log should be there",
            path.display(),
            offsets[2]
        );
        assert_eq!(refused.to_string(), expected);
        disk.flip(&path, offsets[2] as u64 + at, 3);
    }
    assert_eq!(open(&disk).unwrap().all().len(), 3);
}

#[test]
fn after_a_clean_end_damage_to_the_last_record_is_noticed_too() {
    let disk = killed();
    let (path, offsets) = newest(&disk);
    drop(open(&disk).unwrap());
    disk.flip(&path, offsets[3] as u64 + 41, 3);
    assert!(matches!(open(&disk), Err(WalError::Corrupt { .. })));
}

#[test]
fn a_segment_that_is_missing_is_noticed() {
    let disk = SimDisk::new();
    let log = open(&disk).unwrap();
    for number in 0..60 {
        assert!(log.write(&[record(number)]));
    }
    drop(log);
    let names = disk.list(Path::new(DIR)).unwrap();
    let segments: Vec<_> = names.iter().filter(|name| name.starts_with("wal-")).collect();
    assert!(segments.len() > 4);
    disk.remove(&Path::new(DIR).join(segments[2])).unwrap();
    let refused = open(&disk).err().unwrap();
    assert!(
        matches!(&refused, WalError::Corrupt { path, .. } if path.ends_with(segments[1])),
        "{refused}"
    );
}

#[test]
fn a_checkpoint_replaces_what_is_older_and_must_be_whole() {
    let disk = SimDisk::new();
    let log = open(&disk).unwrap();
    for number in 0..30 {
        assert!(log.write(&[record(number)]));
    }
    let before = log.wal.bytes_since_checkpoint();
    assert!(before > 30 * 48);
    log.wal.append(record(30), false);
    assert!(log.wal.checkpoint(Box::new([record(100), record(101)].into_iter())));
    assert!(log.wait_for_checkpoint());
    assert!(log.wal.bytes_since_checkpoint() < 100);
    let checkpoint_bytes = log.wal.checkpoint_bytes();
    assert!(log.write(&[record(31)]));
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!(log.wal.checkpoint_bytes(), checkpoint_bytes);
    assert_eq!(log.found.checkpoint, [record(100), record(101)]);
    assert_eq!(log.found.records, [record(31)]);
    drop(log);
    let names = disk.list(Path::new(DIR)).unwrap();
    let checkpoint = names.iter().find(|name| name.starts_with("checkpoint-")).unwrap();
    let path = Path::new(DIR).join(checkpoint);
    let len = disk.open(&path).unwrap().len().unwrap();
    assert_eq!(len, checkpoint_bytes);
    for offset in [0, 45, len - 1] {
        disk.flip(&path, offset, 0);
        assert!(matches!(open(&disk), Err(WalError::CorruptCheckpoint { .. })));
        disk.flip(&path, offset, 0);
    }
    disk.open(&path).unwrap().truncate(len - 56).unwrap(); // The last record: how many there are.
    assert!(matches!(open(&disk), Err(WalError::CorruptCheckpoint { .. })));
}

/// After a sync that failed the page cache may hold what the disk never got.
#[test]
fn a_failed_sync_closes_the_log_and_is_not_believed_later() {
    let disk = SimDisk::new();
    let log = open(&disk).unwrap();
    assert!(log.write(&[record(0)]));
    disk.fail_sync_of(&newest(&disk).0); // Meanwhile a thread makes the next segment.
    log.wal.append(record(1), true);
    assert!(matches!(log.reports.recv().unwrap(), Report::Failed(WalError::Io { .. })));
    log.wal.append(record(2), true);
    assert!(!log.wal.checkpoint(Box::new(std::iter::empty())));
    let Log { wal, reports, .. } = log;
    drop(wal);
    assert!(reports.recv().is_err(), "a report after the last");
    let log = open(&disk).unwrap();
    assert_eq!(log.all(), [record(0), record(1)]);
    disk.cut_power();
    drop(log);
    disk.restart(1);
    assert_eq!(open(&disk).unwrap().all(), [record(0), record(1)], "lost after it was read");
}

/// A log whose disk is taken to be fast, with the number of its records.
fn fast(disk: &SimDisk) -> (Log, usize) {
    let log = open(disk).unwrap();
    assert!(log.write(&[record(0)]));
    log.wal.shared.flusher().assume_fast();
    (log, 1)
}

#[test]
fn a_fast_disk_is_flushed_on_the_thread_of_the_owner() {
    let disk = SimDisk::new();
    let (log, count) = fast(&disk);
    let number = log.wal.append(record(count), false);
    log.wal.flush();
    assert!(matches!(log.reports.try_recv(), Ok(Report::Durable { upto, .. }) if upto == number));
    disk.cut_power();
    drop(log);
    disk.restart(7);
    assert_eq!(open(&disk).unwrap().all(), (0..=count).map(record).collect::<Vec<_>>());
}

#[test]
fn a_sync_that_fails_on_the_thread_of_the_owner_closes_the_log() {
    let disk = SimDisk::new();
    let (log, count) = fast(&disk);
    disk.fail_sync_of(&newest(&disk).0); // Meanwhile a thread makes the next segment.
    log.wal.append(record(count), false);
    log.wal.flush();
    assert!(matches!(log.reports.try_recv(), Ok(Report::Failed(WalError::Io { .. }))));
    log.wal.append(record(count + 1), false);
    log.wal.flush();
    let Log { wal, reports, .. } = log;
    drop(wal);
    assert!(reports.recv().is_err(), "a report after the last");
    assert!(!open(&disk).unwrap().all().contains(&record(count + 1)), "W4");
}

#[test]
fn a_log_waits_while_the_disk_is_full_and_goes_on_when_it_is_not() {
    let disk = SimDisk::new();
    let log = open(&disk).unwrap();
    disk.set_capacity(Some(6 * SEGMENT));
    let all: Vec<_> = (0..400).map(record).collect();
    let mut last = 0;
    for record in &all {
        last = log.wal.append(record.clone(), true);
    }
    let tries = disk.refused() + 3;
    while disk.refused() < tries {
        std::thread::yield_now();
    }
    let durable = |report: Report| match report {
        Report::Durable { upto, .. } => upto,
        other => panic!("{other:?}"),
    };
    assert!(log.reports.try_iter().map(durable).max().unwrap_or(0) < last);
    disk.set_capacity(None);
    assert!(log.reports.iter().map(durable).any(|upto| upto == last));
    disk.set_capacity(Some(0));
    log.wal.append(record(1000), true);
    drop(log); // It does not wait for room then.
    disk.restart(3);
    disk.set_capacity(None);
    assert_eq!(open(&disk).unwrap().all()[..all.len()], all);
}

#[test]
fn a_record_longer_than_a_segment_has_one_of_its_own() {
    let disk = SimDisk::new();
    let long = Bytes::from(vec![3; 3 * SEGMENT as usize]);
    let log = open(&disk).unwrap();
    assert!(log.write(&[record(0), long.clone(), record(1)]));
    disk.cut_power();
    drop(log);
    disk.restart(0);
    assert_eq!(open(&disk).unwrap().all(), [record(0), long, record(1)]);
}

#[test]
fn on_the_real_disk_it_is_opened_again_and_again() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("wal");
    let open = || open_with(Arc::new(RealDisk), &dir, 1 << 16).unwrap();
    let mut written = 0;
    for round in 0..5 {
        let log = open();
        assert_eq!(log.all(), (0..written).map(record).collect::<Vec<_>>());
        assert_eq!(log.found.torn, None);
        for _ in 0..10 {
            let records: Vec<_> = (written..written + 40).map(record).collect();
            assert!(log.write(&records));
            written += 40;
        }
        if round == 2 {
            assert!(log.wal.checkpoint(Box::new((0..written).map(record))));
            assert!(log.wait_for_checkpoint());
        }
    }
    let log = open();
    assert_eq!(log.found.checkpoint.len(), 1200);
    assert_eq!(log.all().len(), written);
}
