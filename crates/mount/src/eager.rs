//! Calls that are begun on the thread that read them from the kernel.
//!
//! To hand a call to a task wakes a thread of the runtime, which costs as much as to ask a node. So
//! the thread that has the call takes it to its first wait, which is for the node's reply. The
//! task of the runtime that brings the reply makes the rest a task of its own.

use crate::kept::drop_names;
use crate::signals::{self, Ticks};
use meridian_fuse::{Notifier, Reply};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Wake, Waker};
use tokio::runtime::Handle;

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
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    runtime: Handle,
    ticks: Ticks,
    kernel: Arc<OnceLock<Notifier>>,
}

impl Calls {
    /// Of this runtime, and that kernel once it is there.
    pub fn new(runtime: Handle, kernel: Arc<OnceLock<Notifier>>) -> Calls {
        let ticks = Ticks::new(&runtime);
        Calls { runtime, ticks, kernel }
    }

    /// By which waiting threads are looked at.
    pub fn ticks(&self) -> Ticks {
        self.ticks.clone()
    }

    /// Answers `thread` with what `give` makes of a call. A thread that is to die is answered at
    /// once; its call goes on to its end all the same. If it changes names, the kernel must not go
    /// on with those that it knows, as if nothing came of it: neither until then nor after it.
    pub fn answer<T: Send>(
        &self,
        (thread, changes_names): (u32, bool),
        reply: Reply,
        give: impl FnOnce(T, Reply) + Send + 'static,
        call: impl Future<Output = T> + Send + 'static,
    ) {
        let ticks = self.ticks();
        let kernel = changes_names.then(|| self.kernel.clone());
        self.begin(async move {
            let mut call = pin!(call);
            tokio::select! {
                biased;
                value = &mut call => give(value, reply),
                () = signals::fatal(thread, reply.interrupted(), &ticks) => {
                    kernel.iter().for_each(|kernel| drop_names(kernel));
                    reply.error(libc::EINTR);
                    drop(call.await);
                    kernel.iter().for_each(|kernel| drop_names(kernel));
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::mpsc::channel;
    use std::thread;
    use tokio::sync::oneshot;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
    }

    #[test]
    fn what_waits_for_nothing_ends_on_the_thread_that_began_it() {
        let runtime = runtime();
        let calls = Calls::new(runtime.handle().clone(), Arc::default());
        let (done, ended) = channel();
        calls.begin(async move { done.send(thread::current().id()).unwrap() });
        assert_eq!(ended.try_recv().unwrap(), thread::current().id());
    }

    #[test]
    fn what_waits_goes_on_as_a_task_however_early_it_is_woken() {
        let runtime = runtime();
        let calls = Calls::new(runtime.handle().clone(), Arc::default());
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
}
