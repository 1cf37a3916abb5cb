//! Which requests the kernel no longer wants to wait for.
//!
//! The kernel tells of a signal for the thread that asked once (`INTERRUPT`), whatever the signal
//! is; it goes on waiting for the answer. With several threads that read requests the word may come
//! before the request itself, or after its answer: numbers of requests are never used again, so
//! what comes too late is forgotten in time.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// So many requests that were interrupted and do not know are kept at most: the newest.
const TOLD_MAX: usize = 4096;

/// Of all requests of a session.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// How many were interrupted and not answered: mostly none, and then nobody takes the lock.
    count: AtomicUsize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Interrupted.
    told: BTreeSet<u64>,
    /// Who is to be woken.
    waiting: HashMap<u64, Waker>,
}

impl Interrupts {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel no longer wants to wait for that one.
    pub fn tell(&self, unique: u64) {
        let mut known = self.known();
        known.told.insert(unique);
        if known.told.len() > TOLD_MAX {
            known.told.pop_first();
        }
        self.count.store(known.told.len(), Ordering::Release);
        let waker = known.waiting.remove(&unique);
        drop(known);
        waker.into_iter().for_each(Waker::wake);
    }

    /// That one is answered.
    pub fn forget(&self, unique: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut known = self.known();
        known.told.remove(&unique);
        self.count.store(known.told.len(), Ordering::Release);
    }

    /// Ends when that one is interrupted.
    pub fn of(self: &Arc<Self>, unique: u64) -> Interrupted {
        Interrupted { unique, interrupts: self.clone(), waits: false }
    }
}

/// Ends when the kernel no longer wants to wait for a request.
#[derive(Debug)]
pub struct Interrupted {
    unique: u64,
    interrupts: Arc<Interrupts>,
    waits: bool,
}

impl Future for Interrupted {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let interrupts = self.interrupts.clone();
        let mut known = interrupts.known();
        if known.told.contains(&self.unique) {
            return Poll::Ready(());
        }
        known.waiting.insert(self.unique, context.waker().clone());
        self.waits = true;
        Poll::Pending
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        if self.waits {
            self.interrupts.known().waiting.remove(&self.unique);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;

    struct Bell(Sender<()>);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }

    #[test]
    fn who_waits_is_woken_and_who_comes_late_knows_at_once() {
        let interrupts = Arc::<Interrupts>::default();
        let (bell, rung) = channel();
        let waker = Waker::from(Arc::new(Bell(bell)));
        let mut context = Context::from_waker(&waker);
        let mut first = pin!(interrupts.of(7));
        assert!(first.as_mut().poll(&mut context).is_pending());
        interrupts.tell(8);
        assert!(rung.try_recv().is_err());
        interrupts.tell(7);
        rung.try_recv().unwrap();
        assert!(first.as_mut().poll(&mut context).is_ready());
        assert!(pin!(interrupts.of(7)).poll(&mut context).is_ready());
        interrupts.forget(7);
        assert!(pin!(interrupts.of(7)).poll(&mut context).is_pending());
        assert!(interrupts.known().waiting.is_empty(), "a wait that was given up leaves nothing");
    }

    #[test]
    fn what_comes_too_late_is_forgotten_in_time() {
        let interrupts = Interrupts::default();
        (0..10_000).for_each(|unique| interrupts.tell(unique));
        assert_eq!(interrupts.known().told.len(), TOLD_MAX);
        assert!(interrupts.known().told.contains(&9_999));
    }
}
