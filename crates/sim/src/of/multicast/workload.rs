//! Clients that multicast, and what holds at every moment: the owner of a world of [`Replica`]s.

pub use super::profile::{Profile, Senders};
use crate::of::multicast::checkers::{Ranks, SafeTimes};
use crate::of::multicast::history::{Entry, History};
use crate::of::multicast::loss::Loss;
use crate::of::multicast::replica::Replica;
use crate::world::Random;
use crate::world::{Owner, Stimulus};
use bytes::Bytes;
use meridian_core::{ClientId, GroupId, MessageId, NodeId, Position, ProcessId, Time};
use meridian_multicast::{
    Command, Config, Delivery, Dest, Message, Order, Output, Rank, Role, Start, Timestamp, Touches,
};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

struct Client {
    id: ClientId,
    next: u64,
    dies_at: Option<u64>,
    dead: bool,
    waiting: BTreeMap<u64, Waiting>,
    /// The greatest timestamp of a message of its own that it knows to be delivered.
    seen: Timestamp,
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
    /// Which order the processes are to keep.
    pub order: Order,
    /// The processes that have sent or received anything that groups say to each other.
    pub between: BTreeSet<ProcessId>,
    groups: BTreeMap<GroupId, Vec<NodeId>>,
    /// The groups that were lost.
    pub losses: Vec<Loss>,
    /// The numbers of the configurations of groups that were changed.
    numbers: BTreeMap<GroupId, u64>,
    profile: Profile,
    random: Random,
    clients: Vec<Client>,
    sent: BTreeMap<MessageId, Start>,
    /// What anyone has delivered, in each group.
    delivered: BTreeMap<GroupId, BTreeSet<MessageId>>,
    finals: BTreeMap<MessageId, Timestamp>,
    ranks: BTreeMap<ProcessId, Ranks>,
    reached: BTreeMap<ProcessId, Position>,
    /// What each process has delivered in any of its lives.
    ever: BTreeMap<ProcessId, BTreeSet<Rank>>,
    safe: SafeTimes,
    checks: u64,
}

impl Workload {
    /// Clients of these groups.
    pub fn new(seed: u64, groups: BTreeMap<GroupId, Vec<NodeId>>, profile: Profile) -> Self {
        let mut random = Random::seed_from_u64(seed ^ 0x5eed);
        let member = |group: GroupId| move |node: &NodeId| ProcessId { group, node: *node };
        let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
            (*group, nodes.iter().map(member(*group)).collect())
        };
        let history = History::new(groups.iter().map(of).collect());
        let clients = (1..=profile.clients).map(|client| {
            let dies = profile.mortal > 0 && client % profile.mortal == 0;
            let dies_at = dies.then(|| random.random_range(1..=profile.messages));
            let waiting = BTreeMap::new();
            let (id, seen) = (ClientId(client), Timestamp(0));
            Client { id, next: 1, dies_at, dead: false, waiting, seen }
        });
        let clients = clients.collect();
        Workload {
            history,
            deliveries: 0,
            order: Order::default(),
            between: BTreeSet::new(),
            groups,
            losses: Vec::new(),
            numbers: BTreeMap::new(),
            profile,
            random,
            clients,
            sent: BTreeMap::new(),
            delivered: BTreeMap::new(),
            finals: BTreeMap::new(),
            ranks: BTreeMap::new(),
            reached: BTreeMap::new(),
            ever: BTreeMap::new(),
            safe: SafeTimes::default(),
            checks: 0,
        }
    }

    /// These processes may come later: until then they are down.
    pub fn expect(&mut self, later: &[ProcessId]) {
        for process in later {
            self.history.groups.entry(process.group).or_default().push(*process);
            self.history.push(Entry::Crash(*process));
        }
    }

    /// The members of each group in the latest configuration that was delivered anywhere.
    pub fn groups(&self) -> &BTreeMap<GroupId, Vec<NodeId>> {
        &self.groups
    }

    /// The number of that configuration.
    pub fn config_of(&self, group: GroupId) -> u64 {
        self.numbers.get(&group).copied().unwrap_or(0)
    }

    /// A configuration was delivered.
    pub fn configured(&mut self, config: &Config) {
        let known = self.groups.contains_key(&config.group);
        if !known || config.number == self.config_of(config.group) + 1 {
            self.numbers.insert(config.group, config.number);
            self.groups.insert(config.group, config.members.clone());
        }
    }

    /// A group is lost, and goes on with heirs.
    pub fn lose(&mut self, loss: Loss) {
        let Config { group, number, members } = loss.fence.config.clone();
        self.groups.insert(group, members);
        self.numbers.insert(group, number);
        self.delivered.remove(&group);
        self.losses.push(loss);
        // What nobody else has delivered may get another timestamp.
        let delivered = self.history.entries.iter().filter_map(|entry| match entry {
            Entry::Deliver { process, id, .. } if !self.is_lost(*process) => Some(*id),
            _ => None,
        });
        let kept: BTreeSet<_> = delivered.collect();
        self.finals.retain(|id, _| kept.contains(id));
    }

    /// Whether a process was a member of its group when that was lost.
    fn is_lost(&self, process: ProcessId) -> bool {
        self.losses.iter().any(|loss| loss.old.contains(&process))
    }

    /// Whether a message goes to a group that was lost.
    fn goes_to_lost(&self, id: MessageId) -> bool {
        let dest = self.sent.get(&id).map(|start| &start.dest);
        let lost = |dest: &Dest| self.losses.iter().any(|loss| dest.contains(&loss.group()));
        dest.is_some_and(lost)
    }

    /// What happened, as it is to be judged.
    pub fn judged(&self) -> Cow<'_, History> {
        let history = Cow::Borrowed(&self.history);
        self.losses.iter().fold(history, |history, loss| Cow::Owned(loss.judged(&history)))
    }

    /// The clients that live.
    pub fn survivors(&self) -> BTreeSet<ClientId> {
        self.clients.iter().filter(|client| !client.dead).map(|client| client.id).collect()
    }

    /// Whether all clients have said all they had to say, and know it to be delivered.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| {
            client.dead || (client.next > self.profile.messages && client.waiting.is_empty())
        })
    }

    /// What the clients still wait for.
    pub fn unanswered(&self) -> Vec<(MessageId, Vec<GroupId>)> {
        let of = |waiting: &Waiting| (waiting.start.id, waiting.silent.iter().copied().collect());
        let living = self.clients.iter().filter(|client| !client.dead);
        living.flat_map(|client| client.waiting.values().map(of)).collect()
    }

    /// Whether the process has said that it delivered so much: it may wait for its disk.
    pub fn has_heard(&self, process: ProcessId, delivered: Position) -> bool {
        self.reached.get(&process).copied().unwrap_or_default() >= delivered
    }

    /// Whether each process has said that it delivered all that any of its group did.
    pub fn is_level(&self) -> bool {
        let level = |process: &ProcessId| {
            let count = self.delivered.get(&process.group).map_or(0, |ids| ids.len() as u64);
            self.reached.get(process).copied().unwrap_or_default().0 == count
        };
        let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
            let (group, nodes) = (*group, nodes.clone());
            nodes.into_iter().map(move |node| ProcessId { group, node })
        };
        self.groups.iter().flat_map(of).all(|process| level(&process))
    }

    /// One message that conflicts with all, multicast now; the client never sends it again.
    pub fn multicast(&mut self, id: MessageId, dest: &[u16], now: Time) -> Start {
        self.multicast_touching(id, dest, Touches::All, now)
    }

    /// The same, of what touches less.
    pub fn multicast_touching(
        &mut self,
        id: MessageId,
        dest: &[u16],
        touches: Touches,
        now: Time,
    ) -> Start {
        let dest: Vec<_> = dest.iter().copied().map(GroupId).collect();
        let start =
            Start { low: 1, touches, ..Start::new(id, dest, Bytes::from_static(b"payload")) };
        self.begins(&start, now);
        start
    }

    /// The message `start` is multicast now, by somebody else.
    pub fn begins(&mut self, start: &Start, t: Time) {
        let Start { id, after, .. } = *start;
        let (dest, touches) = (start.dest.to_vec(), start.touches.clone());
        self.history.push(Entry::Multicast { id, dest, touches, after, t });
        self.sent.insert(id, start.clone());
    }

    fn send_new(&mut self, at: usize, now: Time) -> Vec<Stimulus<Replica>> {
        let all: Vec<_> = self.groups.keys().copied().collect();
        let most = self.profile.dest_max.min(all.len());
        let count = self.random.random_range(1..=most);
        let mut dest: Vec<_> = all.sample(&mut self.random, count).copied().collect();
        dest.sort_unstable();
        let client = &mut self.clients[at];
        let sequence = client.next;
        client.next += 1;
        let low = client.waiting.keys().next().copied().unwrap_or(sequence);
        let (id, seen) = (MessageId { client: client.id, sequence }, client.seen);
        let touches = self.profile.touches(&mut self.random);
        let after = self.profile.bound(seen, &mut self.random);
        let payload = self.profile.payload(&id.to_string(), &mut self.random);
        let start = Start { low, after, touches, ..Start::new(id, dest, payload) };
        self.begins(&start, now);
        let mut silent: BTreeSet<_> = start.dest.iter().copied().collect();
        let client = &mut self.clients[at];
        if client.dies_at == Some(sequence) {
            client.dead = true;
            silent.retain(|_| self.random.random_bool(0.5));
            return self.send(&start, &silent);
        }
        let stimuli = self.send(&start, &silent);
        self.clients[at].waiting.insert(sequence, Waiting { start, silent, sent: now });
        stimuli
    }

    /// Sends to one member of each of the groups, or to one process that is to multicast it.
    fn send(&mut self, start: &Start, groups: &BTreeSet<GroupId>) -> Vec<Stimulus<Replica>> {
        let mut stimuli = Vec::new();
        if self.profile.by_member(&mut self.random) && !groups.is_empty() {
            let all: Vec<_> = self.groups.keys().copied().collect();
            let group = *all.choose(&mut self.random).expect("there are groups");
            self.send_to(group, &Command::Multicast(start.clone()), &mut stimuli);
        } else {
            for group in groups {
                self.send_to(*group, &Command::Start(start.clone()), &mut stimuli);
            }
        }
        stimuli
    }

    fn send_to(&mut self, group: GroupId, command: &Command, stimuli: &mut Vec<Stimulus<Replica>>) {
        let node = *self.groups[&group].choose(&mut self.random).expect("groups have members");
        let to = ProcessId { group, node };
        let (least, most) = self.profile.way;
        let after = self.random.random_range(least..=most);
        let (ratio, later) = self.profile.repeats;
        if ratio > 0 && self.random.random_ratio(1, ratio) {
            let after = after + self.random.random_range(Duration::ZERO..=later);
            stimuli.push(Stimulus::Command { to, command: command.clone(), after });
        }
        stimuli.push(Stimulus::Command { to, command: command.clone(), after });
    }

    fn send_again(&mut self, at: usize, now: Time) -> Vec<Stimulus<Replica>> {
        let timeout = self.profile.timeout;
        let late = self.clients[at].waiting.values_mut().filter(|w| now.since(w.sent) > timeout);
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
        if let Some(ts) = self.finals.get(&id) {
            client.seen = client.seen.max(*ts);
        }
        if let Some(waiting) = client.waiting.get_mut(&id.sequence) {
            waiting.silent.remove(&group);
            if waiting.silent.is_empty() {
                client.waiting.remove(&id.sequence);
            }
        }
    }

    /// Judges at once much of what the checkers would judge at the end, for a short trace.
    fn on_delivery(&mut self, at: ProcessId, delivery: &Delivery, now: Time) {
        let Delivery { start, ts, position } = delivery;
        let rank = (*ts, start.id);
        let sent = self.sent.get(&start.id);
        assert!(
            sent.is_some_and(|sent| is_same(sent, start)),
            "{at} delivers another {}",
            start.id
        );
        if self.is_lost(at) {
            return self.note(at, rank, *position, now); // Nobody hears of it.
        }
        let greater = self.ranks.entry(at).or_default().raise(&start.touches, rank);
        assert!(greater.is_none(), "{at} delivers {rank:?} after {greater:?}");
        let first = *self.finals.entry(start.id).or_insert(*ts);
        assert_eq!(first, *ts, "{at} has another final timestamp for {}", start.id);
        self.deliveries += 1;
        if let Some(config) = &start.config {
            self.configured(config);
        }
        self.note(at, rank, *position, now);
        self.answered(at.group, start.id);
    }

    fn reach(&mut self, process: ProcessId, position: Position) {
        let reached = self.reached.entry(process).or_default();
        *reached = position.max(*reached);
    }

    fn note(&mut self, process: ProcessId, (ts, id): Rank, position: Position, t: Time) {
        if !self.is_lost(process) {
            self.delivered.entry(process.group).or_default().insert(id);
            self.reach(process, position);
        }
        self.history.push(Entry::Deliver { process, id, ts, position, t });
    }
}

/// Whether a message is delivered as it was sent.
fn is_same(sent: &Start, delivered: &Start) -> bool {
    let payload = (&sent.payload, &delivered.payload);
    // Most payloads are shared, not copied.
    let equal = payload.0.as_ptr() == payload.1.as_ptr() || payload.0 == payload.1;
    let rest = |start: &Start| (start.id, start.after, start.dest.clone(), start.touches.clone());
    equal && payload.0.len() == payload.1.len() && rest(sent) == rest(delivered)
}

impl Owner<Replica> for Workload {
    fn begin(&mut self) -> Vec<Stimulus<Replica>> {
        let wake = |client| Stimulus::Wake { token: client, after: Duration::ZERO };
        (0..self.clients.len() as u64).map(wake).collect()
    }

    fn output(&mut self, at: ProcessId, output: Output, now: Time) -> Vec<Stimulus<Replica>> {
        match output {
            Output::Deliver(delivery) => self.on_delivery(at, &delivery, now),
            Output::Duplicate(id) if !self.is_lost(at) => self.answered(at.group, id),
            Output::Install { position, application } => {
                self.reach(at, position);
                self.ranks.remove(&at);
                let state = Replica::decode(&application);
                let state = state.into_iter().map(|(_, id)| id).collect();
                self.history.push(Entry::Installed { process: at, state });
            }
            Output::Ended { id, ts } => {
                let known = match self.finals.get(&id) {
                    Some(known) => *known,
                    // Perhaps those alone had delivered it.
                    None if self.goes_to_lost(id) => return Vec::new(),
                    None => *self.finals.entry(id).or_insert(ts),
                };
                assert_eq!(known, ts, "{at} is told another final timestamp of {id}");
            }
            // Who was refused asks again.
            Output::Duplicate(_)
            | Output::Settled(_)
            | Output::Refused { .. }
            | Output::SnapshotWanted { .. } => {}
        }
        Vec::new()
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Replica>> {
        let at = usize::try_from(token).expect("an index");
        let client = &self.clients[at];
        if client.dead || (client.next > self.profile.messages && client.waiting.is_empty()) {
            return Vec::new();
        }
        let fresh =
            client.next <= self.profile.messages && client.waiting.len() < self.profile.window;
        let mut stimuli = self.send_again(at, now);
        if fresh {
            stimuli.extend(self.send_new(at, now));
        }
        let after = self.random.random_range(Duration::ZERO..=self.profile.think);
        stimuli.push(Stimulus::Wake { token, after });
        stimuli
    }

    fn commanded(&mut self, at: ProcessId, command: &Command, _now: Time) {
        if let Command::Start(start) | Command::Multicast(start) = command {
            self.history.push(Entry::Asked { process: at, id: start.id });
        }
    }

    fn crashed(&mut self, at: ProcessId, _now: Time) {
        self.history.push(Entry::Crash(at));
        self.ranks.remove(&at);
        self.reached.remove(&at);
    }

    fn started(&mut self, at: ProcessId, process: &Replica, now: Time) {
        self.history.push(Entry::Recover(at));
        assert_eq!(process.multicast.delivered().0, process.delivered.len() as u64);
        for (position, rank) in (1..).zip(&process.delivered) {
            self.note(at, *rank, Position(position), now);
        }
        self.safe.started(at);
    }

    fn is_whole(&self, process: &Replica) -> bool {
        !process.multicast.is_recovering()
    }

    fn leads(&self, process: &Replica) -> bool {
        process.multicast.role() == Role::Primary
    }

    fn traffic(&mut self, at: ProcessId, message: &Message) {
        if message.is_between_groups() {
            self.between.insert(at);
        }
        for id in message.subjects() {
            self.history.push(Entry::Step { process: at, id });
        }
    }

    fn check(&mut self, at: ProcessId, process: &Replica, durable: bool) -> Result<(), String> {
        for loss in &mut self.losses {
            let (group, sent) = (loss.group(), &self.sent);
            let goes = |id: &MessageId| sent.get(id).is_some_and(|m| m.dest.contains(&group));
            loss.watch(at, process, self.history.entries.len(), goes);
        }
        // It walks the whole state: not after each event.
        self.checks += 1;
        if self.checks.is_multiple_of(16) {
            process.multicast.check_invariants();
        }
        for rank in &process.news {
            let all = Touches::All;
            let touches = self.sent.get(&rank.1).map_or(&all, |start| &start.touches);
            self.safe.delivered(at, touches, *rank).map_err(|what| format!("reached: {what}"))?;
        }
        let (key, clock) = (self.checks % self.profile.keys.max(1), process.multicast.clock());
        if process.multicast.reached(&Touches::keys([key]), clock) {
            self.safe.reached(at, key, clock);
        }
        let ever = self.ever.entry(at).or_default();
        let lowest = process.news.iter().map(|rank| rank.0).min();
        let new = process.news.iter().filter(|rank| ever.insert(**rank));
        let lowest_new = new.map(|rank| rank.0).min();
        let safe = process.multicast.safe_ts();
        let step = self.safe.step(at, [lowest, lowest_new], safe, durable);
        step.map_err(|what| format!("safe timestamps: {what}"))
    }
}
