//! Nodes of a demo that serve keys, killed and started again by hand; how their histories end.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::clients::{Connection, History, KEYS, key_of};
use crate::harness::{PATIENCE, Room, kill};
use meridian_sim::checkers::recorded::{Operation, Recorded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Waits until a node that was killed has ended: all its threads, and so its locks are free.
pub fn ended(pid: i32) {
    let pid = Pid::from_raw(pid).unwrap();
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return }; // It is gone.
    let limit = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ended, 1, "a node has ended");
}

/// Nodes that serve keys.
pub struct Nodes {
    pub room: Room,
    pub ports: Vec<u16>,
    /// Those that were started again here, by their numbers.
    pub started: BTreeMap<usize, Child>,
}

impl Nodes {
    pub fn name(node: usize) -> String {
        format!("us-{}", node + 1)
    }

    /// Of a demo in that room, which calls the first node's keys at port `first`.
    pub fn new(room: Room, first: u16, count: u16) -> Nodes {
        Nodes { room, ports: (first..first + count).collect(), started: BTreeMap::new() }
    }

    pub fn dir(&self, node: usize) -> PathBuf {
        self.room.path("data").join(Nodes::name(node))
    }

    pub fn start(&mut self, node: usize) {
        self.start_with(node, &[]);
    }

    /// With more words on its command line.
    pub fn start_with(&mut self, node: usize, more: &[&str]) {
        let dir = self.dir(node);
        let address = format!("127.0.0.1:{}", self.ports[node]);
        let args = [&["server", "--dir", dir.to_str().unwrap(), "--keys", &address], more].concat();
        let log = File::options().append(true).open(dir.join("server.log")).unwrap();
        let server = self.room.meridian(&args).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.started.insert(node, server);
    }

    /// `kill -9`; returns when it has ended.
    pub fn kill(&mut self, node: usize, pid: i32) {
        kill(pid, libc::SIGKILL);
        match self.started.remove(&node) {
            Some(mut server) => drop(server.wait().unwrap()),
            None => ended(pid),
        }
    }

    /// Ends those that were started here.
    pub fn end_started(&mut self) {
        for (_, mut server) in std::mem::take(&mut self.started) {
            kill(i32::try_from(server.id()).unwrap(), libc::SIGTERM);
            server.wait().unwrap();
        }
    }
}

/// Stops clients, also when what they wait for fails.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is written to each key at the end. They are far apart: a count of one whose answer was lost
/// may come at any time, and does not lead from the one to the other.
pub const LAST: [i64; 2] = [-1_000_000, -2_000_000];

/// Writes twice to each key at one node, and reads it at all.
pub fn end(history: &History, ports: &[u16], round: u64) {
    let patience = Duration::from_secs(60);
    let mut all: Vec<_> =
        ports.iter().map(|port| Connection::new(*port, patience).unwrap()).collect();
    for key in (0..KEYS).map(|key| key_of(round, key)) {
        for value in LAST {
            assert!(history.ask(&mut all[0], 0, &key, Operation::Write(value.into())));
        }
        for (node, connection) in all.iter_mut().enumerate() {
            assert!(history.ask(connection, node, &key, Operation::Read));
        }
    }
}

/// Judges a history, and the same with one answer falsified: the last read is of the write before.
pub fn judge(recorded: &Recorded) {
    recorded.check_linearizable().unwrap();
    let mut wrong = recorded.clone();
    let last = wrong.calls.iter_mut().rev().find(|(_, _, call)| call.operation == Operation::Read);
    let (_, value) = last.unwrap().2.answered.as_mut().unwrap();
    *value = LAST[0].into();
    let objection = wrong.check_linearizable().unwrap_err();
    assert!(objection.contains(": no order explains"), "{objection}");
}
