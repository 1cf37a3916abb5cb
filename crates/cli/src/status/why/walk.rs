//! What a mount says of a path, name by name from its top on, asked by a process of its own.

use super::super::asking::Asking;
use crate::fs::placement_or;
use crate::quota::{self, Quota};
use crate::{cluster, durability, mount, output};
use anyhow::{Context, bail};
use meridian_mount::about::{self, About, State};
use rustix::process::{Flock, FlockType, fcntl_getlk};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

/// More symbolic links than that lead nowhere, as for the kernel.
const LINKS_MAX: usize = 40;

/// A path in a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it is mounted.
    pub top: PathBuf,
    /// What is below that; empty for the top itself.
    pub below: PathBuf,
}

/// What the mount has said so far.
#[derive(Debug, Default)]
pub struct Walk {
    /// The cluster file that commands in it use.
    pub cluster: Option<PathBuf>,
    pub region: Option<String>,
    pub state: Option<State>,
    /// Where the mount's top is placed, then each directory of the path, then the path itself, as
    /// far as that was told.
    pub placements: Vec<String>,
    /// What the system said at the one after them.
    pub error: Option<i32>,
    /// When what is done there is durable.
    pub durability: Option<String>,
    /// The quota that counts there; `None` within if there is none.
    pub quota: Option<Option<Quota>>,
    /// Which lock of `fcntl` somebody holds; `None` within if nobody does.
    pub lock: Option<Option<Lock>>,
}

/// A lock of `fcntl`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Whether others may not read either.
    exclusive: bool,
    start: u64,
    /// So many bytes; 0: to the end of the file.
    length: u64,
    /// The process that has it, on its machine.
    process: Option<i32>,
}

/// One line of what is said.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Cluster(PathBuf),
    Region(String),
    State(State),
    Placed(String),
    Failed(i32),
    Durability(String),
    Quota(Option<Quota>),
    Lock(Option<Lock>),
}

impl Place {
    /// Where that path is, if it is in one of these mounts. Nothing in them is asked: links are
    /// followed up to there.
    ///
    /// # Errors
    /// If it is in none.
    pub fn of(path: &Path, mounts: &[PathBuf]) -> anyhow::Result<Place> {
        let whole = match path.is_absolute() {
            true => path.into(),
            false => std::env::current_dir().context("no directory to begin in")?.join(path),
        };
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        let mut rest = names_of(&whole);
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            at.push(&name);
            if mounts.iter().any(|mount| at.starts_with(mount)) {
                continue;
            }
            let Ok(target) = std::fs::read_link(&at) else { continue };
            links += 1;
            if links > LINKS_MAX {
                bail!("{}: too many symbolic links", path.display());
            }
            at.pop();
            if target.is_absolute() {
                at = "/".into();
            }
            let mut names = names_of(&target);
            names.append(&mut rest);
            rest = names;
        }
        let Some(top) = mount::innermost(&at, mounts) else {
            bail!("{} is in no Meridian mount of this machine{}", path.display(), named(mounts));
        };
        let below = at.strip_prefix(top).context("it begins so")?.into();
        Ok(Place { top: top.clone(), below })
    }

    /// How many names it has below the top.
    pub fn depth(&self) -> usize {
        self.below.components().count()
    }

    /// What its first names lead to, from the mount's top on.
    pub fn first(&self, names: usize) -> String {
        let below = self.below.components().take(names).collect::<PathBuf>();
        Path::new("/").join(below).display().to_string()
    }
}

/// The names that a path has, with `..` among them.
fn names_of(path: &Path) -> VecDeque<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.into()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(name).collect()
}

fn named(mounts: &[PathBuf]) -> String {
    let named: Vec<_> = mounts.iter().map(|dir| dir.display().to_string()).collect();
    match named.is_empty() {
        true => ", where none is: `meridian mount` makes one, and `meridian status` without --why \
                 tells of the whole cluster"
            .into(),
        false => format!(": name a path below {}", named.join(" or ")),
    }
}

impl Walk {
    fn note(&mut self, said: Said) {
        match said {
            Said::Cluster(cluster) => self.cluster = Some(cluster),
            Said::Region(region) => self.region = Some(region),
            Said::State(state) => self.state = Some(state),
            Said::Placed(placement) => self.placements.push(placement),
            Said::Failed(error) => self.error = Some(error),
            Said::Durability(mode) => self.durability = Some(mode),
            Said::Quota(quota) => self.quota = Some(quota),
            Said::Lock(lock) => self.lock = Some(lock),
        }
    }

    /// Takes what is said until `end`, or until it is enough.
    pub fn hear(&mut self, asking: &mut Asking, end: Instant, enough: impl Fn(&Walk) -> bool) {
        while !enough(self) {
            let Some(line) = asking.line(end) else { return };
            if let Ok(said) = serde_json::from_str(&line) {
                self.note(said);
            }
        }
    }
}

/// What to start so that all that is said.
pub fn words(place: &Place) -> [&std::ffi::OsStr; 4] {
    let (top, below) = (place.top.as_os_str(), place.below.as_os_str());
    ["--of-mount".as_ref(), top, "--along".as_ref(), below]
}

fn say(said: &Said) -> anyhow::Result<()> {
    output::print(&serde_json::to_string(said)?)
}

/// Says all that, as far as the mount answers.
///
/// # Errors
/// If nobody listens.
pub fn tell(top: &Path, below: &Path) -> anyhow::Result<()> {
    if let Some(cluster) = cluster::of_mount(top) {
        say(&Said::Cluster(cluster))?;
    }
    if let Ok(about) = About::of(top) {
        say(&Said::Region(about.region))?;
    }
    if let Ok(state) = about::state_of(top) {
        say(&Said::State(state))?;
    }
    let mut at = top.to_path_buf();
    let names = std::iter::once(None).chain(below.components().map(Some));
    for name in names {
        at.extend(name);
        match placement_or(&at) {
            Ok(placement) => say(&Said::Placed(placement))?,
            Err(error) => return say(&Said::Failed(error.raw_os_error())),
        }
    }
    // A mount of an earlier version tells nothing of it.
    if let Some(mode) = durability::shown(&at).ok().flatten() {
        say(&Said::Durability(mode.to_string()))?;
    }
    if let Ok(quota) = quota::shown(&at) {
        say(&Said::Quota(quota))?;
    }
    match lock_of(&at) {
        Some(lock) => say(&Said::Lock(lock)),
        None => Ok(()),
    }
}

/// The lock on a file that keeps others from writing to all of it, if it may be opened.
fn lock_of(at: &Path) -> Option<Option<Lock>> {
    at.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(at).ok()?;
    let lock = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()?;
    Some(lock.map(|lock| Lock {
        exclusive: lock.typ == FlockType::WriteLock,
        start: lock.start,
        length: lock.length,
        process: lock.pid.map(|pid| pid.as_raw_nonzero().get()),
    }))
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lock { exclusive, start, length, process } = self;
        let kind = if *exclusive { "exclusively" } else { "for reading" };
        write!(f, "from byte {start} ")?;
        match length {
            0 => write!(f, "to the end")?,
            length => write!(f, "on, {length} bytes")?,
        }
        write!(f, ", {kind}")?;
        process.map_or(Ok(()), |process| write!(f, ", by process {process} of its machine"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_in_its_mount_though_links_lead_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let mounts = [at.join("mnt"), at.join("mnt/us/inner")];
        std::fs::create_dir(&mounts[0]).unwrap();
        std::os::unix::fs::symlink(at.join("mnt/us"), at.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", at.join("loop")).unwrap();
        let of = |path: &str| {
            let place = Place::of(&at.join(path), &mounts);
            place.map(|of| (of.top.strip_prefix(&at).unwrap().to_path_buf(), of.below))
        };
        let place = |top: &str, below: &str| (top.into(), below.into());
        assert_eq!(of("mnt").unwrap(), place("mnt", ""));
        assert_eq!(of("mnt/us/./a/../b").unwrap(), place("mnt", "us/b"));
        assert_eq!(of("link/a").unwrap(), place("mnt", "us/a"));
        assert_eq!(of("link/../eu").unwrap(), place("mnt", "eu"), "the link is followed first");
        assert_eq!(of("mnt/us/inner/x").unwrap(), place("mnt/us/inner", "x"));
        let error = of("mnts/us").unwrap_err().to_string();
        assert!(error.contains("in no Meridian mount") && error.contains("/mnt or "), "{error}");
        assert!(of("loop/x").unwrap_err().to_string().contains("too many symbolic links"));
        let error = Place::of(&at, &[]).unwrap_err().to_string();
        assert!(error.contains("where none is: `meridian mount` makes one"), "{error}");
    }

    #[test]
    fn the_first_names_lead_from_the_top_on() {
        let place = Place { top: "/mnt".into(), below: "us/a".into() };
        let first: Vec<_> = (0..=place.depth()).map(|names| place.first(names)).collect();
        assert_eq!(first, ["/", "/us", "/us/a"]);
        assert_eq!(words(&place).map(|word| word.to_str().unwrap())[3], "us/a");
    }

    #[test]
    fn what_is_said_is_heard_as_it_was() {
        let lock = Lock { exclusive: true, start: 4, length: 0, process: Some(7) };
        assert_eq!(
            lock.to_string(),
            "from byte 4 to the end, exclusively, by process 7 of its machine"
        );
        let quota = Quota::read("bytes=1/2 inodes=3/none counting");
        let said = [
            Said::Cluster("/c".into()),
            Said::Region("us".into()),
            Said::Placed("global".into()),
            Said::Placed("us".into()),
            Said::Durability("close".into()),
            Said::Quota(quota.clone()),
            Said::Lock(Some(lock)),
            Said::Failed(libc::ETIMEDOUT),
        ];
        let mut walk = Walk::default();
        for said in said {
            let line = serde_json::to_string(&said).unwrap();
            walk.note(serde_json::from_str(&line).unwrap());
        }
        assert_eq!(walk.placements, ["global", "us"]);
        assert_eq!((walk.quota, walk.error), (Some(quota), Some(libc::ETIMEDOUT)));
        assert_eq!(walk.lock.unwrap().unwrap().process, Some(7));
        assert_eq!((walk.region.as_deref(), walk.cluster), (Some("us"), Some("/c".into())));
    }
}
