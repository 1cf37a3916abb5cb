//! Attributes, kinds, times and errors in the kernel's words.

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use meridian_client::ClientError;
use meridian_core::GroupId;
use meridian_fs::types::{Attributes, Entry, Ino, Kind, Place, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What programs should read and write at a time.
const BLOCK_SIZE: u32 = 64 << 10;

/// The errno of a failure.
pub fn errno(error: &ClientError) -> Errno {
    if !matches!(error, ClientError::Fs(_)) {
        tracing::warn!("{error}");
    }
    Errno::from_i32(error.errno())
}

/// The kernel's word for a kind.
pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
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
pub fn attributes(of: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(of.place.ino.0),
        size: of.size,
        blocks: of.stored.div_ceil(512),
        atime: system_time(of.atime),
        mtime: system_time(of.mtime),
        ctime: system_time(of.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(of.kind),
        perm: of.mode,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: of.rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// An entry that stands for a directory known by its number only.
pub fn directory_entry(ino: Ino) -> Entry {
    let partition: GroupId = ino.birthplace();
    Entry { place: Place { ino, partition }, kind: Kind::Directory }
}

fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(u64::from(time.nanos))
}

/// A time that a program sets.
pub fn timestamp(time: TimeOrNow) -> Timestamp {
    let time = match time {
        TimeOrNow::Now => return meridian_client::client::now(),
        TimeOrNow::SpecificTime(time) => time,
    };
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => Timestamp { seconds: -seconds, nanos: 0 },
                nanos => Timestamp { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_through_the_kernel() {
        for (seconds, nanos) in [(0, 0), (1, 5), (-1, 5), (-3, 0), (4_000_000_000, 999_999_999)] {
            let time = Timestamp { seconds, nanos };
            assert_eq!(timestamp(TimeOrNow::SpecificTime(system_time(time))), time);
        }
    }

    #[test]
    fn mknod_makes_what_posix_says() {
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o644), Some(Kind::Fifo));
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(libc::S_IFDIR), None);
        assert_eq!(permissions(libc::S_IFREG | 0o4755), 0o4755);
    }
}
