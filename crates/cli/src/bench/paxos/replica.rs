//! One replica, in a process of its own, of a service that keeps nothing and answers eight bytes (report,
//! section 9).
//!
//! It is asked by lines of JSON on standard input ([`Ask`]), and answers so on standard output ([`Said`]). When its
//! input ends it closes the replica and ends.

use crate::output;
use anyhow::{Context, bail};
use bytes::Bytes;
use meridian_core::NodeId;
use meridian_paxos::{Options as PaxosOptions, Recovery, Service};
use meridian_runtime::smr::{Options, Replica};
use meridian_runtime::{Delay, Listen, Storage};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;

/// How often it is looked how many instances are under way.
const LOOK: Duration = Duration::from_millis(10);
/// The name of the bench's cluster.
pub const CLUSTER: &str = "bench";

/// What a replica is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub node: u16,
    pub recovery: Recovery,
    /// Where its data is; `None`: nowhere.
    pub dir: Option<PathBuf>,
    pub window: u64,
    pub batch_bytes: usize,
    pub batch_delay: Duration,
    pub request_bytes: usize,
    /// The way to each other replica.
    pub one_way: Duration,
}

/// What a replica is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// First of all: be this.
    Be(Setup),
    /// The addresses of all replicas, by node: start.
    Start(Vec<String>),
    /// How far are you?
    Tell,
}

/// What a replica says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Said {
    /// It listens there.
    Listening(String),
    /// It has begun.
    Started,
    /// How far it is.
    Tally(Tally),
    /// It cannot go on.
    Failed(String),
}

/// How far a replica is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Whether it leads.
    pub leading: bool,
    /// Requests and instances that it has executed.
    pub requests: u64,
    pub instances: u64,
    /// The sum of the instances under way whenever it was looked, and how often that was.
    pub under_way: u64,
    pub looks: u64,
    /// CPU time of all its threads.
    pub cpu: Duration,
}

/// Keeps only how much it has executed.
#[derive(Clone, Default)]
struct Counter(u64);

impl Service for Counter {
    fn execute(&mut self, _request: &Bytes) -> Bytes {
        self.0 += 1;
        Bytes::from_static(&[7; 8])
    }

    fn query(&self, _question: &[u8]) -> Bytes {
        Bytes::from_static(&[7; 8])
    }

    fn snapshot(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = u64::from_le_bytes(snapshot.try_into().map_err(|_| "not eight bytes")?);
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.0
    }
}

/// Runs one replica until standard input ends.
pub fn run() -> anyhow::Result<ExitCode> {
    output::log_to_stderr("warn");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(play(asks())) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            say(&Said::Failed(crate::one_line(&error)))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn say(said: &Said) -> anyhow::Result<()> {
    output::print(&serde_json::to_string(said)?)
}

/// What comes on standard input, until it ends.
fn asks() -> mpsc::UnboundedReceiver<Ask> {
    let (send, asks) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        let asked = lines.map_while(|line| serde_json::from_str(&line).ok());
        asked.map_while(|ask| send.send(ask).ok()).for_each(drop);
    });
    asks
}

async fn play(mut asks: mpsc::UnboundedReceiver<Ask>) -> anyhow::Result<()> {
    let Some(Ask::Be(setup)) = asks.recv().await else {
        bail!("this is started by `meridian bench paxos`, not by hand");
    };
    let socket = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
    say(&Said::Listening(socket.local_addr()?.to_string()))?;
    let Some(Ask::Start(addresses)) = asks.recv().await else { return Ok(()) };
    let replica = start(setup, socket, addresses).await?;
    say(&Said::Started)?;
    let mut tally = Tally::default();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => {
                tally.under_way += replica.status().await?.under_way;
                tally.looks += 1;
            }
            ask = asks.recv() => match ask {
                Some(Ask::Tell) => {
                    let status = replica.status().await?;
                    tally.leading = status.leading;
                    (tally.requests, tally.instances) = (status.position.0, status.executed.0);
                    tally.cpu = crate::bench::cpu_time();
                    say(&Said::Tally(tally))?;
                }
                Some(other) => bail!("asked at the wrong time: {other:?}"),
                None => return Ok(replica.close().await?),
            }
        }
    }
}

async fn start(
    setup: Setup,
    socket: TcpListener,
    addresses: Vec<String>,
) -> anyhow::Result<Replica<Counter>> {
    let members = (0..).map(NodeId).zip(addresses).collect();
    let storage = setup.dir.map_or(Storage::Memory, Storage::directory);
    let options = Options::new(CLUSTER, NodeId(setup.node), members, storage);
    let way = Delay { one_way: setup.one_way, jitter_percent: 0.0 };
    // Farther apart, it takes longer to tell a slow leader from one that is gone.
    let far = setup.one_way * 10;
    let usual = PaxosOptions::default();
    let paxos = PaxosOptions {
        recovery: setup.recovery,
        window: setup.window,
        batch_bytes: setup.batch_bytes,
        batch_delay: setup.batch_delay,
        request_bytes_max: setup.request_bytes.max(1024),
        suspect_after: usual.suspect_after.max(far) * 4,
        retransmit: usual.retransmit.max(far) * 4,
        ..usual
    };
    let delays = options.members.keys().map(|node| (*node, way)).collect();
    let options = Options { listen: Listen::Socket(socket), delays, paxos, ..options };
    Ok(Replica::start(options, Counter::default()).await?)
}
