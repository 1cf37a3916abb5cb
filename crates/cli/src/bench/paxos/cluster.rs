//! The replicas' processes: started, asked, closed.

use super::load::Setup;
use super::replica::{Ask, Be, Report, Said};
use crate::children::die_with_parent;
use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long replicas may take to elect a leader, and to become equal at the end.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(20);

/// A replica's process. It is killed when this is dropped.
struct Place {
    child: Child,
    input: Option<ChildStdin>,
    said: Lines<BufReader<ChildStdout>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended by itself.
        let _ = self.child.wait();
    }
}

impl Place {
    fn start() -> anyhow::Result<Place> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command
            .args(["bench", "paxos", "replica"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0); // Ctrl-C is for the parent alone.
        die_with_parent(&mut command, Signal::KILL);
        let mut child = command.spawn().context("cannot start a replica")?;
        let (input, said) = (child.stdin.take(), child.stdout.take());
        let said = BufReader::new(said.context("its output is ours")?).lines();
        Ok(Place { child, input, said })
    }

    fn ask(&mut self, ask: &Ask) -> anyhow::Result<Said> {
        let line = serde_json::to_string(ask)?;
        let input = self.input.as_mut().context("it is closed")?;
        writeln!(input, "{line}").context("a replica has ended")?;
        let said = self.said.next().context("a replica has ended")??;
        match serde_json::from_str(&said)? {
            Said::Failed(why) => bail!("a replica: {why}"),
            said => Ok(said),
        }
    }
}

/// All replicas.
pub struct Cluster {
    places: Vec<Place>,
    pub addresses: Vec<String>,
    /// Their directories; they go with this.
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts the replicas and waits until one leads.
    ///
    /// Call it on the main thread: the processes die with the thread that started them.
    pub fn start(setup: &Setup) -> anyhow::Result<Cluster> {
        let base = setup.dir.clone().unwrap_or_else(std::env::temp_dir);
        let dir = tempfile::Builder::new()
            .prefix("meridian-bench-")
            .tempdir_in(&base)
            .with_context(|| format!("cannot make a directory in {}", base.display()))?;
        let mut cluster = Cluster { places: Vec::new(), addresses: Vec::new(), dir };
        for node in 0..setup.replicas {
            let be = Be {
                node,
                mode: setup.mode,
                bsz: setup.bsz,
                wnd: setup.wnd,
                delta_b: setup.delta_b,
                one_way: setup.rtt / 2,
                dir: cluster.dir.path().join(node.to_string()),
            };
            let mut place = Place::start()?;
            match place.ask(&Ask::Be(be))? {
                Said::Listening(address) => cluster.addresses.push(address),
                said => bail!("a replica says {said:?}"),
            }
            cluster.places.push(place);
        }
        let join = Ask::Join(cluster.addresses.clone());
        for place in &mut cluster.places {
            ensure!(matches!(place.ask(&join)?, Said::Joined), "a replica does not join");
        }
        cluster.until("no replica leads", |reports| reports.iter().any(|report| report.leading))?;
        Ok(cluster)
    }

    /// How far all are, by node.
    pub fn reports(&mut self) -> anyhow::Result<Vec<Report>> {
        let report = |place: &mut Place| match place.ask(&Ask::Report)? {
            Said::Report(report) => Ok(report),
            said => bail!("a replica says {said:?}"),
        };
        self.places.iter_mut().map(report).collect()
    }

    fn until(
        &mut self,
        otherwise: &str,
        is: impl Fn(&[Report]) -> bool,
    ) -> anyhow::Result<Vec<Report>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reports = self.reports()?;
            if is(&reports) {
                return Ok(reports);
            }
            ensure!(Instant::now() < deadline, "{otherwise}: {reports:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until all have executed equally much, at least `requests`, with equal replies; closes them.
    pub fn close(mut self, requests: u64) -> anyhow::Result<()> {
        let same = |a: &Report, b: &Report| a.requests == b.requests;
        let reports = self.until("the replicas do not become equal", |reports| {
            reports.iter().all(|report| report.requests >= requests && same(report, &reports[0]))
        })?;
        let equal = reports.iter().all(|report| report.digest == reports[0].digest);
        ensure!(equal, "the replicas have given different replies, a bug: {reports:?}");
        for mut place in std::mem::take(&mut self.places) {
            drop(place.input.take());
            let status = place.child.wait()?;
            ensure!(status.success(), "a replica did not close well: {status}");
        }
        Ok(())
    }
}
