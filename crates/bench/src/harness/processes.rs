//! Replicas in processes of their own: started, asked, heard, killed, frozen, looked at.
//!
//! They run this program again, and speak lines of JSON on standard input and output; their end of
//! it is [`replica`](super::replica).

use super::Scratch;
use super::flatness::{Usage, disk_of, memory_of};
use anyhow::{Context, bail};
use meridian_terminal::die_with_parent;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a replica may take to answer, and to close.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is looked whether a process has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What a subject's replicas are and say.
pub trait Program: Sized {
    /// What a replica must know beside its [`Place`].
    type Setup: Clone + Serialize + DeserializeOwned + Send + 'static;
    /// What a replica is asked.
    type Request: Serialize + DeserializeOwned + Send + 'static;
    /// What a replica says.
    type Report: Serialize + DeserializeOwned + Send + 'static;
    /// With these arguments this program is a replica.
    const ARGS: &'static [&'static str];

    /// What the replica is called in tables and errors.
    fn name(place: &Place<Self::Setup>) -> String;
}

/// Which replica it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place<S> {
    pub node: u16,
    /// Where it listens; port 0 until it does.
    pub listen: String,
    /// Where its files are; `None` if it has none.
    pub dir: Option<PathBuf>,
    pub setup: S,
}

/// What a parent tells its replicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order<S, R> {
    /// First of all: be this.
    Be(Place<S>),
    /// The addresses of all replicas, by node: join them, and begin.
    Join(Vec<String>),
    /// Whatever the subject asks.
    Request(R),
}

/// What a replica tells its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer<T> {
    /// It listens there.
    Listening(String),
    /// Whatever the subject's replicas say.
    Report(T),
    /// It cannot go on.
    Failed(String),
}

/// What comes from a process: with its node, and the how manyth process of that node it is.
enum Heard<T> {
    Answer(Answer<T>),
    Ended,
}

/// A replica, and its process while it has one.
struct Replica<S> {
    place: Place<S>,
    /// Counts its processes: a word of an earlier one is not heard any more.
    started: u32,
    running: Option<Running>,
}

/// A replica's process. It is killed when this is dropped.
struct Running {
    child: Child,
    /// `None` once it was closed, which asks the process to end.
    input: Option<ChildStdin>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended by itself.
        let _ = self.child.wait();
    }
}

/// The processes of all replicas, by node. They are killed when this is dropped.
pub struct Processes<P: Program> {
    replicas: Vec<Replica<P::Setup>>,
    send: Sender<(u16, u32, Heard<P::Report>)>,
    heard: Receiver<(u16, u32, Heard<P::Report>)>,
}

impl<P: Program> Processes<P> {
    /// Starts a replica for each setup, with folders in `scratch` unless they are `in_memory`.
    ///
    /// Call it on the main thread: the processes die with the thread that started them.
    ///
    /// # Errors
    /// If one does not start, or says why it cannot.
    pub fn start(
        setups: Vec<P::Setup>,
        scratch: &Scratch,
        in_memory: bool,
    ) -> anyhow::Result<Processes<P>> {
        let (send, heard) = channel();
        let replica = |(node, setup)| {
            // Of its own, so that no other connection is given its port while it is down.
            let listen = format!("127.0.0.{}:0", 2 + node);
            let dir = (!in_memory).then(|| scratch.path.join(format!("node-{node}")));
            Replica { place: Place { node, listen, dir, setup }, started: 0, running: None }
        };
        let replicas = (0..).zip(setups).map(replica).collect();
        let mut processes = Processes { replicas, send, heard };
        (0..processes.len()).try_for_each(|node| processes.spawn(node))?;
        (0..processes.len()).try_for_each(|node| processes.join(node))?;
        Ok(processes)
    }

    /// How many replicas there are.
    pub fn len(&self) -> u16 {
        self.replicas.len() as u16
    }

    /// What they are called, by node.
    pub fn names(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| P::name(&replica.place)).collect()
    }

    /// What a replica is called.
    pub fn name(&self, node: u16) -> String {
        P::name(&self.at(node).place)
    }

    /// What a replica was told to be.
    pub fn setup(&self, node: u16) -> &P::Setup {
        &self.at(node).place.setup
    }

    /// Where they listen, by node.
    pub fn addresses(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.place.listen.clone()).collect()
    }

    fn at(&self, node: u16) -> &Replica<P::Setup> {
        &self.replicas[usize::from(node)]
    }

    /// Starts a replica again, at the address and with the files that it had, and with this setup.
    ///
    /// # Errors
    /// As [`Processes::start`].
    pub fn start_again(&mut self, node: u16, setup: P::Setup) -> anyhow::Result<()> {
        self.replicas[usize::from(node)].place.setup = setup;
        self.spawn(node)?;
        self.join(node)
    }

    /// Starts a process and waits until it listens.
    fn spawn(&mut self, node: u16) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(P::ARGS).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.process_group(0); // Ctrl-C is for the parent alone.
        die_with_parent(&mut command, Signal::KILL);
        let mut child = command.spawn().context("cannot start a replica")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut lines = BufReader::new(output.context("its output is ours")?).lines();
        let replica = &mut self.replicas[usize::from(node)];
        replica.running = Some(Running { child, input });
        replica.started += 1;
        let (started, be) = (replica.started, Order::Be(replica.place.clone()));
        self.tell(node, &be)?;
        let first = lines.next().and_then(Result::ok).unwrap_or_default();
        match serde_json::from_str::<Answer<P::Report>>(&first) {
            Ok(Answer::Listening(address)) => {
                self.replicas[usize::from(node)].place.listen = address;
            }
            Ok(Answer::Failed(why)) => bail!("{}: {why}", self.name(node)),
            _ => bail!("{} does not start", self.name(node)),
        }
        hear(node, started, lines, self.send.clone());
        Ok(())
    }

    fn join(&mut self, node: u16) -> anyhow::Result<()> {
        let addresses = self.addresses();
        self.tell(node, &Order::Join(addresses))
    }

    /// Asks a replica for something.
    ///
    /// # Errors
    /// If it is down.
    pub fn request(&mut self, node: u16, request: P::Request) -> anyhow::Result<()> {
        self.tell(node, &Order::Request(request))
    }

    fn tell(&mut self, node: u16, order: &Order<P::Setup, P::Request>) -> anyhow::Result<()> {
        let line = serde_json::to_string(order)?;
        let running = self.replicas[usize::from(node)].running.as_mut();
        let input = running.and_then(|running| running.input.as_mut());
        let told = input.context("it is down").and_then(|input| Ok(writeln!(input, "{line}")?));
        told.with_context(|| self.name(node))
    }

    /// Asks a replica that says nothing of its own accord, and waits for its answer; `None` while
    /// it is down.
    ///
    /// # Errors
    /// If it ends or does not answer.
    pub fn call(&mut self, node: u16, request: P::Request) -> anyhow::Result<Option<P::Report>> {
        if self.at(node).running.is_none() {
            return Ok(None);
        }
        self.request(node, request)?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.next(deadline)? {
                Some((from, report)) if from == node => return Ok(Some(report)),
                Some(_) => {}
                None => bail!("{} does not answer", self.name(node)),
            }
        }
    }

    /// What a replica has said, if any has by `until`.
    ///
    /// # Errors
    /// If a replica cannot go on, or has ended though nobody killed it.
    pub fn next(&mut self, until: Instant) -> anyhow::Result<Option<(u16, P::Report)>> {
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            let (node, started, heard) = match self.heard.recv_timeout(wait) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("we hold a sender"),
            };
            let replica = self.at(node);
            if replica.started != started || replica.running.is_none() {
                continue;
            }
            match heard {
                Heard::Answer(Answer::Report(report)) => return Ok(Some((node, report))),
                Heard::Answer(Answer::Failed(why)) => bail!("{}: {why}", self.name(node)),
                Heard::Answer(Answer::Listening(_)) => {}
                Heard::Ended => bail!("{} has ended", self.name(node)),
            }
        }
    }

    /// Kills a replica: no goodbye, and what it has not written is lost.
    pub fn kill(&mut self, node: u16) {
        self.replicas[usize::from(node)].running = None;
    }

    /// Stops a replica where it is, with all that it holds and its connections.
    ///
    /// # Errors
    /// If it is down.
    pub fn freeze(&self, node: u16) -> anyhow::Result<()> {
        self.signal(node, Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If it is down.
    pub fn thaw(&self, node: u16) -> anyhow::Result<()> {
        self.signal(node, Signal::CONT)
    }

    fn signal(&self, node: u16, signal: Signal) -> anyhow::Result<()> {
        let running = self.at(node).running.as_ref().context("it is down")?;
        let raw = i32::try_from(running.child.id()).ok().and_then(Pid::from_raw);
        // Nobody else can have this number: we have not waited for the process.
        kill_process(raw.context("no process number")?, signal).context("cannot send a signal")
    }

    /// What a replica takes, but for its log.
    pub fn usage(&self, node: u16) -> Usage {
        let Replica { place, running, .. } = self.at(node);
        let memory = running.as_ref().and_then(|running| memory_of(running.child.id()));
        let disk = place.dir.as_deref().map_or(0, disk_of);
        Usage { memory: memory.unwrap_or_default(), disk, log: 0 }
    }

    /// Closes all replicas.
    ///
    /// # Errors
    /// If one does not end, or not well.
    pub fn close(mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        for replica in &mut self.replicas {
            replica.running.as_mut().and_then(|running| running.input.take());
        }
        for node in 0..self.len() {
            let name = self.name(node);
            let Some(running) = &mut self.replicas[usize::from(node)].running else { continue };
            loop {
                match running.child.try_wait()? {
                    Some(status) if status.success() => break,
                    Some(status) => bail!("{name} did not close well: {status}"),
                    None if Instant::now() > deadline => bail!("{name} does not close"),
                    None => std::thread::sleep(LOOK),
                }
            }
        }
        Ok(())
    }
}

/// Passes on what a process says, until it ends.
fn hear<T: DeserializeOwned + Send + 'static>(
    node: u16,
    started: u32,
    lines: Lines<BufReader<ChildStdout>>,
    send: Sender<(u16, u32, Heard<T>)>,
) {
    std::thread::spawn(move || {
        let said = lines.map_while(Result::ok);
        let said = said.map_while(|line| serde_json::from_str(&line).ok()).map(Heard::Answer);
        let all = said.chain(std::iter::once(Heard::Ended));
        all.map_while(|heard| send.send((node, started, heard)).ok()).for_each(drop);
    });
}
