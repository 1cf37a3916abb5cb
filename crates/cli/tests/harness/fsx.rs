//! Programs that use files at random and know, byte for byte, what must be in them.
//!
//! After fsx of Apple and others: one worker has one file, and a model of it in memory. What is not
//! yet acknowledged as durable may be lost with its mount, so the model also keeps each state since
//! the last `fsync` or `close`: after a crash each byte must be as in one of them.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::crowd::Progress;
use crate::random::Random;
use crate::weather::View;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files are no longer: some blocks.
const LEN_MAX: usize = 300_000;
/// States that a model keeps before it makes them one by `fsync`.
const STATES_MAX: usize = 25;
/// How long another mount may show an old state, and a file refuse to be read.
const HEAL: Duration = Duration::from_secs(90);
/// How often is tried again what nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What a file must hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    now: Vec<u8>,
    /// States that a crash may bring back: the one acknowledged last, and all after it.
    states: Vec<Vec<u8>>,
}

impl Model {
    fn of(bytes: Vec<u8>) -> Model {
        Model { states: vec![bytes.clone()], now: bytes }
    }

    /// What an operation that begins would make of it.
    fn may_be(&mut self, bytes: Vec<u8>) {
        self.states.push(bytes);
    }

    /// The operation succeeded.
    fn is_last(&mut self) {
        self.now = self.states.last().unwrap().clone();
    }

    /// What is now is durable.
    fn is_durable(&mut self) {
        self.states = vec![self.now.clone()];
    }

    /// It was unlinked, and perhaps not yet made again, when the mount was killed.
    pub fn may_be_gone(&self) -> bool {
        self.states.len() > 1 && self.states.iter().any(Vec::is_empty)
    }

    /// What is wrong with `found`, which is read after a crash or an error.
    pub fn objection(&self, found: &[u8]) -> Option<String> {
        let lens: Vec<usize> = self.states.iter().map(Vec::len).collect();
        if !lens.contains(&found.len()) {
            return Some(format!("{} bytes long, and not one of {lens:?}", found.len()));
        }
        // Beyond the end of a shorter state there is nothing, which reads as 0.
        let of = |state: &Vec<u8>, at: usize| state.get(at).copied().unwrap_or(0);
        let wrong = |at: &usize| self.states.iter().all(|state| of(state, *at) != found[*at]);
        let wrong: Vec<usize> = (0..found.len()).filter(wrong).collect();
        let first = *wrong.first()?;
        let (is, last) = (found[first], of(self.states.last().unwrap(), first));
        Some(format!(
            "{} of {} bytes are of no state that it had: the first at {first} is {is:#04x}, not {last:#04x}",
            wrong.len(),
            found.len()
        ))
    }
}

/// What a worker did.
#[derive(Debug, Default)]
pub struct Told {
    pub operations: u64,
    /// Reads compared with the model, those through the other mount among them.
    pub compared: u64,
    pub compared_there: u64,
    pub errors: Vec<String>,
    pub longest: Duration,
    pub longest_what: &'static str,
    /// The file, from the mount's root, and what must be in it.
    pub path: PathBuf,
    pub model: Model,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} operations, {} reads compared, {} through the other mount, {} errors {:?}, the longest {:?} ({})",
            self.path.display(),
            self.operations,
            self.compared,
            self.compared_there,
            self.errors.len(),
            self.errors.last(),
            self.longest,
            self.longest_what
        )
    }
}

impl Told {
    /// The file is as its user knows it, below that mount.
    pub fn check(&self, mount: &Path) {
        let path = mount.join(&self.path);
        match fs::read(&path) {
            Ok(found) => {
                let objection = self.model.objection(&found);
                assert_eq!(objection, None, "{}", path.display());
            }
            // Unlinked, and not yet made again.
            Err(error) => {
                let none = error.kind() == io::ErrorKind::NotFound;
                assert!(none && self.model.may_be_gone(), "{} is lost: {error}", path.display());
            }
        }
    }
}

/// One file, used until told to stop.
pub struct Worker {
    random: Random,
    view: View,
    /// When the file was durable last: an error that is told now may be of anything since.
    durable: Instant,
    /// The file, and the same through the other mount.
    here: PathBuf,
    there: PathBuf,
    /// Where files are made that are renamed to it.
    makers: Vec<PathBuf>,
    model: Model,
    told: Told,
}

impl Worker {
    /// Uses `place/name` through the first of two mounts, and files renamed to it from `makers`
    /// (places, too).
    pub fn new(
        seed: u64,
        view: View,
        [here, there]: [&Path; 2],
        place: &str,
        makers: &[&str],
    ) -> Worker {
        let name = format!("file-{seed}");
        Worker {
            random: Random::new(seed),
            view,
            durable: Instant::now(),
            here: here.join(place).join(&name),
            there: there.join(place).join(&name),
            makers: makers.iter().map(|place| here.join(place)).collect(),
            model: Model::of(Vec::new()),
            told: Told { path: Path::new(place).join(&name), ..Told::default() },
        }
    }

    /// Goes on until `stop` is set or the mount is killed. Panics if bytes are wrong.
    pub fn run(mut self, progress: &Progress) -> Told {
        let mut file = open(&self.here, true).unwrap();
        while !progress.must_stop() {
            let begun = Instant::now();
            let (what, done) = self.step(&mut file, progress);
            if begun.elapsed() > self.told.longest {
                (self.told.longest, self.told.longest_what) = (begun.elapsed(), what);
            }
            match done {
                Ok(()) => self.told.operations += 1,
                Err(error) => {
                    let why = format!("{what} of {}: {error}", self.here.display());
                    self.check_excused(&error, &why);
                    if self.view.is_gone(&error) {
                        return self.end();
                    }
                    match self.resume(&why, progress) {
                        Some(resumed) => file = resumed,
                        None => return self.end(),
                    }
                    self.told.errors.push(why);
                }
            }
        }
        progress.begin("the last fsync");
        match file.sync_all() {
            Ok(()) => self.is_durable(),
            Err(error) => self.check_excused(&error, "the last fsync"),
        }
        self.end()
    }

    /// An answer of the file system that no fault excuses ends the test.
    fn check_excused(&self, error: &io::Error, why: &str) {
        let path = self.here.display();
        assert!(self.view.excuses(error, self.durable), "{path}: {error}, {why}");
    }

    fn is_durable(&mut self) {
        self.model.is_durable();
        self.durable = Instant::now();
    }

    fn end(mut self) -> Told {
        self.told.model = self.model;
        self.told
    }

    /// After an error: which of the states that are possible it is. `None` if the mount is killed.
    ///
    /// Each try is a call: what stays refused as long as disks are full does not stand still.
    fn resume(&mut self, why: &str, progress: &Progress) -> Option<File> {
        let end = Instant::now() + HEAL;
        let again = || -> io::Result<(File, Vec<u8>)> {
            progress.begin("resume");
            drop(open(&self.here, true)?);
            // What was given up may still happen, but not after an update that touches the same.
            fs::set_permissions(&self.here, Permissions::from_mode(0o644))?;
            let file = open(&self.here, false)?;
            file.sync_all()?;
            Ok((file, fs::read(&self.here)?))
        };
        let (file, found) = loop {
            match again() {
                Ok(read) => break read,
                Err(error) if self.view.is_gone(&error) => return None,
                Err(error) => {
                    // Its unlinking was given up, and has happened.
                    if error.kind() != io::ErrorKind::NotFound {
                        self.check_excused(&error, why);
                    }
                    assert!(Instant::now() < end, "still {error} after {why}");
                    std::thread::sleep(LOOK_AGAIN);
                }
            }
        };
        if let Some(objection) = self.model.objection(&found) {
            panic!("after an error ({why}): {objection}");
        }
        self.model = Model::of(found);
        self.durable = Instant::now();
        Some(file)
    }

    fn step(&mut self, file: &mut File, progress: &Progress) -> (&'static str, io::Result<()>) {
        type Operation = fn(&mut Worker, &mut File) -> io::Result<()>;
        const OPERATIONS: [(usize, &str, Operation); 10] = [
            (30, "write", Worker::write),
            (25, "read", Worker::read),
            (6, "truncate", Worker::truncate),
            (8, "append", Worker::append),
            (6, "fsync", Worker::fsync),
            (8, "close and open", Worker::reopen),
            (5, "rename over", Worker::rename_over),
            (3, "unlink and create", Worker::recreate),
            (5, "mapped read", Worker::read_mapped),
            (4, "read through the other mount", Worker::read_there),
        ];
        if self.model.states.len() >= STATES_MAX {
            progress.begin("fsync");
            return ("fsync", self.fsync(file));
        }
        let mut left = self.random.below(OPERATIONS.iter().map(|(weight, _, _)| weight).sum());
        for (weight, what, operation) in OPERATIONS {
            if left < weight {
                progress.begin(what);
                return (what, operation(self, file));
            }
            left -= weight;
        }
        unreachable!("weights add up")
    }

    fn write(&mut self, file: &mut File) -> io::Result<()> {
        // Now and then beyond the end, which leaves a hole.
        let beyond = if self.random.below(5) == 0 { 5000 } else { 1 };
        let at = self.random.below((self.model.now.len() + beyond).min(LEN_MAX));
        let any = 1 + self.random.below(70_000);
        let len = self.random.pick(&[1, 10, 100, 4096, any]).min(LEN_MAX - at);
        let data = self.random.bytes(len);
        let mut bytes = self.model.now.clone();
        bytes.resize(bytes.len().max(at + len), 0);
        bytes[at..at + len].copy_from_slice(&data);
        self.model.may_be(bytes);
        file.write_all_at(&data, at as u64)?;
        self.model.is_last();
        Ok(())
    }

    fn read(&mut self, file: &mut File) -> io::Result<()> {
        let at = self.random.below(self.model.now.len() + 1);
        let end =
            (at + self.random.pick(&[1, 100, 4096, 70_000, LEN_MAX])).min(self.model.now.len());
        let mut found = vec![0; end - at];
        file.read_exact_at(&mut found, at as u64)?;
        self.compare("a read", at, &found, end);
        let len = usize::try_from(file.metadata()?.len()).unwrap();
        assert_eq!(len, self.model.now.len(), "length of {}", self.here.display());
        Ok(())
    }

    fn compare(&mut self, how: &str, at: usize, found: &[u8], end: usize) {
        self.told.compared += 1;
        let wanted = &self.model.now[at..end];
        if found != wanted {
            let wrong = found.iter().zip(wanted).position(|(is, should)| is != should);
            panic!(
                "{how} of {} at {at}: {} bytes, wanted {}; the first that differs: {:?}",
                self.here.display(),
                found.len(),
                wanted.len(),
                wrong.map(|wrong| at + wrong)
            );
        }
    }

    fn truncate(&mut self, file: &mut File) -> io::Result<()> {
        let now = self.model.now.len();
        let (less, more) = (self.random.below(now + 1), now + self.random.below(20_000));
        let len = self.random.pick(&[0, now / 2, less, more.min(LEN_MAX)]);
        let mut bytes = self.model.now.clone();
        bytes.resize(len, 0);
        self.model.may_be(bytes);
        file.set_len(len as u64)?;
        self.model.is_last();
        Ok(())
    }

    fn append(&mut self, _: &mut File) -> io::Result<()> {
        let len = (1 + self.random.below(9000)).min(LEN_MAX - self.model.now.len());
        let data = self.random.bytes(len);
        self.model.may_be([&self.model.now[..], &data].concat());
        let mut file = File::options().append(true).open(&self.here)?;
        file.write_all(&data)?;
        self.model.is_last();
        close(file)?;
        self.is_durable();
        Ok(())
    }

    fn fsync(&mut self, file: &mut File) -> io::Result<()> {
        file.sync_all()?;
        self.is_durable();
        Ok(())
    }

    fn reopen(&mut self, file: &mut File) -> io::Result<()> {
        let opened = open(&self.here, false)?;
        close(std::mem::replace(file, opened))?;
        self.is_durable();
        let found = fs::read(&self.here)?;
        self.compare("a read after close", 0, &found, self.model.now.len());
        Ok(())
    }

    fn rename_over(&mut self, file: &mut File) -> io::Result<()> {
        let count = self.makers.len();
        let name = format!("{}.new", self.here.file_name().unwrap().to_string_lossy());
        let new = self.makers[self.random.below(count)].join(name);
        let any = self.random.below(LEN_MAX);
        let data = self.random.pick(&[0, 10, 15_000, 17_000, any]);
        let data = self.random.bytes(data);
        let made = File::options().write(true).create(true).truncate(true).open(&new)?;
        made.write_all_at(&data, 0)?;
        close(made)?;
        self.fsync(file)?;
        self.model.may_be(data);
        fs::rename(&new, &self.here)?;
        self.model.is_last();
        self.is_durable();
        *file = open(&self.here, false)?;
        Ok(())
    }

    /// What was unlinked stays readable where it is open.
    fn recreate(&mut self, file: &mut File) -> io::Result<()> {
        self.fsync(file)?;
        self.model.may_be(Vec::new());
        fs::remove_file(&self.here)?;
        let mut found = vec![0; self.model.now.len()];
        let old = std::mem::replace(file, open(&self.here, true)?);
        old.read_exact_at(&mut found, 0)?;
        self.compare("a read of an unlinked file", 0, &found, found.len());
        self.model.is_last();
        self.is_durable();
        Ok(())
    }

    fn read_mapped(&mut self, file: &mut File) -> io::Result<()> {
        if !self.model.now.is_empty() {
            let found = mapped(file, self.model.now.len())?;
            self.compare("a mapped read", 0, &found, found.len());
        }
        Ok(())
    }

    /// Another mount sees what is in a closed file, if not at once: its reads are causal, and
    /// nothing told it that the file has been closed.
    fn read_there(&mut self, file: &mut File) -> io::Result<()> {
        self.reopen(file)?;
        let end = Instant::now() + HEAL;
        loop {
            match fs::read(&self.there) {
                Ok(found) if found == self.model.now => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let there = self.there.display();
            assert!(Instant::now() < end, "{there}: another mount still sees what was before");
            std::thread::sleep(LOOK_AGAIN);
        }
        self.told.compared_there += 1;
        Ok(())
    }
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    File::options().read(true).write(true).create(create).truncate(false).open(path)
}

/// Closes `file` and returns the error, which dropping it would not.
pub fn close(file: File) -> io::Result<()> {
    let fd = std::os::fd::IntoRawFd::into_raw_fd(file);
    // SAFETY: the descriptor was the file's alone, and nobody uses it afterwards.
    match unsafe { libc::close(fd) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How often a page is asked for that a mapping cannot have, though `read` has it.
const TRIES: usize = 3;

/// The bytes of `file` as a mapping shows them. The kernel copies them: where a page cannot be had,
/// as the mount was killed, it returns an error, and looking at the page would be the end of this
/// process (SIGBUS). That does not say why; `read` of the same page does.
fn mapped(file: &File, len: usize) -> io::Result<Vec<u8>> {
    let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
    // SAFETY: a new descriptor, which nobody else knows.
    let copy = unsafe {
        let fd = libc::memfd_create(c"copy".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    // SAFETY: a new mapping, which nobody else knows.
    let address =
        unsafe { libc::mmap(std::ptr::null_mut(), len, read, private, file.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let (mut copied, mut tries) = (0, 0);
    let result = loop {
        if copied == len {
            break Ok(());
        }
        // SAFETY: the mapping has `len` bytes, and no reference is made to it.
        let more = unsafe { libc::write(copy.as_raw_fd(), address.add(copied), len - copied) };
        if let Some(more) = usize::try_from(more).ok().filter(|more| *more > 0) {
            copied += more;
        } else if let Err(why) = file.read_at(&mut [0], copied as u64) {
            break Err(why);
        } else if tries == TRIES {
            let what = format!("{copied} of {len} mapped bytes could be read");
            break Err(io::Error::other(what));
        } else {
            tries += 1;
        }
    };
    // SAFETY: nobody uses the mapping any more.
    unsafe { libc::munmap(address, len) };
    result?;
    let mut bytes = vec![0; len];
    copy.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[test]
fn a_mapped_page_that_cannot_be_had_is_an_error() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 100]).unwrap();
    assert_eq!(mapped(&file, 100).unwrap(), [7; 100]);
    let after_the_end = mapped(&file, 3 << 12).unwrap_err().to_string();
    assert!(after_the_end.contains("4096 of 12288"), "{after_the_end}");
}
