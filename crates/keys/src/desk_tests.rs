//! Clients of three replicas, in one thread.

use super::*;
use meridian_core::{Effect, Event, NodeId, Outbox, Process};
use meridian_hermes::{Epoch, Membership, Output};
use std::cell::Cell;

const LEASE: Time = Time(1_000_000);
const BYTES_MAX: usize = 10_000;

/// What a desk wants done.
#[derive(Default)]
struct Paper {
    asked: Vec<Asked<Rmw>>,
    written: BTreeMap<ClientNumber, Vec<u8>>,
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

    fn ask(&mut self, asked: Asked<Rmw>) {
        self.asked.push(asked);
    }

    fn write(&mut self, client: ClientNumber, reply: &Reply, version: Version) {
        reply.write(version, self.written.entry(client).or_default());
    }

    fn end(&mut self, client: ClientNumber) {
        self.ended.push(client);
    }

    fn info(&self, sections: &[&[u8]]) -> String {
        format!("{} sections", sections.len())
    }
}

/// Three replicas, each with a desk; messages travel when they are told to.
struct Net {
    replicas: Vec<Replica>,
    desks: Vec<Desk>,
    papers: Vec<Paper>,
    events: VecDeque<(usize, Event<Replica>)>,
    moments: [Moment; 3],
}

impl Net {
    fn new() -> Net {
        let nodes = [0, 1, 2].map(NodeId);
        let make = |node: NodeId| Replica::new(node, options(), node.0.into());
        let mut net = Net {
            replicas: nodes.map(make).into(),
            desks: nodes.map(|_| Desk::new(BYTES_MAX)).into(),
            papers: nodes.map(|_| Paper::default()).into(),
            events: VecDeque::new(),
            moments: [Moment(1_000); 3],
        };
        let live = nodes.into();
        let first = Membership { epoch: Epoch::FIRST, live, ..Membership::default() };
        for node in 0..3 {
            let commands = [Asked::Install(first.clone()), Asked::Lease { until: LEASE }];
            net.events.extend(commands.map(|command| (node, Event::Command(command))));
            net.desks[node].connect(7);
        }
        net.run();
        net
    }

    /// A client of a node sends bytes; what it is answered at once.
    fn say(&mut self, node: usize, bytes: &str) -> String {
        self.desks[node].feed(7, bytes.as_bytes());
        loop {
            let now = Now { time: Time(0), moment: self.moments[node] };
            let (replica, paper) = (&self.replicas[node], &mut self.papers[node]);
            if !self.desks[node].take(now, 7, replica, paper) {
                break;
            }
        }
        self.answered(node)
    }

    /// What its client was answered since.
    fn answered(&mut self, node: usize) -> String {
        let written = self.papers[node].written.remove(&7).unwrap_or_default();
        String::from_utf8(written).expect("text")
    }

    /// Carries all messages, until none is under way.
    fn run(&mut self) {
        loop {
            for (node, paper) in self.papers.iter_mut().enumerate() {
                let asked = paper.asked.drain(..);
                self.events.extend(asked.map(|asked| (node, Event::Command(asked))));
            }
            let Some((node, event)) = self.events.pop_front() else { return };
            let mut out = Outbox::new();
            self.replicas[node].step(Time(0), event, &mut out);
            for effect in out.drain() {
                match effect {
                    Effect::Send { to, message } => {
                        let from = NodeId(u16::try_from(node).expect("three"));
                        self.events.push_back((to.0.into(), Event::Message { from, message }));
                    }
                    Effect::Output(Output::Answer { token, answer }) => {
                        let now = Now { time: Time(0), moment: self.moments[node] };
                        self.desks[node].on_answer(now, token, answer, &mut self.papers[node]);
                    }
                    _ => {}
                }
            }
        }
    }

    /// A batch of a node ends; what its client is answered then.
    fn look_again(&mut self, node: usize, time: Time) -> String {
        let now = Now { time, moment: self.moments[node] };
        let (replica, paper) = (&self.replicas[node], &mut self.papers[node]);
        self.desks[node].look_again(now, replica, paper);
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
    assert_eq!(net.desks[0].unanswered(7), 0);
}

#[test]
fn a_read_waits_for_the_write_that_invalidated_its_key() {
    let mut net = Net::new();
    net.ask(0, "set k old\n");
    net.say(0, "set k new\n");
    let asked = net.papers[0].asked.pop().expect("a write");
    let mut out = Outbox::new();
    net.replicas[0].step(Time(0), Event::Command(asked), &mut out);
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
    assert!(net.desks[0].waiting.is_empty() && net.desks[0].due().is_none());
    assert_eq!(net.ask(0, "ping\nset k v\nscan 0\n"), "+PONG\r\n");
    net.replicas[0] = serving;
    assert_eq!(net.look_again(0, Time(1)), "+OK\r\n*2\r\n$1\r\n0\r\n*0\r\n");
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
    net.desks[0].disconnect(7);
    net.run();
    assert!(net.desks[0].waiting.is_empty() && net.desks[0].is_empty());
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
