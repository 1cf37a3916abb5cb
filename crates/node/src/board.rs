//! What the threads of keys have to say of themselves, for other threads to read: each writes its
//! own notice at the end of a batch, and waits for nobody.

use meridian_core::{NodeId, RegionId, Time};
use meridian_eunomia::{Timestamp, Word};
use meridian_hermes::{Durability, Hermes, Membership, Modify};
use meridian_host::api::{CausalFrom, CausalStatus, KeysStatus};
use meridian_keys::causal::desk::Keys;
use meridian_keys::desk::Held;
use meridian_keys::slots::Shard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// One notice for each shard.
#[derive(Debug, Default)]
pub struct Board {
    notices: Vec<Notice>,
    /// The last notice is that of the causal keys.
    has_causal: bool,
    causal: Mutex<Option<Progress>>,
    /// How far those are with regions that join and leave.
    words: Mutex<Words>,
    /// Who grants leases for the keys of the region, as far as is known here.
    voters: Mutex<BTreeSet<NodeId>>,
    /// Nobody relies on this node for keys; it may be wanted again.
    is_released: AtomicBool,
    /// Nobody relies on this node for keys any more.
    has_left: AtomicBool,
    /// So many shards should not be asked for more.
    full: AtomicUsize,
}

/// What the causal keys have said, and nobody was told yet.
#[derive(Clone, Debug, Default)]
struct Words {
    heard: Option<u64>,
    copied: bool,
    drained: bool,
    /// The last of each lost region: it is in one round, and has sealed or settled there.
    of_lost: BTreeMap<RegionId, Word>,
}

/// How far keys of all regions are, as one node knows.
#[derive(Clone, Debug)]
struct Progress {
    /// All updates of the region up to here are known.
    stable: Timestamp,
    /// So many updates made here some other region may lack.
    outstanding: usize,
    /// Of each other region: one of its nodes, up to where all is applied here, and how many labels
    /// wait.
    origins: Vec<(NodeId, Timestamp, usize)>,
}

#[derive(Debug, Default)]
struct Notice {
    epoch: AtomicU64,
    /// Changes with the epoch only.
    membership: Mutex<Membership>,
    /// When its lease ends, in nanoseconds by the node's clock.
    lease: AtomicU64,
    clients: AtomicU64,
    keys: AtomicU64,
    bytes: AtomicU64,
    on_disk: AtomicBool,
    /// It should not be asked for more.
    full: AtomicBool,
}

impl Board {
    /// For so many shards, which have said nothing yet.
    pub fn new(shards: usize) -> Board {
        Board { notices: (0..shards).map(|_| Notice::default()).collect(), ..Board::default() }
    }

    /// The same, with one more for the keys of all regions.
    pub fn with_causal(shards: usize) -> Board {
        Board { has_causal: true, ..Board::new(shards + 1) }
    }

    /// Who grants leases, and whether this node is not needed, or never more.
    pub fn note_voters(&self, voters: &BTreeSet<NodeId>, is_released: bool, has_left: bool) {
        let mut noted = self.voters.lock().unwrap_or_else(PoisonError::into_inner);
        if *noted != *voters {
            noted.clone_from(voters);
        }
        self.is_released.store(is_released, Ordering::Relaxed);
        self.has_left.store(has_left, Ordering::Relaxed);
    }

    /// Whether others rely on a node that is drained for keys, or if it goes for good: may yet.
    pub fn is_needed(&self, for_good: bool) -> bool {
        let done = if for_good { &self.has_left } else { &self.is_released };
        !self.is_empty() && !done.load(Ordering::Relaxed)
    }

    /// The causal keys are so now.
    pub fn note_causal(&self, keys: &Keys) {
        // A region that joins is behind until it has everything, and is asked for nothing.
        let standings = keys.regions().standings();
        let serves = standings.reads(keys.region());
        let others = keys.regions().topology().others(keys.region());
        let others = others.filter(|origin| serves && standings.is_there(*origin));
        let progress = Progress {
            stable: keys.stable_time(),
            outstanding: keys.outstanding(),
            origins: others
                .filter_map(|origin| {
                    let (site_time, queued) = keys.site_time(origin);
                    Some((*keys.regions().nodes(origin).first()?, site_time, queued))
                })
                .collect(),
        };
        *self.causal.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    /// The causal keys say how far they are with the regions.
    pub fn note_word(&self, word: Word) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        match word {
            Word::Heard(epoch) => words.heard = words.heard.max(Some(epoch)),
            Word::Copied => words.copied = true,
            Word::Drained => words.drained = true,
            Word::Sealed { lost, .. } | Word::Settled { lost, .. } => {
                words.of_lost.insert(lost, word);
            }
        }
    }

    /// What they have said since this was asked last, but for the epoch, which is for good; they
    /// say again what holds. `None` if this node has no causal keys.
    pub fn take_words(&self) -> Option<Vec<Word>> {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = words.heard;
        let said = std::mem::replace(&mut *words, Words { heard, ..Words::default() });
        let heard = heard.map(Word::Heard).into_iter();
        let copied = said.copied.then_some(Word::Copied);
        let all = heard.chain(copied).chain(said.drained.then_some(Word::Drained));
        let all = all.chain(said.of_lost.into_values());
        self.has_causal.then(|| all.collect())
    }

    /// How keys of all regions are.
    pub fn causal(&self, now: Time) -> Option<CausalStatus> {
        let noted = self.causal.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let lag_ms = |ts: Timestamp| now.0.saturating_sub(ts.0) / 1_000_000;
        let from = |(of, ts, queue): &(NodeId, Timestamp, usize)| CausalFrom {
            of: *of,
            applied_ms: ts.0 / 1_000_000,
            lag_ms: lag_ms(*ts),
            queue: *queue as u64,
        };
        Some(CausalStatus {
            stable_ms: noted.stable.0 / 1_000_000,
            outstanding: noted.outstanding as u64,
            from: noted.origins.iter().map(from).collect(),
        })
    }

    /// A shard is so now; whether it has room again that had none.
    pub fn note<M: Modify>(&self, shard: Shard, replica: &Hermes<M>, clients: usize) -> bool {
        let notice = &self.notices[usize::from(shard.0)];
        let set = |of: &AtomicU64, value: u64| of.store(value, Ordering::Relaxed);
        let membership = replica.membership();
        if notice.epoch.load(Ordering::Relaxed) != membership.epoch.0 {
            let mut noted = notice.membership.lock().unwrap_or_else(PoisonError::into_inner);
            *noted = membership.clone();
            set(&notice.epoch, membership.epoch.0);
        }
        set(&notice.lease, replica.lease().0);
        set(&notice.clients, clients as u64);
        set(&notice.keys, replica.len() as u64);
        set(&notice.bytes, replica.bytes() as u64);
        let on_disk = replica.durability() == Durability::Disk;
        notice.on_disk.store(on_disk, Ordering::Relaxed);
        let full = replica.is_full();
        let was_full = notice.full.swap(full, Ordering::Relaxed);
        // Whoever is woken for this must see it.
        match (was_full, full) {
            (false, true) => self.full.fetch_add(1, Ordering::SeqCst),
            (true, false) => self.full.fetch_sub(1, Ordering::SeqCst),
            (false, false) | (true, true) => return false,
        };
        was_full
    }

    /// Whether another shard should not be asked for more.
    pub fn is_full_elsewhere(&self, shard: Shard) -> bool {
        let own = self.notices[usize::from(shard.0)].full.load(Ordering::Relaxed);
        self.full.load(Ordering::SeqCst) > usize::from(own)
    }

    /// How many shards there are.
    pub fn len(&self) -> usize {
        self.notices.len() - usize::from(self.has_causal)
    }

    /// Whether the node has no keys.
    pub fn is_empty(&self) -> bool {
        self.notices.is_empty()
    }

    /// What all shards hold.
    pub fn held(&self) -> Held {
        Notice::sum(self.notices.iter())
    }

    /// What the other shards hold.
    pub fn elsewhere(&self, shard: Shard) -> Held {
        let (before, rest) = self.notices.split_at(usize::from(shard.0));
        Notice::sum(before.iter().chain(rest.iter().skip(1)))
    }

    /// So many clients are connected to all threads.
    pub fn clients(&self) -> u64 {
        self.notices.iter().map(|notice| notice.clients.load(Ordering::Relaxed)).sum()
    }

    /// How the shards of `me` are.
    pub fn status(&self, now: Time, me: NodeId) -> Vec<KeysStatus> {
        let mut all: Vec<_> = self.notices.iter().map(|notice| notice.status(now, me)).collect();
        let voters = self.voters.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter_mut().for_each(|status| status.voters.clone_from(&voters));
        if self.has_causal
            && let Some(last) = all.last_mut()
        {
            last.causal = true;
        }
        all
    }
}

impl Notice {
    fn sum<'a>(notices: impl Iterator<Item = &'a Notice>) -> Held {
        let get =
            |of: &AtomicU64| usize::try_from(of.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        notices.fold(Held::default(), |held, notice| Held {
            keys: held.keys + get(&notice.keys),
            bytes: held.bytes + get(&notice.bytes),
        })
    }

    fn status(&self, now: Time, me: NodeId) -> KeysStatus {
        let get = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let membership = self.membership.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let left = Time(get(&self.lease)).since(now);
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let shadows: BTreeSet<_> = membership.shadows.keys().copied().collect();
        KeysStatus {
            epoch: membership.epoch.0,
            serves_ms: if membership.live.contains(&me) { left_ms } else { 0 },
            live: membership.live,
            shadows,
            voters: BTreeSet::new(),
            clients: get(&self.clients),
            keys: get(&self.keys),
            bytes: get(&self.bytes),
            on_disk: self.on_disk.load(Ordering::Relaxed),
            causal: false,
        }
    }
}
