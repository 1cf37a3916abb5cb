//! Programs make the same calls, drawn at random, in two mounts and on the local disk: each call
//! has the same answer in both.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/mounted.rs"]
mod mounted;
#[path = "harness/random.rs"]
mod random;

use harness::Room;
use meridian_client::Durability;
use mounted::mount_here;
use random::Random;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};
use tokio::runtime::Runtime;

/// So many calls are made in one pair of mounts. With `STEPS` it can be set, with `SEED` what is
/// drawn.
const STEPS: usize = 1500;
/// One of so many calls is made in the other mount.
const OTHER: usize = 20;
const NAMES: [&str; 5] = ["a", "b", "c", "dd", "e.log"];
const DIRECTORIES: [&str; 4] = ["", "d1", "d2", "d1/s"];
const LENGTHS: [usize; 7] = [1, 10, 100, 1000, 5000, 70_000, 300_000];
const OFFSETS: [u64; 5] = [0, 5, 100, 4096, 10_000];
const ENDS: [u64; 5] = [0, 3, 50, 4096, 9000];
const OPEN_MAX: usize = 6;

/// A file that is open shows what another mount has changed after two ticks of the kernel's clock
/// (decision 6): so long on a busy machine.
const BEHIND: Duration = Duration::from_secs(1);

/// What a call returns, or the number of its error.
type Answer = Result<Vec<u8>, Option<i32>>;

/// A file that is open in a mount and on the disk.
struct Open {
    name: PathBuf,
    mount: usize,
    file: File,
    model: File,
}

/// Two mounts of a directory, and one on the disk that must be like it.
struct Programs {
    random: Random,
    mounts: [PathBuf; 2],
    disk: PathBuf,
    open: Vec<Open>,
    /// The mount in which the last call was made. What is written through an open file is seen in
    /// the other when it was synced.
    last: usize,
    /// What was done, for who looks for the reason.
    done: Vec<String>,
}

fn nothing(result: io::Result<()>) -> io::Result<Vec<u8>> {
    result.map(|()| Vec::new())
}

/// Of directories the disk counts others, and of others than files other bytes.
fn told(mode: u32, links: u64, len: u64) -> Vec<u8> {
    let kind = FileType::from_raw_mode(mode);
    let links = if kind.is_dir() { 0 } else { links };
    let len = if kind.is_file() { len } else { 0 };
    format!("mode {mode:o}, {links} links, {len} bytes").into()
}

fn shown(metadata: &fs::Metadata) -> Vec<u8> {
    told(metadata.mode(), metadata.nlink(), metadata.len())
}

/// Without the time in which it was made, for which the kernel asks once more.
fn look(path: &Path) -> io::Result<Vec<u8>> {
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
    Ok(told(found.stx_mode.into(), found.stx_nlink.into(), found.stx_size))
}

fn is_behind(there: &io::Result<Vec<u8>>, model: &io::Result<Vec<u8>>) -> bool {
    matches!((there, model), (Ok(there), Ok(model)) if there != model)
}

fn list(path: &Path) -> io::Result<Vec<u8>> {
    let names = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(format!("{names:?}").into())
}

fn set_times(path: &Path, second: u64) -> io::Result<Vec<u8>> {
    let time = UNIX_EPOCH + Duration::from_secs(second);
    let file = File::open(path)?;
    file.set_times(FileTimes::new().set_accessed(time).set_modified(time))?;
    Ok(format!("{:?}", fs::metadata(path)?.modified()?).into())
}

fn read_at(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let (mut bytes, mut filled) = (vec![0; len], 0);
    while filled < len {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

impl Programs {
    fn name(&mut self) -> PathBuf {
        let directory = Path::new(self.random.pick(&DIRECTORIES));
        directory.join(self.random.pick(&NAMES))
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.random.pick(&LENGTHS);
        self.random.bytes(len)
    }

    /// The mount of the next call.
    fn turn(&mut self, mount: usize) {
        if mount != self.last {
            self.open.iter().for_each(|open| open.file.sync_all().unwrap());
        }
        self.last = mount;
    }

    fn compare(&mut self, what: String, there: io::Result<Vec<u8>>, model: io::Result<Vec<u8>>) {
        self.done.push(what);
        let answer = |of: io::Result<Vec<u8>>| of.map_err(|error| error.raw_os_error());
        let [there, model]: [Answer; 2] = [there, model].map(answer);
        if there == model {
            return;
        }
        self.done.iter().rev().take(40).rev().for_each(|what| eprintln!("{what}"));
        let short = |answer: Answer| match answer {
            Ok(bytes) if bytes.len() > 200 => format!("{} bytes, others", bytes.len()),
            Ok(bytes) => format!("'{}'", bytes.escape_ascii()),
            Err(error) => format!("error {error:?}"),
        };
        panic!("call {}: {} instead of {}", self.done.len(), short(there), short(model));
    }

    /// Makes a call of a path in a mount and on the disk.
    fn call(&mut self, what: &str, name: &Path, call: impl Fn(&Path) -> io::Result<Vec<u8>>) {
        let mount = self.last;
        let there = call(&self.mounts[mount].join(name));
        let model = call(&self.disk.join(name));
        self.compare(format!("{what} {} in {mount}", name.display()), there, model);
    }

    /// The same of two paths.
    fn call_both(&mut self, what: &str, call: impl Fn(&Path, &Path) -> io::Result<()>) {
        let [from, to] = [self.name(), self.name()];
        let mount = self.last;
        let of = |root: &Path| nothing(call(&root.join(&from), &root.join(&to)));
        let (there, model) = (of(&self.mounts[mount]), of(&self.disk));
        let what = format!("{what} {} {} in {mount}", from.display(), to.display());
        self.compare(what, there, model);
    }

    fn open(&mut self) {
        let (name, mount) = (self.name(), self.last);
        let mut options = OpenOptions::new();
        match self.random.below(5) {
            0 => options.read(true),
            1 => options.read(true).write(true),
            2 => options.read(true).write(true).create_new(true),
            3 => options.read(true).write(true).create(true).truncate(true),
            _ => options.read(true).append(true).create(true),
        };
        options.custom_flags(libc::O_NOFOLLOW);
        let [there, model] =
            [&self.mounts[mount], &self.disk].map(|root| options.open(root.join(&name)));
        let answers = [&there, &model].map(|of| match of {
            Ok(_) => Ok(Vec::new()),
            Err(error) => Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap())),
        });
        let [one, two] = answers;
        self.compare(format!("open {} {options:?} in {mount}", name.display()), one, two);
        let (Ok(file), Ok(model)) = (there, model) else { return };
        if file.metadata().unwrap().is_file() {
            self.open.push(Open { name, mount, file, model });
        }
    }

    /// Makes a call of an open file.
    fn call_open(&mut self) {
        let at = self.random.below(self.open.len());
        self.turn(self.open[at].mount);
        let (offset, end) = (self.random.pick(&OFFSETS), self.random.pick(&ENDS));
        let (len, which) = (self.random.pick(&LENGTHS), self.random.below(8));
        let bytes = if (1..4).contains(&which) { self.bytes() } else { Vec::new() };
        let call = |file: &File| match which {
            1 => nothing((&mut { file }).write_all(&bytes)),
            2 | 3 => nothing(file.write_all_at(&bytes, offset)),
            4 => nothing(file.set_len(end)),
            5 => nothing(file.sync_data()),
            6 => file.metadata().map(|metadata| shown(&metadata)),
            7 => read_at(file, offset, len),
            _ => unreachable!("0 closes"),
        };
        if which == 0 {
            let open = self.open.swap_remove(at);
            return self.done.push(format!("close {} in {}", open.name.display(), open.mount));
        }
        let open = &self.open[at];
        let what = ["", "write", "write_at", "write_at", "cut", "sync", "fstat", "read_at"][which];
        let of = [offset, end, len as u64, bytes.len() as u64];
        let what = format!("{what} {of:?} {} in {}", open.name.display(), open.mount);
        let model = call(&open.model);
        let mut there = call(&open.file);
        let since = Instant::now();
        while which > 5 && is_behind(&there, &model) && since.elapsed() < BEHIND {
            std::thread::yield_now();
            there = call(&open.file);
        }
        self.compare(what, there, model);
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0 if self.open.len() < OPEN_MAX => {
                let mount = usize::from(self.random.below(OTHER) == 0);
                self.turn(mount);
                return self.open();
            }
            0..4 if !self.open.is_empty() => return self.call_open(),
            _ => {}
        }
        let mount = usize::from(self.random.below(OTHER) == 0);
        self.turn(mount);
        let name = self.name();
        let directory = PathBuf::from(self.random.pick(&DIRECTORIES));
        match self.random.below(30) {
            0..4 => self.call("remove", &name, |path| nothing(fs::remove_file(path))),
            4..8 => self.call_both("rename", |from, to| fs::rename(from, to)),
            8..10 => self.call_both("link", |from, to| fs::hard_link(from, to)),
            10..12 => self.call("mkdir", &directory, |path| nothing(fs::create_dir(path))),
            12 => self.call("rmdir", &directory, |path| nothing(fs::remove_dir(path))),
            13 => self.call("symlink", &name, |path| nothing(symlink("b", path))),
            14..17 => self.call("stat", &name, look),
            17..19 => self.call("list", &directory, list),
            19 => {
                let mode = self.random.pick(&[0o600, 0o644, 0o755]);
                let set = |path: &Path| fs::set_permissions(path, Permissions::from_mode(mode));
                self.call("chmod", &name, |path| nothing(set(path)));
            }
            20 => {
                let second = self.random.below(1 << 30) as u64;
                self.call("touch", &name, |path| set_times(path, second));
            }
            21..24 => self.call("read", &name, |path| fs::read(path)),
            24..27 => {
                let bytes = self.bytes();
                let append = |path: &Path| {
                    let options = OpenOptions::new().append(true).create(true).open(path);
                    options?.write_all(&bytes)
                };
                self.call(&format!("append {}", bytes.len()), &name, |path| nothing(append(path)));
            }
            27..29 => {
                let bytes = self.bytes();
                self.call(&format!("write {}", bytes.len()), &name, |path| {
                    nothing(fs::write(path, &bytes))
                });
            }
            _ => {
                let end = self.random.pick(&ENDS);
                let cut = |path: &Path| OpenOptions::new().write(true).open(path)?.set_len(end);
                self.call(&format!("cut to {end}"), &name, |path| nothing(cut(path)));
            }
        }
    }

    /// All is alike in the end, in both mounts.
    fn end(mut self) {
        self.open.iter().for_each(|open| open.file.sync_all().unwrap());
        self.open.clear();
        let model = tree(&self.disk);
        for mount in &self.mounts {
            assert_eq!(tree(mount), model, "{}", mount.display());
        }
    }
}

/// All below a directory, as it is shown, and the bytes of files.
fn tree(top: &Path) -> BTreeMap<PathBuf, (String, Vec<u8>)> {
    let (mut found, mut left) = (BTreeMap::new(), vec![top.to_path_buf()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let bytes = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            if metadata.is_dir() {
                left.push(path.clone());
            }
            let shown = String::from_utf8(shown(&metadata)).unwrap();
            found.insert(path.strip_prefix(top).unwrap().to_path_buf(), (shown, bytes));
        }
    }
    found
}

fn set(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

#[test]
fn two_mounts_answer_as_the_local_disk_does() {
    let room = Room::new();
    let demo = room.demo();
    let runtime = Runtime::new().unwrap();
    let mounts = [
        ("us", Durability::Fsync),
        ("us", Durability::Close),
        ("eu", Durability::Fsync),
        ("us", Durability::Sync),
    ];
    let _entered = runtime.enter();
    let mounts =
        mounts.map(|(region, when)| mount_here(&room, &format!("{region} {when:?}"), region, when));
    let mut kept = 0;
    for (round, pair) in [[0, 1], [0, 2], [2, 1], [2, 3]].into_iter().enumerate() {
        let pair = pair.map(|at| &mounts[at]);
        let name = format!("us/round {round}");
        let [first, second] = [0, 1].map(|at| pair[at].path().join(&name));
        let disk = room.path(&format!("disk {round}"));
        [&first, &disk].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let seed = set("SEED", 1) * mounts.len() + round;
        let mut programs = Programs {
            random: Random::new(seed as u64),
            mounts: [first, second],
            disk,
            open: Vec::new(),
            last: 0,
            done: Vec::new(),
        };
        for _ in 0..set("STEPS", STEPS) {
            programs.step();
        }
        programs.end();
        kept += pair[0].files().kept_back();
    }
    assert!(kept > 0, "nothing was kept back");
    for mount in mounts {
        runtime.block_on(mount.unmount()).unwrap();
    }
    demo.stop();
    room.assert_clean();
}
