//! What a benchmark did, as JSON lines that a checker can judge: one line for each operation,
//! written when it ends, with times of the machine's monotonic clock. So histories of several runs
//! at once on one machine can be joined.
//!
//! A register is 1 KB of a file (`path@offset`) or the existence of a file (`path`): creating one
//! is a `cas` from null, removing one a `delete`.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;

/// The file that is written.
pub struct History {
    name: String,
    file: Mutex<BufWriter<File>>,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should.
    Ok,
    /// Nothing happened, for certain.
    Fail,
    /// It may have happened, or may yet.
    Info,
}

/// One line.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    /// Who did it; has one operation at a time.
    pub process: &'a str,
    /// `read`, `write`, `cas` or `delete`.
    pub op: &'static str,
    /// The register.
    pub key: &'a str,
    /// What was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// When it started.
    pub start_ns: u64,
    /// When it ended; absent if nobody knows whether it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,
    /// What it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// How it ended.
    pub status: Status,
}

impl History {
    /// Starts a new file; what was in it is gone.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(path: &Path) -> anyhow::Result<History> {
        let file = File::create(path)
            .with_context(|| format!("cannot write the history {}", path.display()))?;
        Ok(History { name: path.display().to_string(), file: Mutex::new(BufWriter::new(file)) })
    }

    /// Writes a line. An error stays in the file's buffer and is told by [`History::finish`].
    pub fn write(&self, line: &Line<'_>) {
        let mut text = serde_json::to_vec(line).expect("a line holds only strings and numbers");
        text.push(b'\n');
        let mut file = self.file.lock().expect("no holder of this lock panics");
        let _ = file.write_all(&text); // A disk that is full is still full at the end.
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn finish(&self) -> anyhow::Result<()> {
        let mut file = self.file.lock().expect("no holder of this lock panics");
        file.flush().with_context(|| format!("cannot write the history {}", self.name))
    }
}

/// Nanoseconds of the machine's monotonic clock.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
