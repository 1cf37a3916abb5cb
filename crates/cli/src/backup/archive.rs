//! The file of a backup: `docs/formats.md` says what lies in it.
//!
//! It is written under another name, made durable, and only then gets its own: a file of that name
//! is whole. Each record's checksum goes on from that of the record before, so that none can be
//! missing, twice or elsewhere; the last one says how many there are.

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use meridian_fs::quota::Limits;
use meridian_fs::types::{Kind, Name, Timestamp};
use rustix::fs::{CWD, FlockOperation, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The first bytes of each.
const MAGIC: &[u8; 16] = b"MERIDIAN BACKUP\n";
/// The version of all that follows.
const VERSION: u32 = 1;
/// The longest record: a piece of a file, or all extended attributes of one.
const RECORD_MAX: usize = 4 << 20;
/// What is read and written at a time.
const BUFFER: usize = 1 << 20;

/// One part of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The first.
    Header(Header),
    /// An inode, with its first name. They are numbered from 0 on, in their order; 0 is the
    /// directory that the backup is of. A directory comes before what is in it.
    Node(Box<Node>),
    /// Bytes of the file that came last. What is between them is a hole.
    Data {
        /// Where they begin.
        offset: u64,
        /// Which, at most a MiB.
        bytes: Bytes,
    },
    /// Another name of a file.
    Name {
        /// The number of the directory.
        parent: u64,
        /// The name in it.
        name: Name,
        /// The number of the file.
        of: u64,
    },
    /// The last.
    End(Totals),
}

/// See [`Record::Header`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The cluster that it was taken of.
    pub cluster: u64,
    /// The directory, from the root of its tree.
    pub path: String,
    /// The timestamp of all that is in it.
    pub at: u64,
    /// When that was, in milliseconds since 1970.
    pub taken_ms: u64,
}

/// See [`Record::Node`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The number of the directory that it is in; of the first one 0.
    pub parent: u64,
    /// Its name there; of the first one none.
    pub name: Name,
    /// What it is.
    pub kind: Kind,
    /// The low 12 bits of `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group of the owner.
    pub gid: u32,
    /// The number of a device; of a file or directory its [`Durability`], as in its attributes.
    ///
    /// [`Durability`]: meridian_fs::Durability
    pub rdev: u32,
    /// The length of a file.
    pub size: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Extended attributes, access control lists among them.
    pub xattrs: Vec<(Name, Bytes)>,
    /// Of a symbolic link.
    pub target: Bytes,
    /// Where a directory is placed: `global`, or a region's name.
    pub placement: String,
    /// The quota of a directory.
    pub quota: Option<Limits>,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Directories.
    pub directories: u64,
    /// Files and what else is no directory, each once.
    pub files: u64,
    /// Further names of them.
    pub links: u64,
    /// Bytes in files, without holes.
    pub bytes: u64,
}

impl Totals {
    fn add(&mut self, record: &Record) {
        match record {
            Record::Header(_) | Record::End(_) => {}
            Record::Node(node) if node.kind == Kind::Directory => self.directories += 1,
            Record::Node(_) => self.files += 1,
            Record::Data { bytes, .. } => self.bytes += bytes.len() as u64,
            Record::Name { .. } => self.links += 1,
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { directories, files, links, bytes } = self;
        write!(f, "{directories} directories, {files} files, {links} further links, {bytes} bytes")
    }
}

/// The checksum of a record after another.
fn checksum(before: u32, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&before.to_le_bytes()), body)
}

/// A backup that is being written.
#[derive(Debug)]
pub struct Writer {
    into: BufWriter<File>,
    path: PathBuf,
    part: PathBuf,
    checksum: u32,
    totals: Totals,
    finished: bool,
}

impl Writer {
    /// Begins one that will be called `path`.
    ///
    /// # Errors
    /// If there is such a file, another process writes it, or the disk refuses.
    pub fn create(path: &Path) -> anyhow::Result<Writer> {
        let shown = path.display();
        ensure!(
            path.symlink_metadata().is_err(),
            "{shown} exists: a backup is never written over something. Name a new file"
        );
        let name = path.file_name().with_context(|| format!("{shown} is no name of a file"))?;
        let name = format!(".{}.part", name.to_string_lossy());
        let part = path.with_file_name(name);
        let what = || format!("cannot write {}", part.display());
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&part)
            .with_context(what)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => bail!("another backup is writing {shown} now"),
            other => other.with_context(what)?,
        }
        let (open, named) = (file.metadata().with_context(what)?, part.metadata());
        ensure!(
            named.is_ok_and(|named| named.ino() == open.ino()),
            "another backup has just written {shown}"
        );
        file.set_len(0).with_context(what)?; // Of one that was killed.
        let mut into = BufWriter::with_capacity(BUFFER, file);
        into.write_all(MAGIC).and(into.write_all(&VERSION.to_le_bytes())).with_context(what)?;
        let path = path.to_path_buf();
        Ok(Writer {
            into,
            path,
            part,
            checksum: VERSION,
            totals: Totals::default(),
            finished: false,
        })
    }

    /// Writes the first record.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn begin(&mut self, header: &Header) -> anyhow::Result<()> {
        self.write(&Record::Header(header.clone()))
    }

    /// Writes a record.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write(&mut self, record: &Record) -> anyhow::Result<()> {
        let body = postcard::to_stdvec(record).context("a record cannot be encoded")?;
        ensure!(body.len() <= RECORD_MAX, "a record of {} bytes is too long", body.len());
        self.checksum = checksum(self.checksum, &body);
        self.totals.add(record);
        let len = (body.len() as u32).to_le_bytes();
        let parts = [&len[..], &self.checksum.to_le_bytes(), &body];
        let written = parts.into_iter().try_for_each(|part| self.into.write_all(part));
        written.with_context(|| format!("cannot write {}", self.part.display()))
    }

    /// What was written so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// All is written: it gets its name.
    ///
    /// # Errors
    /// If the disk refuses, or something has that name meanwhile.
    pub fn finish(mut self, totals: &Totals) -> anyhow::Result<()> {
        self.write(&Record::End(*totals))?;
        let what = || format!("cannot write {}", self.part.display());
        self.into.flush().with_context(what)?;
        self.into.get_ref().sync_all().with_context(what)?;
        rustix::fs::renameat_with(CWD, &self.part, CWD, &self.path, RenameFlags::NOREPLACE)
            .with_context(|| format!("{} cannot get its name", self.path.display()))?;
        self.finished = true;
        let dir = self.path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.with_context(|| format!("cannot sync {}", dir.display()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            let _ = std::fs::remove_file(&self.part); // Else the next one writes over it.
        }
    }
}

/// A backup that is read.
#[derive(Debug)]
pub struct Reader {
    from: BufReader<File>,
    path: PathBuf,
    header: Header,
    checksum: u32,
    /// How many records were read, for messages.
    count: u64,
    /// Which of the nodes are directories.
    directories: Vec<bool>,
    /// Of the file that came last: how long it is, and where the last data of it ended.
    file: Option<(u64, u64)>,
    totals: Totals,
    ended: bool,
}

impl Reader {
    /// Opens the backup at `path`.
    ///
    /// # Errors
    /// If it is none, or one of another version.
    pub fn open(path: &Path) -> anyhow::Result<Reader> {
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
        let mut from = BufReader::with_capacity(BUFFER, file);
        let (mut magic, mut version) = ([0; 16], [0; 4]);
        let begun = from.read_exact(&mut magic).and_then(|()| from.read_exact(&mut version));
        ensure!(begun.is_ok() && &magic == MAGIC, "{shown} is not a backup of Meridian");
        let version = u32::from_le_bytes(version);
        ensure!(
            version == VERSION,
            "{shown} has version {version}, and this program reads {VERSION}: use the one that \
             wrote it"
        );
        let header = Header { cluster: 0, path: String::new(), at: 0, taken_ms: 0 };
        let (path, totals, checksum) = (path.to_path_buf(), Totals::default(), VERSION);
        let (count, directories, file, ended) = (0, Vec::new(), None, false);
        let mut reader =
            Reader { from, path, header, checksum, count, directories, file, totals, ended };
        match reader.read()? {
            Record::Header(header) => reader.header = header,
            _ => return Err(reader.damaged("does not begin with what it is of")),
        }
        Ok(reader)
    }

    /// What it is of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What was read so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The next record; none after the last.
    ///
    /// # Errors
    /// If it is damaged from here on, or not whole.
    pub fn next(&mut self) -> anyhow::Result<Option<Record>> {
        if self.ended {
            return Ok(None);
        }
        let record = self.read()?;
        if let Record::End(totals) = &record {
            if *totals != self.totals || self.directories.is_empty() {
                return Err(self.damaged("does not hold what it says at its end"));
            }
            let rest = self.from.read(&mut [0]).with_context(|| self.shown())?;
            if rest != 0 {
                return Err(self.damaged("goes on after its end"));
            }
            self.ended = true;
            return Ok(None);
        }
        if !self.admits(&record) {
            return Err(self.damaged("has a record that makes no sense there"));
        }
        self.totals.add(&record);
        Ok(Some(record))
    }

    /// Whether a record may come next.
    fn admits(&mut self, record: &Record) -> bool {
        let is = |number: u64, directory| {
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            self.directories.get(number) == Some(&directory)
        };
        match record {
            Record::Header(_) | Record::End(_) => false,
            Record::Node(node) => {
                let directory = node.kind == Kind::Directory;
                let is_first = self.directories.is_empty() && directory && node.name.is_empty();
                let admitted = is_first || is(node.parent, true) && is_name(&node.name);
                self.directories.push(directory);
                self.file = (node.kind == Kind::File).then_some((node.size, 0));
                admitted
            }
            Record::Data { offset, bytes } => match &mut self.file {
                Some((size, end)) if *offset >= *end && !bytes.is_empty() => {
                    *end = offset.saturating_add(bytes.len() as u64);
                    *end <= *size
                }
                _ => false,
            },
            Record::Name { parent, name, of } => {
                is(*parent, true) && is(*of, false) && is_name(name)
            }
        }
    }

    fn read(&mut self) -> anyhow::Result<Record> {
        let mut head = [0; 8];
        self.fill(&mut head)?;
        let (len, wanted) = head.split_at(4);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |n, byte| n << 8 | *byte as u32);
        let len = number(len) as usize;
        if len > RECORD_MAX {
            return Err(self.damaged("has a record that is too long"));
        }
        let mut body = vec![0; len];
        self.fill(&mut body)?;
        self.checksum = checksum(self.checksum, &body);
        if self.checksum != number(wanted) {
            return Err(self.damaged("has a record with a wrong checksum"));
        }
        self.count += 1;
        postcard::from_bytes(&body).map_err(|_| self.damaged("has a record that cannot be read"))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        match self.from.read_exact(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.damaged("ends too early"))
            }
            other => other.with_context(|| self.shown()),
        }
    }

    fn shown(&self) -> String {
        format!("cannot read {}", self.path.display())
    }

    fn damaged(&self, how: &str) -> anyhow::Error {
        let (shown, count) = (self.path.display(), self.count);
        anyhow::anyhow!("{shown} is damaged: it {how}, after {count} records. Take another backup")
    }
}

fn is_name(name: &Name) -> bool {
    let special = matches!(&name[..], b"" | b"." | b"..");
    !special
        && name.len() <= meridian_fs::types::NAME_MAX
        && !name.iter().any(|b| matches!(b, b'/' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parent: u64, name: &str, kind: Kind, size: u64) -> Record {
        let time = Timestamp::from_millis(7);
        let name = Bytes::copy_from_slice(name.as_bytes());
        let (xattrs, target, placement, quota) = Default::default();
        let (atime, mtime) = (time, time);
        let (mode, uid, gid, rdev) = (0o644, 1, 2, 0);
        Record::Node(Box::new(Node {
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
        }))
    }

    fn data(offset: u64, bytes: &'static [u8]) -> Record {
        Record::Data { offset, bytes: Bytes::from_static(bytes) }
    }

    fn records() -> Vec<Record> {
        let name = Record::Name { parent: 0, name: Bytes::from_static(b"also"), of: 1 };
        let top = node(0, "", Kind::Directory, 0);
        vec![top, node(0, "file", Kind::File, 100), data(5, b"abc"), data(50, b"d"), name]
    }

    fn write(path: &Path, records: &[Record]) -> anyhow::Result<()> {
        let mut writer = Writer::create(path)?;
        let header = Header { cluster: 1, path: "/x".into(), at: 3, taken_ms: 4 };
        writer.begin(&header)?;
        records.iter().try_for_each(|record| writer.write(record))?;
        let totals = *writer.totals();
        writer.finish(&totals)
    }

    fn read(path: &Path) -> anyhow::Result<Vec<Record>> {
        let (mut reader, mut all) = (Reader::open(path)?, Vec::new());
        while let Some(record) = reader.next()? {
            all.push(record);
        }
        Ok(all)
    }

    #[test]
    fn what_is_written_is_read_and_nothing_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monday");
        write(&path, &records()).unwrap();
        assert_eq!(read(&path).unwrap(), records());
        assert!(write(&path, &records()).unwrap_err().to_string().contains("exists"));
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn one_that_is_given_up_leaves_nothing_and_two_do_not_write_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monday");
        let first = Writer::create(&path).unwrap();
        let second = Writer::create(&path).unwrap_err().to_string();
        assert!(second.contains("another backup"), "{second}");
        drop(first);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
        std::fs::write(dir.path().join(".monday.part"), "of one that was killed").unwrap();
        write(&path, &records()).unwrap();
        assert_eq!(read(&path).unwrap(), records());
    }

    #[test]
    fn each_changed_byte_and_each_missing_one_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monday");
        write(&path, &records()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            assert!(read(&path).is_err(), "byte {at} of {}", whole.len());
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(read(&path).is_err(), "cut after {at} bytes");
        }
        std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("goes on after its end"));
    }

    #[test]
    fn records_that_make_no_sense_are_refused() {
        let top = || node(0, "", Kind::Directory, 0);
        let file = |size| node(0, "f", Kind::File, size);
        let name = |parent, of| Record::Name { parent, name: Bytes::from_static(b"n"), of };
        let wrong = [
            vec![],
            vec![file(1)],
            vec![top(), node(1, "f", Kind::File, 1)],
            vec![top(), node(0, "..", Kind::File, 1)],
            vec![top(), node(0, "a/b", Kind::File, 1)],
            vec![top(), data(0, b"x")],
            vec![top(), file(2), data(0, b"xyz")],
            vec![top(), file(9), data(5, b"x"), data(4, b"x")],
            vec![top(), file(1), name(1, 1)],
            vec![top(), file(1), name(0, 0)],
            vec![top(), file(1), name(0, 2)],
        ];
        let dir = tempfile::tempdir().unwrap();
        for (number, records) in wrong.iter().enumerate() {
            let path = dir.path().join(number.to_string());
            write(&path, records).unwrap();
            assert!(read(&path).is_err(), "{records:?}");
        }
    }
}
