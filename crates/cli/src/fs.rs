//! `meridian fs`: where paths of a mount are placed, placing directories, their quotas, when what
//! is done in them is durable; what was seen in a mount.
//!
//! These go through extended attributes of the mounted path (`user.meridian.placement` and the
//! like), so any mount of this machine will do, and no connection of their own is needed.

use crate::certificates::Shown;
use crate::cluster::Of;
use crate::durability::{self, DurabilityArgs, Shown as ShownDurability};
use crate::quota::{self, QuotaArgs};
use crate::scrub::{self, ScrubArgs};
use crate::token::{self, AfterArgs, TokenArgs};
use crate::{cluster, configuration, output};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use meridian_cluster::Topology;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The attribute that says where an inode is placed: `global`, or a region's name.
const PLACEMENT: &str = "user.meridian.placement";
/// How many nodes of each region that holds a file keep each of its data blocks.
const BLOCK_REPLICAS: usize = 2;

/// Commands about paths in a mount.
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Tell where a path is placed, which nodes hold it, and when what is done there is durable
    #[command(after_help = "\
Examples:
  meridian fs where meridian/us/file
  meridian fs where meridian --json")]
    Where(WhereArgs),
    /// Place an empty directory in a region, or globally
    #[command(after_help = "\
What is made in the directory afterwards is placed there, too. What is already placed stays where it
is: only an empty directory can be given another placement for now.

Examples:
  mkdir meridian/shared && meridian fs place meridian/shared --region eu
  mkdir meridian/us/world && meridian fs place meridian/us/world --global")]
    Place(PlaceArgs),
    /// Limit what may lie below a directory, or tell how much does
    #[command(after_help = "\
What lies below the directory in its own placement counts, each file once and the directory itself;
what is placed elsewhere does not. Only root may set it. `df DIR` shows it, too.

If the directory is not empty when it gets its quota, or loses it, the nodes count what is there
while others work; the command waits, and shows how far they are. They go on if it is interrupted.
Until all is counted `counting` is shown, and `leaving` until nothing counts any more; the limits
hold for what has been counted. One directory of each placement is counted at a time.

Examples:
  mkdir meridian/us/ann && meridian fs quota meridian/us/ann --bytes 10G --inodes 100000
  meridian fs quota meridian/us/ann
  meridian fs quota meridian/us/ann --none
  meridian fs quota meridian/us/ann --remove")]
    Quota(QuotaArgs),
    /// Tell or choose when what is done in a directory, or with a file, is durable
    #[command(after_help = "\
What is made in a directory takes its mode: files and directories, also those below these. What is
there already keeps its own, and so does what is moved elsewhere. Where nothing is set the mode of
each mount counts (`meridian mount --durability`); a directory's own goes before that. Only the
owner and root may set it. A file that is open keeps what counted when it was opened.

With --recursive what is there gets it, too, one after the other, each by an update of its own: it
is told how far that is, it may be interrupted, and when it is run again it goes on. What others
make meanwhile in directories below has the mode; what they move there may be missed. Exit status 1
if something is somebody else's.

sync: each call is durable when it returns. close: a file when it is closed or synced, names at
once. fsync: as on a local disk, when a file or directory is synced, somebody else looks, or a
second or two have passed, in the order in which it was done.

As an extended attribute it is user.meridian.durability.

Examples:
  meridian fs durability meridian/us/build fsync
  meridian fs durability meridian/us/mail sync
  meridian fs durability meridian/us/mail sync --recursive
  meridian fs durability meridian/us/build --json
  meridian fs durability meridian/us/build inherit")]
    Durability(DurabilityArgs),
    /// Tell how far nodes are with reading all blocks, or have them do so now
    #[command(after_help = "\
Each node reads all blocks that it should hold, once in a week unless its server was told otherwise,
and asks other nodes for those that are damaged or missing. With --now all nodes begin anew, as fast
as their servers may, and the command shows how far they are. They go on if it is interrupted.

repaired counts what was asked of other nodes and stored since the node's server started; unfound is
what no other node has. room is NO at a node whose disk has too little of it for copies: less than a
32nd, or a GiB if that is less, beside what its log keeps for itself.

Exit status 0 if all nodes have read all, and nothing is damaged or missing, else 1.

Examples:
  meridian fs scrub
  meridian fs scrub --now
  meridian fs scrub --now --json")]
    Scrub(ScrubArgs),
    /// Print a token of all that was seen and written in a mount so far
    #[command(after_help = "\
Whoever takes the token over sees all that: `meridian fs after` in a mount of any region, and
MERIDIAN.SESSION TOKEN at a node's keys. What is written and not yet stored is stored before. All
programs of a mount are one session. The token also has what sessions of keys saw whose tokens the
mount has taken over.

Examples:
  token=$(meridian fs token meridian/us)
  ssh elsewhere meridian fs after $token /mnt/meridian '&&' cat /mnt/meridian/us/result")]
    Token(TokenArgs),
    /// Wait until a mount has all that was seen where a token comes from
    #[command(after_help = "\
Afterwards no look through the mount is older. The token is of `meridian fs token` in another mount,
or of MERIDIAN.SESSION at a node's keys: what its session saw of keys the mount does not wait for,
and hands it on with its own next token. A token of another cluster is refused, as is one that was
cut or is from the future.

If time is up it says which regions it lacks, and looks go on as before. Exit status 0 if the mount
has all, else 1.

Examples:
  meridian fs after m1-07... meridian && cat meridian/us/result
  meridian fs after m1-07... meridian --wait 1m")]
    After(AfterArgs),
}

/// See [`FsCommand::Where`].
#[derive(Debug, Args)]
pub struct WhereArgs {
    /// A file or directory in a mount
    path: PathBuf,
    #[command(flatten)]
    of: Of,
}

/// See [`FsCommand::Place`].
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("to").required(true).args(["region", "global"])))]
pub struct PlaceArgs {
    /// An empty directory in a mount
    dir: PathBuf,
    /// Place it in this region: fast there
    #[arg(long)]
    region: Option<String>,
    /// Place it in all regions: read fast everywhere, survives the loss of one
    #[arg(long)]
    global: bool,
}

/// The answer of `fs where`.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Whereabouts {
    path: PathBuf,
    placement: String,
    metadata_on: Vec<String>,
    regions_with_data: Vec<String>,
    data_copies_per_region: usize,
    /// Of a directory or file.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<ShownDurability>,
}

/// Runs `meridian fs`.
///
/// # Errors
/// If the path is in no mount, or the file system refuses.
pub fn run(command: &FsCommand) -> anyhow::Result<ExitCode> {
    match command {
        FsCommand::Where(args) => tell_where(args),
        FsCommand::Place(args) => place(args),
        FsCommand::Quota(args) => quota::run(args),
        FsCommand::Durability(args) => durability::run(args),
        FsCommand::Scrub(args) => return scrub::run(args),
        FsCommand::Token(args) => token::tell(args),
        FsCommand::After(args) => token::take(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn tell_where(args: &WhereArgs) -> anyhow::Result<()> {
    let placement = placement_of(&args.path)?;
    let cluster_path = cluster::named_or_of(args.of.cluster.as_deref(), &args.path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let newest = configuration::newest(&cluster_path, &args.of.tls, Shown::Client);
    let topology = runtime.block_on(newest)?.topology;
    let found = whereabouts(&args.path, placement, &topology).with_context(|| {
        format!("{} is not the cluster mounted there: name it", cluster_path.display())
    })?;
    // A mount of an earlier version tells nothing of it.
    let found = Whereabouts { durability: durability::shown(&args.path).ok().flatten(), ..found };
    if args.of.json {
        return output::print(&serde_json::to_string_pretty(&found)?);
    }
    let durable = found.durability.as_ref().map(|shown| format!("\n  durable   {shown}"));
    output::print(&format!(
        "{}\n  placed    {}\n  metadata  on {}\n  data      in the inode if small, else blocks on {} nodes of each of: {}{}",
        found.path.display(),
        found.placement,
        found.metadata_on.join(", "),
        found.data_copies_per_region,
        found.regions_with_data.join(", "),
        durable.unwrap_or_default(),
    ))
}

fn whereabouts(path: &Path, placement: String, topology: &Topology) -> anyhow::Result<Whereabouts> {
    let Some(group) = topology.group_named(&placement) else {
        bail!("no partition is called {placement:?}");
    };
    let group = topology.group(group);
    let nodes = group.members.iter().map(|node| topology.node(*node));
    let mut regions_with_data: Vec<String> = Vec::new();
    for node in nodes.clone() {
        let region = &topology.regions[usize::from(node.region.0)].name;
        if !regions_with_data.contains(region) {
            regions_with_data.push(region.clone());
        }
    }
    Ok(Whereabouts {
        path: path.into(),
        placement,
        metadata_on: nodes.map(|node| node.name.clone()).collect(),
        regions_with_data,
        data_copies_per_region: BLOCK_REPLICAS,
        durability: None,
    })
}

pub fn placement_of(path: &Path) -> anyhow::Result<String> {
    placement_or(path).map_err(|error| not_here(path, error))
}

/// Where a path is placed, or what the system says instead.
///
/// # Errors
/// As those of `getxattr`.
pub fn placement_or(path: &Path) -> Result<String, Errno> {
    let mut value = [0; 256];
    match rustix::fs::lgetxattr(path, PLACEMENT, &mut value) {
        Ok(len) => Ok(String::from_utf8_lossy(&value[..len]).into_owned()),
        // Symbolic links, pipes and the like have no user attributes, by Linux's rule: they are
        // placed as their directory.
        Err(Errno::PERM | Errno::NODATA) if is_special(path) => placement_or(
            path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new(".")),
        ),
        Err(error) => Err(error),
    }
}

/// Whether it is there, and neither a directory nor a file.
fn is_special(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir() && !found.is_file())
}

fn place(args: &PlaceArgs) -> anyhow::Result<()> {
    let to = if args.global { "global" } else { args.region.as_deref().unwrap_or("global") };
    let dir = args.dir.display();
    let before = placement_of(&args.dir)?;
    if !args.dir.is_dir() {
        bail!("{dir} is not a directory: a file is placed as the directory in which it is made");
    }
    if before == to {
        return output::print(&format!("{dir} is placed in {to} already"));
    }
    match rustix::fs::setxattr(&args.dir, PLACEMENT, to.as_bytes(), XattrFlags::empty()) {
        Ok(()) => output::print(&format!("{dir} is placed in {to} now (before: {before})")),
        Err(Errno::NOTEMPTY) => {
            bail!("{dir} is not empty: only an empty directory can be placed elsewhere for now")
        }
        Err(Errno::INVAL) => bail!("no region {to}{}", known_regions()),
        Err(Errno::BUSY) => bail!(
            "{dir} is in use: it has a quota, or locks, or is being counted for a quota above it"
        ),
        Err(Errno::PERM | Errno::ACCESS) => {
            bail!("you may not place {dir}: it takes the owner, and the right to write above it")
        }
        Err(error) => Err(not_here(&args.dir, error)),
    }
}

fn known_regions() -> String {
    let known = cluster::named_or_last(None).and_then(|path| cluster::read(&path));
    known.map_or_else(
        |_| ": see `meridian status`".into(),
        |(topology, _)| {
            let names = topology.region_names();
            format!(": there are {}", names.join(", "))
        },
    )
}

pub fn not_here(path: &Path, error: Errno) -> anyhow::Error {
    let path = path.display();
    match error {
        Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS => {
            anyhow::anyhow!("{path} is not in a Meridian mount: start one with `meridian demo`")
        }
        Errno::NOTCONN => anyhow::anyhow!("{path}: its mount is dead: start the demo again"),
        error => anyhow::anyhow!("{path}: {}", std::io::Error::from(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, new_cluster};

    #[test]
    fn a_path_is_on_the_nodes_of_its_group() {
        let shape = Shape { nodes_per_region: Some(2), ..Shape::default() };
        let topology = Topology::new(&new_cluster(&shape).unwrap()).unwrap();
        let at = |placement: &str| whereabouts(Path::new("x"), placement.into(), &topology);
        let eu = at("eu").unwrap();
        assert_eq!(
            (eu.metadata_on, eu.regions_with_data),
            (vec!["eu-1".into(), "eu-2".into()], vec!["eu".into()])
        );
        assert_eq!(at("global").unwrap().metadata_on.len(), 6);
        assert!(at("mars").is_err());
    }

    #[test]
    fn a_local_path_is_named_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let error = placement_of(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not in a Meridian mount"), "{error}");
        let error = placement_of(&dir.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}
