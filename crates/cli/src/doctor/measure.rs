//! What a machine is like, as it says itself.

use anyhow::Context;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// So often a block is written and synced to see how fast the disk is.
const SYNCS: usize = 50;
/// What a node's log writes at least.
const BLOCK: [u8; 4096] = [7; 4096];
/// How long a node may take to be reached.
const PATIENCE: Duration = Duration::from_secs(3);
/// For so long the clock is watched: a service that sets it by steps does so all the time.
const CLOCK_WATCHED: Duration = Duration::from_millis(500);

/// The kernel's release, as `6.18.1`; nothing if the system does not tell.
pub fn kernel() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_string()
}

/// Whether the kernel's FUSE offers `io_uring`; nothing if it does not know of that.
pub fn offers_rings() -> Option<bool> {
    let text = fs::read_to_string("/sys/module/fuse/parameters/enable_uring").ok()?;
    Some(text.trim() == "Y")
}

/// Whether the clock is kept in step with others, and by how much it may be wrong.
///
/// # Errors
/// If the system does not tell.
pub fn clock() -> Result<(bool, Duration), String> {
    // SAFETY: all zeroes is a value of this plain structure, and asks for nothing to be changed.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to that structure, which outlives the call.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    if answer < 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    let in_step = answer != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0;
    Ok((in_step, Duration::from_micros(u64::try_from(state.maxerror).unwrap_or(u64::MAX))))
}

/// By how much the clock went faster or slower than the time that passed.
pub fn clock_step() -> Duration {
    let (clock, time) = (SystemTime::now(), Instant::now());
    std::thread::sleep(CLOCK_WATCHED);
    let passed = time.elapsed();
    let shown = clock.elapsed().unwrap_or_else(|error| error.duration());
    shown.abs_diff(passed)
}

/// Bytes that programs can still have.
///
/// # Errors
/// If the system does not tell.
pub fn memory() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/meminfo").map_err(|error| error.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| "/proc/meminfo has no MemAvailable".into())
}

/// How many files a process may have open; no limit is none.
pub fn open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// What a disk is like.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// The magic number of its file system.
    pub kind: u64,
    pub free_bytes: u64,
}

/// The disk that a folder lies on.
///
/// # Errors
/// If it cannot be asked.
pub fn disk(dir: &Path) -> anyhow::Result<Disk> {
    let what = || format!("cannot ask what {} lies on", dir.display());
    let kind = rustix::fs::statfs(dir).with_context(what)?.f_type;
    let room = rustix::fs::statvfs(dir).with_context(what)?;
    // A file system's number is four bytes that some systems show as negative.
    let kind = u64::from(u32::try_from(kind & 0xffff_ffff).unwrap_or_default());
    Ok(Disk { kind, free_bytes: room.f_bavail * room.f_frsize })
}

/// How long it takes to write a block and sync it, in the middle and at worst.
///
/// # Errors
/// If the disk refuses.
pub fn syncs(dir: &Path) -> io::Result<(Duration, Duration)> {
    let path = dir.join(format!(".meridian-doctor-{}", std::process::id()));
    let result = timed_syncs(&path);
    let _ = fs::remove_file(&path); // As good as it gets: the disk may refuse that, too.
    let mut times = result?;
    times.sort_unstable();
    Ok((times[SYNCS / 2], times[SYNCS - 1]))
}

fn timed_syncs(path: &Path) -> io::Result<Vec<Duration>> {
    let mut file = File::create_new(path)?;
    // As the log does: the file's length does not change, so only blocks are written.
    file.write_all(&vec![0; BLOCK.len() * SYNCS])?;
    file.sync_all()?;
    let offsets = (0..SYNCS as u64).map(|at| at * BLOCK.len() as u64);
    offsets
        .map(|at| {
            let begin = Instant::now();
            file.write_all_at(&BLOCK, at)?;
            file.sync_data()?;
            Ok(begin.elapsed())
        })
        .collect()
}

/// Whether a server could listen there.
///
/// # Errors
/// What the system says.
pub fn listen(address: &str) -> Result<(), String> {
    TcpListener::bind(address).map(drop).map_err(|error| error.to_string())
}

/// How long it takes to connect.
///
/// # Errors
/// What the system says.
pub fn connect(address: &str) -> Result<Duration, String> {
    let to: Vec<SocketAddr> = address
        .to_socket_addrs()
        .map_err(|error| format!("the name is not known: {error}"))?
        .collect();
    let mut last = "the name has no address".to_string();
    for to in to {
        let begin = Instant::now();
        match TcpStream::connect_timeout(&to, PATIENCE) {
            Ok(_) => return Ok(begin.elapsed()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}
