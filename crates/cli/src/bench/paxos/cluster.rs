//! The replicas' processes: started, asked, killed, frozen, closed.

use super::load::Setup;
use super::replica::{Ask, Be, Report, Said};
use crate::bench::Room;
use crate::bench::child::Running;
use crate::bench::flatness::{Usage, disk_of, memory_of};
use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use std::io::{BufReader, Lines};
use std::process::ChildStdout;
use std::time::{Duration, Instant};

/// How long replicas may take to elect a leader, and to become equal at the end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(20);

/// A replica's process, and what it says.
struct Spoken {
    running: Running,
    said: Lines<BufReader<ChildStdout>>,
}

impl Spoken {
    fn ask(&mut self, ask: &Ask) -> anyhow::Result<Said> {
        self.running.ask(ask)?;
        let said = self.said.next().context("a replica has ended")??;
        match serde_json::from_str(&said)? {
            Said::Failed(why) => bail!("a replica: {why}"),
            said => Ok(said),
        }
    }
}

/// A replica: what it is, and its process while it has one.
struct Place {
    be: Be,
    spoken: Option<Spoken>,
}

/// All replicas.
pub struct Cluster {
    places: Vec<Place>,
    room: Room,
}

impl Cluster {
    /// Starts the replicas and waits until one leads.
    ///
    /// Call it on the main thread: the processes die with the thread that started them.
    pub fn start(setup: &Setup) -> anyhow::Result<Cluster> {
        let base = setup.dir.clone().unwrap_or_else(std::env::temp_dir);
        let mut cluster = Cluster { places: Vec::new(), room: Room::make(&base)? };
        for node in 0..setup.replicas {
            let be = Be {
                node,
                // Of its own, so that no other connection is given its port while it is down.
                listen: format!("127.0.0.{}:0", 2 + node),
                mode: setup.mode,
                bsz: setup.bsz,
                wnd: setup.wnd,
                delta_b: setup.delta_b,
                one_way: setup.rtt / 2,
                dir: cluster.room.path.join(node.to_string()),
            };
            cluster.places.push(Place { be, spoken: None });
            cluster.spawn(node)?;
        }
        (0..setup.replicas).try_for_each(|node| cluster.join(node))?;
        cluster.until("no replica leads", |reports| {
            reports.iter().flatten().any(|report| report.leading)
        })?;
        Ok(cluster)
    }

    /// Starts a process and waits until it listens.
    fn spawn(&mut self, node: u16) -> anyhow::Result<()> {
        let place = &mut self.places[usize::from(node)];
        let (running, said) = Running::start(&["bench", "paxos", "replica"])?;
        let spoken = place.spoken.insert(Spoken { running, said });
        match spoken.ask(&Ask::Be(place.be.clone()))? {
            Said::Listening(address) => place.be.listen = address,
            said => bail!("a replica says {said:?}"),
        }
        Ok(())
    }

    fn join(&mut self, node: u16) -> anyhow::Result<()> {
        let join = Ask::Join(self.addresses());
        ensure!(matches!(self.ask(node, &join)?, Some(Said::Joined)), "a replica does not join");
        Ok(())
    }

    /// Where they listen, by node.
    pub fn addresses(&self) -> Vec<String> {
        self.places.iter().map(|place| place.be.listen.clone()).collect()
    }

    fn ask(&mut self, node: u16, ask: &Ask) -> anyhow::Result<Option<Said>> {
        let spoken = self.places[usize::from(node)].spoken.as_mut();
        spoken.map(|spoken| spoken.ask(ask)).transpose()
    }

    /// How far a replica is; `None` while it is down.
    pub fn report(&mut self, node: u16) -> anyhow::Result<Option<Report>> {
        match self.ask(node, &Ask::Report)? {
            Some(Said::Report(report)) => Ok(Some(report)),
            Some(said) => bail!("a replica says {said:?}"),
            None => Ok(None),
        }
    }

    /// How far all are, by node.
    pub fn reports(&mut self) -> anyhow::Result<Vec<Option<Report>>> {
        let nodes = 0..self.places.len() as u16;
        nodes.map(|node| self.report(node)).collect()
    }

    fn until(
        &mut self,
        otherwise: &str,
        is: impl Fn(&[Option<Report>]) -> bool,
    ) -> anyhow::Result<Vec<Option<Report>>> {
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

    /// Kills a replica: no goodbye, and what it has not written is lost.
    pub fn kill(&mut self, node: u16) {
        self.places[usize::from(node)].spoken = None;
    }

    /// Starts a replica again, at the address and with the directory that it had.
    pub fn start_again(&mut self, node: u16) -> anyhow::Result<()> {
        self.spawn(node)?;
        self.join(node)
    }

    /// Stops a replica where it is, or lets it go on.
    pub fn signal(&self, node: u16, signal: Signal) -> anyhow::Result<()> {
        let spoken = self.places[usize::from(node)].spoken.as_ref().context("it is down")?;
        spoken.running.signal(signal)
    }

    /// What a replica takes.
    pub fn usage(&self, node: u16) -> Usage {
        let place = &self.places[usize::from(node)];
        let memory = place.spoken.as_ref().and_then(|spoken| memory_of(spoken.running.child.id()));
        Usage { memory: memory.unwrap_or_default(), disk: disk_of(&place.be.dir), log: 0 }
    }

    /// Waits until all that are up have executed equally much, at least `requests`, with equal replies; closes them.
    pub fn close(mut self, requests: u64) -> anyhow::Result<()> {
        let reports = self.until("the replicas do not become equal", |reports| {
            let mut up = reports.iter().flatten();
            let all = up.next().map_or(0, |first| first.requests);
            all >= requests && up.all(|report| report.requests == all)
        })?;
        let mut up = reports.iter().flatten();
        let first = up.next().context("no replica is up")?.digest;
        ensure!(
            up.all(|report| report.digest == first),
            "the replicas have given different replies, a bug: {reports:?}"
        );
        for spoken in self.places.iter_mut().filter_map(|place| place.spoken.as_mut()) {
            drop(spoken.running.input.take());
            let status = spoken.running.child.wait()?;
            ensure!(status.success(), "a replica did not close well: {status}");
        }
        self.room.remove()
    }
}
