//! By which feature level a cluster goes, and which its nodes speak.

use super::Cluster;
use crate::cluster::Of;
use crate::output;
use clap::Args;
use meridian_cluster::configuration::Request;
use meridian_core::level::{Level, Speaks};
use serde::Serialize;
use std::process::ExitCode;

/// What to show, or to change.
#[derive(Debug, Args)]
#[command(after_help = "\
A level stands for what servers say to each other and write down. Servers of two versions run in one
cluster while it is upgraded, node by node; none says what the others do not understand. When the
programs of all nodes speak a higher level, the cluster goes by that within some seconds, and what
the new version adds is there. It does not fall again: a server of the version before does not start
any more. Whoever wants to see the new programs run before that, and to be able to go back, holds
the level where it is first.

Examples:
  meridian cluster level
  meridian cluster level --at-most 1
  meridian cluster level --no-limit --json")]
pub struct LevelArgs {
    /// It is not to rise above this
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u16).range(1..))]
    at_most: Option<u16>,
    /// It rises when all nodes speak a higher one, again
    #[arg(long, conflicts_with = "at_most")]
    no_limit: bool,
    #[command(flatten)]
    of: Of,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    level: Level,
    at_most: Option<Level>,
    /// What this program speaks.
    here: Speaks,
    nodes: Vec<Row<'a>>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    node: &'a str,
    speaks_up_to: Level,
}

pub(super) async fn level(args: &LevelArgs) -> anyhow::Result<ExitCode> {
    let cluster = match (args.at_most, args.no_limit) {
        (None, false) => Cluster::open(&args.of).await?,
        (level, _) => {
            let mut cluster = Cluster::open_newest(&args.of).await?;
            let mut keepers = cluster.keepers();
            keepers.change(&Request::LevelAtMost(level.map(Level))).await?;
            cluster.follow(&mut keepers).await?;
            cluster
        }
    };
    let levels = &cluster.newest.file.configuration.levels;
    let topology = &cluster.newest.topology;
    let row = |id| {
        let node = &*topology.node(id).name;
        Row { node, speaks_up_to: levels.of(node) }
    };
    let nodes = topology.present().map(row).collect();
    let report = Report { level: levels.now, at_most: levels.at_most, here: Speaks::HERE, nodes };
    output::print(&match args.of.json {
        true => serde_json::to_string_pretty(&report)?,
        false => for_people(&report),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn for_people(report: &Report<'_>) -> String {
    let row = |row: &Row<'_>| vec![row.node.to_string(), row.speaks_up_to.to_string()];
    let table = output::table(&["node", "speaks up to level"], report.nodes.iter().map(row));
    let next = report.nodes.iter().map(|row| row.speaks_up_to).min().unwrap_or_default();
    let behind = |row: &&Row<'_>| row.speaks_up_to == next;
    let highest = report.nodes.iter().map(|row| row.speaks_up_to).max().unwrap_or_default();
    let waits = match report.at_most {
        Some(level) if next > report.level => format!(", and is held at {level} (--no-limit)"),
        _ if highest > next => {
            let names = report.nodes.iter().filter(behind).map(|row| row.node);
            let names = names.collect::<Vec<_>>().join(", ");
            format!("; it rises to {highest} when {names} speak that")
        }
        _ => String::new(),
    };
    format!("{table}\n\nthe cluster goes by level {}{waits}; {} here", report.level, report.here)
}
