//! Replicas of the reliable membership that nobody uses: they say next to nothing, have a lease one
//! round trip after they are used, and nobody is removed for having slept (decision 34).

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use meridian_core::{Effect, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::reliable::{
    Command, Fault, Message, Options, Output, ReliableMembership, Timer,
};
use meridian_hermes::{Epoch, Membership};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const DELAY: Duration = MS;

type Happening = (u16, Event<ReliableMembership>);

/// Three replicas, each message of which takes [`DELAY`].
struct Net {
    replicas: BTreeMap<u16, ReliableMembership>,
    /// By time, and in the order in which they were sent.
    due: BTreeMap<(Time, u64), Happening>,
    leases: BTreeMap<u16, Time>,
    members: BTreeMap<u16, Membership>,
    now: Time,
    events: u64,
    sent: u64,
    /// What these ask of others is lost; all else that they say arrives.
    mute: BTreeSet<u16>,
}

impl Net {
    fn new(fault: Fault) -> Net {
        let nodes: BTreeSet<_> = (0..3).map(NodeId).collect();
        let make = |at: u16| {
            let seed = u64::from(at);
            let one = ReliableMembership::new(NodeId(at), &nodes, Options::default(), seed);
            (at, one.with_fault(fault))
        };
        let mut net = Net {
            replicas: (0..3).map(make).collect(),
            due: BTreeMap::new(),
            leases: BTreeMap::new(),
            members: BTreeMap::new(),
            now: Time(1_000_000_000),
            events: 0,
            sent: 0,
            mute: BTreeSet::new(),
        };
        (0..3).for_each(|at| net.at(Duration::ZERO, at, Event::Started));
        net.run(MS * 500);
        assert!(net.members.values().all(|members| members.epoch == Epoch::FIRST));
        net
    }

    /// All doze for a long time.
    fn asleep() -> Net {
        let mut net = Net::new(Fault::Correct);
        net.run(MS * 60_000);
        assert!(net.replicas.values().all(ReliableMembership::is_dozing));
        net
    }

    fn at(&mut self, after: Duration, at: u16, event: Event<ReliableMembership>) {
        self.events += 1;
        self.due.insert((self.now + after, self.events), (at, event));
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(first) = self.due.first_entry().filter(|first| first.key().0 <= end) {
            let ((now, _), (at, event)) = first.remove_entry();
            self.now = now;
            self.step(at, event);
            self.step(at, Event::Idle);
        }
        self.now = end;
    }

    fn step(&mut self, at: u16, event: Event<ReliableMembership>) {
        let Some(replica) = self.replicas.get_mut(&at) else { return };
        let mut out = Outbox::new();
        replica.step(self.now, event, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Send { message: Message::Ask { .. }, to }
                    if to.0 != at && self.mute.contains(&at) => {}
                Effect::Send { to, message } => {
                    let delay = if to.0 == at { Duration::ZERO } else { DELAY };
                    self.sent += u64::from(to.0 != at);
                    self.at(delay, to.0, Event::Message { from: NodeId(at), message });
                }
                Effect::Timer { at: when, timer } => {
                    self.at(when.since(self.now), at, Event::Timer(timer));
                }
                Effect::Output(Output::Lease { until }) => drop(self.leases.insert(at, until)),
                Effect::Output(Output::Install(members)) => drop(self.members.insert(at, members)),
                Effect::Persist(_) | Effect::Note(_) => {}
            }
        }
    }

    fn has_lease(&self, at: u16) -> bool {
        self.leases.get(&at).is_some_and(|until| self.now < *until)
    }

    fn use_it(&mut self, at: u16) {
        self.at(Duration::ZERO, at, Event::Command(Command::Use));
    }

    /// The leader is used while time passes.
    fn run_in_use(&mut self, span: Duration) {
        self.use_it(self.leader());
        self.run(span);
    }

    /// All shadow replicas have everything.
    fn complete(&mut self) {
        for at in self.replicas.keys().copied().collect::<Vec<_>>() {
            let members = self.replicas[&at].registry().members();
            let Some(epoch) = members.shadows.get(&NodeId(at)).copied() else { continue };
            self.at(Duration::ZERO, at, Event::Command(Command::Complete { epoch }));
        }
    }

    fn leader(&self) -> u16 {
        *self.replicas.iter().find(|(_, replica)| replica.is_leading()).unwrap().0
    }
}

#[test]
fn who_dozes_says_next_to_nothing_and_holds_no_lease() {
    let mut net = Net::asleep();
    let before = (net.sent, net.events);
    net.run(MS * 10_000);
    assert!((0..3).all(|at| !net.has_lease(at)));
    let (sent, events) = (net.sent - before.0, net.events - before.1);
    assert!(sent <= 10 * 10 && events <= 10 * 25, "{sent} messages, {events} events in 10 s");
}

#[test]
fn the_first_use_has_a_lease_after_one_round_trip() {
    for at in 0..3 {
        let mut net = Net::asleep();
        net.use_it(at);
        net.run(DELAY * 2);
        assert!(net.has_lease(at), "replica {at}");
        net.run(DELAY);
        assert!((0..3).all(|at| net.has_lease(at)), "the others have been awakened");
    }
}

#[test]
fn a_replica_in_use_keeps_its_lease_and_those_of_the_others() {
    let mut net = Net::asleep();
    for _ in 0..40 {
        net.use_it(1);
        net.run(MS * 250);
        assert!((0..3).all(|at| net.has_lease(at)));
    }
}

/// Each wakes, and sleeps again, at any phase of the others' beats.
fn awakened_often(fault: Fault) -> Epoch {
    let mut net = Net::new(fault);
    for turn in 0..60 {
        net.use_it(turn % 3);
        net.run(MS * (1_400 + 37 * u32::from(turn)));
    }
    net.members[&0].epoch
}

#[test]
fn waking_up_removes_nobody() {
    assert_eq!(awakened_often(Fault::Correct), Epoch::FIRST);
}

#[test]
fn a_membership_that_suspects_those_who_dozed_is_found_out() {
    assert_ne!(awakened_often(Fault::SuspectsDozing), Epoch::FIRST);
}

#[test]
fn who_died_meanwhile_is_removed_once_anybody_is_awake() {
    for dead in 0..3 {
        let mut net = Net::asleep();
        net.replicas.remove(&dead);
        net.run(MS * 10_000);
        let (first, second) = ((dead + 1) % 3, (dead + 2) % 3);
        assert_eq!(net.members[&first].epoch, Epoch::FIRST, "nobody has asked");
        net.use_it(first);
        net.run(MS * 400);
        for at in [first, second] {
            let live: Vec<_> = net.members[&at].live.iter().map(|node| node.0).collect();
            assert!(!live.contains(&dead), "{dead} at {at}: {live:?}");
        }
    }
}

/// A leader that was stopped, and hears when it goes on that others were active a while ago.
#[test]
fn a_late_word_of_activity_makes_nobody_suspected() {
    let mut net = Net::asleep();
    let leader = net.leader();
    let sent = net.now;
    for after in [0, 5, 10, 15] {
        let message = Message::Ask { sent, active: true, incarnation: 1 };
        let from = NodeId((leader + 1) % 3);
        net.at(MS * after, leader, Event::Message { from, message });
    }
    net.run(MS * 3_000);
    assert!(net.replicas.values().all(ReliableMembership::is_dozing));
    assert!(net.members.values().all(|members| members.epoch == Epoch::FIRST));
}

/// A timer of the registry that comes while the replica dozes is not lost.
#[test]
fn the_registry_goes_on_when_it_is_needed() {
    let mut net = Net::asleep();
    net.use_it(net.leader());
    net.run(MS * 300);
    net.replicas.remove(&((net.leader() + 1) % 3));
    net.run(MS * 300);
    let timers = net.due.values().filter(|(at, event)| {
        *at == net.leader() && matches!(event, Event::Timer(Timer::Paxos(_)))
    });
    assert_eq!(timers.count(), 1);
    assert_eq!(net.members[&net.leader()].epoch, Epoch(2));
}

/// Seed 2224 of trials with the store in memory: a suspended replica asked to become live, which
/// the registry does not grant, in place of saying that its grants had run out; and without its
/// word there was no majority to remove it.
#[test]
fn a_shadow_replica_that_is_suspended_goes_and_comes_again() {
    let mut net = Net::new(Fault::Correct);
    let leader = net.leader();
    let others: Vec<u16> = (0..3).filter(|at| *at != leader).collect();
    net.replicas.remove(&others[0]);
    (0..20).for_each(|_| net.run_in_use(MS * 50));
    let mute = NodeId(others[1]);
    net.mute = BTreeSet::from([mute.0]);
    let is_suspended = |net: &Net| {
        let registry = net.replicas[&leader].registry();
        registry.members().shadows.contains_key(&mute) && registry.awaited_of(mute).count() > 0
    };
    for _ in 0..5_000 {
        if is_suspended(&net) {
            break;
        }
        net.run_in_use(MS);
    }
    assert!(is_suspended(&net), "{:?}", net.replicas[&leader].registry());
    net.complete();
    net.mute.clear();
    for _ in 0..100 {
        net.run_in_use(MS * 50);
        net.complete();
    }
    let live = &net.members[&leader].live;
    assert_eq!(live.len(), 2, "{live:?}");
}
