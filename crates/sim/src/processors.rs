//! Planted bugs are shared out among all processors. Each trial runs on one of them, as without
//! this: it is the same whatever the others do.

use crate::harness::{print, quietly};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Looks for each planted bug, on all processors; `caught` tells what shows it, if anything does.
///
/// # Panics
/// If one is not caught.
pub fn each_is_caught<M, C>(planted: &[M], caught: impl Fn(M) -> Option<C> + Sync)
where
    M: Copy + Debug + Sync,
    C: Debug + Send,
{
    let (next, all) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let look = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutation) = planted.get(at) else { return };
            let found = quietly(|| caught(*mutation));
            print(&format!("{mutation:?}: {found:?}"));
            all.lock().expect("nobody panics with it").insert(at, found);
        }
    };
    std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (0..processors).for_each(|_| drop(scope.spawn(look)));
    });
    let all = all.into_inner().expect("nobody panics with it");
    let missed = all.iter().filter(|(_, caught)| caught.is_none());
    let missed: Vec<_> = missed.map(|(at, _)| planted[*at]).collect();
    assert!(!planted.is_empty() && missed.is_empty(), "nobody noticed {missed:?}");
}
