//! What the steward relies on, and what it promises.

use super::*;

const ME: NodeId = NodeId(0);

fn steward(shards: usize) -> Steward {
    let options = reliable::Options::default();
    Steward::new(ReliableMembership::new(ME, &BTreeSet::from([ME]), options, 1), shards)
}

/// A node that is alone: what it sends to itself comes at once, and time goes on.
struct Alone {
    steward: Steward,
    now: Time,
    log: Vec<reliable::Record>,
    told: Vec<Output>,
}

impl Alone {
    fn new(shards: usize, log: Vec<reliable::Record>) -> Alone {
        let mut steward = steward(shards);
        log.iter().cloned().for_each(|record| steward.replay(record));
        let mut alone = Alone { steward, now: Time(1), log, told: Vec::new() };
        alone.run(Event::Started);
        alone
    }

    fn run(&mut self, first: Event<Steward>) {
        let (mut due, mut number) = (BTreeMap::from([((self.now, 0), first)]), 0);
        while let Some(((at, _), event)) = due.pop_first() {
            self.now = self.now.max(at);
            let mut out = Outbox::new();
            self.steward.step(self.now, event, &mut out);
            self.steward.step(self.now, Event::Idle, &mut out);
            for effect in out.drain() {
                number += 1;
                match effect {
                    Effect::Send { message, .. } => {
                        due.insert((self.now, number), Event::Message { from: ME, message });
                    }
                    Effect::Persist(record) | Effect::Note(record) => self.log.push(record),
                    Effect::Output(output) => self.told.push(output),
                    Effect::Timer { at, timer } if at < Time(1_000_000_000) => {
                        due.insert((at, number), Event::Timer(timer));
                    }
                    Effect::Timer { .. } => {}
                }
            }
        }
    }

    fn report(&mut self, shard: u8, report: Report) {
        self.run(Event::Command(Command::Reported(Reported(Shard(shard), report))));
    }

    fn is_leased(&self) -> bool {
        self.told.iter().any(|told| matches!(told, Output::Lease { .. }))
    }
}

/// K1.
#[test]
fn the_membership_starts_when_all_shards_have_said_what_they_found() {
    let mut alone = Alone::new(2, Vec::new());
    alone.report(1, Report::Found(Found::NoLog));
    assert!(alone.log.is_empty() && alone.told.is_empty());
    alone.report(0, Report::Found(Found::NoLog));
    let live = &alone.steward.membership().registry().members().live;
    assert_eq!(*live, BTreeSet::from([ME]));
    assert!(alone.is_leased());
}

/// K1: the last live node has lost all keys if a shard of it has.
#[test]
fn a_node_holds_what_it_acknowledged_only_if_all_its_shards_do() {
    let mut before = Alone::new(2, Vec::new());
    before.report(0, Report::Found(Found::NotAll));
    before.report(1, Report::Found(Found::NotAll));
    for (found, losses) in [(Found::All, 0), (Found::NotAll, 1)] {
        let mut again = Alone::new(2, before.log.clone());
        again.report(0, Report::Found(Found::All));
        again.report(1, Report::Found(found));
        assert_eq!(again.steward.membership().registry().losses(), losses, "{found:?}");
    }
}

/// K3.
#[test]
fn no_shard_is_leased_before_all_have_begun_their_logs() {
    let mut alone = Alone::new(2, Vec::new());
    alone.report(0, Report::Found(Found::NotAll));
    alone.report(1, Report::Found(Found::NotAll));
    assert!(!alone.told.is_empty(), "an epoch is installed");
    alone.report(0, Report::Began);
    assert!(!alone.is_leased());
    alone.report(1, Report::Began);
    alone.report(1, Report::Used);
    assert!(alone.is_leased());
}

/// Who should hold keys is said once, as soon as the threads run: the shards may still be reading
/// their logs then.
#[test]
fn what_is_configured_before_the_membership_starts_counts() {
    let mut alone = Alone::new(1, Vec::new());
    let nodes = BTreeSet::from([ME, NodeId(7)]);
    let configured = Configured { version: 3, nodes: nodes.clone(), ..Configured::default() };
    alone.run(Event::Command(Command::Configure(configured)));
    alone.report(0, Report::Found(Found::NoLog));
    alone.report(0, Report::Used);
    assert_eq!(*alone.steward.membership().registry().wanted(), nodes);
}
