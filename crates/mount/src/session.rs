//! Mounting and unmounting.

use crate::guard::Guard;
use crate::handler::Handler;
use crate::table;
use meridian_client::{Client, ClientError, Files};
use meridian_fuse::mounting::{Features, abort_file, unmount};
use meridian_fuse::{Access, Options, Transport};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The file system's name in tables of mounts.
const NAME: &str = "meridian";
/// The device of FUSE.
const DEVICE: &str = "/dev/fuse";
/// Threads that read requests from the device: two with descriptors of their own are best, more are
/// worse.
const THREADS: usize = 2;
/// The most that the kernel writes or reads at a time.
const MAX_TRANSFER: u32 = 1 << 20;
/// How far the kernel reads ahead, where we may say so: some blocks on each node of a region.
const READ_AHEAD: u32 = 8 << 20;
/// How long to wait for the kernel to let go of a mount: beyond this somebody is still in it.
const LET_GO: Duration = Duration::from_secs(5);
/// How many mounts that died may lie on each other.
const STALE_MAX: usize = 16;

/// Why nothing is mounted, or could not be unmounted in order.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel's module is not there.
    #[error(
        "{DEVICE} is missing: run `modprobe fuse` as root; in a container start it with \
         `--device {DEVICE} --cap-add SYS_ADMIN`"
    )]
    NoDevice,
    /// It may not be used.
    #[error(
        "no permission to mount at {}: run as root, or install the package `fuse3` and make sure \
         that you own the directory and may open {DEVICE}; in a container add \
         `--cap-add SYS_ADMIN` ({source})", at.display()
    )]
    NotPermitted {
        /// Where.
        at: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no such directory.
    #[error("cannot mount at {}: {source}; create the directory first", at.display())]
    NoDirectory {
        /// Where.
        at: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something else went wrong.
    #[error("cannot {action} {}: {source}", at.display())]
    System {
        /// What was tried.
        action: &'static str,
        /// Where.
        at: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What programs wrote could not be stored before the end.
    #[error("written data could not be stored: {0}")]
    Unsaved(ClientError),
}

/// A mounted file system. Dropped, it is unmounted without waiting; [`Mount::unmount`] waits and
/// tells whether all that was written is stored.
#[derive(Debug)]
pub struct Mount {
    at: PathBuf,
    files: Arc<Files>,
    transport: Transport,
    ended: watch::Receiver<bool>,
    detached: bool,
    runtime: tokio::runtime::Handle,
}

/// Mounts the tree of `client`'s cluster at `mountpoint`. Must be called within a tokio runtime
/// with more than one thread: its tasks answer the kernel. Tables of mounts show `source`.
///
/// # Errors
/// One line that says what is missing and what to do.
pub fn mount(
    client: Client,
    mountpoint: &Path,
    access: Access,
    source: impl AsRef<OsStr>,
) -> Result<Mount, MountError> {
    mount_guarded(client, mountpoint, access, source, None)
}

/// The same, with a process beside it that runs `guard`, which is to call [`crate::guard::run`]. It
/// frees who waits for the mount when the thread that calls this has died: to be called on the main
/// thread. Without a guard it goes on all the same.
///
/// # Errors
/// As [`mount`].
pub fn mount_guarded(
    client: Client,
    mountpoint: &Path,
    access: Access,
    source: impl AsRef<OsStr>,
    guard: Option<Command>,
) -> Result<Mount, MountError> {
    let runtime = tokio::runtime::Handle::current();
    check(mountpoint)?;
    let system = |action| {
        let at = mountpoint.to_path_buf();
        move |source| MountError::System { action, at, source }
    };
    let at = mountpoint.canonicalize().map_err(system("find"))?;
    let files = Files::new(client);
    files.note_reads(!access.noatime && !access.read_only);
    let handler = Handler::new(files.clone(), runtime.clone());
    let kernel = handler.kernel();
    let session = meridian_fuse::mount(handler, &at, &kernel_options(access, source.as_ref()))
        .map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
                MountError::NotPermitted { at: at.clone(), source }
            }
            _ => MountError::System { action: "mount at", at: at.clone(), source },
        })?;
    let transport = session.transport();
    let _ = kernel.set(session.notifier()); // Nobody else sets it.
    let guard = guard.and_then(|command| guarded(&at, command));
    let (ended_now, ended) = watch::channel(false);
    let (until, open) = std::io::pipe().map_err(system("watch"))?;
    let wait = move || {
        let _open = open; // Closed at the end.
        if let Err(error) = session.join() {
            tracing::warn!("the session with the kernel ended: {error}");
        }
        drop(guard); // Before who has unmounted goes on: then it is gone, too.
        ended_now.send_replace(true);
    };
    let name = "meridian-unmounted".to_string();
    std::thread::Builder::new().name(name).spawn(wait).map_err(system("watch"))?;
    let (told, place) = (Arc::downgrade(&files), at.clone());
    let follow = move || {
        if let Err(error) = table::follow(&place, &told, &until) {
            tracing::warn!("it is not seen how {} is mounted anew: {error}", place.display());
        }
    };
    let name = "meridian-table".to_string();
    std::thread::Builder::new().name(name).spawn(follow).map_err(system("watch"))?;
    Ok(Mount { at, files, transport, ended, detached: false, runtime })
}

/// Starts the guard of what is mounted at `at`, if that can be had.
fn guarded(at: &Path, command: Command) -> Option<Guard> {
    let guard = abort_file(at).and_then(|abort| Guard::start(command, abort));
    let failed = |error: &io::Error| {
        tracing::warn!("no process guards the mount, which may hang if it is killed: {error}");
    };
    guard.inspect_err(failed).ok()
}

fn kernel_options(access: Access, source: &OsStr) -> Options {
    Options {
        name: NAME,
        source: source.into(),
        access,
        max_transfer: MAX_TRANSFER,
        read_ahead: READ_AHEAD,
        threads: THREADS,
        rings: true,
        features: Features {
            locks: true,
            invalidates_by_time: true,
            parallel_directories: true,
            access_lists: true,
            export: true,
        },
    }
}

/// Finds out beforehand what would fail with a less helpful word.
fn check(mountpoint: &Path) -> Result<(), MountError> {
    if !Path::new(DEVICE).exists() {
        return Err(MountError::NoDevice);
    }
    if let Err(source) = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE) {
        return Err(match source.raw_os_error() {
            Some(libc::ENXIO | libc::ENODEV | libc::ENOENT) => MountError::NoDevice,
            _ => MountError::NotPermitted { at: mountpoint.into(), source },
        });
    }
    clear_stale(mountpoint)?;
    let no_directory = |source| MountError::NoDirectory { at: mountpoint.into(), source };
    let metadata = std::fs::metadata(mountpoint).map_err(no_directory)?;
    if !metadata.is_dir() {
        return Err(no_directory(io::ErrorKind::NotADirectory.into()));
    }
    Ok(())
}

/// Unmounts what a process that died left mounted at `path`. Returns whether there was anything.
///
/// # Errors
/// If it is there and cannot be unmounted.
pub fn clear_stale(path: &Path) -> Result<bool, MountError> {
    let mut found = false;
    for _ in 0..STALE_MAX {
        match std::fs::metadata(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
                found = true;
                unmount(path).map_err(|source| MountError::System {
                    action: "unmount what a dead process left at",
                    at: path.into(),
                    source,
                })?;
            }
            _ => break,
        }
    }
    Ok(found)
}

impl Mount {
    /// Where.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// How the kernel's requests come.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The files beneath.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Waits until somebody unmounts it.
    pub async fn wait(&self) {
        // An error means that the thread which watches is gone, and so is the session.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Unmounts it, even if somebody is still in it, and stores what is still buffered.
    ///
    /// # Errors
    /// If the kernel refuses, or not all could be stored.
    pub async fn unmount(mut self) -> Result<(), MountError> {
        if !*self.ended.borrow() {
            unmount(&self.at).map_err(|source| MountError::System {
                action: "unmount",
                at: self.at.clone(),
                source,
            })?;
            self.detached = true;
            if tokio::time::timeout(LET_GO, self.wait()).await.is_err() {
                tracing::warn!("somebody is still in {}", self.at.display());
            }
        }
        let flushed = self.files.flush_all().await.map_err(MountError::Unsaved);
        // The kernel keeps nothing any more: others need not wait until the lease has run out.
        self.files.client().keep_nothing().await;
        flushed
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let files = self.files.clone();
        if !*self.ended.borrow()
            && !self.detached
            && let Err(error) = unmount(&self.at)
        {
            tracing::warn!("cannot unmount {}: {error}", self.at.display());
        }
        self.runtime.spawn(async move {
            if let Err(error) = files.flush_all().await {
                tracing::error!("written data could not be stored: {error}");
            }
        });
    }
}
