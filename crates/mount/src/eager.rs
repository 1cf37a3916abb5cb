//! Calls that are begun on the thread that read them from the kernel.
//!
//! To hand a call to a task wakes a thread of the runtime, which costs as much as to ask a node. So
//! the thread that has the call takes it to its first wait, which is for the node's reply. The
//! task of the runtime that brings the reply makes the rest a task of its own.

use crate::answers::Reply;
use crate::signals;
use fuser::Errno;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// A call that waits longer than this goes on as a task: it has something else to look at.
const LONG: Duration = Duration::from_millis(40);

/// Calls that waited, and since when: the longest first.
type Waiting = Mutex<VecDeque<(Instant, Arc<Call>)>>;
type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a call is.
enum Stage {
    /// On the thread that began it.
    Begun,
    /// The same, and what it waits for has come.
    Woken,
    /// It waits.
    Waiting(Rest),
    /// It is a task, or has ended.
    Gone,
}

/// A call on its way.
struct Call {
    stage: Mutex<Stage>,
    runtime: Handle,
}

impl Call {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::Gone) {
            Stage::Begun | Stage::Woken => *stage = Stage::Woken,
            Stage::Waiting(rest) => drop(self.runtime.spawn(rest)),
            Stage::Gone => {}
        }
    }
}

/// Begins calls. Clones are the same.
#[derive(Clone)]
pub(crate) struct Calls {
    runtime: Handle,
    waiting: Arc<Waiting>,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Calls")
    }
}

impl Calls {
    /// Of this runtime.
    pub fn new(runtime: Handle) -> Calls {
        let waiting = Arc::<Waiting>::default();
        let all = Arc::downgrade(&waiting);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(LONG).await;
                let Some(all) = all.upgrade() else { return };
                take_long(&all).into_iter().for_each(Wake::wake);
            }
        });
        Calls { runtime, waiting }
    }

    /// Answers the thread `tid` with what `give` makes of a call. A thread that is to die is
    /// answered at once; its call goes on to its end all the same.
    pub fn answer<R: Reply + Send + 'static, T>(
        &self,
        tid: u32,
        reply: R,
        give: impl FnOnce(T, R) + Send + 'static,
        call: impl Future<Output = T> + Send + 'static,
    ) where
        T: Send,
    {
        self.begin(async move {
            let mut call = pin!(call);
            if let Some(value) = first(&mut call).await {
                return give(value, reply);
            }
            tokio::select! {
                biased;
                value = &mut call => give(value, reply),
                () = signals::fatal(tid) => {
                    reply.refuse(Errno::EINTR);
                    drop(call.await);
                }
            }
        });
    }

    /// Takes a call to its first wait, on this thread; a task takes it to its end.
    fn begin(&self, call: impl Future<Output = ()> + Send + 'static) {
        let state =
            Arc::new(Call { stage: Mutex::new(Stage::Begun), runtime: self.runtime.clone() });
        let mut rest: Rest = Box::pin(call);
        let waker = Waker::from(state.clone());
        let entered = self.runtime.enter();
        if rest.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            return;
        }
        drop(entered);
        let mut stage = state.stage();
        if matches!(*stage, Stage::Woken) {
            *stage = Stage::Gone;
            self.runtime.spawn(rest);
            return;
        }
        *stage = Stage::Waiting(rest);
        drop(stage);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((Instant::now(), state));
    }
}

/// Takes out those that wait for long.
fn take_long(waiting: &Waiting) -> Vec<Arc<Call>> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || waiting.pop_front_if(|(since, _)| since.elapsed() >= LONG);
    std::iter::from_fn(next).map(|(_, call)| call).collect()
}

/// Polls `call` once; whether it has ended, and with what.
async fn first<T>(call: &mut Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut looked = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut looked, true) {
            return Poll::Ready(None);
        }
        match call.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;
    use tokio::sync::oneshot;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
    }

    #[test]
    fn what_waits_for_nothing_ends_on_the_thread_that_began_it() {
        let runtime = runtime();
        let calls = Calls::new(runtime.handle().clone());
        let (done, ended) = channel();
        calls.begin(async move { done.send(thread::current().id()).unwrap() });
        assert_eq!(ended.try_recv().unwrap(), thread::current().id());
    }

    #[test]
    fn what_waits_goes_on_as_a_task_however_early_it_is_woken() {
        let runtime = runtime();
        let calls = Calls::new(runtime.handle().clone());
        let (done, ended) = channel();
        for early in [true, false] {
            let (answer, answered) = oneshot::channel();
            let (mut answer, done) = (Some(answer), done.clone());
            let mut now = answer.take_if(|_| early);
            calls.begin(async move {
                let mut answered = answered;
                let woken = poll_fn(|cx| {
                    let polled = Pin::new(&mut answered).poll(cx);
                    now.take().into_iter().for_each(|now| now.send(7).unwrap());
                    polled
                });
                done.send((woken.await.unwrap(), thread::current().id())).unwrap();
            });
            answer.into_iter().for_each(|answer| answer.send(7).unwrap());
            let (seven, on) = ended.recv().unwrap();
            assert!(seven == 7 && on != thread::current().id());
        }
    }

    #[test]
    fn what_waits_for_long_looks_at_what_else_it_waits_for() {
        let runtime = runtime();
        let calls = Calls::new(runtime.handle().clone());
        let (done, ended) = channel();
        calls.begin(async move {
            let mut never = std::pin::pin!(std::future::pending::<()>());
            assert!(first(&mut never).await.is_none());
            done.send(()).unwrap();
        });
        assert!(ended.try_recv().is_err());
        ended.recv().unwrap();
    }
}
