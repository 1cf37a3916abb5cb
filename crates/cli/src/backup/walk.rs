//! Reads a directory of a snapshot, and all below it, into a backup.

use super::Progress;
use super::archive::{Node, Record, Totals, Writer};
use anyhow::{Context, bail};
use bytes::Bytes;
use meridian_client::{Client, ClientError, Snapshot};
use meridian_core::GroupId;
use meridian_fs::quota::Limits;
use meridian_fs::types::{Attributes, Data, Extent, FILE_MAX, Kind, Name, Place};
use meridian_fs::{Answer, FsError, Query};
use std::collections::{BTreeMap, HashMap, VecDeque};
use tokio::task::JoinHandle;

/// So many entries of a directory are looked at at a time.
const PAGE: u32 = 512;
/// So many pieces of files are under way at a time, each a MiB at most.
const IN_FLIGHT: usize = 32;
/// So many records wait for such a piece at most: small files, with 16 KiB each.
const COMING_MAX: usize = 1024;

/// Something that has a name, and what is known of it.
struct Found {
    parent: u64,
    name: Name,
    place: Place,
    about: About,
}

#[derive(Default)]
struct About {
    attributes: Option<Attributes>,
    xattrs: Vec<(Name, Bytes)>,
    target: Bytes,
    extents: Vec<(u64, Extent)>,
    /// Up to where those tell all.
    known_to: u64,
    quota: Option<Limits>,
}

/// A record that is to be written, once its bytes have come.
enum Coming {
    Record(Box<Record>),
    Data(u64, JoinHandle<Result<Bytes, ClientError>>),
}

struct Walk<'a> {
    client: &'a Client,
    snapshot: &'a Snapshot,
    writer: &'a mut Writer,
    coming: VecDeque<Coming>,
    in_flight: usize,
    /// The number of the next node.
    next: u64,
    /// The numbers of files that have several names.
    linked: HashMap<Place, u64>,
    /// Their further names.
    names: Vec<Record>,
    /// Directories that are still to be read.
    todo: VecDeque<(u64, Place)>,
    progress: Progress,
}

/// Writes the directory at `path`; how much it was.
///
/// # Errors
/// If it is no directory, the snapshot or a block is lost, or the disk refuses.
pub async fn walk(
    client: &Client,
    snapshot: &Snapshot,
    path: &str,
    writer: &mut Writer,
) -> anyhow::Result<Totals> {
    let place = resolve(snapshot, path).await?;
    let mut walk = Walk {
        client,
        snapshot,
        writer,
        coming: VecDeque::new(),
        in_flight: 0,
        next: 0,
        linked: HashMap::new(),
        names: Vec::new(),
        todo: VecDeque::new(),
        progress: Progress::new("saved"),
    };
    let first = Found { parent: 0, name: Name::new(), place, about: About::default() };
    walk.add(vec![(first, Kind::Directory)]).await?;
    while let Some((number, place)) = walk.todo.pop_front() {
        walk.directory(number, place).await?;
    }
    for name in std::mem::take(&mut walk.names) {
        walk.push(Coming::Record(Box::new(name))).await?;
    }
    walk.write_all().await?;
    Ok(*walk.writer.totals())
}

/// The directory that a path leads to.
async fn resolve(snapshot: &Snapshot, path: &str) -> anyhow::Result<Place> {
    let mut at = Place::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        let name = Bytes::copy_from_slice(name.as_bytes());
        let query = Query::Lookup { parent: at, name };
        let answer = snapshot.look(at.partition, vec![query]).await?.pop();
        match answer {
            Some(Ok(Answer::Entry { entry, .. })) if entry.kind == Kind::Directory => {
                at = entry.place;
            }
            Some(Ok(Answer::Entry { .. }) | Err(FsError::NotDirectory)) => {
                bail!("{path} is not a directory: a backup is of a directory and all in it")
            }
            Some(Err(FsError::NotFound)) => bail!("there is no {path} in the tree"),
            Some(Err(error)) => bail!("{path}: {error}"),
            _ => bail!("{path}: an answer to something else"),
        }
    }
    Ok(at)
}

impl Walk<'_> {
    /// Reads the entries of a directory.
    async fn directory(&mut self, number: u64, inode: Place) -> anyhow::Result<()> {
        let mut after = Name::new();
        loop {
            let query = Query::Directory { inode, after: after.clone(), limit: PAGE };
            let answer = self.snapshot.look(inode.partition, vec![query]).await?.pop();
            let Some(Ok(Answer::Directory { entries, end, .. })) = answer else {
                bail!("a directory of the snapshot is not there: {answer:?}");
            };
            if let Some((last, _, _)) = entries.last() {
                after = last.clone();
            }
            let found = |(name, entry, _): (Name, meridian_fs::Entry, _)| {
                let about = About::default();
                (Found { parent: number, name, place: entry.place, about }, entry.kind)
            };
            self.add(entries.into_iter().map(found).collect()).await?;
            if end {
                return Ok(());
            }
        }
    }

    /// Writes what was found, but for further names of what was written.
    async fn add(&mut self, found: Vec<(Found, Kind)>) -> anyhow::Result<()> {
        let mut new: Vec<(Found, Kind)> = Vec::new();
        for (found, kind) in found {
            match self.linked.get(&found.place) {
                Some(number) => self.further(&found, *number),
                None => new.push((found, kind)),
            }
        }
        self.learn(&mut new).await?;
        self.learn_xattrs(&mut new).await?;
        for (found, _) in new {
            self.node(found).await?;
        }
        self.progress.tell(self.writer.totals());
        Ok(())
    }

    fn further(&mut self, found: &Found, of: u64) {
        let Found { parent, name, .. } = found;
        self.names.push(Record::Name { parent: *parent, name: name.clone(), of });
    }

    /// Asks for what all of these are.
    async fn learn(&self, new: &mut [(Found, Kind)]) -> anyhow::Result<()> {
        let mut asked: BTreeMap<GroupId, (Vec<usize>, Vec<Query>)> = BTreeMap::new();
        for (at, (found, kind)) in new.iter().enumerate() {
            let inode = found.place;
            let beside = match kind {
                Kind::File => Query::Contents { inode, offset: 0, len: FILE_MAX },
                Kind::Symlink => Query::Symlink { inode },
                Kind::Directory => Query::OwnQuota { inode },
                _ => Query::Attributes { inode },
            };
            let (of, queries) = asked.entry(inode.partition).or_default();
            of.extend([at; 3]);
            queries.extend([Query::Attributes { inode }, Query::Xattrs { inode }, beside]);
        }
        for (group, (of, queries)) in asked {
            let answers = self.snapshot.look(group, queries).await?;
            for (at, answer) in of.into_iter().zip(answers) {
                let about = &mut new[at].0.about;
                match answer.context("something in the snapshot is not there")? {
                    Answer::Attributes(attributes) => about.attributes = Some(attributes),
                    Answer::Names(names) => {
                        about.xattrs = names.into_iter().map(|name| (name, Bytes::new())).collect();
                    }
                    Answer::Contents { extents, end, .. } => {
                        (about.extents, about.known_to) = (extents, end);
                    }
                    Answer::Bytes(target) => about.target = target,
                    Answer::Quota(quota) => about.quota = quota.map(|quota| quota.limits),
                    other => bail!("an answer to something else: {other:?}"),
                }
            }
        }
        Ok(())
    }

    /// Asks for the values of all extended attributes.
    async fn learn_xattrs(&self, new: &mut [(Found, Kind)]) -> anyhow::Result<()> {
        let mut asked = BTreeMap::<GroupId, Vec<((usize, usize), Query)>>::new();
        for (at, (found, _)) in new.iter().enumerate() {
            let inode = found.place;
            for (nth, (name, _)) in found.about.xattrs.iter().enumerate() {
                let query = Query::Xattr { inode, name: name.clone() };
                asked.entry(inode.partition).or_default().push(((at, nth), query));
            }
        }
        for (group, asked) in asked {
            let (of, queries): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
            let answers = self.snapshot.look(group, queries).await?;
            for ((at, nth), answer) in of.into_iter().zip(answers) {
                match answer.context("an attribute in the snapshot is not there")? {
                    Answer::Bytes(value) => new[at].0.about.xattrs[nth].1 = value,
                    other => bail!("an answer to something else: {other:?}"),
                }
            }
        }
        Ok(())
    }

    /// Writes an inode and its bytes.
    async fn node(&mut self, found: Found) -> anyhow::Result<()> {
        let Found { parent, name, place, about } = found;
        let About { attributes, xattrs, target, extents, known_to, quota } = about;
        let attributes = attributes.context("the snapshot does not tell what an inode is")?;
        let Attributes { kind, mode, nlink, uid, gid, rdev, atime, mtime, .. } = attributes;
        let is_directory = kind == Kind::Directory;
        if nlink > 1 && !is_directory {
            // Two names of it may have been found together.
            if let Some(number) = self.linked.get(&place) {
                self.names.push(Record::Name { parent, name, of: *number });
                return Ok(());
            }
            self.linked.insert(place, self.next);
        }
        let topology = self.client.topology();
        let placement = match is_directory {
            true => topology.group_name(place.partition).to_string(),
            false => String::new(),
        };
        let size = if kind == Kind::File { attributes.size } else { 0 };
        let node = Node {
            parent,
            name,
            kind,
            mode,
            uid,
            gid,
            rdev,
            size,
            atime,
            mtime,
            xattrs,
            target,
            placement,
            quota,
        };
        if is_directory {
            self.todo.push_back((self.next, place));
        }
        self.next += 1;
        self.push(Coming::Record(Box::new(Record::Node(Box::new(node))))).await?;
        if kind == Kind::File {
            self.contents(place, size, extents, known_to).await?;
        }
        Ok(())
    }

    async fn contents(
        &mut self,
        inode: Place,
        size: u64,
        mut extents: Vec<(u64, Extent)>,
        mut known_to: u64,
    ) -> anyhow::Result<()> {
        loop {
            for (offset, extent) in extents {
                let coming = match extent.data {
                    Data::Inline(bytes) => Coming::Record(Box::new(Record::Data { offset, bytes })),
                    Data::Block { block, start } => {
                        let (client, len) = (self.client.clone(), extent.len);
                        let read = async move {
                            client.read_block(inode.partition, block, start, len).await
                        };
                        self.in_flight += 1;
                        Coming::Data(offset, tokio::spawn(read))
                    }
                };
                self.push(coming).await?;
            }
            if known_to >= size {
                return Ok(());
            }
            let query = Query::Contents { inode, offset: known_to, len: FILE_MAX };
            let answer = self.snapshot.look(inode.partition, vec![query]).await?.pop();
            match answer {
                Some(Ok(Answer::Contents { extents: more, end, .. })) if end > known_to => {
                    (extents, known_to) = (more, end);
                }
                other => bail!("a file of the snapshot is not there: {other:?}"),
            }
        }
    }

    /// Writes it after all that comes before.
    async fn push(&mut self, coming: Coming) -> anyhow::Result<()> {
        self.coming.push_back(coming);
        let is_first = |coming: &Coming| matches!(coming, Coming::Record(_));
        while self.in_flight > IN_FLIGHT
            || self.coming.len() > COMING_MAX
            || self.coming.front().is_some_and(is_first)
        {
            self.write_first().await?;
        }
        Ok(())
    }

    async fn write_first(&mut self) -> anyhow::Result<()> {
        match self.coming.pop_front() {
            None => Ok(()),
            Some(Coming::Record(record)) => self.writer.write(&record),
            Some(Coming::Data(offset, read)) => {
                self.in_flight -= 1;
                let bytes = read.await?.context("bytes of the snapshot cannot be read")?;
                self.progress.tell(self.writer.totals());
                self.writer.write(&Record::Data { offset, bytes })
            }
        }
    }

    async fn write_all(&mut self) -> anyhow::Result<()> {
        while !self.coming.is_empty() {
            self.write_first().await?;
        }
        Ok(())
    }
}
