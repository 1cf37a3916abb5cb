//! What a request costs in the protocol alone: three replicas in one thread, without network and
//! disk, and clients with one request each.
//!
//! ```sh
//! cargo run --release -p meridian-paxos --example request_cost ROUNDS CLIENTS BYTES MODE
//! ```
//!
//! Run it under a tool that counts instructions with two numbers of rounds, and take the
//! difference.

#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // It measures.

use bytes::Bytes;
use meridian_core::{Effect, Event, GroupId, NodeId, Outbox, Process, ProcessId, Time};
use meridian_paxos::{Answer, Command, Configuration, Options, Output, Paxos, Recovery, Service};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Answers eight bytes, as in the report's section 9.
#[derive(Clone, Debug)]
struct Echo(u64);

impl Service for Echo {
    fn execute(&mut self, _request: &Bytes) -> Bytes {
        self.0 += 1;
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn query(&self, _question: &[u8]) -> Bytes {
        Bytes::new()
    }

    fn snapshot(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = snapshot.try_into().map(u64::from_le_bytes).map_err(|_| "eight bytes")?;
        Ok(())
    }
}

struct World {
    now: Time,
    replicas: Vec<Paxos<Echo>>,
    inboxes: Vec<VecDeque<(ProcessId, meridian_paxos::Message)>>,
    out: Outbox<Paxos<Echo>>,
    outputs: Vec<Output>,
    messages: u64,
}

fn id(node: usize) -> ProcessId {
    ProcessId { group: GroupId(0), node: NodeId(u16::try_from(node).expect("few")) }
}

impl World {
    fn new(recovery: Recovery) -> World {
        let members = (0..3).map(|node| (id(node).node, String::new())).collect();
        let configuration = Configuration { members };
        let options = Options { recovery, ..Options::default() };
        let replica = |node| {
            Paxos::new(id(node), configuration.clone(), options.clone(), Echo(0), node as u64)
        };
        let mut world = World {
            now: Time(1),
            replicas: (0..3).map(replica).collect(),
            inboxes: vec![VecDeque::new(); 3],
            out: Outbox::new(),
            outputs: Vec::new(),
            messages: 0,
        };
        (0..3).for_each(|node| world.step(node, Event::Started));
        world
    }

    fn step(&mut self, node: usize, event: Event<Paxos<Echo>>) {
        self.replicas[node].step(self.now, event, &mut self.out);
        for effect in self.out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    self.messages += 1;
                    self.inboxes[usize::from(to.node.0)].push_back((id(node), message));
                }
                Effect::Output(output) => self.outputs.push(output),
                Effect::Persist(_) | Effect::Note(_) | Effect::Timer { .. } => {}
            }
        }
    }

    /// Lets all messages arrive, and those that follow, until there are none.
    fn settle(&mut self) {
        loop {
            let mut quiet = true;
            for node in 0..3 {
                self.now.0 += 1000;
                for (from, message) in std::mem::take(&mut self.inboxes[node]) {
                    quiet = false;
                    self.step(node, Event::Message { from, message });
                }
                self.step(node, Event::Idle);
            }
            if quiet && self.inboxes.iter().all(VecDeque::is_empty) {
                return;
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (rounds, clients, bytes) = (number(0, 1000), number(1, 500), number(2, 128));
    let named = |mode: &Recovery| arguments.get(3).is_some_and(|name| name == mode.name());
    let mut world = World::new(Recovery::ALL.into_iter().find(named).unwrap_or(Recovery::EpochSs));
    world.settle();
    let leader = world.replicas.iter().position(Paxos::is_leading).expect("nothing fails here");
    for token in 0..clients {
        world.step(leader, Event::Command(Command::Connect { token }));
    }
    let mut names = BTreeMap::new();
    for output in world.outputs.drain(..) {
        if let Output::Connected { token, client } = output {
            names.insert(token, client);
        }
    }
    let payload = Bytes::from(vec![7; usize::try_from(bytes).expect("short")]);
    let (start, messages) = (Instant::now(), world.messages);
    let mut done = 0;
    for round in 1..=rounds {
        for client in names.values() {
            let request = Command::execute(*client, round, payload.clone());
            world.step(leader, Event::Command(request));
        }
        world.settle();
        let answered =
            |output: &Output| matches!(output, Output::Reply { answer: Answer::Done(_), .. });
        done += world.outputs.drain(..).filter(answered).count() as u64;
    }
    assert_eq!(done, rounds * clients, "each request is answered once");
    let (seconds, messages) = (start.elapsed().as_secs_f64(), world.messages - messages);
    println!(
        "{done} requests, {:.2} us each at three replicas together, {:.3} messages each",
        seconds * 1e6 / done as f64,
        messages as f64 / done as f64
    );
}
