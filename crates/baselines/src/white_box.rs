//! White-Box atomic multicast (thesis, section 4.6.2; Gotsman, Lefort, Chockler, DSN 2019).
//!
//! 1. The sender sends MULTICAST to the leaders of the destinations.
//! 2. Each proposes a local timestamp: ACCEPT to all processes of all destinations.
//! 3. Who has the ACCEPTs of all leaders raises its clock to the greatest, and sends ACCEPT_ACK to
//!    them.
//! 4. A leader with a quorum of those from each destination knows the final timestamp. It delivers
//!    when no message can be before, and sends DELIVER to its followers, who deliver in the order
//!    of those.
//!
//! A remote leader's ACCEPT names the message only: its payload comes from the own leader.
//!
//! Invariants:
//! - B1: a follower has the leader's ACCEPT of a message before its DELIVER.
//! - B2: deliveries ascend in (final timestamp, id).

use crate::batch::{Batch, Nothing, Outgoing};
use crate::place::Place;
use crate::queue::Queue;
use meridian_core::{Event, GroupId, MessageId, Outbox, Position, Process, ProcessId, Table, Time};
use meridian_multicast::done::{Done, Known};
use meridian_multicast::{Delivery, Groups, Protocol, Rank, Start, Timestamp};
use serde::{Deserialize, Serialize};

/// What processes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Item {
    /// MULTICAST, from the sender to a leader.
    Multicast(Start),
    /// ACCEPT, from the own leader: with the message.
    Propose(Start, Timestamp),
    /// ACCEPT, from the leader of another destination.
    Accept(MessageId, Timestamp),
    /// ACCEPT_ACK.
    Ack(MessageId),
    /// DELIVER, with the final timestamp.
    Deliver(MessageId, Timestamp),
}

impl Item {
    /// The message that it is about.
    pub fn subject(&self) -> MessageId {
        match self {
            Item::Multicast(start) | Item::Propose(start, _) => start.id,
            Item::Accept(id, _) | Item::Ack(id) | Item::Deliver(id, _) => *id,
        }
    }
}

impl crate::batch::Item for Item {
    fn carried(&self) -> Option<&Start> {
        match self {
            Item::Multicast(start) | Item::Propose(start, _) => Some(start),
            Item::Accept(..) | Item::Ack(_) | Item::Deliver(..) => None,
        }
    }
}

/// What is known of a message. It is dropped when it is delivered here and nothing of it can come.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// As soon as the own leader has it.
    start: Option<Start>,
    /// The own leader's proposal.
    local: Timestamp,
    /// Of how many leaders the ACCEPT has come.
    accepts: usize,
    /// The greatest timestamp in them.
    most: Timestamp,
    /// At a leader: how many of each destination have acknowledged.
    acks: Vec<usize>,
    /// Of how many destinations a quorum has.
    quorums: usize,
    /// At a leader: the final timestamp is known.
    settled: bool,
    /// At a follower: DELIVER came before an ACCEPT.
    delivered: bool,
}

impl Slot {
    /// Whether the ACCEPTs of all leaders are here.
    fn is_accepted(&self) -> bool {
        self.start.as_ref().is_some_and(|start| self.accepts == start.dest.len())
    }
}

/// One process of one group.
#[derive(Clone, Debug)]
pub struct WhiteBox {
    place: Place,
    clock: Timestamp,
    slots: Table<MessageId, Slot>,
    /// At the leader.
    queue: Queue,
    /// At the leader: what may not be proposed again.
    done: Done,
    delivered: Position,
    last: Option<Rank>,
    outgoing: Outgoing<Item>,
}

impl WhiteBox {
    /// The process `me`, with nothing delivered.
    ///
    /// # Panics
    /// If `me` is not a member of its group.
    pub fn new(me: ProcessId, groups: Groups) -> WhiteBox {
        WhiteBox {
            place: Place::new(me, groups),
            clock: Timestamp(0),
            slots: Table::default(),
            queue: Queue::default(),
            done: Done::default(),
            delivered: Position(0),
            last: None,
            outgoing: Outgoing::default(),
        }
    }

    /// Whether it leads its group.
    pub fn leads(&self) -> bool {
        self.place.i_lead()
    }

    /// How many messages it knows of that are not delivered, or of which something is still to
    /// come.
    pub fn pending(&self) -> usize {
        self.slots.len().max(self.queue.len())
    }

    /// The owner multicasts a message.
    fn multicast(&mut self, start: Start) {
        if !self.place.is_valid(&start) {
            return; // A sender's mistake.
        }
        for group in start.dest.iter() {
            match self.place.leader(*group) {
                Some(leader) if leader == self.place.me => self.on_multicast(start.clone()),
                Some(leader) => self.outgoing.push(leader, Item::Multicast(start.clone())),
                None => {}
            }
        }
    }

    fn on_item(&mut self, from: ProcessId, item: Item, out: &mut Outbox<Self>) {
        let of_leader = self.place.leads(from);
        let ours = from.group == self.place.me.group;
        match item {
            Item::Multicast(start) => self.on_multicast(start),
            Item::Propose(start, ts) if of_leader && ours => self.on_propose(start, ts),
            Item::Accept(id, ts) if of_leader && !ours => self.on_accept(id, ts),
            Item::Ack(id) => self.on_ack(from.group, id),
            Item::Deliver(id, ts) if of_leader && ours => self.on_deliver(id, ts, out),
            // From none who could say so.
            Item::Propose(..) | Item::Accept(..) | Item::Deliver(..) => {}
        }
    }

    /// A leader proposes a local timestamp.
    fn on_multicast(&mut self, start: Start) {
        let ours = start.dest.contains(&self.place.me.group);
        if !self.place.i_lead() || !ours || !self.place.is_valid(&start) {
            return; // A sender's mistake.
        }
        let id = start.id;
        let known = self.slots.get(&id).is_some_and(|slot| slot.start.is_some());
        if known || self.done.known(id) != Known::No {
            return;
        }
        self.clock = Timestamp(self.clock.max(start.after).0 + 1);
        for group in start.dest.iter() {
            for process in self.place.others(*group) {
                let item = if process.group == self.place.me.group {
                    Item::Propose(start.clone(), self.clock)
                } else {
                    Item::Accept(id, self.clock)
                };
                self.outgoing.push(process, item);
            }
        }
        self.queue.add(id, self.clock);
        self.on_propose(start, self.clock);
    }

    /// The own leader's ACCEPT.
    fn on_propose(&mut self, start: Start, ts: Timestamp) {
        let id = start.id;
        let slot = self.slots.or_insert_with(id, Slot::default);
        slot.local = ts;
        slot.start = Some(start);
        self.on_accept(id, ts);
    }

    /// An ACCEPT; each leader sends one.
    fn on_accept(&mut self, id: MessageId, ts: Timestamp) {
        let slot = self.slots.or_insert_with(id, Slot::default);
        slot.accepts += 1;
        slot.most = slot.most.max(ts);
        if !slot.is_accepted() {
            return;
        }
        self.clock = self.clock.max(slot.most);
        if slot.delivered {
            self.slots.remove(&id); // A quorum acknowledged without us.
            return;
        }
        let dest = slot.start.as_ref().map(|start| start.dest.clone());
        for group in dest.iter().flat_map(|dest| dest.iter()) {
            match self.place.leader(*group) {
                Some(leader) if leader == self.place.me => self.on_ack(*group, id),
                Some(leader) => self.outgoing.push(leader, Item::Ack(id)),
                None => {}
            }
        }
    }

    /// An ACCEPT_ACK of a process of `group`; each sends one. Those after the delivery are too
    /// late.
    fn on_ack(&mut self, group: GroupId, id: MessageId) {
        let Some(slot) = self.slots.get_mut(&id).filter(|_| self.place.i_lead()) else { return };
        let Some(start) = &slot.start else { return };
        let (Ok(at), destinations) = (start.dest.binary_search(&group), start.dest.len()) else {
            return;
        };
        slot.acks.resize(destinations, 0);
        slot.acks[at] += 1;
        if slot.acks[at] == self.place.quorum(group) {
            slot.quorums += 1;
        }
        // The others may be a quorum before the ACCEPTs are all here: our own ACK comes with the
        // last.
        if slot.quorums == destinations && slot.is_accepted() && !slot.settled {
            slot.settled = true;
            self.queue.settle(id, slot.local, slot.most);
        }
    }

    /// A follower does as its leader did.
    fn on_deliver(&mut self, id: MessageId, ts: Timestamp, out: &mut Outbox<Self>) {
        let slot = self.slots.get_mut(&id);
        let slot = slot.unwrap_or_else(|| panic!("B1: DELIVER of {id} without ACCEPT"));
        let start = slot.start.clone();
        let start = start.unwrap_or_else(|| panic!("B1: DELIVER of {id} without ACCEPT"));
        slot.delivered = true;
        if slot.is_accepted() {
            self.slots.remove(&id);
        }
        self.deliver(start, ts, out);
    }

    /// A leader delivers what can be delivered; then all that was held back leaves.
    fn on_idle(&mut self, out: &mut Outbox<Self>) {
        // All ACCEPTs of what is final are here, so the clock is past it: later proposals come
        // after.
        while let Some((ts, id)) = self.queue.pop(self.clock) {
            let slot = self.slots.remove(&id);
            let start = slot.and_then(|slot| slot.start).expect("what is queued was proposed");
            self.done.ended_below(id.client, start.low);
            self.done.truncated(id, ts);
            for process in self.place.others(self.place.me.group) {
                self.outgoing.push(process, Item::Deliver(id, ts));
            }
            self.deliver(start, ts, out);
        }
        self.outgoing.drain().for_each(|(to, batch)| out.send(to, batch));
    }

    fn deliver(&mut self, start: Start, ts: Timestamp, out: &mut Outbox<Self>) {
        let rank = (ts, start.id);
        assert!(self.last < Some(rank), "B2: {rank:?} after {:?}", self.last);
        self.last = Some(rank);
        self.delivered = Position(self.delivered.0 + 1);
        out.output(Delivery { start: start.into(), ts, position: self.delivered });
    }
}

impl Process for WhiteBox {
    type Peer = ProcessId;
    type Message = Batch<Item>;
    type Record = Nothing;
    type Command = Start;
    type Output = Delivery;
    type Timer = std::convert::Infallible;

    fn step(&mut self, _now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Message { from, message } if self.place.knows(from) => {
                message.0.into_iter().for_each(|item| self.on_item(from, item, out));
            }
            Event::Command(start) => self.multicast(start),
            Event::Idle => self.on_idle(out),
            Event::Message { .. } | Event::Started | Event::Timer(_) | Event::Restarted(_) => {}
        }
    }

    fn replay(&mut self, record: Nothing) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Nothing> + Send> {
        Box::new(std::iter::empty())
    }
}

impl Protocol for WhiteBox {
    fn multicast(start: Start) -> Start {
        start
    }

    fn delivery(output: Delivery) -> Option<Delivery> {
        Some(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::{groups, id, process, start};

    /// What a process says when it was told these.
    fn told(
        process: &mut WhiteBox,
        items: &[(ProcessId, Item)],
    ) -> (Vec<(ProcessId, Item)>, Vec<u64>) {
        let mut out = Outbox::new();
        for (from, item) in items {
            let message = Batch(vec![item.clone()]);
            process.step(Time(0), Event::Message { from: *from, message }, &mut out);
        }
        process.step(Time(0), Event::Idle, &mut out);
        crate::place::tests::said(&mut out)
    }

    fn ack(group: u16, node: u16) -> (ProcessId, Item) {
        (process(group, node), Item::Ack(id(1)))
    }

    /// Section 4.6.2, points 2 and 3: to all processes of all destinations, the payload only at
    /// home.
    #[test]
    fn a_leader_proposes_to_all_destinations() {
        let mut leader = WhiteBox::new(process(0, 0), groups(&[3, 2]));
        assert!(leader.leads() && !WhiteBox::new(process(0, 1), groups(&[3, 2])).leads());
        let multicast = Item::Multicast(start(1, &[0, 1]));
        let (said, _) = told(&mut leader, &[(process(1, 1), multicast.clone())]);
        let propose = Item::Propose(start(1, &[0, 1]), Timestamp(1));
        let accept = Item::Accept(id(1), Timestamp(1));
        let expected = [
            (process(0, 1), propose.clone()),
            (process(0, 2), propose),
            (process(1, 0), accept.clone()),
            (process(1, 1), accept),
        ];
        assert_eq!(said, expected);
        assert_eq!(told(&mut leader, &[(process(1, 1), multicast)]), (vec![], vec![]), "once");
    }

    /// Point 4: a quorum of each destination, and all ACCEPTs.
    #[test]
    fn a_leader_waits_for_quorums_and_for_all_accepts() {
        let fresh = || {
            let mut leader = WhiteBox::new(process(0, 0), groups(&[3, 3]));
            told(&mut leader, &[(process(0, 1), Item::Multicast(start(1, &[0, 1])))]);
            leader
        };
        let accept = (process(1, 0), Item::Accept(id(1), Timestamp(7)));
        let all = [accept.clone(), ack(0, 1), ack(1, 0), ack(1, 2)];
        for missing in [0, 2, 3] {
            let mut leader = fresh();
            let mut some = all.to_vec();
            let last = some.remove(missing);
            assert_eq!(told(&mut leader, &some).1, [0; 0], "without {last:?}");
            let (said, delivered) = told(&mut leader, &[last]);
            assert_eq!(delivered, [1]);
            for follower in [process(0, 1), process(0, 2)] {
                assert!(said.contains(&(follower, Item::Deliver(id(1), Timestamp(7)))));
            }
            assert_eq!(leader.pending(), 0);
            // What is too late leaves nothing behind.
            told(&mut leader, &[ack(0, 2), ack(1, 1)]);
            assert_eq!(leader.pending(), 0);
        }
        // Its own ACK is that of the leader when the two others' are a quorum already.
        let mut leader = fresh();
        let others = [ack(0, 1), ack(0, 2), ack(1, 0), ack(1, 1)];
        assert_eq!(told(&mut leader, &others).1, [0; 0]);
        assert_eq!(told(&mut leader, &[accept]).1, [1]);
    }

    /// A message proposed before, whose final timestamp is not known, may come first.
    #[test]
    fn a_smaller_local_timestamp_is_waited_for() {
        let mut leader = WhiteBox::new(process(0, 0), groups(&[1, 1]));
        let first = (process(1, 0), Item::Multicast(start(1, &[0, 1])));
        let second = (process(1, 0), Item::Multicast(start(2, &[0])));
        assert_eq!(told(&mut leader, &[first, second]).1, [0; 0]);
        let accept = (process(1, 0), Item::Accept(id(1), Timestamp(1)));
        assert_eq!(told(&mut leader, &[accept, ack(1, 0)]).1, [1, 2]);
    }

    /// DELIVER may overtake the ACCEPT of a remote leader.
    #[test]
    fn a_follower_delivers_when_told_and_keeps_nothing() {
        let mut follower = WhiteBox::new(process(0, 1), groups(&[3, 3]));
        let propose = (process(0, 0), Item::Propose(start(1, &[0, 1]), Timestamp(1)));
        let deliver = (process(0, 0), Item::Deliver(id(1), Timestamp(4)));
        let accept = (process(1, 0), Item::Accept(id(1), Timestamp(4)));
        assert_eq!(told(&mut follower, &[propose.clone(), deliver.clone()]).1, [1]);
        assert_eq!(follower.pending(), 1);
        assert_eq!(told(&mut follower, std::slice::from_ref(&accept)), (vec![], vec![]));
        assert_eq!(follower.pending(), 0);

        let mut follower = WhiteBox::new(process(0, 1), groups(&[3, 3]));
        let (said, _) = told(&mut follower, &[accept, propose]);
        assert_eq!(said, [(process(0, 0), Item::Ack(id(1))), (process(1, 0), Item::Ack(id(1)))]);
        assert_eq!(told(&mut follower, &[deliver]).1, [1]);
        assert_eq!(follower.pending(), 0);
    }

    #[test]
    #[should_panic(expected = "B1")]
    fn a_delivery_of_nothing_is_a_bug() {
        let mut follower = WhiteBox::new(process(0, 1), groups(&[3]));
        told(&mut follower, &[(process(0, 0), Item::Deliver(id(1), Timestamp(4)))]);
    }

    #[test]
    fn who_may_not_say_so_is_not_heard() {
        let mut follower = WhiteBox::new(process(0, 1), groups(&[3, 3]));
        let propose = Item::Propose(start(1, &[0]), Timestamp(1));
        let items = [
            (process(0, 2), propose.clone()),
            (process(1, 0), propose),
            (process(1, 1), Item::Accept(id(1), Timestamp(1))),
            (process(9, 0), Item::Accept(id(1), Timestamp(1))),
            (process(0, 2), Item::Deliver(id(1), Timestamp(1))),
            (process(0, 0), Item::Multicast(start(1, &[0]))),
        ];
        assert_eq!(told(&mut follower, &items), (vec![], vec![]));
        assert_eq!(follower.pending(), 0);
    }
}
