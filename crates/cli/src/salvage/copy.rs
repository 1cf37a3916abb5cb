//! Copies what a node had into a directory of this machine.
//!
//! What cannot be as it was is made as far as it can be, and told ([`Flaw`]): a run of bytes that
//! is missing is a hole. What the directory refuses ends the command.

use super::choice::within;
use crate::backup::Progress;
use anyhow::Context;
use bytes::Bytes;
use meridian_core::BlockId;
use meridian_fs::inventory::{Contents, Item};
use meridian_fs::types::{Attributes, Data, Kind, Place, Timestamp};
use meridian_node::Unread;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What was copied.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    to: PathBuf,
    directories: u64,
    /// Files and what else is no directory, each once.
    files: u64,
    /// Further names of them.
    links: u64,
    /// In files, without holes.
    bytes: u64,
    /// What is not as it was.
    pub flaws: Vec<Flaw>,
}

/// Something that was not copied as it was.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Flaw {
    pub path: String,
    pub why: String,
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Copied { directories, files, links, bytes, .. } = self;
        write!(f, "{directories} directories, {files} files, {links} further links, {bytes} bytes")
    }
}

/// Copies one item after the other.
pub struct Copier<R> {
    read: R,
    copied: Copied,
    /// Where the inodes are that were copied.
    made: BTreeMap<Place, PathBuf>,
    /// Directories are described at the end: what is made in them changes their times.
    directories: Vec<(PathBuf, Item, Contents)>,
    progress: Progress,
}

impl<R: Fn(BlockId, u32, u32) -> Result<Bytes, Unread>> Copier<R> {
    /// Copies into `out`, which is made unless it is there; bytes of blocks come from `read`.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn begin(out: &Path, read: R) -> anyhow::Result<Copier<R>> {
        make_directory(out)?;
        let copied = Copied { to: out.to_path_buf(), ..Copied::default() };
        let (made, directories) = (BTreeMap::new(), Vec::new());
        Ok(Copier { read, copied, made, directories, progress: Progress::new("copied") })
    }

    /// Copies an item. The directories above it come before it; one that has none is made.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn copy(&mut self, item: &Item, contents: &Contents) -> anyhow::Result<()> {
        let path = within(&self.copied.to, &item.path);
        let shown = || format!("cannot make {}", path.display());
        if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
            make_directory(parent)?;
        }
        let place = item.attributes.place;
        match item.attributes.kind {
            Kind::Directory => {
                make_directory(&path)?;
                self.copied.directories += 1;
                self.directories.push((path, item.clone(), contents.clone()));
                return Ok(());
            }
            _ if self.made.contains_key(&place) => {
                fs::hard_link(&self.made[&place], &path).with_context(shown)?;
                self.copied.links += 1;
                return Ok(());
            }
            Kind::File => self.file(&path, item, contents)?,
            Kind::Symlink => {
                let target = OsStr::from_bytes(&contents.target);
                std::os::unix::fs::symlink(target, &path).with_context(shown)?;
            }
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                if let Err(error) = make_node(&path, &item.attributes) {
                    self.flaw(&item.path, format!("cannot be made here: {error}"));
                    return Ok(());
                }
            }
        }
        self.copied.files += 1;
        self.describe(&path, item, contents)?;
        self.made.insert(place, path);
        self.progress.tell(&self.copied);
        Ok(())
    }

    /// Describes the directories, and makes all durable.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn end(mut self) -> anyhow::Result<Copied> {
        for (path, item, contents) in std::mem::take(&mut self.directories).into_iter().rev() {
            self.describe(&path, &item, &contents)?;
        }
        let out = &self.copied.to;
        let synced = File::open(out).and_then(|out| Ok(rustix::fs::syncfs(out)?));
        synced.with_context(|| format!("cannot sync {}", out.display()))?;
        Ok(self.copied)
    }

    fn flaw(&mut self, path: &[u8], why: String) {
        let path = String::from_utf8_lossy(path).into_owned();
        self.copied.flaws.push(Flaw { path, why });
    }

    fn file(&mut self, path: &Path, item: &Item, contents: &Contents) -> anyhow::Result<()> {
        let shown = || format!("cannot write {}", path.display());
        let file = File::options().write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(shown)?;
        file.set_len(item.attributes.size).with_context(shown)?;
        for (offset, extent) in &contents.extents {
            let bytes = match &extent.data {
                Data::Inline(bytes) => bytes.clone(),
                Data::Block { block, start } => match (self.read)(*block, *start, extent.len) {
                    Ok(bytes) => bytes,
                    Err(why) => {
                        let end = offset + u64::from(extent.len);
                        self.flaw(&item.path, format!("bytes {offset} to {end}: {why}"));
                        continue;
                    }
                },
            };
            file.write_all_at(&bytes, *offset).with_context(shown)?;
            self.copied.bytes += bytes.len() as u64;
            self.progress.tell(&self.copied);
        }
        Ok(())
    }

    /// Gives it its owner, extended attributes, mode and times.
    fn describe(&mut self, path: &Path, item: &Item, contents: &Contents) -> anyhow::Result<()> {
        let Attributes { kind, mode, uid, gid, atime, mtime, .. } = item.attributes;
        if let Err(error) = std::os::unix::fs::lchown(path, Some(uid), Some(gid)) {
            self.refused(item, &format!("its owner {uid}:{gid}"), error)?;
        }
        for (name, value) in &contents.xattrs {
            let name = OsStr::from_bytes(name);
            let set = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty());
            if let Err(error) = set {
                let what = format!("its attribute {}", name.to_string_lossy());
                self.refused(item, &what, error.into())?;
            }
        }
        let shown = || format!("cannot describe {}", path.display());
        if kind != Kind::Symlink {
            let mode = Permissions::from_mode(mode.into());
            fs::set_permissions(path, mode).with_context(shown)?;
        }
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).with_context(shown)
    }

    /// This user may not, or this file system cannot: that is a flaw. All else is an error.
    fn refused(&mut self, item: &Item, what: &str, error: io::Error) -> anyhow::Result<()> {
        let kinds = [ErrorKind::PermissionDenied, ErrorKind::Unsupported, ErrorKind::InvalidInput];
        if !kinds.contains(&error.kind()) {
            let path = String::from_utf8_lossy(&item.path);
            return Err(error).with_context(|| format!("{path}: cannot set {what}"));
        }
        self.flaw(&item.path, format!("{what} cannot be set here: {error}"));
        Ok(())
    }
}

/// For nobody else until it is described.
fn make_directory(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot make {}", path.display()))
}

fn make_node(path: &Path, attributes: &Attributes) -> io::Result<()> {
    let kind = match attributes.kind {
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::File | Kind::Directory | Kind::Symlink => return Err(ErrorKind::InvalidInput.into()),
    };
    // As the kernel packs them for FUSE.
    let rdev = attributes.rdev;
    let (major, minor) = (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00);
    let device = rustix::fs::makedev(major, minor);
    Ok(rustix::fs::mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, device)?)
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::GroupId;
    use meridian_fs::types::{Extent, Ino};
    use std::os::unix::fs::MetadataExt;

    fn item(path: &str, ino: u64, kind: Kind, size: u64) -> Item {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let bare = Attributes::bare(Place { ino: Ino(ino), partition: GroupId(1) }, kind);
        let mode = if kind == Kind::Directory { 0o750 } else { 0o640 };
        let mtime = Timestamp { seconds: 1_000_000, nanos: 7 };
        let attributes = Attributes { size, mode, uid, gid, mtime, ..bare };
        Item { path: path.into(), attributes, first: None }
    }

    fn block(name: u128, at: u64, len: u32) -> (u64, Extent) {
        (at, Extent { len, data: Data::Block { block: BlockId(name), start: 2 } })
    }

    /// Of two blocks one is here.
    fn read(block: BlockId, start: u32, len: u32) -> Result<Bytes, Unread> {
        match block {
            BlockId(1) => Ok(Bytes::from(vec![b'a' + start as u8; len as usize])),
            other => Err(Unread::Missing(other)),
        }
    }

    #[test]
    fn all_kinds_are_copied_as_they_were() {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("out");
        let mut copier = Copier::begin(&out, read).unwrap();
        let inline = (6, Extent { len: 2, data: Data::Inline(Bytes::from_static(b"zz")) });
        let file = Contents { extents: vec![block(1, 1, 3), inline], ..Contents::default() };
        let link = Contents { target: "file".into(), ..Contents::default() };
        let all = [
            (item("/us", 1, Kind::Directory, 3), &Contents::default()),
            (item("/us/file", 2, Kind::File, 10), &file),
            (item("/us/link", 3, Kind::Symlink, 4), &link),
            (item("/us/pipe", 4, Kind::Fifo, 0), &Contents::default()),
            (item("/us/second", 2, Kind::File, 10), &file),
            (item("/by-number/9", 9, Kind::File, 0), &Contents::default()),
        ];
        all.iter().for_each(|(item, contents)| copier.copy(item, contents).unwrap());
        let copied = copier.end().unwrap();
        let expected =
            Copied { to: out.clone(), directories: 1, files: 4, links: 1, bytes: 5, flaws: vec![] };
        assert_eq!(copied, expected);
        assert_eq!(fs::read(out.join("us/file")).unwrap(), b"\0ccc\0\0zz\0\0");
        let about = |path: &str| fs::symlink_metadata(out.join(path)).unwrap();
        for path in ["us/file", "us/link", "us/pipe", "us"] {
            assert_eq!((about(path).mtime(), about(path).mtime_nsec()), (1_000_000, 7), "{path}");
        }
        assert_eq!(about("us/file").mode() & 0o7777, 0o640);
        assert_eq!(about("us/file").ino(), about("us/second").ino());
        assert_eq!(fs::read_link(out.join("us/link")).unwrap(), Path::new("file"));
        assert!(about("by-number/9").is_file());
    }

    #[test]
    fn bytes_that_are_missing_are_a_hole_and_told() {
        let root = tempfile::tempdir().unwrap();
        let mut copier = Copier::begin(root.path(), read).unwrap();
        let extents = vec![block(1, 0, 2), block(2, 2, 3)];
        let file = Contents { extents, ..Contents::default() };
        copier.copy(&item("/file", 2, Kind::File, 6), &file).unwrap();
        let copied = copier.end().unwrap();
        assert_eq!(fs::read(root.path().join("file")).unwrap(), b"cc\0\0\0\0");
        let why = format!("bytes 2 to 5: {}", Unread::Missing(BlockId(2)));
        assert_eq!(copied.flaws, [Flaw { path: "/file".into(), why }]);
    }
}
