//! Times of reading: noted here, told to the partitions later.

use super::{Files, lock};
use meridian_fs::Attributes;
use meridian_session::accesses::is_due;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;

impl Files {
    /// Whether it is noted from now on when something was read.
    pub fn note_reads(&self, notes: bool) {
        self.notes_reads.store(notes, Ordering::Relaxed);
    }

    /// Whether it is noted when something was read.
    pub fn notes_reads(&self) -> bool {
        self.notes_reads.load(Ordering::Relaxed)
    }

    /// What has these attributes was read.
    pub(crate) fn note_read(&self, of: &Attributes) {
        if self.notes_reads() {
            lock(&self.accesses).read(of, crate::client::now(), self.client.time());
        }
    }

    /// Whether it would be noted if what has these attributes were read now.
    pub(crate) fn is_read_due(&self, mut of: Attributes) -> bool {
        self.overlay_reads(&mut of);
        self.notes_reads() && is_due(&of, crate::client::now())
    }

    /// Shows when it was read, if that is not told yet.
    pub(crate) fn overlay_reads(&self, of: &mut Attributes) {
        lock(&self.accesses).overlay(of);
    }

    /// Tells the partitions what was read: all, or what has waited for long.
    pub(crate) fn tell_reads(self: &Arc<Self>, at_once: bool) -> JoinSet<()> {
        let (due, mut telling) =
            (lock(&self.accesses).due(self.client.time(), at_once), JoinSet::new());
        for (_, update) in due {
            let files = self.clone();
            telling.spawn(async move {
                if let Err(error) = files.client.update(&update).await {
                    tracing::debug!("a partition does not hear what was read: {error}");
                }
                lock(&files.accesses).told(&update);
            });
        }
        telling
    }
}
