//! What is asked of the tree and what it answers, in words. An inode is told by its partition and
//! its number there, as `1.3f2a`.

use crate::of::multicast::words::of_groups;
use crate::words::{list, of_bytes, of_name};
use meridian_fs::operation::WriteAt;
use meridian_fs::{
    Answer, CapStep, Done, FsError, Ino, Place, Query, Stand, Standing, Update, Vote,
};

/// The lowest bits of an inode's number; those above are the partition where it was made.
const NUMBER: u64 = (1 << 52) - 1;

/// An inode, and where it lives.
pub fn of_place(place: Place) -> String {
    match place {
        Place::ROOT => "the root".into(),
        top if top == Place::top(top.partition) => format!("the top of g{}", top.partition.0),
        Place { ino, partition } => format!("{}.{:x}", partition.0, ino.0 & NUMBER),
    }
}

/// Inodes by where they were made.
pub fn of_inodes(inodes: &[Ino]) -> String {
    list(inodes.iter().map(|ino| of_place(Place { ino: *ino, partition: ino.birthplace() })))
}

/// What is to be changed.
pub fn of_update(update: &Update) -> String {
    let what = update.name();
    match update {
        Update::Create { parent, name, .. }
        | Update::Unlink { parent, name, .. }
        | Update::Rmdir { parent, name, .. }
        | Update::PlaceDirectory { parent, name, .. } => {
            format!("{what} {} in {}", of_name(name), of_place(*parent))
        }
        Update::Make(made) => {
            format!("{what} {} in {}", of_name(&made.name), of_place(made.parent))
        }
        Update::Link { target, parent, name } => {
            let (target, parent) = (of_place(*target), of_place(*parent));
            format!("{what} {target} as {} in {parent}", of_name(name))
        }
        Update::Rename { from, from_name, to, to_name, .. } => {
            let (from, to) = (of_place(*from), of_place(*to));
            let (old, new) = (of_name(from_name), of_name(to_name));
            format!("{what} {old} in {from} to {new} in {to}")
        }
        Update::Write { inode, at, pieces } | Update::Settle { inode, at, pieces, .. } => {
            let at = match at {
                WriteAt::Offset(offset) => format!("at {offset}"),
                WriteAt::End => "at the end".into(),
            };
            let bytes: u64 = pieces.iter().map(|piece| u64::from(piece.extent.len)).sum();
            format!("{what} {bytes} bytes {at} of {}", of_place(*inode))
        }
        Update::SetXattr { inode, name, .. } | Update::RemoveXattr { inode, name } => {
            format!("{what} {} of {}", of_name(name), of_place(*inode))
        }
        Update::SetAttributes { inode, .. }
        | Update::Merge { inode, .. }
        | Update::Extend { inode, .. }
        | Update::PunchHole { inode, .. }
        | Update::Lock { inode, .. }
        | Update::Leave { inode, .. }
        | Update::Unlock { inode, .. }
        | Update::SetDurability { inode, .. }
        | Update::SetQuota { inode, .. } => format!("{what} {}", of_place(*inode)),
        Update::Hold { client, inodes, .. } | Update::Forget { client, inodes, .. } => {
            format!("{what} {} for {:x}", of_inodes(inodes), client.0)
        }
        Update::Caps { client, step, partition } => {
            format!("{what} of {:x} in g{}: {}", client.0, partition.0, of_step(step))
        }
        Update::Renew { client, partition } | Update::Expire { client, partition, .. } => {
            format!("{what} {:x} in g{}", client.0, partition.0)
        }
        Update::Batch(parts) => format!("{what}: {} changes, {}", parts.len(), of_parts(update)),
        Update::CreateUnnamed { .. }
        | Update::Untangle { .. }
        | Update::Reap { .. }
        | Update::NoteReads { .. }
        | Update::NoteTop { .. }
        | Update::RaiseHorizon { .. }
        | Update::Count { .. }
        | Update::Mark { .. }
        | Update::AddRegion { .. }
        | Update::RemoveRegion { .. } => format!("{what}, {}", of_parts(update)),
    }
}

/// Which partitions it concerns.
fn of_parts(update: &Update) -> String {
    of_groups(&update.partitions())
}

fn of_step(step: &CapStep) -> String {
    match step {
        CapStep::Grant(inodes) => format!("grant {}", of_inodes(inodes)),
        CapStep::Release(inodes) => format!("release {}", of_inodes(inodes)),
        CapStep::Renew => "renew".into(),
        CapStep::Expire { inodes, .. } => format!("expire {}", of_inodes(inodes)),
        CapStep::GrantExclusive(inodes) => format!("grant exclusively {}", of_inodes(inodes)),
        CapStep::ReleaseExclusive(inodes) => format!("release exclusive {}", of_inodes(inodes)),
        CapStep::ExpireExclusive { inodes, .. } => {
            format!("expire exclusive {}", of_inodes(inodes))
        }
        CapStep::Recall(inodes) => format!("recall {}", of_inodes(inodes)),
    }
}

/// What is asked.
pub fn of_query(query: &Query) -> String {
    match query {
        Query::Lookup { parent, name } => {
            format!("look up {} in {}", of_name(name), of_place(*parent))
        }
        Query::Attributes { inode } => format!("attributes of {}", of_place(*inode)),
        Query::Directory { inode, after, limit } => {
            let after = of_name(after);
            format!("{limit} entries of {} after {after}", of_place(*inode))
        }
        Query::Symlink { inode } => format!("target of {}", of_place(*inode)),
        Query::Contents { inode, offset, len } => {
            format!("{len} bytes at {offset} of {}", of_place(*inode))
        }
        Query::Xattr { inode, name } => {
            format!("attribute {} of {}", of_name(name), of_place(*inode))
        }
        Query::Xattrs { inode } => format!("names of attributes of {}", of_place(*inode)),
        Query::LockInTheWay { inode, .. } => format!("lock in the way at {}", of_place(*inode)),
        Query::Awaited { inode, .. } => format!("lock awaited at {}", of_place(*inode)),
        Query::Quota { inode } | Query::OwnQuota { inode } => {
            format!("quota of {}", of_place(*inode))
        }
        Query::Totals { partition } => format!("totals of g{}", partition.0),
        Query::Waits { partition } => format!("who waits in g{}", partition.0),
    }
}

/// What is answered.
pub fn of_answer(answer: &Result<Answer, FsError>) -> String {
    match answer {
        Err(error) => error.to_string(),
        Ok(Answer::Entry { entry, .. }) => format!("leads to {}", of_place(entry.place)),
        Ok(Answer::Attributes(attributes)) => {
            format!("attributes of {}", of_place(attributes.place))
        }
        Ok(Answer::Directory { entries, end, .. }) => {
            let more = if *end { "" } else { " and more" };
            format!("{} entries{more}", entries.len())
        }
        Ok(Answer::Bytes(bytes)) => of_bytes(bytes.len()),
        Ok(Answer::Contents { extents, end, .. }) => {
            format!("{} extents up to {end}", extents.len())
        }
        Ok(Answer::Names(names)) => format!("{} names", names.len()),
        Ok(Answer::Lock(None)) => "no lock".into(),
        Ok(Answer::Lock(Some(lock))) => format!("a lock of {:x}", lock.owner.client.0),
        Ok(Answer::Awaited(stand)) => of_stand(stand),
        Ok(Answer::Quota(None)) => "no quota".into(),
        Ok(Answer::Quota(Some(_))) => "a quota".into(),
        Ok(Answer::Totals { inodes, bytes }) => format!("{inodes} inodes, {bytes} bytes"),
        Ok(Answer::Waits(_)) => "who waits".into(),
    }
}

fn of_stand(stand: &Stand) -> String {
    match stand.lock {
        Standing::Held => "the lock is held",
        Standing::Waits => "the lock is awaited",
        Standing::Deadlock => "a deadlock of its own",
        Standing::Gone => "the lock is gone",
    }
    .into()
}

/// What came of an update.
pub fn of_result(result: &Result<Done, FsError>) -> String {
    match result {
        Err(error) => error.to_string(),
        Ok(done) => of_done(done),
    }
}

fn of_done(done: &Done) -> String {
    match done {
        Done::Nothing => "done".into(),
        Done::Attributes(attributes) => format!("done, {}", of_place(attributes.place)),
        Done::Held(attributes) => format!("done and held, {}", of_place(attributes.place)),
        Done::Granted(inodes) => format!("granted {}", of_inodes(inodes)),
        Done::Lock(stand) => of_stand(stand),
        Done::Written { offset, attributes, .. } => {
            format!("written at {offset} of {}", of_place(attributes.place))
        }
        Done::Batch { done, refused } => {
            let refused = refused.map(|why| format!(", then {why}")).unwrap_or_default();
            format!("{} of the changes done{refused}", done.len())
        }
        Done::Made(made) => format!("made and held, {}", of_place(made.attributes.place)),
    }
}

/// What a partition says of an update.
pub fn of_vote(vote: &Vote) -> String {
    match &vote.result {
        Ok(_) => "yes".into(),
        Err(error) => format!("no, {error}"),
    }
}
