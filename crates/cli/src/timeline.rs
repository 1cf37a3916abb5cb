//! `meridian timeline`: where the time of one update went, over its client and the nodes.

use crate::cluster::{self, Of};
use crate::{certificates::Shown, configuration, output};
use anyhow::Context;
use clap::Args;
use meridian_client::timeline::{TimedStep, Timeline};
use meridian_core::MessageId;
use meridian_host::steps::What;
use meridian_mount::about::{About, timeline_of};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Which update.
#[derive(Debug, Args)]
#[command(after_help = "\
Each line is a step: when it was, since the client asked; by how much that may be wrong, as clocks
of machines differ and are compared over the network; who did it; what. A wait is the time between
two lines: from `appends` to `acknowledges` at one node its disk was flushed; from `acknowledges` to
`hears the ACK` it was on its way; from `final` to `delivered` it waited for its turn behind others;
from `votes` to `applied` for the votes of other regions; from `applied` to `replies` for the disk.

Nodes remember their last steps, of about a thousand updates each, and forget them when they are
started anew. Only names of messages, groups and nodes are told, to any client.

Examples:
  meridian trace --mount ~/meridian -- mv ~/meridian/us/a ~/meridian/eu/a    names the slowest
  meridian timeline 7b2f019ac4d8e651.12 --mount ~/meridian
  meridian timeline 7b2f019ac4d8e651.12 --cluster DATA/cluster.json --json")]
pub struct TimelineArgs {
    /// Its name, as `meridian trace` tells it
    message: MessageId,
    /// Anything in the mount that asked for it, which has its own part; by default this directory
    #[arg(long, value_name = "PATH")]
    mount: Option<PathBuf>,
    #[command(flatten)]
    of: Of,
}

/// Runs `meridian timeline`.
///
/// # Errors
/// If neither a mount nor a cluster can be asked, or nobody remembers the update.
pub fn run(args: &TimelineArgs) -> anyhow::Result<ExitCode> {
    let timeline = match (&args.mount, &args.of.cluster) {
        (Some(path), _) => of_mount(path, args.message)?,
        (None, None) if is_in_mount() => of_mount(Path::new("."), args.message)?,
        (None, _) => of_nodes(args)?,
    };
    anyhow::ensure!(
        !timeline.steps.is_empty(),
        "nobody remembers {}: nodes keep their last steps only",
        args.message
    );
    output::print(&match args.of.json {
        true => serde_json::to_string_pretty(&timeline)?,
        false => for_people(&timeline),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn is_in_mount() -> bool {
    let here = std::env::current_dir();
    here.is_ok_and(|here| here.ancestors().any(|dir| About::of(dir).is_ok()))
}

fn of_mount(path: &Path, message: MessageId) -> anyhow::Result<Timeline> {
    timeline_of(path, message).with_context(|| {
        format!("{} is in no Meridian mount of this build that answers", path.display())
    })
}

fn of_nodes(args: &TimelineArgs) -> anyhow::Result<Timeline> {
    let path = cluster::named_or_last(args.of.cluster.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let newest = configuration::newest(&path, &args.of.tls, Shown::Client).await?;
        Ok(newest.client()?.timeline(args.message).await)
    })
}

/// The steps as lines, and what may be missing.
pub fn for_people(timeline: &Timeline) -> String {
    let ms = |us: u64| us as f64 / 1e3;
    let rows = timeline.steps.iter().map(|step| {
        let within = match step.within_us {
            0 => String::new(),
            us => format!("±{:.1}", ms(us)),
        };
        vec![format!("{:.1} ms", ms(step.at_us)), within, step.by.clone(), words(step)]
    });
    let mut text = output::table(&["after", "", "who", "what"], rows);
    if timeline.left_out > 0 {
        text.push_str(&format!("\n{} more steps are left out", timeline.left_out));
    }
    for (nodes, what) in [
        (&timeline.silent, "did not answer: what they did is not here"),
        (&timeline.forgotten, "remember no more, or only a part"),
    ] {
        if !nodes.is_empty() {
            text.push_str(&format!("\n{} {what}", nodes.join(", ")));
        }
    }
    text
}

/// What a step was.
fn words(step: &TimedStep) -> String {
    let group = step.group.as_deref().unwrap_or("");
    let (node, of) = match &step.with {
        Some((node, of)) => (node.as_str(), of.as_str()),
        None => ("", ""),
    };
    match step.what {
        What::Asked => format!("asks {node}, for {group}"),
        What::Requested => format!("hears the client, for {group}"),
        What::Started => format!("{group}: hears START, from {node}"),
        What::Proposed => format!("{group}: proposes a timestamp, as primary"),
        What::Appended => format!("{group}: appends what the primary proposes"),
        What::Acknowledged => format!("{group}: has it on its disk, and acknowledges"),
        What::AckHeard => format!("{group}: hears the ACK of {node}, of {of}"),
        What::ProposalHeard => format!("{group}: hears what {node} proposes for {of}"),
        What::Decided => format!("{group}: a quorum has it, and others are told"),
        What::DecidedHeard => format!("{group}: hears from {node} that a quorum of {of} has it"),
        What::Relayed => format!("{group}: hears of another group's timestamp from {node}"),
        What::Final => format!("{group}: the final timestamp is known"),
        What::Delivered => format!("{group}: delivered"),
        What::Voted => format!("{group}: votes"),
        What::VoteSent => format!("{group}: the vote leaves for {node}"),
        What::VoteHeard => format!("{group}: hears the vote of {of}, from {node}"),
        What::VoteWanted => format!("{group}: its vote is asked for by {node}"),
        What::Applied => format!("{group}: applied"),
        What::Replied => "replies to the client".into(),
        What::Answered => format!("hears the reply of {node}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_sees_who_did_what_and_what_may_be_missing() {
        let step = |at_us, within_us, by: &str, what, with: Option<(&str, &str)>| TimedStep {
            at_us,
            within_us,
            by: by.into(),
            what,
            group: Some("us".into()),
            with: with.map(|(node, of)| (node.into(), of.into())),
        };
        let timeline = Timeline {
            message: "7b.1".into(),
            steps: vec![
                step(0, 0, "client", What::Asked, Some(("us-1", "us"))),
                step(1200, 340, "us-1", What::Proposed, Some(("us-1", "us"))),
                step(81_000, 40_000, "us-2", What::VoteHeard, Some(("eu-1", "eu"))),
            ],
            left_out: 2,
            silent: vec!["eu-3".into()],
            forgotten: vec!["us-3".into()],
        };
        let text = for_people(&timeline);
        let has = |words: &str| assert!(text.contains(words), "{words}: {text}");
        has("0.0 ms");
        has("±0.3   us-1");
        has("81.0 ms");
        has("us: hears the vote of eu, from eu-1");
        has("2 more steps are left out");
        has("eu-3 did not answer");
        has("us-3 remember no more");
    }
}
