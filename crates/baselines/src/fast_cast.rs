//! FastCast (thesis, section 4.6.1; Coelho, Schiper, Pedone, DSN 2017).
//!
//! 1. The sender sends START to the leaders of the destinations.
//! 2. Each proposes a local timestamp to its group by consensus, and sends it to the other leaders
//!    at once: SEND-SOFT. Decided, it is sent to all processes of the other destinations:
//!    SEND-HARD.
//! 3. A leader with the soft timestamps of all destinations has its group decide to move the clock
//!    up to the greatest, while the local timestamps are being decided: the fast path.
//! 4. Who knows all hard timestamps knows the final one, the greatest. It delivers when its group's
//!    decided clock has reached that and no message can be before.
//! 5. If the soft timestamps promised too little, or there were none, the leader has the clock
//!    moved up once more, to the final timestamp: the slow path.
//!
//! So there are two rounds of consensus for each message that goes to several groups. Entries that
//! come together travel together, as ever in our runtime.
//!
//! A group's clock is the greatest timestamp in its log. [`FastCast::lean`] makes use of that,
//! which the paper does not: one entry moves the clock for all messages that came together, and
//! none is needed where a proposal has moved it as far.
//!
//! Invariants:
//! - F1: local timestamps ascend in the log, and are above what moved the clock before. So what is
//!   not decided yet is after the decided clock.
//! - F2: deliveries ascend in (final timestamp, id).

use crate::batch::{Batch, Nothing, Outgoing};
use crate::consensus::Log;
use crate::place::Place;
use crate::queue::Queue;
use meridian_core::{Event, MessageId, Outbox, Position, Process, ProcessId, Table, Time};
use meridian_multicast::done::{Done, Known};
use meridian_multicast::{Delivery, Groups, Protocol, Rank, Start, Timestamp};
use serde::{Deserialize, Serialize};

/// What a group decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Entry {
    /// SET: the message has this local timestamp.
    Set(Start, Timestamp),
    /// SYNC: the clock is at least this.
    Sync(Timestamp),
}

/// What processes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Item {
    /// START, from the sender to a leader.
    Start(Start),
    /// SEND-SOFT: what the sender's group may decide.
    Soft(MessageId, Timestamp),
    /// SEND-HARD: what it has decided.
    Hard(MessageId, Timestamp),
    /// Consensus: the leader proposes the next entry.
    Accept(Entry),
    /// Consensus: the sender holds so many entries.
    Accepted(u64),
}

impl Item {
    /// The message that it is about, if it is about one.
    pub fn subject(&self) -> Option<MessageId> {
        match self {
            Item::Start(start) | Item::Accept(Entry::Set(start, _)) => Some(start.id),
            Item::Soft(id, _) | Item::Hard(id, _) => Some(*id),
            Item::Accept(Entry::Sync(_)) | Item::Accepted(_) => None,
        }
    }
}

impl crate::batch::Item for Item {
    fn carried(&self) -> Option<&Start> {
        match self {
            Item::Start(start) | Item::Accept(Entry::Set(start, _)) => Some(start),
            Item::Soft(..) | Item::Hard(..) => None,
            Item::Accept(Entry::Sync(_)) | Item::Accepted(_) => None,
        }
    }
}

/// Timestamps of the destinations of one message; each comes once.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    count: usize,
    most: Timestamp,
}

impl Tally {
    fn add(&mut self, ts: Timestamp) {
        self.count += 1;
        self.most = self.most.max(ts);
    }
}

/// What is known of a message that is not delivered.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// At the leader since START, elsewhere since it is decided.
    start: Option<Start>,
    /// The group's timestamp, once decided.
    local: Option<Timestamp>,
    /// At the leader.
    soft: Tally,
    hard: Tally,
}

impl Slot {
    /// The greatest in `tally`, if it is complete.
    fn complete(&self, tally: Tally) -> Option<Timestamp> {
        let destinations = self.start.as_ref()?.dest.len();
        (tally.count == destinations).then_some(tally.most)
    }
}

/// Whether leaders tell each other what they propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paths {
    FastAndSlow,
    SlowOnly,
}

/// For what the clock is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syncs {
    EachMessage,
    WhereNeeded,
}

/// One process of one group.
#[derive(Clone, Debug)]
pub struct FastCast {
    place: Place,
    paths: Paths,
    syncs: Syncs,
    /// At the leader: what messages ask the clock to be moved to.
    guesses: Vec<Timestamp>,
    log: Log<Entry>,
    /// At the leader: what the clock is to be. Beyond `logged` if it is still to be proposed.
    clock: Timestamp,
    /// The greatest timestamp in the log.
    logged: Timestamp,
    /// The greatest that is decided.
    decided: Timestamp,
    slots: Table<MessageId, Slot>,
    queue: Queue,
    /// At the leader: what may not be proposed again.
    done: Done,
    delivered: Position,
    last: Option<Rank>,
    outgoing: Outgoing<Item>,
}

impl FastCast {
    /// The process `me`, with nothing delivered.
    ///
    /// # Panics
    /// If `me` is not a member of its group.
    pub fn new(me: ProcessId, groups: Groups) -> FastCast {
        let place = Place::new(me, groups);
        FastCast {
            log: Log::new(me.node, place.members(me.group)),
            place,
            paths: Paths::FastAndSlow,
            syncs: Syncs::EachMessage,
            guesses: Vec::new(),
            clock: Timestamp(0),
            logged: Timestamp(0),
            decided: Timestamp(0),
            slots: Table::default(),
            queue: Queue::default(),
            done: Done::default(),
            delivered: Position(0),
            last: None,
            outgoing: Outgoing::default(),
        }
    }

    /// The same without the fast path: the classic protocol of two rounds of consensus one after
    /// the other (thesis, section 4.1.2), 6 steps without collision. The same at all processes.
    pub fn without_fast_path(mut self) -> FastCast {
        self.paths = Paths::SlowOnly;
        self
    }

    /// The same with fewer entries in the log than the paper has. The same at all processes.
    pub fn lean(mut self) -> FastCast {
        self.syncs = Syncs::WhereNeeded;
        self
    }

    /// Whether it leads its group.
    pub fn leads(&self) -> bool {
        self.place.i_lead()
    }

    /// How many messages it knows of that are not delivered.
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
                Some(leader) if leader == self.place.me => self.on_start(start.clone()),
                Some(leader) => self.outgoing.push(leader, Item::Start(start.clone())),
                None => {}
            }
        }
    }

    fn on_item(&mut self, from: ProcessId, item: Item) {
        let of_leader = self.place.leads(from);
        let ours = from.group == self.place.me.group;
        match item {
            Item::Start(start) => self.on_start(start),
            Item::Soft(id, ts) if of_leader && !ours && self.place.i_lead() => self.on_soft(id, ts),
            Item::Hard(id, ts) if of_leader && !ours => self.on_hard(id, ts),
            Item::Accept(entry) if of_leader && ours => self.on_accept(entry),
            Item::Accepted(len) if ours => self.log.on_vote(from.node, len),
            // From none who could say so.
            Item::Soft(..) | Item::Hard(..) | Item::Accept(_) | Item::Accepted(_) => {}
        }
    }

    /// A leader proposes a local timestamp, and tells the other leaders.
    fn on_start(&mut self, start: Start) {
        let ours = start.dest.contains(&self.place.me.group);
        if !self.place.i_lead() || !ours || !self.place.is_valid(&start) {
            return; // A sender's mistake.
        }
        let id = start.id;
        let slot = self.slots.or_insert_with(id, Slot::default);
        if slot.start.is_some() {
            return;
        }
        if self.done.known(id) != Known::No {
            self.slots.remove(&id);
            return;
        }
        slot.start = Some(start.clone());
        self.clock = Timestamp(self.clock.max(start.after).0 + 1);
        let ts = self.clock;
        if self.paths == Paths::FastAndSlow {
            let others = start.dest.iter().filter(|group| **group != self.place.me.group);
            for leader in others.filter_map(|group| self.place.leader(*group)) {
                self.outgoing.push(leader, Item::Soft(id, ts));
            }
        }
        self.propose(Entry::Set(start, ts));
        self.on_soft(id, ts);
    }

    /// A leader has the entry decided by its group.
    fn propose(&mut self, entry: Entry) {
        for process in self.place.others(self.place.me.group) {
            self.outgoing.push(process, Item::Accept(entry.clone()));
        }
        self.on_accept(entry);
    }

    /// An entry for the log.
    fn on_accept(&mut self, entry: Entry) {
        let (Entry::Set(_, ts) | Entry::Sync(ts)) = entry;
        let ascends = matches!(entry, Entry::Sync(_)) || ts > self.logged;
        assert!(ascends, "F1: {ts:?} after {:?}", self.logged);
        self.logged = ts.max(self.logged);
        self.log.append(entry);
    }

    /// The fast path: with the proposals of all, the clock need not wait for the decisions.
    fn on_soft(&mut self, id: MessageId, ts: Timestamp) {
        let slot = self.slots.or_insert_with(id, Slot::default);
        slot.soft.add(ts);
        if let Some(guess) = slot.complete(slot.soft) {
            self.clock = self.clock.max(guess);
            if self.syncs == Syncs::EachMessage && slot.soft.count > 1 {
                self.guesses.push(guess);
            }
        }
    }

    /// The timestamp that one destination has decided.
    fn on_hard(&mut self, id: MessageId, ts: Timestamp) {
        let slot = self.slots.or_insert_with(id, Slot::default);
        slot.hard.add(ts);
        if let (Some(last), Some(local)) = (slot.complete(slot.hard), slot.local) {
            self.queue.settle(id, local, last);
            if self.place.i_lead() {
                self.clock = self.clock.max(last); // If the guess was less: the slow path.
            }
        }
    }

    /// What the group has decided.
    fn on_decided(&mut self, entry: Entry) {
        let (start, ts) = match entry {
            Entry::Set(start, ts) => (start, ts),
            Entry::Sync(ts) => {
                self.decided = ts.max(self.decided);
                return;
            }
        };
        self.decided = ts;
        let id = start.id;
        if self.place.i_lead() {
            for group in start.dest.iter().filter(|group| **group != self.place.me.group) {
                for process in self.place.others(*group) {
                    self.outgoing.push(process, Item::Hard(id, ts));
                }
            }
        }
        let slot = self.slots.or_insert_with(id, Slot::default);
        slot.start = Some(start);
        slot.local = Some(ts);
        self.queue.add(id, ts);
        self.on_hard(id, ts);
    }

    /// All came that was ready: what it decides, what it asks for, what can be delivered.
    fn on_idle(&mut self, out: &mut Outbox<Self>) {
        loop {
            for guess in std::mem::take(&mut self.guesses) {
                self.propose(Entry::Sync(guess));
            }
            if self.place.i_lead() && self.clock > self.logged {
                self.propose(Entry::Sync(self.clock));
            }
            let upto = self.log.decided();
            let Some(entry) = self.log.take(upto) else { break };
            self.on_decided(entry);
            while let Some(entry) = self.log.take(upto) {
                self.on_decided(entry);
            }
        }
        while let Some((ts, id)) = self.queue.pop(self.decided) {
            let slot = self.slots.remove(&id);
            let start = slot.and_then(|slot| slot.start).expect("what is queued was decided");
            self.deliver(start, ts, out);
        }
        if let Some((len, members)) = self.log.vote() {
            for node in members {
                let to = ProcessId { group: self.place.me.group, node };
                self.outgoing.push(to, Item::Accepted(len));
            }
        }
        self.outgoing.drain().for_each(|(to, batch)| out.send(to, batch));
    }

    fn deliver(&mut self, start: Start, ts: Timestamp, out: &mut Outbox<Self>) {
        let rank = (ts, start.id);
        assert!(self.last < Some(rank), "F2: {rank:?} after {:?}", self.last);
        self.last = Some(rank);
        if self.place.i_lead() {
            self.done.ended_below(start.id.client, start.low);
            self.done.truncated(start.id, ts);
        }
        self.delivered = Position(self.delivered.0 + 1);
        out.output(Delivery { start: start.into(), ts, position: self.delivered });
    }
}

impl Process for FastCast {
    type Peer = ProcessId;
    type Message = Batch<Item>;
    type Record = Nothing;
    type Command = Start;
    type Output = Delivery;
    type Timer = std::convert::Infallible;

    fn step(&mut self, _now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Message { from, message } if self.place.knows(from) => {
                message.0.into_iter().for_each(|item| self.on_item(from, item));
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

impl Protocol for FastCast {
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
        process: &mut FastCast,
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

    fn leader() -> FastCast {
        FastCast::new(process(0, 0), groups(&[3, 1]))
    }

    fn sync(ts: u64) -> Item {
        Item::Accept(Entry::Sync(Timestamp(ts)))
    }

    /// Section 4.6.1, points 1 and 2.
    #[test]
    fn a_leader_tells_the_others_before_its_group_decides() {
        let set = Item::Accept(Entry::Set(start(1, &[0, 1]), Timestamp(1)));
        let mut one = leader();
        assert!(one.leads() && !FastCast::new(process(0, 1), groups(&[3, 1])).leads());
        let from = (process(0, 2), Item::Start(start(1, &[0, 1])));
        let (said, _) = told(&mut one, &[from.clone(), from.clone()]);
        let soft = (process(1, 0), Item::Soft(id(1), Timestamp(1)));
        assert_eq!(said, [(process(0, 1), set.clone()), (process(0, 2), set.clone()), soft]);
        let (said, _) = told(&mut one, &[(process(0, 2), Item::Accepted(1))]);
        assert_eq!(said, [(process(1, 0), Item::Hard(id(1), Timestamp(1)))]);

        let (said, _) = told(&mut leader().without_fast_path(), &[from]);
        assert_eq!(said, [(process(0, 1), set.clone()), (process(0, 2), set)]);
    }

    /// The paper has a second round for each message; it is not needed for one whose own group
    /// timestamps it last.
    #[test]
    fn each_message_moves_the_clock_unless_that_is_lean() {
        for (make, rounds) in [(leader as fn() -> FastCast, 1), (|| leader().lean(), 0)] {
            let mut leader = make();
            let start = Item::Start(start(1, &[0, 1]));
            told(&mut leader, &[(process(1, 0), start)]);
            let (said, _) = told(&mut leader, &[(process(1, 0), Item::Soft(id(1), Timestamp(1)))]);
            let syncs = said.iter().filter(|(to, item)| *to == process(0, 1) && *item == sync(1));
            assert_eq!(syncs.count(), rounds);
        }
    }

    /// Point 3; and no second round when the final timestamp is what was guessed.
    #[test]
    fn the_clock_moves_while_timestamps_are_decided() {
        let mut leader = leader();
        let start = Item::Start(start(1, &[0, 1]));
        let soft = Item::Soft(id(1), Timestamp(5));
        let (said, _) = told(&mut leader, &[(process(1, 0), start), (process(1, 0), soft)]);
        assert!(said.contains(&(process(0, 1), sync(5))));
        let hard = Item::Hard(id(1), Timestamp(5));
        let first = [(process(0, 1), Item::Accepted(1)), (process(1, 0), hard)];
        let (said, delivered) = told(&mut leader, &first);
        assert_eq!(said, [(process(1, 0), Item::Hard(id(1), Timestamp(1)))]);
        assert_eq!(delivered, [0; 0], "the clock is not decided");
        assert_eq!(told(&mut leader, &[(process(0, 1), Item::Accepted(2))]), (vec![], vec![1]));
        assert_eq!(leader.pending(), 0);
    }

    #[test]
    fn a_wrong_guess_is_made_good_by_the_slow_path() {
        let mut leader = leader();
        let start = Item::Start(start(1, &[0, 1]));
        let soft = Item::Soft(id(1), Timestamp(5));
        told(&mut leader, &[(process(1, 0), start), (process(1, 0), soft)]);
        let hard = Item::Hard(id(1), Timestamp(8));
        let (said, delivered) =
            told(&mut leader, &[(process(0, 1), Item::Accepted(2)), (process(1, 0), hard)]);
        assert!(said.contains(&(process(0, 1), sync(8))) && delivered.is_empty());
        assert_eq!(told(&mut leader, &[(process(0, 2), Item::Accepted(3))]).1, [1]);
    }

    /// The thesis, section 4.5.4: with three replicas they do so as early as the leader.
    #[test]
    fn a_follower_learns_decisions_by_itself() {
        let mut follower = FastCast::new(process(0, 1), groups(&[3, 1]));
        let set = Item::Accept(Entry::Set(start(1, &[0, 1]), Timestamp(1)));
        let (said, _) = told(&mut follower, &[(process(0, 0), set), (process(0, 0), sync(5))]);
        assert_eq!(said, [(process(0, 0), Item::Accepted(2))]);
        let hard = Item::Hard(id(1), Timestamp(5));
        assert_eq!(told(&mut follower, &[(process(1, 0), hard)]), (vec![], vec![1]));
        assert_eq!(follower.pending(), 0);
    }

    /// A message that its group timestamped before may have a smaller final timestamp.
    #[test]
    fn a_smaller_local_timestamp_is_waited_for() {
        let mut alone = FastCast::new(process(0, 0), groups(&[1, 1]));
        let first = (process(1, 0), Item::Start(start(1, &[0, 1])));
        let second = (process(1, 0), Item::Start(start(2, &[0])));
        assert_eq!(told(&mut alone, &[first, second]).1, [0; 0]);
        let hard = (process(1, 0), Item::Hard(id(1), Timestamp(1)));
        assert_eq!(told(&mut alone, &[hard]).1, [1, 2]);
    }

    #[test]
    fn who_may_not_say_so_is_not_heard() {
        let mut follower = FastCast::new(process(0, 1), groups(&[3, 3]));
        let set = Item::Accept(Entry::Set(start(1, &[0]), Timestamp(1)));
        let items = [
            (process(0, 2), set.clone()),
            (process(1, 0), set),
            (process(1, 0), Item::Soft(id(1), Timestamp(1))),
            (process(1, 1), Item::Hard(id(1), Timestamp(1))),
            (process(7, 0), Item::Hard(id(1), Timestamp(1))),
            (process(0, 0), Item::Start(start(1, &[0]))),
        ];
        assert_eq!(told(&mut follower, &items), (vec![], vec![]));
        assert_eq!(follower.pending(), 0);
    }
}
