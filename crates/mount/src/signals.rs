//! Signals that come for a thread which waits for an answer.
//!
//! The kernel tells of the first of them (`INTERRUPT`), whichever it is, and no more. So from then
//! on the thread is looked at in `/proc`, until a signal has come that ends its process (see
//! docs/decisions/0023-what-a-waiting-program-may-expect.md).

use meridian_fuse::Interrupted;
use std::time::Duration;

/// How often a thread that was interrupted is looked at: a killed process must be gone within
/// 100 ms.
const LOOK: Duration = Duration::from_millis(40);

const fn set(signals: &[i32]) -> u64 {
    let (mut all, mut at) = (0, 0);
    while at < signals.len() {
        all |= 1 << (signals[at] - 1);
        at += 1;
    }
    all
}

/// Signals that end no process.
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

/// Ends when a signal has come that ends the process of `thread`, of which `interrupted` is the
/// first word; 0 stands for the kernel, or for a thread that cannot be seen.
pub(crate) async fn fatal(thread: u32, interrupted: Interrupted) {
    interrupted.await;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
        // A thread that cannot be seen, as one of another container, waits as before.
        if status.is_ok_and(|status| is_ending(&status, thread)) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether `/proc/THREAD/status` tells of a signal that ends the process. One for the whole process
/// is for its first thread, if that lets it; whoever else sees it cannot know that it is meant.
fn is_ending(status: &str, thread: u32) -> bool {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.strip_prefix(':')).map(str::trim)
    };
    let mask = |name| field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let first = field("Tgid").and_then(|id| id.parse().ok()) == Some(thread);
    let sent = mask("SigPnd") | if first { mask("ShdPnd") } else { 0 };
    sent & !mask("SigBlk") & !mask("SigIgn") & !mask("SigCgt") & !HARMLESS != 0
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
    fn only_what_ends_a_process_counts() {
        let of = |own, shared, masks| is_ending(&status(own, shared, masks), 5);
        assert!(!of(0, 0, (0, 0, 0)));
        assert!(of(TERM, 0, (0, 0, 0)));
        assert!(of(0, TERM, (0, 0, 0)));
        assert!(!of(0, TERM, (TERM, 0, 0)), "blocked");
        assert!(!of(TERM, 0, (0, TERM, 0)), "ignored");
        assert!(!of(ALARM, 0, (0, 0, ALARM)), "handled");
        assert!(of(ALARM | TERM, 0, (0, 0, ALARM)));
        assert!(!of(CHILD, CHILD, (0, 0, 0)));
    }

    #[test]
    fn a_signal_of_the_process_is_for_its_first_thread() {
        let status = status(0, TERM, (0, 0, 0));
        assert!(is_ending(&status, 5) && !is_ending(&status, 6));
    }

    #[test]
    fn nothing_is_said_of_what_cannot_be_read() {
        assert!(!is_ending("", 5) && !is_ending("SigPnd: nonsense\nTgid:\n", 5));
    }
}
