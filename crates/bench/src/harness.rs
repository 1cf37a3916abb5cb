//! What all benches share.
//!
//! | module | what |
//! | --- | --- |
//! | `cost` | what processes use |
//! | `demo` | a demo of its own to measure |
//! | `draw` | which key is asked for |
//! | `figures` | a run that draws figures: raw results, how far it is |
//! | `flatness` | whether memory and disk stay as they are |
//! | `latency` | how long operations took, summed up |
//! | `members` | members of a protocol inside this process |
//! | `machine` | where and when something was measured |
//! | `page`, `pdf` | a folder of figures: a PDF of each, and a page that shows them |
//! | `phases` | a run: warm-up, what is measured, the end |
//! | `plot` | figures as SVG |
//! | `processes`, `replica` | replicas in processes of their own, and their end of it |
//! | `scratch` | the folder that a bench works in |
//! | `soak` | very many operations, with replicas away for a part of them |

pub mod cost;
pub mod demo;
pub mod draw;
pub mod figures;
pub mod flatness;
pub mod latency;
mod machine;
pub mod members;
pub mod page;
mod pdf;
pub mod phases;
pub mod plot;
pub mod processes;
pub mod replica;
mod scratch;
pub mod soak;

pub use machine::Machine;
pub use scratch::Scratch;

use meridian_terminal::signals::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Reads a time in seconds: more than none, and at most a day.
pub fn positive_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("more than 0 and at most 86400".into()),
    }
}

/// A flag that SIGINT and SIGTERM raise, so that an interrupted run cleans up, too.
pub fn stop_on_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen()?
    };
    std::thread::spawn(move || {
        runtime.block_on(signals.next());
        raised.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}

/// What all threads of this process have used.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
