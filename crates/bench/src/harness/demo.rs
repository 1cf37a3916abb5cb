//! A demo of its own to measure: a child of this process, gone when this process is.

use super::cost::{Cost, family};
use anyhow::{Context, bail, ensure};
use meridian_terminal::die_with_parent;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// What the demo runs: it ends when its input does, so the demo ends with this process, however
/// that ends.
const IDLE: &str = "echo ready && exec cat >/dev/null";
/// How long all nodes may take to be reachable again, and all groups to have a primary.
const WELL_TIMEOUT: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A demo that runs.
pub struct Demo {
    program: PathBuf,
    data: PathBuf,
    /// Where it is mounted.
    pub mount: PathBuf,
    child: Child,
    input: Option<ChildStdin>,
    /// Servers that were started again, which are not the demo's own children.
    servers: Vec<Child>,
}

/// What `meridian status --json` tells, as far as it is needed here.
#[derive(Debug, Deserialize)]
pub struct Status {
    pub nodes: Vec<Node>,
    pub groups: Vec<Group>,
}

/// A node of the demo.
#[derive(Debug, Deserialize)]
pub struct Node {
    pub node: String,
    pub region: String,
    pub reachable: bool,
    pub pid: Option<u32>,
}

/// A group of the demo.
#[derive(Debug, Deserialize)]
pub struct Group {
    pub group: String,
    /// The name of the node that leads it.
    pub primary: Option<String>,
}

impl Demo {
    /// Starts a demo of `program` in the folder `dir`, with more arguments, and waits until it is
    /// ready.
    ///
    /// # Errors
    /// If it does not get ready: with the last line that it said.
    pub fn start(program: &Path, dir: &Path, more: &[&str]) -> anyhow::Result<Demo> {
        let [data, mount, run] = ["data", "mount", "run"].map(|name| dir.join(name));
        std::fs::create_dir_all(&run)?;
        let log = dir.join("demo.log");
        let mut command = Command::new(program);
        command.arg("demo").arg("--data").arg(&data).arg("--mount").arg(&mount);
        command.args(["--exec", IDLE]).args(more).env("XDG_RUNTIME_DIR", &run);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        command.process_group(0); // Ctrl-C is for this process alone, which ends the demo in order.
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let demo = Demo { program: program.into(), data, mount, child, input, servers: Vec::new() };
        let output = BufReader::new(output.context("its output is ours")?);
        let first = output.lines().next().transpose()?;
        if first.as_deref() != Some("ready") {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            bail!("the demo does not start: {}", said.lines().last().unwrap_or("it says nothing"));
        }
        Ok(demo)
    }

    /// The demo's own process, which is the mount as well.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How its nodes and groups are.
    pub fn status(&self) -> anyhow::Result<Status> {
        let mut command = Command::new(&self.program);
        command.args(["status", "--json", "--cluster"]).arg(self.data.join("cluster.json"));
        let output = command.stderr(Stdio::null()).output().context("cannot ask for the status")?;
        serde_json::from_slice(&output.stdout).context("the status is not as expected")
    }

    /// Waits until all nodes are reachable and all groups have a primary.
    pub fn wait_well(&self) -> anyhow::Result<Status> {
        let deadline = Instant::now() + WELL_TIMEOUT;
        loop {
            let status = self.status()?;
            let reachable = status.nodes.iter().all(|node| node.reachable);
            if reachable && status.groups.iter().all(|group| group.primary.is_some()) {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "the demo does not get well: {status:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// Starts the server of a node that was killed again.
    ///
    /// Call it on the main thread: the server dies with the thread that started it.
    pub fn start_again(&mut self, node: &str) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("server").arg("--dir").arg(self.data.join(node));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        die_with_parent(&mut command, Signal::KILL);
        self.servers.push(command.spawn().context("cannot start the server again")?);
        Ok(())
    }

    /// Stops it: unmounted, all processes gone.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.end_servers();
        drop(self.input.take());
        let status = self.child.wait().context("cannot wait for the demo")?;
        ensure!(status.success(), "the demo did not stop well: {status}");
        Ok(())
    }

    fn end_servers(&mut self) {
        for mut server in self.servers.drain(..) {
            let _ = server.kill(); // It has ended by itself.
            let _ = server.wait();
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.end_servers();
        drop(self.input.take());
        let _ = self.child.wait(); // An error is on its way already, or it was waited for.
    }
}

impl Status {
    /// The region of the first node, in which the demo's mount is.
    pub fn first_region(&self) -> anyhow::Result<&str> {
        Ok(&self.nodes.first().context("the demo has no nodes")?.region)
    }

    /// The node that leads this group.
    pub fn primary_of(&self, group: &str) -> anyhow::Result<&Node> {
        let named = self.groups.iter().find(|other| other.group == group);
        let primary = named.and_then(|group| group.primary.as_deref());
        let node = self.nodes.iter().find(|node| Some(node.node.as_str()) == primary);
        node.with_context(|| format!("group {group} has no primary"))
    }

    /// The nodes of a region.
    pub fn nodes_of(&self, region: &str) -> Vec<&Node> {
        self.nodes.iter().filter(|node| node.region == region).collect()
    }
}

impl Node {
    /// Sends a signal to its server.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.with_context(|| format!("{} is down", self.node))?;
        kill_process(pid, signal).with_context(|| format!("cannot send a signal to {}", self.node))
    }
}

/// The processes whose cost is measured beside the bench's own.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Demos, which are mounts as well, or whatever else was named.
    mounts: Vec<u32>,
    /// What those have started.
    servers: Vec<u32>,
}

impl Watched {
    /// These processes and all that they have started.
    pub fn with_children(pids: &[u32]) -> Watched {
        let mut watched = Watched { mounts: pids.to_vec(), servers: Vec::new() };
        for pid in pids {
            let started = family(*pid).into_iter().filter(|pid| !pids.contains(pid));
            watched.servers.extend(started);
        }
        watched
    }

    /// Whether there is anything to watch.
    pub fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    /// What mounts, servers and this process have used so far.
    pub fn costs(&self) -> [Cost; 3] {
        let [mounts, servers] = [&self.mounts, &self.servers].map(|pids| pids.iter().copied());
        [Cost::of(mounts), Cost::of(servers), Cost::of([std::process::id()])]
    }
}
