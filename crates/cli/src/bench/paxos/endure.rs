//! `meridian bench paxos endure`: very many requests at five replicas, of which one dies for good, one is away for half of
//! them, and one is slow.

use super::cluster::Cluster;
use super::load;
use super::load::{Setup, Shared, ask_all};
use crate::bench::flatness::{self, Flatness, JUDGED_FROM, SAMPLES, Sample, Usage};
use crate::output;
use anyhow::{Context, bail, ensure};
use clap::Args;
use meridian_paxos::Recovery;
use rustix::process::Signal;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;
use tokio::time::sleep;

const REPLICAS: u16 = 5;
/// How long the slow one stands still and runs, in turn.
const SLOW: Duration = Duration::from_millis(200);
/// Nothing was answered for so long: nothing more will be.
const STALLED: Duration = Duration::from_secs(60);

/// How to endure.
#[derive(Debug, Args)]
pub struct EndureArgs {
    /// How many requests are answered, in all
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10_000..=1_000_000_000))]
    requests: u64,
    /// What survives a crash; who is away must be able to come back, so not crash-stop
    #[arg(long, default_value = "full-ss")]
    mode: Recovery,
    /// How many clients ask, each one request at a time
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Bytes of each request
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    size: u32,
    /// Where the replicas' directories are made, and removed at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Outcome {
    requests: u64,
    mode: Recovery,
    seconds: f64,
    requests_per_second: f64,
    /// Which replicas were slow, dead and away.
    slow: u16,
    dead: u16,
    away: u16,
    /// What the replica that was away had missed when it was started again.
    missed: u64,
    /// From its start until it had executed all that.
    returned_seconds: f64,
    /// The longest time in which nothing was answered.
    longest_pause_seconds: f64,
    flatness: Vec<Flatness>,
    /// `None` if there were too few requests to judge.
    flat: Option<bool>,
    samples: Vec<Sample>,
}

/// Runs `meridian bench paxos endure`.
pub fn run(args: &EndureArgs) -> anyhow::Result<ExitCode> {
    ensure!(args.mode != Recovery::CrashStop, "--mode crash-stop: nobody comes back in that mode");
    let stop = crate::bench::stop_on_signal()?;
    let setup = Setup {
        mode: args.mode,
        clients: args.clients,
        connections: args.clients.min(16),
        size: args.size,
        replicas: REPLICAS,
        bsz: 64 << 10,
        wnd: 10,
        delta_b: Duration::ZERO,
        rtt: Duration::ZERO,
        warm_up: Duration::ZERO,
        length: Duration::ZERO,
        dir: args.dir.clone(),
    };
    let mut cluster = Cluster::start(&setup)?;
    let leader = cluster.reports()?.iter().flatten().position(|report| report.leading);
    let leader = leader.context("no replica leads")? as u16;
    let mut others = (0..REPLICAS).filter(|node| *node != leader);
    let mut other = || others.next().context("five are enough");
    let (slow, dead, away) = (other()?, other()?, other()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let run = Run::new(args, [slow, dead, away], cluster);
    let (cluster, outcome) = local.block_on(&runtime, run.until_all_is_answered(&setup, &stop))?;
    cluster.close(args.requests)?;
    print(&outcome, args.json)?;
    ensure!(outcome.flat != Some(false), "memory or disk of a replica are not flat");
    Ok(ExitCode::SUCCESS)
}

/// A run.
struct Run<'a> {
    args: &'a EndureArgs,
    cluster: Cluster,
    slow: u16,
    dead: u16,
    away: u16,
    begin: Instant,
    usage: Vec<Usage>,
    samples: Vec<Sample>,
    is_dead: bool,
    is_away: bool,
    /// When it was started again and how many requests were answered then, and when it had executed them.
    back: Option<(Instant, u64)>,
    returned: Option<Instant>,
    frozen: bool,
    turned: Instant,
    /// When something was answered last, how much that was, and the longest pause.
    moved: (Instant, u64),
    pause: Duration,
}

impl<'a> Run<'a> {
    fn new(args: &'a EndureArgs, [slow, dead, away]: [u16; 3], cluster: Cluster) -> Run<'a> {
        let now = Instant::now();
        Run {
            args,
            cluster,
            slow,
            dead,
            away,
            begin: now,
            usage: vec![Usage::default(); usize::from(REPLICAS)],
            samples: Vec::new(),
            is_dead: false,
            is_away: false,
            back: None,
            returned: None,
            frozen: false,
            turned: now,
            moved: (now, 0),
            pause: Duration::ZERO,
        }
    }

    async fn until_all_is_answered(
        mut self,
        setup: &Setup,
        stop: &std::sync::atomic::AtomicBool,
    ) -> anyhow::Result<(Cluster, Outcome)> {
        let shared = Shared::new()?;
        let mut clients = ask_all(setup, &self.cluster.addresses(), &shared).await?;
        while shared.answered.get() < self.args.requests || self.returned.is_none() {
            ensure!(!stop.load(std::sync::atomic::Ordering::Relaxed), "interrupted");
            sleep(load::LOOK).await;
            self.turn(shared.answered.get())?;
            if clients.try_join_next().is_some() {
                bail!("a client has ended before the others");
            }
        }
        shared.ended.set(true);
        if self.frozen {
            self.cluster.signal(self.slow, Signal::CONT)?;
        }
        while let Some(ended) = clients.join_next().await {
            ended?.context("a client")?;
        }
        let answered = shared.answered.get();
        let (cluster, outcome) = self.outcome(answered)?;
        Ok((cluster, outcome))
    }

    /// What time and the number of answered requests demand.
    fn turn(&mut self, answered: u64) -> anyhow::Result<()> {
        let (now, all) = (Instant::now(), self.args.requests);
        if answered > self.moved.1 {
            self.pause = self.pause.max(now - self.moved.0);
            self.moved = (now, answered);
        }
        ensure!(now - self.moved.0 < STALLED, "nothing was answered for {STALLED:?}");
        if now - self.turned >= SLOW {
            let signal = if self.frozen { Signal::CONT } else { Signal::STOP };
            self.cluster.signal(self.slow, signal)?;
            (self.frozen, self.turned) = (!self.frozen, now);
        }
        if !self.is_dead && answered >= all / 8 {
            self.is_dead = true;
            self.cluster.kill(self.dead);
            self.say(&format!("replica {} is killed for good", self.dead));
        }
        if !self.is_away && self.back.is_none() && answered >= all / 4 {
            self.is_away = true;
            self.cluster.kill(self.away);
            self.say(&format!("replica {} is killed", self.away));
        }
        if self.is_away && answered >= all / 4 * 3 {
            self.is_away = false;
            self.back = Some((now, answered));
            self.cluster.start_again(self.away)?;
            self.say(&format!("replica {} is started again", self.away));
        }
        if let (Some((_, missed)), None) = (self.back, self.returned)
            && let Some(report) = self.cluster.report(self.away)?
            && report.active
            && report.requests >= missed
        {
            self.returned = Some(Instant::now());
            self.say(&format!("replica {} has all again", self.away));
        }
        for node in 0..REPLICAS {
            let usage = &mut self.usage[usize::from(node)];
            *usage = usage.max(self.cluster.usage(node));
        }
        let due = (self.samples.len() as u64 + 1) * all / SAMPLES;
        if answered >= due && (self.samples.len() as u64) < SAMPLES {
            self.sample(answered);
        }
        Ok(())
    }

    fn sample(&mut self, messages: u64) {
        let seconds = self.begin.elapsed().as_secs_f64();
        let (before, since) =
            self.samples.last().map_or((0, 0.0), |last| (last.messages, last.seconds));
        let messages_per_second = (messages - before) as f64 / (seconds - since).max(1e-3);
        let nodes = usize::from(REPLICAS);
        let replicas = std::mem::replace(&mut self.usage, vec![Usage::default(); nodes]);
        let sum = |of: fn(&Usage) -> u64| replicas.iter().map(of).sum::<u64>() >> 20;
        self.say(&format!(
            "{:>5.1} %  {messages_per_second:.0} requests/s, {} MiB of memory, {} MiB on disk",
            messages as f64 * 100.0 / self.args.requests as f64,
            sum(|usage| usage.memory),
            sum(|usage| usage.disk),
        ));
        // It counts as away in the sample in which it came back: it has read its log then, and taken in a snapshot.
        let last = self.begin + Duration::from_secs_f64(since);
        let away =
            self.is_away || (self.back.is_some() && self.returned.is_none_or(|at| at >= last));
        self.samples.push(Sample { messages, seconds, messages_per_second, away, replicas });
    }

    fn say(&self, text: &str) {
        if !self.args.json {
            note!("{:>6.1} s  {text}", self.begin.elapsed().as_secs_f64());
        }
    }

    fn outcome(self, answered: u64) -> anyhow::Result<(Cluster, Outcome)> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let names: Vec<String> = (0..REPLICAS).map(|node| format!("replica {node}")).collect();
        let judged = flatness::judge(&names, self.away.into(), &self.samples);
        // Of one that is dead there is nothing to be judged.
        let dead = &names[usize::from(self.dead)];
        let judged: Vec<_> = judged.into_iter().filter(|one| !one.what.starts_with(dead)).collect();
        let (started, back) = self.back.context("no replica was away")?;
        let returned = self.returned.context("it has not returned")?;
        let flat = || judged.iter().all(|one| one.flat);
        let outcome = Outcome {
            requests: answered,
            mode: self.args.mode,
            seconds,
            requests_per_second: answered as f64 / seconds,
            slow: self.slow,
            dead: self.dead,
            away: self.away,
            missed: back - self.args.requests / 4,
            returned_seconds: returned.duration_since(started).as_secs_f64(),
            longest_pause_seconds: self.pause.as_secs_f64(),
            flat: (self.args.requests >= JUDGED_FROM).then(flat),
            flatness: judged,
            samples: self.samples,
        };
        Ok((self.cluster, outcome))
    }
}

fn print(outcome: &Outcome, json: bool) -> anyhow::Result<()> {
    if json {
        return output::print(&serde_json::to_string_pretty(outcome)?);
    }
    output::print(&format!(
        "{} requests in {:.1} s, {:.0} requests/s; replica {} was slow, {} dead from the first eighth on; replica {} missed \
         {} requests and had executed them {:.1} s after its start; the longest pause was {:.1} s",
        outcome.requests,
        outcome.seconds,
        outcome.requests_per_second,
        outcome.slow,
        outcome.dead,
        outcome.away,
        outcome.missed,
        outcome.returned_seconds,
        outcome.longest_pause_seconds,
    ))?;
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    let rows = outcome.flatness.iter().map(|one| {
        let verdict = if one.flat || outcome.flat.is_none() { "" } else { "NOT FLAT" };
        vec![
            one.what.clone(),
            mib(one.median),
            mib(one.greatest),
            mib(one.growth),
            verdict.to_string(),
        ]
    });
    output::print(&output::table(&["MiB of", "median", "greatest", "trend", ""], rows))
}
