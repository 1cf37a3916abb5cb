//! `meridian drill`: what would be so if a region were cut off, and in a demo, whether it is.

mod held;
mod probe;

use crate::certificates::Shown;
use crate::cluster::Of;
use crate::mount::duration_of;
use crate::signals::Signals;
use crate::{cluster, configuration, output, status};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use held::Held;
use meridian_client::{Client, ClientOptions, Files};
use meridian_cluster::Topology;
use meridian_core::GroupId;
use meridian_fs::Ino;
use meridian_session::drill::{self, Outlook, Split};
use meridian_terminal::note;
use probe::{Probe, Tree};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long a region can be cut off for a drill: it takes seconds until others lead.
const FOR: std::ops::RangeInclusive<Duration> = Duration::from_secs(20)..=Duration::from_secs(3600);

/// What to try.
#[derive(Debug, Subcommand)]
pub enum DrillCommand {
    /// Tell which trees can be changed while a region is cut off; in a demo, try it
    #[command(after_help = "\
A tree can be changed as long as the client reaches a quorum of the members of its group: what is
placed in the region that is cut off only from there, what is global from where most nodes are.
Trees are the root and the directories in it that are placed elsewhere; what is placed further below
is as all that is placed there. Moving and linking between two trees takes both. What waits ends as
`mount --on-cut` says, and nothing is lost.

With --for, in a demo only, the nodes of the region are stopped (SIGSTOP) for so long and go on
then. In each tree a file is made and removed again, twice a second, and what comes of that is
compared with what was foretold, from the middle of the time on: until then others may have to take
over. Exit status 0 if all came as foretold, else 1. If the command is killed by SIGKILL meanwhile,
the nodes stay stopped: `kill -CONT` them.

Examples:
  meridian drill cut eu --dry-run
  meridian drill cut eu --for 60s")]
    Cut(CutArgs),
}

/// See [`DrillCommand::Cut`].
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("how").required(true).args(["dry_run", "period"])))]
pub struct CutArgs {
    /// The region
    region: String,
    /// Only tell what is to be expected
    #[arg(long)]
    dry_run: bool,
    /// Stop the region's nodes for so long, as 60s or 2m: 20s at least
    #[arg(long = "for", value_name = "DURATION", value_parser = period)]
    period: Option<Duration>,
    #[command(flatten)]
    of: Of,
}

fn period(text: &str) -> Result<Duration, String> {
    let period = duration_of(text).filter(|period| FOR.contains(period));
    period.ok_or_else(|| format!("{text} is no duration from 20s to 1h"))
}

/// What is told of a tree.
#[derive(Debug, Serialize)]
struct Row {
    tree: String,
    placed: String,
    /// How many members of its group can be reached from the other regions, of how many, and how
    /// many it takes.
    reachable: usize,
    members: usize,
    quorum: usize,
    /// What clients in the other regions meet.
    elsewhere: &'static str,
    /// What clients in the region meet.
    inside: &'static str,
    /// What came of changes in it, if that was tried.
    seen: Option<Seen>,
}

/// What came of changes during the cut.
#[derive(Debug, Serialize)]
struct Seen {
    done: usize,
    not_done: usize,
    /// None if nothing was tried in time.
    as_foretold: Option<bool>,
}

/// A mount of this machine.
#[derive(Debug, Serialize)]
struct Mounted {
    dir: PathBuf,
    region: String,
    /// Whether it is in the region that is cut off.
    inside: bool,
}

/// What is told.
#[derive(Debug, Serialize)]
struct Report {
    region: String,
    trees: Vec<Row>,
    mounts: Vec<Mounted>,
}

/// Runs `meridian drill`.
///
/// # Errors
/// If there is no such region, or the drill cannot be done here.
pub fn run(command: &DrillCommand) -> anyhow::Result<ExitCode> {
    let DrillCommand::Cut(args) = command;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(cut(args))?;
    output::print(&match args.of.json {
        true => serde_json::to_string_pretty(&report)?,
        false => report.for_people(),
    })?;
    let wrong = |row: &Row| row.seen.as_ref().is_some_and(|seen| seen.as_foretold != Some(true));
    Ok(ExitCode::from(u8::from(report.trees.iter().any(wrong))))
}

async fn cut(args: &CutArgs) -> anyhow::Result<Report> {
    let path = cluster::named_or_last(args.of.cluster.as_deref())?;
    let newest = configuration::newest(&path, &args.of.tls, Shown::Client).await?;
    let topology = &newest.topology;
    let known = topology.region_names();
    let region = topology.region_named(&args.region).filter(|_| known.contains(&&*args.region));
    let Some(region) = region else {
        bail!("no region {}: there are {}", args.region, known.join(", "));
    };
    let other = known.into_iter().find(|other| *other != args.region);
    let other = other.context("it is the only region: nobody is elsewhere")?;
    let options = ClientOptions::new(other);
    let (security, timeout) = (newest.security.clone(), probe::LIMIT);
    let options = ClientOptions { security, timeout, on_cut: timeout, ..options };
    let client = Client::connect(topology.clone(), &options)?;
    let files = Files::new(client);
    let trees = trees(&files).await?;
    let splits = drill::cut(topology, region);
    let mut report = Report {
        region: args.region.clone(),
        trees: trees.iter().map(|tree| row(topology, tree, &splits)).collect(),
        mounts: mounts(topology.cluster, &args.region)?,
    };
    let Some(period) = args.period else { return Ok(report) };
    let outlooks = trees.iter().map(|tree| split_of(&splits, tree.group).from_outside());
    let outlooks: Vec<_> = outlooks.collect();
    let data = path.parent().context("the cluster file lies in no directory")?;
    let held = Held::find(&newest.file, data, &args.region)?;
    let seen = carry_out(&files, (trees, &outlooks), held, period).await?;
    for (row, seen) in report.trees.iter_mut().zip(seen) {
        row.seen = Some(seen);
    }
    Ok(report)
}

/// Cuts the region off, and tries all trees meanwhile.
async fn carry_out(
    files: &std::sync::Arc<Files>,
    (trees, outlooks): (Vec<Tree>, &[Outlook]),
    held: Held,
    period: Duration,
) -> anyhow::Result<Vec<Seen>> {
    let mut signals = Signals::listen()?;
    let names = held.names();
    note!("{names} are stopped for {} s; Ctrl-C ends that", period.as_secs());
    let stopped = held.stop()?;
    let probe = Probe::start(files, trees);
    tokio::select! {
        () = tokio::time::sleep(period) => {}
        _ = signals.next() => {}
    }
    let cut_for = probe.elapsed();
    drop(stopped); // They go on.
    note!("{names} go on; waiting until all trees can be changed again");
    let tries = probe.end(cut_for).await?;
    let seen = tries.iter().zip(outlooks).map(|(tries, outlook)| {
        let done = tries.iter().filter(|tried| tried.done).count();
        let as_foretold = drill::is_as_foretold(*outlook, tries, period / 2);
        Seen { done, not_done: tries.len() - done, as_foretold }
    });
    Ok(seen.collect())
}

/// The root, and what is placed elsewhere in it.
async fn trees(files: &Files) -> anyhow::Result<Vec<Tree>> {
    let root = files.attributes(Ino::ROOT).await?;
    let at_root = Tree { path: "/".into(), ino: Ino::ROOT, group: root.place.partition };
    let mut trees = vec![at_root];
    for (name, entry) in files.entries(Ino::ROOT).await? {
        if entry.place.partition != root.place.partition {
            let path = format!("/{}", String::from_utf8_lossy(&name));
            trees.push(Tree { path, ino: entry.place.ino, group: entry.place.partition });
        }
    }
    Ok(trees)
}

fn split_of(splits: &[Split], group: GroupId) -> Split {
    *splits.iter().find(|split| split.group == group).expect("all groups are split")
}

fn row(topology: &Topology, tree: &Tree, splits: &[Split]) -> Row {
    let split = split_of(splits, tree.group);
    Row {
        tree: tree.path.clone(),
        placed: topology.group_name(tree.group).to_string(),
        reachable: split.outside,
        members: split.inside + split.outside,
        quorum: split.quorum(),
        elsewhere: split.from_outside().name(),
        inside: split.from_inside().name(),
        seen: None,
    }
}

/// The mounts of the cluster on this machine that say in which region they are.
fn mounts(cluster: u64, region: &str) -> anyhow::Result<Vec<Mounted>> {
    let told = status::mounts_of(cluster)?.into_iter().filter_map(|mount| {
        let inside = mount.region.as_deref()? == region;
        Some(Mounted { dir: mount.dir, region: mount.region?, inside })
    });
    Ok(told.collect())
}

impl Report {
    fn for_people(&self) -> String {
        let rows = self.trees.iter().map(|row| {
            let seen = row.seen.as_ref().map_or("-".into(), |seen| {
                let verdict = match seen.as_foretold {
                    Some(true) => "as foretold",
                    Some(false) => "NOT as foretold",
                    None => "not tried long enough",
                };
                format!("{verdict}: {} done, {} not", seen.done, seen.not_done)
            });
            vec![
                row.tree.clone(),
                row.placed.clone(),
                format!("{} of {}, quorum {}", row.reachable, row.members, row.quorum),
                row.elsewhere.into(),
                row.inside.into(),
                seen,
            ]
        });
        let inside = format!("from {}", self.region);
        let head = ["tree", "placed", "members elsewhere", "from elsewhere", &inside, "seen"];
        let table = output::table(&head, rows);
        let mut text = format!("while {} is cut off\n\n{table}", self.region);
        for Mounted { dir, region, inside } in &self.mounts {
            let side = if *inside { "in it" } else { "elsewhere" };
            text.push_str(&format!("\nmounted at {} for {region}: {side}", dir.display()));
        }
        text
    }
}
