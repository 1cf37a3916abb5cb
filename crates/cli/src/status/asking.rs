//! A process of its own that asks a mount: who has asked one that does not answer can neither go on
//! nor end before it does, not even if it is killed.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long one that is killed may take to end; it does so at once unless its mount is dead.
const TO_END: Duration = Duration::from_millis(200);

/// See the module. It is killed when this is dropped.
#[derive(Debug)]
pub struct Asking {
    child: Child,
    told: Receiver<String>,
    /// Whether it has told all, and ended.
    is_over: bool,
}

impl Asking {
    /// Starts `meridian status` with these words.
    ///
    /// # Errors
    /// If the system has no room for a process.
    pub fn start<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Asking> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("status").args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.process_group(0).spawn()?;
        let (tell, told) = channel();
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Asking { child, told, is_over: false })
    }

    /// The next line that it tells; none if it has told all, or tells nothing until `end`.
    pub fn line(&mut self, end: Instant) -> Option<String> {
        match self.told.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.is_over = true;
                None
            }
        }
    }

    /// Whether it has told all.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Kills it; whether it has ended.
    pub fn stop(&mut self) -> bool {
        let _ = self.child.kill(); // It may have ended.
        let end = Instant::now() + TO_END;
        while self.line(end).is_some() {}
        if self.is_over {
            let _ = self.child.wait();
        }
        self.is_over
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.stop();
    }
}
