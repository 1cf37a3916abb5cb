//! Which regions have keys of all regions (decision 88): the registry of [`meridian_eunomia`]
//! decides, as a part of the configuration, and follows the cluster. A region joins when it has
//! begun, leaves when it is to go, and is lost when it is fenced. Each node is one process of it:
//! it speaks for all that it has, and also if it has no such keys, as it may have some later.

use super::Changed;
use crate::Topology;
use crate::topology::ClusterFile;
use meridian_core::level::Level;
use meridian_core::{NodeId, RegionId};
use meridian_eunomia::registry::Denied;
use meridian_eunomia::{Peer, REGIONS_MAX, Regions, Registry, Role, SOURCES_MAX, Standing, Word};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Topology {
    /// What each region is to the keys of all regions.
    pub fn key_regions(&self) -> Arc<Regions> {
        let first = || Arc::new(Regions::fixed(self.first_regions().count().min(REGIONS_MAX)));
        self.standings.as_ref().map_or_else(first, |registry| registry.regions().clone())
    }

    /// What a node is to the registry; `None` if it can have no keys of all regions.
    pub fn key_peer(&self, node: NodeId) -> Option<Peer> {
        let region = self.node(node).region;
        let may = usize::from(region.0) < REGIONS_MAX && node.0 < SOURCES_MAX;
        may.then_some(Peer { region, role: Role::Shard(node.0) })
    }

    /// The nodes that are waited for: they do not go by what regions are now, as far as is known.
    pub fn key_nodes_behind(&self) -> Vec<NodeId> {
        self.standings.iter().flat_map(|registry| registry.behind().filter_map(number_of)).collect()
    }

    /// Which regions' keys come or go, and whom that waits for; for people.
    pub fn key_moves(&self) -> Vec<String> {
        let name = |region: RegionId| self.regions[usize::from(region.0)].name.as_str();
        let behind = self.names_behind();
        let waits = match behind.is_empty() {
            true => String::new(),
            false => format!("; not heard of by {behind}"),
        };
        let says = |(place, standing): (u16, &Standing)| {
            let silent = || match self.names_silent(RegionId(place)) {
                silent if silent.is_empty() => String::new(),
                silent => format!(": {silent} must say so"),
            };
            let what = match standing {
                Standing::Comes { from } => format!("is to copy those of {}", name(*from)),
                Standing::Copies { from } => format!("copies those of {}", name(*from)),
                Standing::Leaves => "leaves when others have all that it made".into(),
                Standing::Lost { .. } => format!("is lost; nothing more is applied{}", silent()),
                Standing::Settles { .. } => {
                    format!("is lost; all take what is kept{}", silent())
                }
                Standing::Absent | Standing::Serves | Standing::Gone { .. } => return None,
            };
            Some(format!("keys of all regions: {} {what}{waits}", name(RegionId(place))))
        };
        let open = self.lost().values().filter(|lost| lost.keys_stay).map(|lost| {
            let region = name(lost.region);
            format!("keys of all regions: {region} is lost, and what others keep for it stays")
        });
        (0..).zip(self.key_regions().standings()).filter_map(says).chain(open).collect()
    }

    /// The same of those that have not said what a lost region waits for.
    fn names_silent(&self, lost: RegionId) -> String {
        self.names(self.standings.iter().flat_map(|registry| registry.silent(lost)))
    }

    fn names_behind(&self) -> String {
        self.names(self.standings.iter().flat_map(|registry| registry.behind()))
    }

    fn names(&self, peers: impl Iterator<Item = Peer>) -> String {
        let names: Vec<_> =
            peers.filter_map(number_of).map(|node| self.node(node).name.as_str()).collect();
        names.join(", ")
    }
}

/// The node that speaks as this process.
fn number_of(peer: Peer) -> Option<NodeId> {
    match peer.role {
        Role::Shard(number) => Some(NodeId(number)),
        Role::Replica(_) | Role::Receiver => None,
    }
}

/// Regions join and leave as the cluster has it, as soon as that may be.
pub(super) fn follow(file: &mut ClusterFile, topology: &Topology) {
    let first = topology.key_regions();
    let staying: BTreeSet<_> = topology.staying_regions().collect();
    let all = (0..topology.regions.len().min(REGIONS_MAX) as u16).map(RegionId);
    let is_as_wanted = |region: &RegionId| {
        stays_open(topology, *region) || first.writes(*region) == staying.contains(region)
    };
    if file.configuration.standings.is_none() && all.clone().all(|region| is_as_wanted(&region)) {
        return;
    }
    let peers = topology.present().filter_map(|node| topology.key_peer(node)).collect();
    let kept = file.configuration.standings.take();
    let mut registry = kept.unwrap_or_else(|| Registry::new([], (*first).clone()));
    if file.configuration.levels.now >= Level::KEPT {
        registry.each_speaks();
    }
    registry.follow(peers);
    for region in all {
        if stays_open(topology, region) {
            continue;
        }
        // What is denied now is tried again with the next change.
        let _ = match topology.lost_region(region) {
            Some(_) => lose(&mut registry, region),
            None => move_on(&mut registry, region, staying.contains(&region)),
        };
    }
    file.configuration.standings = Some(registry);
}

/// A region was fenced whose keys somebody may hold, below the level at which nodes agree on what
/// of them is kept. So nobody says that they are gone.
fn stays_open(topology: &Topology, region: RegionId) -> bool {
    topology.lost_region(region).is_some_and(|lost| lost.keys_stay)
}

/// The others agree on what is kept of its keys; soon that nothing is, where nobody has any.
fn lose(registry: &mut Registry, region: RegionId) -> Result<(), Denied> {
    match registry.regions().standing(region) {
        Standing::Lost { .. } | Standing::Settles { .. } => Ok(()),
        _ => registry.lose(region),
    }
}

fn move_on(registry: &mut Registry, region: RegionId, stays: bool) -> Result<(), Denied> {
    let regions = registry.regions().clone();
    match regions.standing(region) {
        Standing::Absent if stays => {
            let mut serving = regions.there().filter(|other| regions.writes(*other));
            serving.next().map_or(Ok(()), |from| registry.join(region, from))
        }
        Standing::Serves if !stays => registry.leave(region),
        // It never served: nobody has seen anything of it.
        Standing::Comes { .. } | Standing::Copies { .. } if !stays => registry.lose(region),
        _ => Ok(()),
    }
}

/// A node has said how far it is.
pub(super) fn hear(file: &mut ClusterFile, name: &str, word: Word) -> Changed {
    let topology = Topology::new(file).map_err(|error| error.to_string())?;
    let Some(node) = topology.node_named(name) else { return Err(format!("no node {name}")) };
    if let (Some(registry), Some(peer)) =
        (&mut file.configuration.standings, topology.key_peer(node))
    {
        registry.hear(peer, word);
    }
    Ok(None)
}

/// Whether a region has given up its keys of all regions (S6).
pub(super) fn check_keys_left(topology: &Topology, region: RegionId) -> Result<(), String> {
    match topology.key_regions().standing(region) {
        Standing::Absent | Standing::Gone { .. } => Ok(()),
        _ => {
            let behind = topology.names_behind();
            Err(match behind.is_empty() {
                true => "other regions lack some of its keys of all regions: see `meridian kv lag`"
                    .into(),
                false => format!("{behind} do not know yet that its keys leave"),
            })
        }
    }
}

#[cfg(test)]
#[path = "standings_tests.rs"]
mod tests;
