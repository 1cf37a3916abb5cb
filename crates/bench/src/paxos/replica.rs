//! One replica, in a process of its own, of the service of the report's section 9: it keeps no more
//! than a count.

use crate::harness::processes::{Order, Place, Program};
use crate::harness::replica::{self, Joined};
use anyhow::{Context, bail};
use bytes::Bytes;
use meridian_core::NodeId;
use meridian_paxos::{Options as PaxosOptions, Paxos, Recovery, Routing, Service};
use meridian_runtime::delay::Delay;
use meridian_runtime::{Listen, Storage, smr};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often it is looked how many instances are in flight.
const SAMPLE: Duration = Duration::from_millis(5);

/// How a replica is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub mode: Recovery,
    pub bsz: u32,
    pub wnd: u64,
    pub delta_b: Duration,
    /// To each other replica.
    pub one_way: Duration,
}

/// What a replica is asked: how far it is, and has been since this was asked last.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Request;

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
    /// Instances in flight, on average since the last report.
    pub under_way: f64,
    /// What its process has used.
    pub cpu: Duration,
}

/// The program that the replicas run.
#[derive(Debug)]
pub struct Counting;

impl Program for Counting {
    type Setup = Setup;
    type Request = Request;
    type Report = Report;
    const ARGS: &'static [&'static str] = &["bench", "paxos", "replica"];

    fn name(place: &Place<Setup>) -> String {
        format!("replica {}", place.node)
    }
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
    replica::run(play)
}

async fn play(joined: Joined<Counting>) -> anyhow::Result<()> {
    let Joined { place, socket, addresses, mut requests } = joined;
    let options = options(&place, socket, addresses)?;
    let replica = smr::Replica::start(options, Count::default()).await?;
    let mut samples = Samples::default();
    let mut every: Interval = interval(SAMPLE);
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            request = requests.recv() => match request {
                Some(Order::Request(Request)) => {
                    replica::report::<Counting>(report(&replica, &mut samples).await?)?;
                }
                Some(Order::Be(_) | Order::Join(_)) => bail!("it has joined already"),
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

fn options(
    place: &Place<Setup>,
    socket: TcpListener,
    addresses: Vec<String>,
) -> anyhow::Result<smr::Options> {
    let Place { node, dir, setup, .. } = place;
    let members: BTreeMap<_, _> = (0..).map(NodeId).zip(addresses).collect();
    let delay = Delay { one_way: setup.one_way, jitter_percent: 0.0 };
    let delays = members.keys().map(|node| (*node, delay)).collect();
    let patience = setup.one_way * 10;
    let usual = PaxosOptions::default();
    let paxos = PaxosOptions {
        recovery: setup.mode,
        window: setup.wnd,
        batch_bytes: setup.bsz as usize,
        batch_delay: setup.delta_b,
        request_bytes_max: usual.request_bytes_max.min((smr::UNDER_WAY_MAX / setup.wnd) as usize),
        routing: Routing::Redirect,
        suspect_after: usual.suspect_after + patience,
        retransmit: usual.retransmit + patience,
        ..usual
    };
    let storage = Storage::directory(dir.as_ref().context("it has no directory")?);
    Ok(smr::Options {
        listen: Listen::Socket(socket),
        delays,
        paxos,
        ..smr::Options::new("bench", NodeId(*node), members, storage)
    })
}

/// How many instances were in flight when it was looked.
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
        cpu: crate::harness::cpu_time(),
    })
}
