//! Attributes of files that threads have just made.
//!
//! The answer to `open(O_CREAT)` can bring a name and attributes with one lifetime for both only,
//! and names have none (decision 6). So the kernel asks for the attributes again, before the call
//! returns to the program: this question is answered here, at no cost but that of the kernel. The
//! attributes are as old as those that the kernel keeps of other files may be.

use crate::answers::created;
use crate::calls::Opened;
use meridian_client::ClientError;
use meridian_fs::types::{Attributes, Ino};
use meridian_fuse::Reply;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long attributes of a file that was made are told: what the kernel keeps it keeps for two
/// ticks, of 4 ms or less.
const TOLD_FOR: Duration = Duration::from_millis(4);
/// Of so many threads they are kept at most: of each that made a file and did not ask.
const THREADS_MAX: usize = 64;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Made(Mutex<HashMap<u32, (Attributes, Instant)>>);

impl Made {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, (Attributes, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the thread is told of the file that it has made.
    pub fn give(
        made: &Arc<Made>,
        thread: u32,
    ) -> impl FnOnce(Result<(Attributes, Opened), ClientError>, Reply) + Send + use<> {
        let made = made.clone();
        move |result, reply| {
            if let Ok((attributes, _)) = &result {
                made.put(thread, *attributes);
            }
            created(result, reply);
        }
    }

    fn put(&self, thread: u32, attributes: Attributes) {
        let mut all = self.lock();
        if all.len() >= THREADS_MAX {
            all.clear();
        }
        all.insert(thread, (attributes, Instant::now()));
    }

    /// What the thread asks of the file that it has just made; once.
    pub fn take(&self, thread: u32, ino: Ino) -> Option<Attributes> {
        let (attributes, since) = self.lock().remove(&thread)?;
        (attributes.place.ino == ino && since.elapsed() <= TOLD_FOR).then_some(attributes)
    }
}
