//! Two links over connections that break, and a checker that must object to planted bugs.

use super::*;

/// Numbers that look random (splitmix64): equal seeds give equal runs.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// A bug that the checker must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    None,
    /// A packet that came before is taken as new.
    Duplicates,
    /// A packet after a gap is taken.
    Gaps,
    /// A packet of an earlier session is taken.
    OldSessions,
    /// The owner is not told of a new session.
    Silence,
}

/// What a message says: who sent it, after how many restarts seen, its number since.
type Tag = (u64, u64, u64);

fn encode((incarnation, epoch, number): Tag) -> Bytes {
    let words = [incarnation, epoch, number].map(u64::to_le_bytes);
    Bytes::from(words.concat())
}

fn decode(bytes: &[u8]) -> Tag {
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
    (word(0), word(1), word(2))
}

/// An end and its owner.
struct End {
    link: Link,
    incarnation: u64,
    /// Restarts that this incarnation's owner saw, and messages that it sent since.
    epoch: u64,
    sent: u64,
    /// The peer's epoch that messages come from, and how many came, since the last restart.
    receiving: Option<(u64, u64)>,
    received: u64,
    /// All that this end's incarnations ever received from; none may come back.
    closed: Vec<(u64, u64)>,
    /// Packets on their way to this end, and all that ever were.
    wire: VecDeque<Packet>,
    history: Vec<Packet>,
}

impl End {
    fn new(incarnation: u64) -> End {
        End {
            link: Link::new(incarnation),
            incarnation,
            epoch: 0,
            sent: 0,
            receiving: None,
            received: 0,
            closed: Vec::new(),
            wire: VecDeque::new(),
            history: Vec::new(),
        }
    }

    fn send(&mut self) {
        self.sent += 1;
        self.link.send(encode((self.incarnation, self.epoch, self.sent)));
    }

    fn restart(&mut self) {
        let mut closed = std::mem::take(&mut self.closed);
        closed.extend(self.receiving);
        let history = std::mem::take(&mut self.history);
        *self = End { closed, history, ..End::new(self.incarnation + 1) };
    }

    /// The checker: L1 and L2.
    fn on_event(&mut self, event: LinkEvent) -> Result<(), String> {
        match event {
            LinkEvent::Restarted => {
                self.closed.extend(self.receiving.take());
                (self.epoch, self.sent, self.received) = (self.epoch + 1, 0, 0);
            }
            LinkEvent::Message(bytes) => {
                let (incarnation, epoch, number) = decode(&bytes);
                let from = (incarnation, epoch);
                if self.closed.contains(&from) {
                    return Err(format!("{from:?} had ended, and message {number} of it came"));
                }
                if *self.receiving.get_or_insert(from) != from {
                    return Err(format!("{from:?} follows {:?} untold", self.receiving));
                }
                if number != self.received + 1 {
                    return Err(format!("message {number} of {from:?} after {}", self.received));
                }
                self.received = number;
            }
        }
        Ok(())
    }
}

struct World {
    ends: [End; 2],
    now: Time,
    dice: Dice,
    plant: Plant,
    deliveries: u64,
    restarts: u64,
}

impl World {
    fn new(seed: u64, plant: Plant) -> World {
        let ends = [End::new(1), End::new(1)];
        World { ends, now: Time(0), dice: Dice(seed), plant, deliveries: 0, restarts: 0 }
    }

    fn connect(&mut self) {
        for end in &mut self.ends {
            end.wire.clear();
        }
        for end in 0..2 {
            let open = self.ends[end].link.on_connected();
            self.put(1 - end, open);
        }
    }

    fn put(&mut self, to: usize, packet: Packet) {
        self.ends[to].wire.push_back(packet.clone());
        if !matches!(packet, Packet::Echo(_)) {
            self.ends[to].history.push(packet);
        }
    }

    fn disconnect(&mut self) {
        for end in &mut self.ends {
            end.wire.clear();
            end.link.on_disconnected();
        }
    }

    fn transmit(&mut self, end: usize) {
        if let Some(packet) = self.ends[end].link.poll_transmit(self.now) {
            self.put(1 - end, packet);
        }
    }

    fn deliver(&mut self, end: usize, packet: Packet) -> Result<(), String> {
        let packet = self.bug(end, packet);
        let Ok(events) = self.ends[end].link.on_packet(self.now, packet) else {
            self.disconnect();
            return Ok(());
        };
        for event in events {
            if event == LinkEvent::Restarted {
                self.restarts += 1;
                if self.plant == Plant::Silence {
                    continue;
                }
            }
            self.deliveries += 1;
            self.ends[end].on_event(event)?;
        }
        Ok(())
    }

    /// Makes of a packet that the link would refuse one that it takes.
    fn bug(&self, end: usize, mut packet: Packet) -> Packet {
        let link = &self.ends[end].link;
        let (life, peer, next) = (link.life, link.peer, link.expected);
        if let Packet::Data { session, first, expected, .. } = &mut packet {
            match self.plant {
                Plant::Duplicates if *first < next => *first = next,
                Plant::Gaps if *first > next => *first = next,
                Plant::OldSessions if session.to.incarnation != 0 => {
                    (*session, *expected) = (Session { from: peer.unwrap_or(life), to: life }, 1);
                }
                _ => (),
            }
        }
        packet
    }

    fn step(&mut self) -> Result<(), String> {
        let end = self.dice.roll(2) as usize;
        match self.dice.roll(100) {
            0..30 => self.ends[end].send(),
            30..55 => self.transmit(end),
            55..85 => {
                if let Some(packet) = self.ends[end].wire.pop_front() {
                    self.deliver(end, packet)?;
                }
            }
            85..90 => self.now = self.now + Duration::from_millis(self.dice.roll(40)),
            90..94 => self.connect(),
            94 => self.disconnect(),
            95 => drop(self.ends[end].wire.pop_front()),
            96..98 => {
                let history = self.ends[end].history.len() as u64;
                if history > 0 {
                    let at = self.dice.roll(history) as usize;
                    let packet = self.ends[end].history[at].clone();
                    self.deliver(end, packet)?;
                }
            }
            98 => self.ends[end].link.give_up(),
            _ => {
                self.disconnect();
                self.ends[end].restart();
            }
        }
        if self.ends[end].link.wants_reconnect() {
            self.disconnect();
        }
        Ok(())
    }

    /// Without faults all that was sent in the last session arrives.
    fn heal(&mut self) -> Result<(), String> {
        for _ in 0..4 {
            self.connect();
            for _ in 0..20_000 {
                self.now = self.now + Duration::from_millis(10);
                for end in 0..2 {
                    self.transmit(end);
                    if let Some(packet) = self.ends[end].wire.pop_front() {
                        self.deliver(end, packet)?;
                    }
                }
                let quiet = |end: &End| {
                    end.wire.is_empty()
                        && end.link.queue.is_empty()
                        && end.link.poll_timer().is_none()
                };
                let open = self.ends.iter().all(|end| end.link.is_open());
                if !open || self.ends.iter().all(quiet) {
                    break;
                }
            }
            if self.ends.iter().all(|end| end.link.is_open()) {
                return self.check_all_arrived();
            }
        }
        Err("the links do not open".into())
    }

    fn check_all_arrived(&self) -> Result<(), String> {
        for (sender, receiver) in [(0, 1), (1, 0)].map(|(a, b)| (&self.ends[a], &self.ends[b])) {
            if sender.sent != receiver.received {
                return Err(format!("{} sent, {} arrived", sender.sent, receiver.received));
            }
            let of = (sender.incarnation, sender.epoch);
            if receiver.received > 0 && receiver.receiving != Some(of) {
                return Err(format!("{:?} instead of {of:?}", receiver.receiving));
            }
            if !sender.link.queue.is_empty() || sender.link.queued_bytes != [0; 2] {
                return Err("something is kept for ever".into());
            }
        }
        Ok(())
    }
}

/// How many of `seeds` the checker objects to, and the first objection.
fn objections(seeds: std::ops::Range<u64>, plant: Plant) -> (usize, Option<String>) {
    let (mut deliveries, mut restarts) = (0, 0);
    let mut found = Vec::new();
    for seed in seeds {
        let mut world = World::new(seed, plant);
        let run = (0..2500).try_for_each(|_| world.step()).and_then(|()| world.heal());
        deliveries += world.deliveries;
        restarts += world.restarts;
        found.extend(run.err().map(|text| format!("seed {seed}: {text}")));
    }
    assert!(deliveries > 500 && restarts > 100, "{deliveries} deliveries, {restarts} restarts");
    (found.len(), found.into_iter().next())
}

#[test]
fn within_a_session_all_arrives_once_and_in_order() {
    assert_eq!(objections(0..400, Plant::None), (0, None));
}

#[test]
fn the_checker_objects_to_planted_bugs() {
    for plant in [Plant::Duplicates, Plant::Gaps, Plant::OldSessions, Plant::Silence] {
        let (count, first) = objections(0..100, plant);
        assert!(count > 10, "{plant:?}: {count} of 100, {first:?}");
    }
}

/// Two links that have just opened a connection to each other.
fn pair() -> (Link, Link) {
    let (mut a, mut b) = (Link::new(1), Link::new(1));
    assert_eq!(join(&mut a, &mut b), (vec![], vec![]));
    // Each asks how far the other is, and is answered.
    carry(&mut a, &mut b, Time(0));
    carry(&mut b, &mut a, Time(0));
    carry(&mut a, &mut b, Time(0));
    (a, b)
}

fn join(a: &mut Link, b: &mut Link) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
    let (to_b, to_a) = (a.on_connected(), b.on_connected());
    (a.on_packet(Time(0), to_a).unwrap(), b.on_packet(Time(0), to_b).unwrap())
}

fn carry(from: &mut Link, to: &mut Link, now: Time) -> Vec<LinkEvent> {
    let mut events = Vec::new();
    while let Some(packet) = from.poll_transmit(now) {
        events.extend(to.on_packet(now, packet).unwrap());
    }
    events
}

#[test]
fn what_is_ready_travels_together_and_idle_links_are_silent() {
    let (mut a, mut b) = pair();
    for _ in 0..100 {
        a.send(Bytes::from_static(b"x"));
    }
    let packet = a.poll_transmit(Time(0)).unwrap();
    assert!(matches!(&packet, Packet::Data { first: 1, pieces, .. } if pieces.len() == 100));
    assert_eq!(a.poll_transmit(Time(0)), None);
    assert_eq!(b.on_packet(Time(0), packet).unwrap().len(), 100);
    assert_eq!(b.poll_transmit(Time(0)), None, "an acknowledgement waits for data");
    let due = b.poll_timer().unwrap();
    let ack = b.poll_transmit(due).unwrap();
    assert!(matches!(ack, Packet::Ack { expected: 101, .. }));
    a.on_packet(due, ack).unwrap();
    assert_eq!((a.queue.len(), a.queued_bytes), (0, [0; 2]));
    let later = Some(Time(0) + crate::echo::EVERY);
    assert_eq!((a.poll_timer(), b.poll_timer()), (later, later));
    assert_eq!((a.poll_transmit(due), b.poll_transmit(due)), (None, None));
}

#[test]
fn an_end_knows_how_far_the_other_is() {
    let (mut a, mut b) = (Link::new(1), Link::new(1));
    join(&mut a, &mut b);
    let ms = |ms: u64| Time(ms * 1_000_000);
    for at in [5, 5005, 10_005] {
        let ask = a.poll_transmit(ms(at)).unwrap();
        b.on_packet(ms(at + 40), ask).unwrap();
        carry(&mut b, &mut a, ms(at + 80));
        carry(&mut a, &mut b, ms(at + 100));
    }
    assert_eq!(a.round_trip(), Some(Duration::from_millis(80)));
    assert_eq!(b.round_trip(), Some(Duration::from_millis(20)));
    a.on_disconnected();
    assert_eq!(a.round_trip(), None, "it was that of a connection");
    b.on_disconnected();
    join(&mut a, &mut b);
    assert_eq!(a.round_trip(), None);
}

#[test]
fn a_long_message_travels_in_pieces() {
    let (mut a, mut b) = pair();
    let long: Bytes = (0..PIECE_LEN * 2 + 7).map(|at| (at % 251) as u8).collect();
    let messages = [Bytes::new(), long, Bytes::from_static(b"after")];
    for message in &messages {
        a.send(message.clone());
    }
    assert_eq!(carry(&mut a, &mut b, Time(0)), messages.map(LinkEvent::Message));
}

#[test]
fn a_long_message_that_waits_leaves_room_for_short_ones() {
    let (mut a, mut b) = pair();
    let long = Bytes::from(vec![7; MAX_QUEUED_BYTES + 1]);
    let short = Bytes::from_static(b"short");
    let mut sent = Vec::new();
    for _ in 0..2 {
        a.send(long.clone());
        (0..1000).for_each(|_| a.send(short.clone()));
        sent.push(long.clone());
        sent.extend(vec![short.clone(); 1000]);
    }
    assert!(!a.wants_reconnect());
    let sent: Vec<_> = sent.into_iter().map(LinkEvent::Message).collect();
    assert!(carry(&mut a, &mut b, Time(0)) == sent);
    let ack = b.poll_transmit(b.poll_timer().unwrap_or(Time(0))).into_iter();
    ack.for_each(|ack| drop(a.on_packet(Time(0), ack).unwrap()));
    assert_eq!((a.queue.len(), a.queued_bytes), (0, [0; 2]));
    for _ in 0..=MAX_QUEUED_LONG_BYTES / long.len() + 1 {
        a.send(long.clone());
    }
    assert!(a.wants_reconnect(), "they are bounded, too");
}

#[test]
fn every_packet_fits_in_a_frame() {
    let (mut a, _) = pair();
    for len in [PACKET_LEN - 1, PIECE_LEN, 3 * PIECE_LEN, 0] {
        a.send(Bytes::from(vec![7; len]));
    }
    while let Some(packet) = a.poll_transmit(Time(0)) {
        assert!(postcard::to_allocvec(&packet).unwrap().len() <= crate::frame::MAX_BODY);
    }
}

#[test]
fn too_much_for_a_peer_that_is_away_is_dropped_and_told() {
    let (mut a, mut b) = pair();
    a.on_disconnected();
    b.on_disconnected();
    let chunk = Bytes::from(vec![0; PIECE_LEN]);
    for _ in 0..100 {
        a.send(chunk.clone());
    }
    assert_eq!((a.queue.len(), a.queued_bytes), (0, [0; 2]), "no memory is held");
    assert!(!a.wants_reconnect());
    assert_eq!(join(&mut a, &mut b), (vec![LinkEvent::Restarted], vec![LinkEvent::Restarted]));
    a.send(Bytes::from_static(b"anew"));
    let anew = LinkEvent::Message(Bytes::from_static(b"anew"));
    assert_eq!(carry(&mut a, &mut b, Time(0)), [anew]);
}

#[test]
fn too_much_while_connected_asks_for_a_new_connection() {
    let (mut a, mut b) = pair();
    for _ in 0..=MAX_QUEUED {
        a.send(Bytes::new());
    }
    assert!(a.wants_reconnect());
    assert_eq!(a.poll_transmit(Time(0)), None);
    b.send(Bytes::new());
    let late = b.poll_transmit(Time(0)).unwrap();
    assert_eq!(a.on_packet(Time(0), late), Err(LinkError::Session));
    assert_eq!(join(&mut a, &mut b), (vec![LinkEvent::Restarted], vec![LinkEvent::Restarted]));
}

#[test]
fn both_hear_of_a_restart() {
    let (mut a, _) = pair();
    let mut b = Link::new(2);
    assert_eq!(join(&mut a, &mut b), (vec![LinkEvent::Restarted], vec![LinkEvent::Restarted]));
    assert_eq!(join(&mut a, &mut b), (vec![], vec![]));
    let mut dead = Link::new(1);
    let open = dead.on_connected();
    a.on_connected();
    assert_eq!(a.on_packet(Time(0), open), Err(LinkError::Old));
}
