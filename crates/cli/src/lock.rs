//! A file with the number of the process that holds it. The lock goes with the process however it
//! ends, so a number that is locked is never an old one.

use anyhow::Context;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// In a node's folder: held by its server.
pub const SERVER_LOCK: &str = "server.pid";
/// In the data directory: held by the demo.
pub const DEMO_LOCK: &str = "demo.pid";
/// How long a process may take to end after SIGTERM; it gets SIGKILL then.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How often a lock is tried while its holder ends: there is no event to wait for without a race.
const RETRY: Duration = Duration::from_millis(20);

/// A lock that this process holds until it drops it.
#[derive(Debug)]
pub struct PidLock {
    _file: File,
}

/// What trying a lock gave.
#[derive(Debug)]
pub enum Tried {
    /// It is ours.
    Locked(PidLock),
    /// The process of that number holds it.
    Held(i32),
}

/// Tries to take the lock, once.
///
/// # Errors
/// If the file cannot be made or read.
pub fn try_lock(path: &Path) -> anyhow::Result<Tried> {
    let what = || format!("cannot lock {}", path.display());
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(what)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0).with_context(what)?;
            file.rewind().with_context(what)?;
            writeln!(file, "{}", std::process::id()).with_context(what)?;
            Ok(Tried::Locked(PidLock { _file: file }))
        }
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            file.read_to_string(&mut text).with_context(what)?;
            Ok(Tried::Held(text.trim().parse().unwrap_or_default()))
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(what),
    }
}

/// Ends the process that holds the lock, if there is one, and tells its number.
///
/// # Errors
/// If it does not end even after SIGKILL, or the file cannot be read.
pub fn end_holder(path: &Path) -> anyhow::Result<Option<i32>> {
    if !path.exists() {
        return Ok(None);
    }
    let mut holder = None;
    let begin = Instant::now();
    loop {
        let pid = match try_lock(path)? {
            Tried::Locked(_) => return Ok(holder),
            Tried::Held(pid) => pid,
        };
        let waited = begin.elapsed();
        anyhow::ensure!(waited < PATIENCE * 2, "process {pid} does not end: end it by hand");
        // The number may not be written yet; it is then read again the next time round.
        if pid > 0 && (holder.is_none() || waited > PATIENCE) {
            holder = Some(pid);
            signal(pid, if waited > PATIENCE { Signal::KILL } else { Signal::TERM });
        }
        std::thread::sleep(RETRY);
    }
}

/// Sends a signal; that the process has gone meanwhile is as good.
fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid)
        && let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
    {
        let _ = pidfd_send_signal(handle, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_its_holder_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let Tried::Locked(held) = try_lock(&path).unwrap() else { panic!("nobody holds it") };
        let Tried::Held(pid) = try_lock(&path).unwrap() else { panic!("it is held") };
        assert_eq!(pid, i32::try_from(std::process::id()).unwrap());
        drop(held);
        assert!(matches!(try_lock(&path).unwrap(), Tried::Locked(_)));
    }

    #[test]
    fn the_holder_of_a_lock_can_be_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        assert_eq!(end_holder(&path).unwrap(), None);
        std::fs::File::create(&path).unwrap(); // Before the number is in it.
        let script = "exec 9<>\"$0\"; flock 9; echo $$ >&9; echo held; exec sleep 1000";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .arg(&path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut held = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut held).unwrap();
        let waiter = std::thread::spawn(move || child.wait());
        assert!(end_holder(&path).unwrap().is_some());
        assert!(!waiter.join().unwrap().unwrap().success());
    }
}
