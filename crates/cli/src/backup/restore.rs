//! `meridian restore`: a backup is put into a new or empty directory.
//!
//! All is made in a directory beside it, or within it if it is the root or that of a region, and
//! gets its name at the end. So what has the name is whole, and nothing is written over.

use super::archive::{Header, Node, Reader, Record, Totals};
use super::{Progress, connected, report, runtime, verify};
use crate::cluster::Of;
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use meridian_client::files::OpenMode;
use meridian_client::files::names::Named;
use meridian_client::{ClientError, Files};
use meridian_fs::operation::{Changes, NewNode, RenameMode, XattrMode};
use meridian_fs::types::{Attributes, Entry, Ino, Kind, Name};
use meridian_fs::{Durability, FsError};
use meridian_terminal::note;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

/// So many files are made at a time.
const IN_FLIGHT: usize = 32;
/// So many pieces of one file wait, each a MiB at most.
const PIECES: usize = 2;
/// The attribute of the directory beside which says that it is being emptied into its place.
const MOVING: &[u8] = b"trusted.meridian.restored";

/// What to do.
#[derive(Debug, Args)]
#[command(after_help = "\
DIR is a directory of the tree, named from its root. It must be empty, or must not be there yet;
what it lies in must. The backup is read and checked as a whole before anything is made. Then all
is made in a directory beside DIR, which gets DIR's name when it is whole: nobody sees half of it
under that name, and nothing is written over.

Directories are placed in the regions in which they were, if the cluster has such regions; else as
what they lie in. A backup of the whole tree is restored into the root of a new cluster by naming /
as DIR: what was in the directory of a region goes into that of the same name, which must be empty.

If the command is killed, what it has made stays beside DIR. Run it again with --again: it removes
that and begins anew. Only root of the cluster may restore: a client without a grant.

Examples:
  meridian restore /backups/monday /restored
  meridian restore /backups/monday / --cluster new/cluster.json
  meridian restore /backups/home /us/home --again")]
pub struct RestoreArgs {
    /// The backup
    backup: PathBuf,
    /// A directory in the tree, new or empty
    dir: String,
    /// Remove what a restore into DIR has left that did not end; none may be running
    #[arg(long)]
    again: bool,
    /// The region of the tree to write from [default: the first]
    #[arg(long)]
    region: Option<String>,
    #[command(flatten)]
    of: Of,
}

/// Runs `meridian restore`.
///
/// # Errors
/// If the backup is damaged, the directory is not empty, or the cluster refuses.
pub fn run(args: &RestoreArgs) -> anyhow::Result<()> {
    let dir = &args.dir;
    ensure!(
        dir.starts_with('/'),
        "{dir} is not a directory of the tree: name it from the root, as /us/home"
    );
    let (header, totals) = verify(&args.backup)?;
    runtime()?.block_on(async {
        let client = connected(&args.of, args.region.as_deref()).await?;
        let files = Files::new(client);
        let target = Target::find(&files, dir).await?;
        let Some(made) = target.begin(&files, args.again).await? else {
            return target.settle(&files, &[]).await; // All was made before.
        };
        let mut restore = Restore::new(files.clone(), made, target.within.is_some());
        restore.read_all(&args.backup, &header, &totals).await?;
        target.settle(&files, &restore.directories).await?;
        files.flush_all().await.context("the last writes are not stored")
    })?;
    report(&args.backup, &header, totals).print(&format!("is restored into {dir}"), args.of.json)
}

/// Where it goes.
struct Target {
    path: String,
    /// Where the directory is made.
    staged: Named,
    /// The directory that the target is in, and its name there, if that can be renamed to.
    to: Option<Named>,
    /// The target, if that is a top directory.
    within: Option<Ino>,
    /// Whether the target is there, and empty.
    exists: bool,
}

impl Target {
    async fn find(files: &Files, path: &str) -> anyhow::Result<Target> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        ensure!(
            !names.iter().any(|name| matches!(*name, "." | "..")),
            "{path}: name it without .."
        );
        let found = match files.resolve(path).await {
            Ok(found) => Some(found),
            Err(ClientError::Fs(FsError::NotFound)) => None,
            Err(error) => bail!("{path}: {error}"),
        };
        if let Some(found) = found.filter(is_top) {
            let (ino, name) = (found.place.ino, Bytes::from_static(b".restored"));
            Target::check_empty(files, path, ino, &name).await?;
            let staged = Named { parent: ino, name };
            let (path, within) = (path.to_string(), Some(ino));
            return Ok(Target { path, staged, to: None, within, exists: true });
        }
        let Some((last, above)) = names.split_last() else { bail!("the root is not there") };
        let above = format!("/{}", above.join("/"));
        let parent = files.resolve(&above).await;
        let parent = parent.with_context(|| format!("{above}, in which {path} would be"))?;
        if let Some(found) = &found {
            ensure!(found.kind == Kind::Directory, "{path} is there, and is not a directory");
            Target::check_empty(files, path, found.place.ino, &Name::new()).await?;
        }
        let (parent, name) = (parent.place.ino, Bytes::copy_from_slice(last.as_bytes()));
        let staged = Named { parent, name: Bytes::from(format!(".{last}.restored")) };
        let (path, to, exists) = (path.into(), Some(Named { parent, name }), found.is_some());
        Ok(Target { path, staged, to, within: None, exists })
    }

    /// Nothing is in it but what a restore has left. The root may have the directories of regions,
    /// if they are empty.
    async fn check_empty(files: &Files, path: &str, ino: Ino, left: &Name) -> anyhow::Result<()> {
        let moving = match files.lookup(ino, left).await {
            Ok(found) if !left.is_empty() => is_moving(files, found.place.ino).await,
            _ => false,
        };
        for (name, entry) in files.entries(ino).await.with_context(|| path.to_string())? {
            let empty = match entry.kind {
                Kind::Directory if entry.place.ino == Ino::top(entry.place.partition) => {
                    files.entries(entry.place.ino).await?.is_empty()
                }
                _ => name == *left,
            };
            let shown = String::from_utf8_lossy(&name);
            ensure!(
                empty || moving,
                "{path} is not empty: {shown} is in it, and nothing is written over. Name a new \
                 directory"
            );
        }
        Ok(())
    }

    /// Makes the directory in which all is made; none if all has been made in it before.
    async fn begin(&self, files: &Arc<Files>, again: bool) -> anyhow::Result<Option<Ino>> {
        let Named { parent, name } = &self.staged;
        let shown = format!("{} beside {}", String::from_utf8_lossy(name), self.path);
        let left = match files.lookup(*parent, name).await {
            Ok(left) => Some(left.place.ino),
            Err(ClientError::Fs(FsError::NotFound)) => None,
            Err(error) => bail!("{shown}: {error}"),
        };
        if let Some(left) = left {
            ensure!(
                again,
                "a restore into {} did not end, or is running: it has made {shown}. If it is not \
                 running, say --again",
                self.path
            );
            if is_moving(files, left).await {
                return Ok(None);
            }
            note!("removing {shown}");
            remove(files, left).await.with_context(|| shown.clone())?;
            files.rmdir(*parent, name).await.with_context(|| shown.clone())?;
        }
        let made = files.create(*parent, name, NewNode::new(Kind::Directory, 0o700)).await;
        Ok(Some(made.with_context(|| format!("cannot make {shown}"))?.place.ino))
    }

    /// All is made: it gets its name.
    async fn settle(&self, files: &Arc<Files>, made: &[(Ino, Box<Node>)]) -> anyhow::Result<()> {
        let Some(target) = self.within else {
            let to = self.to.as_ref().expect("a target that is no top directory has a name");
            let mode = if self.exists { RenameMode::Replace } else { RenameMode::NoReplace };
            return files.rename(&self.staged, to, mode, None).await.with_context(|| {
                format!("{} cannot get its name: it is there or not empty now", self.path)
            });
        };
        let staged = files.lookup(self.staged.parent, &self.staged.name).await?.place.ino;
        let name = Bytes::from_static(MOVING);
        let yes = Bytes::from_static(b"1");
        files.set_xattr(staged, name, yes, XattrMode::Any, false).await?;
        let about = |ino: Ino| made.iter().find(|(of, _)| *of == ino).map(|(_, node)| node.clone());
        for (name, entry) in files.entries(staged).await? {
            let there = match files.lookup(target, &name).await {
                Ok(there) => there,
                Err(ClientError::Fs(FsError::NotFound)) => {
                    self.move_to(files, (staged, target), name).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            ensure!(is_top(&there), "{}: {name:?} is there now", self.path);
            for (below, _) in files.entries(entry.place.ino).await? {
                self.move_to(files, (entry.place.ino, there.place.ino), below).await?;
            }
            if let Some(node) = about(entry.place.ino) {
                describe(files, there.place.ino, &node, true).await?;
            }
            files.rmdir(staged, &name).await?;
        }
        if let Some((_, node)) = made.first() {
            describe(files, target, node, true).await?;
        }
        Ok(files.rmdir(self.staged.parent, &self.staged.name).await?)
    }

    async fn move_to(
        &self,
        files: &Arc<Files>,
        (from, to): (Ino, Ino),
        name: Name,
    ) -> anyhow::Result<()> {
        let (from, to) = (Named { parent: from, name: name.clone() }, Named { parent: to, name });
        let moved = files.rename(&from, &to, RenameMode::NoReplace, None).await;
        moved.with_context(|| format!("{}: {:?} cannot be moved there", self.path, to.name))
    }
}

fn is_top(found: &Attributes) -> bool {
    found.place.ino == Ino::top(found.place.partition)
}

/// Whether all was made in the directory, and is being moved from there.
async fn is_moving(files: &Files, staged: Ino) -> bool {
    files.xattr(staged, Bytes::from_static(MOVING)).await.is_ok()
}

/// Removes all that is in a directory.
async fn remove(files: &Arc<Files>, directory: Ino) -> anyhow::Result<()> {
    let mut todo = vec![(directory, None::<(Ino, Name)>)];
    while let Some((at, named)) = todo.pop() {
        let entries = files.entries(at).await?;
        let (below, others): (Vec<(Name, Entry)>, Vec<_>) =
            entries.into_iter().partition(|(_, entry)| entry.kind == Kind::Directory);
        let mut unlinked = JoinSet::new();
        for (name, _) in others {
            let files = files.clone();
            if unlinked.len() >= IN_FLIGHT
                && let Some(ended) = unlinked.join_next().await
            {
                ended??;
            }
            unlinked.spawn(async move { files.unlink(at, &name).await });
        }
        while let Some(ended) = unlinked.join_next().await {
            ended??;
        }
        match (below.is_empty(), named) {
            (true, Some((parent, name))) => files.rmdir(parent, &name).await?,
            (true, None) => {}
            (false, named) => {
                todo.push((at, named)); // Once more, when those are gone.
                todo.extend(below.into_iter().map(|(name, of)| (of.place.ino, Some((at, name)))));
            }
        }
    }
    Ok(())
}

/// A file that is being made.
struct Making {
    number: u64,
    node: Box<Node>,
    pieces: Option<Sender<(u64, Bytes)>>,
}

struct Restore {
    files: Arc<Files>,
    /// Directories, and files that were made: by their numbers.
    inodes: HashMap<u64, Ino>,
    /// In their order.
    directories: Vec<(Ino, Box<Node>)>,
    next: u64,
    /// The directory in which all is made.
    made: Ino,
    /// It is where the target is, and placed as that.
    within: bool,
    last: Option<Making>,
    making: JoinSet<anyhow::Result<(u64, Ino)>>,
    /// Regions that are not here.
    unknown: BTreeSet<String>,
}

impl Restore {
    fn new(files: Arc<Files>, made: Ino, within: bool) -> Restore {
        Restore {
            files,
            inodes: HashMap::new(),
            directories: Vec::new(),
            next: 0,
            made,
            within,
            last: None,
            making: JoinSet::new(),
            unknown: BTreeSet::new(),
        }
    }

    /// Makes all that is in the backup, which was looked at before.
    async fn read_all(
        &mut self,
        backup: &std::path::Path,
        header: &Header,
        totals: &Totals,
    ) -> anyhow::Result<()> {
        let mut reader = Reader::open(backup)?;
        ensure!(reader.header() == header, "{} was changed meanwhile", backup.display());
        let mut progress = Progress::new("restored");
        while let Some(record) = reader.next()? {
            match record {
                Record::Node(node) => self.node(node).await?,
                Record::Data { offset, bytes } => self.data(offset, bytes).await?,
                Record::Name { parent, name, of } => self.name(parent, name, of).await?,
                Record::Header(_) | Record::End(_) => {}
            }
            progress.tell(reader.totals());
        }
        self.all_made().await?;
        ensure!(reader.totals() == totals, "{} was changed meanwhile", backup.display());
        self.describe_directories().await
    }

    fn inode(&self, number: u64) -> anyhow::Result<Ino> {
        self.inodes.get(&number).copied().context("a record names something that was not made")
    }

    async fn node(&mut self, node: Box<Node>) -> anyhow::Result<()> {
        self.last = None; // All pieces of the file before have come.
        let number = self.next;
        self.next += 1;
        if node.kind == Kind::Directory {
            return self.directory(number, node).await;
        }
        let parent = self.inode(node.parent)?;
        self.wait_below(IN_FLIGHT).await?;
        let (sender, pieces) = channel(PIECES);
        let files = self.files.clone();
        let of = node.clone();
        self.making.spawn(async move {
            let made = make(&files, parent, &of, pieces).await;
            let shown = || format!("{} cannot be restored", String::from_utf8_lossy(&of.name));
            Ok((number, made.with_context(shown)?))
        });
        self.last = Some(Making { number, node, pieces: Some(sender) });
        Ok(())
    }

    async fn data(&mut self, offset: u64, bytes: Bytes) -> anyhow::Result<()> {
        let last = self.last.as_ref().and_then(|last| last.pieces.as_ref());
        if last.context("bytes of no file")?.send((offset, bytes)).await.is_err() {
            self.all_made().await?; // It has failed: that says why.
            let last = self.last.take().map(|last| (last.number, last.node.name));
            bail!("a file cannot be restored: {last:?}");
        }
        Ok(())
    }

    /// Waits until less than so many files are being made.
    async fn wait_below(&mut self, most: usize) -> anyhow::Result<()> {
        while self.making.len() >= most {
            let Some(made) = self.making.join_next().await else { return Ok(()) };
            let (number, ino) = made??;
            self.inodes.insert(number, ino);
        }
        Ok(())
    }

    async fn all_made(&mut self) -> anyhow::Result<()> {
        self.last = None;
        self.wait_below(1).await
    }

    async fn directory(&mut self, number: u64, node: Box<Node>) -> anyhow::Result<()> {
        let shown = || format!("{} cannot be restored", String::from_utf8_lossy(&node.name));
        let ino = if number == 0 {
            self.made
        } else {
            let parent = self.inode(node.parent)?;
            let NewNode { umask, .. } = NewNode::new(Kind::Directory, 0);
            let (kind, mode, uid, gid) = (Kind::Directory, 0o700, node.uid, node.gid);
            let new = NewNode { kind, mode, umask, uid, gid, rdev: 0, target: Bytes::new() };
            self.files.create(parent, &node.name, new).await.with_context(shown)?.place.ino
        };
        let topology = self.files.client().topology();
        let here = self.files.where_is(ino).await.with_context(shown)?;
        if here != node.placement && !(number == 0 && self.within) {
            match topology.group_named(&node.placement) {
                Some(group) => self.files.place(ino, group).await.with_context(shown)?,
                None if self.unknown.insert(node.placement.clone()) => note!(
                    "there is no region {}: what was placed there is placed as what it lies in",
                    node.placement
                ),
                None => {}
            }
        }
        // Before anything is in it, so that nothing need be counted.
        if node.quota.is_some() && !(number == 0 && self.within) {
            self.files.set_quota(ino, node.quota).await.with_context(shown)?;
        }
        self.inodes.insert(number, ino);
        self.directories.push((ino, node));
        Ok(())
    }

    async fn name(&mut self, parent: u64, name: Name, of: u64) -> anyhow::Result<()> {
        self.all_made().await?;
        let (parent, of) = (self.inode(parent)?, self.inode(of)?);
        let linked = self.files.link(of, parent, &name).await;
        linked.with_context(|| format!("{} cannot be linked", String::from_utf8_lossy(&name)))?;
        Ok(())
    }

    /// Directories get their modes and times last: what was made in them changed these.
    async fn describe_directories(&mut self) -> anyhow::Result<()> {
        let mut described = JoinSet::new();
        for (ino, node) in self.directories.iter().rev().cloned() {
            if described.len() >= IN_FLIGHT
                && let Some(ended) = described.join_next().await
            {
                ended??;
            }
            let (files, is_first) = (self.files.clone(), ino == self.made);
            described.spawn(async move { describe(&files, ino, &node, is_first).await });
        }
        while let Some(ended) = described.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Makes what is no directory, with the bytes that come.
async fn make(
    files: &Arc<Files>,
    parent: Ino,
    node: &Node,
    mut pieces: Receiver<(u64, Bytes)>,
) -> anyhow::Result<Ino> {
    let Node { kind, uid, gid, rdev, ref target, .. } = *node;
    let new = NewNode { kind, mode: 0o600, umask: 0, uid, gid, rdev, target: target.clone() };
    if kind != Kind::File {
        let ino = files.create(parent, &node.name, new).await?.place.ino;
        describe(files, ino, node, false).await?;
        return Ok(ino);
    }
    let mode = OpenMode { write: true, ..OpenMode::default() };
    let (made, handle) = files.create_open(parent, &node.name, new, true, mode).await?;
    let (ino, mut end) = (made.place.ino, 0);
    while let Some((offset, bytes)) = pieces.recv().await {
        files.write(handle, offset, &bytes).await?;
        end = offset + bytes.len() as u64;
    }
    if end < node.size {
        files.extend(handle, node.size).await?;
    }
    files.close(handle).await?;
    files.release(handle).await;
    describe(files, ino, node, false).await?;
    Ok(ino)
}

/// Gives it its extended attributes, its mode and its times; and its owner, if it was not made so.
async fn describe(files: &Files, ino: Ino, node: &Node, owner: bool) -> anyhow::Result<()> {
    if owner {
        let (uid, gid) = (Some(node.uid), Some(node.gid));
        files.set_attributes(ino, Changes { uid, gid, ..Changes::default() }).await?;
    }
    for (name, value) in &node.xattrs {
        files.set_xattr(ino, name.clone(), value.clone(), XattrMode::Any, false).await?;
    }
    if let Some(own) = Durability::in_rdev(node.kind, node.rdev) {
        files.set_durability(ino, Some(own)).await?;
    }
    let mode = (node.kind != Kind::Symlink).then_some(node.mode);
    let (atime, mtime) = (Some(node.atime), Some(node.mtime));
    files.set_attributes(ino, Changes { mode, atime, mtime, ..Changes::default() }).await?;
    Ok(())
}
