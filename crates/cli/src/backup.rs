//! `meridian backup` and `meridian restore`: a directory of the tree at one timestamp, over all
//! regions, in a file, and back (decision 95).

mod archive;
mod restore;
mod walk;

use crate::certificates::Shown;
use crate::cluster::Of;
use crate::{cluster, configuration, output};
use anyhow::{Context, bail, ensure};
use archive::{Header, Reader, Totals, Writer};
use clap::{Args, Subcommand};
use meridian_client::{Client, ClientOptions};
use meridian_terminal::note;
pub use restore::{RestoreArgs, run as restore};
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often it is told how far it is.
const SHOWN: Duration = Duration::from_secs(2);

/// What to do.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
The backup is the state of one moment: all that was acknowledged before the command began is in it,
whoever wrote it in whatever region, and nothing of what came after that moment. Something that
concerns several regions, like a rename from one to another, is in it whole or not at all. Nobody
who writes waits for it. Programs that keep open files are as after a loss of power: what they have
not synced or closed yet may be missing.

In it are directories, files with their holes, symbolic and hard links, devices, owners, modes,
times of reading and writing, extended attributes, access control lists, the placement of
directories and their quotas. Locks, files without a name and times of change are not.

All regions must be reachable. A node may die meanwhile, if another of each region that it is in
goes on. If the command fails or is killed there is no BACKUP; run it again. Blocks that the backup
needs stay until it ends, or a minute after it was killed. Of clients with a grant only those with
--root and without --below may take one; --read-only does not matter.

Examples:
  meridian backup / /backups/monday
  meridian backup /us/home /backups/home --region us --json
  meridian backup verify /backups/monday
  meridian restore /backups/monday /restored"
)]
pub struct BackupArgs {
    #[command(subcommand)]
    verify: Option<Verify>,
    /// A directory in the tree, from its root: / is all of it, /us what is placed in region us
    #[arg(required = true)]
    path: Option<String>,
    /// The file to make; there must be none
    #[arg(required = true)]
    backup: Option<PathBuf>,
    /// Read in this region where there is a choice [default: the first]
    #[arg(long)]
    region: Option<String>,
    #[command(flatten)]
    of: Of,
}

/// What else can be done with a backup.
#[derive(Debug, Subcommand)]
enum Verify {
    /// Read a backup, and look whether all of it is there as it was written
    Verify {
        /// The backup
        backup: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What is told of a backup.
#[derive(Debug, Serialize)]
struct Report<'a> {
    backup: &'a Path,
    /// Of which cluster.
    cluster: String,
    /// The directory that it is of.
    path: &'a str,
    /// The timestamp of all that is in it.
    at: u64,
    /// When it was taken, in milliseconds since 1970.
    taken_ms: u64,
    #[serde(flatten)]
    totals: Totals,
}

impl Report<'_> {
    fn print(&self, done: &str, json: bool) -> anyhow::Result<()> {
        if json {
            return output::print(&serde_json::to_string_pretty(self)?);
        }
        let Report { backup, path, at, totals, .. } = self;
        output::print(&format!("{} {done}: {path} at {at}, {totals}", backup.display()))
    }
}

/// Runs `meridian backup`.
///
/// # Errors
/// If there is such a file, no such directory, a group does not answer or the disk refuses; or the
/// backup is damaged.
pub fn run(args: &BackupArgs) -> anyhow::Result<()> {
    match (&args.verify, &args.path, &args.backup) {
        (Some(Verify::Verify { backup, json }), _, _) => {
            let (header, totals) = verify(backup)?;
            report(backup, &header, totals).print("is whole", *json)
        }
        (None, Some(path), Some(backup)) => take(args, path, backup),
        (None, _, _) => bail!("name a directory of the tree, and the file to make"),
    }
}

fn report<'a>(backup: &'a Path, header: &'a Header, totals: Totals) -> Report<'a> {
    let (cluster, path) = (format!("{:x}", header.cluster), header.path.as_str());
    Report { backup, cluster, path, at: header.at, taken_ms: header.taken_ms, totals }
}

fn take(args: &BackupArgs, path: &str, backup: &Path) -> anyhow::Result<()> {
    ensure!(
        path.starts_with('/'),
        "{path} is not a directory of the tree: name it from the root, as /us/home"
    );
    let mut writer = Writer::create(backup)?;
    let runtime = runtime()?;
    let (header, totals) = runtime.block_on(async {
        let client = connected(&args.of, args.region.as_deref()).await?;
        let snapshot = client.snapshot().await.context("no snapshot can be taken now")?;
        let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let taken_ms = u64::try_from(taken.as_millis()).unwrap_or(u64::MAX);
        let (cluster, at) = (client.topology().cluster, snapshot.at().0);
        let header = Header { cluster, path: path.into(), at, taken_ms };
        writer.begin(&header)?;
        let walked = walk::walk(&client, &snapshot, path, &mut writer).await;
        snapshot.end().await;
        anyhow::Ok((header, walked?))
    })?;
    writer.finish(&totals)?;
    report(backup, &header, totals).print("is made", args.of.json)
}

/// Reads all of a backup.
fn verify(backup: &Path) -> anyhow::Result<(Header, Totals)> {
    let mut reader = Reader::open(backup)?;
    let mut progress = Progress::new("read");
    while reader.next()?.is_some() {
        progress.tell(reader.totals());
    }
    Ok((reader.header().clone(), *reader.totals()))
}

/// A client of the cluster that is meant.
async fn connected(of: &Of, region: Option<&str>) -> anyhow::Result<Client> {
    let path = cluster::named_or_last(of.cluster.as_deref())?;
    let newest = configuration::newest(&path, &of.tls, Shown::Client).await?;
    let region = region.unwrap_or(newest.topology.region_names()[0]);
    let options = ClientOptions { security: newest.security.clone(), ..ClientOptions::new(region) };
    Ok(Client::connect(newest.topology, &options)?)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Tells now and then how far something is.
pub struct Progress {
    what: &'static str,
    told: Instant,
}

impl Progress {
    /// `what` has been done to what is told of.
    pub fn new(what: &'static str) -> Progress {
        Progress { what, told: Instant::now() }
    }

    /// Tells how much that is, if it is time to.
    pub fn tell(&mut self, totals: &impl Display) {
        if self.told.elapsed() >= SHOWN {
            note!("{} {totals}", self.what);
            self.told = Instant::now();
        }
    }
}
