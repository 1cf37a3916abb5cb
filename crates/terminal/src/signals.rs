//! The signals that ask a command to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from when it is made: signals that come before [`Signals::next`] are not lost.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Starts to listen. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGINT, SIGTERM or SIGHUP, and tells its number.
    pub async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => libc::SIGINT,
            _ = self.terminate.recv() => libc::SIGTERM,
            _ = self.hangup.recv() => libc::SIGHUP,
        }
    }
}
