//! When what programs do is durable: a mount has a mode, and directories and files may have one of
//! their own (decision 110). Clients go by it; to the tree it is a value that is handed down.
//!
//! What is made in a directory takes its mode, as it takes its access lists. Devices alone have a
//! device number, so the mode lies there of what has none: inodes and attributes are written as
//! before, and a client that knows of no modes shows the number and does nothing else with it.

use crate::FsError;
use crate::inode::Inode;
use crate::types::{Attributes, Kind, Timestamp};
use serde::{Deserialize, Serialize};

/// When what programs do is durable (decision 104 has the table).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum Durability {
    /// When each call returns.
    Sync,
    /// When a file is closed or synced; what changes names when its call returns. A new file has
    /// its name with its first close.
    #[default]
    Close,
    /// As on a local disk: when a file or a directory is synced, another client looks, or a second
    /// or two have passed. In each partition what is durable is what was done first.
    Fsync,
}

impl Durability {
    /// All there are.
    pub const ALL: [Durability; 3] = [Durability::Sync, Durability::Close, Durability::Fsync];

    /// The word for it, in commands and extended attributes.
    pub fn word(self) -> &'static str {
        match self {
            Durability::Sync => "sync",
            Durability::Close => "close",
            Durability::Fsync => "fsync",
        }
    }

    /// What the word stands for, if it is one of those.
    pub fn of_word(word: &str) -> Option<Durability> {
        Durability::ALL.into_iter().find(|of| of.word() == word)
    }

    /// What is written where devices have their number; 0 if nothing is set.
    fn number(of: Option<Durability>) -> u32 {
        match of {
            None => 0,
            Some(Durability::Sync) => 1,
            Some(Durability::Close) => 2,
            Some(Durability::Fsync) => 3,
        }
    }

    /// The mode of an inode of that kind, of which that is written where devices have their number.
    pub fn in_rdev(kind: Kind, rdev: u32) -> Option<Durability> {
        let such = |of: &Durability| Durability::number(Some(*of)) == rdev;
        Durability::ALL.into_iter().find(such).filter(|_| may_have(kind))
    }
}

/// Whether such an inode may have a mode of its own.
fn may_have(kind: Kind) -> bool {
    match kind {
        Kind::File | Kind::Directory => true,
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => false,
    }
}

impl Attributes {
    /// The mode that was set of it, or handed down to it; without one that of the mount counts.
    pub fn durability(&self) -> Option<Durability> {
        Durability::in_rdev(self.kind, self.rdev)
    }

    /// The device that a device node stands for; 0 of all else.
    pub fn device(&self) -> u32 {
        if may_have(self.kind) { 0 } else { self.rdev }
    }
}

/// What is made in a directory with that mode takes it.
pub(crate) fn hand_down(above: Option<Durability>, new: &mut Inode) {
    if may_have(new.kind) {
        new.rdev = Durability::number(above);
    }
}

/// The mode of a directory.
pub(crate) fn of_directory(directory: &Inode) -> Option<Durability> {
    Durability::in_rdev(directory.kind, directory.rdev)
}

/// Sets the mode, or takes it away: see [`crate::Update::SetDurability`].
pub(crate) fn set(
    inode: &mut Inode,
    durability: Option<Durability>,
    time: Timestamp,
) -> Result<(), FsError> {
    if !may_have(inode.kind) {
        return Err(FsError::Invalid);
    }
    inode.rdev = Durability::number(durability);
    inode.ctime = time;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Ino, Place};
    use meridian_core::GroupId;

    #[test]
    fn each_mode_is_read_as_it_was_written() {
        let place = Place { ino: Ino(9), partition: GroupId(1) };
        let with = |kind, rdev| Attributes { rdev, ..Attributes::bare(place, kind) };
        for mode in Durability::ALL {
            assert_eq!(Durability::of_word(mode.word()), Some(mode));
            let number = Durability::number(Some(mode));
            let file = with(Kind::File, number);
            assert_eq!((file.durability(), file.device()), (Some(mode), 0));
            let device = with(Kind::CharDevice, number);
            assert_eq!((device.durability(), device.device()), (None, number), "a device");
        }
        assert_eq!(with(Kind::Directory, Durability::number(None)).durability(), None);
        assert_eq!(with(Kind::Directory, 9).durability(), None, "of a later program");
        assert_eq!(Durability::of_word("never"), None);
    }
}
