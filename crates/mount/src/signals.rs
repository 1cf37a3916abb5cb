//! Signals that come for a thread which waits for an answer.
//!
//! The kernel tells of the first of them (`INTERRUPT`), whichever it is, and no more. So from then
//! on the thread is looked at in `/proc`, until a signal has come that ends its process (see
//! docs/decisions/0023-what-a-waiting-program-may-expect.md).
//!
//! Of a signal that comes while a request is on its way to us the kernel says nothing if requests
//! come over io_uring (Linux 6.14 to 6.18 at least). Such a signal is there when the request is. So
//! a thread that waits is looked at once also if nothing was heard.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

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
pub(crate) async fn fatal(thread: u32, interrupted: impl Future<Output = ()>, ticks: &Ticks) {
    any(thread, interrupted, ticks).await;
    while !has(thread, !HARMLESS, Handled::Not) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Ends when a signal has come for `thread`, of which `interrupted` tells if the kernel does.
pub(crate) async fn any(thread: u32, interrupted: impl Future<Output = ()>, ticks: &Ticks) {
    let mut interrupted = pin!(interrupted);
    tokio::select! {
        biased;
        () = &mut interrupted => return,
        () = ticks.pass() => {}
    }
    if !has(thread, u64::MAX, Handled::Too) {
        interrupted.await;
    }
}

/// One timer for all who wait, since to set one for each call would wake a thread of the runtime.
/// It rests while nobody waits.
#[derive(Clone, Debug)]
pub(crate) struct Ticks(Arc<Timer>);

#[derive(Debug)]
struct Timer {
    beats: Arc<Beats>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Beats {
    waiting: AtomicUsize,
    /// Somebody waits again.
    begun: Notify,
    beat: Notify,
}

impl Ticks {
    /// On this runtime.
    pub fn new(runtime: &Handle) -> Ticks {
        let beats = Arc::<Beats>::default();
        let task = runtime.spawn(beats.clone().run()).abort_handle();
        Ticks(Arc::new(Timer { beats, task }))
    }

    /// Ends after [`LOOK`], or up to twice that.
    async fn pass(&self) {
        let beats = &self.0.beats;
        let _waiting = beats.wait();
        beats.beat.notified().await;
        beats.beat.notified().await;
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Beats {
    async fn run(self: Arc<Beats>) {
        loop {
            self.begun.notified().await;
            while self.waiting.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(LOOK).await;
                self.beat.notify_waiters();
            }
        }
    }

    /// Counts who waits until it is dropped.
    fn wait(&self) -> impl Drop + '_ {
        if self.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            self.begun.notify_one();
        }
        Waiting(self)
    }
}

struct Waiting<'a>(&'a Beats);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether signals count for which the program has a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handled {
    Too,
    Not,
}

/// Whether one of the signals in `which` has come for a thread, that it does not block or ignore.
/// One that cannot be seen, as that of another container, has none.
fn has(thread: u32, which: u64, handled: Handled) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| pending(&status, thread, handled) & which != 0)
}

/// The signals that `/proc/THREAD/status` tells of. One for the whole process is for its first
/// thread, if that lets it; whoever else sees it cannot know that it is meant.
fn pending(status: &str, thread: u32, handled: Handled) -> u64 {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.strip_prefix(':')).map(str::trim)
    };
    let mask = |name| field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let first = field("Tgid").and_then(|id| id.parse().ok()) == Some(thread);
    let sent = mask("SigPnd") | if first { mask("ShdPnd") } else { 0 };
    let caught = if handled == Handled::Not { mask("SigCgt") } else { 0 };
    sent & !mask("SigBlk") & !mask("SigIgn") & !caught
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    const TERM: u64 = set(&[libc::SIGTERM]);
    const ALARM: u64 = set(&[libc::SIGALRM]);
    const CHILD: u64 = set(&[libc::SIGCHLD]);

    fn is_ending(status: &str, thread: u32) -> bool {
        pending(status, thread, Handled::Not) & !HARMLESS != 0
    }

    #[test]
    fn what_is_handled_or_harmless_counts_where_any_signal_does() {
        let any = |masks| pending(&status(ALARM | CHILD, 0, masks), 5, Handled::Too);
        assert_eq!(any((0, 0, ALARM)), ALARM | CHILD);
        assert_eq!(any((ALARM, CHILD, 0)), 0, "blocked, ignored");
    }

    /// A process that is stopped keeps the signal that would end it.
    #[tokio::test]
    async fn a_signal_is_seen_of_which_the_kernel_says_nothing() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let send = |signal| kill_process(Pid::from_child(&child), signal).unwrap();
        send(Signal::STOP);
        waitpid(Some(Pid::from_child(&child)), WaitOptions::UNTRACED).unwrap();
        send(Signal::TERM);
        let ticks = Ticks::new(&Handle::current());
        fatal(pid, std::future::pending(), &ticks).await;
        any(pid, std::future::pending(), &ticks).await;
        send(Signal::CONT);
        child.wait().unwrap();
    }

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
