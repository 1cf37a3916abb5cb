//! `meridian fs durability`: when what is done in a directory, or with a file, is durable.

use crate::fs::{not_here, placement_of};
use crate::output;
use anyhow::{Context, bail, ensure};
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

/// When what is done there is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// The word for it.
    mode: &'static str,
    /// Whether it has that itself; else it follows its mount.
    own: bool,
}

/// The answer with `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    path: &'a Path,
    #[serde(flatten)]
    shown: Shown,
}

impl Shown {
    /// From the value of [`DURABILITY`].
    fn read(text: &str) -> Option<Shown> {
        let (word, own) = match text.split_once(' ') {
            Some((INHERIT, by_default)) => (by_default, false),
            Some(_) => return None,
            None => (text, true),
        };
        Some(Shown { mode: Durability::of_word(word)?.word(), own })
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.own { "set here, or handed down" } else { "as its mount" };
        write!(f, "{} ({whose})", self.mode)
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
    if let Some(wanted) = args.mode {
        let value = wanted.to_string();
        let set = rustix::fs::setxattr(path, DURABILITY, value.as_bytes(), XattrFlags::empty());
        set.map_err(|error| refusal(path, error))?;
    }
    let shown = shown(path)?.with_context(neither)?;
    if args.json {
        return output::print(&serde_json::to_string_pretty(&Report { path, shown })?);
    }
    output::print(&format!("{} {shown}", path.display()))
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
    let mut value = [0; 64];
    match rustix::fs::getxattr(path, DURABILITY, &mut value) {
        Ok(len) => {
            let text = String::from_utf8_lossy(&value[..len]);
            let strange = || format!("{}: its mount says {text:?}", path.display());
            Shown::read(&text).map(Some).with_context(strange)
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
    fn what_is_set_is_shown() {
        for mode in ["sync", "close", "fsync"] {
            let wanted: Wanted = mode.parse().unwrap_or(Wanted(None));
            assert_eq!(wanted.to_string(), mode);
            let own = Shown::read(mode).map(|shown| shown.to_string());
            assert_eq!(own, Some(format!("{mode} (set here, or handed down)")));
            let inherited = Shown::read(&format!("inherit {mode}")).map(|shown| shown.to_string());
            assert_eq!(inherited, Some(format!("{mode} (as its mount)")));
        }
        assert_eq!("inherit".parse(), Ok(Wanted(None)));
        assert!("never".parse::<Wanted>().is_err());
        for strange in ["", "inherit", "never", "inherit never", "fsync close"] {
            assert_eq!(Shown::read(strange), None, "{strange}");
        }
    }
}
