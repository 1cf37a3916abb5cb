//! Clients of replicated registers, as the library's own behave: each has an identity and one
//! request outstanding, sends it again to another replica when no answer comes, follows
//! redirections, and takes a new identity when it was forgotten. And the checks of what replicas
//! answer.

mod owner;

use super::Replica;
use super::service::{Action, Call, Register, Specified, register_of};
use super::watch::Watch;
use crate::checkers::linearizable::{self as calls, CallOf};
use crate::trial::Counts;
use crate::world::Random;
use crate::world::Stimulus;
use bytes::Bytes;
use meridian_core::{ClientId, GroupId, NodeId, ProcessId};
use meridian_paxos::{
    Answer, Change, Changed, Command, Configuration, Consistency, Instance, Kind, Recovery,
    Request, Status, Stopped, change_payload,
};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// How clients behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
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
    /// What the members will be or are, since all who serve knew of the last: the change, and where
    /// it was executed.
    planned: Vec<(Configuration, Option<Instance>)>,
    /// How far those that serve have executed.
    executed: BTreeMap<ProcessId, Instance>,
    /// So many operations are begun by each client at most.
    pub left: Vec<u32>,
    profile: Profile,
    recovery: Recovery,
    random: Random,
    clients: Vec<Client>,
    history: Vec<(u8, CallOf<Specified>)>,
    moment: u64,
    tokens: u64,
    operations: u64,
    asked: BTreeMap<u64, usize>,
    /// Answers to reads that a written scenario asked for by hand, by token.
    pub answers: BTreeMap<u64, Answer>,
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
        profile: Profile,
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
            left: vec![u32::MAX; profile.clients],
            profile,
            recovery,
            random,
            clients: vec![client; profile.clients + 1],
            history: Vec::new(),
            moment: 0,
            tokens: 0,
            operations: 0,
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
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
        !self.changes.is_empty() || self.clients[self.profile.clients].wants.is_some()
    }

    /// What is planned is known once all who serve have executed as far as the first who knew.
    fn follow_plans(&mut self, at: ProcessId, replica: &Replica) {
        let Status { active, executed, members, .. } = replica.inner.status();
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
        let calls = self.history.iter().map(|(key, call)| (key, call));
        calls::check_each(&Specified, calls)
    }

    /// Whether a replica that is level has executed what was answered, and nothing that was
    /// refused.
    ///
    /// # Errors
    /// It has not.
    pub fn judge_replica(&self, replica: &Replica) -> Result<(), String> {
        let service = replica.inner.service();
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
    fn alarm(&mut self, client: usize, most: Duration) -> Stimulus<Replica> {
        let after = self.up_to(most);
        self.tokens += 1;
        self.clients[client].attempt = self.tokens;
        self.asked.insert(self.tokens, client);
        Stimulus::Wake { token: self.tokens, after }
    }

    fn someone(&mut self) -> NodeId {
        *self.nodes.choose(&mut self.random).expect("there are always members")
    }

    fn command(&mut self, to: NodeId, command: Command) -> Stimulus<Replica> {
        let after = self.up_to(Duration::from_millis(3));
        Stimulus::Command { to: process(to), command, after }
    }

    /// Sends what the client waits for, and sets the alarm.
    fn send(&mut self, client: usize) -> Vec<Stimulus<Replica>> {
        let ms = Duration::from_millis(1);
        let timeout = 150 * ms + self.up_to(300 * ms);
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
        vec![self.command(at, command), Stimulus::Wake { token, after: timeout }]
    }

    /// Asks another replica.
    fn elsewhere(&mut self, client: usize) -> Vec<Stimulus<Replica>> {
        self.clients[client].at = self.someone();
        self.send(client)
    }

    /// Begins something, if there is anything left to do.
    fn begin_one(&mut self, client: usize) -> Vec<Stimulus<Replica>> {
        let operator = client == self.profile.clients;
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
            let mut stimuli = self.elsewhere(client);
            stimuli.push(self.command(at, Command::Disconnected(identity)));
            return stimuli;
        }
        if self.random.random_range(0..100) < self.profile.reads {
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

    fn begin_request(&mut self, client: usize) -> Vec<Stimulus<Replica>> {
        let key = self.random.random_range(0..self.profile.keys);
        let action = match self.random.random_range(0..8) {
            0 => Action::Read,
            1 | 2 => Action::Write(self.random.random_range(0..4)),
            3..6 => Action::Add(self.random.random_range(1..4)),
            _ => Action::Swap(self.random.random_range(0..4), self.random.random_range(0..4)),
        };
        self.operations += 1;
        let operation = self.operations;
        let too_long = self.random.random_ratio(1, 50);
        let padding = if too_long { self.profile.request_bytes_max } else { 0 };
        let padding = vec![0; padding.max(self.random.random_range(0..40))];
        let call = Call { operation, key, action, padding };
        let mut doing = self.request(client, Kind::Execute, call.bytes());
        if let Doing::Request { operation, too_long: long, .. } = &mut doing {
            *long = too_long;
            *operation = Some(self.history.len());
        }
        if too_long {
            self.never.insert(operation);
        }
        let asked = self.tick();
        self.history.push((key, calls::Call { operation: action, called: asked, answered: None }));
        self.clients[client].doing = doing;
        self.send(client)
    }

    fn begin_read(&mut self, client: usize) -> Vec<Stimulus<Replica>> {
        let key = self.random.random_range(0..self.profile.keys);
        let stale = self.random.random_ratio(1, 4);
        let consistency = if stale { Consistency::Stale } else { Consistency::Linearizable };
        let (operation, tokens) = (self.history.len(), Vec::new());
        if !stale {
            let asked = self.tick();
            let action = Action::Read;
            self.history
                .push((key, calls::Call { operation: action, called: asked, answered: None }));
        }
        if self.random.random_ratio(1, 2) {
            self.clients[client].at = self.someone();
        }
        self.clients[client].doing = Doing::Read { key, consistency, operation, tokens };
        self.send(client)
    }

    /// What was asked is answered; now and then the same is asked again.
    fn finish(&mut self, client: usize) -> Vec<Stimulus<Replica>> {
        let doing = std::mem::replace(&mut self.clients[client].doing, Doing::Nothing);
        let mut stimuli = vec![self.alarm(client, self.profile.think)];
        if let Doing::Request { request, .. } = doing
            && self.random.random_ratio(1, 10)
        {
            let to = self.someone();
            stimuli.push(self.command(to, Command::Request(request)));
        }
        stimuli
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
    ) -> Vec<Stimulus<Replica>> {
        if let Answer::Done(reply) = &answer {
            let before = self.replies.insert((identity, sequence), reply.clone());
            if before.as_ref().is_some_and(|before| before != reply) {
                self.wrong(format!("replies: {at} answers {identity:?}.{sequence} otherwise"));
            }
            self.counts.add("repeated", u64::from(before.is_some()));
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
                self.counts.add("too_long", 1);
                if !too_long {
                    self.wrong(format!("{at} finds {identity:?}.{sequence} too long"));
                }
                self.finish(client)
            }
            Answer::Forgotten => {
                self.counts.add("forgotten", 1);
                self.clients[client].identity = None;
                self.clients[client].doing = Doing::Nothing;
                vec![self.alarm(client, self.profile.think)]
            }
            Answer::Redirect(_) | Answer::Busy => self.on_elsewhere(client, &answer),
        }
    }

    fn on_done(
        &mut self,
        client: usize,
        operation: Option<usize>,
        reply: &Bytes,
    ) -> Vec<Stimulus<Replica>> {
        let answered = self.tick();
        match operation {
            Some(at) => {
                let register = register_of(reply);
                self.history[at].1.answered = Some((answered, register));
                let key = self.history[at].0;
                self.saw(key, register);
                self.counts.add("requests", 1);
                if let Doing::Request { request, .. } = &self.clients[client].doing {
                    let call: Call = postcard::from_bytes(&request.payload).expect("ours");
                    self.done.push(call.operation);
                }
            }
            None => {
                let changed: Changed = postcard::from_bytes(reply).expect("a Changed");
                self.clients[client].wants = None;
                match changed {
                    Changed::Now(configuration) => {
                        self.counts.add("changes", 1);
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
    fn on_elsewhere(&mut self, client: usize, answer: &Answer) -> Vec<Stimulus<Replica>> {
        let ms = Duration::from_millis(1);
        self.clients[client].at = match answer {
            Answer::Redirect(Some(leader)) => *leader,
            _ => self.someone(),
        };
        match answer {
            Answer::Redirect(_) => self.counts.add("redirects", 1),
            _ => self.counts.add("busy", 1),
        }
        self.clients[client].sent_here = true;
        let after = if matches!(answer, Answer::Redirect(Some(_))) { 2 * ms } else { 40 * ms };
        vec![self.alarm(client, after)]
    }

    fn on_read(&mut self, at: ProcessId, token: u64, answer: Answer) -> Vec<Stimulus<Replica>> {
        let Some(client) = self.asked.get(&token).copied() else {
            self.answers.insert(token, answer);
            return Vec::new();
        };
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
                    self.counts.add("stale_reads", 1);
                } else {
                    let answered = self.tick();
                    self.history[operation].1.answered = Some((answered, register));
                    self.counts.add("reads", 1);
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

    fn on_connected(&mut self, token: u64, identity: ClientId) -> Vec<Stimulus<Replica>> {
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
            Stopped::Removed => self.counts.add("removed", 1),
            Stopped::LostMemory if self.recovery == Recovery::CrashStop => {
                self.counts.add("refused", 1)
            }
            Stopped::LostMemory
            | Stopped::Diverged { .. }
            | Stopped::Foreign { .. }
            | Stopped::Snapshot(_) => self.wrong(format!("stopped: {at}: {stopped}")),
        }
    }
}
