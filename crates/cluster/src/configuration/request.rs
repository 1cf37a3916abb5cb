//! What is asked of the service.

use crate::grants::Grant;
use meridian_core::level::Level;
use meridian_eunomia::Word;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What is asked of the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Be this, if you are nothing yet; the text of a `cluster.json`.
    Initialise(String),
    /// A node comes.
    AddNode {
        /// In this region.
        region: String,
        /// Its name; by default the region's with the next number.
        name: Option<String>,
        /// Where it listens.
        address: String,
        /// The nodes that answer now.
        up: BTreeSet<String>,
    },
    /// The server of that node is up: now it may come into its groups.
    Up {
        /// Its name.
        name: String,
    },
    /// A node goes: it is drained, and then leaves its groups.
    RemoveNode {
        /// Its name.
        name: String,
        /// The nodes that answer now.
        up: BTreeSet<String>,
        /// If it keeps the configuration: who does in its place.
        keeper: Option<String>,
        /// Why it must be, though its region has fewer nodes then than it needs.
        reason: Option<String>,
    },
    /// A node that is drained stays: its removal is taken back, unless it goes for good.
    KeepNode {
        /// Its name.
        name: String,
    },
    /// A node that is to keep the configuration takes part in that.
    Keeps {
        /// Its name.
        name: String,
    },
    /// What a node holds is on enough of the nodes of its region that stay; from one that goes for
    /// good ([`Draining::for_good`]): nothing relies on it any more.
    Drained {
        /// Its name.
        name: String,
        /// See [`Draining::since`].
        since: u64,
    },
    /// A node listens somewhere else now.
    SetAddress {
        /// Its name.
        name: String,
        /// Where.
        address: String,
    },
    /// Regions are so far apart now; see [`ClusterFile::rtt_ms`].
    SetRtt(BTreeMap<String, u32>),
    /// The configuration of that number counts in the group.
    InForce {
        /// The group's name.
        group: String,
        /// The number.
        number: u64,
    },
    /// The program of a node speaks levels up to this.
    Speaks {
        /// The node's name.
        name: String,
        /// The highest.
        newest: Level,
    },
    /// The cluster's level is not to rise above this; none: it rises when all nodes speak a higher
    /// one.
    LevelAtMost(Option<Level>),
    /// A client may do no more than that.
    Allow {
        /// Its name in its certificate.
        name: String,
        /// What it may do; none: all again.
        grant: Option<Grant>,
    },
    /// Certificates of that principal count no more.
    Revoke {
        /// As `ROLE/NAME`.
        principal: String,
    },
    /// A region comes, with its first node. Others are added to it as to any region.
    AddRegion {
        /// The region's name.
        region: String,
        /// The node's name; by default the region's with a number.
        name: Option<String>,
        /// Where it listens.
        address: String,
        /// The nodes that answer now.
        up: BTreeSet<String>,
        /// When, in milliseconds since 1970.
        now_ms: u64,
    },
    /// A region goes: its directory does when nothing is left in it, and nodes of another region
    /// take over its group, which is empty then.
    RemoveRegion {
        /// The region's name.
        region: String,
        /// The nodes that answer now.
        up: BTreeSet<String>,
        /// For each of its nodes that keeps the configuration: who does in its place.
        keepers: BTreeMap<String, String>,
        /// When, in milliseconds since 1970.
        now_ms: u64,
    },
    /// A region that goes has lost its directory: its nodes leave their groups.
    CloseRegion {
        /// The region's name.
        region: String,
        /// The nodes that answer now.
        up: BTreeSet<String>,
    },
    /// A node says how far it is with the regions that have keys of all regions.
    Word {
        /// The node's name.
        name: String,
        /// What it says.
        word: Word,
    },
    /// A region is lost for good: all goes on without it (decision 107).
    FenceRegion {
        /// The region's name.
        region: String,
        /// The nodes that answer now: none of the region.
        up: BTreeSet<String>,
        /// No node that answers has keys of all regions.
        keyless: bool,
        /// When, in milliseconds since 1970.
        now_ms: u64,
    },
    /// As [`Request::Allow`], and it may use some keys.
    AllowKeys {
        /// Its name in its certificate.
        name: String,
        /// What it may do.
        grant: Grant,
        /// Keys that begin with one of these.
        prefixes: BTreeSet<String>,
    },
}
