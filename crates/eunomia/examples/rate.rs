//! How many labels a second one replica of the service puts in order, on one core and without a
//! network: Figure 4.2 of the thesis without its sockets.
//!
//! `cargo run --release -p meridian-eunomia --example rate`
//!
//! Sources are real ones, that commit labels and answer what they are told; only the replica's
//! steps are timed. Each virtual 2 ms all of them send a batch, and the receivers of two other
//! regions say that they have applied what they got 100 ms before. "Not replicated" is Algorithm
//! 3: nothing is kept or acknowledged, and labels go to two regions; the service itself is asked,
//! without messages.

#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // It measures real time.

use meridian_core::{Event, Outbox, Process, RegionId, Time};
use meridian_eunomia::{
    Batch, Message, Options, Peer, Replica, Role, Site, Source, Stabilizer, Timer, Timestamp,
    Topology, Vector,
};
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HERE: RegionId = RegionId(0);
const ROUND_NS: u64 = 2_000_000;
/// Labels in a round, of all sources.
const LABELS: u64 = 6_000;
const ROUNDS: u64 = 1_500;

/// What sources have sent in a round.
fn batches(sources: &mut [Source], now: Time) -> Vec<Batch> {
    let count = sources.len() as u64;
    let of = |source: &mut Source| {
        for at in 0..LABELS / count {
            let begun = Time(now.0 + at * (ROUND_NS * count / LABELS));
            let label = source.begin(begun, &Vector::default(), at as u32);
            source.commit(label);
        }
        let (promise, _) = source.promise(Time(now.0 + ROUND_NS), 0);
        source.batch(0, usize::MAX, promise)
    };
    sources.iter_mut().map(of).collect()
}

fn sources(count: u16) -> Vec<Source> {
    (0..count).map(|number| Source::new(HERE, number)).collect()
}

/// Labels a second of what Algorithm 3 does.
fn alone(count: u16) -> f64 {
    let (mut sources, mut service) = (sources(count), Stabilizer::new(count, Default::default()));
    let (mut spent, mut labels) = (Duration::ZERO, 0);
    for round in 0..ROUNDS {
        let batches = batches(&mut sources, Time(round * ROUND_NS));
        let begun = Instant::now();
        for (source, batch) in (0..).zip(batches) {
            service.add(source, batch);
        }
        labels += service.process_stable();
        for _ in 0..2 {
            let sent: Vec<_> = service.after(Timestamp::ZERO, usize::MAX).copied().collect();
            black_box(sent);
        }
        service.drop_upto(service.stable_time());
        spent += begun.elapsed();
        sources.iter_mut().for_each(|source| drop(source.trim(service.stable_time())));
    }
    labels as f64 / spent.as_secs_f64()
}

/// Labels a second of a replica with all that it does for others.
fn replicated(count: u16) -> f64 {
    let site = Site { shards: count, replicas: 3 };
    let topology = Arc::new(Topology::new(vec![site; 3]));
    let options = Options { window: 1 << 20, ..Options::default() };
    let mut replica = Replica::new(HERE, 0, topology, options);
    let (mut sources, mut out) = (sources(count), Outbox::new());
    let (mut spent, mut labels, mut applied) = (Duration::ZERO, 0, VecDeque::new());
    for round in 0..ROUNDS {
        let now = Time(round * ROUND_NS);
        let batches = batches(&mut sources, now);
        let begun = Instant::now();
        for (source, batch) in (0..).zip(batches) {
            let from = Peer { region: HERE, role: Role::Shard(source) };
            let message = Message::Batch(batch);
            replica.step(now, Event::Message { from, message }, &mut out);
        }
        replica.step(now, Event::Timer(Timer::Tick), &mut out);
        applied.push_back(replica.stable_time());
        if applied.len() > 50 {
            let upto = applied.pop_front().expect("there are more");
            labels += LABELS;
            for region in [1, 2].map(RegionId) {
                let from = Peer { region, role: Role::Receiver };
                let message =
                    Message::Follow { applied: upto, received: upto, leads: true, lacks: false };
                replica.step(now, Event::Message { from, message }, &mut out);
            }
        }
        out.drain().for_each(|effect| drop(black_box(effect)));
        spent += begun.elapsed();
        let known = applied.front().copied().unwrap_or_default().before();
        sources.iter_mut().for_each(|source| drop(source.trim(known)));
    }
    labels as f64 / spent.as_secs_f64()
}

fn main() {
    println!("sources  not replicated  one of three replicas   (million labels a second)");
    for count in [15, 30, 45, 60, 75] {
        let best = |of: fn(u16) -> f64| (0..3).map(|_| of(count)).fold(0.0, f64::max) / 1e6;
        println!("{count:7}  {:14.2}  {:21.2}", best(alone), best(replicated));
    }
}
