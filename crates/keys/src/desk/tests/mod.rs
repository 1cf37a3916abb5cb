//! Clients of three replicas, in one thread.

use super::*;
use crate::command::Combined;
use meridian_core::{Effect, Event, NodeId, Outbox, Process, mix};
use meridian_hermes::{Epoch, Membership, Output};
use std::cell::Cell;
use std::collections::VecDeque;

mod grants;
mod hostile;
mod names;
mod shards;
mod watching;

const LEASE: Time = Time(1_000_000);
const BYTES_MAX: usize = 10_000;

/// What a desk wants done.
#[derive(Default)]
struct Paper {
    asked: Vec<Asked<Rmw>>,
    passed: Vec<(Shard, Passed)>,
    elsewhere: Held,
    written: BTreeMap<ClientNumber, Vec<u8>>,
    stuffed: bool,
    /// So many bytes a client takes at a time, if there is a limit.
    takes: Option<usize>,
    grants: BTreeMap<ClientNumber, Arc<Grant>>,
    blamed: Vec<(ClientNumber, ProtocolError)>,
    ended: Vec<ClientNumber>,
    /// The clock when it is asked next, and always after that.
    times: Cell<Option<(Time, Time)>>,
}

impl Counter for Paper {
    fn time(&self) -> Time {
        let Some((first, then)) = self.times.get() else { return Time(0) };
        self.times.set(Some((then, then)));
        first
    }

    fn grant(&mut self, client: ClientNumber) -> Option<Arc<Grant>> {
        self.grants.get(&client).cloned()
    }

    fn ask(&mut self, asked: Asked<Rmw>) {
        self.asked.push(asked);
    }

    fn pass(&mut self, to: Shard, passed: Passed) {
        self.passed.push((to, passed));
    }

    fn elsewhere(&self) -> Held {
        self.elsewhere
    }

    fn write(&mut self, client: ClientNumber, reply: &Reply, version: Version) {
        reply.write(version, self.written.entry(client).or_default());
    }

    fn is_stuffed(&mut self, client: ClientNumber) -> bool {
        let waiting = self.written.get(&client).map_or(0, Vec::len);
        self.stuffed || self.takes.is_some_and(|takes| waiting > takes)
    }

    fn blame(&mut self, client: ClientNumber, error: &ProtocolError) {
        self.blamed.push((client, error.clone()));
    }

    fn end(&mut self, client: ClientNumber) {
        self.ended.push(client);
    }

    fn info(&self, sections: &[&[u8]]) -> String {
        format!("{} sections", sections.len())
    }
}

/// What is under way to a replica or a desk.
enum Coming {
    Event(Event<Replica>),
    Passed(Shard, Passed),
}

/// Three nodes, each with a replica and a desk for each shard; messages travel when they are told
/// to. A place is a node's number times the number of shards, and the shard's.
struct Net {
    shards: usize,
    replicas: Vec<Replica>,
    desks: Vec<Desk>,
    papers: Vec<Paper>,
    /// From where to where, and what.
    coming: VecDeque<(usize, usize, Coming)>,
    moments: [Moment; 3],
    /// Where chance is drawn from; in order without it.
    draws: Option<u64>,
    /// A planted bug: what desks say to each other overtakes.
    overtakes: bool,
}

impl Net {
    fn new() -> Net {
        Net::of(1)
    }

    fn of(shards: usize) -> Net {
        let places = 0..3 * shards;
        let node = |place: usize| NodeId(u16::try_from(place / shards).expect("three"));
        let seat = |place: usize| Seat { shard: shard(place % shards), shards };
        let make = |place: usize| Replica::new(node(place), options(), place as u64);
        let mut net = Net {
            shards,
            replicas: places.clone().map(make).collect(),
            desks: places.clone().map(|place| Desk::new(seat(place), BYTES_MAX)).collect(),
            papers: places.clone().map(|_| Paper::default()).collect(),
            coming: VecDeque::new(),
            moments: [Moment(1_000); 3],
            draws: None,
            overtakes: false,
        };
        let live = [0, 1, 2].map(NodeId).into();
        let first = Membership { epoch: Epoch::FIRST, live, ..Membership::default() };
        for place in places {
            net.install(place, first.clone());
            net.command(place, Asked::Lease { until: LEASE });
            net.desks[place].connect(7);
        }
        net.run();
        (0..3).for_each(|node| drop(net.look_again(node, Time(0))));
        net
    }

    fn command(&mut self, place: usize, command: Asked<Rmw>) {
        self.coming.push_back((place, place, Coming::Event(Event::Command(command))));
    }

    fn install(&mut self, place: usize, membership: Membership) {
        self.command(place, Asked::Install(membership));
    }

    fn now(&self, place: usize) -> Now {
        Now { time: Time(0), moment: self.moments[place / self.shards] }
    }

    /// A client of a node sends bytes; what it is answered at once.
    fn say(&mut self, node: usize, bytes: &str) -> String {
        self.feed(node, bytes.as_bytes());
        self.answered(node)
    }

    fn feed(&mut self, node: usize, bytes: &[u8]) {
        self.feed_of(node * self.shards, 7, bytes);
    }

    /// A client of the thread at a place sends bytes.
    fn feed_of(&mut self, place: usize, client: ClientNumber, bytes: &[u8]) {
        self.desks[place].feed(client, bytes);
        loop {
            let (now, replica, paper) =
                (self.now(place), &self.replicas[place], &mut self.papers[place]);
            if !self.desks[place].take(now, client, replica, paper) {
                break;
            }
        }
    }

    /// What its client was answered since.
    fn answered(&mut self, node: usize) -> String {
        self.answered_of(node * self.shards, 7)
    }

    /// What a client of the thread at a place was answered since.
    fn answered_of(&mut self, place: usize, client: ClientNumber) -> String {
        let written = self.papers[place].written.remove(&client).unwrap_or_default();
        String::from_utf8(written).expect("text")
    }

    fn collect(&mut self) {
        for (place, paper) in self.papers.iter_mut().enumerate() {
            let asked = paper.asked.drain(..).map(|asked| Coming::Event(Event::Command(asked)));
            self.coming.extend(asked.map(|coming| (place, place, coming)));
            let (home, own) = (place - place % self.shards, shard(place % self.shards));
            for (to, passed) in paper.passed.drain(..) {
                let to = home + usize::from(to.0);
                self.coming.push_back((place, to, Coming::Passed(own, passed)));
            }
        }
    }

    /// What comes next: the first on a way that is drawn.
    fn next(&mut self) -> Option<(usize, Coming)> {
        let mut index = 0;
        if let Some(draws) = self.draws.as_mut().filter(|_| !self.coming.is_empty()) {
            *draws = mix(*draws);
            index = usize::try_from(*draws % self.coming.len() as u64).expect("short");
            let (from, to, coming) = &self.coming[index];
            if !(self.overtakes && matches!(coming, Coming::Passed(..))) {
                let same = |(f, t, _): &(usize, usize, Coming)| (f, t) == (from, to);
                index = self.coming.iter().position(same).expect("it is one itself");
            }
        }
        self.coming.remove(index).map(|(_, to, coming)| (to, coming))
    }

    /// Carries all messages, until none is under way.
    fn run(&mut self) {
        loop {
            self.collect();
            let Some((place, coming)) = self.next() else { return };
            match coming {
                Coming::Event(event) => self.step(place, event),
                Coming::Passed(from, passed) => {
                    let (now, replica, paper) =
                        (self.now(place), &self.replicas[place], &mut self.papers[place]);
                    self.desks[place].on_passed(now, from, passed, replica, paper);
                }
            }
        }
    }

    fn step(&mut self, place: usize, event: Event<Replica>) {
        let (mut out, shards) = (Outbox::new(), self.shards);
        // Each event is a batch of its own.
        for event in [event, Event::Idle] {
            self.replicas[place].step(Time(0), event, &mut out);
        }
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    let from = NodeId(u16::try_from(place / shards).expect("three"));
                    let to = usize::from(to.0) * shards + place % shards;
                    let event = Event::Message { from, message };
                    self.coming.push_back((place, to, Coming::Event(event)));
                }
                Effect::Output(output) => self.told(place, output),
                _ => {}
            }
        }
    }

    fn told(&mut self, place: usize, output: Output) {
        let (now, replica, paper) =
            (self.now(place), &self.replicas[place], &mut self.papers[place]);
        let desk = &mut self.desks[place];
        match output {
            Output::Answer { token, answer } => {
                desk.on_answer(now, token, answer, replica, paper);
            }
            Output::Watching => desk.on_watching(),
            Output::Committed { key } => desk.on_committed(&key),
            Output::Complete { .. } => {}
        }
    }

    /// A batch of all threads of a node ends; what its client is answered then.
    fn look_again(&mut self, node: usize, time: Time) -> String {
        for place in node * self.shards..(node + 1) * self.shards {
            let now = Now { time, ..self.now(place) };
            let (replica, paper) = (&self.replicas[place], &mut self.papers[place]);
            self.desks[place].look_again(now, replica, paper);
        }
        self.run();
        self.answered(node)
    }

    /// What a client of a node is answered in the end.
    fn ask(&mut self, node: usize, bytes: &str) -> String {
        let mut answer = self.say(node, bytes);
        self.run();
        answer += &self.answered(node);
        answer
    }
}

fn shard(number: usize) -> Shard {
    Shard(u8::try_from(number).expect("a few"))
}

#[test]
fn what_one_client_writes_another_reads_at_another_replica() {
    let mut net = Net::new();
    assert_eq!(net.ask(0, "set k v\n"), "+OK\r\n");
    for node in 0..3 {
        assert_eq!(net.say(node, "get k\n"), "$1\r\nv\r\n", "without a message");
    }
    assert_eq!(net.ask(1, "del k nosuch\n"), ":1\r\n");
    assert_eq!(net.say(2, "get k\n"), "$-1\r\n");
}

#[test]
fn replies_come_in_the_order_of_requests() {
    let mut net = Net::new();
    let asked = "ping\nset k 1\nget k\nincr k\nget other\nnosuch\nincr k\n";
    assert_eq!(net.say(0, asked), "+PONG\r\n", "what follows waits for the write");
    net.run();
    let rest = "+OK\r\n$1\r\n1\r\n:2\r\n$-1\r\n-ERR unknown command 'nosuch'\r\n:3\r\n";
    assert_eq!(net.answered(0), rest);
    assert_eq!(net.desks[0].load(7), Load::default());
}

#[test]
fn requests_on_one_key_are_carried_out_in_their_order() {
    let mut net = Net::new();
    net.say(0, "set k 1\nincr k\nget k\nincr k\nset k 7\nget k\nget other\n");
    net.run();
    assert_eq!(net.answered(0), "+OK\r\n:2\r\n$1\r\n2\r\n:3\r\n+OK\r\n$1\r\n7\r\n$-1\r\n");
}

#[test]
fn a_read_waits_for_the_write_that_invalidated_its_key() {
    let mut net = Net::new();
    net.ask(0, "set k old\n");
    net.say(0, "set k new\n");
    let asked = net.papers[0].asked.pop().expect("a write");
    let mut out = Outbox::new();
    for event in [Event::Command(asked), Event::Idle] {
        net.replicas[0].step(Time(0), event, &mut out);
    }
    let inv = out.drain().find_map(|effect| match effect {
        Effect::Send { to: NodeId(1), message } => Some(message),
        _ => None,
    });
    let event = Event::Message { from: NodeId(0), message: inv.expect("an INV") };
    net.replicas[1].step(Time(0), event, &mut Outbox::new());
    assert_eq!(net.say(1, "get k\n"), "", "neither the old value nor the new one yet");
    assert_eq!(net.say(2, "get k\n"), "$3\r\nold\r\n");
}

#[test]
fn concurrent_increments_are_all_counted() {
    let mut net = Net::new();
    for _ in 0..20 {
        for node in 0..3 {
            net.say(node, "incr k\nincr k\n");
        }
    }
    net.run();
    net.answered(1);
    assert_eq!(net.say(1, "get k\n"), "$3\r\n120\r\n");
}

#[test]
fn several_keys_are_set_and_read() {
    let mut net = Net::new();
    assert_eq!(net.ask(0, "mset a 1 b 2\n"), "+OK\r\n");
    assert_eq!(net.say(1, "mget a b c\n"), "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n");
    assert_eq!(net.say(2, "exists a b c\n"), ":2\r\n");
}

#[test]
fn a_version_holds_from_the_answer_to_hello_on() {
    let mut net = Net::new();
    net.say(0, "set k v\nget nosuch\nhello 3\nget nosuch\n");
    net.run();
    let answered = net.answered(0);
    assert!(answered.starts_with("+OK\r\n$-1\r\n%7\r\n"), "{answered}");
    assert!(answered.ends_with("_\r\n"), "{answered}");
}

#[test]
fn who_sees_first_that_a_key_has_expired_removes_it_everywhere() {
    let mut net = Net::new();
    net.ask(0, "set k v px 500\n");
    net.moments[1] = Moment(1_500);
    // By the clock of the second replica it has expired, by those of the others not.
    assert_eq!(net.say(1, "get k\n"), "", "not before all know");
    assert_eq!(net.say(0, "get k\n"), "$1\r\nv\r\n");
    net.run();
    assert_eq!(net.answered(1), "$-1\r\n");
    assert_eq!(net.say(0, "get k\n"), "$-1\r\n", "nobody sees it again");
}

#[test]
fn a_key_that_was_set_anew_meanwhile_has_not_expired() {
    let mut net = Net::new();
    net.ask(0, "set k old px 500\n");
    net.moments[1] = Moment(1_500);
    net.say(1, "get k\n");
    let asked = net.papers[1].asked.pop().expect("it is to be removed");
    net.ask(0, "set k new\n");
    net.papers[1].asked.push(asked);
    net.run();
    assert_eq!(net.answered(1), "$3\r\nnew\r\n");
}

#[test]
fn nobody_is_answered_by_a_lease_that_has_run_out() {
    let mut net = Net::new();
    net.ask(0, "set k v\n");
    // The process stood still between the look at its memory and the look at its clock.
    net.papers[0].times.set(Some((LEASE, Time(0))));
    assert_eq!(net.say(0, "get k\n"), "");
    net.run();
    assert_eq!(net.answered(0), "$1\r\nv\r\n", "it was read again");
    net.papers[0].times.set(Some((LEASE, Time(0))));
    assert_eq!(net.ask(0, "set k w nx\n"), "$-1\r\n", "a condition that fails is a read, too");
}

#[test]
fn a_request_waits_for_a_lease_and_is_refused_after_a_while() {
    let mut net = Net::new();
    let (serving, idle) = (net.replicas[0].clone(), Replica::new(NodeId(0), options(), 0));
    net.replicas[0] = idle;
    for asked in ["get k\n", "set k v\n", "incr k\n", "scan 0\n"] {
        assert_eq!(net.ask(0, asked), "", "{asked}");
    }
    assert_eq!(net.look_again(0, Time(0)), "", "not yet");
    let due = net.desks[0].due().expect("something waits");
    let refused = net.look_again(0, due);
    assert_eq!(refused.matches("-CLUSTERDOWN").count(), 4, "{refused}");
    assert!(net.desks[0].tasks.is_empty() && net.desks[0].due().is_none());
    assert_eq!(net.ask(0, "ping\nset k v\nscan 0\n"), "+PONG\r\n");
    net.replicas[0] = serving;
    assert_eq!(net.look_again(0, Time(1)), "+OK\r\n*2\r\n$1\r\n0\r\n*1\r\n$1\r\nk\r\n");
}

/// Many requests that have waited are answered at once: their replies are not all written at once.
#[test]
fn replies_that_become_known_together_are_written_as_their_client_takes_them() {
    let mut net = Net::new();
    net.ask(0, "set k v\n");
    let serving = std::mem::replace(&mut net.replicas[0], Replica::new(NodeId(0), options(), 0));
    assert_eq!(net.ask(0, &"get k\n".repeat(100)), "");
    net.replicas[0] = serving;
    net.papers[0].takes = Some(20);
    let (mut replies, mut looks) = (String::new(), 0);
    while net.desks[0].load(7).unanswered > 0 {
        let some = net.look_again(0, Time(looks));
        assert!((1..30).contains(&some.len()), "{some}");
        let is_due = net.desks[0].due().is_some();
        assert!(
            looks == 0 || is_due == (net.desks[0].load(7).unanswered > 0),
            "it is looked at again"
        );
        replies += &some;
        looks += 1;
    }
    assert_eq!(replies, "$1\r\nv\r\n".repeat(100));
}

#[test]
fn what_is_no_request_ends_the_connection_after_what_was_asked_before() {
    let mut net = Net::new();
    let answered = net.ask(0, "set k v\n*1\r\n:1\r\nping\n");
    assert_eq!(answered, "+OK\r\n-ERR Protocol error: expected '$', got ':'\r\n");
    assert_eq!(net.papers[0].ended, [7]);
    assert_eq!(net.ask(0, "ping\n"), "");
}

#[test]
fn a_client_that_quits_is_answered_first() {
    let mut net = Net::new();
    net.say(0, "set k v\nquit\nping\n");
    assert!(net.papers[0].ended.is_empty());
    net.run();
    assert_eq!(net.answered(0), "+OK\r\n+OK\r\n");
    assert_eq!(net.papers[0].ended, [7]);
}

#[test]
fn a_client_that_has_gone_leaves_nothing_behind() {
    let mut net = Net::new();
    net.say(0, "set k v\nincr k\nget other\n");
    net.desks[0].disconnect(7, &mut net.papers[0]);
    net.run();
    assert!(net.desks[0].tasks.is_empty() && net.desks[0].is_empty());
    assert_eq!(net.say(1, "get k\n"), "$1\r\nv\r\n", "what it asked for was done");
}

#[test]
fn values_that_are_too_long_together_are_refused() {
    let value = Bytes::from(vec![7; REPLY_MAX / 2 + 1]);
    let reply = || Some(Reply::Bulk(value.clone()));
    assert!(together(Combined::List, vec![reply(), reply()]).is_error());
    assert!(!together(Combined::List, vec![reply(), Some(Reply::Null)]).is_error());
}

#[test]
fn a_walk_shows_each_key_that_is_there() {
    let mut net = Net::new();
    for number in 0..25 {
        net.ask(0, &format!("set user:{number} v\n"));
    }
    net.ask(0, "del user:3\nset other v\nset short v px 1\n");
    net.moments = [Moment(2_000); 3];
    assert_eq!(net.say(1, "scan 0 match user:* count 20 type list\n"), "*2\r\n$2\r\n20\r\n*0\r\n");
    let first = net.say(1, "scan 0 match user:* count 20\n");
    assert!(first.starts_with("*2\r\n$2\r\n20\r\n*19\r\n"), "{first}");
    let second = net.say(1, "scan 20 match user:* count 20\n");
    assert!(second.starts_with("*2\r\n$1\r\n0\r\n*5\r\n"), "{second}");
    assert!(second.contains("user:24") && !second.contains("user:3\r"));
    assert_eq!(net.say(1, "scan 99999999999 count 20\n"), "*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(net.say(1, "scan 0 match s*\n").matches("short").count(), 0, "it has expired");
    assert_eq!(net.say(1, "dbsize\n"), ":26\r\n");
}

#[test]
fn when_memory_is_used_up_nothing_more_is_taken_and_removing_makes_room() {
    let mut net = Net::new();
    let value = "x".repeat(BYTES_MAX);
    assert_eq!(net.ask(0, &format!("set k {value}\n")), "+OK\r\n");
    for asked in ["set k v\n", "incr n\n", "mset a 1\n"] {
        assert!(net.ask(1, asked).starts_with("-OOM"), "{asked}");
    }
    assert!(net.say(1, "get k\n").len() > BYTES_MAX);
    assert_eq!(net.ask(1, "del k\n"), ":1\r\n");
    assert_eq!(net.ask(1, "set k v\n"), "+OK\r\n");
}
