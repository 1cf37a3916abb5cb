//! Skeen's algorithm in its variants, one claim of section 5.3 each. Group g is the process
//! `process(g, 0)`.

use super::{Message, Skeen, Variant};
use crate::place::tests::{process, start};
use meridian_core::{Effect, Event, GroupId, Outbox, Process, Time};
use meridian_multicast::{Delivery, Start, Timestamp};
use std::sync::Arc;

/// What is under way, the earliest first: from which group, to which.
type Wire = Vec<(u16, u16, Message)>;

/// Processes, and messages that arrive when the test says so.
struct Net {
    all: Vec<Skeen>,
    wire: Wire,
    told: Vec<(u16, Delivery)>,
}

impl Net {
    fn of(groups: u16, variant: Variant) -> Net {
        let names = (0..groups).map(|group| (GroupId(group), vec![process(group, 0).node]));
        let names = Arc::new(names.collect());
        let make = |group| Skeen::new(process(group, 0), Arc::clone(&names), variant);
        Net { all: (0..groups).map(make).collect(), wire: Vec::new(), told: Vec::new() }
    }

    fn step(&mut self, group: u16, event: Event<Skeen>) {
        let mut out = Outbox::new();
        self.all[usize::from(group)].step(Time(0), event, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => self.wire.push((group, to.group.0, message)),
                Effect::Output(delivery) => self.told.push((group, delivery)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The process of the group `from` multicasts.
    fn multicast(&mut self, from: u16, start: Start) {
        self.step(from, Event::Command(start));
    }

    /// The earliest message of this kind from one group to another arrives.
    fn arrives(&mut self, from: u16, to: u16, kind: impl Fn(&Message) -> bool) {
        let is = |(a, b, message): &(u16, u16, Message)| (*a, *b) == (from, to) && kind(message);
        let at = self.wire.iter().position(is).expect("it is under way");
        let (_, _, message) = self.wire.remove(at);
        self.step(to, Event::Message { from: process(from, 0), message });
    }

    fn run(&mut self) {
        while !self.wire.is_empty() {
            let (from, to, message) = self.wire.remove(0);
            self.step(to, Event::Message { from: process(from, 0), message });
        }
    }

    /// What the group delivered: the number of each message and its final timestamp.
    fn delivered(&self, group: u16) -> Vec<(u64, u64)> {
        let of = self.told.iter().filter(|(at, _)| *at == group);
        of.map(|(_, delivery)| (delivery.start.id.sequence, delivery.ts.0)).collect()
    }
}

fn is_start(message: &Message) -> bool {
    matches!(message, Message::Start(_))
}

fn is_local_ts(message: &Message) -> bool {
    matches!(message, Message::LocalTs { .. })
}

const ALL: [Variant; 3] = [Variant::Plain, Variant::Ack, Variant::Ready];

/// Property (i): the final timestamp is the greatest local one; clocks reach it.
#[test]
fn the_final_timestamp_is_the_greatest_local_one() {
    for variant in ALL {
        let mut net = Net::of(3, variant);
        net.multicast(1, Start { after: Timestamp(8), ..start(1, &[1]) });
        net.multicast(2, start(2, &[0, 1]));
        net.run();
        assert_eq!(net.delivered(0), [(2, 10)]);
        assert_eq!(net.delivered(1), [(1, 9), (2, 10)]);
        assert_eq!(net.delivered(2), []);
        assert_eq!(net.all[0].clock(), Timestamp(10));
        let positions = net.told.iter().filter(|(group, _)| *group == 1);
        assert!(positions.map(|(_, delivery)| delivery.position.0).eq([1, 2]));
    }
}

/// Property (ii): what has a local timestamp below holds up what is final, until it is final
/// itself.
#[test]
fn a_message_waits_for_those_that_may_come_before_it() {
    for variant in ALL {
        let mut net = Net::of(2, variant);
        net.multicast(0, start(1, &[0, 1]));
        net.multicast(0, start(2, &[0]));
        assert_eq!(net.delivered(0), [], "1 has local timestamp 1, 2 has final 2");
        net.run();
        assert_eq!(net.delivered(0), [(1, 1), (2, 2)]);
        assert_eq!(net.delivered(1), [(1, 1)]);
    }
}

/// Figure 5.3, top and bottom: 1 goes to 0 and 1, and 1 has timestamps 1 to 4 used up.
#[test]
fn the_ack_round_holds_a_delivery_until_all_know_the_final_timestamp() {
    let until_final_at_one = |variant| {
        let mut net = Net::of(2, variant);
        net.multicast(1, Start { after: Timestamp(3), ..start(9, &[1]) });
        net.multicast(0, start(1, &[0, 1]));
        net.arrives(0, 1, is_start);
        net.arrives(0, 1, is_local_ts);
        net
    };
    assert_eq!(until_final_at_one(Variant::Plain).delivered(1), [(9, 4), (1, 5)]);
    let mut net = until_final_at_one(Variant::Ack);
    assert_eq!(net.delivered(1), [(9, 4)]);
    net.arrives(1, 0, is_local_ts);
    assert_eq!(net.all[0].clock(), Timestamp(5), "known before it is acknowledged");
    net.arrives(0, 1, |message| matches!(message, Message::Ack(_)));
    assert_eq!(net.delivered(1), [(9, 4), (1, 5)]);
}

/// Where ACK and READY differ: 0 knows the final timestamp of 2, but 1 comes before it there.
#[test]
fn a_group_is_ready_once_what_precedes_is_delivered() {
    let until_second_is_final = |variant| {
        let mut net = Net::of(3, variant);
        net.multicast(0, start(1, &[0, 2]));
        net.multicast(0, start(2, &[0, 1]));
        net.arrives(0, 1, is_start);
        net.arrives(1, 0, is_local_ts);
        net.arrives(0, 1, is_local_ts);
        net
    };
    let said = |net: &Net| {
        net.wire.iter().filter(|(from, _, m)| *from == 0 && matches!(m, Message::Ack(_))).count()
    };
    assert_eq!(said(&until_second_is_final(Variant::Ack)), 1);
    let mut net = until_second_is_final(Variant::Ready);
    assert_eq!(said(&net), 0);
    assert_eq!(net.delivered(1), []);
    net.run();
    assert_eq!(net.delivered(0), [(1, 1), (2, 2)]);
    assert_eq!(net.delivered(1), [(2, 2)]);
}

/// Ties are broken by name, everywhere alike.
#[test]
fn equal_timestamps_are_ordered_by_name() {
    for variant in ALL {
        let mut net = Net::of(2, variant);
        net.multicast(1, start(1, &[0, 1]));
        net.multicast(0, start(2, &[0, 1]));
        net.run();
        assert_eq!(net.delivered(0), [(1, 2), (2, 2)]);
        assert_eq!(net.delivered(0), net.delivered(1));
    }
}

#[test]
fn a_start_that_names_the_wrong_groups_is_dropped() {
    let mut net = Net::of(2, Variant::Ready);
    for dest in [&[0, 7][..], &[1, 0], &[1], &[]] {
        let message = Message::Start(start(1, dest));
        net.step(0, Event::Message { from: process(1, 0), message });
    }
    assert!(net.wire.is_empty() && net.told.is_empty());
    assert_eq!(net.all[0].clock(), Timestamp(0));
}

#[test]
fn messages_survive_the_wire() {
    let id = start(3, &[0]).id;
    for message in [
        Message::Start(start(3, &[0, 4])),
        Message::LocalTs { id, ts: Timestamp(300) },
        Message::Ack(id),
    ] {
        let bytes = postcard::to_stdvec(&message).unwrap();
        assert_eq!(postcard::from_bytes::<Message>(&bytes).unwrap(), message);
    }
}
