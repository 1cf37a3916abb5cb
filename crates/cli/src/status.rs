//! `meridian status`: how nodes and groups are.

mod asking;
mod causal;
mod copies;
mod links;
mod lost;
mod mounts;
mod report;
mod verdict;
mod why;

use crate::certificates::Shown;
use crate::cluster::Of;
use crate::{cluster, configuration, output};
use clap::Args;
pub use lost::{empty_seats, waits_for};
use meridian_terminal::signals::Signals;
pub use mounts::reports as mounts_of;
use report::KeysReport;
pub use report::{Answered, Report, answers, ask_all};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
pub use verdict::Seen;
use why::Question;

/// What to tell.
#[derive(Debug, Args)]
#[command(after_help = "\
lag is how many messages the replica has delivered less than the foremost of its group; head age is
how long the oldest message there waits for its delivery. Messages that have nothing to do with each
other do not wait for each other: with one region cut off, what waits for it grows old, and the rest
goes on.

Of keys each node's shards are shown: who is live in its epoch (what follows a + is still fetching
what there is), and for how long the node serves unless its lease is renewed. While nobody asks for
keys, nodes doze, and hold no lease; the first request gets one.

Of causal keys each pair of regions is shown: for how long what one has made may not be in the other
(lag), how many of its updates wait there (queue), how many are kept because some region may lack
them (outstanding), and up to which time all is there (applied) or may leave its region (stable).
When nothing is made, lag is how long ago that was said last.

disk free is what the node's disk has left, in bytes. A node whose disk is full stores no more
blocks; with still less it takes nothing that needs room, until there is some again.

Of the blocks that a node should hold so many are missing, as a disk lost them, a node is new or was
away; so many are damaged on its disk; so many are being copied from other nodes, which goes on by
itself until all are there. Under-replicated are, in each region, the copies that are missing or
damaged, and those at nodes that do not answer, as the other nodes counted them last.

Of mounts on this machine is told how the kernel's requests come to them: by io_uring where Linux
(6.14 and later) offers that when they are mounted, else by /dev/fuse. Root has it offer that by
`echo Y > /sys/module/fuse/parameters/enable_uring`. And when what is done in them is durable, where
no directory says otherwise: `meridian fs where PATH` tells it of a path.

Between regions, and in each, is told how long it takes from a node of the one (row) to one of the
other (column) and back: what servers need to answer counts, too. With ! are those of which nodes
have no connection.

It begins with a sentence: whether anything is wrong, where, and for how long at least, where that
is known: from what waits in a group, or from having watched it (--watch).

With --why PATH it tells of that path instead, also of one that hangs: where it is placed, and along
which groups a look-up of it goes, as a path below a directory whose group does not answer cannot be
looked up; each of these groups, what waits in it and for what; what the mount meets that PATH is
in; when what is done there is durable, a quota, the room of the nodes that hold it, and locks of
fcntl. It takes a second, or up to 10 where somebody does not answer. What the mount does not tell
within 4 seconds is left out, and PATH is then taken to be placed as its last directory that was
told, or else as its first name says. --watch and --json go with it.

From 14 days before their end on it names certificates that the nodes show, the one that this
command shows, and the authority's.

Exit status 0 if all nodes answer, all groups have a primary, no disk is full, no block is missing
or damaged at any node, and no certificate is about to end; 1 if any of that is not so, and all
groups can be written all the same, or if nobody can be asked; 3 if a group has no primary, or too
few of its members answer. With --why it is the same of the groups, nodes and mount that PATH needs,
and 1 also if PATH is not there.

Examples:
  meridian status
  meridian status --watch
  meridian status --why meridian/eu/report
  meridian status --why meridian/eu/report --watch
  meridian status --cluster DATA/cluster.json --json")]
pub struct StatusArgs {
    #[command(flatten)]
    of: Of,
    /// Ask again every so many seconds, until Ctrl-C; the exit status is that of the last answer
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    /// Tell why PATH, which is in a mount of this machine or would be, hangs, is slow or is refused
    #[arg(long, value_name = "PATH")]
    why: Option<PathBuf>,
    /// Tell only what is mounted at DIR
    #[arg(long, value_name = "DIR", hide = true)]
    of_mount: Option<PathBuf>,
    /// Tell how that is, and what each name of PATH in it leads to
    #[arg(long, value_name = "PATH", hide = true, requires = "of_mount")]
    along: Option<PathBuf>,
}

/// Runs `meridian status`.
///
/// # Errors
/// If there is no cluster to ask.
pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &args.of_mount {
        match &args.along {
            Some(path) => why::tell(dir, path)?,
            None => output::print(&mounts::say(dir))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut subject = match &args.why {
        Some(path) => Subject::Path(Question::new(path)?),
        None => Subject::Cluster(cluster::named_or_last(args.of.cluster.as_deref())?),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut seen = Seen::default();
        let Some(every) = args.watch.map(Duration::from_secs) else {
            return Ok(ExitCode::from(tell(args, &mut subject, &mut seen).await?));
        };
        let mut signals = Signals::listen()?;
        loop {
            if std::io::stdout().is_terminal() && !args.of.json {
                output::print("\x1b[H\x1b[2J")?; // What was told before goes.
            }
            let code = tell(args, &mut subject, &mut seen).await?;
            tokio::select! {
                _ = signals.next() => return Ok(ExitCode::from(code)),
                () = tokio::time::sleep(every) => {}
            }
        }
    })
}

/// What is told of.
enum Subject {
    /// The cluster of that file.
    Cluster(PathBuf),
    /// A path.
    Path(Question),
}

/// Asks once, and tells; what to exit with.
async fn tell(args: &StatusArgs, subject: &mut Subject, seen: &mut Seen) -> anyhow::Result<u8> {
    match subject {
        Subject::Cluster(path) => tell_all(args, path, seen).await,
        Subject::Path(question) => {
            let why = question.answer(&args.of, seen).await?;
            output::print(&match args.of.json {
                true => serde_json::to_string_pretty(&why)?,
                false => why.for_people(),
            })?;
            Ok(why.level.exit_code())
        }
    }
}

async fn tell_all(args: &StatusArgs, path: &Path, seen: &mut Seen) -> anyhow::Result<u8> {
    let newest = configuration::newest(path, &args.of.tls, Shown::Client).await?;
    let (client, topology) = (newest.client()?, newest.topology);
    let mut report = ask_all(&client, &topology).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    report.certify(&client, &newest.security, now);
    report.mounts = mounts::reports(report.cluster)?;
    report.see(seen);
    let text = match args.of.json {
        true => serde_json::to_string_pretty(&report)?,
        false => format!("{}\n\n{}", report.sentence, report.for_people()),
    };
    output::print(&text)?;
    Ok(report.verdict.level.exit_code())
}

/// Tells how far regions are with causal keys; whether all could be asked.
///
/// # Errors
/// If there is no cluster to ask.
pub async fn lag(of: &Of) -> anyhow::Result<bool> {
    let path = cluster::named_or_last(of.cluster.as_deref())?;
    let newest = configuration::newest(&path, &of.tls, Shown::Client).await?;
    let (client, topology) = (newest.client()?, newest.topology);
    let report = ask_all(&client, &topology).await;
    let text = match of.json {
        true => serde_json::to_string_pretty(&report.causal)?,
        false if report.causal.is_empty() => "no node that answers has causal keys".into(),
        false => [vec![causal::table(&report.causal)], report.moving.clone()].concat().join("\n"),
    };
    output::print(&text)?;
    Ok(!report.causal.is_empty() && report.nodes.iter().all(|node| node.reachable))
}

/// What is told of each node.
const NODE_HEAD: [&str; 15] = [
    "node",
    "region",
    "pid",
    "address",
    "up",
    "peers",
    "blocks",
    "bytes",
    "on disk",
    "to free",
    "missing",
    "damaged",
    "copying",
    "disk free",
    "reachable",
];

/// What is told of each member of a group.
const GROUP_HEAD: [&str; 10] = [
    "group",
    "node",
    "role",
    "epoch",
    "primary",
    "delivered",
    "applied",
    "lag",
    "pending",
    "head age",
];

impl Report {
    fn for_people(&self) -> String {
        let or_dash = |number: Option<u64>| number.map_or("-".into(), |n| n.to_string());
        let nodes = self.nodes.iter().map(|node| {
            vec![
                node.node.clone(),
                node.region.clone(),
                or_dash(node.pid.map(u64::from)),
                node.address.clone(),
                node.uptime_ms.map_or("-".into(), |ms| format!("{} s", ms / 1000)),
                or_dash(node.connected_peers.map(|n| n as u64)),
                or_dash(node.blocks),
                or_dash(node.block_bytes),
                or_dash(node.block_disk_bytes),
                or_dash(node.to_free),
                or_dash(node.copies.map(|copies| copies.missing)),
                or_dash(node.copies.map(|copies| copies.damaged)),
                or_dash(node.copies.map(|copies| copies.copying)),
                or_dash(node.disk_free_bytes),
                node.error.as_ref().map_or(node.state().into(), |error| format!("NO: {error}")),
            ]
        });
        let nodes = output::table(&NODE_HEAD, nodes);
        let mut rows = Vec::new();
        for group in &self.groups {
            let primary = group.primary.clone().unwrap_or("NONE".into());
            for replica in &group.replicas {
                rows.push(vec![
                    group.group.clone(),
                    replica.node.clone(),
                    replica.role.clone(),
                    replica.epoch.to_string(),
                    primary.clone(),
                    replica.delivered.to_string(),
                    replica.applied.to_string(),
                    replica.lag.to_string(),
                    replica.pending.to_string(),
                    format!("{} ms", replica.head_age_ms),
                ]);
            }
            if group.replicas.is_empty() {
                let mut row = vec![group.group.clone(), "none reachable".into()];
                row.resize(10, "-".into());
                rows.push(row);
            }
        }
        let groups = output::table(&GROUP_HEAD, rows);
        let keys = self.keys.iter().map(KeysReport::row).collect::<Vec<_>>();
        let keys = match keys.is_empty() {
            true => String::new(),
            false => format!("{}\n\n", output::table(&KeysReport::HEAD, keys)),
        };
        let apart = |table: String| match table.is_empty() {
            true => table,
            false => format!("{table}\n\n"),
        };
        let causal = apart(causal::table(&self.causal));
        let causal = causal + &apart(self.moving.join("\n"));
        let mounts = apart(mounts::table(&self.mounts));
        let (regions, links) = (copies::table(&self.regions), links::table(&self.links));
        format!(
            "{nodes}\n\n{links}\n\n{regions}\n\n{groups}\n\n{keys}{causal}{mounts}order: {}",
            self.order
        )
    }
}

impl KeysReport {
    const HEAD: [&str; 11] = [
        "keys of", "shard", "node", "epoch", "live", "voters", "serves", "clients", "keys",
        "bytes", "kept in",
    ];

    fn row(&self) -> Vec<String> {
        let mut live = self.live.join(", ");
        if !self.shadows.is_empty() {
            live = format!("{live} + {}", self.shadows.join(", "));
        }
        let serves = match self.serves_ms {
            0 => "no lease".into(),
            left => format!("{left} ms"),
        };
        let numbers = [self.clients, self.keys, self.bytes].map(|number| number.to_string());
        let epoch = self.epoch.to_string();
        let shard = if self.causal { "causal".into() } else { self.shard.to_string() };
        let mut row = vec![self.region.clone(), shard, self.node.clone(), epoch, live];
        row.extend([self.voters.join(", "), serves]);
        row.extend(numbers);
        row.push(self.kept_in.into());
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, new_cluster};
    use meridian_cluster::Topology;
    use meridian_fs::Holdings;
    use meridian_host::api::NodeStatus;
    use meridian_host::drain::keep::Report as Copies;
    use serde_json::json;

    pub(super) fn status(node: u16, replicas: &[(u16, &str, u64, u64)]) -> NodeStatus {
        let replicas = replicas.iter().map(|(group, role, epoch, delivered)| {
            json!({"group": group, "role": role, "epoch": {"config": 0, "number": epoch, "leader": node},
                "primary": node, "delivered": delivered, "applied": delivered, "clock": 0,
                "pending": 0, "head_age_ms": 0, "state_hash": 7, "holdings": Holdings::default(),
                "held_up": {"message": {"client": 123, "sequence": 9}, "votes": true, "by": [0]}})
        });
        let replicas: Vec<_> = replicas.collect();
        let copies = Copies { live: 90, own: 60, missing: 11, damaged: 22, ..Copies::default() };
        serde_json::from_value(json!({"node": node, "pid": 9, "uptime_ms": 1000,
            "replicas": replicas, "blocks": [1, 2],
            "block_disk_bytes": 3, "to_free": 4, "full": node == 1,
            "room": {"free": 77, "writable": 0, "total": 100, "device": 1}, "copies": copies,
            "bad_frames": 0, "unauthorized": 0, "clients": 6, "connected": [], "round_trips_us": [], "flush_us": null,
            "configured": 0,
            "keeper": null, "keys": [{"epoch": 3, "live": [0, 1], "shadows": [2], "voters": [0, 1],
            "serves_ms": 90 * u64::from(node == 0), "clients": 4, "keys": 5, "bytes": 60, "on_disk": node == 1,
            "causal": false}], "causal": null}))
        .unwrap()
    }

    #[test]
    fn lag_is_counted_from_the_foremost_and_the_newest_epoch_leads() {
        let shape =
            Shape { regions: vec!["us".into()], nodes_per_region: Some(3), ..Shape::default() };
        let topology = Topology::new(&new_cluster(&shape).unwrap()).unwrap();
        let answers = [
            Ok(status(0, &[(0, "primary", 1, 90), (1, "follower", 4, 70)])),
            Ok(status(1, &[(0, "primary", 2, 100), (1, "promised", 4, 60)])),
            Err("connection refused".to_string()),
        ];
        let answers = topology.node_ids().zip(answers).collect();
        let report = Report::new(&topology, &answers);
        assert_eq!(report.groups[0].primary.as_deref(), Some("us-2"));
        assert_eq!(report.groups[0].replicas[0].lag, 10);
        let held_up = report.groups[0].held_up.as_ref().unwrap();
        assert_eq!((&*held_up.message, held_up.waits_for), ("7b.9", "votes"));
        assert_eq!(held_up.by, [report.groups[0].group.clone()]);
        assert_eq!((report.nodes[0].clients, report.nodes[2].clients), (Some(6), None));
        assert_eq!((report.all_led(), report.not_led()), (false, "us".to_string()));
        let text = report.for_people();
        assert!(text.contains("NO: connection refused") && text.contains("NONE"), "{text}");
        assert!(text.ends_with("order: sequential"), "{text}");
        assert_eq!(text.matches("us-1, us-2 + us-3").count(), 2, "{text}");
        assert!(text.contains("stores no more blocks") && text.contains("takes nothing"));
        let first = text.lines().find(|line| line.starts_with(" us-1")).unwrap();
        let cells: Vec<_> = first.split_whitespace().collect();
        assert!(cells.windows(3).any(|of| of == ["11", "22", "0"]), "missing, damaged: {text}");
        assert_eq!(report.verdict.level.exit_code(), 3, "us has no primary");
        let lacking = |at: usize| report.nodes[at].under_replicated;
        let all = [lacking(0), lacking(1), lacking(2)];
        assert_eq!(all, [Some(33), Some(33), Some(60)], "us-3 should have what the others do not");
        let region = &report.regions[0];
        assert_eq!((region.blocks, region.under_replicated), (Some(90), Some(126)));
        assert!(text.contains("under-replicated"), "{text}");
        assert!(text.contains("90 ms") && text.contains("no lease"), "{text}");
        assert_eq!(
            (text.matches("  memory").count(), text.matches("  disk\n").count()),
            (1, 1),
            "{text}"
        );
    }
}
