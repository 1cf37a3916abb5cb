//! `meridian explain`: how a command on files would be executed, by whom, and how long that takes.

mod durable;
mod intent;
mod measure;

use crate::certificates::Shown;
use crate::cluster::Of;
use crate::{cluster, configuration, output};
use anyhow::{Context, ensure};
use clap::Args;
use durable::Durable;
use intent::{Intent, Located, Wanted};
use meridian_client::plan::Asked;
use meridian_client::{Client, ClientOptions, Files};
use meridian_cluster::Topology;
use meridian_core::GroupId;
use meridian_fs::{Mode, Update};
use meridian_mount::about::times_of;
use meridian_session::forecast::{Milestone, Surroundings, Unknown};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// What to explain.
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is changed: the tree is looked at as a mount looks at it, and what a mount would then ask
for is told instead of sent. Each path is in one mount of this machine, and the answer is for the
region of that mount.

The modes are those of GlobalFS. Read-only: one replica answers, the nearest. Single-partition: the
group of one placement orders it, a region's own or `global`. Coordinated: several groups order it
and exchange votes, so that it happens in all or in none. (GlobalFS also has uncoordinated updates;
here all groups vote always.)

A table tells what happens when, as nodes have measured the ways between them and how long their
disks take to flush, with nothing else under way. What threads take to wake each other is not in
it, so what stays within a region takes up to a millisecond or two more.

The time that is told for a command is that of one system call, and of the looks at the names it
gives, unless the mount holds these now: it does while it uses a directory and nobody else changes
it, but not right after a change of its own that other groups ordered, too. What a mount holds it
answers at once: `stat` then asks nobody. Who else holds what is changed must let go first: a round
trip to it, or 6 seconds if it is dead.

It tells when what is done is durable, by which mode, and what says so: a directory, the mount, or
that nothing is set (`meridian fs durability`). Where the mode is `fsync`, files are made, closed
and removed without waiting for any node while the mount holds their directory exclusively; what
then comes when it is sent is in the table. Whatever else is done in that placement first waits for
that, a round more. To look has the mount send what it keeps back in the directories named, and hold
them no more for a second: so files that are made or removed just after do wait.

Examples:
  meridian explain mv meridian/us/report meridian/eu/
  meridian explain create meridian/shared/x
  meridian explain write meridian/us/big --bytes 1M
  meridian explain --json place meridian/new eu")]
pub struct ExplainArgs {
    #[command(flatten)]
    of: Of,
    #[command(subcommand)]
    intent: Intent,
}

/// A group that takes part.
#[derive(Debug, Serialize)]
struct Part {
    group: String,
    /// The node of it that the mount asks.
    asked: String,
    /// Its primary; none if it answers and orders nothing.
    primary: Option<String>,
    /// Where that is.
    primary_region: Option<String>,
}

/// Something that must have happened.
#[derive(Debug, Serialize)]
struct Step {
    after_ms: f64,
    group: String,
    node: String,
    what: &'static str,
}

/// A look at a name that the command gives, which comes before.
#[derive(Debug, Serialize)]
struct Look {
    group: String,
    node: String,
    takes_ms: f64,
    /// Whether the mount holds that now, and asks nobody.
    held: bool,
}

/// How long the same took in the mount so far.
#[derive(Debug, Serialize)]
struct Took {
    p50_ms: f64,
    count: u64,
}

/// What is told.
#[derive(Debug, Serialize)]
struct Report {
    /// What was to be explained.
    command: String,
    /// The region from which it is asked.
    region: String,
    mode: Mode,
    /// What the update is called in `meridian trace`; none if nothing is changed.
    update: Option<&'static str>,
    parts: Vec<Part>,
    steps: Vec<Step>,
    /// How long it takes, with the looks that the mount must make now. What is kept back takes
    /// nothing but these.
    expected_ms: f64,
    /// When what is done is durable, and what says so.
    durability: Durable,
    /// What comes before, one after the other.
    looks: Vec<Look>,
    /// None if it was not asked for in this mount yet.
    measured: Option<Took>,
}

/// Runs `meridian explain`.
///
/// # Errors
/// If a path is in no mount, the tree would refuse the command, or something is not measured.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let at = args.intent.located()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(explain(args, &at))?;
    output::print(&match args.of.json {
        true => serde_json::to_string_pretty(&report)?,
        false => report.for_people(),
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn explain(args: &ExplainArgs, at: &[Located]) -> anyhow::Result<Report> {
    let first = at.first().context("no path is named")?;
    let cluster_path = cluster::named_or_of(args.of.cluster.as_deref(), &first.root)?;
    let newest = configuration::newest(&cluster_path, &args.of.tls, Shown::Client).await?;
    ensure!(
        newest.topology.cluster == first.about.cluster,
        "{} is not the cluster mounted at {}: name that",
        cluster_path.display(),
        first.root.display()
    );
    let options = ClientOptions::new(first.about.region.as_str());
    let security = newest.security.clone();
    let durability = first.about.durability.unwrap_or_default();
    let options = ClientOptions { security, durability, plans: true, ..options };
    let client = Client::connect(newest.topology.clone(), &options)?;
    let files = Files::new(client.clone());
    let wanted = args.intent.plan(&files, at).await?;
    let measured = measure::measure(&client, &newest.topology).await;
    let topology = Arc::new(newest.topology);
    let region = topology.region_named(&first.about.region).context("the region is gone")?;
    let teller = Teller {
        around: Surroundings::new(topology.clone(), region, measured),
        topology,
        mount: &first.root,
    };
    let (command, region) = (args.intent.to_string(), first.about.region.clone());
    let report = teller.report(command, region, &wanted);
    report.map_err(|unknown| anyhow::anyhow!(teller.words(unknown)))
}

/// Puts a report together.
struct Teller<'a> {
    topology: Arc<Topology>,
    around: Surroundings,
    mount: &'a Path,
}

impl Teller<'_> {
    fn report(&self, command: String, region: String, wanted: &Wanted) -> Result<Report, Unknown> {
        let looks = wanted.looks.iter().map(|look| self.look(look));
        let looks = looks.collect::<Result<Vec<_>, _>>()?;
        let before = looks.iter().filter(|look| !look.held).map(|look| look.takes_ms).sum();
        let empty = Report {
            command,
            region,
            mode: Mode::ReadOnly,
            update: None,
            parts: Vec::new(),
            steps: Vec::new(),
            expected_ms: before,
            durability: wanted.durable.clone(),
            looks,
            measured: None,
        };
        let update = wanted.asked.iter().find_map(|asked| match asked {
            Asked::Update(update) => Some(update),
            Asked::Look(_) | Asked::Fetch(_) | Asked::Store { .. } => None,
        });
        match update {
            Some(update) => self.of_update(update, &wanted.asked, empty),
            None => self.of_looks(&wanted.asked, empty),
        }
    }

    /// Blocks are stored before the update that names them.
    fn of_update(
        &self,
        update: &Update,
        asked: &[Asked],
        empty: Report,
    ) -> Result<Report, Unknown> {
        let stored = asked.iter().find_map(|asked| match asked {
            Asked::Store { partition, .. } => Some(*partition),
            Asked::Look(_) | Asked::Fetch(_) | Asked::Update(_) => None,
        });
        let (mut steps, mut begin) = (Vec::new(), Duration::ZERO);
        if let Some(partition) = stored {
            begin = self.around.store(partition)?;
            let (group, node) = (self.group(partition), "its regions' nodes".into());
            steps.push(Step { after_ms: ms(begin), group, node, what: "have the blocks" });
        }
        let forecast = self.around.update(update)?;
        let parts = forecast.parts.iter().map(|part| {
            let primary = self.topology.node(part.primary);
            let region = self.topology.regions[usize::from(primary.region.0)].name.clone();
            Part {
                group: self.group(part.group),
                asked: self.topology.node(part.asked).name.clone(),
                primary: Some(primary.name.clone()),
                primary_region: Some(region),
            }
        });
        steps.extend(forecast.steps.iter().map(|step| Step {
            after_ms: ms(begin + step.at),
            group: self.group(step.group),
            node: self.topology.node(step.node).name.clone(),
            what: what(step.milestone),
        }));
        let groups: Vec<_> = forecast.parts.iter().map(|part| self.group(part.group)).collect();
        // What is kept back is told to nobody before the call returns, and is counted otherwise.
        let waits = Some(begin + forecast.total).filter(|_| !empty.durability.kept_back);
        let expected_ms = empty.expected_ms + ms(waits.unwrap_or_default());
        let measured = waits.and_then(|_| self.took(update.name(), &groups));
        let (mode, update, parts) = (update.mode(), Some(update.name()), parts.collect());
        Ok(Report { mode, update, parts, steps, expected_ms, measured, ..empty })
    }

    /// Questions come one after the other.
    fn of_looks(&self, asked: &[Asked], empty: Report) -> Result<Report, Unknown> {
        let (mut at, mut parts, mut steps) = (Duration::ZERO, Vec::<Part>::new(), Vec::new());
        for asked in asked {
            let (group, what) = match asked {
                Asked::Look(group) => (*group, "has answered"),
                Asked::Fetch(group) => (*group, "or another has sent a block"),
                Asked::Store { .. } | Asked::Update(_) => continue,
            };
            let (node, took) = self.around.look(group)?;
            at += took;
            let (group, node) = (self.group(group), self.topology.node(node).name.clone());
            if parts.iter().all(|part| part.group != group) {
                let (group, asked) = (group.clone(), node.clone());
                parts.push(Part { group, asked, primary: None, primary_region: None });
            }
            steps.push(Step { after_ms: ms(at), group, node, what });
        }
        let expected_ms = empty.expected_ms + ms(at);
        Ok(Report { parts, steps, expected_ms, ..empty })
    }

    fn look(&self, look: &intent::Look) -> Result<Look, Unknown> {
        let (node, took) = self.around.look(look.group)?;
        let (group, node) = (self.group(look.group), self.topology.node(node).name.clone());
        Ok(Look { group, node, takes_ms: ms(took), held: look.held })
    }

    fn group(&self, group: GroupId) -> String {
        self.topology.group_name(group).to_string()
    }

    /// How long such updates took in the mount.
    fn took(&self, what: &str, groups: &[String]) -> Option<Took> {
        let ways = times_of(self.mount).ok()?;
        let way = ways.iter().find(|way| way.what == what && way.groups == groups)?;
        Some(Took { p50_ms: ms(way.times.within(0.5)?), count: way.times.count() })
    }

    fn words(&self, unknown: Unknown) -> String {
        let node = |node| &self.topology.node(node).name;
        match unknown {
            Unknown::Leader(group) => {
                format!("{} has no primary that answers: see `meridian status`", self.group(group))
            }
            Unknown::Way(from, to) => format!(
                "the way from {} to {} is not measured yet: nodes do so every 5 seconds",
                node(from),
                node(to)
            ),
            Unknown::Client(of) => format!("{} does not answer: see `meridian status`", node(of)),
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn what(milestone: Milestone) -> &'static str {
    match milestone {
        Milestone::Asked => "has the request",
        Milestone::Proposed => "proposes, as primary",
        Milestone::Acknowledged => "knows that a quorum has it",
        Milestone::Ordered => "knows its place in the order",
        Milestone::Applied => "has the votes of all groups",
        Milestone::Answered => "has answered the mount",
    }
}

impl Report {
    fn for_people(&self) -> String {
        let time = |ms: f64| format!("{ms:.1} ms");
        let groups: Vec<_> = self.parts.iter().map(|part| part.group.as_str()).collect();
        let by = match groups.is_empty() {
            true => String::new(),
            false => format!(", by {}", groups.join(" + ")),
        };
        let (mode, expected) = (self.mode.name(), time(self.expected_ms));
        let mut text = format!("{}: {mode}{by}, about {expected}\n", self.command);
        text.push_str(&format!("{}\n\n", self.durability));
        let before: Vec<_> = self.looks.iter().filter(|look| !look.held).collect();
        if !before.is_empty() {
            let look = |look: &&Look| {
                format!("{} of {} in {}", look.node, look.group, time(look.takes_ms))
            };
            let looks: Vec<_> = before.iter().map(look).collect();
            text.push_str(&format!(
                "First the mount looks at names that it does not hold: it asks {}.\n\n",
                looks.join(", then ")
            ));
        }
        if self.parts.is_empty() {
            text.push_str("Nobody else is asked.");
            return text;
        }
        let parts = self.parts.iter().map(|part| {
            let primary = part.primary.clone().unwrap_or("-".into());
            let region = part.primary_region.clone().unwrap_or("-".into());
            vec![part.group.clone(), part.asked.clone(), primary, region]
        });
        if self.durability.kept_back {
            text.push_str("The mount keeps it back and answers at once. When it is sent:\n\n");
        }
        text.push_str(&output::table(&["group", "node asked", "primary", "in"], parts));
        let steps = self.steps.iter().map(|step| {
            vec![time(step.after_ms), step.group.clone(), step.node.clone(), step.what.into()]
        });
        text.push_str("\n\n");
        text.push_str(&output::table(&["after", "group", "node", "what happens"], steps));
        if let Some(Took { p50_ms, count }) = &self.measured {
            let p50 = time(*p50_ms);
            text.push_str(&format!("\n\nin this mount such took {p50} (the median of {count})"));
        }
        text
    }
}
