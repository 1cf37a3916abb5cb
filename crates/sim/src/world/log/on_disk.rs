//! The write-ahead log of servers on a simulated disk.

use super::{DiskFailure, Found, Known, Log};
use bytes::Bytes;
use meridian_core::mix;
use meridian_core::standing::{Standing, Start};
use meridian_storage::wal::{self, Checkpoint, Options, WalError};
use meridian_storage::{Disk, SimDisk, disk};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "/node/wal";
/// Counts the starts, as it does in the directory of a server.
const INCARNATION: &str = "/node/incarnation";
/// Short, so that most runs go on from segment to segment.
const SEGMENT_BYTES: u64 = 16 << 10;

/// What lies in the log.
#[derive(Serialize, Deserialize)]
enum Written<R> {
    Process(R),
    Known(Known),
    /// All starts until then.
    Starts(Vec<Start>),
}

/// See the module's documentation.
pub(crate) struct OnDisk {
    disk: SimDisk,
    seed: u64,
    log: Option<wal::Log>,
    standing: Standing,
    starts: Vec<Start>,
    /// How often it was opened.
    opened: u64,
    /// What was appended and not written.
    queue: Vec<Bytes>,
    appended: u64,
    durable: u64,
    begun: Option<Checkpoint>,
}

impl OnDisk {
    pub fn new(seed: u64) -> Self {
        OnDisk {
            disk: SimDisk::new(),
            seed,
            log: None,
            standing: Standing::default(),
            starts: Vec::new(),
            opened: 0,
            queue: Vec::new(),
            appended: 0,
            durable: 0,
            begun: None,
        }
    }

    fn log(&mut self) -> &mut wal::Log {
        self.log.as_mut().expect("it is open")
    }

    fn write(&mut self) -> Result<(), DiskFailure> {
        let queue = std::mem::take(&mut self.queue);
        let log = self.log();
        let written = queue.iter().try_for_each(|record| log.append(record));
        written.and_then(|()| log.write()).map_err(failed)
    }

    /// Counts the start, durably.
    fn next_incarnation(&self) -> io::Result<u64> {
        let path = Path::new(INCARNATION);
        let last = match self.disk.open(path) {
            Ok(file) => {
                let bytes = disk::read_all(&*file)?;
                u64::from_le_bytes(bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        disk::write_whole(&self.disk, path, &(last + 1).to_le_bytes())?;
        Ok(last + 1)
    }
}

impl<R: Serialize + DeserializeOwned> Log<R> for OnDisk {
    fn end(&self) -> u64 {
        self.appended
    }

    fn durable(&self) -> u64 {
        self.durable
    }

    fn append(&mut self, record: R) {
        self.appended += 1;
        self.queue.push(encode(&Written::Process(record)));
    }

    fn begin_flush(&mut self, known: Known) -> Result<u64, DiskFailure> {
        if !known.is_empty() {
            self.queue.push(encode(&Written::<R>::Known(known)));
        }
        self.write()?;
        Ok(self.appended)
    }

    fn end_flush(&mut self, upto: u64) -> Result<(), DiskFailure> {
        self.log().sync().map_err(failed)?;
        self.durable = self.durable.max(upto);
        Ok(())
    }

    fn begin_checkpoint(&mut self) -> Result<(), DiskFailure> {
        self.write()?;
        self.begun = Some(self.log().begin_checkpoint().map_err(failed)?);
        self.durable = self.appended;
        Ok(())
    }

    fn end_checkpoint(&mut self, records: Vec<R>, known: Known) -> Result<(), DiskFailure> {
        let checkpoint = self.begun.take().expect("it was begun");
        let records = records.into_iter().map(Written::Process);
        let starts = Written::Starts(self.starts.clone());
        let all = records.chain([Written::Known(known), starts]);
        checkpoint.write(all.map(|record| encode(&record))).map_err(failed)
    }

    fn crash(&mut self, _keep: u64, seed: u64) {
        (self.log, self.begun) = (None, None);
        self.queue.clear();
        (self.appended, self.durable) = (0, 0);
        self.disk.restart(seed);
    }

    fn open(&mut self) -> Result<Found<R>, DiskFailure> {
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => DiskFailure::Damaged("no count of starts".into()),
            _ => DiskFailure::Disk(error.to_string()),
        };
        let incarnation = self.next_incarnation().map_err(refused)?;
        let options = Options { segment_bytes: SEGMENT_BYTES, salt: mix(self.seed) };
        let disk = Arc::new(self.disk.clone());
        let (found, log) = wal::Log::open(disk, Path::new(DIR), options).map_err(failed)?;
        let (mut records, mut known, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for bytes in found.checkpoint.iter().chain(&found.records) {
            match postcard::from_bytes(bytes) {
                Ok(Written::Process(record)) => records.push(record),
                Ok(Written::Known(some)) => known.extend(some),
                Ok(Written::Starts(written)) => starts = written,
                Err(error) => return Err(DiskFailure::Damaged(error.to_string())),
            }
        }
        self.log = Some(log);
        let (disk, began) = (found.salt, found.next);
        self.opened += 1;
        let mark = mix(self.seed ^ mix(self.opened));
        self.standing = Standing { disk, incarnation, mark, began, logged: began };
        starts.push(Start { incarnation, mark, began });
        self.queue.push(encode(&Written::<R>::Starts(starts.clone())));
        self.starts = starts;
        // Nobody hears of a start that is not in the log.
        self.write()?;
        self.log().sync().map_err(failed)?;
        Ok(Found { records, known })
    }

    fn standing(&self) -> Option<Standing> {
        let logged = self.log.as_ref().map_or(self.standing.began, wal::Log::logged);
        Some(Standing { logged, ..self.standing })
    }

    fn starts(&self) -> &[Start] {
        &self.starts
    }

    fn disk(&self) -> Option<&SimDisk> {
        Some(&self.disk)
    }

    fn replace_disk(&mut self, disk: SimDisk) {
        self.disk = disk;
        self.seed = mix(self.seed); // An empty one gets another name.
    }
}

fn encode<R: Serialize>(written: &Written<R>) -> Bytes {
    postcard::to_stdvec(written).expect("writing to memory").into()
}

fn failed(error: WalError) -> DiskFailure {
    match error {
        WalError::Io { .. } => DiskFailure::Disk(error.to_string()),
        WalError::Corrupt { .. } | WalError::CorruptCheckpoint { .. } => {
            DiskFailure::Damaged(error.to_string())
        }
        WalError::Format(error) => match error {
            meridian_storage::format::FormatError::Io { .. } => {
                DiskFailure::Disk(error.to_string())
            }
            error => DiskFailure::Damaged(error.to_string()),
        },
    }
}
