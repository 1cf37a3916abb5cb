//! Clients that multicast, and what holds at every moment: the owner of a world of [`Replica`]s.

use crate::history::{Entry, History};
use crate::owner::{Ask, Owner};
use crate::replica::{Replica, subjects};
use crate::world::Random;
use bytes::Bytes;
use meridian_core::{ClientId, GroupId, MessageId, NodeId, Position, ProcessId, Time};
use meridian_multicast::{Command, Delivery, Message, Output, Start, Timestamp};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A payload that fills logs.
static BIG: [u8; 4 << 20] = [0; 4 << 20];

/// How clients behave.
#[derive(Clone, Debug)]
pub struct Manner {
    /// How many there are.
    pub clients: u64,
    /// How many messages each sends.
    pub messages: u64,
    /// How long a client thinks between two messages at most.
    pub think: Duration,
    /// How long it waits before it sends again.
    pub patience: Duration,
    /// How many messages it may wait for at a time.
    pub window: usize,
    /// One client in so many dies while it sends a message; 0 for none.
    pub mortal: u64,
    /// How long a message from a client to a process travels: at least, and at most.
    pub way: (Duration, Duration),
    /// How many destinations a message has at most.
    pub dest_max: usize,
    /// One START in so many arrives once more, up to so much later than the first; 0 for none.
    pub repeats: (u32, Duration),
    /// One message in so many is 4 MiB long; 0 for none.
    pub big: u32,
}

impl Default for Manner {
    fn default() -> Self {
        Manner {
            clients: 4,
            messages: 40,
            think: Duration::from_millis(200),
            patience: Duration::from_millis(500),
            window: 4,
            mortal: 4,
            way: (Duration::from_micros(50), Duration::from_millis(3)),
            dest_max: 3,
            repeats: (8, Duration::from_secs(2)),
            big: 0,
        }
    }
}

struct Client {
    id: ClientId,
    next: u64,
    dies_at: Option<u64>,
    dead: bool,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    start: Start,
    /// The groups that have not said that they delivered it.
    silent: BTreeSet<GroupId>,
    sent: Time,
}

/// The clients and the watchers.
pub struct Workload {
    /// All that happened.
    pub history: History,
    /// Deliveries, each time a process makes one, replays not counted.
    pub deliveries: u64,
    groups: BTreeMap<GroupId, Vec<NodeId>>,
    manner: Manner,
    random: Random,
    clients: Vec<Client>,
    order: BTreeMap<GroupId, Vec<MessageId>>,
    finals: BTreeMap<MessageId, Timestamp>,
    last: BTreeMap<ProcessId, (Timestamp, MessageId)>,
    reached: BTreeMap<ProcessId, Position>,
    checks: u64,
}

impl Workload {
    /// Clients of these groups.
    pub fn new(seed: u64, groups: BTreeMap<GroupId, Vec<NodeId>>, manner: Manner) -> Self {
        let mut random = Random::seed_from_u64(seed ^ 0x5eed);
        let member = |group: GroupId| move |node: &NodeId| ProcessId { group, node: *node };
        let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
            (*group, nodes.iter().map(member(*group)).collect())
        };
        let history = History::new(groups.iter().map(of).collect());
        let clients = (1..=manner.clients).map(|client| {
            let dies = manner.mortal > 0 && client % manner.mortal == 0;
            let dies_at = dies.then(|| random.random_range(1..=manner.messages));
            let waiting = BTreeMap::new();
            Client { id: ClientId(client), next: 1, dies_at, dead: false, waiting }
        });
        let clients = clients.collect();
        Workload {
            history,
            deliveries: 0,
            groups,
            manner,
            random,
            clients,
            order: BTreeMap::new(),
            finals: BTreeMap::new(),
            last: BTreeMap::new(),
            reached: BTreeMap::new(),
            checks: 0,
        }
    }

    /// What starts the clients.
    pub fn begin(&self) -> Vec<Ask<Replica>> {
        let wake = |client| Ask::Wake { token: client, after: Duration::ZERO };
        (0..self.clients.len() as u64).map(wake).collect()
    }

    /// The clients that live.
    pub fn survivors(&self) -> BTreeSet<ClientId> {
        self.clients.iter().filter(|client| !client.dead).map(|client| client.id).collect()
    }

    /// Whether all clients have said all they had to say, and know it to be delivered.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| {
            client.dead || (client.next > self.manner.messages && client.waiting.is_empty())
        })
    }

    /// What the clients still wait for.
    pub fn unanswered(&self) -> Vec<(MessageId, Vec<GroupId>)> {
        let of = |waiting: &Waiting| (waiting.start.id, waiting.silent.iter().copied().collect());
        let living = self.clients.iter().filter(|client| !client.dead);
        living.flat_map(|client| client.waiting.values().map(of)).collect()
    }

    /// Whether each process has said that it delivered all that any of its group did.
    pub fn is_level(&self) -> bool {
        let level = |process: &ProcessId| {
            let order = self.order.get(&process.group).map_or(0, |order| order.len() as u64);
            self.reached.get(process).copied().unwrap_or_default().0 == order
        };
        self.history.groups.values().flatten().all(level)
    }

    /// One message, multicast now; the client never sends it again.
    pub fn multicast(&mut self, id: MessageId, dest: &[u16], now: Time) -> Start {
        let dest: Vec<_> = dest.iter().copied().map(GroupId).collect();
        self.history.push(Entry::Multicast { id, dest: dest.clone(), t: now });
        Start { low: 1, ..Start::new(id, dest, Bytes::from_static(b"payload")) }
    }

    fn send_new(&mut self, at: usize, now: Time) -> Vec<Ask<Replica>> {
        let all: Vec<_> = self.groups.keys().copied().collect();
        let most = self.manner.dest_max.min(all.len());
        let count = self.random.random_range(1..=most);
        let mut dest: Vec<_> = all.sample(&mut self.random, count).copied().collect();
        dest.sort_unstable();
        let client = &mut self.clients[at];
        let sequence = client.next;
        client.next += 1;
        let low = client.waiting.keys().next().copied().unwrap_or(sequence);
        let id = MessageId { client: client.id, sequence };
        let big = self.manner.big > 0 && self.random.random_ratio(1, self.manner.big);
        let payload = match big {
            true => Bytes::from_static(&BIG),
            false => Bytes::from(id.to_string().into_bytes()),
        };
        let start = Start { low, ..Start::new(id, dest.clone(), payload) };
        self.history.push(Entry::Multicast { id, dest: dest.clone(), t: now });
        let mut silent: BTreeSet<_> = dest.iter().copied().collect();
        if client.dies_at == Some(sequence) {
            client.dead = true;
            silent.retain(|_| self.random.random_bool(0.5));
            return self.send(&start, &silent);
        }
        let asks = self.send(&start, &silent);
        self.clients[at].waiting.insert(sequence, Waiting { start, silent, sent: now });
        asks
    }

    /// Sends to one member of each of the groups.
    fn send(&mut self, start: &Start, groups: &BTreeSet<GroupId>) -> Vec<Ask<Replica>> {
        let mut asks = Vec::new();
        for group in groups {
            let members = &self.groups[group];
            let node = *members.choose(&mut self.random).expect("groups have members");
            let (least, most) = self.manner.way;
            let after = self.random.random_range(least..=most);
            let to = ProcessId { group: *group, node };
            let command = Command::Start(start.clone());
            let (ratio, later) = self.manner.repeats;
            if ratio > 0 && self.random.random_ratio(1, ratio) {
                let after = after + self.random.random_range(Duration::ZERO..=later);
                asks.push(Ask::Command { to, command: command.clone(), after });
            }
            asks.push(Ask::Command { to, command, after });
        }
        asks
    }

    fn send_again(&mut self, at: usize, now: Time) -> Vec<Ask<Replica>> {
        let patience = self.manner.patience;
        let late = self.clients[at].waiting.values_mut().filter(|w| now.since(w.sent) > patience);
        let late: Vec<_> = late
            .map(|waiting| {
                waiting.sent = now;
                (waiting.start.clone(), waiting.silent.clone())
            })
            .collect();
        late.iter().flat_map(|(start, silent)| self.send(start, silent)).collect()
    }

    /// A group has delivered a message: its client may cease to wait.
    fn answered(&mut self, group: GroupId, id: MessageId) {
        let Some(client) = self.clients.iter_mut().find(|client| client.id == id.client) else {
            return;
        };
        if let Some(waiting) = client.waiting.get_mut(&id.sequence) {
            waiting.silent.remove(&group);
            if waiting.silent.is_empty() {
                client.waiting.remove(&id.sequence);
            }
        }
    }

    fn on_delivery(&mut self, at: ProcessId, delivery: &Delivery, now: Time) {
        let Delivery { start, ts, position } = delivery;
        let rank = (*ts, start.id);
        let last = self.last.insert(at, rank);
        assert!(last < Some(rank), "{at} delivers {rank:?} after {last:?}");
        let first = *self.finals.entry(start.id).or_insert(*ts);
        assert_eq!(first, *ts, "{at} has another final timestamp for {}", start.id);
        self.deliveries += 1;
        self.note(at, start.id, *position, now);
        self.answered(at.group, start.id);
    }

    fn reach(&mut self, process: ProcessId, position: Position) {
        let reached = self.reached.entry(process).or_default();
        *reached = position.max(*reached);
    }

    /// Judges at once what the checkers would judge at the end, for a short trace.
    fn note(&mut self, process: ProcessId, id: MessageId, position: Position, t: Time) {
        let order = self.order.entry(process.group).or_default();
        let place = usize::try_from(position.0 - 1).expect("fits in memory");
        assert!(place <= order.len(), "{process} delivers {id} at {position:?}: a hole");
        match order.get(place) {
            None => order.push(id),
            Some(first) => assert_eq!(*first, id, "{process} differs at {position:?}"),
        }
        self.reach(process, position);
        self.history.push(Entry::Deliver { process, id, position, t });
    }
}

impl Owner<Replica> for Workload {
    fn output(&mut self, at: ProcessId, output: Output, now: Time) -> Vec<Ask<Replica>> {
        match output {
            Output::Deliver(delivery) => self.on_delivery(at, &delivery, now),
            Output::Duplicate(id) => self.answered(at.group, id),
            Output::Install { position, .. } => {
                self.reach(at, position);
                self.history.push(Entry::Installed { process: at, position });
            }
            // Who was refused asks again.
            Output::Settled(_)
            | Output::Ended { .. }
            | Output::Refused { .. }
            | Output::SnapshotWanted { .. } => {}
        }
        Vec::new()
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Ask<Replica>> {
        let at = usize::try_from(token).expect("an index");
        let client = &self.clients[at];
        if client.dead || (client.next > self.manner.messages && client.waiting.is_empty()) {
            return Vec::new();
        }
        let fresh =
            client.next <= self.manner.messages && client.waiting.len() < self.manner.window;
        let mut asks = self.send_again(at, now);
        if fresh {
            asks.extend(self.send_new(at, now));
        }
        let after = self.random.random_range(Duration::ZERO..=self.manner.think);
        asks.push(Ask::Wake { token, after });
        asks
    }

    fn commanded(&mut self, at: ProcessId, command: &Command, _now: Time) {
        if let Command::Start(start) = command {
            self.history.push(Entry::Asked { process: at, id: start.id });
        }
    }

    fn crashed(&mut self, at: ProcessId, _now: Time) {
        self.history.push(Entry::Crash(at));
        self.last.remove(&at);
    }

    fn started(&mut self, at: ProcessId, process: &Replica, now: Time) {
        self.history.push(Entry::Recover(at));
        assert_eq!(process.multicast.delivered().0, process.delivered.len() as u64);
        for (position, id) in (1..).zip(&process.delivered) {
            self.note(at, *id, Position(position), now);
        }
    }

    fn traffic(&mut self, at: ProcessId, message: &Message) {
        for id in subjects(message) {
            self.history.push(Entry::Step { process: at, id });
        }
    }

    fn check(&mut self, _at: ProcessId, process: &Replica, _durable: bool) -> Result<(), String> {
        // It walks the whole state: not after each event.
        self.checks += 1;
        if self.checks.is_multiple_of(16) {
            process.multicast.check_invariants();
        }
        Ok(())
    }
}
