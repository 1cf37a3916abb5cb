//! The first exchange with the kernel, and the threads that read requests.

use crate::abi::{self, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, PAGE, flag};
use crate::device::Device;
use crate::interrupts::Interrupts;
use crate::mounting::{self, Options};
use crate::reply::{Reply, Way};
use crate::request::{Received, Request, buffer_size, forgotten, parse};
use crate::rings::Prepared;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// So many requests that nobody waits for, as reading ahead, are under way at a time; and from so
/// many on the kernel holds back who makes more of them.
const BACKGROUND: (u16, u16) = (64, 48);

/// Who answers.
pub trait Service: Send + Sync + 'static {
    /// Answers a request, now or later. Several threads call it at a time; a call that waits holds
    /// up the requests behind it.
    fn call(&self, request: Request<'_>, reply: Reply);

    /// The kernel has dropped so many references to a node: each reply that named it as an entry
    /// had given it one. Without any the node is in no use there.
    fn forget(&self, node: u64, lookups: u64) {
        let _ = (node, lookups);
    }
}

/// A mounted file system. Dropped, it goes on; it ends when it is unmounted.
#[derive(Debug)]
pub struct Session {
    threads: Vec<JoinHandle<io::Result<()>>>,
    notifier: Notifier,
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Over a ring for each processor.
    Rings,
    /// Through the device file.
    Device,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rings => "io_uring",
            Transport::Device => "/dev/fuse",
        })
    }
}

/// Tells the kernel what it has not asked for.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Arc<Device>,
    transport: Transport,
    has_epochs: bool,
}

impl Notifier {
    /// How requests come.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether the kernel can be told to drop names without waiting for calls in their directories.
    pub fn drops_names(&self) -> bool {
        self.has_epochs
    }

    /// The kernel is to look up all names again: also those whose look-up is not answered yet, or
    /// is answered and not yet noted. Waits for no call.
    ///
    /// # Errors
    /// As those of `writev`; or the kernel is too old.
    pub fn drop_names(&self) -> io::Result<()> {
        self.device.reply(0, NOTIFY_INC_EPOCH, &[])
    }

    /// The kernel is to drop a name in the node `parent`, with all names below it. Waits for all
    /// calls that change the directory, or look up something in it that the kernel does not know:
    /// not to be called where one of these waits for an answer.
    ///
    /// # Errors
    /// As those of `writev`; `ENOENT` if the kernel does not know the name.
    pub fn drop_name(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let len = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidFilename)?;
        let mut body = Vec::with_capacity(16 + name.len() + 1);
        body.extend_from_slice(&parent.to_ne_bytes());
        body.extend_from_slice(&len.to_ne_bytes());
        body.extend_from_slice(&0_u32.to_ne_bytes()); // No flags.
        body.extend_from_slice(name);
        body.push(0);
        self.device.reply(0, NOTIFY_INVAL_ENTRY, &body)
    }

    /// The kernel is not to keep the attributes of a node. Pages that it has of it stay until it
    /// sees another time of change. A node that it does not know is none of its concern.
    pub fn forget_attributes(&self, node: u64) {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&node.to_ne_bytes());
        body[8..16].copy_from_slice(&(-1_i64).to_ne_bytes());
        let told = self.device.reply(0, NOTIFY_INVAL_INODE, &body);
        if let Err(error) = told
            && error.raw_os_error() != Some(libc::ENOENT)
        {
            tracing::debug!("the kernel does not forget the attributes of {node}: {error}");
        }
    }
}

/// Mounts `service` at `at`, and begins to serve it.
///
/// # Errors
/// If it cannot be mounted there, or the kernel is too old.
pub fn mount<S: Service>(service: S, at: &Path, options: &Options) -> io::Result<Session> {
    let device = mounting::mount(at, options)?;
    let begun = begin(service, device, options, options.max_transfer as usize);
    if begun.is_err() {
        let _ = mounting::unmount(at); // Nobody would answer there.
    } else if let Err(error) = mounting::read_ahead(at, options.read_ahead) {
        tracing::debug!("the kernel reads ahead as far as it does by itself: {error}");
    }
    begun
}

/// With room for so many bytes in each entry of a ring.
fn begin<S: Service>(
    service: S,
    first: Device,
    options: &Options,
    room: usize,
) -> io::Result<Session> {
    let (first, service) = (Arc::new(first), Arc::new(service));
    let shared = Shared { service, device: first.clone(), interrupts: Arc::default() };
    let mut buffer = vec![0; buffer_size(options.max_transfer as usize)];
    let kernel = hear(&first, &mut buffer)?;
    let rings = if options.rings { prepare(&shared, &kernel, options.name, room) } else { None };
    greet(&first, &kernel, options, rings.is_some())?;
    let (mut threads, mut transport) = (Vec::new(), Transport::Device);
    if let Some(rings) = rings {
        let (rings, known) = rings.begin();
        threads = rings;
        match known {
            Ok(()) => transport = Transport::Rings,
            Err(error) => without_rings(&error),
        }
    }
    let readers = match transport {
        Transport::Rings => 1, // For what still comes through the device.
        Transport::Device => options.threads.max(1),
    };
    for number in 0..readers {
        let device = if number == 0 { first.clone() } else { Arc::new(first.again()?) };
        let (shared, size) = (Shared { device, ..shared.clone() }, buffer.len());
        let name = format!("{}-fuse-{number}", options.name);
        let work = move || shared.read(&mut vec![0; size]);
        threads.push(std::thread::Builder::new().name(name).spawn(work)?);
    }
    let has_epochs = kernel.minor >= abi::MINOR_EPOCHS;
    Ok(Session { threads, notifier: Notifier { device: first, transport, has_epochs } })
}

/// How the kernel begins.
struct Kernel {
    unique: u64,
    major: u32,
    minor: u32,
    read_ahead: u32,
    flags: u32,
    more_flags: u32,
}

/// Waits for the kernel to begin.
fn hear(device: &Device, buffer: &mut [u8]) -> io::Result<Kernel> {
    let gone = || io::Error::other("unmounted before it began");
    let received = parse(device.receive(buffer)?.ok_or_else(gone)?);
    let Some(Received::Init { unique, major, minor, read_ahead, flags, more_flags }) = received
    else {
        return Err(io::Error::other("the kernel does not begin as FUSE does"));
    };
    Ok(Kernel { unique, major, minor, read_ahead, flags, more_flags })
}

/// Threads with rings, if the kernel offers to use them, and they can be had.
fn prepare<S: Service>(
    shared: &Shared<S>,
    kernel: &Kernel,
    name: &str,
    room: usize,
) -> Option<Prepared> {
    if kernel.more_flags & flag::RINGS == 0 {
        tracing::info!("the kernel does not offer io_uring, so requests come through the device");
        return None;
    }
    Prepared::new(shared, name, room).inspect_err(without_rings).ok()
}

fn without_rings(error: &io::Error) {
    tracing::warn!("io_uring cannot be used, so requests come through the device: {error}");
}

/// Agrees with the kernel on a version and on what both can do.
fn greet(device: &Device, kernel: &Kernel, options: &Options, rings: bool) -> io::Result<()> {
    let Kernel { unique, major, minor, .. } = *kernel;
    if major != abi::MAJOR || minor < abi::MINOR_MIN {
        device.reply(unique, -libc::EPROTO, &[])?;
        return Err(io::Error::other(format!(
            "the kernel speaks version {major}.{minor} of FUSE; {}.{} is needed (Linux 5.4)",
            abi::MAJOR,
            abi::MINOR_MIN
        )));
    }
    let (more, more_flags) = if rings { (flag::MORE, flag::RINGS) } else { (0, 0) };
    let mut body = Vec::with_capacity(64);
    let mut put = |bytes: &[u8]| body.extend_from_slice(bytes);
    put(&abi::MAJOR.to_ne_bytes());
    put(&minor.min(abi::MINOR_MAX).to_ne_bytes());
    put(&kernel.read_ahead.min(options.read_ahead).to_ne_bytes());
    put(&((wanted(options) | more) & kernel.flags).to_ne_bytes());
    put(&BACKGROUND.0.to_ne_bytes());
    put(&BACKGROUND.1.to_ne_bytes());
    put(&options.max_transfer.to_ne_bytes());
    put(&1_u32.to_ne_bytes()); // Times are exact to a nanosecond.
    // At most a few hundred pages.
    put(&((options.max_transfer as usize).div_ceil(PAGE) as u16).to_ne_bytes());
    put(&0_u16.to_ne_bytes());
    put(&more_flags.to_ne_bytes());
    body.resize(64, 0);
    device.reply(unique, 0, &body)
}

fn wanted(options: &Options) -> u32 {
    let features = &options.features;
    let chosen = [
        (true, flag::ASYNC_READ | flag::BIG_WRITES | flag::MAX_PAGES | flag::ASYNC_DIO),
        (features.locks, flag::POSIX_LOCKS | flag::FLOCK_LOCKS),
        (features.invalidates_by_time, flag::AUTO_INVAL_DATA),
        (features.parallel_directories, flag::PARALLEL_DIROPS),
        (features.access_lists, flag::POSIX_ACL | flag::DONT_MASK | flag::SETXATTR_EXT),
        (features.export, flag::EXPORT_SUPPORT),
    ];
    chosen.iter().filter(|(wanted, _)| *wanted).fold(0, |all, (_, flags)| all | flags)
}

impl Session {
    /// The way to tell the kernel what it has not asked for.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// How requests come.
    pub fn transport(&self) -> Transport {
        self.notifier.transport
    }

    /// Waits until it is unmounted.
    ///
    /// # Errors
    /// If a thread could not read requests any more.
    pub fn join(self) -> io::Result<()> {
        let panicked = |_| io::Error::other("a thread that read requests has panicked");
        let ended =
            self.threads.into_iter().map(|thread| thread.join().map_err(panicked).flatten());
        ended.fold(Ok(()), Result::and)
    }
}

/// What all threads of a session have, and each the descriptor that it uses.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    pub service: Arc<S>,
    pub device: Arc<Device>,
    pub interrupts: Arc<Interrupts>,
}

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Shared<S> {
        let Shared { service, device, interrupts } = self;
        let (service, device) = (service.clone(), device.clone());
        Shared { service, device, interrupts: interrupts.clone() }
    }
}

impl<S: Service> Shared<S> {
    /// Serves what the device brings until it is unmounted.
    fn read(&self, buffer: &mut [u8]) -> io::Result<()> {
        while let Some(bytes) = self.device.receive(buffer)? {
            match parse(bytes) {
                Some(received) => self.handle(received, |unique| {
                    let way = Way::Device(self.device.clone());
                    Reply::new(unique, way, self.interrupts.clone())
                }),
                None => tracing::warn!("the kernel sent {} bytes, not a request", bytes.len()),
            }
        }
        Ok(())
    }

    /// Does what the kernel wants; `reply` gives the way to answer, if it is to be answered.
    pub fn handle(&self, received: Received<'_>, reply: impl FnOnce(u64) -> Reply) {
        match received {
            Received::Request(request) => {
                let reply = reply(request.unique);
                // The reply is dropped then, and so answers EIO; the thread is needed further on.
                let called = AssertUnwindSafe(|| self.service.call(request, reply));
                if catch_unwind(called).is_err() {
                    tracing::error!("a call about node {} has panicked", request.node);
                }
            }
            Received::Interrupt { unique } => self.interrupts.tell(unique),
            Received::Destroy { unique } => reply(unique).ok(),
            Received::Init { unique, .. } => reply(unique).error(libc::EPROTO),
            Received::Refused { unique, errno } => reply(unique).error(errno),
            Received::Forget { node, lookups } => self.service.forget(node, lookups),
            Received::ForgetMany(many) => {
                forgotten(many).for_each(|(node, lookups)| self.service.forget(node, lookups));
            }
            Received::Nothing => {}
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
