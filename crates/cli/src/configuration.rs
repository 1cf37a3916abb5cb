//! The newest configuration of a cluster: asked of the nodes that keep it, or else what the cluster
//! file says.

use crate::certificates::{Shown, TlsArgs};
use crate::cluster;
use meridian_client::{Client, ClientOptions};
use meridian_cluster::Topology;
use meridian_cluster::configuration::Request;
use meridian_cluster::topology::ClusterFile;
use meridian_core::RegionId;
use meridian_node::configuration::ASK_AGAIN;
use meridian_node::{Keepers, KeepersError};
use meridian_paxos::Consistency;
use meridian_terminal::note;
use meridian_transport::Security;
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// How long those who keep the configuration may take to answer before the cluster file has to do.
const PATIENCE: Duration = Duration::from_secs(3);

/// A configuration, and where it comes from.
#[derive(Debug)]
pub struct Newest {
    /// What it says; process numbers are those of the cluster file.
    pub file: ClusterFile,
    /// The same.
    pub topology: Topology,
    /// How connections with the cluster are secured.
    pub security: Security,
    /// Why it is that of the cluster file.
    pub error: Option<KeepersError>,
}

impl Newest {
    /// A client that asks nodes how they are.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn client(&self) -> anyhow::Result<Client> {
        self.client_in(None)
    }

    /// The same, in the region of that name if there is one.
    ///
    /// # Errors
    /// As [`Newest::client`].
    pub fn client_in(&self, name: Option<&str>) -> anyhow::Result<Client> {
        let known = self.topology.region_names();
        let first = self.topology.staying_regions().next().unwrap_or(RegionId(0));
        let first = self.topology.regions[usize::from(first.0)].name.as_str();
        let region = name.filter(|name| known.contains(name)).unwrap_or(first);
        let security = self.security.clone();
        let options = ClientOptions { security, ..ClientOptions::new(region) };
        Ok(Client::connect(self.topology.clone(), &options)?)
    }
}

/// The newest configuration of the cluster that the file at `path` describes. The user is told if
/// it may be old.
///
/// # Errors
/// If the file cannot be used, or there is no certificate to show.
pub async fn newest(path: &Path, tls: &TlsArgs, shown: Shown<'_>) -> anyhow::Result<Newest> {
    let (topology, file) = cluster::read(path)?;
    let security = tls.security(path, &file, shown)?;
    if file.configuration.replicas.is_empty() {
        let error = Some(KeepersError::Nobody);
        return Ok(Newest { file, topology, security, error });
    }
    let mut keepers = Keepers::new(&file, security.clone(), PATIENCE);
    let newer = keepers.newer(file.configuration.version, Consistency::Linearizable).await;
    match newer {
        Ok(None) => Ok(Newest { file, topology, security, error: None }),
        Ok(Some(mut newer)) => {
            keep_pids(&mut newer, &file);
            keep_file(path, &newer);
            let topology = Topology::new(&newer)?;
            Ok(Newest { topology, file: newer, security, error: None })
        }
        Err(error) => {
            let version = file.configuration.version;
            note!("{error}; going on with version {version} of {}", path.display());
            Ok(Newest { file, topology, security, error: Some(error) })
        }
    }
}

/// Brings the cluster file up to date, so that it leads to the cluster also when all nodes that it
/// named have been replaced. That it may not be written is no reason not to go on.
pub fn keep_file(path: &Path, newer: &ClusterFile) {
    if let Err(error) = meridian_node::configuration::keep_file(path, newer) {
        note!("meridian: cannot bring {} up to date: {error}", path.display());
    }
}

/// Process numbers stand in the cluster file alone.
pub fn keep_pids(file: &mut ClusterFile, of: &ClusterFile) {
    for (node, known) in file.nodes.iter_mut().zip(&of.nodes) {
        node.pid = known.pid;
    }
}

/// Tells those who keep the configuration where nodes listen since they were started, and how far
/// apart regions are.
///
/// # Errors
/// If no majority of them answers.
pub async fn publish(file: &ClusterFile, security: Security) -> Result<(), KeepersError> {
    let mut keepers = Keepers::new(file, security, PATIENCE * 4);
    keepers.change(&Request::Initialise(serde_json::to_string(file).unwrap_or_default())).await?;
    let Some(kept) = keepers.newer(0, Consistency::Linearizable).await? else { return Ok(()) };
    let mut changes = Vec::new();
    for (node, known) in file.nodes.iter().zip(&kept.nodes) {
        if node.address != known.address && !known.groups.is_empty() {
            let (name, address) = (node.name.clone(), node.address.clone());
            changes.push(Request::SetAddress { name, address });
        }
    }
    if file.rtt_ms != kept.rtt_ms {
        changes.push(Request::SetRtt(file.rtt_ms.clone()));
    }
    for change in &changes {
        keepers.change(change).await?;
    }
    Ok(())
}

/// Asks once a second for a newer configuration than `file`, as long as the receiver lives.
pub fn follow(file: &ClusterFile, security: Security) -> mpsc::Receiver<ClusterFile> {
    let (send, receive) = mpsc::channel(1);
    let mut keepers = Keepers::new(file, security, PATIENCE);
    let mut version = file.configuration.version;
    let task = async move {
        let mut well = true;
        while !send.is_closed() {
            match keepers.newer(version, Consistency::Stale).await {
                Ok(newer) => {
                    well = true;
                    if let Some(newer) = newer {
                        (version, _) = (newer.configuration.version, keepers.moved(&newer));
                        if send.send(newer).await.is_err() {
                            return;
                        }
                    }
                }
                Err(KeepersError::Nobody) => send.closed().await,
                Err(error) => {
                    if well {
                        note!("{error}; going on with version {version}");
                    }
                    well = false;
                }
            }
            tokio::select! {
                () = sleep(ASK_AGAIN) => (),
                () = send.closed() => (),
            }
        }
    };
    tokio::spawn(task);
    receive
}

/// What [`follow`] has found next; waits for ever if there is nobody to ask.
pub async fn next(following: &mut mpsc::Receiver<ClusterFile>) -> ClusterFile {
    match following.recv().await {
        Some(newer) => newer,
        None => std::future::pending().await,
    }
}
