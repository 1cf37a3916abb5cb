//! Clients of keys: each has one operation outstanding, of any node, and some ask again. And the
//! checks of what they are answered.

use super::node::{self, Node};
use super::register::{Change, Key, Operation, outcome};
use super::replacing::Configurations;
use crate::checkers::linearizable::{Call, CallOf, check_each};
use crate::trial::Counts;
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{ClientId, MessageId, NodeId, Time, Value};
use meridian_hermes::{Action, Answer, Command, Epoch, Membership, Request};
use rand::RngExt;
use rand::seq::{IndexedRandom, IteratorRandom};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How clients behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// How many there are.
    pub clients: usize,
    /// How many keys there are.
    pub keys: u8,
    /// How long one waits between two operations at most.
    pub think: Duration,
    /// How many of hundred operations read.
    pub reads: u32,
    /// How many of hundred updates are RMWs.
    pub rmws: u32,
    /// After so long nobody asks for anything new for as long, again and again.
    pub rest: Option<Duration>,
}

/// What nodes remember after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// They have keys on disk.
    pub keeps: bool,
    /// Nobody takes care that somebody always has all keys in memory.
    pub power: bool,
}

/// How long a client waits for an answer at most.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Wakes who tells nodes how the cluster is configured, and how often.
const TELL: u64 = u64::MAX;
const TELL_AGAIN: Duration = Duration::from_millis(25);
/// Who has asked so often, and there are no more faults, asks in vain: of a node that has left
/// before it could say what became of the request.
const AGAIN_MAX: u32 = 60;
/// So many operations are given up at most; to judge a history takes the longer the more there are.
const GIVEN_UP_MAX: u64 = 8;

/// An operation that is not answered.
#[derive(Clone, Debug)]
struct Asked {
    call: usize,
    /// That of the first question, and that of the last.
    first: u64,
    token: u64,
    key: u8,
    operation: Operation,
    id: Option<MessageId>,
    /// Where it was asked first, in which epoch, and whether that node has started anew since.
    at: NodeId,
    epoch: Epoch,
    lost: bool,
    again: u32,
}

#[derive(Clone, Debug, Default)]
struct Client {
    asked: Option<Asked>,
    /// What it has read last of each key: what its swaps expect.
    seen: BTreeMap<u8, Option<Bytes>>,
    name: u64,
    sequence: u64,
    /// The last alarm: earlier ones do not count.
    alarm: u64,
}

/// What a node was when it stepped last.
#[derive(Clone, Debug, Default)]
struct Look {
    members: Membership,
    settled: bool,
    dozes: bool,
}

/// The clients of a [`crate::World`] of nodes with keys, and all checks.
pub struct Clients {
    /// What happened.
    pub counts: Counts,
    /// Whether they begin nothing new.
    pub ends: bool,
    /// Whether nobody has a reason to suspect anyone.
    pub calm: bool,
    profile: Profile,
    memory: Memory,
    losses: u64,
    /// Who should hold keys.
    pub nodes: Configurations,
    random: Random,
    clients: Vec<Client>,
    calls: Vec<(u8, Option<CallOf<Key>>)>,
    tokens: u64,
    names: u64,
    looks: BTreeMap<NodeId, Look>,
}

impl Clients {
    /// Clients of these nodes, and of those that come later.
    pub fn new(
        random: Random,
        profile: Profile,
        nodes: BTreeSet<NodeId>,
        memory: Memory,
    ) -> Clients {
        let client = |name| Client { name, ..Client::default() };
        Clients {
            counts: Counts::default(),
            ends: false,
            calm: false,
            profile,
            memory,
            losses: 0,
            nodes: Configurations::new(nodes),
            random,
            clients: (0..profile.clients as u64).map(client).collect(),
            calls: Vec::new(),
            tokens: 0,
            names: profile.clients as u64,
            looks: BTreeMap::new(),
        }
    }

    /// Whether nobody waits for an answer.
    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.asked.is_none())
    }

    /// Whether all that was seen has an explanation.
    ///
    /// # Errors
    /// It has none.
    pub fn judge(&self) -> Result<(), String> {
        let calls = self.calls.iter();
        check_each(&Key, calls.filter_map(|(key, call)| Some((*key, call.as_ref()?))))
    }

    fn alarm(&mut self, client: usize, most: Duration) -> Stimulus<Node> {
        let most = u64::try_from(most.as_micros()).expect("short");
        let after = Duration::from_micros(self.random.random_range(0..=most));
        self.alarm_after(client, after)
    }

    fn alarm_after(&mut self, client: usize, after: Duration) -> Stimulus<Node> {
        self.tokens += 1;
        let token = self.tokens << 16 | client as u64;
        self.clients[client].alarm = token;
        Stimulus::Wake { token, after }
    }

    /// For how long nothing new is asked for.
    fn rest(&self, now: Time) -> Option<Duration> {
        let rest = self.profile.rest?;
        let period = rest * 2;
        let whole = u64::try_from(period.as_nanos()).expect("short");
        let gone = Duration::from_nanos(now.0 % whole);
        (gone >= rest).then(|| period - gone)
    }

    fn draw(&mut self, client: usize, key: u8) -> Operation {
        self.tokens += 1;
        let word = Bytes::from(format!("{} ", self.tokens));
        if self.random.random_range(0..100) < self.profile.reads {
            return Operation::Read;
        }
        let rmw = self.random.random_range(0..100) < self.profile.rmws;
        Operation::Update(match self.random.random_range(0..6) {
            0 if rmw => {
                let seen = self.clients[client].seen.get(&key).cloned().flatten();
                Action::Modify(Change::Swap(seen, Some(word)))
            }
            _ if rmw => Action::Modify(Change::Append(word)),
            0 => Action::Write(None),
            _ => Action::Write(Some(word)),
        })
    }

    fn begin_one(&mut self, client: usize, now: Time) -> Vec<Stimulus<Node>> {
        let key = self.random.random_range(0..self.profile.keys);
        let operation = self.draw(client, key);
        let any = self.random.random_ratio(1, 5);
        let nodes = if any { self.nodes.present() } else { self.nodes.wanted().clone() };
        let at = nodes.into_iter().choose(&mut self.random).expect("some");
        let named = self.random.random_ratio(2, 3) || self.counts.of("unknown") >= GIVEN_UP_MAX;
        let it = &mut self.clients[client];
        it.sequence += 1;
        let id = MessageId { client: ClientId(it.name), sequence: it.sequence };
        let call = Call { operation: operation.clone(), called: now.0, answered: None };
        self.calls.push((key, Some(call)));
        let epoch = self.looks.get(&at).map_or(Epoch(0), |look| look.members.epoch);
        let (call, id, token) =
            (self.calls.len() - 1, (named && operation != Operation::Read).then_some(id), 0);
        let (lost, again) = (false, 0);
        let asked = Asked { call, first: 0, token, key, operation, id, at, epoch, lost, again };
        self.clients[client].asked = Some(asked);
        self.send(client, at)
    }

    fn send(&mut self, client: usize, to: NodeId) -> Vec<Stimulus<Node>> {
        self.tokens += 1;
        let Some(asked) = &mut self.clients[client].asked else { return Vec::new() };
        let token = self.tokens << 16 | client as u64;
        asked.token = token;
        asked.first = if asked.first == 0 { token } else { asked.first };
        let key = Bytes::from(vec![asked.key]);
        let command = match asked.operation.clone() {
            Operation::Read => Command::Read { token, key },
            Operation::Update(action) => {
                Command::Update(Request { token, key, id: asked.id, action })
            }
        };
        let command = node::Command::Keys(command);
        let after = Duration::from_micros(self.random.random_range(50..500));
        let command = Stimulus::Command { to, command, after };
        vec![command, self.alarm_after(client, TIMEOUT)]
    }

    /// Whom a request may be asked of that has crashed with it: the same one once it is live again,
    /// or another in an epoch in which that one is not.
    fn heir(&mut self, asked: &Asked) -> Option<NodeId> {
        let is_heir = |(node, look): &(&NodeId, &Look)| {
            let gone = !look.members.live.contains(&asked.at);
            let back = **node == asked.at;
            look.settled && look.members.epoch > asked.epoch && (gone || back)
        };
        let heirs: Vec<_> = self.looks.iter().filter(is_heir).map(|(node, _)| *node).collect();
        heirs.choose(&mut self.random).copied()
    }

    /// No answer has come.
    fn ask_again(&mut self, client: usize) -> Vec<Stimulus<Node>> {
        let Some(mut asked) = self.clients[client].asked.clone() else { return Vec::new() };
        asked.again += 1;
        self.clients[client].asked = Some(asked.clone());
        if self.ends && asked.again > AGAIN_MAX {
            return self.give_up(client);
        }
        if asked.operation == Operation::Read {
            self.calls[asked.call].1 = None;
            self.clients[client].asked = None;
            return vec![self.alarm(client, self.profile.think)];
        }
        if asked.id.is_none() && self.counts.of("unknown") < GIVEN_UP_MAX {
            return self.give_up(client);
        }
        if asked.id.is_none() {
            // Nobody will know. It waits for an answer as long as one may come.
            return if asked.lost || self.ends {
                self.give_up(client)
            } else {
                vec![self.alarm(client, TIMEOUT)]
            };
        }
        let to = if asked.lost { self.heir(&asked) } else { Some(asked.at) };
        let Some(to) = to else {
            return vec![self.alarm(client, TIMEOUT)];
        };
        self.counts.add(if to == asked.at { "asked again" } else { "asked another" }, 1);
        if to != asked.at {
            // It may be gone, too, before it answers.
            let epoch = self.looks.get(&to).map_or(asked.epoch, |look| look.members.epoch);
            let asked = Asked { at: to, epoch, lost: false, ..asked };
            self.clients[client].asked = Some(asked);
        }
        self.send(client, to)
    }

    /// Nobody will know whether it has happened.
    fn give_up(&mut self, client: usize) -> Vec<Stimulus<Node>> {
        self.counts.add("unknown", 1);
        self.names += 1;
        let it = &mut self.clients[client];
        (it.asked, it.name) = (None, self.names);
        vec![self.alarm(client, self.profile.think)]
    }

    /// All keys have gone, and with them what was answered: what is asked may still happen.
    fn lose(&mut self, losses: u64) -> Result<(), String> {
        if !self.memory.power {
            return Err(format!("losses: {losses}, though somebody had all keys"));
        }
        self.losses = losses;
        self.counts.add("losses", 1);
        // With disks that happens only before anything was written.
        if !self.memory.keeps {
            let answered = |call: &Option<CallOf<Key>>| {
                call.as_ref().is_some_and(|call| call.answered.is_some())
            };
            let calls = self.calls.iter_mut().map(|(_, call)| call);
            calls.filter(|call| answered(call)).for_each(|call| *call = None);
        }
        Ok(())
    }

    fn on_answer(&mut self, token: u64, answer: &Answer, now: Time) -> Vec<Stimulus<Node>> {
        let client = (token & 0xffff) as usize;
        let Some(mut asked) = self.clients[client].asked.clone() else { return Vec::new() };
        if asked.token != token {
            asked.lost |= *answer == Answer::Unknown && token >= asked.first;
            self.clients[client].asked = Some(asked);
            return Vec::new();
        }
        match answer {
            Answer::Refused(_) if asked.again == 0 => {
                self.counts.add("refused", 1);
                self.calls[asked.call].1 = None;
            }
            Answer::Refused(_) => {
                return vec![self.alarm(client, TIMEOUT)];
            }
            Answer::Unknown => {
                self.counts.add("removed", 1);
                self.looks.remove(&asked.at);
                self.clients[client].asked = Some(Asked { lost: true, ..asked });
                return vec![self.alarm(client, TIMEOUT)];
            }
            Answer::Aborted => {
                self.counts.add("aborted", 1);
                self.calls[asked.call].1 = None;
            }
            Answer::Value { .. } | Answer::Written | Answer::Modified(_) | Answer::Kept { .. } => {
                let name = match answer {
                    Answer::Value { value, .. } => {
                        self.clients[client].seen.insert(asked.key, value.clone());
                        "reads"
                    }
                    Answer::Written => "writes",
                    Answer::Kept { .. } => "kept",
                    _ => "rmws",
                };
                self.counts.add(name, 1);
                let call = self.calls[asked.call].1.as_mut().expect("it is outstanding");
                call.answered = Some((now.0, outcome(answer).expect("it has happened")));
            }
        }
        self.clients[client].asked = None;
        vec![self.alarm(client, self.profile.think)]
    }
}

impl Owner<Node> for Clients {
    fn begin(&mut self) -> Vec<Stimulus<Node>> {
        let tell = Stimulus::Wake { token: TELL, after: TELL_AGAIN };
        let clients = 0..self.clients.len();
        let alarms = clients.map(|client| self.alarm(client, self.profile.think));
        alarms.chain([tell]).collect()
    }

    fn output(
        &mut self,
        _at: NodeId,
        (token, answer): (u64, Answer),
        now: Time,
    ) -> Vec<Stimulus<Node>> {
        self.on_answer(token, &answer, now)
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Node>> {
        if token == TELL {
            let tell = Stimulus::Wake { token: TELL, after: TELL_AGAIN };
            return vec![tell, self.nodes.tell(&mut self.random)];
        }
        let client = (token & 0xffff) as usize;
        if self.clients[client].alarm != token {
            return Vec::new();
        }
        match &self.clients[client].asked {
            Some(_) => self.ask_again(client),
            None if self.ends => Vec::new(),
            None => match self.rest(now) {
                Some(left) => {
                    let late = Duration::from_millis(self.random.random_range(0..50));
                    vec![self.alarm_after(client, left + late)]
                }
                None => self.begin_one(client, now),
            },
        }
    }

    fn crashed(&mut self, at: NodeId, _now: Time) {
        self.counts.add("crashes", 1);
        self.looks.remove(&at);
        let asked = self.clients.iter_mut().filter_map(|client| client.asked.as_mut());
        asked.filter(|asked| asked.at == at).for_each(|asked| asked.lost = true);
    }

    fn started(&mut self, _at: NodeId, process: &Node, _now: Time) {
        self.counts.add("recovered", u64::from(process.replica().holds()));
    }

    fn leads(&self, process: &Node) -> bool {
        process.membership().is_leading()
    }

    /// Two others must hold everything: one of them may be removed just then.
    fn may_crash(&self, at: NodeId, processes: &[(NodeId, &Node)]) -> bool {
        if self.memory.power {
            return true;
        }
        let registries = processes.iter().map(|(_, replica)| replica.membership().registry());
        let Some(last) = registries.max_by_key(|registry| registry.members().epoch) else {
            return true;
        };
        let holds = |(node, replica): &&(NodeId, &Node)| {
            let live = replica.replica().membership().live.contains(node);
            *node != at && last.may_serve(*node) && live
        };
        processes.iter().filter(holds).count() > 1
    }

    fn check(&mut self, at: NodeId, process: &Node, _durable: bool) -> Result<(), String> {
        let keys = process.replica();
        let (members, settled) = (keys.membership(), keys.is_settled());
        let known = self.looks.entry(at).or_default();
        known.settled = settled;
        let dozes = process.membership().is_dozing();
        if dozes && !std::mem::replace(&mut known.dozes, dozes) {
            self.counts.add("dozed", 1);
        }
        known.dozes = dozes;
        if known.members.epoch != members.epoch {
            known.members = members.clone();
            let more = members.epoch.0.saturating_sub(self.counts.of("epochs"));
            self.counts.add("epochs", more);
        }
        if self.calm && members.epoch > Epoch::FIRST {
            return Err(format!("calm: nobody was away, and now there are {members:?}"));
        }
        let losses = process.membership().registry().losses();
        if losses > self.losses {
            self.lose(losses)?;
        }
        let gone = self.nodes.check(process)?;
        self.counts.add("let go", gone);
        keys.check_invariants()
    }
}

/// What all replicas hold: by key, the value; `None` while they differ or something is not Valid.
pub fn agreed(replicas: &[&Node]) -> Option<BTreeMap<Bytes, Option<Bytes>>> {
    let held = |replica: &&Node| {
        let entries = replica.replica().entries();
        let valid = |(key, ts, value, valid): (&meridian_core::Key, _, Option<&Value>, bool)| {
            valid.then(|| (key.to_bytes(), (ts, value.map(Value::to_bytes))))
        };
        entries.map(valid).collect::<Option<BTreeMap<_, _>>>()
    };
    let all: BTreeSet<_> = replicas.iter().map(held).collect();
    let [held] = &all.into_iter().collect::<Vec<_>>()[..] else { return None };
    let held = held.clone()?;
    Some(held.into_iter().map(|(key, (_, value))| (key, value)).collect())
}
