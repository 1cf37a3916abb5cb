//! What a trace tells of a run, whatever the subject: words instead of structures, names of
//! messages, and of a seed always the same.

use meridian_core::Process;
use meridian_sim::of::{
    causal, configuration, drain, eunomia, files, hermes, locks, outside, paxos,
};
use meridian_sim::trace::{Filter, Teller, Trace};
use meridian_sim::trial::Stage;
use meridian_sim::{Detail, Happened, Subject, Watcher};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// Each subject is told of with this seed.
const SEED: u64 = 1;
/// No line has more columns.
const COLUMNS: usize = 160;

/// What an event is about, and its words.
type Told = (Vec<String>, String);

/// Keeps what a teller says of all events.
struct Listener<P: Process> {
    teller: Box<dyn Teller<P>>,
    told: Rc<RefCell<Vec<Told>>>,
}

impl<P: Process> Watcher<P> for Listener<P> {
    fn happened(&mut self, event: &Happened<'_, P>) {
        let about = self.teller.about(event);
        self.told.borrow_mut().push((about, self.teller.words(event)));
    }
}

/// A run of the subject, of which the watcher is told.
fn run<S: Subject>(subject: &S, lasts: Duration, watcher: Box<dyn Watcher<S::Process>>) {
    let mut stage = Stage::new(subject, SEED, &subject.draw(SEED), Detail::default());
    stage.world.watch(watcher);
    stage.world.run_for(lasts);
}

/// What the subject's teller says of all events of a run.
fn told<S: Subject>(subject: &S, lasts: Duration) -> Vec<Told> {
    let told: Rc<RefCell<Vec<Told>>> = Rc::default();
    let listener = Listener { teller: S::teller(), told: told.clone() };
    run(subject, lasts, Box::new(listener));
    told.take()
}

/// The lines of a trace of the same run.
fn lines<S: Subject>(subject: &S, lasts: Duration, filter: Filter) -> Vec<String> {
    let lines: Rc<RefCell<Vec<String>>> = Rc::default();
    let write = {
        let lines = lines.clone();
        move |line: &str| lines.borrow_mut().push(line.to_string())
    };
    run(subject, lasts, Box::new(Trace::to(S::teller(), filter, write)));
    lines.take()
}

/// Whether it has what only structures have, if they are shown as they are.
fn is_structure(words: &str) -> bool {
    let shown = ["{ ", ": [", " }", "Id(", "Some(", "Time(", "Timestamp(", "View(", "Instance("];
    shown.iter().any(|shown| words.contains(shown))
}

/// Whether words may be about more than they name: lists end, and an ACK of the multicast is about
/// all before it.
fn names_not_all(words: &str) -> bool {
    words.contains(" more") || words.contains(" below ")
}

/// Traces of the subject are in words, these among them; filters and seeds do what they should.
pub(super) fn is_told<S: Subject>(subject: &S, lasts: Duration, expected: &[&str]) {
    let all = told(subject, lasts);
    for (about, words) in &all {
        assert!(!is_structure(words), "{words}");
        let unnamed = about.iter().find(|name| !words.contains(*name));
        assert!(unnamed.is_none() || names_not_all(words), "{unnamed:?} is not named: {words}");
    }
    for expected in expected {
        assert!(all.iter().any(|(_, words)| words.contains(expected)), "nobody says {expected}");
    }
    let whole = lines(subject, lasts, Filter::default());
    assert_eq!(whole.len(), all.len(), "equal seeds");
    for (line, (_, words)) in whole.iter().zip(&all) {
        assert!(line.chars().count() <= COLUMNS, "{line}");
        assert!(line.ends_with(words) || line.ends_with(" more words"), "{line}: {words}");
    }
    // In the midst of the run the messages are not those of its beginning.
    let names: Vec<_> = all.iter().filter_map(|(about, _)| about.first()).collect();
    assert!(!names.is_empty(), "no event has a name");
    let name = names[names.len() / 2];
    let some = lines(subject, lasts, Filter { message: Some(name.clone()), ..Filter::default() });
    let about = all.iter().zip(&whole).filter(|((about, _), _)| about.contains(name));
    assert!(some.iter().eq(about.map(|(_, line)| line)), "about {name}: {some:#?}");
    assert!(some.len() < whole.len(), "all lines are about {name}");
}

#[test]
fn replicated_state_machines_are_told_in_words() {
    let words = ["Propose ", "Accept ", "Prepare v", "PrepareOk v", "is to execute ", "answers "];
    is_told(&paxos::Trial::default(), 2 * SECOND, &words);
}

#[test]
fn hermes_is_told_in_words() {
    let words = ["INVs from ", "ACKs ", "VALs ", "asks for a lease", "m-update: epoch "];
    is_told(&hermes::Trial::default(), 2 * SECOND, &words);
}

#[test]
fn eunomia_is_told_in_words() {
    let words = ["labels ", "Stream ", "Data ", "Apply of r", "Applied of r", "is committed: "];
    is_told(&eunomia::Trial::default(), SECOND, &words);
}

#[test]
fn keys_of_all_regions_are_told_in_words() {
    let words = ["INVs from ", "labels ", "shard", "asks for a lease"];
    let three = causal::Trial { nodes: Some(3), ..Default::default() };
    is_told(&three, 2 * SECOND, &words);
}

#[test]
fn whole_nodes_are_told_in_words() {
    let words = [" asks: create \"", "answers client ", ": Append from "];
    is_told(&files::trial::Trial::of(1), 6 * SECOND, &words);
    is_told(&locks::trial::Trial::default(), 6 * SECOND, &[" asks: lock ", "answers client "]);
}

#[test]
fn parts_of_nodes_are_told_in_words() {
    is_told(&drain::trial::Trial::default(), 8 * SECOND, &["Which ", "Held ", "hears of "]);
    let three = configuration::trial::Trial { keepers: Some(3), ..Default::default() };
    is_told(&three, 15 * SECOND, &["Propose ", "Accept ", "is to execute "]);
}

#[test]
fn clients_outside_of_groups_are_told_in_words() {
    let words = ["is to multicast to g", ": Start ", ": Delivered ", "is delivered at "];
    is_told(&outside::Trial::default(), 5 * SECOND, &words);
}
