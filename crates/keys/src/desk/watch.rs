//! Clients that are told of changes of keys.
//!
//! A watcher is told what a key has whenever that is committed at this replica: in the key's order,
//! and perhaps not of a value that was replaced before it could be told. It begins with the values
//! that there are. What is to be told is remembered by key, so a client that takes little costs no
//! more than its keys: the value is looked up when there is room for it.

use super::{ClientNumber, Replica};
use crate::item::Item;
use crate::slots::Shard;
use bytes::Bytes;
use meridian_core::Value;
use std::collections::{BTreeMap, BTreeSet};

/// So many bytes of changes may be on their way to a client from each shard, and one change more.
pub(super) const SENT_MAX: usize = 1 << 20;
/// A change counts for so many bytes beside those of key and value.
const CHANGE_LEN: usize = 64;
/// So many keys are looked at for watchers in one batch.
const LOOKS_MAX: usize = 1024;
/// So many clients of a node may watch: each change of a key is compared with what each wants.
pub const WATCHERS_MAX: usize = 1024;

/// Which keys are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// This one.
    Key(Bytes),
    /// All that begin so.
    Prefix(Bytes),
}

impl Subject {
    /// The key, or what the keys begin with.
    pub fn key(&self) -> &Bytes {
        match self {
            Subject::Key(watched) | Subject::Prefix(watched) => watched,
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        match self {
            Subject::Key(watched) => watched == key,
            Subject::Prefix(prefix) => key.starts_with(prefix),
        }
    }
}

/// Who watches: a client of that shard's thread.
pub type Who = (Shard, ClientNumber);

#[derive(Debug)]
struct Watcher {
    subject: Subject,
    /// How far it has been told what there was when it began.
    walk: Option<u32>,
    /// Keys that have changed since.
    changed: BTreeSet<Bytes>,
    /// So many bytes are on their way.
    sent: usize,
}

/// A change that is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// To this client.
    pub who: Who,
    /// The key.
    pub key: Bytes,
    /// What it has.
    pub value: Option<Bytes>,
}

/// For how many bytes a change counts.
pub(super) fn len(key: &Bytes, value: Option<&Bytes>) -> usize {
    CHANGE_LEN + key.len() + value.map_or(0, Bytes::len)
}

/// Those who watch keys of a shard.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    of: BTreeMap<Who, Watcher>,
    /// So often the replica was asked to tell of changes and has not said yet that it does.
    asked: u32,
}

impl Watchers {
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// One more; whether the replica must now be asked to tell.
    pub fn begin(&mut self, who: Who, subject: Subject) -> bool {
        let (walk, changed) = match &subject {
            Subject::Key(key) => (None, BTreeSet::from([key.clone()])),
            Subject::Prefix(_) => (Some(0), BTreeSet::new()),
        };
        let first = self.of.is_empty();
        self.asked += u32::from(first);
        self.of.insert(who, Watcher { subject, walk, changed, sent: 0 });
        first
    }

    /// One less; whether the replica need not tell any more.
    pub fn end(&mut self, who: Who) -> bool {
        self.of.remove(&who).is_some() && self.of.is_empty()
    }

    /// The replica tells of all changes from now on.
    pub fn on_watching(&mut self) {
        self.asked -= 1;
    }

    pub fn on_committed(&mut self, key: &Bytes) {
        for watcher in self.of.values_mut().filter(|watcher| watcher.subject.has(key)) {
            watcher.changed.insert(key.clone());
        }
    }

    /// A client has taken so many bytes.
    pub fn on_taken(&mut self, who: Who, len: usize) {
        if let Some(watcher) = self.of.get_mut(&who) {
            watcher.sent = watcher.sent.saturating_sub(len);
        }
    }

    /// Whether there is something to tell now.
    pub fn is_due(&self) -> bool {
        self.asked == 0 && self.of.values().any(|watcher| watcher.has_room() && watcher.has_news())
    }

    /// What is to be told now, a part of it if it is much.
    pub fn tell(&mut self, replica: &Replica) -> Vec<Told> {
        let mut told = Vec::new();
        // A walk that begins later sees what was committed before the replica told of changes.
        if self.asked > 0 || !replica.is_live() {
            return told;
        }
        let mut looks = LOOKS_MAX;
        for (who, watcher) in &mut self.of {
            while looks > 0 && watcher.has_room() {
                looks -= 1;
                let Some(found) = watcher.next(replica) else { break };
                if let Some((key, value)) = found {
                    watcher.sent += len(&key, value.as_ref());
                    told.push(Told { who: *who, key, value });
                }
            }
        }
        told
    }
}

impl Watcher {
    fn has_room(&self) -> bool {
        self.sent < SENT_MAX
    }

    fn has_news(&self) -> bool {
        self.walk.is_some() || !self.changed.is_empty()
    }

    /// The next key and its value, if it is to be told; none if there is no other key.
    fn next(&mut self, replica: &Replica) -> Option<Option<(Bytes, Option<Bytes>)>> {
        if let Some(key) = self.changed.pop_first() {
            // A key that is being changed is committed once more, and told then.
            let value = replica.committed(&key);
            return Some(value.map(|value| (key, value.and_then(shown))));
        }
        let (next, key, _) = match replica.walk(self.walk?).next() {
            Some(found) => found,
            None => {
                self.walk = None;
                return None;
            }
        };
        self.walk = Some(next);
        let wanted = self.subject.has(key);
        let value = if wanted { replica.committed(key).flatten().and_then(shown) } else { None };
        Some(value.map(|value| (key.to_bytes(), Some(value))))
    }
}

/// The value of an item. One that has expired is there until an agreed change removes it.
fn shown(item: &Value) -> Option<Bytes> {
    Item::decode(&item.to_bytes()).ok().map(|item| item.data)
}
