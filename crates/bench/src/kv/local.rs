//! `meridian bench kv local`: how fast one core reads from a replica of Hermes in its own process.

use super::contender::{Contender, Replica, hermes};
use crate::harness::draw::{Distribution, Draw};
use crate::harness::{Machine, cpu_time};
use anyhow::ensure;
use bytes::{Bytes, BytesMut};
use clap::Args;
use meridian_core::{Event, NodeId, Outbox, Process, mix};
use meridian_hermes::Acks;
use meridian_runtime::Clock;
use meridian_terminal::output;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

/// So many requests are drawn beforehand, and asked again and again.
const DRAWN: usize = 1 << 18;
/// The length of a key.
const KEY_BYTES: usize = 8;

/// How to measure.
#[derive(Debug, Args)]
pub struct LocalArgs {
    /// How many keys there are
    #[arg(long, default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,
    /// How requests spread over the keys
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Bytes of a value
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    value: u32,
    /// After so many reads the clock is asked whether the lease still holds
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// For how many seconds of a core's time it is measured
    #[arg(long, default_value_t = 2.0, value_parser = crate::harness::positive_seconds)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
struct Figures {
    machine: Machine,
    keys: u32,
    distribution: Distribution,
    value_bytes: u32,
    batch: u32,
    reads_per_second: f64,
}

/// Runs `meridian bench kv local`.
///
/// # Errors
/// If a key is not found.
pub fn run(args: &LocalArgs) -> anyhow::Result<ExitCode> {
    let machine = Machine::look_and_warn();
    let length = Duration::from_secs_f64(args.seconds);
    let (reads, lasted) = measure(args, length)?;
    let figures = Figures {
        machine,
        keys: args.keys,
        distribution: args.distribution,
        value_bytes: args.value,
        batch: args.batch,
        reads_per_second: reads as f64 / lasted.as_secs_f64(),
    };
    if args.json {
        output::print(&serde_json::to_string_pretty(&figures)?)?;
    } else {
        output::print(&format!("{:.1} million reads/s", figures.reads_per_second / 1e6))?;
        output::print(&figures.machine.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How many reads there were, and how much time of the core they took: others may use it, too.
fn measure(args: &LocalArgs, length: Duration) -> anyhow::Result<(u64, Duration)> {
    let clock = Clock::start();
    let mut replica = hermes(NodeId(0), Acks::Coordinator);
    let mut out = Outbox::new();
    let keys: Vec<_> =
        (0..args.keys).map(|key| Bytes::from(mix(key.into()).to_be_bytes().to_vec())).collect();
    let value = Bytes::from(vec![b'v'; args.value as usize]);
    let writes = keys.iter().map(|key| Replica::write(0, key.clone(), value.clone()));
    for command in Replica::begin(&[NodeId(0)]).into_iter().chain(writes) {
        replica.step(clock.now(), Event::Command(command), &mut out);
        out.drain().for_each(drop);
    }
    let asked = requests(&Draw::new(args.distribution, args.keys), &keys);
    let (mut reads, mut found) = (0u64, 0u64);
    let (begin, mut now) = (cpu_time(), clock.now());
    loop {
        for batch in asked.chunks(args.batch as usize) {
            for key in batch {
                let value = replica.read(now, key);
                found += u64::from(black_box(value).flatten().is_some());
            }
            // What was read is answered if the lease holds even now.
            now = clock.now();
            ensure!(replica.serves(now), "the lease has ended");
            reads += batch.len() as u64;
        }
        // Once at least: other threads of this process use time, too.
        if cpu_time().saturating_sub(begin) >= length {
            break;
        }
    }
    let lasted = cpu_time().saturating_sub(begin);
    ensure!(found == reads, "{} reads have found nothing, a bug", reads - found);
    Ok((reads, lasted))
}

/// Keys one after the other in one buffer, as they come from clients.
fn requests(draw: &Draw, keys: &[Bytes]) -> Vec<Bytes> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut buffer = BytesMut::with_capacity(DRAWN * KEY_BYTES);
    for _ in 0..DRAWN {
        buffer.extend_from_slice(&keys[draw.next(&mut random) as usize]);
    }
    let buffer = buffer.freeze();
    let request = |at: usize| buffer.slice(at * KEY_BYTES..(at + 1) * KEY_BYTES);
    (0..DRAWN).map(request).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_read_finds_its_key() {
        let args = LocalArgs {
            keys: 100,
            distribution: Distribution::Zipfian,
            value: 32,
            batch: 3,
            seconds: 0.001,
            json: false,
        };
        let (reads, lasted) = measure(&args, Duration::from_millis(1)).unwrap();
        assert!(reads >= DRAWN as u64 && lasted >= Duration::from_millis(1));
    }
}
