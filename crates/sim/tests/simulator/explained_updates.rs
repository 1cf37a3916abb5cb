//! What is told of an update of keys across regions: why it became visible elsewhere here and now.

use bytes::Bytes;
use meridian_core::{Process, RegionId, Time};
use meridian_eunomia::member::Output;
use meridian_eunomia::receiver::Missing;
use meridian_eunomia::shard::{self, Request};
use meridian_eunomia::{
    self as eunomia, Mutation, Options, Peer, Role, Seen, Site, Timestamp, Topology, member,
    place_of,
};
use meridian_keys::causal as keys;
use meridian_sim::lossy::{Loss, Lossy};
use meridian_sim::of::causal;
use meridian_sim::of::eunomia::changing::Plan;
use meridian_sim::of::eunomia::explain::{Cause, Explanation, Name};
use meridian_sim::of::eunomia::words::Words;
use meridian_sim::of::eunomia::{Member, Trial};
use meridian_sim::trial::Stage;
use meridian_sim::{
    Detail, Faults, Happened, Owner, Setup, Stimulus, Subject, Watcher, What, World, each_seed,
    one_seed,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
/// Messages that are late travel for so long.
const LATE: Duration = Duration::from_millis(200);
const R0: RegionId = RegionId(0);
const R1: RegionId = RegionId(1);
const R2: RegionId = RegionId(2);
/// The replica of the service of the region where updates are explained.
const SERVICE: Peer = Peer { region: R0, role: Role::Replica(0) };
const RECEIVER: Peer = Peer { region: R1, role: Role::Receiver };

fn shard(region: RegionId, number: u16) -> Peer {
    Peer { region, role: Role::Shard(number) }
}

/// A key of this shard, of two.
fn key_of(number: u32) -> Bytes {
    let keys = (0..u8::MAX).map(|key| Bytes::copy_from_slice(&[key]));
    let mut of = keys.filter(|key| place_of(key) % 2 == number);
    of.next().expect("each shard has keys")
}

/// Hears what sessions are told.
#[derive(Default)]
struct Listener(Vec<Seen>);

impl Owner<Member> for Listener {
    fn output(&mut self, _at: Peer, output: Output, _now: Time) -> Vec<Stimulus<Member>> {
        if let Output::Shard(shard::Output::Updated { seen, .. }) = output {
            self.0.push(seen);
        }
        Vec::new()
    }
}

/// Three regions of two shards and one replica of the service.
type Scene = World<Member, Listener>;

/// A message travels for 1 ms, unless it is late.
fn scene(mutation: Mutation, is_late: fn(Peer, Peer) -> bool) -> Scene {
    let topology = Arc::new(Topology::new(vec![Site { shards: 2, replicas: 1 }; 3]));
    let (peers, loss) = (topology.peers(), Rc::new(Cell::new(Loss::default())));
    let make = move |me: Peer| {
        let member = eunomia::Member::new(me, topology.clone(), Options::default());
        Lossy::new(member.with_mutation(mutation), loss.clone(), 1)
    };
    let mut setup = Setup::exact(peers, MS, make);
    setup.delay = Box::new(move |from, to, _| if is_late(from, to) { LATE } else { MS });
    World::new(1, setup, Listener::default())
}

fn ask(scene: &mut Scene, to: Peer, command: shard::Command, after: Duration) {
    let command = member::Command::Shard(command);
    scene.inject(Stimulus::Command { to, command, after });
}

fn request(number: u16, seen: Seen) -> Request {
    let (key, value) = (key_of(u32::from(number)), Some(Bytes::from_static(b"value")));
    Request { token: 1, key, value, seen }
}

/// A session that has seen this updates a key of the shard: what it has seen then.
fn update(scene: &mut Scene, to: Peer, seen: Seen) -> Seen {
    let Role::Shard(number) = to.role else { panic!("{to} is no shard") };
    ask(scene, to, shard::Command::Update(request(number, seen)), MS);
    scene.run_for(5 * MS);
    *scene.owner.0.last().expect("it has happened")
}

/// Of an update of region 0.
type Told = Rc<RefCell<Explanation<Member>>>;

/// What is told of the last update of a scene, and its timestamp: the first run only tells that.
fn told(make: impl Fn() -> Scene, act: impl Fn(&mut Scene) -> Seen) -> (Timestamp, Told) {
    let ts = act(&mut make()).vector[R0];
    let told = Rc::new(RefCell::new(Explanation::new(Name(ts), Box::new(Words))));
    let mut again = make();
    again.watch(Box::new(told.clone()));
    assert_eq!(act(&mut again).vector[R0], ts);
    again.run_for(3 * LATE);
    (ts, told)
}

fn text(told: &Told) -> String {
    told.borrow().text().expect("somebody has made it")
}

/// All that source 0 says to its service is late, and source 1 makes an update.
fn behind_a_promise(mutation: Mutation) -> (Timestamp, Told) {
    let is_late = |from: Peer, to: Peer| (from, to) == (shard(R0, 0), SERVICE);
    let act = |scene: &mut Scene| {
        scene.run_for(300 * MS);
        update(scene, shard(R0, 1), Seen::default())
    };
    told(|| scene(mutation, is_late), act)
}

#[test]
fn an_update_waits_for_the_promise_of_the_source_that_is_late() {
    let (ts, told) = behind_a_promise(Mutation::Correct);
    let story = told.borrow().stories[&R0].clone();
    let making = story.making.as_ref().expect("a source made it");
    assert_eq!(making.at, shard(R0, 1));
    assert_eq!(making.committed, Some(making.begun.clone()), "it was not in flight");
    let known = &story.services[&SERVICE];
    assert_eq!((known.held_back(), known.contradiction()), (Some(0), None), "{known:?}");
    assert!(known.heard.words.contains(&ts.0.to_string()), "{known:?}");
    let promise = &known.promises[&0];
    assert!(promise.last < Some(ts), "{promise:?}");
    let until = promise.until.as_ref().expect("it came at last");
    assert!(until.words.starts_with("from r0/shard0: labels "), "{until:?}");
    let waited = until.at.since(known.heard.at);
    assert!(waited > LATE - 10 * MS && waited < LATE, "{waited:?}");
    assert!(known.stable.as_ref().is_some_and(|stable| stable.number >= until.number));
    for region in [R1, R2] {
        assert_eq!(told.borrow().last(R0, region), Some(Cause::Promise(0)));
        let receiver = Peer { region, role: Role::Receiver };
        assert!(story.shipped.contains_key(&(SERVICE, receiver)), "{story:?}");
        let reception = &story.receptions[&receiver];
        assert!(reception.waits.is_empty() && reception.asked.is_some(), "{reception:?}");
        let (_, changed) = story.applications[&shard(region, 1)].shown.as_ref().expect("it does");
        assert!(changed);
    }
    let text = text(&told);
    assert!(text.starts_with(&format!("{} of r0\n\nr0/shard1\n  begins it ", ts.0)), "{text}");
    assert!(text.contains("waits for r0/shard0       it had promised "), "{text}");
    let (_, sentences) = text.rsplit_once("\n\n").expect("they come last");
    let sentences: Vec<_> = sentences.lines().collect();
    assert_eq!(sentences.len(), 2, "{text}");
    for (sentence, region) in sentences.into_iter().zip(["r1", "r2"]) {
        let (begins, ends) = (format!("{region} shows it from "), "the promise of r0/shard0");
        assert!(sentence.starts_with(&begins) && sentence.ends_with(ends), "{sentence}");
    }
}

#[test]
fn a_service_that_skips_a_source_is_seen_to() {
    let (_, told) = behind_a_promise(Mutation::SkipsASource);
    let known = told.borrow().stories[&R0].services[&SERVICE].clone();
    assert_eq!(known.contradiction(), Some(0), "{known:?}");
    let text = text(&told);
    assert!(text.contains("which is wrong            r0/shard0 has not promised"), "{text}");
}

/// Source 0 has an update in flight, which it began before source 1 makes one.
#[test]
fn a_promise_waits_for_what_is_in_flight() {
    let act = |scene: &mut Scene| {
        scene.run_for(300 * MS);
        ask(scene, shard(R0, 0), shard::Command::Begin(request(0, Seen::default())), MS);
        ask(scene, shard(R0, 0), shard::Command::Commit { token: 1 }, 40 * MS);
        scene.run_for(5 * MS);
        update(scene, shard(R0, 1), Seen::default())
    };
    let (ts, told) = told(|| scene(Mutation::Correct, |_, _| false), act);
    let story = told.borrow().stories[&R0].clone();
    let flight = &story.flights[&shard(R0, 0)];
    assert!(flight.first < ts && flight.first.source() == 0, "{flight:?}");
    let until = flight.until.as_ref().expect("it was committed");
    assert_eq!(until.words, "is to commit token 1");
    assert_eq!(story.services[&SERVICE].held_back(), Some(0));
    assert_eq!(told.borrow().last(R0, R1), Some(Cause::Promise(0)));
    let text = text(&told);
    assert!(text.contains(&format!("; {} was in flight there, until: ", flight.first.0)), "{text}");
}

/// All that region 2 says to region 1 is late. A session makes an update there and sees it, and
/// another one in region 0, which has the first when it comes.
fn behind_another(mutation: Mutation) -> (Timestamp, Told) {
    let is_late = |from: Peer, to: Peer| (from.region, to.region) == (R2, R1);
    let first = Cell::new(Timestamp::ZERO);
    let act = |scene: &mut Scene| {
        scene.run_for(300 * MS);
        let seen = update(scene, shard(R2, 0), Seen::default());
        first.set(seen.vector[R2]);
        scene.run_for(100 * MS);
        update(scene, shard(R0, 1), seen)
    };
    let (_, told) = told(|| scene(mutation, is_late), act);
    (first.get(), told)
}

#[test]
fn an_update_waits_for_the_dependency_that_is_late() {
    let (first, told) = behind_another(Mutation::Correct);
    let missing = Missing { region: R2, upto: first, first: None };
    assert_eq!(told.borrow().last(R0, R1), Some(Cause::Dependency(missing)));
    let story = told.borrow().stories[&R0].clone();
    let label = story.label.expect("it is known");
    assert_eq!((label.vector[R2], label.dep), (first, Timestamp::ZERO));
    let reception = &story.receptions[&RECEIVER];
    let [wait] = &reception.waits[..] else { panic!("{reception:?}") };
    let until = wait.until.as_ref().expect("it was applied");
    assert_eq!(until.words, format!("from r1/shard0: Applied of r2: {}", first.0));
    assert_eq!(reception.asked.as_ref(), Some(until), "it is free at once");
    assert_eq!(reception.contradiction(), None);
    let before = told.borrow().last(R0, R2);
    assert!(!matches!(before, Some(Cause::Dependency(_))), "it was made there: {before:?}");
    let text = text(&told);
    let point = format!("{} of r2", first.0);
    assert!(text.contains(&format!("it depends on             {point}\n")), "{text}");
    assert!(text.contains(&format!("waits for r2              {point}, which had not ")), "{text}");
    assert!(text.contains(&format!(": it waited last for {point}, which had not come")), "{text}");
}

#[test]
fn a_receiver_that_ignores_a_dependency_is_seen_to() {
    let (first, told) = behind_another(Mutation::IgnoresRegions);
    let reception = told.borrow().stories[&R0].receptions[&RECEIVER].clone();
    let missing = reception.contradiction().expect("it did not wait");
    assert_eq!((missing.region, missing.upto), (R2, first), "{reception:?}");
    let text = text(&told);
    let wrong = format!("which is wrong            {} of r2, which had not come", first.0);
    assert!(text.contains(&wrong), "{text}");
}

/// What shards of region 0 say to those of region 1, which is data, is late.
#[test]
fn an_update_waits_for_its_data() {
    let is_late = |from: Peer, to: Peer| {
        let are_shards = matches!((from.role, to.role), (Role::Shard(_), Role::Shard(_)));
        are_shards && (from.region, to.region) == (R0, R1)
    };
    let act = |scene: &mut Scene| {
        scene.run_for(300 * MS);
        update(scene, shard(R0, 1), Seen::default())
    };
    let (_, told) = told(|| scene(Mutation::Correct, is_late), act);
    assert_eq!(told.borrow().last(R0, R1), Some(Cause::Data));
    assert_ne!(told.borrow().last(R0, R2), Some(Cause::Data));
    let application = told.borrow().stories[&R0].applications[&shard(R1, 1)].clone();
    let applied = application.applied.as_ref().expect("it came at last");
    assert!(applied.words.starts_with("from r0/shard1: Data "), "{application:?}");
    assert!(application.wanted.is_some() && application.data.is_none(), "{application:?}");
    let text = text(&told);
    assert!(text.contains("ms after it was committed: it waited last for its data"), "{text}");
}

/// The timestamp of the update that has happened, if an output of a process tells of one.
type Named<P> = fn(<P as Process>::Peer, &<P as Process>::Output) -> Option<Timestamp>;

/// The timestamps of updates that happen in a run.
struct Names<P: Process> {
    of: Named<P>,
    all: Rc<RefCell<BTreeSet<Timestamp>>>,
}

impl<P: Process> Watcher<P> for Names<P> {
    fn happened(&mut self, event: &Happened<'_, P>) {
        if let What::Output(output) = event.what {
            self.all.borrow_mut().extend((self.of)(event.at, output));
        }
    }
}

/// The faulty phase of a trial, of which the watcher is told.
fn run<S: Subject>(trial: &S, seed: u64, watcher: Box<dyn Watcher<S::Process>>) {
    let mut stage = Stage::new(trial, seed, &trial.draw(seed), Detail::default());
    stage.world.watch(watcher);
    stage.world.run_for(S::FAULTS);
}

/// An update in the midst of a run.
fn name<S: Subject>(trial: &S, seed: u64, of: Named<S::Process>) -> Option<Name> {
    let all = Rc::default();
    run(trial, seed, Box::new(Names { of, all: Rc::clone(&all) }));
    let all = all.take();
    all.iter().nth(all.len() / 2).map(|ts| Name(*ts))
}

fn made(at: Peer, output: &Output) -> Option<Timestamp> {
    match output {
        Output::Shard(shard::Output::Updated { seen, .. }) => Some(seen.vector[at.region]),
        _ => None,
    }
}

/// With all faults, no service and no receiver goes on before it may.
#[test]
fn what_is_told_of_updates_holds_in_any_run() {
    let trial = Trial::default();
    let (mut shown, mut runs) = (0, 0);
    each_seed(0..20, |seed| {
        runs += 1;
        let Some(name) = name(&trial, seed, made) else { return };
        let told = Rc::new(RefCell::new(Explanation::new(name, Box::new(Words))));
        run(&trial, seed, Box::new(told.clone()));
        for story in told.borrow().stories.values() {
            for (at, known) in &story.services {
                assert_eq!(known.contradiction(), None, "seed {seed}, {name:?} at {at}: {known:?}");
            }
            for (at, known) in &story.receptions {
                assert_eq!(known.contradiction(), None, "seed {seed}, {name:?} at {at}: {known:?}");
            }
            shown += story.applications.values().filter(|known| known.shown.is_some()).count();
        }
    });
    assert!(one_seed() || 2 * shown > runs, "{shown} in {runs} runs");
}

/// Whatever the subject, a calm run is explained to its end.
fn is_explained<S: Subject>(trial: &S, name: Name) {
    let name = name.0.0.to_string();
    let text = trial.explain(3, &name).unwrap();
    assert_eq!(text, trial.explain(3, &name).unwrap(), "the same twice");
    assert!(text.starts_with("seed 3; ") && text.contains(&format!("\n{name} of r")), "{text}");
    for words in ["begins it ", "has committed it ", "finds it stable ", "sends it to "] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains(" ms after it was committed: it waited last for "), "{text}");
    assert!(!text.contains("violated") && !text.contains("which is wrong"), "{text}");
    let error = trial.explain(3, "77").unwrap_err();
    assert!(error.starts_with("no message of seed 3 is called 77: there are "), "{error}");
    assert!(error.chars().filter(char::is_ascii_digit).count() > 10, "some names: {error}");
    let error = trial.explain(3, "k3@4.1").unwrap_err();
    assert_eq!(error, "`k3@4.1` is no update: it is named by its label, as 812345344");
}

#[test]
fn a_run_is_explained_by_its_seed_and_the_name_of_an_update() {
    let trial = Trial {
        faults: Some(Faults::none()),
        loss: Some(Loss::default()),
        plan: Some(Plan::default()),
        ..Trial::default()
    };
    is_explained(&trial, name(&trial, 3, made).expect("sessions write"));
}

#[test]
fn updates_on_groups_of_hermes_are_explained_by_the_same_code() {
    const NODES: u16 = 2;
    let trial = causal::Trial {
        regions: Some(2),
        nodes: Some(NODES),
        faults: Some(Faults::none()),
        loss: Some(Loss::default()),
        ..causal::Trial::default()
    };
    let name = name(&trial, 3, |at, output| match output {
        keys::Output::Updated { seen, .. } => Some(seen.vector[RegionId(at.0 / NODES)]),
        _ => None,
    });
    is_explained(&trial, name.expect("sessions write"));
}
