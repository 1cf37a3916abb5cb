//! `meridian region lost`: which names lead to what was lost with a region.

use super::{Cluster, TELL_AGAIN};
use crate::cluster::Of;
use crate::configuration::Newest;
use crate::output;
use anyhow::{Context, ensure};
use clap::Args;
use meridian_client::{Client, ClientOptions, Files};
use meridian_cluster::Topology;
use meridian_core::{GroupId, RegionId};
use meridian_fs::types::{Ino, Kind, Place};
use meridian_terminal::note;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a directory that is asked for may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whose.
#[derive(Debug, Args)]
#[command(after_help = "\
What is placed in a region is at its nodes alone. If the region is lost for good, and fenced, names
elsewhere that lead to it stay: they are shown with no rights (mode 0), what they led to cannot be
read, and they can be removed. This lists them, by looking at all directories that are placed in
other regions and in `global`: in a large tree that takes a while.

Example:
  meridian region lost ap")]
pub struct LostArgs {
    /// The region that was fenced
    #[arg(value_name = "REGION")]
    region: String,
    #[command(flatten)]
    of: Of,
}

/// A name that leads to what is lost.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct LostName {
    path: String,
    kind: &'static str,
}

impl LostName {
    /// Its path from the root on.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// The names that lead to what is lost.
#[derive(Debug, Default, Serialize)]
pub struct Names {
    pub names: Vec<LostName>,
    /// Directories that could not be looked at, and why.
    pub unread: Vec<String>,
    /// Whether all directories were looked at, or tried.
    pub all_looked_at: bool,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    region: &'a str,
    since_ms: u64,
    #[serde(flatten)]
    found: Names,
}

/// A client in another region: what it asks for does not go to the lost one first.
pub(super) fn client_elsewhere(newest: &Newest, lost: RegionId) -> anyhow::Result<Client> {
    let topology = &newest.topology;
    let other = topology.staying_regions().find(|region| *region != lost);
    let other = other.context("there is no other region")?;
    let region = topology.regions[usize::from(other.0)].name.as_str();
    let (security, timeout) = (newest.security.clone(), PATIENCE);
    let options = ClientOptions::new(region);
    let options = ClientOptions { security, timeout, on_cut: timeout, ..options };
    Ok(Client::connect(topology.clone(), &options)?)
}

/// Looks for names of what lies in `group` in all directories elsewhere, for so long at most.
pub(super) async fn names_into(
    files: &Arc<Files>,
    topology: &Topology,
    group: GroupId,
    limit: Option<Duration>,
) -> Names {
    let (begin, mut told) = (Instant::now(), Instant::now());
    let (mut found, mut left, mut looked) = (Names::default(), vec![(String::new(), Ino::ROOT)], 0);
    // In a lost group is nothing, but for a top that goes.
    let reads = |partition| partition != group && !topology.has_lost(partition);
    while let Some((path, dir)) = left.pop() {
        if limit.is_some_and(|limit| begin.elapsed() > limit) {
            return found;
        }
        if told.elapsed() > TELL_AGAIN {
            note!("looked at {looked} directories, {} names found", found.names.len());
            told = Instant::now();
        }
        looked += 1;
        let entries = match files.entries(dir).await {
            Ok(entries) => entries,
            Err(error) => {
                found.unread.push(format!("{path}/: {error}"));
                continue;
            }
        };
        for (name, entry) in entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let Place { ino, partition } = entry.place;
            if partition == group && entry.place != Place::top(group) {
                found.names.push(LostName { path, kind: kind_name(entry.kind) });
            } else if entry.kind == Kind::Directory && reads(partition) {
                left.push((path, ino));
            }
        }
    }
    found.names.sort_by(|a, b| a.path.cmp(&b.path));
    found.all_looked_at = true;
    found
}

/// What it is called for people.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
        Kind::Fifo => "FIFO",
        Kind::Socket => "socket",
        Kind::CharDevice | Kind::BlockDevice => "device",
    }
}

impl Names {
    /// For people.
    pub fn table(&self) -> String {
        let row = |name: &LostName| vec![name.path.clone(), name.kind.to_string()];
        output::table(&["name", "was a"], self.names.iter().map(row))
    }
}

pub(super) async fn lost(args: &LostArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open(&args.of).await?;
    let region = args.region.as_str();
    let topology = cluster.newest.topology.clone();
    let id = topology.region_named(region).with_context(|| format!("no region {region}"))?;
    let lost = topology.lost_region(id);
    let lost = lost.with_context(|| format!("region {region} was not declared lost"))?;
    cluster.client = client_elsewhere(&cluster.newest, id)?;
    let files = Files::new(cluster.client.clone());
    let found = names_into(&files, &topology, lost.group, None).await;
    let (unread, count) = (found.unread.join("; "), found.unread.len());
    let since = lost.since();
    let report = Report { region, since_ms: lost.since_ms, found };
    output::print(&match (args.of.json, report.found.names.len()) {
        (true, _) => serde_json::to_string_pretty(&report)?,
        (false, 0) => format!("no names lead to what was lost with {region} ({since})"),
        (false, names) => format!(
            "{}\n\n{names} names lead to what was lost with {region} ({since}): they can be \
             removed",
            report.found.table()
        ),
    })?;
    ensure!(count == 0, "{count} directories could not be looked at: {unread}");
    Ok(ExitCode::SUCCESS)
}
