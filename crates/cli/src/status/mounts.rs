//! Mounts of the cluster on this machine.

use crate::{mount, output};
use meridian_mount::about::About;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Instant;

/// A mount.
#[derive(Debug, Serialize)]
pub struct MountReport {
    dir: PathBuf,
    /// How the kernel's requests come: `io_uring` or `/dev/fuse`.
    transport: Option<String>,
    /// Why it does not say so.
    error: Option<String>,
}

/// Asks all mounts of this machine for whether they are of the cluster, and how. Those that do not
/// answer may be.
pub fn reports(cluster: u64) -> anyhow::Result<Vec<MountReport>> {
    let asked = mount::all_here()?.into_iter().map(|dir| {
        let (tell, told) = channel();
        let at = dir.clone();
        // Whoever asks a mount that is stopped waits as long as it is.
        std::thread::spawn(move || tell.send(About::of(&at)));
        (dir, told)
    });
    let (asked, end) = (asked.collect::<Vec<_>>(), Instant::now() + super::PATIENCE);
    let answers = asked.into_iter().map(|(dir, told)| {
        let left = end.saturating_duration_since(Instant::now());
        (dir, told.recv_timeout(left).map_err(|_| "it does not answer".to_string()))
    });
    Ok(answers.filter_map(|(dir, answer)| report(cluster, dir, answer)).collect())
}

fn report(
    cluster: u64,
    dir: PathBuf,
    answer: Result<std::io::Result<About>, String>,
) -> Option<MountReport> {
    match answer.and_then(|about| about.map_err(|error| error.to_string())) {
        Ok(about) if about.cluster != cluster => None,
        Ok(about) => Some(MountReport { dir, transport: Some(about.transport), error: None }),
        Err(error) => Some(MountReport { dir, transport: None, error: Some(error) }),
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
        vec![mount.dir.display().to_string(), transport]
    });
    output::table(&["mounted here at", "requests come by"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn mounts_of_other_clusters_are_left_out_and_those_that_do_not_answer_are_not() {
        let about = |cluster| Ok(Ok(About { cluster, transport: "io_uring".into() }));
        assert!(report(1, "/a".into(), about(2)).is_none());
        let dead = Ok(Err(ErrorKind::NotConnected.into()));
        let all = [(about(1), "/a"), (dead, "/b"), (Err("it does not answer".into()), "/c")];
        let all = all.map(|(answer, dir)| report(1, dir.into(), answer).unwrap());
        let text = table(&all);
        for line in ["/a  io_uring", "/b  unknown: not connected", "/c  unknown: it does not"] {
            let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
            let lines = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
            assert!(lines.into_iter().any(|line| line.starts_with(&words)), "{line}: {text}");
        }
        assert_eq!(table(&[]), "");
    }
}
