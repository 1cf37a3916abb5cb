//! A voter that starts again may have forgotten that it let a member go: a record of what it had
//! executed may be lost (decision 59).

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use meridian_core::{Effect, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::reliable::{
    Fault, Message, Options, Output, Record, ReliableMembership, Timer,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Three replicas, between which messages take no time.
struct Net {
    fault: Fault,
    replicas: BTreeMap<u16, ReliableMembership>,
    /// What each has recorded, and whether that was durable before anything relied on it.
    logs: BTreeMap<u16, Vec<(Record, bool)>>,
    messages: VecDeque<(u16, u16, Message)>,
    timers: BTreeMap<(Time, u64), (u16, Timer)>,
    set: u64,
    now: Time,
    /// What this one asks of others is lost.
    mute: Option<u16>,
    granted: BTreeSet<(u16, u16)>,
}

fn replica(at: u16, fault: Fault) -> ReliableMembership {
    let nodes = (0..3).map(NodeId).collect();
    let options = Options { doze: None, ..Options::default() };
    ReliableMembership::new(NodeId(at), &nodes, options, u64::from(at)).with_fault(fault)
}

impl Net {
    fn new(fault: Fault) -> Net {
        let mut net = Net {
            fault,
            replicas: (0..3).map(|at| (at, replica(at, fault))).collect(),
            logs: BTreeMap::new(),
            messages: VecDeque::new(),
            timers: BTreeMap::new(),
            set: 0,
            now: Time(1_000_000_000),
            mute: None,
            granted: BTreeSet::new(),
        };
        (0..3).for_each(|at| net.step(at, Event::Started));
        net.run(MS * 500);
        net
    }

    fn step(&mut self, at: u16, event: Event<ReliableMembership>) {
        let mut out = Outbox::new();
        let replica = self.replicas.get_mut(&at).unwrap();
        replica.step(self.now, event, &mut out);
        replica.step(self.now, Event::Idle, &mut out);
        let log = self.logs.entry(at).or_default();
        for effect in out.drain() {
            match effect {
                Effect::Send { message: Message::Ask { .. }, to }
                    if self.mute == Some(at) && to.0 != at => {}
                Effect::Send { to, message } => {
                    if matches!(message, Message::Grant { .. }) {
                        self.granted.insert((at, to.0));
                    }
                    self.messages.push_back((at, to.0, message));
                }
                Effect::Persist(record) => log.push((record, true)),
                Effect::Note(record) => log.push((record, false)),
                Effect::Timer { at: due, timer } => {
                    self.set += 1;
                    self.timers.insert((due, self.set), (at, timer));
                }
                Effect::Output(Output::Install(_) | Output::Lease { .. }) => {}
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            while let Some((from, to, message)) = self.messages.pop_front() {
                self.step(to, Event::Message { from: NodeId(from), message });
            }
            let Some(first) = self.timers.first_entry().filter(|first| first.key().0 <= end) else {
                break;
            };
            let ((now, _), (at, timer)) = first.remove_entry();
            self.now = now;
            self.step(at, Event::Timer(timer));
        }
        self.now = end;
    }

    /// Crashes, and starts again without the notes behind the first `kept` records.
    fn restart(&mut self, at: u16, kept: usize) {
        let mut again = replica(at, self.fault);
        let log = self.logs[&at].iter().enumerate();
        let found = log.filter(|(number, (_, durable))| *number < kept || *durable);
        found.for_each(|(_, (record, _))| again.replay(record.clone()));
        self.replicas.insert(at, again);
        self.timers.retain(|_, (of, _)| *of != at);
        self.granted.clear();
        self.step(at, Event::Started);
    }
}

/// A member is let go, and one of those that said so starts again; whether that one grants it a
/// lease.
fn grants_to_whom_it_let_go(fault: Fault) -> bool {
    let mut net = Net::new(fault);
    let leader = (0..3).find(|at| net.replicas[at].is_leading()).unwrap();
    let (gone, voter) = ((leader + 1) % 3, (leader + 2) % 3);
    assert!(net.replicas[&voter].registry().may_serve(NodeId(gone)));
    let kept = net.logs[&voter].len();
    net.mute = Some(gone);
    net.run(MS * 500);
    let live = net.replicas[&leader].registry().members().live.clone();
    assert!(!live.contains(&NodeId(gone)), "two of three have said that their grants have run out");
    net.restart(voter, kept);
    assert!(net.replicas[&voter].registry().may_serve(NodeId(gone)), "as far as it has executed");
    let message = Message::Ask { sent: net.now, active: true, incarnation: 1 };
    net.step(voter, Event::Message { from: NodeId(gone), message });
    net.granted.contains(&(voter, gone))
}

#[test]
fn a_voter_grants_nothing_before_it_knows_what_it_has_said() {
    assert!(!grants_to_whom_it_let_go(Fault::Correct));
    assert!(grants_to_whom_it_let_go(Fault::GrantsAtOnce), "the planted bug is found");
}
