//! What is told of a run: its trace in words, and why a message was delivered here and now.

use crate::cluster::{Cluster, process, setup_of};
use crate::scenarios::{UNIT, id, multicast, primary, settled_with};
use meridian_core::{ClientId, GroupId, MessageId, ProcessId, Time};
use meridian_multicast::{Command, Mutation, Options, Order};
use meridian_sim::of::multicast::explain::{Account, Condition, Explanation, Met};
use meridian_sim::of::multicast::replica::groups_of;
use meridian_sim::of::multicast::trial::Trial;
use meridian_sim::of::multicast::words::Words;
use meridian_sim::of::multicast::workload::{Profile, Workload};
use meridian_sim::trace::{Filter, Trace};
use meridian_sim::trial::Stage;
use meridian_sim::{Detail, Stimulus, Subject, World, each_seed, one_seed};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(1);

/// The lines of a trace with this filter, of two messages: 4d.1 to both groups and 4d.2 to one.
fn lines(filter: Filter) -> Vec<String> {
    let mut world = settled_with(&[3, 3], Options::default(), Mutation::Correct, Some(UNIT));
    let told: Rc<RefCell<Vec<String>>> = Rc::default();
    let write = {
        let told = told.clone();
        move |line: &str| told.borrow_mut().push(line.to_string())
    };
    world.watch(Box::new(Trace::to(Box::new(Words::default()), filter, write)));
    let (g, h) = (primary(&world, 0), primary(&world, 1));
    multicast(&mut world, 1, &[0, 1], &[g, h], UNIT);
    multicast(&mut world, 2, &[0], &[g], UNIT);
    world.run_for(LONG);
    drop(world);
    told.take()
}

fn about(message: &str) -> Filter {
    Filter { message: Some(message.into()), ..Filter::default() }
}

#[test]
fn a_trace_names_what_happens_to_a_message() {
    let lines = lines(about("4d.1"));
    let has = |kind: &str, words: &str| {
        lines.iter().any(|line| line.contains(kind) && line.contains(words))
    };
    assert!(has(" command g0/n0: ", "Start 4d.1 to g0 g1"), "{lines:#?}");
    assert!(has(" persist g0/n0: ", "4d.1 at "));
    assert!(has(" send g0/n0 -> g0/n1: ", "Append from 0, clock "));
    assert!(has(" send g0/n0 -> g1/n101: ", "RemoteAppend 0.."));
    assert!(has(" step g1/n100: ", "from g0/n1: RemoteAck below "), "{lines:#?}");
    let delivers = |line: &&String| line.contains("delivers 4d.1 at ");
    assert_eq!(lines.iter().filter(delivers).count(), 6);
    // An ACK is about the message once on each way, however often it is repeated.
    let acks = lines.iter().filter(|line| line.contains(" send g0/n1 -> g0/n0: Ack below"));
    assert_eq!(acks.count(), 1, "{lines:#?}");
    let structure = |line: &&String| line.contains('{') || line.contains("GroupId");
    assert_eq!(lines.iter().find(structure), None);
}

#[test]
fn a_trace_tells_what_was_asked_for_and_no_more() {
    let all = lines(Filter::default());
    let number = |line: &str| line.split(' ').nth(1).and_then(|ms| ms.parse::<f64>().ok());
    let (from, until) = (Time(8_020_000_000), Time(8_050_000_000));
    let some = lines(Filter { from, until, ..Filter::default() });
    let is_within = |ms| (8020.0..=8050.0).contains(&ms);
    let within = all.iter().filter(|line| number(line).is_some_and(is_within));
    assert!(!some.is_empty() && some.iter().eq(within));
    let at = lines(Filter { process: Some("g1/n101".into()), ..Filter::default() });
    let is_there = |line: &&String| {
        let place = line.split(": ").next().unwrap_or_default();
        place.split(' ').any(|word| word == "g1/n101")
    };
    assert!(at.len() < all.len() && at.iter().eq(all.iter().filter(is_there)));
    let other = lines(about("4d.2"));
    let delivers = |line: &&String| line.contains("delivers 4d.2 at ");
    assert_eq!(other.iter().filter(delivers).count(), 3);
    assert!(other.iter().all(|line| !line.contains("delivers 4d.1")));
    let none = lines(about("4d.9"));
    assert!(none.len() == 1 && none[0].contains("no event"), "{none:?}");
}

/// Watches a message from now on.
fn watch(world: &mut Cluster, id: MessageId) -> Rc<RefCell<Explanation>> {
    let told = Rc::new(RefCell::new(Explanation::new(id)));
    world.watch(Box::new(told.clone()));
    told
}

fn account(told: &Rc<RefCell<Explanation>>, process: ProcessId) -> Account {
    told.borrow().accounts.get(&process).cloned().unwrap_or_default()
}

fn with(account: &Account, condition: Condition) -> String {
    match account.met.get(&condition) {
        Some(Met::With(moment)) => moment.words.clone(),
        other => panic!("{condition:?} was met {other:?}: {account:?}"),
    }
}

/// Nothing else is under way: what comes with the third step is the last ACKs.
#[test]
fn without_collisions_a_delivery_waits_for_the_acks_of_the_third_step() {
    let mut world = settled_with(&[3, 3], Options::default(), Mutation::Correct, Some(UNIT));
    let told = watch(&mut world, id(1));
    let (g, h) = (primary(&world, 0), primary(&world, 1));
    multicast(&mut world, 1, &[0, 1], &[g, h], UNIT);
    world.run_for(LONG);
    for process in [g, h, process(0, 1), process(1, 2)] {
        let account = account(&told, process);
        assert!(account.last().contains(&Condition::Timestamps), "{account:?}");
        assert!(with(&account, Condition::Timestamps).contains("Ack below "), "{account:?}");
        assert!(account.before.is_empty() && account.contradiction().is_none());
    }
    for (group, primary) in [(0, g), (1, h)] {
        let proposals = &told.borrow().proposals[&GroupId(group)];
        assert_eq!(proposals.len(), 1);
        assert_eq!(proposals[0].epoch.leader, primary.node);
        assert!(proposals[0].decided.is_some());
    }
    let text = told.borrow().text(&world.owner.history).unwrap();
    assert!(text.starts_with("4d.1 to g0 g1, multicast at 8000.000 ms; its final timestamp is "));
    assert!(text.contains("it waited last for        timestamps of all groups"), "{text}");
}

/// Group 0 cannot deliver a message of its own before an earlier one to both groups, of which the
/// other one hears late.
fn behind_another(mutation: Mutation) -> (Cluster, Rc<RefCell<Explanation>>) {
    let mut world = settled_with(&[3, 3], Options::default(), mutation, Some(UNIT));
    let told = watch(&mut world, id(2));
    let (g, h, now) = (primary(&world, 0), primary(&world, 1), world.now());
    let start = world.owner.multicast(id(1), &[0, 1], now);
    for (to, after) in [(g, UNIT), (h, 10 * UNIT)] {
        let command = Command::Start(start.clone());
        world.inject(Stimulus::Command { to, command, after });
    }
    multicast(&mut world, 2, &[0], &[g], 2 * UNIT);
    (world, told)
}

#[test]
fn a_delivery_behind_another_waits_for_its_turn() {
    let (mut world, told) = behind_another(Mutation::Correct);
    world.run_for(LONG);
    let account = account(&told, process(0, 1));
    assert_eq!(account.before.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [id(1)]);
    assert!(account.last().contains(&Condition::Turn), "{account:?}");
}

#[test]
fn a_process_that_ignores_the_order_is_seen_to() {
    let (mut world, told) = behind_another(Mutation::NoOrder);
    let early = |world: &Cluster| world.owner.deliveries > 0;
    assert!(world.run_until(early, LONG), "nothing was delivered out of order");
    let found = told.borrow().accounts.values().find_map(Account::contradiction);
    assert_eq!(found, Some(Condition::Turn));
}

/// The other group is far ahead and hears of the message late, and messages inside the own one take
/// twice as long as those between the two: the clocks of a quorum are what is there last.
fn ahead(mutation: Mutation) -> Rc<RefCell<Explanation>> {
    let mut setup = setup_of(&[3, 3], Options::default(), mutation, Some(UNIT));
    let inside = |from: ProcessId, to: ProcessId| from.group == to.group && to.group == GroupId(0);
    setup.delay = Box::new(move |from, to, _| if inside(from, to) { 2 * UNIT } else { UNIT });
    let profile = Profile { clients: 0, ..Profile::default() };
    let mut world = World::new(0, setup, Workload::new(0, groups_of(&[3, 3]), profile));
    world.run_for(8 * LONG);
    let (g, h) = (primary(&world, 0), primary(&world, 1));
    (10..40).for_each(|n| multicast(&mut world, n, &[1], &[h], UNIT));
    world.run_for(LONG);
    let told = watch(&mut world, id(1));
    let now = world.now();
    let start = world.owner.multicast(id(1), &[0, 1], now);
    for (to, after) in [(g, UNIT), (h, 20 * UNIT)] {
        let command = Command::Start(start.clone());
        world.inject(Stimulus::Command { to, command, after });
    }
    world.run_for(LONG);
    told
}

#[test]
fn a_delivery_waits_for_clocks_where_another_group_is_ahead() {
    let account = account(&ahead(Mutation::Correct), process(0, 1));
    let last = account.last();
    assert!(last.contains(&Condition::QuorumClock), "{last:?} {account:?}");
    assert_eq!(account.contradiction(), None);
    let told = ahead(Mutation::NoQuorumClock);
    let found = told.borrow().accounts.values().find_map(Account::contradiction);
    assert_eq!(found, Some(Condition::QuorumClock));
}

/// With all faults, in both orders, each delivery has met each condition.
#[test]
fn what_is_told_of_deliveries_holds_in_any_run() {
    let (mut delivered, mut waited) = (0, BTreeSet::new());
    for order in [Order::Sequential, Order::Linearizable] {
        each_seed(0..90, |seed| {
            let trial = Trial { order: Some(order), ..Trial::default() };
            let drawn = trial.draw(seed);
            let mut stage = Stage::new(&trial, seed, &drawn, Detail::default());
            let id = MessageId { client: ClientId(1), sequence: 1 + seed % 5 };
            let told = watch(&mut stage.world, id);
            stage.world.run_for(Trial::FAULTS);
            for (process, account) in &told.borrow().accounts {
                let wrong = account.contradiction();
                assert_eq!(wrong, None, "seed {seed}, {id} at {process}: {account:#?}");
                delivered += u64::from(account.delivered.is_some());
                waited.extend(account.last());
            }
        });
    }
    let some = [Condition::Timestamps, Condition::QuorumClock, Condition::Turn, Condition::Closed];
    let missing: Vec<_> = some.iter().filter(|condition| !waited.contains(condition)).collect();
    assert!(one_seed() || missing.is_empty(), "{missing:?}, {delivered} deliveries");
    assert!(one_seed() || delivered > 100, "{delivered}");
}

#[test]
fn a_run_is_explained_by_its_seed_and_a_name() {
    let trial = Trial::of(&[3, 3]);
    let text = trial.explain(3, "1.1").unwrap();
    assert_eq!(text, trial.explain(3, "1.1").unwrap(), "the same twice");
    assert!(text.starts_with("seed 3; groups [3, 3]"), "{text}");
    assert!(text.contains("it waited last for"), "{text}");
    assert!(trial.explain(3, "77.1").unwrap_err().contains("no message of seed 3 is called 77.1"));
    assert!(trial.explain(3, "x").unwrap_err().contains("is no message"));
}
