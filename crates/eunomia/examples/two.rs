//! Two regions in one thread: one writes, and a session goes on in the other when that has it.
//!
//! `cargo run -p meridian-eunomia --example two`

use bytes::Bytes;
use meridian_core::{Effect, Event, Outbox, Process, RegionId, Time};
use meridian_eunomia::member::{Command, Output};
use meridian_eunomia::{Member, Options, Peer, Role, Session, Site, Topology, receiver, shard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All processes, and what happens when: by time and number.
#[derive(Default)]
struct World {
    members: BTreeMap<Peer, Member>,
    planned: BTreeMap<(u64, usize), (Peer, Event<Member>)>,
    count: usize,
}

impl World {
    fn plan(&mut self, at: u64, to: Peer, event: Event<Member>) {
        self.count += 1;
        self.planned.insert((at, self.count), (to, event));
    }

    /// Gives a command, and goes on until it is answered. Messages travel for a millisecond.
    fn ask(&mut self, now: u64, to: Peer, command: Command) -> (u64, Output) {
        self.plan(now, to, Event::Command(command));
        let mut out = Outbox::new();
        while let Some(((now, _), (at, event))) = self.planned.pop_first() {
            let member = self.members.get_mut(&at).expect("it is there");
            member.step(Time(now), event, &mut out);
            member.step(Time(now), Event::Idle, &mut out);
            let mut answer = None;
            for effect in out.drain().collect::<Vec<_>>() {
                match effect {
                    Effect::Send { to, message } => {
                        self.plan(now + 1_000_000, to, Event::Message { from: at, message });
                    }
                    Effect::Timer { at: then, timer } => self.plan(then.0, at, Event::Timer(timer)),
                    Effect::Output(Output::Shard(shard::Output::Applied { .. })) => {}
                    Effect::Output(output) => answer = Some((now, output)),
                    Effect::Persist(_) | Effect::Note(_) => {} // Nothing crashes here.
                }
            }
            if let Some(answer) = answer {
                return answer;
            }
        }
        unreachable!("timers never end")
    }
}

fn main() {
    let topology = Arc::new(Topology::new(vec![Site { shards: 1, replicas: 1 }; 2]));
    let mut world = World::default();
    for peer in topology.peers() {
        world.members.insert(peer, Member::new(peer, topology.clone(), Options::default()));
        world.plan(0, peer, Event::Started);
    }
    let [shard, far] = [0, 1].map(|region| topology.home(RegionId(region), 0));
    let (mut session, key, value) = (Session::default(), Bytes::from("k"), Bytes::from("v"));
    let request =
        shard::Request { token: 1, key: key.clone(), value: Some(value), seen: *session.seen() };
    let (now, done) = world.ask(1, shard, Command::Shard(shard::Command::Update(request)));
    println!("at {now} ns: {done:?}");
    if let Output::Shard(shard::Output::Updated { seen, .. }) = done {
        session.saw(&seen);
    }
    let go_on = receiver::Command::Await { token: 2, seen: session.seen().vector };
    let receiver = Peer { role: Role::Receiver, ..far };
    let (now, reached) = world.ask(now, receiver, Command::Receiver(go_on));
    println!("at {now} ns: {reached:?}");
    let (now, read) = world.ask(now, far, Command::Shard(shard::Command::Read { token: 3, key }));
    println!("at {now} ns: {read:?}");
}
