//! Clients of replicated registers, as the library's own behave: each has an identity and one request outstanding, sends it
//! again to another replica when no answer comes, follows redirections, and takes a new identity when it was
//! forgotten. And the checks of what replicas answer.

use super::linear::{self, Operation};
use super::lossy::Lossy;
use super::service::{Action, Ask as Question, Register, register_of};
use super::watch::Watch;
use crate::owner::{Ask, Owner};
use crate::world::Random;
use bytes::Bytes;
use meridian_core::{ClientId, GroupId, NodeId, ProcessId, Time};
use meridian_paxos::{
    Answer, Change, Changed, Command, Configuration, Consistency, Instance, Kind, Message, Output,
    Recovery, Request, Status, Stopped, change_payload,
};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// How clients behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// How many there are.
    pub clients: usize,
    /// How many registers there are.
    pub keys: u8,
    /// How long one waits between two operations at most.
    pub think: Duration,
    /// How many of hundred operations are reads that do not go through the log.
    pub reads: u32,
    /// A request longer than this is refused.
    pub request_bytes_max: usize,
}

/// What happened, for tests that want to know whether anything did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were answered.
    pub requests: u64,
    /// Linearizable reads that were answered.
    pub reads: u64,
    /// Stale reads that were answered.
    pub stale: u64,
    /// How often a client was sent elsewhere.
    pub redirects: u64,
    /// How often one was told that it is forgotten.
    pub forgotten: u64,
    /// How often a request was too long.
    pub too_long: u64,
    /// How often a known answer was given again.
    pub repeated: u64,
    /// How often a replica was too busy, or had no memory.
    pub busy: u64,
    /// Changes of the members that were made.
    pub changes: u64,
    /// How often a replica crashed.
    pub crashes: u64,
    /// How often one had its memory back that had lost it.
    pub recovered: u64,
    /// How often one refused to run since it had lost its memory.
    pub refused: u64,
    /// How many replicas were told that they were removed.
    pub removed: u64,
    /// How often a replica became leader.
    pub leaders: u64,
    /// How many parts of snapshots came to a replica that was behind.
    pub snapshots: u64,
}

impl Counts {
    /// What happened in another trial happened, too.
    pub fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.reads += other.reads;
        self.stale += other.stale;
        self.redirects += other.redirects;
        self.forgotten += other.forgotten;
        self.too_long += other.too_long;
        self.repeated += other.repeated;
        self.busy += other.busy;
        self.changes += other.changes;
        self.crashes += other.crashes;
        self.recovered += other.recovered;
        self.refused += other.refused;
        self.removed += other.removed;
        self.leaders += other.leaders;
        self.snapshots += other.snapshots;
    }
}

/// What a client is doing.
#[derive(Clone, Debug)]
enum Doing {
    Nothing,
    Connecting,
    Request { request: Request, operation: Option<usize>, too_long: bool },
    Read { key: u8, consistency: Consistency, operation: usize, tokens: Vec<u64> },
}

#[derive(Clone, Debug)]
struct Client {
    identity: Option<ClientId>,
    sequence: u64,
    at: NodeId,
    /// Tells its questions and alarms apart: only the last alarm counts.
    attempt: u64,
    doing: Doing,
    /// What is to be done once it has an identity.
    wants: Option<Change>,
    /// It was sent to where it is: it does not choose another when the alarm comes.
    sent_here: bool,
}

/// The clients of a [`crate::World`] of replicas, and all checks.
pub struct Clients {
    /// What happened.
    pub counts: Counts,
    /// What is looked at in each replica.
    pub watch: Watch,
    /// Changes of the members that are still to be asked for; the last client does.
    pub changes: VecDeque<Change>,
    /// The members, as the last answer to a change said.
    pub nodes: Vec<NodeId>,
    /// Those who have certainly begun: they find that on their disks.
    pub begun: Rc<RefCell<BTreeSet<ProcessId>>>,
    /// What the members will be or are, since all who serve knew of the last: the change, and where it was executed.
    planned: Vec<(Configuration, Option<Instance>)>,
    /// How far those that serve have executed.
    executed: BTreeMap<ProcessId, Instance>,
    /// So many operations are begun by each client at most.
    pub left: Vec<u32>,
    manner: Manner,
    recovery: Recovery,
    random: Random,
    clients: Vec<Client>,
    history: Vec<(u8, Operation)>,
    moment: u64,
    tokens: u64,
    operations: u64,
    asked: BTreeMap<u64, usize>,
    owners: BTreeMap<ClientId, usize>,
    replies: BTreeMap<(ClientId, u64), Bytes>,
    versions: BTreeMap<(u8, u64), u64>,
    never: BTreeSet<u64>,
    done: Vec<u64>,
    stopped: BTreeSet<ProcessId>,
    /// Who ran before, and so may have lost something.
    ran: BTreeSet<ProcessId>,
    wrong: Option<String>,
}

/// The process of a node.
pub fn process(node: NodeId) -> ProcessId {
    ProcessId { group: GroupId(0), node }
}

impl Clients {
    /// Clients of replicas on `nodes`; the last of them changes the members if asked to.
    pub fn new(
        random: Random,
        manner: Manner,
        recovery: Recovery,
        nodes: Vec<NodeId>,
        watch: Watch,
    ) -> Clients {
        let client = Client {
            identity: None,
            sequence: 0,
            at: nodes[0],
            attempt: 0,
            doing: Doing::Nothing,
            wants: None,
            sent_here: false,
        };
        Clients {
            counts: Counts::default(),
            watch,
            changes: VecDeque::new(),
            nodes,
            begun: Rc::default(),
            planned: Vec::new(),
            executed: BTreeMap::new(),
            left: vec![u32::MAX; manner.clients],
            manner,
            recovery,
            random,
            clients: vec![client; manner.clients + 1],
            history: Vec::new(),
            moment: 0,
            tokens: 0,
            operations: 0,
            asked: BTreeMap::new(),
            owners: BTreeMap::new(),
            replies: BTreeMap::new(),
            versions: BTreeMap::new(),
            never: BTreeSet::new(),
            done: Vec::new(),
            stopped: BTreeSet::new(),
            ran: BTreeSet::new(),
            wrong: None,
        }
    }

    /// What is to be asked of the world first.
    pub fn begin(&mut self) -> Vec<Ask<Lossy>> {
        (0..self.clients.len()).map(|client| self.alarm(client, self.manner.think)).collect()
    }

    /// Whether nobody waits for anything, nor will.
    pub fn is_done(&self) -> bool {
        let idle = |client: &Client| matches!(client.doing, Doing::Nothing);
        self.clients.iter().all(idle)
            && self.left.iter().all(|left| *left == 0)
            && self.changes.is_empty()
    }

    /// Whether a replica stays down for good once it has crashed, and has.
    pub fn may_be_dead(&self, at: ProcessId) -> bool {
        self.recovery == Recovery::CrashStop && self.ran.contains(&at)
    }

    /// What clients wait for.
    pub fn unanswered(&self) -> String {
        let waiting = self.clients.iter().filter(|c| !matches!(c.doing, Doing::Nothing));
        let each = waiting.map(|client| format!("{:?} at {:?}", client.doing, client.at));
        each.collect::<Vec<_>>().join("; ")
    }

    /// Will have the members changed to `configuration`.
    pub fn plan(&mut self, change: Change, configuration: Configuration) {
        self.changes.push_back(change);
        self.planned.push((configuration, None));
    }

    /// The members once all is made that is planned.
    pub fn planned(&self) -> Option<&Configuration> {
        self.planned.last().map(|(configuration, _)| configuration)
    }

    /// Whether a change was asked for that is not made.
    pub fn is_changing(&self) -> bool {
        !self.changes.is_empty() || self.clients[self.manner.clients].wants.is_some()
    }

    /// What is planned is known once all who serve have executed as far as the first who knew.
    fn follow_plans(&mut self, at: ProcessId, replica: &Lossy) {
        let Status { active, executed, members, .. } = replica.paxos.status();
        if !active {
            self.executed.remove(&at);
            return;
        }
        self.executed.insert(at, executed);
        for (configuration, from) in &mut self.planned {
            if *configuration == members {
                from.get_or_insert(executed);
            }
        }
        let least = self.executed.values().min().copied().unwrap_or_default();
        self.planned.retain(|(_, from)| from.is_none_or(|from| least < from));
    }

    /// Whether all that clients saw can be explained.
    ///
    /// # Errors
    /// Something cannot.
    pub fn judge(&self) -> Result<(), String> {
        for key in 0..self.manner.keys {
            let of_key = self.history.iter().filter(|(at, _)| *at == key);
            let operations: Vec<_> = of_key.map(|(_, operation)| *operation).collect();
            linear::check(&operations)
                .map_err(|what| format!("linearizable: key {key}: {what}"))?;
        }
        Ok(())
    }

    /// Whether a replica that is level has executed what was answered, and nothing that was refused.
    ///
    /// # Errors
    /// It has not.
    pub fn judge_replica(&self, replica: &Lossy) -> Result<(), String> {
        let service = replica.paxos.service();
        if let Some(missing) = self.done.iter().find(|done| !service.has_executed(**done)) {
            return Err(format!("durability: operation {missing} was answered, and is lost"));
        }
        match self.never.iter().find(|never| service.has_executed(**never)) {
            Some(never) => Err(format!("operation {never} was refused, and executed")),
            None => Ok(()),
        }
    }

    fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.random.random_range(0..=most))
    }

    /// Wakes a client some time up to `most` later, whatever it waited for before.
    fn alarm(&mut self, client: usize, most: Duration) -> Ask<Lossy> {
        let after = self.up_to(most);
        self.tokens += 1;
        self.clients[client].attempt = self.tokens;
        self.asked.insert(self.tokens, client);
        Ask::Wake { token: self.tokens, after }
    }

    fn someone(&mut self) -> NodeId {
        *self.nodes.choose(&mut self.random).expect("there are always members")
    }

    fn command(&mut self, to: NodeId, command: Command) -> Ask<Lossy> {
        let after = self.up_to(Duration::from_millis(3));
        Ask::Command { to: process(to), command, after }
    }

    /// Sends what the client waits for, and sets the alarm.
    fn send(&mut self, client: usize) -> Vec<Ask<Lossy>> {
        let ms = Duration::from_millis(1);
        let patience = 150 * ms + self.up_to(300 * ms);
        self.tokens += 1;
        let token = self.tokens;
        self.asked.insert(token, client);
        let one = &mut self.clients[client];
        one.attempt = token;
        let command = match &mut one.doing {
            Doing::Nothing => return Vec::new(),
            Doing::Connecting => Command::Connect { token },
            Doing::Request { request, .. } => Command::Request(request.clone()),
            Doing::Read { key, consistency, tokens, .. } => {
                tokens.push(token);
                let question = Bytes::copy_from_slice(&[*key]);
                Command::Read { token, question, consistency: *consistency }
            }
        };
        let at = one.at;
        vec![self.command(at, command), Ask::Wake { token, after: patience }]
    }

    /// Asks another replica.
    fn elsewhere(&mut self, client: usize) -> Vec<Ask<Lossy>> {
        self.clients[client].at = self.someone();
        self.send(client)
    }

    /// Begins something, if there is anything left to do.
    fn begin_one(&mut self, client: usize) -> Vec<Ask<Lossy>> {
        let operator = client == self.manner.clients;
        if operator {
            let wants = self.clients[client].wants.is_none();
            if let Some(change) = self.changes.pop_front_if(|_| wants) {
                self.clients[client].wants = Some(change);
            }
            if self.clients[client].wants.is_none() {
                return vec![self.alarm(client, Duration::from_millis(100))];
            }
        } else if self.left[client] == 0 {
            return Vec::new();
        }
        if self.clients[client].identity.is_none() {
            self.clients[client].doing = Doing::Connecting;
            return self.elsewhere(client);
        }
        if operator {
            let change = self.clients[client].wants.clone().expect("seen above");
            let doing = self.request(client, Kind::Reconfigure, change_payload(&change));
            self.clients[client].doing = doing;
            return self.send(client);
        }
        self.left[client] -= 1;
        if self.random.random_ratio(1, 30) {
            // It goes, and another comes.
            let identity = self.clients[client].identity.take().expect("it has one");
            let at = self.clients[client].at;
            self.clients[client].doing = Doing::Connecting;
            let mut asks = self.elsewhere(client);
            asks.push(self.command(at, Command::Disconnected(identity)));
            return asks;
        }
        if self.random.random_range(0..100) < self.manner.reads {
            return self.begin_read(client);
        }
        self.begin_request(client)
    }

    fn request(&mut self, client: usize, kind: Kind, payload: Bytes) -> Doing {
        let one = &mut self.clients[client];
        one.sequence += 1;
        let (client, sequence) = (one.identity.expect("it has one"), one.sequence);
        let request = Request { client, sequence, kind, payload };
        Doing::Request { request, operation: None, too_long: false }
    }

    fn begin_request(&mut self, client: usize) -> Vec<Ask<Lossy>> {
        let key = self.random.random_range(0..self.manner.keys);
        let action = match self.random.random_range(0..8) {
            0 => Action::Read,
            1 | 2 => Action::Write(self.random.random_range(0..4)),
            3..6 => Action::Add(self.random.random_range(1..4)),
            _ => Action::Swap(self.random.random_range(0..4), self.random.random_range(0..4)),
        };
        self.operations += 1;
        let operation = self.operations;
        let too_long = self.random.random_ratio(1, 50);
        let padding = if too_long { self.manner.request_bytes_max } else { 0 };
        let padding = vec![0; padding.max(self.random.random_range(0..40))];
        let ask = Question { operation, key, action, padding };
        let mut doing = self.request(client, Kind::Execute, ask.bytes());
        if let Doing::Request { operation, too_long: long, .. } = &mut doing {
            *long = too_long;
            *operation = Some(self.history.len());
        }
        if too_long {
            self.never.insert(operation);
        }
        let asked = self.tick();
        self.history.push((key, Operation { client, action, asked, answered: None }));
        self.clients[client].doing = doing;
        self.send(client)
    }

    fn begin_read(&mut self, client: usize) -> Vec<Ask<Lossy>> {
        let key = self.random.random_range(0..self.manner.keys);
        let stale = self.random.random_ratio(1, 4);
        let consistency = if stale { Consistency::Stale } else { Consistency::Linearizable };
        let (operation, tokens) = (self.history.len(), Vec::new());
        if !stale {
            let asked = self.tick();
            let action = Action::Read;
            self.history.push((key, Operation { client, action, asked, answered: None }));
        }
        if self.random.random_ratio(1, 2) {
            self.clients[client].at = self.someone();
        }
        self.clients[client].doing = Doing::Read { key, consistency, operation, tokens };
        self.send(client)
    }

    /// What was asked is answered; now and then the same is asked again.
    fn finish(&mut self, client: usize) -> Vec<Ask<Lossy>> {
        let doing = std::mem::replace(&mut self.clients[client].doing, Doing::Nothing);
        let mut asks = vec![self.alarm(client, self.manner.think)];
        if let Doing::Request { request, .. } = doing
            && self.random.random_ratio(1, 10)
        {
            let to = self.someone();
            asks.push(self.command(to, Command::Request(request)));
        }
        asks
    }

    fn saw(&mut self, key: u8, register: Register) {
        let value = *self.versions.entry((key, register.version)).or_insert(register.value);
        if value != register.value {
            let version = register.version;
            let seen = register.value;
            self.wrong(format!("replies: version {version} of {key} is {value}, then {seen}"));
        }
    }

    fn on_reply(
        &mut self,
        at: ProcessId,
        (identity, sequence): (ClientId, u64),
        answer: Answer,
    ) -> Vec<Ask<Lossy>> {
        if let Answer::Done(reply) = &answer {
            let before = self.replies.insert((identity, sequence), reply.clone());
            if before.as_ref().is_some_and(|before| before != reply) {
                self.wrong(format!("replies: {at} answers {identity:?}.{sequence} otherwise"));
            }
            self.counts.repeated += u64::from(before.is_some());
        }
        let Some(client) = self.owners.get(&identity).copied() else { return Vec::new() };
        let Doing::Request { request, operation, too_long } = &self.clients[client].doing else {
            return Vec::new();
        };
        if (request.client, request.sequence) != (identity, sequence) {
            return Vec::new();
        }
        let (operation, too_long) = (*operation, *too_long);
        match answer {
            Answer::Done(reply) => self.on_done(client, operation, &reply),
            Answer::TooLong(_) => {
                self.counts.too_long += 1;
                if !too_long {
                    self.wrong(format!("{at} finds {identity:?}.{sequence} too long"));
                }
                self.finish(client)
            }
            Answer::Forgotten => {
                self.counts.forgotten += 1;
                self.clients[client].identity = None;
                self.clients[client].doing = Doing::Nothing;
                vec![self.alarm(client, self.manner.think)]
            }
            Answer::Redirect(_) | Answer::Busy => self.on_elsewhere(client, &answer),
        }
    }

    fn on_done(
        &mut self,
        client: usize,
        operation: Option<usize>,
        reply: &Bytes,
    ) -> Vec<Ask<Lossy>> {
        let answered = self.tick();
        match operation {
            Some(at) => {
                let register = register_of(reply);
                self.history[at].1.answered = Some((answered, register));
                let key = self.history[at].0;
                self.saw(key, register);
                self.counts.requests += 1;
                if let Doing::Request { request, .. } = &self.clients[client].doing {
                    let ask: Question = postcard::from_bytes(&request.payload).expect("ours");
                    self.done.push(ask.operation);
                }
            }
            None => {
                let changed: Changed = postcard::from_bytes(reply).expect("a Changed");
                self.clients[client].wants = None;
                match changed {
                    Changed::Now(configuration) => {
                        self.counts.changes += 1;
                        self.nodes = configuration.members.keys().copied().collect();
                    }
                    // It was made already, and the answer was lost with the identity.
                    Changed::Refused(_) => {}
                }
            }
        }
        self.finish(client)
    }

    /// The client asks another, soon.
    fn on_elsewhere(&mut self, client: usize, answer: &Answer) -> Vec<Ask<Lossy>> {
        let ms = Duration::from_millis(1);
        self.clients[client].at = match answer {
            Answer::Redirect(Some(leader)) => *leader,
            _ => self.someone(),
        };
        match answer {
            Answer::Redirect(_) => self.counts.redirects += 1,
            _ => self.counts.busy += 1,
        }
        self.clients[client].sent_here = true;
        let after = if matches!(answer, Answer::Redirect(Some(_))) { 2 * ms } else { 40 * ms };
        vec![self.alarm(client, after)]
    }

    fn on_read(&mut self, at: ProcessId, token: u64, answer: Answer) -> Vec<Ask<Lossy>> {
        let Some(client) = self.asked.get(&token).copied() else { return Vec::new() };
        let Doing::Read { key, consistency, operation, tokens } = &self.clients[client].doing
        else {
            return Vec::new();
        };
        if !tokens.contains(&token) {
            return Vec::new();
        }
        let (key, stale, operation) = (*key, *consistency == Consistency::Stale, *operation);
        match answer {
            Answer::Done(reply) => {
                let register = register_of(&reply);
                self.saw(key, register);
                if stale {
                    self.counts.stale += 1;
                } else {
                    let answered = self.tick();
                    self.history[operation].1.answered = Some((answered, register));
                    self.counts.reads += 1;
                }
                self.finish(client)
            }
            Answer::Redirect(_) | Answer::Busy => {
                if self.clients[client].attempt != token {
                    return Vec::new();
                }
                self.on_elsewhere(client, &answer)
            }
            Answer::Forgotten | Answer::TooLong(_) => {
                self.wrong(format!("{at} answers a read with {answer:?}"));
                Vec::new()
            }
        }
    }

    fn on_connected(&mut self, token: u64, identity: ClientId) -> Vec<Ask<Lossy>> {
        if self.owners.contains_key(&identity) {
            self.wrong(format!("identities: {identity:?} is given twice"));
        }
        let Some(client) = self.asked.get(&token).copied() else { return Vec::new() };
        self.owners.insert(identity, client);
        let one = &mut self.clients[client];
        if !matches!(one.doing, Doing::Connecting) || one.attempt != token {
            return Vec::new();
        }
        one.identity = Some(identity);
        one.sequence = 0;
        one.doing = Doing::Nothing;
        vec![self.alarm(client, Duration::from_millis(2))]
    }

    fn on_stopped(&mut self, at: ProcessId, stopped: Stopped) {
        self.stopped.insert(at);
        match stopped {
            Stopped::Removed => self.counts.removed += 1,
            Stopped::LostMemory if self.recovery == Recovery::CrashStop => self.counts.refused += 1,
            Stopped::LostMemory
            | Stopped::Diverged { .. }
            | Stopped::Foreign { .. }
            | Stopped::Snapshot(_) => self.wrong(format!("stopped: {at}: {stopped}")),
        }
    }
}

impl Owner<Lossy> for Clients {
    fn output(&mut self, at: ProcessId, output: Output, _now: Time) -> Vec<Ask<Lossy>> {
        let answers =
            matches!(output, Output::Connected { .. } | Output::Reply { .. } | Output::Read { .. });
        if answers && self.stopped.contains(&at) {
            self.wrong(format!("stopped: {at} has, and says {output:?}"));
        }
        match output {
            Output::Connected { token, client } => return self.on_connected(token, client),
            Output::Reply { client, sequence, answer } => {
                return self.on_reply(at, (client, sequence), answer);
            }
            Output::Read { token, answer } => return self.on_read(at, token, answer),
            Output::View { leading, .. } => self.counts.leaders += u64::from(leading),
            Output::Recovered => {
                self.begun.borrow_mut().insert(at);
                let lost = self.recovery != Recovery::FullSs && self.ran.contains(&at);
                self.counts.recovered += u64::from(lost);
            }
            Output::Stopped(stopped) => self.on_stopped(at, stopped),
            Output::Members(_) => {}
        }
        Vec::new()
    }

    fn wake(&mut self, token: u64, _now: Time) -> Vec<Ask<Lossy>> {
        let Some(client) = self.asked.get(&token).copied() else { return Vec::new() };
        if self.clients[client].attempt != token {
            return Vec::new();
        }
        let here = std::mem::take(&mut self.clients[client].sent_here);
        match self.clients[client].doing {
            Doing::Nothing => self.begin_one(client),
            _ if here => self.send(client),
            _ => self.elsewhere(client),
        }
    }

    fn crashed(&mut self, at: ProcessId, _now: Time) {
        self.counts.crashes += 1;
        self.ran.insert(at);
        self.executed.remove(&at);
    }

    fn started(&mut self, at: ProcessId, _process: &Lossy, _now: Time) {
        self.watch.forget(at);
        self.stopped.remove(&at);
    }

    fn traffic(&mut self, _at: ProcessId, message: &Message) {
        self.counts.snapshots += u64::from(matches!(message, Message::CatchUpSnapshot { .. }));
    }

    fn leads(&self, process: &Lossy) -> bool {
        process.paxos.is_leading()
    }

    fn may_crash(&self, at: ProcessId, processes: &[(ProcessId, &Lossy)]) -> bool {
        if self.recovery == Recovery::FullSs {
            return true;
        }
        // Of the members of each open instance a majority must keep its memory, also of those to come.
        let serving: Vec<_> =
            processes.iter().filter(|(_, replica)| replica.paxos.status().active).collect();
        let others = serving.iter().map(|(peer, _)| *peer).filter(|peer| *peer != at);
        let whole: BTreeSet<NodeId> = others.map(|peer| peer.node).collect();
        let enough = |members: &Configuration| members.has_quorum(|node| whole.contains(&node));
        let comes = self.planned.iter().any(|(planned, from)| {
            from.is_none() && planned.contains(at.node) && !self.nodes.contains(&at.node)
        });
        !comes
            && self.planned.iter().all(|(members, _)| enough(members))
            && serving.iter().all(|(_, replica)| replica.paxos.open_members().all(enough))
    }

    fn check(&mut self, at: ProcessId, process: &Lossy, durable: bool) -> Result<(), String> {
        if self.recovery != Recovery::FullSs {
            self.follow_plans(at, process);
        }
        match self.wrong.take() {
            Some(wrong) => Err(wrong),
            None => self.watch.look(at, process, durable),
        }
    }
}
