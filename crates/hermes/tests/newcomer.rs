//! A node that should hold keys, and then should not before anybody has told it who does.

use meridian_core::{Effect, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::reliable::{Command, Configured, Message, Options, ReliableMembership};
use std::collections::BTreeSet;

const ME: NodeId = NodeId(9);
const OTHER: NodeId = NodeId(0);

struct Newcomer {
    membership: ReliableMembership,
    now: Time,
}

impl Newcomer {
    fn step(&mut self, event: Event<ReliableMembership>) -> Outbox<ReliableMembership> {
        let mut out = Outbox::new();
        self.membership.step(self.now, event, &mut out);
        out
    }

    fn configure(&mut self, version: u64, nodes: &[NodeId]) {
        let nodes = nodes.iter().copied().collect();
        let configured = Configured { version, nodes, ..Configured::default() };
        self.step(Event::Command(Command::Configure(configured)));
    }

    /// Whether the other hears at the next beat that it is there.
    fn asks(&mut self) -> bool {
        self.now = self.now + Options::default().beat;
        let mut out = self.step(Event::Timer(meridian_hermes::reliable::Timer::Beat));
        out.drain().any(|effect| {
            matches!(effect, Effect::Send { to: OTHER, message: Message::Ask { .. } })
        })
    }
}

/// Else it would wait for ever to be let go, and whoever leads might add it as it is there.
#[test]
fn who_never_came_has_left_and_is_silent() {
    let first = BTreeSet::from([OTHER]);
    let membership = ReliableMembership::new(ME, &first, Options::default(), 1);
    let mut newcomer = Newcomer { membership, now: Time(1) };
    newcomer.step(Event::Started);
    assert!(!newcomer.membership.has_left(), "nobody has said yet who should hold keys");
    newcomer.configure(1, &[OTHER, ME]);
    assert!(newcomer.asks() && !newcomer.membership.has_left());
    newcomer.configure(2, &[OTHER]);
    assert!(!newcomer.asks() && newcomer.membership.has_left());
    newcomer.configure(3, &[OTHER, ME]);
    assert!(newcomer.asks() && !newcomer.membership.has_left(), "its removal is taken back");
}
