//! How fast a node fetches copies, from the outside: the test is its owner and all other nodes.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use bytes::Bytes;
use meridian_cluster::Topology;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use meridian_core::{BlockId, Effect, Event, GroupId, NodeId, Outbox, Process, Time};
use meridian_host::drain::{Command, Drain, Message, Output, Tick};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const ME: NodeId = NodeId(0);
const BLOCK: usize = 1 << 20;
const BLOCKS: u64 = 2000;
/// What reading and sending a block takes the other node.
const ANSWER: Duration = Duration::from_millis(2);

/// Three nodes of one region, so that each holds two thirds of all blocks.
fn topology() -> Arc<Topology> {
    let entry = |name: &str| NodeEntry {
        name: name.into(),
        region: "us".into(),
        pid: None,
        address: "127.0.0.1:1".into(),
        groups: vec!["us".into(), "global".into()],
        draining: None,
    };
    let nodes = ["us-1", "us-2", "us-3"].map(entry).to_vec();
    let (rtt_ms, order) = Default::default();
    let (format, configuration) = (CLUSTER_FORMAT, Default::default());
    let file = ClusterFile {
        format,
        insecure_plain_text: true,
        created_ms: 0,
        cluster: 1,
        nodes,
        rtt_ms,
        order,
        configuration,
    };
    Arc::new(Topology::new(&file).unwrap())
}

/// A node that has lost all its blocks, and what it did about that.
struct Fetcher {
    drain: Drain,
    due: BTreeSet<(Time, Tick)>,
    /// Blocks on their way here, and when they come.
    coming: BTreeSet<(Time, BlockId)>,
    stored: BTreeSet<BlockId>,
    most_under_way: usize,
    /// When a block was stored.
    times: Vec<Time>,
}

impl Fetcher {
    fn new() -> Fetcher {
        let drain = Drain::new(topology(), ME);
        let (due, coming, stored) = Default::default();
        let (most_under_way, times) = (0, Vec::new());
        Fetcher { drain, due, coming, stored, most_under_way, times }
    }

    fn step(&mut self, now: Time, event: Event<Drain>) {
        let mut out = Outbox::new();
        self.drain.step(now, event, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Timer { at, timer } => drop(self.due.insert((at, timer))),
                Effect::Send { message: Message::Pass { block, .. }, .. } => {
                    self.coming.insert((now + ANSWER, block));
                    self.most_under_way = self.most_under_way.max(self.coming.len());
                }
                Effect::Output(Output::Live { number, after, limit }) => {
                    let next = after.map_or(0, |after| (after.0 & 0xffff) as u64 + 1);
                    let blocks = (next..BLOCKS).map(block).take(limit).collect();
                    self.step(now, Event::Command(Command::Live { number, blocks }));
                }
                Effect::Output(Output::Look { number, mut blocks }) => {
                    blocks.retain(|block| !self.stored.contains(block));
                    self.step(now, Event::Command(Command::Lacking { number, blocks }));
                }
                Effect::Output(Output::Store { from, block, .. }) => {
                    self.stored.insert(block);
                    self.times.push(now);
                    let stored = Command::Stored { from, block, stored: true };
                    self.step(now, Event::Command(stored));
                }
                _ => {}
            }
        }
    }

    /// Runs for so many seconds, in each of which so many updates are applied.
    fn run(&mut self, seconds: u64, updates: u64) {
        self.step(Time(0), Event::Started);
        let (end, mut applied) = (Time(0) + Duration::from_secs(seconds), 0);
        loop {
            let timer = self.due.first().map(|(at, _)| *at);
            let block = self.coming.first().map(|(at, _)| *at);
            let now = timer.into_iter().chain(block).min().unwrap();
            if now > end {
                return;
            }
            if block == Some(now) {
                let (_, block) = self.coming.pop_first().unwrap();
                let data = Bytes::from(vec![0; BLOCK]);
                let message = Message::Copy { block, data };
                self.step(now, Event::Message { from: NodeId(1), message });
                continue;
            }
            let (_, tick) = self.due.pop_first().unwrap();
            if tick == Tick::Look {
                applied += updates;
                self.step(now, Event::Command(Command::Applied(applied)));
            }
            self.step(now, Event::Timer(tick));
        }
    }

    /// The most that was stored within so long.
    fn most_within(&self, window: Duration) -> usize {
        let ends = self.times.iter().enumerate();
        let within = ends.map(|(first, at)| {
            self.times[first..].iter().take_while(|other| **other < *at + window).count()
        });
        within.max().unwrap_or(0)
    }
}

/// The block of that number of the region's partition; their order is that of their numbers.
fn block(number: u64) -> BlockId {
    let first = BlockId::named(GroupId(1), 0, 0);
    BlockId(first.0 | u128::from(number))
}

#[test]
fn copies_take_their_rate_when_nobody_writes_and_a_quarter_of_it_beside_writers() {
    let mut idle = Fetcher::new();
    idle.run(10, 0);
    // 32 MiB a second are allowed, from the second in which it was seen that they are missing.
    assert!((8 * 32..=10 * 32).contains(&idle.stored.len()), "{}", idle.stored.len());
    assert!(idle.most_under_way > 1, "{}", idle.most_under_way);
    let mut busy = Fetcher::new();
    busy.run(10, 500);
    assert!((7 * 8..=10 * 8).contains(&busy.stored.len()), "{}", busy.stored.len());
    assert_eq!(busy.most_under_way, 1);
    // Spread: in no tenth of a second is there a second's share.
    let window = Duration::from_millis(100);
    assert!(busy.most_within(window) <= 2, "{}", busy.most_within(window));
}
