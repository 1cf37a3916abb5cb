//! `meridian fs quota`: how much may lie below a directory, and how much does.

use crate::fs::{not_here, placement_of};
use crate::output;
use anyhow::{Context, bail};
use clap::Args;
use meridian_terminal::note;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The attribute that says how much may lie below a directory, and how much does.
const QUOTA: &str = "user.meridian.quota";
/// How often it is asked for while nodes count.
const PAUSE: Duration = Duration::from_millis(100);
/// After so long it is shown how far they are, and then as often.
const SHOWN: Duration = Duration::from_secs(1);
/// After so long without any change nobody waits any more.
const STUCK: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Debug, Args)]
pub struct QuotaArgs {
    /// A directory in a mount
    dir: PathBuf,
    /// So many bytes in files at most; K, M, G and T stand for powers of 1024
    #[arg(long, value_name = "N", value_parser = bytes_of)]
    bytes: Option<u64>,
    /// So many files and directories at most
    #[arg(long, value_name = "N")]
    inodes: Option<u64>,
    /// No limits any more; what there is goes on being counted
    #[arg(long, conflicts_with_all = ["bytes", "inodes"])]
    none: bool,
    /// No quota any more
    #[arg(long, conflicts_with_all = ["bytes", "inodes", "none"])]
    remove: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The answer with `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    dir: &'a Path,
    quota: Option<Quota>,
}

/// What a directory has, or what is in it counts against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    bytes: u64,
    bytes_limit: Option<u64>,
    inodes: u64,
    inodes_limit: Option<u64>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    Complete,
    Counting,
    Leaving,
}

/// Runs `meridian fs quota`.
///
/// # Errors
/// If the path is in no mount, or the file system refuses.
pub fn run(args: &QuotaArgs) -> anyhow::Result<()> {
    let dir = &args.dir;
    placement_of(dir)?; // It is in a mount.
    let changed = if args.remove {
        Some(rustix::fs::removexattr(dir, QUOTA))
    } else if args.none || args.bytes.is_some() || args.inodes.is_some() {
        let value = format!("bytes={} inodes={}", Limit(args.bytes), Limit(args.inodes));
        Some(rustix::fs::setxattr(dir, QUOTA, value.as_bytes(), XattrFlags::empty()))
    } else {
        None
    };
    let quota = match changed {
        None => shown(dir)?,
        Some(Ok(())) => complete(dir)?,
        Some(Err(error)) => bail!(refusal(dir, error)),
    };
    if args.json {
        return output::print(&serde_json::to_string_pretty(&Report { dir, quota })?);
    }
    let dir = dir.display();
    match quota {
        // What is shown then is that of a directory above.
        Some(quota) if args.remove => {
            output::print(&format!("{dir} has no quota of its own, and counts above: {quota}"))
        }
        Some(quota) => {
            output::print(&format!("{dir} {quota}"))?;
            if changed.is_some() && quota.is_exceeded() {
                note!("more is there than that: nothing can be added until enough is removed");
            }
            Ok(())
        }
        None => output::print(&format!("{dir} has no quota")),
    }
}

fn refusal(dir: &Path, error: Errno) -> anyhow::Error {
    let shown = dir.display();
    match error {
        Errno::BUSY => anyhow::anyhow!(
            "{shown} must wait: nodes are counting for a quota in the same placement, or taking \
             one away, one directory at a time. Try again when that is done"
        ),
        Errno::NODATA => anyhow::anyhow!("{shown} has no quota of its own"),
        Errno::NOTDIR => anyhow::anyhow!("{shown} is not a directory"),
        Errno::PERM | Errno::ACCESS => anyhow::anyhow!("only root may set a quota"),
        error => not_here(dir, error),
    }
}

/// Waits until nodes have counted, or given back, all that is below; shows how far they are.
fn complete(dir: &Path) -> anyhow::Result<Option<Quota>> {
    let (began, mut told, mut seen) = (Instant::now(), Instant::now(), None);
    let mut changed = began;
    loop {
        let now = shown(dir)?;
        let goes_on = now.as_ref().filter(|quota| quota.stage != Stage::Complete);
        let Some(quota) = goes_on else { return Ok(now) };
        if told.elapsed() >= SHOWN {
            note!("{}: {}", dir.display(), quota.progress());
            told = Instant::now();
        }
        if seen != now {
            (seen, changed) = (now, Instant::now());
        } else if changed.elapsed() >= STUCK {
            bail!(
                "{}: nothing has been counted for {} s. The nodes go on as soon as they can: see \
                 `meridian status`, and `meridian fs quota` for how far they are",
                dir.display(),
                STUCK.as_secs()
            );
        }
        std::thread::sleep(PAUSE);
    }
}

/// The quota that a directory has, or what is at the path counts against, now.
///
/// # Errors
/// If the path is in no mount, or cannot be looked at.
pub fn shown(dir: &Path) -> anyhow::Result<Option<Quota>> {
    let mut value = [0; 256];
    match rustix::fs::getxattr(dir, QUOTA, &mut value) {
        Ok(len) => {
            let text = String::from_utf8_lossy(&value[..len]);
            let quota = Quota::read(&text);
            let strange = || format!("{}: its mount says {text:?}", dir.display());
            quota.map(Some).with_context(strange)
        }
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(not_here(dir, error)),
    }
}

impl Quota {
    /// The greatest part of a limit that is used, in percent; none without limits. What may have
    /// nothing has used all.
    pub fn used_percent(&self) -> Option<u64> {
        let part = |used: u64, limit: Option<u64>| {
            let part = u128::from(used) * 100 / u128::from(limit?).max(1);
            let part = if limit == Some(0) { part.max(100) } else { part };
            Some(u64::try_from(part).unwrap_or(u64::MAX))
        };
        part(self.bytes, self.bytes_limit).max(part(self.inodes, self.inodes_limit))
    }

    /// From the value of [`QUOTA`].
    pub fn read(text: &str) -> Option<Quota> {
        let mut words = text.split(' ');
        let (bytes, bytes_limit) = used(words.next()?.strip_prefix("bytes=")?)?;
        let (inodes, inodes_limit) = used(words.next()?.strip_prefix("inodes=")?)?;
        let stage = match words.next() {
            None => Stage::Complete,
            Some("counting") => Stage::Counting,
            Some("leaving") => Stage::Leaving,
            Some(_) => return None,
        };
        Some(Quota { bytes, bytes_limit, inodes, inodes_limit, stage })
    }

    fn is_exceeded(&self) -> bool {
        let beyond = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used > limit);
        beyond(self.bytes, self.bytes_limit) || beyond(self.inodes, self.inodes_limit)
    }

    fn progress(&self) -> String {
        let Quota { bytes, inodes, .. } = self;
        match self.stage {
            Stage::Leaving => format!("{inodes} inodes with {bytes} bytes still count"),
            _ => format!("{inodes} inodes with {bytes} bytes are counted"),
        }
    }
}

/// What is used, and the limit.
fn used(text: &str) -> Option<(u64, Option<u64>)> {
    let (used, limit) = text.split_once('/')?;
    let limit = if limit == "none" { None } else { Some(limit.parse().ok()?) };
    Some((used.parse().ok()?, limit))
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quota { bytes, bytes_limit, inodes, inodes_limit, stage } = self;
        let (bytes_limit, inodes_limit) = (Limit(*bytes_limit), Limit(*inodes_limit));
        write!(f, "bytes={bytes}/{bytes_limit} inodes={inodes}/{inodes_limit}")?;
        match stage {
            Stage::Complete => Ok(()),
            Stage::Counting => write!(f, " counting"),
            Stage::Leaving => write!(f, " leaving"),
        }
    }
}

/// A limit in words.
struct Limit(Option<u64>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) => write!(f, "{limit}"),
            None => write!(f, "none"),
        }
    }
}

/// A number of bytes, perhaps with a unit.
pub fn bytes_of(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no number of bytes"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mount_says_is_read() {
        for text in ["bytes=3/none inodes=1/20", "bytes=0/7 inodes=9/none counting"] {
            let quota = Quota::read(text).unwrap();
            assert_eq!(quota.to_string(), text);
        }
        let over = |text: &str| Quota::read(text).unwrap().is_exceeded();
        assert!(over("bytes=3/2 inodes=1/none leaving") && !over("bytes=2/2 inodes=1/1"));
        for wrong in ["", "bytes=1/2", "bytes=x/2 inodes=1/1", "bytes=1/2 inodes=1/1 later"] {
            assert_eq!(Quota::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn how_much_is_used_is_that_of_the_tighter_limit() {
        let used = |text: &str| Quota::read(text).unwrap().used_percent();
        assert_eq!(used("bytes=95/100 inodes=1/2"), Some(95));
        assert_eq!(used("bytes=1/none inodes=3/2"), Some(150));
        assert_eq!(used("bytes=0/0 inodes=1/none"), Some(100));
        assert_eq!(used("bytes=5/none inodes=1/none"), None);
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes_of("10"), Ok(10));
        assert_eq!((bytes_of("3k"), bytes_of("2G")), (Ok(3 << 10), Ok(2 << 30)));
        assert!(bytes_of("").is_err() && bytes_of("x").is_err() && bytes_of("99999999T").is_err());
    }
}
