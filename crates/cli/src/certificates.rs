//! Certificates: which one a command shows, where they lie, and how they are made.
//!
//! They lie in the directory `tls` beside the cluster file: `ca.pem` says whose signature counts,
//! and each principal has `NAME.pem` and `NAME.key`. Whoever has `ca.key` can make more.

use crate::cluster;
use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use meridian_cluster::topology::ClusterFile;
use meridian_core::principal::{Role, is_name};
use meridian_terminal::output;
use meridian_transport::authority::THIS_MACHINE;
use meridian_transport::{Authority, Credentials, Files, Issued, Security};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The name of the directory beside the cluster file.
pub const TLS_DIR: &str = "tls";
/// What there is of an authority: its certificate for all, its key for who signs.
const AUTHORITY: &str = "ca";
/// Those that a new cluster has beside nodes.
const CLIENT: &str = "client";
const ADMIN: &str = "admin";
/// A node that is called so would have no certificate of its own.
pub const WATCHER: &str = "watcher";
/// For so many days a certificate is good unless something else is said.
const DAYS: u32 = 365;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Which certificate to show. A cluster that speaks plain text needs none.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsArgs {
    /// Show the certificate in FILE [default: in the directory tls beside the cluster file, that of
    /// the node, or client.pem; admin.pem to change the cluster]
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<PathBuf>,
    /// Its key, which nobody but its owner may read [default: the same with .key at its end]
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// The certificates of authorities whose signature counts [default: ca.pem beside the
    /// certificate]
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_ca: Option<PathBuf>,
}

/// As whom a command shows itself, if it is not told.
#[derive(Clone, Copy, Debug)]
pub enum Shown<'a> {
    /// As this node.
    Node(&'a str),
    /// As whoever uses files and keys.
    Client,
    /// As whoever may change the cluster, if there is such a certificate.
    Admin,
}

impl TlsArgs {
    /// How connections with the cluster are secured whose file is that.
    ///
    /// # Errors
    /// If there is no certificate that can be used.
    pub fn security(
        &self,
        path: &Path,
        file: &ClusterFile,
        shown: Shown<'_>,
    ) -> anyhow::Result<Security> {
        if file.insecure_plain_text {
            return Ok(Security::InsecurePlainText);
        }
        let certificate = match &self.tls_certificate {
            Some(named) => named.clone(),
            None => found(&dir_of(path), shown)?,
        };
        self.open(&certificate, &file.cluster.to_string())
    }

    /// Whether a certificate was named.
    pub fn is_given(&self) -> bool {
        self.tls_certificate.is_some()
    }

    /// Words that say the same.
    pub fn words(&self) -> Vec<std::ffi::OsString> {
        let named = [
            ("--tls-certificate", &self.tls_certificate),
            ("--tls-key", &self.tls_key),
            ("--tls-ca", &self.tls_ca),
        ];
        let given = named.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        given.flat_map(|(flag, path)| [flag.into(), path.into()]).collect()
    }

    fn open(&self, certificate: &Path, cluster: &str) -> anyhow::Result<Security> {
        let beside = certificate.parent().unwrap_or(Path::new("")).join("ca.pem");
        let files = Files {
            authority: self.tls_ca.clone().unwrap_or(beside),
            key: self.tls_key.clone().unwrap_or(certificate.with_extension("key")),
            certificate: certificate.into(),
        };
        let security = Security::tls(Credentials::open(files, cluster)?);
        ensure!(
            !security.own().only_watches(),
            "{} is the certificate of a watcher, who may ask what --metrics-address tells and \
             nothing else: name that of a client or an admin",
            certificate.display()
        );
        Ok(security)
    }
}

/// The directory of certificates that belongs to a cluster file.
pub fn dir_of(cluster: &Path) -> PathBuf {
    // Where it is, and not a link to it.
    let real = cluster.canonicalize().unwrap_or_else(|_| cluster.into());
    real.parent().unwrap_or(Path::new("")).join(TLS_DIR)
}

/// The certificate to show if none is named.
fn found(dir: &Path, shown: Shown<'_>) -> anyhow::Result<PathBuf> {
    let wanted = match shown {
        Shown::Node(name) => vec![name],
        Shown::Client => vec![CLIENT, ADMIN],
        Shown::Admin => vec![ADMIN, CLIENT],
    };
    let path = |name: &str| dir.join(format!("{name}.pem"));
    if let Some(found) = wanted.iter().map(|name| path(name)).find(|path| path.exists()) {
        return Ok(found);
    }
    // On the machine of a node there is the node's, which can look, too.
    if !matches!(shown, Shown::Node(_))
        && let [only] = &with_keys(dir)[..]
    {
        return Ok(path(only));
    }
    bail!(
        "no certificate {}: bring it and its key here, name another by --tls-certificate, or make \
         one with `meridian certify` where {AUTHORITY}.key is",
        path(wanted[0]).display()
    )
}

/// Whose certificates lie there with their keys.
fn with_keys(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?.strip_suffix(".pem")?.to_string();
        let has_key = dir.join(format!("{name}.key")).exists();
        (has_key && name != AUTHORITY && name != WATCHER).then_some(name)
    });
    names.collect()
}

/// Makes the authority of a new cluster, and a certificate for each of its nodes, an admin, a
/// client and a watcher.
///
/// # Errors
/// If the directory is there already, or the disk refuses.
pub fn make(dir: &Path, file: &ClusterFile) -> anyhow::Result<()> {
    ensure!(
        !dir.exists(),
        "{} is there already: another cluster's certificates may be in it",
        dir.display()
    );
    DirBuilder::new().mode(0o700).create(dir).with_context(|| cannot_write(dir))?;
    let (authority, issued) = Authority::new(&file.cluster.to_string())?;
    keep(dir, AUTHORITY, &issued)?;
    for node in &file.nodes {
        keep(dir, &node.name, &authority.issue(Role::Node, &node.name, DAYS * DAY)?)?;
    }
    keep(dir, ADMIN, &authority.issue(Role::Admin, ADMIN, DAYS * DAY)?)?;
    keep(dir, WATCHER, &authority.issue(Role::Watcher, WATCHER, DAYS * DAY)?)?;
    keep(dir, CLIENT, &authority.issue(Role::Client, CLIENT, DAYS * DAY)?)
}

/// Makes a certificate for a node of the cluster in whose directory the authority's key is, unless
/// it has one.
///
/// # Errors
/// If there is no such key, or the disk refuses.
pub fn make_for_node(cluster: &Path, file: &ClusterFile, name: &str) -> anyhow::Result<()> {
    let dir = dir_of(cluster);
    if dir.join(format!("{name}.pem")).exists() {
        return Ok(());
    }
    let authority = authority(&dir.join("ca.key"), file)?;
    keep(&dir, name, &authority.issue(Role::Node, name, DAYS * DAY)?)
}

/// Brings a node's certificate and key to the directory beside its own cluster file; whether they
/// are there then.
///
/// # Errors
/// If they cannot be read or written.
pub fn bring(name: &str, from: &Path, to: &Path) -> anyhow::Result<bool> {
    let (from, to) = (dir_of(from), dir_of(to));
    let own = [format!("{name}.pem"), format!("{name}.key"), "ca.pem".into()];
    let is_there = |dir: &Path| own.iter().all(|file| dir.join(file).exists());
    if is_there(&to) || !is_there(&from) {
        return Ok(is_there(&to));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&to).with_context(|| cannot_write(&to))?;
    for file in &own {
        let path = from.join(file);
        let text = fs::read_to_string(&path);
        write(&to.join(file), &text.with_context(|| format!("cannot read {}", path.display()))?)?;
    }
    Ok(true)
}

fn authority(key: &Path, file: &ClusterFile) -> anyhow::Result<Authority> {
    let text = fs::read_to_string(key).with_context(|| {
        format!("cannot read {}: certificates are made where the authority's key is", key.display())
    })?;
    Ok(Authority::with_key(&file.cluster.to_string(), &text)?)
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Writes certificate and key, in the place of earlier ones.
fn keep(dir: &Path, name: &str, issued: &Issued) -> anyhow::Result<()> {
    write(&dir.join(format!("{name}.key")), &issued.key)?;
    write(&dir.join(format!("{name}.pem")), &issued.certificate)
}

/// Writes a file for its owner alone, so that a reader sees the old or the new one.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let beside = path.with_extension(format!("new-{}", std::process::id()));
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    written().with_context(|| cannot_write(path))
}

/// Whom to make a certificate for.
#[derive(Debug, Args)]
#[command(after_help = "\
`meridian init` makes those of the first nodes, an admin, a client and a watcher. This makes one for
who comes later, and a new one before the old one has expired: bring it to where the old one lies,
the key first, and servers and mounts take it up for new connections within a second of the next;
connections that are open go on.

A node speaks for itself and for no other. A client uses files and keys. An admin may change the
cluster, too (`meridian cluster`). A watcher may ask what servers and mounts tell at
--metrics-address, as Prometheus does, and nothing else.

Examples:
  meridian certify us-4 --role node --cluster cluster.json
  meridian certify alice --role client --cluster cluster.json --days 90
  meridian certify prometheus --role watcher --cluster cluster.json")]
pub struct CertifyArgs {
    /// The node as the cluster file calls it, or what the client, admin or watcher is to be called
    name: String,
    /// What it is
    #[arg(long, value_name = "ROLE")]
    role: RoleArg,
    /// The client mounts with --metrics-address: it shows its certificate also to who asks there,
    /// and the certificate names the host NAME
    #[arg(long)]
    watched: bool,
    /// The cluster file
    #[arg(long, value_name = "FILE", default_value = cluster::CLUSTER_FILE)]
    cluster: PathBuf,
    /// How long it is good
    #[arg(long, value_name = "DAYS", default_value_t = DAYS,
        value_parser = clap::value_parser!(u32).range(1..=7300))]
    days: u32,
    /// The authority's key [default: tls/ca.key beside the cluster file]
    #[arg(long, value_name = "FILE")]
    ca_key: Option<PathBuf>,
    /// Write NAME.pem and NAME.key into DIR [default: where the authority's key is]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What a certificate says its holder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleArg {
    /// A server of the cluster
    Node,
    /// Uses files and keys
    Client,
    /// May change the cluster, too
    Admin,
    /// Only asks how servers and mounts are
    Watcher,
}

impl From<RoleArg> for Role {
    fn from(arg: RoleArg) -> Role {
        match arg {
            RoleArg::Node => Role::Node,
            RoleArg::Client => Role::Client,
            RoleArg::Admin => Role::Admin,
            RoleArg::Watcher => Role::Watcher,
        }
    }
}

/// Runs `meridian certify`.
///
/// # Errors
/// If there is no authority, or the disk refuses.
pub fn run(args: &CertifyArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    ensure!(
        is_name(name) && name != AUTHORITY,
        "{name:?} cannot be a name: 1 to 64 letters, digits, dots and dashes, and not {AUTHORITY}"
    );
    let (topology, file) = cluster::read(&args.cluster)?;
    let role = Role::from(args.role);
    if role == Role::Node && topology.node_named(name).is_none() {
        bail!("no node {name} in {}: add it first (meridian cluster)", args.cluster.display());
    }
    if role != Role::Node && topology.node_named(name).is_some() {
        bail!("{name} is a node, whose certificate this would replace: call it something else");
    }
    if args.watched && (role != Role::Client || name == THIS_MACHINE) {
        bail!(
            "--watched is for clients that mount, and not for one called {THIS_MACHINE}, as each \
             node is to who calls it: leave it out, or choose another role or name"
        );
    }
    let key = args.ca_key.clone().unwrap_or_else(|| dir_of(&args.cluster).join("ca.key"));
    let authority = authority(&key, &file)?;
    let issued = match args.watched {
        true => authority.issue_watched(name, args.days * DAY)?,
        false => authority.issue(role, name, args.days * DAY)?,
    };
    let beside = key.parent().unwrap_or(Path::new("")).to_path_buf();
    let dir = args.out.clone().unwrap_or(beside);
    keep(&dir, name, &issued)?;
    output::print(&format!(
        "{dir}/{name}.pem and {dir}/{name}.key: {} {name}, for {} days",
        role.name(),
        args.days,
        dir = dir.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
