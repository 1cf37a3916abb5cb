//! The process beside a mount that frees who waits for the mount when that is killed.
//!
//! The kernel gives a connection up when its descriptors are closed. It closes them when the last
//! thread of their process has ended, and a thread that has it drop a name (`moved`) or an
//! inode may wait there for a lock or a page, where no signal ends it. Who has that waits for an
//! answer of the process, which is dead but for this thread (decision 67). So a guard has the file
//! that aborts the connection, and writes to it when the mount's main thread has ended: that one
//! waits for nothing in the kernel that a signal does not end.
//!
//! The kernel tells the guard with a signal, since nothing else tells of one thread
//! (`PR_SET_PDEATHSIG`): a pipe is closed, and a pidfd is readable, when the last one has ended.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use tokio::signal::unix::{SignalKind, signal};

/// What tells the guard that the mount has died: a signal that nobody sends to a service, unlike
/// those that change how much it logs.
const DEATH: Signal = Signal::POWER;
/// The name of its process. `killall meridian` spares it: it is there for when the others die.
const NAME: &str = "mount-guard";

/// A guard that runs. Dropped, it ends: there is nothing to be guarded any more.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
}

impl Guard {
    /// Has `command` call [`run`], to write to `abort` when the *thread* that calls this ends. When
    /// this returns it would.
    ///
    /// # Errors
    /// As those of starting a process; or that has ended at once.
    pub fn start(mut command: Command, abort: File) -> io::Result<Guard> {
        // It keeps nothing open for which somebody might wait: a pipe, a directory. And Ctrl-C and
        // the end of a terminal are for the mount.
        command.stdin(abort).stdout(Stdio::piped()).stderr(Stdio::null());
        command.current_dir("/").process_group(0);
        let mut guard = Guard { process: command.spawn()? };
        let mut begun = guard.process.stdout.take().expect("it is piped");
        begun.read_exact(&mut [0]).map_err(|_| io::Error::other("the guard has ended at once"))?;
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.process.kill(); // Or it was killed before.
        let _ = self.process.wait();
    }
}

/// What the guard's process does: it waits for the death of the thread that has started it, then
/// writes to its standard input, which is open for that. It says a line when it is ready.
///
/// # Errors
/// If it cannot be told, or not write.
pub fn run() -> io::Result<()> {
    let _ = fs::write("/proc/self/comm", NAME); // Or it has another one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        // Who sends these to all processes of a service means the mount, and the guard ends with
        // that. From here on they have a handler.
        let ends = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let others = [SignalKind::quit(), SignalKind::user_defined1(), SignalKind::user_defined2()];
        for kind in ends.into_iter().chain(others) {
            drop(signal(kind)?);
        }
        let mut death = signal(SignalKind::from_raw(DEATH.as_raw()))?;
        set_parent_process_death_signal(Some(DEATH))?;
        // If the mount has died before, nobody reads this.
        writeln!(io::stdout())?;
        death.recv().await;
        rustix::io::write(io::stdin(), b"1")?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn start(script: &str) -> io::Result<Guard> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script);
        Guard::start(shell, tempfile::tempfile().unwrap())
    }

    #[test]
    fn a_guard_that_is_not_ready_is_none() {
        assert!(start("exit 0").unwrap_err().to_string().contains("ended at once"));
        let nowhere = Guard::start(Command::new("/nowhere"), tempfile::tempfile().unwrap());
        assert_eq!(nowhere.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_guard_that_is_not_needed_any_more_ends_whatever_it_does() {
        let guard = start("trap '' TERM; echo; kill -STOP $$").unwrap();
        let process = PathBuf::from(format!("/proc/{}", guard.process.id()));
        assert!(process.exists());
        drop(guard);
        assert!(!process.exists(), "not even a zombie");
    }
}
