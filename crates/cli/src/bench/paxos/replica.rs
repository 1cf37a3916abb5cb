//! One replica, in a process of its own, of the service of the report's section 9: it keeps no more than a count.
//!
//! It is asked by lines of JSON on standard input ([`Ask`]), and answers so on standard output ([`Said`]).
//! When its input ends it closes the replica and ends.

use crate::bench::child::{asks, say};
use crate::output;
use anyhow::{Context, bail};
use bytes::Bytes;
use meridian_core::NodeId;
use meridian_paxos::{Options as PaxosOptions, Paxos, Recovery, Routing, Service};
use meridian_runtime::delay::Delay;
use meridian_runtime::{Listen, Storage, smr};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often it is looked how many instances are under way.
const SAMPLE: Duration = Duration::from_millis(5);

/// What a replica is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Be {
    pub node: u16,
    /// Where it listens.
    pub listen: String,
    pub mode: Recovery,
    pub bsz: u32,
    pub wnd: u64,
    pub delta_b: Duration,
    /// To each other replica.
    pub one_way: Duration,
    pub dir: PathBuf,
}

/// What a replica is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// First of all: be this.
    Be(Be),
    /// The addresses of all replicas, by node: join, and begin.
    Join(Vec<String>),
    /// How far it is, and has been since this was asked last.
    Report,
}

/// What a replica has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub leading: bool,
    /// Whether it has its memory.
    pub active: bool,
    /// Executed.
    pub instances: u64,
    pub requests: u64,
    /// The digest of all replies.
    pub digest: u64,
    /// Instances under way, on average since the last report.
    pub under_way: f64,
    /// What its process has used.
    pub cpu: Duration,
}

/// What a replica says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Said {
    /// It listens there.
    Listening(String),
    /// It has joined.
    Joined,
    /// How far it is.
    Report(Report),
    /// It cannot go on.
    Failed(String),
}

/// Counts its requests, and answers the count: eight bytes.
#[derive(Clone, Debug, Default)]
struct Count(u64);

impl Service for Count {
    fn execute(&mut self, _request: &Bytes) -> Bytes {
        self.0 += 1;
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn query(&self, _question: &[u8]) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn snapshot(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let bytes = snapshot.try_into().map_err(|_| format!("{} bytes", snapshot.len()))?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }
}

/// Runs `meridian bench paxos replica`.
pub fn run() -> anyhow::Result<ExitCode> {
    output::log_to_stderr("warn");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(play(asks())) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            say(&Said::Failed(format!("{error:#}")))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn play(mut asks: mpsc::UnboundedReceiver<Ask>) -> anyhow::Result<()> {
    let Some(Ask::Be(be)) = asks.recv().await else {
        bail!("this is started by `meridian bench paxos`, not by hand");
    };
    let socket =
        TcpListener::bind(&be.listen).with_context(|| format!("cannot listen on {}", be.listen))?;
    say(&Said::Listening(socket.local_addr()?.to_string()))?;
    let Some(Ask::Join(addresses)) = asks.recv().await else { return Ok(()) };
    let replica = smr::Replica::start(options(&be, socket, addresses), Count::default()).await?;
    say(&Said::Joined)?;
    let mut samples = Samples::default();
    let mut every: Interval = interval(SAMPLE);
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            ask = asks.recv() => match ask {
                Some(Ask::Report) => say(&Said::Report(report(&replica, &mut samples).await?))?,
                Some(_) => bail!("it has joined already"),
                None => break,
            },
            _ = every.tick() => {
                samples.add(replica.look(|process| process.status().under_way).await?);
            }
            why = replica.stopped() => bail!("{}", why.unwrap_or_else(|| "it has ended".into())),
        }
    }
    Ok(replica.close().await?)
}

fn options(be: &Be, socket: TcpListener, addresses: Vec<String>) -> smr::Options {
    let members: BTreeMap<_, _> = (0..).map(NodeId).zip(addresses).collect();
    let delay = Delay { one_way: be.one_way, jitter_percent: 0.0 };
    let delays = members.keys().map(|node| (*node, delay)).collect();
    let patience = be.one_way * 10;
    let usual = PaxosOptions::default();
    let paxos = PaxosOptions {
        recovery: be.mode,
        window: be.wnd,
        batch_bytes: be.bsz as usize,
        batch_delay: be.delta_b,
        request_bytes_max: usual.request_bytes_max.min((smr::UNDER_WAY_MAX / be.wnd) as usize),
        routing: Routing::Redirect,
        suspect_after: usual.suspect_after + patience,
        retransmit: usual.retransmit + patience,
        ..usual
    };
    let storage = Storage::directory(&be.dir);
    smr::Options {
        listen: Listen::Socket(socket),
        delays,
        paxos,
        ..smr::Options::new("bench", NodeId(be.node), members, storage)
    }
}

/// How many instances were under way when it was looked.
#[derive(Default)]
struct Samples {
    sum: u64,
    count: u64,
}

impl Samples {
    fn add(&mut self, under_way: u64) {
        self.sum += under_way;
        self.count += 1;
    }
}

async fn report(replica: &smr::Replica<Count>, samples: &mut Samples) -> anyhow::Result<Report> {
    let look = |process: &Paxos<Count>| (process.status(), process.digest());
    let (status, digest) = replica.look(look).await?;
    let Samples { sum, count } = std::mem::take(samples);
    Ok(Report {
        leading: status.leading,
        active: status.active,
        instances: status.executed.0,
        requests: status.position.0,
        digest,
        under_way: sum as f64 / count.max(1) as f64,
        cpu: crate::bench::cpu_time(),
    })
}
