//! The first exchange with the kernel, and the threads that read requests.

use crate::abi::{self, NOTIFY_INC_EPOCH, NOTIFY_INVAL_INODE, PAGE, flag};
use crate::device::Device;
use crate::interrupts::Interrupts;
use crate::mounting::{self, Options};
use crate::reply::Reply;
use crate::request::{Received, Request, buffer_size, forgotten, parse};
use std::io;
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

/// Tells the kernel what it has not asked for.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Arc<Device>,
    has_epochs: bool,
}

impl Notifier {
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
    let begun = begin(service, mounting::mount(at, options)?, options);
    if begun.is_err() {
        let _ = mounting::unmount(at); // Nobody would answer there.
    }
    begun
}

fn begin<S: Service>(service: S, first: Device, options: &Options) -> io::Result<Session> {
    let first = Arc::new(first);
    let mut buffer = vec![0; buffer_size(options.max_transfer as usize)];
    let has_epochs = greet(&first, options, &mut buffer)? >= abi::MINOR_EPOCHS;
    let (service, interrupts) = (Arc::new(service), Arc::<Interrupts>::default());
    let mut threads = Vec::new();
    for number in 0..options.threads.max(1) {
        let device = if number == 0 { first.clone() } else { Arc::new(first.again()?) };
        let worker = Worker { service: service.clone(), device, interrupts: interrupts.clone() };
        let (name, size) = (format!("{}-fuse-{number}", options.name), buffer.len());
        let work = move || worker.work(&mut vec![0; size]);
        threads.push(std::thread::Builder::new().name(name).spawn(work)?);
    }
    Ok(Session { threads, notifier: Notifier { device: first, has_epochs } })
}

/// Agrees with the kernel on a version and on what both can do; the minor version.
fn greet(device: &Device, options: &Options, buffer: &mut [u8]) -> io::Result<u32> {
    let gone = || io::Error::other("unmounted before it began");
    let Some(Received::Init { unique, major, minor, read_ahead, flags }) =
        parse(device.receive(buffer)?.ok_or_else(gone)?)
    else {
        return Err(io::Error::other("the kernel does not begin as FUSE does"));
    };
    if major != abi::MAJOR || minor < abi::MINOR_MIN {
        device.reply(unique, -libc::EPROTO, &[])?;
        return Err(io::Error::other(format!(
            "the kernel speaks version {major}.{minor} of FUSE; {}.{} is needed (Linux 5.4)",
            abi::MAJOR,
            abi::MINOR_MIN
        )));
    }
    let mut body = Vec::with_capacity(64);
    let mut put = |bytes: &[u8]| body.extend_from_slice(bytes);
    put(&abi::MAJOR.to_ne_bytes());
    put(&minor.min(abi::MINOR_MAX).to_ne_bytes());
    put(&read_ahead.min(options.max_transfer).to_ne_bytes());
    put(&(wanted(options) & flags).to_ne_bytes());
    put(&BACKGROUND.0.to_ne_bytes());
    put(&BACKGROUND.1.to_ne_bytes());
    put(&options.max_transfer.to_ne_bytes());
    put(&1_u32.to_ne_bytes()); // Times are exact to a nanosecond.
    // At most a few hundred pages.
    put(&((options.max_transfer as usize).div_ceil(PAGE) as u16).to_ne_bytes());
    body.resize(64, 0);
    device.reply(unique, 0, &body)?;
    Ok(minor.min(abi::MINOR_MAX))
}

fn wanted(options: &Options) -> u32 {
    let features = &options.features;
    let chosen = [
        (true, flag::ASYNC_READ | flag::BIG_WRITES | flag::MAX_PAGES | flag::ASYNC_DIO),
        (features.locks, flag::POSIX_LOCKS | flag::FLOCK_LOCKS),
        (features.invalidates_by_time, flag::AUTO_INVAL_DATA),
        (features.parallel_directories, flag::PARALLEL_DIROPS),
        (features.export, flag::EXPORT_SUPPORT),
    ];
    chosen.iter().filter(|(wanted, _)| *wanted).fold(0, |all, (_, flags)| all | flags)
}

impl Session {
    /// The way to tell the kernel what it has not asked for.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
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

/// One thread that reads requests.
struct Worker<S> {
    service: Arc<S>,
    device: Arc<Device>,
    interrupts: Arc<Interrupts>,
}

impl<S: Service> Worker<S> {
    /// Serves until it is unmounted.
    fn work(&self, buffer: &mut [u8]) -> io::Result<()> {
        while let Some(bytes) = self.device.receive(buffer)? {
            match parse(bytes) {
                Some(Received::Request(request)) => {
                    let (device, interrupts) = (self.device.clone(), self.interrupts.clone());
                    let reply = Reply::new(request.unique, device, interrupts);
                    self.service.call(request, reply);
                }
                Some(Received::Interrupt { unique }) => self.interrupts.tell(unique),
                Some(Received::Destroy { unique }) => self.refuse(unique, 0),
                Some(Received::Init { unique, .. }) => self.refuse(unique, libc::EPROTO),
                Some(Received::Refused { unique, errno }) => self.refuse(unique, errno),
                Some(Received::Forget { node, lookups }) => self.service.forget(node, lookups),
                Some(Received::ForgetMany(many)) => {
                    forgotten(many).for_each(|(node, lookups)| self.service.forget(node, lookups));
                }
                Some(Received::Nothing) => {}
                None => tracing::warn!("the kernel sent {} bytes, not a request", bytes.len()),
            }
        }
        Ok(())
    }

    fn refuse(&self, unique: u64, errno: i32) {
        // Whoever asked may have gone.
        let _ = self.device.reply(unique, -errno, &[]);
    }
}
