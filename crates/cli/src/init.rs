//! `meridian init`: the file of a new cluster, from what an operator says of its regions.

pub mod answers;

use crate::certificates;
use crate::cluster::{self, CLUSTER_FILE, node_name, region_name};
use answers::{Answers, Region, Said, from_file, from_flags};
use anyhow::{Context, bail};
use clap::Args;
use meridian_cluster::configuration::{NODES_MAX, REPLICAS_MAX};
use meridian_cluster::ring::REPLICAS;
use meridian_cluster::topology::{ClusterFile, DeliveryOrder};
use meridian_terminal::{note, output};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What a new cluster shall be.
#[derive(Debug, Args)]
#[command(after_help = "\
A region is named with where its nodes listen: the addresses at which the others and the clients
call them. They are then REGION-1, REGION-2, ... In an answer file nodes have names of their own:

  order = \"sequential\"               # or linearizable; may be left out
  keepers = [\"us-1\", \"eu-1\", \"ap-1\"]  # of the configuration: 1, 3 or 5; may be left out

  [[region]]
  name = \"us\"
  nodes = [
    { name = \"us-1\", address = \"10.0.1.1:7000\" },
    { name = \"us-2\", address = \"10.0.1.2:7000\" },
    { name = \"us-3\", address = \"10.0.1.3:7000\" },
  ]

Nothing is started, and nothing is written if anything is wrong. Beside the file a directory tls
gets the certificates: an authority (who has ca.key makes more), one for each node, an admin, a
client and a watcher.
Then bring the file, ca.pem and the node's certificate and key to each machine, and there say
`meridian prepare` and `meridian server` (docs/setup.md has all steps).

Examples:
  meridian init --answers answers.toml
  meridian init --region us=10.0.1.1:7000,10.0.1.2:7000,10.0.1.3:7000 \\
                --region eu=10.0.2.1:7000,10.0.2.2:7000,10.0.2.3:7000")]
pub struct InitArgs {
    /// A region, and where its nodes listen
    #[arg(long, value_name = "NAME=HOST:PORT,..", required_unless_present = "answers")]
    region: Vec<String>,
    /// Read regions and nodes from FILE
    #[arg(long, value_name = "FILE", conflicts_with = "region")]
    answers: Option<PathBuf>,
    /// Order of updates over all regions: sequential or linearizable [default: sequential, or as
    /// the answers have it]
    #[arg(long, value_name = "ORDER", value_parser = cluster::order)]
    order: Option<DeliveryOrder>,
    /// Its nodes and clients speak plain text: whoever reaches a port, or the network between, may
    /// read and change all. No certificates are made
    #[arg(long)]
    insecure_plain_text: bool,
    /// Where to write it; certificates go to the directory tls beside it
    #[arg(long, value_name = "FILE", default_value = CLUSTER_FILE)]
    out: PathBuf,
}

/// Runs `meridian init`.
///
/// # Errors
/// If something is wrong with what was said, or the file is there already.
pub fn run(args: &InitArgs) -> anyhow::Result<ExitCode> {
    let answers = match &args.answers {
        Some(path) => read(path)?,
        None => from_flags(&args.region),
    };
    let answers = answers.and_then(|answers| made(&answers, args.order));
    let (file, warnings) = match answers {
        Ok(made) => made?,
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| note!("meridian: {mistake}"));
            bail!("{} is not written", args.out.display());
        }
    };
    if args.out.exists() {
        bail!(
            "{} is there already: a second cluster needs another --out, and the nodes of the first \
             go on with theirs",
            args.out.display()
        );
    }
    let file = ClusterFile { insecure_plain_text: args.insecure_plain_text, ..file };
    if !file.insecure_plain_text {
        certificates::make(&certificates::dir_of(&args.out), &file)?;
    }
    cluster::write(&args.out, &file)?;
    warnings.iter().for_each(|warning| note!("{warning}"));
    output::print(&next_steps(&args.out, &file))?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<Result<Answers, Vec<String>>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the answers {}", path.display()))?;
    Ok(from_file(&path.display().to_string(), &text))
}

fn next_steps(path: &Path, file: &ClusterFile) -> String {
    let nodes = file
        .nodes
        .iter()
        .map(|node| vec![node.name.clone(), node.region.clone(), node.address.clone()]);
    let (table, out) = (output::table(&["node", "region", "listens at"], nodes), path.display());
    let keepers: Vec<_> = file.configuration.replicas.iter().map(String::as_str).collect();
    let tls = certificates::dir_of(path);
    let bring = match file.insecure_plain_text {
        true => "; its nodes speak plain text, and whoever reaches a port may do all".into(),
        false => format!("; certificates are in {}: ca.key is the master key", tls.display()),
    };
    format!(
        "{table}\n\nwritten to {out}{bring}. {} keep the configuration. Bring to the machine of \
         each node the file and, unless it speaks plain text, ca.pem, NODE.pem and NODE.key. \
         There:\
         \n  meridian prepare --cluster {out} --dir /var/lib/meridian/NODE\
         \n  meridian server --dir /var/lib/meridian/NODE",
        keepers.join(", ")
    )
}

/// The cluster that the answers describe, and what its operator should know of it.
type Made = anyhow::Result<(ClusterFile, Vec<String>)>;

/// # Errors
/// All that is wrong with the answers, each with its place.
fn made(answers: &Answers, order: Option<DeliveryOrder>) -> Result<Made, Vec<String>> {
    let mut mistakes = Vec::new();
    check_regions(answers, &mut mistakes);
    check_nodes(answers, &mut mistakes);
    check_keepers(answers, &mut mistakes);
    let said = answers
        .order
        .as_ref()
        .map(|said| cluster::order(&said.what).map_err(|why| mistakes.push(said.wrong(&why))).ok());
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let nodes = answers.regions.iter().flat_map(|region| {
        let of = move |node: &Said<answers::Node>| {
            let (name, address) = (node.what.name.clone(), node.what.address.clone());
            cluster::node(name, &region.what.name, address)
        };
        region.what.nodes.iter().map(of)
    });
    let keep: Vec<_> = answers.keepers.iter().map(|keeper| keeper.what.clone()).collect();
    let order = order.or(said.flatten()).unwrap_or_default();
    let file = cluster::made_of(nodes.collect(), order, &keep);
    Ok(file.map(|file| (file, answers.regions.iter().filter_map(warning).collect())))
}

fn check_regions(answers: &Answers, mistakes: &mut Vec<String>) {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    if answers.regions.is_empty() {
        mistakes.push(format!("{}: there is no region", answers.source));
    }
    for region in &answers.regions {
        if let Err(why) = region_name(&region.what.name) {
            mistakes.push(region.wrong(&format!("{:?}: {why}", region.what.name)));
        }
        if region.what.nodes.is_empty() {
            mistakes.push(region.wrong(&format!("region {} has no nodes", region.what.name)));
        }
        if let Some(first) = known.insert(&region.what.name, &region.place) {
            let why = format!("region {} stands there twice, first in {first}", region.what.name);
            mistakes.push(region.wrong(&why));
        }
    }
}

fn check_nodes(answers: &Answers, mistakes: &mut Vec<String>) {
    let (mut names, mut addresses) = (BTreeMap::new(), BTreeMap::new());
    let is_local = |node: &&Said<answers::Node>| is_loopback(&node.what.address);
    let (local, distant): (Vec<_>, Vec<_>) = answers.nodes().partition(is_local);
    for node in answers.nodes() {
        let answers::Node { name, address } = &node.what;
        if let Err(why) = node_name(name) {
            mistakes.push(node.wrong(&why));
        }
        if let Err(why) = check_address(address) {
            mistakes.push(node.wrong(&format!("node {name}: {why}")));
        }
        if let Some(first) = names.insert(name, &node.place) {
            mistakes.push(node.wrong(&format!("node {name} stands there twice, first in {first}")));
        }
        if let Some(other) = addresses.insert(address, name) {
            mistakes.push(node.wrong(&format!("{other} and {name} both listen at {address}")));
        }
    }
    if !distant.is_empty() {
        mistakes.extend(local.iter().map(|node| {
            let answers::Node { name, address } = &node.what;
            node.wrong(&format!("node {name}: on another machine {address} is that machine"))
        }));
    }
    let count = answers.nodes().count();
    if count > NODES_MAX {
        mistakes.push(format!("{}: {count} nodes, at most {NODES_MAX}", answers.source));
    }
}

fn check_keepers(answers: &Answers, mistakes: &mut Vec<String>) {
    let Some(first) = answers.keepers.first() else { return };
    let count = answers.keepers.len();
    if count.is_multiple_of(2) {
        let why = format!(
            "{count} keepers: an odd number is needed, as {count} survive no more failures than {}",
            count - 1
        );
        mistakes.push(first.wrong(&why));
    }
    if count > REPLICAS_MAX {
        mistakes.push(first.wrong(&format!("{count} keepers, at most {REPLICAS_MAX}")));
    }
    for (at, keeper) in answers.keepers.iter().enumerate() {
        if !answers.nodes().any(|node| node.what.name == keeper.what) {
            mistakes.push(keeper.wrong(&format!("keeper {} is none of the nodes", keeper.what)));
        }
        if answers.keepers[..at].iter().any(|other| other.what == keeper.what) {
            mistakes.push(keeper.wrong(&format!("keeper {} stands there twice", keeper.what)));
        }
    }
}

/// What an operator should know of a region who may not have meant it so.
fn warning(region: &Said<Region>) -> Option<String> {
    let (name, count) = (&region.what.name, region.what.nodes.len());
    if count < REPLICAS {
        return Some(format!(
            "region {name} has {count} node: blocks lie on {REPLICAS} where there are so many, and \
             when it fails the region's files cannot be reached"
        ));
    }
    let survives = (count - 1) / 2;
    count.is_multiple_of(2).then(|| {
        format!(
            "region {name} has {count} nodes: that survives {survives} failing, as {} do",
            count - 1
        )
    })
}

fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, port.parse().ok()?))
}

fn check_address(address: &str) -> Result<(), String> {
    let (host, port) =
        host_and_port(address).ok_or_else(|| format!("{address:?} is not HOST:PORT"))?;
    let is_any = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if host.is_empty() || host.contains(char::is_whitespace) || is_any {
        return Err(format!("nobody can call {address:?}: name one of the machine's addresses"));
    }
    match port {
        0 => Err(format!("{address:?} names no port")),
        _ => Ok(()),
    }
}

/// Whether an address is one of the machine that looks at it.
pub fn is_loopback(address: &str) -> bool {
    let host = host_and_port(address).map(|(host, _)| host);
    host.is_some_and(|host| {
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests;
