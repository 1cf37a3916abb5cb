//! `meridian fs scrub`: how far nodes are with reading all blocks, and having them do so now.

use crate::certificates::Shown;
use crate::cluster::Of;
use crate::status::{Answered, answers};
use crate::{cluster, configuration, output};
use clap::Args;
use meridian_client::Client;
use meridian_cluster::Topology;
use meridian_core::NodeId;
use meridian_host::drain::keep::Report as Copies;
use meridian_terminal::note;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often nodes are asked how far they are.
const PAUSE: Duration = Duration::from_millis(500);
/// After so long without any change nobody is waited for any more.
const STUCK: Duration = Duration::from_secs(30);

/// What to do.
#[derive(Debug, Args)]
pub struct ScrubArgs {
    /// Have all nodes read all blocks now, and wait until they have
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    of: Of,
}

/// How a node is.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct NodeReport {
    node: String,
    /// Why it is not reachable.
    error: Option<String>,
    copies: Option<Copies>,
}

impl NodeReport {
    fn is_well(&self) -> bool {
        self.copies.is_some_and(|copies| copies.missing + copies.damaged == 0)
    }
}

/// Runs `meridian fs scrub`.
///
/// # Errors
/// If there is no cluster to ask.
pub fn run(args: &ScrubArgs) -> anyhow::Result<ExitCode> {
    let shown = if args.now { Shown::Admin } else { Shown::Client };
    let path = cluster::named_or_last(args.of.cluster.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (reports, ended) = runtime.block_on(async {
        let newest = configuration::newest(&path, &args.of.tls, shown).await?;
        let (client, topology) = (newest.client()?, newest.topology);
        let ended = if args.now { scrub(&client, &topology).await } else { true };
        let answers = answers(&client, &topology).await;
        anyhow::Ok((reports(&topology, &answers), ended))
    })?;
    output::print(&match args.of.json {
        true => serde_json::to_string_pretty(&reports)?,
        false => for_people(&reports),
    })?;
    let well = ended && reports.iter().all(NodeReport::is_well);
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has all nodes read all, and waits for those that can be asked; whether all have.
async fn scrub(client: &Client, topology: &Topology) -> bool {
    let mut wanted = BTreeMap::new();
    let mut all = true;
    for node in topology.present() {
        match client.scrub(node, PATIENCE).await {
            // A pass that somebody wanted before counts.
            Ok(status) => _ = wanted.insert(node, status.copies.scrub.passes + 1),
            Err(error) => {
                note!("{} does not read: {error}", topology.node(node).name);
                all = false;
            }
        }
    }
    let (mut seen, mut changed) = (BTreeMap::new(), Instant::now());
    loop {
        let answers = answers(client, topology).await;
        let copies = copies(&answers);
        let ended = |(node, passes): (&NodeId, &u64)| {
            copies.get(node).is_some_and(|of| of.scrub.passes >= *passes && is_repaired(of))
        };
        if wanted.iter().all(ended) {
            return all;
        }
        if let Some(nodes) = starved(&copies, &wanted) {
            for node in nodes {
                let name = &topology.node(node).name;
                note!("{name} has too little room on its disk for copies: not waited for");
            }
            return false;
        }
        if copies != seen {
            note!("{}", progress(&copies, &wanted));
            (seen, changed) = (copies, Instant::now());
        } else if changed.elapsed() > STUCK {
            note!("nothing has changed for {} s: not waited for", STUCK.as_secs());
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The nodes that still lack blocks, as their disks have no room, once all others are done.
fn starved(
    copies: &BTreeMap<NodeId, Copies>,
    wanted: &BTreeMap<NodeId, u64>,
) -> Option<Vec<NodeId>> {
    let ended = |(node, passes): (&NodeId, &u64)| {
        let of = copies.get(node)?;
        let has_read = of.scrub.passes >= *passes && of.copying == 0;
        (has_read && (of.lacks_room || is_repaired(of))).then_some((*node, is_repaired(of)))
    };
    let ended: Vec<_> = wanted.iter().map(ended).collect::<Option<_>>()?;
    Some(ended.into_iter().filter(|(_, is_repaired)| !is_repaired).map(|(node, _)| node).collect())
}

/// Whether all is repaired that can be.
fn is_repaired(copies: &Copies) -> bool {
    copies.copying == 0 && copies.missing + copies.damaged <= copies.unfound
}

fn copies(answers: &BTreeMap<NodeId, Answered>) -> BTreeMap<NodeId, Copies> {
    let of = |(node, answer): (&NodeId, &Answered)| Some((*node, answer.as_ref().ok()?.copies));
    answers.iter().filter_map(of).collect()
}

fn progress(copies: &BTreeMap<NodeId, Copies>, wanted: &BTreeMap<NodeId, u64>) -> String {
    let read = |node: &NodeId, passes: &u64| {
        let of = copies.get(node)?;
        Some(if of.scrub.passes >= *passes { of.own } else { of.scrub.read })
    };
    let read: u64 = wanted.iter().filter_map(|(node, passes)| read(node, passes)).sum();
    let sum = |of: fn(&Copies) -> u64| copies.values().map(of).sum::<u64>();
    format!(
        "read {read} of {} copies; {} damaged, {} missing, {} repaired",
        sum(|of| of.own),
        sum(|of| of.damaged),
        sum(|of| of.missing),
        sum(|of| of.repaired),
    )
}

fn reports(topology: &Topology, answers: &BTreeMap<NodeId, Answered>) -> Vec<NodeReport> {
    let report = |(node, answer): (&NodeId, &Answered)| NodeReport {
        node: topology.node(*node).name.clone(),
        error: answer.as_ref().err().cloned(),
        copies: answer.as_ref().ok().map(|status| status.copies),
    };
    answers.iter().map(report).collect()
}

fn for_people(reports: &[NodeReport]) -> String {
    let head = [
        "node",
        "copies",
        "missing",
        "damaged",
        "copying",
        "repaired",
        "unfound",
        "passes",
        "read now",
        "in last pass",
        "damaged then",
        "room",
    ];
    let rows = reports.iter().map(|report| {
        let Some(copies) = report.copies else {
            let why = report.error.clone().unwrap_or_default();
            let mut row = vec![report.node.clone(), format!("NO: {why}")];
            row.resize(head.len(), "-".into());
            return row;
        };
        let scrub = copies.scrub;
        let numbers = [
            copies.own,
            copies.missing,
            copies.damaged,
            copies.copying,
            copies.repaired,
            copies.unfound,
            scrub.passes,
            scrub.read,
            scrub.last_read,
            scrub.last_damaged,
        ];
        let numbers = numbers.iter().map(u64::to_string);
        let room = if copies.lacks_room { "NO" } else { "yes" };
        std::iter::once(report.node.clone()).chain(numbers).chain([room.into()]).collect()
    });
    output::table(&head, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_host::drain::keep::ScrubReport;

    #[test]
    fn what_nobody_has_is_not_waited_for() {
        let copies =
            |missing, copying, unfound| Copies { missing, copying, unfound, ..Copies::default() };
        assert!(is_repaired(&copies(0, 0, 0)) && is_repaired(&copies(2, 0, 2)));
        assert!(!is_repaired(&copies(2, 1, 2)) && !is_repaired(&copies(2, 0, 1)));
    }

    #[test]
    fn a_node_without_room_is_named_once_all_have_read() {
        let read = |passes, missing, lacks_room| {
            let scrub = ScrubReport { passes, ..ScrubReport::default() };
            Copies { missing, lacks_room, scrub, ..Copies::default() }
        };
        let told = |second| {
            let copies = BTreeMap::from([(NodeId(0), read(1, 2, true)), (NodeId(1), second)]);
            starved(&copies, &copies.keys().map(|node| (*node, 1)).collect())
        };
        assert_eq!(told(read(0, 0, false)), None, "the second has not read all");
        assert_eq!(told(read(1, 2, false)), None, "the second copies what it lacks");
        assert_eq!(told(read(1, 0, false)), Some(vec![NodeId(0)]));
    }

    #[test]
    fn a_node_that_does_not_answer_is_not_well() {
        let error = Some("refused".to_string());
        let gone = NodeReport { node: "us-1".into(), error, copies: None };
        let well = NodeReport { node: "us-2".into(), error: None, copies: Some(Copies::default()) };
        assert!(!gone.is_well() && well.is_well());
        let text = for_people(&[gone, well]);
        assert!(text.contains("NO: refused") && text.contains("us-2"), "{text}");
    }
}
