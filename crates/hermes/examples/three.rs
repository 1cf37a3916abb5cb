//! Three replicas in one thread (`cargo run -p meridian-hermes --example three`): one writes,
//! another counts, the third reads from its own memory.

use bytes::Bytes;
use meridian_core::{Effect, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::{
    Action, Command, Epoch, Hermes, Membership, Modified, Modify, Options, Request,
};
use std::collections::VecDeque;

/// The RMW of this example: counts, and answers how far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Add(u64);

impl Modify for Add {
    fn modify(&self, found: Option<&Bytes>) -> Modified {
        let found = found.and_then(|found| std::str::from_utf8(found).ok()?.parse::<u64>().ok());
        let sum = Bytes::from((found.unwrap_or(0) + self.0).to_string());
        Modified::Change { value: Some(sum.clone()), answer: sum }
    }
}

/// Gives an event to a replica, and carries all messages until none is under way.
fn run(replicas: &mut [Hermes<Add>], to: NodeId, event: Event<Hermes<Add>>) {
    let (mut events, mut out) = (VecDeque::from([(to, event)]), Outbox::new());
    while let Some((at, event)) = events.pop_front() {
        // What a replica has to say goes out when no more input is ready.
        for event in [event, Event::Idle] {
            replicas[usize::from(at.0)].step(Time(0), event, &mut out);
        }
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    events.push_back((to, Event::Message { from: at, message }));
                }
                Effect::Output(output) => println!("{at}: {output:?}"),
                Effect::Persist(_) | Effect::Note(_) | Effect::Timer { .. } => {}
            }
        }
    }
}

fn main() {
    let nodes = [0, 1, 2].map(NodeId);
    let mut replicas = nodes.map(|node| Hermes::new(node, Options::default(), node.0.into()));
    let membership = Membership { epoch: Epoch::FIRST, live: nodes.into(), ..Default::default() };
    for node in nodes {
        run(&mut replicas, node, Event::Command(Command::Install(membership.clone())));
        run(&mut replicas, node, Event::Command(Command::Lease { until: Time(1) }));
    }
    let key = Bytes::from("visitors");
    let actions = [Action::Write(Some(Bytes::from("41"))), Action::Modify(Add(1))];
    for (token, action) in (0..).zip(actions) {
        let request = Request { token, key: key.clone(), id: None, action };
        run(&mut replicas, nodes[token as usize], Event::Command(Command::Update(request)));
    }
    println!("node 2 reads {:?}", replicas[2].read(Time(0), &key));
}
