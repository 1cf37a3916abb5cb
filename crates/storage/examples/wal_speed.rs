//! How many records of 1 KiB the write-ahead log makes durable in a second, alone and in groups:
//! `cargo run --release -p meridian-storage --example wal_speed -- DIR`.

use bytes::Bytes;
use meridian_storage::RealDisk;
use meridian_storage::wal::{Options, Report, Wal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const RECORD_BYTES: usize = 1024;
const RUN: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    println!("{:>8} {:>12} {:>10}", "waiting", "records/s", "MB/s");
    for waiting in [1, 16, 64, 256, 1024] {
        let dir = base.join(format!("wal-speed-{}", std::process::id()));
        let rate = measure(&dir, waiting);
        std::fs::remove_dir_all(&dir)?;
        let rate = rate?;
        println!("{waiting:>8} {rate:>12.0} {:>10.1}", rate * RECORD_BYTES as f64 / 1e6);
    }
    Ok(())
}

/// Records per second, when always so many are waited for.
fn measure(dir: &Path, waiting: u64) -> Result<f64, Box<dyn std::error::Error>> {
    let (sender, reports) = channel();
    let report = move |report| sender.send(report).unwrap_or_default();
    let (_, wal) = Wal::open(Arc::new(RealDisk), dir, Options::default(), report)?;
    let record = Bytes::from(vec![0x5a; RECORD_BYTES]);
    let (start, mut durable, mut appended) = (Instant::now(), 0, 0);
    while start.elapsed() < RUN {
        while appended < durable + waiting {
            appended = wal.append(record.clone(), appended + 1 == durable + waiting);
        }
        durable = next_durable(&reports)?;
    }
    Ok(durable as f64 / start.elapsed().as_secs_f64())
}

fn next_durable(reports: &Receiver<Report>) -> Result<u64, Box<dyn std::error::Error>> {
    match reports.recv()? {
        Report::Durable { upto, .. } => Ok(upto),
        Report::Failed(error) => Err(error.into()),
        Report::Checkpointed | Report::CheckpointFailed(_) => {
            Err("no checkpoint was asked for".into())
        }
    }
}
