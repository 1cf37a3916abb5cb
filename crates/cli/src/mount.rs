//! `meridian mount`, and what the demo needs to mount.

mod background;
pub mod guard;
pub mod helper;
mod watch;

use crate::certificates::{Shown, TlsArgs};
use crate::configuration::Newest;
use crate::log_options::LogOptions;
use crate::signals::Signals;
use crate::{cluster, configuration, last, output};
use anyhow::{Context, bail};
use clap::Args;
use meridian_client::{Client, ClientOptions, Durability};
use meridian_cluster::Topology;
use meridian_core::GroupId;
use meridian_core::principal::{Role, Speaker};
use meridian_fs::{Ino, Place};
use meridian_mount::Access;
use meridian_mount::table::{self, Line};
use meridian_terminal::manager::Manager;
use meridian_terminal::note;
use meridian_transport::Security;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// What is logged by who mounts.
pub const WARNINGS: &str = "warn";

/// What to mount where.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs until Ctrl-C or SIGTERM, then unmounts. DIR is made if it is not there, and removed again.
Nodes that come to the cluster are used, those that go are not asked any more.

Examples:
  meridian mount --region eu /mnt/eu
  meridian mount --cluster DATA/cluster.json --region ap ./ap
  meridian mount --region us -o allow_other,noatime /srv    for all users of this machine
  meridian mount --region us --background ./us              returns when it is mounted
  ln -s $(command -v meridian) /sbin/mount.meridian         then `mount` and fstab know it:
  mount -t meridian /etc/meridian/cluster.json /srv -o region=us,allow_other")]
pub struct MountArgs {
    /// An empty or new directory
    dir: PathBuf,
    /// Where this client is: nodes of that region are asked first
    #[arg(long)]
    region: String,
    /// The cluster [default: MERIDIAN_CLUSTER, or that of the demo started last]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    how: HowToMount,
    /// Go on in the background once it is mounted; `umount DIR` ends it. What it says later goes
    /// to a file that is named then
    #[arg(long, conflicts_with = "foreground")]
    background: bool,
    /// Stay in the foreground, as it does without this word
    #[arg(long)]
    foreground: bool,
    /// Tell who watches the mount how it is, at https://HOST:PORT/metrics and /healthz. Who asks
    /// shows the certificate of a watcher, an admin, a node or this client, whose own is to be one
    /// of `meridian certify --watched`
    #[arg(long, value_name = "HOST:PORT")]
    metrics_address: Option<String>,
    /// Tell that in plain text (http) to whoever reaches HOST:PORT, without asking who that is; a
    /// cluster that speaks plain text does so anyhow
    #[arg(long, requires = "metrics_address")]
    insecure_metrics: bool,
    #[command(flatten)]
    log: LogOptions,
    /// What `df` and tables of mounts show as the source
    #[arg(long, value_name = "WORD", hide = true, default_value = "meridian")]
    source: OsString,
}

/// Who may do what through a mount.
#[derive(Clone, Copy, Debug, Args)]
pub struct HowToMount {
    /// As for `mount`: ro, allow_other (other users, too), suid, dev, noexec, noatime; and on_cut=,
    /// durability= and ask_always
    #[arg(short = 'o', long = "options", value_name = "WORDS", default_value = "")]
    #[arg(hide_default_value = true)]
    access: Words,
    /// Ask for names and attributes each time, instead of keeping them until another client changes
    /// them: much slower. But a mount that keeps them delays others by 6 seconds when it is killed
    #[arg(long)]
    ask_always: bool,
    /// When what programs do is durable: sync, when each call returns; close, when a file is closed
    /// or synced, and names at once; fsync, as on a local disk, when it is synced, somebody else
    /// looks, or a second or two have passed, in the order in which it was done. Directories with
    /// a mode of their own go by that (`meridian fs durability`)
    #[arg(long, value_name = "WHEN", default_value = "close")]
    durability: When,
    /// What becomes of calls that need a region which is cut off: wait:DURATION, they wait until
    /// that has lasted so long (later ones fail at once); or fail, they fail as soon as it is known
    #[arg(long, value_name = "WHAT", default_value = "wait:30s")]
    on_cut: OnCut,
}

/// For how long calls wait for a region that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnCut(pub Duration);

impl Default for OnCut {
    fn default() -> OnCut {
        OnCut(Duration::from_secs(30))
    }
}

impl FromStr for OnCut {
    type Err = String;

    fn from_str(text: &str) -> Result<OnCut, String> {
        let wrong = || format!("{text} is neither fail nor wait:DURATION, as wait:30s");
        let Some(duration) = text.strip_prefix("wait:") else {
            return if text == "fail" { Ok(OnCut(Duration::ZERO)) } else { Err(wrong()) };
        };
        duration_of(duration).map(OnCut).ok_or_else(wrong)
    }
}

/// When what programs do is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct When(pub Durability);

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<When, String> {
        let wrong = || format!("{text} is neither sync nor close nor fsync");
        Durability::of_word(text).map(When).ok_or_else(wrong)
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.word())
    }
}

/// A number with a unit, or of seconds.
pub fn duration_of(text: &str) -> Option<Duration> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let split = |(unit, ms): &(&str, u64)| Some((text.strip_suffix(unit)?, *ms));
    let (number, ms) = units.iter().find_map(split).unwrap_or((text, 1000));
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(ms));
    number.map(Duration::from_millis)
}

impl fmt::Display for OnCut {
    /// Words that are read back to the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wait:{}ms", self.0.as_millis())
    }
}

impl HowToMount {
    fn asks_always(self) -> bool {
        self.ask_always || self.access.ask_always
    }

    /// The words of `-o`, of which those about cuts and durability are no words of the kernel.
    fn words(self) -> (Access, OnCut, When) {
        let Words { access, on_cut, durability, .. } = self.access;
        (access, on_cut.unwrap_or(self.on_cut), durability.unwrap_or(self.durability))
    }
}

/// The words of `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Words {
    access: Access,
    on_cut: Option<OnCut>,
    durability: Option<When>,
    ask_always: bool,
}

impl FromStr for Words {
    type Err = String;

    fn from_str(words: &str) -> Result<Words, String> {
        let (mut all, mut rest) = (Words::default(), Vec::new());
        for word in words.split(',') {
            match word.split_once('=') {
                Some(("on_cut", what)) => all.on_cut = Some(what.parse()?),
                Some(("durability", when)) => all.durability = Some(when.parse()?),
                None if word == "ask_always" => all.ask_always = true,
                _ => rest.push(word),
            }
        }
        Ok(Words { access: rest.join(",").parse()?, ..all })
    }
}

/// Runs `meridian mount`.
///
/// # Errors
/// If it cannot be mounted, or not unmounted.
pub fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if !args.background {
        args.log.begin(WARNINGS)?;
    }
    check_fuse()?;
    let cluster = cluster::named_or_last(args.cluster.as_deref())?;
    if args.background {
        output::print(&background::start(args, &cluster)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let point = MountPoint::prepare(&args.dir)?.with(args.how).shown_as(&args.source);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let manager = Manager::from_environment().context("cannot reach the service manager")?;
        let newest = configuration::newest(&cluster, &args.tls, Shown::Client).await?;
        let open = |address: &str| watch::open(address, args.insecure_metrics, &newest);
        let door = args.metrics_address.as_deref().map(open).transpose()?;
        let watchers = door.as_ref().map(|(_, security)| security.clone());
        let Newest { file, topology, security, .. } = newest;
        let mut following = configuration::follow(&file, security.clone());
        let own = security.clone();
        let root = root_of(&topology, &security);
        let mount = Mount::start((topology, security), &args.region, point.of(&cluster))?;
        if let Some(door) = door {
            let client = (mount.client.clone(), own.clone());
            let at = mount.path().display().to_string();
            tokio::spawn(watch::serve(door, client, args.region.clone(), at));
        }
        let place = format!("mounted at {} in region {}", mount.path().display(), args.region);
        output::print(&format!("{place}; Ctrl-C unmounts"))?;
        if let Some(manager) = &manager {
            manager.ready(&place);
        }
        loop {
            tokio::select! {
                _ = signals.next() => break,
                () = mount.unmounted() => {
                    note!("unmounted by somebody else");
                    break;
                }
                newer = configuration::next(&mut following) => {
                    configuration::keep_file(&cluster, &newer);
                    let topology = Topology::new(&newer)?;
                    if let Some(watchers) = &watchers {
                        watchers.shut_out(topology.revoked.clone());
                    }
                    if root_of(&topology, &own) != root {
                        note!("this client may work below another directory now: mount again");
                    }
                    mount.configured(topology);
                }
            }
        }
        if let Some(manager) = &manager {
            manager.stopping();
        }
        mount.stop().await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// An empty directory to mount on, and how.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    made: bool,
    access: Access,
    keep_looks: bool,
    on_cut: OnCut,
    durability: When,
    source: OsString,
    cluster: Option<PathBuf>,
}

impl MountPoint {
    /// Clears what a killed process left mounted at `path`, and makes the directory if need be.
    ///
    /// # Errors
    /// If something lives there, or is in the way.
    pub fn prepare(path: &Path) -> anyhow::Result<MountPoint> {
        let path = absolute(path)?;
        clear_stale(&path)?;
        if is_mounted(&path)? {
            bail!(
                "something is mounted at {0} already: stop that demo, `umount {0}`, or name another directory",
                path.display()
            );
        }
        let made = match fs::create_dir(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
        };
        let mut entries =
            fs::read_dir(&path).with_context(|| format!("cannot mount on {}", path.display()))?;
        if entries.next().is_some() {
            bail!("{} is not empty: mount on an empty or new directory", path.display());
        }
        let (access, source) = (Access::default(), "meridian".into());
        let (keep_looks, on_cut, cluster) = (true, OnCut::default(), None);
        let durability = When::default();
        Ok(MountPoint { path, made, access, keep_looks, on_cut, durability, source, cluster })
    }

    /// It is mounted in this way.
    pub fn with(mut self, how: HowToMount) -> MountPoint {
        (self.access, self.on_cut, self.durability) = how.words();
        self.keep_looks = !how.asks_always();
        self
    }

    /// Commands in it are to use that cluster file.
    pub fn of(mut self, cluster: &Path) -> MountPoint {
        self.cluster = cluster.canonicalize().ok();
        self
    }

    /// Tables of mounts show that as what is mounted.
    pub fn shown_as(mut self, source: &OsStr) -> MountPoint {
        self.source = source.into();
        self
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_dir(&self.path); // Refused as long as something is mounted on it.
        }
    }
}

/// Unmounts what is mounted at `path` if its process has gone; does nothing otherwise.
///
/// # Errors
/// If it cannot be unmounted.
pub fn clear_stale(path: &Path) -> anyhow::Result<()> {
    let what = || format!("do it by hand with `umount -l {}`", path.display());
    if meridian_mount::clear_stale(path).with_context(what)? {
        note!("unmounted {}, left by a process that was killed", path.display());
    }
    Ok(())
}

/// Names what is missing on this machine for any mount.
///
/// # Errors
/// If there is no `/dev/fuse`, or it may not be opened.
pub fn check_fuse() -> anyhow::Result<()> {
    let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") else {
        return Ok(());
    };
    match error.kind() {
        std::io::ErrorKind::NotFound => bail!(
            "/dev/fuse is missing: `modprobe fuse`, or start the container with --device /dev/fuse --cap-add SYS_ADMIN"
        ),
        std::io::ErrorKind::PermissionDenied => {
            bail!(
                "/dev/fuse may not be opened: run as root, or make it readable and writable for you"
            )
        }
        _ => bail!("/dev/fuse cannot be opened: {error}: `modprobe fuse`"),
    }
}

/// A mounted file system.
pub struct Mount {
    client: Client,
    // Before the mount point, which is removed only when nothing is mounted on it any more.
    mounted: meridian_mount::Mount,
    point: MountPoint,
}

impl Mount {
    /// Mounts the cluster at `point`, for a client in `region`. Needs a tokio runtime around it, on
    /// the main thread: when that ends the guard takes the mount for dead.
    ///
    /// # Errors
    /// If there is no such region, or mounting is not permitted.
    pub fn start(
        (topology, security): (Topology, Security),
        region: &str,
        point: MountPoint,
    ) -> anyhow::Result<Mount> {
        let MountPoint { path, access, keep_looks, on_cut, durability, source, cluster, .. } =
            &point;
        let options = ClientOptions::new(region);
        let root = root_of(&topology, &security);
        let options = ClientOptions {
            security,
            root,
            keep_looks: *keep_looks,
            durability: durability.0,
            cluster_file: cluster.clone(),
            on_cut: on_cut.0,
            timeout: options.timeout.max(on_cut.0),
            ..options
        };
        let client = Client::connect(topology, &options)?;
        let guard = Some(guard::command());
        let mounted = meridian_mount::mount_guarded(client.clone(), path, *access, source, guard)?;
        Ok(Mount { client, mounted, point })
    }

    /// The cluster is configured so now.
    pub fn configured(&self, topology: Topology) {
        self.client.configured(topology);
    }

    /// Where.
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// Waits until somebody else unmounts it.
    pub async fn unmounted(&self) {
        self.mounted.wait().await;
    }

    /// Stores what is still buffered and unmounts, even if a program is still in it.
    ///
    /// # Errors
    /// If the kernel refuses, or not all could be stored.
    pub async fn stop(self) -> anyhow::Result<()> {
        let Mount { mounted, point, .. } = self;
        let result = mounted.unmount().await;
        drop(point);
        Ok(result?)
    }
}

/// What a mount with that certificate shows: the directory below which its client may work, or all.
fn root_of(topology: &Topology, security: &Security) -> Place {
    let Speaker::Known(own) = security.own() else { return Place::ROOT };
    let grant = topology.grants.get(&own.name).filter(|_| own.role == Role::Client);
    let below = grant.and_then(|grant| grant.below.as_ref());
    below.map_or(Place::ROOT, |below| Place {
        ino: Ino(below.ino),
        partition: GroupId(below.partition),
    })
}

/// Clears what the demo that was started last has left if it was killed.
///
/// # Errors
/// If that does not work.
pub fn clear_last() -> anyhow::Result<()> {
    if last::read().is_some()
        && let Some(mount) = crate::data::clear_after_killed_demo()?
    {
        clear_stale(&mount)?;
    }
    Ok(())
}

/// The path without `.`, `..` and links, though it may not be there itself or may be a dead mount.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return path.canonicalize().with_context(|| path.display().to_string());
    };
    let parent = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    let parent = parent
        .canonicalize()
        .with_context(|| format!("no directory {} to mount in", parent.display()))?;
    Ok(parent.join(name))
}

/// Whether the kernel lists `path` as a place where something is mounted.
fn is_mounted(path: &Path) -> anyhow::Result<bool> {
    Ok(table_of_mounts()?.iter().any(|line| line.at == path))
}

/// Where clusters are mounted on this machine, as far as this process sees it.
///
/// # Errors
/// If the table of mounts cannot be read.
pub fn all_here() -> anyhow::Result<Vec<PathBuf>> {
    let ours = |line: &Line| line.kind == meridian_mount::about::TYPE;
    Ok(table_of_mounts()?.into_iter().filter(ours).map(|line| line.at).collect())
}

/// In which of these mounts a path is.
pub fn innermost<'a>(path: &Path, mounts: &'a [PathBuf]) -> Option<&'a PathBuf> {
    let around = mounts.iter().filter(|mount| path.starts_with(mount));
    around.max_by_key(|mount| mount.components().count())
}

fn table_of_mounts() -> anyhow::Result<Vec<Line>> {
    table::read().context("cannot read the table of mounts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_calls_in_a_cut_is_read() {
        let of = |text: &str| text.parse::<OnCut>().map(|on_cut| on_cut.0.as_millis());
        assert_eq!(
            ["fail", "wait:5s", "wait:2m", "wait:7"].map(of),
            [0, 5000, 120_000, 7000].map(Ok)
        );
        assert!(of("wait:").is_err() && of("hang").is_err() && of("wait:5x").is_err());
        let words = "ro,on_cut=wait:250ms,ask_always,noatime".parse::<Words>().unwrap();
        assert!(words.access.read_only && words.access.noatime && words.ask_always);
        assert_eq!(words.on_cut.map(|on_cut| on_cut.to_string()), Some("wait:250ms".into()));
    }

    #[test]
    fn only_an_empty_directory_is_mounted_on() {
        let dir = tempfile::tempdir().unwrap();
        let error = MountPoint::prepare(&dir.path().join("a/b")).unwrap_err().to_string();
        assert!(error.contains("no directory"), "{error}");
        let point = MountPoint::prepare(&dir.path().join("a")).unwrap();
        assert!(point.path().is_dir());
        drop(point);
        assert!(!dir.path().join("a").exists(), "made here, so removed here");
        fs::write(dir.path().join("file"), "").unwrap();
        let error = MountPoint::prepare(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
    }
}
