//! Small cases of Hermes, in all orders of arrival: one key, three replicas, two writes and an RMW,
//! reads, and a crash with the m-update that follows it.
//!
//! What clients see is judged as a history: it must be linearizable whenever the search stops. For
//! that the moments of calls and answers count, so that events at different replicas do not
//! commute, and all orders are searched without persistent sets.

use super::register::{Change, Key, Operation, outcome};
use crate::checkers::linearizable::{Call, CallOf, check};
use crate::explore::{
    Begun, Crash, Disorder, Found, Input, Model, Options as How, Regular, Set, search,
};
use bytes::Bytes;
use meridian_core::{Embedding, Event, NodeId, Outbox, Process, Time};
use meridian_hermes::{
    Action, Answer, Command, Epoch, Hermes, Membership, Message, Mutation, Options, Output, Record,
    Request, Timer,
};
use std::collections::{BTreeMap, BTreeSet};

/// What clients see has an explanation.
pub const LINEARIZABLE: &str = "linearizable";
const START: Time = Time(1_000_000_000);
/// Later than all that the search knows.
const LEASE: Time = Time(u64::MAX);

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// So many replicas.
    pub replicas: u16,
    /// What is asked of whom; of the same one in this order.
    pub asked: Vec<(u16, Operation)>,
    /// Who may crash, at any time; the others are told some time after.
    pub crash: Option<u16>,
    /// So many messages come twice in a run. No link has an order.
    pub repeated: u8,
    /// So many messages come before earlier ones of their link in a run; any, if it is not said.
    pub overtakes: Option<u8>,
    /// How replicas behave.
    pub options: Options,
    /// A planted bug.
    pub mutation: Mutation,
}

impl Case {
    fn of(asked: Vec<(u16, Operation)>) -> Case {
        let (crash, repeated, overtakes) = (None, 0, None);
        let (options, mutation) = (Options::default(), Mutation::Correct);
        Case { replicas: 3, asked, crash, repeated, overtakes, options, mutation }
    }

    /// One of three replicas writes, another has an RMW.
    pub fn a_write_and_an_rmw() -> Case {
        Case::of(vec![(0, write(b"a")), (1, append())])
    }

    /// Two of three replicas have an RMW.
    pub fn two_rmws() -> Case {
        Case::of(vec![(0, append()), (1, append())])
    }

    /// Two of three replicas write, and the first then has an RMW.
    pub fn two_writes_and_an_rmw() -> Case {
        Case::of(vec![(0, write(b"a")), (0, append()), (1, write(b"b"))])
    }

    /// The same, and a replica is read once.
    pub fn and_a_read(mut self, at: u16) -> Case {
        self.asked.push((at, Operation::Read));
        self
    }

    /// Searches until something is violated.
    pub fn search(&self) -> Found {
        let replicas = (0..self.replicas).map(|at| self.begun(at)).collect();
        let installing = Installed { case: self, replicas, installs: true };
        let mut regular = Regular::new(&installing, How::default());
        regular.run();
        let (replicas, _) = regular.end();
        let installed = Installed { case: self, replicas, installs: false };
        let crash = |at: u16| Crash { who: Set::from(1u8) << at, loses: true, restarts: false };
        let crash = self.crash.map(crash);
        let disorder = Some(Disorder { repeated: self.repeated, overtakes: self.overtakes });
        search(&installed, How { crash, ticks: 3, reduced: false, disorder, ..How::default() })
    }

    fn begun(&self, at: u16) -> Begun<Client> {
        let hermes = Hermes::new(NodeId(at), self.options.clone(), u64::from(at));
        let process = Client(hermes.with_mutation(self.mutation));
        Begun { peer: NodeId(at), process, disk: Vec::new() }
    }

    fn membership(&self, epoch: Epoch) -> Membership {
        let gone = self.crash.filter(|_| epoch > Epoch::FIRST);
        let live = (0..self.replicas).filter(|at| Some(*at) != gone).map(NodeId);
        Membership { epoch, live: live.collect(), shadows: BTreeMap::new() }
    }
}

/// A write of that text.
pub fn write(text: &'static [u8]) -> Operation {
    Operation::Update(Action::Write(Some(Bytes::from_static(text))))
}

/// An RMW.
pub fn append() -> Operation {
    Operation::Update(Action::Modify(Change::Append(Bytes::from_static(b"!"))))
}

/// A replica that tells when it is asked, so that histories have calls.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Client(Hermes<Change>);

#[derive(Clone, Debug, PartialEq)]
enum Said {
    Asked(u64),
    Answered(u64, Answer),
}

impl Process for Client {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command<Change>;
    type Output = Said;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        if let Event::Command(command) = &event {
            command.token().into_iter().for_each(|token| out.output(Said::Asked(token)));
        }
        let Some(event) = event.inward(Some) else { return };
        let mut inner = Outbox::new();
        self.0.step(now, event, &mut inner);
        out.absorb(&mut inner, &mut Within);
    }

    fn replay(&mut self, record: Record) {
        self.0.replay(record);
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        self.0.checkpoint()
    }
}

struct Within;

impl Embedding<Hermes<Change>, Client> for Within {
    fn message(&mut self, to: NodeId, message: Message) -> (NodeId, Message) {
        (to, message)
    }

    fn record(&mut self, record: Record) -> Record {
        record
    }

    fn timer(&mut self, timer: Timer) -> Timer {
        timer
    }

    fn output(&mut self, output: Output, out: &mut Outbox<Client>) {
        if let Output::Answer { token, answer } = output {
            out.output(Said::Answered(token, answer));
        }
    }
}

/// What clients have seen. Calls between the same answers have the same moment, so that their order
/// makes no difference.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
struct Seen {
    /// After how many answers each was asked.
    asked: BTreeMap<u64, usize>,
    /// In this order.
    answers: Vec<(u64, Answer)>,
    violated: Option<&'static str>,
}

struct Installed<'a> {
    case: &'a Case,
    replicas: Vec<Begun<Client>>,
    /// Whether the first membership is still to be installed.
    installs: bool,
}

impl Installed<'_> {
    fn history(&self, seen: &Seen) -> Vec<CallOf<Key>> {
        let call = |(token, after): (&u64, &usize)| {
            let operation = self.case.asked[*token as usize].1.clone();
            (*token, Call { operation, called: 2 * *after as u64, answered: None })
        };
        let mut calls: BTreeMap<u64, CallOf<Key>> = seen.asked.iter().map(call).collect();
        for (moment, (token, answer)) in (0..).zip(&seen.answers) {
            match outcome(answer) {
                Some(outcome) => {
                    let call = calls.get_mut(token).expect("it was asked");
                    call.answered = Some((2 * moment + 1, outcome));
                }
                None if *answer == Answer::Unknown => {}
                // It has not happened, so nobody may see it.
                None => drop(calls.remove(token)),
            }
        }
        calls.into_values().collect()
    }
}

impl Model for Installed<'_> {
    type Process = Client;
    type Observed = Seen;

    fn processes(&self) -> Vec<Begun<Client>> {
        self.replicas.clone()
    }

    fn now(&self) -> Time {
        START
    }

    fn timer(&self) -> Event<Client> {
        Event::Timer(Timer::Tick)
    }

    fn inputs(&self) -> Vec<Input<Client>> {
        let input = |at: u16, command, after, after_crash| {
            let event = Event::Command(command);
            Input { at: usize::from(at), event, cause: 0, after, after_crash }
        };
        let install = |epoch| Command::Install(self.case.membership(epoch));
        if self.installs {
            let each = (0..self.case.replicas).flat_map(|at| {
                let lease = Command::Lease { until: LEASE };
                [install(Epoch::FIRST), lease].map(|command| input(at, command, None, false))
            });
            return each.collect();
        }
        let asked = &self.case.asked;
        let of = |(number, (at, operation)): (usize, &(u16, Operation))| {
            let before = asked[..number].iter().rposition(|(other, _)| other == at);
            let (token, key, id) = (number as u64, Bytes::from_static(b"k"), None);
            let command = match operation.clone() {
                Operation::Read => Command::Read { token, key },
                Operation::Update(action) => Command::Update(Request { token, key, id, action }),
            };
            input(*at, command, before, false)
        };
        let survivors = (0..self.case.replicas).filter(|at| Some(*at) != self.case.crash);
        let survivors = survivors.filter(|_| self.case.crash.is_some());
        let next = Epoch(Epoch::FIRST.0 + 1);
        let updates = survivors.map(|at| input(at, install(next), None, true));
        asked.iter().enumerate().map(of).chain(updates).collect()
    }

    fn observe(&self, seen: &mut Seen, _: usize, _: Set, process: &Client, outputs: &[Said]) {
        if process.0.check_invariants().is_err() {
            seen.violated = Some("invariants");
        }
        for said in outputs {
            match said {
                Said::Asked(token) => drop(seen.asked.insert(*token, seen.answers.len())),
                Said::Answered(token, answer) => seen.answers.push((*token, answer.clone())),
            }
        }
        // What is only asked makes no history wrong.
        let answered = outputs.iter().any(|said| matches!(said, Said::Answered(..)));
        if answered && check(&Key, &self.history(seen)).is_err() {
            seen.violated = Some(LINEARIZABLE);
        }
    }

    fn violated(&self, seen: &Seen, _: &[&Client]) -> Option<&'static str> {
        seen.violated
    }

    /// All that was asked of replicas that are up is answered.
    fn is_done(&self, seen: &Seen, up: Set) -> bool {
        let answered: BTreeSet<_> = seen.answers.iter().map(|(token, _)| *token).collect();
        let mut asked = (0..).zip(&self.case.asked);
        self.installs
            || asked.all(|(token, (at, _))| up & (1 << at) == 0 || answered.contains(&token))
    }

    /// The RMW has changed what it found.
    fn is_goal(&self, seen: &Seen, _: &[&Client]) -> bool {
        seen.answers.iter().any(|(_, answer)| matches!(answer, Answer::Modified(_)))
    }

    fn restarted(&self, at: usize) -> Client {
        self.case.begun(at as u16).process
    }
}
