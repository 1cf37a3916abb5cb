//! Attributes, kinds, times and errors in the kernel's words.

use meridian_client::ClientError;
use meridian_core::GroupId;
use meridian_fs::types::{Attributes, Entry, Ino, Kind, Place, Timestamp};
use meridian_fuse::request::SetTime;
use meridian_fuse::{self as fuse, Time};

/// What programs should read and write at a time.
const BLOCK_SIZE: u32 = 64 << 10;

/// The errno of a failure.
pub fn errno(error: &ClientError) -> i32 {
    let errno = error.errno();
    if !matches!(error, ClientError::Fs(_)) && errno != libc::ENOSPC {
        tracing::warn!("{error}"); // Of full disks nodes tell.
    }
    errno
}

/// A kind as the type bits of a mode.
pub fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}

/// The kind in the type bits of a mode; `None` for one that `mknod` does not make.
pub fn kind_of_mode(mode: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(Kind::File),
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFCHR => Some(Kind::CharDevice),
        libc::S_IFBLK => Some(Kind::BlockDevice),
        _ => None,
    }
}

/// Permission, set-id and sticky bits.
pub fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// The kernel's form of attributes.
pub fn attributes(of: &Attributes) -> fuse::Attributes {
    fuse::Attributes {
        node: of.place.ino.0,
        size: of.size,
        blocks: of.stored.div_ceil(512),
        atime: time(of.atime),
        mtime: time(of.mtime),
        ctime: time(of.ctime),
        btime: time(of.btime),
        mode: type_bits(of.kind) | u32::from(of.mode),
        links: of.nlink,
        uid: of.uid,
        gid: of.gid,
        device: of.device(),
        block_size: BLOCK_SIZE,
    }
}

/// An entry that stands for a directory known by its number only.
pub fn directory_entry(ino: Ino) -> Entry {
    let partition: GroupId = ino.birthplace();
    Entry { place: Place { ino, partition }, kind: Kind::Directory }
}

fn time(Timestamp { seconds, nanos }: Timestamp) -> Time {
    Time { seconds, nanos }
}

/// A time that a program sets.
pub fn timestamp(time: SetTime) -> Timestamp {
    match time {
        SetTime::Now => meridian_client::client::now(),
        SetTime::To(Time { seconds, nanos }) => Timestamp { seconds, nanos },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mknod_makes_what_posix_says() {
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o644), Some(Kind::Fifo));
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(libc::S_IFDIR), None);
        assert_eq!(permissions(libc::S_IFREG | 0o4755), 0o4755);
    }
}
