//! Who keeps the configuration of a cluster, and how it is followed.
//!
//! A few nodes each keep a replica of [`meridian_cluster::configuration`] in their process. All
//! nodes, mounts and commands are its clients ([`Keepers`]), at the ports of these nodes. The
//! cluster file names them: with it one finds the newest configuration, and goes on with the one in
//! the file while none answers.

use crate::application::{Configured, Shared};
use crate::error::ServerError;
use crate::keys::Running;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Reply, Request, Show, Shown, encode};
use meridian_cluster::topology::{ClusterFile, TopologyError};
use meridian_core::hello::ServiceId;
use meridian_core::level::Speaks;
use meridian_core::{NodeId, RegionId};
use meridian_eunomia::regions::Report;
use meridian_eunomia::{Peer, Regions, Standing, Word};
use meridian_paxos::Consistency;
use meridian_runtime::Handle;
use meridian_runtime::smr::{Client, ClientError, ClientOptions};
use meridian_transport::Security;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often it is asked whether there is a newer configuration.
pub const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often a node asks another of those that keep the configuration. One that was cut off with
/// the node does not know what the others have agreed on: the region may have been declared lost.
const ASK_ANOTHER: Duration = Duration::from_secs(10);
/// How long to wait for an answer before going on with the configuration that is known: some
/// elections.
const PATIENCE: Duration = Duration::from_secs(5);
/// Why the configuration cannot be had, or not be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeepersError {
    /// The cluster file names none: the cluster cannot be changed.
    #[error("the cluster file names no node that keeps the configuration")]
    Nobody,
    /// No majority, or nobody, answers.
    #[error("the nodes that keep the configuration do not answer: {0}")]
    Unavailable(#[from] ClientError),
    /// The change is not possible.
    #[error("{0}")]
    Refused(String),
    /// The cluster goes by a feature level that this program does not speak.
    #[error("{0}")]
    Level(TopologyError),
    /// It is of another version.
    #[error("the configuration is of another version: {0}")]
    Version(String),
}

/// The nodes that keep the configuration, as one of their clients sees them.
#[derive(Debug)]
pub struct Keepers {
    cluster: u64,
    /// Whether plain text is spoken the file says that lies here, and no newer configuration.
    insecure_plain_text: bool,
    security: Security,
    addresses: Vec<String>,
    /// Where all other nodes listen.
    others: Vec<String>,
    /// Those who kept the configuration did not answer: others know who does now, maybe.
    asks_all: bool,
    patience: Duration,
    client: Option<Client>,
}

impl Keepers {
    /// Those that `file` names. Connects when it is asked something, and gives up after `patience`.
    pub fn new(file: &ClusterFile, security: Security, patience: Duration) -> Keepers {
        let (addresses, others) = addresses(file);
        let (cluster, insecure_plain_text) = (file.cluster, file.insecure_plain_text);
        Keepers {
            cluster,
            insecure_plain_text,
            security,
            addresses,
            others,
            asks_all: false,
            patience,
            client: None,
        }
    }

    /// The next call goes to any of them, not to the one that answered the last.
    pub(crate) fn ask_another(&mut self) {
        self.client = None;
    }

    /// Others keep it now, maybe.
    pub fn moved(&mut self, file: &ClusterFile) {
        let (addresses, others) = addresses(file);
        if self.addresses != addresses {
            (self.addresses, self.client) = (addresses, None);
        }
        self.others = others;
    }

    fn client(&mut self) -> Result<&mut Client, KeepersError> {
        if self.addresses.is_empty() {
            return Err(KeepersError::Nobody);
        }
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                let others = self.others.iter().filter(|_| self.asks_all);
                let addresses = self.addresses.iter().chain(others);
                let options = ClientOptions::new(self.cluster.to_string(), addresses);
                let (service, give_up_after) = (ServiceId::CONFIGURATION, self.patience);
                let security = self.security.clone();
                Client::open(ClientOptions { service, security, give_up_after, ..options })?
            }
        };
        Ok(self.client.insert(client))
    }

    /// After a failure the next call connects anew: who keeps the configuration may have changed.
    fn note<T>(&mut self, result: Result<T, ClientError>) -> Result<T, KeepersError> {
        self.asks_all = result.is_err();
        result.map_err(|error| {
            self.client = None;
            KeepersError::Unavailable(error)
        })
    }

    /// The configuration, if there is one that is newer than `since`.
    ///
    /// # Errors
    /// If nobody answers.
    pub async fn newer(
        &mut self,
        since: u64,
        consistency: Consistency,
    ) -> Result<Option<ClusterFile>, KeepersError> {
        let bytes = self.client()?.read(encode(&Show { since }), consistency).await;
        let bytes = self.note(bytes)?;
        let version = |why: String| KeepersError::Version(why);
        let Shown(text) =
            postcard::from_bytes(&bytes).map_err(|error| version(error.to_string()))?;
        let insecure_plain_text = self.insecure_plain_text;
        let here = |file| ClusterFile { insecure_plain_text, ..file };
        let file = text.map(|text| Topology::parse(&text).map(|(_, file)| here(file)));
        file.transpose().map_err(|error| match error {
            TopologyError::Level(_) => KeepersError::Level(error),
            error => version(error.to_string()),
        })
    }

    /// Asks for a change; the version in which it is done, and the name of a node that was added.
    ///
    /// # Errors
    /// If it is refused, or no majority answers: then it may be done later.
    pub async fn change(
        &mut self,
        request: &Request,
    ) -> Result<(u64, Option<String>), KeepersError> {
        let bytes = self.client()?.execute(encode(request)).await;
        match postcard::from_bytes(&self.note(bytes)?) {
            Ok(Reply::Done { version, added }) => Ok((version, added)),
            Ok(Reply::Refused(why)) => Err(KeepersError::Refused(why)),
            Err(error) => Err(KeepersError::Version(error.to_string())),
        }
    }
}

/// Brings a cluster file up to date, if what it says is of the same cluster and older: with it one
/// finds the cluster again when all nodes that it named before have been replaced. A reader sees
/// the old one or the new one. Process numbers stay, as the file alone knows them.
///
/// # Errors
/// If the disk refuses, or the file may not be written.
pub fn keep_file(path: &Path, newer: &ClusterFile) -> io::Result<()> {
    let path = path.canonicalize()?; // What a link leads to, not the link.
    let strange = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{error}"));
    let (_, old) = Topology::parse(&fs::read_to_string(&path)?).map_err(strange)?;
    let is_newer = newer.configuration.version > old.configuration.version;
    if old.cluster != newer.cluster || !is_newer {
        return Ok(());
    }
    let mut newer = newer.clone();
    newer.insecure_plain_text = old.insecure_plain_text;
    for (node, known) in newer.nodes.iter_mut().zip(&old.nodes) {
        node.pid = known.pid;
    }
    let mut text = serde_json::to_string_pretty(&newer)?;
    text.push('\n');
    let beside = path.with_extension(format!("newer-{}", std::process::id()));
    let written = replace(&path, &beside, &text);
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Whoever may read and write the file may do so afterwards.
fn replace(path: &Path, beside: &Path, text: &str) -> io::Result<()> {
    let before = fs::metadata(path)?;
    let mut file = fs::File::create(beside)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(before.permissions())?;
    // Only root may give it to another; what it cannot do it need not.
    let _ = std::os::unix::fs::chown(beside, Some(before.uid()), Some(before.gid()));
    file.sync_all()?;
    fs::rename(beside, path)
}

/// Where those listen that keep the configuration, and where the other nodes do.
fn addresses(file: &ClusterFile) -> (Vec<String>, Vec<String>) {
    let keepers: Vec<_> = file.keepers().cloned().collect();
    let all = file.nodes.iter().filter(|node| !node.groups.is_empty());
    let others = all.map(|node| &node.address).filter(|address| !keepers.contains(address));
    let others = others.cloned().collect();
    (keepers, others)
}

/// Follows the configuration for as long as the server runs, and tells what happens here.
pub(crate) async fn follow(
    shared: Arc<Shared>,
    node: Handle<Configured, NodeId>,
    keys: Option<Running>,
    mut file: ClusterFile,
    (path, security): (PathBuf, Security),
) {
    let mut keepers = Keepers::new(&file, security, PATIENCE);
    let mut initialised = !file.configuration.replicas.contains(&shared.name_of(shared.me));
    let (mut well, mut connected) = (true, Instant::now());
    loop {
        if connected.elapsed() >= ASK_ANOTHER {
            keepers.ask_another();
            connected = Instant::now();
        }
        match turn(&shared, &mut keepers, &file, &mut initialised).await {
            Ok(newer) => {
                if !well {
                    tracing::info!("the nodes that keep the configuration answer again");
                }
                well = true;
                if let Some(newer) = newer {
                    keepers.moved(&newer);
                    file = newer;
                    if let Err(error) = keep_file(&path, &file) {
                        tracing::warn!("cannot write {} anew: {error}", path.display());
                    }
                    on_newer(&shared, &node, keys.as_ref(), &file).await;
                }
            }
            Err(KeepersError::Level(source)) => {
                return shared.stop(ServerError::Cluster { path, source });
            }
            Err(error) => {
                if well {
                    let version = shared.topology().version;
                    tracing::warn!(%error, "going on with version {version} of the configuration");
                }
                well = false;
            }
        }
        tokio::select! {
            () = sleep(ASK_AGAIN) => (),
            () = shared.told.notified() => (),
        }
    }
}

/// Tells what is to be told, and asks for what is newer.
async fn turn(
    shared: &Shared,
    keepers: &mut Keepers,
    file: &ClusterFile,
    initialised: &mut bool,
) -> Result<Option<ClusterFile>, KeepersError> {
    if !*initialised {
        let text = serde_json::to_string(file).expect("names and numbers are JSON");
        keepers.change(&Request::Initialise(text)).await?;
        *initialised = true;
    }
    let topology = shared.topology();
    if topology.groups.iter().any(|group| group.waits_for == Some(shared.me)) {
        let name = topology.node(shared.me).name.clone();
        keepers.change(&Request::Up { name }).await?;
    }
    let newest = Speaks::HERE.newest;
    if topology.levels.of(&shared.name_of(shared.me)) != newest {
        let name = shared.name_of(shared.me);
        match keepers.change(&Request::Speaks { name, newest }).await {
            Ok(_) => {}
            Err(KeepersError::Refused(why)) => tracing::warn!("level {newest}: {why}"),
            Err(error) => return Err(error),
        }
    }
    for word in words(shared, &topology) {
        let name = shared.name_of(shared.me);
        match keepers.change(&Request::Word { name, word }).await {
            Ok(_) => {}
            Err(KeepersError::Refused(why)) => tracing::warn!("keys of all regions: {why}"),
            Err(error) => return Err(error),
        }
    }
    while let Some((group, number)) = shared.next_in_force() {
        let name = topology.group(group).name.clone();
        match keepers.change(&Request::InForce { group: name, number }).await {
            Ok(_) => {}
            Err(KeepersError::Refused(why)) => tracing::warn!("configuration {number}: {why}"),
            Err(error) => return Err(error),
        }
        shared.in_force_told(group, number);
    }
    // The blocks may be on enough nodes before the keys are.
    let draining = topology.node(shared.me).draining.as_ref();
    let stays = draining.is_some_and(|draining| shared.keys.is_needed(draining.for_good));
    if !stays && let Some(since) = shared.take_drained() {
        let name = shared.name_of(shared.me);
        keepers.change(&Request::Drained { name, since }).await?; // The node says it again.
    }
    keepers.newer(topology.version, Consistency::Stale).await
}

/// What is to be told of the keys of all regions. A node that has none stands in nobody's way.
fn words(shared: &Shared, topology: &Topology) -> Vec<Word> {
    let (Some(registry), Some(me)) = (&topology.standings, topology.key_peer(shared.me)) else {
        return Vec::new();
    };
    let regions = registry.regions();
    let mut words = shared.keys.take_words().unwrap_or_else(|| words_without_keys(regions, me));
    words.retain(|word| match word {
        Word::Heard(epoch) if *epoch < regions.epoch() => false, // It will hear of that one.
        word => !registry.knows(me, word),
    });
    words
}

/// What a node says that has no keys of all regions: of those of a lost one it has applied nothing.
fn words_without_keys(regions: &Regions, me: Peer) -> Vec<Word> {
    let leaves = *regions.standing(me.region) == Standing::Leaves;
    let drained = leaves.then_some(Word::Drained);
    let of_lost = |(place, standing): (u16, &Standing)| {
        let lost = RegionId(place);
        match standing {
            Standing::Lost { round } => {
                Some(Word::Sealed { lost, round: *round, report: Report::default() })
            }
            Standing::Settles { round, .. } => Some(Word::Settled { lost, round: *round }),
            _ => None,
        }
    };
    let of_lost = (0..).zip(regions.standings()).filter_map(of_lost);
    [Word::Heard(regions.epoch())].into_iter().chain(drained).chain(of_lost).collect()
}

async fn on_newer(
    shared: &Shared,
    node: &Handle<Configured, NodeId>,
    keys: Option<&Running>,
    file: &ClusterFile,
) {
    let topology = match Topology::new(file) {
        Ok(topology) => topology,
        Err(error) => return tracing::error!(%error, "the configuration makes no sense"),
    };
    let (topology, me) = (Arc::new(topology), shared.me);
    shared.set_topology(topology.clone());
    if let Some(why) = ServerError::of_gone(&topology, me) {
        return shared.stop(why);
    }
    tracing::info!(version = topology.version, "configured");
    if let Some(keys) = keys {
        keys.configured(&topology, me).await;
    }
    drop(node.request(Configured(topology)).await); // If it has stopped, the server ends.
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_eunomia::{Registry, Role};

    #[test]
    fn nodes_without_keys_of_all_regions_let_those_of_a_lost_one_end() {
        let peer = |region: u16| Peer { region: RegionId(region), role: Role::Shard(region) };
        let mut registry = Registry::new((0..3).map(peer), Regions::fixed(3));
        registry.lose(RegionId(2)).unwrap();
        registry.follow((0..2).map(peer).collect());
        for _ in 0..2 {
            let regions = registry.regions().clone();
            for me in (0..2).map(peer) {
                let words = words_without_keys(&regions, me);
                words.into_iter().for_each(|word| registry.hear(me, word));
            }
        }
        assert!(matches!(registry.regions().standing(RegionId(2)), Standing::Gone { .. }));
    }
}
