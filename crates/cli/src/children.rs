//! The servers that a demo runs: one process each.

use crate::lock::PATIENCE;
use anyhow::Context;
use meridian_terminal::{die_with_parent, log, note};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use tokio::process::Command;
use tokio::sync::mpsc;

/// The file in a node's folder that its server's output goes to.
pub const SERVER_LOG: &str = "server.log";

/// A server process.
#[derive(Debug)]
struct Child {
    name: String,
    /// Sends signals to this process and never to another that got its number.
    handle: OwnedFd,
    running: bool,
}

/// A server that has ended by itself, or was killed.
#[derive(Debug)]
pub struct Ended {
    /// The node's name.
    pub name: String,
    /// What it was.
    pub pid: u32,
    /// Its exit status, if it was not killed.
    pub code: Option<i32>,
    /// How it ended, for people.
    pub how: String,
}

/// All servers of a demo. They die with it, however it dies.
pub struct Children {
    program: PathBuf,
    children: Vec<Child>,
    send: mpsc::UnboundedSender<(usize, u32, io::Result<ExitStatus>)>,
    ends: mpsc::UnboundedReceiver<(usize, u32, io::Result<ExitStatus>)>,
}

impl Children {
    /// None yet. They will run `program`: this one.
    pub fn new(program: PathBuf) -> Children {
        let (send, ends) = mpsc::unbounded_channel();
        Children { program, children: Vec::new(), send, ends }
    }

    /// Starts the server of the node whose folder is `dir`, with these further arguments, and
    /// tells its process number.
    ///
    /// The child dies when the *thread* that calls this ends: call it on the main thread only.
    ///
    /// # Errors
    /// If it cannot be started, or its log not be written.
    pub fn start(&mut self, name: &str, dir: &Path, further: &[String]) -> anyhow::Result<u32> {
        let log_path = dir.join(SERVER_LOG);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log_path)
            .with_context(|| format!("cannot write {}", log_path.display()))?;
        let mut command = Command::new(&self.program);
        command
            .arg("server")
            .arg("--dir")
            .arg(dir)
            .args(further)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0); // Ctrl-C is for the demo alone: it stops the servers in order.
        die_with_parent(command.as_std_mut(), Signal::KILL);
        let mut process =
            command.spawn().with_context(|| format!("cannot start {}", self.program.display()))?;
        let pid = process.id().expect("just started");
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process number");
        let handle = pidfd_open(raw, PidfdFlags::empty())
            .with_context(|| format!("cannot watch process {pid}"))?;
        let place = self.children.len();
        self.children.push(Child { name: name.into(), handle, running: true });
        let send = self.send.clone();
        tokio::spawn(async move {
            let status = process.wait().await;
            let _ = send.send((place, pid, status)); // Fails only when the demo ends anyway.
        });
        Ok(pid)
    }

    /// Waits until a server ends.
    pub async fn next_end(&mut self) -> Ended {
        let (place, pid, status) = self.ends.recv().await.expect("we hold a sender");
        self.children[place].running = false;
        let code = status.as_ref().ok().and_then(ExitStatus::code);
        Ended { name: self.children[place].name.clone(), pid, code, how: describe(status) }
    }

    /// Ends all servers: SIGTERM, and SIGKILL for who has not gone after some seconds.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        let waited = tokio::time::timeout(PATIENCE, self.all_ended()).await;
        if waited.is_err() {
            for child in self.children.iter().filter(|child| child.running) {
                note!("meridian: {} does not stop on SIGTERM; killed", child.name);
            }
            self.signal(Signal::KILL);
            self.all_ended().await;
        }
    }

    async fn all_ended(&mut self) {
        while self.children.iter().any(|child| child.running) {
            self.next_end().await;
        }
    }

    fn signal(&self, signal: Signal) {
        for child in self.children.iter().filter(|child| child.running) {
            let _ = pidfd_send_signal(&child.handle, signal); // Fails only if it has just ended.
        }
    }
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match status.signal() {
            Some(signal) => format!("was ended by signal {signal}"),
            None => format!("ended with status {}", status.code().unwrap_or_default()),
        },
        Err(error) => format!("cannot be watched: {error}"),
    }
}

/// The last line of a server's log that says something: usually why it ended.
pub fn last_words(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join(SERVER_LOG)).unwrap_or_default();
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    log::message(last.unwrap_or("its log is empty"))
}
