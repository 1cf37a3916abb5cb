//! `meridian trace`: what a command has a mount ask of nodes, and how long that takes.

use crate::{output, timeline};
use anyhow::Context;
use clap::Args;
use meridian_client::timeline::{SlowUpdate, Timeline};
use meridian_client::times::{Times, Way};
use meridian_mount::about::{About, slowest_of, timeline_of, times_of, updates_of};
use meridian_mount::slowest::{KEPT, Slow};
use meridian_terminal::note;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// A group whose updates take so long is far away: within a region they take a millisecond or two.
const FAR: Duration = Duration::from_millis(10);
/// So many of the slowest calls are told to people, of the KEPT that JSON has.
const SLOWEST: usize = 5;
/// The paths of so many updates are told as JSON.
const TIMELINES: usize = 5;
const _: () = assert!(SLOWEST <= KEPT);

/// What to run.
#[derive(Debug, Args)]
#[command(after_help = "\
Each row is a kind of update, or `read`, with the groups that order or answer it: a region's own for
what is placed there, `global` for all else, several for what moves between placements. Times are
those from when the mount asks until it is answered; what the mount or the kernel answers from what
they keep is in none of them. p50 and p99 are at most a tenth too long.

Below it are the five calls that took longest, with their paths in the mount (20 in JSON), each from
when the kernel asks the mount: those of a millisecond or more, if the mount is yours or you are
root.

Then comes the path of the slowest update, step by step over the client and the nodes (of the five
slowest in JSON): see `meridian timeline`, which tells that of any other by its name.

What other programs do in the same mount meanwhile counts, too. The table goes to standard error,
and the exit status is that of CMD.

Examples:
  meridian trace -- tar xf ../linux.tar.xz
  meridian trace --mount ~/meridian --json -- make 2> times.json")]
pub struct TraceArgs {
    /// Anything in the mount
    #[arg(long, value_name = "PATH", default_value = ".")]
    mount: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A kind of what was asked.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    groups: Vec<String>,
    count: u64,
    failed: u64,
    p50_ms: f64,
    p99_ms: f64,
    /// All of them together.
    total_ms: f64,
}

/// A slow update, and where its time went.
#[derive(Debug, Serialize)]
struct Update {
    #[serde(flatten)]
    slow: SlowUpdate,
    timeline: Timeline,
}

/// What is told.
#[derive(Debug, Serialize)]
struct Report {
    /// How long the command took.
    took_ms: f64,
    rows: Vec<Row>,
    /// The calls that took longest, slowest first; none if the mount is somebody else's.
    slowest: Vec<Slow>,
    /// The updates that took longest, slowest first.
    updates: Vec<Update>,
    /// What may be done about it.
    hints: Vec<String>,
}

/// Runs `meridian trace`.
///
/// # Errors
/// If the path is in no mount of this build, or the command cannot be run.
pub fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let before = asked(&args.mount)?;
    slowest(&args.mount)?; // Of what was before.
    updates_of(&args.mount)?;
    let begun = Instant::now();
    let program = &args.command[0];
    let status = Command::new(program).args(&args.command[1..]).status();
    let status = status.with_context(|| format!("cannot run {}", program.display()))?;
    let took = begun.elapsed();
    let region = region_of(&args.mount)?;
    let rows = rows(&asked(&args.mount)?, &before);
    let mut report = Report::new(took, rows, slowest(&args.mount)?, &region);
    report.updates = updates(&args.mount, if args.json { TIMELINES } else { 1 })?;
    match args.json {
        true => note!("{}", serde_json::to_string_pretty(&report)?),
        false => note!("{}", report.for_people()),
    }
    Ok(code_of(status))
}

/// The slowest updates since this was asked last, so many of them.
fn updates(path: &Path, most: usize) -> anyhow::Result<Vec<Update>> {
    let slow = updates_of(path)?.into_iter().take(most);
    let with_path = |slow: SlowUpdate| {
        let timeline = timeline_of(path, slow.message.parse()?)?;
        Ok(Update { slow, timeline })
    };
    slow.map(with_path).collect()
}

fn asked(path: &Path) -> anyhow::Result<Vec<Way>> {
    times_of(path).with_context(|| {
        format!("{} is in no Meridian mount of this build: name one by --mount", path.display())
    })
}

/// The slowest calls since this was asked last.
fn slowest(path: &Path) -> anyhow::Result<Vec<Slow>> {
    match slowest_of(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Vec::new()),
        told => told.with_context(|| format!("the mount at {} does not answer", path.display())),
    }
}

/// The region of the mount that a path is in.
fn region_of(path: &Path) -> anyhow::Result<String> {
    let path = path.canonicalize()?;
    let about = path.ancestors().find_map(|dir| About::of(dir).ok());
    Ok(about.context("the mount does not say in which region it is")?.region)
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What was asked since, what took longest first.
fn rows(after: &[Way], before: &[Way]) -> Vec<Row> {
    let since = |way: &Way| {
        let same = |then: &&Way| then.what == way.what && then.groups == way.groups;
        let none = Times::default();
        let times = way.times.since(before.iter().find(same).map_or(&none, |then| &then.times));
        let within = |part| times.within(part).map(ms);
        Some(Row {
            what: way.what.clone(),
            groups: way.groups.clone(),
            count: times.count(),
            failed: times.failed,
            p50_ms: within(0.5)?,
            p99_ms: within(0.99)?,
            total_ms: ms(Duration::from_micros(times.total_us)),
        })
    };
    let mut rows: Vec<_> = after.iter().filter_map(since).collect();
    rows.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    rows
}

/// What several groups have ordered.
fn across(rows: &[Row], all: u64) -> Option<String> {
    let across = sum(rows.iter().filter(|row| row.is_update() && row.groups.len() > 1));
    (across > 0).then(|| {
        format!(
            "{across} of {all} updates concerned several placements and were ordered by all their \
             groups: what is moved and linked often belongs in one (`meridian fs where`)"
        )
    })
}

fn sum<'a>(rows: impl Iterator<Item = &'a Row>) -> u64 {
    rows.map(|row| row.count).sum()
}

/// What one group far away has ordered.
fn far_updates(rows: &[Row], group: &str, (all, region): (u64, &str)) -> Option<String> {
    let of = rows.iter().filter(|row| row.is_update() && row.is_far() && row.groups == [group]);
    let far = sum(of);
    if far == 0 {
        return None;
    }
    let ordered = format!("{far} of {all} updates were ordered by {group} from {region}");
    Some(match group {
        "global" => format!(
            "{ordered}: directories that {region} uses most are faster in it (`meridian fs place \
             DIR --region {region}`)"
        ),
        other => format!(
            "{ordered}: mount with --region {other} there, or place what is used here nearer \
             (`meridian fs place DIR --region {region}`)"
        ),
    })
}

/// What one group far away was asked.
fn far_looks(rows: &[Row], group: &str, region: &str) -> Option<String> {
    let far = rows.iter().find(|row| !row.is_update() && row.is_far() && row.groups == [group])?;
    let (count, total) = (far.count, far.total_ms / 1e3);
    Some(format!(
        "{count} looks from {region} were answered by {group} and took {total:.1} s together: a \
         directory that was listed is held, and then names that are not in it are not asked for"
    ))
}

impl Row {
    fn is_update(&self) -> bool {
        self.what != "read"
    }

    /// Looks are mostly answered in no time, and those that are not, far away: the mean tells.
    fn is_far(&self) -> bool {
        match self.is_update() {
            true => self.p50_ms >= ms(FAR),
            false => self.total_ms / self.count.max(1) as f64 >= ms(FAR),
        }
    }
}

impl Report {
    fn new(took: Duration, rows: Vec<Row>, slowest: Vec<Slow>, region: &str) -> Report {
        let all = sum(rows.iter().filter(|row| row.is_update()));
        let groups: BTreeSet<_> = rows.iter().flat_map(|row| &row.groups).cloned().collect();
        let mut hints: Vec<_> = across(&rows, all).into_iter().collect();
        hints.extend(groups.iter().filter_map(|of| far_updates(&rows, of, (all, region))));
        hints.extend(groups.iter().filter_map(|of| far_looks(&rows, of, region)));
        Report { took_ms: ms(took), rows, slowest, updates: Vec::new(), hints }
    }

    fn for_people(&self) -> String {
        let time = |ms: f64| format!("{ms:.1} ms");
        let rows = self.rows.iter().map(|row| {
            vec![
                row.what.clone(),
                row.groups.join(" + "),
                row.count.to_string(),
                row.failed.to_string(),
                time(row.p50_ms),
                time(row.p99_ms),
                time(row.total_ms),
            ]
        });
        let head = ["what", "by", "times", "failed", "p50", "p99", "together"];
        let mut text = match self.rows.is_empty() {
            true => "no node was asked for anything".into(),
            false => output::table(&head, rows),
        };
        if !self.slowest.is_empty() {
            let rows = self.slowest.iter().take(SLOWEST).map(|slow| {
                let took = time(ms(Duration::from_micros(slow.took_us)));
                vec![slow.call.clone(), took, slow.path.escape_debug().to_string()]
            });
            text.push_str("\n\n");
            text.push_str(&output::table(&["slowest", "took", "of"], rows));
        }
        for Update { slow, timeline } in &self.updates {
            let took = time(ms(Duration::from_micros(slow.took_us)));
            let (what, by, name) = (&slow.what, slow.groups.join(" + "), &slow.message);
            text.push_str(&format!("\n\nslowest update: {what} by {by}, {took}, {name}\n"));
            text.push_str(&timeline::for_people(timeline));
        }
        text.push_str(&format!("\n\nit took {:.2} s", self.took_ms / 1e3));
        self.hints.iter().for_each(|hint| text.push_str(&format!("\n{hint}")));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(what: &str, groups: &[&str], took: &[u64]) -> Way {
        let mut times = Times::default();
        took.iter().for_each(|ms| times.add(Duration::from_millis(*ms), false));
        let groups = groups.iter().map(ToString::to_string).collect();
        Way { what: what.into(), groups, times }
    }

    #[test]
    fn what_came_since_is_told_longest_first_with_what_to_do() {
        let before = [way("create", &["us"], &[1, 1]), way("read", &["us"], &[1])];
        let after = [
            way("create", &["us"], &[1, 1, 1, 1]),
            way("mkdir", &["global"], &[90, 90]),
            way("read", &["us"], &[1]),
            way("rename", &["us", "eu"], &[80]),
            way("read", &["eu"], &[0, 0, 0, 81]),
        ];
        let rows = rows(&after, &before);
        let told: Vec<_> = rows.iter().map(|row| (&*row.what, row.count)).collect();
        assert_eq!(told, [("mkdir", 2), ("read", 4), ("rename", 1), ("create", 2)]);
        let slow = |call: &str, path: &str, took_us| Slow {
            call: call.into(),
            path: path.into(),
            took_us,
        };
        let mut slowest = vec![slow("mkdir", "/a\nb", 90_040), slow("open", "/eu/far", 81_000)];
        slowest.resize(SLOWEST + 1, slow("stat", "/eu", 80_000));
        let report = Report::new(Duration::from_secs(2), rows, slowest, "us");
        let text = report.for_people();
        assert!(text.contains("us + eu") && text.contains("it took 2.00 s"), "{text}");
        assert!(text.contains("/a\\nb") && text.contains("/eu/far"), "{text}");
        assert_eq!(text.matches("stat").count(), SLOWEST - 2, "{text}");
        let hints = [
            "1 of 5 updates concerned several",
            "2 of 5 updates were ordered by global from us: ",
            "4 looks from us were answered by eu and took 0.1 s together: ",
        ];
        let begin = |(told, hint): (&String, &str)| told.starts_with(hint);
        assert!(report.hints.iter().zip(hints).all(begin), "{:?}", report.hints);
        assert_eq!(report.hints.len(), hints.len());
        let nothing = Report::new(Duration::from_secs(1), Vec::new(), Vec::new(), "us");
        assert!(nothing.for_people().starts_with("no node was asked"));
    }
}
