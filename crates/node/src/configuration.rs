//! Who keeps the configuration of a cluster, and how it is followed.
//!
//! A few nodes each run a replica of [`Configuration`] beside what else they do, on an address of
//! its own. All others are its clients, as are mounts and commands ([`Keepers`]). The cluster file
//! names the replicas: with it one finds the newest configuration, and goes on with the one in the
//! file while none answers.

use crate::application::{Configured, Shared};
use crate::error::ServerError;
use meridian_cluster::Topology;
use meridian_cluster::configuration::{Configuration, Reply, Request, Show, Shown, encode};
use meridian_cluster::topology::ClusterFile;
use meridian_core::NodeId;
use meridian_host::api::KeeperStatus;
use meridian_paxos::{Change, Consistency};
use meridian_runtime::delay::Delay;
use meridian_runtime::smr::{Client, ClientError, ClientOptions, Options, Replica};
use meridian_runtime::{Handle, Listen, Storage};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often it is asked whether there is a newer configuration.
pub const ASK_AGAIN: Duration = Duration::from_secs(1);
/// So long a configuration is known before who kept it is replaced: all who ask for newer ones have
/// learned by then where the next one listens.
const LEARNED: Duration = Duration::from_secs(3);
/// How long to wait for an answer before going on with the configuration that is known: some
/// elections.
const PATIENCE: Duration = Duration::from_secs(5);
/// The configuration changes seldom: its replicas need not be as quick to suspect a leader as
/// others, and must not keep an idle machine busy.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Where a node keeps it, in its directory.
const DIRECTORY: &str = "configuration";

/// Why the configuration cannot be had, or not be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeepersError {
    /// The cluster file is from before there was that.
    #[error(
        "the cluster file names no node that keeps the configuration: start the cluster again with `meridian demo`, which chooses some"
    )]
    Nobody,
    /// No majority, or nobody, answers.
    #[error("the nodes that keep the configuration do not answer: {0}")]
    Unavailable(#[from] ClientError),
    /// The change is not possible.
    #[error("{0}")]
    Refused(String),
    /// It is of another version.
    #[error("the configuration is of another version: {0}")]
    Version(String),
}

/// The nodes that keep the configuration, as one of their clients sees them.
#[derive(Debug)]
pub struct Keepers {
    cluster: u64,
    addresses: Vec<String>,
    patience: Duration,
    client: Option<Client>,
}

impl Keepers {
    /// Those that `file` names. Connects when it is asked something, and gives up after `patience`.
    pub fn new(file: &ClusterFile, patience: Duration) -> Keepers {
        let addresses = file.configuration.addresses().cloned().collect();
        Keepers { cluster: file.cluster, addresses, patience, client: None }
    }

    /// Others keep it now, maybe.
    pub fn moved(&mut self, file: &ClusterFile) {
        let addresses: Vec<_> = file.configuration.addresses().cloned().collect();
        if self.addresses != addresses {
            (self.addresses, self.client) = (addresses, None);
        }
    }

    async fn client(&mut self) -> Result<&mut Client, KeepersError> {
        if self.addresses.is_empty() {
            return Err(KeepersError::Nobody);
        }
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                let options = ClientOptions::new(name_of(self.cluster), self.addresses.clone());
                let give_up_after = self.patience;
                Client::connect_with(ClientOptions { give_up_after, ..options }).await?
            }
        };
        Ok(self.client.insert(client))
    }

    /// After a failure the next call connects anew: who keeps the configuration may have changed.
    fn note<T>(&mut self, result: Result<T, ClientError>) -> Result<T, KeepersError> {
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
        let bytes = self.client().await?.read(encode(&Show { since }), consistency).await;
        let bytes = self.note(bytes)?;
        let version = |why: String| KeepersError::Version(why);
        let Shown(text) =
            postcard::from_bytes(&bytes).map_err(|error| version(error.to_string()))?;
        let file = text.map(|text| Topology::parse(&text).map(|(_, file)| file));
        file.transpose().map_err(|error| version(error.to_string()))
    }

    /// Asks for a change; the version in which it is done, and the name of a node that was added.
    ///
    /// # Errors
    /// If it is refused, or no majority answers: then it may be done later.
    pub async fn change(
        &mut self,
        request: &Request,
    ) -> Result<(u64, Option<String>), KeepersError> {
        let bytes = self.client().await?.execute(encode(request)).await;
        match postcard::from_bytes(&self.note(bytes)?) {
            Ok(Reply::Done { version, added }) => Ok((version, added)),
            Ok(Reply::Refused(why)) => Err(KeepersError::Refused(why)),
            Err(error) => Err(KeepersError::Version(error.to_string())),
        }
    }

    /// Another node keeps the configuration in the place of `old`. Done again it changes nothing.
    ///
    /// # Errors
    /// If no majority answers, or it is not possible.
    pub async fn replace(
        &mut self,
        old: NodeId,
        new: NodeId,
        address: String,
    ) -> Result<(), KeepersError> {
        let changed = self.client().await?.reconfigure(Change::Replace { old, new, address }).await;
        match self.note(changed) {
            Ok(_) => Ok(()),
            Err(KeepersError::Unavailable(ClientError::Unchanged(why))) => {
                Err(KeepersError::Refused(why))
            }
            Err(error) => Err(error),
        }
    }
}

/// What the replicas call the cluster: clients of another are turned away.
fn name_of(cluster: u64) -> String {
    format!("configuration of {cluster}")
}

/// Starts the replica of node `me`, if `file` says that it is to keep the configuration, or to do
/// so until another does.
pub(crate) async fn keep(
    dir: &Path,
    file: &ClusterFile,
    topology: &Topology,
    me: NodeId,
) -> Result<Option<Replica<Configuration>>, ServerError> {
    let kept = &file.configuration;
    let name = &topology.node(me).name;
    let address = kept.replicas.get(name).or_else(|| kept.replaced.get(name));
    let Some(address) = address else { return Ok(None) };
    let of =
        |(name, address): (&String, &String)| Some((topology.node_named(name)?, address.clone()));
    let first = if kept.first.is_empty() { &kept.replicas } else { &kept.first };
    let members: BTreeMap<_, _> = first.iter().filter_map(of).collect();
    let delay = |node: &NodeId| {
        let one_way = topology.delay(topology.node(me).region, topology.node(*node).region);
        (*node, Delay { one_way, jitter_percent: 0.0 })
    };
    let delays = topology.present().filter(|node| *node != me).map(|node| delay(&node)).collect();
    let storage = Storage::directory(dir.join(DIRECTORY));
    let options = Options::new(name_of(file.cluster), me, members, storage);
    let farthest = topology.one_way.values().max().copied().unwrap_or_default();
    let paxos = meridian_paxos::Options {
        heartbeat: HEARTBEAT,
        suspect_after: HEARTBEAT * 4 + farthest * 4,
        retransmit: HEARTBEAT + farthest * 4,
        ..options.paxos
    };
    let options = Options { delays, paxos, listen: Listen::Address(address.clone()), ..options };
    let replica = Replica::start(options, Configuration::default()).await;
    replica.map(Some).map_err(|error| ServerError::Configuration(error.to_string()))
}

/// Follows the configuration for as long as the server runs, and tells what happens here.
pub(crate) async fn follow(
    shared: Arc<Shared>,
    node: Handle<Configured, NodeId>,
    mut file: ClusterFile,
    mut keeper: Option<Replica<Configuration>>,
) {
    let mut keepers = Keepers::new(&file, PATIENCE);
    let mut initialised = keeper.is_none();
    let (mut well, mut known) = (true, Instant::now());
    loop {
        let status = keeper_status(keeper.as_ref()).await;
        shared.set_keeper(status.clone());
        close_keeper(&shared, &file, &mut keeper).await;
        let state = State { status, learned: known.elapsed() > LEARNED };
        let turn = turn(&shared, &mut keepers, &file, (&mut initialised, state));
        match turn.await {
            Ok(newer) => {
                if !well {
                    tracing::info!("the nodes that keep the configuration answer again");
                }
                well = true;
                if let Some(newer) = newer {
                    keepers.moved(&newer);
                    (file, known) = (newer, Instant::now());
                    on_newer((&shared, &node), &file, &mut keeper).await;
                }
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

/// What a turn goes by.
struct State {
    /// How the replica here is, if there is one.
    status: Option<KeeperStatus>,
    /// Whether all have learned of the configuration, as far as they ask.
    learned: bool,
}

/// Tells what is to be told, and asks for what is newer.
async fn turn(
    shared: &Shared,
    keepers: &mut Keepers,
    file: &ClusterFile,
    (initialised, State { status, learned }): (&mut bool, State),
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
    while let Some((group, number)) = shared.next_in_force() {
        let name = topology.group(group).name.clone();
        match keepers.change(&Request::InForce { group: name, number }).await {
            Ok(_) => {}
            Err(KeepersError::Refused(why)) => tracing::warn!("configuration {number}: {why}"),
            Err(error) => return Err(error),
        }
        shared.in_force_told(group, number);
    }
    if let Some(status) = status {
        let name = shared.name_of(shared.me);
        if status.takes_part
            && status.members.contains_key(&shared.me)
            && file.configuration.joining.contains(&name)
        {
            keepers.change(&Request::Keeps { name }).await?;
        }
        if learned && let Some(newer) = replace_keeper(keepers, file, &topology, &status).await? {
            return Ok(Some(newer));
        }
    }
    if let Some(since) = shared.take_drained() {
        let name = shared.name_of(shared.me);
        keepers.change(&Request::Drained { name, since }).await?; // The node says it again.
    }
    keepers.newer(topology.version, Consistency::Stale).await
}

/// Who leads those that keep the configuration sees to it that they are those that it names: one is
/// replaced at a time. If there is a newer configuration that one counts.
async fn replace_keeper(
    keepers: &mut Keepers,
    file: &ClusterFile,
    topology: &Topology,
    status: &KeeperStatus,
) -> Result<Option<ClusterFile>, KeepersError> {
    let wanted: BTreeMap<_, _> = file
        .configuration
        .replicas
        .iter()
        .filter_map(|(name, address)| Some((topology.node_named(name)?, address)))
        .collect();
    let old = status.members.keys().find(|node| !wanted.contains_key(*node));
    let new = wanted.iter().find(|(node, _)| !status.members.contains_key(*node));
    let (Some(old), Some((new, address)), true) = (old, new, status.leads) else {
        return Ok(None);
    };
    let newer = keepers.newer(file.configuration.version, Consistency::Linearizable).await?;
    if newer.is_none() {
        tracing::info!("{new} keeps the configuration in the place of {old}");
        match keepers.replace(*old, *new, (*address).clone()).await {
            Err(KeepersError::Refused(why)) => {
                tracing::warn!("{old} keeps the configuration: {why}");
            }
            replaced => replaced?,
        }
    }
    Ok(newer)
}

/// Who is to keep the configuration no more stops, once others do in its place: they may need what
/// only it knows.
async fn close_keeper(
    shared: &Shared,
    file: &ClusterFile,
    keeper: &mut Option<Replica<Configuration>>,
) {
    let (kept, name) = (&file.configuration, shared.name_of(shared.me));
    let goes_on = kept.replicas.contains_key(&name) || kept.replaced.contains_key(&name);
    if !goes_on && let Some(before) = keeper.take() {
        shared.set_keeper(None);
        drop(before.close().await); // Another keeps it, so it has stopped already.
    }
}

async fn on_newer(
    (shared, node): (&Shared, &Handle<Configured, NodeId>),
    file: &ClusterFile,
    keeper: &mut Option<Replica<Configuration>>,
) {
    let topology = match Topology::new(file) {
        Ok(topology) => topology,
        Err(error) => return tracing::error!(%error, "the configuration makes no sense"),
    };
    if topology.is_gone(shared.me) {
        shared.set_topology(Arc::new(topology));
        return shared.removed.notify_one();
    }
    if keeper.is_none() {
        match keep(&shared.dir, file, &topology, shared.me).await {
            Ok(begun) => *keeper = begun,
            Err(error) => tracing::error!(%error, "cannot keep the configuration"),
        }
    }
    tracing::info!(version = topology.version, "configured");
    let topology = Arc::new(topology);
    shared.set_topology(topology.clone());
    drop(node.request(Configured(topology)).await); // If it has stopped, the server ends.
}

/// How the replica here is, if there is one.
async fn keeper_status(keeper: Option<&Replica<Configuration>>) -> Option<KeeperStatus> {
    Some(match keeper?.status().await {
        Ok(status) => KeeperStatus {
            leads: status.leading,
            takes_part: status.active,
            executed: status.position,
            members: status.members.members,
            stopped: None,
        },
        Err(error) => KeeperStatus { stopped: Some(error.to_string()), ..KeeperStatus::default() },
    })
}
