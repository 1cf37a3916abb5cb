//! `meridian server`: one node of a cluster.

mod watch;

use crate::certificates::{Shown, TlsArgs};
use crate::cluster;
use crate::lock::{self, SERVER_LOCK, Tried};
use crate::log_options::LogOptions;
use crate::{options_file, output};
use anyhow::{Context, bail};
use clap::{ArgMatches, Args, FromArgMatches};
use meridian_host::drain::keep;
use meridian_metrics::http;
use meridian_node::keys::{Durability, KeysOptions};
use meridian_terminal::manager::Manager;
use meridian_terminal::note;
use meridian_transport::Security;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What a server needs to know.
#[derive(Debug, Args)]
#[command(after_help = "\
The node's folder is made by `meridian prepare`. The demo makes such folders, too, and starts one
server in each. One that was killed can be started again by hand, also while the demo runs: it
catches up with the others.

All options may stand in a file of TOML, by the names of their flags; a flag that is given wins.

The cluster file says where the configuration is kept; the server follows that while it runs, and
goes on with the last one it knows while too few of those that keep it answer.

Exit status 2 if the server cannot start as it is configured, 3 if its disk failed or is damaged,
4 if the node was removed from the cluster, or its region declared lost, 5 if it has less than it
had: an empty folder, or an old one, that others know to have promised more.

Examples:
  meridian server --dir DATA/us-1
  meridian server --print-config > server.toml
  meridian server --config server.toml

If a service manager has started it (NOTIFY_SOCKET, as systemd's Type=notify sets it), it is told
when the node serves: when each of its groups has a primary that it is, or can reach.

MERIDIAN_LOG sets how much is logged: error, warn, info (the default), debug, or by module as
in warn,meridian_node=debug. While it runs, SIGUSR1 has more logged: debug, then trace; SIGUSR2 as
much as at the start again.")]
pub struct ServerArgs {
    /// The node's folder
    #[arg(long, required_unless_present_any = ["config", "print_config"])]
    dir: Option<PathBuf>,
    /// Take options from FILE, unless they are given here
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print such a file: all options, with what they mean
    #[arg(long)]
    print_config: bool,
    /// The cluster file [default: cluster.json beside the node's folder]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Tell who watches the node how it is, at https://HOST:PORT/metrics and /healthz, and show
    /// browsers the cluster at https://HOST:PORT/. Who asks shows the certificate of a watcher,
    /// an admin or a node
    #[arg(long, value_name = "HOST:PORT")]
    metrics_address: Option<String>,
    /// Tell that in plain text (http) to whoever reaches HOST:PORT, without asking who that is; a
    /// cluster that speaks plain text does so anyhow
    #[arg(long, requires = "metrics_address")]
    insecure_metrics: bool,
    /// Listen on HOST:PORT for clients of keys, which speak as those of Redis do [default: the node
    /// has no part in the keys of its region]
    #[arg(long, value_name = "HOST:PORT")]
    keys: Option<String>,
    /// In so many shards the keys are, each on a thread of its own: the same number at all nodes of
    /// a region, and at each start. To be said at the first start of a node that was added
    /// [default: as at the first start, then the cores, at most 8]
    #[arg(long, value_name = "N", requires = "keys")]
    keys_shards: Option<usize>,
    /// Where this node keeps its keys [default: as at the last start, at first in memory]
    #[arg(long, value_name = "WHERE", requires = "keys")]
    keys_durability: Option<KeysDurability>,
    /// Keys that begin so are causal: all regions have them, each goes on by itself, and what one
    /// changes comes to the others. The same at all nodes of all regions, from their first start
    /// with it on [default: as at the last start, at first none]
    #[arg(long, value_name = "PREFIX", requires = "keys")]
    keys_causal: Option<String>,
    /// The keys of the region begin with these nodes, if they have not begun: the same at all
    /// nodes, which begin when all of these are there. To be said where none is left of the nodes
    /// that the cluster was made with [default: those that are left of these]
    #[arg(long, value_name = "NODES", requires = "keys", value_delimiter = ',')]
    keys_first: Option<Vec<String>>,
    /// In so many days the node reads all blocks that it should hold, and repairs those that are
    /// damaged
    #[arg(long, value_name = "DAYS", default_value_t = SCRUB_DAYS,
        value_parser = clap::value_parser!(u32).range(1..=365))]
    scrub_days: u32,
    /// So many MiB of blocks it reads and fetches from other nodes within a second at most, to look
    /// after copies; a quarter of it while clients change files
    #[arg(long, value_name = "MIB", default_value_t = COPY_MIB,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    copy_rate: u32,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    log: LogOptions,
}

/// See [`meridian_host::drain::keep::PASS`].
const SCRUB_DAYS: u32 = (keep::PASS.as_secs() / DAY_S) as u32;
/// See [`meridian_host::drain::keep::BYTES_PER_S`].
const COPY_MIB: u32 = (keep::BYTES_PER_S >> 20) as u32;
/// A day, in seconds.
const DAY_S: u64 = 24 * 3600;

/// Where keys are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeysDurability {
    /// What is acknowledged is in the memory of all nodes of the region that are members. A node
    /// that starts again is sent all by another; when the last has ended, all keys have gone
    Memory,
    /// It is on their disks, too: when all lose power and come back, nothing acknowledged is lost.
    /// Each change waits for the disk, which needs room for three times the keys. Who goes from
    /// disk to memory gives up what the disk has
    Disk,
}

impl From<KeysDurability> for Durability {
    fn from(wanted: KeysDurability) -> Durability {
        match wanted {
            KeysDurability::Memory => Durability::Memory,
            KeysDurability::Disk => Durability::Disk,
        }
    }
}

/// These a file of options cannot give.
const NOT_IN_FILE: [&str; 2] = ["config", "print-config"];
/// What options may be in a file that have no default; the values are TOML.
const EXAMPLES: [(&str, &str); 12] = [
    ("dir", "\"/var/lib/meridian/us-1\""),
    ("cluster", "\"/var/lib/meridian/cluster.json\""),
    ("tls-certificate", "\"/var/lib/meridian/tls/us-1.pem\""),
    ("tls-key", "\"/var/lib/meridian/tls/us-1.key\""),
    ("tls-ca", "\"/var/lib/meridian/tls/ca.pem\""),
    ("metrics-address", "\"127.0.0.1:9464\""),
    ("insecure-metrics", "true"),
    ("keys", "\"10.0.1.1:7400\""),
    ("keys-shards", "4"),
    ("keys-durability", "\"disk\""),
    ("keys-causal", "\"causal:\""),
    ("keys-first", "[\"us-1\", \"us-2\", \"us-3\"]"),
];
/// What a server exits with that cannot start as it is configured; as
/// [`meridian_node::ServerError::exit_code`].
const WRONG_CODE: u8 = 2;

fn command() -> clap::Command {
    ServerArgs::augment_args(clap::Command::new("server"))
}

/// What `--print-config` prints.
pub fn example() -> String {
    let options = options_file::example(&command(), &NOT_IN_FILE, &EXAMPLES);
    format!("# Options of `meridian server --config FILE`; flags that are given win.\n\n{options}")
}

/// Runs `meridian server` until it is told to stop; `matches` are what `args` was made of.
///
/// # Errors
/// If the node cannot start, or must stop.
pub fn run(args: &ServerArgs, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    if args.print_config {
        output::print(&example())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(config) = &args.config else { return serve(args) };
    match options_file::merged(command(), matches, config, &NOT_IN_FILE) {
        Ok(matches) => serve(&ServerArgs::from_arg_matches(&matches)?),
        Err(error) => {
            note!("meridian: {}", output::one_line(&error));
            Ok(ExitCode::from(WRONG_CODE))
        }
    }
}

fn serve(args: &ServerArgs) -> anyhow::Result<ExitCode> {
    args.log.begin("info")?;
    // What a node writes is for its owner alone.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let dir = args.dir.as_ref().context("which node's folder? Say --dir, or dir in the file")?;
    let dir = dir.canonicalize().with_context(|| {
        format!("no node's folder at {}: `meridian prepare` makes it", dir.display())
    })?;
    let _lock = match lock::try_lock(&dir.join(SERVER_LOCK))? {
        Tried::Locked(lock) => lock,
        Tried::Held(pid) => {
            bail!("{} runs already, as process {pid}", dir.display());
        }
    };
    let security = security(&dir, args).and_then(|security| {
        watch(&dir, &security, args)?;
        Ok(security)
    });
    let security = match security {
        Ok(security) => security,
        Err(error) => {
            note!("meridian: {}", output::one_line(&error));
            return Ok(ExitCode::from(WRONG_CODE));
        }
    };
    let options = meridian_node::ServerOptions {
        dir,
        security,
        cluster: args.cluster.clone(),
        copies: keep::Options {
            pass: Duration::from_secs(u64::from(args.scrub_days) * DAY_S),
            bytes_per_s: u64::from(args.copy_rate) << 20,
        },
        keys: args.keys.clone().map(|address| KeysOptions {
            address,
            shards: args.keys_shards,
            durability: args.keys_durability.map(Durability::from),
            causal: args.keys_causal.clone(),
            first: args.keys_first.clone().map(|nodes| nodes.into_iter().collect()),
        }),
    };
    match meridian_node::run(&options) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            note!("meridian: {error}");
            Ok(ExitCode::from(error.exit_code()))
        }
    }
}

/// How the node's connections are secured, as its cluster file and its options say.
fn security(dir: &Path, args: &ServerArgs) -> anyhow::Result<Security> {
    let name = meridian_node::NodeFile::read(dir)?.node;
    let cluster = meridian_node::cluster_path(dir, args.cluster.as_deref());
    let (_, file) = cluster::read(&cluster)?;
    args.tls.security(&cluster, &file, Shown::Node(&name))
}

/// Lets the service manager know how the node is, and who watches it.
fn watch(dir: &Path, security: &Security, args: &ServerArgs) -> anyhow::Result<()> {
    let door = match args.insecure_metrics {
        true => Security::InsecurePlainText,
        false => security.clone(), // Who is shut out at the node is so here, too.
    };
    let listen = |address: &String| {
        let listener = http::listen(address)?;
        let url = format!("{}://{}/", http::scheme(&door), listener.local_addr()?);
        tracing::info!(%url, "metrics and health are told");
        anyhow::Ok((listener, door.clone()))
    };
    let metrics = args.metrics_address.as_ref().map(listen).transpose()?;
    let manager = Manager::from_environment().context("cannot reach the service manager")?;
    if metrics.is_none() && manager.is_none() {
        return Ok(());
    }
    let name = meridian_node::NodeFile::read(dir)?.node;
    let cluster = meridian_node::cluster_path(dir, args.cluster.as_deref());
    watch::start((&name, security.clone()), &cluster, metrics, manager)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a line, with all options of the example given.
    fn all_given() -> String {
        let lines = example();
        let given = lines.lines().map(|line| match line.strip_prefix('#') {
            Some(option) if option.starts_with(|c: char| c.is_ascii_lowercase()) => option,
            _ => line,
        });
        given.map(|line| format!("{line}\n")).collect()
    }

    fn read(text: &str) -> anyhow::Result<ServerArgs> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("server.toml");
        std::fs::write(&path, text)?;
        let flags = ["server", "--config", "server.toml"];
        let matches = command().try_get_matches_from(flags)?;
        let matches = options_file::merged(command(), &matches, &path, &NOT_IN_FILE)?;
        Ok(ServerArgs::from_arg_matches(&matches)?)
    }

    #[test]
    fn the_example_gives_nothing_and_explains_all() {
        let nothing = format!("{:?}", read(&example()).unwrap());
        let flags = command().try_get_matches_from(["server", "--config", "server.toml"]).unwrap();
        assert_eq!(nothing, format!("{:?}", ServerArgs::from_arg_matches(&flags).unwrap()));
        let text = all_given();
        let all = read(&text).unwrap();
        assert_eq!(all.dir, Some("/var/lib/meridian/us-1".into()));
        assert_eq!(all.keys_durability, Some(KeysDurability::Disk));
        assert_eq!(all.keys_first.as_ref().map(Vec::len), Some(3));
        assert!(all.insecure_metrics);
        assert_eq!((all.scrub_days, all.copy_rate), (SCRUB_DAYS, COPY_MIB));
        for arg in command().get_arguments() {
            let long = arg.get_long().unwrap();
            let told = text.lines().filter(|line| line.starts_with(&format!("{long} = "))).count();
            assert_eq!(told, usize::from(!NOT_IN_FILE.contains(&long)), "{long}: {text}");
            assert!(arg.get_help().is_some(), "{long} is not explained");
        }
    }

    #[test]
    fn an_unknown_option_is_refused_with_its_line_and_its_name() {
        let text = format!("{}scrub-weeks = 1\n", all_given());
        let line = text.lines().count();
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(&format!("line {line}: no option scrub-weeks")), "{error}");
        let error = read("keys-shards = 2\n").unwrap_err().to_string();
        assert!(error.contains("--keys <HOST:PORT>"), "{error}");
        let error = read("insecure-metrics = true\n").unwrap_err().to_string();
        assert!(error.contains("--metrics-address <HOST:PORT>"), "{error}");
    }
}
