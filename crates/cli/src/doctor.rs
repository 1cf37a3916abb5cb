//! `meridian doctor`: whether a machine is fit for a node or a mount, before it is needed.

mod judge;
mod measure;

use crate::{cluster, output};
use anyhow::ensure;
use clap::Args;
use judge::{Finding, Level};
use meridian_cluster::topology::NodeEntry;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to look at.
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is changed; in DIR a file is written for a moment, to see how fast the disk syncs. What a
mount needs is looked at always, what a node needs with --data, and the ways to the other nodes with
--cluster. With --node also whether that node can listen here: say so while its server is down.

Exit status 0 if nothing is bad (a warning is no more than that), else 1.

Examples:
  meridian doctor
  meridian doctor --data /var/lib/meridian --cluster cluster.json --node us-1")]
pub struct DoctorArgs {
    /// Where the node's folder is, or will be
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Look whether the nodes of that cluster can be reached
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// This machine is that of the node
    #[arg(long, value_name = "NAME", requires = "cluster")]
    node: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `meridian doctor`.
///
/// # Errors
/// If it is told to look at what is not there.
pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut findings = of_machine();
    if let Some(data) = &args.data {
        findings.extend(of_disk(data)?);
    }
    if let Some(path) = &args.cluster {
        let (topology, file) = cluster::read(path)?;
        let present = topology.present().map(|id| &file.nodes[usize::from(id.0)]);
        findings.extend(of_ways(&present.collect::<Vec<_>>(), args.node.as_deref())?);
    }
    let text = match args.json {
        true => serde_json::to_string_pretty(&findings)?,
        false => for_people(&findings),
    };
    output::print(&text)?;
    let bad = findings.iter().any(|finding| finding.level == Level::Bad);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn of_machine() -> Vec<Finding> {
    let mut findings = vec![judge::fuse(crate::mount::check_fuse().map_err(|e| e.to_string()))];
    findings.push(judge::rings(&measure::kernel(), measure::offers_rings()));
    findings.push(judge::clock(measure::clock()));
    findings.push(judge::clock_steps(measure::clock_step()));
    findings.push(judge::memory(measure::memory()));
    findings.push(judge::open_files(measure::open_files()));
    findings
}

fn of_disk(data: &Path) -> anyhow::Result<Vec<Finding>> {
    // A folder that is not made yet lies where the one above does.
    let there = data.ancestors().find(|dir| dir.is_dir());
    let there = there.filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    let disk = measure::disk(there)?;
    Ok(vec![
        judge::kind_of_disk(there, disk.kind),
        judge::free(there, disk.free_bytes),
        judge::syncs(there, measure::syncs(there).map_err(|error| error.to_string())),
    ])
}

fn of_ways(nodes: &[&NodeEntry], own: Option<&str>) -> anyhow::Result<Vec<Finding>> {
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    if let Some(own) = own {
        ensure!(names.contains(&own), "no node {own}: there are {}", names.join(", "));
    }
    let finding = |node: &&NodeEntry| match own == Some(node.name.as_str()) {
        true => judge::own_port(&node.name, &node.address, measure::listen(&node.address)),
        false => judge::way(&node.name, &node.address, measure::connect(&node.address)),
    };
    Ok(nodes.iter().map(finding).collect())
}

fn for_people(findings: &[Finding]) -> String {
    let lines = findings.iter().map(|finding| {
        let Finding { check, level, found, advice } = finding;
        let mark = level.mark();
        match advice {
            None => format!("{mark}  {check}: {found}"),
            Some(advice) => format!("{mark}  {check}: {found}\n      {advice}"),
        }
    });
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let end = match (count(Level::Bad), count(Level::Warning)) {
        (0, 0) => "nothing is wrong".into(),
        (0, warnings) => format!("nothing is bad; warnings: {warnings}"),
        (bad, warnings) => format!("bad: {bad}; warnings: {warnings}"),
    };
    format!("{}\n\n{end}", lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_looked_at_and_each_finding_that_is_not_well_has_advice() {
        let dir = tempfile::tempdir().unwrap();
        let findings = of_machine().into_iter().chain(of_disk(&dir.path().join("new")).unwrap());
        let findings: Vec<_> = findings.collect();
        assert_eq!(findings.len(), 9);
        for finding in &findings {
            assert_eq!(finding.level == Level::Well, finding.advice.is_none(), "{finding:?}");
        }
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "what was written to try the disk is gone");
        let text = for_people(&findings);
        assert!(findings.iter().all(|finding| text.contains(finding.check)), "{text}");
    }

    #[test]
    fn ways_to_nodes_are_tried() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let up = cluster::node("us-1".into(), "us", address);
        let down = cluster::node("us-2".into(), "us", "127.0.0.1:1".into());
        let level = |own| {
            let ways = of_ways(&[&up, &down], own).unwrap();
            ways.iter().map(|way| way.level).collect::<Vec<_>>()
        };
        assert_eq!(level(None), [Level::Well, Level::Warning]);
        assert_eq!(level(Some("us-1")), [Level::Bad, Level::Warning], "somebody listens there");
        let error = of_ways(&[&up], Some("eu-1")).unwrap_err().to_string();
        assert!(error.contains("no node eu-1: there are us-1"), "{error}");
    }
}
