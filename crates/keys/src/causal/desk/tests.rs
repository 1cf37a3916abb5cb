//! Sessions at two regions of one node each; messages take a millisecond.

use super::*;
use crate::access::{Expiry, Modify, Read};
use crate::causal::{Regions, Timer};
use crate::item::{Item, Moment};
use meridian_core::{Effect, Event, NodeId, Outbox, Process};
use meridian_eunomia::Options;
use meridian_hermes::{self as hermes, Epoch, Hermes, Membership};
use std::sync::Arc;

const MS: u64 = 1_000_000;
/// The clock at the beginning.
const BEGIN: u64 = 100_000 * MS;

/// What a desk wants done.
#[derive(Default)]
struct Paper {
    now: Time,
    asked: Vec<Command<Rmw>>,
    answers: Vec<(u64, Reply)>,
}

impl Counter for Paper {
    fn time(&self) -> Time {
        self.now
    }

    fn ask(&mut self, asked: Command<Rmw>) {
        self.asked.push(asked);
    }

    fn pass(&mut self, _: Shard, passed: Passed) {
        let Passed::Answer(part, reply) = passed else { panic!("{passed:?}") };
        self.answers.push((part.request, reply));
    }
}

enum Coming {
    Event(Event<Keys>),
}

/// See the module's documentation.
struct Net {
    now: u64,
    nodes: Vec<(Keys, Desk, Paper)>,
    coming: BTreeMap<(u64, u64), (usize, Coming)>,
    /// How many events were set.
    set: u64,
    /// Whether the two regions hear each other.
    cut: bool,
}

impl Net {
    fn new() -> Net {
        Net::leased(3_600_000)
    }

    /// With leases of so many milliseconds, and some time after the first words were exchanged.
    fn leased(ms: u64) -> Net {
        let regions = Arc::new(Regions::new(vec![vec![NodeId(0)], vec![NodeId(1)]]));
        let node = |number: u16| {
            let replica = Hermes::new(NodeId(number), crate::desk::options(), 7);
            let keys = Keys::new(replica, regions.clone(), Options::default());
            (keys, Desk::new(5), Paper::default())
        };
        let nodes = (0..2).map(node).collect();
        let mut net = Net { now: BEGIN, nodes, coming: BTreeMap::new(), set: 0, cut: false };
        for at in 0..2 {
            net.step(at, Event::Started);
            let live = [NodeId(at as u16)].into();
            let first = Membership { epoch: Epoch::FIRST, live, ..Membership::default() };
            let installed = hermes::Command::Install(first);
            net.step(at, Event::Command(Command::Replica(installed)));
            net.lease(at, ms);
        }
        net.run(500);
        net
    }

    /// A node has a lease for so many milliseconds.
    fn lease(&mut self, at: usize, ms: u64) {
        let lease = hermes::Command::Lease { until: Time(self.now + ms * MS) };
        self.step(at, Event::Command(Command::Replica(lease)));
    }

    fn now(&self) -> Now {
        Now { time: Time(self.now), moment: Moment(self.now / MS) }
    }

    fn put(&mut self, at: usize, when: u64, event: Event<Keys>) {
        self.set += 1;
        self.coming.insert((when, self.set), (at, Coming::Event(event)));
    }

    fn step(&mut self, at: usize, event: Event<Keys>) {
        let (now, mut out) = (self.now(), Outbox::new());
        self.nodes[at].0.step(now.time, event, &mut out);
        self.nodes[at].0.step(now.time, Event::Idle, &mut out);
        let mut outputs = Vec::new();
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    let (to, from) = (usize::from(to.0), NodeId(at as u16));
                    if to == at || !self.cut {
                        self.put(to, self.now + MS, Event::Message { from, message });
                    }
                }
                Effect::Timer { at: when, timer } => {
                    let timer: Timer = timer;
                    self.put(at, when.0.max(self.now), Event::Timer(timer));
                }
                Effect::Output(output) => outputs.push(output),
                Effect::Persist(_) | Effect::Note(_) => {}
            }
        }
        self.with_desk(at, |desk, keys, paper| {
            outputs.into_iter().for_each(|output| desk.on_output(now, output, keys, paper));
        });
    }

    fn with_desk(&mut self, at: usize, work: impl FnOnce(&mut Desk, &Keys, &mut Paper)) {
        let time = Time(self.now);
        let (keys, desk, paper) = &mut self.nodes[at];
        paper.now = time;
        work(desk, keys, paper);
        for asked in std::mem::take(&mut self.nodes[at].2.asked) {
            self.step(at, Event::Command(asked));
        }
    }

    /// For so many milliseconds.
    fn run(&mut self, ms: u64) {
        let end = self.now + ms * MS;
        while let Some(entry) = self.coming.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((when, _), (at, Coming::Event(event))) = entry.remove_entry();
            self.now = when;
            self.step(at, event);
            let now = self.now();
            self.with_desk(at, |desk, keys, paper| desk.look_again(now, keys, paper));
        }
        self.now = end;
        for at in 0..2 {
            let now = self.now();
            self.with_desk(at, |desk, keys, paper| desk.look_again(now, keys, paper));
        }
    }

    fn ask(&mut self, at: usize, client: u64, request: u64, wish: Wish) {
        let (now, part) = (self.now(), Part { client, request, part: 0 });
        let passed = Passed::Causal(part, wish);
        self.with_desk(at, |desk, keys, paper| {
            desk.on_passed(now, Shard(0), passed, keys, paper);
        });
    }

    /// What was answered since this was asked last, by the numbers of requests.
    fn answers(&mut self, at: usize) -> Vec<(u64, Reply)> {
        std::mem::take(&mut self.nodes[at].2.answers)
    }

    /// Asks, and waits for the answer.
    fn told(&mut self, at: usize, client: u64, wish: Wish) -> Reply {
        self.ask(at, client, 0, wish);
        self.run(60);
        let answers = self.answers(at);
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers[0].1.clone()
    }

    fn token(&mut self, at: usize, client: u64) -> Bytes {
        let Reply::Bulk(token) = self.told(at, client, Wish::Token) else { panic!("no token") };
        token
    }
}

fn one(key: &'static str, access: Access) -> Wish {
    Wish::Each(vec![(Bytes::from(key), access)], Combined::First)
}

fn get(key: &'static str) -> Wish {
    one(key, Access::Read(Read::Get))
}

fn set(key: &'static str, value: &'static str) -> Wish {
    one(key, Access::Write(Item::new(value)))
}

/// S1: whatever is sent ahead, each request knows what those before have seen.
#[test]
fn a_session_does_one_request_after_the_other_and_answers_in_order() {
    let mut net = Net::new();
    net.ask(0, 1, 0, set("a", "1"));
    net.ask(0, 1, 1, set("b", "2"));
    net.ask(0, 1, 2, Wish::Snapshot(vec!["a".into(), "b".into(), "c".into()]));
    net.ask(0, 1, 3, one("a", Access::Modify(Modify::Add(4))));
    net.ask(0, 1, 4, get("a"));
    net.run(60);
    let snapshot = Reply::Array(vec![Reply::bulk("1"), Reply::bulk("2"), Reply::Null]);
    let expected = [Reply::OK, Reply::OK, snapshot, Reply::Integer(5), Reply::bulk("5")];
    assert_eq!(net.answers(0), (0..).zip(expected).collect::<Vec<_>>());
    // The second update depends on the first: their labels say so.
    let token = Token::read(&net.token(0, 1)).expect("a token");
    assert!(token.keys.seen().vector[meridian_core::RegionId(0)].0 > BEGIN);
}

#[test]
fn a_session_that_moves_waits_for_what_it_saw_and_is_told_if_it_does_not_come() {
    let mut net = Net::new();
    assert_eq!(net.told(0, 1, set("a", "1")), Reply::OK);
    let token = net.token(0, 1);
    let go_on = |token: &Bytes, ms| Wish::GoOn(token.clone(), Duration::from_millis(ms));
    assert_eq!(net.told(1, 2, go_on(&token, 1000)), Reply::OK);
    assert_eq!(net.told(1, 2, get("a")), Reply::bulk("1"));
    net.cut = true;
    assert_eq!(net.told(0, 1, set("a", "2")), Reply::OK);
    let later = net.token(0, 1);
    // What the session saw of files goes along, and nobody here waits for it.
    let mut later = Token::read(&later).expect("a token");
    later.files.insert(3, 7);
    let later = Bytes::from(&later);
    net.ask(1, 2, 0, go_on(&later, 300));
    net.ask(1, 2, 1, get("a"));
    net.run(200);
    assert_eq!(net.answers(1), [], "what comes after it waits, too");
    net.run(200);
    let answers = net.answers(1);
    let [(0, Reply::Error(why)), (1, value)] = &answers[..] else { panic!("{answers:?}") };
    assert!(why.starts_with("TIMEOUT") && why.contains("of region 0"), "{why}");
    assert_eq!(*value, Reply::bulk("1"));
    let before = Token::read(&net.token(1, 2)).expect("a token");
    assert!(before.files.is_empty(), "it goes on as before");
    net.cut = false;
    net.run(2000);
    assert_eq!(net.told(1, 2, go_on(&later, 1)), Reply::OK);
    assert_eq!(net.told(1, 2, get("a")), Reply::bulk("2"));
    let handed_on = Token::read(&net.token(1, 2)).expect("a token");
    assert_eq!(handed_on.files, [(3, 7)].into());
    let elsewhere = Bytes::from(Token::new(6).text());
    assert!(net.told(1, 2, go_on(&elsewhere, 1)).is_error());
    assert_eq!(net.told(1, 2, Wish::Begin(Reply::Simple("RESET"))), Reply::Simple("RESET"));
    assert_eq!(net.token(1, 2), Bytes::from(Token::new(5).text()), "as a new session");
}

/// S3, and that nothing of it goes to others: what another region writes meanwhile stays.
#[test]
fn what_has_expired_is_gone_in_each_region_and_defeats_no_update_of_another() {
    let mut net = Net::new();
    let expires = Some(Moment(net.now().moment.0 + 500));
    let item = Item { data: "v".into(), expires };
    assert_eq!(net.told(0, 1, one("a", Access::Write(item))), Reply::OK);
    net.run(100);
    assert_eq!(net.told(1, 2, get("a")), Reply::bulk("v"));
    net.cut = true;
    let kept = Modify::GetAndExpire(Expiry::Never);
    assert_eq!(net.told(1, 2, one("a", Access::Modify(kept))), Reply::bulk("v"));
    net.run(600);
    assert_eq!(net.told(0, 1, get("a")), Reply::Null, "its clock says so");
    assert_eq!(net.nodes[0].0.latest(&"a".into()).value, None, "an agreed change");
    assert_eq!(net.told(0, 1, one("a", Access::Modify(Modify::Remove))), Reply::Integer(0));
    net.cut = false;
    net.run(2000);
    for at in 0..2 {
        assert_eq!(net.told(at, 3, get("a")), Reply::bulk("v"), "it does not expire any more");
    }
}

/// S2, and that patience has an end.
#[test]
fn a_replica_without_a_lease_lets_sessions_wait_and_then_refuses() {
    let mut net = Net::leased(400);
    for (request, wish) in [(0, set("a", "1")), (1, get("a"))] {
        net.ask(0, 1, request, wish);
    }
    net.run(100);
    assert_eq!(net.answers(0), []);
    net.lease(0, 1000);
    net.run(20);
    assert_eq!(net.answers(0), [(0, Reply::OK), (1, Reply::bulk("1"))]);
    net.run(2000);
    net.ask(0, 1, 2, get("a"));
    net.run(600);
    let answers = net.answers(0);
    let [(2, Reply::Error(why))] = &answers[..] else { panic!("{answers:?}") };
    assert!(why.starts_with("CLUSTERDOWN"), "{why}");
}

#[test]
fn who_is_gone_leaves_nothing() {
    let mut net = Net::new();
    for request in 0..3 {
        net.ask(0, 1, request, set("a", "1"));
    }
    let now = net.now();
    net.with_desk(0, |desk, keys, paper| {
        desk.on_passed(now, Shard(0), Passed::Left(1), keys, paper);
    });
    net.run(100);
    let (_, desk, _) = &net.nodes[0];
    assert!(desk.is_empty() && desk.waiting.is_empty(), "{desk:?}");
}
