//! `meridian bench kv redis`: servers of Meridian beside `redis-server`, both over RESP.
//!
//! Reads are asked by `redis-benchmark`, the same of both. For writes that are on all replicas that
//! program has no word, so they are asked by the connections of [`super::resp`]: of Redis each SET
//! or each batch of SETs is followed by `WAIT 2`, of Meridian a SET is answered when all have it.

use super::resp::{self, Asking, Rate};
use crate::harness::demo::Demo;
use crate::harness::{Machine, Scratch};
use anyhow::{Context, ensure};
use clap::Args;
use meridian_terminal::{die_with_parent, note, output};
use rustix::process::Signal;
use serde::Serialize;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to answer.
const READY: Duration = Duration::from_secs(30);
/// How often it is asked.
const LOOK: Duration = Duration::from_millis(50);
/// Where ports in a row are looked for; below those that Linux gives to outgoing connections.
const PORTS: std::ops::Range<u16> = 24_000..32_000;

/// How to measure.
#[derive(Debug, Args)]
pub struct RedisArgs {
    /// How many GETs `redis-benchmark` asks in each round
    #[arg(long, default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u32).range(1000..=100_000_000))]
    requests: u32,
    /// Over how many connections
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// How many requests a connection sends at once (`redis-benchmark -P`)
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pipeline: u32,
    /// How many connections write
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,
    /// How many keys there are
    #[arg(long, default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,
    /// Bytes of a value
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    value: u32,
    /// How often each is measured, in turn; medians count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// For how many seconds each is written to in a round
    #[arg(long, default_value_t = 2.0, value_parser = crate::harness::positive_seconds)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The figures of a run: medians of the rounds, per second.
#[derive(Debug, Serialize)]
struct Figures {
    machine: Machine,
    pipeline: u32,
    /// Of one server each.
    gets_redis: f64,
    gets_meridian: f64,
    gets_ratio: f64,
    /// On three servers each; a WAIT behind each SET.
    sets_redis: Rate,
    /// The same with a WAIT behind each batch: what is acknowledged in it is on one server.
    sets_redis_batched: Rate,
    sets_meridian: Rate,
    sets_ratio: f64,
    sets_ratio_batched: f64,
}

/// Runs `meridian bench kv redis`.
///
/// # Errors
/// If Redis is not installed, or a server does not answer as it should.
pub fn run(args: &RedisArgs) -> anyhow::Result<ExitCode> {
    for program in ["redis-server", "redis-benchmark"] {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        found.with_context(|| {
            format!("{program} is not here: apt-get install redis-server redis-tools")
        })?;
    }
    let machine = Machine::look_and_warn();
    let scratch = Scratch::make(&std::env::temp_dir())?;
    let gets = compare_gets(args, &scratch.path)?;
    let sets = compare_sets(args, &scratch.path)?;
    scratch.remove()?;
    let [gets_redis, gets_meridian] = gets;
    let [sets_redis, sets_redis_batched, sets_meridian] = sets;
    let figures = Figures {
        machine,
        pipeline: args.pipeline,
        gets_redis,
        gets_meridian,
        gets_ratio: gets_meridian / gets_redis,
        sets_ratio: sets_meridian.per_second / sets_redis.per_second,
        sets_ratio_batched: sets_meridian.per_second / sets_redis_batched.per_second,
        sets_redis,
        sets_redis_batched,
        sets_meridian,
    };
    if args.json {
        output::print(&serde_json::to_string_pretty(&figures)?)?;
    } else {
        print(&figures)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(figures: &Figures) -> anyhow::Result<()> {
    let row = |what: &str, per_second: f64, p99: String, ratio: String| {
        vec![what.to_string(), format!("{per_second:.0}"), p99, ratio]
    };
    let set = |what: &str, rate: &Rate, ratio: Option<f64>| {
        let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        row(what, rate.per_second, output::micros(rate.batch_p99_us), ratio)
    };
    let none = String::new;
    let rows = [
        row("GETs, 1 redis-server", figures.gets_redis, none(), none()),
        row(
            "GETs, 1 meridian",
            figures.gets_meridian,
            none(),
            format!("{:.2}", figures.gets_ratio),
        ),
        set("SETs, 3 redis-servers, WAIT 2 behind each", &figures.sets_redis, None),
        set("SETs, 3 redis-servers, WAIT 2 behind a batch", &figures.sets_redis_batched, None),
        set("SETs, 3 meridian", &figures.sets_meridian, Some(figures.sets_ratio)),
    ];
    output::print(&output::table(&["what", "per second", "p99 of a batch", "ratio"], rows))?;
    output::print(&format!("batches of {}; {}", figures.pipeline, figures.machine))
}

/// A `redis-server`, killed when this is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Call it on the main thread: the server dies with the thread that started it.
    fn start(dir: &Path, port: u16, primary: Option<u16>) -> anyhow::Result<Server> {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--repl-diskless-sync-delay", "0", "--port", &port.to_string()]);
        if let Some(primary) = primary {
            command.args(["--replicaof", "127.0.0.1", &primary.to_string()]);
        }
        command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        die_with_parent(&mut command, Signal::KILL);
        let server = Server { child: command.spawn().context("cannot start redis-server")?, port };
        answers(port)?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended by itself.
        let _ = self.child.wait();
    }
}

/// Waits until a server takes a write.
fn answers(port: u16) -> anyhow::Result<()> {
    until("a server does not answer", || {
        resp::call(port, &[b"GET", b"nothing"]).is_ok_and(|reply| reply == "$-1")
    })
}

fn until(otherwise: &str, mut is: impl FnMut() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY;
    while !is() {
        ensure!(Instant::now() < deadline, "{otherwise}");
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The first of so many ports in a row that nobody uses now.
fn ports(count: u16) -> anyhow::Result<u16> {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut firsts = PORTS.step_by(usize::from(count));
    let first = firsts.find(|first| (*first..*first + count).all(free));
    first.context("no ports are free")
}

/// A demo of so many nodes with keys, and their ports.
fn start_demo(dir: &Path, nodes: u16) -> anyhow::Result<(Demo, Vec<u16>)> {
    let dir = dir.join(format!("demo-{nodes}"));
    let first = ports(nodes)?;
    let (nodes_word, first_word) = (nodes.to_string(), first.to_string());
    let more = ["--regions", "us", "--nodes-per-region", &nodes_word, "--keys-port", &first_word];
    let demo = Demo::start(&std::env::current_exe()?, &dir, &more)?;
    let ports: Vec<u16> = (first..first + nodes).collect();
    ports.iter().try_for_each(|port| answers(*port))?;
    Ok((demo, ports))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// GETs per second of one redis-server and of one node of Meridian.
fn compare_gets(args: &RedisArgs, dir: &Path) -> anyhow::Result<[f64; 2]> {
    let redis = Server::start(dir, ports(1)?, None)?;
    let (demo, nodes) = start_demo(dir, 1)?;
    let both = [("redis-server", redis.port), ("meridian", nodes[0])];
    let mut gets = [Vec::new(), Vec::new()];
    for (_, port) in both {
        benchmark(args, port, "set", args.keys.saturating_mul(4))?;
    }
    for _ in 0..args.rounds {
        for ((name, port), gets) in both.iter().zip(&mut gets) {
            let rate = benchmark(args, *port, "get", args.requests)?;
            note!("{name}: {rate:.0} GETs/s");
            gets.push(rate);
        }
    }
    demo.stop()?;
    Ok(gets.map(median))
}

/// Requests per second, as `redis-benchmark` has measured them.
fn benchmark(args: &RedisArgs, port: u16, test: &str, requests: u32) -> anyhow::Result<f64> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", "127.0.0.1", "--csv", "-t", test]);
    let numbers = [
        ("-p", u32::from(port)),
        ("-n", requests),
        ("-c", args.clients),
        ("-P", args.pipeline),
        ("-r", args.keys),
        ("-d", args.value),
    ];
    for (name, number) in numbers {
        command.arg(name).arg(number.to_string());
    }
    let output = command.stdin(Stdio::null()).output().context("cannot run redis-benchmark")?;
    rate_of(&String::from_utf8_lossy(&output.stdout), test).with_context(|| {
        format!("redis-benchmark says {}", String::from_utf8_lossy(&output.stderr))
    })
}

/// From a line like `"GET","812345.67",...`.
fn rate_of(csv: &str, test: &str) -> Option<f64> {
    let quoted = format!("\"{}\",", test.to_uppercase());
    let line = csv.lines().find_map(|line| line.strip_prefix(&quoted))?;
    line.split('"').nth(1)?.parse().ok()
}

/// SETs per second that are on three servers: of Redis with a WAIT behind each and behind a batch,
/// and of Meridian.
fn compare_sets(args: &RedisArgs, dir: &Path) -> anyhow::Result<[Rate; 3]> {
    let first = ports(3)?;
    let primary = Server::start(dir, first, None)?;
    let mut replicas = Vec::new();
    for port in [first + 1, first + 2] {
        replicas.push(Server::start(dir, port, Some(first))?);
    }
    until("the replicas of redis-server do not follow", || {
        let info = resp::call(primary.port, &[b"INFO", b"replication"]);
        info.is_ok_and(|info| info.matches("state=online").count() == replicas.len())
    })?;
    let (demo, nodes) = start_demo(dir, 3)?;
    let asking = |ports: &[u16], waits| Asking {
        ports: ports.to_vec(),
        connections: args.writers,
        batch: args.pipeline,
        waits,
        keys: args.keys,
        value_bytes: args.value,
        length: Duration::from_secs_f64(args.seconds),
    };
    let all = [
        ("redis-server, WAIT behind each", asking(&[primary.port], resp::Waits::BehindEach)),
        ("redis-server, WAIT behind a batch", asking(&[primary.port], resp::Waits::BehindBatch)),
        ("meridian", asking(&nodes, resp::Waits::Never)),
    ];
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..args.rounds {
        for ((name, asking), rates) in all.iter().zip(&mut rates) {
            let rate = resp::write(asking)?;
            note!("{name}: {:.0} SETs/s", rate.per_second);
            rates.push(rate);
        }
    }
    demo.stop()?;
    Ok(rates.map(|mut rates| {
        rates.sort_by(|one, other| one.per_second.total_cmp(&other.per_second));
        rates[rates.len() / 2]
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_in_what_redis_benchmark_prints() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"812345.67\",\"0.5\"\n";
        assert_eq!(rate_of(csv, "get"), Some(812_345.67));
        assert_eq!(rate_of(csv, "set"), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
