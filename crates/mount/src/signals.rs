//! Signals that wait for a thread which waits for an answer.
//!
//! The kernel waits for the answer to a call that it has handed over, whatever comes, also for a
//! process that was killed. It would tell of the signal (`FUSE_INTERRUPT`), but the library refuses
//! to hear that, and the kernel then tells no more. So the threads whose calls take long are looked
//! at in `/proc` (docs/decisions/0023-what-a-waiting-program-may-expect.md).

use std::time::Duration;

/// How often a thread that waits is looked at: a killed process must be gone within 100 ms.
const LOOK: Duration = Duration::from_millis(40);

const fn set(signals: &[i32]) -> u64 {
    let (mut all, mut at) = (0, 0);
    while at < signals.len() {
        all |= 1 << (signals[at] - 1);
        at += 1;
    }
    all
}

/// Signals that stop no process, and none that waits, unless it has a handler.
const HARMLESS: u64 = set(&[
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
]);

/// What waits for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// A signal that its process handles.
    Handled,
    /// A signal that ends its process.
    Fatal,
}

/// Ends when a signal waits that ends the process of the thread `tid`; 0 stands for the kernel.
pub(crate) async fn fatal(tid: u32) {
    until(tid, |pending| pending == Pending::Fatal).await;
}

/// Ends when a signal waits that interrupts the thread `tid`.
pub(crate) async fn any(tid: u32) {
    until(tid, |pending| pending != Pending::Nothing).await;
}

async fn until(tid: u32, ends: impl Fn(Pending) -> bool) {
    if tid == 0 {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(LOOK).await;
        // A thread that cannot be seen, as one of another container, waits as before.
        let status = std::fs::read_to_string(format!("/proc/{tid}/status"));
        if status.is_ok_and(|status| ends(pending(&status, tid))) {
            return;
        }
    }
}

/// What `/proc/TID/status` tells of the thread `tid`. A signal for the whole process interrupts its
/// first thread, if that lets it; whoever else sees it cannot know that it is meant.
fn pending(status: &str, tid: u32) -> Pending {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.strip_prefix(':')).map(str::trim)
    };
    let mask = |name| field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let first = field("Tgid").and_then(|id| id.parse().ok()) == Some(tid);
    let sent = mask("SigPnd") | if first { mask("ShdPnd") } else { 0 };
    let heard = sent & !mask("SigBlk") & !mask("SigIgn");
    let handled = mask("SigCgt");
    if heard & !handled & !HARMLESS != 0 {
        Pending::Fatal
    } else if heard & handled != 0 {
        Pending::Handled
    } else {
        Pending::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: u64 = set(&[libc::SIGTERM]);
    const ALARM: u64 = set(&[libc::SIGALRM]);
    const CHILD: u64 = set(&[libc::SIGCHLD]);

    fn status(own: u64, shared: u64, (blocked, ignored, caught): (u64, u64, u64)) -> String {
        format!(
            "Name:\tx\nTgid:\t5\nPid:\t5\nSigQ:\t0/9\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn only_what_ends_a_wait_counts() {
        let of = |own, shared, masks| pending(&status(own, shared, masks), 5);
        assert_eq!(of(0, 0, (0, 0, 0)), Pending::Nothing);
        assert_eq!(of(TERM, 0, (0, 0, 0)), Pending::Fatal);
        assert_eq!(of(0, TERM, (0, 0, 0)), Pending::Fatal);
        assert_eq!(of(0, TERM, (TERM, 0, 0)), Pending::Nothing, "blocked");
        assert_eq!(of(TERM, 0, (0, TERM, 0)), Pending::Nothing, "ignored");
        assert_eq!(of(ALARM, 0, (0, 0, ALARM)), Pending::Handled);
        assert_eq!(of(ALARM | TERM, 0, (0, 0, ALARM)), Pending::Fatal);
        assert_eq!(of(CHILD, CHILD, (0, 0, 0)), Pending::Nothing);
    }

    #[test]
    fn a_signal_of_the_process_is_for_its_first_thread() {
        let status = status(0, ALARM, (0, 0, ALARM));
        assert_eq!(pending(&status, 5), Pending::Handled);
        assert_eq!(pending(&status, 6), Pending::Nothing);
    }

    #[test]
    fn nothing_is_said_of_what_cannot_be_read() {
        assert_eq!(pending("", 5), Pending::Nothing);
        assert_eq!(pending("SigPnd: nonsense\nTgid:\n", 5), Pending::Nothing);
    }
}
