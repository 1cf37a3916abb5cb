//! Three replicas on threads, with channels in the place of sockets, and without tokio: what a
//! program does that brings its own network, or puts replicas where there is none.
//!
//! `cargo run -p meridian-replication --example own_transport`

use meridian_replication::protocol::{
    Answer, Command, Effect, Event, GroupId, Kind, Outbox, Output, Paxos, Process, ProcessId,
    ProtocolOptions, Recovery, Request, Time,
};
use meridian_replication::{Bytes, Configuration, NodeId, Service};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Keeps the longest word.
#[derive(Clone, Default)]
struct Longest(Bytes);

impl Service for Longest {
    fn execute(&mut self, word: &Bytes) -> Bytes {
        if word.len() > self.0.len() {
            self.0 = word.clone();
        }
        self.0.clone()
    }
    fn query(&self, _: &[u8]) -> Bytes {
        self.0.clone()
    }
    fn snapshot(&self) -> Bytes {
        self.0.clone()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = Bytes::copy_from_slice(snapshot);
        Ok(())
    }
}

type Replica = Paxos<Longest>;
type Ways = BTreeMap<ProcessId, Sender<Event<Replica>>>;

/// What a runtime is: time and events go in, and each effect is done, in order. Nothing is kept on
/// a disk here ([`Recovery::CrashStop`]); where records are, what follows one is done once it is
/// durable. Channels keep the order and lose nothing; where a connection broke, the process hears
/// of [`Event::Restarted`].
fn run(
    me: ProcessId,
    mut replica: Replica,
    ways: Ways,
    inbox: Receiver<Event<Replica>>,
    tell: Sender<Output>,
) {
    let (began, mut out, mut timers) = (Instant::now(), Outbox::new(), BTreeMap::new());
    let now = || Time(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let (mut next, mut last_timer) = (Some(Event::Started), 0u64);
    loop {
        if let Some(event) = next {
            replica.step(now(), event, &mut out);
        }
        replica.step(now(), Event::Idle, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Persist(_) | Effect::Note(_) => {}
                // Who is gone hears nothing.
                Effect::Send { to, message } => {
                    drop(ways[&to].send(Event::Message { from: me, message }));
                }
                Effect::Output(output) => drop(tell.send(output)),
                Effect::Timer { at, timer } => {
                    last_timer += 1; // Two may be due at the same time.
                    timers.insert((at, last_timer), timer);
                }
            }
        }
        let due = timers.first_key_value().map(|((at, _), _)| at.since(now()));
        next = match inbox.recv_timeout(due.unwrap_or(Duration::from_secs(1))) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let ripe = timers.first_entry().filter(|first| first.key().0 <= now());
                ripe.map(|first| Event::Timer(first.remove()))
            }
        };
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let peers: Vec<_> =
        (0..3).map(|at| ProcessId { group: GroupId(0), node: NodeId(at) }).collect();
    let members = peers.iter().map(|peer| (peer.node, peer.to_string())).collect();
    let options = ProtocolOptions { recovery: Recovery::CrashStop, ..ProtocolOptions::default() };
    let (mut ways, mut inboxes) = (Ways::new(), Vec::new());
    for peer in &peers {
        let (way, inbox) = channel();
        ways.insert(*peer, way);
        inboxes.push((*peer, inbox));
    }
    let (tell, told) = channel();
    for (me, inbox) in inboxes {
        let configuration = Configuration { members: BTreeMap::clone(&members) };
        let seed = u64::from(me.node.0); // Another at each start.
        let replica = Paxos::new(me, configuration, options.clone(), Longest::default(), seed);
        let (ways, tell) = (ways.clone(), tell.clone());
        thread::spawn(move || run(me, replica, ways, inbox, tell));
    }
    // A client gets a name, and asks replicas in turn until one answers.
    let (mut asked, mut client) = (0, None);
    for at in (0..3).cycle() {
        let command = match client {
            None => Command::Connect { token: 1 },
            Some(client) => {
                let (kind, payload) = (Kind::Execute, Bytes::from_static(b"paxos"));
                Command::Request(Request { client, sequence: 1, kind, payload })
            }
        };
        ways[&peers[at]].send(Event::Command(command))?;
        while let Ok(output) = told.recv_timeout(Duration::from_millis(100)) {
            match output {
                Output::Connected { client: name, .. } => client = Some(name),
                Output::Reply { answer: Answer::Done(longest), .. } => {
                    println!("the longest word is {longest:?}");
                    return Ok(());
                }
                _ => {}
            }
        }
        asked += 1;
        assert!(asked < 600, "no replica answers");
    }
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
