//! Mounts of the cluster on this machine.

use super::asking::Asking;
use crate::durability::Shown;
use crate::{mount, output};
use meridian_mount::about::About;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A mount.
#[derive(Debug, Serialize)]
pub struct MountReport {
    pub dir: PathBuf,
    /// The region that it is in.
    pub region: Option<String>,
    /// How the kernel's requests come: `io_uring` or `/dev/fuse`.
    transport: Option<String>,
    /// When what is done in it is durable, where a directory or file does not say; a mount of an
    /// earlier build does not tell.
    durability: Option<Shown>,
    /// Why it does not say so.
    error: Option<String>,
}

/// Asks all mounts of this machine for whether they are of the cluster, and how. Those that do not
/// answer may be.
pub fn reports(cluster: u64) -> anyhow::Result<Vec<MountReport>> {
    let ask = |dir: PathBuf| (Asking::start(["--of-mount".as_ref(), dir.as_os_str()]), dir);
    let asked: Vec<_> = mount::all_here()?.into_iter().map(ask).collect();
    let end = Instant::now() + super::report::PATIENCE;
    let answers = asked.into_iter().map(|(asked, dir)| {
        let answer = asked.map_err(|error| error.to_string());
        (dir, answer.and_then(|asking| answer_of(asking, end)))
    });
    Ok(answers.filter_map(|(dir, answer)| report(cluster, dir, answer)).collect())
}

fn answer_of(mut asking: Asking, end: Instant) -> Result<About, String> {
    let said = asking.line(end).ok_or("it does not answer")?;
    About::read(said.trim()).ok_or_else(|| said.trim().into())
}

/// What a mount says, or why it says nothing.
pub fn say(dir: &Path) -> String {
    About::of(dir).map_or_else(|error| error.to_string(), |about| about.to_string())
}

fn report(cluster: u64, dir: PathBuf, answer: Result<About, String>) -> Option<MountReport> {
    match answer {
        Ok(about) if about.cluster != cluster => None,
        Ok(About { region, transport, durability, .. }) => {
            let (region, transport) = (Some(region), Some(transport));
            let durability = durability.map(Shown::of_mount);
            Some(MountReport { dir, region, transport, durability, error: None })
        }
        Err(error) => {
            let (region, transport, durability, error) = (None, None, None, Some(error));
            Some(MountReport { dir, region, transport, durability, error })
        }
    }
}

/// For people; nothing if there are none.
pub fn table(mounts: &[MountReport]) -> String {
    if mounts.is_empty() {
        return String::new();
    }
    let rows = mounts.iter().map(|mount| {
        let error = || format!("unknown: {}", mount.error.as_deref().unwrap_or_default());
        let transport = mount.transport.clone().unwrap_or_else(error);
        let durability = mount.durability.as_ref().map_or("-".into(), Shown::to_string);
        vec![mount.dir.display().to_string(), transport, durability]
    });
    output::table(&["mounted here at", "requests come by", "durable by"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_client::Durability;
    use std::io;

    #[test]
    fn mounts_of_other_clusters_are_left_out_and_those_that_do_not_answer_are_not() {
        let about = |cluster| {
            let (transport, region) = ("io_uring".into(), "us".into());
            Ok(About { cluster, transport, region, durability: Some(Durability::Fsync) })
        };
        assert!(report(1, "/a".into(), about(2)).is_none());
        let dead = Err(io::Error::from(io::ErrorKind::NotConnected).to_string());
        let all = [(about(1), "/a"), (dead, "/b"), (Err("it does not answer".into()), "/c")];
        let all = all.map(|(answer, dir)| report(1, dir.into(), answer).unwrap());
        let text = table(&all);
        for line in [
            "/a  io_uring fsync (as its mount was told)",
            "/b  unknown: not connected",
            "/c  unknown: it does not",
        ] {
            let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
            let lines = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
            assert!(lines.into_iter().any(|line| line.starts_with(&words)), "{line}: {text}");
        }
        assert_eq!(table(&[]), "");
    }
}
