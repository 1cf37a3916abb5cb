//! The tree against a real file system: random operations on both give equal results, errno
//! included, and equal trees.
//!
//! The model is a client on partitions ([`common`]) that resolves paths and checks what the kernel
//! checks before it asks a file system. In every other sequence directories are placed in random
//! partitions, which the real side knows nothing of.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{ME, Rng, World, name, top};
use meridian_fs::operation::{Changes, NewNode, RenameMode, WriteAt, XattrMode};
use meridian_fs::{Answer, Done, FsError, Kind, Place, Query, Update};
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

type Path = Vec<String>;

#[derive(Clone, Debug)]
enum Op {
    Make(Path, Kind, u16),
    Link(Path, Path),
    Unlink(Path),
    /// `open`, `unlink`, `write`, `fstat`, `read`, `close`.
    UnlinkOpen(Path, Vec<u8>),
    Rmdir(Path),
    Rename(Path, Path, RenameMode),
    Chmod(Path, u16),
    Chown(Path, Option<u32>, Option<u32>),
    Truncate(Path, u64),
    Write(Path, Option<u64>, Vec<u8>),
    Punch(Path, u64, u64),
    List(Path),
    Readlink(Path),
    SetXattr(Path, &'static str, Vec<u8>, XattrMode),
    GetXattr(Path, &'static str),
    RemoveXattr(Path, &'static str),
    /// In the model only.
    Place(Path, u16),
}

/// What both sides say: text that can be compared, or errno.
type Outcome = Result<String, i32>;

/// What is seen at a path: equal on both sides.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: Kind,
    mode: u32,
    nlink: u64,
    owner: (u32, u32),
    size: u64,
    contents: String,
    xattrs: BTreeMap<String, Vec<u8>>,
    /// The first path that leads to the same inode.
    first: Path,
}

type Tree = BTreeMap<Path, Seen>;

const XATTRS: [&str; 2] = ["user.one", "user.two"];

/// A path: often one of `present`, or, for something `new`, often one below them.
fn random_path(rng: &mut Rng, present: &[Path], new: bool) -> Path {
    let names = ["a", "b", "c", "d", "e"];
    if !present.is_empty() && rng.chance(65) {
        let mut path = rng.pick(present).clone();
        if path.len() < 5 && rng.chance(if new { 80 } else { 10 }) {
            path.push((*rng.pick(&names)).to_string());
        }
        return path;
    }
    let depth = 1 + rng.below(4).min(rng.below(4));
    let mut path: Path = (0..depth).map(|_| (*rng.pick(&names)).to_string()).collect();
    if rng.chance(1) {
        let last = path.len() - 1;
        path[last] = "x".repeat(256);
    }
    path
}

fn random_data(rng: &mut Rng) -> Vec<u8> {
    let len = if rng.chance(70) { rng.below(200) } else { rng.below(12_000) };
    (0..len).map(|_| u8::try_from(rng.below(255) + 1).unwrap()).collect()
}

fn random_op(rng: &mut Rng, placing: bool, present: &[Path]) -> Op {
    let choice = rng.below(if placing { 36 } else { 33 });
    let path = random_path(rng, present, choice < 10);
    let mode = u16::try_from(rng.below(0o10000)).unwrap();
    let key = *rng.pick(&XATTRS);
    match choice {
        0..=4 => Op::Make(path, Kind::Directory, mode & 0o1777),
        5..=7 => Op::Make(path, Kind::File, mode),
        8 => Op::Make(path, Kind::Symlink, 0),
        9 => Op::Make(path, Kind::Fifo, mode & 0o777),
        10 | 11 => Op::Link(path, random_path(rng, present, true)),
        12 | 13 => Op::Unlink(path),
        14 => Op::UnlinkOpen(path, random_data(rng)),
        15 => Op::Rmdir(path),
        16..=20 => {
            let modes = [
                RenameMode::Replace,
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
            ];
            // Whether a missing source or a long target comes first depends on the kernel.
            let mut to = {
                let new = rng.chance(70);
                random_path(rng, present, new)
            };
            to.retain(|name| name.len() < 256);
            to.is_empty().then(|| to.push("a".into()));
            Op::Rename(path, to, *rng.pick(&modes))
        }
        21 => Op::Chmod(path, mode),
        22 => {
            // Without both it still clears the set-id bits; then the kernel sends a mode.
            let id = |rng: &mut Rng| Some(u32::try_from(rng.below(3)).unwrap());
            match rng.below(3) {
                0 => Op::Chown(path, id(rng), None),
                1 => Op::Chown(path, None, id(rng)),
                _ => Op::Chown(path, id(rng), id(rng)),
            }
        }
        23 => Op::Truncate(path, rng.below(20_000)),
        24 | 25 => Op::Write(path, rng.chance(80).then(|| rng.below(30_000)), random_data(rng)),
        26 => Op::Punch(path, rng.below(20_000), rng.below(10_000)),
        27 => Op::List(path),
        28 => Op::Readlink(path),
        29 | 30 => {
            let modes = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
            let value = random_data(rng).into_iter().take(100).collect();
            Op::SetXattr(path, key, value, *rng.pick(&modes))
        }
        31 => Op::GetXattr(path, key),
        32 => Op::RemoveXattr(path, key),
        _ => Op::Place(path, u16::try_from(rng.below(4)).unwrap()),
    }
}

/// The tree in partitions, below the top directory of a region.
struct Model {
    world: World,
    base: Place,
    rng: Rng,
}

fn errno<T>(result: Result<T, FsError>) -> Result<T, i32> {
    result.map_err(|error| {
        assert_ne!(error, FsError::Stale, "the client knows the newest state");
        error.errno()
    })
}

impl Model {
    fn new(seed: u64) -> Model {
        Model { world: World::new(3), base: top(1), rng: Rng(!seed) }
    }

    /// The directory that `path` is in.
    fn parent<'a>(&self, path: &'a Path) -> Result<(Place, &'a str), FsError> {
        let (last, above) = path.split_last().unwrap();
        let mut at = self.base;
        for text in above {
            at = match self.world.lookup(at, text)? {
                (place, Kind::Directory) => place,
                (_, Kind::Symlink) => return Err(FsError::NotFound), // Leads nowhere.
                (_, _) => return Err(FsError::NotDirectory),
            };
        }
        Ok((at, last))
    }

    fn find(&self, path: &Path) -> Result<(Place, Kind), FsError> {
        let (parent, last) = self.parent(path)?;
        self.world.lookup(parent, last)
    }

    /// As [`Model::find`], following a link at the end, which leads nowhere.
    fn follow(&self, path: &Path) -> Result<(Place, Kind), FsError> {
        self.find(path).and_then(|found| match found.1 {
            Kind::Symlink => Err(FsError::NotFound),
            _ => Ok(found),
        })
    }

    fn regular(&self, path: &Path) -> Result<Option<Place>, FsError> {
        self.follow(path).map(|(place, kind)| (kind == Kind::File).then_some(place))
    }

    fn run(&mut self, op: &Op) -> Outcome {
        errno(self.try_run(op))
    }

    fn try_run(&mut self, op: &Op) -> Result<String, FsError> {
        let fine = |_: Done| String::new();
        match op {
            Op::Make(path, kind, mode) => {
                let (parent, last) = self.parent(path)?;
                let target = if *kind == Kind::Symlink { name("nowhere") } else { Bytes::new() };
                let node = NewNode { target, ..NewNode::new(*kind, *mode) };
                let update = Update::Create { parent, name: name(last), node };
                self.world.submit(update).map(fine)
            }
            Op::Link(old, new) => {
                let target = self.find(old)?.0;
                let (parent, last) = self.parent(new)?;
                self.world.submit(Update::Link { target, parent, name: name(last) }).map(fine)
            }
            Op::Unlink(path) => {
                let (parent, last) = self.parent(path)?;
                let child = self.world.lookup(parent, last)?.0;
                let name = name(last);
                self.world.submit(Update::Unlink { parent, name, child, keep_for: None }).map(fine)
            }
            Op::UnlinkOpen(path, data) => self.unlink_open(path, data),
            Op::Rmdir(path) => {
                let (parent, last) = self.parent(path)?;
                let child = self.world.lookup(parent, last)?.0;
                self.world.submit(Update::Rmdir { parent, name: name(last), child }).map(fine)
            }
            Op::Rename(old, new, mode) => self.rename(old, new, *mode),
            Op::Place(path, to) => {
                if let Ok((parent, last)) = self.parent(path) {
                    let result = self.world.place(parent, last, *to);
                    let allowed = [
                        FsError::NotFound,
                        FsError::NotDirectory,
                        FsError::NotEmpty,
                        FsError::NameTooLong,
                    ];
                    assert!(result.is_ok() || allowed.contains(&result.unwrap_err()), "{result:?}");
                }
                Ok(String::new())
            }
            op => self.try_inode(op),
        }
    }

    /// What concerns no name but that of the inode.
    fn try_inode(&mut self, op: &Op) -> Result<String, FsError> {
        let fine = |_: Done| String::new();
        match op {
            Op::Chmod(path, mode) => {
                let changes = Changes { mode: Some(*mode), ..Changes::default() };
                self.set_attributes(path, changes)
            }
            Op::Chown(path, uid, gid) => {
                self.set_attributes(path, Changes { uid: *uid, gid: *gid, ..Changes::default() })
            }
            Op::Truncate(path, size) => {
                self.set_attributes(path, Changes { size: Some(*size), ..Changes::default() })
            }
            Op::Write(path, at, data) => {
                let Some(inode) = self.regular(path)? else { return Ok("other".into()) };
                let at = at.map_or(WriteAt::End, WriteAt::Offset);
                let inline = self.rng.chance(60);
                self.world.write(inode, at, data, inline, &mut self.rng).map(fine)
            }
            Op::Punch(path, offset, len) => {
                let Some(inode) = self.regular(path)? else { return Ok("other".into()) };
                let update = Update::PunchHole { inode, offset: *offset, len: *len };
                self.world.submit(update).map(fine)
            }
            Op::List(path) => {
                let (place, kind) = self.follow(path)?;
                if kind != Kind::Directory {
                    return Err(FsError::NotDirectory);
                }
                let names = self.world.list(place)?.into_iter().map(|(name, _, _)| name);
                Ok(format!("{:?}", names.collect::<Vec<_>>()))
            }
            Op::Readlink(path) => {
                let inode = self.find(path)?.0;
                match self.world.read(&Query::Symlink { inode })? {
                    Answer::Bytes(target) => Ok(format!("{target:?}")),
                    other => panic!("{other:?}"),
                }
            }
            Op::SetXattr(path, key, value, mode) => {
                let (inode, kind) = self.follow(path)?;
                if !matches!(kind, Kind::File | Kind::Directory) {
                    return Err(FsError::NotPermitted); // The kernel's rule.
                }
                let (name, value) = (name(key), Bytes::copy_from_slice(value));
                let (mode, drops_set_gid) = (*mode, false);
                let set = Update::SetXattr { inode, name, value, mode, drops_set_gid };
                self.world.submit(set).map(fine)
            }
            Op::GetXattr(path, key) => {
                let inode = self.follow(path)?.0;
                match self.world.read(&Query::Xattr { inode, name: name(key) })? {
                    Answer::Bytes(value) => Ok(format!("{:?}", value.to_vec())),
                    other => panic!("{other:?}"),
                }
            }
            Op::RemoveXattr(path, key) => {
                let (inode, kind) = self.follow(path)?;
                if !matches!(kind, Kind::File | Kind::Directory) {
                    return Err(FsError::NotPermitted);
                }
                self.world.submit(Update::RemoveXattr { inode, name: name(key) }).map(fine)
            }
            op => unreachable!("{op:?} concerns names"),
        }
    }

    fn set_attributes(&mut self, path: &Path, changes: Changes) -> Result<String, FsError> {
        let inode = self.follow(path)?.0;
        self.world.submit(Update::SetAttributes { inode, changes }).map(|_| String::new())
    }

    fn unlink_open(&mut self, path: &Path, data: &[u8]) -> Result<String, FsError> {
        let Some(inode) = self.regular(path)? else { return Ok("other".into()) };
        let (parent, last) = self.parent(path)?;
        let keep_for = Some(ME);
        self.world.submit(Update::Unlink { parent, name: name(last), child: inode, keep_for })?;
        let at = WriteAt::Offset(10);
        self.world.write(inode, at, data, true, &mut self.rng)?;
        let nlink = self.world.attributes(inode)?.nlink;
        let seen = format!("{nlink} {}", digest(&self.world.contents(inode)?));
        let (partition, inodes) = (inode.partition, vec![inode.ino]);
        self.world.submit(Update::Forget { client: ME, partition, inodes })?;
        self.world.reap(partition);
        let gone = self.world.attributes(inode) == Err(FsError::Gone);
        assert_eq!(gone, nlink == 0, "{nlink} other names");
        Ok(seen)
    }

    fn rename(&mut self, old: &Path, new: &Path, mode: RenameMode) -> Result<String, FsError> {
        let from = self.parent(old)?;
        let to = self.parent(new)?;
        let missing = |result: Result<(Place, Kind), FsError>| match result {
            Ok(found) => Ok(Some(found)),
            Err(FsError::NotFound) => Ok(None),
            Err(other) => Err(other),
        };
        let moved = missing(self.world.lookup(from.0, from.1))?;
        let replaced = missing(self.world.lookup(to.0, to.1))?;
        let exchange = mode == RenameMode::Exchange;
        // The kernel sees without its file system that the target is above the source.
        if moved.is_some()
            && let Some((replaced, _)) = replaced
            && mode != RenameMode::NoReplace
            && self.world.ancestors(from.0).contains(&replaced)
        {
            let result = self.world.rename(from, to, mode, None);
            assert!(result.is_err(), "{old:?} {new:?}: {result:?}");
            return Err(if exchange { FsError::Invalid } else { FsError::NotEmpty });
        }
        self.world.rename(from, to, mode, None).map(|_| String::new())
    }

    /// All paths that there are.
    fn paths(&self) -> Vec<Path> {
        let (mut all, mut below) = (Vec::new(), vec![(self.base, Path::new())]);
        while let Some((place, path)) = below.pop() {
            for (name, child, kind) in self.world.list(place).unwrap() {
                let mut path = path.clone();
                path.push(name);
                all.push(path.clone());
                if kind == Kind::Directory {
                    below.push((child, path));
                }
            }
        }
        all
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut firsts = BTreeMap::new();
        self.walk(self.base, &mut Path::new(), &mut tree, &mut firsts);
        tree
    }

    fn walk(
        &self,
        place: Place,
        path: &mut Path,
        tree: &mut Tree,
        firsts: &mut BTreeMap<Place, Path>,
    ) {
        let attributes = self.world.attributes(place).unwrap();
        let kind = attributes.kind;
        let xattrs = XATTRS.iter().filter_map(|key| {
            match self.world.read(&Query::Xattr { inode: place, name: name(key) }) {
                Ok(Answer::Bytes(value)) => Some(((*key).to_string(), value.to_vec())),
                _ => None,
            }
        });
        let contents = if kind == Kind::File {
            digest(&self.world.contents(place).unwrap())
        } else {
            String::new()
        };
        let seen = Seen {
            kind,
            mode: u32::from(attributes.mode),
            nlink: u64::from(attributes.nlink),
            owner: (attributes.uid, attributes.gid),
            size: if kind == Kind::Directory { 0 } else { attributes.size },
            contents,
            xattrs: xattrs.collect(),
            first: firsts.entry(place).or_insert_with(|| path.clone()).clone(),
        };
        tree.insert(path.clone(), seen);
        if kind == Kind::Directory {
            for (name, child, _) in self.world.list(place).unwrap() {
                path.push(name);
                self.walk(child, path, tree, firsts);
                path.pop();
            }
        }
    }
}

/// A directory of this machine.
struct Real {
    dir: tempfile::TempDir,
    counts_directories: bool,
}

fn os<T>(result: Result<T, Errno>) -> Result<T, i32> {
    result.map_err(Errno::raw_os_error)
}

impl Real {
    fn new() -> Real {
        let dir = tempfile::tempdir().unwrap();
        rustix::fs::chmod(dir.path(), Mode::from_raw_mode(0o777)).unwrap();
        let probe = dir.path().join("probe");
        rustix::fs::mkdir(&probe, Mode::RWXU).unwrap();
        let counts_directories = rustix::fs::stat(dir.path()).unwrap().st_nlink == 3;
        rustix::fs::rmdir(&probe).unwrap();
        Real { dir, counts_directories }
    }

    fn path(&self, path: &Path) -> std::path::PathBuf {
        path.iter().fold(self.dir.path().to_path_buf(), |all, name| all.join(name))
    }

    fn regular(&self, path: &Path, flags: OFlags) -> Result<Option<OwnedFd>, Errno> {
        let stat = rustix::fs::stat(self.path(path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        rustix::fs::open(self.path(path), flags, Mode::empty()).map(Some)
    }

    fn run(&self, op: &Op) -> Outcome {
        os(self.try_run(op))
    }

    fn try_run(&self, op: &Op) -> Result<String, Errno> {
        let at = |path: &Path| self.path(path);
        match op {
            Op::Make(path, kind, mode) => self.make(path, *kind, *mode)?,
            Op::Link(old, new) => {
                rustix::fs::linkat(CWD, at(old), CWD, at(new), AtFlags::empty())?;
            }
            Op::Unlink(path) => rustix::fs::unlink(at(path))?,
            Op::UnlinkOpen(path, data) => {
                let Some(fd) = self.regular(path, OFlags::RDWR)? else { return Ok("other".into()) };
                rustix::fs::unlink(at(path))?;
                assert_eq!(rustix::io::pwrite(&fd, data, 10)?, data.len());
                let stat = rustix::fs::fstat(&fd)?;
                let len = usize::try_from(stat.st_size).unwrap();
                return Ok(format!("{} {}", stat.st_nlink, digest(&read_all(&fd, len)?)));
            }
            Op::Rmdir(path) => rustix::fs::rmdir(at(path))?,
            Op::Rename(old, new, mode) => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(CWD, at(old), CWD, at(new), flags)?;
            }
            Op::Place(..) => {}
            op => return self.try_inode(op),
        }
        Ok(String::new())
    }

    /// What concerns no name but that of the inode.
    fn try_inode(&self, op: &Op) -> Result<String, Errno> {
        let at = |path: &Path| self.path(path);
        match op {
            Op::Chmod(path, mode) => {
                rustix::fs::chmod(at(path), Mode::from_raw_mode(u32::from(*mode)))?;
            }
            Op::Chown(path, uid, gid) => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(CWD, at(path), uid, gid, AtFlags::empty())?;
            }
            Op::Truncate(path, size) => {
                // Opening a FIFO would wait for a reader.
                let stat = rustix::fs::stat(at(path))?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Fifo => return Err(Errno::INVAL),
                    _ => {
                        let fd = rustix::fs::open(at(path), OFlags::WRONLY, Mode::empty())?;
                        rustix::fs::ftruncate(&fd, *size)?;
                    }
                }
            }
            Op::Write(path, offset, data) => {
                let flags = if offset.is_none() { OFlags::APPEND } else { OFlags::empty() };
                let Some(fd) = self.regular(path, OFlags::WRONLY | flags)? else {
                    return Ok("other".into());
                };
                let written = match offset {
                    Some(offset) => rustix::io::pwrite(&fd, data, *offset)?,
                    None => rustix::io::write(&fd, data)?,
                };
                assert_eq!(written, data.len());
            }
            Op::Punch(path, offset, len) => {
                let Some(fd) = self.regular(path, OFlags::WRONLY)? else {
                    return Ok("other".into());
                };
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&fd, flags, *offset, *len)?;
            }
            Op::List(path) => return Ok(format!("{:?}", self.list(path)?)),
            Op::Readlink(path) => {
                let target = rustix::fs::readlink(at(path), Vec::new())?;
                return Ok(format!("{:?}", Bytes::copy_from_slice(target.as_bytes())));
            }
            Op::SetXattr(path, key, value, mode) => {
                let flags = match mode {
                    XattrMode::Any => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::setxattr(at(path), *key, value, flags)?;
            }
            Op::GetXattr(path, key) => {
                let mut value = vec![0; 200];
                let len = rustix::fs::getxattr(at(path), *key, &mut value)?;
                return Ok(format!("{:?}", &value[..len]));
            }
            Op::RemoveXattr(path, key) => rustix::fs::removexattr(at(path), *key)?,
            op => unreachable!("{op:?} concerns names"),
        }
        Ok(String::new())
    }

    fn make(&self, path: &Path, kind: Kind, mode: u16) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(u32::from(mode));
        let path = self.path(path);
        match kind {
            Kind::Directory => rustix::fs::mkdir(path, mode),
            Kind::Symlink => rustix::fs::symlink("nowhere", path),
            Kind::Fifo => rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0),
            Kind::File => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                rustix::fs::open(path, flags, mode).map(drop)
            }
            Kind::Socket | Kind::CharDevice | Kind::BlockDevice => panic!("{kind:?}"),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = rustix::fs::open(self.path(path), flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let name = entry?.file_name().to_str().unwrap().to_string();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut firsts = BTreeMap::new();
        self.walk(&mut Path::new(), &mut tree, &mut firsts);
        tree
    }

    fn walk(&self, path: &mut Path, tree: &mut Tree, firsts: &mut BTreeMap<u64, Path>) {
        let at = self.path(path);
        let stat = rustix::fs::lstat(&at).unwrap();
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            other => panic!("{other:?}"),
        };
        let contents = if kind == Kind::File {
            let fd = rustix::fs::open(&at, OFlags::RDONLY, Mode::empty()).unwrap();
            digest(&read_all(&fd, usize::try_from(stat.st_size).unwrap()).unwrap())
        } else {
            String::new()
        };
        let mut xattrs = BTreeMap::new();
        for key in XATTRS.iter().filter(|_| kind != Kind::Symlink) {
            let mut value = vec![0; 200];
            if let Ok(len) = rustix::fs::getxattr(&at, *key, &mut value) {
                xattrs.insert((*key).to_string(), value[..len].to_vec());
            }
        }
        let seen = Seen {
            kind,
            mode: stat.st_mode & 0o7777,
            nlink: stat.st_nlink,
            owner: (stat.st_uid, stat.st_gid),
            size: if kind == Kind::Directory { 0 } else { u64::try_from(stat.st_size).unwrap() },
            contents,
            xattrs,
            first: firsts.entry(stat.st_ino).or_insert_with(|| path.clone()).clone(),
        };
        tree.insert(path.clone(), seen);
        if kind == Kind::Directory {
            for name in self.list(path).unwrap() {
                path.push(name);
                self.walk(path, tree, firsts);
                path.pop();
            }
        }
    }
}

/// Short enough for a message, long enough to differ.
fn digest(bytes: &[u8]) -> String {
    let add = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
    format!("{} bytes, {:x}", bytes.len(), bytes.iter().fold(0, add))
}

fn read_all(fd: &OwnedFd, len: usize) -> Result<Vec<u8>, Errno> {
    let mut all = vec![0; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(fd, &mut all[done..], done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    assert_eq!(done, len);
    Ok(all)
}

fn assert_equal_trees(model: &Model, real: &Real, context: &str) {
    let (mut ours, mut theirs) = (model.tree(), real.tree());
    if !real.counts_directories {
        let all = ours.values_mut().chain(theirs.values_mut());
        all.filter(|seen| seen.kind == Kind::Directory).for_each(|seen| seen.nlink = 0);
    }
    let paths = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(&ours), paths(&theirs), "{context}: paths");
    for (path, seen) in &ours {
        assert!(*seen == theirs[path], "{context}: {path:?}: {seen:?}, real {:?}", theirs[path]);
    }
    model.world.check();
}

fn compare(seed: u64, steps: usize, placing: bool) -> usize {
    let (mut model, real, mut rng) = (Model::new(seed), Real::new(), Rng(seed));
    let mut succeeded = 0;
    for step in 0..steps {
        let op = random_op(&mut rng, placing, &model.paths());
        let context = format!("seed {seed}, step {step}, {op:?}");
        let (ours, theirs) = (model.run(&op), real.run(&op));
        assert_eq!(ours, theirs, "{context}: ours, then the real one");
        succeeded += usize::from(ours.is_ok() && !matches!(op, Op::Place(..)));
        if step % 25 == 24 {
            assert_equal_trees(&model, &real, &context);
        }
    }
    assert_equal_trees(&model, &real, &format!("seed {seed}, at the end"));
    succeeded
}

/// `SEED=5 cargo test -p meridian-fs --test real` tries one seed.
#[test]
fn the_tree_behaves_as_a_real_file_system() {
    assert!(rustix::process::geteuid().is_root(), "chown and mode bits need root, as in CI");
    rustix::process::umask(Mode::empty());
    let seeds = match std::env::var("SEED") {
        Ok(seed) => seed.parse().unwrap()..=seed.parse().unwrap(),
        Err(_) => 1..=240,
    };
    let count = seeds.clone().count();
    let succeeded: usize = seeds.map(|seed| compare(seed, 250, seed % 2 == 0)).sum();
    assert!(succeeded > count * 60, "too few operations succeed to say much: {succeeded}");
}
