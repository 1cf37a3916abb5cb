//! `meridian prepare`: a machine becomes that of a node.

use crate::certificates;
use crate::cluster::{self, CLUSTER_FILE};
use anyhow::{Context, bail, ensure};
use clap::Args;
use meridian_terminal::{note, output};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Which node's folder to make.
#[derive(Debug, Args)]
#[command(after_help = "\
Makes the node's folder, and beside it a copy of the cluster file, which its server keeps up to date
from then on. What is there already stays: said twice, it does no more than said once.

It is a step of its own, and `meridian server` makes no folder, so that a disk which was not mounted
is noticed. A node whose folder is lost must not come back under its name: it has forgotten what it
promised, and the others turn it away. Remove it, and add another (`meridian cluster`).

Example:
  meridian prepare --cluster cluster.json --dir /var/lib/meridian/us-1")]
pub struct PrepareArgs {
    /// The node's folder, beside which the cluster file is kept
    #[arg(long)]
    dir: PathBuf,
    /// The cluster file that `meridian init` has written, or one of another node
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// The node [default: the name of its folder]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

/// Runs `meridian prepare`.
///
/// # Errors
/// If the cluster has no such node, or something else is in the way.
pub fn run(args: &PrepareArgs) -> anyhow::Result<ExitCode> {
    // What a node writes is for its owner alone.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let (topology, file) = cluster::read(&args.cluster)?;
    let name = match &args.node {
        Some(name) => name.clone(),
        None => name_of(&args.dir)?,
    };
    let known: Vec<_> = topology.present().map(|id| topology.node(id).name.as_str()).collect();
    ensure!(
        known.contains(&name.as_str()),
        "no node {name} in {}: there are {}",
        args.cluster.display(),
        known.join(", ")
    );
    let parent = parent_of(&args.dir)?;
    fs::create_dir_all(&parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let kept = parent.join(CLUSTER_FILE);
    if kept.exists() {
        let there = cluster::read(&kept)?.1.cluster;
        if there != file.cluster {
            bail!(
                "{} is of cluster {there}, not of {}: name a folder elsewhere",
                kept.display(),
                file.cluster
            );
        }
    } else {
        cluster::write(&kept, &file)?;
    }
    meridian_node::prepare(&args.dir, file.cluster, &name)?;
    if !file.insecure_plain_text && !certificates::bring(&name, &args.cluster, &kept)? {
        note!(
            "{name} has no certificate yet: its server wants ca.pem, {name}.pem and {name}.key \
             in {}",
            certificates::dir_of(&kept).display()
        );
    }
    output::print(&format!(
        "{} is the folder of {name}; start it with: meridian server --dir {0}",
        args.dir.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn name_of(dir: &Path) -> anyhow::Result<String> {
    let name = dir.file_name().and_then(|name| name.to_str());
    let what = || format!("{} has no name that a node could have: say --node", dir.display());
    Ok(name.with_context(what)?.to_string())
}

fn parent_of(dir: &Path) -> anyhow::Result<PathBuf> {
    match dir.parent() {
        Some(parent) if parent == Path::new("") => Ok(PathBuf::from(".")),
        Some(parent) => Ok(parent.into()),
        None => bail!("{} cannot be a node's folder", dir.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, new_cluster};

    #[test]
    fn a_node_gets_its_folder_and_its_cluster_file_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let shape = Shape { nodes_per_region: Some(1), ..Shape::default() };
        let write = |name: &str| {
            let file = new_cluster(&shape).unwrap();
            cluster::write(&path(name), &file).unwrap();
            file
        };
        let (mine, _other) = (write("mine.json"), write("other.json"));
        let prepare = |cluster: &str, node: &str| {
            run(&PrepareArgs { dir: path(node), cluster: path(cluster), node: None })
        };
        prepare("mine.json", "lib/us-1").unwrap();
        assert_eq!(cluster::read(&path("lib/cluster.json")).unwrap().1, mine);
        prepare("mine.json", "lib/us-1").unwrap();
        let error = prepare("mine.json", "lib/us-2").unwrap_err().to_string();
        assert!(error.contains("no node us-2") && !path("lib/us-2").exists(), "{error}");
        let error = prepare("other.json", "lib/eu-1").unwrap_err().to_string();
        assert!(error.contains("is of cluster") && !path("lib/eu-1").exists(), "{error}");
    }
}
