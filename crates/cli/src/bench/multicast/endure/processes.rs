//! The replicas' processes: started, asked, heard, killed, frozen, looked at.

use super::replica::{Ask, Said, Setup};
use crate::bench::child::Running;
use crate::bench::flatness::{disk_of, memory_of};
use anyhow::{Context, bail};
use meridian_core::ProcessId;
use rustix::process::Signal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a replica may take to close, and to say its first word.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether a process has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What comes from a process.
enum Heard {
    Said(Said),
    Ended,
}

/// A replica: what it is, and its process while it has one.
struct Place {
    setup: Setup,
    /// Counts its processes: a word of an earlier one is not heard any more.
    started: u32,
    running: Option<Running>,
}

/// The processes of all replicas, by node.
pub struct Processes {
    places: Vec<Place>,
    heard: Sender<(u16, u32, Heard)>,
    hear: Receiver<(u16, u32, Heard)>,
}

impl Processes {
    /// Starts all replicas. They run this program, and die with it.
    ///
    /// Call it on the main thread: the processes die with the thread that started them.
    pub fn start(setups: Vec<Setup>) -> anyhow::Result<Processes> {
        let (heard, hear) = channel();
        let place = |setup| Place { setup, started: 0, running: None };
        let places: Vec<Place> = setups.into_iter().map(place).collect();
        let mut processes = Processes { places, heard, hear };
        (0..processes.len()).try_for_each(|node| processes.spawn(node))?;
        let addresses = processes.addresses();
        (0..processes.len())
            .try_for_each(|node| processes.ask(node, &Ask::Join(addresses.clone())))?;
        Ok(processes)
    }

    /// How many replicas there are.
    pub fn len(&self) -> u16 {
        self.places.len() as u16
    }

    /// Which process of the protocol the replica is.
    pub fn id(&self, node: u16) -> ProcessId {
        self.places[usize::from(node)].setup.me()
    }

    fn addresses(&self) -> Vec<String> {
        self.places.iter().map(|place| place.setup.listen.clone()).collect()
    }

    /// Starts a replica again, at the address and with the log that it had; it sends nothing of its own accord.
    pub fn start_again(&mut self, node: u16) -> anyhow::Result<()> {
        self.places[usize::from(node)].setup.share = 0;
        self.spawn(node)?;
        let addresses = self.addresses();
        self.ask(node, &Ask::Join(addresses))
    }

    /// Starts a process and waits until it listens.
    fn spawn(&mut self, node: u16) -> anyhow::Result<()> {
        let (running, mut lines) = Running::start(&["bench", "multicast", "replica"])?;
        let place = &mut self.places[usize::from(node)];
        place.started += 1;
        place.running = Some(running);
        let be = Ask::Be(place.setup.clone());
        let started = place.started;
        self.ask(node, &be)?;
        let first = lines.next().and_then(Result::ok).unwrap_or_default();
        match serde_json::from_str(&first) {
            Ok(Said::Listening(address)) => self.places[usize::from(node)].setup.listen = address,
            Ok(Said::Failed(why)) => bail!("{}: {why}", self.id(node)),
            _ => bail!("{} does not start", self.id(node)),
        }
        let heard = self.heard.clone();
        std::thread::spawn(move || {
            let said = lines.map_while(Result::ok);
            let said = said.map_while(|line| serde_json::from_str(&line).ok()).map(Heard::Said);
            let all = said.chain(std::iter::once(Heard::Ended));
            all.map_while(|what| heard.send((node, started, what)).ok()).for_each(drop);
        });
        Ok(())
    }

    /// Asks a replica for something.
    pub fn ask(&mut self, node: u16, ask: &Ask) -> anyhow::Result<()> {
        let id = self.id(node);
        let running = self.places[usize::from(node)].running.as_mut().context("it is down")?;
        running.ask(ask).with_context(|| id.to_string())
    }

    /// What a replica has said, if any has by `until`.
    pub fn next(&mut self, until: Instant) -> anyhow::Result<Option<(u16, Said)>> {
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            let (node, started, heard) = match self.hear.recv_timeout(wait) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("we hold a sender"),
            };
            let place = &self.places[usize::from(node)];
            if place.started != started || place.running.is_none() {
                continue;
            }
            match heard {
                Heard::Said(Said::Failed(why)) => bail!("{}: {why}", self.id(node)),
                Heard::Said(said) => return Ok(Some((node, said))),
                Heard::Ended => bail!("{} has ended", self.id(node)),
            }
        }
    }

    /// Kills a replica: no goodbye, and what it has not written is lost.
    pub fn kill(&mut self, node: u16) {
        self.places[usize::from(node)].running = None;
    }

    /// Stops a replica where it is, with all that it holds and its connections.
    pub fn freeze(&self, node: u16) -> anyhow::Result<()> {
        self.signal(node, Signal::STOP)
    }

    /// Lets it go on.
    pub fn thaw(&self, node: u16) -> anyhow::Result<()> {
        self.signal(node, Signal::CONT)
    }

    fn signal(&self, node: u16, signal: Signal) -> anyhow::Result<()> {
        let running = self.places[usize::from(node)].running.as_ref();
        running.context("it is down")?.signal(signal)
    }

    /// Its resident memory, in bytes; `None` while it is down.
    pub fn memory(&self, node: u16) -> Option<u64> {
        let running = self.places[usize::from(node)].running.as_ref()?;
        memory_of(running.child.id())
    }

    /// What its files take on disk, in bytes.
    pub fn disk(&self, node: u16) -> u64 {
        self.places[usize::from(node)].setup.dir.as_deref().map_or(0, disk_of)
    }

    /// Closes all replicas.
    pub fn close(mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for place in &mut self.places {
            place.running.as_mut().and_then(|running| running.input.take());
        }
        for node in 0..self.len() {
            let id = self.id(node);
            let Some(running) = &mut self.places[usize::from(node)].running else { continue };
            loop {
                match running.child.try_wait()? {
                    Some(status) if status.success() => break,
                    Some(status) => bail!("{id} did not close well: {status}"),
                    None if Instant::now() > deadline => bail!("{id} does not close"),
                    None => std::thread::sleep(LOOK),
                }
            }
        }
        Ok(())
    }
}
