//! How a file system gets its place: root asks the kernel, others ask `fusermount3`.

use crate::device::Device;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// The helper that mounts for users.
const HELPER: &str = "fusermount3";
/// Where the kernel's connections with who serves file systems are shown, as most systems mount
/// that (`fusectl`).
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// How a file system is mounted, and what it can do. The kernel checks permissions.
#[derive(Clone, Debug)]
pub struct Options {
    /// What tables of mounts show behind `fuse.` as the type. No comma.
    pub name: &'static str,
    /// What they show as the source.
    pub source: OsString,
    /// Who may do what through it.
    pub access: Access,
    /// The most that is written or read at a time, in bytes: at most 1 MiB.
    pub max_transfer: u32,
    /// How far the kernel reads ahead of who reads in order, in bytes. More than it offers, which
    /// is 128 KiB, only root gets, and only where `/sys` can be written.
    pub read_ahead: u32,
    /// Threads that read requests from the device, each with a descriptor of its own.
    pub threads: usize,
    /// Requests may come over rings of `io_uring` instead, if the kernel offers that.
    pub rings: bool,
    /// What the file system can do.
    pub features: Features,
}

/// Who may do what through a mount. By default its owner may read, write and run programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Others than the one who mounts may use it. Only root may ask for it, unless
    /// `/etc/fuse.conf` allows it.
    pub allow_other: bool,
    /// Set-user-id and set-group-id programs work as such. For root only.
    pub suid: bool,
    /// Devices can be opened. For root only.
    pub dev: bool,
    /// No program can be run from it.
    pub noexec: bool,
    /// No time of reading is kept.
    pub noatime: bool,
}

impl FromStr for Access {
    type Err = String;

    /// Reads what `mount -o` takes: words with commas between them, of which the last wins. Words
    /// of `fstab` that are for others than the kernel are passed over.
    fn from_str(words: &str) -> Result<Access, String> {
        let mut access = Access::default();
        for word in words.split(',') {
            match word {
                "ro" => access.read_only = true,
                "rw" => access.read_only = false,
                "allow_other" => access.allow_other = true,
                "suid" => access.suid = true,
                "nosuid" => access.suid = false,
                "dev" => access.dev = true,
                "nodev" => access.dev = false,
                "exec" => access.noexec = false,
                "noexec" => access.noexec = true,
                "atime" | "relatime" => access.noatime = false,
                "noatime" => access.noatime = true,
                "" | "defaults" | "auto" | "noauto" | "nofail" | "_netdev" => {}
                "async" | "user" | "users" | "nouser" | "owner" | "group" => {}
                word if word.starts_with("x-") || word.starts_with("user=") => {}
                word => {
                    return Err(format!(
                        "no option {word}: there are ro, rw, allow_other, suid, nosuid, dev, nodev, \
                         exec, noexec, atime, relatime, noatime"
                    ));
                }
            }
        }
        Ok(access)
    }
}

impl fmt::Display for Access {
    /// Words that are read back to the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.read_only, "ro"),
            (self.allow_other, "allow_other"),
            (self.suid, "suid"),
            (self.dev, "dev"),
            (self.noexec, "noexec"),
            (self.noatime, "noatime"),
        ];
        let chosen = words.iter().filter(|(wanted, _)| *wanted).map(|(_, word)| *word);
        f.write_str(&chosen.collect::<Vec<_>>().join(","))
    }
}

impl Access {
    fn flags(self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NODEV, !self.dev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::NOATIME, self.noatime);
        // Without either what is mounted anew stays as it was.
        flags.set(MountFlags::RELATIME, !self.noatime);
        flags
    }
}

/// What a file system can do beyond the least.
#[derive(Clone, Copy, Debug, Default)]
pub struct Features {
    /// Locks of `fcntl` and `flock` are asked for here; otherwise the kernel grants them by itself.
    pub locks: bool,
    /// Pages go when the kernel sees another time of change or size.
    pub invalidates_by_time: bool,
    /// Look-ups and listings of one directory may come at the same time.
    pub parallel_directories: bool,
    /// Lists of access rights are kept, as extended attributes. The kernel decides by them; what
    /// follows from the list of a directory, or else from the umask, for what is made in it is
    /// decided here.
    pub access_lists: bool,
    /// Nodes can be looked up by their number, with the names `.` and `..`. So handles of files
    /// (`open_by_handle_at`, NFS) outlive the kernel's memory.
    pub export: bool,
}

/// Mounts at `at`, and gives the device of the new session.
///
/// # Errors
/// As those of `mount`; `NotFound` if the helper is needed and not there; or what the helper says.
pub(crate) fn mount(at: &Path, options: &Options) -> io::Result<Device> {
    match by_kernel(at, options) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => by_helper(at, options),
        result => result,
    }
}

fn by_kernel(at: &Path, options: &Options) -> io::Result<Device> {
    let device = Device::open()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mode = rustix::fs::stat(at)?.st_mode & libc::S_IFMT;
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={uid},group_id={gid},default_permissions,max_read={}",
        device.as_fd().as_raw_fd(),
        options.max_transfer
    );
    let access = options.access;
    if access.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    let kind = format!("fuse.{}", options.name);
    rustix::mount::mount(&options.source, at, kind, access.flags(), &*data)?;
    Ok(device)
}

/// Changes how that which is mounted at `at` may be used. Who may use it stays as it was.
///
/// # Errors
/// As those of `mount`: for root only, and `InvalidInput` if nothing is mounted there.
pub fn remount(at: &Path, access: Access) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(at, access.flags(), c"")?)
}

/// Takes what is mounted at `at` out of the tree at once; who is in it may stay until it leaves.
///
/// # Errors
/// As those of `umount2`, or `PermissionDenied` if the helper refuses.
pub fn unmount(at: &Path) -> io::Result<()> {
    match rustix::mount::unmount(at, UnmountFlags::DETACH) {
        Err(Errno::PERM) => {
            let status = Command::new(HELPER).arg("-uzq").arg("--").arg(at).status()?;
            if status.success() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
        }
        result => Ok(result?),
    }
}

/// A file of the kernel for the connection of what is mounted at `at` now: to write anything to it
/// aborts that. Who waits for an answer gets an error, and so does each later call; what is mounted
/// stays there. It is of that connection only, also when the number of that is another's.
///
/// # Errors
/// As those of `open`. Where `fusectl` is not mounted, only root gets it: else `EPERM`.
pub fn abort_file(at: &Path) -> io::Result<File> {
    let name = format!("{}/abort", device(at)?);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let shown = rustix::fs::open(format!("{CONNECTIONS}/{name}"), flags, Mode::empty());
    let file = shown.or_else(|_| rustix::fs::openat(connections()?, name, flags, Mode::empty()))?;
    Ok(file.into())
}

/// The same as is shown at [`CONNECTIONS`], mounted where nobody sees it.
fn connections() -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    rustix::mount::fsmount(&context, flags, MountAttrFlags::empty())
}

/// The number of the device that what is mounted at `at` stands for, and of its connection. The
/// file system is not asked.
fn device(at: &Path) -> io::Result<u32> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let of = rustix::fs::statx(CWD, at, flags, StatxFlags::empty())?;
    if of.stx_dev_major != 0 {
        return Err(io::ErrorKind::NotFound.into()); // A disk: it is unmounted already.
    }
    Ok(of.stx_dev_minor)
}

/// Has the kernel read ahead so far in what is mounted at `at`.
///
/// # Errors
/// As those of writing to `/sys`: for root only.
pub(crate) fn read_ahead(at: &Path, bytes: u32) -> io::Result<()> {
    let number = device(at)?;
    std::fs::write(format!("/sys/class/bdi/0:{number}/read_ahead_kb"), format!("{}", bytes >> 10))
}

/// Words for the helper's `-o`.
fn words(options: &Options) -> OsString {
    let Options { name, source, max_transfer, access, .. } = options;
    let mut words = OsString::from("fsname=");
    for byte in source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            words.push("\\");
        }
        words.push(OsStr::from_bytes(&[*byte]));
    }
    words.push(format!(
        ",subtype={name},default_permissions,max_read={max_transfer},nosuid,nodev,{access}"
    ));
    words
}

fn by_helper(at: &Path, options: &Options) -> io::Result<Device> {
    if options.access.suid || options.access.dev {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "only root may mount with suid or dev",
        ));
    }
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let (ours, helpers) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(words(options)).arg("--").arg(at);
    // It sends the descriptor through the socket of that number: its standard input.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(helpers));
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    drop(command); // And with it the helper's end of the socket.
    if !output.status.success() {
        let said = OsStr::from_bytes(output.stderr.trim_ascii()).to_string_lossy().into_owned();
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, said));
    }
    Ok(receive(&ours)?.into())
}

/// The descriptor that was sent through the socket.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    loop {
        match rustix::net::recvmsg(socket, &mut bytes, &mut sent, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        };
    }
    let descriptors = sent.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let missing = || io::Error::other(format!("{HELPER} has sent no descriptor"));
    descriptors.flatten().next().ok_or_else(missing)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_of_fstab_are_taken_and_others_refused() {
        let none = Access::default();
        assert_eq!("defaults,_netdev,x-systemd.automount,rw".parse(), Ok(none));
        let wanted = Access { allow_other: true, suid: true, noatime: true, ..none };
        assert_eq!("allow_other,suid,dev,noatime,nodev".parse(), Ok(wanted));
        assert_eq!(wanted.to_string().parse(), Ok(wanted));
        assert!("ro,colour".parse::<Access>().unwrap_err().contains("no option colour"));
    }
}
