//! What one thread of `bench fs` does.

use super::history::{History, Line, Status, now_ns};
use crate::harness::cost::switches_of_this_thread;
use crate::harness::latency::histogram;
use anyhow::Context;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What one operation reads or writes: 1 KB, as in the paper.
const CHUNK: usize = 1 << 10;
/// The file that is read: 10 KB, as in the paper.
const FILE: u64 = 10 << 10;
/// The file that is written grows to this length and then starts over, so that a long run does not
/// fill the disk.
const WRITE_MAX: u64 = 16 << 20;
/// The alignment that O_DIRECT wants of memory.
const ALIGNMENT: usize = 4096;
/// A thread gives up after so many errors in a row: all further ones would be the same.
const ERRORS_MAX: u64 = 100;
/// An operation of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// 1 KB after 1 KB of a 10 KB file
    Read,
    /// 1 KB after 1 KB, each with fdatasync
    Write,
    /// Empty files
    Create,
    /// Files of 1 KB, with fdatasync
    Create1k,
}

impl Op {
    /// All, in the order of the paper.
    pub const ALL: [Op; 4] = [Op::Read, Op::Write, Op::Create, Op::Create1k];

    /// What it is called in tables.
    pub fn title(self) -> &'static str {
        match self {
            Op::Read => "read 1 KB",
            Op::Write => "write 1 KB",
            Op::Create => "create",
            Op::Create1k => "create + 1 KB",
        }
    }
}

/// What a thread has measured.
pub struct Outcome {
    /// Of the operations that succeeded.
    pub latency_ns: Histogram<u64>,
    /// Operations that failed.
    pub errors: u64,
    /// The first of the failures.
    pub first_error: Option<String>,
    /// How often the thread waited, or was made to.
    pub switches: u64,
}

impl Outcome {
    /// Nothing yet.
    pub fn new() -> Outcome {
        Outcome { latency_ns: histogram(), errors: 0, first_error: None, switches: 0 }
    }

    /// Adds what another thread has measured.
    pub fn merge(&mut self, other: &Outcome) {
        self.latency_ns += &other.latency_ns;
        self.errors += other.errors;
        self.switches += other.switches;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }
}

/// A thread's folder, open file and counters.
pub struct Worker {
    op: Op,
    folder: PathBuf,
    file: Option<File>,
    name: String,
    file_name: String,
    thread: u64,
    /// Operations begun: names files and makes values unique.
    count: u64,
    /// Operations with an unknown outcome; the process has a new name after each.
    unknown: u64,
    buffer: Vec<u8>,
    aligned: usize,
    history: Option<Arc<History>>,
}

/// A register's key, what is written to it, and what came of it.
struct Act {
    op: &'static str,
    key: String,
    value: Option<Value>,
    result: io::Result<Value>,
}

impl Worker {
    /// Makes the thread's folder and what it needs for `op`.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn prepare(
        op: Op,
        direct: bool,
        scratch: &Path,
        thread: u64,
        history: Option<Arc<History>>,
    ) -> anyhow::Result<Worker> {
        let folder = scratch.join(format!("{op:?}-{thread}").to_lowercase());
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let buffer = vec![b'm'; CHUNK + ALIGNMENT];
        let aligned = buffer.as_ptr().align_offset(ALIGNMENT);
        let path = folder.join("file");
        let mut worker = Worker {
            op,
            file: None,
            name: process_name(op, thread, 0),
            file_name: path.display().to_string(),
            folder,
            thread,
            count: 0,
            unknown: 0,
            buffer,
            aligned,
            history,
        };
        if matches!(op, Op::Read | Op::Write) {
            let what = || format!("cannot write {}", path.display());
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            worker.file = Some(options.clone().create_new(true).open(&path).with_context(what)?);
            if op == Op::Read {
                for _ in 0..FILE / CHUNK as u64 {
                    worker.recorded(Worker::write).with_context(what)?;
                }
                if direct {
                    options.write(false).custom_flags(libc::O_DIRECT);
                }
                let with = if direct { " with O_DIRECT" } else { "" };
                let opened = options.open(&path);
                worker.file =
                    Some(opened.with_context(|| format!("cannot open {}{with}", path.display()))?);
                worker.count = 0;
            }
        }
        Ok(worker)
    }

    /// Works until `end`, or until `stop` is raised.
    pub fn work(&mut self, end: Instant, stop: &AtomicBool) -> Outcome {
        let mut outcome = Outcome::new();
        let mut errors_in_row = 0;
        while errors_in_row < ERRORS_MAX && Instant::now() < end && !stop.load(Ordering::Relaxed) {
            match self.once() {
                Ok(latency_ns) => {
                    outcome.latency_ns.saturating_record(latency_ns.max(1));
                    errors_in_row = 0;
                }
                Err(error) => {
                    outcome.errors += 1;
                    errors_in_row += 1;
                    outcome.first_error.get_or_insert_with(|| error.to_string());
                }
            }
        }
        outcome.switches = switches_of_this_thread();
        outcome
    }

    /// Does the operation once; how many nanoseconds it took.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn once(&mut self) -> io::Result<u64> {
        self.recorded(match self.op {
            Op::Read => Worker::read,
            Op::Write => Worker::write,
            Op::Create | Op::Create1k => Worker::create,
        })
    }

    /// Removes what it made. What cannot be removed here is tried once more with the whole scratch,
    /// and told then.
    pub fn clean_up(mut self) {
        self.file = None;
        if matches!(self.op, Op::Create | Op::Create1k) {
            for count in 0..self.count {
                let removed = |worker: &mut Worker| worker.remove(count);
                if self.recorded(removed).is_err() {
                    return;
                }
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// Does one operation, measures it and writes it down.
    fn recorded(&mut self, act: impl FnOnce(&mut Worker) -> Act) -> io::Result<u64> {
        let start_ns = now_ns();
        let act = act(self);
        let end_ns = now_ns();
        let status = match &act.result {
            Ok(_) => Status::Ok,
            Err(error) if act.op == "read" || nothing_done(error) => Status::Fail,
            Err(_) => Status::Info,
        };
        let error = act.result.as_ref().err().map(|e| io::Error::new(e.kind(), e.to_string()));
        if let Some(history) = &self.history {
            history.write(&Line {
                process: &self.name,
                op: act.op,
                key: &act.key,
                value: act.value,
                start_ns,
                end_ns: (status != Status::Info).then_some(end_ns),
                result: act.result.ok(),
                status,
            });
        }
        if status == Status::Info {
            self.unknown += 1;
            self.name = process_name(self.op, self.thread, self.unknown);
        }
        error.map_or(Ok(end_ns - start_ns), Err)
    }

    fn read(&mut self) -> Act {
        let offset = self.count * CHUNK as u64 % FILE;
        self.count += 1;
        let file = self.file.as_ref().expect("opened by prepare");
        let chunk = &mut self.buffer[self.aligned..self.aligned + CHUNK];
        let result = file.read_exact_at(chunk, offset).map(|()| {
            let mut stamp = [0; 8];
            stamp.copy_from_slice(&chunk[..8]);
            json!(u64::from_le_bytes(stamp))
        });
        Act { op: "read", key: self.key_at(offset), value: None, result }
    }

    fn write(&mut self) -> Act {
        let offset = self.count * CHUNK as u64 % WRITE_MAX;
        let value = self.stamp();
        let file = self.file.as_ref().expect("opened by prepare");
        let chunk = &self.buffer[self.aligned..self.aligned + CHUNK];
        let result = file.write_all_at(chunk, offset).and_then(|()| file.sync_data());
        let result = result.map(|()| json!("ok"));
        Act { op: "write", key: self.key_at(offset), value: Some(json!(value)), result }
    }

    fn create(&mut self) -> Act {
        let path = self.folder.join(format!("f{}", self.count));
        let value = self.stamp();
        let chunk = &self.buffer[self.aligned..self.aligned + CHUNK];
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        let result = made.and_then(|file| {
            if self.op == Op::Create1k {
                file.write_all_at(chunk, 0)?;
                file.sync_data()?;
            }
            Ok(json!(true))
        });
        let key = self.key_of(&path);
        Act { op: "cas", key, value: Some(json!([null, value])), result }
    }

    fn remove(&mut self, count: u64) -> Act {
        let path = self.folder.join(format!("f{count}"));
        let result = match std::fs::remove_file(&path) {
            Ok(()) => Ok(json!(true)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(json!(false)),
            Err(error) => Err(error),
        };
        Act { op: "delete", key: self.key_of(&path), value: None, result }
    }

    /// Puts a number into the buffer that no other write of this run has.
    fn stamp(&mut self) -> u64 {
        let value = self.thread << 40 | self.count;
        self.count += 1;
        self.buffer[self.aligned..self.aligned + 8].copy_from_slice(&value.to_le_bytes());
        value
    }

    /// Keys are for the history alone: without one they would only cost time.
    fn key_at(&self, offset: u64) -> String {
        self.history.as_ref().map_or_else(String::new, |_| format!("{}@{offset}", self.file_name))
    }

    fn key_of(&self, path: &Path) -> String {
        self.history.as_ref().map_or_else(String::new, |_| path.display().to_string())
    }
}

fn process_name(op: Op, thread: u64, unknown: u64) -> String {
    format!("bench-{}-{op:?}-{thread}.{unknown}", std::process::id()).to_lowercase()
}

/// Whether the error says that the call was refused and did nothing.
fn nothing_done(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AlreadyExists, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        ReadOnlyFilesystem,
    };
    matches!(
        error.kind(),
        AlreadyExists
            | InvalidInput
            | IsADirectory
            | NotADirectory
            | NotFound
            | PermissionDenied
            | ReadOnlyFilesystem
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Each operation on a local directory: no errors, values that come back as written, and no
    /// file left behind.
    #[test]
    fn every_operation_works_on_a_local_directory() {
        let dir = tempfile::tempdir().unwrap();
        let history_path = dir.path().join("history");
        let history = Arc::new(History::create(&history_path).unwrap());
        for op in Op::ALL {
            let mut worker =
                Worker::prepare(op, false, dir.path(), 3, Some(Arc::clone(&history))).unwrap();
            let end = Instant::now() + Duration::from_millis(20);
            let outcome = worker.work(end, &AtomicBool::new(false));
            assert_eq!(outcome.first_error, None);
            assert!(!outcome.latency_ns.is_empty());
            worker.clean_up();
        }
        history.finish().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the history is left");

        let mut registers = std::collections::BTreeMap::new();
        for line in std::fs::read_to_string(&history_path).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(line["start_ns"].as_u64() <= line["end_ns"].as_u64());
            let key = line["key"].as_str().unwrap().to_string();
            match line["op"].as_str().unwrap() {
                "write" => drop(registers.insert(key, line["value"].clone())),
                "read" => assert_eq!(registers[&key], line["result"]),
                "cas" => {
                    let before = registers.insert(key, line["value"][1].clone());
                    assert_eq!(before, None);
                }
                "delete" => assert!(registers.remove(&key).is_some()),
                other => panic!("unknown op {other}"),
            }
        }
        assert!(registers.keys().all(|key| key.contains('@')), "all created files were deleted");
    }

    #[test]
    fn a_thread_gives_up_after_errors_in_a_row() {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = Worker::prepare(Op::Create, false, dir.path(), 0, None).unwrap();
        std::fs::remove_dir(&worker.folder).unwrap();
        let outcome =
            worker.work(Instant::now() + Duration::from_secs(60), &AtomicBool::new(false));
        assert_eq!(outcome.errors, ERRORS_MAX);
        assert!(outcome.first_error.unwrap().contains("No such file"));
    }
}
