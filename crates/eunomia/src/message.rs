//! Who takes part, and what they say to each other.

use crate::timestamp::{Order, Timestamp, Vector};
use bytes::Bytes;
use meridian_core::{Endpoint, GroupId, RegionId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Holds some keys, and is a source of updates: the number of the source.
    Shard(u16),
    /// A replica of the region's Eunomia service.
    Replica(u16),
    /// Receives the labels of other regions.
    Receiver,
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    /// Its region.
    pub region: RegionId,
    /// Its part there.
    pub role: Role,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let region = self.region.0;
        match self.role {
            Role::Shard(number) => write!(f, "shard {number} of region {region}"),
            Role::Replica(number) => write!(f, "replica {number} of region {region}"),
            Role::Receiver => write!(f, "receiver of region {region}"),
        }
    }
}

impl Endpoint for Peer {
    fn group(&self) -> Option<GroupId> {
        None
    }
}

/// How many processes a region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// So many shards, numbered from 0.
    pub shards: u16,
    /// So many replicas of the service, numbered from 0.
    pub replicas: u16,
}

/// What a region has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    shards: u16,
    /// The numbers of the replicas of its service, in order.
    replicas: Vec<u16>,
}

/// All regions; each has all keys. The place of one is its [`RegionId`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    places: Vec<Place>,
}

impl Topology {
    /// One of these regions.
    ///
    /// # Panics
    /// There are more than [`crate::REGIONS_MAX`], or more than [`crate::SOURCES_MAX`] shards in
    /// one; or a region lacks something.
    pub fn new(sites: Vec<Site>) -> Topology {
        for site in &sites {
            assert!((1..=crate::SOURCES_MAX).contains(&site.shards), "{} shards", site.shards);
            assert!(site.replicas > 0, "a region without the service");
        }
        let place = |Site { shards, replicas }| Place { shards, replicas: (0..replicas).collect() };
        Topology::of(sites.into_iter().map(place).collect())
    }

    /// One of regions in which each node has all keys and a replica of the service: their numbers,
    /// by region. Sources come and go, and the service is told who they are.
    ///
    /// # Panics
    /// There are more than [`crate::REGIONS_MAX`] regions.
    pub fn of_replicas(regions: Vec<Vec<u16>>) -> Topology {
        let place = |replicas| Place { shards: 1, replicas };
        Topology::of(regions.into_iter().map(place).collect())
    }

    fn of(places: Vec<Place>) -> Topology {
        assert!(places.len() <= crate::REGIONS_MAX, "{} regions", places.len());
        Topology { places }
    }

    /// All regions.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + use<> {
        (0..self.places.len() as u16).map(RegionId)
    }

    /// All but this one.
    pub fn others(&self, region: RegionId) -> impl Iterator<Item = RegionId> + use<> {
        self.regions().filter(move |other| *other != region)
    }

    /// Of a region that is not known there is nothing.
    fn place(&self, region: RegionId) -> &Place {
        const NOTHING: &Place = &Place { shards: 0, replicas: Vec::new() };
        self.places.get(usize::from(region.0)).unwrap_or(NOTHING)
    }

    /// How many shards a region has.
    pub fn shard_count(&self, region: RegionId) -> u16 {
        self.place(region).shards
    }

    /// The replicas of a region's service.
    pub fn replicas(&self, region: RegionId) -> impl Iterator<Item = Peer> + '_ {
        let numbers = self.place(region).replicas.iter();
        numbers.map(move |number| Peer { region, role: Role::Replica(*number) })
    }

    /// The replica whose turn it is after the one with this number; that one if there is none.
    pub fn replica_after(&self, region: RegionId, number: u16) -> u16 {
        let numbers = &self.place(region).replicas;
        let next = numbers.iter().find(|other| **other > number).or(numbers.first());
        next.copied().unwrap_or(number)
    }

    /// The shards of a region.
    pub fn shards(&self, region: RegionId) -> impl Iterator<Item = Peer> + use<> {
        (0..self.shard_count(region)).map(move |number| Peer { region, role: Role::Shard(number) })
    }

    /// The shard that holds what has this place.
    pub fn home(&self, region: RegionId, place: u32) -> Peer {
        let shards = u32::from(self.shard_count(region));
        Peer { region, role: Role::Shard((place % shards) as u16) }
    }

    /// All processes.
    pub fn peers(&self) -> Vec<Peer> {
        let receiver = |region| Peer { region, role: Role::Receiver };
        let of = |region| {
            let servers = self.shards(region).chain(self.replicas(region));
            servers.chain([receiver(region)])
        };
        self.regions().flat_map(of).collect()
    }
}

/// Where the key is, modulo the shards of a region. (Fowler, Noll and Vo: the same everywhere.)
pub fn place_of(key: &[u8]) -> u32 {
    key.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The metadata of an update: all that the service and the receivers know of it (Eunomia, section
/// 3.4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label {
    /// Its place in the stream of its region; names its source, too.
    pub ts: Timestamp,
    /// What its session had seen of its own region: updates between that and `ts` are concurrent.
    pub dep: Timestamp,
    /// Which shard it concerns; see [`place_of`].
    pub place: u32,
    /// What it depends on in other regions; the entry of its own is `ts`.
    pub vector: Vector,
}

/// An update with its data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Update {
    /// Where it was made.
    pub origin: RegionId,
    /// Its metadata.
    pub label: Label,
    /// Of this key.
    pub key: Bytes,
    /// The new value; `None` deletes the key.
    pub value: Option<Bytes>,
    /// Its place among the updates of its key.
    pub order: Order,
}

/// Labels of a source, numbered in the order in which they were committed, and a promise.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Batch {
    /// Which sources there are, as far as the sender knows: grows with each change of them. Who
    /// knows of fewer changes does not count the promise.
    pub roster: u64,
    /// Which numbers these are: a source that starts again may begin anew, with a greater one.
    pub incarnation: Timestamp,
    /// All labels below this number are applied in all regions.
    pub base: u64,
    /// The number of the first label.
    pub first: u64,
    /// In order, none left out.
    pub labels: Vec<Label>,
    /// Whoever has these and all before will get none at or below this any more (Property 2).
    pub promise: Option<Timestamp>,
    /// Another one follows soon, whether anyone waits for it or not.
    pub goes_on: bool,
}

/// What processes say to each other. Any of it may be lost, come twice, or late.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A source to a replica of the service: ADD_OP and HEARTBEAT.
    Batch(Batch),
    /// A replica to a source.
    Ack {
        /// It has all labels below this number.
        next: u64,
        /// It has got some that come later.
        lacks: bool,
        /// The greatest promise of any source: one that has nothing to do can promise as much.
        ahead: Timestamp,
        /// Labels of others wait for its promise.
        waits: bool,
        /// All other regions have applied what this region made up to here, for good.
        applied: Timestamp,
    },
    /// A receiver to a replica of another region.
    Follow {
        /// It has applied all up to here, for good.
        applied: Timestamp,
        /// It has all labels up to here.
        received: Timestamp,
        /// This replica is to send it the stream.
        leads: bool,
        /// It has got some that come later.
        lacks: bool,
    },
    /// A replica to a receiver: all labels of its region in a span of time.
    Stream {
        /// The span begins after this.
        after: Timestamp,
        /// It ends here.
        upto: Timestamp,
        /// In order.
        labels: Vec<Label>,
        /// The receiver's region has said that it has applied all up to here, for good.
        applied: Timestamp,
        /// All other regions have applied all up to here: nobody needs it any more.
        everywhere: Timestamp,
    },
    /// A source to those that hold the same keys in another region: data, apart from labels.
    Data(Vec<Update>),
    /// A shard of another region lacks the data of these.
    Pull(Vec<Timestamp>),
    /// The answer for those whose data is not kept any more: all other regions have applied them.
    /// One that has joined since has them in its copy.
    Trimmed(Vec<Timestamp>),
    /// The same, of a region that is lost: to a shard of any region that stays.
    Fetch {
        /// Where they were made.
        origin: RegionId,
        /// Which.
        stamps: Vec<Timestamp>,
    },
    /// The answer for those that all regions had applied, so that they are not kept any more. One
    /// that has joined since has them in its copy.
    Forgotten {
        /// Where they were made.
        origin: RegionId,
        /// Which.
        stamps: Vec<Timestamp>,
    },
    /// A receiver to a shard of its region.
    Apply {
        /// Where they were made.
        origin: RegionId,
        /// The round in which was agreed on what is kept of that region; 0 if it is there.
        round: u64,
        /// All labels of that region up to here are applied.
        applied: Timestamp,
        /// All other regions have applied all up to here: nobody needs it any more.
        everywhere: Timestamp,
        /// To be applied, in any order.
        stamps: Vec<Timestamp>,
    },
    /// A shard to the receiver: these are applied, for good.
    Applied {
        /// Where they were made.
        origin: RegionId,
        /// Which.
        stamps: Vec<Timestamp>,
    },
    /// A receiver to a shard of its region: nothing more of a lost one is to be applied, but what
    /// is agreed on in this round, or a later one.
    Seal {
        /// Which.
        lost: RegionId,
        /// The round.
        round: u64,
    },
    /// The shard to its receiver: so it will be, for good.
    Sealed {
        /// Which.
        lost: RegionId,
        /// The round.
        round: u64,
        /// What it has applied and others may lack.
        labels: Vec<Label>,
    },
    /// A receiver to a shard of its region, which joins: it is to copy the keys of another.
    Copy {
        /// Whose.
        from: RegionId,
    },
    /// The shard to its receiver: it has done so, for good; they depend on this.
    Copied(Vector),
    /// A shard that copies to one of the other region: keys that are its own, after this one.
    AskPage {
        /// From the first one if it is `None`.
        after: Option<Bytes>,
    },
    /// The answer.
    Page {
        /// See [`Message::AskPage`].
        after: Option<Bytes>,
        /// What keys hold, in order.
        updates: Vec<Update>,
        /// Whether there are more.
        more: bool,
    },
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// To send what waits, and to look at what is missing.
    Tick,
    /// The same, soon, while there is something to do.
    Soon,
}
