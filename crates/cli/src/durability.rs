//! `meridian fs durability`: when what is done in a directory, or with a file, is durable.

mod below;

use crate::fs::{not_here, placement_of};
use crate::output;
use anyhow::{Context, bail, ensure};
use below::Below;
use clap::Args;
use meridian_client::Durability;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The attribute that says when what is done there is durable.
const DURABILITY: &str = "user.meridian.durability";
/// Its value where nothing is set, with the mode of the mount behind it.
const INHERIT: &str = "inherit";

/// What to do.
#[derive(Debug, Args)]
pub struct DurabilityArgs {
    /// A directory or file in a mount
    path: PathBuf,
    /// What it shall have: sync, close or fsync, as of a mount; inherit, no mode of its own.
    /// Without it tell which it has
    #[arg(value_name = "MODE")]
    mode: Option<Wanted>,
    /// Give it to all directories and files below, too
    #[arg(long, requires = "mode")]
    recursive: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What it shall have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted(Option<Durability>);

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let own = Durability::of_word(text);
        let wrong = || format!("{text} is neither sync nor close nor fsync nor inherit");
        if own.is_some() || text == INHERIT { Ok(Wanted(own)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or(INHERIT, Durability::word))
    }
}

/// When what is done there is durable, and what says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// The word for it.
    mode: &'static str,
    /// Whether it has that itself, set or handed down; else it follows its mount.
    own: bool,
    /// The path from which on all directories down to this one have that mode; or [`MOUNT`], or
    /// [`DEFAULT`].
    said_by: PathBuf,
}

/// What says so where nothing is set, and its mount was told another mode than the default.
const MOUNT: &str = "mount";
/// What says so where its mount has the mode that mounts have by default.
const DEFAULT: &str = "default";

/// The answer with `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    path: &'a Path,
    #[serde(flatten)]
    shown: Shown,
    /// What is below, with `--recursive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    below: Option<Below>,
}

impl Shown {
    /// Of what has the first mode in `upwards`, or none of its own, in a mount with that mode. Then
    /// come the directories above.
    pub fn new(
        upwards: impl IntoIterator<Item = (PathBuf, Option<Durability>)>,
        mount: Durability,
    ) -> Shown {
        let mut upwards = upwards.into_iter().peekable();
        let Some(own) = upwards.peek().and_then(|(_, own)| *own) else {
            let says = if mount == Durability::default() { DEFAULT } else { MOUNT };
            return Shown { mode: mount.word(), own: false, said_by: says.into() };
        };
        let alike = upwards.take_while(|(_, mode)| *mode == Some(own));
        let said_by = alike.last().expect("it has that mode itself").0;
        Shown { mode: own.word(), own: true, said_by }
    }

    /// Where nothing is set in a mount with that mode.
    pub fn of_mount(mount: Durability) -> Shown {
        Shown::new([], mount)
    }
}

/// The mode of its own and the one that counts, from the value of [`DURABILITY`].
fn read(text: &str) -> Option<(Option<Durability>, Durability)> {
    match text.split_once(' ') {
        Some((INHERIT, mount)) => Some((None, Durability::of_word(mount)?)),
        Some(_) => None,
        None => Durability::of_word(text).map(|own| (Some(own), own)),
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { mode, own, said_by } = self;
        match own {
            true => write!(f, "{mode} (set at {})", said_by.display()),
            false if said_by == Path::new(MOUNT) => write!(f, "{mode} (as its mount was told)"),
            false => write!(f, "{mode} (the default of mounts)"),
        }
    }
}

/// Runs `meridian fs durability`.
///
/// # Errors
/// If the path is in no mount, or the file system refuses.
pub fn run(args: &DurabilityArgs) -> anyhow::Result<()> {
    let path = &args.path;
    let neither =
        || format!("{} is neither a directory nor a file: it has no mode", path.display());
    ensure!(may_have_mode(path), neither());
    placement_of(path)?; // It is in a mount.
    ensure!(!args.recursive || path.is_dir(), "{} is not a directory", path.display());
    let mut below = None;
    if let Some(wanted) = args.mode {
        let value = wanted.to_string();
        let set = rustix::fs::setxattr(path, DURABILITY, value.as_bytes(), XattrFlags::empty());
        set.map_err(|error| refusal(path, error))?;
        below = args.recursive.then(|| below::set(path, wanted)).transpose()?;
    }
    let shown = shown(path)?.with_context(neither)?;
    output::print(&match (args.json, &below) {
        (true, _) => serde_json::to_string_pretty(&Report { path, shown, below })?,
        (false, None) => format!("{} {shown}", path.display()),
        (false, Some(below)) => format!("{} {shown}: {below}", path.display()),
    })?;
    let refused = below.map_or(0, |below| below.refused);
    ensure!(refused == 0, "{refused} below it are somebody else's, and keep the mode they have");
    Ok(())
}

fn refusal(path: &Path, error: Errno) -> anyhow::Error {
    let shown = path.display();
    match error {
        Errno::OPNOTSUPP => anyhow::anyhow!(
            "{shown} cannot have a mode yet: not all nodes know of it. Upgrade all of them, and \
             let the feature level rise: see `meridian cluster level`"
        ),
        Errno::INVAL => anyhow::anyhow!("{shown} is neither a directory nor a file"),
        Errno::PERM | Errno::ACCESS => anyhow::anyhow!(
            "you may not set the mode of {shown}: it takes its owner, with the right to write to \
             it, or root"
        ),
        error => not_here(path, error),
    }
}

/// Whether it is a directory or a file, or a symbolic link to one, as far as can be seen.
fn may_have_mode(path: &Path) -> bool {
    path.metadata().map_or(true, |found| found.is_dir() || found.is_file())
}

/// When what is done there is durable; nothing of what is neither a directory nor a file.
///
/// # Errors
/// If the path is in no mount, or in one of an earlier version.
pub fn shown(path: &Path) -> anyhow::Result<Option<Shown>> {
    if !may_have_mode(path) {
        return Ok(None);
    }
    let (own, counts) = told(path)?;
    let whole =
        path.canonicalize().with_context(|| format!("cannot look at {}", path.display()))?;
    let above = whole.ancestors().skip(1).map_while(|dir| Some((dir.into(), told(dir).ok()?.0)));
    Ok(Some(Shown::new(std::iter::once((whole.clone(), own)).chain(above), counts)))
}

/// The mode of its own, and the one that counts, as its mount says.
fn told(path: &Path) -> anyhow::Result<(Option<Durability>, Durability)> {
    let mut value = [0; 64];
    match rustix::fs::getxattr(path, DURABILITY, &mut value) {
        Ok(len) => {
            let text = String::from_utf8_lossy(&value[..len]);
            read(&text).with_context(|| format!("{}: its mount says {text:?}", path.display()))
        }
        Err(Errno::NODATA) => bail!(
            "{}: its mount is of a version that knows of no modes of directories. Mount it anew",
            path.display()
        ),
        Err(error) => Err(not_here(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_read() {
        for mode in Durability::ALL {
            let word = mode.word();
            assert_eq!(word.parse(), Ok(Wanted(Some(mode))));
            assert_eq!(read(word), Some((Some(mode), mode)));
            assert_eq!(read(&format!("inherit {word}")), Some((None, mode)));
        }
        assert_eq!("inherit".parse(), Ok(Wanted(None)));
        assert!("never".parse::<Wanted>().is_err());
        for strange in ["", "inherit", "never", "inherit never", "fsync close"] {
            assert_eq!(read(strange), None, "{strange}");
        }
    }

    #[test]
    fn what_says_so_is_the_highest_path_with_that_mode_or_the_mount() {
        use Durability::{Close, Fsync, Sync};
        let shown = |modes: &[Option<Durability>], mount| {
            let paths = ["/m/us/a/b", "/m/us/a", "/m/us", "/m"].map(PathBuf::from);
            Shown::new(paths.into_iter().zip(modes.iter().copied()), mount).to_string()
        };
        let handed_down = [Some(Fsync), Some(Fsync), None, Some(Fsync)];
        assert_eq!(shown(&handed_down, Sync), "fsync (set at /m/us/a)");
        assert_eq!(shown(&[Some(Sync), Some(Fsync)], Close), "sync (set at /m/us/a/b)");
        assert_eq!(shown(&[Some(Close); 4], Sync), "close (set at /m)");
        assert_eq!(shown(&[None, Some(Fsync)], Sync), "sync (as its mount was told)");
        assert_eq!(shown(&[None, Some(Fsync)], Close), "close (the default of mounts)");
        assert_eq!(Shown::of_mount(Fsync).to_string(), "fsync (as its mount was told)");
    }
}
