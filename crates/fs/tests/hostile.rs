//! Updates that no right client sends: each is refused, by all partitions alike, or does what it
//! says. A panic would be one of all replicas, and come again after each restart.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{Rng, World, name, node, top};
use meridian_core::{BlockId, ClientId, GroupId, MessageId, Stamp};
use meridian_fs::batch::{Kept, Part, Written};
use meridian_fs::operation::{
    Access, Changes, NewNode, Piece, RenameMode, Whiteout, WriteAt, XattrMode,
};
use meridian_fs::settled::Made;
use meridian_fs::types::{Data, Extent, Lock, LockFamily, LockOwner, Name, Rank};
use meridian_fs::{Ino, Kind, Operation, Place, Query, Setting, Timestamp, Update, Wait};
use std::collections::BTreeSet;

const REGIONS: u16 = 2;
const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Directory,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDevice,
    Kind::BlockDevice,
];

/// Draws what is sometimes right, sometimes almost, and sometimes nonsense.
struct Forger<'a> {
    rng: &'a mut Rng,
    entries: Vec<(Place, String, Place, Kind)>,
    places: Vec<Place>,
}

impl Forger<'_> {
    fn place(&mut self) -> Place {
        let mut place = *self.rng.pick(&self.places);
        if self.rng.chance(5) {
            place.partition = GroupId(self.rng.below(u64::from(REGIONS) + 1) as u16);
        }
        if self.rng.chance(3) {
            place.ino = Ino(self.number());
        }
        place
    }

    fn number(&mut self) -> u64 {
        let edges = [0, 1, 2, 4095, 16 << 10, 1 << 20, u64::from(u32::MAX), i64::MAX as u64];
        match self.rng.below(3) {
            0 => *self.rng.pick(&edges),
            1 => u64::MAX - self.rng.below(3),
            _ => self.rng.below(50),
        }
    }

    fn name(&mut self) -> Name {
        let long = "n".repeat(256);
        let texts: [&str; 11] = ["a", "b", "c", "us", "eu", "", ".", "..", "a/b", "\0", &long];
        let likely = if self.rng.chance(90) { 5 } else { texts.len() };
        let text: &&str = self.rng.pick(&texts[..likely]);
        name(text)
    }

    fn client(&mut self) -> ClientId {
        ClientId(self.rng.below(3))
    }

    fn flag(&mut self) -> bool {
        self.rng.chance(50)
    }

    /// A parent, a name and a child that belong together, or almost.
    fn entry(&mut self) -> (Place, Name, Place) {
        let (mut parent, text, mut child, _) = self.rng.pick(&self.entries).clone();
        let mut text = name(&text);
        match self.rng.below(12) {
            0 => parent = self.place(),
            1 => child = self.place(),
            2 => text = self.name(),
            _ => {}
        }
        (parent, text, child)
    }

    fn pieces(&mut self) -> Vec<Piece> {
        let mut offset = 0u64;
        let mut all = Vec::new();
        for _ in 0..self.rng.below(4) {
            offset = offset.wrapping_add(self.number());
            let mut len = self.number().min(1 << 20) as u32;
            let data = if self.flag() {
                len = len.min(9000);
                let wrong = u32::from(self.rng.chance(5));
                Data::Inline(Bytes::from(vec![7; (len + wrong) as usize]))
            } else {
                let block = BlockId::named(GroupId(self.rng.below(3) as u16), 0, self.rng.next());
                Data::Block { block, start: self.number() as u32 }
            };
            all.push(Piece { offset, extent: Extent { len, data } });
            offset = offset.wrapping_add(u64::from(len));
        }
        all
    }

    fn lock(&mut self) -> Lock {
        let owner = LockOwner { client: self.client(), owner: self.rng.below(3) };
        let family = *self.rng.pick(&[LockFamily::Posix, LockFamily::Flock, LockFamily::Pages]);
        let (start, end, exclusive) = (self.number(), self.number(), self.flag());
        Lock { owner, family, start, end, exclusive, pid: 1 }
    }

    fn changes(&mut self) -> Changes {
        let time = Timestamp { seconds: self.number() as i64, nanos: self.number() as u32 };
        Changes {
            mode: self.flag().then(|| self.number() as u16),
            uid: self.flag().then(|| self.number() as u32),
            gid: self.flag().then(|| self.number() as u32),
            size: self.flag().then(|| self.number()),
            atime: self.flag().then_some(time),
            mtime: self.flag().then_some(time),
        }
    }

    fn node(&mut self) -> NewNode {
        let mut made = node(*self.rng.pick(&KINDS));
        if self.rng.chance(10) {
            made.target = self.name();
        }
        NewNode { mode: self.number() as u16, rdev: 9, ..made }
    }

    fn part(&mut self) -> Part {
        let (parent, name, child) = self.entry();
        let time = Timestamp { seconds: self.number() as i64, nanos: 0 };
        let kept = match self.flag() {
            true => Kept::Unlink { parent, name, child },
            false => self.made(child, time),
        };
        Part { time, kept }
    }

    /// A file that is made, or written.
    fn made(&mut self, child: Place, time: Timestamp) -> Kept {
        let made = Made {
            parent: self.place(),
            name: self.name(),
            node: self.node(),
            ino: child.ino,
            made: time,
            at: WriteAt::Offset(self.number()),
            pieces: self.pieces(),
            written: time,
            settings: Vec::new(),
        };
        if child.ino.0.is_multiple_of(2) {
            return Kept::Make(Box::new(made));
        }
        let Made { parent, name, at, pieces, written, settings, .. } = made;
        let inode = child;
        Kept::Write(Box::new(Written { parent, name, inode, at, pieces, written, settings }))
    }

    fn names(&mut self) -> Update {
        let (parent, name, child) = self.entry();
        let keep_for = self.flag().then(|| self.client());
        match self.rng.below(9) {
            8 => Update::Batch((0..self.rng.below(4)).map(|_| self.part()).collect()),
            0 => Update::Link { target: self.place(), parent: self.place(), name: self.name() },
            1 => Update::Unlink { parent, name, child, keep_for },
            2 => Update::Rmdir { parent, name, child },
            3 => {
                let to = GroupId(self.rng.below(u64::from(REGIONS) + 1) as u16);
                Update::PlaceDirectory { parent, name, child, to }
            }
            4 if self.flag() => Update::CreateUnnamed { parent: self.place(), node: self.node() },
            4 => Update::Create { parent: self.place(), name: self.name(), node: self.node() },
            _ => {
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let (mut to, mut to_name, there) = self.entry();
                let mut replaced = Some(there);
                if self.flag() {
                    (to, to_name, replaced) = (self.place(), self.name(), None);
                }
                let count = self.rng.below(5);
                Update::Rename {
                    from: parent,
                    from_name: name,
                    to,
                    to_name,
                    moved: child,
                    replaced,
                    mode: *self.rng.pick(&modes),
                    ancestors: (0..count).map(|_| self.place()).collect(),
                    keep_for,
                    whiteout: self.flag().then_some(Whiteout { uid: 3, gid: 4 }),
                }
            }
        }
    }

    fn one_inode(&mut self) -> Update {
        let inode = self.place();
        let name = if self.flag() { self.name() } else { name("user.meridian.placement") };
        let (client, partition) = (self.client(), inode.partition);
        match self.rng.below(12) {
            11 => self.settle(inode, &name),
            0 => Update::SetAttributes { inode, changes: self.changes() },
            1 => {
                let at = if self.flag() { WriteAt::End } else { WriteAt::Offset(self.number()) };
                Update::Write { inode, at, pieces: self.pieces() }
            }
            2 => Update::Extend { inode, size: self.number() },
            3 => Update::PunchHole { inode, offset: self.number(), len: self.number() },
            4 => {
                let modes = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
                let value = Bytes::from(vec![1; self.number().min(70_000) as usize]);
                Update::SetXattr {
                    inode,
                    name,
                    value,
                    mode: *self.rng.pick(&modes),
                    drops_set_gid: false,
                }
            }
            5 if self.flag() => {
                let run = self.pieces().into_iter().map(|piece| piece.extent).collect();
                Update::Merge { inode, offset: self.number(), run, block: BlockId(1) }
            }
            5 => Update::RemoveXattr { inode, name },
            6 => {
                let (lock, ticket) = (self.lock(), self.rng.below(4));
                match self.rng.below(4) {
                    0 => Update::Lock { inode, lock, ticket: None },
                    1 => Update::Leave { inode, lock, ticket },
                    _ => Update::Lock { inode, lock, ticket: Some(ticket) },
                }
            }
            7 => {
                let Lock { owner, family, start, end, .. } = self.lock();
                Update::Unlock { inode, owner, family, start, end }
            }
            8 if self.flag() => {
                let (seen, at) = (Timestamp::default(), Timestamp { seconds: 7, nanos: 0 });
                let read = |inode| Access { inode, seen, at };
                let reads = self.inodes().into_iter().map(read).collect();
                Update::NoteReads { partition, reads }
            }
            8 if self.flag() => {
                let owner = LockOwner { client, owner: 1 };
                let waits = (0..=self.rng.below(9)).map(|_| Wait {
                    inode: self.place(),
                    rank: (Stamp(self.number()), MessageId { client, sequence: 3 }),
                    owner,
                });
                Update::Untangle { cycle: waits.collect() }
            }
            8 => Update::Hold { client, partition, inodes: self.inodes() },
            9 => {
                let ts = self.rng.next() % 300;
                let inodes = self.inodes().into_iter().map(|ino| (ino, Stamp(ts))).collect();
                Update::Reap { partition, inodes }
            }
            _ => Update::Forget { client, partition, inodes: self.inodes() },
        }
    }

    fn settle(&mut self, inode: Place, name: &Bytes) -> Update {
        let (at, written) = (WriteAt::Offset(self.number()), Timestamp::default());
        let setting = |forger: &mut Self| match forger.flag() {
            true => Setting::Attributes(Changes { size: None, ..forger.changes() }),
            false => {
                let (name, value) = (name.clone(), Bytes::from(vec![2; 9]));
                Setting::Xattr { name, value, drops_set_gid: forger.flag() }
            }
        };
        let count = self.rng.below(4);
        let settings = (0..count).map(|_| setting(self)).collect();
        Update::Settle { inode, at, pieces: self.pieces(), written, settings }
    }

    fn inodes(&mut self) -> Vec<Ino> {
        (0..self.rng.below(9)).map(|_| self.place().ino).collect()
    }

    fn client_update(&mut self, leases: &[(ClientId, Rank)]) -> Update {
        let partition = self.place().partition;
        if leases.is_empty() || self.flag() {
            return Update::Renew { client: self.client(), partition };
        }
        let (client, mut renewed) = *self.rng.pick(leases);
        if self.rng.chance(20) {
            renewed.0 = Stamp(self.number());
        }
        Update::Expire { client, partition, renewed, inodes: self.inodes() }
    }
}

fn forge(world: &World, rng: &mut Rng, known: &BTreeSet<Place>) -> Update {
    let leases: Vec<_> = world.partitions.values().flat_map(|of| of.leases()).collect();
    let places = known.iter().copied().collect();
    let mut forger = Forger { rng, entries: world.entries(), places };
    match forger.rng.below(10) {
        0..5 => forger.names(),
        5..9 => forger.one_inode(),
        _ => forger.client_update(&leases),
    }
}

/// Whether the message would be delivered at all: nobody can send to a group that is not there, or
/// to none.
fn has_groups(update: &Update) -> bool {
    let groups = update.partitions();
    !groups.is_empty() && groups.iter().all(|group| group.0 <= REGIONS)
}

/// Submits forged updates, and some of which a few bytes were changed.
fn run(seed: u64) -> (usize, usize) {
    let (mut rng, mut world) = (Rng(seed), World::new(REGIONS));
    let mut known = BTreeSet::from([Place::ROOT, top(1), top(2)]);
    let (mut done, mut refused) = (0, 0);
    for _ in 0..250 {
        let mut update = forge(&world, &mut rng, &known);
        if rng.chance(20) {
            let mut bytes = postcard::to_stdvec(&update).unwrap();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next() as u8;
            }
            update = postcard::from_bytes(&bytes).unwrap_or(update);
        }
        // What only nodes say comes from no client, but much of it is drawn above all the same.
        let is_believed = matches!(update, Update::AddRegion { .. } | Update::RemoveRegion { .. });
        if !has_groups(&update) || is_believed {
            continue;
        }
        known.extend(world.entries().into_iter().map(|(_, _, child, _)| child));
        let id: MessageId = world.next_id();
        let _ = update.keys(id);
        let time = Timestamp { seconds: i64::MIN, nanos: u32::MAX };
        let operation = Operation { time, ..world.operation(update) };
        match world.submit_as(id, operation) {
            Ok(_) => done += 1,
            Err(_) => refused += 1,
        }
        world.check();
        for place in &known {
            let (offset, len) = (rng.next(), rng.next());
            let _ = world.read(&Query::Contents { inode: *place, offset, len });
        }
    }
    (done, refused)
}

#[test]
fn no_update_of_a_client_stops_a_replica() {
    let (mut done, mut refused) = (0, 0);
    for seed in 0..200 {
        let run = run(seed);
        done += run.0;
        refused += run.1;
    }
    assert!(done > 5_000 && refused > 5_000, "{done} done, {refused} refused");
}
