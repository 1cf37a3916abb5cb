//! `meridian salvage`: what a node had whose server has stopped, from its directory (decision 108).

mod choice;
mod copy;
mod report;

use crate::output;
use anyhow::{Context, ensure};
use choice::Choice;
use clap::Args;
use copy::{Copied, Copier};
use meridian_cluster::Topology;
use meridian_fs::inventory::{Inventory, Partitions};
use meridian_node::Salvage;
use report::Report;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What it exits with if something is incomplete.
const INCOMPLETE_CODE: u8 = 3;

/// What to read, and what of it.
#[derive(Debug, Args)]
#[command(after_help = "\
For a node that does not come back: its region was declared lost, the node was removed, or its disk
is all that is left of a cluster. Its server must have stopped, and nothing in DIR is changed; DIR
may be on a file system that is mounted read-only. The replicas are restored as the server would do
it at its start.

Without --to it lists, for each partition of which the node had a replica, how much it had applied;
each file and directory, and which bytes of it are missing; the names that lead to other regions,
which are not here; and the updates of which its log does not say what came of them. Those that its
region alone had to decide are taken as done: mostly the last seconds before it stopped. The others
may have been done elsewhere, or never. What no path leads to is under /by-number.

Of the blocks of larger files each node has a part: name the directories of other nodes of the
region with --blocks, and what one lacks or has damaged is taken from another. A node that was
behind had applied less: compare what each lists.

With --to all that is here is copied: directories, files with their holes, symbolic and hard links,
devices, owners, modes, times, extended attributes. Bytes that are missing are a hole, and listed.
Owners and devices need root.

Exit status 0 if all is here that should be, 3 if bytes are missing, a name leads to an inode that
is not in its partition, or something could not be copied as it was; 1 for all other errors.

Examples:
  meridian salvage /var/lib/meridian/ap-1
  meridian salvage DATA/ap-1 --blocks DATA/ap-2 --blocks DATA/ap-3 --to /rescued
  meridian salvage DATA/ap-1 --only /ap/projects --to /rescued
  meridian salvage DATA/ap-1 --only /ap/projects --against /mnt/eu --json")]
pub struct SalvageArgs {
    /// The node's folder
    dir: PathBuf,
    /// Copy all into OUT, which must be empty, or must not be there yet
    #[arg(long, value_name = "OUT")]
    to: Option<PathBuf>,
    /// Only what is at PATH, from the root of the tree, and below it
    #[arg(long, value_name = "PATH")]
    only: Option<String>,
    /// Only what is missing in ROOT (a mount, or a copy of the tree), has another length there or
    /// was changed before
    #[arg(long, value_name = "ROOT")]
    against: Option<PathBuf>,
    /// Look for blocks in the folder of another node, too; may be given several times
    #[arg(long, value_name = "DIR")]
    blocks: Vec<PathBuf>,
    /// The cluster file [default: cluster.json beside the node's folder]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `meridian salvage`.
///
/// # Errors
/// If a server uses the directory, it is none of a node of this version, its log is damaged,
/// nothing is at the path, or nothing can be written where it is to go.
pub fn run(args: &SalvageArgs) -> anyhow::Result<ExitCode> {
    let out = args.to.as_deref().map(|out| checked(args, out)).transpose()?;
    let salvage = Salvage::read(&args.dir, &args.blocks, args.cluster.as_deref())?;
    let partitions: Partitions<'_> =
        salvage.node.replicas().map(|(group, replica)| (group, replica.partition())).collect();
    ensure!(
        !partitions.is_empty(),
        "{}: the log says nothing of files: the node has not taken part yet",
        args.dir.display()
    );
    let inventory = Inventory::of(&partitions, |group| name_of(&salvage.topology, group));
    let choice = Choice::new(&inventory, args.only.as_deref(), args.against.as_deref())?;
    let copied = out.map(|out| copied(&salvage, &partitions, (&inventory, &choice), &out));
    let report = Report::new(&salvage, &partitions, (&inventory, &choice), copied.transpose()?);
    output::print(&match args.json {
        true => serde_json::to_string_pretty(&report)?,
        false => report.for_people(),
    })?;
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE_CODE) })
}

fn name_of(topology: &Topology, group: meridian_core::GroupId) -> meridian_fs::types::Name {
    topology.group_name(group).into()
}

/// Where the copies go, which is nowhere in what is read.
fn checked(args: &SalvageArgs, out: &Path) -> anyhow::Result<PathBuf> {
    let shown = || format!("cannot copy into {}", out.display());
    match std::fs::read_dir(out) {
        Ok(mut entries) => ensure!(
            entries.next().is_none(),
            "{} is not empty, and nothing is written over: name a new directory",
            out.display()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(shown),
    }
    let place = match out.canonicalize() {
        Ok(there) => there,
        Err(_) => {
            let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = out.file_name().with_context(shown)?;
            parent.unwrap_or(Path::new(".")).canonicalize().with_context(shown)?.join(name)
        }
    };
    for dir in [&args.dir].into_iter().chain(&args.blocks) {
        let within = dir.canonicalize().is_ok_and(|dir| place.starts_with(dir));
        ensure!(!within, "{} is in {}, which stays as it is", out.display(), dir.display());
    }
    Ok(place)
}

fn copied(
    salvage: &Salvage,
    partitions: &Partitions<'_>,
    (inventory, choice): (&Inventory, &Choice),
    out: &Path,
) -> anyhow::Result<Copied> {
    let mut copier = Copier::begin(out, |block, start, len| salvage.bytes(block, start, len))?;
    for at in choice.with_those_above(inventory) {
        let place = inventory.items[at].attributes.place;
        let contents = partitions.get(&place.partition);
        let contents = contents.and_then(|partition| partition.contents(place.ino));
        copier.copy(&inventory.items[at], &contents.context("what was found is not there")?)?;
    }
    copier.end()
}
