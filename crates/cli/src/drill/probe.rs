//! Small changes in trees, again and again, while a region is cut off.

use anyhow::{Context, bail};
use bytes::Bytes;
use meridian_client::{ClientError, Files};
use meridian_core::GroupId;
use meridian_fs::operation::NewNode;
use meridian_fs::{FsError, Ino, Kind};
use meridian_session::drill::Tried;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long a change may take before it counts as one that waits.
pub const LIMIT: Duration = Duration::from_secs(4);
/// How long after one change the next is tried.
const PAUSE: Duration = Duration::from_millis(500);
/// How long trees may take until they can be changed again when all nodes go on.
const HEAL: Duration = Duration::from_secs(120);

/// A tree that is tried.
#[derive(Clone, Debug)]
pub struct Tree {
    /// From the root on.
    pub path: String,
    /// The directory.
    pub ino: Ino,
    /// Where it is placed.
    pub group: GroupId,
}

/// What was tried in a tree, or why it could not be.
type Tries = Result<Vec<Tried>, ClientError>;

/// Tries all trees at once.
pub struct Probe {
    begun: Instant,
    over: watch::Sender<bool>,
    trees: Vec<(String, JoinHandle<Tries>)>,
}

impl Probe {
    /// Begins; the region has just been cut off.
    pub fn start(files: &Arc<Files>, trees: Vec<Tree>) -> Probe {
        let (over, ends) = watch::channel(false);
        let begun = Instant::now();
        let trees = trees.into_iter().map(|tree| {
            let line =
                Line { files: files.clone(), begun, ends: ends.clone(), dir: tree.ino, count: 0 };
            (tree.path, tokio::spawn(line.run()))
        });
        Probe { begun, over, trees: trees.collect() }
    }

    /// How long ago it began.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The cut has ended after so long. Waits until all trees can be changed again and nothing is
    /// left in them; then tells what was tried during the cut.
    ///
    /// # Errors
    /// If a tree cannot be changed for two minutes.
    pub async fn end(self, cut_for: Duration) -> anyhow::Result<Vec<Vec<Tried>>> {
        self.over.send_replace(true);
        let mut all = Vec::new();
        for (path, tree) in self.trees {
            let Ok(tries) = tokio::time::timeout(HEAL, tree).await else {
                bail!("{path} cannot be changed though all nodes go on: see `meridian status`");
            };
            let tries = tries?.with_context(|| format!("{path} cannot be tried"))?;
            // What was under way when the cut ended tells nothing.
            let within = |tried: &Tried| match tried.done {
                true => tried.at < cut_for,
                false => tried.at + LIMIT < cut_for,
            };
            all.push(tries.into_iter().filter(within).collect());
        }
        Ok(all)
    }
}

/// Changes in one tree.
struct Line {
    files: Arc<Files>,
    begun: Instant,
    ends: watch::Receiver<bool>,
    dir: Ino,
    /// How many files were made.
    count: u64,
}

impl Line {
    /// Makes and removes files until it is over and one could be made, and none is left.
    async fn run(mut self) -> Tries {
        let (mut tries, mut doubtful) = (Vec::new(), Vec::new());
        loop {
            let (at, over) = (self.begun.elapsed(), *self.ends.borrow());
            let done = self.change(&mut doubtful).await?;
            tries.push(Tried { at, done });
            if over && done {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                _ = self.ends.changed(), if !over => {}
            }
        }
        // A file that nobody has said was made may come as late as what was asked before this.
        while !(self.change(&mut doubtful).await? && self.remove(&mut doubtful).await?) {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(tries)
    }

    /// Makes a file and removes it; whether it was made. If nobody says so its name is kept.
    async fn change(&mut self, doubtful: &mut Vec<Bytes>) -> Result<bool, ClientError> {
        self.count += 1;
        let name = format!(".meridian-drill-{:016x}-{}", self.files.client().id().0, self.count);
        let name = Bytes::from(name);
        let node = NewNode::new(Kind::File, 0o600);
        let done = match self.files.create(self.dir, &name, node).await {
            Ok(_) => true,
            Err(error) if error.is_unknown() => false,
            Err(error) => return Err(error),
        };
        let mut made = vec![name];
        if !done || !self.remove(&mut made).await? {
            doubtful.append(&mut made);
        }
        Ok(done)
    }

    /// Removes files that may be there; whether none is left.
    async fn remove(&self, names: &mut Vec<Bytes>) -> Result<bool, ClientError> {
        let mut kept = Vec::new();
        for name in names.drain(..) {
            match self.files.unlink(self.dir, &name).await {
                Ok(()) | Err(ClientError::Fs(FsError::NotFound)) => {}
                Err(error) if error.is_unknown() => kept.push(name),
                Err(error) => return Err(error),
            }
        }
        *names = kept;
        Ok(names.is_empty())
    }
}
