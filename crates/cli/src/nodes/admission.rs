//! What clients may do, and whose certificates count no more.

use super::Cluster;
use crate::cluster::Of;
use crate::output;
use anyhow::{Context, bail, ensure};
use clap::Args;
use meridian_client::Files;
use meridian_cluster::configuration::Request;
use meridian_cluster::grants::{Below, Grant, revoked_name};
use meridian_core::principal::Speaker;
use meridian_fs::Kind;
use meridian_fs::quota::Stage;
use meridian_terminal::note;
use serde::Serialize;
use std::collections::BTreeSet;
use std::process::ExitCode;

/// What takes something away does not go with --all.
const OTHERS: [&str; 7] = ["below", "read_only", "root", "users", "groups", "squash", "prefixes"];

/// What a client may do.
#[derive(Debug, Args)]
#[command(after_help = "\
NAME is that in the client's certificate. Who was never named here may do all that any client may:
its own machine decides which of its users may do what. Who has a grant may do no more than that
says, and the servers see to it, with the permissions of files: its root is nobody unless --root
says otherwise, and without --uid it may act as any user but root. Keys are shut to it but for those
that --keys names. Another grant takes the place of the one before, at all nodes within some
seconds, also for connections that are open.

PATH begins with a region, as in a mount, and needs a quota of its own (`meridian fs quota PATH
--none` gives it one without limits). What counts against that is what the client reaches, also when
the directory has moved, and nothing else: not a directory below with another quota. A mount of such
a client shows PATH as its root.

PREFIX is how keys begin, of this region and of all regions alike: --keys may be there 16 times. The
node that the client asks refuses a command (NOPERM) if one of its keys begins otherwise, and shows
no other keys. --keys says nothing of files: without --below all are reached.

Examples:
  meridian cluster allow lab --below /us/lab --uid 1000 --uid 1001 --gid 100
  meridian cluster allow lab --below /us/lab --keys lab: --keys shared:lab:
  meridian cluster allow backup --root --read-only
  meridian cluster allow lab --all")]
pub struct AllowArgs {
    /// The client's name
    name: String,
    /// Only what counts against the quota of this directory
    #[arg(long, value_name = "PATH")]
    below: Option<String>,
    /// It changes nothing
    #[arg(long)]
    read_only: bool,
    /// Its root is root
    #[arg(long)]
    root: bool,
    /// A user as whom it may act [default: all but root]
    #[arg(long = "uid", value_name = "N")]
    users: Vec<u32>,
    /// A group as which it may act [default: all but root's]
    #[arg(long = "gid", value_name = "N")]
    groups: Vec<u32>,
    /// The user and the group that its root becomes [default: 65534:65534]
    #[arg(long, value_name = "U:G", value_parser = pair)]
    squash: Option<(u32, u32)>,
    /// Keys that begin so may be used [default: none]
    #[arg(long = "keys", value_name = "PREFIX")]
    prefixes: Vec<String>,
    /// It may do all again
    #[arg(long, conflicts_with_all = OTHERS)]
    all: bool,
    #[command(flatten)]
    of: Of,
}

/// Whose certificate counts no more.
#[derive(Debug, Args)]
#[command(after_help = "\
Connections of that principal end at all nodes within some seconds, and new ones are refused and
counted, also after nodes were started anew. That cannot be taken back: who is to come again gets a
certificate with another name (`meridian certify`). A node that is down hears of it when it is up.

Examples:
  meridian cluster revoke client/lab
  meridian cluster revoke node/us-2")]
pub struct RevokeArgs {
    /// Whose, as ROLE/NAME with a role of client, admin, node or watcher
    principal: String,
    #[command(flatten)]
    of: Of,
}

/// Which cluster.
#[derive(Debug, Args)]
#[command(after_help = "\
Clients that are not listed may do all.

Example:
  meridian cluster grants --json")]
pub struct GrantsArgs {
    #[command(flatten)]
    of: Of,
}

fn pair(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text:?} is not like 65534:65534"))
}

/// What `grants` tells.
#[derive(Debug, Serialize)]
struct Report<'a> {
    version: u64,
    clients: Vec<Row<'a>>,
    revoked: Vec<&'a String>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    client: &'a str,
    keys: Vec<&'a str>,
    #[serde(flatten)]
    grant: &'a Grant,
}

pub(super) async fn allow(args: &AllowArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open_newest(&args.of).await?;
    let AllowArgs { name, read_only, root, squash, .. } = args;
    let below = match &args.below {
        Some(path) => Some(found(&cluster, path).await?),
        None => None,
    };
    let (users, groups) = (&args.users, &args.groups);
    let (users, groups) = (users.iter().copied().collect(), groups.iter().copied().collect());
    let (read_only, root, squash) = (*read_only, *root, *squash);
    let grant = Grant { below, read_only, root, users, groups, squash };
    let is_all = !args.all && grant == Grant::default();
    let (name, prefixes) = (name.clone(), args.prefixes.iter().cloned().collect::<BTreeSet<_>>());
    let request = match prefixes.is_empty() {
        true => Request::Allow { name, grant: (!args.all).then_some(grant) },
        false => Request::AllowKeys { name, grant, prefixes },
    };
    let mut keepers = cluster.keepers();
    keepers.change(&request).await?;
    cluster.follow(&mut keepers).await?;
    if is_all {
        let name = &args.name;
        note!("{name} reaches all files, as any user but root: --uid or --below allow less");
    }
    tell(&cluster, args.of.json)
}

/// The directory at a path, which has a quota of its own, and all counted.
async fn found(cluster: &Cluster, path: &str) -> anyhow::Result<Below> {
    let files = Files::new(cluster.client.clone());
    let in_tree = || format!("{path} in the tree (as /us/lab, wherever that is mounted)");
    let at = files.resolve(path).await.with_context(in_tree)?;
    ensure!(at.kind == Kind::Directory, "{path} is not a directory");
    let quota = files.own_quota(at.place.ino).await.with_context(|| path.to_string())?;
    match quota.map(|quota| quota.stage) {
        Some(Stage::Complete) => {}
        Some(Stage::Counts | Stage::Leaves) => {
            bail!("what is below {path} is still being counted: try again when that is done")
        }
        None => bail!(
            "{path} has no quota of its own, by which servers know what is below it: give it one \
             in a mount, `meridian fs quota {path} --none` if without limits"
        ),
    }
    let (partition, ino) = (at.place.partition.0, at.place.ino.0);
    Ok(Below { path: path.into(), partition, ino })
}

pub(super) async fn revoke(args: &RevokeArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::open_newest(&args.of).await?;
    if let Speaker::Known(own) = cluster.newest.security.own() {
        let own = revoked_name(own.role, &own.name);
        ensure!(own != args.principal, "{own} is shown here: show another to revoke it");
    }
    let mut keepers = cluster.keepers();
    keepers.change(&Request::Revoke { principal: args.principal.clone() }).await?;
    cluster.follow(&mut keepers).await?;
    tell(&cluster, args.of.json)
}

pub(super) async fn grants(args: &GrantsArgs) -> anyhow::Result<ExitCode> {
    tell(&Cluster::open(&args.of).await?, args.of.json)
}

fn tell(cluster: &Cluster, json: bool) -> anyhow::Result<ExitCode> {
    let kept = &cluster.newest.file.configuration;
    let clients = kept.grants.iter().map(|(client, grant)| {
        let keys = kept.key_prefixes.get(client).into_iter().flatten();
        Row { client, keys: keys.map(String::as_str).collect(), grant }
    });
    let (version, revoked) = (kept.version, kept.revoked.iter().collect());
    let report = Report { version, clients: clients.collect(), revoked };
    output::print(&if json {
        serde_json::to_string_pretty(&report)?
    } else {
        for_people(&report)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn for_people(report: &Report<'_>) -> String {
    let list = |ids: &BTreeSet<u32>| match ids.len() {
        0 => "all but root".into(),
        _ => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    };
    let row = |Row { client, keys, grant }: &Row<'_>| {
        let (uid, gid) = grant.squash.unwrap_or(meridian_fs::access::NOBODY);
        let squash = if grant.root { "root".into() } else { format!("{uid}:{gid}") };
        let below = grant.below.as_ref().map_or("all", |below| &below.path);
        let may = if grant.read_only { "read" } else { "read and write" };
        let (users, groups) = match grant.root {
            true => ("all".into(), "all".into()),
            false => (list(&grant.users), list(&grant.groups)),
        };
        let keys = match keys.is_empty() {
            true => "none".into(),
            false => keys.iter().map(|of| format!("{of:?}")).collect::<Vec<_>>().join(" "),
        };
        vec![client.to_string(), below.into(), may.into(), squash, users, groups, keys]
    };
    let head = ["client", "below", "may", "root is", "users", "groups", "keys"];
    let table = output::table(&head, report.clients.iter().map(row));
    let revoked: Vec<_> = report.revoked.iter().map(|name| name.as_str()).collect();
    let revoked = if revoked.is_empty() { "nobody".into() } else { revoked.join(", ") };
    format!("{table}\n\nrevoked: {revoked}; version {}", report.version)
}
