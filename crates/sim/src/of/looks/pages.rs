//! Kernels that keep the pages of files: what was read lasts from one open to the next as long as
//! the client's session says so (`meridian_session::Pages`). The owner of a file stands for what is
//! in it.

use super::judging::value_of;
use super::register::{Thing, Value};
use super::{LooksWorkload, Stimulus};
use meridian_core::Time;
use meridian_fs::{Answer, FsError, Ino, Place, Query};
use meridian_host::Node;
use meridian_session::{CallId, Holding, Pages};
use rand::RngExt;
use std::collections::BTreeMap;

/// So many files programs have open at once at most.
const OPEN_MAX: usize = 6;
/// Once in so many times a program leaves an open file alone for long.
const LEFT: u32 = 8;

/// What a kernel has of a file.
#[derive(Debug, Default)]
struct File {
    /// How often its pages were dropped.
    drops: u64,
    /// What they show, if there are any.
    shown: Option<Value>,
}

/// A file that a program opens.
#[derive(Debug)]
struct Open {
    file: Place,
    /// Whether the pages are to be dropped, and what is held then.
    drops: Option<Option<Holding>>,
    /// Whether the kernel has taken the answer.
    taken: bool,
    left: bool,
}

/// One client's kernel.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    files: BTreeMap<Ino, File>,
    open: Vec<Open>,
    /// Reads that are under way, and how often pages had been dropped as they began.
    reads: BTreeMap<CallId, (Ino, u64)>,
}

impl Kernel {
    /// Drops what it has of a file: programs of this client change it, or have changed it.
    pub fn drop_pages(&mut self, ino: Ino) {
        let file = self.files.entry(ino).or_default();
        (file.drops, file.shown) = (file.drops + 1, None);
    }

    /// Something was answered; whether that was a read.
    pub fn on_read(&mut self, call: CallId, result: &Result<Answer, FsError>) -> bool {
        let Some((ino, drops)) = self.reads.remove(&call) else { return false };
        let file = self.files.entry(ino).or_default();
        if file.drops == drops {
            file.shown = value_of(result);
        }
        true
    }
}

impl LooksWorkload {
    /// A program opens a file, and reads it: what it is shown of earlier reads is judged.
    pub(super) fn open(&mut self, at: usize, now: Time) {
        let Some(file) = self.registers.a_file(&self.directories, &mut self.net.random) else {
            return;
        };
        let pages = self.net.session(at).open(now, file);
        let kernel = &mut self.clients[at].kernel;
        let shown = kernel.files.get(&file.ino).and_then(|of| of.shown);
        let drops = match pages {
            Pages::Kept(_) => None,
            Pages::Dropped(holding) => Some(holding),
        };
        if kernel.open.len() < OPEN_MAX {
            let left = self.net.random.random_ratio(1, LEFT);
            kernel.open.push(Open { file, drops, taken: false, left });
        }
        if let (None, Some(value)) = (drops, shown) {
            self.net.counts.add("pages kept", 1);
            if let Err(what) = self.registers.judge(&Thing::Owner(file.ino), value) {
                self.net.violate(format!("pages: client {at} reads {file:?}: {what}"));
            }
        }
    }

    /// The kernel of a client takes answers to opens, and programs read.
    pub(super) fn use_open(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let mut stimuli = Vec::new();
        for mut open in std::mem::take(&mut self.clients[at].kernel.open) {
            let slow = if open.taken && open.left { 60 } else { 2 };
            if !self.net.random.random_ratio(1, slow) {
                self.clients[at].kernel.open.push(open);
            } else if open.taken {
                if let Some(holding) = open.drops.flatten() {
                    self.net.session(at).dropped_pages(holding);
                }
                stimuli.extend(self.read(at, now, open.file));
            } else {
                open.taken = true;
                let kernel = &mut self.clients[at].kernel;
                if open.drops.is_some() {
                    kernel.drop_pages(open.file.ino);
                }
                kernel.open.push(open);
            }
        }
        stimuli
    }

    /// A replica is asked for what the kernel has no page of.
    fn read(&mut self, at: usize, now: Time, inode: Place) -> Vec<Stimulus<Node>> {
        let client = &mut self.clients[at];
        let file = client.kernel.files.entry(inode.ino).or_default();
        if file.shown.is_some() {
            return Vec::new();
        }
        let call = CallId(client.last.0 + 1);
        client.kernel.reads.insert(call, (inode.ino, file.drops));
        self.look_at(at, now, Query::Contents { inode, offset: 0, len: 1 })
    }
}
