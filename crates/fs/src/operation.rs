//! What clients ask of the tree to be changed, by multicast; what they ask one replica is in
//! [`crate::query`].

use crate::FsError;
use crate::access::Rights;
use crate::batch::Part;
use crate::counting::Stretch;
use crate::durability::{self, Durability};
use crate::inode::{Inode, SET_GID};
use crate::made::MadeHeld;
use crate::quota::Limits;
use crate::settled::{Made, Setting};
use crate::types::{
    Attributes, Extent, Ino, Kind, Lock, LockFamily, LockOwner, Name, Place, Rank, Timestamp,
    Vector,
};
use crate::waits::{Stand, Under, Wait};
use bytes::Bytes;
use meridian_core::{BlockId, ClientId, GroupId, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The payload of a multicast message: an update and what its client had seen before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// What the client had seen: whoever sees this update must see that, too.
    pub vector: Vector,
    /// The client's wall clock, for the times that `stat` shows.
    pub time: Timestamp,
    /// The quotas that it may count against or give back to: see [`crate::quota`].
    pub quotas: Vec<Place>,
    /// What to do.
    pub update: Update,
    /// The holder of capabilities that asks: its own stay.
    pub by: ClientId,
    /// Whether it shall hold what it makes ([`Update::makes`]).
    pub keeps: bool,
    /// What it changes was written under locks, and counts only while they have not been lost.
    pub under: Option<Under>,
    /// What its client may do; none if that is all.
    pub rights: Option<Rights>,
}

/// A new inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewNode {
    /// What it shall be.
    pub kind: Kind,
    /// Permission bits, the umask not applied; the low 12 bits of `st_mode`.
    pub mode: u16,
    /// What is taken from them, unless the directory has a list of access rights to hand down.
    pub umask: u16,
    /// Owner.
    pub uid: u32,
    /// Group of the owner, unless the directory hands down its own (set-group-id).
    pub gid: u32,
    /// For devices.
    pub rdev: u32,
    /// For symbolic links; empty otherwise.
    pub target: Bytes,
}

impl NewNode {
    /// One of root's, with these permission bits and no umask.
    pub fn new(kind: Kind, mode: u16) -> NewNode {
        NewNode { kind, mode, umask: 0, uid: 0, gid: 0, rdev: 0, target: Bytes::new() }
    }

    /// What a file is that is made so in that directory, at `time`; `None` if the directory hands
    /// down access rights that its attributes do not tell.
    pub fn attributes_in(
        &self,
        directory: &Attributes,
        place: Place,
        time: Timestamp,
    ) -> Option<Attributes> {
        if directory.marks.default_list || self.kind != Kind::File {
            return None;
        }
        let gid = if directory.mode & SET_GID != 0 { directory.gid } else { self.gid };
        let mode = self.mode & !(self.umask & 0o777);
        let node = NewNode { gid, mode, ..self.clone() };
        let mut inode = Inode::new(node, directory.place, time);
        durability::hand_down(directory.durability(), &mut inode);
        Some(inode.attributes(place))
    }
}

/// `renameat2`'s flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RenameMode {
    /// What is there is replaced.
    Replace,
    /// `EEXIST` if something is there.
    NoReplace,
    /// The two change places.
    Exchange,
}

/// Who owns the whiteout that a rename leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Whiteout {
    /// Owner.
    pub uid: u32,
    /// Group of the owner.
    pub gid: u32,
}

/// What `setattr` changes; `None` leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Changes {
    /// The low 12 bits of `st_mode`.
    pub mode: Option<u16>,
    /// Owner. A change of owner or group clears the set-id bits of a file.
    pub uid: Option<u32>,
    /// Group of the owner.
    pub gid: Option<u32>,
    /// Cuts the file, or lengthens it with a hole.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<Timestamp>,
    /// Last change of the contents.
    pub mtime: Option<Timestamp>,
}

/// Where a write starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteAt {
    /// At the given byte.
    Offset(u64),
    /// Where the file ends when the write is applied (`O_APPEND`).
    End,
}

/// A run of bytes to be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Piece {
    /// Relative to the start of the write. Pieces are in order and do not overlap.
    pub offset: u64,
    /// The bytes; blocks must be stored before the write is multicast.
    pub extent: Extent,
}

/// What to do with an extended attribute that is or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum XattrMode {
    /// Set it in any case.
    Any,
    /// `EEXIST` if it is there.
    Create,
    /// `ENODATA` if it is not.
    Replace,
}

/// Something was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    /// What.
    pub inode: Ino,
    /// The time of reading that was shown before.
    pub seen: Timestamp,
    /// When it was read.
    pub at: Timestamp,
}

/// What becomes of a client's capabilities in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CapStep {
    /// The client asks for these; it is given those that are here and that it may have.
    Grant(Vec<Ino>),
    /// The client has let these go, and keeps nothing of them.
    Release(Vec<Ino>),
    /// The client lives: its lease begins, or it keeps what it has.
    Renew,
    /// Ends the client's lease, unless it was renewed meanwhile, and what it was seen to hold.
    /// Multicast by a node on behalf of the partition when a lease was not renewed for as long as
    /// it lasts, and for what is held without one.
    Expire {
        /// The rank of the client's lease, as it was seen.
        renewed: Option<Rank>,
        /// The inodes that were seen to be held: all, or some of very many.
        inodes: Vec<Ino>,
    },
    /// The client asks to hold these directories exclusively; it is given those that it holds, and
    /// is answered when all others have let them go. This and what follows is of
    /// [`Level::EXCLUSIVE`](meridian_core::level::Level::EXCLUSIVE).
    GrantExclusive(Vec<Ino>),
    /// The client has let these go that it held exclusively. Nothing is left of what it kept back.
    ReleaseExclusive(Vec<Ino>),
    /// As [`CapStep::Expire`], of what is held exclusively. The lease goes on, or ends by that.
    ExpireExclusive {
        /// The rank of the client's lease, as it was seen.
        renewed: Option<Rank>,
        /// The directories that were seen to be held exclusively.
        inodes: Vec<Ino>,
    },
    /// Whoever else holds these is to let them go: it is answered when they have.
    Recall(Vec<Ino>),
}

/// A change of the tree. Each names the partitions of the inodes that it touches, as its client
/// saw them; if that is no longer so the answer is [`crate::FsError::Stale`], and the client looks
/// again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Update {
    /// `open(O_CREAT|O_EXCL)`, `mkdir`, `symlink`, `mknod`. The new inode lives where its directory
    /// does.
    Create {
        /// The directory.
        parent: Place,
        /// The new name.
        name: Name,
        /// The new inode.
        node: NewNode,
    },
    /// `open(O_TMPFILE)`: a file without a name, which `link` may give one. It goes as a file that
    /// has lost its last one.
    CreateUnnamed {
        /// The directory, in whose partition it lives.
        parent: Place,
        /// The new file.
        node: NewNode,
    },
    /// `link`.
    Link {
        /// What gets another name; not a directory.
        target: Place,
        /// The directory.
        parent: Place,
        /// The new name.
        name: Name,
    },
    /// `unlink`.
    Unlink {
        /// The directory.
        parent: Place,
        /// The name that goes.
        name: Name,
        /// What it led to.
        child: Place,
        /// If this was its last name, note that this client has it open: as [`Update::Hold`].
        keep_for: Option<ClientId>,
    },
    /// `rmdir`.
    Rmdir {
        /// The directory above.
        parent: Place,
        /// The name that goes.
        name: Name,
        /// The directory that goes.
        child: Place,
    },
    /// `rename`, `renameat2`. Inodes stay in the partition in which they live.
    Rename {
        /// The directory that it leaves.
        from: Place,
        /// Its name there.
        from_name: Name,
        /// The directory that it comes to.
        to: Place,
        /// Its name there.
        to_name: Name,
        /// What is renamed.
        moved: Place,
        /// What is there before; replaced, or exchanged with.
        replaced: Option<Place>,
        /// What to do if something is there.
        mode: RenameMode,
        /// If a directory comes under another directory: that directory and all above it, up to but
        /// without the root; each partition verifies its part, and none may be the moved one (no
        /// cycles). For an exchange of directories those above `from`, too. Empty otherwise.
        ancestors: Vec<Place>,
        /// As in [`Update::Unlink`], for what is replaced.
        keep_for: Option<ClientId>,
        /// Whether a whiteout takes the old name, as file systems that lie over others use it: a
        /// character device 0, 0. Not for an exchange.
        whiteout: Option<Whiteout>,
    },
    /// `chmod`, `chown`, `truncate`, `utimens`.
    SetAttributes {
        /// Of what.
        inode: Place,
        /// What changes.
        changes: Changes,
    },
    /// `write`: all pieces or none.
    Write {
        /// The file.
        inode: Place,
        /// Where.
        at: WriteAt,
        /// What.
        pieces: Vec<Piece>,
    },
    /// A run of short blocks becomes one block of the same bytes, unless the file has changed
    /// there.
    Merge {
        /// The file.
        inode: Place,
        /// Where the run begins.
        offset: u64,
        /// The extents of the run, one behind the other, none of them inline.
        run: Vec<Extent>,
        /// A block of all their bytes, which is stored already.
        block: BlockId,
    },
    /// `fallocate`: the file is at least so long afterwards, with a hole at its end if it was not.
    Extend {
        /// The file.
        inode: Place,
        /// So many bytes at least.
        size: u64,
    },
    /// `fallocate(FALLOC_FL_PUNCH_HOLE)`: a range becomes a hole; the length stays.
    PunchHole {
        /// The file.
        inode: Place,
        /// From this byte.
        offset: u64,
        /// So many.
        len: u64,
    },
    /// `setxattr`.
    SetXattr {
        /// Of what.
        inode: Place,
        /// The attribute.
        name: Name,
        /// Its value.
        value: Bytes,
        /// Whether it must or must not be there.
        mode: XattrMode,
        /// Whether the set-group-id bit goes with a new list of access rights.
        drops_set_gid: bool,
    },
    /// `removexattr`.
    RemoveXattr {
        /// Of what.
        inode: Place,
        /// The attribute.
        name: Name,
    },
    /// `fcntl(F_SETLK)`, `flock`: takes a lock or answers [`crate::FsError::WouldBlock`]; or waits
    /// for it, and answers how it stands with it.
    Lock {
        /// The file.
        inode: Place,
        /// The lock.
        lock: Lock,
        /// Under which name of its client's it waits.
        ticket: Option<u64>,
    },
    /// Who waits does so no more. Answers whether it has the lock.
    Leave {
        /// The file.
        inode: Place,
        /// The lock that it waited for.
        lock: Lock,
        /// Under which name.
        ticket: u64,
    },
    /// Ends a cycle of those who wait for each other's locks, if it is there; else
    /// [`crate::FsError::Stale`]. Multicast by a client that waits and has seen each of them wait.
    Untangle {
        /// Each waits for the next, and the last for the first. At least one, at most
        /// [`crate::CYCLE_MAX`].
        cycle: Vec<Wait>,
    },
    /// Gives back what an owner holds in a range. Answers how it stands.
    Unlock {
        /// The file.
        inode: Place,
        /// Whose.
        owner: LockOwner,
        /// Of which family.
        family: LockFamily,
        /// The first byte.
        start: u64,
        /// The last byte.
        end: u64,
    },
    /// The client has these files open: they outlive their last names until it says
    /// [`Update::Forget`] or is gone. Those that are not here any more are passed over.
    Hold {
        /// Who.
        client: ClientId,
        /// Where.
        partition: GroupId,
        /// What it has open.
        inodes: Vec<Ino>,
    },
    /// The client has closed these files.
    Forget {
        /// Who.
        client: ClientId,
        /// Where.
        partition: GroupId,
        /// What it has closed.
        inodes: Vec<Ino>,
    },
    /// Removes files without a name that nobody holds, each unless it has lost its last name again
    /// since. Multicast by a node on behalf of the partition some time after they lost it.
    Reap {
        /// Where.
        partition: GroupId,
        /// Each with the timestamp of the message that took its last name.
        inodes: Vec<(Ino, Stamp)>,
    },
    /// These were read: see [`Attributes::atime`]. Each counts unless another time of reading was
    /// set since its client saw the one that it names.
    NoteReads {
        /// Where.
        partition: GroupId,
        /// What, and when.
        reads: Vec<Access>,
    },
    /// A directory that has its name in this partition and lives in another was so after that
    /// message. Multicast by a client that changed it, for those who look while the other partition
    /// is out of reach; nothing happens if the name is gone, or something later is known.
    NoteTop {
        /// Where its name is.
        partition: GroupId,
        /// What it was.
        attributes: Attributes,
        /// After this message of the partition where it lives.
        ts: Stamp,
    },
    /// The client lives: what it holds in this partition (locks, files without a name) stays its.
    Renew {
        /// Who.
        client: ClientId,
        /// Where.
        partition: GroupId,
    },
    /// Drops what a client holds of some inodes, unless it renewed or took hold of something
    /// meanwhile. Multicast by a node on behalf of the partition when it has seen nothing of the
    /// client for the lease time.
    Expire {
        /// Who.
        client: ClientId,
        /// Where.
        partition: GroupId,
        /// The lease's rank, as it was seen.
        renewed: Rank,
        /// The inodes that were seen to be held: all, or some of very many.
        inodes: Vec<Ino>,
    },
    /// Who may answer looks by itself changes.
    Caps {
        /// The holder.
        client: ClientId,
        /// Where.
        partition: GroupId,
        /// How.
        step: CapStep,
    },
    /// No update that comes later in the shard of its session may name a block that was named
    /// before `horizon_ms`: what no file lies in can be freed once no shard may name it. Multicast
    /// by a node on behalf of the partition.
    RaiseHorizon {
        /// Where.
        partition: GroupId,
        /// Milliseconds since 1970.
        horizon_ms: u64,
    },
    /// `meridian fs quota`: limits what lies below a directory in its partition. If one that is not
    /// empty gets its first limits, or loses its quota, all is counted by steps;
    /// [`crate::FsError::Busy`] while another's is.
    SetQuota {
        /// The directory.
        inode: Place,
        /// The one above.
        parent: Place,
        /// How much there may be; `None` takes the quota away.
        limits: Option<Limits>,
    },
    /// A step of counting what is below a directory that got a quota, or loses it. Multicast by a
    /// node on behalf of the partition.
    Count {
        /// The directory.
        root: Place,
        /// The number of the step: it is done if none was since it was made up.
        number: u64,
        /// What is counted.
        stretches: Vec<Stretch>,
        /// When all is: what still counts as before, as it has lost its names below.
        rest: Vec<Ino>,
    },
    /// `meridian fs place`: an empty directory is placed in another partition.
    PlaceDirectory {
        /// The directory above.
        parent: Place,
        /// The name of the directory.
        name: Name,
        /// The directory.
        child: Place,
        /// Where it shall live.
        to: GroupId,
    },
    /// Changes nothing, and touches nothing. Its timestamp is the same in all these partitions, and
    /// the clocks of all have passed it when it is done: one at which all of them can be cut.
    Mark {
        /// Which.
        partitions: BTreeSet<GroupId>,
    },
    /// What a program has written to a file, and then set of it: all or nothing. As an
    /// [`Update::Write`], after which each setting is done in its order: see [`crate::settled`].
    /// Of [`Level::SETTLE`](meridian_core::level::Level::SETTLE).
    Settle {
        /// The file.
        inode: Place,
        /// Where.
        at: WriteAt,
        /// What, if anything was written.
        pieces: Vec<Piece>,
        /// When the program wrote. It set something at the operation's time, or before.
        written: Timestamp,
        /// What it set: at most [`crate::settled::SETTINGS_MAX`].
        settings: Vec<Setting>,
    },
    /// The root gets an entry for a region that was added, multicast by a node on behalf of
    /// `global`. Nothing happens if it has one. Of
    /// [`Level::REGIONS`](meridian_core::level::Level::REGIONS).
    AddRegion {
        /// The region's partition.
        partition: GroupId,
        /// Its name.
        name: Name,
        /// When it was added.
        made: Timestamp,
    },
    /// The root loses the entry of a region whose directory is empty. From then on nothing is made
    /// in its partition. As [`Update::AddRegion`], on behalf of `global`.
    RemoveRegion {
        /// The region's partition.
        partition: GroupId,
        /// Its name.
        name: Name,
    },
    /// A new file with all that its program has written to it and set of it, by a client that held
    /// the directory exclusively when it made the file: as an [`Update::Create`] and an
    /// [`Update::Settle`], all or nothing. Answers as a write does. Of
    /// [`Level::EXCLUSIVE`](meridian_core::level::Level::EXCLUSIVE).
    Make(Box<Made>),
    /// What a client kept back, in its order: see [`crate::batch`]. Of
    /// [`Level::BATCHES`](meridian_core::level::Level::BATCHES).
    Batch(Vec<Part>),
    /// When what is done in a directory, or with a file, is durable; `None`: as its mount says. Of
    /// [`Level::DURABILITY`](meridian_core::level::Level::DURABILITY).
    SetDurability {
        /// The directory or file.
        inode: Place,
        /// When.
        durability: Option<Durability>,
    },
}

/// What an update that succeeded says: the same in every partition that it concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Done {
    /// It is done: what removes or renames, and what is about locks and clients.
    Nothing,
    /// The inode that was made, linked, placed or changed, after it.
    Attributes(Attributes),
    /// What was made; its client holds it.
    Held(Attributes),
    /// The inodes that the client holds of those that it asked for.
    Granted(Vec<Ino>),
    /// How it stands with the lock.
    Lock(Stand),
    /// Where the write went (for [`WriteAt::End`]), and the inode after it.
    Written {
        /// The byte at which the write started.
        offset: u64,
        /// After it.
        attributes: Attributes,
        /// So many short blocks end where the write ends that one block should take their place,
        /// from this byte on: see [`Update::Merge`].
        merge_from: Option<u64>,
    },
    /// What became of the parts of a batch.
    Batch {
        /// What each of the first has done.
        done: Vec<Done>,
        /// Why the next was refused. Those after it are not done.
        refused: Option<FsError>,
    },
    /// As [`Done::Written`], of a file that was made; its client holds it. Of
    /// [`Level::MADE`](meridian_core::level::Level::MADE).
    Made(Box<MadeHeld>),
}

/// Blocks that an update mentions.
pub fn blocks_of(pieces: &[Piece]) -> impl Iterator<Item = BlockId> + '_ {
    pieces.iter().filter_map(|piece| match &piece.extent.data {
        crate::types::Data::Block { block, .. } => Some(*block),
        crate::types::Data::Inline(_) => None,
    })
}
