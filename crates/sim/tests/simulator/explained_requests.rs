//! What is told of a request of replicated state machines: why it was executed here and now.

use meridian_core::{ClientId, Event, MessageId, NodeId, Outbox, Process, ProcessId, Time};
use meridian_paxos::message::{Accept, Beat, Propose};
use meridian_paxos::{
    Batch, Command, Instance, Kind, Message, Mutation, Options, Paxos, Recovery, Request, View,
};
use meridian_sim::lossy::{Loss, Lossy};
use meridian_sim::of::paxos::clients::process;
use meridian_sim::of::paxos::explain::{Explanation, Place};
use meridian_sim::of::paxos::service::{Action, Call, Registers};
use meridian_sim::of::paxos::trial::configuration;
use meridian_sim::of::paxos::{Replica, Trial};
use meridian_sim::trial::Stage;
use meridian_sim::{Detail, Faults, Happened, Subject, Watcher, What, each_seed, one_seed};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const START: Time = Time(1_000_000_000_000);

fn node(node: u16) -> ProcessId {
    process(NodeId(node))
}

/// The request that is proposed in an instance.
fn request(instance: u64) -> Request {
    let call = Call { operation: instance, key: 0, action: Action::Add(1), padding: Vec::new() };
    let (client, payload) = (ClientId(0xc0 + instance), call.bytes());
    Request { client, sequence: 1, kind: Kind::Execute, payload }
}

/// One of three replicas, which hears what others may well say; and what is told of a request.
struct Follower {
    replica: Replica,
    told: Explanation,
    events: u64,
}

impl Follower {
    fn new(mutation: Mutation, of: &Request) -> Follower {
        let members = configuration(&(0..3).map(NodeId).collect::<Vec<_>>());
        let options = Options { recovery: Recovery::FullSs, ..Options::default() };
        let paxos = Paxos::new(node(1), members, options, Registers::new(1, 0), 1);
        let loss = Rc::new(Cell::new(Loss::default()));
        let replica = Lossy::new(paxos.with_mutation(mutation), loss, 1);
        let name = MessageId { client: of.client, sequence: of.sequence };
        let mut follower = Follower { replica, told: Explanation::new(name), events: 0 };
        follower.step(Event::Started);
        follower.step(Event::Command(Command::Request(of.clone())));
        follower
    }

    fn happens(&mut self, at: u16, kind: &str, what: &What<'_, Replica>) {
        self.events += 1;
        let (number, now, at) = (self.events, START, node(at));
        self.told.happened(&Happened { number, now, kind, at, to: None, what });
    }

    fn step(&mut self, event: Event<Replica>) {
        self.happens(1, "step", &What::Event(&event));
        self.replica.step(START, event, &mut Outbox::new());
        self.told.stepped(node(1), &self.replica, START);
    }

    fn hear(&mut self, from: u16, message: Message) {
        self.happens(from, "send", &What::Message(&message));
        self.step(Event::Message { from: node(from), message });
    }

    /// The leader proposes the request of an instance, and another accepts it.
    fn decide(&mut self, instance: u64) {
        let (view, batch) = (View::NONE.next(NodeId(0)), Batch::new(&[request(instance)]));
        let beat = Beat { sent: START, decided: Instance(0), digest: Default::default() };
        let instance = Instance(instance);
        self.hear(0, Message::Propose(Propose { view, instance, batch, beat }));
        self.hear(2, Message::Accept(Accept { view, instance, echo: START }));
    }

    fn place(&self, instance: u64) -> &Place {
        let at = self.told.places.get(&node(1)).and_then(|places| places.get(&Instance(instance)));
        at.unwrap_or_else(|| panic!("it knows no decision of {instance}: {:?}", self.told))
    }
}

#[test]
fn an_execution_waits_for_the_decisions_before_it() {
    let mut follower = Follower::new(Mutation::Correct, &request(2));
    follower.decide(0);
    follower.decide(2);
    let place = follower.place(2);
    assert_eq!((&*place.before, &place.executed), (&[Instance(1)][..], &None), "{place:?}");
    follower.decide(1);
    let place = follower.place(2);
    assert_eq!((place.last, place.contradiction()), (Some(Instance(1)), None), "{place:?}");
    let executed = place.executed.as_ref().expect("nothing is missing any more");
    assert!(executed.number > place.decided.number);
    let proposal = &follower.told.proposals[&(Instance(2), View::NONE.next(NodeId(0)))];
    assert_eq!(proposal.leader, node(0));
    assert!(proposal.accepted.contains_key(&node(2)));
    let text = follower.told.text().expect("somebody asked for it");
    for line in ["n0 proposes it in instance 2 and v1.0: ", "  n2 accepts: ", "n1 and instance 2"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("decisions were missing of "), "{text}");
    assert!(text.contains("the decision of instance 1"), "{text}");
}

#[test]
fn a_replica_that_skips_what_is_missing_is_seen_to() {
    let mut follower = Follower::new(Mutation::SkipsGaps, &request(2));
    follower.decide(0);
    follower.decide(2);
    let place = follower.place(2);
    assert_eq!(place.contradiction(), Some(Instance(1)), "{place:?}");
    let text = follower.told.text().expect("somebody asked for it");
    assert!(text.contains("which is wrong"), "{text}");
}

/// The names of the requests that come in a run.
#[derive(Clone, Default)]
struct Names(Rc<RefCell<BTreeSet<MessageId>>>);

impl Watcher<Replica> for Names {
    fn happened(&mut self, event: &Happened<'_, Replica>) {
        if let Some(Command::Request(Request { client, sequence, .. })) = event.asked() {
            self.0.borrow_mut().insert(MessageId { client: *client, sequence: *sequence });
        }
    }
}

/// The faulty phase of a trial, of which the watcher is told.
fn run(trial: &Trial, seed: u64, watcher: Box<dyn Watcher<Replica>>) {
    let mut stage = Stage::new(trial, seed, &trial.draw(seed), Detail::default());
    stage.world.watch(watcher);
    stage.world.run_for(Trial::FAULTS);
}

fn names(trial: &Trial, seed: u64) -> Vec<MessageId> {
    let names = Names::default();
    run(trial, seed, Box::new(names.clone()));
    names.0.take().into_iter().collect()
}

/// With all faults, nobody executes what it must not yet, and what is decided was proposed and
/// accepted by a majority.
#[test]
fn what_is_told_of_requests_holds_in_any_run() {
    let trial = Trial { replicas: Some(3), changes: Some(false), ..Trial::default() };
    let mut executed = 0;
    each_seed(0..20, |seed| {
        let names = names(&trial, seed);
        let Some(name) = names.get(names.len() / 2) else { return };
        let told = Rc::new(RefCell::new(Explanation::new(*name)));
        run(&trial, seed, Box::new(told.clone()));
        let told = told.borrow();
        for (at, places) in &told.places {
            for (instance, place) in places {
                assert_eq!(place.contradiction(), None, "seed {seed}, {name} at {at}: {place:?}");
                let voters = told.proposals.iter().filter(|((of, _), _)| of == instance);
                let mut is_majority = voters.map(|(_, proposal)| {
                    let accepted = proposal.accepted.iter();
                    let before = accepted.filter(|(_, sent)| sent.number <= place.decided.number);
                    let others = before.map(|(voter, _)| *voter);
                    others.chain([proposal.leader, *at]).collect::<BTreeSet<_>>().len() >= 2
                });
                let decided = is_majority.any(|is_majority| is_majority);
                assert!(decided, "seed {seed}, {name} at {at}: {place:?} {:?}", told.proposals);
                executed += u64::from(place.executed.is_some());
            }
        }
    });
    assert!(one_seed() || executed > 10, "{executed}");
}

#[test]
fn a_run_is_explained_by_its_seed_and_the_name_of_a_request() {
    let calm = Trial {
        faults: Some(Faults::none()),
        loss: Some(Loss::default()),
        ..Trial::of(Recovery::FullSs)
    };
    let trial = Trial { replicas: Some(3), changes: Some(false), ..calm };
    let names = names(&trial, 3);
    let name = names[names.len() / 2].to_string();
    let text = trial.explain(3, &name).unwrap();
    assert_eq!(text, trial.explain(3, &name).unwrap(), "the same twice");
    assert!(
        text.starts_with("seed 3; ") && text.contains(&format!("{name}, asked of n")),
        "{text}"
    );
    for words in [" proposes it in instance ", " accepts: ", "knows the decision", "answers: "] {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("violated") && !text.contains("which is wrong"), "{text}");
    assert!(trial.explain(3, "77.1").unwrap_err().contains("no message of seed 3 is called 77.1"));
    assert!(trial.explain(3, "x").unwrap_err().contains("is no message"));
}
