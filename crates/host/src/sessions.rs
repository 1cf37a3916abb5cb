//! What came of the updates of each session: each takes effect at most once, and none after its
//! client gave it up.
//!
//! A client sends its updates in *sessions*, one for each set of destinations (decision 0018). All
//! messages of a session, and of the others of its [`shard`], touch one key, so each replica of
//! each of their groups delivers them in the same order. What is here is therefore decided by
//! delivery alone and equal at all replicas.
//!
//! - A message is executed once: its outcome is kept until its client says that it waits for it no
//!   more (`low`).
//! - A later message *cancels* those that its client gave up. What was cancelled before its
//!   delivery is refused.
//! - A shard remembers at most [`SHARD_MAX`] sessions and outcomes. The sessions used least
//!   recently are forgotten, and with them the proof that a message is no repeat. So the shard
//!   keeps a *horizon*, the timestamp of the last message of any session that it forgot: a message
//!   whose client had seen less than that when it named it may be a repeat, and is refused. One
//!   named later cannot have been delivered before.
//!
//! Invariants:
//! - S1: a shard's weight is the number of its sessions and outcomes, and at most [`SHARD_MAX`].
//! - S2: each session is once in the order of use.
//! - S3: no outcome lies below its session's `low`.

use imbl::{OrdMap, OrdSet};
use meridian_core::{ClientId, GroupId, MessageId, Stamp};
use meridian_fs::blocks::{SHARD_BITS, SHARD_SHIFT};
use meridian_fs::{Done, FsError};
use serde::{Deserialize, Serialize};

/// So many messages of one session may be under way at a time, from the lowest that has not ended
/// on. A message further on is refused. Enough for a thousand programs that wait for another region
/// at once.
pub const WINDOW: u64 = 1024;

/// Sessions and outcomes that a shard remembers: four windows, so that a session that is used is
/// not the one forgotten. With some 200 bytes each, a partition keeps at most 50 MiB for each set
/// of destinations.
pub const SHARD_MAX: u64 = 4096;

/// How many messages one message may cancel.
pub const CANCELS_MAX: usize = 256;

/// The bits of a session's name that tell to which groups its messages go: one for each group,
/// those of more than twelve groups share bits.
const GROUP_BITS: u32 = SHARD_SHIFT;

/// The bits above them that spread the sessions over shards. A client that dies half-way through
/// sending a message delays the others of its shard until the groups have told each other of the
/// message.
const SPREAD_BITS: u32 = SHARD_BITS;

/// What came of an update, and its timestamp.
pub type Outcome = (Stamp, Result<Done, FsError>);

/// The name of a session whose messages go to `dest`; `random` must be drawn anew for each.
pub fn name(random: u64, dest: &[GroupId]) -> ClientId {
    ClientId(random & !bits(GROUP_BITS) | groups(dest))
}

/// The name of another session in the same shard as `before`.
pub fn successor(random: u64, before: ClientId) -> ClientId {
    ClientId(random & !bits(GROUP_BITS + SPREAD_BITS) | shard(before))
}

/// The name of a session to the same groups as `before`, in another shard.
pub fn detour(random: u64, before: ClientId) -> ClientId {
    let name = ClientId(random & !bits(GROUP_BITS) | before.0 & bits(GROUP_BITS));
    if shard(name) == shard(before) { ClientId(name.0 ^ 1 << GROUP_BITS) } else { name }
}

/// Whether messages of `session` may go to `dest`.
pub fn goes_to(session: ClientId, dest: &[GroupId]) -> bool {
    session.0 & bits(GROUP_BITS) == groups(dest)
}

/// The shard of a session: messages of one shard are delivered in one order.
pub fn shard(session: ClientId) -> u64 {
    session.0 & bits(GROUP_BITS + SPREAD_BITS)
}

/// The key that all messages of a session touch, among the keys of updates: the uppermost bit tells
/// it from inodes. A collision would only make messages wait for each other.
pub fn key(session: ClientId) -> u64 {
    // The golden ratio spreads the numbers of shards over all keys.
    (shard(session) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63
}

/// The name of a session of that shard, to `dest`.
pub fn in_shard(random: u64, shard: u8, dest: &[GroupId]) -> ClientId {
    let below = bits(GROUP_BITS + SPREAD_BITS);
    ClientId(random & !below | u64::from(shard) << GROUP_BITS | groups(dest))
}

fn bits(count: u32) -> u64 {
    (1 << count) - 1
}

fn groups(dest: &[GroupId]) -> u64 {
    dest.iter().fold(0, |mask, group| mask | 1 << (u32::from(group.0) % GROUP_BITS))
}

/// What is to be done with a message that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is executed; then [`Sessions::decided`].
    Execute,
    /// It is not executed, and nobody waits for it: it was cancelled or may be a repeat.
    Refuse,
    /// It was delivered before: nothing is done.
    Repeat,
}

/// The sessions of one partition. Cheap to clone: clones share what they have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sessions {
    heads: OrdMap<ClientId, Head>,
    /// By message; `None` from its delivery until it is decided.
    outcomes: OrdMap<MessageId, Option<Outcome>>,
    /// By shard: its sessions, the least recently used first.
    used: OrdSet<(u64, Stamp, ClientId)>,
    shards: OrdMap<u64, Shard>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Head {
    /// The client waits for nothing below.
    low: u64,
    /// The shard's horizon when the session became known: a message named before that may be a
    /// repeat.
    horizon: Stamp,
    /// When it was last used.
    last: Stamp,
    /// How many outcomes it has.
    outcomes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Shard {
    weight: u64,
    horizon: Stamp,
}

impl Sessions {
    /// A message was delivered at `ts`: its client waits for nothing below `low`, had seen this
    /// partition up to `seen` when it named the message, and has given up those that the message
    /// `cancels`.
    ///
    /// Everything but [`Sessions::decided`] happens here, in the order of the shard: so the state
    /// does not depend on when votes arrive.
    pub fn admit(
        &mut self,
        id: MessageId,
        ts: Stamp,
        low: u64,
        seen: Stamp,
        cancels: &[MessageId],
    ) -> Admission {
        for cancelled in cancels {
            if self.is_below(*cancelled) {
                continue; // It has ended.
            }
            self.touch(cancelled.client, ts);
            if !self.outcomes.contains_key(cancelled) {
                self.insert(*cancelled, Some((ts, Err(FsError::Expired))));
            }
        }
        self.touch(id.client, ts);
        let admission = match self.outcomes.get(&id) {
            Some(Some((_, Err(FsError::Expired)))) => Admission::Refuse,
            Some(_) => Admission::Repeat,
            None if self.is_below(id) => Admission::Refuse,
            None if seen < self.heads[&id.client].horizon => {
                self.insert(id, Some((ts, Err(FsError::Expired))));
                Admission::Refuse
            }
            None => {
                self.insert(id, None);
                Admission::Execute
            }
        };
        self.forget_below(id.client, low);
        self.shrink(id.client);
        admission
    }

    /// `id` was decided.
    pub fn decided(&mut self, id: MessageId, outcome: Outcome) {
        if let Some(slot @ None) = self.outcomes.get_mut(&id) {
            *slot = Some(outcome);
        }
    }

    /// What came of `id`, if it was decided and may still be asked for.
    pub fn outcome(&self, id: MessageId) -> Option<&Outcome> {
        self.outcomes.get(&id)?.as_ref()
    }

    /// Whether `id` was delivered and is not decided.
    pub fn is_pending(&self, id: MessageId) -> bool {
        matches!(self.outcomes.get(&id), Some(None))
    }

    /// Whether its client has said that it does not wait for `id`.
    pub fn has_ended(&self, id: MessageId) -> bool {
        self.is_below(id)
    }

    /// Whether `id`, which does not wait in the partition, was decided, as far as that is known: of
    /// a message that has ended, or of a session that may have been forgotten, this is wrong until
    /// its delivery.
    pub fn is_decided(&self, id: MessageId) -> bool {
        match self.outcomes.get(&id) {
            Some(outcome) => outcome.is_some(),
            None if self.heads.contains_key(&id.client) => self.is_below(id),
            None => self.horizon(shard(id.client)) > Stamp(0),
        }
    }

    /// How many sessions are remembered, and how many outcomes.
    pub fn len(&self) -> (usize, usize) {
        (self.heads.len(), self.outcomes.len())
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    fn horizon(&self, shard: u64) -> Stamp {
        self.shards.get(&shard).map_or(Stamp(0), |shard| shard.horizon)
    }

    fn is_below(&self, id: MessageId) -> bool {
        self.heads.get(&id.client).is_some_and(|head| id.sequence < head.low)
    }

    /// The session is used at `ts`.
    fn touch(&mut self, session: ClientId, ts: Stamp) {
        let shard = shard(session);
        if let Some(head) = self.heads.get_mut(&session) {
            self.used.remove(&(shard, head.last, session));
            head.last = ts;
        } else {
            let horizon = self.horizon(shard);
            self.heads.insert(session, Head { low: 0, horizon, last: ts, outcomes: 0 });
            self.shards.entry(shard).or_default().weight += 1;
        }
        self.used.insert((shard, ts, session));
    }

    fn insert(&mut self, id: MessageId, outcome: Option<Outcome>) {
        self.outcomes.insert(id, outcome);
        self.heads.get_mut(&id.client).expect("the caller used it").outcomes += 1;
        self.shards.entry(shard(id.client)).or_default().weight += 1;
    }

    fn forget_below(&mut self, session: ClientId, low: u64) {
        let Some(head) = self.heads.get_mut(&session).filter(|head| low > head.low) else { return };
        let from = MessageId { client: session, sequence: head.low };
        head.low = low;
        let upto = MessageId { client: session, sequence: low };
        // One or two, mostly.
        let gone: Vec<_> = self.outcomes.range(from..upto).map(|(id, _)| *id).collect();
        for id in &gone {
            self.outcomes.remove(id);
        }
        head.outcomes -= gone.len() as u64;
        self.shards.entry(shard(session)).or_default().weight -= gone.len() as u64;
    }

    /// Forgets the sessions of the shard that were used least recently, but not `kept`.
    fn shrink(&mut self, kept: ClientId) {
        let shard = shard(kept);
        while self.shards.get(&shard).is_some_and(|shard| shard.weight > SHARD_MAX) {
            let (first, after) =
                ((shard, Stamp(0), ClientId(0)), (shard + 1, Stamp(0), ClientId(0)));
            let mut oldest =
                self.used.range(first..after).filter(|(_, _, session)| *session != kept);
            let Some(oldest) = oldest.next().copied() else { return };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, (shard, last, session): (u64, Stamp, ClientId)) {
        self.used.remove(&(shard, last, session));
        let head = self.heads.remove(&session).expect("S2: each session is in the order of use");
        let first = MessageId { client: session, sequence: 0 };
        let end = MessageId { client: session, sequence: u64::MAX };
        let gone: Vec<_> = self.outcomes.range(first..=end).map(|(id, _)| *id).collect();
        for id in &gone {
            self.outcomes.remove(id);
        }
        let shard = self.shards.entry(shard).or_default();
        shard.weight -= 1 + head.outcomes;
        shard.horizon = shard.horizon.max(last);
    }

    /// Checks what must hold between steps, walking all of it.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_invariants(&self) {
        for (number, of) in &self.shards {
            let heads = self.heads.iter().filter(|(session, _)| shard(**session) == *number);
            let outcomes = self.outcomes.keys().filter(|id| shard(id.client) == *number);
            assert_eq!(of.weight, (heads.count() + outcomes.count()) as u64, "S1: {number}");
            assert!(of.weight <= SHARD_MAX, "S1: shard {number} remembers {}", of.weight);
        }
        let used = |(session, head): (&ClientId, &Head)| (shard(*session), head.last, *session);
        assert_eq!(self.heads.iter().map(used).collect::<OrdSet<_>>(), self.used, "S2");
        let below = self.outcomes.keys().find(|id| self.is_below(**id));
        assert_eq!(below, None, "S3");
    }
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
