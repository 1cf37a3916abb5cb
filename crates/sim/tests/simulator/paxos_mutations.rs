//! Planted bugs of state machine replication, each of which something must notice: the trials
//! within a few seeds, or, of what no chance brings about soon, a scenario in which one replica
//! hears what others may well say.

use meridian_core::{ClientId, Effect, Event, NodeId, Outbox, Process, ProcessId, Time};
use meridian_paxos::message::{Accept, AliveOk, PreVote, Prepare, PrepareOk, Propose, Vote};
use meridian_paxos::{
    ALPHA, Answer, Batch, Change, Command, Consistency, Instance, Kind, Leases, Message, Mutation,
    Options, Output, Paxos, Record, Recovery, Request, View, change_payload,
};
use meridian_sim::of::paxos::clients::process;
use meridian_sim::of::paxos::service::{Action, Call, Registers, register_of};
use meridian_sim::of::paxos::trial::configuration;
use meridian_sim::of::paxos::{Trial, planted};
use meridian_sim::{Subject, each_is_caught, of, run};
use std::time::Duration;

/// How many seeds it may take.
const SEEDS_MAX: u64 = 1_500;
const START: Time = Time(1_000_000_000_000);

type Replica = Paxos<Registers>;

/// The scenario that shows it, if it needs one: true if nothing was wrong.
fn scenario(mutation: Mutation) -> Option<fn(Mutation) -> bool> {
    match mutation {
        Mutation::ForgetsPromise => Some(a_promise_binds_over_a_restart),
        Mutation::TakesAnyVote => Some(the_vote_of_the_highest_view_is_proposed),
        Mutation::CountsOldEpochs => Some(a_promise_of_an_earlier_start_does_not_count),
        Mutation::BreaksLease => Some(a_lease_binds),
        Mutation::ConfirmsByFormerMembers => Some(former_members_confirm_no_read),
        Mutation::ReadsUnpromised => Some(who_has_promised_nothing_confirms_no_read),
        _ => None,
    }
}

/// What shows it.
fn caught(mutation: Mutation) -> Option<String> {
    if let Some(holds) = scenario(mutation) {
        return (!holds(mutation)).then(|| "by its scenario".to_string());
    }
    let trial = planted::trial(mutation);
    (0..SEEDS_MAX).find_map(|seed| {
        let failure = run(seed, &trial).err()?;
        Some(format!("seed {seed}: {}", failure.violated.lines().next().unwrap_or_default()))
    })
}

#[test]
fn each_planted_bug_is_caught() {
    each_is_caught(&planted::ALL, caught);
}

#[test]
fn without_a_bug_the_same_trials_and_scenarios_hold() {
    for mutation in planted::ALL {
        if let Some(holds) = scenario(mutation) {
            assert!(holds(Mutation::Correct), "the scenario for {mutation:?}");
        }
    }
    let correct = |(name, trial)| (name, Trial { mutation: Mutation::Correct, ..trial });
    of::trials_hold_without_a_bug(Trial::planted().into_iter().map(correct), 0..6);
}

fn node(node: u16) -> ProcessId {
    process(NodeId(node))
}

/// One of so many, with what it finds on its disk.
fn replica(
    (me, of): (u16, u16),
    options: Options,
    mutation: Mutation,
    disk: Vec<Record>,
) -> (Replica, Vec<Effect<Replica>>) {
    let members = configuration(&(0..of).map(NodeId).collect::<Vec<_>>());
    let mut replica = Paxos::new(node(me), members, options, Registers::new(1, 0), 1);
    replica = replica.with_mutation(mutation);
    disk.into_iter().for_each(|record| replica.replay(record));
    let effects = step(&mut replica, Event::Started);
    (replica, effects)
}

fn step(replica: &mut Replica, event: Event<Replica>) -> Vec<Effect<Replica>> {
    let mut out = Outbox::new();
    replica.step(START, event, &mut out);
    replica.step(START, Event::Idle, &mut out);
    out.drain().collect()
}

fn hear(replica: &mut Replica, from: u16, message: Message) -> Vec<Effect<Replica>> {
    step(replica, Event::Message { from: node(from), message })
}

fn says(effects: &[Effect<Replica>], what: impl Fn(&Message) -> bool) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Send { message, .. } if what(message)))
}

/// The view after so many others, led by `leader`.
fn view(round: u64, leader: u16) -> View {
    (1..round).fold(View::NONE, |view, _| view.next(NodeId(0))).next(NodeId(leader))
}

fn batch(operation: u64) -> Batch {
    let ask = Call { operation, key: 0, action: Action::Add(1), padding: Vec::new() };
    let (client, kind, payload) = (ClientId(operation << 16), Kind::Execute, ask.bytes());
    Batch::new(&[Request { client, sequence: 1, kind, payload }])
}

fn propose(view: View) -> Message {
    let beat = meridian_paxos::message::Beat {
        sent: START,
        decided: Instance(0),
        digest: Default::default(),
    };
    Message::Propose(Propose { view, instance: Instance(0), batch: batch(1), beat })
}

/// It promises to a new leader, starts again, and hears of the old one: his proposal has no vote of
/// it.
fn a_promise_binds_over_a_restart(mutation: Mutation) -> bool {
    let options = Options { recovery: Recovery::FullSs, ..Options::default() };
    let (mut first, mut effects) = replica((1, 3), options.clone(), mutation, Vec::new());
    let prepare = Message::Prepare(Prepare { view: view(2, 2), from: Instance(0) });
    effects.extend(hear(&mut first, 2, prepare));
    assert!(says(&effects, |message| matches!(message, Message::PrepareOk(_))));
    let disk = effects.into_iter().filter_map(|effect| match effect {
        Effect::Persist(record) | Effect::Note(record) => Some(record),
        _ => None,
    });
    let (mut again, _) = replica((1, 3), options, mutation, disk.collect());
    let answer = hear(&mut again, 0, propose(view(1, 0)));
    !says(&answer, |message| matches!(message, Message::Accept(_)))
}

/// A candidate of so many replicas, who waits for promises; and its view.
fn candidate(of: u16, recovery: Recovery, mutation: Mutation) -> (Replica, View) {
    let options = Options { recovery, window: ALPHA, ..Options::default() };
    let (mut replica, effects) = replica((0, of), options, mutation, Vec::new());
    let round = effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Message::PreVote(PreVote { round, .. }), .. } => Some(*round),
        _ => None,
    });
    let round = round.expect("the first stimuli at once");
    for other in 1..of {
        hear(&mut replica, other, Message::PreVoteOk { round });
    }
    let view = replica.status().view;
    assert!(view > View::NONE && !replica.is_leading());
    (replica, view)
}

/// Two have accepted different values in different views: that of the later one may be decided.
fn the_vote_of_the_highest_view_is_proposed(mutation: Mutation) -> bool {
    let (mut replica, own) = candidate(5, Recovery::FullSs, mutation);
    // Both are earlier than its own.
    let votes = [(1, View(1), batch(1)), (2, View(2), batch(2))];
    let mut effects = Vec::new();
    for (from, view, batch) in votes {
        let instance = Instance(0);
        let vote = Vote { instance, view, batch, decided: false };
        let (epochs, decided, votes) = (Default::default(), Instance(0), vec![vote]);
        let ok = Message::PrepareOk(PrepareOk { view: own, epochs, decided, votes });
        effects.extend(hear(&mut replica, from, ok));
    }
    says(
        &effects,
        |message| matches!(message, Message::Propose(Propose { batch: b, .. }) if *b == batch(2)),
    )
}

/// Its promise was given before it started anew: it does not know it any more (Algorithm 4, line
/// 33).
fn a_promise_of_an_earlier_start_does_not_count(mutation: Mutation) -> bool {
    let (mut replica, view) = candidate(5, Recovery::EpochSs, mutation);
    let ok = |epochs: &[(u16, u64)]| {
        let epochs = epochs.iter().map(|(node, epoch)| (NodeId(*node), *epoch)).collect();
        Message::PrepareOk(PrepareOk { view, epochs, decided: Instance(0), votes: Vec::new() })
    };
    hear(&mut replica, 1, ok(&[(1, 1)]));
    hear(&mut replica, 2, ok(&[(1, 2), (2, 1)]));
    let counts_it = replica.is_leading();
    hear(&mut replica, 3, ok(&[(3, 1)]));
    assert!(replica.is_leading(), "three of five have promised");
    !counts_it
}

/// Who has just heard the leader promises nobody else, whatever others asked before: the leader
/// answers reads.
fn a_lease_binds(mutation: Mutation) -> bool {
    let leases = Leases::For(Duration::from_millis(300));
    let options = Options { leases, ..Options::default() };
    let (mut replica, _) = replica((1, 3), options, mutation, Vec::new());
    hear(&mut replica, 0, propose(view(1, 0)));
    let prepare = Message::Prepare(Prepare { view: view(2, 2), from: Instance(0) });
    let answer = hear(&mut replica, 2, prepare);
    !says(&answer, |message| matches!(message, Message::PrepareOk(_)))
}

/// A leader with a promise of the node `promised`, which `2` has helped to decide that node 10
/// comes in its place. It has proposed all instances of the members {0, 1, 2} and none of {0, 1,
/// 10}, and is asked for a read.
fn asked_for_a_read(promised: u16, mutation: Mutation) -> (Replica, View) {
    let (mut replica, view) = candidate(3, Recovery::FullSs, mutation);
    hear(&mut replica, promised, promise(view, Vec::new()));
    let (old, new, address) = (NodeId(2), NodeId(10), "a10".to_string());
    let payload = change_payload(&Change::Replace { old, new, address });
    let (client, sequence, kind) = (ClientId(1 << 16), 1, Kind::Reconfigure);
    let request = Request { client, sequence, kind, payload };
    step(&mut replica, Event::Command(Command::Request(request)));
    hear(&mut replica, 2, accept(view, 0));
    assert_eq!(replica.status().under_way, ALPHA - 1, "all of the former members' is proposed");
    let (question, consistency) = (vec![0].into(), Consistency::Linearizable);
    step(&mut replica, Event::Command(Command::Read { token: 1, question, consistency }));
    (replica, view)
}

fn promise(view: View, votes: Vec<Vote>) -> Message {
    Message::PrepareOk(PrepareOk { view, epochs: Default::default(), decided: Instance(0), votes })
}

fn accept(view: View, instance: u64) -> Message {
    Message::Accept(Accept { view, instance: Instance(instance), echo: Time(0) })
}

/// The value read, once node 2 has accepted all that was proposed to it.
fn read(replica: &mut Replica, view: View) -> Option<u64> {
    let effects = (1..ALPHA).flat_map(|instance| hear(replica, 2, accept(view, instance)));
    effects.collect::<Vec<_>>().iter().find_map(value_read)
}

fn value_read(effect: &Effect<Replica>) -> Option<u64> {
    match effect {
        Effect::Output(Output::Read { answer: Answer::Done(reply), .. }) => {
            Some(register_of(reply).value)
        }
        _ => None,
    }
}

/// Nodes 1 and 10 may follow another leader, and have decided instance 64 already.
fn former_members_confirm_no_read(mutation: Mutation) -> bool {
    let (mut replica, view) = asked_for_a_read(1, mutation);
    hear(&mut replica, 2, Message::AliveOk(AliveOk { view, echo: START }));
    let early = read(&mut replica, view);
    let effects = hear(&mut replica, 1, Message::AliveOk(AliveOk { view, echo: START }));
    assert!(early.is_some() != effects.iter().any(|effect| value_read(effect).is_some()));
    early.is_none()
}

/// Nodes 1 and 10 have decided instance 64 in an earlier view, and only node 10 hears of this one.
fn who_has_promised_nothing_confirms_no_read(mutation: Mutation) -> bool {
    let (mut replica, view) = asked_for_a_read(2, mutation);
    hear(&mut replica, 10, Message::AliveOk(AliveOk { view, echo: START }));
    let early = read(&mut replica, view);
    let vote = Vote { instance: Instance(ALPHA), view: View(1), batch: batch(7), decided: false };
    hear(&mut replica, 10, promise(view, vec![vote]));
    let effects = hear(&mut replica, 10, accept(view, ALPHA));
    let late = effects.iter().find_map(value_read);
    assert_eq!(late, early.is_none().then_some(1), "what 10 told of is seen");
    early.is_none()
}
