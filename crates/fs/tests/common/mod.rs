//! Partitions that deliver one common order of updates and exchange votes, and a client that
//! works on paths as the kernel and the mount together would.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

pub mod counted;
pub mod swaps;

use bytes::Bytes;
use meridian_core::{BlockId, ClientId, GroupId, MessageId, Stamp};
use meridian_fs::operation::{NewNode, Piece, RenameMode, WriteAt};
use meridian_fs::types::{BLOCK_MAX, Data};
use meridian_fs::{
    Answer, Attributes, Done, Effect, Extent, FsError, Ino, Kind, Operation, Partition, Place,
    Query, Timestamp, Update, Vector, Vote, Waits,
};
use std::collections::BTreeMap;

pub const ME: ClientId = ClientId(7);

/// A small generator of numbers: SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The groups of that many regions.
pub fn regions(count: u16) -> impl Iterator<Item = (GroupId, &'static str)> {
    (1..=count).map(GroupId).zip(["us", "eu", "ap"])
}

pub fn top(group: u16) -> Place {
    let partition = GroupId(group);
    Place { ino: Ino::top(partition), partition }
}

pub fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub fn node(kind: Kind) -> NewNode {
    let target = if kind == Kind::Symlink { name("nowhere") } else { Bytes::new() };
    NewNode { target, ..NewNode::new(kind, 0o755) }
}

/// `moved` gets another name, or another directory, whose own name is not looked at.
pub fn rename(from: (Place, &str), to: (Place, &str), moved: Place) -> Update {
    Update::Rename {
        from: from.0,
        from_name: name(from.1),
        to: to.0,
        to_name: name(to.1),
        moved,
        replaced: None,
        mode: RenameMode::Replace,
        ancestors: if from.0 == to.0 { Vec::new() } else { vec![to.0] },
        keep_for: None,
        whiteout: None,
    }
}

/// A vote under way.
pub struct Letter {
    pub to: GroupId,
    pub from: GroupId,
    pub id: MessageId,
    pub vote: Vote,
}

/// All partitions of a tree.
pub struct World {
    pub partitions: BTreeMap<GroupId, Partition>,
    pub letters: Vec<Letter>,
    pub results: BTreeMap<(MessageId, GroupId), Result<Done, FsError>>,
    pub messages: u64,
    pub blocks: BTreeMap<BlockId, Vec<u8>>,
}

impl World {
    pub fn new(count: u16) -> World {
        let groups = (0..=count).map(GroupId);
        World {
            partitions: groups
                .map(|group| (group, Partition::new(group, regions(count), Timestamp::default())))
                .collect(),
            letters: Vec::new(),
            results: BTreeMap::new(),
            messages: 0,
            blocks: BTreeMap::new(),
        }
    }

    /// What a client sees that has seen all up to now.
    pub fn view(&self) -> World {
        World {
            partitions: self.partitions.clone(),
            letters: Vec::new(),
            results: BTreeMap::new(),
            messages: self.messages,
            blocks: BTreeMap::new(),
        }
    }

    /// Who waits for locks, in all partitions.
    pub fn waits(&self) -> Vec<Waits> {
        let of = |partition: &Partition| match partition
            .read(&Query::Waits { partition: partition.group() })
        {
            Ok(Answer::Waits(waits)) => waits,
            other => panic!("{other:?}"),
        };
        self.partitions.values().map(of).collect()
    }

    /// All entries: parent, name, child.
    pub fn entries(&self) -> Vec<(Place, String, Place, Kind)> {
        let (mut all, mut below) = (Vec::new(), vec![Place::ROOT]);
        while let Some(parent) = below.pop() {
            for (name, child, kind) in self.list(parent).unwrap() {
                if kind == Kind::Directory {
                    below.push(child);
                }
                all.push((parent, name, child, kind));
            }
        }
        all
    }

    pub fn next_id(&mut self) -> MessageId {
        self.messages += 1;
        MessageId { client: ME, sequence: self.messages }
    }

    pub fn operation(&self, update: Update) -> Operation {
        let time = Timestamp { seconds: i64::try_from(self.messages).unwrap(), nanos: 0 };
        let (vector, quotas) = (Vector::default(), Vec::new());
        Operation {
            vector,
            time,
            quotas,
            update,
            by: ClientId(0),
            keeps: false,
            under: None,
            rights: None,
        }
    }

    /// Delivers a message; its timestamp is its number.
    pub fn deliver(&mut self, group: GroupId, id: MessageId, operation: Operation) {
        let (ts, mut out) = (Stamp(id.sequence), Vec::new());
        self.partitions.get_mut(&group).unwrap().deliver(id, ts, operation, &mut out);
        self.carry(group, out);
    }

    fn carry(&mut self, from: GroupId, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Vote { to, id, vote } => {
                    for to in to {
                        self.letters.push(Letter { to, from, id, vote: vote.clone() });
                    }
                }
                Effect::Done { id, ts, result, .. } => {
                    assert_eq!(ts, Stamp(id.sequence));
                    let before = self.results.insert((id, from), result);
                    assert_eq!(before, None, "{id} was decided twice");
                }
                Effect::Recalled(_) | Effect::LetGo => {}
                Effect::Released(blocks) => {
                    let unnamed = self.partitions[&from].unnamed(blocks.iter().copied());
                    assert_eq!(unnamed, blocks, "a file lies in a block that is released");
                }
            }
        }
    }

    /// Hands over one vote.
    pub fn hand_over(&mut self, letter: usize) {
        let letter = self.letters.swap_remove(letter);
        let mut out = Vec::new();
        let partition = self.partitions.get_mut(&letter.to).unwrap();
        partition.vote(letter.id, letter.from, letter.vote, &mut out);
        self.carry(letter.to, out);
    }

    /// Delivers an update to all partitions that it concerns and lets them decide.
    pub fn submit(&mut self, update: Update) -> Result<Done, FsError> {
        let id = self.next_id();
        let operation = self.operation(update);
        self.submit_as(id, operation)
    }

    pub fn submit_as(&mut self, id: MessageId, operation: Operation) -> Result<Done, FsError> {
        let groups = operation.update.partitions();
        for group in &groups {
            self.deliver(*group, id, operation.clone());
        }
        while !self.letters.is_empty() {
            self.hand_over(0);
        }
        let mut results = groups.iter().map(|group| self.results.remove(&(id, *group)).unwrap());
        let first = results.next().unwrap();
        results.for_each(|other| assert_eq!(other, first, "partitions differ on {operation:?}"));
        first
    }

    /// Removes all files of `group` that have no name and are open nowhere.
    pub fn reap(&mut self, group: GroupId) {
        let nameless = self.partitions[&group].nameless();
        let inodes = nameless.filter(|(_, is_held)| !is_held).map(|(name, _)| name).collect();
        self.submit(Update::Reap { partition: group, inodes }).unwrap();
    }

    pub fn read(&self, query: &Query) -> Result<Answer, FsError> {
        self.partitions[&query.partition()].read(query)
    }

    pub fn check(&self) {
        meridian_fs::invariants::check_tree(self.partitions.values());
    }

    pub fn attributes(&self, inode: Place) -> Result<Attributes, FsError> {
        match self.read(&Query::Attributes { inode })? {
            Answer::Attributes(attributes) => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    pub fn lookup(&self, parent: Place, name: &str) -> Result<(Place, Kind), FsError> {
        match self.read(&Query::Lookup { parent, name: crate::common::name(name) })? {
            Answer::Entry { entry, .. } => Ok((entry.place, entry.kind)),
            other => panic!("{other:?}"),
        }
    }

    pub fn list(&self, inode: Place) -> Result<Vec<(String, Place, Kind)>, FsError> {
        let (mut all, mut after) = (Vec::new(), Bytes::new());
        loop {
            let query = Query::Directory { inode, after: after.clone(), limit: 2 };
            let Answer::Directory { entries, end, .. } = self.read(&query)? else { panic!() };
            for (name, entry, _) in entries {
                all.push((String::from_utf8_lossy(&name).into_owned(), entry.place, entry.kind));
                after = name;
            }
            if end {
                return Ok(all);
            }
        }
    }

    /// The bytes of a file, holes filled with zeros.
    pub fn contents(&self, inode: Place) -> Result<Vec<u8>, FsError> {
        let query = Query::Contents { inode, offset: 0, len: u64::MAX };
        let Answer::Contents { attributes, extents, .. } = self.read(&query)? else { panic!() };
        let mut all = vec![0; usize::try_from(attributes.size).unwrap()];
        for (offset, extent) in extents {
            let (offset, len) = (usize::try_from(offset).unwrap(), extent.len as usize);
            let bytes = match extent.data {
                Data::Inline(bytes) => bytes.to_vec(),
                Data::Block { block, start } => {
                    self.blocks[&block][start as usize..start as usize + len].to_vec()
                }
            };
            all[offset..offset + len].copy_from_slice(&bytes);
        }
        Ok(all)
    }

    /// Writes in pieces, inline if asked and possible, and else in blocks.
    pub fn write(
        &mut self,
        inode: Place,
        at: WriteAt,
        data: &[u8],
        inline: bool,
        rng: &mut Rng,
    ) -> Result<Done, FsError> {
        let mut pieces = Vec::new();
        let mut offset = 0;
        while offset < data.len() {
            let len = (1 + rng.below(5000) as usize).min(data.len() - offset).min(BLOCK_MAX);
            let bytes = &data[offset..offset + len];
            let data = if inline {
                Data::Inline(Bytes::copy_from_slice(bytes))
            } else {
                let block = BlockId::named(inode.partition, 0, self.blocks.len() as u64);
                let start = rng.below(10) as usize;
                let mut stored = vec![0xaa; start];
                stored.extend_from_slice(bytes);
                stored.push(0xbb);
                self.blocks.insert(block, stored);
                Data::Block { block, start: u32::try_from(start).unwrap() }
            };
            let extent = Extent { len: u32::try_from(len).unwrap(), data };
            pieces.push(Piece { offset: offset as u64, extent });
            offset += len;
        }
        match self.submit(Update::Write { inode, at, pieces }) {
            Err(FsError::InlineFull) if inline => self.write(inode, at, data, false, rng),
            result => result,
        }
    }

    /// The directory and all above it, up to but without the root.
    pub fn ancestors(&self, mut directory: Place) -> Vec<Place> {
        let mut all = Vec::new();
        while directory != Place::ROOT {
            all.push(directory);
            directory = self.lookup(directory, "..").unwrap().0;
        }
        all
    }

    /// `renameat2` as a client does it that sees the newest state.
    pub fn rename(
        &mut self,
        (from, from_name): (Place, &str),
        (to, to_name): (Place, &str),
        mode: RenameMode,
        keep_for: Option<ClientId>,
    ) -> Result<Done, FsError> {
        let update = self.rename_update((from, from_name), (to, to_name), mode, keep_for)?;
        self.submit(update)
    }

    pub fn rename_update(
        &self,
        (from, from_name): (Place, &str),
        (to, to_name): (Place, &str),
        mode: RenameMode,
        keep_for: Option<ClientId>,
    ) -> Result<Update, FsError> {
        let old = self.lookup(from, from_name);
        let replaced = match self.lookup(to, to_name) {
            Ok(found) => Some(found),
            Err(FsError::NotFound) => None,
            Err(other) => return Err(other),
        };
        let (moved, kind) = old?;
        let mut ancestors = Vec::new();
        if from != to && kind == Kind::Directory {
            ancestors.extend(self.ancestors(to));
        }
        let exchanged = replaced.filter(|_| mode == RenameMode::Exchange);
        if from != to && exchanged.is_some_and(|(_, kind)| kind == Kind::Directory) {
            ancestors.extend(self.ancestors(from));
        }
        Ok(Update::Rename {
            from,
            from_name: name(from_name),
            to,
            to_name: name(to_name),
            moved,
            replaced: replaced.map(|(place, _)| place),
            mode,
            ancestors,
            keep_for,
            whiteout: None,
        })
    }

    pub fn create(&mut self, parent: Place, text: &str, kind: Kind) -> Result<Place, FsError> {
        let update = Update::Create { parent, name: name(text), node: node(kind) };
        match self.submit(update)? {
            Done::Attributes(attributes) => Ok(attributes.place),
            other => panic!("{other:?}"),
        }
    }

    pub fn place(&mut self, parent: Place, text: &str, to: u16) -> Result<Place, FsError> {
        let (child, _) = self.lookup(parent, text)?;
        let update = Update::PlaceDirectory { parent, name: name(text), child, to: GroupId(to) };
        match self.submit(update)? {
            Done::Attributes(attributes) => Ok(attributes.place),
            other => panic!("{other:?}"),
        }
    }
}
